"""The task of choosing one of several continuations or answers."""

import re
from collections.abc import Iterable, Iterator, Sequence
from statistics import mode
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertworks.batching.batch import ExampleGroup
from bertworks.batching.masking import Example
from bertworks.batching.sampling import Ids
from bertworks.datasets.schema import (
    CHOICE_LISTS,
    Columns,
    Item,
    Names,
    ReadName,
    Schema,
    are_nameless,
    find_label,
    first_column,
    named_columns,
)
from bertworks.datasets.values import MOST, PROMPTS, Column, choice_number
from bertworks.errors import BertworksError
from bertworks.tasks.attributed import Attributed
from bertworks.tasks.heads import MultipleChoice, TaskHead
from bertworks.tasks.probabilities import Answer, Logits, softmax
from bertworks.tasks.sequences import Features, SequenceReader
from bertworks.tasks.settings import TaskConfig
from bertworks.tasks.task import Mistake
from bertworks.tasks.text_labels import TextTask
from bertworks.training.recipe import FinetuneRecipe

_CHOICE = re.compile(
    r"(choice|ending|option|answer|alternative|candidate|sol|solution|選択肢|보기)s?"
    r"[ _-]?(\d+|[a-e])"
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

    def schema_of_choices(
        self, columns: Columns, text: Names, label: Names, *, has_labels: bool, is_explicit: bool
    ) -> Schema | None:
        texts = text or _find_choices(columns)
        if not texts or (text and not is_explicit) or len(label) > 1:
            return None
        at_the_end = tuple(columns)[-1:] if are_nameless(columns) and not text else ()
        label = label or at_the_end or (find_label(columns, texts) if has_labels else ())
        last = columns[texts[-1]]
        number = last.entries // last.lists if last.is_listed else len(texts) - 1
        right = columns[label[0]] if label else Column("")
        counts = [right.values[str(place)] for place in range(number + 1)]
        are_choices = right.numbers < MOST * right.filled or sum(counts) >= MOST * right.filled
        if not is_explicit and (not label or not are_choices):
            return None
        first_choice = int(not counts[0] and counts[number] > 0)
        return Schema(task=self.name, text=texts, label=label, first_choice=first_choice)

    def read_label(
        self, value: Any, texts: Names, schema: Schema, read_name: ReadName, where: str
    ) -> Any:
        return choice_number(value, texts[1:], schema.first_choice)

    def label_problem(
        self, schema: Schema, column: Column, *, is_explicit: bool
    ) -> tuple[str, str]:
        if len(schema.text) >= 2:
            return "", ""
        hint = "name them: --text PROMPT --text CHOICE1 --text CHOICE2"
        return "there are no choices", hint

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


def _find_choices(columns: Columns) -> tuple[str, ...]:
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
