"""Cross-validation of few rows: predictions by models that did not see them, and the choice of a method.

Each of the first EVALUATED parts of the rows is predicted by a model of the other parts. The final model is trained on
all rows, with the method that is best on these predictions. The score that is reported chose nothing: what is predicted
for a part comes from the method that is best on the other parts.
"""

import shutil
from collections.abc import Generator
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertworks.config import dump_recipe
from bertworks.events import Event
from bertworks.inference.decoding import Decoder, Logits
from bertworks.io.atomic_write import write_text
from bertworks.io.binary_files import is_sealed, sealing
from bertworks.runs.data_splits import EVALUATED, PARTS, Method, methods_of
from bertworks.runs.finetune_job import FinetuneJob
from bertworks.runs.task_metrics import row_sums
from bertworks.runs.training_run import TrainingRun

FOLDER, _KEY = "folds", "logits"  # a folder of a run, until it is finished; what its sealed files hold


def compared_methods(job: FinetuneJob) -> tuple[Method, ...]:
    """The methods that are compared for a job; one: there is no choice."""
    if job.method != "auto":
        return (job.method,)
    return methods_of(job.data.schema) if job.data.parts and not job.recipe.lstm_units else ("full",)


def trainings(job: FinetuneJob) -> float:
    """The time of the whole job in trainings of the network on all rows."""
    methods = [method for method in compared_methods(job) if method != "frozen"]
    validates = job.data.is_validated or len(compared_methods(job)) > 1
    return len(methods[:1]) + len(methods) * validates * EVALUATED * (PARTS - 1) / PARTS


def choose_method(job: FinetuneJob, folder: Path) -> Generator[Event, None, FinetuneJob]:
    """The job of the method that is used, with the logits of its dev rows if they come from a cross-validation.

    Args:
        job: of the method "auto", or of another one, which is then used.
        folder: of the run.
    """
    methods = compared_methods(job)
    if len(methods) == 1 and not job.data.is_validated:
        return job.variant(methods[0])
    logits: dict[Method, list[Logits]] = {}
    jobs = {method: job.variant(method) for method in methods}
    for method, one in jobs.items():
        logits[method] = yield from _validate(one, folder / FOLDER)
    sizes = [len(part) for part in job.data.parts[:EVALUATED]]
    scores = {method: _scores(one, logits[method], sizes) for method, one in jobs.items()}
    totals = {method: float(parts.sum()) for method, parts in scores.items()}
    best = max(methods, key=totals.__getitem__)
    if len(methods) > 1:
        shown = ", ".join(
            f"{method} {job.describe({job.metric: total / len(sizes)})}" for method, total in totals.items()
        )
        figures = {"methods": {method: total / len(sizes) for method, total in totals.items()}, "method": best}
        yield Event("note", f"method: {best}, the best of {len(methods)} on rows that it did not see: {shown}", figures)
    chosen = jobs[best]
    if job.data.is_validated:
        ends = np.cumsum([0, *sizes])
        chosen.validated = [
            one
            for part in range(len(sizes))
            for one in logits[max(methods, key=lambda m: totals[m] - scores[m][part])][ends[part] : ends[part + 1]]
        ]
    return chosen


def _validate(job: FinetuneJob, folder: Path) -> Generator[Event, None, list[Logits]]:
    """The logits of the rows of the first EVALUATED parts, in order. Finished folds are files in the folder."""
    if job.method == "frozen":
        return job.fit()[1]
    found: list[Logits] = []
    for number in range(EVALUATED):
        path, run = folder / f"{job.method}-{number}.npz", folder / f"{job.method}-{number}"
        if not is_sealed(path, _KEY):
            fold = job.fold(number)
            run.mkdir(parents=True, exist_ok=True)
            write_text(run / "recipe.toml", dump_recipe(fold.recipe))
            text = f"cross-validation, method {job.method}: fold {number + 1} of {EVALUATED}"
            yield Event("stage", text, {"stage": run.name})
            for event in TrainingRun(run, fold, job.device).events():
                if event.kind != "done":
                    yield event
            with sealing(path, _KEY) as temporary, temporary.open("wb") as file:
                np.savez(file, *fold.dev_logits(run, job.device))
            shutil.rmtree(run)
        with np.load(path) as arrays:
            found += [arrays[f"arr_{row}"] for row in range(len(job.data.parts[number]))]
    return found


def _scores(job: FinetuneJob, logits: list[Logits], sizes: list[int]) -> NDArray[np.float64]:
    """The metric of each part."""
    rows = [job.train[n] for part in job.data.parts[:EVALUATED] for n in part]
    answers = list(map(Decoder(job.description), rows, logits))
    items, ends = [one.item for one in rows], np.cumsum([0, *sizes])
    parts = [slice(*pair) for pair in pairwise(ends.tolist())]
    return np.array([row_sums(job.description, items[part], answers[part], job.metric).value for part in parts])
