"""Keys and values of tokens that were read before."""

from pathlib import Path

import pytest
import torch

import bertworks as bw
from bertworks.models.cache import KeyValueCache
from bertworks.models.config import EncoderConfig
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


@pytest.mark.parametrize("beam", [2, 3])
def test_a_hypothesis_reads_the_tokens_of_those_that_it_continues(beam: int, folder: Path):
    """Hypotheses continue others of their source again and again, and sources leave the batch."""
    encoder = Encoder(bw.load_model(folder).config).double().eval()
    for parameter in encoder.parameters():
        parameter.data.add_(torch.randn_like(parameter), alpha=0.15)
    sources = [0, 1, 2]
    texts = torch.randint(0, 256, (len(sources) * beam, 1))
    cache = KeyValueCache(3, Layout.of([1] * len(texts)), 8, beam=beam)
    with torch.no_grad():
        encoder(texts[:, 0], cache.next_layout(), cache=cache)
        for step in range(8):
            origins = torch.randint(0, beam, (len(sources), beam))
            remaining = torch.tensor([0, 2]) if step == 4 else torch.arange(len(sources))
            rows = (remaining[:, None] * beam + origins[remaining]).flatten()
            cache.keep(rows, remaining if step == 4 else None)
            sources = [sources[number] for number in remaining]
            new = torch.randint(0, 256, (len(rows), 1))
            texts = torch.cat([texts[rows], new], 1)
            states = encoder(new[:, 0], cache.next_layout(), cache=cache)[-1]
            for text, state in zip(texts, states, strict=True):
                expected = encoder(text, Layout.of([len(text)]))[-1][-1]
                assert (state - expected).abs().max() <= 1e-12
    with pytest.raises(ValueError, match="begins with a single token"):
        KeyValueCache(3, Layout.of([2] * beam), 1, beam=beam)


RELATIVE = EncoderConfig(
    vocab_size=256,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    position_embedding_type="relative",
    max_position_embeddings=12,
    type_vocab_size=0,
    embedding_norm=False,
    attention_bias=False,
    direction="left_to_right",
    pooler="last",
)


@pytest.mark.parametrize("lengths", [[5, 11, 1, 9], [4, 4]])
def test_a_full_cache_keeps_the_newer_half_of_a_sequence(lengths: list[int]):
    """A token reads the states of those that are kept, as of a memory, whatever else is computed
    with it; also after sequences were dropped."""
    torch.manual_seed(0)
    longest = RELATIVE.max_position_embeddings
    encoder = Encoder(RELATIVE).double().eval()
    for parameter in encoder.parameters():
        parameter.data.add_(torch.randn_like(parameter), alpha=0.3)
    texts = torch.randint(0, 256, (len(lengths), 60))
    cache = KeyValueCache(2, Layout.of(lengths), 1)
    prompts = torch.cat([text[:length] for text, length in zip(texts, lengths, strict=True)])
    kept = []  # of each sequence, the states before each layer
    with torch.no_grad():
        encoder(prompts, Layout.of(lengths), cache=cache)
        for text, length in zip(texts, lengths, strict=True):
            kept.append(encoder(text[:length], Layout.of([length]))[:-1])
        rows = [*range(len(lengths))]
        for step in range(40):
            if step == 25:
                rows = rows[1::2]
                cache.keep(torch.tensor(rows))
            cache.make_room(longest)
            new = torch.stack([texts[row][lengths[row] + step] for row in rows])
            ours = encoder(new, cache.next_layout(), cache=cache)
            for number, row in enumerate(rows):
                if len(kept[row][0]) == longest:
                    kept[row] = [x[-(longest // 2) :] for x in kept[row]]
                memory = [x[None] for x in kept[row]]
                expected = encoder(new[number : number + 1], Layout.of([1]), memory=memory)
                for x, y in zip(ours, expected, strict=True):
                    torch.testing.assert_close(x[number], y[0], rtol=0, atol=1e-12)
                pairs = zip(kept[row], expected, strict=False)
                kept[row] = [torch.cat(pair) for pair in pairs]
    assert cache.num_columns <= longest
