"""Which tokens of a sequence are masked and predicted (Devlin et al. 2019, section 3.1 and appendix A.1)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from bertworks.batching.sampling import Ids, Target, TokenSequence


@dataclass(frozen=True, kw_only=True)
class MaskingConfig:
    """Which tokens are predicted, and what the network sees in their place.

    rate: fraction of all tokens, special tokens counted, that is predicted; exactly, not on average.
    max_predictions: largest number of them (`max_predictions_per_seq`; 20 at length 128 in the original); 0: no limit.
    mask, random: fractions of the predicted tokens that become [MASK], or any token; the others stay unchanged.
    unit: what is chosen at once: a token, a whole word, or a span of words.
    spans: with unit "span", the probabilities of 1, 2, ... words in a row.
    dynamic: new masks in every epoch (Liu et al. 2019), or the same for each copy, as if written to disk.
    """

    rate: float = 0.15
    max_predictions: int = 0
    mask: float = 0.8
    random: float = 0.1
    unit: Literal["token", "whole_word", "span"] = "token"
    spans: tuple[float, ...] = (6 / 11, 3 / 11, 2 / 11)
    dynamic: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise ValueError(f"rate is {self.rate}: expected a fraction above 0, at most 1")
        if self.mask < 0 or self.random < 0 or self.mask + self.random > 1:
            raise ValueError(f"mask {self.mask} and random {self.random}: expected fractions that sum to at most 1")
        if self.max_predictions < 0:
            raise ValueError(f"max_predictions is {self.max_predictions}: expected a number of tokens, or 0")
        if not self.spans or min(self.spans) < 0 or sum(self.spans) <= 0:
            raise ValueError(f"spans is {self.spans}: expected probabilities")


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
    """starts_word: bool [vocab_size], which tokens begin a word."""

    def __init__(self, c: MaskingConfig, mask_id: int, starts_word: NDArray[np.bool_]):
        self.config, self.mask_id, self.starts_word = c, mask_id, starts_word
        self.span_edges = np.cumsum(c.spans) / sum(c.spans)

    def budget(self, length: int) -> int:
        """The number of predicted tokens in a sequence of `length` tokens."""
        budget = max(1, round(self.config.rate * length))
        return min(self.config.max_predictions, budget) if self.config.max_predictions else budget

    def __call__(self, s: TokenSequence, generator: Generator) -> Example:
        choose = self._choose_tokens if self.config.unit == "token" else self._choose_words
        positions = choose(s, generator)
        input_ids, draws = s.input_ids.copy(), generator.random(len(positions))
        input_ids[positions[draws < self.config.mask]] = self.mask_id
        other = positions[(draws >= self.config.mask) & (draws < self.config.mask + self.config.random)]
        # From the whole vocabulary, special tokens too, as the original does.
        input_ids[other] = generator.integers(len(self.starts_word), size=len(other))
        masked_lm = Target(positions, s.input_ids[positions])
        return Example(input_ids, s.token_type_ids, {"masked_lm": masked_lm, **s.targets})

    def _choose_tokens(self, s: TokenSequence, generator: Generator) -> Ids:
        candidates = np.flatnonzero(~s.special)
        return np.sort(generator.permutation(candidates)[: self.budget(len(s.input_ids))])

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
