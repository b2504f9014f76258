"""Layouts of files that people have: encodings, CoNLL columns, exports of annotation tools,
questions, parts."""

import bz2
import csv
import gzip
import io
import json
import re
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from hypothesis import given, settings, strategies as st
from pyarrow import parquet

from bertworks.datasets.annotations import with_tags
from bertworks.datasets.reader import RowReader
from bertworks.datasets.schema import Schema, infer_schema, items
from bertworks.errors import BertworksError, UsageError
from bertworks.io.inputs import infer_encoding, open_lines
from bertworks.io.options import ReadOptions
from bertworks.tasks.registry import TASKS
from tests.support.fine import read_data

LINES = {  # a sentence in the encodings of its language
    ("cp1252",): "Schrecklich, für mich völlig öde – Größe „nie wieder“",
    (
        "cp1252",
        "mac_roman",
    ): "Tous les êtres humains naissent égaux en dignité, où êtes-vous allés à l’été",
    ("cp1250",): "Wszyscy ludzie rodzą się wolni i równi pod względem swej godności i swych praw.",
    ("cp1254",): "Bütün insanlar hür, haysiyet ve haklar bakımından eşit doğarlar.",
    (
        "cp1251",
        "koi8-r",
        "cp866",
    ): "Все счастливые семьи похожи друг на друга, каждая несчастливая по-своему.",
    (
        "cp1253",
    ): "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα.",
    ("cp1255",): "כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם.",
    ("cp1256",): "يولد جميع الناس أحرارا متساوين في الكرامة والحقوق.",
    ("cp874",): "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ",
    (
        "cp932",
        "euc_jp",
    ): "すべての人間は、生まれながらにして自由であり、尊厳と権利について平等である。",
    ("euc-kr",): "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.",
    ("gb18030",): "人人生而自由,在尊严和权利上一律平等。他们赋有理性和良心。",
    ("big5",): "人人生而自由,在尊嚴和權利上一律平等。他們賦有理性和良心。",
}
CASES = [(encoding, text) for encodings, text in LINES.items() for encoding in encodings]


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def values(path: Path, **options: Any) -> list[dict[str, Any]]:
    return [row.values for row in RowReader(path, ReadOptions(**options))]


def error(path: Path, **options: Any) -> BertworksError:
    with pytest.raises(BertworksError) as caught:
        list(RowReader(path, ReadOptions(**options)))
    return caught.value


def as_csv(rows: list[dict[str, Any]], **names: str) -> str:
    lines = io.StringIO()
    table = csv.writer(lines)
    table.writerow([names.get(name, name) for name in rows[0]])
    table.writerows([row.values() for row in rows])
    return lines.getvalue()


def schema_of(path: Path, **options: Any) -> Schema:
    return infer_schema(RowReader(path, ReadOptions(**options)), TASKS)[0]


def labels(path: Path, **options: Any) -> tuple[str, list[Any]]:
    reader = RowReader(path, ReadOptions(**options))
    schema = infer_schema(reader, TASKS)[0]
    return schema.task, [(item.texts, item.label) for item in items(reader, schema, TASKS)]


# --- encodings
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("encoding", "text"), CASES)
def test_the_encoding_of_a_text_is_recognized(encoding: str, text: str) -> None:
    assert infer_encoding(text.encode(encoding)) == encoding
    # cut
    assert (
        infer_encoding((text + "\n").encode(encoding) * 50 + text.encode(encoding)[:-1]) == encoding
    )


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("text", LINES.values())
def test_utf_16_without_a_mark_is_recognized(encoding: str, text: str) -> None:
    assert infer_encoding(f"{text}\nab\n".encode(encoding)) == encoding


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_utf_8_needs_no_other_encoding(text: str) -> None:
    assert infer_encoding(text.encode()) is None


@pytest.mark.parametrize(
    ("file", "field"),
    [("ja/jsts/valid.jsonl.gz", "sentence1"), ("ko/nsmc/ratings_test.txt.gz", "")],
)
def test_the_encoding_of_public_data_is_recognized(
    data_folder: Path, file: str, field: str
) -> None:
    lines = gzip.decompress((data_folder / file).read_bytes()).decode().split("\n")[1:1001]
    text = "\n".join(json.loads(line)[field] if field else line for line in lines if line)
    for encoding in ("cp932", "euc_jp", "utf-16-le") if field else ("euc-kr", "utf-16-be"):
        assert infer_encoding(text.encode(encoding, "ignore")) == encoding


@pytest.mark.parametrize(("encoding", "text"), CASES)
@pytest.mark.parametrize("suffix", ["csv", "jsonl", "conll", "json"])
def test_the_option_in_the_hint_reads_the_file(
    tmp_path: Path, encoding: str, text: str, suffix: str
) -> None:
    words = "\n".join(f"{word} O" for word in text.split())
    row = json.dumps({"text": text, "label": "a"}, ensure_ascii=False)
    content = {
        "csv": f'text,label\nplain,b\n"{text}",a\n',
        "jsonl": f"{row}\n" * 2,
        "json": f"[{row}]",
        "conll": words,
    }
    path = write(tmp_path / f"a.{suffix}", content[suffix].encode(encoding))
    found = error(path)
    assert "not UTF-8" in found.what
    lines = content[suffix].split("\n")
    assert (
        found.where == f"{path}:{next(n for n, line in enumerate(lines, 1) if not line.isascii())}"
    )
    if suffix != "conll":  # whose lines are short
        assert found.hint == f"--encoding {encoding}, or convert the file with iconv"
        assert text[:20] in found.what
    read = values(path, encoding=encoding)[-1]
    assert (read["tokens"] == text.split()) if suffix == "conll" else (read["text"] == text)


def test_utf_16_without_its_mark_is_refused_with_the_option(tmp_path: Path) -> None:
    for text in (
        "text\tlabel\nplain words\ta\n",
        "text\tlabel\nöde für mich\ta\n모든 인간은 태어날 때부터\tb\n",
    ):
        path = write(tmp_path / "a.tsv", text.encode("utf-16-le"))
        found = error(path)
        assert found.hint is not None
        assert "--encoding utf-16-le" in found.hint
        assert values(path, encoding="utf-16-le")[0]["label"] == "a"
        marked = write(tmp_path / "b.tsv", text.encode("utf-16"))
        assert (
            values(marked)
            == values(marked, encoding="utf-16-le")
            == values(path, encoding="utf-16-le")
        )


def test_a_bad_line_among_good_ones_needs_repair_and_no_other_encoding(tmp_path: Path) -> None:
    content = "text,label\nplötzlich,a\nwarum,b\n".encode() + "völlig öde,a\n".encode("cp1252")
    found = error(write(tmp_path / "a.csv", content))
    assert "in cp1252 it is 'völlig öde,a'" in found.what
    assert found.where == f"{tmp_path}/a.csv:4"
    assert found.hint is not None
    assert "1 other lines are UTF-8" in found.hint
    assert "--encoding" not in found.hint


@pytest.mark.parametrize("name", ["hex", "idna", "punycode", "undefined", "no-such", "", "a\0b"])
def test_what_is_no_encoding_of_text_is_refused(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "a.csv", "text,label\na,b\n")
    found = error(path, encoding=name)
    assert isinstance(found, UsageError)
    assert found.hint is not None
    assert "--encoding cp1252" in found.hint
    with pytest.raises(UsageError), open_lines(path, "a.csv", encoding=name or "no"):
        pass


# --- tables
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delimiter", [";", ",", "\t", "|"])
@pytest.mark.parametrize("start", ["sep={}\r\n", "\ufeffsep={}\n", '"sep={}"\n', "SEP={}\n"])
def test_the_first_line_of_excel_names_the_delimiter(
    tmp_path: Path, delimiter: str, start: str
) -> None:
    rows = f"text{delimiter}label\r\na, b; c{delimiter}x\r\n".replace(
        "a, b; c", "a b" if delimiter in ",;" else "a, b; c"
    )
    path = write(tmp_path / "a.csv", start.format(delimiter) + rows)
    reader = RowReader(path)
    assert (reader.columns, [row.values["label"] for row in reader]) == (["text", "label"], ["x"])
    assert next(iter(reader)).where == f"{path}:3"


CELL = st.text(st.sampled_from("ab ,;|\"'é本"), min_size=1, max_size=8).map(
    lambda cell: f"x{cell}y"
)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.tuples(CELL, st.sampled_from("pq")), min_size=2, max_size=6),
    delimiter=st.sampled_from(",;\t|"),
    quoting=st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]),
    header=st.booleans(),
    excel=st.booleans(),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "cp932", "gb18030"]),
    end=st.sampled_from(["\n", "\r\n"]),
    packed=st.sampled_from(["", ".gz", ".bz2"]),
)
def test_tables_of_every_layout_are_read_as_meant(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[str, str]],
    delimiter: str,
    quoting: Any,
    header: bool,
    excel: bool,
    encoding: str,
    end: str,
    packed: str,
) -> None:
    lines = io.StringIO()
    if excel:
        lines.write(f"sep={delimiter}{end}")
    table = csv.writer(lines, delimiter=delimiter, quoting=quoting, lineterminator=end)
    table.writerows(
        [["text", "label"]] * header + [[text.replace("é", ""), label] for text, label in rows]
    )
    data = lines.getvalue().encode(encoding)
    path = tmp_path_factory.mktemp("t") / f"a.csv{packed}"
    path.write_bytes({"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress}[packed](data))
    encoded = None if encoding.startswith("utf") else encoding
    meant = [(text.replace("é", ""), label) for text, label in rows]
    # the first line names the delimiter
    is_clear = excel or header or not any(mark in meant[0][0] for mark in ",;|")
    for quoted in (False, True):
        # Quote marks of tab-separated tables are text where they are not needed: that is inferred.
        if is_clear and (quoted or delimiter != "\t" or '"' not in lines.getvalue()):
            options = {"header": header, "quoting": "quoted" if quoted else "auto"}
            assert [
                tuple(row.values()) for row in values(path, encoding=encoded, **options)
            ] == meant


@settings(max_examples=40, deadline=None)
@given(
    sentences=st.lists(
        st.lists(st.tuples(CELL, st.sampled_from(["O", "B-x"])), min_size=1, max_size=4),
        max_size=5,
        min_size=1,
    ),
    repeat=st.booleans(),
    kind=st.sampled_from(["csv", "jsonl", "parquet"]),
)
def test_one_word_per_row_is_read_as_sentences(
    tmp_path_factory: pytest.TempPathFactory,
    sentences: list[list[tuple[str, str]]],
    repeat: bool,
    kind: str,
) -> None:
    rows = [
        {"Sentence #": f"Sentence: {n}" if repeat or not i else None, "Word": word, "Tag": tag}
        for n, words in enumerate(sentences, 1)
        for i, (word, tag) in enumerate(words)
    ]
    path = tmp_path_factory.mktemp("t") / f"a.{kind}"
    if kind == "csv":
        write(path, as_csv(rows))
    elif kind == "parquet":
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        write(path, "".join(json.dumps(row) + "\n" for row in rows))
    reader = RowReader(path, ReadOptions(sentence_column="Sentence #"))
    read = list(reader)
    assert [list(zip(row.values["Word"], row.values["Tag"])) for row in read] == sentences
    assert [row.values["Sentence #"] for row in read] == [
        f"Sentence: {n}" for n in range(1, len(sentences) + 1)
    ]
    firsts = [sum(map(len, sentences[:n])) + 1 + (kind == "csv") for n in range(len(sentences))]
    assert [row.where for row in read] == [f"{path}:{first}" for first in firsts]


def test_a_sentence_column_makes_a_tagging(tmp_path: Path) -> None:
    words = (
        "Sentence #,Word,POS,Tag\nS1,Anna,N,B-per\n,sings,V,O\nS2,Oslo,N,B-geo\n,is,V,O\n"
        ",cold,A,O\n"
    )
    path = write(tmp_path / "a.csv", words)
    task, read = labels(path, sentence_column="Sentence #")
    assert task == "tagging"
    assert read == [
        (("Anna", "sings"), ("B-per", "O")),
        (("Oslo", "is", "cold"), ("B-geo", "O", "O")),
    ]
    found = error(path, sentence_column="Sentence")
    assert isinstance(found, UsageError)
    assert found.hint == "did you mean --sentence-column 'Sentence #'?"


# --- CoNLL
# --------------------------------------------------------------------------------------------------

TREEBANK = """# sent_id = a1
# text = Vámonos al mar.
1-2\tVámonos\t_\t_\t_\t_\t_\t_\t_\t_
1\tVamos\tir\tVERB\tV1\t_\t0\troot\t_\t_
2\tnos\tnosotros\tPRON\tP1\t_\t1\tobj\t_\t_
3\tmar\tmar\tNOUN\tN1\t_\t1\tobl\t_\tSpaceAfter=No
3.1\tvamos\tir\tVERB\t_\t_\t_\t_\t0:root\t_

# newdoc
# sent_id = a2
1\t#\t#\tSYM\tS1\t_\t0\troot\t_\t_
2\tuno\tuno\tNUM\tM1\t_\t1\tnummod\t_\t_
"""


@pytest.mark.parametrize("name", ["a.conllu", "a.conll", "a.txt"])
def test_ranges_and_empty_nodes_of_conllu_are_no_words(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, TREEBANK)
    reader = RowReader(path)
    read = [(row.values["tokens"], row.values["tags"], row.values["document"]) for row in reader]
    assert read == [
        (["Vamos", "nos", "mar"], ["VERB", "PRON", "NOUN"], 0),
        (["#", "uno"], ["SYM", "NUM"], 1),
    ]
    assert [row.where for row in reader] == [f"{path}:4", f"{path}:11"]
    assert reader.notes == ["columns: word 2, tag 4 of 10"]
    assert [row["tags"] for row in values(path, columns="tag=5")] == [
        ["V1", "P1", "N1"],
        ["S1", "M1"],
    ]
    assert values(path, columns="word=3, tag=8")[1]["tokens"] == ["#", "uno"]
    all_lines = chain.from_iterable(row.values.all_lines for row in reader)
    lines = list(with_tags(all_lines, iter("abcde"), reader.conll_layout))
    assert [line.split("\t")[-1] for line in lines if line.count("\t") == 10] == list("_abc_de")
    assert [line for line in lines if line.count("\t") != 10] == [
        x for x in TREEBANK.split("\n")[:-1] if "\t" not in x
    ]


def test_a_public_treebank(data_folder: Path) -> None:
    path = data_folder / "probe" / "ud-english-ewt" / "dev.conllu.gz"
    text = gzip.decompress(path.read_bytes()).decode()
    words = re.findall(r"(?m)^\d+\t([^\t]*)\t[^\t]*\t([^\t]*)", text)
    reader = RowReader(path)
    rows = [row.values for row in reader]
    assert [pair for row in rows for pair in zip(row["tokens"], row["tags"], strict=True)] == words
    assert len(rows) == text.count("# sent_id")
    assert rows[-1]["document"] == text.count("# newdoc")


GERMEVAL = (
    "#\thttp://de.wikipedia.org/wiki/Manfred_Korfmann [2009-10-17]\n"
    "1\tAufgrund\tO\tO\n2\tTroia\tB-LOC\tO\n3\tProjekt\tI-LOC\tO\n\n"
    "#\thttp://de.wikipedia.org/wiki/Bayern [2009-10-17]\n"
    "1\tFC\tB-ORG\tO\n2\tBayern\tI-ORG\tB-LOC\n3\t#\tO\tO\n\n"
)


def test_numbered_words_comments_and_nested_entities(tmp_path: Path) -> None:
    reader = RowReader(write(tmp_path / "NER-de-train.tsv", GERMEVAL))
    rows = [(row.values["tokens"], row.values["tags"]) for row in reader]
    assert rows == [
        (["Aufgrund", "Troia", "Projekt"], ["O", "B-LOC", "I-LOC"]),
        (["FC", "Bayern", "#"], ["B-ORG", "I-ORG", "O"]),
    ]
    assert reader.notes == ["columns: word 2, tag 3 of 4"]
    assert values(reader.path, columns="tag=4")[1]["tags"] == ["O", "B-LOC", "O"]


def test_the_last_column_is_the_tag_and_chunks_are_none(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.conll", "EU NNP B-NP B-ORG\nwins VBZ B-VP O\n\nOslo NNP B-NP B-LOC\n"
    )
    reader = RowReader(path)
    assert [row.values["tags"] for row in reader] == [["B-ORG", "O"], ["B-LOC"]]
    assert reader.notes == ["columns: word 1, tag 4 of 4"]


@pytest.mark.parametrize("columns", ["word", "word=0", "tag=x", "text=1", "word=1;tag=2", ""])
def test_columns_are_named_by_number(tmp_path: Path, columns: str) -> None:
    path = write(tmp_path / "a.conll", "EU\tB-ORG\nwins\tO\n")
    assert "names no columns" in error(path, columns=columns).what
    assert "there is no column 3" in error(path, columns="tag=3").what


def test_a_hash_is_a_word_where_it_has_a_tag(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.conll", "# id 1 domain=en\n# O\nOslo B-LOC\n\n#hash O\nx O\n\n# O\n# O\n"
    )
    assert [row["tokens"] for row in values(path)] == [["#", "Oslo"], ["#hash", "x"], ["#", "#"]]
    multiconer = "# id 52 domain=en\nOslo _ _ B-LOC\nis _ _ O\n\n# id 53 domain=en\nthe _ _ O\n"
    assert [row["tokens"] for row in values(write(tmp_path / "b.conll", multiconer))] == [
        ["Oslo", "is"],
        ["the"],
    ]


WORD = st.text(st.sampled_from("abc#1-.é本"), min_size=1, max_size=4)
TAG = st.sampled_from(["O", "B-PER", "I-PER", "B-LOC"])


@settings(max_examples=100, deadline=None)
@given(
    sentences=st.lists(
        st.lists(st.tuples(WORD, TAG), min_size=1, max_size=6), min_size=2, max_size=6
    ),
    numbered=st.sampled_from([None, 0, 1]),
    extra=st.sampled_from([[], ["NN"], ["NN", "_"], ["_"] * 6]),
    comments=st.booleans(),
    separator=st.sampled_from(["\t", " "]),
    named=st.booleans(),
    encoding=st.sampled_from(["utf-8", "utf-16", "gb18030"]),
)
def test_conll_of_every_layout_is_read_as_meant_or_refused(
    tmp_path_factory: pytest.TempPathFactory,
    sentences: list[list[tuple[str, str]]],
    numbered: int | None,
    extra: list[str],
    comments: bool,
    separator: str,
    named: bool,
    encoding: str,
) -> None:
    lines: list[str] = []
    for number, words in enumerate(sentences):
        lines += [f"# sent_id = {number} of a file with many words"] if comments else []
        for place, (word, tag) in enumerate(words, numbered or 0):
            cells = [*([str(place)] if numbered is not None else []), word, *extra, tag]
            lines.append(separator.join(cells))
        lines.append("")
    path = tmp_path_factory.mktemp("t") / "a.conll"
    path.write_bytes("\n".join(lines).encode(encoding))
    word = 1 if numbered is None else 2
    options = {"columns": f"word={word},tag={word + len(extra) + 1}"} if named else {}
    read = values(path, encoding="gb18030" if encoding == "gb18030" else None, **options)
    tokens, tags = [row["tokens"] for row in read], [row["tags"] for row in read]
    one_each = max(map(len, sentences)) == 1  # then nothing counts
    counted = all(
        text == str(place) for words in sentences for place, (text, _) in enumerate(words, 1)
    )
    if named or not (
        one_each or counted or all(text in ("0", "1") for words in sentences for text, _ in words)
    ):
        assert tokens == [[text for text, _ in words] for words in sentences]
        assert tags == [[tag for _, tag in words] for words in sentences]


# --- annotation tools
# -------------------------------------------------------------------------------------------------

ADA, ADA_SPANS = "Ada Lovelace lived in London.", ((0, 12, "PER"), (22, 28, "LOC"))
NONE = "Nothing here."
MEANT = ("spans", [((ADA,), ADA_SPANS), ((NONE,), ()), ((ADA,), ADA_SPANS), ((NONE,), ())])


def label_studio(text: str, *results: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "id": 7,
        "annotations": [{"id": 1, "result": list(results), **more}],
        "data": {"text": text},
    }


def region(start: int, end: int, label: str) -> dict[str, Any]:
    value = {"start": start, "end": end, "text": ADA[start:end], "labels": [label]}
    return {"value": value, "id": "x", "from_name": "ner", "to_name": "text", "type": "labels"}


def choice(*names: str) -> dict[str, Any]:
    return {
        "value": {"choices": list(names)},
        "from_name": "sentiment",
        "to_name": "text",
        "type": "choices",
    }


def prodigy(
    text: str, spans: list[dict[str, Any]] | None, answer: str = "accept"
) -> dict[str, Any]:
    tokens = [{"text": text, "start": 0, "end": len(text), "id": 0}]
    shown = {} if spans is None else {"spans": spans}
    return {"text": text, "_task_hash": 1, "tokens": tokens, **shown, "answer": answer}


SPANS = [
    {"start": start, "end": end, "label": kind, "token_start": 0} for start, end, kind in ADA_SPANS
]
REGIONS = [region(*span) for span in ADA_SPANS]
MINIMAL = [
    {"start": start, "end": end, "text": "", "labels": [kind]} for start, end, kind in ADA_SPANS
]


@pytest.mark.parametrize(
    "content",
    [
        [label_studio(ADA, *REGIONS), label_studio(NONE)] * 2,
        [
            {"id": 1, "text": ADA, "label": MINIMAL, "annotator": 1},
            {"id": 2, "text": NONE, "label": [], "annotator": 1},
        ]
        * 2,
        [
            {"id": 1, "text": ADA, "ner": MINIMAL, "annotator": 1},
            {"id": 2, "text": NONE, "annotator": 1},
        ]
        * 2,
        [[ADA, {"entities": [list(span) for span in ADA_SPANS]}], [NONE, {"entities": []}]] * 2,
        [prodigy(ADA, SPANS), prodigy(NONE, None)] * 2,
        [
            prodigy(ADA, SPANS),
            prodigy(NONE, []),
            prodigy(ADA, [], "reject"),
            prodigy(NONE, SPANS, "ignore"),
        ]
        * 2,
        [{"id": 1, "text": ADA, "label": ADA_SPANS}, {"id": 2, "text": NONE, "label": []}] * 2,
        [
            {
                "text": ADA,
                "entities": [
                    {"id": 1, "label": kind, "start_offset": start, "end_offset": end}
                    for start, end, kind in ADA_SPANS
                ],
                "relations": [],
            },
            {"text": NONE, "entities": [], "relations": []},
        ]
        * 2,
    ],
    ids=(
        "label-studio json-min json-min-other-name spacy prodigy prodigy-rejected doccano "
        "doccano-relations"
    ).split(),
)
@pytest.mark.parametrize("layout", ["array", "pretty", "lines"])
def test_spans_of_annotation_tools(tmp_path: Path, content: list[Any], layout: str) -> None:
    text = json.dumps(content, indent=1 if layout == "pretty" else None)
    text = "".join(json.dumps(row) + "\n" for row in content) if layout == "lines" else text
    path = write(tmp_path / ("a.jsonl" if layout == "lines" else "a.json"), text)
    assert labels(path) == MEANT


@pytest.mark.parametrize(
    ("rows", "task", "first"),
    [
        (
            [label_studio(ADA, choice("pos")), label_studio(NONE, choice("neg"))],
            "classification",
            "pos",
        ),
        (
            [label_studio(ADA, choice("pos", "new")), label_studio(NONE, choice("neg"))],
            "multilabel",
            ("pos", "new"),
        ),
        (
            [
                {"text": ADA, "sentiment": {"choices": ["pos", "new"]}, "annotator": 1},
                {"text": NONE, "sentiment": {"choices": ["neg"]}, "annotator": 1},
            ],
            "multilabel",
            ("pos", "new"),
        ),
        (
            [
                {"text": ADA, "topic": [["a", "b"], ["a", "c"]], "annotator": 1},
                {"text": NONE, "topic": [["d"]], "annotator": 1},
            ],
            "multilabel",
            ("a > b", "a > c"),
        ),
        (
            [{"text": ADA, "label": ["pos"]}, {"text": NONE, "label": ["neg"]}],
            "classification",
            "pos",
        ),
        (
            [{"text": ADA, "label": ["pos", "new"]}, {"text": NONE, "label": []}],
            "multilabel",
            ("pos", "new"),
        ),
        (
            [
                {"text": ADA, "cats": {"pos": 1.0, "neg": 0.0}},
                {"text": NONE, "cats": {"pos": 0.0, "neg": 1.0}},
            ],
            "classification",
            "pos",
        ),
        (
            [
                [ADA, {"cats": {"pos": True, "new": True}}],
                [NONE, {"cats": {"pos": False, "new": False}}],
            ],
            "multilabel",
            ("pos", "new"),
        ),
        (
            [
                {
                    "text": ADA,
                    "options": [{"id": "pos", "text": "P"}],
                    "accept": ["pos"],
                    "answer": "accept",
                },
                {
                    "text": NONE,
                    "options": [{"id": "neg", "text": "N"}],
                    "accept": ["neg"],
                    "answer": "accept",
                },
            ],
            "classification",
            "pos",
        ),
    ],
)
def test_classes_of_annotation_tools(
    tmp_path: Path, rows: list[Any], task: str, first: Any
) -> None:
    read_task, read = labels(write(tmp_path / "a.json", json.dumps(rows * 20)))
    assert read_task == task
    assert read[0] == ((ADA,), first)


def test_what_annotators_left_out_is_counted(tmp_path: Path) -> None:
    rows = [prodigy(ADA, SPANS), prodigy(NONE, [], "reject"), prodigy(NONE, [], "ignore")]
    reader = RowReader(write(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows)))
    for _ in range(2):
        assert len(list(reader)) == 1
        places = f"2 ({reader.path}:2, {reader.path}:3)"
        assert reader.notes == [f"rows that the annotator rejected or ignored, left out: {places}"]
    skipped = label_studio(NONE, choice("neg"), was_cancelled=True)
    twice = label_studio(ADA, choice("pos"))
    twice["annotations"] += [{"id": 2, "result": [choice("neg")]}]
    reader = RowReader(write(tmp_path / "b.json", json.dumps([twice, skipped])))
    assert [row.values.get("sentiment") for row in reader] == [["pos"], None]
    assert reader.notes == [
        f"rows with several annotations: the first one counts: 1 ({reader.path}:1)"
    ]


def test_an_answer_called_reject_is_a_label_in_other_files(tmp_path: Path) -> None:
    for name, content in (
        ("a.csv", "text,answer\na b,reject\nc d,accept\n"),
        ("a.jsonl", '{"text": "a", "answer": "reject"}\n'),
    ):
        assert values(write(tmp_path / name, content))[0]["answer"] == "reject"


def test_lines_of_fasttext(tmp_path: Path) -> None:
    rows = "__label__baking __label__bread how do I bake\n__label__oil how hot\n"
    task, read = labels(write(tmp_path / "a.txt", rows * 20))
    assert (task, read[:2]) == (
        "multilabel",
        [(("how do I bake",), ("baking", "bread")), (("how hot",), ("oil",))],
    )
    single = "__label__a some words, and more\n__label__b other, words\n"
    task, read = labels(write(tmp_path / "b.train", single * 20))
    assert (task, read[:1]) == ("classification", [(("some words, and more",), "a")])
    assert values(write(tmp_path / "c.txt", "the mark __label__ is text\nhere __label__x\n"))[
        1
    ] == {"text": "here __label__x"}


# --- other layouts of JSON
# --------------------------------------------------------------------------------------------

CONTEXT = "Ada wrote a program in 1843. Ada lived in London."
QUESTIONS = [("When?", "1843", 23), ("Who?", "Ada", 0), ("Where?", "London", 42)]
FLAT = [
    {
        "id": f"q{n}",
        "context": CONTEXT,
        "question": question,
        "answers": {"text": [text], "answer_start": [start]},
    }
    for n, (question, text, start) in enumerate(QUESTIONS)
]
QAS = [
    {
        "context": CONTEXT,
        "qas": [
            {
                "id": f"q{n}",
                "question": question,
                "answers": [{"text": text, "answer_start": start}],
            }
        ],
    }
    for n, (question, text, start) in enumerate(QUESTIONS)
]
ANSWER_ROWS = [
    {"context": CONTEXT, "question": question, "answer_text": text, "answer_start": start}
    for question, text, start in QUESTIONS
]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", json.dumps({"version": "1", "data": FLAT})),
        ("a.json", json.dumps(FLAT)),
        ("a.jsonl", "".join(json.dumps(row) + "\n" for row in FLAT)),
        ("a.json", json.dumps(QAS)),
        ("a.json", json.dumps({"data": QAS})),
        ("a.json", json.dumps([{"title": "x", "paragraphs": QAS}], indent=2)),
        ("a.csv", as_csv(ANSWER_ROWS)),
        (
            "a.csv",
            as_csv(ANSWER_ROWS, context="Context", question="Question", answer_text="Answer Text"),
        ),
        (
            "a.csv",
            as_csv(
                [{k: v for k, v in row.items() if k != "answer_start"} for row in ANSWER_ROWS],
                answer_text="answer",
            ),
        ),
        ("a.jsonl", "".join(json.dumps(row) + "\n" for row in ANSWER_ROWS)),
        (
            "a.json",
            json.dumps(
                [{"context": CONTEXT, "question": q, "answers": [text]} for q, text, _ in QUESTIONS]
            ),
        ),
    ],
)
def test_questions_in_other_shapes(tmp_path: Path, name: str, content: str) -> None:
    path = write(tmp_path / name, content)
    task, read = labels(path)
    assert task == "qa"
    assert read == [((question, CONTEXT), ((start, text),)) for question, text, start in QUESTIONS]


def test_answers_without_a_place_are_searched_and_counted(tmp_path: Path) -> None:
    rows = [("Who?", "Ada"), ("When?", "1843"), ("Why?", "for fun"), ("How?", "")] * 5
    path = write(
        tmp_path / "a.csv",
        as_csv([{"context": CONTEXT, "question": q, "answer": a} for q, a in rows]),
    )
    reader = RowReader(path)
    read = [row.values["answers"] for row in reader][:4]
    assert read == [
        [{"text": "Ada", "answer_start": 0}],
        [{"text": "1843", "answer_start": 23}],
        [{"text": "for fun", "answer_start": -1}],
        [],
    ]
    shown, note = reader.notes
    assert shown == "answers: 'answer', searched in 'context'"
    assert note.startswith(
        "answers that occur several times in the context: the first one counts: 5"
    )
    data = read_data(path, dev=path)
    assert len(data.train) == 15
    assert any(
        note.startswith("5 answers are not at their position in the context, and are left out")
        for note in data.notes
    )
    assert "answer" in next(iter(reader)).written  # type: ignore[operator]


def test_answers_that_are_classes_stay_classes(tmp_path: Path) -> None:
    rows = [
        {"context": "It was cold.", "question": f"Was it? {n}", "answer": ["yes", "no"][n % 2]}
        for n in range(40)
    ]
    assert schema_of(write(tmp_path / "a.csv", as_csv(rows))).task == "classification"


RECORDS = [
    {"text": "one text", "label": "a"},
    {"text": "two texts", "label": "b"},
    {"text": "three", "label": "a"},
]
PANDAS = {  # what DataFrame(RECORDS).to_json(orient=...) writes
    "records": RECORDS,
    "columns": {name: {str(n): row[name] for n, row in enumerate(RECORDS)} for name in RECORDS[0]},
    "index": {str(n): row for n, row in enumerate(RECORDS)},
    "split": {
        "columns": ["text", "label"],
        "index": [0, 1, 2],
        "data": [list(row.values()) for row in RECORDS],
    },
    "table": {
        "schema": {
            "fields": [{"name": "index", "type": "integer"}],
            "primaryKey": ["index"],
            "pandas_version": "1.4.0",
        },
        "data": [{"index": n, **row} for n, row in enumerate(RECORDS)],
    },
}


@pytest.mark.parametrize("orient", PANDAS)
@pytest.mark.parametrize("indent", [None, 2])
def test_json_of_pandas(tmp_path: Path, orient: str, indent: int | None) -> None:
    path = write(tmp_path / "a.json", json.dumps(PANDAS[orient], indent=indent))
    assert [{name: row[name] for name in ("text", "label")} for row in values(path)] == RECORDS


def test_lists_without_names_are_numbered_columns(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", json.dumps([list(row.values()) for row in RECORDS]))
    assert values(path)[1] == {"column 1": "two texts", "column 2": "b"}
    mixed = write(tmp_path / "b.json", '[["a", "b"], {"text": "c"}]')
    assert (error(mixed).where, "expected a JSON object" in error(mixed).what) == (
        f"{mixed}:2",
        True,
    )
    for row in ('{"text": {"a": "b"}}', '{"tokens": ["a", "b"], "tags": ["O", "O"]}'):
        assert values(write(tmp_path / "c.jsonl", row + "\n")) == [json.loads(row)]  # one row


def test_parts_of_a_file_are_train_and_dev(tmp_path: Path) -> None:
    rows = [[f"text {n} is here", "ab"[n % 2]] for n in range(30)]
    parts = {"train": rows[:20], "val": rows[20:26], "test": rows[26:], "oos_test": rows[:3]}
    path = write(tmp_path / "data_full.json", json.dumps(parts))
    data = read_data(path)
    assert [item.texts[0] for item in data.train] == [text for text, _ in rows[:20]]
    assert [item.texts[0] for item in data.dev] == [text for text, _ in rows[20:26]]
    assert f"evaluated on {path}, val: 6 rows" in data.notes
    found = error(path)
    assert isinstance(found, UsageError)
    assert "the parts train, val, test, oos_test" in found.what
    assert found.hint == "--split train"
    assert len(values(path, split="oos_test")) == 3
    assert error(path, split="dev").hint == "--split train"
    assert len(read_data(path, read=ReadOptions(split="train")).train) == 18
    objects = {
        name: [{"text": text, "label": label} for text, label in part]
        for name, part in parts.items()
    }
    assert len(read_data(write(tmp_path / "b.json", json.dumps(objects, indent=1))).dev) == 6
    folds = read_data(path, fold=(0, 5))
    assert (len(folds.train), len(folds.dev)) == (16, 4)


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("a.xml", '<?xml version="1.0"?>\n<rows><row>a</row></rows>\n', "XML"),
        ("a.txt", "<!DOCTYPE html>\n<html></html>\n", "XML or HTML"),
        ("a.arff", "% a comment\n@RELATION iris\n@ATTRIBUTE x NUMERIC\n", "ARFF"),
        ("a.ann", "T1\tPER 0 12\tAda Lovelace\n", "brat"),
        ("a.spacy", b"x\x9c\x00\x01\x02" * 9, ".spacy"),
        ("a.arrow", b"ARROW1\0\0" + bytes(99), "Arrow"),
        ("a.pkl", b"\x80\x04\x95" + bytes(99), "pickle"),
        ("a.db", b"SQLite format 3\0" + bytes(99), "database"),
        ("a.docx", b"PK\x03\x04" + bytes(99), "Word"),
    ],
)
def test_what_is_not_read_is_named_with_a_way_out(
    tmp_path: Path, name: str, content: str | bytes, what: str
) -> None:
    found = error(write(tmp_path / name, content))
    assert what in found.what
    assert found.hint


KEYS = (
    "data annotations result value labels choices taxonomy from_name type text label cats accept "
    "options answer "
    "entities spans start end question context answers answer_start train dev test columns "
    "paragraphs qas id 0 1 "
    "annotator"
).split()
JSON = st.recursive(
    st.none()
    | st.integers(-1, 40)
    | st.floats()
    | st.sampled_from(["a text", "reject", "labels", "choices", "", "1"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)
    ),
    max_leaves=14,
)


@settings(max_examples=120, deadline=None)
@given(
    value=st.lists(JSON, max_size=4) | JSON,
    name=st.sampled_from(["a.json", "a.jsonl"]),
    split=st.sampled_from([None, "dev"]),
)
def test_any_json_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, value: Any, name: str, split: str | None
) -> None:
    lines = isinstance(value, list) and name == "a.jsonl"
    content = "".join(json.dumps(row) + "\n" for row in value) if lines else json.dumps(value)
    path = write(tmp_path_factory.mktemp("t") / name, content)
    with suppress(BertworksError):
        reader = RowReader(path, ReadOptions(split=split))
        rows = list(reader)
        assert all(isinstance(row.values, dict) for row in rows)
        list(items(reader, infer_schema(reader, TASKS)[0], TASKS, errors=[]))
