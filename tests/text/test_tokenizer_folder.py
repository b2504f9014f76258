"""Tokenizer folders of all kinds: ids, offsets and type ids as in transformers, damaged files
refused, files kept."""

import ast
import gzip
import io
import json
import random
import shlex
import shutil
import struct
import subprocess
import sys
from contextlib import suppress
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tokenizers
import transformers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from bertworks.errors import BertworksError
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.tokenizer_folder import SPECIAL_TOKENS, bert_pipeline, word_piece_model

ODD = [
    "",
    " ",
    "  two  spaces  ",
    "tab\tand\nnewline",
    "naïve café ÉCOLE",
    "e\u0301 and é",
    "ﬁ ligature ① ㎏ ½",
    "``quotes''",
    "日本語のテキスト。",
    "한국어 텍스트",
    "العربية",
    "हिन्दी",
    "👩‍👩‍👧 family 🇩🇪",
    "a\u00a0b\u3000c\u2009d",
    "\ufeffmark",
    "zero\u200bwidth",
    "it's we'll I'M don't",
    "1,234 and 9, or 3,",
    "▁underscore▁",
    "x" * 300,
    "İstanbul ẞ ß",
    "a\x00b\x07c",
    "\U0001f9ff\U000e0001",
    "CamelCase snake_case http://a.b/c?d=e#f",
    "trailing space ",
    "\u0301combining first",
    "Ⅷ ² ³ ℃ Å",
    "«guillemets» „low“",
]
SPECIAL_TEXT = ["a {mask} b", "{mask}{mask}", "x {cls} y {sep} z", "{pad}"]


def docstring_lines(count):
    """Lines of the docstrings of the standard library."""
    lines = []
    for path in sorted(Path(json.__file__).parents[1].glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                lines += [line for line in (ast.get_docstring(node) or "").split("\n") if line]
        if len(lines) >= count:
            return lines[:count]
    return lines


LINES = docstring_lines(2000)


def write_byte_level(folder, class_name, special_tokens, lines, **config):
    """vocab.json and merges.txt, trained on these lines."""
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=1200,
        special_tokens=special_tokens,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    library.train_from_iterator(lines, trainer)
    folder.mkdir()
    library.model.save(str(folder))
    write_config(folder, class_name, **config)
    return folder


def write_word_merges(folder, lines):
    """vocab.json and merges.txt of GPT: lower-cased words that end with </w>."""
    library = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    library.normalizer = normalizers.BertNormalizer(lowercase=True)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.BpeTrainer(
        vocab_size=1200, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False
    )
    library.train_from_iterator(lines, trainer)
    folder.mkdir()
    library.model.save(str(folder))
    write_config(folder, "OpenAIGPTTokenizer")
    return folder


def write_config(folder, class_name, **config):
    content = (
        {"model_max_length": 512} | ({"tokenizer_class": class_name} if class_name else {}) | config
    )
    (folder / "tokenizer_config.json").write_text(json.dumps(content))


def write_sentencepiece(folder, class_name, lines, name="spiece.model", config=None, **settings):
    """A SentencePiece file, trained on these lines by the sentencepiece library."""
    model = io.BytesIO()
    settings = {
        "vocab_size": 900,
        "hard_vocab_limit": False,
        "character_coverage": 0.999,
        "num_threads": 1,
    } | settings
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, minloglevel=2, **settings
    )
    folder.mkdir()
    (folder / name).write_bytes(model.getvalue())
    write_config(folder, class_name, **(config or {}))
    return folder


ALBERT = {
    "pad_id": 0,
    "unk_id": 1,
    "bos_id": -1,
    "eos_id": -1,
    "control_symbols": ["[CLS]", "[SEP]", "[MASK]"],
}
XLNET = {"control_symbols": ["<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"]}
ROBERTA_TOKENS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def make_folder(kind, folder, lines, num_pieces=900):
    """num_pieces: of SentencePiece."""
    match kind:
        case "roberta":
            return write_byte_level(folder, "RobertaTokenizer", ROBERTA_TOKENS, lines)
        case "roberta with a space in front":
            return write_byte_level(
                folder, "RobertaTokenizer", ROBERTA_TOKENS, lines, add_prefix_space=True
            )
        case "gpt2":
            return write_byte_level(folder, "GPT2Tokenizer", ["<|endoftext|>"], lines)
        case "openai-gpt":
            return write_word_merges(folder, lines)
        case "albert":
            return write_sentencepiece(
                folder, "AlbertTokenizer", lines, vocab_size=num_pieces, **ALBERT
            )
        case "albert with case and accents":
            config = {"do_lower_case": False, "keep_accents": True}
            return write_sentencepiece(folder, "AlbertTokenizer", lines, config=config, **ALBERT)
        case "xlnet":
            return write_sentencepiece(
                folder, "XLNetTokenizer", lines, vocab_size=num_pieces, **XLNET
            )
        case "xlm-roberta":
            return write_sentencepiece(
                folder,
                "XLMRobertaTokenizer",
                lines,
                "sentencepiece.bpe.model",
                vocab_size=num_pieces,
            )
        case "camembert":
            return write_sentencepiece(
                folder,
                "CamembertTokenizer",
                lines,
                "sentencepiece.bpe.model",
                vocab_size=num_pieces,
            )
        case "mpnet":
            # [CLS] and the others are words of no text here, as in the published vocabulary
            special_tokens = ["<s>", "<pad>", "</s>", "<unk>", "[UNK]", "[CLS]", "[MASK]", "<mask>"]
            return write_bert(folder, lines, "MPNetTokenizer", special_tokens)


KINDS = [
    "roberta",
    "roberta with a space in front",
    "gpt2",
    "openai-gpt",
    "albert",
    "albert with case and accents",
    "xlnet",
    "xlm-roberta",
    "camembert",
    "mpnet",
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kinds")
    return {kind: make_folder(kind, folder / kind, LINES) for kind in KINDS}


def class_of(folder):
    return getattr(
        transformers, json.loads((folder / "tokenizer_config.json").read_text())["tokenizer_class"]
    )


def assert_same(ours, theirs, texts):
    """Ids, offsets and type ids of every text, and of every text with its successor as a pair."""
    texts = list(texts)
    assert len(theirs) == ours.vocab_size
    settings = {"return_offsets_mapping": True, "return_token_type_ids": True}
    expected = [theirs(texts, **settings), theirs(texts[:-1], texts[1:], **settings)]
    rows = [
        row
        for e in expected
        for row in zip(e["input_ids"], e["offset_mapping"], e["token_type_ids"])
    ]
    encodings = ours.encode_batch(texts) + [ours.encode(*pair) for pair in pairwise(texts)]
    for encoding, (ids, offsets, type_ids) in zip(encodings, rows, strict=True):
        assert encoding.ids == ids
        assert encoding.offsets == [tuple(span) for span in offsets], encoding
        assert encoding.type_ids == type_ids


def unknown_rate(tokenizer, texts):
    ids = [number for row in tokenizer.ids(texts) for number in row]
    return ids.count(tokenizer.unk_id) / len(ids)


@pytest.mark.filterwarnings("ignore:Token indices sequence length")
@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_gives_the_ids_of_transformers(folders, kind):
    ours = Tokenizer.load(folders[kind])
    theirs = class_of(folders[kind]).from_pretrained(folders[kind])
    assert_same(ours, theirs, LINES + ODD)
    assert unknown_rate(ours, LINES) < 0.01
    assert (ours.mask_id >= 0) == ("gpt" not in kind)
    if "gpt" not in kind:
        names = {
            "mask": theirs.mask_token,
            "cls": theirs.cls_token,
            "sep": theirs.sep_token,
            "pad": theirs.pad_token,
        }
        texts = [text.format(**names) for text in SPECIAL_TEXT]
        for text in texts[1:]:
            assert ours.encode(text).ids == theirs(text)["input_ids"]
        template = ours.template
        assert theirs("a b", "c")["input_ids"] == [
            *template.prefix,
            *ours.ids(["a b"])[0],
            *template.between,
            *ours.ids(["c"])[0],
            *template.suffix,
        ]


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_tokenizer_keeps_its_files_and_opens_in_transformers(folders, tmp_path, kind):
    original = Tokenizer.load(folders[kind])
    original.save(tmp_path, has_types=False)
    for path in folders[kind].iterdir():
        if path.name != "tokenizer_config.json":
            assert (tmp_path / path.name).read_bytes() == path.read_bytes()
    again = Tokenizer.load(tmp_path)
    assert (again.sha256, again.special_tokens, again.files) == (
        original.sha256,
        original.special_tokens,
        original.files,
    )
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert_same(original, theirs, LINES[:200] + ODD)
    (tmp_path / "tokenizer.json").unlink()
    shutil.copy(folders[kind] / "tokenizer_config.json", tmp_path)
    assert Tokenizer.load(tmp_path).sha256 == original.sha256


@pytest.mark.parametrize("kind", ["roberta", "gpt2", "albert", "xlnet"])
def test_the_vocabulary_shows_the_family_where_no_class_is_stated(folders, tmp_path, kind):
    folder = shutil.copytree(folders[kind], tmp_path / "folder")
    (folder / "tokenizer_config.json").unlink()
    assert Tokenizer.load(folder).sha256 == Tokenizer.load(folders[kind]).sha256
    write_config(folder, None)
    (folder / "config.json").write_text(json.dumps({"model_type": kind}))
    assert Tokenizer.load(folder).sha256 == Tokenizer.load(folders[kind]).sha256


def test_a_family_with_other_ids_is_refused_with_a_command_that_helps(folders, tmp_path):
    folder = shutil.copytree(folders["xlm-roberta"], tmp_path / "it's a folder")
    write_config(folder, None)
    with pytest.raises(BertworksError, match="does not say of which family"):
        Tokenizer.load(folder)
    write_config(folder, "MBartTokenizer")
    with pytest.raises(BertworksError, match=r"family mbart cannot be read") as caught:
        Tokenizer.load(folder)
    command = caught.value.hint.split("`")[1].replace("python", shlex.quote(sys.executable), 1)
    subprocess.run(command, shell=True, check=True, capture_output=True)
    assert_same(
        Tokenizer.load(folder), transformers.MBartTokenizer.from_pretrained(folder), LINES[:50]
    )


def test_added_tokens_of_a_folder_keep_their_ids_and_their_spaces(folders, tmp_path):
    folder = shutil.copytree(folders["roberta"], tmp_path / "folder")
    size = Tokenizer.load(folder).vocab_size
    flags = {
        "lstrip": False,
        "rstrip": True,
        "normalized": False,
        "single_word": False,
        "special": True,
    }
    decoder = {
        str(size): {"content": "<extra>", **flags},
        str(size + 1): {"content": "<more>", **flags},
    }
    mask = {"content": "<mask>", **flags, "lstrip": True, "rstrip": False, "__type": "AddedToken"}
    write_config(folder, "RobertaTokenizer", added_tokens_decoder=decoder, mask_token=mask)
    ours, theirs = Tokenizer.load(folder), transformers.RobertaTokenizer.from_pretrained(folder)
    assert (ours.vocab_size, ours.tokens[size]) == (size + 2, "<extra>")
    assert_same(ours, theirs, ["a <mask> b", "a <extra> b<more> c", "<extra><mask>"])
    write_config(folder, "RobertaTokenizer", added_tokens_decoder={"x": {}})
    with pytest.raises(BertworksError, match="does not map ids to tokens"):
        Tokenizer.load(folder)


# A SentencePiece file of no family: ids of the sentencepiece library

PLAIN = [text for text in LINES + ODD if "\x00" not in text and "▁" not in text]


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="unigram"),
        pytest.param(
            {"user_defined_symbols": ["(", ")", "self"], "byte_fallback": True},
            id="unigram, defined",
        ),
        pytest.param({"model_type": "bpe"}, id="bpe"),
        pytest.param({"model_type": "bpe", "byte_fallback": True}, id="bpe, bytes"),
        pytest.param(
            {"add_dummy_prefix": False, "normalization_rule_name": "identity"}, id="identity"
        ),
        pytest.param({"normalization_rule_name": "nmt_nfkc_cf"}, id="case folding"),
    ],
)
def test_a_sentencepiece_file_gives_the_ids_of_sentencepiece(tmp_path, settings):
    folder = write_sentencepiece(tmp_path / "model", None, LINES, "tokenizer.model", **settings)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    ours = Tokenizer.load(folder)
    assert ours.vocab_size == len(processor)
    for text in PLAIN:
        ids, expected = ours.ids([text])[0], processor.encode(text)
        # not a tie
        if sum(processor.get_score(ids)) != pytest.approx(
            sum(processor.get_score(expected)), abs=1e-3
        ):
            assert ids == expected, text
        if processor.unk_id() not in ids:
            assert ours.decode(ids).strip() == processor.decode(ids).strip()
    assert ours.template[:3] == ((), (), ())


def message(*fields):
    """A protobuf message of (number, value): int, float or bytes."""
    data = b""
    for number, value in fields:
        if isinstance(value, float):
            data += bytes([number << 3 | 5]) + struct.pack("<f", value)
        elif isinstance(value, bytes):
            data += bytes([number << 3 | 2]) + varint(len(value)) + value
        else:
            data += bytes([number << 3]) + varint(value)
    return data


def varint(value):
    groups = [value & 127]
    while value := value >> 7:
        groups.append(value & 127)
    return bytes([*(group | 128 for group in groups[:-1]), groups[-1]])


def pieces(*names, score=-1.0):
    return [(1, message((1, name.encode()), (2, score))) for name in names]


GOOD = pieces("<unk>", "▁", "a", "▁a")
DAMAGED = {
    "empty": b"",
    "text": b"version https://git-lfs.github.com/spec/v1\n",
    "a float where a text belongs": message((1, message((1, 2.0)))),
    "a text where a number belongs": message(*GOOD, (2, message((3, b"bpe")))),
    "no text": message((1, message((2, 1.0)))),
    "twice": message(*GOOD, *pieces("a")),
    "not finite": message(*GOOD, *pieces("b", score=float("nan"))),
    "not UTF-8": message(*GOOD, (1, message((1, b"\xff")))),
    "words": message(*GOOD, (2, message((3, 3)))),
    "no unknown piece": message(*GOOD, (2, message((3, 1)) + varint(40 << 3) + varint(99))),
    "damaged normalization": message(*GOOD, (3, message((2, b"\x03\x00\x00\x00abc")))),
    "a number without end": message(*GOOD) + b"\xff" * 20,
    "many fields": b"".join(varint(number << 3) + b"\x00" for number in range(1, 3000)),
    "a long piece": message(*GOOD, *pieces("b" * 5000), (2, message((3, 2)))),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_sentencepiece_file_is_refused(tmp_path, kind, capfd):
    (tmp_path / "spiece.model").write_bytes(DAMAGED[kind])
    with pytest.raises(BertworksError) as caught:
        Tokenizer.load(tmp_path)
    assert caught.value.where == str(tmp_path / "spiece.model")
    assert len(caught.value.what) < 300


def test_any_damage_of_a_sentencepiece_file_is_an_error_or_a_tokenizer(folders, tmp_path, capfd):
    original = (folders["albert"] / "spiece.model").read_bytes()
    (tmp_path / "spiece.model").write_bytes(message(*GOOD))
    assert Tokenizer.load(tmp_path).ids(["a a"]) == [[3, 3]]
    random_numbers = random.Random(5)
    for number in range(60):
        data = bytearray(
            original[: random_numbers.randrange(len(original))] if number % 2 else original
        )
        for _ in range(random_numbers.randrange(1, 20)):
            data[random_numbers.randrange(len(data))] = random_numbers.randrange(256)
        (tmp_path / "spiece.model").write_bytes(data)
        with suppress(BertworksError):
            Tokenizer.load(tmp_path).encode("some text")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("merges.txt", b"#version: 0.2\na b c\n", "not two pieces"),
        ("merges.txt", b"\xff\n", "not UTF-8"),
        ("merges.txt", b"qq zz\n", "out of vocabulary"),
        ("vocab.json", b'{"a</w>": 0}', "not the vocabulary of a byte-level BPE"),
        ("vocab.json", '{"Ġ": "0"}'.encode(), "not the vocabulary of a byte-level BPE"),
        ("vocab.json", '{"Ġ": 0, "a": 1}'.encode(), "lacks <s> or </s>"),
        ("vocab.json", b"[]", "object is expected"),
        (
            "tokenizer_config.json",
            b'{"tokenizer_class": "CLIPTokenizer"}',
            "family clip cannot be read",
        ),
    ],
)
def test_damaged_byte_level_files_are_refused(folders, tmp_path, name, content, message):
    folder = shutil.copytree(folders["roberta"], tmp_path / "folder")
    (folder / name).write_bytes(content)
    with pytest.raises(BertworksError, match=message):
        Tokenizer.load(folder)
    (folder / "merges.txt").unlink()
    with pytest.raises(BertworksError):
        Tokenizer.load(folder)


# A hundred thousand lines


def real_lines(data_folder, count):
    """Lines of the corpora, in about equal parts; what small corpora lack comes from the larger
    ones."""
    corpora = sorted(
        (data_folder / "text").glob("*.jsonl.gz"), key=lambda path: path.stat().st_size
    )
    lines = []
    for number, path in enumerate(corpora):
        share = (count - len(lines)) // (len(corpora) - number) + 1
        with gzip.open(path, "rt", encoding="utf-8") as file:
            texts = (json.loads(line)["text"] for line in file)
            parts = (
                line[start : start + 400]
                for text in texts
                for line in text.split("\n")
                for start in (0, 400)
            )
            lines += islice((part for part in parts if part), share)
    return lines[:count]


BERT_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def write_bert(folder, lines, class_name="BertTokenizer", special_tokens=BERT_TOKENS):
    """vocab.txt, trained on these lines."""
    library = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    library.normalizer, library.pre_tokenizer = (
        normalizers.BertNormalizer(),
        pre_tokenizers.BertPreTokenizer(),
    )
    trainer = trainers.WordPieceTrainer(
        vocab_size=8000, special_tokens=special_tokens, show_progress=False
    )
    library.train_from_iterator(lines, trainer)
    folder.mkdir()
    library.model.save(str(folder))
    write_config(folder, class_name, do_lower_case=True)
    return folder


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Token indices sequence length")
@pytest.mark.parametrize(
    "kind", ["bert", "roberta", "gpt2", "albert", "xlnet", "xlm-roberta", "camembert", "mpnet"]
)
def test_a_hundred_thousand_lines_are_as_in_transformers(data_folder, tmp_path, kind):
    lines = real_lines(data_folder, 100_000)
    assert len(lines) >= 100_000
    training = lines[::20]
    if kind == "bert":
        folder = write_bert(tmp_path / kind, training)
    else:
        # more than characters
        folder = make_folder(kind, tmp_path / kind, training, num_pieces=8000)
    ours = Tokenizer.load(folder)
    theirs = class_of(folder).from_pretrained(folder)
    for start in range(0, len(lines), 2000):
        assert_same(ours, theirs, lines[start : start + 2000])


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
