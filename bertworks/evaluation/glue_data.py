"""GLUE (Wang et al. 2019): files, columns, labels, metrics, submissions and published results of each task.

A folder is read in the layout of the official download; samples of the large training sets (`train-sample`,
`heldout-from-train-sample`) are accepted and reported.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from bertworks.datasets.reader import RowReader
from bertworks.datasets.schema import Schema
from bertworks.errors import BertworksError
from bertworks.io.atomic_write import write_text
from bertworks.metrics import classification

_STEMS = {  # split -> file names without suffix, the best first
    "train": ("train", "train-sample"),
    "dev": ("dev",),
    "dev_matched": ("dev_matched",),
    "dev_mismatched": ("dev_mismatched",),
    "dev_mixed": ("dev-matched-and-mismatched",),  # the two in one file, which of them a row is from is not told
    "heldout": ("heldout-from-train-sample",),  # drawn from the training set: no official dev set
    "test": ("test",),
    "test_matched": ("test_matched",),
    "test_mismatched": ("test_mismatched",),
}
_SUFFIXES = ("tsv", "csv", "jsonl", "parquet")
_YES_NO = ("0", "1")
_ENTAILMENT = ("entailment", "not_entailment")
_FIRST, _SECOND = ("sentence1", "text_a"), ("sentence2", "text_b")


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """One task."""

    name: str  # as GLUE calls its folder
    text: tuple[tuple[str, ...], ...]  # of each text, what its column is called in one layout or another
    label: tuple[str, ...] = ("label",)  # the same of the label
    labels: tuple[str, ...] = ()  # in the official order; () for numbers. Files and models have names, not numbers
    metrics: tuple[str, ...] = ("accuracy",)  # as in `scores`; the first one counts in averages
    splits: tuple[str, ...] = ("train", "dev", "test")  # of the official download
    headerless: tuple[str, ...] = ()  # those whose .tsv has no header
    submissions: Mapping[str, str]  # split -> the file that the leaderboard wants

    @property
    def task(self) -> Literal["classification", "regression"]:
        return "classification" if self.labels else "regression"

    def score(self, gold: Sequence[str | float], predicted: Sequence[str | float]) -> dict[str, float]:
        """The metrics of the task, by name. F1 is that of "1". Raises as the functions of `scores`."""
        if self.labels:
            figures = classification.classification(
                [str(label) for label in gold], [str(x) for x in predicted], self.labels
            )
        else:
            figures = classification.regression([float(number) for number in gold], [float(x) for x in predicted])
        return {name: figures[name] for name in self.metrics}


GLUE = (
    Benchmark(
        name="CoLA", text=(("sentence", "column 4"),), label=("label", "column 2"), labels=_YES_NO,
        metrics=("matthews_correlation",), headerless=("train", "dev"), submissions={"test": "CoLA.tsv"},
    ),
    Benchmark(name="SST-2", text=(("sentence",),), labels=_YES_NO, submissions={"test": "SST-2.tsv"}),
    Benchmark(
        name="MRPC", text=(("#1 String", *_FIRST), ("#2 String", *_SECOND)), label=("Quality", "label"), labels=_YES_NO,
        metrics=("f1", "accuracy"), submissions={"test": "MRPC.tsv"},
    ),
    Benchmark(
        name="STS-B", text=(_FIRST, _SECOND), label=("score", "label"), metrics=("spearman", "pearson"),
        submissions={"test": "STS-B.tsv"},
    ),
    Benchmark(
        name="QQP", text=(("question1", *_FIRST), ("question2", *_SECOND)), label=("is_duplicate", "label"),
        labels=_YES_NO, metrics=("f1", "accuracy"), submissions={"test": "QQP.tsv"},
    ),
    Benchmark(
        name="MNLI", text=((*_FIRST, "premise"), (*_SECOND, "hypothesis")), label=("gold_label", "label"),
        labels=("entailment", "neutral", "contradiction"),
        splits=("train", "dev_matched", "dev_mismatched", "test_matched", "test_mismatched"),
        submissions={"test_matched": "MNLI-m.tsv", "test_mismatched": "MNLI-mm.tsv"},
    ),
    Benchmark(
        name="QNLI", text=(("question", "text_a"), ("sentence", "text_b")), labels=_ENTAILMENT,
        submissions={"test": "QNLI.tsv"},
    ),
    Benchmark(name="RTE", text=(_FIRST, _SECOND), labels=_ENTAILMENT, submissions={"test": "RTE.tsv"}),
    Benchmark(name="WNLI", text=(_FIRST, _SECOND), labels=_YES_NO, submissions={"test": "WNLI.tsv"}),
)  # fmt: skip


@dataclass(frozen=True)
class GlueTaskFiles:
    """What a folder holds of a task."""

    benchmark: Benchmark
    files: Mapping[str, Path]  # split -> file

    @property
    def sampled(self) -> bool:
        """Whether the training set is a sample of the official one."""
        return "train" in self.files and _stem(self.files["train"]) != "train"

    @property
    def measured_on(self) -> tuple[str, ...]:
        """The splits to measure on: the official dev sets; without those the mixed one, else the held-out one."""
        official = [split for split in self.benchmark.splits if split.startswith("dev")]
        for splits in (official, ["dev_mixed"], ["heldout"]):
            if there := tuple(split for split in splits if split in self.files):
                return there
        return ()

    def read(self, split: str) -> tuple[RowReader, Schema]:
        """The rows of a split and what their columns mean; test splits have no labels.

        Raises:
            BertworksError: there is no such split here, or its file lacks a column.
        """
        if split not in self.files:
            raise BertworksError(
                f"{self.benchmark.name} has no {split} here, only {', '.join(self.files) or 'nothing'}",
                hint=f"add {' or '.join(f'{stem}.tsv' for stem in _STEMS.get(split, (split,)))} to its folder",
            )
        path, benchmark = self.files[split], self.benchmark
        if path.name.split(".")[1] == "tsv":
            reader = RowReader(path, quoting="raw", header=split not in benchmark.headerless)
        else:
            reader = RowReader(path)
        return reader, Schema(
            task=benchmark.task,
            text=tuple(_column(reader, names) for names in benchmark.text),
            label=None if split.startswith("test") else _column(reader, benchmark.label),
            labels=benchmark.labels,
        )


def find_glue_tasks(folder: str | Path) -> list[GlueTaskFiles]:
    """The tasks of GLUE that a folder holds, in GLUE's order; the folder of one task is taken too. A task whose folder
    is there but has none of its files is among them, without files.

    Raises:
        BertworksError: there is no folder of any task.
    """
    root = Path(folder).expanduser()
    folders = {_key(path.name): path for path in [root, *(root.iterdir() if root.is_dir() else ())] if path.is_dir()}
    found = [
        GlueTaskFiles(benchmark, _files(folders[_key(benchmark.name)], benchmark))
        for benchmark in GLUE
        if _key(benchmark.name) in folders
    ]
    if not found:
        names = ", ".join(benchmark.name for benchmark in GLUE)
        raise BertworksError(
            f"no task of GLUE is here; the folders of its tasks are called {names}",
            where=str(folder),
            hint="name the folder that holds them, such as glue_data",
        )
    return found


def write_submission(folder: str | Path, benchmark: Benchmark, split: str, predictions: Sequence[str | float]) -> Path:
    """Write the file that the leaderboard wants of a test split, atomically: `index`, `prediction`, one line for each
    row in the order of the test file; labels by name, similarities (STS-B) within 0 and 5 with three digits.

    Raises:
        BertworksError: the leaderboard wants nothing of this split, or a label is none of the task's.
    """
    if split not in benchmark.submissions:
        raise BertworksError(f"{benchmark.name} {split}: the leaderboard wants {', '.join(benchmark.submissions)}")
    lines = ["index\tprediction"]
    for row, prediction in enumerate(predictions):
        if not benchmark.labels:
            prediction = f"{min(max(float(prediction), 0.0), 5.0):.3f}"
        elif prediction not in benchmark.labels:
            raise BertworksError(
                f"{prediction!r} is no label of {benchmark.name}: {', '.join(benchmark.labels)}", where=f"row {row}"
            )
        lines.append(f"{row}\t{prediction}")
    path = Path(folder) / benchmark.submissions[split]
    write_text(path, "\n".join(lines) + "\n")
    return path


def macro_average(row: Mapping[str, float]) -> tuple[float, list[str]]:
    """The mean over tasks, and the names of the tasks that are not in it. A row of a table is by `COLUMNS`; MNLI counts
    once: as "MNLI", else as the mean of what there is of "MNLI-m" and "MNLI-mm".

    Raises:
        BertworksError: the row is empty.
    """
    values, without = [], []
    for benchmark in GLUE:
        name = benchmark.name
        names = [name] if name in row else [half for half in (f"{name}-m", f"{name}-mm") if half in row]
        if names:
            values.append(sum(row[half] for half in names) / len(names))
        else:
            without.append(name)
    if not values:
        raise BertworksError("no task has a score: there is nothing to take the mean of")
    return sum(values) / len(values), without


@dataclass(frozen=True, kw_only=True)
class PublishedResult:
    """What somebody else measured, in per cent."""

    name: str
    split: Literal["test", "dev"]
    source: str
    scores: Mapping[str, float] = field(repr=False)  # by `COLUMNS`; "MNLI" where it is not told of which half
    average: float | None = None  # as published, each by its own rule
    remark: str = ""


COLUMNS = ("MNLI-m", "MNLI-mm", "QQP", "QNLI", "SST-2", "CoLA", "STS-B", "MRPC", "RTE", "WNLI")
_BERT_PAPER = "Devlin et al. 2019, table 1"
_DISTIL_PAPER = "Sanh et al. 2019, table 1"
_BERT_REMARK = "F1 of QQP and MRPC, Spearman of STS-B; its average counts both halves of MNLI and no WNLI"
_DISTIL_REMARK = "median of 5 runs; which metrics of QQP, MRPC and STS-B, and which half of MNLI, is not told"


def _row(figures: str) -> dict[str, float]:
    """Scores in the order of `COLUMNS`, "-" for none."""
    return {name: float(figure) for name, figure in zip(COLUMNS, figures.split()) if figure != "-"}


def _row_without_halves(figures: str) -> dict[str, float]:
    return {name.removesuffix("-m"): figure for name, figure in _row(figures).items()}


PUBLISHED = (
    PublishedResult(
        name="BERT-Base", split="test", source=_BERT_PAPER, average=79.6, remark=_BERT_REMARK,
        scores=_row("84.6 83.4 71.2 90.5 93.5 52.1 85.8 88.9 66.4"),
    ),
    PublishedResult(
        name="BERT-Large", split="test", source=_BERT_PAPER, average=82.1, remark=_BERT_REMARK,
        scores=_row("86.7 85.9 72.1 92.7 94.9 60.5 86.5 89.3 70.1"),
    ),
    PublishedResult(
        name="BERT-Base cased", split="dev", source="transformers, examples run_glue",
        remark="one run of 3 epochs; F1 of QQP and MRPC, Spearman of STS-B",
        scores=_row("83.91 84.10 87.49 90.66 92.32 56.53 88.48 88.85 65.70 56.34"),
    ),
    PublishedResult(
        name="BERT-Base", split="dev", source=_DISTIL_PAPER, average=79.5, remark=_DISTIL_REMARK,
        scores=_row_without_halves("84.7 - 89.6 91.8 92.7 56.3 89.0 88.6 69.3 53.5"),
    ),
    PublishedResult(
        name="BERT-Large", split="dev", source="google-research/albert, README",
        remark="which metrics of QQP, MRPC and STS-B, and which half of MNLI, is not told",
        scores=_row_without_halves("86.6 - 91.3 92.3 93.2 60.6 90.0 88.0 70.4"),
    ),
    PublishedResult(
        name="DistilBERT", split="dev", source=_DISTIL_PAPER, average=77.0, remark=_DISTIL_REMARK,
        scores=_row_without_halves("82.1 - 88.5 89.2 91.3 51.3 86.9 87.5 59.9 56.3"),
    ),
)  # fmt: skip


def _files(folder: Path, benchmark: Benchmark) -> dict[str, Path]:
    """Split -> its best file. Every task may have a held-out set; only MNLI has halves."""
    there = {}
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.name.split(".")[1:2] and path.name.split(".")[1] in _SUFFIXES:
            there[_stem(path), path.name.split(".")[1]] = path
    also = ("heldout", "dev_mixed") if "dev_matched" in benchmark.splits else ("heldout",)
    files = {}
    for split in (*benchmark.splits, *also):
        for stem in _STEMS[split]:
            for suffix in _SUFFIXES:
                if split not in files and (stem, suffix) in there:
                    files[split] = there[stem, suffix]
    return files


def _stem(path: Path) -> str:
    return path.name.split(".")[0]


def _key(name: str) -> str:
    """Folders are called SST-2, sst2 or sst-2."""
    return name.lower().replace("-", "").replace("_", "")


def _column(reader: RowReader, names: Sequence[str]) -> str:
    column = next((name for name in names if name in reader.columns), None)
    if column is None:
        raise BertworksError(
            f"no column is called {' or '.join(names)}; there are {', '.join(reader.columns)}",
            where=reader.name,
            hint="is this file of another task? Fetch it again as GLUE gives it out",
        )
    return column
