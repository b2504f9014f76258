"""A translator that learns to copy: its BLEU while it is trained, and after an interruption."""

import re
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sacrebleu
import torch

from bertworks.events import Event
from bertworks.inference.translation import Translator
from bertworks.runs import held_out_translations
from bertworks.runs.held_out_translations import HeldOutPairs
from bertworks.runs.pretrain_job import PretrainJob, Text
from bertworks.text.shards import Shards
from bertworks.training.recipe import load_recipe
from tests.support.copying import train_copier, write_copies
from tests.support.tiny import assert_same_run, metrics

LEARNS = [
    "encoder.hidden_dropout=0",
    "encoder.attention_dropout=0",
    "train.evaluate_every=30",
    "train.phases=[{num_steps=150, batch_size=32, sequence_length=64}]",
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return write_copies(tmp_path_factory.mktemp("pairs"))


def evaluations(folder: Path) -> list[dict[str, Any]]:
    return [line["evaluation"] for line in metrics(folder) if "evaluation" in line]


@pytest.fixture(scope="module")
def copier(files: list[str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Event]]:
    """A network that has learned to copy, and the events of its training."""
    folder = tmp_path_factory.mktemp("copier") / "a"
    return folder, list(train_copier(folder, files, LEARNS))


@pytest.fixture(scope="module")
def whole(files: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run that nothing interrupts."""
    folder = tmp_path_factory.mktemp("whole") / "a"
    assert list(train_copier(folder, files))
    return folder


def job_of(folder: Path) -> PretrainJob:
    """The job of a run in its folder."""
    shards = Shards.open(folder / "shards")
    texts = [Text((), shards, is_parallel=True)]
    return PretrainJob(load_recipe(str(folder / "recipe.toml")), shards, texts=texts)


def test_bleu_rises_while_a_network_learns_to_copy(copier: tuple[Path, list[Event]]) -> None:
    before, first, *_, last = evaluations(copier[0])
    assert "translation_bleu" not in before
    assert first["translation_bleu"] < 20
    assert last["translation_bleu"] > 60


def test_bleu_is_on_the_console_the_page_and_the_card(copier: tuple[Path, list[Event]]) -> None:
    folder, events = copier
    texts = [event.text for event in events if event.kind == "evaluation"]
    value = evaluations(folder)[-1]["translation_bleu"]
    assert "BLEU" not in texts[0]
    assert texts[-1].endswith(f"BLEU {value:.1f}")
    assert any(event.text.startswith("the mean of the last 2 evaluated") for event in events)
    page = (folder / "report.html").read_text()
    assert "Translated tokens: BLEU" in page
    assert "BLEU, translated tokens" in page
    card = (folder / "README.md").read_text()
    shown = re.search(r"\| translation_bleu \| (\S+) \|", card)
    assert shown
    assert float(shown[1]) == pytest.approx(value, abs=1e-4)


def test_bleu_is_that_of_greedy_translations_by_the_saved_model(
    copier: tuple[Path, list[Event]],
) -> None:
    folder, _ = copier
    best = min(evaluations(folder), key=lambda figures: figures["translation_loss"])
    pairs = job_of(folder)._held_out_pairs
    translator = Translator(folder, "cpu")
    texts = [translator.tokenizer.decode(ids).strip() for ids in pairs.sources]
    assert texts == pairs.references
    answers = list(translator(texts, translator.rules(beam=1)))
    translations = [answer["translation"] for answer in answers]
    expected = sacrebleu.corpus_bleu(translations, [pairs.references], force=True).score
    assert best["translation_bleu"] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    "step", [10, *(pytest.param(step, marks=pytest.mark.slow) for step in (3, 18))]
)
def test_an_interrupted_run_has_the_same_bits(
    step: int, files: list[str], whole: Path, tmp_path: Path
) -> None:
    events = train_copier(tmp_path / "a", files)
    for event in events:
        if event.kind == "step" and event.fields["step"] == step:
            break
    events.close()
    assert list(train_copier(tmp_path / "a", files))
    assert_same_run(tmp_path / "a", whole)


@pytest.mark.parametrize("evaluation", [pytest.param(3, marks=pytest.mark.slow), 5])
def test_an_interrupted_evaluation_counts_once_in_the_mean(
    evaluation: int, files: list[str], whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third is that of step 15, the fifth that of the mean itself."""
    evaluate = PretrainJob.evaluate_trained
    calls = 0

    def interrupted(self: PretrainJob, network: Any) -> dict[str, float]:
        nonlocal calls
        calls += 1
        if calls == evaluation:
            signal.raise_signal(signal.SIGINT)
        return evaluate(self, network)

    with monkeypatch.context() as patch:
        patch.setattr(PretrainJob, "evaluate_trained", interrupted)
        with pytest.raises(KeyboardInterrupt):
            list(train_copier(tmp_path / "a", files))
    assert list(train_copier(tmp_path / "a", files))
    assert_same_run(tmp_path / "a", whole)


def test_the_pairs_are_few_of_all_lengths(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_of(whole)
    batches = job._held_out_batches[""]
    every = HeldOutPairs(batches, job.tokenizer).sources
    assert 12 < len(every) <= 200
    monkeypatch.setattr(held_out_translations, "MOST_PAIRS", 6)
    pairs = HeldOutPairs(batches, job.tokenizer)
    assert len(pairs.sources) == len(pairs.references) == 6
    assert pairs.sources[0] == every[0]
    assert {*map(tuple, pairs.sources)} <= {*map(tuple, every)}
    assert len({*map(len, pairs.sources)}) > 1


def test_pairs_are_evaluated_by_the_number_of_their_tokens(whole: Path) -> None:
    """Not as if each was as long as the longest that a sequence may hold."""
    train = load_recipe(str(whole / "recipe.toml")).train
    job = job_of(whole)
    batches = job._held_out_batches[""]
    tokens = sum(len(batch.input_ids) for batch in batches)
    assert tokens < train.held_out_sequences * train.held_out_length
    assert sum(len(batch.layout.cu_seqlens) - 1 for batch in batches) == len(job.held_out)
    job.recipe = replace(job.recipe, train=replace(train, held_out_sequences=1))
    lengths = np.diff(job.store.sentences[job.store.documents])[job.held_out]
    num_sequences = sum(len(batch.layout.cu_seqlens) - 1 for batch in job._held_out_of(0, 64))
    assert num_sequences == int(train.held_out_length / lengths.mean()) > 1


def test_a_network_in_training_translates_without_dropout(whole: Path) -> None:
    job = job_of(whole)
    network, _ = job.initial_network()
    assert job.recipe.encoder.hidden_dropout > 0
    figures = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        network.train()
        figures.append(job.evaluate_trained(network))
        assert network.training
    assert figures[0] == figures[1]


def test_without_sacrebleu_a_note_says_what_to_install(
    files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    events = list(train_copier(tmp_path / "a", files))
    notes = [event.text for event in events if "BLEU" in event.text]
    assert notes == [
        'evaluations are without BLEU, which needs sacrebleu: pip install "bertworks[translation]"'
    ]
    assert all("translation_bleu" not in figures for figures in evaluations(tmp_path / "a"))
