"""Counts of words: exact in bounded memory, and errors of ours."""

import sys
from collections import Counter
from contextlib import closing

import pytest
from hypothesis import given, settings, strategies as st

from bertworks.errors import BertworksError
from bertworks.text import word_counts
from bertworks.text.word_counts import WordCounts, count_words
from tests.text.test_vocabulary import SPLITTER, invented


@given(
    st.lists(
        st.dictionaries(st.text(st.sampled_from("abé中\U0001f600"), min_size=1), st.integers(1, 9))
    )
)
@settings(deadline=None)
def test_counts_through_a_file_are_exact_and_sorted(batches):
    expected: Counter[str] = Counter()
    with closing(WordCounts(max_memory=1)) as spilled:  # every batch goes to the file
        for batch in batches:
            spilled.add(batch)
            expected.update(batch)
        assert list(spilled) == sorted(expected.items(), key=lambda item: (-item[1], item[0]))
        assert dict(spilled) == expected, "as often as one likes"
        assert len(spilled) == len(expected)


def test_no_room_for_temporary_files_is_an_error_of_ours():
    with closing(WordCounts(max_memory=1)) as counts:
        counts._database.execute("PRAGMA max_page_count = 2")
        with pytest.raises(BertworksError, match="cannot be written"):
            counts.add({f"word {number}": 1 for number in range(1000)})


def test_a_killed_counting_process_is_an_error(monkeypatch):
    monkeypatch.setattr(word_counts, "BATCH", 10)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with (
        closing(WordCounts(1 << 20)) as counts,
        pytest.raises(BertworksError, match="process that counted words ended"),
    ):
        count_words(invented(9), SPLITTER, lambda new: counts.add(new.shared_words), workers=2)
