"""Long texts are encoded in parts: the tokens are those of the whole text, and memory stays
bounded."""

import json
import re
import subprocess
import sys

import pytest
import tokenizers
from hypothesis import given, settings, strategies as st
from tokenizers import AddedToken, models, normalizers, pre_tokenizers, processors

from bertworks.runs import data_splits
from bertworks.text import tokenizer as module
from bertworks.text.long_texts import cut_points, long_runs
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.vocabulary import VocabularyConfig, train_vocabulary

TEXT = (
    "the cat's sat, on 23 mats; Über \u00e9 e\u0301 東京の空は、青い。 中国 한국 어 "
    "\u0e01\u0e33 ab/cd+ef ŒÆ \U0001d400x"
)
CHARACTERS = (
    "ab cd  é e\u0301\u0345\u0d4e\u0e33\uff9e 12 .,;/+'`-_[]<> \n"
    "\t\r\x0b\u00a0\u3000\u200d\x00\ufffd"
    "東京中のはがカ。、한국αςΣ \U0001d400\U0001f600"
)
WORDS = [
    "the",
    " the cat",
    " '",
    "``",
    "[MASK]",
    "<mask>",
    " <mask> ",
    "[SEP]",
    "a b c d e f g h",
    "x" * 120,
    "東京中国",
    "が",
]
texts = st.lists(st.sampled_from([*CHARACTERS, *WORDS]), max_size=60).map("".join)


def library(model, normalizer, pre_tokenizer, post_processor=None, mask="<mask>"):
    made = tokenizers.Tokenizer(model)
    if normalizer:
        made.normalizer = normalizer
    made.pre_tokenizer = pre_tokenizer
    if post_processor:
        made.post_processor = post_processor
    made.add_special_tokens([AddedToken(mask, lstrip=True, normalized=False)])
    return made.to_str()


def byte_level(prefix):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("Ġ", "c"), ("a", "b")]
    forms = ["<unk>", *alphabet, *("".join(pair) for pair in merges)]
    trim = processors.ByteLevel(add_prefix_space=prefix, trim_offsets=True, use_regex=True)
    model = models.BPE(
        {form: number for number, form in enumerate(forms)}, merges, unk_token="<unk>"
    )
    return library(model, None, pre_tokenizers.ByteLevel(add_prefix_space=prefix), trim)


def unigram(normalizer, pre_tokenizer):
    letters = sorted(set(CHARACTERS + TEXT) - set(" \n\t"))
    pieces = [
        ("<unk>", 0.0),
        ("▁", -3.0),
        ("▁the", -2.0),
        ("▁c", -4.0),
        ("東京", -3.0),
        *((x, -6.0) for x in letters),
    ]
    return library(models.Unigram(pieces, 0, False), normalizer, pre_tokenizer)


def trained(algorithm):
    config = VocabularyConfig(size=400, algorithm=algorithm, min_frequency=1)
    tokenizer, _ = train_vocabulary([TEXT * 20], config, workers=1)
    return tokenizer._library.to_str()


def metaspace(scheme):
    return pre_tokenizers.Metaspace(prepend_scheme=scheme)


white_space = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace("always")])
albert = normalizers.Sequence(
    [
        normalizers.Replace("``", '"'),
        normalizers.NFKD(),
        normalizers.StripAccents(),
        normalizers.Lowercase(),
    ]
)
KINDS = {
    "wordpiece": lambda: trained("wordpiece"),
    "bpe": lambda: trained("bpe"),
    "unigram": lambda: trained("unigram"),
    "gpt2": lambda: byte_level(False),
    "gpt2 with a space": lambda: byte_level(True),
    "albert": lambda: unigram(albert, white_space),
    "xlmroberta": lambda: unigram(normalizers.NFKC(), white_space),
    "metaspace": lambda: unigram(normalizers.NFC(), metaspace("always")),
    "metaspace, first": lambda: unigram(None, metaspace("first")),
    "metaspace, never": lambda: unigram(None, metaspace("never")),
}


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request):
    return Tokenizer(
        KINDS[request.param](),
        special_tokens={"mask_token": "<mask>"} if " " in request.param else None,
    )


def answers(tokenizer, texts, most):
    """All that a tokenizer says of texts."""
    arrays = [[array.tolist() for array in pair] for pair in tokenizer.arrays(texts)]
    return {
        "first": tokenizer.encode_batch(texts, max_length=most),
        "pair": tokenizer.encode(texts[0], texts[-1], max_length=2 * most),
        "arrays": arrays,
        "ids": tokenizer.ids(texts),
        "words": [words.tolist() for words in tokenizer.words(texts)],
        "unknown": tokenizer.unknown(texts),
    }


few_texts = st.lists(texts, min_size=1, max_size=3)


@settings(max_examples=20, deadline=None)
@given(texts=few_texts, most=st.integers(5, 9))
def test_parts_have_the_tokens_of_the_whole(tokenizer, texts, most):
    assert_parts_are_the_whole(tokenizer, texts, most)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(texts=few_texts, most=st.integers(5, 9))
def test_parts_have_the_tokens_of_the_whole_in_more_texts(tokenizer, texts, most):
    assert_parts_are_the_whole(tokenizer, texts, most)


def assert_parts_are_the_whole(tokenizer, texts, most):
    cuts = tokenizer._cuts
    assert cuts is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_PART", 3)
        patch.setattr(module, "_PER_TOKEN", 1)
        patch.setattr(tokenizer, "characters_at_once", 20)
        in_parts = answers(tokenizer, texts, most)
        patch.setattr(tokenizer, "_cuts", None)
        whole = answers(tokenizer, texts, most)
    assert in_parts == whole


def test_long_texts_are_cut(tokenizer):
    text = (TEXT + " and so on ") * 500
    parts = [end - start for start, end in spans_of(tokenizer, text)]
    assert len(parts) > 1
    assert max(parts) < 2 * module._PART + 200


def spans_of(tokenizer, text):
    start = 0
    while start < len(text):
        end = tokenizer._next_cut(text, start + module._PART)
        yield start, end
        start = end


def test_chinese_without_spaces_is_cut():
    tokenizer = Tokenizer(KINDS["wordpiece"]())
    assert len(list(spans_of(tokenizer, "中国東京" * 20_000))) == 4


@pytest.mark.parametrize(
    "change",
    [
        {
            "pre_tokenizer": {
                "type": "Split",
                "pattern": {"Regex": "a b"},
                "behavior": "Isolated",
                "invert": False,
            }
        },
        {"pre_tokenizer": None},
        {
            "pre_tokenizer": {
                "type": "Metaspace",
                "replacement": "▁",
                "prepend_scheme": "always",
                "split": False,
            }
        },
        {"normalizer": {"type": "Replace", "pattern": {"String": "a b"}, "content": "c"}},
        {"normalizer": {"type": "Prepend", "prepend": "▁"}},
        {"added_tokens": [{"content": "a b", "lstrip": False, "rstrip": False}]},
        {"added_tokens": [{"content": "ab", "lstrip": True, "rstrip": False}]},
    ],
)
def test_other_tokenizers_read_a_text_as_a_whole(change):
    tokenizer = json.loads(KINDS["wordpiece"]())
    assert cut_points(tokenizer) is not None
    assert cut_points(tokenizer | change) is None


# --- texts without white space
# ----------------------------------------------------------------------------------------

units = st.sampled_from(
    [
        "ACGT",
        "a",
        "abc",
        "the",
        "'ll",
        "-",
        "é",
        "e\u0301",
        "中国",
        "東",
        "\U0001f600",
        "12",
        "_",
        "[MASK]",
    ]
)
parts_without_spaces = st.one_of(
    st.tuples(units, st.integers(1, 400)).map(lambda pair: pair[0] * pair[1]),
    st.text("ACGT", min_size=50, max_size=600),
    st.text("abcdefgh'.-12中国東京のé", max_size=400),
    st.sampled_from([" ", "\n" * 70, " " * 90, "x" * 90, "Hello"]),
)
without_spaces = st.lists(parts_without_spaces, min_size=1, max_size=5).map("".join)


texts_without_spaces = st.lists(without_spaces, min_size=1, max_size=2)


@settings(max_examples=7, deadline=None)
@given(texts=texts_without_spaces, most=st.integers(5, 60))
def test_texts_without_spaces_have_the_tokens_of_the_whole(tokenizer, texts, most):
    assert_long_runs_are_the_whole(tokenizer, texts, most)


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(texts=texts_without_spaces, most=st.integers(5, 60))
def test_texts_without_spaces_have_the_tokens_of_the_whole_in_more_texts(tokenizer, texts, most):
    assert_long_runs_are_the_whole(tokenizer, texts, most)


def assert_long_runs_are_the_whole(tokenizer, texts, most):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_PART", 40)
        patch.setattr(module, "_PER_TOKEN", 1)
        patch.setattr(module, "_LONGEST", 160)
        patch.setattr(module, "_OVERLAP", 80)
        in_parts = answers(tokenizer, texts, most)
        patch.setattr(tokenizer, "_cuts", None)
        patch.setattr(tokenizer, "_long_runs", None)
        whole = answers(tokenizer, texts, most)
    assert in_parts == whole


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
@pytest.mark.parametrize(
    "text", ["ACGTTGCAAC" * 400_00, "-" * 400_000, "a" + " " * 400_000 + "b", "中国東京" * 100_000]
)
def test_no_long_part_is_read_at_once(kind, text, monkeypatch):
    tokenizer, longest = Tokenizer(KINDS[kind]()), []
    run = Tokenizer._run
    monkeypatch.setattr(
        Tokenizer,
        "_run",
        lambda self, encode, texts: longest.extend(map(len, texts)) or run(self, encode, texts),
    )
    tokenizer.encode(text, max_length=512)
    [(ids, offsets)] = tokenizer.arrays([text])
    if kind == "wordpiece" or not text.startswith("a "):
        assert max(longest) <= 2 * module._LONGEST
    assert len(ids) == len(offsets)
    assert offsets.max() == len(text)


runs = st.lists(
    st.tuples(
        st.sampled_from(["x", "ab1", "é", "가", " ", "\n ", ".", "中", "[MASK]", "<mask>", "the "]),
        st.integers(1, 1500),
    ),
    max_size=4,
).map(lambda pairs: "".join(unit * count for unit, count in pairs))


@settings(max_examples=40, deadline=None)
@given(text=runs, most=st.integers(5, 60))
def test_long_words_and_white_space_are_left_out(text, most):
    tokenizer = Tokenizer(KINDS["wordpiece"]())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_PART", 40)
        short = answers(tokenizer, ["", text, "the cat"], most)
        patch.setattr(tokenizer, "_long_runs", None)
        assert short == answers(tokenizer, ["", text, "the cat"], most)


def test_of_a_long_word_the_ends_are_read():
    tokenizer = Tokenizer(KINDS["wordpiece"]())
    text = "the " + "ACGT" * 100_000 + " cat"
    [short] = tokenizer._shortened([text])
    assert len(short.text) < 2000
    encoding = tokenizer.encode(text, max_length=16)
    assert encoding.offsets[1:3] == [(0, 3), (4, 400_004)]
    assert tokenizer.unknown([text])[0] == "ACGT" * 100_000


@pytest.mark.parametrize(
    "change",
    [{"pre_tokenizer": {"type": "WhitespaceSplit"}}, {"added_tokens": [{"content": "ACGT"}]}],
)
def test_what_may_have_tokens_is_not_left_out(change):
    tokenizer = json.loads(KINDS["wordpiece"]())
    others = {"lstrip": False, "rstrip": False}
    change = {k: [v[0] | others] if k == "added_tokens" else v for k, v in change.items()}
    assert long_runs(tokenizer) is not None
    assert long_runs(tokenizer | change) is None
    assert long_runs(json.loads(KINDS["bpe"]())) is None


@given(st.text("ab \n\u00a0\u0301ﬁÉ", max_size=40), st.booleans())
def test_a_long_text_has_the_key_of_its_words(text, lowercase):
    def key(size):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(data_splits, "_PARTS", re.compile(rf"(?s:.{{1,{size}}})(?!\S)|\S+"))
            return data_splits.text_key([text, "b"], lowercase)

    assert key(3) == key(1 << 16)
    assert data_splits.text_key([f" {text}\n", "b"], lowercase) == key(5)
    assert data_splits.text_key([text, "b c"], lowercase) != key(5)


@pytest.mark.slow
@pytest.mark.no_cover
@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
@pytest.mark.parametrize(
    "text", ["ACGTTGCA" * 2_000_000, "the cat sat " * 1_300_000, "中国東京" * 1_300_000]
)
def test_a_text_of_16_mb_takes_little_memory(kind, text, tmp_path):
    code = (
        "import sys, pathlib; from bertworks.text.tokenizer import Tokenizer\n"
        "def memory(name): return next(int(x.split()[1]) for x in open('/proc/self/status') if "
        "x.startswith(name))\n"
        "tokenizer, text = Tokenizer(pathlib.Path(sys.argv[1]).read_text()), "
        "pathlib.Path(sys.argv[2]).read_text()\n"
        "tokenizer.encode('the'); before = memory('VmRSS')\n"
        "tokenizer.encode(text, max_length=512); print((memory('VmHWM') - before) / 1024)"
    )
    (tmp_path / "tokenizer").write_text(KINDS[kind]())
    (tmp_path / "text").write_text(text)
    command = [sys.executable, "-c", code, str(tmp_path / "tokenizer"), str(tmp_path / "text")]
    assert float(subprocess.run(command, check=True, capture_output=True, text=True).stdout) < 264
