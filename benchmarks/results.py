"""Scores of fine-tunings on real data, task after task and seed after seed, for docs/results.md.

    python benchmarks/results.py [--only RTE MRPC ...] [--seeds 3] [--threads N] [--show]
    python benchmarks/results.py --peer [--only ...]      the same with transformers' Trainer, where that has the task

Every line is one command of bertworks, run as a user types it; results.md says which. What was run stays in
results/tasks.json and is not run again: a table that takes days can be made in many sittings. Nothing is
averaged silently: the table says how many seeds each row has.

`--peer` trains the same model on the same rows in Trainer with the very same settings (3 epochs of batches of 16, rate
5e-5 after a warm-up of 10 %, decay 0.01, eps 1e-6, clipping at 1), and ours with them too: equal settings should give
equal scores. Both keep the state that was best on dev, judged after each epoch.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provenance import HERE, commit, process, provenance, write_between

PAGE = HERE.parent / "docs" / "results.md"
STORE = HERE / "results" / "tasks.json"
DATA = Path(os.environ.get("BERTWORKS_DATA", "."))
EQUAL = (
    "epochs=3",
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


def glue(name: str, *metrics: str) -> Row:
    return Row(name, "GLUE", f"evaluate glue --data glue --task {name}", metrics)


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
    Row(
        "SQuAD 1.1 (8,200 questions to learn from)", "Questions",
        "finetune squad/train-v1.1-sample.json.gz --dev squad/dev-v1.1.json.gz", ("f1", "exact"),
    ),
    Row(
        "WNUT-17", "Entities", "finetune ner/wnut17/wnut17train.conll --dev ner/wnut17/emerging.dev.conll",
        ("f1", "precision", "recall"),
    ),
    Row(
        "WNUT-17, documents around", "Entities",
        "finetune ner/wnut17/wnut17train.conll --dev ner/wnut17/emerging.dev.conll --set document_context=true",
        ("f1", "precision", "recall"),
    ),
    Row("wikigold (a tenth set aside)", "Entities", "finetune ner/wikigold/wikigold.conll.txt", ("f1",)),
    Row(
        "wikigold, frozen encoder", "Entities", "finetune ner/wikigold/wikigold.conll.txt --recipe features", ("f1",)
    ),
    Row("CODAH", "Choices", "finetune multiple-choice/codah", ("accuracy",)),
    Row("JSTS", "Japanese", "finetune ja/jsts --model JA", ("spearman", "pearson")),
    Row("JCommonsenseQA", "Japanese", "finetune ja/jcommonsenseqa --model JA", ("accuracy",)),
    Row("Wikipedia NER (a tenth set aside)", "Japanese", "finetune ja/ner-wikipedia/ner.json.gz --model JA", ("f1",)),
    Row("JaQuAD", "Japanese", "finetune ja/jaquad --model JA --set epochs=1", ("f1", "exact")),
    Row(
        "NSMC", "Korean",
        "finetune ko/nsmc/ratings_train.txt.gz --dev ko/nsmc/ratings_test.txt.gz --model KO --set epochs=1",
        ("accuracy",),
    ),
    Row(
        "KorSTS", "Korean", "finetune ko/korsts/sts-train.tsv --dev ko/korsts/sts-dev.tsv --model KO",
        ("spearman", "pearson"),
    ),
)  # fmt: skip
PEERS = ("CoLA", "SST-2", "MRPC", "STS-B", "RTE", "WNUT-17", "SQuAD 1.1 (8,200 questions to learn from)")


def main() -> None:
    arguments = parse()
    if arguments.trainer:
        from trainer import train_with_transformers

        print(json.dumps(train_with_transformers(arguments.trainer, arguments.seed, DATA)))
        return
    rows = [row for row in ROWS if not arguments.only or row.name in arguments.only]
    if unknown := set(arguments.only) - {row.name for row in ROWS}:
        raise SystemExit(f"there is no row {sorted(unknown)[0]!r}; there are {', '.join(row.name for row in ROWS)}")
    for seed in range(0 if arguments.show else arguments.seeds):
        for row in rows:
            if arguments.peer and row.name in PEERS:
                once("equal", row, seed, arguments, lambda row, seed, a: ours(row, seed, a, EQUAL))
                once("transformers", row, seed, arguments, theirs)
            elif not arguments.peer:
                once("ours", row, seed, arguments, ours)
    known = read_store()
    write_between(PAGE, "scores", scores(known))
    write_between(PAGE, "equal", equal(known))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", default=[], help="rows of the table")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--japanese", type=Path, help="a model for the Japanese rows")
    parser.add_argument("--korean", type=Path, help="a model for the Korean rows")
    parser.add_argument("--peer", action="store_true", help="beside transformers' Trainer, with equal settings")
    parser.add_argument("--show", action="store_true", help="run nothing, write the tables anew")
    parser.add_argument("--trainer", help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    return parser.parse_args()


# --- one run, unless it is known


def read_store() -> dict[str, dict[str, list[dict[str, Any]]]]:
    empty: dict[str, dict[str, list[dict[str, Any]]]] = {"ours": {}, "equal": {}, "transformers": {}}
    return empty | (json.loads(STORE.read_text()) if STORE.exists() else {})


def once(kind: str, row: Row, seed: int, arguments: argparse.Namespace, run: Any) -> None:
    runs = read_store()[kind].get(row.name, [])
    if any(one["seed"] == seed for one in runs):
        return
    if missing := [name for name, model in models(arguments).items() if name in row.command.split() and not model]:
        print(f"{row.name}: name a model for {missing[0]}", file=sys.stderr)
        return
    found = run(row, seed, arguments)
    found |= {"seed": seed, "threads": arguments.threads, "commit": commit()}
    found |= {name: provenance(())[name] for name in ("time", "cpu")}
    known = read_store()  # another process may have written meanwhile
    known[kind].setdefault(row.name, []).append(found)
    known[kind][row.name].sort(key=lambda one: one["seed"])
    STORE.write_text(json.dumps(known, indent=1) + "\n")
    figures = ", ".join(f"{name} {found['figures'][name]:.4f}" for name in row.metrics)
    print(f"{row.name} ({kind}), seed {seed}: {figures} in {found['seconds']:.0f} s", file=sys.stderr, flush=True)


def models(arguments: argparse.Namespace) -> dict[str, Path | None]:
    """What stands in the commands for models that were made here."""
    return {"JA": arguments.japanese, "KO": arguments.korean}


def ours(row: Row, seed: int, arguments: argparse.Namespace, settings: Sequence[str] = ()) -> dict[str, Any]:
    """What the command says when it is done."""
    words = [str(models(arguments).get(word, word)) for word in row.command.split()]
    for setting in settings:
        words += ["--set", setting]
    with tempfile.TemporaryDirectory(prefix="bertworks-results-") as folder:
        words += ["--seed", str(seed), "--output", folder + "/out", "--json"]
        command = [str(Path(sys.executable).with_name("bertworks")), *words]
        environment = os.environ | {"OMP_NUM_THREADS": str(arguments.threads)}
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment, cwd=DATA
        )
    last = json.loads(done.stdout.splitlines()[-1]) if done.stdout else {}
    if done.returncode:
        raise SystemExit(f"failed: {' '.join(command)}")
    return of_glue(last) if row.group == "GLUE" else {name: last[name] for name in ("figures", "seconds", "step")}


def of_glue(last: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of one seed of one task."""
    (column, *_) = last["columns"].values()
    about = {name: column[name] for name in ("split", "train")}
    return about | {"figures": column["seeds"][0], "seconds": column["seconds"][0]}


def theirs(row: Row, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    return process(str(HERE / "results.py"), ["--trainer", row.name, "--seed", str(seed)], arguments.threads)


# --- the tables


def spread(runs: Sequence[Mapping[str, Any]], metric: str) -> str:
    """Mean and 95 % interval of the mean, in per cent."""
    from bertworks.learn.scores import interval

    found = interval([100 * run["figures"][metric] for run in runs])
    return f"{found.mean:.1f}" + (f" ± {found.margin:.1f}" if found.margin is not None else "")


def scores(known: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]) -> str:
    lines = ["| data | command | seeds | score on dev, in per cent | minutes |", "|---|---|---|---|---|"]
    group = ""
    for row in ROWS:
        runs = known["ours"].get(row.name)
        if not runs:
            continue
        if row.group != group:
            group = row.group
            lines.append(f"| **{group}** | | | | |")
        shown = ", ".join(f"{metric.replace('_', ' ')} {spread(runs, metric)}" for metric in row.metrics)
        about = "".join(f" ({runs[0][name]})" for name in ("train",) if runs[0].get(name, "").startswith("train-"))
        about += f", judged on {runs[0]['split']}" if runs[0].get("split", "dev") != "dev" else ""
        minutes = statistics.fmean(run["seconds"] for run in runs) / 60
        lines.append(f"| {row.name}{about} | `{row.command}` | {len(runs)} | {shown} | {minutes:.1f} |")
    if missing := [row.name for row in ROWS if row.name not in known["ours"]]:
        lines += ["", f"Not run yet: {', '.join(missing)}."]
    commits = sorted({run["commit"] for runs in known["ours"].values() for run in runs})
    return "\n".join([*lines, "", f"At {', '.join(commits) or 'no commit yet'}."])


def equal(known: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]) -> str:
    lines = ["| data | seeds | bertworks | transformers | minutes | |", "|---|---|---|---|---|---|"]
    for row in ROWS:
        pair = [known[kind].get(row.name) for kind in ("equal", "transformers")]
        if not all(pair):
            continue
        mine, others = pair
        metric = row.metrics[0]
        minutes = [statistics.fmean(run["seconds"] for run in runs) / 60 for runs in (mine, others)]
        lines.append(
            f"| {row.name}, {metric.replace('_', ' ')} | {len(mine)}, {len(others)} | {spread(mine, metric)} "
            f"| {spread(others, metric)} | {minutes[0]:.1f}, {minutes[1]:.1f} | {minutes[1] / minutes[0]:.1f} x |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parent))
    main()
