"""How long a fine-tuning will take, measured before it begins."""

from collections.abc import Sequence

import torch
from torch import nn

from bertworks.data.batch import collate
from bertworks.data.labelled import Unit
from bertworks.learn.timing import time_step
from bertworks.nn.blank import blank
from bertworks.runs.finetuning import Finetuning

CPU_TOKENS = 512  # of the steps that are timed: enough to be fast, few enough to be soon over
_DEVIATION = 0.02  # any numbers take as long; to draw them as for a network that learns takes a second
SECONDS = 0.5  # that are spent on it, or three steps


def forecast(work: Finetuning, device: torch.device, processes: int = 1) -> float:
    """Seconds of the whole training, if it does not end early, with all looks at dev: from some steps of a network like
    it, on texts of all its lengths."""
    recipe = work.recipe
    with blank():
        network = work.network()
    network = network.to_empty(device=device)
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=_DEVIATION)
    sample = _spread(work.units, recipe.batch_size, recipe.micro_batch_tokens if device.type == "cuda" else CPU_TOKENS)
    batch = collate([one for unit in sample for one in unit]).to(device)
    learned, asked = _tokens(work.units), _tokens([encoded.unit for encoded in work.dev])
    micro, update = time_step(network, recipe.optimizer, work.precision, batch, SECONDS)
    once = 0.0
    if network.features is not None and network.features.remember(work.units):
        network.features.remember(sample)  # as it will be with everything: the encoder is asked once
        above, update = time_step(network, recipe.optimizer, work.precision, batch, SECONDS)
        once, micro = micro - above, above
    looks = -(-work.num_steps // work.evaluate_every)
    passes = recipe.epochs * learned / processes + looks * asked / 3  # a backward pass costs as much as two forward
    return (once * (learned + asked) + micro * passes) / len(batch.input_ids) + update * work.num_steps


def _spread(units: Sequence[Unit], count: int, tokens: int) -> list[Unit]:
    """At most so many units, short and long ones as there are, with at most so many tokens; or one."""
    ordered = sorted(units, key=lambda unit: _tokens([unit]))
    count = min(count, len(ordered), max(1, tokens * len(ordered) // _tokens(ordered)))
    return [ordered[(2 * i + 1) * len(ordered) // (2 * count)] for i in range(count)]


def _tokens(units: Sequence[Unit]) -> int:
    return sum(len(one.input_ids) for unit in units for one in unit)
