"""The plugin that checks hints: it finds commands and options that do not exist, and the places
that pass hints."""

from types import SimpleNamespace

import pytest

from bertworks.errors import UsageError
from bertworks.io.tables import parse_size
from tests.support.hint_recorder import (
    PACKAGE,
    Hint,
    HintRecorder,
    Line,
    Place,
    is_full_run,
    places,
    problems_of,
    unreached_places,
)


@pytest.mark.parametrize(
    "hint",
    [
        "make one with `bertworks vocab TEXT -o FOLDER`",
        "bertworks index -o NAME --compact stems them again",
        "repeat the `bertworks prepare` command with --overwrite",
        "bertworks slurm pretrain SHARDS -o MODEL",
        "start it there: ray start --head; or --on local",
        "pip install --no-deps something",
    ],
)
def test_commands_and_options_that_exist(hint: str):
    assert problems_of(hint) == ()


@pytest.mark.parametrize(
    ("hint", "problem"),
    [
        ("bertworks convrt MODEL", "there is no command 'convrt'"),
        ("bertworks fill MODEL --tpo-k 3", "fill has no option --tpo-k"),
        ("name it with --modle", "no command has the option --modle"),
    ],
)
def test_commands_and_options_that_do_not_exist(hint: str, problem: str):
    assert problems_of(hint) == (problem,)


@pytest.mark.slow
def test_a_hint_reaches_the_place_that_passes_it(request: pytest.FixtureRequest):
    recorder = request.config.pluginmanager.get_plugin("hints")
    assert isinstance(recorder, HintRecorder)
    with pytest.raises(UsageError) as error:
        parse_size("much", "--max-memory")
    (hint, *_) = [
        hint
        for hint in recorder.hints
        if hint.text == error.value.hint and hint.test.endswith("test_hint_recorder.py")
    ]
    reached = [place for place in places() if place.is_reached_by(hint)]
    assert [(place.module, place.function) for place in reached] == [("io/tables.py", "parse_size")]


def test_a_place_without_a_hint_is_named():
    place = Place("a.py", "f", 3, 5, None, is_direct=True)
    hint = Hint("", (Line("a.py", 6),), "")
    assert len(unreached_places([hint], [place], {})) == 1
    assert unreached_places([Hint("", (Line("a.py", 4),), "")], [place], {}) == []
    assert unreached_places([hint], [place], {("a.py", "f"): "why"}) == []
    assert len(unreached_places([], [], {("a.py", "f"): "why"})) == 1


def test_a_run_with_a_path_or_without_the_data_is_no_full_run(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("BERTWORKS_DATA", "data")
    sources = pytest.Config.ArgsSource
    option = SimpleNamespace(markexpr="not slow", keyword="")
    assert is_full_run(SimpleNamespace(option=option, args_source=sources.TESTPATHS))
    assert not is_full_run(SimpleNamespace(option=option, args_source=sources.ARGS))
    for selection in ({"keyword": "a"}, {"markexpr": "slow"}, {"ignore": ["tests/io"]}):
        selected = SimpleNamespace(**vars(option) | selection)
        assert not is_full_run(SimpleNamespace(option=selected, args_source=sources.TESTPATHS))
    monkeypatch.delenv("BERTWORKS_DATA")
    assert not is_full_run(SimpleNamespace(option=option, args_source=sources.TESTPATHS))


def test_what_ends_a_block_reaches_the_places_of_its_first_line():
    (lock,) = [
        place
        for place in places()
        if place.function == "published" and line_of(place).strip() == "with ("
    ]
    assert lock.is_reached_by(
        Hint(
            "wait for it, stop it, or choose another URL", (Line(lock.module, lock.first_line),), ""
        )
    )


def line_of(place: Place) -> str:
    """Return the first line of a place."""
    lines = (PACKAGE / place.module).read_text(encoding="utf-8").splitlines()
    return lines[place.first_line - 1]


def test_an_error_of_another_process_reaches_its_place_by_the_text():
    text = (
        "run the same command again: it resumes after the finished parts; fewer --workers need "
        "less memory"
    )
    hint = Hint(text, (Line("io/processes.py", 1),), "")
    assert [place.function for place in places() if place.is_reached_by(hint)] == ["write_shards"]
