"""Tokenizers of which each token is a whole word; all other words are unknown.

- `word_splitter`: a text -> the words between white space and punctuation
- `tokenizer_of_words`: words that another program has chosen -> a tokenizer
"""

import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from bertworks.text.tokenizer import Tokenizer

UNKNOWN = "[UNK]"


def word_splitter() -> pre_tokenizers.PreTokenizer:
    """Return what cuts a text into the words between white space and punctuation."""
    removed = pre_tokenizers.Punctuation(behavior="removed")
    return pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), removed])


class _Candidate(NamedTuple):
    """A tokenizer, what it does with punctuation, and how many of the words it finds."""

    tokenizer: Tokenizer
    description: str
    num_found: int


def tokenizer_of_words(words: Sequence[str], max_length: int) -> tuple[Tokenizer, list[str]]:
    """Return a tokenizer with these words as tokens, and notes on what was inferred.

    Text is lower-cased if no word has capitals, and loses accents if no word has any. It is cut at
    white space, and at punctuation in the one of three ways that finds most of the words: marks are
    left out, are words, or are parts of words. A word is found if the text of the word alone
    becomes its token.

    Args:
        words: different ones, UNKNOWN among them.
        max_length: `model_max_length` of the tokenizer.
    """
    ids = {word: number for number, word in enumerate(words)}
    known_words = [word for word in words if word != UNKNOWN]
    lowercase = all(word == word.lower() for word in known_words)
    strips_accents = lowercase and not any(map(_has_accent, known_words))

    def candidate(description: str, splitter: pre_tokenizers.PreTokenizer) -> _Candidate:
        library = tokenizers.Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN))
        library.normalizer = normalizers.BertNormalizer(
            lowercase=lowercase, strip_accents=strips_accents, handle_chinese_chars=False
        )
        library.pre_tokenizer = splitter
        library.add_special_tokens([UNKNOWN])
        tokenizer = Tokenizer(library.to_str(), model_max_length=max_length)
        ids_of_words = zip(known_words, tokenizer.ids(known_words), strict=True)
        num_found = sum(numbers == [ids[word]] for word, numbers in ids_of_words)
        return _Candidate(tokenizer, description, num_found)

    candidates = [
        candidate("punctuation is left out", word_splitter()),
        candidate("each mark of punctuation is a word", pre_tokenizers.BertPreTokenizer()),
        candidate("punctuation is a part of the words", pre_tokenizers.WhitespaceSplit()),
    ]
    best = max(candidates, key=lambda c: c.num_found)  # the first one of equal ones
    case = "lower-cased" if lowercase else "left as it is"
    accents = " and loses its accents" if strips_accents else ""
    notes = [f"inferred from the words: text is {case}{accents}, and {best.description}"]
    missing = len(known_words) - best.num_found
    if missing:
        notes.append(
            f"words that no text can have, because it is cut at white space and punctuation: "
            f"{missing:,} of {len(known_words):,}"
        )
    return best.tokenizer, notes


def _has_accent(word: str) -> bool:
    """Return whether a word has a character with a mark that can be stripped."""
    if word.isascii():
        return False
    return any(map(unicodedata.combining, unicodedata.normalize("NFD", word)))
