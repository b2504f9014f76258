"""Damaged files are found: random damage to shards, indexes, plans and portions never changes a
result silently."""

import json
import random
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertworks.cli.main import main
from bertworks.errors import BertworksError
from bertworks.inference.embed_file import embed_file
from bertworks.inference.engine import open_model
from bertworks.io import arrays
from bertworks.io.atomic_write import json_sha256
from bertworks.io.file_job import FileJob, Portion, compute_file, unpacked_values
from bertworks.io.options import Bulk
from bertworks.retrieval.index import Index
from bertworks.runs.pretrain import pretrain
from bertworks.runs.pretrain_job import phase_batches
from bertworks.text.shards import Shards, write_shards
from bertworks.text.tokenizer import Tokenizer
from bertworks.training.recipe import load_recipe
from tests.batching.test_sampling import every, make_store
from tests.support.tiny import write_corpus as write_tiny_corpus, write_recipe
from tests.text.test_shards import make_documents, make_tokenizer, write_corpus

Outcome = tuple[Any, list[str]]  # a result, and the notes to the user
VALUES = [None, True, -1, 0, 1, 3, 10**30, 0.5, "", "x", "../x", [], [1], {}, {"a": 1}]
MORE = [pytest.param(3000, marks=pytest.mark.slow)]  # damages in a long run


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")


def places(value: Any) -> list[tuple[Any, Any]]:
    """All containers of a JSON value, with their keys."""
    keys = (
        list(value)
        if isinstance(value, dict)
        else range(len(value))
        if isinstance(value, list)
        else ()
    )
    return [place for key in keys for place in [(value, key), *places(value[key])]]


def damage(folder: Path, draw: random.Random) -> str:
    """Change one file at random, or exchange two. Says what it did."""
    files = files_of(folder)
    path = draw.choice(files)
    content, kind = (
        path.read_bytes(),
        draw.choice(["flip", "flip", "cut", "append", "exchange", "value", "delete"]),
    )
    if kind == "value" and not (path.suffix == ".json" and content):
        kind = "flip"
    if kind == "flip" and content:
        changed = bytearray(content)
        for _ in range(draw.choice([1, 1, 3])):
            changed[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        path.write_bytes(changed)
    elif kind == "cut":
        path.write_bytes(content[: draw.randrange(len(content) + 1)])
    elif kind == "append":
        path.write_bytes(content + draw.randbytes(draw.choice([1, 8, 700])))
    elif kind == "exchange":
        other = draw.choice(files)
        path.write_bytes(other.read_bytes())
        other.write_bytes(content)
        return f"exchange {path.name} {other.name}"
    elif kind == "value":
        parsed = json.loads(content)
        container, key = draw.choice(places(parsed))
        if draw.random() < 0.2:
            del container[key]
        else:
            container[key] = draw.choice(VALUES)
        path.write_text(json.dumps(parsed))
    elif kind == "delete":
        path.unlink()
    return f"{kind} {path.name}"


def check_all(
    whole: Path, work: Path, read: Callable[[Path], Outcome], count: int, seed: int
) -> None:
    """Damage a copy of a folder `count` times: each time the result is the same, or there is an
    error or a note."""
    shutil.copytree(whole, work)
    truth, notes = read(work)
    assert not notes
    draw, refused, noted = random.Random(seed), 0, 0
    original = {path.relative_to(whole): path.read_bytes() for path in files_of(whole)}
    for number in range(count):
        for path in files_of(work):
            if original.get(name := path.relative_to(work)) != path.read_bytes():
                path.write_bytes(original[name]) if name in original else path.unlink()
        for name in original.keys() - {path.relative_to(work) for path in files_of(work)}:
            (work / name).parent.mkdir(parents=True, exist_ok=True)
            (work / name).write_bytes(original[name])
        what = f"{number}: {damage(work, draw)}"
        try:
            result, notes = read(work)
        except BertworksError as error:
            if not (error.where and error.hint):
                raise AssertionError(f"{what}: names no file, or no way out: {error!r}") from error
            refused += 1
            continue
        except Exception as error:
            raise AssertionError(f"{what}: a traceback: {error!r}") from error
        noted += bool(notes)
        assert notes or result == truth, f"{what}: silent"
        assert result == truth, f"{what}: noted, but wrong"
    assert refused + noted > count / 3


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a small file has many."""
    monkeypatch.setattr(arrays, "_BLOCK", 512)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def shards(tokenizer: Tokenizer, tmp_path: Path) -> Path:
    reader = write_corpus(tmp_path / "corpus.jsonl", make_documents(40))
    return write_shards(reader, tokenizer, tmp_path / "shards", workers=1).folder


def read_shards(folder: Path, verify: bool = False) -> Outcome:
    opened = Shards.open(folder, verify=verify)
    arrays = [
        np.asarray(row).tolist() for row in (opened.tokens, opened.sentences, opened.documents)
    ]
    return [*arrays, opened.tokenizer().sha256, asdict(opened.manifest)], []


@pytest.mark.parametrize("count", [200, *MORE])
def test_shards(count: int, shards: Path, tmp_path: Path) -> None:
    check_all(shards, tmp_path / "work", read_shards, count, seed=1)


@pytest.mark.parametrize("count", [100, *MORE])
def test_shards_that_are_verified(count: int, shards: Path, tmp_path: Path) -> None:
    check_all(shards, tmp_path / "work", partial(read_shards, verify=True), count, seed=2)


@pytest.mark.parametrize("count", [150, *MORE])
def test_an_index(count: int, model: Path, tmp_path: Path) -> None:
    made, source = Index.create(tmp_path / "idx", model, device="cpu"), open_model(model, "cpu")
    made.add(
        ["good film", "sad dogs", "Anna lives in Oslo"],
        ids=["a", "b", "c"],
        fields=[{"n": 1}, {}, {}],
    )
    made.add(["the men heard music last night", "story of this town"], ids=["d", "e"])
    made.delete(["b"])

    def read(folder: Path) -> Outcome:
        opened = Index(folder, model=source)
        queries = ("good dogs", "music in town")
        ways: list[dict[str, Any]] = [{"ranking": way} for way in ("dense", "bm25", "hybrid")]
        if graph:
            ways.append({"ranking": "dense", "approximate": True})
        return [opened.search(query, **way) for query in queries for way in ways], []

    graph = find_spec("faiss") is not None
    if graph:
        made.build_graph()
    check_all(tmp_path / "idx", tmp_path / "work", read, count, seed=3)


@pytest.mark.parametrize("count", [100, *MORE])
@pytest.mark.parametrize("format", ["next_sentence", "full_sentences"])
def test_plans(format: str, count: int, tokenizer: Tokenizer, tmp_path: Path) -> None:
    write_recipe(tmp_path / "r.toml")
    store, recipe = (
        make_store(),
        load_recipe(str(tmp_path / "r.toml"), [f"sampling.format={format}"]),
    )

    def read(folder: Path) -> Outcome:
        notes: list[str] = []
        batches = phase_batches(store, every(store), recipe, tokenizer, folder, 0, 1, notes.append)
        return [batch.input_ids.tolist() for step in range(3) for batch in batches(step)], notes

    read(tmp_path / "plans")
    check_all(tmp_path / "plans", tmp_path / "work", read, count, seed=4)


def test_a_plan_of_other_settings_is_made_again(tokenizer: Tokenizer, tmp_path: Path) -> None:
    write_recipe(tmp_path / "r.toml")
    store = make_store()
    for seed, expected in ((1, 0), (1, 0), (2, 1)):
        notes: list[str] = []
        recipe = load_recipe(str(tmp_path / "r.toml"), [f"seed={seed}"])
        phase_batches(
            store, every(store), recipe, tokenizer, tmp_path / "plans", 0, 1, notes.append
        )
        assert len(notes) == expected
    recipe = load_recipe(str(tmp_path / "r.toml"), ["seed=2"])
    phase_batches(
        store, every(store)[1:], recipe, tokenizer, tmp_path / "plans", 0, 1, notes.append
    )
    assert "made again" in notes[1]


# --- results of interrupted commands


def run(folder: Path, stop: int) -> Outcome:
    """Number the lines of a file, in portions, up to line `stop`."""
    output = folder / "out.txt"

    def compute(rows: list[int]) -> Portion:
        if stop in rows:
            raise KeyboardInterrupt
        return len(rows), [json.dumps(rows).encode()]

    def write(files: Sequence[Path]) -> None:
        output.write_bytes(b"".join(chain.from_iterable(map(unpacked_values, files))))

    job = FileJob(output, Bulk(), {}, "", ())
    events = list(compute_file("embed", job, range(9), compute, write))
    result = output.read_bytes(), events[-1].fields["truncated"]
    output.unlink()
    return result, [event.text for event in events if "damaged" in event.fields]


@pytest.mark.parametrize("count", [150, *MORE])
def test_portions(count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertworks.io.file_job.ROWS_AT_ONCE", 2)
    (tmp_path / "data.txt").write_text("a\nb\nc\nd\ne\nf\ng\nh\ni\n")
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, stop=8)
    portions = tmp_path / ".out.txt.portions"
    assert len(list(portions.glob("0*"))) == 4

    def read(folder: Path) -> Outcome:
        shutil.rmtree(portions, ignore_errors=True)
        shutil.copytree(folder, portions)
        return run(tmp_path, stop=-1)

    check_all(portions.rename(tmp_path / "whole"), tmp_path / "work", read, count, seed=5)


def test_a_portion_under_the_name_of_another_is_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertworks.io.file_job.ROWS_AT_ONCE", 2)
    (tmp_path / "data.txt").write_text("a\nb\nc\nd\ne\nf\ng\nh\ni\n")
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, stop=6)
    first, second, _ = sorted((tmp_path / ".out.txt.portions").glob("0*"))
    first.rename(tmp_path / "other")
    second.rename(first)
    (tmp_path / "other").rename(second)
    (found, truncated), notes = run(tmp_path, stop=-1)
    assert (found, truncated) == (b"[0, 1][2, 3][4, 5][6, 7][8]", 9)
    assert len(notes) == 1
    assert re.fullmatch("damaged chunks in .*, computed again: 2", notes[0])


def test_vectors_of_a_damaged_portion(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of all rows are as without damage, and only one portion is computed again."""
    data = tmp_path / "t.txt"
    data.write_text("".join(f"film number {n}\n" for n in range(9)))
    list(embed_file(model, data, tmp_path / "whole.npy", device="cpu"))
    monkeypatch.setattr("bertworks.io.file_job.ROWS_AT_ONCE", 3)
    stopped = embed_file(model, data, tmp_path / "v.npy", device="cpu")
    assert len(list(islice((event for event in stopped if event.kind == "stage"), 2))) == 2
    stopped.close()
    path = min((tmp_path / ".v.npy.portions").glob("0*"))
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    events = list(embed_file(model, data, tmp_path / "v.npy", device="cpu"))
    assert [
        event.fields for event in events if {"damaged", "resumed_portions"} & event.fields.keys()
    ] == [
        {"resumed_portions": 1},
        {"damaged": 1},
    ]
    np.testing.assert_allclose(
        np.load(tmp_path / "v.npy"), np.load(tmp_path / "whole.npy"), atol=1e-6
    )


# --- manifests that are no such


def test_shards_without_checksums_of_blocks_are_refused(shards: Path) -> None:
    content = json.loads((shards / "manifest.json").read_text())
    del content["crc32"]
    (shards / "manifest.json").write_text(
        json.dumps(content | {"sha256": json_sha256(content)}, ensure_ascii=False)
    )
    with pytest.raises(BertworksError, match="the manifest is damaged"):
        Shards.open(shards)


@pytest.mark.parametrize(
    "values", [{"vocab_size": -1}, {"tokens": True}, {"dtype": "O"}, {"files": {}}, {"corpus": 3}]
)
def test_a_manifest_with_wrong_values(values: dict[str, Any], shards: Path) -> None:
    content = json.loads((shards / "manifest.json").read_text()) | values
    (shards / "manifest.json").write_text(json.dumps(content | {"sha256": json_sha256(content)}))
    with pytest.raises(BertworksError, match="the manifest is damaged"):
        Shards.open(shards)


# --- --verify


def test_verify_finds_what_was_not_read(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "idx"
    Index.create(folder, model, device="cpu").add(["good film", "sad dogs"])
    assert main(["index", "-o", str(folder), "--verify"]) == 0
    assert "the checksums of all files match" in capsys.readouterr().err
    (path,) = folder.glob("*.jsonl")
    path.write_bytes(path.read_bytes().replace(b"sad", b"bad"))
    for command in (
        ["index", "-o", str(folder)],
        ["search", str(folder), "film", "--ranking", "bm25", "-k", "1"],
    ):
        assert main([*command, "--verify"]) == 1
        found = capsys.readouterr().err
        assert path.name in found
        assert "sha256 differs" in found


def test_the_hint_for_damaged_shards_of_a_run(tmp_path: Path) -> None:
    """The folder deleted and the command repeated, the run goes on."""
    corpus = write_tiny_corpus(tmp_path / "c.jsonl", 120)
    recipe = write_recipe(tmp_path / "r.toml", ("num_steps = 40", "num_steps = 8"))
    make = partial(
        pretrain, [corpus], tmp_path / "out", recipe=str(recipe), device="cpu", workers=1
    )
    events = make()
    next(event for event in events if event.kind == "saved" and event.fields["step"] == 5)
    events.close()
    path = tmp_path / "out" / "shards" / "tokens.bin"
    whole = path.read_bytes()
    path.write_bytes(bytes(byte ^ 1 for byte in whole))
    with pytest.raises(BertworksError, match="CRC-32 differs") as caught:
        list(make())
    assert "delete this folder within a run and repeat the `bertworks pretrain` command" in str(
        caught.value.hint
    )
    shutil.rmtree(path.parent)
    assert list(make())[-1].fields["step"] == 8
    assert path.read_bytes() == whole


@pytest.mark.parametrize("verify", [False, True])
def test_training_on_damaged_shards(
    verify: bool, shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    content = bytearray((shards / "tokens.bin").read_bytes())
    content[len(content) // 2] ^= 1
    (shards / "tokens.bin").write_bytes(content)
    recipe = write_recipe(tmp_path / "r.toml")
    command = [
        "pretrain",
        str(shards),
        "-o",
        str(tmp_path / "out"),
        "--recipe",
        str(recipe),
        "--device",
        "cpu",
    ]
    assert main([*command, *(["--verify"] if verify else [])]) == 1
    found = capsys.readouterr().err
    assert "tokens.bin" in found
    assert ("sha256 differs" if verify else "CRC-32 differs") in found
    assert "bertworks prepare" in found
