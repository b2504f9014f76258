"""Fine-tune a model on labelled data, in one call that can be repeated.

Finished work is not repeated.

Few rows are cross-validated: each of the first EVALUATED parts of the rows is predicted by a model
of the other parts. The final model is trained on all rows, with the method that is chosen by these
predictions: the first one of `FinetuneJob.compared_methods`, unless another one is clearly better,
or a cheaper one is better. The score that is reported chose nothing: what is predicted for a part
comes from the method that the other parts choose.

- `choose_method`: the method, and the logits of the cross-validation
- `finetune_events`: the run, as events; `finetune`: the same, returning a `Predictor`
"""

import json
import math
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertworks.batching.examples import num_tokens
from bertworks.checkpoints.model_card import with_tokenizer_note
from bertworks.checkpoints.model_files import weights_sha256
from bertworks.checkpoints.resolve import TASKS as TASKS_FOLDER
from bertworks.checkpoints.storage import read_json
from bertworks.config import add_overrides, dump_recipe, option_of, parse_overrides
from bertworks.errors import UsageError, expect, first_names, names_of, quoted
from bertworks.events import (
    Event,
    JsonObject,
    PartOfJob,
    duration,
    forward_events,
    show_progress,
)
from bertworks.inference.predictor import Predictor
from bertworks.io.atomic_write import (
    is_sealed,
    local_path,
    refuse_nested,
    sealing,
    temporary_folder,
    url_of,
    write_json,
    write_text,
)
from bertworks.io.inputs import as_path
from bertworks.io.options import ReadOptions
from bertworks.io.tables import Data, StoredInput, StoredRows, stored
from bertworks.metrics import intervals
from bertworks.runs.baselines import (
    HELD_OUT_WORK,
    MODEL_NAMES,
    Answers,
    FrozenEncoder,
    baseline_answers,
    compare_baselines,
    format_baselines,
)
from bertworks.runs.data_splits import (
    EVALUATED,
    MANY_OF_CLASS,
    PARTS,
    READING,
    LabelledData,
    methods_of,
    rows_per_class,
)
from bertworks.runs.embedding_map import Places, describe_rows, place_rows
from bertworks.runs.finetune_job import (
    FEW_METHODS,
    FITTED_METHODS,
    NO_LABEL_ROWS,
    FinetuneJob,
    FinetuneRequest,
    Forecast,
    Validated,
    forecast,
    prepare_finetuning,
)
from bertworks.runs.label_rows import FEW_OF_LABEL
from bertworks.runs.loggers import logged, require_loggers
from bertworks.runs.options import Method, Validation
from bertworks.runs.report import (
    CURVE,
    MOVED,
    NO_INTERVAL,
    STATEMENTS,
    VALIDATED,
    errors_note,
    read_measurements,
    statements,
    write_errors,
    write_task_report,
)
from bertworks.runs.run_folder import (
    Processes,
    absolute,
    check_same_request,
    open_run,
    training_processes,
)
from bertworks.runs.training_run import TrainingRun
from bertworks.tasks import scores as task_metrics
from bertworks.tasks.registry import TASKS, task_of
from bertworks.tasks.sequences import windows_for
from bertworks.tasks.settings import TaskType
from bertworks.tasks.task import Answer, Logits
from bertworks.training.budget import seconds_of
from bertworks.training.device import choose_device, disable_heap_trim, trim_heap
from bertworks.training.recipe import FinetuneRecipe, load_finetune_recipe

# of a budget, for baselines, evaluations, saving and a machine that gets slower
BUDGET_RESERVE = 0.15
WORST = 25  # mistakes on the page; errors.csv has all
# Arguments of `finetune`, and the fields of the recipe
_SETTINGS = {"learning_rate": "optimizer.learning_rate"} | {
    x: x for x in ("epochs", "batch_size", "max_length", "windows")
}
# What the methods without a training make
_FITTED: Mapping[Method, str] = {
    "frozen": "a linear head on the embeddings of the frozen model",
    "untrained": "the scale of the cosine of the frozen model",
}
# With few rows of each class a linear head is used if its accuracy is at least this one.
ENOUGH = 0.85
LONG_TRAINING = 120.0  # seconds from which on a plan names shorter ways
_ROUNDING = 1e-9  # of a mean score
# Methods, the cheapest first
COSTS: Sequence[Method] = ("untrained", "frozen", "static", "cosine", "contrastive", "full")
# Fields of the recipe that only the method "contrastive" uses, and those that it does not use
_CONTRASTIVE = ("rows_per_label", "contrastive_temperature")
_NOT_CONTRASTIVE = (
    "head_deviation",
    "label_smoothing",
    "cloze_steps",
    "lm_weight",
    "teacher_weight",
    "temperature",
)


class SimpleMethods(NamedTuple):
    """The predictions of the baselines on the evaluated rows.

    answers: by method. places: where the rows are on a map; None: there is no map.
    """

    answers: Answers
    places: Places | None


Baselines = dict[Hashable, SimpleMethods]  # by fold and task
# the last message, its fields, the recipe that was used
End = tuple[str, JsonObject, FinetuneRecipe]
FINISHED = "finished.json"  # the last event; a folder with it is finished
# a folder of a run, until it is finished; what its sealed files hold
FOLDS = "folds"
_KEY = "logits"
# standard errors of a difference: few rows must not choose by chance (docs/experiments, 2026-11-26)
CLEARLY = 2.0


class Training(NamedTuple):
    """A training that is ready to begin.

    recipe: of the training.
    min_batch_size: the rows of its smallest batch.
    events: trains while it is iterated, and returns the end in the first process, None in others.
    """

    recipe: FinetuneRecipe
    min_batch_size: int
    events: Generator[Event, None, End | None]


def finetune_events(
    output: str | Path,
    request: FinetuneRequest,
    *,
    device: str = "auto",
    overwrite: bool = False,
    data: LabelledData | None = None,
    baselines: Baselines | None = None,
    compares: bool = True,
    extrapolates: bool = True,
    before_writing: Callable[[], None] | None = None,
    log_to: str | Iterable[str] = (),
) -> Iterator[Event]:
    """Fine-tunes a model and yields events; `output` becomes a model folder.

    Args:
        data: the data of the request, if it is read already; None: it is read here.
        baselines: those of earlier calls, for several fine-tunings of the same model; new ones are
            added.
        compares: whether the model is compared with baselines, which can take longer than the
            training.
        extrapolates: whether a cross-validation reports the scores that a model of all rows has by
            a learning curve. False: it reports the scores of its own models. Several seeds need
            these, because they are averaged.
        before_writing: is called when the request has been checked, before the first file is
            written.
        log_to: libraries that log the figures of the training with all rows, and not of folds:
            "tensorboard", "wandb", "mlflow" or "trackio". A run may be resumed with others.

    Raises:
        UsageError: the folder belongs to a run with other settings, or the request is
            contradictory.
        BertworksError: a library is not installed; the data, the model, the disk or the training
            does not allow it.
    """
    loggers = require_loggers(names_of(log_to))
    output = local_path(output, "output folder")
    begin = time.perf_counter()

    def make_training(processes: Processes, recipe: FinetuneRecipe | None) -> Training:
        final_request = _without_folds(request) if processes.count > 1 else request
        job = FinetuneJob(prepare_finetuning(final_request, processes.device, recipe, data=data))
        if request.budget and recipe is None:
            _fit_budget(job, begin, processes.count)
        if before_writing is not None:
            before_writing()
        events = _train(job, output, processes, baselines, compares, extrapolates, loggers)
        return Training(job.recipe, job.min_batch_size, events)

    yield from finetuning(
        output, request.content(), request.paths, device, overwrite, make_training
    )


def finetuning(
    output: str | Path,
    content: JsonObject,
    inputs: Iterable[str],
    device: str,
    overwrite: bool,
    make_training: Callable[[Processes, FinetuneRecipe | None], Training],
) -> Iterator[Event]:
    """Yield the events of a request in its folder, by one or several processes.

    Of a finished one it is the last alone.

    Args:
        content: the request as it is stored in the run folder.
        inputs: the output must not be inside them.
        make_training: its second argument is the recipe of a run that is resumed; None: the run is
            new.
    """
    output = local_path(output, "output folder")
    with training_processes(choose_device(device)) as processes:
        refuse_nested(output, inputs)
        if not processes.first:
            # the first process has created the folder by then, or seen that the run is finished
            processes.meet(output)
        resumes = check_same_request(output, content, overwrite and processes.first)
        if not (resumes and (output / FINISHED).exists()):
            recipe_file = output / "recipe.toml"
            recipe = (
                load_finetune_recipe(str(recipe_file)) if resumes and recipe_file.exists() else None
            )
            training = make_training(processes, recipe)
            processes.refuse_to_share(training.min_batch_size)
            with open_run(output, content, overwrite) if processes.first else nullcontext():
                if processes.first and not recipe_file.exists():
                    write_text(recipe_file, dump_recipe(training.recipe))
                disable_heap_trim()
                if end := (yield from training.events):
                    text, fields, recipe = end
                    finished = {"text": text, "fields": fields, "recipe": dump_recipe(recipe)}
                    write_json(output / FINISHED, finished)
                    _tidy(output)
                processes.wait()
        elif processes.first:
            processes.meet(output)
            _tidy(output)
        done = read_json(output / FINISHED)
        yield Event("done", done["text"], done["fields"])


def _without_folds(request: FinetuneRequest) -> FinetuneRequest:
    """Return the request with a split and the method "full" where the user left the choice.

    Several processes train so: a cross-validation is for few rows, which one process learns in
    minutes.

    Raises:
        UsageError: the method "contrastive", which trains in one process.
    """
    expect(
        request.method != "contrastive",
        "the method 'contrastive' compares all rows of a step with each other, in one process",
        hint="start one process; or use --method full",
    )
    method = "full" if request.method == "auto" else request.method
    _check_descriptions(method, request.label_descriptions)
    return replace(
        request,
        method=method,
        validation="split" if request.validation == "auto" else request.validation,
    )


def _tidy(output: Path) -> None:
    """Leave in a finished run what a reader needs.

    It is the recipe of the method that is used, and no checkpoints. A process that was killed
    meanwhile has left some of them.
    """
    recipe = read_json(output / FINISHED)["recipe"]
    if (output / "recipe.toml").read_text(encoding="utf-8") != recipe:
        write_text(output / "recipe.toml", recipe)
    for folder in (output, *output.glob(f"{TASKS_FOLDER}/*")):  # a finished run is not resumed
        for name in ("checkpoints", FOLDS):
            shutil.rmtree(folder / name, ignore_errors=True)


def _fit_budget(job: FinetuneJob, begin: float, processes: int) -> None:
    """Give a job as many epochs of its recipe as fit into the budget of its request.

    The budget began at `begin`.

    Raises:
        UsageError: it is too short for a single epoch.
    """
    recipe = job.recipe
    budget = seconds_of(str(job.request.budget))
    times = forecast(job, processes)
    # With the method "auto" a contrastive training keeps its few steps.
    is_whole = job.method == "auto" and "contrastive" in job.compared_methods
    epochs = 1 if is_whole else recipe.epochs
    seconds = times.training * trainings(job) / epochs
    left = (1 - BUDGET_RESERVE) * budget - (time.perf_counter() - begin)
    needed = math.ceil((budget - left + seconds) / (1 - BUDGET_RESERVE) / 60)
    shorter_ways = ["--windows 0"] if job.window_cost > 1 else []
    if "frozen" in methods_of(job.data.schema):
        shorter_ways.append("--method frozen")
    alternatives = "".join(f" or {words}" for words in shorter_ways)
    expect(
        seconds <= left,
        f"a budget of {duration(budget)} is too short: "
        f"{'the training' if is_whole else 'an epoch'} takes about {duration(seconds)} on this "
        "machine",
        hint=f"--budget {needed}m{alternatives}",
    )
    fitting = epochs
    if seconds * epochs > left:  # 0 seconds: a linear head
        fitting = int(left / seconds)
        clozes = recipe.cloze_steps * fitting // epochs
        job.follow(replace(recipe, epochs=fitting, cloze_steps=clozes))
    job.forecast = times._replace(training=times.training * fitting / epochs)


def _train(
    job: FinetuneJob,
    output: Path,
    processes: Processes,
    baselines: Baselines | None,
    compares: bool,
    extrapolates: bool,
    loggers: Sequence[str],
) -> Generator[Event, None, End | None]:
    """Return the training and the final evaluation.

    The folder exists and is locked; only the first process writes to it.
    """
    survey = job.data_report.as_dict()
    notes = job.data.notes
    methods = job.compared_methods
    yield from job.featurize.examples(job.train)
    has_figure = job.data.is_validated and extrapolates and "frozen" in methods
    if has_figure and _has_estimates(job):  # before the forecast, which imports an optimizer
        yield _first_figure(job.variant("frozen"))
    seconds = 0.0
    if processes.first:
        write_json(output / "data.json", survey)
        # Before the first step that all processes compute together.
        times = job.forecast or forecast(job, processes.count)
        seconds = times.training * trainings(job)
        if not {*FITTED_METHODS}.isdisjoint(methods):  # features are computed once
            seconds += times.token * num_tokens(job.groups)
        if compares:
            seconds += forecast_comparison(job, times)
        processes.meet(output)
    fields = {"survey": survey, "recipe": asdict(job.recipe), "estimated_seconds": seconds}
    yield Event("plan", f"{job.data_report}\n{_plan(job, seconds)}", fields)
    job = yield from choose_method(job, output, extrapolates)
    if job.method in FITTED_METHODS:
        last_event = _fit(job, output)
    else:
        run = TrainingRun(output, job, job.device, processes)
        part = _last_part(job, methods)
        events = part.placed(run.events()) if part.before else run.events()
        last_event = yield from forward_events(
            logged(events, loggers, output, asdict(job.recipe), processes.first)
        )
    if not processes.first:
        return None
    if processes.first and job.data.notes != notes:  # a linear head evaluates all rows
        write_json(output / "data.json", job.data_report.as_dict())
    result, text = evaluate_on_dev(job, output, methods, baselines, compares, extrapolates)
    if job.method in FITTED_METHODS and loggers:  # it has no steps
        figures = Event(
            "evaluation",
            f"held out: {job.describe(result['figures'])}",
            {"step": 0, **result["figures"]},
        )
        yield from logged([figures], loggers, output, asdict(job.recipe))
    final_fields = dict(last_event.fields)
    for name in ("figures", "metric", "score"):
        final_fields[name] = result[name]
    final_fields["method"] = job.method
    for name in ("rows", "intervals", "calibration", "baselines", *STATEMENTS):
        final_fields[name] = result[name]
    final_fields["best"] = last_event.fields["best"] or {}
    return text, final_fields, job.recipe


def trainings(job: FinetuneJob) -> float:
    """Return the time of the whole job, in trainings of this job.

    It ends with the method that takes longest.
    """
    methods = [method for method in job.compared_methods if method not in FITTED_METHODS]
    variants = [job.variant(method) for method in methods]
    passes = job.passes(job.recipe, len(job.groups))
    wholes = [variant.passes(variant.recipe, len(job.groups)) / passes for variant in variants]
    folds = 0.0
    if job.data.is_validated or len(job.compared_methods) > 1:
        folds = EVALUATED * sum(_passes_of_fold(variant) for variant in variants) / passes
    return max(wholes, default=0.0) + folds


def _passes_of_fold(job: FinetuneJob) -> float:
    """Return the time of a fold, in passes over all rows."""
    fraction = (PARTS - 1) / PARTS
    count = max(1, round(fraction * len(job.groups)))
    recipe = job.recipe_of_fold(count)
    # a forward pass, of the three that a step of training takes
    evaluations = (1 - fraction) * job.evaluations_of_fold(recipe) / 3
    return fraction * job.passes(recipe, count) + evaluations


def _parts_of_validation(job: FinetuneJob, methods: Sequence[Method]) -> list[PartOfJob]:
    """Return the folds of all methods, in their order, as parts of the whole job."""
    trained = [method for method in methods if method not in FITTED_METHODS]
    variants = {method: job.variant(method) for method in trained}
    sizes = {method: _passes_of_fold(variant) for method, variant in variants.items()}
    last = max(
        (variant.passes(variant.recipe, len(job.groups)) for variant in variants.values()),
        default=0.0,
    )
    whole = EVALUATED * sum(sizes.values()) + last
    parts: list[PartOfJob] = []
    before = 0.0
    for method, size in sizes.items():
        for number in range(EVALUATED):
            fold = f"fold {number + 1}/{EVALUATED}"
            name = fold if len(trained) == 1 else f"method {method}, {fold}"
            parts.append(PartOfJob(name, before, size, whole))
            before += size
    return parts


def _last_part(job: FinetuneJob, methods: Sequence[Method]) -> PartOfJob:
    """Return the training with all rows, after the folds, as a part of the whole job.

    Args:
        job: of the method that was chosen.
        methods: those that were compared.
    """
    size = job.passes(job.recipe, len(job.groups))
    before = 0.0
    if job.data.is_validated or len(methods) > 1:
        parts = _parts_of_validation(job, methods)
        before = sum(part.size for part in parts)
    return PartOfJob("all rows", before, size, before + size)


def choose_method(
    job: FinetuneJob, folder: Path, extrapolates: bool = False
) -> Generator[Event, None, FinetuneJob]:
    """Return the job of the method that is used.

    With it come the logits of its dev rows if they are from a cross-validation.

    Args:
        job: of the method "auto", or of another one, which is then used.
        folder: of the run.
        extrapolates: see `finetune_events`.
    """
    methods = job.compared_methods
    choice = f"{methods[0]}; {_reason(job)}"
    if len(methods) == 1 and not job.data.is_validated:
        chosen = job.variant(methods[0])
        chosen.choice = choice
        return chosen
    numbers = range(EVALUATED)
    few = rows_per_class(job.data) <= MANY_OF_CLASS
    # Numbers of parts: evaluated on all other rows, a linear head is good enough. None stands for
    # the evaluation on all rows.
    sufficient: set[int | None] = set()
    is_choice = len(methods) > 1
    if methods == FEW_METHODS:
        estimates = {part: frozen_accuracy(job, part) for part in (None, *numbers)}
        least = sufficient_accuracy(row.label for row in job.data.train)
        sufficient = {part for part, accuracy in estimates.items() if accuracy >= least}
        if len(sufficient) == len(estimates):  # nothing else needs to be trained
            methods = ("frozen",)
    jobs = {method: job.variant(method) for method in methods}
    logits: dict[Method, list[list[Logits]]] = {}
    fold_parts = iter(_parts_of_validation(job, methods))
    for method, variant in jobs.items():
        folds = [] if method in FITTED_METHODS else [*islice(fold_parts, EVALUATED)]
        logits[method] = yield from _validate(variant, folder / FOLDS, folds)
    scores = {method: score_parts(variant, logits[method]) for method, variant in jobs.items()}

    def choose(left_out: int | None) -> Method:
        """Return the method for new rows, or for those of a part, which are left out."""
        if left_out in sufficient:
            return "frozen"
        return best_method(scores, [n for n in numbers if n != left_out], few)

    best = choose(None)
    if is_choice:
        means = {method: float(score.parts.mean()) for method, score in scores.items()}
        described = ", ".join(
            f"{method} {job.describe({job.metric: mean})}" for method, mean in means.items()
        )
        choice = f"{best}; in cross-validation: {described}"
        if None in sufficient:
            choice += (
                f"; a linear head trained on all rows probably reaches an accuracy of "
                f"{estimates[None]:.1%}, which is enough (at least {least:.0%})"
            )
        elif means[best] < max(means.values()):
            choice += f"; no other method is significantly better, so {best} is kept"
        if best == "untrained":
            choice += "; training does not improve the cosine of the original embeddings"
        yield Event("note", f"method: {choice}", {"methods": means, "method": best})
    chosen = jobs[best]
    chosen.choice = choice
    if job.data.is_validated:
        choices = [choose(part) for part in numbers]
        of_parts = [*chain(*(logits[choice][part] for part, choice in enumerate(choices)))]
        if {best, *choices} == {"frozen"} and extrapolates and _has_estimates(job):
            of_all = chosen.logits_of_tenths
            chosen.validated = Validated(range(len(of_all)), of_all, of_all, of_parts, True)
        else:
            rows = [*chain(*job.data.parts[:EVALUATED])]
            chosen.data = job.prepared.data
            chosen.dev = [chosen.train[n] for n in rows]
            of_method = [*chain(*logits[best])]
            chosen.validated = Validated(rows, of_method, of_parts, of_parts, False)
    return chosen


def _reason(job: FinetuneJob) -> str:
    """Return why a job has only one method."""
    if job.method != "auto":
        return "as requested"
    if job.compared_methods == ("frozen",):
        return f"labels have fewer than {FEW_OF_LABEL} rows"
    return "no other one was compared"


def sufficient_accuracy(labels: Iterable[Hashable]) -> float:
    """Return the accuracy from which a linear head is used without a comparison.

    It is ENOUGH, or more where one label is so frequent that always predicting it is nearly as
    accurate: then the head may make at most half of the errors of that prediction.
    """
    counts = Counter(labels)
    errors = 1 - max(counts.values()) / counts.total()
    return max(ENOUGH, 1 - errors / 2)


def frozen_accuracy(job: FinetuneJob, left_out: int | None) -> float:
    """Return the accuracy that a linear head of all rows probably has, by its learning curve.

    Args:
        left_out: the number of a part. Its rows are not evaluated. None: all rows are evaluated.
    """
    job = job.variant("frozen")
    part = () if left_out is None else job.data.parts[left_out]
    rows = sorted({*range(len(job.train))} - {*part})
    task = task_of(job.description)
    items = [job.train[n].item for n in rows]
    sums = []
    for logits in (job.logits_of_tenths, job.logits_of_parts):
        answers = [task.decode(job.train[n], logits[n]) for n in rows]
        sums.append(task_metrics.row_sums(job.description, items, answers)["accuracy"])
    return intervals.learning_curve(sums[0], sums[1]).value


class Estimates(NamedTuple):
    """What a cross-validation says about the model of all rows.

    scores: by metric. reason: how they were estimated and how sure they are, in a sentence.
    """

    scores: dict[str, intervals.Estimate]
    reason: str


def estimate_scores(job: FinetuneJob, validated: Validated, answers: Sequence[Answer]) -> Estimates:
    """Return the scores that the model of all rows probably has, from a cross-validation.

    A linear head has a learning curve. The scores of other methods are moved as those of a linear
    head on the same rows are, where the task has one.

    Args:
        validated: the predictions of the cross-validation.
        answers: for the evaluated rows, by models that did not see them.
    """
    data = job.data
    d = job.description
    sums = task_metrics.row_sums(d, [row.item for row in job.dev], answers)
    curve = _curve(job)
    groups = [data.groups[n] for n in validated.numbers]
    scores = {}
    for name in task_of(d).metrics_of():
        least = task_metrics.least_value(name)
        if curve and validated.has_curve:
            estimate = intervals.learning_curve(sums[name], curve[1][name], least, groups)
        else:
            gain = 0.0
            if curve:
                gain = intervals.curve_gain(curve[0][name], curve[1][name], least)
            estimate = intervals.moved_estimate(sums[name], gain, least, groups)
        if not data.has_claim:
            estimate = estimate._replace(interval=intervals.Interval(least, 1.0))
        elif data.doubt:
            estimate = estimate._replace(interval=None)
        scores[name] = estimate
    metric = job.metric
    reason = VALIDATED
    if not data.has_claim:
        reason = f"no estimate for new rows: {data.doubt}"
    elif data.doubt:
        reason = f"approximate, without an interval: {data.doubt}"
    elif curve and validated.has_curve:
        reason = CURVE
    elif curve:
        gain = scores[metric].value - sums[metric].value
        unit = " points" if metric in task_metrics.SHARES else ""
        points = task_metrics.format_score(metric, gain, sign="+")
        moved = f"{MOVED}, moved by {points}{unit} as for frozen embeddings; approximate"
        reason = f"these are scores of {moved}"
    return Estimates(scores, reason)


def _has_estimates(job: FinetuneJob) -> bool:
    """Return whether the scores of a cross-validation are those of a model of all rows.

    The many heads of the words of a text take too long.
    """
    return not TASKS[job.description.task].labels_tokens


def _first_figure(job: FinetuneJob) -> Event:
    """Return the score of a linear head on frozen vectors, which is known in seconds."""
    logits = job.logits_of_tenths
    validated = Validated(range(len(logits)), logits, logits, [], True)
    answers = task_metrics.fit_outputs(job.description, job.train, logits)[1]
    estimates = estimate_scores(job, validated, answers)
    figures = {name: estimate.value for name, estimate in estimates.scores.items()}
    bounds = {name: estimate.interval for name, estimate in estimates.scores.items()}
    text = task_metrics.format_metrics(
        {job.metric: figures[job.metric]}, bounds, job.description.positive_label
    )
    name = "a linear head on the embeddings of the frozen model"
    return Event("note", f"{name}: {text}", {"figures": figures, "intervals": bounds})


def _curve(job: FinetuneJob) -> list[Mapping[str, intervals.RowSums]]:
    """Return the metrics of linear heads of nine tenths, and of two thirds of the rows.

    They are those of all rows. []: there are no tenths, or the task has no linear head.
    """
    is_possible = "frozen" in methods_of(job.data.schema) and not job.recipe.lstm_units
    if len(job.data.tenths) == len(job.data.parts) or not is_possible:
        return []
    job = job.variant("frozen")
    d = job.description
    items = [row.item for row in job.train]
    sides = (job.logits_of_tenths, job.logits_of_parts)
    answers = (task_metrics.fit_outputs(d, job.train, logits)[1] for logits in sides)
    return [task_metrics.row_sums(d, items, side) for side in answers]


class Scores(NamedTuple):
    """The metric of each part [parts], and of resamples of its rows [parts, samples].

    The resamples are the same for all methods. sizes: the number of rows of each part [parts].
    """

    parts: NDArray[np.float64]
    samples: NDArray[np.float64]
    sizes: NDArray[np.int64]

    def mean(self, parts: Sequence[int]) -> float:
        """Return the mean of some parts, in which each row counts the same."""
        return float(np.average(self.parts[list(parts)], weights=self.sizes[list(parts)]))


def best_method(scores: Mapping[Method, Scores], parts: Sequence[int], few: bool = False) -> Method:
    """Return the method that is used, by its scores on some parts.

    It is the first one, unless another one has a clearly better mean: by more than CLEARLY standard
    errors. A method that is worse than a cheaper one is not used, as it adds nothing.

    few: whether rows are so few that the first method is used even then.
    """
    rows = list(parts)
    means = {method: float(score.parts[rows].mean()) for method, score in scores.items()}
    chosen = next(iter(scores))
    best = max(scores, key=means.__getitem__)
    spread = (scores[best].samples - scores[chosen].samples)[rows].mean(0).std()
    error = math.sqrt(intervals.TRAINING_VARIANCE) * spread
    if means[best] - means[chosen] > CLEARLY * error:
        chosen = best
    if few:
        return chosen
    cheaper = [method for method in COSTS[: COSTS.index(chosen)] if method in scores]
    # with as many right rows means differ by rounding
    least = scores[chosen].mean(rows) + _ROUNDING
    better = [method for method in cheaper if scores[method].mean(rows) > least]
    return max(better, key=means.__getitem__, default=chosen)


def _validate(
    job: FinetuneJob, folder: Path, parts: Sequence[PartOfJob]
) -> Generator[Event, None, list[list[Logits]]]:
    """Return the logits of the rows of each of the first EVALUATED parts.

    Finished folds are files in the folder. parts: the trainings of the folds in the whole job.
    """
    if job.method in FITTED_METHODS:
        return job.logits_of_evaluated_parts
    logits: list[list[Logits]] = []
    for number in range(EVALUATED):
        path = folder / f"{job.method}-{number}.npz"
        run = folder / f"{job.method}-{number}"
        if not is_sealed(path, _KEY):
            fold = job.fold(number)
            run.mkdir(parents=True, exist_ok=True)
            write_text(run / "recipe.toml", dump_recipe(fold.recipe))
            yield Event(
                "stage",
                f"cross-validation, method {job.method}: fold {number + 1}/{EVALUATED}",
                {"stage": run.name},
            )
            events = TrainingRun(run, fold, job.device).events()
            yield from forward_events(parts[number].placed(events))
            shutil.copyfile(run / "metrics.jsonl", folder / f"{run.name}.jsonl")
            with sealing(path, _KEY) as temporary, temporary.open("wb") as file:
                np.savez(file, *fold.dev_logits(run))
            shutil.rmtree(run)
        with np.load(path) as arrays:
            logits.append([*arrays.values()])
    return logits


def _evaluations_of_folds(folder: Path, method: Method) -> list[list[JsonObject]]:
    """Return the evaluations of each fold of a method during its training: figures with steps.

    Args:
        folder: of the folds. A linear head has none.
    """
    paths = [folder / f"{method}-{number}.jsonl" for number in range(EVALUATED)]
    return [read_measurements(path)[1] for path in paths if path.exists()]


def score_parts(job: FinetuneJob, logits: Sequence[Sequence[Logits]]) -> Scores:
    """logits: of the rows of each of the first parts."""
    parts = []
    samples = []
    for number, outputs in enumerate(logits):
        rows = [job.train[n] for n in job.data.parts[number]]
        items = [row.item for row in rows]
        answers = list(map(task_of(job.description).decode, rows, outputs))
        sums = task_metrics.row_sums(job.description, items, answers)[job.metric]
        parts.append(sums.value)
        samples.append(
            intervals.resampled(sums, task_metrics.groups_of(job.description, items), seed=number)
        )
    sizes = [len(outputs) for outputs in logits]
    return Scores(np.array(parts), np.array(samples), np.array(sizes))


def forecast_comparison(job: FinetuneJob, times: Forecast) -> float:
    """Return the seconds of the comparison with baselines.

    They are those of the encoder, which takes nearly all of the time where it is large. The linear
    models of words take a few more.
    """
    if TASKS[job.description.task].has_context:  # no method encodes
        return 0.0
    d = job.description
    encoder = FrozenEncoder(job.model, job.device, d.max_length, d.windows)
    folds = EVALUATED if job.data.is_validated else 1
    max_tokens = (folds + HELD_OUT_WORK) * encoder.max_tokens
    all_tokens = num_tokens(job.groups)
    if not job.data.is_validated:
        all_tokens += num_tokens(job.dev_units)
    return times.token * min(max_tokens, all_tokens)


def _fit(job: FinetuneJob, output: Path) -> Event:
    """Writes the model folder of a method that fits the output layer alone."""
    begin = time.perf_counter()
    job.save(output, job.fit(), {"evaluation": {}, "evaluated": None, "step": 0})
    seconds = time.perf_counter() - begin
    figures = {
        "folder": str(output),
        "step": 0,
        "tokens": num_tokens(job.groups),
        "seconds": seconds,
        "best": None,
    }
    return Event("done", f"{output}: {_FITTED[job.method]}, in {duration(seconds)}", figures)


def evaluate_on_dev(
    job: FinetuneJob,
    folder: Path,
    methods: Sequence[Method] = ("full",),
    baselines: Baselines | None = None,
    compares: bool = True,
    extrapolates: bool = True,
) -> tuple[JsonObject, str]:
    """Evaluate the model in the folder on dev, and return the result and the last message.

    The result is that of result.json. The threshold is stored in the model, and its output layer is
    divided by the temperature. It writes errors.csv, README.md, report.html and last result.json.

    Args:
        methods: those that were compared.
        baselines, compares, extrapolates: see `finetune_events`.

    Raises:
        BertworksError: the model cannot be read, or the disk is full.
    """
    validated = job.validated
    logits = validated.logits if validated else job.dev_logits(folder)
    # what follows is made of small objects, which find no place in the memory of the batches
    trim_heap()
    d, answers, reliability = task_metrics.fit_outputs(job.description, job.dev, logits)
    compared_rows = job.dev
    groups: Sequence[Hashable] | None = None
    estimates = Estimates({}, "")
    if validated:  # the score is that of methods that other rows chose
        answers = task_metrics.fit_outputs(job.description, job.dev, validated.chosen)[1]
        if extrapolates and _has_estimates(job):
            estimates = estimate_scores(job, validated, answers)
    compared_answers = answers
    if validated:
        numbers = [*chain(*job.data.parts[:EVALUATED])]
        compared_rows = [job.train[n] for n in numbers]
        if extrapolates:
            groups = [job.data.groups[n] for n in numbers]
        compared_answers = task_metrics.fit_outputs(
            job.description, compared_rows, validated.of_parts
        )[1]
    job.save_calibrated(folder, d)
    items = [features.item for features in job.dev]
    results, mistakes = task_metrics.task_results(d, job.dev, answers, estimates.scores)
    reason = estimates.reason
    if not reason and job.data.is_validated:
        reason = VALIDATED
    if not reason and None in results["intervals"].values():
        reason = NO_INTERVAL
    if validated and not job.data.has_claim:
        results["never_found"] = {}
    sums = task_metrics.row_sums(d, items, answers)[job.metric]
    if baselines is None:
        baselines = {}
    task = (job.request.fold, job.description)
    if compares and task not in baselines:
        encoder = FrozenEncoder(job.model, job.device, d.max_length, d.windows)
        parts = job.data.parts[:EVALUATED] if job.data.is_validated else ()
        simple_answers = baseline_answers(
            job.train, compared_rows, job.description, encoder, parts=parts
        )
        places = place_rows(compared_rows, d, encoder)
        baselines[task] = SimpleMethods(simple_answers, places)
    place = "in cross-validation" if job.data.is_validated else "on dev"
    comparison: JsonObject = {}
    simple = baselines.get(task)
    rows_of_map: JsonObject = {}
    if simple and simple.places:
        rows_of_map = describe_rows(simple.places, compared_rows, compared_answers)
    if simple and simple.answers:
        method_answers: dict[str, Sequence[Answer | None]] = {
            MODEL_NAMES[job.method][0]: compared_answers,
            **simple.answers,
        }
        comparison = compare_baselines(
            d,
            job.metric,
            compared_rows,
            method_answers,
            job.method,
            methods,
            place,
            _too_few(job),
            groups,
            job.data.doubt if groups is not None else "",
        )
    figures = dict(results["figures"])
    if d.threshold is not None:
        figures["threshold"] = d.threshold
    result = {
        "weights_sha256": weights_sha256(folder),
        "is_validated": job.data.is_validated,
        "choice": job.choice,
        "certainty": reason,
        **results,
        "metric": job.metric,
        "score": results["figures"][job.metric],
        "figures": figures,
        "calibration": reliability,
        "layer_weights": job.layer_weights(folder),
        "baselines": comparison,
        "advice": _advice(job, results, comparison),
        "resamples": np.round(
            intervals.resampled(sums, task_metrics.groups_of(d, items)), 6
        ).tolist(),
        "confusion": task_metrics.confusion(d, items, answers),
        "map": rows_of_map,
        "fold_evaluations": _evaluations_of_folds(folder / FOLDS, job.method),
        "points": task_metrics.points(items, answers) if TASKS[d.task].predicts_numbers else [],
        # other kinds of networks have no attention, which an explanation shows
        "has_explanations": job.model.config.kind == "transformer",
        "worst": [asdict(mistake) for mistake in mistakes[:WORST]],
    }
    write_errors(folder / "errors.csv", d, mistakes)
    card = with_tokenizer_note(job.card(folder, result["figures"], result), job.model.tokenizer)
    write_text(folder / "README.md", card)
    write_task_report(folder, job.metric, job.data_report, result)
    write_text(folder / "result.json", json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    by_others = f"{place}, on {len(job.dev):,} held-out rows"
    if estimates.scores:
        by_others = f"estimated {by_others}"
    return result, _summary(folder, result, by_others if job.data.is_validated else place)


def _too_few(job: FinetuneJob) -> str:
    """Return why a cross-validation cannot show whether a model has learned anything.

    It has too few rows.

    Return "" if it can.
    """
    if not job.data.is_validated or not TASKS[job.description.task].has_labels:
        return ""
    counts = [count for count, _ in job.data_report.labels.values()]
    num_rare_labels = sum(count < PARTS for count in counts)
    if 2 * num_rare_labels < len(counts):
        return ""
    return (
        f"{num_rare_labels:,} of the {len(counts):,} labels have fewer examples than there are "
        f"folds ({PARTS}), so that models were evaluated on labels with hardly any training "
        "examples"
    )


def _advice(job: FinetuneJob, results: JsonObject, comparison: JsonObject) -> str:
    """Return what would help next, in words.

    The warnings of the report name the same faults of the data.

    Args:
        results: of the evaluation, see `task_metrics.task_results`.
        comparison: see `compare_baselines`; {}: there is none.
    """
    report = job.data_report
    advice: list[str] = []
    if report.many_lose_their_end:
        length = min(report.lengths.longest, job.model.config.max_position_embeddings)
        d = job.description
        num_special = job.model.tokenizer.template.num_special()
        windows = windows_for(report.lengths.longest, d.max_length, num_special)
        if length > report.lengths.max_length:
            advice.append(f"--max-length {length}")
        elif windows > d.windows and "windows" in TASKS[d.task].recipe_fields:
            advice.append(f"--windows {windows}")
        else:
            advice.append("the important part of the texts first")
    if report.is_unbalanced and job.recipe.class_weights == FinetuneRecipe.class_weights:
        advice.append("--set class_weights=balanced")
    advice += [_rows_that_help(job, results["table"]), *comparison.get("advice", [])]
    if job.data.has_claim and errors_note(results):
        advice.append("right labels (errors.csv has the probable label errors first)")
    return "; ".join(advice)


def _rows_that_help(job: FinetuneJob, table: Mapping[str, Mapping[str, float]]) -> str:
    """Return of which labels more rows help most, in words.

    These are labels with at most half of the median number of rows. Where labels have equally many,
    rows of a single label do harm, also of the one with the lowest F1: the model expects it too
    often then (benchmarks/more_rows.py; docs/experiments, 2026-11-30).

    table: the F1 of each label that is evaluated, see `task_metrics.task_results`.
    """
    if not TASKS[job.description.task].has_classes:
        return "more rows"
    counts = {name: count for name, (count, _) in job.data_report.labels.items() if name in table}
    most = np.median([*counts.values()]) / 2
    rare = [(table[name]["f1"], name) for name in counts if counts[name] <= most]
    described = [
        f"{name!r} ({counts[name]:,} rows, F1 {task_metrics.about('f1', f1)})"
        for f1, name in sorted(rare)
    ]
    return f"more rows of {first_names(described) or 'all labels, equally many of each'}"


def _summary(folder: Path, result: Mapping[str, Any], where: str) -> str:
    figures = task_metrics.format_metrics(
        result["figures"], result["intervals"], result["positive"]
    )
    lines = [f"{folder}: {figures} {where}"]
    if result["never_found"]:
        lines.append(f"WARNING: {task_metrics.format_never_found(result['never_found'])}")
    num_first = len(lines)
    task = TASKS[result["task"]]
    if task.predicts_numbers:
        errors = [abs(gold - predicted) for gold, predicted in result["points"]]
        lines.append(f"half of the numbers are off by less than {np.median(errors):.3g}")
    elif result["mistakes"]:
        frequent_kinds = f": {result['frequent']}" if result["frequent"] else ""
        lines.append(task_metrics.counted(result["mistakes"], result["rows"]) + frequent_kinds)
    if result["layer_weights"]:
        weights = ", ".join(f"{weight:.2f}" for weight in result["layer_weights"])
        lines.append(f"weights of the layers in the mix, from the embeddings on: {weights}")
    if task.has_temperature:
        place = "evaluated rows" if result["is_validated"] else "rows in dev"
        not_calibrated = f"not calibrated: that needs {task_metrics.FEWEST_CALIBRATED} {place}"
        lines.append(f"probabilities: {result['calibration'].get('text', not_calibrated)}")
    lines.append(f"see {folder / 'report.html'} and {folder / 'errors.csv'}{errors_note(result)}")
    lines.append(f"next: bertworks predict {quoted(folder)} new.csv -o scored.csv")
    comparison = result["baselines"]
    if comparison:
        table = format_baselines(comparison)
        widths = [max(map(len, column)) for column in zip(*table)]
        texts = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()
            for row in table
        ]
        if comparison["note"]:
            texts.append(comparison["note"])
        lines[num_first:num_first] = texts
        if comparison["verdict"]:
            lines.append(comparison["verdict"])
    lines += statements(result)
    return "\n".join(lines)


def _plan(job: FinetuneJob, seconds: float) -> str:
    methods = job.compared_methods
    clearly = ""
    if job.method == "auto" and methods == ("frozen",):
        clearly = f": {_reason(job)}"
    elif methods == FEW_METHODS:
        least = sufficient_accuracy(row.label for row in job.data.train)
        clearly = (
            f"; switches to frozen if its accuracy probably reaches {least:.0%}, or if it scores "
            "significantly better in cross-validation"
        )
    elif len(methods) > 1:
        clearly = (
            f"; switches to {' or '.join(methods[1:])} if it scores significantly better in "
            "cross-validation"
        )
    job = job.variant(methods[0])
    recipe = job.recipe
    settings = job.settings
    frozen = "frozen " if recipe.lstm_encoder == "frozen" else ""
    lstm = (
        f" in the {frozen}encoder, {recipe.lstm_units} units in the LSTM"
        if recipe.lstm_units
        else ""
    )
    last_evaluation = settings.num_steps - settings.evaluate_every
    can_end_early = 0 < settings.patience < last_evaluation
    early = (
        f"; ends early after {recipe.patience} evaluations without improvement"
        if can_end_early
        else ""
    )
    if settings.learned_loss:
        early += f"; ends early once the training loss stays below {settings.learned_loss:g}"
    rate = recipe.optimizer.learning_rate
    epochs = f"{recipe.epochs} epochs of {job.train_batches.steps_per_epoch:,}"
    clozes = f"{recipe.cloze_steps:,} steps on clozes, then " if recipe.cloze_steps > 0 else ""
    steps = f"{clozes}{epochs} steps, batches of {recipe.batch_size}, learning rate {rate:g}{early}"
    layers = f", {job.request.layers} of its layers" if job.request.layers else ""
    teacher = (
        f"\nteacher      {job.request.urls.get('teacher', job.request.teacher)}: "
        f"{recipe.teacher_weight:.0%} of the loss"
        if job.teacher
        else ""
    )
    training = steps
    if job.method in FITTED_METHODS:
        training = _FITTED[job.method]
    windows = ""
    if job.window_cost > 1:
        windows = (
            f"windows      up to {job.description.windows} of {job.description.max_length} tokens "
            f"for a text: {job.window_cost:.1f} times the tokens of its first window, and about as "
            "many times its time; --windows 0 truncates texts\n"
        )
    return (
        f"model        {job.request.model_name}: {job.model.config.num_parameters():,} "
        f"parameters{layers}{lstm}{teacher}\n"
        f"method       {methods[0]}{clearly}\n"
        f"training     {training}\n"
        f"{windows}"
        f"time         about {duration(max(1, seconds))} on this machine"
        f"{_shorter_ways(job, seconds)}"
    )


def _shorter_ways(job: FinetuneJob, seconds: float) -> str:
    """Return how the time of a training becomes shorter, for the line of its plan.

    It is empty if the training is short, or if the user has chosen its time.
    """
    if seconds < LONG_TRAINING or job.request.budget or job.method in FITTED_METHODS:
        return ""
    ways = [f"--budget {math.ceil(seconds / 3 / 60)}m"]
    if "frozen" in methods_of(job.data.schema):
        ways.append("--method frozen")
    ceiling = " at most" if job.settings.learned_loss else ""
    return f"{ceiling}; for less: {' or '.join(ways)}"


def make_finetune_request(data: Data, **options: Any) -> FinetuneRequest:
    """Return the request for `finetune_events`, with absolute paths.

    Args:
        data: see `finetune`.
        options: the others of `finetune`.

    Raises:
        UsageError: a setting that `overrides` has too, or that the method does not use; standard
            input in several processes.
    """
    settings = {field: options.pop(name, None) for name, field in _SETTINGS.items()}
    request = FinetuneRequest(_source(data, "rows"), **options)
    overrides = add_overrides(names_of(request.overrides), settings)
    changed = parse_overrides(
        add_overrides(overrides, {"seed": request.seed, "precision": request.precision})
    )
    if request.budget:
        seconds_of(request.budget)
        expect(
            not changed.get("epochs"),
            "a budget decides the number of epochs",
            hint="give --budget or --epochs, not both",
        )
    method = request.method
    refuse_unused(method, changed)
    if request.teacher:
        expect(
            method in ("auto", "full"),
            f"the method {method!r} does not use --teacher",
            hint="leave out --teacher; or --method full",
        )
        method = "full"
    _check_descriptions(method, request.label_descriptions)
    recipe = str(request.recipe or "stable")
    addresses = {
        "model": request.model,
        "teacher": request.teacher,
        "label_descriptions": request.label_descriptions,
    }
    if recipe.endswith(".toml"):
        addresses["recipe"] = recipe
    local: dict[str, Any] = {"recipe": recipe}
    urls = {}
    for name, address in addresses.items():
        if address:
            path = as_path(address, name)
            url = url_of(address)
            if url:
                urls[name] = url
            is_path = url or name in ("recipe", "label_descriptions") or path.is_dir()
            local[name] = absolute(path) if is_path else str(address)
    return replace(
        request,
        dev=None if request.dev is None else _source(request.dev, "dev rows"),
        overrides=overrides,
        method=method,
        text=names_of(request.text),
        label=names_of(request.label),
        urls=urls,
        **local,
    )


def _check_descriptions(method: Method, descriptions: str | None) -> None:
    """Raise UsageError if there are descriptions of labels, and the method does not use them."""
    expect(
        method not in NO_LABEL_ROWS or not descriptions,
        f"the method {method!r} does not use --label-descriptions",
        hint="leave out --label-descriptions; or --method frozen",
    )


def refuse_unused(method: Method, names: Iterable[str]) -> None:
    """Raise UsageError if a setting is named that the method does not use.

    It is named by its path in a recipe.
    """
    plain = (*_SETTINGS.values(), "seed", "seeds")
    unused = [name for name in names if not _uses(method, name)]
    if unused:
        words = ", ".join(option_of(name) if name in plain else f"--set {name}" for name in unused)
        other: Method = "contrastive" if _uses("contrastive", unused[0]) else "full"
        if _uses("full", unused[0]):
            other = "full"
        raise UsageError(
            f"the method {method!r} does not use {words}",
            hint=f"leave out {words}; or --method {other}",
        )


def _uses(method: Method, name: str) -> bool:
    """Return whether a method uses a setting, a path in a recipe."""
    if method == "auto":
        return True
    if method in FITTED_METHODS:
        return name in ("title", "class_weights", "precision", *READING)
    return name not in (_NOT_CONTRASTIVE if method == "contrastive" else _CONTRASTIVE)


def _source(data: Data, name: str) -> str | StoredRows:
    """Return the absolute path of a file or folder, or rows in memory.

    Raises:
        UsageError: standard input, which several processes cannot share.
    """
    source = stored(data, name)
    if str(source) == "-":
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise UsageError(
                "each process reads the data, standard input can be read only once",
                hint="write it to a file first",
            )
        return StoredInput()
    return source if isinstance(source, StoredRows) else absolute(source)


def finetune(
    data: Data,
    *,
    dev: Data | None = None,
    model: str | Path = "minilm",
    output: str | Path | None = None,
    epochs: int | None = None,
    learning_rate: float | None = None,
    batch_size: int | None = None,
    max_length: int | None = None,
    windows: int | None = None,
    method: Method = "auto",
    validation: Validation = "auto",
    task: TaskType | None = None,
    text: str | Iterable[str] = (),
    label: str | Iterable[str] = (),
    group: str | None = None,
    positive: str | None = None,
    metric: str | None = None,
    recipe: str | Path = "stable",
    overrides: str | Iterable[str] = (),
    seed: int | None = None,
    new_head: bool = False,
    label_descriptions: str | Path | None = None,
    precision: str | None = None,
    budget: str | None = None,
    read: ReadOptions = ReadOptions(),
    device: str = "auto",
    teacher: str | Path | None = None,
    layers: int | None = None,
    overwrite: bool = False,
    progress: bool | None = None,
    log_to: str | Iterable[str] = (),
) -> Predictor:
    """Fine-tunes and returns the model: `.predict(texts)`, `.save(folder)`.

    It takes minutes. `finetune_events` gives all events.

    Args:
        data: a file; a folder with a train and a dev file; a list of dicts; a dict of columns; a
            DataFrame of pandas or polars, a table of pyarrow or a data set of datasets. The index
            of a DataFrame is not read.
        dev: the dev data in the same forms; None: that of the folder, or else see `validation`.
        model: the initial model: `minilm`, a model folder, or the name of a BERT on the Hugging
            Face hub.
        output: the run folder; None: a temporary one, deleted together with the returned model.
        epochs, learning_rate, batch_size, max_length, windows: None: as in the recipe.
        method: "full", "frozen", "untrained", "cosine", "contrastive", "static", or "auto": see
            `FinetuneRequest`.
        validation: without dev data: "split", "folds", or "auto": folds for few rows.
        task, text, label: what the columns mean; None or (): inferred.
        group: a column; rows with the same value stay on one side of a split.
        positive: the class whose F1 is reported, if there are two. With None it is the one called
            "1", "yes", "true" or "pos", else the rarer one.
        metric: the metric that is reported first; None: that of the task.
        recipe: "stable", "paper", "feature_based", or a TOML file; overrides: `field=value`
            settings of it.
        seed, precision: None: those of the recipe.
        new_head: whether the head of a fine-tuned model is replaced by a new one.
        label_descriptions: a file with the columns "label" and "text": texts that describe labels.
            They are rows of a linear head, in place of the names of labels.
        budget: a time such as "5m" for everything: fewer epochs, if those of the recipe take
            longer.
        teacher: a model that was fine-tuned for the same task, from which this one learns as well
            as from the labels.
        layers: the number of layers that are kept of the initial model; None: all.
        read: how files are read.
        progress: whether one line shows the progress; None: in notebooks.
        log_to: see `finetune_events`.

    Raises:
        UsageError, BertworksError: see `finetune_events`.
    """
    request = make_finetune_request(
        data,
        dev=dev,
        model=model,
        epochs=epochs,
        learning_rate=learning_rate,
        batch_size=batch_size,
        max_length=max_length,
        windows=windows,
        method=method,
        validation=validation,
        task=task,
        text=text,
        label=label,
        group=group,
        positive=positive,
        metric=metric,
        recipe=recipe,
        overrides=overrides,
        seed=seed,
        new_head=new_head,
        label_descriptions=label_descriptions,
        precision=precision,
        budget=budget,
        read=read,
        teacher=teacher,
        layers=layers,
    )
    run = partial(
        finetune_events, request=request, device=device, overwrite=overwrite, log_to=log_to
    )
    return open_trained(run, output, [""], device, progress)[0]


def open_trained(
    run: Callable[[str | Path], Iterator[Event]],
    output: str | Path | None,
    folders: Iterable[str],
    device: str,
    progress: bool | None,
) -> list[Predictor]:
    """Return the models that a run has written into these folders of its output.

    None: a temporary one, deleted with them.
    """
    with ExitStack() as stack:
        owner: object = None
        if output is None:
            output, owner = stack.enter_context(temporary_folder())
        show_progress(run(output), progress)
        models = [Predictor(Path(output) / folder, device=device) for folder in folders]
    for model in models:
        model.keep_alive(owner)  # the folder is deleted together with the last of the models
    return models
