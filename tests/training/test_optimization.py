"""AdamW, LAMB, schedules, clipping and decay, as they are published."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from bertworks.training.optimization import Adamax, OptimizerConfig, make_optimizer, update
from tests.runs.test_joint import model as model, models
from tests.support.heads import batch_of
from tests.training.test_loop import make_model


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
