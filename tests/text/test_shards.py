"""Shards: the same bytes for any number of workers, resumable, checked; and the word cache that
makes them fast."""

import fcntl
import gzip
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings, strategies as st

from bertworks.errors import BertworksError
from bertworks.io.arrays import file_sums
from bertworks.io.atomic_write import is_sealed, sha256
from bertworks.io.inputs import chunk_by_size
from bertworks.runs.pretrain_job import split_long_documents
from bertworks.text import shards as shards_module
from bertworks.text.corpus import CorpusReader
from bertworks.text.segmentation import split_sentences
from bertworks.text.shards import (
    Manifest,
    PartWriter,
    Shards,
    WordCache,
    flat_arrays,
    holds_shards,
    join_parts,
    part_path,
    token_dtype,
    write_shards,
)
from bertworks.text.tokenizer import Tokenizer
from tests.support.fine import tokenizer as tokenizer_of_films
from tests.support.refusals import refusal

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [
    "the",
    "cat",
    "sat",
    "on",
    "mat",
    "dog",
    "ran",
    "home",
    "un",
    "##able",
    "##s",
    "##ing",
    *".,!?()\"'-[]",
]
LETTERS = [
    prefix + letter for letter in "abcdefghijklmnopqrstuvwxyz0123456789" for prefix in ("", "##")
]


def make_tokenizer(folder: Path, tokens: list[str] | None = None, **config: object) -> Tokenizer:
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = SPECIALS + (tokens or list(dict.fromkeys(WORDS + LETTERS)))
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in vocabulary))
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True} | config))
    return Tokenizer.load(folder)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def write_corpus(path: Path, documents: list[str]) -> CorpusReader:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    return CorpusReader([path])


def make_documents(count: int, seed: int = 0) -> list[str]:
    chance = random.Random(seed)
    names = [word for word in WORDS if word.isalpha()] + [
        "Ünable",
        "mats",
        "日本",
        "snowy",
        "x-ray",
    ]
    return [
        "\n".join(
            " ".join(chance.choices(names, k=chance.randint(3, 12))).capitalize() + "."
            for _ in range(chance.randint(1, 9))
        )
        for _ in range(count)
    ]


@pytest.fixture
def reader(tmp_path: Path) -> CorpusReader:
    return write_corpus(tmp_path / "corpus.jsonl", make_documents(200))


def hashes(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): sha256(path) for path in files}


def expected(documents: list[str], tokenizer: Tokenizer) -> list[list[list[int]]]:
    """The slow truth: ids of each sentence of each document, empty ones left out."""
    ids = [[found for found in tokenizer.ids(split_sentences(text)) if found] for text in documents]
    return [document for document in ids if document]


def content(shards: Shards) -> list[list[list[int]]]:
    sentences = [
        shards.tokens[start:end].tolist()
        for start, end in zip(shards.sentences[:-1], shards.sentences[1:], strict=True)
    ]
    return [
        sentences[start:end]
        for start, end in zip(shards.documents[:-1], shards.documents[1:], strict=True)
    ]


def test_they_hold_the_ids_of_every_sentence(
    reader: CorpusReader, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    shards = write_shards(reader, tokenizer, tmp_path / "shards", workers=1, part_characters=3000)
    truth = expected([document.text for document in reader], tokenizer)
    assert content(shards) == truth
    manifest = shards.manifest
    assert manifest.documents == len(truth) == len(shards.documents) - 1
    assert manifest.sentences == sum(map(len, truth))
    assert (
        manifest.tokens
        == len(shards.tokens)
        == sum(len(ids) for document in truth for ids in document)
    )
    assert manifest.unknown_tokens == int((shards.tokens == tokenizer.unk_id).sum()) > 0
    assert "日本" in "".join(manifest.unknown_words)
    assert manifest.characters == sum(len(document.text) for document in reader)
    assert manifest.corpus["documents"] == 200
    assert shards.tokens.dtype == np.uint16
    assert shards.tokenizer().sha256 == tokenizer.sha256
    assert shards.written_now
    assert sorted(path.name for path in shards.folder.iterdir()) == [
        ".lock",
        "documents.npy",
        "manifest.json",
        "sentences.npy",
        "tokenizer",
        "tokens.bin",
    ]


def test_bytes_are_the_same_for_any_number_of_workers_and_size_of_parts(
    reader: CorpusReader, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    one = write_shards(reader, tokenizer, tmp_path / "one", workers=1, part_characters=4000)
    three = write_shards(reader, tokenizer, tmp_path / "three", workers=3, part_characters=4000)
    assert hashes(one.folder) == hashes(three.folder)
    coarse = write_shards(reader, tokenizer, tmp_path / "coarse", workers=1)
    for name in ("tokens.bin", "sentences.npy", "documents.npy"):
        assert sha256(coarse.folder / name) == sha256(one.folder / name)


def test_a_finished_folder_is_done_at_once(
    reader: CorpusReader, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "shards"
    first = write_shards(reader, tokenizer, folder, workers=1)
    no_reading(monkeypatch)
    again = write_shards(reader, tokenizer, folder, workers=1)
    assert again.manifest == first.manifest
    assert not again.written_now


def test_other_settings_are_refused_and_overwrite_replaces(
    reader: CorpusReader, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    folder = tmp_path / "shards"
    write_shards(reader, tokenizer, folder, workers=1)
    before = hashes(folder)
    other = make_tokenizer(tmp_path / "other", [*WORDS, *LETTERS[:20]])
    with pytest.raises(
        BertworksError, match=f"tokenizer: {tokenizer.sha256[:12]}.*{other.sha256[:12]}"
    ) as caught:
        write_shards(reader, other, folder, workers=1)
    assert "-o" in str(caught.value.hint)
    assert "--overwrite" in str(caught.value.hint)
    more = write_corpus(tmp_path / "more.jsonl", make_documents(10))
    with pytest.raises(BertworksError, match=r"bytes: \d+, now \d+"):
        write_shards(more, tokenizer, folder, workers=1)
    same_files = CorpusReader(reader.files, text_column="text")
    with pytest.raises(BertworksError, match="text_column: None, now text"):
        write_shards(same_files, tokenizer, folder, workers=1)
    assert hashes(folder) == before
    replaced = write_shards(more, other, folder, workers=1, overwrite=True)
    assert replaced.manifest.tokenizer_sha256 == other.sha256
    assert replaced.manifest.documents == 10


def no_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        CorpusReader, "__iter__", lambda self: pytest.fail("the corpus was read again")
    )


def test_a_copied_corpus_is_the_same_corpus(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, shards = tmp_path / "corpus", tmp_path / "shards"
    (folder / "deep").mkdir(parents=True)
    for number, name in enumerate(["b.jsonl", "deep/a.jsonl"]):
        write_corpus(folder / name, make_documents(20, seed=number))
    write_shards(CorpusReader([folder]), tokenizer, shards, workers=1)
    before = hashes(shards)
    shutil.copytree(folder, tmp_path / "copy")
    for path in (tmp_path / "copy").rglob("*"):
        os.utime(path, (1, 1))
    no_reading(monkeypatch)
    for inputs in (folder, tmp_path / "copy"):
        assert not write_shards(CorpusReader([inputs]), tokenizer, shards, workers=1).written_now
    assert hashes(shards) == before
    (tmp_path / "copy" / "b.jsonl").rename(tmp_path / "copy" / "c.jsonl")
    with pytest.raises(BertworksError, match=r"content_sha256: .*, now .*"):
        write_shards(CorpusReader([tmp_path / "copy"]), tokenizer, shards, workers=1)


def test_another_text_of_the_same_size_is_another_corpus(
    reader: CorpusReader, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    write_shards(reader, tokenizer, tmp_path / "shards", workers=1)
    (path,) = reader.files
    path.write_bytes(path.read_bytes().replace(b"cat", b"dog"))
    with pytest.raises(BertworksError, match="content_sha256"):
        write_shards(reader, tokenizer, tmp_path / "shards", workers=1)


def test_standard_input_is_the_same_corpus_when_its_text_is(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def piped(text: str) -> CorpusReader:
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(text.encode())))
        return CorpusReader(["-"])

    assert write_shards(
        piped("The cat sat."), tokenizer, tmp_path / "shards", workers=1
    ).written_now
    assert not write_shards(
        piped("The cat sat."), tokenizer, tmp_path / "shards", workers=1
    ).written_now
    with pytest.raises(BertworksError, match="content_sha256"):
        write_shards(piped("The dog sat."), tokenizer, tmp_path / "shards", workers=1)


def test_an_interrupted_run_goes_on_when_its_corpus_was_copied(
    reader: CorpusReader, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """Of a part whose text is another one now, nothing is taken."""
    whole = write_shards(reader, tokenizer, tmp_path / "whole", workers=1, part_characters=3000)
    folder = tmp_path / "shards"
    with pytest.raises(ZeroDivisionError):
        write_shards(
            reader,
            tokenizer,
            folder,
            workers=1,
            part_characters=3000,
            progress=lambda done: 1 // (done < 9000),
        )
    kept = {path: path.stat().st_mtime_ns for path in (folder / "parts").rglob("*.part")}
    assert len(kept) >= 2
    copy = tmp_path / "elsewhere" / reader.files[0].name
    copy.parent.mkdir()
    copy.write_bytes(reader.files[0].read_bytes())
    copied = CorpusReader([copy])
    taken: list[bool] = []

    def look(done: int) -> None:
        taken.append(all(path.stat().st_mtime_ns == written for path, written in kept.items()))

    shards = write_shards(copied, tokenizer, folder, workers=1, part_characters=3000, progress=look)
    assert taken
    assert all(taken)
    ours, theirs = hashes(shards.folder), hashes(whole.folder)
    # it says where the files were
    assert {name for name in ours if ours[name] != theirs[name]} == {"manifest.json"}


def test_a_corpus_that_changes_meanwhile_is_an_error(
    reader: CorpusReader, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    (path,) = reader.files
    with pytest.raises(BertworksError, match="changed while they were read"):
        write_shards(
            reader,
            tokenizer,
            tmp_path / "shards",
            workers=1,
            progress=lambda done: os.utime(path, (done, done)),
        )
    assert write_shards(reader, tokenizer, tmp_path / "shards", workers=1).written_now
    path.unlink()
    with pytest.raises(BertworksError, match=r"corpus\.jsonl: cannot be read: No such file"):
        write_shards(reader, tokenizer, tmp_path / "shards", workers=1)


@pytest.mark.parametrize("plan", ["", "[]", "7", "{}"])
def test_a_damaged_plan_is_not_ours(
    plan: str, reader: CorpusReader, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "plan.json").write_text(plan)
    with pytest.raises(BertworksError, match=r"holds no shards: plan\.json"):
        write_shards(reader, tokenizer, tmp_path / "shards", workers=1)


def test_overwrite_deletes_shards_and_nothing_else(
    reader: CorpusReader, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    for name in (
        "tokenizer/mine.json",
        "parts/of/speech.txt",
        "manifest.json",
        "plan.json",
        "tokens.bin",
    ):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text('{"format": 1, "files": []}')
    for overwrite in (False, True):
        with pytest.raises(BertworksError, match="holds no shards: manifest"):
            write_shards(reader, tokenizer, project, workers=1, overwrite=overwrite)
    assert len(hashes(project)) == 5
    assert not holds_shards(project)
    shards = tmp_path / "shards"
    write_shards(reader, tokenizer, shards, workers=1)
    before = hashes(shards)
    (shards / "thesis.txt").write_text("years of work")
    with pytest.raises(BertworksError, match=r"more than shards: thesis\.txt"):
        write_shards(reader, tokenizer, shards, workers=1, overwrite=True)
    assert before.items() < hashes(shards).items()
    (shards / "thesis.txt").unlink()
    (shards / "manifest.json").write_text("{")  # damaged: the other files still identify the folder
    write_shards(reader, tokenizer, shards, workers=1, overwrite=True)
    assert hashes(shards) == before


def test_an_unfinished_folder_of_another_command_is_refused(
    reader: CorpusReader, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    folder = tmp_path / "shards"
    with pytest.raises(ZeroDivisionError):
        write_shards(
            reader, tokenizer, folder, workers=1, part_characters=3000, progress=lambda done: 1 // 0
        )
    with pytest.raises(BertworksError, match="not finished"):
        Shards.open(folder)
    other = make_tokenizer(tmp_path / "other", [*WORDS, *LETTERS[:20]])
    with pytest.raises(BertworksError, match="another command"):
        write_shards(reader, other, folder, workers=1)


def test_a_folder_of_other_things_is_left_alone(
    reader: CorpusReader, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")
    for overwrite in (False, True):
        with pytest.raises(BertworksError, match="not empty"):
            write_shards(reader, tokenizer, folder, workers=1, overwrite=overwrite)
    assert [path.name for path in folder.iterdir() if path.name != ".lock"] == ["thesis.txt"]
    with pytest.raises(BertworksError, match="this is a file, not a folder"):
        write_shards(reader, tokenizer, folder / "thesis.txt", workers=1)


def test_it_goes_on_with_the_parts_that_are_there(
    reader: CorpusReader, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = write_shards(reader, tokenizer, tmp_path / "whole", workers=1, part_characters=3000)
    folder = tmp_path / "shards"
    seen: list[int] = []

    def stop(done: int) -> None:
        seen.append(done)
        if len(seen) == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_shards(reader, tokenizer, folder, workers=1, part_characters=3000, progress=stop)
    # One part is cut short and one has a flipped byte: both are made again, the other four are not.
    torn, flipped = part_path(folder / "parts", 1), part_path(folder / "parts", 4)
    torn.write_bytes(torn.read_bytes()[:-1])
    data = bytearray(flipped.read_bytes())
    data[data.index(b"tokens.npy") + 200] ^= 1
    flipped.write_bytes(data)
    made: list[Path] = []

    def look(path: Path, key: str) -> bool:
        complete = is_sealed(path, key)
        if not complete:
            made.append(path)
        return complete

    monkeypatch.setattr(shards_module, "is_sealed", look)
    shards = write_shards(reader, tokenizer, folder, workers=1, part_characters=3000)
    total = sum(1 for _ in reader.parts(3000))
    assert made == [part_path(folder / "parts", number) for number in (1, 4, *range(6, total))]
    assert hashes(shards.folder) == hashes(whole.folder)


def test_a_part_of_another_text_or_tokenizer_is_not_taken(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    make_tokenizer(tmp_path / "other", [*WORDS, *LETTERS[:20]]).save(tmp_path / "other")
    tokenizer.save(tmp_path / "tokenizer")
    writer = PartWriter(tmp_path / "tokenizer", tmp_path)
    other_writer = PartWriter(tmp_path / "other", tmp_path)
    one, other = ["The cat sat."], ["The dog sat."]
    path = part_path(tmp_path, 0)
    assert writer((0, one)) == len("The cat sat.")
    assert is_sealed(path, writer.key(one))
    assert not is_sealed(path, writer.key(other))
    assert not is_sealed(path, other_writer.key(one))
    other_writer((0, one))
    assert is_sealed(path, other_writer.key(one))


def test_damage_to_a_part_is_found_or_harmless(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "tokenizer")
    writer = PartWriter(tmp_path / "tokenizer", tmp_path)
    number, pieces = 0, ["The cat sat."]
    writer((number, pieces))
    path, key = part_path(tmp_path, 0), writer.key(pieces)

    def content() -> dict[str, object]:
        with np.load(path) as part:
            return {name: array.tolist() for name, array in part.items()}

    whole, before = path.read_bytes(), content()
    for position in range(0, len(whole), 3):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        if is_sealed(path, key):
            assert content() == before
    for size in range(0, len(whole), 50):
        path.write_bytes(whole[:size])
        assert not is_sealed(path, key)


def test_a_document_is_in_one_part(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """It stays one document and loses nothing, however small the parts are."""
    line = " ".join(["cat", "sat", "mat", "dog"] * 500)
    lines = "\n".join("The dog ran home." for _ in range(300))
    documents = ["A cat.", line, "A dog.", lines, "a" * 1000, "The end."]
    reader = write_corpus(tmp_path / "corpus.jsonl", documents)
    shards = write_shards(reader, tokenizer, tmp_path / "shards", workers=1, part_characters=300)
    assert content(shards) == expected(documents, tokenizer)
    assert [len(part) for part in chunk_by_size(documents, 300, len)] == [2, 2, 1, 1]


def test_a_corpus_may_be_one_document(tokenizer: Tokenizer, tmp_path: Path) -> None:
    text = "\n".join(f"The cat {word} home." for word in ["sat", "ran"] * 175)
    shards = write_shards(
        write_corpus(tmp_path / "a.jsonl", [text]), tokenizer, tmp_path / "shards", workers=1
    )
    assert shards.manifest.sections
    assert (shards.manifest.sentences, shards.documents.tolist()) == (350, [0, 350])
    sections = np.diff(split_long_documents(shards).documents)
    assert (sections.sum(), sections.max(), len(sections)) == (350, 8, 44)


def test_what_has_no_token_is_left_out_and_counted(tokenizer: Tokenizer, tmp_path: Path) -> None:
    nothing = "\u200b\u200e"  # format characters: the tokenizer deletes them
    documents = ["The cat sat.", nothing, f"A dog.\n{nothing}\nA cat.", "Home."]
    shards = write_shards(
        write_corpus(tmp_path / "corpus.jsonl", documents),
        tokenizer,
        tmp_path / "shards",
        workers=1,
        part_characters=5,
    )
    assert content(shards) == expected(["The cat sat.", "A dog.\nA cat.", "Home."], tokenizer)
    assert (shards.manifest.empty_documents, shards.manifest.empty_sentences) == (1, 2)


def test_a_corpus_without_a_single_token_is_an_error(tokenizer: Tokenizer, tmp_path: Path) -> None:
    reader = write_corpus(tmp_path / "corpus.jsonl", ["\u200b", "\u200e"])
    with pytest.raises(BertworksError, match="no text") as caught:
        write_shards(reader, tokenizer, tmp_path / "shards", workers=1)
    assert "corpus.jsonl" in str(caught.value)
    assert not (tmp_path / "shards" / "manifest.json").exists()


def test_damage_is_found(reader: CorpusReader, tokenizer: Tokenizer, tmp_path: Path) -> None:
    shards = write_shards(reader, tokenizer, tmp_path / "shards", workers=1)
    folder = shards.folder
    Shards.open(folder, verify=True)

    def check(name: str, change: object, message: str, *, verify: bool = False) -> None:
        path = folder / name
        whole = path.read_bytes()
        path.write_bytes(change(whole))  # type: ignore[operator]
        with pytest.raises(BertworksError, match=message) as caught:
            Shards.open(folder, verify=verify).tokenizer()
        assert caught.value.hint
        assert caught.value.where
        path.write_bytes(whole)

    check("tokens.bin", lambda data: data[:-10], "bytes instead of")
    check("sentences.npy", lambda data: data[:-10], "damaged")
    check("documents.npy", lambda data: data[:20], "damaged")
    check("documents.npy", lambda data: (folder / "sentences.npy").read_bytes(), "bytes instead of")
    check("manifest.json", lambda data: data[: len(data) // 2], "damaged")
    check("manifest.json", lambda data: b"[]", "damaged")
    check(
        "manifest.json", lambda data: data.replace(b'"format": 1', b'"format": 99', 1), "format 99"
    )
    check("tokens.bin", lambda data: bytes([data[0] ^ 1]) + data[1:], "sha256", verify=True)
    check("tokenizer/tokenizer.json", lambda data: data.replace(b'"dog"', b'"dot"'), "sha256")
    check("tokenizer/vocab.txt", lambda data: data + b"x\n", "sha256")
    (folder / "tokens.bin").unlink()
    with pytest.raises(BertworksError, match="0 bytes instead of"):
        Shards.open(folder)
    with pytest.raises(BertworksError, match="not a shards folder") as caught:
        Shards.open(tmp_path / "nowhere")
    assert "bertworks prepare" in str(caught.value.hint)


def test_a_second_writer_is_turned_away(
    reader: CorpusReader, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    folder = tmp_path / "shards"
    folder.mkdir()
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(BertworksError, match="another process"):
            write_shards(reader, tokenizer, folder, workers=1)
    assert write_shards(reader, tokenizer, folder, workers=1).manifest.documents == 200


def test_ids_take_two_bytes_where_they_fit() -> None:
    assert token_dtype(65_536) == np.uint16
    assert token_dtype(65_537) == np.uint32


# --- processes

SCRIPT = """
import sys
from bertworks.text.corpus import CorpusReader
from bertworks.text.shards import write_shards
from bertworks.text.tokenizer import Tokenizer
report = lambda done: print(done, flush=True)
write_shards(CorpusReader([sys.argv[1]]), Tokenizer.load(sys.argv[2]), sys.argv[3], workers=2,
             part_characters=4000, progress=report)
"""


@pytest.fixture(scope="module")
def large(
    tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory
) -> tuple[CorpusReader, dict[str, str]]:
    """A corpus of some hundred parts, and the hashes of its shards."""
    folder = tmp_path_factory.mktemp("large")
    reader = write_corpus(folder / "corpus.jsonl", make_documents(2500))
    return reader, hashes(
        write_shards(reader, tokenizer, folder / "shards", workers=1, part_characters=4000).folder
    )


def children(process: int) -> list[int]:
    tasks = Path(f"/proc/{process}/task").glob("*/children")  # each thread may start some
    return [int(number) for task in tasks for number in task.read_text().split()]


def start_and_wait(
    reader: CorpusReader, tokenizer_folder: Path, folder: Path
) -> tuple[subprocess.Popen[str], list[int]]:
    """A script without a `__main__` guard, and its workers; returns when some parts are written."""
    command = [
        sys.executable,
        "-c",
        SCRIPT,
        str(reader.files[0]),
        str(tokenizer_folder),
        str(folder),
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for _ in range(3):
        process.stdout.readline()
    return process, children(process.pid)


def all_gone(processes: list[int], seconds: float = 10) -> bool:
    end = time.monotonic() + seconds
    while any(Path(f"/proc/{number}").exists() for number in processes):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


@pytest.mark.skipif(
    not Path("/proc/self/task").exists(), reason="looks up child processes in /proc"
)
@pytest.mark.parametrize("death", ["interrupt", "kill", "kill a worker"])
def test_death_leaves_no_process_and_loses_no_part(
    death: str, large: tuple[CorpusReader, dict[str, str]], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    reader, whole = large
    tokenizer.save(tmp_path / "tokenizer")
    process, workers = start_and_wait(reader, tmp_path / "tokenizer", tmp_path / "shards")
    assert len(workers) == 2
    if death == "kill a worker":
        os.kill(workers[0], signal.SIGKILL)
    else:
        process.send_signal(signal.SIGINT if death == "interrupt" else signal.SIGKILL)
    _, errors = process.communicate(timeout=20)
    assert process.returncode != 0
    if death == "kill a worker":
        assert "killed by signal 9" in errors
        assert "run the same command again" in errors
    assert all_gone(workers)
    with pytest.raises(BertworksError, match="not finished"):
        Shards.open(tmp_path / "shards")
    kept = {
        path: path.stat().st_mtime_ns for path in (tmp_path / "shards" / "parts").rglob("*.part")
    }
    assert len(kept) >= 3
    changed: list[Path] = []

    def look(done: int) -> None:
        changed.extend(path for path, written in kept.items() if path.stat().st_mtime_ns != written)

    shards = write_shards(
        reader, tokenizer, tmp_path / "shards", workers=1, part_characters=4000, progress=look
    )
    assert not changed
    assert hashes(shards.folder) == whole


def test_errors_of_workers_arrive(
    reader: CorpusReader, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """The place of a part file is taken by a folder: what a worker cannot write is said by the
    parent."""
    folder = tmp_path / "shards"
    write_shards(reader, tokenizer, folder, workers=1)
    (folder / "plan.json").write_text(
        json.dumps(json.loads((folder / "manifest.json").read_text())["settings"])
    )
    (folder / "manifest.json").unlink()
    part_path(folder / "parts", 0).mkdir(parents=True)
    with pytest.raises(BertworksError, match="cannot be written: Is a directory") as caught:
        write_shards(reader, tokenizer, folder, workers=2)
    assert "000.part" in str(caught.value.where)


# --- the word cache

MEAN = (
    st.sampled_from(
        list(
            " .,()\"'-=\t\n\r\x0b\x0c\x1c\x1f\x85\xa0\u200b\u2028\u3000\u0301\u0327\u0338\u0345"
            "ΣσςİıßǅﬁÅ\u212a\u037e"
        )
    )
    | st.sampled_from(
        [
            "the",
            "cat",
            "un",
            "able",
            "[MASK]",
            "[SEP]",
            "##s",
            "が",
            "か\u3099",
            "日本",
            "한국",
            "\u1112\u1161",
        ]
    )
    | st.characters(exclude_categories=["Cs"])
)


@pytest.fixture(scope="module")
def variants(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The tokenizer.json of tokenizers that differ in casing, accents and Chinese characters."""
    made = []
    more = [
        *WORDS,
        *LETTERS,
        "A",
        "##A",
        "か",
        "##か",
        "\u3099",
        "##\u3099",
        "σ",
        "##σ",
        "ς",
        "é",
        "日",
        "한",
        "##국",
    ]
    for number, config in enumerate(
        [
            {},
            {"do_lower_case": False},
            {"strip_accents": False},
            {"tokenize_chinese_chars": False, "strip_accents": True},
        ]
    ):
        folder = tmp_path_factory.mktemp(f"variant{number}")
        make_tokenizer(folder, list(dict.fromkeys(more)), **config).save(folder)
        made.append((folder / "tokenizer.json").read_text())
    # Without full stop and comma in the vocabulary the marks cannot tell entries apart.
    folder = tmp_path_factory.mktemp("bare")
    make_tokenizer(folder, ["a", "##a", "b"]).save(folder)
    made.append((folder / "tokenizer.json").read_text())
    for serialized in made[1:3]:  # as vocabularies that keep accents: text is composed first
        description = json.loads(serialized)
        steps = [{"type": "NFC"}, description["normalizer"]]
        made.append(
            json.dumps(description | {"normalizer": {"type": "Sequence", "normalizers": steps}})
        )
    return made


@cache
def library(serialized: str) -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer.from_str(serialized)
    made.encode_special_tokens = True  # what a text says is only text
    return made


def library_ids(serialized: str, texts: list[str]) -> list[list[int]]:
    """The `tokenizers` library alone, with nothing of ours around it."""
    return [
        encoding.ids
        for encoding in library(serialized).encode_batch_fast(texts, add_special_tokens=False)
    ]


def cached_ids(word_cache: WordCache, texts: list[str]) -> list[list[int]]:
    ids, lengths = word_cache.encode(texts)
    assert len(lengths) == len(texts)
    return [row.tolist() for row in np.split(ids, np.cumsum(lengths)[:-1])] if texts else []


@pytest.mark.no_cover
@given(st.lists(st.lists(MEAN, max_size=12).map("".join), max_size=6))
@settings(max_examples=300, deadline=None)
def test_the_word_cache_never_changes_an_id(variants: list[str], texts: list[str]) -> None:
    for serialized in variants:
        word_cache = WordCache(serialized)
        assert WordCache.is_exact(serialized)
        truth = library_ids(serialized, texts)
        assert cached_ids(word_cache, texts) == truth
        assert cached_ids(word_cache, texts) == truth  # now from memory


def test_the_word_cache_forgets_when_it_is_full(
    variants: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertworks.text.shards._MAX_ENTRIES", 20)
    word_cache = WordCache(variants[0])
    for document in make_documents(40):
        sentences = document.split("\n")
        assert cached_ids(word_cache, sentences) == library_ids(variants[0], sentences)
        assert len(word_cache._numbers) < 20 + 200


def test_the_word_cache_knows_where_it_is_not_exact(variants: list[str]) -> None:
    description = json.loads(variants[0])
    for part, other in {
        "model": {"type": "BPE"},
        "pre_tokenizer": {"type": "Metaspace"},
        "normalizer": {
            "type": "Sequence",
            "normalizers": [{"type": "NFKC"}, description["normalizer"]],
        },
        "added_tokens": [*description["added_tokens"], {"special": False, "content": "New York"}],
    }.items():
        assert not WordCache.is_exact(json.dumps(description | {part: other}))


def test_tokenizers_of_other_kinds_are_called_directly(tmp_path: Path) -> None:
    """Shards of a byte-level BPE tokenizer: no word cache, the same contract."""
    byte_level = tokenizers.ByteLevelBPETokenizer()
    documents = make_documents(30)
    byte_level.train_from_iterator(
        documents, vocab_size=400, special_tokens=SPECIALS, show_progress=False
    )
    tokenizer = Tokenizer(byte_level.to_str())
    shards = write_shards(
        write_corpus(tmp_path / "a.jsonl", documents), tokenizer, tmp_path / "shards", workers=1
    )
    assert content(shards) == expected(documents, tokenizer)


@pytest.mark.parametrize(
    ("corpus", "vocabulary", "config"),
    [
        ("en-wikipedia-8m.jsonl.gz", "bert-base-uncased-vocab.txt", {}),
        (
            "en-wikipedia-8m.jsonl.gz",
            "bert-base-multilingual-cased-vocab.txt",
            {"do_lower_case": False},
        ),
        (
            "ja-aozora-5m-chars.jsonl.gz",
            "bert-base-multilingual-cased-vocab.txt",
            {"do_lower_case": False},
        ),
        ("ja-aozora-5m-chars.jsonl.gz", "bert-base-uncased-vocab.txt", {}),
        (
            "ko-wikipedia-1m.jsonl.gz",
            "bert-base-multilingual-cased-vocab.txt",
            {"strip_accents": False},
        ),
    ],
)
def test_the_word_cache_is_exact_on_real_text(
    data_folder: Path, corpus: str, vocabulary: str, config: dict[str, object], tmp_path: Path
) -> None:
    tokens = (data_folder / "vocab" / vocabulary).read_text(encoding="utf-8").split("\n")
    tokenizer = make_tokenizer(
        tmp_path, [token for token in tokens if token and token not in SPECIALS], **config
    )
    tokenizer.save(tmp_path)
    serialized = (tmp_path / "tokenizer.json").read_text(encoding="utf-8")
    with gzip.open(data_folder / "text" / corpus, "rt", encoding="utf-8") as file:
        lines = [
            line
            for _, document in zip(range(40), file)
            for line in json.loads(document)["text"].split("\n")
        ][:4000]
    assert cached_ids(WordCache(serialized), lines) == library_ids(serialized, lines)


def test_damaged_folders_are_refused_with_what_to_do(tmp_path: Path):
    (tmp_path / "a.txt").write_text("the film\n\nthe dogs\n")
    folder = tmp_path / "shards"
    write_shards(CorpusReader([tmp_path / "a.txt"]), tokenizer_of_films(), folder, workers=1)
    advice = "copy the folder again; or make it again: repeat the `bertworks prepare` command"
    assert Shards.open(folder, verify=True).tokenizer().sha256 == tokenizer_of_films().sha256
    shards = Shards.open(folder)
    manifest = replace(shards.manifest, tokenizer_sha256="0" * 64)
    with refusal("this is not the tokenizer that made these shards", advice):
        replace(shards, manifest=manifest).tokenizer()
    tokens = (folder / "tokens.bin").read_bytes()
    (folder / "tokens.bin").write_bytes(tokens[::-1])
    with refusal("tokens.bin", advice):
        Shards.open(folder, verify=True)


def test_borders_that_do_not_fit_the_manifest_are_refused(
    reader: CorpusReader, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """Also with the checksums of the other file."""
    folder = write_shards(reader, tokenizer, tmp_path / "shards", workers=1).folder
    borders = np.load(folder / "sentences.npy")
    borders[-1] -= 1
    np.save(folder / "sentences.npy", borders)
    sha256_of_file, blocks = file_sums(folder / "sentences.npy")
    manifest = Manifest.load(folder / "manifest.json")
    manifest = replace(
        manifest,
        files=manifest.files | {"sentences.npy": sha256_of_file},
        crc32=manifest.crc32 | {"sentences.npy": blocks},
    )
    manifest.save(folder / "manifest.json")
    with refusal("its numbers do not match the manifest", "repeat the `bertworks prepare` command"):
        Shards.open(folder, verify=True)


def test_a_worker_that_ends_is_an_error(
    reader: CorpusReader, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with refusal("a worker process ended while it made part 0", "run the same command again"):
        write_shards(reader, tokenizer, tmp_path / "shards", workers=2)


@pytest.mark.parametrize(("size", "dtype"), [(1 << 16, "<u2"), ((1 << 16) + 1, "<u4")])
def test_the_type_of_ids(size: int, dtype: str) -> None:
    assert token_dtype(size) == np.dtype(dtype)


def test_flat_arrays() -> None:
    ids, lengths = flat_arrays([[1, 2], [], [3]])
    assert (ids.tolist(), lengths.tolist()) == ([1, 2, 3], [2, 0, 1])


def test_joined_parts_are_the_ids_of_all_sentences(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "tokenizer")
    writer = PartWriter(tmp_path / "tokenizer", tmp_path / "parts")
    documents = make_documents(30)
    parts = [documents[:11], documents[11:]]
    sizes = [writer((number, part)) for number, part in enumerate(parts)]
    assert sizes == [sum(map(len, part)) for part in parts]
    (tmp_path / "data").mkdir()
    paths = [part_path(tmp_path / "parts", number) for number in range(2)]
    counts = join_parts(paths, tmp_path / "data")
    sentences = [tokenizer.ids(split_sentences(document)) for document in documents]
    flat = [ids for document in sentences for ids in document]
    tokens = np.fromfile(tmp_path / "data" / "tokens.bin", token_dtype(tokenizer.vocab_size))
    assert tokens.tolist() == [number for ids in flat for number in ids]
    ends = np.load(tmp_path / "data" / "sentences.npy")
    assert np.diff(ends).tolist() == list(map(len, flat))
    assert np.diff(np.load(tmp_path / "data" / "documents.npy")).tolist() == list(
        map(len, sentences)
    )
    assert (counts["documents"], counts["tokens"]) == (30, len(tokens))


def test_a_part_is_written_once(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "tokenizer")
    writer = PartWriter(tmp_path / "tokenizer", tmp_path / "parts")
    documents = make_documents(3)
    writer((0, documents))
    before = part_path(tmp_path / "parts", 0).stat().st_ino
    writer((0, documents))
    assert part_path(tmp_path / "parts", 0).stat().st_ino == before
    writer((0, documents[:2]))
    assert part_path(tmp_path / "parts", 0).stat().st_ino != before
