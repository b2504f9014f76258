"""Heads of fine-tuning and their losses.

- `FrozenFeatures`: hidden states of a frozen encoder, computed once and kept for all epochs
- `tally`: the loss of a task, of what its head predicts; `count_predictions`: its terms
- `TaskModel`: an encoder with the head of a task; `JointModel`: one with the heads of several;
  `without_head`: what the head of another task begins with
- `ContrastiveModel`: a contrastive loss trains the encoder, and a linear head is fitted afterwards
"""

import math
from collections.abc import Mapping, Sequence
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertworks.batching.batch import Batch, token_budget_batches
from bertworks.batching.examples import ExampleGroup
from bertworks.errors import expect
from bertworks.models.config import EncoderConfig
from bertworks.models.heads import OutputLayer, Pooler, Transform, scale_transform
from bertworks.models.layers import initialize
from bertworks.models.recurrent import BiLSTM
from bertworks.models.transformer import Encoder
from bertworks.tasks.outputs import (
    Classification,
    MultiLabel,
    MultipleChoice,
    Regression,
    SpanExtraction,
    TaskHead,
)
from bertworks.tasks.settings import FeatureLayers, SentenceVectors, TaskConfig
from bertworks.training.loop import LossSum, TrainableModel, cross_entropy
from bertworks.training.objectives import divergence, vocabulary_cross_entropy

MAX_FEATURE_BYTES = 2 << 30  # of cached features
FEATURE_BATCH_TOKENS = 4096  # of a batch whose features are cached, with padding


def feature_numbers(c: EncoderConfig, layers: FeatureLayers) -> Sequence[int]:
    """Return the numbers of the layers that are read; 0: the embeddings.

    An encoder with fewer than four gives all of them.

    Raises:
        UsageError: the encoder does not have this layer.
    """
    last = c.num_hidden_layers
    if isinstance(layers, int):
        expect(
            0 <= layers <= last,
            f"feature_layers is {layers}, and the model has the layers 0 (embeddings) to {last}",
            hint="--set feature_layers=last",
        )
        return (layers,)
    if layers in ("embeddings", "second-to-last", "last"):
        return (0 if layers == "embeddings" else last - (layers == "second-to-last"),)
    first = {"sum-all": 1, "mix": 0}.get(layers, max(1, last - 3))
    return range(first, last + 1)


def features_size(c: EncoderConfig, layers: FeatureLayers) -> int:
    """Return the size of what is read of a token."""
    joins = layers in ("concat-last-four", "mix")
    return c.hidden_size * (len(feature_numbers(c, layers)) if joins else 1)


def lstm_input_size(c: EncoderConfig, layers: FeatureLayers) -> int:
    """Return the same after a mix."""
    return c.hidden_size if layers == "mix" else features_size(c, layers)


def select_features(states: Sequence[Tensor], c: EncoderConfig, layers: FeatureLayers) -> Tensor:
    """states: of all layers, [T, hidden] each, embeddings first -> float32 [T, `features_size`]."""
    chosen = [states[number].float() for number in feature_numbers(c, layers)]
    return torch.stack(chosen).sum(0) if str(layers).startswith("sum") else torch.cat(chosen, -1)


class ScalarMix(nn.Module):
    """A weighted sum of layers (Peters et al. 2018, equation 1).

    gamma * sum_j softmax(s)_j h_j, with s zero and gamma one at the start.
    """

    def __init__(self, count: int):
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(count))
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        """Layers side by side, [T, count * hidden] -> float32 [T, hidden]."""
        shares = self.weights.float().softmax(0)
        return self.scale.float() * (x.float().view(len(x), len(shares), -1) * shares[:, None]).sum(
            1
        )


class FrozenFeatures:
    """Hidden states as in `select_features`: `features(batch)` is float32 [T, width].

    They have no dropout and no gradients, in any precision of the training. The encoder must not
    change after the first call.
    """

    def __init__(self, encoder: Encoder, layers: FeatureLayers = "concat-last-four"):
        self.encoder = encoder
        self.layers = layers
        self._to_cache: list[ExampleGroup] = []
        self._cache: dict[bytes, Tensor] = {}

    def remember(self, groups: Sequence[ExampleGroup]) -> bool:
        """Cache the features of these examples at the next call, all in one pass.

        So they do not depend on the order of the calls. False: they need more than
        MAX_FEATURE_BYTES, and are computed each time.
        """
        tokens = sum(len(example.input_ids) for group in groups for example in group)
        if 4 * tokens * features_size(self.encoder.config, self.layers) > MAX_FEATURE_BYTES:
            return False
        self._to_cache = list(groups)
        return True

    def __call__(self, batch: Batch) -> Tensor:
        """Return the features of the tokens of a batch: float32 [T, width]."""
        for inputs in token_budget_batches(self._to_cache, FEATURE_BATCH_TOKENS):
            features = self._compute(inputs.to(batch.input_ids.device)).cpu()
            pieces = features.split(inputs.layout.cu_seqlens.diff().tolist())
            # Copies: a piece is a view that keeps the features of the whole batch.
            self._cache |= {
                key: piece.clone()
                for key, piece in zip(_sequence_keys(inputs), pieces, strict=True)
            }
        self._to_cache = []
        keys = _sequence_keys(batch)
        if not self._cache.keys() >= set(keys):
            return self._compute(batch)
        return torch.cat([self._cache[key] for key in keys]).to(batch.input_ids.device)

    @torch.no_grad()
    def _compute(self, batch: Batch) -> Tensor:
        training = self.encoder.training
        self.encoder.eval()
        with torch.autocast(batch.input_ids.device.type, enabled=False):
            states = self.encoder(*batch.inputs)
        self.encoder.train(training)
        return select_features(states, self.encoder.config, self.layers)


def _sequence_keys(batch: Batch) -> list[bytes]:
    """Return the inputs of the encoder for each sequence, as bytes."""
    assert batch.token_type_ids is not None
    lengths = batch.layout.cu_seqlens.diff().tolist()
    ids, types = (x.cpu().split(lengths) for x in (batch.input_ids, batch.token_type_ids))
    return [
        own_ids.numpy().tobytes() + own_types.numpy().tobytes()
        for own_ids, own_types in zip(ids, types, strict=True)
    ]


def combine_vectors(x: Tensor, kind: SentenceVectors) -> Tensor:
    """Return the features of an item: float32 [B, width].

    x: the mean vectors of its sequences, [B, hidden] or, of pairs, [2 B, hidden].
    kind: "mean": the vector. "pair": |u - v|, u * v (Conneau et al. 2017, section 3.1) and the
        cosine of both vectors with length 1. "cosine": the cosine alone. "pooler": not from here.
    """
    if kind == "mean":
        return x
    u, v = F.normalize(x.view(-1, 2, x.shape[-1]), dim=-1).unbind(1)
    cosine = (u * v).sum(-1, keepdim=True)
    return cosine if kind == "cosine" else torch.cat([(u - v).abs(), u * v, cosine], -1)


def count_predictions(task: TaskHead, batch: Batch) -> int:
    """Return the number of terms of the loss of a task for a batch of B sequences.

    There is one for each sequence or group of choices, or one for each of many tokens.
    """
    match task:
        case SpanExtraction():
            return batch.layout.num_sequences
        case MultipleChoice():
            return len(batch.target.labels) // task.num_choices
        case _:
            return batch.target.labels.numel()


def tally(task: TaskHead, logits: Tensor, batch: Batch) -> LossSum:
    """Return the sums of the loss of a task and of its right predictions.

    logits: float32 [M, outputs], of all M predictions of the batch.
    """
    labels = batch.target.labels
    match task:
        case Classification():
            weights = logits.new_tensor(task.weights) if task.weights else None
            return cross_entropy(logits, labels, weights, task.smoothing)
        case MultiLabel():
            loss = F.binary_cross_entropy_with_logits(logits, labels, reduction="sum")
            return LossSum(loss, ((logits.detach() > 0) == (labels > 0.5)).sum().float())
        case Regression():
            off = (logits[:, 0] - labels) / task.deviation
            return LossSum(off.square().sum(), (off.detach().abs() < 0.5).sum().float())
        case SpanExtraction():
            return _tally_spans(logits, batch)
        case MultipleChoice():
            scores = logits.view(-1, task.num_choices)
            return cross_entropy(scores, labels.view(-1, task.num_choices).argmax(1))
        case _:
            raise TypeError(f"{type(task).__name__} has no loss")


def _tally_spans(logits: Tensor, batch: Batch) -> LossSum:
    """Return the loss of the first and the last tokens of answers: `tally` of `SpanExtraction`."""
    absent = ~batch.layout.present[:, :, None]
    # [B, S, 2]
    scores = batch.layout.pad(logits).masked_fill(absent, torch.finfo(torch.float32).min)
    labels = batch.target.labels.view(-1, 2)
    rows = (
        (scores.transpose(1, 2).flatten(0, 1), labels.flatten())
        if scores.is_cuda
        else (scores, labels)
    )
    # of rows alone, a GPU has a kernel with a fixed order
    loss = F.cross_entropy(*rows, reduction="sum") / 2
    return LossSum(loss, (scores.detach().argmax(1) == labels).all(1).sum().float())


def teacher_loss(
    task: TaskHead, logits: Tensor, teacher_logits: Tensor, temperature: float
) -> Tensor:
    """Return the sum of the losses of logits that should be those of a teacher.

    They are float32 [M, outputs]. For numbers it is the squared error as in `Regression`, for
    several labels the divergence of each probability, else that of all.
    """
    if isinstance(task, Regression):
        return ((logits - teacher_logits) / task.deviation).square().sum()
    if isinstance(task, MultiLabel):  # a sigmoid is a softmax over x and 0
        logits, teacher_logits = (
            torch.stack([x, torch.zeros_like(x)], -1) for x in (logits, teacher_logits)
        )
    return divergence(logits, teacher_logits, temperature)[0]


TEACHER = "teacher"  # the target with its logits


def output_dropout(c: EncoderConfig, task: TaskHead) -> float:
    """Return the dropout before the output layer.

    It is none for spans, as in google-research/bert `run_squad.py`, unless the model has its own.
    """
    if c.task_transform:
        return c.sequence_rate
    if task.head == "span":
        return c.span_dropout or 0.0
    if isinstance(task, MultipleChoice):
        return c.choice_rate
    return c.sequence_rate if task.pooled or c.token_dropout else c.hidden_dropout


def without_head(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the parameters of a model that a new head for another task begins with.

    They are the encoder, the pooler and the transform, which is that of masked tokens in a
    pre-trained model.

    state: under our names.
    """
    result = {}
    for name, value in state.items():
        part, _, rest = name.partition(".")
        if part in ("encoder", "pooler", "transform"):
            result[name] = value
        elif part == "lm_head" and rest.startswith(("dense.", "norm.")):
            result[f"transform.{rest}"] = value
    return result


class TaskModel(TrainableModel):
    """An encoder with the head of a task.

    d: the settings of an LSTM and the layers that it reads; None: there is none.
    teacher: of batches with the logits of a teacher: the weight of their loss, and the temperature.
    head_deviation: of the random weights of a classifier behind a pooler, see
        `training.recipe.FinetuneRecipe`. With many labels and few rows, large weights cost accuracy
        (docs/experiments, 2026-11-26).
    lm_weight: of the loss "causal_lm", the prediction of each next token (Radford et al. 2018,
        equation 5); 0: none.
    """

    def __init__(
        self,
        c: EncoderConfig,
        task: TaskHead,
        d: TaskConfig | None = None,
        *,
        head_deviation: float = 0.0,
        lm_weight: float = 0.0,
        teacher: tuple[float, float] = (0.0, 1.0),
    ):
        super().__init__()
        d = d or TaskConfig(task="classification")
        lstm_units = d.lstm_units
        self.task = task
        self.dropout = output_dropout(c, task)
        (weight, self.temperature) = teacher
        further_weights = {"distillation": weight, "causal_lm": lm_weight}
        self.weights = {
            "task": 1 - weight,
            **{name: value for name, value in further_weights.items() if value},
        }
        self.encoder = Encoder(c)
        reads_states = task.vectors == "pooler" and not lstm_units
        # the mean of all tokens stands for a text
        self.has_means = reads_states and task.pooled and c.pooler == "mean"
        has_pooler = reads_states and task.pooled and not self.has_means
        self.pooler = Pooler(c) if has_pooler else None
        self.transform = Transform(c) if c.task_transform and reads_states else None
        self.pooler_dropout = (
            c.sequence_rate
            if c.pooler_dropout and not isinstance(task, MultipleChoice)
            else c.pooler_input_dropout
        )
        frozen = bool(lstm_units) and d.lstm_encoder == "frozen"
        self.feature_layers = d.feature_layers
        self.encoder.requires_grad_(not frozen)
        if self.encoder.query is not None:  # no task begins with it
            self.encoder.query.requires_grad_(False)
        self.features = FrozenFeatures(self.encoder, d.feature_layers) if frozen else None
        self.mix = (
            ScalarMix(c.num_hidden_layers + 1) if lstm_units and d.feature_layers == "mix" else None
        )
        self.recurrent = (
            BiLSTM(lstm_input_size(c, d.feature_layers), lstm_units) if lstm_units else None
        )
        has_bias = self.pooler is None or c.lm_head != "plain"  # GPT and GPT-2, as in transformers
        layer = OutputLayer(
            2 * lstm_units or task.width(c.hidden_size), task.outputs, bias=has_bias
        )
        initialize(layer, c)
        if (
            head_deviation
            and self.pooler is not None
            and self.transform is None
            and isinstance(task, Classification | MultiLabel)
        ):
            labels = max(2, task.outputs) if isinstance(task, Classification) else 2
            layer.weight.data *= (
                head_deviation
                * math.sqrt(2 / labels / layer.in_features)
                / (c.initializer_range or 1)
            )
        if self.transform is not None:
            self._initialize_transform(layer, c)
        self.add_module(task.head, layer)
        if isinstance(task, Regression) and has_bias:
            nn.init.constant_(layer.bias, task.mean)

    def _initialize_transform(self, layer: OutputLayer, c: EncoderConfig) -> None:
        """Draw the initial weights of a transform, and of the output layer behind it.

        Their deviations are those of ModernBERT in transformers.
        """
        assert self.transform is not None
        scale_transform(self.transform, c.num_hidden_layers)
        layer.weight.data *= layer.in_features**-0.5 / (c.initializer_range or 1)

    def counts(self, batch: Batch) -> dict[str, int]:
        """Return the number of predictions of each loss for a batch."""
        terms = count_predictions(self.task, batch)
        next_tokens = len(batch.input_ids) - batch.layout.num_sequences
        return {
            name: next_tokens if name == "causal_lm" else terms for name in self._present(batch)
        }

    def _present(self, batch: Batch) -> list[str]:
        """Return the losses of a batch."""
        return [name for name in self.weights if name != "distillation" or TEACHER in batch.targets]

    def forward(self, batch: Batch) -> dict[str, LossSum]:
        """Return the losses for a batch."""
        kinds = self._present(batch)
        states = None
        if "causal_lm" in kinds:
            states = self.encoder(*batch.inputs)[-1]
        logits = self.logits(batch, states).float()
        losses = {"task": tally(self.task, logits, batch)}
        if "distillation" in kinds:
            loss = teacher_loss(self.task, logits, batch.targets[TEACHER].labels, self.temperature)
            losses["distillation"] = LossSum(loss, loss.new_zeros(()))
        if states is not None:
            has_next = torch.ones_like(batch.input_ids, dtype=torch.bool).index_fill(
                0, batch.layout.last.long(), 0
            )
            embeddings = self.encoder.embeddings.token.weight.to(states.dtype)
            labels = batch.input_ids[1:][has_next[:-1]]
            losses["causal_lm"] = vocabulary_cross_entropy(
                states[has_next], embeddings, None, labels
            )
        return losses

    def logits(self, batch: Batch, states: Tensor | None = None) -> Tensor:
        """Return the logits of all predictions: [M, outputs].

        states: the last of all tokens, if they are known.
        """
        output = self.get_submodule(self.task.head)
        dropout = 0.0 if self.task.vectors == "cosine" else self.dropout
        return output(F.dropout(self.head_inputs(batch, states), dropout, self.training))  # type: ignore[no-any-return]

    def head_inputs(self, batch: Batch, states: Tensor | None = None) -> Tensor:
        """[M, width]: what the output layer reads, without its dropout. states: see `logits`.

        The vector of a text is the mean of those of its windows, as they are before the output
        layer, or before those of a pair are compared.
        """
        if self.task.vectors != "pooler":
            if states is None:
                states = self.encoder(*batch.inputs)[-1]
            x = batch.mean_of_windows(batch.layout.mean(states))
            return combine_vectors(x, self.task.vectors)
        if self.has_means:
            x = batch.layout.mean(self.encoder(*batch.inputs)[-1] if states is None else states)
        else:
            x = self._states(batch) if states is None else states[self._positions(batch)]
        if self.pooler is not None:
            x = self.pooler(F.dropout(x, self.pooler_dropout, self.training))
        if self.transform is not None:
            assert self.transform.dense is not None
            x = self.transform.transform(x.to(self.transform.dense.weight.dtype))
        return batch.mean_of_windows(x) if self.task.pooled else x

    def _positions(self, batch: Batch) -> Tensor:
        """int64 [M]: the tokens that are predicted.

        Of a whole text: that of the pooler, or behind an LSTM the first, which has read the text in
        one direction.
        """
        if not self.task.pooled:
            return batch.target.positions
        return (
            batch.layout.first if self.pooler is None else self.pooler.tokens(batch.layout)
        ).long()

    def _states(self, batch: Batch) -> Tensor:
        """[M, width]: hidden states of the predicted tokens."""
        inputs = batch.inputs
        positions = self._positions(batch)
        if self.recurrent is not None:
            c = self.encoder.config
            layers = self.feature_layers
            x = (
                select_features(self.encoder(*inputs), c, layers)
                if self.features is None
                else self.features(batch)
            )
            x = (x if self.mix is None else self.mix(x)).to(next(self.recurrent.parameters()).dtype)
            return self.recurrent(x, batch.layout)[positions]  # type: ignore[no-any-return]
        everything = len(positions) == len(batch.input_ids)
        return self.encoder(*inputs, None if everything else positions)[-1]  # type: ignore[no-any-return]


def contrastive_loss(vectors: Tensor, labels: Tensor, temperature: float) -> LossSum:
    """Return the supervised contrastive loss (Khosla et al. 2020, equation 2, L_out).

    For each vector it is the mean cross-entropy of the other vectors with the same label among all
    other vectors, by their cosines. A vector without another one of its label has none. A vector
    counts as correct if the nearest one has the same label.

    Args:
        vectors: [B, width], of length 1. labels: int64 [B].
        temperature: by which cosines are divided.
    """
    itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    scores = (vectors @ vectors.T / temperature).masked_fill(itself, torch.finfo(vectors.dtype).min)
    same = (labels[:, None] == labels) & ~itself
    log_p = scores.log_softmax(1).masked_fill(~same, 0.0)
    losses = -log_p.sum(1) / same.sum(1).clamp_min(1)
    correct = same.gather(1, scores.detach().argmax(1, keepdim=True))
    return LossSum(losses.sum(), correct.sum().float())


class ContrastiveModel(TaskModel):
    """An encoder that is trained by a contrastive loss, with the linear head of a classification.

    Texts with the same label get similar vectors. The embeddings are not trained, and the head is
    not trained here: `tasks.linear_head` fits it to the vectors.

    temperature: see `contrastive_loss`.
    """

    def __init__(self, c: EncoderConfig, task: TaskHead, d: TaskConfig, temperature: float):
        super().__init__(c, task, d)
        self.weights = {"contrastive": 1.0}
        self.temperature = temperature
        self.requires_grad_(False)
        for part in (self.encoder.blocks, self.encoder.norm, self.encoder.relative_bias):
            if part is not None:
                part.requires_grad_()

    def counts(self, batch: Batch) -> dict[str, int]:
        """Return the number of sequences that share their label with another one of the batch."""
        counts = batch.target.labels.bincount()
        return {"contrastive": int(counts[counts > 1].sum())}

    def forward(self, batch: Batch) -> dict[str, LossSum]:
        """Return the loss for a batch."""
        vectors = F.normalize(self.head_inputs(batch).float(), dim=-1)
        loss = contrastive_loss(vectors, batch.target.labels, self.temperature)
        return {"contrastive": loss}


class JointModel(TrainableModel):
    """An encoder, one pooler and one transform, with the heads of several tasks.

    It is that of Liu et al. 2019 (MT-DNN).

    The name of the target of a batch is its task.

    tasks: the model of each; from now on they have the encoder of the first one, and the first
        pooler and transform.
    """

    def __init__(self, tasks: Mapping[str, TaskModel]):
        super().__init__()
        models = [*tasks.values()]
        self.weights = {"task": 1.0}
        self.encoder = models[0].encoder
        self.pooler = next((m.pooler for m in models if m.pooler is not None), None)
        self.transform = next((m.transform for m in models if m.transform is not None), None)
        for model in models:
            model.transform = None if model.transform is None else self.transform
            model.encoder = self.encoder
            model.pooler = None if model.pooler is None else self.pooler
        self.heads = nn.ModuleList(model.get_submodule(model.task.head) for model in models)
        # no submodules: each parameter is registered once, as `functional_call` needs it
        self._models = {**tasks}

    def task(self, name: str) -> TaskModel:
        """Return the model of a task."""
        return self._models[name]

    def train(self, mode: bool = True) -> Self:
        """Set the mode of all models."""
        for model in self._models.values():
            model.train(mode)
        return super().train(mode)

    def counts(self, batch: Batch) -> dict[str, int]:
        """Return the number of predictions of each loss for a batch."""
        return self.task(*batch.targets).counts(batch)

    def forward(self, batch: Batch) -> dict[str, LossSum]:
        """Return the loss of the task of the batch.

        Parameters of other heads have the gradient 0, and not none: in several processes each
        parameter needs one, and a process alone takes the same steps.
        """
        model = self.task(*batch.targets)
        (loss, correct) = model(batch)["task"]
        used = set(map(id, model.parameters()))
        unused = [
            p.float().sum() for p in self.parameters() if id(p) not in used and p.requires_grad
        ]
        if unused:
            loss = loss + 0 * torch.stack(unused).sum()
        return {"task": LossSum(loss, correct)}
