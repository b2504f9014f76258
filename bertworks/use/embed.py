"""A file of texts -> a file of vectors, of any size, in its order and with nothing lost. Not here: how a text becomes a
vector (`embedder`)."""

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from bertworks.errors import BertworksError, UsageError
from bertworks.files.opened import opened
from bertworks.learn.machine import Choice
from bertworks.learn.whitening import Moments, Whitener, Whitening, normalized
from bertworks.nn.pooling import Pooling
from bertworks.rows.reader import Quoting, RowReader
from bertworks.rows.writer import FileKind, kind_of, refuse_same, write_rows
from bertworks.runs.events import Event
from bertworks.text.atomic import replacing
from bertworks.text.streams import Tally
from bertworks.use.embedder import AT_ONCE, Embedder, Vectors, portions, row_text, text_columns, vectors_of_file
from bertworks.use.spool import Spool, beside

_COLUMN = "embedding"
_COMPARED = 64  # texts, whose exact vectors are made as well


def embed_file(
    model: str | Path,
    data: str | Path,
    output: str | Path,
    *,
    text: Sequence[str] = (),
    pooling: Pooling | None = None,
    normalize: bool | None = None,
    max_length: int | None = None,
    whitening: Whitening = "none",
    learn_from: str | Path | None = None,
    device: str = "auto",
    precision: Choice = "auto",
    quoting: Quoting = "auto",
) -> Iterator[Event]:
    """The vector of every row of a file, in its order: an array in .npy, else a column `embedding` beside its own.
    Stopped and called again it goes on where it was; the output appears when it is whole.

    Args:
        data: any file of rows, or of lines; "-" is standard input.
        text: columns, joined by a space; (): guessed.
        pooling, normalize, max_length, precision: see `Embedder`.
        whitening: "center" takes the mean of all vectors away; "whiten" makes all directions equally wide as well.
        learn_from: a file of texts from which that is learned; None: from `data` itself.

    Raises:
        BertworksError, UsageError: no such model or column, a row that cannot be read, an output of no known kind.
    """
    is_array = str(output).endswith(".npy")
    kind = None if is_array else kind_of(output, vectors=True)
    make = partial(Embedder, opened(model, device), pooling=pooling, normalize=normalize, max_length=max_length)
    embedder = make(precision=precision)
    reader = RowReader(data, quoting=quoting)
    refuse_same(reader, output)
    if kind == "conll":
        raise UsageError("CoNLL columns hold words and their tags, and no vectors", fix="write another kind")
    columns = text_columns(reader, text)
    yield Event("note", f"text: {', '.join(columns)}; {embedder.settings.pooling} of {embedder.dimension} dimensions")
    with Spool(beside(output), _fingerprint(embedder, reader, columns)) as spool:
        if spool.count:
            yield Event("note", f"going on after {spool.count:,} rows", {"resumed_row": spool.count})
        empty = Tally()
        if embedder.precision == "int8":
            yield _cost(embedder, make(precision="fp32"), reader, columns)
        yield from _fill(spool, embedder, reader, columns, empty)
        yield from (Event("note", note) for note in reader.notes)
        if empty.count:
            yield Event("note", f"rows without text, which have the vector of no text: {empty}", {"empty": empty.count})
        whitener = _whitener(embedder, spool, whitening, learn_from)
        written = _spooled(embedder, spool, whitener)
        if kind is None:
            _write_array(Path(output), written, spool.count, embedder.dimension)
        else:
            _write_columns(output, kind, reader, written)
        spool.remove()
        note = f"; {spool.truncated:,} were too long and were cut" if spool.truncated else ""
        fields = {"output": str(output), "rows": spool.count, "truncated": spool.truncated}
        told = f"{output}: {spool.count:,} vectors of {embedder.dimension}{note}"
        yield Event("done", told, fields | {"dimension": embedder.dimension})


def _cost(ours: Embedder, exact: Embedder, reader: RowReader, columns: Sequence[str]) -> Event:
    """How near the first vectors are to exact ones."""
    read = (row_text(row, columns, Tally()) for row in islice(reader, _COMPARED))
    texts = [text for text in read if text]
    a, b = (normalized(embedder.embed(texts)) for embedder in (ours, exact))
    cosines = (a * b).sum(1) if texts else np.ones(1)
    least, mean = float(cosines.min()), float(cosines.mean())
    told = f"cosines of {least:.4f} or more, {mean:.4f} on average, with the first {len(texts)} vectors in fp32"
    return Event("note", f"{ours.precision}: {told}", {"least_cosine": least, "mean_cosine": mean})


def _fill(spool: Spool, embedder: Embedder, reader: RowReader, columns: Sequence[str], empty: Tally) -> Iterator[Event]:
    """Embeds what is not in the spool."""
    rest = iter(reader)
    for row in islice(rest, spool.count):  # counted as if nobody had stopped
        row_text(row, columns, empty)
    for rows in portions(rest):
        texts = [row_text(row, columns, empty) for row in rows]
        vectors, cut = embedder.portion(texts)
        spool.add([
            {"vector": base64.b64encode(vector.tobytes()).decode(), "truncated_tokens": n, "empty": not text}
            for vector, n, text in zip(vectors, cut, texts, strict=True)
        ])  # fmt: skip
        amount = {"stage": "embed", "what": "rows", "amount": spool.count}
        yield Event("stage", f"embed: {spool.count:,} rows", amount)


def _stored(spool: Spool, dimension: int, *, of_texts: bool = False) -> Iterator[Vectors]:
    """The vectors of a spool, in portions. of_texts: without those of rows that have no text."""
    answers = (answer for answer in spool.read() if not (of_texts and answer["empty"]))
    while group := list(islice(answers, AT_ONCE)):
        raw = b"".join(base64.b64decode(answer["vector"]) for answer in group)
        yield np.frombuffer(raw, np.float32).reshape(-1, dimension)


def _whitener(embedder: Embedder, spool: Spool, kind: Whitening, path: str | Path | None) -> Whitener | None:
    if kind == "none":
        return None
    moments = Moments(embedder.dimension)
    own = _stored(spool, embedder.dimension, of_texts=True)
    for vectors in own if path is None else vectors_of_file(embedder, path):
        moments.add(vectors)
    if kind == "whiten" and moments.count and not moments.suffices:
        raise BertworksError(
            f"whitening is learned from more vectors than these have dimensions: {moments.count:,} of "
            f"{embedder.dimension}", fix="--learn-from a file with more texts, or --whitening center",
        )  # fmt: skip
    return moments.whitener(kind) if moments.count else None


def _spooled(embedder: Embedder, spool: Spool, whitener: Whitener | None) -> Iterator[Vectors]:
    for vectors in _stored(spool, embedder.dimension):
        yield vectors if whitener is None else embedder.finish(whitener(vectors))


def _write_array(path: Path, portions: Iterable[Vectors], count: int, dimension: int) -> None:
    with replacing(path) as temporary, temporary.open("wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (count, dimension)}
        np.lib.format.write_array_header_1_0(file, header)
        for vectors in portions:
            file.write(vectors.astype("<f4").tobytes())


def _write_columns(output: str | Path, kind: FileKind, reader: RowReader, portions: Iterable[Vectors]) -> None:
    column = _COLUMN
    while column in reader.written_columns:
        column += "_"
    single = chain.from_iterable(portions)
    # Parquet knows float32. Elsewhere numbers have as many digits as tell one float32 from the next.
    shown = single if kind == "parquet" else ([float(str(x)) for x in vector] for vector in single)

    def rows() -> Iterator[dict[str, Any]]:
        for row, vector in zip(reader, shown, strict=True):
            written = row.written or row.values
            if column in written:  # a field of a later row, which the first ones did not have
                raise BertworksError(f"the field {column!r} would be written over", where=row.where, fix="rename it")
            yield {**written, column: vector}

    write_rows(output, [*reader.written_columns, column], rows(), kind=kind)


def _fingerprint(embedder: Embedder, reader: RowReader, columns: Sequence[str]) -> str:
    state = reader.path.stat()
    content = {
        "model": embedder.fingerprint,
        "data": [str(reader.path.resolve()), state.st_size, state.st_mtime_ns, reader.quoting],
        "columns": list(columns),
        "precision": embedder.precision,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
