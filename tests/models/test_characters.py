"""Networks that read spellings: the shapes of their inputs, one LSTM against torch, gradients, and
refused settings. The numbers are compared in tests/checkpoints/test_allennlp.py."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from bertworks.batching.batch import collate
from bertworks.batching.examples import Example, add_special_tokens
from bertworks.models.config import EncoderConfig
from bertworks.models.embeddings import Characters, spellings
from bertworks.models.layout import Layout
from bertworks.models.recurrent import DirectedLSTM
from bertworks.models.settings import CharactersConfig
from bertworks.models.transformer import Encoder
from bertworks.text.tokenizer import SPELLED, Template, Tokenizer, spelling_tokenizer

CONFIG = EncoderConfig(
    family="elmo",
    kind="elmo",
    vocab_size=1,
    hidden_size=12,
    intermediate_size=10,
    num_hidden_layers=2,
    num_attention_heads=1,
    max_position_embeddings=40,
    position_embedding_type="none",
    type_vocab_size=0,
    embedding_norm=False,
    characters=CharactersConfig(size=3, widths=(1, 7), filters=(5, 4), highways=1),
    cell_clip=0.5,
    projection_clip=0.5,
)
TOKENIZER = spelling_tokenizer(40)


def batch_of(texts: list[str]) -> Any:
    ids = [TOKENIZER.array(TOKENIZER.encode(text).ids) for text in texts]
    return collate([Example(x, np.zeros(len(x), np.int64), {}) for x in ids])


def encoder_of(config: EncoderConfig = CONFIG) -> Encoder:
    torch.manual_seed(0)
    encoder = Encoder(config).double().eval()
    for p in encoder.parameters():
        p.data.add_(torch.randn_like(p), alpha=0.3)
    return encoder


def test_a_layout_with_one_more_token_at_both_ends():
    layout, sources, places = Layout.of([2, 1, 0, 3]).with_ends()
    assert sources.tolist() == [6, 0, 1, 7, 6, 2, 7, 6, 7, 6, 3, 4, 5, 7]
    assert sources[places].tolist() == list(range(6))
    expected = Layout.of([4, 3, 2, 5])
    assert layout.max_seqlen == expected.max_seqlen
    for name in ("cu_seqlens", "position_ids"):
        assert torch.equal(getattr(layout, name), getattr(expected, name))
    assert Layout.of([2, 1, 3]).backwards.tolist() == [1, 0, 2, 5, 4, 3]


def test_spellings():
    batch = batch_of(["ab é"])
    assert batch.input_ids.shape == (2, 48)
    assert batch.input_ids.dtype == torch.uint8
    rows = spellings(batch.input_ids)
    assert rows[0].tolist() == [258, 97, 98, 259] + [260] * 46
    assert rows[1].tolist() == [258, 0xC3, 0xA9, 259] + [260] * 46
    (long,) = spellings(batch_of(["x" * 60]).input_ids).tolist()
    assert long == [258] + [120] * 48 + [259]
    sequence = add_special_tokens([np.array([b"a"], SPELLED)] * 2, Template((), (), ()))
    assert sequence.input_ids.tolist() == [b"a", b"a"]


@pytest.mark.parametrize("width", [6, 10], ids=["no projection", "projection"])
def test_without_clips_it_is_the_lstm_of_torch(width: int):
    config = replace(
        CONFIG, hidden_size=2 * width, intermediate_size=10, cell_clip=0.0, projection_clip=0.0
    )
    torch.manual_seed(0)
    ours = DirectedLSTM(config).double()
    theirs = torch.nn.LSTM(
        width, 10, batch_first=True, proj_size=width if width != 10 else 0
    ).double()
    theirs.weight_ih_l0.data.copy_(ours.weight_ih)
    theirs.weight_hh_l0.data.copy_(ours.weight_hh)
    ours.bias.data.normal_()
    theirs.bias_ih_l0.data.copy_(ours.bias)
    theirs.bias_hh_l0.data.zero_()
    theirs.bias_hh_l0.data[10:20] = 1  # of the forget gate
    if ours.weight_hr is not None:
        theirs.weight_hr_l0.data.copy_(ours.weight_hr)
    x = torch.randn(3, 7, width, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs(x)[0], atol=1e-12, rtol=0)


def test_each_parameter_has_a_gradient_that_is_right():
    encoder = encoder_of()
    batch = batch_of(["a few words", "one", "words a few more of them"])
    weights = torch.randn(3, len(batch.input_ids), 12, dtype=torch.float64)

    def value() -> torch.Tensor:
        return (torch.stack(encoder(*batch.inputs)) * weights).sum()

    value().backward()
    for name, p in encoder.named_parameters():
        assert p.grad is not None, name
        direction = torch.randn_like(p)
        step = 1e-6
        with torch.no_grad():
            p += step * direction
            above = value()
            p -= 2 * step * direction
            below = value()
            p += step * direction
        slope = (p.grad * direction).sum().item()
        assert ((above - below) / (2 * step)).item() == pytest.approx(slope, rel=1e-4, abs=1e-6), (
            name
        )


def test_a_batch_without_words_and_one_that_is_too_long():
    encoder = encoder_of()
    with torch.no_grad():
        states = encoder(*batch_of(["", ""]).inputs)
        assert [state.shape for state in states] == [(0, 12)] * 3
        single = encoder(*batch_of(["b"]).inputs)[-1]
        among_empty = encoder(*batch_of(["", "b", ""]).inputs)[-1]
        torch.testing.assert_close(among_empty, single)
        with pytest.raises(ValueError, match="a sequence of 41 words, but the model reads 40"):
            encoder(*batch_of(["b " * 41]).inputs)
    assert encoder.attention_maps(states, Layout.of([0])) == []


def test_equal_words_are_computed_once(monkeypatch: pytest.MonkeyPatch):
    counts: list[int] = []
    compute = Characters._vectors
    monkeypatch.setattr(
        Characters,
        "_vectors",
        lambda self, rows: (counts.append(len(rows)), compute(self, rows))[1],
    )
    with torch.no_grad():
        encoder_of()(*batch_of(["a b a", "b b c"]).inputs)
    assert counts == [3, 2]  # the words, and both marks


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"characters": None}, "kind 'elmo' without characters"),
        ({"kind": "static", "num_hidden_layers": 0, "cell_clip": 0.0}, "projection_clip is 0.5"),
        ({"cell_clip": -1.0}, "cell_clip is -1.0"),
        ({"projection_clip": float("inf")}, "projection_clip is inf"),
        ({"hidden_size": 13}, "kind 'elmo' with hidden_size 13"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0 with kind 'elmo'"),
        ({"embedding_norm": True}, "kind 'elmo' with embedding_norm True"),
        ({"direction": "left_to_right"}, "kind 'elmo' with direction"),
    ],
)
def test_refused_settings(fields: dict[str, Any], what: str):
    with pytest.raises(ValueError) as error:
        replace(CONFIG, **fields)
    assert what in str(error.value)
    with pytest.raises(ValueError, match="kind 'transformer' with characters"):
        EncoderConfig(characters=CharactersConfig())


def test_a_tokenizer_without_a_vocabulary_is_the_same_when_it_is_saved(tmp_path: Any):
    TOKENIZER.save(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert again.spells_words
    assert (again.sha256, again.model_max_length) == (TOKENIZER.sha256, 40)
    assert again.template == Template((), (), ())
    text = "It's a test: 3,000.5 words (well-known)."
    assert again.encode(text) == TOKENIZER.encode(text)
    assert again.words([text])[0].tolist() == [list(pair) for pair in again.encode(text).offsets]
