"""What users name as an input becomes a path: files, pipes, standard input, URLs, words."""

import gc
import io
import os
import sys
import threading
from pathlib import Path

import pytest

from bertworks.errors import UsageError
from bertworks.io.paths import as_path, file_or_texts, names_file, nothing_there, rereadable


class Owner:
    """An object that a temporary file is deleted with."""


def test_paths_are_as_they_are_and_what_is_none_is_refused(tmp_path: Path) -> None:
    assert as_path(str(tmp_path)) == as_path(tmp_path) == tmp_path
    with pytest.raises(UsageError, match=r"expected one corpus, not \['a'\]"):
        as_path(["a"], "corpus")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="http:// is not read"):
        as_path("http://host/a")


def test_no_other_module_is_needed_for_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bertworks.io.remote", None)
    assert as_path("a") == Path("a")
    with pytest.raises(ImportError):
        as_path("memory://a/b")


def test_a_pipe_is_read_again(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(b"text\n",))
    writer.start()
    owner = Owner()
    copy, name = rereadable(pipe, owner)
    writer.join()
    assert name == str(pipe)
    assert copy.read_bytes() == copy.read_bytes() == b"text\n"
    del owner
    gc.collect()
    assert not copy.exists()


def test_standard_input_has_a_name_and_a_file_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"text\n")))
    owner = Owner()
    copy, name = rereadable("-", owner)
    assert (copy.read_bytes(), name) == (b"text\n", "<stdin>")
    assert rereadable(tmp_path / "a", owner) == (tmp_path / "a", None)


def test_one_file_or_texts(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text\n")
    assert file_or_texts([str(path)], []) == str(path)
    assert file_or_texts(["a text"], ["and.csv"]) == ["a text", "and.csv"]
    assert names_file("b.jsonl.gz")
    assert not names_file("a text")
    with pytest.raises(UsageError, match="expected one file"):
        file_or_texts([str(path), "a text"], [])
    with pytest.raises(UsageError, match="no such file"):
        file_or_texts([str(tmp_path / "b.csv")], [])


def test_the_nearest_name_is_meant(tmp_path: Path) -> None:
    (tmp_path / "reviews.csv").write_text("")
    assert str(tmp_path / "reviews.csv") in str(nothing_there(tmp_path / "review.csv").hint)
    assert "glob matches nothing" in nothing_there(tmp_path / "*.tsv").what
