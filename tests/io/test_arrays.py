"""Files are as they were written: seals, checksums of blocks, hashes of manifests."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bertworks.errors import BertworksError
from bertworks.io import arrays
from bertworks.io.arrays import (
    CheckedArray,
    CheckedFile,
    file_sums,
    open_npy,
    verify_files,
    write_npy,
)
from bertworks.io.atomic_write import is_sealed, json_sha256, sealing
from bertworks.io.file_job import unpacked_values


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a small file has many."""
    monkeypatch.setattr(arrays, "_BLOCK", 512)


def test_a_portion_that_changes_later_is_refused(tmp_path: Path) -> None:
    with sealing(tmp_path / "a", "a") as temporary:
        temporary.write_bytes((7).to_bytes(8, "little") + b"results")
    assert list(unpacked_values(tmp_path / "a")) == [b"results"]
    assert not is_sealed(tmp_path / "a", "b")
    (tmp_path / "a").rename(tmp_path / "b")
    with pytest.raises(BertworksError, match="the checksum does not match") as caught:
        list(unpacked_values(tmp_path / "b"))
    assert "again" in str(caught.value.hint)


def test_a_block_is_checked_when_it_is_first_read(tmp_path: Path) -> None:
    path, numbers = tmp_path / "a.bin", np.arange(1000, dtype=np.uint16)
    path.write_bytes(b"head" + numbers.tobytes())
    sums = file_sums(path)[1]
    content = bytearray(path.read_bytes())
    content[4 + 2 * 600] ^= 1  # in block 2 of 4
    path.write_bytes(content)
    file = CheckedFile(path, sums, "get it again")
    array = CheckedArray(file, file.content[4:].view(np.uint16), 4)
    assert array[:500].tolist() == numbers[:500].tolist()
    assert array[800:].tolist() == numbers[800:].tolist()
    assert (array.shape, array.dtype, len(array)) == ((1000,), np.uint16, 1000)
    for read in (
        lambda: array[500:610],
        lambda: array[3],
        lambda: array[::-1],
        lambda: np.asarray(array),
        lambda: array == 3,
        lambda: array.max(),
        lambda: np.diff(array),
        lambda: array[[1, 2]],
    ):
        with pytest.raises(BertworksError, match="block 2 of 1 MiB") as caught:
            read()
        assert str(path) in str(caught.value.where)


@pytest.mark.parametrize(
    "change", [lambda content: content[:512], lambda content: content + b"x" * 600]
)
def test_a_file_with_more_or_fewer_blocks_is_refused(
    change: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    path = tmp_path / "a"
    path.write_bytes(bytes(1000))
    sums = file_sums(path)[1]
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(BertworksError, match="not what was written"):
        CheckedFile(path, sums, "get it again")


def test_changed_and_missing_files_of_a_manifest_are_named(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a" * 1000)
    (tmp_path / "b").write_bytes(b"b")
    digests = {name: file_sums(tmp_path / name)[0] for name in "ab"}
    sums = verify_files(tmp_path, digests, "write it again")
    assert {name: len(blocks) for name, blocks in sums.items()} == {"a": 16, "b": 8}
    (tmp_path / "b").write_bytes(b"c")
    with pytest.raises(BertworksError, match="sha256 differs") as caught:
        verify_files(tmp_path, digests, "write it again")
    assert caught.value.where == str(tmp_path / "b")
    (tmp_path / "a").unlink()
    with pytest.raises(BertworksError, match="the file is missing"):
        verify_files(tmp_path, digests, "write it again")


def test_the_hash_of_an_object_leaves_out_itself_and_the_order_of_names() -> None:
    digest = json_sha256({"a": 1, "b": [2]})
    assert digest == json_sha256({"b": [2], "a": 1, "sha256": "x"})
    assert digest != json_sha256({"a": 1, "b": [3]})


def test_an_array_is_written_block_by_block(tmp_path: Path) -> None:
    numbers = np.arange(30, dtype=np.int32).reshape(10, 3)
    with open_npy(tmp_path / "a.npy") as append:
        for block in np.split(numbers, [1, 4, 4]):
            append(block)
        assert not (tmp_path / "a.npy").exists()
    stored = np.load(tmp_path / "a.npy")
    assert stored.dtype == numbers.dtype
    assert stored.tolist() == numbers.tolist()
    write_npy(tmp_path / "b.npy", [numbers])
    assert (tmp_path / "b.npy").read_bytes() == (tmp_path / "a.npy").read_bytes()
