"""Compute with networks that read from left to right.

An open one with its output layer; and sentences -> log-likelihoods.

- `CausalModel`: texts -> tokens, hidden states, logits, in a precision
- `log_likelihoods`: the probability of every token given those before it, in one pass
"""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Literal, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertworks.batching.batch import Batch, Example, Ids, Target
from bertworks.checkpoints.generation_config import read_generation_config
from bertworks.checkpoints.hf_mapping import check_output_layer
from bertworks.checkpoints.storage import read_json
from bertworks.errors import quoted, require
from bertworks.inference.engine import (
    MAX_SCORES,
    LazyModel,
    compute_each,
    precision_for,
    prepared_encoder,
)
from bertworks.io.inputs import chunk_by_size
from bertworks.models.cache import KeyValueCache
from bertworks.models.layout import Layout
from bertworks.models.packed_linear import pack_output, to_int8_inference
from bertworks.training.device import PrecisionOption
from bertworks.training.objectives import PretrainingModel

AT_ONCE = 64  # sentences that are tokenized together

# Each token given those before it; or given all others, when it alone is masked.
Measure = Literal["log_likelihood", "pseudo_log_likelihood"]


class Score(TypedDict):
    """The score of a sentence.

    Natural logarithms.
    """

    text: str
    score: float  # the sum of `log_probabilities`, at most 0
    tokens: list[str]
    log_probabilities: list[float]  # of each token
    measure: Measure


def make_score(
    text: str, tokens: list[str], values: NDArray[np.float64], measure: Measure
) -> Score:
    """Return the score of a sentence. values: the log-probability of each token."""
    total = float(values.sum())
    each = values.tolist()
    return Score(text=text, score=total, tokens=tokens, log_probabilities=each, measure=measure)


class CausalModel:
    """An open network that reads from left to right, with its output layer, in a precision.

    Attributes:
        longest: the largest number of tokens that it reads.
        end_ids: the tokens that end a text, those of generation_config.json first.
        start_ids: the end token that stands between the texts of a training, if there is one.
        generation: what generation_config.json says.

    Raises:
        BertworksError: it reads in both directions, it is an exported one, or the weights lack the
            head.
    """

    def __init__(self, source: LazyModel, precision: PrecisionOption = "auto"):
        self.tokenizer = source.tokenizer
        self.config = source.config
        self.where = str(source)
        what = "this model reads in both directions: it cannot continue texts"
        mask = self.tokenizer.special_tokens.get("mask_token", "a mask")
        hint = f'bertworks fill {quoted(source.folder)} "a text with {mask}"'
        require(self.config.direction == "left_to_right", what, self.where, hint)
        path = str(source.within / "config.json")
        check_output_layer(source.settings, source.weights, self.config, path, predicts_tokens=True)
        network = source.network(partial(PretrainingModel, objectives={"causal_lm": 1.0}))
        assert network.lm_head is not None
        self.precision = precision_for(network.encoder, precision, source)
        self.encoder = (
            to_int8_inference(network.encoder)  # also for few tokens, which a pass with a cache has
            if self.precision == "int8"
            else prepared_encoder(network.encoder, self.precision)[0]
        )
        self._transform = network.lm_head.transform
        self._output = pack_output(
            network.encoder.embeddings.token.weight, network.lm_head.bias, self.precision
        )
        self.device = network.encoder.embeddings.token.weight.device
        self.longest = self.config.max_position_embeddings
        self.generation = read_generation_config(source.within)
        ends = _end_ids(source)
        self.start_ids = ends[:1]
        if self.generation.end_ids is not None:
            ends = [
                number for number in self.generation.end_ids if number < self.tokenizer.vocab_size
            ]
        self.end_ids = ends

    def states(
        self,
        ids: Tensor,
        layout: Layout,
        rows: Tensor | None = None,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """Return the last hidden states; see `Encoder.forward`."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
            states: list[Tensor] = self.encoder(ids, layout, None, rows, cache=cache)
        return states[-1]

    def logits(self, states: Tensor) -> Tensor:
        """[M, hidden] -> [M, vocabulary].

        The network may have more tokens than the tokenizer.
        """
        return self._output(self._transform(states.float()))

    def prompt(self, text: str, number: int) -> list[int]:
        """Return the tokens of a text, with those of the template in front of it.

        Raises:
            UsageError: it is not a string.
            BertworksError: it has no tokens, or the network cannot read it and one more token.
        """
        ids = self.tokenizer.encode(text).ids
        ids = ids[: len(ids) - len(self.tokenizer.template.suffix)]
        require(ids, f"text {number} has no tokens: {text[:60]!r}", "", "begin it with a word")
        what = (
            f"text {number} has {len(ids):,} tokens: the model reads {self.longest:,}, with "
            "those that it adds"
        )
        require(len(ids) < self.longest, what, self.where, "shorten the text")
        return ids


def _end_ids(source: LazyModel) -> list[int]:
    """Return the tokens that end a text; [] without any.

    They are those of config.json, else of tokenizer_config.json, else the one that the template
    puts after a text, as BERT's [SEP].
    """
    end = source.settings.get("eos_token_id")
    path = source.within / "tokenizer_config.json"
    if end is None and path.exists():
        token = read_json(path).get("eos_token")
        token = token.get("content") if isinstance(token, dict) else token
        end = source.tokenizer.tokens.index(token) if token in source.tokenizer.tokens else None
    if end is None:
        end = list(source.tokenizer.template.suffix[:1])
    numbers = end if isinstance(end, list) else [end]
    return [
        number
        for number in numbers
        if type(number) is int and 0 <= number < source.tokenizer.vocab_size
    ]


def log_likelihoods(model: CausalModel, sentences: Iterable[str]) -> Iterator[Score]:
    """Yield the log-likelihood of each sentence, in order.

    It is the log-probability of every token given those before it, in one pass.

    The first token is predicted from the special tokens of the template, or from the end token,
    which stands between the texts of a training. Without either it is not predicted, and `tokens`
    begins with the second. Special tokens in a sentence are ordinary text. A sentence that is
    longer than the network reads is computed in windows: each token is predicted from half of the
    maximum number of tokens or more.

    Raises:
        BertworksError: a sentence without a token that can be predicted.
    """
    t = model.tokenizer
    start = list(t.template.prefix) or model.start_ids
    first = len(start) or 1
    number = 0
    for texts in chunk_by_size(sentences, AT_ONCE, lambda _: 1):
        sequences = [np.array([*start, *ids], np.int64) for ids in t.ids(texts)]
        for text, ids in zip(texts, sequences, strict=True):
            number += 1
            hint = (
                "leave it out"
                if start
                else "give a longer one: this model cannot predict the first token"
            )
            what = f"sentence {number} has no tokens{'' if start else ' to predict'}: {text[:60]!r}"
            require(len(ids) > first, what, "", hint)
        windows = [list(_windows(ids, first, model.longest)) for ids in sequences]
        units = [[window] for windows_of_text in windows for window in windows_of_text]
        compute = partial(_label_log_probabilities, model)
        results = iter(compute_each(model.encoder, compute, units, (), model.precision))
        for text, ids, windows_of_text in zip(texts, sequences, windows, strict=True):
            values = np.concatenate([next(results) for _ in windows_of_text]).astype(np.float64)
            yield make_score(text, [t.tokens[n] for n in ids[first:]], values, "log_likelihood")


def _windows(ids: Ids, first: int, longest: int) -> Iterator[Example]:
    """Yield sequences of up to `longest` tokens that predict the tokens from `first` on.

    Each of these is predicted once.
    """
    begin = 0
    while first < len(ids):
        end = min(len(ids) - 1, begin + longest)
        labels = np.arange(first, end + 1)
        tokens = ids[begin:end]
        target = Target(labels - 1 - begin, ids[labels])
        yield Example(tokens, np.zeros_like(tokens), {"next_token": target})
        first = end + 1
        begin = end - longest // 2


def _label_log_probabilities(model: CausalModel, batch: Batch) -> Tensor:
    """float32 [M]: of the labels of a batch.

    Logits are computed some rows at a time.
    """
    states = model.states(batch.input_ids, batch.layout, batch.target.positions)
    size = max(1, MAX_SCORES // model.config.vocab_size)
    results = []
    for rows, labels in zip(states.split(size), batch.target.labels.split(size), strict=True):
        logits = model.logits(rows).float()
        results.append(logits.gather(1, labels[:, None])[:, 0] - logits.logsumexp(-1))
    return torch.cat(results)
