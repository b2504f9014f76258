"""Items become examples: what the network reads of a text, and what it is asked there. Not here: where items come from
(`rows.schema`), what the network's numbers mean (`learn.answers`)."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, groupby, islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertworks.data.labelled import Unit
from bertworks.data.masking import Example
from bertworks.data.sampling import Ids, Special, frame
from bertworks.data.windows import around, cut, tokens_of
from bertworks.rows.schema import Item, Task
from bertworks.text.tokenizer import Encoding, Tokenizer

AT_ONCE = 1000  # items that are tokenised together
NONE = -1  # the place of a token that belongs to no text


class Encoded(NamedTuple):
    """An item as the network reads it."""

    item: Item
    unit: list[Example]  # one sequence; one for each choice; or windows over a long text
    num_truncated: int = 0  # tokens that are in no sequence
    # For each thing that is asked, in order: the number of the word (tagging) or token (spans, qa) that it is about,
    # NONE for a token of the question or a special one.
    places: Ids = np.zeros(0, np.int64)
    own: NDArray[np.bool_] = np.zeros(0, np.bool_)  # qa: whether that token has its best context in that window
    # Characters of the text, by token (spans, qa) or by word (tagging of a raw text).
    offsets: NDArray[np.int64] = np.zeros((0, 2), np.int64)


@dataclass(frozen=True)
class Reading:
    """How items of a task are read. `reading(items)` yields what they become, in order.

    labels: names of the network's outputs, in order.
    max_length: tokens of a sequence, special ones counted.
    stride: tokens by which the windows over a long context of a question advance, as in google-research/bert
        (transformers calls so what two windows share).
    max_question: tokens of a question; its end is cut off.
    document_context: sentences to be tagged are read with as much of their document around them as fits (Devlin et al.
        2019, section 5.3: "the maximal document context provided by the data").
    """

    tokenizer: Tokenizer
    task: Task
    labels: tuple[str, ...] = ()
    max_length: int = 512
    stride: int = 128
    max_question: int = 64
    document_context: bool = False

    def __call__(self, items: Iterable[Item]) -> Iterator[Encoded]:
        read = self._reader()
        for group in self._groups(iter(items)):
            yield from read(group)

    def _groups(self, items: Iterator[Item]) -> Iterator[list[Item]]:
        if self.task == "tagging" and self.document_context:
            for _, document in groupby(items, key=lambda item: item.document or item.where):
                yield list(document)
            return
        while group := list(islice(items, AT_ONCE)):
            yield group

    def _reader(self) -> Callable[[list[Item]], Iterator[Encoded]]:
        match self.task:
            case "classification" | "multilabel" | "regression":
                return self._sequences
            case "tagging":
                return self._tagging
            case "spans":
                return self._spans
            case "qa":
                return self._questions
            case "choice":
                return self._choices

    @property
    def _special(self) -> Special:
        return Special(self.tokenizer.cls_id, self.tokenizer.sep_id)

    def _tokens(self, texts: Iterable[str]) -> list[NDArray[np.int64]]:
        """Ids without [CLS] and [SEP]."""
        return [np.array(encoding.ids[1:-1], np.int64) for encoding in self.tokenizer.encode_batch(list(texts))]

    # --- one answer for a sequence

    def _sequences(self, items: list[Item]) -> Iterator[Encoded]:
        columns = [self._tokens(column) for column in zip(*(item.texts for item in items), strict=True)]
        for item, *segments in zip(items, *columns, strict=True):
            kept, cut_off = self._fitting(segments)
            asked = frame(kept, self._special, -1)
            yield Encoded(item, [_example(asked.input_ids, asked.token_type_ids, [0], self._label(item))], cut_off)

    def _choices(self, items: list[Item]) -> Iterator[Encoded]:
        tokens = iter(self._tokens(chain.from_iterable(item.texts for item in items)))
        for item in items:
            prompt, *choices = islice(tokens, len(item.texts))
            unit, cut_off = [], 0
            for number, choice in enumerate(choices):
                kept, more = self._fitting([prompt, choice])
                asked = frame(kept, self._special, -1)
                right = np.array([float(number == item.label)], np.float32)
                unit.append(_example(asked.input_ids, asked.token_type_ids, [0], right))
                cut_off += more
            yield Encoded(item, unit, cut_off)

    def _fitting(self, segments: list[NDArray[np.int64]]) -> tuple[list[NDArray[np.int64]], int]:
        """The segments without what is too long, taken from the end of the longer one, of the second where they are
        equal (google-research/bert `_truncate_seq_pair`); and how many tokens that were."""
        room = self.max_length - 1 - len(segments)
        lengths = [len(segment) for segment in segments]
        if len(segments) == 1:
            kept = [min(lengths[0], room)]
        else:
            first = min(lengths[0], max(room - lengths[1], (room + 1) // 2))
            kept = [first, min(lengths[1], room - first)]
        return [segment[:n] for segment, n in zip(segments, kept, strict=True)], sum(lengths) - sum(kept)

    def _label(self, item: Item) -> NDArray[np.generic]:
        match self.task:
            case "regression":
                return np.array([item.label or 0.0], np.float32)
            case "multilabel":
                return np.array([[label in (item.label or ()) for label in self.labels]], np.float32)
            case _:
                return np.array([0 if item.label is None else self.labels.index(item.label)], np.int64)

    # --- an answer for every word, or every token

    def _tagging(self, items: list[Item]) -> Iterator[Encoded]:
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
            firsts = np.cumsum([0, *(len(piece) for piece in of_item[:-1])]) if of_item else np.zeros(0, np.int64)
            tags = np.array([0 if item.label is None else self.labels.index(tag) for tag in item.label or of_item])
            if document is None or len(row) > self.max_length - 2:
                yield self._in_windows(item, row, firsts, tags)._replace(offsets=where)
            else:
                start, stop = around(int(end) - len(row), int(end), len(document), self.max_length - 2)
                asked = frame([document[start:stop]], self._special, -1)
                positions = firsts + int(end) - len(row) - start + 1
                example = _example(asked.input_ids, asked.token_type_ids, positions, tags)
                yield Encoded(item, [example], places=np.arange(len(firsts)), offsets=where)

    def _spans(self, items: list[Item]) -> Iterator[Encoded]:
        encodings = self.tokenizer.encode_batch([item.texts[0] for item in items])
        for item, encoding in zip(items, encodings, strict=True):
            row, offsets = _inner(encoding)
            tags = np.full(len(row), self.labels.index("O"))
            for start, end, kind in item.label or ():
                covered = tokens_of(offsets, start, end)
                tags[covered] = self.labels.index(f"I-{kind}")
                tags[covered[:1]] = self.labels.index(f"B-{kind}")
            yield self._in_windows(item, row, np.arange(len(row)), tags)._replace(offsets=offsets)

    def _in_windows(self, item: Item, row: Ids, asked: Ids, tags: Ids) -> Encoded:
        """asked: places in the row of tokens, ascending; each is asked in the window where it sees most."""
        room = self.max_length - 2
        unit, places = [], []
        for window in cut(len(row), room, max(1, room // 2)):
            numbers = np.flatnonzero((asked >= window.start) & (asked < window.end))
            numbers = numbers[window.own[asked[numbers] - window.start]]
            sequence = frame([row[window.start : window.end]], self._special, -1)
            positions = asked[numbers] - window.start + 1
            unit.append(_example(sequence.input_ids, sequence.token_type_ids, positions, tags[numbers]))
            places.append(numbers)
        return Encoded(item, unit, places=np.concatenate(places))

    # --- where the answer to a question stands

    def _questions(self, items: list[Item]) -> Iterator[Encoded]:
        asked = self._tokens(item.texts[0] for item in items)
        contexts = self.tokenizer.encode_batch([item.texts[1] for item in items])
        for item, whole, encoding in zip(items, asked, contexts, strict=True):
            question = whole[: min(self.max_question, self.max_length // 2)]
            row, offsets = _inner(encoding)
            first, last = _answer(item, offsets)
            unit, places, own = [], [], []
            for window in cut(len(row), self.max_length - len(question) - 3, self.stride):
                sequence = frame([question, row[window.start : window.end]], self._special, -1)
                begin = len(question) + 2  # of the context in the sequence
                inside = window.start <= first and last < window.end
                labels = [first - window.start + begin, last - window.start + begin] if inside else [0, 0]
                n = len(sequence.input_ids)
                unit.append(_example(sequence.input_ids, sequence.token_type_ids, np.arange(n), np.array(labels)))
                numbers, best = np.full(n, NONE), np.zeros(n, np.bool_)
                numbers[begin : n - 1], best[begin : n - 1] = np.arange(window.start, window.end), window.own
                places.append(numbers)
                own.append(best)
            yield Encoded(item, unit, len(whole) - len(question), np.concatenate(places), np.concatenate(own), offsets)


def training_units(encoded: Encoded, task: Task) -> list[Unit]:
    """What is learned from an item: choices belong together, windows do not; one that asks nothing is left out."""
    return [encoded.unit] if task == "choice" else [[one] for one in encoded.unit if len(one.masked_positions)]


def _example(input_ids: Ids, token_type_ids: Ids, asked: Ids | list[int], labels: NDArray[np.generic]) -> Example:
    return Example(input_ids, token_type_ids, np.asarray(asked, np.int64), labels, -1)  # type: ignore[arg-type]


def _inner(encoding: Encoding) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Ids and offsets without [CLS] and [SEP]."""
    return np.array(encoding.ids[1:-1], np.int64), np.array(encoding.offsets[1:-1], np.int64).reshape(-1, 2)


def _answer(item: Item, offsets: NDArray[np.int64]) -> tuple[int, int]:
    """First and last token of the first answer; -1, which is in no window, where there is none."""
    if not item.label:
        return NONE, NONE
    start, text = item.label[0]
    covered = tokens_of(offsets, start, start + len(text))
    return (int(covered[0]), int(covered[-1])) if len(covered) else (NONE, NONE)
