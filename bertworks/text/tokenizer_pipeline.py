"""Tokenizers of the `tokenizers` library around each kind of model: what comes before and after it.

- `bert_pipeline`: WordPiece, or another model with BERT's normalizer and template
- `sentencepiece_pipeline`: a SentencePiece file (Kudo and Richardson 2018), unigram or BPE
- `cut_points`: where a long text can be cut without a change of its tokens; `long_runs`: what can
  be left out; `overlapping`: parts of other texts
"""

import math
import re
import struct
import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Self, TypedDict, TypeVar

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from bertworks.config import packaged_table
from bertworks.errors import BertworksError, check, quoted, require
from bertworks.io.atomic_write import read_small
from bertworks.io.protobuf import last_value, read_protobuf

Result = TypeVar("Result")


class _FirstTokens(TypedDict):
    """The front of the vocabulary of a family of SentencePiece files.

    replaced_pieces: how many pieces at the beginning of the file are not in the vocabulary.
    scores: the tokens that come in their place, in the order of their ids, and their scores.
    """

    replaced_pieces: int
    scores: dict[str, float]


_TABLES = packaged_table(__file__, "pipelines.toml")
NORMALIZER_SETTINGS: dict[str, str] = _TABLES["normalizer_settings"]
SPELLINGS: dict[str, tuple[str, ...]] = {
    name: tuple(tokens) for name, tokens in _TABLES["spellings"].items()
}
_STYLES: dict[str, tuple[str, str]] = {
    name: tuple(templates) for name, templates in _TABLES["styles"].items()
}
_FIRST_TOKENS: dict[str, _FirstTokens] = _TABLES["first_tokens"]
# families of WordPiece vocabularies with RoBERTa's template, and their special tokens
WORD_PIECE_FAMILIES: dict[str, dict[str, str]] = _TABLES["word_piece_families"]
# with BERT's normalizer, of which tokenizer_config.json has the settings
WORD_PIECE_CLASSES: list[str] = _TABLES["word_piece_classes"]
_LOCAL_STEPS = frozenset(_TABLES["local_steps"].split())
END_OF_TEXT = "<|endoftext|>"
# [PAD], [UNK], [CLS], [SEP], [MASK]
SPECIAL_TOKENS = {name: spellings[0] for name, spellings in SPELLINGS.items()}
SURROGATES = re.compile("[\ud800-\udfff]")  # without their partners: UTF-8 cannot hold them
LONGEST_WORD = 100  # characters; a longer word becomes one [UNK]
# of all characters: a text with fewer marks that are letters, or kana, is of another language
LETTER_FRACTION = 0.001
LONGEST_RUN = 1 << 10  # characters of a word, or of white space, of which the inside is not read
_LARGEST_SENTENCEPIECE = 1 << 23  # bytes; that of XLM-R has 5 MB
# bytes of the pieces of a unigram model: the library takes up to 340 bytes for each
_LARGEST_TRIE = 1 << 22
_LONGEST_PIECE = 512  # characters; SentencePiece stops at 16 by default
NO_TEMPLATE = _STYLES["sentencepiece"]
# Letters and digits of one code unit. Without those that decompose to a mark or a space, or join a
# space before them.
_LETTER = (
    r"[^\W_\u037a\u0d4e\u0e33\u0eb3\u2474-\u2487\u3220-\u3229\ufc5e-\ufc63\ufe70-\ufe7e\uff9e\uff9f"
    r"\U00010000-\U0010ffff]"
)
_NEXT_TO_MARKS = "|(?<=[,;/+])(?=[0-9A-Za-z])|(?<=[一-鿿。、，！？；：])(?=[一-鿿ぁ-ゖァ-ヺ])"
_STYLE_MARKS = {"albert": {"[CLS]", "[SEP]"}, "xlnet": {"<cls>", "<sep>"}}


def guarded(call: Callable[[], Result], what: str, where: str = "") -> Result:
    """Call the library.

    Its panics, which are not an `Exception`, become BertworksError.
    """
    try:
        return call()
    except (BertworksError, KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:
        raise BertworksError(f"{what}: {str(error)[:200]}", where=where) from None


def refuse_large_trie(pieces: Iterable[str]) -> None:
    """Raises ValueError for pieces of a unigram model that would take gigabytes."""
    size = sum(len(piece.encode()) for piece in pieces)
    check(
        size <= _LARGEST_TRIE,
        f"the pieces of the vocabulary have {size / 1e6:.1f} MB in all: too much",
    )


def charsmap_growth(charsmap: bytes) -> int:
    """Return the most characters that a table of SentencePiece's normalization puts for one.

    All places of its trie and all replacements are checked: the library reads them without a check.

    The table: the size of the trie; the trie, a double array (darts-clone); replacements that end
    in NUL.

    Raises:
        ValueError: a damaged table.
    """
    end = 4 + int.from_bytes(charsmap[:4], "little")
    texts = np.frombuffer(charsmap[end:] + b"\0", np.uint8)
    units = np.frombuffer(
        charsmap[4:end] if 4 < end <= len(charsmap) and not end % 4 else b"", np.uint32
    )
    place = np.arange(len(units)) ^ ((units >> 10).astype(np.int64) << ((units >> 6) & 8))
    inner = units >> 31 == 0
    inner[:1] = True  # the root
    good = len(units) > 0 and bool(((place | 255) < len(units))[inner].all())
    values = units[place[inner & (units >> 8 & 1 == 1)]] & 0x7FFFFFFF if good else units
    if not good or values.max(initial=0) >= len(texts) or (texts[values] & 0xC0 == 0x80).any():
        raise ValueError("the table of the normalizer (precompiled_charsmap) is damaged")
    return max(map(len, charsmap[end:].decode().split("\0")))


def word_piece_model(tokens: Sequence[str], unk_token: str = "[UNK]") -> models.WordPiece:
    """Return a WordPiece model for a vocabulary in the order of its ids."""
    ids = {token: number for number, token in enumerate(tokens)}
    return models.WordPiece(ids, unk_token=unk_token, max_input_chars_per_word=LONGEST_WORD)


def bert_pipeline(
    model: models.Model, special_tokens: dict[str, str], style: str = "", /, **normalizer: Any
) -> tokenizers.Tokenizer:
    """Return a tokenizer with BERT's normalizer, pre-tokenizer and template.

    Args:
        special_tokens: as for Tokenizer.
        style: the family; those in WORD_PIECE_FAMILIES have RoBERTa's template. Their mask is not
            added yet: it replaces the space before it as well.
        normalizer: settings of `tokenizers.normalizers.BertNormalizer`: `lowercase`;
            `strip_accents`, where None follows `lowercase`; `handle_chinese_chars`: put every
            Chinese character on its own.
    """
    library = tokenizers.Tokenizer(model)
    library.normalizer = normalizers.BertNormalizer(**normalizer)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece()
    if style not in WORD_PIECE_FAMILIES:
        library.post_processor = template(library, _STYLES["albert"], special_tokens)
        library.add_special_tokens(list(special_tokens.values()))
        return library
    library.post_processor = _roberta_template(library, special_tokens)
    added = {name: token for name, token in special_tokens.items() if name != "mask_token"}
    library.add_special_tokens(list(added.values()))
    return library


def _roberta_template(
    library: tokenizers.Tokenizer, special_tokens: Mapping[str, str], **options: bool
) -> processors.RobertaProcessing:
    """Return RoBERTa's special tokens around one text and two. They trim spaces off the offsets."""
    id_of: Callable[[str], Any] = library.token_to_id
    tokens = [special_tokens[name] for name in ("cls_token", "sep_token")]
    cls, sep = ((token, id_of(token)) for token in tokens)
    return processors.RobertaProcessing(sep, cls, **options)


def byte_level_pipeline(
    model: models.Model,
    special_tokens: Mapping[str, str],
    has_template: bool,
    *,
    add_prefix_space: bool = False,
) -> tokenizers.Tokenizer:
    """Return a tokenizer of the bytes of a text as it is, with RoBERTa's template or none."""
    library = tokenizers.Tokenizer(model)
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    library.decoder = decoders.ByteLevel()
    if has_template:
        library.post_processor = _roberta_template(
            library, special_tokens, add_prefix_space=add_prefix_space
        )
    else:
        library.post_processor = template(library, NO_TEMPLATE, special_tokens)
    return library


def template(
    library: tokenizers.Tokenizer, patterns: tuple[str, str], special_tokens: Mapping[str, str]
) -> processors.TemplateProcessing:
    """Return the special tokens around one text and two.

    patterns: $A and $B for the texts, C and S for the special tokens, each with its token type.
    """
    names = {"C": special_tokens.get("cls_token", ""), "S": special_tokens.get("sep_token", "")}
    single, pair = (
        [names.get(part[:-2], part[:-2]) + part[-2:] for part in pattern.split()]
        for pattern in patterns
    )
    ids = ((token, library.token_to_id(token)) for token in names.values())
    special = [(token, number) for token, number in ids if number is not None]
    return processors.TemplateProcessing(single=single, pair=pair, special_tokens=special)


def begin_with(serialized: str, token: str) -> str:
    """Return a tokenizer.json with a special token in front of each text of one or two.

    A vocabulary without it gets it.
    """
    library = tokenizers.Tokenizer.from_str(serialized)
    library.add_special_tokens([token])
    library.post_processor = template(
        library, ("C:0 $A:0", "C:0 $A:0 C:0 $B:0"), {"cls_token": token}
    )
    return str(library.to_str())


def spell_special_tokens(names: Mapping[str, str], tokens: Container[str]) -> dict[str, str]:
    """The special tokens that a vocabulary has: as they are named, else in a usual spelling."""
    spellings = SPELLINGS | {name: (token,) for name, token in names.items()}
    spelled = {
        name: next((token for token in spellings[name] if token in tokens), None)
        for name in SPELLINGS
    }
    return {name: token for name, token in spelled.items() if token is not None}


def refuse_style(path: Path, style: str) -> NoReturn:
    """Raise BertworksError for a family with its own normalization and ids.

    It is not read as if it were another.
    """
    load = "from transformers import AutoTokenizer as T; T.from_pretrained(f).save_pretrained(f)"
    hint = f"make tokenizer.json: `python -c {quoted(f'f = {str(path.parent)!r}; {load}')}`"
    what = f"{path.name} of the family {style} cannot be read without tokenizer.json"
    raise BertworksError(what, where=str(path), hint=hint)


def cut_points(tokenizer: Mapping[str, Any]) -> re.Pattern[str] | None:
    """Return a pattern of positions where splitting does not change the tokens, or None.

    The tokens of the whole are those of its parts, if each part begins with the character in front
    of the cut, and the tokens of that character are dropped. None: such places are not known.

    Args:
        tokenizer: the content of tokenizer.json.
    """
    steps = [step for name in ("normalizer", "pre_tokenizer") for step in steps_of(tokenizer[name])]
    kinds = {step["type"] for step in steps}
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
    cuts: NDArray[np.int32] = np.zeros(0, np.int32)
    # [cuts + 1]: characters before and after each of these places
    left_out: NDArray[np.int32] = np.zeros(1, np.int32)

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

    def places(self, offsets: NDArray[np.int32]) -> NDArray[np.int32]:
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


# Marks whose removal leaves the letters of a word: accents, the points of Hebrew and Arabic, and
# the marks of no script, such as the variation selectors of emoji.
_ACCENTS_AND_POINTS = re.compile(
    r"[\u0300-\u036f\u0590-\u06ff\u0870-\u08ff\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufb1e\ufe00-\ufe0f\ufe20-\ufe2f"
    r"\U00010ec0-\U00010eff\U000e0100-\U000e01ef]"
)


def is_letter_mark(character: str) -> bool:
    """Return whether a character is a mark that is a letter of its script.

    It is a vowel sign, a virama or a tone mark, as in Hindi or Thai. A text without these marks has
    other words.
    """
    return unicodedata.category(character).startswith("M") and not _ACCENTS_AND_POINTS.match(
        character
    )


def is_kana_or_hangul(character: str) -> bool:
    """Return whether a character is kana or a Hangul syllable.

    NFD separates the dakuten of kana, and takes Hangul syllables apart.
    """
    return "\u3040" <= character <= "\u30ff" or "\uac00" <= character <= "\ud7a3"


def words_of(text: str, begin: int, skipped: int, encoding: Any) -> NDArray[np.int32]:
    """Return the words of a part of a text. begin, skipped: see `Tokenizer._parts`."""
    spans: list[tuple[int, int]] = []
    tokens = list(zip(encoding.word_ids, encoding.offsets))[skipped:]
    for _, word in groupby(tokens, key=itemgetter(0)):
        offsets = [offset for _, offset in word]
        start = begin + offsets[0][0]
        end = begin + offsets[-1][1]
        # the space in front may belong to the word
        start += len(text[start:end]) - len(text[start:end].lstrip())
        if start < end:
            spans.append((start, with_marks(text, end)))
    return np.array(spans, np.int32).reshape(-1, 2)


def tokens_in_order(ids: dict[str, int]) -> list[str]:
    """Return the tokens of ids, which must be 0..n-1."""
    tokens = sorted(ids, key=ids.__getitem__)
    wrong = [token for number, token in enumerate(tokens) if ids[token] != number]
    if wrong:
        raise BertworksError(
            f"ids of the vocabulary are not 0..{len(ids) - 1}: {wrong[0]!r} has id {ids[wrong[0]]}"
        )
    return tokens


def steps_of(step: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """Return the steps of a normalizer or a pre-tokenizer, without sequences."""
    if not step or step["type"] != "Sequence":
        return [step] if step else []
    return [
        inner
        for part in step.get("normalizers", step.get("pretokenizers", []))
        for inner in steps_of(part)
    ]


class _SentencePiece(NamedTuple):
    pieces: list[tuple[str, float]]
    is_bpe: bool
    unk_id: int
    byte_fallback: bool
    charsmap: bytes
    adds_space: bool  # in front of a text
    removes_spaces: bool  # at both ends of a text and where there are several
    control: list[str]  # special tokens that no text has
    user_defined: list[str]  # tokens that are never split


def sentencepiece_pipeline(
    path: Path, config: dict[str, Any], names: dict[str, str], style: str
) -> tokenizers.Tokenizer:
    """SentencePiece in the pipeline of its family: ids as in transformers.

    Of no family: as the sentencepiece library reads it, without special tokens around a text.
    """
    s = guarded(lambda: _read_sentencepiece(path), "a damaged SentencePiece file", str(path))
    pieces = s.pieces
    unk_id = s.unk_id
    known = {piece for piece, _ in s.pieces}
    if not style:
        style = next(
            (style for style, ends in _STYLE_MARKS.items() if ends <= known), "sentencepiece"
        )
        if style == "sentencepiece" and path.name == "sentencepiece.bpe.model":
            hint = (
                'write the class into tokenizer_config.json, such as "tokenizer_class": '
                '"XLMRobertaTokenizer"'
            )
            raise BertworksError(
                f"{path.name} does not say of which family it is", where=str(path), hint=hint
            )
    if style not in _STYLES:
        refuse_style(path, style)
    if style in _FIRST_TOKENS:
        pieces = _with_first_tokens(pieces, _FIRST_TOKENS[style], path)
        unk_id = [piece for piece, _ in pieces].index("<unk>")
    ids = {piece: number for number, (piece, _) in enumerate(pieces)}
    tokens = spell_special_tokens(names, ids)
    is_complete = "C" not in _STYLES[style][0] or {"cls_token", "sep_token"} <= tokens.keys()
    require(is_complete, "the vocabulary lacks the special tokens of its family", path)
    model: models.Model
    if s.is_bpe:
        cuts = ((piece[:n], piece[n:]) for piece in ids for n in range(1, len(piece)))
        merges = [pair for pair in cuts if pair[0] in ids and pair[1] in ids]
        model = models.BPE(
            ids, merges, unk_token=pieces[unk_id][0], fuse_unk=True, byte_fallback=s.byte_fallback
        )
    else:
        model = models.Unigram(pieces, unk_id, s.byte_fallback)
    library = tokenizers.Tokenizer(model)
    library.normalizer = normalizers.Sequence(_sentencepiece_normalizers(s, style, config))
    is_family = style != "sentencepiece"
    scheme = "always" if is_family or s.adds_space else "never"
    split = is_family or not any("▁" in piece[1:] for piece in ids)
    spaces = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split)
    library.pre_tokenizer = (
        pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), spaces]) if is_family else spaces
    )
    library.post_processor = template(library, _STYLES[style], tokens)
    library.decoder = decoders.Metaspace(prepend_scheme=scheme, split=split)
    if s.byte_fallback:
        steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        library.decoder = decoders.Sequence([*steps, decoders.Strip(" ", int(s.adds_space), 0)])
    library.add_special_tokens([token for token in s.control if token in ids])
    if s.is_bpe:  # the scores of unigram pieces make them win by themselves
        library.add_tokens([AddedToken(token, normalized=False) for token in s.user_defined])
    return library


def _with_first_tokens(
    pieces: Sequence[tuple[str, float]], first_tokens: _FirstTokens, path: Path
) -> list[tuple[str, float]]:
    """Return the vocabulary of a family with tokens of its own at the front.

    Its ids are not the numbers of the pieces in the file: the tokens of the family stand at the
    front, and <mask> at the end.

    Raises:
        BertworksError: the file does not begin with <unk>, <s> and </s>.
    """
    is_fairseq = [piece for piece, _ in pieces[:3]] == ["<unk>", "<s>", "</s>"]
    require(is_fairseq, "its first pieces are not <unk>, <s> and </s>", path)
    tokens = [(token, float(score)) for token, score in first_tokens["scores"].items()]
    return [*tokens, *pieces[first_tokens["replaced_pieces"] :], ("<mask>", 0.0)]


def _sentencepiece_normalizers(
    s: _SentencePiece, style: str, config: dict[str, Any]
) -> list[normalizers.Normalizer]:
    steps: list[normalizers.Normalizer] = []
    if style in ("albert", "xlnet"):
        steps += [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
        if config.get("keep_accents") is not True:
            steps += [normalizers.NFKD(), normalizers.StripAccents()]
        if config.get("do_lower_case", style == "albert") is not False:
            steps.append(normalizers.Lowercase())
    if s.charsmap:
        charsmap_growth(s.charsmap)
        steps.append(normalizers.Precompiled(s.charsmap))
    if style == "sentencepiece" and s.removes_spaces:
        steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Replace(Regex("^ | $"), "")]
    return steps


def _read_sentencepiece(path: Path) -> _SentencePiece:
    """Read a SentencePiece file.

    It is the protobuf message ModelProto of google/sentencepiece, src/sentencepiece_model.proto.
    """
    model = read_protobuf(read_small(path, _LARGEST_SENTENCEPIECE))
    trainer, normalizer = (read_protobuf(last_value(model, number, b"")) for number in (2, 3))
    pieces: list[tuple[str, float]] = []
    kinds: dict[int, list[str]] = {}
    for message in map(read_protobuf, model.get(1, [])):
        text = last_value(message, 1, b"").decode()
        (score,) = struct.unpack("<f", struct.pack("<I", last_value(message, 2, 0)))
        if not 0 < len(text) <= _LONGEST_PIECE or not math.isfinite(score):
            raise ValueError(f"piece {len(pieces)} is {text[:20]!r} with score {score}")
        kinds.setdefault(last_value(message, 3, 1), []).append(text)
        pieces.append((text, score))
    refuse_large_trie(text for text, _ in pieces)
    kind = last_value(trainer, 3, 1)
    unk_id = last_value(trainer, 40, 0)
    is_good = kind in (1, 2) and len(dict(pieces)) == len(pieces) > unk_id
    check(
        is_good,
        "not a unigram or BPE model, or one with a repeated piece or without the unknown one",
    )
    return _SentencePiece(
        pieces,
        kind == 2,
        unk_id,
        control=kinds.get(3, []),
        user_defined=kinds.get(4, []),
        byte_fallback=bool(last_value(trainer, 35, 0)),
        charsmap=last_value(normalizer, 2, b""),
        adds_space=bool(last_value(normalizer, 3, 1)),
        removes_spaces=bool(last_value(normalizer, 4, 1)),
    )
