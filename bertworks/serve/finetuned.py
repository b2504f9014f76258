"""The endpoints of a fine-tuned model: labels, ranks, entities, answers.

Their formats are those of Text Embeddings Inference (TEI) and of Hugging Face's pipelines.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import islice
from operator import itemgetter
from typing import Any

import numpy as np

from bertworks.datasets.schema import Item
from bertworks.errors import UsageError
from bertworks.inference.engine import LazyModel
from bertworks.inference.predictor import Predictor, item_of
from bertworks.retrieval.ranking import Reranker, fits_pairs
from bertworks.serve.batching import InferenceJob, Limits, RequestError, grant
from bertworks.serve.steps import (
    CHARACTER_BYTES,
    DTYPES,
    AnswerParts,
    Endpoint,
    Request,
    Rows,
    Steps,
    check_answer,
    check_tokens,
    joined_list,
    json_size,
    keeps_end,
    like_inputs,
    list_of,
    only_part,
    refuse_truncated,
)
from bertworks.tasks.questions import NUM_BEST_SPANS
from bertworks.tasks.registry import task_of
from bertworks.tasks.sequences import Features
from bertworks.tasks.task import Featurizer, TooManyTokensError, sigmoid, softmax
from bertworks.training.device import PrecisionOption

# Bytes of the names and numbers in one item of an answer, without its texts, at most.
LABEL_BYTES = 100
RANK_BYTES = 100
ENTITY_BYTES = 150
ANSWER_BYTES = 150


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
        self.info: dict[str, Any] = {
            "model_dtype": DTYPES[self._predictor.precision],
            "model_type": {"reranker" if self.reranker is not None else "classifier": label_names},
            "max_input_length": c.max_length,
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
            at_once: items that are read before others have their turn, and before it is noticed
                that the client has gone; None: all. Not for the first step of an endpoint, whose
                costs are checked.
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
            make=[partial(decode, features, logits) for features, logits in pairs],
            sizes=[size(features) for features, _ in pairs],
            join=joined_list if nested else like_inputs(inputs),
            truncated=[features.num_truncated for features, _ in pairs],
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

        def decode(features: Features, logits: Rows) -> list[dict[str, Any]]:
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
        what = (
            f"the texts, each with the query, have {characters:,} characters: expected "
            f"{limit:,} at most"
        )
        grant(characters <= limit, 413, what, hint="shorten the query or send fewer texts")
        scores, truncated = yield from self.relevance(query, texts, request)
        items = [{"index": number, "score": score} for number, score in enumerate(scores)]
        sizes = [RANK_BYTES] * len(items)
        if request["return_text"]:
            items = [item | {"text": text} for item, text in zip(items, texts, strict=True)]
            sizes = [size + json_size(text) for size, text in zip(sizes, texts, strict=True)]
        items.sort(key=itemgetter("score"), reverse=True)
        return AnswerParts([lambda: items], [sum(sizes) + 2], only_part, truncated)

    def ner(self, request: Request) -> Steps:
        """Find the entities of texts, or the tags of words."""
        longest = max(map(json_size, self._config.labels), default=0)
        ignored = frozenset(request.get("ignore_labels", ("O",) if self.info["entities"] else ()))
        if self.info["entities"] and "O" not in ignored:
            what = (
                'ignore_labels: only entities are listed: expected "O" among the labels to ignore'
            )
            raise UsageError(what, hint='add "O", or leave ignore_labels out')

        def size(features: Features) -> int:
            return (
                (ENTITY_BYTES + longest) * len(features.offsets)
                + json_size(features.item.texts[0])
                + 2
            )

        def decode(features: Features, logits: Rows) -> list[dict[str, Any]]:
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
