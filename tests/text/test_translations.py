"""Translations: the two sides stay in step, and what does not fit is counted and named."""

from pathlib import Path

import pytest

from bertworks.errors import BertworksError
from bertworks.text.translations import read_translations
from tests.scenarios.test_line_ends import INSIDE, SENTENCES, with_stray, write_lines
from tests.support.refusals import refusal


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("stray", INSIDE)
def test_translations_stay_in_step(stray: str, end: str, tmp_path: Path) -> None:
    """OpenNMT-py#2262 and #399: all translations between two stray carriage returns were shifted by
    a line."""
    first = write_lines(tmp_path / "a", with_stray(SENTENCES, 1, stray), end)
    second = write_lines(tmp_path / "b", with_stray(SENTENCES, 6, stray), end)
    translations = read_translations([first, second])
    assert len(translations.pairs) == 8
    for place in (0, 2, 3, 4, 5, 7):
        assert translations.pairs[place] == (SENTENCES[place], SENTENCES[place])
    assert translations.pairs[1][0] == with_stray(SENTENCES, 1, stray)[1]
    counter = next(
        counter for name, counter in translations.issues.items() if "inside lines" in name
    )
    assert (counter.count, counter.places) == (2, [f"{first}:2", f"{second}:7"])
    table = write_lines(
        tmp_path / "c", [f"{line}\t{line}" for line in with_stray(SENTENCES, 1, stray)], end
    )
    assert read_translations([table]).pairs[2:] == [(line, line) for line in SENTENCES[2:]]


def test_what_is_printed_about_translations(tmp_path: Path) -> None:
    first = write_lines(
        tmp_path / "a", [*SENTENCES, "Nine words are in this one and one is left.", "same", "ok"]
    )
    second = write_lines(tmp_path / "b", [*(line * 2 for line in SENTENCES), "x", "same", "o"])
    translations = read_translations([first, second])
    assert (translations.num_identical, translations.num_far, translations.usual_ratio) == (
        1,
        1,
        2.0,
    )
    first_note, *examples, length_note, identical_note = translations.notes()
    assert first_note == (
        f"translations: 11 pairs, lines 1 to 11 of {first} and {second}; 9.1% are the same on "
        "both sides; "
        "the second side has 2.00 times the characters of the first (median)"
    )
    assert examples[0] == f"example  {SENTENCES[0]!r} -> {SENTENCES[0] * 2!r:.61}'"
    assert f"1 ({first}:9)" in length_note
    assert "lengths" in length_note
    assert f"1 ({first}:10)" in identical_note


@pytest.mark.parametrize(("factor", "warns"), [(1, True), (10, False)])
def test_lengths_of_titles_tell_nothing_about_their_order(
    factor: int, warns: bool, tmp_path: Path
) -> None:
    """Ratios that vary, of sides that are about as long, and of texts and titles."""
    first = write_lines(tmp_path / "a", [line * 6 * factor for line in SENTENCES])
    second = write_lines(tmp_path / "b", [SENTENCES[0] * (1 + n % 6) * 2 for n in range(8)])
    translations = read_translations([first, second])
    assert translations.num_far > 0.1 * len(SENTENCES)
    assert any("in the same order" in note for note in translations.notes()) is warns


def test_translations_with_lengths_that_do_not_fit(tmp_path: Path) -> None:
    short_line = "A word, or some of them."
    long_line = "A sentence with many more words than all of the others. " * 3
    files = [
        write_lines(tmp_path / "a", [short_line, long_line] * 20),
        write_lines(tmp_path / "b", [short_line, long_line] * 19),
    ]
    with pytest.raises(BertworksError, match=r"has 40 lines, .* has 38: expected the same number"):
        read_translations(files)
    files[1] = write_lines(tmp_path / "b", [long_line, short_line] * 20)
    assert any(note.startswith("warning: the lengths") for note in read_translations(files).notes())
    files[1] = write_lines(tmp_path / "b", [f"{line}!" for line in [short_line, long_line] * 20])
    assert not any(note.startswith("warning") for note in read_translations(files).notes())
    assert any(
        note.startswith("warning: many") for note in read_translations([files[0], files[0]]).notes()
    )


def test_empty_sides_are_counted_and_named(tmp_path: Path) -> None:
    files = [
        write_lines(tmp_path / "a", ["x", "", "x", "x"]),
        write_lines(tmp_path / "b", ["y", "y", "y", " \r"]),
    ]
    message = (
        rf"a:2: no text on one side of a translation, in 2 places: 2 \({files[0]}:2, {files[1]}:4\)"
    )
    with pytest.raises(BertworksError, match=message):
        read_translations(files)


def test_no_lines_are_no_translations(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    (tmp_path / "b").write_text("")
    with refusal("the file has no lines", ""):
        read_translations([tmp_path / "a", tmp_path / "b"])


def test_a_csv_file_has_two_columns_and_perhaps_a_header(tmp_path: Path) -> None:
    table = tmp_path / "pairs.csv"
    rows = '"A man, who rides.","Ein Mann, der ""reitet""."\n\n"Two\ndogs",Zwei Hunde\nsame,same\n'
    table.write_text(rows)
    translations = read_translations([table])
    assert translations.header == ()
    assert translations.pairs == [
        ("A man, who rides.", 'Ein Mann, der "reitet".'),
        ("Two dogs", "Zwei Hunde"),
        ("same", "same"),
    ]
    assert translations.issues["pairs with the same text on both sides"].places == [f"{table}:5"]
    table.write_text(f"english,german\n{rows}")
    with_header = read_translations([table])
    assert with_header.pairs == translations.pairs
    assert with_header.issues["pairs with the same text on both sides"].places == [f"{table}:6"]
    notes = with_header.notes()
    assert f"3 pairs, rows 1 to 3 of {table}" in notes[0]
    assert "the first row is a header, not a pair: english and german" in notes


def test_rows_of_a_csv_file_without_two_columns_are_named(tmp_path: Path) -> None:
    table = tmp_path / "pairs.csv"
    table.write_text("en,de\nYes.,Ja.\nNo.,Nein.,Non.\n")
    with pytest.raises(BertworksError, match=r"pairs.csv:3: 3 columns: expected two"):
        read_translations([table])
    table.write_text("en,de\n")
    with refusal("the file has no lines", ""):
        read_translations([table])
