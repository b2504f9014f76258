"""What a server of a translator answers: the same as `translate` from Python, to whoever else asks;
what it refuses, in the same words; and nothing is computed for a client that has gone."""

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertworks.errors import BertworksError
from bertworks.inference.explain import explain
from bertworks.inference.translation import Translator, translate
from bertworks.retrieval.index import Index
from bertworks.serve.batching import InferenceJob, Limits
from bertworks.text.tokenizer import Tokenizer
from bertworks.training.device import THREADS
from tests.support.fine import write_translator
from tests.support.marian import write_marian
from tests.support.served import Local, ask_until, waiting

SENTENCE = "Boris heard some music last night."
TEXTS = ["the film was good", "", "Anna lives in Oslo", " ".join([SENTENCE] * 4), "a", " \n"]
LANGUAGES = ["deu", "fra"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A translator of texts of up to 32 tokens."""
    return write_translator(tmp_path_factory.mktemp("models") / "mt", length=32)


@pytest.fixture(scope="module")
def languages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A translator with several target languages."""
    folder = tmp_path_factory.mktemp("models")
    lines = [*TEXTS[::2], SENTENCE, "the men and dogs in this town"] * 20
    tokens = write_marian(folder / "t", lines, lines, num_pieces=60, languages=LANGUAGES)
    return write_translator(folder / "mt", length=32, t=Tokenizer.load(tokens))


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[Local]:
    with Local(model, precision="fp32", limits=Limits(texts=8, tokens=400)) as local:
        yield local


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """One batch at a time."""
    monkeypatch.setattr(THREADS, "fixed", 1)
    monkeypatch.setattr(THREADS, "count", 1)


def expected(model: Path, texts: Sequence[str], **options: Any) -> list[dict[str, Any]]:
    """The answer to a request, from Python."""
    answers = translate(model, texts, device="cpu", precision="fp32", **options)
    return [
        {
            "translation": answer["translation"],
            "score": pytest.approx(answer["score"], abs=1e-5),
            "finish_reason": answer["finish_reason"],
        }
        for answer in answers
    ]


def translator_of(local: Local) -> Translator:
    endpoint: Any = local.abilities.endpoints["translate"]
    translator: Translator = endpoint.__self__._translator
    return translator


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"beam": 1},
        {"beam": 2, "length_penalty": 0, "no_repeat_ngram": 1},
        {"no_repeat_ngram": 2, "max_tokens": 5},
        {"length_penalty": -1.5, "no_repeat_ngram": 1, "max_tokens": 1000},
    ],
    ids=str,
)
def test_answers_are_those_of_translate(options: dict[str, Any], model: Path, server: Local):
    """Also of texts without tokens, and of a text that is split into sentences."""
    answer = server.post("/translate", {"texts": TEXTS, **options})
    assert answer.status_code == 200
    assert answer.json() == expected(model, TEXTS, **options)
    assert len({one["translation"] for one in answer.json()}) == 5
    main = server.post("/", {"texts": TEXTS, "parameters": options})
    assert main.json() == answer.json()


def test_the_end_of_a_long_sentence_is_left_out_if_the_request_says_so(model: Path, server: Local):
    text = "the men and dogs " * 9
    body = {"texts": [text], "no_repeat_ngram": 1}
    refused = server.post("/translate", body)
    with pytest.raises(BertworksError) as error:
        list(translate(model, [text], device="cpu"))
    assert (refused.status_code, refused.json()["error_type"]) == (413, "Validation")
    assert (
        refused.json()["error"] == f'{error.value.what} (shorten it; or "cut" leaves out its end)'
    )
    answer = server.post("/translate", body | {"cut": True})
    assert answer.json() == expected(model, [text], no_repeat_ngram=1, cut=True)


def test_the_target_language_is_that_of_the_request_or_of_the_text(languages: Path):
    texts = ["Anna lives in Oslo", ">>fra<< Anna lives in Oslo"]
    with Local(languages, precision="fp32") as local:
        assert local.send("GET", "/info").json()["target_languages"] == LANGUAGES
        answer = local.post("/translate", {"texts": texts, "target_language": "deu"}).json()
        assert answer == expected(languages, texts, target_language="deu")
        assert answer[0]["score"] != answer[1]["score"]
        assert answer[1:] == expected(languages, texts[:1], target_language="fra")
        for options in ({}, {"target_language": "eng"}):
            refused = local.post("/translate", {"texts": texts, **options})
            with pytest.raises(BertworksError) as error:
                list(translate(languages, texts, device="cpu", **options))
            assert refused.status_code == 422
            assert refused.json()["error"] == f"{error.value.what} ({error.value.hint})"
            assert "deu, fra" in refused.json()["error"]


@pytest.mark.parametrize(
    "options",
    [
        {"beam": 0},
        {"beam": 1000},
        {"length_penalty": 10.5},
        {"no_repeat_ngram": -1},
        {"target_language": "deu"},
    ],
    ids=str,
)
def test_options_out_of_range_are_refused_in_the_words_of_translate(
    options: dict[str, Any], model: Path, server: Local
):
    answer = server.post("/translate", {"texts": ["a"], **options})
    with pytest.raises(BertworksError) as error:
        list(translate(model, ["a"], device="cpu", **options))
    hint = f" ({error.value.hint})" if error.value.hint else ""
    assert (answer.status_code, answer.json()["error_type"]) == (422, "Validation")
    assert answer.json()["error"] == error.value.what + hint


REFUSED: dict[str, tuple[Any, int, str]] = {
    "no texts": ({}, 422, "`texts`"),
    "no list": ({"texts": "a"}, 422, "Expected `array`, got `str`"),
    "an empty list": ({"texts": []}, 422, "length >= 1"),
    "a number": ({"texts": ["a", 1]}, 422, "texts[1]"),
    "many": ({"texts": ["a"] * 9}, 413, "length <= 8"),
    "many tokens": ({"texts": [SENTENCE * 20] * 8}, 413, "tokens: expected 400 at most"),
    "many beams": ({"texts": [SENTENCE] * 8, "beam": 16}, 413, "tokens: expected 400 at most"),
    "many steps": ({"texts": ["a"] * 8, "beam": 8, "max_tokens": 32}, 413, "512 tokens"),
    "no step": ({"texts": ["a"], "max_tokens": 0}, 422, "max_tokens"),
    "half a beam": ({"texts": ["a"], "beam": 1.5}, 422, "beam"),
    "a word for a truth": ({"texts": ["a"], "cut": "yes"}, 422, "cut"),
    "another setting": (
        {"texts": ["a"], "parameters": {"num_beams": 2}},
        422,
        "'num_beams' is not",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_requests_are_refused(name: str, server: Local):
    body, status, reason = REFUSED[name]
    answer = server.post("/translate", body)
    assert (answer.status_code, answer.json()["error_type"]) == (status, "Validation")
    assert reason in answer.json()["error"]
    assert server.post("/translate", {"texts": ["a"]}).status_code == 200


def test_the_server_says_what_it_offers(server: Local):
    info = server.send("GET", "/info").json()
    assert info["task"] == "translation"
    assert info["max_input_length"] == 32
    assert info["largest_beam"] == 100
    assert info["abilities"][0] == "translate"
    assert server.send("GET", "/health").status_code == 200
    assert "/translate" in server.send("GET", "/openapi.json").json()["paths"]
    assert "/translate" in server.send("GET", "/docs").text
    for path in ("embed", "fill", "predict", "rerank", "search"):
        answer = server.post(f"/{path}", {"inputs": "a"})
        assert (answer.status_code, answer.json()["error_type"]) == (424, "Backend")
        assert (
            f"(translation) does not offer /{path}; it offers translate" in answer.json()["error"]
        )
    tokens = server.post("/tokenize", {"inputs": "the film"}).json()[0]
    ids = [token["id"] for token in tokens]
    assert server.post("/decode", {"ids": ids}).json() == ["the film"]


def test_a_translation_is_explained(model: Path, server: Local):
    found = explain(model, TEXTS[0], device="cpu")
    for has_maps in (False, True):
        answer = server.post("/explain", {"inputs": TEXTS[0], "maps": has_maps})
        assert answer.status_code == 200
        body = answer.json()
        assert body["answer"] == [list(row) for row in found.answer]
        assert body["tokens"] == list(found.tokens)
        assert body["translation_tokens"] == list(found.translation_tokens)
        for layers, weights in found.reading.items():
            assert np.allclose(body["reading"][layers], weights, atol=1e-5)
        assert ("translation_maps" in body) == has_maps
    assert server.post("/explain", {"inputs": TEXTS[0], "target": "b"}).status_code == 422
    assert server.post("/explain", {"inputs": "a " * 200}).status_code == 413


def test_an_index_needs_a_model_with_vectors(model: Path, tmp_path: Path):
    with pytest.raises(BertworksError, match="this model translates texts"):
        Index.create(tmp_path / "idx", model, device="cpu")


def test_the_speed_is_measured_at_the_start(model: Path):
    with Local(model) as local:
        batcher = local.application.pipeline.batchers["network"]
        local.application.pipeline.measure_speed()
        assert 0 < batcher.speed < 1e9
        assert not batcher.costs


def test_several_clients_at_once_get_the_answers_that_each_gets_alone(model: Path):
    bodies = [{"texts": TEXTS[n:], "beam": 1 + n % 2, "no_repeat_ngram": 1} for n in range(5)]
    bodies += [{"texts": [SENTENCE], "max_tokens": n} for n in range(1, 4)]
    bodies += [{"texts": ["a"], "beam": 0}]
    with Local(model, precision="fp32") as local:
        answers = local.all([("POST", "/translate", {"json": body}) for body in bodies])
    assert [answer.status_code for answer in answers] == [200] * 8 + [422]
    for body, answer in zip(bodies[:-1], answers, strict=False):
        assert answer.json() == expected(model, **body)  # type: ignore[arg-type]


def held_batch(local: Local) -> tuple[threading.Event, Any]:
    """A batch that is computed until an event is set."""
    begun = threading.Event()
    go = threading.Event()

    def compute(units: Sequence[int]) -> Sequence[int]:
        begun.set()
        assert go.wait(30)
        return units

    batcher = local.application.pipeline.batchers["network"]
    batcher.submit(InferenceJob([0], [1], compute))
    assert begun.wait(30)
    return go, batcher


class Steps:
    """The steps of a network, with the number of hypotheses of each; the third one waits."""

    def __init__(self, network: Any):
        self._step = network.step
        self.rows = list[int]()
        self.reached = threading.Event()
        self.go = threading.Event()

    def __call__(self, tokens: torch.Tensor, *inputs: Any) -> torch.Tensor:
        self.rows.append(len(tokens))
        if len(self.rows) == 3:
            self.reached.set()
            assert self.go.wait(30)
        logits: torch.Tensor = self._step(tokens, *inputs)
        return logits


@pytest.mark.parametrize("others", [0, 1, 2])
@pytest.mark.usefixtures("one_thread")
def test_a_client_that_goes_away_ends_its_translation_between_two_steps(
    others: int, model: Path, monkeypatch: pytest.MonkeyPatch
):
    """Those of other clients in the same batch go on, and are what they would be alone."""
    with Local(model, precision="fp32") as local:
        go, batcher = held_batch(local)
        steps = Steps(translator_of(local).network)
        monkeypatch.setattr(translator_of(local).network, "step", steps)

        async def ask_all() -> list[tuple[int, Any]]:
            goes = asyncio.Event()
            stays = asyncio.Event()
            body = {"texts": [SENTENCE, TEXTS[0]]}
            requests = [
                asyncio.create_task(ask_until(gone, local.application, "/translate", body))
                for gone in [goes, *[stays] * others]
            ]
            while waiting(batcher) < 1 + others:
                await asyncio.sleep(0.01)
            go.set()
            assert await asyncio.to_thread(steps.reached.wait, 30)
            goes.set()
            first = await requests[0]
            steps.go.set()
            return [first, *[await one for one in requests[1:]]]

        (status, _), *answers = asyncio.run(ask_all())
        assert status == 499
        while batcher.busy:
            time.sleep(0.01)
        assert not batcher.costs
        hypotheses = 2 * 4
        assert steps.rows[:3] == [hypotheses * (1 + others)] * 3
        assert len(steps.rows) == 3 or steps.rows[3] == hypotheses * others
        assert (len(steps.rows) == 3) == (others == 0)
        for answer in answers:
            assert answer == (200, expected(model, [SENTENCE, TEXTS[0]]))


@pytest.mark.usefixtures("one_thread")
def test_requests_with_the_same_rules_are_computed_together(
    model: Path, monkeypatch: pytest.MonkeyPatch
):
    with Local(model, precision="fp32") as local:
        go, batcher = held_batch(local)
        steps = Steps(translator_of(local).network)
        steps.go.set()
        monkeypatch.setattr(translator_of(local).network, "step", steps)
        submit = batcher.submit

        def submitted(job: InferenceJob, patience: float) -> Any:
            future = submit(job, patience)
            if waiting(batcher) == 6:
                go.set()
            return future

        monkeypatch.setattr(batcher, "submit", submitted)
        bodies = [{"texts": ["a"], "max_tokens": 2, "beam": beam} for beam in (2, 2, 3, 3, 3, 2)]
        answers = local.all([("POST", "/translate", {"json": body}) for body in bodies])
        assert {answer.status_code for answer in answers} == {200}
        assert sorted(steps.rows) == [6, 6, 9, 9]


def test_a_client_with_many_texts_does_not_hold_up_another_one(
    model: Path, monkeypatch: pytest.MonkeyPatch
):
    """The translations of a request are computed in several batches, and others come between."""
    with Local(model, precision="fp32") as local:
        translator = translator_of(local)
        search = translator.hypotheses
        batches = list[int]()

        def counted(sources: Any, *options: Any) -> Any:
            batches.append(len(sources))
            return search(sources, *options)

        monkeypatch.setattr(translator, "hypotheses", counted)
        local.application.pipeline.batchers["network"].speed = 1000.0
        texts = [SENTENCE] * 64
        assert local.post("/translate", {"texts": texts, "max_tokens": 1}).status_code == 200
        assert sum(batches) == 64
        assert len(batches) > 4


def test_what_is_no_number_is_an_error(model: Path, monkeypatch: pytest.MonkeyPatch):
    with Local(model, precision="fp32") as local:
        network = translator_of(local).network
        step = network.step
        monkeypatch.setattr(network, "step", lambda *inputs: step(*inputs) * torch.nan)
        answer = local.post("/translate", {"texts": TEXTS})
        assert (answer.status_code, answer.json()["error_type"]) == (424, "Backend")
        assert "not finite" in answer.json()["error"]
