"""The predictions of a fine-tuned model for files of any size, in the order of their rows.

- `partial_results`: results on disk, so that an interrupted job resumes
- `predict_file`, `answer_questions`
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from bertworks.checkpoints.model_folder import TaskConfig
from bertworks.datasets.infer_schema import infer_schema
from bertworks.datasets.reader import Quoting, RowReader
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


@contextmanager
def partial_results(output: str | Path, fingerprint: str) -> Iterator[IO[bytes]]:
    """The results that an interrupted job for the same output has computed: a file next to the output, open to be read
    and continued, after its first line. It is deleted at the end of the block, and kept after an error.

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
        yield file
        if path is not None:
            path.unlink()


def data_fingerprint(reader: RowReader, **content: Any) -> str:
    """A hash of a data file and of everything else that its results depend on."""
    state = reader.path.stat()
    data = [str(reader.path.resolve()), state.st_size, state.st_mtime_ns, reader.quoting]
    return hashlib.sha256(json.dumps({"data": data, **content}, sort_keys=True).encode()).hexdigest()


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
    with partial_results(output, fingerprint) as file:
        if count := _drop_incomplete(file):
            yield Event("note", f"resumed after {count:,} rows", {"resumed_row": count})
        if predictor.precision == "int8":
            exact = Predictor(source, precision="fp32", threshold=threshold)
            yield _compare(predictor, exact, list(filter(None, islice(_items(reader, schema, d, fields), _COMPARED))))
        empty = IssueCounter()
        yield from _predict_rest(file, count, predictor, fields, _items(reader, schema, d, fields, empty))
        yield from (Event("note", note) for note in reader.notes)
        if empty.count:
            yield Event("note", f"rows without text have no prediction: {empty}", {"empty": empty.count})
        if kind == "conll":
            write_lines(output, _tagged_lines(reader, schema, _results(file)))
        else:
            merged = ({**(row.written or row.values), **r} for row, r in zip(reader, _results(file), strict=True))
            write_rows(output, [*reader.written_columns, *fields.names], merged, kind=kind)
        rows, truncated = _totals(file)
    yield done_event(output, "rows", rows, truncated)


def done_event(output: str | Path, what: str, rows: int, truncated: int, **fields: Any) -> Event:
    """The last event of a job that writes results of rows."""
    note = f"; {truncated:,} texts were truncated" if truncated else ""
    fields = {"output": str(output), "rows": rows, "truncated": truncated, **fields}
    return Event("done", f"{output}: {rows:,} {what}{note}", fields)


def _drop_incomplete(file: IO[bytes]) -> int:
    """The number of rows that have results. Each line holds a portion; an incomplete one is removed, so that the
    portion is predicted again as a whole, with equal results."""
    end, count = file.tell(), 0
    for line in file:
        if line.endswith(b"\n"):
            end, count = end + len(line), count + len(json.loads(line))
    file.truncate(end)
    return count


def _results(file: IO[bytes]) -> Iterator[dict[str, Any]]:
    """The new columns of all rows."""
    file.seek(0)
    file.readline()
    for line in file:
        yield from json.loads(line)


def _totals(file: IO[bytes]) -> tuple[int, int]:
    """The number of rows, and that of truncated texts."""
    rows = truncated = 0
    for result in _results(file):
        rows, truncated = rows + 1, truncated + (result["truncated_tokens"] > 0)
    return rows, truncated


def _predict_rest(
    file: IO[bytes], count: int, predictor: Predictor, fields: OutputFields, rows: Iterator[Item | None]
) -> Iterator[Event]:
    """Append the results of all rows but the first `count`."""
    for portion in _portions(islice(rows, count, None), predictor.description.document_context):
        predictions = predictor.answers(item for item in portion if item is not None)
        results = [fields.empty_columns if item is None else fields.columns(*next(predictions)) for item in portion]
        file.write(json.dumps(results, ensure_ascii=False).encode() + b"\n")
        file.flush()
        count += len(portion)
        yield Event("stage", f"predict: {count:,} rows", {"stage": "predict", "what": "rows", "amount": count})


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


def _portions(rows: Iterator[Item | None], whole_documents: bool) -> Iterator[list[Item | None]]:
    """Lists of AT_ONCE rows. With `whole_documents` they end at the end of a document, which is read as a whole."""
    portion: list[Item | None] = []
    for item in rows:
        last = portion[-1] if portion else None
        is_same = whole_documents and item and last and item.document and item.document == last.document
        if len(portion) >= AT_ONCE and not is_same:
            yield portion
            portion = []
        portion.append(item)
    if portion:
        yield portion


def _tagged_lines(reader: RowReader, schema: Schema, results: Iterator[dict[str, Any]]) -> Iterator[str]:
    """The lines of a CoNLL file with predicted tags."""
    if reader.kind == "conll":
        yield from reader.with_tags(tag for result in results for tag in result["predicted_tags"])
        return
    schema = fitted(schema, reader, labelled=False)
    for row, result in zip(reader, results, strict=True):
        tags = result["predicted_tags"] or []
        words = result["predicted_words"] if schema.raw else tags and read_item(row, schema, labelled=False).texts
        for word, tag in zip(words or [], tags, strict=True):
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


def _items(
    reader: RowReader, schema: Schema, d: TaskConfig, fields: OutputFields, empty: IssueCounter | None = None
) -> Iterator[Item | None]:
    """Each row as an item; None for a row without text, which is counted in `empty`.

    Raises:
        BertworksError: another number of choices, or a field with the name of a new column.
    """
    schema = fitted(schema, reader, labelled=False)
    for row in reader:
        fields.refuse_taken(row.written or row.values, row.where)
        try:
            item = read_item(row, schema, labelled=False)
        except EmptyTextError:
            if empty is not None:
                empty.add(row.where)
            yield None
            continue
        if d.task == "choice" and d.num_choices and len(item.texts) != d.num_choices + 1:
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
