"""Of which label more rows help most: rules that name a label by the folds, against random labels.

    python benchmarks/more_rows.py [--data DATA] [--only SST-2 ...] [--repetitions 100] [--quick]

For each repetition rows of each label are drawn from one half of a data set, and the linear head on
frozen vectors of MiniLM is cross-validated on them in ten folds. Each rule names a label by these
folds, or two labels, or all labels with at most half of the median number of rows, which get equal
parts of eight new rows. With these the head is fitted again. Its scores on the other half are
compared with those after eight rows of a random label, paired by draw. "all labels": the new rows
are spread over the labels; "as they come": they are drawn from all rows.

"unequal": half of the labels have a quarter of the rows. The third metric is macro F1 where new
rows have the labels of the drawn ones, in these fractions. The tables are printed, and stay in
results/more_rows.json; docs/experiments/2026-11.md has a part of them, and what follows.
"""

import argparse
import json
import os
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from coverage import Pool, make_pool
from numpy.typing import NDArray
from provenance import HERE, provenance, skip_without

from bertworks.runs.data_splits import FOLDS, parts_of_rows
from bertworks.tasks.linear_head import fit_linear_head, held_out_logits

SETS = ("Banking77, 10 classes", "SST-2", "CoLA")
PER_LABEL = (8, 16)
ADDED = 8
MAX_POOL = 2500
STORE = HERE / "results" / "more_rows.json"
METRICS = ("accuracy", "macro F1", "macro F1 of such rows")
REFERENCE = "a random label"
Table = Mapping[str, NDArray[np.float64]]  # by name, of each label [K]
RULES: Mapping[str, tuple[Callable[[Table], NDArray[np.float64]], int]] = {
    "lowest F1": (lambda t: t["f1"], 1),
    "lowest recall": (lambda t: t["recall"], 1),
    "fewest rows": (lambda t: t["rows"], 1),
    "most errors": (lambda t: -t["errors"], 1),
    "two of lowest F1": (lambda t: t["f1"], 2),
    "two of lowest recall": (lambda t: t["recall"], 2),
    "two of fewest rows": (lambda t: t["rows"], 2),
    "two of most errors": (lambda t: -t["errors"], 2),
    "all with few rows": (lambda t: t["rows"], 0),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("BERTWORKS_DATA", ".")))
    parser.add_argument("--only", nargs="+", default=SETS, choices=SETS)
    parser.add_argument("--repetitions", type=int, default=100)
    parser.add_argument("--quick", action="store_true", help="does it run? two repetitions")
    a = parser.parse_args()
    skip_without(a.data / "glue")
    torch.set_num_threads(1)
    cells: dict[str, Any] = {}
    if STORE.exists() and not a.quick:
        cells = json.loads(STORE.read_text())
    for name in a.only:
        pool = make_pool(name, a.data, MAX_POOL)
        for is_equal in (True, False):
            for size in PER_LABEL:
                draws = [
                    repetition(pool, size, is_equal, seed)
                    for seed in range(2 if a.quick else a.repetitions)
                ]
                kind = "" if is_equal else ", unequal"
                title = f"{name}, {size} rows per label{kind}"
                figures = differences(draws)
                print(f"{title}\n{table(figures)}", flush=True)
                if not a.quick:
                    packages = ("torch", "scikit-learn", "numpy")
                    origin = {"repetitions": len(draws), "provenance": provenance(packages)}
                    cells[title] = origin | {"figures": figures}
                    STORE.write_text(json.dumps(cells, indent=1) + "\n")


def repetition(pool: Pool, size: int, is_equal: bool, seed: int) -> dict[str, list[float]]:
    """Return METRICS on new rows, before and after rows are added by each rule."""
    rng = np.random.default_rng([seed, size, is_equal])
    task = pool.job.head_inputs.network.task
    count = task.outputs
    x = np.concatenate(pool.x)
    y = np.concatenate(pool.labels).astype(np.int64)
    order = rng.permutation(len(y))
    half = order[: len(y) // 2]
    test = order[len(y) // 2 :]
    of_label = [half[y[half] == label].tolist() for label in range(count)]
    sizes = np.full(count, size)
    if not is_equal:
        sizes[rng.permutation(count)[: count // 2]] //= 4
    rows = [n for label in range(count) for n in of_label[label][: sizes[label]]]
    new = [of_label[label][sizes[label] :] for label in range(count)]
    items = [pool.job.data.train[n] for n in rows]
    parts = parts_of_rows(items, [pool.job.data.groups[n] for n in rows], FOLDS, True)
    logits = held_out_logits(task, [x[[n]] for n in rows], [y[[n]] for n in rows], parts)
    found = label_table(y[rows], np.concatenate(logits).argmax(1), count)

    @cache  # rules often name the same label
    def scores(added: tuple[int, ...]) -> list[float]:
        chosen = [*rows, *added]
        head = fit_linear_head(task, x[chosen], y[chosen])
        predicted = head(x[test]).argmax(1)
        figures = label_table(y[test], predicted, count)
        accuracy = (figures["recall"] * figures["rows"]).sum() / len(test)
        of_such_rows = label_table(y[test], predicted, count, sizes / figures["rows"])
        return [float(accuracy), *(float(t["f1"].mean()) for t in (figures, of_such_rows))]

    arms = {"no rows": scores(())}
    shuffled = rng.permutation(count)
    arms[REFERENCE] = scores((*new[shuffled[0]][:ADDED],))
    spread = [new[shuffled[n % count]][n // count] for n in range(ADDED)]
    arms["all labels"] = scores((*spread,))
    chosen = {*rows}
    arms["as they come"] = scores(tuple(n for n in half.tolist() if n not in chosen)[:ADDED])
    for rule, (figure, named) in RULES.items():
        # Ties are broken at random.
        number = named or int((found["rows"] <= np.median(found["rows"]) / 2).sum()) or count
        ordered = np.lexsort([shuffled, figure(found)])[:number]
        arms[rule] = scores(tuple(new[ordered[n % number]][n // number] for n in range(ADDED)))
    return arms


def label_table(
    gold: NDArray[np.int64],
    predicted: NDArray[np.int64],
    count: int,
    weights: NDArray[np.float64] | float = 1.0,
) -> Table:
    """Return for each label its rows, recall, F1, and the errors of which it is a side.

    weights: of a row of each label [K].
    """
    confusion = np.zeros((count, count))
    np.add.at(confusion, (gold, predicted), 1)
    confusion *= np.broadcast_to(weights, count)[:, None]
    right = confusion.diagonal()
    rows = confusion.sum(1)
    both = rows + confusion.sum(0)
    return {
        "rows": rows,
        "recall": right / np.maximum(1e-9, rows),
        "f1": 2 * right / np.maximum(1e-9, both),
        "errors": both - 2 * right,
    }


def differences(draws: list[dict[str, list[float]]]) -> dict[str, Any]:
    """Return the mean difference from REFERENCE in points, and half of its 95 % interval."""
    results = {}
    for arm in draws[0]:
        points = 100 * np.array([np.subtract(draw[arm], draw[REFERENCE]) for draw in draws])
        error = 1.96 * points.std(0, ddof=1) / np.sqrt(len(draws))
        mean = 100 * np.mean([draw[arm] for draw in draws], 0)
        results[arm] = {
            name: [float(values[k]) for values in (mean, points.mean(0), error)]
            for k, name in enumerate(METRICS)
        }
    return results


def table(cell: Mapping[str, Any]) -> str:
    heads = [f"{metric} | than {REFERENCE}" for metric in METRICS]
    lines = [f"| added | {' | '.join(heads)} |", "|---|---|---|---|---|---|---|"]
    for arm, figures in cell.items():
        cells = [
            f"{mean:.1f} | {difference:+.2f} ± {error:.2f}"
            for mean, difference, error in figures.values()
        ]
        lines.append(f"| {arm} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
