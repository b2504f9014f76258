"""A file of texts -> a file of vectors, in the order of the rows; an interrupted command resumes.

- `text_columns`, `row_text`: the text of a row
- `embed_file`: the command
- `vector_job`: vectors in portions, also for an index
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bertworks.checkpoints.sentence_transformers import missing_prompts
from bertworks.datasets.reader import Row, RowReader, refuse_columns
from bertworks.datasets.schema import study
from bertworks.errors import BertworksError, expect, names_of, quoted
from bertworks.events import Event, JsonObject
from bertworks.inference.embedder import (
    Embedder,
    Moments,
    Vectors,
    Whitening,
    normalized,
    num_zero,
)
from bertworks.inference.engine import open_model
from bertworks.inference.predictor import COMPARED
from bertworks.io.arrays import write_npy
from bertworks.io.atomic_write import local_path
from bertworks.io.file_job import (
    FileJob,
    FileKind,
    Portion,
    RowFormat,
    compute_file,
    format_of,
    join_portions,
    kind_of,
    portions_of,
    row_portion,
    unpacked_values,
    write_rows,
)
from bertworks.io.inputs import IssueCounter
from bertworks.io.options import Bulk, ReadOptions
from bertworks.io.tables import (
    SAMPLE_ROWS,
    Data,
    as_json,
    as_text,
    choose_column,
    first_rows,
    nested_hint,
    rows_of_texts,
)
from bertworks.models.settings import Pooling
from bertworks.tasks.sequences import format_counts
from bertworks.training.device import PrecisionOption, fixed_machine, shared_machine

WITHOUT_VECTOR = "texts have no known token, and the vector 0"


def text_columns(reader: RowReader, names: str | Sequence[str]) -> tuple[str, ...]:
    """Return the columns of the text: `names`, or the inferred one.

    Raises:
        UsageError, BertworksError: no such column, or no column looks like text.
    """
    if names := names_of(names):
        return tuple(reader.find_column(name, "--text") for name in names)
    if len(reader.columns) == 1:
        return tuple(reader.columns)
    sample = [row.values for row in first_rows(reader.sample(SAMPLE_ROWS))]
    statistics = study(reader, len(sample))
    languages = [name for name in reader.columns if not statistics[name].holds_codes()]
    columns = {
        name: [values.get(name) for values in sample] for name in languages or reader.columns
    }
    name = choose_column(columns, reader.name, None, "--text")
    expect(
        not statistics[name].holds_codes(),
        f"{name!r} holds dates, ids or numbers, not texts: {columns[name][0]!r:.60}",
        where=reader.name,
        hint=f"name another column with --text; or this one, --text {quoted(name)}",
    )
    return (name,)


def reading_note(reader: RowReader, columns: Sequence[str], more: str) -> Event:
    """What is read of a file of texts, as a note."""
    unused = ", ".join(name for name in reader.columns if name not in columns)
    parts = (
        f"text: {', '.join(columns)}",
        reader.header_note,
        unused and f"not used: {unused}",
        more,
    )
    return Event("note", "; ".join(filter(None, parts)))


def row_text(row: Row, columns: Sequence[str], empty: IssueCounter) -> str:
    """Return the text of a row, its columns joined by a space.

    A row without text is counted in `empty` and gives "".

    Raises:
        BertworksError: a value is not text.
    """
    parts = [as_text(row.values.get(column)) for column in columns]
    if None in parts:
        column = columns[parts.index(None)]
        raise BertworksError(
            f"{column!r} holds {row.values[column]!r:.60}, which is not text",
            where=row.where,
            hint=nested_hint(column, row.values[column], "--text") or "use another column",
        )
    text = " ".join(part.strip() for part in parts if part and part.strip())
    if not text:
        empty.add(row.where)
    return text


StoredRow = tuple[int, Mapping[str, Any]]  # the number of a row in its file, from 1, and its fields


class TextRow(NamedTuple):
    """A row and its text.

    number: that of the row in the file, from 1. row: the fields that are stored next to the vector.
    """

    number: int
    row: Mapping[str, Any]
    text: str


def text_rows(
    reader: RowReader,
    columns: Sequence[str],
    empty: IssueCounter,
    row_format: RowFormat | None = None,
    new_columns: Sequence[str] = (),
) -> Iterator[TextRow]:
    """Yield the rows of a file, see `row_text`.

    Args:
        row_format: of the rows in a portion; None: their only field is `has_text`.
        new_columns: names that no row may have as fields.
    """
    for number, row in enumerate(reader, 1):
        refuse_columns(row, new_columns)
        text = row_text(row, columns, empty)
        fields = {"has_text": bool(text)} if row_format is None else row.written or row.values
        yield TextRow(number, fields, text)


def vectors_of_file(embedder: Embedder, path: str | Path) -> Iterator[Vectors]:
    """Yield the vectors of the texts of a file, in portions.

    Rows without text are left out.
    """
    reader = RowReader(path)
    rows = text_rows(reader, text_columns(reader, ()), IssueCounter())
    for texts in portions_of((row.text for row in rows), len):
        yield embedder.portion(list(filter(None, texts)))[0]


def embed_file(
    model: str | Path,
    data: Data,
    output: str | Path,
    *,
    text: str | Sequence[str] = (),
    pooling: Pooling | None = None,
    normalize: bool | None = None,
    max_length: int | None = None,
    windows: int = 0,
    whitening: Whitening = "none",
    learn_from: str | Path | None = None,
    device: str = "auto",
    precision: PrecisionOption = "auto",
    read: ReadOptions = ReadOptions(),
    kind: FileKind | None = None,
    guard_formulas: bool = False,
    bulk: Bulk = Bulk(),
) -> Iterator[Event]:
    """Write the vector of every row of a file, in order.

    The output is an array in .npy, else a column `embedding` next to those of the input. Call it
    again to resume after an interruption. The output appears when it is complete.

    Args:
        data: any file of rows, or of lines; "-" is standard input; rows in memory, see `finetune`;
            or a list of texts.
        text: columns, joined by a space; (): inferred.
        pooling, normalize, max_length, windows, precision: see `Embedder`.
        whitening: "center" subtracts the mean of all vectors; "whiten" also makes the covariance
            the identity.
        learn_from: a file of texts to compute that from; None: `data`.
        kind: the format of an output that is no .npy; None: that of its suffix, csv for "-".
        guard_formulas, bulk: see `predict_file`.

    Raises:
        BertworksError, UsageError: no such model or column, an unreadable row, an unknown kind of
            output.
    """
    output = local_path(output)
    if str(output).endswith(".npy"):
        kind = None
    else:
        kind = kind or kind_of(output, vectors=True)
    expect(kind != "conll", "CoNLL files cannot hold vectors", hint="use another format")
    open_embedder = partial(
        Embedder,
        open_model(model, device, embeds=True),
        pooling=pooling,
        normalize=normalize,
        max_length=max_length,
        windows=windows,
    )
    embedder = open_embedder(precision=precision)
    reader = RowReader(rows_of_texts(data, ["text"]), read)
    columns = text_columns(reader, text)
    yield reading_note(
        reader, columns, f"{embedder.settings.pooling} of {embedder.dimension} dimensions"
    )
    if prompts := missing_prompts(embedder.folder, embedder.settings):
        quoted_prompts = " or ".join(f'"{prompt}"' for prompt in prompts)
        yield Event(
            "note",
            f"the model card has texts begin with {quoted_prompts}, and no file of the folder says "
            "when: texts are read as they are",
        )
    if embedder.precision == "int8":
        yield _compare(embedder, open_embedder(precision="fp32"), reader, columns)
    row_format = None
    new_column = "embedding"
    if kind is not None:
        while new_column in reader.written_columns:
            new_column += "_"
        row_format = format_of(
            output,
            [*reader.written_columns, new_column],
            kind=kind,
            guard_formulas=guard_formulas,
        )
    reader.refuse_output(output)
    empty = IssueCounter()
    portion_format = row_format if whitening == "none" else None
    job, compute = vector_job(
        output,
        bulk,
        reader,
        embedder,
        {"model": str(model), "device": device},
        row_format=portion_format,
        command="embed",
        columns=columns,
    )

    def join(files: Sequence[Path]) -> str | None:
        if portion_format is not None:
            return join_portions(portion_format, output, files)
        no_rows = np.zeros((0, embedder.dimension), np.float32)  # the shape of a file without rows
        blocks: Iterator[Vectors] = chain(
            [no_rows], (vectors for _, vectors in map(rows_and_vectors, files))
        )
        if whitening != "none":
            sample: Iterator[Vectors] = (
                vectors[[fields["has_text"] for _, fields in rows]]
                for rows, vectors in map(rows_and_vectors, files)
            )
            if learn_from is not None:
                sample = vectors_of_file(embedder, learn_from)
            moments = Moments(embedder.dimension, sample)
            if moments.count:
                blocks = map(embedder.finish, map(moments.whitener(whitening), blocks))
        if row_format is None:
            write_npy(output, blocks)
            return None
        # Whitened vectors depend on all rows: no portion can hold them.
        rows = text_rows(reader, columns, IssueCounter(), row_format)
        formulas = IssueCounter()
        write_rows(
            output,
            row_format.columns,
            _rows_with_vectors(row_format, rows, chain.from_iterable(blocks)),
            kind=row_format.kind,
            formulas=formulas,
            guard_formulas=row_format.guard_formulas,
        )
        return row_format.formula_note(formulas)

    yield from compute_file(
        "embed",
        job,
        text_rows(reader, columns, empty, portion_format, [new_column] if row_format else ()),
        compute,
        join,
        notes=lambda: reader.events(empty, "get the vector of an empty text"),
        size=lambda row: len(row.text),
        results=f"vectors of {embedder.dimension}",
        describe=_describe_static if embedder.is_static else format_counts,
        count="without_vector" if embedder.is_static else "truncated",
        dimension=embedder.dimension,
        examples=lambda rows: embedder.examples(
            (f"{reader.name}: row {row.number}", row.text) for row in rows
        ),
    )


def _portion(
    embedder: Embedder,
    prompts: Sequence[str],
    row_format: RowFormat | None,
    rows: Sequence[TextRow],
) -> Portion:
    """Return the counts of truncated texts, and the content of a portion.

    Static vectors truncate no text: their count is that of the texts without a known token. The
    content is finished rows; without a format, it is a `StoredRow` for each row as JSON, and the
    vectors.
    """
    texts = [row.text for row in rows]
    prompt = embedder.settings.prompt(*prompts)
    vectors, truncation = embedder.embed_and_count(texts, prompt=prompt)
    counts = [num_zero(vectors)] if embedder.is_static else truncation.as_counts()
    if row_format is None:
        return counts, [
            as_json([(row.number, row.row) for row in rows]).encode(errors="surrogatepass"),
            vectors.tobytes(),
        ]
    finished = _rows_with_vectors(row_format, rows, vectors)
    return counts, row_portion(row_format, finished, rows[0].number)


def _describe_static(counts: Sequence[int]) -> str:
    return f"{counts[0]:,} {WITHOUT_VECTOR}"


def _rows_with_vectors(
    row_format: RowFormat, rows: Iterable[TextRow], vectors: Iterable[Any]
) -> Iterator[JsonObject]:
    """Rows with their vectors in the last column.

    Parquet has float32; other formats get the shortest digits that identify a float32.
    """
    column = row_format.columns[-1]
    for row, vector in zip(rows, vectors, strict=True):
        is_parquet = row_format.kind == "parquet"
        yield {**row.row, column: vector if is_parquet else [float(str(x)) for x in vector]}


def vector_maker(
    options: JsonObject,
    prompts: list[str],
    row_format: JsonObject | None,
    threads: int,
) -> tuple[JsonObject, Callable[[Sequence[TextRow]], Portion]]:
    """Return the `maker` of vectors, see `FileJob`. options: of the `Embedder`."""
    machine = fixed_machine(options["device"], threads)
    embedder = Embedder(**options)
    identity = {"model": embedder.fingerprint, "precision": embedder.precision, **machine}
    output_format = None if row_format is None else RowFormat(**row_format)
    return identity, partial(_portion, embedder, prompts, output_format)


def vector_job(
    output: Path,
    bulk: Bulk,
    reader: RowReader,
    embedder: Embedder,
    embedder_options: Mapping[str, str],
    *,
    prompts: Sequence[str] = (),
    row_format: RowFormat | None = None,
    **identity: Any,
) -> tuple[FileJob, Callable[[Sequence[TextRow]], Portion]]:
    """Return a job that computes the vectors of a file, and what computes a portion here.

    Args:
        embedder_options: the model and the device of the embedder, as the user named them.
        prompts: names of the prompt before the texts.
        row_format: of finished rows; None: a portion holds rows and vectors.
        identity: what the portions depend on besides.
    """
    identity |= {
        "data": reader.content_identity() if bulk.is_shared else reader.fingerprint(),
        "model": embedder.fingerprint,
        "precision": embedder.precision,
        "format": row_format and row_format.identity,
    }
    options = {
        "pooling": embedder.settings.pooling,
        "max_length": embedder.settings.max_length,
        "windows": embedder.windows,
        "normalize": embedder.normalize_option,
        **embedder_options,
        # "auto" is measured: other processes may choose another one
        "precision": embedder.precision,
    }
    job = FileJob(
        output,
        bulk,
        identity,
        "bertworks.inference.embed_file:vector_maker",
        [options, prompts, row_format and asdict(row_format)],
        **shared_machine(embedder_options["device"], bulk.is_shared),
    )
    return job, partial(_portion, embedder, prompts, row_format)


def rows_and_vectors(portion: Path) -> tuple[list[StoredRow], Vectors]:
    """Return the rows of a portion, and their vectors: float32 [rows, dimension]."""
    content, vectors = unpacked_values(portion)
    rows = json.loads(content)
    return rows, np.frombuffer(vectors, np.float32).reshape(len(rows), -1)


def _compare(
    embedder: Embedder, exact_embedder: Embedder, reader: RowReader, columns: Sequence[str]
) -> Event:
    """Return the difference of the first vectors to those in fp32."""
    rows = islice(text_rows(reader, columns, IssueCounter()), COMPARED)
    texts = [row.text for row in rows if row.text]
    vectors, exact_vectors = (normalized(each.embed(texts)) for each in (embedder, exact_embedder))
    cosines = (vectors * exact_vectors).sum(1) if texts else np.ones(1)
    least = float(cosines.min())
    mean = float(cosines.mean())
    text = (
        f"cosine with fp32 at least {least:.4f}, mean {mean:.4f}, for the first {len(texts)} texts"
    )
    fields = {"least_cosine": least, "mean_cosine": mean}
    return Event("note", f"{embedder.precision}: {text}", fields)
