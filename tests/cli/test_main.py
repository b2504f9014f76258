"""The command line: fast help, results on standard output, errors with hints, exit codes."""

import inspect
import io
import json
import os
import pty
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from bertworks.cli.main import main
from bertworks.cli.parser import make_app
from bertworks.errors import UsageError
from bertworks.events import Event, duration
from bertworks.io.options import ReadOptions
from bertworks.io.tables import parse_size
from tests.support import ROOT

VERBS = [
    "check",
    "finetune",
    "predict",
    "explain",
    "embed",
    "index",
    "search",
    "vocab",
    "prepare",
    "pretrain",
    "fill",
    "score",
    "evaluate mlm",
    "evaluate blimp",
    "evaluate squad",
    "serve",
    "export",
    "doctor",
    "demo",
]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Eight documents of eighty words, in one text file."""
    words = "the old house stands by the river and nobody knows who built it".split()
    documents = []
    for n in range(8):
        sentences = [
            " ".join([*words[i % 5 :], str(n), *words[: i % 7]]).capitalize() + "."
            for i in range(6)
        ]
        documents.append(" ".join(sentences))
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join(documents) + "\n")
    return path


def test_help_needs_neither_torch_nor_numpy_nor_pyarrow():
    code = """
import contextlib, io, json, sys
from bertworks.cli.main import main
for verb in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()):
        assert main([*verb.split(), "--help"]) == 0
names = ("torch", "numpy", "pyarrow", "tokenizers", "markdown_it")
print(json.dumps([name for name in names if name in sys.modules]))
"""
    answer = subprocess.run(
        [sys.executable, "-c", code, json.dumps(["", *VERBS])], capture_output=True, check=True
    )
    assert json.loads(answer.stdout) == []


def test_help_lists_the_verbs_in_the_order_of_the_work(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    places = [out.index(f"│ {verb.split()[0]} ") for verb in VERBS if verb.split()[0] != "evaluate"]
    assert places == sorted(places)


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_has_a_line_of_help(verb, capsys):
    assert main([*verb.split(), "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    options = [line for line in lines if line.startswith(("│ --", "│    --", "│ *  --"))]
    assert options
    assert all(len(line.strip("│* ").split("  ")) > 1 for line in options), "an option without help"


def test_the_help_of_an_option_of_rows_is_one_line():
    """The width of the terminal decides where it is broken: cyclopts keeps the line ends of a
    docstring."""
    make_app("predict")
    arguments = inspect.getdoc(ReadOptions).partition("Args:\n")[2].splitlines()
    assert [line.split(":")[0].strip() for line in arguments] == [
        field.name for field in fields(ReadOptions)
    ]


def test_a_head_is_reset_by_its_option(monkeypatch):
    requests = []
    monkeypatch.setattr(
        "bertworks.make_finetune_request", lambda data, **options: requests.append(options)
    )
    monkeypatch.setattr("bertworks.plan_trials", lambda *_, **__: [None])
    monkeypatch.setattr("bertworks.finetune_events", lambda *_, **__: [Event("done", "")])
    assert main(["finetune", "a.csv", "-o", "b", "--reset-head"]) == 0
    assert requests[0]["new_head"] is True


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == "0.1.0\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["vocab", "a.txt", "--outptu", "b"], "Unknown option: --outptu. Did you mean --output?"),
        (["vocab", "a.txt", "-o", "b", "--algorithm", "wordpeice"], 'Did you mean "wordpiece"?'),
        (
            ["vocab", "a.txt", "-o", "b", "--size", "many"],
            '--size: unable to convert "many" into int',
        ),
        (
            ["vocab", "a.txt", "-o", "b", "--max-memory", "much"],
            "--max-memory 'much' is not a size",
        ),
        (["vocab", "-o", "b"], "error: vocab needs INPUTS"),
        (["vocab", "a.txt"], "error: vocab needs --output (-o)"),
        (["vocab", "a.txt", "-o"], "-o requires an argument"),
        (["prepare", "a.txt", "-o", "b"], "error: prepare needs --tokenizer"),
        (["evaluate", "probe", "b"], "error: evaluate probe needs TREEBANK"),
        (["prepair", "a.txt"], 'Did you mean "prepare"?'),
        (["train", "a.csv"], 'Unknown command "train". Did you mean "finetune DATA -o MODEL"?'),
        (["eval", "m", "a.csv"], 'Did you mean "evaluate MODEL DATA"?'),
        (
            ["evaluate", "maskedlm", "a.csv"],
            '"maskedlm" is neither an evaluation nor a model folder',
        ),
        (["finetune", "a.csv", "-o", "b", "--target", "t"], "Did you mean --label?"),
        (["check", "a.csv", "--text-column", "t"], "Did you mean --text?"),
        (["finetune", "a.csv", "-o", "b", "--validation", "c"], "a file of dev data: --dev FILE"),
        (
            ["finetune", "a.csv", "-o", "b", "--test", "c"],
            "Did you mean bertworks evaluate MODEL FILE?",
        ),
        (["finetune", "a.csv", "-o", "b", "--lr", "1"], "--lr. Did you mean --learning-rate?"),
        (["pretrain", "a.txt", "-o", "b", "--lr", "1"], "--lr. Did you mean --learning-rate?"),
        (["finetune", "a.csv", "-o", "b", "--epoch", "1"], "Did you mean --epochs?"),
        (["finetune", "a.csv", "-o", "b", "--weight-decay", "1"], "Did you mean --set "),
        (["predict", "m", "a.csv", "--out", "b"], "Unknown option: --out. Did you mean --output?"),
        (["predict", "m", "a.csv", "--gpu"], "Unknown option: --gpu. Did you mean --device cuda?"),
        (["finetune", "a.csv", "-o", "b", "--fp16"], "Did you mean --precision bf16?"),
        (["serve", "m", "--prt", "3"], "Unknown option: --prt. Did you mean --port?"),
        (["search", "i", "--xyzzy", "3"], "Unknown option: --xyzzy.\n"),
        (["vocab", "no-such-file.txt", "-o", "b"], "no-such-file.txt"),
        (["pretrain", "a.txt", "-o", "b", "--recipe", "bert-bsae"], "bert-base"),
        (["pretrain", "a.txt", "-o", "b", "--budget", "long"], "'long' is not a budget"),
    ],
)
def test_typing_errors_are_2_and_say_what_to_type(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if "--recipe" in words or "--budget" in words:
        Path("a.txt").write_text("A text that is here.\n")
    assert main(words) == 2
    answer = capsys.readouterr()
    assert message in answer.err
    assert "hint: " in answer.err
    assert answer.out == ""
    assert "Traceback" not in answer.err


def test_options_behind_two_dashes_are_named(capsys):
    """There they are texts, as everything is."""
    assert main(["explain", "minilm", "--", "-5 euros", "--target", "x"]) == 2
    error = capsys.readouterr().err
    assert "after -- everything is a file or a text: type --target before it" in error
    assert main(["explain", "minilm", "--", "-5 euros", "a", "b"]) == 2
    assert "after --" not in capsys.readouterr().err


def test_a_reader_that_has_enough_is_no_error():
    code = """
import sys
from bertworks.cli import console, main
console.show_events = lambda *_, **__: [print("a long line " * 9) for _ in range(10000)]
sys.exit(main.main(["demo"]))
"""
    command = ["bash", "-c", '"$0" -c "$1" | head -1; exit ${PIPESTATUS[0]}', sys.executable, code]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 141
    assert answer.stderr == ""


RUN = [sys.executable, "-c", "from bertworks.cli.main import run; run()"]


@pytest.mark.parametrize(
    ("closed", "has_out", "has_err"),
    [
        (">&-", False, True),
        ("2>&-", True, False),
        (">&- 2>&-", False, False),
        ("<&- >&- 2>&-", False, False),
    ],
)
def test_streams_that_were_closed_at_the_start(closed: str, has_out: bool, has_err: bool):
    for word, code, out, err in (
        ("--version", 0, "0.1.0\n", ""),
        ("prepair", 2, "", "Did you mean"),
    ):
        shell = ["bash", "-c", f'"$@" {closed}', "bash", *RUN, word]
        answer = subprocess.run(shell, capture_output=True, text=True, check=False)
        assert answer.returncode == code
        assert answer.stdout == (out if has_out else "")
        assert err in answer.stderr if has_err else answer.stderr == ""
        assert "Traceback" not in answer.stderr


def test_no_file_gets_the_messages_of_a_stream_that_was_closed(tmp_path: Path):
    """The first file that is opened would get the number of standard error, and with it what
    libraries print there."""
    code = """
import os, subprocess, sys
from bertworks.cli import console, main
def work(*_, **__):
    with open("result", "w") as file:
        os.write(2, b"a message of a library")
        subprocess.run(["sh", "-c", "echo one of a program >&2"])
        file.write("a result")
console.show_events = work
sys.argv = ["bertworks", "demo"]
main.run()
"""
    shell = ["bash", "-c", '"$@" 2>&-', "bash", sys.executable, "-c", code]
    paths = os.environ | {"PYTHONPATH": str(ROOT)}
    assert subprocess.run(shell, cwd=tmp_path, env=paths, check=False).returncode == 0
    assert (tmp_path / "result").read_text() == "a result"


def test_what_cannot_be_written_is_an_error():
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    ran = subprocess.run(
        ["bash", "-c", '"$@" >/dev/full', "bash", *RUN, "--version"],
        capture_output=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (1, b"error: standard output: No space left on device\n")
    ran = subprocess.run(
        ["bash", "-c", '"$@" 2>/dev/full', "bash", *RUN, "prepair"],
        capture_output=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (2, b"")


@pytest.mark.parametrize(
    ("text", "size"), [("1g", 1 << 30), ("512m", 512 << 20), ("1.5 GiB", 3 << 29), ("2000", 2000)]
)
def test_sizes(text, size):
    assert parse_size(text, "--max-memory") == size


@pytest.mark.parametrize("text", ["", "g", "-1g", "0", "1x", "1 1g"])
def test_no_sizes(text):
    with pytest.raises(UsageError, match="--max-memory"):
        parse_size(text, "--max-memory")


def test_durations():
    assert [duration(s) for s in (-1, 8.4, 100, 187, 7387, 1e6)] == [
        "0 s",
        "8 s",
        "100 s",
        "3 min",
        "2 h 03 min",
        "11 d 13 h",
    ]


def test_on_a_terminal_figures_stay_in_place():
    """On a pseudo-terminal: notes are printed once, the bar is drawn over, results go to standard
    output."""
    code = """
import sys, time; sys.path.insert(0, sys.argv[1])
from tests.cli.test_console import events
from bertworks.cli.console import show_events
def slow():
    for event in events():
        yield event
        if event.fields.get("step") == 500:
            time.sleep(0.7)  # longer than between two frames
show_events(slow())
"""
    primary, secondary = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "200", "LINES": "40"}
    command = [sys.executable, "-c", code, str(ROOT)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=secondary, env=environment
    ) as process:
        os.close(secondary)
        shown = b""
        try:
            while chunk := os.read(primary, 1 << 16):
                shown += chunk
        except OSError:  # Linux says so when the other side is closed
            os.close(primary)
        assert process.stdout is not None
        assert process.stdout.read() == b"all done\n"
    text = shown.decode()
    assert text.count("a word") == 1
    assert "step 500/1,000" in text
    assert "\x1b[" in text


def test_vocab_then_prepare(corpus, tmp_path, capsys):
    assert (
        main(["vocab", str(corpus), "-o", str(tmp_path / "tok"), "--size", "120", "--workers", "1"])
        == 0
    )
    answer = capsys.readouterr()
    assert "tokens" in answer.out
    assert (tmp_path / "tok" / "vocab.txt").read_text(encoding="utf-8").startswith("[PAD]\n")
    command = (
        f"prepare {corpus} --tokenizer {tmp_path}/tok -o {tmp_path}/shards --workers 1".split()
    )
    command += ["--documents", "blank_line"]
    assert main([*command, "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[-1]["kind"] == "done"
    assert lines[-1]["documents"] == 8
    assert main(command) == 0, "the same command again finds its work done"


def test_standard_input(corpus, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(corpus.read_bytes())))
    assert (
        main(["vocab", "-", "-o", str(tmp_path / "piped"), "--size", "120", "--workers", "1"]) == 0
    )
    assert (
        main(
            ["vocab", str(corpus), "-o", str(tmp_path / "named"), "--size", "120", "--workers", "1"]
        )
        == 0
    )
    capsys.readouterr()
    assert (tmp_path / "piped" / "vocab.txt").read_bytes() == (
        tmp_path / "named" / "vocab.txt"
    ).read_bytes()


@pytest.mark.parametrize("command", [["check", "-"], ["evaluate", "sts", "minilm", "-"]])
def test_standard_input_where_it_is_not_read(command, capsys):
    assert main(command) == 2
    assert (
        "error: standard input is not read here\n  hint: write it to a file"
        in capsys.readouterr().err
    )


def test_a_command_that_is_shown_has_its_path_in_quotes(tmp_path, capsys):
    assert main(["vocab", str(tmp_path / "a b" / "c.txt"), "-o", str(tmp_path / "tok")]) == 2
    assert f"`ls '{tmp_path}/a b'`" in capsys.readouterr().err


def test_fill_shows_answers_and_json(tmp_path, monkeypatch, capsys):
    answer = {
        "score": 0.25,
        "token": 7,
        "token_str": "house",
        "sequence": "the house .",
        "text": "the house.",
    }
    monkeypatch.setattr("bertworks.fill", lambda model, texts, k: ([[answer] * k] for _ in texts))
    monkeypatch.setattr(sys, "stdin", io.StringIO("the [MASK].\na [MASK].\n"))
    assert main(["fill", "model", "-", "-k", "2"]) == 0
    two = " 25.0%  house  the house.\n" * 2
    assert capsys.readouterr().out == f"{two}\n{two}"
    assert main(["fill", "model", "the [MASK].", "--json", "-k", "1"]) == 0
    assert json.loads(capsys.readouterr().out) == [[answer]]


def test_install_completion(tmp_path):
    environment = os.environ | {"HOME": str(tmp_path), "SHELL": "/bin/bash"}
    command = [
        sys.executable,
        "-m",
        "bertworks.cli.main",
        "--install-completion",
        "--shell",
        "bash",
    ]
    answer = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert answer.returncode == 0, answer.stderr
    written = [path for path in tmp_path.rglob("*") if path.is_file() and "bertworks" in path.name]
    assert any("pretrain" in path.read_text() for path in written)


@pytest.mark.parametrize(
    ("words", "same"),
    [
        (["help", "vocab"], ["vocab", "--help"]),
        (["help", "evaluate", "task"], ["evaluate", "task", "--help"]),
        (["help"], ["--help"]),
    ],
)
def test_help_is_a_command(words, same, capsys):
    assert main(words) == 0
    page = capsys.readouterr().out
    assert main(same) == 0
    assert page == capsys.readouterr().out


@pytest.mark.parametrize(
    "words", [["evaluate", "here", "a.csv"], ["evaluate", "--model", "here", "a.csv"]]
)
def test_a_model_is_evaluated_on_its_task(words, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("here").mkdir()
    models = []

    def evaluate(model, data, **_):
        models.append((str(model), data))
        raise UsageError("asked")

    monkeypatch.setattr("bertworks.evaluate_task", evaluate)
    assert main(words) == 2
    assert models == [("here", "a.csv")]


def test_an_unknown_option_is_answered_without_torch():
    code = """
import sys
from bertworks.cli.main import main
code = main(["finetune", "a.csv", "-o", "b", "--warmup-ratio", "1"])
sys.exit(code if "torch" not in sys.modules and "numpy" not in sys.modules else 99)
"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.returncode == 2, answer.stderr
    assert "Did you mean --set" in answer.stderr
