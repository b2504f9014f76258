"""A table, a column or another container where a public call reads a list of texts: its texts, or a
clear error."""

import importlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest

import bertworks as bw
from tests.interop.test_export import write_head
from tests.support.gpt import write_gpt2

TEXTS = ["the [MASK] film", "Anna [MASK] in Oslo", "a [MASK] dog"]
Call = Callable[[Any], Any]


@pytest.fixture(scope="module")
def calls(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Call]:
    """Every public call that reads a list of texts, by name."""
    folder = tmp_path_factory.mktemp("tables")
    gpt = folder / "gpt"
    write_gpt2(gpt)
    loaded = bw.load(model, device="cpu")
    loaded_gpt = bw.load(gpt, device="cpu")
    index = bw.Index.create(folder / "index", model=model, device="cpu")

    index.add(TEXTS)
    numbers = itertools.count()

    def added_texts(texts: Any) -> list[str]:
        empty = bw.Index.create(folder / f"index {next(numbers)}", model=model, device="cpu")
        empty.add(texts)
        return sorted(hit["text"] for hit in empty.search(TEXTS[0]))

    def embedded_file(texts: Any) -> Any:
        list(bw.embed_file(model, texts, folder / "vectors.npy", device="cpu"))
        vectors = np.load(folder / "vectors.npy")
        (folder / "vectors.npy").unlink()
        return vectors

    return {
        "embed": lambda texts: bw.embed(model, texts, device="cpu"),
        "Embedder.embed": bw.Embedder(model, device="cpu").embed,
        "embed_file": embedded_file,
        "load.embed": loaded.embed,
        "fill": lambda texts: list(bw.fill(model, texts)),
        "load.fill": loaded.fill,
        "score": lambda texts: list(bw.score(model, texts, device="cpu")),
        "load.score": loaded.score,
        "generate": lambda texts: list(bw.generate(gpt, texts, max_tokens=2, device="cpu")),
        "load.generate": lambda texts: loaded_gpt.generate(texts, max_tokens=2),
        "Index.add": added_texts,
        "Index.scores": lambda texts: [scores.tolist() for scores in index.scores(texts, "bm25")],
    }


POLARS = ["a polars DataFrame", "a polars LazyFrame", "a polars Series"]


def polars_table(name: str) -> Any:
    """TEXTS in polars; None where it is not installed."""
    try:
        polars = importlib.import_module("polars")
    except ImportError:
        return None
    frame = polars.DataFrame({"label": ["x", "y", "x"], "text": TEXTS})
    return {POLARS[0]: frame, POLARS[1]: frame.lazy(), POLARS[2]: frame["text"]}[name]


def tables() -> Iterator[tuple[str, Any]]:
    labels = ["x", "y", "x"]
    yield "a dict of columns", {"text": TEXTS, "label": labels}
    yield (
        "rows",
        [{"text": text, "label": label} for text, label in zip(TEXTS, labels, strict=True)],
    )
    arrow = pyarrow.table({"text": TEXTS, "label": labels})
    yield "an Arrow table", arrow
    yield "an Arrow batch", arrow.to_batches()[0]
    yield "an Arrow column", arrow["text"]
    yield "an Arrow array", pyarrow.array(TEXTS)
    yield "values of an Arrow column", list(arrow["text"])
    yield "an Arrow column of few different texts", arrow["text"].dictionary_encode()
    yield "an array", np.array(TEXTS)
    yield "a generator", (text for text in TEXTS)
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"label": labels, "text": TEXTS}, index=[0, 2, 5])
    yield "a DataFrame", frame
    yield "a DataFrame of one column", frame[["text"]].rename(columns={"text": "anything"})
    yield "a DataFrame with another usual name", frame.rename(columns={"text": "Review"})
    yield "a Series with gaps in its index", frame["text"]
    for name in POLARS:
        yield name, polars_table(name)


CONTAINERS = [name for name, _ in tables()]


@pytest.mark.parametrize("container", CONTAINERS)
def test_the_texts_of_a_table_are_read_and_never_the_names_of_its_columns(
    container: str, calls: dict[str, Call]
) -> None:
    if container in POLARS:
        pytest.importorskip("polars")
    for name, call in calls.items():
        expected = call(TEXTS)
        result = call(dict(tables())[container])
        if isinstance(expected, np.ndarray):
            np.testing.assert_array_equal(result, expected, err_msg=name)
        else:
            assert result == expected, name


def refused() -> Iterator[tuple[str, Any, str]]:
    yield "a set", set(TEXTS), "a set, which has no order"
    yield "a frozen set", frozenset(TEXTS), "a set, which has no order"
    yield (
        "two columns of texts",
        {"text": TEXTS, "review": TEXTS},
        "several columns of texts: text, review",
    )
    yield (
        "no usual name",
        {"a": TEXTS, "b": TEXTS},
        "no column of this table is named as a text: a, b",
    )
    yield "two tables", {"train": pyarrow.table({"text": TEXTS})}, "there are several tables: train"
    yield (
        "texts by their names",
        {"a": "some text"},
        "expected a list of 'a' values, not one 'a' value",
    )
    yield "numbers", [1, 2, 3], "text 1 is 1: expected a string"
    yield "a matrix", np.array([TEXTS]), "text 1 is array.*expected a string"
    yield "one value of numpy", np.array("a text"), "expected a list of texts, not array"
    yield "a missing text", [TEXTS[0], None], "text 2 is None: expected a string"
    yield "a missing text of pandas", [TEXTS[0], float("nan")], "text 2 is nan: expected a string"


@pytest.mark.parametrize("container", [name for name, *_ in refused()])
def test_what_is_no_list_of_texts_is_refused_in_clear_words(
    container: str, calls: dict[str, Call]
) -> None:
    data, message = next((data, message) for name, data, message in refused() if name == container)
    for name, call in calls.items():
        if name == "embed_file":  # it reads rows of any columns, and says which it reads
            continue
        pattern = message.replace("text 1 is", "(text|sentence|query) 1 is").replace(
            "text 2", r"\w+ 2"
        )
        with pytest.raises(
            bw.UsageError, match=pattern.replace("list of texts", r"list of \w+")
        ) as error:
            call(data)
        assert error.value.hint, name


def test_a_predictor_reads_columns_and_refuses_sets(tmp_path: Path) -> None:
    predictor = bw.Predictor(write_head(tmp_path / "head", "classification"), device="cpu")
    expected = predictor.predict(TEXTS)
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"text": TEXTS, "label": ["neg", "pos", "neg"]}, index=[0, 2, 5])
    columns = [frame["text"], pyarrow.array(TEXTS), np.array(TEXTS), list(pyarrow.array(TEXTS))]
    for column in columns:
        assert predictor.predict(column) == expected
    assert 0 <= predictor.score(TEXTS, frame["label"]) <= 1
    for texts in (set(TEXTS), frozenset(TEXTS)):
        with pytest.raises(bw.UsageError, match="a set, which has no order"):
            predictor.predict(texts)
    with pytest.raises(bw.UsageError, match="a table with the columns label"):
        predictor.score(TEXTS[:1], frame[["label"]])
    with pytest.raises(bw.UsageError, match="a set, which has no order"):
        predictor.score(TEXTS[:2], {"pos", "neg"})


def test_missing_texts_are_named_as_they_are(tmp_path: Path) -> None:
    predictor = bw.Predictor(write_head(tmp_path / "head", "classification"), device="cpu")
    for value, name in ((None, "None"), (float("nan"), "nan")):
        with pytest.raises(bw.UsageError, match=f"text 2 is {name}: expected a string") as error:
            predictor.predict([TEXTS[0], value])
        assert "TABLE['text'].dropna()" in str(error.value.hint)
    with pytest.raises(bw.UsageError, match="text 1 is 3: expected a string"):
        predictor.predict([3])


def test_polars_in_and_polars_out(tmp_path: Path) -> None:
    polars = pytest.importorskip("polars")
    predictor = bw.Predictor(write_head(tmp_path / "head", "classification"), device="cpu")
    expected = predictor.predict(TEXTS)
    frame = polars.DataFrame({"text": TEXTS, "label": ["neg", "pos", "neg"]})
    for texts in (frame, frame.lazy(), frame["text"]):
        assert predictor.predict(texts) == expected
        result = predictor.predict_frame(texts)
        assert isinstance(result, polars.DataFrame)
        assert result["predicted_label"].to_list() == [answer["label"] for answer in expected]
        assert result["truncated_tokens"].to_list() == [0, 0, 0]
    assert 0 <= predictor.score(frame["text"], frame["label"]) <= 1


def test_low_level_calls_refuse_tables(model: Path) -> None:
    tokenizer = bw.load(model, device="cpu").tokenizer
    table = pyarrow.table({"text": TEXTS, "label": TEXTS})
    low_level: list[Call] = [
        tokenizer.ids,
        tokenizer.encode_batch,
        tokenizer.unknown,
        lambda texts: bw.train_vocabulary(texts, bw.VocabularyConfig(size=100)),
    ]
    for call in low_level:
        with pytest.raises(bw.UsageError, match="a table with the columns text, label"):
            call(table)
    assert tokenizer.ids(table["text"]) == tokenizer.ids(TEXTS)
    with pytest.raises(bw.UsageError, match="a set, which has no order"):
        bw.make_finetune_request([{"a": "x", "b": "y", "label": "z"}], text={"a", "b"})


def test_an_empty_table_has_no_texts(model: Path) -> None:
    pandas = pytest.importorskip("pandas")
    assert bw.embed(model, pandas.DataFrame({"text": []}), device="cpu").shape == (0, 32)
    with pytest.raises(bw.UsageError, match="this table has no columns"):
        bw.embed(model, pandas.DataFrame(), device="cpu")


def test_the_advice_of_each_refusal_works(model: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {"body": [TEXTS[0], None], "text": [TEXTS[0], None], "label": ["x", "y"]}
    )
    with pytest.raises(bw.UsageError) as error:
        bw.embed(model, frame, device="cpu")
    assert "TABLE['body']" in str(error.value.hint)
    with pytest.raises(bw.UsageError) as error:
        bw.embed(model, frame["text"], device="cpu")
    assert "TABLE['text'].dropna()" in str(error.value.hint)
    assert bw.embed(model, frame["text"].dropna(), device="cpu").shape == (1, 32)
    rows = [{"text": TEXTS[0], "review": TEXTS[1]}]
    with pytest.raises(bw.UsageError) as error:
        bw.embed(model, rows, device="cpu")
    assert "[row['text'] for row in ROWS]" in str(error.value.hint)
