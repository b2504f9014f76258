"""Arrays on disk: .npy files, and memory-mapped files that are checked when they are read.

- `open_npy`, `write_npy`: arrays of any size, written block by block
- `file_sums`, `verify_files`: the hashes of the files that a manifest names
- `CheckedFile`, `CheckedArray`: files of shards and indexes; each block is compared with its CRC-32
  in the manifest when it is first read
"""

import hashlib
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import NDArray

from bertworks.errors import require
from bertworks.io.atomic_write import LFS_POINTER, refuse_lfs_pointer, replacing

_BLOCK = 1 << 20  # bytes with one CRC-32


def file_sums(path: str | Path) -> tuple[str, str]:
    """Return the sha256 of a file, and the CRC-32 of each block of 1 MiB.

    Both are hexadecimal; a CRC-32 has 8 digits.
    """
    digest = hashlib.sha256()
    sums: list[str] = []
    with Path(path).open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            sums.append(f"{zlib.crc32(block):08x}")
    return digest.hexdigest(), "".join(sums)


def verify_files(folder: Path, files: Mapping[str, str], hint: str) -> dict[str, str]:
    """Compare files with their sha256, which reads all of them.

    Returns the CRC-32 of their blocks (`file_sums`).

    Args:
        files: sha256 by path inside the folder.
        hint: how to make the files again.

    Raises:
        BertworksError: a file is missing or has another content.
    """
    sums: dict[str, str] = {}
    for name, expected in files.items():
        path = folder / name
        require(path.is_file(), "damaged: the file is missing", path, hint)
        digest, sums[name] = file_sums(path)
        require(digest == expected, "damaged: its content has changed (sha256 differs)", path, hint)
    return sums


class CheckedFile:
    """A memory-mapped file.

    `check` compares each block with its CRC-32, once.

    Args:
        sums: from `file_sums`.
        hint: how to make the file again.

    Raises:
        BertworksError: the file is missing, empty, or longer or shorter than it was.
    """

    def __init__(self, path: Path, sums: str, hint: str):
        self.path = path
        self._sums = sums
        self._hint = hint
        if path.is_file():
            with path.open("rb") as file:
                refuse_lfs_pointer(file.read(len(LFS_POINTER)), path)
        size = path.stat().st_size if path.is_file() else 0
        blocks = -(-size // _BLOCK)
        fits = size > 0 and len(sums) == 8 * blocks
        require(fits, f"damaged: {size:,} bytes are not what was written", path, hint)
        self.content = np.asarray(np.memmap(path, np.uint8, "r"))  # indexing a memmap is slow
        self._unread = bytearray(b"\1") * blocks

    def check(self, start: int, end: int) -> None:
        """Check the blocks of these bytes.

        Raises:
            BertworksError: a block is not as it was written.
        """
        first = start // _BLOCK
        last = -(-end // _BLOCK)
        block = self._unread.find(1, first, last)
        while block >= 0:
            checksum = zlib.crc32(self.content[block * _BLOCK : (block + 1) * _BLOCK].data)
            expected = self._sums[8 * block : 8 * block + 8]
            require(
                f"{checksum:08x}" == expected,
                f"damaged: block {block} of 1 MiB is not as it was written (CRC-32 differs)",
                self.path,
                self._hint,
            )
            self._unread[block] = 0
            block = self._unread.find(1, block, last)


class CheckedArray(NDArrayOperatorsMixin):
    """An array within a `CheckedFile`: what is read is checked before.

    It has the operators and methods of an array; all but slices check it as a whole.

    Args:
        array: the bytes of the file from `offset` on.
    """

    def __init__(self, file: CheckedFile, array: NDArray[Any], offset: int):
        self.file = file
        self._array = array
        self._offset = offset
        self.dtype = array.dtype
        self.shape = array.shape
        self._row_bytes = array.nbytes // max(1, len(array))

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, key: Any) -> Any:
        is_range = isinstance(key, slice) and key.step in (None, 1)
        start, end, _ = key.indices(len(self)) if is_range else (0, len(self), 1)
        self.file.check(
            self._offset + start * self._row_bytes, self._offset + end * self._row_bytes
        )
        return self._array[key]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self[:], dtype, copy=copy)

    def __array_ufunc__(self, function: Any, method: str, *inputs: Any, **options: Any) -> Any:
        inputs = tuple(
            np.asarray(value) if isinstance(value, CheckedArray) else value for value in inputs
        )
        return getattr(function, method)(*inputs, **options)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self[:], name)


@contextmanager
def open_npy(path: str | Path) -> Iterator[Callable[[NDArray[Any]], None]]:
    """Yield a function that appends a block of rows to an .npy file, which is written atomically.

    All blocks have one type and shape.
    """
    rows = 0
    with replacing(path) as temporary, temporary.open("wb") as file:

        def append(block: NDArray[Any]) -> None:
            nonlocal rows
            rows += len(block)
            header = {
                "descr": block.dtype.str,
                "fortran_order": False,
                "shape": (rows, *block.shape[1:]),
            }
            # the header has the same length for any number of rows: numpy reserves the space
            file.seek(0)
            npy.write_array_header_1_0(file, header)
            file.seek(0, os.SEEK_END)
            file.write(block.tobytes())

        yield append


def write_npy(path: str | Path, blocks: Iterable[NDArray[Any]]) -> None:
    """Write an .npy file atomically from blocks of its rows, at least one.

    One block is in memory at a time.
    """
    with open_npy(path) as append:
        for block in blocks:
            append(block)
