"""English sentences out of docstrings, help topics and README files.

Markup of three dialects (reStructuredText with NumPy or Google sections, and Markdown) is taken away together with all
that is not prose: signatures, doctests, code, tables, parameter lists, formulas. What is left are paragraphs of whole
sentences. This is no parser of these languages: what is in doubt is left out, for a corpus loses little by that.
"""

import re
from collections.abc import Iterable, Iterator

from bertworks.text.sentences import split_sentences

_DROPPED_SECTIONS = frozenset(
    "args arguments attributes call class code credits copyright example examples fields functions glossary inputs"
    " keyword keywords kwargs license methods optional options other outputs parameter parameters params properties"
    " raises raise reference references return returns see shape signature todo todos type usage variables warns"
    " yield yields".split()
)
_KEPT_DIRECTIVES = frozenset("note warning important tip caution attention hint admonition topic rubric".split())

_UNDERLINE = re.compile(r"^\s*([=\-~^\"'`#*+])\1{2,}\s*$")
_SECTION = re.compile(r"^(\s*)([A-Z][A-Za-z]+)( [A-Za-z]+){0,2}:{1,2}\s*$")
_DIRECTIVE = re.compile(r"^(\s*)\.\. *([\w:-]*?)::\s*(.*)$")
_FIELD = re.compile(r"^\s*(:[A-Za-z][^:`]*:|@(param|return|type|rtype|raise)\b)(?!`)")
_BULLET = re.compile(r"^(\s*)([-*+•]|\(?[0-9a-zA-Z][.)])\s+(?=\S)")
_TABLE = re.compile(r"\||^\s*\+[-=+]+\+?\s*$|^\s*[=-]{2,}(\s+[=-]{2,})+\s*$")

_INLINE = (
    (re.compile(r"!\[[^\]]*\]\([^)]*\)"), ""),  # Markdown picture
    (re.compile(r"\[([^\]]*)\]\([^)]*\)"), r"\1"),  # Markdown link
    (re.compile(r":math:`[^`]*`"), "{}"),  # braces make the sentence fail the test of prose below
    (re.compile(r":[\w:+-]+:`~[^`]*?([^`.]+)`"), r"\1"),  # role with a shortened target
    (re.compile(r":[\w:+-]+:`([^`<]+?)\s*<[^`]*`"), r"\1"),  # role with a title
    (re.compile(r":[\w:+-]+:`([^`]*)`"), r"\1"),
    (re.compile(r"``([^`]*)``"), r"\1"),
    (re.compile(r"`([^`<]+?)\s*<[^`]*>`_{0,2}"), r"\1"),  # reStructuredText link
    (re.compile(r"`([^`]*)`_{0,2}"), r"\1"),
    (re.compile(r"\*\*([^*]+)\*\*"), r"\1"),
    (re.compile(r"(?<![\w*])\*([^*\s][^*]*)\*(?![\w*])"), r"\1"),
    (re.compile(r"\s*\[[\w#-]+\]_(?!\w)"), ""),  # footnote
    (re.compile(r'"([\w.]+)(\(\))?"'), r"\1"),  # help topics put code in quotation marks
    (re.compile(r"\b([a-zA-Z]+)\(\)"), r"\1"),
    (re.compile(r"\s+--+\s+"), " - "),
    (re.compile(r"[\u2018\u2019]"), "'"),
    (re.compile(r"[\u201c\u201d]"), '"'),
    (re.compile(r"\s+"), " "),
)

_CODE = re.compile(r"[{}<>|\\=^~@#$`_\[\]*+]|://|\w/\w|\.\.|\w(?<!\bi)(?<!\be)\.[a-z]|\(\)|\s-{1,2}\w|--")
_PLAIN = re.compile(
    r"^[\"'(]*(?:[A-Za-z]?[a-z]*(?:[-'][A-Za-z]?[a-z]+)*|[A-Z]{2,6}s?|Python|i\.e|e\.g|\d+(?:[.,]\d+)*%?)[\"')]*[.,;:!?]*[\"')]*$"
)
_FUNCTION_WORDS = frozenset(
    "a an and are as at be because been but by can do does for from had has have how if in into is it its may more must"
    " no not of on one only or other same should so such than that the their them then there these they this to under"
    " use used was we what when where whether which while who will with would you your".split()
)


def prose(text: str) -> list[list[str]]:
    """Paragraphs of `text`, each a list of whole English sentences; markup, code and fragments are gone."""
    kept = []
    for paragraph in _paragraphs(_without_blocks(text.expandtabs().splitlines())):
        sentences = [sentence for sentence in split_sentences(_without_markup(paragraph)) if is_sentence(sentence)]
        if sentences:
            kept.append(sentences)
    return kept


def is_sentence(text: str) -> bool:
    """Whether `text` reads as an English sentence: a capital, an end, mostly plain words, and small words between."""
    words = text.split()
    if not 5 <= len(words) <= 80 or not re.match(r"[\"'(]?[A-Z]", text) or not re.search(r"[.!?][\"')]*$", text):
        return False
    if _CODE.search(text) or text.count("(") != text.count(")") or text.count('"') % 2:
        return False
    plain = sum(bool(_PLAIN.match(word)) for word in words)
    small = sum(word.strip("\"'(),.;:!?").lower() in _FUNCTION_WORDS for word in words)
    letters = sum(len(word) <= 1 and word not in ("a", "A", "I", "-") for word in words)
    return plain >= 0.9 * len(words) and small >= max(2, 0.2 * len(words)) and letters <= 1


def _without_blocks(lines: list[str]) -> Iterator[str]:
    """The lines outside code, doctests, tables, fields and the sections that list parameters."""
    skip_deeper_than: int | None = None  # inside a block that ends where the indentation comes back
    in_fence = in_dropped_section = in_doctest = False
    for number, line in enumerate(lines):
        stripped = line.strip()
        indent = len(line) - len(line.lstrip())
        following = lines[number + 1] if number + 1 < len(lines) else ""
        if stripped.startswith(("```", "~~~")):
            in_fence = not in_fence
            continue
        if in_fence:
            continue
        if not stripped:
            in_doctest = False
            yield ""
            continue
        if skip_deeper_than is not None:
            if indent > skip_deeper_than:
                continue
            skip_deeper_than = None
        if _UNDERLINE.match(following) and not _UNDERLINE.match(line):
            in_dropped_section = stripped.split()[0].lower().rstrip(":") in _DROPPED_SECTIONS
            yield ""
            continue
        in_doctest = in_doctest or stripped.startswith((">>>", "In [", "$ ", "% "))
        if in_dropped_section or in_doctest or _UNDERLINE.match(line) or _TABLE.search(line) or stripped[0] in "#<@":
            yield ""
            continue
        if _FIELD.match(line):
            skip_deeper_than = indent
            yield ""
            continue
        section, directive = _SECTION.match(line), _DIRECTIVE.match(line)
        if section and section[2].lower() in _DROPPED_SECTIONS:
            skip_deeper_than = indent
            yield ""
        elif directive:
            if directive[2] in _KEPT_DIRECTIVES:
                yield directive[1] + directive[3]
            else:
                skip_deeper_than = indent
                yield ""
        elif stripped.startswith(".."):  # a comment or a footnote's text
            skip_deeper_than = indent
            yield ""
        else:
            if stripped.endswith("::"):
                skip_deeper_than = indent
            yield line
            if section:
                yield ""


def _paragraphs(lines: Iterable[str]) -> Iterator[str]:
    """Hard-wrapped lines joined: a paragraph ends at a blank line, a bullet, or a change of indentation."""
    current: list[str] = []
    margin = 0
    hanging = False  # a list item goes on in deeper lines
    for line in lines:
        bullet = _BULLET.match(line)
        indent = len(line) - len(line.lstrip())
        goes_on = bool(line.strip()) and not bullet and (indent == margin or (hanging and indent > margin))
        if current and not goes_on:
            yield " ".join(current)
            current = []
        if not line.strip():
            continue
        if not current:
            margin, hanging = indent, bullet is not None
        elif hanging and indent > margin:
            margin, hanging = indent, False
        current.append(line[bullet.end() :] if bullet else line.strip())
    if current:
        yield " ".join(current)


def _without_markup(text: str) -> str:
    for pattern, replacement in _INLINE:
        text = pattern.sub(replacement, text)
    return text.strip()
