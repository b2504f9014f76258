"""Evaluate a network that predicts tokens in a random order (XLNet, Yang et al. 2019).

- `order_losses`: the losses of the same tokens of held-out text, predicted in many orders
- `largest_leak`: how far predictions depend on the tokens that they predict
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor

from bertworks.batching.batch import Batch, BatchTarget
from bertworks.batching.examples import keyed_rng
from bertworks.batching.orders import RANK, UNRANKED
from bertworks.errors import require
from bertworks.evaluation.causal_lm import pretraining_network
from bertworks.inference.engine import open_model
from bertworks.runs.pretrain_job import held_out_batches, split_documents, split_long_documents
from bertworks.text.shards import Shards
from bertworks.training.loop import evaluate
from bertworks.training.objectives import PretrainingModel

KIND: Literal["permutation_lm"] = "permutation_lm"  # the objective
_AT_ONCE = 8  # sequences of a batch


def held_out_orders(
    model: str, text: Shards, seed: int, device: str, *, sequence_length: int, sequences: int
) -> tuple[PretrainingModel, list[Batch]]:
    """Return a network, and batches of the held-out text with the tokens that it predicts.

    Args:
        text: of a training, of which the seed holds documents out.
        sequences: the most sequences.

    Raises:
        BertworksError: the model was not trained to predict tokens in an order, or has another
            vocabulary.
    """
    source = open_model(model, device)
    require(
        source.config.has_query and source.tokenizer.tokens == text.tokenizer().tokens,
        "the model predicts no tokens in an order, or its vocabulary is not that of the held-out "
        "text",
        source.folder,
        "measure a model that was trained on this text, such as one of --recipe xlnet-small",
    )
    network = pretraining_network(source, KIND, device)
    store = split_long_documents(text)
    batches = held_out_batches(
        store,
        split_documents(store, seed)[1],
        source.tokenizer,
        format="one_segment",
        sequence_length=sequence_length,
        sequences=sequences,
        kind=KIND,
        at_once=_AT_ONCE,
    )
    return network, batches


def order_losses(
    network: PretrainingModel, batches: Sequence[Batch], orders: int
) -> NDArray[np.float64]:
    """Return the losses of the same tokens in many orders, the rows of `batches`.

    Returns:
        [batches, orders + 1]: the sum of the losses of a batch in each order, and the number of its
        predicted tokens.
    """
    rows = np.zeros((len(batches), orders + 1))
    for number, batch in enumerate(batches):
        generator = keyed_rng("orders of tokens", number)
        for order in range(orders):
            stats = evaluate(network, [in_another_order(batch, generator)])[KIND]
            rows[number, order] = stats.loss * stats.count
            rows[number, -1] = stats.count
    return rows


def in_another_order(batch: Batch, generator: Generator) -> Batch:
    """Return the batch with its ranks in a random order within each sequence.

    The predicted tokens and those that all others read stay the same.
    """
    target = batch.targets[RANK]
    rank = target.labels.numpy().copy()
    borders = batch.layout.cu_seqlens.tolist()
    for first, end in pairwise(borders):
        is_ranked = rank[first:end] != UNRANKED
        rank[first:end][is_ranked] = generator.permutation(rank[first:end][is_ranked])
    ranks = BatchTarget(target.positions, torch.from_numpy(rank))
    return replace(batch, targets={**batch.targets, RANK: ranks})


@torch.no_grad()
def largest_leak(network: PretrainingModel, batches: Sequence[Batch]) -> float:
    """Return by how much a logit changes at most when the predicted token itself is another one.

    It is 0 of a right network: what a token is predicted from does not hold the token itself (Yang
    et al. 2019, section 2.3). Each predicted token of the text is exchanged once.
    """
    network.eval()
    device = next(network.parameters()).device
    largest = 0.0
    for batch in batches:
        target = batch.targets[KIND]
        scores = _scores(network, batch.to(device))
        for rows in _one_of_each_sequence(batch):
            input_ids = batch.input_ids.clone()
            positions = target.positions[rows]
            input_ids[positions] = (input_ids[positions] + 1) % scores.shape[1]
            new_scores = _scores(network, replace(batch, input_ids=input_ids).to(device))
            largest = max(largest, (scores[rows] - new_scores[rows]).abs().max().item())
    return largest


def _scores(network: PretrainingModel, batch: Batch) -> Tensor:
    """Return the logits of the predicted tokens: [M, vocab_size]."""
    return network.scores(
        replace(batch, targets={"masked_lm": batch.targets[KIND], RANK: batch.targets[RANK]})
    )


def _one_of_each_sequence(batch: Batch) -> list[Tensor]:
    """Return the numbers of the predicted tokens, in parts with one token of each sequence."""
    sequences = batch.layout.sequence_ids[batch.targets[KIND].positions].numpy()
    firsts = np.searchsorted(sequences, sequences)  # the first prediction of the same sequence
    places = np.arange(len(sequences)) - firsts
    return [torch.from_numpy(np.flatnonzero(places == place)) for place in range(places.max() + 1)]
