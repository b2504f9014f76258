"""Errors: their text, and the refusal of one value where several are expected."""

import numpy as np
import pyarrow as pa
import pytest

from bertworks.errors import BertworksError, UsageError, listed, require, several, some_names


def test_the_text_has_the_place_and_the_hint() -> None:
    error = BertworksError("no label", where="a.csv:3", hint="write one")
    assert str(error) == "a.csv:3: no label\n  hint: write one"
    assert str(BertworksError("no label")) == "no label"
    assert (BertworksError.exit_code, UsageError.exit_code) == (1, 2)


@pytest.mark.parametrize(
    "values", [["a", "b"], ("a", "b"), np.array(["a", "b"]), pa.chunked_array([["a", "b"]])]
)
def test_several_values_are_read_in_their_order(values: object) -> None:
    assert listed(values, "") == ["a", "b"]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "hint"),
    [
        ("text", "as [text]"),
        ({"a", "b"}, "give a list, as sorted(VALUES)"),
        (pa.table({"body": ["a"]}), "give one of its columns, as TABLE['body']"),
        (np.array("text"), "as [text]"),
        (5, "as [text]"),
    ],
)
def test_what_is_no_list_is_refused_with_what_to_type(values: object, hint: str) -> None:
    with pytest.raises(UsageError, match="expected a list of texts") as error:
        several(values, "as [text]")  # type: ignore[call-overload]
    assert error.value.hint == hint


def test_a_file_that_does_not_fit_is_named() -> None:
    require(True, "damaged", "model")
    with pytest.raises(BertworksError, match="model: damaged"):
        require(False, "damaged", "model")


def test_few_names_are_shown_of_many() -> None:
    assert some_names(["b", "a"]) == "a, b"
    assert some_names([f"n{number}" for number in range(10)], 2) == "n0, n1 and 8 more"
