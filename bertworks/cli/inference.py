"""The commands `fill`, `score`, `explain` and `evaluate`: predictions, explanations, metrics."""

import json
import sys
from collections.abc import Iterable, Iterator
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from bertworks.cli import console
from bertworks.errors import UsageError
from bertworks.io.atomic_write import refuse_unwritable, write_text
from bertworks.io.text_files import IssueCounter

WithinWord = Annotated[
    bool,
    console.flag(help="With each token, also mask the later pieces of its word, which would reveal it (PLL-word-l2r)."),
]


def fill(
    model: console.Model,
    texts: Annotated[list[str], console.stdin_or()],
    /,
    *,
    count: Annotated[int, console.at_least(1, "--count", "-k")] = 5,
    as_json: console.Json = False,
) -> None:
    """Predict the most probable tokens for every [MASK].

    Args:
        texts: Texts with [MASK], or - for the lines of standard input.
        count: Predictions per [MASK].
    """
    from bertworks.inference import masked_lm

    for number, masks in enumerate(masked_lm.fill(model, _lines(texts), k=count)):
        if as_json:
            console.emit(masks)
            continue
        shown = ([(f"{token['score']:6.1%}  {token['token_str']}", token["text"]) for token in mask] for mask in masks)
        print("\n" * bool(number) + "\n\n".join(map(console.table, shown)))


def score(
    model: console.Model,
    sentences: Annotated[list[str], console.stdin_or()],
    /,
    *,
    within_word: WithinWord = False,
    as_json: console.Json = False,
) -> None:
    """Pseudo-log-likelihood of sentences: each token is masked in turn.

    Columns: the sum of the log-probabilities, their mean over the tokens, the sentence.

    Args:
        sentences: Sentences, or - for the lines of standard input.
    """
    from bertworks.inference import masked_lm

    for number, result in enumerate(masked_lm.score(model, _lines(sentences), within_word=within_word)):
        if as_json:
            console.emit(result)
        else:
            if not number:
                print(f"{'sum':>9}  {'mean':>7}")
            mean = result["score"] / len(result["tokens"])
            print(f"{result['score']:9.2f}  {mean:7.3f}  {result['text']}", flush=True)


def explain(
    model: console.Model,
    texts: Annotated[list[str], console.stdin_or()],
    /,
    *,
    output: Annotated[Path | None, console.output_file()] = None,
    target: str | None = None,
    baseline: Literal["mask", "pad"] = "mask",
    as_json: console.Json = False,
) -> None:
    """Explain a prediction: attributions of words, attention, similarity of tokens.

    Args:
        texts: A text, for a pre-trained model with a [MASK]; two for a pair, or a question and its context; or - for
            the lines of standard input.
        output: The HTML file to write.
        target: What to explain instead of the prediction: a label, a tagged word, or a token.
        baseline: The token that stands for "no information".
    """
    from bertworks.inference.explain import explain as run

    explanation = run(model, *_lines(texts), target=target, baseline=baseline)
    if output is not None:
        explanation.save(output)
    console.emit(explanation.as_dict()) if as_json else print(explanation)
    if output is not None:
        console.say(f"written to {output}")


def mlm(
    model: console.Model,
    inputs: console.Inputs,
    /,
    *,
    text_column: console.TextColumn = None,
    documents: console.Documents = "auto",
    as_json: console.Json = False,
) -> None:
    """Masked LM loss, accuracy and perplexity, and next sentence accuracy. The masks are the same every time."""
    from bertworks.evaluation.evaluate import evaluate_mlm

    result = evaluate_mlm(model, inputs, text_column=text_column, documents=documents)
    if as_json:
        console.emit(result)
    else:
        print(console.table((name, f"{v:,.0f}" if v == int(v) and v > 1 else f"{v:.4f}") for name, v in result.items()))


def task(
    model: str,
    data: str,
    /,
    *,
    errors: Annotated[Path | None, Parameter(name=["--errors", "-o"])] = None,
    text: console.TextColumns = None,
    label: str | None = None,
    threshold: float | None = None,
    precision: console.InferencePrecision = "auto",
    as_json: console.Json = False,
) -> None:
    """Metrics of a fine-tuned model on labelled rows, overall and per label.

    Args:
        model: A fine-tuned model folder.
        data: Labelled rows outside the training data, in any format of finetune.
        errors: File for all errors, the most confident first.
        label: Column of the label. Unset: as in training.
        threshold: See predict.
    """
    from bertworks.evaluation.evaluate import evaluate_task
    from bertworks.runs.task_metrics import format_metrics

    result = evaluate_task(
        model, data, errors=errors, text=text or [], label=label, threshold=threshold, precision=precision
    )
    if as_json:
        console.emit(result)
        return
    print(f"{result['rows']:,} rows: {format_metrics(result['figures'])}")
    if result["rows_without_text"]:
        console.say(f"rows without text, left out: {result['rows_without_text']:,}")
    if exact := result.get("figures_fp32"):
        print(f"in fp32: {format_metrics(exact)}")

    def shown(row: dict[str, float]) -> str:
        return "  ".join(f"{key} {v:,.0f}" if key == "support" else f"{key} {v:.1%}" for key, v in row.items())

    if result["table"]:
        print(console.table((name, shown(row)) for name, row in result["table"].items()))
    if result["frequent"]:
        console.say(f"{result['mistakes']:,} errors: {result['frequent']}")
    if errors is not None:
        console.say(f"written to {errors}")


def squad(
    *,
    data: Path,
    predictions: Path | None = None,
    model: str | None = None,
    output: Annotated[Path | None, console.output_file()] = None,
    no_answer_probabilities: Path | None = None,
    unit: Literal["auto", "word", "character"] = "auto",
    as_json: console.Json = False,
) -> None:
    """Official SQuAD metrics, in percent, of answers in a file or of a model.

    Args:
        data: Questions with gold answers, in the format of SQuAD 1.1 or 2.0.
        predictions: A JSON object of answers: {"question id": "answer"}, "" for no answer.
        model: A model fine-tuned on questions, to compute the answers.
        output: JSON file for the model's answers.
        no_answer_probabilities: A JSON object {"question id": 0.25}. Adds the best threshold for "no answer".
        unit: Unit of F1. auto: characters for Japanese and Chinese, else words.
    """
    from bertworks.evaluation.evaluate import evaluate_squad

    if (predictions is None) == (model is None):
        raise UsageError("expected either a file of answers or a model", hint="give --predictions or --model")
    answers: Path | dict[str, str] | None = predictions
    if model is not None:
        from bertworks.inference.predict import answer_questions

        if output is not None:
            refuse_unwritable(output)
        console.say(f"{model} answers the questions of {data} ...")
        answers = {identity: answer["answer"] for identity, answer in answer_questions(data, model)}
        if output is not None:
            write_text(output, json.dumps(answers, indent=1, ensure_ascii=False) + "\n")
    assert answers is not None
    result = evaluate_squad(data, answers, na_probs=no_answer_probabilities, unit=unit)
    if as_json:
        console.emit(result)
        return
    mismatches = {
        "questions without an answer": result.pop("missing_ids"),
        "answers without a question": result.pop("unknown_ids"),
    }
    print(console.table((name, f"{v:,}" if isinstance(v, int) else str(v)) for name, v in result.items()))
    for what, identities in mismatches.items():
        if identities:
            console.say(
                f"{len(identities):,} {what}: {', '.join(identities[:5])}{', ...' if len(identities) > 5 else ''}"
            )


def blimp(
    model: console.Model,
    /,
    *,
    data: Path,
    output: console.OutputFile = None,
    sample: Annotated[int, console.at_least(0)] = 0,
    within_word: WithinWord = False,
    as_json: console.Json = False,
) -> None:
    """BLiMP: the fraction of pairs in which the grammatical sentence has the higher score, per paradigm.

    Args:
        data: Sentence pairs: a file with sentence_good, sentence_bad, UID, or a folder of .jsonl files.
        sample: Pairs per paradigm, the same every time; 0: all.
    """
    from bertworks.evaluation.evaluate import evaluate_blimp

    events = evaluate_blimp(model, data, output=output, sample=sample, within_word=within_word)
    console.show_events(events, as_json=as_json)


def glue(
    *,
    data: Path,
    output: console.Output,
    model: console.Model = "minilm",
    task: Annotated[list[str] | None, console.repeatable()] = None,
    seeds: Annotated[int, console.at_least(1)] = 1,
    seed: int | None = None,
    recipe: str = "stable",
    settings: console.Settings = None,
    as_json: console.Json = False,
) -> None:
    """Fine-tune on every task of GLUE in the folder. Write a table with published results, and leaderboard files.

    Args:
        data: The folder of GLUE's folders: CoLA, SST-2, MRPC, ...
        task: Only this task. Repeatable.
        seeds: Trainings per task.
        seed: Seed of the first training. Unset: the recipe's.
        recipe: stable, paper, or a .toml file.
    """
    from bertworks.evaluation.glue import evaluate_glue

    events = evaluate_glue(
        data, output, model=model, tasks=task or [], seeds=seeds, seed=seed, recipe=recipe, overrides=settings or []
    )
    console.show_events(events, as_json=as_json)


def _lines(texts: Iterable[str]) -> Iterator[str]:
    """The texts, with the lines of standard input instead of "-". Blank lines are left out and reported. Bytes that are
    not UTF-8 are replaced, so that they can be printed."""
    blank = IssueCounter()
    for text in texts:
        if text == "-":
            if isinstance(sys.stdin, TextIOWrapper):
                sys.stdin.reconfigure(encoding="utf-8", errors="replace")
            for number, line in enumerate(sys.stdin, 1):
                if line.strip():
                    yield line.rstrip("\r\n")
                else:
                    blank.add(f"line {number}")
        else:
            yield text.encode("utf-8", "replace").decode()
    if blank.count:
        console.say(f"blank lines, left out: {blank}")
