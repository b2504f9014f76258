"""The endpoints of a model that is not fine-tuned: vectors, cosines and tokens for masks.

They have the formats of Text Embeddings Inference (TEI) and OpenAI.
"""

import base64
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from functools import cached_property, partial
from itertools import islice
from typing import Any

import numpy as np

from bertworks.batching.batch import ExampleGroup
from bertworks.errors import BertworksError, UsageError
from bertworks.inference.embedder import Embedder, normalized
from bertworks.inference.engine import LazyModel
from bertworks.inference.masked_lm import Filler, Filling
from bertworks.serve.batching import InferenceJob, Limits
from bertworks.serve.steps import (
    CHARACTER_BYTES,
    DTYPES,
    FLOAT32_BYTES,
    NUMBER_BYTES,
    PART_TOKENS,
    AnswerParts,
    Endpoint,
    Request,
    Rows,
    Steps,
    check_answer,
    check_tokens,
    joined_groups,
    joined_list,
    joined_lists,
    json_size,
    keeps_end,
    like_inputs,
    list_of,
    only_part,
    ready_json,
    refuse_truncated,
    to_json,
)
from bertworks.serve.token_tables import TokenIds, read_table
from bertworks.training.device import PrecisionOption

MAX_FILLINGS = 100  # of a mask
TEXTS_AT_ONCE = 64  # texts that are read before the number of their tokens is checked
VECTOR_PART = 1 << 18  # bytes of a part of an answer with the vectors of tokens
# Bytes of the names and numbers in one item of an answer, without its texts, at most.
FILLING_BYTES = 140


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
    ):
        self._token_table = None if token_ids in (None, "own") else read_table(token_ids)
        self._name = model.name
        self.endpoints = dict[str, Endpoint]()
        self._limits = limits
        self.info: dict[str, Any] = {
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
            self._embedder = e = Embedder(model, precision=precision)
            self.endpoints |= {
                "embed": self.embed,
                "embed_all": self.embed_all,
                "similarity": self.similarity,
                "embeddings": self.embeddings,
            }
            self.info |= {
                "max_input_length": e.settings.max_length,
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
            costs += [len(unit[0].input_ids) for unit in more_units]
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
        makes = list[Callable[[], Any]]()
        sizes = list[int]()
        counts = list[int]()
        for vectors in texts:
            parts = [vectors[start : start + at_once] for start in range(0, len(vectors), at_once)]
            counts.append(len(parts))
            makes += [partial(np.asarray, part) for part in parts]
            sizes += [row_bytes * len(part) + 2 for part in parts]

        return AnswerParts(makes, sizes, partial(joined_groups, counts), truncated)

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
        return AnswerParts(
            make=[partial(np.asarray, vector) for vector in vectors],
            sizes=[FLOAT32_BYTES * vectors.shape[1] + 2] * len(vectors),
            join=joined_list,
            truncated=truncated,
        )

    def similarity(self, request: Request) -> Steps:
        """Compute the similarities of one text with others."""
        texts = [request["inputs"]["source_sentence"], *request["inputs"]["sentences"]]
        raw, truncated, _ = yield from self._vectors(texts, request, 0)
        vectors = normalized(raw)
        cosines = (vectors[1:] @ vectors[0]).tolist()
        return AnswerParts(
            [lambda: cosines], [NUMBER_BYTES * len(cosines) + 2], only_part, truncated
        )

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

        def item(number: int) -> dict[str, Any]:
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
            data = ready_json(joined_list(items))
            return to_json({"object": "list", "data": data, "model": self._name, "usage": usage})

        return AnswerParts(
            make=[partial(item, number) for number in range(len(vectors))],
            sizes=[FLOAT32_BYTES * vectors.shape[1] + 100] * len(vectors),
            join=join,
            truncated=truncated,
        )

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
        parts: list[tuple[Callable[[], list[Filling]], int]] = []
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
                    parts.append((make, size * best.shape[1]))

        def join(pieces: Sequence[bytes]) -> bytes:
            remaining = iter(pieces)
            texts = list[bytes]()
            for counts_of_text in counts:
                masks = [joined_lists(islice(remaining, count)) for count in counts_of_text]
                texts.append(masks[0] if len(masks) == 1 else joined_list(masks))
            return like_inputs(request["inputs"])(texts)

        return AnswerParts([make for make, _ in parts], [size + 4 for _, size in parts], join)

    @cached_property
    def _longest_token(self) -> int:
        """The characters of the longest token of the vocabulary."""
        return max(map(len, self._filler.tokenizer.tokens))
