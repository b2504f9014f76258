"""Hidden states of words: those of transformers, exact means, and refusals."""

import random
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tokenizers
import torch
import transformers

import bertworks as bw
from bertworks.checkpoints.model_folder import save_model
from bertworks.errors import BertworksError
from bertworks.inference import word_states
from bertworks.inference.engine import open_model
from bertworks.inference.word_states import check_room, read_words, states_file, write_word_states
from bertworks.models.config import EncoderConfig
from bertworks.models.transformer import Encoder
from bertworks.text.tokenizer import Tokenizer
from bertworks.training.objectives import PretrainingModel
from tests.support.fine import FILLER, tokenizer
from tests.support.treebanks import random_sentence


@pytest.fixture(scope="module")
def perturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model in which no bias is 0 and no norm is 1."""
    folder, t = tmp_path_factory.mktemp("model") / "tiny", tokenizer()
    config = EncoderConfig(
        vocab_size=t.vocab_size,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        max_position_embeddings=64,
        initializer_range=0.1,
        hidden_dropout=0.0,
        attention_dropout=0.0,
    )
    torch.manual_seed(0)
    state = {
        name: x + 0.1 * torch.randn_like(x)
        for name, x in PretrainingModel(config).state_dict().items()
    }
    save_model(folder, state, config, t, card="tiny")
    return folder


def test_states_are_those_of_transformers(perturbed: Path, tmp_path: Path):
    draw = random.Random(0)
    sentences = [(random_sentence(draw).words, f"{n}") for n in range(20)]
    sentences[3] = (("unheardof", *sentences[3][0]), "3")  # a word of several tokens
    source = open_model(perturbed, "cpu")
    sequences = list(read_words(sentences, source.tokenizer, 64))
    encoder = source.network(Encoder, "encoder.")
    assert list(write_word_states(encoder, sequences, range(4), tmp_path))[-1] == 20
    theirs = transformers.AutoModel.from_pretrained(perturbed).eval()
    tokens = transformers.AutoTokenizer.from_pretrained(perturbed)
    expected: list[list[np.ndarray]] = [[] for _ in range(4)]
    for words, _ in sentences:
        encoded = tokens(list(words), is_split_into_words=True, return_tensors="pt")
        with torch.no_grad():
            states = theirs(**encoded, output_hidden_states=True).hidden_states
        places = np.array([-1 if n is None else n for n in encoded.word_ids()])
        for layer, x in enumerate(states):
            expected[layer] += [x[0, places == n].mean(0).numpy() for n in range(len(words))]
    assert len(sequences[3].tokens) > sequences[3].num_words
    for layer in range(4):
        ours = np.load(states_file(tmp_path, layer)).astype(np.float32)
        oracle = np.stack(expected[layer])
        # float16 has 11 digits
        assert np.all(np.abs(ours - oracle) <= 2e-5 + 2**-11 * np.abs(oracle))


def test_means_are_exact_before_they_are_rounded(
    perturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """In float32, and independent of the batch."""
    found = []
    monkeypatch.setattr(
        word_states, "_float16", lambda values, _: found.append(values) or values.astype(np.float16)
    )
    source = open_model(perturbed, "cpu")
    encoder = source.network(Encoder, "encoder.")
    sequences = list(read_words([(FILLER[:5], "1"), (FILLER[5:12], "2")], source.tokenizer, 64))
    for part in (sequences, sequences[:1], sequences[1:]):
        list(write_word_states(encoder, part, [3], tmp_path))
    np.testing.assert_allclose(found[0], np.concatenate(found[1:]), atol=2e-5)
    with torch.no_grad():
        ids = torch.from_numpy(sequences[0].example.input_ids)
        x = encoder(ids, bw.Layout.of([len(ids)]))[3]
    np.testing.assert_allclose(found[1], x[1:6].numpy(), atol=2e-5)  # a token each, after [CLS]


def byte_level() -> Tokenizer:
    """Byte-level BPE, in which a space belongs to the word after it."""
    library = tokenizers.ByteLevelBPETokenizer()
    library.train_from_iterator(
        [" ".join(FILLER)] * 3, vocab_size=300, special_tokens=["<s>", "</s>"]
    )
    return Tokenizer(library.to_str())


@pytest.mark.parametrize("make", [tokenizer, byte_level])
def test_every_word_has_its_own_tokens(make):
    t = make()
    words = ["the", "film", "two words", "isn't", "Ünïcode", "日本", "...", "a"]
    (sequence,) = read_words([(words, "here")], t, 60)
    assert sorted(set(sequence.words.tolist())) == list(range(len(words)))
    if make is byte_level:
        for number, word in enumerate(words):
            ids = sequence.example.input_ids[sequence.tokens[sequence.words == number]]
            assert t.decode(ids).strip() == word


def test_a_token_of_two_words_counts_for_both():
    t = tokenizer()
    (sequence,) = read_words([(["the", "film"], "here")], t, 60)
    joined = SimpleNamespace(
        arrays=lambda texts: [(np.array([7], np.int32), np.array([[0, 8]], np.int32))] * len(texts),
        template=t.template,
    )
    (both,) = read_words([(["the", "film"], "here")], joined, 60)
    assert (both.tokens.tolist(), both.words.tolist()) == ([1, 1], [0, 1])
    assert sequence.tokens.tolist() == [1, 2]


def test_a_word_without_tokens_is_refused():
    with pytest.raises(BertworksError, match=r"word 2, '\\u200b', has no token") as error:
        list(read_words([(["the", "\u200b", "film"], "a.conllu:7")], tokenizer(), 60))
    assert (error.value.where, error.value.hint) == (
        "a.conllu:7",
        "replace the word, or remove the sentence",
    )


def test_states_that_float16_cannot_hold(perturbed: Path, tmp_path: Path):
    source = open_model(perturbed, "cpu")
    encoder = source.network(Encoder, "encoder.")
    encoder.blocks[1].feed_forward_norm.bias.data = encoder.blocks[1].feed_forward_norm.bias + 1e5
    sequences = list(read_words([(FILLER[:5], "1")], source.tokenizer, 64))
    list(write_word_states(encoder, sequences, [0, 1], tmp_path))
    with pytest.raises(
        BertworksError, match=r"states of layer 2 reach 1\d\d,\d+.*, more than float16 can hold"
    ):
        list(write_word_states(encoder, sequences, [2], tmp_path))


def test_a_disk_without_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2_000_000_000))
    check_room(tmp_path, 1_999_999_999, "")
    with pytest.raises(BertworksError, match=r"need 2.0 GB of disk, and 2.0 GB are free"):
        check_room(tmp_path, 2_000_000_000, "")
