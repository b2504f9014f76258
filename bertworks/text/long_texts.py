"""Long texts: where they can be cut into parts, and what of them can be left out.

- `cut_points`: where a long text can be cut without a change of its tokens
- `long_runs`: what can be left out, and `ShortText`, a text without it
- `overlapping`: parts of other texts
"""

import re
import unicodedata
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from bertworks.config import packaged_table

IntArray = NDArray[np.int32]
SURROGATES = re.compile("[\ud800-\udfff]")  # without their partners: UTF-8 cannot hold them
LONGEST_RUN = 1 << 10  # characters of a word, or of white space, of which the inside is not read
_TABLES = packaged_table(__file__, "pipelines.toml")
_LOCAL_STEPS = frozenset(_TABLES["local_steps"].split())
# of `tokenizer_folder.spelling_pipeline`: it has no white space, and looks at most two characters
# behind and ahead
_LOCAL_SPLIT = {"Regex": _TABLES["words"]["pattern"]}
# Letters and digits of one code unit. Without those that decompose to a mark or a space, or join a
# space before them.
_LETTER = (
    r"[^\W_\u037a\u0d4e\u0e33\u0eb3\u2474-\u2487\u3220-\u3229\ufc5e-\ufc63\ufe70-\ufe7e\uff9e\uff9f"
    r"\U00010000-\U0010ffff]"
)
_NEXT_TO_MARKS = "|(?<=[,;/+])(?=[0-9A-Za-z])|(?<=[一-鿿。、，！？；：])(?=[一-鿿ぁ-ゖァ-ヺ])"


def cut_points(tokenizer: Mapping[str, Any]) -> re.Pattern[str] | None:
    """Return a pattern of positions where splitting does not change the tokens, or None.

    The tokens of the whole are those of its parts, if each part begins with the character in front
    of the cut, and the tokens of that character are dropped. None: such places are not known.

    Args:
        tokenizer: the content of tokenizer.json.
    """
    steps = [step for name in ("normalizer", "pre_tokenizer") for step in steps_of(tokenizer[name])]
    kinds = {step["type"] for step in steps if step.get("pattern") != _LOCAL_SPLIT}
    local = kinds <= _LOCAL_STEPS and all(
        step.get("use_regex", True) and step.get("split", True) for step in steps
    )
    patterns = [step["pattern"] for step in steps if step["type"] == "Replace"]
    local &= all(
        p["Regex"] in (" {2,}", "^ | $") if "Regex" in p else not re.search(r"\s", p["String"])
        for p in patterns
    )
    added = [token["content"] for token in tokenizer["added_tokens"]]
    greedy = "".join(
        token["content"]
        for token in tokenizer["added_tokens"]
        if token["lstrip"] or token["rstrip"]
    )
    local &= (
        not re.search(r"\s", "".join(added))
        and re.fullmatch(r"([<\[]\w*[>\]])*", greedy) is not None
    )
    at_white_space = kinds & {"BertPreTokenizer", "ByteLevel", "WhitespaceSplit", "Whitespace"}
    if not local or not (at_white_space or "Metaspace" in kinds):
        return None
    spaces = "[ \n\t]" if at_white_space else " "
    pattern = f"(?<={_LETTER}){spaces}(?={_LETTER})"
    isolated = "BertPreTokenizer" in kinds and any(
        step.get("handle_chinese_chars") for step in steps
    )
    if isolated and all(
        content.isascii() and not re.search("[,;/+]", content) for content in added
    ):
        pattern += _NEXT_TO_MARKS
    return re.compile(pattern)


def long_runs(tokenizer: Mapping[str, Any]) -> re.Pattern[str] | None:
    """Return a pattern of long runs that become one [UNK] or nothing.

    It is None if the tokenizer may split them. These are letters and digits that WordPiece reads as
    one [UNK], and white space, which has no token: at least LONGEST_RUN characters, of which those
    inside make no difference. tokenizer: see `cut_points`.
    """
    kinds = {step["type"] for step in steps_of(tokenizer["normalizer"])}
    model = tokenizer["model"]
    is_simple = kinds <= {"BertNormalizer", "NFC", "NFD", "Lowercase", "StripAccents"}
    is_simple &= (tokenizer["pre_tokenizer"] or {}).get("type") == "BertPreTokenizer"
    is_simple &= (
        model["type"] == "WordPiece" and model["max_input_chars_per_word"] < LONGEST_RUN // 4
    )
    is_simple &= not any(token["content"].isalnum() for token in tokenizer["added_tokens"])
    if not is_simple or not cut_points(tokenizer):
        return None
    letter = f"{_LETTER[:-1]}㐀-䶿一-鿿豈-﫿]"  # Chinese characters may be words
    return re.compile(f"(?<!{letter}){letter}{{{LONGEST_RUN},}}|[ \\t\\n\\r]{{{LONGEST_RUN},}}")


class ShortText(NamedTuple):
    """A text without characters that no token depends on."""

    text: str
    # where characters were left out, in the short text
    cuts: IntArray = np.zeros(0, np.int32)
    # [cuts + 1]: characters before and after each of these places
    left_out: IntArray = np.zeros(1, np.int32)

    @classmethod
    def of(cls, text: str, runs: re.Pattern[str] | None) -> Self:
        """Return the text without the inside of each run. runs: see `long_runs`."""
        half = LONGEST_RUN // 2
        spans = [
            (run.start() + half, run.end() - half) for run in (runs.finditer(text) if runs else ())
        ]
        if not spans:
            return cls(text)
        starts, ends = np.array(spans, np.int32).T
        parts = [
            text[end:start] for end, start in zip([0, *ends], [*starts, len(text)], strict=True)
        ]
        left_out = np.cumsum([0, *(ends - starts)], dtype=np.int32)
        return cls("".join(parts), starts - left_out[:-1], left_out)

    def places(self, offsets: IntArray) -> IntArray:
        """Places in the short text -> in the text."""
        return (
            offsets + self.left_out[np.searchsorted(self.cuts, offsets)]
            if len(self.cuts)
            else offsets
        )


def overlapping(
    encode: Callable[[str], Any], text: str, longest: int, overlap: int, unfit: int | None
) -> Iterator[tuple[int, int, Any]]:
    """Yield parts of a text that overlap.

    Of each: where it begins, how many of its tokens belong to the part before, its encoding. A part
    ends where the next one has the same token, and is longer where there is none.

    The tokens are those of the whole text. In BPE any token will do: a row of tokens is that of a
    text if each two neighbours are those of their own text, as the first merge across a border
    would happen there too. In other models it must end a word.

    Args:
        longest: characters of a part, at least twice the overlap.
        overlap: characters, a quarter at each end for what the borders of a part change.
        unfit: BPE: the id after which no part ends, as unknown characters are joined; None: another
            model.
    """

    def ends(part: Any, begin: int) -> dict[tuple[int, int, int], int]:
        """Tokens that may end a part, by their characters and id -> how many tokens it then has."""
        first = stop - overlap + overlap // 4 - begin
        last = stop - overlap // 4 - begin
        ids = part.ids
        offsets = part.offsets
        words = part.word_ids
        counts = dict[tuple[int, int, int], int]()
        for n in range(
            bisect_left(offsets, (first, 0)), min(bisect_left(offsets, (last, 0)), len(ids) - 1)
        ):
            start, end = offsets[n]
            fits = words[n] != words[n + 1] or unfit not in (None, ids[n])
            # not one of several tokens of a character
            if fits and end <= min(last, offsets[n + 1][0]):
                counts[begin + start, begin + end, ids[n]] = n + 1
        return counts

    at = 0
    skipped = 0
    stop = min(len(text), longest)
    part = encode(text[:stop])
    while stop < len(text):
        next_at = stop - overlap
        next_stop = min(len(text), stop - overlap + longest)
        following = encode(text[next_at:next_stop])
        ends_here = ends(part, at)
        ends_there = ends(following, next_at)
        if same := max(ends_here.keys() & ends_there.keys(), default=None):
            part.truncate(ends_here[same])
            yield at, skipped, part
            at = next_at
            skipped = ends_there[same]
            part = following
            stop = next_stop
        else:
            stop = min(len(text), 2 * stop - at)
            part = encode(text[at:stop])
    yield at, skipped, part


def with_marks(text: str, end: int) -> int:
    """Return the end of a span, extended by the combining marks of its last character.

    These are accents, vowel signs and variation selectors. A tokenizer that removes them leaves
    them out of its offsets.
    """
    while end < len(text) and unicodedata.category(text[end]).startswith("M"):
        end += 1
    return end


def trimmed(text: str, spans: "array[int]") -> IntArray:
    """Return spans without white space in front, and with the marks of their last character.

    The space in front of a word may belong to it. Empty spans are left out.

    spans: where the first one begins and ends, the second one, and so on.

    Returns:
        int32 [n, 2].
    """
    words = array("i")
    for start, end in zip(spans[::2], spans[1::2], strict=True):
        start += len(text[start:end]) - len(text[start:end].lstrip())
        if start < end:
            words.extend((start, with_marks(text, end)))
    return np.array(words, np.int32).reshape(-1, 2)


def steps_of(step: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """Return the steps of a normalizer or a pre-tokenizer, without sequences."""
    if not step or step["type"] != "Sequence":
        return [step] if step else []
    return [
        inner
        for part in step.get("normalizers", step.get("pretokenizers", []))
        for inner in steps_of(part)
    ]
