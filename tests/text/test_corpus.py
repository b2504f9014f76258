"""Documents from every format and every kind of bad file; the order of files; memory that stays
flat."""

import bz2
import gzip
import io
import json
import lzma
import os
import random
import subprocess
import sys
import tarfile
import textwrap
import tracemalloc
from itertools import groupby
from pathlib import Path

import pyarrow
import pytest
from hypothesis import given, settings, strategies as st
from pyarrow import parquet

from bertworks.errors import BertworksError, UsageError
from bertworks.io import inputs
from bertworks.text import corpus
from bertworks.text.corpus import CorpusReader
from tests.support.refusals import refusal as expected_refusal
from tests.support.tables import seven_files

SENTENCES = [
    "The old man walked slowly down the hill towards the village.",
    "Nobody had seen him for many years.",
    "He carried a small bag, which seemed to be very heavy, and a stick.",
    "When the children saw him they ran away.",
]


def texts(*inputs: str | Path, **options: object) -> list[str]:
    return [document.text for document in CorpusReader(list(inputs), **options)]


def report(*inputs: str | Path, **options: object) -> corpus.CorpusReport:
    reader = CorpusReader(list(inputs), **options)
    for _ in reader:
        pass
    return reader.report


def write(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def lines_of_json(*records: object) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


# --- plain text: what ends a document
# ---------------------------------------------------------------------------------


def test_a_sentence_per_line_with_blank_lines_between_documents(tmp_path: Path) -> None:
    blocks = ["\n".join(SENTENCES), "\n".join(SENTENCES[:2]), "\n".join(SENTENCES[1:])]
    path = write(tmp_path / "a.txt", "\n\n".join(blocks) + "\n")
    assert texts(path) == blocks
    assert texts(path, documents="file") == ["\n".join(blocks)]
    assert "a blank line ends a document (blocks of several" in str(report(path))


def test_blank_lines_between_unwrapped_paragraphs_do_not_end_documents(tmp_path: Path) -> None:
    paragraphs = [" ".join(SENTENCES[:2]) for _ in range(6)]
    path = write(tmp_path / "a.txt", "\n\n".join(paragraphs))
    assert texts(path) == ["\n".join(paragraphs)]
    assert texts(path, documents="blank_line") == paragraphs
    assert "each file is a document" in str(report(path))


def abstracts(count: int, length: int) -> list[str]:
    sentence = "They measured the flow of air along the wing at a high speed. "
    return [(f"{n}. " + sentence * 10)[:length].strip() for n in range(count)]


def test_long_lines_between_blank_lines_are_documents(tmp_path: Path) -> None:
    long = abstracts(20, 250)
    path = write(tmp_path / "a.txt", "\n\n".join(long))
    assert texts(path) == long
    assert CorpusReader([path]).separations() == [
        "plain text: a blank line ends a document (long lines between blank lines); --documents "
        "file if each file is one"
    ]
    # one block in ten may have several lines, and half of the blocks may be short
    mixed = [*(f"{text}\n{text}" for text in long[:2]), *abstracts(8, 150), *long[2:12]]
    assert len(texts(write(tmp_path / "b.txt", "\n\n".join(mixed)))) == 20
    several = [*(f"{text}\n{text}" for text in long[:3]), *long[3:]]
    assert len(texts(write(tmp_path / "c.txt", "\n\n".join(several)))) == 1
    short = write(tmp_path / "d.txt", "\n\n".join(abstracts(20, 190)))
    assert len(texts(short)) == 1
    assert "--documents blank_line if blank lines end" in CorpusReader([short]).separations()[0]
    single = write(tmp_path / "e.txt", "\n".join(long))
    assert "write a blank line between documents" in CorpusReader([single]).separations()[0]
    assert len(CorpusReader([short, single, path, path]).separations()) == 3


def test_a_large_file_is_not_one_document_without_being_asked_for(tmp_path: Path) -> None:
    text = "\n\n".join(abstracts(1000, 190))
    small = write(tmp_path / "small.txt", text)
    large = write(tmp_path / "large.txt", "\n\n".join([text] * 6))
    with pytest.raises(UsageError, match="a blank line end a document, or a paragraph") as caught:
        CorpusReader([small, large]).separations()
    assert caught.value.where == str(large)
    assert caught.value.hint == (
        "--documents blank_line if it ends documents; --documents file if the file is one document"
    )
    for documents, count in (("blank_line", 6000), ("file", 1)):
        reader = CorpusReader([large], documents=documents)  # type: ignore[arg-type]
        assert reader.separations() == []
        assert len(list(reader)) == count


def test_blank_lines_between_stanzas_do_not_end_documents(tmp_path: Path) -> None:
    stanza = (
        "Whiles carried o'er the iron road,\nWe hurry by some fair abode;\n"
        "The garden bright,\nThe yellow wain upon\n"
    )
    assert len(texts(write(tmp_path / "a.txt", "\n".join([stanza] * 8)))) == 1


def test_each_book_of_a_folder_is_a_document(tmp_path: Path) -> None:
    for name in "bac":
        write(
            tmp_path / f"{name}.txt",
            f"Book {name}.\n\n"
            + "\n\n".join(textwrap.fill(" ".join(SENTENCES), 70) for _ in range(5)),
        )
    documents = texts(tmp_path)
    assert [text.split("\n")[0] for text in documents] == ["Book a.", "Book b.", "Book c."]
    assert all(text.count("\n") == 5 for text in documents)


# --- hard-wrapped lines
# -----------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.integers(45, 110), st.integers(0, 10**6))
def test_wrapped_paragraphs_come_back_whole(width: int, seed: int) -> None:
    choose = random.Random(seed)
    paragraphs = [
        " ".join(choose.choice(SENTENCES) for _ in range(choose.randint(3, 9)))
        for _ in range(choose.randint(4, 9))
    ]
    wrapped = "\n\n".join(textwrap.fill(text, width) for text in paragraphs).split("\n")
    assert corpus.margin_of(wrapped) is not None
    assert corpus.paragraphs(wrapped, corpus.margin_of(wrapped)) == paragraphs


def test_headings_verse_lists_and_tables_are_not_glued(tmp_path: Path) -> None:
    prose = [textwrap.fill(" ".join(SENTENCES * 2), 70) for _ in range(6)]
    apart = [
        "CHAPTER I",
        "Of the Beginning of Things",  # headings on two lines
        "Whiles carried o'er the iron road,",
        "We hurry by some fair abode;",  # verse
        "* apples, which are red and round and grow on trees in the orchard",
        "* pears, which are green",
        "1. the first thing that has to be done before anything else is done",
        "2. the second",
        "Chapter 1 ............................................... 12",
        "Chapter 2 .......... 13",
    ]
    path = write(
        tmp_path / "a.txt",
        "\n\n".join(prose) + "\n\n" + "\n".join(apart) + "\n\n" + "\n\n".join(prose) + "\n",
    )
    lines = texts(path)[0].split("\n")
    assert lines == [" ".join(SENTENCES * 2)] * 6 + apart + [" ".join(SENTENCES * 2)] * 6
    assert report(path).wrapped_documents == 1


def test_paragraphs_without_blank_lines_end_where_a_line_is_short() -> None:
    paragraphs = [" ".join(SENTENCES * 2), " ".join(SENTENCES[1:]), " ".join(SENTENCES)]
    lines = "\n".join(
        textwrap.fill(text, 60, initial_indent="  ") for text in paragraphs * 3
    ).split("\n")
    assert corpus.paragraphs(lines, corpus.margin_of(lines)) == paragraphs * 3


def test_hyphens_at_line_ends() -> None:
    lines = [
        "It was after very much consid-",
        "eration that he drew his short-",
        "sword and the other short sword,",
        "which he had to wear to-day, to-",
        "day as ever, for a well-known co\u00ad",
        "operation of that famous Jean-",
        "Paul with the under-standing, under-",
        "standing and the whole crowd--",
        "and we keep understanding it.",
    ]
    assert corpus.paragraphs(lines, 32) == [
        "It was after very much consideration that he drew his short-sword and the other short "
        "sword, which he had to "
        "wear to-day, to-day as ever, for a well-known cooperation of that famous Jean-Paul with "
        "the under-standing, "
        "understanding and the whole crowd--and we keep understanding it."
    ]


def test_japanese_is_joined_without_a_space_and_korean_with_one() -> None:
    japanese = (
        "吾輩は猫である名前はまだ無いどこで生れたかとんと見当がつかぬ何でも薄暗いじめじめした所で泣いていた。"
        * 4
    )
    lines = [japanese[start : start + 30] for start in range(0, len(japanese), 30)]
    assert corpus.paragraphs(lines, corpus.margin_of(lines)) == [japanese]
    korean = (
        "나는 고양이로소이다 이름은 아직 없다 어디서 태어났는지 도무지 짐작이 가지 "
        "않는다 그저 어둡고 축축한 곳에서 "
    ) * 4
    wrapped = textwrap.fill(korean.strip(), 30).split("\n")
    assert corpus.paragraphs(wrapped, corpus.margin_of(wrapped)) == [korean.strip()]


@pytest.mark.parametrize(
    "lines",
    [
        SENTENCES * 5,
        [" ".join(SENTENCES)] * 8,
        [
            "Man Wins Prize In Local Fair For Second Year",
            "Rain Expected In The North On Sunday Night",
        ]
        * 10,
        ["apples", "pears and plums", "figs"] * 10,
    ],
    ids=["sentence per line", "paragraph per line", "headlines", "short lines"],
)
def test_unwrapped_lines_are_left_alone(lines: list[str]) -> None:
    assert corpus.margin_of(lines) is None


# --- formats
# --------------------------------------------------------------------------------------------------


def test_every_format_and_compression_gives_the_same_documents(tmp_path: Path) -> None:
    expected = [f"Document {index}.\nÄ second paragraph, 第二。" for index in range(5)]
    records = [{"id": f"{index}" * 60, "text": text} for index, text in enumerate(expected)]
    jsonl = lines_of_json(*records).encode()
    write(tmp_path / "a.jsonl", jsonl)
    write(tmp_path / "b.jsonl.gz", gzip.compress(jsonl[:90]) + gzip.compress(jsonl[90:]))
    write(tmp_path / "c.jsonl.bz2", bz2.compress(jsonl))
    write(tmp_path / "d.jsonl.xz", lzma.compress(jsonl))
    write(tmp_path / "e.jsonl.zst", pyarrow.compress(jsonl, "zstd", asbytes=True))
    parquet.write_table(pyarrow.Table.from_pylist(records), tmp_path / "f.parquet")
    table = "id,text\r\n" + "".join(f'{index},"{text}"\r\n' for index, text in enumerate(expected))
    write(tmp_path / "g.csv", table)
    write(tmp_path / "h.tsv", table.replace(",", "\t", 1).replace(',"', '\t"'))
    wiki = "".join(
        f'<doc id="{i}" url="u" title="t">\n{text}\n\n</doc>\n' for i, text in enumerate(expected)
    )
    write(tmp_path / "AA" / "wiki_00", wiki)
    write(tmp_path / "AA" / "wiki_01.bz2", bz2.compress(wiki.encode()))
    write(tmp_path / "i.txt", "\n\n".join(expected) + "\n")
    skippable = b"\x53\x2a\x4d\x18\x04\0\0\0info"
    write(tmp_path / "j.jsonl.zst", skippable + pyarrow.compress(jsonl, "zstd", asbytes=True))
    reader = CorpusReader([tmp_path])
    assert [document.text for document in reader] == expected * 12
    assert reader.report.columns == {"text": 9}
    assert reader.report.documents == 60
    assert reader.report.characters == sum(map(len, expected)) * 12
    assert reader.report.issues() == []


def test_documents_say_where_they_begin(tmp_path: Path) -> None:
    blocks = write(
        tmp_path / "a.txt", "\n\n" + "\n".join(SENTENCES) + "\n\n\n" + "\n".join(SENTENCES)
    )
    records = write(tmp_path / "b.jsonl", "\n" + lines_of_json({"text": "x"}, {"text": "y"}))
    table = write(tmp_path / "c.csv", 'id,text\n1,"one\ntwo\nthree"\n2,four\n')
    found = [document.source for document in CorpusReader([tmp_path])]
    assert found == [
        f"{blocks}:3",
        f"{blocks}:9",
        f"{records}:2",
        f"{records}:3",
        f"{table}:2",
        f"{table}:5",
    ]


def test_format_is_known_by_content_without_a_suffix(tmp_path: Path) -> None:
    write(tmp_path / "data", lines_of_json({"text": "from json"}))
    write(tmp_path / "part.unknown", "plain words\n")
    assert texts(tmp_path / "data", tmp_path / "part.unknown") == ["from json", "plain words"]


def test_tsv_without_header_and_with_stray_quotes(tmp_path: Path) -> None:
    rows = [
        'gj04\t1\t\t"Stray quote marks do not swallow the next rows.',
        "gj05\t0\t*\tThe second sentence stands here.",
    ]
    assert texts(write(tmp_path / "cola.tsv", "\n".join(rows) + "\n")) == [
        row.split("\t")[3] for row in rows
    ]


def test_wikiextractor_entities_and_a_cut_off_article(tmp_path: Path) -> None:
    path = write(
        tmp_path / "wiki_00",
        '<doc id="1" title="A">\nA &amp; B &lt;x&gt;\n</doc>\n<doc id="2" title="B">\nRest\n',
    )
    assert texts(path) == ["A & B <x>", "Rest"]
    assert report(path).counts[corpus.MALFORMED].places == [f"{path}:4"]
    stray = write(
        tmp_path / "wiki_01", '<doc id="1">\nA\n</doc>\nstray\n<doc id="2">\nB\n</doc>\nrest\n'
    )
    assert texts(stray) == ["A", "stray", "B", "rest"]
    assert report(stray).counts[corpus.MALFORMED].places == [f"{stray}:3", f"{stray}:7"]


# --- the text column
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "column"),
    [
        (
            {
                "url": "http://a.b/a-very-long-address-that-is-longer-than-the-text",
                "Content": "Short.",
            },
            "Content",
        ),
        ({"name": "A title that is quite long", "sentence": "Short.", "text": ""}, "sentence"),
        (
            {"title": "A title that is quite long", "sentence": "Short."},
            "sentence, after title (--text-column sentence: without)",
        ),
        (
            {"name": "short", "bemerkung": "The column with the longest values is the text."},
            "bemerkung",
        ),
        (
            {
                "seite": "https://example.org/a/long/address/of/a/page",
                "bemerkung": "It was a short visit.",
            },
            "bemerkung",
        ),
        (
            {"zeit": "Sat Apr 26 06:46:18 PDT 2009", "bemerkung": "It was a short visit."},
            "bemerkung",
        ),
        ({"id": 5, "paragraphs": ["One paragraph.", "Another."]}, "paragraphs"),
    ],
)
def test_the_text_column_is_guessed_and_reported(
    tmp_path: Path, record: dict[str, object], column: str
) -> None:
    found = report(write(tmp_path / "a.jsonl", lines_of_json(record)))
    assert found.columns == {column: 1}
    assert f"text column: {column}" in str(found)


def test_the_text_column_can_be_given(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", lines_of_json({"text": "no", "summary": "yes"}))
    assert texts(path, text_column="summary") == ["yes"]
    with pytest.raises(UsageError, match=r"'sumary'.*text, summary") as caught:
        texts(path, text_column="sumary")
    assert "did you mean --text-column summary?" in str(caught.value)
    parquet.write_table(pyarrow.table({"n": [1], "words": ["some"]}), tmp_path / "b.parquet")
    with pytest.raises(UsageError, match=r"n, words"):
        texts(tmp_path / "b.parquet", text_column="text")


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.parquet"])
def test_no_text_column_is_an_error_that_names_the_columns(tmp_path: Path, name: str) -> None:
    if name == "a.jsonl":
        write(tmp_path / name, lines_of_json({"id": "a1", "score": 3}))
    elif name == "a.csv":
        write(tmp_path / name, "id,score\na1,3\n")
    else:
        parquet.write_table(pyarrow.table({"id": ["a1"], "score": [3]}), tmp_path / name)
    with pytest.raises(BertworksError, match="no column looks like text") as caught:
        texts(tmp_path / name)
    assert "id" in caught.value.what
    assert "score" in caught.value.what
    assert "--text-column" in str(caught.value)
    assert name in str(caught.value)


# --- bad bytes, bad lines, bad files
# ----------------------------------------------------------------------------------


def test_bad_bytes_are_replaced_counted_and_named(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.txt",
        b"good line here.\n" * 3 + b"bad \xff\xfe line.\n" * 9 + "gut: äöü.\n".encode() * 900,
    )
    found = report(path)
    assert found.counts[inputs.BAD_BYTES].count == 9
    assert found.counts[inputs.BAD_BYTES].places == [f"{path}:{line}" for line in range(4, 9)]
    assert f"not text (replaced by \ufffd): 9 ({path}:4" in str(found)
    assert texts(path)[0].split("\n")[3] == "bad \ufffd\ufffd line."


GERMAN = "Die Zürcher wählten schöne Häuser für Bürger.\nA line without them.\n"


def refusal(path: Path) -> str:
    with pytest.raises(BertworksError) as caught:
        texts(path)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "encoding", "inferred"),
    [
        (GERMAN * 100, "cp1252", "cp1252"),
        ("Die Zürcher wählten schöne Häuser.", "cp1252", "cp1252"),  # one line
        ("吾輩は猫である。名前はまだ無い。\n" * 50, "cp932", "cp932"),
        ("오늘은 날씨가 아주 좋습니다. 내일도 그렇습니다.\n" * 50, "euc-kr", "euc-kr"),
    ],
)
@pytest.mark.parametrize("kind", ["txt", "jsonl", "csv", "wiki"])
def test_text_in_another_encoding_is_refused_with_its_name(
    tmp_path: Path, text: str, encoding: str, inferred: str, kind: str
) -> None:
    lines = text.strip().split("\n")
    if kind == "jsonl":
        lines = [f'{{"text": "{line}"}}' for line in lines]
    elif kind == "csv":
        lines = ["text,number", *(f"{line},1" for line in lines)]
    elif kind == "wiki":
        lines = ['<doc id="1">', *lines, "</doc>"]
    if kind != "txt" and len(lines) < 5:
        lines += lines[1:2]  # a single bad line among good ones is a stray one
    path = write(
        tmp_path / f"a.{kind}".removesuffix(".wiki"), ("\n".join(lines) + "\n").encode(encoding)
    )
    found = refusal(path)
    assert "bytes that are not UTF-8" in found
    assert found.endswith(f"--encoding {inferred}")
    assert "\n".join(texts(path, encoding=inferred)) == "\n".join(
        texts(write(path, path.read_bytes().decode(encoding)))
    )


def test_few_bad_lines_are_replaced_and_many_are_an_error(tmp_path: Path) -> None:
    good, bad = b"a good line of text.\n", b"a b\xe4d line of text.\n"
    found = report(write(tmp_path / "a.txt", good * 989 + bad * 10))
    assert found.counts[inputs.BAD_BYTES].count == 10
    assert "10 of the first 300 lines" in refusal(write(tmp_path / "b.txt", good * 290 + bad * 10))
    # over several blocks
    late = write(tmp_path / "c.txt", good * 200_000 + bad * 5_000 + good * 200_000)
    assert "of the first" in refusal(late)
    # they are few in the end, and many in no megabyte
    path = write(tmp_path / "d.txt", bad * 20 + good * 900_000)
    assert report(path).counts[inputs.BAD_BYTES].count == 20


def test_the_head_of_a_file_is_enough(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", GERMAN.encode("cp1252") * 100_000)
    documents = iter(CorpusReader([path]))
    with pytest.raises(BertworksError, match="--encoding cp1252"):
        next(documents)


def test_an_encoding_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not an encoding"):
        texts(write(tmp_path / "a.txt", "abc"), encoding="utf-99")


def test_byte_order_marks_line_ends_and_null_characters(tmp_path: Path) -> None:
    expected = ["Erste Zeile mit Ä。\nzweite\ndritte Zeile"]
    text = "Erste Zeile mit Ä。\r\nzweite\r\n\r\ndritte Zeile\r\n"
    for name, data in {
        "utf8": text.encode("utf-8-sig"),
        "utf16": text.encode("utf-16"),
        "utf16be": b"\xfe\xff" + text.encode("utf-16-be"),
        "utf32": text.encode("utf-32"),
        "mac": text.replace("\r\n", "\r").encode(),
        "null": text.replace("zweite", "zwei\0te").encode(),
        "other": text.replace("\r\nzweite\r\n\r\n", "\u2028zweite\f").encode(),
    }.items():
        path = write(tmp_path / f"{name}.txt", data)
        assert texts(path, documents="file") == expected, name
        assert report(path, documents="file").counts[inputs.BAD_BYTES].count == 0
        assert report(path, documents="file").counts[inputs.NULL].count == (name == "null")
    broken = write(tmp_path / "broken.txt", "abc def.".encode("utf-16") + b"\x41")
    assert texts(broken)[0].startswith("abc def.")
    assert report(broken).counts[inputs.BAD_BYTES].count == 1
    half = write(
        tmp_path / "half.txt", b"\xff\xfe" + "one\ntw\ud800o".encode("utf-16-le", "surrogatepass")
    )
    assert texts(half) == ["one\ntw\ufffdo"]
    assert report(half).counts[inputs.BAD_BYTES].places == [f"{half}:2"]


def test_lone_surrogates_and_null_in_json_are_repaired(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"text": "a\\ud800b \\u0000c \\ud83d\\ude00"}\n')
    assert texts(path) == ["a\ufffdb c \U0001f600"]
    found = report(path)
    assert (found.counts[inputs.BAD_BYTES].count, found.counts[inputs.NULL].count) == (1, 1)


def test_few_malformed_lines_are_named_and_many_are_an_error(tmp_path: Path) -> None:
    good = lines_of_json({"text": "good"}).rstrip()
    few = write(tmp_path / "few.jsonl", "\n".join([good] * 10 + ["{broken"] + [good] * 10))
    assert len(texts(few)) == 20
    assert report(few).counts[corpus.MALFORMED].places == [f"{few}:11"]
    many = write(tmp_path / "many.jsonl", "\n".join([good] * 3 + ["{broken"] * 5))
    with pytest.raises(BertworksError, match="malformed") as caught:
        texts(many)
    assert caught.value.where == f"{many}:4"
    remarks = write(
        tmp_path / "remarks.jsonl", "\n".join(["# made by hand", "# twice", *[good] * 150])
    )
    assert len(texts(remarks)) == 150
    endless = write(tmp_path / "endless.jsonl", "{broken\n" * 1200)
    with pytest.raises(BertworksError, match="1,000 malformed lines"):
        texts(endless)
    for name, content in {
        "only.jsonl": "{broken\n",
        "numbers.jsonl": "1\n2\n",
        "array.jsonl": '[{"text": "a"}]\n',
    }.items():
        with pytest.raises(BertworksError) as caught:
            texts(write(tmp_path / name, content))
        assert name in str(caught.value)
    uneven = write(
        tmp_path / "uneven.csv", "id,text\n" + "1,fine words\n" * 5 + "1,2,3\n" + "1,2,3,4\n"
    )
    with pytest.raises(BertworksError, match="3 cells where the first row has 2"):
        texts(uneven)
    quote = write(tmp_path / "quote.csv", 'id,text\n1,"never closed\n' + "2,x\n" * 5)
    assert report(quote).documents == 1


def test_empty_documents_and_files_are_counted(tmp_path: Path) -> None:
    write(
        tmp_path / "a.jsonl",
        lines_of_json({"text": ""}, {"text": " \n\t"}, {"text": None}, {"other": 1}, {"text": "x"}),
    )
    write(tmp_path / "b.txt", "")
    write(tmp_path / "c.txt.gz", gzip.compress(b""))
    found = report(tmp_path)
    assert found.documents == 1
    assert found.counts[corpus.EMPTY].count == 4
    assert found.counts[corpus.EMPTY].places[0] == f"{tmp_path}/a.jsonl:1"
    assert found.counts["empty files"].count == 2


def test_nothing_but_empty_files_is_an_error(tmp_path: Path) -> None:
    write(tmp_path / "b.txt", "\n \n")
    write(tmp_path / "c.txt", "")
    with pytest.raises(BertworksError, match=r"no text was found(.|\n)*empty files: 1"):
        texts(tmp_path)


def cut_off(name: str, data: bytes) -> bytes:
    match Path(name).suffix:
        case ".gz":
            return gzip.compress(data)[:-300]
        case ".bz2":
            return bz2.compress(data)[:-300]
        case ".xz":
            return lzma.compress(data)[:-300]
        case ".zst":
            return pyarrow.compress(data, "zstd", asbytes=True)[:-300]
        case _:
            sink = io.BytesIO()
            parquet.write_table(pyarrow.table({"text": [data.hex()]}), sink)
            return sink.getvalue()[:-300]


@pytest.mark.parametrize("name", ["a.txt.gz", "a.txt.bz2", "a.txt.xz", "a.txt.zst", "a.parquet"])
def test_truncated_files_are_errors_that_name_the_file(tmp_path: Path, name: str) -> None:
    noise = random.Random(0).randbytes(40_000).hex().encode()
    path = write(tmp_path / name, cut_off(name, noise))
    with pytest.raises(BertworksError, match="damaged") as caught:
        texts(path)
    assert str(path) in str(caught.value)
    assert "fetch it again" in str(caught.value)


def test_flipped_bytes_in_an_archive_never_escape_as_other_errors(tmp_path: Path) -> None:
    choose = random.Random(1)
    whole = {
        "gz": gzip.compress(b"words and words. " * 999),
        "zst": pyarrow.compress(b"words. " * 999, "zstd", asbytes=True),
    }
    for suffix, data in whole.items():
        for _ in range(30):
            broken = bytearray(data)
            broken[choose.randrange(len(data))] ^= 1 << choose.randrange(8)
            path = write(tmp_path / f"a.txt.{suffix}", bytes(broken))
            refused = False
            try:
                read = texts(path)
            except BertworksError as error:
                refused = str(path) in str(error)
                read = []
            assert read or refused


def test_a_tar_archive_of_unix_v7_is_no_text(tmp_path: Path) -> None:
    # no "ustar"
    header = bytearray(tarfile.TarInfo("words.txt").tobuf(tarfile.USTAR_FORMAT)[:257] + bytes(255))
    header[148:156] = b"%06o\0 " % sum(header[:148] + b" " * 8 + header[156:])
    body = b"Words that look like any text. " * 33
    write(tmp_path / "old.txt", bytes(header) + body)
    write(tmp_path / "good.txt", body)
    header[0] += 1  # its sum is wrong now: bytes like any others
    write(tmp_path / "other.txt", bytes(header) + body)
    found = report(tmp_path)
    assert found.documents == 2
    assert "old.txt (a tar archive; `mkdir FOLDER; tar xf FILE" in str(
        found.counts[corpus.SKIPPED].places
    )


def test_what_is_not_text_is_skipped_and_named(tmp_path: Path) -> None:
    write(tmp_path / "good.txt", "Good words.")
    write(tmp_path / "picture.txt", bytes(range(256)) * 20)
    write(tmp_path / "picture.png", b"\x89PNG")
    write(tmp_path / "letter.txt", b"%PDF-1.7\nIt looks like words.")
    letter = tmp_path / "letter.txt"
    with tarfile.open(tmp_path / "packed.txt.gz", "w:gz") as archive:
        archive.add(letter, "letter.txt")
    write(tmp_path / ".hidden.txt", "no")
    write(tmp_path / "array.json", '[{"text": "a"}]')
    found = report(tmp_path)
    assert found.documents == 1
    assert found.counts[corpus.SKIPPED].count == 5
    assert "packed.txt.gz (a tar archive; `mkdir FOLDER; tar xf FILE -C FOLDER`" in str(
        found.counts[corpus.SKIPPED].places
    )
    assert "picture.png" in str(found)
    assert "letter.txt (a PDF; `pdftotext FILE`" in str(found)
    assert "picture.txt (not text)" in str(found)
    assert "jq -c" in str(found)


def test_inputs_that_name_nothing(tmp_path: Path) -> None:
    write(tmp_path / "wiki.txt", "x")
    with pytest.raises(UsageError, match="no such file") as caught:
        CorpusReader([tmp_path / "wikki.txt"])
    assert f"did you mean {tmp_path / 'wiki.txt'}?" in str(caught.value)
    with pytest.raises(UsageError, match="glob matches nothing"):
        CorpusReader([str(tmp_path / "*.jsonl")])
    with pytest.raises(UsageError, match="no input"):
        CorpusReader([])
    (tmp_path / "empty").mkdir()
    write(tmp_path / "empty" / "a.pdf", "x")
    with pytest.raises(BertworksError, match=r"no file to read(.|\n)*a\.pdf"):
        CorpusReader([tmp_path / "empty"])


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read every file")
def test_unreadable_files_are_errors(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "x").chmod(0)
    with pytest.raises(BertworksError, match="cannot be read"):
        texts(tmp_path)


def test_a_link_to_nowhere_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "a.txt").symlink_to("gone.txt")
    with pytest.raises(BertworksError, match="cannot be read: No such file") as caught:
        texts(tmp_path)
    assert str(tmp_path / "a.txt") in str(caught.value)


def test_what_is_left_out_of_a_folder_is_counted_with_the_reason(tmp_path: Path) -> None:
    write(tmp_path / "data" / "good.txt", "Good words.")
    write(tmp_path / "data" / "_draft.txt", "no")
    write(tmp_path / "data" / "_old" / "a.txt", "no")
    write(tmp_path / "data" / ".git" / "a.txt", "no")
    write(tmp_path / "elsewhere" / "a.txt", "no")
    (tmp_path / "data" / "link").symlink_to("../elsewhere")
    os.mkfifo(tmp_path / "data" / "pipe.txt")  # would keep a reader waiting for ever
    for corpus_path in (tmp_path / "data", f"{tmp_path}/da*"):
        found = report(corpus_path)
        assert (found.documents, found.counts[corpus.SKIPPED].count) == (1, 4)
        for place in (
            "_draft.txt (its name",
            "_old (its name",
            "link (a link to a folder",
            "pipe.txt (a pipe or",
        ):
            assert place in str(found)
    assert report(f"{tmp_path}/data/[gp]*").counts[corpus.SKIPPED].places == [
        f"{tmp_path}/data/pipe.txt (a pipe or a device; name it as an input of its own)"
    ]


def test_a_compressed_parquet_file_is_called_so(tmp_path: Path) -> None:
    write(tmp_path / "good.txt", "Good words.")
    parquet.write_table(pyarrow.table({"text": ["a"]}), tmp_path / "a.parquet")
    write(tmp_path / "b.parquet.gz", gzip.compress((tmp_path / "a.parquet").read_bytes()))
    assert "b.parquet.gz (a compressed Parquet file; unpack it: `gzip -d FILE`)" in str(
        report(tmp_path)
    )


# --- finding files
# --------------------------------------------------------------------------------------------------


def test_order_is_by_relative_path_whatever_is_typed_first(tmp_path: Path) -> None:
    for name in ("x/b.txt", "x/deep/a.txt", "y/a.txt", "y/c.txt", "z.txt"):
        write(tmp_path / name, name)
    inputs = [tmp_path / "x", tmp_path / "y", tmp_path / "z.txt", f"{tmp_path}/y/*.txt"]
    expected = ["y/a.txt", "x/b.txt", "y/c.txt", "x/deep/a.txt", "z.txt"]
    assert texts(*inputs) == expected
    assert texts(*reversed(inputs)) == expected
    assert CorpusReader(inputs).files == [tmp_path / name for name in expected]
    assert texts(f"{tmp_path}/**/a.txt") == ["x/deep/a.txt", "y/a.txt"] or texts(
        f"{tmp_path}/**/a.txt"
    ) == [
        "y/a.txt",
        "x/deep/a.txt",
    ]


def test_iterating_twice_gives_the_same_and_keeps_the_report(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", lines_of_json({"text": "one"}, {"text": ""}, {"text": "two"}))
    reader = CorpusReader([tmp_path])
    assert reader.report.documents == 0
    first, report_of_first = list(reader), reader.report
    next(iter(reader))  # an unfinished pass leaves the report of the last full one
    assert reader.report is report_of_first
    assert list(reader) == first
    assert reader.report == report_of_first


def test_standard_input_can_be_read_again(tmp_path: Path) -> None:
    script = (
        "from bertworks.text.corpus import CorpusReader\n"
        "reader = CorpusReader(['-'])\n"
        "print([(d.text, d.source) for d in reader] == [(d.text, d.source) for d in reader], "
        "next(iter(reader)))\n"
        "print(reader.files[0])\n"
    )
    data = gzip.compress(lines_of_json({"text": "from a pipe"}).encode())
    done = subprocess.run(
        [sys.executable, "-c", script], input=data, capture_output=True, check=True
    )
    said, path = done.stdout.decode().splitlines()
    assert said == "True Document(text='from a pipe', source='<stdin>:1')"
    assert not Path(path).exists()


# --- size
# --------------------------------------------------------------------------------------------------


def test_no_room_for_standard_input_names_the_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)); "
    program = "from bertworks.text.corpus import CorpusReader; CorpusReader(['-'])"
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    ran = subprocess.run(
        [sys.executable, "-c", limit + program], input=b"words " * 1000, capture_output=True
    )
    assert (
        f"BertworksError: {tmp_path}: the input of a pipe cannot be copied to a file".encode()
        in ran.stderr
    )
    assert b"TMPDIR" in ran.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.no_cover
def test_a_giant_line_of_plain_text_is_cut_and_memory_stays_flat(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    peaks = []
    for megabytes in (20, 60):
        with path.open("wb") as file:
            for _ in range(megabytes):
                file.write(b"words without an end " * 50_000)
        tracemalloc.start()
        reader = CorpusReader([path])
        letters = sum(
            len(document.text) - document.text.count(" ") - document.text.count("\n")
            for document in reader
        )
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert letters == megabytes * 50_000 * len("wordswithoutanend")
        assert reader.report.documents >= megabytes // 6
        assert reader.report.counts[corpus.CUT].count > 2
    assert peaks[1] < 1.1 * peaks[0]


def test_a_giant_json_string_becomes_several_documents(tmp_path: Path) -> None:
    text = "A sentence of ordinary length, as it were. " * 250_000
    path = write(tmp_path / "a.jsonl", lines_of_json({"text": text}))
    pieces = texts(path)
    assert len(pieces) == 3
    assert all(len(piece) <= corpus.LARGEST_DOCUMENT for piece in pieces)
    assert " ".join(pieces) == text.strip()
    assert report(path).counts[corpus.CUT].count == 1


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.text(st.characters(exclude_characters="\r\n\0", exclude_categories=["Cs"]), max_size=30),
        max_size=30,
    ),
    st.integers(1, 40),
)
def test_lines_do_not_depend_on_the_size_of_blocks(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], size: int
) -> None:
    path = write(tmp_path_factory.mktemp("blocks") / "a.txt", "\n".join(lines))
    expected = list(enumerate(lines, 1))[: None if lines and lines[-1] else -1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inputs, "BLOCK_SIZE", size)
        with inputs.open_lines(path, "a.txt", repairs := inputs.Repairs()) as reader:
            assert list(reader.lines()) == [
                (n, line.removeprefix("\ufeff") if n == 1 else line) for n, line in expected
            ]
    assert repairs.bytes == len("\n".join(lines).encode())


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.text("ab 。é\n", max_size=60), min_size=1, max_size=5).map("".join),
    st.integers(1, 20),
    st.integers(1, 30),
)
def test_long_lines_are_divided_and_lose_nothing(
    tmp_path_factory: pytest.TempPathFactory, text: str, size: int, longest: int
) -> None:
    path = write(tmp_path_factory.mktemp("long") / "a.txt", text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inputs, "BLOCK_SIZE", size)
        with inputs.open_lines(path, "a.txt") as reader:
            found = list(reader.lines(longest=longest))
    expected = text.removesuffix("\n").split("\n") if text else []
    assert [
        "".join(line for _, line in group) for _, group in groupby(found, lambda line: line[0])
    ] == expected
    assert all(len(line) <= size + 2 * longest for _, line in found)


def test_real_corpora_are_understood(data_folder: Path) -> None:
    novels = CorpusReader([data_folder / "text" / "en-novels-2m"])
    documents = list(novels)
    assert len(documents) == len(novels.files)
    assert novels.report.wrapped_documents == 8
    # 2.02 million words stand in the files; joining loses none and breaks none.
    assert sum(len(document.text.split()) for document in documents) == pytest.approx(
        2.02e6, rel=0.01
    )
    japanese = CorpusReader([data_folder / "text" / "ja-aozora-5m-chars.jsonl.gz"])
    assert sum(1 for _ in japanese) == 359
    assert japanese.report.wrapped_documents == 0
    assert japanese.report.issues() == []


def test_a_folder_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refused(_: Path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refused)
    with expected_refusal("the folder cannot be read: Permission denied", "make it readable"):
        CorpusReader([tmp_path])


@pytest.fixture
def small_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CorpusReader:
    return seven_files(tmp_path, monkeypatch)


def test_groups_divide_the_files(small_groups: CorpusReader) -> None:
    groups = list(small_groups.groups())
    assert len(groups) > 2
    assert groups[0][0] == 0
    assert [end for _, end in groups] == [*(start for start, _ in groups[1:]), 7]


def test_parts_hold_all_documents_in_order(small_groups: CorpusReader) -> None:
    parts = list(small_groups.parts(30))
    assert [text for part in parts for text in part] == [document.text for document in small_groups]
    assert len(parts) > 5
    assert small_groups.report.documents == 21


def test_rows_in_memory_are_read_by_one_process() -> None:
    with pytest.raises(UsageError, match="by one process only"):
        CorpusReader([{"text": "a film"}]).source()
