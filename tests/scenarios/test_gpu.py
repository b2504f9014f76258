"""What a GPU computes in another way than a CPU. `--device cuda` runs these tests on a GPU; on a
CPU they look at the parts that need none. Shapes and types of all that is computed on a GPU:
test_devices."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from bertworks import pretrain
from bertworks.batching.batch import Batch, BatchTarget, Prefetched, collate
from bertworks.errors import BertworksError, UsageError
from bertworks.inference import engine
from bertworks.models import kernels
from bertworks.models.config import BERT_SIZES
from bertworks.models.layout import Layout
from bertworks.models.transformer import _rounded, pack_linears, to_bf16_inference
from bertworks.runs.training_run import TrainingRun
from bertworks.tasks.heads import tally
from bertworks.tasks.outputs import SpanExtraction
from bertworks.training import device as machine, loop, objectives
from bertworks.training.objectives import sample_tokens, vocabulary_cross_entropy
from tests.support.tiny import assert_same_run, write_corpus, write_recipe
from tests.training.test_loop import SMALL, make_examples, make_model, relative, run

CUDA = torch.device("cuda")


@pytest.fixture
def gpu_memory(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the memory of the GPU, in GB."""

    def memory(gigabytes: float) -> None:
        for module in (machine, engine):
            monkeypatch.setattr(module, "total_memory", lambda _: int(gigabytes * 1e9))

    return memory


# Batches of the next step


def made(numbers: list[int], n: int) -> list[Batch]:
    """What was made is noted."""
    numbers.append(n)
    return [collate(make_examples(2, seed=n))]


def test_batches_that_a_thread_makes_ahead_are_those_of_the_step(device: torch.device) -> None:
    numbers = list[int]()
    ahead = Prefetched(partial(made, numbers), device if device.type == "cuda" else None)
    for n in (5, 6, 7, 2, 3):
        (got,), (expected,) = ahead(n), made([], n)
        assert torch.equal(got.input_ids, expected.input_ids)
        assert torch.equal(got.layout.position_ids, expected.layout.position_ids)
        assert got.to(device).input_ids.is_pinned() is False
        assert got.input_ids.is_pinned() is (device.type == "cuda")
    ahead._thread.shutdown()
    assert numbers == [5, 6, 7, 8, 2, 3, 4]


def test_batches_of_a_plan_that_has_changed_are_made_again() -> None:
    plan = [1]
    ahead = Prefetched(lambda n: [collate(make_examples(2, seed=n + plan[0]))])
    ahead(0)
    plan[0] = 50
    ahead.forget()
    assert torch.equal(ahead(1)[0].input_ids, collate(make_examples(2, seed=51)).input_ids)


def test_an_error_in_the_thread_is_that_of_the_step_that_needs_the_batches() -> None:
    def fails(n: int) -> list[Batch]:
        if n:
            raise IndexError("no such step")
        return []

    ahead = Prefetched(fails)
    assert ahead(0) == []
    with pytest.raises(IndexError, match="no such step"):
        ahead(1)


# Precision


def test_copies_by_one_kernel_have_the_bits_and_gradients_of_single_ones(
    device: torch.device,
) -> None:
    torch.manual_seed(0)
    values = [torch.randn(shape, device=device) for shape in ((7, 5), (5,), (3, 2))]
    results = []
    for copies in (
        partial(loop._Rounded.apply, torch.bfloat16),
        lambda *x: [t.bfloat16() for t in x],
    ):
        parameters = [v.clone().requires_grad_() for v in values]
        first, second, _ = copies(*parameters)
        (
            first.t() @ torch.ones(7, 1, dtype=first.dtype, device=device) * second[:, None]
        ).square().sum().backward()
        results.append((first, second, [p.grad for p in parameters]))
    (first, second, grads), (single, other, expected) = results
    assert torch.equal(first, single)
    assert torch.equal(second, other)
    assert [g is None for g in grads] == [g is None for g in expected] == [False, False, True]
    for got, wanted in zip(grads[:2], expected[:2], strict=True):
        assert got.dtype == torch.float32
        assert torch.equal(got, wanted)


def test_a_step_with_copies_by_one_kernel_is_the_same_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters that look like those of a GPU, in a network that computes as ever."""
    expected = run([6], steps=2, precision="bf16")[0]
    original, calls = loop._Rounded.apply, []
    real = torch.nn.Module.get_parameter

    class OnGpu(torch.nn.Parameter):
        is_cuda = True

    def parameter(module: torch.nn.Module, name: str) -> Any:
        return real(module, name).as_subclass(OnGpu)

    monkeypatch.setattr(torch.nn.Module, "get_parameter", parameter)
    monkeypatch.setattr(loop._Rounded, "apply", lambda *x: calls.append(len(x)) or original(*x))
    got = run([6], steps=2, precision="bf16")[0]
    assert len(calls) == 2 * 2 * (1 + SMALL.num_hidden_layers + 1)  # embeddings, blocks, heads
    for (name, p), q in zip(got.named_parameters(), expected.parameters(), strict=True):
        assert torch.equal(p, q), name


def perturbed(model: torch.nn.Module) -> torch.nn.Module:
    with torch.no_grad():
        for p in model.parameters():
            p += 0.1 * torch.randn_like(p)
    return model.eval()


def test_an_encoder_in_bf16_has_bf16_states_close_to_those_in_fp32(device: torch.device) -> None:
    encoder = perturbed(make_model()).encoder.to(device)
    if device.type == "cpu":
        fast = pack_linears(encoder, _rounded, torch.bfloat16, pads_rows=False)
    else:
        fast = to_bf16_inference(encoder)
    batch = collate(make_examples(6)).to(device)
    inputs = batch.input_ids, batch.layout, batch.token_type_ids
    with torch.no_grad():
        states, expected = fast(*inputs), encoder(*inputs)
    assert {state.dtype for state in states} == {torch.bfloat16}
    assert torch.nn.functional.cosine_similarity(states[-1].float(), expected[-1], -1).min() > 0.999
    assert {p.dtype for p in encoder.parameters()} == {torch.float32}


# Kernels


@pytest.mark.parametrize(("causal", "reach"), [(False, 0), (True, 0), (False, 5)])
def test_packed_attention_is_padded_attention(
    device: torch.device, causal: bool, reach: int
) -> None:
    if device.type == "cpu":
        pytest.skip("the kernel needs a GPU")
    layout = Layout.of([17, 64, 3, 40], device)
    layout = layout.directed("left_to_right") if causal else layout
    torch.manual_seed(0)
    qkv = torch.randn(124, 3, 4, 32, device=device, dtype=torch.bfloat16)
    grad = torch.randn(124, 4, 32, device=device, dtype=torch.bfloat16)
    results = []
    for compute in (kernels.attention_packed, kernels.attention_reference):
        x = qkv.clone().requires_grad_()
        y = compute(kernels.Inputs(*x.unbind(1), layout, reach=reach))
        y.backward(grad)
        results.append((y.detach().float(), x.grad.float()))
    for got, expected in zip(*results, strict=True):
        assert relative(got, expected) < 0.01


def test_packed_attention_drops_the_fraction_that_it_should(device: torch.device) -> None:
    if device.type == "cpu":
        pytest.skip("the kernel needs a GPU")
    layout = Layout.of([64, 100], device)
    torch.manual_seed(0)
    qkv = torch.randn(164, 3, 2, 32, device=device, dtype=torch.bfloat16)
    qkv[:, :2] = 0  # all keys count alike
    qkv[:, 2] = 1  # so a result is the share of the keys that stay, over 0.9
    got = kernels.attention_packed(kernels.Inputs(*qkv.unbind(1), layout, dropout=0.1)).float()
    assert got.mean().item() == pytest.approx(1, abs=0.01)
    assert got.std().item() == pytest.approx((0.1 / 0.9 / 82) ** 0.5, rel=0.2)


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("words", [40, 41])
def test_the_loss_needs_no_softmax_in_place_and_may_have_tokens_of_probability_0(
    monkeypatch: pytest.MonkeyPatch, words: int, has_bias: bool
) -> None:
    r = torch.Generator().manual_seed(0)
    x, table, bias = (torch.randn(*shape, generator=r) for shape in ((9, 6), (words, 6), (words,)))
    labels = torch.randint(words, (9,), generator=r)
    results = []
    for is_gpu in (True, False):
        monkeypatch.setattr(Tensor, "is_cuda", property(lambda _, is_gpu=is_gpu: is_gpu))
        inputs = [t.clone().requires_grad_() for t in (x, table, bias)[: 2 + has_bias]]
        value = vocabulary_cross_entropy(
            inputs[0], inputs[1], inputs[2] if has_bias else None, labels
        )
        value.loss.backward()
        results.append([value.loss.detach(), value.correct, *(t.grad for t in inputs)])
    for got, expected in zip(*results, strict=True):
        assert (
            torch.equal(got, expected)
            if words == 40
            else torch.allclose(got, expected, rtol=1e-5, atol=1e-6)
        )


def test_the_loss_of_spans_has_a_fixed_order(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = collate(make_examples(3))
    labels = torch.tensor([1, 3, 0, 0, 2, 4])
    batch = replace(
        batch, targets={"task": BatchTarget(torch.arange(len(batch.input_ids)), labels)}
    )
    logits, losses = torch.randn(len(batch.input_ids), 2), []
    for is_gpu in (True, False):
        monkeypatch.setattr(Tensor, "is_cuda", property(lambda _, is_gpu=is_gpu: is_gpu))
        losses.append(tally(SpanExtraction(), logits, batch).loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_a_gpu_keeps_more_logits_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = list[int]()
    original = torch.nn.functional.linear

    def linear(x: Tensor, *rest: Tensor) -> Tensor:
        sizes.append(len(x))
        return original(x, *rest)

    monkeypatch.setattr(objectives.F, "linear", linear)
    monkeypatch.setattr(objectives, "CHUNK_BYTES", 4 * 40 * 5)
    monkeypatch.setattr(objectives, "GPU_CHUNK_BYTES", 4 * 40 * 10)
    for is_gpu in (False, True):
        monkeypatch.setattr(Tensor, "is_cuda", property(lambda _, is_gpu=is_gpu: is_gpu))
        vocabulary_cross_entropy(torch.randn(10, 6), torch.randn(40, 6), None, torch.arange(10))
    assert sizes == [5, 5, 10]


def test_samples_by_sums_of_whole_numbers_are_those_of_probabilities(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    r = torch.Generator().manual_seed(0)
    x, table, draws = (
        torch.randn(500, 6, generator=r),
        torch.randn(40, 6, generator=r),
        torch.rand(500, generator=r),
    )
    expected = sample_tokens(x, table, None, draws)
    monkeypatch.setattr(Tensor, "is_cuda", property(lambda _: True))
    got = sample_tokens(x, table, None, draws)
    assert len(set(expected.tolist())) > 30
    assert torch.equal(got, expected)


# Settings of the device


def test_the_order_of_sums_is_fixed_on_a_gpu_unless_it_is_switched_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def state() -> tuple[bool, bool]:
        settings: Any = torch.utils.deterministic
        return torch.are_deterministic_algorithms_enabled(), settings.fill_uninitialized_memory

    monkeypatch.delenv("BERTWORKS_DETERMINISTIC", raising=False)
    before = state()
    with machine.fixed_order(torch.device("cpu")) as is_fixed:
        assert (is_fixed, state()) == (True, before)
    with machine.fixed_order(CUDA) as is_fixed:
        assert (is_fixed, state()) == (True, (True, False))
    assert state() == before
    monkeypatch.setenv("BERTWORKS_DETERMINISTIC", "0")
    with machine.fixed_order(CUDA) as is_fixed:
        assert (is_fixed, state()) == (False, before)
    with machine.fixed_order(torch.device("cpu")) as is_fixed:
        assert is_fixed


def test_micro_batches_are_as_large_as_the_gpu_allows(gpu_memory: Callable[[float], None]) -> None:
    base, large = BERT_SIZES["base"], BERT_SIZES["large"]
    gpu_memory(80)
    assert machine.micro_tokens(8192, base, "bf16", torch.device("cpu")) == 8192
    assert machine.micro_tokens(8192, base, "bf16", CUDA) == 131072
    assert machine.micro_tokens(8191, base, "bf16", CUDA) == 8191  # chosen by someone
    assert 50_000 < machine.micro_tokens(8192, large, "bf16", CUDA) < 60_000
    assert 25_000 < machine.micro_tokens(8192, large, "fp32", CUDA) < 30_000
    gpu_memory(16)
    assert 20_000 < machine.micro_tokens(8192, base, "bf16", CUDA) < 30_000
    gpu_memory(6)
    assert machine.micro_tokens(8192, large, "bf16", CUDA) == 1024


def test_batches_of_inference_are_as_large_as_the_gpu_allows(
    gpu_memory: Callable[[float], None],
) -> None:
    gpu_memory(80)
    assert engine.batch_tokens(torch.device("cpu")) == 4096
    assert engine.batch_tokens(CUDA) == 65536
    gpu_memory(16)
    assert 4096 < engine.batch_tokens(CUDA) < 16384


def test_one_of_several_gpus_is_named(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, model: Path
) -> None:
    if torch.cuda.device_count() > 1:
        pytest.skip("there is a second GPU")
    main = pytest.importorskip("bertworks.cli.main").main
    assert (
        main(["embed", str(model), "-t", "a", "-o", str(tmp_path / "v.npy"), "--device", "cuda:1"])
        == 2
    )
    assert (
        f"there is no cuda:1: the number of GPUs is {torch.cuda.device_count()}"
        in capfd.readouterr().err
    )
    with pytest.raises(UsageError, match="the device 'gpu' is not known"):
        machine.choose_device("gpu")


# Runs


@pytest.fixture
def like_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[TrainingRun]]:
    """Trainings make batches ahead and write checkpoints in a thread, on a CPU as well."""
    runs, init, batches = list[TrainingRun](), TrainingRun.__init__, TrainingRun._batches

    def begin(self: TrainingRun, *rest: Any) -> None:
        init(self, *rest)
        self._writer = ThreadPoolExecutor(1)
        runs.append(self)

    def ahead(self: TrainingRun) -> Callable[[int], list[Batch]]:
        self._ahead = Prefetched(batches(self))
        return self._ahead

    monkeypatch.setattr(TrainingRun, "__init__", begin)
    monkeypatch.setattr(TrainingRun, "_batches", ahead)
    return runs


def trained(folder: Path, device: torch.device, stop: int = 0) -> list[Any]:
    """The events of a tiny training. stop: after this step."""
    inputs, recipe = (
        write_corpus(folder.parent / "text.jsonl"),
        write_recipe(folder.parent / "recipe.toml"),
    )
    events = []
    for event in pretrain([inputs], folder, recipe=str(recipe), device=str(device), workers=1):
        events.append(event)
        if stop and event.fields.get("step", 0) >= stop:
            break
    return events


def test_a_run_with_threads_is_the_run_without_them(
    tmp_path: Path, device: torch.device, request: pytest.FixtureRequest
) -> None:
    trained(tmp_path / "plain", device)
    runs = request.getfixturevalue("like_on_a_gpu")
    events = trained(tmp_path / "threads", device)
    assert runs[0]._ahead is not None
    saved = [event.fields["step"] for event in events if event.kind == "saved"]
    assert saved == sorted(saved)
    assert saved[-1] == 40
    assert_same_run(tmp_path / "threads", tmp_path / "plain")


def test_a_run_that_is_stopped_and_resumed_ends_with_the_same_bits(
    tmp_path: Path, device: torch.device, like_on_a_gpu: list[TrainingRun]
) -> None:
    trained(tmp_path / "whole", device)
    trained(tmp_path / "stopped", device, stop=22)
    trained(tmp_path / "stopped", device)
    assert_same_run(tmp_path / "stopped", tmp_path / "whole")


def test_a_checkpoint_that_cannot_be_written_ends_the_run(
    tmp_path: Path,
    device: torch.device,
    like_on_a_gpu: list[TrainingRun],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(folder: Path, step: int, *_: Any, **__: Any) -> Path:
        raise BertworksError("the disk is full", where=str(folder))

    monkeypatch.setattr("bertworks.runs.training_run.save_checkpoint", fails)
    with pytest.raises(BertworksError, match="the disk is full"):
        trained(tmp_path / "out", device)


def test_two_trainings_have_equal_bits(device: torch.device) -> None:
    config = replace(SMALL, hidden_dropout=0.1, attention_dropout=0.1)
    with machine.fixed_order(device):
        one, two = (
            run([6], precision="bf16", model=make_model(config).to(device))[0] for _ in range(2)
        )
    assert all(torch.equal(p, q) for p, q in zip(one.parameters(), two.parameters(), strict=True))
