"""Other programs compute the probabilities of bertworks: the temperature is in the weights that are
saved as the model, and never in the training state."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import transformers
from scipy.special import expit, softmax

from bertworks.checkpoints.model_folder import ModelFolder, save_model
from bertworks.checkpoints.task_config import save_task, task_settings
from bertworks.inference.predictor import Predictor, item_of
from bertworks.interop.convert import convert
from bertworks.interop.export import export
from bertworks.models.config import EncoderConfig
from bertworks.runs import finetune as finetune_module
from bertworks.runs.finetune import finetune_events, make_finetune_request
from bertworks.runs.finetune_job import FinetuneJob, prepare_finetuning
from bertworks.runs.joint import joint_events, make_joint_request
from bertworks.tasks.heads import TaskModel
from bertworks.tasks.registry import task_of
from bertworks.tasks.settings import TaskConfig, TaskType
from tests.support.fine import tokenizer, write_multilabel, write_reviews

CPU = torch.device("cpu")
TEMPERATURE = 2.5
TOLERANCE = 1e-6
TEXTS = ["the film was good", "a bad story of men", "Anna lives in Paris", "great music"]
CHOICES = ("the film was", "good music", "a bad town")
TASKS: dict[TaskType, tuple[TaskConfig, Any]] = {
    "classification": (
        TaskConfig(task="classification", labels=("neg", "pos", "none")),
        transformers.AutoModelForSequenceClassification,
    ),
    "multilabel": (
        TaskConfig(task="multilabel", labels=("person", "place"), threshold=0.55),
        transformers.AutoModelForSequenceClassification,
    ),
    "tagging": (
        TaskConfig(task="tagging", labels=("O", "B-person", "B-place")),
        transformers.AutoModelForTokenClassification,
    ),
    "spans": (
        TaskConfig(task="spans", labels=("O", "B-person", "I-person")),
        transformers.AutoModelForTokenClassification,
    ),
    "choice": (TaskConfig(task="choice", num_choices=2), transformers.AutoModelForMultipleChoice),
}
CONFIG = EncoderConfig(
    vocab_size=tokenizer().vocab_size,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    max_position_embeddings=64,
    initializer_range=0.2,
)


def perturbed_state(d: TaskConfig, config: EncoderConfig = CONFIG) -> dict[str, torch.Tensor]:
    """Random weights of a task, of which no bias is 0 and no norm is 1."""
    torch.manual_seed(3)
    network = TaskModel(config, task_of(d).head())
    return {name: p.detach() + 0.2 * torch.randn_like(p) for name, p in network.named_parameters()}


def write_folder(folder: Path, d: TaskConfig, *, by_earlier_version: bool = False) -> Path:
    """A model with a temperature: in the weights, or in task.json, where earlier versions left
    it."""
    d = replace(d, max_length=64, temperature=TEMPERATURE)
    card = (
        "A card.\nIn transformers, divide the logits by 2.5 to get the same probabilities.\n\n"
        "## Recipe\n"
    )
    arguments: dict[str, Any] = {
        "card": card if by_earlier_version else "A card.",
        "head": task_settings(d),
    }
    if by_earlier_version:
        save_model(folder, perturbed_state(d), CONFIG, tokenizer(64), **arguments)
        save_task(d, folder)
    else:
        save_model(folder, perturbed_state(d), CONFIG, tokenizer(64), task=d, **arguments)
    return folder


def answers_of(folder: Path, task: TaskType) -> list[dict[str, Any]]:
    predictor = Predictor(folder, device="cpu", precision="fp32")
    texts: list[Any] = [CHOICES] if task == "choice" else TEXTS
    rows = [item_of(text, number, predictor.task) for number, text in enumerate(texts, 1)]
    return [answer for _, answer in predictor.answers(rows)]


def probabilities_of(logits: np.ndarray, task: TaskType) -> np.ndarray:
    return expit(logits) if task == "multilabel" else softmax(logits, -1)


def compare(
    task: TaskType, d: TaskConfig, answers: list[dict[str, Any]], logits_of: Any, folder: Path
) -> None:
    """Compare answers with the logits of another program, which are those of `inputs` from the
    folder's tokenizer."""
    read = transformers.AutoTokenizer.from_pretrained(folder)
    if task == "choice":
        inputs = read([CHOICES[0]] * 2, list(CHOICES[1:]), padding=True, return_tensors="np")
        p = softmax(logits_of({name: value[None] for name, value in inputs.items()})[0])
        assert answers[0]["scores"] == pytest.approx(p.tolist(), abs=TOLERANCE)
        assert answers[0]["choice"] == p.argmax()
        return
    for text, answer in zip(TEXTS, answers, strict=True):
        inputs = read(text, return_tensors="np")
        p = probabilities_of(logits_of(dict(inputs))[0], task)
        if task in ("classification", "multilabel"):
            assert list(answer["scores"].values()) == pytest.approx(p.tolist(), abs=TOLERANCE)
            expected = [d.labels[n] for n in np.argsort(-p) if p[n] >= 0.55]
            best = [d.labels[int(p.argmax())]]
            assert answer.get("labels", [answer.get("label")]) == (
                expected if task == "multilabel" else best
            )
        elif task == "tagging":
            words = inputs.word_ids(0)
            first_pieces = [
                n for n, word in enumerate(words) if word is not None and word != words[n - 1]
            ]
            assert list(answer["scores"]) == pytest.approx(
                p[first_pieces].max(-1).tolist(), abs=TOLERANCE
            )
            assert answer["tags"] == [d.labels[n] for n in p[first_pieces].argmax(-1)]
        else:
            for entity in answer["entities"]:
                ends = read(text, return_offsets_mapping=True)["offset_mapping"]
                tokens = [
                    n for n, (a, b) in enumerate(ends) if entity["start"] <= a < b <= entity["end"]
                ]
                assert entity["score"] == pytest.approx(p[tokens].max(-1).mean(), abs=TOLERANCE)


@pytest.mark.parametrize("by_earlier_version", [False, True], ids=["now", "earlier"])
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # transformers' own
def test_transformers_and_onnx_give_the_probabilities(
    task: TaskType, by_earlier_version: bool, tmp_path: Path
) -> None:
    """Saving and exporting put the temperature into the weights once, whichever version wrote the
    folder."""
    d, model_class = TASKS[task]
    source = write_folder(tmp_path / "source", d, by_earlier_version=by_earlier_version)
    answers = answers_of(source, task)
    if task == "spans":
        assert any(answer["entities"] for answer in answers)
    list(convert(source, tmp_path / "model"))
    list(export(source, tmp_path / "onnx"))
    list(export(tmp_path / "model", tmp_path / "onnx-2"))
    network = model_class.from_pretrained(tmp_path / "model").eval()

    def logits_in_transformers(inputs: dict[str, np.ndarray]) -> np.ndarray:
        with torch.no_grad():
            return network(
                **{name: torch.from_numpy(x) for name, x in inputs.items()}
            ).logits.numpy()

    compare(task, d, answers, logits_in_transformers, tmp_path / "model")
    compare(
        task, d, answers_of(tmp_path / "model", task), logits_in_transformers, tmp_path / "model"
    )
    for name in ("onnx", "onnx-2"):
        session = onnxruntime.InferenceSession(
            str(tmp_path / name / "model.onnx"), providers=["CPUExecutionProvider"]
        )
        compare(
            task,
            d,
            answers,
            lambda inputs, session=session: session.run(["logits"], inputs)[0],
            tmp_path / name,
        )
        compare(task, d, answers_of(tmp_path / name, task), logits_in_transformers, tmp_path / name)
    for name in ("model", "onnx", "onnx-2"):
        description = ModelFolder(tmp_path / name).task_config
        assert (description.temperature, description.weights_temperature) == (1, TEMPERATURE)
        assert description.threshold == d.threshold


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # transformers' own
def test_pipelines_give_the_probabilities(tmp_path: Path) -> None:
    for task in ("classification", "multilabel"):
        folder = write_folder(tmp_path / task, TASKS[task][0])
        ask = transformers.pipeline("text-classification", model=str(folder), top_k=None)
        for answer, rows in zip(answers_of(folder, task), ask(TEXTS), strict=True):
            scores = {row["label"]: row["score"] for row in rows}
            assert scores == pytest.approx(answer["scores"], abs=TOLERANCE)
    folder = write_folder(tmp_path / "tagging", TASKS["tagging"][0])
    ask = transformers.pipeline("token-classification", model=str(folder), ignore_labels=[])
    for answer, rows in zip(answers_of(folder, "tagging"), ask(TEXTS), strict=True):
        of_words = [row for row in rows if not row["word"].startswith("##")]
        assert [row["entity"] for row in of_words] == answer["tags"]
        assert [row["score"] for row in of_words] == pytest.approx(
            list(answer["scores"]), abs=TOLERANCE
        )


def test_the_last_layer_alone_is_divided_and_only_once(tmp_path: Path) -> None:
    d = TASKS["classification"][0]
    earlier = ModelFolder(
        write_folder(tmp_path / "earlier", d, by_earlier_version=True)
    ).load_state()
    list(convert(tmp_path / "earlier", tmp_path / "model"))
    now = ModelFolder(tmp_path / "model").load_state()
    assert now.keys() == earlier.keys()
    for name, value in earlier.items():
        divisor = TEMPERATURE if name.startswith("classifier.") else 1
        assert torch.equal(now[name], value / divisor), name
    list(convert(tmp_path / "model", tmp_path / "again"))
    for name in ("model.safetensors", "task.json", "config.json"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "model" / name).read_bytes()


def test_cards_of_earlier_versions_lose_the_advice_to_divide(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "earlier", TASKS["classification"][0], by_earlier_version=True)
    (folder / "result.json").write_text(
        json.dumps({"weights_sha256": "0", "calibration": {"temperature": 2.5}})
    )
    answers = answers_of(folder, "classification")
    *notes, _ = convert(folder, tmp_path / "converted")
    assert any("divided by the temperature 2.5 of task.json" in note.text for note in notes)
    Predictor(folder, device="cpu").save(tmp_path / "saved")
    for name in ("converted", "saved"):
        card = (tmp_path / name / "README.md").read_text()
        assert "divide the logits" not in card
        assert card.endswith("## Recipe\n")
        for answer, expected in zip(
            answers_of(tmp_path / name, "classification"), answers, strict=True
        ):
            assert answer["scores"] == pytest.approx(expected["scores"], abs=TOLERANCE)
        assert ModelFolder(tmp_path / name).task_config.weights_temperature == TEMPERATURE
    result = json.loads((tmp_path / "saved/result.json").read_text())
    assert result["calibration"] == {"temperature": 2.5}
    assert (
        result["weights_sha256"]
        == json.loads((tmp_path / "saved/weights.json").read_text())["weights_sha256"]
    )
    assert "divide the logits" in (folder / "README.md").read_text()  # the source stays as it is


# --- trainings
# --------------------------------------------------------------------------------------------------

FAST = ("optimizer.learning_rate=2e-3", "epochs=2", "precision=fp32")


def train(data: Path, output: Path, model: Path, **options: Any) -> None:
    overrides = FAST[2:] if options["method"] == "frozen" else FAST
    request = make_finetune_request(
        data, model=model, overrides=overrides, validation="split", **options
    )
    for _ in finetune_events(output, request, device="cpu", compares=False):
        pass


def test_a_training_puts_the_temperature_into_the_weights_and_keeps_it_as_a_fact(
    model: Path, tmp_path: Path
) -> None:
    data = write_reviews(tmp_path / "d.csv", 600)
    train(data, tmp_path / "out", model, method="full")
    temperature = json.loads((tmp_path / "out/result.json").read_text())["calibration"][
        "temperature"
    ]
    description = ModelFolder(tmp_path / "out").task_config
    assert temperature != 1
    assert (description.temperature, description.weights_temperature) == (1, temperature)
    card = (tmp_path / "out/README.md").read_text()
    assert f"(T = {temperature:.3g}, fitted on" in card
    assert "divide the logits" not in card
    assert f"{temperature:.3g}" in (tmp_path / "out/report.html").read_text()
    assert not (tmp_path / "out/checkpoints").exists()
    answers = answers_of(tmp_path / "out", "classification")
    ask = transformers.pipeline("text-classification", model=str(tmp_path / "out"), top_k=None)
    for answer, rows in zip(answers, ask(TEXTS), strict=True):
        assert {row["label"]: row["score"] for row in rows} == pytest.approx(
            answer["scores"], abs=TOLERANCE
        )


class KilledError(Exception):
    """Stands for the end of the process."""


def stopped_in(monkeypatch: pytest.MonkeyPatch, name: str, events: Iterator[Any]) -> None:
    """Run until the final evaluation calls a function."""

    def kill(*_: Any, **__: Any) -> None:
        raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr(finetune_module, name, kill)
        with pytest.raises(KilledError):
            list(events)


SAME_FILES = (
    "model.safetensors",
    "task.json",
    "weights.json",
    "result.json",
    "README.md",
    "errors.csv",
)


@pytest.mark.parametrize("method", ["full", "frozen"])
def test_a_run_that_is_stopped_after_the_division_ends_with_the_same_bits(
    method: Any, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_reviews(tmp_path / "d.csv", 600)
    options: dict[str, Any] = {"model": model, "method": method, "validation": "split"}
    request = make_finetune_request(
        data, overrides=FAST[2:] if method == "frozen" else FAST, **options
    )

    def events(folder: str) -> Iterator[Any]:
        return finetune_events(tmp_path / folder / "out", request, device="cpu", compares=False)

    list(events("whole"))
    # the last one writes finished.json
    for name in ("write_errors", "write_task_report", "write_json"):
        stopped_in(monkeypatch, name, events("stopped"))
    list(events("stopped"))
    whole, stopped = tmp_path / "whole/out", tmp_path / "stopped/out"
    assert ModelFolder(whole).task_config.weights_temperature != 1
    for name in SAME_FILES:
        assert (stopped / name).read_bytes() == (whole / name).read_bytes(), name
    assert not (stopped / "checkpoints").exists()


@pytest.mark.slow
def test_a_joint_run_that_is_stopped_after_the_division_ends_with_the_same_bits(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = {
        "reviews": write_reviews(tmp_path / "reviews.csv", 600),
        "topics": write_multilabel(tmp_path / "topics.jsonl", 600),
    }
    request = make_joint_request([str(path) for path in data.values()], model=model, overrides=FAST)

    def events(folder: str) -> Iterator[Any]:
        return joint_events(tmp_path / folder / "out", request, device="cpu", compares=False)

    list(events("whole"))
    stopped_in(monkeypatch, "write_errors", events("stopped"))
    list(events("stopped"))
    body = "model-00001-of-00002.safetensors"
    for task in data:
        whole, stopped = tmp_path / "whole/out/tasks" / task, tmp_path / "stopped/out/tasks" / task
        assert ModelFolder(whole).task_config.weights_temperature != 1
        assert not (stopped / "checkpoints").exists()
        for name in (
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
            *SAME_FILES[1:],
        ):
            assert (stopped / name).read_bytes() == (whole / name).read_bytes(), name
        assert Predictor(whole, device="cpu").predict(["good film"])
    inodes = {(tmp_path / "whole/out/tasks" / task / body).stat().st_ino for task in data}
    assert len(inodes) == 1  # the encoder is still one file on the disk


@pytest.fixture(scope="module")
def calibrated(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Data, and a model that was trained on them."""
    home = tmp_path_factory.mktemp("calibrated")
    data = write_reviews(home / "d.csv", 600)
    train(data, home / "out", model, method="full")
    return data, home / "out"


def job_of(data: Path, model: Path, **options: Any) -> FinetuneJob:
    request = make_finetune_request(
        data, model=model, overrides=FAST, method="full", validation="split", **options
    )
    return FinetuneJob(prepare_finetuning(request, CPU))


def test_further_training_begins_with_the_logits_of_the_training(
    calibrated: tuple[Path, Path],
) -> None:
    data, folder = calibrated
    temperature = ModelFolder(folder).task_config.weights_temperature
    in_folder = ModelFolder(folder).load_state()
    job = job_of(data, folder)
    started = job.initial_network()[0].state_dict()
    order = [
        ModelFolder(folder).task_config.labels.index(label) for label in job.description.labels
    ]
    for name in ("classifier.weight", "classifier.bias"):
        assert torch.equal(started[name], (in_folder[name] * temperature)[order])
    assert (job.description.temperature, job.description.weights_temperature) == (1, 1)


# --- numbers
# --------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # transformers' own
def test_a_cross_encoder_predicts_the_number(tmp_path: Path) -> None:
    from sentence_transformers import CrossEncoder

    d = TaskConfig(task="regression", text=("a", "b"), max_length=64)
    state = perturbed_state(d)
    state["classifier.bias"] += 2.6  # far from what a sigmoid gives
    save_model(
        tmp_path / "model", state, CONFIG, tokenizer(64), card="", head=task_settings(d), task=d
    )
    pairs = [("the film was good", "a bad story"), ("great music", "men and dogs")]
    values = [
        answer["value"]
        for answer in Predictor(tmp_path / "model", device="cpu", precision="fp32").predict(pairs)
    ]
    assert all(value > 1.2 for value in values)
    assert CrossEncoder(str(tmp_path / "model"), device="cpu").predict(
        pairs
    ).tolist() == pytest.approx(values, abs=1e-5)
    ask = transformers.pipeline("text-classification", model=str(tmp_path / "model"))
    rows = ask([{"text": a, "text_pair": b} for a, b in pairs])
    assert [row["score"] for row in rows] == pytest.approx(values, abs=1e-5)
    list(convert(tmp_path / "model", tmp_path / "converted"))
    assert (tmp_path / "converted/config.json").read_bytes() == (
        tmp_path / "model/config.json"
    ).read_bytes()
