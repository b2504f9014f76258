"""Test collections in both layouts, and the figures of rankings over one."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from fine import BAD, GOOD

from bertworks.cli.main import main
from bertworks.errors import BertworksError
from bertworks.evaluation.retrieval import _reranked, evaluate_retrieval, read_collection
from bertworks.retrieval.ranking import top_k

DOCUMENTS = {f"d{n}": f"{word} film of men and dogs" for n, word in enumerate([*GOOD, *BAD])}
QUERIES = {"1": GOOD[0], "3": f"{GOOD[1]} {BAD[0]}"}
GRADES = {"1": {"d0": 1, "d3": 0}, "3": {"d1": 2, "d5": 1}}


def write_beir(folder: Path) -> Path:
    (folder / "qrels").mkdir(parents=True)
    for name, texts in (("corpus", DOCUMENTS), ("queries", {**QUERIES, "9": "not judged"})):
        rows = [{"_id": key, "title": "", "text": text} for key, text in texts.items()]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = [f"{query}\t{document}\t{grade}" for query, found in GRADES.items() for document, grade in found.items()]
    (folder / "qrels" / "test.tsv").write_text(
        "\n".join(["query-id\tcorpus-id\tscore", *lines, "3\tnowhere\t1"]) + "\n"
    )
    return folder


def write_trec(folder: Path) -> Path:
    folder.mkdir()
    documents = "".join(
        f"<DOC>\n<DOCNO> {key} </DOCNO>\n<TITLE>{text.split()[0]}</TITLE>\n<TEXT>\n{text}\n</TEXT>\n</DOC>\n"
        for key, text in DOCUMENTS.items()
    )
    (folder / "docs.xml.gz").write_bytes(gzip.compress(documents.encode()))
    topics = "".join(f"<top><num>Number: {key}</num><title> {text} </title></top>" for key, text in QUERIES.items())
    (folder / "topics").write_text(f"<?xml version='1.0'?>\n<xml>{topics}</xml>\n")
    lines = [f"{query} 0 {document} {grade}" for query, found in GRADES.items() for document, grade in found.items()]
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


def test_nothing_to_judge(tmp_path: Path):
    with pytest.raises(BertworksError, match="no such folder"):
        read_collection(tmp_path / "none")
    with pytest.raises(BertworksError, match="no documents"):
        read_collection(tmp_path)


def test_judgements_of_what_is_not_there_are_told(model: Path, tmp_path: Path):
    folder = write_beir(tmp_path / "c")
    qrels = folder / "qrels" / "test.tsv"
    judged = read_collection(folder).grades
    qrels.write_text("".join(qrels.read_text().splitlines(keepends=True)[1:]))  # without the header
    assert read_collection(folder).grades == judged
    lines, query, before = qrels.read_text(), next(iter(judged)), read_collection(folder).missing.count
    qrels.write_text(f"{lines}{query}\tno-document\t1\nnobody\td1\t1\n")
    assert read_collection(folder).missing.count == before + 2
    assert any("no-document" in event.text for event in evaluate_retrieval(folder, model, device="cpu"))
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
    assert set(last.fields) == {"queries", "documents", "dense", "bm25", "hybrid"}
    # Equal texts but for one word: each query finds its own words first, the earlier document where both are there.
    assert last.fields["bm25"] == pytest.approx({"ndcg@10": 1, "map": 1, "recall@10": 1, "recall@100": 1})
    assert last.fields["dense"]["recall@10"] == 1
    assert main(["evaluate", "retrieval", "--data", str(folder), "--model", str(model)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "2 queries  10 documents"
    assert [line.split()[0] for line in lines[1:]] == ["dense", "bm25", "hybrid"]


def test_a_second_model_puts_its_order_before_the_rest(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("bertworks.evaluation.retrieval.RERANKED", 2)
    first = np.array([0.1, 3.0, 2.0, -np.inf, 0.5], np.float32)
    (scores,) = _reranked(lambda query, texts: np.array([-5.0, -4.0], np.float32), ["q"], list("abcde"), iter([first]))
    assert top_k(scores, 9).tolist() == [2, 1, 4, 0]
