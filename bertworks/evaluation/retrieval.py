"""How well documents are found: by vectors, by words, by both, and with a second model that reads again."""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import get_args

import numpy as np

from bertworks.datasets.retrieval_collection import Collection, read_collection
from bertworks.events import Event
from bertworks.inference.embed import AT_ONCE
from bertworks.models.heads import Pooling
from bertworks.retrieval.index import RERANKED, Index, Ranking
from bertworks.retrieval.ranking import Reranker, Scores, average_precision, ndcg, recall, top_k

_DEPTH = 1000  # documents of a ranking that are judged, as trec_eval does it


def evaluate_retrieval(
    data: str | Path,
    model: str | Path = "minilm",
    *,
    pooling: Pooling | None = None,
    max_length: int | None = None,
    rerank: str | Path | None = None,
    device: str = "auto",
) -> Iterator[Event]:
    """nDCG@10, mean average precision and recall over all judged queries of a test collection, for each ranking. Of
    the event "done" the fields are `dense`, `bm25`, `hybrid` and, with `rerank`, `reranked`: figures by name.

    Args:
        data: a folder in the layout of TREC or BEIR (`rows.judged`).
        model, pooling, max_length: see `Embedder`.
        rerank: a model fine-tuned on pairs, which orders the first 50 of the hybrid ranking anew.

    Raises:
        BertworksError, UsageError: no such collection or model.
    """
    collection = read_collection(data)
    if collection.missing.count:
        told = f"judgements of what is not there, which do not count: {collection.missing}"
        yield Event("note", told, {"missing": collection.missing.count})
    second = None if rerank is None else Reranker(rerank, device=device)
    names, texts = list(collection.documents), [text or "-" for text in collection.documents.values()]
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        index = Index.create(Path(folder) / "i", model, pooling=pooling, max_length=max_length, device=device)
        for start in range(0, len(names), AT_ONCE):
            portion = slice(start, start + AT_ONCE)
            index.add(texts[portion], names[portion])
            amount = min(start + AT_ONCE, len(names))
            fields = {"stage": "index", "what": "documents", "amount": amount}
            yield Event("stage", f"index: {amount:,} of {len(names):,} documents", fields)
        queries = list(collection.queries.values())
        for ranking in get_args(Ranking):
            found[ranking] = _figures(collection, names, index.scores(queries, ranking))
        if second is not None:
            scores = _again(second, queries, texts, index.scores(queries, "hybrid"))
            found["reranked"] = _figures(collection, names, scores)
    text = f"{len(queries):,} queries, {len(names):,} documents"
    yield Event("done", text, {"queries": len(queries), "documents": len(names), **found})


def _figures(collection: Collection, names: Sequence[str], scores: Iterator[Scores]) -> dict[str, float]:
    rows = []
    for grades, one in zip(collection.grades.values(), scores, strict=True):
        ranking = [names[number] for number in top_k(one, _DEPTH)]
        rows.append((
            ndcg(ranking, grades, 10), average_precision(ranking, grades),
            recall(ranking, grades, 10), recall(ranking, grades, 100),
        ))  # fmt: skip
    means = np.mean(rows, axis=0).tolist()
    return dict(zip(("ndcg@10", "map", "recall@10", "recall@100"), means, strict=True))


def _again(
    second: Reranker, queries: Sequence[str], texts: Sequence[str], scores: Iterator[Scores]
) -> Iterator[Scores]:
    """The first documents in the order of the second model, before all others, which keep theirs."""
    for query, first in zip(queries, scores, strict=True):
        numbers = top_k(first, RERANKED)
        judged = second(query, [texts[number] for number in numbers])
        first[numbers] = judged - judged.min(initial=0) + first[np.isfinite(first)].max(initial=0) + 1
        yield first
