"""All endpoints of a server, by the names of its paths.

Their formats are those of Text Embeddings Inference (TEI), of OpenAI, and of Hugging Face's
pipelines.

An endpoint is a generator: it checks a request, yields what to compute, gets the results, and
returns the parts of the answer (`AnswerParts`). Parts are work, too: the server makes them in
turns, and only if they fit into its limit of bytes. No HTTP, no threads.

- `Part`, `AnswerParts`: an answer before it is made; `grouped_answer`: an answer that is a list of
  lists
- `check_answer`: refuses an answer that may be too large
- `to_json`, `json_size`, `joined_list`, `joined_lists`: parts as JSON, put together without reading
  them again
- `PretrainedEndpoints`: vectors, cosines and tokens for masks
- `FinetunedEndpoints`: labels, ranks, entities, answers
- `TranslatorEndpoints`: translations
- `Abilities`: all endpoints of a server: those of its model, by one of the classes above, and
  those that every model has: search in an index, explanations, tokens
"""

import base64
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain, islice
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import orjson
from numpy.typing import NDArray

import bertworks
from bertworks.batching.examples import ExampleGroup
from bertworks.checkpoints.model_files import weights_sha256
from bertworks.datasets.schema import Item
from bertworks.errors import BertworksError, UsageError, expect
from bertworks.events import JsonObject
from bertworks.inference.embedder import Embedder, normalized
from bertworks.inference.engine import LazyModel
from bertworks.inference.explain import explain
from bertworks.inference.masked_lm import Filler
from bertworks.inference.predictor import Predictor, item_of
from bertworks.inference.translation import DecodingRules, Hypothesis, Translator
from bertworks.retrieval.index import RERANKED, Index
from bertworks.retrieval.ranking import (
    Reranker,
    fits_pairs,
    places_of,
    query_words,
    words_to_mark,
)
from bertworks.serve.batching import InferenceJob, Limits, RequestError, grant
from bertworks.serve.examples import read_examples
from bertworks.serve.openapi import INVOCATIONS
from bertworks.serve.token_tables import TokenIds, read_table
from bertworks.tasks.questions import NUM_BEST_SPANS
from bertworks.tasks.registry import task_of
from bertworks.tasks.sequences import Features
from bertworks.tasks.task import Featurizer, TooManyTokensError, sigmoid, softmax
from bertworks.text.tokenizer import Tokenizer
from bertworks.training.device import PrecisionOption, choose_device

MAX_FILLINGS = 100  # of a mask
TEXTS_AT_ONCE = 64  # texts that are read before the number of their tokens is checked
VECTOR_PART = 1 << 18  # bytes of a part of an answer with the vectors of tokens
RERANKED_AT_ONCE = 8  # documents that are read with the query in one turn
# that are tokenised together: a request's text may be long, and memory is limited
CHARACTERS_AT_ONCE = 1 << 16
MAX_MATCHES = 1000  # places of words of a query that are marked in one document
QUERY_COST = 8  # of a search, in words and tokens of its query: what does not depend on them
TRIAL_WORDS = 32  # of a text to measure the speed: each is about a token in any vocabulary
USUAL_BEAM = 4  # hypotheses of a source, which together cost as much as its tokens
SHORT_EXPLANATION = 32  # tokens: those of shorter texts do not wait for those of longer ones
# Bytes of the names and numbers in one item of an answer, without its texts, at most.
FILLING_BYTES = 140
LABEL_BYTES = 100
RANK_BYTES = 100
ENTITY_BYTES = 150
ANSWER_BYTES = 150
TOKEN_BYTES = 120
TRANSLATION_BYTES = 120
MATCH_BYTES = 48
# Bytes of JSON, at most.
NUMBER_BYTES = 26  # a float64 or a whole number, and a comma
FLOAT32_BYTES = 16  # the shortest digits of a float32, and a comma
CHARACTER_BYTES = 6  # a control character: \\u0001


class Part(NamedTuple):
    """A part of an answer.

    make: returns the part, a JSON value. Parts are made in any order, and not at all if the answer
        would be too large or the client has gone.
    size: its bytes as JSON, at most. They are also its cost: work is shared by them.
    """

    make: Callable[[], Any]
    size: int


@dataclass(frozen=True)
class AnswerParts:
    """An answer that is not made yet.

    join: the parts as JSON, in order -> the answer as JSON.
    truncated: of each text that was read, the number of tokens that did not fit and were left out.
    """

    parts: Sequence[Part]
    join: Callable[[Sequence[bytes]], bytes]
    truncated: Sequence[int] = ()

    @property
    def size(self) -> int:
        """The bytes of the whole answer, at most."""
        return sum(part.size for part in self.parts)


Request = Mapping[str, Any]
Rows = NDArray[np.float32]
Ids = NDArray[np.int32]
Steps = Generator[InferenceJob, Sequence[Any], AnswerParts]
Endpoint = Callable[[Request], Steps]
PART_TOKENS = 2048  # tokens that a part of an answer spells: some milliseconds of work
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "int8": "int8"}  # the names of TEI


def to_json(value: Any) -> bytes:
    """Return a value as JSON.

    NaN and infinite numbers are null.
    """
    return msgspec.json.encode(value, enc_hook=_encode_vector)


def _encode_vector(vector: NDArray[np.float32]) -> msgspec.Raw:
    """Return the shortest digits that give the same float32."""
    return msgspec.Raw(orjson.dumps(vector, option=orjson.OPT_SERIALIZE_NUMPY))


def json_size(text: str) -> int:
    """Return the bytes of a string as JSON."""
    return len(msgspec.json.encode(text))


def joined_list(parts: Iterable[bytes]) -> bytes:
    """Return a list of values that are JSON already."""
    return b"[" + b",".join(parts) + b"]"


def joined_lists(parts: Iterable[bytes]) -> bytes:
    """Return the items of several lists that are JSON already, as one list."""
    return joined_list(part[1:-1] for part in parts if len(part) > 2)


def grouped_answer(groups: Sequence[Sequence[Part]], truncated: Sequence[int] = ()) -> AnswerParts:
    """Return an answer that is a list of lists.

    A group has the parts of one inner list; each part is a list.
    """

    def join(pieces: Sequence[bytes]) -> bytes:
        remaining = iter(pieces)
        return joined_list(joined_lists(islice(remaining, len(group))) for group in groups)

    return AnswerParts(list(chain.from_iterable(groups)), join, truncated)


def only_part(parts: Sequence[bytes]) -> bytes:
    """Return the JSON of an answer with one part."""
    (part,) = parts
    return part


def check_answer(size: int, limit: int) -> None:
    """Raise RequestError if an answer may have too many bytes."""
    grant(
        size <= limit,
        413,
        f"the answer may have {size:,} bytes: expected {limit:,} at most",
        hint="send less at once, or request fewer results",
    )


def like_inputs(inputs: Any) -> Callable[[Sequence[bytes]], bytes]:
    """Return the `join` of answers with a part for each input.

    It is a list for a list of inputs, else the single part.
    """
    return joined_list if isinstance(inputs, list) else only_part


def list_of(inputs: Any) -> list[Any]:
    """Return the inputs as a list, also a single one."""
    return inputs if isinstance(inputs, list) else [inputs]


def call_each(units: Sequence[Callable[[], Any]]) -> list[Any]:
    """Compute units that are functions."""
    return [work() for work in units]


class TextTooLongError(RequestError):
    """A text is longer than the model reads, and the request does not permit to truncate it."""

    code = "context_length_exceeded"  # of OpenAI


def refuse_truncated(request: Request, truncated: Sequence[int]) -> None:
    """truncated: number of tokens that do not fit, of each text."""
    number = next((n for n, count in enumerate(truncated) if count), None)
    if request.get("truncate") is False and number is not None:
        raise TextTooLongError(
            413,
            f"text {number} is {truncated[number]} tokens too long",
            hint='shorten it, or send it with "truncate"',
        )


def keeps_end(request: Request) -> bool:
    """Return whether a text that is too long loses its beginning."""
    return request.get("truncation_direction") == "Left"


def check_tokens(tokens: int, limit: int) -> None:
    """Raise RequestError if a request has too many tokens."""
    grant(
        tokens <= limit,
        413,
        f"{tokens:,} tokens: expected {limit:,} at most",
        hint="send less at once",
    )


class PretrainedEndpoints:
    """The endpoints of a model that is not fine-tuned.

    An exported model has vectors or tokens for masks, not both.

    token_ids: what the ids of tokens mean that are sent to `/v1/embeddings`; None: they are
        refused.
    """

    def __init__(
        self,
        model: LazyModel,
        limits: Limits,
        precision: PrecisionOption = "auto",
        token_ids: TokenIds | None = None,
        windows: int = 0,
    ):
        self._token_table = None if token_ids in (None, "own") else read_table(token_ids)
        self._name = model.name
        self.endpoints = dict[str, Endpoint]()
        self._limits = limits
        self.info: JsonObject = {
            "task": "embedding",
            "prompts": {},
            "model_type": {"embedding": {"pooling": None}},
        }
        with suppress(BertworksError):
            self._filler = Filler(model)
            self._fillings = partial(self._filler.top_tokens, k=MAX_FILLINGS)
            self.endpoints["fill"] = self.fill
            self.info |= {"task": "masked-lm", "max_input_length": self._filler.longest}
        try:
            self._embedder = e = Embedder(model, windows=windows, precision=precision)
            self.endpoints["embed"] = self.embed
            if windows <= 1:  # else a token may have several states
                self.endpoints["embed_all"] = self.embed_all
            self.endpoints |= {
                "similarity": self.similarity,
                "embeddings": self.embeddings,
            }
            self.info |= {
                "max_input_length": e.settings.max_length,
                "windows": windows,
                "prompts": dict(e.settings.prompts),
                "dimension": e.dimension,
                "model_dtype": DTYPES[e.precision],
                "model_type": {"embedding": {"pooling": e.settings.pooling}},
            }
            if token_ids is not None:
                table = self._token_table
                count = e.tokenizer.vocab_size if table is None else len(table.tokens)
                self.info["token_ids"] = {"encoding": token_ids, "vocabulary": count}
        except BertworksError:
            if not self.endpoints:
                raise

    def _vectors(
        self, texts: list[Any], request: Request, value_bytes: int
    ) -> Generator[InferenceJob, Sequence[Any], tuple[Rows, list[int], int]]:
        """Return vectors [texts, dimension] before normalization, and numbers of tokens.

        These are the number of truncated tokens of each text, and of tokens that were read.

        Args:
            texts: strings, or for each text the ids of its tokens.
            value_bytes: of each value of a vector in the answer, at most.
        """
        dimensions = request.get("dimensions") or self._embedder.dimension
        check_answer(len(texts) * dimensions * value_bytes, self._limits.answer_bytes)
        units, costs, truncated = self._units(texts, request)
        rows = yield InferenceJob(units, costs, self._embedder.raw)
        return np.stack(rows), truncated, sum(costs)

    def _units(
        self, texts: list[str], request: Request
    ) -> tuple[list[ExampleGroup], list[int], list[int]]:
        """Return the input of the network for each text.

        With it come the number of its tokens, and the number of its truncated tokens.

        Raises:
            RequestError: the texts have too many tokens, or one may not be truncated.
        """
        prompt = self.info["prompts"].get(request.get("prompt_name"))
        units = list[ExampleGroup]()
        truncated = list[int]()
        costs = list[int]()
        for start in range(0, len(texts), TEXTS_AT_ONCE):
            some_texts = texts[start : start + TEXTS_AT_ONCE]
            units_of = (
                self._embedder.units if isinstance(texts[0], str) else self._embedder.units_of_ids
            )
            more_units, more_truncated = units_of(some_texts, prompt, keep_end=keeps_end(request))
            units += more_units
            truncated += more_truncated
            costs += [sum(len(example.input_ids) for example in unit) for unit in more_units]
            check_tokens(sum(costs), self._limits.tokens)  # what is too much is not read to its end
        refuse_truncated(request, truncated)
        return units, costs, truncated

    def embed_all(self, request: Request) -> Steps:
        """Yield the vectors of all tokens of each text, as they leave the network."""
        units, costs, truncated = self._units(list_of(request["inputs"]), request)
        row_bytes = FLOAT32_BYTES * self._embedder.width + 2
        check_answer(sum(costs) * row_bytes, self._limits.answer_bytes)
        texts = yield InferenceJob(units, costs, self._embedder.token_vectors)
        at_once = max(1, VECTOR_PART // row_bytes)
        groups = list[list[Part]]()
        for vectors in texts:
            pieces = [vectors[start : start + at_once] for start in range(0, len(vectors), at_once)]
            groups.append([Part(partial(np.asarray, p), row_bytes * len(p) + 2) for p in pieces])
        return grouped_answer(groups, truncated)

    def trial_job(self, text: str, count: int) -> InferenceJob:
        """Return what the network computes for `count` texts."""
        if "embed" in self.endpoints:
            return next(self._vectors([text] * count, {}, 0))
        queries = [
            self._filler.read(f"{self._filler.tokenizer.special_tokens['mask_token']} {text}")
        ] * count
        return InferenceJob(queries, [sum(query.costs) for query in queries], self._fillings)

    def embed(self, request: Request) -> Steps:
        """Compute the vectors of texts, as Text Embeddings Inference does."""
        texts = self._texts_or_ids(request["inputs"])
        raw, truncated, _ = yield from self._vectors(texts, request, FLOAT32_BYTES)
        vectors = raw[:, : request["dimensions"]]
        if request["normalize"]:
            vectors = normalized(vectors)
        size = FLOAT32_BYTES * vectors.shape[1] + 2
        parts = [Part(partial(np.asarray, vector), size) for vector in vectors]
        return AnswerParts(parts, joined_list, truncated)

    def similarity(self, request: Request) -> Steps:
        """Compute the similarities of one text with others."""
        texts = [request["inputs"]["source_sentence"], *request["inputs"]["sentences"]]
        raw, truncated, _ = yield from self._vectors(texts, request, 0)
        vectors = normalized(raw)
        cosines = (vectors[1:] @ vectors[0]).tolist()
        part = Part(lambda: cosines, NUMBER_BYTES * len(cosines) + 2)
        return AnswerParts([part], only_part, truncated)

    def embeddings(self, request: Request) -> Steps:
        """Compute the vectors of texts, as OpenAI's API does."""
        is_base64 = request["encoding_format"] == "base64"
        texts = self._texts_or_ids(request["input"])
        if self._token_table is not None and not isinstance(texts[0], str):
            texts = [self._token_table.text(ids) for ids in texts]
        raw, truncated, tokens = yield from self._vectors(
            texts, request, 6 if is_base64 else FLOAT32_BYTES
        )
        vectors = normalized(raw[:, : request["dimensions"]]).astype("<f4")

        def item(number: int) -> JsonObject:
            vector = vectors[number]
            value = base64.b64encode(vector).decode() if is_base64 else vector
            return {"object": "embedding", "index": number, "embedding": value}

        usage = {
            "prompt_tokens": tokens,
            "total_tokens": tokens,
            "truncated_texts": int(np.count_nonzero(truncated)),
            "truncated_tokens": sum(truncated),
        }

        def join(items: Sequence[bytes]) -> bytes:
            data = msgspec.Raw(joined_list(items))
            return to_json({"object": "list", "data": data, "model": self._name, "usage": usage})

        size = FLOAT32_BYTES * vectors.shape[1] + 100
        parts = [Part(partial(item, number), size) for number in range(len(vectors))]
        return AnswerParts(parts, join, truncated)

    def _texts_or_ids(self, inputs: Any) -> list[Any]:
        """Return a list of texts, or of lists with the ids of the tokens of each text.

        Raises:
            RequestError: the lists of ids are too long together.
        """
        if isinstance(inputs, list) and isinstance(inputs[0], int):
            inputs = [inputs]
        texts = list_of(inputs)
        if not isinstance(texts[0], str):
            check_tokens(sum(map(len, texts)), self._limits.tokens)
        return texts

    def fill(self, request: Request) -> Steps:
        """Compute the most probable tokens of masks."""
        try:
            queries = [self._filler.read(text) for text in list_of(request["inputs"])]
        except BertworksError as error:  # a text without a mask
            raise UsageError(error.what, hint=error.hint) from None
        top_k = request["top_k"]
        has_text = request["return_text"]
        compute = self._fillings
        if request.get("targets"):
            targets = list(dict.fromkeys(map(self._filler.target, request["targets"])))
            compute = partial(self._filler.top_tokens, k=top_k, targets=targets)
        costs = [sum(query.costs) for query in queries]
        least_size = 0  # of the answer: known before anything is computed
        for query in queries:
            copied = len(query.text) if has_text and len(query.masks) == 1 else 0
            least_size += len(query.masks) * FILLING_BYTES + copied
        least_size *= min(top_k, self._filler.tokenizer.vocab_size)
        check_answer(least_size, self._limits.answer_bytes)
        rows = yield InferenceJob(queries, costs, compute)
        parts = list[Part]()
        counts = list[list[int]]()  # of each text, of each mask: the number of its parts
        for query, top_tokens in zip(queries, rows, strict=True):
            # A sentence with several masks would be repeated for each mask and token: its answer
            # would grow with the square of its length.
            has_sequence = len(query.masks) == 1
            spelled = max(1, len(query.ids) * (has_sequence + has_text))
            at_once = max(1, PART_TOKENS // spelled) if has_sequence or has_text else top_k
            longest = CHARACTER_BYTES * self._longest_token
            size = FILLING_BYTES + longest  # of one filling, at most
            if has_sequence:
                sequence = self._filler.tokenizer.decode(query.ids, skip_special_tokens=False)
                size += json_size(sequence) + longest
            if has_sequence and has_text:
                size += json_size(query.text) + longest
            counts.append([])
            for mask in range(len(query.masks)):
                starts = range(0, min(top_k, top_tokens.shape[2]), at_once)
                counts[-1].append(len(starts))
                for start in starts:
                    best = top_tokens[mask, :, start : min(start + at_once, top_k)]
                    make = partial(
                        self._filler.fillings_of_mask,
                        query,
                        mask,
                        best,
                        sequence=has_sequence,
                        text=has_text and has_sequence,
                    )
                    parts.append(Part(make, size * best.shape[1] + 4))

        def join(pieces: Sequence[bytes]) -> bytes:
            remaining = iter(pieces)
            texts = list[bytes]()
            for counts_of_text in counts:
                masks = [joined_lists(islice(remaining, count)) for count in counts_of_text]
                texts.append(masks[0] if len(masks) == 1 else joined_list(masks))
            return like_inputs(request["inputs"])(texts)

        return AnswerParts(parts, join)

    @cached_property
    def _longest_token(self) -> int:
        """The characters of the longest token of the vocabulary."""
        return max(map(len, self._filler.tokenizer.tokens))


class FinetunedEndpoints:
    """The endpoints of a fine-tuned model."""

    def __init__(self, model: LazyModel, limits: Limits, precision: PrecisionOption = "auto"):
        self._limits = limits
        self._predictor = Predictor(model, precision=precision)
        self._config = c = self._predictor.description
        self.has_values = not c.labels  # its score for a pair is a value, not a probability
        self.reranker = Reranker(self._predictor) if fits_pairs(c) else None
        self._task = self._predictor.task
        endpoint = self._task.endpoint
        reads = self._task.reads
        self.endpoints: dict[str, Endpoint] = {endpoint: getattr(self, endpoint)}
        if self.reranker is not None:
            self.endpoints["rerank"] = self.rerank
        reads = reads or (
            "text" if c.separator else {1: "text", 2: "pair"}.get(len(c.text), "text or pair")
        )
        names = c.labels or (("LABEL_0",) if self._task.predicts_numbers else ())
        label_names = {
            "id2label": {str(n): name for n, name in enumerate(names)},
            "label2id": {name: n for n, name in enumerate(names)},
        }
        self.info: JsonObject = {
            "model_dtype": DTYPES[self._predictor.precision],
            "model_type": {"reranker" if self.reranker is not None else "classifier": label_names},
            "max_input_length": c.max_length,
            "windows": c.windows,
            "task": c.task,
            "labels": list(c.labels),
            "reads": reads,
            "entities": c.tag_scheme is not None and endpoint == "ner",
        }

    def _logits(
        self,
        inputs: Sequence[Any],
        request: Request,
        size: Callable[[Features], int],
        at_once: int | None = None,
    ) -> Generator[InferenceJob, Sequence[Any], list[tuple[Features, Rows]]]:
        """Return each item as the network reads it, and its logits.

        Args:
            inputs: a list of items.
            size: the bytes of the answer to an item, at most.
            at_once: the number of items that are read before other requests have their turn, and
                before the server looks whether the client has gone; None: all. Only None is allowed
                in the first step of an endpoint, because its costs are checked.
        """
        items = [item_of(value, number, self._task) for number, value in enumerate(inputs)]
        features = list[Features]()
        tokens = 0
        for item in items:
            item_features = self._features_of(item, keep_end=keeps_end(request))
            features.append(item_features)
            if at_once is not None and len(features) % at_once == 0:
                yield InferenceJob()
            tokens += sum(len(example.input_ids) for example in item_features.unit)
            check_tokens(tokens, self._limits.tokens)  # what is too much is not read to its end
        refuse_truncated(request, [f.num_truncated for f in features])
        check_answer(sum(map(size, features)), self._limits.answer_bytes)
        # Windows of a long text are separate units: they may be in several batches. But a
        # prediction about choices, or about the vectors of two texts, needs all sequences of its
        # item.
        are_together = self._task.predicts_texts
        parts = [[f.unit] if are_together else [[window] for window in f.unit] for f in features]
        units = [unit for part in parts for unit in part]
        costs = [sum(len(example.input_ids) for example in unit) for unit in units]
        rows = iter((yield InferenceJob(units, costs, self._predictor.logits)))
        logits = [np.concatenate(list(islice(rows, len(part)))) for part in parts]
        return list(zip(features, logits, strict=True))

    def trial_job(self, text: str, count: int) -> InferenceJob:
        """Return what the network computes for about `count` texts.

        These are fewer items if each has several parts (with a choice its prompt is read again).
        """
        num_parts = {"choice": 1 + (self._config.num_choices or 2), "qa": 2}.get(self._config.task)
        num_parts = num_parts or len(self._config.text) or 1
        item = text if num_parts == 1 else [text] * num_parts
        num_items = count if num_parts == 1 else max(1, count // (2 * num_parts))
        return next(self._logits([item] * num_items, {}, lambda features: 0))

    @cached_property
    def _reading(self) -> Featurizer:
        return replace(self._predictor.reading, most_tokens=self._limits.tokens)

    def _features_of(self, item: Item, *, keep_end: bool) -> Features:
        """Raise RequestError if an item has more tokens than a request may have."""
        reading = replace(self._reading, keep_end=True) if keep_end else self._reading
        try:
            (features,) = reading([item])
        except TooManyTokensError as error:
            raise RequestError(413, error.what, hint=error.hint) from None
        return features

    def _answers(
        self,
        inputs: Any,
        request: Request,
        decode: Callable[[Features, Rows], Any],
        size: Callable[[Features], int],
        *,
        nested: bool = False,
    ) -> Steps:
        """Answer items.

        Args:
            inputs: a list of items, or one item.
            decode: an item and its logits -> its answer.
            size: see `_logits`.
            nested: whether the answer to one item is in a list, too.
        """
        pairs = yield from self._logits(list_of(inputs), request, size)
        return AnswerParts(
            [Part(partial(decode, *pair), size(pair[0])) for pair in pairs],
            joined_list if nested else like_inputs(inputs),
            [features.num_truncated for features, _ in pairs],
        )

    def predict(self, request: Request) -> Steps:
        """Labels with their scores.

        Pipelines of transformers send `parameters`, and expect a list of labels for each text, even
        for a single one; TEI only for a list of items.
        """
        is_choice = self._task.counts_choices
        labels_size = self._labels_size

        def size(features: Features) -> int:
            names = features.item.texts[1:] if is_choice else ()
            return labels_size + sum(json_size(name) + LABEL_BYTES for name in names)

        function = request.get("function_to_apply") or ("none" if request["raw_scores"] else None)
        top_k = request.get("top_k")

        def decode(features: Features, logits: Rows) -> list[JsonObject]:
            """Return the labels of an item with their scores, the best first."""
            answer = self._task.decode(features, logits)
            if self._task.predicts_numbers:
                return [{"score": answer["value"], "label": "LABEL_0"}]
            names = self._task.score_names(features.item)
            scores = answer["scores"] if is_choice else list(answer["scores"].values())
            raw = logits[:, 0] if is_choice else logits[0]
            if function == "none":
                scores = raw.tolist()
            elif function is not None:
                to_probabilities = {"softmax": softmax, "sigmoid": sigmoid}[function]
                scores = to_probabilities(raw / self._config.temperature).tolist()
            items = [
                {"score": score, "label": name} for score, name in zip(scores, names, strict=True)
            ]
            for number, item in enumerate(items):
                if is_choice:
                    item["index"] = number
                if self._task.has_many_labels:
                    item["given"] = item["label"] in answer["labels"]
            return sorted(items, key=itemgetter("score"), reverse=True)[:top_k]

        # In TEI a string is a text, a list is a pair (here also a prompt with its choices), a list
        # of lists is a list of items. In pipelines a list is a list of texts, and an item may be an
        # object.
        nested = request["parameters"] is not None
        inputs = request["inputs"]
        if not isinstance(inputs, list):
            inputs = _item(inputs)
        elif not isinstance(inputs[0], str) or (
            nested and self.info["reads"] in ("text", "text or pair")
        ):
            inputs = list(map(_item, inputs))
        else:
            inputs = tuple(inputs)
        return self._answers(inputs, request, decode, size, nested=nested)

    @cached_property
    def _labels_size(self) -> int:
        """The bytes of an answer with all labels, at most."""
        names = self._config.labels or ("LABEL_0",)
        return sum(json_size(name) + LABEL_BYTES for name in names) + 2

    def relevance(
        self, query: str, texts: Sequence[str], request: Request, at_once: int | None = None
    ) -> Generator[InferenceJob, Sequence[Any], tuple[list[float], list[int]]]:
        """Return the score of each text for a query, and the number of its truncated tokens.

        at_once: see `_logits`.
        """
        pairs = yield from self._logits(
            [(query, text) for text in texts], request, lambda features: 0, at_once
        )
        scores = []
        for _, logits in pairs:
            value = logits[0, 1:] - logits[0, :1] if self._config.labels else logits[0]
            scores.append(
                float(
                    value[0]
                    if request["raw_scores"]
                    else sigmoid(value / self._config.temperature)[0]
                )
            )
        return scores, [features.num_truncated for features, _ in pairs]

    def rerank(self, request: Request) -> Steps:
        """Score texts for a query."""
        query = request["query"]
        texts = request["texts"]
        limit = self._limits.body_bytes
        # the query is read again with each text
        characters = len(query) * len(texts) + sum(map(len, texts))
        grant(
            characters <= limit,
            413,
            f"the texts, each with the query, have {characters:,} characters: expected "
            f"{limit:,} at most",
            hint="shorten the query or send fewer texts",
        )
        scores, truncated = yield from self.relevance(query, texts, request)
        items = [{"index": number, "score": score} for number, score in enumerate(scores)]
        sizes = [RANK_BYTES] * len(items)
        if request["return_text"]:
            items = [item | {"text": text} for item, text in zip(items, texts, strict=True)]
            sizes = [size + json_size(text) for size, text in zip(sizes, texts, strict=True)]
        items.sort(key=itemgetter("score"), reverse=True)
        return AnswerParts([Part(lambda: items, sum(sizes) + 2)], only_part, truncated)

    def ner(self, request: Request) -> Steps:
        """Find the entities of texts, or the tags of words."""
        longest = max(map(json_size, self._config.labels), default=0)
        ignored = frozenset(request.get("ignore_labels", ("O",) if self.info["entities"] else ()))
        if self.info["entities"] and "O" not in ignored:
            raise UsageError(
                'ignore_labels: only entities are listed: expected "O" among the labels to ignore',
                hint='add "O", or leave ignore_labels out',
            )

        def size(features: Features) -> int:
            return (
                (ENTITY_BYTES + longest) * len(features.offsets)
                + json_size(features.item.texts[0])
                + 2
            )

        def decode(features: Features, logits: Rows) -> list[JsonObject]:
            """Return the entities of a text, or its words with their tags."""
            answer = self._task.decode(features, logits)
            text = features.item.texts[0]
            if self._config.tag_scheme:
                entities = [
                    (e["type"], e["score"], e["start"], e["end"]) for e in answer["entities"]
                ]
            else:
                spans = zip(
                    answer["tags"], answer["scores"], features.offsets.tolist(), strict=True
                )
                entities = [(tag, score, start, end) for tag, score, (start, end) in spans]
            return [
                {
                    "entity_group": group,
                    "score": score,
                    "start": start,
                    "end": end,
                    "word": text[start:end],
                }
                for group, score, start, end in entities
                if group not in ignored
            ]

        return self._answers(request["inputs"], request, decode, size)

    def qa(self, request: Request) -> Steps:
        """Answer questions."""
        k = request["top_k"]
        config = self._config
        if "max_answer_len" in request:
            config = replace(config, max_answer=request["max_answer_len"])
        match request.get("handle_impossible_answer"):
            case True if config.threshold is None:
                # no answer, if that is better than the best one
                config = replace(config, threshold=0.0)
            case False:
                config = replace(config, threshold=None)
        task = task_of(config)

        def decode(features: Features, logits: Rows) -> Any:
            answer = task.decode(features, logits)
            best = {name: answer[name] for name in ("answer", "score", "start", "end")}
            candidates = [{"answer": other.pop("text"), **other} for other in answer["n_best"][:k]]
            if k == 1:
                return best
            if request["parameters"] is None:
                return {**best, "n_best": candidates}
            # In the list of a pipeline "no answer" is an answer like others.
            return candidates if best["answer"] else [best, *candidates][:k]

        def size(features: Features) -> int:
            """Return the bytes of an answer, which has up to `max_answer` tokens."""
            starts = features.offsets[:, 0]
            ends = features.offsets[:, 1]
            last = np.minimum(np.arange(len(ends)) + config.max_answer, len(ends)) - 1
            characters = int((ends[last] - starts).max(initial=0))
            longest = min(CHARACTER_BYTES * characters, json_size(features.item.texts[1]))
            return int((min(k, NUM_BEST_SPANS) + 1) * (longest + ANSWER_BYTES))

        inputs = request["inputs"]
        questions = [(question["question"], question["context"]) for question in list_of(inputs)]
        return self._answers(
            questions if isinstance(inputs, list) else questions[0], request, decode, size
        )


def _item(value: Any) -> Any:
    """Return an item of a request as the predictor reads it: a text, or a tuple of several.

    Args:
        value: a text, a list of texts, or an object of a pipeline with `text` and `text_pair`.
    """
    if isinstance(value, dict):
        value = list(filter(None, (value["text"], value.get("text_pair"))))
    if isinstance(value, str):
        return value
    return value[0] if len(value) == 1 else tuple(value)


class _Source(NamedTuple):
    """The tokens of a text that is translated, and whether its client still waits for it."""

    ids: list[int]
    is_wanted: Callable[[], bool]


@dataclass(frozen=True)
class _Translating:
    """The computation of translations. Requests with the same rules are computed together."""

    translator: Translator
    rules: DecodingRules
    max_tokens: int | None

    def __call__(self, sources: Sequence[_Source]) -> list[Hypothesis]:
        """Return the best hypothesis of each source.

        A source that is not wanted any more is left out after the present step.
        """
        return self.translator.hypotheses(
            [source.ids for source in sources],
            self.rules,
            self.max_tokens,
            lambda number: sources[number].is_wanted(),
        )


class TranslatorEndpoints:
    """The endpoint of a model with a decoder."""

    def __init__(self, model: LazyModel, limits: Limits, precision: PrecisionOption = "auto"):
        self._limits = limits
        self._translator = t = Translator(model, precision=precision)
        self.endpoints: dict[str, Endpoint] = {"translate": self.translate}
        self.info: JsonObject = {
            "task": "translation",
            "model_type": {"translator": {}},
            "model_dtype": DTYPES[t.precision],
            "max_input_length": t.longest,
            "target_languages": list(t.languages),
            "largest_beam": t.largest_beam,
        }

    def trial_job(self, text: str, count: int) -> InferenceJob:
        """Return what the network computes for `count` texts, up to as many tokens as they have."""
        rules = self._translator.rules()
        language = next(iter(self._translator.languages), None)
        sources = self._translator.sources(text, 1, language, cuts=True) * count
        return self._job(sources, rules, len(sources[0]))

    def translate(self, request: Request) -> Steps:
        """Translate texts."""
        t = self._translator
        rules = t.rules(request["beam"], request["length_penalty"], request["no_repeat_ngram"])
        texts = request["texts"]
        # before the texts are split into sentences: what is too much is not read to its end
        limit = self._limits.tokens
        check_tokens(sum(map(len, t.tokenizer.ids(texts, limit=limit))), limit)
        try:
            parts = [
                t.sources(text, number, request["target_language"], request["cut"])
                for number, text in enumerate(texts, 1)
            ]
        except TooManyTokensError as error:
            hint = 'shorten it; or "cut" leaves out its end'
            raise RequestError(413, error.what, hint=hint) from None
        job = self._job(list(chain.from_iterable(parts)), rules, request["max_tokens"])
        hypotheses = iter((yield job))

        def item(text: str, best: Sequence[Hypothesis]) -> JsonObject:
            answer = t.joined(text, best)
            return {name: answer[name] for name in ("translation", "score", "finish_reason")}

        answers = list[Part]()
        for text, sources in zip(texts, parts, strict=True):
            best = list(islice(hypotheses, len(sources)))
            ids = [number for hypothesis in best for number in hypothesis.ids]
            size = TRANSLATION_BYTES + spelled_size(ids, self._token_lengths)
            answers.append(Part(partial(item, text, best), size))
        return AnswerParts(answers, joined_list)

    def _job(
        self, sources: Sequence[list[int]], rules: DecodingRules, max_tokens: int | None
    ) -> InferenceJob:
        """Return the search for the translations of sources.

        It costs the tokens that are read, or that the request wants to be written if these are
        more, times the hypotheses that are followed.
        """
        most = min(max_tokens or 0, self._translator.config.max_position_embeddings)
        job = InferenceJob(compute=_Translating(self._translator, rules, max_tokens))
        future = job.future
        job.units = [_Source(ids, lambda: not future.cancelled()) for ids in sources]
        job.costs = [-(-max(len(ids), most) * rules.beam // USUAL_BEAM) for ids in sources]
        return job

    @cached_property
    def _token_lengths(self) -> NDArray[np.int64]:
        return token_lengths(self._translator.tokenizer.target)


def token_lengths(tokenizer: Tokenizer) -> NDArray[np.int64]:
    """Return the characters of each token of a vocabulary."""
    return np.array(list(map(len, tokenizer.tokens)), np.int64)


def spelled_size(ids: Sequence[int] | Ids, lengths: NDArray[np.int64]) -> int:
    """Return the bytes of tokens as JSON, at most, with a space before each.

    A token in a text is no longer than in the vocabulary, even if each of its characters stands for
    a byte.

    Args:
        lengths: those of `token_lengths`.
    """
    return CHARACTER_BYTES * (int(lengths[np.asarray(ids, np.int32)].sum()) + len(ids))


class Abilities:
    """All endpoints of a model and an index.

    Args:
        model: a folder, pre-trained, fine-tuned, exported or of sentence-transformers; `minilm`; a
            hub id.
        index: the folder of an index, searched with the model that made it.
        precision: of vectors as in `Embedder`, of predictions as in `Predictor`.
        token_ids: what the ids of tokens mean that clients send to `/v1/embeddings` instead of
            texts: those of the model ("own"), or of a vocabulary of OpenAI, whose table the cache
            of tiktoken has; None: they are refused.
        windows: of the vectors of long texts, see `Embedder`.
        examples: a file of texts that the page offers, see `read_examples`; None: no examples.

    Attributes:
        on_cpu: whether the device is the CPU.
        endpoints: by name. They raise UsageError if a request cannot be met.
        info: the model's part of `GET /info`.

    Raises:
        BertworksError: no such model or index.
        UsageError: no such file of examples, or none that the page can offer; an exported model
            in bf16.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        index: str | Path | None = None,
        device: str = "auto",
        precision: PrecisionOption = "auto",
        limits: Limits | None = None,
        token_ids: TokenIds | None = None,
        windows: int = 0,
        examples: str | Path | None = None,
    ):
        self.limits = limits or Limits()
        example_texts = [] if examples is None else read_examples(examples)
        self._model = LazyModel(model, device)
        self.name = self._model.name
        self.tokenizer = self._model.tokenizer
        self.tokenizer.characters_at_once = CHARACTERS_AT_ONCE
        self.on_cpu = choose_device(device).type == "cpu"
        expect(
            token_ids != "own" or not self.tokenizer.spells_words,
            "this model has no vocabulary: its tokens have no ids that clients could send",
            where=self._model.folder,
            hint="leave --token-ids out",
        )
        expect(
            not windows or (not self._model.has_task and self._model.config.decoder is None),
            "this model reads the number of windows of its training",
            where=self._model.folder,
            hint="leave --windows out; finetune --windows N trains with another one",
        )
        finetuned = (
            FinetunedEndpoints(self._model, self.limits, precision)
            if self._model.has_task
            else None
        )
        network: TranslatorEndpoints | FinetunedEndpoints | PretrainedEndpoints
        if self._model.config.decoder is not None:
            network = TranslatorEndpoints(self._model, self.limits, precision)
        else:
            network = finetuned or PretrainedEndpoints(
                self._model, self.limits, precision, token_ids, windows
            )
        self._network = network
        self.endpoints = network.endpoints
        self.info = network.info
        if index is not None:
            # A fine-tuned model reranks; the index opens the model that made it.
            self._index = Index(index, model=None if finetuned else self._model, device=device)
            self._index.embedder  # noqa: B018  report a wrong model at once
            self._reranking = finetuned if finetuned and finetuned.reranker else None
            self.endpoints["search"] = self.search
            self.info["index"] = {
                "documents": len(self._index),
                "model": self._index.manifest.model,
                "rerank": self._reranking is not None,
                "rankings": ["hybrid", "dense", "bm25"],
            }
        if not self._model.exported and self._model.config.kind not in ("static", "elmo"):
            self.endpoints["explain"] = self.explain
        if not self.tokenizer.spells_words:  # else tokens have no numbers
            self.endpoints |= {"tokenize": self.tokenize, "decode": self.decode}
        self.info = {
            "model_id": self.name,
            "served_model_name": self.name,
            "model_sha": None,
            "sha": weights_sha256(self._model.within),
            "docker_label": None,
            "model_dtype": "float32",
            "labels": [],
            "entities": False,
            "reads": "text",
            "prompts": {},
            "dimension": None,
            "index": None,
            "token_ids": None,
            "target_languages": [],
            "largest_beam": None,
            "windows": 0,
            "examples": example_texts,
            "abilities": [*self.endpoints, INVOCATIONS],
            "mask_token": self.tokenizer.special_tokens.get("mask_token", "[MASK]"),
            "vocabulary": self.tokenizer.vocab_size,
            "version": bertworks.__version__,
            **self.info,
        }

    def trial_job(self, tokens: int) -> InferenceJob:
        """Return a job of about `tokens` tokens for the network, to measure its speed."""
        return self._network.trial_job("a " * TRIAL_WORDS, max(1, tokens // TRIAL_WORDS))

    def search(self, request: Request) -> Steps:
        """Search an index."""
        query = request["query"]
        k = request["k"]
        language = self._index.language
        limit = self.limits.query_characters
        grant(
            len(query) <= limit,
            413,
            f"query: it has {len(query):,} characters: expected {limit:,} at most",
            hint="search for a part of it",
        )
        reranking = self._reranking if request["rerank"] else None
        if request["rerank"] and reranking is None:
            raise UsageError(
                "this server's model cannot rerank documents", hint='leave "rerank" out'
            )
        candidates = k if reranking is None else max(k, RERANKED)
        find = partial(self._index.search, query, candidates, ranking=request["ranking"])
        cost = QUERY_COST + len(set(query_words(query, language)))
        words = set(words_to_mark(query, language))
        truncated = list[int]()
        if request["ranking"] != "bm25":  # a query of few different words may have many tokens
            tokens, left_out = self._index.query_tokens(query)
            cost += tokens
            truncated.append(left_out)
        (hits,) = yield InferenceJob([find], [cost], call_each, queue="search")
        if reranking is not None:
            texts = [hit["text"] for hit in hits]
            settings = {"raw_scores": reranking.has_values}
            scores, truncated_texts = yield from reranking.relevance(
                query, texts, settings, RERANKED_AT_ONCE
            )
            truncated += truncated_texts
            for hit, score in zip(hits, scores, strict=True):
                hit["score"] = score
            hits = sorted(hits, key=itemgetter("score"), reverse=True)[:k]
        documents = list[bytes]()
        size = 0
        for hit in hits:
            documents.append(to_json(hit))
            size += len(documents[-1])
            check_answer(size, self.limits.answer_bytes)

        def with_matches(document: bytes, text: str) -> Any:
            spans = places_of(words, text, language, MAX_MATCHES)
            return msgspec.Raw(document[:-1] + b',"matches":' + to_json(spans) + b"}")

        parts = list[Part]()
        for document, hit in zip(documents, hits, strict=True):
            part = Part(partial(msgspec.Raw, document), len(document))
            if request["matches"]:
                matches_size = 20 + MATCH_BYTES * min(MAX_MATCHES, len(hit["text"]))
                make = partial(with_matches, document, hit["text"])
                part = Part(make, len(document) + matches_size)
            parts.append(part)
        return AnswerParts(parts, joined_list, truncated)

    def explain(self, request: Request) -> Steps:
        """Explain a prediction."""
        limit = self.limits.explained_tokens
        tokens = sum(map(len, self.tokenizer.ids(list_of(request["inputs"]), limit=limit)))
        check_tokens(tokens, limit)
        config = self._model.config
        cells = (config.num_hidden_layers * (config.num_attention_heads + 1) + 1) * tokens**2
        check_answer(cells * request["maps"] * 4 // 3, self.limits.answer_bytes)  # base64
        job = InferenceJob(costs=[1], compute=call_each)
        job.queue = "short explanation" if tokens <= SHORT_EXPLANATION else "explanation"
        job.units = [partial(self._explanation, request, lambda: not job.future.cancelled())]
        (document,) = yield job
        return AnswerParts([Part(partial(msgspec.Raw, document), len(document))], only_part)

    def _explanation(self, request: Request, is_wanted: Callable[[], bool]) -> bytes:
        """Return the explanation as JSON.

        It is small next to its maps, and what it was computed from need not be kept.
        """
        settings = {name: request[name] for name in ("target", "baseline")}
        e = explain(self._model, *list_of(request["inputs"]), **settings, is_wanted=is_wanted)
        absent = dict.fromkeys(
            ("gradients", "completeness_error", "steps", "occlusion", "attention", "similarity")
        )
        maps = e.maps() if request["maps"] else {}
        size = {"layers": len(e.attention), "heads": max(map(len, e.attention), default=0)}
        values = {
            **absent,
            **e.as_dict(),
            "model": self.name,
            "tokens": e.tokens,
            "spans": e.spans,
            "spaces": [space for space, _ in e.running_words],
            **size,
            **maps,
        }
        return to_json(values)

    def tokenize(self, request: Request) -> Steps:
        """Return the tokens of texts."""
        t = self.tokenizer
        prompt = self.info["prompts"].get(request["prompt_name"], "")
        texts = [prompt + text for text in list_of(request["inputs"])]
        # of each text its ids and offsets: arrays need little memory
        encoded = list[tuple[Ids, Ids]]()
        count = 0
        for ids, offsets in chain.from_iterable(
            t.arrays([text], limit=self.limits.tokens) for text in texts
        ):
            encoded.append((ids, offsets))
            count += len(ids) + t.template.num_special()
            check_tokens(count, self.limits.tokens)  # what is too much is not read to its end
        yield InferenceJob()
        added = request["add_special_tokens"]
        prefix, suffix = (t.template.prefix, t.template.suffix) if added else ((), ())

        def item(number: int, start: int | None = None, stop: int | None = None) -> JsonObject:
            return {
                "id": number,
                "text": t.tokens[number],
                "special": number in t.special_ids,
                "start": start,
                "stop": stop,
            }

        def tokens(ids: Ids, offsets: Ids, start: int) -> list[JsonObject]:
            part = slice(start, start + PART_TOKENS)
            places = zip(ids[part].tolist(), offsets[part].tolist(), strict=True)
            inner = [item(number, *ends) for number, ends in places]
            before = prefix if start == 0 else ()
            after = suffix if start + PART_TOKENS >= len(ids) else ()
            return [*map(item, before), *inner, *map(item, after)]

        groups = list[list[Part]]()
        for ids, offsets in encoded:
            groups.append([])
            for start in range(0, max(1, len(ids)), PART_TOKENS):
                part = [*prefix, *ids[start : start + PART_TOKENS].tolist(), *suffix]
                spelled = spelled_size(part, self._token_lengths)
                size = 2 + TOKEN_BYTES * len(part) + spelled
                groups[-1].append(Part(partial(tokens, ids, offsets, start), size))
        return grouped_answer(groups)

    def decode(self, request: Request) -> Steps:
        """Return the texts of ids."""
        has_lists = bool(request["ids"]) and isinstance(request["ids"][0], list)
        lists: list[list[int]] = request["ids"] if has_lists else [request["ids"]]
        check_tokens(sum(map(len, lists)), self.limits.tokens)
        skips_special = request["skip_special_tokens"]
        # they need a tenth of the memory of lists
        arrays = [np.array(ids, np.int32) for ids in lists]
        del request, lists
        yield InferenceJob()

        def text(ids: Ids) -> str:
            return self.tokenizer.decode(ids.tolist(), skip_special_tokens=skips_special)

        parts = [
            Part(partial(text, ids), 2 + spelled_size(ids, self._token_lengths)) for ids in arrays
        ]
        return AnswerParts(parts, joined_list)

    @cached_property
    def _token_lengths(self) -> NDArray[np.int64]:
        return token_lengths(self.tokenizer)
