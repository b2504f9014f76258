"""GLUE from its own files: every task, every layout that goes around, scores, submissions and
published rows."""

import gzip
import json
import math
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from bertworks.datasets.schema import items
from bertworks.errors import BertworksError
from bertworks.evaluation.glue import (
    COLUMNS,
    GLUE,
    PUBLISHED,
    find_glue_tasks,
    macro_average,
    submission,
)
from bertworks.tasks.registry import TASKS
from bertworks.tasks.scores import compute_metrics
from bertworks.tasks.settings import TaskConfig
from tests.support import ROOT

BENCHMARKS = ROOT / "benchmarks"
BY_NAME = {task.name: task for task in GLUE}
TRAINED = {"CoLA": 8551, "SST-2": 67349, "MRPC": 3667, "STS-B": 5749, "RTE": 2490, "WNLI": 635}
MEASURED = {  # split -> rows, as GLUE counts them
    "CoLA": {"dev": 1043},
    "SST-2": {"dev": 872},
    "MRPC": {"dev": 408},
    "STS-B": {"dev": 1500},
    "QQP": {"heldout": 1000},
    "MNLI": {"dev_mixed": 19647},
    "QNLI": {"dev": 5463},
    "RTE": {"dev": 277},
    "WNLI": {"dev": 71},
}


def write(path: Path, *rows: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")


@pytest.fixture
def official(tmp_path: Path) -> Path:
    """One row of each file of the official download, with the columns, headers and marks that it
    has."""
    parses = [f"s{n}_{kind}" for kind in ("binary_parse", "parse") for n in (1, 2)]
    mnli = ["index", "promptID", "pairID", "genre", *parses, "sentence1", "sentence2"]
    row = [
        "0",
        "1",
        "1n",
        "fiction",
        "( x )",
        "( y )",
        "(S x)",
        "(S y)",
        'He said "go .',
        "He spoke .",
    ]
    for name, more, label in (
        ("train", ["label1", "gold_label"], ["neutral", "neutral"]),
        (
            "dev_matched",
            [*(f"label{n}" for n in range(1, 6)), "gold_label"],
            ["entailment"] * 5 + ["neutral"],
        ),
        ("dev_mismatched", [*(f"label{n}" for n in range(1, 6)), "gold_label"], ["neutral"] * 6),
        ("test_matched", [], []),
        ("test_mismatched", [], []),
    ):
        write(
            tmp_path / "MNLI" / f"{name}.tsv", "\t".join([*mnli, *more]), "\t".join([*row, *label])
        )
    for name in ("train", "dev"):
        write(
            tmp_path / "CoLA" / f"{name}.tsv",
            'gj04\t1\t\t"Hello," I said.',
            "gj04\t0\t*\tHim slept.",
        )
        write(tmp_path / "SST-2" / f"{name}.tsv", "sentence\tlabel", 'a " fine " film \t1')
        write(
            tmp_path / "MRPC" / f"{name}.tsv",
            "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String",
            '1\t7\t8\t" One .\tTwo .',
        )
        write(
            tmp_path / "STS-B" / f"{name}.tsv",
            "index\tgenre\tsentence1\tsentence2\tscore",
            "0\tnews\tA .\tB .\t3.800",
        )
        write(
            tmp_path / "QQP" / f"{name}.tsv",
            "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
            '0\t1\t2\t"A?\tB?\t0',
        )
        write(
            tmp_path / "QNLI" / f"{name}.tsv",
            "index\tquestion\tsentence\tlabel",
            "0\tA?\tB.\tnot_entailment",
        )
        write(
            tmp_path / "RTE" / f"{name}.tsv",
            "index\tsentence1\tsentence2\tlabel",
            "0\tA.\tB.\tentailment",
        )
        write(
            tmp_path / "WNLI" / f"{name}.tsv", "index\tsentence1\tsentence2\tlabel", "0\tA.\tB.\t1"
        )
    for name, header in {
        "CoLA": "sentence",
        "SST-2": "sentence",
        "MRPC": "#1 ID\t#2 ID\t#1 String\t#2 String",
        "STS-B": "genre\tsentence1\tsentence2",
        "QQP": "question1\tquestion2",
        "QNLI": "question\tsentence",
        "RTE": "sentence1\tsentence2",
        "WNLI": "sentence1\tsentence2",
    }.items():
        width = header.count("\t") + 1
        write(
            tmp_path / name / "test.tsv",
            f"index\t{header}",
            "\t".join(["0", *(f'"{n}' for n in range(width))]),
        )
    return tmp_path


def test_the_official_download(official: Path):
    found = find_glue_tasks(official)
    assert [one._replace(files={}) for one in found] == list(GLUE)
    assert all(set(one.files) == set(one.splits) and not one.sampled for one in found)
    labels = ["1", "1", "1", 3.8, "0", "neutral", "not_entailment", "entailment", "1"]
    for one, label in zip(found, labels):
        splits = one.splits
        assert set(one.files) == set(splits)
        assert one.measured_on == tuple(split for split in splits if split.startswith("dev"))
        for split in splits:
            reader, schema = one.read(split)
            tested = split.startswith("test")
            item = next(items(reader, replace(schema, label=()) if tested else schema, TASKS))
            assert item.label == (None if tested else label)
            assert len(item.texts) == (1 if one.name in ("CoLA", "SST-2") else 2)
    first = {one.name: next(items(*one.read("train"), TASKS)).texts for one in found}
    assert first["CoLA"] == ('"Hello," I said.',), "quote marks are text"
    assert first["MRPC"] == ('" One .', "Two .")
    assert first["MNLI"] == ('He said "go .', "He spoke .")
    assert first["QQP"] == ('"A?', "B?")


def test_what_a_folder_lacks(tmp_path: Path):
    write(tmp_path / "sst2" / "dev.tsv", "sentence\tlabel", "fine\t1")
    (tmp_path / "RTE").mkdir()
    (tmp_path / "notes").mkdir()
    pair = {"text_a": "A", "text_b": "B", "label": "entailment"}
    (tmp_path / "qnli").mkdir()
    for name in ("train-sample", "heldout-from-train-sample"):
        with gzip.open(tmp_path / "qnli" / f"{name}.jsonl.gz", "wt") as file:
            file.write(json.dumps(pair) + "\n")
    films, questions, nothing = find_glue_tasks(tmp_path)
    assert (films.name, list(films.files), films.measured_on) == ("SST-2", ["dev"], ("dev",))
    assert (list(questions.files), questions.sampled, questions.measured_on) == (
        ["train", "heldout"],
        True,
        ("heldout",),
    )
    assert next(items(*questions.read("heldout"), TASKS)).label == "entailment"
    assert (nothing.name, nothing.files, nothing.measured_on) == ("RTE", {}, ())
    assert [one.name for one in find_glue_tasks(tmp_path / "sst2")] == ["SST-2"], (
        "the folder of one task"
    )
    with gzip.open(tmp_path / "qnli" / "train.tsv.gz", "wt") as file:
        file.write("index\tquestion\tsentence\tlabel\n")
    assert not find_glue_tasks(tmp_path)[1].sampled, "the whole set is taken before its sample"


def test_what_is_no_glue(tmp_path: Path):
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(BertworksError, match="no task of GLUE is here"):
            find_glue_tasks(folder)
    write(tmp_path / "RTE" / "dev.tsv", "index\tquestion\tsentence\tlabel", "0\tA?\tB.\tentailment")
    with pytest.raises(BertworksError, match=r"dev.tsv: no column is called sentence1 or text_a"):
        find_glue_tasks(tmp_path)[0].read("dev")


@pytest.mark.parametrize("name", list(BY_NAME))
def test_every_row_of_the_real_files(name: str, data_folder: Path):
    one = next(one for one in find_glue_tasks(data_folder / "glue") if one.name == name)
    assert one.sampled == (name not in TRAINED)
    wanted = {"train": TRAINED.get(name, 8999), **MEASURED[name]}
    assert one.measured_on == tuple(MEASURED[name])
    for split, rows in wanted.items():
        seen = [item.label for item in items(*one.read(split), TASKS)]
        assert len(seen) == rows
        if one.labels:
            assert set(Counter(seen)) == set(one.labels)
        else:
            assert (min(seen), max(seen)) == (0.0, 5.0)
    for split in one.files:
        if split.startswith("test"):
            reader, schema = one.read(split)
            rows = items(reader, replace(schema, label=()), TASKS)
            assert all(len(item.texts) == len(one.text) for item in rows)


def test_majorities_of_the_real_dev_sets(data_folder: Path):
    """Known figures: the majority of WNLI is 56.3 %, of RTE 52.7 %, of MRPC 68.4 % (F1 81.2)."""
    found = {one.name: one for one in find_glue_tasks(data_folder / "glue")}

    def majority(name: str, answer: str) -> list[float]:
        gold = list(items(*found[name].read("dev"), TASKS))
        d = TaskConfig(task="classification", labels=BY_NAME[name].labels)
        figures = compute_metrics(d, gold, [{"label": answer}] * len(gold))
        return [figures[metric] for metric in BY_NAME[name].metrics]

    assert majority("WNLI", "0") == [pytest.approx(0.5634, abs=1e-4)]
    assert majority("RTE", "entailment") == [pytest.approx(0.5271, abs=1e-4)]
    assert majority("MRPC", "1") == pytest.approx([0.8122, 0.6838], abs=1e-4)
    assert majority("CoLA", "1") == [0.0]


def test_each_task_has_the_metrics_of_its_kind():
    for task in GLUE:
        assert set(task.metrics) <= set(
            TASKS["classification" if task.labels else "regression"].metrics
        )
    assert BY_NAME["STS-B"].metrics == ["spearman", "pearson"]


def test_submissions_are_as_the_leaderboard_wants_them():
    names = {file for task in GLUE for file in task.submissions.values()}
    assert names == {f"{column}.tsv" for column in COLUMNS}
    labels = submission(BY_NAME["RTE"], ["entailment", "not_entailment"])
    assert labels == "index\tprediction\n0\tentailment\n1\tnot_entailment\n"
    values = submission(BY_NAME["STS-B"], [3.14159, -0.2, 5.2])
    assert values == "index\tprediction\n0\t3.142\n1\t0.000\n2\t5.000\n"
    assert BY_NAME["MNLI"].submissions["test_mismatched"] == "MNLI-mm.tsv"


def test_published_rows_and_their_averages():
    """The papers' own averages follow from their rows, each by its rule: a slip of the pen would
    show."""
    rows = {(row["name"], row["split"]): row for row in PUBLISHED}
    assert len(rows) == len(PUBLISHED)
    assert all(set(row["scores"]) <= {*COLUMNS, "MNLI"} for row in PUBLISHED)
    for name, split in (("BERT-Base", "dev"), ("DistilBERT", "dev")):
        mean, missing = macro_average(rows[name, split]["scores"])
        assert (round(mean, 1), missing) == (rows[name, split]["average"], [])
    for name in ("BERT-Base", "BERT-Large"):
        row = rows[name, "test"]
        assert round(sum(row["scores"].values()) / 9, 1) == row["average"]
        assert macro_average(row["scores"])[1] == ["WNLI"]


def test_the_macro_average_counts_every_task_once():
    assert macro_average({"MNLI-m": 80.0, "MNLI-mm": 90.0, "RTE": 60.0})[0] == pytest.approx(72.5)
    assert macro_average({"MNLI-mm": 90.0, "RTE": 60.0})[0] == pytest.approx(75.0)
    assert macro_average({"MNLI": 70.0})[1] == [name for name in BY_NAME if name != "MNLI"]


def test_nothing_of_a_task_is_measured_on_nothing():
    assert BY_NAME["QQP"]._replace(files={"train": Path("train-sample.jsonl.gz")}).measured_on == ()


def test_an_interval_as_in_the_tables_of_student(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    from provenance import ConfidenceInterval, confidence_interval

    ours = confidence_interval([84.0, 85.0, 86.0, 87.0, 88.0])
    assert (ours.count, ours.mean, ours.deviation) == (5, 86.0, pytest.approx(math.sqrt(2.5)))
    assert ours.margin == pytest.approx(2.7764451 * math.sqrt(2.5) / math.sqrt(5))
    assert confidence_interval([0.1]) == ConfidenceInterval(1, 0.1, None, None)
    assert confidence_interval([0.1] * 3).margin == pytest.approx(0.0)
    with pytest.raises(ValueError, match="no runs"):
        confidence_interval([])


def test_an_interval_holds_the_mean_19_times_of_20(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    from provenance import confidence_interval

    generator = random.Random(7)
    held = 0
    for _ in range(2000):
        ours = confidence_interval([generator.gauss(3.0, 2.0) for _ in range(4)])
        assert ours.margin is not None
        held += abs(ours.mean - 3.0) <= ours.margin
    assert 0.935 < held / 2000 < 0.965
