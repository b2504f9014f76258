"""Events are shown as one line of progress, in a terminal and in a notebook."""

import sys
import types
from collections.abc import Mapping

import pytest

from bertworks.events import Event, show_progress


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
