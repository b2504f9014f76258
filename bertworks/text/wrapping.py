r"""Lines back into paragraphs: which line breaks mean something and which only ended the line of a page. And
where text that is too long is cut.

A hard-wrapped line is recognised by what wrapping does: it breaks where the next word would not have fitted before the
right margin. Verse, headings, lists and tables break earlier, so they stay apart. Nothing here reads files.
"""

import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Literal

# Written as escapes: some of these characters turn into others when a file is normalised.
_WIDE = re.compile(
    r"[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe4f\uff00-\uff60\U00020000-\U0003fffd]+"
)
_NO_SPACE = re.compile(r"[\u2e80-\ua4cf\uf900-\ufaff\ufe30-\ufe4f\uff01-\uff9f\U00020000-\U0003fffd]")  # no Hangul
_ENDS_SENTENCE = re.compile(r"""[.!?…。．！？｡][\s"'”’»)\]）」』】*_]*$""")
_LIST_ITEM = re.compile(r"[*•‣◦▪■●・○◆+]\s|\d{1,3}[.)]\s|[(（][\da-zA-Z一-十]{1,3}[)）]|[①-⑳]|[|>#]")
_TABLE_GAP = re.compile(r"\S(?: {3}|\t|\.{6}|(?: \.){4}|…{3})")
_GAPS = ("   ", "\t", "......", ". . .", "………")  # one of these stands in every such gap: quicker to look for
_HYPHENS = ("-", "\u2010", "\u00ad")
_WORD_BROKEN = re.compile(r"([^\W\d_]+)([-\u2010\u00ad])$")
_FIRST_LETTERS = re.compile(r"[^\W\d_]+")
_WORDS = re.compile(r"[^\W\d_]+(?:[-‐][^\W\d_]+)*")

_NARROWEST, _WIDEST = 30, 132  # columns between which a right margin is believed
_MOST_LINES = 10_000  # more than these do not change the judgement
_FEWEST_BREAKS = 4  # line breaks inside paragraphs below which a margin is not guessed


def margin_of(lines: Sequence[str]) -> int | None:
    """The right margin (columns; Japanese and Korean characters take two) if the lines are hard-wrapped, else None.

    Believed when most breaks inside a paragraph stand where the next word did not fit any more, and most of those cut
    through a sentence.
    """
    lines = lines[:_MOST_LINES]
    lengths = [len(line) for line in lines if line]
    if sum(length > 2 * _WIDEST for length in lengths) > 0.02 * len(lengths):
        return None  # most text is not wrapped: this is the quick way to see it
    widths = [_width(line.strip()) for line in lines]
    filled = sorted(width for width in widths if width)
    if len(filled) <= _FEWEST_BREAKS:
        return None
    margin = filled[int(len(filled) * 0.98)]
    if not _NARROWEST <= margin <= _WIDEST:
        return None
    breaks = tight = through = capital = 0
    for index in range(len(lines) - 1):
        if not widths[index] or not widths[index + 1]:
            continue
        line, following = lines[index].strip(), lines[index + 1].strip()
        breaks += 1
        if _is_full(widths[index], following, margin) and not _LIST_ITEM.match(following):
            tight += 1
            if not _ENDS_SENTENCE.search(line[-8:]):
                through += 1
                capital += following[:1].isupper()
    if breaks < _FEWEST_BREAKS or tight < 0.5 * breaks or through < 0.5 * tight or capital > 0.5 * through:
        return None
    return margin


def separation(lines: Sequence[str], margin: int | None) -> tuple[Literal["blank_line", "file"], str]:
    """What ends a document in a plain text file of which these lines are a sample, and why, in words.

    Blank lines stand between documents where each has several unwrapped lines (a sentence or a paragraph per line, as
    in the original BERT's input); where they stand around nearly every line, between wrapped paragraphs or between
    stanzas, they separate paragraphs and the file is the document.
    """
    blocks: list[int] = []
    size = 0
    for line in [*lines, ""]:
        if line.strip():
            size += 1
        elif size:
            blocks.append(size)
            size = 0
    filled = [line.strip() for line in lines if line.strip()]
    if len(blocks) <= 1:
        return "file", "no blank lines"
    if margin is not None:
        return "file", f"lines are wrapped at column {margin}; blank lines end paragraphs"
    if sorted(blocks)[len(blocks) // 2] < 2:
        return "file", "blank lines stand after every paragraph"
    ends = sum(_ENDS_SENTENCE.search(line[-8:]) is not None for line in filled) / len(filled)
    punctuated = sum(not mark.isalnum() for line in filled for mark in line[-1:]) / len(filled)
    if ends < 0.5 and punctuated > 0.1 and sorted(map(_width, filled))[int(len(filled) * 0.95)] <= 64:
        return "file", "short lines that do not end sentences, as in verse; blank lines end stanzas"
    return "blank_line", "blocks of several unwrapped lines between blank lines"


def paragraphs(lines: Sequence[str], margin: int | None) -> list[str]:
    """The lines without the empty ones, stripped; with a margin, lines that were one paragraph are one again."""
    if margin is None:
        return [stripped for line in lines if (stripped := line.strip())]
    return _Joiner(lines, margin).paragraphs()


def cut_text(text: str, longest: int, *marks: str) -> Iterator[str]:
    """A text in pieces of at most `longest` characters that make it up again: each ends after the last of the first
    mark that stands in its second half, or anywhere."""
    start = 0
    while len(text) - start > longest:
        end = start + longest
        found = (text.rfind(mark, start + longest // 2, end) + 1 for mark in marks)
        cut = next(filter(None, found), end)
        yield text[start:cut]
        start = cut
    yield text[start:]


class _Joiner:
    def __init__(self, lines: Sequence[str], margin: int):
        self._lines, self._margin = lines, margin

    def paragraphs(self) -> list[str]:
        done: list[str] = []
        parts: list[str] = []  # of the paragraph that is growing
        previous = ""
        for line in self._lines:
            if parts and self._continues(previous, line):
                self._append(parts, line.strip())
            else:
                if parts:
                    done.append("".join(parts))
                parts = [stripped] if (stripped := line.strip()) else []
            previous = line
        if parts:
            done.append("".join(parts))
        return done

    def _continues(self, line: str, following: str) -> bool:
        """Whether the break between two lines, of which the first is not empty, only ended a line of the page."""
        start, end = following.strip(), line.strip()
        width = _width(end)
        if not start or width > 1.3 * self._margin or (not start[0].isalpha() and _LIST_ITEM.match(start)):
            return False
        if following[0].isspace() and _indentation(following) > _indentation(line) and not _LIST_ITEM.match(end):
            return False
        if any(gap in line or gap in following for gap in _GAPS) and (
            _TABLE_GAP.search(end) or _TABLE_GAP.search(start)
        ):
            return False
        if _is_full(width, start, self._margin):
            return True
        return start[0].islower() and width > 0.6 * self._margin and not _ENDS_SENTENCE.search(end[-8:])

    def _append(self, parts: list[str], following: str) -> None:
        end = parts[-1]
        broken = _WORD_BROKEN.search(end[-40:]) if end.endswith(_HYPHENS) else None
        if broken and (rest := _FIRST_LETTERS.match(following)):
            if self._is_one_word(broken[1].lower(), broken[2], rest[0]):
                parts[-1] = end[:-1]
            parts.append(following)
        elif end.endswith(("—", "--")) or _is_unspaced(end[-1]) or _is_unspaced(following[0]):
            parts.append(following)
        else:
            parts.append(" " + following)

    def _is_one_word(self, first: str, hyphen: str, rest: str) -> bool:
        """Whether the hyphen at a line's end came from the page ("consid-eration"), not from the word ("short-sword").

        The rest of the text is the dictionary: the form that stands elsewhere in it is the right one.
        """
        if hyphen == "\u00ad":
            return True
        if rest[0].isupper():
            return False
        together, apart = first + rest.lower() in self._vocabulary, f"{first}-{rest.lower()}" in self._vocabulary
        if together != apart:
            return together
        return not (first in self._vocabulary and rest.lower() in self._vocabulary)

    @cached_property
    def _vocabulary(self) -> set[str]:
        words: set[str] = set()
        broken = False  # halves of a broken word are no evidence for being words
        for line in self._lines:
            found = _WORDS.findall(line.lower())
            first, broken = broken, line.rstrip().endswith(_HYPHENS)
            words.update(found[first : len(found) - broken])
        return words


def _is_full(width: int, following: str, margin: int) -> bool:
    """Whether the first word of the next line did not fit; wrapping by hand is allowed to be ragged by a tenth."""
    room = margin * 0.9 - width
    if room < 2:
        return True
    if _is_unspaced(following[0]):
        return False
    return 1 + _width(following[:24].split(" ", 1)[0]) > room


def _is_unspaced(character: str) -> bool:
    return not character.isascii() and _NO_SPACE.match(character) is not None


def _width(line: str) -> int:
    return len(line) if line.isascii() else len(line) + sum(map(len, _WIDE.findall(line)))


def _indentation(line: str) -> int:
    return len(line) - len(line.lstrip())
