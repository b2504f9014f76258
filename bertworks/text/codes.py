"""Recognise values that are no language: dates and times, ids, user names, paths and addresses.

A column of such values is not the text of a row while there is another one.
"""

import re
import unicodedata
from collections.abc import Iterable

from bertworks.config import packaged_table


def _without_accents(word: str) -> str:
    """Return a word in lower case, without the accents on its letters."""
    decomposed = unicodedata.normalize("NFD", word.lower())
    return unicodedata.normalize(
        "NFC", "".join(c for c in decomposed if not unicodedata.combining(c))
    )


_WORDS = packaged_table(__file__, "codes.toml")
_DATE_WORDS = frozenset(_without_accents(" ".join(str(words) for words in _WORDS.values())).split())
# PDT, CEST, JST, MST; upper case only, for "east" ends in t as well
_TIME_ZONE = re.compile(r"[A-Z]{0,3}[SDE]?T")
_FILE = re.compile(r"\S+\.[A-Za-z][A-Za-z0-9]{0,4}")  # report.pdf, example.org, a.b.c
_PATH = re.compile(r"(?:[A-Za-z]:)?[\\/].*|~/.*|\.\.?[\\/].*|\S+[\\/]\S*[\\/]\S*", re.DOTALL)
_PATH_WITH_SPACES = re.compile(r"(?:[A-Za-z]:\\|\\\\|~/|\.\.?/|/(?=[^\n/]*/))[^\n]*\.\w{1,5}")
_ADDRESS = re.compile(
    r"\W*(?:[a-z][a-z0-9+.-]*://\S+|mailto:\S+|www\.\S+|[^\s@]+@[^\s@]+\.[^\s@]+|@\w+)\W*",
    re.IGNORECASE,
)
_NAMED_MAIL = re.compile(r"[^<>@]*<[^\s<>@]+@[^\s<>@]+>")  # Anna Berg <anna@example.org>
_NUMBER = re.compile(r"[\W\d_年月日時分秒년월일시분초]+")
# letters of ASCII with digits: user_17, 7c1e-4f, 2009-04-06T22:19:45Z
_MIXED = re.compile(r"(?=\D*\d)[!-~]+")
# Scripts without spaces between words: one of their texts may be a single run of characters.
_WITHOUT_SPACES = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]"
)


def is_code(value: str) -> bool:
    """Return whether a value is a code, not language.

    Codes are numbers, dates and times in words or digits, ids of letters with digits, paths, and
    addresses (URL, e-mail, name of a user after @).
    """
    if _NAMED_MAIL.fullmatch(value) or _PATH_WITH_SPACES.fullmatch(value):
        return True
    has_code = False
    for token in value.split():
        if _is_code_token(token):
            has_code = True
        elif not _is_word_of_dates(token):
            return False
    return has_code  # May and Sunday are words of texts too


def are_codes(values: Iterable[str]) -> bool:
    """Return whether nine of ten values, or more, are codes; values without text do not count."""
    texts = [value for value in values if value.strip()]
    return bool(texts) and sum(map(is_code, texts)) >= 0.9 * len(texts)


def is_single_word(value: str) -> bool:
    """Return whether a value is one word or name, in a script that writes spaces."""
    return len(value.split()) == 1 and not _WITHOUT_SPACES.search(value)


def _is_word_of_dates(token: str) -> bool:
    """Return whether a token belongs to a date or time: Monday, avril, PDT, (CEST), 2009年, 22h."""
    word = token.strip(".,;()[]-")
    if _TIME_ZONE.fullmatch(word):
        return True
    parts = re.findall(r"[^\W\d_]+(?:['.][^\W\d_]+)*", _without_accents(word))
    return bool(parts) and all(part in _DATE_WORDS for part in parts)


def _is_code_token(token: str) -> bool:
    """Return whether a word is a number, an id with digits, an address, a path or a file."""
    patterns = (_NUMBER, _MIXED, _ADDRESS, _PATH, _FILE)
    return any(pattern.fullmatch(token) for pattern in patterns)
