"""A ModernBERT through the commands: every task, sentence encoders, masks, a server, the tokenizer,
and what is refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file

import bertworks as bw
from bertworks.checkpoints.model_folder import ModelFolder, load_model
from bertworks.errors import BertworksError
from bertworks.runs.finetune import finetune_events, make_finetune_request
from bertworks.runs.pretrain import pretrain
from bertworks.serve.endpoints import Abilities
from bertworks.text.tokenizer import Tokenizer
from tests.checkpoints.test_sentence_transformers import library
from tests.scenarios.test_families_end_to_end import (
    MODERNBERT_NAMES,
    TEXTS,
    modernbert_tokenizer,
    write_modernbert,
)
from tests.support import served
from tests.support.fine import write_examples
from tests.support.tiny import write_corpus

CLASSES = {
    "classification": "ModernBertForSequenceClassification",
    "multilabel": "ModernBertForSequenceClassification",
    "regression": "ModernBertForSequenceClassification",
    "tagging": "ModernBertForTokenClassification",
    "spans": "ModernBertForTokenClassification",
    "qa": "ModernBertForQuestionAnswering",
    "choice": "ModernBertForMultipleChoice",
}
QUICK = ("classification",)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("modernbert") / "modernbert"
    write_modernbert(path)
    return path


@pytest.mark.parametrize(
    "task",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CLASSES],
)
def test_every_task_is_fine_tuned_and_opens_in_transformers(
    task: str, folder: Path, tmp_path: Path
):
    """It begins with the transform of masked tokens; the saved folder is read again here, and there
    without a missing or a new weight."""
    data, output = write_examples(tmp_path, task), tmp_path / "out"
    settings = ("epochs=1", "batch_size=16", "optimizer.learning_rate=1e-9", "max_length=64")
    request = make_finetune_request(data, model=folder, overrides=settings, method="full")
    events = [*finetune_events(output, request, device="cpu")]
    assert not any("starts at random" in str(event.text) for event in events)
    state, initial = load_model(output).state, load_model(folder).state
    for name in ("dense.weight", "norm.weight"):
        assert (state[f"transform.{name}"] - initial[f"lm_head.{name}"]).abs().max() < 1e-5
    kind = CLASSES[task]
    _, info = getattr(transformers, kind).from_pretrained(output, output_loading_info=True)
    assert not any(info.values()), info
    assert json.loads((output / "config.json").read_text())["architectures"] == [kind]
    again = tmp_path / "again"
    request = make_finetune_request(data, model=output, overrides=settings, method="full")
    *_, done = finetune_events(again, request, device="cpu")
    assert done.kind == "done"
    scored = tmp_path / "scored.jsonl"
    *_, reported = bw.predict_file(output, data, scored, device="cpu")
    assert reported.fields["rows"] == len(scored.read_text().splitlines()) > 0


def test_joint_tasks_share_the_transform(folder: Path, tmp_path: Path):
    data = [str(write_examples(tmp_path, task)) for task in ("classification", "tagging")]
    settings = ("epochs=1", "batch_size=16", "max_length=64")
    bw.finetune_joint(data, model=folder, output=tmp_path / "out", overrides=settings, device="cpu")
    paths = sorted((tmp_path / "out" / "tasks").iterdir())
    states = [load_model(path).state for path in paths]
    initial = load_model(folder).state["lm_head.dense.weight"]
    first, second = (state["transform.dense.weight"] for state in states)
    assert torch.equal(first, second)
    assert not torch.equal(first, initial)
    for path in paths:
        (name,) = json.loads((path / "config.json").read_text())["architectures"]
        _, info = getattr(transformers, name).from_pretrained(path, output_loading_info=True)
        assert not any(info.values()), info


# Settings of published folders, besides those that depend on the size.
OLDER = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "classifier_activation": "gelu",
    "classifier_bias": False,
    "classifier_dropout": 0.0,
    "classifier_pooling": "mean",
    "decoder_bias": True,
    "deterministic_flash_attn": False,
    "embedding_dropout": 0.0,
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 160000.0,
    "gradient_checkpointing": False,
    "hidden_activation": "gelu",
    "initializer_cutoff_factor": 2.0,
    "initializer_range": 0.02,
    "layer_norm_eps": 1e-05,
    "local_rope_theta": 10000.0,
    "mlp_bias": False,
    "mlp_dropout": 0.0,
    "model_type": "modernbert",
    "norm_bias": False,
    "norm_eps": 1e-05,
    "position_embedding_type": "absolute",
    "reference_compile": False,
    "repad_logits_with_grad": False,
    "sparse_pred_ignore_index": -100,
    "sparse_prediction": False,
    "torch_dtype": "float32",
    "transformers_version": "4.48.0",
}
OF_SIZE = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
OF_SIZE += ("num_attention_heads", "max_position_embeddings", "local_attention", "architectures")


def as_published(folder: Path) -> None:
    """Write the config.json of a folder in the layout of transformers 4."""
    path = folder / "config.json"
    settings = json.loads(path.read_text())
    assert "layer_types" in settings
    kept = {name: value for name, value in settings.items() if name in OF_SIZE}
    ids = {name: value for name, value in settings.items() if name.endswith("token_id")}
    path.write_text(json.dumps(OLDER | kept | ids))


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_sentence_encoders_have_the_vectors_of_their_library(
    pooling: str, folder: Path, tmp_path: Path
):
    """A body alone: names without a prefix, 1_Pooling decides, whatever classifier_pooling says."""
    models = library(".models")
    theirs = tmp_path / "theirs"
    body = models.Transformer(str(folder), max_seq_length=20)
    modules = [body, models.Pooling(24, pooling), models.Normalize()]
    prompts = {"query": "search_query: ", "document": "search_document: "}
    model = library().SentenceTransformer(modules=modules, device="cpu", prompts=prompts)
    model.save(str(theirs))
    names = load_file(theirs / "model.safetensors").keys()
    assert "layers.0.attn.Wqkv.weight" in names
    as_published(theirs)
    texts = [*TEXTS, "", "a  b\t c", "a very long text " * 20]
    expected = model.encode(texts)
    found = np.asarray(bw.embed(theirs, texts, device="cpu", precision="fp32"))
    np.testing.assert_allclose(found, expected, atol=1e-3)
    queries = bw.load(theirs, device="cpu").embed(texts[:3], prompt="search_query: ")
    np.testing.assert_allclose(queries, model.encode(texts[:3], prompt_name="query"), atol=1e-3)
    [*_, done] = bw.convert(theirs, tmp_path / "ours")
    assert done.kind == "done"
    again = library().SentenceTransformer(str(tmp_path / "ours"), device="cpu")
    np.testing.assert_allclose(again.encode(texts), expected, atol=1e-5)


def test_prompts_that_only_the_card_shows_are_named(folder: Path, tmp_path: Path):
    models = library(".models")
    modules = [models.Transformer(str(folder)), models.Pooling(24, "mean")]
    path = tmp_path / "theirs"
    library().SentenceTransformer(modules=modules, device="cpu").save(str(path))
    card = "```\nmodel.encode(['search_query: What is TSNE?', \"search_document: It\"])\n```"
    (path / "README.md").write_text(card)
    events = [*bw.embed_file(path, ["a b"], tmp_path / "v.npy", device="cpu")]
    (note,) = (event.text for event in events if "model card" in str(event.text))
    assert note.startswith('the model card has texts begin with "search_query: " or "search_docu')
    (path / "README.md").write_text("query: no quotes")
    events = [*bw.embed_file(path, ["a b"], tmp_path / "w.npy", device="cpu")]
    assert not any("model card" in str(event.text) for event in events)


def test_the_space_before_a_mask_is_its_own(folder: Path):
    model = bw.load(folder, device="cpu")
    t = Tokenizer.load(folder)
    texts = ["a [MASK] with Anna", "a[MASK] with Anna", "a [MASK]with Anna"]
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    assert [t.encode(text).ids for text in texts] == theirs(texts)["input_ids"]
    network = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    fillings = model.fill(texts, k=3)
    for text, (answer,) in zip(texts, fillings, strict=True):
        inputs = theirs(text, return_tensors="pt")
        with torch.no_grad():
            logits = network(**inputs).logits[0][inputs["input_ids"][0] == t.mask_id]
        # rows that no token has are never predicted
        best = logits.softmax(-1)[0, : t.vocab_size].topk(3)
        assert [filling["token"] for filling in answer] == best.indices.tolist()
        assert [filling["score"] for filling in answer] == pytest.approx(
            best.values.tolist(), abs=1e-5
        )
    assert fillings[0][0][0]["text"].startswith("a ")


SMALL = [
    "encoder.hidden_size=32",
    "encoder.intermediate_size=48",
    "encoder.num_hidden_layers=3",
    "encoder.num_attention_heads=2",
    "encoder.local_attention=8",
    "vocabulary.size=400",
    "train.phases.0.num_steps=6",
    "train.phases.0.batch_size=8",
    "train.phases.0.sequence_length=32",
]


def test_one_from_text_is_that_of_transformers(tmp_path: Path):
    """Masks are filled with the same tokens there."""
    text = write_corpus(tmp_path / "text.jsonl")
    options: dict[str, Any] = {"recipe": "modernbert-small", "workers": 1, "device": "cpu"}
    list(pretrain(text, tmp_path / "out", overrides=SMALL, **options))
    kind = transformers.ModernBertForMaskedLM
    theirs, info = kind.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(info.values()), info
    t = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    prompt = "the [MASK] of a king"
    inputs = t(prompt, return_tensors="pt")
    assert "token_type_ids" not in inputs
    assert t.convert_ids_to_tokens(inputs["input_ids"][0])[0] == "[CLS]"
    with torch.no_grad():
        logits = theirs(**inputs).logits[0][inputs["input_ids"][0] == t.mask_token_id]
    best = logits.softmax(-1)[0].topk(5)
    ((fillings,),) = bw.load(tmp_path / "out", device="cpu").fill([prompt])
    assert [filling["token"] for filling in fillings] == best.indices.tolist()
    assert [filling["score"] for filling in fillings] == pytest.approx(
        best.values.tolist(), abs=1e-5
    )


ODD_LINES = ["a  b", "\ta\t\tb", "cafe\u0301 naïve", "x [MASK]  y", "a [CLS] b", " ", "", "a" * 300]
ODD_LINES += [" " * n + "x" for n in range(30)] + ["192 |||IP_ADDRESS||| 4", "日本語 😀", "\u00a0a"]


def test_tokens_are_those_of_the_library(tmp_path: Path):
    """Runs of spaces, tabs, decomposed accents and the names of special tokens, in 20,000 lines."""
    generator = np.random.default_rng(0)
    pieces = [
        *"abcdefgh",
        " ",
        "  ",
        "   ",
        "\t",
        "e\u0301",
        "é",
        "[MASK]",
        "|||IP_ADDRESS|||",
        "1",
    ]
    lines = ["".join(generator.choice(pieces, 12)) for _ in range(20_000)] + ODD_LINES
    t = modernbert_tokenizer(lines[:2000], 400)
    t.save(str(tmp_path / "tokenizer.json"))
    names = {f"{name.lower()}_token": f"[{name}]" for name in (*MODERNBERT_NAMES, "MASK")}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 8192, **names}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    ours = Tokenizer.load(tmp_path)
    assert ours.model_max_length == 8192
    oracle = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    expected = [encoding.ids for encoding in oracle.encode_batch(lines)]
    assert [ours.encode(line).ids for line in lines] == expected
    pair = oracle.encode("a b", "c d")
    assert ours.encode("a b", "c d").ids == pair.ids
    ours.save(tmp_path / "saved")
    again = tokenizers.Tokenizer.from_file(str(tmp_path / "saved" / "tokenizer.json"))
    assert [encoding.ids for encoding in again.encode_batch(lines[-40:])] == expected[-40:]


def test_a_server_has_its_abilities(folder: Path):
    abilities = Abilities(folder, device="cpu", precision="fp32")
    assert {"embed", "fill"} <= set(abilities.endpoints)
    assert abilities.info["mask_token"] == "[MASK]"
    with served.process(str(folder), "--precision", "fp32") as (_, address):
        texts = [TEXTS[0], TEXTS[1] * 40]  # the second one is longer than the local attention
        body = {"inputs": texts, "normalize": False}
        answer = httpx.post(f"{address}embed", json=body, timeout=60)
        filled = httpx.post(f"{address}fill", json={"inputs": "a [MASK] b"}, timeout=60)
    assert (answer.status_code, filled.status_code) == (200, 200)
    np.testing.assert_allclose(
        np.asarray(answer.json()),
        np.asarray(bw.embed(folder, texts, device="cpu", precision="fp32")),
        atol=1e-5,
    )
    assert filled.json()


@pytest.mark.parametrize("encoder", [False, True])
def test_an_exported_file_computes_the_same_and_says_what_memory_it_needs(
    encoder: bool, folder: Path, tmp_path: Path
):
    pytest.importorskip("onnxruntime")
    events = [*bw.export(folder, tmp_path / "onnx", encoder=encoder)]
    assert events[-1].fields["largest_difference"] < 1e-4
    assert any("grows with the square of the length" in str(event.text) for event in events)


@pytest.mark.slow
def test_texts_of_one_token_and_of_a_million_words(folder: Path):
    texts = ["a", "", " ", "word " * 1_000_000, "x"]
    vectors = np.asarray(bw.embed(folder, texts, device="cpu", precision="fp32"))
    assert np.isfinite(vectors).all()
    cut = np.asarray(bw.embed(folder, ["word " * 100], device="cpu", precision="fp32"))
    np.testing.assert_allclose(vectors[3], cut[0], atol=1e-5)


def test_positions_beyond_the_trained_ones_are_refused(folder: Path, tmp_path: Path):
    data = write_examples(tmp_path, "classification")
    request = make_finetune_request(data, model=folder, overrides=("max_length=65",))
    with pytest.raises(BertworksError, match="max_length is 65, but the model reads at most 64"):
        list(finetune_events(tmp_path / "out", request, device="cpu"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "rope_scaling is .*: only null"),
        ({"model_type": "modernbert-decoder"}, "the family 'modernbert-decoder' is not supported"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings is False"),
        ({"norm_bias": True}, "incomplete: .*norm.bias"),
        ({"num_hidden_layers": 3, "layer_types": None}, r"incomplete: .*layers\.2"),
    ],
)
def test_folders_without_support_are_refused(
    changes: dict[str, Any], message: str, folder: Path, tmp_path: Path
):
    path = tmp_path / "copy"
    shutil.copytree(folder, path)
    settings = json.loads((path / "config.json").read_text()) | changes
    (path / "config.json").write_text(json.dumps(settings))
    with pytest.raises(BertworksError, match=message):
        load_model(path)


def test_a_tensor_of_another_network_is_refused(folder: Path, tmp_path: Path):
    path = tmp_path / "copy"
    shutil.copytree(folder, path)
    tensors = load_file(path / "model.safetensors")
    tensors["model.layers.0.attn_norm.weight"] = torch.ones(24)  # the first layer has none
    save_file(tensors, path / "model.safetensors")
    with pytest.raises(BertworksError, match=r"layers\.0\.attn_norm\.weight: no place for this"):
        ModelFolder(path).load()
