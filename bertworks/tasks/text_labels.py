"""Tasks with one prediction for the texts of a row.

One label, several labels or a number for a text or a pair of texts; the best of several choices.
"""

import json
import math
import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, compress, islice
from statistics import mode
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from bertworks.batching.examples import ExampleGroup, Target
from bertworks.datasets.schema import (
    CHOICE_LISTS,
    Columns,
    Item,
    LabelCell,
    LabelProblem,
    Names,
    Schema,
    StudiedFile,
    are_nameless,
    find_label,
    first_column,
    named_columns,
)
from bertworks.datasets.values import (
    FLAGS,
    MAX_CLASSES,
    MOST,
    PROMPTS,
    Column,
    as_number,
    choice_number,
    label_text,
    several_labels,
)
from bertworks.errors import BertworksError, expect
from bertworks.metrics import intervals
from bertworks.tasks.outputs import MultiLabel, MultipleChoice, Regression, TaskHead
from bertworks.tasks.sequences import Features, Rows, Segments, read_texts
from bertworks.tasks.settings import TaskConfig
from bertworks.tasks.task import (
    ABSENT_LOGIT,
    Answer,
    Explained,
    Featurizer,
    Gold,
    Logits,
    Mistake,
    Pairs,
    Targets,
    Task,
    log_odds,
    sigmoid,
    softmax,
)
from bertworks.training.recipe import FinetuneRecipe

if TYPE_CHECKING:
    from torch import Tensor

_IDENTITY = "torch.nn.modules.linear.Identity"
_CHOICE = re.compile(
    r"(choice|ending|option|answer|alternative|candidate|sol|solution|選択肢|보기)s?"
    r"[ _-]?(\d+|[a-e])"
)


class TextTask(Task):
    """A task with one prediction for a text or a pair of texts.

    The texts of a pair are one sequence or, if they are read apart, two.
    """

    num_texts = (1, 2)
    texts = "the text, or a pair of texts"
    pipeline = "text-classification"
    predicts_texts = True
    reads_pairs = True

    def read(self, reader: Featurizer, items: list[Item]) -> Iterator[Features]:
        tokens = reader.tokens(chain.from_iterable(item.texts for item in items))
        for item in items:
            texts = list(islice(tokens, len(item.texts)))
            sequences = [[text] for text in texts] if self.reads_apart else self.sequences(texts)
            parts = []
            for number, segments in enumerate(sequences):
                num_targets = 0 if self.reads_apart and number else 1  # one for both texts
                positions = np.zeros(num_targets, np.int64)
                part = read_texts(
                    segments,
                    reader.tokenizer.template,
                    self.d.max_length,
                    self.d.windows,
                    target=Target(positions, self.targets(item, number)[:num_targets]),
                    keep_end=reader.keep_end,
                )
                parts.append(part)
            unit = parts[0].unit
            if len(parts) > 1:
                unit = [*chain.from_iterable(part.unit for part in parts)]
            has_mean = any(len(part.unit) > 1 for part in parts)
            yield Features(
                item,
                unit,
                sum(part.num_read for part in parts),
                sum(part.num_truncated for part in parts),
                parts=parts if has_mean else (),
            )

    def sequences(self, texts: Segments) -> Sequence[Segments]:
        """Return the texts that are read together."""
        return [texts]

    @abstractmethod
    def targets(self, item: Item, number: int) -> Targets:
        """Return the target of a sequence of an item, [1, ...]. number: of the sequence."""

    def expected_texts(self, count: int) -> tuple[bool, str]:
        if not self.d.text:
            return 1 <= count <= 2, "a string, or a pair of them"
        expected = {1: "a string", 2: "a pair of strings"}.get(len(self.d.text), "")
        return count == len(self.d.text), expected

    def explained(self, features: Features, answer: Answer, target: str | None) -> Explained:
        """Return the log-odds of a label, and all labels."""
        best = sorted(answer["scores"].items(), key=lambda pair: -pair[1])
        label = target or best[0][0]
        expect(
            label in self.d.labels,
            f"the model has no label {label!r}",
            hint=f"use one of {', '.join(self.d.labels[:20])}",
        )
        number = self.d.labels.index(label)
        name = f"the label “{label}” (log-odds)"
        rows = [(label, f"{p:.1%}") for label, p in best]

        def value(outputs: "Tensor") -> "Tensor":
            logits = outputs[:, 0]
            # of several labels, each logit is the log-odds of its label
            return logits[:, number] if self.has_many_labels else log_odds(logits, number)

        return (features.unit[0], name, value), rows


class ClassificationTask(TextTask):
    """One of several labels for a text."""

    name = "classification"
    meaning = "one label for a text"
    expected = "write one name there; or is it --task multilabel?"
    label_note = "{count} different values: {labels}"
    metrics = ("accuracy", "macro_f1", "matthews_correlation", "f1")
    fields = ("label", "score")
    trivial = "most frequent label"
    part = "label"
    alternatives = "scores"
    has_classes = True
    has_text_labels = True
    is_stratified = True
    recipe_fields = ("class_weights", "label_smoothing", "windows")
    problem_type = "single_label_classification"

    def read_label(self, cell: LabelCell) -> Any:
        if isinstance(cell.value, list | dict):
            return None
        return cell.known_label(label_text(cell.value))

    def label_problem(self, schema: Schema, file: StudiedFile) -> LabelProblem | None:
        labels = schema.labels
        column = file.columns[schema.label[0]]
        if not labels:
            return "there is no label", "add rows with another label"
        if len(labels) < 2:
            what = f"all rows with a text have the same label, {labels[0]!r}"
            return what, "add rows with another label"
        few = column.has_few_values if column.values else 5 * len(labels) <= column.filled
        if file.task is not None or few or len(labels) <= MAX_CLASSES:
            return None
        what = f"{len(labels):,} different values in {column.filled:,} rows are not classes"
        if not column.leading_zeros:
            return what, "if they are: --task classification; else name another column with --label"
        what += ", and those with leading zeros are codes and no numbers"
        return what, "if they are numbers: --task regression; else name another column with --label"

    def targets(self, item: Item, number: int) -> Targets:
        return np.array([0 if item.label is None else self.d.labels.index(item.label)], np.int64)

    def target_text(self, reader: Featurizer, sequences: ExampleGroup) -> str:
        number = int(sequences[0].target.labels[0])
        return self.d.labels[number]

    def decode(self, features: Features, logits: Logits) -> Answer:
        p = softmax(logits[0] / np.float32(self.d.temperature))
        return {
            "label": self.d.labels[int(p.argmax())],
            "score": float(p.max()),
            "scores": dict(zip(self.d.labels, p.tolist(), strict=True)),
        }

    def metrics_of(self) -> Names:
        # F1 is that of one of two classes.
        return self.metrics if len(self.d.labels) in (0, 2) else self.metrics[:-1]

    def label_names(self, label: Any) -> Iterable[str]:
        return (label,)

    def mistakes(self, pairs: Pairs) -> Iterator[Mistake]:
        for item, answer in pairs:
            gold = item.label
            predicted = answer["label"]
            if gold == predicted:
                continue
            p = answer["scores"].get(gold, 0.0)  # none of labels that were never trained
            yield Mistake(
                item.where,
                item.texts,
                gold,
                predicted,
                answer["score"],
                -p,
                f"true {gold!r}, predicted {predicted!r}",
                {"gold_score": p},
            )


class MultiLabelTask(TextTask):
    """Any number of labels for a text."""

    name = "multilabel"
    meaning = "any number of labels for a text"
    expected = 'write several labels as a list, ["one", "another"]'
    label_note = "any of {count}, separated by {mark}: {labels}"
    metrics = ("micro_f1", "macro_f1", "accuracy")
    figures = ("precision", "recall")
    fields = ("labels",)
    trivial = "most frequent labels"
    part = "label"
    alternatives = "scores"
    has_confusion = False
    has_text_labels = True
    has_many_labels = True
    recipe_fields = ("windows",)
    problem_type = "multi_label_classification"

    def read_label(self, cell: LabelCell) -> Any:
        names = several_labels(cell.value, cell.schema.separator, cell.schema.label_names)
        return None if names is None else tuple(dict.fromkeys(map(cell.known_label, names)))

    def label_problem(self, schema: Schema, file: StudiedFile) -> LabelProblem | None:
        if not schema.labels:
            return "no row has a label", "label some rows"
        if {label.lower() for label in schema.labels} <= FLAGS.keys():
            hint = (
                "lists: --label-names A,B,C; columns: --label A --label B; one label: --task "
                "classification"
            )
            return "the labels are named only 0 and 1", hint
        return None

    def targets(self, item: Item, number: int) -> Targets:
        return np.array([[label in (item.label or ()) for label in self.d.labels]], np.float32)

    def target_text(self, reader: Featurizer, sequences: ExampleGroup) -> str:
        return ", ".join(compress(self.d.labels, sequences[0].target.labels[0])) or "no label"

    def head(self) -> TaskHead:
        return MultiLabel(outputs=len(self.d.labels), vectors=self.d.vectors)

    def decode(self, features: Features, logits: Logits) -> Answer:
        p = sigmoid(logits[0] / np.float32(self.d.temperature))
        threshold = 0.5 if self.d.threshold is None else self.d.threshold
        best = [number for number in np.argsort(-p, kind="stable") if p[number] >= threshold]
        return {
            "labels": [self.d.labels[number] for number in best],
            "scores": dict(zip(self.d.labels, p.tolist(), strict=True)),
        }

    def in_words(self, item: Item, answer: Answer) -> str:
        scores = {name: f"{name} {score:.1%}" for name, score in answer["scores"].items()}
        best = max(answer["scores"], key=answer["scores"].__getitem__)
        return ", ".join(scores[name] for name in answer["labels"]) or f"no label ({scores[best]})"

    def comparable_label(self, label: Any) -> Any:
        """The order of several labels means nothing."""
        return frozenset(label)

    def constant_logits(self, targets: Targets, count: int) -> Logits:
        frequencies = targets.mean(0)
        is_given = frequencies >= min(0.5, frequencies.max())
        logits = np.where(is_given, -ABSENT_LOGIT, ABSENT_LOGIT)
        return np.tile(logits.astype(np.float32), (count, 1))

    def check_threshold(self, threshold: float | None) -> None:
        expect(
            0 <= (threshold or 0) <= 1,
            f"the threshold is {threshold}: expected a probability, from 0 to 1",
        )

    def label_names(self, label: Any) -> Iterable[str]:
        return tuple(label)

    def mistakes(self, pairs: Pairs) -> Iterator[Mistake]:
        for item, answer in pairs:
            gold = set(item.label)
            predicted = set(answer["labels"])
            if gold == predicted:
                continue
            # no probability of labels that were never trained
            p = dict.fromkeys(gold, 0.0) | answer["scores"]
            wrong = {
                label: p[label] if label in predicted else 1 - p[label]
                for label in gold ^ predicted
            }
            worst = max(wrong, key=wrong.__getitem__)
            kind = f"{worst!r} {'given wrongly' if worst in predicted else 'missed'}"
            gold_names, predicted_names = (
                json.dumps(sorted(labels), ensure_ascii=False) for labels in (gold, predicted)
            )
            badness = sum(wrong.values())
            yield Mistake(
                item.where, item.texts, gold_names, predicted_names, wrong[worst], badness, kind
            )

    def fitted(self, rows: Rows, logits: Sequence[Logits]) -> TaskConfig:
        fitted = super().fitted(rows, logits)
        x, gold, _ = self.gold_logits(rows, logits)
        threshold = intervals.best_label_threshold(sigmoid(x / fitted.temperature), gold)
        return replace(fitted, threshold=threshold)


class RegressionTask(TextTask):
    """A number for a text."""

    name = "regression"
    meaning = "a number for a text"
    expected = "write a number there, or remove the row"
    label_note = "numbers from {column.low:g} to {column.high:g}{column.other_reading}"
    metrics = ("spearman", "pearson")
    figures = ("rmse",)
    fields = ("value",)
    trivial = "mean"
    has_confusion = False
    has_temperature = False
    has_labels = False
    predicts_numbers = True
    recipe_fields = ("windows",)
    pipeline_functions = ("none",)
    problem_type = "regression"
    num_outputs = 1
    # sentence-transformers' CrossEncoder would apply a sigmoid to the number. The second name is
    # that of its versions before 4.
    head_settings: ClassVar[Mapping[str, Any]] = {
        "sentence_transformers": {"activation_fn": _IDENTITY},
        "sbert_ce_default_activation_function": _IDENTITY,
    }

    def read_label(self, cell: LabelCell) -> Any:
        number = as_number(cell.value, cell.schema.decimal)
        return number if math.isfinite(number) else None

    def label_problem(self, schema: Schema, file: StudiedFile) -> LabelProblem | None:
        column = file.columns[schema.label[0]]
        if column.low != column.high or not column.is_numeric:
            return None
        what = f"all {column.filled:,} rows have the same number, {column.low}"
        return what, "add rows with other numbers"

    def targets(self, item: Item, number: int) -> Targets:
        return np.array([item.label or 0.0], np.float32)

    def target_text(self, reader: Featurizer, sequences: ExampleGroup) -> str:
        return f"{sequences[0].target.labels.tolist()[0]:g}"

    def head(self) -> TaskHead:
        return Regression(vectors=self.d.vectors)

    def training_head(self, units: Sequence[ExampleGroup], recipe: FinetuneRecipe) -> TaskHead:
        targets = [
            float(target) for unit in units for example in unit for target in example.target.labels
        ]
        deviation = float(np.std(targets)) or 1.0
        return Regression(mean=float(np.mean(targets)), deviation=deviation, vectors=self.d.vectors)

    def decode(self, features: Features, logits: Logits) -> Answer:
        return {"value": float(logits[0, 0])}

    def in_words(self, item: Item, answer: Answer) -> str:
        return f"{answer['value']:.4g}"

    def constant_logits(self, targets: Targets, count: int) -> Logits:
        return np.full((count, 1), targets.mean(), np.float32)

    def difference(self, first: Sequence[Any], second: Sequence[Any]) -> tuple[str, Answer]:
        pairs = zip(first, second, strict=True)
        largest = max((abs(number - other_number) for number, other_number in pairs), default=0.0)
        text = f"the first {len(first)} values differ by up to {largest:.3f}"
        return text, {"largest": largest}

    def explained(self, features: Features, answer: Answer, target: str | None) -> Explained:
        prediction = ("value", f"{answer['value']:.4g}")
        return (features.unit[0], "the value", lambda x: x[:, 0, 0]), [prediction]

    def row_sums(self, pairs: Pairs) -> dict[str, intervals.RowSums]:
        labels, values = zip(*((item.label, answer["value"]) for item, answer in pairs))
        return intervals.correlations(labels, values)

    def mistakes(self, pairs: Pairs) -> Iterator[Mistake]:
        """Yield all rows, with their differences."""
        for item, answer in pairs:
            difference = answer["value"] - item.label
            yield Mistake(
                item.where,
                item.texts,
                f"{item.label:g}",
                f"{answer['value']:.4g}",
                difference,
                abs(difference),
            )


class ChoiceTask(TextTask):
    """One of several continuations or answers. The prompt and each choice are a sequence."""

    name = "choice"
    meaning = "one of several continuations or answers"
    num_texts = (1, 1024)
    texts = "the prompt and the choices"
    expected = "write the number of the right one, NUMBERS"
    label_note = "the right choice; {schema.first_choice} is the first"
    metrics = ("accuracy",)
    fields = ("choice", "score")
    trivial = "most frequent choice"
    counted = "rows in train, by the position of the right choice"
    pipeline = "multiple-choice"
    alternatives = "scores"
    has_labels = False
    reads_pairs = False
    counts_choices = True
    has_linear_head = False
    is_stratified = True
    reads = "choices"
    pipeline_functions = ("softmax", "none")
    num_outputs = 1

    def schema_of_choices(self, file: StudiedFile) -> Schema | None:
        columns = file.columns
        is_explicit = file.task is not None
        texts = file.text or _find_choices(columns)
        if not texts or (file.text and not is_explicit) or len(file.label) > 1:
            return None
        at_the_end = tuple(columns)[-1:] if are_nameless(columns) and not file.text else ()
        label = file.label or at_the_end or (find_label(columns, texts) if file.options else ())
        last = columns[texts[-1]]
        number = last.entries // last.lists if last.is_listed else len(texts) - 1
        right = columns[label[0]] if label else Column("")
        counts = [right.values[str(place)] for place in range(number + 1)]
        are_choices = right.numbers < MOST * right.filled or sum(counts) >= MOST * right.filled
        if not is_explicit and (not label or not are_choices):
            return None
        first_choice = int(not counts[0] and counts[number] > 0)
        return Schema(task=self.name, text=texts, label=label, first_choice=first_choice)

    def read_label(self, cell: LabelCell) -> Any:
        return choice_number(cell.value, cell.texts[1:], cell.schema.first_choice)

    def label_problem(self, schema: Schema, file: StudiedFile) -> LabelProblem | None:
        if len(schema.text) >= 2:
            return None
        hint = "name them: --text PROMPT --text CHOICE1 --text CHOICE2"
        return "there are no choices", hint

    def sequences(self, texts: Segments) -> Sequence[Segments]:
        prompt, *choices = texts
        return [[prompt, choice] for choice in choices]

    def targets(self, item: Item, number: int) -> Targets:
        return np.array([float(number == item.label)], np.float32)

    def example_sequences(self, features: Features) -> ExampleGroup:
        return features.unit

    def target_text(self, reader: Featurizer, sequences: ExampleGroup) -> str:
        right = [sequence.target.labels[0] for sequence in sequences].index(1)
        return f"choice {right + 1}"

    def head(self) -> TaskHead:
        return MultipleChoice(num_choices=self.d.num_choices)

    def decode(self, features: Features, logits: Logits) -> Answer:
        p = softmax((logits / np.float32(self.d.temperature))[:, 0])
        return {"choice": int(p.argmax()), "score": float(p.max()), "scores": p.tolist()}

    def shared_texts(self, num_texts: int) -> list[tuple[int, ...]]:
        return [(0,)]

    def constant_logits(self, targets: Targets, count: int) -> Logits:
        votes = targets.reshape(-1, self.d.num_choices).sum(0)
        return np.tile(votes.astype(np.float32), count // self.d.num_choices)[:, None]

    def score_names(self, item: Item) -> Sequence[str]:
        return item.texts[1:]

    def expected_texts(self, count: int) -> tuple[bool, str]:
        fits = count == self.d.num_choices + 1 if self.d.num_choices else count > 2
        return fits, "(prompt, choice, choice, ...)"

    def check_item(self, item: Item) -> None:
        num_choices = len(item.texts) - 1
        if self.d.num_choices and num_choices != self.d.num_choices:
            raise BertworksError(
                f"{num_choices} choices, but the model was trained with {self.d.num_choices}",
                where=item.where,
                hint=f"give every row {self.d.num_choices} choices",
            )

    def numbered(self, fields: Answer, first_choice: int) -> Answer:
        return fields | {"choice": fields["choice"] + first_choice}

    def in_words(self, item: Item, answer: Answer) -> str:
        return f"{item.texts[1 + answer['choice']]}  {answer['score']:.1%}"

    def explained(self, features: Features, answer: Answer, target: str | None) -> Explained:
        number = answer["choice"]
        name = f"choice {number + 1} (its score)"
        scores = (f"{p:.1%}" for p in answer["scores"])
        rows = zip(features.item.texts[1:], scores, strict=True)
        return (features.unit[number], name, lambda x: x[:, 0, 0]), rows

    def label_names(self, label: Any) -> Iterable[str]:
        """Return the position of a choice."""
        return (str(label + 1),)

    def mistakes(self, pairs: Pairs) -> Iterator[Mistake]:
        for item, answer in pairs:
            if item.label == answer["choice"]:
                continue
            prompt, *choices = item.texts
            p = answer["scores"][item.label]
            yield Mistake(
                item.where,
                (prompt,),
                choices[item.label],
                choices[answer["choice"]],
                answer["score"],
                -p,
                figures={"gold_score": p},
            )

    def confusion_labels(self, names: set[str]) -> list[str]:
        return [str(number + 1) for number in range(self.d.num_choices)]

    def gold_logits(self, rows: Rows, logits: Sequence[Logits]) -> Gold:
        gold = [[example.target.labels[0] for example in features.unit] for features in rows]
        row_logits = np.stack([x[:, 0] for x in logits])
        return row_logits, np.array(gold).argmax(1), np.arange(len(rows))


def _find_choices(columns: Columns) -> Names:
    """Return the prompt and the choices, or the one column with a list of them.

    It is () if there are none.
    """
    named = named_columns(columns.values())
    stems = {known: match[1] for known in named if (match := _CHOICE.fullmatch(known))}
    choices = [named[known].name for known, stem in stems.items() if stem == mode(stems.values())]
    if len(choices) < 2:
        choices = [
            named[known].name for known in CHOICE_LISTS if known in named and named[known].is_listed
        ][:1]
    prompt = first_column(named, PROMPTS)
    if choices and prompt is not None:
        return prompt.name, *choices
    # A prompt, at least three choices and the number of the right one, at the end of a table
    # without header.
    *before, label = columns.values()
    number = 0
    if label.is_numeric and not label.fractions and label.low == 0:
        number = int(label.high) + 1
    texts = before[-1 - number :]
    if not are_nameless(columns) or number < 3 or len(texts) <= number:
        return ()
    if not all(text.is_text and not text.is_constant and not text.holds_codes() for text in texts):
        return ()
    return tuple(text.name for text in texts)
