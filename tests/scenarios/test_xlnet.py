"""XLNet: folders of transformers and the heads of its classes, with gradients; our files opened
there; published sizes; what is refused."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import save_file
from torch import Tensor

from bertworks.batching.batch import Batch, BatchTarget, collate
from bertworks.batching.examples import add_special_tokens
from bertworks.batching.orders import Permuter
from bertworks.batching.sampling import MaskingConfig, num_predicted
from bertworks.checkpoints.hf_config import (
    check_representable,
    config_from_huggingface,
    config_to_huggingface,
    num_parameters,
)
from bertworks.checkpoints.hf_mapping import from_huggingface, to_huggingface
from bertworks.errors import BertworksError
from bertworks.models.config import PRESETS, EncoderConfig
from bertworks.models.heads import LMHead
from bertworks.models.layout import Layout
from bertworks.models.transformer import Encoder
from bertworks.tasks.heads import TaskModel
from bertworks.tasks.outputs import Classification, MultipleChoice, SpanExtraction
from bertworks.text.tokenizer import Template
from bertworks.training.budget import choose_recipe
from bertworks.training.loop import MixedPrecision
from bertworks.training.objectives import PretrainingModel
from bertworks.training.recipe import load_recipe

SMALL: dict[str, Any] = {
    "vocab_size": 99,
    "d_model": 32,
    "n_layer": 3,
    "n_head": 4,
    "d_inner": 64,
    "mem_len": None,
}
LENGTHS = [20, 7, 3, 5, 11]
TASKS = {
    "SequenceClassification": Classification(outputs=3),
    "TokenClassification": Classification(outputs=3, pooled=False),
    "QuestionAnsweringSimple": SpanExtraction(),
    "MultipleChoice": MultipleChoice(num_choices=5),
}
KINDS = ["Model", "LMHeadModel", *(f"For{kind}" for kind in TASKS)]


def theirs_of(kind: str, **settings: Any) -> torch.nn.Module:
    """A network of transformers with random weights, biases and norms included."""
    labels = 2 if "Question" in kind else 3
    config = transformers.XLNetConfig(**SMALL | {"num_labels": labels} | settings)
    torch.manual_seed(0)
    model = getattr(transformers, f"XLNet{kind}")(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.1)
    return model


def ours_of(theirs: torch.nn.Module) -> tuple[EncoderConfig, dict[str, Tensor]]:
    settings = json.loads(theirs.config.to_json_string(use_diff=False))
    settings["architectures"] = [type(theirs).__name__]
    config = config_from_huggingface(settings)
    return config, from_huggingface(theirs.state_dict(), config, settings=settings)


def part(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): v for n, v in state.items() if n.startswith(prefix)}


def padded(values: Tensor) -> tuple[Tensor, Tensor]:
    """Rows with padding in front, as the classes of transformers read the last place of a row."""
    rows = torch.zeros(len(LENGTHS), max(LENGTHS), dtype=values.dtype)
    mask = torch.arange(max(LENGTHS)) >= max(LENGTHS) - torch.tensor(LENGTHS)[:, None]
    rows[mask] = values
    return rows, mask


@pytest.fixture
def texts() -> tuple[Tensor, Tensor]:
    """Tokens, and their types, of which the last one of each text is that of <cls>."""
    torch.manual_seed(3)
    types = torch.cat([torch.arange(n) // (n // 2 + 1) for n in LENGTHS])
    types[Layout.of(LENGTHS).last.long()] = 2
    return torch.randint(9, 99, (sum(LENGTHS),)), types


def test_states_logits_and_gradients_are_those_of_transformers(texts: tuple[Tensor, Tensor]):
    """Without an order every token reads all others and itself."""
    theirs = theirs_of("LMHeadModel", clamp_len=6)
    config, state = ours_of(theirs)
    assert config.clamp_length == 6
    encoder, head = Encoder(config).eval(), LMHead(config)
    encoder.load_state_dict(part(state, "encoder."))
    head.load_state_dict(part(state, "lm_head."))
    ids, types = texts
    (rows, mask), (kinds, _) = padded(ids), padded(types)
    inputs = {"attention_mask": mask.float(), "token_type_ids": kinds}
    expected = theirs(rows, **inputs, output_hidden_states=True)
    states = encoder(ids, Layout.of(LENGTHS), types)
    logits = head(states[-1], encoder.embeddings.token.weight)
    wanted = [*expected.hidden_states, expected.logits]
    for ours, other in zip([*states, logits], wanted, strict=True):
        assert (ours - other[mask]).abs().max() < 5e-6
    probe = torch.randn_like(logits)
    (logits * probe).sum().backward()
    (expected.logits[mask] * probe).sum().backward()
    gradients = {
        name: torch.zeros_like(p) if p.grad is None else p.grad
        for name, p in theirs.named_parameters()
    }
    wanted_gradients = from_huggingface(gradients, config)
    parameters = [*encoder.named_parameters("encoder"), *head.named_parameters("lm_head")]
    assert {name for name, _ in parameters} == wanted_gradients.keys() == state.keys()
    for name, p in parameters:
        if name != "encoder.query":  # nothing is predicted from what it has not read
            difference = (p.grad - wanted_gradients[name]).norm()
            assert difference < 1e-5 * (wanted_gradients[name].norm() + 1e-3), name


@pytest.mark.parametrize("kind", TASKS)
def test_heads_of_tasks(kind: str, texts: tuple[Tensor, Tensor]):
    theirs = theirs_of(f"For{kind}")
    config, state = ours_of(theirs)
    task = TASKS[kind]
    model = TaskModel(config, task).eval()
    model.load_state_dict(state, strict=True)
    ids, types = texts
    layout = Layout.of(LENGTHS)
    (rows, mask), (kinds, _) = padded(ids), padded(types)
    inputs = {"input_ids": rows, "attention_mask": mask.float(), "token_type_ids": kinds}
    if kind == "MultipleChoice":
        inputs = {name: value[None] for name, value in inputs.items()}
    positions = layout.last.long() if task.pooled else torch.arange(len(ids))
    batch = Batch(ids, layout, types, {"task": BatchTarget(positions, positions)})
    found, output = model.logits(batch), theirs(**inputs)
    expected = output.logits if "logits" in output else None
    if expected is None:
        expected = torch.stack([output.start_logits, output.end_logits], -1)
    expected = expected.view(found.shape) if task.pooled else expected[mask]
    assert (found - expected).abs().max() < 5e-6
    probe = torch.randn_like(found)
    (found * probe).sum().backward()
    (expected * probe).sum().backward()
    gradients = {
        name: torch.zeros_like(p) if p.grad is None else p.grad
        for name, p in theirs.named_parameters()
    }
    settings = {"architectures": [f"XLNetFor{kind}"]}
    wanted = from_huggingface(gradients, config, settings=settings)
    learned = {name for name, p in model.named_parameters() if p.requires_grad}
    assert {*wanted} - learned == {"encoder.query"}  # in several processes all have a gradient
    for name, p in model.named_parameters():
        if p.requires_grad:
            assert (p.grad - wanted[name]).norm() < 1e-5 * (wanted[name].norm() + 1e-3), name
    written = to_huggingface(state, config, f"XLNetFor{kind}")
    assert written.keys() == theirs.state_dict().keys()
    assert all(torch.equal(written[name], value) for name, value in theirs.state_dict().items())


def test_dropout_of_the_head_of_texts_is_where_transformers_has_it(
    texts: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
):
    """With a dropout that scales instead of zeroing, the outputs in training agree only if its
    places agree. The last dropout of their body stands before our pooler."""

    def scale(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        return x * (1 - p) if training else x

    theirs = theirs_of("ForSequenceClassification", dropout=0.3, summary_last_dropout=0.3)
    config, state = ours_of(theirs)
    model = TaskModel(config, TASKS["SequenceClassification"])
    model.load_state_dict(state, strict=True)
    ids, types = texts
    layout = Layout.of(LENGTHS)
    (rows, mask), (kinds, _) = padded(ids), padded(types)
    batch = Batch(ids, layout, types, {"task": BatchTarget(layout.last.long(), layout.last)})
    monkeypatch.setattr("torch.nn.functional.dropout", scale)
    model.train().encoder.eval()
    theirs.train()
    for layer in theirs.transformer.modules():
        layer.eval()
    theirs.transformer.dropout.train()
    monkeypatch.setattr(theirs.transformer.dropout, "forward", _last_only(theirs))
    with torch.no_grad():
        expected = theirs(rows, attention_mask=mask.float(), token_type_ids=kinds).logits
        assert (model.logits(batch) - expected).abs().max() < 5e-6


def _last_only(theirs: torch.nn.Module) -> Any:
    """The dropout of a body of transformers, of which only the last call scales."""
    calls = [0]

    def forward(x: Tensor) -> Tensor:
        calls[0] += 1
        return x * 0.7 if calls[0] == 3 else x  # tokens, distances, the last states

    return forward


@pytest.mark.parametrize("kind", KINDS)
def test_our_files_open_in_transformers(kind: str, tmp_path: Path):
    theirs = theirs_of(kind)
    config, state = ours_of(theirs)
    name = f"XLNet{kind}"
    written = to_huggingface(state, config, name if kind.startswith("For") else None)
    settings = config_to_huggingface(config, architectures=[name], pad_token_id=5)
    labels = theirs.config.num_labels
    settings |= {"id2label": {str(n): f"LABEL_{n}" for n in range(labels)}}
    assert config_from_huggingface(settings) == config
    (tmp_path / "config.json").write_text(json.dumps(settings))
    tensors = {key: value.contiguous().clone() for key, value in written.items()}
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    read, info = getattr(transformers, name).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    for key, value in theirs.state_dict().items():
        assert torch.equal(read.state_dict()[key], value), key


# Published settings, besides those that are the defaults.
PUBLISHED = {
    "xlnet-base": (768, 12, 12, 3072, 116_750_336),
    "xlnet-large": (1024, 24, 16, 4096, 360_300_800),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes(name: str):
    width, layers, heads, inner, count = PUBLISHED[name]
    settings = {
        "architectures": ["XLNetLMHeadModel"],
        "attn_type": "bi",
        "bi_data": False,
        "bos_token_id": 1,
        "clamp_len": -1,
        "d_head": 64,
        "d_inner": inner,
        "d_model": width,
        "dropout": 0.1,
        "end_n_top": 5,
        "eos_token_id": 2,
        "ff_activation": "gelu",
        "initializer_range": 0.02,
        "layer_norm_eps": 1e-12,
        "mem_len": None,
        "model_type": "xlnet",
        "n_head": heads,
        "n_layer": layers,
        "n_token": 32000,
        "pad_token_id": 5,
        "reuse_len": None,
        "same_length": False,
        "start_n_top": 5,
        "summary_activation": "tanh",
        "summary_last_dropout": 0.1,
        "summary_type": "last",
        "summary_use_proj": True,
        "untie_r": True,
        "vocab_size": 32000,
    }
    config = config_from_huggingface(settings)
    assert config == PRESETS[name]
    assert num_parameters(config, ["lm_head"]) == count
    written = config_to_huggingface(config, architectures=["XLNetLMHeadModel"], pad_token_id=5)
    assert config_from_huggingface(written) == config
    with torch.device("meta"):
        theirs = transformers.XLNetLMHeadModel(transformers.XLNetConfig(**written))
        ours = [*Encoder(config).parameters(), *LMHead(config).parameters()]
    counts = [sum(p.numel() for p in parts) for parts in (ours, theirs.parameters())]
    assert counts == [count, count]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bi_data": True}, "bi_data is True: only False is supported for xlnet"),
        ({"same_length": True}, "same_length is True: only False is supported"),
        ({"untie_r": False}, "untie_r is False: only True is supported"),
        ({"attn_type": "uni"}, "attn_type is 'uni': only 'bi' is supported"),
        ({"attn_type": "local"}, "attn_type is 'local': only 'bi' is supported"),
        ({"summary_type": "mean"}, "summary_type is 'mean': only 'last' is supported"),
        ({"summary_use_proj": False}, "summary_use_proj is False: only True"),
        ({"d_head": 32}, "d_head is 32: only d_model / n_head, 64, is supported for xlnet"),
        ({"mem_len": -2}, "mem_len is -2: expected a whole number from 1 to"),
        ({"mem_len": "512"}, "mem_len is '512': expected a whole number"),
        ({"mem_len": False}, "mem_len is False: expected a whole number"),
        ({"clamp_len": 1.5}, "clamp_len is 1.5: expected a whole number from 1 to"),
        ({"clamp_len": 10**9}, "clamp_len is 1000000000: expected a whole number"),
        ({"n_head": 0}, "n_head is 0: expected a whole number from 1"),
        ({"n_head": 7}, "hidden_size 1024 does not divide into 7 attention heads"),
        ({"ff_activation": "tanh"}, "ff_activation is 'tanh': expected one of gelu, relu"),
        ({"dropout": 1.5}, "dropout is 1.5: expected a number from 0 to 1"),
        (
            {"architectures": ["XLNetForQuestionAnswering"]},
            "XLNetForQuestionAnswering looks for the end of an answer behind each of several "
            "starts, which is not supported",
        ),
    ],
)
def test_what_is_not_supported_is_refused_by_name(settings: dict[str, Any], message: str):
    with pytest.raises(BertworksError, match=message):
        config_from_huggingface({"model_type": "xlnet"} | settings)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"attention_dropout": 0.0},
            "encoder.attention_dropout is 0.0: in xlnet it is hidden_dropout",
        ),
        ({"relative_segments": False}, "encoder.relative_segments is False: files of xlnet can"),
        (
            {"direction": "left_to_right"},
            "encoder.direction is 'left_to_right': files of xlnet can only hold 'bidirectional'",
        ),
        ({"pooler": "first_tanh"}, "encoder.pooler is 'first_tanh': files of xlnet"),
        ({"lm_head": "plain"}, "encoder.lm_head is 'plain': files of xlnet"),
        ({"max_position_embeddings": 512}, "encoder.max_position_embeddings is 512: files of xl"),
    ],
)
def test_what_its_files_cannot_hold_is_refused(fields: dict[str, Any], message: str):
    config = EncoderConfig(**vars(PRESETS["xlnet-base"]) | fields)
    with pytest.raises(BertworksError, match=message):
        check_representable(config, 5)


def ordered_batch(lengths: list[int]) -> Batch:
    starts = np.ones(99, np.bool_)
    make = Permuter(partial(num_predicted, MaskingConfig(rate=0.3)), starts)
    template = Template((), (4,), (4, 3), last_type=2)
    examples = []
    for seed, length in enumerate(lengths):
        generator = np.random.default_rng(seed)
        segments = [generator.integers(9, 99, n) for n in (length, 2 * length)]
        examples.append(make(add_special_tokens(segments, template), generator))
    return collate(examples)


def network(c: EncoderConfig, *, gradient_checkpointing: bool = False) -> PretrainingModel:
    torch.manual_seed(0)
    model = PretrainingModel(
        c, {"permutation_lm": 1.0}, gradient_checkpointing=gradient_checkpointing
    )
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.1)
    return model


def test_the_loss_is_the_mean_over_the_predicted_tokens():
    """Its gradients reach every parameter, are those of a sum of parts, and of a formula."""
    config, _ = ours_of(theirs_of("Model"))
    batch = ordered_batch([2, 9, 5, 30])
    model = network(config).eval()
    target = batch.targets["permutation_lm"]
    layout = replace(batch.layout, rank=batch.targets["rank"].labels)
    inputs = (batch.input_ids, layout, target.positions, batch.token_type_ids)
    states, _ = model.encoder.read(*inputs)
    assert model.lm_head is not None
    logits = model.lm_head(states, model.encoder.embeddings.token.weight)
    expected = F.cross_entropy(logits, target.labels, reduction="sum")
    loss, _ = model(batch)["permutation_lm"]
    assert model.counts(batch) == {"permutation_lm": len(target.labels)}
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    wanted = torch.autograd.grad(expected, [*model.parameters()])
    loss.backward()
    for (name, p), gradient in zip(model.named_parameters(), wanted, strict=True):
        assert gradient.abs().max() > 0, name
        assert (p.grad - gradient).norm() < 1e-5 * gradient.norm(), name


def test_blocks_that_are_computed_again_have_the_same_gradients():
    config, _ = ours_of(theirs_of("Model", dropout=0.1))
    batch = ordered_batch([2, 9, 5, 30])
    gradients = []
    for is_checkpointed in (False, True):
        model = network(config, gradient_checkpointing=is_checkpointed).train()
        torch.manual_seed(7)
        model(batch)["permutation_lm"].loss.backward()
        gradients.append([p.grad for p in model.parameters()])
    for a, b in zip(*gradients, strict=True):
        assert torch.equal(a, b)


def test_a_training_in_bf16_has_about_the_same_loss_and_gradients():
    config, _ = ours_of(theirs_of("Model", dropout=0.0))
    batch = ordered_batch([2, 9, 5, 30])
    results = []
    for precision in ("fp32", "bf16"):
        model = network(config)
        loss, _ = MixedPrecision(model, precision)(batch)["permutation_lm"]
        loss.backward()
        gradients = torch.cat([p.grad.flatten() for p in model.parameters()])
        assert gradients.dtype == torch.float32
        results.append((loss.item(), gradients))
    (exact, wanted), (rounded, found) = results
    assert rounded == pytest.approx(exact, rel=0.02)
    assert (found - wanted).norm() < 0.1 * wanted.norm()


@pytest.mark.parametrize("name", ["xlnet-small", "xlnet-base", "xlnet-large"])
def test_recipes(name: str):
    recipe = load_recipe(name)
    check_representable(recipe.encoder, recipe.vocabulary.pad_id)
    assert recipe.weights == {"permutation_lm": 1.0}
    assert recipe.predictions == 0.166
    if name in PRESETS:
        assert recipe.encoder == EncoderConfig(**vars(PRESETS[name]) | {"vocab_size": 0})


@pytest.mark.parametrize("seconds", [60, 3600])
def test_a_budget_keeps_the_network(seconds: int):
    recipe = choose_recipe(seconds, 1e11, 10**7, family=load_recipe("xlnet-small"))
    assert recipe.token_objective == "permutation_lm"
    assert recipe.sampling.format == "one_segment"
    check_representable(recipe.encoder, 5)
    more = choose_recipe(seconds, 1e11, 10**7, encoder=PRESETS["xlnet-base"], family=recipe)
    assert more.encoder.relative_segments


def test_damaged_tensors_are_refused():
    theirs = theirs_of("LMHeadModel")
    config, _ = ours_of(theirs)
    state = theirs.state_dict()
    name = "transformer.layer.0.rel_attn.q"
    for value in (
        state[name].view(32, 8, 4),  # of another number of heads
        state[name].flatten(1),
        state[name][:, :2],
        state[name][0],
    ):
        changed = state | {name: value}
        if value.shape == (32, 32):  # the same matrix
            from_huggingface(changed, config)
            continue
        with pytest.raises(BertworksError, match=r"0\.rel_attn\.q is .*, but the configuration"):
            from_huggingface(changed, config)
    for value in (torch.zeros(2, 1, 32), torch.zeros(1, 1, 31), torch.zeros(())):
        with pytest.raises(BertworksError, match=r"mask_emb is .*, but the configuration"):
            from_huggingface(state | {"transformer.mask_emb": value}, config)
    missing = {key: value for key, value in state.items() if "seg_embed" not in key}
    with pytest.raises(BertworksError, match=r"incomplete: .*seg_embed.* missing"):
        from_huggingface(missing, config)
