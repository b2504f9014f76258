"""Preflight: counts against brute force, warnings that come when they should and only then."""

import gzip
import json
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from bertworks.text import corpus_report as corpus_report_module
from bertworks.text.corpus import CorpusReader
from bertworks.text.corpus_report import CorpusStatistics, corpus_report
from bertworks.text.shards import Shards, write_shards
from bertworks.text.tokenizer import Tokenizer

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = [prefix + letter for letter in "abcdefghijklmnopqrstuvwxyz" for prefix in ("", "##")]
WORDS = ["the", "cat", "dog", "sat", "ran", "home", "and", "slept", ".", ",", "!"]


def make_tokenizer(folder: Path, tokens: list[str], *, lowercase: bool = True) -> Tokenizer:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in SPECIALS + tokens))
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lowercase}))
    return Tokenizer.load(folder)


def make_shards(folder: Path, documents: list[str], tokenizer: Tokenizer) -> Shards:
    path = folder / "corpus.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    return write_shards(CorpusReader([path]), tokenizer, folder / "shards", workers=1)


def make_documents(count: int, *, sentences: int = 6) -> list[str]:
    """Documents of distinct sentences."""
    chance = random.Random(0)
    return [
        "\n".join(
            " ".join(chance.choices(WORDS[:8], k=chance.randint(8, 20))) + "."
            for _ in range(sentences)
        )
        for _ in range(count)
    ]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    return make_tokenizer(tmp_path / "tokenizer", WORDS + LETTERS)


def rows(shards: Shards) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Ids of each sentence, and of each document, with its borders as -1."""
    sentences = [
        tuple(shards.tokens[a:b].tolist())
        for a, b in zip(shards.sentences[:-1], shards.sentences[1:], strict=True)
    ]
    documents = [
        tuple(number for ids in sentences[a:b] for number in (*ids, -1))
        for a, b in zip(shards.documents[:-1], shards.documents[1:], strict=True)
    ]
    return sentences, documents


def copies(rows: list[tuple[int, ...]]) -> int:
    return len(rows) - len(set(rows))


def test_figures_are_those_of_brute_force(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus_report_module, "_BLOCK_SENTENCES", 7)
    monkeypatch.setattr(corpus_report_module, "_BLOCK_TOKENS", 30)
    documents = make_documents(60)
    documents += documents[:5] + ["The cat sat.\n" * 3 + "日本."] * 2 + ["A dog."] * 9
    shards = make_shards(tmp_path, documents, tokenizer)
    report = corpus_report(shards)
    sentences, whole = rows(shards)
    assert report.duplicate_sentences.number == copies(sentences)
    assert report.duplicate_sentences.share == pytest.approx(copies(sentences) / len(sentences))
    assert report.duplicate_documents.number == copies(whole) == 14
    assert next(iter(report.duplicate_documents.most_repeated.items())) == ("a dog.", 9)
    assert next(iter(report.duplicate_sentences.most_repeated.items())) == ("a dog.", 9)
    assert report.duplicate_sentences.most_repeated["the cat sat."] == 6
    assert report.duplicate_sentences.looked_at == 1
    words = sum(
        not tokenizer.tokens[number].startswith("##") for ids in sentences for number in ids
    )
    assert report.tokens_per_word == pytest.approx(report.tokens / words)
    # CJK characters are words of their own
    assert report.unknown_share == pytest.approx(4 / report.tokens)
    lengths = Counter(len(ids).bit_length() for ids in sentences)
    assert list(report.sentence_lengths.values()) == [
        lengths[i] for i in range(min(lengths), max(lengths) + 1)
    ]
    assert sum(report.document_lengths.values()) == report.documents == len(whole)
    assert report.single_sentence_documents == 9


def test_bars_are_named_by_their_lengths() -> None:
    counts = corpus_report_module._by_doubling(np.array([1, 2, 3, 4, 7, 8, 511, 512]))
    assert corpus_report_module._named(counts) == {
        "1": 1,
        "2-3": 2,
        "4-7": 2,
        "8-15": 1,
        "16-31": 0,
        "32-63": 0,
        "64-127": 0,
        "128-255": 0,
        "256-511": 1,
        "512-1023": 1,
    }


def test_hashes_tell_order_length_and_borders_apart() -> None:
    values = np.array([1, 2, 2, 1, 1, 2, 1, 2, 0, 0, 0, 1, 2])
    borders = np.array([0, 2, 4, 6, 9, 10, 11, 13])  # 12 21 12 120 0 0 12
    hashes = corpus_report_module._hash_rows(values, borders).tolist()
    assert hashes[0] == hashes[2] == hashes[6]
    assert hashes[4] == hashes[5]
    assert len(set(hashes)) == 4


def test_a_text_repeated_without_end_takes_no_memory() -> None:
    """A menu line that is half of the corpus: room for 2,000 hashes, 100,000 rows, 1,000 of them
    distinct."""
    sample = corpus_report_module._HashSample(most=2000)
    hashes = corpus_report_module._hash_rows(np.arange(1000), np.arange(1001))
    stream = np.concatenate([np.full(50_000, hashes[7]), np.tile(hashes, 50)])
    for start in range(0, len(stream), 1000):
        sample.add(stream[start : start + 1000], start)
        assert len(sample._entries) <= 2000
    found = sample.duplicates(str)
    assert found == corpus_report_module.Duplicates(99_000, 0.99, found.most_repeated, 1.0)
    assert next(iter(found.most_repeated.items())) == ("0", 50_050)


def test_estimates_are_near_the_truth() -> None:
    sample = corpus_report_module._HashSample(most=4000)
    hashes = corpus_report_module._hash_rows(np.arange(50_000), np.arange(50_001))
    sample.add(np.concatenate([hashes, hashes[:25_000]]), 0)
    found = sample.duplicates(str)
    assert found.looked_at < 0.1
    assert found.share == pytest.approx(1 / 3, abs=0.03)
    assert found.number == pytest.approx(25_000, rel=0.1)
    assert len(sample._entries) <= 4000


def test_a_clean_corpus_gets_no_warning(tokenizer: Tokenizer, tmp_path: Path) -> None:
    report = corpus_report(make_shards(tmp_path, make_documents(150), tokenizer))
    assert report.warnings == []


def warnings_of(report: CorpusStatistics, word: str) -> list[str]:
    return [warning for warning in report.warnings if word in warning]


def test_copies_are_warned_of(tokenizer: Tokenizer, tmp_path: Path) -> None:
    documents = [
        text + "\nThe cat sat. The dog ran. Home!" for text in make_documents(150, sentences=2)
    ]
    report = corpus_report(make_shards(tmp_path, documents + documents[:20], tokenizer))
    assert len(warnings_of(report, "of the documents are duplicates")) == 1
    assert len(warnings_of(report, "of the sentences are duplicates")) == 1
    assert "deduplicate the corpus" in warnings_of(report, "duplicates")[0]


def test_an_uncased_vocabulary_without_lower_casing_is_warned_of(tmp_path: Path) -> None:
    documents = [text.title() for text in make_documents(150)]
    right = make_tokenizer(tmp_path / "right", WORDS + LETTERS)
    assert corpus_report(make_shards(tmp_path, documents, right)).warnings == []
    wrong = make_tokenizer(tmp_path / "wrong", WORDS + LETTERS, lowercase=False)
    (tmp_path / "b").mkdir()
    report = corpus_report(make_shards(tmp_path / "b", documents, wrong))
    assert report.unknown_cured_by_lowercase == 1
    assert "do_lower_case" in warnings_of(report, "the vocabulary is uncased")[0]
    assert "bertworks vocab" in warnings_of(report, "[UNK]")[0]
    assert report.unknown_words


def test_capitals_that_a_cased_vocabulary_lacks_are_warned_of(tmp_path: Path) -> None:
    cased = make_tokenizer(tmp_path / "cased", [*WORDS, *LETTERS, *"THCDSRA"], lowercase=False)
    report = corpus_report(
        make_shards(tmp_path, [text.upper() for text in make_documents(150)], cased)
    )
    assert len(warnings_of(report, "much of the text is in capitals")) == 1
    (tmp_path / "b").mkdir()
    assert corpus_report(make_shards(tmp_path / "b", make_documents(150), cased)).warnings == []


def test_a_vocabulary_of_another_language_is_warned_of(tmp_path: Path) -> None:
    letters = make_tokenizer(tmp_path / "letters", [*LETTERS, "."])
    report = corpus_report(make_shards(tmp_path, make_documents(150), letters))
    assert report.tokens_per_word > 2
    assert len(warnings_of(report, "tokens on average")) == 1


def test_shapes_that_hurt_next_sentence_prediction_are_warned_of(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    report = corpus_report(make_shards(tmp_path, ["\n".join(make_documents(150))], tokenizer))
    assert len(warnings_of(report, "a single document")) == 1
    (tmp_path / "b").mkdir()
    report = corpus_report(make_shards(tmp_path / "b", make_documents(900, sentences=1), tokenizer))
    assert len(warnings_of(report, "documents with a single sentence")) == 1


def test_endless_sentences_and_small_corpora_are_warned_of(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    report = corpus_report(make_shards(tmp_path, ["the cat " * 400, "the dog " * 300], tokenizer))
    assert len(warnings_of(report, "more than 512 tokens")) == 1
    assert len(warnings_of(report, "are few for a vocabulary")) == 1


def test_it_reads_well_and_is_json(tokenizer: Tokenizer, tmp_path: Path) -> None:
    shards = make_shards(
        tmp_path, [*make_documents(150), "日本語", *["The cat sat."] * 99], tokenizer
    )
    report = corpus_report(shards, tokenizer)
    text = str(report)
    for line in (
        "250 documents",
        "tokens per word      1.00",
        "(日, 本, 語)",
        "duplicate documents  98 (39.2%): 99 x 'the cat sat.'",
        "tokens per sentence",
        "#" * 30,
        "warning: ",
    ):
        assert line in text
    assert max(map(len, text.split("\n")[: -len(report.warnings)])) <= 160
    report.save(shards.folder)
    assert json.loads((shards.folder / "preflight.json").read_text()) == report.as_dict()
    Shards.open(shards.folder, verify=True)


def test_real_english_is_fine(data_folder: Path, tmp_path: Path) -> None:
    tokens = (
        (data_folder / "vocab" / "bert-base-uncased-vocab.txt")
        .read_text(encoding="utf-8")
        .split("\n")
    )
    tokenizer = make_tokenizer(
        tmp_path / "bert", [token for token in tokens if token and token not in SPECIALS]
    )
    with gzip.open(
        data_folder / "text" / "en-wikipedia-8m.jsonl.gz", "rt", encoding="utf-8"
    ) as file:
        documents = [json.loads(line)["text"] for _, line in zip(range(60), file)]
    report = corpus_report(make_shards(tmp_path, documents, tokenizer))
    assert [
        warning for warning in report.warnings if "are few for a vocabulary" not in warning
    ] == []
    assert 1 < report.tokens_per_word < 1.4
    assert report.unknown_share < 0.002


def test_rows_are_equal_if_and_only_if_their_hashes_are():
    rows = [[1, 2], [2, 1], [1, 2], [1], [], [0], [0, 0], [1, 2, 0], []]
    values = np.array([value for row in rows for value in row], np.uint16)
    hashes = corpus_report_module._hash_rows(values, np.cumsum([0, *map(len, rows)])).tolist()
    for a, one in zip(rows, hashes):
        assert [b == a for b in rows] == [other == one for other in hashes]
