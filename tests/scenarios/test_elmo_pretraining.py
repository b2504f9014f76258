"""An ELMo that is trained on a text: it learns, it can be stopped and resumed, its folder serves
every command that reads an ELMo, and what has no meaning is refused."""

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import bertworks as bw
from bertworks.batching.batch import collate
from bertworks.batching.examples import TokenSequence, keyed_rng
from bertworks.batching.spelled_words import SpelledWords
from bertworks.checkpoints.model_folder import load_model
from bertworks.cli.main import main
from bertworks.errors import BertworksError, UsageError
from bertworks.evaluation.probe import evaluate_probe
from bertworks.runs.pretrain import estimate, pretrain
from bertworks.runs.pretrain_job import PretrainJob
from bertworks.text.shards import Shards
from bertworks.text.tokenizer import Tokenizer
from bertworks.training.recipe import load_recipe
from tests.support.fine import tokenizer
from tests.support.refusals import refusal
from tests.support.tiny import assert_same_run, metrics, newest, write_corpus
from tests.support.treebanks import write_treebank

NUM_PREDICTED = 150
OVERRIDES = [
    f"encoder.vocab_size={NUM_PREDICTED}",
    "encoder.hidden_size=16",
    "encoder.intermediate_size=8",
    "encoder.characters.size=4",
    "encoder.characters.widths=[1, 2, 3]",
    "encoder.characters.filters=[4, 8, 8]",
    "optimizer.learning_rate=1e-2",
    "train.held_out_sequences=16",
    "train.evaluate_every=10",
    "train.save_every=5",
    "train.phases.0.num_steps=40",
    "train.phases.0.batch_size=8",
    "train.phases.0.sequence_length=32",
]
# Cells of another number than the width of a direction, and limits.
PROJECTED = ["encoder.intermediate_size=12", "encoder.cell_clip=0.5", "encoder.projection_clip=0.3"]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("text") / "t.jsonl")


def run(text: Path, output: Path, *overrides: str, **options: Any) -> list[Any]:
    options = {"recipe": "elmo-small", "workers": 1, "device": "cpu"} | options
    return list(pretrain([text], output, overrides=[*OVERRIDES, *overrides], **options))


@pytest.fixture(scope="module")
def trained(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("run") / "elmo"
    events = run(text, output)
    assert f"next: bertworks evaluate probe {output} TREEBANK" in events[-1].text
    return output


def test_both_directions_learn(trained: Path):
    rows = [row["evaluation"] for row in metrics(trained) if "evaluation" in row]
    for direction in ("forward_lm", "backward_lm"):
        losses = [row[f"{direction}_loss"] for row in rows]
        assert losses[0] == pytest.approx(math.log(NUM_PREDICTED), abs=1)
        assert losses[-1] < losses[0] - 0.5
        perplexity = rows[-1][f"{direction}_perplexity"]
        assert perplexity == pytest.approx(math.exp(losses[-1]), rel=1e-6)
        assert 0 < rows[-1][f"{direction}_accuracy"] < 1
    card = (trained / "README.md").read_text()
    assert f"over {NUM_PREDICTED} words" in card
    assert "forward_lm_perplexity" in card
    assert 'algorithm = "spelled_words"' in card
    assert "8 cells in each LSTM" in card


def test_the_folder_is_what_was_trained(trained: Path, text: Path):
    """A text has the vector that the network of the training computes from its own batches."""
    config, state, tokens = load_model(trained)
    assert (config.kind, config.vocab_size, tokens.spells_words) == ("elmo", 1, True)
    recipe = load_recipe(str(trained / "recipe.toml"))
    job = PretrainJob(recipe, Shards.open(trained / "shards"))
    network = job.network().eval()
    # the output layer is in the checkpoint alone
    saved = load_file(newest(trained) / "state.safetensors")
    for name, parameter in network.named_parameters():
        parameter.data = saved[f"parameter/{name}"]
    outputs = {"word_output.weight", "word_output.bias"}
    assert {name for name, _ in network.named_parameters()} == state.keys() | outputs
    assert all(torch.equal(network.get_parameter(name), x) for name, x in state.items())
    texts = [json.loads(line)["text"] for line in text.read_text().splitlines()[:3]]
    vectors = bw.embed(trained, [*texts, "unheard-of"], device="cpu", normalize=False)
    assert vectors[-1].any()
    words = SpelledWords.of(job.tokenizer)
    for numbers, vector in zip(job.tokenizer.ids(texts), vectors, strict=False):
        ids = np.array(numbers)
        assert ids.all()  # no word of the text is unknown
        batch = collate([words(TokenSequence(ids, 0 * ids, ids < 0, {}), keyed_rng("test"))])
        with torch.no_grad():
            states = network.encoder(*batch.inputs)[-1]
        np.testing.assert_allclose(states.mean(0).numpy(), vector, atol=1e-6)


def test_sequences_are_whole_sentences(trained: Path):
    """So that a mark stands where one stands in use; a longer sentence is cut."""
    shards = Shards.open(trained / "shards")
    job = PretrainJob(load_recipe(str(trained / "recipe.toml")), shards)
    batches = job.batches(trained / "plans", 0, 1, lambda note: None)
    spellings = SpelledWords.of(job.tokenizer).spellings
    starts = np.asarray(shards.sentences)
    assert np.diff(starts).max() <= 32
    sentences = {tuple(spellings[shards.tokens[a:b]].tolist()) for a, b in pairwise(starts)}
    firsts = {sentence[0] for sentence in sentences}
    lasts = {sentence[-1] for sentence in sentences}
    assert lasts == {b"."}
    for batch in batches(0):
        words = batch.input_ids.numpy().view("S48")[:, 0].tolist()
        for first, end in pairwise(batch.layout.cu_seqlens.tolist()):
            assert words[first] in firsts
            assert words[end - 1] in lasts


def test_the_baseline_counts_unknown_words_together(trained: Path):
    recipe = load_recipe(str(trained / "recipe.toml"), ["encoder.vocab_size=5"])
    job = PretrainJob(recipe, Shards.open(trained / "shards"))
    baseline = job.baseline()
    assert baseline is not None
    words = [batch.targets["backward_lm"].labels for batch in job._held_out_batches[""]]
    share = np.mean((torch.cat(words) >= 5).numpy())
    assert baseline[1] == {"token": "[UNK]", "forward_lm_accuracy": pytest.approx(share)}


@pytest.mark.parametrize(
    "overrides", [[], pytest.param(PROJECTED, marks=pytest.mark.slow)], ids=["plain", "projected"]
)
def test_a_resumed_training_is_that_without_a_stop(
    text: Path, tmp_path: Path, overrides: list[str]
):
    run(text, tmp_path / "a", *overrides)
    options: dict[str, Any] = {"recipe": "elmo-small", "workers": 1, "device": "cpu"}
    options["overrides"] = [*OVERRIDES, *overrides]
    events = pretrain([text], tmp_path / "b", **options)
    for event in events:
        if event.kind == "evaluation" and event.fields["step"] == 20:
            break
    events.close()  # type: ignore[attr-defined]
    assert load_model(tmp_path / "b").state
    list(pretrain([text], tmp_path / "b", **options))
    assert_same_run(tmp_path / "a", tmp_path / "b")


def test_micro_batches_change_only_the_last_bits(text: Path, tmp_path: Path):
    settings = ["train.phases.0.num_steps=3", "encoder.hidden_dropout=0"]
    for name, size in (("a", 1024), ("b", 64)):
        run(text, tmp_path / name, *settings, f"train.micro_batch_tokens={size}")
    first, second = (load_model(tmp_path / name).state for name in "ab")
    for name, x in first.items():
        torch.testing.assert_close(x, second[name], rtol=0, atol=2e-4)


def test_commands_read_the_folder(
    trained: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    rows = tmp_path / "rows.csv"
    rows.write_text("text\nBada de.\nunheard-of words\n")
    assert main(["embed", str(trained), str(rows), "-o", str(tmp_path / "v.npy"), "--json"]) == 0
    assert np.load(tmp_path / "v.npy").shape == (2, 16)
    *_, last = evaluate_probe(trained, write_treebank(tmp_path / "ud"), epochs=1, device="cpu")
    assert [row["layer"] for row in last.fields["layers"]] == [0, 1, 2]
    tags = tmp_path / "t.conll"
    tags.write_text("Anna\tB-person\nsleeps\tO\n\n" * 12)
    model = bw.finetune(
        tags,
        model=trained,
        output=tmp_path / "tagger",
        recipe="feature_based",
        overrides=["epochs=1", "lstm_units=4", "feature_layers=mix"],
        device="cpu",
    )
    assert len(model.predict([["Anna", "sleeps"]])[0]["tags"]) == 2
    capsys.readouterr()
    for words in (["fill"], ["generate"], ["score"], ["evaluate", "mlm"]):
        assert main([*words, str(trained), str(text)]) == 1
        assert "so that it predicts no words" in capsys.readouterr().err


def test_more_training_begins_with_a_new_output_layer(trained: Path, text: Path, tmp_path: Path):
    settings = ["train.phases.0.num_steps=1", "optimizer.warmup=1"]
    events = run(text, tmp_path / "a", *settings, init=str(trained))
    notes = " ".join(event.text for event in events if event.kind == "note")
    assert f"{trained} has no word_output: initialized at random" in notes
    config, state, _ = load_model(tmp_path / "a")
    assert config == load_model(trained).config
    recipe = load_recipe(str(tmp_path / "a" / "recipe.toml"))
    assert recipe.encoder.vocab_size == NUM_PREDICTED
    # of one step with the rate 0 that a warm-up begins with
    assert all(torch.equal(x, state[name]) for name, x in load_model(trained).state.items())
    # without a recipe it is elmo-small
    cost = estimate([text], init=str(trained), speed=False)
    assert (cost.title, cost.parameters) == ("ELMo-small", sum(x.numel() for x in state.values()))
    with refusal("its vocabulary cannot be extended", "leave --extend-vocabulary out"):
        run(text, tmp_path / "b", init=str(trained), extend_vocabulary=10)


def test_a_vocabulary_of_its_kind_may_be_used(text: Path, tmp_path: Path):
    folder = tmp_path / "tokenizer"
    words = ["vocab", str(text), "-o", str(folder), "--algorithm", "spelled_words"]
    assert main([*words, "--size", "100", "--cased", "--workers", "1"]) == 0
    run(text, tmp_path / "a", "train.phases.0.num_steps=1", tokenizer=str(folder))
    recipe = load_recipe(str(tmp_path / "a" / "recipe.toml"))
    assert recipe.encoder.vocab_size == Tokenizer.load(folder).vocab_size == 100
    # and its shards, by an ELMo alone
    shards = str(tmp_path / "a" / "shards")
    options: dict[str, Any] = {"overrides": [*OVERRIDES, "train.phases.0.num_steps=1"]}
    list(pretrain([shards], tmp_path / "b", recipe="elmo-small", device="cpu", **options))
    states = [load_model(tmp_path / name).state for name in "ab"]
    assert all(torch.equal(x, states[1][name]) for name, x in states[0].items())
    with refusal("does not read spellings", "bertworks vocab TEXT -o TOKENIZER"):
        list(pretrain([shards], tmp_path / "c", recipe="bert-tiny", device="cpu"))
    tokenizer().save(tmp_path / "other")
    with refusal("learns from words as ELMo reads them", "--algorithm spelled_words --cased"):
        run(text, tmp_path / "d", tokenizer=str(tmp_path / "other"))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["sampling.format=stream"], "sampling.format = 'full_sentences'"),
        (["initialization=xavier"], "expected initialization = 'published'"),
        (["train.precision=bf16"], "computed in fp32"),
        (["vocabulary.algorithm=words"], "expected 'spelled_words' with kind = 'elmo'"),
        (['objectives=[{kind="forward_lm"}]'], "both objectives, forward_lm and backward_lm"),
        (['objectives=[{kind="masked_lm"}]'], "both objectives, forward_lm and backward_lm"),
        (["vocabulary.lowercase=true"], "keep their case"),
        (["encoder.hidden_size=31"], "half of it for each direction"),
    ],
)
def test_recipes_without_meaning_are_refused(overrides: list[str], message: str):
    with pytest.raises(UsageError) as caught:
        load_recipe("elmo-small", overrides)
    assert message in str(caught.value)


def test_other_networks_have_neither_its_objectives_nor_its_words():
    both = 'objectives=[{kind="forward_lm"}, {kind="backward_lm"}]'
    for override, message in (
        (both, "which no other network has"),
        ("vocabulary.algorithm=spelled_words", "and only there"),
    ):
        with pytest.raises(UsageError, match=message):
            load_recipe("bert-tiny", [override, "vocabulary.lowercase=false"])


def test_texts_without_sentences_are_refused(tmp_path: Path):
    for name, content, message in (
        ("empty", " \n", "no text"),
        ("signs", "\0\n\n\0\0\n", "no text"),
        ("short", "Two words.\n", "there is too little text"),
    ):
        path = tmp_path / f"{name}.txt"
        path.write_text(content)
        with pytest.raises(BertworksError) as caught:
            run(path, tmp_path / name)
        assert message in str(caught.value), str(caught.value)


def test_words_of_any_characters_are_trained_on(tmp_path: Path):
    """Characters outside the first plane, without their partner, and words cut at 48 bytes."""
    words = ["😀", "\U0010ffff", "x" * 47 + "é" * 9, "日本語", "z" * 300, "a\0b"]
    path = tmp_path / "t.jsonl"
    lines = [f"{word} and {words[n - 1]} are words {n}." for n, word in enumerate(words)] * 8
    texts = [f"{line} \ud800 is none." for line in lines]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    run(path, tmp_path / "a", "train.phases.0.num_steps=2")
    vocabulary = Tokenizer.load(tmp_path / "a" / "tokenizer")
    spelled = {*SpelledWords.of(vocabulary).spellings.tolist()}
    assert {word.replace("\0", "").encode()[:48] for word in words} <= spelled
    assert np.isfinite(bw.embed(tmp_path / "a", texts, device="cpu")).all()


def test_an_estimate_counts_the_output_layer(text: Path):
    cost = estimate([text], recipe="elmo", speed=False)
    assert (cost.parameters, cost.trained) == (93_600_848, 93_600_848 + 100_000 * 513)
    assert "93,600,848, and 51,300,000 of the output layer" in str(cost)
    limited = estimate([text], recipe="elmo", budget="1m", speed=False)
    assert (limited.title, limited.steps) == ("ELMo", None)


@pytest.mark.slow
def test_a_budget_chooses_the_steps(text: Path, tmp_path: Path):
    words = [word for word in OVERRIDES if "num_steps" not in word]
    options: dict[str, Any] = {"recipe": "elmo-small", "workers": 1, "device": "cpu"}
    events = list(pretrain([text], tmp_path / "a", overrides=words, budget="20s", **options))
    assert events[-1].fields["step"] > 0
