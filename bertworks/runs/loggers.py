"""The figures of a training in a library for experiments: TensorBoard, W&B, MLflow, Trackio.

The training knows nothing of it: the figures are those of its events.

- `LoggerName`: the names of these libraries
- `require_loggers`: refuses a library that is not installed
- `logged`: passes the events of a training on, and logs them
- `Logger`: what a library has to do; `LOGGERS`: one class for each
"""

import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Protocol
from uuid import uuid4

from bertworks.checkpoints.storage import read_json
from bertworks.errors import expect, first_names, optional_import
from bertworks.events import Event, JsonObject
from bertworks.io.atomic_write import write_json
from bertworks.runs.run_folder import read_metrics

LoggerName = Literal["tensorboard", "wandb", "mlflow", "trackio"]
IDS_FILE = "loggers.json"  # of a run folder: the id of its log in each library
PROJECT = "bertworks"  # of the logs, unless the environment names another one
# Fields of a step's event that are about the future, or are no figures of the step.
_PLANS = ("step", "steps", "epochs", "eta_seconds", "job_share", "job_seconds", "job_seconds_left")


@dataclass(frozen=True)
class LogSettings:
    """What a library needs to know of a run.

    Args:
        folder: the run folder; its name is that of the log.
        log_id: the id of the log that is continued; None: a new log begins.
        resumed_step: the step of the checkpoint from which the run continues; None: it is new.
        parameters: the recipe, as numbers and texts under paths such as "optimizer.learning_rate".
    """

    folder: Path
    log_id: str | None
    resumed_step: int | None
    parameters: Mapping[str, str | int | float | bool]


class Logger(Protocol):
    """The log of one run in one library. Any exception ends the log, and not the training.

    Attributes:
        module: the library, as it is imported.
        environment: variables that are set before the import, unless the user has set them.
        can_purge: whether a log that is continued can lose its steps after a checkpoint. In one
            that cannot, the steps that it has already are not logged again.
    """

    module: str
    environment: Mapping[str, str]
    can_purge: bool

    def start(self, settings: LogSettings) -> str:
        """Begin or continue a log, and return its id."""

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Add the figures of a step, by name."""

    def finish(self) -> None:
        """Write what is not written yet."""


class TensorBoardLogger:
    """Event files in the folder `tensorboard` of the run folder."""

    module = "torch.utils.tensorboard"
    environment: Mapping[str, str] = {}
    can_purge = True

    def start(self, settings: LogSettings) -> str:
        """Begin an event file. A reader drops what earlier files have after the checkpoint."""
        from torch.utils.tensorboard import SummaryWriter

        resumed = settings.resumed_step
        folder = settings.folder / "tensorboard"
        self._writer: Any = SummaryWriter(
            str(folder), purge_step=None if resumed is None else resumed + 1
        )
        if settings.log_id is None:
            rows = [f"| {name} | {value} |" for name, value in settings.parameters.items()]
            table = "\n".join(["| parameter | value |", "|---|---|", *rows])
            self._writer.add_text("parameters", table, 0)
        return folder.name

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Add the figures of a step."""
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)

    def finish(self) -> None:
        """Close the event file."""
        self._writer.close()


class WandbLogger:
    """A run of Weights & Biases in the folder `wandb` of the run folder.

    It is offline unless WANDB_MODE says otherwise: `wandb sync` sends it.
    """

    module = "wandb"
    environment: Mapping[str, str] = {"WANDB_ERROR_REPORTING": "false"}
    can_purge = False

    def start(self, settings: LogSettings) -> str:
        """Begin a run, or continue the one of this id. Offline, its next part has the same id."""
        import wandb

        mode = os.environ.get("WANDB_MODE", "offline")
        is_continued = settings.log_id is not None and mode == "online"
        self._run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=settings.folder.name,
            dir=str(settings.folder),
            id=settings.log_id,
            resume="must" if is_continued else None,
            config=dict(settings.parameters),
            mode=mode,
            settings=wandb.Settings(
                console="off",
                disable_code=True,
                disable_git=True,
                disable_job_creation=True,
                save_code=False,
                silent=True,
                x_disable_machine_info=True,
                x_disable_meta=True,
                x_disable_stats=True,
                x_save_requirements=False,
            ),
        )
        return str(self._run.id)

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Add the figures of a step. Those of an evaluation join those of its step."""
        self._run.log(dict(figures), step=step)

    def finish(self) -> None:
        """Wait until the service of the library has written the run."""
        self._run.finish()


class MlflowLogger:
    """A run of MLflow, in the store of MLFLOW_TRACKING_URI, by default that of the library.

    The default is the file `mlflow.db` in the current folder.
    """

    module = "mlflow"
    environment: Mapping[str, str] = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
    can_purge = False

    def start(self, settings: LogSettings) -> str:
        """Begin a run, or continue the one of this id."""
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._client: Any = MlflowClient()
        if settings.log_id is not None:
            self._run_id = settings.log_id
            self._client.update_run(self._run_id, status="RUNNING")
            return self._run_id
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        experiment = self._client.get_experiment_by_name(name)
        number = experiment.experiment_id if experiment else self._client.create_experiment(name)
        run = self._client.create_run(number, run_name=settings.folder.name)
        self._run_id = str(run.info.run_id)
        items = [*settings.parameters.items()]
        for begin in range(0, len(items), 100):  # more at once are refused
            batch = [Param(_mlflow_name(key), str(x)) for key, x in items[begin : begin + 100]]
            self._client.log_batch(self._run_id, params=batch)
        return self._run_id

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Add the figures of a step."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(_mlflow_name(name), x, now, step) for name, x in figures.items()]
        self._client.log_batch(self._run_id, metrics=metrics)

    def finish(self) -> None:
        """Mark the run as finished."""
        self._client.set_terminated(self._run_id)


def _mlflow_name(name: str) -> str:
    """Return a name with an underscore in place of each character that MLflow refuses."""
    return re.sub(r"[^\w\-. /]", "_", name)


class TrackioLogger:
    """A run in the local database of Trackio, unless TRACKIO_SPACE_ID names another place."""

    module = "trackio"
    environment: Mapping[str, str] = {}
    can_purge = False

    def start(self, settings: LogSettings) -> str:
        """Begin a run, or continue the one of this name. Trackio finds a run by its name alone."""
        import trackio

        is_continued = settings.log_id is not None
        name = settings.log_id or f"{settings.folder.name}-{uuid4().hex[:8]}"
        self._run: Any = trackio.init(
            project=os.environ.get("TRACKIO_PROJECT", PROJECT),
            name=name,
            config=dict(settings.parameters),
            resume="must" if is_continued else "never",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        return name

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Add the figures of a step."""
        self._run.log(dict(figures), step=step)

    def finish(self) -> None:
        """Wait until the figures are in the database."""
        self._run.finish()


LOGGERS: dict[str, Callable[[], Logger]] = {
    "tensorboard": TensorBoardLogger,
    "wandb": WandbLogger,
    "mlflow": MlflowLogger,
    "trackio": TrackioLogger,
}


def require_loggers(names: Iterable[str]) -> list[str]:
    """Return the names of libraries, each once, after importing them.

    Raises:
        UsageError: there is no such library.
        BertworksError: a library is not installed.
    """
    unique = list(dict.fromkeys(names))
    for name in unique:
        expect(
            name in LOGGERS,
            f"there is no logger {name!r}; there are {first_names([*LOGGERS])}",
            hint="--log-to tensorboard",
        )
        logger = LOGGERS[name]()
        for variable, value in logger.environment.items():
            os.environ.setdefault(variable, value)
        with optional_import(f"--log-to {name}", f'"bertworks[{name}]"'):
            import_module(logger.module)
    return unique


def logged(
    events: Iterable[Event],
    names: Iterable[str],
    folder: Path,
    recipe: Mapping[str, Any],
    is_first: bool = True,
) -> Iterator[Event]:
    """Yield the events of a training, and log the figures of its steps and evaluations.

    A log begins with the first of these events. The run folder keeps its id, with which a resumed
    run continues it. A library that fails is not used any further, after one warning.

    Args:
        names: of libraries, which `require_loggers` has imported.
        folder: the run folder.
        recipe: the settings of the training, as tables within tables.
        is_first: whether this is the first process of the training; the others log nothing.
    """
    if not is_first:
        names = ()
    logs = [_Log(name, folder) for name in names]
    last_logged = {False: -1, True: -1}
    for _, step, _, is_evaluation in read_metrics(folder / "metrics.jsonl"):
        last_logged[is_evaluation] = max(step, last_logged[is_evaluation])
    resumed_step: int | None = None
    parameters = {"folder": folder.name, **dict(_flat(recipe, ""))}
    try:
        for event in events:
            yield event
            resumed_step = event.fields.get("resumed_step", resumed_step)
            if event.kind not in ("step", "evaluation"):
                continue
            for log in logs:
                log.add(event, parameters, resumed_step, last_logged)
            yield from (note for log in logs for note in log.take_warning())
    except BaseException:
        for log in logs:
            log.finish()  # a warning has no reader any more: the exception is reported
        raise
    for log in logs:
        log.finish()
        yield from log.take_warning()


class _Log:
    """The log of one library: begun with its first figures, ended by its first failure."""

    def __init__(self, name: str, folder: Path):
        self.name = name
        self._folder = folder
        self._logger = LOGGERS[name]()
        self._is_started = False
        self._is_ended = False
        self._is_continued = False
        self._warning: Event | None = None

    def add(
        self,
        event: Event,
        parameters: Mapping[str, Any],
        resumed_step: int | None,
        last_logged: Mapping[bool, int],
    ) -> None:
        """Log the figures of an event, unless the log has them already."""
        step = event.fields["step"]
        is_evaluation = event.kind == "evaluation"
        if not self._is_started:
            self._is_started = True
            self._call(lambda: self._start(parameters, resumed_step))
        last = last_logged[is_evaluation] if self._is_continued else -1
        if self._logger.can_purge:
            last = min(last, -1 if resumed_step is None else resumed_step)
        if step > last:
            figures = _figures(event, "held_out" if is_evaluation else "train")
            self._call(lambda: self._logger.log(step, figures))

    def _start(self, parameters: Mapping[str, Any], resumed_step: int | None) -> None:
        path = self._folder / IDS_FILE
        ids: JsonObject = read_json(path) if path.exists() else {}
        log_id = ids.get(self.name)
        self._is_continued = log_id is not None
        settings = LogSettings(self._folder, log_id, resumed_step, parameters)
        write_json(path, ids | {self.name: self._logger.start(settings)})

    def finish(self) -> None:
        """End the log, if it was begun and has not failed."""
        if self._is_started:
            self._call(self._logger.finish)
        self._is_ended = True

    def take_warning(self) -> list[Event]:
        """Return the warning about a failure, once."""
        warning = self._warning
        self._warning = None
        return [warning] if warning else []

    def _call(self, action: Callable[[], None]) -> None:
        """Let the library do something. What it prints is not a result of the command."""
        if self._is_ended:
            return
        try:
            with redirect_stdout(sys.stderr):
                action()
        except Exception as error:
            self._is_ended = True
            text = (
                f"warning: --log-to {self.name} failed, and the training continues without it: "
                f"{type(error).__name__}: {error}"
            )
            self._warning = Event("note", text, {"logger": self.name}, is_warning=True)


def _figures(event: Event, group: str) -> dict[str, float]:
    """Return the numbers of an event under names such as "train/loss"."""
    return {
        f"{group}/{name}": float(value)
        for name, value in event.fields.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and name not in _PLANS
    }


def _flat(value: Any, path: str) -> Iterator[tuple[str, str | int | float | bool]]:
    """Yield the values of tables within tables, with their paths. None stands for no value."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _flat(inner, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list | tuple) and any(isinstance(x, Mapping) for x in value):
        yield from _flat(dict(enumerate(value)), path)
    elif value is not None:
        yield path, value if isinstance(value, str | int | float | bool) else str(value)
