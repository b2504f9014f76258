"""A DeBERTa through the commands: every task, vectors, a server, export, saving back, and what is
refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import bertworks as bw
from bertworks.checkpoints.model_folder import load_model
from bertworks.checkpoints.resolve import resolve_model
from bertworks.errors import BertworksError, UsageError
from bertworks.inference.masked_lm import Filler, score
from bertworks.runs.finetune import finetune_events, make_finetune_request
from bertworks.serve.endpoints import Abilities
from bertworks.text.tokenizer import Tokenizer
from tests.checkpoints.test_sentence_transformers import library
from tests.scenarios.test_deberta import V3
from tests.support.fine import write_examples
from tests.text.test_deberta_tokenizer import PIECES
from tests.text.test_tokenizer_folder import LINES, write_sentencepiece

CLASSES = {
    "classification": "DebertaV2ForSequenceClassification",
    "multilabel": "DebertaV2ForSequenceClassification",
    "regression": "DebertaV2ForSequenceClassification",
    "tagging": "DebertaV2ForTokenClassification",
    "spans": "DebertaV2ForTokenClassification",
    "qa": "DebertaV2ForQuestionAnswering",
    "choice": "DebertaV2ForMultipleChoice",
}
QUICK = ("tagging",)  # the other heads are alike
TEXTS = ["a good film with Anna", "the dogs", "return the length of a list", "x"]


def write_deberta(folder: Path) -> None:
    """A folder as published, in safetensors: spm.model without a tokenizer.json, no architectures,
    the heads of pre-training, and rows of the vocabulary that no token has."""
    write_sentencepiece(folder, None, LINES, "spm.model", vocab_size=500, **PIECES)
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false, "vocab_type": "spm"}')
    config = transformers.DebertaV2Config(
        vocab_size=540,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=40,
        max_position_embeddings=64,
        legacy=False,
        **V3 | {"position_buckets": 16},
    )
    torch.manual_seed(0)
    network = transformers.DebertaV2ForMaskedLM(config)
    for name, p in network.named_parameters():
        p.data.normal_(1.0 if "LayerNorm.weight" in name else 0.0, 0.1)
    tensors = {name: value.clone() for name, value in network.state_dict().items()}
    tensors["deberta.embeddings.position_embeddings.weight"] = torch.zeros(64, 24)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    settings = {"model_type": "deberta-v2"} | V3 | {"position_buckets": 16}
    for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"):
        settings[name] = getattr(config, name)
    settings |= {"intermediate_size": 40, "max_position_embeddings": 64, "pad_token_id": 0}
    settings |= {"pooler_hidden_size": 24, "pooler_dropout": 0, "pooler_hidden_act": "gelu"}
    (folder / "config.json").write_text(json.dumps(settings))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("deberta") / "deberta"
    write_deberta(path)
    return path


def test_vectors_are_means_of_the_states_of_transformers(folder: Path):
    model = bw.load(folder, device="cpu")
    assert model.can == ("embed", "explain")
    t = Tokenizer.load(folder)
    theirs = transformers.DebertaV2Model.from_pretrained(folder).eval()
    found = np.asarray(bw.embed(folder, TEXTS, device="cpu", precision="fp32"))
    for text, vector in zip(TEXTS, found, strict=True):
        with torch.no_grad():
            mean = theirs(torch.tensor([t.encode(text).ids])).last_hidden_state[0].mean(0)
        np.testing.assert_allclose(vector, mean, atol=1e-5)


@pytest.mark.parametrize(
    "task",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CLASSES],
)
def test_every_task_is_fine_tuned_and_opens_in_transformers(
    task: str, folder: Path, tmp_path: Path
):
    """The saved folder is read again here, and there without a missing or a new weight, with the
    same tokens."""
    data = write_examples(tmp_path, task)
    output = tmp_path / "out"
    settings = ("epochs=1", "batch_size=16", "max_length=64")
    request = make_finetune_request(data, model=folder, overrides=settings, method="full")
    *_, done = finetune_events(output, request, device="cpu")
    assert done.kind == "done"
    state, initial = load_model(output).state, load_model(folder).state
    table = "encoder.distances.table.weight"
    assert not torch.equal(state[table], initial[table])
    kind = CLASSES[task]
    _, info = getattr(transformers, kind).from_pretrained(output, output_loading_info=True)
    assert not any(info.values()), info
    assert json.loads((output / "config.json").read_text())["architectures"] == [kind]
    theirs = transformers.AutoTokenizer.from_pretrained(output)
    assert theirs("ﬁne  film")["input_ids"] == Tokenizer.load(folder).encode("ﬁne  film").ids
    again = tmp_path / "again"
    request = make_finetune_request(data, model=output, overrides=settings, method="full")
    *_, done = finetune_events(again, request, device="cpu")
    assert done.kind == "done"
    scored = tmp_path / "scored.jsonl"
    *_, reported = bw.predict_file(output, data, scored, device="cpu")
    assert reported.fields["rows"] == len(scored.read_text().splitlines()) > 0


def test_probabilities_are_those_of_transformers(folder: Path, tmp_path: Path):
    data = write_examples(tmp_path, "classification")
    bw.finetune(data, model=folder, output=tmp_path / "out", epochs=1, method="full", device="cpu")
    model = bw.load(tmp_path / "out", device="cpu", precision="fp32")
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    t = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    with torch.no_grad():
        logits = theirs.eval()(**t(TEXTS, padding=True, return_tensors="pt")).logits
    for answer, row in zip(
        model.predict(TEXTS, probabilities=True), logits.softmax(-1).tolist(), strict=True
    ):
        expected = dict(zip(theirs.config.id2label.values(), row, strict=True))
        assert answer["scores"] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("task", "method", "recipe"),
    [
        pytest.param("classification", "frozen", "stable", marks=pytest.mark.slow),
        pytest.param("classification", "contrastive", "stable", marks=pytest.mark.slow),
        pytest.param("tagging", "full", "feature_based", marks=pytest.mark.slow),
        ("classification", "full", "deberta"),
    ],
)
def test_other_methods_and_recipes(
    task: str, method: str, recipe: str, folder: Path, tmp_path: Path
):
    data = write_examples(tmp_path, task)
    settings: tuple[str, ...] = ("max_length=64",)
    if method != "frozen":
        settings += ("epochs=1",)
    if recipe == "feature_based":
        settings += ("lstm_units=8",)
    request = make_finetune_request(
        data, model=folder, overrides=settings, method=method, recipe=recipe
    )
    *_, done = finetune_events(tmp_path / "out", request, device="cpu")
    assert done.kind == "done"
    scored = tmp_path / "scored.jsonl"
    *_, reported = bw.predict_file(tmp_path / "out", data, scored, device="cpu")
    assert reported.fields["rows"] > 0


def test_joint_tasks_share_the_encoder(folder: Path, tmp_path: Path):
    data = [str(write_examples(tmp_path, task)) for task in ("classification", "tagging")]
    settings = ("epochs=1", "batch_size=16", "max_length=64")
    bw.finetune_joint(data, model=folder, output=tmp_path / "out", overrides=settings, device="cpu")
    for path in sorted((tmp_path / "out" / "tasks").iterdir()):
        (name,) = json.loads((path / "config.json").read_text())["architectures"]
        _, info = getattr(transformers, name).from_pretrained(path, output_loading_info=True)
        assert not any(info.values()), info


def test_distances_have_no_table_of_places(folder: Path, tmp_path: Path):
    with pytest.raises(UsageError, match="are distances of two tokens, so it has no table"):
        list(bw.convert(folder, tmp_path / "out", positions=128))


def test_longer_texts_than_trained_are_read_with_a_note(folder: Path, tmp_path: Path):
    """And the saved folder computes the same in transformers, which takes distances from the length
    of the model unless they are written."""
    data = write_examples(tmp_path, "classification")
    settings = ("epochs=1", "batch_size=16", "max_length=100")
    request = make_finetune_request(data, model=folder, overrides=settings, method="full")
    events = [*finetune_events(tmp_path / "out", request, device="cpu")]
    notes = [str(event.text) for event in events]
    assert any(note.startswith("max_length is 100, and") for note in notes)
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (written["max_position_embeddings"], written["max_relative_positions"]) == (100, 64)
    model = bw.load(tmp_path / "out", device="cpu", precision="fp32")
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    ids = Tokenizer.load(folder).encode("a film " * 200, max_length=100).ids
    with torch.no_grad():
        (row,) = theirs.eval()(torch.tensor([ids])).logits.softmax(-1).tolist()
    (answer,) = model.predict(["a film " * 200], probabilities=True)
    expected = dict(zip(theirs.config.id2label.values(), row, strict=True))
    assert answer["scores"] == pytest.approx(expected, abs=1e-4)
    request = make_finetune_request(data, model=folder, overrides=("max_length=4096",))
    with pytest.raises(UsageError, match="max_length is 4096: attention by distances needs"):
        list(finetune_events(tmp_path / "longer", request, device="cpu"))


def test_sentence_encoders_have_the_vectors_of_their_library(folder: Path, tmp_path: Path):
    models = library(".models")
    [*_, done] = bw.convert(folder, tmp_path / "body")
    assert done.kind == "done"
    body = models.Transformer(str(tmp_path / "body"), max_seq_length=20)
    model = library().SentenceTransformer(modules=[body, models.Pooling(24, "mean")], device="cpu")
    model.save(str(tmp_path / "theirs"))
    texts = [*TEXTS, "", "a  b\t c", "a very long text " * 20]
    found = np.asarray(bw.embed(tmp_path / "theirs", texts, device="cpu", precision="fp32"))
    np.testing.assert_allclose(found, model.encode(texts), atol=1e-4)


def test_a_converted_folder_says_what_is_left_out(folder: Path, tmp_path: Path):
    events = [*bw.convert(folder, tmp_path / "out")]
    notes = [str(event.text) for event in events]
    (note,) = [note for note in notes if "heads of pre-training" in note]
    assert "lm_predictions.lm_head.bias" in note
    assert any("embeddings.position_embeddings.weight" in note for note in notes)
    _, info = transformers.AutoModel.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(info.values()), info
    names = load_file(tmp_path / "out" / "model.safetensors").keys()
    assert "encoder.rel_embeddings.weight" in names


def test_words_are_not_predicted(folder: Path, tmp_path: Path):
    """Published files have a head for masked tokens, which is a remainder of another training."""
    (tmp_path / "text.txt").write_text("a film\n" * 50)
    texts = ["a [MASK] film"]
    commands: dict[str, Any] = {
        "fill": lambda: Filler(folder, device="cpu"),
        "score": lambda: list(score(folder, texts, device="cpu")),
        "generate": lambda: list(bw.generate(folder, texts, device="cpu")),
        "evaluate mlm": lambda: list(bw.evaluate_mlm(folder, tmp_path / "text.txt", device="cpu")),
    }
    for run in commands.values():
        with pytest.raises(BertworksError, match="this is a DeBERTa, which was trained to detect"):
            run()
    with pytest.raises(BertworksError, match="this model cannot fill: it has no masked LM head"):
        bw.load(folder, device="cpu").fill(texts)


def test_a_server_has_its_abilities(folder: Path):
    abilities = Abilities(folder, device="cpu", precision="fp32")
    assert "embed" in abilities.endpoints
    assert "fill" not in abilities.endpoints


@pytest.mark.parametrize("encoder", [False, True])
def test_an_exported_file_computes_the_same(encoder: bool, folder: Path, tmp_path: Path):
    pytest.importorskip("onnxruntime")
    source = folder
    if not encoder:
        data = write_examples(tmp_path, "classification")
        source = tmp_path / "out"
        bw.finetune(data, model=folder, output=source, epochs=1, method="full", device="cpu")
    events = [*bw.export(source, tmp_path / "onnx", encoder=encoder)]
    assert events[-1].fields["largest_difference"] < 1e-4


def test_attention_is_explained(folder: Path):
    explanation = bw.explain(folder, TEXTS[0], device="cpu")
    assert explanation is not None


@pytest.mark.parametrize("name", ["deberta-v3-base", "mdeberta-v3-base"])
def test_a_name_without_an_owner_gets_one(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BertworksError) as caught:
        resolve_model(name)
    assert caught.value.hint == f"did you mean microsoft/{name}?"


def test_the_first_deberta_is_not_supported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BertworksError, match="the family deberta is not supported yet"):
        resolve_model("deberta-base")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"conv_kernel_size": 3}, "conv_kernel_size is 3: only 0 is supported for deberta-v2"),
        ({"position_buckets": 8}, r"encoder\.rel_embeddings\.weight is .*\[16, 24\]"),
        ({"num_hidden_layers": 3}, r"incomplete: .*layer\.2"),
        ({"model_type": "deberta"}, "the family 'deberta' is not supported"),
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
    tensors["deberta.encoder.conv.conv.weight"] = torch.ones(24, 24, 3)
    save_file(tensors, path / "model.safetensors")
    with pytest.raises(BertworksError, match=r"encoder\.conv\.conv\.weight: no place for this"):
        load_model(path)
