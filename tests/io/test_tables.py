"""Tables: delimiters, quotes and headers; columns of texts; rows in memory."""

import csv
import gc
import hashlib
import io
import json
import math
import random
import uuid
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from hypothesis import given, strategies as st
from pyarrow import parquet

from bertworks.datasets.reader import RowReader
from bertworks.datasets.schema import Schema, infer_schema
from bertworks.errors import BertworksError, UsageError
from bertworks.io import tables
from bertworks.io.inputs import Issues
from bertworks.io.tables import is_code, is_single_word, rows_of_texts
from bertworks.tasks.registry import TASKS
from tests.support.refusals import refusal

CELLS = st.lists(st.text("ab\"',;\t x", max_size=6), min_size=2, max_size=4)


@pytest.mark.parametrize(
    ("text", "size"), [("1", 1), ("2k", 2048), ("1.5 GiB", 3 << 29), ("16m", 16 << 20)]
)
def test_sizes(text: str, size: int) -> None:
    assert tables.parse_size(text, "--max-memory") == size


@pytest.mark.parametrize("text", ["", "0", "-1", "1x", "m"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(UsageError, match="is not a size"):
        tables.parse_size(text, "--max-memory")


@pytest.mark.parametrize(
    ("line", "format", "delimiter"),
    [("a,b", None, ","), ("a;b;c,d", "csv", ";"), ("a\tb", "csv", "\t"), ("a,b", "tsv", "\t")],
)
def test_the_delimiter_of_a_line(line: str, format: str | None, delimiter: str) -> None:
    assert tables.delimiter_of(["", line], format) == delimiter


@given(st.lists(CELLS, min_size=1, max_size=5))
def test_quoted_rows_as_the_library_of_python_writes_them(rows: list[list[str]]) -> None:
    file = io.StringIO()
    csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)
    lines = enumerate(file.getvalue().split("\n")[:-1], 1)
    read = tables.split_rows(lines, ",", quoted=True, name="a.csv", strict=True)
    assert list(read) == list(enumerate(rows, 1))


def test_an_open_quote_mark_is_named_with_its_row() -> None:
    lines = [(1, 'a,"b'), (2, "c"), (3, "")]
    with pytest.raises(BertworksError, match="opened here and never closed") as caught:
        list(tables.split_rows(lines, ",", quoted=True, name="a.csv", strict=True))
    assert caught.value.where == "a.csv:1"


@pytest.mark.parametrize(
    ("lines", "matter"),
    [
        (["a\tb"], False),
        (['he said "no"\tx', "b\ty"], False),
        (['"a\tb"\tx', "c\ty"], True),
        (['"a"\t"b"', "c\td"], True),
    ],
)
def test_whether_quote_marks_enclose_cells(lines: list[str], matter: bool) -> None:
    assert tables.quotes_matter(lines) is matter


def test_rows_that_a_newline_has_broken() -> None:
    rows = [(1, ["a", "b", "c"]), (2, ["d", "e"]), (3, ["f", "g"]), (4, ["h"]), (5, ["i"])]
    counts = Issues()
    joined = list(tables.rejoin_broken_rows(rows, 3, counts, "a.tsv"))
    assert joined == [(1, ["a", "b", "c"]), (2, ["d", "e\nf", "g"]), (4, ["h"]), (5, ["i"])]
    (counter,) = counts.values()
    assert counter.places == ["a.tsv:2"]


@pytest.mark.parametrize(
    ("row", "expected"),
    [(["text", "label"], True), (["text", "text"], False), (["a good film.", "1"], False)],
)
def test_names_of_columns(row: list[str], expected: bool) -> None:
    assert tables.is_header(row) is expected


def test_the_column_of_the_text() -> None:
    columns = {"id": ["1", "2"], "review": ["a film that is long", "and another long one"]}
    assert tables.choose_column(columns, "a.csv", None) == "review"
    assert tables.choose_column(columns, "a.csv", "id") == "id"
    with pytest.raises(UsageError, match="no column 'Review'") as caught:
        tables.choose_column(columns, "a.csv", "Review")
    assert "did you mean --text-column review?" in str(caught.value.hint)
    with pytest.raises(BertworksError, match="no column looks like text"):
        tables.choose_column({"id": ["1"]}, "a.csv", None)


def test_batches_of_parquet_hold_all_rows_in_order(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    texts = [f"text {number}" for number in range(1000)]
    parquet.write_table(pyarrow.table({"text": texts, "n": range(1000)}), path, row_group_size=300)
    with tables.open_parquet(path, "a.parquet") as file:
        batches = list(tables.batches_of(file, ["text"], "a.parquet"))
    assert [text for batch in batches for text in batch["text"].to_pylist()] == texts
    assert max(map(len, batches)) <= 256
    with (
        pytest.raises(BertworksError, match="a row has more than 3 bytes"),
        tables.open_parquet(path, "a.parquet") as file,
    ):
        list(tables.batches_of(file, ["text"], "a.parquet", 3))


def test_rows_in_memory_are_a_file_as_long_as_their_owner() -> None:
    rows = tables.StoredRows({"text": ["a", "ü"], "n": np.array([1, 2])})
    path = Path(rows)
    lines = path.read_text("utf-8").splitlines()
    assert list(map(json.loads, lines)) == [{"text": "a", "n": 1}, {"text": "ü", "n": 2}]
    del rows
    gc.collect()
    assert not path.exists()


def test_texts_of_lists_and_of_tables() -> None:
    assert list(tables.texts_of(["a", "b"], "")) == ["a", "b"]
    assert list(tables.texts_of([{"text": "a", "n": 1}], "")) == ["a"]
    with pytest.raises(UsageError, match="text 2 is None"):
        list(tables.texts_of(["a", None], ""))


def test_values_of_json() -> None:
    assert tables.as_json({"a": math.nan, "b": [math.inf]}) == '{"a": null, "b": ["inf"]}'
    assert tables.as_json("ü") == '"ü"'


ROWS = 120
WORDS = """the film was good and we liked it but music seemed too loud in our small town where
people never go out after dark because nothing happens there except one quiet cafe with old
chairs""".split()
NAMES = "anna boris chen dora emil fatima goran hana ines jonas kenji lena".split()
MONTHS = {
    "english": (
        "January February March April May June July August September October November December"
    ),
    "german": "Januar Februar März April Mai Juni Juli August September Oktober November Dezember",
    "french": (
        "janvier février mars avril mai juin juillet août septembre octobre novembre décembre"
    ),
    "spanish": (
        "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre"
    ),
    "polish": "stycznia lutego marca kwietnia maja czerwca lipca sierpnia września października "
    "listopada grudnia",
    "russian": "января февраля марта апреля мая июня июля августа сентября октября ноября декабря",
}


def moment(number: int) -> datetime:
    return datetime(2009, 1, 3, 6, 46, 18) + timedelta(hours=37 * number, seconds=11 * number)


def in_words(language: str, pattern: str) -> Callable[[int], str]:
    months = MONTHS[language].split()
    return lambda n: moment(n).strftime(pattern).replace("MONTH", months[moment(n).month - 1])


def digest(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()


NO_TEXTS: dict[str, Callable[[int], str]] = {
    "the date of sentiment140": lambda n: (
        moment(n).strftime("%a %b %d %H:%M:%S ")
        + "PDT PST UTC CEST".split()[n % 4]
        + moment(n).strftime(" %Y")
    ),
    "ISO 8601": lambda n: moment(n).isoformat() + "Z",
    "ISO with a space": lambda n: moment(n).isoformat(" ") + " +0000",
    "an American date": lambda n: moment(n).strftime("%m/%d/%Y %I:%M:%S %p"),
    "a date of an e-mail": lambda n: moment(n).strftime("%a, %d %b %Y %H:%M:%S -0700 (PDT)"),
    "an English date": in_words("english", "%A, MONTH %d, %Y at %I:%M %p"),
    "an English ordinal": in_words("english", "%dth of MONTH %Y, %H:%M o'clock"),
    "a German date": in_words("german", "%d. MONTH %Y um %H:%M Uhr"),
    "a French date": in_words("french", "le %d MONTH %Y à %Hh%M"),
    "a Spanish date": in_words("spanish", "%d de MONTH de %Y %H:%M"),
    "a Polish date": in_words("polish", "%d MONTH %Y r. %H:%M"),
    "a Russian date": in_words("russian", "%d MONTH %Y г. %H:%M:%S"),
    "a Japanese date": lambda n: moment(n).strftime("%Y年%m月%d日 午後%I時%M分%S秒"),
    "a Korean date": lambda n: moment(n).strftime("%Y년 %m월 %d일 오후 %I시 %M분"),
    "a duration": lambda n: f"{n + 2} hours and {n + 3} minutes ago".replace("and ", ""),
    "a time": lambda n: moment(n).strftime("%H:%M:%S.%f") + f"{n:06}",
    "a name of a user": lambda n: NAMES[n % 12] + "_" + NAMES[n // 12 % 12] + "TheSpecialOne",
    "a name with digits": lambda n: f"{NAMES[n % 12]}{n * 7919}_the_great",
    "a handle": lambda n: f"@{NAMES[n % 12]}{NAMES[n // 12 % 12]}official",
    "a path": lambda n: f"/home/{NAMES[n % 12]}/documents/{WORDS[n % 30]}/{WORDS[n * 7 % 30]}.txt",
    "a path with spaces": lambda n: (
        f"/home/{NAMES[n % 12]}/My Documents/old {WORDS[n % 30]} file {n}.pdf"
    ),
    "a path of Windows": lambda n: (
        f"C:\\Users\\{NAMES[n % 12]}\\{WORDS[n % 30]} and more\\{digest(n)[:5]}.docx"
    ),
    "a URL": lambda n: (
        f"https://example.org/{WORDS[n % 30]}/{WORDS[n * 7 % 30]}/{WORDS[n * 11 % 30]}"
    ),
    "two URLs": lambda n: (
        f"https://t.example/{digest(n)[:8]} https://t.example/{digest(n + 1)[:8]}"
    ),
    "a bare URL": lambda n: f"www.{WORDS[n % 30]}.example.org/{WORDS[n * 7 % 30]}",
    "an e-mail address": lambda n: f"{NAMES[n % 12]}.{NAMES[n // 12 % 12]}@mail.example.org",
    "an e-mail with a name": lambda n: (
        f"{NAMES[n % 12]} {NAMES[n // 12 % 12]} <{NAMES[n % 12]}{n}@mail.example.org>"
    ),
    "hexadecimal": digest,
    "a UUID": lambda n: str(uuid.UUID(digest(n)[:32])),
    "bytes": lambda n: " ".join(f"0{c}{c}" for c in digest(n)[:9]),
    "an id of letters and digits": lambda n: f"MSG-{digest(n)[:10].upper()}-X{n}",
    "several ids": lambda n: f"ID{n:05} REF{n * 31:07} V{n % 9}",
    "a long number": lambda n: str(10**24 + n * 7919),
    "a telephone number": lambda n: f"+1 (555) 01{n % 10}-{n:04} 000",
    "coordinates": lambda n: f"{n / 7:.6f}, {-n / 3:.6f} / {n * 1.5:.3f}",
    "an amount of money": lambda n: f"$ {n * 1234.5:,.2f} / {n:,}",
    "a constant": lambda n: "NO_QUERY_WAS_MADE_HERE",
    "a constant with spaces": lambda n: "there was no query for this message at all",
    "mostly a constant": lambda n: "NO_QUERY_WAS_MADE_HERE" if n % 4 else text(n + 900, 4),
}


def text(number: int, length: int = 9) -> str:
    draw = random.Random(number)
    return " ".join(draw.choice(WORDS) for _ in range(length)).capitalize() + "."


def write(path: Path, rows: list[list[str]], header: list[str] | None = None) -> RowReader:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(([header] if header else []) + rows)
    return RowReader(path)


def schema_of(reader: RowReader) -> tuple[Schema, str]:
    schema, notes = infer_schema(reader, TASKS)
    return schema, "\n".join(notes)


@pytest.mark.parametrize("kind", NO_TEXTS)
@pytest.mark.parametrize("length", [3, 6, 20])
def test_what_is_no_text_is_never_the_second_text(kind: str, length: int, tmp_path: Path) -> None:
    """The other column of any length: of three words it is shorter than most codes."""
    make = NO_TEXTS[kind]
    rows = [["04"[n % 2], make(n), text(n, length)] for n in range(ROWS)]
    schema, notes = schema_of(write(tmp_path / "a.csv", rows))
    assert schema.text == ("column 3",), make(0)
    assert schema.label == ("column 1",)
    assert "is read as the text" not in notes
    schema, _ = schema_of(write(tmp_path / "b.csv", rows, ["kind", "extra", "remark"]))
    assert schema.text == ("remark",)


@pytest.mark.parametrize(
    "names",
    [
        None,
        ["target", "ids", "date", "flag", "user", "text"],
        ["label", "id", "date", "query", "user", "text"],
    ],
)
@pytest.mark.parametrize("length", [4, 8, 15])
def test_the_form_of_sentiment140(names: list[str] | None, length: int, tmp_path: Path) -> None:
    user = NO_TEXTS["a name of a user"]
    date = NO_TEXTS["the date of sentiment140"]
    rows = [
        [
            "04"[n % 2],
            str(1467810369 + 7 * n),
            date(n),
            "NO_QUERY",
            user(n),
            f"@{NAMES[n % 12]} {text(n, length)}",
        ]
        for n in range(ROWS)
    ]
    schema, _ = schema_of(write(tmp_path / "a.csv", rows, names))
    columns = names or [f"column {number}" for number in range(1, 7)]
    assert (schema.task, schema.text, schema.label) == (
        "classification",
        (columns[5],),
        (columns[0],),
    )


@pytest.mark.parametrize("kind", [kind for kind in NO_TEXTS if kind not in ("a long number",)])
def test_what_is_no_text_is_taken_with_a_note_if_nothing_else_is_left(
    kind: str, tmp_path: Path
) -> None:
    rows = [["yes no".split()[n % 2], NO_TEXTS[kind](n)] for n in range(ROWS)]
    schema, notes = schema_of(write(tmp_path / "a.csv", rows, ["kind", "extra"]))
    assert schema.text == ("extra",)
    assert "'extra' holds" in notes
    assert "and is read as the text" in notes


def test_numbers_are_never_the_text(tmp_path: Path) -> None:
    rows = [["yes no".split()[n % 2], str(n * 7)] for n in range(ROWS)]
    with pytest.raises(BertworksError, match="no column looks like a text"):
        infer_schema(write(tmp_path / "a.csv", rows, ["kind", "extra"]), TASKS)


def test_two_columns_of_names_are_not_guessed(tmp_path: Path) -> None:
    rows = [
        [
            "yes no".split()[n % 2],
            NO_TEXTS["a name of a user"](n),
            NO_TEXTS["a name of a user"](n + 5),
        ]
        for n in range(ROWS)
    ]
    with pytest.raises(
        UsageError, match="several columns hold single words, names or codes"
    ) as error:
        infer_schema(write(tmp_path / "a.csv", rows, ["kind", "extra", "more"]), TASKS)
    assert "--text " in str(error.value.hint)


SHORT_TEXTS: dict[str, Callable[[int], str]] = {
    "titles": lambda n: (
        f"The {WORDS[n % 30].title()} of {WORDS[n * 7 % 30].title()} {WORDS[n * 11 % 30].title()}"
    ),
    "questions with a year": lambda n: f"Who won the {WORDS[n % 30]} cup in {1900 + n}?",
    "texts with an address": lambda n: f"{text(n, 3)} https://t.example/{digest(n)[:8]}",
    "texts with a date": lambda n: f"{WORDS[n % 30]} closes on {moment(n).strftime('%d %B %Y')}",
    "texts of May": lambda n: f"May {WORDS[n % 30]} {WORDS[n * 7 % 30]} march on Sunday",
    "German": lambda n: f"Der {WORDS[n % 30]} war {WORDS[n * 7 % 30]}, wir kommen",
    "Japanese without spaces": lambda n: (
        f"この映画はとても{'良悪長短'[n % 4]}かったです{'よ' * (n % 5)}{NAMES[n % 12]}"
    ),
    "Thai without spaces": lambda n: "หนังเรื่องนี้" + "ดีมาก" * (1 + n % 40),
    "telegrams": lambda n: f"{WORDS[n % 30].upper()} {WORDS[n * 7 % 30].upper()} {n}",
}


@pytest.mark.parametrize("kind", SHORT_TEXTS)
def test_short_texts_are_texts(kind: str, tmp_path: Path) -> None:
    make = SHORT_TEXTS[kind]
    rows = [
        ["xy"[n % 2], make(n), NO_TEXTS["an e-mail address"](n), digest(n)] for n in range(ROWS)
    ]
    schema, notes = schema_of(write(tmp_path / "a.csv", rows))
    assert schema.text == ("column 2",), make(0)
    assert "is read as the text" not in notes
    pairs = [["xy"[n % 2], text(n, 5), text(n + 500, 6), NO_TEXTS["a URL"](n)] for n in range(ROWS)]
    assert schema_of(write(tmp_path / "b.csv", pairs))[0].text == ("column 2", "column 3")


def test_single_words_are_texts_when_nothing_else_is_left(tmp_path: Path) -> None:
    names = [a + b + c for a in "BLMNR" for b in ("ari", "eno", "ulo") for c in "dknstvrl"]
    rows = [["xy"[n % 2], name] for n, name in enumerate(names)]
    schema, notes = schema_of(write(tmp_path / "a.csv", rows, ["kind", "given"]))
    assert schema.text == ("given",)
    assert (
        "'given' holds single words or names (Barid, Barik, Barin, ...), and is read as the text"
        in notes
    )
    # A usual name says that single words are the text.
    schema, notes = schema_of(write(tmp_path / "b.csv", rows, ["label", "text"]))
    assert (schema.text, "holds single words" in notes) == (("text",), False)


def test_language_is_no_code() -> None:
    for value in (
        "Sunday",
        "May",
        "we met on May 5",
        "meet at noon",
        "3 films and a dog",
        "A1 is good",
        "この映画",
    ):
        assert not is_code(value), value
    for value in (
        "see https://example.org",
        "no. 5 is the best",
        "5 ans plus tard",
        "Note: 5 of us",
        "C3PO and R2D2",
    ):
        assert not is_code(value), value


@pytest.mark.parametrize(
    "kind", [kind for kind in NO_TEXTS if "constant" not in kind and "user" not in kind]
)
def test_codes_are_codes(kind: str) -> None:
    for number in range(0, ROWS, 7):
        assert is_code(NO_TEXTS[kind](number)), NO_TEXTS[kind](number)


def test_single_words() -> None:
    assert all(map(is_single_word, ("Anna", "_TheSpecialOne_", "좋아요", "naïve")))
    assert not any(map(is_single_word, ("a b", "この映画", "ดีมาก", "")))


def test_texts_become_rows_of_their_columns() -> None:
    rows = [{"a": "x", "b": "y"}, {"a": "z", "b": "w"}]
    assert rows_of_texts(["x", "y", "z", "w"], ("a", "b")) == rows
    what = "the model reads rows of a and b, and 3 texts are given"
    with refusal(what, "give all texts of each row, in this order"):
        rows_of_texts(["x", "y", "z"], ("a", "b"))
    with refusal("expected a list of rows", ""):
        rows_of_texts({"x", "y"}, ("a", "b"))
    with refusal("expected a list of rows", "give a file, a list like"):
        rows_of_texts(5, ("a", "b"))
