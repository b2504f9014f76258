"""Cross-validate few rows.

Predictions are by models that did not see them; a method is chosen by them.

Each of the first EVALUATED parts of the rows is predicted by a model of the other parts. The final
model is trained on all rows, with the method that is chosen by these predictions: the first one of
`methods_of`, unless another one is clearly better. The score that is reported chose nothing: what
is predicted for a part comes from the method that the other parts choose.
"""

import shutil
from collections.abc import Generator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertworks.config import dump_recipe
from bertworks.events import Event, forward_events
from bertworks.io.atomic_write import is_sealed, sealing, write_text
from bertworks.metrics.intervals import resampled
from bertworks.runs.data_splits import EVALUATED, PARTS
from bertworks.runs.finetune_job import FinetuneJob
from bertworks.runs.options import Method
from bertworks.runs.training_run import TrainingRun
from bertworks.tasks.registry import task_of
from bertworks.tasks.scores import groups_of, row_sums
from bertworks.tasks.task import Logits

# a folder of a run, until it is finished; what its sealed files hold
FOLDER = "folds"
_KEY = "logits"
# standard errors of a difference: few rows must not choose by chance (docs/experiments, 2026-11-26)
CLEARLY = 2.0


def trainings(job: FinetuneJob) -> float:
    """Return the time of the whole job, in trainings of this job.

    It ends with the method that takes longest.
    """
    methods = job.compared_methods
    parts = [
        job.variant(method).settings.num_steps / job.settings.num_steps
        for method in methods
        if method != "frozen"
    ]
    validates = job.data.is_validated or len(methods) > 1
    return max(parts, default=0.0) + sum(parts) * validates * EVALUATED * (PARTS - 1) / PARTS


def choose_method(job: FinetuneJob, folder: Path) -> Generator[Event, None, FinetuneJob]:
    """Return the job of the method that is used.

    With it come the logits of its dev rows if they are from a cross-validation.

    Args:
        job: of the method "auto", or of another one, which is then used.
        folder: of the run.
    """
    methods = job.compared_methods
    if len(methods) == 1 and not job.data.is_validated:
        return job.variant(methods[0])
    logits: dict[Method, list[list[Logits]]] = {}
    jobs = {method: job.variant(method) for method in methods}
    for method, variant in jobs.items():
        logits[method] = yield from _validate(variant, folder / FOLDER)
    scores = {method: score_parts(variant, logits[method]) for method, variant in jobs.items()}
    numbers = range(EVALUATED)
    best = best_method(scores, numbers)
    if len(methods) > 1:
        means = {method: float(score.parts.mean()) for method, score in scores.items()}
        described = ", ".join(
            f"{method} {job.describe({job.metric: mean})}" for method, mean in means.items()
        )
        text = f"method: {best}; on rows that the models did not see: {described}"
        if means[best] < max(means.values()):
            text += f"; another method must be clearly better than {methods[0]}"
        yield Event("note", text, {"methods": means, "method": best})
    chosen = jobs[best]
    if job.data.is_validated:
        logits_of_others = (
            logits[best_method(scores, [n for n in numbers if n != part])][part] for part in numbers
        )
        chosen.validated = [*chain(*logits[best])], [*chain(*logits_of_others)]
    return chosen


class Scores(NamedTuple):
    """The metric of each part [parts], and of resamples of its rows [parts, samples].

    The resamples are the same for all methods.
    """

    parts: NDArray[np.float64]
    samples: NDArray[np.float64]


def best_method(scores: Mapping[Method, Scores], parts: Sequence[int]) -> Method:
    """The method with the best mean of some parts; the first one if that is not clearly better."""
    first = next(iter(scores))
    rows = list(parts)
    best = max(scores, key=lambda method: scores[method].parts[rows].mean())
    gain = (scores[best].parts - scores[first].parts)[rows].mean()
    error = (scores[best].samples - scores[first].samples)[rows].mean(0).std()
    return best if gain > CLEARLY * error else first


def _validate(job: FinetuneJob, folder: Path) -> Generator[Event, None, list[list[Logits]]]:
    """Return the logits of the rows of each of the first EVALUATED parts.

    Finished folds are files in the folder.
    """
    if job.method == "frozen":
        return job.fit()[1]
    logits: list[list[Logits]] = []
    for number in range(EVALUATED):
        path = folder / f"{job.method}-{number}.npz"
        run = folder / f"{job.method}-{number}"
        if not is_sealed(path, _KEY):
            fold = job.fold(number)
            run.mkdir(parents=True, exist_ok=True)
            write_text(run / "recipe.toml", dump_recipe(fold.recipe))
            text = f"cross-validation, method {job.method}: fold {number + 1} of {EVALUATED}"
            yield Event("stage", text, {"stage": run.name})
            yield from forward_events(TrainingRun(run, fold, job.device).events())
            with sealing(path, _KEY) as temporary, temporary.open("wb") as file:
                np.savez(file, *fold.dev_logits(run, job.device))
            shutil.rmtree(run)
        with np.load(path) as arrays:
            logits.append([*arrays.values()])
    return logits


def score_parts(job: FinetuneJob, logits: Sequence[Sequence[Logits]]) -> Scores:
    """logits: of the rows of each of the first parts."""
    parts = []
    samples = []
    for number, outputs in enumerate(logits):
        rows = [job.train[n] for n in job.data.parts[number]]
        items = [row.item for row in rows]
        answers = list(map(task_of(job.description).decode, rows, outputs))
        sums = row_sums(job.description, items, answers)[job.metric]
        parts.append(sums.value)
        samples.append(resampled(sums, groups_of(job.description, items), seed=number))
    return Scores(np.array(parts), np.array(samples))
