"""Dropout, activations and linear layers, against plain arithmetic."""

import math

import pytest
import torch

from bertworks.models.layers import SMALL_BATCH_ROWS, Linear, dropout, pad_rows_to_bucket


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_drops_its_share_and_scales_the_rest(dtype):
    torch.manual_seed(0)
    x = torch.ones(1000, 333, dtype=dtype)
    y = dropout(x, 0.1).float()
    assert y.unique().tolist() == pytest.approx([0.0, 256 / 230], rel=4e-3)
    assert (y == 0).float().mean().item() == pytest.approx(26 / 256, abs=1e-3)
    columns = (y == 0).float().mean(0)  # every byte of a draw is as random as the others
    assert columns.max() - columns.min() < 0.08
    eighths = torch.stack([(y.flatten()[i::8] == 0).float().mean() for i in range(8)])
    assert (eighths - 26 / 256).abs().max() < 4e-3


def test_a_dropout_of_nearly_all_leaves_something():
    torch.manual_seed(0)
    y = dropout(torch.ones(1 << 16), 0.999)
    assert 0 < (y > 0).float().mean() < 0.01
    assert y.mean().item() == pytest.approx(1, abs=0.3)


def test_dropout_adds_the_residual_and_has_the_right_gradient():
    x, residual = (torch.randn(11, 3, dtype=torch.float64).requires_grad_() for _ in range(2))

    def dropped(x, residual):
        torch.manual_seed(3)
        return dropout(x, 0.4, residual)

    assert torch.autograd.gradcheck(dropped, (x, residual))
    torch.manual_seed(3)
    alone = dropout(x, 0.4)
    torch.testing.assert_close(dropped(x, residual), residual + alone)
    assert dropout(x, 0.0) is x


def test_rows_are_padded_with_zeros_to_one_of_few_numbers():
    numbers = set()
    for rows in range(1, 4000):
        padded = pad_rows_to_bucket(torch.ones(rows, 2), pads_small=True)
        assert padded[:rows].all()
        assert not padded[rows:].any()
        numbers.add(len(padded))
    assert len(numbers) < 120
    few = torch.ones(SMALL_BATCH_ROWS, 2)
    assert pad_rows_to_bucket(few) is few


def test_gelu_is_exact_or_the_approximation():
    x = torch.linspace(-4, 4, 101, dtype=torch.float64)
    exact = torch.tensor(
        [v * 0.5 * (1 + math.erf(v / math.sqrt(2))) for v in x.tolist()], dtype=torch.float64
    )
    tanh = 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    from bertworks.models.layers import ACTIVATIONS

    torch.testing.assert_close(ACTIVATIONS["gelu"](x), exact)
    torch.testing.assert_close(ACTIVATIONS["gelu_tanh"](x), tanh)
    assert (exact - tanh).abs().max() > 1e-4  # they are not the same


def test_a_bf16_product_and_its_gradients_are_those_of_float64():
    """Rounded once on the way: of numbers near 1 the eighth bit is the last."""
    torch.manual_seed(2)
    layer, x = Linear(48, 33), torch.randn(5, 7, 48)
    with torch.no_grad():
        layer.bias.normal_()
    probe = torch.randn(5, 7, 33).bfloat16()
    layer.bfloat16()
    rounded = x.bfloat16().requires_grad_()
    found = layer(rounded)
    grads = torch.autograd.grad((found * probe).sum(), (rounded, layer.weight, layer.bias))
    exact = [t.detach().double().requires_grad_() for t in (rounded, layer.weight, layer.bias)]
    wanted = exact[0] @ exact[1].T + exact[2]
    assert (found - wanted).norm() / wanted.norm() < 4e-3
    for a, b in zip(grads, torch.autograd.grad((wanted * probe).sum(), exact), strict=True):
        assert a.shape == b.shape
        assert (a - b).norm() / b.norm() < 4e-3
