"""Situations that people reported in public, and that no other test holds together."""

import base64
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertworks.cli.main import main
from bertworks.inference.embedder import Embedder
from tests.support.fine import read_data
from tests.support.served import Local


@pytest.mark.parametrize("given", [[[7592, 2088]], [7592, 2088], [[7592], [2088]]])
def test_ids_of_another_tokenizer_are_no_text_for_the_server(model: Path, given: list[Any]) -> None:
    """LangChain sends the ids of OpenAI's tokenizer unless it is told otherwise
    (text-embeddings-inference#273)."""
    with Local(model) as local:
        answer = local.post("/v1/embeddings", {"model": "any", "input": given})
        assert answer.status_code == 400
        message = answer.json()["error"]["message"]
        assert "no ids of tokens" in message
        assert "check_embedding_ctx_length=False" in message
        ours = local.post("/v1/embeddings", {"model": "any", "input": ["a film"]})
        assert ours.status_code == 200


def test_a_refusal_names_what_is_wrong_with_a_text(model: Path) -> None:
    """An empty text is no id of a token, and a model without prompts expects no null."""
    with Local(model) as local:
        for path, field, status in (("/v1/embeddings", "input", 400), ("/embed", "inputs", 422)):
            answer = local.post(path, {field: ["a film", ""]})
            assert answer.status_code == status
            assert f"{field}[1]: the text is empty" in answer.text
            assert "leave empty texts out" in answer.text
            assert "ids of tokens" not in answer.text
        answer = local.post("/embed", {"inputs": ["a film"], "prompt_name": "query"})
        assert answer.status_code == 422
        assert "prompt_name: this model has no prompts" in answer.text
        assert "null" not in answer.text


def test_an_unknown_prompt_is_refused_in_the_words_of_tei(model: Path, tmp_path: Path) -> None:
    """tei-client reads the names of the prompts from this message."""
    Embedder(model, device="cpu").save(tmp_path / "vectors")
    path = tmp_path / "vectors/config_sentence_transformers.json"
    path.write_text(
        json.dumps(
            json.loads(path.read_text()) | {"prompts": {"query": "sad ", "passage": "good "}}
        )
    )
    with Local(tmp_path / "vectors") as local:
        answer = local.post(
            "/tokenize", {"inputs": "hello", "prompt_name": "$NOT_EXISTING_PROMPT_NAME$"}
        )
    assert answer.status_code == 422
    # the expression of tei-client
    names = re.search(r"Available prompts:\s*\[([^\]]*)\]", answer.json()["error"])
    assert names is not None
    assert sorted(names[1].split(", ")) == ['"passage"', '"query"']


def test_base64_is_the_same_numbers(model: Path) -> None:
    with Local(model) as local:
        body = {"model": "any", "input": ["good film", "sad dogs"]}
        plain, packed = (
            local.post("/v1/embeddings", body | more).json()
            for more in ({}, {"encoding_format": "base64"})
        )
    expected = np.array([one["embedding"] for one in plain["data"]], np.float32)
    found = [np.frombuffer(base64.b64decode(one["embedding"]), "<f4") for one in packed["data"]]
    np.testing.assert_array_equal(np.stack(found), expected)
    assert [one["index"] for one in packed["data"]] == [0, 1]


def test_answers_that_are_elsewhere(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Answers at position 0 that are elsewhere, paragraphs without questions, plausible answers
    (SOQAL#8, FARM#241)."""
    paragraphs: list[dict[str, Any]] = []
    for n in range(40):
        context = f"Anna lives in house {n} . Boris lives in Oslo ."
        requested: dict[str, Any] = {
            "id": f"q{n}",
            "question": "where lives Boris ?",
            "is_impossible": False,
        }
        requested["answers"] = [
            {"text": "Oslo", "answer_start": 0 if n % 4 == 1 else context.index("Oslo")}
        ]
        if n % 8 == 0:
            requested |= {
                "answers": [],
                "is_impossible": True,
                "plausible_answers": [{"text": "Anna", "answer_start": 0}],
            }
        paragraphs += [
            {"context": context, "qas": [requested]},
            {"context": "Nothing is asked here .", "qas": []},
        ]
    files = []
    for name, part in (("train", paragraphs[:60]), ("dev", paragraphs[60:])):
        files.append(tmp_path / f"{name}.json")
        files[-1].write_text(
            json.dumps({"version": "v2.0", "data": [{"title": "t", "paragraphs": part}]})
        )
    train, dev = files
    wrong = {f"q{n}" for n in range(30) if n % 4 == 1}
    found = read_data(train, dev=dev)
    assert {item.id for item in found.train} == {f"q{n}" for n in range(30)} - wrong
    assert {item.label for item in found.train if item.id in ("q0", "q8")} == {()}
    assert all(
        item.texts[1][start:].startswith(text) for item in found.train for start, text in item.label
    )
    assert main(["check", str(train), "--dev", str(dev), "--model", str(model)]) == 0
    shown = capsys.readouterr()
    shown = shown.out + shown.err
    assert f"{len(wrong)} answers are not at their position in the context" in shown
    assert "question q1," in shown
    assert "with an answer" in shown
    assert "without an answer" in shown
