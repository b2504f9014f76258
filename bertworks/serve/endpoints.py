"""Requests -> answers, by the names of the server's paths. No HTTP, no threads.

An endpoint is a generator: it checks a request, yields what to compute, gets the results, and returns the answer.

- pre-trained models: vectors, cosines, tokens for masks, in the formats of Text Embeddings Inference (TEI) and OpenAI
- fine-tuned models: labels, ranks, entities, answers, in the formats of TEI and of Hugging Face's pipelines
- `Abilities`: all endpoints of one model
"""

import base64
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import bertworks
from bertworks.batching.features import Features
from bertworks.errors import BertworksError, UsageError
from bertworks.inference.decoding import Decoder, sigmoid
from bertworks.inference.embed import Embedder, normalized
from bertworks.inference.engine import LazyModel
from bertworks.inference.explain import explain
from bertworks.inference.masked_lm import Filler
from bertworks.inference.predictor import Predictor, item_of
from bertworks.retrieval.index import Index
from bertworks.retrieval.ranking import Reranker, fits_pairs, matches_of
from bertworks.serve.batching import InferenceJob, Limits, RequestError, grant
from bertworks.training.device import PrecisionOption, choose_device

Request = Mapping[str, Any]
Steps = Generator[InferenceJob, Sequence[Any], Any]  # returns a JSON value, or a list of vectors
Endpoint = Callable[[Request], Steps]
Rows = NDArray[np.float32]
MAX_FILLINGS = 100  # of a mask
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "int8": "int8"}  # the names of TEI
TASKS = {  # task -> endpoint, and what it reads; other tasks predict, and read what their columns are
    "tagging": ("ner", "text"), "spans": ("ner", "text"), "qa": ("qa", "question"), "choice": ("predict", "choices"),
}  # fmt: skip


def _list_of(inputs: Any) -> list[Any]:
    return inputs if isinstance(inputs, list) else [inputs]


def _like(inputs: Any, answers: list[Any]) -> Any:
    """A list of answers to a list of inputs, a single answer to a single input."""
    return answers if isinstance(inputs, list) else answers[0]


def _alone(work: Callable[[], Any]) -> Steps:
    """What is computed without a network."""
    return (yield InferenceJob([work], [1], call_each))[0]


def call_each(units: Sequence[Callable[[], Any]]) -> list[Any]:
    """Compute units that are functions."""
    return [work() for work in units]


def _refuse_truncated(request: Request, truncated: Sequence[int]) -> None:
    """truncated: number of tokens that do not fit, of each text."""
    number = next((n for n, count in enumerate(truncated) if count), None)
    if request.get("truncate") is False and number is not None:
        what = f"text {number} is {truncated[number]} tokens too long"
        raise RequestError(413, what, hint='shorten it, or send it with "truncate"')


def check_tokens(tokens: int, limit: int) -> None:
    """Raises RequestError if a request has too many tokens."""
    grant(tokens <= limit, 413, f"{tokens:,} tokens: expected {limit:,} at most", hint="send less at once")


class PretrainedEndpoints:
    """The endpoints of a model that is not fine-tuned. An exported model has vectors or tokens for masks, not both."""

    def __init__(self, model: LazyModel, precision: PrecisionOption = "auto"):
        self._name, self.endpoints = model.name, dict[str, Endpoint]()
        self.info: dict[str, Any] = {"task": "embedding", "prompts": {}, "model_type": {"embedding": {"pooling": None}}}
        with suppress(BertworksError):
            self._filler = Filler(model)
            self._fillings = partial(self._filler.top_tokens, k=MAX_FILLINGS)
            self.endpoints["fill"] = self.fill
            self.info |= {"task": "masked-lm", "max_input_length": self._filler.longest}
        try:
            self._embedder = e = Embedder(model, precision=precision)
            self.endpoints |= {"embed": self.embed, "similarity": self.similarity, "embeddings": self.embeddings}
            self.info |= {
                "max_input_length": e.settings.max_length, "prompts": dict(e.settings.prompts),
                "dimension": e.dimension, "model_dtype": DTYPES[e.precision],
                "model_type": {"embedding": {"pooling": e.settings.pooling}},
            }  # fmt: skip
        except BertworksError:
            if not self.endpoints:
                raise

    def _vectors(self, texts: list[str], request: Request) -> Steps:
        """Vectors [texts, dimension] before normalization, and the number of tokens."""
        units, truncated = self._embedder.units(texts, self.info["prompts"].get(request.get("prompt_name")))
        _refuse_truncated(request, truncated)
        costs = [len(unit[0].input_ids) for unit in units]
        rows = yield InferenceJob(units, costs, self._embedder.raw)
        return np.stack(rows), sum(costs)

    def embed(self, request: Request) -> Steps:
        raw, _ = yield from self._vectors(_list_of(request["inputs"]), request)
        vectors = raw[:, : request["dimensions"]]
        return list(normalized(vectors) if request["normalize"] else vectors)

    def similarity(self, request: Request) -> Steps:
        texts = [request["inputs"]["source_sentence"], *request["inputs"]["sentences"]]
        # TEI reads these settings from `parameters` here, unlike in other paths.
        parameters = {name: value for name, value in (request["parameters"] or {}).items() if value is not None}
        raw, _ = yield from self._vectors(texts, {**request, **parameters})
        vectors = normalized(raw)
        return (vectors[1:] @ vectors[0]).tolist()

    def embeddings(self, request: Request) -> Steps:
        raw, tokens = yield from self._vectors(_list_of(request["input"]), request)
        vectors = normalized(raw[:, : request["dimensions"]]).astype("<f4")
        is_base64 = request["encoding_format"] == "base64"
        values = [base64.b64encode(vector).decode() if is_base64 else vector.tolist() for vector in vectors]
        data = [{"object": "embedding", "index": n, "embedding": value} for n, value in enumerate(values)]
        usage = dict.fromkeys(("prompt_tokens", "total_tokens"), tokens)
        return {"object": "list", "data": data, "model": self._name, "usage": usage}

    def fill(self, request: Request) -> Steps:
        try:
            queries = [self._filler.read(text) for text in _list_of(request["inputs"])]
        except BertworksError as error:  # a text without a mask
            raise UsageError(error.what, hint=error.hint) from None
        costs = [sum(query.costs) for query in queries]
        rows = yield InferenceJob(queries, costs, self._fillings)
        fillings = [self._filler.fillings(*pair, request["top_k"]) for pair in zip(queries, rows, strict=True)]
        return _like(request["inputs"], fillings)


class FinetunedEndpoints:
    """The endpoints of a fine-tuned model."""

    def __init__(self, model: LazyModel, precision: PrecisionOption = "auto"):
        self._predictor = Predictor(model, precision=precision)
        self._config = c = self._predictor.description
        self._decode = Decoder(c)
        self.reranker = Reranker(self._predictor) if fits_pairs(c) else None
        endpoint, reads = TASKS.get(c.task, ("predict", None))
        self.endpoints: dict[str, Endpoint] = {endpoint: getattr(self, endpoint)}
        if self.reranker is not None:
            self.endpoints["rerank"] = self.rerank
        reads = reads or ("text" if c.separator else {1: "text", 2: "pair"}.get(len(c.text), "text or pair"))
        names = c.labels or (("LABEL_0",) if c.task == "regression" else ())
        label_names = {"id2label": {str(n): name for n, name in enumerate(names)},
                       "label2id": {name: n for n, name in enumerate(names)}}  # fmt: skip
        self.info: dict[str, Any] = {
            "model_dtype": DTYPES[self._predictor.precision],
            "model_type": {"reranker" if self.reranker is not None else "classifier": label_names},
            "max_input_length": c.max_length,
            "task": c.task,
            "labels": list(c.labels),
            "reads": reads,
        }

    def _answers(self, inputs: Any, request: Request, decode: Callable[[Features, Rows], Any]) -> Steps:
        """inputs: a list of items, or one item. decode: an item and its logits -> its answer."""
        items = [item_of(value, number, self._config) for number, value in enumerate(_list_of(inputs))]
        features = [item_features for item in items for item_features in self._predictor.reading([item])]
        _refuse_truncated(request, [f.num_truncated for f in features])
        # Windows of a long text are separate units: they may be in several batches.
        is_choice = self._config.task == "choice"
        parts = [[f.unit] if is_choice else [[window] for window in f.unit] for f in features]
        units = [unit for part in parts for unit in part]
        costs = [sum(len(example.input_ids) for example in unit) for unit in units]
        rows = iter((yield InferenceJob(units, costs, self._predictor.logits)))
        logits = [np.concatenate(list(islice(rows, len(part)))) for part in parts]
        return _like(inputs, list(map(decode, features, logits)))

    def predict(self, request: Request) -> Steps:
        """In TEI a string is a text, a list is a pair (here also a prompt with its choices), a list of lists is a list
        of items."""
        inputs = request["inputs"]
        if isinstance(inputs, list) and isinstance(inputs[0], list):
            items: Any = [item[0] if len(item) == 1 else item for item in inputs]
        else:
            items = tuple(inputs) if isinstance(inputs, list) else inputs
        return self._answers(items, request, lambda *pair: self._label_scores(*pair, raw=request["raw_scores"]))

    def _label_scores(self, features: Features, logits: Rows, *, raw: bool) -> list[dict[str, Any]]:
        task, answer = self._config.task, self._decode(features, logits)
        if task == "regression":
            return [{"score": answer["value"], "label": "LABEL_0"}]
        is_choice = task == "choice"
        names = features.item.texts[1:] if is_choice else self._config.labels
        scores = answer["scores"] if is_choice else list(answer["scores"].values())
        if raw:
            scores = (logits[:, 0] if is_choice else logits[0]).tolist()
        items = [{"score": score, "label": name} for score, name in zip(scores, names, strict=True)]
        for number, item in enumerate(items):
            if is_choice:
                item["index"] = number
            if task == "multilabel":
                item["given"] = item["label"] in answer["labels"]
        return sorted(items, key=itemgetter("score"), reverse=True)

    def rerank(self, request: Request) -> Steps:
        def score(_: Features, logits: Rows) -> float:
            value = logits[0, 1:] - logits[0, :1] if self._config.labels else logits[0]
            return float(value[0] if request["raw_scores"] else sigmoid(value / self._config.temperature)[0])

        scores = yield from self._answers([(request["query"], text) for text in request["texts"]], request, score)
        items = [{"index": n, "score": score} for n, score in enumerate(scores)]
        if request["return_text"]:
            items = [item | {"text": text} for item, text in zip(items, request["texts"], strict=True)]
        return sorted(items, key=itemgetter("score"), reverse=True)

    def ner(self, request: Request) -> Steps:
        return self._answers(request["inputs"], request, self._entities)

    def _entities(self, features: Features, logits: Rows) -> list[dict[str, Any]]:
        answer, text = self._decode(features, logits), features.item.texts[0]
        if self._config.tag_scheme:
            entities = [(e["type"], e["score"], e["start"], e["end"]) for e in answer["entities"]]
        else:
            spans = zip(answer["tags"], answer["scores"], features.offsets.tolist(), strict=True)
            entities = [(tag, score, start, end) for tag, score, (start, end) in spans]
        return [
            {"entity_group": group, "score": score, "start": start, "end": end, "word": text[start:end]}
            for group, score, start, end in entities
        ]

    def qa(self, request: Request) -> Steps:
        def decode(features: Features, logits: Rows) -> dict[str, Any]:
            answer, k = self._decode(features, logits), request["top_k"]
            best = {name: answer[name] for name in ("answer", "score", "start", "end")}
            others = [{"answer": other.pop("text"), **other} for other in answer["n_best"][:k]]
            return {**best, "n_best": others} if k > 1 else best

        inputs = request["inputs"]
        questions = [(question["question"], question["context"]) for question in _list_of(inputs)]
        return self._answers(_like(inputs, questions), request, decode)


class Abilities:
    """All endpoints of a model and an index.

    Args:
        model: a folder, pre-trained, fine-tuned, exported or of sentence-transformers; `minilm`; a hub id.
        index: the folder of an index, searched with the model that made it.
        precision: of vectors as in `Embedder`, of predictions as in `Predictor`.

    Attributes:
        on_cpu: whether the device is the CPU.
        endpoints: by name. They raise UsageError if a request cannot be met.
        info: the model's part of `GET /info`.

    Raises:
        BertworksError: no such model or index.
        UsageError: an exported model in bf16.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        index: str | Path | None = None,
        device: str = "auto",
        precision: PrecisionOption = "auto",
        limits: Limits | None = None,
    ):
        self.limits, self._model = limits or Limits(), LazyModel(model, device)
        self.name, self.tokenizer = self._model.name, self._model.tokenizer
        self.on_cpu = choose_device(device).type == "cpu"
        finetuned = FinetunedEndpoints(self._model, precision) if self._model.has_task else None
        network = finetuned or PretrainedEndpoints(self._model, precision)
        self.endpoints, self.info = network.endpoints, network.info
        if index is not None:
            # A fine-tuned model reranks; the index opens the model that made it.
            self._index = Index(index, model=None if finetuned else self._model, device=device)
            self._index.embedder  # noqa: B018  report a wrong model at once
            self._reranker = finetuned.reranker if finetuned else None
            self.endpoints["search"] = self.search
            self.info["index"] = {
                "documents": len(self._index), "model": self._index.manifest.model,
                "rerank": self._reranker is not None, "rankings": ["hybrid", "dense", "bm25"],
            }  # fmt: skip
        if not self._model.exported:
            self.endpoints["explain"] = self.explain
        self.endpoints |= {"tokenize": self.tokenize, "decode": self.decode}
        self.info = {
            "model_id": self.name, "model_sha": None, "model_dtype": "float32", "labels": [], "reads": "text",
            "prompts": {}, "dimension": None, "index": None, "abilities": list(self.endpoints),
            "mask_token": self.tokenizer.special_tokens.get("mask_token", "[MASK]"),
            "vocabulary": self.tokenizer.vocab_size, "version": bertworks.__version__, **self.info,
        }  # fmt: skip

    def search(self, request: Request) -> Steps:
        if request["rerank"] and self._reranker is None:
            raise UsageError("this server's model cannot rerank documents", hint='leave "rerank" out')
        rerank = self._reranker if request["rerank"] else None
        settings = {name: request[name] for name in ("query", "k", "ranking")}
        return _alone(partial(self._hits, rerank=rerank, matches=request["matches"], **settings))

    def _hits(self, query: str, *, matches: bool, **settings: Any) -> list[dict[str, Any]]:
        hits, words = self._index.search(query, **settings), self._index.language
        return [{**hit, **({"matches": matches_of(query, hit["text"], words)} if matches else {})} for hit in hits]

    def explain(self, request: Request) -> Steps:
        tokens = sum(map(len, self.tokenizer.ids(_list_of(request["inputs"]))))
        check_tokens(tokens, self.limits.explained_tokens)
        return _alone(partial(self._explanation, request))

    def _explanation(self, request: Request) -> dict[str, Any]:
        e = explain(self._model, *_list_of(request["inputs"]), target=request["target"], baseline=request["baseline"])
        absent = dict.fromkeys(("gradients", "completeness_error", "steps", "occlusion", "attention", "similarity"))
        maps = e.maps() if request["maps"] else {}
        size = {"layers": len(e.attention), "heads": len(e.attention[0])}
        return {**absent, **e.as_dict(), "model": self.name, "tokens": e.tokens, "spans": e.spans, **size, **maps}

    def tokenize(self, request: Request) -> Steps:
        t, prompt = self.tokenizer, self.info["prompts"].get(request["prompt_name"], "")
        encodings = t.encode_batch([prompt + text for text in _list_of(request["inputs"])])
        check_tokens(sum(len(encoding.ids) for encoding in encodings), self.limits.tokens)
        yield InferenceJob()
        return [
            [
                {"id": n, "text": t.tokens[n], "special": n in t.special_ids,
                 "start": None if is_added else span[0], "stop": None if is_added else span[1]}
                for n, span, is_added in zip(e.ids, e.offsets, e.special_tokens_mask, strict=True)
                if request["add_special_tokens"] or not is_added
            ]
            for e in encodings
        ]  # fmt: skip

    def decode(self, request: Request) -> Steps:
        yield InferenceJob()
        many = request["ids"] if request["ids"] and isinstance(request["ids"][0], list) else [request["ids"]]
        return [self.tokenizer.decode(ids, skip_special_tokens=request["skip_special_tokens"]) for ids in many]
