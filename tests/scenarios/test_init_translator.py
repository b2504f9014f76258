"""A translator that starts from an encoder, and one that is trained further."""

import ast
from pathlib import Path
from typing import Any

import pytest
import torch

import bertworks as bw
from bertworks.checkpoints.model_folder import load_model
from bertworks.errors import UsageError
from bertworks.events import Event
from bertworks.inference.translation import Translator
from bertworks.runs.pretrain import estimate, pretrain
from bertworks.training.loop import make_optimizer
from bertworks.training.objectives import PretrainingModel
from bertworks.training.recipe import load_recipe
from tests.support.gpt import write_gpt2
from tests.support.refusals import refusal
from tests.support.shell import Shell
from tests.support.tiny import documents, write_pretrained, write_recipe

SHORT = [
    "train.average=0",
    "train.held_out_sequences=20",
    "train.evaluate_every=10",
    "train.phases.0.num_steps=20",
    "train.phases.0.batch_size=16",
    "train.phases.0.sequence_length=64",
]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two files: sentences, and the first two words of each."""
    folder = tmp_path_factory.mktemp("pairs")
    sentences = [s for text in documents(40) for s in text.split(". ")]
    short = [" ".join(sentence.split()[:2]) for sentence in sentences]
    for name, lines in (("long.txt", sentences), ("short.txt", short)):
        (folder / name).write_text("".join(f"{line}\n" for line in lines))
    return [str(folder / "long.txt"), str(folder / "short.txt")]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of width 32 with its own lower-cased WordPieces."""
    return write_pretrained(tmp_path_factory.mktemp("encoder"))


def train(output: Path, pairs: list[str], **options: Any) -> list[Event]:
    return list(pretrain([], output, parallel=pairs, workers=1, device="cpu", **options))


@pytest.fixture(scope="module")
def translator(
    encoder: Path, pairs: list[str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[Event]]:
    output = tmp_path_factory.mktemp("run") / "mt"
    events = train(output, pairs, recipe="summarize", init=str(encoder), overrides=SHORT)
    return output, events


def test_an_encoder_gets_a_decoder_of_its_width(
    encoder: Path, translator: tuple[Path, list[Event]]
):
    folder, _ = translator
    old, new = load_model(encoder), load_model(folder)
    assert new.config.decoder is not None
    assert (new.config.family, new.config.decoder.num_hidden_layers) == ("native", 3)
    assert new.config.hidden_size == old.config.hidden_size
    assert new.config.num_hidden_layers == old.config.num_hidden_layers
    assert new.tokenizer.sha256 == old.tokenizer.sha256
    answers = list(bw.translate(folder, ["Ba de ki.", ""], max_tokens=8))
    assert answers[1]["translation"] == ""
    assert len(answers[0]["ids"]) <= 8


def test_it_starts_from_the_weights_of_the_encoder(encoder: Path, pairs: list[str], tmp_path: Path):
    """With a learning rate of almost 0 they are what is saved; the decoder is random."""
    words = [*SHORT, "optimizer.learning_rate=1e-12", "train.phases.0.num_steps=1"]
    options = {"recipe": "summarize", "init": str(encoder), "overrides": words}
    train(tmp_path / "a", pairs, **options)
    train(tmp_path / "b", pairs, seed=1, **options)
    old, first, second = (
        load_model(path).state for path in (encoder, tmp_path / "a", tmp_path / "b")
    )
    kept = [name for name in old if name.startswith(("encoder.", "lm_head."))]
    assert len(kept) > 10
    for name in kept:
        assert torch.allclose(old[name], first[name], atol=1e-9), name
    name = "decoder.blocks.0.cross_attention.query.weight"
    assert 0.01 < first[name].std() < 0.03
    assert not torch.allclose(first[name], second[name])


def test_a_text_to_summarize_is_not_divided(
    translator: tuple[Path, list[Event]], tmp_path: Path, shell: Shell
):
    """It has more tokens than those of the training, and then more than the network reads."""
    folder, _ = translator
    loaded = Translator(folder)
    loaded.longest_trained = 8
    sentence = "Ba. "
    (part,) = loaded.sources(sentence * 10, 1, None, cuts=False)
    assert len(part) > 8
    too_long = tmp_path / "texts.txt"
    too_long.write_text(sentence * loaded.longest)
    command = ["translate", folder, too_long, "--max-tokens", 3]
    shell.refuses(command, f"tokens: the model reads {loaded.longest}", "--cut leaves out its end")
    assert shell.works(*command, "--cut").count("\n") >= 1
    options = {"parallel": [str(too_long)] * 2, "recipe": "summarize"}
    with refusal("files of marian cannot hold that", "--set encoder.family=native"):
        list(pretrain([], tmp_path / "x", overrides=["encoder.family=marian"], **options))


def test_a_note_says_what_the_vocabulary_loses(translator: tuple[Path, list[Event]]):
    _, events = translator
    notes = [event.text for event in events if event.kind == "note"]
    assert any("no decoder: initialized at random" in note for note in notes)
    (note,) = [note for note in notes if "translations are written in the vocabulary of" in note]
    *_, words = note.partition("which makes ")
    written, sample = words.split(" of ")
    assert ast.literal_eval(sample) == "It's a text (with 2 parts) by Zoë."
    assert 0 < len(ast.literal_eval(written)) < len(ast.literal_eval(sample))


@pytest.mark.parametrize("recipe", ["transformer-tiny", "seq2seq-luong"])
def test_a_translator_continues_with_all_its_weights(recipe: str, pairs: list[str], tmp_path: Path):
    """Of the families marian and native: by steps of almost no length they stay what they were."""
    small = ["encoder.hidden_size=32", "vocabulary.size=300", *SHORT]
    train(tmp_path / "first", pairs, recipe=recipe, overrides=small)
    words = [*SHORT, "optimizer.learning_rate=1e-12", "train.phases.0.num_steps=1"]
    events = train(
        tmp_path / "more", pairs, recipe=recipe, init=str(tmp_path / "first"), overrides=words
    )
    old, new = load_model(tmp_path / "first"), load_model(tmp_path / "more")
    assert new.config == old.config
    assert new.state.keys() == old.state.keys()
    assert all(torch.allclose(new.state[name], old.state[name], atol=1e-9) for name in old.state)
    notes = [event.text for event in events if event.kind == "note"]
    assert not [note for note in notes if "initialized at random" in note or "written in" in note]
    draft = estimate([], parallel=pairs, init=str(tmp_path / "first"), budget="1m", speed=False)
    assert draft.parameters == sum(value.numel() for value in old.state.values())
    network = "transformer-base" if recipe == "transformer-tiny" else "seq2seq"
    assert draft.title == load_recipe(network).title


def test_the_encoder_learns_at_a_smaller_rate(translator: tuple[Path, list[Event]]):
    folder, _ = translator
    recipe = load_recipe(str(folder / "recipe.toml"))
    network = PretrainingModel.of(recipe)
    names = {parameter: name for name, parameter in network.named_parameters()}
    rates = {
        names[parameter]: group["factor"]
        for group in make_optimizer(network, recipe.optimizer).param_groups
        for parameter in group["params"]
    }
    of_encoder = [rate for name, rate in rates.items() if name.startswith("encoder.")]
    others = [rate for name, rate in rates.items() if not name.startswith("encoder.")]
    assert max(of_encoder) < 0.25
    assert {*others} == {1.0}


def test_other_beginnings_are_refused(
    encoder: Path, translator: tuple[Path, list[Event]], pairs: list[str], tmp_path: Path
):
    def refused(match: str, **options: Any) -> None:
        with pytest.raises(UsageError, match=match):
            estimate([], parallel=pairs, speed=False, **options)

    write_gpt2(tmp_path / "gpt")
    refused(
        "a decoder with direction 'left_to_right'", recipe="summarize", init=str(tmp_path / "gpt")
    )
    refused("decoder with kind 'transformer'", recipe="seq2seq", init=str(encoder))
    refused("learns from text", init=str(encoder), budget="1m")
    refused(
        r"sampling\.format = 'parallel'",
        recipe=str(write_recipe(tmp_path / "r.toml")),
        init=str(translator[0]),
    )
