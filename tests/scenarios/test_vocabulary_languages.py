"""Vocabularies of many languages: the tokenizer knows the text that it was trained on, in every
Unicode form, and other libraries read it in the same way.

The text is the Universal Declaration of Human Rights in 43 languages. A sample of the languages is
fast; all of them are slow.
"""

import gzip
import json
import os
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers

from bertworks.text.tokenizer import Tokenizer
from bertworks.text.vocabulary import VocabularyConfig, is_letter_mark, train_vocabulary

SIZE = 1500
LONGEST_WORD = 100
SAMPLE = ["deu_1996", "hin", "jpn", "kor", "lao", "tha", "vie"]
LETTER_MARKS = (
    # languages with marks that are letters
    "ben bod div guj hin kan khm lao mal mar mya pan sin tam tel tha"
).split()
FORMS = ("NFC", "NFD")

# Each program reads [{"folder": ..., "pairs": [[text, text], ...]}, ...] and writes for each folder
# a list of {"single": ids, "pairs": ids, "types": type ids}. The first one also reads the folder
# after it has saved it.
TRANSFORMERS_4 = """
import json, sys, tempfile
from transformers import AutoTokenizer, __version__

assert __version__.startswith("4."), __version__

def encode(tokenizer, pairs):
    firsts, seconds = ([pair[side] for pair in pairs] for side in (0, 1))
    encoded = tokenizer(firsts, seconds)
    single = tokenizer(firsts)["input_ids"]
    return {"single": single, "pairs": encoded["input_ids"], "types": encoded["token_type_ids"]}

results = []
for request in json.load(sys.stdin):
    tokenizer = AutoTokenizer.from_pretrained(request["folder"])
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        saved = AutoTokenizer.from_pretrained(folder)
    results.append([encode(tokenizer, request["pairs"]), encode(saved, request["pairs"])])
json.dump(results, sys.stdout)
"""
TRANSFORMERS_JS = """
import { readFileSync } from "node:fs";
import { env, AutoTokenizer } from "@huggingface/transformers";

env.allowRemoteModels = false;
const results = [];
for (const { folder, pairs } of JSON.parse(readFileSync(0, "utf8"))) {
    const place = folder.lastIndexOf("/") + 1;
    env.localModelPath = folder.slice(0, place);
    const tokenizer = await AutoTokenizer.from_pretrained(folder.slice(place));
    const result = { single: [], pairs: [], types: [] };
    for (const [text, text_pair] of pairs) {
        result.single.push((await tokenizer(text, { return_tensor: false })).input_ids);
        const options = { text_pair, return_tensor: false, return_token_type_ids: true };
        const pair = await tokenizer(text, options);
        result.pairs.push(pair.input_ids);
        result.types.push(pair.token_type_ids);
    }
    results.push([result]);
}
process.stdout.write(JSON.stringify(results));
"""


@pytest.fixture(scope="module")
def declarations(data_folder: Path) -> dict[str, str]:
    """The text of each language, by its id."""
    with gzip.open(
        data_folder / "text" / "udhr-43-languages.jsonl.gz", "rt", encoding="utf-8"
    ) as file:
        rows = [json.loads(line) for line in file]
    assert len(rows) == 43
    return {row["id"]: row["text"] for row in rows}


def normalized(text: str, lowercase: bool, strips_accents: bool) -> str:
    """What remains of a text without white space, by the definition of the Unicode standard."""
    text = unicodedata.normalize("NFD" if strips_accents else "NFC", text)
    characters = [
        c for c in text if not c.isspace() and not unicodedata.category(c).startswith("C")
    ]
    if strips_accents:
        characters = [c for c in characters if unicodedata.category(c) != "Mn"]
    return "".join(c.lower() if lowercase else c for c in characters)


def without_white_space(text: str) -> str:
    return "".join(text.split())


def unknown_fraction(tokenizer: Tokenizer, paragraphs: list[str]) -> float:
    """The fraction of the tokens that are [UNK], without words that are too long for a vocabulary
    of words."""
    ids = [number for paragraph in tokenizer.ids(paragraphs) for number in paragraph]
    short_words = [word for word in tokenizer.unknown(paragraphs) if len(word) <= LONGEST_WORD]
    return len(short_words) / len(ids)


def encodings(tokenizer: Tokenizer, pairs: list[list[str]]) -> dict[str, Any]:
    """The ids of bertworks, in the form of the programs above."""
    encoded = [tokenizer.encode(*pair) for pair in pairs]
    return {
        "single": [tokenizer.encode(first).ids for first, _ in pairs],
        "pairs": [encoding.ids for encoding in encoded],
        "types": [encoding.type_ids for encoding in encoded],
    }


def encodings_of_transformers(library: Any, pairs: list[list[str]]) -> dict[str, Any]:
    first_texts = [pair[0] for pair in pairs]
    second_texts = [pair[1] for pair in pairs]
    encoded = library(first_texts, second_texts)
    single = library(first_texts)["input_ids"]
    return {"single": single, "pairs": encoded["input_ids"], "types": encoded["token_type_ids"]}


def pairs_in_both_forms(text: str) -> list[list[str]]:
    """Neighbouring paragraphs as pairs, of which one is composed and the other decomposed."""
    paragraphs = text.split("\n")[:8]
    pairs = []
    for first, second in zip(paragraphs[::2], paragraphs[1::2], strict=False):
        for first_form, second_form in (FORMS, FORMS[::-1]):
            pairs.append(
                [
                    unicodedata.normalize(first_form, first),
                    unicodedata.normalize(second_form, second),
                ]
            )
    return pairs


def check_language(language: str, text: str, lowercase: bool, folder: Path) -> Tokenizer:
    """Train a vocabulary on each form of a text, and check it on both. Returns the one of the
    composed text, which is saved in the folder."""
    trained: dict[str, Tokenizer] = {}
    for form in FORMS:
        document = unicodedata.normalize(form, text)
        tokenizer, report = train_vocabulary(
            [document], VocabularyConfig(size=SIZE, lowercase=lowercase), workers=1
        )
        trained[form] = tokenizer
        assert tokenizer.is_bert_tokenizer == (
            lowercase and language not in (*LETTER_MARKS, "jpn", "kor")
        )
        assert any("accents are kept" in note for note in report.notes) == (
            lowercase and not tokenizer.is_bert_tokenizer
        )
        paragraphs = document.split("\n")
        assert unknown_fraction(tokenizer, paragraphs) < 0.005
        num_known = 0
        for paragraph, ids in zip(paragraphs, tokenizer.ids(paragraphs), strict=True):
            if tokenizer.unk_id not in ids:
                expected = normalized(
                    paragraph, lowercase, strips_accents=tokenizer.is_bert_tokenizer
                )
                assert without_white_space(tokenizer.decode(ids)) == expected
                num_known += 1
        assert num_known > len(paragraphs) / 2
    assert trained["NFC"].tokens == trained["NFD"].tokens

    tokenizer = trained["NFC"]
    composed, decomposed = (
        tokenizer.ids(unicodedata.normalize(form, text).split("\n")) for form in FORMS
    )
    assert composed == decomposed

    tokenizer.save(folder)
    opened = Tokenizer.load(folder)
    assert opened.sha256 == tokenizer.sha256
    opened.save(folder / "again")
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        assert (folder / "again" / name).read_bytes() == (folder / name).read_bytes()
    return tokenizer


def check_other_libraries(tokenizer: Tokenizer, text: str, folder: Path) -> None:
    """Compare the ids of `tokenizers` and of transformers, also after it has saved the folder and
    read it again."""
    pairs = pairs_in_both_forms(text)
    expected = encodings(tokenizer, pairs)
    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert [library.encode(*pair).ids for pair in pairs] == expected["pairs"]
    assert [library.encode(first).ids for first, _ in pairs] == expected["single"]
    opened = transformers.AutoTokenizer.from_pretrained(folder)
    assert encodings_of_transformers(opened, pairs) == expected
    opened.save_pretrained(folder / "transformers")
    saved = transformers.AutoTokenizer.from_pretrained(folder / "transformers")
    assert encodings_of_transformers(saved, pairs) == expected


@pytest.mark.parametrize("lowercase", [True, False], ids=["uncased", "cased"])
@pytest.mark.parametrize("language", SAMPLE)
def test_a_vocabulary_knows_its_own_text(language, lowercase, declarations, tmp_path):
    tokenizer = check_language(language, declarations[language], lowercase, tmp_path)
    check_other_libraries(tokenizer, declarations[language], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("lowercase", [True, False], ids=["uncased", "cased"])
def test_every_language_is_known(lowercase, declarations, tmp_path):
    for language, text in declarations.items():
        folder = tmp_path / language
        tokenizer = check_language(language, text, lowercase, folder)
        check_other_libraries(tokenizer, text, folder)


def test_sentence_transformers_reads_the_same_ids(declarations, tmp_path):
    from tests.support.fine import write_model  # brings torch

    library = pytest.importorskip(
        "sentence_transformers", reason="sentence-transformers, the oracle, is missing"
    )
    for language, lowercase in (("hin", True), ("kor", False), ("vie", True)):
        folder = write_model(tmp_path / language)
        tokenizer = train_vocabulary(
            [declarations[language]],
            VocabularyConfig(size=SIZE, lowercase=lowercase, model_max_length=64),
        )[0]
        tokenizer.save(folder)
        texts = [text for pair in pairs_in_both_forms(declarations[language]) for text in pair]
        opened = library.SentenceTransformer(str(folder), device="cpu", local_files_only=True)
        opened.save(str(tmp_path / f"{language}-saved"))
        saved = library.SentenceTransformer(
            str(tmp_path / f"{language}-saved"), device="cpu", local_files_only=True
        )
        for model in (opened, saved):
            features = model.preprocess(texts)
            ids = [
                row[mask.bool()].tolist()
                for row, mask in zip(features["input_ids"], features["attention_mask"], strict=True)
            ]
            assert ids == [tokenizer.encode(text, max_length=64).ids for text in texts]


def test_cards_say_how_other_programs_read_the_tokenizer(tmp_path):
    """The card of a pre-trained, of a fine-tuned and of an exported model; not of one that
    BertTokenizer reads."""
    import torch

    import bertworks
    from bertworks.checkpoints.model_folder import save_model
    from bertworks.interop.export import export
    from bertworks.models.config import EncoderConfig
    from bertworks.training.objectives import PretrainingModel

    words = "हिन्दी आज हूँ और यह पाठ नहीं कार्य ड़ ".split()
    texts = [" ".join(words[number % 3 :]) for number in range(40)]
    for name, lowercase, document in (
        ("hindi", True, " ".join(texts)),
        ("english", True, "the cat sat on a mat"),
    ):
        tokenizer, _ = train_vocabulary(
            [document], VocabularyConfig(size=200, lowercase=lowercase, model_max_length=32)
        )
        config = EncoderConfig(
            vocab_size=tokenizer.vocab_size,
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=32,
        )
        torch.manual_seed(0)
        save_model(
            tmp_path / name,
            PretrainingModel(config).state_dict(),
            config,
            tokenizer,
            card="the card\n",
        )
    assert (tmp_path / "english" / "README.md").read_text() == "the card\n"

    rows = [{"text": text, "label": "ab"[number % 2]} for number, text in enumerate(texts)]
    model = tmp_path / "hindi"
    bertworks.finetune(
        rows,
        dev=rows,
        model=model,
        output=tmp_path / "tuned",
        epochs=1,
        device="cpu",
        progress=False,
    )
    list(export(tmp_path / "tuned", tmp_path / "exported"))
    for folder in ("hindi", "tuned", "exported"):
        card = (tmp_path / folder / "README.md").read_text(encoding="utf-8")
        assert card.count("\n## Tokenizer\n") == 1
        assert (
            "`BertTokenizer.from_pretrained`, and programs that read `vocab.txt` alone, do not"
            in card
        )

    decomposed = unicodedata.normalize("NFD", "कार्य ड़ यह é")
    ids = Tokenizer.load(model).encode(decomposed).ids
    assert transformers.AutoTokenizer.from_pretrained(model)(decomposed)["input_ids"] == ids
    composed = unicodedata.normalize("NFC", decomposed)
    assert transformers.BertTokenizer.from_pretrained(model)(composed)["input_ids"] == ids


def check_in_program(
    command: list[str], declarations: dict[str, str], lowercase: bool, folder: Path, **options: Any
) -> None:
    """Compare the ids of bertworks with those of a program, in all languages."""
    requests = []
    expected = []
    for language, text in declarations.items():
        tokenizer = train_vocabulary(
            [text], VocabularyConfig(size=SIZE, lowercase=lowercase), workers=1
        )[0]
        tokenizer.save(folder / language)
        pairs = pairs_in_both_forms(text)
        requests.append({"folder": str(folder / language), "pairs": pairs})
        expected.append(encodings(tokenizer, pairs))
    program = subprocess.run(
        command,
        input=json.dumps(requests),
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
        **options,
    )
    assert program.returncode == 0, program.stderr
    for language, results, ids in zip(
        declarations, json.loads(program.stdout), expected, strict=True
    ):
        for result in results:
            assert result == ids, language


@pytest.mark.slow
@pytest.mark.parametrize("lowercase", [True, False], ids=["uncased", "cased"])
def test_transformers_4_reads_the_same_ids(lowercase, declarations, tmp_path):
    """BERTWORKS_TRANSFORMERS_4 names a Python that has transformers 4, which cannot be installed
    next to 5."""
    python = os.environ.get("BERTWORKS_TRANSFORMERS_4")
    if not python:
        pytest.skip(
            "BERTWORKS_TRANSFORMERS_4 is unset: this test needs a Python with transformers 4"
        )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    check_in_program(
        [python, "-c", TRANSFORMERS_4], declarations, lowercase, tmp_path, env=environment
    )


@pytest.mark.slow
@pytest.mark.parametrize("lowercase", [True, False], ids=["uncased", "cased"])
def test_transformers_js_reads_the_same_ids(lowercase, declarations, tmp_path):
    """BERTWORKS_TRANSFORMERS_JS names a folder in which `npm install @huggingface/transformers` was
    run."""
    packages = os.environ.get("BERTWORKS_TRANSFORMERS_JS")
    if not packages:
        pytest.skip(
            "BERTWORKS_TRANSFORMERS_JS is unset: this test needs node and the package of "
            "transformers.js"
        )
    command = ["node", "--input-type=module", "-e", TRANSFORMERS_JS]
    check_in_program(command, declarations, lowercase, tmp_path, cwd=packages)


def test_accents_of_letters_are_told_from_letters():
    """Every mark of the scripts in question is decided by its block, as Unicode has no property for
    it."""
    # vowel signs, viramas, tones
    letters = "\u093f\u094d\u0e31\u0e48\u0ec8\u09be\u0bcd\u17d2\u1031\u0f72\u07a6\u3099"
    # accents, points, what follows an emoji
    accents = "\u0301\u0307\u05b7\u064e\u0670\ufe0f\u20e3\u1dc4\ufe20"
    assert all(map(is_letter_mark, letters))
    assert not any(map(is_letter_mark, accents))
    assert not any(
        is_letter_mark(chr(number)) for number in range(sys.maxunicode) if chr(number).isalnum()
    )
