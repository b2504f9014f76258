"""Logits -> labels with probabilities, tags, entities, and answers with their positions in the
text."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertworks.batching.batch import ExampleGroup
from bertworks.metrics.classification import tag_runs
from bertworks.tasks import heads as task_heads
from bertworks.tasks.features import Features, Featurizer
from bertworks.tasks.heads import TaskHead
from bertworks.tasks.settings import TaskConfig
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.tokenizer_pipeline import with_marks
from bertworks.training.recipe import FinetuneRecipe

Answer = dict[str, Any]
Logits = NDArray[np.float32]
NOWHERE = 1e9  # the margin of "no answer" if no span can be an answer
_AT_ONCE = 1 << 16  # words or tokens of a long text
NUM_BEST_SPANS = 20  # starts and ends that are combined, and answers that are kept


@dataclass(frozen=True)
class Decoder:
    """`decoder(features, logits)` is the prediction for an item; logits: float32 [M, outputs], all
    of the item. They are divided by the temperature of the task, which changes the probabilities;
    thresholds apply to these."""

    config: TaskConfig

    def __call__(self, features: Features, logits: Logits) -> Answer:
        labels, task = self.config.labels, self.config.task
        if task in ("classification", "multilabel", "choice"):
            logits = logits / np.float32(self.config.temperature)
        match task:
            case "classification":
                p = softmax(logits[0])
                return {
                    "label": labels[int(p.argmax())],
                    "score": float(p.max()),
                    "scores": self._by_label(p),
                }
            case "multilabel":
                p, threshold = sigmoid(logits[0]), self.config.threshold
                best = [
                    n
                    for n in np.argsort(-p, kind="stable")
                    if p[n] >= (0.5 if threshold is None else threshold)
                ]
                return {"labels": [labels[n] for n in best], "scores": self._by_label(p)}
            case "regression":
                return {"value": float(logits[0, 0])}
            case "choice":
                p = softmax(logits[:, 0])
                return {"choice": int(p.argmax()), "score": float(p.max()), "scores": p.tolist()}
            case "tagging" | "spans":
                return self._tags(features, logits)
            case "qa":
                return self._answer(features, logits)

    def _by_label(self, p: NDArray[np.float64]) -> dict[str, float]:
        return dict(zip(self.config.labels, p.tolist(), strict=True))

    def _tags(self, features: Features, logits: Logits) -> Answer:
        """The best label of each word or token. Tagging: also the probability of each label. A
        text: also its entities and words. A long text has millions of tokens, so no array here is
        larger than their logits."""
        tags, scores, by_word = list[str](), array("d"), self.config.task == "tagging"

        def probabilities(start: int, end: int) -> NDArray[np.float64]:
            return softmax(logits[start:end] / np.float32(self.config.temperature))

        for start in range(0, len(logits), _AT_ONCE):
            p = probabilities(start, start + _AT_ONCE)
            tags += [self.config.labels[n] for n in p.argmax(-1)]
            if by_word:
                scores.frombytes(p.max(-1).tobytes())
        answer: Answer = {"tags": tags, "scores": scores} if by_word else {"tags": tags}
        if features.item.raw:
            answer["words"] = features.words
        if (by_word and not features.item.raw) or (scheme := self.config.tag_scheme) is None:
            return answer
        text, offsets, entities = features.item.texts[0], features.offsets, []
        for first, last, kind in tag_runs(tags, scheme):
            start, end = _strip_span(text, offsets[first, 0], offsets[last - 1, 1])
            if start < end:
                score = float(probabilities(first, last).max(-1).mean())
                entities.append(
                    {
                        "start": start,
                        "end": end,
                        "type": kind,
                        "text": text[start:end],
                        "score": score,
                    }
                )
        return answer | {"entities": entities}

    def _answer(self, features: Features, logits: Logits) -> Answer:
        """The best answers over all windows, by the sum of the logits of their first and last
        token; and the margin by which "no answer" is better (google-research/bert `run_squad.py`,
        `write_predictions`). With a threshold, there is no answer if the margin exceeds it."""
        best = dict[str, tuple[Any, ...]]()  # by text: score, first and last token, start, end
        no_answer, start, context = NOWHERE, 0, features.item.texts[1]
        for example, window in zip(features.unit, features.windows, strict=True):
            end = start + len(example.input_ids)
            part = logits[start:end] / np.float32(self.config.temperature)
            no_answer, start = min(no_answer, float(part[0].sum())), end
            part, places = (
                part[features.begin :][: len(window.own)],
                np.arange(window.start, window.end),
            )
            spans, best = (
                [*best.values(), *best_spans(part, places, window.own, self.config.max_answer)],
                {},
            )
            for score, first, last, *_ in sorted(spans, reverse=True):
                a, b = _strip_span(context, features.offsets[first, 0], features.offsets[last, 1])
                if a < b and len(best) < NUM_BEST_SPANS:
                    best.setdefault(context[a:b], (score, first, last, a, b))
        answers = [
            {"text": text, "start": a, "end": b, "score": score}
            for text, (score, _, _, a, b) in best.items()
        ]
        threshold = self.config.threshold
        margin = no_answer - answers[0]["score"] if answers else NOWHERE
        scores = [answer["score"] for answer in answers] + (
            [] if threshold is None else [no_answer]
        )
        p = softmax(np.array(scores)).tolist() if scores else [0.0]
        for answer, probability in zip(answers, p, strict=False):
            answer["score"] = probability
        is_given = answers and (threshold is None or margin <= threshold)
        answer = answers[0] if is_given else {"text": "", "start": -1, "end": -1, "score": p[-1]}
        return {
            "answer": answer["text"],
            **{name: answer[name] for name in ("start", "end", "score")},
            "no_answer_margin": float(margin),
            "n_best": answers,
        }


def _strip_span(text: str, start: int, end: int) -> tuple[int, int]:
    """A span without white space around it, which some tokenizers include in a word."""
    span = text[start:end]
    first = int(end) - len(span.lstrip())
    return first, max(first, with_marks(text, int(start) + len(span.rstrip())))


def best_spans(
    logits: Logits, places: NDArray[np.int64], own: NDArray[np.bool_], max_answer: int
) -> list[tuple[float, int, int]]:
    """Score, first and last token of the best answers in a window: pairs of its NUM_BEST_SPANS best
    starts and ends that are in order and short enough. A start must have its best context in this
    window."""
    starts = np.flatnonzero(own & (places >= 0))
    ends = np.flatnonzero(places >= 0)
    starts = starts[np.argsort(-logits[starts, 0], kind="stable")[:NUM_BEST_SPANS]]
    ends = ends[np.argsort(-logits[ends, 1], kind="stable")[:NUM_BEST_SPANS]]
    length = ends[None, :] - starts[:, None] + 1
    rows, columns = np.nonzero((length >= 1) & (length <= max_answer))
    scores = logits[starts[rows], 0].astype(np.float64) + logits[ends[columns], 1]
    firsts, lasts = places[starts[rows]], places[ends[columns]]
    return list(zip(scores.tolist(), firsts.tolist(), lasts.tolist(), strict=True))


def softmax(x: NDArray[np.floating]) -> NDArray[np.float64]:
    """Probabilities along the last axis."""
    powers = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


def sigmoid(x: NDArray[np.floating]) -> NDArray[np.float64]:
    """The probability of each logit alone."""
    return np.asarray(1 / (1 + np.exp(-x.astype(np.float64))))


def make_task_head(
    d: TaskConfig, units: Sequence[ExampleGroup] = (), recipe: FinetuneRecipe | None = None
) -> TaskHead:
    """The head and the loss of a task. In training, `units` give the weights of classes and the
    scale of values."""
    smoothing = recipe.label_smoothing if recipe else 0.0
    match d.task:
        case "classification" | "tagging" | "spans":
            is_balanced, outputs = (
                recipe is not None and recipe.class_weights == "balanced",
                len(d.labels),
            )
            weights, pooled = (
                balanced_weights(units, outputs) if is_balanced else (),
                d.task == "classification",
            )
            return task_heads.Classification(
                outputs=outputs,
                pooled=pooled,
                vectors=d.vectors,
                weights=weights,
                smoothing=smoothing,
            )
        case "multilabel":
            return task_heads.MultiLabel(outputs=len(d.labels), vectors=d.vectors)
        case "regression":
            targets = [
                float(y) for unit in units for example in unit for y in example.target.labels
            ] or [0.0, 1.0]
            mean, deviation = float(np.mean(targets)), float(np.std(targets)) or 1.0
            return task_heads.Regression(mean=mean, deviation=deviation, vectors=d.vectors)
        case "qa":
            return task_heads.SpanExtraction()
        case "choice":
            return task_heads.MultipleChoice(num_choices=d.num_choices)


def balanced_weights(units: Sequence[ExampleGroup], count: int) -> tuple[float, ...]:
    """n / (labels * n_of_label), as in scikit-learn; 1 for a label that never occurs."""
    labels = np.concatenate([example.target.labels for unit in units for example in unit])
    counts = np.bincount(labels, minlength=count)
    return tuple(float(counts.sum() / (count * n)) if n else 1.0 for n in counts)


def make_featurizer(d: TaskConfig, tokenizer: Tokenizer) -> Featurizer:
    """The featurizer of a task."""
    settings = d.task, d.labels, d.max_length, d.stride, d.max_question, d.document_context
    return Featurizer(tokenizer, *settings, apart=d.vectors in ("pair", "cosine"))
