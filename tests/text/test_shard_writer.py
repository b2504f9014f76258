"""Parts of a corpus become token ids, and joined parts are the arrays of all documents."""

from pathlib import Path

import numpy as np
import pytest

from bertworks.text.segmentation import split_sentences
from bertworks.text.shard_writer import (
    PartWriter,
    flat_arrays,
    join_parts,
    part_path,
    token_dtype,
)
from bertworks.text.tokenizer import Tokenizer
from tests.text.test_shards import make_documents, make_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.mark.parametrize(("size", "dtype"), [(1 << 16, "<u2"), ((1 << 16) + 1, "<u4")])
def test_the_type_of_ids(size: int, dtype: str) -> None:
    assert token_dtype(size) == np.dtype(dtype)


def test_flat_arrays() -> None:
    ids, lengths = flat_arrays([[1, 2], [], [3]])
    assert (ids.tolist(), lengths.tolist()) == ([1, 2, 3], [2, 0, 1])


def test_joined_parts_are_the_ids_of_all_sentences(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "tokenizer")
    writer = PartWriter(tmp_path / "tokenizer", tmp_path / "parts")
    documents = make_documents(30)
    parts = [documents[:11], documents[11:]]
    sizes = [writer((number, part)) for number, part in enumerate(parts)]
    assert sizes == [sum(map(len, part)) for part in parts]
    (tmp_path / "data").mkdir()
    paths = [part_path(tmp_path / "parts", number) for number in range(2)]
    counts = join_parts(paths, tmp_path / "data")
    sentences = [tokenizer.ids(split_sentences(document)) for document in documents]
    flat = [ids for document in sentences for ids in document]
    tokens = np.fromfile(tmp_path / "data" / "tokens.bin", token_dtype(tokenizer.vocab_size))
    assert tokens.tolist() == [number for ids in flat for number in ids]
    ends = np.load(tmp_path / "data" / "sentences.npy")
    assert np.diff(ends).tolist() == list(map(len, flat))
    assert np.diff(np.load(tmp_path / "data" / "documents.npy")).tolist() == list(
        map(len, sentences)
    )
    assert (counts["documents"], counts["tokens"]) == (30, len(tokens))


def test_a_part_is_written_once(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "tokenizer")
    writer = PartWriter(tmp_path / "tokenizer", tmp_path / "parts")
    documents = make_documents(3)
    writer((0, documents))
    before = part_path(tmp_path / "parts", 0).stat().st_ino
    writer((0, documents))
    assert part_path(tmp_path / "parts", 0).stat().st_ino == before
    writer((0, documents[:2]))
    assert part_path(tmp_path / "parts", 0).stat().st_ino != before
