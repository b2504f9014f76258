"""Our BERT is Hugging Face's: the same weights give the same states, losses and gradients, and
folders go both ways."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from bertworks.batching.batch import Batch, BatchTarget
from bertworks.checkpoints.hf_config import component_names, config_from_huggingface
from bertworks.checkpoints.hf_mapping import from_huggingface
from bertworks.checkpoints.model_folder import load_model, save_model
from bertworks.models.config import EncoderConfig
from bertworks.models.layout import Layout
from bertworks.models.transformer import Encoder
from bertworks.text.tokenizer import Tokenizer
from bertworks.training.objectives import PretrainingModel

transformers = pytest.importorskip("transformers")

TINY = EncoderConfig(
    vocab_size=90,
    hidden_size=128,
    num_hidden_layers=2,
    num_attention_heads=2,
    max_position_embeddings=128,
    hidden_dropout=0.0,
    attention_dropout=0.0,
)
CONFIGS = {
    "tiny, head size 64": TINY,
    "mini": replace(
        TINY, hidden_size=256, num_hidden_layers=4, num_attention_heads=4, vocab_size=500
    ),
    "small heads, odd sizes": replace(
        TINY,
        vocab_size=91,
        hidden_size=36,
        num_attention_heads=3,
        intermediate_size=50,
        num_hidden_layers=3,
        type_vocab_size=4,
        layer_norm_eps=1e-5,
    ),
    "tanh gelu": replace(TINY, hidden_size=48, num_attention_heads=4, hidden_act="gelu_tanh"),
    "relu": replace(TINY, hidden_size=48, num_attention_heads=4, hidden_act="relu"),
    "one deep head": replace(TINY, hidden_size=64, num_attention_heads=1, num_hidden_layers=6),
}
LENGTHS = {
    "one": [23],
    "uniform": [16, 16, 16],
    "ragged": [17, 40, 3, 29, 8],
    "extremes": [2, 128, 1, 127],
    "longest first": [64, 32, 16, 8, 4, 2],
}


def foreign_config(c):
    activation = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu"}[c.hidden_act]
    return transformers.BertConfig(
        vocab_size=c.vocab_size,
        hidden_size=c.hidden_size,
        num_hidden_layers=c.num_hidden_layers,
        num_attention_heads=c.num_attention_heads,
        intermediate_size=c.ffn_size,
        hidden_act=activation,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        max_position_embeddings=c.max_position_embeddings,
        type_vocab_size=c.type_vocab_size,
        layer_norm_eps=c.layer_norm_eps,
    )


def perturbed(model, seed=0):
    """Away from the initial zeros and ones, so that no parameter can be taken for another."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def ours_with(state, config):
    model = PretrainingModel(config)
    model.load_state_dict(from_huggingface(state, config))
    return model.eval()


@pytest.fixture(scope="module", params=CONFIGS)
def pair(request):
    """Theirs and ours with the same weights."""
    config = CONFIGS[request.param]
    torch.manual_seed(0)
    theirs = perturbed(transformers.BertForPreTraining(foreign_config(config)))
    return theirs, ours_with(theirs.state_dict(), config), config


def both_batches(lengths, config, seed=2):
    """The same questions about the same tokens: packed for ours, padded for theirs."""
    g = torch.Generator().manual_seed(seed)
    layout, n = Layout.of(lengths), sum(lengths)
    # No token 0: theirs does not let the embedding of [PAD] learn, the original and ours do.
    ids = torch.randint(1, config.vocab_size, (n,), generator=g)
    types = torch.randint(0, config.type_vocab_size, (n,), generator=g)
    requested = torch.randperm(n, generator=g)[: max(1, n // 6)].sort()[0]
    labels = torch.randint(0, config.vocab_size, (len(requested),), generator=g)
    pairs = torch.randint(0, 2, (len(lengths),), generator=g)
    flat = torch.full((n,), -100).index_copy(0, requested, labels)
    present = layout.present
    padded = {
        "input_ids": layout.pad(ids),
        "token_type_ids": layout.pad(types),
        "attention_mask": present.long(),
        "labels": layout.pad(flat).masked_fill(~present, -100),
        "next_sentence_label": pairs,
    }
    targets = {
        "masked_lm": BatchTarget(requested, labels),
        "next_sentence": BatchTarget(layout.first.long(), pairs),
    }
    return Batch(ids, layout, types, targets), padded


def total_loss(model, batch):
    counts = model.counts(batch)
    return sum(tally.loss / counts[name] for name, tally in model(batch).items())


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("with_gradients", [False, True])
def test_the_states_of_every_layer_are_the_same(pair, lengths, with_gradients):
    theirs, ours, config = pair
    packed, padded = both_batches(lengths, config)
    with torch.set_grad_enabled(with_gradients):  # attention has two ways on a CPU
        states = ours.encoder(packed.input_ids, packed.layout, packed.token_type_ids)
        expected = theirs(**padded, output_hidden_states=True).hidden_states
    assert len(states) == len(expected) == config.num_hidden_layers + 1
    for state, hidden in zip(states, expected, strict=True):
        torch.testing.assert_close(state, packed.layout.unpad(hidden), atol=1e-5, rtol=0)


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_the_loss_and_the_scores_are_the_same(pair, lengths):
    theirs, ours, config = pair
    packed, padded = both_batches(lengths, config)
    with torch.no_grad():
        expected = theirs(**padded)
        loss, scores = total_loss(ours, packed), ours.scores(packed)
    torch.testing.assert_close(loss, expected.loss, rtol=1e-6, atol=0)
    requested = packed.layout.unpad(expected.prediction_logits)[
        packed.targets["masked_lm"].positions
    ]
    torch.testing.assert_close(scores, requested, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_the_gradient_of_every_parameter_is_the_same(pair, lengths):
    theirs, ours, config = pair
    packed, padded = both_batches(lengths, config)
    for model in (theirs, ours):
        model.zero_grad()
    theirs(**padded).loss.backward()
    total_loss(ours, packed).backward()
    expected = from_huggingface({name: p.grad for name, p in theirs.named_parameters()}, config)
    assert expected.keys() == dict(ours.named_parameters()).keys()
    for name, p in ours.named_parameters():
        difference, size = (p.grad - expected[name]).abs().max(), expected[name].abs().max()
        assert difference <= 1e-4 * size, f"{name}: {difference:.2g} of {size:.2g}"


# --- folders


TOKENS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *"abcdefghijklmnopqrstuvwxyz.,!?",
    *(f"##{c}" for c in "abcde"),
]
TEXTS = ["abc bad cafe.", "A Bad [MASK], é!", "", "zzz aeb, unknownword", "x" * 120]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in TOKENS))
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": true, "model_max_length": 64}')
    return Tokenizer.load(folder)


@pytest.fixture(scope="module", params=["gelu", "gelu_tanh"])
def saved(request, tmp_path_factory, tokenizer):
    """A folder of ours and the model that is in it."""
    config = replace(
        TINY,
        vocab_size=len(TOKENS),
        hidden_size=48,
        num_attention_heads=4,
        hidden_act=request.param,
        max_position_embeddings=64,
    )
    torch.manual_seed(1)
    ours = perturbed(PretrainingModel(config), seed=1)
    folder = tmp_path_factory.mktemp("saved")
    save_model(folder, ours.state_dict(), config, tokenizer, card="# test\n")
    return folder, ours, config


def opened(kind, folder):
    """A model of theirs from our folder; nothing in it may be missing, unexpected or of another
    shape."""
    model, report = kind.from_pretrained(folder, output_loading_info=True)
    troubles = {name: found for name, found in report.items() if found}
    return model.eval(), troubles


def test_our_folder_is_a_model_of_theirs_with_the_same_numbers(saved):
    folder, ours, config = saved
    theirs, troubles = opened(transformers.AutoModelForPreTraining, folder)
    assert troubles == {}
    assert type(theirs).__name__ == "BertForPreTraining"
    packed, padded = both_batches([9, 30, 2], config)
    with torch.no_grad():
        expected = theirs(**padded, output_hidden_states=True)
        states = ours.encoder(packed.input_ids, packed.layout, packed.token_type_ids)
        loss = total_loss(ours, packed)
    for state, hidden in zip(states, expected.hidden_states, strict=True):
        torch.testing.assert_close(state, packed.layout.unpad(hidden), atol=1e-5, rtol=0)
    torch.testing.assert_close(loss, expected.loss, rtol=1e-6, atol=0)


def test_our_folder_opens_as_body_and_as_masked_lm(saved):
    folder, ours, config = saved
    packed, padded = both_batches([9, 30, 2], config)
    inputs = {
        name: value
        for name, value in padded.items()
        if name in ("input_ids", "token_type_ids", "attention_mask")
    }
    body, troubles = opened(transformers.AutoModel, folder)
    assert set(troubles) <= {"unexpected_keys"}
    masked, troubles = opened(transformers.AutoModelForMaskedLM, folder)
    assert set(troubles) <= {"unexpected_keys"}
    with torch.no_grad():
        states = ours.encoder(packed.input_ids, packed.layout, packed.token_type_ids)[-1]
        found = body(**inputs)
        scores = packed.layout.unpad(masked(**inputs).logits)[packed.targets["masked_lm"].positions]
        pooled = ours.pooler(states[packed.layout.first])
        torch.testing.assert_close(
            packed.layout.unpad(found.last_hidden_state), states, atol=1e-5, rtol=0
        )
        torch.testing.assert_close(found.pooler_output, pooled, atol=1e-5, rtol=0)
        torch.testing.assert_close(scores, ours.scores(packed), atol=2e-5, rtol=1e-5)


def test_our_folder_is_a_tokenizer_of_theirs(saved, tokenizer):
    theirs = transformers.AutoTokenizer.from_pretrained(saved[0])
    assert type(theirs).__name__.startswith("BertTokenizer")
    assert theirs.model_max_length == 64
    assert (theirs.pad_token_id, theirs.mask_token_id) == (tokenizer.pad_id, tokenizer.mask_id)
    for text in TEXTS:
        mine, found = tokenizer.encode(text, "be ad"), theirs(text, "be ad")
        assert mine.ids == found["input_ids"]
        assert mine.type_ids == found["token_type_ids"]


def test_their_configuration_of_our_folder_is_ours(saved):
    folder, _, config = saved
    theirs = transformers.AutoConfig.from_pretrained(folder)
    read = config_from_huggingface(theirs.to_dict())
    assert read == replace(config, intermediate_size=config.ffn_size)
    assert theirs.architectures == ["BertForPreTraining"]


def test_through_their_hands_and_back_nothing_changes(saved, tmp_path, tokenizer):
    folder, ours, config = saved
    theirs = transformers.AutoModelForPreTraining.from_pretrained(folder)
    theirs.save_pretrained(tmp_path / "theirs")
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path / "theirs")
    model = load_model(tmp_path / "theirs")
    assert model.config == replace(config, intermediate_size=config.ffn_size)
    assert model.tokenizer.sha256 == tokenizer.sha256
    expected = ours.state_dict()
    assert model.state.keys() == expected.keys()
    assert all(torch.equal(model.state[name], value) for name, value in expected.items())
    assert (
        load_file(tmp_path / "theirs" / "model.safetensors").keys()
        == load_file(folder / "model.safetensors").keys()
    )
    save_model(tmp_path / "again", model.state, model.config, model.tokenizer, card="# test\n")
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()


def test_a_model_without_sentence_pairs_is_a_masked_lm_of_theirs(tmp_path, tokenizer):
    config = replace(TINY, vocab_size=len(TOKENS), hidden_size=48, num_attention_heads=4)
    ours = perturbed(PretrainingModel(config, {"masked_lm": 1.0}))
    save_model(tmp_path, ours.state_dict(), config, tokenizer, card="")
    theirs, troubles = opened(transformers.AutoModelForMaskedLM, tmp_path)
    assert troubles == {}
    assert theirs.config.architectures == ["BertForMaskedLM"]
    packed, padded = both_batches([9, 30, 2], config)
    del padded["next_sentence_label"]
    with torch.no_grad():
        counts = ours.counts(packed)
        loss = ours(packed)["masked_lm"].loss / counts["masked_lm"]
        torch.testing.assert_close(loss, theirs(**padded).loss, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        ("BertModel", {"encoder", "pooler"}),
        ("BertForMaskedLM", {"encoder", "lm_head"}),
        ("BertForNextSentencePrediction", {"encoder", "pooler", "next_sentence"}),
        ("BertForSequenceClassification", {"encoder", "pooler", "classifier"}),
        ("BertForTokenClassification", {"encoder", "classifier"}),
        ("BertForMultipleChoice", {"encoder", "pooler", "classifier"}),
        ("BertForQuestionAnswering", {"encoder", "span"}),
    ],
)
def test_the_body_of_every_model_of_theirs_is_read(kind, parts, tmp_path, tokenizer):
    config = replace(TINY, vocab_size=len(TOKENS), hidden_size=48, num_attention_heads=4)
    torch.manual_seed(0)
    theirs = perturbed(getattr(transformers, kind)(foreign_config(config)))
    theirs.save_pretrained(tmp_path)
    tokenizer.save(tmp_path)
    model = load_model(tmp_path)
    assert component_names(model.state) == parts
    encoder = Encoder(model.config).eval()
    encoder.load_state_dict(
        {n.removeprefix("encoder."): v for n, v in model.state.items() if n.startswith("encoder.")}
    )
    packed, padded = both_batches([9, 30, 2], config)
    inputs = {
        name: value
        for name, value in padded.items()
        if name in ("input_ids", "token_type_ids", "attention_mask")
    }
    with torch.no_grad():
        body = theirs if kind == "BertModel" else theirs.bert
        expected = body(**inputs).last_hidden_state
        states = encoder(packed.input_ids, packed.layout, packed.token_type_ids)[-1]
    torch.testing.assert_close(states, packed.layout.unpad(expected), atol=1e-5, rtol=0)


def answers(state, parts, states, layout):
    """Logits from what was read, computed here with nothing but matrices: of sequences, or of
    tokens."""
    if "span" in parts:
        return torch.nn.functional.linear(states, state["span.weight"], state["span.bias"])
    if "pooler" not in parts:
        return torch.nn.functional.linear(
            states, state["classifier.weight"], state["classifier.bias"]
        )
    first = states[layout.cu_seqlens[:-1].long()]
    pooled = torch.nn.functional.linear(
        first, state["pooler.dense.weight"], state["pooler.dense.bias"]
    ).tanh()
    return torch.nn.functional.linear(pooled, state["classifier.weight"], state["classifier.bias"])


@pytest.mark.parametrize(
    ("kind", "num_labels"),
    [
        ("BertForSequenceClassification", 1),
        ("BertForSequenceClassification", 2),
        ("BertForSequenceClassification", 7),
        ("BertForTokenClassification", 9),
        ("BertForQuestionAnswering", 2),
        ("BertForMultipleChoice", 1),
    ],
)
def test_the_head_of_every_fine_tuned_model_of_theirs_is_read(
    kind, num_labels, tmp_path, tokenizer
):
    config = replace(TINY, vocab_size=len(TOKENS), hidden_size=48, num_attention_heads=4)
    foreign = foreign_config(config)
    foreign.num_labels = num_labels
    torch.manual_seed(3)
    theirs = perturbed(getattr(transformers, kind)(foreign))
    theirs.save_pretrained(tmp_path)
    tokenizer.save(tmp_path)
    _, state, _ = load_model(tmp_path)
    lengths = [9, 30, 2, 17]
    packed, padded = both_batches(lengths, config)
    names = "input_ids", "token_type_ids", "attention_mask"
    inputs = {name: padded[name] for name in names}
    if kind == "BertForMultipleChoice":
        # two questions with two choices each
        inputs = {name: value.view(2, 2, -1) for name, value in inputs.items()}
    encoder = Encoder(config).eval()
    encoder.load_state_dict(
        {n.removeprefix("encoder."): v for n, v in state.items() if n.startswith("encoder.")}
    )
    with torch.no_grad():
        found = theirs(**inputs)
        states = encoder(packed.input_ids, packed.layout, packed.token_type_ids)[-1]
        ours = answers(state, component_names(state), states, packed.layout)
    if kind == "BertForQuestionAnswering":
        expected = packed.layout.unpad(torch.stack([found.start_logits, found.end_logits], -1))
    elif kind == "BertForTokenClassification":
        expected = packed.layout.unpad(found.logits)
    else:
        expected = found.logits.reshape(len(lengths), -1)
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["BertForTokenClassification", "BertForQuestionAnswering"])
def test_a_pooler_that_old_versions_saved_beside_a_head_does_no_harm(kind, tmp_path, tokenizer):
    config = replace(TINY, vocab_size=len(TOKENS), hidden_size=48, num_attention_heads=4)
    theirs = getattr(transformers, kind)(foreign_config(config))
    old = {
        f"bert.pooler.dense.{end}": torch.ones([48, 48][: 2 - (end == "bias")])
        for end in ("weight", "bias")
    }
    theirs.save_pretrained(tmp_path)
    tokenizer.save(tmp_path)
    save_file(
        load_file(tmp_path / "model.safetensors") | old,
        tmp_path / "model.safetensors",
        {"format": "pt"},
    )
    head = {"BertForTokenClassification": "classifier", "BertForQuestionAnswering": "span"}[kind]
    assert component_names(load_model(tmp_path, needs={head}).state) == {"encoder", "pooler", head}
