"""How a corpus is cut into sequences: BERT's pairs of segments, RoBERTa's full sentences, or ELECTRA's segments.

The cuts depend on random numbers and on one another, so they are planned once, from lengths alone. A plan has a few
numbers per sequence; then any sequence is one look-up. A plan may be larger than memory: it is made block by block and
read from a memory map. `FORMATS` has a sampler for each format. `Masker` chooses the tokens that are predicted.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice, pairwise, product
from random import Random
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from bertworks.config import Positive, Range, Settings
from bertworks.errors import BertworksError, UsageError
from bertworks.text.shards import TokenStore
from bertworks.text.tokenizer import Template, Tokenizer

Ids = NDArray[np.int64]
Plan = NDArray[np.int64]  # [rows, columns of the sampler]
Format = Literal["next_sentence", "full_sentences", "one_segment"]
Spans = Annotated[tuple[float, ...], Range("probabilities", lambda x: bool(x) and min(x) >= 0 and sum(x) > 0)]
SINGLE_RATE = 0.1  # of sequences of one segment, in the format of this name
BLOCK = 1 << 16  # rows of a plan that are made at once


@dataclass(frozen=True, kw_only=True)
class SamplingConfig(Settings):
    """How a corpus is cut into sequences.

    format: "next_sentence" (Devlin et al. 2019, section 3.1); "full_sentences" (Liu et al. 2019, section 4.2: whole
    sentences without pairs, crossing documents with an extra [SEP]); or "one_segment" (google-research/electra: a part
    of one document, nine of ten times divided into two segments).
    short_rate: fraction of the documents, or with "one_segment" of the sequences, that are cut to a random shorter
    length (`short_seq_prob`).
    copies: how often the corpus is cut, with other random numbers each time (`dupe_factor`).
    """

    format: Format = "next_sentence"
    short_rate: Annotated[float, Range("a fraction from 0 to 1", lambda x: 0 <= x <= 1)] = 0.1
    copies: Positive = 1


class Target(NamedTuple):
    """What an objective predicts from one sequence."""

    positions: Ids  # int64 [m], ascending: the tokens from which it is predicted
    labels: NDArray[Any]  # [m], or [m, number of labels]; spans: [2], start and end


class TokenSequence(NamedTuple):
    """A sequence with its special tokens, before tokens are masked."""

    input_ids: Ids  # int64 [n]
    token_type_ids: Ids  # int64 [n]
    special: NDArray[np.bool_]  # [n]: special tokens, which are never masked
    targets: Mapping[str, Target]  # those that the format gives


def keyed_rng(purpose: str, *address: int) -> Generator:
    """The random numbers of an address. The purpose is part of it, so that no two purposes share numbers."""
    return np.random.default_rng((int.from_bytes(purpose.encode(), "little"), *address))


def add_special_tokens(
    segments: Collection[NDArray[np.integer]],
    template: Template,
    targets: Mapping[str, Target] = MappingProxyType({}),
    one_type: bool = False,
) -> TokenSequence:
    """The segments, each [tokens], with the special tokens of a template around and between them: [all tokens]. The
    number of its segment is the token type of a token.
    With `one_type` they are pieces of one text: each ends with the suffix, and the token types are all 0."""
    ends = [template.suffix if one_type else template.between] * (len(segments) - 1) + [template.suffix]
    # Special tokens and segments take turns.
    pieces: list[Any] = [template.prefix, *chain.from_iterable(zip(segments, ends, strict=True))]
    lengths, numbers = [len(piece) for piece in pieces], np.arange(len(pieces))
    types = np.zeros_like(numbers) if one_type else np.maximum(numbers - 1, 0) // 2
    input_ids = np.concatenate([np.asarray(piece, np.int64) for piece in pieces])
    return TokenSequence(input_ids, types.repeat(lengths), (numbers % 2 == 0).repeat(lengths), targets)


class Sampler(ABC):
    """The sequences of a format. `plan_blocks` cuts documents; sequence i is a look-up in `plan`.

    targets: names of the targets that each sequence has.
    segments: token types that it uses.
    columns: of a plan.

    Raises:
        UsageError: the length has no room for a token of each segment.
    """

    targets: ClassVar[tuple[str, ...]]
    segments: ClassVar[int]
    columns: ClassVar[int]

    def __init__(self, store: TokenStore, c: SamplingConfig, max_length: int, template: Template, seed: int):
        special = template.num_special(self.segments)
        if max_length < special + self.segments:
            what = f"sequences of {max_length} tokens: special tokens and a token of each segment need"
            raise UsageError(f"{what} {special + self.segments}")
        self.store, self.config, self.max_length, self.template, self.seed = store, c, max_length, template, seed
        self.room = max_length - special
        self.plan: Plan = np.zeros((0, self.columns), np.int64)

    def plan_blocks(self, documents: Ids) -> Iterator[Plan]:
        """A plan of some documents, int64 [D'], in arrays of BLOCK rows. The same arguments give the same plan on
        every machine.

        Raises:
            BertworksError: the plan has no rows.
        """
        numbers = chain.from_iterable(self._plan_rows(documents))
        size = BLOCK * self.columns
        block = np.fromiter(islice(numbers, size), np.int64)
        if not len(block):
            raise BertworksError("the corpus is too short for a single sequence", hint="give more text")
        while len(block):
            yield block.reshape(-1, self.columns)
            block = np.fromiter(islice(numbers, size), np.int64)

    def make_plan(self, documents: Ids) -> Plan:
        """The same plan in memory, of a small corpus."""
        return np.concatenate(list(self.plan_blocks(documents)))

    def __len__(self) -> int:
        return len(self.plan)

    @abstractmethod
    def _plan_rows(self, documents: Ids) -> Iterator[tuple[int, ...]]: ...
    @abstractmethod
    def __getitem__(self, i: int) -> TokenSequence: ...


class NextSentencePairs(Sampler):
    """`create_pretraining_data.py` of google-research/bert. A plan row is five numbers: first and last token of A, of
    B, and the label of next sentence prediction (0: B follows A; 1: it does not). There are at least two documents: a
    wrong B comes from another one."""

    targets = ("next_sentence",)
    segments = 2
    columns = 5

    def _plan_rows(self, documents: Ids) -> Iterator[tuple[int, ...]]:
        """Sentences are collected up to the target length and split at a random sentence. Half of the second parts are
        replaced from another document; the sentences that they replace are used again."""
        sentences, edges = np.asarray(self.store.sentences), self.store.documents
        limits = np.stack([edges[documents], edges[documents + 1]], 1)  # first and last sentence
        for copy, d in product(range(self.config.copies), range(len(limits))):
            first, last = limits[d].tolist()
            coin = Random(f"pairs {self.seed} {copy} {first}").random
            starts = sentences[first : last + 1].tolist()
            count, i, target = last - first, 0, self.room
            if coin() < self.config.short_rate:
                target = 2 + int(coin() * (self.room - 1))  # uniform from 2 to the budget, once per document
            while i < count:
                end = bisect_left(starts, starts[i] + target, lo=i + 1, hi=count)
                split = end if end - i == 1 else i + 1 + int(coin() * (end - i - 1))
                if end - i == 1 or coin() < 0.5:
                    b, b_end = _random_sentences(sentences, limits, d, target - (starts[split] - starts[i]), coin)
                    yield starts[i], starts[split], b, b_end, 1
                    i = split
                else:
                    yield starts[i], starts[split], starts[split], starts[end], 0
                    i = end

    def __getitem__(self, i: int) -> TokenSequence:
        a, a_end, b, b_end, label = self.plan[i].tolist()
        a, a_end, b, b_end = truncate(a, a_end, b, b_end, self.room, lambda: keyed_rng("cut", self.seed, i))
        target = Target(np.zeros(1, np.int64), np.array([label]))
        pair = [self.store.tokens[a:a_end], self.store.tokens[b:b_end]]
        return add_special_tokens(pair, self.template, {"next_sentence": target})


def _random_sentences(
    sentences: Ids, limits: NDArray[np.int64], d: int, tokens: int, coin: Callable[[], float]
) -> tuple[int, int]:
    """First and last token of sentences of another document than d, from a random one on, up to `tokens`."""
    e = int(coin() * (len(limits) - 1))
    e += e >= d
    first, last = limits[e].tolist()
    start = first + int(coin() * (last - first))
    begin = int(sentences[start])
    return begin, int(sentences[bisect_left(sentences, begin + tokens, lo=start + 1, hi=last)])


def truncate(
    a: int, a_end: int, b: int, b_end: int, budget: int, generator: Callable[[], Generator]
) -> tuple[int, int, int, int]:
    """Removes tokens of the longer segment, at random from its front or its back, until both fit. Of equally long ones
    the second counts as longer, as in the original."""
    excess = a_end - a + b_end - b - budget
    if excess <= 0:
        return a, a_end, b, b_end
    for front in generator().random(excess) < 0.5:
        if a_end - a > b_end - b:
            a, a_end = (a + 1, a_end) if front else (a, a_end - 1)
        else:
            b, b_end = (b + 1, b_end) if front else (b, b_end - 1)
    return a, a_end, b, b_end


class FullSentences(Sampler):
    """Whole sentences in the order of the text until the sequence is full, with an extra [SEP] between documents. A
    sentence longer than a sequence is cut. A plan row is (sequence, first token, last token) of one piece; the numbers
    of the sequences are ascending, and none is left out."""

    targets = ()
    segments = 1
    columns = 3

    def _plan_rows(self, documents: Ids) -> Iterator[tuple[int, ...]]:
        tail = len(self.template.suffix)  # of every piece
        full = self.max_length - len(self.template.prefix)
        number, room = 0, full
        sentences, edges = self.store.sentences, self.store.documents
        for d in documents.tolist():
            starts = sentences[edges[d] : edges[d + 1] + 1].tolist()
            piece = starts[0]
            for start, end in pairwise(starts):
                if end - piece + tail > room and (start > piece or room < full):  # does not fit: new sequence
                    if start > piece:
                        yield number, piece, start
                    number, room, piece = number + 1, full, start
                while end - piece + tail > room:  # longer than a whole sequence
                    yield number, piece, piece + room - tail
                    number, piece = number + 1, piece + room - tail
            if starts[-1] > piece:
                yield number, piece, starts[-1]
                room -= starts[-1] - piece + tail
            if room < 1 + tail:
                number, room = number + 1, full

    def __len__(self) -> int:
        return int(self.plan[-1, 0]) + 1 if len(self.plan) else 0

    def __getitem__(self, i: int) -> TokenSequence:
        if not 0 <= i < len(self):
            raise IndexError(i)
        numbers = self.plan[:, 0]
        begin = bisect_left(numbers, i, lo=i)  # reads about twenty numbers of a mapped plan
        pieces = self.plan[begin : bisect_right(numbers, i, lo=begin), 1:].tolist()
        return add_special_tokens([self.store.tokens[a:b] for a, b in pieces], self.template, one_type=True)


class OneSegment(Sampler):
    """`build_pretraining_dataset.py` of google-research/electra: sentences of one document are collected up to the
    length. The first half of the length is segment A, the rest segment B; one of ten sequences has no B. What does not
    fit at the end of a segment is left out. A plan row is four numbers: first and last token of A and of B."""

    targets = ()
    segments = 2
    columns = 4

    def _plan_rows(self, documents: Ids) -> Iterator[tuple[int, ...]]:
        sentences, edges = self.store.sentences, self.store.documents
        for copy, d in product(range(self.config.copies), documents.tolist()):
            starts = sentences[edges[d] : edges[d + 1] + 1].tolist()
            coin, i, count = Random(f"segments {self.seed} {copy} {starts[0]}").random, 0, len(starts) - 1
            while i < count:
                target = self.max_length
                if coin() < self.config.short_rate:
                    target = 5 + int(coin() * (self.max_length - 4))  # uniform from 5 to the length
                end = bisect_left(starts, starts[i] + target, lo=i + 1, hi=count)
                yield self._segments(starts[i : end + 1], target, coin)
                i = end

    def _segments(self, starts: list[int], target: int, coin: Callable[[], float]) -> tuple[int, int, int, int]:
        """A row. starts: first tokens of the sentences, and the end of the last one."""
        one, two = (self.template.num_special(n) for n in (1, 2))
        half, split = (target - two) // 2, 1  # sentences of A
        if coin() < SINGLE_RATE:
            split = len(starts) - 1
        while split < len(starts) - 1:  # a sentence that crosses the middle belongs to A half of the time
            size, longer = (starts[n] - starts[0] for n in (split, split + 1))
            if longer >= half and not (size < half and coin() < 0.5):
                break
            split += 1
        a_end = min(starts[split], starts[0] + self.max_length - one)
        b_end = min(starts[-1], starts[split] + max(0, self.max_length - two - (a_end - starts[0])))
        return starts[0], a_end, starts[split], b_end

    def __getitem__(self, i: int) -> TokenSequence:
        a, a_end, b, b_end = self.plan[i].tolist()
        segments = [self.store.tokens[a:a_end], self.store.tokens[b:b_end]]
        return add_special_tokens(segments[: 1 + (b < b_end)], self.template)


FORMATS: Mapping[Format, type[Sampler]] = {
    "next_sentence": NextSentencePairs, "full_sentences": FullSentences, "one_segment": OneSegment,
}  # fmt: skip


def make_sampler(store: TokenStore, c: SamplingConfig, max_length: int, template: Template, seed: int) -> Sampler:
    """The sampler of a format."""
    return FORMATS[c.format](store, c, max_length, template, seed)


@dataclass(frozen=True, kw_only=True)
class MaskingConfig(Settings):
    """Which tokens are predicted, and what the network sees in their place.

    rate: fraction of all tokens, special tokens counted, that is predicted; exactly, not on average.
    max_predictions: largest number of them (`max_predictions_per_seq`; 20 at length 128 in the original); 0: no limit.
    mask, random: fractions of the predicted tokens that become [MASK], or any token; the others stay unchanged.
    unit: what is chosen at once: a token, a whole word, or a span of words.
    spans: with unit "span", the probabilities of 1, 2, ... words in a row.
    dynamic: new masks in every epoch (Liu et al. 2019), or the same for each copy, as if written to disk.
    """

    rate: Annotated[float, Range("a fraction above 0, at most 1", lambda x: 0 < x <= 1)] = 0.15
    max_predictions: Annotated[int, Range("a number of tokens, or 0", lambda x: x >= 0)] = 0
    mask: float = 0.8
    random: float = 0.1
    unit: Literal["token", "whole_word", "span"] = "token"
    spans: Spans = (6 / 11, 3 / 11, 2 / 11)
    dynamic: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mask < 0 or self.random < 0 or self.mask + self.random > 1:
            raise ValueError(f"mask {self.mask} and random {self.random}: expected fractions that sum to at most 1")


class Example(NamedTuple):
    """A sequence that a network reads, and what is predicted from it, by name."""

    input_ids: Ids  # int64 [n]
    token_type_ids: Ids  # int64 [n]
    targets: Mapping[str, Target]

    @property
    def target(self) -> Target:
        """The target of an example that has only one."""
        (target,) = self.targets.values()
        return target


class Masker:
    """starts_word: bool [vocab_size], which tokens begin a word.
    replaces: whether there is a target "replaced_token": at the masked positions uniform numbers, float32 from 0 to
        below 1, by which a generator draws tokens.
    """

    def __init__(self, c: MaskingConfig, mask_id: int, starts_word: NDArray[np.bool_], replaces: bool = False):
        self.config, self.mask_id, self.starts_word, self.replaces = c, mask_id, starts_word, replaces
        self.span_edges = np.cumsum(c.spans) / sum(c.spans)

    def budget(self, length: int) -> int:
        """The number of predicted tokens in a sequence of `length` tokens."""
        return min(max(1, round(self.config.rate * length)), self.config.max_predictions or length)

    def __call__(self, s: TokenSequence, generator: Generator) -> Example:
        positions = (self._choose_tokens if self.config.unit == "token" else self._choose_words)(s, generator)
        input_ids, draws = s.input_ids.copy(), generator.random(len(positions))
        input_ids[positions[draws < self.config.mask]] = self.mask_id
        other = positions[(draws >= self.config.mask) & (draws < self.config.mask + self.config.random)]
        # From the whole vocabulary, special tokens too, as the original does.
        input_ids[other] = generator.integers(len(self.starts_word), size=len(other))
        targets = {"masked_lm": Target(positions, s.input_ids[positions]), **s.targets}
        if self.replaces:
            targets["replaced_token"] = Target(positions, generator.random(len(positions), np.float32))
        return Example(input_ids, s.token_type_ids, targets)

    def _choose_tokens(self, s: TokenSequence, generator: Generator) -> Ids:
        return np.sort(generator.permutation(np.flatnonzero(~s.special))[: self.budget(len(s.input_ids))])

    def _choose_words(self, s: TokenSequence, generator: Generator) -> Ids:
        """Words or spans in random order; one that no longer fits is skipped, because a smaller one may fit."""
        budget = self.budget(len(s.input_ids))
        # A segment starts a word, even if it was cut within one, and so does every special token.
        starts = s.special | np.roll(s.special, 1) | self.starts_word[s.input_ids]
        edges = np.append(np.flatnonzero(starts), len(s.input_ids))
        words = generator.permutation(np.flatnonzero(~s.special[edges[:-1]]))
        sizes = np.ones(len(words), np.int64)
        if self.config.unit == "span":
            sizes += np.searchsorted(self.span_edges, generator.random(len(words)), side="right")
        closed = s.special.copy()  # chosen, or never masked
        ends = edges[np.minimum(words + sizes, len(edges) - 1)]
        for first, end in zip(edges[words].tolist(), ends.tolist(), strict=True):
            if end - first <= budget and not closed[first:end].any():
                closed[first:end] = True
                budget -= end - first
                if budget == 0:
                    break
        return np.flatnonzero(closed & ~s.special)


def make_masker(tokenizer: Tokenizer, config: MaskingConfig, replaces: bool = False) -> Masker:
    """The masking policy over a tokenizer's ids. replaces: see `Masker`.

    Raises:
        BertworksError: the tokenizer has no mask token.
    """
    if tokenizer.mask_id < 0:
        raise BertworksError("the tokenizer has no mask token", hint="choose a tokenizer with [MASK] or <mask>")
    return Masker(config, tokenizer.mask_id, tokenizer.starts_word, replaces)
