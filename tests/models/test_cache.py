"""Keys and values of tokens that were read before."""

from pathlib import Path

import pytest
import torch

import bertworks as bw
from bertworks.models.cache import KeyValueCache
from bertworks.models.layout import Layout
from bertworks.models.transformer import Encoder
from tests.inference.test_causal_lm import folder as folder


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_cached_is_uncached(dtype: torch.dtype, folder: Path):
    """Also after sequences were dropped, the longest among them, in any order."""
    encoder = Encoder(bw.load_model(folder).config).to(dtype).eval()
    for parameter in encoder.parameters():
        parameter.data.add_(torch.randn_like(parameter), alpha=0.15)
    lengths, steps = [5, 17, 1, 9], 6
    texts = [torch.randint(0, 256, (length + 2 * steps,)) for length in lengths]
    cache = KeyValueCache(3, Layout.of(lengths), 2 * steps)
    with torch.no_grad():
        whole = [encoder(text, Layout.of([len(text)])) for text in texts]
        prompts = torch.cat([text[:length] for text, length in zip(texts, lengths, strict=True)])
        states = encoder(prompts, Layout.of(lengths), cache=cache)
        for rows, begin in ([0, 1, 2, 3], 0), ([3, 2, 0], steps):
            if begin:
                cache.keep(torch.tensor(rows))
            for step in range(begin, begin + steps):
                new = torch.stack([texts[row][lengths[row] + step] for row in rows])
                states = encoder(new, cache.next_layout(), cache=cache)
                for number, row in enumerate(rows):
                    for ours, expected in zip(states, whole[row], strict=True):
                        difference = (ours[number] - expected[lengths[row] + step]).abs().max()
                        assert difference <= (1e-5 if dtype == torch.float32 else 1e-12)
    assert cache.num_columns == 9 + 2 * steps
    with pytest.raises(ValueError, match="room for 21 tokens"):
        encoder(new, cache.next_layout(), cache=cache)
    with pytest.raises(ValueError, match="holds 3 sequences"):
        encoder(prompts, Layout.of(lengths), cache=cache)
