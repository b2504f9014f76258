"""What a task is: everything that is different between tasks, in one object.

A task has no state. What a model was fine-tuned for, with its labels and limits, is a `TaskConfig`,
which is passed as `d`. `registry.TASKS` has one object for each name.
"""

from abc import abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bertworks.batching.batch import ExampleGroup
from bertworks.batching.masking import Example
from bertworks.config import packaged_table
from bertworks.datasets.schema import Item, RowTask, Schema
from bertworks.errors import expect
from bertworks.metrics import intervals
from bertworks.metrics.classification import Span, count_spans, figures_by_type
from bertworks.tasks.attributed import Attributed
from bertworks.tasks.heads import Classification, TaskHead
from bertworks.tasks.probabilities import Answer, Logits
from bertworks.tasks.sequences import Features, SequenceReader
from bertworks.tasks.settings import TaskConfig, TaskType
from bertworks.training.recipe import FinetuneRecipe

ABSENT_LOGIT = -30.0  # of what never occurs in the training rows
NOTHING = "-"  # instead of a label, if there is none
_USAGE = packaged_table(__file__, "usage.toml")


@dataclass(frozen=True, slots=True)
class Mistake:
    """One wrong prediction.

    texts: of a long tagged text what is around the entity: each of its mistakes has a line.
    kind: the type of mistake, in words; "": it has none.
    score: probability of the prediction, or the difference of a number; None: unknown.
    badness: mistakes of one task are sorted by it.
    figures: further columns, the same for all mistakes of a task.
    """

    where: str
    texts: tuple[str, ...]
    gold: str
    predicted: str
    score: float | None
    badness: float
    kind: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)


class Task(RowTask):
    """A task of fine-tuning.

    It says how its rows become sequences, and has its head, its predictions and their figures.

    name: in commands, recipes and task.json.
    metrics: names of its metrics; the first one selects the best checkpoint.
    figures: names of other figures, without intervals.
    fields: those of a prediction that are always written; the first one is compared with the label.
    trivial: the name of the method that learns a constant.
    hub: names of metrics on the Hugging Face hub, where they are others.
    part: what the parts are of which figures are reported: "label"; "" if there are none.
    counted: what the numbers of labels count, if not rows.
    pipeline: the name of the pipeline of transformers.
    row_fractions: metrics that are the fraction of the rows that are right.
    has_confusion: predictions can be counted by label, in a confusion matrix.
    has_temperature: its probabilities are those of labels, and can be calibrated.
    reads_documents: an item may be read with the other items of its document around it.
    alternatives: the field of a prediction with all labels or answers; "" if there is one only.
    labels_tokens: words or tokens have labels.
    has_linear_head: a prediction is computed from one vector: a linear model of a frozen encoder
        can compute it, and a teacher can give its logits.
    has_short_labels: labels are short enough to be named in a warning.
    is_stratified: each row has one label, of which both sides of a split have the same fraction.
    divides_copies: copies that are too many to stay together may be divided by rows.
    recipe_fields: fields of a recipe that not all tasks have.
    rows_are: what rows are, in sentences.
    endpoint: the path of a server. reads: what its items are; "": what the columns are.
    pipeline_functions: functions of the logits, in pipelines of transformers.
    doubtful_note: on rows that are learned although `is_doubtful`; "": there are none.
    left_out_note: on rows that cannot be learned, of which `is_unusable`; "": there are none.
    predicts_texts: there is one prediction for all sequences of an item.
    reads_pairs: it reads one text or two.
    reads_windows: long texts are read in windows, not truncated.
    problem_type: in config.json of transformers, to tell tasks with one class apart; "": none.
    num_outputs: of a head without labels. head_settings: further settings of config.json.
    """

    name: ClassVar[TaskType]
    metrics: ClassVar[tuple[str, ...]]
    figures: ClassVar[tuple[str, ...]] = ()
    fields: ClassVar[tuple[str, ...]]
    trivial: ClassVar[str]
    hub: ClassVar[Mapping[str, str]] = {}
    part: ClassVar[str] = ""
    counted: ClassVar[str] = ""
    pipeline: ClassVar[str]
    row_fractions: ClassVar[tuple[str, ...]] = ("accuracy", "exact")
    has_confusion: ClassVar[bool] = True
    has_temperature: ClassVar[bool] = True
    reads_documents: ClassVar[bool] = False
    alternatives: ClassVar[str] = ""
    labels_tokens: ClassVar[bool] = False
    has_linear_head: ClassVar[bool] = True
    has_short_labels: ClassVar[bool] = False
    is_stratified: ClassVar[bool] = False
    divides_copies: ClassVar[bool] = True
    recipe_fields: ClassVar[tuple[str, ...]] = ()
    rows_are: ClassVar[str] = "rows"
    endpoint: ClassVar[str] = "predict"
    reads: ClassVar[str] = ""
    pipeline_functions: ClassVar[tuple[str, ...]] = ("softmax", "sigmoid", "none")
    doubtful_note: ClassVar[str] = ""
    left_out_note: ClassVar[str] = ""
    predicts_texts: ClassVar[bool] = False
    reads_pairs: ClassVar[bool] = False
    reads_windows: ClassVar[bool] = False
    problem_type: ClassVar[str] = ""
    num_outputs: ClassVar[int] = 2
    head_settings: ClassVar[Mapping[str, Any]] = {}

    # --- rows of labelled data

    def with_scheme(self, schema: Schema, rows: Sequence[Item]) -> tuple[Schema, list[str]]:
        """Return the schema with what all labels together tell, and notes."""
        return schema, []

    def is_doubtful(self, item: Item) -> bool:
        """Return whether a row has a label that is not learned as it is written."""
        return False

    def is_unusable(self, item: Item) -> bool:
        """Return whether a row has a label that cannot be learned."""
        return False

    def compared_texts(self, rows: Sequence[Item]) -> list[tuple[str, ...]]:
        """Return the texts by which rows are compared, to find near-copies."""
        return [item.texts for item in rows]

    def divided_texts(self, item: Item) -> tuple[str, ...]:
        """Return the texts of a row whose copies stay on one side of a split."""
        return item.texts

    def shared_texts(self, num_texts: int) -> list[tuple[int, ...]]:
        """Return the numbers of the texts by which rows with a text in common stay together.

        The first choice that leaves enough groups is taken.
        """
        return [(0, 1), (0,), (1,)] if num_texts == 2 else []

    def comparable_label(self, label: Any) -> Any:
        """Return a label that differs from that of a copy if one of both is wrong."""
        return label

    def network_labels(self, labels: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names of the network's outputs. labels: those of the rows."""
        return labels

    def initial_threshold(self, rows: Sequence[Item]) -> float | None:
        """Return the threshold of a model before it is fitted; None: it has none."""
        return None

    def count_unit(self, labels: Sequence[str], bare: bool) -> str:
        """Return what the numbers of labels count; "": rows."""
        return self.counted

    def mistake_columns(self, d: TaskConfig) -> tuple[str, ...]:
        """Return the names of the columns of `Mistake.texts`."""
        return d.text

    def constant_logits(self, d: TaskConfig, train: Sequence[Features], count: int) -> Logits:
        """Return the logits of the trivial method for `count` predictions, [count, outputs].

        They are the same for all.
        """
        targets = np.concatenate([targets_of(features) for features in train])
        logits = np.full(len(d.labels), ABSENT_LOGIT)
        constant = d.labels.index("O") if "O" in d.labels else np.bincount(targets).argmax()
        logits[constant] = 0
        return np.tile(logits.astype(np.float32), (count, 1))

    # --- rows become sequences

    @abstractmethod
    def read(self, reader: SequenceReader, items: list[Item]) -> Iterator[Features]:
        """Yield each item as the network reads it, with the targets of its label."""

    @abstractmethod
    def training_groups(self, features: Features) -> list[ExampleGroup]:
        """Return what is learned from an item: groups of sequences that stay together."""

    def example_sequences(self, features: Features, *, apart: bool) -> Sequence[Example]:
        """Return the sequences of an item that a note shows. apart: see `SequenceReader`."""
        return features.unit if apart else features.unit[:1]

    def with_targets(
        self, reader: SequenceReader, example: Example, pieces: list[str]
    ) -> list[str]:
        """Return the tokens of a sequence, in words, with what is predicted for each."""
        return pieces

    def target_text(self, reader: SequenceReader, sequences: Sequence[Example]) -> str | None:
        """Return what is learned from the sequences of a note; None if the tokens show it."""
        return None

    # --- the network and its predictions

    @abstractmethod
    def head(
        self, d: TaskConfig, units: Sequence[ExampleGroup], recipe: FinetuneRecipe | None
    ) -> TaskHead:
        """Return the head and the loss.

        In training, `units` give the weights of classes and the scale of values.
        """

    @abstractmethod
    def decode(self, d: TaskConfig, features: Features, logits: Logits) -> Answer:
        """Return the prediction for an item. logits: float32 [M, outputs], all of the item."""

    # --- texts and predictions of users

    @abstractmethod
    def expected_texts(self, d: TaskConfig, count: int) -> tuple[bool, str]:
        """Return whether an item may have this number of texts or words.

        The second value says in words what it has to be.
        """

    def text_columns(self, d: TaskConfig) -> tuple[str, ...]:
        """Return names for the texts of rows that are not named."""
        return d.text or ("text",)

    def check_item(self, d: TaskConfig, item: Item) -> None:
        """Raise BertworksError if the model cannot read an item of a file."""
        return

    def check_threshold(self, threshold: float | None) -> None:
        """Raise UsageError if this is no threshold of the task. None: it is not named."""
        what = f"a model for {self.name} has no threshold"
        expect(threshold is None, what, hint="leave it out")

    def label_value(self, value: Any) -> Any:
        """Return a label that users write as it is written in files."""
        return value

    def row_labels(self, labels: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names in the labels of rows. labels: those of the network's outputs."""
        return labels

    def with_labels(self, d: TaskConfig, labels: Sequence[str]) -> TaskConfig:
        """Return the settings with further labels, which only the evaluated rows have."""
        return replace(d, labels=(*d.labels, *labels))

    def numbered(self, fields: Answer, first_choice: int) -> Answer:
        """Return fields of a prediction as they are written to a file.

        first_choice: see `TaskConfig`.
        """
        return fields

    def difference(self, first: Sequence[Any], second: Sequence[Any]) -> tuple[str, Answer]:
        """Return how much predicted labels differ, in words and as values."""
        pairs = zip(first, second, strict=True)
        num_different = sum(label != other_label for label, other_label in pairs)
        text = f"{num_different} of the first {len(first)} predictions differ"
        return text, {"others": num_different}

    def has_one_score(self, labels: Sequence[str]) -> bool:
        """Return whether a prediction is one score, by which texts can be ranked."""
        return False

    def score_names(self, d: TaskConfig, item: Item) -> Sequence[str]:
        """Return what the scores of a prediction are of."""
        return d.labels

    @abstractmethod
    def explained(
        self, d: TaskConfig, features: Features, answer: Answer, target: str | None
    ) -> tuple[Attributed, Iterable[tuple[str, str]]]:
        """Return the output that is attributed to the tokens.

        It comes with the prediction as names and values.

        Args:
            target: the label, or the word whose tag is explained; None: what is predicted.
        """

    # --- figures of predictions

    def metrics_of(self, labels: Sequence[str], bare: bool) -> tuple[str, ...]:
        """Return the metrics with these labels; (): not known yet. bare: see `Schema`."""
        return self.metrics

    def predicted_label(self, answer: Answer) -> Any:
        """Return the prediction in the form of `Item.label`."""
        return answer[self.fields[0]]

    def label_names(self, label: Any) -> Iterable[str]:
        """Return the names in the label of a whole text."""
        return ()

    def named_spans(self, label: Any, labels: Sequence[str], bare: bool) -> list[Span]:
        """Return a gold or predicted label as spans with names.

        The labels of a whole text have the span 0 to 1.
        """
        return [(0, 1, name) for name in self.label_names(label)]

    def label_parts(self, d: TaskConfig, item: Item, answer: Answer) -> Iterator[slice | None]:
        """Yield parts of a label, so that few entities are in memory. None is the whole label."""
        yield None

    def counted_classes(self, d: TaskConfig) -> Sequence[str]:
        """Return the classes that are counted even if no row has them."""
        return ()

    def span_pairs(
        self, d: TaskConfig, items: Sequence[Item], answers: Sequence[Answer]
    ) -> Iterator[tuple[list[Span], list[Span]]]:
        """Yield the `named_spans` of the label and of the prediction of each item.

        Many tags are yielded in parts.
        """
        for item, answer in zip(items, answers, strict=True):
            sides = item.label, self.predicted_label(answer)
            for part in self.label_parts(d, item, answer):
                gold, predicted = (
                    self.named_spans(side[part] if part else side, d.labels, d.bare_types)
                    for side in sides
                )
                if part and part.start:
                    gold = [(part.start + a, part.start + b, kind) for a, b, kind in gold]
                    predicted = [(part.start + a, part.start + b, kind) for a, b, kind in predicted]
                yield gold, predicted

    def row_sums(
        self, d: TaskConfig, items: Sequence[Item], answers: Sequence[Answer]
    ) -> dict[str, intervals.RowSums]:
        """Return the metrics and other figures as sums over rows."""
        _, counts = count_spans(self.span_pairs(d, items, answers), self.counted_classes(d))
        sizes = [
            len(list(self.label_parts(d, item, answer)))
            for item, answer in zip(items, answers, strict=True)
        ]
        counts = np.add.reduceat(counts, np.cumsum([0, *sizes[:-1]]))
        sums = intervals.count_sums(counts)
        sums["accuracy"] = self.accuracy(counts, items, answers)
        if d.positive_label is not None:
            place = d.labels.index(d.positive_label)
            sums["f1"] = intervals.count_sums(counts[:, :, place : place + 1])["f1"]
        names = *self.metrics_of(d.labels, d.bare_types), *self.figures
        return {name: sums[name] for name in names}

    def accuracy(
        self, counts: NDArray[Any], items: Sequence[Item], answers: Sequence[Answer]
    ) -> intervals.RowSums:
        """Return the fraction of the rows of which the whole label is right.

        counts: see `count_spans`.
        """
        return intervals.mean_sums((counts == counts[:, :1]).all((1, 2)).tolist())

    def further_figures(self, items: Sequence[Item], answers: Sequence[Answer]) -> dict[str, float]:
        """Return figures that are no sums over rows."""
        return {}

    def group(self, item: Item) -> Hashable:
        """Return what rows that depend on each other have in common; "" for a row alone."""
        return item.document

    @abstractmethod
    def mistakes(
        self, d: TaskConfig, items: Sequence[Item], answers: Sequence[Answer]
    ) -> Iterator[Mistake]:
        """Yield all mistakes, in the order of the rows."""

    def confusion_labels(self, d: TaskConfig, names: set[str]) -> list[str]:
        """Return the rows of the confusion matrix. names: those of labels and predictions."""
        return [*sorted(names), NOTHING]

    def table(
        self, d: TaskConfig, dev: Sequence[Features], answers: Sequence[Answer]
    ) -> dict[str, dict[str, float]]:
        """Return the figures of each `part`."""
        if not self.part:
            return {}
        items = [features.item for features in dev]
        pairs = self.span_pairs(d, items, answers)
        return figures_by_type(*count_spans(pairs, self.counted_classes(d)))

    # --- calibration

    def gold_logits(
        self, rows: Sequence[Features], logits: Sequence[Logits]
    ) -> tuple[Logits, NDArray[np.float64], NDArray[np.int64]]:
        """Return logits [n, labels] and gold labels as in `metrics.intervals`, and the row of each.

        They are those of all predicted words, tokens or texts.
        """
        gold = [targets_of(features) for features in rows]
        row_of = np.repeat(np.arange(len(rows)), list(map(len, gold)))
        return np.concatenate(logits), np.concatenate(gold), row_of

    def fitted(
        self, d: TaskConfig, rows: Sequence[Features], logits: Sequence[Logits]
    ) -> TaskConfig:
        """Return the settings with the temperature and then the threshold that fit these rows."""
        x, gold, _ = self.gold_logits(rows, logits)
        return replace(d, temperature=intervals.fit_temperature(x, gold))

    # --- model cards

    @property
    def usage(self) -> str:
        """The code that uses a model with transformers. TEXTS stands for an example."""
        return str(_USAGE[self.name]["usage"])

    @property
    def usage_in_a_language(self) -> str:
        """Return the same for a model of several languages, to which a pipeline passes none.

        LANGUAGE and NAME stand for the number and the name of its language.
        """
        return str(_USAGE[self.name]["usage_in_a_language"])


def targets_of(features: Features) -> NDArray[Any]:
    """Return the targets of all sequences of an item."""
    return np.concatenate([example.target.labels for example in features.unit])


def classification_head(
    d: TaskConfig, units: Sequence[ExampleGroup], recipe: FinetuneRecipe | None, *, pooled: bool
) -> TaskHead:
    """Return the head of one of several labels, of a text (`pooled`) or of each token."""
    weights: tuple[float, ...] = ()
    smoothing = 0.0
    if recipe is not None:
        smoothing = recipe.label_smoothing
        if recipe.class_weights == "balanced":
            weights = balanced_weights(units, len(d.labels))
    return Classification(
        outputs=len(d.labels),
        pooled=pooled,
        vectors=d.vectors,
        weights=weights,
        smoothing=smoothing,
    )


def balanced_weights(units: Sequence[ExampleGroup], count: int) -> tuple[float, ...]:
    """Return n / (labels * n_of_label), as in scikit-learn; 1 for a label that never occurs."""
    labels = np.concatenate([example.target.labels for unit in units for example in unit])
    counts = np.bincount(labels, minlength=count)
    return tuple(float(counts.sum() / (count * n)) if n else 1.0 for n in counts)
