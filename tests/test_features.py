"""The feature-based approach: a frozen encoder, an LSTM over its last four layers; from the tensors to the folder."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from fine import PEOPLE, tokenizer, write_conll, write_reviews, write_spans

from bertworks.batching.batch import Batch, collate
from bertworks.batching.masking import Example
from bertworks.batching.sampling import Target
from bertworks.checkpoints.model_folder import ModelFolder, load_model, save_model
from bertworks.checkpoints.storage import read_tensors, write_tensors
from bertworks.errors import BertworksError, UsageError
from bertworks.events import Event
from bertworks.inference.predict import predict_file
from bertworks.inference.predictor import Predictor
from bertworks.models import packed_linear
from bertworks.models.config import EncoderConfig
from bertworks.models.encoder import BiLSTM, Encoder, num_lstm_parameters
from bertworks.models.layout import Layout
from bertworks.runs.finetune import finetune_events, make_finetune_request
from bertworks.training import task_heads
from bertworks.training.loop import train
from bertworks.training.objectives import PretrainingModel
from bertworks.training.optimization import make_optimizer
from bertworks.training.recipe import load_finetune_recipe
from bertworks.training.task_heads import Classification, TaskModel

CONFIG = EncoderConfig(vocab_size=90, hidden_size=16, num_hidden_layers=5, num_attention_heads=2,
                       max_position_embeddings=40, initializer_range=0.2)  # fmt: skip
LENGTHS = [7, 19, 3, 12, 1]
FAST = ("lstm_units=24", "optimizer.learning_rate=1e-2", "batch_size=8", "epochs=8", "precision=fp32")


def examples(seed: int = 0) -> list[list[Example]]:
    draw = np.random.default_rng(seed)
    found = []
    for n in LENGTHS:
        asked = np.arange(0, n, 2)
        found.append(
            [
                Example(
                    draw.integers(5, 90, n), np.zeros(n, int), {"task": Target(asked, draw.integers(0, 3, len(asked)))}
                )
            ]
        )
    return found


def batch_of(units: list[list[Example]]) -> Batch:
    return collate([one for unit in units for one in unit])


def model(units: int = 8, config: EncoderConfig = CONFIG) -> TaskModel:
    torch.manual_seed(0)
    return TaskModel(config, Classification(outputs=3, pooled=False), lstm_units=units)


# --- the network ------------------------------------------------------------------------------------------------------


def test_packed_is_one_by_one_and_no_padding_is_read() -> None:
    torch.manual_seed(0)
    network = BiLSTM(6, 5)
    rows = [torch.randn(n, 6) for n in LENGTHS]
    found = network(torch.cat(rows), Layout.of(LENGTHS))
    assert found.shape == (sum(LENGTHS), 10)
    alone = torch.cat([network.lstm(row[None])[0][0] for row in rows])
    torch.testing.assert_close(found, alone, rtol=1e-5, atol=1e-6)
    assert num_lstm_parameters(6, 5) == sum(p.numel() for p in network.parameters())


def test_features_are_the_last_four_layers_without_dropout() -> None:
    encoder = Encoder(CONFIG).train()
    batch = batch_of(examples())
    found = task_heads.FrozenFeatures(encoder)(batch)
    assert encoder.training
    assert found.shape == (sum(LENGTHS), task_heads.features_size(CONFIG, "concat-last-four")) == (42, 64)
    encoder.eval()
    states = encoder(batch.input_ids, batch.layout, batch.token_type_ids)
    torch.testing.assert_close(found, torch.cat([states[n] for n in (2, 3, 4, 5)], -1))
    assert not found.requires_grad
    assert task_heads.features_size(replace(CONFIG, num_hidden_layers=2), "concat-last-four") == 32


def test_what_is_remembered_is_what_would_be_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    units, strangers = examples(), examples(seed=1)
    asking = task_heads.FrozenFeatures(Encoder(CONFIG))
    alone = [asking(batch_of([unit])) for unit in units]
    assert asking.remember(units)
    computed = []
    compute = asking.encoder.forward
    monkeypatch.setattr(asking.encoder, "forward", lambda *x: computed.append(len(x[0])) or compute(*x))
    for order in ([0, 1, 2, 3, 4], [3, 1], [2]):
        found = asking(batch_of([units[n] for n in order]))
        torch.testing.assert_close(found, torch.cat([alone[n] for n in order]), rtol=1e-4, atol=1e-5)
    assert computed == [sum(LENGTHS)]  # once
    mixed = asking(batch_of([units[0], strangers[1]]))
    torch.testing.assert_close(mixed[: LENGTHS[0]], alone[0], rtol=1e-4, atol=1e-5)
    monkeypatch.setattr(task_heads, "MAX_FEATURE_BYTES", 4 * 64 * (sum(LENGTHS) - 1))
    assert not task_heads.FrozenFeatures(Encoder(CONFIG)).remember(units)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_only_what_is_above_the_encoder_is_learned(precision: str) -> None:
    network, units = model(), examples()
    before = {name: p.detach().clone() for name, p in network.named_parameters()}
    c = replace(load_finetune_recipe("feature_based").optimizer, warmup=0.0, learning_rate=1e-2)
    steps = list(train(network, make_optimizer(network, c), lambda _: [batch_of(units)], c, 30, precision=precision))
    assert steps[-1].read()["task"].loss < 0.5 * steps[0].read()["task"].loss
    for name, p in network.named_parameters():
        assert torch.equal(p, before[name]) == name.startswith("encoder."), name


# --- a whole fine-tuning ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pre-trained model, with dropout."""
    t = tokenizer()
    config = EncoderConfig(vocab_size=t.vocab_size, hidden_size=32, num_hidden_layers=4, num_attention_heads=2,
                           max_position_embeddings=64, initializer_range=0.1)  # fmt: skip
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("model") / "tiny"
    save_model(folder, PretrainingModel(config).state_dict(), config, t, card="tiny")
    return folder


def run(
    data: Path, output: Path, start: Path, *, overrides: tuple[str, ...] = FAST, recipe: str = "feature_based"
) -> Event:
    request = make_finetune_request(data, model=start, recipe=recipe, overrides=overrides, validation="split")
    *_, last = finetune_events(output, request, device="cpu")
    return last


def test_it_learns_is_saved_and_says_the_same_again(start: Path, tmp_path: Path) -> None:
    data = write_conll(tmp_path / "names.conll")
    done = run(data, tmp_path / "out", start)
    assert done.fields["metric"] == "f1"
    assert done.fields["score"] >= 0.9
    assert ModelFolder(tmp_path / "out").task_config.lstm_units == 24
    ours, theirs = load_model(tmp_path / "out").state, load_model(start).state
    frozen = [name for name in ours if name.startswith("encoder.")]
    assert frozen
    assert all(torch.equal(ours[name], theirs[name]) for name in frozen)
    predictor = Predictor(tmp_path / "out", device="cpu")
    sentences = [["the", "film", PEOPLE[0], "was", "in", "this", "town"], ["Oslo"], ["dogs"] * 150 + ["Lima"]]
    answers = predictor.predict(sentences)
    assert answers[0]["tags"] == ["O", "O", "B-person", "O", "O", "O", "O"]
    assert [len(answer["tags"]) for answer in answers] == [7, 1, 151]
    predictor.save(tmp_path / "kept")
    assert Predictor(tmp_path / "kept", device="cpu").predict(sentences) == answers
    *_, told = predict_file(tmp_path / "out", data, tmp_path / "scored.jsonl", device="cpu")
    assert told.fields["rows"] == 120


def test_answers_in_bf16_leave_the_frozen_encoder_as_it_is(
    start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a processor has no bf16 of its own, as on a GPU, other encoders are rounded."""
    run(write_conll(tmp_path / "names.conll"), tmp_path / "out", start)
    monkeypatch.setattr(packed_linear, "cpu_supports_bf16", lambda: False)
    sentences = [["the", "film", PEOPLE[0], "was", "in", "Oslo"]]
    exact, rounded = (
        Predictor(tmp_path / "out", device="cpu", precision=name).predict(sentences)[0] for name in ("fp32", "bf16")
    )
    assert rounded["tags"] == exact["tags"] == ["O", "O", "B-person", "O", "O", "B-place"]


def test_a_stopped_run_goes_on_to_the_same_bits(start: Path, tmp_path: Path) -> None:
    data = write_conll(tmp_path / "names.conll", 60)
    settings = (*FAST, "epochs=4", "save_every=3")
    run(data, tmp_path / "whole", start, overrides=settings)
    options = {"recipe": "feature_based", "overrides": settings, "validation": "split"}
    request = make_finetune_request(data, model=start, **options)
    for limit in (5, 11):
        for event in finetune_events(tmp_path / "parts", request, device="cpu"):
            if event.kind == "step" and event.fields["step"] % limit == 0:
                break
    *_, _ = finetune_events(tmp_path / "parts", request, device="cpu")
    assert (tmp_path / "whole/model.safetensors").read_bytes() == (tmp_path / "parts/model.safetensors").read_bytes()


def test_what_does_not_fit_in_memory_is_computed_and_said(
    start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_conll(tmp_path / "names.conll", 60)
    known = run(data, tmp_path / "known", start, overrides=(*FAST, "epochs=1"))
    monkeypatch.setattr(task_heads, "MAX_FEATURE_BYTES", 1000)
    request = make_finetune_request(
        data, model=start, recipe="feature_based", overrides=(*FAST, "epochs=1"), validation="split"
    )
    events = list(finetune_events(tmp_path / "asked", request, device="cpu"))
    assert any("do not fit in memory" in event.text for event in events)
    assert events[-1].fields["evaluation"]["loss"] == pytest.approx(known.fields["evaluation"]["loss"], rel=1e-3)


def test_transformers_refuses_the_folder_and_we_go_on_with_it(start: Path, tmp_path: Path) -> None:
    data = write_spans(tmp_path / "spans.json", 60)
    run(data, tmp_path / "out", start, overrides=(*FAST, "epochs=1"))
    settings = json.loads((tmp_path / "out/config.json").read_text())
    assert settings["architectures"] == ["BertworksRecurrentTagger"]
    with pytest.raises(ValueError, match="bertworks"):
        transformers.AutoModelForTokenClassification.from_pretrained(tmp_path / "out")
    run(data, tmp_path / "more", tmp_path / "out", overrides=(*FAST, "epochs=1"))
    with pytest.raises(BertworksError, match="24 LSTM units, the recipe has 0"):
        run(data, tmp_path / "plain", tmp_path / "out", overrides=("epochs=1", "precision=fp32"), recipe="stable")
    assert not (tmp_path / "plain").exists()
    request = make_finetune_request(
        data, model=tmp_path / "out", overrides=("epochs=1", "precision=fp32"), new_head=True
    )
    *_, done = finetune_events(tmp_path / "plain", request, device="cpu")
    assert ModelFolder(tmp_path / "plain").task_config.lstm_units == 0
    assert done.kind == "done"


def test_a_damaged_folder_and_another_task_are_refused(start: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="lstm_units is for tagging, spans, and the data is for classification"):
        run(write_reviews(tmp_path / "reviews.csv"), tmp_path / "out", start)
    assert not (tmp_path / "out").exists()
    run(write_conll(tmp_path / "names.conll", 40), tmp_path / "out", start, overrides=(*FAST, "epochs=1"))
    task = json.loads((tmp_path / "out/task.json").read_text())
    (tmp_path / "out/task.json").write_text(json.dumps(task | {"lstm_units": 12}))
    with pytest.raises(BertworksError, match=r"recurrent\.lstm\.\w+ is \[96, 128\], but the task needs \[48, 128\]"):
        Predictor(tmp_path / "out")
    (tmp_path / "out/task.json").write_text(json.dumps(task))
    weights = tmp_path / "out/model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in read_tensors(weights).items()}  # the file is mapped
    del tensors["recurrent.lstm.bias_hh_l1"]
    write_tensors(weights, tensors, {"format": "pt"})
    with pytest.raises(BertworksError, match=r"incomplete: recurrent\.lstm\.bias_hh_l1 missing"):
        Predictor(tmp_path / "out")
