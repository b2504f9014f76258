"""The losses of static vectors: against the published formulas, word by word, in float64."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bertworks.batching.batch import collate
from bertworks.batching.contexts import BLOCK, ContextConfig, ContextWords
from bertworks.batching.examples import TokenSequence, keyed_rng
from bertworks.models.config import EncoderConfig
from bertworks.training.context_loss import context_loss, num_predictions
from bertworks.training.loop import evaluate
from bertworks.training.objectives import Contexts, PretrainingModel

WIDTH = 5
VOCABULARY = 12
COUNTS = np.arange(1, VOCABULARY + 1, dtype=np.int64) ** 2
CONFIG = EncoderConfig(
    family="static",
    kind="static",
    vocab_size=VOCABULARY,
    hidden_size=WIDTH,
    num_hidden_layers=0,
    num_attention_heads=1,
    max_position_embeddings=1 << 20,
    position_embedding_type="none",
    type_vocab_size=0,
    embedding_norm=False,
    hidden_dropout=0.0,
)


def minus_log_sigmoid(x: float) -> float:
    return float(np.logaddexp(0.0, -x))


def sequence(count: int, seed: int = 0) -> TokenSequence:
    draw = np.random.default_rng(seed)
    sentences = np.arange(count) // 9
    return TokenSequence(
        draw.integers(0, VOCABULARY, count), sentences, np.zeros(count, np.bool_), {}
    )


def tables(seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    first, second = torch.randn(2, VOCABULARY, WIDTH, generator=generator, dtype=torch.float64)
    return first, second


def model_of(kind: Any, seed: int = 0) -> PretrainingModel:
    model = PretrainingModel(CONFIG, {kind: 1.0}).double()
    assert model.context is not None
    with torch.no_grad():
        for table, values in zip(
            (model.encoder.embeddings.token, model.context), tables(seed), strict=True
        ):
            table.weight.copy_(values)
    return model


def random_contexts(blocks: int) -> tuple[Tensor, Contexts]:
    draw = torch.Generator().manual_seed(1)
    vectors = torch.randn(blocks, 3 * BLOCK, WIDTH, generator=draw, dtype=torch.float64)
    words, others = vectors.split([BLOCK, 2 * BLOCK], 1)
    places = torch.arange(BLOCK).expand(blocks, BLOCK)
    reach = torch.randint(0, 5, (blocks, BLOCK, 2), generator=draw)
    reach = torch.minimum(reach, torch.stack([places, BLOCK - 1 - places], -1))
    return words.contiguous(), Contexts(others.contiguous(), reach)


def published(kind: str, words: Tensor, contexts: Contexts, number: int) -> float:
    """Word by word, as in the papers; each negative word of a block with its share."""
    loss = 0.0
    for x, other, reach in zip(
        words.numpy(), contexts.targets.numpy(), contexts.reach, strict=True
    ):
        y, negatives = other[:BLOCK], other[BLOCK:]
        for i, (before, after) in enumerate(reach.tolist()):
            context = [j for j in range(i - before, i + after + 1) if j != i]
            if kind == "skip_gram":
                predictions = [(x[i], y[j]) for j in context]
            else:
                predictions = [(x[context].mean(0), y[i])] if context else []
            for vector, target in predictions:
                loss += minus_log_sigmoid(vector @ target)
                loss += number * np.mean([minus_log_sigmoid(-vector @ n) for n in negatives])
    return loss


@pytest.mark.parametrize("kind", ["skip_gram", "cbow"])
def test_it_is_the_published_loss(kind: str) -> None:
    words, contexts = random_contexts(2)
    loss, correct = context_loss(kind, words, *contexts, 7)
    assert loss.item() == pytest.approx(published(kind, words, contexts, 7), rel=1e-12)
    assert correct == 0
    sums = contexts.reach.sum(-1)
    expected = int(sums.sum()) if kind == "skip_gram" else int((sums > 0).sum())
    assert num_predictions(kind, contexts.reach) == expected


@pytest.mark.parametrize("kind", ["skip_gram", "cbow"])
def test_its_gradient_is_that_of_finite_differences(kind: str) -> None:
    words, (others, reach) = random_contexts(1)

    def loss(words: Tensor, others: Tensor) -> Tensor:
        return 3 * context_loss(kind, words, others, reach, 5).loss

    vectors = [x.clone().requires_grad_() for x in (words, others)]
    assert torch.autograd.gradcheck(loss, vectors, fast_mode=True)


@pytest.mark.parametrize("kind", ["skip_gram", "cbow"])
def test_large_scores_have_a_finite_loss(kind: str) -> None:
    words, contexts = random_contexts(1)
    for factor in (-1e4, 1e4):
        x = (factor * words).float().requires_grad_()
        loss, _ = context_loss(kind, x, contexts.targets.float(), contexts.reach, 5)
        loss.backward()
        assert loss.isfinite()
        assert x.grad is not None
        assert x.grad.isfinite().all()


def test_windows_and_negative_words_give_the_published_loss_on_average() -> None:
    """Skip-gram without subsampling: a pair at the distance d counts (W - d + 1) / W times, and for
    each pair K words are drawn from count ** 0.75 (Mikolov et al. 2013, equation 4)."""
    config = ContextConfig(subsampling=0.0, window=4, negatives=3)
    s = sequence(40)
    first, second = (table.numpy() for table in tables())
    noise = COUNTS**0.75 / (COUNTS**0.75).sum()
    expected = 0.0
    for i, word in enumerate(s.input_ids):
        of_noise = sum(p * minus_log_sigmoid(-first[word] @ second[v]) for v, p in enumerate(noise))
        for j, other in enumerate(s.input_ids):
            distance = abs(i - j)
            if 0 < distance <= 4 and s.token_type_ids[i] == s.token_type_ids[j]:
                share = (4 - distance + 1) / 4
                expected += share * (minus_log_sigmoid(first[word] @ second[other]) + 3 * of_noise)
    model = model_of("skip_gram")
    model.num_negatives = 3
    maker = ContextWords("skip_gram", config, COUNTS)
    with torch.no_grad():
        losses = [
            model(collate([maker(s, keyed_rng("test", n))]))["skip_gram"].loss.item()
            for n in range(1500)
        ]
    error = np.std(losses) / np.sqrt(len(losses))
    assert error < 0.01 * expected
    assert np.mean(losses) == pytest.approx(expected, abs=4 * error)


@pytest.mark.parametrize("kind", ["skip_gram", "cbow"])
def test_a_batch_is_its_sequences_one_by_one(kind: Any) -> None:
    maker = ContextWords(kind, ContextConfig(subsampling=0.1), COUNTS, [0])
    examples = [maker(sequence(n, n), keyed_rng("test", n)) for n in (3, 200, 64, 130, 1)]
    model = model_of(kind)
    whole = model(collate(examples))[kind].loss
    whole.backward()
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    assert len(gradients) == 2
    model.zero_grad()
    parts = torch.stack([model(collate([e]))[kind].loss for e in examples]).sum()
    parts.backward()
    torch.testing.assert_close(parts, whole, rtol=1e-12, atol=0)
    for p, gradient in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(p.grad, gradient, rtol=1e-10, atol=1e-12)
    counts = [model.counts(collate([e]))[kind] for e in examples]
    assert model.counts(collate(examples))[kind] == sum(counts)
    assert evaluate(model, [collate(examples)])[kind].count == sum(counts)


def test_the_second_table_starts_at_zero() -> None:
    """So that the first loss is that of a coin for each word and each of its negative words."""
    maker = ContextWords("skip_gram", ContextConfig(), COUNTS)
    batch = collate([maker(sequence(100), keyed_rng("test", 0))])
    model = PretrainingModel(CONFIG, {"skip_gram": 1.0})
    loss = evaluate(model, [batch])["skip_gram"].loss
    assert loss == pytest.approx(6 * np.log(2), rel=1e-6)
