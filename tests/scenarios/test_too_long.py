"""A length that cannot fit into memory is refused before a training begins."""

from pathlib import Path

import pytest
import torch

import bertworks as bw
from bertworks.errors import UsageError
from bertworks.models.config import EncoderConfig
from bertworks.training.device import bytes_to_train
from tests.support import fine
from tests.support.tiny import write_corpus, write_recipe

BASE = EncoderConfig(vocab_size=30522)


@pytest.fixture
def small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertworks.training.device.total_memory", lambda device: 1000)


def test_the_estimate_is_above_what_a_training_keeps() -> None:
    """What autograd keeps for a text of BERT-base's width, measured for two layers."""
    config = EncoderConfig(vocab_size=1000, num_hidden_layers=2, max_position_embeddings=2048)
    from bertworks.training.objectives import PretrainingModel

    network = PretrainingModel(config, {"masked_lm": 1.0}).train()
    from bertworks.batching.batch import collate
    from bertworks.batching.examples import Example

    ids = torch.randint(5, 1000, (2048,)).numpy()
    batch = collate([Example(ids, ids * 0, {})])
    kept: dict[int, int] = {}

    def keep(x: torch.Tensor) -> torch.Tensor:
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        states = network.encoder(*batch.inputs)
    for parameter in network.parameters():
        kept.pop(parameter.untyped_storage().data_ptr(), None)
    del states
    estimate = bytes_to_train(2048, 2048, config, "fp32") - 24 * config.num_parameters()
    assert 0.3 * estimate < sum(kept.values()) < 1.1 * estimate


def test_memory_grows_with_the_text_and_less_with_checkpoints() -> None:
    amounts = [bytes_to_train(n, n, BASE, "fp32") for n in (512, 1024, 2048)]
    assert amounts[2] - amounts[1] == 2 * (amounts[1] - amounts[0])
    assert bytes_to_train(8192, 8192, BASE, "fp32", checkpointing=True) < amounts[2] + 10**9
    assert bytes_to_train(512, 512, BASE, "bf16") < amounts[0]


@pytest.mark.parametrize(
    ("task", "hint"),
    [("classification", "--max-length 512 --windows 4"), ("tagging", "--max-length 512 reads")],
)
def test_a_row_that_is_too_long_is_refused(
    task: str, hint: str, tmp_path: Path, small_machine: None
) -> None:
    data = fine.write_examples(tmp_path, task, 12)
    request = bw.make_finetune_request(
        data, model=fine.write_model(tmp_path / "model"), method="full", validation="split"
    )
    with pytest.raises(UsageError, match="tokens at once needs about") as error:
        list(bw.finetune_events(tmp_path / "out", request))
    assert str(error.value.hint).startswith(hint)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_sequence_that_is_too_long_is_refused(
    checkpointing: bool, tmp_path: Path, small_machine: None
) -> None:
    recipe = write_recipe(tmp_path / "recipe.toml")
    corpus = write_corpus(tmp_path / "corpus.jsonl")
    overrides = ["train.gradient_checkpointing=true"] if checkpointing else []
    with pytest.raises(UsageError, match="tokens at once needs about") as error:
        list(bw.pretrain([corpus], tmp_path / "out", recipe=str(recipe), overrides=overrides))
    assert ("gradient_checkpointing" in str(error.value.hint)) is not checkpointing
