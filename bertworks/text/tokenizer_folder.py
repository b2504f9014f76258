"""Hugging Face tokenizer folders: reading and checking their files, and the content of a tokenizer.json."""

import json
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertworks.errors import BertworksError
from bertworks.io.atomic_write import read_small, refuse_many_parts

SPECIAL_TOKENS = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
DEFAULT_LENGTH = 512
LONGEST_WORD = 100  # characters; a longer word is one [UNK]
_NORMALIZING = {  # in tokenizer_config.json: in the normaliser of a tokenizer.json
    "do_lower_case": "lowercase", "strip_accents": "strip_accents", "tokenize_chinese_chars": "handle_chinese_chars"
}  # fmt: skip
_LARGEST_FILE = 1 << 25  # bytes; the tokenizer.json of LaBSE, with 500,000 words, has 10 MB
_LARGEST_VOCABULARY = 800_000
_MOST_ADDED = 10_000  # tokens that stay whole in any text: the library takes minutes for a hundred thousand


@dataclass(frozen=True)
class TokenizerFolder:
    """What was read: the text of a tokenizer.json and what stands beside it."""

    path: Path  # the file that holds the vocabulary
    serialized: str
    special_tokens: dict[str, str]
    model_max_length: int
    notes: tuple[str, ...]  # guesses that a person should know of


def read_folder(folder: Path) -> TokenizerFolder:
    """Read tokenizer.json, or vocab.txt with or without tokenizer_config.json.

    Raises:
        BertworksError: no such files, or files that are damaged; `where` is the file and, where known, the line.
    """
    config = _read_json(folder / "tokenizer_config.json")
    stated = _read_json(folder / "special_tokens_map.json") | config
    special_tokens = {name: _written(stated.get(name)) or default for name, default in SPECIAL_TOKENS.items()}
    notes: list[str] = []
    if (path := folder / "tokenizer.json").exists():
        serialized = _as_configured(_read_text(path), path, config, notes)
    elif (path := folder / "vocab.txt").exists():
        _refuse_other_words(folder, config)
        content = _from_vocabulary(path, config, special_tokens, notes)
        _add_tokens(content, folder, stated.get("additional_special_tokens"))
        serialized = json.dumps(content)
    else:
        raise BertworksError(
            "no tokenizer here: neither tokenizer.json nor vocab.txt",
            where=str(folder),
            hint="make one with `bertworks vocab TEXT -o FOLDER`",
        )
    length = config.get("model_max_length")
    if not isinstance(length, int | float) or isinstance(length, bool) or not 2 < length < 1e9:
        notes.append(f"model_max_length is not set: {DEFAULT_LENGTH} is used")
        length = DEFAULT_LENGTH
    return TokenizerFolder(path, serialized, special_tokens, int(length), tuple(notes))


def read_vocabulary(path: Path, *, lowercase: bool | None, model_max_length: int) -> TokenizerFolder:
    """Read a vocab.txt alone, whatever it is called. lowercase: None: guessed, and noted.

    Raises:
        BertworksError: as `read_folder`.
    """
    notes: list[str] = []
    config = {} if lowercase is None else {"do_lower_case": lowercase}
    serialized = json.dumps(_from_vocabulary(path, config, SPECIAL_TOKENS, notes))
    return TokenizerFolder(path, serialized, dict(SPECIAL_TOKENS), model_max_length, tuple(notes))


def bert_pipeline(
    model: dict[str, Any],
    ids: dict[str, int],
    special_tokens: dict[str, str],
    *,
    lowercase: bool,
    strip_accents: bool | None,
    chinese_characters: bool = True,
) -> dict[str, Any]:
    """The content of a tokenizer.json around a WordPiece model: BERT's normaliser, pre-tokeniser and template.

    Args:
        model: the `model` part.
        ids: id of each of the special tokens as they are written.
        special_tokens: as for Tokenizer.
        strip_accents: None follows `lowercase`.
        chinese_characters: put every Chinese character on its own.
    """
    cls_token, sep_token = special_tokens["cls_token"], special_tokens["sep_token"]

    def piece(kind: str, name: str, type_id: int) -> dict[str, Any]:
        return {kind: {"id": name, "type_id": type_id}}

    single = [piece("SpecialToken", cls_token, 0), piece("Sequence", "A", 0), piece("SpecialToken", sep_token, 0)]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            _added_token(token, number, special=True)
            for number, token in sorted((ids[token], token) for token in set(special_tokens.values()))
        ],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": chinese_characters,
            "strip_accents": strip_accents,
            "lowercase": lowercase,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": single,
            "pair": [*single, piece("Sequence", "B", 1), piece("SpecialToken", sep_token, 1)],
            "special_tokens": {
                token: {"id": token, "ids": [ids[token]], "tokens": [token]} for token in (cls_token, sep_token)
            },
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": model,
    }


def _added_token(token: str, number: int, *, special: bool) -> dict[str, Any]:
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


def count_cased(tokens: Sequence[str]) -> int:
    """How many tokens have capitals, save those in brackets."""
    return sum(token != token.lower() for token in tokens if not token.startswith("["))


def _read_text(path: Path) -> str:
    """A small UTF-8 file as it is; BertworksError with the line for a byte-order mark or bad bytes."""
    content = read_small(path, _LARGEST_FILE)
    if content.startswith(b"\xef\xbb\xbf"):
        raise BertworksError("begins with a byte-order mark", where=f"{path}:1", hint="save it as UTF-8 without BOM")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise BertworksError("bytes that are not UTF-8", where=f"{path}:{line}", hint="save it as UTF-8") from None


def _parse_json(text: str, path: Path) -> dict[str, Any]:
    """A JSON object without repeated keys (a token twice in a vocabulary has two ids, one of them lost)."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
            lines = [number for number, line in enumerate(text.split("\n"), 1) if json.dumps(twice) in line]
            where = f"{path}:{lines[-1]}" if lines else str(path)
            raise BertworksError(f"{twice!r} is there twice", where=where, hint="remove one of them")
        return found

    refuse_many_parts(text.encode(), path)
    try:
        content = json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        raise BertworksError(f"not valid JSON: {error.msg}", where=f"{path}:{error.lineno}") from None
    except (RecursionError, ValueError):
        raise BertworksError("not JSON of a tokenizer: nested too deeply, or absurd numbers", where=str(path)) from None
    if not isinstance(content, dict):
        raise BertworksError("a JSON object is expected", where=str(path))
    return content


def _read_json(path: Path) -> dict[str, Any]:
    """What a file says; nothing where there is none."""
    return _parse_json(_read_text(path), path) if path.exists() else {}


def _written(token: Any) -> str | None:
    """How a token is written, which may be said in an object with more about it."""
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else None


def _from_vocabulary(
    path: Path, config: dict[str, Any], special_tokens: dict[str, str], notes: list[str]
) -> dict[str, Any]:
    """The content of a tokenizer.json for a vocab.txt, with the casing of its config, or a guess that is noted."""
    tokens = _read_vocabulary(path)
    for token in special_tokens.values():
        if token not in tokens:
            raise BertworksError(f"the vocabulary lacks {token}", where=str(path), hint="add it, one token per line")
    lowercase, strip_accents = config.get("do_lower_case"), config.get("strip_accents")
    if not isinstance(lowercase, bool):
        cased = count_cased(tokens)
        lowercase = cased <= len(tokens) // 1000
        accented = any(unicodedata.normalize("NFD", token) != token for token in tokens)
        strip_accents = False if lowercase and accented else None
        notes.append(
            f"casing guessed from the vocabulary: {cased} of {len(tokens)} tokens have capitals, so text is "
            + ("lower-cased" if lowercase else "left as it is")
            + (", accents kept" if strip_accents is False else "")
        )
    model = word_piece_model(tokens, special_tokens["unk_token"])
    return bert_pipeline(
        model,
        model["vocab"],
        special_tokens,
        lowercase=lowercase,
        strip_accents=strip_accents if isinstance(strip_accents, bool) else None,
        chinese_characters=config.get("tokenize_chinese_chars", True) is not False,
    )


def _as_configured(serialized: str, path: Path, config: dict[str, Any], notes: list[str]) -> str:
    """Where the two files of a BERT tokenizer contradict each other, transformers follows tokenizer_config.json."""
    content = _parse_json(serialized, path)
    added = content.get("added_tokens")
    if isinstance(added, list) and len(added) > _MOST_ADDED:
        raise BertworksError(f"{len(added):,} added tokens: too many", where=str(path))
    normalizer = content.get("normalizer")
    if not isinstance(normalizer, dict) or normalizer.get("type") != "BertNormalizer":
        return serialized
    if config.get("tokenizer_class", "BertTokenizer") not in ("BertTokenizer", "BertTokenizerFast"):
        return serialized
    changed = [
        (theirs, name)
        for theirs, name in _NORMALIZING.items()
        if isinstance(config.get(theirs), bool) and config[theirs] != normalizer.get(name)
    ]
    if not changed:
        return serialized
    content["normalizer"] = normalizer | {name: config[theirs] for theirs, name in changed}
    said = ", ".join(f"{theirs} {str(config[theirs]).lower()}" for theirs, _ in changed)
    notes.append(f"tokenizer_config.json says {said}, unlike tokenizer.json: followed, as in transformers")
    return json.dumps(content, ensure_ascii=False)


def _refuse_other_words(folder: Path, config: dict[str, Any]) -> None:
    """A vocab.txt of pieces of words that another program finds must not be read as if they stood between spaces."""
    kinds = config.get("word_tokenizer_type", "basic"), config.get("subword_tokenizer_type", "wordpiece")
    if config.get("tokenizer_class") == "BertJapaneseTokenizer" and kinds != ("basic", "wordpiece"):
        raise BertworksError(
            f"its words are found by {str(kinds[0])[:40]} and cut by {str(kinds[1])[:40]}, which is not done here",
            where=str(folder / "tokenizer_config.json"),
            hint="choose a model with a tokenizer.json, or one whose words are those of BERT",
        )


def _add_tokens(content: dict[str, Any], folder: Path, special: Any) -> None:
    """Add the tokens that old folders keep beside their vocabulary, and those that they call special."""
    added = _read_json(folder / "added_tokens.json")
    if not isinstance(special, list | None):
        raise BertworksError("additional_special_tokens is no list", where=str(folder))
    more = [str(token.get("content") if isinstance(token, dict) else token) for token in special or []]
    if len(added) + len(more) > _MOST_ADDED:
        raise BertworksError(f"{len(added) + len(more):,} added tokens: too many", where=str(folder))
    ids = content["model"]["vocab"] | added
    known = {token["content"] for token in content["added_tokens"]}
    for token in sorted({*added, *more} - known, key=str):
        if not isinstance(token, str) or type(ids.get(token)) is not int or not 0 <= ids[token] < len(ids):
            what = f"the added token {str(token)[:60]!r} has no place in the vocabulary"
            raise BertworksError(what, where=str(folder), hint="give it the next number in added_tokens.json")
        content["added_tokens"].append(_added_token(token, ids[token], special=token in more))
    content["added_tokens"].sort(key=lambda token: token["id"])


def _read_vocabulary(path: Path) -> list[str]:
    text = _read_text(path).rstrip("\n")
    if text.count("\n") >= _LARGEST_VOCABULARY:
        raise BertworksError(f"{text.count(chr(10)) + 1:,} lines are no vocabulary", where=str(path))
    if not text:
        raise BertworksError("the vocabulary is empty", where=f"{path}:1", hint="write one token per line")
    lines = text.split("\n")  # one of them may be empty, as in a published vocabulary: a token that no text has
    seen: dict[str, int] = {}
    for number, token in enumerate(lines, 1):
        where = f"{path}:{number}"
        if token.endswith("\r"):
            raise BertworksError("Windows line ends (CRLF)", where=where, hint=f"sed -i 's/\\r$//' {path}")
        if token in seen:
            hint = "write a name like [unused1] there: what is behind it keeps its number" if not token else None
            raise BertworksError(f"{token!r} is there twice, first in line {seen[token]}", where=where, hint=hint)
        seen[token] = number
    return lines
