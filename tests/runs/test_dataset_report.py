"""The survey of labelled data: what it counts is there, what it warns of is true, and clean data
gives no warning."""

import json
import random
import subprocess
import sys
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from bertworks.cli.main import main
from bertworks.datasets.schema import Item, Schema
from bertworks.errors import BertworksError, UsageError
from bertworks.interop.convert import convert
from bertworks.io.inputs import IssueCounter
from bertworks.runs.data_splits import LabelledData
from bertworks.runs.dataset_report import (
    DatasetReport,
    Lengths,
    check_file,
    count_labels,
    make_dataset_report,
)
from bertworks.tasks.registry import task_of
from bertworks.tasks.settings import TaskConfig, TaskType
from bertworks.text.vocabulary import VocabularyConfig, train_vocabulary
from tests.support.fine import (
    BAD,
    FILES_OF_TASKS,
    FILLER,
    GOOD,
    sentence,
    tokenizer,
    write_examples,
    write_model,
    write_reviews,
)
from tests.support.tasks import featurizer

T = tokenizer()


def item(number: int, label: Any, *texts: str, file: str = "train.csv") -> Item:
    return Item(texts, label, f"/data/{file}:{number}")


def looked(
    train: list[Item],
    dev: list[Item],
    task: TaskType = "classification",
    max_length: int = 64,
    t: Any = T,
) -> DatasetReport:
    names: set[str] = set()
    for row in (*train, *dev):
        names.update(
            [row.label] if isinstance(row.label, str) else row.label if task == "tagging" else ()
        )
    labels = ("O", "B-person", "I-person") if task == "spans" else tuple(sorted(names))
    reading = featurizer(t, task, labels, max_length, stride=16)
    data = LabelledData(
        Schema(task=task, text=("text",), labels=labels),
        train,
        dev,
        ["task: this", "evaluated on rows"],
    )
    return make_dataset_report(data, list(reading(train)), list(reading(dev)), t, max_length)


def reviews(count: int, file: str = "train.csv", seed: int = 0) -> list[Item]:
    draw = random.Random(seed)
    rows = ((n, draw.random() < 0.5) for n in range(count))
    return [
        item(
            n,
            "pos" if good else "neg",
            f"{sentence(draw, draw.choice(GOOD if good else BAD), length=20)} {n}",
            file=file,
        )
        for n, good in rows
    ]


def warnings_of(report: DatasetReport, word: str) -> list[str]:
    return [warning for warning in report.warnings if word in warning]


@pytest.mark.parametrize("task", FILES_OF_TASKS)
def test_every_task_is_reported_by_check(task: str, tmp_path: Path) -> None:
    report = check_file(
        write_examples(tmp_path, task), model=write_model(tmp_path / "model"), validation="split"
    )
    assert report.task == task
    assert sum(report.lengths.counts) == report.train + report.dev
    assert report.notes[0].startswith(f"task: {task}")
    text = str(report)
    assert f"{report.train:,} in train, {report.dev:,} in dev" in text
    assert json.loads(json.dumps(report.as_dict()))["train"] == report.train
    assert bool(report.targets) == (task == "regression")
    assert bool(report.labels) == (task != "regression")
    values = [line[13:] for line in text.splitlines() if not line.startswith("warning")]
    assert all(
        value and line[11:13] == "  "
        for value, line in zip(values, text.splitlines(), strict=False)
    )


def test_no_check_waits_for_torch(tmp_path: Path) -> None:
    """Also that of a table that is refused, and by a model of static vectors.

    In a process of its own: this one has imported it.
    """
    broken = tmp_path / "broken.csv"
    broken.write_text("text,label\ngood film,\n")
    files = [*(write_examples(tmp_path, task) for task in FILES_OF_TASKS), broken]
    model = write_model(tmp_path / "model")
    list(convert(model, tmp_path / "static", static=32))
    code = """
import json, sys
from bertworks.cli.main import main
model, static, *files = sys.argv[1:]
codes = [main(["check", file, "--model", model]) for file in files]
codes.append(main(["check", files[0], "--model", static]))
heavy = [name for name in ("torch", "scipy", "sklearn") if name in sys.modules]
print(json.dumps([codes, heavy]))
"""
    command = [sys.executable, "-c", code, str(model), str(tmp_path / "static"), *map(str, files)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    codes, heavy = json.loads(answer.stdout.splitlines()[-1])
    assert codes == [*[0] * len(FILES_OF_TASKS), 1, 0], answer.stderr
    assert heavy == []


def test_clean_data_has_no_warnings() -> None:
    assert looked(reviews(300), reviews(250, "dev.csv", seed=1), t=numbers()).warnings == []


def numbers() -> Any:
    """A tokenizer that knows numbers as well."""
    words = " ".join([*GOOD, *BAD, *FILLER, *map(str, range(300))])
    return train_vocabulary([words] * 5, VocabularyConfig(size=600))[0]


def test_labels_are_counted_in_train_and_dev() -> None:
    train, dev = reviews(40), reviews(9, "dev.csv", seed=1)
    report = looked(train, dev)
    counted, evaluated = Counter(x.label for x in train), Counter(x.label for x in dev)
    assert report.labels == {
        name: (counted[name], evaluated[name]) for name, _ in counted.most_common()
    }


@pytest.mark.parametrize(
    ("task", "labels", "expected"),
    [
        ("multilabel", [("a", "b"), (), ("a",)], {"a": 2, "b": 1}),
        ("spans", [((0, 1, "x"), (2, 3, "y")), ((0, 3, "x"),)], {"x": 2, "y": 1}),
        ("tagging", [("B-x", "I-x", "B-x"), ("O", "I-y", "O")], {"x": 2, "y": 1}),  # IOB2, and IOB1
        ("tagging", [("B-x", "I-x", "E-x", "S-x", "O")], {"x": 2}),  # BIOES
        ("tagging", [("NOUN", "VERB", "NOUN")], {"NOUN": 2, "VERB": 1}),  # no entities
        ("qa", [((0, "x"),), (), ((3, "y"),)], {"with an answer": 2, "without an answer": 1}),
        ("choice", [0, 2, 2], {"1": 1, "3": 2}),
        ("regression", [1.0, 2.0], {}),
    ],
)
def test_what_counts_as_a_label(
    task: TaskType, labels: list[Any], expected: dict[str, int]
) -> None:
    tags = tuple(chain(*labels)) if task == "tagging" else ()
    items = [item(n, label, "text") for n, label in enumerate(labels)]
    assert count_labels(items, task_of(TaskConfig(task=task, labels=tags))) == expected


def test_copies_leaks_and_conflicts_are_reported_with_their_rows() -> None:
    train = [
        item(1, "pos", "a good film"),
        item(2, "neg", "a bad film"),
        item(3, "pos", " A  GOOD film"),
        item(4, "pos", "a bad film"),
    ]
    dev = [
        item(1, "neg", "a good film", file="dev.csv"),
        item(2, "neg", "a poor film", file="dev.csv"),
    ]
    report = looked(train, dev)
    assert report.copies == IssueCounter(
        2, ["train.csv:3 = train.csv:1", "train.csv:4 = train.csv:2"]
    )
    assert report.leaked == IssueCounter(1, ["dev.csv:1 = train.csv:1"])
    assert report.conflicts.count == 2
    assert report.conflicts.places[0] == "train.csv:4 and train.csv:2: 'pos' and 'neg'"
    assert warnings_of(report, "also occur in train: 1 (50.0%), e.g. dev.csv:1 = train.csv:1")
    assert warnings_of(report, "no model can predict both")


def test_copies_within_dev_are_no_leak() -> None:
    train = [item(1, "pos", "a good film"), item(2, "neg", "a bad film")]
    dev = [item(n, "pos", "a fine film", file="dev.csv") for n in (1, 2)]
    assert looked(train, dev).leaked == IssueCounter()


def test_capitals_make_a_difference_where_the_model_sees_them() -> None:
    train, dev = (
        [item(1, "pos", "Film"), item(2, "neg", "film")],
        [item(1, "pos", "FILM", file="dev.csv")],
    )
    cased = train_vocabulary(["Film film FILM"] * 5, VocabularyConfig(size=40, lowercase=False))[0]
    assert looked(train, dev, t=cased).copies.count == 0
    assert looked(train, dev).leaked.count == looked(train, dev).copies.count == 1


def test_a_question_may_have_several_answers() -> None:
    train = [
        item(1, ((0, "Anna"),), "who ?", "Anna lives"),
        item(2, ((5, "lives"),), "who ?", "Anna lives"),
    ]
    report = looked(train, train[:1], "qa")
    assert report.copies.count == 1
    assert report.conflicts.count == 0


@pytest.mark.parametrize("task", ["classification", "tagging", "spans", "qa"])
@pytest.mark.parametrize("words", [3, 61, 62, 63, 90, 200])
def test_lengths_are_those_of_the_whole_text(task: TaskType, words: int) -> None:
    text = random.Random(words).choices(FILLER, k=words)
    label: Any = {"classification": "x", "tagging": ("O",) * words, "spans": (), "qa": ()}[task]
    texts = text if task == "tagging" else [" ".join(text)]
    long = item(1, label, *(["who ?"] if task == "qa" else []), *texts)
    lengths = looked([long], [long], task).lengths
    expected = words + (5 if task == "qa" else 2)  # [CLS], [SEP], and the question with its own
    assert lengths.longest == lengths.median == expected
    assert lengths.too_long == (2 if expected > 64 else 0)
    assert lengths.windows == (task != "classification")


@pytest.mark.parametrize("words", [3, 50, 57, 58, 90, 200])
def test_the_length_of_choices_is_that_of_the_longest_one(words: int) -> None:
    prompt, *choices = (" ".join(random.Random(n).choices(FILLER, k=n)) for n in (words, 2, 4, 3))
    lengths = looked(
        [item(1, 0, prompt, *choices)], [item(2, 1, prompt, *choices)], "choice"
    ).lengths
    assert lengths.longest == lengths.median == words + 4 + 3  # [CLS] and two [SEP]
    assert lengths.too_long == (2 if words + 7 > 64 else 0)


def test_the_picture_of_lengths_has_a_bar_for_each_bin() -> None:
    lengths = Lengths(
        width=2, counts=[0, 4, 8, 1], median=4, longest=90, max_length=64, too_long=1, windows=False
    )
    bars, axis, words = lengths.lines()
    assert bars == " ▄█▁"
    assert axis.endswith("6+ tokens")
    assert "1 (7.7%) have more than 64 and are truncated" in words
    whole = Lengths(
        width=2, counts=[0, 4, 8, 1], median=4, longest=7, max_length=64, too_long=0, windows=False
    )
    assert whole.lines()[1].endswith("8 tokens")


def test_few_very_long_rows_do_not_flatten_the_picture() -> None:
    train = [*reviews(300), item(999, "pos", "film " * 3000)]
    lengths = looked(train, reviews(10, "dev.csv", 1), max_length=8000).lengths
    assert lengths.longest == 3002
    assert len(lengths.counts) * lengths.width < 60
    assert sum(lengths.counts) == 311


def test_unknown_words_are_measured_and_named() -> None:
    train = [item(n, "pos", f"the film {'ж' if n % 2 else 'was'}") for n in range(10)]
    report = looked(train, [item(1, "neg", "ж", file="dev.csv")])
    tokens = sum(len(ids) for ids in T.ids([*(x.texts[0] for x in train), "ж"]))
    assert report.unknown == pytest.approx(6 / tokens)
    assert report.unknown_words == ["ж"]
    assert warnings_of(report, "vocabulary does not fit")


def test_marks_that_the_tokenizer_drops_are_reported() -> None:
    japanese = train_vocabulary(
        ["か が は ば です"] * 5, VocabularyConfig(size=60, strip_accents=True)
    )[0]
    keeping = train_vocabulary(
        ["か が は ば です"] * 5, VocabularyConfig(size=60, lowercase=False)
    )[0]
    train = [item(n, "pos", "か が です") for n in range(3)]
    assert warnings_of(looked(train, train, t=japanese), "reads が as か")
    assert not warnings_of(looked(train, train, t=keeping), "reads")


def test_vowel_signs_that_the_tokenizer_drops_are_reported() -> None:
    words = "\u0939\u093f\u0928\u094d\u0926\u0940 \u0906\u091c \u0939\u0941"
    stripping = train_vocabulary([words] * 5, VocabularyConfig(size=60, strip_accents=True))[0]
    keeping = train_vocabulary([words] * 5, VocabularyConfig(size=60))[0]
    train = [item(n, "pos", words) for n in range(3)]
    assert warnings_of(
        looked(train, train, t=stripping),
        "drops diacritics that distinguish letters in this language",
    )
    assert not warnings_of(looked(train, train, t=keeping), "drops diacritics")
    english = [item(n, "pos", f"the film was {'good ' * 100}") for n in range(3)]
    rare = [*english, item(9, "pos", "the film \u0939\u0941")]
    assert not warnings_of(looked(rare, rare, t=stripping), "drops diacritics")


def test_labels_that_cannot_be_learned_or_evaluated_are_named() -> None:
    def tags(*kinds: str) -> tuple[str, ...]:
        return tuple(f"B-{kind}" for kind in kinds)

    train = [item(n, tags("person", "place"), "Anna", "Paris") for n in range(20)]
    train.append(item(99, tags("rare", "place"), "good", "Oslo"))
    report = looked(
        train, [item(1, tags("person", "new"), "Clara", "Lima", file="dev.csv")], "tagging"
    )
    assert warnings_of(report, "dev labels that do not occur in train cannot be learned: 'new'")
    assert warnings_of(report, "fewer than 10 training examples")[0].endswith(
        "too few to learn: 'rare'"
    )
    assert warnings_of(report, "not occur in dev")[0].endswith("'place', 'rare'")


def test_imbalance_names_both_ends() -> None:
    train = [item(n, "neg" if n % 10 else "pos", f"film {n}") for n in range(200)]
    report = looked(train, train[:20])
    assert warnings_of(
        report,
        "'neg' is 9 times as frequent as 'pos': a model that always predicts 'neg' has an accuracy "
        "of 90.0%",
    )
    even = [item(n, "neg" if n % 2 else "pos", f"film {n}") for n in range(200)]
    assert not warnings_of(looked(even, even[:20]), "times as frequent")


def test_many_labels_fit_on_the_screen() -> None:
    train = [item(n, f"label {n % 100:03}", f"film {n}") for n in range(1000)]
    text = str(looked(train, train[:100]))
    assert "and 92 others; rarest: 'label 099' with 10" in text
    assert len(text.splitlines()) < 30


def test_all_bad_rows_are_listed_at_once(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    path, good = tmp_path / "bad.csv", "good film,0\nbad film,1\n" * 9
    options: Any = {"model": model, "task": "regression"}
    path.write_text("text,label\n" + good + "fine,much\n,2\nnice,\nlovely,nan\n")
    with pytest.raises(BertworksError) as caught:
        check_file(path, **options)
    assert "3 rows cannot be used for training" in caught.value.what
    assert [f"bad.csv:{line}: " in caught.value.what for line in (19, 20, 21, 22, 23)] == [
        False,
        True,
        False,
        True,
        True,
    ]
    assert "holds 'much'" in caught.value.what
    assert "write a number there" in (caught.value.hint or "")
    path.write_text("text,label\n" + good + "fine,much\n")
    with pytest.raises(BertworksError) as caught:
        check_file(path, **options)
    assert caught.value.where == f"{path}:20"
    path.write_text("text,label\n" + good + "fine,much\n" * 50)
    with pytest.raises(BertworksError, match=r"50 rows(.|\n)*and 47 more of this kind"):
        check_file(path, **options)


def test_rows_without_text_are_left_out_and_named(tmp_path: Path) -> None:
    path = tmp_path / "holes.csv"
    path.write_text("text,label\n" + "good film,pos\n,neg\nbad one,neg\n" * 9)
    report = check_file(path, model=write_model(tmp_path / "model"), validation="split")
    assert report.train + report.dev == 18
    assert "holes.csv:3" in str(report)


def test_what_is_no_row_is_said_as_it_is(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    (tmp_path / "one.csv").write_text("text,label\ngood,pos\nfine,pos\n")
    with pytest.raises(BertworksError, match="all rows with a text have the same label, 'pos'"):
        check_file(tmp_path / "one.csv", model=model)
    with pytest.raises(UsageError, match="column"):
        check_file(write_reviews(tmp_path / "r.csv"), model=model, label="lable")
    with pytest.raises(BertworksError, match="no such model folder"):
        check_file(tmp_path / "r.csv", model=tmp_path / "modle")


def test_the_verb_prints_for_people_and_for_programs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "check",
        str(write_reviews(tmp_path / "r.csv")),
        "--model",
        str(write_model(tmp_path / "model")),
    ]
    assert main(words) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("task         classification")
    assert (
        f"next: bertworks finetune {words[1]} --model {words[3]} -o MODEL-FOLDER\n" in printed.err
    )
    # what was said of the data holds for the next
    assert main([*words, "--text", "text", "--quoting", "quoted"]) == 0
    assert f"{words[3]} --text text --quoting quoted -o MODEL-FOLDER\n" in capsys.readouterr().err
    assert main([*words, "--json", "--text", "text"]) == 0
    assert json.loads(capsys.readouterr().out)["labels"].keys() == {"pos", "neg"}
    (tmp_path / "bad.csv").write_text("text,label\n" + "good,pos\nbad,neg\n" * 9 + "bad,\n")
    assert main(["check", str(tmp_path / "bad.csv"), *words[2:]]) == 1
    assert "bad.csv:20: the label in 'label' is missing" in capsys.readouterr().err


def test_rows_of_a_cross_validation_are_counted_once(tmp_path: Path) -> None:
    data = write_reviews(tmp_path / "reviews.csv", 90)
    report = check_file(data, model=write_model(tmp_path / "model"))
    assert (report.train, report.dev, sum(report.lengths.counts)) == (90, 60, 90)
    assert "90 in train, 60 of them evaluated" in str(report)
    assert not report.leaked.count
