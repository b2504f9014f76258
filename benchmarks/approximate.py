"""Does faiss pay? Milliseconds of a query and share of the ten true neighbours found, next to exact
search.

    python benchmarks/approximate.py [--vectors FILE.npy] [--documents 100000] [--threads N]

Without vectors (`bertworks embed ... -o FILE.npy`) they are made up: of 32 directions that matter
and noise in all 384, which is kinder to approximate search than noise alone, and less kind than
many real texts. Times are of the processor, so that other programs do not count. Needs faiss-cpu.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import faiss
import numpy as np
from numpy.typing import NDArray

from bertworks.inference.embedder import normalized
from bertworks.retrieval.ranking import top_k

QUERIES, K = 100, 10
Search = Callable[[NDArray[np.float32]], NDArray[np.int64]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--vectors", type=Path)
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    a = parser.parse_args()
    faiss.omp_set_num_threads(a.threads)
    vectors = normalized(np.load(a.vectors) if a.vectors else made_up(a.documents + QUERIES))
    documents, queries = np.ascontiguousarray(vectors[QUERIES:]), vectors[:QUERIES]
    count, dimension = documents.shape
    print(f"{count:,} vectors of {dimension}, {a.threads} threads")

    truth = show("numpy, exact", queries, lambda query: top_k(documents @ query, K), 0.0)
    kinds = [
        ("flat", "Flat", {}),
        *((f"IVF1024, nprobe {n}", "IVF1024,Flat", {"nprobe": n}) for n in (8, 32)),
    ]
    kinds += [(f"HNSW32, efSearch {n}", "HNSW32,Flat", {"efSearch": n}) for n in (32, 128)]
    made: dict[str, tuple[faiss.Index, float]] = {}
    for name, description, settings in kinds:
        if description not in made:
            start = time.process_time()
            index = faiss.index_factory(dimension, description, faiss.METRIC_INNER_PRODUCT)
            index.train(documents[: 40 * 1024])
            index.add(documents)
            made[description] = index, time.process_time() - start
        index, seconds = made[description]
        for setting, value in settings.items():
            faiss.ParameterSpace().set_index_parameter(index, setting, value)
        show(
            f"faiss, {name}",
            queries,
            lambda query, index=index: index.search(query[None], K)[1][0],
            seconds,
            truth,
        )


def made_up(count: int) -> NDArray[np.float32]:
    draw = np.random.default_rng(0)
    directions = draw.standard_normal((32, 384), np.float32)
    return draw.standard_normal((count, 32), np.float32) @ directions + draw.standard_normal(
        (count, 384), np.float32
    )


def show(
    name: str,
    queries: NDArray[np.float32],
    search: Search,
    build: float,
    truth: list[set[int]] | None = None,
) -> list[set[int]]:
    """A line; the neighbours of each query."""
    search(queries[0])
    found, seconds = [], []
    for query in queries:
        start = time.process_time()
        numbers = search(query)
        seconds.append(time.process_time() - start)
        found.append(set(numbers.tolist()))
    recall = statistics.mean(
        len(one & other) / K for one, other in zip(found, truth or found, strict=True)
    )
    print(
        f"{name:<24} p50 {1000 * statistics.median(seconds):6.2f} ms   recall {recall:.3f}   "
        f"built in {build:6.1f} s",
        flush=True,
    )
    return found


if __name__ == "__main__":
    main()
