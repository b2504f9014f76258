"""Detect replaced tokens.

An ELECTRA discriminator gives each token of a text the probability that it was replaced.

- `Discriminator`: the network
- `detect`: texts -> `Detection`
- `load_with_generator`, `detection_scores`, `ranking_figures`: a discriminator and its generator,
  evaluated
"""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertworks.batching.batch import Batch, Example, Ids, Target, add_special_tokens
from bertworks.checkpoints.model_folder import ModelFolder, load_model
from bertworks.errors import require
from bertworks.inference.engine import LazyModel, compute_each, open_model
from bertworks.io.inputs import chunk_by_size
from bertworks.io.tables import texts_of
from bertworks.metrics.classification import area_under_curve
from bertworks.models.config import EncoderConfig
from bertworks.models.heads import TokenHead
from bertworks.models.transformer import Encoder
from bertworks.text.tokenizer import Tokenizer
from bertworks.training.device import Precision
from bertworks.training.objectives import PretrainingModel

GENERATOR = "generator."  # how names of its parameters begin; its folder in that of the model
# scores of tokens, and whether they were replaced
Ranked = tuple[NDArray[np.float64], NDArray[np.bool_]]
AT_ONCE = 256  # texts that are computed together


class Detection(TypedDict):
    """The tokens of a text, without special tokens."""

    text: str
    tokens: list[str]
    offsets: list[tuple[int, int]]  # first character and end of each token
    probabilities: list[float]  # that a token was replaced


class Discriminator(nn.Module):
    """An encoder with the head for replaced tokens (Clark et al. 2020, section 2)."""

    def __init__(self, c: EncoderConfig):
        super().__init__()
        self.encoder = Encoder(c)
        self.replaced_token = TokenHead(c)

    def logits(self, batch: Batch) -> Tensor:
        """[T, 1]: the log-odds that a token was replaced."""
        states = self.encoder(batch.input_ids, batch.layout, batch.token_type_ids)[-1]
        return self.replaced_token(states)[:, None]  # type: ignore[no-any-return]


def detect(
    model: str | Path | LazyModel,
    texts: Iterable[str],
    *,
    device: str = "auto",
    precision: Precision = "fp32",
) -> Iterator[Detection]:
    """For each token of each text the probability that it was replaced (Clark et al. 2020).

    In a text longer than the model's maximum, each token is seen in the window in which it is
    farthest from the edges.

    Args:
        model: the folder of a discriminator, or a name; or an open model, which stays on its
            device.

    Raises:
        UsageError: a text that is no string.
        BertworksError: no such model, or one without the head for replaced tokens.
    """
    texts = texts_of(texts, "detect([text])[0]")
    source = open_model(model, device)
    network = source.network(Discriminator)
    t = source.tokenizer
    room = source.config.max_position_embeddings - t.template.num_special()

    def compute(batch: Batch) -> Tensor:
        return torch.sigmoid(network.logits(batch).float())[batch.target.positions, 0]

    for group in chunk_by_size(texts, AT_ONCE, lambda _: 1):
        encodings = list(t.arrays(group))
        for text, (ids, _) in zip(group, encodings, strict=True):
            require(len(ids), f"a text has no tokens: {text[:60]!r}", "", "leave it out")
        units = [list(_windows(ids.astype(np.int64), room, t)) for ids, _ in encodings]
        results = compute_each(network, compute, units, (), precision)
        for text, (ids, places), probabilities in zip(group, encodings, results, strict=True):
            tokens = [t.tokens[n] for n in ids]
            offsets = [(start, end) for start, end in places.tolist()]
            yield Detection(
                text=text, tokens=tokens, offsets=offsets, probabilities=probabilities.tolist()
            )


def _windows(ids: Ids, room: int, t: Tokenizer) -> Iterator[Example]:
    """Yield the text, or windows of `room` tokens that overlap by half.

    The target of each has the tokens that are nearer to its middle than to that of another one, so
    that every token is in one target.
    """
    starts = [*range(0, len(ids) - room, max(1, room // 2)), max(0, len(ids) - room)]
    edges = [0, *((a + b + room) // 2 for a, b in pairwise(starts)), len(ids)]
    for start, (begin, end) in zip(starts, pairwise(edges), strict=True):
        s = add_special_tokens([ids[start : start + room]], t.template)
        positions = np.arange(begin, end) - start + len(t.template.prefix)
        yield Example(
            s.input_ids,
            s.token_type_ids,
            {"replaced_token": Target(positions, np.zeros_like(positions))},
        )


def state_with_generator(folder: Path, model: PretrainingModel) -> dict[str, Tensor]:
    """Return the parameters of a model folder.

    Those of the generator in it are among them, if the model has one of this size.
    """
    state = load_model(folder, needs={"encoder"}).state
    if model.generator is not None and (folder / GENERATOR[:-1]).is_dir():
        config, weights, _ = load_model(folder / GENERATOR[:-1], needs={"encoder", "lm_head"})
        if config.hidden_size == model.generator.encoder.config.hidden_size:
            state |= {GENERATOR + name: value for name, value in weights.items()}
    return state


def load_with_generator(folder: Path, config: EncoderConfig) -> PretrainingModel:
    """Return a discriminator with the generator in its folder.

    Raises:
        BertworksError: there is none.
    """
    inner = folder / GENERATOR[:-1]
    what = "the folder has no generator, which replaces tokens"
    hint = "use the run folder of its pre-training"
    require(
        (inner / "config.json").is_file(),
        f"a discriminator alone cannot be evaluated: {what}",
        folder,
        hint,
    )
    size = ModelFolder(inner).config.hidden_size / config.hidden_size
    network = PretrainingModel(
        config, {"masked_lm": 1.0, "replaced_token": 1.0}, generator_size=size
    )
    state = state_with_generator(folder, network)
    network.load_state_dict(
        state | {n: p for n, p in network.state_dict().items() if n not in state}
    )
    return network


@torch.no_grad()
def detection_scores(network: PretrainingModel, batches: Iterable[Batch]) -> Iterator[Ranked]:
    """For each batch the scores of a discriminator, and whether the tokens were replaced."""
    device = next(network.parameters()).device
    network.eval()
    for batch in (batch.to(device) for batch in batches):
        _, input_ids, replaced = network.replace_tokens(batch)
        states = network.encoder(input_ids, batch.layout, batch.token_type_ids)[-1]
        assert network.replaced_token is not None
        yield network.replaced_token(states).double().cpu().numpy(), replaced.cpu().numpy()


def ranking_figures(ranked: Iterable[Ranked]) -> dict[str, float]:
    """Return how well a discriminator ranks replaced tokens above others.

    `replaced_token_auc`; and `replaced_tokens`: which fraction was replaced.
    """
    scores, labels = zip(*ranked, strict=True)
    all_labels = np.concatenate(labels)
    auc = area_under_curve(np.concatenate(scores), all_labels)
    return {"replaced_token_auc": auc, "replaced_tokens": float(all_labels.mean())}
