"""The words around a word, from which static vectors are learned (Mikolov et al. 2013).

- `ContextConfig`: windows, negative words, subsampling
- `ContextWords`: a sequence -> blocks of words, each with the words around it, and negative words

A word and a word of its context are a pair. They are in one sentence, and in one block of BLOCK
words that subsampling has kept, so that the products of all pairs of a block are one product of
matrices. Pairs across the border of a block are left out.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Literal, get_args

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from bertworks.batching.examples import Example, Target, TokenSequence
from bertworks.config import Fraction, Range, Settings, Size
from bertworks.errors import require

ContextObjective = Literal["skip_gram", "cbow"]
CONTEXT_OBJECTIVES: frozenset[str] = frozenset(get_args(ContextObjective))
BLOCK = 64  # words; and as many negative words, which all words of the block share
NEGATIVES = "negatives"  # the name of the target that holds them


@dataclass(frozen=True, kw_only=True)
class ContextConfig(Settings):
    """The words around a word, which the objectives "skip_gram" and "cbow" read and predict.

    window: the largest distance of two words of a pair. For each word it is drawn from 1 to this
        number, so that near words count more.
    negatives: other words for each pair (skip_gram) or each word (cbow), on average.
    noise_power: negative words are drawn in proportion to count ** power.
    subsampling: t: a word with the share f of the text is kept with the probability sqrt(t / f) +
        t / f, as in word2vec's code; 0: all words are kept. Windows reach over words that are not
        kept.
    """

    window: Annotated[int, Range(f"1 to {BLOCK - 1}", lambda x: 1 <= x < BLOCK)] = 5
    negatives: Size = 5
    noise_power: Fraction = 0.75
    subsampling: Fraction = 1e-3


class ContextWords:
    """Chooses the words of a sequence, and how far the context of each reaches.

    The token type of a word is the number of its sentence. The target has for each word the place
    of the word in the sequence, and as label how many words before and after it are its context:
    int64 [m, 2]. m is a multiple of BLOCK: the last block is filled up with words without context.
    A second target, NEGATIVES, has as many negative words, those of a block in a row.

    kind: the name of the target.
    counts: int64 [vocab_size], of each token in the text of the training. Words that do not occur
        there are left out, as are unknown ones.
    special_ids: of special tokens, which are no words.

    Raises:
        BertworksError: the text has no word of the vocabulary.
    """

    dynamic = True

    def __init__(
        self,
        kind: ContextObjective,
        config: ContextConfig,
        counts: NDArray[np.int64],
        special_ids: Collection[int] = (),
    ):
        self.kind = kind
        self.window = config.window
        counts = counts.copy()
        counts[sorted(special_ids)] = 0
        require(
            counts.any(),
            "the vocabulary has none of the words of the text, so there is nothing to learn",
            hint="leave --tokenizer out: the words of the text are then the vocabulary; or name a "
            "text in the language of the tokenizer",
        )
        probability = np.ones(len(counts))
        if config.subsampling:
            ratio = config.subsampling * counts.sum() / np.maximum(counts, 1)
            probability = np.minimum(1, np.sqrt(ratio) + ratio)
        self.keep_probability = np.where(counts > 0, probability, 0.0)  # of each token
        noise = np.where(counts > 0, counts.astype(np.float64) ** config.noise_power, 0.0).cumsum()
        self._noise = noise / noise[-1]

    def __call__(self, s: TokenSequence, generator: Generator) -> Example:
        """Return the sequence as an example, with its blocks of words as targets."""
        words = np.flatnonzero(
            generator.random(len(s.input_ids)) < self.keep_probability[s.input_ids]
        )
        count = len(words)
        size = max(1, -(-count // BLOCK)) * BLOCK
        windows = generator.integers(1, self.window + 1, count)
        negatives = np.searchsorted(self._noise, generator.random(size), side="right")
        is_first = np.ones(count, np.bool_)  # of its sentence in its block
        is_first[1:] = np.diff(s.token_type_ids[words]) != 0
        is_first[::BLOCK] = True
        edges = np.append(np.flatnonzero(is_first), count)
        lengths = np.diff(edges)
        places = np.arange(count) - edges[:-1].repeat(lengths)
        reach = np.zeros((size, 2), np.int64)
        reach[:count, 0] = np.minimum(places, windows)
        reach[:count, 1] = np.minimum(lengths.repeat(lengths) - 1 - places, windows)
        positions = np.full(size, words[-1] if count else 0)
        positions[:count] = words
        targets = {
            self.kind: Target(positions, reach),
            NEGATIVES: Target(np.zeros(0, np.int64), negatives),
        }
        return Example(s.input_ids, s.token_type_ids, targets)
