"""Vocabularies and shards as events; nothing of somebody else's is lost."""

from pathlib import Path

import pytest

from bertworks.errors import UsageError
from bertworks.runs.prepare import in_background, make_vocabulary
from bertworks.text.corpus import CorpusReader
from bertworks.text.vocabulary import VocabularyConfig


def make_text(folder: Path) -> CorpusReader:
    (folder / "text.txt").write_text("The cat sat on the mat. The dog sat on the log.\n\n" * 50)
    return CorpusReader([folder / "text.txt"])


def test_a_vocabulary_may_be_made_again_but_replaces_nothing_else(tmp_path):
    reader, output = make_text(tmp_path), tmp_path / "out"
    for _ in range(2):
        events = list(make_vocabulary(reader, output, VocabularyConfig(size=60)))
        assert events[-1].kind == "done"
    (output / "precious.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"precious\.txt"):
        list(make_vocabulary(reader, output, VocabularyConfig(size=60)))
    assert (output / "precious.txt").read_text() == "mine"


def test_work_in_the_background_tells_returns_and_fails_like_any_other():
    def consume(work):
        events, stage = [], in_background("test", work)
        while True:
            try:
                events.append(next(stage))
            except StopIteration as end:
                return events, end.value

    events, result = consume(lambda tell: tell("parts", 3) or "done")
    assert result == "done"
    assert [e.fields for e in events] == [{"stage": "test", "what": "parts", "amount": 3}]
    with pytest.raises(ZeroDivisionError):
        consume(lambda tell: 1 // 0)
