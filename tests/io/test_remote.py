"""Remote storage: memory:// here, s3:// in tests/scenarios/test_remote_s3.py. What is written there
has the bytes of what is written on a disk, is complete or is not read, and nothing else stays."""

import hashlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import fsspec
import pytest

import bertworks
from bertworks.cli.main import main
from bertworks.errors import BertworksError, UsageError
from bertworks.io import remote
from bertworks.io.atomic_write import local_path, url_of, write_text
from bertworks.io.inputs import as_path
from bertworks.io.remote import MANIFEST, Storage, fetched, published
from bertworks.runs import training_run
from bertworks.runs.finetune import make_finetune_request
from bertworks.training.recipe import load_finetune_recipe
from tests.support.fine import write_reviews
from tests.support.tiny import write_corpus, write_recipe

ROWS = b"text,label\nThe film is good.,pos\nThe film is bad.,neg\n"


@pytest.fixture(autouse=True)
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("BERTWORKS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(remote, "WAITS", (0.001,) * 3)
    monkeypatch.setattr(remote, "BEAT", 0.01)
    monkeypatch.setattr(remote, "SILENT", 0.2)
    files = fsspec.filesystem("memory")
    yield files
    files.store.clear()
    files.pseudo_dirs[:] = [""]


def digests(folder: Path) -> dict[str, str]:
    """The sha256 of the files of a folder, but not of hidden ones."""
    files = (path for path in folder.rglob("*") if path.is_file() and "/." not in path.as_posix())
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


def remote_digests(memory: Any, folder: str) -> dict[str, str]:
    names = {name: name.removeprefix(f"/{folder}/") for name in memory.find(f"/{folder}")}
    return {
        short: hashlib.sha256(memory.cat_file(name)).hexdigest() for name, short in names.items()
    }


def run(*words: object) -> None:
    assert main([str(word) for word in words]) == 0


def work_files(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "cache" / "work").rglob("*") if path.is_file()]


def test_vectors_of_a_remote_file_are_those_of_a_local_one(
    memory: Any, tmp_path: Path, capsys: Any
):
    (tmp_path / "t.csv").write_bytes(ROWS)
    memory.pipe_file("/b/t.csv", ROWS)
    run("embed", "minilm", tmp_path / "t.csv", "-o", tmp_path / "v.npy")
    run("embed", "minilm", "memory://b/t.csv", "-o", "memory://b/v.npy")
    assert memory.cat_file("/b/v.npy") == (tmp_path / "v.npy").read_bytes()
    assert memory.find("") == ["/b/t.csv", "/b/v.npy"]  # and no temporary
    assert not work_files(tmp_path)
    assert "written to memory://b/v.npy" in capsys.readouterr().out
    assert main(["embed", "minilm", "memory://b/t.csv", "-o", "memory://b/v.npy"]) == 2
    assert "memory://b/v.npy: this file already exists" in capsys.readouterr().err
    memory.pipe_file("/b/t.csv", ROWS.replace(b"bad", b"fine"))  # another version is another copy
    run("embed", "minilm", "memory://b/t.csv", "-o", "memory://b/v.npy", "--overwrite")
    assert memory.cat_file("/b/v.npy") != (tmp_path / "v.npy").read_bytes()


def test_a_folder_has_a_manifest_and_the_bytes_of_a_local_one(memory: Any, tmp_path: Path):
    corpus = write_corpus(tmp_path / "a.jsonl", 30)
    memory.put_file(str(corpus), "/b/c/a.jsonl")
    run("vocab", corpus, "-o", tmp_path / "tok", "--size", "300")
    run("vocab", "memory://b/c", "-o", "memory://b/tok", "--size", "300")
    run("prepare", corpus, "-o", tmp_path / "shards", "--tokenizer", tmp_path / "tok")
    run(
        "prepare",
        "memory://b/c/*.jsonl",
        "-o",
        "memory://b/shards",
        "--tokenizer",
        "memory://b/tok",
    )
    for name in ("tok", "shards"):
        there = remote_digests(memory, f"b/{name}")
        manifest = json.loads(memory.cat_file(f"/b/{name}/{MANIFEST}"))["files"]
        del there[MANIFEST]
        assert {key: facts["sha256"] for key, facts in manifest.items()} == there
        assert all(
            memory.size(f"/b/{name}/{key}") == facts["bytes"] for key, facts in manifest.items()
        )
        here = digests(tmp_path / name)
        assert {k: v for k, v in there.items() if k != "manifest.json"} == {
            k: v
            for k, v in here.items()
            if k != "manifest.json"  # it has the path of the corpus
        }
    before = memory.modified("/b/shards/tokens.bin")
    run(
        "prepare",
        "memory://b/c/*.jsonl",
        "-o",
        "memory://b/shards",
        "--tokenizer",
        "memory://b/tok",
    )
    assert memory.modified("/b/shards/tokens.bin") == before  # it was finished
    assert not work_files(tmp_path)
    assert not [name for name in memory.find("") if name.endswith(remote.CLAIM)]


def test_a_folder_without_a_manifest_or_with_other_bytes_is_not_read(memory: Any):
    with published("memory://b/m") as folder:
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        (folder / "x.txt").write_text("x")
    assert (fetched("memory://b/m") / "x.txt").read_text() == "x"
    assert fetched("memory://b/m") == fetched("memory://b/m/")  # one copy
    memory.pipe_file("/b/m/x.txt", b"y")
    manifest = memory.cat_file(f"/b/m/{MANIFEST}")
    memory.pipe_file(f"/b/m/{MANIFEST}", manifest.replace(b'"format": 1', b'"format":  1'))
    memory.pipe_file("/b/n/config.json", b"{}")
    memory.pipe_file(f"/b/n/{MANIFEST}", manifest.replace(b"x.txt", b"../x.txt"))
    with pytest.raises(BertworksError, match="lead out of the folder"):
        fetched("memory://b/n")
    memory.pipe_file(f"/b/n/{MANIFEST}", manifest)
    memory.pipe_file("/b/n/x.txt", b"y")
    with pytest.raises(BertworksError, match=r"memory://b/n/x.txt: damaged"):
        fetched("memory://b/n")
    memory.rm_file(f"/b/m/{MANIFEST}")
    with pytest.raises(BertworksError, match="not finished"):
        fetched("memory://b/m")


def test_texts_that_others_have_put_there_need_no_manifest(memory: Any):
    memory.pipe_file("/b/c/one.txt", b"1")
    assert [path.name for path in fetched("memory://b/c").iterdir()] == ["one.txt"]
    memory.pipe_file("/b/c/two.txt", b"2")
    assert len(list(fetched("memory://b/c").iterdir())) == 2
    memory.pipe_file("/b/c" + remote.CLAIM, b"someone")
    with pytest.raises(BertworksError, match="not finished"):
        fetched("memory://b/c")


def pretrain(output: object, corpus: object, recipe: Path) -> int:
    return main(
        ["pretrain", str(corpus), "-o", str(output), "--recipe", str(recipe), "--device", "cpu"]
    )


@pytest.mark.slow
def test_a_run_resumes_from_its_remote_checkpoint(
    memory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
):
    recipe = write_recipe(tmp_path / "tiny.toml")
    corpus = write_corpus(tmp_path / "a.jsonl")
    memory.put_file(str(corpus), "/b/a.jsonl")
    assert pretrain(tmp_path / "m", corpus, recipe) == 0
    save = training_run.save_checkpoint

    def stop(folder: Path, step: int, *rest: Any, **options: Any) -> Path:
        path = save(folder, step, *rest, **options)
        if step == 20:
            raise KeyboardInterrupt
        return path

    with monkeypatch.context() as patch:
        patch.setattr(training_run, "save_checkpoint", stop)
        assert pretrain("memory://b/m", "memory://b/a.jsonl", recipe) == 130
    names = set(remote_digests(memory, "b/m"))
    assert "checkpoints/step-00000020/checkpoint.json" in names
    assert MANIFEST not in names
    assert main(["fill", "memory://b/m", "ba [MASK]"]) == 1
    assert "not finished" in capsys.readouterr().err
    monkeypatch.setenv("BERTWORKS_CACHE", str(tmp_path / "another-machine"))
    assert pretrain("memory://b/m", "memory://b/a.jsonl", recipe) == 0
    assert "resuming after step 20 of 40" in capsys.readouterr().err
    there = remote_digests(memory, "b/m")
    assert there["model.safetensors"] == digests(tmp_path / "m")["model.safetensors"]
    steps = [json.loads(line) for line in memory.cat_file("/b/m/metrics.jsonl").splitlines()]
    assert [line["step"] for line in steps if "loss" in line] == list(range(1, 41))
    assert not [
        path for path in (tmp_path / "another-machine" / "work").rglob("*") if path.is_file()
    ]
    run("fill", "memory://b/m", "ba [MASK]")
    assert pretrain("memory://b/m", "memory://b/a.jsonl", recipe) == 0  # it is finished
    assert remote_digests(memory, "b/m")["model.safetensors"] == there["model.safetensors"]


@pytest.mark.slow
def test_a_run_of_two_seeds_resumes_elsewhere_with_the_second_one(
    memory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, model: Path
):
    data = write_reviews(tmp_path / "a.csv", 60)
    words = [
        "finetune",
        data,
        "--model",
        model,
        "--method",
        "full",
        "--validation",
        "split",
        "--seeds",
        "2",
    ]
    words += ["--epochs", "4", "--set", "save_every=2", "-o"]
    run(*words, tmp_path / "m")
    save, saved, interrupts = training_run.save_checkpoint, list[str](), [False, True]

    def stop(folder: Path, step: int, *rest: Any, **options: Any) -> Path:
        path = save(folder, step, *rest, **options)
        saved.append(folder.parent.name)
        if saved.count("seed-1") == 2 and interrupts.pop():
            raise KeyboardInterrupt
        return path

    monkeypatch.setattr(training_run, "save_checkpoint", stop)
    assert main([*map(str, words), "memory://b/m"]) == 130
    monkeypatch.setenv("BERTWORKS_CACHE", str(tmp_path / "another-machine"))
    saved.clear()
    capsys.readouterr()
    run(*words, "memory://b/m")
    assert "resuming after step 2 of" in capsys.readouterr().err
    assert set(saved) == {"seed-1"}
    there, here = remote_digests(memory, "b/m"), digests(tmp_path / "m")
    weights = [f"{folder}model.safetensors" for folder in ("", "seed-0/", "seed-1/")]
    assert [there[name] for name in weights] == [here[name] for name in weights]


def checkpoint(folder: Path, step: int, content: str) -> None:
    path = folder / "checkpoints" / f"step-{step:08}"
    path.mkdir(parents=True)
    (path / "state.safetensors").write_text(content)
    (path / "checkpoint.json").write_text("{}")


@pytest.mark.parametrize(
    ("here", "there", "resumed"), [(2, 1, "here"), (1, 2, "there"), (2, 2, "here")]
)
def test_the_newest_complete_checkpoint_wins(
    memory: Any, tmp_path: Path, here: int, there: int, resumed: str
):
    work = tmp_path / "cache" / "work" / "memory" / "b" / "run"
    found: list[str] = []

    def interrupted(act: Callable[[Path], object]) -> None:
        with published("memory://b/run") as folder:
            act(folder)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted(lambda folder: checkpoint(folder, there, "there"))
    shutil.rmtree(work)
    checkpoint(work, here, "here")
    # without checkpoint.json
    memory.pipe_file("/b/run/checkpoints/step-00000009/state.safetensors", b"torn")
    newest = f"checkpoints/step-{max(here, there):08}/state.safetensors"
    with pytest.raises(KeyboardInterrupt):
        interrupted(lambda folder: found.append((folder / newest).read_text()))
    assert found == [resumed]


def test_trainings_of_a_run_are_uploaded_when_they_are_finished(memory: Any, tmp_path: Path):
    """A killed run of several seeds, folds or arms continues on another machine: what counts is the
    number of finished trainings, then the step of the next one."""
    with suppress(KeyboardInterrupt), published("memory://b/run") as folder:
        checkpoint(folder / "seed-0", 20, "first")
        shutil.rmtree(folder / "seed-0/checkpoints")
        (folder / "seed-0/model.safetensors").write_text("first")
        (folder / "seed-0/finished.json").write_text("{}")
        checkpoint(folder / "seed-1", 10, "second")
        raise KeyboardInterrupt
    shutil.rmtree(tmp_path / "cache")
    # of a machine that has lost its connection
    checkpoint(tmp_path / "cache/work/memory/b/run/seed-0", 20, "first")
    with suppress(KeyboardInterrupt), published("memory://b/run") as folder:
        found = {
            path.relative_to(folder).as_posix(): path.read_text()
            for path in folder.rglob("*.safetensors")
        }
        raise KeyboardInterrupt
    assert found == {
        "seed-0/model.safetensors": "first",
        "seed-1/checkpoints/step-00000010/state.safetensors": "second",
    }


def test_a_run_that_replaces_another_leaves_nothing_of_it(memory: Any, tmp_path: Path):
    """Otherwise the next machine would take the finished trainings of the other run for its own."""
    with published("memory://b/run") as folder:
        for seed in (0, 1):
            checkpoint(folder / f"seed-{seed}", 20, "old")
            (folder / f"seed-{seed}/finished.json").write_text("{}")
    with suppress(KeyboardInterrupt), published("memory://b/run", overwrite=True) as folder:
        checkpoint(folder / "seed-0", 10, "new")
        raise KeyboardInterrupt
    names = {"checkpoint.json", "state.safetensors"}
    assert set(remote_digests(memory, "b/run")) == {
        f"seed-0/checkpoints/step-00000010/{name}" for name in names
    }


@pytest.mark.parametrize("fails", [False, True])
def test_a_download_of_a_newer_checkpoint_leaves_it_there(
    memory: Any, tmp_path: Path, monkeypatch: Any, fails: bool
):
    """It takes longer than the time between two uploads, or fails."""
    work = tmp_path / "cache" / "work" / "memory" / "b" / "run"
    checkpoint(work, 1, "here")
    checkpoint(tmp_path, 2, "there")
    memory.put(str(tmp_path / "checkpoints"), "/b/run/checkpoints", recursive=True)
    fill = remote.Storage.fill

    def slow(self: remote.Storage, folder: Path, files: Any) -> None:
        time.sleep(20 * remote.BEAT)
        if fails:
            raise BertworksError("the network is gone")
        fill(self, folder, files)

    monkeypatch.setattr(remote.Storage, "fill", slow)
    with suppress(BertworksError, KeyboardInterrupt), published("memory://b/run") as folder:
        assert not fails
        assert (folder / "checkpoints/step-00000002/state.safetensors").read_text() == "there"
        raise KeyboardInterrupt
    assert memory.cat_file("/b/run/checkpoints/step-00000002/state.safetensors") == b"there"
    assert memory.exists("/b/run/checkpoints/step-00000002/checkpoint.json")


def test_checkpoints_are_uploaded_while_the_run_trains_and_old_ones_go(memory: Any):
    with published("memory://b/run") as folder:
        for step in (1, 2):
            checkpoint(folder, step, str(step))
            wanted = f"/b/run/checkpoints/step-{step:08}/checkpoint.json"
            for _ in range(500):
                if memory.exists(wanted):
                    break
                time.sleep(0.01)
            assert memory.exists(wanted)
            if step == 1:
                shutil.rmtree(folder / "checkpoints")
        time.sleep(0.1)
        assert not memory.exists("/b/run/checkpoints/step-00000001/state.safetensors")
        (folder / "model.safetensors").write_text("2")
        shutil.rmtree(folder / "checkpoints")  # as at the end of a run
        time.sleep(0.1)
        assert memory.exists("/b/run/checkpoints/step-00000002/checkpoint.json"), (
            "until the run is uploaded"
        )
        assert not memory.exists(f"/b/run/{MANIFEST}")
    assert memory.exists(f"/b/run/{MANIFEST}")


def test_one_of_two_writers_is_refused(
    memory: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    notes: list[str] = []
    with published("memory://b/v.txt") as path:
        path.write_text("first")
        with (
            pytest.raises(BertworksError, match="of this machine writes"),
            published("memory://b/v.txt"),
        ):
            pass
        monkeypatch.setenv("BERTWORKS_CACHE", str(tmp_path / "another-machine"))
        with (
            pytest.raises(BertworksError, match="another process writes"),
            published("memory://b/v.txt", note=notes.append),
        ):
            pass
    assert "signs of life" in notes[0]
    assert memory.cat_file("/b/v.txt") == b"first"


def test_a_dead_writer_is_followed_and_learns_of_it(memory: Any):
    def write() -> None:
        with published("memory://b/v.txt") as path:
            path.write_text("late")
            assert not memory.cat_file("/b/v.txt" + remote.CLAIM).startswith(b"a dead one")
            memory.pipe_file("/b/v.txt" + remote.CLAIM, b"another one")
            time.sleep(0.1)

    memory.pipe_file("/b/v.txt" + remote.CLAIM, b"a dead one 7")
    with pytest.raises(BertworksError, match="has written to this URL"):
        write()
    assert memory.find("") == ["/b/v.txt" + remote.CLAIM]


def test_a_file_that_appears_meanwhile_stays(memory: Any):
    def write() -> None:
        with published("memory://b/v.txt") as path:
            path.write_text("late")
            memory.pipe_file("/b/v.txt", b"early")

    with pytest.raises(BertworksError, match="has written to this URL"):
        write()
    assert memory.find("") == ["/b/v.txt"]
    assert memory.cat_file("/b/v.txt") == b"early"


def test_the_first_writer_decides(memory: Any, tmp_path: Path):
    (source := tmp_path / "first").write_text("first")
    (other := tmp_path / "other").write_text("other")
    assert Storage("memory://b/p").create("", source)
    assert Storage("memory://b/p").create("", source)  # the same content is no conflict
    assert not Storage("memory://b/p").create("", other)
    assert memory.cat_file("/b/p") == b"first"


def test_failures_that_pass_are_tried_again(memory: Any, monkeypatch: pytest.MonkeyPatch):
    store, left = Storage("memory://b/x"), [3]
    read = store.fs.cat_file

    def flaky(*words: Any) -> Any:
        left[0] -= 1
        if left[0] >= 0:
            raise OSError(5, "Internal Server Error")
        return read(*words)

    memory.pipe_file(f"/b/x/{MANIFEST}", b'{"files": {}}')
    monkeypatch.setattr(type(store.fs), "cat_file", lambda _, *words: flaky(*words))
    assert store.manifest() == {}
    left[0] = 100
    with pytest.raises(
        BertworksError, match=r"memory://b/x: the storage fails, 4 times: .*Internal Server Error"
    ):
        store.manifest()
    assert left[0] == 96


def test_what_is_no_url_of_ours_is_refused(memory: Any, monkeypatch: pytest.MonkeyPatch):
    assert url_of(Path("s3://bucket/x")) == url_of("s3://bucket/x") == "s3://bucket/x"
    assert url_of("a/b") is url_of("C:/x") is url_of(7) is None
    for url, what in {
        "ftp://host/x": "ftp:// is not read or written",
        "memory://b/nothing": "no such bucket, folder or file",
        "memory://b/nothing*": "no such bucket, folder or file",
        "hf://owner/name": "not a file of a data set",
    }.items():
        with pytest.raises(BertworksError, match=what):
            as_path(url)
    for output in ("memory://b/nothing", Path("memory://b/nothing")):
        with pytest.raises(UsageError, match="a function cannot write to a URL"):
            local_path(output)
        with pytest.raises(UsageError, match="a function cannot write to a URL"):
            write_text(output, "text")
    with pytest.raises(BertworksError, match="a whole bucket"), published("memory://bucket/"):
        pass
    with (
        pytest.raises(BertworksError, match="nothing is written to hf"),
        published("hf://datasets/a/b/c.txt"),
    ):
        pass
    with pytest.raises(BertworksError, match=r"a URL with \.\."):
        as_path("memory://b/../x")

    def missing(*_: Any, **__: Any) -> None:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec, "filesystem", missing)
    with pytest.raises(BertworksError, match="needs a package") as error:
        as_path("s3://b/x")
    assert error.value.hint == "pip install 'bertworks[remote]'"


@pytest.mark.parametrize("option", [["--join"], ["--part", "0/2"], ["--on", "ray"]])
def test_portions_of_several_machines_need_a_folder(memory: Any, capsys: Any, option: list[str]):
    memory.pipe_file("/b/t.csv", b"text\none\n")
    assert main(["embed", "minilm", "memory://b/t.csv", "-o", "memory://b/v.npy", *option]) == 2
    assert "a folder that all machines see" in capsys.readouterr().err
    assert not memory.exists("/b/v.npy.upload")


def test_without_urls_fsspec_is_not_imported():
    code = "import sys, bertworks.cli.main, bertworks.io.remote; sys.exit('fsspec' in sys.modules)"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], cwd=Path(bertworks.__file__).parents[1]
        ).returncode
        == 0
    )


@pytest.mark.parametrize(
    "url",
    [
        "s3://user:pass-word@host/data.csv",
        "s3:/user:pass-word@host/data.csv",
        "s3://KEY:pass-word/with/slashes@bucket/x",
        "https://user:pass-word@host/data.csv",
        "gs://pass-word@bucket",
        "hf://user:p@ss-word@datasets/x",
    ],
)
def test_a_password_in_a_url_is_refused_and_not_printed(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "Storage", None)  # nothing is requested
    (tmp_path / "a.txt").write_text("A film.\n")
    text = str(tmp_path / "a.txt")
    for words in (
        ["embed", "minilm", url, "-o", str(tmp_path / "v.npy")],
        ["embed", "minilm", text, "-o", url],
        ["vocab", url, "-o", str(tmp_path / "t")],
        ["finetune", url, "-o", str(tmp_path / "m")],
        ["pretrain", text, "--init", url, "-o", str(tmp_path / "m")],
    ):
        assert main(words) == 2
        shown = capsys.readouterr()
        assert "a URL with a name or a password" in shown.err
        assert "word" not in (shown.out + shown.err).replace("a password", "")
    with pytest.raises(UsageError, match="a URL with a name or a password"):
        as_path(url)


@pytest.mark.parametrize(
    "url", ["s3://bucket/a@b.txt", "s3://bucket/a:b@c", "hf://datasets/owner/name@main/x.csv"]
)
def test_names_with_an_at_sign_are_no_passwords(url: str) -> None:
    assert url_of(url) == url


def test_the_request_of_a_fine_tuning_has_local_copies_and_stores_their_urls(
    memory: Any, model: Path
) -> None:
    with published("memory://b/model") as folder:
        shutil.copytree(model, folder, dirs_exist_ok=True)
    memory.pipe("/b/short.toml", b'title = "short"\nepochs = 2\n')
    rows = [{"text": "a", "label": "b"}]
    urls = {"model": "memory://b/model", "recipe": "memory://b/short.toml"}
    request = make_finetune_request(rows, **urls)
    memory.store.clear()  # nothing is copied again
    assert load_finetune_recipe(request.recipe).epochs == 2
    assert (Path(request.model) / "model.safetensors").read_bytes() == (
        model / "model.safetensors"
    ).read_bytes()
    content = request.content()
    assert {name: content[name] for name in urls} == urls
    assert request.model_name == urls["model"]
    assert len(content["recipe_sha256"]) == 64
