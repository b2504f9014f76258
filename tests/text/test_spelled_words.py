"""Vocabularies of words that ELMo reads by their spelling: they split texts as it does."""

from pathlib import Path

import numpy as np
import pytest

from bertworks.batching.examples import TokenSequence, keyed_rng
from bertworks.batching.spelled_words import SpelledWords
from bertworks.errors import UsageError
from bertworks.text.tokenizer import SPELLING_BYTES, Template, Tokenizer, spelling_tokenizer
from bertworks.text.vocabulary import VocabularyConfig, train_vocabulary
from tests.support.fine import tokenizer

TEXTS = [
    'He can\'t say "no" (U.S.). He said 3,000.5 :-)',
    "Ärger, ärger  Cafe\u0301 café\t日本語\n😀 a😀b \U0010ffff \U000e0001",
    "x" * 47 + "é" + "y" * 30 + " " + "z" * 300,
    "a\0b \ud800 [UNK] <spelling> [CLS]",
]


@pytest.fixture(scope="module")
def made() -> Tokenizer:
    config = VocabularyConfig(size=500, algorithm="spelled_words", lowercase=False, min_frequency=1)
    vocabulary, report = train_vocabulary(TEXTS, config, workers=1)
    assert report.algorithm == "spelled_words"
    return vocabulary


def test_words_are_those_of_the_network(made: Tokenizer, tmp_path: Path):
    made.save(tmp_path)
    spelling = spelling_tokenizer(2048)
    for vocabulary in (made, Tokenizer.load(tmp_path)):
        assert vocabulary.has_spelled_words
        assert vocabulary.unk_id == 0
        assert vocabulary.special_ids == {0}
        assert vocabulary.template == Template((), (), ())
        assert vocabulary.starts_word.all()
        words = SpelledWords.of(vocabulary)
        for ids, spelled in zip(vocabulary.ids(TEXTS), spelling.ids(TEXTS), strict=True):
            numbers = np.array(ids)
            sequence = TokenSequence(numbers, numbers * 0, numbers < 0, {})
            example = words(sequence, keyed_rng("test"))
            known = numbers != 0
            assert (example.input_ids[known] == spelling.array(spelled)[known]).all()
            assert (example.input_ids[~known] == b"").all()
            assert len(numbers) == len(spelled)
            for target in example.targets.values():
                assert (target.labels == numbers).all()
    # of all texts only what is no character is unknown
    counts = [ids.count(0) for ids in made.ids(TEXTS)]
    assert counts == [0, 0, 0, 1]


def test_case_accents_and_signs_stay(made: Tokenizer):
    assert {"Ärger", "ärger", "Cafe\u0301", "café", "ca", "n't", "U.S.", "3,000.5"} <= {
        *made.tokens
    }
    assert [made.tokens[n] for n in made.ids(["He can't"])[0]] == ["He", "ca", "n't"]
    assert made.tokens.index("He") < made.tokens.index("Ärger")  # the more frequent one is first
    assert made.ids(["[UNK] unheard-of"])[0][1] != 0  # text is no special token
    long = SpelledWords.of(made).spellings
    assert max(map(len, long)) == SPELLING_BYTES


def test_other_tokenizers_are_not_of_spelled_words():
    assert not tokenizer().has_spelled_words
    assert not spelling_tokenizer(512).has_spelled_words
    config = VocabularyConfig(size=50, algorithm="words", min_frequency=1)
    words, _ = train_vocabulary(["some words of a text"], config, workers=1)
    assert not words.has_spelled_words
    with pytest.raises(UsageError, match="keep their case") as caught:
        VocabularyConfig(algorithm="spelled_words")
    assert caught.value.hint == "give --algorithm spelled_words --cased"
