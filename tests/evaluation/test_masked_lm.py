"""Masked-word figures: as computed with transformers on the same examples, and for texts and models
at every edge.

They have the same bits, however their batches are divided.
"""

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import bertworks as bw
from bertworks.errors import BertworksError, UsageError
from bertworks.evaluation.masked_lm import evaluate_mlm
from bertworks.runs.pretrain_job import held_out_batches, split_long_documents
from bertworks.runs.run_folder import BITS
from bertworks.text.corpus import CorpusReader
from bertworks.text.shards import write_shards
from bertworks.text.tokenizer import Tokenizer
from tests.support.tiny import documents, write_corpus, write_pretrained


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return write_pretrained(folder, ("learning_rate = 1e-3", "learning_rate = 1e-2"))


@pytest.fixture(scope="module")
def without_pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return write_pretrained(
        folder,
        ("num_steps = 40", "num_steps = 3"),
        overrides=["sampling.format=full_sentences"],
    )


def test_the_same_figures_as_transformers(model: Path, tmp_path: Path):
    text = write_corpus(tmp_path / "t.jsonl", 50, seed=3)
    ours = evaluate_mlm(model, [text], sequence_length=48, device="cpu")
    theirs = transformers.AutoModelForPreTraining.from_pretrained(model).eval()
    store = split_long_documents(
        write_shards(CorpusReader([text]), Tokenizer.load(model), tmp_path / "shards", workers=1)
    )
    batches = held_out_batches(
        store,
        np.arange(len(store.documents) - 1),
        Tokenizer.load(model),
        format="next_sentence",
        sequence_length=48,
        sequences=10**6,
    )
    losses, right, pairs = [], [], []
    for batch in batches:
        edges = batch.layout.cu_seqlens.tolist()
        for number, (begin, end) in enumerate(pairwise(edges)):
            with torch.no_grad():
                out = theirs(
                    input_ids=batch.input_ids[None, begin:end],
                    token_type_ids=batch.token_type_ids[None, begin:end],
                )
            mine = (batch.targets["masked_lm"].positions >= begin) & (
                batch.targets["masked_lm"].positions < end
            )
            scores = out.prediction_logits[0, batch.targets["masked_lm"].positions[mine] - begin]
            labels = batch.targets["masked_lm"].labels[mine]
            losses += torch.nn.functional.cross_entropy(scores, labels, reduction="none").tolist()
            right += (scores.argmax(-1) == labels).tolist()
            pairs.append(
                bool(
                    out.seq_relationship_logits[0].argmax()
                    == batch.targets["next_sentence"].labels[number]
                )
            )
    assert ours["masked_lm_loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    assert ours["masked_lm_accuracy"] == pytest.approx(np.mean(right))
    assert ours["masked_lm_perplexity"] == pytest.approx(math.exp(np.mean(losses)), rel=1e-4)
    assert ours["next_sentence_accuracy"] == pytest.approx(np.mean(pairs))
    assert ours["masked_tokens"] == len(losses)
    assert ours["sequences"] == len(pairs)


def test_the_same_text_gives_the_same_figures(model: Path, tmp_path: Path):
    text = write_corpus(tmp_path / "t.jsonl", 10)
    assert evaluate_mlm(model, [text], device="cpu") == evaluate_mlm(model, [text], device="cpu")


def test_at_most_so_many_sequences(model: Path, tmp_path: Path):
    text = write_corpus(tmp_path / "t.jsonl", 20)
    assert evaluate_mlm(model, [text], sequences=7, device="cpu")["sequences"] == 7


def test_a_model_that_reads_less_than_the_default(model: Path, tmp_path: Path):
    """It has 64 positions, and nobody should have to know."""
    text = write_corpus(tmp_path / "t.jsonl", 10)
    assert evaluate_mlm(model, [text], device="cpu") == evaluate_mlm(
        model, [text], sequence_length=64, device="cpu"
    )


@pytest.mark.parametrize("length", [-1, 4, 65])
def test_lengths_that_cannot_be(length: int, model: Path, tmp_path: Path):
    with pytest.raises(
        UsageError, match=f"sequence length of {length}: the model reads from 5 to 64"
    ):
        evaluate_mlm(
            model, [write_corpus(tmp_path / "t.jsonl", 3)], sequence_length=length, device="cpu"
        )


def test_a_model_without_pairs(without_pairs: Path, tmp_path: Path):
    figures = evaluate_mlm(without_pairs, [write_corpus(tmp_path / "t.jsonl", 10)], device="cpu")
    assert "next_sentence_accuracy" not in figures
    assert 0 < figures["masked_lm_loss"] < 10


@pytest.mark.parametrize(
    "text", ["One.", "One sentence only, and nothing else.", " ".join(documents(1))]
)
def test_little_text(text: str, model: Path, tmp_path: Path):
    (tmp_path / "t.txt").write_text(text)
    figures = evaluate_mlm(model, [tmp_path / "t.txt"], device="cpu")
    assert figures["masked_tokens"] >= 1
    assert all(math.isfinite(value) for value in figures.values())


@pytest.mark.parametrize(
    "text",
    [
        "日本語の文です。これは二つ目の文です。",
        "한국어 문장입니다. 두 번째 문장입니다.",
        "🦊🐻‍❄️ 🎉\n\n😀 😀",
        "a\x00\u0301 \u200b",
    ],
)
def test_any_script(text: str, model: Path, tmp_path: Path):
    (tmp_path / "t.txt").write_text(text + "\n")
    assert math.isfinite(evaluate_mlm(model, [tmp_path / "t.txt"], device="cpu")["masked_lm_loss"])


def test_no_text_and_no_model(model: Path, tmp_path: Path):
    (tmp_path / "t.txt").write_text("")
    with pytest.raises(BertworksError, match="no text"):
        evaluate_mlm(model, [tmp_path / "t.txt"], device="cpu")
    with pytest.raises(BertworksError, match="no such model folder"):
        evaluate_mlm(tmp_path / "nowhere", [tmp_path / "t.txt"], device="cpu")
    with pytest.raises(BertworksError, match=r"missing\.txt"):
        evaluate_mlm(model, [tmp_path / "missing.txt"], device="cpu")


def test_bf16_is_close(model: Path, tmp_path: Path):
    text = write_corpus(tmp_path / "t.jsonl", 20)
    fp32 = evaluate_mlm(model, [text], device="cpu")
    bf16 = evaluate_mlm(model, [text], device="cpu", precision="bf16")
    assert bf16["masked_lm_loss"] == pytest.approx(fp32["masked_lm_loss"], rel=0.01)


def test_figures_do_not_depend_on_portions(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = tmp_path / "a.jsonl"
    write_corpus(text, 40)
    results = []
    for size in (16, 1):
        monkeypatch.setattr("bertworks.evaluation.masked_lm._BATCHES", size)
        results.append(bw.evaluate_mlm(model, [text], device="cpu", on_note=lambda _: None))
    assert results[0] is not None
    assert results[0] == results[1]
    assert results[0]["sequences"] > 1
    assert results[0]["masked_tokens"] > 10
    assert results[0][BITS] > 0
