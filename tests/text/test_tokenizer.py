"""Text <-> ids: the same as transformers gives for the same folder, damaged folders refused with
their line."""

import gzip
import json
import os
import pickle
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest
import transformers
from hypothesis import given, settings, strategies as st

from bertworks.errors import BertworksError, UsageError
from bertworks.text.tokenizer import CHARACTERS_AT_ONCE, Tokenizer
from bertworks.text.tokenizer_folder import SPECIAL_TOKENS, bert_pipeline, word_piece_model

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]
TOKENS = [
    *SPECIALS,
    *LETTERS,
    *("##" + letter for letter in LETTERS),
    *"0123456789.,!?'-[]()$+<=>^`|~",
    *"中国東京かがきはばぱ##か한국カガ",
    "##か",
    "##が",
    "##국",
    "é",
    "##é",
    "hello",
    "world",
    "un",
    "##aff",
    "##able",
    "mask",
    "sep",
    "cl",
    "##s",
]
TOKENS = list(dict.fromkeys(TOKENS))


def serialized(tokens=TOKENS, lowercase=True, strip_accents=None):
    library = bert_pipeline(
        word_piece_model(tokens), SPECIAL_TOKENS, lowercase=lowercase, strip_accents=strip_accents
    )
    return library.to_str()


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer(serialized())


def tokens_of(tokenizer, text):
    return [tokenizer.tokens[number] for number in tokenizer.encode(text).ids[1:-1]]


def write_vocabulary(folder: Path, tokens=TOKENS, **config):
    folder.mkdir(exist_ok=True)
    (folder / "vocab.txt").write_bytes("".join(f"{token}\n" for token in tokens).encode())
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


# What is encoded


def test_encoding_of_a_pair_is_written_out(tokenizer):
    encoding = tokenizer.encode("Hello, world", "unaffable")
    names = [tokenizer.tokens[number] for number in encoding.ids]
    assert names == ["[CLS]", "hello", ",", "world", "[SEP]", "un", "##aff", "##able", "[SEP]"]
    assert encoding.type_ids == [0, 0, 0, 0, 0, 1, 1, 1, 1]
    assert encoding.offsets == [
        (0, 0),
        (0, 5),
        (5, 6),
        (7, 12),
        (0, 0),
        (0, 2),
        (2, 5),
        (5, 9),
        (0, 0),
    ]
    assert encoding.word_ids == [None, 0, 1, 2, None, 0, 0, 0, None]
    assert encoding.special_tokens_mask == [1, 0, 0, 0, 1, 0, 0, 0, 1]
    assert encoding.num_truncated == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            "a\x00b\ufffdc\x0bd",
            ["a", "##b", "##c", "##d"],
            id="26 control characters vanish, joining",
        ),
        pytest.param("a\tb\nc\rd\u3000e", list("abcde"), id="26 white space separates"),
        pytest.param("$+<=>^`|~", list("$+<=>^`|~"), id="27 ASCII symbols are punctuation"),
        pytest.param("café", ["c", "##a", "##f", "##e"], id="28 accents go with the case"),
        pytest.param("が", ["か"], id="28 dakuten goes too unless accents are kept"),
        pytest.param("中国か", ["中", "国", "か"], id="29 Chinese characters alone, kana not"),
        pytest.param("かか", ["か", "##か"], id="29 kana are not split"),
        pytest.param("a" * 100, ["a"] + ["##a"] * 99, id="30 a word of 100 characters"),
        pytest.param("a" * 101, ["[UNK]"], id="30 a word of 101 is unknown"),
        pytest.param(
            "abcλ def", ["[UNK]", "d", "##e", "##f"], id="31 one missing piece loses the word"
        ),
        pytest.param("a\ue000b", ["a", "##b"], id="32 private characters vanish"),
        pytest.param("İ", ["i"], id="35 a capital that is two characters in lower case"),
        pytest.param("a\u202fb", ["a", "b"], id="35 narrow no-break space"),
    ],
)
def test_details_of_the_original(tokenizer, text, expected):
    assert tokens_of(tokenizer, text) == expected


def test_accents_kept_keep_dakuten_and_hangul():
    kept = Tokenizer(serialized(strip_accents=False))
    assert tokens_of(kept, "が") == ["が"]
    assert tokens_of(kept, "한국") == ["한", "##국"]
    assert tokens_of(kept, "É") == ["é"]


def test_specials_in_text_are_recognised_by_encode_and_never_by_ids(tokenizer):
    text = "hello [MASK] [SEP] [CLS][PAD] [UNK]"
    assert tokenizer.encode(text).ids.count(tokenizer.mask_id) == 1
    (literal,) = tokenizer.ids([text])
    assert not set(literal) & (tokenizer.special_ids - {tokenizer.unk_id})
    assert [tokenizer.tokens[number] for number in literal[:4]] == ["hello", "[", "mask", "]"]


@given(st.lists(st.text(alphabet=st.sampled_from("aZé [MASKSEPCLS]\n\x0bが中")), max_size=4))
def test_no_text_can_smuggle_a_special_token(tokenizer, texts):
    forbidden = {tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id}
    for ids in tokenizer.ids([*texts, "".join(texts)]):
        assert not forbidden & set(ids)


def test_batch_is_one_by_one(tokenizer):
    texts = ["hello world", "", "中国 a", "x " * 40]
    assert tokenizer.encode_batch(texts, max_length=20) == [
        tokenizer.encode(text, max_length=20) for text in texts
    ]
    assert tokenizer.ids(texts) == [tokenizer.encode(text).ids[1:-1] for text in texts]
    assert tokenizer.ids([]) == []


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 60_000), min_size=1, max_size=3), st.integers(0, 100_000))
def test_reading_ends_when_there_are_more_ids_than_the_limit(tokenizer, lengths, limit):
    texts = ["a b " * (length // 4) for length in lengths]
    whole = tokenizer.ids(texts)
    tokenizer.characters_at_once = 1 << 14
    try:
        limited = tokenizer.ids(texts, limit=limit)
        arrays = list(tokenizer.arrays(texts, limit=limit))
    finally:
        tokenizer.characters_at_once = CHARACTERS_AT_ONCE
    assert [ids.tolist() for ids, _ in arrays] == limited
    assert [len(offsets) for _, offsets in arrays] == list(map(len, limited))
    if sum(map(len, whole)) <= limit:
        assert limited == whole
    else:
        # a part of a text is read to its end
        assert limit < sum(map(len, limited)) <= limit + (1 << 14)
        assert [ids[: len(part)] for ids, part in zip(whole, limited)] == limited


def test_a_lone_surrogate_is_a_bad_character_and_no_crash(tokenizer):
    assert tokenizer.ids(["a\ud800b", "c"]) == tokenizer.ids(["a\ufffdb", "c"])
    assert tokenizer.encode("a\ud800b c").offsets[-2] == (4, 5)


def test_what_is_no_text_is_refused(tokenizer):
    for wrong in (None, 3, b"a"):
        with pytest.raises(UsageError, match="is not a text"):
            tokenizer.ids(["a", wrong])


@given(st.integers(0, 12), st.integers(0, 12), st.integers(3, 20))
def test_truncation_is_that_of_the_original(tokenizer, first, second, max_length):
    encoding = tokenizer.encode("a " * first, "b " * second, max_length=max_length)
    whole = first + second + 3
    while first + second > max_length - 3:  # google-research/bert, _truncate_seq_pair
        if first > second:
            first -= 1
        else:
            second -= 1
    names = [tokenizer.tokens[number] for number in encoding.ids]
    assert (names.count("a"), names.count("b")) == (first, second)
    assert encoding.num_truncated == whole - len(encoding.ids)


def test_truncation_is_reported(tokenizer):
    assert tokenizer.encode("a b c d", max_length=4).num_truncated == 2
    assert tokenizer.encode("a b c d", "e f", max_length=5).num_truncated == 4
    assert tokenizer.encode("a b c d", max_length=6).num_truncated == 0
    assert tokenizer.encode("a b", max_length=2).ids == [tokenizer.cls_id, tokenizer.sep_id]
    with pytest.raises(UsageError, match="no room"):
        tokenizer.encode("a", "b", max_length=2)


def test_decode_gives_the_text_back(tokenizer):
    assert (
        tokenizer.decode(tokenizer.encode("hello, unaffable world!").ids)
        == "hello, unaffable world!"
    )
    assert tokenizer.decode([tokenizer.mask_id], skip_special_tokens=False) == "[MASK]"
    for number in (-1, tokenizer.vocab_size):
        with pytest.raises(UsageError, match="outside the vocabulary"):
            tokenizer.decode([number])


def test_starts_word(tokenizer):
    expected = np.array([not token.startswith("##") for token in TOKENS])
    expected[TOKENS.index("#")] = True
    assert tokenizer.starts_word.dtype == np.bool_
    assert (tokenizer.starts_word == expected).all()


# Folders


def test_folder_has_every_file_and_reads_back(tmp_path):
    original = Tokenizer(serialized(lowercase=False, strip_accents=False), model_max_length=256)
    original.save(tmp_path)
    assert (tmp_path / "vocab.txt").read_text(encoding="utf-8").split("\n")[:-1] == TOKENS
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert config["tokenizer_class"] == "BertTokenizer"
    assert (config["do_lower_case"], config["strip_accents"], config["tokenize_chinese_chars"]) == (
        False,
        False,
        True,
    )
    assert config["model_max_length"] == 256
    assert json.loads((tmp_path / "special_tokens_map.json").read_text()) == SPECIAL_TOKENS
    stored = json.loads((tmp_path / "tokenizer.json").read_text())
    assert stored["truncation"] is stored["padding"] is None
    again = Tokenizer.load(tmp_path)
    assert (again.sha256, again.model_max_length, again.notes) == (original.sha256, 256, ())
    (tmp_path / "tokenizer.json").unlink()  # as Google publishes it, and with its config
    assert Tokenizer.load(tmp_path).sha256 == original.sha256


COMPOSING = {
    "type": "Sequence",
    "normalizers": [{"type": "NFC"}, {"type": "BertNormalizer", "clean_text": True}],
}
COMPOSING["normalizers"][1] |= {
    "handle_chinese_chars": True,
    "strip_accents": False,
    "lowercase": True,
}


@pytest.mark.parametrize(
    "changes",
    [
        {"normalizer": COMPOSING},
        {"normalizer": {"type": "Lowercase"}},
        {"normalizer": COMPOSING["normalizers"][1] | {"clean_text": False}},
        {"pre_tokenizer": {"type": "WhitespaceSplit"}},
        {
            "post_processor": {
                "type": "RobertaProcessing",
                "sep": ["[SEP]", 3],
                "cls": ["[CLS]", 2],
                "trim_offsets": True,
                "add_prefix_space": False,
            }
        },
        {"model": {"max_input_chars_per_word": 7}},
    ],
    ids=[
        "normalizers",
        "another-normalizer",
        "clean_text",
        "pre-tokenizer",
        "template",
        "longest-word",
    ],
)
def test_an_opened_folder_keeps_its_own_rules_when_it_is_saved(changes, tmp_path):
    """BertTokenizer of transformers 5 would build other rules from the vocabulary, without a
    word."""
    description = json.loads(serialized())
    for part, content in changes.items():
        description[part] = description[part] | content if part == "model" else content
    tokenizer = Tokenizer(json.dumps(description))
    assert not tokenizer.is_bert_tokenizer
    tokenizer.save(tmp_path / "a")
    Tokenizer.load(tmp_path / "a").save(tmp_path / "b")
    texts = ["Hello caf\u00e9, cafe\u0301!", "hello\x07world", "helloworld 中world"]
    for name in ("a", "b"):
        assert Tokenizer.load(tmp_path / name).sha256 == tokenizer.sha256
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / name)
        for text in texts:
            assert theirs(text)["input_ids"] == tokenizer.encode(text).ids
            pair = theirs(text, "hello")
            ours = tokenizer.encode(text, "hello")
            assert (pair["input_ids"], pair["token_type_ids"]) == (ours.ids, ours.type_ids)


def test_published_truncation_and_padding_are_dropped(tmp_path):
    content = json.loads(serialized())
    content["truncation"] = {
        "direction": "Right",
        "max_length": 4,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    content["padding"] = {
        "strategy": {"Fixed": 9},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "[PAD]",
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = Tokenizer.load(tmp_path)
    assert len(tokenizer.encode("a b c d e f g h i j").ids) == 12
    assert len(tokenizer.encode("a").ids) == 3
    assert tokenizer.sha256 == Tokenizer(serialized()).sha256


def test_hash_is_of_what_decides_the_ids():
    plain = Tokenizer(serialized())
    assert (
        plain.sha256
        == Tokenizer(json.dumps(json.loads(serialized()), indent=3), model_max_length=99).sha256
    )
    assert plain.sha256 != Tokenizer(serialized(lowercase=False)).sha256
    assert plain.sha256 != Tokenizer(serialized([*TOKENS, "more"])).sha256
    tiny = Tokenizer(serialized([*SPECIALS, "a", "##b"]))
    assert tiny.sha256 == "7dde5e3b502859948898210a5e1b0b8e5938b06292ab1ff23f23527c46c0a4c9", (
        "the same on every machine"
    )


def test_pickle_for_worker_processes(tokenizer):
    again = pickle.loads(pickle.dumps(tokenizer))
    assert again.sha256 == tokenizer.sha256
    assert again.encode("hello") == tokenizer.encode("hello")


def test_vocabulary_alone_has_its_casing_guessed_and_said(tmp_path):
    lower = Tokenizer.load(write_vocabulary(tmp_path / "lower", [*SPECIALS, *LETTERS]))
    assert lower.lowercase
    assert "casing inferred" in lower.notes[0]
    assert tokens_of(lower, "Á") == ["a"]
    upper = Tokenizer.load(write_vocabulary(tmp_path / "upper", [*SPECIALS, *LETTERS, "The", "A"]))
    assert not upper.lowercase
    kana = Tokenizer.load(write_vocabulary(tmp_path / "kana", [*SPECIALS, *LETTERS, "が"]))
    assert tokens_of(kana, "が A") == ["が", "a"]


def test_a_config_that_contradicts_the_vocabulary_is_doubted(tmp_path):
    folder = write_vocabulary(
        tmp_path / "x", [*SPECIALS, "The", "A"], do_lower_case=True, model_max_length=8
    )
    assert "is it a cased model" in Tokenizer.load(folder).notes[0]


def test_specials_with_other_names(tmp_path):
    tokens = ["<pad>", "<unk>", "<s>", "</s>", "<mask>", "a"]
    names = dict(zip(SPECIAL_TOKENS, tokens))
    names["mask_token"] = {"content": "<mask>", "lstrip": True}
    tokenizer = Tokenizer.load(write_vocabulary(tmp_path, tokens, do_lower_case=True, **names))
    assert tokenizer.encode("a <mask> z").ids == [2, 5, 4, 1, 3]
    assert tokenizer.special_ids == {0, 1, 2, 3, 4}


GOOD = "".join(f"{token}\n" for token in TOKENS).encode()
BAD_VOCABULARIES = {
    "twice": (GOOD + b"hello\n", f":{len(TOKENS) + 1}", "twice, first in line"),
    "crlf": (GOOD.replace(b"\n", b"\r\n"), ":1", "CRLF"),
    "bom": (b"\xef\xbb\xbf" + GOOD, ":1", "byte-order mark"),
    "bytes": (GOOD + b"ok\n\xff\xfe\n", f":{len(TOKENS) + 2}", "not UTF-8"),
    "empty lines": (
        b"[PAD]\n\n" + GOOD[6:] + b"\nmore\n",
        f":{len(TOKENS) + 2}",
        "'' occurs twice",
    ),
    "empty": (b"", ":1", "is empty"),
    "no mask": (GOOD.replace(b"[MASK]\n", b""), "", "lacks [MASK]"),
    "no unknown": (GOOD.replace(b"[UNK]\n", b""), "", "lacks [UNK]"),
    "no pad": (GOOD.replace(b"[PAD]\n", b""), "", "lacks [PAD]"),
}


@pytest.mark.parametrize("kind", BAD_VOCABULARIES)
def test_damaged_vocabulary_is_refused_with_its_line(tmp_path, kind):
    content, line, message = BAD_VOCABULARIES[kind]
    (tmp_path / "vocab.txt").write_bytes(content)
    with pytest.raises(BertworksError) as caught:
        Tokenizer.load(tmp_path)
    assert caught.value.where == f"{tmp_path / 'vocab.txt'}{line}"
    assert message in caught.value.what


def broken(**changes):
    return json.dumps(json.loads(serialized()) | changes)


def holes():
    content = json.loads(serialized())
    content["model"]["vocab"]["far"] = 4_000_000_000
    return json.dumps(content)


BAD_FILES = {
    "no json": ("{\n\n oops", "tokenizer.json:3"),
    "a list": ("[]", "tokenizer.json"),
    "no model": ("{}", "tokenizer.json:1"),
    "nested": ("[" * 200_000, "tokenizer.json"),
    "a token twice": (serialized().replace('"hello":', '"world":'), "tokenizer.json:1"),
    "library panics": (
        broken(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
        "tokenizer.json",
    ),
    "template panics": (
        broken(
            post_processor={
                "type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "[X]", "type_id": 0}}],
                "pair": [{"SpecialToken": {"id": "[X]", "type_id": 0}}],
                "special_tokens": {},
            }
        ),
        "tokenizer.json",
    ),
    "absurd id": (holes(), "tokenizer.json"),
    "no specials": (
        broken(
            added_tokens=[],
            model={"type": "WordPiece", "vocab": {"[UNK]": 0, "a": 1}},
            post_processor=None,
        ),
        "tokenizer",
    ),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_damaged_tokenizer_file_is_an_error_of_ours(tmp_path, kind, capfd):
    content, place = BAD_FILES[kind]
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(BertworksError) as caught:
        Tokenizer.load(tmp_path)
    assert place in caught.value.where
    assert len(caught.value.what) < 400


def test_missing_folder_and_absurd_size(tmp_path):
    with pytest.raises(BertworksError, match="no tokenizer here"):
        Tokenizer.load(tmp_path / "nowhere")
    write_vocabulary(tmp_path)
    os.truncate(tmp_path / "vocab.txt", (1 << 25) + 1)
    with pytest.raises(BertworksError, match="too much for this file"):
        Tokenizer.load(tmp_path)
    with pytest.raises(BertworksError, match="800,001 lines are not a vocabulary"):
        Tokenizer.load(write_vocabulary(tmp_path, ["x"] * 800_001))


def test_config_that_is_no_object(tmp_path):
    write_vocabulary(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[1]")
    with pytest.raises(BertworksError, match="object is expected"):
        Tokenizer.load(tmp_path)


# The same as transformers


def assert_same(tokenizer, theirs, texts):
    """Ids, offsets and type ids of every text, and of every text with its successor as a pair."""
    pairs = list(pairwise(texts))
    ours = tokenizer.encode_batch(texts) + [tokenizer.encode(*pair) for pair in pairs]
    library = theirs(list(texts), return_offsets_mapping=True, return_token_type_ids=True)
    together = [library]
    if pairs:
        firsts, seconds = map(list, zip(*pairs))
        together.append(
            theirs(firsts, seconds, return_offsets_mapping=True, return_token_type_ids=True)
        )
    expected = [
        row
        for found in together
        for row in zip(found["input_ids"], found["offset_mapping"], found["token_type_ids"])
    ]
    different = [
        (encoding, row)
        for encoding, row in zip(ours, expected, strict=True)
        if (encoding.ids, [tuple(place) for place in encoding.offsets], encoding.type_ids)
        != (row[0], [tuple(place) for place in row[1]], row[2])
    ]
    assert not different, different[0]


def theirs_for(folder):
    from transformers import AutoTokenizer, BertTokenizerFast

    theirs = AutoTokenizer.from_pretrained(str(folder))
    assert isinstance(theirs, BertTokenizerFast)
    return theirs


@pytest.fixture(scope="module", params=[(True, None), (True, False), (False, None)], ids=str)
def both(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("both")
    tokenizer = Tokenizer(serialized(lowercase=request.param[0], strip_accents=request.param[1]))
    tokenizer.save(folder)
    return tokenizer, theirs_for(folder)


@pytest.mark.no_cover
@settings(max_examples=150, deadline=None)
@given(
    texts=st.lists(
        st.text(
            st.one_of(
                st.characters(exclude_categories=["Cs"]),
                st.sampled_from("aé が中한\x0b[MASK]'’\u0301"),
            )
        ),
        min_size=1,
        max_size=4,
    )
)
def test_any_text_is_as_in_transformers(both, texts):
    assert_same(*both, texts)


def test_transformers_reads_the_length_from_our_folder(both):
    assert both[1].model_max_length == 512
    assert both[1]("hello world", "a")["token_type_ids"] == [0, 0, 0, 0, 1, 1]


def lines_of(path, number):
    with gzip.open(path, "rt", encoding="utf-8") as file:
        texts = (json.loads(line)["text"] for line in file)
        pieces = (
            piece
            for text in texts
            for line in text.split("\n")
            for piece in (line[:400], line[400:800])
            if piece
        )
        return list(islice(pieces, number))


CORPORA = [
    ("en-wikipedia-8m.jsonl.gz", "bert-base-uncased-vocab.txt", True),
    ("en-wikipedia-8m.jsonl.gz", "bert-base-multilingual-cased-vocab.txt", False),
    ("ja-aozora-5m-chars.jsonl.gz", "bert-base-multilingual-cased-vocab.txt", False),
    ("ko-wikipedia-1m.jsonl.gz", "bert-base-multilingual-cased-vocab.txt", False),
]


def compare_on_corpora(data_folder, tmp_path, lines):
    for corpus, vocabulary, lowercase in CORPORA:
        folder = tmp_path / f"{corpus}-{vocabulary}"
        folder.mkdir()
        (folder / "vocab.txt").write_bytes((data_folder / "vocab" / vocabulary).read_bytes())
        config = {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": lowercase,
            "model_max_length": 512,
        }
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        theirs = theirs_for(folder)  # of the published folder, not of one that we wrote
        tokenizer = Tokenizer.load(folder)
        texts = lines_of(data_folder / "text" / corpus, lines)
        for start in range(0, len(texts), 2000):
            assert_same(tokenizer, theirs, texts[start : start + 2000])
        yield len(texts)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Token indices sequence length")
def test_real_text_is_as_in_transformers(data_folder, tmp_path):
    assert list(compare_on_corpora(data_folder, tmp_path, 750)) == [750] * 4


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Token indices sequence length")
def test_a_hundred_thousand_real_lines_are_as_in_transformers(data_folder, tmp_path):
    assert sum(compare_on_corpora(data_folder, tmp_path, 27_000)) >= 100_000


def test_an_empty_line_is_a_token_that_no_text_has(tmp_path):
    """So it is in a vocabulary that was published: whatever stands behind it keeps its number, as
    in transformers."""
    tokens = [*TOKENS[:20], "", *TOKENS[20:]]
    folder = write_vocabulary(
        tmp_path / "v", tokens, do_lower_case=True, tokenizer_class="BertTokenizer"
    )
    ours, theirs = Tokenizer.load(folder), transformers.BertTokenizerFast.from_pretrained(folder)
    assert ours.vocab_size == len(tokens)
    for text in ("hello world", "un hello, ok? [MASK]", ""):
        assert ours.encode(text).ids == theirs(text)["input_ids"]
    ours.save(tmp_path / "saved")
    assert (tmp_path / "saved/vocab.txt").read_bytes() == (folder / "vocab.txt").read_bytes()
    assert (
        Tokenizer.load(tmp_path / "saved").encode("hello world").ids
        == ours.encode("hello world").ids
    )


def test_ids_of_real_text_are_those_of_encode(data_folder, tmp_path):
    folder = tmp_path
    (folder / "vocab.txt").write_bytes(
        (data_folder / "vocab" / "bert-base-uncased-vocab.txt").read_bytes()
    )
    tokenizer = Tokenizer.load(folder)
    texts = [
        text for text in lines_of(data_folder / "text" / CORPORA[0][0], 500) if "[" not in text
    ]
    assert tokenizer.ids(texts) == [
        encoding.ids[1:-1] for encoding in tokenizer.encode_batch(texts)
    ]


def test_word_pieces_need_the_special_tokens():
    model = json.loads(serialized())["model"] | {"vocab": {"[UNK]": 0, "a": 1}}
    content = broken(added_tokens=[], model=model, post_processor=None)
    with pytest.raises(BertworksError, match=r"the vocabulary lacks .*\[MASK\]") as caught:
        Tokenizer(content)
    assert caught.value.hint == "add it, one token per line"
