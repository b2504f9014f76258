"""Inputs: what users name becomes a path; one open for a pass, in any compression and encoding."""

import bz2
import gc
import gzip
import io
import lzma
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from bertworks.errors import BertworksError, UsageError
from bertworks.io import inputs
from bertworks.io.inputs import (
    IssueCounter,
    Repairs,
    as_path,
    file_or_texts,
    names_file,
    nothing_there,
    open_lines,
    rereadable,
)

LINES = ["text", "a long film", "", "日本 ü"]
CONTENT = "".join(f"{line}\n" for line in LINES).encode()
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}
opened: list[str] = []  # a hook cannot be removed
sys.addaudithook(
    lambda event, arguments: opened.append(str(arguments[0])) if event == "open" else None
)


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_pass_opens_the_file_once(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(COMPRESS[suffix](CONTENT))
    opened.clear()
    repairs = Repairs()
    with open_lines(path, "a.txt", repairs) as reader:
        assert reader.sample()[:-1] == LINES
        assert list(reader.lines()) == list(enumerate(LINES, 1))
    assert opened.count(str(path)) == 1
    assert repairs.bytes == len(CONTENT)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp932"])
def test_encodings(encoding: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes("日本\n".encode(encoding))
    name = encoding if encoding == "cp932" else None
    with open_lines(tmp_path / "a", "a", encoding=name) as reader:
        assert list(reader.lines()) == [(1, "日本")]


def test_first_bytes_of_parquet_and_of_other_programs(tmp_path: Path) -> None:
    for content, is_parquet, is_text in (
        (b"PAR1xxxx", True, True),
        (b"text", False, True),
        (b"%PDF-1.7\n", False, False),
    ):
        (tmp_path / "a").write_bytes(content)
        with open_lines(tmp_path / "a", "a") as reader:
            assert reader.is_parquet is is_parquet
            assert (reader.not_text is None) is is_text


def test_repairs_are_counted_at_their_lines(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"good\n" * 300 + b"b\xffd\n" + b"a\0b\n")
    repairs = Repairs()
    with open_lines(tmp_path / "a", "a", repairs) as reader:
        lines = [line for _, line in reader.lines()]
    assert lines[-2:] == ["b\N{REPLACEMENT CHARACTER}d", "ab"]
    assert repairs.counts[inputs.BAD_BYTES].places == ["a:301"]
    assert repairs.counts[inputs.NULL].count == 1


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(CONTENT * 100)[:-20])
    with (
        pytest.raises(BertworksError, match="damaged or incomplete"),
        open_lines(tmp_path / "a.gz", "a.gz") as reader,
    ):
        list(reader.lines())


def test_counters_of_parts_are_added() -> None:
    whole = IssueCounter()
    parts = [IssueCounter(), IssueCounter()]
    for number in range(9):
        whole.add(f"a:{number}")
        parts[number > 3].add(f"a:{number}")
    parts[0].add_all(parts[1])
    assert parts[0] == whole
    assert str(whole) == "9 (a:0, a:1, a:2, a:3, a:4, ...)"


@pytest.mark.parametrize(
    ("data", "encoding"),
    [
        ("Où êtes-vous, là-bas?".encode("cp1252"), "cp1252"),
        ("映画はとても良かったです。".encode("cp932"), "cp932"),
        ("text".encode("utf-16-le"), "utf-16-le"),
        ("Où".encode(), None),
    ],
)
def test_likely_encodings(data: bytes, encoding: str | None) -> None:
    assert inputs.infer_encoding(data * 5) == encoding


def test_suffixes_of_formats() -> None:
    assert inputs.format_suffix("a.JSONL.gz") == ".jsonl"
    assert inputs.format_suffix("a") == ""


class Owner:
    """An object that a temporary file is deleted with."""


def test_paths_are_as_they_are_and_what_is_none_is_refused(tmp_path: Path) -> None:
    assert as_path(str(tmp_path)) == as_path(tmp_path) == tmp_path
    with pytest.raises(UsageError, match=r"expected one corpus, not \['a'\]"):
        as_path(["a"], "corpus")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="http:// is not read"):
        as_path("http://host/a")


def test_no_other_module_is_needed_for_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bertworks.io.remote", None)
    assert as_path("a") == Path("a")
    with pytest.raises(ImportError):
        as_path("memory://a/b")


def test_a_pipe_is_read_again(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(b"text\n",))
    writer.start()
    owner = Owner()
    copy, name = rereadable(pipe, owner)
    writer.join()
    assert name == str(pipe)
    assert copy.read_bytes() == copy.read_bytes() == b"text\n"
    del owner
    gc.collect()
    assert not copy.exists()


def test_standard_input_has_a_name_and_a_file_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"text\n")))
    owner = Owner()
    copy, name = rereadable("-", owner)
    assert (copy.read_bytes(), name) == (b"text\n", "<stdin>")
    assert rereadable(tmp_path / "a", owner) == (tmp_path / "a", None)


def test_one_file_or_texts(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text\n")
    assert file_or_texts([str(path)], []) == str(path)
    assert file_or_texts(["a text"], ["and.csv"]) == ["a text", "and.csv"]
    assert names_file("b.jsonl.gz")
    assert not names_file("a text")
    with pytest.raises(UsageError, match="expected one file"):
        file_or_texts([str(path), "a text"], [])
    with pytest.raises(UsageError, match="no such file"):
        file_or_texts([str(tmp_path / "b.csv")], [])


def test_the_nearest_name_is_meant(tmp_path: Path) -> None:
    (tmp_path / "reviews.csv").write_text("")
    assert str(tmp_path / "reviews.csv") in str(nothing_there(tmp_path / "review.csv").hint)
    assert "glob matches nothing" in nothing_there(tmp_path / "*.tsv").what
