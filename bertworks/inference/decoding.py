"""Logits -> labels with probabilities, tags, entities, and answers with their characters in the text."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertworks.batching.batch import ExampleGroup
from bertworks.batching.features import Features, Featurizer
from bertworks.checkpoints.task_config import TaskConfig
from bertworks.datasets.schema import TaskType
from bertworks.text.tokenizer import Tokenizer, with_marks
from bertworks.training.finetune_recipe import FinetuneRecipe
from bertworks.training.task_heads import (
    Classification,
    MultiLabel,
    MultipleChoice,
    Regression,
    SpanExtraction,
    TaskHead,
)

Answer = dict[str, Any]
Logits = NDArray[np.float32]
NOWHERE = 1e9  # a margin, in logits, where there is nothing that could be an answer
NUM_BEST_SPANS = 20  # starts and ends that are combined, and answers that are kept


@dataclass(frozen=True)
class Decoder:
    """`decoding(encoded, logits)` is the answer to an item; logits float32 [M, outputs], for all that it asks.

    labels: names of the outputs.
    threshold: multilabel: the probability from which a label is given. qa: how much likelier than the best answer
        "there is none" may be, in logits, for the answer still to be given; None: there is always an answer.
    max_answer: tokens of an answer (qa).
    """

    task: TaskType
    labels: tuple[str, ...] = ()
    threshold: float | None = None
    max_answer: int = 30

    def __call__(self, encoded: Features, logits: Logits) -> Answer:
        match self.task:
            case "classification":
                p = softmax(logits[0])
                return {"label": self.labels[int(p.argmax())], "score": float(p.max()), "scores": self._named(p)}
            case "multilabel":
                p = sigmoid(logits[0])
                least = 0.5 if self.threshold is None else self.threshold
                given = [n for n in np.argsort(-p, kind="stable") if p[n] >= least]
                return {"labels": [self.labels[n] for n in given], "scores": self._named(p)}
            case "regression":
                return {"value": float(logits[0, 0])}
            case "choice":
                p = softmax(logits[:, 0])
                return {"choice": int(p.argmax()), "score": float(p.max()), "scores": p.tolist()}
            case "tagging":
                return self._tags(encoded, logits)
            case "spans":
                return self._entities(encoded, logits)
            case "qa":
                return self._span(encoded, logits)

    def _named(self, p: NDArray[np.float64]) -> dict[str, float]:
        return dict(zip(self.labels, p.tolist(), strict=True))

    def _in_order(self, encoded: Features, logits: Logits) -> tuple[list[str], NDArray[np.float64]]:
        """The best label of every word or token, and its probability."""
        p = softmax(logits)
        best, score = np.empty(len(p), np.int64), np.empty(len(p))
        best[encoded.places], score[encoded.places] = p.argmax(-1), p.max(-1)
        return [self.labels[n] for n in best], score

    def _tags(self, encoded: Features, logits: Logits) -> Answer:
        tags, scores = self._in_order(encoded, logits)
        answer: Answer = {"tags": tags, "scores": scores.tolist()}
        if not encoded.item.raw:
            return answer
        text = encoded.item.texts[0]
        answer["words"] = [text[start:end] for start, end in encoded.offsets.tolist()]
        return answer | (self._entities(encoded, logits) if is_entity_tagset(self.labels) else {})

    def _entities(self, encoded: Features, logits: Logits) -> Answer:
        tags, scores = self._in_order(encoded, logits)
        text, entities = encoded.item.texts[0], []
        for kind, first, last in tag_runs(tags):
            start, end = _strip_span(text, encoded.offsets[first, 0], encoded.offsets[last - 1, 1])
            if start == end:
                continue
            score = float(scores[first:last].mean())
            entities.append({"start": start, "end": end, "type": kind, "text": text[start:end], "score": score})
        return {"entities": entities}

    def _span(self, encoded: Features, logits: Logits) -> Answer:
        """The best answers over all windows, by the sum of the scores of their first and last token; and how much
        likelier it is that there is none (google-research/bert `run_squad.py`, `write_predictions`)."""
        found: list[tuple[float, int, int]] = []
        nothing, start, context = NOWHERE, 0, encoded.item.texts[1]
        for example in encoded.unit:
            end = start + len(example.input_ids)
            part = slice(start, end)
            found += best_spans(logits[part], encoded.places[part], encoded.own[part], self.max_answer)
            nothing, start = min(nothing, float(logits[start].sum())), end
        found.sort(reverse=True)
        best: list[Answer] = []
        for score, first, last in found:
            a, b = _strip_span(context, encoded.offsets[first, 0], encoded.offsets[last, 1])
            text = context[a:b]
            if text and all(text != other["text"] for other in best):
                best.append({"text": text, "start": a, "end": b, "logit": score})
            if len(best) == NUM_BEST_SPANS:
                break
        margin = nothing - best[0]["logit"] if best else NOWHERE
        given = best[:1] if self.threshold is None or margin <= self.threshold else []
        alone = [one["logit"] for one in best] + ([] if self.threshold is None else [nothing])
        p = softmax(np.array(alone)) if alone else np.zeros(1)
        for one, probability in zip(best, p.tolist(), strict=False):
            one["score"] = probability
            del one["logit"]
        answer = given[0] if given else {"text": "", "start": -1, "end": -1, "score": float(p[-1])}
        return {"answer": answer["text"], **{name: answer[name] for name in ("start", "end", "score")},
                "no_answer_margin": float(margin), "n_best": best}  # fmt: skip


def _strip_span(text: str, start: int, end: int) -> tuple[int, int]:
    """From `start` to `end`, without white space around it, which some tokenizers count to a word, or take for one."""
    found = text[start:end]
    first = int(end) - len(found.lstrip())
    return first, max(first, with_marks(text, int(start) + len(found.rstrip())))


def best_spans(
    logits: Logits, places: NDArray[np.int64], own: NDArray[np.bool_], max_answer: int
) -> list[tuple[float, int, int]]:
    """Score, first and last token of the best answers in one window: of its N_BEST best starts and ends those that are
    in order, short enough and, the start, in its best context."""
    starts = np.flatnonzero(own & (places >= 0))
    ends = np.flatnonzero(places >= 0)
    starts = starts[np.argsort(-logits[starts, 0], kind="stable")[:NUM_BEST_SPANS]]
    ends = ends[np.argsort(-logits[ends, 1], kind="stable")[:NUM_BEST_SPANS]]
    length = ends[None, :] - starts[:, None] + 1
    rows, columns = np.nonzero((length >= 1) & (length <= max_answer))
    scores = logits[starts[rows], 0].astype(np.float64) + logits[ends[columns], 1]
    firsts, lasts = places[starts[rows]], places[ends[columns]]
    return list(zip(scores.tolist(), firsts.tolist(), lasts.tolist(), strict=True))


def is_entity_tagset(labels: Iterable[str]) -> bool:
    """Whether these are tags of entities, in IOB1, IOB2 or BIOES, and not, say, parts of speech."""
    return all(re.fullmatch(r"O|[BIES](-.+)?", label, re.DOTALL) for label in labels)


def tag_runs(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """Type, begin and end of each entity, for tags in IOB1, IOB2 or BIOES, by the rules of conlleval: what continues
    nothing begins an entity."""
    found: list[tuple[str, int, int]] = []
    for place, tag in enumerate(tags):
        if tag == "O":
            continue
        kind, before = tag[2:], found[-1] if found else None
        follows = tag[0] in "IE" and place > 0 and tags[place - 1][0] in "BI"
        if follows and before and before[0] == kind and before[2] == place:
            found[-1] = kind, before[1], place + 1
        else:
            found.append((kind, place, place + 1))
    return found


def softmax(x: NDArray[np.floating]) -> NDArray[np.float64]:
    """Probabilities along the last axis."""
    powers = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


def sigmoid(x: NDArray[np.floating]) -> NDArray[np.float64]:
    """A probability for each."""
    return np.asarray(1 / (1 + np.exp(-x.astype(np.float64))))


def make_task_head(d: TaskConfig, units: Sequence[ExampleGroup] = (), recipe: FinetuneRecipe | None = None) -> TaskHead:
    """The head and the loss of a task; what depends on the data in training comes from `units`."""
    smoothing = recipe.label_smoothing if recipe else 0.0
    match d.task:
        case "classification" | "tagging" | "spans":
            balanced = recipe is not None and recipe.class_weights == "balanced"
            weights = balanced_weights(units, len(d.labels)) if balanced else ()
            pooled = d.task == "classification"
            return Classification(num_labels=len(d.labels), pooled=pooled, weights=weights, smoothing=smoothing)
        case "multilabel":
            return MultiLabel(num_labels=len(d.labels))
        case "regression":
            targets = [float(one.target.labels[0]) for unit in units for one in unit] or [0.0, 1.0]
            return Regression(mean=float(np.mean(targets)), deviation=float(np.std(targets)) or 1.0)
        case "qa":
            return SpanExtraction()
        case "choice":
            return MultipleChoice(num_choices=d.num_choices)


def balanced_weights(units: Sequence[ExampleGroup], count: int) -> tuple[float, ...]:
    """n / (labels * n_of_label), as in scikit-learn; 1 for a label that never occurs."""
    seen = np.bincount(np.concatenate([one.target.labels for unit in units for one in unit]), minlength=count)
    return tuple(float(seen.sum() / (count * n)) if n else 1.0 for n in seen)


def make_featurizer(d: TaskConfig, tokenizer: Tokenizer) -> Featurizer:
    """How a model that does this reads its items."""
    return Featurizer(tokenizer, d.task, d.labels, d.max_length, d.stride, d.max_question, d.document_context)


def make_decoder(d: TaskConfig) -> Decoder:
    """How the network's numbers are read."""
    return Decoder(d.task, d.labels, d.threshold, d.max_answer)
