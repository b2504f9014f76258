"""The task of choosing one of several continuations or answers."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertworks.batching.batch import ExampleGroup
from bertworks.batching.masking import Example
from bertworks.batching.sampling import Ids
from bertworks.datasets.schema import Item
from bertworks.errors import BertworksError
from bertworks.tasks.attributed import Attributed
from bertworks.tasks.heads import MultipleChoice, TaskHead
from bertworks.tasks.probabilities import Answer, Logits, softmax
from bertworks.tasks.sequences import Features, SequenceReader
from bertworks.tasks.settings import TaskConfig
from bertworks.tasks.task import Mistake
from bertworks.tasks.text_labels import TextTask
from bertworks.training.recipe import FinetuneRecipe


class ChoiceTask(TextTask):
    """One of several continuations or answers. The prompt and each choice are a sequence."""

    name = "choice"
    metrics = ("accuracy",)
    shown = ("choice", "score")
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

    def sequences(self, texts: list[tuple[Ids, int]]) -> list[list[tuple[Ids, int]]]:
        prompt, *choices = texts
        return [[prompt, choice] for choice in choices]

    def targets(self, labels: Sequence[str], item: Item, number: int) -> NDArray[np.generic]:
        return np.array([float(number == item.label)], np.float32)

    def example_sequences(self, features: Features, *, apart: bool) -> Sequence[Example]:
        return features.unit

    def target_text(self, reader: SequenceReader, sequences: Sequence[Example]) -> str:
        right = [sequence.target.labels[0] for sequence in sequences].index(1)
        return f"choice {right + 1}"

    def head(
        self, d: TaskConfig, units: Sequence[ExampleGroup], recipe: FinetuneRecipe | None
    ) -> TaskHead:
        return MultipleChoice(num_choices=d.num_choices)

    def decode(self, d: TaskConfig, features: Features, logits: Logits) -> Answer:
        p = softmax((logits / np.float32(d.temperature))[:, 0])
        return {"choice": int(p.argmax()), "score": float(p.max()), "scores": p.tolist()}

    def shared_texts(self, num_texts: int) -> list[tuple[int, ...]]:
        return [(0,)]

    def mistake_columns(self, d: TaskConfig) -> tuple[str, ...]:
        return d.text[:1]

    def constant_logits(self, d: TaskConfig, train: Sequence[Features], count: int) -> Logits:
        votes = np.bincount([row.item.label for row in train], minlength=d.num_choices)
        return np.tile(votes.astype(np.float32), count // d.num_choices)[:, None]

    def score_names(self, d: TaskConfig, item: Item) -> Sequence[str]:
        return item.texts[1:]

    def expected_texts(self, d: TaskConfig, count: int) -> tuple[bool, str]:
        fits = count == d.num_choices + 1 if d.num_choices else count > 2
        return fits, "(prompt, choice, choice, ...)"

    def check_item(self, d: TaskConfig, item: Item) -> None:
        num_choices = len(item.texts) - 1
        if d.num_choices and num_choices != d.num_choices:
            what = f"{num_choices} choices, but the model was trained with {d.num_choices}"
            hint = f"give every row {d.num_choices} choices"
            raise BertworksError(what, where=item.where, hint=hint)

    def numbered(self, fields: Answer, first_choice: int) -> Answer:
        return fields | {"choice": fields["choice"] + first_choice}

    def explained(
        self, d: TaskConfig, features: Features, answer: Answer, target: str | None
    ) -> tuple[Attributed, Iterable[tuple[str, str]]]:
        number = answer["choice"]
        name = f"choice {number + 1} (its score)"
        attributed: Attributed = features.unit[number], name, lambda x: x[:, 0, 0]
        scores = (f"{p:.1%}" for p in answer["scores"])
        return attributed, zip(features.item.texts[1:], scores, strict=True)

    def label_names(self, label: Any) -> Iterable[str]:
        """Return the position of a choice."""
        return (str(label + 1),)

    def mistakes(
        self, d: TaskConfig, items: Sequence[Item], answers: Sequence[Answer]
    ) -> Iterator[Mistake]:
        for item, answer in zip(items, answers, strict=True):
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

    def confusion_labels(self, d: TaskConfig, names: set[str]) -> list[str]:
        return [str(number + 1) for number in range(d.num_choices)]

    def gold_logits(
        self, rows: Sequence[Features], logits: Sequence[Logits]
    ) -> tuple[Logits, NDArray[np.float64], NDArray[np.int64]]:
        gold = [[example.target.labels[0] for example in features.unit] for features in rows]
        row_logits = np.stack([x[:, 0] for x in logits])
        return row_logits, np.array(gold).argmax(1), np.arange(len(rows))
