"""XLM against transformers: hidden states, logits and gradients with languages; files in both
directions; languages of texts; the sequences of a translation; draws of languages.

Every parameter of a network is perturbed, biases and norms included.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from bertworks.checkpoints.hf_config import (
    check_representable,
    config_from_huggingface,
    config_to_huggingface,
)
from bertworks.checkpoints.hf_mapping import from_huggingface, to_huggingface
from bertworks.errors import BertworksError
from bertworks.models.config import PRESETS
from bertworks.models.heads import LMHead
from bertworks.models.layout import Layout
from bertworks.models.transformer import Encoder
from bertworks.tasks.heads import TaskModel
from bertworks.tasks.outputs import Classification, SpanExtraction

LENGTHS = [9, 4, 12]
LANGUAGES = {"en": 0, "de": 2, "fr": 1}
IDS = torch.randint(5, 90, (sum(LENGTHS),), generator=torch.Generator().manual_seed(0))
# Restarting positions, as for a translation: the second of the two parts of each sequence.
RESTARTS = [4, 2, 7]
POSITIONS = torch.cat(
    [torch.cat([torch.arange(a), torch.arange(n - a)]) for a, n in zip(RESTARTS, LENGTHS)]
)
LANGS = torch.cat([torch.arange(n) >= a for a, n in zip(RESTARTS, LENGTHS, strict=True)]).long() * 2


def theirs(**settings: Any) -> Any:
    config = transformers.XLMConfig(
        vocab_size=90,
        emb_dim=24,
        n_layers=3,
        n_heads=4,
        max_position_embeddings=32,
        n_langs=3,
        lang2id=LANGUAGES,
        **settings,
    )
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = transformers.XLMWithLMHeadModel(config)
    for p in model.parameters():
        p.data.add_(torch.randn_like(p), alpha=0.1)
    return model.eval()


def ours(model: Any, dtype: torch.dtype = torch.float32) -> tuple[Encoder, LMHead]:
    config = config_from_huggingface(json.loads(model.config.to_json_string(use_diff=False)))
    state = from_huggingface(
        {name: value.to(dtype) for name, value in model.state_dict().items()}, config
    )
    encoder, head = Encoder(config).to(dtype).eval(), LMHead(config).to(dtype)
    for module, prefix in ((encoder, "encoder."), (head, "lm_head.")):
        module.load_state_dict(
            {n.removeprefix(prefix): v for n, v in state.items() if n.startswith(prefix)}
        )
    return encoder, head


def rows(values: torch.Tensor, fill: int = 0) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence(
        values.split(LENGTHS), batch_first=True, padding_value=fill
    )


@pytest.mark.parametrize(("dtype", "off"), [(torch.float32, 2e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sinusoidal", [False, True])
def test_states_logits_and_gradients(
    causal: bool, sinusoidal: bool, dtype: torch.dtype, off: float, monkeypatch: pytest.MonkeyPatch
):
    model = theirs(causal=causal, sinusoidal_embeddings=sinusoidal).to(dtype)
    encoder, head = ours(model, dtype)
    assert encoder.config.languages == ("en", "fr", "de")
    assert encoder.config.direction == ("left_to_right" if causal else "bidirectional")
    there = rows(torch.ones_like(IDS)).bool()
    if dtype == torch.float64:  # their softmax is in float32 whatever the model is
        monkeypatch.setattr(torch.Tensor, "float", lambda x: x)
    expected = model(
        rows(IDS, 2),
        attention_mask=there.long(),
        langs=rows(LANGS),
        position_ids=rows(POSITIONS),
        output_hidden_states=True,
    )
    monkeypatch.undo()
    layout = replace(Layout.of(LENGTHS), position_ids=POSITIONS)
    states = encoder(IDS, layout, LANGS)
    logits = head(states[-1], encoder.embeddings.token.weight)
    for own, other in zip(
        [*states, logits], [*expected.hidden_states, expected.logits], strict=True
    ):
        assert (own - other[there]).abs().max() <= off
    logits.square().sum().backward()
    expected.logits[there].square().sum().backward()
    wanted = from_huggingface({n: p.grad for n, p in model.named_parameters()}, encoder.config)
    for name, p in [*encoder.named_parameters("encoder"), *head.named_parameters("lm_head")]:
        assert p.grad is not None
        difference = (p.grad - wanted[name]).norm()
        assert difference <= 1e-4 * wanted[name].norm()


def test_one_language_for_all_texts_equals_its_token_types():
    encoder, _ = ours(theirs())
    fixed = Encoder(replace(encoder.config, language="de")).eval()
    fixed.load_state_dict(encoder.state_dict())
    layout = Layout.of(LENGTHS)
    for types in (None, torch.zeros_like(IDS)):
        assert torch.equal(
            fixed(IDS, layout, types)[-1], encoder(IDS, layout, torch.full_like(IDS, 2))[-1]
        )
    assert not torch.equal(fixed(IDS, layout)[-1], encoder(IDS, layout)[-1])


@pytest.mark.parametrize(("preset", "count"), [("xlm-15", 249_071_384), ("xlm-en", 667_119_041)])
def test_published_numbers_of_parameters(preset: str, count: int):
    c = PRESETS[preset]
    assert c.num_parameters("lm_head") == count
    types = c.type_vocab_size
    c = replace(c, languages=tuple(map(str, range(types))))
    settings = config_to_huggingface(c, architectures=["XLMWithLMHeadModel"], pad_token_id=2)
    assert config_from_huggingface(settings) == c
    with torch.device("meta"):
        model = transformers.XLMWithLMHeadModel(transformers.XLMConfig(**settings))
    assert sum(p.numel() for p in model.parameters()) == count


def test_transformers_opens_our_files_with_no_missing_and_no_unexpected_weights(tmp_path: Path):
    model = theirs()
    encoder, head = ours(model)
    state = {f"encoder.{n}": p for n, p in encoder.state_dict().items()}
    state |= {f"lm_head.{n}": p for n, p in head.state_dict().items()}
    settings = config_to_huggingface(
        encoder.config, architectures=["XLMWithLMHeadModel"], pad_token_id=2
    )
    assert (settings["lang2id"], settings["causal"], settings["n_langs"]) == (LANGUAGES, False, 3)
    (tmp_path / "config.json").write_text(json.dumps(settings))
    from safetensors.torch import save_file

    save_file(
        {n: p.contiguous() for n, p in to_huggingface(state, encoder.config).items()},
        tmp_path / "model.safetensors",
        {"format": "pt"},
    )
    opened, info = transformers.XLMWithLMHeadModel.from_pretrained(
        tmp_path, output_loading_info=True
    )
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    for name, p in model.state_dict().items():
        assert torch.equal(opened.state_dict()[name], p), name


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"asm": True}, "asm is True: only False is supported for xlm"),
        ({"use_lang_emb": False}, "use_lang_emb is False: only True is supported for xlm"),
        ({"gelu_activation": 1}, "gelu_activation is '1': expected one of true, false"),
        (
            {"summary_activation": "tanh"},
            "summary_activation is 'tanh': only null is supported for xlm",
        ),
        (
            {"causal": True, "architectures": ["XLMForSequenceClassification"]},
            "pools the first token, which has read nothing",
        ),
        ({"causal": "yes"}, "causal is '\"yes\"': expected one of false, true"),
        ({"lang2id": {"en": 0, "de": 2}}, "lang2id is .*: expected a number from 0 for each name"),
        (
            {"lang2id": {"en": 0, "de": 1}},
            "languages .* with type_vocab_size 3: expected a name for each type",
        ),
        ({"language": 5}, "language is 5: expected the name of a language"),
        ({"language": "it"}, "language is 'it': expected one of"),
    ],
)
def test_what_is_not_computed_is_refused(settings: dict[str, Any], message: str):
    given = json.loads(theirs().config.to_json_string(use_diff=False))
    with pytest.raises(BertworksError, match=message):
        config_from_huggingface(given | settings)


def test_names_of_another_family_are_refused():
    model = theirs()
    config = config_from_huggingface(json.loads(model.config.to_json_string(use_diff=False)))
    state = model.state_dict() | {"embeddings.word_embeddings.weight": torch.zeros(90, 24)}
    with pytest.raises(BertworksError, match="no place for this"):
        from_huggingface(state, config)


def test_a_table_of_one_language_has_no_place_in_the_files():
    with pytest.raises(BertworksError, match="files of xlm cannot hold a table of one type"):
        check_representable(replace(PRESETS["xlm-en"], type_vocab_size=1), 2)


def test_languages_without_names_have_numbers():
    given = json.loads(theirs().config.to_json_string(use_diff=False)) | {"lang2id": None}
    del given["lang2id"]
    assert config_from_huggingface(given).languages == ("0", "1", "2")


@pytest.mark.parametrize(
    ("kind", "task"),
    [
        ("SequenceClassification", Classification(outputs=2)),
        ("TokenClassification", Classification(outputs=2, pooled=False)),
        ("QuestionAnsweringSimple", SpanExtraction()),
    ],
)
def test_heads_of_tasks(kind: str, task: Any):
    torch.manual_seed(0)
    config = transformers.XLMConfig(**theirs().config.to_dict())
    model = getattr(transformers, f"XLMFor{kind}")(config).eval()
    for p in model.parameters():
        p.data.add_(torch.randn_like(p), alpha=0.1)
    c = config_from_huggingface(json.loads(config.to_json_string(use_diff=False)))
    state = from_huggingface(model.state_dict(), c)
    own = TaskModel(c, task).eval()
    own.load_state_dict(state)
    saved = to_huggingface(state, c, f"XLMFor{kind}")
    assert saved.keys() == model.state_dict().keys()
    there = rows(torch.ones_like(IDS)).bool()
    with torch.no_grad():
        output = model(rows(IDS, 2), attention_mask=there.long(), langs=rows(LANGS))
        states = own.encoder(IDS, (layout := Layout.of(LENGTHS)), LANGS)[-1]
        if task.pooled:
            states = own.pooler(states[own.pooler.tokens(layout).long()])
        logits = own.get_submodule(task.head)(states)
    if kind.startswith("Question"):
        expected = torch.stack([output.start_logits, output.end_logits], -1)[there]
    else:
        expected = output.logits if task.pooled else output.logits[there]
    assert (logits - expected).abs().max() <= 2e-5
