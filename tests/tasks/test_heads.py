"""LSTMs over an encoder, frozen (the feature-based approach) or trained with it; from the tensors
to the folder."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from bertworks.batching.batch import Batch, collate
from bertworks.batching.examples import Example, Target
from bertworks.checkpoints.hf_mapping import from_huggingface
from bertworks.checkpoints.model_folder import ModelFolder, load_model
from bertworks.checkpoints.storage import read_tensors, write_tensors
from bertworks.errors import BertworksError, UsageError
from bertworks.events import Event
from bertworks.inference.explain import explain
from bertworks.inference.predictor import Predictor, predict_file
from bertworks.interop.convert import convert
from bertworks.interop.export import export
from bertworks.models import transformer
from bertworks.models.config import EncoderConfig
from bertworks.models.layers import count_parameters
from bertworks.models.layout import Layout
from bertworks.models.recurrent import BiLSTM
from bertworks.models.transformer import Encoder, cpu_supports_int8
from bertworks.runs.finetune import finetune_events, make_finetune_request
from bertworks.tasks import heads as task_heads
from bertworks.tasks.heads import ContrastiveModel, TaskModel, contrastive_loss
from bertworks.tasks.outputs import Classification
from bertworks.tasks.settings import FeatureLayers, TaskConfig
from bertworks.training.loop import make_optimizer, train
from bertworks.training.recipe import load_finetune_recipe
from tests.support.fine import (
    PEOPLE,
    write_choices,
    write_conll,
    write_model,
    write_pairs,
    write_reviews,
    write_spans,
    write_squad,
)
from tests.support.served import Local

CONFIG = EncoderConfig(
    vocab_size=90,
    hidden_size=16,
    num_hidden_layers=5,
    num_attention_heads=2,
    max_position_embeddings=40,
    initializer_range=0.2,
)
LENGTHS = [7, 19, 3, 12, 1]
FAST = (
    "lstm_units=24",
    "optimizer.learning_rate=1e-2",
    "batch_size=8",
    "epochs=8",
    "precision=fp32",
)


def examples(seed: int = 0) -> list[list[Example]]:
    draw = np.random.default_rng(seed)
    found = []
    for n in LENGTHS:
        requested = np.arange(0, n, 2)
        found.append(
            [
                Example(
                    draw.integers(5, 90, n),
                    np.zeros(n, int),
                    {"task": Target(requested, draw.integers(0, 3, len(requested)))},
                )
            ]
        )
    return found


def batch_of(units: list[list[Example]]) -> Batch:
    return collate([one for unit in units for one in unit])


def model(units: int = 8, config: EncoderConfig = CONFIG) -> TaskModel:
    torch.manual_seed(0)
    d = TaskConfig(task="tagging", lstm_units=units)
    return TaskModel(config, Classification(outputs=3, pooled=False), d)


# --- the network
# --------------------------------------------------------------------------------------------------


def test_packed_is_one_by_one_and_no_padding_is_read() -> None:
    torch.manual_seed(0)
    network = BiLSTM(6, 5)
    rows = [torch.randn(n, 6) for n in LENGTHS]
    found = network(torch.cat(rows), Layout.of(LENGTHS))
    assert found.shape == (sum(LENGTHS), 10)
    alone = torch.cat([network.lstm(row[None])[0][0] for row in rows])
    torch.testing.assert_close(found, alone, rtol=1e-5, atol=1e-6)
    # Each direction has four gates: [5, inputs] and [5, 5] with two biases. The first layer has 6
    # inputs, the second one the 10 outputs of the first.
    directions = [4 * (5 * inputs + 5 * 5 + 5 + 5) for inputs in (6, 10)]
    assert count_parameters(BiLSTM, 6, 5) == 2 * sum(directions)


def test_features_are_the_last_four_layers_without_dropout() -> None:
    encoder = Encoder(CONFIG).train()
    batch = batch_of(examples())
    found = task_heads.FrozenFeatures(encoder)(batch)
    assert encoder.training
    assert (
        found.shape
        == (sum(LENGTHS), task_heads.features_size(CONFIG, "concat-last-four"))
        == (42, 64)
    )
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
    monkeypatch.setattr(
        asking.encoder, "forward", lambda *x: computed.append(len(x[0])) or compute(*x)
    )
    for order in ([0, 1, 2, 3, 4], [3, 1], [2]):
        found = asking(batch_of([units[n] for n in order]))
        torch.testing.assert_close(
            found, torch.cat([alone[n] for n in order]), rtol=1e-4, atol=1e-5
        )
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
    steps = list(
        train(
            network,
            make_optimizer(network, c),
            lambda _: [batch_of(units)],
            c,
            30,
            precision=precision,
        )
    )
    assert steps[-1].read()["task"].loss < 0.5 * steps[0].read()["task"].loss
    for name, p in network.named_parameters():
        assert torch.equal(p, before[name]) == name.startswith("encoder."), name


ROWS = {  # of table 7: what is read of hidden states [layers + 1, T, hidden]
    "embeddings": lambda x: x[0],
    "second-to-last": lambda x: x[-2],
    "last": lambda x: x[-1],
    "sum-last-four": lambda x: x[-4:].sum(0),
    "concat-last-four": lambda x: np.concatenate([*x[-4:]], -1),
    "sum-all": lambda x: x[1:].sum(0),
    "mix": lambda x: np.concatenate([*x], -1),
    0: lambda x: x[0],
    3: lambda x: x[3],
}


@pytest.mark.parametrize("layers", ROWS)
def test_layers_are_those_of_transformers(layers: str | int) -> None:
    """Hidden states of transformers, put together by hand. What is cached is what the LSTM
    reads."""
    torch.manual_seed(0)
    theirs = transformers.BertModel(
        transformers.BertConfig(
            vocab_size=90,
            hidden_size=16,
            num_hidden_layers=5,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=40,
        )
    ).eval()
    for p in theirs.parameters():
        p.data.add_(torch.randn_like(p), alpha=0.1)
    state = from_huggingface(theirs.state_dict(), CONFIG)
    encoder = Encoder(CONFIG).eval()
    encoder.load_state_dict(
        {n.removeprefix("encoder."): p for n, p in state.items() if n.startswith("encoder.")}
    )
    features, units = task_heads.FrozenFeatures(encoder, layers), examples()
    assert features.remember(units)
    found, expected = features(batch_of(units)), []
    for (one,) in units:
        with torch.no_grad():
            states = theirs(
                torch.tensor(one.input_ids)[None], output_hidden_states=True
            ).hidden_states
        expected.append(ROWS[layers](torch.cat(states).double().numpy()))
    assert found.shape[1] == task_heads.features_size(CONFIG, layers)
    assert np.abs(found.numpy() - np.concatenate(expected)).max() <= 2e-5
    assert task_heads.lstm_input_size(CONFIG, layers) == (16 if layers == "mix" else found.shape[1])


def test_a_mix_and_its_gradients_by_hand() -> None:
    """y = g sum p_j h_j with p = softmax(s): dy/ds_j = g p_j (h_j - sum p_k h_k), dy/dg = sum p_j
    h_j."""
    draw = np.random.default_rng(0)
    h, s, g, up = draw.normal(size=(6, 7, 5)), draw.normal(size=6), 1.7, draw.normal(size=(7, 5))
    mix = task_heads.ScalarMix(6)
    assert not mix.weights.any()
    assert mix.scale.item() == 1
    joined = torch.tensor(np.concatenate([*h], -1), dtype=torch.float32, requires_grad=True)
    torch.testing.assert_close(mix(joined), torch.tensor(h.mean(0)).float())
    mix.weights.data, mix.scale.data = torch.tensor(s).float(), torch.tensor([g]).float()
    p = np.exp(s) / np.exp(s).sum()
    mean = np.einsum("j,jth->th", p, h)
    mixed = mix(joined)
    np.testing.assert_allclose(mixed.detach(), g * mean, atol=2e-5)
    (mixed * torch.tensor(up)).sum().backward()
    np.testing.assert_allclose(
        mix.weights.grad, g * p * ((h - mean) * up).sum((1, 2)), rtol=1e-4, atol=1e-4
    )
    np.testing.assert_allclose(mix.scale.grad, [(mean * up).sum()], rtol=1e-4, atol=1e-5)
    wanted = np.concatenate([g * weight * up for weight in p], -1)
    np.testing.assert_allclose(joined.grad, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("precision", "layers"),
    [
        ("fp32", "last"),
        ("bf16", "mix"),
        *(
            pytest.param(precision, layers, marks=pytest.mark.slow)
            for precision in ("fp32", "bf16")
            for layers in ("concat-last-four", "sum-last-four", "sum-all")
        ),
        pytest.param("bf16", "last", marks=pytest.mark.slow),
        pytest.param("fp32", "mix", marks=pytest.mark.slow),
    ],
)
def test_a_trained_encoder_learns_with_its_lstm(precision: str, layers: FeatureLayers) -> None:
    torch.manual_seed(0)
    task, units = Classification(outputs=3, pooled=False), examples()
    d = TaskConfig(task="tagging", lstm_units=8, lstm_encoder="trained", feature_layers=layers)
    network = TaskModel(CONFIG, task, d)
    before = {name: p.detach().clone() for name, p in network.named_parameters()}
    c = replace(load_finetune_recipe("bilstm").optimizer, warmup=0.0, learning_rate=1e-2)
    steps = list(
        train(
            network,
            make_optimizer(network, c),
            lambda _: [batch_of(units)],
            c,
            30,
            precision=precision,
        )
    )
    assert steps[-1].read()["task"].loss < 0.7 * steps[0].read()["task"].loss
    assert not [name for name, p in network.named_parameters() if torch.equal(p, before[name])]


@pytest.mark.parametrize("pooled", [True, False])
def test_a_text_is_classified_at_its_first_token_of_the_lstm(pooled: bool) -> None:
    """Also from left to right, where the first token of the encoder has read nothing."""
    torch.manual_seed(0)
    c = replace(CONFIG, direction="left_to_right", pooler="last")
    task = Classification(outputs=3, pooled=pooled)
    d = TaskConfig(task="tagging", lstm_units=8, lstm_encoder="trained", feature_layers="last")
    network = TaskModel(c, task, d).eval()
    assert network.pooler is None
    batch = batch_of(examples())
    rows = network.encoder(batch.input_ids, batch.layout, batch.token_type_ids)[-1].split(LENGTHS)
    assert network.recurrent is not None
    read = [network.recurrent.lstm(row[None])[0][0] for row in rows]
    chosen = (
        torch.stack([row[0] for row in read]) if pooled else torch.cat(read)[batch.target.positions]
    )
    expected = network.get_submodule("classifier")(chosen)
    torch.testing.assert_close(network.logits(batch), expected, rtol=1e-5, atol=1e-6)
    network.logits(batch).square().sum().backward()
    assert all(
        p.grad is not None and p.grad.any()
        for n, p in network.encoder.named_parameters()
        if "bias" not in n
    )


# --- a whole fine-tuning
# ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pre-trained model, with dropout."""
    folder = tmp_path_factory.mktemp("model") / "tiny"
    return write_model(folder, num_hidden_layers=4, hidden_dropout=0.1, attention_dropout=0.1)


def run(
    data: Path,
    output: Path,
    start: Path,
    *,
    overrides: tuple[str, ...] = FAST,
    recipe: str = "feature_based",
) -> Event:
    request = make_finetune_request(
        data, model=start, recipe=recipe, overrides=overrides, validation="split"
    )
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
    sentences = [
        ["the", "film", PEOPLE[0], "was", "in", "this", "town"],
        ["Oslo"],
        ["dogs"] * 150 + ["Lima"],
    ]
    answers = predictor.predict(sentences)
    assert answers[0]["tags"] == ["O", "O", "B-person", "O", "O", "O", "O"]
    assert [len(answer["tags"]) for answer in answers] == [7, 1, 151]
    predictor.save(tmp_path / "kept")
    assert Predictor(tmp_path / "kept", device="cpu").predict(sentences) == answers
    *_, reported = predict_file(tmp_path / "out", data, tmp_path / "scored.jsonl", device="cpu")
    assert reported.fields["rows"] == 120


@pytest.mark.slow
def test_answers_in_bf16_leave_the_frozen_encoder_as_it_is(
    start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a processor has no bf16 of its own, as on a GPU, other encoders are rounded."""
    run(write_conll(tmp_path / "names.conll"), tmp_path / "out", start)
    monkeypatch.setattr(transformer, "cpu_supports_bf16", lambda: False)
    sentences = [["the", "film", PEOPLE[0], "was", "in", "Oslo"]]
    exact, rounded = (
        Predictor(tmp_path / "out", device="cpu", precision=name).predict(sentences)[0]
        for name in ("fp32", "bf16")
    )
    assert rounded["tags"] == exact["tags"] == ["O", "O", "B-person", "O", "O", "B-place"]


def test_a_stopped_run_goes_on_to_the_same_bits(start: Path, tmp_path: Path) -> None:
    data = write_conll(tmp_path / "names.conll", 30)
    settings = (*FAST, "epochs=4", "save_every=3")
    run(data, tmp_path / "whole", start, overrides=settings)
    options = {"recipe": "feature_based", "overrides": settings, "validation": "split"}
    request = make_finetune_request(data, model=start, **options)
    for limit in (5, 11):
        for event in finetune_events(tmp_path / "parts", request, device="cpu"):
            if event.kind == "step" and event.fields["step"] % limit == 0:
                break
    *_, _ = finetune_events(tmp_path / "parts", request, device="cpu")
    assert (tmp_path / "whole/model.safetensors").read_bytes() == (
        tmp_path / "parts/model.safetensors"
    ).read_bytes()


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
    assert events[-1].fields["evaluation"]["loss"] == pytest.approx(
        known.fields["evaluation"]["loss"], rel=1e-3
    )


def test_transformers_refuses_the_folder_and_we_go_on_with_it(start: Path, tmp_path: Path) -> None:
    data = write_spans(tmp_path / "spans.json", 60)
    run(data, tmp_path / "out", start, overrides=(*FAST, "epochs=1"))
    settings = json.loads((tmp_path / "out/config.json").read_text())
    assert settings["architectures"] == ["BertworksRecurrentTagger"]
    with pytest.raises(ValueError, match="bertworks"):
        transformers.AutoModelForTokenClassification.from_pretrained(tmp_path / "out")
    run(data, tmp_path / "more", tmp_path / "out", overrides=(*FAST, "epochs=1"))
    with pytest.raises(BertworksError, match="24 LSTM units, the recipe has 0"):
        run(
            data,
            tmp_path / "plain",
            tmp_path / "out",
            overrides=("epochs=1", "precision=fp32"),
            recipe="stable",
        )
    assert not (tmp_path / "plain").exists()
    request = make_finetune_request(
        data, model=tmp_path / "out", overrides=("epochs=1", "precision=fp32"), new_head=True
    )
    *_, done = finetune_events(tmp_path / "plain", request, device="cpu")
    assert ModelFolder(tmp_path / "plain").task_config.lstm_units == 0
    assert done.kind == "done"


JOINT = (
    "lstm_units=24",
    "optimizer.learning_rate=3e-3",
    "batch_size=8",
    "epochs=2",
    "precision=fp32",
)


@pytest.mark.parametrize(
    ("write", "text"),
    [
        (write_reviews, "this film was good"),
        (write_pairs, ("this film", "that film")),
        (write_conll, ["the", "film", PEOPLE[0]]),
        (write_squad, ("who lives in Oslo ?", "Anna lives in Oslo .")),
        (write_choices, None),
    ],
)
def test_an_lstm_on_a_trained_encoder(write: Any, text: Any, start: Path, tmp_path: Path) -> None:
    data = write(tmp_path / ("data.json" if write is write_squad else "data.csv"), 40)
    run(data, tmp_path / "out", start, overrides=JOINT, recipe="bilstm")
    ours, theirs = load_model(tmp_path / "out").state, load_model(start).state
    assert not any(
        torch.equal(ours[n], theirs[n])
        for n in ours
        if n.startswith("encoder.") and n.endswith("v.weight")
    )
    assert not any(name.startswith("pooler") for name in ours)
    task = ModelFolder(tmp_path / "out").task_config
    text = text or ("a film", *["is good", "is bad"] * 2)[: task.num_choices + 1]
    assert (task.lstm_units, task.lstm_encoder, task.feature_layers) == (24, "trained", "last")
    list(convert(tmp_path / "out", tmp_path / "again"))
    exact, again = (
        Predictor(tmp_path / n, device="cpu", precision="fp32").predict([text])
        for n in ("out", "again")
    )
    assert exact == again
    for precision in ("int8", "bf16") if cpu_supports_int8() else ("bf16",):
        assert (
            Predictor(tmp_path / "out", device="cpu", precision=precision).predict([text])[0].keys()
            == exact[0].keys()
        )
    with pytest.raises(BertworksError, match="the head of this model is an LSTM"):
        list(export(tmp_path / "out", tmp_path / "onnx"))
    assert explain(tmp_path / "out", text, device="cpu")
    if write is write_reviews:
        with Local(tmp_path / "out", precision="fp32") as server:
            best, *_ = server.post("/predict", {"inputs": text}).json()
        assert best == {name: exact[0][name] for name in ("label", "score")}
    *_, reported = predict_file(tmp_path / "out", data, tmp_path / "scored.jsonl", device="cpu")
    assert reported.fields["rows"] == 40


def test_a_mix_is_saved_and_read_again(start: Path, tmp_path: Path) -> None:
    data = write_conll(tmp_path / "names.conll")
    done = run(data, tmp_path / "out", start, overrides=(*FAST, "feature_layers=mix"))
    assert done.fields["score"] >= 0.9
    state = load_model(tmp_path / "out").state
    assert state["mix.weights"].shape == (5,)
    assert state["mix.weights"].any()
    list(convert(tmp_path / "out", tmp_path / "again"))
    exact, again = (
        Predictor(tmp_path / n, device="cpu").predict([["in", "Oslo"]]) for n in ("out", "again")
    )
    assert exact == again
    with pytest.raises(
        BertworksError, match="LSTM reads feature_layers 'mix', the recipe has 'concat-last-four'"
    ):
        run(data, tmp_path / "more", tmp_path / "out")
    task = json.loads((tmp_path / "out/task.json").read_text())
    (tmp_path / "out/task.json").write_text(json.dumps(task | {"feature_layers": "last"}))
    with pytest.raises(BertworksError, match="does not fit tagging"):
        list(convert(tmp_path / "out", tmp_path / "other"))
    (tmp_path / "out/task.json").write_text(json.dumps(task))
    weights = tmp_path / "out/model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in read_tensors(weights).items()}
    del tensors["mix.scale"]
    write_tensors(weights, tensors, {"format": "pt"})
    for record in ("weights.json", "result.json"):
        (tmp_path / "out" / record).unlink()
    with pytest.raises(BertworksError, match=r"incomplete: mix\.scale missing"):
        Predictor(tmp_path / "out", device="cpu")


@pytest.mark.parametrize("layers", ["embeddings", "sum-last-four", "1"])
def test_a_folder_says_which_layers_are_read(layers: str, start: Path, tmp_path: Path) -> None:
    data = write_conll(tmp_path / "names.conll", 40)
    run(data, tmp_path / "out", start, overrides=(*FAST, "epochs=1", f"feature_layers={layers}"))
    assert ModelFolder(tmp_path / "out").task_config.feature_layers == (
        1 if layers == "1" else layers
    )
    task = json.loads((tmp_path / "out/task.json").read_text())
    found = []
    for name in (task["feature_layers"], "last"):
        (tmp_path / "out/task.json").write_text(json.dumps(task | {"feature_layers": name}))
        network = Predictor(tmp_path / "out", device="cpu").network
        assert isinstance(network, TaskModel)
        batch = batch_of(examples())
        states = network.encoder(batch.input_ids, batch.layout, batch.token_type_ids)
        features = {"embeddings": states[0], "1": states[1], "sum-last-four": sum(states[1:])}[
            layers
        ]
        assert network.recurrent is not None
        read = network.recurrent(features if name != "last" else states[-1], batch.layout)[
            batch.target.positions
        ]
        found.append(network.logits(batch))
        torch.testing.assert_close(
            found[-1], network.get_submodule("classifier")(read), rtol=1e-5, atol=1e-6
        )
    assert not torch.allclose(*found)


def test_a_task_of_before_has_four_frozen_layers(start: Path, tmp_path: Path) -> None:
    run(
        write_conll(tmp_path / "names.conll", 40),
        tmp_path / "out",
        start,
        overrides=(*FAST, "epochs=1"),
    )
    answers = Predictor(tmp_path / "out", device="cpu").predict([["Oslo"]])
    task = json.loads((tmp_path / "out/task.json").read_text())
    assert (task.pop("lstm_encoder"), task.pop("feature_layers")) == ("frozen", "concat-last-four")
    (tmp_path / "out/task.json").write_text(json.dumps(task))
    predictor = Predictor(tmp_path / "out", device="cpu")
    assert predictor.predict([["Oslo"]]) == answers
    assert isinstance(predictor.network, TaskModel)
    assert predictor.network.features is not None


@pytest.mark.parametrize(
    ("recipe", "settings", "message"),
    [
        ("stable", ["feature_layers=last"], "feature_layers 'last' without lstm_units"),
        ("stable", ["lstm_encoder=trained"], "lstm_encoder 'trained' without lstm_units"),
        (
            "bilstm",
            ["feature_layers=embeddings"],
            "with feature_layers 'embeddings': layers that are not read",
        ),
        ("bilstm", ["feature_layers=2"], "with feature_layers 2: layers that are not read"),
        (
            "feature_based",
            ["feature_layers=first"],
            "feature_layers: 'first' is none of 'embeddings', 'second-to-last'",
        ),
        ("feature_based", ["feature_layers=1.5"], "feature_layers: 1.5 is none of"),
        ("feature_based", ["feature_layers=true"], "feature_layers: True is none of"),
    ],
)
def test_settings_without_meaning_are_refused(
    recipe: str, settings: list[str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        load_finetune_recipe(recipe, settings)


@pytest.mark.parametrize("number", [5, -1])
def test_a_layer_that_is_not_there(number: int, start: Path, tmp_path: Path) -> None:
    data = write_conll(tmp_path / "names.conll", 40)
    with pytest.raises(
        UsageError, match=f"feature_layers is {number}, and the model has the layers 0 .* to 4"
    ):
        run(data, tmp_path / "out", start, overrides=(*FAST, f"feature_layers={number}"))
    assert not (tmp_path / "out").exists()


def test_a_damaged_folder_and_another_task_are_refused(start: Path, tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match="lstm_units is for tagging, spans, and the data is for classification"
    ):
        run(write_reviews(tmp_path / "reviews.csv"), tmp_path / "out", start)
    assert not (tmp_path / "out").exists()
    run(
        write_conll(tmp_path / "names.conll", 40),
        tmp_path / "out",
        start,
        overrides=(*FAST, "epochs=1"),
    )
    task = json.loads((tmp_path / "out/task.json").read_text())
    (tmp_path / "out/task.json").write_text(json.dumps(task | {"lstm_units": 12}))
    with pytest.raises(
        BertworksError, match=r"recurrent\.lstm\.\w+ is \[96, 128\], but the task needs \[48, 128\]"
    ):
        Predictor(tmp_path / "out")
    (tmp_path / "out/task.json").write_text(json.dumps(task))
    weights = tmp_path / "out/model.safetensors"
    # the file is mapped
    tensors = {name: tensor.clone() for name, tensor in read_tensors(weights).items()}
    del tensors["recurrent.lstm.bias_hh_l1"]
    write_tensors(weights, tensors, {"format": "pt"})
    for record in ("weights.json", "result.json"):
        (tmp_path / "out" / record).unlink()
    with pytest.raises(BertworksError, match=r"incomplete: recurrent\.lstm\.bias_hh_l1 missing"):
        Predictor(tmp_path / "out")


def test_the_contrastive_loss_is_that_of_the_paper() -> None:
    """Khosla et al. 2020, equation 2, in float64; a row without another of its label has none."""
    rng = np.random.default_rng(0)
    labels = np.array([0, 1, 0, 2, 1, 0, 3, 1])
    z = rng.normal(size=(len(labels), 5))
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    expected = 0.0
    correct = 0
    for i, label in enumerate(labels):
        others = [a for a in range(len(labels)) if a != i]
        total = sum(np.exp(z[i] @ z[a] / 0.2) for a in others)
        positives = [p for p in others if labels[p] == label]
        terms = [np.log(np.exp(z[i] @ z[p] / 0.2) / total) for p in positives]
        expected -= np.mean(terms) if terms else 0.0
        correct += labels[max(others, key=lambda a: z[i] @ z[a])] == label
    loss = contrastive_loss(torch.from_numpy(z), torch.from_numpy(labels), 0.2)
    assert loss.loss.item() == pytest.approx(expected, rel=1e-9)
    assert loss.correct.item() == correct
    alone = torch.from_numpy(z[:3]).requires_grad_()
    nothing = contrastive_loss(alone, torch.tensor([0, 1, 2]), 0.2)
    assert nothing.loss.item() == 0
    nothing.loss.backward()
    assert alone.grad is not None
    assert alone.grad.abs().max() == 0


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_contrastive_training_changes_the_blocks_alone(checkpointing: bool) -> None:
    """Texts of a label get similar vectors, also where the states are computed again."""
    c = replace(CONFIG, hidden_dropout=0.1, attention_dropout=0.1, embedding_dropout=0.0)
    torch.manual_seed(0)
    d = TaskConfig(task="classification", vectors="mean")
    model = ContrastiveModel(c, Classification(outputs=3, vectors="mean"), d, 0.1)
    model.encoder.gradient_checkpointing = checkpointing
    rng = np.random.default_rng(1)
    examples = []
    for number in range(12):
        ids = rng.integers(5, 90, 6 + number)
        target = Target(np.array([0]), np.array([number % 3]))
        examples.append(Example(ids, np.zeros_like(ids), {"task": target}))
    batch = collate(examples)
    assert model.counts(batch) == {"contrastive": 12}
    assert model.counts(collate(examples[:4])) == {"contrastive": 2}
    before = {name: p.clone() for name, p in model.named_parameters()}
    optimizer = replace(load_finetune_recipe("contrastive").optimizer, learning_rate=3e-3)
    steps = [
        step.read()["contrastive"]
        for step in train(model, make_optimizer(model, optimizer), lambda _: [batch], optimizer, 40)
    ]
    assert steps[-1].loss < steps[0].loss - 1
    assert steps[-1].accuracy == 1
    changed = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert changed == {name for name in before if name.startswith("encoder.blocks.")}
