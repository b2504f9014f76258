"""A fine-tuning beside transformers' Trainer, step by step: equal batches, equal losses, at last
equal weights. Without dropout, whose masks are drawn in other ways."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Trainer, TrainingArguments

from bertworks.batching.batch import Batch, LabelledBatches
from bertworks.checkpoints.hf_mapping import from_huggingface
from bertworks.training.loop import make_optimizer, train
from bertworks.training.recipe import OptimizerConfig
from tests.support.heads import CASES, CONFIG, example, pair, rectangles

SETTINGS = OptimizerConfig(learning_rate=1e-3, warmup=0.1, weight_decay=0.1, max_grad_norm=0.5)
EPOCHS = 5


def batches_of(task: str) -> LabelledBatches:
    """26 units in steps of 8, 8, 8 and 2, each computed in several parts."""
    generator = np.random.default_rng(0)
    sequences = 3 if task == "choice" else 1
    # qa: see `test_tasks`
    lengths = [20] * 26 if task == "qa" else generator.integers(3, 40, 26).tolist()
    units = [
        [example(task, length, number, generator) for number in range(sequences)]
        for length in lengths
    ]
    return LabelledBatches(units, batch_size=8, micro_batch_tokens=100, seed=3)


def in_trainer(
    network: Any, batches: Callable[[int], Sequence[Batch]], task: str, steps: int, folder: Path
) -> list[float]:
    """The loss of every step. What Trainer takes for one example is a whole batch."""
    losses: list[float] = []

    class Recording(Trainer):  # type: ignore[misc]
        def _get_train_sampler(self, *_: Any) -> Any:
            return torch.utils.data.SequentialSampler(range(steps))

        def compute_loss(self, *arguments: Any, **named: Any) -> Any:
            found = super().compute_loss(*arguments, **named)
            losses.append((found[0] if isinstance(found, tuple) else found).item())
            return found

    def collator(rows: Sequence[int]) -> dict[str, torch.Tensor]:
        (batch,) = batches(rows[0])
        return rectangles(task, batch)

    o = SETTINGS
    arguments = TrainingArguments(
        str(folder),
        use_cpu=True,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        logging_strategy="no",
        num_train_epochs=1,
        per_device_train_batch_size=1,
        learning_rate=o.learning_rate,
        weight_decay=o.weight_decay,
        warmup_steps=round(o.warmup * steps),
        adam_epsilon=o.eps,
        max_grad_norm=o.max_grad_norm,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
    )
    Recording(network, arguments, data_collator=collator, train_dataset=list(range(steps))).train()
    return losses


@pytest.mark.parametrize("task", CASES)
def test_every_step_is_that_of_trainer(task: str, tmp_path: Path) -> None:
    ours, theirs = pair(task)
    begun = {name: p.detach().clone() for name, p in ours.named_parameters()}
    batches = batches_of(task)
    steps = EPOCHS * batches.steps_per_epoch
    assert len(batches(0)) > 1
    expected = in_trainer(theirs, replace(batches, micro_batch_tokens=10**6), task, steps, tmp_path)
    found = [
        step.read()["task"].loss
        for step in train(ours, make_optimizer(ours, SETTINGS), batches, SETTINGS, steps)
    ]
    assert found == pytest.approx(expected, rel=1e-4)
    weights = from_huggingface({name: p.detach() for name, p in theirs.named_parameters()}, CONFIG)
    apart = (
        sum(
            float((p.detach() - weights[name]).square().sum())
            for name, p in ours.named_parameters()
        )
        ** 0.5
    )
    moved = sum(float((weights[name] - p).square().sum()) for name, p in begun.items()) ** 0.5
    assert apart <= 1e-3 * moved
