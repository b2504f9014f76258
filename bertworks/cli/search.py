"""The commands `embed`, `index`, `search`, `evaluate sts` and `evaluate retrieval`: vectors of texts and search."""

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from bertworks.cli import console
from bertworks.errors import UsageError

Pooling = Annotated[
    Literal["mean", "cls", "max", "last-four"] | None,
    Parameter(help="How token vectors become one vector. Unset: as in the model's files, else the mean."),
]
MaxLength = Annotated[int | None, console.at_least(3, help="Maximum number of tokens. Unset: as in the model's files.")]
LearnFrom = Annotated[str | None, Parameter(help="Texts to compute centering and whitening from. Unset: the data.")]
Rerank = Annotated[str | None, Parameter(help="A model fine-tuned on pairs that reranks the first 50 documents.")]
Rows = "Rows or lines of text, in any format; - for standard input."
_SHOWN = 200  # characters of a text


def embed(
    model: console.Model,
    data: Annotated[str, console.stdin_or(help=Rows)],
    /,
    *,
    output: Annotated[str, console.stdin_or("--output", "-o")],
    text: console.TextColumns = None,
    pooling: Pooling = None,
    normalize: bool | None = None,
    max_length: MaxLength = None,
    whitening: Literal["none", "center", "whiten"] = "none",
    learn_from: LearnFrom = None,
    quoting: console.Quoting = "auto",
    device: console.Device = "auto",
    precision: console.InferencePrecision = "auto",
    as_json: console.Json = False,
) -> None:
    """Write the vector of every row, in order: an array in .npy, else a column next to those of the input.

    Run the same command again to resume. The output appears when it is complete.

    Args:
        output: The output file: .npy, .parquet, .jsonl, ...
        normalize: Vectors of length 1. Unset: as in the model's files.
        whitening: center: subtract the mean of all vectors. whiten: also make the covariance the identity.
    """
    from bertworks.inference.embed import embed_file

    events = embed_file(
        model, data, output, text=text or [], pooling=pooling, normalize=normalize, max_length=max_length,
        whitening=whitening, learn_from=learn_from, quoting=quoting, device=device, precision=precision,
    )  # fmt: skip
    console.show_events(events, as_json=as_json and output != "-", results=output != "-")


def index(
    documents: Annotated[str | None, console.stdin_or(help=Rows)] = None,
    /,
    *,
    output: console.Output,
    model: str | None = None,
    text: console.TextColumns = None,
    identity: Annotated[str | None, Parameter(name="--id")] = None,
    pooling: Pooling = None,
    max_length: MaxLength = None,
    delete: Annotated[list[str] | None, console.repeatable()] = None,
    compact: Annotated[bool, console.flag()] = False,
    approximate: Annotated[bool, console.flag()] = False,
    quoting: console.Quoting = "auto",
    device: console.Device = "auto",
    as_json: console.Json = False,
) -> None:
    """Create an index of documents, add documents, or delete some.

    A new row replaces a document with the same id. Run the same command again to resume.

    Args:
        model: Unset: the model of the index; minilm for a new index.
        identity: Column of the row ids. Unset: inferred.
        delete: Id of a document to delete. Repeatable.
        compact: Remove deleted documents from disk.
        approximate: Build the graph for approximate search (needs faiss).
    """
    from bertworks.retrieval.index import Index, index_file

    if documents is None and not (delete or compact or approximate):
        raise UsageError("nothing to do", hint="name a file of documents, or give --delete, --compact or --approximate")
    if documents is not None:
        events = index_file(
            documents, output, model=model, text=text or [], identity=identity, pooling=pooling,
            max_length=max_length, device=device, quoting=quoting,
        )  # fmt: skip
        console.show_events(events, as_json=as_json)
    if delete:
        count = Index(output).delete(delete)
        console.emit({"deleted": count}) if as_json else console.say(f"deleted {count:,} of {len(delete):,}")
    if compact:
        Index(output).compact()
    if approximate:
        recall = Index(output).build_graph()
        line = f"the graph finds {recall:.1%} of the ten nearest documents, measured with 100 documents"
        console.emit({"recall": recall}) if as_json else console.say(line)


def search(
    folder: Path,
    query: str,
    /,
    *,
    count: Annotated[int, console.at_least(1, "--count", "-k")] = 10,
    ranking: Literal["hybrid", "dense", "bm25"] = "hybrid",
    rerank: Rerank = None,
    approximate: Annotated[bool, console.flag()] = False,
    model: str | None = None,
    device: console.Device = "auto",
    as_json: console.Json = False,
) -> None:
    """Find the best documents of an index for a query. With --json each is a JSON object on a line.

    Args:
        folder: The folder of an index.
        query: The query.
        count: Number of documents.
        ranking: Rank by vectors (dense), by words (bm25), or by both.
        approximate: Search with the graph from index --approximate.
        model: Path of the index's model, if it has moved.
    """
    from bertworks.retrieval.index import Index

    opened = Index(folder, model=model, device=device)
    hits = opened.search(query, count, ranking=ranking, rerank=rerank, approximate=approximate)
    if not hits:  # with bm25, or in an empty index
        console.say("nothing found")
    for hit in hits:
        if as_json:
            console.emit(hit)
        else:
            text = " ".join(hit["text"].split())
            print(f"{hit['score']:.3f}  {hit['id']}  {text if len(text) <= _SHOWN else text[: _SHOWN - 3] + '...'}")


def sts(
    model: console.Model,
    data: str,
    /,
    *,
    pooling: Pooling = None,
    learn_from: LearnFrom = None,
    as_json: console.Json = False,
) -> None:
    """Correlation of cosine similarity with human scores: plain, centered and whitened.

    Args:
        data: Pairs of texts with a similarity score.
    """
    from bertworks.evaluation.evaluate import evaluate_sts

    result = evaluate_sts(model, data, pooling=pooling, learn_from=learn_from)
    _show_figures(result, ("none", "center", "whiten"), as_json)


def retrieval(
    *,
    data: str,
    model: console.Model = "minilm",
    pooling: Pooling = None,
    max_length: MaxLength = None,
    rerank: Rerank = None,
    as_json: console.Json = False,
) -> None:
    """nDCG, average precision and recall of search by vectors, by words and by both.

    Args:
        data: A test collection: a folder in the layout of TREC or BEIR.
    """
    from bertworks.evaluation.retrieval import evaluate_retrieval

    events = evaluate_retrieval(data, model, pooling=pooling, max_length=max_length, rerank=rerank)
    last = console.show_events(events, results=False)
    assert last is not None
    _show_figures(last.fields, ("dense", "bm25", "hybrid", "reranked"), as_json)


def _show_figures(result: dict[str, Any], names: tuple[str, ...], as_json: bool) -> None:
    if as_json:
        console.emit(result)
        return
    counts = "  ".join(f"{value:,} {name}" for name, value in result.items() if isinstance(value, int))
    shown = ((name, "  ".join(f"{k} {v:.4f}" for k, v in result[name].items())) for name in names if name in result)
    print(f"{counts}\n{console.table(shown)}")
