"""Only a line feed ends a line where lines are aligned with those of another file, or with the rows
of an output."""

import io
import json
import subprocess
from pathlib import Path

import pytest

import bertworks as bw
from bertworks.cli.main import main
from bertworks.datasets.reader import RowReader
from bertworks.errors import BertworksError
from bertworks.io.inputs import open_lines
from bertworks.text.corpus import CorpusReader
from bertworks.text.translations import read_translations

SENTENCES = [
    "The train to the coast leaves at nine.",
    "My sister bakes bread on Sundays.",
    "A storm damaged the old bridge.",
    "Banks raised interest rates again.",
    "The zoo has two young tigers.",
    "He forgot his umbrella in the taxi.",
    "Our team lost the final match.",
    "Tomatoes need a lot of sun.",
]
# Everything that `str.splitlines` or a text file in Python's universal mode takes for the end of a
# line.
INSIDE = ["\r", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]


def write_lines(path: Path, lines: list[str], end: str = "\n") -> Path:
    path.write_bytes("".join(line + end for line in lines).encode())
    return path


def with_stray(lines: list[str], index: int, stray: str) -> list[str]:
    """The lines, one of them with a character behind its second word."""
    words = lines[index].split(" ", 2)
    return [*lines[:index], f"{words[0]} {words[1]} {stray}{words[2]}", *lines[index + 1 :]]


def test_the_nearest_translations_of_files_with_stray_carriage_returns(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["the", "film", "was", "good", "in", "this", "town", "men"]
    texts = [" ".join(words[: 3 + n] * 2) for n in range(6)] + [
        "men heard dogs",
        "a good good film",
    ]
    files = [
        write_lines(tmp_path / name, with_stray(texts, line, "\r"))
        for name, line in (("a", 1), ("b", 6))
    ]
    result = bw.evaluate_pairs(model, files)
    assert (result["pairs"], result["forward"]) == (8, 1.0)
    assert main(["evaluate", "pairs", str(model), *map(str, files)]) == 0
    printed = capsys.readouterr()
    assert "8 pairs" in printed.out
    assert (
        f"carriage returns inside lines (they end no line): 2 ({files[0]}:2, {files[1]}:7)"
        in printed.err
    )


@pytest.mark.parametrize("name", ["a.txt", "a.tsv", "a.csv", "a.conll"])
def test_files_with_carriage_returns_only_are_refused(name: str, tmp_path: Path) -> None:
    rows = (
        ["Anna\tB-person", "lives\tO", "here\tO"]
        if name == "a.conll"
        else ["text\tlabel", "one\ta", "two\tb"]
    )
    path = write_lines(tmp_path / name, rows if name != "a.txt" else SENTENCES, "\r")
    readers = [lambda: list(RowReader(path)), lambda: read_translations([path])]
    for read in readers:
        with pytest.raises(
            BertworksError, match="the lines end in carriage returns alone"
        ) as error:
            read()
        assert error.value.where == f"{path}:1"
        assert error.value.hint == "convert the file: `tr '\\r' '\\n' < OLD > NEW`"
    converted = tmp_path / f"new-{name}"
    subprocess.run(f"tr '\\r' '\\n' < {path} > {converted}", shell=True, check=True)
    assert len(list(RowReader(converted))) == {"a.txt": 8, "a.conll": 1}.get(name, 2)


@pytest.mark.parametrize("stray", INSIDE)
def test_texts_of_a_file_stay_in_step_with_its_lines(stray: str, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.txt", with_stray(SENTENCES, 1, stray))
    rows = list(RowReader(path))
    assert [row.values["text"] for row in rows] == with_stray(SENTENCES, 1, stray)
    assert [row.where for row in rows] == [f"{path}:{n}" for n in range(1, 9)]


def test_lines_of_standard_input(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    content = "".join(f"{line}\n" for line in with_stray(SENTENCES, 1, "\r")).encode()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content), encoding="utf-8"))
    assert main(["score", str(model), "-", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.strip().split("\n")]
    assert [line["text"] for line in lines] == with_stray(SENTENCES, 1, "\r")
    only = content.replace(b"\r", b"").replace(b"\n", b"\r")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(only), encoding="utf-8"))
    assert main(["score", str(model), "-", "--json"]) == 1
    assert "<stdin>: the lines end in carriage returns alone" in capsys.readouterr().err


def test_numbers_of_lines_count_line_feeds_as_other_programs_do(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.txt", ["one\rtwo", "", "three"])

    def lines(**options: bool) -> list[tuple[int, str]]:
        with open_lines(path, str(path)) as reader:
            assert [line for _, line in reader.lines(**options)] == reader.sample(**options)[:-1]
        with open_lines(path, str(path)) as reader:
            return list(reader.lines(**options))

    assert lines() == [(1, "one\rtwo"), (2, ""), (3, "three")]
    assert lines(universal=True) == [(1, "one"), (1, "two"), (2, ""), (3, "three")]
    path.write_bytes(b"one\rtwo\rthree")
    with open_lines(path, str(path)) as reader:
        assert list(reader.lines(universal=True)) == [(1, "one"), (2, "two"), (3, "three")]
    write_lines(path, ["one\rtwo", "three"])
    reader = CorpusReader([path], documents="blank_line")
    assert [document.text for document in reader] == ["one\ntwo\nthree"]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.tsv"])
def test_records_of_raw_text_are_not_broken(name: str, end: str, tmp_path: Path) -> None:
    """A carriage return is white space in JSON, and part of a cell; a file may have nothing else at
    its line ends."""
    stray = "" if end == "\r" else "\r"
    records = {
        "a.jsonl": [f'{{"text":{stray} "{line}"}}' for line in SENTENCES],
        "a.csv": [
            "id,text",
            *(f'{n},"{line}"' for n, line in enumerate(with_stray(SENTENCES, 1, stray))),
        ],
        "a.tsv": [
            "id\ttext",
            *(f"{n}\t{line}" for n, line in enumerate(with_stray(SENTENCES, 1, stray))),
        ],
    }
    path = write_lines(tmp_path / name, records[name], end)
    reader = CorpusReader([path])
    texts = [document.text for document in reader]
    expected = list(SENTENCES)
    if stray and name != "a.jsonl":
        expected[1] = "My sister\nbakes bread on Sundays."
    assert texts == expected
    assert reader.report.issues() == []


def test_a_carriage_return_inside_a_cell(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.csv", ["text,label", '"one, two",a', "thr\ree,b", "four,a"])
    with pytest.raises(
        BertworksError, match=r"a carriage return inside a cell without quotes: 'thr\\ree,b'"
    ) as error:
        list(RowReader(path))
    assert error.value.where == f"{path}:3"
    write_lines(path, ["text,label", '"one, two",a', '"thr\ree",b', "four,a"])
    assert [row.values["text"] for row in RowReader(path)] == ["one, two", "thr\ree", "four"]
