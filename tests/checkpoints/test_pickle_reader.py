"""The program that reads a file of torch.save, by itself."""

import subprocess
import sys
from pathlib import Path

import pytest

from bertworks.checkpoints import pickle_reader
from bertworks.errors import BertworksError
from tests.checkpoints.test_pickled_weights import (
    PICKLE,
    SEEN_LATER,
    bert as bert,
    converted,
    pickled,
)
from tests.checkpoints.test_resolve import here as here


@pytest.mark.parametrize("kind", SEEN_LATER)
def test_tensors_that_are_none_are_refused(kind: str, tmp_path: Path):
    write, said = SEEN_LATER[kind]
    file = tmp_path / PICKLE
    file.write_bytes(write(tmp_path / "canary"))
    is_zip = pickle_reader.check_format(file)
    with pytest.raises(pickle_reader.RefusedFileError, match=said):
        pickle_reader.convert_pickle(file, tmp_path / "a.safetensors", is_zip=is_zip)
    assert [path.name for path in tmp_path.iterdir()] == [PICKLE]


@pytest.mark.parametrize(
    "act",
    [
        "os.system('touch canary')",
        "__import__('subprocess').run(['touch', 'canary'])",
        "os.fork()",
        "os.execv('/bin/touch', ['touch', 'canary'])",
        "os.posix_spawn('/bin/touch', ['touch', 'canary'], {})",
        "open('canary', 'w')",
        "open('target', 'r+')",
        "os.open('canary', os.O_CREAT)",
        "os.remove('target')",
        "os.rename('target', 'canary')",
        "__import__('socket').socket()",
        "__import__('ctypes').CDLL(None)",
    ],
)
def test_a_fault_of_the_loader_could_not_do_much(act: str, tmp_path: Path):
    """Even code that ran in the child could start no program, open no connection and write nothing
    but its result."""
    (tmp_path / "target").write_bytes(b"")
    program = (
        "import os, sys, pickle_reader; from pathlib import Path\n"
        "__import__('socket'), __import__('ctypes')\n"
    )
    program += "pickle_reader._forbid_side_effects(Path('result'))\nopen('result', 'w').close()\n"
    program += f"try:\n    {act}\nexcept BaseException:\n    pass\nprint('it was done')"
    places = {"PYTHONPATH": str(Path(pickle_reader.__file__).parent)}
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        cwd=tmp_path,
        env=places,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (pickle_reader.REFUSED, "")
    assert done.stdout.startswith("reading it tried to")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["result", "target"]


def test_the_child_sees_no_secrets_and_no_other_library(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """What it sees is printed by a program in its place."""
    spy = tmp_path / "spy.py"
    spy.write_text(
        "import os, sys; print(sorted(os.environ), os.getcwd(), sys.flags.isolated, "
        "len(sys.argv)); sys.exit(3)"
    )
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/usr/lib")
    monkeypatch.setattr(pickle_reader, "__file__", str(spy))
    pickled(bert)
    with pytest.raises(
        BertworksError, match=r"not read: \[.*'OMP_NUM_THREADS'.*\] \S+\.tmp 1 "
    ) as raised:
        converted(bert, tmp_path / "ours")
    assert "LD_LIBRARY_PATH" in str(raised.value)
    assert "HF_TOKEN" not in str(raised.value)
    assert "PYTHONPATH" not in str(raised.value)


def test_the_reader_imports_torch_only():
    """Other libraries add classes to those that torch's restricted loader accepts."""
    program = (
        "import sys; sys.path.append(sys.argv[1]); import pickle_reader, torch; print(*sys.modules)"
    )
    places = [path for path in sys.path if Path(path).is_absolute()]
    program = f"import sys; sys.path += {places}; {program}"
    folder = str(Path(pickle_reader.__file__).parent)
    done = subprocess.run(
        [sys.executable, "-I", "-c", program, folder], capture_output=True, text=True, check=True
    )
    modules = {name.partition(".")[0] for name in done.stdout.split()}
    assert "torch" in modules
    assert not modules & {"bertworks", "transformers", "safetensors", "tokenizers"}
