"""Perplexity of next tokens: that of transformers where there is no memory, that of one pass where
the memory holds the whole text, and by the place of a token in its segment."""

import json
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import bertworks as bw
from bertworks.checkpoints.model_folder import load_model
from bertworks.errors import BertworksError, UsageError
from bertworks.evaluation.ablation import Arm, measure_memory
from bertworks.evaluation.causal_lm import PlacedLosses, place_ranges, segment_losses
from bertworks.io.options import Bulk
from bertworks.runs.pretrain import pretrain
from bertworks.runs.pretrain_job import held_out_batches, split_long_documents
from bertworks.text.corpus import CorpusReader
from bertworks.text.shards import Shards, write_shards
from bertworks.text.tokenizer import Tokenizer
from bertworks.training.loop import evaluate
from bertworks.training.objectives import PretrainingModel
from tests.scenarios.test_transformer_xl import options_of
from tests.support.refusals import refusal
from tests.support.tiny import write_corpus, write_pretrained


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("text") / "t.jsonl", 40)


@pytest.fixture(scope="module")
def model(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("run") / "xl"
    list(pretrain([text], output, **options_of("train.phases.0.num_steps=30")))
    return output


@pytest.fixture(scope="module")
def gpt2(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("run") / "gpt2"
    words = ["vocabulary.size=300", "encoder.hidden_size=32", "encoder.num_hidden_layers=1"]
    words += ["encoder.num_attention_heads=2", "train.phases.0.batch_size=8"]
    words += ["train.phases.0.num_steps=3", "train.phases.0.sequence_length=32"]
    list(pretrain([text], output, recipe="gpt2", overrides=words, workers=1, device="cpu"))
    return output


@pytest.mark.parametrize(
    ("length", "ranges"),
    [
        (5, [(0, 4)]),
        (8, [(0, 7)]),
        (9, [(0, 7), (8, 8)]),
        (64, [(0, 7), (8, 15), (16, 31), (32, 63)]),
        (150, [(0, 7), (8, 15), (16, 31), (32, 63), (64, 127), (128, 149)]),
    ],
)
def test_the_ranges_of_places_cover_a_segment(length: int, ranges: list[tuple[int, int]]) -> None:
    assert place_ranges(length) == ranges


def test_the_same_figures_as_transformers(gpt2: Path, text: Path, tmp_path: Path):
    ours = bw.evaluate_mlm(gpt2, [text], sequence_length=48, device="cpu")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(gpt2).eval()
    tokenizer = Tokenizer.load(gpt2)
    store = split_long_documents(
        write_shards(CorpusReader([text]), tokenizer, tmp_path / "shards", workers=1)
    )
    end = tokenizer.tokens.index("<|endoftext|>")
    edges = store.sentences[store.documents]
    parts = [[*store.tokens[a:b], end] for a, b in pairwise(edges)]
    ids = torch.tensor([int(number) for part in parts for number in part])
    lane = (-(-len(ids) // 48) - 1) // 8 * 48
    rows = ids.unfold(0, 49, 48)[: 8 * lane // 48]
    with torch.no_grad():
        logits = theirs(input_ids=rows[:, :-1]).logits
    losses = torch.nn.functional.cross_entropy(
        logits.transpose(1, 2), rows[:, 1:], reduction="none"
    )
    assert ours is not None
    assert ours["tokens"] == losses.numel() == 8 * lane
    assert ours["causal_lm_loss"] == pytest.approx(losses.mean().item(), rel=1e-5)
    right = (logits.argmax(-1) == rows[:, 1:]).float().mean().item()
    assert ours["causal_lm_accuracy"] == pytest.approx(right)
    assert (ours["memory"], ours["sequences"]) == (0, len(rows))
    for first, last in place_ranges(48):
        expected = math.exp(losses[:, first : last + 1].mean().item())
        assert ours[f"perplexity_at_{first}-{last}"] == pytest.approx(expected, rel=1e-4)


def test_the_memory_of_the_training_is_the_default(model: Path, text: Path):
    results = {}
    for memory in (None, 24, 0):
        result = bw.evaluate_mlm(model, [text], sequence_length=16, memory=memory, device="cpu")
        assert result is not None
        results[memory] = result
    assert results[None] == results[24]
    assert (results[24]["memory"], results[0]["memory"]) == (24, 0)
    assert results[0]["tokens"] == results[24]["tokens"]
    assert results[0]["causal_lm_loss"] != results[24]["causal_lm_loss"]


def test_losses_by_place_are_the_loss(model: Path, text: Path):
    config, state, tokenizer = load_model(model)
    network = PretrainingModel(config, {"causal_lm": 1.0})
    network.load_state_dict(state)
    shards = Shards.open(model / "shards")
    batches = held_out_batches(
        shards,
        np.arange(len(shards.documents) - 1),
        tokenizer,
        format="stream",
        sequence_length=40,
        sequences=64,
        kind="causal_lm",
        in_lanes=True,
    )
    by_place = evaluate(PlacedLosses(network, place_ranges(40)), batches)
    whole = evaluate(network, batches)["causal_lm"]
    assert sum(stats.count for stats in by_place.values()) == whole.count
    total = sum(stats.loss * stats.count for stats in by_place.values())
    assert total == pytest.approx(whole.loss * whole.count, rel=1e-5)


def test_a_file_and_workers_give_the_same_figures(model: Path, text: Path, tmp_path: Path):
    here = bw.evaluate_mlm(model, [text], device="cpu", output=tmp_path / "a.json")
    bulk = Bulk(on="local", workers=1)
    there = bw.evaluate_mlm(model, [text], device="cpu", output=tmp_path / "b.json", bulk=bulk)
    assert here == there == json.loads((tmp_path / "b.json").read_text())
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_notes_say_what_is_unusual(model: Path, text: Path):
    notes = list[str]()
    bw.evaluate_mlm(model, [text], memory=100_000, device="cpu", on_note=notes.append)
    assert "a memory of 100,000 tokens; the network was trained with 24" in notes
    assert any("a memory of 100,000 tokens is never full" in note for note in notes)


def test_a_memory_that_cannot_be_is_refused(model: Path, gpt2: Path, text: Path, tmp_path: Path):
    with refusal("a memory of -1 tokens: expected 0 or more", "--memory 0"):
        bw.evaluate_mlm(model, [text], memory=-1, device="cpu")
    what = "this model has no memory: its positions are 'learned'"
    with refusal(what, "leave --memory out"):
        bw.evaluate_mlm(gpt2, [text], memory=5, device="cpu")
    assert bw.evaluate_mlm(gpt2, [text], memory=0, device="cpu")
    bert = write_pretrained(tmp_path, ("num_steps = 40", "num_steps = 1"))
    with refusal("this model reads in both directions", "leave --memory out"):
        bw.evaluate_mlm(bert, [text], memory=0, device="cpu")
    with refusal("has 4.1 GB: expected at most 2 GB", "--memory 976562"):
        bw.evaluate_mlm(model, [text], memory=2_000_000, device="cpu")
    with pytest.raises(UsageError, match="a sequence length of 4: the model reads from 5 to 2048"):
        bw.evaluate_mlm(model, [text], sequence_length=4, device="cpu")
    (tmp_path / "short.txt").write_text("Bada.\n")
    with pytest.raises(BertworksError, match="the text has 0 sequences of 128 tokens"):
        bw.evaluate_mlm(model, [tmp_path / "short.txt"], device="cpu")


def test_a_comparison_measures_the_gain_by_a_memory(model: Path, gpt2: Path, tmp_path: Path):
    arm = Arm(str(model), 0, model / "shards", tmp_path / "m", {}, {}, "cpu")
    options = {"last": 7, "figure": "loss", "sequence_length": 16}

    def value(**changes: object) -> float:
        *_, result = _results(measure_memory(arm, **options | changes))  # type: ignore[arg-type]
        return result.value

    gain = value(memory=24, minus={"memory": 0})
    assert gain == pytest.approx(value(memory=24) - value(memory=0), rel=1e-6)
    assert gain != 0
    assert value(memory=None) == value(memory=24)
    text = Shards.open(model / "shards")
    rows = [
        segment_losses(
            str(model), text, 0, "cpu", memory=24, places=places, sequence_length=16, sequences=0
        )
        for places in ((0, 7), (8, 15), (0, 15))
    ]
    np.testing.assert_allclose(rows[0] + rows[1], rows[2], rtol=1e-5)
    with pytest.raises(UsageError, match=r"places 0 to 16 of segments of 16 tokens"):
        value(last=16)
    with pytest.raises(UsageError, match="minus of the measure memory has last"):
        value(minus={"last": 3})
    other = Arm(str(gpt2), 0, model / "shards", tmp_path / "m", {}, {}, "cpu")
    assert Tokenizer.load(gpt2).tokens == Tokenizer.load(model).tokens
    with pytest.raises(UsageError, match="this model has no memory"):
        list(measure_memory(other, memory=3, sequence_length=16))
    bert = write_pretrained(tmp_path, ("num_steps = 40", "num_steps = 1"))
    both_directions = Arm(str(bert), 0, model / "shards", tmp_path / "m", {}, {}, "cpu")
    with refusal("the model reads in both directions", "such as one of --recipe transformer-xl"):
        list(measure_memory(both_directions, memory=0, sequence_length=16))


def _results(events: object) -> list[object]:
    """What a measure yields, and at the end what it returns."""
    rows = []
    while True:
        try:
            rows.append(next(events))  # type: ignore[call-overload]
        except StopIteration as end:
            return [*rows, end.value]
