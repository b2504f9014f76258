"""A file of documents -> an index, which can be resumed.

- `index_file`
"""

from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np

from bertworks.datasets.reader import Row, RowReader
from bertworks.datasets.values import ID_NAMES, label_text
from bertworks.errors import BertworksError, UsageError, as_path, quoted
from bertworks.events import Event
from bertworks.inference.embed import VECTOR_MAKER, portion_of_vectors, reading_note, row_text, text_columns
from bertworks.inference.predict import bulk_portions, fingerprint, notes_on, portions, results_in
from bertworks.io.processes import Bulk
from bertworks.io.tables import TITLE_NAMES, Data, ReadOptions, find_column, first_rows, usual_column
from bertworks.io.text_files import IssueCounter
from bertworks.models.encoder import Pooling
from bertworks.retrieval.index import DOCUMENT_PROMPTS, Index
from bertworks.retrieval.store import MANIFEST, NAMED

_NUMBERED = "a number; a file that has changed is added again as a whole"
_ID_NAMES = (*ID_NAMES, "_id", "docno", "doc_id")


def index_file(
    documents: Data,
    folder: str | Path,
    *,
    model: str | Path | None = None,
    text: Sequence[str] = (),
    identity: str | None = None,
    pooling: Pooling | None = None,
    max_length: int | None = None,
    language: str | None = None,
    device: str = "auto",
    read: ReadOptions = ReadOptions(),
    bulk: Bulk = Bulk(),
) -> Iterator[Event]:
    """Add the rows of a file to an index, and create the index if it is missing. Call it again to resume; a file that
    is in the index already is not read again.

    Args:
        documents: any file of rows or lines; rows in memory; "-" is standard input.
        model: None: the model of the index; `minilm` for a new index.
        text: columns, joined by a space; (): inferred, and that of titles, unless all texts begin with their titles.
            The title and the other columns are stored with the text.
        identity: the column with the id of each row; None: a column with a usual name, else numbers. A document
            replaces one with the same id.
        pooling, max_length, language: of a new index, see `Index.create`.
        bulk: where vectors are computed, if not here.

    Raises:
        BertworksError, UsageError: no such model, language or column; a row without id; an index of another model.
    """
    folder, reader = as_path(folder), RowReader(documents, read)
    columns, title = _document_columns(reader, text)
    id_column = _id_column(reader, identity, columns)
    index = _open_or_create(folder, model, device, pooling=pooling, max_length=max_length, language=language)
    hint = f"; --text {quoted(columns[-1])} leaves the title out" if title in columns and not text else ""
    hint += f"; bm25 compares the stems of {index.language}" if index.language else ""
    yield reading_note(reader, columns, f"id: {id_column or _NUMBERED}{hint}")
    if (similarity := index.embedder.settings.similarity) != "cosine":
        yield Event("note", f"the model's vectors are meant to be compared by {similarity}; an index takes the cosine")
    source, empty = fingerprint(reader, columns, id_column), IssueCounter()
    source = source if id_column is None else NAMED + source

    def groups(counter: IssueCounter) -> Iterator[list[tuple[Row, str]]]:
        return portions(((row, row_text(row, columns, counter)) for row in reader), lambda pair: len(pair[1]))

    with ExitStack() as stack:
        files = None
        if bulk and not index.manifest.sources.get(source, (0, False))[1]:
            settings = {"model": index.manifest.fingerprint, "columns": columns, "id": id_column}
            options = pooling, None, index.embedder.settings.max_length, device, "auto", DOCUMENT_PROMPTS
            arguments = str(model or index.manifest.model), *options
            job = bulk_portions(bulk, folder, "index", reader, settings, device, VECTOR_MAKER, *arguments)
            assert job
            stack.enter_context(job.open())
            texts = (_last_texts(portion, id_column) for portion in groups(IssueCounter()))
            files = yield from job.make("index", texts, partial(portion_of_vectors, index.embedder, DOCUMENT_PROMPTS))
            if bulk.part:
                return
        stored = {id_column, *columns} - {title}
        yield from _add_rows(index, source, reader, groups(empty), empty, id_column, stored, files)


def _add_rows(
    index: Index, source: str, reader: RowReader, groups: Iterable[list[tuple[Row, str]]], empty: IssueCounter,
    id_column: str | None, left_out: Container[str | None], files: Iterable[Path] | None,
) -> Iterator[Event]:  # fmt: skip
    """Add the rows of a file, one portion at a time, after those that are there.

    Args:
        empty: counts the rows without text of `groups`.
        left_out: columns that are not stored next to the text.
        files: the vectors of all portions; None: they are computed.
    """
    replaced = 0
    with index.changing():
        done, complete = index.manifest.sources.get(source, (0, False))
        if complete:
            yield _done(index, f"{reader.name} is in the index already", replaced)
            return
        if done:
            yield Event("note", f"resuming after {done:,} rows", {"resumed_row": done})
        begin = 0
        for portion, file in zip(groups, repeat(None) if files is None else files):
            rows, begin = portion[max(0, done - begin) :], begin + len(portion)
            if not rows:
                continue
            if not done:
                yield from index.embedder.examples(((row.where, text) for row, text in rows), *DOCUMENT_PROMPTS)
            kept = [(row, text) for row, text in rows if text]
            done = begin
            ids = None if id_column is None else [_row_id(row, id_column) for row, _ in kept]
            fields = [_fields(row, left_out) for row, _ in kept]
            if kept:
                vectors = None if file is None else np.frombuffer(bytearray(results_in(file)), np.float32)
                replaced += index.append([text for _, text in kept], ids, fields, {source: (done, False)}, vectors)
            yield Event("stage", f"index: {done:,} rows", {"stage": "index", "what": "rows", "amount": done})
        index.commit(replace(index.manifest, sources={**index.manifest.sources, source: (done, True)}))
    yield from notes_on(reader, empty, "are left out")
    yield _done(index, f"{done:,} rows of {reader.name}", replaced)


def _last_texts(portion: Iterable[tuple[Row, str]], id_column: str | None) -> list[str]:
    """The texts of which `Index.append` needs vectors: of rows with one id that of the last."""
    texts: dict[str | int, str] = {}
    for number, (row, text) in enumerate(portion):
        name = number if id_column is None or not text else _row_id(row, id_column)
        texts.pop(name, None)
        texts[name] = text
    return list(filter(None, texts.values()))


def _open_or_create(folder: Path, model: str | Path | None, device: str, **settings: Any) -> Index:
    """The index in a folder, whose settings must match, or a new one."""
    index = Index(folder, model=model, device=device) if (folder / MANIFEST).exists() else None
    if index is None or (not index.segments and (model or any(settings.values()))):
        name = model or (index.manifest.model if index else "minilm")
        return Index.create(folder, name, device=device, **settings)
    for setting, value in settings.items():
        if value not in (None, stored := index.manifest.fingerprint.get(setting)):
            hint = "leave it out, or make another index"
            raise UsageError(f"the index has {setting} {stored}, not {value}", where=str(folder), hint=hint)
    _ = index.embedder  # report a wrong model before rows are read
    return index


def _done(index: Index, what: str, replaced: int) -> Event:
    more = f"; {replaced:,} replaced documents with the same id" if replaced else ""
    fields = {"index": str(index.folder), "documents": len(index), "replaced": replaced}
    return Event("done", f"{index.folder}: {what}{more}; {len(index):,} documents", fields)


def _fields(row: Row, used: Container[str | None]) -> dict[str, Any]:
    return {name: value for name, value in row.values.items() if name not in used}


def _document_columns(reader: RowReader, text: Sequence[str]) -> tuple[tuple[str, ...], str]:
    """The columns of the text; and that of titles, which is stored as well, "" if there is none or it is all the text.
    Titles are text unless `text` names other columns, or each text begins with its title."""
    columns, title = text_columns(reader, text), usual_column(reader.columns, TITLE_NAMES) or ""
    sample = [] if text else [(row.values.get(title), str(row.values.get(columns[0]))) for row in first_rows(reader)]
    is_missing = any(name and not content.startswith(name) for name, content in sample if isinstance(name, str))
    if title not in columns and is_missing and all(isinstance(name, str | None) for name, _ in sample):
        columns = (title, *columns)
    return columns, "" if columns == (title,) else title


def _id_column(reader: RowReader, name: str | None, text_columns: Sequence[str]) -> str | None:
    if name is not None:
        return find_column(reader.columns, reader.name, name, "--id")
    return usual_column([column for column in reader.columns if column not in text_columns], _ID_NAMES)


def _row_id(row: Row, column: str) -> str:
    name = label_text(row.values.get(column))
    if name is None:
        raise BertworksError(f"the row has no {column!r}", where=row.where, hint="write one, or name another with --id")
    return name
