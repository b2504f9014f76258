"""Items become examples: token ids, and what is predicted for which tokens.

- `sliding_windows`, `centered_window`: parts of a long text; each token counts in the window where
  it has most context.
- `Featurizer`: items of a task -> `Features`; some of them in words.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, compress, groupby, islice
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from bertworks.batching.batch import ExampleGroup
from bertworks.batching.masking import Example
from bertworks.batching.sampling import Ids, Target, TokenSequence, add_special_tokens, keyed_rng
from bertworks.datasets.schema import Item
from bertworks.errors import BertworksError
from bertworks.events import Event, printable
from bertworks.io.processes import chunk_by_size
from bertworks.text.shard_writer import flat_arrays
from bertworks.text.tokenizer import Tokenizer, truncated_lengths

ShortIds = NDArray[np.int32]  # half the memory, for long texts
Offsets = NDArray[np.int32]  # [n, 2]
_T = TypeVar("_T")


class Window(NamedTuple):
    """Tokens `start` to `end` of a text, and which of them count as this window's own."""

    start: int
    end: int
    own: NDArray[np.bool_]  # [end - start]


class Lazy(Sequence[_T]):
    """A sequence in which each value is made when it is read: all windows over a long text would
    need twenty times its memory. A slice is such a sequence, too. make: number -> value."""

    def __init__(self, numbers: range, make: Callable[[int], _T]):
        self._numbers, self._make = numbers, make

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, number: Any) -> Any:
        numbers = self._numbers[number]
        return Lazy(numbers, self._make) if isinstance(numbers, range) else self._make(numbers)


def sliding_windows(count: int, room: int, step: int) -> Lazy[Window]:
    """Windows of at most `room` tokens that begin `step` apart, over `count` tokens. A token that
    stands in several belongs to the one in which the smaller of its two contexts is largest, the
    longer window where that is equal, then the earlier one (google-research/bert `run_squad.py`,
    `_check_is_max_context`)."""
    step = min(step, room)
    starts = range(0, max(0, count - room) + step, step)

    def window(number: int) -> Window:
        first = max(0, number - room // step)  # of the windows that may have a token in common
        begin = np.array(starts[first : number + room // step + 1])[:, None]
        end = np.minimum(begin + room, count)
        places = np.arange(starts[number], min(starts[number] + room, count))
        score = np.minimum(places - begin, end - 1 - places) + 0.01 * (end - begin)
        score[(places < begin) | (places >= end)] = -1.0
        return Window(
            starts[number], starts[number] + len(places), score.argmax(0) == number - first
        )

    return Lazy(range(len(starts)), window)


def centered_window(first: int, last: int, count: int, room: int) -> tuple[int, int]:
    """The `room` tokens, or all if they are fewer, of a row of `count` in whose middle `first` to
    `last` stand."""
    start = max(0, min(first - max(0, room - (last - first)) // 2, count - room))
    return start, min(count, max(start + room, last))


def tokens_in_span(offsets: Offsets, start: int, end: int) -> Ids:
    """Which tokens, given by the characters [n, 2] that they cover, share a character with `start`
    to `end`."""
    return np.flatnonzero(
        (offsets[:, 0] < end) & (offsets[:, 1] > start) & (offsets[:, 0] < offsets[:, 1])
    )


_AT_ONCE = 1000  # items that are tokenised together, or fewer
_CHARACTERS = 1 << 20  # if these have more characters
_WORDS = 1 << 14  # that are tokenised together
SHOWN = 200  # characters of an example in words
# Of questions that are made from texts: the most tokens of the text in which the answer stands
# (from short texts a network learns in a few steps); the most tokens on each side of the answer
# that may be in the question; the fraction of all tokens that are in no answer, the most frequent
# ones.
CLOZE_TEXT, CLOZE_NEAR, FREQUENT = 64, 12, 0.4
NO_TOKEN = -1  # the place of a token that belongs to no text
_NO_OFFSETS: Offsets = np.zeros((0, 2), np.int32)


def shortened(text: str) -> str:
    """A text without its middle, if it is longer than an example may be."""
    return text if len(text) <= SHOWN else f"{text[: SHOWN // 2]} ... {text[-SHOWN // 2 :]}"


class Features(NamedTuple):
    """An item as the network reads it."""

    item: Item
    # one sequence; one for each choice; or windows over a long text, `Lazy` if several
    unit: Sequence[Example]
    num_truncated: int = 0  # tokens that are in no sequence
    # those of the unit: together they predict every token or word once, in order
    windows: Sequence[Window] = ()
    begin: int = 0  # the position of a window in its sequence
    # Characters of the text, by token (spans, qa) or by word (tagging of a raw text).
    offsets: Offsets = _NO_OFFSETS

    @property
    def words(self) -> Sequence[str]:
        """Tagging, spans: the words or tokens that are predicted."""
        has_offsets, text = self.item.raw or len(self.offsets), self.item.texts[0]
        return (
            [text[start:end] for start, end in self.offsets.tolist()]
            if has_offsets
            else self.item.texts
        )


@dataclass
class Truncation:
    """How many rows were longer than the model reads, and how much of them was left out.

    rows: the number of all rows.
    truncated: the number of rows that lost their end.
    tokens_read, tokens_left_out: numbers of tokens of the truncated rows, without special tokens.
        Of a question and its context these are the tokens of the question: the context is read in
        windows, to its end.
    """

    rows: int = 0
    truncated: int = 0
    tokens_read: int = 0
    tokens_left_out: int = 0

    def add(self, tokens_read: int, tokens_left_out: int) -> None:
        """Count a row. tokens_read: without special tokens."""
        self.rows += 1
        if tokens_left_out:
            self.truncated += 1
            self.tokens_read += tokens_read
            self.tokens_left_out += tokens_left_out

    def add_features(self, features: Features, tokenizer: Tokenizer) -> None:
        """Count an item as the network reads it."""
        tokens_read = 0
        if features.num_truncated:
            special_ids = list(tokenizer.special_ids - {tokenizer.unk_id})
            sequences = [example.input_ids for example in features.unit]
            if features.windows:
                # the question, which each window repeats
                sequences = [features.unit[0].input_ids[: features.begin]]
            for input_ids in sequences:
                is_text = np.isin(input_ids, special_ids, invert=True)
                tokens_read += int(is_text.sum())
        self.add(tokens_read, features.num_truncated)

    @property
    def share(self) -> float:
        """The fraction of the tokens of the truncated rows that was left out; 0 if there are
        none."""
        return self.tokens_left_out / max(1, self.tokens_read + self.tokens_left_out)

    def as_dict(self) -> dict[str, float]:
        """As in results: `truncated` (rows), `truncated_tokens` and `truncated_share` (of the
        tokens of these rows)."""
        return {
            "truncated": self.truncated,
            "truncated_tokens": self.tokens_left_out,
            "truncated_share": self.share,
        }


def format_truncation(result: Mapping[str, Any], what: str = "rows") -> str:
    """Return a sentence that says how many rows were truncated, or "" if none was.

    Args:
        result: `rows`, and the fields of `Truncation.as_dict`.
        what: what the rows are, as a plural noun.
    """
    if not result["truncated"]:
        return ""
    rows = f"{result['truncated']:,} of {result['rows']:,} {what} were truncated"
    return f"{rows}: {result['truncated_share']:.1%} of their tokens were left out"


class TooManyTokensError(BertworksError):
    """The texts have more tokens than may be read together."""


@dataclass(frozen=True)
class Featurizer:
    """How items of a task are read. `reading(items)` yields what they become, in order.

    labels: names of the network's outputs, in order.
    max_length: tokens of a sequence, special ones counted.
    stride: tokens by which the windows over a long context of a question advance, as in
        google-research/bert (transformers calls so what two windows share).
    max_question: tokens of a question; its end is cut off.
    document_context: sentences to be tagged are read with as much of their document around them as
        fits (Devlin et al. 2019, section 5.3: "the maximal document context provided by the data").
    apart: the texts of a pair are sequences of their own.
    keep_end: a text or pair with one prediction that is too long loses its beginning and not its
        end.
    most_tokens: of the texts that are read together, or of their words; None: any number. It bounds
        the memory that a long text takes.

    Raises:
        TooManyTokensError: the texts have more. The rest of them is not read.
    """

    tokenizer: Tokenizer
    task: str
    labels: tuple[str, ...] = ()
    max_length: int = 512
    stride: int = 128
    max_question: int = 64
    document_context: bool = False
    apart: bool = False
    keep_end: bool = False
    most_tokens: int | None = None

    def __call__(self, items: Iterable[Item]) -> Iterator[Features]:
        readers = {"tagging": self._tagging, "spans": self._spans, "qa": self._questions}
        read = readers.get(self.task, self._sequences)
        for group in self._groups(iter(items)):
            yield from read(group)

    def _groups(self, items: Iterator[Item]) -> Iterator[list[Item]]:
        if self.task == "tagging" and self.document_context:
            return (
                list(document)
                for _, document in groupby(items, key=lambda item: item.document or item.where)
            )
        return chunk_by_size(
            items, _CHARACTERS, lambda item: max(_CHARACTERS // _AT_ONCE, item.characters)
        )

    def _tokens(self, texts: Iterable[str]) -> Iterator[tuple[Ids, int]]:
        """Of each text the ids without [CLS] and [SEP], at most `max_length`, and the number of
        all."""
        if self.keep_end:
            for short_ids, _ in self.tokenizer.arrays(list(texts)):
                yield short_ids[-self.max_length :].astype(np.int64), len(short_ids)
            return
        template = self.tokenizer.template
        for encoding in self.tokenizer.encode_each(
            list(texts), max_length=self.max_length + template.num_special()
        ):
            ids = np.array(encoding.ids[template.inner(len(encoding.ids))], np.int64)
            yield ids, len(ids) + encoding.num_truncated

    # --- examples in words

    def examples(self, features: Sequence[Features]) -> list[Event]:
        """Notes on two items as the network reads them, with different labels if possible."""
        others = [one for one in features[1:1000] if one.item.label != features[0].item.label]
        return list(map(self._note, (*features[:1], *(others or features[1:2])[:1])))

    def preview(self, items: Sequence[Item]) -> list[Event]:
        """`examples` of items that are not yet read, in their documents where these are context."""
        first = [
            *items[:1],
            *([item for item in items[1:1000] if item.label != items[0].label] or items[1:2])[:1],
        ]
        if documents := {item.document for item in first if self.document_context} - {""}:
            first = [item for item in items if item.document in documents or item in first]
        return self.examples(list(self(first)))

    def _note(self, features: Features) -> Event:
        """The tokens of a sequence, and what the network learns from them if the item has a
        label."""
        item, unit = features.item, features.unit
        answered = (one for one in unit if self.task == "qa" and one.target.labels.any())
        shown = unit if self.apart or self.task == "choice" else [next(answered, unit[0])]
        text = " | ".join(self._sequence(one, item.label is not None) for one in shown)
        text += "" if item.label is None else self._learned(shown)
        text += f"  ({features.num_truncated} tokens cut off)" * (features.num_truncated > 0)
        text += f"  (one of {len(unit)} windows)" * (len(shown) < len(unit))
        return Event(
            "note",
            printable(f"example  {item.where.rpartition('/')[2]}  {text}"),
            {"example": item.where},
        )

    def _sequence(self, example: Example, is_labelled: bool) -> str:
        """The tokens of a sequence, without the middle of a long one. Each tag follows the last
        token of its word."""
        pieces = list(map(self.tokenizer.piece, example.input_ids.tolist()))
        if is_labelled and self.task in ("tagging", "spans") and len(example.target.positions):
            starts, begins = (
                example.target.positions.tolist(),
                [*self.tokenizer.starts_word[example.input_ids], True],
            )
            ends = [*starts[1:], begins.index(True, starts[-1] + 1)]
            for end, tag in zip(ends, example.target.labels.tolist(), strict=True):
                pieces[end - 1] += f"/{self.labels[tag]}"
        return shortened(" ".join(pieces))

    def _learned(self, shown: Sequence[Example]) -> str:
        """What is learned from a sequence, or from those of all choices; nothing where tags tell
        it."""
        ids, (first, *others) = shown[0].input_ids, shown[0].target.labels.tolist()
        learned: dict[str, Callable[[], str]] = {
            "classification": lambda: self.labels[first],
            "multilabel": lambda: ", ".join(compress(self.labels, first)) or "no label",
            "regression": lambda: f"{first:g}",
            "choice": lambda: f"choice {[one.target.labels[0] for one in shown].index(1) + 1}",
            "qa": lambda: (
                self.tokenizer.decode(ids[first : others[0] + 1]) if first else "no answer"
            ),
        }
        return f" -> {learned[self.task]()}" if self.task in learned else ""

    # --- one prediction for a sequence

    def _sequences(self, items: list[Item]) -> Iterator[Features]:
        """The text or the pair as a sequence; or the prompt with each choice; or each text of a
        pair."""
        tokens = self._tokens(chain.from_iterable(item.texts for item in items))
        for item in items:
            texts = list(islice(tokens, len(item.texts)))
            sequences = (
                [[texts[0], choice] for choice in texts[1:]] if self.task == "choice" else [texts]
            )
            if self.apart:
                sequences = [[text] for text in texts]
            unit, cut_off = [], 0
            for number, segments in enumerate(sequences):
                room = self.max_length - self.tokenizer.template.num_special(len(segments))
                first, second = (*(count for _, count in segments), 0)[:2]
                kept = truncated_lengths(first, second, room)
                parts = [
                    ids[len(ids) - n :] if self.keep_end else ids[:n]
                    for (ids, _), n in zip(segments, kept)
                ]
                sequence = add_special_tokens(parts, self.tokenizer.template)
                predicts = not self.apart or number == 0  # one prediction for both texts
                unit.append(
                    _example(sequence, [0][:predicts], self._label(item, number)[:predicts])
                )
                cut_off += first + second - sum(kept)
            yield Features(item, unit, cut_off)

    def _label(self, item: Item, number: int) -> NDArray[np.generic]:
        match self.task:
            case "choice":
                return np.array([float(number == item.label)], np.float32)
            case "regression":
                return np.array([item.label or 0.0], np.float32)
            case "multilabel":
                return np.array(
                    [[label in (item.label or ()) for label in self.labels]], np.float32
                )
            case _:
                return np.array(
                    [0 if item.label is None else self.labels.index(item.label)], np.int64
                )

    # --- an answer for every word, or every token

    def _tagging(self, items: list[Item]) -> Iterator[Features]:
        offsets_of_raw = self.tokenizer.words([item.texts[0] for item in items if item.raw])
        self._check_count(sum(map(len, offsets_of_raw)))
        offsets = iter(offsets_of_raw)
        read = [
            Features(item, (), offsets=next(offsets) if item.raw else _NO_OFFSETS) for item in items
        ]
        words = [one.words for one in read]
        document, ends = self._pieces(chain.from_iterable(words))
        for one, of_item in zip(read, words, strict=True):
            tokens, ends = ends[: len(of_item) + 1], ends[len(of_item) :]
            row, firsts = document[tokens[0] : tokens[-1]], tokens[:-1] - tokens[0]
            tags = np.zeros(len(of_item), np.int32)
            if one.item.label is not None:
                tags[:] = [self.labels.index(tag) for tag in one.item.label]
            room = self.max_length - self.tokenizer.template.num_special()
            if not self.document_context or len(row) > room:
                yield self._tagged(one.item, row, firsts, tags, one.offsets)
            else:
                start, stop = centered_window(int(tokens[0]), int(tokens[-1]), len(document), room)
                sequence = add_special_tokens([document[start:stop]], self.tokenizer.template)
                positions = (
                    tokens[:-1].astype(np.int64) - start + len(self.tokenizer.template.prefix)
                )
                yield one._replace(unit=[_example(sequence, positions, tags.astype(np.int64))])

    def _pieces(self, words: Iterable[str]) -> tuple[ShortIds, ShortIds]:
        """The tokens of all words, and where each word begins; last their number. A word of which
        the tokenizer leaves nothing is one unknown token."""
        groups = map(self.tokenizer.ids, chunk_by_size(words, _WORDS, lambda _: 1))
        arrays = [
            flat_arrays([piece or [self.tokenizer.unk_id] for piece in pieces]) for pieces in groups
        ]
        ids, counts = map(np.concatenate, zip(flat_arrays([[]]), *arrays))
        return ids, counts.cumsum(dtype=np.int32)

    def _arrays(self, texts: Sequence[str]) -> Iterator[tuple[ShortIds, Offsets]]:
        """`Tokenizer.arrays`, of at most `most_tokens`."""
        count = 0
        for ids, offsets in self.tokenizer.arrays(texts, limit=self.most_tokens):
            count += len(ids)
            self._check_count(count)
            yield ids, offsets

    def _check_count(self, count: int) -> None:
        """count: the tokens of the texts that are read together, or fewer."""
        if self.most_tokens is not None and count > self.most_tokens:
            raise TooManyTokensError(
                f"more than {self.most_tokens:,} tokens", hint="send less at once"
            )

    def _spans(self, items: list[Item]) -> Iterator[Features]:
        encodings = self._arrays([item.texts[0] for item in items])
        for item, (row, offsets) in zip(items, encodings, strict=True):
            outside = np.int32(self.labels.index("O"))
            tags = (
                np.broadcast_to(outside, len(row))
                if item.label is None
                else np.full(len(row), outside)
            )
            for start, end, kind in item.label or ():
                covered = tokens_in_span(offsets, start, end)
                tags[covered] = self.labels.index(f"I-{kind}")
                tags[covered[:1]] = self.labels.index(f"B-{kind}")
            yield self._tagged(item, row, None, tags, offsets)

    def _tagged(
        self,
        item: Item,
        row: ShortIds,
        predicted: ShortIds | None,
        tags: ShortIds,
        offsets: Offsets,
    ) -> Features:
        """predicted: positions in the row, ascending, None: all; each is predicted in the window
        where it has most context."""

        def part(window: Window, begin: int, _: int) -> tuple[Ids, Ids]:
            inside, places = slice(window.start, window.end), np.arange(window.end - window.start)
            if predicted is not None:
                inside = slice(*np.searchsorted(predicted, (window.start, window.end)))
                places = predicted[inside].astype(np.int64) - window.start
            return places[window.own[places]] + begin, tags[inside][window.own[places]].astype(
                np.int64
            )

        return self._in_windows(item, row, part, offsets)

    def _in_windows(
        self,
        item: Item,
        row: ShortIds,
        part: Callable[[Window, int, int], tuple[Ids, Ids]],
        offsets: Offsets,
        step: int = 0,
        before: Sequence[Ids] = (),
    ) -> Features:
        """An item with windows over its text.

        Args:
            part: a window, its position in its sequence, the length of that -> what is predicted
                from which positions.
            step: by which windows advance; 0: by half of them.
            before: segments in front of each window.
        """
        template, used = self.tokenizer.template, sum(map(len, before))
        special = template.num_special(len(before) + 1)
        room, begin = self.max_length - used - special, used + special - len(template.suffix)
        windows = sliding_windows(len(row), room, step or max(1, room // 2))

        def example(number: int) -> Example:
            window = windows[number]
            sequence = add_special_tokens([*before, row[window.start : window.end]], template)
            return _example(sequence, *part(window, begin, len(sequence.input_ids)))

        unit = Lazy(range(len(windows)), example)
        return Features(
            item, unit if len(unit) > 1 else [*unit], windows=windows, begin=begin, offsets=offsets
        )

    # --- where the answer to a question stands

    def _questions(self, items: list[Item]) -> Iterator[Features]:
        questions = self._tokens(item.texts[0] for item in items)
        contexts = self._arrays([item.texts[1] for item in items])
        for item, (whole, count), (row, offsets) in zip(items, questions, contexts, strict=True):
            question = whole[: min(self.max_question, self.max_length // 2)]
            part = partial(_answered, *_answer(item, offsets))
            found = self._in_windows(item, row, part, offsets, self.stride, [question])
            yield found._replace(num_truncated=count - len(question))

    # --- questions that are made from texts

    def clozes(self, items: Sequence[Item], count: int, seed: int) -> Iterator[ExampleGroup]:
        """`count` questions about the contexts of as many items: the answer is a phrase, a stretch
        of rare tokens; the question has some of the tokens around it, without order, 70 % of the
        rare and 30 % of the frequent ones. A text may go on in the next context. Lewis et al. 2019
        and Ram et al. 2021 make such questions from far more texts."""
        rng, template = keyed_rng("clozes", seed), self.tokenizer.template
        contexts = self.tokenizer.arrays([*dict.fromkeys(item.texts[1] for item in items[:count])])
        # contexts may have no tokens
        ids = np.concatenate([*(row for row, _ in contexts), [self.tokenizer.unk_id]])
        counts, room = np.bincount(ids)[ids], self.max_length - template.num_special(2)
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
            question, text = ids[rng.permutation(near)[: room // 3]], ids[start : start + length]
            sequence = add_special_tokens([question, text], template)
            begin = len(sequence.input_ids) - len(template.suffix) - len(text) - start
            yield [
                _example(
                    sequence, [*range(len(sequence.input_ids))], np.array([first, last]) + begin
                )
            ]


def _answered(first: int, last: int, window: Window, begin: int, length: int) -> tuple[Ids, Ids]:
    """What a window over a context predicts. first, last: the tokens of the answer, in the
    context."""
    inside = window.start <= first and last < window.end
    return np.arange(length), np.array(
        [first, last]
    ) - window.start + begin if inside else np.zeros(2, np.int64)


_TOGETHER = ("choice", "classification", "multilabel", "regression")


def training_groups(encoded: Features, task: str) -> list[ExampleGroup]:
    """What is learned from an item: choices and the texts of a pair belong together, windows do
    not; a window that predicts nothing is left out."""
    unit = encoded.unit
    return (
        [unit]
        if task in _TOGETHER
        else [unit[n : n + 1] for n, one in enumerate(unit) if len(one.target.positions)]
    )


def _example(sequence: TokenSequence, positions: Ids | list[int], labels: NDArray[Any]) -> Example:
    target = Target(np.asarray(positions, np.int64), labels)
    return Example(sequence.input_ids, sequence.token_type_ids, {"task": target})


def _answer(item: Item, offsets: Offsets) -> tuple[int, int]:
    """First and last token of the first answer; -1, which is in no window, where there is none."""
    if not item.label:
        return NO_TOKEN, NO_TOKEN
    start, text = item.label[0]
    covered = tokens_in_span(offsets, start, start + len(text))
    return (int(covered[0]), int(covered[-1])) if len(covered) else (NO_TOKEN, NO_TOKEN)
