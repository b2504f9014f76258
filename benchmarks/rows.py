"""The rows of docs/concepts/results.md: what is learned, with which command, and how it is
evaluated. Also draws of few labelled rows."""

import collections
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

EQUAL = (
    "epochs=3",
    "select=best",
    "patience=0",
    "optimizer.learning_rate=5e-5",
)  # on top of the recipe "stable": the settings of `--peer`


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    group: str
    command: str  # after `bertworks`, but for seed and output; paths within the data
    metrics: tuple[str, ...]  # the first is the one by which the best state was kept
    most: int | None = None  # rows to learn from, drawn once; None: all
    settings: tuple[str, ...] = ()  # with `--peer`, added to EQUAL


def glue(name: str, *metrics: str) -> Row:
    return Row(name, "GLUE", f"evaluate glue --data glue --task {name}", metrics)


def squad(name: str, *settings: str) -> Row:
    files = "squad/train-v1.1-sample.json.gz --dev squad/dev-v1.1.json.gz"
    return Row(name, "Questions", f"finetune {files}", ("f1", "exact"), settings=settings)


WNUT = Row(
    "WNUT-17",
    "Entities",
    "finetune ner/wnut17/wnut17train.conll --dev ner/wnut17/emerging.dev.conll",
    ("f1", "precision", "recall"),
)


WIKIGOLD = "finetune ner/wikigold/wikigold.conll.txt --validation split"
ROWS = (
    glue("CoLA", "matthews_correlation"),
    glue("SST-2", "accuracy"),
    glue("MRPC", "f1", "accuracy"),
    glue("STS-B", "spearman", "pearson"),
    glue("QQP", "f1", "accuracy"),
    glue("MNLI", "accuracy"),
    glue("QNLI", "accuracy"),
    glue("RTE", "accuracy"),
    glue("WNLI", "accuracy"),
    squad("SQuAD 1.1 (8,200 training questions)"),
    WNUT,
    Row("wikigold (random 10 % held out)", "Entities", WIKIGOLD, ("f1",)),
    Row(
        "wikigold (10 % of the documents held out)",
        "Entities",
        f"{WIKIGOLD} --group document",
        ("f1",),
    ),
    Row(
        "wikigold, document context (10 % of the documents held out)",
        "Entities",
        f"{WIKIGOLD} --set document_context=true",
        ("f1",),
    ),
    Row(
        "wikigold, frozen encoder",
        "Entities",
        f"{WIKIGOLD} --recipe feature_based --set lstm_units=256",
        ("f1",),
    ),
    Row("CODAH", "Choices", "finetune multiple-choice/codah", ("accuracy",)),
    Row("JSTS", "Japanese", "finetune ja/jsts --model JA", ("spearman", "pearson")),
    Row("JCommonsenseQA", "Japanese", "finetune ja/jcommonsenseqa --model JA", ("accuracy",)),
    Row(
        "Wikipedia NER (random 10 % held out)",
        "Japanese",
        "finetune ja/ner-wikipedia/ner.json.gz --model JA",
        ("f1",),
    ),
    Row("JaQuAD", "Japanese", "finetune ja/jaquad --model JA --set epochs=1", ("f1", "exact")),
    Row(
        "NSMC",
        "Korean",
        "finetune ko/nsmc/ratings_train.txt.gz --dev ko/nsmc/ratings_test.txt.gz --model KO --set "
        "epochs=1",
        ("accuracy",),
    ),
    Row(
        "KorSTS",
        "Korean",
        "finetune ko/korsts/sts-train.tsv --dev ko/korsts/sts-dev.tsv --model KO",
        ("spearman", "pearson"),
    ),
)
# Next to transformers' Trainer, which takes two to three times as long: so of the two largest only
# a part.
EQUAL_ROWS = (
    glue("CoLA", "matthews_correlation"),
    replace(glue("SST-2", "accuracy"), name="SST-2, 10,000 rows", most=10_000),
    glue("MRPC", "f1", "accuracy"),
    glue("STS-B", "spearman", "pearson"),
    glue("RTE", "accuracy"),
    WNUT,
    squad("SQuAD 1.1, 8,200 questions, one epoch", "epochs=1"),
)


def rows_of_each_label(rows: Sequence[Any], size: int, draw: int) -> list[Any]:
    """Return the first `size` rows of each label, in an order that depends on the draw."""
    groups = collections.defaultdict(list)
    for row in rows:
        groups[row["label"]].append(row)
    drawn = [row for label in sorted(groups) for row in groups[label][:size]]
    random.Random(draw).shuffle(drawn)
    return drawn
