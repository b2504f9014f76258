"""Each command reads each file of a model folder once. Weights are exempt: they are mapped, and
hashed for resuming."""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import bertworks as bw
from bertworks.cli.main import main
from bertworks.inference.embedder import Embedder
from tests.interop.test_export import write_head
from tests.support.fine import write_model, write_reviews

_opened: Counter[str] | None = None  # of the test that runs now: a hook cannot be removed


def _hook(event: str, args: tuple[object, ...]) -> None:
    if event == "open" and _opened is not None and isinstance(args[0], str):
        _opened[args[0]] += 1


sys.addaudithook(_hook)


@contextmanager
def counted_reads(folder: Path) -> Iterator[dict[str, int]]:
    """How often each file of the folder is opened in this block."""
    global _opened
    reads: dict[str, int] = {}
    _opened = Counter()
    try:
        yield reads
    finally:
        names = {str(path): path.relative_to(folder).as_posix() for path in folder.rglob("*")}
        reads |= {names[name]: count for name, count in _opened.items() if name in names}
        _opened = None


def run(*command: object) -> None:
    assert main([str(part) for part in command]) == 0


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    write_reviews(folder / "reviews.csv", 60)
    base = write_model(folder / "base")
    Embedder(base, pooling="cls", device="cpu").save(folder / "vectors")
    transformers = write_head(folder / "transformers", "classification")
    (transformers / "task.json").unlink()  # its task is then read from config.json
    return {
        "data": folder / "reviews.csv",
        "base": base,
        "vectors": folder / "vectors",
        "transformers": transformers,
        "task": write_head(folder / "task", "classification"),
    }


@pytest.mark.parametrize(
    ("command", "model", "options"),
    [
        ("predict", "task", ["--device", "cpu"]),
        ("predict", "transformers", ["--device", "cpu"]),
        ("embed", "vectors", ["--device", "cpu"]),
        ("finetune", "base", ["--device", "cpu", "--set", "epochs=1"]),
        ("finetune", "transformers", ["--device", "cpu", "--set", "epochs=1"]),
        ("export", "task", []),
        ("explain", "transformers", []),
        ("load", "task", []),
    ],
)
def test_a_command_reads_each_file_once(
    command: str, model: str, options: list[str], folders: dict[str, Path], tmp_path: Path
) -> None:
    folder, data = folders[model], folders["data"]
    with counted_reads(folder) as reads:
        if command == "load":
            loaded = bw.load(folder, device="cpu")
            assert loaded.predict(["a good film"])
            assert loaded.can
        elif command == "explain":
            run("explain", folder, "a good film")
        elif command == "export":
            run("export", folder, "-o", tmp_path / "out")
        elif command == "embed":
            run("embed", folder, data, "-o", tmp_path / "out.npy", "--text", "text", *options)
        elif command == "predict":
            run("predict", folder, data, "-o", tmp_path / "out.csv", *options)
        else:
            run("finetune", data, "--model", folder, "-o", tmp_path / "out", *options)
    reads = {name: count for name, count in reads.items() if not name.endswith(".safetensors")}
    assert reads.get("config.json") == 1
    assert set(reads.values()) == {1}, reads


@pytest.mark.parametrize("parts", [1, 2])
def test_documents_are_read_once_and_hashed_once_to_be_indexed_in_portions(
    parts: int, folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Portions hold the documents: they are not read again when the index is written."""
    monkeypatch.setattr("bertworks.io.file_job.ROWS_AT_ONCE", 300)
    data = tmp_path / "documents.csv"
    data.write_text("id,text\n" + "".join(f"{n},a good film {n}\n" for n in range(1500)))
    command = ["index", data, "-o", tmp_path / "i", "--device", "cpu"]
    command += ["--model", folders["base"]]
    for part in range(parts):
        with counted_reads(tmp_path) as reads:
            run(*command, *(["--part", f"{part}/{parts}"] if parts > 1 else ["--on", "local"]))
        assert reads["documents.csv"] <= 2
    if parts > 1:
        with counted_reads(tmp_path) as reads:
            run(*command, "--join")
        assert reads["documents.csv"] <= 2
    assert len(bw.Index(tmp_path / "i", device="cpu")) == 1500
