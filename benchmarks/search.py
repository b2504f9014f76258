"""How long a search takes: exact, over 100,000 documents with vectors of 384, in an index of the usual segments.

    python benchmarks/search.py [--documents 100000] [--queries 50] [--threads N]

Texts and vectors are made up, for only their number matters; the model that makes the vector of a query is `minilm`,
and its time is told apart. Each time is that of a whole `Index.search` for ten documents, with rows read from disk.
"""

import argparse
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from bertworks.learn.whitening import normalized
from bertworks.text.lexical import hash_of, postings
from bertworks.use.embedder import AT_ONCE
from bertworks.use.index import Index
from bertworks.use.segments import write_manifest, write_segment


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=50)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    draw = random.Random(0)
    words = [f"word{n}" for n in range(20_000)]
    weights = [1 / (n + 1) for n in range(len(words))]
    with tempfile.TemporaryDirectory() as folder:
        index = filled(Path(folder), a.documents, lambda n: " ".join(draw.choices(words, weights, k=n)))
        queries = [" ".join(draw.choices(words, weights, k=6)) for _ in range(a.queries)]
        print(f"{len(index):,} documents in {len(index.manifest.segments)} segments, {a.threads} threads: milliseconds")
        show("vector of the query", queries, lambda query: index.embedder.embed([query]))
        for ranking in ("dense", "bm25", "hybrid"):
            show(ranking, queries, lambda query, ranking=ranking: index.search(query, 10, ranking=ranking))


def filled(folder: Path, documents: int, text: Callable[[int], str]) -> Index:
    """An index of texts of 100 words, with vectors of no meaning."""
    manifest, numbers = Index.create(folder, "minilm").manifest, np.random.default_rng(0)
    for start in range(0, documents, AT_ONCE):
        names = [str(n) for n in range(start, min(start + AT_ONCE, documents))]
        rows = [{"id": name, "text": text(100), "fields": {}} for name in names]
        vectors = normalized(numbers.standard_normal((len(rows), manifest.dimension), np.float32))
        keys = np.array([hash_of(name) for name in names], np.int64)
        segment = f"segment-{start}"
        write_segment(folder, segment, rows, vectors, keys, postings(row["text"] for row in rows))
        manifest = replace(manifest, segments={**manifest.segments, segment: ""})
    write_manifest(folder, manifest)
    return Index(folder)


def show(name: str, queries: list[str], ask: Callable[[str], object]) -> None:
    ask(queries[0])  # files come into memory
    seconds = []
    for query in queries:
        start = time.perf_counter()
        ask(query)
        seconds.append(time.perf_counter() - start)
    parts = statistics.quantiles(seconds, n=20)
    print(f"{name:<20} p50 {1000 * statistics.median(seconds):6.1f}   p95 {1000 * parts[18]:6.1f}")


if __name__ == "__main__":
    main()
