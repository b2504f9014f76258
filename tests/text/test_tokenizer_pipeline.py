"""The setting strip_accents of a tokenizer folder is used as transformers uses it, in both kinds of
folders."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from bertworks.text.tokenizer import Tokenizer
from bertworks.text.tokenizer_pipeline import SPECIAL_TOKENS, bert_pipeline, word_piece_model

TOKENS = [*SPECIAL_TOKENS.values(), "cafe", "café", "Cafe", "Café", "a"]
TEXT = "café Café a"


def write(folder: Path, in_json: bool | str | None, **settings: Any) -> Path:
    """A BERT tokenizer. in_json: strip_accents of its tokenizer.json; "": there is only
    vocab.txt."""
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in TOKENS))
    (folder / "config.json").write_text('{"model_type": "bert"}')
    if in_json != "":
        model = word_piece_model(TOKENS, "[UNK]")
        library = bert_pipeline(model, SPECIAL_TOKENS, lowercase=True, strip_accents=in_json)
        (folder / "tokenizer.json").write_text(library.to_str())
    content = {"tokenizer_class": "BertTokenizer", "model_max_length": 16, **settings}
    (folder / "tokenizer_config.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize("strips", [None, True, False])
@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("in_json", ["", None, True, False])
def test_an_explicit_setting_is_that_of_transformers(
    strips: bool | None, lowercase: bool, in_json: bool | str | None, tmp_path: Path
) -> None:
    write(tmp_path, in_json, do_lower_case=lowercase, strip_accents=strips)
    tokenizer = Tokenizer.load(tmp_path)
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer.encode(TEXT).ids == reference(TEXT)["input_ids"]
    says_so = any(
        "strip_accents" in note and "unlike tokenizer.json" in note for note in tokenizer.notes
    )
    assert says_so == (in_json not in ("", strips))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"strip_accents": True}, ["cafe", "Cafe", "a"]),
        ({"strip_accents": False}, ["café", "Café", "a"]),
        ({"strip_accents": None}, ["café", "Café", "a"]),
        ({}, ["café", "Café", "a"]),
    ],
)
def test_it_is_used_where_the_casing_is_inferred(
    settings: dict[str, Any], expected: list[str], tmp_path: Path
) -> None:
    tokenizer = Tokenizer.load(write(tmp_path, "", **settings))
    assert "casing inferred" in tokenizer.notes[0]
    assert [tokenizer.tokens[number] for number in tokenizer.encode(TEXT).ids[1:-1]] == expected


@pytest.mark.parametrize(("strips", "expected"), [(True, "cafe"), (None, "cafe"), (False, "café")])
def test_it_is_used_for_a_lower_case_vocabulary_with_accents(
    strips: bool | None, expected: str, tmp_path: Path
) -> None:
    """The accents of the vocabulary decide only where the folder does not say it."""
    write(tmp_path, "", strip_accents=strips)
    lower = [*SPECIAL_TOKENS.values(), "cafe", "café", "a"]
    (tmp_path / "vocab.txt").write_text("".join(f"{token}\n" for token in lower))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.tokens[tokenizer.encode("Café").ids[1]] == expected
    assert "accents kept" not in tokenizer.notes[0]
