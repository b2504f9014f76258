"""The content of a tokenizer.json for each kind of model: what comes before and after it.

- `bert_pipeline`: WordPiece
- `byte_level_pipeline`: byte-level BPE
- `sentencepiece_pipeline`: a SentencePiece file (Kudo and Richardson 2018), unigram or BPE
"""

import base64
import math
import struct
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bertworks.errors import BertworksError
from bertworks.io.atomic_write import read_small
from bertworks.io.protobuf import Protobuf, read_protobuf

SPECIAL_TOKENS = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
SPELLINGS = {  # of special tokens in published vocabularies, where a folder does not name them
    "pad_token": ("[PAD]", "<pad>"),
    "unk_token": ("[UNK]", "<unk>", "<|endoftext|>"),
    "cls_token": ("[CLS]", "<cls>", "<s>"),
    "sep_token": ("[SEP]", "<sep>", "</s>"),
    "mask_token": ("[MASK]", "<mask>"),
}
LONGEST_WORD = 100  # characters; a longer word becomes one [UNK]
_LARGEST_SENTENCEPIECE = 1 << 23  # bytes; that of XLM-R has 5 MB
_LONGEST_PIECE = 512  # characters; SentencePiece stops at 16 by default
_STYLES = {  # families of SentencePiece files, with their templates for one text and two
    "albert": ("C0 A0 S0", "C0 A0 S0 B1 S1"),
    "xlnet": ("A0 S0 C2", "A0 S0 B1 S1 C2"),
    "xlmroberta": ("C0 A0 S0", "C0 A0 S0 S0 B0 S0"),
    "sentencepiece": ("A0", "A0 B1"),
}
_STYLE_MARKS = {"albert": {"[CLS]", "[SEP]"}, "xlnet": {"<cls>", "<sep>"}}


def bert_pipeline(
    model: dict[str, Any],
    ids: dict[str, int],
    special_tokens: dict[str, str],
    *,
    lowercase: bool,
    strip_accents: bool | None,
    chinese_characters: bool = True,
) -> dict[str, Any]:
    """The content of a tokenizer.json around a WordPiece model: BERT's normalizer, pre-tokenizer and template.

    Args:
        model: the `model` part.
        ids: id of each special token by its spelling.
        special_tokens: as for Tokenizer.
        strip_accents: None follows `lowercase`.
        chinese_characters: put every Chinese character on its own.
    """
    normalizer = {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": chinese_characters,
        "strip_accents": strip_accents,
        "lowercase": lowercase,
    }
    content = pipeline(
        model, normalizer, {"type": "BertPreTokenizer"}, "C0 A0 S0", "C0 A0 S0 B1 S1", special_tokens, ids
    )
    content["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    content["added_tokens"] = [
        added_token(token, number, special=True)
        for number, token in sorted((ids[token], token) for token in set(special_tokens.values()))
    ]
    return content


def pipeline(
    model: dict[str, Any],
    normalizer: dict[str, Any] | None,
    pre_tokenizer: dict[str, Any],
    single: str,
    pair: str,
    special_tokens: Mapping[str, str],
    ids: Mapping[str, int],
) -> dict[str, Any]:
    """The content of a tokenizer.json. single, pair: A and B for the texts, C and S for their special tokens, each with
    its token type."""
    names = {"C": special_tokens.get("cls_token", ""), "S": special_tokens.get("sep_token", "")}

    def parts(pattern: str) -> list[dict[str, Any]]:
        pairs = [(part[0], int(part[1])) for part in pattern.split()]
        return [
            {"SpecialToken" if kind in names else "Sequence": {"id": names.get(kind, kind), "type_id": type_id}}
            for kind, type_id in pairs
        ]

    template = {
        "type": "TemplateProcessing",
        "single": parts(single),
        "pair": parts(pair),
        "special_tokens": {
            token: {"id": token, "ids": [ids[token]], "tokens": [token]} for token in names.values() if token in ids
        },
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": template,
        "decoder": pre_tokenizer,
        "model": model,
    }


def added_token(token: str, number: int, *, special: bool) -> dict[str, Any]:
    plain = {"id": number, "content": token, "single_word": False, "lstrip": False, "rstrip": False}
    return plain | {"normalized": not special, "special": special}


def word_piece_model(tokens: Sequence[str], unk_token: str = "[UNK]") -> dict[str, Any]:
    """The `model` part of a tokenizer.json for a WordPiece vocabulary in the order of its ids."""
    return {
        "type": "WordPiece",
        "unk_token": unk_token,
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": LONGEST_WORD,
        "vocab": {token: number for number, token in enumerate(tokens)},
    }


def spell_special_tokens(names: Mapping[str, str], tokens: Container[str]) -> dict[str, str]:
    """The special tokens that a vocabulary has: as they are named, else in a usual spelling."""
    spellings = SPELLINGS | {name: (token,) for name, token in names.items()}
    spelled = {name: next((token for token in spellings[name] if token in tokens), None) for name in SPELLINGS}
    return {name: token for name, token in spelled.items() if token is not None}


def refuse_style(path: Path, style: str) -> None:
    """Raise BertworksError: a family with its own normalization and ids is not read as if it were another."""
    load = "from transformers import AutoTokenizer as T; T.from_pretrained(f).save_pretrained(f)"
    raise BertworksError(
        f"{path.name} of the family {style} cannot be read without tokenizer.json" if style
        else f"{path.name} does not say of which family it is",
        where=str(path),
        hint=f"make tokenizer.json: `python -c \"f = '{path.parent}'; {load}\"`" if style
        else "write the class into tokenizer_config.json, such as \"tokenizer_class\": \"XLMRobertaTokenizer\"",
    )  # fmt: skip


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


def sentencepiece_pipeline(path: Path, config: dict[str, Any], style: str, names: dict[str, str]) -> dict[str, Any]:
    """SentencePiece in the pipeline of its family: ids as in transformers. Of no family: as the sentencepiece library
    reads it, without special tokens around a text."""
    s = _read_sentencepiece(path)
    pieces, ids = s.pieces, {piece: number for number, (piece, _) in enumerate(s.pieces)}
    if not style:
        style = next((style for style, ends in _STYLE_MARKS.items() if ends <= ids.keys()), "sentencepiece")
        if style == "sentencepiece" and path.name == "sentencepiece.bpe.model":
            refuse_style(path, "")
    if style not in _STYLES:
        refuse_style(path, style)
    unk_id = s.unk_id
    if style == "xlmroberta":  # the ids of fairseq: <pad> comes in between, and <mask> last
        if [piece for piece, _ in pieces[:3]] != ["<unk>", "<s>", "</s>"]:
            raise BertworksError("its first pieces are not <unk>, <s> and </s>", where=str(path))
        first = [(token, 0.0) for token in ("<s>", "<pad>", "</s>", "<unk>")]
        pieces, unk_id = [*first, *pieces[3:], ("<mask>", 0.0)], 3
        ids = {piece: number for number, (piece, _) in enumerate(pieces)}
    model: dict[str, Any]
    if s.is_bpe:
        cuts = ((piece[:n], piece[n:]) for piece in ids for n in range(1, len(piece)))
        merges = [pair for pair in cuts if pair[0] in ids and pair[1] in ids]
        model = {"type": "BPE", "vocab": ids, "merges": merges, "unk_token": pieces[unk_id][0], "fuse_unk": True}
    else:
        model = {"type": "Unigram", "vocab": pieces, "unk_id": unk_id}
    model["byte_fallback"] = s.byte_fallback
    spaces = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    if style == "sentencepiece":
        spaces["prepend_scheme"] = "always" if s.adds_space else "never"
        spaces["split"] = not any("▁" in piece[1:] for piece in ids)
        pre_tokenizer = spaces
    else:
        pre_tokenizer = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, spaces]}
    tokens = spell_special_tokens(names, ids)
    single, pair = _STYLES[style]
    if "C" in single and not {"cls_token", "sep_token"} <= tokens.keys():
        raise BertworksError("the vocabulary lacks the special tokens of its family", where=str(path))
    normalizer = {"type": "Sequence", "normalizers": _sentencepiece_normalizers(s, style, config)}
    content = pipeline(model, normalizer, pre_tokenizer, single, pair, tokens, ids)
    content["decoder"] = spaces
    if s.byte_fallback:
        decoders: list[dict[str, Any]] = [{"type": "ByteFallback"}, {"type": "Fuse"}]
        decoders.insert(0, {"type": "Replace", "pattern": {"String": "▁"}, "content": " "})
        decoders.append({"type": "Strip", "content": " ", "start": int(s.adds_space), "stop": 0})
        content["decoder"] = {"type": "Sequence", "decoders": decoders}
    content["added_tokens"] = [added_token(token, ids[token], special=True) for token in s.control if token in ids]
    if s.is_bpe:
        # The scores of unigram pieces make them win by themselves.
        content["added_tokens"] += [
            added_token(token, ids[token], special=False) | {"normalized": False} for token in s.user_defined
        ]
    return content


def _sentencepiece_normalizers(s: _SentencePiece, style: str, config: dict[str, Any]) -> list[dict[str, Any]]:
    normalizers: list[dict[str, Any]] = []
    if style in ("albert", "xlnet"):
        normalizers += [{"type": "Replace", "pattern": {"String": quotes}, "content": '"'} for quotes in ("``", "''")]
        if config.get("keep_accents") is not True:
            normalizers += [{"type": "NFKD"}, {"type": "StripAccents"}]
        if config.get("do_lower_case", style == "albert") is not False:
            normalizers.append({"type": "Lowercase"})
    if s.charsmap:
        normalizers.append({"type": "Precompiled", "precompiled_charsmap": base64.b64encode(s.charsmap).decode()})
    if style == "sentencepiece" and s.removes_spaces:
        normalizers.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
        normalizers.append({"type": "Replace", "pattern": {"Regex": "^ | $"}, "content": ""})
    return normalizers


def _read_sentencepiece(path: Path) -> _SentencePiece:
    """A SentencePiece file: the protobuf message ModelProto of google/sentencepiece, src/sentencepiece_model.proto."""

    def field(message: Protobuf, number: int, default: Any) -> Any:
        value = message.get(number, [default])[-1]
        if isinstance(value, bytes) != isinstance(default, bytes):
            raise ValueError(f"field {number} is of another type")
        return value

    pieces: list[tuple[str, float]] = []
    kinds: dict[int, list[str]] = {}
    try:
        model = read_protobuf(read_small(path, _LARGEST_SENTENCEPIECE))
        trainer, normalizer = (read_protobuf(field(model, number, b"")) for number in (2, 3))
        for message in map(read_protobuf, model.get(1, [])):
            text = field(message, 1, b"").decode()
            (score,) = struct.unpack("<f", struct.pack("<I", field(message, 2, 0)))
            if not 0 < len(text) <= _LONGEST_PIECE or not math.isfinite(score):
                raise ValueError(f"piece {len(pieces)} is {text[:20]!r} with score {score}")
            kinds.setdefault(field(message, 3, 1), []).append(text)
            pieces.append((text, score))
        kind, unk_id = field(trainer, 3, 1), field(trainer, 40, 0)
        if kind not in (1, 2) or not pieces or len(dict(pieces)) < len(pieces) or not unk_id < len(pieces):
            raise ValueError("not a unigram or BPE model, or one with a repeated piece or without the unknown one")
        charsmap = bytes(field(normalizer, 2, b""))
    except (ValueError, IndexError, TypeError, AttributeError, struct.error) as error:
        raise BertworksError(f"a damaged SentencePiece file: {str(error)[:100]}", where=str(path)) from None
    flags = bool(field(trainer, 35, 0)), charsmap, bool(field(normalizer, 3, 1)), bool(field(normalizer, 4, 1))
    return _SentencePiece(pieces, kind == 2, unk_id, *flags, kinds.get(3, []), kinds.get(4, []))
