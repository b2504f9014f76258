"""What a task is: everything that is different between tasks, in one object.

What a model was fine-tuned for, with its labels and limits, is a `TaskConfig`, which is `Task.d`.
`registry.task_of` returns the task of such settings.

- `Featurizer`: a tokenizer and a task: items -> `Features`; some of them in words
- `Task`: how its rows become sequences; its head, its predictions and their figures
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby, islice
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from bertworks.batching.examples import (
    Example,
    ExampleGroup,
    Ids,
    Lazy,
    Target,
    TokenSequence,
    add_special_tokens,
    keyed_rng,
)
from bertworks.config import packaged_table
from bertworks.datasets.schema import Item, Names, RowTask, Schema
from bertworks.errors import BertworksError, expect, printable
from bertworks.events import Event, JsonObject
from bertworks.io.inputs import chunk_by_size
from bertworks.metrics import intervals
from bertworks.metrics.classification import Span, count_spans, figures_by_type
from bertworks.tasks.outputs import Classification, TaskHead
from bertworks.tasks.sequences import (
    Features,
    Offsets,
    Rows,
    ShortIds,
    Window,
    num_tokens_read,
    sliding_windows,
)
from bertworks.tasks.settings import TaskConfig, TaskType
from bertworks.text.shards import flat_arrays
from bertworks.text.tokenizer import Tokenizer
from bertworks.training.recipe import FinetuneRecipe

if TYPE_CHECKING:
    from torch import Tensor

Answer = JsonObject
Logits = NDArray[np.float32]
Targets = NDArray[Any]  # what is learned from a sequence or an item
Value = Callable[["Tensor"], "Tensor"]  # [copies, M, outputs] -> [copies]
# a sequence and an output for it: its name and value; "", None: none
Attributed = tuple[Example, str, Value | None]
# with it, the prediction as names and values
Explained = tuple[Attributed, Iterable[tuple[str, str]]]
# logits and gold labels of predictions, and the row of each
Gold = tuple[Logits, NDArray[np.float64], NDArray[np.int64]]
# labelled rows, and predictions for them
Pairs = Sequence[tuple[Item, Answer]]
_Row = TypeVar("_Row")
ABSENT_LOGIT = -30.0  # of what never occurs in the training rows
NOTHING = "-"  # instead of a label, if there is none
_USAGE = packaged_table(__file__, "usage.toml")
_WORDS = 1 << 14  # that are tokenised together
_ITEMS_AT_ONCE = 1000  # items that are tokenised together, or fewer
_CHARACTERS = 1 << 20  # if these have more characters
_LOOKED_AT = 200  # texts, and characters of each, in which unknown tokens are counted
_MANY_UNKNOWN = 0.25  # of their tokens
SHOWN = 200  # characters of an example in words
# Of questions that are made from texts: the most tokens of the text in which the answer stands
# (from short texts a network learns in a few steps); the most tokens on each side of the answer
# that may be in the question; the fraction of all tokens that are in no answer, the most frequent
# ones.
CLOZE_TEXT = 64
CLOZE_NEAR = 12
FREQUENT = 0.4


def softmax(x: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return probabilities along the last axis."""
    powers = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


def sigmoid(x: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the probability of each logit alone."""
    return np.asarray(1 / (1 + np.exp(-x.astype(np.float64))))


def log_odds(logits: "Tensor", output: int) -> "Tensor":
    """Return log p / (1 - p) of one output of a softmax, [copies, outputs] -> [copies].

    Unlike a logit it does not change when a constant is added to all logits. A single output is
    returned as it is.
    """
    if logits.shape[-1] == 1:
        return logits[:, 0]
    is_output = logits.new_zeros(logits.shape[-1]).bool()
    is_output[output] = True
    return logits[:, output] - logits.masked_fill(is_output, -math.inf).logsumexp(-1)


def shortened(text: str) -> str:
    """Return a text without its middle, if it is longer than an example may be."""
    return text if len(text) <= SHOWN else f"{text[: SHOWN // 2]} ... {text[-SHOWN // 2 :]}"


class TooManyTokensError(BertworksError):
    """The texts have more tokens than may be read together."""


def _two(rows: Sequence[_Row], label_of: Callable[[_Row], Any]) -> list[_Row]:
    """Return the first row, and one with another label if possible."""
    with_another_label = [row for row in rows[1:1000] if label_of(row) != label_of(rows[0])]
    return [*rows[:1], *(with_another_label or rows[1:2])[:1]]


def unknown_token_warnings(tokenizer: Tokenizer, texts: Iterable[str]) -> list[Event]:
    """Return `unknown_token_warning` as an event, or no event."""
    text = unknown_token_warning(tokenizer, texts)
    return [] if text is None else [Event("note", text, is_warning=True)]


def unknown_token_warning(tokenizer: Tokenizer, texts: Iterable[str]) -> str | None:
    """Return a warning if the vocabulary of a model lacks much of the first texts, else None.

    Its results for such texts mean little, and nothing else would say so.
    """
    if tokenizer.spells_words:
        return None
    sample = [text[:_LOOKED_AT] for text in islice(texts, _LOOKED_AT)]
    ids = list(chain.from_iterable(tokenizer.ids(sample)))
    share = ids.count(tokenizer.unk_id) / max(1, len(ids))
    if share < _MANY_UNKNOWN:
        return None
    example = shortened(tokenizer.unknown(sample)[0])
    return printable(
        f"warning: the model does not know {share:.0%} of the tokens of these texts, such as "
        f"{example!r}: its results for them mean little; use a model for their language"
    )


@dataclass(frozen=True)
class Featurizer:
    """How the items of a task are read: `featurizer(items)` yields what they become, in order.

    task: with its labels and limits.
    keep_end: a text or pair with one prediction that is too long loses its beginning and not its
        end.
    most_tokens: of the texts that are read together, or of their words; None: any number. It bounds
        the memory that a long text takes.

    Raises:
        TooManyTokensError: the texts have more. The rest of them is not read.
    """

    tokenizer: Tokenizer
    task: "Task"
    keep_end: bool = False
    most_tokens: int | None = None

    def __call__(self, items: Iterable[Item]) -> Iterator[Features]:
        """Yield the features of items, in order."""
        for group in self._groups(iter(items)):
            yield from self.task.read(self, group)

    def _groups(self, items: Iterator[Item]) -> Iterator[list[Item]]:
        if self.task.d.document_context:
            documents = groupby(items, key=lambda item: item.document or item.where)
            return (list(document) for _, document in documents)
        least = _CHARACTERS // _ITEMS_AT_ONCE
        return chunk_by_size(items, _CHARACTERS, lambda item: max(least, item.characters))

    # --- examples in words

    def examples(self, features: Rows) -> list[Event]:
        """Yield notes on two items as the network reads them.

        They have different labels if possible.
        """
        return list(map(self._note, _two(features, lambda row: row.item.label)))

    def preview(self, items: Sequence[Item]) -> list[Event]:
        """Yield `examples` of items that are not yet read, and what the model cannot read of them.

        They are in their documents where these are context.
        """
        rows = _two(items, lambda item: item.label)
        documents = {item.document for item in rows if self.task.d.document_context} - {""}
        if documents:
            rows = [item for item in items if item.document in documents or item in rows]
        texts = (" ".join(item.texts) for item in items)
        return [*self.examples(list(self(rows))), *unknown_token_warnings(self.tokenizer, texts)]

    def _note(self, features: Features) -> Event:
        """Return the tokens of a sequence in words.

        Also what the network learns from them if the item has a label.
        """
        item = features.item
        is_labelled = item.label is not None
        sequences = self.task.example_sequences(features)
        texts = []
        for sequence in sequences:
            pieces = list(map(self.tokenizer.piece, sequence.input_ids.tolist()))
            if is_labelled:
                pieces = self.task.with_targets(self, sequence, pieces)
            texts.append(shortened(" ".join(pieces)))
        text = " | ".join(texts)
        target = self.task.target_text(self, sequences) if is_labelled else None
        if target is not None:
            text += f" -> {target}"
        if features.num_truncated:
            text += f"  ({features.num_truncated} tokens cut off)"
        if len(sequences) < len(features.unit):
            text += f"  (one of {len(features.unit)} windows)"
        file_and_line = item.where.rpartition("/")[2]
        fields = {"example": item.where}
        return Event("note", printable(f"example  {file_and_line}  {text}"), fields)

    # --- questions that are made from texts

    def clozes(self, items: Sequence[Item], count: int, seed: int) -> Iterator[ExampleGroup]:
        """Return `count` questions about the contexts of as many items.

        The answer is a phrase, a stretch of rare tokens; the question has some of the tokens around
        it, without order, 70 % of the rare and 30 % of the frequent ones. A text may go on in the
        next context. Lewis et al. 2019 and Ram et al. 2021 make such questions from far more texts.
        """
        rng = keyed_rng("clozes", seed)
        template = self.tokenizer.template
        contexts = self.tokenizer.arrays([*dict.fromkeys(item.texts[1] for item in items[:count])])
        # contexts may have no tokens
        ids = np.concatenate([*(row for row, _ in contexts), [self.tokenizer.unk_id]])
        counts = np.bincount(ids)[ids]
        room = self.task.d.max_length - template.num_special(2)
        is_rare = (counts <= np.quantile(counts, 1 - FREQUENT)) | ~self.tokenizer.starts_word[ids]
        phrases = np.flatnonzero(np.diff(is_rare, prepend=False, append=False)).reshape(-1, 2) - (
            0,
            1,
        )
        length = min(CLOZE_TEXT, room - room // 3)
        for first, last in phrases[rng.integers(len(phrases), size=count)].tolist():
            last = min(last, first + length // 8)
            before, after = rng.integers(2, CLOZE_NEAR, size=2, endpoint=True)
            near = np.r_[max(0, first - before) : first, last + 1 : min(len(ids), last + 1 + after)]
            near = near[rng.random(len(near)) < np.where(is_rare[near], 0.7, 0.3)]
            start = rng.integers(max(0, last + 1 - length), first, endpoint=True)
            question = ids[rng.permutation(near)[: room // 3]]
            text = ids[start : start + length]
            sequence = add_special_tokens([question, text], template)
            begin = len(sequence.input_ids) - len(template.suffix) - len(text) - start
            yield [
                target_example(
                    sequence, [*range(len(sequence.input_ids))], np.array([first, last]) + begin
                )
            ]

    # --- texts become sequences

    def tokens(self, texts: Iterable[str]) -> Iterator[tuple[Ids, int]]:
        """Return the ids of each text without [CLS] and [SEP], and the number of all.

        There are at most `num_tokens_read` ids. Without a vocabulary an empty text has one word,
        without a character.
        """
        most = num_tokens_read(self.task.d.max_length, self.task.d.windows)
        if self.keep_end:
            for short_ids, _ in self.tokenizer.arrays(list(texts)):
                end = short_ids[-most:].tolist()
                yield self.tokenizer.array(end), len(short_ids)
            return
        for leading, count in self.tokenizer.leading_ids(list(texts), most):
            ids = self.tokenizer.array(leading)
            if self.tokenizer.spells_words and not len(ids):
                # Without special tokens an empty text would have no state that is classified.
                ids = np.zeros(1, ids.dtype)
            yield ids, max(count, len(ids))

    def pieces(self, words: Iterable[str]) -> tuple[ShortIds, ShortIds]:
        """Return the tokens of all words, and where each word begins; last their number.

        A word of which the tokenizer leaves nothing is one unknown token. Without a vocabulary each
        word is one token, however it is written.
        """
        if self.tokenizer.spells_words:
            spelled = self.tokenizer.array(self.tokenizer.spelled(words))
            return spelled, np.arange(len(spelled) + 1, dtype=np.int32)
        groups = map(self.tokenizer.ids, chunk_by_size(words, _WORDS))
        arrays = [
            flat_arrays([piece or [self.tokenizer.unk_id] for piece in pieces]) for pieces in groups
        ]
        ids, counts = map(np.concatenate, zip(flat_arrays([[]]), *arrays))
        return ids, counts.cumsum(dtype=np.int32)

    def arrays(self, texts: Sequence[str]) -> Iterator[tuple[ShortIds, Offsets]]:
        """`Tokenizer.arrays`, of at most `most_tokens`."""
        count = 0
        for ids, offsets in self.tokenizer.arrays(texts, limit=self.most_tokens):
            count += len(ids)
            self.check_count(count)
            yield ids, offsets

    def check_count(self, count: int) -> None:
        """count: the tokens of the texts that are read together, or fewer."""
        if self.most_tokens is not None and count > self.most_tokens:
            raise TooManyTokensError(
                f"more than {self.most_tokens:,} tokens", hint="send less at once"
            )

    def in_windows(
        self,
        item: Item,
        row: ShortIds,
        part: Callable[[Window, int, int], tuple[Ids, Ids]],
        offsets: Offsets,
        step: int = 0,
        before: Sequence[Ids] = (),
    ) -> Features:
        """Return an item with windows over its text.

        Args:
            part: a window, its position in its sequence, the length of that -> what is predicted
                from which positions.
            step: by which windows advance; 0: by half of them.
            before: segments in front of each window.
        """
        template = self.tokenizer.template
        used = sum(map(len, before))
        special = template.num_special(len(before) + 1)
        room = self.task.d.max_length - used - special
        begin = used + special - len(template.suffix)
        windows = sliding_windows(len(row), room, step or max(1, room // 2))

        def example(number: int) -> Example:
            window = windows[number]
            sequence = add_special_tokens([*before, row[window.start : window.end]], template)
            return target_example(sequence, *part(window, begin, len(sequence.input_ids)))

        unit = Lazy(range(len(windows)), example)
        return Features(
            item, unit if len(unit) > 1 else [*unit], windows=windows, begin=begin, offsets=offsets
        )


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
    texts: Names
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
    part: what the parts are of which figures are reported: "label"; "" if there are none.
    counted: what the numbers of labels count, if not rows.
    pipeline: the name of the pipeline of transformers.
    row_fractions: metrics that are the fraction of the rows that are right.
    has_confusion: predictions can be counted by label, in a confusion matrix.
    has_temperature: its probabilities are those of labels, and can be calibrated.
    alternatives: the field of a prediction with all labels or answers; "" if there is one only.
    labels_tokens: words or tokens have labels.
    has_linear_head: a prediction is computed from one vector: a linear model of a frozen encoder
        can compute it, and a teacher can give its logits.
    is_stratified: each row has one label, of which both sides of a split have the same fraction.
    divides_copies: copies that are too many to stay together may be divided by rows.
    recipe_fields: fields of a recipe that not all tasks have.
    rows_are: what rows are, in sentences.
    endpoint: the path of a server. reads: what its items are; "": what the columns are.
    pipeline_functions: functions of the logits, in pipelines of transformers.
    doubtful_note: on rows that are `is_doubtful`. leaves_out_doubtful: they cannot be learned.
    predicts_texts: there is one prediction for all sequences of an item.
    reads_pairs: it reads one text or two.
    reads_windows: long texts are read in windows, not truncated.
    problem_type: in config.json of transformers, to tell tasks with one class apart; "": none.
    num_outputs: of a head without labels. head_settings: further settings of config.json.
    """

    name: TaskType
    metrics: Names
    figures: Names = ()
    fields: Names
    trivial: str
    part = ""
    counted = ""
    pipeline: str
    row_fractions: Names = ("accuracy", "exact")
    has_confusion = True
    has_temperature = True
    alternatives = ""
    labels_tokens = False
    has_linear_head = True
    is_stratified = False
    divides_copies = True
    recipe_fields: Names = ()
    rows_are = "rows"
    endpoint = "predict"
    reads = ""
    pipeline_functions: Names = ("softmax", "sigmoid", "none")
    doubtful_note = ""
    leaves_out_doubtful = False
    predicts_texts = False
    reads_pairs = False
    reads_windows = False
    problem_type = ""
    num_outputs = 2
    head_settings: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, d: TaskConfig | None = None):
        """d: None: settings without labels, for what is the same with all of them."""
        self.d = d or TaskConfig(task=self.name)

    @property
    def reads_apart(self) -> bool:
        """Whether the texts of a pair are sequences of their own."""
        return self.d.vectors in ("pair", "cosine")

    # --- rows of labelled data

    def with_scheme(self, schema: Schema, rows: Sequence[Item]) -> tuple[Schema, list[str]]:
        """Return the schema with what all labels together tell, and notes."""
        return schema, []

    def is_doubtful(self, item: Item) -> bool:
        """Return whether a row has a label that cannot be learned as it is written."""
        return False

    def compared_texts(self, rows: Sequence[Item]) -> list[Names]:
        """Return the texts by which rows are compared, to find near-copies."""
        return [item.texts for item in rows]

    def divided_texts(self, item: Item) -> Names:
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

    def network_labels(self, labels: Names) -> Names:
        """Return the names of the network's outputs. labels: those of the rows."""
        return labels

    def initial_threshold(self, rows: Sequence[Item]) -> float | None:
        """Return the threshold of a model before it is fitted; None: it has none."""
        return None

    def count_unit(self) -> str:
        """Return what the numbers of labels count; "": rows."""
        return self.counted

    def mistake_columns(self) -> Names:
        """Return the names of the columns of `Mistake.texts`."""
        return self.d.text if self.reads_pairs else self.d.text[:1]

    def constant_logits(self, targets: Targets, count: int) -> Logits:
        """Return the logits of the trivial method for `count` predictions, [count, outputs].

        They are the same for all. targets: of the training rows, see `targets_of`.
        """
        logits = np.full(len(self.d.labels), ABSENT_LOGIT)
        constant = (
            self.d.labels.index("O") if "O" in self.d.labels else np.bincount(targets).argmax()
        )
        logits[constant] = 0
        return np.tile(logits.astype(np.float32), (count, 1))

    # --- rows become sequences

    @abstractmethod
    def read(self, reader: Featurizer, items: list[Item]) -> Iterator[Features]:
        """Yield each item as the network reads it, with the targets of its label."""

    def training_groups(self, features: Features) -> list[ExampleGroup]:
        """Return what is learned from an item: groups of sequences that stay together.

        Windows are learned one by one; those that predict nothing are left out.
        """
        unit = features.unit
        if not self.reads_windows:
            return [unit]
        return [
            unit[number : number + 1]
            for number, example in enumerate(unit)
            if len(example.target.positions)
        ]

    def example_sequences(self, features: Features) -> ExampleGroup:
        """Return the sequences of an item that a note shows: of each text the first window."""
        if self.reads_apart:
            return [example for example in features.unit if not example.window]
        return features.unit[:1]

    def with_targets(self, reader: Featurizer, example: Example, pieces: list[str]) -> list[str]:
        """Return the tokens of a sequence, in words, with what is predicted for each."""
        return pieces

    def target_text(self, reader: Featurizer, sequences: ExampleGroup) -> str | None:
        """Return what is learned from the sequences of a note; None if the tokens show it."""
        return None

    # --- the network and its predictions

    def head(self) -> TaskHead:
        """Return the head and its loss: here one of several labels, of a text or of each token."""
        return Classification(
            outputs=len(self.d.labels), pooled=self.predicts_texts, vectors=self.d.vectors
        )

    def training_head(self, units: Sequence[ExampleGroup], recipe: FinetuneRecipe) -> TaskHead:
        """Return the head with a loss for these rows: weights of classes, the scale of values."""
        head = self.head()
        if not isinstance(head, Classification):
            return head
        if recipe.class_weights == "balanced":
            head = replace(head, weights=balanced_weights(units, head.outputs))
        return replace(head, smoothing=recipe.label_smoothing)

    @abstractmethod
    def decode(self, features: Features, logits: Logits) -> Answer:
        """Return the prediction for an item. logits: float32 [M, outputs], all of the item."""

    # --- texts and predictions of users

    @abstractmethod
    def expected_texts(self, count: int) -> tuple[bool, str]:
        """Return whether an item may have this number of texts or words.

        The second value says in words what it has to be.
        """

    def text_columns(self) -> Names:
        """Return names for the texts of rows that are not named."""
        return self.d.text or ("text",)

    def check_item(self, item: Item) -> None:
        """Raise BertworksError if the model cannot read an item of a file."""
        return

    def check_threshold(self, threshold: float | None) -> None:
        """Raise UsageError if this is no threshold of the task. None: it is not named."""
        expect(threshold is None, f"a model for {self.name} has no threshold", hint="leave it out")

    def label_value(self, value: Any) -> Any:
        """Return a label that users write as it is written in files."""
        return value

    def row_labels(self, labels: Names) -> Names:
        """Return the names in the labels of rows. labels: those of the network's outputs."""
        return labels

    def with_labels(self, labels: Sequence[str]) -> TaskConfig:
        """Return the settings with further labels, which only the evaluated rows have."""
        return replace(self.d, labels=(*self.d.labels, *labels))

    def numbered(self, fields: Answer, first_choice: int) -> Answer:
        """Return fields of a prediction as they are written to a file.

        first_choice: see `TaskConfig`.
        """
        return fields

    def in_words(self, item: Item, answer: Answer) -> str:
        """Return a prediction as a short line: what is predicted, and its probability."""
        return f"{self.predicted_label(answer)}  {answer['score']:.1%}"

    def difference(self, first: Sequence[Any], second: Sequence[Any]) -> tuple[str, Answer]:
        """Return how much predicted labels differ, in words and as values."""
        pairs = zip(first, second, strict=True)
        num_different = sum(label != other_label for label, other_label in pairs)
        text = f"{num_different} of the first {len(first)} predictions differ"
        return text, {"others": num_different}

    def has_one_score(self, labels: Sequence[str]) -> bool:
        """Return whether a prediction is one score, by which texts can be ranked."""
        return self.predicts_numbers or (self.has_classes and len(labels) == 2)

    def score_names(self, item: Item) -> Sequence[str]:
        """Return what the scores of a prediction are of."""
        return self.d.labels

    @abstractmethod
    def explained(self, features: Features, answer: Answer, target: str | None) -> Explained:
        """Return the output that is attributed to the tokens.

        It comes with the prediction as names and values.

        Args:
            target: the label, or the word whose tag is explained; None: what is predicted.
        """

    # --- figures of predictions

    def metrics_of(self) -> Names:
        """Return the metrics with these labels."""
        return self.metrics

    def metric(self, name: str | None = None) -> str:
        """Return the metric that selects the best checkpoint. name: if the user names it.

        Raises:
            UsageError: the task has no such metric.
        """
        known = self.metrics_of()
        expect(
            name in (None, *known),
            f"{name!r} is not a metric of {self.name}",
            hint=f"name one of {', '.join(known)}",
        )
        return name or known[0]

    def predicted_label(self, answer: Answer) -> Any:
        """Return the prediction in the form of `Item.label`."""
        return answer[self.fields[0]]

    def label_names(self, label: Any) -> Iterable[str]:
        """Return the names in the label of a whole text."""
        return ()

    def named_spans(self, label: Any) -> list[Span]:
        """Return a gold or predicted label as spans with names.

        The labels of a whole text have the span 0 to 1.
        """
        return [(0, 1, name) for name in self.label_names(label)]

    def label_parts(self, item: Item, answer: Answer) -> Iterator[slice | None]:
        """Yield parts of a label, so that few entities are in memory. None is the whole label."""
        yield None

    def counted_classes(self) -> Sequence[str]:
        """Return the classes that are counted even if no row has them."""
        return self.d.labels if self.has_classes else ()

    def span_pairs(self, pairs: Pairs) -> Iterator[tuple[list[Span], list[Span]]]:
        """Yield the `named_spans` of the label and of the prediction of each item.

        Many tags are yielded in parts.
        """
        for item, answer in pairs:
            sides = item.label, self.predicted_label(answer)
            for part in self.label_parts(item, answer):
                gold, predicted = (self.named_spans(side[part] if part else side) for side in sides)
                if part and part.start:
                    gold = [(part.start + a, part.start + b, kind) for a, b, kind in gold]
                    predicted = [(part.start + a, part.start + b, kind) for a, b, kind in predicted]
                yield gold, predicted

    def row_sums(self, pairs: Pairs) -> dict[str, intervals.RowSums]:
        """Return the metrics and other figures as sums over rows."""
        _, counts = count_spans(self.span_pairs(pairs), self.counted_classes())
        sizes = [len(list(self.label_parts(item, answer))) for item, answer in pairs]
        counts = np.add.reduceat(counts, np.cumsum([0, *sizes[:-1]]))
        sums = intervals.count_sums(counts)
        sums["accuracy"] = self.accuracy(counts, pairs)
        if self.d.positive_label is not None:
            place = self.d.labels.index(self.d.positive_label)
            sums["f1"] = intervals.count_sums(counts[:, :, place : place + 1])["f1"]
        names = *self.metrics_of(), *self.figures
        return {name: sums[name] for name in names}

    def accuracy(self, counts: NDArray[Any], pairs: Pairs) -> intervals.RowSums:
        """Return the fraction of the rows of which the whole label is right.

        counts: see `count_spans`.
        """
        return intervals.mean_sums((counts == counts[:, :1]).all((1, 2)).tolist())

    def further_figures(self, pairs: Pairs) -> dict[str, float]:
        """Return figures that are no sums over rows."""
        return {}

    def group(self, item: Item) -> Hashable:
        """Return what rows that depend on each other have in common; "" for a row alone."""
        return item.document

    @abstractmethod
    def mistakes(self, pairs: Pairs) -> Iterator[Mistake]:
        """Yield all mistakes, in the order of the rows."""

    def confusion_labels(self, names: set[str]) -> list[str]:
        """Return the rows of the confusion matrix. names: those of labels and predictions."""
        return [*self.counted_classes()] or [*sorted(names), NOTHING]

    def table(self, dev: Rows, pairs: Pairs) -> dict[str, dict[str, float]]:
        """Return the figures of each `part`."""
        if not self.part:
            return {}
        return figures_by_type(*count_spans(self.span_pairs(pairs), self.counted_classes()))

    # --- calibration

    def gold_logits(self, rows: Rows, logits: Sequence[Logits]) -> Gold:
        """Return logits [n, labels] and gold labels as in `metrics.intervals`, and the row of each.

        They are those of all predicted words, tokens or texts.
        """
        gold = [targets_of(features) for features in rows]
        row_of = np.repeat(np.arange(len(rows)), list(map(len, gold)))
        return np.concatenate(logits), np.concatenate(gold), row_of

    def fitted(self, rows: Rows, logits: Sequence[Logits]) -> TaskConfig:
        """Return the settings with the temperature and then the threshold that fit these rows."""
        x, gold, _ = self.gold_logits(rows, logits)
        return replace(self.d, temperature=intervals.fit_temperature(x, gold))

    # --- model cards

    @property
    def usages(self) -> Mapping[str, str]:
        """The code that uses a model with transformers, by name. TEXTS stands for an example.

        `usage` is for most models. `usage_in_a_language` is for a model of several languages,
        because a pipeline passes no language to it. LANGUAGE and NAME stand for its number and
        name.
        """
        return _USAGE[self.name]  # type: ignore[no-any-return]


def target_example(sequence: TokenSequence, positions: Ids | list[int], labels: Targets) -> Example:
    """Return a sequence with the tokens that are predicted and their labels."""
    target = Target(np.asarray(positions, np.int64), labels)
    return Example(sequence.input_ids, sequence.token_type_ids, {"task": target})


def targets_of(features: Features) -> Targets:
    """Return the targets of all sequences of an item."""
    return np.concatenate([example.target.labels for example in features.unit])


def balanced_weights(units: Sequence[ExampleGroup], count: int) -> tuple[float, ...]:
    """Return n / (labels * n_of_label), as in scikit-learn; 1 for a label that never occurs."""
    labels = np.concatenate([example.target.labels for unit in units for example in unit])
    counts = np.bincount(labels, minlength=count)
    return tuple(float(counts.sum() / (count * n)) if n else 1.0 for n in counts)
