"""A file of documents -> an index, made or added to. Not here: what an index is (`index`)."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from bertworks.errors import BertworksError, UsageError
from bertworks.nn.pooling import Pooling
from bertworks.rows.columns import ID_NAMES
from bertworks.rows.reader import Quoting, Row, RowReader
from bertworks.rows.values import label_text
from bertworks.runs.events import Event
from bertworks.text.streams import Tally
from bertworks.text.tables import find_column
from bertworks.use.embedder import portions, row_text, text_columns
from bertworks.use.index import Index
from bertworks.use.segments import MANIFEST, NAMED, read_manifest

_ID_NAMES = (*ID_NAMES, "_id", "docno", "doc_id")


def index_file(
    documents: str | Path,
    folder: str | Path,
    *,
    model: str | Path | None = None,
    text: Sequence[str] = (),
    identity: str | None = None,
    pooling: Pooling | None = None,
    max_length: int | None = None,
    device: str = "auto",
    quoting: Quoting = "auto",
) -> Iterator[Event]:
    """The rows of a file as documents of an index, which is made if there is none. Stopped and called again it goes on
    where it was; a file that is in the index already is not read again.

    Args:
        documents: any file of rows, or of lines; "-" is standard input.
        model: None: that of the index; `minilm` for a new one.
        text: columns, joined by a space; (): guessed. The other columns are kept beside it.
        identity: the column with a name for each row; None: a column that is called so, or else numbers. A document
            takes the place of one with the same name.
        pooling, max_length: of a new index, see `Embedder`.

    Raises:
        BertworksError, UsageError: no such model or column; a row without name; an index of another model.
    """
    folder = Path(folder)
    reader = RowReader(documents, quoting=quoting)
    columns = text_columns(reader, text)
    named = _identity(reader, identity, columns)
    index = _opened(folder, model, pooling, max_length, device)
    yield from _how(index, columns, named)
    source, empty, replaced = _fingerprint(reader, columns, named), Tally(), 0
    with index.stored.changing():
        done, whole = index.manifest.sources.get(source, (0, False))
        if whole:
            yield _done(index, f"{reader.name} is in the index already", replaced)
            return
        if done:
            yield Event("note", f"going on after {done:,} rows", {"resumed_row": done})
        rest = iter(reader)
        for row in islice(rest, done):  # counted as if nobody had stopped
            row_text(row, columns, empty)
        for rows in portions(rest):
            texts = [row_text(row, columns, empty) for row in rows]
            kept = [(row, one) for row, one in zip(rows, texts, strict=True) if one]
            done += len(rows)
            ids = None if named is None else [_name(row, named) for row, _ in kept]
            fields = [{k: v for k, v in row.values.items() if k not in (named, *columns)} for row, _ in kept]
            if kept:
                replaced += index.append([one for _, one in kept], ids, fields, {source: (done, False)})
            yield Event("stage", f"index: {done:,} rows", {"stage": "index", "what": "rows", "amount": done})
        index.stored.note_sources({source: (done, True)})
    yield from (Event("note", note) for note in reader.notes)
    if empty.count:
        yield Event("note", f"rows without text, which are left out: {empty}", {"empty": empty.count})
    yield _done(index, f"{done:,} rows of {reader.name}", replaced)


def _opened(
    folder: Path, model: str | Path | None, pooling: Pooling | None, max_length: int | None, device: str
) -> Index:
    """The index of a folder, which must be as it is wanted, or a new one."""
    there = read_manifest(folder) if (folder / MANIFEST).exists() else None
    if there is not None and there.segments:
        index = Index(folder, model=model, device=device)
        asked = {"pooling": pooling, "max_length": max_length}
        for name, value in asked.items():
            if value not in (None, given := there.fingerprint.get(name)):
                raise UsageError(f"the index has {name} {given}, not {value}", where=str(folder), fix="leave it out")
        _ = index.embedder  # whatever is against the model is said before anything is read
        return index
    if there is not None and model is None:  # it was emptied, or never filled, and stays what it is
        model, found = there.model, there.fingerprint
        pooling, max_length = pooling or found.get("pooling"), max_length or found.get("max_length")
    return Index.create(folder, model or "minilm", pooling=pooling, max_length=max_length, device=device)


def _how(index: Index, columns: Sequence[str], named: str | None) -> Iterator[Event]:
    """What is read, and how it is compared, if that may surprise."""
    numbered = "a number; a file that has changed is added whole once more"
    yield Event("note", f"text: {', '.join(columns)}; id: {named or numbered}")
    if (meant := index.embedder.settings.similarity) != "cosine":
        yield Event("note", f"the model's vectors are meant to be compared by {meant}; an index takes the cosine")


def _done(index: Index, what: str, replaced: int) -> Event:
    more = f"; {replaced:,} took the place of others with their id" if replaced else ""
    fields = {"index": str(index.folder), "documents": len(index), "replaced": replaced}
    return Event("done", f"{index.folder}: {what}{more}; {len(index):,} documents", fields)


def _identity(reader: RowReader, wanted: str | None, columns: Sequence[str]) -> str | None:
    if wanted is not None:
        return find_column(reader.columns, reader.name, wanted, "--id")
    there = {name.strip().lower(): name for name in reversed(reader.columns) if name not in columns}
    return next((there[name] for name in _ID_NAMES if name in there), None)


def _name(row: Row, column: str) -> str:
    name = label_text(row.values.get(column))
    if name is None:
        raise BertworksError(f"the row has no {column!r}", where=row.where, fix="write one, or name another with --id")
    return name


def _fingerprint(reader: RowReader, columns: Sequence[str], named: str | None) -> str:
    state = reader.path.stat()
    content: list[Any] = [str(reader.path.resolve()), state.st_size, state.st_mtime_ns, reader.quoting]
    return NAMED * (named is not None) + hashlib.sha256(json.dumps([*content, *columns, named]).encode()).hexdigest()
