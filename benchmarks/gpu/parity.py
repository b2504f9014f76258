"""Whether a GPU computes the right thing: transformers, a CPU in float32, padding, each text alone;
and which steps have no fixed order."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from common import Part, batch_of, config, perturbed
from torch import Tensor, nn

from bertworks.batching.batch import Batch, BatchTarget
from bertworks.checkpoints.hf_mapping import from_huggingface
from bertworks.models import kernels
from bertworks.models.config import EncoderConfig
from bertworks.models.layout import Layout
from bertworks.models.transformer import to_bf16_inference
from bertworks.tasks.heads import TaskModel
from bertworks.tasks.outputs import (
    Classification,
    MultiLabel,
    MultipleChoice,
    Regression,
    SpanExtraction,
)
from bertworks.tasks.settings import TaskConfig
from bertworks.training.device import fixed_order
from bertworks.training.loop import MixedPrecision, make_optimizer, train
from bertworks.training.objectives import PretrainingModel, vocabulary_cross_entropy
from bertworks.training.recipe import OptimizerConfig, load_recipe

LENGTHS = [17, 128, 40, 3, 90, 128, 64, 2]
FAMILIES = ("bert-small", "albert-small", "electra-mini", "roberta-small", "xlm-small", "gpt2")


def main() -> None:
    part = Part("parity")
    c = replace(config("tiny" if part.quick else "base", 0.0), hidden_act="gelu")
    theirs, ours = with_equal_weights(c)
    batch = batch_of(LENGTHS, c)
    part.ready()
    theirs.to(part.device)
    on_device = deepcopy(ours).to(part.device)
    part.attempt("transformers fp32", against_transformers, part, theirs, on_device, batch, "fp32")
    part.attempt("transformers bf16", against_transformers, part, theirs, on_device, batch, "bf16")
    part.attempt("CPU fp32", against_cpu, part, ours, on_device, batch)
    del theirs
    part.attempt("packed and padded", packed_and_padded, part, on_device, batch)
    part.attempt("answers", answers, part, on_device, batch)
    part.attempt("alone and together", alone, part, on_device, batch)
    for dtype in (torch.float32, torch.bfloat16):
        part.attempt(f"loss {dtype}", loss, part, dtype)
    part.attempt("softmax in place", softmax_in_place, part)
    part.attempt("dropout of attention", dropout, part)
    part.attempt("copies", copies, part, on_device)
    for fixed in (True, False):
        part.attempt(f"twice, fixed order {fixed}", twice, part, c, fixed)
    for name in FAMILIES:
        part.attempt(f"{name}, fixed order", family_step, part, name, least=3)
    for what, step in task_steps(part):
        part.attempt(f"{what}, fixed order", step, least=3)


def with_equal_weights(c: EncoderConfig) -> tuple[Any, PretrainingModel]:
    """transformers' BERT and ours."""
    torch.manual_seed(0)
    theirs = transformers.BertForPreTraining(
        transformers.BertConfig(
            vocab_size=c.vocab_size,
            hidden_size=c.hidden_size,
            num_hidden_layers=c.num_hidden_layers,
            num_attention_heads=c.num_attention_heads,
            intermediate_size=c.ffn_size,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            max_position_embeddings=c.max_position_embeddings,
        )
    )
    perturbed(theirs).eval()
    ours = PretrainingModel(c)
    ours.load_state_dict(from_huggingface(theirs.state_dict(), c))
    return theirs, ours.eval()


def padded_inputs(batch: Batch) -> dict[str, Tensor]:
    """What transformers reads."""
    layout, target = batch.layout, batch.targets["masked_lm"]
    labels = torch.full_like(batch.input_ids, -100).index_copy(0, target.positions, target.labels)
    flat = layout.pad(labels + 100) - 100  # padding becomes -100
    assert batch.token_type_ids is not None
    return {
        "input_ids": layout.pad(batch.input_ids),
        "attention_mask": layout.present.long(),
        "token_type_ids": layout.pad(batch.token_type_ids),
        "labels": flat,
        "next_sentence_label": batch.targets["next_sentence"].labels,
    }


def our_losses(model: nn.Module, batch: Batch, precision: Any) -> tuple[Tensor, list[Tensor]]:
    """The loss of a step, and all gradients."""
    model.zero_grad(set_to_none=True)
    losses = MixedPrecision(model, precision)(batch)  # type: ignore[arg-type]
    counts = {name: len(batch.targets[name].labels) for name in losses}
    loss = torch.stack([value.loss / counts[name] for name, value in losses.items()]).sum()
    loss.backward()
    return loss.detach(), [p.grad for p in model.parameters() if p.grad is not None]


def norm(tensors: list[Tensor]) -> float:
    return float(torch.stack([t.float().norm() for t in tensors]).norm())


def cosine(a: Tensor, b: Tensor) -> float:
    return float(F.cosine_similarity(a.double(), b.double(), -1).min())


def against_transformers(part: Part, theirs: Any, ours: Any, batch: Batch, precision: str) -> None:
    there, bf16 = batch.to(part.device), precision == "bf16"
    inputs = padded_inputs(there)
    theirs.zero_grad(set_to_none=True)
    with torch.autocast(part.device.type, torch.bfloat16, enabled=bf16):
        output = theirs(**inputs, output_hidden_states=True)
    output.loss.backward()
    reference = float(output.loss.detach())
    loss, gradients = our_losses(ours, there, precision)
    grads = from_huggingface(
        {n: p.grad for n, p in theirs.named_parameters() if p.grad is not None}, ours.encoder.config
    )
    named = {n: p.grad for n, p in ours.named_parameters() if p.grad is not None}
    # Their embedding of [PAD] does not learn; no token here is [PAD].
    differences = [named[name].float() - g.float() for name, g in grads.items() if name in named]
    with torch.no_grad():
        encoder = to_bf16_inference(ours.encoder) if bf16 and part.is_gpu else ours.encoder
        states = encoder(there.input_ids, there.layout, there.token_type_ids)[-1].float()
        expected = there.layout.unpad(output.hidden_states[-1].float())
    part.line(
        f"transformers {precision}",
        loss=reference,
        difference=abs(float(loss) - reference) / reference,
        states=float((states - expected).abs().max()),
        cosine=cosine(states, expected),
        gradients=norm(differences) / norm(gradients),
        compared=len(differences),
    )


def against_cpu(part: Part, ours: Any, on_device: Any, batch: Batch) -> None:
    loss, gradients = our_losses(ours, batch, "fp32")
    for precision in ("fp32", "bf16"):
        other, theirs = our_losses(on_device, batch.to(part.device), precision)
        differences = [g.cpu().float() - h for g, h in zip(theirs, gradients, strict=True)]
        flat, wide = (
            torch.cat([g.cpu().float().flatten() for g in part_]) for part_ in (theirs, gradients)
        )
        part.line(
            f"CPU fp32 against {precision} here",
            loss=float(loss),
            difference=abs(float(other) - float(loss)) / float(loss),
            gradients=norm(differences) / norm(gradients),
            cosine=cosine(flat, wide),
        )


@contextmanager
def without_packing() -> Iterator[None]:
    original = kernels.KERNELS
    kernels.KERNELS = original[1:]
    try:
        yield
    finally:
        kernels.KERNELS = original


def _inputs(qkv: torch.Tensor, layout: Layout, dropout: float = 0.0) -> kernels.Inputs:
    q, k, v = qkv.unbind(1)
    return kernels.Inputs(q, k, v, layout, dropout=dropout)


def packed_and_padded(part: Part, model: Any, batch: Batch) -> None:
    """Flash attention against the kernel with a mask, in bf16."""
    there = batch.to(part.device)
    loss, gradients = our_losses(model, there, "bf16")
    gradients = [g.clone() for g in gradients]
    with without_packing():
        other, padded = our_losses(model, there, "bf16")
    differences = [g - h for g, h in zip(gradients, padded, strict=True)]
    part.line(
        "packed and padded",
        loss=float(loss),
        difference=abs(float(loss - other)) / float(loss),
        gradients=norm(differences) / norm(gradients),
        packed=kernels.supports_packed(
            _inputs(
                torch.empty(1, 3, 1, 64, device=part.device, dtype=torch.bfloat16), there.layout
            )
        ),
    )


def answers(part: Part, model: Any, batch: Batch) -> None:
    """The states of an encoder in bf16 for answers, against those in float32: the cosine, and their
    type."""
    there = batch.to(part.device)
    encoder = to_bf16_inference(model.encoder)
    with torch.no_grad(), torch.autocast(part.device.type, torch.bfloat16):
        states = encoder(there.input_ids, there.layout, there.token_type_ids)
    with torch.no_grad():
        expected = model.encoder(there.input_ids, there.layout, there.token_type_ids)
    part.line(
        "answers in bf16", dtype=str(states[-1].dtype), cosine=cosine(states[-1], expected[-1])
    )


def alone(part: Part, model: Any, batch: Batch) -> None:
    """Whether a text has the same bits alone and in a batch: flash attention on its own, and the
    whole encoder."""
    there = batch.to(part.device)
    encoder = to_bf16_inference(model.encoder)
    with torch.no_grad():
        together = encoder(there.input_ids, there.layout, there.token_type_ids)[-1]
        ends, equal, worst = there.layout.cu_seqlens.tolist(), 0, 1.0
        for start, end in pairwise(ends):
            types = None if there.token_type_ids is None else there.token_type_ids[start:end]
            layout = Layout.of([end - start], part.device)
            one = encoder(there.input_ids[start:end], layout, types)[-1]
            equal += int(torch.equal(one, together[start:end]))
            worst = min(worst, cosine(one, together[start:end]))
        figures = {}
        if part.is_gpu:
            qkv = torch.randn(ends[-1], 3, 12, 64, device=part.device, dtype=torch.bfloat16)
            whole = kernels.attention_packed(_inputs(qkv, there.layout))
            alone = [
                kernels.attention_packed(
                    _inputs(qkv[start:end], Layout.of([end - start], part.device))
                )
                for start, end in pairwise(ends)
            ]
            figures = {"attention_equal": torch.equal(torch.cat(alone), whole)}
    part.line("alone and together", texts=len(ends) - 1, equal=equal, cosine=worst, **figures)


def loss(part: Part, dtype: torch.dtype) -> None:
    """The loss over the vocabulary, without its logits, against torch's."""
    rows, width, words = (64, 32, 100) if part.quick else (4096, 768, 30522)
    torch.manual_seed(0)
    x, table, bias = (
        torch.randn(*s, device=part.device) * 0.05
        for s in ((rows, width), (words, width), (words,))
    )
    labels = torch.randint(0, words, (rows,), device=part.device)
    given = [t.to(dtype).requires_grad_() for t in (x, table, bias)]
    value = vocabulary_cross_entropy(given[0], given[1], given[2], labels)
    value.loss.backward()
    ours = [t.grad for t in given]
    wide = [t.detach().float().requires_grad_() for t in given]
    reference = F.cross_entropy(F.linear(*wide), labels, reduction="sum")
    reference.backward()
    pairs = [
        (a, b.grad) for a, b in zip(ours, wide, strict=True) if a is not None and b.grad is not None
    ]
    worst = max(float((a.float() - b).norm() / b.norm()) for a, b in pairs)
    part.line(
        f"loss {dtype}",
        difference=float(abs(value.loss - reference).detach() / reference.detach()),
        gradients=worst,
    )


def softmax_in_place(part: Part) -> None:
    """Whether the kernel may write over what it reads. The package does not rely on it."""
    equal = []
    for width in (100, 1000, 30522, 30528, 50257):
        x = torch.randn(64 if part.quick else 4096, width, device=part.device, dtype=torch.bfloat16)
        expected = x.softmax(-1)
        torch.softmax(x, -1, out=x)
        equal.append(torch.equal(x, expected))
    part.line("softmax in place", equal=equal)


def dropout(part: Part) -> None:
    """Flash attention with dropout: its mean over many draws, and the share of zeros where all keys
    count alike."""
    if not part.is_gpu:
        return
    layout, n = Layout.of([64, 128, 100], part.device), 292
    qkv = torch.randn(n, 3, 4, 64, device=part.device, dtype=torch.bfloat16)
    plain = kernels.attention_packed(_inputs(qkv, layout)).float()
    draws = torch.stack(
        [kernels.attention_packed(_inputs(qkv, layout, 0.1)).float() for _ in range(400)]
    )
    error = float((draws.mean(0) - plain).norm() / plain.norm())
    torch.manual_seed(1)
    first = kernels.attention_packed(_inputs(qkv, layout, 0.1))
    torch.manual_seed(1)
    part.line(
        "dropout of attention",
        mean_error=error,
        deviation=float(draws.std(0).mean()),
        same_seed_same_bits=torch.equal(first, kernels.attention_packed(_inputs(qkv, layout, 0.1))),
    )


def copies(part: Part, model: Any) -> None:
    """Copies by one kernel have the bits of single ones."""
    parameters = [p.detach() for p in model.parameters()]
    made = [torch.empty_like(p, dtype=torch.bfloat16) for p in parameters]
    torch._foreach_copy_(made, parameters)
    part.line(
        "copies",
        equal=all(torch.equal(a, p.bfloat16()) for a, p in zip(made, parameters, strict=True)),
    )


def trained(part: Part, c: EncoderConfig, steps: int) -> list[Tensor]:
    torch.manual_seed(0)
    model = PretrainingModel(c).to(part.device)
    lengths = [128] * 8 if part.quick else [128] * 64 + list(range(32, 128))
    batch, optimizer = batch_of(lengths, c).to(part.device), OptimizerConfig(warmup=0.0)
    for step in train(
        model, make_optimizer(model, optimizer), lambda _: [batch], optimizer, 100, precision="bf16"
    ):
        if step.number == steps:
            break
    return [p.detach().clone() for p in model.parameters()]


def twice(part: Part, c: EncoderConfig, fixed: bool) -> None:
    """The same training two times: equal bits?"""
    c = replace(c, num_hidden_layers=2, hidden_dropout=0.1, attention_dropout=0.1)
    results = []
    for _ in range(2):
        if fixed:
            with fixed_order(part.device):
                results.append(trained(part, c, 10))
        else:
            results.append(trained(part, c, 10))
    differing = sum(not torch.equal(a, b) for a, b in zip(*results, strict=True))
    part.line("twice", fixed_order=fixed, tensors=len(results[0]), differing=differing)


def family_step(part: Part, name: str) -> None:
    """A step of a member of the family with a fixed order: what has none raises an error."""
    from bertworks.training.budget import random_batch

    recipe = load_recipe(name, ["encoder.num_hidden_layers=2", "encoder.vocab_size=1000"])
    c = recipe.encoder
    if c.languages:
        recipe = replace(recipe, objectives=recipe.objectives[:1])
    model = PretrainingModel(c, recipe.weights, generator_size=recipe.generator_size).to(
        part.device
    )
    batch = random_batch(recipe, 8, 64).to(part.device)
    with fixed_order(part.device):
        steps = train(
            model,
            make_optimizer(model, recipe.optimizer),
            lambda _: [batch],
            recipe.optimizer,
            100,
            precision="bf16",
        )
        next(steps)
        loss = sum(stats.loss for stats in next(steps).read().values())
    part.line(f"{name}, fixed order", loss=loss)


def task_steps(part: Part) -> Iterator[tuple[str, Callable[[], None]]]:
    """A step of each head of fine-tuning."""
    c = replace(config("tiny", 0.1), vocab_size=1000)
    lengths = [9, 17, 32]
    every, first = torch.arange(sum(lengths)), torch.tensor([0, 9, 26])
    weighted = Classification(outputs=3, weights=(1.0, 2.0, 1.0), smoothing=0.1)
    kinds: list[tuple[str, Any, Tensor, Tensor, dict[str, Any]]] = [
        ("classes", weighted, first, torch.tensor([0, 1, 2]), {}),
        (
            "tags",
            Classification(outputs=3, pooled=False),
            every,
            torch.zeros(len(every), dtype=torch.int64),
            {},
        ),
        ("labels", MultiLabel(outputs=3), first, torch.zeros(3, 3), {}),
        ("numbers", Regression(mean=1960.0, deviation=10.0), first, torch.zeros(3), {}),
        ("spans", SpanExtraction(), every, torch.arange(6), {}),
        ("choices", MultipleChoice(num_choices=3), first, torch.tensor([0.0, 1.0, 0.0]), {}),
        (
            "tags by an LSTM",
            Classification(outputs=3, pooled=False),
            every,
            torch.zeros(len(every), dtype=torch.int64),
            {"lstm_units": 32, "lstm_encoder": "trained", "feature_layers": "last"},
        ),
    ]
    for name, task, positions, labels, options in kinds:

        def step(
            task: Any = task,
            positions: Tensor = positions,
            labels: Tensor = labels,
            name: str = name,
            options: dict[str, Any] = options,
        ) -> None:
            model = TaskModel(c, task, TaskConfig(task="tagging", **options)).to(part.device)
            batch = replace(
                batch_of(lengths, c), targets={"task": BatchTarget(positions, labels)}
            ).to(part.device)
            optimizer = OptimizerConfig()
            with fixed_order(part.device):
                steps = train(
                    model,
                    make_optimizer(model, optimizer),
                    lambda _: [batch],
                    optimizer,
                    100,
                    precision="bf16",
                )
                next(steps)
                losses = next(steps).read()
            part.line(f"{name}, fixed order", loss=sum(stats.loss for stats in losses.values()))

        yield name, step


main()
