"""How long a search takes: exact, over 100,000 documents with vectors of 384, in an index of the
usual segments.

    python benchmarks/search.py [--documents 100000] [--queries 50] [--threads N] [--rounds 3]
    [--quick]

Texts and vectors are made up, for only their number matters. The model that makes the vector of a
query is `minilm`, and its time is shown separately. Each time is that of a whole `Index.search` for
ten documents, with rows read from disk. Next to it the time of the nearest vectors in memory alone:
in numpy, and in faiss where that is installed. All take turns; the table goes to
docs/concepts/performance.md.
"""

import argparse
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from provenance import provenance, publish

from bertworks.inference.embedder import normalized
from bertworks.io.file_job import ROWS_AT_ONCE
from bertworks.retrieval.index import Index


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=50)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--quick", action="store_true", help="does it run? few documents, nothing is kept"
    )
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    about, draw = provenance(("torch", "numpy")), random.Random(0)
    words = [f"word{n}" for n in range(20_000)]
    weights = [1 / (n + 1) for n in range(len(words))]
    with tempfile.TemporaryDirectory() as folder:
        documents = 1000 if a.quick else a.documents
        index = filled(
            Path(folder), documents, lambda n: " ".join(draw.choices(words, weights, k=n))
        )
        queries = [" ".join(draw.choices(words, weights, k=6)) for _ in range(a.queries)]
        calls: dict[str, Callable[[str], object]] = {
            "vector of the query": lambda query: index.embedder.embed([query])
        }
        for ranking in ("dense", "bm25", "hybrid"):
            calls[f"search, {ranking}"] = lambda query, ranking=ranking: index.search(
                query, 10, ranking=ranking
            )
        calls |= nearest(index, queries, documents, a.threads)
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(a.rounds):
            for name, call in calls.items():
                times[name] += timed(call, queries)
        segments = len(index.manifest.segments)
    rows = {
        name: {"p50": statistics.median(found), "p95": statistics.quantiles(found, n=20)[18]}
        for name, found in times.items()
    }
    lines = [
        f"| {documents:,} documents in {segments} segments, {a.threads} threads | p50 ms | p95 ms "
        "|",
        "|---|---|---|",
    ]
    lines += [
        f"| {name} | {found['p50']:.1f} | {found['p95']:.1f} |" for name, found in rows.items()
    ]
    versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    lines += [
        "",
        f"`{about['command']}` at {about['commit']}, {about['time'][:10]}; {about['cpu']}; "
        f"{versions}.",
    ]
    if not a.quick:
        publish("search", {**about, "rows": rows}, "\n".join(lines))
    print("\n".join(lines))


def nearest(
    index: Index, queries: list[str], documents: int, threads: int
) -> dict[str, Callable[[str], object]]:
    """The ten nearest of as many vectors in memory, the vector of the query being there already."""
    vectors = normalized(
        np.random.default_rng(0).standard_normal((documents, index.manifest.dimension), np.float32)
    )
    made = dict(zip(queries, index.embedder.embed(queries), strict=True))

    def in_numpy(query: str) -> object:
        scores = vectors @ made[query]
        some = np.argpartition(-scores, 10)[:10]
        return some[np.argsort(-scores[some])]

    found: dict[str, Callable[[str], object]] = {"vectors alone, numpy": in_numpy}
    with suppress(ImportError):
        import faiss

        faiss.omp_set_num_threads(threads)
        flat = faiss.IndexFlatIP(vectors.shape[1])
        flat.add(vectors)
        found["vectors alone, faiss, exact"] = lambda query: flat.search(made[query][None], 10)
    return found


def timed(call: Callable[[str], object], queries: list[str]) -> list[float]:
    """Milliseconds of each."""
    call(queries[0])  # files come into memory
    found = []
    for query in queries:
        start = time.perf_counter()
        call(query)
        found.append(1000 * (time.perf_counter() - start))
    return found


def filled(folder: Path, documents: int, text: Callable[[int], str]) -> Index:
    """An index of texts of 100 words, with vectors of no meaning."""
    index, numbers = Index.create(folder, "minilm"), np.random.default_rng(0)
    manifest = index.manifest
    for start in range(0, documents, ROWS_AT_ONCE):
        names = [str(n) for n in range(start, min(start + ROWS_AT_ONCE, documents))]
        rows = [{"id": name, "text": text(100), "fields": {}} for name in names]
        vectors = normalized(numbers.standard_normal((len(rows), manifest.dimension), np.float32))
        manifest = index.with_segment(manifest, rows, vectors)
    index.commit(manifest)
    return index


if __name__ == "__main__":
    main()
