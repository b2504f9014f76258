"""Parts of speech from frozen states: which words count, and figures against a plain loop."""

import json
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import bertworks as bw
from bertworks.datasets.treebank import TreeSentence, read_treebank
from bertworks.evaluation.ablation import Arm, measure_tags
from bertworks.evaluation.tags import ambiguous_forms, tag_metric
from bertworks.interop.convert import import_checkpoint
from tests.support.fine import FILLER, write_model
from tests.support.refusals import refusal
from tests.support.treebanks import write_trees

# "film" is a verb behind "we", which only its neighbour tells.
TAGS = {word: ("NOUN", "VERB", "ADP")[number % 3] for number, word in enumerate(FILLER)}


def tagged_sentence(draw: random.Random, length: int) -> TreeSentence:
    words = [draw.choice(FILLER) for _ in range(length - 1)] + ["."]
    tags = [TAGS.get(word, "PUNCT") for word in words]
    for place in range(1, length - 1):
        if words[place] == "film":
            words[place - 1] = draw.choice(["they", "the"])
            tags[place - 1] = TAGS[words[place - 1]]
            tags[place] = "VERB" if words[place - 1] == "they" else "NOUN"
    heads = (-1, *range(length - 1))
    return TreeSentence(tuple(words), heads, tuple(tags), "")


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bank")
    draw = random.Random(0)
    for name, count in (("train", 150), ("dev", 40), ("test", 40)):
        sentences = [tagged_sentence(draw, draw.randint(3, 9)) for _ in range(count)]
        if name == "test":
            sentences.append(tagged_sentence(draw, 100))  # more than the model reads
        write_trees(folder / f"{name}.conllu", sentences)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "model", noise=0.1)


def sentence_of(words: Sequence[str], tag: str) -> TreeSentence:
    heads = (-1, *range(len(words) - 1))
    return TreeSentence(tuple(words), heads, (tag,) * len(words), "")


def test_ambiguous_words_have_a_second_tag_of_a_tenth_and_twenty_places():
    sentences = [
        sentence_of(["walk"] * 18, "NOUN"),
        sentence_of(["Walk"] * 2, "VERB"),  # a tenth, in another case
        sentence_of(["run"] * 19, "NOUN"),
        sentence_of(["run"], "VERB"),  # a twentieth
        sentence_of(["set"] * 10, "NOUN"),
        sentence_of(["set"] * 9, "VERB"),  # too rare as a whole
        sentence_of(["the"] * 50, "DET"),
    ]
    assert ambiguous_forms(sentences) == {"walk"}


@pytest.mark.parametrize("forms", ["all", "ambiguous"])
def test_the_accuracy_is_that_of_a_plain_loop(forms, bank: Path, model: Path, tmp_path: Path):
    metric, layer = tag_metric(str(model), str(bank), tmp_path, forms=forms, device="cpu")
    kept = json.loads((tmp_path / "tags-3000.json").read_text())
    treebank = read_treebank(bank)
    counted = ambiguous_forms(treebank.train) if forms == "ambiguous" else {*FILLER}
    assert "film" in counted
    assert (len(counted) > 1) == (forms == "all")
    accuracies = {}
    for part in ("dev", "test"):
        for number, predictions in enumerate(kept[part]):
            right, words, place = 0, 0, 0
            for sentence in getattr(treebank, part):
                for word, tag in zip(sentence.words, sentence.parts_of_speech, strict=True):
                    if word in counted and predictions[place] >= 0:
                        words += 1
                        right += kept["labels"][predictions[place]] == tag
                    place += 1
            accuracies[part, number] = right / words
    assert layer == max(range(3), key=lambda number: accuracies["dev", number])
    assert metric.value == pytest.approx(accuracies["test", layer])
    assert metric.rows.shape == (41, 2)
    assert metric.rows[40].tolist() == [0, 0]  # the sentence that is too long
    assert metric.rows[:40, 1].sum() > 10
    assert len({*accuracies.values()}) > 3  # the layers differ
    assert metric.value > (0.8 if forms == "all" else 0.4)


def test_predictions_are_kept(bank: Path, model: Path, tmp_path: Path):
    first, layer = tag_metric(str(model), str(bank), tmp_path, device="cpu")
    again, same = tag_metric("no-such-model", str(bank), tmp_path, device="cpu")
    assert layer == same
    np.testing.assert_array_equal(first.rows, again.rows)


def test_static_vectors_have_one_layer(bank: Path, model: Path, tmp_path: Path):
    """And a figure that is no better than the most frequent tag of each ambiguous word."""
    list(bw.convert(model, tmp_path / "static", static=16))
    arguments = str(tmp_path / "static"), str(bank), tmp_path
    metric, layer = tag_metric(*arguments, forms="ambiguous", device="cpu")
    assert layer == 0
    tags = [
        tag
        for sentence in read_treebank(bank).test
        for word, tag in zip(sentence.words, sentence.parts_of_speech, strict=True)
        if word == "film"
    ]
    assert metric.value in {tags.count(tag) / len(tags) for tag in ("NOUN", "VERB")}


def test_words_without_a_token_have_a_zero_vector(bank: Path, tmp_path: Path):
    """Word vectors know no punctuation: a sentence of marks alone is read, too."""
    words = sorted({*FILLER})
    lines = [f"{len(words)} 4"]
    draw = np.random.default_rng(0)
    lines += [f"{word} {' '.join(map(str, draw.normal(size=4).round(3)))}" for word in words]
    (tmp_path / "vectors.txt").write_text("\n".join(lines) + "\n")
    list(import_checkpoint(tmp_path / "vectors.txt", tmp_path / "vectors"))
    for name in ("train", "dev", "test"):
        sentences = [*getattr(read_treebank(bank), name), sentence_of([".", "."], "PUNCT")]
        write_trees(tmp_path / "bank" / f"{name}.conllu", sentences)
    metric, _ = tag_metric(
        str(tmp_path / "vectors"), str(tmp_path / "bank"), tmp_path, device="cpu"
    )
    assert metric.rows[-1].tolist() == [0, 0]
    assert metric.rows[-2, 1] > 50  # 100 words: no sentence is too long without positions


def test_the_measure(bank: Path, model: Path, tmp_path: Path):
    arm = Arm(str(model), 0, tmp_path, tmp_path / "out", {}, {}, "cpu")
    figures = {}
    for figure in ("accuracy", "layer"):
        measuring = measure_tags(arm, data=str(bank), figure=figure)
        while True:
            try:
                next(measuring)
            except StopIteration as stop:
                figures[figure] = stop.value
                break
    metric, layer = tag_metric(str(model), str(bank), tmp_path, device="cpu")
    assert figures["accuracy"].value == metric.value
    assert figures["accuracy"].samples
    assert (figures["layer"].value, figures["layer"].samples) == (layer, [])


def test_what_cannot_be_measured_is_refused(bank: Path, model: Path, tmp_path: Path):
    with refusal("forms is 'some'", ""):
        tag_metric(str(model), str(bank), tmp_path, forms="some")
    folder = tmp_path / "bank"
    folder.mkdir()
    for name in ("train", "dev"):
        (folder / f"{name}.conllu").write_bytes((bank / f"{name}.conllu").read_bytes())
    with refusal("no test part", hint="name a folder with a test file"):
        tag_metric(str(model), str(folder), tmp_path)
    write_trees(folder / "test.conllu", [sentence_of([".", "."], "PUNCT")])
    with refusal("no word of test counts", hint="larger treebank"):
        tag_metric(str(model), str(folder), tmp_path)


def test_a_disk_too_small_for_the_states(
    bank: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=70_000))
    with refusal("of disk, and 0.0 GB are free", "sample = 1000 reads fewer sentences"):
        tag_metric(str(model), str(bank), tmp_path, device="cpu")


def test_sentences_that_are_all_too_long_are_refused(bank: Path, model: Path, tmp_path: Path):
    folder = tmp_path / "bank"
    draw = random.Random(1)
    for name in ("train", "dev", "test"):
        write_trees(folder / f"{name}.conllu", [tagged_sentence(draw, 100) for _ in range(3)])
    with refusal("no sentence of train is short enough", "use another model"):
        tag_metric(str(model), str(folder), tmp_path, device="cpu")


def test_an_exported_model_is_refused(bank: Path, model: Path, tmp_path: Path):
    pytest.importorskip("onnx")
    list(bw.export(model, tmp_path / "onnx"))
    with refusal("an exported model has only its last layer", "use the model that was exported"):
        tag_metric(str(tmp_path / "onnx"), str(bank), tmp_path, device="cpu")
