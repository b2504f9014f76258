"""Long texts in windows: training, prediction, evaluation, vectors, search, serving, explanation
and export compute the mean of the vectors of the same windows."""

import csv
import json
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertworks.batching.batch import collate
from bertworks.checkpoints.model_folder import load_model, save_model
from bertworks.checkpoints.storage import read_json
from bertworks.checkpoints.task_config import save_task, task_settings
from bertworks.cli.main import main
from bertworks.datasets.schema import Item
from bertworks.errors import BertworksError, UsageError
from bertworks.evaluation.evaluate import evaluate_task
from bertworks.inference.embed_file import embed_file
from bertworks.inference.embedder import Embedder, embed
from bertworks.inference.explain import explain
from bertworks.inference.predictor import Predictor, predict_file
from bertworks.interop.export import export
from bertworks.models.config import EncoderConfig
from bertworks.retrieval.index import Index, index_file
from bertworks.runs.dataset_report import check_file
from bertworks.runs.finetune import finetune_events, make_finetune_request
from bertworks.runs.joint import joint_events, make_joint_request
from bertworks.tasks.heads import TaskModel
from bertworks.tasks.registry import task_of
from bertworks.tasks.sequences import window_starts
from bertworks.tasks.settings import TaskConfig
from bertworks.training.recipe import LONG_TEXT
from tests.support.fine import (
    BAD,
    FILLER,
    GOOD,
    sentence,
    tokenizer,
    write_choices,
    write_conll,
    write_model,
    write_reviews,
)
from tests.support.refusals import refusal
from tests.support.served import Local

LENGTH = 16  # of the windows
SHORT = "a good film"
LONG = "the film was a story of men and dogs in this town " * 4
LONGER = "some music that they heard last night " * 7
FAST = (
    "optimizer.learning_rate=1e-3",
    "precision=fp32",
    "head_deviation=0",
    "batch_size=8",
    f"max_length={LENGTH}",
)


def write_task_model(folder: Path, windows: int = 3, **description: Any) -> Path:
    """A tiny fine-tuned model: every parameter is random, also those of norms and all biases."""
    t = tokenizer()
    d = TaskConfig(max_length=LENGTH, windows=windows, **description)
    config = EncoderConfig(
        vocab_size=t.vocab_size,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
        initializer_range=0.3,
    )
    torch.manual_seed(1)
    state = {
        name: value + 0.2 * torch.randn_like(value)
        for name, value in TaskModel(config, task_of(d).head()).state_dict().items()
    }
    save_model(folder, state, config, t, card="tiny", head=task_settings(d))
    save_task(d, folder)
    return folder


TASKS: dict[str, dict[str, Any]] = {
    "labels": {"task": "classification", "labels": ("a", "b", "c"), "text": ("text",)},
    "means": {
        "task": "classification",
        "labels": ("a", "b", "c"),
        "text": ("text",),
        "vectors": "mean",
    },
    "several": {"task": "multilabel", "labels": ("a", "b"), "text": ("text",)},
    "pairs": {"task": "regression", "text": ("one", "two")},
    "apart": {"task": "regression", "text": ("one", "two"), "vectors": "pair"},
    "cosines": {"task": "regression", "text": ("one", "two"), "vectors": "cosine"},
}


def texts_of(name: str) -> list[Any]:
    if len(TASKS[name]["text"]) == 1:
        return [SHORT, LONG, LONGER, SHORT, LONG + LONGER]
    return [(SHORT, SHORT), (LONG, SHORT), (SHORT, LONGER), (LONG, LONGER), (LONGER, LONG)]


def windows_by_hand(ids: Sequence[int], room: int, most: int) -> list[list[int]]:
    """Windows one after the other, in plain Python."""
    windows = [list(ids[:room])]
    start = 0
    while start + room < len(ids) and len(windows) < most:
        start = min(start + room // 2, len(ids) - room)
        windows.append(list(ids[start : start + room]))
    return windows


@torch.no_grad()
def vectors_by_hand(model: Path, ids_and_types: Sequence[tuple[list[int], list[int]]]) -> Any:
    """The vectors before the output layer, float64, one sequence at a time and without windows."""
    predictor = Predictor(model, device="cpu", precision="fp32")
    plain = replace(predictor.description, vectors="mean")
    network = predictor.network
    if predictor.description.vectors != "pooler":
        network.task = task_of(plain).head()
    rows = []
    for ids, types in ids_and_types:
        (features,) = predictor.reading([Item((SHORT,) * len(plain.text), None, "x:1")])
        example = features.unit[0]._replace(
            input_ids=np.array(ids), token_type_ids=np.array(types), window=0
        )
        rows.append(network.head_inputs(collate([example]))[0].double().numpy())
    return np.array(rows)


def logits_by_hand(model: Path, text: Any) -> Any:
    """The logits of a text as the guide defines them."""
    predictor = Predictor(model, device="cpu", precision="fp32")
    d, t = predictor.description, predictor.tokenizer
    texts = (text,) if isinstance(text, str) else text
    (begin,), (sep,) = t.template.prefix, t.template.suffix
    rows = [t.ids([part])[0] for part in texts]
    state = load_model(model).state
    weight, bias = (state[f"classifier.{name}"].double().numpy() for name in ("weight", "bias"))

    def mean(sequences: list[tuple[list[int], list[int]]]) -> Any:
        return vectors_by_hand(model, sequences).mean(0)

    def alone(row: list[int]) -> Any:
        windows = windows_by_hand(row, LENGTH - 2, d.windows)
        return mean([([begin, *w, sep], [0] * (len(w) + 2)) for w in windows])

    if d.vectors in ("pair", "cosine"):
        u, v = (alone(row) / np.linalg.norm(alone(row)) for row in rows)
        x = np.concatenate([abs(u - v), u * v, [u @ v]])
        x = x[-1:] if d.vectors == "cosine" else x
    elif len(rows) == 1:
        x = alone(rows[0])
    else:
        room = LENGTH - 3
        first, second = rows
        if len(first) + len(second) <= room:
            windows = [(first, second)]
        elif len(first) > len(second):
            second = second[: room // 2]
            windows = [(w, second) for w in windows_by_hand(first, room - len(second), d.windows)]
        else:
            first = first[: (room + 1) // 2]
            windows = [(first, w) for w in windows_by_hand(second, room - len(first), d.windows)]
        x = mean(
            [
                ([begin, *a, sep, *b, sep], [0] * (len(a) + 2) + [1] * (len(b) + 1))
                for a, b in windows
            ]
        )
    return weight @ x + bias


@pytest.mark.parametrize("name", TASKS)
def test_logits_are_those_of_the_mean_vector_of_all_windows(name: str, tmp_path: Path) -> None:
    model = write_task_model(tmp_path / "m", **TASKS[name])
    predictor = Predictor(model, device="cpu", precision="fp32")
    texts = texts_of(name)
    items = [Item((t,) if isinstance(t, str) else t, None, f"x:{n}") for n, t in enumerate(texts)]
    rows = list(predictor.reading(items))
    assert max(len(row.unit) for row in rows) >= 3
    together = predictor.logits([row.unit for row in rows])
    for text, row, logits in zip(texts, rows, together, strict=True):
        (alone,) = predictor.logits([row.unit])
        assert logits.shape[0] == 1
        np.testing.assert_allclose(logits, alone, atol=2e-6)
        np.testing.assert_allclose(logits[0], logits_by_hand(model, text), atol=5e-6)
    # a text that is not longer than a window is not changed by their number
    cut = Predictor(
        write_task_model(tmp_path / "cut", 0, **TASKS[name]), device="cpu", precision="fp32"
    )
    (without,) = cut.logits([row.unit for row in cut.reading(items[:1])])
    (with_windows,) = predictor.logits([rows[0].unit])
    assert without.tobytes() == with_windows.tobytes()


def test_what_is_said_of_long_texts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_task_model(tmp_path / "m", **TASKS["labels"])
    data = tmp_path / "rows.csv"
    longest = LONG + LONGER
    data.write_text(f"text,label\n{SHORT},a\n{LONG},b\n{longest},c\n")
    t = Predictor(model, device="cpu").tokenizer
    counts = [len(ids) for ids in t.ids([LONG, longest])]
    room = LENGTH - 2
    read = room + 2 * (room // 2)
    left_out = [max(0, count - read) for count in counts]
    share = sum(left_out) / (sum(counts))
    assert all(left_out)
    result = evaluate_task(model, data, device="cpu")
    assert (result["truncated"], result["truncated_tokens"]) == (2, sum(left_out))
    assert result["truncated_share"] == pytest.approx(share)
    assert result["in_windows"] == 2
    assert main(["evaluate", "task", str(model), str(data)]) == 0
    said = capsys.readouterr()
    assert "2 of 3 rows are longer than one window, and were read in several" in said.err
    assert f"2 of 3 rows were truncated: {share:.1%} of their tokens were left out" in said.out
    *_, done = predict_file(model, data, tmp_path / "out.jsonl", device="cpu")
    assert done.text.endswith(
        f"out.jsonl; 2 texts were truncated: {share:.1%} of their tokens were left out; 2 texts "
        "were read in several windows"
    )
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["truncated_tokens"] for row in rows] == [0, *left_out]
    answers = Predictor(model, device="cpu").predict([SHORT, LONG, longest])
    assert [answer.get("truncated_tokens", 0) for answer in answers] == [0, *left_out]
    assert [row["predicted_label"] for row in rows] == [answer["label"] for answer in answers]


@pytest.mark.slow
def test_of_a_text_of_many_words_no_more_is_read_than_its_windows(tmp_path: Path) -> None:
    model = write_task_model(tmp_path / "m", **TASKS["labels"])
    predictor = Predictor(model, device="cpu", precision="fp32")
    text = LONG * 20_000  # a million words
    begin = time.process_time()
    (features,) = predictor.reading([Item((text,), None, "x:1")])
    (answer,) = predictor.predict([text])
    assert time.process_time() - begin < 60
    assert [len(example.input_ids) for example in features.unit] == [LENGTH] * 3
    assert features.num_read + features.num_truncated == 12 * 4 * 20_000
    assert answer["truncated_tokens"] == features.num_truncated
    (beginning,) = predictor.reading([Item((LONG * 3,), None, "x:1")])
    for one, other in zip(features.unit, beginning.unit, strict=True):
        assert one.input_ids.tolist() == other.input_ids.tolist()


@pytest.mark.parametrize("text", ["", " ", "a", "\ufffd"])
def test_texts_of_one_token_or_none(text: str, tmp_path: Path) -> None:
    model = write_task_model(tmp_path / "m", **TASKS["labels"])
    cut = write_task_model(tmp_path / "cut", 0, **TASKS["labels"])
    one, other = (Predictor(m, device="cpu").predict([text])[0] for m in (model, cut))
    assert one == other


# --- training


def write_long_reviews(path: Path, long: int, short: int, seed: int = 0) -> Path:
    """Texts of which the word that decides stands behind the first window, if they are long."""
    draw = random.Random(seed)
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["text", "label"])
        for number in range(long + short):
            is_good = draw.random() < 0.5
            word = draw.choice(GOOD if is_good else BAD)
            text = sentence(draw, word)
            if number < long:
                text = " ".join([*draw.choices(FILLER, k=20), word, *draw.choices(FILLER, k=5)])
            rows.writerow([text, "pos" if is_good else "neg"])
    return path


def finetune(data: Path, output: Path, model: Path, *overrides: str, **options: Any) -> Any:
    options = {"method": "full", "validation": "split", "model": model} | options
    request = make_finetune_request(data, overrides=(*FAST, *overrides), **options)
    *events, last = finetune_events(output, request, device="cpu", compares=False)
    (plan,) = [event for event in events if event.kind == "plan"]
    return plan.text, last


@pytest.mark.parametrize(("long", "chosen"), [(2, False), (4, True)])
def test_windows_are_chosen_if_more_than_a_twentieth_of_the_rows_is_longer(
    long: int, chosen: bool, model: Path, tmp_path: Path
) -> None:
    data = write_long_reviews(tmp_path / "rows.csv", long, 60 - long)
    plan, _ = finetune(data, tmp_path / "out", model, "epochs=1")
    # 3 of 60 rows are a twentieth
    most = len(window_starts(LONG_TEXT, LENGTH - 2, 64)) if chosen else 0
    assert read_json(tmp_path / "out" / "task.json")["windows"] == most
    assert f"windows = {most}" in (tmp_path / "out" / "recipe.toml").read_text()
    report = check_file(data, model=model)  # of 64 tokens
    assert report.lengths.most_windows == 0
    if chosen:
        assert f"up to {most} of 16 tokens for a text: " in plan
        assert "(6.7%) have more than 16 and are read in up to 64 windows" in plan
        assert "windows" in (tmp_path / "out" / "README.md").read_text()
    else:
        assert "have more than 16 and are truncated: " in plan
        assert "\nwindows " not in plan
    plan, _ = finetune(data, tmp_path / "cut", model, "epochs=1", windows=0)
    assert "are truncated: " in plan
    assert read_json(tmp_path / "cut" / "task.json")["windows"] == 0


def test_the_number_of_windows_is_said_before_the_training(model: Path, tmp_path: Path) -> None:
    draw = random.Random(0)
    with (tmp_path / "rows.csv").open("w") as file:
        file.write("text,label\n")
        for number in range(40):
            words = draw.choices(FILLER, k=100 if number < 20 else 5)
            file.write(f"{' '.join(words)},{'ab'[number % 2]}\n")
    report = check_file(tmp_path / "rows.csv", model=model)
    assert report.lengths.most_windows == 64
    assert not report.many_lose_their_end
    assert "are read in up to 64 windows" in str(report)


def test_a_word_behind_the_first_window_is_learned(model: Path, tmp_path: Path) -> None:
    data = write_long_reviews(tmp_path / "rows.csv", 160, 0)
    dev = write_long_reviews(tmp_path / "dev.csv", 60, 0, seed=1)
    figures = {}
    for windows in (0, 4):
        _, last = finetune(
            data, tmp_path / f"{windows}", model, "epochs=10", windows=windows, dev=dev
        )
        figures[windows] = last.fields["figures"]["accuracy"]
    assert figures[4] > 0.9
    assert figures[0] < 0.75
    result = evaluate_task(tmp_path / "4", dev, device="cpu")
    assert result["figures"]["accuracy"] == figures[4]


def test_a_stopped_training_in_windows_goes_on_to_the_same_bits(
    model: Path, tmp_path: Path
) -> None:
    data = write_long_reviews(tmp_path / "rows.csv", 30, 20)
    overrides = (*FAST, "epochs=2", "save_every=3")
    request = make_finetune_request(
        data, model=model, method="full", validation="split", overrides=overrides
    )
    *_, whole = finetune_events(tmp_path / "whole", request, device="cpu", compares=False)
    for limit in (4, 9):
        for event in finetune_events(tmp_path / "parts", request, device="cpu", compares=False):
            if event.kind == "step" and event.fields["step"] % limit == 0:
                break
    *_, last = finetune_events(tmp_path / "parts", request, device="cpu", compares=False)
    for file in ("model.safetensors", "task.json", "recipe.toml"):
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "parts" / file).read_bytes()
    assert last.fields["figures"] == whole.fields["figures"]


def test_short_texts_are_learned_as_ever(model: Path, tmp_path: Path) -> None:
    data = write_reviews(tmp_path / "rows.csv", 40)
    for windows in (0, 3):
        finetune(data, tmp_path / str(windows), model, "epochs=1", "max_length=32", windows=windows)
    one, other = (tmp_path / name / "model.safetensors" for name in ("0", "3"))
    assert one.read_bytes() == other.read_bytes()


def test_micro_batches_of_windows_have_the_gradient_of_one_batch(
    model: Path, tmp_path: Path
) -> None:
    data = write_long_reviews(tmp_path / "rows.csv", 30, 10)
    states = []
    for tokens in (64, 100_000):
        folder = tmp_path / str(tokens)
        finetune(data, folder, model, "epochs=1", f"micro_batch_tokens={tokens}", windows=3)
        states.append(load_model(folder).state)
    for name, value in states[0].items():
        torch.testing.assert_close(value, states[1][name], atol=2e-5, rtol=0)


@pytest.mark.parametrize("method", ["frozen", "contrastive", "static"])
def test_methods_for_few_rows_read_windows(method: Any, model: Path, tmp_path: Path) -> None:
    data = write_long_reviews(tmp_path / "rows.csv", 40, 10)
    settings = ["precision=fp32", f"max_length={LENGTH}"]
    if method != "frozen":
        settings.append("epochs=1")
    request = make_finetune_request(
        data, model=model, method=method, windows=3, validation="split", overrides=settings
    )
    list(finetune_events(tmp_path / "out", request, device="cpu", compares=False))
    predictor = Predictor(tmp_path / "out", device="cpu")
    assert predictor.description.windows == 3
    (features,) = predictor.reading([Item((LONG,), None, "x:1")])
    assert len(features.unit) == 3


def test_a_teacher_teaches_the_windows(model: Path, tmp_path: Path) -> None:
    data = write_long_reviews(tmp_path / "rows.csv", 30, 10)
    finetune(data, tmp_path / "teacher", model, "epochs=1", windows=3)
    _, last = finetune(
        data, tmp_path / "out", model, "epochs=1", windows=3, teacher=tmp_path / "teacher"
    )
    assert last.fields["figures"].keys() >= {"accuracy"}


def test_several_tasks_have_one_number_of_windows(model: Path, tmp_path: Path) -> None:
    data = {"long": write_long_reviews(tmp_path / "rows.csv", 30, 10)}
    data["tags"] = write_conll(tmp_path / "tags.conll", 30)
    options = {"model": model, "overrides": ("epochs=1", f"max_length={LENGTH}")}
    request = make_joint_request(data, **options)
    list(joint_events(tmp_path / "joint", request, device="cpu", compares=False))
    assert read_json(tmp_path / "joint/tasks/long/task.json")["windows"] == 0
    del data["tags"]
    data["others"] = write_long_reviews(tmp_path / "others.csv", 10, 20)
    request = make_joint_request(data, windows=3, **options)
    list(joint_events(tmp_path / "both", request, device="cpu", compares=False))
    for name in data:
        assert read_json(tmp_path / f"both/tasks/{name}/task.json")["windows"] == 3


# --- the same in all places


@pytest.mark.parametrize("name", ["labels", "means", "pairs"])
def test_an_exported_model_has_the_logits_of_the_model(name: str, tmp_path: Path) -> None:
    model = write_task_model(tmp_path / "m", **TASKS[name])
    list(export(model, tmp_path / "onnx"))
    texts = texts_of(name)
    ours, theirs = (
        Predictor(folder, device="cpu", precision="fp32") for folder in (model, tmp_path / "onnx")
    )
    assert theirs.description.windows == 3
    items = [Item((t,) if isinstance(t, str) else t, None, f"x:{n}") for n, t in enumerate(texts)]
    units = [row.unit for row in ours.reading(items)]
    for one, other in zip(ours.logits(units), theirs.logits(units), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    assert "windows" in (tmp_path / "onnx" / "README.md").read_text()


def test_a_server_predicts_as_python_does(tmp_path: Path) -> None:
    model = write_task_model(tmp_path / "m", **TASKS["labels"])
    texts = texts_of("labels")
    expected = Predictor(model, device="cpu", precision="fp32").predict(texts, probabilities=True)
    with Local(model, precision="fp32") as local:
        assert local.send("GET", "/info").json()["windows"] == 3
        answer = local.post("/predict", {"inputs": [[text] for text in texts]})
        for one, other in zip(answer.json(), expected, strict=True):
            scores = {row["label"]: row["score"] for row in one}
            assert scores == pytest.approx(other["scores"], abs=1e-6)
        num_truncated = [row.get("truncated_tokens", 0) for row in expected]
        assert answer.headers["x-truncated-tokens"] == str(sum(num_truncated))
        assert answer.headers["x-truncated-texts"] == str(sum(map(bool, num_truncated)))
    with refusal("reads the number of windows of its training", "leave --windows out"):
        Local(model, windows=3)


@pytest.mark.parametrize("name", ["labels", "pairs", "apart"])
def test_words_are_explained_over_all_windows(name: str, tmp_path: Path) -> None:
    model = write_task_model(tmp_path / "m", **TASKS[name])
    texts = {"labels": (LONG,), "pairs": (LONGER, SHORT), "apart": (SHORT, LONG)}[name]
    e = explain(model, *texts, device="cpu")
    predictor = Predictor(model, device="cpu", precision="fp32")
    t = predictor.tokenizer
    (features,) = predictor.reading([Item(texts, None, "x:1")])
    words = [word for word in e.words if not word.startswith("[")]
    # of each text the words that are read, each once
    assert len(words) < sum(len(example.input_ids) for example in features.unit)
    whole = [t.decode(ids).split() for ids in t.ids(list(texts))]
    assert " ".join(words) in {
        " ".join(whole[0][:n] + (whole[1][:m] if len(whole) > 1 else []))
        for n in range(len(whole[0]) + 1)
        for m in range(len(whole[-1]) + 1)
    }
    assert e.gradients is not None
    assert e.occlusion is not None
    assert abs(e.gradients.error) < 0.02 * abs(e.gradients.attributions).sum()

    # without a word, in all windows
    def value(inputs: tuple[str, ...]) -> float:
        ((_, answer),) = predictor.answers([Item(inputs, None, "x:1")])
        if "value" in answer:
            return float(answer["value"])
        (logits,) = predictor.logits([next(iter(predictor.reading([Item(inputs, None, "")]))).unit])
        label = max(e.answer, key=lambda row: float(row[1].rstrip("%")))[0]
        number = predictor.description.labels.index(label)
        others = np.delete(logits[0].astype(float), number)
        return float(logits[0][number] - np.log(np.exp(others).sum()))

    number = len(e.words) // 2
    while e.words[number].startswith("["):
        number += 1
    place = sum(not word.startswith("[") for word in e.words[:number])
    parts = [text.split() for text in texts]
    which = 0
    first = sum(1 for word in e.words[: e.words.index("[SEP]")] if not word.startswith("["))
    if place >= first:
        which, place = 1, place - first
    assert parts[which][place] == e.words[number]
    parts[which][place] = "[MASK]"
    ids = t.ids([" ".join(parts[which])], reads_special_tokens=True)[0]
    assert t.mask_id in ids
    fall = value(texts) - value(tuple(map(" ".join, parts)))
    if e.spans[number][1] - e.spans[number][0] == 1:
        assert e.occlusion[number] == pytest.approx(fall, abs=1e-4)
    assert any("windows: words are explained over all of them" in line for line in e.notes)
    assert e.similarity.shape[-1] <= LENGTH
    assert e.attention[0].shape[-1] == e.similarity.shape[-1]
    assert e.maps()["tokens"] == e.tokens[: e.similarity.shape[-1]]


# --- vectors


@pytest.mark.parametrize("pooling", ["mean", "cls", "max", "last-four"])
def test_the_vector_of_a_text_is_the_mean_of_its_windows(pooling: Any, tmp_path: Path) -> None:
    model = write_model(tmp_path / "m", noise=0.1)
    options = {"pooling": pooling, "device": "cpu", "precision": "fp32", "max_length": LENGTH}
    windowed = Embedder(model, windows=3, normalize=True, **options)
    plain = Embedder(model, normalize=True, **options)
    raw = Embedder(model, normalize=False, **options)
    texts = [SHORT, LONG, LONGER, SHORT + " film", LONG + LONGER]
    vectors, counts = windowed.embed_and_count(texts)
    rows = raw.tokenizer.ids(texts)
    for text, row, vector in zip(texts, rows, vectors, strict=True):
        windows = windows_by_hand(row, LENGTH - 2, 3)
        units, _ = raw.units_of_ids(windows)
        mean = np.concatenate([raw.raw([unit]) for unit in units]).astype(float).mean(0)
        np.testing.assert_allclose(vector, mean / np.linalg.norm(mean), atol=1e-6)
        if len(windows) == 1:
            assert windowed.embed([text]).tobytes() == plain.embed([text]).tobytes()
    left_out = [max(0, len(row) - (14 + 2 * 7)) for row in rows]
    assert counts.tokens_left_out == sum(left_out)
    assert (counts.truncated, counts.in_windows) == (sum(map(bool, left_out)), 3)
    np.testing.assert_allclose(embed(model, [SHORT], windows=3), embed(model, [SHORT]))
    ends, _ = windowed.units([LONG], keep_end=True)
    assert ends[0][-1].input_ids.tolist()[1:-1] == rows[1][-14:]


def test_files_of_vectors_in_windows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_model(tmp_path / "m", noise=0.1)
    data = tmp_path / "texts.csv"
    data.write_text(f"text\n{SHORT}\n{LONG}\n{LONG}{LONGER}\n")
    words = ["embed", str(model), str(data), "--max-length", str(LENGTH), "--precision", "fp32"]
    assert main([*words, "--windows", "4", "-o", str(tmp_path / "four.npy")]) == 0
    said = capsys.readouterr()
    assert "2 texts were read in several windows" in said.out + said.err
    assert main([*words, "-o", str(tmp_path / "cut.npy")]) == 0
    said = capsys.readouterr()
    assert "2 texts were truncated: " in said.out + said.err
    assert "windows" not in said.out + said.err
    cut, four = (np.load(tmp_path / f"{name}.npy") for name in ("cut", "four"))
    np.testing.assert_allclose(cut[0], four[0], atol=1e-6)
    assert abs(cut[1:] - four[1:]).max() > 1e-3
    embedder = Embedder(model, windows=4, max_length=LENGTH, device="cpu", precision="fp32")
    np.testing.assert_allclose(
        four, embedder.embed([SHORT, LONG.strip(), f"{LONG}{LONGER}".strip()]), atol=1e-6
    )
    list(embed_file(model, data, tmp_path / "resumed.jsonl", windows=4, device="cpu"))


def test_an_index_keeps_its_number_of_windows(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m", noise=0.1)
    data = tmp_path / "texts.csv"
    data.write_text(f"id,text\n1,{SHORT}\n2,{LONG}\n3,{LONGER}\n")
    options = {"text": ["text"], "device": "cpu"}
    *_, done = index_file(
        data, tmp_path / "i", model=model, max_length=LENGTH, windows=3, **options
    )
    assert "2 texts were read in several windows" in done.text
    index = Index(tmp_path / "i", device="cpu")
    assert index.embedder.windows == 3
    embedder = Embedder(model, windows=3, max_length=LENGTH, normalize=True, device="cpu")
    expected = embedder.embed([SHORT, LONG.strip(), LONGER.strip()])
    np.testing.assert_allclose(index.segments[0].vectors[:], expected, atol=1e-6)
    assert index.query_tokens(LONG)[0] == 3 * LENGTH
    other = tmp_path / "others.csv"
    other.write_text(f"id,text\n4,{LONG}\n")
    list(index_file(other, tmp_path / "i", **options))
    list(index_file(other, tmp_path / "i", windows=3, **options))
    with pytest.raises(UsageError, match="the index has windows 3, not 0"):
        list(index_file(other, tmp_path / "i", windows=0, **options))
    list(index_file(data, tmp_path / "plain", model=model, **options))
    assert "windows" not in Index(tmp_path / "plain", device="cpu").manifest.fingerprint
    list(index_file(other, tmp_path / "plain", windows=1, **options))
    with pytest.raises(UsageError, match="the index has windows 0, not 3"):
        list(index_file(other, tmp_path / "plain", windows=3, **options))


def test_a_server_of_vectors_in_windows(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m", length=LENGTH, noise=0.1)
    embedder = Embedder(model, windows=3, normalize=True, device="cpu", precision="fp32")
    texts = [SHORT, LONG]
    with Local(model, windows=3, precision="fp32") as local:
        info = local.send("GET", "/info").json()
        assert (info["windows"], info["max_input_length"]) == (3, LENGTH)
        assert "embed_all" not in info["abilities"]
        answer = local.post("/embed", {"inputs": texts})
        np.testing.assert_allclose(answer.json(), embedder.embed(texts), atol=1e-6)
        left_out = embedder.units(texts)[1][1]
        assert answer.headers["x-truncated-tokens"] == str(left_out)
        usage = local.post("/v1/embeddings", {"input": texts}).json()["usage"]
        assert usage["prompt_tokens"] == sum(
            len(example.input_ids) for unit in embedder.units(texts)[0] for example in unit
        )
        assert local.post("/embed", {"inputs": LONG, "truncate": False}).status_code == 413
    with Local(model, precision="fp32") as local:
        assert local.send("GET", "/info").json()["windows"] == 0


# --- refusals


@pytest.mark.parametrize("windows", [-2, 65, 10**9])
def test_absurd_numbers_are_refused(windows: int, model: Path, tmp_path: Path) -> None:
    data = write_reviews(tmp_path / "rows.csv", 20)
    with pytest.raises(UsageError, match=r"windows.*expected 0 to 64, or -1"):
        finetune(data, tmp_path / "out", model, windows=windows)
    assert not (tmp_path / "out").exists()
    with refusal(f"windows is {windows}: a text is read in at most 64 windows", "truncates texts"):
        Embedder(model, windows=windows)
    assert main(["embed", str(model), "a text", "--windows", str(windows)]) == 2
    folder = write_task_model(tmp_path / "m", **TASKS["labels"])
    task = read_json(folder / "task.json") | {"windows": windows}
    (folder / "task.json").write_text(json.dumps(task))
    with pytest.raises(BertworksError, match=r"damaged.*windows.*expected 0 to 64"):
        Predictor(folder)


def test_tasks_that_read_all_of_a_text_or_a_choice_have_no_windows_to_set(
    model: Path, tmp_path: Path
) -> None:
    tags = write_conll(tmp_path / "tags.conll", 20)
    with refusal(
        "the number of windows is for classification, multilabel, regression, and the data is for "
        "tagging",
        "long texts are read in windows to their end",
    ):
        finetune(tags, tmp_path / "out", model, windows=4)
    choices = write_choices(tmp_path / "choices.csv", 20)
    with refusal("and the data is for choice", "leave --windows out"):
        finetune(choices, tmp_path / "out", model, windows=4)


def test_static_vectors_have_no_windows(model: Path, tmp_path: Path) -> None:
    from bertworks.interop.convert import convert

    list(convert(model, tmp_path / "static", static=8))
    with refusal("static vectors have no windows", "leave --windows out"):
        Embedder(tmp_path / "static", windows=2)


def test_a_folder_of_sentence_transformers_holds_no_windows(model: Path, tmp_path: Path) -> None:
    with refusal("a folder cannot hold windows", "leave windows out"):
        Embedder(model, windows=2).save(tmp_path / "out")


def test_a_budget_names_the_way_without_windows(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bertworks.runs import finetune as module
    from bertworks.runs.finetune_job import Forecast

    data = write_long_reviews(tmp_path / "rows.csv", 30, 10)
    monkeypatch.setattr(module, "forecast", lambda *_: Forecast(1e6, 1.0))
    with pytest.raises(UsageError) as caught:
        finetune(data, tmp_path / "out", model, "epochs=0", budget="1m", windows=3)
    assert caught.value.hint is not None
    assert " or --windows 0" in caught.value.hint


def test_windows_follow_each_other() -> None:
    assert all(b > a for a, b in pairwise(window_starts(100, 10, 64)))
