"""BLEU and chrF: the scores are those of sacrebleu, also of every resample of the sentences."""

import gzip
import random
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.tokenizers import tokenizer_ja_mecab

from bertworks.errors import BertworksError
from bertworks.metrics import intervals
from bertworks.metrics.intervals import RowSums, middle, paired_difference, resampled
from bertworks.metrics.translation import TranslationMetric, bleu, chrf, has_sacrebleu

REFERENCES = [
    "Ein Mann reitet auf einem Pferd.",
    "Zwei Hunde (braun und weiß) spielen im Schnee, der tief ist.",
    "Eine Frau trägt einen roten Hut & lacht.",
    "Kinder sitzen am Tisch und essen 3,5 Äpfel.",
    "Niemand ist da.",
    "Ein Junge springt ins kalte Wasser des Sees.",
    "Ein Zug fährt durch die Berge.",
    "DREI MÄNNER bauen ein Haus aus Holz.",
]


def damaged(texts: list[str], seed: int = 0) -> list[str]:
    """Texts in which words are missing, repeated or in another case; some are empty."""
    draw = random.Random(seed)
    result = []
    for text in texts:
        words = [
            draw.choice([word, word, word, word.upper(), f"{word} {word}", ""])
            for word in text.split()
        ]
        if draw.random() < 0.2:
            words.reverse()
        result.append("" if draw.random() < 0.1 else " ".join(words))
    return result


def check_equal_to_sacrebleu(
    translations: list[str], references: list[str], **options: Any
) -> None:
    """Both metrics, their signatures and the scores of the sentences."""
    pairs: list[tuple[TranslationMetric, Any]] = [
        (bleu(translations, references, **options), BLEU(**options, force=True))
    ]
    options.pop("tokenize", None)
    pairs.append((chrf(translations, references, **options), CHRF(**options)))
    for metric, oracle in pairs:
        expected = oracle.corpus_score(translations, [references]).score
        assert metric.value == pytest.approx(expected, abs=1e-9)
        assert metric.signature == str(oracle.get_signature())
    sentence_scores = [
        CHRF(**options).sentence_score(text, [reference]).score
        for text, reference in zip(translations, references, strict=True)
    ]
    assert pairs[1][0].sentence_scores == pytest.approx(sentence_scores, abs=1e-9)


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("tokenize", ["13a", "intl", "zh", "char", "none"])
@pytest.mark.parametrize("seed", range(3))
def test_scores_are_those_of_sacrebleu(seed: int, tokenize: str, lowercase: bool) -> None:
    translations = damaged(REFERENCES, seed)
    check_equal_to_sacrebleu(translations, REFERENCES, tokenize=tokenize, lowercase=lowercase)
    assert 0 < bleu(translations, REFERENCES).value < 100


@pytest.mark.parametrize("pair", ["en-de/test.de", "en-ja/test.ja"])
def test_scores_of_real_texts_are_those_of_sacrebleu(data_folder: Path, pair: str) -> None:
    with gzip.open(data_folder / "parallel" / f"{pair}.gz", "rt", encoding="utf-8") as file:
        references = [line.rstrip("\n") for line in islice(file, 300)]
    for tokenize in ("13a", "char"):
        check_equal_to_sacrebleu(damaged(references), references, tokenize=tokenize)


def test_equal_and_unlike_texts_have_the_ends_of_the_scale() -> None:
    assert bleu(REFERENCES, REFERENCES).value == pytest.approx(100)
    assert chrf(REFERENCES, REFERENCES).value == pytest.approx(100)
    for translations in (["qqq"] * 8, [""] * 8):
        assert bleu(translations, REFERENCES).value == 0
        assert chrf(translations, REFERENCES).value == 0


def test_japanese_without_spaces_is_one_word_for_13a() -> None:
    references = ["彼は馬に乗っている。", "犬が雪の中で遊ぶ。"]
    translations = ["彼は馬に乗っていた。", "犬が雪の上で遊ぶ。"]
    assert bleu(translations, references).value == 0
    assert bleu(translations, references, tokenize="char").value > 50


def direct_scores(
    oracle: Any, translations: list[str], references: list[str], samples: int
) -> np.ndarray:
    """Of the texts of each resample, as `resampled` draws them, without any sums."""
    count = len(references)
    draws = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), samples)
    scores = []
    for times in draws:
        rows = np.repeat(np.arange(count), times)
        texts = [translations[row] for row in rows]
        scores.append(oracle.corpus_score(texts, [[references[row] for row in rows]]).score)
    return np.array(scores)


def test_intervals_are_those_of_a_direct_bootstrap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intervals, "SAMPLES", 60)
    first, second = (damaged(REFERENCES, seed) for seed in (1, 2))
    metrics: list[tuple[Any, Any]] = [(bleu, BLEU(force=True)), (chrf, CHRF())]
    for compute, oracle in metrics:
        expected = [direct_scores(oracle, texts, REFERENCES, 60) for texts in (first, second)]
        metric, other = (compute(texts, REFERENCES) for texts in (first, second))
        assert resampled(metric) == pytest.approx(expected[0], abs=1e-9)
        assert expected[0].std() > 1
        low, high = middle(resampled(metric))
        assert (low, high) == pytest.approx(np.quantile(expected[0], [0.025, 0.975]), abs=1e-9)
        difference, interval = paired_difference(metric, other)
        assert difference == pytest.approx(metric.value - other.value, abs=1e-12)
        ends = np.quantile(expected[0] - expected[1], [0.025, 0.975])
        assert interval == pytest.approx(ends, abs=1e-9)


def test_the_score_of_a_part_is_that_of_its_texts() -> None:
    translations = damaged(REFERENCES)
    whole = bleu(translations, REFERENCES)
    part = RowSums(whole.rows[2:6], whole.score)
    expected = BLEU(force=True).corpus_score(translations[2:6], [REFERENCES[2:6]]).score
    assert part.value == pytest.approx(expected, abs=1e-9)


def test_without_sacrebleu_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert has_sacrebleu()
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    assert not has_sacrebleu()
    for compute in (bleu, chrf):
        with pytest.raises(BertworksError, match="needs a package that is not installed") as error:
            compute(["a"], ["a"])
        assert error.value.hint == 'pip install "bertworks[translation]"'


def test_a_tokenizer_without_its_dictionary_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_ja_mecab, "MeCab", None)
    with pytest.raises(BertworksError, match="the tokenizer ja-mecab of sacrebleu") as error:
        bleu(["犬"], ["犬"], tokenize="ja-mecab")
    assert error.value.hint == 'pip install "sacrebleu[ja]"; or --tokenize char'
