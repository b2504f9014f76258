"""A tokenizer_config.json that lacks settings of the normalizer: transformers then takes its
defaults, and not what tokenizer.json has; so does bertworks, with a note."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers

from bertworks.text.tokenizer import Tokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [
    "cafe",
    "café",
    "Cafe",
    "Café",
    "CAFÉ",
    "CAFE",
    "zurich",
    "Zürich",
    "zürich",
    "中",
    "国",
    "中国",
]
TEXT = "Café CAFÉ cafe Zürich zurich 中国"


def write_folder(folder: Path, normalizer: dict[str, Any], config: dict[str, Any]) -> Path:
    """A folder whose two files may contradict each other."""
    folder.mkdir()
    numbers = {word: number for number, word in enumerate([*SPECIAL, *WORDS])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(numbers, unk_token="[UNK]"))
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(**normalizer)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    (folder / "tokenizer_config.json").write_text(
        json.dumps(dict(zip(names, SPECIAL, strict=True)) | config)
    )
    (folder / "config.json").write_text('{"model_type": "bert"}')
    return folder


@pytest.mark.parametrize(
    "name", ["BertTokenizer", "BertTokenizerFast", "DistilBertTokenizer", "ElectraTokenizer", None]
)
def test_ids_are_those_of_transformers(name: str | None, tmp_path: Path) -> None:
    absent = object()
    for number, (lowercase, strips, chinese, key) in enumerate(
        itertools.product(
            [True, False],
            [None, True, False],
            [True, False],
            [None, "do_lower_case", "strip_accents"],
        )
    ):
        normalizer = {
            "lowercase": lowercase,
            "strip_accents": strips,
            "handle_chinese_chars": chinese,
        }
        for value in [True, False] if key else [absent]:
            config: dict[str, Any] = {"tokenizer_class": name} if name else {}
            if key:
                config[key] = value
            folder = write_folder(tmp_path / f"{number}-{value is True}", normalizer, config)
            expected = transformers.AutoTokenizer.from_pretrained(folder)(TEXT)["input_ids"]
            assert list(Tokenizer.load(folder).encode(TEXT).ids) == expected, (normalizer, config)


def test_a_note_names_the_default_that_is_used(tmp_path: Path) -> None:
    normalizer = {"lowercase": False, "strip_accents": None}
    folder = write_folder(tmp_path / "model", normalizer, {"tokenizer_class": "BertTokenizer"})
    note = (
        "tokenizer_config.json lacks settings: do_lower_case true is used, as in transformers, "
        "and not what tokenizer.json has"
    )
    assert note in Tokenizer.load(folder).notes
    (folder / "tokenizer_config.json").unlink()
    (folder / "config.json").unlink()
    assert not any("lacks settings" in text for text in Tokenizer.load(folder).notes)
