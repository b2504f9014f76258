"""Vocabularies of whole words: those of a text, and those that another program has chosen."""

from pathlib import Path

import pytest

from bertworks.errors import UsageError
from bertworks.text.corpus import CorpusReader
from bertworks.text.corpus_report import corpus_report
from bertworks.text.shards import write_shards
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.vocabulary import VocabularyConfig, train_vocabulary
from bertworks.text.whole_words import UNKNOWN, tokenizer_of_words

TEXT = ["The sun, the SUN; the moon's light! Café déjà-vu 1492 sun moon moon rare"]


def words_of(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.tokens[number] for number in tokenizer.ids([text])[0]]


def test_the_most_frequent_words_are_the_vocabulary() -> None:
    config = VocabularyConfig(size=1000, algorithm="words", min_frequency=2)
    tokenizer, report = train_vocabulary(TEXT, config, workers=1)
    assert tokenizer.tokens[5:] == ["moon", "sun", "the"]
    assert words_of(tokenizer, "The moon, (SUN). It's rare - the end") == [
        "the",
        "moon",
        "sun",
        "[UNK]",
        "[UNK]",
        "[UNK]",
        "the",
        "[UNK]",
    ]
    assert any("not in the vocabulary" in note for note in report.notes)
    assert not report.warnings
    small = VocabularyConfig(size=7, algorithm="words", min_frequency=1)
    assert train_vocabulary(TEXT, small, workers=1)[0].tokens[5:] == ["moon", "sun"]


def test_each_token_begins_a_word(tmp_path: Path) -> None:
    """The report of a corpus counts words, and expects that rare ones are unknown."""
    config = VocabularyConfig(size=1000, algorithm="words", min_frequency=2)
    text = [*TEXT, "the moon and the sun"] * 30
    tokenizer, _ = train_vocabulary(TEXT * 2, config, workers=1)
    assert tokenizer.has_whole_words
    assert tokenizer.starts_word.all()
    (tmp_path / "a.txt").write_text("\n\n".join(text))
    shards = write_shards(
        CorpusReader([tmp_path / "a.txt"]), tokenizer, tmp_path / "shards", workers=1
    )
    report = corpus_report(shards)
    assert report.tokens_per_word == 1
    assert 0 < report.unknown_share < 0.1
    assert not any("a word takes" in line or "[UNK]" in line for line in report.warnings)


def test_a_long_text_has_the_words_of_its_parts() -> None:
    config = VocabularyConfig(size=1000, algorithm="words", min_frequency=1)
    tokenizer, _ = train_vocabulary(TEXT, config, workers=1)
    long = " ".join(TEXT * 20_000)
    assert tokenizer.ids([long])[0] == tokenizer.ids(TEXT)[0] * 20_000


def test_a_text_without_frequent_words_is_refused() -> None:
    config = VocabularyConfig(algorithm="words", min_frequency=9)
    with pytest.raises(UsageError, match="no word of the text occurs 9 times"):
        train_vocabulary(TEXT, config, workers=1)


@pytest.mark.parametrize(
    ("words", "text", "expected"),
    [
        (["sun", "moon"], "The Sún, moon", [UNKNOWN, "sun", "moon"]),
        (["Sun", "moon"], "sun Sun, MOON", [UNKNOWN, "Sun", UNKNOWN]),
        (["sun", ",", "."], "sun, sun.", ["sun", ",", "sun", "."]),
        (["café", "sun"], "Café cafe", ["café", UNKNOWN]),
        (["u.s.", "new_york"], "u.s. new_york sun", ["u.s.", "new_york", UNKNOWN]),
    ],
)
def test_how_text_is_cut_is_inferred_from_the_words(
    words: list[str], text: str, expected: list[str]
) -> None:
    tokenizer, notes = tokenizer_of_words([UNKNOWN, *words], 1 << 20)
    assert words_of(tokenizer, text) == expected
    assert len(notes) == 1


def test_words_that_no_text_can_have_are_counted() -> None:
    _, notes = tokenizer_of_words([UNKNOWN, "sun", "moon", "two words"], 1 << 20)
    assert notes[1].endswith("1 of 3")
