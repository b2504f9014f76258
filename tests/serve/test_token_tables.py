"""Ids of tokens in the place of texts: the model's own, those of OpenAI's vocabularies, and what is
refused."""

import base64
import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertworks.errors import BertworksError
from bertworks.serve import token_tables
from bertworks.serve.token_tables import TokenTable, read_table
from bertworks.text.tokenizer import Tokenizer
from tests.support.refusals import refusal
from tests.support.served import Local

TEXTS = ["good film", "a sad dog in Oslo", "the film was good " * 40]
ADDRESS = "https://openaipublic.blob.core.windows.net/encodings/cl100k_base.tiktoken"
# as tiktoken names the file of cl100k_base
CACHED_NAME = "9b5ad71b2ce5302211f9c61530b329a4922fc6a4"


def vectors(answer: Any) -> np.ndarray[Any, Any]:
    assert answer.status_code == 200, answer.text
    content = answer.json()
    return np.array(
        content if isinstance(content, list) else [item["embedding"] for item in content["data"]]
    )


def test_ids_of_the_model_give_the_vectors_of_the_text(model: Path) -> None:
    with Local(model, token_ids="own", precision="fp32") as local:
        for special in (True, False):
            answer = local.post(
                "/tokenize", {"inputs": TEXTS, "add_special_tokens": special}
            ).json()
            lists = [[token["id"] for token in tokens] for tokens in answer]
            for path, field in (("/embed", "inputs"), ("/v1/embeddings", "input")):
                expected = vectors(local.post(path, {field: TEXTS}))
                np.testing.assert_allclose(
                    vectors(local.post(path, {field: lists})), expected, atol=1e-6
                )
                single = vectors(local.post(path, {field: lists[0]}))
                np.testing.assert_allclose(single, expected[:1], atol=1e-6)
        truncated = local.post("/embed", {"inputs": lists, "truncate": False})
        assert truncated.status_code == 413
        assert local.post("/embed", {"inputs": TEXTS, "truncate": False}).json() == truncated.json()


def test_ids_are_checked_against_the_vocabulary(model: Path) -> None:
    count = Tokenizer.load(model).vocab_size
    with Local(model, token_ids="own") as local:
        for path, field, refusal, too_large in (
            ("/embed", "inputs", 422, 413),
            ("/v1/embeddings", "input", 400, 400),
        ):
            assert local.post(path, {field: [count - 1]}).status_code == 200
            for wrong in (
                [5, count],
                [[5], [6, count]],
                [-1],
                [[-1]],
                [1 << 70],
                [5, "a"],
                [],
                [[]],
                [[5], "a"],
                [5.5],
            ):
                answer = local.post(path, {field: wrong})
                assert answer.status_code == refusal, (wrong, answer.text)
            assert (
                f"{field}[1]: Expected `int` <= {count - 1}"
                in local.post(path, {field: [5, count]}).text
            )
            too_many = [[5] * local.abilities.limits.tokens, [5]]
            assert local.post(path, {field: too_many}).status_code == too_large


def test_ids_of_unknown_meaning_are_refused(model: Path) -> None:
    with Local(model) as local:
        answer = local.post("/v1/embeddings", {"input": [[5, 6]]})
        assert answer.status_code == 400
        assert "--token-ids" in answer.text
        assert local.post("/embed", {"inputs": [[5, 6]]}).status_code == 200
        assert local.abilities.info["token_ids"] is None


@pytest.fixture
def byte_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table with a token for each byte, in the place and the format of the table of
    cl100k_base."""
    content = b"".join(
        b"%s %d\n" % (base64.b64encode(bytes([number])), number) for number in range(256)
    )
    assert hashlib.sha1(ADDRESS.encode()).hexdigest() == CACHED_NAME
    path = tmp_path / CACHED_NAME
    path.write_bytes(content)
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setitem(
        token_tables.PUBLISHED_TABLES, "cl100k_base", hashlib.sha256(content).hexdigest()
    )
    return path


def test_ids_of_another_vocabulary_are_the_texts_they_stand_for(
    byte_table: Path, model: Path
) -> None:
    texts = ["good film", "naïve café 日本 👩‍👩‍👧"]
    lists = [list(text.encode()) for text in texts]
    with Local(model, token_ids="cl100k_base") as local:
        assert local.abilities.info["token_ids"] == {"encoding": "cl100k_base", "vocabulary": 256}
        expected = vectors(local.post("/v1/embeddings", {"input": texts}))
        np.testing.assert_array_equal(
            vectors(local.post("/v1/embeddings", {"input": lists})), expected
        )
        np.testing.assert_array_equal(
            vectors(local.post("/v1/embeddings", {"input": lists[0]})), expected[:1]
        )
        assert local.post("/v1/embeddings", {"input": [[1, 256]]}).status_code == 400


def test_pieces_of_a_character_are_joined_within_a_text_only() -> None:
    table = TokenTable([bytes([number]) for number in range(256)])
    euro = list("€".encode())
    assert table.text([*b"a ", *euro]) == "a €"
    assert [table.text(euro[:1]), table.text(euro[1:])] == ["\ufffd", "\ufffd\ufffd"]


def test_tables_that_are_missing_or_changed(byte_table: Path, model: Path) -> None:
    with pytest.raises(
        BertworksError, match="the table of o200k_base is not in the cache"
    ) as error:
        Local(model, token_ids="o200k_base")
    assert "TIKTOKEN_CACHE_DIR" in str(error.value.hint)
    byte_table.write_bytes(byte_table.read_bytes() + b"YQ== 256\n")
    with pytest.raises(BertworksError, match="not the published table of cl100k_base"):
        read_table("cl100k_base")


@pytest.mark.parametrize(
    "content", [b"YQ== 1\n", b"Y 0\n", b"YQ==\n", b"\xff\xfe 0\n", b"YQ== x\n"]
)
def test_what_is_no_table(
    content: bytes, byte_table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    byte_table.write_bytes(content)
    monkeypatch.setitem(
        token_tables.PUBLISHED_TABLES, "cl100k_base", hashlib.sha256(content).hexdigest()
    )
    with pytest.raises(BertworksError, match="this is not a table of tokens"):
        read_table("cl100k_base")


def test_the_published_table() -> None:
    """TIKTOKEN_CACHE_DIR: a folder in which tiktoken has saved cl100k_base."""
    if not (Path(os.environ.get("TIKTOKEN_CACHE_DIR", "/nowhere")) / CACHED_NAME).is_file():
        pytest.skip("TIKTOKEN_CACHE_DIR names no folder with the table of cl100k_base")
    table = read_table("cl100k_base")
    assert len(table.tokens) == 100_256
    assert table.text([15339, 1917]) == "hello world"
    by_bytes = {token: number for number, token in enumerate(table.tokens)}
    assert table.text([by_bytes[bytes([byte])] for byte in "👩".encode()]) == "👩"


def test_a_table_that_nobody_may_read(byte_table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    what = "the table of cl100k_base cannot be read: Permission denied"
    with refusal(what, "TIKTOKEN_CACHE_DIR names the folder"):
        read_table("cl100k_base")


def test_a_table_that_is_too_large(byte_table: Path) -> None:
    os.truncate(byte_table, (1 << 24) + 1)
    with refusal("the table of cl100k_base is too large", "TIKTOKEN_CACHE_DIR names the folder"):
        read_table("cl100k_base")
