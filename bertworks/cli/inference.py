"""`bertworks fill`, `score`, `explain` and `evaluate`: what a model answers, why, and how well."""

import json
import sys
from collections.abc import Iterable, Iterator
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from bertworks.cli.console import (
    Documents,
    Explained,
    Inputs,
    Json,
    Output,
    Rounding,
    Sentences,
    TextColumn,
    Texts,
    emit,
    say,
    show_events,
    table,
)
from bertworks.errors import UsageError
from bertworks.io.atomic_write import refuse_unwritable, write_text
from bertworks.io.text_files import IssueCounter

Model = Annotated[str, Parameter(help="A model folder, or the name of a model on the Hugging Face hub.")]
WithinWord = Annotated[
    bool,
    Parameter(
        negative="",
        show_default=False,
        help="With a token hide the later pieces of its word as well, which else give it away (PLL-word-l2r).",
    ),
]


def fill(
    model: Model,
    texts: Texts,
    /,
    *,
    count: Annotated[int, Parameter(name=["--count", "-k"], validator=Number(gte=1), help="Answers per [MASK].")] = 5,
    as_json: Json = False,
) -> None:
    """Fill the blanks of a text: the likeliest words for every [MASK]."""
    from bertworks.inference import masked_lm as room

    for answers in room.fill(model, _lines(texts), k=count):
        if as_json:
            emit(answers)
            continue
        for mask in answers:
            print(table((f"{answer['score']:6.1%}  {answer['token_str']}", answer["text"]) for answer in mask) + "\n")


def score(
    model: Model,
    sentences: Sentences,
    /,
    *,
    within_word: WithinWord = False,
    as_json: Json = False,
) -> None:
    """How likely a model finds sentences: pseudo-log-likelihoods, each token hidden in turn.

    Columns: the sum of the logarithms, their mean over the tokens, the sentence.
    """
    from bertworks.inference import masked_lm as room

    for number, found in enumerate(room.score(model, _lines(sentences), within_word=within_word)):
        if as_json:
            emit(found)
        else:
            if not number:
                print(f"{'sum':>9}  {'mean':>7}")
            print(f"{found['score']:9.2f}  {found['score'] / len(found['tokens']):7.3f}  {found['text']}", flush=True)


def explain(
    model: Annotated[str, Parameter(help="A model, fine-tuned or not: a folder, minilm, or a name on the hub.")],
    texts: Explained,
    /,
    *,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"], help="The HTML file to write.")] = None,
    target: Annotated[
        str | None, Parameter(help="Another label; the word whose tag is meant; another word for the [MASK].")
    ] = None,
    baseline: Annotated[
        Literal["mask", "pad"], Parameter(help='The token that stands for "nothing is said".')
    ] = "mask",
    as_json: Json = False,
) -> None:
    """Why a model says what it says: which words speak for it, who attends to whom, which tokens are alike."""
    from bertworks.inference.explain import explain as room

    found = room(model, *_lines(texts), target=target, baseline=baseline)
    if output is not None:
        found.save(output)
    emit(found.as_dict()) if as_json else print(found)
    if output is not None:
        say(f"written to {output}")


def mlm(
    model: Model,
    inputs: Inputs,
    /,
    *,
    text_column: TextColumn = None,
    documents: Documents = "auto",
    as_json: Json = False,
) -> None:
    """Masked-word loss, accuracy and perplexity, and next-sentence accuracy, on masks that are the same every time."""
    from bertworks.evaluation.evaluate import evaluate_mlm

    result = evaluate_mlm(model, inputs, text_column=text_column, documents=documents)
    if as_json:
        emit(result)
    else:
        print(table((name, f"{v:,.0f}" if v == int(v) and v > 1 else f"{v:.4f}") for name, v in result.items()))


def task(
    model: Annotated[str, Parameter(help="A fine-tuned model folder.")],
    data: Annotated[str, Parameter(help="Labelled rows that it has not seen, in any format that finetune reads.")],
    /,
    *,
    errors: Annotated[
        Path | None, Parameter(name=["--errors", "-o"], help="A file for every mistake, the surest first.")
    ] = None,
    text: Annotated[
        list[str] | None, Parameter(negative="", help="Column of the text; twice for pairs. Unset: the model knows.")
    ] = None,
    label: Annotated[str | None, Parameter(help="Column of the label. Unset: the model knows.")] = None,
    threshold: Annotated[float | None, Parameter(help="See predict.")] = None,
    precision: Rounding = "auto",
    as_json: Json = False,
) -> None:
    """The figures of a fine-tuned model on labelled rows, in all and label by label."""
    from bertworks.evaluation.evaluate import evaluate_task
    from bertworks.runs.task_metrics import format_metrics

    result = evaluate_task(
        model, data, errors=errors, text=text or [], label=label, threshold=threshold, precision=precision
    )
    if as_json:
        emit(result)
        return
    print(f"{result['rows']:,} rows: {format_metrics(result['figures'])}")
    if result["rows_without_text"]:
        say(f"rows without text, which are left out: {result['rows_without_text']:,}")
    if exact := result.get("figures_fp32"):
        print(f"in fp32: {format_metrics(exact)}")
    width = max((len(name) for name in result["table"]), default=0)
    for name, figures in result["table"].items():
        shown = (f"{key} {v:,.0f}" if key == "support" else f"{key} {v:.1%}" for key, v in figures.items())
        print(f"{name:<{width}}  {'  '.join(shown)}")
    if result["frequent"]:
        say(f"{result['mistakes']:,} mistakes: {result['frequent']}")
    if errors is not None:
        say(f"written to {errors}")


def squad(
    *,
    data: Annotated[Path, Parameter(help="Questions with their gold answers, in the format of SQuAD 1.1 or 2.0.")],
    predictions: Annotated[
        Path | None, Parameter(help='A JSON object of answers: {"question id": "answer"}, "" for none.')
    ] = None,
    model: Annotated[str | None, Parameter(help="A model fine-tuned on questions, which answers them.")] = None,
    output: Annotated[
        Path | None, Parameter(name=["--output", "-o"], help="Where to write the model's answers, as JSON.")
    ] = None,
    no_answer_probabilities: Annotated[
        Path | None,
        Parameter(help='A JSON object, {"question id": 0.25}: also find the best threshold for leaving questions out.'),
    ] = None,
    unit: Annotated[
        Literal["auto", "word", "character"],
        Parameter(help="What F1 counts. auto: characters for Japanese and Chinese, else words."),
    ] = "auto",
    as_json: Json = False,
) -> None:
    """The official SQuAD figures, in per cent, of answers in a file or of a model's own."""
    from bertworks.evaluation.evaluate import evaluate_squad

    if (predictions is None) == (model is None):
        raise UsageError("whose answers? Name a file of them or a model", hint="give --predictions or --model")
    if model is not None:
        from bertworks.inference.predict import answer_questions

        if output is not None:
            refuse_unwritable(output)
        say(f"{model} answers the questions of {data} ...")
        answers = dict(answer_questions(data, model))
        given = {identity: answer["answer"] for identity, answer in answers.items()}
        if output is not None:
            write_text(output, json.dumps(given, indent=1, ensure_ascii=False) + "\n")
        result = evaluate_squad(data, given, na_probs=no_answer_probabilities, unit=unit)
    else:
        assert predictions is not None
        result = evaluate_squad(data, predictions, na_probs=no_answer_probabilities, unit=unit)
    if as_json:
        emit(result)
        return
    named = {key: result.pop(key) for key in ("missing_ids", "unknown_ids")}
    print(table((name, f"{v:,}" if isinstance(v, int) else str(v)) for name, v in result.items()))
    for what, identities in zip(("questions without an answer", "answers to no question"), named.values()):
        if identities:
            shown = ", ".join(identities[:5]) + (", ..." if len(identities) > 5 else "")
            say(f"{len(identities):,} {what}: {shown}")


def blimp(
    model: Model,
    /,
    *,
    data: Annotated[
        Path,
        Parameter(
            help="Pairs of sentences: a file with sentence_good, sentence_bad, UID, or a folder of .jsonl files."
        ),
    ],
    output: Annotated[Path | None, Parameter(name=["--output", "-o"], help="A JSON file for the result.")] = None,
    sample: Annotated[
        int, Parameter(validator=Number(gte=0), help="So many pairs of each paradigm, always the same; 0: all.")
    ] = 0,
    within_word: WithinWord = False,
    as_json: Json = False,
) -> None:
    """Grammatical or not: how often the good sentence of a pair scores strictly higher, by paradigm of BLiMP."""
    from bertworks.evaluation.blimp import evaluate_blimp

    events = evaluate_blimp(model, data, output=output, sample=sample, within_word=within_word)
    show_events(events, as_json=as_json)


def glue(
    *,
    data: Annotated[Path, Parameter(help="The folder that holds GLUE's folders: CoLA, SST-2, MRPC, ...")],
    output: Output,
    model: Annotated[str, Parameter(help="minilm, a model folder, or the name of a BERT on the hub.")] = "minilm",
    task: Annotated[list[str] | None, Parameter(negative="", help="Only this one. Repeatable.")] = None,
    seeds: Annotated[int, Parameter(validator=Number(gte=1), help="Trainings of each task.")] = 1,
    seed: Annotated[int | None, Parameter(help="Of the first training, instead of the recipe's.")] = None,
    recipe: Annotated[str, Parameter(help="stable, paper, or a .toml file of your own.")] = "stable",
    settings: Annotated[
        list[str] | None, Parameter(name="--set", negative="", help="Change one field of the recipe. Repeatable.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Fine-tune on every task of GLUE that is there, and write the table beside the published rows and the files for
    the leaderboard."""
    from bertworks.evaluation.glue import evaluate_glue

    events = evaluate_glue(
        data, output, model=model, tasks=task or [], seeds=seeds, seed=seed, recipe=recipe, overrides=settings or []
    )
    show_events(events, as_json=as_json)


def _lines(texts: Iterable[str]) -> Iterator[str]:
    """The texts that were typed; in the place of - the lines of standard input, one at a time, without blank ones. What
    is not UTF-8 is replaced, or it could not be shown again."""
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
        say(f"blank lines, which were left out: {blank}")
