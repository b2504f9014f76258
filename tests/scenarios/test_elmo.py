"""An imported ELMo in each command that reads encoders: vectors, states of words, tags, labels, a
server; and the commands that it cannot serve."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bertworks as bw
from bertworks.checkpoints.model_folder import ModelFolder
from bertworks.evaluation.probe import evaluate_probe, read_words, states_file, write_word_states
from bertworks.inference.embedder import Embedder
from bertworks.inference.engine import open_model
from bertworks.models.transformer import Encoder
from bertworks.retrieval.index import Index, index_file
from bertworks.runs.prepare import make_shards, read_text
from bertworks.text.tokenizer import Tokenizer
from tests.support.elmo import arrays_of, states_of, write_elmo
from tests.support.fine import write_model
from tests.support.refusals import refusal
from tests.support.served import Local
from tests.support.treebanks import write_treebank

pytest.importorskip("h5py")
TEXTS = ["The cat sat on the mat .", "a dog's well-known house (blue)", "", "日本語 x"]
WORDS = [
    "The cat sat on the mat .".split(),
    ["a", "dog", "'s", "well-known", "house", "(", "blue", ")"],
    [],
    ["日本語", "x"],
]
ROWS = [
    ("the dog's house is blue", "blue"),
    ("a red cat, and another one", "red"),
    ("a blue mat", "blue"),
    ("red again", "red"),
] * 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("elmo")
    weights, options = write_elmo(path, arrays=arrays_of(scale=0.2))
    list(bw.import_checkpoint(weights, path / "model", elmo_options=options))
    return path / "model"


@pytest.fixture(scope="module")
def tags(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tags") / "t.conll"
    sentence = "do\tO\nn't\tO\ncall\tO\nAnna\tB-person\n3,000.5\tB-sum\n:-)\tO\n\n"
    path.write_text(sentence * 12 + "Anna\tB-person\nsleeps\tO\n\n" * 12)
    return path


def test_vectors_of_texts(folder: Path):
    vectors = bw.embed(folder, TEXTS, device="cpu", normalize=False)
    arrays = arrays_of(scale=0.2)
    for words, vector in zip(WORDS, vectors, strict=True):
        expected = states_of(words, arrays)[0][-1].mean(0) if words else np.zeros(20)
        np.testing.assert_allclose(vector, expected, atol=1e-5)
    embedder = Embedder(folder, device="cpu", max_length=4)
    assert (embedder.dimension, embedder.precision) == (20, "fp32")
    _, counts = embedder.embed_and_count(TEXTS)
    assert (counts.truncated, counts.tokens_left_out) == (2, 7)
    last_words, truncated = embedder.units(TEXTS, keep_end=True)
    assert truncated == [3, 4, 0, 0]
    assert last_words[0][0].input_ids.tolist() == [b"on", b"the", b"mat", b"."]
    model = bw.load(folder, device="cpu")
    assert model.can == ("embed",)
    np.testing.assert_allclose(model.embed(TEXTS), vectors, atol=1e-6)


def test_states_of_words(folder: Path, tmp_path: Path):
    source = open_model(folder, "cpu")
    sentences = [(words, "") for words in WORDS if words]
    sequences = [s for s in read_words(sentences, source.tokenizer, 64) if s is not None]
    list(write_word_states(source.network(Encoder, "encoder."), sequences, range(3), tmp_path))
    expected = [states_of(words, arrays_of(scale=0.2))[0] for words, _ in sentences]
    for layer in range(3):
        ours = np.load(states_file(tmp_path, layer)).astype(np.float32)
        oracle = np.concatenate([x[layer] for x in expected])
        assert np.all(np.abs(ours - oracle) <= 2e-5 + 2**-11 * np.abs(oracle))
    assert list(read_words([(["a"] * 65, "")], source.tokenizer, 64)) == [None]
    *_, last = evaluate_probe(folder, write_treebank(tmp_path / "ud"), epochs=1, device="cpu")
    assert [row["layer"] for row in last.fields["layers"]] == [0, 1, 2]


@pytest.mark.parametrize("layers", ["mix", "last"])
def test_tags_on_frozen_states(folder: Path, tags: Path, tmp_path: Path, layers: str):
    settings = ["epochs=2", "lstm_units=8", f"feature_layers={layers}"]
    model = bw.finetune(
        tags,
        model=folder,
        output=tmp_path / "out",
        recipe="feature_based",
        overrides=settings,
        device="cpu",
    )
    words = ["Anna", "doesn't", "3,000.5"]
    (answer,) = model.predict([words])
    assert len(answer["tags"]) == 3
    raw = model.predict(["Anna doesn't sleep."])[0]
    assert raw["words"] == ["Anna", "does", "n't", "sleep", "."]
    task = ModelFolder(tmp_path / "out").task_config
    assert (task.lstm_units, task.feature_layers) == (8, layers)
    # the encoder is that of the imported folder
    states = [ModelFolder(path).load_state() for path in (folder, tmp_path / "out")]
    assert all(torch.equal(states[1][name], x) for name, x in states[0].items())
    assert ("mix.weights" in states[1]) == (layers == "mix")
    weights = json.loads((tmp_path / "out/result.json").read_text())["layer_weights"]
    expected = states[1]["mix.weights"].softmax(0).tolist() if layers == "mix" else []
    assert weights == pytest.approx(expected)
    assert sum(weights) == pytest.approx(float(bool(expected)))
    list(bw.convert(tmp_path / "out", tmp_path / "copy"))
    assert bw.load(tmp_path / "copy", device="cpu").predict([words]) == [answer]
    figures = bw.evaluate_task(tmp_path / "out", tags, device="cpu")["figures"]
    assert 0 <= figures["f1"] <= 1


@pytest.mark.parametrize("method", ["full", "frozen"])
def test_labels_of_texts(folder: Path, tmp_path: Path, method: Any):
    data = tmp_path / "data.csv"
    data.write_text("text,label\n" + "".join(f'"{text}",{label}\n' for text, label in ROWS))
    output = tmp_path / "out"
    overrides = ["epochs=2"] if method == "full" else []
    model = bw.finetune(
        data, model=folder, output=output, method=method, overrides=overrides, device="cpu"
    )
    answers = model.predict([text for text, _ in ROWS])
    assert {answer["label"] for answer in answers} <= {"blue", "red"}
    if method == "frozen":  # the words decide
        assert [answer["label"] for answer in answers] == [label for _, label in ROWS]
    assert model.predict(["", " "])[0]["label"] == model.predict([" "])[0]["label"]
    again = bw.load(output, device="cpu").predict([text for text, _ in ROWS])
    scores = [[answer["score"] for answer in part] for part in (answers, again)]
    np.testing.assert_allclose(scores[0], scores[1], atol=1e-6)


def test_two_tasks_train_one_elmo(folder: Path, tmp_path: Path):
    texts = [text for text, _ in ROWS]
    for name, labels in (("colours", ("blue", "red")), ("numbers", ("one", "two"))):
        rows = [f'"{text}",{labels[label == ROWS[0][1]]}\n' for text, label in ROWS]
        (tmp_path / f"{name}.csv").write_text("text,label\n" + "".join(rows))
    data = [tmp_path / "colours.csv", tmp_path / "numbers.csv"]
    output = tmp_path / "out"
    request = bw.make_joint_request(data, model=str(folder), overrides=["epochs=2"])
    list(bw.joint_events(output, request, device="cpu"))
    for name, labels in (("colours", {"blue", "red"}), ("numbers", {"one", "two"})):
        answers = bw.load(output / "tasks" / name, device="cpu").predict(texts)
        assert {answer["label"] for answer in answers} <= labels


def test_an_index_and_a_server(folder: Path, tmp_path: Path):
    texts = tmp_path / "texts.csv"
    texts.write_text("text\n" + "".join(f'"{text}"\n' for text, _ in ROWS[:4]))
    list(index_file(texts, tmp_path / "index", model=folder, device="cpu"))
    hits = Index(tmp_path / "index", device="cpu").search("a blue mat", 1, ranking="dense")
    assert hits[0]["text"] == "a blue mat"
    with Local(folder) as server:
        info = server.send("GET", "/info").json()
        answer = server.post("/embed", {"inputs": TEXTS[:2], "normalize": False})
        ids = server.post("/embed", {"inputs": [[1, 2]]})
    assert not {"tokenize", "decode", "explain"} & {*info["abilities"]}
    assert ids.status_code == 422
    expected = bw.embed(folder, TEXTS[:2], device="cpu", normalize=False)
    np.testing.assert_allclose(answer.json(), expected, atol=1e-5)


def test_a_tokenizer_of_another_model_is_refused(folder: Path, tmp_path: Path):
    bert = write_model(tmp_path / "bert")
    for source, target, what in (
        (bert, folder, "reads spellings of words, and its tokenizer has a vocabulary"),
        (folder, bert, "has a vocabulary, and its tokenizer only spells words"),
    ):
        copy = tmp_path / f"copy of {target.name}"
        shutil.copytree(target, copy)
        for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
            shutil.copyfile(source / name, copy / name)
        (copy / "vocab.txt").unlink(missing_ok=True)
        with refusal(what, "saved with the model"):
            bw.embed(copy, ["a"], device="cpu")


def test_what_it_cannot_do(folder: Path, tags: Path, tmp_path: Path):
    output = tmp_path / "out"
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("sentence1,sentence2,label\n" + "a,b,yes\nc,d,no\n" * 12)
    with refusal("no token that could separate the two texts", "--method frozen"):
        bw.finetune(pairs, model=folder, output=output, method="full", device="cpu")
    with refusal("is a network of kind 'elmo', which is computed in fp32", "leave --precision out"):
        bw.finetune(tags, model=folder, output=output, overrides=["precision=bf16"], device="cpu")
    with refusal("precision int8: networks of kind 'elmo' are computed in fp32", "leave"):
        Embedder(folder, precision="int8", device="cpu")
    with refusal("programs for exported models do not pass to a network", "minilm"):
        list(bw.export(folder, output))
    with refusal("neither attention nor a table of tokens", "evaluate probe"):
        bw.explain(folder, "a text", device="cpu")
    with refusal("this model cannot fill", "use embed"):
        bw.load(folder, device="cpu").fill(["a"])
    text = tmp_path / "text.txt"
    text.write_text("a text\n")
    for make in (
        lambda: list(bw.pretrain([str(text)], output, tokenizer=str(folder))),
        lambda: list(make_shards(read_text([text]), output, Tokenizer.load(folder))),
    ):
        with refusal("this tokenizer has no vocabulary", "bertworks vocab"):
            make()
    with refusal("static vectors are made of the tokens of a vocabulary", "minilm"):
        list(bw.convert(folder, output, static=4))
    with refusal("this model has no vocabulary", "leave --token-ids out"):
        Local(folder, token_ids="own")
    assert not output.exists()
