"""Output of commands: progress, JSON, terminals, errors as messages."""

import json
import re
import sys
import unicodedata
from itertools import chain
from pathlib import Path

import pytest

from bertworks.cli import console
from bertworks.cli.console import show_events
from bertworks.cli.main import main
from bertworks.errors import BertworksError, UsageError
from bertworks.events import Event, PartOfJob

STEP = {
    "step": 20,
    "steps": 1000,
    "loss": 5.4321,
    "masked_lm_accuracy": 0.125,
    "next_sentence_accuracy": None,
    "learning_rate": 1e-4,
    "tokens_per_second": 9512.3,
    "matmul_share": 0.31,
    "memory": 1.25e9,
    "seconds": 13,
    "eta_seconds": 187,
}


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (
            BertworksError("it is cut", where="a.txt:3", hint="get it again"),
            1,
            "error: a.txt:3: it is cut\n  hint: get it",
        ),
        (UsageError("no such thing", hint="another"), 2, "error: no such thing\n  hint: another"),
        (
            FileNotFoundError(2, "No such file or directory", "b.txt"),
            1,
            "error: b.txt: No such file or directory",
        ),
        (KeyboardInterrupt(), 130, "interrupted"),
        (
            ZeroDivisionError("division by zero"),
            1,
            "ZeroDivisionError: division by zero\n  this is a bug in bertworks",
        ),
    ],
)
def test_errors_become_messages_and_exit_codes(error, code, message, capsys, monkeypatch):
    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("bertworks.cli.console.show_events", fails)
    assert main(["demo"]) == code
    err = capsys.readouterr().err
    assert message in err
    assert "Traceback" not in err
    assert main(["--debug", "demo"]) == code
    assert "Traceback" in capsys.readouterr().err


def test_control_characters_reach_no_terminal(capsys, monkeypatch):
    text = "a\x1b]0;title\x07 b\x9b2J c\rd\x08\x7f\te\nf é 日 \u200b\u202egnp.\u2066x\u2069\u200f"
    console.say(text)
    console.out(text)
    assert capsys.readouterr() == (f"{text}\n", f"{text}\n")  # of a pipe or a file, as it is
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    console.say(text)
    console.out(text)
    console.emit({"text": text})
    shown = "a\\u001b]0;title\\u0007 b\\u009b2J c\\u000dd\\u0008\\u007f\te\nf é 日"
    shown += " \u200b\\u202egnp.\\u2066x\\u2069\\u200f\n"
    out, err = capsys.readouterr()
    assert err == shown
    assert out.startswith(shown)
    assert json.loads(out.removeprefix(shown)) == {"text": text}
    assert not any(
        unicodedata.category(character) == "Cc"
        for character in out + err
        if character not in "\t\n"
    )
    kinds = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
    codes = {
        code for code in range(sys.maxunicode) if unicodedata.bidirectional(chr(code)) in kinds
    }
    # all of Bidi_Control in Unicode
    assert codes | set(map(ord, "\u061c\u200e\u200f")) <= console.CONTROLS.keys()


def test_commands_print_through_the_console():
    """What neutralises control characters is there."""
    folder = Path(console.__file__).parent
    printing = [
        path.name
        for path in folder.glob("*.py")
        if re.search(r"(?<![\w.])print\(", path.read_text())
    ]
    assert printing == ["console.py"]


def events() -> list[Event]:
    progress = [
        Event("stage", f"vocabulary: counting {n}", {"stage": "vocabulary", "amount": n})
        for n in range(50)
    ]
    steps = [
        Event("step", f"step {n:,}/1,000  loss 5.432", STEP | {"step": n}) for n in range(1, 1001)
    ]
    return [Event("note", "a word"), *progress, *steps, Event("done", "all done", {"folder": "x"})]


def test_in_a_pipe_progress_is_a_line_now_and_then(capsys):
    assert show_events(events()) == Event("done", "all done", {"folder": "x"})
    answer = capsys.readouterr()
    assert answer.out == "all done\n"
    assert answer.err.splitlines()[0] == "a word"
    lines = answer.err.splitlines()
    tenths = [line for line in lines if "% done" in line]
    assert [line.partition(" ")[0] for line in tenths] == [f"{n}0%" for n in range(1, 11)]
    assert tenths[0] == "10% done · step 100/1,000 · loss 5.432 · 3 min left"
    assert len(lines) == 1 + 10
    assert "\r" not in answer.err


def test_in_a_pipe_a_fold_is_a_part_of_the_job(capsys):
    steps = [event for event in events() if event.kind == "step"]
    saved = Event("saved", "saved out/checkpoints/step-500", {"step": 500})
    folds = [
        PartOfJob(f"fold {number + 1}/2", number, 1, 4).placed([*steps[:500], saved])
        for number in range(2)
    ]
    last = PartOfJob("all rows", 2, 2, 4).placed([*steps, Event("done", "")])
    show_events(chain(*folds, last))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "10% done · fold 1/2 · step 400/1,000 · loss 5.432 · 13 min left in all"
    assert [line.partition(" · step")[0] for line in lines] == [
        "10% done · fold 1/2",
        "25% done · fold 2/2",
        "30% done · fold 2/2",
        *(f"{n}0% done · all rows" for n in range(5, 11)),
    ]
    console.set_verbosity(["-v"])
    try:
        show_events([saved, Event("done", "")])
    finally:
        console.set_verbosity([])
    assert capsys.readouterr().err == f"{saved.text}\n"


@pytest.mark.parametrize(
    ("options", "detail"), [([], ""), (["-v"], " · FLOPS utilization 31%")], ids=str
)
def test_a_step_names_its_fold_and_in_detail_the_use_of_the_hardware(
    options: list[str], detail: str
) -> None:
    step = Event("step", "step 20/1,000 · loss 5.432 · 3 min left", STEP)
    (placed,) = PartOfJob("fold 1/2", 0, 1, 2).placed([step])
    console.set_verbosity(options)
    try:
        assert console._step_line(step) == f"{step.text}{detail}"
        line = console._step_line(placed)
    finally:
        console.set_verbosity([])
    assert line == f"fold 1/2 · {step.text}{detail} · 6 min left in all"


def test_as_json_standard_output_is_json_only(capsys):
    show_events(events(), as_json=True)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 1 + 1000 + 1
    assert lines[0] == {"kind": "note", "text": "a word"}
    assert lines[-1] == {"kind": "done", "folder": "x"}


def test_of_many_processes_the_first_speaks(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    assert show_events(events(), as_json=True) == Event("done", "all done", {"folder": "x"})
    answer = capsys.readouterr()
    assert answer.out + answer.err == ""


@pytest.mark.parametrize("as_json", [False, True])
def test_quiet_leaves_results_and_warnings(as_json, capsys):
    console.set_verbosity(["-q"])
    try:
        more = [
            Event("plan", "a plan\nwarning: three texts are the same\nmore"),
            Event("note", "rows without text: 3", is_warning=True),
        ]
        show_events([*more, *events()], as_json=as_json)
    finally:
        console.set_verbosity([])
    answer = capsys.readouterr()
    assert answer.err == "warning: three texts are the same\nrows without text: 3\n"
    assert as_json or answer.out == "all done\n"


def test_how_much_is_said_is_decided_for_each_command(capsys):
    assert main(["doctor", "--no-such", "-q"]) == 2
    assert "Unknown option" in capsys.readouterr().err  # an error is always shown
    assert main(["doctor", "-q", "--verbose"]) == 2
    assert "--quiet and --verbose exclude each other" in capsys.readouterr().err
    assert main(["slurm", "pretrain", "SHARDS", "-o", "M", "-v"]) == 0
    assert console.is_verbose()
    assert main(["slurm", "pretrain", "SHARDS", "-o", "M"]) == 0
    assert not console.is_verbose()


def test_terminals_are_recognised(monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "dumb")
    assert not console.is_terminal()
    monkeypatch.setenv("TERM", "xterm")
    assert console.is_terminal()
