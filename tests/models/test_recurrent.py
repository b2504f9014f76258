"""Networks of LSTMs that write a text while they read another one, against formulas in numpy.

Everything is computed in float64, with random parameters.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from bertworks.batching.batch import Batch
from bertworks.inference.translation import DecodingRules, TranslationNetwork, beam_search
from bertworks.models.attention import Source
from bertworks.models.config import EncoderConfig
from bertworks.models.layout import Layout
from bertworks.models.recurrent import LSTMDecoder
from bertworks.models.settings import LIMITS, DecoderConfig
from bertworks.training.objectives import PretrainingModel
from tests.scenarios.test_marian import batch_of

Array = npt.NDArray[np.float64]
END, PAD = 0, 59  # as in `batch_of`
CONFIG = EncoderConfig(
    family="native",
    kind="lstm",
    vocab_size=60,
    hidden_size=12,
    num_hidden_layers=2,
    position_embedding_type="none",
    type_vocab_size=0,
    embedding_norm=False,
    lm_head="bias",
    max_position_embeddings=40,
    decoder=DecoderConfig(num_hidden_layers=1, attention="multiplicative"),
)
DECODERS = [
    DecoderConfig(num_hidden_layers=1, attention="none"),
    DecoderConfig(num_hidden_layers=2, attention="multiplicative"),
    DecoderConfig(num_hidden_layers=2, attention="multiplicative", input_feeding=True),
    DecoderConfig(num_hidden_layers=1, attention="additive"),
]
PAIRS = [
    ([5, 9, 7, END], [4, 8, END]),
    ([6, END], [3, 9, 11, 13, END]),
    ([8, 3, 2, 7, 7, END], [5, END]),
]
each_decoder = pytest.mark.parametrize(
    "decoder", DECODERS, ids=["none", "multiplicative", "input feeding", "additive"]
)


def network_of(decoder: DecoderConfig, **fields: Any) -> PretrainingModel:
    torch.manual_seed(0)
    config = replace(CONFIG, decoder=decoder, **fields)
    network = PretrainingModel(config, {"translation": 1.0}).double().eval()
    for parameter in network.parameters():
        parameter.data.normal_(std=0.4)
    return network


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def softmax(x: Array) -> Array:
    return np.exp(x) / np.exp(x).sum()


def numbers(module: torch.nn.Module) -> dict[str, Array]:
    return {name: p.detach().numpy() for name, p in module.named_parameters()}


def cell(x: Array, h: Array, c: Array, p: dict[str, Array], layer: str) -> tuple[Array, Array]:
    """Hochreiter and Schmidhuber 1997, with forget gates: one token."""
    gates = p[f"weight_ih_{layer}"] @ x + p[f"bias_ih_{layer}"]
    gates = gates + p[f"weight_hh_{layer}"] @ h + p[f"bias_hh_{layer}"]
    i, f, g, o = np.split(gates, 4)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def encoded(network: PretrainingModel, ids: Sequence[int]) -> Array:
    """The states of a source: both directions of each layer side by side."""
    states = numbers(network.encoder.embeddings)["token.weight"][list(ids)]
    for block in network.encoder.blocks:
        p = numbers(block.get_submodule("both.lstm"))
        sides = []
        for layer, order in (("l0", 1), ("l0_reverse", -1)):
            h = c = np.zeros(states.shape[1] // 2)
            side = []
            for x in states[::order]:
                h, c = cell(x, h, c, p, layer)
                side.append(h)
            sides.append(np.stack(side[::order]))
        states = np.concatenate(sides, 1)
    return states


def multiplicative(s: Array, h: Array, p: dict[str, Array]) -> Array:
    """Luong et al. 2015, equation 8, "general"."""
    return softmax(h @ p["key.weight"].T @ s) @ h


def additive(s: Array, h: Array, p: dict[str, Array]) -> Array:
    """Bahdanau et al. 2015, section 3.1 and appendix A.1.2."""
    sums = p["query.weight"] @ s + p["query.bias"] + h @ p["key.weight"].T
    return softmax(np.tanh(sums) @ p["score.weight"][0]) @ h


def decoded(network: PretrainingModel, source: Sequence[int], target: Sequence[int]) -> Array:
    """What each next token is predicted from, one token of the target after the other."""
    decoder = network.decoder
    assert isinstance(decoder, LSTMDecoder)
    p = numbers(decoder)
    of_lstm = numbers(decoder.lstm)
    h = encoded(network, source)
    half = h.shape[1] // 2
    ends = np.concatenate([h[-1, :half], h[0, half:]])
    first = np.tanh(p["start_state.weight"] @ ends + p["start_state.bias"])
    hidden, memory = first.reshape(2, decoder.num_layers, -1)
    fed = np.zeros_like(hidden[-1])
    attend: Callable[..., Array] = additive if decoder.attention == "additive" else multiplicative
    results = []
    for token in target:
        x = numbers(network.encoder.embeddings)["token.weight"][token]
        if decoder.attention == "additive":
            context = attend(hidden[-1], h, p)
            x = np.concatenate([x, context])
        elif decoder.feeds_inputs:
            x = np.concatenate([x, fed])
        for layer in range(decoder.num_layers):
            hidden[layer], memory[layer] = cell(
                x, hidden[layer], memory[layer], of_lstm, f"l{layer}"
            )
            x = hidden[layer].copy()
        if decoder.attention == "multiplicative":
            context = attend(x, h, p)
        if decoder.attention != "none":
            both = np.concatenate([x, context])
            x = np.tanh(p["combine.weight"] @ both + p["combine.bias"])
        results.append(x)
        fed = x
    return np.stack(results)


@torch.no_grad()
def states_of(network: PretrainingModel, batch: Batch) -> Array:
    states: Array = network.translation_states(batch).numpy()
    return states


@each_decoder
def test_states_are_those_of_the_formulas(decoder: DecoderConfig):
    network = network_of(decoder)
    expected = [decoded(network, source, [PAD, *target[:-1]]) for source, target in PAIRS]
    states = states_of(network, batch_of(PAIRS))
    assert np.abs(states - np.concatenate(expected)).max() <= 1e-10
    alone = [states_of(network, batch_of([pair])) for pair in PAIRS]
    assert np.abs(states - np.concatenate(alone)).max() <= 1e-12


@each_decoder
def test_gradients_flow_to_every_parameter_as_in_pairs_alone(decoder: DecoderConfig):
    """The loss of a batch has the sum of the gradients of its pairs."""
    network = network_of(decoder)

    def gradients(pairs: list[Any]) -> dict[str, torch.Tensor]:
        network.zero_grad()
        network(batch_of(pairs))["translation"].loss.backward()
        return {
            name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
            for name, p in network.named_parameters()
        }

    together = gradients(PAIRS)
    alone = [gradients([pair]) for pair in PAIRS]
    for name, gradient in together.items():
        assert gradient.abs().max() > 0, name
        difference = gradient - torch.stack([part[name] for part in alone]).sum(0)
        assert difference.abs().max() <= 1e-10, name


@each_decoder
def test_a_step_at_a_time_is_the_whole_target_at_once(decoder: DecoderConfig):
    """With two hypotheses of each source, which change places and are dropped on the way."""
    network = network_of(decoder)
    translation = TranslationNetwork(network)
    sources = [source for source, _ in PAIRS]
    targets = [[3, 8, 5, 2], [9, 4, 4, 1], [7, 7, 2, 6], [1, 2, 3, 4], [6, 5, 9, 9], [2, 8, 1, 3]]
    source = translation.read(sources)
    cache = translation.start(source, 2, 4)
    rows = torch.arange(6)
    with torch.no_grad():
        for step in range(4):
            tokens = torch.tensor([targets[int(row)][step] for row in rows])
            layout = cache.next_layout()
            embeddings = network.encoder.embeddings(tokens, layout)
            states = network.decoder(embeddings, layout, source, cache)[-1]  # type: ignore[misc]
            expected = [
                decoded(network, sources[int(row) // 2], targets[int(row)][: step + 1])[-1]
                for row in rows
            ]
            assert np.abs(states.numpy() - np.stack(expected)).max() <= 1e-10
            if step == 0:
                order = torch.tensor([1, 0, 3, 2, 4, 5])
                rows = rows[order]
                cache.keep(order)
            if (
                step == 1
            ):  # the second source is finished; of the third one hypothesis is there twice
                order = torch.tensor([0, 1, 5, 5])
                rows = rows[order]
                cache.keep(order, torch.tensor([0, 2]))


@each_decoder
def test_beams_of_a_source_alone_are_those_in_a_batch(decoder: DecoderConfig):
    network = network_of(decoder)
    translation = TranslationNetwork(network_of(decoder).float())
    sources = [source for source, _ in PAIRS]
    rules = DecodingRules(beam=3)
    together = beam_search(translation, sources, PAD, [END], [9, 5, 12], rules)
    for source, limit, hypothesis in zip(sources, [9, 5, 12], together, strict=True):
        (alone,) = beam_search(translation, [source], PAD, [END], [limit], rules)
        assert alone.ids == hypothesis.ids
        assert alone.score == pytest.approx(hypothesis.score, abs=1e-5)
        states = decoded(network, source, [PAD, *hypothesis.ids[:-1]])
        logits = torch.from_numpy(states) @ network.encoder.embeddings.token.weight.T
        logarithms = (logits + network.lm_head.bias).log_softmax(-1)  # type: ignore[union-attr]
        total = logarithms[range(len(hypothesis.ids)), hypothesis.ids].sum().item()
        assert hypothesis.score == pytest.approx(total / len(hypothesis.ids), abs=1e-4)


@pytest.mark.parametrize("decoder", DECODERS[1:])
def test_attention_is_on_the_tokens_of_the_source(decoder: DecoderConfig):
    """Rows sum to 1, and what stands in places without a token changes nothing."""
    network = network_of(decoder)
    lstm = network.decoder
    assert isinstance(lstm, LSTMDecoder)
    layout = Layout.of([2, 5, 3])
    state = lstm.start(Source(torch.randn(10, 12).double(), layout))
    states = torch.randn(3, 4, 12).double()
    with torch.no_grad():
        weights = lstm.probabilities(states, state)
        assert weights.shape == (3, 4, 5)
        assert (weights.sum(-1) - 1).abs().max() <= 1e-12
        assert (weights[~layout.present[:, None].expand_as(weights)] == 0).all()
        assert (weights[layout.present[:, None].expand_as(weights)] > 0).all()
        state.keys = state.keys.masked_fill(~layout.present[:, :, None], 1e6)
        assert torch.equal(lstm.probabilities(states, state), weights)


@each_decoder
def test_a_later_token_changes_nothing_before_it(decoder: DecoderConfig):
    network = network_of(decoder)
    (source, _), *_ = PAIRS
    first = states_of(network, batch_of([(source, [3, 8, 5, END])]))
    second = states_of(network, batch_of([(source, [3, 8, 7, END])]))
    assert np.array_equal(first[:3], second[:3])
    assert not np.allclose(first[3], second[3])


def test_input_feeding_reads_what_a_token_was_predicted_from():
    """Without it the outputs of one step do not change the next one."""
    for decoder in DECODERS[1:3]:
        network = network_of(decoder)
        before = states_of(network, batch_of(PAIRS[:1]))
        network.decoder.combine.bias.data.add_(0.5)  # type: ignore[union-attr]
        hidden = [lstm_states(network), lstm_states(network_of(decoder))]
        changed = not torch.equal(*hidden)
        assert changed == decoder.input_feeding
        assert not np.array_equal(before, states_of(network, batch_of(PAIRS[:1])))


@torch.no_grad()
def lstm_states(network: PretrainingModel) -> torch.Tensor:
    """The state of the recurrence after three tokens."""
    lstm = network.decoder
    assert isinstance(lstm, LSTMDecoder)
    layout = Layout.of([3])
    source = Source(torch.ones(2, 12).double(), Layout.of([2]))
    state = lstm.start(source)
    lstm(torch.ones(3, 12).double(), layout, source, state)
    return state.hidden


@each_decoder
def test_numbers_of_parameters_and_operations(decoder: DecoderConfig):
    network = network_of(decoder)
    config = network.encoder.config
    assert config.num_parameters("lm_head") == sum(p.numel() for p in network.parameters())
    hidden = config.hidden_size
    # of a source and a target of 10 tokens each, by hand
    source = 10 * 2 * (2 * 2 * 4 * (hidden // 2) * (hidden + hidden // 2))
    inputs = hidden * (1 + (decoder.input_feeding or decoder.attention == "additive"))
    target = 10 * 2 * 4 * hidden * (inputs + hidden)
    target += (decoder.num_hidden_layers - 1) * 10 * 2 * 4 * hidden * 2 * hidden
    if decoder.attention != "none":
        source += 10 * 2 * hidden**2
        target += 10 * (2 * 2 * 10 * hidden + 2 * 2 * hidden * hidden)
    if decoder.attention == "additive":
        target += 10 * 2 * hidden**2
    output = 10 * 2 * hidden * config.vocab_size
    assert config.flops_per_token(20, 0.5) == pytest.approx(
        3 * (source + target + output) / 20, rel=1e-12
    )


def refused(**fields: Any) -> str:
    with pytest.raises(ValueError) as error:
        replace(CONFIG, **fields)
    return str(error.value)


@pytest.mark.parametrize(
    ("fields", "what", "remedy"),
    [
        ({"decoder": None}, "kind 'lstm' without a decoder", "kind = 'transformer'"),
        ({"hidden_size": 13}, "kind 'lstm' with hidden_size 13", "an even number"),
        ({"norm_first": True}, "kind 'lstm' with norm_first True", "norm_first = false"),
        ({"num_hidden_groups": 1}, "'lstm' with num_hidden_groups 1", "num_hidden_groups = 0"),
        (
            {"position_embedding_type": "learned"},
            "kind 'lstm' with position_embedding_type 'learned'",
            'position_embedding_type = "none"',
        ),
        (
            {"direction": "left_to_right", "pooler": "last"},
            "kind 'lstm' with direction 'left_to_right'",
            'direction = "bidirectional"',
        ),
        (
            {"relative_position_buckets": 8},
            "kind 'lstm' with relative_position_buckets 8",
            "relative_position_buckets = 0",
        ),
        (
            {"type_vocab_size": 2},
            "position_embedding_type 'none' with type_vocab_size 2",
            "type_vocab_size = 0",
        ),
        (
            {"kind": "transformer"},
            "position_embedding_type 'none' with kind 'transformer'",
            "expected 'learned' or 'sinusoidal'",
        ),
        (
            {"decoder": DecoderConfig(num_hidden_layers=1)},
            "attention 'multi_head' of the decoder with kind 'lstm'",
            "expected 'multiplicative' or 'additive' or 'none'",
        ),
        (
            {"kind": "transformer", "position_embedding_type": "sinusoidal"},
            "attention 'multiplicative' of the decoder with kind 'transformer'",
            "expected 'multi_head'",
        ),
    ],
)
def test_impossible_networks_are_refused(fields: dict[str, Any], what: str, remedy: str):
    message = refused(**fields)
    assert what in message
    assert remedy in message


@pytest.mark.parametrize("attention", ["multi_head", "additive", "none"])
def test_input_feeding_is_for_multiplicative_attention(attention: Any):
    with pytest.raises(ValueError, match="input_feeding of the decoder with attention") as error:
        DecoderConfig(num_hidden_layers=1, attention=attention, input_feeding=True)
    assert "expected attention = 'multiplicative', or input_feeding = false" in str(error.value)


def test_a_decoder_of_an_absurd_size_is_refused():
    with pytest.raises(ValueError, match="num_hidden_layers of the decoder"):
        DecoderConfig(num_hidden_layers=LIMITS["num_hidden_layers"] + 1)
