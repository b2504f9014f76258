"""How soon a fine-tuning is as good: `bertworks finetune` next to transformers' Trainer, on the
CPU.

    python benchmarks/finetuning.py --data GLUE_FOLDER [--tasks SST-2 MRPC] [--seeds 5] [--threads
    N] [--quick]

Both begin with the same model, learn from the same rows of GLUE in memory and answer the official
dev set. Each run is a process of its own; they take turns. The clock runs from the texts to the
last step: tokenizing and loading the model count, imports do not, and while dev is answered (eight
times in an epoch) it stands still. Nothing is saved.

    bertworks      what `bertworks finetune` does: the recipe "stable", automatic precision
    transformers   Trainer with its defaults: 3 epochs of batches of 8, AdamW at 5e-5, linear decay,
                   no warm-up, fp32; padded to the longest of a batch (DataCollatorWithPadding)

Scores are those of the last state; neither side is given its best one. How long it takes to reach a
score is read off the mean curve of all seeds: the first moment at which it is that high. Memory is
the peak of the process, libraries and the answering of dev included; with the same batches on both
sides `results.py --peer` measures it.

The table is written after every pair of runs, and the next time, at the same commit, it continues
there.
"""

import argparse
import json
import os
import random
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from provenance import HERE, confidence_interval, process, provenance, publish, skip_without

CONTENDERS = ("bertworks", "transformers")
ROWS = {"SST-2": 10_000}  # to learn from, the same in all runs; all of them in other tasks
MOMENTS = 8  # in an epoch
QUICK_ROWS = 48


def main() -> None:
    arguments = parse()
    skip_without(arguments.data)
    if arguments.contender:
        print(json.dumps(contend(arguments)))
        return
    for results in compare(arguments):
        shown = table(results)
        if not arguments.quick:
            publish("finetuning", results, shown)
    print(shown)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    data = Path(os.environ.get("BERTWORKS_DATA", "."))
    parser.add_argument(
        "--data", type=Path, default=data / "glue", help="the folder with the folders of GLUE"
    )
    parser.add_argument(
        "--tasks", nargs="+", default=["SST-2", "MRPC"], help="names of its folders"
    )
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--quick", action="store_true", help="does it run? a seed, an epoch, a few rows"
    )
    parser.add_argument("--contender", choices=CONTENDERS, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    return parser.parse_args()


# --- the parent: contenders take turns


def compare(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """All that is known, after every pair of runs."""
    origin = provenance(("torch", "transformers", "accelerate", "tokenizers", "numpy"))
    origin |= {"model": arguments.model, "threads": arguments.threads, "quick": arguments.quick}
    runs = known(origin)
    for seed in range(1 if arguments.quick else arguments.seeds):
        for task in arguments.tasks:
            pairs = runs.setdefault(task, [])
            if len(pairs) == seed:
                pairs.append({name: contended(name, task, seed, arguments) for name in CONTENDERS})
            yield origin | {
                "tasks": {task: summary(pairs) for task, pairs in runs.items() if pairs}
            }


def known(origin: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Of each task the runs, seed after seed, of an earlier time: of this very code, on such a
    machine."""
    path = HERE / "results" / "finetuning.json"
    before = json.loads(path.read_text()) if path.exists() else {}
    same = ("commit", "cpu", "versions", "model", "threads", "quick")
    if origin["commit"].endswith("-dirty") or any(
        before.get(name) != origin[name] for name in same
    ):
        return {}
    return {task: found["runs"] for task, found in before["tasks"].items()}


def contended(name: str, task: str, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    command = [
        "--contender",
        name,
        "--tasks",
        task,
        "--seed",
        str(seed),
        "--data",
        str(arguments.data),
    ]
    command += ["--model", arguments.model, *["--quick"] * arguments.quick]
    found = process(__file__, command, arguments.threads)
    last = found["curve"][-1]
    shown = f"{task:6} seed {seed} {name:12} {last['score']:.4f} in {last['seconds']:5.0f} s"
    print(shown, file=sys.stderr, flush=True)
    return found


def summary(pairs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of each contender its scores, its time, and the time until it is as good as the other was in
    the end."""
    from dataclasses import asdict

    runs = {name: [pair[name] for pair in pairs] for name in CONTENDERS}
    curves = {name: mean_curve([run["curve"] for run in found]) for name, found in runs.items()}
    targets = {name: curve[-1]["score"] for name, curve in curves.items()}
    figures: dict[str, Any] = {}
    for name, found in runs.items():
        ends = [run["curve"][-1] for run in found]
        figures[name] = {
            "score": asdict(confidence_interval([end["score"] for end in ends])),
            "seconds": asdict(confidence_interval([end["seconds"] for end in ends])),
            "steps": ends[0]["steps"],
            "memory_mb": statistics.fmean(run["memory_mb"] for run in found),
            "seconds_to_score_of": {
                other: reached(curves[name], target) for other, target in targets.items()
            },
        }
    ours, theirs = (figures[name]["seconds_to_score_of"]["transformers"] for name in CONTENDERS)
    faster = None if ours is None else theirs / ours
    about = {key: runs["bertworks"][0][key] for key in ("metric", "train", "dev")}
    return {**about, "bertworks_is_faster": faster, "figures": figures, "runs": pairs}


def mean_curve(curves: Sequence[Sequence[dict[str, float]]]) -> list[dict[str, float]]:
    """Seconds and score at each moment, over all seeds."""
    return [
        {name: statistics.fmean(point[name] for point in moment) for name in ("seconds", "score")}
        for moment in zip(*curves, strict=True)
    ]


def reached(curve: Sequence[dict[str, float]], score: float) -> float | None:
    """Seconds until a score; None: never."""
    return next((point["seconds"] for point in curve if point["score"] >= score), None)


def table(results: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in results["versions"].items())
    lines = [
        f"`{results['command']}` at {results['commit']}, {results['time'][:10]}; "
        f"{results['model']} on "
        f"{results['cpu']}, {results['threads']} threads, {' '.join(results['cpu_flags'])}; "
        f"{versions}.",
        "",
        "| | dev score (last state) | seconds in all | to transformers' score | to bertworks' "
        "score | memory MB |",
        "|---|---|---|---|---|---|",
    ]
    for task, found in results["tasks"].items():
        seeds = found["figures"]["bertworks"]["score"]["count"]
        about = f"{found['train']:,} training rows, {found['dev']:,} dev rows, {seeds} seeds"
        lines.append(f"| **{task}**, {found['metric']}: {about} | | | | | |")
        for name, one in found["figures"].items():
            times = [one["seconds_to_score_of"][other] for other in reversed(CONTENDERS)]
            shown = ["never" if seconds is None else f"{seconds:,.0f}" for seconds in times]
            if name == "bertworks" and found["bertworks_is_faster"]:
                shown[0] += f" ({found['bertworks_is_faster']:.1f} x as fast)"
            lines.append(
                f"| {name}, {one['steps']:,} steps | {spread(one['score'], '.2%')} | "
                f"{spread(one['seconds'], ',.0f')} "
                f"| {shown[0]} | {shown[1]} | {one['memory_mb']:,.0f} |"
            )
    return "\n".join(lines)


def spread(found: dict[str, Any], kind: str) -> str:
    """Mean and 95 % interval of the mean."""
    margin = "" if found["margin"] is None else f" ± {format(found['margin'], kind)}"
    return f"{format(found['mean'], kind)}{margin}"


# --- a contender, alone in its process


class Watch:
    """The score of dev over time; its clock stands still while that is found."""

    def __init__(self, score: Callable[[list[str]], float]):
        self.curve: list[dict[str, float]] = []
        self._score, self._begin = score, time.perf_counter()

    @contextmanager
    def _paused(self) -> Iterator[float]:
        begin = time.perf_counter()
        yield begin - self._begin
        self._begin += time.perf_counter() - begin

    def __call__(self, step: int, steps_per_epoch: int, answers: Callable[[], list[str]]) -> None:
        """After every step. answers: of the state so far, to all of dev."""
        if step * MOMENTS >= (len(self.curve) + 1) * steps_per_epoch:
            with self._paused() as seconds:
                score = self._score(answers())
            self.curve.append(
                {
                    "seconds": seconds,
                    "steps": step,
                    "epochs": step / steps_per_epoch,
                    "score": score,
                }
            )


def contend(arguments: argparse.Namespace) -> dict[str, Any]:
    """Everything that both have in common: model, rows, and how answers are scored."""
    from bertworks.checkpoints.resolve import resolve_model
    from bertworks.datasets.schema import items
    from bertworks.evaluation.glue import find_glue_tasks
    from bertworks.tasks.registry import TASKS
    from bertworks.tasks.scores import compute_metrics
    from bertworks.tasks.settings import TaskConfig

    (task,) = arguments.tasks
    (found,) = find_glue_tasks(arguments.data / task)
    rows = {split: list(items(*found.read(split), TASKS)) for split in ("train", "dev")}
    limits = (
        {"train": QUICK_ROWS, "dev": QUICK_ROWS} if arguments.quick else {"train": ROWS.get(task)}
    )
    for split, most in limits.items():
        if most is not None and most < len(rows[split]):
            rows[split] = random.Random(0).sample(rows[split], most)
    metric = found.metrics[0]
    d = TaskConfig(task="classification", labels=tuple(found.labels))
    folder = resolve_model(arguments.model)
    learn = {"bertworks": bertworks, "transformers": transformers}[arguments.contender]
    run = learn(folder, found, rows["train"], rows["dev"], arguments.seed, arguments.quick)
    watch = Watch(
        lambda given: compute_metrics(d, rows["dev"], [{"label": label} for label in given])[metric]
    )
    run(watch)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    return {
        "metric": metric,
        "train": len(rows["train"]),
        "dev": len(rows["dev"]),
        "curve": watch.curve,
        "memory_mb": memory,
    }


Learning = Callable[[Watch], None]  # everything that counts; what was called before it has imported


def bertworks(
    folder: Path, found: Any, rows: list[Any], dev: list[Any], seed: int, quick: bool
) -> Learning:
    import torch

    from bertworks.inference.engine import compute_logits_and_loss
    from bertworks.runs.data_splits import LabelledData
    from bertworks.runs.finetune import make_finetune_request
    from bertworks.runs.finetune_job import FinetuneJob, prepare_finetuning
    from bertworks.tasks.registry import task_of
    from bertworks.training.device import HeapTrimmer, disable_heap_trim
    from bertworks.training.loop import make_optimizer, train

    _, schema = found.read("train")
    overrides = ("epochs=1",) if quick else ()
    request = make_finetune_request(
        found.files["train"], model=folder, seed=seed, overrides=overrides
    )

    def learn(watch: Watch) -> None:
        disable_heap_trim()
        memory = HeapTrimmer()
        work = FinetuneJob(
            prepare_finetuning(request, torch.device("cpu"), data=LabelledData(schema, rows, dev))
        )
        network, _ = work.initial_network()
        settings, batches = work.recipe.optimizer, work.train_batches
        steps = train(
            network,
            make_optimizer(network, settings),
            batches,
            settings,
            work.settings.num_steps,
            precision=work.precision,
            seed=work.recipe.seed,
        )

        def answers() -> list[str]:
            said, _ = compute_logits_and_loss(network, work.dev_units, work.precision)
            decoding = task_of(work.description).decode
            return [
                decoding(encoded, of_one)["label"]
                for encoded, of_one in zip(work.dev, said, strict=True)
            ]

        for step in steps:
            memory.look()
            watch(step.number, batches.steps_per_epoch, answers)

    return learn


def transformers(
    folder: Path, found: Any, rows: list[Any], dev: list[Any], seed: int, quick: bool
) -> Learning:
    import torch
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        TrainerCallback,
        TrainingArguments,
        set_seed,
    )

    labels = found.labels

    def learn(watch: Watch) -> None:
        tokenizer = AutoTokenizer.from_pretrained(folder)

        def encoded(items: Sequence[Any]) -> list[dict[str, Any]]:
            columns = [list(column) for column in zip(*(item.texts for item in items), strict=True)]
            fields = tokenizer(*columns, truncation=True, max_length=512)
            names = list(fields)
            return [
                dict(zip(names, values, strict=True))
                for values in zip(*fields.values(), strict=True)
            ]

        examples = [
            x | {"label": labels.index(y.label)} for x, y in zip(encoded(rows), rows, strict=True)
        ]
        set_seed(seed)
        model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=len(labels))
        collator = DataCollatorWithPadding(tokenizer)
        questions: list[dict[str, Any]] = []

        def answers() -> list[str]:
            """Sorted by length, in batches: it is not what is measured, but it takes its time."""
            questions.extend([] if questions else encoded(dev))
            order = sorted(range(len(questions)), key=lambda n: len(questions[n]["input_ids"]))
            given = [""] * len(questions)
            model.eval()
            for start in range(0, len(order), 64):
                part = order[start : start + 64]
                with torch.no_grad():
                    best = model(**collator([questions[n] for n in part])).logits.argmax(-1)
                for n, label in zip(part, best.tolist(), strict=True):
                    given[n] = labels[label]
            model.train()
            return given

        class Watching(TrainerCallback):
            def on_step_end(self, arguments: Any, state: Any, control: Any, **_: Any) -> None:
                watch(state.global_step, state.max_steps // int(state.num_train_epochs), answers)

        with tempfile.TemporaryDirectory() as scratch:
            settings = TrainingArguments(
                scratch,
                seed=seed,
                use_cpu=True,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                **({"num_train_epochs": 1} if quick else {}),
            )
            Trainer(
                model,
                settings,
                data_collator=collator,
                train_dataset=examples,
                callbacks=[Watching()],
            ).train()

    return learn


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    main()
