"""Encoders that learn no more: the same states as from the encoder, to the precision that is
promised, whatever stands beside them."""

import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from bertworks.models import transformer as of_nn
from bertworks.models.config import EncoderConfig
from bertworks.models.kernels import Inputs, attend, attention_inference
from bertworks.models.layers import ACTIVATIONS, SMALL_BATCH_ROWS as FEW, pad_rows_to_bucket
from bertworks.models.layout import Layout
from bertworks.models.transformer import (
    Encoder,
    InferenceEncoder,
    PackedLayer,
    Product,
    _int8,
    to_bf16_inference,
    to_fp32_inference,
    to_int8_inference,
    with_fp16_weights,
)
from tests.support.embedding import needs_int8

SHAPE = EncoderConfig(
    vocab_size=90,
    hidden_size=64,
    num_hidden_layers=3,
    num_attention_heads=4,
    max_position_embeddings=99,
)
fbgemm = pytest.mark.skipif(
    torch.backends.quantized.engine not in ("x86", "fbgemm"),
    reason="no such products on this processor",
)
bfloat16 = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="this processor does not multiply bf16"
)


def poison() -> None:
    """What is freed here is taken by the next outputs: a place that nobody writes is no number."""
    for size in (1 << n for n in range(6, 18)):
        torch.full((size,), torch.nan)


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    torch.manual_seed(0)
    made = Encoder(SHAPE).eval()
    for p in made.parameters():  # as large as learned ones
        p.data.mul_(2).add_(torch.randn_like(p), alpha=0.05)
    return made


def requested(*lengths: int) -> tuple[torch.Tensor, Layout, torch.Tensor]:
    total = sum(lengths)
    return torch.randint(90, (total,)), Layout.of(lengths), torch.randint(2, (total,))


MANY = [33, 33, 33, 64, 64, 7, 1, 99, 98]


def short(encoder: Encoder) -> Encoder | InferenceEncoder:
    return with_fp16_weights(encoder, encoder)


def by_mkl(encoder: Encoder) -> Encoder | InferenceEncoder:
    return single(encoder, True)


def by_onednn(encoder: Encoder) -> Encoder | InferenceEncoder:
    """As on AMD's processors."""
    return single(encoder, False)


def int8_of_single(encoder: Encoder) -> Encoder | InferenceEncoder:
    """As on a processor that does not multiply bf16."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of_nn, "cpu_supports_bf16", lambda: False)
        return to_int8_inference(encoder)


def single(encoder: Encoder, at_home: bool) -> Encoder | InferenceEncoder:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of_nn, "_prefer_mkl", lambda: at_home)
        return to_fp32_inference(encoder)


@pytest.mark.parametrize("processor", ["GenuineIntel", "AuthenticAMD"])
def test_products_of_single_precision_are_left_to_mkl_but_on_amd(
    processor: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(of_nn.Path, "exists", lambda _: True)
    monkeypatch.setattr(
        of_nn.Path, "read_text", lambda _: f"processor: 0\nvendor_id: {processor}\n"
    )
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    assert of_nn._prefer_mkl.__wrapped__() is (processor == "GenuineIntel")


@pytest.mark.parametrize(
    ("make", "lengths", "far", "nearest"),
    [
        *(
            (make, n, 1e-5, 0.9999999)
            for make in (by_mkl, by_onednn)
            for n in ([12], [1], [5, 5, 9, 1, 5], MANY)
        ),
        *(
            pytest.param(short, n, 2e-3, 0.99999, marks=fbgemm)
            for n in ([12], [1], [5, 5, 9, 1, 5], [FEW], [30, 34])
        ),
        *(
            pytest.param(make, n, 5e-2, 0.999, marks=needs_int8)
            for make in (to_int8_inference, int8_of_single)
            for n in ([12], [1], [5, 5, 9, 1, 5], MANY)
        ),
        *(
            pytest.param(to_bf16_inference, n, 3e-2, 0.9995, marks=bfloat16)
            for n in ([12], [1], [5, 5, 9, 1, 5], MANY)
        ),
    ],
)
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu"])
def test_states_are_those_of_the_encoder_in_float64(
    make, lengths: list[int], far: float, nearest: float, activation: str, encoder: Encoder
):
    torch.manual_seed(len(lengths))
    network = Encoder(EncoderConfig(**{**vars(SHAPE), "hidden_act": activation})).eval()
    network.load_state_dict(encoder.state_dict())
    frozen, row = make(network), requested(*lengths)
    assert isinstance(frozen, InferenceEncoder)
    exact = Encoder(network.config).double().eval()
    exact.load_state_dict(network.state_dict())
    rows = torch.tensor([sum(lengths) - 1, 0])
    with torch.no_grad():
        wanted = exact(*row)
        poison()
        found, some = frozen(*row), frozen(*row, rows)
    for a, b in zip(found, wanted, strict=True):
        assert a.dtype == (torch.bfloat16 if make is to_bf16_inference else torch.float32)
        assert ((a.double() - b).norm(dim=-1) / b.norm(dim=-1)).max() < far
        assert torch.nn.functional.cosine_similarity(a.double(), b, dim=-1).min() > nearest
    assert some[-1].shape == (2, 64)
    same = {to_bf16_inference: 4e-2, to_int8_inference: 0.2, int8_of_single: 0.2}.get(make, 1e-5)
    torch.testing.assert_close(some[-1], found[-1][rows], atol=same, rtol=0)


@needs_int8
def test_sums_of_needs_int8_are_exact_and_every_token_has_its_own_scale():
    """As numpy counts in 64 bits; rows of zeros, of the largest numbers, and a thousand times as
    large as others."""
    torch.manual_seed(0)
    linear = torch.nn.Linear(300, 7).requires_grad_(False)
    linear.weight[0], linear.weight[1], linear.weight[2] = 0.25, -0.25, 0.0
    x = torch.randn(5, 300)
    x[0], x[1], x[2] = 3.0, 0.0, x[3] * 1000
    scales = [
        np.maximum(m.abs().amax(1, keepdim=True).numpy(), 1e-30) / np.float32(127)
        for m in (x, linear.weight)
    ]
    whole = [
        np.rint(m.numpy() / scale).astype(np.int64)
        for m, scale in zip((x, linear.weight), scales, strict=True)
    ]
    wanted = (whole[0] @ whole[1].T) * scales[0].astype(np.float64) * scales[
        1
    ].T + linear.bias.numpy()
    dense = _int8(PackedLayer(linear.weight, linear.bias))
    np.testing.assert_allclose(dense(x).numpy(), wanted, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(dense(x[3:4]), dense(x)[3:4], rtol=1e-6, atol=1e-6)
    overwrites = _int8(PackedLayer(linear.weight, linear.bias, owns_input=True))
    kept = x.clone()
    np.testing.assert_allclose(overwrites(x.clone()).numpy(), wanted, rtol=1e-6, atol=1e-6)
    dense(x)
    assert torch.equal(x, kept)
    assert dense(x[:0]).shape == (0, 7)
    spoilt = x.clone()
    spoilt[4, 0] = torch.nan
    assert dense(spoilt)[4].isnan().all()
    assert torch.equal(dense(spoilt)[:4], dense(x)[:4])


@needs_int8
@bfloat16
def test_of_bf16_no_number_overflows_eight_bits_and_every_token_has_its_own_scale():
    """Rows whose largest number is a little more than what their scale, which is rounded, allows
    for."""
    torch.manual_seed(0)
    linear = torch.nn.Linear(256, 64).requires_grad_(False)
    x = torch.randn(4000, 256)
    x = (x / x.abs().amax(1, keepdim=True) * torch.linspace(0.5, 4, 4000)[:, None]).bfloat16()
    x[7], x[8] = 0.0, 1e30
    wanted = x.double() @ linear.weight.double().T + linear.bias.double()
    dense = _int8(PackedLayer(linear.weight, linear.bias), torch.bfloat16)
    poison()
    found = dense(x)
    assert found.dtype == torch.bfloat16
    others = [i for i in range(4000) if i != 8]
    assert ((found.double() - wanted)[others].norm(dim=1) / wanted[others].norm(dim=1)).max() < 2e-2
    torch.testing.assert_close(found[8].double(), wanted[8], rtol=5e-2, atol=1e28)
    torch.testing.assert_close(found[7], linear.bias.bfloat16(), rtol=0, atol=0)
    spoilt = x.clone()
    spoilt[4, 0] = torch.nan
    assert dense(spoilt)[4].isnan().all()
    assert torch.equal(dense(spoilt)[:4], found[:4])


@pytest.mark.parametrize("instructions", ["AVX2", "AVX512_CORE"])
def test_where_sums_overflow_there_are_no_eight_bits(instructions: str):
    say = "from bertworks.models.transformer import cpu_supports_int8; print(cpu_supports_int8())"
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": instructions}
    said = subprocess.run(
        [sys.executable, "-c", say], env=environment, capture_output=True, text=True, check=True
    )
    assert said.stdout == "False\n"


@bfloat16
def test_a_bf16_encoder_that_learns_is_the_one_that_was_given(encoder: Encoder):
    frozen, row = to_bf16_inference(encoder), requested(40, 30)
    assert all(map(torch.equal, frozen(*row), encoder(*row)))
    assert frozen(*row)[-1].requires_grad
    assert {p.dtype for p in encoder.parameters()} == {torch.float32}


def test_threads_that_turn_the_matrices_at_once_all_get_the_rows_they_ask_for(encoder: Encoder):
    """One computes while the other turns them, and the other begins to compute before the first has
    ended."""
    computing = {name: threading.Event() for name in ("first", "second")}
    both = threading.Barrier(2, timeout=10)

    first_weight = encoder.blocks[0].attention.qkv.weight

    def dense(layer: PackedLayer) -> Product:
        name = threading.current_thread().name
        if layer.weight.data_ptr() == first_weight.data_ptr():
            both.wait()
        elif name == "second":
            assert computing["first"].wait(10)
        function = ACTIVATIONS[layer.activation] if layer.activation else torch.nn.Identity()

        def product(x: torch.Tensor) -> torch.Tensor:
            computing[threading.current_thread().name].set()
            if threading.current_thread().name == "first":
                assert computing["second"].wait(10)
            return function(torch.nn.functional.linear(x, layer.weight, layer.bias))

        return product

    frozen, row, rows = (
        InferenceEncoder(encoder, dense, pads_rows=False),
        requested(9, 5),
        torch.tensor([0, 9]),
    )
    found: list[torch.Tensor] = []

    def ask() -> None:
        with torch.no_grad():
            found.append(frozen(*row, rows)[-1])

    threads = [threading.Thread(target=ask, name=name) for name in computing]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    with torch.no_grad():
        wanted = encoder(*row)[-1][rows]
    assert len(found) == 2
    for one in found:
        torch.testing.assert_close(one, wanted, atol=1e-5, rtol=0)


@fbgemm
def test_many_tokens_and_gradients_are_left_to_others(encoder: Encoder):
    rest = to_fp32_inference(encoder)
    network, many, few = with_fp16_weights(encoder, rest), requested(40, FEW - 39), requested(7)
    with torch.no_grad():
        assert all(map(torch.equal, network(*many), rest(*many)))
        assert not torch.allclose(network(*few)[-1], rest(*few)[-1], atol=1e-5)
    assert torch.equal(network(*few)[-1], encoder(*few)[-1])
    assert network(*few)[-1].requires_grad


@fbgemm
@pytest.mark.parametrize("scale", [1e-4, 1e6])
def test_weights_that_half_precision_would_spoil_stay_as_they_are(scale: float, encoder: Encoder):
    other = Encoder(SHAPE).eval()
    other.load_state_dict(encoder.state_dict())
    other.blocks[1].feed_forward.up.weight.data.mul_(scale)
    assert with_fp16_weights(other, other) is other


@pytest.mark.parametrize("has_wide_vectors", [False, True])
@pytest.mark.parametrize(("dtype", "off"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
def test_attention_in_runs_is_that_of_float64_one_by_one(
    dtype: torch.dtype, off: float, has_wide_vectors: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("bertworks.models.kernels._has_wide_vectors", lambda: has_wide_vectors)
    torch.manual_seed(1)
    lengths = [3, 3, 3, 40, 7, 7, 1, 3, 32, 64, 64]
    layout, qkv = Layout.of(lengths), torch.randn(sum(lengths), 3, 4, 16).to(dtype)
    assert layout.equal_lengths[:5] == [(0, 3, 3), (9, 1, 40), (49, 2, 7), (63, 1, 1), (64, 1, 3)]
    wanted = []
    for part in qkv.double().split(lengths):
        q, k, v = part.permute(1, 2, 0, 3)
        wanted.append(((q @ k.mT / 4).softmax(-1) @ v).transpose(0, 1))
    with torch.no_grad():
        poison()
        found = attention_inference(Inputs(*qkv.unbind(1), layout))
    torch.testing.assert_close(found.double(), torch.cat(wanted), atol=off, rtol=0)


@pytest.mark.parametrize("length", [5, 31, 32, 96])
def test_bf16_attention_with_a_mask_is_that_of_float64(length: int):
    """That of training, whose gradients are tested elsewhere."""
    torch.manual_seed(length)
    inputs = [torch.randn(3, 4, length, 16).bfloat16() for _ in range(3)]
    mask = torch.arange(length) < torch.tensor([1, length - 2, length])[:, None]
    q, k, v = (x.double() for x in inputs)
    wanted = (q @ k.mT / 4).masked_fill(~mask[:, None, None], -torch.inf).softmax(-1) @ v
    poison()
    found = attend(*inputs, mask[:, None, None])
    torch.testing.assert_close(found.double(), wanted, atol=3e-2, rtol=0)


@pytest.mark.parametrize("lengths", [[32, 32], [32, 23, 32, 27]])
@pytest.mark.parametrize("size", [0.1, 1.0, 4.0, 19.0, 21.0, 1e3, 1e15])
@pytest.mark.parametrize("sign", [1, -1])
def test_bf16_attention_of_small_and_of_vast_scores_is_that_of_float64(
    size: float, sign: int, lengths: list[int]
):
    """Those of a token with itself are the only ones that are not 0."""
    torch.manual_seed(0)
    q, k = (torch.cat([torch.eye(n, 32) * by for n in lengths]) for by in (size * sign, size))
    qkv = torch.stack(
        [part[:, None].expand(-1, 4, -1) for part in (q, k, torch.randn(len(q), 32))], 1
    ).bfloat16()
    wanted = []
    for part in qkv.double().split(lengths):
        q, k, v = part.permute(1, 2, 0, 3)
        wanted.append(((q @ k.mT / 32**0.5).softmax(-1) @ v).transpose(0, 1))
    with torch.no_grad():
        poison()
        found = attention_inference(Inputs(*qkv.unbind(1), Layout.of(lengths)))
    torch.testing.assert_close(found.double(), torch.cat(wanted), atol=3e-2, rtol=0)


def test_a_sequence_without_numbers_spoils_no_other_one_in_bf16():
    torch.manual_seed(0)
    layout, qkv = Layout.of([20, 20, 20]), torch.randn(60, 3, 4, 16).bfloat16()
    assert layout.buckets.layouts[0].present.shape == (2, 32)  # the first two are computed together
    spoilt = qkv.clone()
    spoilt[25, 1, 2, 3] = torch.nan
    with torch.no_grad():
        wanted, found = (
            attention_inference(Inputs(*qkv.unbind(1), layout)),
            attention_inference(Inputs(*spoilt.unbind(1), layout)),
        )
    others = [*range(20), *range(40, 60)]
    assert found[20:40].isnan().any()
    torch.testing.assert_close(found[others], wanted[others], atol=2e-2, rtol=0)


@bfloat16
@pytest.mark.parametrize("rows", [None, torch.arange(0, 140, 2)])
def test_rows_that_fill_up_a_step_of_learning_change_nothing(
    rows: torch.Tensor | None, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
):
    """Neither states nor gradients, of which those of norms and biases would see a row of zeros
    first."""
    network, found, seen = Encoder(SHAPE).bfloat16().eval(), [], set()
    network.load_state_dict(encoder.state_dict())
    product = torch.ops.mkldnn._linear_pointwise.default
    monkeypatch.setattr(
        "bertworks.models.layers.torch.ops.mkldnn._linear_pointwise",
        SimpleNamespace(default=lambda x, *others: seen.add(len(x)) or product(x, *others)),
    )
    row, probe = requested(60, 60, 23), torch.randn(143 if rows is None else 70, 64)
    for fill in (pad_rows_to_bucket, lambda x, **options: x):
        for module in ("transformer", "layers"):
            monkeypatch.setattr(f"bertworks.models.{module}.pad_rows_to_bucket", fill)
        poison()
        states = network(*row, rows)
        assert [len(state) for state in states] == [143] * 3 + [len(probe)]
        network.zero_grad()
        sum(
            (state.float().square().mean() for state in states[:-1]),
            (states[-1].float() * probe).sum(),
        ).backward()
        found.append(
            [*states, *(p.grad.clone() for p in network.parameters() if p.grad is not None)]
        )
    assert seen == ({144, 143} if rows is None else {144, 143, 72, 70})
    for a, b in zip(*found, strict=True):
        assert (a.double() - b.double()).norm() <= 2e-2 * b.double().norm()


def test_rectangles_are_of_few_sizes_and_every_token_stands_in_one():
    numbers, sizes = random.Random(5), set()
    for _ in range(200):
        longest = numbers.choice((6, 40, 128, 512))
        lengths = [numbers.randint(1, longest) for _ in range(numbers.randint(1, 4000 // longest))]
        layout = Layout.of(lengths)
        found = layout.buckets
        assert torch.equal(found.tokens[found.places], torch.arange(sum(lengths)))
        present = [part.present for part in found.layouts]
        flat = torch.cat([part.flatten() for part in present])
        assert torch.equal(found.places.sort().values, flat.nonzero()[:, 0])
        firsts = set(layout.first.tolist())
        for rows, part in zip(
            found.tokens.split([part.numel() for part in present]), present, strict=True
        ):
            for tokens, there in zip(rows.view(part.shape), part, strict=True):
                assert tokens[0].item() in firsts
                assert tokens[~there].eq(tokens[0]).all()
                assert torch.equal(tokens[there], torch.arange(int(there.sum())) + tokens[0])
        sizes.update(tuple(part.shape) for part in present)
    assert all(count & (count - 1) == 0 and length % 16 == 0 for count, length in sizes)
    assert 40 < len(sizes) < 120


@pytest.mark.parametrize(
    "make", [by_mkl, by_onednn, pytest.param(to_bf16_inference, marks=bfloat16)]
)
def test_products_have_few_sizes_where_each_costs_a_program(
    make: Callable[[Encoder], Encoder | InferenceEncoder],
    encoder: Encoder,
    monkeypatch: pytest.MonkeyPatch,
):
    """And what fills them up is nowhere to be seen."""
    network, asked_of = make(encoder), torch.tensor([0, 3, 2])
    assert isinstance(network, InferenceEncoder)
    sizes, pack = set(), network._pack.keywords["pack"]

    def noted(*layer: Any) -> Product:
        product = pack(*layer)

        def of_size(x: torch.Tensor) -> torch.Tensor:
            sizes.add(len(x))
            return product(x)

        return of_size

    monkeypatch.setitem(network._pack.keywords, "pack", noted)
    lengths = [*range(4, 60, 3), *range(60, 99, 7)]
    with torch.no_grad():
        for length in lengths:
            row = requested(length, 90, 99, 80, length)
            states, some = network(*row), network(*row, asked_of)
            assert {len(state) for state in states} == {2 * length + 269}
            assert [len(state) for state in some] == [
                2 * length + 269
            ] * SHAPE.num_hidden_layers + [3]
    if make is by_mkl:
        assert sizes == {3, *(2 * length + 269 for length in lengths)}
    else:
        assert sizes <= {8, *range(272, 513, 16)}
        sizes.clear()
        for length in range(1, FEW + 1):
            with torch.no_grad():
                states = network(*requested(length))
            assert {len(state) for state in states} == {length}
        assert sizes == set(range(8, FEW + 1, 8))  # a server gets texts of all these lengths
