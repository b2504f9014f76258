"""Texts that are nearly the same are found as by exact comparison, and stay on one side of every
split."""

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertworks.datasets.schema import Item, Schema
from bertworks.evaluation.evaluate import evaluate_task
from bertworks.runs import dataset_report
from bertworks.runs.data_splits import PARTS, LabelledData
from bertworks.runs.dataset_report import check_file
from bertworks.runs.finetune import finetune
from bertworks.text import near_copies as module
from bertworks.text.near_copies import MIN_SIMILARITY, near_copies, near_copies_of_rows
from tests.support.fine import FILLER, read_data, write_model

ALPHABET = "abcdefghijklmnopqrstuvwxyz"


def word(number: int) -> str:
    """A word without digits: texts with different numbers are never equal."""
    letters = ""
    while number >= 0:
        letters += ALPHABET[number % 26]
        number = number // 26 - 1
    return letters


def words(draw: random.Random, count: int) -> list[str]:
    return [word(draw.randrange(3000)) for _ in range(count)]


@pytest.mark.parametrize(
    "texts",
    [
        ("How do I pay?", "how do i pay", "How do I pay ?!", "  how do\tI pay...", "HOW DO I PAY"),
        ("auto top-up", "auto top up", "Auto-top-up.", "“auto” top–up"),
        ("재미있어요", "재미 있어요.", "재미있어요~~~", "재미있어요^^", "재미있어요♥"),
        ("面白い。", "面白い", "面白い!!", "「面白い」", "面 白 い"),
        ("ＡＢＣ　ｄｅｆ", "abc def"),
        ("ｶﾞｲﾄﾞ", "ガイド"),
        ("Caf\u00e9 noir", "cafe\u0301 noir"),
        ("zero\u200bwidth", "zerowidth"),
        ("It costs 1.5 dollars.", "it costs 1.5 dollars"),
        ("covid-19", "Covid 19"),
    ],
)
def test_case_width_punctuation_and_spaces_make_no_difference(texts: tuple[str, ...]) -> None:
    assert near_copies(texts) == [0] * len(texts)


@pytest.mark.parametrize(
    "texts",
    [
        (
            "It costs 1.5 dollars",
            "It costs 15 dollars",
            "It costs 1 5 dollars",
            "It costs 1.6 dollars",
        ),
        ("-5 degrees", "5 degrees"),
        ("5%", "5"),
        (":)", ":(", "?", "!", "...", "😀", "😡"),
        ("a fine film", "a fine film indeed"),
        ("great 😀", "great 😡"),
        ("हिंदी", "हंद"),  # the vowel signs are no punctuation
        ("ก้า", "กา"),
        ("a film 1", "a film 2"),
        ("", "a"),
    ],
)
def test_other_words_numbers_and_marks_alone_are_different(texts: tuple[str, ...]) -> None:
    assert near_copies(texts) == list(range(len(texts)))


def exact_groups(texts: list[list[str]]) -> list[int]:
    """The groups by comparing every text with every first text before it; all have 20 words or
    more. Equal texts have the group of the first of them."""
    grams = [{tuple(text[n : n + 3]) for n in range(len(text) - 2)} for text in texts]
    firsts: list[int] = []
    groups: list[int] = []
    for number, text_grams in enumerate(grams):
        if texts.index(texts[number]) < number:
            groups.append(groups[texts.index(texts[number])])
            continue
        similar = [
            (len(text_grams & grams[first]) / len(text_grams | grams[first]), -first)
            for first in firsts
        ]
        best, first = max(similar, default=(0.0, 0))
        if best >= MIN_SIMILARITY:
            groups.append(-first)
        else:
            firsts.append(number)
            groups.append(number)
    return groups


def edited(draw: random.Random, text: list[str], edits: int) -> list[str]:
    text = list(text)
    for _ in range(edits):
        place = draw.randrange(len(text))
        kind = draw.randrange(3)
        if kind == 0:
            text[place] = draw.choice(FILLER)
        elif kind == 1:
            text.insert(place, draw.choice(FILLER))
        elif len(text) > 20:
            del text[place]
    return text


@pytest.mark.parametrize("seed", range(4))
def test_long_texts_are_grouped_as_by_comparing_all_pairs(seed: int) -> None:
    draw = random.Random(seed)
    texts = [words(draw, draw.randrange(20, 80)) for _ in range(60)]
    texts += [edited(draw, draw.choice(texts), draw.randrange(4)) for _ in range(240)]
    draw.shuffle(texts)
    expected = exact_groups(texts)
    assert 60 < len(set(expected)) < 290, (
        "there are near-copies, and texts that are not similar enough"
    )
    assert near_copies([" ".join(text).capitalize() + "." for text in texts]) == expected


def test_groups_are_no_chains() -> None:
    """Each text is a near-copy of the one before it; the last one has nothing in common with the
    first one."""
    draw = random.Random(5)
    start = words(draw, 40)
    end = words(draw, 40)
    texts = [end[:n] + start[n:] for n in range(0, 41, 2)]
    groups = near_copies([" ".join(text) for text in texts])
    assert groups == exact_groups(texts)
    assert 3 < len(set(groups)) < len(texts)


@pytest.mark.parametrize(
    "letters",
    [
        "的一是不了人我在有他这为之大来以个中上们",
        "กขคงจฉชซญฐณดตถทธนบปผ",
        "あいうえおかきくけこさしすせそたちつて",
    ],
)
def test_scripts_without_spaces_are_compared_by_characters(letters: str) -> None:
    draw = random.Random(1)
    text = "".join(draw.choices(letters, k=80))
    changed_text = text[:-1] + "x"
    different_text = "".join(draw.choices(letters, k=80))
    half_text = text[:40] + different_text[40:]
    assert near_copies([text, changed_text, different_text, half_text]) == [0, 0, 2, 3]
    assert near_copies([text[:39], text[:38]]) == [0, 1], "short texts must be equal"


def test_korean_is_compared_by_words_and_short_texts_must_be_equal() -> None:
    text = " ".join(word(n) for n in range(20))
    changed = f"{text} more"
    assert near_copies([text, changed]) == [0, 0]
    shorter = " ".join(word(n) for n in range(19))
    assert near_copies([shorter, shorter[:-1]]) == [0, 1]
    korean = " ".join(["가나다라마바사아자차카타파하"[n % 14] * 2 + word(n) for n in range(20)])
    assert near_copies([korean, f"{korean} 더"]) == [0, 0]


def test_texts_of_one_template_are_found_in_bounded_time() -> None:
    """All share their bands; none is a near-copy but the last, which repeats the first."""
    draw = random.Random(2)
    template = words(draw, 26)
    texts = []
    for number in range(600):
        text = list(template)
        for place in (4, 12, 20):
            text[place] = word(10_000 + 3 * number + place)
        texts.append(" ".join(text))
    groups = near_copies([*texts, f"{texts[0]} end"])
    assert groups[:-1] == list(range(600))
    assert groups[-1] == 0


def test_minhash_estimates_the_similarity() -> None:
    """The share of equal values is the Jaccard similarity, within four standard deviations of a
    mean over 200 pairs."""
    draw = random.Random(3)
    hashes = module._WordHashes()
    differences = []
    for _ in range(200):
        text = words(draw, 60)
        edited_text = edited(draw, text, draw.randrange(1, 9))
        (gram, first_hashes), (_, second_hashes) = (
            module._hashes_of(" ".join(some_words), hashes) for some_words in (text, edited_text)
        )
        compared_texts = [first_hashes, second_hashes]
        signatures = module._signatures(compared_texts, gram)
        grams = [set(module._grams(compared, gram).tolist()) for compared in compared_texts]
        expected = {tuple(text[n : n + 3]) for n in range(58)}
        assert len(grams[0]) == len(expected)
        similarity = len(grams[0] & grams[1]) / len(grams[0] | grams[1])
        differences.append(float((signatures[0] == signatures[1]).mean()) - similarity)
    assert abs(np.mean(differences)) < 4 * 0.5 / (64 * 200) ** 0.5


def test_very_long_texts_are_compared_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LONGEST", 200)
    text = " ".join(words(random.Random(1), 60))
    assert len(text) > 200
    assert near_copies([text, text, f"{text}!", text[:150], f"{text[:150]}!"]) == [0, 0, 2, 3, 3]


def test_pairs_compare_both_texts() -> None:
    rows = [
        ("A cat.", "It sleeps"),
        ("a cat", "it sleeps!"),
        ("a cat", "it eats"),
        ("it sleeps", "a cat"),
    ]
    keys = near_copies_of_rows(rows)
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3
    assert keys[3] == keys[0][::-1], "a text has one number wherever it stands"


# --- splits
# --------------------------------------------------------------------------------------------------

MARKS = ("{}?", "{}", "{} ?", "{}!", " {}...")


def questions(count: int, spellings_per_text: int, seed: int = 0) -> list[dict[str, str]]:
    """Questions in several spellings, with labels that only their words tell."""
    draw = random.Random(seed)
    rows = []
    for number in range(count):
        text = " ".join(words(draw, 7))
        for form in MARKS[:spellings_per_text]:
            rows.append(
                {
                    "text": form.format(text if draw.random() < 0.5 else text.upper()),
                    "label": "abc"[number % 3],
                }
            )
    draw.shuffle(rows)
    return rows


def letters(text: str) -> str:
    return "".join(c for c in text.lower() if c.isalpha())


def both_sides(data: LabelledData) -> set[str]:
    train, dev = ({letters(item.texts[0]) for item in part} for part in (data.train, data.dev))
    return train & dev


@pytest.mark.parametrize("fold", [None, (0, 5), (4, 5)])
def test_near_copies_are_on_one_side_of_a_split(fold: tuple[int, int] | None) -> None:
    rows = questions(120, 4)
    data = read_data(rows, fold=fold)
    assert not both_sides(data)
    assert len(data.dev) == pytest.approx(len(rows) / (5 if fold else 10), abs=8)
    assert Counter(item.label for item in data.dev)["a"] == pytest.approx(len(data.dev) / 3, abs=5)
    (note,) = [note for note in data.notes if "near-duplicates" in note]
    assert note.startswith("near-duplicates, kept together: 3")
    assert note.count(" = ") == 2, "there are two examples"


def test_near_copies_are_in_one_part_of_a_cross_validation() -> None:
    data = read_data(questions(120, 4), validation="folds")
    assert len(data.parts) == PARTS
    for number in range(PARTS):
        assert not both_sides(data.fold(number))


def test_near_copies_among_long_texts_pairs_sentences_and_questions() -> None:
    draw = random.Random(7)
    long = [words(draw, 30) for _ in range(80)]
    texts = [
        (n, " ".join([*text[: 30 - k], *words(draw, k)]))
        for n, text in enumerate(long)
        for k in range(3)
    ]
    rows = [{"text": text, "label": "ab"[n % 2]} for n, text in texts]
    groups = {text: n for n, text in texts}
    data = read_data(rows)
    assert not {groups[x.texts[0]] for x in data.train} & {groups[x.texts[0]] for x in data.dev}

    pairs = [
        {
            "sentence1": form.format(word(n)),
            "sentence2": f"{word(n + 500)} {form.format('it')}",
            "score": n % 7 / 2,
        }
        for n in range(90)
        for form in MARKS[:3]
    ]
    data = read_data(pairs, validation="split")
    assert not both_sides(data)

    sentences = [
        {"tokens": [word(n), "lives", *marks], "tags": ["B-x", *["O"] * (1 + len(marks))]}
        for n in range(90)
        for marks in ([], ["."], ["!"])
    ]
    data = read_data(sentences, validation="split")
    assert data.schema.task == "tagging"
    assert not both_sides(data)

    contexts = [
        {
            "question": f"who {word(k)} ?",
            "context": form.format(f"Anna {word(n)} lives"),
            "answers": [{"text": "Anna", "answer_start": form.index("{")}],
        }
        for n in range(40)
        for k, form in enumerate(MARKS[:3])
    ]
    data = read_data(contexts, validation="split")
    assert data.schema.task == "qa"
    sides = [{letters(item.texts[1]) for item in part} for part in (data.train, data.dev)]
    assert not sides[0] & sides[1]


def test_near_copies_that_are_more_than_a_fold_are_divided_with_a_warning() -> None:
    many = [{"text": f"buy now{'!' * n}", "label": "abc"[n % 3]} for n in range(60)]
    rows = [*many, *questions(30, 2)]
    data = read_data(rows, validation="folds")
    (warning,) = [note for note in data.notes if note.startswith("WARNING")]
    assert warning.startswith(
        "WARNING: 60 rows are duplicates or near-duplicates of each other, e.g. "
    )
    assert "more than a fold" in warning
    sizes = [len(part) for part in data.parts]
    assert max(sizes) - min(sizes) <= 3
    assert [letters("buy now")] == [*both_sides(data.fold(0))], (
        "the other near-copies stay together"
    )
    # They are more than the tenth that is held out, too.
    split = read_data(rows, validation="split")
    assert both_sides(split) == {letters("buy now")}
    (warning,) = [note for note in split.notes if note.startswith("WARNING")]
    assert warning.startswith("WARNING: 60 rows are duplicates")
    assert "('buy now')" in warning
    assert "their score is too high. Remove the duplicates" in warning


@pytest.mark.parametrize("parts", [None, 5])
@pytest.mark.parametrize("count", [20, 59, 61, 100])
def test_equal_texts_are_divided_if_and_only_if_they_are_more_than_a_part(
    parts: int | None, count: int
) -> None:
    rows = [{"text": "buy now", "label": "ab"[n % 2]} for n in range(count)]
    rows += [{"text": f"who is {word(n)}", "label": "ab"[n % 2]} for n in range(300 - count)]
    folds = (
        [read_data(rows, fold=(number, parts)) for number in range(parts)]
        if parts
        else [read_data(rows)]
    )
    is_divided = count > 300 // (parts or 10)
    assert any(both_sides(data) for data in folds) == is_divided
    for data in folds:
        assert (
            bool([note for note in data.notes if note.startswith(f"WARNING: {count} rows")])
            == is_divided
        )


def test_equal_texts_of_a_group_of_the_user_are_never_divided() -> None:
    rows = [{"text": "buy now", "label": "ab"[n % 2], "writer": "spam"} for n in range(100)]
    rows += [
        {"text": f"who is {word(n)}", "label": "ab"[n % 2], "writer": word(n)} for n in range(200)
    ]
    for number in range(5):
        data = read_data(rows, group="writer", fold=(number, 5))
        assert not both_sides(data)
        assert not [note for note in data.notes if note.startswith("WARNING")], (
            "nothing was divided"
        )


@pytest.mark.parametrize("seed", range(6))
def test_only_groups_larger_than_a_fold_are_divided_in_random_tables(seed: int) -> None:
    draw = random.Random(seed)
    sizes = [draw.choice([1, 1, 2, 3, 8]) for _ in range(80)]
    sizes += [draw.randint(40, 120) for _ in range(2)]
    rows = [
        {"text": f"who is {word(number)}{draw.choice(['', '?', '!'])}", "label": draw.choice("abc")}
        for number, size in enumerate(sizes)
        for _ in range(size)
    ]
    draw.shuffle(rows)
    counts = Counter(letters(row["text"]) for row in rows)
    for parts in (3, 5, None):
        folds = (
            [read_data(rows, fold=(number, parts)) for number in range(parts)]
            if parts
            else [read_data(rows)]
        )
        for number, data in enumerate(folds):
            largest = len(rows) // (parts or 10)
            assert all(counts[text] > largest for text in both_sides(data))
            assert {item.label for item in data.train} == set("abc")
            again = read_data(rows, fold=(number, parts)) if parts else read_data(rows)
            assert [item.where for item in again.dev] == [item.where for item in data.dev]
            warnings = [note for note in data.notes if note.startswith("WARNING")]
            assert bool(warnings) == (max(counts.values()) > largest)


@pytest.mark.parametrize("form", ["code {}", "your code"])
def test_copies_that_are_all_rows_of_a_label_are_divided_with_a_warning(form: str) -> None:
    rare = [{"text": form.format("?" * n), "label": "codes"} for n in range(30)]
    data = read_data([*rare, *questions(60, 2)], validation="folds")
    (warning,) = [note for note in data.notes if note.startswith("WARNING")]
    assert warning.startswith("WARNING: 30 rows are duplicates")
    for number in range(PARTS):
        fold = data.fold(number)
        assert {letters(item.texts[0]) for item in fold.train if item.label == "codes"}
        assert both_sides(fold) == {letters(form.format(""))}
    assert "codes" in {item.label for item in read_data([*rare, *questions(60, 2)]).dev}


def test_few_texts_are_divided_by_rows_and_it_is_said() -> None:
    rows = [
        {"text": f"{'good' if n % 2 else 'bad'} film{'.' * (n % 3)}", "label": "np"[n % 2]}
        for n in range(60)
    ]
    data = read_data(rows)
    assert both_sides(data)
    (warning,) = [note for note in data.notes if note.startswith("WARNING")]
    assert warning.startswith("WARNING: 60 rows are duplicates or near-duplicates of each other")


def test_near_copies_in_many_documents_do_not_join_these_and_it_is_said(tmp_path: Path) -> None:
    """Copies that are exactly equal still do not cross the split."""
    parts = []
    for n in range(40):
        sentences = f"Results{'!' * n} O\n\n{word(n)} B-x\nlives O\n\n"
        parts.append(f"-DOCSTART- O\n\n{sentences}in O\n{word(100 + n // 2)} O\n\n")
    (tmp_path / "d.conll").write_text("".join(parts))
    data = read_data(tmp_path / "d.conll")
    (warning,) = [note for note in data.notes if note.startswith("WARNING")]
    assert warning.startswith("WARNING: 40 rows are duplicates or near-duplicates of each other")
    train, dev = ({item.texts for item in part} for part in (data.train, data.dev))
    assert not train & dev
    assert {item.document for item in data.train}.isdisjoint(item.document for item in data.dev)


# --- reports
# --------------------------------------------------------------------------------------------------


def write_questions(path: Path, rows: list[dict[str, str]]) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    return path


def test_check_counts_near_copies_and_warns_of_those_in_dev(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    rows = questions(60, 2)
    new_rows = [{"text": f"{word(n)} {word(n + 1)} film", "label": "abc"[n % 3]} for n in range(40)]
    dev = [
        {"text": f"{rows[0]['text']}!!", "label": "a"},
        {"text": rows[1]["text"], "label": "b"},
        *new_rows,
    ]
    train_file = write_questions(tmp_path / "train.jsonl", rows)
    dev_file = write_questions(tmp_path / "dev.jsonl", dev)
    report = check_file(train_file, dev=dev_file, model=model)
    assert (report.copies.count, report.near_copies.count) == (0, 60)
    assert (report.leaked.count, report.near_leaked.count) == (1, 1)
    assert report.near_leaked.places[0].startswith("dev.jsonl:1 = train.jsonl:")
    text = str(report)
    assert "near-duplicates within train: 60 (" in text
    assert "dev rows with a near-duplicate in train: 1 (dev.jsonl:1 = " in text
    assert "a few words: 1 (2.4%), e.g. dev.jsonl:1 = " in text
    clean = check_file(
        train_file, dev=write_questions(tmp_path / "new.jsonl", new_rows), model=model
    )
    assert not clean.near_leaked.count
    assert not [warning for warning in clean.warnings if "near-duplicate" in warning]


def test_capitals_are_near_copies_where_the_model_sees_them(tmp_path: Path) -> None:
    train = [
        Item((text,), "x", f"t.csv:{n}") for n, text in enumerate(("Film", "film", "film.", "film"))
    ]
    data = LabelledData(Schema(task="classification", text=("text",), labels=("x",)), train, [])
    cased, uncased = (
        dataset_report._copies(data, lowercase)["near_copies"] for lowercase in (False, True)
    )
    assert uncased.places == ["t.csv:2 = t.csv:0"]
    assert cased.count == 2, "film and film."


# --- evaluation
# --------------------------------------------------------------------------------------------------


def test_evaluation_reports_near_copies_of_training_rows(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    out = tmp_path / "out"
    data = write_questions(tmp_path / "train.jsonl", questions(40, 2))
    settings: dict[str, Any] = {
        "model": model,
        "validation": "split",
        "method": "frozen",
        "device": "cpu",
    }
    finetune(data, output=out, **settings)
    split = read_data(data, validation="split")
    training_rows = [
        {"text": f"{item.texts[0]}...", "label": item.label} for item in split.train[:5]
    ]
    held_out_rows = [{"text": item.texts[0], "label": item.label} for item in split.dev]
    notes: list[str] = []
    new_file = write_questions(tmp_path / "new.jsonl", [*training_rows, *held_out_rows])
    result = evaluate_task(out, new_file, device="cpu", on_note=notes.append)
    assert result["training_copies"] == 5
    (note,) = [note for note in notes if "training data" in note]
    assert note.startswith(f"WARNING: 5 of the {len(held_out_rows) + 5} rows (")
    assert "new.jsonl:1 = train.jsonl:" in note
    notes.clear()
    held_out_file = write_questions(tmp_path / "held.jsonl", held_out_rows)
    assert (
        evaluate_task(out, held_out_file, device="cpu", on_note=notes.append)["training_copies"]
        == 0
    )
    assert (
        "no row is a duplicate or near-duplicate of a row in the training data train.jsonl" in notes
    )
    # What has changed, is gone or lies elsewhere is not compared, and nothing is fetched.
    content = json.loads((out / "run.json").read_text())
    data.write_text(data.read_text() + "\n")
    for path in (str(data), str(tmp_path / "gone.jsonl"), "s3://bucket/train.jsonl"):
        content["request"]["data"] = path
        (out / "run.json").write_text(json.dumps(content))
        notes.clear()
        assert (
            evaluate_task(out, held_out_file, device="cpu", on_note=notes.append)["training_copies"]
            is None
        )
        (note,) = [note for note in notes if "training data" in note]
        assert note.startswith(
            f"not compared with the training data {Path(path).name}: it is not on this machine"
        )
    content["request"]["read"] = {"unknown": 1}
    content["request"]["data"] = str(data)
    for text in ("{", '{"request": 5}', json.dumps(content)):
        (out / "run.json").write_text(text)
        notes.clear()
        assert (
            evaluate_task(out, held_out_file, device="cpu", on_note=notes.append)["training_copies"]
            is None
        )
        assert [note for note in notes if note.startswith("not compared with the training data: ")]
    (out / "run.json").unlink()
    assert evaluate_task(out, held_out_file, device="cpu")["training_copies"] is None


def test_training_rows_are_all_rows_beside_a_dev_file(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    out = tmp_path / "out"
    rows = questions(40, 2)
    data = write_questions(tmp_path / "train.jsonl", rows)
    dev = write_questions(tmp_path / "dev.jsonl", questions(10, 2, seed=1))
    finetune(data, dev=dev, output=out, model=model, method="frozen", device="cpu")
    assert evaluate_task(out, data, device="cpu")["training_copies"] == len(rows)
    assert evaluate_task(out, dev, device="cpu")["training_copies"] == 0
