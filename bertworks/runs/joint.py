"""Several labelled data sets -> one encoder with a head for each, in one call that can be repeated."""

import shutil
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from bertworks.checkpoints.resolve import TASKS
from bertworks.config import option_of
from bertworks.errors import UsageError, as_path
from bertworks.events import Event, duration, forward_events, show_progress
from bertworks.inference.decoding import make_featurizer
from bertworks.inference.predictor import Predictor
from bertworks.io.atomic_write import write_json, write_text
from bertworks.io.tables import Data
from bertworks.runs.finetune import FINISHED, evaluate_on_dev, finetuning, make_finetune_request
from bertworks.runs.finetune_job import forecast, task_name
from bertworks.runs.joint_job import JointJob, JointRequest
from bertworks.runs.processes import Processes
from bertworks.runs.report import joint_card
from bertworks.runs.training_run import TrainingRun
from bertworks.training.device import choose_device, disable_heap_trim

# Options of one data set, and their values that mean nothing
_OF_ONE: dict[str, tuple[Any, ...]] = dict.fromkeys(("dev", "task", "text", "label", "group", "metric"), (None, ()))
_OF_ONE |= {"budget": (None,), "method": ("auto", "full"), "validation": ("auto", "split"), "sweep": (None, ())}
_OF_ONE |= {"seeds": (1,), "folds": (0,), "teacher": (None,)}


def make_joint_request(
    data: Iterable[str | Path] | Mapping[str, Data], *, mix: float = 0.0, **options: Any
) -> JointRequest:
    """The request for `joint_events`, with absolute paths.

    Args:
        data: files or folders, each with the name of its task; or data as in `finetune`, by the name of the task.
        mix: batches of all other tasks together, for one of the first; 0: all.
        options: those of `finetune` that are not about one data set.

    Raises:
        UsageError: fewer than two tasks, or two with the same name; an option of one data set.
    """
    for name, neutral in _OF_ONE.items():
        if options.pop(name, None) not in (*neutral, None):
            word = option_of(name)
            raise UsageError(f"{word} is for one data set, not for a joint fine-tuning", hint=f"leave out {word}")
    if not 0 <= mix < 1e6:
        raise UsageError(f"mix is {mix}: expected 0 or more", hint="--mix 1")
    pairs = [*data.items()] if isinstance(data, Mapping) else [(task_name(str(one)), one) for one in data]
    if len(pairs) < 2:
        raise UsageError("a joint fine-tuning needs two or more data sets", hint="leave out --joint")
    tasks = {}
    for name, one in pairs:
        if name in tasks:
            what = f"two data sets have the name {name!r}, which is that of their file or folder"
            raise UsageError(what, hint="rename one of them")
        if not name or Path(name).name != name or name.startswith("."):
            raise UsageError(f"{name!r} is not a name of a task: expected one that a folder can have")
        tasks[name] = make_finetune_request(one, **{"recipe": "mt-dnn", **options}, method="full", validation="split")
    return JointRequest(tasks, mix)


def joint_events(
    output: str | Path, request: JointRequest, *, device: str = "auto", overwrite: bool = False
) -> Iterator[Event]:
    """Fine-tunes one encoder for several tasks and yields events; `output/tasks` has a model folder for each.

    Raises:
        UsageError, BertworksError: as `finetune_events`.
    """
    output, device_ = as_path(output, "output folder"), choose_device(device)
    yield from finetuning(
        output, request, device_, overwrite, lambda recipe, _: JointJob(request, device_, recipe), _train
    )


def _train(job: JointJob, output: Path, device: torch.device, processes: Processes) -> Iterator[Event]:
    seconds, part = 0.0, job.steps_per_epoch / sum(job.sizes)
    disable_heap_trim()
    if processes.first:
        seconds = part * sum(forecast(one, device, processes.count) for one in job.jobs.values())
        processes.meet(output)
    for name, one in job.jobs.items():
        yield Event("stage", f"task {name}", {"stage": name})
        yield from make_featurizer(one.description, one.model.tokenizer).examples(one.train)
    steps = f"{job.recipe.epochs} epochs of {job.steps_per_epoch:,} steps, {job.recipe.batch_size} at a time"
    text = f"{job.survey}\ntraining     {steps}, each of one task\n"
    text += f"time         about {duration(seconds)} on this machine"
    yield Event("plan", text, {"recipe": asdict(job.recipe), "estimated_seconds": seconds})
    done = yield from forward_events(TrainingRun(output, job, device, processes).events())
    if processes.first:
        evaluated = {n: evaluate_on_dev(one, output / TASKS / n, device) for n, one in job.jobs.items()}
        results = {name: result for name, (result, _) in evaluated.items()}
        write_text(output / "README.md", joint_card(output, job.recipe, job.model_name, results))
        text = "\n\n".join(text for _, text in evaluated.values())
        job.report(output, f"{text}\n\n")
        figures = {name: result["figures"] for name, result in results.items()}
        write_json(output / FINISHED, {"text": text, "fields": done.fields | {"figures": figures}})
        shutil.rmtree(output / "checkpoints", ignore_errors=True)
    processes.wait()


def finetune_joint(
    data: Iterable[str | Path] | Mapping[str, Data], *, output: str | Path | None = None, mix: float = 0.0,
    device: str = "auto", overwrite: bool = False, progress: bool | None = None, **options: Any,
) -> dict[str, Predictor]:  # fmt: skip
    """Fine-tunes one encoder for several tasks, and returns a model for each, by name (MT-DNN, Liu et al. 2019).

    Args:
        data: files or folders, each with the name of its task; or data as in `finetune`, by the name of the task.
        output: the run folder; None: a temporary one, deleted together with the returned models.
        mix: batches of all other tasks together, for one of the first; 0: all.
        options: those of `finetune` that are not about one data set; the recipe is "mt-dnn".
        progress: whether one line shows the progress; None: in notebooks.

    Raises:
        UsageError, BertworksError: see `make_joint_request` and `finetune_events`.
    """
    request = make_joint_request(data, mix=mix, **options)
    with ExitStack() as stack:
        if output is None:
            output = stack.enter_context(TemporaryDirectory(prefix="bertworks-", ignore_cleanup_errors=True))
        show_progress(joint_events(output, request, device=device, overwrite=overwrite), progress)
        models = {name: Predictor(Path(output) / TASKS / name, device=device) for name in request.tasks}
        keep = stack.pop_all()
        for predictor in models.values():
            weakref.finalize(predictor, keep.close)
    return models
