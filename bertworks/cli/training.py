"""Training commands.

`vocab`, `prepare` and `pretrain` are for raw text; `check`, `finetune` and `predict` for labels.
"""

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

import bertworks as bw
from bertworks.cli import console
from bertworks.errors import UsageError, expect, names_of
from bertworks.events import Event
from bertworks.io.options import RawText
from bertworks.runs.options import FinetuneOptions, LabelledOptions, PretrainOptions


def vocab(
    inputs: console.Inputs,
    /,
    *,
    output: console.Output,
    size: Annotated[int, console.at_least(10)] = 30000,
    algorithm: Literal["wordpiece", "bpe", "unigram", "words", "spelled_words"] = "wordpiece",
    lowercase: Annotated[
        bool, Parameter(name="--uncased", negative="--cased", show_default=False)
    ] = True,
    special_tokens: Literal["bert", "roberta", "xlm", "modernbert", "xlnet", "gpt2"] = "bert",
    max_memory: str = "1g",
    raw: console.Raw = RawText(),
    bulk: console.InBulk = console.InBulk(),
    overwrite: console.Overwrite = False,
) -> Iterable[Event]:
    """Build a vocabulary from raw text, and write it as a Hugging Face tokenizer folder.

    Args:
        size: Number of tokens, special tokens included.
        algorithm: bpe is byte-level; unigram needs sentencepiece; words: whole words, for static
            vectors; spelled_words: for ELMo.
        lowercase: Lowercase the text. Default: --uncased.
        special_tokens: bert: [CLS] and [SEP]. For byte-level BPE, cased: roberta: <s> and </s>;
            xlm: </s> on both sides; modernbert: [CLS] and [SEP]; xlnet: <sep> and <cls> behind it;
            gpt2: <|endoftext|>.
        max_memory: Memory for counting words: 512m, 1g.

    Examples:
        bertworks vocab corpus.txt -o TOKENIZER --size 8000
        bertworks vocab 'texts/*.jsonl' -o TOKENIZER --algorithm bpe --cased
    """
    from bertworks.io.file_job import refuse_finished
    from bertworks.io.tables import parse_size
    from bertworks.runs.prepare import announced, make_vocabulary, read_text

    config = bw.VocabularyConfig(
        size=size, algorithm=algorithm, lowercase=lowercase, special_tokens=special_tokens
    )
    memory = parse_size(max_memory, "--max-memory")
    refuse_finished(output, overwrite, "tokenizer.json")
    reader = read_text(inputs, **vars(raw))
    events = make_vocabulary(
        reader, output, config, bulk=bulk, max_memory=memory, workers=bulk.workers
    )
    return announced(reader, events)


def prepare(
    inputs: console.Inputs,
    /,
    *,
    tokenizer: Path,
    output: console.Output,
    raw: console.Raw = RawText(),
    bulk: console.InBulk = console.InBulk(),
    overwrite: console.Overwrite = False,
) -> Iterable[Event]:
    """Tokenize raw text in parallel, and write shards of token ids for `pretrain`.

    Args:
        tokenizer: A tokenizer folder, such as `vocab` writes.

    Examples:
        bertworks prepare corpus.txt --tokenizer TOKENIZER -o SHARDS
        bertworks prepare news.csv --text-column body --tokenizer TOKENIZER -o SHARDS
    """
    from bertworks.runs.prepare import announced, make_shards, read_text

    vocabulary = bw.Tokenizer.load(tokenizer)
    reader = read_text(inputs, **vars(raw))
    events = make_shards(
        reader, output, vocabulary, overwrite=overwrite, bulk=bulk, workers=bulk.workers
    )
    return announced(reader, events)


@console.option_group
class PretrainWords(PretrainOptions):
    """These options as words of the command line."""

    overrides: Annotated[console.Names, Parameter("--set")] = ()
    languages: Annotated[console.Names, Parameter("--language")] = ()
    parallel: Annotated[console.Names, Parameter(consume_multiple=True)] = ()
    precision: console.TrainingPrecision = "auto"


def pretrain(
    inputs: console.InputsOrNone = None,
    /,
    *,
    output: console.OutputOrEstimate = None,
    options: PretrainWords = PretrainWords(),
    estimate: Literal["sizes", "speed"] | None = None,
    learning_rate: float | None = None,
    device: str = "auto",
    workers: Annotated[int | None, console.at_least(1)] = None,
    raw: console.Raw = RawText(),
    verify: console.Flag = False,
    log_to: console.LogTo = None,
    group: console.Group = console.Group(),
    overwrite: console.Overwrite = False,
) -> Iterable[Event] | console.Result:
    """Pre-train a BERT on raw text, or on shards from `prepare`; or a translator on pairs of texts.

    The output folder is a model folder from the first step on; Hugging Face transformers opens it.
    Run the same command again to resume. Ctrl-C saves first.

    Args:
        estimate: Print parameters, steps, tokens and disk space, and do not start. --estimate
            speed: also measure memory and time with a few steps. Default: train.
        learning_rate: Peak learning rate. Default: from the recipe.
        verify: First compare every file of the shards with its sha256.

    Examples:
        bertworks pretrain corpus.txt -o MODEL --budget 30m
        bertworks pretrain --parallel a.en a.de -o MT --recipe transformer-tiny
    """
    from bertworks.config import add_overrides

    request = vars(options) | vars(raw) | {"device": device}
    rate = {"optimizer.learning_rate": learning_rate}
    request["overrides"] = add_overrides(options.overrides, rate)
    if options.precision == "auto":
        request["precision"] = None
    if estimate:
        result = bw.estimate(inputs or (), speed=estimate == "speed", **request)
        return result.as_dict(), str(result)
    if output is None:
        raise UsageError(
            "pretrain needs an output folder",
            hint="add -o MODEL; or --estimate, which writes nothing",
        )
    return bw.pretrain(
        inputs or (),
        output,
        overwrite=overwrite,
        workers=workers,
        verify=verify,
        log_to=log_to or (),
        **request,
    )


@console.option_group
class LabelledWords(LabelledOptions):
    """These options as words of the command line."""

    text: console.Names = ()
    label: console.Names = ()


def check(
    data: str,
    /,
    *,
    model: str = "minilm",
    dev: str | None = None,
    labelled: LabelledWords = LabelledWords(),
    read: console.Read = console.Read(),
) -> Iterator[console.Result]:
    """Report what is in labelled data before training: labels, lengths, duplicates, conflicting
    labels, problems.

    Args:
        data: A file (.csv, .tsv, .jsonl, .parquet, CoNLL columns, SQuAD or entity JSON, also
            compressed), or a folder with a train and a dev file.

    Examples:
        bertworks check reviews.csv
        bertworks check pairs.tsv --text question --text answer --label related
    """
    report = bw.check_file(data, model=model, dev=dev, read=read, **vars(labelled))
    console.say("\n".join(report.examples))
    yield report.as_dict(), str(report)
    options = {"model": None if model == "minilm" else model, "dev": dev, **vars(labelled)}
    words = [
        word
        for option, values in options.items()
        for value in names_of(values)
        for word in (f"--{option}", value)
    ]
    console.say(
        f"next: bertworks finetune {shlex.join([data, *words, *read.words])} -o MODEL-FOLDER"
    )


@console.option_group
class FinetuneWords(LabelledWords, FinetuneOptions):
    """These options as words of the command line."""

    layers: Annotated[int | None, console.at_least(1)] = None
    overrides: Annotated[console.Names, Parameter("--set")] = ()
    new_head: Annotated[console.Flag, Parameter("--reset-head")] = False
    precision: console.TrainingPrecision = "auto"


def finetune(
    data: console.Inputs,
    /,
    *,
    output: console.Output,
    dev: str | None = None,
    options: FinetuneWords = FinetuneWords(),
    training: console.Training = console.Training(),
    joint: console.Flag = False,
    mix: float = 0.0,
    seeds: Annotated[int, console.at_least(1)] = 1,
    folds: Annotated[int, console.at_least(0)] = 0,
    sweep: console.Repeatable = None,
    read: console.Read = console.Read(),
    device: str = "auto",
    log_to: console.LogTo = None,
    group: console.Group = console.Group(),
    overwrite: console.Overwrite = False,
) -> Iterable[Event]:
    """Fine-tune a BERT on labelled data: classes, several labels, numbers, pairs, tags, spans,
    answers or choices.

    The output folder is a model folder with a report and a list of errors. Hugging Face
    transformers opens it; with the methods frozen, cosine and contrastive, only its encoder. Run
    the same command again to resume. Ctrl-C saves first.

    Args:
        data: A file (.csv, .tsv, .jsonl, .parquet, CoNLL columns, SQuAD or entity JSON, also
            compressed), or a folder with a train and a dev file. With --joint several.
        joint: Train one encoder with a head for each data set (MT-DNN): each step is a batch of one
            of them. A task is named after its file or folder.
        mix: With --joint, the number of batches of all other data sets for each batch of the first;
            0: all.
        seeds: Number of runs with different seeds; the mean and its 95 % interval are reported.
        folds: k-fold cross-validation with this number of folds; 0: none.
        sweep: Try several values: --sweep batch_size=16,32; or paper: the grid of the BERT paper.
            Repeatable.

    Examples:
        bertworks finetune reviews.csv -o MODEL
        bertworks finetune train.csv --dev dev.csv -o MODEL --epochs 4
    """
    settings = vars(options) | vars(training)
    place: dict[str, Any] = {"device": device, "overwrite": overwrite, "log_to": log_to or ()}
    if options.precision == "auto":
        settings["precision"] = None
    if joint:
        joint_request = bw.make_joint_request(
            data, mix=mix, seeds=seeds, folds=folds, sweep=sweep, dev=dev, read=read, **settings
        )
        return bw.joint_events(output, joint_request, **place)
    expect(
        len(data) < 2 and not mix,
        "--mix is for --joint" if mix else f"{len(data)} data sets, but a model is trained on one",
        hint="--joint trains one encoder with a head for each",
    )
    request = bw.make_finetune_request(data[0], dev=dev, read=read, **settings)
    trials = bw.plan_trials(request, seeds=seeds, folds=folds, sweep=sweep or [])
    if len(trials) == 1:
        return bw.finetune_events(output, request, **place)
    return bw.run_trials(output, trials, **place)


@console.option_group
class PredictOptions:
    """What is written for each row.

    Args:
        top_k: Predictions per row.
        probabilities: Write the probabilities of all labels.
        threshold: Several labels: the minimum probability of a predicted label; default: 0.5.
            Questions: the lead in logits from which "no answer" is predicted; default: the best
            value on dev.
        kind: Output format. Default: by the file suffix. conll: the input lines with an additional
            column of tags.
    """

    text: console.Names = ()
    top_k: console.TopK = 1
    probabilities: console.Flag = False
    threshold: float | None = None
    kind: Annotated[
        Literal["csv", "tsv", "jsonl", "parquet", "conll"] | None, Parameter(name="--format")
    ] = None
    guard_formulas: console.Flag = False


def predict(
    model: str,
    data: console.RowsOrTexts = None,
    /,
    *,
    text_input: console.Texts = None,
    task: console.JointTask = None,
    output: Annotated[str, console.stdin_or(["--output", "-o"])] = "-",
    options: PredictOptions = PredictOptions(),
    overwrite: console.OverwriteFile = False,
    read: console.Read = console.Read(),
    device: str = "auto",
    precision: console.InferencePrecision = "auto",
    bulk: console.InBulk = console.InBulk(),
    as_json: console.Json = False,
) -> None:
    """Predict every row of a file, or texts. Predictions are added to the columns of the input, in
    its order.

    Run the same command again to resume. The output appears when it is complete. With --json,
    each row is a JSON object on its own line. For texts, a short line is printed, or the whole row
    with --verbose.

    Args:
        output: The output file; - for standard output.

    Examples:
        bertworks predict MODEL new.csv -o scored.csv
        bertworks predict MODEL "The plot is thin." "I loved it." --probabilities
    """
    if as_json and output == "-":
        expect(
            options.kind in (None, "jsonl"),
            f"--json and --format {options.kind} exclude each other",
            hint="leave one of them out",
        )
        options = replace(options, kind="jsonl")
    from bertworks.io.file_job import refuse_finished  # it imports numpy, which takes long
    from bertworks.io.inputs import file_or_texts

    refuse_finished(Path(output), overwrite)
    folder = bw.task_folder(model, task)
    source = file_or_texts(data or (), text_input or (), console.say)
    has_short_answers = options == PredictOptions(text=options.text, threshold=options.threshold)
    is_plain = output == "-" and has_short_answers and not bulk.is_shared
    if isinstance(source, list) and is_plain and not console.is_verbose():
        lines = bw.predict_in_words(
            folder,
            source,
            text=options.text,
            threshold=options.threshold,
            device=device,
            precision=precision,
            on_warning=partial(console.say, is_warning=True),
        )
        for line in lines:
            console.out(line)
        return
    events = bw.predict_file(
        folder,
        source,
        output,
        **vars(options),
        read=read,
        device=device,
        precision=precision,
        bulk=bulk,
    )
    console.show_events(events, as_json=as_json and output != "-", results=output != "-")
