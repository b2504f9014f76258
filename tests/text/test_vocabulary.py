"""Vocabularies: the same bytes whatever the way, honest figures, exact counts."""

import gzip
import json
import random
import sys
from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import transformers
from hypothesis import given, settings, strategies as st
from tokenizers import models, normalizers, pre_tokenizers

from bertworks.errors import BertworksError, UsageError
from bertworks.text import word_counts
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.vocabulary import (
    MergeLearner,
    VocabularyConfig,
    characters_of,
    extend_vocabulary,
    splitter_of,
    train_vocabulary,
    train_word_pieces,
    without_last,
)
from bertworks.text.word_counts import AccentSplitter, Splitter
from tests.runs.test_adaptation import home as home
from tests.support.refusals import refusal

BERT = normalizers.BertNormalizer(strip_accents=False)


def make_splitter(normalizer, pre_tokenizer, max_length):
    library = tokenizers.Tokenizer(models.WordPiece({"[UNK]": 0}))
    library.normalizer, library.pre_tokenizer = normalizer, pre_tokenizer
    return AccentSplitter(library.to_str(), library.to_str(), max_length)


SPLITTER = make_splitter(BERT, pre_tokenizers.BertPreTokenizer(), 100)
BYTES = make_splitter(
    normalizers.Sequence(
        [BERT, normalizers.Strip(), normalizers.Replace(tokenizers.Regex(" {2,}"), " ")]
    ),
    pre_tokenizers.ByteLevel(add_prefix_space=True),
    1000,
)
ALGORITHMS = ["wordpiece", "bpe", "unigram"]
WORDS = (
    "the old cat sat on a mat with 3 unhappy, unaffordable friends; café naïve résumé — "
    "Straße! it's x-ray"
).split()
TEXTS = st.lists(
    # words with U+FFFD are counted together: see the test of bad bytes
    st.text(
        st.one_of(
            st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd"),
            st.sampled_from("aB1 \n\té中がㅏ한,.'\x0b\u3000"),
        )
    )
)


def invented(documents=60, seed=0):
    """Documents of words that repeat, with a few that come once."""
    chance = random.Random(seed)
    return [
        " ".join(chance.choices(WORDS, range(len(WORDS), 0, -1), k=40))
        + f"\nword{chance.randrange(10**6)} İ \x0bq"
        for _ in range(documents)
    ]


def files_of(tokenizer, folder):
    tokenizer.save(folder)
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


# Counting


@given(TEXTS)
@pytest.mark.parametrize("splitter", [SPLITTER, BYTES], ids=["wordpiece", "bpe"])
def test_counts_are_those_of_the_whole_text(splitter, texts):
    expected = Counter(
        word
        for text in texts
        for word in Splitter(splitter.keeping).words(text)
        if len(word) <= splitter.max_length
    )
    assert splitter.count(texts).shared_words == expected


@pytest.mark.parametrize("special_tokens", ["roberta", "xlm", "modernbert", "xlnet", "gpt2"])
@given(texts=TEXTS)
@settings(max_examples=60)
def test_words_of_text_as_it_is_are_those_of_the_tokenizer(special_tokens, texts):
    """White space and decomposed characters too, which only ModernBERT composes."""
    texts = [*texts, "The  old\n\ncat's e\u0301 \t dog ", " a\u00a0b \x1c c"]
    config = VocabularyConfig(
        size=400, algorithm="bpe", lowercase=False, special_tokens=special_tokens
    )
    shared, kept, stripped = splitter_of(config).count(texts)
    assert not kept
    assert not stripped
    words = Splitter(as_it_is(special_tokens))
    assert shared == Counter(
        word for text in texts if not text.isspace() for word in words.words(text)
    )


@cache
def as_it_is(special_tokens):
    """The tokenizer.json of a byte-level vocabulary with these special tokens."""
    config = VocabularyConfig(
        size=400, algorithm="bpe", lowercase=False, special_tokens=special_tokens
    )
    return train_vocabulary(["the cat sat"] * 5, config, workers=1)[0].__reduce__()[1][0]


@cache
def written_tokenizer(algorithm, strip_accents):
    """The tokenizer.json of a vocabulary of this kind."""
    config = VocabularyConfig(size=400, algorithm=algorithm, strip_accents=strip_accents)
    made, _ = train_vocabulary(["the cat sat"] * 5, config, workers=1)
    return made.__reduce__()[1][0]


@pytest.mark.parametrize("algorithm", ["wordpiece", "bpe", "unigram"])
@given(texts=TEXTS)
@settings(max_examples=60)
def test_words_are_those_of_the_tokenizer_that_is_written(algorithm, texts):
    """Whether it keeps or strips accents is decided after counting: both are counted by their own
    rules."""
    texts = [
        *texts,
        "a",
        "na\u00efve cafe\u0301 \u025b\u0301b",
        "\u0939\u093f\u0928\u094d\u0926\u0940",
    ]
    splitter = splitter_of(VocabularyConfig(algorithm=algorithm))
    shared, kept, stripped = splitter.count(texts)
    assert kept
    for strip_accents, counts in ((False, kept), (True, stripped)):
        written = train_vocabulary(
            ["a"], VocabularyConfig(size=400, algorithm=algorithm, strip_accents=strip_accents)
        )[0]
        (serialized,) = written.__reduce__()[1]
        words = Splitter(serialized)
        expected = Counter(
            word for text in texts for word in words.words(text) if len(word) <= splitter.max_length
        )
        assert shared + counts == expected


def test_counts_survive_a_lone_surrogate_and_long_words():
    assert SPLITTER.count(["a\ud800b " + "x" * 101]).shared_words == {"ab": 1}


# Merging


# Training


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_same_bytes_whatever_the_way(algorithm, tmp_path, monkeypatch):
    documents = invented()
    config = VocabularyConfig(size=330, algorithm=algorithm, min_frequency=1)
    expected = files_of(train_vocabulary(documents, config, workers=1)[0], tmp_path / "expected")
    assert len(json.loads(expected["tokenizer.json"])["model"]["vocab"]) > 100
    monkeypatch.setattr(word_counts, "BATCH", 2000)  # several batches, so that processes start
    for number, (workers, max_memory) in enumerate([(1, 1000), (2, 1 << 30), (3, 1000)]):
        random.Random(number).shuffle(documents)
        made, _ = train_vocabulary(iter(documents), config, workers=workers, max_memory=max_memory)
        assert files_of(made, tmp_path / str(number)) == expected


def test_strings_of_numpy_are_texts_too(monkeypatch):
    documents = invented()
    expected, _ = train_vocabulary(documents, VocabularyConfig(size=200), workers=1)
    monkeypatch.setattr(word_counts, "BATCH", 2000)
    assert (
        train_vocabulary(np.array(documents), VocabularyConfig(size=200), workers=2)[0].tokens
        == expected.tokens
    )


def test_ids_of_special_tokens_are_fixed_and_unused_slots_follow():
    made, _ = train_vocabulary(invented(), VocabularyConfig(size=120, unused=3))
    assert made.tokens[:8] == [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "[unused0]",
        "[unused1]",
        "[unused2]",
    ]
    assert (made.pad_id, made.unk_id, made.cls_id, made.sep_id, made.mask_id) == (0, 1, 2, 3, 4)
    assert len(set(made.tokens)) == made.vocab_size == 120


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_transformers_opens_the_folder_and_agrees(algorithm, tmp_path):
    from transformers import AutoTokenizer

    made, report = train_vocabulary(
        invented(),
        VocabularyConfig(size=330, algorithm=algorithm, model_max_length=64, min_frequency=1),
    )
    made.save(tmp_path)
    assert (tmp_path / "vocab.txt").exists() == (algorithm == "wordpiece")
    assert Tokenizer.load(tmp_path).sha256 == made.sha256
    theirs = AutoTokenizer.from_pretrained(str(tmp_path))
    assert theirs.model_max_length == 64
    assert (theirs.pad_token_id, theirs.mask_token_id) == (0, 4)
    for text in ("The old  cat, unhappy: [MASK] café!", "", "it's 3 xyz"):
        found = theirs(text, "a mat", return_offsets_mapping=True)
        ours = made.encode(text, "a mat")
        assert (ours.ids, ours.type_ids) == (found["input_ids"], found["token_type_ids"])
        assert ours.offsets == [tuple(place) for place in found["offset_mapping"]]
    assert made.lowercase
    assert not set(made.ids(["a [MASK] b[SEP]c [PAD] [CLS]"])[0]) & {0, 2, 3, 4}
    words = made.decode(made.encode("the old cat").ids)
    assert words == "the old cat"
    assert made.starts_word[made.encode("the old cat").ids].sum() == 5
    assert report.size == made.vocab_size
    assert f"{report.size:,} tokens ({algorithm})" in str(report)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_dakuten_and_hangul_survive_lower_case(algorithm, tmp_path):
    texts = ["がんばれ ガラス 한국어 ABC が", "한국어 がんばれ パン"] * 40
    made, report = train_vocabulary(texts, VocabularyConfig(size=300, algorithm=algorithm))
    assert made.decode(made.ids(["がんばれ 한국어 ABC"])[0]).replace(" ", "") == "がんばれ한국어abc"
    assert any("accents are kept" in note for note in report.notes)
    made.save(tmp_path)
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["strip_accents"] is False
    if algorithm == "wordpiece":
        assert made.unk_id not in made.ids(["が 한"])[0]


def test_accents_go_as_given_and_are_doubted():
    texts = ["がんばれ ガラス 한국어 Café"] * 40
    stripped, report = train_vocabulary(texts, VocabularyConfig(size=100, strip_accents=True))
    assert "がんばれ" not in stripped.tokens
    assert any("takes them apart" in note for note in report.notes)
    cased, _ = train_vocabulary(texts, VocabularyConfig(size=100, lowercase=False))
    assert "Café" in cased.tokens
    english, _ = train_vocabulary(["Café déjà"] * 40, VocabularyConfig(size=100))
    assert "cafe" in english.tokens
    kept, _ = train_vocabulary(["Café déjà"] * 40, VocabularyConfig(size=100, strip_accents=False))
    assert "café" in kept.tokens


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_accents_stripped_late_are_as_if_stripped_at_once(algorithm):
    texts = [text + " a≠b Ελλάδα naïve ﬁn Å" for text in invented()]
    size = VocabularyConfig(size=330, algorithm=algorithm)
    late, _ = train_vocabulary(texts, size)
    at_once, _ = train_vocabulary(
        texts, VocabularyConfig(size=330, algorithm=algorithm, strip_accents=True)
    )
    assert late.tokens == at_once.tokens


def test_report_tells_the_truth():
    texts = ["ab cd"] * 3000 + ["ef gh 中"] * 3000 + [f"{number} zz" for number in range(3000)]
    made, report = train_vocabulary(texts, VocabularyConfig(size=60, character_coverage=0.5))
    training = list(word_counts.Sample(texts))
    counts = SPLITTER.count(training).shared_words
    assert report.words == sum(counts.values())
    assert report.unique_words == len(counts)
    sample = word_counts.Sample(texts)
    list(sample)
    ids = made.ids(sample.texts)
    assert report.unknown_rate == sum(row.count(made.unk_id) for row in ids) / sum(map(len, ids))
    assert 0 < report.character_coverage <= 1


def test_much_unknown_text_is_a_warning():
    rare = "".join(chr(0x4E00 + number) for number in range(600))
    texts = ["ab cd ef gh"] * 9000 + [f"ab {character}" for character in rare]
    made, report = train_vocabulary(texts, VocabularyConfig(size=200, character_coverage=0.99))
    assert report.unknown_rate > 0.01
    (warning,) = report.warnings
    assert warning.startswith(f"{report.unknown_rate:.1%} of the tokens are [UNK] (such as '")
    assert f"warning: {warning}" in str(report)
    assert made.unknown(texts)
    _, report = train_vocabulary(texts[:9000], VocabularyConfig(size=200))
    assert report.unknown_rate == 0
    assert not report.warnings
    _, report = train_vocabulary(["ab cd \ufffd"] * 90, VocabularyConfig(size=300, algorithm="bpe"))
    assert report.warnings == (
        f"{report.unknown_rate:.1%} of the tokens are [UNK]: bytes that are not text",
    )


def test_held_out_documents_do_not_depend_on_order():
    texts = [f"document number {number}" * 20 for number in range(1000)]
    training = set(word_counts.Sample(texts))
    assert 5 < len(texts) - len(training) < 40
    assert set(word_counts.Sample(reversed(texts))) == training


def test_a_tiny_corpus_is_never_all_held_out():
    text = next(
        f"words {number}"
        for number in range(10_000)
        if not list(word_counts.Sample([f"words {number}"]))
    )
    made, report = train_vocabulary([text], VocabularyConfig(size=50, min_frequency=1))
    assert "words" in made.tokens
    assert any("too little text" in note for note in report.notes)


def test_size_larger_than_the_data_gives_less_and_says_so():
    made, report = train_vocabulary(["abc abc abd"] * 5, VocabularyConfig(size=5000))
    assert made.vocab_size == report.size < 30
    assert any("gives only" in note for note in report.notes)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_size_that_does_not_hold_the_alphabet_names_the_least(algorithm):
    texts = invented()
    with pytest.raises(UsageError) as caught:
        train_vocabulary(texts, VocabularyConfig(size=20, algorithm=algorithm))
    least = int(caught.value.hint.split("at least ")[1].split(",")[0])
    made, _ = train_vocabulary(texts, VocabularyConfig(size=least, algorithm=algorithm))
    assert made.vocab_size <= least
    with pytest.raises(UsageError):
        train_vocabulary(texts, VocabularyConfig(size=least - 1, algorithm=algorithm))


def test_memory_that_holds_few_words_is_said(monkeypatch):
    monkeypatch.setattr(word_counts, "_MIN_WORDS", 10)
    _, report = train_vocabulary(invented(), VocabularyConfig(size=100), max_memory=10)
    assert any("10 most frequent" in note for note in report.notes)


@pytest.mark.parametrize(
    ("texts", "message"), [([], "no documents"), (["", " \n\t", "\x00"], "no text")]
)
def test_nothing_to_learn_from(texts, message):
    with pytest.raises(BertworksError, match=message):
        train_vocabulary(texts, VocabularyConfig(size=100))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_text_without_spaces_is_called_so(algorithm):
    longest = 100 if algorithm == "wordpiece" else 1000
    endless = "".join(random.Random(0).choices("ACGT", k=20 * longest))
    with pytest.raises(
        BertworksError, match=f"only words of more than {longest:,} characters"
    ) as caught:
        train_vocabulary([endless], VocabularyConfig(size=300, algorithm=algorithm))
    assert ("--algorithm bpe" in caught.value.hint) == (algorithm == "wordpiece")
    # The sample that is measured on may hold no other words.
    _, report = train_vocabulary(
        [endless * 20, *invented()], VocabularyConfig(size=330, algorithm=algorithm)
    )
    assert report.tokens_per_word > 0
    assert any(f"of more than {longest:,} characters" in note for note in report.notes)


@pytest.mark.parametrize(
    "wrong",
    [
        {"size": 0},
        {"size": -5},
        {"size": 10**9},
        {"algorithm": "syllables"},
        {"unused": -1},
        {"unused": 30000},
        {"character_coverage": 0.0},
        {"character_coverage": 1.5},
        {"min_frequency": 0},
        {"model_max_length": 2},
    ],
)
def test_absurd_wishes_are_refused(wrong):
    with pytest.raises(UsageError):
        VocabularyConfig(**wrong)


def test_progress_is_reported():
    reported = []
    train_vocabulary(
        invented(),
        VocabularyConfig(size=100),
        progress=lambda stage, done: reported.append((stage, done)),
    )
    assert reported[0][0] == "counting"
    assert reported[0][1] > 10_000


def test_frequent_words_of_unigram_have_a_piece_with_their_space():
    """Also where a space stands alone, as before a quotation mark, which makes it frequent
    itself."""
    chance = random.Random(0)
    letters = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
    words = ["".join(chance.choices(letters, k=3)) for _ in range(150)]
    texts = [
        " ".join(
            f'{word} "' if chance.random() < 0.3 else word for word in chance.choices(words, k=60)
        )
        for _ in range(200)
    ]
    tokenizer, made = train_vocabulary(
        texts, VocabularyConfig(size=400, algorithm="unigram"), workers=1
    )
    assert sum(f"▁{word}" in tokenizer.tokens for word in words) > 0.95 * len(words)
    assert made.size <= 400
    assert not any("\ue000" in token for token in tokenizer.tokens)


def test_unigram_without_sentencepiece_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(BertworksError, match="not installed") as caught:
        train_vocabulary(invented(), VocabularyConfig(size=330, algorithm="unigram"))
    assert "pip install" in caught.value.hint


# Real text


def documents_of(path):
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)["text"]


@pytest.mark.slow
def test_a_vocabulary_of_eight_million_words(data_folder):
    made, report = train_vocabulary(
        documents_of(data_folder / "text" / "en-wikipedia-8m.jsonl.gz"),
        VocabularyConfig(size=30000),
    )
    assert made.vocab_size == 30000
    assert report.tokens_per_word < 1.10
    assert report.unknown_rate < 0.0005


@pytest.mark.slow
@pytest.mark.parametrize("corpus", ["ja-aozora-5m-chars", "ko-wikipedia-1m"])
def test_japanese_and_korean(data_folder, corpus):
    _, report = train_vocabulary(
        documents_of(data_folder / "text" / f"{corpus}.jsonl.gz"), VocabularyConfig(size=16000)
    )
    assert report.unknown_rate < 0.002
    assert any("accents are kept" in note for note in report.notes)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("lowercase", [True, False])
def test_words_with_bad_bytes_are_not_learned(algorithm, lowercase):
    documents = ["Z\ufffdrich sch\ufffd\ufffdn, cat\ufffdmat \ufffd the cat sat on the mat"] * 50
    config = VocabularyConfig(size=300, algorithm=algorithm, lowercase=lowercase)
    tokenizer, made = train_vocabulary(documents, config, workers=1)
    clean, clean_report = train_vocabulary([", the cat sat on the mat"] * 50, config, workers=1)
    assert {token.lstrip("▁Ġ#") for token in tokenizer.tokens} == {
        token.lstrip("▁Ġ#") for token in clean.tokens
    }
    assert not any("\ufffd" in token or "ï¿½" in token for token in tokenizer.tokens)
    assert "200 words have bytes that are not text (\ufffd): they are not learned" in made.notes
    assert made.unknown_rate > 0.05 > clean_report.unknown_rate


def test_only_bad_words_are_no_text():
    with pytest.raises(BertworksError, match="only"):
        train_vocabulary(["\ufffd a\ufffdb"], VocabularyConfig(size=300), workers=1)


@settings(max_examples=50, deadline=None)
@given(TEXTS)
def test_counts_with_bad_characters_are_those_without_their_words(texts):
    damaged = [text + " b\ufffdd \ufffd" for text in texts]
    for splitter in (SPLITTER, BYTES):
        assert splitter.count(damaged).shared_words == splitter.count(texts).shared_words | (
            {"\ufffd": 2 * len(texts)} if texts else {}
        )


ROBERTA = VocabularyConfig(size=400, algorithm="bpe", lowercase=False, special_tokens="roberta")


def test_a_vocabulary_of_roberta_is_read_by_transformers(tmp_path):
    texts = [
        "The dogs  of Anna ran,\nand ran. Caf\u00e9 \u6620\u753b!",
        "Paris in the <mask> rain",
    ] * 30
    made, report = train_vocabulary(texts, ROBERTA)
    assert made.tokens[:4] == ["<s>", "<pad>", "</s>", "<unk>"]
    assert made.tokens[-1] == "<mask>"
    assert (
        (made.pad_id, made.cls_id, made.sep_id, made.unk_id)
        == (1, 0, 2, 3)
        == (ROBERTA.pad_id, 0, 2, 3)
    )
    assert (made.template.prefix, made.template.between, made.template.suffix) == (
        (0,),
        (2, 2),
        (2,),
    )
    assert report.unknown_rate == 0
    made.save(tmp_path)
    library = json.loads((tmp_path / "tokenizer.json").read_text())
    model, mask = library["model"], transformers.AddedToken("<mask>", lstrip=True)
    theirs = transformers.RobertaTokenizer(
        model["vocab"], [*map(tuple, model["merges"])], mask_token=mask
    )
    saved = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in [*texts[:2], " two  spaces <mask>, a tab\t and \u00fc", "<mask> first"]:
        ids = made.encode(text).ids
        assert ids == theirs(text)["input_ids"] == saved(text)["input_ids"]
        assert made.encode(text, "b c").ids == theirs(text, "b c")["input_ids"]
    assert made.decode(made.encode(texts[0]).ids) == texts[0]


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": "wordpiece"},
        {"lowercase": True},
        {"strip_accents": True},
        {"special_tokens": "gpt"},
    ],
)
def test_special_tokens_of_roberta_are_for_bytes(settings):
    with pytest.raises(
        UsageError,
        match=r"byte-level BPE of the text as it is|one of bert, roberta, xlm, modernbert, xlnet, ",
    ):
        replace(ROBERTA, **settings)


def test_a_vocabulary_of_gpt2_is_read_by_transformers(tmp_path):
    texts = ["The dogs  of Anna ran,\nand ran. Caf\u00e9 \u6620\u753b!", "Paris in the rain"] * 30
    made, _ = train_vocabulary(texts, replace(ROBERTA, special_tokens="gpt2"))
    assert made.tokens[-1] == "<|endoftext|>"
    assert made.special_ids == {made.vocab_size - 1}
    assert (made.pad_id, made.mask_id, made.cls_id) == (-1, -1, -1)
    made.save(tmp_path)
    model = json.loads((tmp_path / "tokenizer.json").read_text())["model"]
    theirs = transformers.GPT2Tokenizer(model["vocab"], [*map(tuple, model["merges"])])
    for text in [*texts[:2], " two  spaces<|endoftext|>a tab\t and \u00fc"]:
        assert made.encode(text).ids == theirs(text)["input_ids"]
        assert (
            made.encode(text).ids
            == transformers.AutoTokenizer.from_pretrained(tmp_path)(text)["input_ids"]
        )


def naive_merges(words):
    """The definition, all counts made anew at every step; ties to the pair of older symbols."""
    words = [(characters_of(word), count) for word, count in words]
    order = {
        form: number
        for number, form in enumerate(sorted({form for word, _ in words for form in word}))
    }
    merges = []
    while True:
        pairs = Counter()
        for word, count in words:
            for pair in pairwise(word):
                pairs[pair] += count
        scored = [
            (-count, order[a], order[b], a, b) for (a, b), count in pairs.items() if count > 1
        ]
        if not scored:
            break
        *_, left, right = min(scored)
        merges.append((left, right))
        form = left + right.removeprefix("##")
        order.setdefault(form, len(order))
        for word, _ in words:
            place = 0
            while place < len(word) - 1:
                if (word[place], word[place + 1]) == (left, right):
                    word[place : place + 2] = [form]
                place += 1
    return merges


@pytest.mark.no_cover
@given(
    st.dictionaries(
        st.text(st.sampled_from("abc"), min_size=1, max_size=9), st.integers(1, 20), max_size=12
    )
)
@settings(deadline=None, max_examples=150)
def test_merges_are_those_of_the_definition(words):
    items = sorted(words.items())
    alphabet = sorted({form for word, _ in items for form in characters_of(word)})
    learner = MergeLearner(items, alphabet, "##")
    learner.merge_until(1000)
    assert learner.merges == naive_merges(items)


def test_stepping_stones_are_dropped():
    words = [("abcdef", 100), ("xy", 3), ("zw", 2)]
    alphabet = sorted({form for word, _ in words for form in characters_of(word)})
    pieces = train_word_pieces(words, alphabet, len(alphabet) + 6, min_frequency=2)
    assert set(pieces[len(alphabet) :]) >= {"abcdef", "xy"}
    few = train_word_pieces(words, alphabet, len(alphabet) + 5, min_frequency=2)
    assert few[len(alphabet) :][-1] == "xy", (
        "a fifth more than 5 is 6; a stepping stone of abcdef went"
    )


def test_words_are_chosen_by_the_tokens_that_they_save(home: Path):
    """Against counts in plain Python."""
    t = Tokenizer.load(home / "m")
    texts = ["Subimoka subimoka, subimoka! lomape 17x 17x once", "lomape subimoka subimoka"]
    extended, words = extend_vocabulary(texts, t, 2)
    counts = Counter("subimoka subimoka subimoka lomape once lomape subimoka subimoka".split())
    saved = {
        word: count * (len(t.ids([word])[0]) - 1) for word, count in counts.items() if count > 1
    }
    assert all(saved.values())
    assert [w.word for w in words] == sorted(saved, key=lambda word: -saved[word])
    assert [(w.frequency, w.pieces) for w in words] == [
        (counts[w.word], t.ids([w.word])[0]) for w in words
    ]
    assert extended.tokens == [*t.tokens, *(w.word for w in words)]
    assert without_last(extended, 2).sha256 == t.sha256
    with pytest.raises(
        UsageError, match="the text has 2 words that a vocabulary can be extended by, not 3"
    ):
        extend_vocabulary(texts, t, 3)


def test_what_sentencepiece_refuses_is_an_error_of_ours(monkeypatch):
    sentencepiece = pytest.importorskip("sentencepiece")

    def refuse(**_: object) -> None:
        raise RuntimeError("Vocabulary size is smaller than required_chars")

    monkeypatch.setattr(sentencepiece.SentencePieceTrainer, "train", refuse)
    what = "sentencepiece cannot be trained on this text: Vocabulary size is smaller"
    with refusal(what, "choose another size"):
        train_vocabulary(invented(), VocabularyConfig(size=330, algorithm="unigram"))
