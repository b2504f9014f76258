"""The plans of a run: whole files that any numpy reads, made once, and the same that the sampler
would make."""

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bertworks.batching import sampling
from bertworks.batching.batch import collate
from bertworks.batching.examples import Example, Target
from bertworks.batching.sampling import Sampler, make_sampler
from bertworks.errors import BertworksError
from bertworks.io.atomic_write import SEAL
from bertworks.runs.pretrain_job import (
    most_frequent_token,
    phase_batches,
    split_documents,
    split_long_documents,
)
from bertworks.text.shards import TokenStore
from bertworks.text.tokenizer import Tokenizer
from bertworks.training.recipe import Recipe, load_recipe
from tests.batching.test_sampling import every, make_store
from tests.support.tiny import write_recipe

TOKENS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *(f"token{number}" for number in range(40_000)),
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in TOKENS))
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    return Tokenizer.load(folder)


def recipe_for(tmp_path: Path, *overrides: str) -> Recipe:
    return load_recipe(str(write_recipe(tmp_path / "r.toml")), list(overrides))


@pytest.mark.parametrize("pairs", ["next_sentence", "full_sentences"])
@pytest.mark.parametrize("block", [3, 1 << 16])
def test_a_plan_on_disk_is_the_plan(
    pairs: str, block: int, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sampling, "BLOCK", block)
    store, recipe = make_store(), recipe_for(tmp_path, f"sampling.format={pairs}", "seed=3")
    batches = phase_batches(store, every(store), recipe, tokenizer, tmp_path / "plans", 0, 1)
    expected = io.BytesIO()
    sampler = make_sampler(store, recipe.sampling, 32, tokenizer.template, 3 << 8)
    np.save(expected, sampler.make_plan(every(store)))
    file = tmp_path / "plans" / "phase-0.npy"
    assert file.read_bytes()[:-SEAL] == expected.getvalue()
    assert np.array_equal(np.load(file), np.load(io.BytesIO(expected.getvalue())))
    monkeypatch.setattr(Sampler, "plan_blocks", lambda *_: pytest.fail("it is there already"))
    again = phase_batches(store, every(store), recipe, tokenizer, tmp_path / "plans", 0, 1)
    assert [b.input_ids.tolist() for b in batches(2)] == [b.input_ids.tolist() for b in again(2)]


def test_a_corpus_without_a_sequence_leaves_no_plan(tokenizer: Tokenizer, tmp_path: Path):
    store, recipe = make_store(), recipe_for(tmp_path, "sampling.format=full_sentences")
    with pytest.raises(BertworksError, match="too short for a single sequence"):
        phase_batches(store, np.array([], np.int64), recipe, tokenizer, tmp_path / "plans", 0, 1)
    assert list((tmp_path / "plans").iterdir()) == []


def test_each_phase_has_sequences_of_its_own(tokenizer: Tokenizer, tmp_path: Path):
    store, recipe = make_store(), recipe_for(tmp_path)
    twice = replace(recipe, train=replace(recipe.train, phases=recipe.train.phases * 2))
    phase_batches(store, every(store), twice, tokenizer, tmp_path / "plans", 0, 1)
    one, other = (np.load(tmp_path / "plans" / f"phase-{number}.npy") for number in (0, 1))
    assert not np.array_equal(one, other)


def store_of(documents: list[list[int]]) -> TokenStore:
    """Of documents, each the tokens of its sentences."""
    sentences = np.cumsum([0, *(tokens for document in documents for tokens in document)])
    edges = np.cumsum([0, *map(len, documents)])
    return TokenStore(np.zeros(sentences[-1], np.uint16), sentences, edges)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(
    "documents",
    [
        [[20] * 20_000, *([[7] * 5] * 45)],  # a book among notes
        [*([[25] * 20] * 200), *([[20] * 20_000] * 3)],
        [*([[20] * 20] * 50), [40_000]],  # one sentence without end
        [[20] * 10] * 60,
        [[20] * 4000],
    ],
    ids=["book", "books", "endless", "equal", "one"],
)
def test_a_small_share_is_held_out_whatever_the_documents_are(
    documents: list[list[int]], seed: int
):
    store = split_long_documents(store_of(documents))
    train, held_out = split_documents(store, seed)
    sizes = np.diff(store.sentences[store.documents])
    assert sorted([*train, *held_out]) == list(range(len(sizes)))
    assert sizes.sum() == sum(map(sum, documents))
    assert 0.005 < sizes[held_out].sum() / sizes.sum() <= 0.1


def test_documents_of_which_none_is_much_stay_whole():
    store = store_of([[20] * 10] * 60)
    assert split_long_documents(store) is store


def test_each_seed_holds_out_other_documents():
    store = store_of([[20] * 10] * 60)
    held_out = [split_documents(store, seed)[1].tolist() for seed in (0, 1)]
    assert held_out[0] != held_out[1]


def test_the_most_frequent_token_is_of_all_the_training_text(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("bertworks.runs.pretrain_job.CHUNK", 16)
    store = store_of([[10] * 4] * 6)
    store.tokens[:] = np.repeat([7, 9, 8, 9, 8, 8], 40)  # of each document; those of 8 are held out
    batch = collate(
        [
            Example(
                np.array([2, 4, 4, 3]),
                np.zeros(4, int),
                {"masked_lm": Target(np.array([1, 2]), np.array([9, 7]))},
            )
        ]
    )
    assert most_frequent_token(store, np.array([0, 1, 3]), tokenizer, [batch]) == (TOKENS[9], 0.5)
