"""All endpoints of a server, by the names of its paths.

`Abilities` has the endpoints of its model (`PretrainedEndpoints` or `FinetunedEndpoints`), and
those that every model has: search in an index, explanations, tokens.
"""

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import bertworks
from bertworks.checkpoints.model_folder import weights_sha256
from bertworks.errors import UsageError
from bertworks.inference.engine import LazyModel
from bertworks.inference.explain import explain
from bertworks.retrieval.index import RERANKED, Index
from bertworks.retrieval.ranking import places_of, query_words
from bertworks.serve.batching import InferenceJob, Limits, grant
from bertworks.serve.finetuned import FinetunedEndpoints
from bertworks.serve.openapi import INVOCATIONS
from bertworks.serve.pretrained import PretrainedEndpoints
from bertworks.serve.steps import (
    CHARACTER_BYTES,
    PART_TOKENS,
    AnswerParts,
    Ids,
    Request,
    Steps,
    call_each,
    check_answer,
    check_tokens,
    joined_groups,
    joined_list,
    list_of,
    only_part,
    ready_json,
    to_json,
)
from bertworks.serve.token_tables import TokenIds
from bertworks.training.device import PrecisionOption, choose_device

RERANKED_AT_ONCE = 8  # documents that are read with the query in one turn
# that are tokenised together: a request's text may be long, and memory is limited
CHARACTERS_AT_ONCE = 1 << 16
MAX_MATCHES = 1000  # places of words of a query that are marked in one document
QUERY_COST = 8  # of a search, in words and tokens of its query: what does not depend on them
TRIAL_WORDS = 32  # of a text to measure the speed: each is about a token in any vocabulary
SHORT_EXPLANATION = 32  # tokens: those of shorter texts do not wait for those of longer ones
# Bytes of the names and numbers in one item of an answer, without its texts, at most.
TOKEN_BYTES = 120
MATCH_BYTES = 48


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
        token_ids: TokenIds | None = None,
    ):
        self.limits = limits or Limits()
        self._model = LazyModel(model, device)
        self.name = self._model.name
        self.tokenizer = self._model.tokenizer
        self.tokenizer.characters_at_once = CHARACTERS_AT_ONCE
        self.on_cpu = choose_device(device).type == "cpu"
        finetuned = (
            FinetunedEndpoints(self._model, self.limits, precision)
            if self._model.has_task
            else None
        )
        network = finetuned or PretrainedEndpoints(self._model, self.limits, precision, token_ids)
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
        if not self._model.exported:
            self.endpoints["explain"] = self.explain
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
        what = f"query: it has {len(query):,} characters: expected {limit:,} at most"
        grant(len(query) <= limit, 413, what, hint="search for a part of it")
        reranking = self._reranking if request["rerank"] else None
        if request["rerank"] and reranking is None:
            raise UsageError(
                "this server's model cannot rerank documents", hint='leave "rerank" out'
            )
        candidates = k if reranking is None else max(k, RERANKED)
        find = partial(self._index.search, query, candidates, ranking=request["ranking"])
        words = set(query_words(query, language))
        cost = QUERY_COST + len(words)
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
        make = [partial(ready_json, document) for document in documents]
        sizes = list(map(len, documents))

        def with_matches(document: bytes, text: str) -> Any:
            spans = places_of(words, text, language, MAX_MATCHES)
            return ready_json(document[:-1] + b',"matches":' + to_json(spans) + b"}")

        if request["matches"]:
            texts = [hit["text"] for hit in hits]
            make = [partial(with_matches, *pair) for pair in zip(documents, texts, strict=True)]
            sizes = [
                size + 20 + MATCH_BYTES * min(MAX_MATCHES, len(text))
                for size, text in zip(sizes, texts, strict=True)
            ]
        return AnswerParts(make, sizes, joined_list, truncated)

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
        return AnswerParts([partial(ready_json, document)], [len(document)], only_part)

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
        size = {"layers": len(e.attention), "heads": len(e.attention[0])}
        values = {
            **absent,
            **e.as_dict(),
            "model": self.name,
            "tokens": e.tokens,
            "spans": e.spans,
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

        def item(number: int, start: int | None = None, stop: int | None = None) -> dict[str, Any]:
            return {
                "id": number,
                "text": t.tokens[number],
                "special": number in t.special_ids,
                "start": start,
                "stop": stop,
            }

        def tokens(ids: Ids, offsets: Ids, start: int) -> list[dict[str, Any]]:
            part = slice(start, start + PART_TOKENS)
            places = zip(ids[part].tolist(), offsets[part].tolist(), strict=True)
            inner = [item(number, *ends) for number, ends in places]
            before = prefix if start == 0 else ()
            after = suffix if start + PART_TOKENS >= len(ids) else ()
            return [*map(item, before), *inner, *map(item, after)]

        makes = list[Callable[[], Any]]()
        sizes = list[int]()
        counts = list[int]()
        for ids, offsets in encoded:
            starts = range(0, max(1, len(ids)), PART_TOKENS)
            counts.append(len(starts))
            for start in starts:
                part = [*prefix, *ids[start : start + PART_TOKENS].tolist(), *suffix]
                makes.append(partial(tokens, ids, offsets, start))
                sizes.append(2 + TOKEN_BYTES * len(part) + self._spelled_size(part))

        return AnswerParts(makes, sizes, partial(joined_groups, counts))

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

        return AnswerParts(
            make=[partial(text, ids) for ids in arrays],
            sizes=[2 + self._spelled_size(ids) for ids in arrays],
            join=joined_list,
        )

    @cached_property
    def _token_lengths(self) -> NDArray[np.int64]:
        """The characters of each token of the vocabulary."""
        return np.array(list(map(len, self.tokenizer.tokens)), np.int64)

    def _spelled_size(self, ids: Sequence[int] | Ids) -> int:
        """Return the bytes of tokens as JSON, at most, with a space before each.

        A token in a text is no longer than in the vocabulary, even if each of its characters stands
        for a byte.
        """
        return CHARACTER_BYTES * (
            int(self._token_lengths[np.asarray(ids, np.int32)].sum()) + len(ids)
        )
