"""Stopped in any way at any moment and started again, a run ends with the same bits as one that was
never stopped."""

import json
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from bertworks.checkpoints.model_folder import load_model
from bertworks.checkpoints.training_state import latest_checkpoint, save_checkpoint
from bertworks.errors import UsageError
from bertworks.runs.pretrain import pretrain
from tests.support import SUPPORT
from tests.support.refusals import refusal
from tests.support.tiny import (
    assert_same_run,
    facts,
    leftovers,
    metrics,
    newest,
    write_corpus,
    write_recipe,
)

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
Live = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    """Lets a child pre-train; see nursery.py."""
    process = subprocess.Popen(
        [sys.executable, str(SUPPORT / "nursery.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=ENVIRONMENT,
        text=True,
    )
    assert process.stdin
    assert process.stdout

    def order(
        output: Path, kill: dict[str, Any] | None = None, slow: int = 0, **arguments: Any
    ) -> dict[str, Any]:
        arguments |= {"output": str(output), "workers": 1}
        print(
            json.dumps({"arguments": arguments, "kill": kill, "slow": slow}),
            file=process.stdin,
            flush=True,
        )
        return json.loads(process.stdout.readline())  # type: ignore[no-any-return]

    yield order
    process.stdin.close()
    assert process.wait(20) == 0
    process.stdout.close()


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("text")
    return {
        "inputs": [str(write_corpus(folder / "text.jsonl"))],
        "recipe": str(write_recipe(folder / "recipe.toml", ("num_steps = 40", "num_steps = 25"))),
    }


@pytest.fixture(scope="module")
def whole(command: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nothing stops, by another process than those that are compared with it: the
    command line."""
    output = tmp_path_factory.mktemp("whole") / "model"
    words = [
        "pretrain",
        *command["inputs"],
        "-o",
        str(output),
        "--recipe",
        command["recipe"],
        "--workers",
        "1",
    ]
    subprocess.run(
        [sys.executable, "-m", "bertworks.cli.main", *words],
        env=ENVIRONMENT,
        check=True,
        capture_output=True,
    )
    return output


def assert_ended_alike(output: Path, whole: Path) -> None:
    assert_same_run(output, whole)
    assert not leftovers(output)


def die_often(
    live: Live, command: dict[str, Any], whole: Path, folder: Path, deaths: int, seed: int
) -> Counter[str]:
    """Kills and starts again until there were so many deaths and the last run is done; what they
    died of doing."""
    draw = random.Random(seed)
    first = live(folder / "first", **command)
    assert first["code"] == 0, first["said"]
    assert_ended_alike(folder / "first", whole)
    stages: Counter[str] = Counter()
    number = 0
    output = folder / "0"
    while True:
        kill = None
        if sum(stages.values()) < deaths:
            by_time, share = draw.random() < 0.5, draw.random() / 3
            kill = (
                {"seconds": share * first["seconds"]}
                if by_time
                else {"operations": 1 + int(share * first["operations"])}
            )
        life = live(output, kill, **command)
        if life["code"] == -9:
            stages[life["stage"]] += 1
            if (output / "model.safetensors").exists():
                load_model(output, needs={"encoder", "lm_head", "pooler", "next_sentence"})
            continue
        assert life["code"] == 0, life["said"]
        assert_ended_alike(output, whole)
        if kill is None:
            return stages
        number += 1  # done before enough deaths: once more
        output = folder / str(number)


# numbers of signals and the exit codes after them
TWO_SIGNALS = [pytest.param(15, 143, marks=pytest.mark.slow), (2, 130)]


def test_killed_4_times(live: Live, command: dict[str, Any], whole: Path, tmp_path: Path):
    stages = die_often(live, command, whole, tmp_path, 4, seed=int.from_bytes(os.urandom(4)))
    print(dict(stages))
    assert sum(stages.values()) == 4


@pytest.mark.slow
def test_killed_100_times(live: Live, command: dict[str, Any], whole: Path, tmp_path: Path):
    stages = die_often(live, command, whole, tmp_path, 100, seed=int.from_bytes(os.urandom(4)))
    print(dict(stages))
    # others are short: a hundred moments may miss them
    assert {"begin", "step", "evaluation"} <= stages.keys()


@pytest.mark.slow
def test_killed_in_front_of_every_change_of_the_file_system(
    live: Live, command: dict[str, Any], whole: Path, tmp_path: Path
):
    total = live(tmp_path / "first", **command)["operations"]
    # the end is where nothing comes after
    for number in [*range(1, total - 40, 3), *range(total - 40, total + 1)]:
        output = tmp_path / str(number)
        assert live(output, {"operations": number}, **command)["code"] == -9
        assert live(output, **command)["code"] == 0
        assert_ended_alike(output, whole)
        shutil.rmtree(output)


@pytest.mark.parametrize(("number", "code"), TWO_SIGNALS)
def test_a_signal_saves_the_step_and_leaves(
    number: int, code: int, live: Live, command: dict[str, Any], whole: Path, tmp_path: Path
):
    step = random.randint(1, 22)
    life = live(tmp_path / "a", {"step": step, "signal": number}, **command)
    assert life["code"] == code, life["said"]
    assert life["leaving"] < 5
    assert step <= facts(tmp_path / "a")["step"] <= life["step"] + 1
    assert (
        f"{facts(tmp_path / 'a')['step']:,} updates" in (tmp_path / "a" / "README.md").read_text()
    )
    assert live(tmp_path / "a", **command)["code"] == 0
    assert_ended_alike(tmp_path / "a", whole)


@pytest.mark.parametrize(("number", "code"), TWO_SIGNALS)
def test_a_signal_in_a_long_step_saves_the_step_before(
    number: int, code: int, live: Live, command: dict[str, Any], whole: Path, tmp_path: Path
):
    life = live(tmp_path / "a", {"step": 12, "signal": number}, slow=13, **command)
    assert life["code"] == code, life["said"]
    assert life["leaving"] < 5
    assert newest(tmp_path / "a").name == "step-00000012"
    assert live(tmp_path / "a", **command)["code"] == 0
    assert_ended_alike(tmp_path / "a", whole)


@pytest.mark.slow
def test_a_signal_where_an_evaluation_is_due(
    live: Live, command: dict[str, Any], whole: Path, tmp_path: Path
):
    """It is made up for when the run goes on, at the same place among the figures."""
    life = live(tmp_path / "a", {"step": 20, "signal": 15}, slow=21, **command)
    assert life["code"] == 143
    assert live(tmp_path / "a", {"step": 25, "signal": 15}, **command)["code"] in (0, 143)
    assert live(tmp_path / "a", **command)["code"] == 0
    assert_ended_alike(tmp_path / "a", whole)


@pytest.mark.parametrize(
    "stage",
    [
        "vocabulary",
        *(pytest.param(s, marks=pytest.mark.slow) for s in ("shards", "plan", "evaluation")),
    ],
)
@pytest.mark.parametrize(("number", "code"), TWO_SIGNALS)
def test_a_signal_before_the_first_step(
    stage: str,
    number: int,
    code: int,
    live: Live,
    command: dict[str, Any],
    whole: Path,
    tmp_path: Path,
):
    life = live(tmp_path / "a", {"stage": stage, "signal": number}, **command)
    assert life["code"] == code, life
    assert life["leaving"] < 5
    assert live(tmp_path / "a", **command)["code"] == 0
    assert_ended_alike(tmp_path / "a", whole)


def test_a_finished_run_stays_as_it_is(
    live: Live, command: dict[str, Any], whole: Path, tmp_path: Path
):
    output = tmp_path / "a"
    shutil.copytree(whole, output)
    before = {
        p: p.stat().st_mtime_ns
        for p in output.rglob("*")
        if p.is_file() and p.suffix in (".safetensors", ".bin")
    }
    assert live(output, **command)["code"] == 0
    assert before == {p: p.stat().st_mtime_ns for p in before}
    assert metrics(output) == metrics(whole)


@pytest.mark.parametrize(
    "damage",
    ["flip", *(pytest.param(d, marks=pytest.mark.slow) for d in ("cut", "manifest", "gone"))],
)
def test_a_damaged_checkpoint_costs_only_the_steps_since_the_one_before(
    damage: str, live: Live, command: dict[str, Any], whole: Path, tmp_path: Path
):
    output = tmp_path / "a"
    assert live(output, {"step": 23, "signal": 15}, **command)["code"] == 143
    path = newest(output)
    state = path / "state.safetensors"
    match damage:
        case "cut":
            state.write_bytes(state.read_bytes()[:-1000])
        case "flip":
            content = bytearray(state.read_bytes())
            content[len(content) // 2] ^= 1
            state.write_bytes(content)
        case "manifest":
            (path / "checkpoint.json").write_text("{")
        case "gone":
            state.unlink()
    life = live(output, **command)
    assert life["code"] == 0, life["said"]
    assert_same_run(output, whole)
    assert [p.name for p in (output / "checkpoints").glob("*.corrupt")] == [f"{path.name}.corrupt"]


def test_with_every_checkpoint_damaged_it_begins_again_when_that_is_requested(
    live: Live, command: dict[str, Any], whole: Path, tmp_path: Path
):
    """Not by itself: the model of twelve steps would be gone."""
    assert live(tmp_path / "a", {"step": 12, "signal": 15}, **command)["code"] == 143
    for path in (tmp_path / "a" / "checkpoints").glob("step-*"):
        (path / "checkpoint.json").write_text("")
    refused = live(tmp_path / "a", **command)
    assert refused["code"] == 1
    assert "checkpoints are missing" in refused["said"]
    assert live(tmp_path / "a", **command, overwrite=True)["code"] == 0
    assert_same_run(tmp_path / "a", whole)


def test_a_run_reports_its_steps_and_its_end(tmp_path: Path):
    recipe = write_recipe(tmp_path / "r.toml", ("num_steps = 40", "num_steps = 2"))
    text = write_corpus(tmp_path / "t.jsonl")
    options = {"recipe": str(recipe), "workers": 1, "device": "cpu"}
    events = list(pretrain([text], tmp_path / "out", **options))
    assert events[-1].kind == "done"
    assert [line["step"] for line in metrics(tmp_path / "out") if "loss" in line] == [1, 2]
    recipe.write_text(recipe.read_text().replace("hidden_size = 32", "hidden_size = 16"))
    with pytest.raises(UsageError, match="other settings"):
        list(pretrain([text], tmp_path / "out", **options, seed=5))


def test_a_checkpoint_of_another_shape_is_refused(tmp_path: Path):
    recipe = write_recipe(tmp_path / "r.toml", ("num_steps = 40", "num_steps = 3"))
    text = write_corpus(tmp_path / "t.jsonl")
    options = {"recipe": str(recipe), "workers": 1, "device": "cpu"}
    folder = tmp_path / "out" / "checkpoints"
    with closing(pretrain([text], tmp_path / "out", **options)) as events:
        next(event for event in events if event.kind == "step")
    checkpoint, damaged = latest_checkpoint(folder)
    assert checkpoint is not None
    assert not damaged
    name = min(checkpoint.tensors)
    tensors = checkpoint.tensors | {name: torch.zeros(1, 2, 3)}
    save_checkpoint(folder, checkpoint.step + 1, tensors, checkpoint.facts)
    advice = "use another output folder, or --overwrite"
    with refusal(f"the checkpoint does not fit the recipe: {name}", advice):
        list(pretrain([text], tmp_path / "out", **options))
