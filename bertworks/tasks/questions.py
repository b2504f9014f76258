"""The task of finding the answer to a question in its context."""

import json
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertworks.batching.examples import ExampleGroup, Ids
from bertworks.datasets.schema import (
    Item,
    LabelCell,
    Names,
    Schema,
    StudiedFile,
    Texts,
    first_column,
    named_columns,
)
from bertworks.datasets.values import MOST, answers_of
from bertworks.metrics import intervals, squad
from bertworks.tasks.outputs import SpanExtraction, TaskHead
from bertworks.tasks.sequences import (
    Features,
    Rows,
    Window,
    strip_span,
    tokens_in_span,
)
from bertworks.tasks.settings import TaskConfig
from bertworks.tasks.task import (
    NOTHING,
    Answer,
    Explained,
    Featurizer,
    Logits,
    Mistake,
    Pairs,
    Task,
    softmax,
)

NOWHERE = 1e9  # the margin of "no answer" if no span can be an answer
NUM_BEST_SPANS = 20  # starts and ends that are combined, and answers that are kept
_COLUMNS = ("question", "context")
_ANSWER_COLUMNS = ("answers", "answer")
_NO_TOKEN = -1  # the place of a token that belongs to no text


class QuestionsTask(Task):
    """The answer to a question, a span of its context, or no answer."""

    name = "qa"
    meaning = "the answer to a question, found in its context"
    num_texts = (2, 2)
    texts = "the question and the context"
    texts_hint = "name them: --text QUESTION --text CONTEXT"
    expected = 'write answers as [{"text": "1968", "answer_start": 17}]'
    label_note = "answers, and their places in the context"
    file_kind = "squad"
    needed_columns = _COLUMNS
    metrics = ("f1", "exact")
    fields = ("answer", "start", "end", "score")
    trivial = "no answer"
    part = "kind of question"
    counted = "questions in train"
    pipeline = "question-answering"
    alternatives = "n_best"
    has_labels = False
    reads_windows = True
    has_context = True
    has_linear_head = False
    divides_copies = False
    rows_are = "questions"
    endpoint = "qa"
    reads = "question"
    doubtful_note = "answers are not at their position in the context, and are left out of train"
    leaves_out_doubtful = True
    has_confusion = False
    has_temperature = False

    def schema_of_layout(self, file: StudiedFile) -> Schema | None:
        if file.kind == self.file_kind:
            return Schema(task=self.name, text=_COLUMNS, label=("answers",))
        named = named_columns(file.columns.values())
        label_names = [file.columns[name].known_name for name in file.label] or _ANSWER_COLUMNS
        answers = first_column(named, label_names)
        if answers is None or answers.answers < MOST * answers.filled:
            return None
        texts = tuple(named[name].name for name in _COLUMNS)
        return Schema(task=self.name, text=texts, label=(answers.name,))

    def read_label(self, cell: LabelCell) -> Any:
        answers = answers_of(cell.value)
        return None if answers is None else tuple(answers)

    def read(self, reader: Featurizer, items: list[Item]) -> Iterator[Features]:
        questions = reader.tokens(item.texts[0] for item in items)
        contexts = reader.arrays([item.texts[1] for item in items])
        for item, (whole, count), (row, offsets) in zip(items, questions, contexts, strict=True):
            question = whole[: min(self.d.max_question, self.d.max_length // 2)]
            first = last = _NO_TOKEN
            if item.label:
                start, text = item.label[0]
                covered = tokens_in_span(offsets, start, start + len(text))
                if len(covered):
                    first, last = covered[[0, -1]].tolist()
            targets = partial(_targets_of_window, first, last)
            features = reader.in_windows(item, row, targets, offsets, self.d.stride, [question])
            num_read = len(question)
            yield features._replace(num_read=num_read, num_truncated=count - num_read)

    def example_sequences(self, features: Features) -> ExampleGroup:
        if self.reads_apart:
            return features.unit
        answered = (sequence for sequence in features.unit if sequence.target.labels.any())
        return [next(answered, features.unit[0])]

    def target_text(self, reader: Featurizer, sequences: ExampleGroup) -> str:
        first, last = sequences[0].target.labels.tolist()
        answer = sequences[0].input_ids[first : last + 1]
        return reader.tokenizer.decode(answer) if first else "no answer"

    def head(self) -> TaskHead:
        return SpanExtraction()

    def decode(self, features: Features, logits: Logits) -> Answer:
        """Return the best answers over all windows, and the margin by which "no answer" is better.

        Answers are ordered by the sum of the logits of their first and last token
        (google-research/bert `run_squad.py`, `write_predictions`). With a threshold, there is no
        answer if the margin exceeds it.
        """
        answers, no_answer = self._best_answers(features, logits)
        threshold = self.d.threshold
        margin = no_answer - answers[0]["score"] if answers else NOWHERE
        scores = [answer["score"] for answer in answers]
        if threshold is not None:
            scores.append(no_answer)
        p = softmax(np.array(scores)).tolist() if scores else [0.0]
        for answer, probability in zip(answers, p, strict=False):
            answer["score"] = probability
        has_answer = answers and (threshold is None or margin <= threshold)
        best = answers[0] if has_answer else {"text": "", "start": -1, "end": -1, "score": p[-1]}
        return {
            "answer": best["text"],
            **{name: best[name] for name in ("start", "end", "score")},
            "no_answer_margin": float(margin),
            "n_best": answers,
        }

    def in_words(self, item: Item, answer: Answer) -> str:
        return f"{answer['answer'] or 'no answer'}  {answer['score']:.1%}"

    def _best_answers(self, features: Features, logits: Logits) -> tuple[list[Answer], float]:
        """Return the best answers, with their logits as `score`, and that of no answer."""
        best: dict[str, tuple[Any, ...]] = {}  # by text: score, first and last token, start, end
        no_answer = NOWHERE
        start = 0
        context = features.item.texts[1]
        for example, window in zip(features.unit, features.windows, strict=True):
            end = start + len(example.input_ids)
            part = logits[start:end] / np.float32(self.d.temperature)
            start = end
            no_answer = min(no_answer, float(part[0].sum()))
            part = part[features.begin :][: len(window.is_own)]
            places = np.arange(window.start, window.end)
            spans = [*best.values(), *best_spans(part, places, window.is_own, self.d.max_answer)]
            best = {}
            for score, first, last, *_ in sorted(spans, reverse=True):
                a, b = strip_span(context, features.offsets[first, 0], features.offsets[last, 1])
                if a < b and len(best) < NUM_BEST_SPANS:
                    best.setdefault(context[a:b], (score, first, last, a, b))
        answers = [
            {"text": text, "start": a, "end": b, "score": score}
            for text, (score, _, _, a, b) in best.items()
        ]
        return answers, no_answer

    def is_doubtful(self, item: Item) -> bool:
        context = item.texts[1]
        return any(context[start : start + len(text)] != text for start, text in item.label or ())

    def divided_texts(self, item: Item) -> Texts:
        """Questions on one context are on one side."""
        return item.texts[1:]

    def comparable_label(self, label: Any) -> Any:
        """A question may have several right answers."""
        return None

    def initial_threshold(self, rows: Sequence[Item]) -> float | None:
        return None if all(item.label for item in rows) else 0.0

    def expected_texts(self, count: int) -> tuple[bool, str]:
        return count == 2, "(question, context)"

    def text_columns(self) -> Names:
        return _COLUMNS

    def check_threshold(self, threshold: float | None) -> None:
        """Any number is a threshold."""

    def label_value(self, value: Any) -> Any:
        """One answer, "" for none, and several have no places."""
        texts = [value] if isinstance(value, str) else value
        if (
            answers_of(value) is None
            and isinstance(texts, list)
            and all(isinstance(text, str) for text in texts)
        ):
            return [{"text": text, "answer_start": 0} for text in texts]
        return value

    def explained(self, features: Features, answer: Answer, target: str | None) -> Explained:
        """Return the logits of start and end of the answer in its window.

        If there is no answer, they are the logits of [CLS].
        """
        prediction = (answer["answer"] or "(no answer)", f"{answer['score']:.1%}")
        if not answer["answer"]:
            name = "“no answer” (its score)"
            return (features.unit[0], name, lambda x: x[:, 0].sum(-1)), [prediction]
        tokens = tokens_in_span(features.offsets, answer["start"], answer["end"])
        first_token = int(tokens[0])
        # The window in which the answer has most context.
        number, window = next(
            (number, window)
            for number, window in enumerate(features.windows)
            if window.start <= first_token < window.end
            and window.is_own[first_token - window.start]
        )
        example = features.unit[number]
        # Counted from the end of the sequence.
        first = features.begin + first_token - window.start - len(example.input_ids)
        last = first + len(tokens) - 1
        name = f"the answer “{answer['answer']}” (its score)"
        return (example, name, lambda x: x[:, first, 0] + x[:, last, 1]), [prediction]

    def label_names(self, label: Any) -> Iterable[str]:
        return ("with an answer" if label else "without an answer",)

    def row_sums(self, pairs: Pairs) -> dict[str, intervals.RowSums]:
        exact, f1 = zip(*_squad_scores(pairs))
        return {"f1": intervals.mean_sums(f1), "exact": intervals.mean_sums(exact)}

    def further_figures(self, pairs: Pairs) -> dict[str, float]:
        """Return `best_f1` and its `threshold` if some questions have no answer, else {}.

        The threshold is the lead in logits from which "no answer" is predicted.
        """
        if all(item.label for item, _ in pairs):
            return {}
        # Numbered in order: not all files have ids. The threshold is that of the best answers,
        # whatever the present one.
        questions = [
            squad.SquadQuestion(str(n), tuple(_gold_texts(item)))
            for n, (item, _) in enumerate(pairs)
        ]
        best = {
            str(n): (answer["n_best"] or [{"text": ""}])[0]["text"]
            for n, (_, answer) in enumerate(pairs)
        }
        margins = {str(n): answer["no_answer_margin"] for n, (_, answer) in enumerate(pairs)}
        figures, _ = squad.evaluate_answers(
            questions, best, version="2.0", no_answer_probabilities=margins, unit=_f1_unit(pairs)
        )
        return {"best_f1": figures["best_f1"] / 100, "threshold": figures["best_f1_thresh"]}

    def group(self, item: Item) -> Hashable:
        return item.texts[1]

    def mistakes(self, pairs: Pairs) -> Iterator[Mistake]:
        unit = _f1_unit(pairs)
        for item, answer in pairs:
            golds = _gold_texts(item)
            predicted = answer["answer"]
            exact, f1 = squad.score_answer(golds, predicted, version="2.0", unit=unit)
            if exact:
                continue
            if not golds:
                kind = "answered, but there is no answer"
            elif not predicted:
                kind = "left without an answer"
            else:
                kind = "partly right" if f1 else "quite another answer"
            gold = NOTHING
            if golds:
                gold = json.dumps(list(dict.fromkeys(golds)), ensure_ascii=False)
            score = answer["score"]
            yield Mistake(
                item.where,
                item.texts[:1],
                gold,
                predicted or NOTHING,
                score,
                1 - f1 + score,
                kind,
                {"f1": f1},
            )

    def table(self, dev: Rows, pairs: Pairs) -> dict[str, dict[str, float]]:
        """Return counts of questions and contexts.

        Questions are with or without answer; contexts are read in one window or in several.
        """
        has_unanswerable = not all(item.label for item, _ in pairs)
        parts: dict[str, list[squad.SquadScore]] = defaultdict(list)
        for features, score in zip(dev, _squad_scores(pairs), strict=True):
            pieces = "one piece" if len(features.unit) == 1 else "several pieces"
            parts[f"context in {pieces}"].append(score)
            if has_unanswerable:
                parts[next(iter(self.label_names(features.item.label)))].append(score)
        table = {}
        for kind, scores in sorted(parts.items()):
            exact, f1 = np.mean(scores, axis=0).tolist()
            table[kind] = {"exact": exact, "f1": f1, "support": float(len(scores))}
        return table

    def fitted(self, rows: Rows, logits: Sequence[Logits]) -> TaskConfig:
        """Questions have no temperature; the threshold is that of "no answer"."""
        answers = [self.decode(row, x) for row, x in zip(rows, logits, strict=True)]
        figures = self.further_figures([*zip((features.item for features in rows), answers)])
        if "threshold" not in figures:
            return self.d
        return replace(self.d, threshold=best_threshold(answers, figures))


def best_threshold(answers: Sequence[Answer], figures: Mapping[str, float]) -> float:
    """Return the margin with the best F1, plus half of the distance to the next margin.

    It is at most .5 more, so that no answer depends on the last digit. If it is best to give no
    answer at all, it is a margin below all.

    Args:
        figures: `threshold`, see `QuestionsTask.further_figures`.
    """
    threshold = figures["threshold"]
    margins: list[float] = [answer["no_answer_margin"] for answer in answers]
    if threshold not in margins:
        return min(0.0, *margins) - 1
    distances = [margin - threshold for margin in margins if margin > threshold]
    return threshold + min([1.0, *distances]) / 2


def best_spans(
    logits: Logits, places: NDArray[np.int64], is_own: NDArray[np.bool_], max_answer: int
) -> list[tuple[float, int, int]]:
    """Return score, first and last token of the best answers in a window.

    They are pairs of its NUM_BEST_SPANS best starts and ends that are in order and short enough.

    Args:
        logits: of start and end, [n, 2].
        places: the tokens of the context that these are; negative: of no text.
        is_own: which tokens have their best context in this window: starts are among these.
        max_answer: tokens of an answer, at most.
    """
    starts = np.flatnonzero(is_own & (places >= 0))
    ends = np.flatnonzero(places >= 0)
    starts = starts[np.argsort(-logits[starts, 0], kind="stable")[:NUM_BEST_SPANS]]
    ends = ends[np.argsort(-logits[ends, 1], kind="stable")[:NUM_BEST_SPANS]]
    length = ends[None, :] - starts[:, None] + 1
    rows, columns = np.nonzero((length >= 1) & (length <= max_answer))
    scores = logits[starts[rows], 0].astype(np.float64) + logits[ends[columns], 1]
    firsts = places[starts[rows]]
    lasts = places[ends[columns]]
    return list(zip(scores.tolist(), firsts.tolist(), lasts.tolist(), strict=True))


def _targets_of_window(
    first: int, last: int, window: Window, begin: int, length: int
) -> tuple[Ids, Ids]:
    """Return what a window over a context predicts.

    first, last: the tokens of the answer, in the context; _NO_TOKEN, which is in no window: none.
    """
    targets = np.zeros(2, np.int64)
    if window.start <= first and last < window.end:
        targets = np.array([first, last]) - window.start + begin
    return np.arange(length), targets


def _gold_texts(item: Item) -> list[str]:
    return [text for _, text in item.label or ()]


def _f1_unit(pairs: Pairs) -> squad.F1Unit:
    return squad.f1_unit_of(item.texts[1] for item, _ in pairs)


def _squad_scores(pairs: Pairs) -> list[squad.SquadScore]:
    """Return the SQuAD scores of answers: those of version 2.0 if any question has no answer."""
    version: squad.SquadVersion = "1.1" if all(item.label for item, _ in pairs) else "2.0"
    unit = _f1_unit(pairs)
    return [
        squad.score_answer(_gold_texts(item), answer["answer"], version=version, unit=unit)
        for item, answer in pairs
    ]
