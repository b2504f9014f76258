"""The commands `evaluate ...`: metrics of models and of predictions on held-out data."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

import bertworks as bw
from bertworks.cli import console
from bertworks.errors import UsageError, first_names
from bertworks.events import Event, JsonObject
from bertworks.io.options import Documents, RawText

_COUNTS = "sequences", "masked_tokens", "characters", "tokens", "memory"  # among the figures


def mlm(
    model: str,
    inputs: console.Inputs,
    /,
    *,
    memory: int | None = None,
    sequence_length: int | None = None,
    output: console.OutputFile = None,
    raw: console.Raw = RawText(),
    bulk: console.InBulk = console.InBulk(),
    overwrite: console.OverwriteFile = False,
) -> Iterator[console.Result]:
    """Masked LM loss, accuracy and perplexity, and next sentence accuracy. The masks are the same
    every time. For a model that reads from left to right: metrics over all next tokens.

    Args:
        memory: Number of tokens before each sequence that a Transformer-XL remembers. Default: as
            in its training.
        sequence_length: Tokens per sequence. Default: 128, or the maximum input length of the
            model.

    Examples:
        bertworks evaluate mlm MODEL held-out.txt
        bertworks evaluate mlm MODEL news.jsonl --text-column body
    """
    from bertworks.io.atomic_write import refuse_existing

    refuse_existing(output, overwrite)
    result = bw.evaluate_mlm(
        model,
        inputs,
        memory=memory,
        sequence_length=sequence_length,
        **vars(raw),
        output=output,
        bulk=bulk,
        on_note=console.say,
    )
    if result is not None:
        rows = (
            (name, f"{v:,.0f}" if name in _COUNTS else f"{v:.4f}") for name, v in result.items()
        )
        yield result, console.table(rows)


def blimp(
    model: str,
    /,
    *,
    data: Path,
    output: console.OutputFile = None,
    sample: Annotated[int, console.at_least(0)] = 0,
    within_word: console.Flag = False,
    overwrite: console.OverwriteFile = False,
) -> Iterable[Event]:
    """BLiMP: the fraction of pairs in which the grammatical sentence has the higher score, per
    paradigm.

    Args:
        data: Sentence pairs: a file with sentence_good, sentence_bad, UID, or a folder of .jsonl
            files.
        sample: Pairs per paradigm, the same every time; 0: all.

    Examples:
        bertworks evaluate blimp MODEL --data BLIMP
        bertworks evaluate blimp MODEL --data BLIMP --sample 100 -o scores.json
    """
    from bertworks.io.atomic_write import refuse_existing

    refuse_existing(output, overwrite)
    return bw.evaluate_blimp(model, data, output=output, sample=sample, within_word=within_word)


def task(
    model: str,
    data: str,
    /,
    *,
    joint_task: console.JointTask = None,
    errors: Annotated[Path | None, Parameter(name=["--errors", "-o"])] = None,
    text: console.Repeatable = None,
    label: console.Repeatable = None,
    threshold: float | None = None,
    positive: str | None = None,
    overwrite: console.OverwriteFile = False,
    read: console.Read = console.Read(),
    precision: console.InferencePrecision = "auto",
) -> Iterator[console.Result]:
    """Metrics of a fine-tuned model on labelled rows, overall and per label.

    Args:
        model: A fine-tuned model folder.
        data: Labelled rows outside the training data, in any format of finetune.
        errors: File for all errors, the most confident first. Default: none.
        threshold: Several labels: the minimum probability of a predicted label; default: 0.5.
            Questions: the lead in logits from which "no answer" is predicted; default: the best
            value on dev.
        positive: Of two classes, the one that F1 is reported for. Default: as in training.

    Examples:
        bertworks evaluate task MODEL test.csv
        bertworks evaluate task MODEL test.csv --errors errors.csv
    """
    from bertworks.io.atomic_write import refuse_existing
    from bertworks.tasks.registry import TASKS
    from bertworks.tasks.scores import format_metrics, format_never_found, largest_parts
    from bertworks.tasks.sequences import format_truncation

    refuse_existing(errors, overwrite)
    result = bw.evaluate_task(
        bw.task_folder(model, joint_task),
        data,
        errors=errors,
        text=text or [],
        label=label,
        on_note=console.say,
        threshold=threshold,
        positive=positive,
        read=read,
        precision=precision,
    )
    positive = result["positive"]
    lines = [
        f"{result['rows']:,} rows: "
        f"{format_metrics(result['figures'], result['intervals'], positive)}"
    ]
    fp32_figures = result.get("figures_fp32")
    if fp32_figures:
        lines.append(f"in fp32: {format_metrics(fp32_figures, positive=positive)}")
    if result["truncated"]:
        rows = TASKS[result["task"]].rows_are
        lines.append(
            f"WARNING: {format_truncation(result, rows)}; the scores are for the truncated texts"
        )
    if result["never_found"]:
        lines.append(f"WARNING: {format_never_found(result['never_found'])}")

    def format_row(row: dict[str, float]) -> str:
        cells = [
            f"{key} {value:,.0f}" if key == "support" else f"{key} {value:.1%}"
            for key, value in row.items()
        ]
        return "  ".join(cells)

    if result["table"]:
        parts = largest_parts(result["table"])
        lines.append(console.table((name, format_row(row)) for name, row in parts.items()))
        if len(parts) < len(result["table"]):
            lines.append(f"{len(parts)} of {len(result['table']):,} labels shown; --json has all")
    yield result, "\n".join(lines)
    if result["rows_without_text"]:
        console.say(
            f"rows without text, left out: {result['rows_without_text']:,}", is_warning=True
        )
    if result["frequent"]:
        console.say(f"{result['mistakes']:,} errors: {result['frequent']}")
    if errors is not None:
        console.say(f"written to {errors}")


def squad(
    model: str | None = None,
    /,
    *,
    data: Path,
    predictions: Path | None = None,
    output: Annotated[Path | None, console.output_file()] = None,
    no_answer_probabilities: Path | None = None,
    unit: Literal["auto", "word", "character"] = "auto",
    overwrite: console.OverwriteFile = False,
) -> Iterator[console.Result]:
    """Official SQuAD metrics, in percent, of answers in a file or of a model.

    Args:
        model: A model fine-tuned on questions, to compute the answers.
        data: Questions with gold answers, in the format of SQuAD 1.1 or 2.0.
        predictions: A JSON object of answers: {"question id": "answer"}, "" for no answer.
            Default: the answers of the model.
        output: JSON file for the model's answers. Default: none.
        no_answer_probabilities: A JSON object {"question id": 0.25}. Adds the best threshold for
            "no answer". Default: none.
        unit: Unit of F1. auto: characters for Japanese and Chinese, else words.

    Examples:
        bertworks evaluate squad MODEL --data dev.json
        bertworks evaluate squad --data dev.json --predictions answers.json
    """
    from bertworks.io.atomic_write import refuse_existing, refuse_unwritable, write_json
    from bertworks.tasks.sequences import Truncation, format_truncation

    if (predictions is None) == (model is None):
        raise UsageError(
            "expected either a file of answers or a model", hint="give --predictions or --model"
        )
    refuse_existing(output, overwrite)
    answers: Path | dict[str, str] = predictions or {}
    truncation = Truncation()
    if model is not None:
        refuse_unwritable(output)
        console.say(f"{model} answers the questions of {data} ...")
        answered = bw.answer_questions(data, model, counts=truncation, on_note=console.say)
        answers = {identity: answer["answer"] for identity, answer in answered}
        if output is not None:
            write_json(output, answers)
    result = bw.evaluate_squad(
        data, answers, na_probs=no_answer_probabilities, unit=unit, on_note=console.say
    )
    ids = {
        "questions without an answer": result["missing_ids"],
        "answers without a question": result["unknown_ids"],
    }
    intervals = result["intervals"]
    texts = {}
    for name, value in result.items():
        if value is not intervals and value not in ids.values():
            texts[name] = f"{value:,}" if isinstance(value, int) else str(value)
    for name, (low, high) in intervals.items():
        texts[name] += f" ({low:.1f} to {high:.1f})"
    lines = [console.table(texts.items())]
    if model is not None:
        result |= truncation.as_dict()
        if truncation.truncated:
            sentence = format_truncation(
                {"rows": truncation.rows, **truncation.as_dict()}, "questions"
            )
            lines.append(f"WARNING: {sentence}; the scores are for the truncated texts")
    yield result, "\n".join(lines)
    for what, identities in ids.items():
        if identities:
            console.say(f"{len(identities):,} {what}: {first_names(identities, 5)}")


def glue(
    model: str = "minilm",
    /,
    *,
    data: Path,
    output: console.Output,
    task: console.Repeatable = None,
    seeds: Annotated[int, console.at_least(1)] = 1,
    seed: int | None = None,
    training: console.Training = console.Training(),
    recipe: str = "stable",
    settings: console.Settings = None,
) -> Iterable[Event]:
    """Fine-tune on every task of GLUE in the folder. Write a table with published results, and
    leaderboard files.

    Args:
        data: The folder of GLUE's folders: CoLA, SST-2, MRPC, ...
        task: Only this task. Default: all tasks. Repeatable.
        seeds: Trainings per task.
        seed: Random seed of the first training. Default: from the recipe.
        recipe: stable, paper, or a .toml file.

    Examples:
        bertworks evaluate glue MODEL --data GLUE -o RESULTS
        bertworks evaluate glue MODEL --data GLUE -o RESULTS --task RTE --seeds 5
    """
    return bw.evaluate_glue(
        data,
        output,
        model=model,
        tasks=task or [],
        seeds=seeds,
        seed=seed,
        recipe=recipe,
        overrides=settings or [],
        **vars(training),
    )


def sts(
    model: str, data: str, /, *, pooling: console.Pooling = None, learn_from: str | None = None
) -> console.Result:
    """Correlation of cosine similarity with human scores: plain, centered and whitened.

    Args:
        data: Pairs of texts with a similarity score.

    Examples:
        bertworks evaluate sts minilm pairs.csv
        bertworks evaluate sts MODEL pairs.tsv --pooling cls
    """
    result = bw.evaluate_sts(
        model, data, pooling=pooling, learn_from=learn_from, on_note=console.say
    )
    return _with_text(result, ("none", "center", "whiten"))


def similarity(
    model: str,
    files: list[str],
    /,
    *,
    pooling: console.Pooling = None,
    device: str = "auto",
) -> console.Result:
    """Rank correlation of the cosine of two words with human scores, on sets such as WordSim-353.

    Args:
        model: Static vectors, or an encoder, which reads each word alone.
        files: Pairs of words with a similarity score, one per line.

    Examples:
        bertworks evaluate similarity STATIC EN-MEN-TR-3k.txt EN-SIMLEX-999.txt
        bertworks evaluate similarity minilm pairs.tsv
    """
    result = bw.evaluate_similarity(
        model, files, pooling=pooling, device=device, on_note=console.say
    )
    rows = []
    for name, figures in result["files"].items():
        low, high = figures["interval"]
        text = f"spearman {figures['spearman']:.4f} ({low:.4f} to {high:.4f})"
        text += f"  {figures['known']:,} of {figures['pairs']:,} pairs"
        rows.append((name, text))
    return result, console.table(rows)


def retrieval(
    model: str = "minilm",
    /,
    *,
    data: str,
    pooling: console.Pooling = None,
    max_length: console.MaxLength = None,
    windows: int | None = None,
    language: str | None = None,
    rerank: str | None = None,
    keep_identical: console.Flag = False,
) -> console.Result:
    """nDCG, average precision and recall of search by vectors, by words and by both.

    Args:
        data: A test collection: a folder in the layout of TREC or BEIR.
        windows: Read longer texts in up to this many windows, and average their embeddings.
            Default: truncate them.
        keep_identical: Keep the document that has the id of the query in its ranking. BEIR leaves
            it out.

    Examples:
        bertworks evaluate retrieval minilm --data COLLECTION
        bertworks evaluate retrieval MODEL --data COLLECTION --rerank RERANKER
    """
    events = bw.evaluate_retrieval(
        data,
        model,
        pooling=pooling,
        max_length=max_length,
        windows=windows,
        language=language,
        rerank=rerank,
        keep_identical=keep_identical,
    )
    last = console.show_events(events, results=False)
    assert last is not None
    return _with_text(last.fields, ("dense", "bm25", "hybrid", "reranked"))


def pairs(
    model: str,
    files: list[str],
    /,
    *,
    language: console.Repeatable = None,
    device: str = "auto",
) -> console.Result:
    """Translations by nearest vector: how often the nearest sentence on the other side is the
    translation.

    Args:
        files: A table of two columns, separated by tabs, or two files with the same number of
            lines.
        language: Languages of the two sides, for a model with several. Repeatable.

    Examples:
        bertworks evaluate pairs MODEL test.en test.de --language en --language de
        bertworks evaluate pairs minilm pairs.tsv
    """
    from bertworks.tasks.sequences import format_truncation

    result = bw.evaluate_pairs(
        model, files, languages=language or (), device=device, on_note=console.say
    )
    sides = result["intervals"].items()
    lines = [
        f"{name:8}  P@1 {result[name]:.1%} ({low:.1%} to {high:.1%})" for name, (low, high) in sides
    ]
    if result["truncated"]:
        lines.append(
            f"WARNING: {format_truncation({'rows': 2 * result['pairs'], **result}, 'texts')}"
        )
    return result, "\n".join([f"{result['pairs']:,} pairs", *lines])


@console.option_group
class TranslationOptions:
    """How the translations are made and compared with the references.

    Args:
        other: A second model, to report paired differences with their intervals. Default: none.
        max_tokens: Maximum number of tokens of a translation. Default: as in the model's files,
            else 50 more than the text has.
        cut: Truncate sentences that are longer than the model reads. Default: they are errors.
        lowercase: Ignore case.
        tokenize: How BLEU divides texts into words: zh, ja-mecab and ko-mecab for Chinese,
            Japanese and Korean, char into characters.
        sample: A number of pairs, the same every time; 0: all.
    """

    other: str | None = None
    beam: Annotated[int | None, console.at_least(1)] = None
    length_penalty: float | None = None
    max_tokens: Annotated[int | None, console.at_least(1)] = None
    target_language: str | None = None
    cut: console.Flag = False
    lowercase: console.Flag = False
    tokenize: Literal["13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "none"] = "13a"
    sample: Annotated[int, console.at_least(0)] = 0


def translation(
    model: str,
    files: list[str],
    /,
    *,
    output: console.OutputFile = None,
    options: TranslationOptions = TranslationOptions(),
    overwrite: console.OverwriteFile = False,
    device: str = "auto",
    precision: console.InferencePrecision = "auto",
) -> Iterable[Event]:
    """BLEU and chrF of translations by sacrebleu, with intervals, by length of the source.

    Args:
        model: A model that translates.
        files: Sources and references: a table of two columns, or two files with the same number of
            lines.
        output: An HTML report, which also shows the worst translations. Default: none.

    Examples:
        bertworks evaluate translation MT test.en test.de -o report.html
        bertworks evaluate translation MT pairs.tsv --lowercase --other OTHER-MT
    """
    from bertworks.io.atomic_write import refuse_existing

    refuse_existing(output, overwrite)
    return bw.evaluate_translation(
        model, files, output=output, device=device, precision=precision, **vars(options)
    )


@console.option_group
class ProbeOptions:
    """How probes are trained.

    Args:
        layers: Layers, e.g. 0,2-4; 0: the embeddings.
        rank: Rank of the probes; 0: the width of the model.
        epochs: Maximum number of epochs of each probe. Most end earlier.
        sample: Training sentences, the same every time; 0: all.
        seeds: Probes per layer.
        seed: Random seed of the first probes, and of the untrained encoder they are compared with.
    """

    layers: str = "all"
    rank: Annotated[int, console.at_least(0)] = 0
    epochs: Annotated[int, console.at_least(1)] = 40
    sample: Annotated[int, console.at_least(0)] = 0
    seeds: Annotated[int, console.at_least(1)] = 1
    seed: int = 0


def probe(
    model: str,
    treebank: Path,
    /,
    *,
    output: Annotated[Path | None, console.output_file()] = None,
    options: ProbeOptions = ProbeOptions(),
) -> Iterable[Event]:
    """Structural probes: how well distances and depths in syntax trees can be read from each layer.

    Args:
        treebank: A folder of CoNLL-U files with train, dev and test in their names, or one such
            file.
        output: A new folder for probe.json and probe.html, a page with a chart. Default: none.

    Examples:
        bertworks evaluate probe minilm UD_English-EWT
        bertworks evaluate probe MODEL en.conllu --sample 3000 --rank 64 -o RESULTS
    """
    return bw.evaluate_probe(model, treebank, output=output, **vars(options))


def ablation(
    name: str | None = None,
    /,
    *inputs: str,
    output: Annotated[Path | None, console.output_file()] = None,
    data: Path | None = None,
    documents: Documents | None = None,
    seeds: Annotated[int | None, console.at_least(1)] = None,
    steps: Annotated[int | None, console.at_least(1)] = None,
    scale: float | None = None,
    overwrite: console.Overwrite = False,
) -> console.Result | Iterable[Event]:
    """Controlled comparisons: train all arms of one, and write a table with paired differences and
    published figures.

    Args:
        name: One of the ablations that are listed without a name, or a .toml file.
        inputs: Raw text: files, folders or globs.
        output: The output folder. Required with a name.
        data: The folder of labelled data, for ablations that fine-tune. Default: none.
        documents: Where a document of a .txt file ends, as for `pretrain`. Default: as in the
            ablation, or detected automatically.
        seeds: Trainings per arm. Default: as in the ablation.
        steps: Steps of the first arm; the others get theirs in proportion. Default: as in
            the ablation.
        scale: A factor of all steps or times. Default: 1.

    Examples:
        bertworks evaluate ablation
        bertworks evaluate ablation table6 CORPUS -o RESULTS
    """
    if name is None:
        titles = bw.list_ablations()
        return titles, console.table(titles.items())
    if output is None:
        raise UsageError("an ablation needs an output folder", hint="-o FOLDER")
    return bw.evaluate_ablation(
        name,
        inputs,
        output,
        data=data,
        documents=documents,
        seeds=seeds,
        steps=steps,
        scale=scale,
        overwrite=overwrite,
    )


def _with_text(result: JsonObject, names: tuple[str, ...]) -> console.Result:
    sizes = {
        name: value
        for name, value in result.items()
        if isinstance(value, int) and "truncated" not in name and name != "in_windows"
    }
    counts = "  ".join(f"{value:,} {name}" for name, value in sizes.items())
    rows = []
    for name in names:
        if name in result:
            cells = [f"{metric} {value:.4f}" for metric, value in result[name].items()]
            rows.append((name, "  ".join(cells)))
    return result, f"{counts}\n{console.table(rows)}"
