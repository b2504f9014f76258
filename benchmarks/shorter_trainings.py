"""What do shorter fine-tunings cost, when the training loss is nearly 0 long before the end?

    python benchmarks/shorter_trainings.py [--data DATA] [--only SST-2 ...] [--draws 2] [--show]
    [--quick]

`finetune --method full` (recipe "stable") of MiniLM, fp32, one thread: with all of its steps; with
half of the epochs; and with `learned_loss=0.1`, which ends it early once its loss has been below
that for a while. The rows are those of few_labels.py (8 and 16 of each class) and of methods.py (8
of each label or 50, 100 and 500 rows), tested on the same rows as there; the differences are paired
by draw. Seconds are those of the processor until the last step, with reading the model, without the
evaluation. SQuAD is left out: its trainings take as long as all others together. Finished trainings
stay in results/shorter_trainings.json and are not run again; the first draws come first.
"""

import argparse
import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import few_labels
import methods
from provenance import HERE, confidence_interval, process, provenance, skip_without, write_between

PAGE = HERE.parent / "docs" / "concepts" / "results.md"
STORE = HERE / "results" / "shorter_trainings.json"
PER_CLASS = "rows of each class"
DATA_SETS = ("SST-2", "CoLA", "MRPC", "STS-B", "wikigold")  # of methods.py
WITHOUT_CLASSES = ("STS-B", "wikigold")
WAYS = ("all", "half", "early")


@dataclass(frozen=True)
class Cell:
    """Rows on which networks are trained.

    kind: what `size` counts: PER_CLASS (few_labels.py), or "rows" (methods.py).
    """

    data: str
    size: int
    kind: str

    @property
    def title(self) -> str:
        """The name in the table."""
        if self.kind == PER_CLASS:
            return f"{self.data}, {self.size} of each class"
        if self.size == methods.FEW:
            return f"{self.data}, {50 if self.data in WITHOUT_CLASSES else 2 * self.size}"
        return f"{self.data}, {self.size}"


CELLS = (
    *(Cell(data, size, "rows") for size in (methods.FEW, *methods.SIZES) for data in DATA_SETS),
    *(Cell(data, size, PER_CLASS) for size in few_labels.SIZES for data in few_labels.CLASSES),
)


@dataclass(frozen=True)
class Job:
    """One training of a cell.

    way: one of WAYS.
    folder: of the data.
    """

    data: str
    size: int
    kind: str
    draw: int
    way: str
    folder: str


def main() -> None:
    if sys.argv[1:2] == ["--job"]:
        print(json.dumps(run(Job(**json.loads(sys.argv[2])))))
        return
    names = sorted({cell.data for cell in CELLS})
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("BERTWORKS_DATA", ".")))
    parser.add_argument("--only", nargs="+", default=names, choices=names)
    parser.add_argument("--draws", type=int, default=2)
    parser.add_argument("--show", action="store_true", help="run nothing, write the table again")
    parser.add_argument(
        "--quick", action="store_true", help="does it run? one draw of one cell; nothing is kept"
    )
    arguments = parser.parse_args()
    skip_without(arguments.data / "glue")
    known: dict[str, Any] = {"jobs": []}
    if STORE.exists() and not arguments.quick:
        known = json.loads(STORE.read_text())
    if not arguments.show:
        run_all(arguments, known)
    if not arguments.quick:
        write_between(PAGE, "shorter-trainings", table(known["jobs"]))
    print(table(known["jobs"]))


def run_all(arguments: argparse.Namespace, known: dict[str, Any]) -> None:
    """Run the trainings that are not finished, the first draw of every cell first."""
    done = {key_of(job) for job in known["jobs"]}
    cells = [cell for cell in CELLS if cell.data in arguments.only]
    draws = range(arguments.draws)
    if arguments.quick:
        cells = [Cell("SST-2", few_labels.SIZES[0], PER_CLASS)]
        draws = range(1)
    for draw in draws:
        for cell in cells:
            if draw and cell.size == max(methods.SIZES):
                continue
            for way in WAYS:
                job = {**asdict(cell), "draw": draw, "way": way, "folder": str(arguments.data)}
                if key_of(job) in done:
                    continue
                figures = process(__file__, ["--job", json.dumps(job)], 1)
                known["jobs"].append({**job, "folder": "", **figures})
                print(json.dumps(known["jobs"][-1]), flush=True)
                if not arguments.quick:
                    content = {**known, "provenance": provenance(("torch", "tokenizers"))}
                    STORE.write_text(json.dumps(content, indent=1) + "\n")


def key_of(job: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what distinguishes a training from others."""
    return tuple(job[name] for name in ("data", "size", "kind", "draw", "way"))


def run(job: Job) -> dict[str, Any]:
    """Return the score on the test rows, the processor seconds and the steps of a training."""
    import torch

    from bertworks.config import dump_recipe
    from bertworks.runs.finetune_job import FinetuneJob, prepare_finetuning
    from bertworks.runs.training_run import TrainingRun
    from bertworks.tasks.registry import task_of
    from bertworks.tasks.scores import row_sums
    from bertworks.training.device import choose_device

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    device = choose_device("cpu")
    with tempfile.TemporaryDirectory(prefix="bertworks-bench-") as name:
        folder = Path(name)
        request = request_of(job, folder)
        if job.way == "early":
            request = replace(request, overrides=("learned_loss=0.1",))
        elif job.way == "half":
            epochs = FinetuneJob(prepare_finetuning(request, device)).recipe.epochs
            request = replace(request, overrides=(f"epochs={max(1, round(epochs / 2))}",))
        begin = time.process_time()
        training = FinetuneJob(prepare_finetuning(request, device))
        whole = training.settings.num_steps
        training.settings = replace(training.settings, evaluate_every=whole)
        steps = 0
        seconds = 0.0
        (folder / "run").mkdir()
        (folder / "run" / "recipe.toml").write_text(dump_recipe(training.recipe))
        for event in TrainingRun(folder / "run", training, device).events():
            if event.kind == "step":
                steps = event.fields["step"]
                seconds = time.process_time() - begin
        task = task_of(training.description)
        logits = training.dev_logits(folder / "run")
        predictions = [task.decode(*row) for row in zip(training.dev, logits, strict=True)]
        items = [example.item for example in training.dev]
        score = row_sums(training.description, items, predictions)[training.metric].value
    return {
        "score": score,
        "metric": training.metric,
        "tested": len(items),
        "rows": len(training.train),
        "seconds": seconds,
        "steps": steps,
    }


def request_of(job: Job, folder: Path) -> Any:
    """Return the fine-tuning of a cell; its files are written into a folder."""
    from bertworks.runs.finetune import make_finetune_request

    options: dict[str, Any] = {
        "method": "full",
        "precision": "fp32",
        "seed": job.draw,
    }
    data = Path(job.folder)
    if job.kind == PER_CLASS:
        rows, test = few_labels.rows_of(job.data, data)
        drawn = few_labels.draw_rows(rows, job.size, job.draw)
        texts = [name for name in drawn[0] if name != "label"]
        return make_finetune_request(drawn, dev=test, text=texts, label="label", **options)
    for _, size, seed, train, dev in methods.files_of(job.data, data, folder, job.draw + 1):
        if (size, seed) == (job.size, job.draw):
            return make_finetune_request(
                train, dev=dev, metric=methods.METRICS.get(job.data), **options
            )
    raise ValueError(f"methods.py has no rows for {job}")


def table(jobs: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of all cells, and a line about all pairs together."""
    by_key = {key_of(job): job for job in jobs}
    lines = [
        "| rows | all steps | half of the epochs | share of time | early end | share of time |",
        "|---|---|---|---|---|---|",
    ]
    differences: dict[str, list[float]] = {way: [] for way in WAYS[1:]}
    seconds: dict[str, list[float]] = {way: [0.0, 0.0] for way in WAYS[1:]}
    for cell in CELLS:
        key = cell.data, cell.size, cell.kind
        whole = [job for job in jobs if key_of(job)[:3] == key and job["way"] == "all"]
        if not whole:
            continue
        line = f"| {cell.title} | {100 * sum(job['score'] for job in whole) / len(whole):.1f} |"
        for way in WAYS[1:]:
            pairs = [
                (job, by_key[*key, job["draw"], way])
                for job in whole
                if (*key, job["draw"], way) in by_key
            ]
            of_cell = [100 * (shorter["score"] - job["score"]) for job, shorter in pairs]
            times = [sum(pair[n]["seconds"] for pair in pairs) for n in (0, 1)]
            differences[way] += of_cell
            seconds[way] = [total + time for total, time in zip(seconds[way], times, strict=True)]
            shown = ", ".join(f"{difference:+.1f}" for difference in of_cell)
            line += f" {shown} | {times[1] / times[0]:.2f} |" if pairs else " | |"
        if not line.endswith("| | |"):
            lines.append(line)
    summaries = [
        f"{name}: {_interval(differences[way])} points in {len(differences[way])} trainings, "
        f"{seconds[way][1] / seconds[way][0]:.2f} of the time"
        for way, name in (("half", "Half of the epochs"), ("early", "Early end"))
        if differences[way]
    ]
    return "\n".join([*lines, "", f"{'. '.join(summaries)}."])


def _interval(differences: Sequence[float]) -> str:
    """Return a mean difference and its 95 % interval in words."""
    interval = confidence_interval(differences)
    text = f"{interval.mean:+.1f}"
    if interval.margin is not None:
        low = interval.mean - interval.margin
        high = interval.mean + interval.margin
        text += f" ({low:+.1f} to {high:+.1f})"
    return text


if __name__ == "__main__":
    main()
