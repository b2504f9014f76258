"""Tasks with one prediction for a text or a pair of texts: one label, several labels, a number."""

import json
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, compress, islice
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from bertworks.batching.batch import ExampleGroup
from bertworks.batching.masking import Example
from bertworks.batching.sampling import Ids, add_special_tokens
from bertworks.datasets.schema import Item, Names, ReadName, Schema
from bertworks.datasets.values import (
    FLAGS,
    MAX_CLASSES,
    Column,
    as_number,
    label_text,
    several_labels,
)
from bertworks.errors import expect
from bertworks.metrics import intervals
from bertworks.tasks.attributed import Attributed, log_odds
from bertworks.tasks.heads import MultiLabel, Regression, TaskHead
from bertworks.tasks.probabilities import Answer, Logits, sigmoid, softmax
from bertworks.tasks.sequences import Features, SequenceReader, target_example
from bertworks.tasks.settings import TaskConfig
from bertworks.tasks.task import ABSENT_LOGIT, Mistake, Task, classification_head, targets_of
from bertworks.text.tokenizer import truncated_lengths
from bertworks.training.recipe import FinetuneRecipe

_IDENTITY = "torch.nn.modules.linear.Identity"
LabelValue = Callable[[Tensor, int], Tensor]  # [copies, outputs], a label -> [copies]


class TextTask(Task):
    """A task with one prediction for a text or a pair of texts.

    The texts of a pair are one sequence or, if they are read apart, two.
    """

    num_texts = (1, 2)
    texts = "the text, or a pair of texts"
    pipeline = "text-classification"
    predicts_texts = True
    reads_pairs = True

    def read(self, reader: SequenceReader, items: list[Item]) -> Iterator[Features]:
        tokens = reader.tokens(chain.from_iterable(item.texts for item in items))
        template = reader.tokenizer.template
        for item in items:
            texts = list(islice(tokens, len(item.texts)))
            sequences = [[text] for text in texts] if reader.apart else self.sequences(texts)
            unit = []
            num_truncated = 0
            for number, segments in enumerate(sequences):
                room = reader.max_length - template.num_special(len(segments))
                first, second = (*(count for _, count in segments), 0)[:2]
                lengths = truncated_lengths(first, second, room)
                parts = [
                    ids[len(ids) - length :] if reader.keep_end else ids[:length]
                    for (ids, _), length in zip(segments, lengths)
                ]
                sequence = add_special_tokens(parts, template)
                num_targets = 0 if reader.apart and number else 1  # one for both texts
                targets = self.targets(reader.labels, item, number)[:num_targets]
                unit.append(target_example(sequence, [0][:num_targets], targets))
                num_truncated += first + second - sum(lengths)
            yield Features(item, unit, num_truncated)

    def sequences(self, texts: list[tuple[Ids, int]]) -> list[list[tuple[Ids, int]]]:
        """Return the texts that are read together.

        texts: the ids of each, and their number before truncation.
        """
        return [texts]

    @abstractmethod
    def targets(self, labels: Sequence[str], item: Item, number: int) -> NDArray[np.generic]:
        """Return the target of a sequence of an item, [1, ...]. number: of the sequence."""

    def training_groups(self, features: Features) -> list[ExampleGroup]:
        return [features.unit]

    def expected_texts(self, d: TaskConfig, count: int) -> tuple[bool, str]:
        if not d.text:
            return 1 <= count <= 2, "a string, or a pair of them"
        return count == len(d.text), {1: "a string", 2: "a pair of strings"}.get(len(d.text), "")


def _label_explained(
    d: TaskConfig, features: Features, answer: Answer, target: str | None, value: LabelValue
) -> tuple[Attributed, Iterable[tuple[str, str]]]:
    """Return the output for a label, and all labels.

    value: of the logits and the number of the label.
    """
    best = sorted(answer["scores"].items(), key=lambda pair: -pair[1])
    label = target or best[0][0]
    hint = f"use one of {', '.join(d.labels[:20])}"
    expect(label in d.labels, f"the model has no label {label!r}", hint=hint)
    number = d.labels.index(label)
    name = f"the label “{label}” (log-odds)"
    attributed: Attributed = features.unit[0], name, lambda x: value(x[:, 0], number)
    return attributed, [(label, f"{p:.1%}") for label, p in best]


class ClassificationTask(TextTask):
    """One of several labels for a text."""

    name = "classification"
    meaning = "one label for a text"
    expected = "write one name there; or is it --task multilabel?"
    label_note = "{count} different values: {labels}"
    metrics = ("accuracy", "macro_f1", "matthews_correlation", "f1")
    fields = ("label", "score")
    trivial = "most frequent label"
    hub: ClassVar[Mapping[str, str]] = {"macro_f1": "f1"}
    part = "label"
    alternatives = "scores"
    has_classes = True
    has_text_labels = True
    has_short_labels = True
    is_stratified = True
    recipe_fields = ("class_weights", "label_smoothing")
    problem_type = "single_label_classification"

    def label_cell(self, value: Any) -> Any:
        """Annotation tools write one label as a list."""
        return value[0] if isinstance(value, list) and len(value) == 1 else value

    def read_label(
        self, value: Any, texts: Names, schema: Schema, read_name: ReadName, where: str
    ) -> Any:
        return None if isinstance(value, list | dict) else read_name(label_text(value))

    def fits_label(self, column: Column, *, has_several: bool) -> bool:
        return not has_several and not column.has_amounts

    def label_problem(
        self, schema: Schema, column: Column, *, is_explicit: bool
    ) -> tuple[str, str]:
        labels = schema.labels
        if not labels:
            return "there is no label", "add rows with another label"
        if len(labels) < 2:
            what = f"all rows with a text have the same label, {labels[0]!r}"
            return what, "add rows with another label"
        few = column.has_few_values if column.values else 5 * len(labels) <= column.filled
        if is_explicit or few or len(labels) <= MAX_CLASSES:
            return "", ""
        what = f"{len(labels):,} different values in {column.filled:,} rows are not classes"
        if not column.leading_zeros:
            return what, ""
        what += ", and those with leading zeros are codes and no numbers"
        return what, "if they are numbers: --task regression; else name another column with --label"

    def targets(self, labels: Sequence[str], item: Item, number: int) -> NDArray[np.generic]:
        return np.array([0 if item.label is None else labels.index(item.label)], np.int64)

    def target_text(self, reader: SequenceReader, sequences: Sequence[Example]) -> str:
        number = int(sequences[0].target.labels[0])
        return reader.labels[number]

    def head(
        self, d: TaskConfig, units: Sequence[ExampleGroup], recipe: FinetuneRecipe | None
    ) -> TaskHead:
        return classification_head(d, units, recipe, pooled=True)

    def decode(self, d: TaskConfig, features: Features, logits: Logits) -> Answer:
        p = softmax(logits[0] / np.float32(d.temperature))
        return {
            "label": d.labels[int(p.argmax())],
            "score": float(p.max()),
            "scores": dict(zip(d.labels, p.tolist(), strict=True)),
        }

    def has_one_score(self, labels: Sequence[str]) -> bool:
        return len(labels) == 2

    def explained(
        self, d: TaskConfig, features: Features, answer: Answer, target: str | None
    ) -> tuple[Attributed, Iterable[tuple[str, str]]]:
        return _label_explained(d, features, answer, target, log_odds)

    def metrics_of(self, labels: Sequence[str], bare: bool) -> tuple[str, ...]:
        # F1 is that of one of two classes.
        return self.metrics if len(labels) in (0, 2) else self.metrics[:-1]

    def label_names(self, label: Any) -> Iterable[str]:
        return (label,)

    def counted_classes(self, d: TaskConfig) -> Sequence[str]:
        return d.labels

    def mistakes(
        self, d: TaskConfig, items: Sequence[Item], answers: Sequence[Answer]
    ) -> Iterator[Mistake]:
        for item, answer in zip(items, answers, strict=True):
            gold = item.label
            predicted = answer["label"]
            if gold == predicted:
                continue
            p = answer["scores"].get(gold, 0.0)  # none of labels that were never trained
            kind = f"{gold!r} taken for {predicted!r}"
            yield Mistake(
                item.where,
                item.texts,
                gold,
                predicted,
                answer["score"],
                -p,
                kind,
                {"gold_score": p},
            )

    def confusion_labels(self, d: TaskConfig, names: set[str]) -> list[str]:
        return list(d.labels)


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
    hub: ClassVar[Mapping[str, str]] = {"macro_f1": "f1", "micro_f1": "f1"}
    part = "label"
    alternatives = "scores"
    has_confusion = False
    has_text_labels = True
    has_many_labels = True
    problem_type = "multi_label_classification"

    def read_label(
        self, value: Any, texts: Names, schema: Schema, read_name: ReadName, where: str
    ) -> Any:
        names = several_labels(value, schema.separator, schema.label_names)
        return None if names is None else tuple(dict.fromkeys(map(read_name, names)))

    def fits_label(self, column: Column, *, has_several: bool) -> bool:
        return has_several

    def label_problem(
        self, schema: Schema, column: Column, *, is_explicit: bool
    ) -> tuple[str, str]:
        if not schema.labels:
            return "no row has a label", "label some rows"
        if {label.lower() for label in schema.labels} <= FLAGS.keys():
            hint = (
                "lists: --label-names A,B,C; columns: --label A --label B; one label: --task "
                "classification"
            )
            return "the labels are named only 0 and 1", hint
        return "", ""

    def targets(self, labels: Sequence[str], item: Item, number: int) -> NDArray[np.generic]:
        return np.array([[label in (item.label or ()) for label in labels]], np.float32)

    def target_text(self, reader: SequenceReader, sequences: Sequence[Example]) -> str:
        return ", ".join(compress(reader.labels, sequences[0].target.labels[0])) or "no label"

    def head(
        self, d: TaskConfig, units: Sequence[ExampleGroup], recipe: FinetuneRecipe | None
    ) -> TaskHead:
        return MultiLabel(outputs=len(d.labels), vectors=d.vectors)

    def decode(self, d: TaskConfig, features: Features, logits: Logits) -> Answer:
        p = sigmoid(logits[0] / np.float32(d.temperature))
        threshold = 0.5 if d.threshold is None else d.threshold
        best = [number for number in np.argsort(-p, kind="stable") if p[number] >= threshold]
        return {
            "labels": [d.labels[number] for number in best],
            "scores": dict(zip(d.labels, p.tolist(), strict=True)),
        }

    def comparable_label(self, label: Any) -> Any:
        """The order of several labels means nothing."""
        return frozenset(label)

    def constant_logits(self, d: TaskConfig, train: Sequence[Features], count: int) -> Logits:
        targets = np.concatenate([targets_of(features) for features in train])
        frequencies = targets.mean(0)
        is_given = frequencies >= min(0.5, frequencies.max())
        logits = np.where(is_given, -ABSENT_LOGIT, ABSENT_LOGIT)
        return np.tile(logits.astype(np.float32), (count, 1))

    def check_threshold(self, threshold: float | None) -> None:
        what = f"the threshold is {threshold}: expected a probability, from 0 to 1"
        expect(0 <= (threshold or 0) <= 1, what)

    def explained(
        self, d: TaskConfig, features: Features, answer: Answer, target: str | None
    ) -> tuple[Attributed, Iterable[tuple[str, str]]]:
        # The logit of each label is its log-odds.
        return _label_explained(d, features, answer, target, lambda x, number: x[:, number])

    def label_names(self, label: Any) -> Iterable[str]:
        return tuple(label)

    def mistakes(
        self, d: TaskConfig, items: Sequence[Item], answers: Sequence[Answer]
    ) -> Iterator[Mistake]:
        for item, answer in zip(items, answers, strict=True):
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

    def fitted(
        self, d: TaskConfig, rows: Sequence[Features], logits: Sequence[Logits]
    ) -> TaskConfig:
        d = super().fitted(d, rows, logits)
        x, gold, _ = self.gold_logits(rows, logits)
        threshold = intervals.best_label_threshold(sigmoid(x / d.temperature), gold)
        return replace(d, threshold=threshold)


class RegressionTask(TextTask):
    """A number for a text."""

    name = "regression"
    meaning = "a number for a text"
    expected = "write a number there, or remove the row"
    label_note = "numbers from {column.low:g} to {column.high:g}"
    metrics = ("spearman", "pearson")
    figures = ("rmse",)
    fields = ("value",)
    trivial = "mean"
    hub: ClassVar[Mapping[str, str]] = {"pearson": "pearsonr", "spearman": "spearmanr"}
    has_confusion = False
    has_temperature = False
    has_labels = False
    predicts_numbers = True
    has_short_labels = True
    pipeline_functions = ("none",)
    problem_type = "regression"
    num_outputs = 1
    # sentence-transformers' CrossEncoder would apply a sigmoid to the number. The second name is
    # that of its versions before 4.
    head_settings: ClassVar[Mapping[str, Any]] = {
        "sentence_transformers": {"activation_fn": _IDENTITY},
        "sbert_ce_default_activation_function": _IDENTITY,
    }

    def read_label(
        self, value: Any, texts: Names, schema: Schema, read_name: ReadName, where: str
    ) -> Any:
        number = as_number(value, schema.decimal)
        return number if math.isfinite(number) else None

    def fits_label(self, column: Column, *, has_several: bool) -> bool:
        return not has_several and column.has_amounts

    def label_problem(
        self, schema: Schema, column: Column, *, is_explicit: bool
    ) -> tuple[str, str]:
        if column.low != column.high or not column.is_numeric:
            return "", ""
        what = f"all {column.filled:,} rows have the same number, {column.low}"
        return what, "add rows with other numbers"

    def targets(self, labels: Sequence[str], item: Item, number: int) -> NDArray[np.generic]:
        return np.array([item.label or 0.0], np.float32)

    def target_text(self, reader: SequenceReader, sequences: Sequence[Example]) -> str:
        return f"{sequences[0].target.labels.tolist()[0]:g}"

    def head(
        self, d: TaskConfig, units: Sequence[ExampleGroup], recipe: FinetuneRecipe | None
    ) -> TaskHead:
        targets = [
            float(target) for unit in units for example in unit for target in example.target.labels
        ] or [0.0, 1.0]
        deviation = float(np.std(targets)) or 1.0
        return Regression(mean=float(np.mean(targets)), deviation=deviation, vectors=d.vectors)

    def decode(self, d: TaskConfig, features: Features, logits: Logits) -> Answer:
        return {"value": float(logits[0, 0])}

    def has_one_score(self, labels: Sequence[str]) -> bool:
        return True

    def constant_logits(self, d: TaskConfig, train: Sequence[Features], count: int) -> Logits:
        targets = np.concatenate([targets_of(features) for features in train])
        return np.full((count, 1), targets.mean(), np.float32)

    def difference(self, first: Sequence[Any], second: Sequence[Any]) -> tuple[str, Answer]:
        pairs = zip(first, second, strict=True)
        largest = max((abs(number - other_number) for number, other_number in pairs), default=0.0)
        text = f"the first {len(first)} values differ by up to {largest:.3f}"
        return text, {"largest": largest}

    def explained(
        self, d: TaskConfig, features: Features, answer: Answer, target: str | None
    ) -> tuple[Attributed, Iterable[tuple[str, str]]]:
        attributed: Attributed = features.unit[0], "the value", lambda x: x[:, 0, 0]
        return attributed, [("value", f"{answer['value']:.4g}")]

    def row_sums(
        self, d: TaskConfig, items: Sequence[Item], answers: Sequence[Answer]
    ) -> dict[str, intervals.RowSums]:
        labels = [item.label for item in items]
        return intervals.correlations(labels, [answer["value"] for answer in answers])

    def mistakes(
        self, d: TaskConfig, items: Sequence[Item], answers: Sequence[Answer]
    ) -> Iterator[Mistake]:
        """Yield all rows, with their differences."""
        for item, answer in zip(items, answers, strict=True):
            difference = answer["value"] - item.label
            yield Mistake(
                item.where,
                item.texts,
                f"{item.label:g}",
                f"{answer['value']:.4g}",
                difference,
                abs(difference),
            )
