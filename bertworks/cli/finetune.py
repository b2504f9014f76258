"""`bertworks check`, `finetune` and `predict`: labelled data to a model of one's own, and what that says."""

import shlex
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from bertworks.cli.console import Json, Output, Overwrite, Rounding, emit, say, show_events
from bertworks.cli.pretrain import Device, Precision
from bertworks.io.text_files import STDIN

# As in `rows.schema` and `rows.reader`, which are not imported before a verb runs: help answers at once.
Task = Literal["classification", "multilabel", "regression", "tagging", "spans", "qa", "choice"]
Quoting = Literal["auto", "raw", "quoted"]

Data = Annotated[
    str,
    Parameter(
        help="A file, or - for standard input: .csv, .tsv, .jsonl, .parquet, CoNLL columns, SQuAD or entity JSON; also"
        " compressed."
    ),
]
DataOrFolder = Annotated[
    str,
    Parameter(
        help="A file (.csv, .tsv, .jsonl, .parquet, CoNLL columns, SQuAD or entity JSON; also compressed), or a folder"
        " with a train and a dev file."
    ),
]
Model = Annotated[str, Parameter(help="minilm, a model folder, or the name of a BERT on the Hugging Face hub.")]
Dev = Annotated[str | None, Parameter(help="A file to judge on. Unset: a tenth of the rows is set aside.")]
TaskName = Annotated[Task | None, Parameter(help="What is learned. Unset: it is guessed from the columns, and shown.")]
Text = Annotated[
    list[str] | None, Parameter(negative="", help="Column of the text; twice for pairs. Unset: guessed, and shown.")
]
Label = Annotated[str | None, Parameter(help="Column of the label. Unset: guessed, and shown.")]
Group = Annotated[str | None, Parameter(help="Rows that share this column are not divided between train and dev.")]
Quotes = Annotated[Quoting, Parameter(help="Whether quote marks enclose cells (quoted) or mean nothing (raw).")]


def check(
    data: DataOrFolder,
    /,
    *,
    dev: Dev = None,
    model: Model = "minilm",
    task: TaskName = None,
    text: Text = None,
    label: Label = None,
    group: Group = None,
    quoting: Quotes = "auto",
    as_json: Json = False,
) -> None:
    """See what is in labelled data before learning from it: labels, lengths, copies, contradictions, what will go
    wrong.
    """
    from bertworks.runs.check import check_file

    found = check_file(
        data, dev=dev, model=model, task=task, text=text or [], label=label, group=group, quoting=quoting
    )
    if as_json:
        emit(found.as_dict())
    else:
        print(found)
        typed = {"dev": dev, "model": model, "task": task, "label": label, "group": group, "quoting": quoting}
        options = [(name, value) for name, value in typed.items() if value not in (None, "minilm", "auto")]
        options += [("text", column) for column in text or []]
        again = [data, *(word for name, value in options for word in (f"--{name}", str(value)))]
        say(f"next: bertworks finetune {shlex.join(again)} -o MODEL-FOLDER")


def finetune(
    data: DataOrFolder,
    /,
    *,
    output: Output,
    model: Model = "minilm",
    dev: Dev = None,
    task: TaskName = None,
    text: Text = None,
    label: Label = None,
    group: Group = None,
    recipe: Annotated[
        str, Parameter(help="stable, paper, features (an LSTM over a frozen BERT), or a .toml file of your own.")
    ] = "stable",
    settings: Annotated[
        list[str] | None,
        Parameter(name="--set", negative="", help="Change one field of the recipe: --set epochs=4. Repeatable."),
    ] = None,
    metric: Annotated[str | None, Parameter(help="The figure that says which state is the best.")] = None,
    seed: Annotated[
        int | None, Parameter(help="Of the new head, the order of the rows and dropout, instead of the recipe's.")
    ] = None,
    seeds: Annotated[int, Parameter(validator=Number(gte=1), help="Train so often; mean and 95 % interval.")] = 1,
    folds: Annotated[int, Parameter(validator=Number(gte=0), help="Judge on each of so many parts in turn.")] = 0,
    sweep: Annotated[
        list[str] | None,
        Parameter(negative="", help="Try several values: --sweep batch_size=16,32; or paper: the grid of the paper."),
    ] = None,
    new_head: Annotated[
        bool, Parameter(negative="", show_default=False, help="Forget the head of a model that was fine-tuned before.")
    ] = False,
    quoting: Quotes = "auto",
    device: Device = "auto",
    precision: Precision = "auto",
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Fine-tune a BERT on labelled data: classes, several labels, numbers, pairs, tags, spans, answers or choices.

    The output folder becomes a model folder with the best state on dev, which Hugging Face transformers opens, a report
    and the list of errors. The same command again goes on where it stopped; Ctrl-C saves first.
    """
    from bertworks.runs.finetune import finetune_events, make_finetune_request
    from bertworks.runs.trials import plan_trials, run_trials

    options: dict[str, Any] = {
        "model": model, "dev": dev, "recipe": recipe, "overrides": settings or [], "task": task, "text": text or [],
        "label": label, "group": group, "metric": metric, "quoting": quoting, "seed": seed, "new_head": new_head,
        "precision": None if precision == "auto" else precision,
    }  # fmt: skip
    request = make_finetune_request(data, **options)
    trials = plan_trials(request, seeds=seeds, folds=folds, sweep=sweep or [])
    if len(trials) == 1:
        events = finetune_events(output, request, device=device, overwrite=overwrite)
    else:
        events = run_trials(output, trials, device=device, overwrite=overwrite)
    show_events(events, as_json=as_json)


def predict(
    model: Model,
    data: Data,
    /,
    *,
    output: Annotated[str, Parameter(name=["--output", "-o"], help="The file to write; - for standard output.")] = "-",
    text: Text = None,
    top_k: Annotated[int, Parameter(name=["--top-k", "-k"], validator=Number(gte=1), help="Answers to give.")] = 1,
    probabilities: Annotated[bool, Parameter(negative="", show_default=False, help="Those of all labels.")] = False,
    threshold: Annotated[
        float | None,
        Parameter(
            help="Several labels: the probability from which one is given; unset: 0.5. Questions: by how much, in"
            " logits, no answer may win and one still be given; unset: what was best on dev."
        ),
    ] = None,
    kind: Annotated[
        Literal["csv", "tsv", "jsonl", "parquet", "conll"] | None,
        Parameter(name="--format", help="Unset: as the suffix says. conll: the lines as they were, and their tags."),
    ] = None,
    quoting: Quotes = "auto",
    device: Device = "auto",
    precision: Rounding = "auto",
    as_json: Json = False,
) -> None:
    """Answer every row of a file, beside its own columns and in its order.

    A stopped prediction goes on where it was when the same command is typed again; the output appears when it is whole.
    With --json each row is a JSON object on a line.
    """
    from bertworks.inference.predict import predict_file

    data, target = ("-" if word == STDIN else word for word in (data, output))
    if as_json and kind is None and target == "-":
        kind = "jsonl"
    events = predict_file(
        model, data, target, text=text or [], top_k=top_k, probabilities=probabilities, threshold=threshold, kind=kind,
        quoting=quoting, device=device, precision=precision,
    )  # fmt: skip
    show_events(events, as_json=as_json and target != "-", results=target != "-")
