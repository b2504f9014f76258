"""The files of an index: segments, deleted rows, and a manifest that names both."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bertworks.errors import BertworksError, UsageError
from bertworks.retrieval.store import (
    GRAPH,
    MANIFEST,
    Documents,
    Manifest,
    create_index,
    read_manifest,
    refuse_documents,
    write_manifest,
)
from tests.support.refusals import refusal

TEXTS = ["a good film", "sad dogs", "music of the night"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of an index of two segments, with two and one documents."""
    create_index(tmp_path / "index", Manifest(model="m", fingerprint={}, dimension=2))
    documents = Documents(tmp_path / "index")
    rows = [{"id": str(n), "text": text, "fields": {"n": n}} for n, text in enumerate(TEXTS)]
    vectors = np.eye(3, 2, dtype=np.float32)
    with documents.changing():
        for part in (slice(0, 2), slice(2, 3)):
            documents.commit(documents.with_segment(documents.manifest, rows[part], vectors[part]))
    return tmp_path / "index"


def test_documents_come_back(folder: Path) -> None:
    documents = Documents(folder)
    assert len(documents) == 3
    places = [documents.segment_of(number) for number in range(3)]
    rows = [segment.row(row) for segment, row in places]
    assert [row["text"] for row in rows] == TEXTS
    vectors = np.stack([segment.vectors[row] for segment, row in places])
    assert vectors.tolist() == np.eye(3, 2).tolist()
    documents.verify()


def test_deleted_rows_are_not_alive(folder: Path) -> None:
    documents = Documents(folder)
    with documents.changing():
        documents.commit(documents.without(["1"]))
    assert Documents(folder).alive.tolist() == [True, False, True]
    assert documents.without(["no such id"]) == documents.manifest


def test_a_manifest_is_read_as_it_was_written(folder: Path) -> None:
    manifest = read_manifest(folder)
    assert list(manifest.segments) == ["segment-000001", "segment-000002"]
    assert manifest.sha256 == read_manifest(folder).sha256
    assert replace(manifest, next_row=9).sha256 != manifest.sha256
    content = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps(content | {"next_row": 7}))
    with pytest.raises(BertworksError, match="manifest of the index is damaged"):
        read_manifest(folder)


def test_files_that_no_manifest_names_are_deleted(folder: Path) -> None:
    (folder / "segment-000009.jsonl").write_text("{}")
    documents = Documents(folder)
    with documents.changing():
        pass
    assert not (folder / "segment-000009.jsonl").exists()
    assert (folder / "segment-000001.jsonl").exists()


def test_an_index_is_made_in_an_empty_folder_or_over_one_without_documents(
    folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="there is an index already"):
        refuse_documents(folder)
    create_index(tmp_path / "b", Manifest(model="m", fingerprint={}, dimension=2, next_row=5))
    assert refuse_documents(tmp_path / "b") == {"next_segment": 1, "next_row": 5}
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "a.txt").write_text("")
    with pytest.raises(UsageError, match=r"not empty: a\.txt"):
        refuse_documents(tmp_path / "c")


def test_damaged_files_are_refused_with_what_to_do(folder: Path) -> None:
    advice = "make the index again: delete its folder and repeat the `bertworks index` command"
    documents = Documents(folder)
    (path,) = folder.glob("segment-000001.jsonl")
    segment, row = documents.segment_of(0)
    offsets = segment.offsets[:].copy()
    segment = segment._replace(offsets=offsets)
    offsets[1] -= 5
    with refusal("row 0 is damaged", advice):
        segment.row(row)
    path.write_bytes(path.read_bytes()[::-1])
    with pytest.raises(BertworksError, match="sha256") as error:
        documents.verify()
    assert error.value.hint == advice


def test_a_segment_of_other_vectors_is_refused(folder: Path) -> None:
    write_manifest(folder, replace(read_manifest(folder), dimension=3))
    with refusal("this is not a segment of an index", "delete its folder and repeat"):
        Documents(folder)


def test_a_graph_of_other_documents_is_refused(folder: Path) -> None:
    faiss = pytest.importorskip("faiss")
    Documents(folder).write_graph()
    faiss.write_index(faiss.IndexHNSWFlat(3, 4), str(folder / GRAPH))
    write_manifest(folder, read_manifest(folder).with_sums(folder, [GRAPH]))
    advice = f"make it again: bertworks index -o {folder} --approximate"
    with refusal("this graph does not belong to these documents", advice):
        Documents(folder).nearest(np.eye(1, 2, dtype=np.float32), 1)
