"""Words of a language: stems as snowballstemmer has them, scores against a computation in float64,
stop words, what an index stores of them, and where a query's words are in a text."""

import itertools
import json
import math
import random
import re
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import snowballstemmer
from hypothesis import given, settings, strategies as some

from bertworks.cli.main import main
from bertworks.errors import BertworksError, UsageError
from bertworks.evaluation.retrieval import evaluate_retrieval
from bertworks.retrieval.index import Index, index_file
from bertworks.retrieval.ranking import (
    K1,
    B,
    bm25,
    places_of,
    postings,
    query_words,
    stemmer_of,
    stop_words_of,
    words_of,
    words_to_mark,
)
from bertworks.retrieval.store import MANIFEST, write_manifest

LANGUAGES = [
    "danish",
    "dutch",
    "english",
    "french",
    "german",
    "italian",
    "norwegian",
    "portuguese",
    "russian",
    "spanish",
    "swedish",
]
TEXTS = [
    "the dogs were running to the cats",
    "a cat sleeps",
    "running dogs run",
    "the theory of everything",
    "engines and the engine of an old ship",
    "he engineered it",
    "",
    "cats, cats and more Cats!",
]


# --- words


@pytest.mark.parametrize("language", [*LANGUAGES, "dutch_porter", "finnish", "turkish", "tamil"])
def test_stems_are_those_of_snowballstemmer(language: str):
    words = sorted(
        {word for name in LANGUAGES for word in stop_words_of(name)}
        | {"running", "häuser", "nationalités"}
    )
    expected = stemmer_of(language)().stemWords(words)
    assert words_of(" ".join(words), language) == expected
    # PyStemmer, of another version, is not in its place
    if not hasattr(snowballstemmer, "Stemmer"):
        assert expected == snowballstemmer.stemmer(language).stemWords(words)


@given(some.text(max_size=40))
@settings(max_examples=60, deadline=None)
def test_stems_of_any_text(text: str):
    assert words_of(text, "english") == stemmer_of("english")().stemWords(words_of(text))


def test_scripts_without_spaces_keep_their_pairs():
    assert words_of("東京都のcats", "english") == ["東京", "京都", "都の", "cat"]


@pytest.mark.parametrize("language", LANGUAGES)
def test_lists_of_stop_words_hold_whole_words(language: str):
    words = stop_words_of(language)
    assert len(words) > 60
    assert all(words_of(word) == [word] for word in words)


def test_a_language_may_have_no_list_of_stop_words():
    assert [stop_words_of(name) for name in ("finnish", "klingon", "#", "", None)] == [
        frozenset()
    ] * 5


def test_stop_words_are_left_out_of_queries():
    assert query_words("What are the engines of a ship?", "english") == ["engin", "ship"]
    assert query_words("What are the engines of a ship?") == words_of(
        "What are the engines of a ship?"
    )
    assert query_words("To be, or not to be", "english") == words_of(
        "to be or not to be", "english"
    )
    assert query_words("", "english") == []


@pytest.mark.parametrize(
    "language", ["klingon", "English", "base", "", "../english", "english_stemmer"]
)
def test_languages_without_a_stemmer_are_refused_with_the_list(
    language: str, model: Path, tmp_path: Path
):
    with pytest.raises(UsageError, match="there is no stemmer") as error:
        stemmer_of(language)
    assert "danish, dutch, dutch_porter, english, " in error.value.hint
    if language:
        with pytest.raises(UsageError, match="there is no stemmer"):
            Index.create(tmp_path / "idx", model, language=language, device="cpu")
        assert not (tmp_path / "idx").exists()


def test_the_package_may_be_missing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "snowballstemmer", None)
    stemmer_of.cache_clear()
    with pytest.raises(
        BertworksError, match="stemming needs a package that is not installed"
    ) as error:
        stemmer_of("english")
    assert error.value.hint == "pip install snowballstemmer"


# --- scores


def written_out(query: str, texts: list[str]) -> np.ndarray:
    """BM25 in float64, by the package's own stemmer and a split at what is no letter."""
    stem = stemmer_of("english")().stemWords
    split = [stem(re.findall("[a-z]+", text.lower())) for text in texts]
    words = re.findall("[a-z]+", query.lower())
    words = [word for word in words if word not in stop_words_of("english")] or words
    lengths = np.array([len(one) for one in split], np.float64)
    scores = np.full(len(texts), -math.inf)
    for word, times in Counter(stem(words)).items():
        counts = np.array([one.count(word) for one in split], np.float64)
        df = (counts > 0).sum()
        idf = math.log(1 + (len(texts) - df + 0.5) / (df + 0.5))
        part = times * idf * counts / (counts + K1 * (1 - B + B * lengths / lengths.mean()))
        scores = np.where(counts > 0, np.maximum(scores, 0) + part, scores)
    return scores


@pytest.mark.parametrize(
    "query", ["running cats", "the engines of the ship", "the of", "a dog dogs", "zebra", ""]
)
@pytest.mark.parametrize("cuts", [[], [3], [1, 4, 5]])
def test_scores_are_those_of_the_stems(query: str, cuts: list[int]):
    parts = [postings(TEXTS[a:b], "english") for a, b in itertools.pairwise([0, *cuts, len(TEXTS)])]
    found = bm25(query, parts, np.ones(len(TEXTS), bool), "english")
    np.testing.assert_allclose(found, written_out(query, TEXTS), rtol=1e-5)


def test_scores_of_cranfield_are_those_of_the_stems(data_folder: Path):
    from bertworks.evaluation.retrieval import read_collection

    collection = read_collection(data_folder / "retrieval/cranfield")
    texts = [re.sub("[^a-z]+", " ", text.lower()) for text in collection.documents.values()][:60]
    parts, every = [postings(texts, "english")], np.ones(len(texts), bool)
    for query in [re.sub("[^a-z]+", " ", text.lower()) for text in collection.queries.values()][:4]:
        np.testing.assert_allclose(
            bm25(query, parts, every, "english"), written_out(query, texts), rtol=1e-4
        )


# --- an index


def ids(index: Index, query: str, **options: str) -> list[str]:
    return [hit["id"] for hit in index.search(query, 99, **options)]


def test_an_index_keeps_its_language(model: Path, tmp_path: Path):
    index = Index.create(tmp_path / "idx", model, language="english", device="cpu")
    index.add(TEXTS[:5], ids=list("abcde"))
    index.add(["an owner"], ids=["f"])
    opened = Index(tmp_path / "idx", device="cpu")
    assert opened.language == "english"
    assert (
        ids(opened, "the engines", ranking="bm25") == ids(index, "engine", ranking="bm25") == ["e"]
    )
    assert set(ids(opened, "runs", ranking="bm25")) == {"a", "c"}
    texts = [*TEXTS[:5], "an owner"]
    for change in (lambda: None, opened.compact):
        change()
        found = {
            hit["id"]: hit["score"] for hit in opened.search("the running dogs", 9, ranking="bm25")
        }
        expected = dict(zip("abcdef", written_out("the running dogs", texts), strict=True))
        assert found == pytest.approx(
            {name: score for name, score in expected.items() if np.isfinite(score)}, rel=1e-5
        )


def test_an_index_without_a_language_is_as_before(model: Path, tmp_path: Path):
    index = Index.create(tmp_path / "idx", model, device="cpu")
    index.add(TEXTS[:5], ids=list("abcde"))
    assert index.language is None
    assert not {"language", "stemmer"} & set(index.manifest.fingerprint)
    assert ids(index, "engines", ranking="bm25") == ["e"]
    assert ids(index, "runs", ranking="bm25") == []
    assert ids(index, "the", ranking="bm25") != []


def test_stems_of_another_version_are_refused_until_they_are_made_again(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    index = Index.create(tmp_path / "idx", model, language="english", device="cpu")
    index.add(TEXTS[:5], ids=list("abcde"))
    state = {**index.manifest.fingerprint, "stemmer": "EnglishStemmer 3.0.0"}
    write_manifest(
        index.folder, type(index.manifest)(**{**vars(index.manifest), "fingerprint": state})
    )
    old = Index(tmp_path / "idx", device="cpu")
    for work in (
        lambda: old.search("engines", ranking="bm25"),
        lambda: old.search("engines"),
        lambda: old.add(["x"]),
    ):
        with pytest.raises(
            BertworksError, match=r"stemmed by EnglishStemmer 3\.0\.0, and EnglishStemmer"
        ) as error:
            work()
    assert old.search("engines", ranking="dense")
    assert main(error.value.hint.split("bertworks ")[1].partition(" stems")[0].split()) == 0
    assert ids(Index(tmp_path / "idx", device="cpu"), "engines", ranking="bm25") == ["e"]


@pytest.mark.parametrize(
    ("name", "value"), [("language", 3), ("stemmer", ["x"]), ("language", "klingon")]
)
def test_a_damaged_language_is_refused(name: str, value: object, model: Path, tmp_path: Path):
    index = Index.create(tmp_path / "idx", model, language="english", device="cpu")
    state = {**index.manifest.fingerprint, name: value}
    write_manifest(
        index.folder, type(index.manifest)(**{**vars(index.manifest), "fingerprint": state})
    )
    with pytest.raises(BertworksError, match=r"manifest of the index is damaged|no stemmer"):
        Index(tmp_path / "idx", device="cpu").search("cats", ranking="bm25")


def test_a_file_takes_the_language_of_its_index(model: Path, tmp_path: Path):
    (tmp_path / "d.txt").write_text("\n".join(filter(None, TEXTS)) + "\n")
    first = list(
        index_file(
            tmp_path / "d.txt", tmp_path / "idx", model=model, language="english", device="cpu"
        )
    )
    assert any("; bm25 compares the stems of english" in event.text for event in first)
    (tmp_path / "e.txt").write_text("the runners ran\n")
    list(index_file(tmp_path / "e.txt", tmp_path / "idx", language="english", device="cpu"))
    list(index_file(tmp_path / "e.txt", tmp_path / "idx", device="cpu"))
    with pytest.raises(UsageError, match="the index has language english, not german"):
        list(index_file(tmp_path / "e.txt", tmp_path / "idx", language="german", device="cpu"))
    list(index_file(tmp_path / "d.txt", tmp_path / "plain", model=model, device="cpu"))
    with pytest.raises(UsageError, match="the index has language None, not german"):
        list(index_file(tmp_path / "e.txt", tmp_path / "plain", language="german", device="cpu"))
    assert (tmp_path / "idx" / MANIFEST).exists()


# --- titles


def add(
    path: Path, folder: Path, model: Path, **options: object
) -> tuple[list[str], dict[str, dict[str, object]]]:
    """The notes, and the documents by id."""
    notes = [event.text for event in index_file(path, folder, model=model, device="cpu", **options)]
    return notes, {hit["id"]: dict(hit) for hit in Index(folder, device="cpu").search("music", 99)}


def test_a_title_is_part_of_the_text(model: Path, tmp_path: Path):
    rows = [
        {"id": "a", "Title": "Old dogs", "text": "sad music", "n": 1},
        {"id": "b", "Title": None, "text": "a film"},
        {"id": "c", "Title": "A town", "text": ""},
    ]
    path = tmp_path / "d.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    notes, found = add(path, tmp_path / "idx", model)
    assert any(
        note.startswith("text: Title, text; ") and "; --text text leaves the title out" in note
        for note in notes
    )
    assert {name: hit["text"] for name, hit in found.items()} == {
        "a": "Old dogs sad music",
        "b": "a film",
        "c": "A town",
    }
    assert [found[name]["title"] for name in "abc"] == ["Old dogs", "", "A town"]
    assert found["a"]["fields"] == {"Title": "Old dogs", "n": 1}
    notes, found = add(path, tmp_path / "plain", model, text=["text"])
    assert not any("leaves the title out" in note for note in notes)
    assert {name: hit["text"] for name, hit in found.items()} == {"a": "sad music", "b": "a film"}
    assert found["a"]["title"] == "Old dogs"
    _, found = add(path, tmp_path / "only", model, text=["Title"])
    assert found["a"]["fields"] == {"text": "sad music", "n": 1}


@pytest.mark.parametrize(
    "titles", [[1, 2], ["Mr", 3], [None, ""], [["a"], ["b"]], ["sad", "sad music"]]
)
def test_what_is_no_title_is_no_part_of_the_text(titles: list[object], model: Path, tmp_path: Path):
    path = tmp_path / "d.jsonl"
    rows = (
        {"id": name, "title": title, "text": f"sad music {name}"}
        for name, title in zip("ab", titles, strict=True)
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    notes, found = add(path, tmp_path / "idx", model)
    assert not any("leaves the title out" in note for note in notes)
    assert {hit["text"] for hit in found.values()} == {"sad music a", "sad music b"}


# --- cosines beside the score


@pytest.mark.parametrize("language", [None, "english"])
def test_the_cosine_is_that_of_the_vectors(language: str | None, model: Path, tmp_path: Path):
    index = Index.create(tmp_path / "idx", model, language=language, device="cpu")
    index.add(TEXTS[:6], ids=list("abcdef"))
    cosines = {hit["id"]: hit["score"] for hit in index.search("running dogs", 9, ranking="dense")}
    for ranking in ("hybrid", "dense"):
        hits = index.search("running dogs", 9, ranking=ranking)
        assert {hit["id"]: hit["cosine"] for hit in hits} == pytest.approx(cosines, abs=1e-6)
    assert {hit["cosine"] for hit in index.search("running dogs", 9, ranking="bm25")} == {None}


def test_the_cosine_is_printed(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    index = Index.create(tmp_path / "idx", model, device="cpu")
    index.add(["sad dogs"], ids=["a"])
    printed = []
    for ranking in ("hybrid", "dense", "bm25"):
        assert main(["search", str(tmp_path / "idx"), "sad dogs", "--ranking", ranking]) == 0
        printed.append(capsys.readouterr().out)
    assert printed == ["0.033  cosine 1.000  a  sad dogs\n", "1.000  a  sad dogs\n", printed[2]]
    assert re.fullmatch(r"\d\.\d{3}  a  sad dogs\n", printed[2])


# --- matches


def matches_of(query: str, text: str, language: str | None = None) -> list[tuple[int, int]]:
    """Where words of a query are in a text."""
    return places_of(set(query_words(query, language)), text, language)


@pytest.mark.parametrize(
    ("query", "text", "language", "found"),
    [
        ("the Engine", "An ENGINE, engines!", None, ["ENGINE"]),
        ("the engine", "An ENGINE, the engines!", "english", ["ENGINE", "engines"]),
        ("the", "An engine, The engines!", "english", ["The"]),
        ("東京都", "🎉 東京は、東京都の山", None, ["東京", "東京都"]),
        ("full", "ＦＵＬＬ and full", None, ["ＦＵＬＬ", "full"]),
        ("山", "山 東 山", None, ["山", "山"]),
        ("", "nothing", None, []),
    ],
)
def test_matches(query: str, text: str, language: str | None, found: list[str]):
    assert [text[start:end] for start, end in matches_of(query, text, language)] == found


@pytest.mark.parametrize(
    ("query", "language", "marked"),
    [
        ("animals that live in water", None, ["animals", "live", "water"]),
        ("animals that live in water", "english", ["anim", "live", "water"]),
        ("animals that live in water", "german", ["animal", "that", "liv", "wat"]),
        ("Tiere, die in dem Wasser leben", None, ["tiere", "wasser", "leben"]),
        ("To be, or not to be", None, ["to", "be", "or", "not", "to", "be"]),
        ("東京 hotel", None, ["東京", "hotel"]),
        ("", None, []),
    ],
)
def test_stop_words_are_not_marked(query: str, language: str | None, marked: list[str]):
    """Also of an index without a language, in which they count as words."""
    assert words_to_mark(query, language) == marked


@given(some.text(max_size=12), some.text(max_size=50))
@settings(max_examples=100, deadline=None)
def test_matches_are_in_order_and_hold_words_of_the_query(query: str, text: str):
    spans = matches_of(query, text, "english")
    edges = [edge for span in spans for edge in span]
    assert edges == sorted(edges)
    assert all(0 <= start < end <= len(text) for start, end in spans)
    words = set(query_words(query, "english"))
    assert all(words & set(words_of(text[start:end], "english")) for start, end in spans)


def test_matches_are_what_bm25_finds():
    draw = random.Random(0)
    pool = ["cats", "cat", "the", "running", "run", "engine", "ship"]
    for _ in range(100):
        query, text = (" ".join(draw.choices(pool, k=n)) for n in (2, 4))
        scores = bm25(query, [postings([text, "other"], "english")], np.ones(2, bool), "english")
        assert bool(matches_of(query, text, "english")) == bool(np.isfinite(scores[0]))


# --- evaluation


def test_evaluation_with_a_language(model: Path, tmp_path: Path):
    (tmp_path / "c" / "qrels").mkdir(parents=True)
    corpus = "".join(
        json.dumps({"_id": name, "title": "", "text": text}) + "\n"
        for name, text in zip("abcde", TEXTS)
    )
    (tmp_path / "c" / "corpus.jsonl").write_text(corpus)
    (tmp_path / "c" / "queries.jsonl").write_text(
        json.dumps({"_id": "1", "text": "what runs the ships"}) + "\n"
    )
    (tmp_path / "c" / "qrels" / "test.tsv").write_text("q\td\tg\n1\te\t1\n")
    *_, plain = evaluate_retrieval(tmp_path / "c", model, device="cpu")
    *_, stemmed = evaluate_retrieval(tmp_path / "c", model, language="english", device="cpu")
    scores = written_out("what runs the ships", TEXTS[:5])
    rank = 1 + int((scores > scores[4]).sum())
    assert stemmed.fields["bm25"]["ndcg@10"] == pytest.approx(1 / math.log2(1 + rank))
    assert stemmed.fields["bm25"]["ndcg@10"] > plain.fields["bm25"]["ndcg@10"]
    assert stemmed.fields["dense"] == plain.fields["dense"]
