"""BLEU and chrF of translations, computed by sacrebleu (Post 2018), an optional dependency.

- `bleu`: Papineni et al. 2002; `chrf`: Popović 2015
- `has_sacrebleu`: whether it is installed

The statistics of a sentence are counts, whose sums over sentences decide the score of a corpus. So
a metric is a `RowSums`: the score of a part of the sentences, its bootstrap interval and paired
differences need no text.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np

from bertworks.errors import BertworksError, optional_import
from bertworks.metrics.intervals import Array, RowSums

EXTRA = '"bertworks[translation]"'
# Those tokenizers of sacrebleu that read no file from the network.
Tokenization = Literal["13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "none"]


@dataclass(frozen=True)
class TranslationMetric(RowSums):
    """A metric of translations, from 0 to 100, as a function of counts of n-grams.

    Attributes:
        signature: the version and the settings with which sacrebleu computes the same score.
    """

    signature: str = field(kw_only=True)

    @property
    def sentence_scores(self) -> Array:
        """The score of each sentence alone: float64 [sentences]."""
        return self.score(self.rows)


def has_sacrebleu() -> bool:
    """Return whether sacrebleu is installed."""
    return find_spec("sacrebleu") is not None


def bleu(
    translations: Sequence[str],
    references: Sequence[str],
    *,
    lowercase: bool = False,
    tokenize: Tokenization = "13a",
) -> TranslationMetric:
    """Return BLEU of texts and one reference each (Papineni et al. 2002).

    Args:
        lowercase: whether upper and lower case are the same.
        tokenize: how texts are divided into words: "13a" as in the program of WMT, "zh", "ja-mecab"
            and "ko-mecab" for Chinese, Japanese and Korean, "char" into characters.

    Raises:
        BertworksError: sacrebleu is not installed, or a package that this tokenizer needs.
    """
    with optional_import("BLEU", EXTRA):
        from sacrebleu import BLEU
    try:
        # `force` concerns only a warning about texts that look tokenized.
        metric = BLEU(lowercase=lowercase, tokenize=tokenize, force=True)
    except RuntimeError as error:
        raise BertworksError(
            f"the tokenizer {tokenize} of sacrebleu needs packages that are not installed",
            hint=f'pip install "sacrebleu[{tokenize[:2]}]"; or --tokenize char',
        ) from error
    return _metric(metric, translations, references)


def chrf(
    translations: Sequence[str], references: Sequence[str], *, lowercase: bool = False
) -> TranslationMetric:
    """Return chrF of texts and one reference each: F2 of n-grams of 1 to 6 characters.

    White space does not count, as in Popović 2015.

    Args:
        lowercase: whether upper and lower case are the same.

    Raises:
        BertworksError: sacrebleu is not installed.
    """
    with optional_import("chrF", EXTRA):
        from sacrebleu import CHRF
    return _metric(CHRF(lowercase=lowercase), translations, references)


def _metric(
    metric: Any, translations: Sequence[str], references: Sequence[str]
) -> TranslationMetric:
    """Return a metric of sacrebleu as a function of its counts.

    No public method of sacrebleu separates the counts from the score. Its own bootstrap is made of
    these two.
    """
    counts = metric._extract_corpus_statistics(translations, [references])

    def score(sums: Array) -> Array:
        return np.array([metric._compute_score_from_stats(row).score for row in sums.tolist()])

    signature = str(metric.get_signature())
    return TranslationMetric(np.array(counts, np.float64), score, signature=signature)
