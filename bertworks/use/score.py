"""How likely a model finds sentences: the pseudo-log-likelihood of a masked language model. It ranks sentences; it is
no probability of them, for what each token is asked with knows what stands on both sides of it."""

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypedDict

import numpy as np
from numpy.typing import NDArray

from bertworks.data.masking import Example
from bertworks.data.sampling import Ids, Special, frame
from bertworks.data.windows import around
from bertworks.errors import BertworksError
from bertworks.learn.inference import log_probabilities
from bertworks.learn.machine import Precision
from bertworks.learn.objectives import PretrainingModel
from bertworks.text.tokenizer import Tokenizer
from bertworks.use.fill import load_masked_lm

AT_ONCE = 256  # sentences that are cut into tokens together
COPIES = 4096  # of sentences, each with another mask, that are sorted by length and computed together


class Score(TypedDict):
    """What a model thinks of a sentence. Natural logarithms."""

    text: str
    score: float  # the sum of `log_probabilities`: 0 at best
    tokens: list[str]
    log_probabilities: list[float]  # of each token, where it is hidden and all others are seen


class _Sentence(NamedTuple):
    text: str
    ids: Ids
    copies: list[Example]


def score(
    model: str | Path,
    sentences: Iterable[str],
    *,
    within_word: bool = False,
    device: str = "auto",
    precision: Precision = "fp32",
) -> Iterator[Score]:
    """The pseudo-log-likelihood of each sentence (Salazar et al. 2020): every token is hidden in turn, and the
    logarithms of the probabilities that the model then gives it are added. Longer sentences have lower sums; compare
    sentences of one length, or `score / len(tokens)`. "[MASK]" in a sentence is mere text. Of a sentence longer than
    the model reads each token is asked with as much around it as fits.

    Args:
        within_word: together with a token hide the later pieces of its word, which else give it away (PLL-word-l2r,
            Kauf and Ivanova 2023).

    Raises:
        BertworksError: no such model, one without a masked-word head, or an empty sentence.
    """
    yield from scores_of(*load_masked_lm(model, device), sentences, within_word=within_word, precision=precision)


def scores_of(
    network: PretrainingModel,
    tokenizer: Tokenizer,
    sentences: Iterable[str],
    *,
    within_word: bool = False,
    precision: Precision = "fp32",
) -> Iterator[Score]:
    """`score` by a model that is loaded."""
    longest = network.encoder.config.max_position_embeddings
    for group in _groups(_encoded(sentences, tokenizer, longest, within_word)):
        told = log_probabilities(network, [copy for one in group for copy in one.copies], precision)
        ends = np.cumsum([len(one.ids) for one in group])
        for one, values in zip(group, np.split(told, ends[:-1]), strict=True):
            yield Score(
                text=one.text,
                score=float(values.sum()),
                tokens=[tokenizer.tokens[n] for n in one.ids],
                log_probabilities=values.tolist(),
            )


def _encoded(sentences: Iterable[str], tokenizer: Tokenizer, longest: int, within_word: bool) -> Iterator[_Sentence]:
    rest, number = iter(sentences), 0
    while texts := list(islice(rest, AT_ONCE)):
        for text, found in zip(texts, tokenizer.ids(texts), strict=True):
            number += 1
            if not found:
                raise BertworksError(f"sentence {number} has no word that could be scored: {text[:60]!r}")
            ids = np.array(found, np.int64)
            ends = _ends_of_words(ids, tokenizer.starts_word) if within_word else np.arange(1, len(ids) + 1)
            yield _Sentence(text, ids, [_hidden(ids, n, int(end), tokenizer, longest) for n, end in enumerate(ends)])


def _ends_of_words(ids: Ids, starts_word: NDArray[np.bool_]) -> Ids:
    """For each token the place behind its word."""
    starts = np.append(np.flatnonzero(starts_word[ids]), len(ids))
    return starts[np.searchsorted(starts, np.arange(len(ids)), side="right")]


def _hidden(ids: Ids, place: int, end: int, tokenizer: Tokenizer, longest: int) -> Example:
    """The sentence, or as much of it as fits around `place`, with the tokens from there to `end` hidden and the first
    of them asked."""
    begin, stop = around(place, place + 1, len(ids), longest - 2)
    hidden = ids.copy()
    hidden[place:end] = tokenizer.mask_id
    s = frame([hidden[begin:stop]], Special(tokenizer.cls_id, tokenizer.sep_id), -1)
    return Example(s.input_ids, s.token_type_ids, np.array([place - begin + 1]), ids[[place]], -1)


def _groups(encoded: Iterator[_Sentence]) -> Iterator[list[_Sentence]]:
    group: list[_Sentence] = []
    copies = 0
    for one in encoded:
        group.append(one)
        copies += len(one.ids)
        if copies >= COPIES:
            yield group
            group, copies = [], 0
    if group:
        yield group
