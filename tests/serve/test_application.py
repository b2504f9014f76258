"""Paths, bodies and errors of a server."""

from collections.abc import AsyncIterator

from tests.serve.test_endpoints import JSON, TEXTS, models as models, words as words
from tests.support.served import Local


def test_errors_say_where(words: Local):
    assert "inputs[1]" in words.post("/embed", {"inputs": ["a", 1]}).json()["error"]
    assert "top_k" in words.post("/fill", {"inputs": "[MASK]", "top_k": 101}).json()["error"]
    error = words.post("/search", {"query": "a", "ranking": "best"}).json()["error"]
    assert (
        """ranking: Invalid enum value 'best': expected one of "hybrid", "dense", "bm25\""""
        in error
    )
    body = {
        "inputs": {"source_sentence": "a", "sentences": ["b"]},
        "parameters": {"truncation_direction": "Both"},
    }
    assert 'expected one of "Left", "Right"' in words.post("/similarity", body).json()["error"]
    assert "[MASK]" in words.post("/fill", {"inputs": "a"}).json()["error"]
    assert "message" in words.post("/v1/embeddings", {"input": [], "model": "a"}).json()["error"]
    for ids in ([1, 2], [[1, 2], [3]]):
        answer = words.post("/v1/embeddings", {"input": ids, "model": "a"})
        assert "no ids of tokens" in answer.json()["error"]["message"]
        assert answer.status_code == 400


def test_other_paths_methods_and_types(words: Local):
    assert words.send("GET", "/embed").status_code == 405
    assert words.send("GET", "/etc/passwd").status_code == 404
    assert words.send("GET", "/..%2f..%2fetc/passwd").status_code == 404
    plain = {"content-type": "text/plain"}
    assert (
        words.send("POST", "/embed", content=b'{"inputs": "a"}', headers=plain).status_code == 415
    )


def test_a_body_that_does_not_say_how_long_it_is(words: Local):
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b" " * 10_000

    assert words.send("POST", "/embed", content=parts(), headers=JSON).status_code == 413


def test_every_answer_keeps_browsers_strict(words: Local):
    for path in ("/", "/info", "/nowhere"):
        headers = words.send("GET", path).headers
        assert headers["content-security-policy"].startswith(
            "default-src 'none'; script-src 'self';"
        )
        assert (headers["x-content-type-options"], headers["referrer-policy"]) == (
            "nosniff",
            "no-referrer",
        )
    assert "text/html" in words.send("GET", "/").headers["content-type"]
    assert "text/javascript" in words.send("GET", "/page.js").headers["content-type"]


def test_figures_for_prometheus(words: Local):
    words.post("/embed", {"inputs": TEXTS})
    words.send("GET", "/nowhere/with/ever/other/names")
    text = words.send("GET", "/metrics").text
    for name in (
        "te_request_count",
        "te_request_duration_bucket",
        "te_batch_next_tokens_sum",
        "te_queue_network",
    ):
        assert name in text
    assert 'method="other"' in text
    assert "nowhere" not in text
