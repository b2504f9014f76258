"""An index: what is found, added and deleted; what a killed process leaves; that vectors of two
models never meet."""

import json
import random
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import huggingface_hub.constants
import numpy as np
import pytest
import torch

import bertworks
from bertworks.checkpoints.model_folder import load_model, save_model
from bertworks.checkpoints.task_config import task_settings
from bertworks.cli.main import main
from bertworks.errors import BertworksError, UsageError
from bertworks.inference.embedder import Embedder, normalized
from bertworks.io.atomic_write import json_sha256
from bertworks.io.options import Bulk, ReadOptions
from bertworks.retrieval.index import Index, index_file
from bertworks.retrieval.ranking import Reranker
from bertworks.retrieval.store import MANIFEST, writing
from bertworks.serve.endpoints import Abilities
from bertworks.tasks.heads import TaskModel
from bertworks.tasks.registry import task_of
from bertworks.tasks.settings import TaskConfig
from tests.support.fine import FILLER, sentence, write_model
from tests.support.refusals import refusal
from tests.support.served import write_head

TEXTS = [
    "good film",
    "sad dogs",
    "Anna lives in Oslo",
    "the men heard music last night",
    "story of this town",
]


@pytest.fixture
def index(model: Path, tmp_path: Path) -> Index:
    made = Index.create(tmp_path / "idx", model, device="cpu")
    made.add(TEXTS, ids=list("abcde"), fields=[{"n": n} for n in range(5)])
    return made


def ids(index: Index, query: str = "sad dogs", **settings: object) -> list[str]:
    return [hit["id"] for hit in index.search(query, 99, **settings)]


@pytest.mark.parametrize("meant", ["cosine", "dot", "words"])
def test_a_model_made_for_another_similarity(meant: str, model: Path, tmp_path: Path):
    Embedder(model, device="cpu").save(tmp_path / "own")
    path = tmp_path / "own/config_sentence_transformers.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"similarity_fn_name": meant}))
    (tmp_path / "docs.txt").write_text("\n".join(TEXTS) + "\n")
    make = partial(
        index_file, tmp_path / "docs.txt", tmp_path / "idx", model=tmp_path / "own", device="cpu"
    )
    if meant == "words":
        with pytest.raises(BertworksError, match="similarity_fn_name is 'words'"):
            list(make())
        return
    said = [event.text for event in make() if event.kind == "note"]
    assert any("to be compared by dot" in text for text in said) == (meant == "dot")


def test_dense_is_the_cosine(index: Index, model: Path):
    vectors = bertworks.embed(model, ["old dogs", *TEXTS], normalize=True, device="cpu").astype(
        np.float64
    )
    cosines = vectors[1:] @ vectors[0]
    hits = index.search("old dogs", 3, ranking="dense")
    assert [hit["id"] for hit in hits] == ["abcde"[n] for n in np.argsort(-cosines)[:3]]
    assert [hit["score"] for hit in hits] == pytest.approx(
        sorted(cosines, reverse=True)[:3], abs=1e-6
    )
    place = "abcde".index(hits[0]["id"])
    assert (hits[0]["text"], hits[0]["fields"]) == (TEXTS[place], {"n": place})


def test_words_and_both(index: Index):
    assert ids(index, "DOGS music", ranking="bm25") == ["b", "d"]
    assert ids(index, "nothing", ranking="bm25") == []
    assert set(ids(index, "nothing", ranking="hybrid")) == set("abcde")
    assert index.search("sad dogs")[0] == {
        "id": "b",
        "score": pytest.approx(2 / 61),
        "cosine": pytest.approx(1, abs=1e-5),
        "title": "",
        "text": "sad dogs",
        "fields": {"n": 1},
    }


def test_many_segments_are_as_one(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # In the exact precision: in others a text alone and among many differ in the fourth digit.
    monkeypatch.setattr(
        "bertworks.inference.embedder.with_fp16_weights", lambda encoder, rest: rest
    )
    draw = random.Random(0)
    texts = [sentence(draw) for _ in range(60)]
    one, many = (Index.create(tmp_path / name, model, device="cpu") for name in ("one", "many"))
    one.add(texts)
    for start in range(0, 60, 7):
        many.add(texts[start : start + 7])
    many.delete([str(n) for n in range(1, 60, 3)])
    one.delete([str(n) for n in range(1, 60, 3)])
    for ranking in ("dense", "bm25", "hybrid"):
        for query in (texts[0], FILLER[3], "good men"):
            first, second = (found.search(query, 50, ranking=ranking) for found in (one, many))
            assert [hit["id"] for hit in first] == [hit["id"] for hit in second]
            assert [hit["score"] for hit in first] == pytest.approx(
                [hit["score"] for hit in second], abs=1e-5
            )
    before = many.search("good men", 50)
    many.compact()
    assert len(list((tmp_path / "many").glob("segment-*"))) == 2
    assert [hit["id"] for hit in many.search("good men", 50)] == [hit["id"] for hit in before]
    assert (
        texts[0]
        not in (tmp_path / "many" / next(iter(many.manifest.segments)))
        .with_suffix(".jsonl")
        .read_text()
    )


def test_approximate_search_walks_a_graph(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Of so few documents it finds the same as exact search; what is added later, and deleted,
    counts at once."""
    pytest.importorskip("faiss", reason="faiss, an extra, is not installed")
    draw = random.Random(0)
    texts = [sentence(draw) for _ in range(300)]
    index = Index.create(tmp_path / "idx", model, device="cpu")
    with pytest.raises(UsageError, match="no documents"):
        index.build_graph()
    index.add(texts[:150])
    index.add(texts[150:200])
    with pytest.raises(UsageError, match="no graph"):
        index.search("good men", approximate=True)
    assert main(["index", "-o", str(tmp_path / "idx"), "--approximate"]) == 0
    assert "recall@10 of approximate search: 100.0%" in capsys.readouterr().err

    def compare(index: Index) -> None:
        for ranking in ("dense", "hybrid", "bm25"):
            exact = index.search("good men", 20, ranking=ranking)
            found = index.search("good men", 20, ranking=ranking, approximate=True)
            assert [hit["id"] for hit in found] == [hit["id"] for hit in exact]
            assert [hit["score"] for hit in found] == pytest.approx(
                [hit["score"] for hit in exact], abs=1e-6
            )

    index = Index(tmp_path / "idx", device="cpu")
    compare(index)
    index.add(texts[200:])
    index.delete([hit["id"] for hit in index.search("good men", 9, ranking="dense")])
    compare(index)
    command = ["search", str(tmp_path / "idx"), "good men", "--ranking", "dense"]
    shown = [main([*command, *more]) or capsys.readouterr().out for more in ([], ["--approximate"])]
    assert shown[0] == shown[1] != ""
    assert index.build_graph() == 1
    compare(index)
    (tmp_path / "idx" / "neighbours.faiss").write_bytes(b"IHNf" + bytes(100))
    with pytest.raises(BertworksError, match="sha256 differs"):
        Index(tmp_path / "idx", device="cpu").search("good men", approximate=True)
    index.compact()
    with pytest.raises(UsageError, match="no graph for"):
        index.search("good men", approximate=True)


def test_what_is_deleted_is_not_found(index: Index):
    assert index.delete(["b", "c", "x"]) == 2
    assert len(index) == 3
    for found in (index, Index(index.folder, device="cpu")):
        for ranking in ("dense", "hybrid"):
            assert set(ids(found, ranking=ranking)) == set("ade")
        assert ids(found, ranking="bm25") == []
    assert index.delete(["b"]) == 0
    assert index.delete(list("ade")) == 3
    assert ids(index) == ids(index, ranking="bm25") == []
    index.compact()
    assert ids(index) == []
    assert index.manifest.segments == {}
    index.add(["sad dogs"])
    assert ids(index) == ["6"], "a number that was never used"


def test_an_open_index_outlives_a_compaction(index: Index):
    reader, before = Index(index.folder, device="cpu"), ids(index)
    index.delete(["b"])
    index.compact()
    assert ids(reader) == before


def test_half_a_character(index: Index):
    index.add(["music \ud83d"], ids=["\ud83d"])
    assert index.search("music", 2, ranking="bm25")[0] == {
        "id": "\ud83d",
        "score": pytest.approx(1.2, abs=1),
        "cosine": None,
        "title": "",
        "text": "music \ud83d",
        "fields": {},
    }
    assert index.delete(["\ud83d"]) == 1


def test_documents_without_a_word(index: Index):
    """A segment of which no word is known, made and compacted."""
    index.add(["!!!", "\U0001f600"], ids=["x", "y"])
    index.delete(list("abcde"))
    index.compact()
    assert set(ids(Index(index.folder, device="cpu"), "!!!")) == {"x", "y"}
    assert ids(index, "film", ranking="bm25") == []


def test_the_same_id_takes_the_place(index: Index):
    assert index.add(["happy dogs", "other", "great music"], ids=["b", "f", "f"]) == 2
    assert (len(index), set(ids(index))) == (6, set("abcdef"))
    assert {hit["id"]: hit["text"] for hit in index.search("x", 99)}["f"] == "great music"
    assert ids(index, "sad", ranking="bm25") == []


def test_wrong_calls(index: Index, model: Path, tmp_path: Path):
    for call in (
        lambda: index.add("text"),
        lambda: index.add(["a", " "]),
        lambda: index.add(["a"], ids=["1", "2"]),
        lambda: index.delete("a"),
        lambda: index.search("a", 0),
        lambda: Index.create(index.folder, model),
        lambda: index.add([None]),
    ):
        with pytest.raises(UsageError):
            call()
    with pytest.raises(BertworksError, match="no index here"):
        Index(tmp_path)
    assert index.add([]) == 0
    with writing(index.folder), pytest.raises(BertworksError, match="another process"):
        index.add(["a"])
    assert len(Index(index.folder)) == 5


def test_vectors_of_two_models_never_meet(index: Index, model: Path, tmp_path: Path):
    other = write_model(tmp_path / "other")
    config, state, tokenizer = load_model(other)
    state["encoder.embeddings.norm.bias"] = state["encoder.embeddings.norm.bias"] + 0.5
    save_model(other, state, config, tokenizer, card="")
    (tmp_path / "d.txt").write_text("good\n")
    for call in (
        lambda: Index(index.folder, model=other, device="cpu").search("a"),
        lambda: Index(index.folder, model=other, device="cpu").add(["a"]),
        lambda: list(index_file(tmp_path / "d.txt", index.folder, model=other, device="cpu")),
    ):
        with pytest.raises(BertworksError, match="made by another model"):
            call()
    assert [
        hit["id"] for hit in Index(index.folder, model=other).search("dogs", ranking="bm25")
    ] == ["b"]
    moved = shutil.copytree(model, tmp_path / "moved")
    assert ids(Index(index.folder, model=moved, device="cpu")) == ids(index)


GOOD = {"format": 2, "model": "", "fingerprint": {}, "dimension": 32}


@pytest.mark.parametrize(
    "damage",
    [
        {},
        {"format": 1},
        {"format": 2},
        {**GOOD, "model": 3},
        {**GOOD, "segments": {"../a": ""}},
        {**GOOD, "segments": {"a": ""}},
        {**GOOD, "fingerprint": {"max_length": {}}},
    ],
)
def test_damaged_ones_are_said_to_be_so(damage: dict, index: Index):
    """Also those with the sha256 of their content."""
    (index.folder / MANIFEST).write_text(json.dumps(damage | {"sha256": json_sha256(damage)}))
    with pytest.raises(
        BertworksError, match="another version" if damage.get("format") != 2 else "is damaged"
    ):
        Index(index.folder)
    (index.folder / MANIFEST).write_text(json.dumps(GOOD | {"sha256": json_sha256(GOOD)}))
    assert len(Index(index.folder)) == 0


def test_damaged_segments(index: Index):
    (segment,) = index.folder.glob("segment-*.safetensors")
    (rows,) = index.folder.glob("segment-*.jsonl")
    rows.write_bytes(rows.read_bytes()[:40])
    with pytest.raises(BertworksError, match="damaged"):
        Index(index.folder, device="cpu").search("dogs")
    content = segment.read_bytes()
    segment.write_bytes(content[: len(content) // 2])
    with pytest.raises(BertworksError, match="not a safetensors file"):
        Index(index.folder)


KILLED = """
import os, signal, sys
from pathlib import Path
from bertworks.inference.embedder import Embedder
from bertworks.io.options import ReadOptions
from bertworks.retrieval.index import Index
folder, model = Path(sys.argv[1]), sys.argv[2]
rename = Path.replace
for k in range(1, 8):
    child = os.fork()  # before torch has computed anything: no threads yet
    if child == 0:
        index = Index(folder / str(k), model=model, device="cpu")
        def dying(self, target, left=[k]):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return rename(self, target)
        Path.replace = dying
        index.add(["happy dogs", "other"], ids=["b", "f"])
        index.delete(["a"])
        index.compact()
        os._exit(0)
    print(os.waitpid(child, 0)[1])
"""


@pytest.mark.slow
def test_a_killed_writer_leaves_the_index_whole(index: Index, model: Path, tmp_path: Path):
    """Before each rename in turn: of two files of a segment, the manifest, the manifest, two files,
    the manifest."""
    for k in range(1, 8):
        shutil.copytree(index.folder, tmp_path / "killed" / str(k))
    command = [sys.executable, "-c", KILLED, str(tmp_path / "killed"), str(model)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["9"] * 7
    for k, there in enumerate(["abcde"] * 3 + ["abcdef"] + ["bcdef"] * 3, 1):
        found = Index(tmp_path / "killed" / str(k), device="cpu")
        assert set(ids(found)) == set(there)
        assert [hit["id"] for hit in found.search("happy", ranking="bm25")] == (
            ["b"] if "f" in there else []
        )
        found.add(["new"], ids=["n"])
        assert len(found) == len(there) + 1
        names = {path.name for path in found.folder.iterdir()} - {".lock", MANIFEST}
        assert names == {
            f"{name}.{kind}"
            for name in found.manifest.segments
            for kind in ("jsonl", "safetensors")
        }


# --- files


def write_documents(path: Path, *extra: dict) -> Path:
    rows = [
        {"id": name, "text": text, "year": 1900 + n}
        for n, (name, text) in enumerate(zip("abcde", TEXTS, strict=True))
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, *extra]))
    return path


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertworks.io.file_job.ROWS_AT_ONCE", 2)


def test_files(model: Path, tmp_path: Path, small: None):
    documents, folder = (
        write_documents(tmp_path / "d.jsonl", {"id": "x", "text": " "}),
        tmp_path / "idx",
    )
    *_, last = index_file(documents, folder, model=model, device="cpu")
    assert last.fields == {"index": str(folder), "documents": 5, "replaced": 0, "truncated": 0}
    assert Index(folder, device="cpu").search("sad dogs", 1)[0]["fields"] == {"year": 1901}
    before = (folder / MANIFEST).read_bytes()
    *_, last = index_file(documents, folder, device="cpu")
    assert "in the index already" in last.text
    assert (folder / MANIFEST).read_bytes() == before
    write_documents(documents, {"id": "f", "text": "nasty music"})
    *_, last = index_file(documents, folder, device="cpu")
    assert last.fields == {"index": str(folder), "documents": 6, "replaced": 5, "truncated": 0}
    (tmp_path / "t.txt").write_text("one\n\ntwo\n")
    *_, last = index_file(tmp_path / "t.txt", folder, device="cpu")
    assert last.fields["documents"] == 8
    with pytest.raises(UsageError, match="pooling mean, not cls"):
        list(index_file(documents, folder, pooling="cls", device="cpu"))


def test_files_are_read_again_where_their_documents_may_be_gone(
    model: Path, tmp_path: Path, small: None
):
    first, folder = write_documents(tmp_path / "a.jsonl"), tmp_path / "idx"
    other = tmp_path / "b.jsonl"
    other.write_text(json.dumps({"id": "b", "text": "happy music"}) + "\n")

    def add(path: Path, **options: object) -> str:
        *_, last = index_file(path, folder, device="cpu", **options)
        return last.text

    add(first, model=model)
    add(other)
    assert "already" not in add(first)  # its b was replaced
    assert Index(folder, device="cpu").search("sad dogs", 1)[0]["id"] == "b"
    assert "already" in add(first)
    Index(folder, device="cpu").delete(["a"])
    assert "5 took" not in add(other)
    assert "already" not in add(first)
    assert set(ids(Index(folder, device="cpu"))) == set("abcde")
    quoted = tmp_path / "q.csv"
    quoted.write_text('id,text\n1,"good" film\n')
    add(quoted, read=ReadOptions(quoting="raw"))
    assert "already" in add(quoted, read=ReadOptions(quoting="raw"))
    quoted.write_text('id,text\n1,"good film"\n')
    add(quoted, read=ReadOptions(quoting="raw"))
    assert "already" not in add(quoted, read=ReadOptions(quoting="quoted"))


def test_a_file_is_read_again_where_another_hand_replaced_its_documents(
    model: Path, tmp_path: Path
):
    list(
        index_file(
            write_documents(tmp_path / "a.jsonl"), tmp_path / "idx", model=model, device="cpu"
        )
    )
    Index(tmp_path / "idx", device="cpu").add(["happy music"], ids=["b"])
    *_, last = index_file(tmp_path / "a.jsonl", tmp_path / "idx", device="cpu")
    assert "already" not in last.text
    assert Index(tmp_path / "idx", device="cpu").search("sad dogs", 1)[0]["id"] == "b"


def test_a_file_that_is_killed_has_reported_what_it_replaced(
    model: Path, tmp_path: Path, small: None
):
    folder, other = tmp_path / "idx", write_documents(tmp_path / "b.jsonl")
    list(index_file(write_documents(tmp_path / "a.jsonl"), folder, model=model, device="cpu"))
    killed = index_file(other, folder, device="cpu")
    assert next(event for event in killed if event.kind == "stage").fields["amount"] == 2
    killed.close()
    *_, last = index_file(tmp_path / "a.jsonl", folder, device="cpu")
    assert "already" not in last.text


def test_an_index_that_was_made_anew_for_another_model_takes_no_vectors_of_the_first(
    model: Path, tmp_path: Path
):
    first = Index.create(tmp_path / "idx", model, device="cpu")
    assert first.embedder.dimension == 32
    Index.create(tmp_path / "idx", model, pooling="cls", device="cpu")  # nothing was in it
    with pytest.raises(BertworksError, match="made by another model"):
        first.add(["good film"])
    assert len(Index(tmp_path / "idx", device="cpu")) == 0


def test_a_first_file_that_was_killed_goes_on(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """When its segment was on disk, and not yet in the manifest."""
    make = partial(
        index_file,
        write_documents(tmp_path / "d.jsonl"),
        tmp_path / "idx",
        model=model,
        device="cpu",
    )
    with monkeypatch.context() as patched:
        patched.setattr("bertworks.retrieval.store.Documents.commit", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            list(make())
    assert list((tmp_path / "idx").glob("segment-*"))
    list(make())
    assert set(ids(Index(tmp_path / "idx", device="cpu"))) == set("abcde")


def test_numbers_are_not_used_again(model: Path, tmp_path: Path):
    (tmp_path / "d.txt").write_text("\n".join(TEXTS) + "\n")
    index = Index.create(tmp_path / "idx", model, device="cpu")
    index.add(["happy dogs"])
    index.delete(["1"])
    index.compact()
    list(index_file(tmp_path / "d.txt", tmp_path / "idx", device="cpu"))
    assert set(ids(Index(tmp_path / "idx", device="cpu"))) == set("23456")


def test_an_emptied_index_stays_what_it_is(model: Path, tmp_path: Path):
    folder = tmp_path / "idx"
    list(
        index_file(
            write_documents(tmp_path / "a.jsonl"), folder, model=model, pooling="cls", device="cpu"
        )
    )
    index = Index(folder, device="cpu")
    index.delete(list("abcde"))
    index.compact()
    list(index_file(tmp_path / "a.jsonl", folder, device="cpu"))
    found = Index(folder, device="cpu").manifest
    assert found.model == str(model.resolve())
    assert found.fingerprint["pooling"] == "cls"


def test_a_file_without_ids_is_read_again_into_an_emptied_index(model: Path, tmp_path: Path):
    (tmp_path / "d.txt").write_text("\n".join(TEXTS) + "\n")
    list(index_file(tmp_path / "d.txt", tmp_path / "idx", model=model, device="cpu"))
    index = Index(tmp_path / "idx", device="cpu")
    assert index.delete([str(n) for n in range(1, 6)]) == 5
    index.compact()
    list(index_file(tmp_path / "d.txt", tmp_path / "idx", device="cpu"))
    assert set(ids(Index(tmp_path / "idx", device="cpu"))) == {"6", "7", "8", "9", "10"}


def test_a_ranking_that_is_none_is_refused(index: Index):
    with pytest.raises(UsageError, match="the ranking 'foo'"):
        index.search("dogs", ranking="foo")


def test_fields_that_json_cannot_say_are_refused(index: Index):
    with pytest.raises(UsageError, match="JSON"):
        index.add(["a text"], fields=[{"n": float("nan")}])
    with pytest.raises(UsageError, match="JSON"):
        index.add(["a text"], fields=[3])


def test_a_stopped_file_goes_on(model: Path, tmp_path: Path, small: None):
    documents, folder = tmp_path / "d.jsonl", tmp_path / "idx"
    rest = write_documents(documents).read_text()
    documents.write_text('{"id": "y", "text": ""}\n' + rest + '{"id": "z", "text": " "}\n')
    stopped = index_file(documents, folder, model=model, device="cpu")
    assert any(event.fields.get("amount") == 4 for event in stopped)
    stopped.close()
    assert len(Index(folder)) == 3
    events = list(index_file(documents, folder, model=model, device="cpu"))
    assert [event.fields["resumed_row"] for event in events if "resumed_row" in event.fields] == [4]
    assert [event.fields["empty"] for event in events if "empty" in event.fields] == [2]
    assert set(ids(Index(folder, device="cpu"))) == set("abcde")


def test_processes_leave_off_where_one_process_goes_on(model: Path, tmp_path: Path, small: None):
    texts = [TEXTS[0], " ", *TEXTS[1:]]
    rows = [json.dumps({"text": text}) + "\n" for text in texts]
    documents, folder = tmp_path / "d.jsonl", tmp_path / "idx"
    documents.write_text("".join(rows))
    bulk = Bulk(on="local", workers=1)
    stopped = index_file(documents, folder, model=model, device="cpu", bulk=bulk)
    assert any(len(Index(folder)) == 1 for _ in stopped)  # after the first portion
    stopped.close()
    list(index_file(documents, folder, model=model, device="cpu"))
    hits = Index(folder, device="cpu").search(TEXTS[0], 9)
    assert sorted(hit["text"] for hit in hits) == sorted(TEXTS)


def test_bad_rows_leave_nothing_half_done(model: Path, tmp_path: Path):
    (tmp_path / "d.csv").write_text("id,text\n1,good film\n,sad dogs\n")
    with pytest.raises(BertworksError, match=r"d\.csv:3: the row has no 'id'"):
        list(index_file(tmp_path / "d.csv", tmp_path / "idx", model=model, device="cpu"))
    *_, last = index_file(
        write_documents(tmp_path / "d.jsonl"),
        tmp_path / "idx",
        model=model,
        pooling="cls",
        device="cpu",
    )
    assert last.fields["documents"] == 5


def test_the_verbs(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    documents, folder = write_documents(tmp_path / "d.jsonl"), str(tmp_path / "idx")
    assert main(["index", str(documents), "--model", str(model), "-o", folder]) == 0
    assert main(["index", "-o", folder, "--delete", "c", "--delete", "z", "--compact"]) == 0
    captured = capsys.readouterr()
    assert captured.out == f"{folder}: 5 rows of {documents}; 5 documents\n"
    assert "deleted 1 of 2" in captured.err
    assert main(["search", folder, "sad dogs", "-k", "2", "--json"]) == 0
    hits = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(hits) == 2
    assert hits[0]["id"] == "b"
    assert main(["search", folder, "sad dogs", "-k", "1", "--ranking", "bm25"]) == 0
    assert capsys.readouterr().out.endswith("  b  sad dogs\n")
    assert main(["search", folder, "zebras", "--ranking", "bm25"]) == 0
    assert capsys.readouterr() == ("", "nothing found\n")
    assert main(["index", "-o", folder, "--delete", "d", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"deleted": 1}
    assert main(["index", "-o", folder]) == 2


# --- a second model


def write_pair_model(model: Path, folder: Path, description: TaskConfig) -> Path:
    config, state, tokenizer = load_model(model)
    torch.manual_seed(1)
    network = TaskModel(config, task_of(description).head())
    ours = {name: state.get(name, value) for name, value in network.state_dict().items()}
    save_model(folder, ours, config, tokenizer, card="", head=task_settings(description))
    return folder


@pytest.mark.parametrize(
    ("task", "labels"), [("regression", ()), ("classification", ("no", "yes"))]
)
def test_a_second_model_orders_anew(
    task: str, labels: tuple[str, ...], index: Index, model: Path, tmp_path: Path
):
    pair_model = write_pair_model(model, tmp_path / "pairs", TaskConfig(task=task, labels=labels))
    hits = index.search("sad dogs", 4, rerank=pair_model)
    answers = bertworks.Predictor(pair_model, device="cpu").predict(
        [("sad dogs", text) for text in TEXTS], probabilities=task == "classification"
    )
    scores = [answer["value"] if not labels else answer["scores"]["yes"] for answer in answers]
    order = np.argsort(-np.array(scores))[:4]
    assert [hit["id"] for hit in hits] == ["abcde"[n] for n in order]
    assert [hit["score"] for hit in hits] == pytest.approx([scores[n] for n in order], abs=1e-5)


def test_a_second_model_of_another_kind(model: Path, tmp_path: Path):
    three = TaskConfig(task="classification", labels=("a", "b", "c"))
    with pytest.raises(UsageError, match="3 labels"):
        Reranker(write_pair_model(model, tmp_path / "three", three))
    with pytest.raises(BertworksError):
        Reranker(model)


def test_queries_and_documents_have_prompts_of_their_own(model: Path, tmp_path: Path):
    Embedder(model, device="cpu").save(tmp_path / "own")
    path = tmp_path / "own/config_sentence_transformers.json"
    path.write_text(
        json.dumps(
            json.loads(path.read_text()) | {"prompts": {"query": "sad ", "document": "good "}}
        )
    )
    index = Index.create(tmp_path / "idx", tmp_path / "own", device="cpu")
    index.add(TEXTS, ids=list("abcde"))
    plain = Embedder(model, device="cpu")
    query, *documents = normalized(plain.embed(["sad dogs", *(f"good {text}" for text in TEXTS)]))
    found = {hit["id"]: hit["score"] for hit in index.search("dogs", ranking="dense")}
    assert [found[name] for name in "abcde"] == pytest.approx(
        [float(query @ one) for one in documents], abs=1e-6
    )


def test_a_file_whose_documents_were_deleted_is_read_again(model: Path, tmp_path: Path):
    rows = [{"id": name, "text": text} for name, text in zip("abcde", TEXTS, strict=True)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def add() -> str:
        *_, last = index_file(tmp_path / "a.jsonl", tmp_path / "idx", model=model, device="cpu")
        return last.text

    add()
    assert "already" in add()
    Index(tmp_path / "idx", device="cpu").delete(["a"])
    assert "already" not in add()
    assert len(Index(tmp_path / "idx", device="cpu")) == 5


def test_approximate_search_after_the_nearest_were_deleted(model: Path, tmp_path: Path):
    pytest.importorskip("faiss", reason="faiss, an extra, is not installed")
    draw = random.Random(0)
    index = Index.create(tmp_path / "idx", model, device="cpu")
    index.add([sentence(draw) for _ in range(200)])
    index.build_graph()
    index.delete([hit["id"] for hit in index.search("good men", 150, ranking="dense")])
    exact = index.search("good men", 5, ranking="dense")
    found = index.search("good men", 5, ranking="dense", approximate=True)
    assert [hit["id"] for hit in found] == [hit["id"] for hit in exact]


STRANGE_NAMES = [
    "s3://bucket/model",
    "gs://bucket/model",
    "hf://datasets/a/b",
    "memory://b/model",
    "S3://bucket/model",
    "s3:/bucket/model",
    "https://example.com/model",
    "file:///etc",
    "owner/name",
    "bert-base-uncased",
]


@pytest.mark.parametrize("name", STRANGE_NAMES)
@pytest.mark.parametrize("is_empty", [True, False])
def test_the_model_that_a_strangers_index_names_is_not_fetched(
    name: str, is_empty: bool, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError(f"a request: {arguments}")

    index = Index.create(tmp_path / "idx", model, device="cpu")
    if not is_empty:
        index.add(TEXTS)
    content = json.loads((index.folder / MANIFEST).read_text())
    content = {key: value for key, value in content.items() if key != "sha256"} | {"model": name}
    (index.folder / MANIFEST).write_text(json.dumps(content | {"sha256": json_sha256(content)}))
    (tmp_path / "d.txt").write_text("good\n")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("fsspec.filesystem", refuse)
    monkeypatch.setattr("socket.getaddrinfo", refuse)
    monkeypatch.setattr("socket.socket.connect", refuse)
    calls = [
        lambda: Index(index.folder, device="cpu").search("a"),
        lambda: Index(index.folder, device="cpu").add(["a"]),
        lambda: list(index_file(tmp_path / "d.txt", index.folder, device="cpu")),
        lambda: list(
            index_file(tmp_path / "d.txt", index.folder, device="cpu", bulk=Bulk(workers=2))
        ),
        lambda: Abilities(
            write_head(
                tmp_path / "head", task="classification", labels=("a", "b"), text=("a", "b")
            ),
            index=index.folder,
            device="cpu",
        ),
    ]
    if is_empty:
        calls.append(
            lambda: list(index_file(tmp_path / "d.txt", index.folder, pooling="cls", device="cpu"))
        )
    for call in calls:
        with pytest.raises(BertworksError, match="a name in a file is not downloaded") as raised:
            call()
        identity = "google-bert/bert-base-uncased" if name == "bert-base-uncased" else name
        assert raised.value.where == identity
        assert raised.value.hint == (
            f"if you trust it, name it: bertworks search {index.folder} QUERY --model {identity}"
        )
    # the command of the message
    hits = Index(index.folder, model=model, device="cpu").search("sad dogs")
    assert len(hits) == (0 if is_empty else len(TEXTS))


def test_words_of_documents_that_do_not_exist(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = Index.create(tmp_path / "index", model, device="cpu")
    index.add(["a film"], ["1"])

    def damaged(*_: object) -> None:
        raise IndexError

    monkeypatch.setattr("bertworks.retrieval.index.bm25", damaged)
    with refusal("words are in documents that do not exist", "make it again"):
        index.search("film", 1, ranking="bm25")
