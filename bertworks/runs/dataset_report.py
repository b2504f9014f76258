"""Reports on labelled data before a training.

They show labels, lengths, copies, conflicting labels and the fit of the vocabulary.

- `make_dataset_report`: items and what the network reads of them -> `DatasetReport`
- `check_file`: the report on a file, without a training
"""

import math
import unicodedata
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from html import escape
from itertools import chain, islice, pairwise
from pathlib import Path

import numpy as np

from bertworks.batching.examples import longest_sequence
from bertworks.checkpoints.model_files import ModelFiles
from bertworks.checkpoints.resolve import resolve_model
from bertworks.config import packaged_table
from bertworks.datasets.schema import Item
from bertworks.datasets.values import PERHAPS_MISSING, similar_labels
from bertworks.errors import names_of, quoted, some_names
from bertworks.events import JsonObject
from bertworks.io.inputs import IssueCounter, chunk_by_size
from bertworks.io.options import ReadOptions
from bertworks.io.tables import Data
from bertworks.runs.data_splits import (
    MANY_LONG,
    DataRequest,
    LabelledData,
    describe_task,
    read_data,
    read_rows,
    text_key,
)
from bertworks.runs.options import Validation
from bertworks.tasks.registry import TASKS, task_of
from bertworks.tasks.sequences import Features, Truncation
from bertworks.tasks.settings import TaskType
from bertworks.tasks.task import Task
from bertworks.text.near_copies import near_copies_of_rows
from bertworks.text.tokenizer import MANY_UNKNOWN, Tokenizer
from bertworks.text.vocabulary import LETTER_FRACTION, is_letter_mark
from bertworks.training.recipe import default_max_length, load_finetune_recipe

WARNINGS = packaged_table(__file__, "data_warnings.toml")
BARS = 32
BLOCKS = "▁▂▃▄▅▆▇█"
NUM_EXAMPLES = 2  # words that are named
SHOWN_LABELS = 8
COUNTED = 1 << 20  # tokens or characters that are counted together
SAMPLE = 500  # texts that are searched for unknown words
SAMPLED = 1 << 16  # characters of a text that are searched for other problems
RARE = 10  # examples of a label; with fewer, little can be learned
FEW_DEV = 200
FEW_TRAIN = 100
# Fractions of the rows.
MANY_COPIES = 0.01
UNBALANCED = 5  # ratio of the most to the least frequent label
MANY_PIECES = 2.0  # tokens per word, as in `text.corpus_report`


@dataclass(frozen=True)
class Lengths:
    """Lengths of all rows in tokens, before truncation.

    counts: rows in bins of `width` tokens, the first from 0; the last bin has all longer rows.
    too_long: rows longer than max_length; `windows`: they are read in windows, to their end or, of
        texts with one prediction, up to `most_windows` of them.
    truncated: rows that lose their end; `left_out`: the fraction of their tokens that this is.
    """

    width: int
    counts: list[int]
    median: int
    longest: int
    max_length: int
    too_long: int
    windows: bool
    most_windows: int = 0
    truncated: int = 0
    left_out: float = 0.0

    @property
    def reads(self) -> str:
        """What of a text is read, in words."""
        tokens = f"{self.max_length:,} tokens"
        return f"{self.most_windows} windows of {tokens}" if self.most_windows > 1 else tokens

    def lines(self) -> list[str]:
        """Return a histogram, its axis, and a sentence."""
        most = max(self.counts)
        bars = "".join(
            BLOCKS[math.ceil(n / most * len(BLOCKS)) - 1] if n else " " for n in self.counts
        )
        last = self.width * len(self.counts)
        end = f"{last} tokens" if self.longest < last else f"{last - self.width}+ tokens"
        text = f"median {self.median:,}, maximum {self.longest:,}"
        if self.too_long:
            treatment = "read in windows" if self.windows else "truncated"
            fraction = self.too_long / sum(self.counts)
            left_out = f"{self.left_out:.1%} of their tokens are lost"
            if self.most_windows > 1:
                treatment = f"read in up to {self.most_windows} windows"
                if self.truncated:
                    treatment += f"; {self.truncated:,} of them are even longer: {left_out}"
            elif self.truncated:
                treatment += f": {left_out}"
            text += (
                f"; {self.too_long:,} ({fraction:.1%}) have more than {self.max_length:,} and "
                f"are {treatment}"
            )
        return [bars, f"0{end:>{max(len(bars) - 1, len(end) + 1)}}", text]


@dataclass(frozen=True)
class DatasetReport:
    """A report on labelled data. `str()` is for people, `as_dict()` for JSON.

    labels: how often each occurs in train and in dev, the most frequent first; of entities, their
        types.
    unit: what is counted there; "": rows.
    targets: of a regression: `min`, `mean`, `max`, `deviation` in train.
    copies: rows of train with the text of an earlier row; leaked: rows of dev whose text is in
        train; conflicts: rows with the text of an earlier row and another label
        (`data_splits.text_key`; case makes a difference if the model sees it).
    near_copies: rows of train that are no copies, but near-copies of an earlier row
        (`text.near_copies`); near_leaked: rows of dev that are near-copies of a row of train whose
        text is not exactly theirs.
    unknown: fraction of the tokens that are [UNK]; unknown_words: some of the words that cause
        them.
    pieces: tokens per word.
    examples: two rows as the network reads them; only of `check_file`.
    """

    task: str
    notes: list[str]
    train: int
    dev: int
    labels: dict[str, tuple[int, int]]
    unit: str
    targets: dict[str, float]
    lengths: Lengths
    copies: IssueCounter
    leaked: IssueCounter
    conflicts: IssueCounter
    unknown: float
    unknown_words: list[str]
    pieces: float
    warnings: list[str] = field(default_factory=list)
    examples: list[str] = field(default_factory=list)
    is_validated: bool = False
    near_copies: IssueCounter = field(default_factory=IssueCounter)
    near_leaked: IssueCounter = field(default_factory=IssueCounter)

    @property
    def share_truncated(self) -> float:
        """The fraction of the rows that are longer than the model reads."""
        return self.lengths.truncated / sum(self.lengths.counts)

    @property
    def many_lose_their_end(self) -> bool:
        """Whether the report warns of truncated rows."""
        return self.share_truncated > MANY_LONG

    @property
    def is_unbalanced(self) -> bool:
        """Whether the report warns of a label that is far more frequent than another one."""
        counts = [count for count, _ in self.labels.values() if count]
        if not TASKS[self.task].has_classes or len(counts) < 2:
            return False
        return counts[0] > counts[-1] and counts[0] >= UNBALANCED * counts[-1]

    @property
    def held_out_name(self) -> str:
        """The name of the rows that are not learned, in sentences.

        Of a cross-validation there is no dev file.
        """
        return "the evaluated rows" if self.is_validated else "dev"

    def as_dict(self) -> JsonObject:
        """Return the report as values for JSON."""
        return asdict(self)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"

    def __str__(self) -> str:
        parts: list[tuple[str, list[str]]] = []
        # "label: 'stars'" is a value with a name, other notes are sentences
        for note in self.notes:
            name, _, value = note.partition(": ")
            parts.append((name, [value]) if value and len(name) <= 11 else ("note", [note]))
        held_out = "of them evaluated" if self.is_validated else "in dev"
        parts.append(("rows", [f"{self.train:,} in train, {self.dev:,} {held_out}"]))
        if t := self.targets:
            parts.append(("numbers", [f"{t['min']:g} to {t['max']:g}, on average {t['mean']:.4g}"]))
        words = f", e.g. {', '.join(self.unknown_words)}" if self.unknown_words else ""
        findings = {
            "within train": self.copies,
            "dev rows in train": self.leaked,
            "with conflicting labels": self.conflicts,
            "near-duplicates within train": self.near_copies,
            "dev rows with a near-duplicate in train": self.near_leaked,
        }
        parts += [
            ("labels", self._label_lines()),
            ("text length", self.lengths.lines()),
            (
                "vocabulary",
                [f"{self.pieces:.2f} tokens per word, {self.unknown:.2%} [UNK]{words}"],
            ),
            ("duplicates", [f"{name}: {x}" for name, x in findings.items() if x.count] or ["none"]),
        ]
        lines = [
            f"{name if not n else '':<11}  {line}"
            for name, part in parts
            for n, line in enumerate(part)
        ]
        return "\n".join(lines + [f"warning: {warning}" for warning in self.warnings])

    def _label_lines(self) -> list[str]:
        """Return a line for each of the most frequent labels, and a line about the others."""
        num_listed = SHOWN_LABELS
        # a line about one more takes as much room as the label itself
        if len(self.labels) == SHOWN_LABELS + 1:
            num_listed = SHOWN_LABELS + 1
        counts = [(name, count) for name, (count, _) in self.labels.items()]
        listed_labels = [(name[:30], count) for name, count in counts[:num_listed]]
        total = sum(count for _, count in counts)
        width = max((_width(name) for name, _ in listed_labels), default=0)
        lines = [f"{total:,} {self.unit}"] if self.unit else []
        for name, count in listed_labels:
            padding = " " * (width - _width(name))
            lines.append(f"{name}{padding}  {count:>7,}  {count / max(1, total):6.1%}")
        num_unlisted = len(counts) - len(listed_labels)
        if num_unlisted:
            name, count = counts[-1]
            lines.append(f"and {num_unlisted:,} others; rarest: {name!r} with {count:,}")
        return lines


def make_dataset_report(
    data: LabelledData,
    train: Sequence[Features],
    dev: Sequence[Features],
    tokenizer: Tokenizer,
    max_length: int,
    windows: int = 0,
) -> DatasetReport:
    """Return the report on training and dev data.

    Args:
        train, dev: what the network reads of the items of `data`, in their order.
        max_length: tokens of a sequence.
        windows: see `TaskConfig`.
    """
    schema = data.schema
    settings = TASKS[schema.task].d
    task = task_of(replace(settings, labels=schema.labels, bare_types=schema.bare_types))
    both = list(train) if data.is_validated else [*train, *dev]
    in_train, in_dev = (count_labels(part, task) for part in (data.train, data.dev))
    names = sorted({*in_train, *in_dev}, key=lambda name: (-in_train[name], name))
    report = DatasetReport(
        task=schema.task,
        notes=[*data.notes, *data.label_notes],
        train=len(data.train),
        dev=len(data.dev),
        is_validated=data.is_validated,
        labels={name: (in_train[name], in_dev[name]) for name in names},
        unit=task.count_unit(),
        targets=_targets(data.train) if task.predicts_numbers else {},
        lengths=_lengths(both, task, tokenizer, max_length, windows),
        **_copies(data, tokenizer.lowercase),
        **_vocabulary(both, tokenizer),
    )
    texts = [" ".join(item.texts)[:SAMPLED] for item in (*data.train[:SAMPLE], *data.dev[:SAMPLE])]
    return replace(report, warnings=[*tokenizer.notes, *_warnings(report, texts, tokenizer)])


def check_file(
    data: Data,
    *,
    model: str | Path = "minilm",
    dev: Data | None = None,
    task: TaskType | None = None,
    text: str | Iterable[str] | None = None,
    label: str | Iterable[str] | None = None,
    group: str | None = None,
    positive: str | None = None,
    validation: Validation = "auto",
    read: ReadOptions = ReadOptions(),
) -> DatasetReport:
    """Read the data as `finetune` does, and report on it. Nothing is written.

    Args:
        data: a file, rows in memory, or a folder with a train and a dev file, as in `finetune`.
        model: its tokenizer counts the tokens, its length is the limit.
        dev: the dev data in the same forms; None: that of the folder, or else see `validation`.
        task, text, label: the meaning of the columns; None: inferred.
        group: a column; rows with the same value stay on one side of the split.
        positive: the class whose F1 is reported, if there are two; None if it is to be inferred.
        validation: see `runs.data_splits.DataRequest`.
        read: how files are read.

    Raises:
        UsageError: no such file or column.
        BertworksError: no such model, or rows that cannot be used for training: all of them, with
            their lines.
    """
    folder = ModelFiles(resolve_model(model))
    tokenizer = folder.tokenizer
    max_positions = folder.config.max_position_embeddings
    labelled = read_data(
        DataRequest(
            data,
            dev=dev,
            task=task,
            text=names_of(text),
            label=names_of(label),
            group=group,
            read=read,
            validation=validation,
            positive=positive,
        )
    )
    recipe = load_finetune_recipe("stable")
    description = describe_task(
        labelled, replace(recipe, max_length=default_max_length(recipe, max_positions))
    )
    featurize, train, held_out = read_rows(labelled, description, recipe, tokenizer)
    d = featurize.task.d
    report = make_dataset_report(labelled, train, held_out, tokenizer, d.max_length, d.windows)
    return replace(report, examples=[note.text for note in featurize.examples(train)])


def count_labels(items: Iterable[Item], task: Task) -> Counter[str]:
    """Return how often each label occurs (`named_spans`): of entities, each type."""
    return Counter(name for item in items for _, _, name in task.named_spans(item.label))


def _width(name: str) -> int:
    """Return the width of a label on a screen.

    Chinese, Japanese and Korean characters take two columns.
    """
    return sum(1 + (unicodedata.east_asian_width(character) in "WF") for character in name)


def _targets(items: Sequence[Item]) -> dict[str, float]:
    x = np.array([item.label for item in items], np.float64)
    return {
        "min": float(x.min()),
        "mean": float(x.mean()),
        "max": float(x.max()),
        "deviation": float(x.std()),
    }


def _lengths(
    features: Sequence[Features],
    task: Task,
    tokenizer: Tokenizer,
    max_length: int,
    most_windows: int,
) -> Lengths:
    windows = task.reads_windows or most_windows > 1
    truncation = Truncation()
    if not task.reads_windows:
        for item in features:
            truncation.add(item.num_read, item.num_truncated)
    lengths = np.array([_length(item, task, tokenizer) for item in features])
    limit = int(np.quantile(lengths, 0.99)) + 1
    width = max(1, math.ceil(limit / BARS))
    bins = np.bincount(np.minimum(lengths // width, math.ceil(limit / width)))
    too_long = sum(item.has_windows if windows else item.num_truncated > 0 for item in features)
    median = int(np.median(lengths))
    longest = int(lengths.max())
    return Lengths(
        width,
        bins.tolist(),
        median,
        longest,
        max_length,
        too_long,
        windows,
        most_windows,
        truncation.truncated,
        truncation.as_dict()["truncated_share"],
    )


def _length(features: Features, task: Task, tokenizer: Tokenizer) -> int:
    """Return the tokens of an item in one sequence, with special tokens, before truncation."""
    if task.counts_choices:  # num_truncated is the sum over all choices
        prompt, *choices = map(len, tokenizer.ids(features.item.texts))
        return prompt + max(choices) + 3
    if features.has_windows and not task.reads_windows:
        num_special = tokenizer.template.num_special(len(features.item.texts))
        return features.num_read + features.num_truncated + num_special
    # both texts of a pair may be one each
    if len(features.unit) == 1 or not task.reads_windows:
        return longest_sequence(features.unit) + features.num_truncated
    return (
        features.windows[-1].end + len(features.unit[0].input_ids) - len(features.windows[0].is_own)
    )


def _copies(data: LabelledData, lowercase: bool) -> JsonObject:
    """Return the copies and near-copies within train, and the rows of dev that have one in train.

    Also the rows with the text of an earlier one and another label. Rows with the same text as an
    earlier one do not count as near-copies.
    """
    task = TASKS[data.schema.task]
    kinds = ("copies", "leaked", "conflicts", "near_copies", "near_leaked")
    issues = {kind: IssueCounter() for kind in kinds}
    rows = [*data.train, *(() if data.is_validated else data.dev)]
    earlier: dict[bytes, Item] = {}
    near: dict[Hashable, Item] = {}
    for number, near_key in enumerate(near_copies_of_rows(task.compared_texts(rows))):
        item = rows[number]
        key = text_key(item.texts, lowercase)
        is_dev = number >= len(data.train)
        same = earlier.get(key, item) if is_dev else earlier.setdefault(key, item)
        similar = near.get(near_key, item) if is_dev else near.setdefault(near_key, item)
        if same is not item:
            issues["leaked" if is_dev else "copies"].add(_row_names(item, " = ", same))
            if task.comparable_label(item.label) != task.comparable_label(same.label):
                is_short = isinstance(item.label, str | float)
                both_labels = f": {item.label!r} and {same.label!r}" if is_short else ""
                issues["conflicts"].add(_row_names(item, " and ", same) + both_labels)
        elif similar is not item:
            kind = "near_leaked" if is_dev else "near_copies"
            issues[kind].add(_row_names(item, " = ", similar))
    return issues


def _row_names(item: Item, relation: str, other: Item) -> str:
    """Return file and row of two items, without the folders."""
    return relation.join(row.where.rpartition("/")[2] for row in (item, other))


def _vocabulary(features: Sequence[Features], tokenizer: Tokenizer) -> JsonObject:
    """Return figures of the tokens of a sample.

    They are the fraction of [UNK] among the tokens, the most frequent words that cause them, and
    the tokens per word.
    """
    if tokenizer.spells_words:  # no word is unknown, and each one is a token
        return {"unknown": 0.0, "unknown_words": [], "pieces": 1.0}
    unk = tokenizer.unk_id
    counts = np.zeros(tokenizer.vocab_size, np.int64)
    examples = (example.input_ids for item in features for example in item.unit)
    for group in chunk_by_size(examples, COUNTED, len):
        counts += np.bincount(np.concatenate(group), minlength=len(counts))
    counts[sorted(tokenizer.special_ids - {unk})] = 0
    total = int(counts.sum())
    rows = (
        item.item for item in features if any(unk in example.input_ids for example in item.unit)
    )
    texts = chain.from_iterable(item.texts for item in islice(rows, SAMPLE))
    words = Counter[str]()
    for sample in chunk_by_size(texts, COUNTED, lambda text: 64 + len(text)):
        words.update(tokenizer.unknown(sample))
    return {
        "unknown": int(counts[unk]) / max(1, total),
        "unknown_words": [word for word, _ in words.most_common(NUM_EXAMPLES)],
        "pieces": total / max(1, int(counts[tokenizer.starts_word].sum())),
    }


def _lost_mark(texts: Sequence[str], tokenizer: Tokenizer) -> tuple[str, str]:
    """Return a letter with a mark, and without it, which the tokenizer reads in the same way.

    The mark is a letter itself (`is_letter_mark`). Both are empty if there is no such letter, or if
    such marks are rare.
    """
    decomposed = unicodedata.normalize("NFD", "".join(text for text in texts if not text.isascii()))
    pairs = Counter(
        pair for pair in pairwise(decomposed) if is_letter_mark(pair[1]) and pair[0].isalpha()
    )
    if pairs.total() < LETTER_FRACTION * sum(map(len, texts)):
        return "", ""
    for letter, mark in pairs:
        marked_letter = unicodedata.normalize("NFC", letter + mark)
        ids = tokenizer.ids([marked_letter])[0]
        if ids == tokenizer.ids([letter])[0] and tokenizer.unk_id not in ids:
            return marked_letter, letter
    return "", ""


def _warnings(report: DatasetReport, texts: Sequence[str], tokenizer: Tokenizer) -> list[str]:
    """Return the problems in words.

    They are those of copies, the worst first; of labels; of too long texts, of too few texts, and
    of the tokenizer with their language. texts: some of them.
    """
    labels = report.labels
    leaked = report.leaked.count
    counts = [(count, name) for name, (count, _) in labels.items() if count] or [(0, "")]
    largest_count, frequent_label = counts[0]
    smallest_count, rarest_label = counts[-1]
    margin = 1 / math.sqrt(report.dev)  # of a share; that of a correlation is up to twice as large
    with_capitals = sum(text != text.lower() for text in texts)
    marked_letter, plain_letter = _lost_mark(texts, tokenizer)
    # Rows that are evaluated by models of the other rows are counted once.
    counts_of_labels = {
        n: train + (0 if report.is_validated else dev) for n, (train, dev) in labels.items()
    }
    similar_groups = similar_labels(counts_of_labels)
    perhaps_missing = []
    if not TASKS[report.task].labels_tokens:
        perhaps_missing = [name for name in labels if name in PERHAPS_MISSING]
    findings = {  # by their names in WARNINGS
        "leaked": leaked,
        "near_leaked": report.near_leaked.count,
        "conflicts": report.conflicts.count,
        "copies": report.copies.count > MANY_COPIES * report.train,
        "similar": similar_groups,
        "perhaps_missing": perhaps_missing,
        "missing": [name for name, (train, dev) in labels.items() if dev and not train],
        "rare": [name for name, (train, _) in labels.items() if 0 < train < RARE],
        "not_in_dev": [name for name, (train, dev) in labels.items() if train and not dev],
        "unbalanced": report.is_unbalanced,
        "too_long": report.many_lose_their_end,
        "few_train": report.train < FEW_TRAIN,
        "few_dev": report.dev < FEW_DEV,
        "vocabulary": report.unknown > MANY_UNKNOWN or report.pieces > MANY_PIECES,
        "uncased": tokenizer.lowercase
        and TASKS[report.task].labels_tokens
        and with_capitals > len(texts) / 2,
        "lost_marks": marked_letter,
    }
    values = {
        "report": report,
        "frequent": frequent_label,
        "rarest": rarest_label,
        "few": RARE,
        "leaked_share": leaked / report.dev,
        "evaluated": "evaluated" if report.is_validated else "dev",
        "share": largest_count / report.train,
        "near_share": report.near_leaked.count / report.dev,
        "times": largest_count / max(1, smallest_count),
        "too_long": report.share_truncated,
        "remedy": "use --windows to read more of them, or "
        if "windows" in TASKS[report.task].recipe_fields
        else "",
        "marked": marked_letter,
        "plain": plain_letter,
        "about": f"{2 * margin:.2f}" if TASKS[report.task].predicts_numbers else f"{margin:.0%}",
    }
    for name, finding in findings.items():
        if isinstance(finding, list):
            values[name] = some_names(map(repr, finding))
    values["similar"] = "; ".join(similar_groups)
    values["first_perhaps"] = next(map(quoted, perhaps_missing), "")
    return [WARNINGS[name].format_map(values) for name, applies in findings.items() if applies]
