"""Methods of fine-tuning with few rows: score against rows, all methods and simple ways, and what
`auto` would take.

    python benchmarks/methods.py [--data DATA] [--only SST-2 ...] [--seeds 3] [--workers N] [--show]
    [--quick]

Six data sets, 8 rows of each label (or 50 rows), 100 and 500 rows, drawn with each seed; MiniLM.
Each model is tested on the same 2,000 rows (1,000 sentences of wikigold and questions of SQuAD) of
the official training data, which are never trained on: some official dev sets have a few hundred
rows. `auto` is not trained again: its choice is a function of the folds of each method
(`runs.finetune`), and its model is that of the method that it takes. Seconds are of the final
training alone. Finished cells stay in results/methods.json and are not run again.
"""

import argparse
import csv
import gzip
import json
import multiprocessing
import os
import random
import re
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from provenance import HERE, IMAGES, provenance, skip_without, write_between
from rows import rows_of_each_label

PAGE, STORE = HERE.parent / "docs" / "concepts" / "results.md", HERE / "results" / "methods.json"
DATA_SETS = ("SST-2", "CoLA", "MRPC", "STS-B", "wikigold", "SQuAD")
METRICS = {"CoLA": "matthews_correlation"}
FEW, SIZES = 8, (100, 500)
QUICK = ("epochs=1",)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("BERTWORKS_DATA", ".")))
    parser.add_argument("--only", nargs="+", default=DATA_SETS, choices=DATA_SETS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--workers", type=int, default=1, help="processes, each with one cell at a time"
    )
    parser.add_argument("--model", default="minilm")
    parser.add_argument(
        "--show", action="store_true", help="run nothing, write table and picture again"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="does it run? one cell of each, one epoch; nothing is kept",
    )
    arguments = parser.parse_args()
    skip_without(arguments.data / "glue")
    known: dict[str, Any] = (
        json.loads(STORE.read_text()) if STORE.exists() and not arguments.quick else {"cells": []}
    )
    if not arguments.show:
        run(arguments, known)
    if not arguments.quick:
        write_between(PAGE, "methods", table(known["cells"]))
        write_between(PAGE, "calibration", calibration_table(known["cells"]))
        draw(known["cells"], IMAGES / "methods.png")
    print(table(known["cells"]))


def run(arguments: argparse.Namespace, known: dict[str, Any]) -> None:
    done = {(cell["data"], cell["size"], cell["seed"]) for cell in known["cells"]}
    with tempfile.TemporaryDirectory(prefix="bertworks-bench-") as scratch:
        cells = [
            (*cell, arguments.model, arguments.quick)
            for name in arguments.only
            for cell in files_of(
                name, arguments.data, Path(scratch), 1 if arguments.quick else arguments.seeds
            )
            if cell[:3] not in done and not (arguments.quick and cell[1] > FEW)
        ]
        cells.sort(key=lambda cell: -cell[1])
        with multiprocessing.get_context("spawn").Pool(arguments.workers) as pool:
            for cell in pool.imap_unordered(learn, cells):
                known["cells"].append(cell)
                print(
                    json.dumps({name: cell[name] for name in ("data", "size", "seed", "auto")}),
                    flush=True,
                )
                if not arguments.quick:
                    packages = ("torch", "tokenizers", "scikit-learn")
                    STORE.write_text(
                        json.dumps({"provenance": provenance(packages), **known}, indent=1) + "\n"
                    )


# --- the rows


def tsv(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def rows_of(name: str, data: Path) -> list[Any]:
    """All rows of a data set, as what a line of a file holds."""
    glue = data / "glue"
    if name == "SST-2":
        return [
            {"text": r[0].strip(), "label": ("neg", "pos")[int(r[1])]}
            for r in tsv(glue / "SST-2/train.tsv")[1:]
        ]
    if name == "CoLA":
        kinds = ("unacceptable", "acceptable")
        return [{"text": r[3], "label": kinds[int(r[1])]} for r in tsv(glue / "CoLA/train.tsv")]
    if name == "MRPC":
        found = tsv(glue / "MRPC/msr_paraphrase_train.txt")[1:]
        return [
            {"text_a": r[3], "text_b": r[4], "label": ("different", "same")[int(r[0])]}
            for r in found
        ]
    if name == "STS-B":
        found = tsv(glue / "STS-B/train.tsv")[1:]
        return [{"text_a": r[7], "text_b": r[8], "score": float(r[9])} for r in found]
    if name == "wikigold":
        text = (data / "ner/wikigold/wikigold.conll.txt").read_text(encoding="utf-8")
        lines = [
            line if line.strip() else ""
            for line in text.split("\n")
            if not line.startswith("-DOCSTART")
        ]
        return [one for one in re.split(r"\n{2,}", "\n".join(lines).strip("\n")) if one]
    with gzip.open(data / "squad/train-v1.1-sample.json.gz", "rt", encoding="utf-8") as file:
        articles = json.load(file)["data"]
    return [
        (a["title"], p["context"], q) for a in articles for p in a["paragraphs"] for q in p["qas"]
    ]


def divide(name: str, rows: list[Any]) -> tuple[list[Any], list[Any]]:
    """Test rows, and those to draw from: other texts; other articles of SQuAD."""
    if name == "SQuAD":
        titles = sorted({title for title, _, _ in rows})
        random.Random(7).shuffle(titles)
        held: set[str] = set()
        while sum(row[0] in held for row in rows) < 1000:
            held.add(titles[len(held)])
        return [row for row in rows if row[0] in held][:1000], [
            row for row in rows if row[0] not in held
        ]
    found: dict[str, Any] = {}
    for number, row in enumerate(rows):
        texts = (
            [value for key, value in row.items() if key.startswith("text")]
            if isinstance(row, dict)
            else [number]
        )
        if all(str(text).strip() for text in texts):
            found.setdefault(json.dumps(texts), row)
    unique = list(found.values())
    random.Random(7).shuffle(unique)
    count = 1000 if name == "wikigold" else 2000
    return unique[:count], unique[count:]


def draw_rows(rows: Sequence[Any], size: int, seed: int) -> list[Any]:
    """`size` rows, or FEW of each label; 50 rows if there are no labels of rows."""
    rows = list(rows)
    random.Random(100 + seed).shuffle(rows)
    if size != FEW or not isinstance(rows[0], dict) or "label" not in rows[0]:
        return rows[: 50 if size == FEW else size]
    return rows_of_each_label(rows, FEW, seed)


def write(path: Path, rows: Sequence[Any]) -> str:
    if isinstance(rows[0], dict):
        path = path.with_suffix(".jsonl")
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif isinstance(rows[0], str):
        path = path.with_suffix(".conll")
        path.write_text("\n\n".join(one.strip("\n") for one in rows) + "\n", encoding="utf-8")
    else:
        contexts: dict[tuple[str, str], list[Any]] = {}
        for title, context, question in rows:
            contexts.setdefault((title, context), []).append(question)
        found = [
            {"title": t, "paragraphs": [{"context": c, "qas": q}]} for (t, c), q in contexts.items()
        ]
        path = path.with_suffix(".json")
        path.write_text(json.dumps({"version": "1.1", "data": found}))
    return str(path)


def files_of(
    name: str, data: Path, folder: Path, seeds: int
) -> Iterator[tuple[str, int, int, str, str]]:
    test, rest = divide(name, rows_of(name, data))
    held = write(folder / f"{name}-test", test)
    for size in (FEW, *SIZES):
        for seed in range(seeds):
            yield (
                name,
                size,
                seed,
                write(folder / f"{name}-{size}-{seed}", draw_rows(rest, size, seed)),
                held,
            )


# --- a cell


def learn(cell: tuple[str, int, int, str, str, str, bool]) -> dict[str, Any]:
    """All methods on the same rows."""
    import warnings

    import numpy as np
    import torch

    from bertworks.config import dump_recipe
    from bertworks.inference.engine import compute_logits_and_loss
    from bertworks.metrics.intervals import (
        confidences,
        expected_calibration_error,
        middle,
        resampled,
    )
    from bertworks.runs.baselines import FrozenEncoder, baseline_answers
    from bertworks.runs.data_splits import EVALUATED, MANY_OF_CLASS, methods_of, rows_per_class
    from bertworks.runs.finetune import ENOUGH, Scores, best_method, frozen_accuracy, score_parts
    from bertworks.runs.finetune_job import (
        FEW_METHODS,
        FITTED_METHODS,
        FinetuneJob,
        FinetuneRequest,
        prepare_finetuning,
    )
    from bertworks.runs.options import Method
    from bertworks.runs.training_run import TrainingRun
    from bertworks.tasks.registry import task_of
    from bertworks.tasks.scores import fit_outputs, groups_of, row_sums
    from bertworks.tasks.task import Logits
    from bertworks.training.device import choose_device

    name, size, seed, train, test, model, quick = cell
    warnings.simplefilter("ignore")
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1)))
    device = choose_device("auto")
    request = FinetuneRequest(
        data=train,
        dev=test,
        model=model,
        seed=seed,
        metric=METRICS.get(name),
        overrides=QUICK * quick,
    )
    first = FinetuneJob(prepare_finetuning(request, device))
    d, items = first.description, [one.item for one in first.dev]

    def scored(answers: Sequence[Any]) -> dict[str, Any]:
        sums = row_sums(d, items, answers)[first.metric]
        samples = resampled(sums, groups_of(d, items))
        return {"score": sums.value, "interval": list(middle(samples)), "samples": samples}

    def trained(job: FinetuneJob) -> list[Logits]:
        if job.method in FITTED_METHODS:
            return compute_logits_and_loss(job.fit(), job.dev_units, job.precision)[0]
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "recipe.toml").write_text(dump_recipe(job.recipe))
            job.settings = replace(job.settings, evaluate_every=job.settings.num_steps)
            for _ in TrainingRun(Path(folder), job, device).events():
                pass
            return job.dev_logits(Path(folder))

    found: dict[str, Any] = {}
    folds: dict[Method, Scores] = {}
    seen = [first.train[n] for part in first.data.parts[:EVALUATED] for n in part]
    for method in methods_of(first.data.schema):
        job, begin = first.variant(method), time.perf_counter()
        logits = trained(job)
        seconds = time.perf_counter() - begin
        if method in FITTED_METHODS:
            inner = job.logits_of_evaluated_parts
        else:
            inner = [trained(job.fold(number)) for number in range(EVALUATED)]
        folds[method] = score_parts(job, inner)
        found[method] = scored(list(map(task_of(job.description).decode, job.dev, logits)))
        found[method] |= {
            "folds": float(folds[method].parts.mean()),
            "epochs": job.recipe.epochs,
            "seconds": seconds,
        }
        if d.task == "classification":
            fitted = fit_outputs(job.description, seen, [*chain(*inner)])[0]
            x, gold, rows = task_of(d).gold_logits(job.dev, logits)
            for when, divisor in (("before", 1.0), ("after", fitted.temperature)):
                sides = confidences(x, gold, np.full(len(x), divisor))
                error, around = expected_calibration_error(*sides, rows)
                found[method][f"calibration {when}"] = [error, *around]
    encoder = FrozenEncoder(first.model, device, d.max_length)
    for simple, answers in baseline_answers(first.train, first.dev, d, encoder).items():
        found[f"simple: {simple}"] = scored(answers)
    methods = first.compared_methods
    if methods == FEW_METHODS and frozen_accuracy(first, None) >= ENOUGH:
        methods = ("frozen",)
    few = rows_per_class(first.data) <= MANY_OF_CLASS
    auto = best_method({name: folds[name] for name in methods}, range(EVALUATED), few)
    best = max(found, key=lambda one: found[one]["score"])
    difference = found[best]["samples"] - found[auto]["samples"]
    for one in found.values():
        del one["samples"]
    return {
        "data": name,
        "size": size,
        "seed": seed,
        "rows": len(first.train),
        "tested": len(items),
        "metric": first.metric,
        "methods": found,
        "auto": auto,
        "best": best,
        "behind": found[best]["score"] - found[auto]["score"],
        "behind_interval": list(middle(difference)),
    }


# --- table and picture


Cells = Sequence[Mapping[str, Any]]


def mean(values: Iterable[float]) -> float:
    every = list(values)
    return sum(every) / len(every)


def score(cells: Cells, method: str) -> float:
    """In percent, the mean of the cells; "auto": of the method that it takes."""
    return 100 * mean(
        cell["methods"][cell["auto"] if method == "auto" else method]["score"] for cell in cells
    )


def names(cells: Cells, *, simple: bool) -> list[str]:
    """The methods, or simple methods, that all cells have."""
    shared = set.intersection(*(set(cell["methods"]) for cell in cells))
    return [
        name
        for name in cells[0]["methods"]
        if name in shared and name.startswith("simple: ") == simple
    ]


def table(cells: Cells) -> str:
    groups: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for cell in sorted(cells, key=lambda one: (DATA_SETS.index(one["data"]), one["size"])):
        groups.setdefault((cell["data"], cell["size"]), []).append(cell)
    heads = [
        "data, rows",
        "full",
        "frozen",
        "cosine",
        "contrastive",
        "best simple way",
        "auto",
        "behind the best",
        "it takes",
    ]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for (name, _), some in groups.items():
        numbers = {method: score(some, method) for method in names(some, simple=False)}
        ways = {way: score(some, way) for way in names(some, simple=True)}
        best = max(ways, key=ways.__getitem__)
        clearly = sum(cell["behind_interval"][0] > 0 for cell in some)
        behind = f"{100 * mean(cell['behind'] for cell in some):.1f}"
        behind += f" (clearly in {clearly} of {len(some)})" * (clearly > 0)
        columns = [
            f"{numbers[method]:.1f}" if method in numbers else ""
            for method in ("full", "frozen", "cosine", "contrastive")
        ]
        columns += [
            f"{ways[best]:.1f} ({best.removeprefix('simple: ')})",
            f"{score(some, 'auto'):.1f}",
            behind,
        ]
        takes = ", ".join(sorted({cell["auto"] for cell in some}))
        rows = " to ".join(map(str, sorted({cell["rows"] for cell in some})))
        lines.append(f"| {name}, {rows} | {' | '.join(columns)} | {takes} |")
    if groups:
        average = 100 * mean(mean(cell["behind"] for cell in some) for some in groups.values())
        lines.append(f"| mean | | | | | | | {average:.2f} | |")
    return "\n".join(lines)


def calibration_table(cells: Cells) -> str:
    """Of the largest size: the expected calibration error on the test rows, of the method that
    `auto` takes."""
    lines = ["| data, rows | before | after, with its 95 % interval |", "|---|---|---|"]
    for cell in sorted(cells, key=lambda one: (DATA_SETS.index(one["data"]), one["seed"])):
        taken = cell["methods"][cell["auto"]]
        if cell["size"] == max(SIZES) and "calibration after" in taken:
            before, (after, low, high) = taken["calibration before"][0], taken["calibration after"]
            name = f"{cell['data']}, {cell['rows']}, seed {cell['seed']} ({cell['auto']})"
            lines.append(f"| {name} | {before:.3f} | {after:.3f} ({low:.3f} to {high:.3f}) |")
    return "\n".join(lines)


def draw(cells: Cells, path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, places = pyplot.subplots(2, 3, figsize=(9, 5.2), layout="constrained")
    colours = {
        "full": "#0072b2",
        "frozen": "#d55e00",
        "cosine": "#009e73",
        "simple: cosine": "#cc79a7",
    }
    for name, axes in zip(DATA_SETS, places.ravel(), strict=True):
        some = [cell for cell in cells if cell["data"] == name]
        if not some:
            continue
        sizes = sorted({cell["size"] for cell in some})
        groups = [[cell for cell in some if cell["size"] == size] for size in sizes]
        rows = [mean(cell["rows"] for cell in group) for group in groups]
        ways = [way for way in names(some, simple=True)[1:] if way != "simple: frozen vectors"]
        for method in (*names(some, simple=False), *ways):
            shown = (
                "untrained cosine"
                if method == "simple: cosine"
                else method.removeprefix("simple: ")
            )
            style = "-" if shown == method else "--"
            means = [score(group, method) for group in groups]
            axes.plot(rows, means, style, lw=1.2, color=colours.get(method, "#999999"), label=shown)
        axes.plot(
            rows, [score(group, "auto") for group in groups], "ko", fillstyle="none", label="auto"
        )
        axes.set(title=f"{name}, {some[0]['metric'].replace('_', ' ')}", xscale="log")
        axes.set_xticks(rows, [f"{n:.0f}" for n in rows])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize=7)
    figure.supxlabel("training rows")
    figure.savefig(path, dpi=80)


if __name__ == "__main__":
    main()
