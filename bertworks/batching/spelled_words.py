"""Words that a network reads by their spelling, and predicts from both sides.

- `DirectedObjective`: the two objectives
- `SpelledWords`: makes their targets
"""

from typing import Any, Literal, Self, get_args

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from bertworks.batching.examples import Example, Target, TokenSequence
from bertworks.text.tokenizer import SPELLED, Tokenizer

DirectedObjective = Literal["forward_lm", "backward_lm"]
DIRECTED_OBJECTIVES: tuple[DirectedObjective, ...] = get_args(DirectedObjective)


class SpelledWords:
    """The objectives by which each word is predicted from those on each side of it.

    They are the two of Peters et al. 2018, section 3.1. The network gets the spelling of each word,
    as it does where the trained model is used.

    dynamic: anew in every epoch.
    spellings: SPELLED [vocab_size], of each token.
    """

    dynamic = False

    def __init__(self, spellings: NDArray[Any]):
        self.spellings = spellings

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Self:
        """Return what makes the targets of a tokenizer with spelled words.

        Its first token, the unknown word, has the empty spelling, which no word of a text has.
        """
        _, *words = tokenizer.tokens
        return cls(np.array([b"", *tokenizer.spelled(words)], SPELLED))

    def __call__(self, s: TokenSequence, generator: Generator) -> Example:
        """Return the sequence as an example, with all of its words as targets of both."""
        words = Target(np.arange(len(s.input_ids)), s.input_ids)
        targets: dict[str, Target] = dict.fromkeys(DIRECTED_OBJECTIVES, words)
        return Example(self.spellings[s.input_ids], s.token_type_ids, {**targets, **s.targets})
