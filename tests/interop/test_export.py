"""Models as ONNX files: beside transformers, beside ours in every task, with 8 bits; what is
refused leaves nothing."""

import copy
import csv
import hashlib
import json
import re
import shutil
import socket
import sys
from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import transformers

import bertworks
from bertworks.batching.batch import Batch, BatchTarget
from bertworks.checkpoints.model_folder import save_model
from bertworks.checkpoints.task_config import save_task, task_settings
from bertworks.cli.main import main
from bertworks.datasets.reader import RowReader
from bertworks.datasets.schema import items
from bertworks.errors import BertworksError, UsageError
from bertworks.evaluation.evaluate import evaluate_task
from bertworks.events import Event
from bertworks.inference.embed_file import embed_file
from bertworks.inference.embedder import Embedder
from bertworks.inference.engine import OnnxModel
from bertworks.inference.masked_lm import Filler
from bertworks.inference.predictor import Predictor, predict_file, schema_for
from bertworks.interop.export import export
from bertworks.interop.trace import write_onnx
from bertworks.models.config import EncoderConfig
from bertworks.models.layout import Layout
from bertworks.models.transformer import Encoder
from bertworks.tasks.heads import TaskModel
from bertworks.tasks.outputs import Classification
from bertworks.tasks.registry import TASKS as ALL_TASKS, task_of
from bertworks.tasks.settings import TaskConfig, TaskType
from tests.support.fine import (
    tokenizer,
    write_examples,
    write_model,
    write_reviews,
)
from tests.support.gpt import write_gpt2
from tests.support.refusals import refusal

LENGTH = 64
CONFIG = EncoderConfig(
    vocab_size=tokenizer().vocab_size,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    max_position_embeddings=LENGTH,
    initializer_range=0.3,
)
D = TaskConfig
TASKS: dict[TaskType, tuple[TaskConfig, type]] = {
    "classification": (
        D(task="classification", labels=("neg", "pos"), text=("text",), label=("label",)),
        transformers.AutoModelForSequenceClassification,
    ),
    "multilabel": (
        D(task="multilabel", labels=("person", "place"), text=("text",), label=("labels",)),
        transformers.AutoModelForSequenceClassification,
    ),
    "regression": (
        D(task="regression", text=("sentence1", "sentence2"), label=("score",)),
        transformers.AutoModelForSequenceClassification,
    ),
    "tagging": (
        D(task="tagging", labels=("O", "B-person", "B-place")),
        transformers.AutoModelForTokenClassification,
    ),
    "spans": (
        D(task="spans", labels=("O", "B-person", "I-person")),
        transformers.AutoModelForTokenClassification,
    ),
    "qa": (
        D(task="qa", max_question=8, stride=8),
        transformers.AutoModelForQuestionAnswering,
    ),
    "choice": (
        D(task="choice", num_choices=3),
        transformers.AutoModelForMultipleChoice,
    ),
}


def write_head(
    folder: Path, task: TaskType, *, lstm_units: int = 0, config: EncoderConfig = CONFIG
) -> Path:
    """A model folder with a head of random weights."""
    d = replace(TASKS[task][0], max_length=LENGTH, lstm_units=lstm_units)
    torch.manual_seed(1)
    state = TaskModel(config, task_of(d).head(), d).state_dict()
    save_model(folder, state, config, tokenizer(LENGTH), card="tiny", head=task_settings(d))
    save_task(d, folder)
    return folder


def write_encoder(folder: Path) -> Path:
    torch.manual_seed(1)
    state = {f"encoder.{name}": value for name, value in Encoder(CONFIG).state_dict().items()}
    save_model(folder, state, CONFIG, tokenizer(LENGTH), card="tiny")
    return folder


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_head(tmp_path_factory.mktemp("classifier") / "model", "classification")


@pytest.fixture(scope="module")
def exported(classifier: Path) -> Path:
    run(classifier, classifier.parent / "onnx")
    return classifier.parent / "onnx"


def run(model: Path, output: Path, **options: Any) -> list[Event]:
    return list(export(model, output, **options))


def answers(model: Path, data: Path) -> list[dict[str, Any]]:
    predictor, reader = Predictor(model, device="cpu"), RowReader(data)
    rows = items(reader, schema_for(reader, predictor.task, ())[0], ALL_TASKS)
    return [answer for _, answer in predictor.answers(rows)]


def close(one: Any, other: Any) -> bool:
    """The same names, texts and places; numbers within a thousandth."""
    match one:
        case dict():
            return one.keys() == other.keys() and all(
                close(value, other[name]) for name, value in one.items()
            )
        case list() | array():
            return len(one) == len(other) and all(map(close, one, other))
        case float():
            return abs(one - other) <= 1e-3
        case _:
            return one == other


# --- the file
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*TASKS, "encoder", "masked_lm"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # transformers' own
def test_another_program_gets_what_transformers_computes(kind: str, tmp_path: Path):
    if kind in TASKS:
        write_head(tmp_path / "model", kind)
        theirs = TASKS[kind][1].from_pretrained(tmp_path / "model")
    elif kind == "masked_lm":
        theirs = transformers.AutoModelForMaskedLM.from_pretrained(
            write_model(tmp_path / "model", length=LENGTH)
        )
    else:
        theirs = transformers.AutoModel.from_pretrained(
            write_encoder(tmp_path / "model"), add_pooling_layer=False
        )
    *_, done = run(tmp_path / "model", tmp_path / "onnx")
    assert done.fields["largest_difference"] < 1e-4
    path = tmp_path / "onnx/model.onnx"
    onnx.checker.check_model(str(path), full_check=True)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    draw = np.random.default_rng(0)
    for shape in [(1, 1), (3, 17), (2, LENGTH)]:
        size = (2, *shape) if kind == "choice" else shape
        mask = (np.arange(shape[1]) < draw.integers(1, shape[1] + 1, (*size[:-1], 1))).astype(
            np.int64
        )
        feed = {
            "input_ids": draw.integers(5, 60, size),
            "attention_mask": mask,
            "token_type_ids": draw.integers(0, 2, size),
        }
        with torch.no_grad():
            expected = theirs.eval()(
                **{name: torch.from_numpy(value) for name, value in feed.items()}
            )
        names = [output.name for output in session.get_outputs()]
        assert names == list(expected.keys())
        for name, found in zip(names, session.run(None, feed), strict=True):
            wanted = expected[name].numpy()
            # of padding nothing is expected
            if found.shape[1:2] == mask.shape[1:2] and kind != "choice":
                found, wanted = found[mask == 1], wanted[mask == 1]
            np.testing.assert_allclose(found, wanted, atol=1e-4)


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu"])
def test_every_activation(activation: Any, tmp_path: Path):
    torch.manual_seed(0)
    network = TaskModel(
        replace(CONFIG, hidden_act=activation), Classification(outputs=4, pooled=False)
    ).eval()
    write_onnx(tmp_path / "m.onnx", network)
    ids, layout = torch.randint(0, 60, (20,)), Layout.of([3, 16, 1])
    batch = Batch(ids, layout, None, {"task": BatchTarget(torch.arange(1, 18), torch.arange(17))})
    with torch.no_grad():
        torch.testing.assert_close(
            OnnxModel(tmp_path / "m.onnx", network.task).logits(batch),
            network.logits(batch),
            atol=1e-4,
            rtol=0,
        )


def test_the_folder_explains_itself(classifier: Path, exported: Path):
    assert {path.name for path in exported.iterdir()} == {
        "README.md",
        "config.json",
        "export.json",
        "model.onnx",
        "special_tokens_map.json",
        "task.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.txt",
    }
    for name in ("config.json", "task.json", "tokenizer.json", "vocab.txt"):
        assert (exported / name).read_bytes() == (classifier / name).read_bytes()
    page = (exported / "README.md").read_text()
    assert "`logits` ['batch', 2]" in page
    assert "classification" in page


def test_what_makes_a_vector_of_the_states_goes_along(tmp_path: Path):
    model = write_encoder(tmp_path / "model")
    (model / "pooling").mkdir()  # usually 1_Pooling
    types = {
        "": "sentence_transformers.models.Transformer",
        "pooling": "sentence_transformers.models.Pooling",
    }
    modules = [
        {"idx": n, "name": str(n), "path": path, "type": kind}
        for n, (path, kind) in enumerate(types.items())
    ]
    (model / "modules.json").write_text(json.dumps(modules))
    (model / "pooling/config.json").write_text('{"pooling_mode_cls_token": true}')
    run(model, tmp_path / "onnx")
    for name in ("modules.json", "pooling/config.json"):
        assert (tmp_path / "onnx" / name).read_text() == (model / name).read_text()
    assert Embedder(tmp_path / "onnx").settings.pooling == "cls"
    assert json.loads((tmp_path / "onnx/config.json").read_text())["architectures"] == ["BertModel"]


def test_only_the_encoder_of_a_model_with_a_head(classifier: Path, tmp_path: Path):
    run(classifier, tmp_path / "onnx", encoder=True)
    assert OnnxModel(tmp_path / "onnx/model.onnx").outputs == ["last_hidden_state"]
    assert not (tmp_path / "onnx/task.json").exists()
    with pytest.raises(BertworksError, match="was not fine-tuned for a task"):
        Predictor(tmp_path / "onnx")


# --- answers
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", TASKS)
def test_the_answers_are_those_of_the_model(task: TaskType, tmp_path: Path):
    write_head(tmp_path / "model", task)
    data = write_examples(tmp_path, task)
    run(tmp_path / "model", tmp_path / "onnx")
    ours, theirs = answers(tmp_path / "model", data), answers(tmp_path / "onnx", data)
    assert len(ours) > 100
    assert all(map(close, ours, theirs))
    if task in ("classification", "qa", "tagging"):
        # else a model that reads nothing would pass
        assert len({json.dumps(one, default=str) for one in ours}) > 10


def test_a_model_of_one_kind_of_text_reads_pairs(tmp_path: Path):
    write_head(tmp_path / "model", "regression", config=replace(CONFIG, type_vocab_size=1))
    run(tmp_path / "model", tmp_path / "onnx")
    pair = [("a good film", "the men and dogs")]
    ours, theirs = (
        Predictor(tmp_path / name, device="cpu").predict(pair) for name in ("model", "onnx")
    )
    assert close(ours, theirs)


def test_a_file_is_predicted_alike(classifier: Path, exported: Path, tmp_path: Path):
    data = write_reviews(tmp_path / "d.csv", 50)
    rows = []
    for model in (classifier, exported):
        list(
            predict_file(
                model, data, tmp_path / "out.csv", device="cpu" if model == classifier else "auto"
            )
        )
        with (tmp_path / "out.csv").open(newline="") as file:
            rows.append(list(csv.DictReader(file)))
    for one, other in zip(*rows, strict=True):
        assert abs(float(one.pop("predicted_score")) - float(other.pop("predicted_score"))) < 1e-3
        assert one == other


def test_a_copy_is_a_model(exported: Path, tmp_path: Path):
    Predictor(exported).save(tmp_path / "copy")
    assert Predictor(tmp_path / "copy").predict(["a good film"]) == Predictor(exported).predict(
        ["a good film"]
    )


TEXTS = ["a good film", "", "the men heard music in this town " * 20, "Anna lives in Oslo ."]


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_vectors_are_those_of_the_model(pooling: Any, tmp_path: Path):
    """Of a folder of sentence-transformers, whose files say how; and of a model with a head,
    exported without it."""
    plain = Embedder(
        write_encoder(tmp_path / "plain"),
        pooling=pooling,
        normalize=True,
        max_length=20,
        device="cpu",
    )
    plain.save(tmp_path / "model")
    run(tmp_path / "model", tmp_path / "onnx")
    theirs = Embedder(tmp_path / "onnx")
    assert theirs.settings == plain.settings
    np.testing.assert_allclose(theirs.embed(TEXTS * 20), plain.embed(TEXTS * 20), atol=1e-4)
    run(write_head(tmp_path / "head", "tagging"), tmp_path / "body", encoder=True)
    ours = bertworks.embed(tmp_path / "head", TEXTS, pooling=pooling, device="cpu")
    np.testing.assert_allclose(
        bertworks.embed(tmp_path / "body", TEXTS, pooling=pooling), ours, atol=1e-4
    )
    list(embed_file(tmp_path / "onnx", write_reviews(tmp_path / "d.csv", 9), tmp_path / "v.npy"))
    assert np.load(tmp_path / "v.npy").shape == (9, 32)
    assert (
        theirs.fingerprint["weights_sha256"]
        == hashlib.sha256((tmp_path / "onnx/model.onnx").read_bytes()).hexdigest()
    )


def test_blanks_are_filled_as_by_the_model(tmp_path: Path):
    model = write_model(tmp_path / "model", length=LENGTH)
    run(model, tmp_path / "onnx")
    long = " ".join("[MASK]" if n % 70 == 0 else "film" for n in range(150))
    for text in ("the [MASK] was good", "[MASK] [MASK]", long):
        ours, theirs = (Filler(folder)(text, 7) for folder in (model, tmp_path / "onnx"))
        for one, other in zip(ours, theirs, strict=True):
            assert [a["score"] for a in one] == pytest.approx([a["score"] for a in other], abs=1e-4)
            assert {a["token"] for a in one} == {a["token"] for a in other}


def test_what_was_not_exported_is_not_computed(exported: Path, tmp_path: Path):
    run(write_model(tmp_path / "model", length=LENGTH), tmp_path / "words")
    run(write_encoder(tmp_path / "encoder"), tmp_path / "states")
    with pytest.raises(
        BertworksError, match=r"gives logits .* not last_hidden_state of 32 .*\n.*--encoder"
    ):
        Embedder(exported)
    with pytest.raises(BertworksError, match="not last_hidden_state"):
        Embedder(tmp_path / "words")
    for folder in (exported, tmp_path / "states"):
        with pytest.raises(BertworksError, match=r"not logits of \d+ for each token"):
            Filler(folder)
    with pytest.raises(UsageError, match="only the last layer"):
        Embedder(tmp_path / "states", pooling="last-four")
    with pytest.raises(UsageError, match="on the CPU"):
        Embedder(tmp_path / "states", precision="bf16")
    config = json.loads((tmp_path / "states/config.json").read_text())
    (tmp_path / "states/config.json").write_text(json.dumps(config | {"hidden_size": 64}))
    with pytest.raises(BertworksError, match="not last_hidden_state of 64"):
        Embedder(tmp_path / "states")


def weight_bytes(path: Path) -> int:
    """The size of the weights alone: in a small network the names take more."""
    return sum(len(tensor.raw_data) for tensor in onnx.load(str(path)).graph.initializer)


@pytest.mark.parametrize("task", ["classification", "qa"])
def test_eight_bits_are_smaller_and_say_what_they_cost(
    task: TaskType, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    write_head(tmp_path / "model", task)
    data = write_examples(tmp_path, task)
    *_, plain = run(tmp_path / "model", tmp_path / "plain")
    *notes, done = run(tmp_path / "model", tmp_path / "int8", int8=True, data=data)
    assert (
        done.fields["bytes"]
        == (tmp_path / "int8/model.onnx").stat().st_size
        < plain.fields["bytes"]
    )
    assert (
        weight_bytes(tmp_path / "int8/model.onnx") < weight_bytes(tmp_path / "plain/model.onnx") / 3
    )
    cost = done.fields["cost"]
    assert 0 < cost["mean"] < cost["largest"] < cost["deviation"]
    before, after = (
        evaluate_task(tmp_path / name, data, device="cpu")["figures"] for name in ("model", "int8")
    )
    assert done.fields["figures_ours"] == before
    assert done.fields["figures"] == after
    titles = [re.split(":| on ", note.text)[0] for note in notes[1:]]
    assert titles == ["int8", "speed", str(data)]
    assert sorted(path.name for path in (tmp_path / "int8").glob("model*")) == ["model.onnx"]
    assert not caplog.records


def test_eight_bits_of_masked_words(model: Path, tmp_path: Path):
    *_, done = run(model, tmp_path / "int8", int8=True)
    assert done.fields["cost"]["largest"] < done.fields["cost"]["deviation"]


# --- what is refused
# --------------------------------------------------------------------------------------------------


def test_a_file_that_differs_is_not_kept(
    classifier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def wrong(path: Path, network: Any) -> None:
        other = copy.deepcopy(network)
        other.classifier.bias.data += 0.001
        write_onnx(path, other)

    monkeypatch.setattr("bertworks.interop.export.write_onnx", wrong)
    with pytest.raises(
        BertworksError, match=r"differs from the model by 1\.0e-03 on 1 x 1 tokens; it is not kept"
    ):
        run(classifier, tmp_path / "onnx")
    assert list(tmp_path.iterdir()) == []


def test_who_stops_leaves_nothing(classifier: Path, tmp_path: Path):
    events = export(classifier, tmp_path / "onnx")
    next(events)
    events.close()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_something_in_it_is_left_alone(classifier: Path, tmp_path: Path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="not empty"):
        run(classifier, tmp_path)
    with pytest.raises(UsageError, match="a file, not a folder"):
        run(classifier, tmp_path / "notes.txt")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]


def test_an_export_that_is_finished_is_recognised(exported: Path, classifier: Path):
    # of a process that was killed
    rest = exported.with_name(f".onnx@{socket.gethostname()}.999999999-1.0.tmp")
    rest.mkdir()
    before = {path: path.stat().st_mtime_ns for path in exported.iterdir()}
    note, done = run(classifier, exported)
    assert "already holds the complete export" in note.text
    assert done.fields["bytes"] == (exported / "model.onnx").stat().st_size
    assert {path: path.stat().st_mtime_ns for path in exported.iterdir()} == before
    assert not rest.exists()
    with pytest.raises(UsageError, match="not empty"):
        run(classifier, exported, int8=True)


@pytest.mark.parametrize("name", ["model.onnx", "export.json"])
def test_another_or_a_damaged_export_is_no_finished_one(
    name: str, exported: Path, classifier: Path, tmp_path: Path
):
    folder = shutil.copytree(exported, tmp_path / "onnx")
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(BertworksError, match=r"not empty|not valid JSON"):
        run(classifier, folder)
    assert (folder / name).read_bytes() == content


@pytest.mark.parametrize("missing", ["onnx", "onnxruntime"])
def test_a_missing_library_is_named(
    missing: str, classifier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(BertworksError, match=missing) as raised:
        run(classifier, tmp_path / "onnx")
    assert raised.value.hint == 'pip install "bertworks[export]"'
    assert list(tmp_path.iterdir()) == []


def test_models_that_cannot_be_exported(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write_head(tmp_path / "recurrent", "tagging", lstm_units=8)
    with pytest.raises(BertworksError, match="LSTM"):
        run(tmp_path / "recurrent", tmp_path / "onnx")
    with pytest.raises(UsageError, match="an exported model"):
        run(exported, tmp_path / "onnx")
    write_gpt2(tmp_path / "gpt")
    what = "only fine-tuned models are exported of those that read left to right"
    with refusal(what, "fine-tune it first, or export a model that reads in both directions"):
        run(tmp_path / "gpt", tmp_path / "onnx")
    model = write_encoder(tmp_path / "encoder")
    with pytest.raises(UsageError, match="no head of a task"):
        run(model, tmp_path / "onnx", data=write_reviews(tmp_path / "d.csv"))
    monkeypatch.setattr("bertworks.interop.trace._MAX_BYTES", 1000)
    with pytest.raises(BertworksError, match="2 GB"):
        run(model, tmp_path / "onnx")
    assert not (tmp_path / "onnx").exists()


def test_bad_rows_are_named_and_nothing_is_written(classifier: Path, tmp_path: Path):
    (tmp_path / "d.csv").write_text("text,label\na good film,pos\na bad film,\n")
    with pytest.raises(BertworksError, match=r"d\.csv:3.*is missing"):
        run(classifier, tmp_path / "onnx", data=tmp_path / "d.csv")
    assert not (tmp_path / "onnx").exists()


def copied(folder: Path, target: Path, **files: bytes) -> Path:
    Predictor(folder).save(target)
    for name, content in files.items():
        (target / name.replace("_", ".")).write_bytes(content)
    return target


def test_damaged_folders(exported: Path, tmp_path: Path):
    with pytest.raises(BertworksError, match=r"model\.onnx: onnxruntime cannot open it"):
        Predictor(
            copied(
                exported, tmp_path / "cut", model_onnx=(exported / "model.onnx").read_bytes()[:5000]
            )
        )
    task = json.loads((exported / "task.json").read_text())
    three = json.dumps(task | {"labels": ["a", "b", "c"]}).encode()
    with pytest.raises(BertworksError, match="which is not logits of 3 for each text"):
        Predictor(copied(exported, tmp_path / "three", task_json=three))
    with pytest.raises(
        BertworksError, match="which is not start_logits and end_logits for each token"
    ):
        Predictor(
            copied(exported, tmp_path / "qa", task_json=json.dumps(task | {"task": "qa"}).encode())
        )
    choice = json.dumps(task | {"task": "choice", "num_choices": 2}).encode()
    with pytest.raises(BertworksError, match="which is not logits of 1 for each choice"):
        Predictor(copied(exported, tmp_path / "choice", task_json=choice))


def test_a_graph_that_is_no_bert_or_reads_other_files(exported: Path, tmp_path: Path):
    values, floats = onnx.helper.make_tensor_value_info, onnx.TensorProto.FLOAT
    secret = onnx.TensorProto(
        name="w", data_type=floats, dims=[4], data_location=onnx.TensorProto.EXTERNAL
    )
    (tmp_path / "secret").write_bytes(bytes(16))
    secret.external_data.add(key="location", value="../secret")
    for tensor, message in (
        (secret, "cannot open"),
        (onnx.numpy_helper.from_array(np.zeros(4, "f"), "w"), "not a BERT"),
    ):
        graph = onnx.helper.make_graph(
            [onnx.helper.make_node("Add", ["x", "w"], ["y"])],
            "g",
            [values("x", floats, [4])],
            [values("y", floats, [4])],
            [tensor],
        )
        made = onnx.helper.make_model(
            graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=9
        )
        folder = copied(
            exported, tmp_path / message.replace(" ", "-"), model_onnx=made.SerializeToString()
        )
        with pytest.raises(BertworksError, match=message):
            Predictor(folder)


def test_an_exported_model_only_predicts(exported: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(UsageError, match="computed on the CPU"):
        Predictor(exported, precision="bf16")
    for command in (["fill", str(exported), "a [MASK] film"], ["explain", str(exported), "a film"]):
        assert main(command) == 1
        assert "exported" in capsys.readouterr().err


# --- what a person sees
# -----------------------------------------------------------------------------------------------


def test_the_command(classifier: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    data = write_reviews(tmp_path / "d.csv", 40)
    command = ["export", str(classifier), "--format", "onnx", "-o"]
    assert main([*command, str(tmp_path / "onnx"), "--int8", "--data", str(data)]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith(f"{tmp_path / 'onnx/model.onnx'}: 0.")
    assert [line.split()[0] for line in shown.err.splitlines()] == [
        "onnxruntime",
        "int8:",
        "speed",
        f"{data}:",
    ]
    assert main([*command, str(tmp_path / "again"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["kind"] == "done"
    assert main([*command, str(tmp_path / "again")]) == 0
    assert "already holds the complete export" in capsys.readouterr().err
    assert main([*command, str(tmp_path / "again"), "--int8"]) == 2


@pytest.mark.parametrize("dynamic", [(), ("batch",), ("length",)])
def test_a_file_of_a_fixed_size_is_refused_in_these_words(
    dynamic: tuple[str, ...], exported: Path, tmp_path: Path
):
    made = onnx.load(str(exported / "model.onnx"))
    for value in made.graph.input:
        for dimension, (name, size) in zip(
            value.type.tensor_type.shape.dim, {"batch": 1, "length": 8}.items()
        ):
            if name not in dynamic:
                dimension.dim_value = size
    folder = copied(exported, tmp_path / "fixed", model_onnx=made.SerializeToString())
    sizes = [name if name in dynamic else size for name, size in {"batch": 1, "length": 8}.items()]
    with pytest.raises(BertworksError) as raised:
        Predictor(folder)
    assert (
        raised.value.what
        == f"the ONNX file takes texts of one fixed size only: {sizes[0]} x {sizes[1]} tokens"
    )
    assert raised.value.hint == "export it again with dynamic axes for the batch and the length"
