"""`bertworks embed`, `index` and `search`, and how well they do: texts as vectors, documents found by them."""

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from bertworks.cli.console import Json, Rounding, emit, say, show_events, table
from bertworks.cli.finetune import Quotes
from bertworks.cli.pretrain import Device
from bertworks.errors import UsageError
from bertworks.io.text_files import STDIN

Model = Annotated[str, Parameter(help="A model folder, minilm, or the name of a model on the Hugging Face hub.")]
Pooling = Annotated[
    Literal["mean", "cls", "max", "last-four"] | None,
    Parameter(help="How tokens become one vector. Unset: as the model's files say, else the mean."),
]
MaxLength = Annotated[
    int | None, Parameter(validator=Number(gte=3), help="Tokens that are read. Unset: as the model's files say.")
]
TextColumns = Annotated[
    list[str] | None, Parameter(name="--text", negative="", help="Column of the text; repeatable. Unset: guessed.")
]
LearnFrom = Annotated[str | None, Parameter(help="Texts to learn centre and whitening from. Unset: the data itself.")]
Rerank = Annotated[str | None, Parameter(help="A model fine-tuned on pairs, which orders the first 50 anew.")]
_SHOWN = 200  # characters of a text


def embed(
    model: Model,
    data: Annotated[str, Parameter(help="Rows or lines of text, in any format; - for standard input.")],
    /,
    *,
    output: Annotated[str, Parameter(name=["--output", "-o"], help="The file to write: .npy, .parquet, .jsonl, ...")],
    text: TextColumns = None,
    pooling: Pooling = None,
    normalize: Annotated[bool | None, Parameter(help="Vectors of length 1. Unset: as the model's files say.")] = None,
    max_length: MaxLength = None,
    whitening: Annotated[
        Literal["none", "center", "whiten"],
        Parameter(help="Take the mean of all vectors away; or make all directions equally wide as well."),
    ] = "none",
    learn_from: LearnFrom = None,
    quoting: Quotes = "auto",
    device: Device = "auto",
    precision: Rounding = "auto",
    as_json: Json = False,
) -> None:
    """The vector of every row, in its order: an array in .npy, else a column beside the row's own.

    A stopped command goes on where it was when it is typed again; the output appears when it is whole.
    """
    from bertworks.inference.embed import embed_file

    data, target = ("-" if word == STDIN else word for word in (data, output))
    events = embed_file(
        model, data, target, text=text or [], pooling=pooling, normalize=normalize, max_length=max_length,
        whitening=whitening, learn_from=learn_from, quoting=quoting, device=device, precision=precision,
    )  # fmt: skip
    show_events(events, as_json=as_json and target != "-", results=target != "-")


def index(
    documents: Annotated[str | None, Parameter(help="Rows or lines of text, in any format; - for stdin.")] = None,
    /,
    *,
    output: Annotated[Path, Parameter(name=["--output", "-o"], help="The folder of the index.")],
    model: Annotated[str | None, Parameter(help="Unset: that of the index; minilm for a new one.")] = None,
    text: TextColumns = None,
    identity: Annotated[
        str | None, Parameter(name="--id", help="Column with a name for each row. Unset: guessed.")
    ] = None,
    pooling: Pooling = None,
    max_length: MaxLength = None,
    delete: Annotated[list[str] | None, Parameter(negative="", help="Id of a document to delete; repeatable.")] = None,
    compact: Annotated[
        bool, Parameter(negative="", show_default=False, help="Take deleted documents off the disk.")
    ] = False,
    approximate: Annotated[
        bool, Parameter(negative="", show_default=False, help="Make the graph for approximate search (needs faiss).")
    ] = False,
    quoting: Quotes = "auto",
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Make an index of documents, add documents to one, or delete some.

    A row whose id is there already takes the place of the other. A stopped command goes on where it was when it is
    typed again.
    """
    from bertworks.retrieval.index import Index, index_file

    if documents is None and not (delete or compact or approximate):
        raise UsageError("nothing to do", hint="name a file of documents, or give --delete, --compact or --approximate")
    if documents is not None:
        documents = "-" if documents == STDIN else documents
        show_events(
            index_file(
                documents, output, model=model, text=text or [], identity=identity, pooling=pooling,
                max_length=max_length, device=device, quoting=quoting,
            ),
            as_json=as_json,
        )  # fmt: skip
    if delete:
        count = Index(output).delete(delete)
        emit({"deleted": count}) if as_json else say(f"deleted {count:,} of {len(delete):,}")
    if compact:
        Index(output).compact()
    if approximate:
        recall = Index(output).build_graph()
        told = f"a graph that finds {recall:.1%} of the ten nearest of 100 documents"
        emit({"recall": recall}) if as_json else say(told)


def search(
    folder: Annotated[Path, Parameter(help="The folder of an index.")],
    query: Annotated[str, Parameter(help="What is searched for.")],
    /,
    *,
    count: Annotated[int, Parameter(name=["--count", "-k"], validator=Number(gte=1), help="Documents to show.")] = 10,
    ranking: Annotated[
        Literal["hybrid", "dense", "bm25"], Parameter(help="By the cosine of vectors, by words, or by both.")
    ] = "hybrid",
    rerank: Rerank = None,
    approximate: Annotated[
        bool, Parameter(negative="", show_default=False, help="By the graph that index --approximate made.")
    ] = False,
    model: Annotated[str | None, Parameter(help="Where the index's model is now. Unset: where it was.")] = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """The best documents of an index for a query. With --json each is a JSON object on a line."""
    from bertworks.retrieval.index import Index

    found = Index(folder, model=model, device=device)
    hits = found.search(query, count, ranking=ranking, rerank=rerank, approximate=approximate)
    if not hits:  # by words alone, or in an index without documents
        say("nothing found")
    for hit in hits:
        if as_json:
            emit(hit)
        else:
            text = " ".join(hit["text"].split())
            print(f"{hit['score']:.3f}  {hit['id']}  {text if len(text) <= _SHOWN else text[: _SHOWN - 3] + '...'}")


def sts(
    model: Model,
    data: Annotated[str, Parameter(help="Pairs of texts with a number for their likeness.")],
    /,
    *,
    pooling: Pooling = None,
    learn_from: LearnFrom = None,
    as_json: Json = False,
) -> None:
    """How well the cosine of vectors agrees with people: correlations, as they are, centred and whitened."""
    from bertworks.evaluation.evaluate import evaluate_sts

    result = evaluate_sts(model, data, pooling=pooling, learn_from=learn_from)
    _show_figures(result, ("none", "center", "whiten"), as_json)


def retrieval(
    *,
    data: Annotated[str, Parameter(help="A test collection: a folder in the layout of TREC or BEIR.")],
    model: Model = "minilm",
    pooling: Pooling = None,
    max_length: MaxLength = None,
    rerank: Rerank = None,
    as_json: Json = False,
) -> None:
    """How well documents are found: nDCG, average precision and recall by vectors, by words and by both."""
    from bertworks.evaluation.retrieval import evaluate_retrieval

    events = evaluate_retrieval(data, model, pooling=pooling, max_length=max_length, rerank=rerank)
    last = show_events(events, results=False)
    assert last is not None
    _show_figures(last.fields, ("dense", "bm25", "hybrid", "reranked"), as_json)


def _show_figures(result: dict[str, Any], names: tuple[str, ...], as_json: bool) -> None:
    if as_json:
        emit(result)
        return
    counts = "  ".join(f"{value:,} {name}" for name, value in result.items() if isinstance(value, int))
    shown = ((name, "  ".join(f"{k} {v:.4f}" for k, v in result[name].items())) for name in names if name in result)
    print(f"{counts}\n{table(shown)}")
