"""The logs of a training: what the libraries get, in which order, and after a resume.

A failure ends a log and not the training.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, get_args

import pytest

from bertworks.cli import console
from bertworks.errors import BertworksError, UsageError
from bertworks.events import Event
from bertworks.runs import finetune, loggers, pretrain
from bertworks.runs.loggers import LOGGERS, LoggerName, LogSettings, logged, require_loggers
from bertworks.text.corpus import CorpusReader
from bertworks.text.shards import write_shards
from bertworks.text.vocabulary import VocabularyConfig, train_vocabulary
from tests.support.fine import write_reviews
from tests.support.tiny import documents, metrics, write_corpus, write_recipe

RECIPE = {"title": "T", "seed": 1, "train": {"phases": ({"num_steps": 4},), "patience": None}}


class Recorder:
    """A library that keeps what it is told."""

    module = "json"
    environment: Mapping[str, str] = {}
    can_purge = False
    calls: ClassVar[list[tuple[Any, ...]]] = []
    fails_at = ""

    def _call(self, *call: Any) -> None:
        self.calls.append(call)
        if call[0] == self.fails_at:
            raise OSError("the disk is full")

    def start(self, settings: LogSettings) -> str:
        print("a greeting")
        self._call("start", settings.log_id, settings.resumed_step, dict(settings.parameters))
        return settings.log_id or "id-7"

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        self._call("log", step, dict(figures))

    def finish(self) -> None:
        self._call("finish")


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> type[Recorder]:
    class Fresh(Recorder):
        calls: ClassVar[list[tuple[Any, ...]]] = []

    monkeypatch.setitem(LOGGERS, "wandb", Fresh)
    return Fresh


def step(number: int, loss: float | None = 1.0) -> Event:
    fields = {
        "step": number,
        "loss": loss,
        "tokens": 5,
        "steps": 4,
        "eta_seconds": 1.0,
        "part": "x",
    }
    return Event("step", "", fields)


def evaluation(number: int) -> Event:
    return Event("evaluation", "", {"step": number, "accuracy": 0.5})


def run(folder: Path, events: list[Event], names: Any = ("wandb",), **options: Any) -> list[Event]:
    return list(logged(events, names, folder, RECIPE, **options))


def begin_events(resumed: int | None = None) -> list[Event]:
    return [] if resumed is None else [Event("note", "", {"resumed_step": resumed})]


def write_metrics(folder: Path, steps: int, evaluated: int) -> None:
    lines = [{"step": n, "loss": 1.0} for n in range(1, steps + 1)]
    lines += [{"step": evaluated, "evaluation": {"accuracy": 0.5}}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_order_and_content(
    recorder: type[Recorder], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    events = [evaluation(0), step(1), step(2, None), evaluation(2), Event("done", "")]
    (tmp_path / "b").mkdir()
    assert run(tmp_path / "b", events) == events
    parameters = {"folder": "b", "title": "T", "seed": 1, "train.phases.0.num_steps": 4}
    assert recorder.calls == [
        ("start", None, None, parameters),
        ("log", 0, {"held_out/accuracy": 0.5}),
        ("log", 1, {"train/loss": 1.0, "train/tokens": 5.0}),
        ("log", 2, {"train/tokens": 5.0}),
        ("log", 2, {"held_out/accuracy": 0.5}),
        ("finish",),
    ]
    assert json.loads((tmp_path / "b/loggers.json").read_text()) == {"wandb": "id-7"}
    output = capsys.readouterr()
    assert output.out == ""
    assert "a greeting" in output.err


@pytest.mark.parametrize(
    ("can_purge", "steps"), [(False, [4]), (True, [3, 4])], ids=["skips", "purges"]
)
def test_a_resumed_run_continues_its_log_and_repeats_nothing(
    recorder: type[Recorder], tmp_path: Path, can_purge: bool, steps: list[int]
):
    recorder.can_purge = can_purge
    (tmp_path / "loggers.json").write_text('{"mlflow": "other", "wandb": "id-9"}')
    write_metrics(tmp_path, steps=3, evaluated=2)
    run(tmp_path, [*begin_events(2), evaluation(2), step(3), step(4), evaluation(4)])
    start, *logs, end = recorder.calls
    assert start[:3] == ("start", "id-9", 2)
    assert [call[1] for call in logs if "train/loss" in call[2]] == steps
    assert [call[1] for call in logs if "held_out/accuracy" in call[2]] == [4]
    assert end == ("finish",)
    ids = json.loads((tmp_path / "loggers.json").read_text())
    assert ids == {"mlflow": "other", "wandb": "id-9"}


def test_a_log_that_begins_with_a_resumed_run_has_all_its_steps(
    recorder: type[Recorder], tmp_path: Path
):
    write_metrics(tmp_path, steps=3, evaluated=2)
    run(tmp_path, [*begin_events(2), step(3), step(4)])
    assert [call[1] for call in recorder.calls if call[0] == "log"] == [3, 4]


@pytest.mark.parametrize("where", ["start", "log", "finish"])
def test_a_failure_warns_once(recorder: type[Recorder], tmp_path: Path, where: str):
    recorder.fails_at = where
    events = [step(1), step(2), step(3)]
    passed = run(tmp_path, events)
    assert [event for event in passed if event.kind == "step"] == events
    (warning,) = [event for event in passed if event.is_warning]
    assert warning.text.startswith("warning: --log-to wandb failed")
    assert "OSError: the disk is full" in warning.text
    assert sum(call[0] == where for call in recorder.calls) == 1


def test_an_interrupted_training_ends_its_log(recorder: type[Recorder], tmp_path: Path):
    def events() -> Iterator[Event]:
        yield step(1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(logged(events(), ["wandb"], tmp_path, RECIPE))
    assert recorder.calls[-1] == ("finish",)


def test_only_the_first_process_logs(recorder: type[Recorder], tmp_path: Path):
    assert len(run(tmp_path, [step(1)], is_first=False)) == 1
    assert not recorder.calls
    assert not (tmp_path / "loggers.json").exists()


def test_a_missing_package_and_an_unknown_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, recorder: type[Recorder]
):
    monkeypatch.setattr(recorder, "module", "no_such_library")
    with pytest.raises(BertworksError) as refusal:
        list(pretrain.pretrain(["no-text"], tmp_path / "a", log_to="wandb"))
    assert refusal.value.hint == 'pip install "bertworks[wandb]"'
    assert not (tmp_path / "a").exists()
    with pytest.raises(UsageError, match="no logger 'comet'") as refusal:
        require_loggers(["comet"])
    assert refusal.value.hint == "--log-to tensorboard"


def test_names_are_those_of_the_command_line():
    assert tuple(LOGGERS) == get_args(LoggerName)
    words = get_args(get_args(get_args(console.LogTo)[0])[0])[0]
    assert get_args(words) == get_args(LoggerName)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    reader = CorpusReader([write_corpus(folder / "text.jsonl")])
    tokenizer, _ = train_vocabulary(documents(), VocabularyConfig(size=300), workers=1)
    write_shards(reader, tokenizer, folder / "shards", workers=1)
    return folder / "shards"


def train(shards: Path, folder: Path, stop: int = 0, **options: Any) -> None:
    """Pre-train for four steps; stop: kill it after this step, without saving."""
    recipe = folder / "r.toml"
    if not recipe.exists():
        write_recipe(recipe, ("num_steps = 40", "num_steps = 4"))
    for event in pretrain.pretrain(
        [shards], folder / "run", recipe=str(recipe), device="cpu", workers=1, **options
    ):
        if event.kind == "step" and event.fields["step"] == stop:
            break


def test_a_pretraining_is_logged_as_in_its_metrics(
    recorder: type[Recorder], shards: Path, tmp_path: Path
):
    train(shards, tmp_path, stop=3)
    train(shards, tmp_path, log_to=["wandb", "wandb"])  # another --log-to is no other request
    logs = [call[1:] for call in recorder.calls if call[0] == "log"]
    lines = metrics(tmp_path / "run")
    for line in lines[-3:]:
        group = "held_out" if "evaluation" in line else "train"
        figures = next(f for n, f in logs if n == line["step"] and f"{group}/" in next(iter(f)))
        for name, value in line.get("evaluation", line).items():
            assert name == "step" or figures[f"{group}/{name}"] == value
    assert recorder.calls[0][3]["train.phases.0.num_steps"] == 4


def test_a_finetuning_logs_the_training_with_all_rows(
    recorder: type[Recorder], model: Path, tmp_path: Path
):
    options: dict[str, Any] = {"model": str(model), "overrides": ("epochs=2", "precision=fp32")}
    data = write_reviews(tmp_path / "rows.csv", 24)
    request = finetune.make_finetune_request(data, method="full", validation="folds", **options)
    output = tmp_path / "out"
    events = list(
        finetune.finetune_events(output, request, device="cpu", compares=False, log_to="wandb")
    )
    assert any("fold" in event.text for event in events if event.kind == "stage")
    trained = [line["step"] for line in metrics(output) if "loss" in line]
    logs = [call for call in recorder.calls if call[0] == "log"]
    assert [call[1] for call in logs if "train/loss" in call[2]] == trained
    assert sum(call[0] == "start" for call in recorder.calls) == 1
    assert recorder.calls[0][3]["folder"] == "out"
    recorder.calls.clear()
    request = finetune.make_finetune_request(data, method="frozen", model=str(model))
    list(
        finetune.finetune_events(
            tmp_path / "frozen", request, device="cpu", compares=False, log_to="wandb"
        )
    )
    assert [call[0] for call in recorder.calls] == ["start", "log", "finish"]
    assert 0 <= recorder.calls[1][2]["held_out/accuracy"] <= 1


# The libraries themselves, where they are installed. What they warn of is not ours.


def two_parts(folder: Path, name: str) -> None:
    """Log steps 1 to 3, then resume after step 2 and log up to step 4."""
    first = [step(1), step(2), evaluation(2), step(3)]
    second = [*begin_events(2), step(3), step(4), evaluation(4)]
    for events in (first, second):
        passed = run(folder, events, require_loggers([name]))
        assert not [event.text for event in passed if event.is_warning]
        write_metrics(folder, steps=3, evaluated=2)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


@pytest.mark.filterwarnings("ignore")
def test_tensorboard(folder: Path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    two_parts(folder, "tensorboard")
    reader = EventAccumulator(str(folder / "tensorboard"))
    reader.Reload()
    assert [(x.step, x.value) for x in reader.Scalars("train/loss")] == [
        (n, 1.0) for n in (1, 2, 3, 4)
    ]
    assert [x.step for x in reader.Scalars("held_out/accuracy")] == [2, 4]
    (table,) = reader.Tensors("parameters/text_summary")
    assert b"| train.phases.0.num_steps | 4 |" in table.tensor_proto.string_val[0]


@pytest.mark.filterwarnings("ignore")
def test_wandb(folder: Path):
    pytest.importorskip("wandb")
    two_parts(folder, "wandb")
    log_id = json.loads((folder / "loggers.json").read_text())["wandb"]
    parts = sorted((folder / "wandb").glob(f"offline-run-*-{log_id}/run-{log_id}.wandb"))
    assert parts
    content = b"".join(part.read_bytes() for part in parts)
    assert b"held_out/accuracy" in content
    assert b"train.phases.0.num_steps" in content


@pytest.mark.filterwarnings("ignore")
def test_mlflow(folder: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder.parent}/mlflow.db")
    two_parts(folder, "mlflow")
    client = MlflowClient()
    log_id = json.loads((folder / "loggers.json").read_text())["mlflow"]
    history = client.get_metric_history(log_id, "train/loss")
    assert sorted((x.step, x.value) for x in history) == [(n, 1.0) for n in (1, 2, 3, 4)]
    held_out = client.get_metric_history(log_id, "held_out/accuracy")
    assert [x.step for x in held_out] == [2, 4]
    stored = client.get_run(log_id)
    assert stored.info.run_name == "run"
    assert stored.info.status == "FINISHED"
    assert stored.data.params["train.phases.0.num_steps"] == "4"


@pytest.mark.filterwarnings("ignore")
def test_trackio(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TRACKIO_DIR", str(folder.parent / "trackio"))
    pytest.importorskip("trackio")
    from trackio.sqlite_storage import SQLiteStorage

    two_parts(folder, "trackio")
    name = json.loads((folder / "loggers.json").read_text())["trackio"]
    assert name.startswith("run-")
    rows = SQLiteStorage.get_logs(loggers.PROJECT, name)
    assert [row["step"] for row in rows if "train/loss" in row] == [1, 2, 3, 4]
    assert [row["step"] for row in rows if "held_out/accuracy" in row] == [2, 4]
