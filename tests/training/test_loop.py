"""Learning: losses, the optimizer, and that a split of the work never shows in the numbers."""

import copy
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from bertworks.batching.batch import collate
from bertworks.batching.examples import Example, Target
from bertworks.models.config import EncoderConfig
from bertworks.models.layers import cpu_supports_bf16, pad_rows_to_bucket
from bertworks.training.loop import (
    Adamax,
    LossSum,
    MixedPrecision,
    cross_entropy,
    evaluate,
    make_optimizer,
    train,
    update,
)
from bertworks.training.objectives import CHUNK_BYTES, PretrainingModel, vocabulary_cross_entropy
from bertworks.training.recipe import OptimizerConfig
from tests.runs.test_joint import model as model, models
from tests.support import ROOT
from tests.support.heads import batch_of

SMALL = EncoderConfig(
    vocab_size=200,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=48,
    hidden_dropout=0.0,
    attention_dropout=0.0,
)


def make_examples(count, seed=0):
    """Sequences of unequal length with unequal numbers of questions."""
    r = np.random.default_rng(seed)
    examples = []
    for _ in range(count):
        n = int(r.integers(6, 40))
        requested = np.sort(r.permutation(n)[: int(r.integers(1, 6))])
        ids = r.integers(200, size=n)
        examples.append(
            Example(
                ids,
                (np.arange(n) > n // 2).astype(np.int64),
                {
                    "masked_lm": Target(requested, r.integers(200, size=len(requested))),
                    "next_sentence": Target(np.zeros(1, int), r.integers(2, size=1)),
                },
            )
        )
    return examples


def make_model(config=SMALL, seed=0, **settings) -> PretrainingModel:
    torch.manual_seed(seed)
    return PretrainingModel(config, **settings)


def run(
    split,
    steps=4,
    config=None,
    precision="fp32",
    seed=0,
    model=None,
    optimizer=None,
    start=0,
    **settings,
):
    """Trains on batches of 12 examples, each cut by `split` into micro-batches; returns model,
    optimizer and steps."""
    model = model or make_model(**settings)
    config = config or OptimizerConfig(learning_rate=1e-2, warmup=0.25)
    optimizer = optimizer or make_optimizer(model, config)

    def batches(step):
        examples = make_examples(12, seed=100 + step)
        return [collate(examples[a:b]) for a, b in zip([0, *split], [*split, 12], strict=True)]

    taken = list(
        train(model, optimizer, batches, config, steps, precision=precision, seed=seed, start=start)
    )
    return model, optimizer, taken


def relative(a, b):
    return ((a - b).norm() / b.norm()).item()


def test_vocabulary_cross_entropy_is_cross_entropy(monkeypatch):
    """Value and gradients against autograd in float64, whole and in chunks."""
    r = torch.Generator().manual_seed(0)
    x, words, bias = (
        torch.randn(*s, generator=r, dtype=torch.float64) for s in ((37, 8), (60, 8), (60,))
    )
    labels = torch.randint(60, (37,), generator=r)

    def both(function):
        inputs = [t.clone().requires_grad_() for t in (x, words, bias)]
        loss = function(*inputs)
        return loss, torch.autograd.grad(3 * loss, inputs)

    wanted, wanted_grads = both(
        lambda x, w, b: nn.functional.cross_entropy(x @ w.T + b, labels, reduction="sum")
    )
    for chunk in (CHUNK_BYTES, 60 * 5 * 8):
        monkeypatch.setattr("bertworks.training.objectives.CHUNK_BYTES", chunk)
        found, grads = both(lambda x, w, b: vocabulary_cross_entropy(x, w, b, labels).loss)
        assert found.item() == pytest.approx(wanted.item(), rel=1e-6)
        for a, b in zip(grads, wanted_grads, strict=True):
            assert relative(a, b) < 1e-6
    # Rows that fill up a product have no loss: here 3 in the last chunk, or one chunk of nothing
    # else.
    monkeypatch.setattr("bertworks.training.objectives.compiles_sizes", lambda _: True)
    for more, chunk in ((3, CHUNK_BYTES), (3, 60 * 5 * 8), (9, 60 * 5 * 8)):
        monkeypatch.setattr(
            "bertworks.training.objectives.pad_rows_to_bucket",
            lambda x, more=more: nn.functional.pad(x, (0, 0, 0, more)),
        )
        monkeypatch.setattr("bertworks.training.objectives.CHUNK_BYTES", chunk)
        found, grads = both(lambda x, w, b: vocabulary_cross_entropy(x, w, b, labels).loss)
        assert found.item() == pytest.approx(wanted.item(), rel=1e-6)
        for a, b in zip(grads, wanted_grads, strict=True):
            assert a.shape == b.shape
            assert relative(a, b) < 1e-6
    tally = vocabulary_cross_entropy(x, words, bias, labels)
    assert tally.correct.item() == ((x @ words.T + bias).argmax(-1) == labels).sum().item()
    assert cross_entropy(x @ words.T + bias, labels).loss.item() == pytest.approx(
        wanted.item(), rel=1e-6
    )


def test_of_equal_scores_the_first_is_the_answer():
    """In bf16 many are equal."""
    words, labels = torch.eye(4).repeat(2, 1).bfloat16(), torch.tensor([0, 4, 1, 2, 6, 3])
    x = torch.eye(4)[[0, 0, 1, 0, 2, 3]].bfloat16()
    scores = x @ words.T
    assert (scores.argmax(-1) == labels).tolist() == [True, False, True, False, False, True]
    assert vocabulary_cross_entropy(x, words, torch.zeros(8).bfloat16(), labels).correct.item() == 3


@pytest.mark.parametrize("split", [[6], [1, 2], [4, 8], list(range(1, 12))])
def test_accumulation_is_one_big_batch(split):
    whole, _, steps = run([])
    parts, _, split_steps = run(split)
    for a, b in zip(steps, split_steps, strict=True):
        assert a.counts == b.counts
        assert a.read()["masked_lm"].loss == pytest.approx(b.read()["masked_lm"].loss, rel=1e-6)
        assert a.grad_norm.item() == pytest.approx(b.grad_norm.item(), rel=1e-5)
    warm = OptimizerConfig(learning_rate=1e-2, warmup=1.0)
    first, second = (run(s, steps=1, config=warm) for s in ([], split))
    for (name, p), q in zip(first[0].named_parameters(), second[0].parameters(), strict=True):
        assert torch.equal(p, q), name  # the first step of a warm-up has rate 0
        state, other = first[1].state[p]["exp_avg"], second[1].state[q]["exp_avg"]
        # The keys' bias has no gradient in exact arithmetic: softmax does not see it. What is left
        # is rounding.
        assert (state - other).norm() <= 1e-6 * max(state.norm(), 1e-3), name
    for p, q in zip(whole.parameters(), parts.parameters(), strict=True):
        torch.testing.assert_close(p, q, atol=1e-2, rtol=0)


def test_a_loss_is_a_mean_over_all_its_questions_and_not_a_mean_of_means():
    model = make_model()
    examples = make_examples(12, seed=100)
    parts = [evaluate(model, [collate([e])])["masked_lm"] for e in examples]
    whole = evaluate(model, [collate(examples[:5]), collate(examples[5:])])["masked_lm"]
    wanted = sum(p.loss * p.count for p in parts) / sum(p.count for p in parts)
    assert whole.loss == pytest.approx(wanted, rel=1e-6)
    assert whole.loss != pytest.approx(np.mean([p.loss for p in parts]), rel=1e-4)


def test_the_loss_is_the_sum_of_masked_lm_and_next_sentence():
    """Against the formula, through the gradient of the sum."""
    model = make_model()
    batch = collate(make_examples(5))
    tallies = model(batch)
    total = (
        tallies["masked_lm"].loss / len(batch.targets["masked_lm"].labels)
        + tallies["next_sentence"].loss / 5
    )
    grads = torch.autograd.grad(total, list(model.parameters()))
    norm = torch.stack([g.norm() for g in grads]).norm().item()
    c = OptimizerConfig()
    step = next(train(model, make_optimizer(model, c), lambda _: [batch], c, 10))
    assert step.grad_norm.item() == pytest.approx(norm, rel=1e-5)


@pytest.mark.parametrize("kind", ["adamw", "lamb"])
def test_resumed_is_uninterrupted_to_the_bit(kind):
    dropout = replace(SMALL, hidden_dropout=0.1, attention_dropout=0.1)
    c = OptimizerConfig(optimizer=kind, learning_rate=1e-3, schedule="constant")
    whole, _, steps = run([5], steps=6, config=c, model=make_model(dropout))
    model, optimizer, first = run([5], steps=3, config=c, model=make_model(dropout))
    _, _, second = run([5], steps=6, config=c, model=model, optimizer=optimizer, start=3)
    assert [s.grad_norm.item() for s in first + second] == [s.grad_norm.item() for s in steps]
    assert all(
        torch.equal(p, q) for p, q in zip(whole.parameters(), model.parameters(), strict=True)
    )


def test_dropout_is_a_function_of_seed_and_step():
    dropout = replace(SMALL, hidden_dropout=0.2, attention_dropout=0.2)
    losses = [
        [s.read()["masked_lm"].loss for s in run([], model=make_model(dropout), seed=seed)[2]]
        for seed in (0, 0, 1)
    ]
    assert losses[0] == losses[1]
    assert losses[0] != losses[2]


@pytest.mark.parametrize("kind", ["adamw", "lamb"])
@pytest.mark.parametrize("poison", ["parameter", "gradient"])
def test_a_step_that_is_not_finite_is_skipped_and_counted(poison, kind):
    model = make_model()
    c = OptimizerConfig(optimizer=kind, learning_rate=1e-2, schedule="constant", warmup=0.0)
    optimizer = make_optimizer(model, c)
    bad = {2, 3}

    def batches(step):
        for p in model.parameters():
            p.register_hook(
                lambda g: g * torch.nan
            ) if poison == "gradient" and step in bad else None
        if poison == "parameter":
            model.lm_head.bias.data[0] = torch.inf if step in bad else 0.0
        return [collate(make_examples(6, step))]

    seen = []
    before = None
    for step in train(model, optimizer, batches, c, 6 if poison == "parameter" else 4):
        seen.append(int(step.skipped.item()))
        after = [p.detach().clone() for p in model.encoder.parameters()]
        if before is not None and seen[-1]:
            assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
            assert all(s["exp_avg"].isfinite().all() for s in optimizer.state.values())
        before = after
    assert seen == ([0, 0, 1, 1, 0, 0] if poison == "parameter" else [0, 0, 1, 1])


def test_bf16_learns_like_fp32_and_keeps_masters_in_fp32():
    c = OptimizerConfig(learning_rate=1e-2, warmup=0.1)
    exact, _, steps = run([], steps=12, config=c)
    rounded, optimizer, bf16_steps = run([], steps=12, config=c, precision="bf16")
    assert all(p.dtype == torch.float32 for p in rounded.parameters())
    assert all(s["exp_avg"].dtype == torch.float32 for s in optimizer.state.values())
    for a, b in zip(steps, bf16_steps, strict=True):
        assert a.read()["masked_lm"].loss == pytest.approx(b.read()["masked_lm"].loss, rel=2e-2)
    assert steps[-1].read()["masked_lm"].loss != bf16_steps[-1].read()["masked_lm"].loss
    vectors = [
        torch.cat([p.flatten() for p in m.encoder.blocks.parameters()]) for m in (exact, rounded)
    ]
    assert nn.functional.cosine_similarity(*vectors, dim=0) > 0.99


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_frozen_table_stays_and_the_rest_learns(precision):
    model = make_model()
    frozen = model.encoder.embeddings.position.weight.requires_grad_(False)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    c = OptimizerConfig(learning_rate=1e-2, warmup=0.1)
    _, optimizer, _ = run([], steps=12, config=c, model=model, precision=precision)
    assert torch.equal(frozen, before["encoder.embeddings.position.weight"])
    assert frozen not in optimizer.state
    assert all(
        p is frozen or not torch.equal(p, before[name]) for name, p in model.named_parameters()
    )


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_gradient_checkpointing_gives_the_same_steps(precision):
    dropout = replace(SMALL, hidden_dropout=0.1, attention_dropout=0.1)
    models = [make_model(dropout, gradient_checkpointing=flag) for flag in (False, True)]
    plain, saving = (run([4], model=model, precision=precision)[2] for model in models)
    assert [s.grad_norm.item() for s in plain] == [s.grad_norm.item() for s in saving]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_it_learns_by_heart(precision):
    """Overfitting one batch: the loss goes to nothing, the answers become right."""
    model = make_model()
    c = OptimizerConfig(learning_rate=1e-2, warmup=0.1)
    batch = collate(make_examples(8))
    last = list(
        train(model, make_optimizer(model, c), lambda _: [batch], c, 80, precision=precision)
    )[-1].read()
    assert last["masked_lm"].loss < 0.05
    assert last["masked_lm"].accuracy == 1.0
    assert last["next_sentence"].accuracy == 1.0


def test_weights_multiply_the_losses() -> None:
    """One step with weights 1 and 50, by hand and by the loop; the figures are those of the plain
    losses."""
    batch, c = collate(make_examples(6)), OptimizerConfig(learning_rate=1e-2, warmup=0.0)
    by_hand, trained = (
        make_model(objectives={"masked_lm": 1.0, "next_sentence": 50.0}) for _ in range(2)
    )
    sums, counts = by_hand(batch), by_hand.counts(batch)
    (
        sums["masked_lm"].loss / counts["masked_lm"]
        + 50 * sums["next_sentence"].loss / counts["next_sentence"]
    ).backward()
    (step,) = train(trained, make_optimizer(trained, c), lambda n: [batch], c, 1)
    norm = nn.utils.get_total_norm([p.grad for p in by_hand.parameters()])
    torch.testing.assert_close(step.grad_norm, norm)
    for name, tally in sums.items():
        assert step.read()[name].loss == pytest.approx(tally.loss.item() / counts[name], rel=1e-6)


def test_objectives_need_no_other_heads() -> None:
    model = make_model(objectives={"next_sentence": 1.0})
    assert model.lm_head is None
    assert set(model(collate(make_examples(3)))) == {"next_sentence"}


def test_without_next_sentence_nothing_is_predicted_of_pairs():
    model = make_model(objectives={"masked_lm": 1.0})
    tallies = model(collate(make_examples(3)))
    assert set(tallies) == {"masked_lm"}
    assert not any("pooler" in name for name, _ in model.named_parameters())


def test_the_first_loss_is_that_of_chance():
    """Before it has learned anything, every one of V words is equally likely."""
    means = evaluate(make_model(), [collate(make_examples(64))])
    assert means["masked_lm"].loss == pytest.approx(math.log(200), rel=0.02)
    assert means["next_sentence"].loss == pytest.approx(math.log(2), rel=0.05)


def test_two_processes_are_one(tmp_path: Path):
    """Two processes on the CPU against this one alone: the same losses, norms and weights."""
    from tests.support.two_processes import learned  # which needs this module

    out = tmp_path / "two.pt"
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.two_processes", str(out)],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    one, two = learned(0, 1), torch.load(out, weights_only=True)
    assert one.keys() == two.keys()
    for name in one:
        if name.startswith("exp_avg"):  # of the first step: no rounding has been amplified yet
            assert (one[name] - two[name]).norm() <= 1e-6 * max(one[name].norm(), 1e-3), name
        else:
            torch.testing.assert_close(one[name], two[name], rtol=1e-6, atol=0)


def test_a_loss_that_is_not_finite_skips_though_gradients_are():
    class Damaged(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        weights = {"x": 1.0}  # noqa: RUF012
        memory = None

        def counts(self, batch):
            return {"x": 1}

        def forward(self, batch):
            return {"x": LossSum(self.weight.sum() + torch.inf, torch.zeros(()))}

    one = np.zeros(1, np.int64)
    batch, c, damaged = (
        collate([Example(one, one, {"task": Target(one, one)})]),
        OptimizerConfig(warmup=0.0),
        Damaged(),
    )
    (step,) = train(damaged, make_optimizer(damaged, c), lambda n: [batch], c, 1)
    assert step.skipped.item() == 1
    assert torch.equal(damaged.weight, torch.ones(3))


def test_chunks_of_the_vocabulary_are_added_up_in_single_precision(monkeypatch: pytest.MonkeyPatch):
    torch.manual_seed(0)
    x, words = torch.randn(4096, 16), torch.randn(40, 16)
    bias, labels = torch.zeros(40), torch.full((4096,), 3)

    def gradients(dtype, chunk):
        monkeypatch.setattr("bertworks.training.objectives.CHUNK_BYTES", chunk)
        parts = [part.to(dtype).requires_grad_() for part in (x, words, bias)]
        vocabulary_cross_entropy(*parts, labels).loss.backward()
        return [part.grad.double() for part in parts]

    exact = gradients(torch.float64, 1 << 30)
    for found, expected in zip(gradients(torch.bfloat16, 40 * 2 * 16), exact, strict=True):
        assert (found - expected).norm() / expected.norm() < 0.01


class Products(TorchDispatchMode):
    """Notes the sizes of matrix products in bf16."""

    def __init__(self):
        super().__init__()
        self.sizes = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name in ("mm", "addmm", "bmm", "baddbmm", "_linear_pointwise"):
            matrices = [x for x in args if isinstance(x, torch.Tensor) and x.dim() > 1]
            self.sizes.update((name, *x.shape) for x in matrices if x.dtype == torch.bfloat16)
        return func(*args, **(kwargs or {}))


@pytest.mark.skipif(not cpu_supports_bf16(), reason="this processor does not multiply bf16")
@pytest.mark.parametrize(
    ("kinds", "settings"),
    [
        (["masked_lm", "next_sentence"], {}),
        pytest.param(
            ["masked_lm", "replaced_token"],
            {"family": "electra", "embedding_size": 16},
            marks=pytest.mark.slow,
        ),
        (["causal_lm"], {"direction": "left_to_right", "pooler": "last"}),
    ],
)
def test_products_of_a_training_have_few_sizes(kinds, settings):
    """oneDNN compiles a program for each, and keeps a thousand of them."""
    config = replace(SMALL, **settings)
    model = MixedPrecision(make_model(config, objectives=dict.fromkeys(kinds, 1.0)), "bf16")
    with Products() as products:
        for seed in range(40):
            examples = make_examples(20, seed)
            for example in examples:
                masked = example.targets["masked_lm"]
                draws = np.random.default_rng(seed).random(len(masked.labels), np.float32)
                example.targets["replaced_token"] = Target(masked.positions, draws)
                example.targets["causal_lm"] = masked
            losses = model(collate(examples))
            torch.stack([losses[kind].loss for kind in kinds]).sum().backward()
    sides = {n for p in model.parameters() for n in p.shape}
    heads = config.num_attention_heads
    for name, *size in products.sizes:
        if name.endswith("bmm"):
            assert (size[0] // heads).bit_count() == 1
            assert all(n % 16 == 0 or n == config.hidden_size // heads for n in size[1:])
        else:
            assert all(n in sides or n == len(pad_rows_to_bucket(torch.empty(n))) for n in size)
    assert max(size[1] for size in products.sizes) > 400


def reference_adamw(p, grads, c, rates):
    """Loshchilov and Hutter, algorithm 2, in float64; without correction it is
    google-research/bert's."""
    p, m, v = p.double().clone(), 0.0, 0.0
    for t, (g, lr) in enumerate(zip(grads, rates, strict=True), 1):
        m, v = (
            c.beta1 * m + (1 - c.beta1) * g.double(),
            c.beta2 * v + (1 - c.beta2) * g.double() ** 2,
        )
        m_hat, v_hat = (m / (1 - c.beta1**t), v / (1 - c.beta2**t)) if c.bias_correction else (m, v)
        p = p - lr * (m_hat / (v_hat.sqrt() + c.eps) + c.weight_decay * p)
    return p


@pytest.mark.parametrize("bias_correction", [True, False])
def test_adamw_is_the_published_one(bias_correction):
    torch.manual_seed(0)
    c = OptimizerConfig(bias_correction=bias_correction, weight_decay=0.1, max_grad_norm=0.0)
    layer = nn.Linear(4, 3)
    start, bias = layer.weight.detach().clone(), layer.bias.detach().clone()
    optimizer = make_optimizer(layer, c)
    grads, rates = [torch.randn(3, 4) for _ in range(6)], [0.0, 1e-2, 2e-2, 1e-2, 5e-3, 1e-3]
    for grad, rate in zip(grads, rates, strict=True):
        layer.weight.grad, layer.bias.grad = grad.clone(), torch.zeros(3)
        update(optimizer, rate, grad.norm(), c.max_grad_norm)
    torch.testing.assert_close(
        layer.weight.double(), reference_adamw(start, grads, c, rates), atol=1e-6, rtol=1e-6
    )
    assert torch.equal(layer.bias, bias)  # no decay without a gradient: biases are not decayed


def reference_lamb(p, grads, c, rates, is_matrix):
    """You et al. 2020, algorithm 2, in float64; without correction it is `lamb_optimizer.py` of
    google-research/albert: the decay is added before the norms are compared, and the ratio is 1
    where one of them is 0."""
    p, m, v = p.astype(np.float64), 0.0, 0.0
    for t, (g, lr) in enumerate(zip(grads, rates, strict=True), 1):
        m, v = c.beta1 * m + (1 - c.beta1) * g, c.beta2 * v + (1 - c.beta2) * g**2
        m_hat, v_hat = (m / (1 - c.beta1**t), v / (1 - c.beta2**t)) if c.bias_correction else (m, v)
        change, ratio = m_hat / (np.sqrt(v_hat) + c.eps), 1.0
        if is_matrix:
            change = change + c.weight_decay * p
            norms = np.linalg.norm(p), np.linalg.norm(change)
            ratio = norms[0] / norms[1] if min(norms) > 0 else 1.0
        p = p - lr * ratio * change
    return p


@pytest.mark.parametrize("decay", [0.1, 0.0])
@pytest.mark.parametrize("bias_correction", [True, False])
def test_lamb_is_the_published_one(bias_correction, decay):
    """Of a whole network: biases and norms have no ratio and no decay, queries, keys and values
    have one ratio each."""
    c = OptimizerConfig(
        optimizer="lamb", bias_correction=bias_correction, weight_decay=decay, max_grad_norm=2.0
    )
    model = make_model()
    r = np.random.default_rng(0)
    for p in model.parameters():
        p.data.add_(torch.from_numpy(r.normal(size=p.shape)).float(), alpha=0.1)
    model.encoder.embeddings.token_type.weight.data.zero_()  # a norm of 0
    model.encoder.blocks[0].attention.qkv.weight.data.view(3, -1)[1] *= 100
    start = {name: p.detach().numpy().copy() for name, p in model.named_parameters()}
    rates = [0.0, 1e-2, 2e-2, 1e-2]
    grads = [
        {name: r.normal(size=p.shape).astype(np.float32) for name, p in start.items()}
        for _ in rates
    ]
    for step in grads:
        step["encoder.embeddings.position.weight"][:] = 0
    optimizer = make_optimizer(model, c)
    for step, rate in zip(grads, rates, strict=True):
        for name, p in model.named_parameters():
            p.grad = torch.from_numpy(step[name])
        update(optimizer, rate, torch.tensor(6.0), c.max_grad_norm)  # gradients are divided by 3
    for name, p in model.named_parameters():
        count = 3 if name.endswith("qkv.weight") else 1
        parts = [np.split(step[name] / 3.0, count) for step in grads]
        pieces = zip(np.split(start[name], count), zip(*parts, strict=True), strict=True)
        expected = np.concatenate(
            [reference_lamb(q, g, c, rates, start[name].ndim > 1) for q, g in pieces]
        )
        np.testing.assert_allclose(p.detach().numpy(), expected, rtol=2e-5, atol=2e-6, err_msg=name)
        moves = decay > 0 or "position" not in name
        assert (np.abs(expected - start[name]).max() > 1e-3) == moves, name


def test_matrices_decay_and_vectors_do_not():
    model = make_model()
    decayed, kept = make_optimizer(model, OptimizerConfig(weight_decay=0.01)).param_groups
    names = {id(p): name for name, p in model.named_parameters()}
    assert decayed["weight_decay"] == 0.01
    assert kept["weight_decay"] == 0.0
    assert all(names[id(p)].endswith("bias") or "norm" in names[id(p)] for p in kept["params"])
    assert not any(
        names[id(p)].endswith("bias") or "norm" in names[id(p)] for p in decayed["params"]
    )
    assert len(decayed["params"]) + len(kept["params"]) == len(names)


@pytest.mark.parametrize("offset", [0, 1])
def test_rates_fall_layer_by_layer_from_the_heads_to_the_embeddings(offset: int):
    """With an offset of 1 the exponents are those of google-research/electra: n_layers + 2 - depth,
    where the depth of embeddings is 0, of the last block n_layers, of heads n_layers + 2."""
    model = make_model()
    optimizer = make_optimizer(model, OptimizerConfig(layer_decay=0.5, layer_decay_offset=offset))
    update(optimizer, 1.0, torch.tensor(1.0), 1.0)
    names = {id(p): name for name, p in model.named_parameters()}
    rates = {names[id(p)]: group["lr"] for group in optimizer.param_groups for p in group["params"]}
    parts = {"encoder.embeddings.": 1 / 8, "encoder.blocks.0.": 1 / 4, "encoder.blocks.1.": 1 / 2}
    parts = {name: rate / 2**offset for name, rate in parts.items()}
    assert rates == {
        name: next((parts[p] for p in parts if name.startswith(p)), 1.0) for name in names.values()
    }


@pytest.mark.parametrize("norm", [0.5, 1.0, 20.0])
def test_gradients_are_clipped_together(norm):
    c = OptimizerConfig(beta1=0.0, beta2=0.0, bias_correction=False, eps=1e3, weight_decay=0.0)
    layer = nn.Linear(3, 3)
    before = layer.weight.detach().clone()
    grad = torch.randn(3, 3)
    layer.weight.grad, layer.bias.grad = grad / grad.norm() * norm, torch.zeros(3)
    update(make_optimizer(layer, c), 1000.0, torch.tensor(norm), 1.0)
    # With so large an eps the step is the clipped gradient itself.
    assert (layer.weight - before).norm().item() == pytest.approx(min(norm, 1.0), rel=2e-3)


def test_a_schedule_is_the_published_one():
    hugging_face = OptimizerConfig(learning_rate=1.0, warmup=0.1, schedule="linear")
    google = OptimizerConfig(learning_rate=1.0, warmup=0.1, schedule="linear_from_start")
    constant = OptimizerConfig(learning_rate=1.0, warmup=0.1, schedule="constant")
    for step in range(100):
        warm = step / 10
        assert hugging_face.rate(step, 100) == pytest.approx(
            warm if step < 10 else (100 - step) / 90
        )
        assert google.rate(step, 100) == pytest.approx(warm if step < 10 else 1 - step / 100)
        assert constant.rate(step, 100) == pytest.approx(min(1.0, warm))
    assert google.rate(10, 100) < google.rate(9, 100) + 0.1  # the drop where the warm-up ends
    assert OptimizerConfig(learning_rate=1.0, warmup=0.0).rate(0, 10) == 1.0


def test_the_paper_settings_make_the_paper_rate():
    c = OptimizerConfig(learning_rate=1e-4, warmup=0.01, schedule="linear_from_start")
    assert c.rate(0, 10**6) == 0
    assert c.rate(5_000, 10**6) == pytest.approx(5e-5)
    assert c.rate(10_000, 10**6) == pytest.approx(0.99e-4)


@pytest.mark.parametrize(("decay", "corrects"), [(0.0, True), (0.1, True), (0.1, False)])
def test_adamax_is_that_of_torch(decay: float, corrects: bool) -> None:
    model = models("classification")["classification"]
    other = copy.deepcopy(model)
    c = OptimizerConfig(
        optimizer="adamax",
        weight_decay=decay,
        eps=1e-3,
        bias_correction=corrects,
        max_grad_norm=0.5,
    )
    ours = make_optimizer(model, c)
    assert isinstance(ours, Adamax)
    groups: list[dict[str, Any]] = [
        {
            "params": [p for p in other.parameters() if (p.ndim > 1) == matrix],
            "weight_decay": decay * matrix,
        }
        for matrix in (True, False)
    ]
    theirs = torch.optim.Adamax(groups, lr=1e-2, betas=(c.beta1, c.beta2), eps=c.eps)
    if not corrects:
        for p in other.parameters():
            step = torch.tensor(1e7)
            theirs.state[p] = {
                "step": step,
                "exp_avg": torch.zeros_like(p),
                "exp_inf": torch.zeros_like(p),
            }
    for seed in range(5):
        for one in (model, other):
            one.zero_grad()
            one(batch_of("classification", seed))["task"][0].backward()
        if seed == 3:  # a gradient that is not finite changes nothing
            before = [p.clone() for p in model.parameters()]
            assert update(ours, 1e-2, torch.tensor(torch.inf), 0.5) == 1
            assert all(map(torch.equal, before, model.parameters()))
        norm = torch.nn.utils.get_total_norm(
            [p.grad for p in model.parameters() if p.grad is not None]
        )
        update(ours, 1e-2, norm, 0.5)
        torch.nn.utils.clip_grad_norm_(other.parameters(), 0.5)
        theirs.step()
    for (name, p), q in zip(model.named_parameters(), other.parameters(), strict=True):
        assert (p - q).abs().max() <= 1e-6, name
        assert (ours.state[p]["exp_inf"] - theirs.state[q]["exp_inf"]).abs().max() <= 1e-6, name
