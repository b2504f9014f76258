"""ELECTRA folders in use: detection of replaced tokens, explanations, evaluation, fine-tuning."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from sklearn.metrics import roc_auc_score

import bertworks
from bertworks.checkpoints.model_folder import ModelFolder
from bertworks.checkpoints.storage import read_tensors
from bertworks.errors import BertworksError, UsageError
from bertworks.inference.masked_lm import _windows, load_with_generator
from bertworks.metrics.classification import area_under_curve
from bertworks.models.config import PRESETS
from bertworks.runs.prepare import read_text
from bertworks.runs.pretrain import pretrain
from bertworks.runs.pretrain_job import held_out_batches, split_long_documents
from bertworks.tasks.heads import TaskModel
from bertworks.tasks.outputs import Classification
from bertworks.text.shards import write_shards
from bertworks.training.loop import make_optimizer
from bertworks.training.recipe import load_finetune_recipe
from tests.batching.test_sampling import every
from tests.support.tiny import documents, write_corpus, write_recipe
from tests.training.test_objectives import TINY, folder as folder


def test_detection_is_that_of_transformers(folder: Path):
    """Probabilities of all tokens; those of a text that is longer than the model are those of its
    windows."""
    model = bertworks.load(folder, device="cpu")
    assert model.can == ("embed", "explain", "detect")
    theirs = transformers.ElectraForPreTraining.from_pretrained(folder).eval()
    t = transformers.AutoTokenizer.from_pretrained(folder)
    assert len(t) == model.tokenizer.vocab_size
    texts = documents(3, seed=9)
    with torch.no_grad():
        for text, found in zip(texts, model.detect([text[:100] for text in texts]), strict=True):
            inputs = t(text[:100], return_tensors="pt")
            expected = torch.sigmoid(theirs(**inputs).logits[0])[1:-1]
            assert found["tokens"] == t.convert_ids_to_tokens(inputs["input_ids"][0])[1:-1]
            assert found["probabilities"] == pytest.approx(expected.tolist(), abs=2e-5)
            assert [text[a:b].lower() for a, b in found["offsets"]] == [
                x.removeprefix("##") for x in found["tokens"]
            ]
        (long,) = model.detect([" ".join(texts)])
        ids = t(" ".join(texts))["input_ids"][1:-1]
        assert len(ids) == len(long["tokens"]) > 3 * 62
        last = torch.tensor([[t.cls_token_id, *ids[-62:], t.sep_token_id]])
        expected = torch.sigmoid(theirs(last).logits[0])[1:-1]
        assert long["probabilities"][-10:] == pytest.approx(expected[-10:].tolist(), abs=2e-5)
        first = torch.tensor([[t.cls_token_id, *ids[:62], t.sep_token_id]])
        expected = torch.sigmoid(theirs(first).logits[0])[1:-1]
        assert long["probabilities"][:46] == pytest.approx(expected[:46].tolist(), abs=2e-5)


@pytest.mark.parametrize("length", [1, 9, 10, 11, 15, 16, 27, 100])
def test_windows_have_every_token_once_with_text_around_it(length: int, folder: Path):
    ids, room = np.arange(100, 100 + length), 10
    seen, t = [], bertworks.load(folder, device="cpu").tokenizer
    for example in _windows(ids, room, t):
        window, target = example.input_ids, example.target.positions
        seen += window[target].tolist()
        assert len(window) <= room + 2
        inner = target[(window[target] > 101) & (window[target] < 100 + length - 2)]
        assert length <= room or (inner.min(initial=99) >= 3 and inner.max(initial=0) <= room - 2)
    assert seen == ids.tolist()


def test_what_cannot_be_detected_is_refused(folder: Path):
    model = bertworks.load(folder, device="cpu")
    with pytest.raises(UsageError, match="text"):
        model.detect("a text")
    with pytest.raises(BertworksError, match="a text has no tokens"):
        model.detect(["a text", " "])
    with pytest.raises(UsageError, match="text 1 is 1: expected a string"):
        model.detect([1])
    with pytest.raises(
        BertworksError, match="cannot fill: it has no masked LM head; it can embed, explain, detect"
    ):
        model.fill(["a [MASK]"])
    with pytest.raises(
        BertworksError, match=r"no lm_head .*\n  hint: its generator has one: use .*generator"
    ):
        list(bertworks.fill(folder, ["a [MASK]"]))
    generator = bertworks.load(folder / "generator", device="cpu")
    assert generator.can == ("embed", "explain", "fill", "score")
    with pytest.raises(BertworksError, match="cannot detect: it has no head for replaced tokens"):
        generator.detect(["a text"])


def test_an_explanation_shows_the_probabilities_of_words(folder: Path):
    text = documents(1, seed=9)[0][:80]
    model = bertworks.load(folder, device="cpu")
    e, (found,) = model.explain(text), model.detect([text])
    assert e.replaced is not None
    assert e.replaced.max() == pytest.approx(max(found["probabilities"]), abs=2e-5)
    inside = [
        p for word, p in zip(e.words, e.replaced, strict=True) if word not in ("[CLS]", "[SEP]")
    ]
    assert e.answer[0][1] == f"{max(inside):.1%}"
    assert e.gradients is not None
    assert e.gradients.end == pytest.approx(np.log(max(inside) / (1 - max(inside))), abs=1e-4)
    assert "as a replaced word (log-odds)" in e.explained
    assert "Replaced words" in e.html()
    assert e.as_dict()["replaced"] == e.replaced.tolist()
    word = e.words[3]
    assert f"“{word}”" in model.explain(text, target=word).explained
    with pytest.raises(UsageError, match="the word 'nowhere' is not in the text"):
        model.explain(text, target="nowhere")


def test_the_evaluation_of_a_discriminator(folder: Path, tmp_path: Path):
    """Its figures against scikit-learn, on the same batches; a discriminator without its generator
    is refused."""
    held_out = write_corpus(tmp_path / "held-out.jsonl", 30, seed=4)
    figures = bertworks.evaluate_mlm(folder, [held_out], device="cpu", sequence_length=32)
    network, t = (
        load_with_generator(folder, ModelFolder(folder).config),
        ModelFolder(folder).tokenizer,
    )
    store = split_long_documents(
        write_shards(read_text([str(held_out)], None, "auto", None), t, tmp_path / "shards")
    )
    batches = held_out_batches(
        store,
        every(store),
        t,
        format="full_sentences",
        sequence_length=32,
        sequences=1 << 40,
        replaces=True,
    )
    scores, labels = [], []
    with torch.no_grad():
        for batch in batches:
            _, ids, replaced = network.eval().replace_tokens(batch)
            scores += network.replaced_token(
                network.encoder(ids, batch.layout, batch.token_type_ids)[-1]
            ).tolist()
            labels += replaced.tolist()
    assert figures["replaced_token_auc"] == pytest.approx(roc_auc_score(labels, scores), abs=1e-6)
    assert figures["replaced_tokens"] == pytest.approx(np.mean(labels))
    right = (np.array(scores) > 0) == np.array(labels)
    assert figures["replaced_token_accuracy"] == pytest.approx(right.mean(), abs=1e-6)
    assert 3 < figures["masked_lm_loss"] < 6
    alone = tmp_path / "alone"
    list(bertworks.convert(folder, alone))
    with pytest.raises(BertworksError, match="a discriminator alone cannot be evaluated"):
        bertworks.evaluate_mlm(alone, [held_out], device="cpu", sequence_length=32)


def test_the_area_under_the_curve_counts_ties_half():
    r = np.random.default_rng(0)
    for levels in (2, 5, 1000):
        scores, labels = r.integers(levels, size=200).astype(float), r.random(200) < 0.2
        above = scores[labels][:, None] - scores[~labels]
        assert area_under_curve(scores, labels) == pytest.approx(
            ((above > 0) + (above == 0) / 2).mean(), abs=1e-12
        )
    assert np.isnan(area_under_curve(np.ones(3), np.ones(3, bool)))


def test_a_training_continues_with_both_networks(folder: Path, tmp_path: Path):
    text, recipe = (
        write_corpus(tmp_path / "text.jsonl"),
        write_recipe(tmp_path / "recipe.toml", *TINY),
    )
    job = {
        "recipe": str(recipe),
        "device": "cpu",
        "workers": 1,
        "overrides": ["train.phases.0.num_steps=1"],
    }
    events = list(pretrain([text], tmp_path / "more", init=str(folder), **job))
    assert not any("initialized at random" in event.text for event in events)
    before, after = (
        read_tensors(f / "generator" / "model.safetensors") for f in (folder, tmp_path / "more")
    )
    assert all((before[name] - after[name]).abs().max() < 1e-2 for name in before)
    events = list(
        pretrain([text], tmp_path / "half", init=str(folder / "generator"), overwrite=True, **job)
    )
    assert any("has no generator" in event.text for event in events)


@pytest.mark.parametrize("task", ["classification", "tagging"])
def test_a_discriminator_is_fine_tuned(task: str, folder: Path, tmp_path: Path):
    """Its class is that of transformers, with the same probabilities."""
    texts = documents(24, seed=2)
    if task == "classification":
        rows = [{"text": text[:60], "label": "ab"[n % 2]} for n, text in enumerate(texts)]
    else:
        words = [text.split()[:6] for text in texts]
        rows = [{"words": six, "tags": ["X" if len(w) > 4 else "O" for w in six]} for six in words]
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {"overrides": ["epochs=1", "batch_size=8"], "device": "cpu", "method": "full"}
    model = bertworks.finetune(data, model=folder, output=tmp_path / "out", **settings)
    name = {"classification": "Sequence", "tagging": "Token"}[task]
    theirs = getattr(transformers, f"ElectraFor{name}Classification")
    read, info = theirs.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(info.values()), info
    if task == "classification":
        t = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
        (answer,) = model.predict([texts[0][:60]])
        with torch.no_grad():
            p = read.eval()(**t(texts[0][:60], return_tensors="pt")).logits[0].softmax(-1)
        assert answer["score"] == pytest.approx(
            p[read.config.label2id[answer["label"]]].item(), abs=1e-3
        )


def test_the_recipe_of_fine_tuning(folder: Path, tmp_path: Path):
    """google-research/electra: the rate of the last block is that of the head times 0.8 squared."""
    recipe = load_finetune_recipe("electra")
    model = TaskModel(PRESETS["electra-small"], Classification(outputs=2))
    optimizer = make_optimizer(model, recipe.optimizer)
    names = {id(p): name for name, p in model.named_parameters()}
    factors = {
        names[id(p)]: group["factor"] for group in optimizer.param_groups for p in group["params"]
    }
    assert factors["classifier.weight"] == factors["pooler.dense.weight"] == 1
    assert factors["encoder.blocks.11.attention.qkv.weight"] == pytest.approx(0.8**2)
    assert factors["encoder.blocks.0.attention.qkv.weight"] == pytest.approx(0.8**13)
    assert factors["encoder.embeddings.token.weight"] == pytest.approx(0.8**14)
    assert factors["encoder.embeddings.projection.weight"] == pytest.approx(0.8**14)
    assert (recipe.optimizer.learning_rate, recipe.optimizer.weight_decay, recipe.epochs) == (
        1e-4,
        0.01,
        3,
    )
    data = tmp_path / "data.jsonl"
    rows = [
        {"text": text[:60], "label": "ab"[n % 2]} for n, text in enumerate(documents(24, seed=2))
    ]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    output = tmp_path / "out"
    bertworks.finetune(
        data, model=folder, output=output, recipe="electra", overrides=["epochs=1"], device="cpu"
    )
    assert "layer_decay_offset = 1" in (output / "recipe.toml").read_text()
