"""Further pre-training on the text of a domain: new words, unchanged scores of old ones, and bits
per character."""

import math
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor

import bertworks
from bertworks.batching.batch import Batch
from bertworks.checkpoints.model_folder import load_model, save_model
from bertworks.errors import UsageError
from bertworks.events import Event
from bertworks.runs.adaptation import bits_batches, bits_per_character, extended_state
from bertworks.text.corpus import CorpusReader
from bertworks.text.shards import write_shards
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.vocabulary import VocabularyConfig, extend_vocabulary, train_vocabulary
from bertworks.training.objectives import PretrainingModel
from tests.support.gpt import write_gpt, write_gpt2
from tests.support.tiny import assert_same_run, documents, metrics, write_corpus, write_recipe

SHORT = ("num_steps = 40", "num_steps = 10")
FOREIGN = "kalibodu sunomipe"  # their pieces are in the vocabulary of the corpus


def run(text: Path, output: Path, **options: Any) -> list[Event]:
    return list(bertworks.pretrain([text], output, workers=1, device="cpu", **options))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, `m`, with perturbed biases; the text of a domain, `domain.jsonl`; a recipe,
    `r.toml`."""
    home = tmp_path_factory.mktemp("home")
    write_recipe(home / "r.toml", SHORT, ("size = 300", "size = 150"))
    run(write_corpus(home / "general.jsonl"), home / "m", recipe=str(home / "r.toml"))
    texts = [f"{text} {FOREIGN if n % 2 else ''}" for n, text in enumerate(documents(80, seed=1))]
    (home / "domain.txt").write_text("\n\n".join(texts))
    config, state, tokenizer = load_model(home / "m")
    generator = torch.Generator().manual_seed(0)
    state = {name: p + 0.1 * torch.randn(p.shape, generator=generator) for name, p in state.items()}
    save_model(home / "m", state, config, tokenizer, card="tiny")
    return home


@pytest.fixture(scope="module")
def adapted(home: Path) -> tuple[Path, list[Event]]:
    options = {"recipe": str(home / "r.toml"), "init": str(home / "m"), "extend_vocabulary": 20}
    return home / "adapted", run(home / "domain.txt", home / "adapted", **options)


def test_other_tokenizers_are_refused_by_name():
    t, _ = train_vocabulary(documents(), VocabularyConfig(algorithm="bpe", size=300), workers=1)
    with pytest.raises(UsageError, match="a vocabulary of BPE cannot be extended"):
        extend_vocabulary(documents(), t, 1)


def test_transformers_reads_the_extended_tokenizer(home: Path, adapted: tuple[Path, list[Event]]):
    folder, events = adapted
    old, new = Tokenizer.load(home / "m"), Tokenizer.load(folder)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    assert new.vocab_size == old.vocab_size + 20 == len(theirs)
    assert new.tokens[: old.vocab_size] == old.tokens
    for text in [*documents(20, seed=1), FOREIGN, "kalibodus unKALIBODU [MASK]"]:
        assert theirs(text)["input_ids"] == new.encode(text).ids
    shown = [event.text for event in events if event.text.startswith("example  new word")]
    assert len(shown) == 2
    assert len(load_model(folder).state["encoder.embeddings.token.weight"]) == new.vocab_size
    assert len(new.ids(["kalibodu"])[0]) == 1


@pytest.mark.parametrize("padded", [0, 30])
def test_scores_of_old_tokens_do_not_change(home: Path, padded: int):
    """padded: rows of the initial model without a token."""
    config, state, old = load_model(home / "m")
    state = extended_state(state, old, old, old.vocab_size + padded)
    new, words = extend_vocabulary([FOREIGN] * 2, old, 2)
    larger = extended_state(state, old, new, new.vocab_size)
    size = max(new.vocab_size, old.vocab_size + padded)

    def scores(state: dict[str, Tensor], size: int) -> Tensor:
        network = PretrainingModel(replace(config, vocab_size=size), {"masked_lm": 1.0}).eval()
        network.load_state_dict({name: state[name] for name, _ in network.named_parameters()})
        network.double()
        store = write_text(home, old)
        batch: Batch = bits_batches(*store, old, old.template, length=32, windows=4)[0].batches[0]
        with torch.no_grad():
            return network.scores(batch)

    before, after = scores(state, old.vocab_size + padded), scores(larger, size)
    # In float64; a product with more columns may be computed in another order, which is seen on
    # AMD's processors.
    assert (before - after[:, : before.shape[1]])[:, : old.vocab_size].abs().max() <= 1e-13
    for name in ("encoder.embeddings.token.weight", "lm_head.bias"):
        for number, word in enumerate(words, old.vocab_size):
            rows = np.array([state[name][n].double().numpy() for n in word.pieces])
            np.testing.assert_allclose(larger[name][number].numpy(), rows.mean(0), atol=1e-7)


def write_text(home: Path, t: Tokenizer, folder: str = "shards") -> Any:
    store = write_shards(CorpusReader([home / "domain.txt"]), t, home / folder, workers=1)
    return store, np.arange(len(store.documents) - 1)


# --- bits per character


def log_softmax(x: Tensor) -> np.ndarray:
    return torch.log_softmax(x.double(), -1).numpy()


def test_masked_lm_against_transformers(home: Path):
    """One window at a time, from the text of the drawn words."""
    config, state, t = load_model(home / "m")
    network = PretrainingModel(config, {"masked_lm": 1.0})
    network.load_state_dict({name: state[name] for name, _ in network.named_parameters()})
    theirs = transformers.BertForMaskedLM.from_pretrained(home / "m").eval()
    store, every = write_text(home, t)
    found = bits_batches(store, every, t, t.template, length=32, windows=30)[0]
    bits, characters, words = 0.0, 0, 0
    for batch in found.batches:
        target, edges = batch.targets["masked_lm"], batch.layout.cu_seqlens.tolist()
        for a, b in pairwise(edges):
            inside = (target.positions >= a) & (target.positions < b)
            places, labels = target.positions[inside] - a, target.labels[inside]
            assert (batch.input_ids[a:b][places] == t.mask_id).all()
            whole = batch.input_ids[a:b].clone()
            whole[places] = labels
            starts = t.starts_word[whole.numpy()]
            for number, place in enumerate(places.tolist()):  # all pieces of a word, or none
                words += starts[place]
                assert starts[place] or places[number - 1] == place - 1
                assert starts[place + 1] or place + 1 in places
            with torch.no_grad():
                p = log_softmax(theirs(batch.input_ids[None, a:b]).logits[0, places])
            bits -= p[range(len(labels)), labels].sum() / math.log(2)
            characters += sum(len(t.tokens[n].removeprefix("##")) for n in labels.tolist())
    assert characters == found.characters
    assert words > 20
    assert bits_per_character(network, found) == pytest.approx(bits / characters, rel=2e-5)


@pytest.mark.parametrize("write", [write_gpt, write_gpt2])
def test_causal_lm_against_transformers(home: Path, tmp_path: Path, write: Any):
    """The tokenizer has a token for each byte. GPT has no token that ends a text here; GPT-2's is
    given."""
    theirs = write(tmp_path / "gpt")
    config, state, t = load_model(tmp_path / "gpt")
    network = PretrainingModel(config, {"causal_lm": 1.0})
    network.load_state_dict(state, strict=False)
    end = () if write is write_gpt else (t.vocab_size - 1,)
    store, every = write_text(home, t, "bytes")
    template = t.template._replace(prefix=(), suffix=end)
    found = bits_batches(store, every, t, template, length=40, windows=20, kind="causal_lm")[0]
    bits, characters = 0.0, 0
    for batch in found.batches:
        edges = batch.layout.cu_seqlens.tolist()
        labels = batch.targets["causal_lm"].labels
        positions = batch.targets["causal_lm"].positions
        for a, b in pairwise(edges):
            inside = (positions >= a) & (positions < b)
            with torch.no_grad():
                p = log_softmax(theirs(batch.input_ids[None, a:b]).logits[0, positions[inside] - a])
            bits -= p[range(len(p)), labels[inside]].sum() / math.log(2)
            characters += len("".join(t.decode(labels[inside].tolist()).split()))
            if end:
                assert batch.input_ids[a] == end[0]
                assert inside.sum() == b - a
    assert characters == found.characters > 300
    assert bits_per_character(network, found) == pytest.approx(bits / characters, rel=2e-5)


def test_both_vocabularies_read_the_same_windows(home: Path):
    """Words that begin with a new word get other pieces too, and the old ones for the initial
    model."""
    old = Tokenizer.load(home / "m")
    new, _ = extend_vocabulary([FOREIGN] * 2, old, 2)
    (home / "longer.txt").write_text(
        (home / "domain.txt").read_text() + "\n\nkalibodus bo sunomipema ka " * 9
    )
    store = write_shards(CorpusReader([home / "longer.txt"]), new, home / "longer", workers=1)
    every = np.arange(len(store.documents) - 1)
    cut = {"length": 24, "windows": 1000}
    ours, theirs = bits_batches(store, every, new, new.template, **cut, read_by=old)
    assert ours.characters == theirs.characters

    def texts(found: Any, t: Tokenizer) -> list[tuple[str, str]]:
        rows = []
        for batch in found.batches:
            labels, positions = (
                batch.targets["masked_lm"].labels,
                batch.targets["masked_lm"].positions,
            )
            whole = batch.input_ids.clone()
            whole[positions] = labels
            for a, b in pairwise(batch.layout.cu_seqlens.tolist()):
                inside = (positions >= a) & (positions < b)
                rows.append(
                    (
                        t.decode(whole[a:b].tolist()),
                        "".join(t.tokens[n] for n in labels[inside].tolist()),
                    )
                )
                if t is old:
                    assert b - a <= 24
                    assert t.encode(rows[-1][0]).ids == whole[a:b].tolist()
        return sorted((text, predicted.replace("##", "")) for text, predicted in rows)

    assert texts(ours, new) == texts(theirs, old)
    assert any(max(batch.input_ids) >= old.vocab_size for batch in ours.batches)


def test_before_and_after(home: Path, adapted: tuple[Path, list[Event]]):
    """Before is the initial model with its own tokenizer on the same words; a resumed run has the
    same figures."""
    folder, events = adapted
    lines = [line["evaluation"] for line in metrics(folder) if "evaluation" in line]
    before, after = lines[0]["bits_per_character_before"], lines[-1]["bits_per_character"]
    assert all("bits_per_character_before" not in line for line in lines[1:])
    assert lines[0]["bits_per_character"] != before
    assert after < before
    assert events[-1].fields["bits_per_character"] == {"before": before, "after": after}
    text = (
        f"bits per character on held-out text: {after:.3f} after, {before:.3f} before "
        f"({after / before - 1:+.1%})"
    )
    assert text in events[-1].text.splitlines()
    page = (folder / "report.html").read_text()
    assert f"B{text[1:]}" in page
    assert "Bits per character" in page


def test_the_same_vocabulary(home: Path):
    """Before the first step nothing differs from the initial model."""
    run(home / "domain.txt", home / "plain", recipe=str(home / "r.toml"), init=str(home / "m"))
    first = next(line["evaluation"] for line in metrics(home / "plain") if "evaluation" in line)
    assert first["bits_per_character_before"] == first["bits_per_character"]


def test_a_resumed_run_needs_no_initial_model(home: Path, tmp_path: Path):
    options = {"recipe": str(home / "r.toml"), "init": str(tmp_path / "m"), "extend_vocabulary": 20}
    shutil.copytree(home / "m", tmp_path / "m")
    run(home / "domain.txt", tmp_path / "whole", **options)
    for event in bertworks.pretrain(
        [home / "domain.txt"], tmp_path / "cut", workers=1, device="cpu", **options
    ):
        if event.kind == "saved":
            break
    shutil.rmtree(tmp_path / "m")
    run(home / "domain.txt", tmp_path / "cut", **options)
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


def test_evaluate_mlm(home: Path):
    """Two vocabularies on one text: the same words, so the same characters."""
    result = bertworks.evaluate_mlm(home / "m", [home / "domain.txt"], device="cpu")
    other = bertworks.evaluate_mlm(home / "plain", [home / "domain.txt"], device="cpu")
    run(
        home / "domain.txt",
        home / "scratch",
        recipe=str(home / "r.toml"),
        overrides="vocabulary.size=250",
    )
    scratch = bertworks.evaluate_mlm(home / "scratch", [home / "domain.txt"], device="cpu")
    assert result["characters"] == other["characters"] == scratch["characters"] > 300
    assert result["masked_tokens"] != scratch["masked_tokens"]
    assert other["bits_per_character"] < result["bits_per_character"]
