"""Who may ask a server: tokens, hosts and pages of others."""

from pathlib import Path

import pytest

from tests.serve.test_endpoints import models as models, words as words
from tests.support.served import Local


def test_a_server_with_a_token_asks_for_it(models: dict[str, Path]):
    with Local(models["words"], token="sesame-öffne") as local:
        for path in ("/", "/page.js", "/page.css", "/health"):
            assert local.send("GET", path).status_code == 200
        for given in (
            {},
            {"authorization": "Bearer x"},
            {"authorization": "sesame"},
            {"authorization": b"Bearer \xff"},
        ):
            answer = local.send("GET", "/info", headers=given)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
            assert local.send("GET", "/metrics", headers=given).status_code == 401
        right = {"authorization": "Bearer sesame-öffne".encode(), "host": "anything.example"}
        assert local.send("GET", "/info", headers=right).status_code == 200
        assert local.send("GET", "/openapi.json", headers=right).json()["components"][
            "securitySchemes"
        ]


def test_pages_of_others_may_not_ask(words: Local):
    for headers in (
        {"host": "evil.example"},
        {"host": "127.0.0.1.evil.example:8080"},
        {"host": "["},
        {"host": ""},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999"},
        {"origin": "http://["},
        {"origin": "127.0.0.1:8080"},
    ):
        assert words.send("GET", "/info", headers=headers).status_code == 403, headers
    for headers in (
        {"host": "localhost:8080"},
        {"host": "[::1]:8080"},
        {"origin": "http://127.0.0.1:8080"},
    ):
        assert words.send("GET", "/info", headers=headers).status_code == 200, headers


def test_who_is_let_in(model: Path, monkeypatch: pytest.MonkeyPatch):
    def status(**headers: str) -> int:
        return local.send("GET", "/info", headers=headers).status_code

    with Local(model) as local:
        assert status(x="x" * 16_000) == 200
        assert status(x="x" * 17_000) == 431
        monkeypatch.setattr(local.application._access, "_stopping", lambda: True)
        assert status() == 503
    with Local(model, token="sesame") as local:
        assert status() == 401
        assert status(authorization="Basic sesame") == 401
        assert status(authorization="bearer sesame") == 200
