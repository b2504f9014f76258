"""Join wrapped lines to paragraphs, and split text into sentences, by rules for all languages.

- `margin_of`, `separation`, `paragraphs`: the line breaks with a meaning. A hard-wrapped line
  breaks where the next word would not fit before the right margin; verse, headings, lists and
  tables break earlier and stay apart.
- `split_sentences`: the sentences of a document. Rules about characters, without training. In doubt
  they do not split: three sentences as a pair are a good example, half a sentence is not.
- `cut_text`: pieces of limited length
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import groupby
from operator import ne
from typing import Literal, NamedTuple

from bertworks.config import packaged_table
from bertworks.errors import UsageError

# Written as escapes: some of these characters turn into others when a file is normalised.
_WIDE = re.compile(
    r"[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe4f\uff00-\uff60\U00020000-\U0003fffd]+"
)
# Characters of scripts that write no spaces. Hangul is not among them.
_NO_SPACE = re.compile(
    r"[\u2e80-\ua4cf\uf900-\ufaff\ufe30-\ufe4f\uff01-\uff9f\U00020000-\U0003fffd]"
)
_ENDS_SENTENCE = re.compile(r"""[.!?…。．！？｡][\s"'”’»)\]）」』】*_]*$""")
_LIST_ITEM = re.compile(
    r"[*•‣◦▪■●・○◆+]\s|\d{1,3}[.)]\s|[(（][\da-zA-Z一-十]{1,3}[)）]|[①-⑳]|[|>#]"
)
_TABLE_GAP = re.compile(r"\S(?: {3}|\t|\.{6}|(?: \.){4}|…{3})")
_GAPS = ("   ", "\t", "......", ". . .", "………")  # parts of every such gap, which are faster to find
_HYPHENS = ("-", "\u2010", "\u00ad")
_WORD_BROKEN = re.compile(r"([^\W\d_]+)([-\u2010\u00ad])$")
_LETTERS = re.compile(r"[^\W\d_]+")
_WORDS = re.compile(r"[^\W\d_]+(?:[-‐][^\W\d_]+)*")

# Columns of a plausible right margin.
_NARROWEST = 30
_WIDEST = 132
_MAX_LINES = 10_000  # lines that are read to find the margin
_MIN_BREAKS = 4  # line breaks inside paragraphs that are needed to infer a margin
# Titles that a file of texts with titles has at least, and the columns of the longest one.
_MIN_TITLES = 3
# Blocks are documents if most of them are one line, and half of them are long.
_MOST_BLOCKS = 0.9
_LONG_BLOCK = 200  # characters
_LONGEST_TITLE = 100


def margin_of(lines: Sequence[str]) -> int | None:
    """Return the right margin in columns if the lines are hard-wrapped, else None.

    Japanese and Korean characters take two columns.

    Lines are hard-wrapped if most breaks inside a paragraph are where the next word did not fit,
    and most of these are inside a sentence.
    """
    lines = lines[:_MAX_LINES]
    lengths = [len(line) for line in lines if line]
    if sum(length > 2 * _WIDEST for length in lengths) > 0.02 * len(lengths):
        return None  # a fast check: most text is not wrapped
    stripped = [line.strip() for line in lines]
    widths = list(map(_width, stripped))
    filled = sorted(filter(None, widths))
    margin = filled[int(len(filled) * 0.98)] if len(filled) > _MIN_BREAKS else 0
    if not _NARROWEST <= margin <= _WIDEST:
        return None
    breaks = tight = through = capital = 0
    for line, width, following in zip(stripped, widths, stripped[1:]):
        if not line or not following:
            continue
        breaks += 1
        if _is_full(width, following, margin) and not _LIST_ITEM.match(following):
            tight += 1
            if not _ENDS_SENTENCE.search(line[-8:]):
                through += 1
                capital += following[:1].isupper()
    is_other = (
        breaks < _MIN_BREAKS
        or tight < 0.5 * breaks
        or through < 0.5 * tight
        or capital > 0.5 * through
    )
    return None if is_other else margin


class Separation(NamedTuple):
    """What ends a document in a plain text file.

    reason: in words. is_doubtful: blank lines stand between the paragraphs of one document, or
        between short documents: the lines do not tell. has_blocks: blank lines divide the text.
    """

    ends: Literal["blank_line", "title", "file"]
    reason: str
    is_doubtful: bool = False
    has_blocks: bool = True


def separation(lines: Sequence[str], margin: int | None) -> Separation:
    """Return what ends a document in a plain text file.

    It is inferred from a sample of the lines.

    Blank lines stand between documents where each has several unwrapped lines (a sentence or a
    paragraph per line, as in the original BERT's input); where they stand around nearly every line,
    between wrapped paragraphs or between stanzas, they separate paragraphs and the file is the
    document. Long lines between blank lines, such as abstracts, are documents. Where every second
    block is a short line that ends no sentence, it is the title of the next.
    """
    stripped = [line.strip() for line in lines]
    filled = list(filter(None, stripped))
    blocks = [list(block) for is_filled, block in groupby(stripped, bool) if is_filled]
    if len(blocks) <= 1:
        return Separation("file", "no blank lines", has_blocks=False)
    # one short line that does not end a sentence
    titles = [
        len(block) == 1
        and _width(block[0]) <= _LONGEST_TITLE
        and not _ENDS_SENTENCE.search(block[0][-8:])
        for block in blocks
    ]
    if sum(titles) >= _MIN_TITLES and sum(map(ne, titles, titles[1:])) >= 0.9 * (len(titles) - 1):
        return Separation(
            "title", "a line that ends no sentence stands between blank lines before every text"
        )
    if margin is not None:
        return Separation(
            "file", f"lines are wrapped at column {margin}; blank lines end paragraphs"
        )
    singles = sum(len(block) == 1 for block in blocks)
    lengths = sorted(sum(map(len, block)) for block in blocks)
    if singles >= _MOST_BLOCKS * len(blocks) and lengths[len(blocks) // 2] >= _LONG_BLOCK:
        return Separation("blank_line", "long lines between blank lines")
    if sorted(map(len, blocks))[len(blocks) // 2] < 2:
        return Separation("file", "blank lines stand after every paragraph", is_doubtful=True)
    ends = sum(_ENDS_SENTENCE.search(line[-8:]) is not None for line in filled) / len(filled)
    punctuated = sum(not mark.isalnum() for line in filled for mark in line[-1:]) / len(filled)
    if (
        ends < 0.5
        and punctuated > 0.1
        and sorted(map(_width, filled))[int(len(filled) * 0.95)] <= 64
    ):
        return Separation(
            "file", "short lines that do not end sentences, as in verse; blank lines end stanzas"
        )
    return Separation("blank_line", "blocks of several unwrapped lines between blank lines")


def paragraphs(lines: Sequence[str], margin: int | None) -> list[str]:
    """Return the stripped lines that have text; with a margin, joined into paragraphs."""
    if margin is None:
        return [stripped for line in lines if (stripped := line.strip())]
    words = cache(lambda: _words(lines))  # few texts need them
    joined: list[list[str]] = []  # the parts of each paragraph
    previous = ""
    for line in lines:
        stripped = line.strip()
        if stripped and previous and _continues(previous, line, margin):
            last = joined[-1].pop()
            joined[-1] += _join(last, stripped, words)
        elif stripped:
            joined.append([stripped])
        previous = line if stripped else ""
    return ["".join(parts) for parts in joined]


def cut_text(text: str, longest: int, *marks: str) -> Iterator[str]:
    """Yield consecutive pieces of at most `longest` characters.

    A piece ends after the first of the marks that occurs in its second half, at the last
    occurrence; else anywhere.
    """
    start = 0
    while len(text) - start > longest:
        end = start + longest
        ends = (text.rfind(mark, start + longest // 2, end) + 1 for mark in marks)
        cut = next(filter(None, ends), end)
        yield text[start:cut]
        start = cut
    yield text[start:]


def _continues(line: str, following: str, margin: int) -> bool:
    """Return whether two lines with text belong to one paragraph."""
    end = line.strip()
    start = following.strip()
    width = _width(end)
    if width > 1.3 * margin or (not start[0].isalpha() and _LIST_ITEM.match(start)):
        return False
    if (
        following[0].isspace()
        and _indentation(following) > _indentation(line)
        and not _LIST_ITEM.match(end)
    ):
        return False
    if any(gap in line or gap in following for gap in _GAPS) and (
        _TABLE_GAP.search(end) or _TABLE_GAP.search(start)
    ):
        return False
    if _is_full(width, start, margin):
        return True
    return start[0].islower() and width > 0.6 * margin and not _ENDS_SENTENCE.search(end[-8:])


def _join(line: str, following: str, words: Callable[[], set[str]]) -> tuple[str, str]:
    """Return two lines of a paragraph as one, without the line end and a hyphen of the page."""
    broken = _WORD_BROKEN.search(line[-40:]) if line.endswith(_HYPHENS) else None
    if broken and (rest := _LETTERS.match(following)):
        is_one_word = _is_one_word(broken[1].lower(), broken[2], rest[0], words)
        return line[:-1] if is_one_word else line, following
    if line.endswith(("—", "--")) or _is_unspaced(line[-1]) or _is_unspaced(following[0]):
        return line, following
    return line, " " + following


def _is_one_word(first: str, hyphen: str, rest: str, words: Callable[[], set[str]]) -> bool:
    """Return whether a hyphen at the end of a line belongs to the page, not to the word.

    "consid-eration" is one word, "short-sword" has a hyphen.

    The form that occurs elsewhere in the text is the right one.
    """
    if hyphen == "\u00ad" or rest[0].isupper():
        return hyphen == "\u00ad"
    rest = rest.lower()
    occurs_together = first + rest in words()
    occurs_apart = f"{first}-{rest}" in words()
    if occurs_together != occurs_apart:
        return occurs_together
    return not (first in words() and rest in words())


def _words(lines: Iterable[str]) -> set[str]:
    """Return the words of lines in lower case."""
    words: set[str] = set()
    broken = False  # the halves of a broken word do not count as words
    for line in lines:
        new = _WORDS.findall(line.lower())
        first = broken
        broken = line.rstrip().endswith(_HYPHENS)
        words.update(new[first : len(new) - broken])
    return words


def _is_full(width: int, following: str, margin: int) -> bool:
    """Return whether the first word of the next line did not fit into this one.

    Lines that are wrapped by hand may be a tenth shorter.
    """
    room = margin * 0.9 - width
    return room < 2 or (
        not _is_unspaced(following[0]) and 1 + _width(following[:24].split(" ", 1)[0]) > room
    )


def _is_unspaced(character: str) -> bool:
    """Return whether a character belongs to a script without spaces between words.

    These are kana, Chinese characters and their punctuation.
    """
    return not character.isascii() and _NO_SPACE.match(character) is not None


def _width(line: str) -> int:
    """Return the columns of a line."""
    return len(line) if line.isascii() else len(line) + sum(map(len, _WIDE.findall(line)))


def _indentation(line: str) -> int:
    """Return the number of characters of white space at the beginning of a line."""
    return len(line) - len(line.lstrip())


# Longer sentences, in characters, are divided at white space: tables, text without full stops.
LONGEST_SENTENCE = 4000
# Longer Japanese quotes, in characters, are split inside.
_LONGEST_QUOTE = 300

_CLOSERS = r"\"'”’»›)\]}*_」』）】〉》〕］｝"
_OPENERS = "\"'“‘«‹„‚([{¿¡*_-–—「『（【〈《〔［｛・"
# A line end, or a stop with the marks after it, and white space. It matches wherever its first
# character does, so that no character is read twice. One class at the front is three times as fast
# as two.
_STOP = re.compile(
    rf"[\n.!?…।؟۔。！？｡．](?:(?<=\n)|[.!?…。！？｡．{_CLOSERS}]*(?:\[\d{{1,3}}\])*)\s*"
)
_HALF_WIDTH = ".!?…।؟۔"
# Marks in front of an abbreviation: Minneapolis-St. Paul, (ca. 1900)
_JOINTS = re.compile(r"[-–—/(\[\"'“‘«„]+")
_ACRONYM = re.compile(r"(?:[^\W\d_]{1,2}\.)+[^\W\d_]{1,2}|Ph\.D|Sc\.D|Ed\.D|Pharm\.D")
_ENUMERATOR = re.compile(r"\d{1,3}|[IVXLC]{1,6}|[ivx]{1,5}|\d{1,3}(?:\.\d{1,3})+")
# A Korean sentence continues after a quote that ends with a stop: “…….” 라고 말했다.
_QUOTATIVE = re.compile(
    r"(?:이?라[고며는던]|이?란|하[고며는였]|이?었|였|했|고|며|[은는이가을를와과도의로])(?![.!?])"
)
# A Japanese sentence continues after a quote that ends with a stop: 「……。」と言った。
_CONTINUATION = re.compile(
    r"[とがはにをもので、，などやへ]|って|から|まで|だけ|より|か[、。]|[)）」』】〉》〕］]"
)


_TITLES, _ABBREVIATIONS, _BEFORE_NUMBERS, _STARTERS, _GERMAN_ORDINALS = (
    frozenset(words.split()) for words in packaged_table(__file__, "sentence_words.toml").values()
)


def split_sentences(text: str) -> list[str]:
    """Split a document into sentences, stripped and not empty.

    Together they hold every character of the text except white space, in order. The end of a line
    always ends a sentence, so headings are separate. Sentences longer than LONGEST_SENTENCE are
    divided at white space. Linear time.
    """
    if not isinstance(text, str):
        raise UsageError(
            f"expected one text, not {text!r:.60}", hint="split_sentences(text) for each text"
        )
    # No sentence begins with white space: each match includes the space after it.
    text = text.strip()
    sentences = []
    start = position = 0
    while match := _STOP.search(text, position):
        stop, end = match.span()
        position = end
        if end < len(text) and "\n" not in text[stop:end]:
            if stop - start < 2 and not text[start:stop].isalnum():
                continue  # punctuation alone is not a sentence: it begins the next one
            ends = _ends_half_width if text[stop] in _HALF_WIDTH else _ends_full_width
            if not ends(text, start, stop, end):
                continue
        sentences.append(text[start:end])
        start = end
    sentences.append(text[start:])
    if max(map(len, sentences)) > LONGEST_SENTENCE:
        marks = (" ", "　", "\t", "、", ",")
        sentences = [
            piece
            for sentence in sentences
            for piece in cut_text(sentence.strip(), LONGEST_SENTENCE, *marks)
        ]
    return list(filter(None, map(str.strip, sentences)))


def _ends_half_width(text: str, start: int, stop: int, end: int) -> bool:
    """Return whether a sentence from `start` ends with the stop in `text[stop:end]`.

    The slice includes white space and is not at the end of the text or of a line.
    """
    if not text[end - 1].isspace():
        return _ends_without_space(text, stop, end)
    if _is_hangul(text[stop - 1 : stop]):
        quoted = text[stop:end].rstrip()[-1] in "\"'”’»」』》〉"
        return not (quoted and _QUOTATIVE.match(text, end))
    following = _first_letter(text, end)
    if following.islower():
        return False
    if text[stop] != "." or text[stop + 1] == ".":
        return True
    # A full stop may belong to an abbreviation.
    begin = max(text.rfind(" ", max(start, stop - 24), stop) + 1, start)
    word = text[begin:stop]
    if begin == start:
        word = word.rsplit(None, 1)[-1] if word else ""  # after other white space
        if _ENUMERATOR.fullmatch(word):
            return False
    if not word.isalnum():
        word = _JOINTS.split(word)[-1]
    number_follows = following.isdecimal()
    if word in _TITLES or (number_follows and word in _BEFORE_NUMBERS):
        return False
    is_initial = len(word) == 1 and word.lower() != word.upper()
    if word in _ABBREVIATIONS or is_initial or ("." in word and _ACRONYM.fullmatch(word)):
        return not number_follows and _next_word(text, end) in _STARTERS
    return not word.isdecimal() or _next_word(text, end) not in _GERMAN_ORDINALS


def _ends_without_space(text: str, stop: int, end: int) -> bool:
    """Return whether a stop without a space after it ends a sentence.

    It does in Korean and Japanese, but not in decimals or addresses.
    """
    before = text[stop - 1 : stop]
    after = text[end]
    if _is_hangul(before) and _is_hangul(after):
        return (
            stop >= 2
            and _is_hangul(text[stop - 2])
            and before in "다요죠까네라지군음임"
            and text[stop] != "…"
        )
    is_unspaced = _is_unspaced(before) and _is_unspaced(after)
    return is_unspaced and text[stop] in "!?" and not _CONTINUATION.match(text, end)


def _ends_full_width(text: str, start: int, stop: int, end: int) -> bool:
    """Return whether a sentence from `start` ends with the full-width stop in `text[stop:end]`."""
    if text[stop] == "．" and not (
        stop and _is_unspaced(text[stop - 1]) and not text[stop - 1].isdecimal()
    ):
        return False  # a decimal or an enumeration: ３．１４
    quotes = ("「", "」"), ("『", "』"), ("（", "）")
    if end - start <= _LONGEST_QUOTE and any(
        text.count(opening, start, end) > text.count(closing, start, end)
        for opening, closing in quotes
    ):
        return False  # inside a quote
    closed = text[end - 1] not in "。！？｡．"
    return not (closed and not text[end - 1].isspace() and _CONTINUATION.match(text, end))


def _first_letter(text: str, position: int) -> str:
    """Return the first character from `position` that is not an opening mark.

    Only the next five characters of the line count.
    """
    near = text[position : position + 5].partition("\n")[0]
    return next(
        (character for character in near if character not in _OPENERS and not character.isspace()),
        "",
    )


def _next_word(text: str, position: int) -> str:
    """Return the first word from `position`, within 20 characters of the line."""
    match = _LETTERS.search(text[position : position + 20].partition("\n")[0])
    return match[0] if match else ""


def _is_hangul(character: str) -> bool:
    """Return whether a character is a syllable of Hangul."""
    return "가" <= character <= "힣"
