"""Several fine-tunings in one folder, killed after any file that they write: the same command ends
as one that nothing stopped.

The state after a kill is that of the disk in front of the next change of the file system. It is
copied there, and each copy is resumed.
"""

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from bertworks.errors import UsageError
from bertworks.runs.finetune import make_finetune_request
from bertworks.runs.trials import Trial, plan_trials, run_trials
from tests.support.fine import write_model, write_reviews
from tests.support.refusals import refusal

FAST = ("epochs=1", "batch_size=16", "optimizer.learning_rate=2e-3", "precision=fp32")
KINDS: dict[str, dict[str, Any]] = {
    "seeds": {"seeds": 2},
    "folds": {"folds": 2},
    "sweep": {"sweep": ["dropout=0.1,0.2"]},
}
CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link"}
TIMES = {"seconds", "tokens_per_second", "estimated_seconds", "weights_sha256"}


def write_command(folder: Path) -> None:
    write_model(folder / "model")
    write_reviews(folder / "reviews.csv", 48)


def trials_of(folder: Path, kind: str) -> list[Trial]:
    options: dict[str, Any] = (
        {"validation": "split", "method": "full"} if kind != "folds" else {"method": "full"}
    )
    request = make_finetune_request(
        folder / "reviews.csv", model=folder / "model", overrides=FAST, **options
    )
    return plan_trials(request, **KINDS[kind])


def run(output: Path, command: Path, kind: str, **options: Any) -> None:
    *_, last_event = run_trials(output, trials_of(command, kind), device="cpu", **options)
    assert last_event.kind == "done"


# --- snapshots
# --------------------------------------------------------------------------------------------------


@cache
def hook_of_changes() -> list[Callable[[], None]]:
    """Functions that are called in front of every change of the file system. An audit hook cannot
    be removed."""
    functions: list[Callable[[], None]] = []

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if not functions or (event != "open" and event not in CHANGES):
            return
        is_change = True
        if event == "open":
            flags = arguments[2]
            is_change = isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR))
        if is_change:
            function = functions.pop()  # what it changes itself does not count
            try:
                function()
            finally:
                functions.append(function)

    sys.addaudithook(hook)
    return functions


def files_of(folder: Path) -> dict[str, Path]:
    """The files of a run, without locks and unfinished ones."""
    paths = {
        path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()
    }
    return {name: path for name, path in sorted(paths.items()) if "/." not in f"/{name}"}


@contextmanager
def snapshots(output: Path, folder: Path) -> Iterator[list[Path]]:
    """Copies of the output, after each of its files that is written or deleted in the block."""
    copies: list[Path] = []
    last: dict[str, tuple[int, int]] = {}

    def copy() -> None:
        nonlocal last
        states = {
            name: (path.stat().st_size, path.stat().st_mtime_ns)
            for name, path in files_of(output).items()
        }
        if states != last:
            last = states
            copies.append(folder / f"{len(copies):03}")
            shutil.copytree(output, copies[-1])

    functions = hook_of_changes()
    functions.append(copy)
    try:
        yield copies
    finally:
        functions.clear()


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_times(part) for name, part in value.items() if name not in TIMES}
    if isinstance(value, list):
        return [without_times(part) for part in value]
    return value


def assert_same(output: Path, whole_folder: Path) -> None:
    """Both folders have the same files, and the same content of all that does not tell times or
    places."""
    files = files_of(output)
    expected_files = files_of(whole_folder)
    assert files.keys() == expected_files.keys()
    for name, path in files.items():
        suffixes = Path(name).suffix
        if suffixes in (".safetensors", ".csv", ".toml") or Path(name).name in (
            "task.json",
            "config.json",
        ):
            assert path.read_bytes() == expected_files[name].read_bytes(), name
        elif Path(name).name in ("trials.json", "result.json", "run.json", "data.json"):
            content = json.loads(path.read_text())
            expected_content = json.loads(expected_files[name].read_text())
            assert without_times(content) == without_times(expected_content), name
    cards = [
        (folder / "README.md").read_text().partition("## Quality")[2]
        for folder in (output, whole_folder)
    ]
    assert (
        cards[0].count("This model is the best of")
        == cards[1].count("This model is the best of")
        == 1
    )


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("command")
    write_command(folder)
    return folder


def resume_all(
    command: Path, kind: str, folder: Path, choose: Callable[[list[Path]], list[Path]]
) -> None:
    with snapshots(folder / "whole", folder / "copies") as copies:
        run(folder / "whole", command, kind)
    assert len(copies) > 25
    for copy in choose(copies):
        run(copy, command, kind)
        assert_same(copy, folder / "whole")


def test_several_trainings_resume_after_the_first_files(command: Path, tmp_path: Path) -> None:
    """`finetune --seeds 2`, killed before the first event, could never be resumed: "holds no run:
    seed-0"."""
    resume_all(command, "seeds", tmp_path, lambda copies: [copies[0], copies[len(copies) // 2]])


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_several_trainings_resume_after_every_file(
    kind: str, command: Path, tmp_path: Path
) -> None:
    resume_all(command, kind, tmp_path, lambda copies: copies)


def test_the_request_is_the_first_file(command: Path, tmp_path: Path) -> None:
    trials = trials_of(command, "seeds")
    with snapshots(tmp_path / "out", tmp_path / "copies") as copies:
        events = run_trials(tmp_path / "out", trials, device="cpu")
        while next(events).kind != "step":
            pass
        events.close()
    assert [[*files_of(copy)] for copy in copies[:2]] == [
        ["run.json"],
        ["run.json", "seed-0/run.json"],
    ]


def test_a_refused_request_writes_nothing(command: Path, tmp_path: Path) -> None:
    request = make_finetune_request(
        command / "reviews.csv", model=command / "model", text="none", overrides=FAST
    )
    with pytest.raises(UsageError, match="none"):
        list(run_trials(tmp_path / "out", plan_trials(request, seeds=2), device="cpu"))
    assert not (tmp_path / "out").exists()


def test_two_processes_do_not_write_to_one_folder(command: Path, tmp_path: Path) -> None:
    first = run_trials(tmp_path / "out", trials_of(command, "seeds"), device="cpu")
    while next(first).kind != "step":
        pass
    with pytest.raises(Exception, match="is writing to this run folder"):
        run(tmp_path / "out", command, "seeds")
    first.close()
    run(tmp_path / "out", command, "seeds")


def test_an_interrupted_overwriting_resumes_without_the_option(
    command: Path, tmp_path: Path
) -> None:
    """The former trainings are deleted before the new request is written: no one of them counts as
    a new one."""
    request = make_finetune_request(
        command / "reviews.csv",
        model=command / "model",
        overrides=FAST,
        method="full",
        validation="split",
        max_length=16,
    )
    list(run_trials(tmp_path / "out", plan_trials(request, seeds=2), device="cpu"))
    (tmp_path / "out/seed-1/notes.txt").write_text("of the user")
    (tmp_path / "out/mine.txt").write_text("of the user")
    with snapshots(tmp_path / "out", tmp_path / "copies") as copies:
        events = run_trials(
            tmp_path / "out", trials_of(command, "seeds"), device="cpu", overwrite=True
        )
        while next(events).kind != "step":
            pass
        events.close()
    request_of_second = (copies[-1] / "seed-1/run.json").read_text()
    cleared = [
        copy for copy in copies if (copy / "seed-1/run.json").read_text() == request_of_second
    ]
    assert 0 < len(cleared) < len(copies)
    assert all([*files_of(copy / "seed-1")] == ["notes.txt", "run.json"] for copy in cleared)
    run(cleared[0], command, "seeds")
    run(tmp_path / "whole", command, "seeds")
    for path in (cleared[0] / "seed-1/notes.txt", cleared[0] / "mine.txt"):
        assert path.read_text() == "of the user"
        path.unlink()
    assert_same(cleared[0], tmp_path / "whole")
    # seed-0 is cleared, seed-1 is not
    with pytest.raises(UsageError, match="a run with other settings"):
        run(copies[copies.index(cleared[0]) - 1], command, "seeds")


def test_trials_need_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    what = "several fine-tunings run one after the other, in one process, and there are 2"
    with refusal(what, "leave torchrun out; or type one command for each: --seed 1 -o FOLDER-1"):
        next(run_trials(tmp_path, []))
