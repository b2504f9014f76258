"""Families against transformers: hidden states, logits and gradients of folders that it saved, and
our folders opened by it.

Tiny random networks; every parameter is perturbed, biases and norms included: zero biases hide
mistakes.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import cross_entropy

from bertworks.batching.batch import Batch, BatchTarget
from bertworks.checkpoints.hf_config import FAMILIES, config_from_huggingface, config_to_huggingface
from bertworks.checkpoints.hf_mapping import UNUSED_POSITIONS, from_huggingface, to_huggingface
from bertworks.checkpoints.model_folder import save_settings
from bertworks.errors import BertworksError
from bertworks.models.config import PRESETS, EncoderConfig
from bertworks.models.heads import LMHead, TokenHead
from bertworks.models.layout import Layout
from bertworks.models.transformer import Encoder
from bertworks.tasks.heads import TaskModel
from bertworks.tasks.outputs import Classification, MultipleChoice, SpanExtraction
from bertworks.text.vocabulary import VocabularyConfig, train_vocabulary
from bertworks.training.objectives import PretrainingModel

LENGTHS = [9, 4, 12]
SIZES = {
    "bert": transformers.BertConfig(
        vocab_size=90,
        hidden_size=24,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=40,
        max_position_embeddings=32,
        hidden_dropout_prob=0.2,
        classifier_dropout=0.35,
    ),
    "bert-ltr": transformers.BertConfig(
        vocab_size=90,
        hidden_size=24,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=40,
        max_position_embeddings=32,
        is_decoder=True,
    ),
    "roberta": transformers.RobertaConfig(
        vocab_size=90,
        hidden_size=24,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=40,
        max_position_embeddings=34,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
        pad_token_id=1,
        hidden_dropout_prob=0.2,
        classifier_dropout=0.35,
    ),
    "xlm-roberta": transformers.XLMRobertaConfig(
        vocab_size=90,
        hidden_size=24,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=40,
        max_position_embeddings=34,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
        classifier_dropout=0.35,
    ),
    "camembert": transformers.CamembertConfig(
        vocab_size=90,
        hidden_size=24,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=40,
        max_position_embeddings=34,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
        bos_token_id=5,
        eos_token_id=6,
        classifier_dropout=0.35,
    ),
    "mpnet": transformers.MPNetConfig(
        vocab_size=90,
        hidden_size=24,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=40,
        max_position_embeddings=34,
        layer_norm_eps=1e-5,
        hidden_dropout_prob=0.2,
    ),
    "distilbert": transformers.DistilBertConfig(
        vocab_size=90,
        dim=24,
        n_layers=3,
        n_heads=4,
        hidden_dim=40,
        max_position_embeddings=32,
        dropout=0.3,
        seq_classif_dropout=0.4,
        qa_dropout=0.25,
    ),
    "albert": transformers.AlbertConfig(
        vocab_size=90,
        embedding_size=10,
        hidden_size=24,
        num_hidden_layers=4,
        num_hidden_groups=2,
        num_attention_heads=4,
        intermediate_size=40,
        max_position_embeddings=32,
        hidden_dropout_prob=0.1,
        classifier_dropout_prob=0.4,
    ),
    "openai-gpt": transformers.OpenAIGPTConfig(
        vocab_size=90,
        n_embd=24,
        n_layer=3,
        n_head=4,
        n_positions=32,
        pad_token_id=0,
    ),
    "electra": transformers.ElectraConfig(
        vocab_size=90,
        embedding_size=16,
        hidden_size=24,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=40,
        max_position_embeddings=32,
        hidden_dropout_prob=0.2,
        classifier_dropout=0.35,
        summary_last_dropout=0.45,
    ),
    # without a projection, as in the base and large sizes
    "electra-wide": transformers.ElectraConfig(
        vocab_size=90,
        embedding_size=24,
        hidden_size=24,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=40,
        max_position_embeddings=32,
    ),
    "gpt2": transformers.GPT2Config(
        vocab_size=90,
        n_embd=24,
        n_layer=3,
        n_head=4,
        n_inner=40,
        n_positions=32,
        pad_token_id=0,
        eos_token_id=0,
        bos_token_id=0,
    ),
}
NAMES = {
    "bert": "Bert",
    "bert-ltr": "Bert",
    "roberta": "Roberta",
    "xlm-roberta": "XLMRoberta",
    "camembert": "Camembert",
    "mpnet": "MPNet",
    "distilbert": "DistilBert",
    "albert": "Albert",
    "electra": "Electra",
    "electra-wide": "Electra",
    "openai-gpt": "OpenAIGPT",
    "gpt2": "GPT2",
    "modernbert": "ModernBert",
}
HEADS = [
    (family, kind)
    for family in (
        "bert",
        "roberta",
        "xlm-roberta",
        "camembert",
        "mpnet",
        "distilbert",
        "albert",
        "electra",
        "electra-wide",
    )
    for kind in (
        "SequenceClassification",
        "TokenClassification",
        "QuestionAnswering",
        "MultipleChoice",
    )
] + [("bert-ltr", "TokenClassification"), ("bert-ltr", "QuestionAnswering")]


def perturbed(model: torch.nn.Module) -> torch.nn.Module:
    torch.manual_seed(1)
    for p in model.parameters():
        p.data.add_(torch.randn_like(p), alpha=0.1)
    return model.eval()


def theirs_of(family: str, kind: str) -> torch.nn.Module:
    config = transformers.AutoConfig.for_model(**SIZES[family].to_dict())
    config._attn_implementation = "eager"
    if kind == "ForSequenceClassification":
        config.num_labels = 3
    torch.manual_seed(0)
    return perturbed(getattr(transformers, NAMES[family] + kind)(config))


def ours_of(
    theirs: torch.nn.Module, dtype: torch.dtype = torch.float32
) -> tuple[EncoderConfig, dict[str, Tensor]]:
    """Config and state, through the files that transformers would write."""
    settings = json.loads(theirs.config.to_json_string(use_diff=False))
    config = config_from_huggingface(settings)
    saved = {name: value.to(dtype) for name, value in theirs.state_dict().items()}
    return config, from_huggingface(saved, config)


def part(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        n.removeprefix(prefix): v
        for n, v in state.items()
        if n.startswith(prefix) and n != UNUSED_POSITIONS
    }


def padded(ids: Tensor, pad: int) -> tuple[Tensor, Tensor]:
    rows = torch.full((len(LENGTHS), max(LENGTHS)), pad)
    mask = torch.zeros_like(rows)
    for row, (part_of, n) in enumerate(zip(ids.split(LENGTHS), LENGTHS, strict=True)):
        rows[row, :n], mask[row, :n] = part_of, 1
    return rows, mask


@pytest.mark.parametrize(("dtype", "off"), [(torch.float32, 2e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize("family", SIZES)
def test_hidden_states_logits_and_gradients(family: str, dtype: torch.dtype, off: float):
    kind = "LMHeadModel" if "gpt" in family or family == "bert-ltr" else "ForMaskedLM"
    theirs = theirs_of(family, kind).to(dtype)
    config, state = ours_of(theirs, dtype)
    encoder, head = Encoder(config).to(dtype).eval(), LMHead(config).to(dtype)
    encoder.load_state_dict(part(state, "encoder."))
    head.load_state_dict(part(state, "lm_head."))
    ids = torch.randint(5, 90, (sum(LENGTHS),))
    rows, mask = padded(ids, theirs.config.pad_token_id)
    expected = theirs(rows, attention_mask=mask, output_hidden_states=True)
    layout = Layout.of(LENGTHS)
    states = encoder(ids, layout)
    logits = head(states[-1], encoder.embeddings.token.weight)
    there = mask.bool()
    for ours, other in zip(
        [*states, logits], [*expected.hidden_states, expected.logits], strict=True
    ):
        assert (ours - other[there]).abs().max() <= off
    logits.square().sum().backward()
    expected.logits[there].square().sum().backward()
    gradients = {n: p.grad for n, p in theirs.named_parameters()}
    wanted = from_huggingface(gradients, config)
    for name, p in [*encoder.named_parameters("encoder"), *head.named_parameters("lm_head")]:
        assert p.grad is not None
        difference = (p.grad - wanted[name]).norm()
        assert difference <= (1e-4 if dtype == torch.float32 else 1e-10) * (
            wanted[name].norm() + 1e-3
        ), name


TASKS = {
    "SequenceClassification": Classification(outputs=3),
    "TokenClassification": Classification(outputs=2, pooled=False),
    "QuestionAnswering": SpanExtraction(),
    "MultipleChoice": MultipleChoice(num_choices=3),
}


@pytest.mark.parametrize(("family", "kind"), HEADS)
def test_heads_of_tasks(family: str, kind: str):
    theirs = theirs_of(family, f"For{kind}")
    config, state = ours_of(theirs)
    task = TASKS[kind]
    model = TaskModel(config, task).eval()
    missing, unexpected = model.load_state_dict(
        {n: v for n, v in state.items() if n != UNUSED_POSITIONS}, strict=False
    )
    assert not missing
    assert all(name.startswith("pooler.") for name in unexpected)
    ids = torch.randint(5, 90, (sum(LENGTHS),))
    rows, mask = padded(ids, theirs.config.pad_token_id or 0)
    inputs = {"input_ids": rows, "attention_mask": mask}
    if kind == "MultipleChoice":
        inputs = {name: value[None] for name, value in inputs.items()}
    with torch.no_grad():
        output = theirs(**inputs)
        layout = Layout.of(LENGTHS)
        x = model.encoder(ids, layout)[-1]
        if task.pooled:
            assert model.pooler is not None
            x = model.pooler(x[model.pooler.tokens(layout).long()])
        logits = model.get_submodule(model.task.head)(x)
    if kind == "QuestionAnswering":
        expected = torch.stack([output.start_logits, output.end_logits], -1)[mask.bool()]
    elif kind == "TokenClassification":
        expected = output.logits[mask.bool()]
    else:
        expected = output.logits.view(logits.shape)
    assert (logits - expected).abs().max() <= 2e-5


@pytest.mark.parametrize(
    ("family", "kind"),
    [head for head in HEADS if head[1] != "QuestionAnswering" or head[0] == "distilbert"],
)
def test_dropout_of_heads_is_where_transformers_has_it(
    family: str, kind: str, monkeypatch: pytest.MonkeyPatch
):
    """With a dropout that scales instead of zeroing, the outputs in training agree only if the
    places agree, and the probabilities that config.json has for each kind of head."""

    def scale(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        return x * (1 - p) if training else x

    theirs = theirs_of(family, f"For{kind}").train()
    theirs.base_model.eval()
    config, state = ours_of(theirs)
    task = TASKS[kind]
    model = TaskModel(config, task).train()
    model.encoder.eval()
    model.load_state_dict({n: v for n, v in state.items() if n != UNUSED_POSITIONS}, strict=False)
    ids, layout = torch.randint(5, 90, (sum(LENGTHS),)), Layout.of(LENGTHS)
    rows, mask = padded(ids, theirs.config.pad_token_id or 0)
    inputs = {"input_ids": rows, "attention_mask": mask}
    if kind == "MultipleChoice":
        inputs = {name: value[None] for name, value in inputs.items()}
    positions = (
        torch.arange(len(ids)) if model.pooler is None else model.pooler.tokens(layout).long()
    )
    types = None if config.type_vocab_size == 0 else torch.zeros_like(ids)
    batch = Batch(ids, layout, types, {"task": BatchTarget(positions, positions)})
    with torch.no_grad():
        plain = model.eval().logits(batch)
        model.train().encoder.eval()
        monkeypatch.setattr("torch.nn.functional.dropout", scale)
        ours, output = model.logits(batch), theirs(**inputs)
    expected = (
        torch.stack([output.start_logits, output.end_logits], -1)
        if "start_logits" in output
        else output.logits
    )
    expected = expected.view(ours.shape) if task.pooled else expected[mask.bool()]
    assert (ours - expected).abs().max() <= 2e-5
    assert (ours - plain).abs().max() > 1e-2


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        *((family, f"For{kind}") for family, kind in HEADS),
        *((f, "Model") for f in SIZES),
        *((f, "ForMaskedLM") for f in SIZES if "gpt" not in f),
        ("gpt2", "LMHeadModel"),
        ("bert-ltr", "LMHeadModel"),
        ("bert", "ForPreTraining"),
        ("albert", "ForPreTraining"),
        ("openai-gpt", "LMHeadModel"),
        ("electra", "ForPreTraining"),
        ("electra-wide", "ForPreTraining"),
    ],
)
def test_our_files_open_in_transformers(family: str, kind: str, tmp_path: Path):
    """No key is missing, unexpected, mismatched or initialized anew; what is read back computes the
    same."""
    theirs = theirs_of(family, kind)
    config, state = ours_of(theirs)
    name = NAMES[family] + kind
    written = to_huggingface(state, config, name)
    settings = config_to_huggingface(
        config, architectures=[name], pad_token_id=theirs.config.pad_token_id or 0
    )
    if kind == "ForSequenceClassification":
        settings["id2label"] = {str(n): f"LABEL_{n}" for n in range(3)}
        settings["label2id"] = {f"LABEL_{n}": n for n in range(3)}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    tensors = {key: value.contiguous().clone() for key, value in written.items()}
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    read, info = getattr(transformers, name).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    for key, value in theirs.state_dict().items():
        assert torch.equal(read.state_dict()[key], value), key


def test_both_heads_of_albert_and_their_gradients():
    theirs = theirs_of("albert", "ForPreTraining").double()
    config, state = ours_of(theirs, torch.float64)
    model = PretrainingModel(config, {"masked_lm": 1.0, "sentence_order": 1.0}).double().eval()
    model.load_state_dict(state)
    ids = torch.randint(5, 90, (sum(LENGTHS),))
    types = (torch.arange(len(ids)) % 5 > 2).long()
    rows, mask = padded(ids, 0)
    kinds, _ = padded(types, 0)
    labels, positions = torch.tensor([0, 1, 1]), torch.tensor([1, 5, 10, 20])
    at, words = Layout.of(LENGTHS).first.long(), ids[positions]
    targets = {
        "masked_lm": BatchTarget(positions, words),
        "sentence_order": BatchTarget(at, labels),
    }
    ours = model(Batch(ids, Layout.of(LENGTHS), types, targets))
    output = theirs(rows, attention_mask=mask, token_type_ids=kinds)
    logits = output.prediction_logits[mask.bool()][positions]
    expected = {
        "masked_lm": cross_entropy(logits, words, reduction="sum"),
        "sentence_order": cross_entropy(output.sop_logits, labels, reduction="sum"),
    }
    for kind, loss in expected.items():
        assert abs(ours[kind].loss - loss) <= 1e-5 * loss, kind  # the losses are float32
    (ours["masked_lm"].loss + 3 * ours["sentence_order"].loss).backward()
    (expected["masked_lm"] + 3 * expected["sentence_order"]).backward()
    wanted = from_huggingface({n: p.grad for n, p in theirs.named_parameters()}, config)
    assert wanted.keys() == {name for name, _ in model.named_parameters()}
    for name, p in model.named_parameters():
        assert p.grad is not None
        assert (p.grad - wanted[name]).norm() <= 1e-5 * (wanted[name].norm() + 1e-3), name


@pytest.mark.parametrize(("dtype", "off"), [(torch.float32, 2e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize("family", ["electra", "electra-wide"])
def test_the_discriminator_of_electra(family: str, dtype: torch.dtype, off: float):
    """Its logits, its loss (the mean over the tokens that are attended to) and all gradients."""
    theirs = theirs_of(family, "ForPreTraining").to(dtype)
    config, state = ours_of(theirs, dtype)
    encoder, head = Encoder(config).to(dtype).eval(), TokenHead(config).to(dtype)
    encoder.load_state_dict(part(state, "encoder."))
    head.load_state_dict(part(state, "replaced_token."))
    ids, labels = torch.randint(5, 90, (sum(LENGTHS),)), torch.randint(2, (sum(LENGTHS),))
    rows, mask = padded(ids, 0)
    expected = theirs(rows, attention_mask=mask, labels=padded(labels, 0)[0])
    logits = head(encoder(ids, Layout.of(LENGTHS))[-1])
    assert (logits - expected.logits[mask.bool()]).abs().max() <= off
    entropy, there = torch.nn.BCEWithLogitsLoss(), mask.bool()
    loss = entropy(logits, labels.to(dtype))
    assert (loss - expected.loss).abs() <= 2e-5  # transformers computes it in single precision
    loss.backward()
    entropy(expected.logits[there], labels.to(dtype)).backward()
    wanted = from_huggingface({n: p.grad for n, p in theirs.named_parameters()}, config)
    for name, p in [*encoder.named_parameters("encoder"), *head.named_parameters("replaced_token")]:
        assert p.grad is not None
        difference = (p.grad - wanted[name]).norm()
        assert difference <= (1e-4 if dtype == torch.float32 else 1e-10) * (
            wanted[name].norm() + 1e-6
        ), name


@pytest.mark.parametrize("family", ["gpt2", "openai-gpt"])
def test_the_two_dropouts_of_gpt_are_those_of_transformers(family: str):
    model = transformers.AutoConfig.for_model(
        **SIZES[family].to_dict() | {"embd_pdrop": 0.25, "resid_pdrop": 0.35}
    )
    theirs = getattr(transformers, f"{NAMES[family]}Model")(model)
    config = config_from_huggingface(model.to_dict())
    encoder = Encoder(config)
    assert encoder.embeddings.dropout == theirs.drop.p == 0.25
    assert (
        encoder.blocks[0].dropout
        == theirs.h[0].mlp.dropout.p
        == theirs.h[0].attn.resid_dropout.p
        == 0.35
    )
    written = config_to_huggingface(config, architectures=["Any"])
    assert (written["embd_pdrop"], written["resid_pdrop"]) == (0.25, 0.35)
    assert (
        config_from_huggingface({"model_type": family, "resid_pdrop": 0.35}).embedding_dropout
        == 0.1
    )


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("bert", {"classifier_dropout": 0.35}),
        ("bert", {"classifier_dropout": None}),
        ("roberta", {"classifier_dropout": 0.35}),
        ("electra", {"classifier_dropout": 0.35, "summary_last_dropout": 0.45}),
        ("electra", {"classifier_dropout": 0.35, "summary_last_dropout": 0.1}),
        ("electra", {"classifier_dropout": None, "summary_last_dropout": 0.35}),
        ("albert", {"classifier_dropout_prob": 0.35}),
        ("gpt2", {"embd_pdrop": 0.35}),
        ("xlm", {"summary_first_dropout": 0.35}),
    ],
)
def test_dropouts_are_written_as_read(family: str, settings: dict):
    """As numbers, also where a network of bertworks has None; another number is another network."""
    default = {"model_type": family}
    config = config_from_huggingface(default | settings)
    architectures = {"bert": "BertModel", "roberta": "RobertaModel"}.get(family, "Any")
    written = config_to_huggingface(
        config, architectures=[architectures], pad_token_id=int(family == "roberta")
    )
    assert {name: written[name] for name in settings} == settings
    again = config_from_huggingface(written)
    assert replace(again, intermediate_size=0) == replace(config, intermediate_size=0)
    assert (config == config_from_huggingface(default)) == (
        settings == {"classifier_dropout": None}
    )


def test_choices_of_roberta_have_the_dropout_of_the_layers():
    config = config_from_huggingface(
        {"model_type": "roberta", "hidden_dropout_prob": 0.2, "classifier_dropout": 0.3}
    )
    assert (config.sequence_rate, config.choice_rate) == (0.3, 0.2)
    with pytest.raises(
        BertworksError,
        match=r"in roberta it is hidden_dropout\n  hint: --set encoder\.choice_dropout=0\.2",
    ):
        config_to_huggingface(
            replace(config, choice_dropout=None), architectures=["RobertaModel"], pad_token_id=1
        )


def test_dropouts_of_distilbert_are_written_as_read():
    settings = SIZES["distilbert"].to_dict()
    config = config_from_huggingface(settings)
    assert (config.hidden_dropout, config.sequence_dropout, config.span_dropout) == (0.3, 0.4, 0.25)
    written = config_to_huggingface(config, architectures=["DistilBertModel"])
    assert {name: written[name] for name in written if "dropout" in name} == {
        "dropout": 0.3,
        "attention_dropout": 0.1,
        "seq_classif_dropout": 0.4,
        "qa_dropout": 0.25,
    }
    written = config_to_huggingface(
        replace(config, sequence_dropout=None, span_dropout=None), architectures=["DistilBertModel"]
    )
    assert (written["seq_classif_dropout"], written["qa_dropout"]) == (0.2, 0.1)
    with pytest.raises(BertworksError, match=r"qa_dropout is 1\.5: expected a number from 0 to 1"):
        config_from_huggingface(settings | {"qa_dropout": 1.5})


def test_the_unused_rows_of_roberta_are_kept_or_zero():
    theirs = theirs_of("roberta", "Model")
    config, state = ours_of(theirs)
    table = "embeddings.position_embeddings.weight"
    assert config.max_position_embeddings == 32
    assert torch.equal(to_huggingface(state, config)[table], theirs.state_dict()[table])
    del state[UNUSED_POSITIONS]
    written = to_huggingface(state, config)[table]
    assert written.shape == (34, 24)
    assert not written[:2].any()
    assert torch.equal(written[2:], theirs.state_dict()[table][2:])


@pytest.mark.parametrize(
    ("family", "settings", "message"),
    [
        (
            "gpt2",
            {"scale_attn_by_inverse_layer_idx": True},
            "scale_attn_by_inverse_layer_idx is True: only False",
        ),
        ("gpt2", {"scale_attn_weights": False}, "scale_attn_weights is False: only True"),
        (
            "roberta",
            {"position_embedding_type": "relative_key"},
            "position_embedding_type is 'relative_key'",
        ),
        ("distilbert", {"activation": "silu"}, "activation is 'silu': expected one of gelu"),
        ("roberta", {"pad_token_id": 0}, "pad_token_id is 0: only 1 is supported for roberta"),
        ("albert", {"inner_group_num": 2}, "inner_group_num is 2: only 1 is supported for albert"),
        (
            "albert",
            {"hidden_size": 128},
            "embedding_size and hidden_size are both 128: a projection between equal widths",
        ),
        ("openai-gpt", {"afn": "silu"}, "afn is 'silu': expected one of gelu, relu"),
        ("electra", {"hidden_act": "silu"}, "hidden_act is 'silu': expected one of gelu, gelu_new"),
        (
            "electra",
            {"summary_activation": "relu"},
            "summary_activation is 'relu': only 'gelu' is supported for electra",
        ),
        ("electra", {"summary_type": "last"}, "summary_type is 'last': only 'first'"),
        ("bert", {"is_decoder": "yes"}, "is_decoder is 'yes': expected true or false"),
        (
            "bert",
            {"is_decoder": True, "add_cross_attention": True},
            "add_cross_attention is True: only False",
        ),
        (
            "roberta",
            {"is_decoder": True},
            "is_decoder is True: only False is supported for roberta",
        ),
        ("t5", {}, "the family .t5. is not supported yet: expected one of albert, bert"),
    ],
)
def test_what_is_not_supported_is_refused(family: str, settings: dict, message: str):
    with pytest.raises(BertworksError, match=message):
        config_from_huggingface({"model_type": family} | settings)


# tests/scenarios/test_xlm.py has XLM
@pytest.mark.parametrize("family", [name for name in FAMILIES if name in SIZES])
def test_names_of_another_family_are_refused(family: str):
    config, _ = ours_of(theirs_of(family, "Model"))
    other = theirs_of("distilbert" if family != "distilbert" else "gpt2", "Model")
    with pytest.raises(BertworksError, match="no place for this"):
        from_huggingface(other.state_dict(), config)


@pytest.mark.parametrize(
    ("family", "fields", "message"),
    [
        (
            "bert",
            {"direction": "right_to_left"},
            "encoder.direction is 'right_to_left': files of bert can only hold",
        ),
        (
            "bert",
            {"direction": "left_to_right", "pooler": "last_tanh"},
            "files of bert can only hold 'last'",
        ),
        (
            "roberta",
            {
                "direction": "left_to_right",
                "pooler": "last",
                "type_vocab_size": 1,
                "layer_norm_eps": 1e-5,
            },
            "encoder.direction is 'left_to_right': files of roberta can only hold 'bidirectional'",
        ),
        (
            "bert",
            {"embedding_size": 8},
            "encoder.embedding_size is 8: files of bert can only hold 0",
        ),
        (
            "bert",
            {"span_dropout": 0.1},
            "files of bert can only hold None\n  hint: leave span_dropout out of the recipe",
        ),
        ("roberta", {"lm_head": "bias"}, "encoder.lm_head is 'bias': files of roberta"),
        (
            "distilbert",
            {"type_vocab_size": 2, "pooler": "first_relu"},
            "encoder.type_vocab_size is 2: files of distilbert",
        ),
        (
            "albert",
            {"embedding_size": 24, "hidden_act": "gelu_tanh", "token_dropout": True},
            r"files of albert have a projection .*\n  hint: --set encoder.embedding_size=12",
        ),
        ("gpt2", {}, "encoder.type_vocab_size is 2: files of gpt2 can only hold 0"),
        (
            "electra",
            {},
            "encoder.pooler is 'first_tanh': files of electra can only hold 'first_gelu'",
        ),
        ("gpt3", {}, "family is 'gpt3': expected one of albert, bert"),
    ],
)
def test_a_network_that_files_cannot_describe_is_not_written(
    family: str, fields: dict, message: str
):
    config = EncoderConfig(
        vocab_size=90, hidden_size=24, num_attention_heads=4, family=family, **fields
    )
    with pytest.raises(BertworksError, match=message):
        config_to_huggingface(config, architectures=["Any"])


def test_gelu_of_gpt_is_the_tanh_form():
    config = config_from_huggingface({"model_type": "openai-gpt", "afn": "gelu"})
    assert config == PRESETS["gpt"]
    assert config_to_huggingface(config, architectures=["OpenAIGPTModel"])["afn"] == "gelu"
    with pytest.raises(
        BertworksError,
        match=r"hidden_act is 'gelu': files of openai-gpt cannot name it\n  hint: use relu or "
        r"gelu_tanh",
    ):
        config_to_huggingface(replace(config, hidden_act="gelu"), architectures=["OpenAIGPTModel"])


@pytest.mark.parametrize(
    ("family", "special_tokens", "first", "end"),
    [
        ("roberta", "roberta", "<s>", "</s>"),
        ("xlm", "xlm", "<s>", "</s>"),
        ("albert", "bert", "[CLS]", "[SEP]"),
        ("gpt2", "gpt2", "<|endoftext|>", "<|endoftext|>"),
        ("bert", "bert", None, None),
    ],
)
def test_ids_of_tokens_are_those_of_the_tokenizer(
    family: str, special_tokens: Any, first: str | None, end: str | None, tmp_path: Path
):
    """Without them transformers takes those of the published models, such as 50256 for GPT-2."""
    kind: Any = "wordpiece" if special_tokens == "bert" else "bpe"
    texts = ["the cat sat on the mat and saw a bird"] * 20
    plain: dict[str, Any] = (
        {} if special_tokens == "bert" else {"lowercase": False, "strip_accents": False}
    )
    settings = VocabularyConfig(size=300, algorithm=kind, special_tokens=special_tokens, **plain)
    tokenizer, _ = train_vocabulary(texts, settings, workers=1)
    config = config_from_huggingface({"model_type": family, "pad_token_id": 1})
    head = {"architectures": ["Any"]}
    save_settings(tmp_path, replace(config, vocab_size=tokenizer.vocab_size), tokenizer, head)
    written = transformers.AutoConfig.from_pretrained(tmp_path)
    numbers = {token: number for number, token in enumerate(tokenizer.tokens)}
    assert (written.bos_token_id, written.eos_token_id) == (
        numbers.get(first or ""),
        numbers.get(end or ""),
    )
    assert written.pad_token_id == (None if tokenizer.pad_id < 0 else tokenizer.pad_id)
    if family != "bert":
        assert written.bos_token_id is not None


def test_positions_of_roberta_need_its_padding_token():
    """transformers counts positions from the padding token: with another one it would compute
    something else."""
    config = config_from_huggingface(SIZES["roberta"].to_dict())
    assert (
        config_to_huggingface(config, architectures=["RobertaModel"], pad_token_id=1)[
            "pad_token_id"
        ]
        == 1
    )
    with pytest.raises(
        BertworksError, match="the padding token has id 0: in roberta positions are counted from it"
    ):
        config_to_huggingface(config, architectures=["RobertaModel"], pad_token_id=0)


@pytest.mark.parametrize("lengths", [[200, 131, 9, 1], [70, 70, 70]])
def test_far_distances_of_mpnet(lengths: list[int]):
    """Distances of a bucket of their own, of a wide one, and of the last one; in rectangles and in
    runs of equal lengths, with gradients and without."""
    theirs = perturbed(
        transformers.MPNetModel(
            transformers.MPNetConfig(**SIZES["mpnet"].to_dict() | {"max_position_embeddings": 260})
        )
    )
    theirs.encoder.relative_attention_bias.weight.data.normal_()
    config, state = ours_of(theirs)
    encoder = Encoder(config).eval()
    encoder.load_state_dict(part(state, "encoder."))
    ids = torch.randint(5, 90, (sum(lengths),))
    rows = torch.nn.utils.rnn.pad_sequence(ids.split(lengths), batch_first=True, padding_value=1)
    expected = theirs(rows, attention_mask=(rows != 1).long()).last_hidden_state[rows != 1]
    layout = Layout.of(lengths)
    states = encoder(ids, layout)[-1]
    assert (states - expected).abs().max() <= 2e-5
    with torch.no_grad():
        assert (encoder(ids, layout)[-1] - expected).abs().max() <= 2e-5
        first = encoder(ids, layout, rows=layout.first.long())[-1]
        assert (first - expected[layout.first]).abs().max() <= 2e-5
        maps = encoder.attention_maps(encoder(ids, layout), layout)
    attentions = theirs.eval()
    attentions.set_attn_implementation("eager")
    with torch.no_grad():
        output = attentions(rows, attention_mask=(rows != 1).long(), output_attentions=True)
    for ours, other in zip(maps, output.attentions, strict=True):
        count = lengths[0]
        assert (ours[0, :, :count, :count] - other[0, :, :count, :count]).abs().max() <= 1e-5
    states.square().sum().backward()
    expected.square().sum().backward()
    assert encoder.relative_bias is not None
    gradient = theirs.encoder.relative_attention_bias.weight.grad
    assert (encoder.relative_bias.weight.grad - gradient).norm() <= 1e-4 * gradient.norm()
    for checkpointing in (False, True):
        again = Encoder(replace(config, hidden_dropout=0.0, attention_dropout=0.0), checkpointing)
        again.load_state_dict(encoder.state_dict())
        again(ids, layout)[-1].square().sum().backward()
        assert (again.relative_bias.weight.grad - gradient).norm() <= 1e-4 * gradient.norm()
