"""What a server answers: the shapes of Text Embeddings Inference and of OpenAI, beside what the
same models say from Python; and what it refuses, from whom, and that nobody suffers from what
others ask."""

import asyncio
import base64
import hashlib
import json
import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow
import pytest
import torch
from pyarrow import parquet

from bertworks.checkpoints.model_folder import load_model
from bertworks.inference.embedder import Embedder
from bertworks.inference.explain import explain
from bertworks.inference.masked_lm import Filler
from bertworks.inference.predictor import Predictor
from bertworks.retrieval.index import Index, index_file
from bertworks.retrieval.ranking import Reranker
from bertworks.serve.application import Application
from bertworks.serve.batching import InferenceJob, Limits
from bertworks.training.device import THREADS, Precision
from tests.support.fine import storages, write_model
from tests.support.served import Local, ask_until, waiting, write_head

TEXTS = ["good film", "sad dogs in this town", "Anna lives in Oslo .", "😀 the men"]
HEADS: dict[str, dict[str, Any]] = {
    "classification": {"task": "classification", "labels": ("neg", "pos"), "text": ("text",)},
    "pairs": {"task": "classification", "labels": ("no", "yes"), "text": ("query", "text")},
    "multilabel": {"task": "multilabel", "labels": ("person", "place"), "text": ("text",)},
    "regression": {"task": "regression", "text": ("a", "b")},
    "tagging": {"task": "tagging", "labels": ("O", "B-person", "I-person")},
    "speech": {"task": "tagging", "labels": ("noun", "verb")},
    "spans": {"task": "spans", "labels": ("O", "B-person", "I-person")},
    "qa": {"task": "qa"},
    "choice": {"task": "choice", "num_choices": 3},
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {"words": write_model(folder / "words")} | {
        name: write_head(folder / name, **d) for name, d in HEADS.items()
    }


@pytest.fixture(scope="module")
def words(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    """A masked language model, and an index."""
    index = Index.create(tmp_path_factory.mktemp("index") / "idx", models["words"], device="cpu")
    index.add(TEXTS, ids=list("abcd"), fields=[{"n": n} for n in range(4)])
    with Local(
        models["words"], index=index.folder, limits=Limits(texts=8, tokens=300, body_bytes=20_000)
    ) as local:
        yield local


def near(one: Any, other: Any) -> bool:
    """The same names, texts and places; numbers that differ by what the order of a sum may
    change."""
    match one:
        case dict():
            return one.keys() == other.keys() and all(
                near(value, other[name]) for name, value in one.items()
            )
        case list() if not isinstance(other, np.ndarray):
            return len(one) == len(other) and all(map(near, one, other))
        case float() | list() | np.ndarray():
            return bool(np.allclose(one, other, atol=1e-5))
        case _:
            return bool(one == other)


# --- what is answered
# -------------------------------------------------------------------------------------------------


def test_a_model_with_a_name_that_is_not_utf8_is_served(models: dict[str, Path], tmp_path: Path):
    folder = tmp_path / os.fsdecode(b"caf\xe9 m\xff")
    shutil.copytree(models["classification"], folder)
    with Local(folder) as local:
        assert local.send("GET", "/v1/models").json()["data"][0]["id"] == "caf\\udce9 m\\udcff"
        assert local.send("GET", "/info").json()["model_id"] == "caf\\udce9 m\\udcff"
        for path in ("/predict", "/explain"):
            assert local.post(path, {"inputs": "good film"}).status_code == 200


@pytest.mark.parametrize("kind", ["words", "pairs"])
def test_a_server_holds_each_weight_once(kind: str, models: dict[str, Path], tmp_path: Path):
    """Whatever it is asked, and with an index of the same model."""
    size = sum(tensor.nbytes for tensor in load_model(models[kind]).state.values())
    index = None
    if kind == "words":
        index = Index.create(tmp_path / "idx", models[kind], device="cpu").folder
    pair = ["good film", "the men"]
    requests = {
        "embed": {"inputs": "good film"},
        "fill": {"inputs": "the [MASK] was"},
        "search": {"query": "good"},
        "predict": {"inputs": pair},
        "rerank": {"query": pair[0], "texts": pair},
        "explain": {"inputs": pair},
    }
    before = storages()
    with Local(models[kind], index=index) as local:
        abilities = set(requests) & set(local.abilities.endpoints)
        assert len(abilities) == (4 if kind == "words" else 3)
        for _ in range(2):
            assert all(
                local.post(f"/{name}", requests[name]).status_code == 200 for name in abilities
            )
        held = sum(nbytes for place, nbytes in storages().items() if place not in before)
        assert size <= held < 1.01 * size  # the last batch may still be there


def test_answers_are_explained(models: dict[str, Path]):
    with Local(models["classification"], limits=Limits(explained_tokens=6)) as local:
        found = explain(models["classification"], "good film", target="neg", device="cpu")
        ours = local.post("/explain", {"inputs": "good film", "target": "neg", "maps": True}).json()
        assert near(ours["gradients"], found.word_gradients)
        assert near(ours["occlusion"], found.occlusion)
        n, heads = len(ours["tokens"]), ours["heads"]
        assert [len(base64.b64decode(layer)) for layer in ours["attention"]] == [
            heads * n * n
        ] * ours["layers"]
        assert len(ours["similarity"]) == ours["layers"] + 1
        assert local.post("/explain", {"inputs": "good film"}).json()["attention"] is None
        assert local.post("/explain", {"inputs": "good film", "target": "other"}).status_code == 422
        assert local.post("/explain", {"inputs": "good film " * 9}).status_code == 413


def test_the_document_and_info_say_what_is_offered(models: dict[str, Path]):
    for kind, offered in (
        ("words", "/fill"),
        ("qa", "/qa"),
        ("spans", "/ner"),
        ("pairs", "/rerank"),
    ):
        with Local(models[kind]) as local:
            info, document = (local.send("GET", path).json() for path in ("/info", "/openapi.json"))
            assert offered.strip("/") in info["abilities"]
            assert offered in document["paths"]
            absent = {"/fill", "/qa", "/ner", "/rerank", "/embed"} - document["paths"].keys()
            for path in absent:
                answer = local.post(path, {"inputs": "a"})
                assert (answer.status_code, answer.json()["error_type"]) == (424, "Backend")
                assert offered.strip("/") in answer.json()["error"]


def enumerations(schema: Any) -> Iterator[list[Any]]:
    """The values of every `enum` in a document."""
    if isinstance(schema, dict):
        if "enum" in schema:
            yield schema["enum"]
        schema = list(schema.values())
    if isinstance(schema, list):
        for part in schema:
            yield from enumerations(part)


@pytest.mark.parametrize("kind", ["words", *HEADS])
def test_code_can_be_generated_from_the_document(kind: str, models: dict[str, Path]):
    """Names that differ only in upper and lower case would be one name; every operation and every
    list has a type."""
    with Local(models[kind]) as local:
        document = local.send("GET", "/openapi.json").json()
    operations = [
        operation for methods in document["paths"].values() for operation in methods.values()
    ]
    names = [operation["operationId"] for operation in operations]
    assert all(name.isidentifier() for name in names)
    assert len(set(names)) == len(names)
    found = list(enumerations(document))
    assert ["Left", "Right"] in found or kind not in ("words", "classification")
    for values in found:
        assert len({str(value).lower() for value in values}) == len(values)
    assert '{"type":"array"}' not in json.dumps(document, separators=(",", ":"))


TEI_INFO = {  # the fields of GET /info of TEI with their types, and which may be null
    "model_id": (str,),
    "model_sha": (str, None),
    "model_dtype": (str,),
    "model_type": (dict,),
    "max_concurrent_requests": (int,),
    "max_input_length": (int,),
    "max_batch_tokens": (int,),
    "max_batch_requests": (int, None),
    "max_client_batch_size": (int,),
    "auto_truncate": (bool,),
    "tokenization_workers": (int,),
    "version": (str,),
    "sha": (str, None),
    "docker_label": (str, None),
    "served_model_name": (str,),
}


@pytest.mark.parametrize("kind", ["words", "classification", "pairs", "tagging", "qa"])
def test_info_has_all_fields_of_tei(kind: str, models: dict[str, Path]):
    with Local(models[kind]) as local:
        info = local.send("GET", "/info").json()
    for name, types in TEI_INFO.items():
        value = info[name]
        assert (value is None and None in types) or type(value) in types, name
    assert info["served_model_name"] == info["model_id"] == models[kind].name
    content = (models[kind] / "model.safetensors").read_bytes()
    assert info["sha"] == hashlib.sha256(content).hexdigest()
    assert str(models[kind]) not in json.dumps(info)


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", "float32"), ("bf16", "bfloat16")])
def test_it_computes_in_the_precision_that_is_requested(
    precision: Precision, dtype: str, models: dict[str, Path]
):
    with Local(models["words"], precision=precision) as local:
        assert local.send("GET", "/info").json()["model_dtype"] == dtype
        theirs = Embedder(models["words"], device="cpu", precision=precision).embed(TEXTS)
        assert near(local.post("/embed", {"inputs": TEXTS, "normalize": False}).json(), theirs)
    with Local(models["multilabel"], precision=precision) as local:
        assert local.send("GET", "/info").json()["model_dtype"] == dtype
        (answer,) = Predictor(models["multilabel"], device="cpu", precision=precision).predict(
            TEXTS[:1], probabilities=True
        )
        ours = local.post("/predict", {"inputs": TEXTS[0]}).json()
        assert near({item["label"]: item["score"] for item in ours}, answer["scores"])


def test_an_answer_does_not_depend_on_who_else_asks(models: dict[str, Path]):
    requests = [
        ("POST", "/embed", {"json": {"inputs": text * n, "normalize": False}})
        for n in (1, 5)
        for text in TEXTS
    ]
    requests += [
        ("POST", "/fill", {"json": {"inputs": "a [MASK]"}}),
        ("POST", "/embed", {"json": {"inputs": 1}}),
    ]
    with Local(models["words"], precision="fp32") as local:
        together = local.all(requests)
        for request, found in zip(requests, together, strict=True):
            (alone,) = local.all([request])
            assert found.status_code == alone.status_code
            if request[1] == "/embed" and found.status_code == 200:
                assert near(found.json(), alone.json())


@pytest.mark.parametrize(
    ("kind", "path", "text"),
    [
        ("words", "/embed", "good film"),
        ("words", "/fill", "a [MASK]"),
        ("classification", "/predict", "good film"),
    ],
)
def test_what_many_ask_is_computed_together(
    kind: str, path: str, text: str, models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(THREADS, "fixed", 1)  # one batch at a time
    monkeypatch.setattr(THREADS, "count", 1)
    with Local(models[kind]) as local:
        batcher, sizes = local.application.pipeline.batchers["network"], list[int]()
        submit, begun, go = batcher.submit, threading.Event(), threading.Event()

        def held(units: Sequence[int]) -> Sequence[int]:
            begun.set()
            assert go.wait(10)
            return units

        def submitted(job: InferenceJob, patience: float) -> Any:
            future = submit(job, patience)
            if waiting(batcher) == 9:
                go.set()
            return future

        monkeypatch.setattr(batcher, "_observe", lambda units, cost, seconds: sizes.append(units))
        submit(InferenceJob([0], [1], held))  # what comes while it is computed is to be one batch
        assert begun.wait(10)
        monkeypatch.setattr(batcher, "submit", submitted)
        found = local.all([("POST", path, {"json": {"inputs": text}})] * 9)
        assert {one.status_code for one in found} == {200}
        assert sizes == [1, 9]


def test_whatever_is_computed_alone_has_all_threads(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
):
    """The number is a thread's own, and a new thread begins with the one that was set last,
    wherever."""
    before = torch.get_num_threads()
    monkeypatch.setattr(THREADS, "fixed", 3)
    monkeypatch.setattr(THREADS, "count", 3)
    try:
        with Local(models["words"]) as local:
            assert local.application.pipeline.batchers["network"].workers == 3
            for batcher in local.application.pipeline.batchers.values():
                torch.set_num_threads(1)
                job = InferenceJob([0], [1], lambda units: [torch.get_num_threads()])
                assert batcher.submit(job).result(10) == [3]
    finally:
        torch.set_num_threads(before)


def test_memory_that_fell_into_pieces_is_returned(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
):
    """For batches differ in size, and what is freed is kept."""
    sizes, returned = [100], list[int]()
    monkeypatch.setattr("bertworks.training.device.memory_in_use", lambda _: sizes[-1])
    monkeypatch.setattr("bertworks.training.device.trim_heap", lambda: returned.append(sizes[-1]))
    monkeypatch.setattr("bertworks.training.device.LOOK_SECONDS", 0)
    with Local(models["words"]) as local:
        for size in (100, 120, 200, 110, 150):
            sizes.append(size)
            local.post("/embed", {"inputs": "a"})
    assert returned[0] == 120  # more than 1.15 times the least, which was 100


# --- what is refused
# --------------------------------------------------------------------------------------------------

JSON = {"content-type": "application/json"}
HOSTILE: dict[str, tuple[bytes, tuple[int, ...]]] = {
    "nothing": (b"", (400,)),
    "no object": (b"[]", (422,)),
    "half": (b'{"inputs": "a', (400,)),
    "NaN": (b'{"inputs": NaN}', (400,)),
    "infinite": (b'{"inputs": "a", "dimensions": 1e999}', (422,)),
    "a number as long as a book": (b'{"inputs": ' + b"9" * 10_000 + b"}", (400, 422)),
    "deep": (b'{"inputs": ' + b"[" * 9_000 + b"]" * 9_000 + b"}", (400, 422)),
    "bad UTF-8": (b'{"inputs": "\xff\xfe"}', (400,)),
    "UTF-16": ('{"inputs": "a"}'.encode("utf-16"), (400,)),
    "a lone surrogate": (b'{"inputs": "\\ud800"}', (422,)),
    "large": (b'{"inputs": "' + b"a" * 30_000 + b'"}', (413,)),
    "many": (json.dumps({"inputs": ["a"] * 9}).encode(), (413,)),
    "many tokens": (json.dumps({"inputs": ["a " * 60] * 8}).encode(), (413,)),
    "a number": (b'{"inputs": 1}', (422,)),
    "null": (b'{"inputs": null}', (422,)),
    "an object": (b'{"inputs": {"a": "b"}}', (422,)),
    "numbers": (b'{"inputs": [1.5, 2]}', (422,)),
    "ids of no token": (b'{"inputs": [1, 99999999]}', (422,)),
    "no list": (b'{"inputs": []}', (422,)),
    "an empty text": (b'{"inputs": ["a", ""]}', (422,)),
    "a word for a truth": (b'{"inputs": "a", "normalize": "yes"}', (422,)),
    "no dimensions": (b'{"inputs": "a", "dimensions": 0}', (422,)),
    "too many dimensions": (b'{"inputs": "a", "dimensions": 33}', (422,)),
    "another prompt": (b'{"inputs": "a", "prompt_name": "query"}', (422,)),
    "too long to be read": (json.dumps({"inputs": "a " * 90, "truncate": False}).encode(), (413,)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_requests_are_refused(name: str, words: Local):
    body, expected = HOSTILE[name]
    answer = words.send("POST", "/embed", content=body, headers=JSON)
    assert answer.status_code in expected, answer.text
    assert answer.json().keys() == {"error", "error_type"}
    assert words.post("/embed", {"inputs": "a"}).status_code == 200


# a request, and the field and the code of its error
OPENAI_ERRORS: list[tuple[Any, str, str | None]] = [
    ({"input": []}, "input", None),
    ({"input": ["a", 1]}, "input", None),
    ({"input": "a", "dimensions": 33}, "dimensions", None),
    ({"input": "a", "encoding_format": "hex"}, "encoding_format", None),
    ({"input": "a " * 90, "truncate": False}, "input", "context_length_exceeded"),
]


@pytest.mark.parametrize(("body", "param", "code"), OPENAI_ERRORS)
def test_errors_under_v1_are_those_of_openai(body: Any, param: str, code: str | None, words: Local):
    answer = words.post("/v1/embeddings", body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert (error["type"], error["code"]) == ("invalid_request_error", code)
    assert error["param"] == (None if code else param)
    native = words.post("/embeddings", body)  # the other name of the path is that of TEI
    assert native.status_code in (413, 422)
    assert native.json() == {"error": error["message"], "error_type": "Validation"}


def test_statuses_under_v1(words: Local, models: dict[str, Path], monkeypatch: pytest.MonkeyPatch):
    for content, kind in (
        (b"{", "application/json"),
        (b"{}", "text/plain"),
        (b"a" * 30_000, "application/json"),
    ):
        answer = words.send(
            "POST", "/v1/embeddings", content=content, headers={"content-type": kind}
        )
        assert (answer.status_code, answer.json()["error"]["type"]) == (
            400,
            "invalid_request_error",
        )
    assert words.send("GET", "/v1/embeddings").status_code == 405
    assert words.post("/v1/embeddings", {"input": "a " * 90, "truncate": True}).status_code == 200
    with Local(models["classification"], token="secret") as local:
        body = {"json": {"input": "a"}}
        answer = local.send("POST", "/v1/embeddings", **body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
        answer = local.send(
            "POST", "/v1/embeddings", headers={"authorization": "Bearer secret"}, **body
        )
        assert answer.status_code == 400
        assert "does not offer /embeddings" in answer.json()["error"]["message"]
    speaker = words.abilities.endpoints["embed"].__self__  # type: ignore[attr-defined]
    compute = speaker._embedder.raw
    monkeypatch.setattr(
        speaker._embedder, "raw", lambda units: [row * np.nan for row in compute(units)]
    )
    answer = words.post("/v1/embeddings", {"input": "a"})
    assert (answer.status_code, answer.json()["error"]["type"]) == (500, "server_error")


def test_the_model_by_its_name(words: Local):
    (model,) = words.send("GET", "/v1/models").json()["data"]
    assert words.send("GET", "/v1/models/words").json() == model
    assert words.send("GET", "/v1/models/words/").json() == model
    for name in ("other", "words/x", "..%2fwords"):
        answer = words.send("GET", f"/v1/models/{name}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
        assert "'words'" in answer.json()["error"]["message"]
    assert words.post("/v1/models/words", {}).status_code == 405
    unknown = words.post("/v1/chat/completions", {})
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, None)


def test_an_error_of_the_network_is_of_one_request(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
):
    with Local(models["classification"]) as local:
        speaker = local.abilities.endpoints["predict"].__self__  # type: ignore[attr-defined]
        compute, bad = speaker._predictor.logits, len("bad".split()) + 2

        def failing(units: Any) -> Any:
            if any(len(unit[0].input_ids) == bad for unit in units):
                raise RuntimeError("no memory")
            return compute(units)

        monkeypatch.setattr(speaker._predictor, "logits", failing)
        texts = ["good film", "bad", "sad dogs in"] * 3
        found = local.all([("POST", "/predict", {"json": {"inputs": text}}) for text in texts])
        assert [one.status_code for one in found] == [200, 424, 200] * 3
        assert "memory" not in found[1].text


@pytest.mark.parametrize(("kind", "path"), [("classification", "/predict"), ("words", "/embed")])
def test_what_json_has_no_number_for_is_an_error(
    kind: str, path: str, models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
):
    with Local(models[kind]) as local:
        speaker = local.abilities.endpoints[path[1:]].__self__  # type: ignore[attr-defined]
        owner, name = (
            (speaker._predictor, "logits")
            if kind == "classification"
            else (speaker._embedder, "raw")
        )
        compute = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda units: [row * np.nan for row in compute(units)])
        answer = local.post(path, {"inputs": "good film"})
        assert (answer.status_code, answer.json()["error_type"]) == (424, "Backend")
        assert "not finite" in answer.json()["error"]


def test_nothing_is_computed_for_who_went_away(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
):
    with Local(models["classification"]) as local:
        batcher = local.application.pipeline.batchers["network"]
        speaker = local.abilities.endpoints["predict"].__self__  # type: ignore[attr-defined]
        held, go, compute = threading.Event(), threading.Event(), speaker._predictor.logits

        def slow(units: Any) -> Any:
            held.set()
            assert go.wait(30)
            return compute(units)

        monkeypatch.setattr(speaker._predictor, "logits", slow)

        async def ask(gone: asyncio.Event) -> int:
            body = {"inputs": "good film"}
            status, _ = await ask_until(gone, local.application, "/predict", body)
            return status

        async def send() -> list[int]:
            stays, goes = asyncio.Event(), asyncio.Event()
            first = asyncio.create_task(ask(stays))
            assert await asyncio.to_thread(held.wait, 30)
            others = [asyncio.create_task(ask(goes)) for _ in range(5)]
            while waiting(batcher) < 5:
                await asyncio.sleep(0.01)
            goes.set()
            statuses = [await one for one in others]
            assert not waiting(batcher)
            assert batcher.costs.total() == batcher.loads.total() == 4  # of the first
            go.set()
            return [await first, *statuses]

        assert asyncio.run(send()) == [200] + [499] * 5


def test_more_than_can_be_answered_is_refused(models: dict[str, Path]):
    with Local(models["classification"], limits=Limits(requests=2)) as local:
        found = local.all(
            [("POST", "/predict", {"json": {"inputs": "a"}})] * 9 + [("GET", "/health", {})]
        )
        refused = [one for one in found if one.status_code == 429]
        assert len(refused) == 7
        assert all(one.headers["retry-after"] == "1" for one in refused)
        assert found[-1].status_code == 200


def test_a_full_queue_reads_no_bodies(models: dict[str, Path]):
    with Local(models["classification"], limits=Limits(client_tokens=0)) as local:
        local.application.pipeline.batchers["network"].speed = 1000
        local.application.pipeline.batchers["network"].loads["127.0.0.1", 1 << 14] = 10**9
        local.application.pipeline.batchers["network"].costs["127.0.0.1", 1 << 14] = 10**9
        answer = local.send("POST", "/predict", content=b"no JSON at all", headers=JSON)
        assert (answer.status_code, answer.json()["error_type"]) == (429, "Overloaded")
        assert int(answer.headers["retry-after"]) >= 1
        assert local.post("/tokenize", {"inputs": "a"}).status_code == 200


def test_what_is_large_is_read_one_by_one_and_refused_in_time(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
):
    started, go = [], threading.Event()

    async def send(application: Application) -> list[httpx.Response]:
        transport, large = httpx.ASGITransport(application), {"inputs": "cat " * 20_000}
        async with httpx.AsyncClient(
            transport=transport, base_url="http://127.0.0.1:8080"
        ) as client:
            first = asyncio.create_task(client.post("/embed", json=large))
            while not started:
                await asyncio.sleep(0.01)
            second = await client.post("/embed", json=large)
            small = await client.post("/embed", json={"inputs": "a cat"})
            go.set()
            return [await first, second, small]

    with Local(models["words"], limits=Limits(body_bytes=90_000, total_bytes=100_000)) as local:
        application = local.application
        parse = application.pipeline._parse

        def slow(name: str, body: bytes, lane: int) -> Any:
            if len(body) > 1 << 16:
                started.append(threading.current_thread().name)
                go.wait(10)
            return parse(name, body, lane)

        monkeypatch.setattr(application.pipeline, "_parse", slow)
        first, second, small = asyncio.run(send(application))
        assert (first.status_code, small.status_code) == (200, 200)
        assert (second.status_code, int(second.headers["retry-after"])) == (429, 1)
        assert len(started) == 1
        assert application.pipeline.admission._free == 100_000


def test_settings_of_a_similarity_stand_where_tei_has_them(words: Local):
    inputs = {"source_sentence": "a cat", "sentences": ["dog " * 200]}
    body = {"inputs": inputs, "parameters": {"truncate": False}}
    assert words.post("/similarity", body).status_code in (413, 422)
    assert (
        words.post("/similarity", {"inputs": inputs, "parameters": {"truncate": True}}).status_code
        == 200
    )


def test_the_beginning_of_a_text_is_left_out_if_the_request_says_so(
    words: Local, models: dict[str, Path]
):
    # every word is a token; there is room for 62
    text = " ".join([*["dogs"] * 30, *["men"] * 60, "good film"])
    end = " ".join(text.split()[-62:])
    expected = words.post("/embed", {"inputs": end}).json()
    for side in ("Left", "left"):
        found = words.post("/embed", {"inputs": [text], "truncation_direction": side})
        assert near(found.json(), expected)
        assert found.headers["x-truncated-tokens"] == "30"
        body = {
            "inputs": {"source_sentence": end, "sentences": [text]},
            "parameters": {"truncation_direction": side},
        }
        assert near(words.post("/similarity", body).json(), [1.0])
    assert not near(words.post("/embed", {"inputs": text}).json(), expected)
    refused = words.post(
        "/embed", {"inputs": text, "truncation_direction": "Left", "truncate": False}
    )
    assert refused.status_code == 413
    wrong = words.post("/embed", {"inputs": text, "truncation_direction": "LEFT"})
    assert wrong.status_code == 422
    assert """'LEFT': expected one of "Left", "Right\"""" in wrong.json()["error"]
    with Local(models["pairs"], precision="fp32") as pairs:
        query = " ".join(text.split()[-31:])  # of two long texts each keeps about half of the room
        kept = " ".join(text.split()[-30:])
        body = {"inputs": [text, text], "truncation_direction": "Left"}
        assert near(
            pairs.post("/predict", body).json(),
            pairs.post("/predict", {"inputs": [query, kept]}).json(),
        )
        body = {"query": text, "texts": [text], "truncation_direction": "left"}
        expected = pairs.post("/rerank", {"query": query, "texts": [kept]}).json()
        assert near(pairs.post("/rerank", body).json(), expected)
        assert not near(pairs.post("/rerank", {"query": text, "texts": [text]}).json(), expected)


def test_what_json_does_not_know_is_found_all_the_same(models: dict[str, Path], tmp_path: Path):
    table = pyarrow.table(
        {"text": ["sad dogs", "good film"], "x": [float("nan"), 1.0], "y": [[float("inf")], [2.0]]}
    )
    parquet.write_table(table, tmp_path / "a.parquet")
    list(
        index_file(
            tmp_path / "a.parquet",
            tmp_path / "idx",
            text=["text"],
            model=models["words"],
            device="cpu",
        )
    )
    with Local(models["words"], index=tmp_path / "idx") as local:
        first, second = local.post("/search", {"query": "sad dogs", "k": 2}).json()
    assert [first["fields"], second["fields"]] == [
        {"x": None, "y": ["inf"]},
        {"x": 1.0, "y": [2.0]},
    ]


def test_requests_that_were_answered_take_no_room(model: Path):
    with Local(model, limits=Limits(body_bytes=1000, total_bytes=1000)) as local:
        assert [local.post("/embed", {"inputs": "dogs " * 80}).status_code for _ in range(5)] == [
            200
        ] * 5


@pytest.mark.parametrize("kind", ["classification", "multilabel"])
def test_labels_are_those_of_predict(kind: str, models: dict[str, Path]):
    with Local(models[kind]) as local:
        theirs = Predictor(models[kind], device="cpu").predict(TEXTS, probabilities=True)
        ours = local.post("/predict", {"inputs": [[text] for text in TEXTS]}).json()
        for one, other in zip(ours, theirs, strict=True):
            assert {item["label"]: pytest.approx(item["score"], abs=1e-6) for item in one} == other[
                "scores"
            ]
            assert one == sorted(one, key=lambda item: -item["score"])
        assert near(local.post("/predict", {"inputs": TEXTS[0]}).json(), ours[0])
        raw = local.post("/predict", {"inputs": TEXTS[0], "raw_scores": True}).json()
        chance = (
            1 / (1 + np.exp(raw[1]["score"] - raw[0]["score"]))
            if kind == "classification"
            else None
        )
        assert chance is None or near(chance, ours[0][0]["score"])


def test_a_list_of_two_is_a_pair_and_a_list_of_lists_is_many(models: dict[str, Path]):
    with Local(models["regression"]) as local:
        theirs = Predictor(models["regression"], device="cpu").predict(
            [("a film", "music"), ("good", "men")]
        )
        ours = local.post("/predict", {"inputs": [["a film", "music"], ["good", "men"]]}).json()
        assert near([item[0]["score"] for item in ours], [answer["value"] for answer in theirs])
        assert near(local.post("/predict", {"inputs": ["a film", "music"]}).json(), ours[0])
        # A model of pairs has nothing to say of one text.
        alone = local.post("/predict", {"inputs": [["a film"], ["a film", "music"]]})
        assert alone.status_code == 422
        assert "a pair of strings" in alone.json()["error"]
        assert local.post("/predict", {"inputs": ["a", "b", "c"]}).status_code == 422


@pytest.mark.parametrize("kind", ["pairs", "regression"])
def test_texts_are_ranked_as_by_the_reranker(kind: str, models: dict[str, Path]):
    with Local(models[kind]) as local:
        scores = Reranker(models[kind], device="cpu")("good film", TEXTS)
        requested = {"query": "good film", "texts": TEXTS, "return_text": True}
        ours = local.post("/rerank", requested).json()
        if kind == "regression":  # as TEI and cross-encoders give them
            raw = local.post("/rerank", {**requested, "raw_scores": True}).json()
            assert near([one["score"] for one in raw], sorted(scores.tolist(), reverse=True))
            scores = 1 / (1 + np.exp(-scores))
        assert [one["index"] for one in ours] == np.argsort(-scores, kind="stable").tolist()
        assert near([one["score"] for one in ours], sorted(scores.tolist(), reverse=True))
        assert [one["text"] for one in ours] == [TEXTS[one["index"]] for one in ours]
        assert "reranker" in local.send("GET", "/info").json()["model_type"]


@pytest.mark.parametrize("vectors", ["pair", "cosine"])
def test_both_texts_of_a_pair_whose_vectors_are_compared_are_in_one_batch(
    vectors: Any, tmp_path: Path
):
    """Each text is a sequence of its own, and the prediction needs both: also for the speed at the
    start."""
    description = {
        "task": "classification",
        "labels": ("no", "yes"),
        "text": ("a", "b"),
        "vectors": vectors,
    }
    model = write_head(tmp_path / "model", **description)
    items = [("a film", "music"), ("good", "men and dogs"), ("sad dogs", "a story")]
    with Local(model, precision="fp32") as local:
        local.application.pipeline.measure_speed()
        ours = local.post("/predict", {"inputs": [list(item) for item in items]}).json()
        ranked = local.post("/rerank", {"query": "a film", "texts": ["music", "men"]}).json()
    expected = Predictor(model, device="cpu", precision="fp32").predict_proba(items)
    by_label = [{score["label"]: score["score"] for score in scores} for scores in ours]
    assert near([[scores["no"], scores["yes"]] for scores in by_label], expected.tolist())
    assert near(next(one["score"] for one in ranked if one["index"] == 0), float(expected[0, 1]))


@pytest.mark.parametrize("kind", ["tagging", "spans"])
def test_entities_are_those_of_predict(kind: str, models: dict[str, Path]):
    texts = [*TEXTS, " ".join(["Anna lives in Oslo ."] * 30)]  # in windows
    with Local(models[kind]) as local:
        theirs = Predictor(models[kind], device="cpu").predict(texts)
        ours = local.post("/ner", {"inputs": texts}).json()
        assert sum(map(len, ours)) > 10
        for text, one, other in zip(texts, ours, theirs, strict=True):
            assert [(e["entity_group"], e["start"], e["end"]) for e in one] == [
                (e["type"], e["start"], e["end"]) for e in other["entities"]
            ]
            assert all(e["word"] == text[e["start"] : e["end"]] for e in one)
        assert near(local.post("/ner", {"inputs": texts[0]}).json(), ours[0])
        assert local.post("/ner", {"inputs": "   "}).json() == []


def test_words_have_tags(models: dict[str, Path]):
    with Local(models["speech"]) as local:
        (theirs,) = Predictor(models["speech"], device="cpu").predict([TEXTS[2]])
        ours = local.post("/ner", {"inputs": TEXTS[2]}).json()
        assert ([e["word"] for e in ours], [e["entity_group"] for e in ours]) == (
            theirs["words"],
            theirs["tags"],
        )


def test_questions_are_answered_as_by_predict(models: dict[str, Path]):
    requested = [("where ?", "Anna lives in Oslo . " * n) for n in (1, 20)]
    with Local(models["qa"]) as local:
        theirs = Predictor(models["qa"], device="cpu").predict(requested, top_k=3)
        inputs = [{"question": question, "context": context} for question, context in requested]
        ours = local.post("/qa", {"inputs": inputs, "top_k": 3}).json()
        for one, other in zip(ours, theirs, strict=True):
            assert [one[name] for name in ("answer", "start", "end")] == [
                other[name] for name in ("answer", "start", "end")
            ]
            assert [(n["answer"], n["start"]) for n in one["n_best"]] == [
                (n["text"], n["start"]) for n in other["n_best"]
            ]
        one = local.post("/qa", {"inputs": inputs[0]}).json()
        assert one.keys() == {"answer", "score", "start", "end"}


def test_choices_are_weighed(models: dict[str, Path]):
    with Local(models["choice"]) as local:
        (theirs,) = Predictor(models["choice"], device="cpu").predict(
            [("a", "b", "c", "d")], probabilities=True
        )
        ours = local.post("/predict", {"inputs": ["a", "b", "c", "d"]}).json()
        assert near(
            [one["score"] for one in sorted(ours, key=lambda one: one["index"])], theirs["scores"]
        )
        assert {one["index"]: one["label"] for one in ours} == {0: "b", 1: "c", 2: "d"}
        assert local.post("/predict", {"inputs": "a"}).status_code == 422


def test_vectors_are_those_of_the_embedder(words: Local, models: dict[str, Path]):
    ours = Embedder(models["words"], device="cpu").embed(TEXTS)
    unit = ours / np.linalg.norm(ours, axis=1, keepdims=True)
    assert near(words.post("/embed", {"inputs": TEXTS, "normalize": False}).json(), ours)
    assert near(words.post("/embed", {"inputs": TEXTS}).json(), unit)
    assert near(words.post("/embed", {"inputs": TEXTS[0]}).json(), unit[:1])
    cut = ours[:, :7] / np.linalg.norm(ours[:, :7], axis=1, keepdims=True)
    assert near(words.post("/embed", {"inputs": TEXTS, "dimensions": 7}).json(), cut)
    requested = {"inputs": {"source_sentence": TEXTS[0], "sentences": TEXTS[1:]}}
    assert near(words.post("/similarity", requested).json(), unit[1:] @ unit[0])


def test_vectors_in_the_shape_of_openai(words: Local):
    plain = words.post("/v1/embeddings", {"input": TEXTS[:2], "model": "any"}).json()
    coded = words.post(
        "/embeddings", {"input": TEXTS[:2], "model": "any", "encoding_format": "base64"}
    ).json()
    assert (plain["object"], [one["index"] for one in plain["data"]]) == ("list", [0, 1])
    assert plain["usage"]["prompt_tokens"] == sum(
        map(len, words.post("/tokenize", {"inputs": TEXTS[:2]}).json())
    )
    for one, other in zip(plain["data"], coded["data"], strict=True):
        assert near(np.frombuffer(base64.b64decode(other["embedding"]), "<f4"), one["embedding"])
    assert words.send("GET", "/v1/models").json()["data"][0]["id"] == "words"


def test_masks_are_filled_as_by_fill(words: Local, models: dict[str, Path]):
    texts = ["the [MASK] was [MASK]", "[MASK]"]
    theirs = [Filler(models["words"])(text, 3) for text in texts]
    ours = words.post("/fill", {"inputs": texts, "top_k": 3}).json()
    tokens = [
        [[one["token_str"] for one in mask] for mask in text] for text in (ours[0], [ours[1]])
    ]
    assert tokens == [[[one["token_str"] for one in mask] for mask in text] for text in theirs]
    # A sentence with several masks would be repeated for each mask and token.
    assert ours[0][0][0].keys() == {"score", "token", "token_str"}
    assert ours[1][0].keys() == {"score", "token", "token_str", "sequence"}
    assert [one["sequence"] for one in ours[1]] == [one["sequence"] for one in theirs[1][0]]
    with_text = words.post(
        "/fill", {"inputs": ["a [MASK] film", texts[0]], "top_k": 3, "return_text": True}
    ).json()
    in_python = Filler(models["words"])("a [MASK] film", 3)
    assert [one["text"] for one in with_text[0]] == [one["text"] for one in in_python[0]]
    assert with_text[1] == ours[0]
    assert near(words.post("/fill", {"inputs": texts[1], "top_k": 3}).json(), ours[1])


def test_documents_are_found(words: Local):
    found = words.post("/search", {"query": "sad dogs", "k": 2}).json()
    assert (found[0]["id"], found[0]["fields"], len(found)) == ("b", {"n": 1}, 2)
    assert words.post("/search", {"query": "Oslo", "ranking": "bm25"}).json()[0]["id"] == "c"
    dense = words.post("/search", {"query": "sad dogs", "ranking": "dense"}).json()
    cosines = {one["id"]: one["score"] for one in dense}
    assert [one["cosine"] for one in found] == pytest.approx(
        [cosines[one["id"]] for one in found], abs=1e-5
    )
    assert "matches" not in found[0]
    (found,) = words.post("/search", {"query": "Oslo", "ranking": "bm25", "matches": True}).json()
    assert [found["text"][start:end] for start, end in found["matches"]] == ["Oslo"]
    assert (found["cosine"], found["title"]) == (None, "")
    assert words.send("GET", "/info").json()["index"]["documents"] == 4
    assert words.post("/search", {"query": "Oslo", "rerank": True}).status_code == 422


def test_tokens_and_back(words: Local):
    (tokens,) = words.post("/tokenize", {"inputs": "😀 good"}).json()
    assert [(t["special"], t["start"], t["stop"]) for t in tokens][-2:] == [
        (False, 2, 6),
        (True, None, None),
    ]
    ids = [
        t["id"]
        for t in words.post(
            "/tokenize", {"inputs": "good film", "add_special_tokens": False}
        ).json()[0]
    ]
    assert words.post("/decode", {"ids": ids}).json() == ["good film"]
    assert words.post("/decode", {"ids": [ids, ids]}).json() == ["good film"] * 2
    assert words.post("/decode", {"ids": [10**9]}).status_code == 422
