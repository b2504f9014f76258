"""A shards folder and a recipe become batches: for every step of a run, and for its held-out text."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from bertworks.data.batch import Batch, Batches, collate
from bertworks.data.masking import Masker, MaskingConfig
from bertworks.data.sampling import (
    Ids,
    Plan,
    SamplingConfig,
    Special,
    Store,
    make_plan,
    make_sampler,
    plan_blocks,
    rng,
)
from bertworks.data.stream import Stream
from bertworks.errors import BertworksError, UsageError
from bertworks.learn.recipe import Phase, Recipe
from bertworks.text.atomic import replacing
from bertworks.text.tokenizer import Tokenizer

FEWEST = 40  # equal parts of the text, of which no document is longer than one: next sentence prediction needs wrong
# ones, and what is held out should be a small share
HELD_OUT_SHARE, HELD_OUT_TOKENS = 0.05, 100_000
CHUNK = 1 << 24  # tokens counted at once
MASKS_SEED = 20181011  # of held-out masks, the same in every run; the day on which BERT was published


@dataclass(frozen=True)
class Sections:
    """A store with shorter documents: the same tokens and sentences, more borders."""

    tokens: NDArray[Any]
    sentences: NDArray[np.int64]
    documents: NDArray[np.int64]


def in_sections(store: Store) -> Store:
    """The store itself if no document is much of it; else one whose long documents are cut into sections."""
    longest = max(2, (len(store.sentences) - 1) // FEWEST)
    if len(store.documents) > 1 and np.diff(store.documents).max() <= longest:
        return store
    edges = [np.arange(first, last, longest) for first, last in zip(store.documents, store.documents[1:], strict=False)]
    return Sections(store.tokens, store.sentences, np.append(np.concatenate(edges), store.documents[-1]))


def split(store: Store, seed: int) -> tuple[Ids, Ids]:
    """Documents to train on and documents to hold out, both ascending.

    Raises:
        BertworksError: with fewer than four documents or sections.
    """
    count = len(store.documents) - 1
    if count < 4:
        raise BertworksError(
            f"there is too little text: {len(store.sentences) - 1} sentences in {count} documents",
            fix="give at least some hundred sentences; some million words make a useful model",
        )
    order = rng("held-out", seed).permutation(count)
    sizes = np.diff(store.sentences[store.documents])
    wanted = min(HELD_OUT_SHARE * len(store.tokens), HELD_OUT_TOKENS)
    order = order[np.argsort(sizes[order] > wanted, kind="stable")]  # what is more than enough alone comes last
    held_out = 1 + int(np.searchsorted(np.cumsum(sizes[order]), wanted))
    held_out = min(max(held_out, 2), count - 2)
    return np.sort(order[held_out:]), np.sort(order[:held_out])


def make_masker(c: MaskingConfig, tokenizer: Tokenizer) -> Masker:
    """The masking policy over a tokenizer's ids."""
    return Masker(c, tokenizer.mask_id, tokenizer.starts_word)


def phase_batches(
    store: Store, documents: Ids, recipe: Recipe, tokenizer: Tokenizer, plans: Path, rank: int, world_size: int
) -> Callable[[int], list[Batch]]:
    """The micro-batches of step n of the whole run, phase after phase. Plans are kept in the folder `plans`, mapped:
    they are a function of the arguments, and a resumed run should not wait for them."""
    starts = [0, *np.cumsum([phase.num_steps for phase in recipe.train.phases]).tolist()]
    of_phase = [
        _batches(store, documents, recipe, tokenizer, phase, plans / f"phase-{number}.npy", number, rank, world_size)
        for number, phase in enumerate(recipe.train.phases)
    ]

    def batches(step: int) -> list[Batch]:
        phase = next(p for p in reversed(range(len(of_phase))) if starts[p] <= step)
        return of_phase[phase](step - starts[phase])

    return batches


def _batches(
    store: Store,
    documents: Ids,
    recipe: Recipe,
    tokenizer: Tokenizer,
    phase: Phase,
    plan_path: Path,
    number: int,
    rank: int,
    world_size: int,
) -> Batches:
    seed = (recipe.seed << 8) + number
    length = phase.sequence_length
    if not plan_path.exists():
        _write_plan(plan_path, plan_blocks(store, documents, recipe.sampling, length, seed))
    plan = np.load(plan_path, mmap_mode="r")
    special = Special(tokenizer.cls_id, tokenizer.sep_id)
    sampler = make_sampler(store, plan, recipe.sampling, length, special, seed)
    stream = Stream(sampler, make_masker(recipe.masking, tokenizer), seed, recipe.masking.dynamic)
    micro_batch_size = max(1, recipe.train.micro_batch_tokens // length)
    if phase.batch_size < world_size:
        raise UsageError(f"a batch of {phase.batch_size} sequences cannot be shared by {world_size} processes")
    return Batches(stream, phase.batch_size, micro_batch_size, rank, world_size)


def _write_plan(path: Path, blocks: Iterator[Plan]) -> None:
    """An .npy file int64 [rows, columns] of blocks of rows, which are not kept in memory.

    Raises:
        BertworksError: there is not one row.
    """
    first = next(blocks)
    with replacing(path) as temporary, temporary.open("wb") as file:
        rows = 0
        _write_header(file, (rows, first.shape[1]))
        for block in chain([first], blocks):
            file.write(block.tobytes())
            rows += len(block)
        if not rows:
            raise BertworksError("the corpus gives not one sequence", fix="give more text")
        file.seek(0)
        _write_header(file, (rows, first.shape[1]))  # as long as the first: numpy leaves room for the number of rows


def _write_header(file: BinaryIO, shape: tuple[int, int]) -> None:
    np.lib.format.write_array_header_1_0(file, {"descr": "<i8", "fortran_order": False, "shape": shape})


def held_out_batches(
    store: Store,
    documents: Ids,
    tokenizer: Tokenizer,
    *,
    pairs: bool,
    sequence_length: int,
    sequences: int,
    batch_size: int = 32,
) -> list[Batch]:
    """Batches with fixed masks: 15 % of the tokens, 80/10/10, whatever the model was trained with, so that figures of
    different runs on the same text and vocabulary compare."""
    config = SamplingConfig(pairs="next_sentence" if pairs else "full_sentences")
    plan = make_plan(store, documents, config, sequence_length, MASKS_SEED)
    special = Special(tokenizer.cls_id, tokenizer.sep_id)
    sampler = make_sampler(store, plan, config, sequence_length, special, MASKS_SEED)
    stream = Stream(sampler, make_masker(MaskingConfig(), tokenizer), MASKS_SEED, dynamic=False)
    examples = sorted((stream[n] for n in range(min(sequences, len(sampler)))), key=lambda e: len(e.input_ids))
    return [collate(examples[i : i + batch_size]) for i in range(0, len(examples), batch_size)]


def most_frequent_word(store: Store, documents: Ids, tokenizer: Tokenizer, batches: list[Batch]) -> tuple[str, float]:
    """The most frequent token of the training text (`documents`, ascending), and the share of the held-out questions
    that it answers: what a model has to beat."""
    counts = np.zeros(tokenizer.vocab_size, np.int64)
    gaps = np.flatnonzero(np.diff(documents) != 1) + 1
    for row in np.split(documents, gaps):  # neighbours are counted together
        first, last = store.sentences[store.documents[[row[0], row[-1] + 1]]].tolist()
        for start in range(first, last, CHUNK):
            counts += np.bincount(store.tokens[start : min(start + CHUNK, last)], minlength=len(counts))
    best = int(counts.argmax())
    asked = sum(len(batch.labels) for batch in batches)
    right = sum(int((batch.labels == best).sum()) for batch in batches)
    return tokenizer.tokens[best], right / max(1, asked)
