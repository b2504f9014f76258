"""Whether the intervals of scores hold: how often they contain the score on thousands of new rows.

    python benchmarks/coverage.py [--data DATA] [--only SST-2 ...] [--repetitions 400] [--show]
    [--quick]

For each repetition rows are drawn at random. The linear head on frozen vectors of MiniLM is
cross-validated on them as `finetune --method frozen` does, and is fitted to all of them: its score
on all other rows is the truth. Three kinds of intervals are compared:

- curve: ten and three folds with a learning curve (`metrics.intervals.learning_curve`)
- moved: two of three folds, moved by the gain of the same head (`moved_estimate`); with another
  model in place of the head this is approximate
- folds: two of three folds as they are, Wilson or percentile bootstrap

Banking77 is cut to its ten largest classes. The constants of the intervals were chosen on this set,
on SST-2 and on a third one, the smallest variance on CoLA, and nothing on NSMC and QNLI. Of STS-B
the correlations of a ridge regression are evaluated, and of wikigold the F1 of entities. Of SQuAD
the answers that BERT gave to all questions of dev 1.1 are drawn, context by context: these are
intervals of held-out rows.

Sums over repetitions are written to results/coverage.json after every ten: the same command
continues. The tables go to docs/concepts/intervals.md.
"""

import argparse
import csv
import gzip
import json
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from methods import rows_of, tsv
from numpy.typing import NDArray
from provenance import HERE, provenance, skip_without, write_between
from scipy.stats import binomtest

from bertworks.metrics import intervals
from bertworks.metrics.intervals import Estimate, Interval, RowSums
from bertworks.metrics.squad import SquadQuestion, evaluate_answers
from bertworks.runs.data_splits import EVALUATED, FEWEST_PER_LABEL, FOLDS, PARTS, parts_of_rows
from bertworks.runs.finetune import make_finetune_request
from bertworks.runs.finetune_job import FinetuneJob, prepare_finetuning
from bertworks.tasks.linear_head import fit_linear_head, held_out_logits
from bertworks.tasks.registry import task_of
from bertworks.tasks.scores import interval_of, least_value
from bertworks.tasks.task import Logits

PAGE = HERE.parent / "docs" / "concepts" / "intervals.md"
STORE = HERE / "results" / "coverage.json"
SIZES: Mapping[str, Sequence[int]] = {
    "SST-2": (50, 100, 200, 500),
    "Banking77, 10 classes": (50, 100, 200, 500),
    "NSMC": (50, 100, 200, 500),
    "CoLA": (50, 100, 200, 500),
    "QNLI": (50, 100, 200, 500),
    "STS-B": (50, 100, 200, 500),
    "wikigold": (50, 200),
    "SQuAD": (100, 500),
}
METRICS = ("accuracy", "macro_f1", "matthews_correlation")
METRICS_OF = {"STS-B": ("spearman", "pearson"), "wikigold": ("f1",), "SQuAD": ("f1", "exact")}
MAX_POOL = 6000
KINDS = ("curve", "moved", "folds")
LOWEST = 0.92
Sums = dict[str, RowSums]
Draw = Callable[[int, int], dict[str, Any]]  # of a number of rows and a seed


class Pool(NamedTuple):
    """All rows of a data set, and what the linear head reads of them."""

    job: FinetuneJob
    x: list[NDArray[np.float32]]
    labels: list[NDArray[Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("BERTWORKS_DATA", ".")))
    parser.add_argument("--only", nargs="+", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--repetitions", type=int, default=400)
    parser.add_argument("--show", action="store_true", help="run nothing, write the tables again")
    parser.add_argument(
        "--quick", action="store_true", help="does it run? two repetitions of one cell each"
    )
    a = parser.parse_args()
    skip_without(a.data / "glue")
    torch.set_num_threads(1)
    cells: dict[str, Any] = {}
    if STORE.exists() and not a.quick:
        cells = json.loads(STORE.read_text())["cells"]
    if not a.show:
        draws = {name: draw_of(name, a.data) for name in a.only}
        # In rounds, so that an early end leaves figures of all cells.
        for repetitions in [2] if a.quick else [a.repetitions * part // 8 for part in (1, 2, 4, 8)]:
            for name, draw in draws.items():
                run(name, draw, repetitions, cells, keeps=not a.quick)
    if not a.quick:
        write_between(PAGE, "coverage", table(cells))
    print(table(cells))


def draw_of(name: str, data: Path) -> Draw:
    """Return what draws rows of a data set and evaluates their intervals."""
    if name == "SQuAD":
        return partial(drawn_questions, read_questions(data))
    return partial(repetition, make_pool(name, data), METRICS_OF.get(name, METRICS))


def run(name: str, draw: Draw, repetitions: int, cells: dict[str, Any], keeps: bool) -> None:
    """Add the repetitions of a data set that are missing to its cells."""
    for size in SIZES[name] if keeps else SIZES[name][:1]:
        key = f"{name}, {size}"
        cell = cells.setdefault(key, {"repetitions": 0, "seconds": 0.0, "sums": {}})
        while cell["repetitions"] < repetitions:
            begin = time.process_time()
            for column, figures in draw(size, cell["repetitions"]).items():
                sums = cell["sums"].setdefault(column, [0.0] * len(figures))
                cell["sums"][column] = [x + y for x, y in zip(sums, figures, strict=True)]
            cell["repetitions"] += 1
            cell["seconds"] += time.process_time() - begin
            if keeps and cell["repetitions"] % 10 == 0:
                packages = ("torch", "scikit-learn", "numpy")
                results = {"provenance": provenance(packages), "cells": cells}
                STORE.write_text(json.dumps(results, indent=1) + "\n")
        print(f"{key}: {cell['repetitions']} in {cell['seconds']:.0f} s", flush=True)


def make_pool(name: str, data: Path, most: int = MAX_POOL) -> Pool:
    """Return a random sample of a data set with at most `most` rows."""
    rows = pool_rows(name, data)
    random.Random(0).shuffle(rows)
    with tempfile.TemporaryDirectory(prefix="bertworks-bench-") as folder:
        path = Path(folder, "rows.conll" if name == "wikigold" else "rows.jsonl")
        if name == "wikigold":
            path.write_text("\n\n".join(rows) + "\n", encoding="utf-8")
        else:
            path.write_text("\n".join(map(json.dumps, rows[:most])) + "\n", encoding="utf-8")
        request = make_finetune_request(str(path), method="frozen", validation="folds")
        job = FinetuneJob(prepare_finetuning(request, torch.device("cpu")))
    return Pool(job, *job.head_inputs[1:])


def pool_rows(name: str, data: Path) -> list[Any]:
    """The rows of a data set, as what a line of a file holds."""
    if name.startswith("Banking77"):
        rows = []
        for part in ("train", "test"):
            with (data / f"intents/banking77/{part}.csv").open(encoding="utf-8") as file:
                rows += [
                    {"text": row["text"], "label": row["category"]} for row in csv.DictReader(file)
                ]
        largest = dict(Counter(row["label"] for row in rows).most_common(10))
        return [row for row in rows if row["label"] in largest]
    if name == "NSMC":
        with gzip.open(data / "ko/nsmc/ratings_train.txt.gz", "rt", encoding="utf-8") as file:
            lines = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[1:]
        names = ("negative", "positive")
        return [{"text": row[1], "label": names[int(row[2])]} for row in lines if row[1].strip()]
    if name == "QNLI":
        return [
            {"text_a": row[1], "text_b": row[2], "label": row[3]}
            for row in tsv(data / "glue/QNLI/dev.tsv")[1:]
        ]
    return rows_of(name, data)


def repetition(pool: Pool, metrics: Sequence[str], size: int, seed: int) -> dict[str, Any]:
    """Return for each metric and kind: whether the interval holds, the error and the width."""
    job = pool.job
    rng = np.random.default_rng([seed, size])
    order = rng.permutation(len(pool.x)).tolist()
    rows = order[:size]
    rest = order[size:]
    items = [job.data.train[n] for n in rows]
    x = [pool.x[n] for n in rows]
    labels = [pool.labels[n] for n in rows]
    groups = [job.data.groups[n] for n in rows]
    head_task = job.head_inputs.network.task
    # As data_splits.read_data, which has the groups of the rows too.
    num_labels = len({str(item.label) for item in items})
    by_label = task_of(job.description).is_stratified and size / num_labels >= FEWEST_PER_LABEL
    ten, three = (parts_of_rows(items, groups, count, by_label) for count in (FOLDS, PARTS))
    by_ten = sums_of(job, rows, held_out_logits(head_task, x, labels, ten))
    by_three_logits = held_out_logits(head_task, x, labels, three)
    by_three = sums_of(job, rows, by_three_logits)
    numbers = [n for part in three[:EVALUATED] for n in part]
    by_two = sums_of(job, [rows[n] for n in numbers], [by_three_logits[n] for n in numbers])
    groups_of_two = [groups[n] for n in numbers]
    head = fit_linear_head(head_task, np.concatenate(x), np.concatenate(labels))
    truths = sums_of(job, rest, [head(pool.x[n]).astype(np.float32) for n in rest])
    found: dict[str, Any] = {}
    for metric in metrics:
        least = least_value(metric)
        gain = intervals.curve_gain(by_ten[metric], by_three[metric], least)
        two_items = [items[n] for n in numbers]
        estimates = {
            "curve": intervals.learning_curve(by_ten[metric], by_three[metric], least, groups),
            "moved": intervals.moved_estimate(by_two[metric], gain, least, groups_of_two),
            "folds": Estimate(
                by_two[metric].value,
                interval_of(job.description, two_items, by_two[metric], metric),
            ),
        }
        found |= figures_of(metric, estimates, truths[metric].value)
    return found


def figures_of(metric: str, estimates: Mapping[str, Estimate], truth: float) -> dict[str, Any]:
    """Return whether each interval holds, how far its estimate is off, and its width."""
    figures = {}
    for kind, (value, interval) in estimates.items():
        low, high = interval or Interval(0, 0)
        figures[f"{metric}, {kind}"] = [float(low <= truth <= high), value - truth, high - low]
    return figures


def sums_of(job: FinetuneJob, rows: Sequence[int], logits: Sequence[Logits]) -> Sums:
    """Return the metrics of predictions for rows of the pool, as sums over them."""
    task = task_of(job.description)
    if task.predicts_numbers or task.labels_tokens:
        pairs = [
            (job.train[n].item, task.decode(job.train[n], outputs))
            for n, outputs in zip(rows, logits, strict=True)
        ]
        return task.row_sums(pairs)
    # As in the task, but for all rows at a time.
    gold = np.concatenate([job.head_inputs.labels[n] for n in rows]).astype(np.int64)
    one_hot = np.eye(len(job.description.labels))
    sides = one_hot[np.concatenate(logits).argmax(1)], one_hot[gold]
    sums = intervals.count_sums(np.stack([sides[0] * sides[1], *sides], 1))
    return sums | {"accuracy": intervals.mean_sums((sides[0] * sides[1]).sum(1).tolist())}


class Questions(NamedTuple):
    """Scores of the answers to questions, one row each, and the context of each row."""

    scores: dict[str, list[float]]
    contexts: list[int]


def read_questions(data: Path) -> Questions:
    """Return the scores of the answers that BERT gave to SQuAD dev 1.1."""
    with gzip.open(data / "squad/dev-v1.1.json.gz", "rt", encoding="utf-8") as file:
        articles = json.load(file)["data"]
    with gzip.open(data / "squad/bert-predictions-dev-v1.1.json.gz", "rt") as file:
        answers = json.load(file)
    questions = []
    contexts = []
    paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
    for number, paragraph in enumerate(paragraphs):
        for question in paragraph["qas"]:
            texts = tuple(answer["text"] for answer in question["answers"])
            questions.append(SquadQuestion(question["id"], texts))
            contexts.append(number)
    _, scores = evaluate_answers(questions, answers, version="1.1")
    names = ("f1", "exact")
    return Questions({name: [getattr(score, name) for score in scores] for name in names}, contexts)


def drawn_questions(questions: Questions, size: int, seed: int) -> dict[str, Any]:
    """Return the figures of whole contexts with about `size` questions."""
    rng = np.random.default_rng([seed, size])
    contexts = np.array(questions.contexts)
    count = round(size * (contexts.max() + 1) / len(contexts))
    drawn = rng.permutation(contexts.max() + 1)[:count]
    rows = np.flatnonzero(np.isin(contexts, drawn))
    found: dict[str, Any] = {}
    for metric, scores in questions.scores.items():
        sums = intervals.mean_sums([scores[n] for n in rows])
        interval = intervals.middle(intervals.resampled(sums, contexts[rows].tolist()))
        estimates = {"folds": Estimate(sums.value, interval)}
        found |= figures_of(metric, estimates, float(np.mean(scores)))
    return found


def table(cells: Mapping[str, Any]) -> str:
    """Return the table of all cells: coverage, error in points, width compared with the folds'."""
    lines = ["| data, rows | metric | curve | moved | folds |", "|---|---|---|---|---|"]
    for key, cell in cells.items():
        count = cell["repetitions"]
        metrics = dict.fromkeys(column.split(", ")[0] for column in cell["sums"])
        for metric in metrics:
            texts = []
            for kind in KINDS:
                held, error, width = cell["sums"].get(f"{metric}, {kind}", (0, 0, 0))
                reference = cell["sums"][f"{metric}, folds"][2]
                text = ""
                if width:
                    high = binomtest(int(held), count).proportion_ci(method="wilson").high
                    low_mark = " **low**" if high < LOWEST else ""
                    text = (
                        f"{held / count:.1%}{low_mark}, {100 * error / count:+.1f}, "
                        f"{width / reference:.2f}"
                    )
                texts.append(text)
            lines.append(f"| {key} | {metric} | {' | '.join(texts)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
