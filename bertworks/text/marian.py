"""Tokenizer folders of Marian translators, such as OPUS-MT's (Tiedemann and Thottingal 2020).

A folder has two SentencePiece files, source.spm and target.spm, and a vocab.json with the ids of
the pieces of both. SentencePiece splits a text by the pieces of its side alone, and looks up ids
afterwards, as MarianTokenizer of transformers does:

- A piece that vocab.json lacks is unknown.
- A run of unknown characters is one unknown token, unless the whole run is a piece of the other
  side.

So the model of a side has the tokens of vocab.json in the order of their ids, and behind them the
pieces that vocab.json lacks. A token that is no piece of this side has a space in front: spaces of
a text are "▁" before the model reads it, so no text has this token. `Tokenizer` turns the ids of
the model into those of vocab.json.

- `is_marian`, `read_marian`: such a folder, as the arguments of two `Tokenizer`s
- `target_languages`, `split_language`: the token that says into which language a text goes
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import processors

from bertworks.errors import UsageError, expect, first_names, require
from bertworks.events import JsonObject
from bertworks.text.tokenizer_folder import (
    DEFAULT_LENGTH,
    SETTINGS_FILES,
    SIDE_FILES,
    content_of,
    guarded,
    length_of,
    read_files,
    read_object,
    refuse_large_trie,
    sentencepiece_pipeline,
    style_of,
)

_VOCABULARY = "vocab.json"
_SEPARATE_VOCABULARY = "target_vocab.json"
# names in `Tokenizer` -> names in the settings of the folder, and the usual spelling
_SPECIAL_TOKENS = {
    "sep_token": ("eos_token", "</s>"),
    "unk_token": ("unk_token", "<unk>"),
    "pad_token": ("pad_token", "<pad>"),
}
# settings that name further tokens
_ADDED_TOKENS = ("additional_special_tokens", "extra_special_tokens", "added_tokens_decoder")
# Of the pieces of a SentencePiece file, those in vocab.json: with fewer the file belongs to another
# model, or there is a note.
_FEW_PIECES = 0.5
_MOST_PIECES = 0.95
_GET_FILES = (
    f"get the folder again: {', '.join(SIDE_FILES)} and {_VOCABULARY} of one model belong together"
)


def is_marian(folder: Path) -> bool:
    """Whether a folder has the tokenizer files of a Marian translator, or some of them."""
    if any((folder / name).exists() for name in SIDE_FILES):
        return True
    is_complete = (folder / "tokenizer.json").exists()
    return not is_complete and style_of(folder, _settings(folder)) == "marian"


def read_marian(folder: Path) -> dict[Path, JsonObject]:
    """Return the files of the pieces of source and target, with the arguments of `Tokenizer`.

    Raises:
        BertworksError: a file is missing or damaged, the files are not of one model, source and
            target have vocabularies of their own, or the settings name tokens that the vocabulary
            lacks; `where` is the file.
    """
    config = _settings(folder)
    is_separate = config.get("separate_vocabs") is True
    require(
        not is_separate and not (folder / _SEPARATE_VOCABULARY).exists(),
        "separate vocabularies of source and target (separate_vocabs) are not supported",
        folder,
        f"choose a model with one {_VOCABULARY} for both languages",
    )
    for name in (*SIDE_FILES, _VOCABULARY):
        require((folder / name).is_file(), f"the folder lacks {name}", folder, _GET_FILES)
    ids = _read_ids(folder / _VOCABULARY)
    special_tokens = {
        name: content_of(config.get(setting)) or usual
        for name, (setting, usual) in _SPECIAL_TOKENS.items()
    }
    missing = [token for token in special_tokens.values() if token not in ids]
    require(
        not missing, f"the vocabulary lacks {', '.join(missing)}", folder / _VOCABULARY, _GET_FILES
    )
    _refuse_further_tokens(folder, config, special_tokens.values())
    notes: list[str] = []
    if config.get("clean_up_tokenization_spaces") is True:
        notes.append("clean_up_tokenization_spaces is not applied: translations keep their spaces")
    arguments = {
        "special_tokens": special_tokens,
        "model_max_length": length_of({"model_max_length": DEFAULT_LENGTH} | config, notes),
        "vocabulary": list(ids),
        "notes": notes,
        "files": read_files(folder, (*SIDE_FILES, _VOCABULARY, *SETTINGS_FILES)),
    }
    return {
        folder / name: arguments | {"serialized": _side(folder / name, ids, special_tokens, notes)}
        for name in SIDE_FILES
    }


def _settings(folder: Path) -> JsonObject:
    return read_object(folder / "special_tokens_map.json") | read_object(
        folder / "tokenizer_config.json"
    )


def _read_ids(path: Path) -> dict[str, int]:
    """Return the tokens of a vocab.json with their ids, in the order of the ids."""
    ids: dict[str, Any] = read_object(path)
    wrong = [token for token, number in ids.items() if type(number) is not int]
    require(not wrong, f"the ids of {first_names(wrong)!r:.60} are not whole numbers", path)
    guarded(lambda: refuse_large_trie(ids), "not a vocabulary", str(path))
    tokens = sorted(ids, key=ids.__getitem__)
    for number, token in enumerate(tokens):
        require(
            ids[token] == number,
            f"the ids are not 0 to {len(ids) - 1}, each once: {token!r:.60} has the id "
            f"{ids[token]} where {number} is expected",
            path,
        )
    return {token: ids[token] for token in tokens}


def _refuse_further_tokens(folder: Path, config: JsonObject, special_tokens: Iterable[str]) -> None:
    """Refuse tokens that the settings add to the special ones."""
    added = set(read_object(folder / "added_tokens.json"))
    for name in _ADDED_TOKENS:
        tokens = config.get(name) or []
        require(isinstance(tokens, list | dict), f"{name} is not a list of tokens", folder)
        added |= {
            str(content_of(t)) for t in (tokens.values() if isinstance(tokens, dict) else tokens)
        }
    further = sorted(added - set(special_tokens))
    require(
        not further,
        f"tokens added to the vocabulary of a translator are not supported: {first_names(further)}",
        folder,
        "remove them from the settings of the tokenizer, or choose another model",
    )


def _side(
    path: Path, ids: Mapping[str, int], special_tokens: Mapping[str, str], notes: list[str]
) -> str:
    """Return the tokenizer.json of one side, as this module describes it."""
    base = guarded(
        lambda: sentencepiece_pipeline(path, {}, {}, "sentencepiece"),
        "a damaged SentencePiece file",
        str(path),
    )
    content: JsonObject = json.loads(base.to_str())
    model: JsonObject = content["model"]
    require(model["type"] == "Unigram", "not a unigram model of SentencePiece", path)
    # The library would read bytes and spaces differently from SentencePiece.
    removes_spaces = " {2,}" in json.dumps(content["normalizer"])
    require(
        removes_spaces and not model["byte_fallback"],
        "byte_fallback, and texts with their extra white space, are not supported in a translator",
        path,
    )
    unknown, _ = model["vocab"][model["unk_id"]]
    control = {token["content"] for token in content["added_tokens"]}
    symbols = {unknown, *control, *special_tokens.values()}  # no text has these pieces
    scores = {piece: score for piece, score in model["vocab"] if piece not in symbols}
    further = [[piece, score] for piece, score in scores.items() if piece not in ids]
    num_own = len(scores) - len(further)
    figure = f"only {num_own:,} of its {len(scores):,} pieces are in {_VOCABULARY}"
    require(
        num_own > _FEW_PIECES * len(scores),
        f"the SentencePiece file of another model: {figure}",
        path,
        _GET_FILES,
    )
    if num_own < _MOST_PIECES * len(scores):
        notes.append(f"{path.name}: {figure}; texts with others have unknown tokens")
    of_vocabulary = [
        [token, scores[token]] if token in scores else [f" {token}", 0.0] for token in ids
    ]
    model["vocab"] = of_vocabulary + further
    model["unk_id"] = ids[special_tokens["unk_token"]]
    content["added_tokens"] = []
    without_spaces = {"type": "Replace", "pattern": {"String": " "}, "content": ""}
    content["decoder"] = {"type": "Sequence", "decoders": [without_spaces, content["decoder"]]}
    library = guarded(
        lambda: tokenizers.Tokenizer.from_str(json.dumps(content)), "not a tokenizer", str(path)
    )
    end = special_tokens["sep_token"]
    library.post_processor = processors.TemplateProcessing(
        single=["$A", f" {end}"],
        pair=["$A", "$B", f" {end}"],
        special_tokens=[(f" {end}", ids[end])],
    )
    library.add_special_tokens(list(special_tokens.values()))
    return str(library.to_str())


def target_languages(tokens: Iterable[str]) -> dict[str, int]:
    """Return the languages into which a model translates, with the ids of their tokens, in order.

    The token of German is `>>deu<<`, its language "deu". A model with one target language has none.

    Args:
        tokens: the vocabulary of the model, as `Tokenizer.tokens`.
    """
    return {
        token[2:-2]: number
        for number, token in enumerate(tokens)
        if token.startswith(">>") and token.endswith("<<") and len(token) > 4
    }


def split_language(
    text: str, languages: Mapping[str, int], language: str | None = None
) -> tuple[list[int], str]:
    """Return the ids that stand in front of the tokens of a source text, and the text to encode.

    A text may begin with the token of its target language, as in ">>deu<< Good morning.". This
    token counts more than `language`, and is not in the text that is returned. The ids are those of
    MarianTokenizer of transformers. It also reads `>>`, any characters and `<<` at the beginning as
    an unknown token; here this is text, as a quotation may begin so.

    Args:
        languages: those of `target_languages`; with none the text is returned as it is.
        language: the target language of texts that do not name one.

    Raises:
        UsageError: the model does not translate into `language`, or has several target languages
            and none is named.
    """
    known = first_names(list(languages), 20)
    if not languages:
        expect(
            language is None,
            f"the target language {language!r:.40} cannot be chosen: the model has only one",
            hint="leave the target language out",
        )
        return [], text
    expect(
        language is None or language in languages,
        f"the model does not translate into {language!r:.40}",
        hint=f"choose one of its target languages: {known}",
    )
    code, mark, rest = text.removeprefix(">>").partition("<<")
    if text.startswith(">>") and mark and code in languages:
        return [languages[code]], rest
    if language is None:
        raise UsageError(
            "the model translates into several languages, and none is named",
            hint=f"choose the target language: {known}",
        )
    return [languages[language]], text
