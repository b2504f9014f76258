"""The examples of a pre-training: a corpus is cut into sequences, and their tokens are masked.

Sequences are pairs of segments (BERT, ALBERT), full sentences (RoBERTa), parts (ELECTRA), or words
without anything between them (static vectors).

The cuts depend on random numbers and on one another, so they are planned once, from lengths alone.
A plan has a few numbers per sequence; then any sequence is one look-up. A plan may be larger than
memory: it is made block by block and read from a memory map. `FORMATS` has a sampler for each
format.

- `Masker`: some tokens are predicted, from both sides (BERT); `NextTokens`: each token, from those
  before it (GPT)
- `ExampleStream`: example n of a run is a function of the seed and n, so that a run resumes at any
  number
"""

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice, pairwise, product
from random import Random
from typing import Annotated, ClassVar, Literal, cast

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from bertworks.batching.contexts import ContextConfig, ContextObjective, ContextWords
from bertworks.batching.examples import (
    Example,
    Ids,
    LanePlace,
    Target,
    TokenSequence,
    add_special_tokens,
    keyed_rng,
    shuffled_index,
)
from bertworks.batching.orders import Permuter
from bertworks.batching.spelled_words import SpelledWords
from bertworks.config import (
    Fraction,
    FractionAboveZero,
    FractionBelowOne,
    Range,
    Settings,
    Size,
    SizeOrZero,
)
from bertworks.errors import check, expect, require
from bertworks.text.shards import TokenStore
from bertworks.text.tokenizer import Template, Tokenizer

Plan = NDArray[np.int64]  # [rows, columns of the sampler]
PlanRows = Iterator[tuple[int, ...]]
Format = Literal[
    "next_sentence",
    "sentence_order",
    "full_sentences",
    "stream",
    "sentences",
    "one_segment",
    "parallel",
]
SINGLE_RATE = 0.1  # of sequences of one segment, in the format of this name
BLOCK = 1 << 16  # rows of a plan that are made at once


@dataclass(frozen=True, kw_only=True)
class SamplingConfig(Settings):
    """How a corpus is cut into sequences.

    format: "next_sentence" (Devlin et al. 2019, section 3.1); "sentence_order" (Lan et al. 2020,
    section 3.1: two segments that follow each other, in half of the pairs in the wrong order);
    "full_sentences" (Liu et al. 2019, section 4.2: whole sentences without pairs, crossing
    documents with an extra [SEP]); "stream": all tokens in the order of the text, cut into equal
    lengths, with the token that ends a text after each document (Radford et al. 2018, 2019);
    "sentences": the same without special tokens, and it is known which sentence a token is of, for
    static vectors (Mikolov et al. 2013); or "one_segment" (google-research/electra: a part of one
    document, nine of ten times divided into two segments).
    short_rate: fraction of the documents, or with "one_segment" of the sequences, that are cut to a
    random shorter length (`short_seq_prob`).
    copies: how often the corpus is cut, with other random numbers each time (`dupe_factor`).
    language_power: with several languages, each step has the text of one, which is drawn with a
        probability in proportion to its tokens to this power (Conneau and Lample 2019, section
        3.1).
    parallel_rate: fraction of the steps, evenly spread, with pairs of translations ("parallel":
        both sides between end marks, positions of the second from 0; section 3.3). Pairs longer
        than a sequence are left out. A network with a decoder has nothing else.
    lanes: with format "stream": the text is divided into as many lanes as a step has sequences, and
        each sequence of a step continues that of the step before in its lane (Dai et al. 2019,
        section 3.2). All lanes begin again in the same step, when they have been read. The last
        sequence of the text, which may be shorter, is left out.
    """

    format: Format = "next_sentence"
    short_rate: Fraction = 0.1
    copies: Size = 1
    language_power: Annotated[float, Range("a number from 0 to 1", lambda x: 0 <= x <= 1)] = 1.0
    parallel_rate: FractionBelowOne = 0.0
    lanes: bool = False

    def rules(self) -> Iterable[tuple[object, str]]:
        """Return what must hold, and the message if it does not."""
        yield (
            not self.lanes or (self.format == "stream" and not self.parallel_rate),
            f"lanes with format {self.format!r} and parallel_rate {self.parallel_rate}: expected "
            "format = 'stream' and parallel_rate = 0, or lanes = false",
        )


class Sampler(ABC):
    """The sequences of a format.

    `plan_blocks` cuts documents; sequence i is a look-up in `plan`.

    targets: names of the targets that each sequence has.
    segments: token types that it uses.
    columns: of a plan.
    needs: what to do with a corpus that has no sequence.

    Raises:
        UsageError: the length has no room for a token of each segment.
    """

    targets: ClassVar[tuple[str, ...]] = ()
    segments: ClassVar[int] = 2
    columns: ClassVar[int]
    needs: ClassVar[str] = "give more text"

    def __init__(
        self, store: TokenStore, c: SamplingConfig, max_length: int, template: Template, seed: int
    ):
        special = template.num_special(self.segments)
        expect(
            max_length >= special + self.segments,
            f"sequences of {max_length} tokens: special tokens and a token of each segment need "
            f"{special + self.segments}",
        )
        self.store = store
        self.config = c
        self.max_length = max_length
        self.template = template
        self.seed = seed
        self.room = max_length - special
        self.plan: Plan = np.zeros((0, self.columns), np.int64)

    def plan_blocks(self, documents: Ids) -> Iterator[Plan]:
        """Yield a plan of some documents, int64 [D'], in arrays of BLOCK rows.

        The same arguments give the same plan on every machine.

        Raises:
            BertworksError: the plan has no rows.
        """
        numbers = chain.from_iterable(self._plan_rows(documents))
        size = BLOCK * self.columns
        block = np.fromiter(islice(numbers, size), np.int64)
        require(len(block), "the corpus is too short for a single sequence", hint=self.needs)
        while len(block):
            yield block.reshape(-1, self.columns)
            block = np.fromiter(islice(numbers, size), np.int64)

    def make_plan(self, documents: Ids) -> Plan:
        """Return the same plan in memory, of a small corpus."""
        return np.concatenate(list(self.plan_blocks(documents)))

    def __len__(self) -> int:
        return len(self.plan)

    @abstractmethod
    def _plan_rows(self, documents: Ids) -> PlanRows: ...
    @abstractmethod
    def __getitem__(self, i: int) -> TokenSequence: ...


class Pairs(Sampler):
    """Two segments of whole sentences, which fill a sequence together.

    They are cut as by `create_pretraining_data.py` of google-research/bert. A plan row is five
    numbers: first and last token of A, of B, and the label of the pair.

    swaps: whether segments are swapped; else the second one is replaced.
    """

    columns = 5
    swaps: ClassVar[bool]

    def _plan_rows(self, documents: Ids) -> PlanRows:
        """Sentences are collected up to the target length and split at a random sentence."""
        sentences = np.asarray(self.store.sentences)
        edges = self.store.documents
        limits = np.stack([edges[documents], edges[documents + 1]], 1)  # first and last sentence
        for copy, d in product(range(self.config.copies), range(len(limits))):
            first, last = limits[d].tolist()
            coin = Random(f"pairs {self.seed} {copy} {first}").random
            starts = sentences[first : last + 1].tolist()
            count = last - first
            i = 0
            target = self.room
            if coin() < self.config.short_rate:
                # uniform from 2 to the budget, once per document
                target = 2 + int(coin() * (self.room - 1))
            while i < count:
                end = bisect_left(starts, starts[i] + target, lo=i + 1, hi=count)
                split = end if end - i == 1 else i + 1 + int(coin() * (end - i - 1))
                a = starts[i]
                b = starts[split]
                b_end = starts[end]
                i = end
                if self.swaps and b < b_end:
                    yield (b, b_end, a, b, 1) if coin() < 0.5 else (a, b, b, b_end, 0)
                elif not self.swaps and b < b_end and coin() >= 0.5:
                    yield a, b, b, b_end, 0
                elif not self.swaps:
                    i = split
                    # B begins at a random sentence of another document, and fills the sequence
                    other = int(coin() * (len(limits) - 1))
                    other_first, other_last = limits[other + (other >= d)].tolist()
                    start = other_first + int(coin() * (other_last - other_first))
                    begin = int(sentences[start])
                    filled = begin + target - (b - a)
                    stop = bisect_left(sentences, filled, lo=start + 1, hi=other_last)
                    yield a, b, begin, int(sentences[stop]), 1

    def __getitem__(self, i: int) -> TokenSequence:
        a, a_end, b, b_end, label = self.plan[i].tolist()
        a, a_end, b, b_end = truncate(
            a, a_end, b, b_end, self.room, lambda: keyed_rng("cut", self.seed, i)
        )
        target = Target(np.zeros(1, np.int64), np.array([label]))
        pair = [self.store.tokens[a:a_end], self.store.tokens[b:b_end]]
        return add_special_tokens(pair, self.template, dict.fromkeys(self.targets, target))


class NextSentencePairs(Pairs):
    """Pairs, of which half of the second segments come from another document.

    There must be such a document; the sentences that are replaced are used again. The label is that
    of next sentence prediction (0: B follows A; 1: it does not).
    """

    targets = ("next_sentence",)
    swaps = False


class SentenceOrderPairs(Pairs):
    """The segments of half of the pairs are swapped (Lan et al. 2020, section 3.1).

    The label is that of sentence order prediction (0: A comes first in the text; 1: B does). No
    sentence comes from another document: a chunk of one sentence is left out, where
    google-research/albert takes one.
    """

    targets = ("sentence_order",)
    swaps = True
    needs = (
        "give documents of two sentences or more, in lines of one document or paragraphs of "
        "one file"
    )


def truncate(
    a: int, a_end: int, b: int, b_end: int, budget: int, generator: Callable[[], Generator]
) -> tuple[int, int, int, int]:
    """Removes tokens of the longer segment, at random from its front or its back, until both fit.

    Of equally long ones the second counts as longer, as in the original.
    """
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
    """Whole sentences in the order of the text until the sequence is full.

    There is an extra [SEP] between documents. A sentence longer than a sequence is cut. A plan row
    is (sequence, first token, last token) of one piece; the numbers of the sequences are ascending,
    and none is left out.
    """

    segments = 1
    columns = 3

    def _plan_rows(self, documents: Ids) -> PlanRows:
        tail = len(self.template.suffix)  # of every piece
        full = self.max_length - len(self.template.prefix)
        number = 0
        room = full
        sentences = self.store.sentences
        edges = self.store.documents
        for d in documents.tolist():
            starts = sentences[edges[d] : edges[d + 1] + 1].tolist()
            piece = starts[0]
            for start, end in pairwise(starts):
                # does not fit: new sequence
                if end - piece + tail > room and (start > piece or room < full):
                    if start > piece:
                        yield number, piece, start
                    number = number + 1
                    room = full
                    piece = start
                while end - piece + tail > room:  # longer than a whole sequence
                    yield number, piece, piece + room - tail
                    number = number + 1
                    piece = piece + room - tail
            if starts[-1] > piece:
                yield number, piece, starts[-1]
                room -= starts[-1] - piece + tail
            if room < 1 + tail:
                number = number + 1
                room = full

    def __len__(self) -> int:
        return int(self.plan[-1, 0]) + 1 if len(self.plan) else 0

    def __getitem__(self, i: int) -> TokenSequence:
        pieces = [self.store.tokens[a:b] for a, b in self._pieces(i)]
        return add_special_tokens(pieces, self.template, one_type=True)

    def _pieces(self, i: int) -> list[list[int]]:
        """Return the rows of sequence i, without its number."""
        if not 0 <= i < len(self):
            raise IndexError(i)
        numbers = self.plan[:, 0]
        begin = bisect_left(numbers, i, lo=i)  # reads about twenty numbers of a mapped plan
        return cast(
            "list[list[int]]", self.plan[begin : bisect_right(numbers, i, lo=begin), 1:].tolist()
        )


class Stream(FullSentences):
    """Documents one after the other, cut where a sequence is full.

    A plan row is (sequence, first token, last token) of one piece, and 1 if the token that ends a
    text follows it.
    """

    columns = 4

    def _plan_rows(self, documents: Ids) -> PlanRows:
        number = 0
        room = self.max_length
        ending = len(self.template.suffix)
        for edges in self.store.sentences[
            self.store.documents[np.stack([documents, documents + 1], 1)]
        ].tolist():
            start, end = edges
            is_done = False
            while not is_done:
                size = min(end - start, room)
                is_done = start + size == end and room - size >= ending
                if size or is_done:
                    yield number, start, start + size, int(is_done)
                start = start + size
                room = room - size - ending * is_done
                if room < max(1, ending):
                    number = number + 1
                    room = self.max_length

    def __getitem__(self, i: int) -> TokenSequence:
        parts = [
            (self.store.tokens[a:b], self.template.suffix if ends else ())
            for a, b, ends in self._pieces(i)
        ]
        pieces = [np.asarray(piece, np.int64) for pair in parts for piece in pair]
        ids = np.concatenate(pieces)
        lengths = [len(piece) for piece in pieces]
        return TokenSequence(
            ids, np.zeros_like(ids), (np.arange(len(pieces)) % 2 == 1).repeat(lengths), {}
        )


class Sentences(FullSentences):
    """Documents one after the other without special tokens, cut where a sequence is full.

    The number of its sentence in the text is the token type of a token. A plan row is (sequence,
    first token, last token) of neighbouring documents.
    """

    needs = "give texts with words in them"

    def _plan_rows(self, documents: Ids) -> PlanRows:
        number = 0
        room = self.max_length
        for neighbours in np.split(documents, np.flatnonzero(np.diff(documents) != 1) + 1):
            edges = self.store.documents[[neighbours[0], neighbours[-1] + 1]]
            start, end = self.store.sentences[edges].tolist()
            while start < end:
                size = min(room, end - start)
                yield number, start, start + size
                start = start + size
                room = room - size
                if room == 0:
                    number = number + 1
                    room = self.max_length

    def __getitem__(self, i: int) -> TokenSequence:
        pieces = self._pieces(i)
        ids = np.concatenate([np.asarray(self.store.tokens[a:b], np.int64) for a, b in pieces])
        numbers = np.concatenate([self._sentences_of(a, b) for a, b in pieces])
        return TokenSequence(ids, numbers, np.zeros(len(ids), np.bool_), {})

    def _sentences_of(self, start: int, end: int) -> Ids:
        """Return the number of the sentence of each token from `start` to `end`: int64."""
        first, last = np.searchsorted(self.store.sentences, [start + 1, end])
        starts = np.asarray(self.store.sentences[first:last], np.int64)
        return np.searchsorted(starts, np.arange(start, end), side="right") + int(first)


class OneSegment(Sampler):
    """Sentences of one document, collected up to the length and divided into two segments.

    It is the method of `build_pretraining_dataset.py` of google-research/electra. The first half of
    the length is segment A, the rest segment B; one of ten sequences has no B. What does not fit at
    the end of a segment is left out. A plan row is four numbers: first and last token of A and of
    B.
    """

    columns = 4

    def _plan_rows(self, documents: Ids) -> PlanRows:
        sentences = self.store.sentences
        edges = self.store.documents
        special_of_one, special_of_two = (self.template.num_special(n) for n in (1, 2))
        for copy, d in product(range(self.config.copies), documents.tolist()):
            starts = sentences[edges[d] : edges[d + 1] + 1].tolist()
            coin = Random(f"segments {self.seed} {copy} {starts[0]}").random
            i = 0
            count = len(starts) - 1
            while i < count:
                target = self.max_length
                if coin() < self.config.short_rate:
                    target = 5 + int(coin() * (self.max_length - 4))  # uniform from 5 to the length
                end = bisect_left(starts, starts[i] + target, lo=i + 1, hi=count)
                a = starts[i]
                middle = a + (target - special_of_two) // 2
                split = end if coin() < SINGLE_RATE else i + 1  # first sentence of B
                # a sentence that crosses the middle belongs to A half of the time
                while split < end and (
                    starts[split + 1] < middle or (starts[split] < middle and coin() < 0.5)
                ):
                    split += 1
                b = starts[split]
                a_end = min(b, a + self.max_length - special_of_one)
                room = max(0, self.max_length - special_of_two - (a_end - a))
                yield a, a_end, b, min(starts[end], b + room)
                i = end

    def __getitem__(self, i: int) -> TokenSequence:
        a, a_end, b, b_end = self.plan[i].tolist()
        segments = [self.store.tokens[a:a_end], self.store.tokens[b:b_end]]
        return add_special_tokens(segments[: 1 + (b < b_end)], self.template)


class Parallel(Sampler):
    """Two sides of a document, each with the template around it.

    The number of the side is the token type. A plan row is three numbers: the first token of each
    side, and the end of the second.
    """

    columns = 3
    needs = "raise sequence_length, or give shorter pairs"

    @staticmethod
    def num_special(template: Template) -> int:
        """Return the number of special tokens of a pair."""
        return 2 * template.num_special() + len(template.start)

    def _plan_rows(self, documents: Ids) -> PlanRows:
        special = self.num_special(self.template)
        for d in documents.tolist():
            first, second, end = self.store.sentences[self.store.documents[d] :][:3].tolist()
            if end - first + special <= self.max_length:
                yield first, second, end

    def __getitem__(self, i: int) -> TokenSequence:
        target = self.template._replace(prefix=self.template.prefix + self.template.start)
        edges = pairwise(self.plan[i].tolist())
        sides = [
            add_special_tokens([self.store.tokens[a:b]], template)
            for (a, b), template in zip(edges, (self.template, target), strict=True)
        ]
        types = np.repeat([0, 1], [len(side.input_ids) for side in sides])
        ids, special = (np.concatenate([side[n] for side in sides]) for n in (0, 2))
        return TokenSequence(ids, types, special, {})


FORMATS: Mapping[Format, type[Sampler]] = {
    "next_sentence": NextSentencePairs,
    "sentence_order": SentenceOrderPairs,
    "full_sentences": FullSentences,
    "stream": Stream,
    "sentences": Sentences,
    "one_segment": OneSegment,
    "parallel": Parallel,
}


def make_sampler(
    store: TokenStore, c: SamplingConfig, max_length: int, template: Template, seed: int
) -> Sampler:
    """Return the sampler of a format. template: with "stream", its suffix ends a text."""
    return FORMATS[c.format](store, c, max_length, template, seed)


Spans = Annotated[
    tuple[float, ...], Range("probabilities", lambda x: bool(x) and min(x) >= 0 and sum(x) > 0)
]


@dataclass(frozen=True, kw_only=True)
class MaskingConfig(Settings):
    """Which tokens are predicted, and what the network sees in their place.

    rate: fraction of all tokens, special tokens counted, that is predicted; exactly, not on
        average.
    rounding: of the number of tokens: "nearest", or "random" to one of the two next ones, so that
        the mean is exact (fairseq: int(rate * n + u) with u from 0 to 1).
    special_tokens: "replacements": they can be drawn as random replacements, and are never
        predicted (the original BERT); "predicted": the other way round (fairseq).
    max_predictions: largest number of them (`max_predictions_per_seq`; 20 at length 128 in the
        original); 0: no limit.
    mask, random: fractions of the predicted tokens that become [MASK], or any token; the others
        stay unchanged.
    unit: what is chosen at once: a token, a whole word, or a span of words.
    frequency_power: with unit "token": weights of the draw are count ** power, of the counts in the
        text; 0: all equal; -0.7: rare tokens are drawn more often (Sanh et al. 2019).
    spans: with unit "span", the probabilities of 1, 2, ... words in a row.
    dynamic: new masks in every epoch (Liu et al. 2019), or the same for each copy, as if written to
        disk.
    """

    rate: FractionAboveZero = 0.15
    rounding: Literal["nearest", "random"] = "nearest"
    special_tokens: Literal["replacements", "predicted"] = "replacements"
    max_predictions: SizeOrZero = 0
    mask: float = 0.8
    random: float = 0.1
    unit: Literal["token", "whole_word", "span"] = "token"
    frequency_power: Annotated[float, Range("a number from -2 to 2", lambda x: -2 <= x <= 2)] = 0.0
    spans: Spans = (6 / 11, 3 / 11, 2 / 11)
    dynamic: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check(
            self.mask >= 0 and self.random >= 0 and self.mask + self.random <= 1,
            f"mask {self.mask} and random {self.random}: expected fractions that sum to at most 1",
        )
        is_token = self.unit == "token"
        unit = f"with unit {self.unit!r}: expected unit 'token'"
        check(is_token or self.special_tokens != "predicted", f"special_tokens 'predicted' {unit}")
        check(
            is_token or not self.frequency_power, f"frequency_power {self.frequency_power} {unit}"
        )


def num_predicted(c: MaskingConfig, length: int, generator: Generator) -> int:
    """Return the number of predicted tokens in a sequence of `length` tokens."""
    count = c.rate * length
    number = round(count) if c.rounding == "nearest" else int(count + generator.random())
    return min(max(1, number), c.max_predictions or length)


class NextTokens:
    """The objective by which each token but the first is predicted from those before it.

    It is that of Bengio et al. 2003 and Radford et al. 2018. dynamic: anew in every epoch. The
    token behind a sequence is predicted as well, where it is known.

    kind: the name of the target. With "translation" the tokens of the second side of a pair are
        predicted, all but its first one (Sutskever et al. 2014, section 2).
    """

    dynamic = False

    def __init__(self, kind: Literal["causal_lm", "translation"] = "causal_lm"):
        self.kind = kind

    def __call__(self, s: TokenSequence, generator: Generator) -> Example:
        """Return the sequence as an example, with the next tokens as targets."""
        first = int((s.token_type_ids == 0).sum()) if self.kind == "translation" else 0
        ids = s.input_ids if s.next_id is None else np.append(s.input_ids, s.next_id)
        target = Target(np.arange(first, len(ids) - 1), ids[first + 1 :])
        return Example(s.input_ids, s.token_type_ids, {self.kind: target, **s.targets})


class Masker:
    """Chooses the tokens that are predicted, and replaces them.

    starts_word: bool [vocab_size], which tokens begin a word. special_ids: of special tokens.
    replaces: whether there is a target "replaced_token": at the masked positions uniform numbers,
    float32 from 0 to below 1, by which a generator draws tokens. counts: int64 [vocab_size], of
    each token in the text; None: all equal.
    """

    def __init__(
        self,
        c: MaskingConfig,
        mask_id: int,
        starts_word: NDArray[np.bool_],
        special_ids: Collection[int] = (),
        replaces: bool = False,
        counts: NDArray[np.int64] | None = None,
    ):
        self.weights = None if counts is None else np.maximum(counts, 1) ** c.frequency_power
        self.config = c
        self.mask_id = mask_id
        self.starts_word = starts_word
        self.dynamic = c.dynamic
        self.replaces = replaces
        self.span_edges = np.cumsum(c.spans) / sum(c.spans)
        excluded = sorted(special_ids) if c.special_tokens == "predicted" else []
        self.replacements = np.delete(np.arange(len(starts_word)), excluded)

    def budget(self, length: int, generator: Generator) -> int:
        """Return the number of predicted tokens in a sequence of `length` tokens."""
        return num_predicted(self.config, length, generator)

    def __call__(self, s: TokenSequence, generator: Generator) -> Example:
        """Return the sequence as an example, with masked tokens as targets."""
        positions = (self._choose_tokens if self.config.unit == "token" else self._choose_words)(
            s, generator
        )
        input_ids = s.input_ids.copy()
        draws = generator.random(len(positions))
        input_ids[positions[draws < self.config.mask]] = self.mask_id
        other = positions[
            (draws >= self.config.mask) & (draws < self.config.mask + self.config.random)
        ]
        # The original draws from the whole vocabulary, special tokens too.
        input_ids[other] = self.replacements[
            generator.integers(len(self.replacements), size=len(other))
        ]
        targets = {"masked_lm": Target(positions, s.input_ids[positions]), **s.targets}
        if self.replaces:
            targets["replaced_token"] = Target(
                positions, generator.random(len(positions), np.float32)
            )
        return Example(input_ids, s.token_type_ids, targets)

    def _choose_tokens(self, s: TokenSequence, generator: Generator) -> Ids:
        candidates = np.flatnonzero(~s.special | (self.config.special_tokens == "predicted"))
        if self.weights is None:
            order = generator.permutation(candidates)
        # the first of exponential times with these rates: a draw without replacement (Efraimidis
        # 2006)
        else:
            times = (
                generator.standard_exponential(len(candidates))
                / self.weights[s.input_ids[candidates]]
            )
            order = candidates[np.argsort(times)]
        return np.sort(order[: self.budget(len(s.input_ids), generator)])

    def _choose_words(self, s: TokenSequence, generator: Generator) -> Ids:
        """Return words or spans in random order, as many as fit.

        One that no longer fits is skipped, because a smaller one may fit.
        """
        budget = self.budget(len(s.input_ids), generator)
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


TargetMaker = (
    NextTokens | Masker | Permuter | ContextWords | SpelledWords
)  # what a network reads of a sequence, and what it predicts


def make_targets(
    tokenizer: Tokenizer,
    config: MaskingConfig,
    kind: Literal[
        "masked_lm", "causal_lm", "permutation_lm", "translation", "forward_lm", ContextObjective
    ],
    replaces: bool = False,
    counts: NDArray[np.int64] | None = None,
    context: ContextConfig | None = None,
) -> TargetMaker:
    """Return what makes the targets of tokens: of masked ones, or of each next one.

    "permutation_lm": of some in a random order, see `Permuter`. "translation": of each next one of
    the second side of a pair. "skip_gram", "cbow": of the words
    around each. "forward_lm": of each word from both sides, see `SpelledWords`.

    replaces, counts: see `Masker`. context, counts: see `ContextWords`.

    Raises:
        BertworksError: masked ones, and the tokenizer has no mask token; words around words, and
            the text has none of the vocabulary.
    """
    if kind == "skip_gram" or kind == "cbow":
        assert counts is not None
        return ContextWords(kind, context or ContextConfig(), counts, tokenizer.special_ids)
    if kind == "forward_lm":
        return SpelledWords.of(tokenizer)
    if kind == "permutation_lm":
        return Permuter(partial(num_predicted, config), tokenizer.starts_word)
    if kind != "masked_lm":
        return NextTokens(kind)
    require(
        tokenizer.mask_id >= 0,
        "the tokenizer has no mask token",
        hint="choose a tokenizer with [MASK] or <mask>",
    )
    return Masker(
        config, tokenizer.mask_id, tokenizer.starts_word, tokenizer.special_ids, replaces, counts
    )


@dataclass(frozen=True)
class ExampleStream:
    """The sequences of a sampler, epoch after epoch, each in another order.

    lanes: 0, or the number of lanes into which the sequences are divided, in the order of the text.
        The lanes take turns, so that each one goes on after this number of sequences.

    Raises:
        BertworksError: there are fewer whole sequences than lanes.
    """

    sampler: Sampler
    targets: TargetMaker
    seed: int = 0
    lanes: int = 0

    def __post_init__(self) -> None:
        if not self.lanes:
            return
        count = len(self.sampler) - 1
        what = f"sequences of {self.sampler.max_length} tokens"
        require(
            count >= self.lanes,
            f"the text has {count:,} {what}, fewer than the {self.lanes:,} lanes in which it is "
            "to be read",
            hint="give more text, or choose shorter sequences, or fewer of them in a step",
        )
        require(
            len(self.sampler.template.suffix) <= 1,
            f"{len(self.sampler.template.suffix)} tokens end a text in this tokenizer, so that not "
            f"all sequences of a text that is read in lanes have {self.sampler.max_length} tokens",
            hint="choose a tokenizer with one such token",
        )

    @property
    def num_steps(self) -> int:
        """The sequences of each lane."""
        return (len(self.sampler) - 1) // self.lanes

    def __getitem__(self, n: int) -> Example:
        if self.lanes:
            return self._of_lane(*divmod(n, self.lanes))
        epoch, i = divmod(n, len(self.sampler))
        i = shuffled_index(i, len(self.sampler), self.seed, epoch)
        return self.targets(
            self.sampler[i], keyed_rng("mask", self.seed, epoch if self.targets.dynamic else 0, i)
        )

    def _of_lane(self, step: int, lane: int) -> Example:
        """Return the sequence of a lane in a step; the first token behind it is known, too."""
        epoch, place = divmod(step, self.num_steps)
        i = lane * self.num_steps + place
        sequence = self.sampler[i]._replace(next_id=int(self.sampler[i + 1].input_ids[0]))
        example = self.targets(
            sequence, keyed_rng("mask", self.seed, epoch if self.targets.dynamic else 0, i)
        )
        return example._replace(place=LanePlace(lane, place * self.sampler.max_length))
