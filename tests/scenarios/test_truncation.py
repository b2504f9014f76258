"""Texts that are longer than a model reads: every result on them says how many there are, and how
much was left out."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertworks.checkpoints.storage import read_json
from bertworks.cli.main import main
from bertworks.evaluation.evaluate import evaluate_sts, evaluate_task
from bertworks.evaluation.retrieval import evaluate_pairs, evaluate_retrieval
from bertworks.inference.embedder import Embedder
from bertworks.inference.predictor import Predictor, predict_file
from bertworks.io.options import Bulk
from bertworks.retrieval.index import index_file
from bertworks.tasks.sequences import Truncation, format_truncation
from tests.support.served import write_head

LONG = "the film was a story of men and dogs " * 20
SHORT = "a good film"


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return write_head(folder, task="classification", labels=("neg", "pos"), text=("text",))


def tokens_of(model: Path, text: str) -> int:
    """The tokens of a text without special ones."""
    return len(Predictor(model, device="cpu").tokenizer.ids([text])[0])


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "test.csv"
    path.write_text(f"text,label\n{LONG},pos\n{SHORT},neg\n{LONG}{LONG},neg\n")
    return path


def test_evaluate_task_says_how_much_was_left_out(
    classifier: Path, rows: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The accuracy of the beginnings of texts is not that of the texts (GraphRAG-SDK#320)."""
    result = evaluate_task(classifier, rows, device="cpu")
    tokens = [tokens_of(classifier, text) for text in (LONG, LONG + LONG)]
    num_read = 64 - 2  # without [CLS] and [SEP]
    assert (result["truncated"], result["truncated_tokens"]) == (2, sum(tokens) - 2 * num_read)
    assert result["truncated_share"] == pytest.approx(1 - 2 * num_read / sum(tokens))
    sentence = (
        f"2 of 3 rows were truncated: {result['truncated_share']:.1%} of their tokens were left out"
    )
    assert main(["evaluate", "task", str(classifier), str(rows)]) == 0
    assert (
        f"WARNING: {sentence}; the scores are for the truncated texts\n" in capsys.readouterr().out
    )
    assert main(["evaluate", "task", str(classifier), str(rows), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["truncated"] == 2


def test_nothing_is_said_where_nothing_is_left_out(
    classifier: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "short.csv").write_text(f"text,label\n{SHORT},pos\n{SHORT} too,neg\n")
    result = evaluate_task(classifier, tmp_path / "short.csv", device="cpu")
    assert [result[name] for name in ("truncated", "truncated_tokens", "truncated_share")] == [
        0,
        0,
        0.0,
    ]
    assert main(["evaluate", "task", str(classifier), str(tmp_path / "short.csv")]) == 0
    assert "truncated" not in capsys.readouterr().out


def test_predictions_in_python_say_it_as_files_do(
    classifier: Path, rows: Path, tmp_path: Path
) -> None:
    *_, last_event = predict_file(classifier, rows, tmp_path / "out.jsonl", device="cpu")
    assert last_event.fields["truncated"] == 2
    counts_in_file = [
        json.loads(line)["truncated_tokens"]
        for line in (tmp_path / "out.jsonl").read_text().splitlines()
    ]
    answers = Predictor(classifier, device="cpu").predict([LONG, SHORT, LONG + LONG])
    assert [answer.get("truncated_tokens", 0) for answer in answers] == counts_in_file
    assert list(answers[1]) == ["label", "score"]


@pytest.mark.parametrize(
    ("task", "text", "twice", "room"),
    [
        # Each choice is read after the prompt, in a sequence of its own.
        ({"task": "choice", "num_choices": 2}, (LONG, SHORT, LONG), LONG, 2 * (64 - 3)),
        (
            {"task": "classification", "labels": ("a", "b"), "text": ("one", "two")},
            (LONG, LONG),
            "",
            64 - 3,
        ),
        ({"task": "qa"}, (LONG,), "", 8),  # the end of a question: `max_question`
    ],
)
def test_several_texts(
    task: dict[str, Any], text: tuple[str, ...], twice: str, room: int, tmp_path: Path
) -> None:
    model = write_head(tmp_path / "model", **task)
    [answer] = Predictor(model, device="cpu").predict(
        [(*text, SHORT) if task["task"] == "qa" else text]
    )
    assert (
        answer["truncated_tokens"]
        == sum(tokens_of(model, part) for part in (*text, twice) if part) - room
    )


def test_texts_that_are_read_in_windows_lose_nothing(tmp_path: Path) -> None:
    model = write_head(
        tmp_path / "model", task="tagging", labels=("B-x", "I-x", "O"), text=("words",)
    )
    [answer] = Predictor(model, device="cpu").predict([LONG.split()])
    assert list(answer) == ["tags"]
    assert len(answer["tags"]) == len(LONG.split())


def test_similarities_and_translations(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = tmp_path / "pairs.csv"
    lines = [f"{LONG},{SHORT},1.5", f"{SHORT},a sad dog,3", f"good dogs,{SHORT},2"]
    pairs.write_text("\n".join(["sentence1,sentence2,score", *lines]))
    result = evaluate_sts(model, pairs, device="cpu")
    left_out = Embedder(model, device="cpu").portion([LONG])[1][0]
    assert (result["truncated"], result["truncated_tokens"]) == (1, left_out)
    assert result["notes"][-1].startswith("1 of 6 texts were truncated: ")
    assert main(["evaluate", "sts", str(model), str(pairs)]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("3 rows\n")
    assert "1 of 6 texts were truncated" in printed.out + printed.err
    translations = tmp_path / "pairs.tsv"
    translations.write_text(f"{LONG}\t{SHORT}\n{SHORT}\ta sad dog\n")
    assert evaluate_pairs(model, [translations], device="cpu")["truncated_tokens"] == left_out
    assert main(["evaluate", "pairs", str(model), str(translations)]) == 0
    assert "WARNING: 1 of 4 texts were truncated: " in capsys.readouterr().out


def test_vectors_and_counts(model: Path) -> None:
    embedder = Embedder(model, device="cpu")
    vectors, counts = embedder.embed_and_count([LONG, SHORT])
    np.testing.assert_array_equal(vectors, embedder.embed([LONG, SHORT]))
    tokens = len(embedder.tokenizer.ids([LONG])[0])
    read = (embedder.settings.max_length or 0) - 2
    assert counts == Truncation(
        rows=2, truncated=1, tokens_read=read, tokens_left_out=tokens - read
    )
    assert format_truncation({"rows": 2, **counts.as_dict()}).startswith(
        "1 of 2 rows were truncated: "
    )


@pytest.mark.parametrize("steps", [[Bulk()], [Bulk(part="0/1"), Bulk(join=True)]])
def test_documents_of_an_index(model: Path, rows: Path, tmp_path: Path, steps: list[Bulk]) -> None:
    for bulk in steps:
        *_, last = index_file(
            rows, tmp_path / "index", model=model, text=["text"], device="cpu", bulk=bulk
        )
    assert last.fields["truncated"] == 2
    assert "2 texts were truncated" in last.text


def test_documents_of_a_test_collection(model: Path, tmp_path: Path) -> None:
    documents = [
        {"_id": f"d{n}", "title": "", "text": text}
        for n, text in enumerate((LONG, SHORT, "a dog ran"))
    ]
    (tmp_path / "corpus.jsonl").write_text(
        "".join(json.dumps(document) + "\n" for document in documents)
    )
    (tmp_path / "queries.jsonl").write_text(json.dumps({"_id": "q1", "text": "a good film"}) + "\n")
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\n")
    *events, last = evaluate_retrieval(tmp_path, model, device="cpu")
    assert last.fields["truncated"] == 1
    assert last.fields["truncated_tokens"] > 0
    assert any("WARNING: 1 of 3 documents were truncated" in event.text for event in events)


def test_evaluate_squad_says_how_many_questions_were_cut(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Contexts are read to their end, in windows; of the questions only the beginning is read."""
    model = write_head(tmp_path / "model", task="qa")
    path = tmp_path / "squad.json"
    paragraphs = []
    for number, question in enumerate([LONG, SHORT, LONG + LONG]):
        answer = {"text": "dogs", "answer_start": 4}
        paragraphs.append(
            {
                "context": f"the dogs know {LONG}",
                "qas": [{"id": f"q{number}", "question": question, "answers": [answer]}],
            }
        )
    path.write_text(
        json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]})
    )
    tokens = [tokens_of(model, text) for text in (LONG, LONG + LONG)]
    read = read_json(model / "task.json")["max_question"]
    expected = {
        "truncated": 2,
        "truncated_tokens": sum(tokens) - 2 * read,
        "truncated_share": pytest.approx(1 - 2 * read / sum(tokens)),
    }
    task = evaluate_task(model, path, device="cpu")
    assert {name: task[name] for name in expected} == expected
    words = ["evaluate", "squad", str(model), "--data", str(path)]
    assert main([*words, "--json"]) == 0
    squad = json.loads(capsys.readouterr().out)
    assert {name: squad[name] for name in expected} == expected
    sentence = (
        f"2 of 3 questions were truncated: {squad['truncated_share']:.1%} of their tokens "
        "were left out"
    )
    for command in (words, ["evaluate", "task", str(model), str(path)]):
        assert main(command) == 0
        assert (
            f"WARNING: {sentence}; the scores are for the truncated texts\n"
            in capsys.readouterr().out
        )
    (tmp_path / "answers.json").write_text('{"q0": "dogs", "q1": "dogs", "q2": "men"}')
    predicted = [
        "evaluate",
        "squad",
        "--data",
        str(path),
        "--predictions",
        str(tmp_path / "answers.json"),
        "--json",
    ]
    assert main(predicted) == 0
    assert "truncated" not in json.loads(capsys.readouterr().out)
