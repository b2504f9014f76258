"""Store hidden states of words, of every layer of a frozen encoder, on disk.

Memory does not grow with the text.

- `read_words`: sentences in words -> the input of the network, and which tokens each word has
- `write_word_states`: the mean state of the tokens of each word, after every layer -> arrays of
  float16
"""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from bertworks.batching.batch import (
    Batch,
    Example,
    Ids,
    add_special_tokens,
    collate,
    token_budget_indices,
)
from bertworks.errors import BertworksError, require
from bertworks.inference.engine import batch_tokens
from bertworks.io.inputs import chunk_by_size
from bertworks.models.transformer import Encoder, InferenceEncoder
from bertworks.text.tokenizer import Tokenizer
from bertworks.training.device import THREADS

_CHARACTERS = 1 << 20  # of sentences that are tokenized together
_LARGEST = float(np.finfo(np.float16).max)
WordArray = NDArray[np.float16]  # [words, width]


class WordSequence(NamedTuple):
    """A sentence as the network reads it.

    Token tokens[i] of it belongs to word words[i]; a token may belong to two words.
    """

    example: Example
    tokens: Ids
    words: Ids
    num_words: int


def read_words(
    sentences: Sequence[tuple[Sequence[str], str]],
    tokenizer: Tokenizer,
    max_length: int,
    *,
    lowercase: bool = False,
) -> Iterator[WordSequence | None]:
    """The sentences, their words joined by spaces; None for one with more tokens than `max_length`.

    Args:
        sentences: of each its words and where it stands.
        lowercase: whether the text is lower-cased before the tokenizer reads it.

    Raises:
        BertworksError: the tokenizer leaves nothing of a word.
    """
    room = max_length - tokenizer.template.num_special()
    for part in chunk_by_size(sentences, _CHARACTERS, lambda sentence: sum(map(len, sentence[0]))):
        texts = [
            " ".join(word.lower() if lowercase else word for word in words) for words, _ in part
        ]
        for (words, where), (ids, offsets) in zip(part, tokenizer.arrays(texts), strict=True):
            lengths = [len(word.lower() if lowercase else word) for word in words]
            starts = np.cumsum([0, *lengths[:-1]]) + np.arange(len(words))
            overlaps = (
                (offsets[:, :1] < starts + lengths)
                & (offsets[:, 1:] > starts)
                & (offsets[:, :1] < offsets[:, 1:])
            )
            tokens, of_word = np.nonzero(overlaps)
            if len(empty := np.setdiff1d(np.arange(len(words)), of_word)):
                what = (
                    f"word {empty[0] + 1}, {words[empty[0]]!r:.60}, has no token: the "
                    "tokenizer removes all of it"
                )
                raise BertworksError(
                    what, where=where, hint="replace the word, or remove the sentence"
                )
            if len(ids) > room:
                yield None
                continue
            sequence = add_special_tokens([ids], tokenizer.template)
            example = Example(sequence.input_ids, sequence.token_type_ids, {})
            yield WordSequence(
                example, tokens + len(tokenizer.template.prefix), of_word, len(words)
            )


def check_room(folder: Path, size: int, hint: str) -> None:
    """Raise BertworksError if a disk has no room for a number of bytes."""
    free = shutil.disk_usage(folder).free
    what = f"the hidden states need {size / 1e9:,.1f} GB of disk, and {free / 1e9:,.1f} GB are free"
    require(size < free, what, folder, hint)


def write_word_states(
    encoder: Encoder | InferenceEncoder,
    sequences: Sequence[WordSequence],
    layers: Sequence[int],
    folder: Path,
) -> Iterator[int]:
    """Write the states of all words after each of these layers, and yield finished sentences.

    0 is the embeddings: float16 [words, width] in `states_file(folder, layer)`, sentence after
    sentence. The number of finished sentences is yielded.

    Raises:
        BertworksError: a state is no number, or larger than 65,504.
    """
    ends = np.cumsum([sequence.num_words for sequence in sequences])
    starts = [0, *ends[:-1].tolist()]
    width = encoder.config.hidden_size
    device = next(encoder.parameters()).device
    files = {
        layer: np.lib.format.open_memmap(
            states_file(folder, layer), "w+", np.float16, (int(ends[-1]), width)
        )
        for layer in layers
    }
    lengths = [len(sequence.example.input_ids) for sequence in sequences]
    done = 0
    for numbers in token_budget_indices(lengths, [1] * len(lengths), batch_tokens(device)):
        part = [sequences[number] for number in numbers]
        batch = collate([sequence.example for sequence in part]).to(device)
        rows = np.concatenate([np.arange(starts[number], ends[number]) for number in numbers])
        for layer, values in _means(encoder, batch, part, layers):
            files[layer][rows] = _float16(values, layer)
        done += len(numbers)
        yield done


def states_file(folder: Path, layer: int) -> Path:
    """Return the file of the states after a layer, which `numpy.load` reads."""
    return folder / f"layer-{layer}.npy"


def _means(
    encoder: Encoder | InferenceEncoder,
    batch: Batch,
    part: Sequence[WordSequence],
    layers: Sequence[int],
) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """For each layer the mean states of the words of a batch, float32 [words, width]."""
    device = batch.input_ids.device
    first = np.cumsum([0, *(sequence.num_words for sequence in part)])
    tokens = [sequence.tokens + start for sequence, start in zip(part, batch.layout.first.tolist())]
    token = torch.from_numpy(np.concatenate(tokens)).to(device)
    words = [sequence.words + start for sequence, start in zip(part, first.tolist())]
    word = torch.from_numpy(np.concatenate(words)).to(device)
    counts = torch.bincount(word, minlength=int(first[-1]))[:, None]
    THREADS.adapt()
    with torch.no_grad():
        states = encoder(batch.input_ids, batch.layout, batch.token_type_ids)
        for layer in layers:
            x = states[layer].float()
            sums = x.new_zeros(int(first[-1]), x.shape[1]).index_add_(0, word, x[token])
            yield layer, (sums / counts).cpu().numpy()


def _float16(values: NDArray[np.float32], layer: int) -> WordArray:
    largest = float(np.abs(values).max())
    what = (
        f"the hidden states of layer {layer} reach {largest:,.6g}, more than float16 can hold "
        f"({_LARGEST:,.0f})"
    )
    require(largest <= _LARGEST, what, hint="leave this layer out")
    return values.astype(np.float16)
