"""Continue a pre-training on the text of a domain (Chalkidis et al. 2020).

New words, and what a model gained.

- `extended_state`: the parameters of a model for a larger vocabulary
- `bits_batches`, `bits_per_character`: a figure that models of different vocabularies share

**Bits per character.** The sum of -log2 p over the predicted tokens of a text, divided by the
number of characters, other than white space, that these tokens stand for.

- Causal LM: all tokens, each given those before it in its window, which begins with the token that
  ends texts. Without such a token, the first one of a window is not predicted. An unknown token
  costs bits and stands for no character.
- Masked LM: 15 % of the words, drawn by their number in the document, so that tokenizers that find
  the same words have the same ones. All pieces of a drawn word are [MASK], and each is predicted
  from the rest: pseudo-bits, which are no code length. Words with an unknown token are never drawn.

It compares models of one objective on one text: before and after a training, vocabularies of
different sizes, a new model and a continued one. It does not compare a masked LM with a causal one,
nor masked LMs that find different words, such as WordPiece and SentencePiece. The masks show how
many pieces a word has, which favours small vocabularies a little; that its pieces are predicted
apart is against them, so new words lower the figure before any training. Windows follow the tokens,
so the context differs a little between vocabularies, but not before and after
`--extend-vocabulary`: both read the same windows.
"""

import math
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import chain, islice, pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bertworks.batching.batch import Batch, batches_by_length
from bertworks.batching.examples import Example, Ids, Target, add_special_tokens, keyed_rng
from bertworks.text.shards import TokenStore
from bertworks.text.tokenizer import Template, Tokenizer
from bertworks.training.device import Precision
from bertworks.training.loop import evaluate
from bertworks.training.objectives import PretrainingModel
from bertworks.training.recipe import TokenObjective

RATE = 0.15  # of the words, drawn for masked LM
SEED = 20201006  # of these words, the same in every run; the day on which LEGAL-BERT was published
AT_ONCE = 32  # windows of a batch
Word = tuple[int, ...]  # its tokens


class BitsBatches(NamedTuple):
    """Batches, and the number of characters that their predicted tokens stand for."""

    batches: list[Batch]
    characters: int


def extended_state(
    state: Mapping[str, Tensor], old: Tokenizer, new: Tokenizer, size: int
) -> dict[str, Tensor]:
    """Return the parameters with `size` tokens.

    The row of a new word in the token embeddings, and its bias, is the mean of those of its pieces
    in the old vocabulary; other rows stay as they are.
    """
    pieces = old.ids(new.tokens[old.vocab_size :])

    def extended(table: Tensor) -> Tensor:
        rows = table.new_zeros(max(size, len(table)), *table.shape[1:])
        rows[: len(table)] = table
        for number, ids in enumerate(pieces, old.vocab_size):
            rows[number] = table[ids].mean(0)
        return rows

    by_token = ("embeddings.token.weight", "lm_head.bias")
    return {
        name: extended(value) if name.endswith(by_token) else value for name, value in state.items()
    }


def bits_batches(
    store: TokenStore,
    documents: Ids,
    tokenizer: Tokenizer,
    template: Template,
    *,
    length: int,
    windows: int,
    kind: TokenObjective = "masked_lm",
    read_by: Tokenizer | None = None,
) -> tuple[BitsBatches, BitsBatches]:
    """Return up to `windows` windows of the documents of a store, for a model with its tokenizer.

    Also the same windows for one with the smaller vocabulary of `read_by` (None: the same
    tokenizer).

    length: of a window in tokens of the smaller vocabulary, with special tokens.
    """

    @cache
    def reread(word: Word) -> Word:
        if read_by is None or max(word) < read_by.vocab_size:
            return word
        return tuple(
            read_by.ids(["".join(tokenizer.tokens[n].removeprefix("##") for n in word)])[0]
        )

    @cache
    def size_of(word: Word) -> int:
        return len("".join(tokenizer.decode(word).split()))

    causal = kind == "causal_lm"
    begin = template.suffix[-1:] if causal else template.prefix
    room = length - (1 if causal else template.num_special())
    unknown = {tokenizer.unk_id, *tokenizer.special_ids}
    by_token = causal and tokenizer.starts_word.sum() <= len(tokenizer.special_ids)

    def windows_of(document: int) -> Iterator[list[tuple[Word, bool]]]:
        """Yield the words that fill a window, each with whether it is predicted.

        A word without room is left out; in vocabularies without signs of words, such as GPT's, each
        token is one.
        """
        first, last = store.sentences[store.documents[document : document + 2]]
        ids = np.asarray(store.tokens[first:last], np.int64)
        edges = np.unique(
            [0, *np.flatnonzero(tokenizer.starts_word[ids] | by_token), len(ids)]
        ).tolist()
        words = [tuple(ids[a:b].tolist()) for a, b in pairwise(edges)]
        draws = (keyed_rng("bits", SEED, document).random(len(words)) < RATE).tolist()
        window = list[tuple[Word, bool]]()
        used = 0
        for word, draw in zip(words, draws, strict=True):
            cost = len(reread(word))
            if cost > room:
                continue
            if used + cost > room:
                yield window
                window = []
                used = 0
            is_predicted = (
                bool(window or template.suffix) if causal else draw and unknown.isdisjoint(word)
            )
            window.append((word, is_predicted))
            used += cost
        yield window

    def example(window: list[tuple[Word, bool]]) -> Example:
        """Return a window, and the tokens that are predicted in it."""
        ids = np.array([number for word, _ in window for number in word], np.int64)
        positions = np.flatnonzero([is_predicted for word, is_predicted in window for _ in word])
        positions += len(begin)
        if causal:
            s = add_special_tokens([ids], Template(begin, (), ()))
            target = Target(positions - 1, s.input_ids[positions])
            return Example(s.input_ids[:-1], s.token_type_ids[:-1], {kind: target})
        s = add_special_tokens([ids], template)
        masked = s.input_ids.copy()
        masked[positions] = tokenizer.mask_id
        target = Target(positions, s.input_ids[positions])
        return Example(masked, s.token_type_ids, {kind: target})

    each = chain.from_iterable(map(windows_of, documents.tolist()))
    rows_of_model = [
        window
        for window in islice(each, windows)
        if any(is_predicted for _, is_predicted in window)
    ]
    characters = sum(
        size_of(word) for window in rows_of_model for word, is_predicted in window if is_predicted
    )
    read = [
        [(reread(word), is_predicted) for word, is_predicted in window] for window in rows_of_model
    ]
    own_batches, other_batches = (
        BitsBatches(batches_by_length(map(example, rows), AT_ONCE), characters)
        for rows in (rows_of_model, read)
    )
    return own_batches, other_batches


@torch.no_grad()
def bits_per_character(
    network: PretrainingModel, scored: BitsBatches, precision: Precision = "fp32"
) -> float:
    """Return the figure, of a text with a predicted character; of ELECTRA that of the generator."""
    (stats,) = evaluate(network.generator or network, scored.batches, precision).values()
    return stats.loss * stats.count / math.log(2) / scored.characters
