"""What all tests share: the folder of real data, and one thread per test process so that timings do
not matter."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.support.hint_recorder import HintRecorder

# How long an example takes says what else the machine does. Examples are the same in every run, so
# that a failure comes with the change that causes it; HYPOTHESIS_RANDOM=1 looks for new ones.
settings.register_profile(
    "unhurried", deadline=None, derandomize="HYPOTHESIS_RANDOM" not in os.environ
)
settings.load_profile("unhurried")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# threads that spin starve the other tests' processes
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ["HF_HUB_OFFLINE"] = "1"
# A shell starts what runs in the background deaf to Ctrl-C, and children inherit that: tests of it
# would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="cpu", help="of the tests of devices: cpu, cuda or cuda:1")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(HintRecorder(config), "hints")


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> Any:
    """The torch.device of the option --device."""
    from bertworks.training.device import choose_device  # brings torch, which most tests do without

    return choose_device(request.config.getoption("--device"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Coverage is that of the tests which run everywhere. What it looks at takes two to six times
    as long."""
    for item in items:
        if "data_folder" in getattr(item, "fixturenames", ()):
            item.add_marker("no_cover")


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder named by BERTWORKS_DATA; tests that need real data are skipped without it."""
    folder = os.environ.get("BERTWORKS_DATA")
    if not folder:
        pytest.skip("BERTWORKS_DATA is unset: this test needs the real corpora")
    return Path(folder)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny BERT with random weights, to begin fine-tunings with."""
    from tests.support.fine import write_model  # brings torch, which most tests do without

    return write_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def shell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Any:
    """Types commands (tests.support.shell.Shell), in a folder whose name is several words."""
    from tests.support.shell import Shell  # brings the command line, which most tests do without

    (tmp_path / "it's here").mkdir()
    monkeypatch.chdir(tmp_path / "it's here")
    return Shell(capsys)


@pytest.fixture(scope="session", autouse=True)
def exact_answers() -> Iterator[None]:
    """Models answer in fp32 unless a test says otherwise, on processors that gain by bf16 as
    well."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bertworks.inference.engine.best_precision", lambda _: "fp32")
        yield


@pytest.fixture(scope="session", autouse=True)
def known_speed() -> Iterator[None]:
    """Keep runs from measuring this machine for long: that takes longer than the trainings of the
    tests."""
    from bertworks.training.budget import measure_steps

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bertworks.runs.training_run.measure_matmul", lambda *_: 1e11)
        patch.setattr("bertworks.runs.finetune_job.TIMING_SECONDS", 0.0)  # three steps
        patch.setattr(
            "bertworks.runs.pretrain.measure_steps",
            lambda recipe, device, _=0.0, make_batches=None: measure_steps(
                recipe, device, 0.2, make_batches
            ),
        )
        yield


@pytest.fixture(scope="session", autouse=True)
def seeds_of_this_machine() -> Iterator[None]:
    """Queue no seeds for an accelerator that this machine lacks.

    torch keeps each one with its stack of calls, which takes longer than a training step of the
    tests.
    """
    import torch  # imported by the fixtures above already

    with pytest.MonkeyPatch.context() as patch:
        if not torch.accelerator.is_available():
            for kind in (torch.cuda, torch.xpu, torch.mtia):
                patch.setattr(kind, "manual_seed_all", lambda _: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """Only a failure of power could show what fsync does; that it is called, and when, is looked at
    in tests/checkpoints/test_training_state.py. A descriptor that is none is refused as ever."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)
        yield


@pytest.fixture
def put_on_disk(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Path]]:
    """What is synced ("fsync") and what gets its name ("rename"), in order, from now on."""
    if not Path("/proc/self/fd").exists():
        pytest.skip("looks up names of open files in /proc")
    events: list[tuple[str, Path]] = []

    def noted(
        kind: str, original: Callable[..., None], which: Callable[..., Path]
    ) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            events.append((kind, which(*arguments)))
            original(*arguments)

        return call

    synced = noted(
        "fsync", os.fsync, lambda descriptor: Path(f"/proc/self/fd/{descriptor}").readlink()
    )
    monkeypatch.setattr(os, "fsync", synced)
    for name in ("rename", "replace"):
        monkeypatch.setattr(
            os, name, noted("rename", getattr(os, name), lambda _, target: Path(target))
        )
    return events
