"""The largest requests of one client, answered and abandoned, beside small ones of another client:
every endpoint."""

import asyncio
import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest

from bertworks.datasets.schema import Item
from bertworks.inference.explain import UnwantedError
from bertworks.retrieval.index import Index
from bertworks.serve import pipeline
from bertworks.serve.batching import Limits
from bertworks.serve.endpoints import RERANKED_AT_ONCE, AnswerParts, FinetunedEndpoints
from bertworks.serve.openapi import ENDPOINTS, parse as openapi_parse, paths_of
from bertworks.serve.pipeline import Pipeline
from tests.scenarios.test_admission import Client, until
from tests.support.fine import write_model, write_translator
from tests.support.heavy_requests import HEAVY, SMALL, letters, small
from tests.support.served import Local, write_head

LIMITS = Limits(
    body_bytes=60_000, tokens=6_000, texts=100, answer_bytes=400_000, explained_tokens=60
)
HEADS: dict[str, dict[str, Any]] = {
    "classification": {
        "task": "classification",
        "labels": tuple(f"label {n}" for n in range(40)),
        "text": ("text",),
    },
    "pairs": {"task": "classification", "labels": ("no", "yes"), "text": ("query", "text")},
    "tagging": {"task": "tagging", "labels": ("O", "B-person", "I-person")},
    "speech": {"task": "tagging", "labels": ("noun", "verb")},
    "qa": {"task": "qa"},
    "choice": {"task": "choice", "num_choices": 3},
}
KINDS = ("words", "translation", *HEADS)


SLOW = "translation", "words"  # of which an answer of the largest size takes long


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Local]]:
    """A server of each kind of model; those of words and of pairs have an index, the second
    reranks."""
    folder = tmp_path_factory.mktemp("models")
    models = {"words": write_model(folder / "words")}
    models["translation"] = write_translator(folder / "translation")
    models |= {name: write_head(folder / name, **head) for name, head in HEADS.items()}
    index = Index.create(folder / "index", models["words"], device="cpu", language="english")
    index.add([f"{'a b c film story men ' * 40}{n}" for n in range(120)])
    indexes = {"words": index.folder, "pairs": index.folder}
    servers = {
        name: Local(model, index=indexes.get(name), limits=LIMITS) for name, model in models.items()
    }
    yield servers
    for local in servers.values():
        local.application.close()


def test_every_route_has_its_heavy_and_its_small_request(servers: dict[str, Local]):
    assert HEAVY.keys() == SMALL.keys() == ENDPOINTS.keys()
    offered = set[str]()
    for local in servers.values():
        assert set(local.application._post) == {
            path for name in ENDPOINTS for path in paths_of(name)
        }
        offered |= set(local.abilities.info["abilities"])
    assert offered == ENDPOINTS.keys()


@pytest.mark.parametrize("kind", KINDS)
def test_abandoned_requests_leave_nothing_behind(kind: str, servers: dict[str, Local]):
    """One client abandons its largest requests of each route while another one sends small ones to
    each: all of those are answered, and nothing of the others is waiting in the end."""
    local = servers[kind]
    app = local.application.pipeline
    info = local.abilities.info
    bodies = {
        name: [json.dumps(body).encode() for body in HEAVY[name](info, LIMITS).values()]
        for name in info["abilities"]
    }

    async def go() -> None:
        for name in info["abilities"]:
            for path in paths_of(name):
                heavy = [Client(local, body).give().start(path) for body in bodies[name] * 2]
                await asyncio.sleep(0.01)
                for client in heavy:
                    client.close()
                content = {
                    ability: json.dumps(small(ability, info)).encode()
                    for ability in info["abilities"]
                }
                small_clients = [
                    Client(local, content[ability], address="10.0.0.2")
                    .give()
                    .start(paths_of(ability)[0])
                    for ability in info["abilities"]
                ]
                assert [await client.status() for client in small_clients] == [200] * len(
                    small_clients
                ), path
                refusal = 400 if path.startswith("/v1/") else 413  # as OpenAI
                assert {await client.status() for client in heavy} <= {200, refusal, 429, 499}
        batchers = [*app.batchers.values(), *app.lanes.values(), app.steps, app.answers]
        await until(
            lambda: not any(batcher.costs or batcher.loads or batcher.busy for batcher in batchers)
        )
        assert not app.admission.places
        assert app.admission._free == LIMITS.total_bytes
        assert not app.room.places

    asyncio.run(go())


@pytest.mark.parametrize("kind", KINDS)
def test_the_speed_of_each_kind_of_network_is_measured(kind: str, servers: dict[str, Local]):
    application = servers[kind].application
    network = application.pipeline.batchers["network"]
    network.speed = math.inf
    application.pipeline.measure_speed()
    assert 0 < network.speed < math.inf
    assert not network.costs


# --- answers are work

MANY_MASKS = {"inputs": ["a [MASK] film " + "men " * 40] * 60, "top_k": 10}


def test_an_answer_is_not_made_to_its_end_for_a_client_that_has_gone(
    servers: dict[str, Local], monkeypatch: pytest.MonkeyPatch
):
    local = servers["words"]
    make_part = pipeline._made
    go_on = threading.Event()
    calls: list[Any] = []

    def wait_and_make(make: Callable[[], Any]) -> bytes:
        calls.append(make)
        assert go_on.wait(20)
        return make_part(make)

    monkeypatch.setattr(pipeline, "_made", wait_and_make)

    async def go() -> None:
        answers = local.application.pipeline.answers
        heavy = Client(local, json.dumps(MANY_MASKS).encode()).give().start("/fill")
        await until(lambda: calls)
        parts = answers.costs.total()
        assert parts > 200_000
        heavy.close()
        assert await heavy.status() == 499
        assert answers.costs.total() < parts / 2  # what no thread has begun is not waiting any more
        go_on.set()
        assert (
            await Client(local, b'{"ids": [1, 2]}', address="10.0.0.2")
            .give()
            .start("/decode")
            .status()
            == 200
        )
        await until(lambda: not answers.costs and not answers.busy)
        assert len(calls) < 40

    asyncio.run(go())


def test_making_answers_takes_turns_between_clients(
    servers: dict[str, Local], monkeypatch: pytest.MonkeyPatch
):
    local = servers["words"]
    make_part = pipeline._made
    calls: list[str] = []

    def make_slowly(make: Callable[[], Any]) -> bytes:
        time.sleep(0.002)
        calls.append("part")
        return make_part(make)

    monkeypatch.setattr(pipeline, "_made", make_slowly)

    async def go() -> None:
        heavy = [
            Client(local, json.dumps(MANY_MASKS).encode()).give().start("/fill") for _ in range(3)
        ]
        await until(lambda: calls)
        small_client = Client(local, b'{"ids": [1, 2]}', address="10.0.0.2").give().start("/decode")
        assert await small_client.status() == 200
        assert not all(client.task.done() for client in heavy)
        assert [await client.status() for client in heavy] == [200] * 3

    asyncio.run(go())


def test_an_answer_that_nobody_reads_keeps_no_room(
    servers: dict[str, Local], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(pipeline, "SEND_SECONDS", 0.05)
    local = servers["words"]

    async def go() -> None:
        aborted = list[bool]()
        client = Client(local, json.dumps(MANY_MASKS).encode()).give()
        client.extensions["abort"] = lambda: aborted.append(True)

        async def send(message: dict[str, Any]) -> None:
            client.sent.append(message)
            if len(client.sent) > 2:  # the buffers are full
                await asyncio.Event().wait()

        client.send = send  # type: ignore[method-assign]
        client.start("/fill")
        await until(lambda: len(client.sent) > 2)
        assert local.application.pipeline.room.places
        await asyncio.wait_for(client.task, 20)
        assert aborted == [True]
        assert not local.application.pipeline.room.places

    asyncio.run(go())


def test_an_explanation_ends_when_nobody_waits_for_it(
    servers: dict[str, Local], monkeypatch: pytest.MonkeyPatch
):
    local = servers["classification"]
    errors: list[Exception] = []
    has_begun = threading.Event()
    explanation = local.abilities._explanation

    def watched(request: Any, is_wanted: Callable[[], bool]) -> Any:
        has_begun.set()
        while is_wanted():
            time.sleep(0.001)
        try:
            return explanation(request, is_wanted)
        except UnwantedError as error:
            errors.append(error)
            raise

    monkeypatch.setattr(local.abilities, "_explanation", watched)

    async def go() -> None:
        client = Client(local, b'{"inputs": "a good film"}').give().start("/explain")
        await until(has_begun.is_set)
        client.close()
        assert await client.status() == 499
        await until(lambda: errors)

    asyncio.run(go())


# --- texts that were cut


def test_answers_say_how_many_texts_were_cut_and_how_much(servers: dict[str, Local]):
    """Of 64 positions, 62 are for tokens of the text."""
    long_text = letters(100)
    short_text = letters(5)
    expected = {"x-truncated-texts": "2", "x-truncated-tokens": str(38 + 48)}
    words = servers["words"]
    pairs = servers["pairs"]
    inputs = [long_text, short_text, letters(110)]
    answers = [
        words.post("/embed", {"inputs": inputs}),
        words.post(
            "/similarity", {"inputs": {"source_sentence": long_text, "sentences": inputs[1:]}}
        ),
        words.post("/v1/embeddings", {"input": inputs}),
        servers["classification"].post("/predict", {"inputs": [[text] for text in inputs]}),
    ]
    for answer in answers:
        assert {name: answer.headers[name] for name in expected} == expected
    usage = answers[2].json()["usage"]
    assert (usage["truncated_texts"], usage["truncated_tokens"]) == (2, 38 + 48)
    assert usage["prompt_tokens"] == 64 + 7 + 64
    whole_answer = words.post("/embed", {"inputs": short_text})
    assert (
        whole_answer.headers["x-truncated-texts"],
        whole_answer.headers["x-truncated-tokens"],
    ) == ("0", "0")
    # Of a pair 61 tokens are read.
    ranking_answer = pairs.post(
        "/rerank", {"query": letters(5), "texts": [letters(60), short_text]}
    )
    assert (
        ranking_answer.headers["x-truncated-texts"],
        ranking_answer.headers["x-truncated-tokens"],
    ) == ("1", "4")
    for ranking, count in (("dense", "1"), ("hybrid", "1"), ("bm25", None)):
        search_answer = words.post("/search", {"query": long_text, "ranking": ranking, "k": 1})
        assert search_answer.headers.get("x-truncated-texts") == count
    search_answer = pairs.post("/search", {"query": short_text, "k": 50, "rerank": True})
    # the documents have more than 61 tokens
    assert search_answer.headers["x-truncated-texts"] == "50"
    # read in windows
    assert "x-truncated-texts" not in words.post("/fill", {"inputs": f"[MASK] {long_text}"}).headers


def test_a_query_may_not_be_as_long_as_a_body(servers: dict[str, Local]):
    longest_query, too_long_query = (
        {"query": "a" * n, "k": 1} for n in (LIMITS.query_characters, LIMITS.query_characters + 1)
    )
    assert servers["words"].post("/search", longest_query).status_code == 200
    refusal = servers["words"].post("/search", too_long_query)
    assert refusal.status_code == 413
    assert "2,001 characters: expected 2,000 at most" in refusal.json()["error"]


def test_a_search_is_computed_on_its_own_and_costs_its_words_and_tokens(
    servers: dict[str, Local], monkeypatch: pytest.MonkeyPatch
):
    """A query of few different words that a vector reads whole is not cheap, and a small search
    does not wait for several of them."""
    batches = list[tuple[int, int]]()
    local = servers["words"]
    batcher = local.application.pipeline.batchers["search"]
    monkeypatch.setattr(
        batcher, "_observe", lambda units, cost, seconds: batches.append((units, cost))
    )
    query = letters(50)  # 10 different words
    bodies = [
        {"query": query, "ranking": ranking, "k": 1} for ranking in ("dense", "hybrid", "bm25") * 4
    ]
    answers = local.all([("POST", "/search", {"json": body}) for body in bodies])
    assert {answer.status_code for answer in answers} == {200}
    assert [units for units, _ in batches] == [1] * len(bodies)
    lexical = min(cost for _, cost in batches)
    assert lexical <= 8 + 10
    num_tokens = local.abilities._index.query_tokens(query)[0]
    assert num_tokens == 52  # 50 words, and two special tokens
    assert sorted(cost for _, cost in batches) == [lexical] * 4 + [lexical + num_tokens] * 8


def test_documents_are_read_for_a_reranker_in_turns(
    servers: dict[str, Local], monkeypatch: pytest.MonkeyPatch
):
    """So an abandoned search ends between them, and others do not wait for all of them."""
    local = servers["pairs"]
    count = 0
    counts = [0]  # documents that were read after each turn
    features_of = FinetunedEndpoints._features_of

    def counted(endpoints: FinetunedEndpoints, item: Item, **options: Any) -> Any:
        nonlocal count
        count += 1
        return features_of(endpoints, item, **options)

    monkeypatch.setattr(FinetunedEndpoints, "_features_of", counted)
    monkeypatch.setattr(
        local.application.pipeline.steps,
        "_observe",
        lambda units, cost, seconds: counts.append(count),
    )
    answer = local.post("/search", {"query": "film", "k": 50, "rerank": True})
    assert answer.status_code == 200
    assert count == 50
    assert max(after - before for before, after in pairwise(counts)) == RERANKED_AT_ONCE


def test_too_many_ids_are_refused_before_they_are_read(
    servers: dict[str, Local], monkeypatch: pytest.MonkeyPatch
):
    """As numbers of Python they take many times the memory of the body."""
    parsed_bodies = list[memoryview]()

    def parse(body: memoryview) -> Any:
        parsed_bodies.append(body)
        return openapi_parse(body)

    monkeypatch.setattr(pipeline, "parse", parse)
    for count, status in ((LIMITS.tokens, 200), (2 * LIMITS.tokens, 413)):
        assert (
            servers["words"].post("/decode", {"ids": [[1] * (count // 2)] * 2}).status_code
            == status
        )
    assert len(parsed_bodies) == 1


@pytest.mark.parametrize(
    "kind",
    [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in KINDS],
)
def test_no_answer_is_larger_than_it_may_be(
    kind: str, servers: dict[str, Local], monkeypatch: pytest.MonkeyPatch
):
    """What is made of the largest requests is within its own estimate, and within the limit of the
    server."""
    local = servers[kind]
    joined = Pipeline._joined
    makings: list[int] = []

    def checked(served: Pipeline, parts: AnswerParts, pieces: Sequence[bytes]) -> Any:
        assert len(pieces) == len(parts.parts)
        for piece, part in zip(pieces, parts.parts, strict=True):
            assert len(piece) <= part.size
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
