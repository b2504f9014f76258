"""`datasets` with bertworks in the same process: names of classes, and an Embedder that `map`
pickles."""

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from datasets.fingerprint import Hasher

import bertworks as bw

TEXTS = [f"{'good' if number % 2 else 'bad'} film number {number}" for number in range(60)]
NAMES = ["neg", "pos"]
QUICK: dict[str, Any] = {"device": "cpu", "overrides": ["epochs=1"]}


@pytest.fixture
def reviews() -> datasets.Dataset:
    """Return texts with a class each, which `datasets` stores as a number."""
    data = datasets.Dataset.from_dict(
        {"text": TEXTS, "label": [number % 2 for number in range(60)]}
    )
    return data.cast_column("label", datasets.ClassLabel(names=NAMES))


@pytest.fixture(params=["Dataset", "IterableDataset", "Parquet"])
def labelled(request: pytest.FixtureRequest, reviews: datasets.Dataset, tmp_path: Path) -> Any:
    """Return the texts with their classes, in one of the ways in which they are handed over."""
    if request.param == "Dataset":
        return reviews
    if request.param == "IterableDataset":
        return reviews.to_iterable_dataset()
    path = tmp_path / "reviews.parquet"
    reviews.to_parquet(str(path))
    return path


def test_classes_keep_their_names(labelled: Any, models: Path, tmp_path: Path):
    predictor = bw.finetune(labelled, model=models / "masked", output=tmp_path / "out", **QUICK)
    assert predictor.classes_.tolist() == NAMES
    assert {item["label"] for item in predictor.predict(TEXTS[:4])} <= set(NAMES)
    evaluated = bw.evaluate_task(tmp_path / "out", labelled, device="cpu")
    assert (evaluated["rows"], evaluated["unknown_labels"]) == (60, {})


def test_predictions_of_a_column(reviews: datasets.Dataset, models: Path):
    predictor = bw.Predictor(models / "classes", device="cpu")
    assert list(predictor.predict(reviews["text"])) == list(predictor.predict(TEXTS))


def test_tags_keep_their_names(models: Path, tmp_path: Path):
    tags = datasets.List(datasets.ClassLabel(names=["O", "B-PER", "I-PER", "B-LOC"]))
    features = datasets.Features(
        {"tokens": datasets.List(datasets.Value("string")), "ner_tags": tags}
    )
    words = [["Anna", "Smith", "in", "Paris", str(number)] for number in range(40)]
    data = datasets.Dataset.from_dict(
        {"tokens": words, "ner_tags": [[1, 2, 0, 3, 0]] * 40}, features=features
    )
    predictor = bw.finetune(data, model=models / "masked", output=tmp_path / "out", **QUICK)
    assert set(predictor.classes_) == {"O", "B-PER", "I-PER", "B-LOC"}
    assert (
        "f1" in " ".join(bw.evaluate_task(tmp_path / "out", data, device="cpu")["figures"]).lower()
    )


class VectorsOf:
    """A function for `map` that holds an Embedder, and counts its calls.

    Args:
        embedder: which is pickled with it.
    """

    calls = 0

    def __init__(self, embedder: bw.Embedder):
        self.embedder = embedder

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        VectorsOf.calls += 1
        return {"vector": self.embedder.embed(list(batch["text"]))}


@pytest.fixture
def on_disk(reviews: datasets.Dataset, tmp_path: Path) -> datasets.Dataset:
    """Return texts that were read from a folder, so that `map` keeps its results there."""
    reviews.save_to_disk(str(tmp_path / "reviews"))
    datasets.enable_caching()
    return datasets.load_from_disk(str(tmp_path / "reviews"))


def test_map_keeps_its_results_for_the_same_embedder(on_disk: datasets.Dataset, models: Path):
    embedder = bw.Embedder(models / "masked", device="cpu")
    VectorsOf.calls = 0
    data = on_disk.map(VectorsOf(embedder), batched=True, batch_size=20)
    assert VectorsOf.calls == 3
    np.testing.assert_array_equal(np.array(data["vector"], dtype=np.float32), embedder.embed(TEXTS))
    opened_again = bw.Embedder(models / "masked", device="cpu")
    assert Hasher.hash(VectorsOf(opened_again)) == Hasher.hash(VectorsOf(embedder))
    again = on_disk.map(VectorsOf(opened_again), batched=True, batch_size=20)
    assert VectorsOf.calls == 3
    assert again["vector"] == data["vector"]


def test_map_computes_again_for_another_model(on_disk: datasets.Dataset, models: Path):
    first = VectorsOf(bw.Embedder(models / "masked", device="cpu"))
    second = VectorsOf(bw.Embedder(models / "classes", device="cpu"))
    assert Hasher.hash(first) != Hasher.hash(second)
    vectors = [on_disk.map(function, batched=True)["vector"] for function in (first, second)]
    assert list(vectors[0]) != list(vectors[1])


def test_map_in_two_processes(reviews: datasets.Dataset, models: Path):
    # In "auto" a processor without bf16 reads few tokens with weights in half precision.
    embedder = bw.Embedder(models / "masked", device="cpu", precision="fp32")
    data = reviews.map(VectorsOf(embedder), batched=True, batch_size=20, num_proc=2)
    np.testing.assert_allclose(np.array(data["vector"]), embedder.embed(TEXTS), atol=1e-6)
