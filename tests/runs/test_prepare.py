"""Vocabularies and shards as events; nothing of somebody else's is lost."""

import os
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest

from bertworks.errors import UsageError
from bertworks.io.file_job import create
from bertworks.runs import prepare
from bertworks.runs.prepare import in_background, make_shards, make_vocabulary, read_text
from bertworks.runs.pretrain import estimate_tokens, make_request
from bertworks.runs.run_folder import check_same_request, create_run_folder
from bertworks.text.corpus import CorpusReader
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.vocabulary import VocabularyConfig
from bertworks.training.budget import seconds_of
from tests.support.fine import tokenizer as tokenizer_of_films
from tests.support.refusals import refusal
from tests.support.tables import seven_files


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


def test_a_vocabulary_does_not_count_words_for_a_place_that_is_taken(tmp_path):
    reader, output = make_text(tmp_path), tmp_path / "out"
    output.write_text("mine")
    with pytest.raises(UsageError, match="a file, not a folder"):
        next(make_vocabulary(reader, output, VocabularyConfig(size=60)))


def test_a_file_name_that_is_not_utf8_goes_all_the_way(tmp_path):
    make_text(tmp_path)
    data = tmp_path / "data"
    data.mkdir()
    (tmp_path / "text.txt").rename(data / os.fsdecode(b"caf\xe9.txt"))
    (data / os.fsdecode(b"caf\xe9.pdf")).write_text("left out, and named in the manifest")
    list(make_vocabulary(CorpusReader([data]), tmp_path / "tok", VocabularyConfig(size=60)))
    tokenizer = Tokenizer.load(tmp_path / "tok")
    for _ in range(2):
        events = list(make_shards(CorpusReader([data]), tmp_path / "shards", tokenizer, workers=1))
        assert events[-1].kind == "done"
    request = {"inputs": [str(next(data.glob("*.txt")))]}
    create_run_folder(tmp_path / "run", request)
    assert check_same_request(tmp_path / "run", request)


def test_packed_text_is_more_than_its_bytes(tmp_path):
    reader = make_text(tmp_path)
    plain = estimate_tokens(reader)
    (tmp_path / "text.txt").rename(tmp_path / "text.txt.gz")
    assert estimate_tokens(CorpusReader([tmp_path / "text.txt.gz"])) == pytest.approx(
        2.8 * plain, rel=0.01
    )


@pytest.mark.parametrize(
    ("budget", "seconds"), [("20s", 20), ("1h30m", 5400), ("1.5h", 5400), ("2D", 172_800)]
)
def test_budgets(budget: str, seconds: float):
    assert seconds_of(budget) == seconds


@pytest.mark.parametrize(
    "budget", ["10s", "19.9s", "0m", "", "5", "1h 30m", "-1h", "1y", "1e9d", "99999d"]
)
def test_no_budgets(budget: str):
    with pytest.raises(UsageError, match="is not a budget") as error:
        seconds_of(budget)
    assert "a time of 20 s or more" in str(error.value)


def test_what_is_written_does_not_become_text(tmp_path):
    (tmp_path / "data").mkdir()
    make_text(tmp_path / "data")
    list(
        make_vocabulary(
            CorpusReader([tmp_path / "data"]), tmp_path / "tok", VocabularyConfig(size=60)
        )
    )
    tokenizer = Tokenizer.load(tmp_path / "tok")
    for inputs in ([tmp_path / "data"], [str(tmp_path / "da*")]):
        reader = CorpusReader(inputs)
        with pytest.raises(UsageError, match="lies in the input folder"):
            list(make_vocabulary(reader, tmp_path / "data" / "tok", VocabularyConfig(size=60)))
        with pytest.raises(UsageError, match="lies in the input folder"):
            list(make_shards(reader, tmp_path / "data" / "shards", tokenizer, overwrite=True))
        with pytest.raises(UsageError, match="the output folder contains an input"):
            list(make_shards(reader, tmp_path, tokenizer))
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["text.txt"]


def test_folders_that_hold_no_text_are_called_what_they_are(tmp_path):
    reader = make_text(tmp_path)
    list(make_vocabulary(reader, tmp_path / "tok", VocabularyConfig(size=60)))
    list(make_shards(reader, tmp_path / "shards", Tokenizer.load(tmp_path / "tok"), workers=1))
    with pytest.raises(UsageError, match=r"holds shards, not text(.|\n)*bertworks pretrain"):
        read_text([tmp_path / "text.txt", tmp_path / "shards"])
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "model" / "model.safetensors").write_text("")
    with pytest.raises(UsageError, match=r"holds a model, not text(.|\n)*--init"):
        read_text(tmp_path / "model")
    shutil.rmtree(tmp_path / "shards")
    for folder in (tmp_path / "tok", tmp_path):
        with pytest.raises(
            UsageError, match=r"tok: a folder within the input holds a tokenizer(.|\n)*move it"
        ):
            read_text([folder])
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "text.txt").write_text("A text.")
    (tmp_path / "texts" / "manifest.json").write_text('{"text": "of somebody"}')
    request = make_request([tmp_path / "texts"])
    assert not request.is_shards
    assert len(list(request.reader())) == 2


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


def test_reports_of_groups_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = seven_files(tmp_path, monkeypatch)
    folder = tmp_path / "parts"
    folder.mkdir()
    (folder / "job.json").write_text("{}")
    list(reader)
    expected = reader.report
    source = reader.source()
    config = {"size": 100}
    identity, compute = prepare.count_maker("", source, config)
    assert identity == {"corpus": reader.identity()}
    names = [
        create(folder, "0123456789abcdef", number, *compute(group))
        for number, group in enumerate(reader.groups())
    ]
    blocks = list(prepare.blocks_of([folder / name for name in names], reader))
    assert len(blocks) >= len(names)
    report = asdict(reader.report) | {"files": expected.files}
    assert report == asdict(expected)


def test_another_tokenizer_makes_no_shards(tmp_path: Path) -> None:
    tokenizer_of_films().save(tmp_path / "tokenizer")
    (tmp_path / "a.txt").write_text("a film")
    source = CorpusReader([tmp_path / "a.txt"]).source()
    with refusal("this is another tokenizer", "run the same command again"):
        prepare.shard_maker(str(tmp_path), source, "0" * 64, 100)
