"""Tokens that are predicted in a random order.

- `Permuter`: makes the targets of permutation language modelling
"""

from collections.abc import Callable

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from bertworks.batching.examples import Example, Ids, Target, TokenSequence

# The name of the ranks among the targets of a sequence; no objective has it.
RANK = "rank"
UNRANKED = -1  # tokens that all others read
_LONGEST = 5  # words of a span
_CONTEXT = 6  # words and tokens around a span, for each of its words


class Permuter:
    """The objective by which tokens are predicted in a random order (Yang et al. 2019).

    Spans of one to five words are chosen, n words with a probability in proportion to 1 / n, each
    at a random place within 6 n tokens, until there are as many as the rate asks for; what is
    missing at the end of a sequence is drawn one by one (`_sample_mask` in the authors' code). The
    chosen tokens and the special ones then get a rank in a random order. A token reads those of
    lower ranks and all that have none, and is predicted from these (section 2.3, partial
    prediction). Special tokens are not predicted.

    dynamic: anew in every epoch.
    budget: the number of predicted tokens of a sequence, of its length and random numbers.
    starts_word: bool [vocab_size], which tokens begin a word.
    """

    dynamic = True

    def __init__(self, budget: Callable[[int, Generator], int], starts_word: NDArray[np.bool_]):
        self.budget = budget
        self.starts_word = starts_word
        sizes = np.arange(1, _LONGEST + 1)
        self._edges = np.cumsum(1 / sizes) / (1 / sizes).sum()

    def __call__(self, s: TokenSequence, generator: Generator) -> Example:
        """Return the sequence as an example, with the chosen tokens as targets, and all ranks."""
        positions = self._chosen(s, generator)
        rank = np.full(len(s.input_ids), UNRANKED)
        ranked = np.sort(np.concatenate([positions, np.flatnonzero(s.special)]))
        rank[ranked] = generator.permutation(len(ranked))
        targets = {
            "permutation_lm": Target(positions, s.input_ids[positions]),
            **s.targets,
            RANK: Target(np.arange(len(rank)), rank),
        }
        return Example(s.input_ids, s.token_type_ids, targets)

    def _chosen(self, s: TokenSequence, generator: Generator) -> Ids:
        """Return the tokens that are predicted, ascending. At least one stays without a rank."""
        ordinary = np.flatnonzero(~s.special)
        most = max(1, len(ordinary) - 1)
        goal = min(self.budget(len(s.input_ids), generator), most)
        # A segment starts a word, even if it was cut within one, and so does every special token.
        starts = s.special | np.roll(s.special, 1) | self.starts_word[s.input_ids]
        edges = np.append(np.flatnonzero(starts), len(s.input_ids))
        chosen = np.zeros(len(s.input_ids), np.bool_)
        place = 0
        count = 0
        while count < goal and place < len(chosen):
            size = 1 + int(np.searchsorted(self._edges, generator.random(), side="right"))
            size = min(size, goal - count)
            before = int(generator.integers(_CONTEXT * size))
            number = int(np.searchsorted(edges, place + before))
            if number + size >= len(edges):
                break
            first = edges[number]
            end = edges[number + size]
            if end - first <= goal - count and not s.special[first:end].any():
                chosen[first:end] = True
                count += int(end - first)
            place = int(end) + _CONTEXT * size - before
        rest = generator.permutation(ordinary[~chosen[ordinary]])
        chosen[rest[: goal - count]] = True
        return np.flatnonzero(chosen)
