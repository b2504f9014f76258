"""Scores of fine-tunings on real data, task after task and seed after seed, for
docs/concepts/results.md.

    python benchmarks/results.py [--only RTE MRPC ...] [--seeds 3] [--threads N] [--show] [--quick]
    python benchmarks/results.py --peer [--only ...]      the same with transformers' Trainer

Every line is one command of bertworks, run as a user types it; results.md says which. What was run
stays in results/tasks.json and is not run again, and a run that was stopped (Ctrl-C, SIGTERM) goes
on at the same commit: a table that takes days can be made in many sittings. What fails is named,
and the next row is run. Nothing is averaged
silently: the table says how many seeds each row has. The cost of a run is the processor time of its
whole process, evaluation and writing included, so that it may run next to other programs (`nice`).

`--peer` trains the same model on the same rows in Trainer with the very same settings (3 epochs of
batches of 16, one of SQuAD, rate 5e-5 after a warm-up of 10 %, decay 0.01, eps 1e-6, clipping at
1), and ours with them too: equal settings should give equal scores. Both keep the state that was
best on dev, evaluated after each epoch. The difference is paired by seed, and by dev row where the
scores of 1,000 resamples of the rows are stored for both: those of new runs are in
results/resamples.jsonl.gz.
"""

import argparse
import gzip
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from provenance import HERE, commit, confidence_interval, provenance, skip_without, write_between
from rows import EQUAL, EQUAL_ROWS, ROWS, Row

PAGE = HERE.parent / "docs" / "concepts" / "results.md"
STORE = HERE / "results" / "tasks.json"
RESAMPLES = HERE / "results" / "resamples.jsonl.gz"
WORK = HERE.parent / "build" / "results"  # of the runs that are not over
PEERS = ("equal", "transformers")  # the two kinds of runs whose difference is reported
QUICK_ROWS = 32


def main() -> None:
    arguments = parse()
    skip_without(arguments.data / "glue")
    if arguments.trainer:
        from trainer import train_with_transformers

        print(
            json.dumps(train_with_transformers(arguments.trainer, arguments.seed, arguments.data))
        )
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    rows = {row.name: row for row in (EQUAL_ROWS if arguments.peer else ROWS)}
    if unknown := set(arguments.only) - set(rows):
        raise SystemExit(f"there is no row {sorted(unknown)[0]!r}; there are {', '.join(rows)}")
    wanted = [rows[name] for name in arguments.only or rows]
    if arguments.quick:
        with tempfile.TemporaryDirectory(prefix="bertworks-results-") as scratch:
            few(arguments.data, Path(scratch))
            arguments.data, arguments.seeds = Path(scratch), 1
            failed = run_all(wanted, arguments)
    else:
        failed = [] if arguments.show else run_all(wanted, arguments)
        known = read_store()
        write_between(PAGE, "scores", scores(known))
        write_between(PAGE, "equal", equal(known))
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    data = Path(os.environ.get("BERTWORKS_DATA", "."))
    parser.add_argument(
        "--data", type=Path, default=data, help="the folder with glue/, squad/, ner/ and others"
    )
    parser.add_argument("--only", nargs="+", default=[], help="rows of the table, in this order")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--japanese", type=Path, help="a model for the Japanese rows")
    parser.add_argument("--korean", type=Path, help="a model for the Korean rows")
    parser.add_argument(
        "--peer", action="store_true", help="next to transformers' Trainer, with equal settings"
    )
    parser.add_argument("--show", action="store_true", help="run nothing, write the tables again")
    parser.add_argument(
        "--quick", action="store_true", help="does it run? a seed, a few rows; nothing is kept"
    )
    parser.add_argument("--trainer", help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    return parser.parse_args()


def few(source: Path, target: Path) -> None:
    """The same files with a few rows each."""
    for folder in ("glue", "squad", "ner", "multiple-choice", "ja", "ko"):
        for path in filter(Path.is_file, (source / folder).rglob("*")):
            opened = gzip.open if path.suffix == ".gz" else open
            with opened(path, "rt", encoding="utf-8", newline="") as file:
                text = file.read()
            lines = [line + "\n" for line in text.rstrip("\n").split("\n")]
            if re.search(r"\.json(\.gz)?$", path.name):
                whole = json.loads(text)
                if isinstance(whole, list):
                    whole = whole[:QUICK_ROWS]
                elif "data" in whole:  # SQuAD
                    (*_, article) = whole["data"]
                    whole["data"] = [article | {"paragraphs": article["paragraphs"][:2]}]
                text = json.dumps(whole)
            elif folder == "ner":
                text = "".join(lines[: len(lines) // 10])
            else:  # from everywhere, for the sake of the labels
                text = "".join([*lines[:1], *lines[1 :: max(1, len(lines) // QUICK_ROWS)]])
            kept = target / path.relative_to(source)
            kept.parent.mkdir(parents=True, exist_ok=True)
            with (gzip.open if path.suffix == ".gz" else open)(
                kept, "wt", encoding="utf-8", newline=""
            ) as file:
                file.write(text)


# --- one run, unless it is known


def run_all(rows: Sequence[Row], arguments: argparse.Namespace) -> list[str]:
    """Seed after seed; what failed."""
    failed = []
    for seed in range(arguments.seeds):
        for row in rows:
            for kind in PEERS if arguments.peer else ("ours",):
                if not once(kind, row, seed, arguments):
                    failed.append(f"{row.name} ({kind}), seed {seed}")
    return failed


def read_store() -> dict[str, dict[str, list[dict[str, Any]]]]:
    empty: dict[str, dict[str, list[dict[str, Any]]]] = {
        "ours": {},
        "equal": {},
        "transformers": {},
    }
    return empty | (json.loads(STORE.read_text()) if STORE.exists() else {})


def once(kind: str, row: Row, seed: int, arguments: argparse.Namespace) -> bool:
    """Runs it, unless it is known. Did it succeed?"""
    if not arguments.quick and any(
        one["seed"] == seed for one in read_store()[kind].get(row.name, [])
    ):
        return True
    made = {"JA": arguments.japanese, "KO": arguments.korean}
    models = {
        name: str(model.resolve()) if model else "minilm" * arguments.quick
        for name, model in made.items()
    }
    if missing := [
        name for name, model in models.items() if name in row.command.split() and not model
    ]:
        print(f"{row.name}: name a model for {missing[0]}", file=sys.stderr)
        return True
    data = some_of(row.most, arguments.data) if row.most else arguments.data
    code = commit()
    folder = WORK / re.sub(r"\W+", "-", f"{code} {kind} {row.name} {seed}")
    if kind == "transformers" or code.endswith("-dirty") or arguments.quick:
        shutil.rmtree(folder, ignore_errors=True)  # only ours goes on where it was
    if kind == "transformers":
        words = [str(HERE / "results.py"), "--trainer", row.name, "--data", str(data)]
    else:
        words = [
            str(Path(sys.executable).with_name("bertworks")),
            *(models.get(w, w) for w in row.command.split()),
        ]
        settings = (*EQUAL, *row.settings) if kind == "equal" else ("epochs=1",) * arguments.quick
        words += [word for setting in settings for word in ("--set", setting)]
        words += ["--output", str(folder / "out"), "--json"]
    found = run([sys.executable, *words, "--seed", str(seed)], folder, data, arguments.threads)
    if not found:
        print(
            f"{row.name} ({kind}), seed {seed}: failed, see {folder}/log",
            file=sys.stderr,
            flush=True,
        )
        return False
    if kind != "transformers" and row.group == "GLUE":
        found |= of_glue(found)
    resamples = (
        found.get("resamples") if kind == "transformers" else stored_resamples(folder / "out")
    )
    names = ("split", "train", "figures", "seconds", "step", "processor_seconds", "memory_mb")
    found = {name: found[name] for name in names if name in found}
    found |= {"seed": seed, "threads": arguments.threads, "commit": code}
    facts = provenance(())  # processors of one name may differ in what decides over the precision
    found |= {
        "time": facts["time"],
        "cpu": facts["cpu"] + ", bf16" * ("avx512_bf16" in facts["cpu_flags"]),
    }
    if not arguments.quick:
        keep(kind, row.name, found)
        if kind in PEERS:
            keep_resamples(kind, row.name, seed, resamples)
    shutil.rmtree(folder)
    figures = ", ".join(f"{name} {found['figures'][name]:.4f}" for name in row.metrics)
    cost = f"{found['processor_seconds']:.0f} processor seconds, {found['memory_mb']:.0f} MB"
    print(f"{row.name} ({kind}), seed {seed}: {figures}; {cost}", file=sys.stderr, flush=True)
    return True


def some_of(most: int, data: Path) -> Path:
    """The same files of SST-2 with this number of training rows: those that finetuning.py takes."""
    from bertworks.io.atomic_write import write_text

    source, target = data / "glue" / "SST-2", WORK / f"{most}-rows" / "glue" / "SST-2"
    target.mkdir(parents=True, exist_ok=True)
    for path in source.glob("*.tsv"):
        first, *lines = path.read_text(encoding="utf-8").rstrip("\n").split("\n")
        if path.stem == "train":
            lines = random.Random(0).sample(lines, min(most, len(lines)))
        write_text(target / path.name, "\n".join([first, *lines, ""]))
    return target.parents[1]


def keep(kind: str, name: str, found: dict[str, Any]) -> None:
    from bertworks.io.atomic_write import write_text

    known = read_store()  # another process may have written meanwhile
    known[kind].setdefault(name, []).append(found)
    known[kind][name].sort(key=lambda one: one["seed"])
    write_text(STORE, json.dumps(known, indent=1) + "\n")


def stored_resamples(output: Path) -> list[float]:
    """Return the score of 1,000 resamples of the dev rows, from the result.json of the one
    fine-tuning in a folder.

    `evaluate glue` has the same file twice: in the folder of the seed, and copied to the folder of
    the task.
    """
    result = min(output.rglob("result.json"), key=lambda path: len(path.parts))
    resamples: list[float] = json.loads(result.read_text(encoding="utf-8"))["resamples"]
    return resamples


# (kind, name of the row, seed) -> score of each resample
Resamples = dict[tuple[str, str, int], list[float]]


def read_resamples() -> Resamples:
    """Return the stored scores of resamples, which only the runs of `PEERS` have."""
    if not RESAMPLES.exists():
        return {}
    lines = map(json.loads, gzip.decompress(RESAMPLES.read_bytes()).splitlines())
    return {(line["kind"], line["row"], line["seed"]): line["resamples"] for line in lines}


def keep_resamples(kind: str, name: str, seed: int, resamples: Sequence[float]) -> None:
    """Add the scores of the resamples of a run to those that are stored."""
    every = read_resamples() | {(kind, name, seed): list(resamples)}
    lines = []
    for (run_kind, row, run_seed), scores in sorted(every.items()):
        lines.append(
            json.dumps({"kind": run_kind, "row": row, "seed": run_seed, "resamples": scores}) + "\n"
        )
    RESAMPLES.write_bytes(gzip.compress("".join(lines).encode(), mtime=0))


def run(command: Sequence[str], folder: Path, data: Path, threads: int) -> dict[str, Any] | None:
    """What a command says at last, its processor time and its largest memory, all pieces together;
    None: it failed."""
    folder.mkdir(parents=True, exist_ok=True)
    printed, spent = folder / "printed.jsonl", folder / "spent.json"
    environment = os.environ | {"PYTHONPATH": str(HERE.parent), "HF_HUB_OFFLINE": "1"}
    environment |= {name: str(threads) for name in ("OMP_NUM_THREADS", "RAYON_NUM_THREADS")}
    with printed.open("w") as output, (folder / "log").open("a") as log:
        child = subprocess.Popen(command, stdout=output, stderr=log, env=environment, cwd=data)
    try:
        stopped, (_, status, usage) = False, os.wait4(child.pid, 0)
    except KeyboardInterrupt:
        child.terminate()  # it saves
        stopped, (_, status, usage) = True, os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    before = (
        json.loads(spent.read_text())
        if spent.exists()
        else {"processor_seconds": 0.0, "memory_mb": 0.0}
    )
    took = {
        "processor_seconds": before["processor_seconds"] + usage.ru_utime + usage.ru_stime,
        "memory_mb": max(before["memory_mb"], usage.ru_maxrss * 1024 / 1e6),
    }
    spent.write_text(json.dumps(took))
    if stopped:
        raise SystemExit(f"stopped: {folder}")
    if child.returncode:
        return None
    last: dict[str, Any] = json.loads(printed.read_text().splitlines()[-1])
    return last | took


def of_glue(last: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of one seed of one task."""
    (column, *_) = last["columns"].values()
    about = {name: column[name] for name in ("split", "train")}
    return about | {"figures": column["seeds"][0], "seconds": column["seconds"][0]}


# --- the tables


def spread(runs: Sequence[Mapping[str, Any]], metric: str) -> str:
    """Mean and 95 % interval of the mean, in per cent."""
    found = confidence_interval([100 * run["figures"][metric] for run in runs])
    return f"{found.mean:.1f}" + (f" ± {found.margin:.1f}" if found.margin is not None else "")


def scores(known: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]) -> str:
    lines = [
        "| data | command | seeds | dev score, % | processor minutes |",
        "|---|---|---|---|---|",
    ]
    machines, group = letters(known), ""
    for row in ROWS:
        runs = known["ours"].get(row.name)
        if not runs:
            continue
        if row.group != group:
            group = row.group
            lines.append(f"| **{group}** | | | | |")
        shown = ", ".join(
            f"{metric.replace('_', ' ')} {spread(runs, metric)}" for metric in row.metrics
        )
        about = "".join(
            f" ({runs[0][name]})"
            for name in ("train",)
            if runs[0].get(name, "").startswith("train-")
        )
        about += (
            f", evaluated on {runs[0]['split']}" if runs[0].get("split", "dev") != "dev" else ""
        )
        lines.append(
            f"| {row.name}{about} | `{row.command}` | {len(runs)} | {shown} | "
            f"{costs(runs, machines)} |"
        )
    if missing := [row.name for row in ROWS if row.name not in known["ours"]]:
        lines += ["", f"Not run yet: {', '.join(missing)}."]
    commits = ", ".join(sorted({run["commit"] for runs in known["ours"].values() for run in runs}))
    where = "; ".join(f"{letter}: {cpu}" for cpu, letter in machines.items())
    return "\n".join([*lines, "", f"At {commits or 'no commit yet'}. Processors: {where}."])


def letters(known: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]) -> dict[str, str]:
    """The processors, each with a letter."""
    every = [run["cpu"] for rows in known.values() for runs in rows.values() for run in runs]
    return dict(zip(dict.fromkeys(every), "ABCDEFGH", strict=False))


def costs(runs: Sequence[Mapping[str, Any]], machines: Mapping[str, str]) -> str:
    """Minutes of each kind of processor that was used, on average."""
    by_cpu = {cpu: [run for run in runs if run["cpu"] == cpu] for cpu in machines}
    return ", ".join(f"{machines[cpu]} {minutes(some):.1f}" for cpu, some in by_cpu.items() if some)


def minutes(runs: Sequence[Mapping[str, Any]]) -> float:
    """Of a processor, on average."""
    return statistics.fmean(run["processor_seconds"] for run in runs) / 60


def equal(known: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]) -> str:
    """Return the table of bertworks and transformers with equal settings."""
    lines = [
        "| data | seeds | bertworks | transformers | difference | paired by | processor minutes | "
        "peak memory, MB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    machines = letters(known)
    resamples = read_resamples()
    for row in EQUAL_ROWS:
        mine, theirs = (known[kind].get(row.name) for kind in PEERS)
        if not mine or not theirs:
            continue
        metric = row.metrics[0]
        difference, pairing = paired_difference(row, mine, theirs, resamples)
        both = (
            [[run for run in runs if run["cpu"] == cpu] for runs in (mine, theirs)]
            for cpu in machines
        )
        pairs = [(machines[x[0]["cpu"]], minutes(x), minutes(y)) for x, y in both if x and y]
        took = "; ".join(f"{letter} {x:.1f}, {y:.1f}: {y / x:.1f} x" for letter, x, y in pairs)
        memory = ", ".join(
            f"{statistics.fmean(run['memory_mb'] for run in runs):,.0f}" for runs in (mine, theirs)
        )
        lines.append(
            f"| {row.name}, {metric.replace('_', ' ')} | {len(mine)}, {len(theirs)} | "
            f"{spread(mine, metric)} "
            f"| {spread(theirs, metric)} | {difference} | {pairing} | {took} | {memory} |"
        )
    return "\n".join(lines)


def paired_difference(
    row: Row,
    runs: Sequence[Mapping[str, Any]],
    peer_runs: Sequence[Mapping[str, Any]],
    resamples: Resamples,
) -> tuple[str, str]:
    """Return bertworks minus transformers in per cent with its 95 % interval, and by what it is
    paired.

    The difference is taken within each seed that both have. Where all these runs have stored
    resamples, which are of the same dev rows for both, the interval is over rows and seeds;
    otherwise it is over the seeds alone (Student's t).

    Args:
        runs, peer_runs: stored runs of bertworks and of transformers.
    """
    from bertworks.metrics.intervals import interval_of_mean

    metric = row.metrics[0]
    peer_scores = {run["seed"]: run["figures"][metric] for run in peer_runs}
    scores = {run["seed"]: run["figures"][metric] for run in runs if run["seed"] in peer_scores}
    seeds = sorted(scores)
    differences = [100 * (scores[seed] - peer_scores[seed]) for seed in seeds]
    if all((kind, row.name, seed) in resamples for kind in PEERS for seed in seeds):
        samples = []
        for seed in seeds:
            first, second = (np.array(resamples[kind, row.name, seed]) for kind in PEERS)
            samples.append(100 * (first - second))
        low, high = interval_of_mean(differences, samples)
        return f"{statistics.fmean(differences):+.1f} ({low:+.1f} to {high:+.1f})", "seed and row"
    estimate = confidence_interval(differences)
    if estimate.margin is None:
        return f"{estimate.mean:+.1f} (one seed: no interval)", "seed"
    low, high = estimate.mean - estimate.margin, estimate.mean + estimate.margin
    return f"{estimate.mean:+.1f} ({low:+.1f} to {high:+.1f})", "seed"


if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parent))
    main()
