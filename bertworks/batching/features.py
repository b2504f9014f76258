"""Items become examples: token ids, and what is predicted for which tokens.

- `sliding_windows`, `centered_window`: parts of a long text; each token counts in the window where it has most context.
- `Featurizer`: items of a task -> `Features`; some of them in words.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, compress, groupby, islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertworks.batching.batch import ExampleGroup
from bertworks.batching.sampling import Example, Ids, Target, TokenSequence, add_special_tokens
from bertworks.datasets.schema import Item, TaskType
from bertworks.events import Event, printable
from bertworks.io.processes import chunk_by_size
from bertworks.text.tokenizer import Tokenizer, truncated_lengths


class Window(NamedTuple):
    """Tokens `start` to `end` of a text, and which of them count as this window's own."""

    start: int
    end: int
    own: NDArray[np.bool_]  # [end - start]


def sliding_windows(count: int, room: int, step: int) -> list[Window]:
    """Windows of at most `room` tokens that begin `step` apart, over `count` tokens. A token that stands in several
    belongs to the one in which the smaller of its two contexts is largest, the longer window where that is equal, then
    the earlier one (google-research/bert `run_squad.py`, `_check_is_max_context`)."""
    step = min(step, room)
    starts = range(0, max(0, count - room) + step, step)
    ends = [min(start + room, count) for start in starts]
    best, owner = np.full(count, -1.0), np.zeros(count, np.int64)
    for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
        places = np.arange(end - start)
        score = np.minimum(places, places[::-1]) + 0.01 * (end - start)
        better = score > best[start:end]
        best[start:end][better] = score[better]
        owner[start:end][better] = number
    return [Window(s, e, owner[s:e] == number) for number, (s, e) in enumerate(zip(starts, ends, strict=True))]


def centered_window(first: int, last: int, count: int, room: int) -> tuple[int, int]:
    """The `room` tokens, or all if they are fewer, of a row of `count` in whose middle `first` to `last` stand."""
    start = max(0, min(first - max(0, room - (last - first)) // 2, count - room))
    return start, min(count, max(start + room, last))


def tokens_in_span(offsets: NDArray[np.int64], start: int, end: int) -> Ids:
    """Which tokens, given by the characters [n, 2] that they cover, share a character with `start` to `end`."""
    return np.flatnonzero((offsets[:, 0] < end) & (offsets[:, 1] > start) & (offsets[:, 0] < offsets[:, 1]))


_AT_ONCE = 1000  # items that are tokenised together, or fewer
_CHARACTERS = 1 << 20  # if these have more characters
SHOWN = 200  # characters of an example in words
NO_TOKEN = -1  # the place of a token that belongs to no text


def shortened(text: str) -> str:
    """A text without its middle, if it is longer than an example may be."""
    return text if len(text) <= SHOWN else f"{text[: SHOWN // 2]} ... {text[-SHOWN // 2 :]}"


class Features(NamedTuple):
    """An item as the network reads it."""

    item: Item
    unit: list[Example]  # one sequence; one for each choice; or windows over a long text
    num_truncated: int = 0  # tokens that are in no sequence
    # For each prediction, in order: the number of the word (tagging) or token (spans, qa) that it is about,
    # NONE for a token of the question or a special one.
    places: Ids = np.zeros(0, np.int64)
    own: NDArray[np.bool_] = np.zeros(0, np.bool_)  # qa: whether that token has its best context in that window
    # Characters of the text, by token (spans, qa) or by word (tagging of a raw text).
    offsets: NDArray[np.int64] = np.zeros((0, 2), np.int64)


@dataclass(frozen=True)
class Featurizer:
    """How items of a task are read. `reading(items)` yields what they become, in order.

    labels: names of the network's outputs, in order.
    max_length: tokens of a sequence, special ones counted.
    stride: tokens by which the windows over a long context of a question advance, as in google-research/bert
        (transformers calls so what two windows share).
    max_question: tokens of a question; its end is cut off.
    document_context: sentences to be tagged are read with as much of their document around them as fits (Devlin et al.
        2019, section 5.3: "the maximal document context provided by the data").
    apart: the texts of a pair are sequences of their own.
    """

    tokenizer: Tokenizer
    task: TaskType
    labels: tuple[str, ...] = ()
    max_length: int = 512
    stride: int = 128
    max_question: int = 64
    document_context: bool = False
    apart: bool = False

    def __call__(self, items: Iterable[Item]) -> Iterator[Features]:
        readers = {"tagging": self._tagging, "spans": self._spans, "qa": self._questions}
        read = readers.get(self.task, self._sequences)
        for group in self._groups(iter(items)):
            yield from read(group)

    def _groups(self, items: Iterator[Item]) -> Iterator[list[Item]]:
        if self.task == "tagging" and self.document_context:
            for _, document in groupby(items, key=lambda item: item.document or item.where):
                yield list(document)
            return
        yield from chunk_by_size(items, _CHARACTERS, lambda item: max(_CHARACTERS // _AT_ONCE, item.characters))

    def _tokens(self, texts: Iterable[str]) -> Iterator[tuple[Ids, int]]:
        """Of each text the ids without [CLS] and [SEP], at most `max_length`, and the number of all."""
        template = self.tokenizer.template
        for encoding in self.tokenizer.encode_each(list(texts), max_length=self.max_length + template.num_special()):
            ids = np.array(encoding.ids[template.inner(len(encoding.ids))], np.int64)
            yield ids, len(ids) + encoding.num_truncated

    # --- examples in words

    def examples(self, features: Sequence[Features]) -> list[Event]:
        """Notes on two items as the network reads them, with different labels if possible."""
        others = [one for one in features[1:1000] if one.item.label != features[0].item.label]
        return list(map(self._note, (*features[:1], *(others or features[1:2])[:1])))

    def preview(self, items: Sequence[Item]) -> list[Event]:
        """`examples` of items that are not yet read, in their documents where these are context."""
        first = [*items[:1], *([item for item in items[1:1000] if item.label != items[0].label] or items[1:2])[:1]]
        if documents := {item.document for item in first if self.document_context} - {""}:
            first = [item for item in items if item.document in documents or item in first]
        return self.examples(list(self(first)))

    def _note(self, features: Features) -> Event:
        """The tokens of a sequence, and what the network learns from them if the item has a label."""
        item, unit = features.item, features.unit
        answered = (one for one in unit if self.task == "qa" and one.target.labels.any())
        shown = unit if self.apart or self.task == "choice" else [next(answered, unit[0])]
        text = " | ".join(self._sequence(one, item.label is not None) for one in shown)
        text += "" if item.label is None else self._learned(shown)
        text += f"  ({features.num_truncated} tokens cut off)" * (features.num_truncated > 0)
        text += f"  (one of {len(unit)} windows)" * (len(shown) < len(unit))
        return Event("note", printable(f"example  {item.where.rpartition('/')[2]}  {text}"), {"example": item.where})

    def _sequence(self, example: Example, is_labelled: bool) -> str:
        """The tokens of a sequence, without the middle of a long one. Each tag follows the last token of its word."""
        pieces = list(map(self.tokenizer.piece, example.input_ids.tolist()))
        if is_labelled and self.task in ("tagging", "spans") and len(example.target.positions):
            starts, begins = example.target.positions.tolist(), [*self.tokenizer.starts_word[example.input_ids], True]
            ends = [*starts[1:], begins.index(True, starts[-1] + 1)]
            for end, tag in zip(ends, example.target.labels.tolist(), strict=True):
                pieces[end - 1] += f"/{self.labels[tag]}"
        return shortened(" ".join(pieces))

    def _learned(self, shown: Sequence[Example]) -> str:
        """What is learned from a sequence, or from those of all choices; nothing where tags tell it."""
        ids, (first, *others) = shown[0].input_ids, shown[0].target.labels.tolist()
        learned: dict[str, Callable[[], str]] = {
            "classification": lambda: self.labels[first],
            "multilabel": lambda: ", ".join(compress(self.labels, first)) or "no label",
            "regression": lambda: f"{first:g}",
            "choice": lambda: f"choice {[one.target.labels[0] for one in shown].index(1) + 1}",
            "qa": lambda: self.tokenizer.decode(ids[first : others[0] + 1]) if first else "no answer",
        }
        return f" -> {learned[self.task]()}" if self.task in learned else ""

    # --- one prediction for a sequence

    def _sequences(self, items: list[Item]) -> Iterator[Features]:
        """The text or the pair as a sequence; or the prompt with each choice; or each text of a pair."""
        tokens = self._tokens(chain.from_iterable(item.texts for item in items))
        for item in items:
            texts = list(islice(tokens, len(item.texts)))
            sequences = [[texts[0], choice] for choice in texts[1:]] if self.task == "choice" else [texts]
            if self.apart:
                sequences = [[text] for text in texts]
            unit, cut_off = [], 0
            for number, segments in enumerate(sequences):
                room = self.max_length - self.tokenizer.template.num_special(len(segments))
                first, second = (*(count for _, count in segments), 0)[:2]
                kept = truncated_lengths(first, second, room)
                parts = [ids[:n] for (ids, _), n in zip(segments, kept)]
                sequence = add_special_tokens(parts, self.tokenizer.template)
                predicts = not self.apart or number == 0  # one prediction for both texts
                unit.append(_example(sequence, [0][:predicts], self._label(item, number)[:predicts]))
                cut_off += first + second - sum(kept)
            yield Features(item, unit, cut_off)

    def _label(self, item: Item, number: int) -> NDArray[np.generic]:
        match self.task:
            case "choice":
                return np.array([float(number == item.label)], np.float32)
            case "regression":
                return np.array([item.label or 0.0], np.float32)
            case "multilabel":
                return np.array([[label in (item.label or ()) for label in self.labels]], np.float32)
            case _:
                return np.array([0 if item.label is None else self.labels.index(item.label)], np.int64)

    # --- an answer for every word, or every token

    def _tagging(self, items: list[Item]) -> Iterator[Features]:
        places = iter(self.tokenizer.words([item.texts[0] for item in items if item.raw]))
        offsets = [next(places) if item.raw else np.zeros((0, 2), np.int64) for item in items]
        texts = [
            [item.texts[0][start:end] for start, end in of_item.tolist()] if item.raw else item.texts
            for item, of_item in zip(items, offsets, strict=True)
        ]
        pieces = iter(self.tokenizer.ids([word for of_item in texts for word in of_item]))
        # A word of which the tokenizer leaves nothing still gets an answer.
        words = [[piece or [self.tokenizer.unk_id] for piece in islice(pieces, len(of_item))] for of_item in texts]
        rows = [np.array(list(chain.from_iterable(of_item)), np.int64) for of_item in words]
        ends = np.cumsum([len(row) for row in rows])
        document = np.concatenate(rows) if self.document_context else None
        for item, of_item, row, end, where in zip(items, words, rows, ends, offsets, strict=True):
            firsts = np.cumsum([0, *map(len, of_item)])[:-1]
            tags = np.array([0 if item.label is None else self.labels.index(tag) for tag in item.label or of_item])
            room = self.max_length - self.tokenizer.template.num_special()
            if document is None or len(row) > room:
                yield self._in_windows(item, row, firsts, tags)._replace(offsets=where)
            else:
                start, stop = centered_window(int(end) - len(row), int(end), len(document), room)
                sequence = add_special_tokens([document[start:stop]], self.tokenizer.template)
                positions = firsts + int(end) - len(row) - start + len(self.tokenizer.template.prefix)
                example = _example(sequence, positions, tags)
                yield Features(item, [example], places=np.arange(len(firsts)), offsets=where)

    def _spans(self, items: list[Item]) -> Iterator[Features]:
        encodings = self.tokenizer.arrays([item.texts[0] for item in items])
        for item, (row, offsets) in zip(items, encodings, strict=True):
            tags = np.full(len(row), self.labels.index("O"))
            for start, end, kind in item.label or ():
                covered = tokens_in_span(offsets, start, end)
                tags[covered] = self.labels.index(f"I-{kind}")
                tags[covered[:1]] = self.labels.index(f"B-{kind}")
            yield self._in_windows(item, row, np.arange(len(row)), tags)._replace(offsets=offsets)

    def _in_windows(self, item: Item, row: Ids, predicted: Ids, tags: Ids) -> Features:
        """predicted: positions in the row, ascending; each is predicted in the window where it has most context."""
        unit, places = [], []
        for window, sequence, begin in self._windows(row):
            numbers = np.flatnonzero((predicted >= window.start) & (predicted < window.end))
            numbers = numbers[window.own[predicted[numbers] - window.start]]
            unit.append(_example(sequence, predicted[numbers] - window.start + begin, tags[numbers]))
            places.append(numbers)
        return Features(item, unit, places=np.concatenate(places))

    def _windows(self, row: Ids, step: int = 0, *before: Ids) -> Iterator[tuple[Window, TokenSequence, int]]:
        """Windows over a text, their sequences with the segments `before`, and the positions at which they begin. step:
        by which they advance; 0: by half of them."""
        template = self.tokenizer.template
        room = self.max_length - sum(map(len, before)) - template.num_special(len(before) + 1)
        types = dict[int, Ids]()  # those of a length are kept once: a long text has many windows
        for window in sliding_windows(len(row), room, step or max(1, room // 2)):
            sequence = add_special_tokens([*before, row[window.start : window.end]], template)
            same = types.setdefault(len(sequence.input_ids), sequence.token_type_ids)
            sequence = sequence._replace(token_type_ids=same)
            yield window, sequence, len(sequence.input_ids) - len(template.suffix) - len(window.own)

    # --- where the answer to a question stands

    def _questions(self, items: list[Item]) -> Iterator[Features]:
        questions = self._tokens(item.texts[0] for item in items)
        contexts = self.tokenizer.arrays([item.texts[1] for item in items])
        for item, (whole, count), (row, offsets) in zip(items, questions, contexts, strict=True):
            question = whole[: min(self.max_question, self.max_length // 2)]
            first, last = _answer(item, offsets)
            unit, places, own, every = [], [], [], np.arange(self.max_length)
            for window, sequence, begin in self._windows(row, self.stride, question):
                inside = window.start <= first and last < window.end
                labels = [first - window.start + begin, last - window.start + begin] if inside else [0, 0]
                n, context = len(sequence.input_ids), slice(begin, begin + len(window.own))
                unit.append(_example(sequence, every[:n], np.array(labels)))
                numbers, best = np.full(n, NO_TOKEN), np.zeros(n, np.bool_)
                numbers[context], best[context] = np.arange(window.start, window.end), window.own
                places.append(numbers)
                own.append(best)
            yield Features(item, unit, count - len(question), np.concatenate(places), np.concatenate(own), offsets)


_TOGETHER = ("choice", "classification", "multilabel", "regression")


def training_groups(encoded: Features, task: TaskType) -> list[ExampleGroup]:
    """What is learned from an item: choices and the texts of a pair belong together, windows do not; a window that
    predicts nothing is left out."""
    return [encoded.unit] if task in _TOGETHER else [[one] for one in encoded.unit if len(one.target.positions)]


def _example(sequence: TokenSequence, positions: Ids | list[int], labels: NDArray[Any]) -> Example:
    target = Target(np.asarray(positions, np.int64), labels)
    return Example(sequence.input_ids, sequence.token_type_ids, {"task": target})


def _answer(item: Item, offsets: NDArray[np.int64]) -> tuple[int, int]:
    """First and last token of the first answer; -1, which is in no window, where there is none."""
    if not item.label:
        return NO_TOKEN, NO_TOKEN
    start, text = item.label[0]
    covered = tokens_in_span(offsets, start, start + len(text))
    return (int(covered[0]), int(covered[-1])) if len(covered) else (NO_TOKEN, NO_TOKEN)
