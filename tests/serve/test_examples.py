"""The example texts of the page of a server: what the file may hold, and where an error is."""

from pathlib import Path

import pytest

from bertworks.cli.main import main
from bertworks.errors import BertworksError, UsageError
from bertworks.serve.examples import MAX_CHARACTERS, MAX_EXAMPLES, read_examples
from tests.support.served import Local


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        (b"one\n\n  two \r\nthree", ["one", "two", "three"]),
        ("\ufeffhé\tb\n".encode(), ["hé\tb"]),
        ("\N{FOX FACE}".encode() * MAX_CHARACTERS, ["\N{FOX FACE}" * MAX_CHARACTERS]),
        (b"a\n" * MAX_EXAMPLES, ["a"] * MAX_EXAMPLES),
    ],
)
def test_a_line_is_a_text(content: bytes, texts: list[str], tmp_path: Path):
    file = tmp_path / "examples.txt"
    file.write_bytes(content)
    assert read_examples(file) == texts


@pytest.mark.parametrize(
    ("content", "line", "what"),
    [
        (b"", 1, "no example"),
        (b" \n\n", 1, "no example"),
        (b"a\n" * MAX_EXAMPLES + b"\nb\n", MAX_EXAMPLES + 2, "expected 20 at most"),
        (b"a\n" + b"b" * (MAX_CHARACTERS + 1), 2, "more than 1,000 characters"),
        ("\N{FOX FACE}".encode() * 50_000, 1, "more than 1,000 characters"),
        (b"a\n\nh\xe9\n", 3, "not UTF-8"),
    ],
)
def test_errors_name_the_line(content: bytes, line: int, what: str, tmp_path: Path):
    file = tmp_path / "examples.txt"
    file.write_bytes(content)
    with pytest.raises(UsageError, match=what) as error:
        read_examples(file)
    assert str(error.value.where) == f"{file}:{line}"
    assert error.value.hint


def test_a_file_that_is_not_there(tmp_path: Path):
    (tmp_path / "examples.txt").write_text("a")
    with pytest.raises(UsageError, match=r"did you mean .*examples\.txt"):
        read_examples(tmp_path / "example.txt")
    with pytest.raises(BertworksError, match="cannot be read"):
        read_examples(tmp_path)


def test_a_server_has_examples_only_if_they_are_given(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / "examples.txt"
    file.write_text("<b>one</b>\ntwo")
    with Local(model, examples=file) as local:
        assert local.send("GET", "/info").json()["examples"] == ["<b>one</b>", "two"]
    with Local(model) as local:
        assert local.send("GET", "/info").json()["examples"] == []
    file.write_text("")
    assert main(["serve", str(model), "--port", "0", "--examples", str(file)]) == 2
    assert f"{file}:1: the file has no example" in capsys.readouterr().err
