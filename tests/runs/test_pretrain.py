"""`pretrain`: what it refuses and says, what it survives, and the ways in which a run may be set
up."""

import errno
import io
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

import bertworks.checkpoints.training_state
from bertworks import load
from bertworks.batching.sampling import Sampler
from bertworks.checkpoints.model_folder import load_model, save_model
from bertworks.cli.main import main
from bertworks.errors import BertworksError, UsageError
from bertworks.events import Event
from bertworks.io.atomic_write import folder_lock, sha256
from bertworks.models.config import EncoderConfig
from bertworks.models.transformer import Encoder, scale_residual
from bertworks.runs import pretrain_job
from bertworks.runs.prepare import make_shards
from bertworks.runs.pretrain import estimate, make_request, pretrain
from bertworks.runs.pretrain_job import PretrainJob
from bertworks.runs.training_run import TrainingRun
from bertworks.text.corpus import CorpusReader
from bertworks.text.shards import Shards, write_shards
from bertworks.text.vocabulary import VocabularyConfig, train_vocabulary
from bertworks.training.budget import Measurement, measure_steps
from bertworks.training.loop import LossSum
from bertworks.training.objectives import PretrainingModel
from bertworks.training.recipe import Recipe, load_recipe
from tests.support import SUPPORT
from tests.support.gpt import causal_loss, held_out_of
from tests.support.refusals import refusal
from tests.support.tiny import documents, leftovers, metrics, newest, write_corpus, write_recipe

SHORT = ("num_steps = 40", "num_steps = 10")
STILL = ("hidden_size = 32", "hidden_size = 32\nhidden_dropout = 0.0\nattention_dropout = 0.0")


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    reader = CorpusReader([write_corpus(folder / "text.jsonl")])
    tokenizer, _ = train_vocabulary(documents(), VocabularyConfig(size=300), workers=1)
    write_shards(reader, tokenizer, folder / "shards", workers=1)
    return folder / "shards"


def run(inputs: Any, output: Path, recipe: Path | None, **options: Any) -> list[Event]:
    inputs = [inputs] if isinstance(inputs, str | Path) else inputs
    return list(
        pretrain(inputs, output, recipe=recipe and str(recipe), workers=1, device="cpu", **options)
    )


@pytest.fixture(scope="module")
def finished(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of ten steps on the shards, its recipe beside it; to be looked at or copied, not to be
    changed."""
    folder = tmp_path_factory.mktemp("finished")
    run(shards, folder / "a", write_recipe(folder / "r.toml", SHORT))
    return folder / "a"


@pytest.fixture(scope="module")
def whole(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, of all forty steps."""
    folder = tmp_path_factory.mktemp("whole")
    run(shards, folder / "a", write_recipe(folder / "r.toml"))
    return folder / "a"


def losses(folder: Path) -> list[float]:
    return [line["loss"] for line in metrics(folder) if "loss" in line]


def held_out(folder: Path) -> list[dict[str, float]]:
    return [line["evaluation"] for line in metrics(folder) if "evaluation" in line]


# The folder


def test_it_is_a_model_folder_and_a_report(shards: Path, tmp_path: Path):
    events = run(shards, tmp_path / "a", write_recipe(tmp_path / "r.toml", SHORT))
    there = {p.name for p in (tmp_path / "a").iterdir()}
    assert there == {
        "run.json",
        "recipe.toml",
        "metrics.jsonl",
        "report.html",
        "README.md",
        "checkpoints",
        "plans",
        ".lock",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "vocab.txt",
        "weights.json",
    }
    assert not leftovers(tmp_path / "a")
    model = load_model(tmp_path / "a", needs={"encoder", "lm_head", "pooler", "next_sentence"})
    assert model.tokenizer.model_max_length == 64
    done = events[-1]
    assert done.kind == "done"
    assert done.fields["step"] == 10
    assert done.fields["evaluation"] == held_out(tmp_path / "a")[-1]
    assert 0 < done.fields["baseline"]["masked_lm_accuracy"] < 1
    assert "always &#x27;" in (tmp_path / "a/report.html").read_text()
    assert [event.fields["step"] for event in events if event.kind == "step"] == list(range(1, 11))


def test_it_learns(shards: Path, tmp_path: Path):
    run(
        shards,
        tmp_path / "a",
        write_recipe(tmp_path / "r.toml", ("learning_rate = 1e-3", "learning_rate = 1e-2")),
    )
    figures = held_out(tmp_path / "a")
    assert len(figures) == 5  # before, and after every ten steps
    assert figures[-1]["masked_lm_loss"] < figures[0]["masked_lm_loss"] - 0.5
    assert figures[0]["masked_lm_perplexity"] == pytest.approx(
        math.exp(figures[0]["masked_lm_loss"])
    )


# What is refused


def test_another_request_is_refused_with_the_difference_and_both_ways_out(
    shards: Path, finished: Path, tmp_path: Path
):
    recipe = finished.with_name("r.toml")
    shutil.copytree(finished, tmp_path / "a")
    before = (tmp_path / "a" / "model.safetensors").read_bytes()
    with pytest.raises(UsageError) as raised:
        run(shards, tmp_path / "a", recipe, seed=3)
    message = str(raised.value)
    assert "seed: None there, 3 now" in message
    assert "-o ANOTHER-FOLDER" in message
    assert "--overwrite" in message
    (tmp_path / "a" / "mine.txt").write_text("notes")
    # a slip costs nothing of what is there
    with pytest.raises(UsageError, match="no recipe called"):
        run(shards, tmp_path / "a", Path("bert-bsae"), overwrite=True)
    assert (tmp_path / "a" / "model.safetensors").read_bytes() == before
    run(shards, tmp_path / "a", recipe, seed=3, overwrite=True)
    assert (tmp_path / "a" / "model.safetensors").read_bytes() != before
    assert (tmp_path / "a" / "mine.txt").read_text() == "notes"
    run(shards, tmp_path / "b", recipe, seed=3)
    assert metrics(tmp_path / "a") == metrics(tmp_path / "b")


def test_the_same_request_from_another_folder_is_the_same(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    recipe = write_recipe(tmp_path / "r.toml", SHORT)
    monkeypatch.chdir(tmp_path)
    run(Path("..") / shards.parent.name / "shards", Path("a"), Path("r.toml"))
    monkeypatch.chdir("/")
    assert run(shards, tmp_path / "a", recipe)[0].text == "resuming after step 10 of 10"


@pytest.mark.parametrize("change", ["file", "copy"])
def test_a_changed_recipe_is_refused(change: str, shards: Path, tmp_path: Path):
    recipe = write_recipe(tmp_path / "r.toml", SHORT)
    run(shards, tmp_path / "a", recipe)
    changed = recipe if change == "file" else tmp_path / "a" / "recipe.toml"
    changed.write_text(changed.read_text().replace("num_steps = 10", "num_steps = 11"))
    expected = (
        "recipe_sha256: "
        if change == "file"
        else "recipe.toml is not the one that this run began with"
    )
    with pytest.raises(UsageError, match=expected):
        run(shards, tmp_path / "a", recipe)


def test_changed_text_is_refused(tmp_path: Path):
    text, recipe = write_corpus(tmp_path / "t.jsonl"), write_recipe(tmp_path / "r.toml", SHORT)
    run(text, tmp_path / "a", recipe)
    write_corpus(text, 61)
    with pytest.raises(BertworksError, match="another command"):
        run(text, tmp_path / "a", recipe)


def test_changed_shards_are_refused(shards: Path, tmp_path: Path):
    recipe = write_recipe(tmp_path / "r.toml", SHORT)
    mine = shutil.copytree(shards, tmp_path / "shards")
    run(mine, tmp_path / "a", recipe)
    tokenizer, _ = train_vocabulary(documents(), VocabularyConfig(size=300), workers=1)
    write_shards(
        CorpusReader([write_corpus(tmp_path / "t.jsonl", 70)]),
        tokenizer,
        mine,
        workers=1,
        overwrite=True,
    )
    with pytest.raises(UsageError, match="shards_sha256: "):
        run(mine, tmp_path / "a", recipe)


def test_shards_of_another_tokenizer_are_refused(shards: Path, tmp_path: Path):
    tokenizer, _ = train_vocabulary(documents(), VocabularyConfig(size=120), workers=1)
    tokenizer.save(tmp_path / "tok")
    with pytest.raises(BertworksError, match="another tokenizer"):
        run(
            shards,
            tmp_path / "a",
            write_recipe(tmp_path / "r.toml"),
            tokenizer=str(tmp_path / "tok"),
        )
    assert not (tmp_path / "a").exists()


def test_shards_whose_tokenizer_was_exchanged_are_refused(shards: Path, tmp_path: Path):
    mine = shutil.copytree(shards, tmp_path / "shards")
    tokenizer, _ = train_vocabulary(documents(), VocabularyConfig(size=120), workers=1)
    tokenizer.save(mine / "tokenizer")
    with pytest.raises(BertworksError, match=r"tokenizer.json: damaged"):
        run(mine, tmp_path / "a", write_recipe(tmp_path / "r.toml"))


def test_unfinished_shards_are_no_text(shards: Path, tmp_path: Path):
    mine = shutil.copytree(shards, tmp_path / "shards")
    (mine / "manifest.json").rename(mine / "plan.json")
    with pytest.raises(BertworksError, match="not finished"):
        run(mine, tmp_path / "a", write_recipe(tmp_path / "r.toml"))


def test_a_folder_with_other_things_is_refused(shards: Path, tmp_path: Path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "thesis.tex").write_text("")
    for overwrite in (False, True):
        with pytest.raises(UsageError, match=r"holds no run: thesis\.tex"):
            run(shards, tmp_path / "a", write_recipe(tmp_path / "r.toml"), overwrite=overwrite)
    assert [p.name for p in (tmp_path / "a").iterdir() if p.name != ".lock"] == ["thesis.tex"]


def test_a_garbled_run_json_is_refused(shards: Path, tmp_path: Path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "run.json").write_text("{")
    with pytest.raises(UsageError, match="the file is damaged") as raised:
        run(shards, tmp_path / "a", write_recipe(tmp_path / "r.toml", SHORT))
    assert "--overwrite" in str(raised.value)
    run(shards, tmp_path / "a", write_recipe(tmp_path / "r.toml", SHORT), overwrite=True)


def test_a_second_process_is_refused(shards: Path, finished: Path, tmp_path: Path):
    recipe = finished.with_name("r.toml")
    shutil.copytree(finished, tmp_path / "a")
    with (
        folder_lock(tmp_path / "a", "", ""),
        pytest.raises(BertworksError, match="is writing to this run folder"),
    ):
        run(shards, tmp_path / "a", recipe)
    run(shards, tmp_path / "a", recipe)


def test_what_is_read_is_not_written_over(shards: Path, tmp_path: Path):
    recipe = write_recipe(tmp_path / "r.toml", SHORT)
    text = write_corpus(tmp_path / "texts.jsonl")
    with pytest.raises(UsageError, match="the output folder contains an input"):
        run(shards, shards.parent, recipe, overwrite=True)
    with pytest.raises(UsageError, match="lies in the input folder"):
        run(tmp_path, tmp_path / "a", recipe)
    assert text.exists()
    assert (shards / "manifest.json").exists()


def test_a_missing_input_touches_nothing(tmp_path: Path):
    with pytest.raises(BertworksError, match=r"missing\.txt"):
        run(tmp_path / "missing.txt", tmp_path / "a", write_recipe(tmp_path / "r.toml"))
    assert not (tmp_path / "a").exists()


# Small and strange corpora


def test_a_vocabulary_larger_than_the_text_gives(tmp_path: Path):
    recipe = write_recipe(tmp_path / "r.toml", SHORT, ("size = 300", "size = 5000"))
    events = run(write_corpus(tmp_path / "t.jsonl"), tmp_path / "a", recipe)
    assert any("the text gives only" in event.text for event in events)
    model = load_model(tmp_path / "a")
    assert model.config.vocab_size == model.tokenizer.vocab_size < 5000


def test_a_family_that_needs_its_own_tokenizer_is_refused_at_once(tmp_path: Path):
    (tmp_path / "t.txt").write_text("A sentence. Another one.\n" * 50)
    recipe = write_recipe(tmp_path / "r.toml")
    overrides = [
        "encoder.family=roberta",
        "encoder.type_vocab_size=1",
        "sampling.format=full_sentences",
    ]
    with pytest.raises(BertworksError, match="padding token has id 0") as raised:
        run(
            tmp_path / "t.txt",
            tmp_path / "a",
            recipe,
            overrides=[*overrides, "encoder.pooler_dropout=true"],
        )
    assert "--tokenizer FOLDER" in str(raised.value)
    assert not (tmp_path / "a").exists()


def test_no_text(tmp_path: Path):
    (tmp_path / "t.txt").write_text("\n \n")
    with pytest.raises(BertworksError, match="no text"):
        run(tmp_path / "t.txt", tmp_path / "a", write_recipe(tmp_path / "r.toml"))


def test_one_sentence(tmp_path: Path):
    (tmp_path / "t.txt").write_text("The only sentence there is.\n")
    with pytest.raises(BertworksError, match="too little text: 1 sentences") as raised:
        run(tmp_path / "t.txt", tmp_path / "a", write_recipe(tmp_path / "r.toml"))
    assert "a few hundred sentences" in str(raised.value)


def test_one_document_is_cut_into_sections(tmp_path: Path):
    (tmp_path / "t.txt").write_text(" ".join(documents()))
    run(
        tmp_path / "t.txt",
        tmp_path / "a",
        write_recipe(tmp_path / "r.toml", SHORT),
        documents="file",
    )
    assert losses(tmp_path / "a")
    assert 0 < held_out(tmp_path / "a")[0]["next_sentence_accuracy"] < 1


def test_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Read once for vocabulary and shards; when the run goes on it is not asked for again."""
    text = write_corpus(tmp_path / "t.jsonl")
    recipe = write_recipe(tmp_path / "r.toml", SHORT)
    plain = "\n\n".join(documents()) + "\n"
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(plain.encode())))
    run("-", tmp_path / "a", recipe, documents="blank_line")
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"")))
    assert run("-", tmp_path / "a", recipe, documents="blank_line")[-1].kind == "done"
    run(text, tmp_path / "b", recipe)
    assert losses(tmp_path / "a") == losses(tmp_path / "b")


# What goes wrong on the way


def test_a_full_disk_while_saving(
    shards: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    recipe = write_recipe(tmp_path / "r.toml")
    write, calls = bertworks.checkpoints.training_state.write_tensors, 0

    def full(path: Path, *rest: Any) -> str:
        nonlocal calls
        calls += 1
        if calls == 4:
            path.write_bytes(b"half of it")
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, *rest)

    monkeypatch.setattr(bertworks.checkpoints.training_state, "write_tensors", full)
    with pytest.raises(BertworksError, match="the disk is full"):
        run(shards, tmp_path / "a", recipe)
    monkeypatch.undo()
    assert newest(tmp_path / "a").name == "step-00000010"
    assert not leftovers(tmp_path / "a")
    load_model(tmp_path / "a")
    run(shards, tmp_path / "a", recipe)
    assert metrics(tmp_path / "a") == metrics(whole)


def test_a_full_disk_while_logging(shards: Path, tmp_path: Path):
    recipe = write_recipe(tmp_path / "r.toml", SHORT)
    events = pretrain([shards], tmp_path / "a", recipe=str(recipe), device="cpu")
    while next(events).kind != "step":
        continue
    (tmp_path / "a" / "metrics.jsonl").rename(tmp_path / "mine")
    (tmp_path / "a" / "metrics.jsonl").symlink_to("/dev/full")
    with pytest.raises(BertworksError, match="No space left") as raised:
        list(events)
    assert "checkpoints are untouched" in str(raised.value)
    (tmp_path / "mine").replace(tmp_path / "a" / "metrics.jsonl")
    run(shards, tmp_path / "a", recipe)
    assert len(losses(tmp_path / "a")) == 10


def spoil(monkeypatch: pytest.MonkeyPatch, steps: set[int], finite_gradient: bool = False) -> None:
    """The loss of these steps, counted from 1, is not a number."""
    forward, calls = PretrainingModel.forward, 0

    def spoilt(self: PretrainingModel, batch: Any) -> dict[str, LossSum]:
        nonlocal calls
        tallies = forward(self, batch)
        if self.training:
            calls += 1
            if calls in steps:
                nan = torch.tensor(math.nan)
                first = tallies["masked_lm"]
                tallies["masked_lm"] = LossSum(
                    first.loss + nan if finite_gradient else first.loss * nan, first.correct
                )
        return tallies

    monkeypatch.setattr(PretrainingModel, "forward", spoilt)


@pytest.mark.parametrize("finite_gradient", [False, True])
def test_a_step_that_is_not_finite_is_left_out_and_counted(
    finite_gradient: bool, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    spoil(monkeypatch, {3, 4, 7}, finite_gradient)
    events = run(shards, tmp_path / "a", write_recipe(tmp_path / "r.toml", SHORT))
    assert [event.fields["skipped"] for event in events if event.kind == "step"] == [
        0,
        0,
        1,
        2,
        2,
        2,
        3,
        3,
        3,
        3,
    ]
    assert [n for n, loss in enumerate(losses(tmp_path / "a"), 1) if loss is None] == [3, 4, 7]
    assert all(tensor.isfinite().all() for tensor in load_model(tmp_path / "a").state.values())
    assert "NaN" not in (tmp_path / "a" / "metrics.jsonl").read_text()
    assert (tmp_path / "a" / "report.html").exists()


def test_three_in_a_row_stop_the_run(
    shards: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    recipe = write_recipe(tmp_path / "r.toml")
    spoil(monkeypatch, {7, 8, 9, 10})
    with pytest.raises(BertworksError, match="3 steps in a row, up to step 9") as raised:
        run(shards, tmp_path / "a", recipe)
    assert "the checkpoint of step 5 is finite and intact" in str(raised.value)
    assert "optimizer.learning_rate=3.3e-04" in str(raised.value)
    assert newest(tmp_path / "a").name == "step-00000005"
    monkeypatch.undo()
    run(shards, tmp_path / "a", recipe)
    assert_same_tensors(tmp_path / "a", whole)
    assert metrics(tmp_path / "a") == metrics(whole)


def assert_same_tensors(one: Path, other: Path) -> None:
    assert (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()


def test_steps_in_a_row_are_counted_across_a_stop(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    recipe = write_recipe(tmp_path / "r.toml", ("save_every = 5", "save_every = 1"))
    spoil(monkeypatch, {7, 8, 9})
    events = pretrain([shards], tmp_path / "a", recipe=str(recipe), device="cpu")
    for event in events:
        if event.kind == "saved" and event.fields["step"] == 8:
            break
    events.close()
    with pytest.raises(BertworksError, match="3 steps in a row, up to step 9"):
        run(shards, tmp_path / "a", recipe)


@pytest.mark.parametrize(("bad", "seen", "times"), [({3, 4, 5}, 10, 2), ({15, 16, 17}, 17, 1)])
def test_figures_that_are_read_seldom(
    bad: set[int],
    seen: int,
    times: int,
    shards: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    """As on a GPU, which is asked every ten steps, and after the last: noticed late, but never
    missed."""
    begin = TrainingRun.__init__

    def seldom(self: TrainingRun, *arguments: Any) -> None:
        begin(self, *arguments)
        self.read_every = self.log_every = 10

    monkeypatch.setattr(TrainingRun, "__init__", seldom)
    recipe = write_recipe(tmp_path / "r.toml", ("num_steps = 40", "num_steps = 17"))
    run(shards, tmp_path / "whole", recipe)
    assert [m["step"] for m in metrics(tmp_path / "whole") if "loss" in m] == [10, 17]
    spoil(monkeypatch, bad)
    for _ in range(times):  # what was counted before a checkpoint is not forgotten after it
        with pytest.raises(BertworksError, match=f"3 steps in a row, up to step {seen}"):
            run(shards, tmp_path / "a", recipe)


def test_held_out_text_that_is_not_finite_stops_the_run(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    forward = PretrainingModel.forward

    def spoilt(self: PretrainingModel, batch: Any) -> dict[str, LossSum]:
        tallies = forward(self, batch)
        bad = math.nan if not self.training and self.lm_head.bias.any() else 0.0
        return tallies | {
            "masked_lm": LossSum(tallies["masked_lm"].loss + bad, tallies["masked_lm"].correct)
        }

    monkeypatch.setattr(PretrainingModel, "forward", spoilt)
    with pytest.raises(BertworksError, match="held-out text is not finite, up to step 10"):
        run(shards, tmp_path / "a", write_recipe(tmp_path / "r.toml"))
    assert newest(tmp_path / "a").name == "step-00000005"


def test_a_run_that_goes_on_reads_its_plans(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """They are mapped, not made again, and nothing else is done before the first batch that grows
    with the corpus."""
    recipe = write_recipe(tmp_path / "r.toml")
    events = pretrain([shards], tmp_path / "a", recipe=str(recipe), device="cpu")
    for event in events:
        if event.kind == "saved" and event.fields["step"] == 15:
            break
    events.close()
    made: list[str] = []
    for owner, name in (
        (Sampler, "plan_blocks"),
        (pretrain_job, "held_out_batches"),
        (pretrain_job, "most_frequent_token"),
    ):
        monkeypatch.setattr(owner, name, lambda *_, _name=name, **__: made.append(_name))
    steps = pretrain([shards], tmp_path / "a", recipe=str(recipe), device="cpu")
    first = next(event for event in steps if event.kind == "step")
    steps.close()
    assert first.fields["step"] == 16
    assert made == []


# Ways to set it up


def test_two_phases_under_one_schedule(shards: Path, tmp_path: Path):
    second = (
        "sequence_length = 32",
        "sequence_length = 32\n[[train.phases]]\nnum_steps=6\nbatch_size=4\nsequence_length=64",
    )
    events = run(shards, tmp_path / "a", write_recipe(tmp_path / "r.toml", SHORT, second))
    steps = [event.fields for event in events if event.kind == "step"]
    assert [step["phase"] for step in steps] == [1] * 10 + [2] * 6
    tokens = [
        b["tokens"] - a["tokens"] for a, b in zip([{"tokens": 0}, *steps], steps, strict=False)
    ]
    assert max(tokens[:10]) <= 8 * 32
    assert 4 * 32 < max(tokens[10:]) <= 4 * 64
    rates = [step["learning_rate"] for step in steps]
    assert rates == pytest.approx([0, 0.0005, *(1e-3 * (16 - n) / 14 for n in range(2, 16))])
    assert len(list((tmp_path / "a" / "plans").iterdir())) == 2


def test_long_sequences_are_examined_as_well(shards: Path, tmp_path: Path):
    longer = ("max_position_embeddings = 64", "max_position_embeddings = 160")
    second = (
        "sequence_length = 32",
        "sequence_length = 32\n[[train.phases]]\nnum_steps=2\nbatch_size=2\nsequence_length=160",
    )
    *_, done = run(shards, tmp_path / "a", write_recipe(tmp_path / "r.toml", SHORT, longer, second))
    figures = done.fields["evaluation"]
    assert {"masked_lm_loss_at_160", "masked_lm_accuracy_at_160"} < figures.keys()
    loss = figures["masked_lm_loss_at_160"]
    assert f"masked tokens at 160 tokens: loss {loss:.3f}, accuracy " in done.text
    page = (tmp_path / "a" / "report.html").read_text()
    assert "loss, masked tokens at 160 tokens" in page
    assert f"{loss:.3f}" in page


def test_positions_are_not_trained_where_they_begin_with_neighbours(shards: Path, tmp_path: Path):
    begin = ('title = "Tiny"', 'title = "Tiny"\ninitialization = "neighbours"')
    recipe = write_recipe(tmp_path / "r.toml", SHORT, begin)
    run(shards, tmp_path / "a", recipe)
    table = load_model(tmp_path / "a").state["encoder.embeddings.position.weight"]
    # Sines and cosines of one angle, times one amplitude, in every row: also in those that no
    # sequence reached.
    sines, cosines = table.chunk(2, 1)
    squares = sines**2 + cosines**2
    torch.testing.assert_close(squares, squares[0, 0].expand_as(squares))


def test_two_phases_resumed_in_the_second(shards: Path, tmp_path: Path):
    second = (
        "sequence_length = 32",
        "sequence_length = 32\n[[train.phases]]\nnum_steps=9\nbatch_size=4\nsequence_length=64",
    )
    recipe = write_recipe(tmp_path / "r.toml", SHORT, second)
    run(shards, tmp_path / "whole", recipe)
    events = pretrain([shards], tmp_path / "a", recipe=str(recipe), device="cpu")
    for event in events:
        if event.kind == "saved" and event.fields["step"] == 15:
            break
    events.close()
    run(shards, tmp_path / "a", recipe)
    assert metrics(tmp_path / "a") == metrics(tmp_path / "whole")
    assert_same_tensors(tmp_path / "a", tmp_path / "whole")


def test_accumulation_does_not_show(shards: Path, tmp_path: Path):
    parts = ("precision =", "micro_batch_tokens = 96\nprecision =")
    run(shards, tmp_path / "a", write_recipe(tmp_path / "r.toml", STILL))
    run(shards, tmp_path / "b", write_recipe(tmp_path / "b.toml", STILL, parts))
    assert losses(tmp_path / "b")[:5] == pytest.approx(losses(tmp_path / "a")[:5], rel=1e-6)
    assert losses(tmp_path / "b") == pytest.approx(losses(tmp_path / "a"), rel=1e-4)


@pytest.mark.parametrize("how", ["gone", "damaged"])
def test_a_model_whose_checkpoints_are_gone_is_not_begun_again(
    how: str, shards: Path, finished: Path, tmp_path: Path
):
    shutil.copytree(finished, tmp_path / "a")
    for path in (tmp_path / "a" / "checkpoints").glob("step-*"):
        shutil.rmtree(path) if how == "gone" else (path / "checkpoint.json").write_text("{")
    before = sha256(tmp_path / "a" / "model.safetensors")
    for _ in range(2):
        with pytest.raises(
            BertworksError, match="at step 10, but its checkpoints are missing"
        ) as error:
            run(shards, tmp_path / "a", finished.with_name("r.toml"))
    assert "--overwrite" in error.value.hint
    assert sha256(tmp_path / "a" / "model.safetensors") == before
    run(shards, tmp_path / "a", finished.with_name("r.toml"), overwrite=True)
    assert sha256(tmp_path / "a" / "model.safetensors") == before


def test_gradient_checkpointing_changes_nothing(shards: Path, finished: Path, tmp_path: Path):
    checkpointing = ("precision =", "gradient_checkpointing = true\nprecision =")
    run(shards, tmp_path / "b", write_recipe(tmp_path / "b.toml", SHORT, checkpointing))
    assert metrics(finished) == metrics(tmp_path / "b")
    assert_same_tensors(finished, tmp_path / "b")


def test_bf16_is_close_to_fp32(shards: Path, tmp_path: Path):
    run(shards, tmp_path / "a", write_recipe(tmp_path / "r.toml", SHORT, STILL))
    run(shards, tmp_path / "b", write_recipe(tmp_path / "b.toml", SHORT, STILL), precision="bf16")
    assert 'precision = "bf16"' in (tmp_path / "b" / "recipe.toml").read_text()
    assert losses(tmp_path / "b") == pytest.approx(losses(tmp_path / "a"), rel=0.02)
    assert losses(tmp_path / "b") != losses(tmp_path / "a")
    assert load_model(tmp_path / "b").state["pooler.dense.weight"].dtype == torch.float32


@pytest.mark.parametrize(
    "overrides",
    [
        ["sampling.format=full_sentences"],
        ["masking.unit=whole_word"],
        ["masking.unit=span", "masking.rate=0.4"],
        ["masking.dynamic=false", "sampling.copies=3"],
        [
            "sampling.format=full_sentences",
            "masking.unit=span",
            "train.phases.0.sequence_length=64",
        ],
    ],
)
def test_other_examples(overrides: list[str], shards: Path, tmp_path: Path):
    rate = ("learning_rate = 1e-3", "learning_rate = 1e-2")
    run(shards, tmp_path / "a", write_recipe(tmp_path / "r.toml", rate), overrides=overrides)
    figures = held_out(tmp_path / "a")
    assert figures[-1]["masked_lm_loss"] < figures[0]["masked_lm_loss"] - 0.3
    assert ("next_sentence_loss" in figures[0]) == (
        "sampling.format=full_sentences" not in overrides
    )
    parts = {name.split(".")[0] for name in load_model(tmp_path / "a").state}
    assert ("next_sentence" in parts) == ("sampling.format=full_sentences" not in overrides)


def test_a_padded_vocabulary(shards: Path, tmp_path: Path):
    run(
        shards,
        tmp_path / "a",
        write_recipe(tmp_path / "r.toml", SHORT),
        overrides=["encoder.vocab_size=320"],
    )
    assert load_model(tmp_path / "a").state["encoder.embeddings.token.weight"].shape == (320, 32)


def test_it_goes_on_from_a_model(shards: Path, whole: Path, tmp_path: Path):
    shutil.copytree(whole, tmp_path / "a")
    run(shards, tmp_path / "b", write_recipe(tmp_path / "b.toml", SHORT), init=str(tmp_path / "a"))
    assert held_out(tmp_path / "b")[0]["masked_lm_loss"] == pytest.approx(
        held_out(tmp_path / "a")[-1]["masked_lm_loss"], rel=1e-6
    )
    shutil.rmtree(tmp_path / "a")  # once begun, it needs that model no more
    assert (
        run(shards, tmp_path / "b", tmp_path / "b.toml", init=str(tmp_path / "a"))[-1].kind
        == "done"
    )


def test_it_goes_on_from_a_model_with_another_objective(
    shards: Path, finished: Path, tmp_path: Path
):
    recipe = write_recipe(tmp_path / "r.toml", SHORT)
    run(
        shards,
        tmp_path / "b",
        recipe,
        init=str(finished),
        overrides=["sampling.format=full_sentences"],
    )
    assert "next_sentence_loss" not in held_out(tmp_path / "b")[0]
    events = run(shards, tmp_path / "c", recipe, init=str(tmp_path / "b"))
    assert any(
        event.text.endswith("has no next_sentence, pooler: initialized at random")
        for event in events
    )


def test_a_model_to_begin_with_must_fit(finished: Path, tmp_path: Path):
    text = write_corpus(tmp_path / "t.jsonl", seed=5)
    longer = write_recipe(
        tmp_path / "b.toml",
        ("max_position_embeddings = 64", ""),
        ("sequence_length = 32", "sequence_length = 128"),
    )
    with pytest.raises(UsageError, match="max_position_embeddings is 64"):
        run(text, tmp_path / "b", longer, init=str(finished))
    # it gets its tokenizer
    run(text, tmp_path / "b", write_recipe(tmp_path / "r.toml", SHORT), init=str(finished))
    assert load_model(tmp_path / "b").tokenizer.sha256 == load_model(finished).tokenizer.sha256


# Several processes


def torchrun(arguments: dict[str, Any], **options: Any) -> subprocess.Popen[str]:
    words = [
        "--standalone",
        "--nproc-per-node",
        "2",
        str(SUPPORT / "two_pretrainings.py"),
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "default"}
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *words, json.dumps(arguments)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def finish(process: subprocess.Popen[str]) -> str:
    said, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return said


@pytest.mark.slow
def test_two_processes_get_the_numbers_of_one(tmp_path: Path):
    """From raw text, while the first prepares for longer than the second needs to be there."""
    text = write_corpus(tmp_path / "t.jsonl")
    recipe = write_recipe(tmp_path / "r.toml", STILL)
    run(text, tmp_path / "one", recipe)
    arguments = {
        "inputs": [str(text)],
        "output": str(tmp_path / "two"),
        "recipe": str(recipe),
        "workers": 1,
    }
    said = finish(torchrun({"arguments": arguments, "late": 2}))
    assert losses(tmp_path / "two")[:5] == pytest.approx(losses(tmp_path / "one")[:5], rel=1e-5)
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-3)
    assert [m.get("tokens") for m in metrics(tmp_path / "two")] == [
        m.get("tokens") for m in metrics(tmp_path / "one")
    ]
    assert said.count("done of rank") == 2
    assert not leftovers(tmp_path / "two")


@pytest.mark.slow
@pytest.mark.parametrize("slow", [0, 13])
def test_two_processes_leave_and_come_back(slow: int, tmp_path: Path):
    recipe = write_recipe(tmp_path / "r.toml", ("num_steps = 40", "num_steps = 200"))
    text = write_corpus(tmp_path / "t.jsonl")
    arguments = {"inputs": [str(text)], "recipe": str(recipe), "workers": 1}
    whole = {"arguments": arguments | {"output": str(tmp_path / "whole")}}
    finish(torchrun(whole))
    mine = {"arguments": arguments | {"output": str(tmp_path / "a")}}
    process = torchrun(mine | {"slow": slow})
    while len(losses(tmp_path / "a") if (tmp_path / "a" / "metrics.jsonl").exists() else []) < 12:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    left = int(newest(tmp_path / "a").name.removeprefix("step-"))
    assert left == 12 if slow else left >= 12
    finish(torchrun(mine))
    assert metrics(tmp_path / "a") == metrics(tmp_path / "whole")
    assert_same_tensors(tmp_path / "a", tmp_path / "whole")


@pytest.mark.slow
def test_what_the_first_process_refuses_ends_the_second(tmp_path: Path):
    recipe = write_recipe(tmp_path / "r.toml")
    (tmp_path / "t.txt").write_text("One sentence.\n")
    arguments = {
        "inputs": [str(tmp_path / "t.txt")],
        "output": str(tmp_path / "a"),
        "recipe": str(recipe),
    }
    process = torchrun({"arguments": arguments})
    _, errors = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "too little text" in errors


# Time


def test_steps_of_a_phase_cost_what_their_tokens_cost(tmp_path: Path):
    """By which the time that is left is told."""
    recipe = load_recipe(str(write_recipe(tmp_path / "r.toml")), [])
    short = replace(recipe.train.phases[0], num_steps=7, sequence_length=16)
    long = replace(short, num_steps=3, sequence_length=4 * short.sequence_length)
    work = PretrainJob.__new__(PretrainJob)  # no corpus is asked for that
    work.recipe = replace(recipe, train=replace(recipe.train, phases=(short, long)))
    tokens = [short.batch_size * short.sequence_length] * 7 + [
        long.batch_size * long.sequence_length
    ] * 3
    costs = [work.flops_per_token(step) * count for step, count in enumerate(tokens, 1)]
    assert [work.cost(steps) for steps in range(11)] == pytest.approx([0, *accumulate(costs)])
    assert work.cost(10) - work.cost(7) > 1.7 * work.cost(7)


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which a step of the first phase takes 0.1 s, of the second 0.2 s, of the third
    0.4 s."""

    def measure(recipe: Recipe, *_: object) -> Measurement:
        return Measurement([0.1, 0.2, 0.4][: len(recipe.train.phases)], 1 << 30)

    monkeypatch.setattr("bertworks.runs.pretrain.measure_steps", measure)
    monkeypatch.setattr("bertworks.runs.pretrain.measure_matmul", lambda *_: 1e9)
    monkeypatch.setattr("bertworks.runs.pretrain.best_precision", lambda *_: "fp32")


def test_a_budget_becomes_a_plan_that_stays(fast: None, shards: Path, tmp_path: Path):
    small = [
        "encoder.hidden_size=32",
        "encoder.num_attention_heads=2",
        "train.phases.0.batch_size=2",
    ]
    small += [
        "train.phases.1.batch_size=1",
        "train.phases.2.batch_size=1",
        "train.held_out_sequences=4",
    ]
    events = pretrain([shards], tmp_path / "a", budget="20s", overrides=small, device="cpu")
    plan = next(event for event in events if event.kind == "plan").fields["recipe"]
    phases = plan["train"]["phases"]
    assert (
        15
        < sum(
            phase["num_steps"] * cost for phase, cost in zip(phases, [0.1, 0.2, 0.4], strict=True)
        )
        < 20
    )
    kept = (tmp_path / "a" / "recipe.toml").read_text()
    events.close()
    again = pretrain([shards], tmp_path / "a", budget="20s", overrides=small, device="cpu")
    assert next(event for event in again).kind != "plan"
    again.close()
    assert (tmp_path / "a" / "recipe.toml").read_text() == kept
    with pytest.raises(UsageError, match="budget: '20s' there, '30s' now"):
        list(pretrain([shards], tmp_path / "a", budget="30s", overrides=small, device="cpu"))


def test_a_budget_with_a_recipe_changes_only_the_steps(fast: None, shards: Path, tmp_path: Path):
    recipe = write_recipe(
        tmp_path / "r.toml",
        (
            "sequence_length = 32",
            "sequence_length = 32\n[[train.phases]]\nnum_steps=40\nbatch_size=2\n"
            "sequence_length=64",
        ),
    )
    events = pretrain([shards], tmp_path / "a", recipe=str(recipe), budget="100s", device="cpu")
    plan = next(event for event in events if event.kind == "plan").fields["recipe"]
    events.close()
    steps = [phase.pop("num_steps") for phase in plan["train"]["phases"]]
    assert steps[0] == pytest.approx(steps[1], abs=1)  # as in the recipe
    assert plan["encoder"]["hidden_size"] == 32
    assert plan["train"]["evaluate_every"] == 10
    assert [phase["batch_size"] for phase in plan["train"]["phases"]] == [8, 2]


def test_precision_by_an_override(fast: None, shards: Path, tmp_path: Path):
    events = pretrain(
        [shards], tmp_path / "a", budget="20s", overrides=["train.precision=bf16"], device="cpu"
    )
    plan = next(event for event in events if event.kind == "plan").fields["recipe"]
    events.close()
    assert plan["train"]["precision"] == "bf16"


def planned_steps(events: Iterator[Event]) -> tuple[list[str], int]:
    """Return the notes before the plan, and the steps of the plan."""
    notes = []
    for event in events:
        if event.kind == "plan":
            events.close()  # type: ignore[attr-defined]
            phases = event.fields["recipe"]["train"]["phases"]
            return notes, sum(phase["num_steps"] for phase in phases)
        notes.append(event.text)
    raise AssertionError("there was no plan")


SMALL = ["encoder.hidden_size=32", "encoder.num_attention_heads=2", "train.held_out_sequences=4"]


def test_too_small_a_budget_has_a_few_steps(
    fast: None, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    slow = Measurement([20.0, 40.0, 80.0], 1 << 30)
    monkeypatch.setattr("bertworks.runs.pretrain.measure_steps", lambda *_: slow)
    events = pretrain([shards], tmp_path / "a", budget="20s", overrides=SMALL, device="cpu")
    notes, steps = planned_steps(events)
    assert steps >= 10
    assert any("the budget of 20s is short: the" in note for note in notes)


def test_a_training_with_too_small_a_budget_comes_to_its_end(
    fast: None, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    recipe = write_recipe(tmp_path / "r.toml")
    slow = Measurement([50.0], 1 << 30)
    monkeypatch.setattr("bertworks.runs.pretrain.measure_steps", lambda *_: slow)
    events = pretrain([shards], tmp_path / "a", recipe=str(recipe), budget="1m", device="cpu")
    *_, done = events
    assert done.kind == "done"
    assert done.fields["step"] == 10


@pytest.mark.parametrize(("budget", "counts"), [("100s", False), ("6m", True)])
def test_only_a_longer_budget_counts_vocabulary_and_shards(
    budget: str, counts: bool, fast: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    clock = [0.0]

    def slow(*args: Any, **settings: Any) -> Any:
        clock[0] += 400
        return make_shards(*args, **settings)

    monkeypatch.setattr("bertworks.runs.pretrain.make_shards", slow)
    monkeypatch.setattr(
        "bertworks.runs.pretrain.time", SimpleNamespace(perf_counter=lambda: clock[0])
    )
    text = [write_corpus(tmp_path / "t.jsonl")]
    overrides = [*SMALL, "vocabulary.size=300"]
    events = pretrain(text, tmp_path / "a", budget=budget, overrides=overrides, device="cpu")
    notes, steps = planned_steps(events)
    if counts:
        assert not any(" in all: " in note for note in notes)
        assert any("the budget of 6m is short" in note for note in notes)
        assert 10 <= steps < 50
    else:
        assert notes[0].startswith("about ")
        assert notes[0].endswith("for the vocabulary and the shards, then 100s of training")
        assert steps > 500
    rates = [note for note in notes if "per word" in note]
    assert len(rates) == 1
    assert rates[0].count("per word") == 1


def test_what_cannot_be_followed_is_not_advised(shards: Path, tmp_path: Path):
    text = [write_corpus(tmp_path / "t.jsonl")]
    recipe = str(write_recipe(tmp_path / "r.toml"))
    advice = "tokens are few for a vocabulary of"
    run(shards, tmp_path / "a", Path(recipe))

    def notes(output: str, **options: Any) -> str:
        events = pretrain(
            text, tmp_path / output, recipe=recipe, device="cpu", workers=1, **options
        )
        return "\n".join(planned_steps(events)[0])

    assert advice in notes("b")
    assert advice not in notes("c", init=str(tmp_path / "a"))


def test_a_model_without_an_output_layer_is_named_at_the_start(shards: Path, tmp_path: Path):
    run(shards, tmp_path / "a", recipe := write_recipe(tmp_path / "r.toml"))
    headless = tmp_path / "headless"
    config, state, tokenizer = load_model(tmp_path / "a")
    state = {name: x for name, x in state.items() if not name.startswith("lm_head")}
    save_model(headless, state, config, tokenizer, card="without an output layer")
    options = {"recipe": str(recipe), "device": "cpu"}
    events = pretrain([shards], tmp_path / "b", init=str(headless), **options)
    first = next(events)
    events.close()
    assert first.text.startswith(
        f"warning: {headless} has no output layer for masked tokens: the training begins with a "
        "random one"
    )
    assert "bert-base-uncased" in first.text
    events = pretrain([shards], tmp_path / "c", init=str(tmp_path / "a"), **options)
    assert "no output layer" not in next(events).text
    events.close()


def test_an_estimate_writes_nothing(shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    recipe = write_recipe(tmp_path / "r.toml")
    before = sorted(tmp_path.rglob("*"))
    text = write_corpus(shards.parent / "more.jsonl", 30)
    figures = estimate([text], recipe=str(recipe), device="cpu")
    assert sorted(tmp_path.rglob("*")) == before
    assert figures.steps == 40
    assert figures.tokens == 40 * 8 * 32
    assert figures.parameters == sum(
        p.numel() for p in PretrainingModel(_encoder(recipe)).parameters()
    )
    assert figures.seconds == pytest.approx(figures.tokens / figures.tokens_per_second)
    for word in ("parameters", "memory", "steps", "tokens", "time", "disk"):
        assert word in str(figures)
    assert json.loads(json.dumps(figures.as_dict()))["steps"] == 40


def test_the_estimate_of_roberta_has_no_generator(shards: Path):
    small = ["encoder.num_hidden_layers=1", "encoder.hidden_size=48", "vocabulary.size=1000"]
    text = write_corpus(shards.parent / "more.jsonl", 30)
    figures = estimate([text], recipe="roberta-base", overrides=small, device="cpu")
    encoder = replace(load_recipe("roberta-base", small).encoder, vocab_size=1000)
    # the two unused rows of the position table are in its files, and are not trained
    assert figures.trained == figures.parameters == encoder.num_parameters("lm_head") + 2 * 48
    assert f"parameters   {figures.parameters:,}\n" in str(figures)


def _encoder(recipe: Path) -> Any:
    return replace(load_recipe(str(recipe)).encoder, vocab_size=300)


def test_an_estimate_of_disk_is_not_exceeded(shards: Path, tmp_path: Path):
    recipe = write_recipe(tmp_path / "r.toml", ("hidden_size = 32", "hidden_size = 128"))
    figures = estimate([shards], recipe=str(recipe), device="cpu")
    run(shards, tmp_path / "a", recipe)
    used = sum(p.stat().st_size for p in (tmp_path / "a").rglob("*") if p.is_file())
    assert 0.5 * figures.disk < used < 1.1 * figures.disk + 100_000


@pytest.mark.slow
def test_a_short_budget_is_planned_for_and_little_goes_elsewhere(
    data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """How fast the machine will be after it was measured, nobody knows: that is left out."""
    costs: list[float] = []

    def noted(*arguments: Any) -> Measurement:
        found = measure_steps(*arguments)
        costs.extend(found.step_seconds)
        return found

    monkeypatch.setattr("bertworks.runs.pretrain.measure_steps", noted)
    begin, at_plan, prepared, phases = time.perf_counter(), 0.0, 0.0, []
    for event in pretrain(
        [data_folder / "text" / "en-wikipedia-8m.jsonl.gz"], tmp_path / "a", budget="120s"
    ):
        if "sentences" in event.fields and event.kind == "note":
            prepared = time.perf_counter() - begin
        if event.kind == "plan":
            at_plan, phases = time.perf_counter() - begin, event.fields["recipe"]["train"]["phases"]
    took = time.perf_counter() - begin
    planned = sum(phase["num_steps"] * cost for phase, cost in zip(phases, costs, strict=True))
    lines = (tmp_path / "a" / "metrics.jsonl").read_text().splitlines()
    trained = [line["seconds"] for line in map(json.loads, lines) if "seconds" in line][-1]
    print(
        f"{took:.1f} s of 120: {at_plan:.1f} before training, {planned:.1f} planned for it, "
        f"{trained:.1f} of it"
    )
    measuring = at_plan - prepared
    assert 0.9 * (0.94 * 120 - measuring) < planned < 0.94 * 120 - measuring + 2
    assert took - at_plan - trained < 0.15 * took


def test_roberta_from_text_is_that_of_transformers(tmp_path: Path):
    sizes = [
        "encoder.hidden_size=32",
        "encoder.num_hidden_layers=2",
        "encoder.num_attention_heads=2",
    ]
    phase = [
        f"train.phases.0.{name}" for name in ("num_steps=6", "batch_size=8", "sequence_length=32")
    ]
    text, out = write_corpus(tmp_path / "text.jsonl"), tmp_path / "out"
    overrides = [*sizes, *phase, "encoder.max_position_embeddings=64", "vocabulary.size=400"]
    list(pretrain(text, out, recipe="roberta-small", overrides=overrides, workers=1, device="cpu"))
    theirs, found = transformers.AutoModelForMaskedLM.from_pretrained(out, output_loading_info=True)
    assert type(theirs) is transformers.RobertaForMaskedLM
    assert not any(found.values())
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    inputs = tokenizer("the<mask> of a king", return_tensors="pt", return_token_type_ids=False)
    with torch.no_grad():
        best = (
            theirs(**inputs)
            .logits[0][inputs["input_ids"][0] == tokenizer.mask_token_id]
            .softmax(-1)[0]
            .topk(5)
        )
    ((fillings,),) = load(out, device="cpu").fill(["the<mask> of a king"])
    assert [filling["score"] for filling in fillings] == pytest.approx(
        best.values.tolist(), abs=1e-5
    )


@pytest.mark.parametrize(("name", "kind"), [("gpt2", "GPT2"), ("gpt", "OpenAIGPT")])
def test_gpt_from_text_is_that_of_transformers(name: str, kind: str, tmp_path: Path):
    sizes = [
        "encoder.hidden_size=32",
        "encoder.num_hidden_layers=2",
        "encoder.num_attention_heads=2",
    ]
    phase = [
        f"train.phases.0.{size}" for size in ("num_steps=6", "batch_size=8", "sequence_length=32")
    ]
    text, out = write_corpus(tmp_path / "text.jsonl"), tmp_path / "out"
    overrides = [
        *sizes,
        *phase,
        "vocabulary.size=400",
        "train.held_out_sequences=16",
        "train.precision=fp32",
    ]
    events = list(pretrain(text, out, recipe=name, overrides=overrides, workers=1, device="cpu"))
    assert events[-1].text.endswith(f'next: bertworks generate {out} "This is the"')
    theirs, found = transformers.AutoModelForCausalLM.from_pretrained(out, output_loading_info=True)
    assert type(theirs) is getattr(transformers, f"{kind}LMHeadModel")
    assert not any(found.values())
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    assert tokenizer.decode([399]) == "<|endoftext|>"
    text = "The king’s é day."
    assert tokenizer(text)["input_ids"] == load(out).tokenizer.ids([text])[0]
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    job = PretrainJob(load_recipe(str(out / "recipe.toml")), Shards.open(out / "shards"))
    batches = held_out_of(job)
    assert events[-1].fields["evaluation"]["causal_lm_loss"] == pytest.approx(
        causal_loss(theirs, batches), abs=2e-5
    )
    assert sum(399 in batch.input_ids for batch in batches) > 0


def test_residual_matrices_start_smaller():
    c = EncoderConfig(
        vocab_size=50,
        hidden_size=64,
        num_hidden_layers=8,
        num_attention_heads=2,
        num_hidden_groups=4,
    )
    torch.manual_seed(0)
    encoder, before = Encoder(c), {}
    before = {name: p.clone() for name, p in encoder.named_parameters()}
    scale_residual(encoder)
    for name, p in encoder.named_parameters():
        factor = 4 if name.endswith(("attention.output.weight", "feed_forward.down.weight")) else 1
        torch.testing.assert_close(p * factor, before[name])


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("bert-base", 110_106_428),
        ("bert-large", 336_226_108),
        ("electra-small", 13_549_057),
        ("gpt2", 124_439_808),
    ],
)
def test_an_estimate_without_a_measurement(
    name: str,
    parameters: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`--estimate` computes no step: of bert-base that took a minute, to print a number of
    parameters."""
    text = write_corpus(tmp_path / "text.jsonl")
    monkeypatch.setattr("bertworks.runs.pretrain.measure_steps", None)
    for words in (["--estimate"], ["--estimate=sizes"], ["--estimate", "sizes"]):
        assert (
            main(["pretrain", str(text), "--recipe", name, "--device", "cpu", *words, "--json"])
            == 0
        )
        figures = json.loads(capsys.readouterr().out)
        recipe = load_recipe(name)
        assert figures["steps"] == recipe.train.num_steps
        assert figures["tokens"] == recipe.train.num_tokens
        assert figures["parameters"] == parameters
        assert [figures[key] for key in ("memory", "seconds", "tokens_per_second")] == [None] * 3
    assert main(["pretrain", str(text), "--estimate", "--recipe", name, "--device", "cpu"]) == 0
    shown = capsys.readouterr().out
    assert f"steps        {recipe.train.num_steps:,}" in shown
    assert "--estimate speed computes a few steps" in shown


def test_an_estimate_for_a_budget_without_a_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = write_corpus(tmp_path / "text.jsonl")
    with monkeypatch.context() as patch:
        patch.setattr("bertworks.runs.pretrain.measure_steps", None)
        assert main(["pretrain", str(text), "--budget", "1m", "--device", "cpu", "--estimate"]) == 0
    assert "steps        as many as the budget allows" in capsys.readouterr().out
    recipe = write_recipe(tmp_path / "recipe.toml")
    words = ["pretrain", str(text), "--recipe", str(recipe), "--device", "cpu", "--json"]
    for measured in (["--estimate", "speed"], ["--estimate=speed"]):
        assert main([*words, *measured]) == 0
        figures = json.loads(capsys.readouterr().out)
        assert min(figures["seconds"], figures["tokens_per_second"], figures["memory"]) > 0


@pytest.mark.parametrize(
    ("options", "recipe", "message"),
    [
        ({"recipe": "bert-smal"}, None, "did you mean bert-small"),
        ({"recipe": "missing.toml"}, None, "there is no recipe file"),
        ({"budget": "5 o'clock"}, None, "is not a budget"),
        ({"budget": "1.2.3m"}, None, "is not a budget"),
        ({"overrides": ["train.precison=fp32"]}, None, "did you mean train.precision"),
        ({"overrides": ["encoder.hidden_sise=64"]}, None, "did you mean encoder.hidden_size"),
        (
            {"overrides": ["train.phases.0.num_step=1"]},
            None,
            r"did you mean train.phases\[0\].num_steps",
        ),
        ({"overrides": ["train.phases.7.num_steps=1"]}, None, "there is no '7'"),
        ({"overrides": ["title.x=1"]}, None, "title.x: there is no 'x'"),
        ({"overrides": ["seed"]}, None, "sets nothing"),
        ({"seed": -1}, None, "seed is -1"),
        ({"precision": "int8"}, None, "train.precision: 'int8' is none of 'auto', 'fp32', 'bf16'"),
        ({"tokenizer": "nowhere"}, None, "nowhere"),
        ({"init": "nowhere"}, None, "no such model folder"),
        ({"init": "a", "tokenizer": "b"}, None, "takes the tokenizer of the model"),
        ({}, ("hidden_size = 32", "hidden_size = 33"), "does not divide"),
        ({}, ("hidden_size = 32", "hidden_size = 100_000"), "hidden_size is 100000"),
        (
            {},
            ("hidden_size = 32", "hidden_size = 65536\nnum_hidden_layerss = 1"),
            "did you mean encoder.num_hidden_layers",
        ),
        (
            {"overrides": ["encoder.hidden_size=32768", "encoder.num_hidden_layers=1000"]},
            None,
            "GB of memory",
        ),
        ({"overrides": ["encoder.vocab_size=100"]}, None, "but the vocabulary has"),
        ({}, ("sequence_length = 32", "sequence_length = 65"), "max_position_embeddings is 64"),
        ({}, ("batch_size = 8", "batch_size = 0"), "expected 1 to 1,048,576"),
    ],
)
def test_a_wrong_request_touches_nothing(
    options: dict[str, Any],
    recipe: tuple[str, str] | None,
    message: str,
    shards: Path,
    tmp_path: Path,
):
    file = write_recipe(tmp_path / "r.toml", *([recipe] if recipe else []))
    requested = {"recipe": None if "budget" in options else str(file)} | options
    with pytest.raises(BertworksError, match=message):
        list(pretrain([shards], tmp_path / "a", device="cpu", **requested))
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("inputs", "options", "what", "hint"),
    [
        ([], {}, "no input was given", "name files, folders, a glob in quotes, or - for"),
        (
            ["a.txt"],
            {"tokenizer": "t", "init": "m"},
            "--init takes the tokenizer of the model",
            "give --tokenizer or --init, not both",
        ),
        (
            ["a.txt"],
            {"extend_vocabulary": 0, "init": "m"},
            "--extend-vocabulary 0 adds words to the vocabulary of a model",
            "give a model and a number: --init MODEL --extend-vocabulary 1000",
        ),
        (
            ["a.txt"],
            {"languages": ["en", "de"]},
            "1 inputs and the languages en, de: expected a name for each input",
            "give --language once per input, such as en, in their order",
        ),
        (
            ["-"],
            {"languages": ["en"]},
            "languages are for files and folders of text",
            "write the text into a file",
        ),
    ],
)
def test_requests_that_contradict_themselves(
    inputs: list[str], options: dict[str, Any], what: str, hint: str
) -> None:
    with refusal(what, hint):
        make_request(inputs, **options)
