"""A budget is kept: when the machine becomes slower or faster, the rest of a run is planned again.
Clocks are fakes."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, strategies as st

import bertworks.runs.training_run as training_run
from bertworks.errors import UsageError
from bertworks.events import Event
from bertworks.runs.pretrain import LEAST_STEPS, RESERVE, estimate, pretrain
from bertworks.runs.run_folder import read_plans
from bertworks.training.budget import MEMORY, TOLERANCE, Measurement, Pace, Plan, Schedule
from bertworks.training.objectives import PretrainingModel
from bertworks.training.recipe import OptimizerConfig
from tests.runs.test_pretrain import assert_same_tensors, finish, torchrun
from tests.support.tiny import metrics, newest, write_corpus, write_recipe

BUDGET = 1000.0
SHARES = (0.6, 0.2, 0.2)


def first_plan(steps: int, misjudged: float = 1.0) -> Schedule:
    """Phases of which a step takes longer from one to the next, for a machine of speed 1 /
    misjudged."""
    trained = (1 - RESERVE) * BUDGET
    seconds = [trained / steps * cost / misjudged for cost in (0.8, 1.0, 2.0)]
    counts = [
        max(1, int(share * trained / cost)) for share, cost in zip(SHARES, seconds, strict=True)
    ]
    return Schedule((1 - RESERVE / 2) * BUDGET, 0.0, [Plan(0, counts, seconds, 0.0)])


def simulate(
    schedule: Schedule, slowness: Callable[[float], float], misjudged: float = 1.0
) -> tuple[float, list[int]]:
    """What `TrainingRun` does with a schedule, on a machine that is `slowness(time)` times as slow
    as measured: when it ends, and the phase of each step."""
    memory = MEMORY * schedule.seconds
    pace, first = Pace(memory, (memory, memory)), schedule.plans[0]
    every = max(1, sum(first.steps) // 20)
    evaluation = 0.03 * BUDGET / 20
    now, step, took, phases = 0.0, 0, evaluation, []
    while step < sum(schedule.plans[-1].steps):
        phase = next(n for n, end in enumerate(accumulate(schedule.plans[-1].steps)) if step < end)
        seconds = misjudged * slowness(now) * first.step_seconds[phase]
        now, step = now + seconds, step + 1
        pace.add(seconds, first.step_seconds[phase])
        phases.append(phase)
        if schedule.is_due(step) and (
            plan := schedule.plan_again(step, now, pace.value, took, every)
        ):
            schedule.plans.append(plan)
        if step % every == 0 or step == sum(schedule.plans[-1].steps):
            took = evaluation * slowness(now)
            now += took
    return now, phases


def in_turns(changes: Sequence[tuple[float, float]]) -> Callable[[float], float]:
    """The slowness from each fraction of the budget on."""
    return lambda now: [1.0, *(slower for at, slower in sorted(changes) if at * BUDGET <= now)][-1]


changes = st.lists(st.tuples(st.floats(0, 0.8), st.floats(0.5, 2)), max_size=6)


@given(changes=changes, steps=st.integers(40, 4000), misjudged=st.floats(0.6, 1.6))
@example(changes=[(0.8, 2.0)], steps=1000, misjudged=1.0)
@example(changes=[(0.5, 2.0)], steps=1000, misjudged=1.0)
@example(changes=[(0.0, 0.5), (0.8, 2.0)], steps=1000, misjudged=1.0)
def test_a_run_ends_with_its_budget(
    changes: list[tuple[float, float]], steps: int, misjudged: float
) -> None:
    ended, phases = simulate(first_plan(steps, misjudged), in_turns(changes), misjudged)
    assert 0.85 * BUDGET < ended <= 1.15 * BUDGET
    assert phases == sorted(phases)
    assert set(phases) == {0, 1, 2}


@given(slower=st.floats(0.5, 2), at=st.floats(0, 0.8))
def test_phases_keep_their_shares_of_the_time(slower: float, at: float) -> None:
    schedule = first_plan(1000)
    _, phases = simulate(schedule, in_turns([(at, slower)]))
    times, now = [0.0] * 3, 0.0
    for phase in phases:
        seconds = in_turns([(at, slower)])(now) * schedule.plans[0].step_seconds[phase]
        times[phase] += seconds
        now += seconds
    # The pace is known after MEMORY of the budget, and less than TOLERANCE of it is not worth a new
    # plan.
    assert [time / now for time in times] == pytest.approx(SHARES, abs=MEMORY + TOLERANCE)


@given(speeds=st.lists(st.floats(0.4, 2.5), min_size=200, max_size=200))
def test_a_shared_machine_is_fast_and_slow_in_turns(speeds: list[float]) -> None:
    schedule = first_plan(1000)
    ended, _ = simulate(schedule, lambda now: speeds[int(now * len(speeds) / BUDGET) % len(speeds)])
    assert 0.85 * BUDGET < ended <= 1.15 * BUDGET
    assert len(schedule.plans) <= 80


def test_a_steady_machine_keeps_its_plan() -> None:
    schedule = first_plan(1000)
    ended, _ = simulate(schedule, lambda now: 1.0)
    assert len(schedule.plans) == 1
    assert 0.95 * BUDGET < ended < BUDGET


@given(changes=changes, steps=st.integers(40, 2000), warmup=st.floats(0.01, 0.2))
def test_the_rate_has_no_jump_and_reaches_its_end(
    changes: list[tuple[float, float]], steps: int, warmup: float
) -> None:
    schedule, c = first_plan(steps), OptimizerConfig(learning_rate=1.0, warmup=warmup)
    simulate(schedule, in_turns(changes))
    whole, end = sum(schedule.plans[0].steps), sum(schedule.plans[-1].steps)
    positions = [schedule.position(step) for step in range(end + 1)]
    assert positions[0] == 0
    assert positions[-1] == whole
    assert all(one < other for one, other in pairwise(positions))
    for before, after in pairwise(schedule.plans):
        alone = replace(schedule, plans=schedule.plans[: schedule.plans.index(after)])
        assert alone.position(after.step) == pytest.approx(schedule.position(after.step), rel=1e-9)
        assert (
            before.steps[0] == after.steps[0]
            or after.step < sum(after.steps[:1])
            or after.step <= before.steps[0]
        )
    rates = [c.rate(position, whole) for position in positions]
    assert rates[-1] == 0
    largest = max(other - one for one, other in pairwise(positions))
    steepest = max(1 / max(1, round(warmup * whole)), 1 / (whole - round(warmup * whole)))
    assert all(abs(one - other) <= 1.01 * largest * steepest for one, other in pairwise(rates))


def test_without_a_new_plan_positions_are_step_numbers_to_the_bit() -> None:
    schedule = first_plan(997)
    steps = range(sum(schedule.plans[0].steps) + 1)
    assert [schedule.position(step) for step in steps] == [float(step) for step in steps]


def test_steps_that_were_set_by_hand_stay() -> None:
    schedule = replace(first_plan(1000), fixed=["train.phases.1.num_steps"])
    simulate(schedule, in_turns([(0.1, 2.0)]))
    assert len(schedule.plans) > 1
    assert len({plan.steps[1] for plan in schedule.plans}) == 1
    assert len({plan.steps[0] for plan in schedule.plans}) > 1
    everything = replace(first_plan(1000), fixed=["train.phases"])
    simulate(everything, in_turns([(0.1, 2.0)]))
    assert len(everything.plans) == 1


def test_the_pace_forgets() -> None:
    pace = Pace(60)
    for _ in range(1000):
        pace.add(1, 2.0)
    assert pace.value == pytest.approx(0.5)
    for _ in range(180):
        pace.add(3, 2.0)
    assert pace.value == pytest.approx(1.5, rel=0.02)


# Whole runs: a step takes 2 s, from one of them on 4 s; an evaluation 1 s.


class Machine:
    """A clock that only training steps and evaluations move."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, slow_from: int) -> None:
        self.now, self.slow_from, self.steps = 0.0, slow_from, 0
        clock, forward, machine = (
            SimpleNamespace(perf_counter=lambda: self.now),
            PretrainingModel.forward,
            self,
        )
        monkeypatch.setattr(training_run, "time", clock)
        monkeypatch.setattr("bertworks.runs.pretrain.time", clock)
        monkeypatch.setattr(training_run, "measure_matmul", lambda *_: 1e11)
        monkeypatch.setattr(
            "bertworks.runs.pretrain.measure_steps", lambda *_: Measurement([2.0, 2.0], 1 << 30)
        )

        def timed(model: PretrainingModel, batch: Any) -> Any:
            machine.now += (4 if machine.steps >= machine.slow_from else 2) if model.training else 1
            machine.steps += model.training
            return forward(model, batch)

        monkeypatch.setattr(PretrainingModel, "forward", timed)


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("text")
    phase = "\n[[train.phases]]\nnum_steps=10\nbatch_size=4\nsequence_length=64"
    recipe = write_recipe(
        folder / "r.toml", ("sequence_length = 32", f"sequence_length = 32{phase}")
    )
    text = write_corpus(folder / "t.jsonl")
    return {
        "inputs": [str(text)],
        "recipe": str(recipe),
        "budget": "120s",
        "device": "cpu",
        "workers": 1,
    }


class Slowed(NamedTuple):
    output: Path
    events: list[Event]
    times: list[float]  # of the events


@pytest.fixture(scope="module")
def slowed(command: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Slowed:
    """A run on a machine that becomes slower after 20 steps."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        machine, output = Machine(monkeypatch, 20), tmp_path_factory.mktemp("slowed") / "a"
        events = [(event, machine.now) for event in pretrain(**command, output=output)]
        return Slowed(output, [event for event, _ in events], [now for _, now in events])


def test_a_run_becomes_shorter(slowed: Slowed) -> None:
    output, events, times = slowed
    assert 0.9 * 120 < times[-1] < 1.15 * 120
    plans = read_plans(output)
    assert len(plans) > 1
    assert plans[0].step == 0
    assert [plan.step for plan in plans] == sorted({plan.step for plan in plans})
    steps = [event.fields for event in events if event.kind == "step"]
    assert [line["step"] for line in steps] == list(range(1, sum(plans[-1].steps) + 1))
    assert steps[-1]["learning_rate"] < 0.1 * max(line["learning_rate"] for line in steps)
    notes = [event for event in events if event.text.startswith("slower than planned")]
    assert [event.fields["steps"] for event in notes] == [sum(plan.steps) for plan in plans[1:]]
    assert events[-1].fields["step"] == sum(plans[-1].steps)
    assert f"num_steps = {plans[-1].steps[0]}\n" in (output / "README.md").read_text()
    assert f"num_steps = {plans[0].steps[0]}\n" in (output / "recipe.toml").read_text()


def test_the_time_left_follows_the_speed(slowed: Slowed) -> None:
    """Also after the machine has become slower, which a mean over the whole run would hide for
    long."""
    left = [
        (event.fields["eta_seconds"], slowed.times[-1] - now)
        for event, now in zip(slowed.events, slowed.times, strict=True)
        if event.kind == "step" and event.fields["step"] > 25
    ]
    assert len(left) > 8
    for said, true in left:
        assert said == pytest.approx(true, rel=0.15, abs=6)


@pytest.fixture
def interrupted(command: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a command up to an event, as if it were killed there."""

    def run(until: Callable[[Event], bool], output: Path = tmp_path / "a") -> Path:
        events = pretrain(**command, output=output)
        for event in events:
            if until(event):
                break
        events.close()
        return output

    Machine(monkeypatch, 20)
    return run


def assert_same(output: Path, whole: Path) -> None:
    assert metrics(output) == metrics(whole)
    assert_same_tensors(output, whole)
    assert [(plan.step, plan.steps) for plan in read_plans(output)] == [
        (plan.step, plan.steps) for plan in read_plans(whole)
    ]


@pytest.mark.parametrize("step", [3, 21, 26, 30])
def test_a_resumed_run_follows_the_recorded_plans(
    step: int,
    interrupted: Any,
    slowed: Slowed,
    command: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a kill at some step; the recorded plans are those of the whole run, also those that are
    ahead."""
    whole = slowed[0]
    output = interrupted(lambda event: event.kind == "step" and event.fields["step"] == step)
    shutil.copy(whole / "schedule.jsonl", output / "schedule.jsonl")
    Machine(monkeypatch, 20).steps = int(newest(output).name[5:])
    list(pretrain(**command, output=output))
    assert_same(output, whole)


def test_a_kill_between_the_record_and_the_use_of_a_plan(
    interrupted: Any, slowed: Slowed, command: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    output = interrupted(lambda event: event.text.startswith("slower than planned"))
    assert len(read_plans(output)) == 2
    assert int(newest(output).name[5:]) < read_plans(output)[1].step
    Machine(monkeypatch, 0)
    list(pretrain(**command, output=output))
    ours, others = read_plans(output), read_plans(slowed[0])
    assert (ours[1].step, ours[1].steps) == (others[1].step, others[1].steps)


def test_time_before_an_interruption_is_spent(
    interrupted: Any, command: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """But not the time in between."""
    output = interrupted(lambda event: event.kind == "saved" and event.fields["step"] >= 20)
    machine = Machine(monkeypatch, 10**6)
    machine.now = begin = 1e6
    list(pretrain(**command, output=output))
    already = 20 * 2 + 3
    assert 0.85 * (120 - already) < machine.now - begin < 1.1 * (120 - already)


def test_a_lost_or_damaged_record(
    interrupted: Any, slowed: Slowed, command: dict[str, Any]
) -> None:
    output = interrupted(lambda event: event.kind == "saved" and event.fields["step"] >= 35)
    record = output / "schedule.jsonl"
    content = record.read_text()
    for damage in ("{\n", content + "[]\n", None):
        record.unlink(missing_ok=True) if damage is None else record.write_text(damage)
        with pytest.raises(UsageError, match="missing or damaged"):
            list(pretrain(**command, output=output))
    record.write_text(content)
    list(pretrain(**command, output=output))
    assert sum(read_plans(output)[-1].steps) == int(newest(output).name[5:])


@pytest.mark.slow
def test_two_processes_follow_the_first(command: dict[str, Any], tmp_path: Path) -> None:
    """Each has a clock of its own, and that of the second nearly stands still."""
    finish(torchrun({"arguments": command | {"output": str(tmp_path / "two")}, "clock": 20}))
    plans = read_plans(tmp_path / "two")
    assert len(plans) > 1
    assert int(newest(tmp_path / "two").name[5:]) == sum(plans[-1].steps)


# Too short


def test_a_budget_that_teaches_nothing_is_called_that(
    command: dict[str, Any], tmp_path: Path, monkeypatch: Any
) -> None:
    Machine(monkeypatch, 0)
    events = list(pretrain(**command, output=tmp_path / "a"))
    (note,) = [event.text for event in events if "this budget allows only" in event.text]
    assert "Suggested: --budget 56m (1,400 steps)" in note
    assert "; or --recipe bert: a smaller model is then chosen" in note
    assert "this budget allows only" in str(
        estimate(**{n: v for n, v in command.items() if n != "workers"})
    )
    enough = command | {"budget": "56m"}
    figures = estimate(**{n: v for n, v in enough.items() if n != "workers"})
    assert figures.steps >= 1400
    assert figures.advice is None
    assert "allows only" not in str(figures)


def test_an_estimate_plans_the_fewest_steps_as_a_run_does(
    command: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the budget has no time for them."""
    measured = Measurement([30.0, 30.0], 1 << 30)
    monkeypatch.setattr("bertworks.runs.pretrain.measure_steps", lambda *_: measured)
    figures = estimate(**{name: value for name, value in command.items() if name != "workers"})
    assert figures.steps >= LEAST_STEPS
    assert figures.seconds == 30.0 * figures.steps
    lines = str(figures).splitlines()
    assert any(
        line.startswith(f"the budget of 120s is short: the {figures.steps} steps, which are the")
        for line in lines
    )


def test_a_run_ends_with_its_report_and_the_next_command(slowed: Slowed) -> None:
    output, events, _ = slowed
    *_, see, after = events[-1].text.splitlines()
    assert see == f"see {output / 'report.html'}"
    assert after == f'next: bertworks fill {output} "This is the [MASK]."'
    assert (output / "report.html").exists()
