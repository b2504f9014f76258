"""Test collections in both layouts, and the figures of rankings over one."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as some

from bertworks.cli.main import main
from bertworks.errors import BertworksError
from bertworks.evaluation.retrieval import _reranked, evaluate_retrieval, read_collection
from bertworks.inference.embedder import Embedder
from bertworks.retrieval.ranking import top_k
from tests.support.fine import BAD, FILLER, GOOD

DOCUMENTS = {f"d{n}": f"{word} film of men and dogs" for n, word in enumerate([*GOOD, *BAD])}
QUERIES = {"1": GOOD[0], "3": f"{GOOD[1]} {BAD[0]}"}
GRADES = {"1": {"d0": 1, "d3": 0}, "3": {"d1": 2, "d5": 1}}


def write_beir(folder: Path) -> Path:
    (folder / "qrels").mkdir(parents=True)
    for name, texts in (("corpus", DOCUMENTS), ("queries", {**QUERIES, "9": "no grade"})):
        rows = [{"_id": key, "title": "", "text": text} for key, text in texts.items()]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = [
        f"{query}\t{document}\t{grade}"
        for query, found in GRADES.items()
        for document, grade in found.items()
    ]
    (folder / "qrels" / "test.tsv").write_text(
        "\n".join(["query-id\tcorpus-id\tscore", *lines, "3\tnowhere\t1"]) + "\n"
    )
    return folder


def write_trec(folder: Path) -> Path:
    folder.mkdir()
    documents = "".join(
        (
            f"<DOC>\n<DOCNO> {key} </DOCNO>\n<TITLE>{text.split()[0]}</TITLE>\n<TEXT>\n{text}\n"
            "</TEXT>\n</DOC>\n"
        )
        for key, text in DOCUMENTS.items()
    )
    (folder / "docs.xml.gz").write_bytes(gzip.compress(documents.encode()))
    topics = "".join(
        f"<top><num>Number: {key}</num><title> {text} </title></top>"
        for key, text in QUERIES.items()
    )
    (folder / "topics").write_text(f"<?xml version='1.0'?>\n<xml>{topics}</xml>\n")
    lines = [
        f"{query} 0 {document} {grade}"
        for query, found in GRADES.items()
        for document, grade in found.items()
    ]
    (folder / "qrels.txt").write_text("\n".join(lines) + "\n")
    return folder


@pytest.mark.parametrize("write", [write_beir, write_trec])
def test_both_layouts(write, tmp_path: Path):
    found = read_collection(write(tmp_path / "c"))
    assert (found.documents, found.queries, found.grades) == (DOCUMENTS, QUERIES, GRADES)


def test_queries_numbered_by_their_place(tmp_path: Path):
    folder = write_trec(tmp_path / "c")
    (folder / "qrels.txt").write_text("1 0 d0 1\n2 0 d1 1\n")
    assert read_collection(folder).queries == {"1": QUERIES["1"], "2": QUERIES["3"]}


def test_nothing_to_evaluate(tmp_path: Path):
    with pytest.raises(BertworksError, match="no such folder"):
        read_collection(tmp_path / "none")
    with pytest.raises(BertworksError, match="no documents"):
        read_collection(tmp_path)


def test_grades_of_missing_documents_are_reported(model: Path, tmp_path: Path):
    folder = write_beir(tmp_path / "c")
    qrels = folder / "qrels" / "test.tsv"
    graded = read_collection(folder).grades
    qrels.write_text("".join(qrels.read_text().splitlines(keepends=True)[1:]))  # without the header
    assert read_collection(folder).grades == graded
    lines, query, before = (
        qrels.read_text(),
        next(iter(graded)),
        read_collection(folder).missing.count,
    )
    qrels.write_text(f"{lines}{query}\tno-document\t1\nnobody\td1\t1\n")
    assert read_collection(folder).missing.count == before + 2
    assert any(
        "no-document" in event.text for event in evaluate_retrieval(folder, model, device="cpu")
    )
    qrels.write_text(lines + "a\tb\tmuch\n")
    with pytest.raises(BertworksError, match="not a judgment"):
        read_collection(folder)
    qrels.write_text(lines)
    with (folder / "corpus.jsonl").open("a") as file:
        file.write((folder / "corpus.jsonl").read_text().splitlines()[0] + "\n")
    with pytest.raises(BertworksError, match="occurs twice"):
        read_collection(folder)


def test_cranfield(data_folder: Path):
    found = read_collection(data_folder / "retrieval" / "cranfield")
    assert (len(found.documents), len(found.queries)) == (1400, 225)
    assert sum(grade > 0 for grades in found.grades.values() for grade in grades.values()) == 1612
    assert found.queries["3"].startswith("what problems of heat conduction in composite slabs")
    assert found.documents["1"].count("experimental investigation of the aerodynamics") == 1


def test_figures_of_every_ranking(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = write_beir(tmp_path / "c")
    *_, last = evaluate_retrieval(folder, model, device="cpu")
    assert (last.fields["queries"], last.fields["documents"]) == (2, 10)
    assert {"queries", "documents", "dense", "bm25", "hybrid"} <= set(last.fields)
    assert last.fields["truncated"] == 0
    # Equal texts but for one word: each query finds its own words first, the earlier document where
    # both are there.
    assert last.fields["bm25"] == pytest.approx(
        {"ndcg@10": 1, "map": 1, "recall@10": 1, "recall@100": 1}
    )
    assert last.fields["dense"]["recall@10"] == 1
    assert main(["evaluate", "retrieval", "--data", str(folder), "--model", str(model)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "2 queries  10 documents"
    assert [line.split()[0] for line in lines[1:]] == ["dense", "bm25", "hybrid"]


def test_a_second_model_puts_its_order_before_the_rest(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("bertworks.evaluation.retrieval.RERANKED", 2)
    first = np.array([0.1, 3.0, 2.0, -np.inf, 0.5], np.float32)
    (scores,) = _reranked(
        lambda query, texts: np.array([-5.0, -4.0], np.float32), ["q"], list("abcde"), iter([first])
    )
    assert top_k(scores, 9).tolist() == [2, 1, 4, 0]


def write_questions(
    folder: Path, judgments: list[tuple[str, str, int]], titles: bool = True
) -> Path:
    """A collection in the layout of BEIR in which every third document is also a query, as in
    ArguAna."""
    (folder / "qrels").mkdir(parents=True)
    for name, step in (("corpus", 1), ("queries", 3)):
        rows = [
            {
                "_id": f"q{n}",
                "title": "on film" if titles and step == 1 else "",
                "text": f"{word} film of {FILLER[n]} dogs",
            }
            for n, word in enumerate((GOOD + BAD) * 2)
        ]
        (folder / f"{name}.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in rows[::step])
        )
    lines = [
        "query-id\tcorpus-id\tscore",
        *(f"{query}\t{document}\t{grade}" for query, document, grade in judgments),
    ]
    (folder / "qrels" / "test.tsv").write_text("\n".join(lines) + "\n")
    return folder


def ndcg_as_in_beir(folder: Path, similarities: np.ndarray, keep: bool) -> float:
    """nDCG@10 by the definition: the results without the query's id, the ideal of all its
    judgments."""
    names = [json.loads(line)["_id"] for line in (folder / "corpus.jsonl").read_text().splitlines()]
    grades: dict[str, dict[str, int]] = {}
    for line in (folder / "qrels" / "test.tsv").read_text().splitlines()[1:]:
        query, document, grade = line.split("\t")
        grades.setdefault(query, {})[document] = int(grade)
    of_queries = []
    for query, row in zip(grades, similarities, strict=True):
        ranked = [names[n] for n in np.argsort(-row, kind="stable") if keep or names[n] != query][
            :10
        ]
        gains = np.array([grades[query].get(name, 0) for name in ranked])
        ideal = np.sort(list(grades[query].values()))[::-1][:10]
        dcg, best = (float((g / np.log2(np.arange(len(g)) + 2)).sum()) for g in (gains, ideal))
        of_queries.append(dcg / best)
    return float(np.mean(of_queries))


GRADED = [
    ("q0", "q10", 2),
    ("q0", "q1", 1),
    ("q3", "q13", 1),
    ("q6", "q6", 1),
    ("q6", "q16", 2),
    ("q9", "q19", 1),
]


@pytest.mark.parametrize("keep", [False, True])
def test_a_query_that_is_a_document_is_left_out_of_its_own_ranking_as_in_beir(
    keep, model: Path, tmp_path: Path, capsys
):
    folder = write_questions(tmp_path / "c", GRADED)
    embedder = Embedder(model, normalize=True, device="cpu")
    rows = {
        name: [*map(json.loads, (folder / f"{name}.jsonl").read_text().splitlines())]
        for name in ("corpus", "queries")
    }
    requested = {row["_id"]: row["text"] for row in rows["queries"]}
    vectors = embedder.embed([f"{row['title']} {row['text']}" for row in rows["corpus"]])
    wanted = embedder.embed([requested[query] for query in ("q0", "q3", "q6", "q9")])
    expected = ndcg_as_in_beir(folder, wanted @ vectors.T, keep)
    assert expected != pytest.approx(
        ndcg_as_in_beir(folder, wanted @ vectors.T, not keep), abs=0.01
    )
    options = ["--keep-identical"] if keep else []
    assert (
        main(
            [
                "evaluate",
                "retrieval",
                "--data",
                str(folder),
                "--model",
                str(model),
                "--json",
                *options,
            ]
        )
        == 0
    )
    shown = capsys.readouterr()
    assert json.loads(shown.out)["dense"]["ndcg@10"] == pytest.approx(expected, abs=1e-6)
    assert "queries with the id of a document: 4, 0 of them with another text" in shown.err
    assert ("left out of their own ranking, as in BEIR" in shown.err) is not keep
    assert ("--keep-identical" in shown.err) is not keep


def test_no_ranking_holds_the_query_itself(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Only the query itself is graded: each figure is 0 where it is left out, above 0 where it is
    kept."""
    folder = write_questions(tmp_path / "c", [("q0", "q0", 1), ("q3", "q3", 1)], titles=False)

    def rerank(query: str, texts: list[str]) -> np.ndarray:
        return np.array([text == query for text in texts], np.float32)

    monkeypatch.setattr("bertworks.evaluation.retrieval.Reranker", lambda *_, **__: rerank)
    for keep in (True, False):
        *_, last = evaluate_retrieval(
            folder, model, rerank="any", keep_identical=keep, device="cpu"
        )
        for ranking in ("dense", "bm25", "hybrid", "reranked"):
            assert set(last.fields[ranking].values()) == {1.0 if keep else 0.0}


def test_in_the_layout_of_trec_numbers_alone_do_not_make_a_query_a_document(
    model: Path, tmp_path: Path
):
    folder = tmp_path / "c"
    folder.mkdir()
    texts = ["a film of men", "dogs and men", "a film of dogs"]
    (folder / "docs").write_text(
        "".join(f"<doc><docno>{n}</docno><text>{t}</text></doc>" for n, t in enumerate(texts))
    )
    (folder / "topics").write_text(
        "<top><num>0</num><title>dogs</title></top><top><num>1</num><title>dogs and "
        "men</title></top>"
    )
    (folder / "qrels").write_text("0 0 0 1\n1 0 2 1\n")
    assert read_collection(folder).identical == {"1"}
    notes = [
        event.text
        for event in evaluate_retrieval(folder, model, device="cpu")
        if event.kind == "note"
    ]
    assert [note.split("  ")[1] for note in notes[1:]] == ["query 0", "document 0"]
    assert notes[0].startswith(
        "queries with the id of a document: 1, 0 of them with another text; they are left out"
    )
    # In the layout of BEIR the same numbers are left out, as BEIR does, and the note says that the
    # texts differ.
    other = write_beir(tmp_path / "b")
    lines = (other / "corpus.jsonl").read_text().replace('"d2"', '"3"')
    (other / "corpus.jsonl").write_text(lines)
    notes = [
        event.text
        for event in evaluate_retrieval(other, model, device="cpu")
        if event.kind == "note"
    ]
    assert any("document: 1, 1 of them with another text" in note for note in notes)


@pytest.mark.parametrize("layout", ["beir", "trec"])
def test_contradicting_judgments_are_refused_with_both_places(
    layout: str, model: Path, tmp_path: Path
):
    folder = (write_beir if layout == "beir" else write_trec)(tmp_path / "c")
    qrels = folder / ("qrels/test.tsv" if layout == "beir" else "qrels.txt")
    first = 2 if layout == "beir" else 1  # after the header
    before, content = read_collection(folder), qrels.read_text()
    number = content.count("\n") + 1
    again = "1\td0\t{}\n" if layout == "beir" else "1 0 d0 {}\n"
    qrels.write_text(content + again.format(1))
    found = read_collection(folder)
    assert found.grades == before.grades
    assert (found.repeated.count, found.repeated.places) == (1, [f"{qrels}:{number}"])
    (note,) = [
        event
        for event in evaluate_retrieval(folder, model, device="cpu")
        if "occur again" in event.text
    ]
    assert f"{qrels}:{number}" in note.text
    qrels.write_text(content + again.format(0))
    with pytest.raises(BertworksError, match="grade 0 here and 1 in") as error:
        read_collection(folder)
    assert error.value.where == f"{qrels}:{number}"
    assert f"{qrels}:{first}" in error.value.what


def test_contradicting_judgments_in_two_files(tmp_path: Path):
    folder = write_trec(tmp_path / "c")
    (folder / "qrels2.txt").write_text("\n3 0 d1 1\n")
    with pytest.raises(BertworksError, match="grade") as error:
        read_collection(folder)
    assert error.value.where == f"{folder / 'qrels2.txt'}:2"
    assert f"{folder / 'qrels.txt'}:3" in error.value.what


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    some.lists(
        some.tuples(some.sampled_from("13"), some.sampled_from("012"), some.integers(-1, 1)),
        min_size=1,
    )
)
def test_judgments_are_the_same_in_any_order_or_refused(
    tmp_path: Path, judgments: list[tuple[str, str, int]]
):
    contradict = len({pair[:2] for pair in judgments}) < len(set(judgments))
    folder = tmp_path / "c"
    if not folder.exists():
        write_beir(folder)
    for order in (judgments, judgments[::-1]):
        lines = [
            "query-id\tcorpus-id\tscore",
            *(f"{query}\td{document}\t{grade}" for query, document, grade in order),
        ]
        (folder / "qrels" / "test.tsv").write_text("\n".join(lines) + "\n")
        if contradict:
            with pytest.raises(
                BertworksError, match=r"has the grade -?\d here and -?\d in .*test\.tsv:\d+"
            ):
                read_collection(folder)
            continue
        found = read_collection(folder)
        pairs = {
            (query, document, grade)
            for query, row in found.grades.items()
            for document, grade in row.items()
        }
        assert pairs == {(query, f"d{document}", grade) for query, document, grade in judgments}
        assert found.repeated.count == len(judgments) - len(set(judgments))
