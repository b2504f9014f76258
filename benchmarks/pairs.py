"""Pairs of texts with a score: `finetune --method auto` next to its methods and the cosine.

    python benchmarks/pairs.py [--data DATA] [--only STS-B ...] [--contenders auto ...] [--draws 1]
    [--show] [--quick]

150 and 500 pairs, drawn from the training rows of STS-B, KorSTS and JSTS; MiniLM, one thread. Each
draw is tested on the same pairs, at most 1,000 of a file that is not trained on. MiniLM is a model
of English: KorSTS and JSTS check that `auto` is not below the untrained cosine where it knows
little. "untrained" is the method of that name; Pearson's correlations are compared with that of
the cosines of MiniLM, computed apart from it, and the interval of the difference is that of a
bootstrap over the test pairs. Processor seconds are those of the whole fine-tuning, with its
cross-validation, without imports and without the predictions of the test pairs. Finished trainings
stay in results/pairs.json and are not run again; cheap contenders and few rows come first.
"""

import argparse
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

from provenance import HERE, process, provenance, skip_without, write_between

PAGE = HERE.parent / "docs" / "concepts" / "results.md"
STORE = HERE / "results" / "pairs.json"
SIZES = (150, 500)
FILES = {
    "STS-B": ("glue/STS-B/train.tsv", "glue/STS-B/dev.tsv"),
    "KorSTS": ("ko/korsts/sts-train.tsv", "ko/korsts/sts-test.tsv"),
    "JSTS": ("ja/jsts/train.jsonl.gz", "ja/jsts/valid.jsonl.gz"),
}
MOST_TESTED = 1000
# in the order in which they run
CONTENDERS = ("untrained", "cosine", "auto", "full")
Row = dict[str, str | float]


@dataclass(frozen=True)
class Job:
    """One training."""

    contender: str
    data: str
    size: int  # pairs
    draw: int
    folder: str  # of the data
    quick: bool = False


def main() -> None:
    if sys.argv[1:2] == ["--job"]:
        print(json.dumps(run(Job(**json.loads(sys.argv[2])))))
        return
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("BERTWORKS_DATA", ".")))
    parser.add_argument("--only", nargs="+", default=list(FILES), choices=FILES)
    parser.add_argument("--contenders", nargs="+", default=CONTENDERS, choices=CONTENDERS)
    parser.add_argument("--draws", type=int, default=1)
    parser.add_argument("--show", action="store_true", help="run nothing, write the table again")
    parser.add_argument(
        "--quick", action="store_true", help="does it run? one size; nothing is kept"
    )
    arguments = parser.parse_args()
    skip_without(arguments.data / "glue")
    known: dict[str, Any] = {"jobs": []}
    if STORE.exists() and not arguments.quick:
        known |= json.loads(STORE.read_text())
    if not arguments.show:
        run_all(arguments, known)
    if not arguments.quick:
        write_between(PAGE, "pairs", table(known["jobs"]))
    print(table(known["jobs"]))


def run_all(arguments: argparse.Namespace, known: dict[str, Any]) -> None:
    """Run the trainings that are not finished, `full` after all others."""
    done = {(job["contender"], job["data"], job["size"], job["draw"]): job for job in known["jobs"]}
    cells = itertools.product(
        range(arguments.draws),
        SIZES[:1] if arguments.quick else SIZES,
        arguments.contenders,
        arguments.only,
    )
    for draw, size, contender, data in sorted(cells, key=lambda cell: cell[2] == "full"):
        key = (contender, data, size, draw)
        if key in done:
            continue
        job = Job(contender, data, size, draw, str(arguments.data), arguments.quick)
        figures = process(__file__, ["--job", json.dumps(asdict(job))], 1)
        done[key] = {**asdict(job), "folder": "", **figures}
        known["jobs"].append(done[key])
        print(json.dumps(done[key]), flush=True)
        if not arguments.quick:
            packages = ("torch", "tokenizers", "scikit-learn")
            content = {**known, "provenance": provenance(packages)}
            STORE.write_text(json.dumps(content, indent=1) + "\n")


def read_rows(path: Path) -> list[Row]:
    """Return the pairs of a file of STS-B, KorSTS or JSTS."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8", newline="") as file:
        if path.name.endswith(".jsonl.gz"):
            rows = [json.loads(line) for line in file]
        else:
            rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    score = "label" if "label" in rows[0] else "score"
    return [
        {
            "text_a": row["sentence1"],
            "text_b": row["sentence2"],
            "score": float(row[score]),
        }
        for row in rows
    ]


def run(job: Job) -> dict[str, Any]:
    """Return the correlations of a training on the test pairs, and what it took."""
    import torch

    import bertworks as bw
    from bertworks.metrics.intervals import correlations, paired_difference
    from bertworks.runs.finetune import finetune_events, make_finetune_request

    torch.set_num_threads(1)
    train, test = (read_rows(Path(job.folder, name)) for name in FILES[job.data])
    random.Random(100 + job.draw).shuffle(train)
    random.Random(7).shuffle(test)
    test = test[: 50 if job.quick else MOST_TESTED]
    with tempfile.TemporaryDirectory(prefix="bertworks-bench-") as folder:
        begin = time.process_time()
        request = make_finetune_request(
            train[: job.size],
            text=["text_a", "text_b"],
            label="score",
            method=job.contender,
            seed=None if job.contender == "untrained" else job.draw,
        )
        events = list(finetune_events(Path(folder) / "out", request, device="cpu"))
        seconds = time.process_time() - begin
        pairs = [(str(row["text_a"]), str(row["text_b"])) for row in test]
        predictor = bw.Predictor(Path(folder) / "out", device="cpu")
        predicted = [answer["value"] for answer in predictor.predict(pairs)]
    encoder = bw.load("minilm", device="cpu")
    a, b = (encoder.embed(texts) for texts in zip(*pairs, strict=True))
    cosines = (a * b).sum(1) / ((a * a).sum(1) * (b * b).sum(1)) ** 0.5
    gold = [float(row["score"]) for row in test]
    scores = correlations(gold, predicted)
    of_cosines = correlations(gold, cosines.tolist())
    more, interval = paired_difference(scores["pearson"], of_cosines["pearson"])
    notes = [event.fields["methods"] for event in events if "methods" in event.fields]
    return {
        "pearson": scores["pearson"].value,
        "spearman": scores["spearman"].value,
        "pearson of the cosine": of_cosines["pearson"].value,
        "spearman of the cosine": of_cosines["spearman"].value,
        "difference": [more, *interval],
        "tested": len(test),
        "seconds": seconds,
        "method": events[-1].fields["method"],
        "folds": notes[0] if notes else {},
    }


def table(jobs: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of all cells: the correlations of each contender, and what `auto` took."""
    heads = ["data, pairs, draw", "cosine of MiniLM", *CONTENDERS]
    heads += ["auto takes", "Pearson of auto - cosine of MiniLM"]
    heads.append(f"processor seconds of {', '.join(CONTENDERS)}")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    by_cell = {(j["data"], j["size"], j["draw"], j["contender"]): j for j in jobs}
    draws = sorted({job["draw"] for job in jobs})
    for data, size, draw in itertools.product(FILES, SIZES, draws):
        finished = [by_cell.get((data, size, draw, contender)) for contender in CONTENDERS]
        first = next((job for job in finished if job), None)
        if first is None:
            continue
        row = [f"{data}, {size}, {draw}"]
        row.append(percent(first["pearson of the cosine"], first["spearman of the cosine"]))
        row += [percent(job["pearson"], job["spearman"]) if job else "" for job in finished]
        auto = finished[CONTENDERS.index("auto")]
        row.append(auto["method"] if auto else "")
        row.append(difference(*auto["difference"]) if auto else "")
        row.append(", ".join(f"{job['seconds']:.0f}" if job else "-" for job in finished))
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def difference(mean: float, low: float, high: float) -> str:
    # + 0.0: no "-0.0"
    mean, low, high = (round(100 * value, 1) + 0.0 for value in (mean, low, high))
    return f"{mean:+.1f} ({low:+.1f} to {high:+.1f})"


def percent(pearson: float, spearman: float) -> str:
    return f"{100 * pearson:.1f}, {100 * spearman:.1f}"


if __name__ == "__main__":
    main()
