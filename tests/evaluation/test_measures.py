"""Measures of trained models."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertworks.checkpoints.model_folder import load_model
from bertworks.errors import BertworksError, UsageError
from bertworks.evaluation.measures import Arm, Measured, measure_held_out
from bertworks.events import Event
from bertworks.metrics.intervals import SAMPLES
from bertworks.runs.pretrain_job import held_out_batches, split_documents, split_long_documents
from bertworks.text.shards import Shards
from bertworks.training.objectives import PretrainingModel
from tests.evaluation.test_ablation import Write, corpus as corpus, run, write as write


def test_held_out_figures_are_those_of_the_network(
    write: Write, corpus: Path, tmp_path: Path
) -> None:
    run(write(), corpus, tmp_path / "out", seeds=1)
    folder, shards = tmp_path / "out/arms/one/seed-0/model", Shards.open(tmp_path / "out/shards")
    arm = Arm(str(folder), 0, shards.folder, tmp_path / "none", {}, {}, "cpu")
    store = split_long_documents(shards)
    documents = split_documents(store, 0)[1]
    batches = held_out_batches(
        store,
        documents,
        shards.tokenizer(),
        format="full_sentences",
        sequence_length=32,
        sequences=12,
    )
    config, state, _ = load_model(folder)
    network = PretrainingModel(config, {"masked_lm": 1.0, "next_sentence": 1.0})
    network.load_state_dict({name: state[name] for name, _ in network.named_parameters()})
    network.eval()
    losses, right, count = 0.0, 0, 0
    with torch.no_grad():
        for batch in batches:
            logits, labels = network.scores(batch), batch.targets["masked_lm"].labels
            losses += float(torch.nn.functional.cross_entropy(logits, labels, reduction="sum"))
            right, count = right + int((logits.argmax(-1) == labels).sum()), count + len(labels)

    def measured(**options: Any) -> float:
        result: list[Measured] = []

        def follow() -> Iterator[Event]:
            result.append((yield from measure_held_out(arm, sequence_length=32, **options)))

        list(follow())
        value, samples = result[0]
        assert len(samples) == SAMPLES
        assert min(samples) <= value <= max(samples)
        return value

    assert measured(sequences=12) == pytest.approx(losses / count, abs=2e-5)
    assert measured(sequences=12, figure="perplexity") == pytest.approx(
        np.exp(losses / count), rel=2e-5
    )
    assert measured(sequences=12, figure="accuracy") == pytest.approx(right / count)
    assert measured(sequences=12, mask=0.0, random=0.0) != pytest.approx(losses / count, abs=1e-3)
    for format in ("next_sentence", "sentence_order"):
        options: Any = {"format": format, "sequence_length": 32, "sequences": 9}
        batches = held_out_batches(store, documents, shards.tokenizer(), **options)
        with torch.no_grad():
            for batch in batches:
                states = network.encoder(batch.input_ids, batch.layout, batch.token_type_ids)[-1]
                assert network.pooler is not None
                assert network.next_sentence is not None
                pooled = network.pooler(states[batch.layout.cu_seqlens[:-1].long()])
                expected = (
                    (network.next_sentence(pooled).argmax(-1) == batch.targets[format].labels)
                    .float()
                    .mean()
                )
        assert measured(
            predict="pairs", format=format, figure="accuracy", sequences=9
        ) == pytest.approx(float(expected))
    with pytest.raises(UsageError, match="no pairs"):
        measured(predict="pairs")
    with pytest.raises(BertworksError, match="64 tokens, not 128"):
        list(measure_held_out(arm))
