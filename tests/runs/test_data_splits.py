"""Labelled files become training and dev rows: groups, copies and labels stay together."""

import json
import random
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from bertworks.errors import BertworksError
from bertworks.runs import data_splits
from bertworks.runs.data_splits import FOLDS, find_files, rows_per_class
from tests.support.fine import (
    read_data,
)
from tests.support.refusals import refusal


def test_whole_groups_are_set_aside_and_no_more_than_a_tenth(model: Path, tmp_path: Path) -> None:
    lines = [f"a film {n},{'abcdefgh'[n % 8]},{n // 20 if n < 380 else ''}" for n in range(400)]
    (tmp_path / "d.csv").write_text("\n".join(["text,label,author", *lines]) + "\n")
    found = read_data(tmp_path / "d.csv", label="label", group="author")
    assert 30 <= len(found.dev) <= 50
    of = lambda items: {item.document for item in items if item.document}  # noqa: E731
    assert not of(found.train) & of(found.dev)
    assert "kept together: rows with the same 'author'" in found.notes


def test_rows_without_a_group_are_divided_one_by_one(tmp_path: Path) -> None:
    lines = [f"a film {n},{'ab'[n % 2]},{'Anna' if n < 10 else ''}" for n in range(200)]
    (tmp_path / "d.csv").write_text("\n".join(["text,label,author", *lines]) + "\n")
    found = read_data(tmp_path / "d.csv", label="label", group="author")
    assert all(any(not item.document for item in part) for part in (found.train, found.dev))


def test_every_label_has_the_same_share_of_dev(tmp_path: Path) -> None:
    labels = ["a"] * 80 + ["b"] * 60 + ["c"] * 40 + ["d"] * 20
    rows = [f"a film {n},{label}" for n, label in enumerate(labels)]
    (tmp_path / "d.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    dev = Counter(item.label for item in read_data(tmp_path / "d.csv").dev)
    assert dev == {"a": 8, "b": 6, "c": 4, "d": 2}


def test_a_label_of_one_row_is_learned_and_not_evaluated(tmp_path: Path) -> None:
    rows = [f"a film {n},{'ab'[n % 2]}" for n in range(40)]
    (tmp_path / "d.csv").write_text("\n".join(["text,label", *rows, "a book,rare"]) + "\n")
    assert "rare" in {item.label for item in read_data(tmp_path / "d.csv").train}


@pytest.mark.parametrize(("whole", "documents"), [(True, 8), (False, 8), (False, 20)])
def test_documents_stay_whole_where_they_are_context_or_many(
    whole: bool, documents: int, tmp_path: Path
) -> None:
    sentences = "".join(f"Anna{n} B-x\nlives O\n\n" for n in range(5))
    (tmp_path / "d.conll").write_text(f"-DOCSTART- O\n\n{sentences}" * documents)
    found = read_data(tmp_path / "d.conll", whole_documents=whole)
    train, dev = ({item.document for item in part} for part in (found.train, found.dev))
    if documents >= 10:
        whole = True
        assert "kept together: sentences of a document, 20 documents" in found.notes
    assert train.isdisjoint(dev) == whole
    note = f"sentences of {len(train & dev)} documents are in both train and dev"
    assert (
        any(line.startswith(note) and "--group document" in line for line in found.notes) != whole
    )
    (tmp_path / "dev.conll").write_text(f"-DOCSTART- O\n\n{sentences}")
    # a document 1 is in both, and is not the same
    apart = read_data(tmp_path / "d.conll", dev=tmp_path / "dev.conll")
    assert not any("in both train and dev" in line for line in apart.notes)


@pytest.mark.parametrize("fold", [None, (0, 5), (3, 5)])
def test_copies_are_on_one_side(fold: tuple[int, int] | None, tmp_path: Path) -> None:
    forms = ["Ein Café {}", "ein  cafe\u0301 {}", " EIN CAFÉ {}"]
    rows = [
        f"{form.format(n)},{'ab'[n % 3 == 0]}" for n in range(100) for form in forms[: 1 + n % 3]
    ]
    (tmp_path / "d.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    found = read_data(tmp_path / "d.csv", fold=fold)
    train, dev = ({item.texts[0].split()[-1] for item in part} for part in (found.train, found.dev))
    assert train.isdisjoint(dev)
    assert len(found.dev) == pytest.approx(len(rows) / (5 if fold else 10), abs=4)
    share = Counter(item.label for item in found.dev)["b"] / len(found.dev)
    assert share == pytest.approx(34 / 199, abs=0.08)  # still the same fraction of every label
    assert "duplicates, kept together: 165 rows" in found.notes


def test_a_text_that_fills_the_file_is_divided_with_a_warning(tmp_path: Path) -> None:
    rows = [*(f"a film {n},{'ab'[n % 2]}" for n in range(100)), *["buy now,a"] * 100]
    (tmp_path / "d.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    data = read_data(tmp_path / "d.csv")
    copies_in_dev = Counter(item.texts for item in data.dev)["buy now",]
    assert len(data.dev) == 20
    assert 5 <= copies_in_dev <= 15  # half of the rows are copies
    (warning,) = [
        note for note in data.notes if "duplicates or near-duplicates of each other" in note
    ]
    assert warning.startswith("WARNING: 100 rows are duplicates")
    assert "their score is too high" in warning


def test_sentences_of_many_documents_do_not_join_these(tmp_path: Path) -> None:
    parts = [
        f"-DOCSTART- O\n\nResults O\n\nAnna{n} B-x\nlives O\n\nin O\nOslo{n} O\n\n"
        for n in range(40)
    ]
    (tmp_path / "d.conll").write_text("".join(parts))
    found = read_data(tmp_path / "d.conll")
    train, dev = ({item.document for item in part} for part in (found.train, found.dev))
    assert train.isdisjoint(dev)
    assert len(dev) == 4


def test_rows_that_are_all_the_same_context_cannot_be_divided(tmp_path: Path) -> None:
    answer = [{"text": "Anna", "answer_start": 0}]
    rows = [
        {"question": f"who {n} ?", "context": "Anna lives", "answers": answer} for n in range(20)
    ]
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(BertworksError, match="all 20 rows belong to one context or group"):
        read_data(tmp_path / "d.jsonl")


def pairs_of(left: list[str], right: list[str]) -> list[dict[str, Any]]:
    return [
        {"sentence1": a, "sentence2": b, "score": (n % 9) / 3}
        for n, (a, b) in enumerate(zip(left, right))
    ]


def texts_on_both_sides(data: Any) -> set[str]:
    sides = [{text for item in part for text in item.texts} for part in (data.train, data.dev)]
    return sides[0] & sides[1]


@given(st.integers(0, 10**6), st.integers(12, 40), st.integers(2, 4))
@settings(max_examples=25)
def test_pairs_that_share_a_text_stay_together(seed: int, premises: int, each: int) -> None:
    """As in SNLI, with the premise on either side."""
    draw = random.Random(seed)
    rows = []
    for n in range(premises):
        for k in range(each):
            pair = [f"premise number {n}", f"hypothesis {n} {k}"]
            rows += pairs_of(*([text] for text in draw.sample(pair, 2)))
    draw.shuffle(rows)
    rows = [row | {"score": n % 7 / 2} for n, row in enumerate(rows)]
    for validation in ("split", "folds"):
        data = read_data(rows, validation=validation)
        assert f"kept together: rows with a text in common, {premises:,} groups" in data.notes
        if validation == "split":
            assert not texts_on_both_sides(data)
        for part in range(len(data.parts)):
            assert not texts_on_both_sides(data.fold(part))


def test_pairs_with_the_same_few_hypotheses_are_kept_by_the_other_text() -> None:
    rows = pairs_of(
        [f"premise {n // 3}" for n in range(90)], [f"it is about {n % 3}" for n in range(90)]
    )
    data = read_data(rows, validation="split")
    assert "kept together: rows with a text in common, 30 groups" in data.notes
    assert texts_on_both_sides(data) == {"it is about 0", "it is about 1", "it is about 2"}


def test_pairs_in_groups_too_large_are_divided_and_said() -> None:
    rows = pairs_of(
        [f"premise {n % 3}" for n in range(90)], [f"hypothesis {n % 5}" for n in range(90)]
    )
    data = read_data(rows, validation="split")
    assert (
        "some rows in train and in dev share a text: scores on new texts may be lower" in data.notes
    )
    assert data.dev
    alone = read_data(
        pairs_of([f"a {n}" for n in range(60)], [f"b {n}" for n in range(60)]), validation="split"
    )
    assert not [note for note in alone.notes if "in common" in note]


def test_a_folder_has_one_train_file(tmp_path: Path) -> None:
    for name in ("train-1.csv", "train-2.csv", "dev.csv"):
        (tmp_path / name).write_text("text,label\na,b\n")
    what = "the folder has 2 train files: it holds dev.csv, train-1.csv, train-2.csv"
    with refusal(what, "name the files: bertworks finetune TRAIN-FILE --dev DEV-FILE ..."):
        find_files(tmp_path)


def write_labelled(path: Path, labels: list[str], groups: int = 0) -> Path:
    """Rows with different texts; with `groups` so many authors."""
    heads = "text,label,author" if groups else "text,label"
    rows = [
        f"a film {n} of {'xyz'[n % 3]},{label}" + (f",author {n % groups}" if groups else "")
        for n, label in enumerate(labels)
    ]
    path.write_text("\n".join([heads, *rows]) + "\n")
    return path


def test_ten_parts_have_the_same_fraction_of_every_label(tmp_path: Path) -> None:
    file = write_labelled(tmp_path / "d.csv", ["a", "b", "b", "b"] * 30)
    data = read_data(file, validation="folds")
    assert len(data.tenths) == FOLDS
    assert sorted(chain(*data.tenths)) == list(range(120))
    for part in data.tenths:
        assert Counter(data.train[n].label for n in part) == {"a": 3, "b": 9}
    assert (data.doubt, data.has_claim) == ("", True)
    whole = data.wholly_evaluated()
    assert whole.dev == data.train
    assert "scored by 10-fold cross-validation on all 120 rows" in whole.notes
    assert len(data.dev) == len(data.parts[0]) + len(data.parts[1])


def test_whole_groups_are_in_one_of_ten_parts(tmp_path: Path) -> None:
    """Those that a user names, and near-copies."""
    file = write_labelled(tmp_path / "d.csv", ["a", "b"] * 60, groups=25)
    data = read_data(file, label="label", group="author", validation="folds")
    part_of = {n: number for number, part in enumerate(data.tenths) for n in part}
    assert len(data.tenths) == FOLDS
    assert len(set(data.groups)) == 25
    for group in set(data.groups):
        assert len({part_of[n] for n in range(120) if data.groups[n] == group}) == 1
    copies = [f"text number {n // 2}{'!' * (n % 2)},{'ab'[n // 2 % 2]}" for n in range(120)]
    (tmp_path / "copies.csv").write_text("\n".join(["text,label", *copies]) + "\n")
    data = read_data(tmp_path / "copies.csv", validation="folds")
    part_of = {n: number for number, part in enumerate(data.tenths) for n in part}
    assert len(set(data.groups)) == 60
    assert all(part_of[n] == part_of[n + 1] for n in range(0, 120, 2))


def test_fewer_than_ten_groups_have_three_folds_and_no_interval(tmp_path: Path) -> None:
    file = write_labelled(tmp_path / "d.csv", ["a", "b"] * 60, groups=7)
    data = read_data(file, label="label", group="author", validation="folds")
    assert data.tenths == data.parts
    assert "7 groups of rows" in data.doubt


@pytest.mark.parametrize(
    ("rows", "stratified", "claim"), [(9, True, True), (8, False, True), (2, False, False)]
)
def test_few_rows_per_label_have_plain_folds(
    rows: int, stratified: bool, claim: bool, tmp_path: Path
) -> None:
    labels = [f"topic {n}" for n in range(30)] * rows
    file = write_labelled(tmp_path / "d.csv", labels)
    data = read_data(file, task="classification", label="label", validation="folds")
    counts = [Counter(data.train[n].label for n in part) for part in data.parts]
    is_even = all(max(one.values()) - min(one[label] for label in labels) <= 1 for one in counts)
    assert is_even == stratified or rows == 2
    assert bool(data.doubt) != stratified
    assert data.has_claim == claim
    assert stratified or f"{rows} rows per label" in data.doubt


def test_many_labels_have_three_folds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_splits, "MAX_FOLDS_WORK", 239)
    file = write_labelled(tmp_path / "d.csv", ["a", "b"] * 60)
    data = read_data(file, validation="folds")
    assert data.tenths == data.parts
    assert not data.doubt
    note = "scored by 3-fold cross-validation on all 120 rows"
    assert note in data.wholly_evaluated().notes


def write_near_copies(path: Path, different: int, copies: int) -> Path:
    """`different` texts of each of two labels, each in `copies` forms that are near-copies."""
    rows = [
        f"film number {n}{'!' * copy},{label}"
        for label in ("good film", "bad film")
        for n in range(different * (label > "c"), different * (1 + (label > "c")))
        for copy in range(copies)
    ]
    path.write_text("\n".join(["text,label", *rows]) + "\n")
    return path


def test_near_copies_are_no_further_rows_of_a_class(tmp_path: Path) -> None:
    """Of eight rows half are copies: four of a class; the rows of a named document are eight."""
    file = write_near_copies(tmp_path / "d.csv", 8, 2)
    data = read_data(file, validation="folds")
    assert len(data.train) == 32
    assert rows_per_class(data) == 8
    assert "8 rows per label" in data.doubt
    assert rows_per_class(data.fold(0)) > 8
    named = write_labelled(tmp_path / "named.csv", ["a", "b"] * 16, groups=11)
    assert rows_per_class(read_data(named, label="label", group="author", validation="folds")) == 16


def test_few_groups_of_near_copies_are_whole_in_folds(tmp_path: Path) -> None:
    """Fewer than ten have no interval; divided by rows, their score would be too high."""
    data = read_data(write_near_copies(tmp_path / "d.csv", 4, 4), validation="folds")
    assert len(set(data.groups)) == 8
    assert "4 rows per label" in data.doubt
    assert data.tenths == data.parts
    texts = [{data.train[n].texts[0].rstrip("!") for n in part} for part in data.parts]
    assert sum(map(len, texts)) == 8
