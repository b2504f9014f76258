"""Groups of files of a corpus: each document is in one of them, and reports add up."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from bertworks.errors import UsageError
from bertworks.io.file_job import create
from bertworks.text import file_groups
from bertworks.text.corpus import CorpusReader
from bertworks.text.file_groups import shard_maker, source_of
from tests.support.fine import tokenizer
from tests.support.refusals import refusal


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CorpusReader:
    monkeypatch.setattr(file_groups, "_GROUP", 100)
    texts = tmp_path / "texts"
    texts.mkdir()
    for number in range(7):
        lines = [json.dumps({"text": f"Text {number} of {row}."}) for row in range(number)]
        (texts / f"{number}.jsonl").write_text("\n".join(lines) + "\n")
    return CorpusReader([texts])


def test_groups_divide_the_files(reader: CorpusReader) -> None:
    groups = list(file_groups.groups(reader))
    assert len(groups) > 2
    assert groups[0][0] == 0
    assert [end for _, end in groups] == [*(start for start, _ in groups[1:]), 7]


def test_parts_hold_all_documents_in_order(reader: CorpusReader) -> None:
    parts = list(file_groups.parts_of(reader, 30))
    assert [text for part in parts for text in part] == [document.text for document in reader]
    assert len(parts) > 5
    assert reader.report.documents == 21


def test_reports_of_groups_add_up(reader: CorpusReader, tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    (folder / "job.json").write_text("{}")
    list(reader)
    expected = reader.report
    source = file_groups.source_of(reader)
    config = {"size": 100}
    identity, compute = file_groups.count_maker("", source, config)
    assert identity == {"corpus": reader.identity()}
    names = [
        create(folder, "0123456789abcdef", number, *compute(group))
        for number, group in enumerate(file_groups.groups(reader))
    ]
    blocks = list(file_groups.blocks_of([folder / name for name in names], reader))
    assert len(blocks) >= len(names)
    report = asdict(reader.report) | {"files": expected.files}
    assert report == asdict(expected)


def test_rows_in_memory_are_read_by_one_process() -> None:
    with pytest.raises(UsageError, match="by one process only"):
        file_groups.source_of(CorpusReader([{"text": "a film"}]))


def test_another_tokenizer_makes_no_shards(tmp_path: Path) -> None:
    tokenizer().save(tmp_path / "tokenizer")
    (tmp_path / "a.txt").write_text("a film")
    source = source_of(CorpusReader([tmp_path / "a.txt"]))
    with refusal("this is another tokenizer", "run the same command again"):
        shard_maker(str(tmp_path), source, "0" * 64, 100)
