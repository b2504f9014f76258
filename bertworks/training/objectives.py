"""Objectives of pre-training, and the network that learns several of them at once.

- `OBJECTIVES`: the objectives by kind, each with its heads, loss and figures; reports and
  evaluations iterate over it
- `PretrainingModel`: an encoder with the heads of its objectives; BERT is `masked_lm` +
  `next_sentence`, ELECTRA `masked_lm` + 50 `replaced_token`, with a second encoder that replaces
  tokens
- `student_config`, `student_state`: a student, made from layers of its teacher; `Teacher`: a frozen
  network that it reads
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertworks.batching.batch import Batch
from bertworks.batching.contexts import BLOCK, CONTEXT_OBJECTIVES, NEGATIVES
from bertworks.batching.orders import RANK, UNRANKED
from bertworks.batching.spelled_words import DIRECTED_OBJECTIVES
from bertworks.errors import check
from bertworks.models.attention import Source
from bertworks.models.config import EncoderConfig
from bertworks.models.heads import LMHead, Pooler, TokenHead, add_heads
from bertworks.models.layers import (
    compiles_sizes,
    count_parameters,
    dropout,
    pad_rows_to_bucket,
)
from bertworks.models.settings import Head
from bertworks.models.transformer import Encoder, make_decoder, select_layers, student_layers
from bertworks.training.context_loss import context_loss, num_predictions
from bertworks.training.loop import LossStats, LossSum, TrainableModel, cross_entropy
from bertworks.training.recipe import TEACHER_OBJECTIVES, ObjectiveKind, Recipe

CHUNK_BYTES = 1 << 27
GPU_CHUNK_BYTES = 1 << 31  # of logits in memory at the same time
_ALIGNED = 8  # numbers: a GPU multiplies matrices slowly where a row is no multiple of 16 bytes


def vocabulary_cross_entropy(
    x: Tensor,
    embeddings: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    smoothing: float = 0.0,
) -> LossSum:
    """Return the cross-entropy of the logits `x @ embeddings.T + bias`, without keeping them.

    They are the largest tensor of a small BERT.

    x [M, hidden], embeddings [V, hidden], bias [V], labels int64 [M].

    smoothing: fraction of the target probability that is spread over all V tokens (Szegedy et al.
        2016, section 7; Vaswani et al. 2017, section 5.4).
    """
    size = len(embeddings)

    def subtract(logits: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
        targets = labels[rows]
        correct = _num_correct(logits, targets)
        numbers = torch.arange(len(targets), device=logits.device)
        if smoothing:
            # The logarithm of each probability is a logit minus this one.
            whole = logits.logsumexp(-1).float()
            probabilities = logits[numbers, targets].float() - whole
            means = logits[:, :size].float().mean(-1) - whole
            loss = -((1 - smoothing) * probabilities + smoothing * means).sum()
            torch.softmax(logits.clone() if logits.is_cuda else logits, -1, out=logits)
            logits[:, :size] -= smoothing / size
            logits[numbers, targets] -= 1 - smoothing
            return loss, correct
        # A GPU's kernel does not promise that it may write over what it reads.
        torch.softmax(logits.clone() if logits.is_cuda else logits, -1, out=logits)
        probability = logits.gather(1, targets[:, None]).float()
        logits[numbers, targets] -= 1
        return -probability.clamp_min(torch.finfo(torch.float32).tiny).log().sum(), correct

    # tokens of probability 0: three times as fast
    if x.is_cuda and (extra := -len(embeddings) % _ALIGNED):
        bias = F.pad(
            x.new_zeros(len(embeddings)) if bias is None else bias, (0, extra), value=-math.inf
        )
        embeddings = F.pad(embeddings, (0, 0, 0, extra))
    return LossSum(*_VocabularyLoss.apply(x, embeddings, bias, subtract))  # type: ignore[no-untyped-call]


def divergence(logits: Tensor, teacher_logits: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return the sum of the divergences of rows of [M, C], and its gradient by the logits.

    It is KL(softmax(teacher_logits / temperature) || softmax(logits / temperature)) * temperature
    ** 2.
    """
    dtype = torch.promote_types(logits.dtype, torch.float32)
    q, p = ((y.to(dtype) / temperature).log_softmax(-1) for y in (logits, teacher_logits))
    probability = p.exp()
    return temperature**2 * (probability * (p - q)).sum(), temperature * (q.exp() - probability)


@torch.no_grad()
def sample_tokens(x: Tensor, embeddings: Tensor, bias: Tensor | None, draws: Tensor) -> Tensor:
    """Return a token for each row of x [M, hidden], from the softmax of its logits: int64 [M].

    Some rows are computed at a time. It is the first token at which the sum of the probabilities
    exceeds the number of the row in `draws` [M], from 0 to 1.
    """
    size = max(1, CHUNK_BYTES // (8 * len(embeddings)))
    tokens = [torch.zeros(0, dtype=torch.long, device=x.device)]
    count = len(x)
    if compiles_sizes(x):
        x = pad_rows_to_bucket(x)
        draws = pad_rows_to_bucket(draws)
    for rows, numbers in zip(x.split(size), draws.split(size), strict=True):
        p = F.linear(rows, embeddings, bias).float().softmax(-1)
        # On a GPU, only sums of whole numbers have a fixed order in torch.
        sums = ((p.double() * 2**40).long() if p.is_cuda else p).cumsum(-1)
        places = torch.searchsorted(
            sums, (numbers[:, None].float() * sums[:, -1:]).to(sums.dtype), right=True
        )
        tokens.append(places.squeeze(1).clamp_max(len(embeddings) - 1))
    return torch.cat(tokens)[:count]


class _VocabularyLoss(torch.autograd.Function):
    """A loss of logits of the vocabulary, which are freed in the forward pass.

    The gradient of the logits, such as the softmax minus one at the label, is known in the forward
    pass, which computes the gradients of its inputs at once, some rows at a time.

    subtract: logits of some rows, and their numbers -> the sum of their losses and the number of
        correct predictions; the logits become their gradient.
    """

    @staticmethod
    def forward(  # type: ignore[no-untyped-def]
        ctx,
        x: Tensor,
        embeddings: Tensor,
        bias: Tensor | None,
        subtract: Callable[..., tuple[Tensor, Tensor]],
    ) -> tuple[Tensor, Tensor]:
        needs_grad = any(ctx.needs_input_grad)
        count = len(x)
        if compiles_sizes(x):
            x = pad_rows_to_bucket(x)
        loss = x.new_zeros((), dtype=torch.promote_types(x.dtype, torch.float32))
        correct = torch.zeros_like(loss)
        grad_x = torch.empty_like(x) if needs_grad else None
        grad_embeddings = grad_bias = None
        most = GPU_CHUNK_BYTES if x.is_cuda else CHUNK_BYTES
        chunks = math.ceil(len(x) * len(embeddings) * x.element_size() / most)
        size = math.ceil(len(x) / chunks) if chunks else 1
        for start in range(0, len(x), size):
            rows = x[start : start + size]
            p = F.linear(rows, embeddings, bias)
            real = max(0, min(size, count - start))
            part, right = subtract(p[:real], slice(start, start + real))
            p[real:] = 0
            loss += part
            correct += right
            if grad_x is not None:
                torch.mm(p, embeddings, out=grad_x[start : start + size])
                part_embeddings = torch.mm(p.t(), rows)
                part_bias = p.sum(0)
                if chunks > 1:  # many sums are added up in single precision
                    part_embeddings = part_embeddings.to(loss.dtype)
                    part_bias = part_bias.to(loss.dtype)
                grad_embeddings = (
                    part_embeddings
                    if grad_embeddings is None
                    else grad_embeddings.add_(part_embeddings)
                )
                if bias is not None:
                    grad_bias = part_bias if grad_bias is None else grad_bias.add_(part_bias)
        ctx.dtype = x.dtype
        ctx.save_for_backward(
            grad_x if grad_x is None else grad_x[:count], grad_embeddings, grad_bias
        )
        ctx.mark_non_differentiable(correct)
        return loss, correct

    @staticmethod
    def backward(ctx, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[no-untyped-def]
        return *(None if g is None else (g * grad).to(ctx.dtype) for g in ctx.saved_tensors), None


def _num_correct(logits: Tensor, labels: Tensor) -> Tensor:
    """How often the label is the argmax, the first of equal ones.

    On a CPU the argmax takes longer than the softmax, so it is computed only for rows in which no
    logit is above the label's.
    """
    if not logits.is_cuda:
        (best,) = (
            (logits.gather(1, labels[:, None]) >= logits.amax(-1, keepdim=True))
            .squeeze(1)
            .nonzero(as_tuple=True)
        )
        logits = logits.index_select(0, best)
        labels = labels.index_select(0, best)
    return (logits.argmax(-1) == labels).sum()


class Measure(NamedTuple):
    """A figure of an objective, and how it is printed.

    compute: None: it is no function of losses, and a job computes it in another way.
    starts_at_zero: the axis of its chart.
    """

    name: str
    compute: Callable[[LossStats], float] | None
    format: str
    starts_at_zero: bool = False

    @property
    def key(self) -> str:
        """What stands behind the kind of the objective in the name of the figure."""
        return self.name.lower()


LOSS = Measure("loss", lambda stats: stats.loss, "{:.3f}")
ACCURACY = Measure("accuracy", lambda stats: stats.accuracy, "{:.1%}", True)
PERPLEXITY = Measure("perplexity", lambda stats: math.exp(min(stats.loss, 700.0)), "{:,.1f}", True)
BLEU = Measure("BLEU", None, "{:.1f}", True)  # of greedy translations of held-out pairs


class TeacherStates(NamedTuple):
    """What a teacher computes for a batch of T tokens; its logits are `x @ embeddings.T + bias`."""

    states: Tensor  # [T, hidden]: the last hidden states
    x: Tensor  # [T, width]: what is multiplied with the embedding matrix
    embeddings: Tensor  # [V, width]
    bias: Tensor | None  # [V]


class Contexts(NamedTuple):
    """What the losses of static vectors read besides the vectors of words, see `context_loss`."""

    targets: Tensor  # [blocks, 2 * BLOCK, hidden]
    reach: Tensor  # int64 [blocks, BLOCK, 2]


class Objective(NamedTuple):
    """A loss over the hidden states at the positions of its target, or of all tokens.

    See `OF_ALL_TOKENS`.

    title: what is predicted, in reports.
    measures: the first one decides which checkpoint is the best: lower is better.
    loss: the sum of the losses, of the last hidden states [M, hidden] at these positions and labels
        int64 [M], or `TeacherStates`; or of vectors of words and `Contexts`.
    """

    title: str
    heads: tuple[Head, ...]
    measures: tuple[Measure, ...]
    loss: Callable[["PretrainingModel", Tensor, Any], LossSum]


def _token_loss(model: "PretrainingModel", states: Tensor, labels: Tensor) -> LossSum:
    smoothing = model.label_smoothing if model.training else 0.0
    return vocabulary_cross_entropy(*model.vocabulary_inputs(states), labels, smoothing)


def _word_loss(model: "PretrainingModel", states: Tensor, labels: Tensor) -> LossSum:
    assert model.word_output is not None
    smoothing = model.label_smoothing if model.training else 0.0
    weight = model.word_output.weight
    # Words behind those that can be predicted are the unknown word, which is the first one.
    labels = labels * (labels < len(weight))
    return vocabulary_cross_entropy(states, weight, model.word_output.bias, labels, smoothing)


def _replaced_loss(model: "PretrainingModel", states: Tensor, labels: Tensor) -> LossSum:
    assert model.replaced_token is not None
    logits = model.replaced_token(states).float()
    loss = F.binary_cross_entropy_with_logits(logits, labels.float(), reduction="sum")
    return LossSum(loss, ((logits.detach() > 0) == labels).sum().float())


def _distillation_loss(
    model: "PretrainingModel", states: Tensor, teacher: TeacherStates
) -> LossSum:
    """Return the divergence of two softmaxes of logits, without keeping the logits of either.

    It is KL(teacher || student) over the temperature, times its square (Hinton et al. 2015, section
    2). No correct predictions are counted.
    """

    def subtract(logits: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
        teacher_logits = F.linear(teacher.x[rows], teacher.embeddings, teacher.bias)
        loss, gradient = divergence(logits, teacher_logits, model.temperature)
        logits.copy_(gradient)
        return loss, loss.new_zeros(())

    inputs = model.vocabulary_inputs(states)
    return LossSum(*_VocabularyLoss.apply(*inputs, subtract))  # type: ignore[no-untyped-call]


def _cosine_loss(model: "PretrainingModel", states: Tensor, teacher: TeacherStates) -> LossSum:
    dtype = torch.promote_types(states.dtype, torch.float32)
    loss = (1 - F.cosine_similarity(states.to(dtype), teacher.states.to(dtype), -1)).sum()
    return LossSum(loss, loss.new_zeros(()))


def _of_contexts(kind: str, title: str) -> Objective:
    """Pairs of words against negative words, by a second table of vectors."""

    def loss(model: "PretrainingModel", words: Tensor, contexts: Contexts) -> LossSum:
        return context_loss(kind, words, *contexts, model.num_negatives)

    return Objective(title, (), (LOSS,), loss)


def _of_pairs(head: Head) -> Objective:
    """One of two labels for two segments, by a head behind the pooler."""

    def loss(model: "PretrainingModel", states: Tensor, labels: Tensor) -> LossSum:
        assert model.pooler is not None
        return cross_entropy(model.get_submodule(head)(model.pooler(states)), labels)

    return Objective(head.replace("_", " "), ("pooler", head), (LOSS, ACCURACY), loss)


OBJECTIVES: Mapping[str, Objective] = {
    # Predict the masked tokens (Devlin et al. 2019, section 3.1, task 1).
    "masked_lm": Objective(
        "masked tokens", ("lm_head",), (LOSS, ACCURACY, PERPLEXITY), _token_loss
    ),
    # Predict each token from those before it (Radford et al. 2018, section 3.1).
    "causal_lm": Objective("next tokens", ("lm_head",), (LOSS, ACCURACY, PERPLEXITY), _token_loss),
    # Predict some tokens in a random order, each from those before it in this order and from all
    # others (Yang et al. 2019, section 2.3).
    "permutation_lm": Objective(
        "tokens in an order", ("lm_head",), (LOSS, ACCURACY, PERPLEXITY), _token_loss
    ),
    # Predict each token of a translation from the source and those before it (Sutskever et al.
    # 2014, section 2; Vaswani et al. 2017, section 3.1).
    "translation": Objective(
        "translated tokens", ("lm_head",), (LOSS, ACCURACY, PERPLEXITY, BLEU), _token_loss
    ),
    # Predict each word from those before it, and from those behind it (Peters et al. 2018, section
    # 3.1).
    "forward_lm": Objective("next words", (), (LOSS, ACCURACY, PERPLEXITY), _word_loss),
    "backward_lm": Objective("previous words", (), (LOSS, ACCURACY, PERPLEXITY), _word_loss),
    # Predict each word around a word (Mikolov et al. 2013).
    "skip_gram": _of_contexts("skip_gram", "words around a word"),
    # Predict a word from the words around it.
    "cbow": _of_contexts("cbow", "words between others"),
    # Predict whether segment B follows segment A (task 2).
    "next_sentence": _of_pairs("next_sentence"),
    # Predict which of two segments comes first in the text (Lan et al. 2020, section 3.1).
    "sentence_order": _of_pairs("sentence_order"),
    # Predict for each token whether the generator replaced it (Clark et al. 2020, section 2).
    "replaced_token": Objective(
        "replaced tokens", ("replaced_token",), (LOSS, ACCURACY), _replaced_loss
    ),
    # Predict the probabilities that a teacher gives to all tokens, at every position (Sanh et al.
    # 2019, section 3).
    "distillation": Objective("teacher's logits", ("lm_head",), (LOSS,), _distillation_loss),
    # Give the last hidden states the direction of the teacher's (section 3, L_cos).
    "cosine": Objective("teacher's states", (), (LOSS,), _cosine_loss),
}
OF_ALL_TOKENS = {"replaced_token", *TEACHER_OBJECTIVES}
BERT: Mapping[ObjectiveKind, float] = {"masked_lm": 1.0, "next_sentence": 1.0}


def heads_of(kinds: Collection[str]) -> tuple[Head, ...]:
    """Return the heads that these objectives need.

    With `replaced_token` the masked LM head belongs to the generator.
    """
    kinds_of_model = {*kinds} - ({"masked_lm"} if "replaced_token" in kinds else set())
    needed = {head for kind in kinds_of_model for head in OBJECTIVES[kind].heads}
    return tuple(head for head in get_args(Head) if head in needed)


def num_trained(recipe: Recipe) -> int:
    """Return the number of parameters that a recipe trains.

    They are those of the model, and of a generator what it does not share.
    """
    return count_parameters(PretrainingModel.of, recipe)


SHARED = ("token", "position", "token_type")  # embeddings that a generator shares


def figures(means: Mapping[str, LossStats], perplexity: bool = True) -> dict[str, float]:
    """Return the figures of objectives, such as `masked_lm_accuracy`, or of a task.

    They are with or without perplexities.
    """
    return {
        f"{name}_{measure.key}": measure.compute(stats)
        for name, stats in means.items()
        for measure in (OBJECTIVES[name].measures if name in OBJECTIVES else (LOSS, ACCURACY))
        if measure.compute is not None and (perplexity or measure is not PERPLEXITY)
    }


class PretrainingModel(TrainableModel):
    """An encoder with the heads of its objectives, whose weighted losses are added.

    The default is BERT (Devlin et al. 2019, appendix A.2). One pass of the encoder serves all
    objectives; its last layer is computed only at the positions that they read.

    With `replaced_token` (ELECTRA, Clark et al. 2020) a second, smaller model, the generator, has
    the masked LM head. Tokens from its predictions replace the masked tokens of its input, and the
    encoder reads the result. Both share the embeddings of tokens, positions and types. No gradient
    passes from one to the other.

    Args:
        objectives: the weights of the losses by kind, see `OBJECTIVES`.
        generator_size: see `EncoderConfig.generator`.
        temperature: of the objective "distillation".
        label_smoothing: of the losses of tokens in training, see `vocabulary_cross_entropy`.
        num_negatives: of the objectives "skip_gram" and "cbow", see `ContextConfig`.

    Attributes:
        context: the second table of static vectors, [V, hidden], from 0 on, with which only the
            training compares the first (Mikolov et al. 2013). Model folders do not have it.
        word_output: of the objectives "forward_lm" and "backward_lm", the output layer of both over
            the words that can be predicted. Model folders do not have it.
        unread_id: of "permutation_lm": the mask token, which is not read; -1: there is none.
        teacher: of the objectives that need one. It is no part of the network: not trained, not
            saved.
    """

    pooler: Pooler | None
    lm_head: LMHead | None
    replaced_token: TokenHead | None
    teacher: Callable[[Batch], TeacherStates] | None = None
    unread_id = -1

    def __init__(
        self,
        c: EncoderConfig,
        objectives: Mapping[ObjectiveKind, float] = BERT,
        *,
        generator_size: float = 0.25,
        temperature: float = 2.0,
        label_smoothing: float = 0.0,
        num_negatives: int = 5,
        gradient_checkpointing: bool = False,
    ):
        super().__init__()
        self.temperature = temperature
        self.num_negatives = num_negatives
        self.label_smoothing = label_smoothing
        self.weights = {str(kind): weight for kind, weight in objectives.items()}
        self.encoder = Encoder(c, gradient_checkpointing)
        self.decoder = make_decoder(c, gradient_checkpointing)
        add_heads(self, c, heads_of(objectives))
        self.context: nn.Embedding | None = None
        if not CONTEXT_OBJECTIVES.isdisjoint(objectives):
            self.context = nn.Embedding(c.vocab_size, c.hidden_size)
            nn.init.zeros_(self.context.weight)
        self.word_output: nn.Linear | None = None
        if not objectives.keys().isdisjoint(DIRECTED_OBJECTIVES):
            width = c.hidden_size // 2
            self.word_output = nn.Linear(width, c.vocab_size)
            nn.init.normal_(self.word_output.weight, std=width**-0.5)
            nn.init.zeros_(self.word_output.bias)
        self.generator: PretrainingModel | None = None
        if self.replaced_token is not None:
            smaller = c.generator(generator_size)
            self.generator = PretrainingModel(
                smaller, {"masked_lm": 1.0}, gradient_checkpointing=gradient_checkpointing
            )
            for table in SHARED:
                setattr(
                    self.generator.encoder.embeddings,
                    table,
                    getattr(self.encoder.embeddings, table),
                )

    @classmethod
    def of(cls, recipe: Recipe) -> "PretrainingModel":
        """Return the network that a recipe trains, with random weights and without a teacher."""
        return cls(
            recipe.encoder,
            recipe.weights,
            generator_size=recipe.generator_size,
            temperature=recipe.temperature,
            label_smoothing=recipe.label_smoothing,
            num_negatives=recipe.context.negatives,
            gradient_checkpointing=recipe.train.gradient_checkpointing,
        )

    def counts(self, batch: Batch) -> dict[str, int]:
        """Return the number of predictions of each objective for a batch."""
        kinds = self._present(batch)
        if self.context is not None:
            return {kind: num_predictions(kind, batch.targets[kind].labels) for kind in kinds}
        return {
            kind: len(batch.input_ids if kind in OF_ALL_TOKENS else batch.targets[kind].labels)
            for kind in kinds
        }

    def forward(self, batch: Batch) -> dict[str, LossSum]:
        """Return the losses of the objectives for a batch."""
        if self.generator is not None:
            masked, input_ids, replaced = self.replace_tokens(batch)
            states = self.encoder(input_ids, batch.layout, batch.token_type_ids)[-1]
            return {"masked_lm": masked, "replaced_token": _replaced_loss(self, states, replaced)}
        if self.decoder is not None:
            target = batch.targets["translation"]
            return {"translation": _token_loss(self, self.translation_states(batch), target.labels)}
        kinds = self._present(batch)
        if "permutation_lm" in kinds:
            target = batch.targets["permutation_lm"]
            states = self._ordered_states(batch, target.positions)
            return {"permutation_lm": _token_loss(self, states, target.labels)}
        if self.context is not None:
            return {kind: OBJECTIVES[kind].loss(self, *self._words(kind, batch)) for kind in kinds}
        if self.word_output is not None:
            rate = self.encoder.config.hidden_dropout if self.training else 0.0
            halves = self.encoder.predicting_states(batch.input_ids, batch.layout)
            return {
                kind: OBJECTIVES[kind].loss(self, dropout(half, rate), batch.targets[kind].labels)
                for kind, half in zip(DIRECTED_OBJECTIVES, halves, strict=True)
            }
        inputs = batch.inputs
        read: Iterable[tuple[Tensor, Tensor | TeacherStates]]
        if TEACHER_OBJECTIVES.isdisjoint(kinds):
            positions = [self._positions(kind, batch) for kind in kinds]
            parts = self.last_states(batch, torch.cat(positions)).split(
                [len(rows) for rows in positions]
            )
            read = (
                (part, batch.targets[kind].labels) for kind, part in zip(kinds, parts, strict=True)
            )
        else:  # some losses read the last states of all tokens, and those of a teacher
            assert self.teacher is not None
            teacher = self.teacher(batch)
            states = self.encoder(*inputs)[-1]
            read = (
                (states, teacher)
                if kind in TEACHER_OBJECTIVES
                else (
                    states.index_select(0, self._positions(kind, batch)),
                    batch.targets[kind].labels,
                )
                for kind in kinds
            )
        return {
            kind: OBJECTIVES[kind].loss(self, *loss_inputs)
            for kind, loss_inputs in zip(kinds, read, strict=True)
        }

    def last_states(self, batch: Batch, rows: Tensor) -> Tensor:
        """Return the last states of the tokens `rows` int64 [M] of a batch: [M, hidden].

        Of a text that is read in lanes, the memory is read, and what it is to keep is written.
        """
        memory = self._memory_before(batch)
        *states, last = self.encoder(*batch.inputs, rows, memory=memory)
        self._remember(batch, states)
        return last  # type: ignore[no-any-return]

    def _memory_before(self, batch: Batch) -> list[Tensor] | None:
        """Return the states before the sequences of a batch, see `Memory.read`."""
        if self.memory is None or batch.lanes is None:
            return None
        return self.memory.read(*batch.lanes)

    def _remember(self, batch: Batch, states: list[Tensor]) -> None:
        """Write the states before each layer into the memory, if the batch is read in lanes."""
        if self.memory is not None and batch.lanes is not None:
            self.memory.write(batch.lanes.numbers, states)

    def translation_states(self, batch: Batch) -> Tensor:
        """Return the last states of the decoder at the positions of the targets: [M, hidden].

        The tokens of type 0 are the source, those of type 1 the translation.
        """
        assert self.decoder is not None
        assert batch.token_type_ids is not None
        is_source = batch.token_type_ids == 0
        layouts = batch.layout.select(is_source), batch.layout.select(~is_source)
        source = Source(self.encoder(batch.input_ids[is_source], layouts[0])[-1], layouts[0])
        embeddings = self.encoder.embeddings(batch.input_ids[~is_source], layouts[1])
        states = self.decoder(embeddings, layouts[1], source)[-1]
        rows = batch.token_type_ids.cumsum(0) - 1  # of the tokens of the translation
        return states.index_select(0, rows[batch.targets["translation"].positions])  # type: ignore[no-any-return]

    def scores(self, batch: Batch) -> Tensor:
        """[M, V]: the logits of the vocabulary at the masked tokens."""
        assert self.lm_head is not None
        positions = batch.targets["masked_lm"].positions
        if self.encoder.query is not None:
            states = self._ordered_states(batch, positions)
        else:
            states = self.encoder(*batch.inputs, positions)[-1]
        return self.lm_head(states, self.encoder.embeddings.token.weight)  # type: ignore[no-any-return]

    def _ordered_states(self, batch: Batch, positions: Tensor) -> Tensor:
        """Return the states of tokens that are predicted and not read: [M, hidden].

        Without ranks in the batch, each of them is predicted from all tokens but these, and but the
        mask token. The memory of a text that is read in lanes is read by all of them.
        """
        if RANK in batch.targets:
            rank = batch.targets[RANK].labels
        else:
            rank = torch.full_like(batch.input_ids, UNRANKED).index_fill(0, positions, 0)
            rank = rank.masked_fill(batch.input_ids == self.unread_id, 0)
        layout = replace(batch.layout, rank=rank)
        memory = self._memory_before(batch)
        states, before = self.encoder.read(
            batch.input_ids, layout, positions, batch.token_type_ids, memory
        )
        self._remember(batch, before)
        return states

    def vocabulary_inputs(self, states: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the inputs of the logits of the vocabulary.

        They are x [M, width], the embeddings [V, width] and the bias.
        """
        assert self.lm_head is not None
        x = self.lm_head.transform(states)
        return x, self.encoder.embeddings.token.weight.to(x.dtype), self.lm_head.bias

    def replace_tokens(self, batch: Batch) -> tuple[LossSum, Tensor, Tensor]:
        """Return the loss of the generator, the replaced tokens, and which were replaced.

        int64 [T]: the tokens with the predicted ones from the generator; bool [T]: which of them
        differ from the original. A sample that equals the original counts as original.
        """
        assert self.generator is not None
        generator = self.generator
        target = batch.targets["masked_lm"]
        states = generator.encoder(*batch.inputs, target.positions)[-1]
        inputs = generator.vocabulary_inputs(states)
        masked = vocabulary_cross_entropy(*inputs, target.labels)
        tokens = sample_tokens(*inputs, batch.targets["replaced_token"].labels)
        replaced = torch.zeros_like(batch.input_ids, dtype=torch.bool)
        replaced[target.positions] = tokens != target.labels
        return masked, batch.input_ids.index_copy(0, target.positions, tokens), replaced

    def _words(self, kind: str, batch: Batch) -> tuple[Tensor, Contexts]:
        """Return both vectors of each word of the blocks of a batch.

        The first ones are what the encoder, which has no layers, makes of a word.
        """
        assert self.context is not None
        target = batch.targets[kind]
        words = batch.input_ids.index_select(0, target.positions).view(-1, BLOCK)
        negatives = batch.targets[NEGATIVES].labels.view(-1, BLOCK)
        targets = self.context(torch.cat([words, negatives], 1))
        reach = target.labels.view(-1, BLOCK, 2)
        return self.encoder.embeddings.token(words), Contexts(targets, reach)

    def _positions(self, kind: str, batch: Batch) -> Tensor:
        """Return the positions of the hidden states that a loss reads: int64 [M].

        They are those of its target, or of the pooler.
        """
        if self.pooler is not None and "pooler" in OBJECTIVES[kind].heads:
            return self.pooler.tokens(batch.layout).long()
        return batch.targets[kind].positions

    def _present(self, batch: Batch) -> list[str]:
        """Return the objectives whose targets a batch has."""
        return [
            kind for kind in self.weights if kind in batch.targets or kind in TEACHER_OBJECTIVES
        ]


POSITIONS, TYPES = (f"encoder.embeddings.{name}.weight" for name in ("position", "token_type"))


# What a student of a pre-training does not take from its teacher.
OWN = (
    "num_hidden_layers",
    "type_vocab_size",
    "hidden_dropout",
    "attention_dropout",
    "sequence_dropout",
    "token_dropout",
    "embedding_dropout",
    "choice_dropout",
    "span_dropout",
    "initializer_range",
    "pooler",
    "pooler_dropout",
    "family",
)


def student_config(c: EncoderConfig, teacher: EncoderConfig) -> EncoderConfig:
    """Return the network of a student.

    It has the width, vocabulary and positions of the teacher; the layers and the family of `c`.

    Raises:
        ValueError: the teacher cannot teach such a network.
    """
    layers = c.num_hidden_layers
    teacher_layers = teacher.num_hidden_layers
    check(
        layers <= teacher_layers,
        f"the student has {layers} layers, the teacher {teacher_layers}: expected "
        f"encoder.num_hidden_layers = {max(1, teacher_layers // 2)}",
    )
    check(
        c.direction == teacher.direction,
        f"the teacher reads {teacher.direction}, encoder.direction is {c.direction!r}",
    )
    check(
        c.type_vocab_size in (0, teacher.type_vocab_size),
        f"encoder.type_vocab_size is {c.type_vocab_size}, that of "
        f"the teacher {teacher.type_vocab_size}: expected 0, or the same",
    )
    groups = (
        min(teacher.num_hidden_groups, 1)
        if teacher.num_groups == 1
        else layers * (teacher.num_hidden_groups > 0)
    )
    return replace(teacher, num_hidden_groups=groups, **{name: getattr(c, name) for name in OWN})


def student_state(
    teacher: tuple[EncoderConfig, Mapping[str, Tensor], object], c: EncoderConfig
) -> dict[str, Tensor]:
    """Return the parameters from which a student starts.

    Without token types it computes what the teacher's layers compute where all types are 0: row 0
    of their table is added to every position.
    """
    layers = student_layers(teacher[0].num_hidden_layers, c.num_hidden_layers)
    _, result = select_layers(*teacher[:2], layers)
    result = {
        name: value for name, value in result.items() if name.startswith(("encoder.", "lm_head."))
    }
    types = None if c.type_vocab_size else result.pop(TYPES, None)
    if types is not None:
        result[POSITIONS] = result[POSITIONS] + types[0]
    return result


class Teacher:
    """`teacher(batch)` is what a frozen network computes, without dropout and gradients.

    It is no module, so that no network that has it trains or saves it.

    dtype: in which it computes; its parameters are rounded once. The embeddings that are read are
        not.
    """

    def __init__(self, c: EncoderConfig, state: Mapping[str, Tensor] | None, dtype: torch.dtype):
        self.encoder = Encoder(c)
        self.lm_head = LMHead(c)
        self.parts = nn.ModuleDict({"encoder": self.encoder, "lm_head": self.lm_head})
        if state is not None:
            self.parts.load_state_dict({name: state[name] for name in self.parts.state_dict()})
        self.parts.eval().requires_grad_(False)
        self.table = self.encoder.embeddings.token.weight.to(dtype)
        for part in self.parts.modules():
            if not isinstance(part, nn.Embedding):
                for parameter in part.parameters(recurse=False):
                    parameter.data = parameter.data.to(dtype)

    @torch.no_grad()
    def __call__(self, batch: Batch) -> TeacherStates:
        """Return the states of the teacher for a batch."""
        self.parts.to(batch.input_ids.device)
        self.table = self.table.to(batch.input_ids.device)
        states = self.encoder(*batch.inputs)[-1]
        return TeacherStates(states, self.lm_head.transform(states), self.table, self.lm_head.bias)
