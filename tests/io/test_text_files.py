"""Files of text: one open for a pass, in any compression and encoding; what was repaired."""

import bz2
import gzip
import lzma
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bertworks.errors import BertworksError
from bertworks.io import text_files
from bertworks.io.text_files import IssueCounter, Repairs, open_lines

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
    assert repairs.counts[text_files.BAD_BYTES].places == ["a:301"]
    assert repairs.counts[text_files.NULL].count == 1


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
    assert text_files.infer_encoding(data * 5) == encoding


def test_suffixes_of_formats() -> None:
    assert text_files.format_suffix("a.JSONL.gz") == ".jsonl"
    assert text_files.format_suffix("a") == ""
