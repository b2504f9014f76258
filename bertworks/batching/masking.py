"""Which tokens of a sequence are predicted, and what the network reads in their place.

- `Masker`: some tokens, from both sides (BERT); `NextTokens`: each token, from those before it
  (GPT)
- `ExampleStream`: example n of a run is a function of the seed and n, so that a run resumes at any
  number
- `Batches`: the micro-batches of each step of a pre-training
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from bertworks.batching.batch import (
    Batch,
    Example,
    Ids,
    Target,
    TokenSequence,
    keyed_rng,
    shuffled_index,
    token_budget_batches,
)
from bertworks.batching.sampling import Sampler
from bertworks.config import Range, Settings, SizeOrZero
from bertworks.errors import check, require
from bertworks.text.tokenizer import Tokenizer

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

    rate: Annotated[float, Range("a fraction above 0, at most 1", lambda x: 0 < x <= 1)] = 0.15
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
        what = (
            f"mask {self.mask} and random {self.random}: expected fractions that sum to at most 1"
        )
        check(self.mask >= 0 and self.random >= 0 and self.mask + self.random <= 1, what)
        is_token = self.unit == "token"
        unit = f"with unit {self.unit!r}: expected unit 'token'"
        check(is_token or self.special_tokens != "predicted", f"special_tokens 'predicted' {unit}")
        check(
            is_token or not self.frequency_power, f"frequency_power {self.frequency_power} {unit}"
        )


class NextTokens:
    """The objective by which each token but the first is predicted from those before it.

    It is that of Bengio et al. 2003 and Radford et al. 2018. dynamic: anew in every epoch.
    """

    dynamic = False

    def __call__(self, s: TokenSequence, generator: Generator) -> Example:
        """Return the sequence as an example, with the next tokens as targets."""
        target = Target(np.arange(len(s.input_ids) - 1), s.input_ids[1:])
        return Example(s.input_ids, s.token_type_ids, {"causal_lm": target, **s.targets})


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
        count = self.config.rate * length
        number = (
            round(count) if self.config.rounding == "nearest" else int(count + generator.random())
        )
        return min(max(1, number), self.config.max_predictions or length)

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


TargetMaker = NextTokens | Masker  # what a network reads of a sequence, and what it predicts


def make_targets(
    tokenizer: Tokenizer,
    config: MaskingConfig,
    kind: Literal["masked_lm", "causal_lm"],
    replaces: bool = False,
    counts: NDArray[np.int64] | None = None,
) -> TargetMaker:
    """Return what makes the targets of tokens: of masked ones, or of each next one.

    replaces, counts: see `Masker`.

    Raises:
        BertworksError: masked ones, and the tokenizer has no mask token.
    """
    if kind == "causal_lm":
        return NextTokens()
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
    """The sequences of a sampler, epoch after epoch, each in another order."""

    sampler: Sampler
    targets: TargetMaker
    seed: int = 0

    def __getitem__(self, n: int) -> Example:
        epoch, i = divmod(n, len(self.sampler))
        i = shuffled_index(i, len(self.sampler), self.seed, epoch)
        return self.targets(
            self.sampler[i], keyed_rng("mask", self.seed, epoch if self.targets.dynamic else 0, i)
        )


@dataclass(frozen=True)
class Batches:
    """The batches of a pre-training.

    `batches(n)` is what this process computes in step n: its part of the same `batch_size`
    sequences, sorted by length (so that little is padded) and divided into micro-batches. There are
    at most as many processes as sequences.
    """

    stream: ExampleStream
    batch_size: int  # sequences in a step, over all processes
    micro_batch_tokens: int  # the largest number, with padding; one sequence may have more
    rank: int = 0
    world_size: int = 1

    def __call__(self, n: int) -> list[Batch]:
        """Return the micro-batches of this process in step n."""
        numbers = range(n * self.batch_size, (n + 1) * self.batch_size)[
            self.rank :: self.world_size
        ]
        return list(
            token_budget_batches([[self.stream[i]] for i in numbers], self.micro_batch_tokens)
        )
