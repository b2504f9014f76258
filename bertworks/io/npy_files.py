"""Arrays of any size as .npy files, written block by block.

A file appears when it is complete.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numpy.lib import format as npy
from numpy.typing import NDArray

from bertworks.io.atomic_write import replacing


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
