"""The SentencePiece file of a DeBERTa: tokens are those of the sentencepiece library, and it wins
over a tokenizer.json beside it."""

import json
import shutil
import unicodedata
from pathlib import Path

import pytest
import sentencepiece
import transformers

from bertworks.errors import BertworksError
from bertworks.text.tokenizer import Tokenizer
from tests.text.test_tokenizer_folder import LINES, ODD, write_sentencepiece

PIECES = {
    "pad_id": 0,
    "pad_piece": "[PAD]",
    "bos_id": 1,
    "bos_piece": "[CLS]",
    "eos_id": 2,
    "eos_piece": "[SEP]",
    "unk_id": 3,
    "unk_piece": "[UNK]",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("deberta") / "model"
    config = {"do_lower_case": False, "vocab_type": "spm"}
    write_sentencepiece(path, None, LINES, "spm.model", config=config, **PIECES)
    (path / "config.json").write_text('{"model_type": "deberta-v2"}')
    return path


def test_tokens_are_those_of_sentencepiece(folder: Path):
    processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spm.model"))
    t = Tokenizer.load(folder)
    assert t.vocab_size == len(processor) + 1
    assert (t.pad_id, t.cls_id, t.sep_id, t.unk_id) == (0, 1, 2, 3)
    assert t.mask_id == len(processor)
    assert t.template[:3] == ((1,), (2,), (2,))
    assert t.encode("a", "b").type_ids == [0, 0, 0, 1, 1]
    texts = [text for text in LINES + ODD if "\x00" not in text and "▁" not in text]
    for text in texts:
        ids, expected = t.ids([text])[0], processor.encode(text)
        # not a tie
        if sum(map(processor.get_score, ids)) != pytest.approx(
            sum(map(processor.get_score, expected)), abs=1e-3
        ):
            assert ids == expected, text


def test_plain_lines_have_the_tokens_of_transformers(folder: Path):
    """Its class does not read the map of characters in the file: lines in which that has work to do
    are left out."""
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    assert type(theirs).__name__ == "DebertaV2Tokenizer"
    t = Tokenizer.load(folder)
    plain = [line for line in LINES if unicodedata.normalize("NFKC", line) == line]
    plain += ["I am [SEP] you", "[MASK] here", "a [MASK] b", "a[MASK]b", "[CLS]x"]
    assert len(plain) > 1000
    differing = [x for x in plain if t.encode(x).ids != theirs(x)["input_ids"]]
    assert not differing
    pair = theirs("a film", "with Anna")
    found = t.encode("a film", "with Anna")
    assert (found.ids, found.type_ids) == (pair["input_ids"], pair["token_type_ids"])


def test_the_file_wins_over_a_tokenizer_json_and_a_difference_is_a_note(
    folder: Path, tmp_path: Path
):
    path = tmp_path / "saved"
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    theirs.save_pretrained(path)
    shutil.copyfile(folder / "config.json", path / "config.json")
    assert (path / "tokenizer.json").exists()
    without = Tokenizer.load(path)
    assert not any("spm.model" in note for note in without.notes)
    shutil.copyfile(folder / "spm.model", path / "spm.model")
    t = Tokenizer.load(path)
    (note,) = [note for note in t.notes if "spm.model" in note]
    assert note.startswith("tokenizer.json reads 'ﬁne' as [")
    assert t.ids(["ﬁne"]) == Tokenizer.load(folder).ids(["fine"]) != without.ids(["ﬁne"])


def test_a_tokenizer_json_with_other_tokens_is_named(folder: Path, tmp_path: Path):
    path = tmp_path / "copy"
    shutil.copytree(folder, path)
    smaller = tmp_path / "smaller"
    write_sentencepiece(smaller, None, LINES, "spm.model", vocab_size=500, **PIECES)
    Tokenizer.load(smaller).save(tmp_path / "saved")
    shutil.copyfile(tmp_path / "saved" / "tokenizer.json", path / "tokenizer.json")
    t = Tokenizer.load(path)
    assert t.sha256 == Tokenizer.load(folder).sha256
    assert "tokenizer.json has other tokens than spm.model, which is used" in t.notes
    (path / "tokenizer.json").write_text("{")
    with pytest.raises(BertworksError) as caught:
        Tokenizer.load(path)
    assert caught.value.where == str(path / "tokenizer.json")


def test_a_saved_folder_has_the_same_tokens_here_and_in_transformers(folder: Path, tmp_path: Path):
    t = Tokenizer.load(folder)
    t.save(tmp_path)
    assert not (tmp_path / "spm.model").exists()
    again = Tokenizer.load(tmp_path)
    assert again.sha256 == t.sha256
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in [*ODD, *LINES[:200], "a [MASK] b"]:
        assert theirs(text)["input_ids"] == t.encode(text).ids == again.encode(text).ids
    shutil.copyfile(folder / "spm.model", tmp_path / "spm.model")
    shutil.copyfile(folder / "config.json", tmp_path / "config.json")
    both = Tokenizer.load(tmp_path)
    assert both.sha256 == t.sha256
    assert not any("spm.model" in note for note in both.notes)


def test_a_file_alone_is_that_of_a_deberta(folder: Path, tmp_path: Path):
    shutil.copyfile(folder / "spm.model", tmp_path / "spm.model")
    assert Tokenizer.load(tmp_path).sha256 == Tokenizer.load(folder).sha256


def test_settings_of_the_folder_are_read(folder: Path, tmp_path: Path):
    path = tmp_path / "copy"
    shutil.copytree(folder, path)
    settings = path / "tokenizer_config.json"
    settings.write_text(json.dumps({"do_lower_case": True, "model_max_length": 100}))
    t = Tokenizer.load(path)
    assert t.lowercase
    assert t.model_max_length == 100
    assert t.ids(["A Film"]) == Tokenizer.load(folder).ids(["a film"])
    (path / "added_tokens.json").write_text(json.dumps({"[MASK]": t.mask_id}))
    assert Tokenizer.load(path).mask_id == t.mask_id
    (path / "added_tokens.json").write_text(json.dumps({"[MASK]": t.mask_id + 7}))
    with pytest.raises(BertworksError, match=r"the added token '\[MASK\]' has no place"):
        Tokenizer.load(path)


def test_what_is_not_supported_is_refused(folder: Path, tmp_path: Path):
    path = tmp_path / "copy"
    shutil.copytree(folder, path)
    (path / "tokenizer_config.json").write_text('{"split_by_punct": true}')
    with pytest.raises(BertworksError, match="split_by_punct is true: texts that are split"):
        Tokenizer.load(path)
    (path / "tokenizer_config.json").unlink()
    (path / "spm.model").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(BertworksError) as caught:
        Tokenizer.load(path)
    assert caught.value.where == str(path / "spm.model")
    marks = {"bos_piece": "<s>", "eos_piece": "</s>"}
    other = tmp_path / "other"
    write_sentencepiece(other, None, LINES, "spm.model", **PIECES | {"bos_id": -1} | marks)
    with pytest.raises(BertworksError, match="the vocabulary lacks the special tokens"):
        Tokenizer.load(other)
