"""Embeddings: positions, and the kinds of texts."""

import pytest
import torch

from bertworks.models.config import EncoderConfig
from bertworks.models.embeddings import Embeddings
from bertworks.models.layout import Layout
from tests.models.test_config import AXES, network


def test_sinusoids_are_those_of_the_paper():
    """Sines first, then cosines, as in the authors' code; the paper has them in turn."""
    c = AXES["sinusoidal"]
    encoder = network(c)
    for part in encoder.embeddings.token, encoder.embeddings.token_type:
        part.weight.data.zero_()
    vectors = encoder.embeddings(torch.zeros(5, dtype=torch.long), Layout.of([5]))
    for position in range(5):
        for i in range(12):
            angle = torch.tensor(position / 10_000 ** (2 * i / 24))
            assert vectors[position, i].item() == pytest.approx(angle.sin().item(), abs=1e-6)
            assert vectors[position, 12 + i].item() == pytest.approx(angle.cos().item(), abs=1e-6)


def test_a_model_of_one_kind_of_text_reads_pairs_as_one_kind():
    torch.manual_seed(0)
    config = EncoderConfig(
        vocab_size=50, hidden_size=32, num_attention_heads=2, num_hidden_layers=1, type_vocab_size=1
    )
    embeddings, ids = Embeddings(config).eval(), torch.arange(12)
    layout = Layout.of([5, 7])
    expected = embeddings(ids, layout, torch.zeros_like(ids))
    torch.testing.assert_close(embeddings(ids, layout, torch.ones_like(ids)), expected)
