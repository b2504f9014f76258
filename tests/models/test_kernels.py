"""Attention by every kernel, with masks, biases and dropout, against plain arithmetic."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bertworks.models import kernels
from bertworks.models.kernels import (
    Inputs,
    attend,
    attention,
    attention_bucketed,
    attention_inference,
    attention_reference,
)
from bertworks.models.layout import Layout
from tests.models.test_layout import add_bias, plain_attention


@pytest.mark.parametrize("masked", [False, True])
def test_attention_is_that_of_the_paper(masked):
    """softmax(q k' / sqrt(d)) v in float64, and its gradients, against both kernels."""
    generator = torch.Generator().manual_seed(0)
    q, k, v, probe = (
        torch.randn(2, 3, 9, 8, generator=generator, dtype=torch.float64) for _ in range(4)
    )
    present = torch.arange(9)[None] < torch.tensor([[9], [4]])
    mask = present[:, None, None] if masked else None

    def reference(q, k, v):
        scores = q @ k.transpose(-2, -1) / math.sqrt(8)
        if masked:
            scores = scores.masked_fill(~present[:, None, None], -torch.inf)
        return scores.softmax(-1) @ v

    inputs = [t.clone().requires_grad_() for t in (q, k, v)]
    wanted = torch.autograd.grad((reference(*inputs) * probe).sum(), inputs)
    found = torch.autograd.grad((attend(*inputs, mask) * probe).sum(), inputs)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-10)
    torch.testing.assert_close(attend(*inputs, mask), reference(q, k, v), atol=1e-12, rtol=0)
    with torch.no_grad():
        torch.testing.assert_close(attend(q, k, v, mask), reference(q, k, v), atol=1e-12, rtol=0)


def test_attention_with_dropout_has_the_right_gradient():
    """The same seed drops the same probabilities, so that finite differences apply."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(1, 2, 5, 4, generator=generator, dtype=torch.float64).requires_grad_()
        for _ in range(3)
    )

    def dropped(q, k, v):
        torch.manual_seed(7)
        return attend(q, k, v, dropout=0.3)

    assert torch.autograd.gradcheck(dropped, (q, k, v))


def test_attention_dropout_is_right_on_average():
    torch.manual_seed(0)
    q, k = (torch.randn(1, 1, 6, 4).requires_grad_() for _ in range(2))
    v = torch.ones(1, 1, 6, 4)
    mean = torch.stack([attend(q, k, v, dropout=0.25) for _ in range(4000)]).mean()
    assert mean.item() == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("direction", ["bidirectional", "left_to_right", "right_to_left", "mixed"])
def test_attention_in_buckets_is_attention(direction, monkeypatch):
    """What bf16 on a CPU computes in training, here in float64: values and gradients, whatever a
    token reads."""
    monkeypatch.setattr("bertworks.models.kernels.compiles_sizes", lambda _: True)
    torch.manual_seed(0)
    lengths = [3, 1, 20, 512, 33, 64, 64, 17, 40, 2]  # the longest fills its bucket
    layout = Layout.of(lengths)
    if direction == "mixed":
        layout = replace(layout, rank=torch.randint(3, layout.position_ids.shape))
    else:
        layout = layout.directed(direction)
    qkv, weights = (
        torch.randn(sum(lengths), 3, 4, 8).double().requires_grad_(),
        torch.randn(sum(lengths), 4, 8).double(),
    )
    assert len(layout.buckets.layouts) > 2
    inputs = Inputs(*qkv.unbind(1), layout)
    wanted, found = attention_reference(inputs), attention_bucketed(inputs)
    torch.testing.assert_close(found, wanted, atol=1e-12, rtol=1e-12)
    gradients = [torch.autograd.grad((x * weights).sum(), qkv)[0] for x in (wanted, found)]
    torch.testing.assert_close(*gradients, atol=1e-12, rtol=1e-12)


@pytest.fixture(params=[False, True], ids=["narrow", "wide"])
def vectors(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention of inference as processors without and with AVX-512 compute it."""
    monkeypatch.setattr("bertworks.models.kernels._has_wide_vectors", lambda: request.param)


@pytest.mark.usefixtures("vectors")
@pytest.mark.parametrize(
    "lengths", [[5] * 20 + [7] * 10 + [61] * 3 + [100], [61], [64] * 2, [13] * 4, [30, 30, 17, 3]]
)
def test_no_sequence_sees_the_next_one(lengths: list[int]):
    """Against float64, where the keys of a run reach into the tokens behind it; their values are
    large here."""
    torch.manual_seed(len(lengths))
    layout, qkv = Layout.of(lengths), torch.randn(sum(lengths), 3, 2, 8)
    qkv[:, 2] += torch.arange(sum(lengths))[:, None, None]
    with torch.no_grad():
        found = attention_inference(Inputs(*qkv.unbind(1), layout))
    wanted = []
    for part in qkv.double().split(lengths):
        q, k, v = part.permute(1, 2, 0, 3)
        wanted.append((q @ k.transpose(1, 2) / math.sqrt(8)).softmax(-1) @ v)
    torch.testing.assert_close(
        found.double(), torch.cat([one.transpose(0, 1) for one in wanted]), rtol=1e-5, atol=1e-4
    )


@pytest.mark.usefixtures("vectors")
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, 3e38])
def test_a_sequence_that_overflows_damages_no_other(bad: float):
    torch.manual_seed(0)
    layout, qkv = Layout.of([13] * 5 + [14] * 6), torch.randn(149, 3, 2, 8)
    with torch.no_grad():
        wanted = attention_inference(Inputs(*qkv.unbind(1), layout))
        qkv[65:79] = bad
        found = attention_inference(Inputs(*qkv.unbind(1), layout))
    others = [*range(65), *range(79, 149)]
    torch.testing.assert_close(found[others], wanted[others])


LENGTHS = [3, 1, 20, 33, 17, 17, 64, 2]


BIAS_PATHS = {
    "reference": ("bidirectional", False),
    "ranks": ("left_to_right", False),
    "buckets": ("bidirectional", True),
    "buckets with ranks": ("left_to_right", True),
}


@pytest.mark.parametrize("path", BIAS_PATHS)
@pytest.mark.parametrize("lengths", [LENGTHS, [16, 16], [9]])
def test_a_bias_and_its_gradient_are_those_of_float64(path, lengths, monkeypatch):
    """On each path of training, for padded sequences, rectangles and a single sequence."""
    direction, is_bucketed = BIAS_PATHS[path]
    monkeypatch.setattr("bertworks.models.kernels.compiles_sizes", lambda _: is_bucketed)
    torch.manual_seed(0)
    layout = Layout.of(lengths).directed(direction)
    qkv = torch.randn(sum(lengths), 3, 4, 8).double().requires_grad_()
    weights = torch.randn(4, 19).double().requires_grad_()
    probe = torch.randn(sum(lengths), 4, 8).double()
    q, k, v = qkv.unbind(1)
    is_causal = direction == "left_to_right"
    expected = plain_attention(q, k, v, lengths, lengths, weights, is_causal)
    context = attention(q, k, v, layout, bias=lambda part, *_: add_bias(part, weights))
    torch.testing.assert_close(context, expected, atol=1e-12, rtol=1e-12)
    gradients = [
        torch.autograd.grad((x * probe).sum(), (qkv, weights)) for x in (expected, context)
    ]
    torch.testing.assert_close(*gradients, atol=1e-11, rtol=1e-11)


@pytest.mark.usefixtures("vectors")
@pytest.mark.parametrize(("dtype", "off"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
@pytest.mark.parametrize("lengths", [LENGTHS, [16, 16], [9], [13] * 6 + [40]])
@pytest.mark.parametrize("peak", [0.0, 300.0])
def test_a_bias_in_inference_is_that_of_float64(dtype, off, lengths, peak):
    """With a peak of 300, exponentials without a subtracted maximum would overflow."""
    torch.manual_seed(0)
    qkv = torch.randn(sum(lengths), 3, 4, 8).to(dtype)
    weights = torch.randn(4, 19).to(dtype)
    weights[:, 9] += peak
    with torch.no_grad():
        q, k, v = qkv.unbind(1)
        layout = Layout.of(lengths)
        context = attention(q, k, v, layout, bias=lambda part, *_: add_bias(part, weights))
    exact = [x.double() for x in (q, k, v)]
    expected = plain_attention(*exact, lengths, lengths, weights.double())
    torch.testing.assert_close(context.double(), expected, atol=off, rtol=off)


def test_a_bias_with_dropout_has_the_right_gradient():
    torch.manual_seed(0)
    q, k, v, bias = (
        torch.randn(*shape).double().requires_grad_()
        for shape in ((2, 2, 5, 4), (2, 2, 5, 4), (2, 2, 5, 4), (1, 2, 5, 5))
    )

    def dropped(q, k, v, bias):
        torch.manual_seed(7)
        return attend(q, k, v, bias=bias, dropout=0.3)

    assert torch.autograd.gradcheck(dropped, (q, k, v, bias))


def blockwise_inputs(
    length: int, heads: int = 2, size: int = 4, sequences: int = 2
) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = (sequences, heads, length, size)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(4)]


@pytest.mark.parametrize("kind", ["plain", "masked", "biased", "causal"])
@pytest.mark.parametrize("is_fused", [False, True])
def test_long_attention_is_that_of_the_short_one(
    kind: str, is_fused: bool, monkeypatch: pytest.MonkeyPatch
):
    """In blocks of queries, and by torch's kernel, with the gradients of all inputs."""
    length = kernels.LONG + 3
    monkeypatch.setattr(kernels, "compiles_sizes", lambda q: not is_fused)
    *inputs, probe = blockwise_inputs(length)
    mask = bias = None
    if kind == "masked":
        mask = (torch.arange(length) < torch.tensor([length, 700])[:, None])[:, None, None]
    if kind == "biased":
        bias = torch.randn(1, 2, length, length, dtype=torch.float64).requires_grad_()
    parameters = [x.requires_grad_() for x in inputs] + ([] if bias is None else [bias])
    is_causal = kind == "causal"
    found = attend(*inputs, mask, bias, is_causal=is_causal)
    found_gradients = torch.autograd.grad((found * probe).sum(), parameters)
    monkeypatch.setattr(kernels, "LONG", 10**9)
    if is_causal:
        mask = torch.ones(length, length, dtype=torch.bool).tril()[None, None]
    wanted = attend(*inputs, mask, bias)
    wanted_gradients = torch.autograd.grad((wanted * probe).sum(), parameters)
    for a, b in zip((found, *found_gradients), (wanted, *wanted_gradients), strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-9)


def test_dropout_of_long_attention_has_the_right_gradient(monkeypatch: pytest.MonkeyPatch):
    """The backward pass draws the same numbers again."""
    monkeypatch.setattr(kernels, "LONG", 4)
    monkeypatch.setattr(kernels, "_BLOCK", 2)
    q, k, v, _ = (x.requires_grad_() for x in blockwise_inputs(5, sequences=1))

    def dropped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(7)
        return attend(q, k, v, dropout=0.3)

    assert torch.autograd.gradcheck(dropped, (q, k, v))
    plain = attend(q, k, v)
    torch.manual_seed(0)
    means = sum(attend(q, k, v, dropout=0.3) for _ in range(2000)) / 2000
    assert (means - plain).abs().max() < 0.15
    assert (attend(q, k, v, dropout=0.3) - plain).abs().max() > 0.1


@pytest.mark.parametrize("reach", [1, 3, 64, 100])
@pytest.mark.parametrize("needs_gradients", [False, True])
def test_attention_to_neighbours_is_exact(reach: int, needs_gradients: bool):
    lengths = [1, reach, reach + 1, reach + 2, 191, 192, 193, 320, 321, 449]
    layout = Layout.of(lengths)
    generator = torch.Generator().manual_seed(0)
    qkv = torch.randn(sum(lengths), 3, 2, 4, generator=generator, dtype=torch.float64)
    probe = torch.randn(sum(lengths), 2, 4, generator=generator, dtype=torch.float64)
    qkv.requires_grad_(needs_gradients)
    places = torch.arange(sum(lengths))
    far = (places[:, None] - places).abs() > reach
    other_text = layout.sequence_ids[:, None] != layout.sequence_ids
    q, k, v = qkv.transpose(0, 1).unsqueeze(1).transpose(2, 3)
    scores = (q @ k.transpose(-1, -2) / 2).masked_fill(far | other_text, -torch.inf)
    wanted = (scores.softmax(-1) @ v)[0].transpose(0, 1)
    with torch.set_grad_enabled(needs_gradients):
        found = attention(*qkv.unbind(1), layout, reach=reach)
    torch.testing.assert_close(found.detach(), wanted.detach(), atol=1e-12, rtol=0)
    if needs_gradients:
        gradients = (torch.autograd.grad((x * probe).sum(), qkv)[0] for x in (found, wanted))
        torch.testing.assert_close(*gradients, atol=1e-12, rtol=0)


class LargestTensor(TorchDispatchMode):
    """The size in bytes of the largest tensor that any operation returns."""

    size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else [result]:
            if isinstance(value, torch.Tensor):
                self.size = max(self.size, value.untyped_storage().nbytes())
        return result


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("reach", [0, 64])
def test_no_tensor_of_a_long_text_grows_with_the_square(reach: int, dropout: float):
    sizes = []
    for length in (2048, 4096):
        qkv = torch.randn(length, 3, 1, 8, requires_grad=True)
        with LargestTensor() as largest:
            y = attention(*qkv.unbind(1), Layout.of([length]), reach=reach, dropout=dropout)
            y.sum().backward()
        sizes.append(largest.size)
    assert 0 < sizes[1] <= 2 * sizes[0]
