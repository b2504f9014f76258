"""A graph of neighbouring vectors (HNSW, Malkov and Yashunin 2018): the nearest are found without a look at all.

faiss computes it, an extra; some are missed. Not here: which vectors these are, and what is deleted (`index`).
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertworks.errors import BertworksError
from bertworks.text.atomic import replacing

FILE = "neighbours.faiss"
_LINKS, _WIDTH = 32, 128  # of each vector; the least number of candidates that are kept on the way


class Neighbours:
    """The graph that `write_neighbours` wrote in a folder, of `count` vectors.

    Raises:
        BertworksError: no such file, or one of other vectors; faiss is not installed.
    """

    def __init__(self, folder: Path, count: int, dimension: int):
        faiss, path = _faiss(), folder / FILE
        try:
            found = faiss.read_index(str(path)) if path.is_file() else None
        except RuntimeError:
            found = None
        if not isinstance(found, faiss.IndexHNSWFlat) or (found.ntotal, found.d) != (count, dimension):
            fix = f"make it again: bertworks index -o {folder} --approximate"
            raise BertworksError("this is no graph of these documents", where=str(path), fix=fix)
        self._graph: Any = found

    def __call__(self, queries: NDArray[np.float32], k: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Inner products and numbers [queries, k] of the nearest vectors; -1 where there are fewer."""
        self._graph.hnsw.efSearch = max(_WIDTH, k)
        return self._graph.search(queries, k)  # type: ignore[no-any-return]


def write_neighbours(folder: Path, vectors: Iterable[NDArray[np.float32]], dimension: int) -> None:
    """Writes the graph of all these vectors, which holds them as well.

    Raises:
        BertworksError: faiss is not installed; the disk is full.
    """
    faiss = _faiss()
    graph = faiss.IndexHNSWFlat(dimension, _LINKS, faiss.METRIC_INNER_PRODUCT)
    for part in vectors:
        graph.add(np.ascontiguousarray(part))
    with replacing(folder / FILE) as temporary:
        faiss.write_index(graph, str(temporary))


def _faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        what = f"approximate search needs what is not installed: {error}"
        raise BertworksError(what, fix='pip install "bertworks[faiss]"') from error
    return faiss
