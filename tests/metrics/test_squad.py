"""The metric of SQuAD: official figures to the last digit, its rules one by one, and answers that
cannot be scored."""

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from bertworks.cli.main import main
from bertworks.errors import BertworksError
from bertworks.evaluation.evaluate import evaluate_squad
from bertworks.metrics.intervals import mean_sums, middle, resampled
from bertworks.metrics.squad import SquadQuestion, evaluate_answers, normalize, score_answer

CONTEXT = "The Normans were in the north of France in the 10th century."
QUESTIONS = {
    "where": [
        {"text": "the north of France", "answer_start": 20},
        {"text": "France", "answer_start": 33},
    ],
    "when": [{"text": "10th century", "answer_start": 47}],
    "never": [],
}
ANSWERS = {"where": "north France", "when": "In the 10th century", "never": ""}


def squad_file(path: Path, questions: dict[str, Any] = QUESTIONS, context: str = CONTEXT) -> Path:
    entries = [
        {"id": name, "question": f"{name}?", "answers": answers}
        for name, answers in questions.items()
    ]
    paragraphs = [{"context": context, "qas": entries}]
    path.write_text(
        json.dumps({"version": "x", "data": [{"title": "t", "paragraphs": paragraphs}]})
    )
    return path


def json_file(path: Path, value: object) -> Path:
    path.write_text(json.dumps(value))
    return path


# --- the rules ---


@pytest.mark.parametrize("version", ["1.1", "2.0"])
def test_official_figures_to_the_last_digit(version: str, data_folder: Path):
    folder = data_folder / "squad"
    ours = evaluate_squad(
        folder / f"dev-v{version}.json.gz", folder / f"bert-predictions-dev-v{version}.json.gz"
    )
    official = json.loads((folder / "official-scores.json").read_text())[f"v{version}"]
    official = {name.replace("exact_match", "exact"): value for name, value in official.items()}
    assert {name: ours[name] for name in official} == official
    assert (ours["version"], ours["unit"], ours["missing"], ours["unknown_ids"]) == (
        version,
        "word",
        0,
        [],
    )
    assert {name[:6] for name in ours if "_" in name} == {
        "missin",
        "unknow",
        *(["HasAns", "NoAns_"] * (version > "2")),
    }


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  U.S. dollar", "us dollar"),
        ("a An the\tTHE", ""),
        ("theatre another", "theatre another"),
        ("well-known", "wellknown"),
        ("$5\u202fmillion", "5 million"),
        ("«état»", "«état»"),
        ("の a 国", "の 国"),
    ],
)
def test_normal_answers(text: str, normal: str):
    assert normalize(text) == normal


def test_f1_counts_words_as_often_as_they_occur():
    assert score_answer(["to be or not to be"], "To be, to be!", version="1.1") == (
        0.0,
        pytest.approx(2 * 1 * (4 / 6) / (1 + 4 / 6)),
    )
    assert score_answer(["x y", "y z"], "z y", version="1.1") == (0.0, 1.0)
    assert score_answer(["x", "The X."], "x", version="1.1") == (1.0, 1.0)
    assert score_answer(["x"], None, version="1.1") == (0.0, 0.0)


def test_what_is_nothing_when_normalized():
    """In 1.1 it is an answer without words, in 2.0 it is no answer."""
    assert score_answer(["The"], "a", version="1.1") == (1.0, 0.0)
    assert score_answer(["The"], "a", version="2.0") == (1.0, 1.0)
    assert score_answer([], "", version="2.0") == (1.0, 1.0)
    assert score_answer(["The", "cat"], "", version="2.0") == (0.0, 0.0), (
        "a gold answer without words is none"
    )
    assert score_answer([], "cat", version="2.0") == (0.0, 0.0)


def test_f1_of_characters():
    assert score_answer(
        ["約15メートル"], "15 メートル", version="1.1", unit="character"
    ).f1 == pytest.approx(12 / 13)
    assert score_answer(["約15メートル"], "15 メートル", version="1.1").f1 == 0.0
    assert score_answer(["奈良"], "奈良。", version="1.1", unit="character") == (
        0.0,
        pytest.approx(0.8),
    )


@given(st.text("aB the,。国 "), st.text("aB the,。国 "), st.sampled_from(["word", "character"]))
def test_f1_is_symmetric_and_at_most_1(one: str, other: str, unit: Any):
    ours, turned = (
        score_answer([one], other, version="2.0", unit=unit),
        score_answer([other], one, version="2.0", unit=unit),
    )
    assert ours == pytest.approx(turned)
    assert 0 <= ours.exact <= ours.f1 <= 1


def test_figures_of_parts_and_what_is_missing():
    questions = [
        SquadQuestion(name, tuple(a["text"] for a in answers))
        for name, answers in QUESTIONS.items()
    ]
    figures, _ = evaluate_answers(questions, ANSWERS, version="2.0")
    assert figures == pytest.approx(
        {
            "exact": 100 / 3,
            "f1": 100 * (0.8 + 0.8 + 1) / 3,
            "total": 3,
            "missing": 0,
            "HasAns_exact": 0.0,
            "HasAns_f1": 80.0,
            "HasAns_total": 2,
            "NoAns_exact": 100.0,
            "NoAns_f1": 100.0,
            "NoAns_total": 1,
        }
    )
    without, _ = evaluate_answers(questions, {"when": "10th century"}, version="2.0")
    assert (without["missing"], without["exact"], without["NoAns_exact"]) == (
        2,
        pytest.approx(100 / 3),
        0.0,
    )


@pytest.mark.parametrize("seed", range(20))
def test_the_best_threshold_is_the_best_of_all(seed: int):
    """Against trying every threshold: what is at most as surely without an answer is answered."""
    generator = random.Random(seed)
    questions = [
        SquadQuestion(str(n), ("yes sir",) if generator.random() < 0.6 else ()) for n in range(12)
    ]
    given_ = {q.id: generator.choice(["", "yes", "yes sir", "no"]) for q in questions}
    surety = {q.id: generator.uniform(-3, 3) for q in questions}
    figures, _ = evaluate_answers(questions, given_, version="2.0", no_answer_probabilities=surety)
    for n, name in enumerate(("exact", "f1")):
        tried = {}
        for threshold in (-9.0, *surety.values()):
            kept = [given_[q.id] if surety[q.id] <= threshold else "" for q in questions]
            tried[threshold] = sum(
                score_answer(q.answers, a, version="2.0")[n] for q, a in zip(questions, kept)
            )
        assert figures[f"best_{name}"] == pytest.approx(100 * max(tried.values()) / 12)
        assert figures[f"best_{name}"] >= figures[name] - 1e-9
        if max(tried.values()) > tried[-9.0]:
            assert tried[figures[f"best_{name}_thresh"]] == pytest.approx(max(tried.values()))
        else:
            assert figures[f"best_{name}_thresh"] == 0.0


def test_what_cannot_be_scored():
    with pytest.raises(BertworksError, match="no questions"):
        evaluate_answers([], {}, version="1.1")
    with pytest.raises(BertworksError, match="two questions have the id 'x'"):
        evaluate_answers(
            [SquadQuestion("x", ("a",)), SquadQuestion("x", ("b",))], {"x": "a"}, version="1.1"
        )
    with pytest.raises(BertworksError, match="'x' is answered but has no no-answer probability"):
        evaluate_answers(
            [SquadQuestion("x", ("a",))], {"x": "a"}, version="2.0", no_answer_probabilities={}
        )


# --- files ---


def test_the_version_and_the_unit_are_known_from_the_data(tmp_path: Path):
    answerable = {name: answers for name, answers in QUESTIONS.items() if answers}
    first = evaluate_squad(squad_file(tmp_path / "1.json", answerable), ANSWERS)
    assert (first["version"], first["unit"], first["unknown_ids"]) == ("1.1", "word", ["never"])
    second = evaluate_squad(squad_file(tmp_path / "2.json"), ANSWERS)
    assert second["version"] == "2.0"
    third = evaluate_squad(
        squad_file(tmp_path / "1.json", answerable), ANSWERS, na_probs=dict.fromkeys(ANSWERS, 0)
    )
    assert (third["version"], third["best_f1"]) == ("2.0", third["f1"])
    japanese = {"q": [{"text": "奈良", "answer_start": 7}]}
    context = "8世紀に日本の奈良(Nara)は首都であった。"
    fourth = evaluate_squad(squad_file(tmp_path / "ja.json", japanese, context), {"q": "奈良県"})
    assert (fourth["unit"], fourth["f1"]) == ("character", pytest.approx(80.0))
    assert evaluate_squad(tmp_path / "ja.json", {"q": "奈良県"}, unit="word")["f1"] == 0.0


def test_jaquad_answers_itself(data_folder: Path):
    path = data_folder / "ja" / "jaquad" / "dev.json.gz"
    with gzip.open(path) as file:
        articles = json.load(file)["data"]
    entries = [
        entry
        for article in articles
        for paragraph in article["paragraphs"]
        for entry in paragraph["qas"]
    ]
    figures = evaluate_squad(
        path, {entry["id"]: entry["answers"][0]["text"] + "です" for entry in entries}
    )
    assert (figures["unit"], figures["total"], figures["exact"]) == ("character", 3939, 0.0)
    assert 60 < figures["f1"] < 90


@pytest.mark.parametrize(
    ("predictions", "message"),
    [
        ('["a"]', r"p\.json: expected one JSON object, not \['a'\]"),
        ('{"where": 3}', "the answer to 'where' is 3, not a string"),
        ('{"where": null}', "the answer to 'where' is None, not a string"),
        ('{"where":\n "x"', r"p\.json:2: this is not JSON"),
        ('{"where": "x", "where": "y"}', r"p\.json:1: an object names 'where' twice"),
        ('{"who": "x"}', "none of the 1 answers belongs to any of the 3 questions of"),
        ("{}", "none of the 0 answers belongs"),
        ("", "this is not JSON"),
        (b'{"where": "\xe9"}', r"p\.json:1: the line has bytes that are not UTF-8"),
    ],
)
def test_predictions_that_are_none(predictions: str | bytes, message: str, tmp_path: Path):
    (tmp_path / "p.json").write_bytes(
        predictions.encode() if isinstance(predictions, str) else predictions
    )
    with pytest.raises(BertworksError, match=message):
        evaluate_squad(squad_file(tmp_path / "d.json"), tmp_path / "p.json")


@pytest.mark.parametrize("value", ["high", None, True, float("nan")])
def test_probabilities_that_are_none(value: object, tmp_path: Path):
    numbers = json_file(tmp_path / "n.json", {**dict.fromkeys(ANSWERS, 0.5), "when": value})
    with pytest.raises(
        BertworksError, match=r"n\.json: the no-answer probability of 'when' is .*, not a number"
    ):
        evaluate_squad(squad_file(tmp_path / "d.json"), ANSWERS, na_probs=numbers)


def test_data_that_is_not_squad(tmp_path: Path):
    (tmp_path / "d.csv").write_text("text,label\ngood,1\nbad,0\n")
    with pytest.raises(BertworksError, match=r"d\.csv: this is not in the format of SQuAD"):
        evaluate_squad(tmp_path / "d.csv", ANSWERS)
    with pytest.raises(BertworksError, match=r"question where: .*no gold answers"):
        evaluate_squad(squad_file(tmp_path / "test.json", {"where": None}), ANSWERS)


# --- the verb ---


def test_the_verb_prints_figures_and_names_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    data = squad_file(tmp_path / "d.json")
    words = ["evaluate", "squad", "--data", str(data), "--predictions"]
    assert (
        main([*words, str(json_file(tmp_path / "p.json", {"when": "10th century", "whom": "x"}))])
        == 0
    )
    answer = capsys.readouterr()
    low, high = middle(resampled(mean_sums([100, 0, 0])))  # the contexts are too few
    assert answer.out.splitlines()[:3] == [
        f"exact         33.333333333333336 ({low:.1f} to {high:.1f})",
        f"f1            33.333333333333336 ({low:.1f} to {high:.1f})",
        "total         3",
    ]
    lines = answer.err.splitlines()
    assert lines[-2:] == [
        "2 questions without an answer: where, never",
        "1 answers without a question: whom",
    ]
    assert all(line.startswith("example  question ") for line in lines[:-2])
    probabilities = json_file(tmp_path / "n.json", {"where": 0.2, "when": 0.1, "never": 0.9})
    words += [
        str(json_file(tmp_path / "p.json", ANSWERS)),
        "--no-answer-probabilities",
        str(probabilities),
        "--json",
    ]
    assert main(words) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["best_f1_thresh"], figures["missing_ids"]) == (0.2, [])
    assert main([*words, "--unit", "character"]) == 0
    assert json.loads(capsys.readouterr().out)["f1"] > figures["f1"]


def test_the_verb_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = ["evaluate", "squad", "--data", str(squad_file(tmp_path / "d.json"))]
    assert main([*words, "--predictions", str(json_file(tmp_path / "p.json", {"where": 1}))]) == 1
    assert "p.json: the answer to 'where' is 1, not a string\n  hint: " in capsys.readouterr().err
    assert main(words) == 2
    assert "--predictions" in capsys.readouterr().err
    assert main([*words, "--predictions", str(tmp_path / "pp.json")]) == 2
    said = capsys.readouterr().err
    assert "pp.json: there is no such file or folder\n" in said
    assert f"did you mean {tmp_path / 'p.json'}?" in said
