"""What a person should know of labelled data before a model learns from it: labels, lengths, copies, contradictions,
and whether the tokenizer knows its language. It counts and advises, and changes nothing.
"""

import hashlib
import math
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertworks.batching.batch import longest_sequence
from bertworks.batching.features import NO_TOKEN, Features
from bertworks.datasets.schema import Item, TaskType
from bertworks.inference.decoding import is_entity_tagset
from bertworks.metrics.classification import tag_spans
from bertworks.runs.data_splits import LabelledData
from bertworks.text.tokenizer import Tokenizer

BARS, BLOCKS = 32, "▁▂▃▄▅▆▇█"
NAMED = 2  # places and words that stand for all
SHOWN_LABELS = 8
SAMPLE = 500  # texts in which unknown words are looked for
RARE = 10  # examples of a label, below which little can be learned
FEW_DEV, FEW_TRAIN = 200, 100
MANY_COPIES, MANY_LONG = 0.01, 0.05  # shares
UNBALANCED = 5  # times that one label is as frequent as another
MANY_UNKNOWN, MANY_PIECES = 0.005, 2.0  # as in `text.preflight`
_UNITS: dict[TaskType, str] = {
    "tagging": "entities in train", "spans": "entities in train", "qa": "questions in train",
    "choice": "rows in train, by the place of the right choice",
}  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """Rows that something was found of, and some of their places in words."""

    rows: int = 0
    places: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return ", ".join(self.places) + ", ..." * (self.rows > len(self.places))


@dataclass(frozen=True)
class Lengths:
    """Tokens of all rows, those that are cut off counted.

    counts: rows in bins of `width` tokens, the first from 0; the last bin has all that are longer.
    too_long: rows that are longer than max_length; `windows`: they are read in pieces, and not cut.
    """

    width: int
    counts: list[int]
    median: int
    longest: int
    max_length: int
    too_long: int
    windows: bool

    def lines(self) -> list[str]:
        """A picture, its axis, and words."""
        most, rows = max(self.counts), sum(self.counts)
        bars = "".join(BLOCKS[math.ceil(n / most * len(BLOCKS)) - 1] if n else " " for n in self.counts)
        last = self.width * len(self.counts)
        end = f"{last} tokens" if self.longest < last else f"{last - self.width} tokens and more"
        text = f"half of the rows have up to {self.median:,} tokens, the longest has {self.longest:,}"
        if self.too_long:
            done = "read in pieces" if self.windows else "cut"
            text += (
                f"; {self.too_long:,} ({self.too_long / rows:.1%}) have more than {self.max_length:,} and are {done}"
            )
        return [bars, f"0{end:>{max(len(bars) - 1, len(end) + 1)}}", text]


@dataclass(frozen=True)
class DatasetReport:
    """What was found. `str()` is for people, `as_dict()` for JSON.

    labels: how often each is there in train and in dev, the most frequent first; of entities, their types.
    unit: what is counted there; "": rows.
    targets: of a regression: `least`, `mean`, `greatest`, `deviation` in train.
    copies: rows of train whose text stood in train before; leaked: rows of dev whose text is in train; conflicts: rows
        whose text stood before with another label. Spaces make no difference, nor does case where the model sees none.
    unknown: share of the tokens that are [UNK]; unknown_words: some of the words behind it.
    pieces: tokens of a word.
    """

    task: TaskType
    notes: list[str]
    train: int
    dev: int
    labels: dict[str, tuple[int, int]]
    unit: str
    targets: dict[str, float]
    lengths: Lengths
    copies: Finding
    leaked: Finding
    conflicts: Finding
    unknown: float
    unknown_words: list[str]
    pieces: float
    warnings: list[str]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        rows = [("rows", f"{self.train:,} to learn from, {self.dev:,} to judge on"), *self._labels()]
        rows += [("lengths" if not n else "", line) for n, line in enumerate(self.lengths.lines())]
        words = f", such as {', '.join(self.unknown_words)}" if self.unknown_words else ""
        rows.append(("vocabulary", f"{self.pieces:.2f} tokens for a word; {self.unknown:.2%} of them [UNK]{words}"))
        found = {"in train": self.copies, "of dev in train": self.leaked, "with different labels": self.conflicts}
        same = [f"{one.rows:,} {name}: {one}" for name, one in found.items() if one.rows] or ["none"]
        rows += [("" if n else "same texts", line) for n, line in enumerate(same)]
        named = [_named(note) for note in self.notes]
        return "\n".join(
            [f"{name:<11}  {value}" for name, value in (*named, *rows)]
            + [f"warning: {warning}" for warning in self.warnings]
        )

    def _labels(self) -> list[tuple[str, str]]:
        if self.targets:
            t = self.targets
            return [("numbers", f"{t['least']:g} to {t['greatest']:g}, on average {t['mean']:.4g}")]
        most = list(self.labels.items())[:SHOWN_LABELS]
        total, width = sum(n for n, _ in self.labels.values()), max((_width(name) for name, _ in most), default=0)
        shown = [
            f"{name[:30]}{' ' * (width - _width(name))}  {n:>7,}  {n / max(1, total):6.1%}" for name, (n, _) in most
        ]
        if others := len(self.labels) - len(most):
            name, (n, _) = list(self.labels.items())[-1]
            shown.append(f"and {others:,} others, the rarest {name!r} with {n:,}")
        head = [f"{total:,} {self.unit}"] if self.unit else []
        return [("" if n else "labels", line) for n, line in enumerate(head + shown)]


def make_dataset_report(
    data: LabelledData, train: Sequence[Features], dev: Sequence[Features], tokenizer: Tokenizer, max_length: int
) -> DatasetReport:
    """Looks through all that will be learned from and judged on.

    Args:
        train, dev: what the network reads of the items of `data`, in their order.
        max_length: tokens of a sequence.
    """
    task = data.schema.task
    both = [*train, *dev]
    counted, judged = count_labels(data.train, task), count_labels(data.dev, task)
    names = sorted({*counted, *judged}, key=lambda name: (-counted[name], name))
    unknown, pieces = _vocabulary(both, tokenizer)
    copies, leaked, conflicts = _same(data, tokenizer.lowercase)
    found = DatasetReport(
        task=task,
        notes=list(data.notes),
        train=len(data.train),
        dev=len(data.dev),
        labels={name: (counted[name], judged[name]) for name in names},
        unit="words in train"
        if task == "tagging" and not is_entity_tagset(data.schema.labels)
        else _UNITS.get(task, ""),
        targets=_targets(data.train) if task == "regression" else {},
        lengths=_lengths(both, task, tokenizer, max_length),
        copies=copies,
        leaked=leaked,
        conflicts=conflicts,
        unknown=unknown,
        unknown_words=_unknown_words(both, tokenizer) if unknown else [],
        pieces=pieces,
        warnings=[],
    )
    texts = [" ".join(item.texts) for item in (*data.train[:SAMPLE], *data.dev[:SAMPLE])]
    found.warnings.extend([*tokenizer.notes, *_warnings(found), *_language_warnings(found, texts, tokenizer)])
    return found


def count_labels(items: Iterable[Item], task: TaskType) -> Counter[str]:
    """How often each label is there; of tagging and spans, entities of each type; words of each tag where the tags are
    not of entities."""
    labels = [item.label for item in items]
    match task:
        case "classification":
            return Counter(labels)
        case "multilabel":
            return Counter(chain.from_iterable(labels))
        case "regression":
            return Counter()
        case "tagging":
            if not is_entity_tagset(chain.from_iterable(labels)):
                return Counter(chain.from_iterable(labels))
            return Counter(kind for tags in labels for _, _, kind in tag_spans(tags))
        case "spans":
            return Counter(kind for spans in labels for _, _, kind in spans)
        case "qa":
            return Counter("with an answer" if answers else "without an answer" for answers in labels)
        case "choice":
            return Counter(str(number + 1) for number in labels)


def _named(note: str) -> tuple[str, str]:
    """ "label: 'stars'" is a value with a name, other notes are sentences."""
    name, _, value = note.partition(": ")
    return (name, value) if value and len(name) <= 11 else ("note", note)


def _width(name: str) -> int:
    """Columns that a label takes on a screen: Chinese, Japanese and Korean characters take two."""
    return sum(1 + (unicodedata.east_asian_width(character) in "WF") for character in name[:30])


def _targets(items: Sequence[Item]) -> dict[str, float]:
    x = np.array([item.label for item in items], np.float64)
    return {"least": float(x.min()), "mean": float(x.mean()), "greatest": float(x.max()), "deviation": float(x.std())}


# --- lengths ----------------------------------------------------------------------------------------------------------


def _lengths(encoded: Sequence[Features], task: TaskType, tokenizer: Tokenizer, max_length: int) -> Lengths:
    windows = task in ("tagging", "spans", "qa")
    lengths = np.array([_length(one, task, tokenizer) for one in encoded])
    shown = int(np.quantile(lengths, 0.99)) + 1
    width = max(1, math.ceil(shown / BARS))
    bins = np.bincount(np.minimum(lengths // width, math.ceil(shown / width)))
    too_long = sum((len(one.unit) > 1) if windows else (one.num_truncated > 0) for one in encoded)
    median, most = int(np.median(lengths)), int(lengths.max())
    return Lengths(width, bins.tolist(), median, most, max_length, too_long, windows)


def _length(one: Features, task: TaskType, tokenizer: Tokenizer) -> int:
    """Tokens of an item, special ones counted, had it been read in one piece."""
    if task == "choice":  # its num_truncated is that of all choices together
        prompt, *choices = map(len, tokenizer.ids(one.item.texts))
        return prompt + max(choices) + 3
    if len(one.unit) == 1:
        return longest_sequence(one.unit) + one.num_truncated
    if task == "tagging":
        return sum(map(len, tokenizer.ids(one.item.texts))) + 2
    others = (one.places[: len(one.unit[0].input_ids)] == NO_TOKEN).sum() if task == "qa" else 2
    return len(one.offsets) + int(others)


# --- texts that are the same ------------------------------------------------------------------------------------------


def _same(data: LabelledData, lowercase: bool) -> tuple[Finding, Finding, Finding]:
    """Copies within train; rows of dev that are in train; rows that contradict one before."""
    first: dict[bytes, Item] = {}
    copies, leaked, conflicts = list[str](), list[str](), list[str]()
    for part, found in ((data.train, copies), (data.dev, leaked)):
        for item in part:
            key = _key(item, lowercase)
            before = first.get(key) if part is data.dev else first.setdefault(key, item)
            if before is None or before is item:
                continue
            found.append(f"{_place(item)} = {_place(before)}")
            if data.schema.task != "qa" and _said(item, data) != _said(
                before, data
            ):  # a question may have several right answers
                labels = ""
                if data.schema.task in ("classification", "regression"):
                    labels = f": {item.label!r} and {before.label!r}"
                conflicts.append(f"{_place(item)} and {_place(before)}{labels}")
    copied, leaking, contradicting = (Finding(len(places), places[:NAMED]) for places in (copies, leaked, conflicts))
    return copied, leaking, contradicting


def _said(item: Item, data: LabelledData) -> Any:
    """The label; several in no order."""
    return frozenset(item.label) if data.schema.task in ("multilabel", "spans") else item.label


def _place(item: Item) -> str:
    """File and row, without the folders."""
    return item.where.rpartition("/")[2]


def _key(item: Item, lowercase: bool) -> bytes:
    texts = "\0".join(" ".join(text.split()) for text in item.texts)
    return hashlib.blake2b((texts.lower() if lowercase else texts).encode("utf-8", "replace"), digest_size=16).digest()


# --- the vocabulary ---------------------------------------------------------------------------------------------------


def _vocabulary(encoded: Sequence[Features], tokenizer: Tokenizer) -> tuple[float, float]:
    """Share of [UNK] among the tokens, and tokens for a word."""
    counts = np.zeros(tokenizer.vocab_size, np.int64)
    for one in encoded:
        for example in one.unit:
            np.add.at(counts, example.input_ids, 1)
    counts[sorted(tokenizer.special_ids - {tokenizer.unk_id})] = 0
    words: NDArray[np.int64] = counts[tokenizer.starts_word]
    total = int(counts.sum())
    return int(counts[tokenizer.unk_id]) / max(1, total), total / max(1, int(words.sum()))


def _unknown_words(encoded: Sequence[Features], tokenizer: Tokenizer) -> list[str]:
    """The most frequent of them in a sample of the rows that have any."""
    having = (one for one in encoded if any((example.input_ids == tokenizer.unk_id).any() for example in one.unit))
    words: Counter[str] = Counter()
    for _, one in zip(range(SAMPLE), having, strict=False):
        words.update(tokenizer.unknown(one.item.texts))
    return [word for word, _ in words.most_common(NAMED)]


# --- what will go wrong -----------------------------------------------------------------------------------------------


def _warnings(found: DatasetReport) -> list[str]:
    """The worst first."""
    warnings = []
    if found.leaked.rows:
        warnings.append(
            f"{found.leaked.rows:,} rows of dev ({found.leaked.rows / found.dev:.1%}) are in train as well "
            f"({found.leaked.places[0]}): the scores will be too good; remove the copies"
        )
    if found.conflicts.rows:
        warnings.append(
            f"{found.conflicts.rows:,} rows have the text of another row and a different label "
            f"({found.conflicts.places[0]}): nobody can get both right"
        )
    if found.copies.rows > MANY_COPIES * found.train:
        warnings.append(f"{found.copies.rows:,} rows of train are copies of others ({found.copies.places[0]})")
    warnings += _label_warnings(found)
    lengths = found.lengths
    if not lengths.windows and lengths.too_long > MANY_LONG * sum(lengths.counts):
        warnings.append(
            f"{lengths.too_long / sum(lengths.counts):.0%} of the rows lose their end: the model reads "
            f"{lengths.max_length} tokens; is what matters at the beginning?"
        )
    if found.train < FEW_TRAIN:
        warnings.append(f"few rows to learn from ({found.train}): another seed will give quite another score")
    if found.dev < FEW_DEV:
        warnings.append(f"few rows to judge on ({found.dev}): a share is off by up to {1 / math.sqrt(found.dev):.0%}")
    return warnings


def _label_warnings(found: DatasetReport) -> list[str]:
    if found.task == "regression":
        return []
    warnings = []
    if missing := [name for name, (train, dev) in found.labels.items() if dev and not train]:
        warnings.append(f"dev has what train lacks and no model can learn: {_some(missing)}")
    if rare := [name for name, (train, _) in found.labels.items() if 0 < train < RARE]:
        warnings.append(f"fewer than {RARE} times in train, too seldom to be learned well: {_some(rare)}")
    if unjudged := [name for name, (train, dev) in found.labels.items() if train and not dev]:
        warnings.append(f"not in dev, so that nobody will know how well it is learned: {_some(unjudged)}")
    counts = [(n, name) for name, (n, _) in found.labels.items() if n]
    if found.task == "classification" and len(counts) > 1 and counts[0][0] >= UNBALANCED * counts[-1][0]:
        (most, frequent), (least, seldom) = counts[0], counts[-1]
        warnings.append(
            f"{frequent!r} is {most / least:.0f} times as frequent as {seldom!r}: always answering {frequent!r} would "
            f"be right in {most / found.train:.1%}; look at macro F1, and try --set class_weights=balanced"
        )
    return warnings


def _some(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:SHOWN_LABELS])) + (
        f" and {len(names) - SHOWN_LABELS:,} others" if len(names) > SHOWN_LABELS else ""
    )


def _language_warnings(found: DatasetReport, texts: Sequence[str], tokenizer: Tokenizer) -> list[str]:
    """What the tokenizer does to this language."""
    warnings = []
    if found.unknown > MANY_UNKNOWN or found.pieces > MANY_PIECES:
        warnings.append(
            f"the model's vocabulary does not fit these texts ({found.pieces:.1f} tokens for a word, "
            f"{found.unknown:.1%} unknown): is the model for another language? Name one for yours with --model"
        )
    capitals = sum(text != text.lower() for text in texts)
    if tokenizer.lowercase and found.task in ("tagging", "spans") and capitals > len(texts) / 2:
        warnings.append("the model does not see capitals, by which names are told: a cased one finds more of them")
    marked = next((c for c in "".join(texts) if "ぁ" <= c <= "ヿ" and len(unicodedata.normalize("NFD", c)) > 1), "")
    bare = unicodedata.normalize("NFD", marked)[:1]
    if marked and tokenizer.ids([marked]) == tokenizer.ids([bare]):
        warnings.append(f"the model reads {marked} as {bare}: it was not made for Japanese")
    return warnings
