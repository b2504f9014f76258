"""The predictions of a fine-tuned model for files of any size, in the order of their rows.

- `partial_results`, `append_results`: results on disk, so that an interrupted job resumes
- `predict_file`, `answer_questions`
"""

import hashlib
import json
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Literal, TypeVar

from bertworks.checkpoints.model_folder import TaskConfig
from bertworks.datasets.infer_schema import infer_schema
from bertworks.datasets.reader import Quoting, Row, RowReader
from bertworks.datasets.schema import Item, Schema, fitted, items, read_item
from bertworks.datasets.values import EmptyTextError
from bertworks.datasets.writer import FileKind, kind_of, refuse_same, write_lines, write_rows
from bertworks.errors import BertworksError, UsageError
from bertworks.events import Event
from bertworks.inference.decoding import Answer
from bertworks.inference.engine import open_model
from bertworks.inference.predictor import AT_ONCE, OutputFields, Predictor, without_scores
from bertworks.io.atomic_write import acquire_lock
from bertworks.io.text_files import IssueCounter
from bertworks.training.device import PrecisionOption

_COMPARED = 64  # rows that are also predicted in fp32
_HEAD = struct.Struct("<3Q")  # of a portion: rows, truncated texts, bytes
_T = TypeVar("_T")


class PartialResults:
    """The results of the first rows of a file, in portions. A portion that is incomplete on disk is removed, so that it
    is computed again as a whole, with equal results.

    Iterating gives the bytes of each portion.

    Attributes:
        rows: how many have results.
        truncated: how many of their texts were truncated.
    """

    def __init__(self, file: IO[bytes]):
        self._file, self._start = file, file.tell()
        self.rows = self.truncated = 0
        end = self._start
        for rows, truncated, _ in self._portions():
            self.rows, self.truncated, end = self.rows + rows, self.truncated + truncated, file.tell()
        file.truncate(end)
        file.seek(end)

    def add(self, rows: int, truncated: int, content: bytes) -> None:
        """Append a portion."""
        self._file.write(_HEAD.pack(rows, truncated, len(content)) + content)
        self._file.flush()
        self.rows, self.truncated = self.rows + rows, self.truncated + truncated

    def __iter__(self) -> Iterator[bytes]:
        return (content for _, _, content in self._portions())

    def _portions(self) -> Iterator[tuple[int, int, bytes]]:
        self._file.seek(self._start)
        end = os.fstat(self._file.fileno()).st_size
        while len(head := self._file.read(_HEAD.size)) == _HEAD.size:
            rows, truncated, size = _HEAD.unpack(head)
            if self._file.tell() + size > end:
                return
            yield rows, truncated, self._file.read(size)


@contextmanager
def partial_results(output: str | Path, fingerprint: str) -> Iterator[PartialResults]:
    """The results that an interrupted job for the same output has computed, in a file next to the output. It is deleted
    at the end of the block, and kept after an error.

    Args:
        output: "-": a temporary file.
        fingerprint: of everything that the results depend on. A file with another fingerprint is emptied.

    Raises:
        BertworksError: another process writes the same output.
    """
    target = Path(output).expanduser()
    path = None if str(output) == "-" else target.with_name(f".{target.name}.partial")
    with ExitStack() as stack:
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            hint = "wait for it, or use another output"
            stack.callback(acquire_lock(path, "another process is writing the same output", hint).release)
        file = stack.enter_context(TemporaryFile() if path is None else path.open("a+b"))  # noqa: SIM115
        file.seek(0)
        header = fingerprint.encode() + b"\n"
        if file.readline() != header:
            file.truncate(0)
            file.write(header)
            file.flush()
        yield PartialResults(file)
        if path is not None:
            path.unlink()


def data_fingerprint(reader: RowReader, **content: Any) -> str:
    """A hash of a data file and of everything else that its results depend on."""
    state = reader.path.stat()
    data = [str(reader.path.resolve()), state.st_size, state.st_mtime_ns, reader.quoting]
    content |= {"data": data, "format": _HEAD.format}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def portions(rows: Iterable[_T], document: Callable[[_T], str] | None = None) -> Iterator[list[_T]]:
    """Lists of AT_ONCE rows. document: of a row, or ""; documents are not divided."""
    portion: list[_T] = []
    for row in rows:
        is_divided = document is None or not portion or not document(row) or document(row) != document(portion[-1])
        if len(portion) >= AT_ONCE and is_divided:
            yield portion
            portion = []
        portion.append(row)
    if portion:
        yield portion


def append_results(
    results: PartialResults,
    stage: Literal["predict", "embed"],
    rows: Iterable[_T],
    compute: Callable[[list[_T]], tuple[int, bytes]],
    reader: RowReader,
    empty: IssueCounter,
    document: Callable[[_T], str] | None = None,
) -> Iterator[Event]:
    """Compute and append the results of the rows that have none; then report on the rows.

    Args:
        compute: rows -> the number of truncated texts, and the results.
        empty: the rows without text, counted while `rows` are read.
        document: see `portions`.
    """
    if results.rows:
        yield Event("note", f"resumed after {results.rows:,} rows", {"resumed_row": results.rows})
    for portion in portions(islice(rows, results.rows, None), document):
        results.add(len(portion), *compute(portion))
        fields = {"stage": stage, "what": "rows", "amount": results.rows}
        yield Event("stage", f"{stage}: {results.rows:,} rows", fields)
    yield from (Event("note", note) for note in reader.notes)
    if empty.count:
        effect = "have no prediction" if stage == "predict" else "get the vector of an empty text"
        yield Event("note", f"rows without text {effect}: {empty}", {"empty": empty.count})


def predict_file(
    model: str | Path,
    data: str | Path,
    output: str | Path,
    *,
    text: Sequence[str] = (),
    top_k: int = 1,
    probabilities: bool = False,
    threshold: float | None = None,
    device: str = "auto",
    precision: PrecisionOption = "auto",
    quoting: Quoting = "auto",
    kind: FileKind | None = None,
) -> Iterator[Event]:
    """Write the prediction for every row of a file next to the columns of the row, in order. Call it again to resume
    after an interruption. The output appears when it is complete.

    Args:
        data, output: files; "-" is standard input and output. The suffix of the output gives its format. CoNLL, for
            tags: the lines of the data with a further column, if that is CoNLL, else words and their tags.
        text: the columns of the text; (): those of the training, else inferred.
        top_k, probabilities, threshold: see `Predictor`.

    Raises:
        BertworksError, UsageError: no such model or column; a row that cannot be predicted, with its line.
    """
    kind = kind or kind_of(output)
    source = open_model(model, device)
    predictor = Predictor(source, precision=precision, threshold=threshold)
    d = predictor.description
    if kind == "conll" and d.task != "tagging":
        raise UsageError(f"CoNLL columns are for tags, and this model is for {d.task}", hint="use another format")
    reader = RowReader(data, quoting=quoting)
    refuse_same(reader, output)
    schema, notes = schema_for(reader, d, text)
    yield from (Event("note", note) for note in notes)
    fields = OutputFields.of_task(d, top_k, probabilities, schema.raw)
    if kind != "conll":
        fields.refuse_taken(reader.written_columns)
    fingerprint = data_fingerprint(reader, model=predictor.fingerprint, schema=asdict(schema), fields=asdict(fields))
    if predictor.precision == "int8":
        exact = Predictor(source, precision="fp32", threshold=threshold)
        first = islice(_items(reader, schema, d, fields, IssueCounter()), _COMPARED)
        yield _compare(predictor, exact, list(filter(None, first)))
    empty = IssueCounter()
    rows = _items(reader, schema, d, fields, empty)
    compute = partial(_predictions, predictor, fields)
    document = (lambda item: item.document if item else "") if d.document_context else None
    with partial_results(output, fingerprint) as results:
        yield from append_results(results, "predict", rows, compute, reader, empty, document)
        columns = (row for content in results for row in json.loads(content))
        if kind == "conll":
            write_lines(output, _tagged_lines(reader, schema, columns))
        else:
            merged = ({**(row.written or row.values), **new} for row, new in zip(reader, columns, strict=True))
            write_rows(output, [*reader.written_columns, *fields.names], merged, kind=kind)
    yield done_event(output, "rows", results)


def _predictions(predictor: Predictor, fields: OutputFields, rows: Sequence[Item | None]) -> tuple[int, bytes]:
    """The number of truncated texts, and the new columns of each row as JSON."""
    answers = predictor.answers(item for item in rows if item is not None)
    columns = [fields.empty_columns if item is None else fields.columns(*next(answers)) for item in rows]
    truncated = sum(row["truncated_tokens"] > 0 for row in columns)
    return truncated, json.dumps(columns, ensure_ascii=False).encode()


def done_event(output: str | Path, what: str, results: PartialResults, **fields: Any) -> Event:
    """The last event of a job that writes results of rows."""
    note = f"; {results.truncated:,} texts were truncated" if results.truncated else ""
    fields = {"output": str(output), "rows": results.rows, "truncated": results.truncated, **fields}
    return Event("done", f"{output}: {results.rows:,} {what}{note}", fields)


def _compare(ours: Predictor, exact: Predictor, rows: Sequence[Item]) -> Event:
    """How many predictions differ from those in fp32."""
    a, b = ([answer for _, answer in predictor.answers(rows)] for predictor in (ours, exact))
    if ours.description.task == "regression":
        largest = max((abs(x["value"] - y["value"]) for x, y in zip(a, b, strict=True)), default=0.0)
        text, fields = f"the first {len(rows)} values differ by up to {largest:.3f}", {"largest": largest}
    else:
        others = sum(without_scores(x) != without_scores(y) for x, y in zip(a, b, strict=True))
        text, fields = f"{others} of the first {len(rows)} predictions differ", {"others": others}
    return Event("note", f"{ours.precision}: {text} from fp32", fields | {"compared": len(rows)})


def _tagged_lines(reader: RowReader, schema: Schema, results: Iterator[dict[str, Any]]) -> Iterator[str]:
    """The lines of a CoNLL file with predicted tags."""
    if reader.kind == "conll":
        yield from reader.with_tags(tag for result in results for tag in result["predicted_tags"])
        return
    for (row, item), result in zip(rows_with_items(reader, schema, IssueCounter()), results, strict=True):
        words = result["predicted_words"] if schema.raw else item.texts if item else ()
        for word, tag in zip(words or (), result["predicted_tags"] or (), strict=True):
            if "\t" in word or "\n" in word:
                what = f"the word {word!r} does not fit in a line"
                raise BertworksError(what, where=row.where, hint="write .jsonl")
            yield f"{word}\t{tag}"
        yield ""


def answer_questions(
    data: str | Path, model: str | Path, *, device: str = "auto", precision: PrecisionOption = "auto"
) -> Iterator[tuple[str, Answer]]:
    """The id of each question in a SQuAD file and its answer (`Decoder`), in order.

    Raises:
        BertworksError: the data is not SQuAD, or the model was not fine-tuned on questions.
    """
    predictor = Predictor(model, device=device, precision=precision)
    if predictor.description.task != "qa":
        raise BertworksError(
            f"this model was fine-tuned for {predictor.description.task}, not for answering questions",
            where=str(model), hint="fine-tune one: bertworks finetune TRAIN.json --dev DEV.json -o FOLDER",
        )  # fmt: skip
    reader = RowReader(data)
    schema, _ = schema_for(reader, predictor.description, ("question", "context"))
    for features, answer in predictor.answers(items(reader, schema, labelled=False)):
        yield features.item.id, answer


def rows_with_items(reader: RowReader, schema: Schema, empty: IssueCounter) -> Iterator[tuple[Row, Item | None]]:
    """Each row with its item, without a label; None for a row without text, which is counted in `empty`."""
    schema = fitted(schema, reader, labelled=False)
    for row in reader:
        try:
            yield row, read_item(row, schema, labelled=False)
        except EmptyTextError:
            empty.add(row.where)
            yield row, None


def _items(
    reader: RowReader, schema: Schema, d: TaskConfig, fields: OutputFields, empty: IssueCounter
) -> Iterator[Item | None]:
    """The items of all rows, checked.

    Raises:
        BertworksError: another number of choices, or a field with the name of a new column.
    """
    for row, item in rows_with_items(reader, schema, empty):
        fields.refuse_taken(row.written or row.values, row.where)
        if item and d.task == "choice" and d.num_choices and len(item.texts) != d.num_choices + 1:
            what = f"{len(item.texts) - 1} choices, but the model was trained with {d.num_choices}"
            raise BertworksError(what, where=row.where, hint=f"give every row {d.num_choices} choices")
        yield item


def schema_for(reader: RowReader, d: TaskConfig, text: Sequence[str]) -> tuple[Schema, list[str]]:
    """What to read of a file: the columns `text`, else those of the training, else inferred ones; and notes on what was
    inferred."""
    names = tuple(text) or (d.text if all(name in reader.columns for name in d.text) else ())
    schema, notes = infer_schema(reader, task=d.task, text=names, labelled=False)
    if d.text and d.task in ("classification", "multilabel", "regression") and len(schema.text) != len(d.text):
        count = "one text" if len(d.text) == 1 else "two texts"
        trained, here = (", ".join(map(repr, columns)) for columns in (d.text, schema.text))
        raise UsageError(
            f"the model reads {count} ({trained}), and the columns of the text here are: {here}", where=reader.name,
            hint="name the columns: " + " ".join(f"--text {word}" for word in ("FIRST", "SECOND")[: len(d.text)]),
        )  # fmt: skip
    document = d.document if d.document in reader.columns else schema.document
    raw = d.task == "tagging" and _holds_texts(reader, schema.text[0], d)
    return replace(schema, label=None, labels=d.labels, document=document, raw=raw), [] if names else notes


def _holds_texts(reader: RowReader, column: str, d: TaskConfig) -> bool:
    """Whether a column holds texts instead of words: strings, not lists, in the only column of a file, or in a column
    that is not one of the training."""
    first = next((row.values[column] for row in reader if row.values.get(column)), None)
    return isinstance(first, str) and not first.startswith("[") and (len(reader.columns) == 1 or column not in d.text)
