"""A Transformer-XL that is trained on a text.

It can be stopped and resumed to the last bit, several processes and micro-batches change nothing,
and what has no meaning is refused."""

import json
import math
import os
import shutil
import signal
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import bertworks as bw
from bertworks.batching.batch import Batch, collate
from bertworks.batching.examples import Example, LanePlace, Target
from bertworks.checkpoints.model_folder import load_model
from bertworks.errors import BertworksError
from bertworks.models.config import EncoderConfig
from bertworks.models.memory import make_memory
from bertworks.runs.pretrain import estimate, pretrain
from bertworks.training.budget import measure_steps, random_batch
from bertworks.training.loop import evaluate, with_memory
from bertworks.training.objectives import PretrainingModel
from bertworks.training.recipe import load_recipe
from tests.runs.test_pretrain import finish, losses, torchrun
from tests.support.refusals import refusal
from tests.support.tiny import assert_same_run, metrics, newest, write_corpus

MEMORY = 24
LENGTH = 16
OVERRIDES = [
    "vocabulary.size=300",
    "encoder.hidden_size=32",
    "encoder.num_hidden_layers=2",
    "encoder.num_attention_heads=2",
    f"encoder.memory_length={MEMORY}",
    "optimizer.learning_rate=1e-2",
    "train.precision=fp32",
    "train.held_out_sequences=16",
    "train.evaluate_every=10",
    "train.save_every=5",
    "train.phases.0.num_steps=40",
    "train.phases.0.batch_size=8",
    f"train.phases.0.sequence_length={LENGTH}",
]
STILL = ["encoder.hidden_dropout=0.0"]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("text") / "t.jsonl", 30)


def options_of(*overrides: str, **options: Any) -> dict[str, Any]:
    options = {"recipe": "transformer-xl-small", "workers": 1, "device": "cpu"} | options
    return {"overrides": [*OVERRIDES, *overrides], **options}


def run(text: Path, output: Path, *overrides: str, **options: Any) -> list[Any]:
    return list(pretrain([text], output, **options_of(*overrides, **options)))


def memory_of(folder: Path) -> torch.Tensor:
    """The memory in the newest checkpoint."""
    return load_file(newest(folder) / "state.safetensors")["memory/states"]


@pytest.fixture(scope="module")
def trained(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is not stopped, of more than one reading of the text."""
    output = tmp_path_factory.mktemp("run") / "xl"
    events = run(text, output)
    assert f'next: bertworks generate {output} "This is the"' in events[-1].text
    return output


def test_it_learns_with_a_memory(trained: Path):
    rows = [row["evaluation"] for row in metrics(trained) if "evaluation" in row]
    values = [row["causal_lm_loss"] for row in rows]
    assert values[0] == pytest.approx(math.log(300), abs=1)
    assert values[-1] < values[0] - 0.5
    config, _, tokenizer = load_model(trained)
    assert (config.family, config.memory_length) == ("transformer-xl", MEMORY)
    assert tokenizer.template.suffix == ()
    states = memory_of(trained)
    assert states.shape == (2, 8, MEMORY, 32)
    assert states.any(-1).all()
    card = (trained / "README.md").read_text()
    assert "A network of the family `transformer-xl`" in card
    assert "The library transformers does not have this network." in card


@pytest.mark.parametrize("step", [10, 20])
def test_a_resumed_training_is_that_without_a_stop(
    trained: Path, text: Path, tmp_path: Path, step: int
):
    with closing(pretrain([text], tmp_path / "b", **options_of())) as events:
        next(e for e in events if e.kind == "evaluation" and e.fields["step"] == step)
    run(text, tmp_path / "b")
    assert_same_run(trained, tmp_path / "b")


def test_a_step_that_is_interrupted_leaves_the_memory_as_it_was(
    trained: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The signal comes behind a forward pass, which has written its states."""
    forward = PretrainingModel.forward
    passes = 0

    def interrupted(model: PretrainingModel, batch: Batch) -> Any:
        nonlocal passes
        result = forward(model, batch)
        passes += model.training
        if passes == 13:
            os.kill(os.getpid(), signal.SIGINT)
        return result

    monkeypatch.setattr(PretrainingModel, "forward", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(text, tmp_path / "b", "train.save_every=0")
    monkeypatch.undo()
    assert newest(tmp_path / "b").name == "step-00000012"
    run(text, tmp_path / "b", "train.save_every=0")
    assert torch.equal(memory_of(tmp_path / "b"), memory_of(trained))
    first, second = (load_model(folder).state for folder in (tmp_path / "b", trained))
    assert all(torch.equal(x, second[name]) for name, x in first.items())


def test_micro_batches_are_one_batch(text: Path, tmp_path: Path):
    for name, size in (("a", 1024), ("b", 3 * LENGTH)):
        run(text, tmp_path / name, *STILL, f"train.micro_batch_tokens={size}")
    rows = [metrics(tmp_path / name) for name in "ab"]
    firsts, seconds = ([r["loss"] for r in part if "loss" in r][:12] for part in rows)
    assert firsts == pytest.approx(seconds, rel=1e-5)
    states = [memory_of(tmp_path / name) for name in "ab"]
    torch.testing.assert_close(*states, rtol=0, atol=1e-2)


@pytest.mark.slow
def test_two_processes_get_the_numbers_of_one(text: Path, tmp_path: Path):
    overrides = [*OVERRIDES, *STILL, "train.phases.0.num_steps=12", "train.evaluate_every=6"]
    overrides += ["train.save_every=0"]  # by the time of the first process
    arguments = {
        "inputs": [str(text)],
        "recipe": "transformer-xl-small",
        "overrides": overrides,
        "workers": 1,
    }
    list(pretrain(**arguments, output=tmp_path / "one", device="cpu"))
    finish(torchrun({"arguments": arguments | {"output": str(tmp_path / "two")}}))
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-4)
    states = [memory_of(tmp_path / name) for name in ("one", "two")]
    torch.testing.assert_close(*states, rtol=0, atol=1e-3)
    assert states[0].any(-1).all()


CONFIG = EncoderConfig(
    family="transformer-xl",
    vocab_size=50,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    hidden_act="relu",
    hidden_dropout=0.0,
    attention_dropout=0.0,
    attention_bias=False,
    position_embedding_type="relative",
    memory_length=64,
    type_vocab_size=0,
    direction="left_to_right",
    embedding_norm=False,
    embedding_scale=True,
    lm_head="plain",
    pooler="last",
)


def network() -> PretrainingModel:
    """A network with random numbers in every parameter."""
    torch.manual_seed(0)
    model = PretrainingModel(CONFIG, {"causal_lm": 1.0})
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p), alpha=0.2)
    return model


def batches_of(ids: Sequence[np.ndarray], length: int) -> list[Batch]:
    """The texts `ids` in lanes: a batch for each segment."""
    batches = []
    for start in range(0, len(ids[0]) - 1, length):
        examples = []
        for lane, row in enumerate(ids):
            part = row[start : start + length + 1]
            target = Target(np.arange(len(part) - 1), part[1:])
            examples.append(
                Example(
                    part[:-1], 0 * part[:-1], {"causal_lm": target}, place=LanePlace(lane, start)
                )
            )
        batches.append(collate(examples))
    return batches


def texts(count: int, length: int, seed: int = 0) -> list[np.ndarray]:
    return [*np.random.default_rng(seed).integers(0, CONFIG.vocab_size, (count, length + 1))]


@pytest.mark.parametrize("length", [4, 8, 16])
def test_segments_with_a_memory_are_one_pass(length: int):
    model = network()
    rows = texts(3, 48)
    with with_memory(model, make_memory(CONFIG, 3)):
        segments = evaluate(model, batches_of(rows, length))["causal_lm"]
    whole = evaluate(model, batches_of(rows, 48))["causal_lm"]
    assert segments.count == whole.count == 3 * 48
    assert segments.loss == pytest.approx(whole.loss, rel=1e-6)
    without = evaluate(model, batches_of(rows, length))["causal_lm"]
    assert abs(without.loss - whole.loss) > 1e-4


def test_the_memory_of_another_text_is_not_read():
    """Neither at the beginning of a text, nor after a memory was lent."""
    model = network()
    first, second = (batches_of(texts(2, 24, seed), 8) for seed in (1, 2))
    alone = evaluate_with_memory(model, second)
    memory = make_memory(CONFIG, 2)
    with with_memory(model, memory):
        evaluate(model, first)
        assert evaluate(model, second)["causal_lm"].loss == alone
    assert model.memory is None
    with pytest.raises(RuntimeError), with_memory(model, memory):
        raise RuntimeError
    assert model.memory is None


def evaluate_with_memory(model: PretrainingModel, batches: list[Batch]) -> float:
    with with_memory(model, make_memory(CONFIG, 2)):
        return evaluate(model, batches)["causal_lm"].loss


def test_no_gradient_passes_into_the_memory():
    model = network()
    first, second = batches_of(texts(2, 16), 8)
    model.memory = make_memory(CONFIG, 2)
    model(first)["causal_lm"].loss.backward()
    assert model.memory is not None
    model.memory.commit()
    model.zero_grad()
    model(second)["causal_lm"].loss.backward()
    table = model.encoder.embeddings.token.weight
    seen = {*second.input_ids.tolist(), *second.targets["causal_lm"].labels.tolist()}
    only_before = sorted({*first.input_ids.tolist()} - seen)
    # tokens of the segment before have no gradient but that of the output layer, which all have
    assert only_before
    assert table.grad is not None
    x = model.last_states(second, second.targets["causal_lm"].positions).detach()
    logits = x @ table.detach().T
    of_output = (logits.softmax(-1).T @ x)[only_before]
    torch.testing.assert_close(table.grad[only_before], of_output, rtol=1e-4, atol=1e-5)


def test_a_measurement_has_a_full_memory():
    recipe = load_recipe("transformer-xl-small", [*OVERRIDES, "encoder.vocab_size=300"])
    batch = random_batch(recipe, 4, LENGTH)
    assert batch.lanes is not None
    assert (batch.lanes.numbers.tolist(), batch.lanes.num_before) == ([0, 1, 2, 3], MEMORY)
    read = []

    def make_batches(_: object) -> Any:
        return lambda step: [random_batch(recipe, 8, LENGTH)]

    class Spy(PretrainingModel):
        def last_states(self, batch: Batch, rows: torch.Tensor) -> torch.Tensor:
            assert self.memory is None or batch.lanes is not None
            if self.memory is not None and batch.lanes is not None:
                read.append(self.memory.read(*batch.lanes)[0].shape[1])  # type: ignore[index]
            return super().last_states(batch, rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bertworks.training.budget.PretrainingModel", Spy)
        measured = measure_steps(recipe, torch.device("cpu"), 0.01, make_batches)
    assert measured.step_seconds[0] > 0
    assert len(read) >= 3
    assert {*read} == {MEMORY}


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["sampling.lanes=false"], "encoder.memory_length is 24 without sampling.lanes"),
        (["sampling.format=full_sentences"], "lanes with format 'full_sentences'"),
        (["encoder.memory_length=-1"], "memory_length is -1: expected a whole number from 0"),
        (
            ["encoder.position_embedding_type=learned"],
            "memory_length is 24 with position_embedding_type 'learned'",
        ),
        (
            ["objectives=[{kind='masked_lm'}]"],
            "encoder.memory_length is 24 with the objectives masked_lm: expected causal_lm or "
            "permutation_lm alone",
        ),
        (
            [
                "train.phases=[{num_steps=1, batch_size=8, sequence_length=16}, "
                "{num_steps=1, batch_size=8, sequence_length=32}]"
            ],
            "sampling.lanes with 2 train.phases: expected one phase",
        ),
    ],
)
def test_settings_that_mean_nothing_are_refused(
    text: Path, tmp_path: Path, words: list[str], what: str
):
    with pytest.raises(BertworksError, match=what):
        run(text, tmp_path / "a", *words)
    assert not (tmp_path / "a").exists()


def test_a_memory_that_does_not_fit_is_refused(text: Path, tmp_path: Path):
    what = "a memory of 1,000,000 tokens in 8 lanes, before 2 blocks of width 32, has 2.0 GB"
    with refusal(what, "--set encoder.memory_length=976562"):
        run(text, tmp_path / "a", "encoder.memory_length=1000000")
    assert not (tmp_path / "a").exists()


def test_lanes_that_the_text_does_not_have_are_refused(text: Path, tmp_path: Path):
    with refusal("fewer than the 5,000 lanes in which it is to be read", "give more text"):
        run(text, tmp_path / "a", "train.phases.0.batch_size=5000", "encoder.memory_length=1")


def test_a_memory_that_is_never_full_is_noted(text: Path, tmp_path: Path):
    words = ["encoder.memory_length=2000", "train.phases.0.num_steps=1"]
    events = run(text, tmp_path / "a", *words)
    notes = [event.text for event in events if event.kind == "note"]
    assert any("a memory of 2,000 tokens is never full" in note for note in notes)


def test_another_training_goes_on_from_the_model(trained: Path, text: Path, tmp_path: Path):
    """The network stays; its memory starts empty."""
    words = ["train.phases.0.num_steps=2", "train.phases.0.batch_size=4"]
    events = list(
        pretrain(
            [text],
            tmp_path / "b",
            init=str(trained),
            overrides=words,
            workers=1,
            budget=None,
            recipe="transformer-xl-small",
            device="cpu",
        )
    )
    assert events[-1].kind == "done"
    assert load_model(tmp_path / "b").config.memory_length == MEMORY
    estimated = estimate([text], init=str(trained), speed=False, device="cpu", budget="30s")
    assert "Transformer-XL" in estimated.title


def test_a_family_is_no_size(text: Path, tmp_path: Path):
    with pytest.raises(BertworksError, match="there is no recipe called 'transformer-xl'"):
        list(pretrain([text], tmp_path / "a", recipe="transformer-xl", budget="1m"))


def test_its_folder_serves_other_commands(trained: Path):
    (result,) = bw.generate(trained, ["Bada"], max_tokens=5, device="cpu")
    assert len(result["ids"]) <= 5
    vectors = bw.embed(trained, ["Bada de.", "Kilo."], device="cpu")
    assert vectors.shape == (2, 32)


def test_a_text_of_any_length_is_continued_and_scored(trained: Path, tmp_path: Path):
    """A text has the same continuation alone and among others, whatever they drop."""
    folder = tmp_path / "short"
    shutil.copytree(trained, folder, ignore=shutil.ignore_patterns("checkpoints", "shards"))
    settings = json.loads((folder / "config.json").read_text())
    settings["encoder"]["max_position_embeddings"] = 24
    settings["eos_token_id"] = 1  # a byte that is not in the text
    (folder / "config.json").write_text(json.dumps(settings))
    prompts = ["Bada", "Kilo de ba", "Ma " * 60, "Be so ta mi"]
    options: dict[str, Any] = {"max_tokens": 70, "temperature": 1.0, "top_k": 20, "device": "cpu"}
    options["precision"] = "fp32"
    together = list(bw.generate(folder, prompts, **options))
    assert {result["finish_reason"] for result in together} == {"max_tokens"}
    assert {len(result["ids"]) for result in together} == {70}
    for prompt, result in zip(prompts, together, strict=True):
        (alone,) = bw.generate(folder, [prompt], **options)
        assert alone == result
    (score,) = bw.score(folder, ["Bada de kilo. " * 40], device="cpu")
    assert len(score["tokens"]) > 100
    assert math.isfinite(score["score"])
