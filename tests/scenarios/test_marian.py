"""Translators against MarianMTModel of transformers: logits, gradients, beams, files, counts.

Every parameter of a network is random, biases and norms included.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers

from bertworks.batching.batch import collate
from bertworks.batching.examples import Example, Target
from bertworks.batching.sampling import NextTokens
from bertworks.checkpoints.hf_config import (
    config_from_huggingface,
    config_to_huggingface,
    num_parameters,
)
from bertworks.checkpoints.hf_mapping import from_huggingface, to_huggingface
from bertworks.errors import BertworksError
from bertworks.inference.translation import DecodingRules, TranslationNetwork, beam_search
from bertworks.training.recipe import load_recipe
from tests.support.translators import END, PAD, VOCABULARY, marian, same_network, settings_of

PAIRS = [
    ([5, 9, 7, END], [4, 8, END]),
    ([6, END], [3, 9, 11, 13, END]),
    ([8, 3, 2, 7, 7, END], [5, END]),
]


def batch_of(pairs: Sequence[tuple[list[int], list[int]]]) -> Any:
    """Return a batch of pairs, whose second sides begin with the token from which they start."""
    examples = []
    for source, target in pairs:
        ids = torch.tensor([*source, PAD, *target]).numpy()
        types = torch.tensor([0] * len(source) + [1] * (len(target) + 1)).numpy()
        first = len(source)
        positions = torch.arange(first, len(ids) - 1).numpy()
        examples.append(Example(ids, types, {"translation": Target(positions, ids[first + 1 :])}))
    return collate(examples)


def padded(rows: Sequence[Sequence[int]], fill: int) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence(
        [torch.tensor(row) for row in rows], batch_first=True, padding_value=fill
    )


@pytest.mark.parametrize("activation", ["swish", "gelu", "relu"])
@pytest.mark.parametrize("scale", [True, False])
def test_logits_and_gradients(activation: str, scale: bool):
    model = marian(activation_function=activation, scale_embedding=scale)
    network = same_network(model)
    batch = batch_of(PAIRS)
    sources = padded([source for source, _ in PAIRS], PAD)
    targets = padded([target for _, target in PAIRS], -100)
    expected = model(sources, attention_mask=(sources != PAD).long(), labels=targets)
    x, embeddings, bias = network.vocabulary_inputs(network.translation_states(batch))
    logits = torch.nn.functional.linear(x, embeddings, bias)
    assert (logits - expected.logits[targets != -100]).abs().max() <= 5e-6
    loss = network(batch)["translation"]
    torch.testing.assert_close(loss.loss / len(logits), expected.loss, atol=2e-6, rtol=0)
    (loss.loss / len(logits)).backward()
    expected.loss.backward()
    gradients = {n: p.grad for n, p in model.named_parameters() if "embed_positions" not in n}
    gradients["final_logits_bias"] = torch.zeros(1, VOCABULARY)  # a buffer there
    exact = from_huggingface(gradients, network.encoder.config)
    for name, parameter in network.named_parameters():
        if name == "lm_head.bias":
            continue
        difference = (parameter.grad - exact[name]).norm()
        # A row of the table stands for padding, which gets no gradient there.
        if name == "encoder.embeddings.token.weight":
            difference = (parameter.grad - exact[name])[:PAD].norm()
        assert difference <= 2e-5 * max(exact[name].norm(), 1e-2), name


def test_one_pair_is_as_in_a_batch():
    network = same_network(marian()).double()
    together = network.translation_states(batch_of(PAIRS))
    alone = torch.cat([network.translation_states(batch_of([pair])) for pair in PAIRS])
    torch.testing.assert_close(together, alone, atol=1e-12, rtol=0)


def test_a_token_depends_on_no_later_one_and_on_no_other_source():
    network = same_network(marian()).double()
    states = network.translation_states(batch_of([([5, 9, END], [4, 8, 6, END])]))
    later = network.translation_states(batch_of([([5, 9, END], [4, 8, 30, END])]))
    assert torch.equal(states[:3], later[:3])
    assert not torch.equal(states[3], later[3])
    other = network.translation_states(batch_of([([5, 10, END], [4, 8, 6, END])]))
    assert not torch.equal(states[0], other[0])


GRID = [
    {},
    {"num_beams": 1},
    {"num_beams": 2, "early_stopping": True},
    {"num_beams": 4, "early_stopping": "never", "length_penalty": 1.0},
    {"num_beams": 3, "length_penalty": 0.0},
    {"num_beams": 4, "length_penalty": -0.5},
    {"num_beams": 4, "length_penalty": 2.0, "early_stopping": "never"},
    {"num_beams": 4, "no_repeat_ngram_size": 2},
    {"num_beams": 1, "no_repeat_ngram_size": 1},
    {"num_beams": 4, "renormalize_logits": True},
    {"num_beams": 4, "forced_eos_token_id": None},
    {"num_beams": 1, "forced_eos_token_id": None},
    {"num_beams": 4, "bad_words_ids": None},
    {"num_beams": 2, "bad_words_ids": [[PAD], [7], [END]]},
]
NAMES = {
    "num_beams": "beam",
    "length_penalty": "length_penalty",
    "no_repeat_ngram_size": "no_repeat_ngram",
    "early_stopping": "early_stopping",
    "renormalize_logits": "renormalize",
}


@pytest.mark.parametrize("limit", [1, 4, 20])
@pytest.mark.parametrize("settings", GRID, ids=str)
def test_beams_are_those_of_transformers(settings: dict[str, Any], limit: int):
    """Tokens and scores, also at the limit of length, of sources of different lengths."""
    for seed in (0, 1):
        model = marian(seed)
        if seed:  # nearer to a trained network: it ends before the limit
            model.final_logits_bias[0, END] += 4
        network = TranslationNetwork(same_network(model))
        generator = torch.Generator().manual_seed(seed)
        sources = [
            [*torch.randint(1, PAD, (n,), generator=generator).tolist(), END] for n in (3, 9, 1, 6)
        ]
        chosen = {"num_beams": 4, "bad_words_ids": [[PAD]], "forced_eos_token_id": END} | settings
        rows = padded(sources, PAD)
        result = model.generate(
            rows,
            attention_mask=(rows != PAD).long(),
            max_length=limit + 1,
            output_scores=True,
            return_dict_in_generate=True,
            **chosen,
        )
        rules = DecodingRules(
            **{NAMES[name]: value for name, value in chosen.items() if name in NAMES},
            forbidden=tuple(ids[0] for ids in chosen["bad_words_ids"] or () if ids != [END]),
            forced_end=chosen["forced_eos_token_id"],
        )
        if rules.beam == 1:
            rules = replace(rules, early_stopping=False)
        found = beam_search(network, sources, PAD, [END], [limit] * len(sources), rules)
        for number, hypothesis in enumerate(found):
            expected = result.sequences[number, 1:].tolist()
            assert hypothesis.ids == expected[: len(hypothesis.ids)]
            assert set(expected[len(hypothesis.ids) :]) <= {PAD}
            if rules.beam > 1:
                score = result.sequences_scores[number].item()
                assert hypothesis.score == pytest.approx(score, abs=2e-5)


def test_a_source_is_translated_alone_as_in_a_batch():
    network = TranslationNetwork(same_network(marian(3)))
    sources = [[5, 9, 7, END], [6, END], [8, 3, 2, 7, 7, END], [4, 4, END]]
    limits = [5, 12, 8, 20]
    together = beam_search(network, sources, PAD, [END], limits)
    for source, limit, hypothesis in zip(sources, limits, together, strict=True):
        (alone,) = beam_search(network, [source], PAD, [END], [limit])
        assert alone.ids == hypothesis.ids
        assert alone.score == pytest.approx(hypothesis.score, abs=1e-5)


def test_a_translation_at_the_limit_is_named_also_if_its_end_is_forced():
    model = marian(5)
    model.final_logits_bias[0, END] += 2  # it ends before a limit of 60 tokens
    network = TranslationNetwork(same_network(model))
    sources = [[5, 9, 7, END], [8, 3, 2, 7, 7, END]]
    forced = DecodingRules(forced_end=END)
    for rules in (forced, DecodingRules()):
        long = beam_search(network, sources, PAD, [END], [60, 60], rules)
        assert [hypothesis.is_limited for hypothesis in long] == [False, False]
        limit = len(long[0].ids) - 1
        short, other = beam_search(network, sources, PAD, [END], [limit, 60], rules)
        assert short.is_limited
        assert (short.ids[-1] == END) == (rules is forced)
        assert not other.is_limited


def test_cached_is_uncached():
    """The logits of each step are those of one pass over the whole translation."""
    network = same_network(marian(4))
    steps = TranslationNetwork(network)
    (hypothesis,) = beam_search(steps, [[5, 9, 7, END]], PAD, [], [12], DecodingRules(beam=1))
    batch = batch_of([([5, 9, 7, END], hypothesis.ids)])
    x, embeddings, bias = network.vocabulary_inputs(network.translation_states(batch))
    whole = torch.nn.functional.linear(x, embeddings, bias)
    logarithms = whole.log_softmax(-1).gather(1, torch.tensor(hypothesis.ids)[:, None])
    assert hypothesis.ids == whole.argmax(-1).tolist()
    assert hypothesis.score == pytest.approx(logarithms.sum().item() / 12, abs=1e-5)


def test_files_in_both_directions(tmp_path: Any):
    model = marian()
    network = same_network(model)
    config = network.encoder.config
    state = {name: p.detach() for name, p in network.named_parameters()}
    tensors = to_huggingface(state, config, "MarianMTModel")
    settings = config_to_huggingface(
        config,
        architectures=["MarianMTModel"],
        pad_token_id=PAD,
        token_ids={"end_of_translation": END, "start_of_translation": PAD},
    )
    for name, value in settings.items():
        if name not in ("architectures", "dtype"):
            # transformers has two names for this function
            expected = {"silu": "swish"}.get(
                settings_of(model).get(name), settings_of(model).get(name)
            )
            assert {"silu": "swish"}.get(value, value) == expected, name
    theirs = transformers.MarianMTModel(transformers.MarianConfig(**settings))
    missing, unexpected = theirs.load_state_dict(tensors, strict=False)
    assert not unexpected
    tied = {
        "lm_head.weight",
        *(f"model.{part}.embed_tokens.weight" for part in ("encoder", "decoder")),
    }
    positions = {f"model.{part}.embed_positions.weight" for part in ("encoder", "decoder")}
    assert {*missing} <= tied | positions
    for name, value in model.state_dict().items():
        assert torch.equal(theirs.state_dict()[name], value), name


def test_another_table_of_positions_is_refused():
    model = marian()
    tensors = dict(model.state_dict())
    config = config_from_huggingface(settings_of(model))
    name = "model.decoder.embed_positions.weight"
    tensors[name] = model.model.decoder.embed_positions.weight.clone()
    from_huggingface(tensors, config)
    tensors[name][3, 2] += 0.01
    with pytest.raises(BertworksError, match="differs from the sines and cosines"):
        from_huggingface(tensors, config)


def test_a_file_without_its_decoder_is_refused():
    model = marian()
    tensors = {name: x for name, x in model.state_dict().items() if "decoder.layers.1" not in name}
    with pytest.raises(BertworksError, match="incomplete"):
        from_huggingface(tensors, config_from_huggingface(settings_of(model)))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("decoder_ffn_dim", 41),
        ("decoder_attention_heads", 2),
        ("decoder_vocab_size", 61),
        ("share_encoder_decoder_embeddings", False),
        ("tie_word_embeddings", False),
        ("is_encoder_decoder", False),
        ("normalize_before", True),
        ("normalize_embedding", True),
        ("add_final_layer_norm", True),
        ("static_position_embeddings", False),
        ("activation_dropout", 0.1),
        ("encoder_layerdrop", 0.1),
        ("decoder_layerdrop", 0.1),
        ("scale_embedding", 1),
        ("decoder_layers", 0),
    ],
)
def test_other_networks_are_refused_by_name(name: str, value: object):
    with pytest.raises(BertworksError, match=name):
        config_from_huggingface(settings_of(marian()) | {name: value})


@pytest.mark.parametrize(
    ("recipe", "vocabulary", "count"),
    [
        ("transformer-base", 37000, 63_082_496),
        ("transformer-big", 37000, 214_245_376),
        ("transformer-tiny", 6000, 2_093_056),
    ],
)
def test_numbers_of_parameters(recipe: str, vocabulary: int, count: int):
    """Those of the body: files of Marian also hold a bias of the output, one number per token."""
    c = replace(load_recipe(recipe).encoder, vocab_size=vocabulary)
    assert c.num_parameters() == count
    assert num_parameters(c, ["lm_head"]) == count + vocabulary


def test_the_published_size():
    settings = {"vocab_size": 58101, "d_model": 512, "encoder_layers": 6, "decoder_layers": 6}
    settings |= {"encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048}
    settings |= {"encoder_attention_heads": 8, "decoder_attention_heads": 8}
    with torch.device("meta"):
        model = transformers.MarianMTModel(transformers.MarianConfig(**settings))
    count = sum(p.numel() for n, p in model.named_parameters() if "embed_positions" not in n)
    c = config_from_huggingface({"model_type": "marian"} | settings)
    assert c.num_parameters() == count == 73_886_208


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_smoothed_loss_and_gradient(smoothing: float):
    """Against torch in float64; without smoothing the numbers are those of the plain loss."""
    network = same_network(marian()).double()
    network.label_smoothing = smoothing
    network.train()
    for module in network.modules():
        for name in ("dropout", "attention_dropout"):
            if hasattr(module, name):
                setattr(module, name, 0.0)
    batch = batch_of(PAIRS)
    loss = network(batch)["translation"].loss
    loss.backward()
    gradients = {name: p.grad.clone() for name, p in network.named_parameters()}
    network.zero_grad()
    x, embeddings, bias = network.vocabulary_inputs(network.translation_states(batch))
    logits = torch.nn.functional.linear(x, embeddings, bias)
    labels = batch.targets["translation"].labels
    exact = torch.nn.functional.cross_entropy(
        logits, labels, label_smoothing=smoothing, reduction="sum"
    )
    exact.backward()
    torch.testing.assert_close(loss, exact, atol=1e-5, rtol=0)
    for name, parameter in network.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, atol=1e-10, rtol=0)
    network.eval()  # evaluations are not smoothed
    plain = torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
    torch.testing.assert_close(network(batch)["translation"].loss, plain, atol=1e-5, rtol=0)


def test_targets_are_the_second_side():
    from bertworks.batching.examples import TokenSequence

    ids = torch.tensor([0, 5, 6, 2, 0, 7, 8, 2]).numpy()
    types = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]).numpy()
    example = NextTokens("translation")(TokenSequence(ids, types, ids < 3, {}), None)  # type: ignore[arg-type]
    target = example.targets["translation"]
    assert target.positions.tolist() == [4, 5, 6]
    assert target.labels.tolist() == [7, 8, 2]
