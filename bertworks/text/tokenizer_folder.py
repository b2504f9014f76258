"""Read Hugging Face tokenizer folders, and build tokenizers of the `tokenizers` library.

The files of a folder are read, checked and turned into the content of a tokenizer.json.

- tokenizer.json, as it is
- vocab.txt: WordPiece
- vocab.json and merges.txt: byte-level BPE, or GPT's BPE of lower-cased words
- spiece.model, sentencepiece.bpe.model, tokenizer.model, spm.model: SentencePiece (Kudo and
  Richardson 2018), unigram or BPE

What comes before and after a model:

- `bert_pipeline`: WordPiece, or another model with BERT's normalizer and template
- `byte_level_pipeline`: the bytes of a text as it is
- `sentencepiece_pipeline`: a SentencePiece file
- `spelling_pipeline`: whole words, without a vocabulary or with one
"""

import base64
import json
import math
import re
import struct
import unicodedata
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from bertworks.config import packaged_table
from bertworks.errors import BertworksError, check, quoted, require
from bertworks.events import JsonObject
from bertworks.io.atomic_write import parse_json, read_small
from bertworks.io.protobuf import last_value, read_protobuf

Result = TypeVar("Result")

_TABLES = packaged_table(__file__, "pipelines.toml")
NORMALIZER_SETTINGS: dict[str, str] = _TABLES["normalizer_settings"]
SPELLINGS: dict[str, list[str]] = _TABLES["spellings"]
_STYLES: dict[str, list[str]] = _TABLES["styles"]
# The front of the vocabulary of a family of SentencePiece files: how many pieces at the beginning
# of the file are not in the vocabulary, and the tokens that come in their place, in the order of
# their ids, with their scores.
_FIRST_TOKENS: dict[str, JsonObject] = _TABLES["first_tokens"]
# families of WordPiece vocabularies with RoBERTa's template, and their special tokens
WORD_PIECE_FAMILIES: dict[str, dict[str, str]] = _TABLES["word_piece_families"]
# with BERT's normalizer, of which tokenizer_config.json has the settings
WORD_PIECE_CLASSES: list[str] = _TABLES["word_piece_classes"]
END_OF_TEXT = "<|endoftext|>"
# The only token of a tokenizer without a vocabulary, of which each word is an unknown one.
SPELLING = "<spelling>"
_WORD_PATTERN: str = _TABLES["words"]["pattern"]
# [PAD], [UNK], [CLS], [SEP], [MASK]
SPECIAL_TOKENS = {name: spellings[0] for name, spellings in SPELLINGS.items()}
LONGEST_WORD = 100  # characters; a longer word becomes one [UNK]
_LARGEST_SENTENCEPIECE = 1 << 23  # bytes; that of XLM-R has 5 MB
# bytes of the pieces of a unigram model: the library takes up to 340 bytes for each
_LARGEST_TRIE = 1 << 22
_LONGEST_PIECE = 512  # characters; SentencePiece stops at 16 by default
# of a DeBERTa: in its folders it is read in the place of tokenizer.json
_PIECES = "spm.model"
_DEBERTA = "debertav2"
NO_TEMPLATE = _STYLES["sentencepiece"]
# read as the sentencepiece library reads them
_PLAIN_STYLES = ("sentencepiece", _DEBERTA)
_STYLE_MARKS = {"albert": {"[CLS]", "[SEP]"}, "xlnet": {"<cls>", "<sep>"}}
DEFAULT_LENGTH = 512
COPIED_FILES = (
    "vocab.json",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tokenizer.model",
    "merges.txt",
)
# the first that exists is read
VOCABULARY_FILES = ("tokenizer.json", "vocab.txt", *COPIED_FILES[:-1], _PIECES)
SETTINGS_FILES = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
# of a translator: the pieces of both languages, see `bertworks.text.marian`
SIDE_FILES = ("source.spm", "target.spm")
TOKENIZER_FILES = (
    *VOCABULARY_FILES,
    "merges.txt",
    *SETTINGS_FILES,
    *SIDE_FILES,
    "target_vocab.json",
)
_LARGEST_FILE = 1 << 25  # bytes; the tokenizer.json of LaBSE, with 500,000 words, has 10 MB
_LARGEST_VOCABULARY = 800_000
_MOST_ADDED = 10_000  # added tokens: the library takes minutes for a hundred thousand
_LARGEST_GROWTH = 256  # of a text, by the replacements of a normalizer
_LONGEST_TEMPLATE = 16  # special tokens and texts
_LONGEST_PATTERN = 1000  # characters of a regular expression; that of GPT-4o has 400
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")  # of an added token
_HAS_TEMPLATE: dict[str, bool] = _TABLES["has_template"]


def read_folder(folder: Path) -> tuple[Path, JsonObject]:
    """Read a tokenizer of any kind, with the settings of tokenizer_config.json if it is there.

    Returns the file that holds the vocabulary, and the arguments of `Tokenizer`.

    Raises:
        BertworksError: no such files, or files that are damaged; `where` is the file and, where
            known, the line.
    """
    config = read_object(folder / "tokenizer_config.json")
    settings = read_object(folder / "special_tokens_map.json") | config
    contents = {name: content_of(settings.get(name)) for name in SPECIAL_TOKENS}
    special_tokens = {name: token for name, token in contents.items() if token is not None}
    notes: list[str] = []
    path = _vocabulary_file(folder, config)
    if path is None:
        raise BertworksError(
            "no tokenizer here: neither tokenizer.json nor vocab.txt, vocab.json or spiece.model",
            where=folder,
            hint="make one with `bertworks vocab TEXT -o FOLDER`",
        )
    if path.name == "tokenizer.json":
        serialized = _as_configured(_read_text(path), path, config, notes)
    else:
        style = style_of(folder, config)
        if not style and path.name == _PIECES:
            style = _DEBERTA
        special_tokens = WORD_PIECE_FAMILIES.get(style, {}) | special_tokens
        read: Callable[..., tokenizers.Tokenizer] = _from_merges
        what = "not a tokenizer"
        if path.name == "vocab.txt":
            read = partial(_from_vocabulary, notes=notes)
        elif path.name != "vocab.json":
            read = sentencepiece_pipeline
            what = "a damaged SentencePiece file"
        library = guarded(lambda: read(path, config, special_tokens, style), what, str(path))
        _add_tokens(library, folder, settings, special_tokens, style)
        serialized = library.to_str()
        if path.name == _PIECES and (folder / "tokenizer.json").exists():
            notes += _differences(library, folder / "tokenizer.json")
    return path, {
        "serialized": serialized,
        "special_tokens": special_tokens,
        "model_max_length": length_of(config, notes),
        "notes": notes,
        "files": read_files(folder, COPIED_FILES),
    }


def _vocabulary_file(folder: Path, config: JsonObject) -> Path | None:
    """Return the file that holds the vocabulary of a folder; None: there is none."""
    first = ""
    if (folder / _PIECES).exists() and style_of(folder, config) == _DEBERTA:
        first = _PIECES
    paths = [folder / name for name in (first, *VOCABULARY_FILES) if name]
    return next((path for path in paths if path.exists()), None)


def _differences(library: tokenizers.Tokenizer, path: Path) -> list[str]:
    """Return a note if a tokenizer.json differs from the SentencePiece file beside it.

    transformers 5 writes one without the file's map of characters, so that it reads ligatures, wide
    letters and some white space otherwise than the published model was trained with.

    library: what the SentencePiece file says.
    """
    serialized = _read_text(path)
    guarded(lambda: check_description(serialized), "not a tokenizer", str(path))
    written: tokenizers.Tokenizer = guarded(
        lambda: tokenizers.Tokenizer.from_str(serialized), "not a tokenizer", str(path)
    )
    if library.get_vocab() != written.get_vocab():
        return [f"{path.name} has other tokens than {_PIECES}, which is used"]
    for text in _TABLES["probes"]:
        tokens, written_tokens = (
            part.encode(text, add_special_tokens=False).tokens for part in (library, written)
        )
        if tokens != written_tokens:
            return [
                f"{path.name} reads {text!r} as {written_tokens}, {_PIECES} as {tokens}: "
                "the latter is used, with which the published models were trained"
            ]
    return []


def read_plain(path: Path) -> JsonObject:
    """Read a tokenizer.json as it is, but for its template, which is left out.

    Returns arguments of `Tokenizer`. Files next to it are not read.

    Raises:
        BertworksError: as `read_folder`.
    """
    content = _parse_json(_read_text(path), path)
    serialized = json.dumps(content | {"post_processor": None}, ensure_ascii=False)
    return {"serialized": serialized, "needs_special_tokens": False}


def length_of(config: JsonObject, notes: list[str]) -> int:
    """Return the model_max_length of a tokenizer_config.json; without it the default and a note."""
    length = config.get("model_max_length")
    if not isinstance(length, int | float) or not 2 < length < 1e9:
        notes.append(f"model_max_length is not set: {DEFAULT_LENGTH} is used")
        length = DEFAULT_LENGTH
    return int(length)


def read_files(folder: Path, names: Iterable[str]) -> dict[str, bytes]:
    """Return the content of those of the files that the folder has."""
    return {
        name: read_small(folder / name, _LARGEST_FILE)
        for name in names
        if (folder / name).is_file()
    }


def read_vocabulary(path: Path, lowercase: bool | None) -> JsonObject:
    """Read a vocab.txt of any name. lowercase: None: inferred from the vocabulary, with a note.

    Returns arguments of `Tokenizer`.

    Raises:
        BertworksError: as `read_folder`.
    """
    notes: list[str] = []
    library = _from_vocabulary(path, {"do_lower_case": lowercase}, {}, "", notes)
    return {"serialized": library.to_str(), "notes": notes}


def check_description(serialized: str) -> JsonObject:
    """Return the content of a tokenizer.json.

    Refuses one that the library does not refuse itself, but crashes on, or for which it takes
    unlimited time or memory, or that contradicts itself. Nothing is run.

    Raises:
        BertworksError: such a content.
        Exception: any other, for a content that is no tokenizer.
    """
    content: JsonObject = json.loads(serialized)
    model = content.get("model")
    if not isinstance(model, dict) or "vocab" not in model:
        return content  # the library refuses it, and names the line
    vocabulary: Any = model["vocab"]
    if isinstance(vocabulary, list):
        refuse_large_trie(piece for piece, _ in vocabulary)
        vocabulary = {piece: number for number, (piece, _) in enumerate(vocabulary)}
    claims = [(token["content"], token["id"]) for token in content.get("added_tokens") or ()]
    ids = dict(claims) | vocabulary
    prefix = model.get("continuing_subword_prefix") or ""
    longest = model.get("max_input_chars_per_word", LONGEST_WORD)
    seconds = (
        pair.split(" ")[1] if isinstance(pair, str) else pair[1]
        for pair in model.get("merges") or ()
    )
    require(longest <= 10 * LONGEST_WORD, f"words of {longest:,} characters are too long")
    require(
        all(piece.startswith(prefix) for piece in seconds), f"a merge does not add {prefix!r:.40}"
    )
    require(
        (model.get("unk_token") or next(iter(ids), "")) in ids, "the vocabulary lacks its unk_token"
    )
    require(len(claims) <= _MOST_ADDED, f"{len(claims):,} added tokens: too many")
    require(sum(len(token) for token, _ in claims) <= 1 << 20, "the added tokens are too long")
    growth = 1.0
    parts = [
        content.get(name) for name in ("normalizer", "pre_tokenizer", "post_processor", "decoder")
    ]
    while parts:
        part: Any = parts.pop()
        parts += part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
        match part:
            case {"type": "Replace" | "Split", "pattern": {"Regex": pattern}}:
                _check_pattern(pattern)
                growth *= 1 + len(part.get("content", ""))  # which may stand between all characters
            case {"type": "Replace", "pattern": {"String": pattern}, "content": text}:
                growth *= max(1, len(text) / len(pattern)) if pattern else 1 + len(text)
            case {"type": "Prepend", "prepend": text}:
                growth *= 1 + len(text)
            case {"type": "Precompiled", "precompiled_charsmap": table}:
                growth *= charsmap_growth(base64.b64decode(table, validate=True))
            case {"type": "FixedLength", "length": length}:
                require(length >= 1, "words of length 0")
            case {"type": "BertProcessing" | "RobertaProcessing", "sep": sep, "cls": cls}:
                claims += sep, cls
            case {
                "type": "TemplateProcessing",
                "single": single,
                "pair": pair,
                "special_tokens": special,
            }:
                for pieces, texts in ((single, ["A"]), (pair, ["A", "B"])):
                    is_good = texts == [
                        piece["Sequence"]["id"] for piece in pieces if "Sequence" in piece
                    ]
                    is_good &= len(pieces) <= _LONGEST_TEMPLATE
                    require(
                        is_good, f"a template does not hold {' and '.join(texts)} once, in order"
                    )
                for token in special.values():
                    require(
                        len(token["tokens"]) == len(token["ids"]) == 1,
                        "several tokens for a special token",
                    )
                    claims.append((token["tokens"][0], token["ids"][0]))
    require(
        growth <= _LARGEST_GROWTH, f"the normalizer makes a text up to {growth:.0e} times as long"
    )
    for name, number in claims:
        require(
            number == ids.get(name),
            f"{name!r:.60} has the id {number!r:.20}, in the vocabulary {ids.get(name)}",
        )
    return content


def _replaced_until_stable(
    pattern: str, replacement: str | Callable[[re.Match[str]], str], text: str
) -> str:
    """Return a text in which matches are replaced, also those that replacements make."""
    while True:
        replaced = re.sub(pattern, replacement, text)
        if replaced == text:
            return text
        text = replaced


def _check_pattern(pattern: str) -> None:
    """Refuse a regular expression that may take exponential time, in oniguruma's syntax.

    It has a repeated group, a repeated repetition, a reference or a recursion; or several endless
    repetitions in a row.
    """
    plain = re.sub(r"\\[pP]\{\^?\w+\}|\\[^1-9gkKRX]", "x", pattern)
    # Classes of characters, also within classes.
    plain = _replaced_until_stable(r"\[\^?[^\[\]]+\]", "x", plain)
    is_plain = not re.search(
        r"\\|\)[*+{]|[*+?}][*{]|\}[+]|\{[\d,]*\d{4}|\(\?(?![:=!i]|<[=!])", plain
    )

    def endless(part: re.Match[str]) -> str:  # a sign for each endless repetition in a row
        return "*" * max(
            len(re.findall(r"[*+](?!\+)|,\}", branch)) for branch in part[1].split("|")
        )

    plain = _replaced_until_stable(r"\(([^()]*)\)", endless, plain)
    is_plain &= (
        len(pattern) <= _LONGEST_PATTERN
        and len(re.sub(r"^(.*)$", endless, plain, flags=re.DOTALL)) <= 2
    )
    require(is_plain, f"the regular expression {pattern!r:.60} may take endless time")


def count_cased(tokens: Sequence[str]) -> int:
    """How many tokens have capitals, save those in brackets."""
    return sum(token != token.lower() for token in tokens if not token.startswith("["))


def _read_text(path: Path) -> str:
    """Return a small UTF-8 file as it is.

    BertworksError with the line for a byte-order mark or bad bytes.
    """
    content = read_small(path, _LARGEST_FILE)
    has_mark = content.startswith(b"\xef\xbb\xbf")
    require(
        not has_mark, "begins with a byte-order mark", f"{path}:1", "save it as UTF-8 without BOM"
    )
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise BertworksError(
            "bytes that are not UTF-8", where=f"{path}:{line}", hint="save it as UTF-8"
        ) from None


def _parse_json(text: str, path: Path) -> JsonObject:
    """Return a JSON object without repeated keys.

    A token twice in a vocabulary has two ids, one of them lost.
    """

    def unique(pairs: list[tuple[str, Any]]) -> JsonObject:
        content = dict(pairs)
        if len(content) < len(pairs):
            twice = next(
                key for key, count in Counter(key for key, _ in pairs).items() if count > 1
            )
            lines = [
                number
                for number, line in enumerate(text.split("\n"), 1)
                if json.dumps(twice) in line
            ]
            where = f"{path}:{lines[-1]}" if lines else str(path)
            raise BertworksError(f"{twice!r} occurs twice", where=where, hint="remove one of them")
        return content

    content: JsonObject = parse_json(text.encode(), path, hook=unique)
    require(isinstance(content, dict), "a JSON object is expected", path)
    return content


def read_object(path: Path) -> JsonObject:
    """Return the object in a JSON file; empty if there is no file.

    Raises:
        BertworksError: the content is damaged, no object, or has a repeated key; `where` is the
            file and, where known, the line.
    """
    return _parse_json(_read_text(path), path) if path.exists() else {}


def content_of(token: Any) -> str | None:
    """Return the text of a token, which may be in an object with other settings."""
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else None


def _from_vocabulary(
    path: Path, config: JsonObject, names: dict[str, str], style: str, notes: list[str]
) -> tokenizers.Tokenizer:
    """Return WordPiece with the vocabulary of a vocab.txt.

    The casing is that of its config, else inferred with a note.
    """
    kinds = (
        config.get("word_tokenizer_type", "basic"),
        config.get("subword_tokenizer_type", "wordpiece"),
    )
    if config.get("tokenizer_class") == "BertJapaneseTokenizer" and kinds != ("basic", "wordpiece"):
        raise BertworksError(
            f"the pre-tokenizer {str(kinds[0])[:40]} and the model {str(kinds[1])[:40]} are "
            "not supported",
            where=path.with_name("tokenizer_config.json"),
            hint="choose a model with a tokenizer.json, or with the word splitting of BERT",
        )
    special_tokens = SPECIAL_TOKENS | names
    tokens = _read_vocabulary(path)
    for token in special_tokens.values():
        require(
            token in tokens, f"the vocabulary lacks {token}", path, "add it, one token per line"
        )
    normalizer = _normalizer_settings(config)
    if "lowercase" not in normalizer:
        cased = count_cased(tokens)
        lowercase = cased <= len(tokens) // 1000
        keeps_accents = (
            lowercase
            and "strip_accents" not in normalizer
            and any(unicodedata.normalize("NFD", token) != token for token in tokens)
        )
        inferred = {"lowercase": lowercase, "strip_accents": False if keeps_accents else None}
        normalizer = inferred | normalizer
        change = ("lower-cased" if lowercase else "left as it is") + (
            ", accents kept" if keeps_accents else ""
        )
        notes.append(
            f"casing inferred from the vocabulary: {cased} of {len(tokens)} tokens have capitals, "
            f"so text is {change}"
        )
    model = word_piece_model(tokens, special_tokens["unk_token"])
    return bert_pipeline(model, special_tokens, style, **normalizer)


def _normalizer_settings(config: JsonObject) -> dict[str, bool | None]:
    """Return the settings of the BertNormalizer in a tokenizer_config.json.

    A null is a value of strip_accents: accents are then removed if the text is lower-cased.
    """
    return {
        name: config[key]
        for key, name in NORMALIZER_SETTINGS.items()
        if isinstance(config.get(key), bool)
        or (key == "strip_accents" and config.get(key, True) is None)
    }


# What transformers takes for settings that a tokenizer_config.json lacks, whatever is in
# tokenizer.json.
_BERT_DEFAULTS: dict[str, bool | None] = {
    "lowercase": True,
    "strip_accents": None,
    "handle_chinese_chars": True,
}


def _as_configured(serialized: str, path: Path, config: JsonObject, notes: list[str]) -> str:
    """Return the description of a tokenizer with the settings of tokenizer_config.json.

    Where the two files of a BERT tokenizer contradict each other, transformers follows
    tokenizer_config.json. What this file lacks has the default of the class there, and not the
    value of tokenizer.json.
    """
    content = _parse_json(serialized, path)
    old = content.get("normalizer")
    name = str(config.get("tokenizer_class", "BertTokenizer")).removesuffix("Fast")
    if (
        name not in WORD_PIECE_CLASSES
        or not isinstance(old, dict)
        or old.get("type") != "BertNormalizer"
    ):
        return serialized
    settings = _normalizer_settings(config)
    # Without a class and without a network, transformers does not open the folder: tokenizer.json
    # is all there is.
    is_opened = "tokenizer_class" in config or path.with_name("config.json").exists()
    new = content["normalizer"] = old | (_BERT_DEFAULTS if is_opened else {}) | settings
    stated: list[str] = []
    absent: list[str] = []
    for key, field in NORMALIZER_SETTINGS.items():
        if new.get(field) != old.get(field):
            notes_of_field = stated if field in settings else absent
            notes_of_field.append(f"{key} {json.dumps(new[field])}")
    if not stated and not absent:
        return serialized
    if stated:
        notes.append(
            f"tokenizer_config.json has {', '.join(stated)}, unlike tokenizer.json: it is used, "
            "as in transformers"
        )
    if absent:
        notes.append(
            f"tokenizer_config.json lacks settings: {', '.join(absent)} is used, as in "
            "transformers, and not what tokenizer.json has"
        )
    return json.dumps(content, ensure_ascii=False)


def _read_vocabulary(path: Path) -> list[str]:
    text = _read_text(path).rstrip("\n")
    require(
        (count := text.count("\n") + 1) <= _LARGEST_VOCABULARY,
        f"{count:,} lines are not a vocabulary",
        path,
    )
    require(text != "", "the vocabulary is empty", f"{path}:1", "write one token per line")
    # one of them may be empty, as in a published vocabulary: a token that no text has
    lines = text.split("\n")
    seen: dict[str, int] = {}
    for number, token in enumerate(lines, 1):
        where = f"{path}:{number}"
        if token.endswith("\r"):
            raise BertworksError(
                "Windows line ends (CRLF)", where=where, hint=f"sed -i 's/\\r$//' {quoted(path)}"
            )
        if token in seen:
            raise BertworksError(
                f"{token!r} occurs twice, first in line {seen[token]}",
                where=where,
                hint="write a name like [unused1] there: what is behind it keeps its number"
                if not token
                else None,
            )
        seen[token] = number
    return lines


def style_of(folder: Path, config: JsonObject) -> str:
    """Return the family of a tokenizer, such as "roberta" or "albert".

    It is inferred from its class or its model; "": not stated.
    """
    for name in (
        config.get("tokenizer_class"),
        read_object(folder / "config.json").get("model_type"),
    ):
        style = re.sub(r"tokenizer(fast)?$|[-_]", "", str(name or "").lower())
        if style not in ("", "pretrained", "tokenizersbackend"):
            return style[:40]
    return ""


def _from_merges(
    path: Path, config: JsonObject, names: dict[str, str], style: str
) -> tokenizers.Tokenizer:
    """Return byte-level BPE (Radford et al. 2019), or GPT's BPE.

    The former is RoBERTa's, with <s> and </s> around a text, or GPT-2's without. The latter is of
    lower-cased words that end with </w> (Radford et al. 2018; Sennrich et al. 2016).
    """
    if style and style not in _HAS_TEMPLATE:
        refuse_style(path, style)
    ids = read_object(path)
    is_gpt = style == "openaigpt"
    has_ends = any(token.endswith("</w>") for token in ids)
    is_good = (has_ends if is_gpt else "Ġ" in ids and not has_ends) and all(
        type(n) is int for n in ids.values()
    )
    kind = "BPE with </w>" if is_gpt else "byte-level BPE"
    require(is_good, f"not the vocabulary of a {kind}", path, "use its tokenizer.json")
    require(
        sorted(ids.values()) == list(range(len(ids))),
        f"ids of the vocabulary are not 0..{len(ids) - 1}",
        path,
    )
    tokens = spell_special_tokens(names, ids)
    has_template = _HAS_TEMPLATE.get(style, {"<s>", "</s>"} <= ids.keys())
    require(
        not has_template or {"cls_token", "sep_token"} <= tokens.keys(),
        "the vocabulary lacks <s> or </s>",
        path,
    )
    require(not is_gpt or "unk_token" in tokens, "the vocabulary lacks <unk>", path)
    model = models.BPE(
        ids,
        _read_merges(path.with_name("merges.txt")),
        unk_token=tokens["unk_token"] if is_gpt else None,
        continuing_subword_prefix="",
        end_of_word_suffix="</w>" if is_gpt else "",
    )
    if not is_gpt:
        add_prefix_space = config.get("add_prefix_space") is True
        return byte_level_pipeline(model, tokens, has_template, add_prefix_space=add_prefix_space)
    library = tokenizers.Tokenizer(model)
    library.normalizer = normalizers.BertNormalizer(lowercase=True)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.BPEDecoder(suffix="</w>")
    library.post_processor = template(library, NO_TEMPLATE, {})
    return library


def _read_merges(path: Path) -> list[tuple[str, str]]:
    """Return the pairs of pieces of a merges.txt, in order."""
    merges = []
    for number, line in enumerate(_read_text(path).split("\n"), 1):
        if line and not line.startswith("#version"):
            first, _, second = line.partition(" ")
            require(
                line.count(" ") == 1,
                "not two pieces with one space between them",
                f"{path}:{number}",
            )
            merges.append((first, second))
    return merges


def _add_tokens(
    library: tokenizers.Tokenizer,
    folder: Path,
    settings: JsonObject,
    names: dict[str, str],
    style: str,
) -> None:
    """Add the tokens that a folder lists outside its vocabulary.

    Also those that it calls special.
    """
    added = read_object(folder / "added_tokens.json")
    more = settings.get("additional_special_tokens") or []
    decoder = settings.get("added_tokens_decoder") or {}
    require(isinstance(more, list), "additional_special_tokens is not a list", folder)
    is_map = isinstance(decoder, dict) and all(
        n.isdecimal() and isinstance(t, dict) for n, t in decoder.items()
    )
    require(is_map, "added_tokens_decoder does not map ids to tokens", folder)
    count = len(added) + len(more) + len(decoder)
    require(count <= _MOST_ADDED, f"{count:,} added tokens: too many", folder)
    ids: dict[str, int] = library.get_vocab() | added
    entries: dict[str, JsonObject] = {token: {"special": False} for token in added}
    entries |= {str(content_of(token)): token if isinstance(token, dict) else {} for token in more}
    for number, token in decoder.items():
        ids.setdefault(str(content_of(token)), int(number[:10]))
        entries[str(content_of(token))] = token
    named = spell_special_tokens(names, ids)
    named |= {
        name: str(content_of(settings.get(name)))
        for name in ("bos_token", "eos_token")
        if name in settings
    }
    for name, token in named.items():
        if token in ids:
            # The mask replaces a word together with the space before it.
            takes_space = name == "mask_token" and style != _DEBERTA
            flags = (
                settings[name] if isinstance(settings.get(name), dict) else {"lstrip": takes_space}
            )
            entries[token] = entries.get(token, {}) | flags | {"special": True}
    if isinstance(library.model, models.WordPiece):  # its special tokens stay as they are
        present = {token.content for token in library.get_added_tokens_decoder().values()}
        entries = {token: flags for token, flags in entries.items() if token not in present}
    for token in entries:
        has_place = type(ids.get(token)) is int and 0 <= ids[token] < len(ids)
        require(
            has_place,
            f"the added token {token[:60]!r} has no place in the vocabulary",
            folder,
            "give it the next number in added_tokens.json",
        )
    added_tokens = []
    for token in sorted(entries, key=ids.__getitem__):
        flags = {
            flag: value
            for flag, value in entries[token].items()
            if flag in _FLAGS and isinstance(value, bool)
        }
        special = flags.setdefault("special", True)  # unless the folder says otherwise
        added_tokens.append(AddedToken(token, **({"normalized": not special} | flags)))
    library.add_tokens(added_tokens)


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
    added = dict(special_tokens)
    if style in WORD_PIECE_FAMILIES:
        library.post_processor = _roberta_template(library, special_tokens)
        del added["mask_token"]
    else:
        library.post_processor = template(library, _STYLES["albert"], special_tokens)
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
    patterns: Sequence[str] = (),
    composes: bool = False,
) -> tokenizers.Tokenizer:
    """Return a tokenizer of the bytes of a text as it is, with RoBERTa's template or none.

    patterns: of another template, as for `template`. composes: accents and their letters become one
        character first (NFC).
    """
    library = tokenizers.Tokenizer(model)
    if composes:
        library.normalizer = normalizers.NFC()
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    library.decoder = decoders.ByteLevel()
    if patterns:
        library.post_processor = template(library, patterns, special_tokens)
    elif has_template:
        library.post_processor = _roberta_template(
            library, special_tokens, add_prefix_space=add_prefix_space
        )
    else:
        library.post_processor = template(library, NO_TEMPLATE, special_tokens)
    return library


def spelling_pipeline(model: models.Model | None = None) -> tokenizers.Tokenizer:
    """Return a tokenizer of whole words as ELMo reads them: case and accents stay.

    model: of which each token is a word. None: there is no vocabulary. Of the only token the
        encoding of a text then has one for each word, with the word in `tokens`.
    """
    without_vocabulary = models.Unigram([(SPELLING, 0.0)], 0, False)
    library = tokenizers.Tokenizer(without_vocabulary if model is None else model)
    library.normalizer = normalizers.Replace("\0", "")  # which ends a spelling
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Split(Regex(_WORD_PATTERN), "isolated"),
        ]
    )
    return library


def template(
    library: tokenizers.Tokenizer, patterns: Sequence[str], special_tokens: Mapping[str, str]
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
    spellings = SPELLINGS | {name: [token] for name, token in names.items()}
    known = {name: [token for token in spellings[name] if token in tokens] for name in SPELLINGS}
    return {name: known_tokens[0] for name, known_tokens in known.items() if known_tokens}


def refuse_style(path: Path, style: str) -> NoReturn:
    """Raise BertworksError for a family with its own normalization and ids.

    It is not read as if it were another.
    """
    load = "from transformers import AutoTokenizer as T; T.from_pretrained(f).save_pretrained(f)"
    raise BertworksError(
        f"{path.name} of the family {style} cannot be read without tokenizer.json",
        where=path,
        hint=f"make tokenizer.json: `python -c {quoted(f'f = {str(path.parent)!r}; {load}')}`",
    )


def sentencepiece_pipeline(
    path: Path, config: JsonObject, names: dict[str, str], style: str
) -> tokenizers.Tokenizer:
    """SentencePiece in the pipeline of its family: ids as in transformers.

    Of no family: as the sentencepiece library reads it, without special tokens around a text.

    The file is the protobuf message ModelProto of google/sentencepiece,
    src/sentencepiece_model.proto.
    """
    content = read_protobuf(read_small(path, _LARGEST_SENTENCEPIECE))
    trainer, normalizer = (read_protobuf(last_value(content, number, b"")) for number in (2, 3))
    pieces, kinds = _read_pieces(content.get(1, []))
    known = {piece for piece, _ in pieces}
    is_bpe = last_value(trainer, 3, 1) == 2
    byte_fallback = bool(last_value(trainer, 35, 0))
    unk_id = last_value(trainer, 40, 0)
    charsmap = last_value(normalizer, 2, b"")
    adds_space = bool(last_value(normalizer, 3, 1))  # in front of a text
    check(
        last_value(trainer, 3, 1) in (1, 2) and len(known) == len(pieces) > unk_id,
        "not a unigram or BPE model, or one with a repeated piece or without the unknown one",
    )
    if not style:
        style = next(
            (style for style, ends in _STYLE_MARKS.items() if ends <= known), "sentencepiece"
        )
        if style == "sentencepiece" and path.name == "sentencepiece.bpe.model":
            raise BertworksError(
                f"{path.name} does not say of which family it is",
                where=path,
                hint='write the class into tokenizer_config.json, such as "tokenizer_class": '
                '"XLMRobertaTokenizer"',
            )
    if style not in _STYLES:
        refuse_style(path, style)
    if style in _FIRST_TOKENS:
        # ids are not the numbers of the pieces in the file: the tokens of the family stand at the
        # front, and <mask> at the end
        first_tokens = _FIRST_TOKENS[style]
        is_fairseq = [piece for piece, _ in pieces[:3]] == ["<unk>", "<s>", "</s>"]
        require(is_fairseq, "its first pieces are not <unk>, <s> and </s>", path)
        front = [(token, float(score)) for token, score in first_tokens["scores"].items()]
        pieces = [*front, *pieces[first_tokens["replaced_pieces"] :], ("<mask>", 0.0)]
        unk_id = [piece for piece, _ in pieces].index("<unk>")
    require(
        style != _DEBERTA or config.get("split_by_punct") is not True,
        "split_by_punct is true: texts that are split at punctuation first are not supported",
        path.with_name("tokenizer_config.json"),
        "use a model without it, such as microsoft/deberta-v3-base",
    )
    ids = {piece: number for number, (piece, _) in enumerate(pieces)}
    tokens = spell_special_tokens(names, ids)
    is_complete = "C" not in _STYLES[style][0] or {"cls_token", "sep_token"} <= tokens.keys()
    require(is_complete, "the vocabulary lacks the special tokens of its family", path)
    model: models.Model
    if is_bpe:
        cuts = ((piece[:n], piece[n:]) for piece in ids for n in range(1, len(piece)))
        merges = [pair for pair in cuts if pair[0] in ids and pair[1] in ids]
        model = models.BPE(
            ids, merges, unk_token=pieces[unk_id][0], fuse_unk=True, byte_fallback=byte_fallback
        )
    else:
        model = models.Unigram(pieces, unk_id, byte_fallback)
    library = tokenizers.Tokenizer(model)
    steps: list[normalizers.Normalizer] = []
    if style in ("albert", "xlnet"):
        steps += [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
        if config.get("keep_accents") is not True:
            steps += [normalizers.NFKD(), normalizers.StripAccents()]
        if config.get("do_lower_case", style == "albert") is not False:
            steps.append(normalizers.Lowercase())
    if style == _DEBERTA and config.get("do_lower_case") is True:
        steps.append(normalizers.Lowercase())
    if charsmap:
        charsmap_growth(charsmap)
        steps.append(normalizers.Precompiled(charsmap))
    # remove_extra_whitespaces: spaces at both ends of a text, and repeated ones
    if style in _PLAIN_STYLES and last_value(normalizer, 4, 1):
        steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Replace(Regex("^ | $"), "")]
    library.normalizer = normalizers.Sequence(steps)
    is_family = style not in _PLAIN_STYLES
    scheme = "always" if is_family or adds_space else "never"
    split = is_family or not any("▁" in piece[1:] for piece in ids)
    spaces = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split)
    library.pre_tokenizer = (
        pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), spaces]) if is_family else spaces
    )
    library.post_processor = template(library, _STYLES[style], tokens)
    library.decoder = decoders.Metaspace(prepend_scheme=scheme, split=split)
    if byte_fallback:
        bytes_to_text = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        library.decoder = decoders.Sequence(
            [*bytes_to_text, decoders.Strip(" ", int(adds_space), 0)]
        )
    control = kinds.get(3, [])  # special tokens, which no text has
    user_defined = kinds.get(4, [])  # tokens that are never split
    library.add_special_tokens([token for token in control if token in ids])
    if style == _DEBERTA:  # the mask is behind the pieces
        library.add_special_tokens([names.get("mask_token", SPECIAL_TOKENS["mask_token"])])
    if is_bpe:  # in a unigram model their scores keep them whole
        library.add_tokens([AddedToken(token, normalized=False) for token in user_defined])
    return library


def _read_pieces(messages: list[Any]) -> tuple[list[tuple[str, float]], dict[int, list[str]]]:
    """Return the pieces of a SentencePiece file with their scores, and the pieces by kind.

    A kind is the number of a `Type` of ModelProto.
    """
    pieces: list[tuple[str, float]] = []
    kinds: dict[int, list[str]] = {}
    for message in map(read_protobuf, messages):
        text = last_value(message, 1, b"").decode()
        (score,) = struct.unpack("<f", struct.pack("<I", last_value(message, 2, 0)))
        if not 0 < len(text) <= _LONGEST_PIECE or not math.isfinite(score):
            raise ValueError(f"piece {len(pieces)} is {text[:20]!r} with score {score}")
        kinds.setdefault(last_value(message, 3, 1), []).append(text)
        pieces.append((text, score))
    refuse_large_trie(text for text, _ in pieces)
    return pieces, kinds
