"""Commands that use a model: what they refuse, and what they print."""

import json
from io import StringIO
from pathlib import Path

import numpy as np
import pytest

import bertworks
from bertworks.datasets.schema import Item
from bertworks.tasks.registry import task_of
from bertworks.tasks.settings import TaskConfig
from tests.support.fine import write_reviews
from tests.support.gpt import write_gpt2
from tests.support.served import write_head
from tests.support.shell import Shell
from tests.support.tables import read_table, write_table

GENERATES = "bertworks generate gpt 'a text'"


@pytest.fixture
def gpt(shell: Shell) -> Path:
    write_gpt2(Path("gpt"))
    return Path("gpt")


@pytest.fixture
def classifier(shell: Shell) -> Path:
    return write_head(
        Path("classifier"), task="classification", text=("text",), labels=("neg", "pos")
    )


@pytest.mark.parametrize(
    ("command", "error", "hint"),
    [
        (
            "fill gpt 'a [MASK]'",
            "this model reads from left to right: it continues texts",
            'bertworks generate gpt "a text"',
        ),
        (
            "generate MODEL 'a text'",
            "this model reads in both directions: it cannot continue texts",
            'bertworks fill MODEL "a text with [MASK]"',
        ),
        (
            "generate gpt 'a text' --top-k 3",
            "temperature",
            "add --temperature 1, or leave them out",
        ),
        ("generate gpt 'a text' --text b", "text", "leave --text out"),
        (
            "generate gpt 'a text' --sampling model --temperature 1",
            "temperature, top_k and top_p are those of the model",
            "leave --sampling out, or the others",
        ),
        ("score gpt 'a text' --within-word", "masks nothing", "leave --within-word out"),
    ],
)
def test_models_of_the_other_direction(
    command: str, error: str, hint: str, gpt: Path, model: Path, shell: Shell
):
    shell.refuses(command.replace("MODEL", str(model)), error, hint.replace("MODEL", str(model)))


def test_threads_and_devices_that_do_not_exist(model: Path, shell: Shell):
    shell.refuses(
        f"fill {model} 'the [MASK]' --threads 0",
        "--threads 0: expected a number from 1",
        "--threads 1, or --threads auto",
    )
    data = write_reviews(Path("r.csv"), 5)
    shell.refuses(
        ["embed", model, data, "--text", "text", "-o", "v.npy", "--device", "cuda:99"],
        "there is no cuda:99",
        "leave --device out: `bertworks doctor` lists the devices",
    )


def test_a_model_without_a_mask_fills_nothing(model: Path, shell: Shell, tmp_path: Path):
    source = bertworks.load(model)
    tokens = [token for token in source.tokenizer.tokens if token != "[MASK]"]
    folder = tmp_path / "maskless"
    folder.mkdir()
    for path in model.iterdir():
        if path.name not in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
            (folder / path.name).write_bytes(path.read_bytes())
    (folder / "vocab.txt").write_text("\n".join(tokens))
    shell.refuses(
        ["fill", folder, "the [MASK]"], "the vocabulary lacks [MASK]", "add it, one token per line"
    )


def test_columns_without_texts(model: Path, shell: Shell):
    rows = [(f"2024-11-{day:02} 10:{day:02}:00, Monday", f"b{day}") for day in range(1, 29)]
    data = write_table("a.csv", ("time", "place"), *rows)
    shell.refuses(
        ["embed", model, data, "-o", "v.npy"],
        "holds dates, ids or numbers, not texts",
        "name another column with --text; or this one, --text time",
    )
    shell.refuses(
        ["embed", model, data, "--text", "place", "-o", "v.conll"],
        "CoNLL files cannot hold vectors",
        "use another format",
    )
    shell.refuses(["search", "nothing", "dogs"], "nothing", "bertworks index DOCUMENTS -o nothing")


def test_an_answer_needs_a_place(classifier: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch):
    data = write_reviews(Path("r.csv"), 5)
    Path("folder.csv").mkdir()
    shell.refuses(
        ["evaluate", "task", classifier, data, "--errors", "folder.csv"],
        "it is a folder",
        "choose another path with -o",
    )
    shell.works("predict", classifier, data, "-o", "out.csv")
    assert len(read_table("out.csv")) == 5
    monkeypatch.setattr("sys.stdout", None)  # as after >&-
    assert bertworks.cli.main.main(["predict", str(classifier), str(data)]) == 1


def test_a_note_on_the_sampling_of_a_model(gpt: Path, shell: Shell):
    file = gpt / "generation_config.json"
    file.write_text('{"do_sample": true, "top_k": 3}')
    answer = shell.works("generate", gpt, "a text")
    shell.shows(answer, "{} of the model has {}: not used without --sampling model")
    file.write_text(json.dumps({"do_sample": True, "min_p": 0.1}))
    shell.refuses(
        ["generate", gpt, "a text", "--sampling", "model"],
        "min_p",
        "leave --sampling out, and choose --temperature, --top-k and --top-p",
    )


def test_lines_of_standard_input(model: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.stdin", StringIO("a [MASK] film\n\n \nthe [MASK]\n"))
    answer = shell.works("fill", model, "-", "--top-k", "1")
    assert [line.split()[1] for line in answer.splitlines() if "%" in line] == ["##ar", "##ar"]
    assert "blank lines, left out: 2 (line 2, line 3)" in answer
    monkeypatch.setattr("sys.stdin", StringIO("a [MASK] film\rthe [MASK]\r"))
    shell.refuses(["fill", model, "-"], "line", "tr ")


def test_how_good_a_graph_is_is_said(model: Path, shell: Shell):
    rows = [json.dumps({"text": f"a film number {number}"}) + "\n" for number in range(12)]
    Path("d.jsonl").write_text("".join(rows))
    answer = shell.works("index", "d.jsonl", "-o", "idx", "--model", model, "--approximate")
    assert "recall@10 of approximate search" in answer


def test_vectors_as_json_lines(model: Path, classifier: Path, shell: Shell):
    texts = ["a film", "the dogs"]
    lines = shell.works("embed", model, *texts, "--json", "--quiet").splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["text"] for row in rows] == texts
    vectors = np.array([row["embedding"] for row in rows])
    np.testing.assert_allclose(vectors, bertworks.embed(model, texts), atol=1e-6)
    shell.refuses(
        ["predict", classifier, *texts, "--json", "--format", "csv"],
        "--json and --format csv exclude each other",
        "leave one of them out",
    )


def test_a_prediction_of_a_text_is_a_short_line(classifier: Path, shell: Shell):
    texts = ["a good film", "the dogs"]
    answers = bertworks.load(classifier).predict(texts)
    lines = shell.works("predict", classifier, *texts).splitlines()
    assert lines == [f"{answer['label']}  {answer['score']:.1%}" for answer in answers]
    verbose = shell.works("predict", classifier, *texts, "-v")
    assert "example" in verbose
    assert "predicted_label" in verbose
    long = "a good film " * 40
    lines = shell.works("predict", classifier, long, "--quiet").splitlines()
    assert len(lines) == 2
    assert any("1 texts were truncated" in line for line in lines)


@pytest.mark.parametrize(
    ("task", "labels", "answer", "line"),
    [
        (
            "multilabel",
            ("a", "b"),
            {"labels": ["b", "a"], "scores": {"a": 0.6, "b": 0.75}},
            "b 75.0%, a 60.0%",
        ),
        (
            "multilabel",
            ("a", "b"),
            {"labels": [], "scores": {"a": 0.2, "b": 0.1}},
            "no label (a 20.0%)",
        ),
        ("regression", (), {"value": 2.34567}, "2.346"),
        ("choice", (), {"choice": 1, "score": 0.625}, "second  62.5%"),
        ("qa", (), {"answer": "", "score": 0.5, "start": -1, "end": -1}, "no answer  50.0%"),
        ("qa", (), {"answer": "in Rome", "score": 0.5, "start": 2, "end": 9}, "in Rome  50.0%"),
        ("tagging", ("N", "V"), {"tags": ["N", "V"], "words": ["dogs", "bark"]}, "dogs/N bark/V"),
        (
            "spans",
            ("O", "B-PER", "I-PER"),
            {"entities": [{"type": "PER", "text": "Ada", "score": 0.9}]},
            "Ada PER 90.0%",
        ),
        ("spans", ("O", "B-PER", "I-PER"), {"entities": []}, "no entity"),
    ],
)
def test_predictions_of_each_task_in_words(task, labels, answer, line):
    item = Item(("text", "first", "second"), None, "text 1", "1", raw=task == "tagging")
    description = TaskConfig(task=task, labels=labels)
    assert task_of(description).in_words(item, answer) == line
