"""Events are shown as one line of progress, in a terminal and in a notebook."""

import sys
import types
from collections.abc import Iterator, Mapping

import pytest

from bertworks.events import Event, PartOfJob, job_progress, show_progress


def test_progress_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    events = [
        Event("plan", "rows 3\ntime 2 s"),
        Event("step", "step 1/2\x1b[2J"),
        Event("done", "out: accuracy 90 %\nnext"),
    ]
    show_progress(iter(events))
    assert capsys.readouterr() == ("", "")
    show_progress(iter(events), True)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.endswith("\n")
    assert [line.rstrip() for line in err.split("\r")[1:]] == [
        "time 2 s",
        "step 1/2\\x1b[2J",
        "out: accuracy 90 %",
    ]
    # each covers the one before
    assert len({len(line.rstrip("\n")) for line in err.split("\r")[1:]}) == 1


@pytest.mark.parametrize(
    ("shows", "kernel", "count"),
    [(None, True, 2), (True, True, 2), (False, True, 0), (None, False, 0)],
)
def test_progress_in_a_notebook(
    shows: bool | None, kernel: bool, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[tuple[str, Mapping[str, str]]] = []

    class Handle:
        def update(self, data: Mapping[str, str], *, raw: bool) -> None:
            assert raw
            shown.append(("update", data))

    def display(data: Mapping[str, str], *, raw: bool, display_id: bool) -> Handle:
        assert raw
        assert display_id
        shown.append(("display", data))
        return Handle()

    shell = types.SimpleNamespace(**({"kernel": 1} if kernel else {}))
    module = types.ModuleType("IPython")
    vars(module)["get_ipython"] = lambda: shell
    inner = types.ModuleType("IPython.display")
    vars(inner)["display"] = display
    monkeypatch.setitem(sys.modules, "IPython", module)
    monkeypatch.setitem(sys.modules, "IPython.display", inner)
    show_progress(iter([Event("step", "step 1"), Event("step", "step 2")]), shows)
    assert [kind for kind, _ in shown] == (["display"] + ["update"] * count if count else [])
    assert [data["text/plain"] for kind, data in shown if kind == "update"] == ["step 1", "step 2"][
        :count
    ]


def test_parts_of_parts_are_placed_in_the_whole_job() -> None:
    """Two trainings with folds of one unit of work and ten seconds, then two with all rows."""
    steps = [
        Event("step", "", {"step": n, "steps": 4, "seconds": 2.5 * n, "eta_seconds": 10 - 2.5 * n})
        for n in range(1, 5)
    ]
    slow = [
        Event("step", "", {**event.fields, "seconds": 5 * n, "eta_seconds": 20 - 5 * n})
        for n, event in enumerate(steps, 1)
    ]

    def training() -> Iterator[Event]:
        yield from PartOfJob("fold 1 of 2", 0, 1, 4).placed(steps)
        yield from PartOfJob("fold 2 of 2", 1, 1, 4).placed(steps)
        yield from PartOfJob("all rows", 2, 2, 4).placed(slow)

    trainings = [PartOfJob(f"training {n + 1} of 2", n, 1, 2).placed(training()) for n in range(2)]
    progress = [job_progress(event.fields) for trained in trainings for event in trained]
    assert progress[5].part == "training 1 of 2, fold 2 of 2"
    elapsed = [2.5 * n for n in range(1, 9)] + [20 + 5.0 * n for n in range(1, 5)]
    elapsed += [40 + seconds for seconds in elapsed]
    for seconds, place in zip(elapsed, progress, strict=True):
        assert place.share == pytest.approx(seconds / 80)
        assert place.seconds == pytest.approx(80)
        assert place.seconds_left == pytest.approx(80 - seconds)
