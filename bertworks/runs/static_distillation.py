"""Static vectors out of an encoder: its vocabulary as a table with one vector for each token.

As in Model2Vec (Tulkens and van Dongen 2024): an encoder reads each token of its vocabulary alone,
principal components keep what differs most between the tokens, and frequent tokens get short
vectors. Nothing is trained; or the table is fitted to the vectors of texts (`static_training`).

- `distil`: an encoder -> static vectors
- `shorten`: static vectors -> the same with fewer numbers
- `principal_components`, `frequency_weights`: the two steps after the encoder
"""

import re
from collections.abc import Generator, Iterable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from bertworks.checkpoints.hf_config import FAMILIES
from bertworks.checkpoints.model_folder import Model
from bertworks.checkpoints.sentence_transformers import SentenceTransformerSettings
from bertworks.errors import expect, require, some_names
from bertworks.events import Event
from bertworks.inference.embedder import Embedder, Vectors
from bertworks.inference.engine import LazyModel
from bertworks.io.inputs import chunk_by_size
from bertworks.runs.prepare import read_text
from bertworks.runs.static_training import Numbers, TeacherVectors, principal_directions
from bertworks.text.corpus import CorpusReader
from bertworks.text.tokenizer import Tokenizer

# a of the weight a / (a + p) of a token with the probability p (Arora, Liang and Ma 2017, "A simple
# but tough-to-beat baseline for sentence embeddings", section 3), as in Model2Vec
SIF_COEFFICIENT = 1e-4
_UNUSED = re.compile(r"\[unused\d+\]")  # places of BERT's vocabulary for words of users
_TOKENS_AT_ONCE = 4096  # of the vocabulary, between two notes on the progress
_CHARACTERS_AT_ONCE = 1 << 20  # of a text, in memory


class StaticVectors(NamedTuple):
    """Static vectors as the content of a model folder.

    sentence: how the mean of the vectors becomes that of a text.
    notes: what people should know about them.
    """

    model: Model
    sentence: SentenceTransformerSettings
    notes: list[str]


def distil(
    source: LazyModel,
    dimensions: int,
    inputs: Sequence[str | Path] = (),
    teacher: TeacherVectors | None = None,
) -> Generator[Event, None, StaticVectors]:
    """Return the vocabulary of an encoder as static vectors; yield the progress.

    A token gets the vector that the encoder has for the token alone, between its special tokens.
    Special and unused tokens, and so unknown words, have the vector 0.

    Args:
        source: an encoder, also an exported one.
        dimensions: numbers of a vector.
        inputs: raw text from which the frequencies of tokens are counted: files, folders or globs;
            (): those of the corpus of `teacher`; without one, frequencies by Zipf's law, of which
            the order of the vocabulary gives the ranks.
        teacher: the vectors of texts to which the table is fitted. None: nothing is trained.

    Raises:
        UsageError: more dimensions than the vectors of the encoder have, or than there are tokens.
        BertworksError: an encoder without a vocabulary; a text without a token of the vocabulary;
            no such text.
    """
    require(
        source.config.kind != "elmo",
        "static vectors are made of the tokens of a vocabulary, and this model has none",
        source.folder,
        "make them of another encoder: bertworks convert minilm -o STATIC --static 256",
    )
    embedder = Embedder(source, precision="fp32")
    tokenizer = embedder.tokenizer
    numbers = _readable_tokens(tokenizer)
    _check_dimensions(dimensions, min(embedder.dimension, len(numbers)), source)
    corpus = None if teacher is None else teacher.reader
    reader = read_text(inputs) if inputs else corpus
    probabilities, notes = _probabilities(tokenizer, numbers, reader)
    if embedder.settings.lowercase:
        notes.append("texts are not lower-cased any more before the tokenizer reads them")
    if any(embedder.settings.prompts.values()):
        notes.append("the prompts before texts are left out: the vectors are those of tokens alone")
    vectors = np.zeros((len(numbers), embedder.dimension), np.float32)
    for start in range(0, len(numbers), _TOKENS_AT_ONCE):
        part = numbers[start : start + _TOKENS_AT_ONCE]
        units, _ = embedder.units_of_ids([[number] for number in part.tolist()], prompt="")
        vectors[start : start + len(part)] = embedder.raw(units)[:, : embedder.dimension]
        done = start + len(part)
        fields = {"stage": "distil", "what": "tokens", "amount": done}
        yield Event("stage", f"distil: {done:,} of {len(numbers):,} tokens", fields)
    weights = frequency_weights(probabilities)[:, None]
    if teacher is None:
        components, share = principal_components(vectors, dimensions)
        rows = components * weights
        table_notes = [
            f"{dimensions} of {embedder.dimension} dimensions, with {share:.1%} of the variance"
        ]
    else:
        features = vectors.astype(np.float64)
        features -= features.mean(0)
        rows, table_notes = yield from teacher.fit(numbers, features * weights, dimensions)
    table = torch.zeros(tokenizer.vocab_size, dimensions)
    table[torch.from_numpy(numbers)] = torch.from_numpy(rows).float()
    num_zero = tokenizer.vocab_size - len(numbers)
    notes = [*table_notes, f"{num_zero:,} special and unused tokens have the vector 0", *notes]
    settings = embedder.settings
    sentence = SentenceTransformerSettings(
        normalize=settings.normalize, similarity=settings.similarity
    )
    return StaticVectors(_model_of(table, tokenizer), sentence, notes)


def shorten(source: LazyModel, dimensions: int) -> StaticVectors:
    """Return static vectors with the first numbers of each.

    Of vectors that `distil` made these are the first principal components: the same as if it had
    made them with fewer dimensions and equal frequencies.

    Raises:
        UsageError: more dimensions than the vectors have.
        BertworksError: modules behind the vectors that read all of their numbers.
    """
    width = source.config.hidden_size
    _check_dimensions(dimensions, width, source)
    settings = source.sentence_transformer.settings
    kinds = [module.kind for module in settings.modules]
    require(
        not kinds,
        f"the static vectors pass through {some_names(kinds)}, which reads all {width} numbers",
        source.folder,
        "shorten other static vectors, or distil an encoder again with --static",
    )
    table = source.state["encoder.embeddings.token.weight"][:, :dimensions].cpu()
    notes = [f"the first {dimensions} of {width} numbers of each vector"]
    return StaticVectors(
        _model_of(table, source.tokenizer), replace(settings, truncate_dim=None), notes
    )


def principal_components(vectors: Vectors, count: int) -> tuple[Numbers, float]:
    """Return the coordinates of vectors in the directions of their largest variances.

    See `principal_directions`.

    Args:
        vectors: [n, width].
        count: of directions, at most `width`.

    Returns:
        float64 [n, count]; and the share of the variance in these directions.
    """
    centered = vectors.astype(np.float64)
    centered -= centered.mean(0)
    directions, share = principal_directions(centered, count)
    return centered @ directions, share


def frequency_weights(probabilities: Numbers) -> Numbers:
    """Return the weight a / (a + p) of each token: see `SIF_COEFFICIENT`.

    probabilities: [n], of the tokens in general text.
    """
    return SIF_COEFFICIENT / (SIF_COEFFICIENT + probabilities)


def _readable_tokens(tokenizer: Tokenizer) -> NDArray[np.int64]:
    """Return the ids of the tokens that get a vector: neither special nor unused ones."""
    numbers = [
        number
        for number, token in enumerate(tokenizer.tokens)
        if number not in tokenizer.special_ids and not _UNUSED.fullmatch(token)
    ]
    return np.array(numbers, np.int64)


def _check_dimensions(dimensions: int, most: int, source: LazyModel) -> None:
    expect(
        1 <= dimensions <= most,
        f"--static {dimensions}: expected from 1 to {most:,} dimensions, which is what this model "
        "has",
        where=source.folder,
        hint=f"--static {most}",
    )


def _probabilities(
    tokenizer: Tokenizer, numbers: NDArray[np.int64], reader: CorpusReader | None
) -> tuple[Numbers, list[str]]:
    """Return the probability of each token of `numbers`, and notes on where it comes from.

    A token that does not occur counts once.

    Raises:
        BertworksError: see `distil`.
    """
    if reader is None:
        # the rank begins with 2, as in Model2Vec
        frequencies = 1 / np.arange(2, len(numbers) + 2, dtype=np.float64)
        note = "the frequencies of tokens are guessed from their order in the vocabulary; counted "
        note += "in general text (--text) they are better"
        return frequencies / frequencies.sum(), [note]
    texts = (document.text for document in reader)
    counts = _token_counts(tokenizer, texts)[numbers]
    require(
        counts.any(),
        "the vocabulary has none of the words of the text, so their frequencies are not known",
        ", ".join(map(str, reader.inputs)),
        "name a text in the language of the model",
    )
    note = f"the frequencies are those of {counts.sum():,} tokens of the text, with "
    note += f"{np.count_nonzero(counts):,} of {len(counts):,} tokens of the vocabulary"
    frequencies = counts.astype(np.float64) + 1
    report = "; ".join(str(reader.report).splitlines())
    return frequencies / frequencies.sum(), [report, note]


def _token_counts(tokenizer: Tokenizer, texts: Iterable[str]) -> NDArray[np.int64]:
    """Return how often each token occurs in texts: int64 [vocab_size]."""
    counts = np.zeros(tokenizer.vocab_size, np.int64)
    for chunk in chunk_by_size(texts, _CHARACTERS_AT_ONCE, len):
        ids = np.fromiter(chain.from_iterable(tokenizer.ids(chunk)), np.int64)
        counts += np.bincount(ids, minlength=len(counts))
    return counts


def _model_of(table: torch.Tensor, tokenizer: Tokenizer) -> Model:
    """Return a table of static vectors, [vocab_size, width], as a model."""
    num_tokens, width = table.shape
    default = FAMILIES["static"].default
    config = replace(default, vocab_size=num_tokens, hidden_size=width)
    state = {"encoder.embeddings.token.weight": table.contiguous()}
    plain = tokenizer.without_template(config.max_position_embeddings)
    return Model(config, state, plain)
