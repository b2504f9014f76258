"""Answers before they are made: how large they may become."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from bertworks.serve.openapi import paths_of
from bertworks.serve.pipeline import Pipeline
from bertworks.serve.steps import AnswerParts
from tests.serve.test_pipeline import KINDS, LIMITS, servers as servers
from tests.support.heavy_requests import HEAVY, small
from tests.support.served import Local


@pytest.mark.parametrize("kind", KINDS)
def test_no_answer_is_larger_than_it_may_be(
    kind: str, servers: dict[str, Local], monkeypatch: pytest.MonkeyPatch
):
    """What is made of the largest requests is within its own estimate, and within the limit of the
    server."""
    local = servers[kind]
    joined = Pipeline._joined
    makings: list[int] = []

    def checked(served: Pipeline, parts: AnswerParts, pieces: Sequence[bytes]) -> Any:
        assert len(pieces) == len(parts.sizes)
        for piece, size in zip(pieces, parts.sizes, strict=True):
            assert len(piece) <= size
        makings.append(sum(map(len, pieces)))
        return joined(served, parts, pieces)

    monkeypatch.setattr(Pipeline, "_joined", checked)
    info = local.abilities.info
    for name in info["abilities"]:
        statuses = []
        for what, body in HEAVY[name](info, LIMITS).items():
            content = json.dumps(body).encode()
            assert len(content) <= LIMITS.body_bytes, (name, what)
            answer = local.send(
                "POST",
                paths_of(name)[0],
                content=content,
                headers={"content-type": "application/json"},
            )
            refusal = 400 if name == "embeddings" else 413  # as OpenAI
            assert answer.status_code in (200, refusal), (name, what, answer.text[:200])
            assert len(answer.content) <= LIMITS.answer_bytes, (name, what)
            statuses.append(answer.status_code)
        assert 200 in statuses, name
        assert local.post(paths_of(name)[0], small(name, info)).status_code == 200, name
    assert makings
