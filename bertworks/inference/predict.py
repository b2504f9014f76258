"""The predictions of a fine-tuned model for files of any size, in the order of their rows.

- `compute_file`: results in portions on disk, so that an interrupted job resumes
- `predict_file`, `answer_questions`
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypeVar

from bertworks.checkpoints.model_folder import TaskConfig
from bertworks.datasets.infer_schema import infer_schema
from bertworks.datasets.reader import Row, RowReader
from bertworks.datasets.schema import Item, Schema, fitted, items, read_item
from bertworks.datasets.values import EmptyTextError
from bertworks.datasets.writer import FileKind, kind_of, refuse_same, write_lines, write_rows
from bertworks.errors import BertworksError, UsageError
from bertworks.events import Event
from bertworks.inference.decoding import Answer
from bertworks.inference.engine import open_model
from bertworks.inference.predictor import AT_ONCE, CHARACTERS, OutputFields, Predictor, result_of
from bertworks.io.atomic_write import folder_lock, remove, write_bytes
from bertworks.io.tables import ReadOptions
from bertworks.io.text_files import IssueCounter
from bertworks.training.device import PrecisionOption

COMPARED = 64  # rows that are also predicted in fp32
_DIGITS = 6  # after the point, in a file
_T = TypeVar("_T")


def portions(
    rows: Iterable[_T], size: Callable[[_T], int], document: Callable[[_T], str] | None = None
) -> Iterator[list[_T]]:
    """Lists of AT_ONCE rows, or fewer if these have more than CHARACTERS.

    Args:
        size: the characters of a row.
        document: of a row, or ""; documents are not divided.
    """
    portion: list[_T] = []
    characters = 0
    for row in rows:
        is_divided = document is None or not portion or not document(row) or document(row) != document(portion[-1])
        if (len(portion) >= AT_ONCE or characters >= CHARACTERS) and is_divided:
            yield portion
            portion, characters = [], 0
        portion.append(row)
        characters += size(row)
    if portion:
        yield portion


@contextmanager
def _portions_folder(output: str | Path) -> Iterator[Path]:
    """A folder next to an output, or a temporary one for "-". It is deleted at the end of the block, and kept after an
    error if it holds a portion.

    Raises:
        BertworksError: another process writes the same output.
    """
    if str(output) == "-":
        with TemporaryDirectory() as temporary:
            yield Path(temporary)
        return
    target = Path(output).expanduser()
    folder = target.with_name(f".{target.name}.portions")
    with folder_lock(folder, "another process is writing the same output", "wait for it, or use another output"):
        try:
            yield folder
        except BaseException:
            if not any(folder.glob("*-*")):  # no portion is complete
                remove(folder)
            raise
        remove(folder)


def compute_file(
    stage: Literal["predict", "embed"],
    reader: RowReader,
    output: str | Path,
    settings: Mapping[str, Any],
    rows: Iterable[_T],
    compute: Callable[[list[_T]], tuple[int, bytes]],
    write: Callable[[Sequence[Path]], None],
    *,
    empty: IssueCounter,
    size: Callable[[_T], int] = lambda row: 0,
    document: Callable[[_T], str] | None = None,
    results: str = "rows",
    **fields: Any,
) -> Iterator[Event]:
    """Compute the results of all rows of a file in portions, and write the output. Each portion becomes a file at once,
    so that an interrupted job resumes. A portion that is incomplete is computed again as a whole, with equal results.

    Args:
        settings: all that the results depend on, besides the data.
        compute: rows -> the number of truncated texts, and the results.
        write: the files with the results, in order -> the output.
        empty: the rows without text, counted while `rows` are read.
        size, document: see `portions`.
        results: what the output holds; and more fields of the last event.

    Raises:
        UsageError: the output is the input.
        BertworksError: another process writes the same output.
    """
    refuse_same(reader, output)
    state = reader.path.stat()
    data = [str(reader.path.resolve()), state.st_size, state.st_mtime_ns, asdict(reader.options)]
    job = hashlib.sha256(json.dumps([data, settings], sort_keys=True).encode()).hexdigest()
    with _portions_folder(output) as folder:
        files = sorted(folder.glob(f"{job}-*"))  # a name ends in the numbers of rows and of truncated texts so far
        done, truncated = map(int, files[-1].name.split("-")[1:]) if files else (0, 0)
        if done:
            yield Event("note", f"resumed after {done:,} rows", {"resumed_row": done})
        for portion in portions(islice(rows, done, None), size, document):
            count, content = compute(portion)
            done, truncated = done + len(portion), truncated + count
            files.append(folder / f"{job}-{done:015}-{truncated}")
            write_bytes(files[-1], content)
            yield Event("stage", f"{stage}: {done:,} rows", {"stage": stage, "what": "rows", "amount": done})
        yield from (Event("note", note) for note in reader.notes)
        if empty.count:
            effect = "have no prediction" if stage == "predict" else "get the vector of an empty text"
            yield Event("note", f"rows without text {effect}: {empty}", {"empty": empty.count})
        write(files)
    note = f"; {truncated:,} texts were truncated" if truncated else ""
    fields = {"output": str(output), "rows": done, "truncated": truncated, **fields}
    yield Event("done", f"{output}: {done:,} {results}{note}", fields)


def refuse_taken(row: Row, names: Iterable[str]) -> None:
    """Raises UsageError if a row has a field with the name of a new column."""
    if clash := [name for name in names if name in (row.written or row.values)]:
        raise UsageError(f"the row has a column {clash[0]!r} already", where=row.where, hint="rename it, or drop it")


def write_columns(
    output: str | Path, kind: FileKind, reader: RowReader, names: Sequence[str], columns: Iterable[dict[str, Any]]
) -> None:
    """Write the rows of a file with new columns next to theirs; of a file with one word in each row, a row per word."""
    rows = ({**(row.written or row.values), **new} for row, new in zip(reader, columns, strict=True))
    if reader.options.sentence_column is not None and "predicted_tags" in names:
        rows = (word for sentence in rows for word in _word_rows(sentence, reader.written_columns))
    write_rows(output, [*reader.written_columns, *names], rows, kind=kind)


def _word_rows(sentence: dict[str, Any], columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """A row for each word. What is true of the sentence stands in the row of its first word."""
    words = len(sentence[columns[0]])
    for index in range(words):
        by_word = {name: sentence[name][index] for name in (*columns, "predicted_tags") if sentence[name] is not None}
        yield (sentence if index == 0 else dict.fromkeys(sentence)) | by_word


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
    read: ReadOptions = ReadOptions(),
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
    reader = RowReader(data, read)
    schema, notes = schema_for(reader, d, text)
    yield from (Event("note", note) for note in notes)
    fields = OutputFields.of_task(d, top_k, probabilities, schema.raw)
    if predictor.precision == "int8":
        exact = Predictor(source, precision="fp32", threshold=threshold)
        first = islice(_items(reader, schema, d, fields, IssueCounter()), COMPARED)
        yield _compare(predictor, exact, list(filter(None, first)))

    def write(files: Sequence[Path]) -> None:
        columns = (row for file in files for row in json.loads(file.read_bytes(), parse_float=_rounded))
        if kind == "conll":
            write_lines(output, _tagged_lines(reader, schema, columns))
        else:
            write_columns(output, kind, reader, list(fields.empty_columns), columns)

    empty = IssueCounter()
    settings = {"model": predictor.fingerprint, "schema": asdict(schema), "fields": asdict(fields)}
    rows, compute = _items(reader, schema, d, fields, empty), partial(_predictions, predictor, fields)
    document = (lambda item: item.document if item else "") if d.document_context else None
    yield from compute_file(
        "predict", reader, output, settings, rows, compute, write, empty=empty, document=document,
        size=lambda item: item.characters if item else 0,
    )  # fmt: skip


def _rounded(digits: str) -> float:
    return round(float(digits), _DIGITS)


def _predictions(predictor: Predictor, fields: OutputFields, rows: Sequence[Item | None]) -> tuple[int, bytes]:
    """The number of truncated texts, and the new columns of each row as JSON."""
    answers = predictor.answers(item for item in rows if item is not None)
    columns = [fields.empty_columns if item is None else fields.columns(*next(answers)) for item in rows]
    truncated = sum(row["truncated_tokens"] > 0 for row in columns)
    return truncated, json.dumps(columns, ensure_ascii=False).encode()


def _compare(ours: Predictor, exact: Predictor, rows: Sequence[Item]) -> Event:
    """How many predictions differ from those in fp32."""
    task = ours.description.task
    a, b = ([result_of(task, answer) for _, answer in predictor.answers(rows)] for predictor in (ours, exact))
    if task == "regression":
        largest = max((abs(x - y) for x, y in zip(a, b, strict=True)), default=0.0)
        text, fields = f"the first {len(rows)} values differ by up to {largest:.3f}", {"largest": largest}
    else:
        others = sum(x != y for x, y in zip(a, b, strict=True))
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
    for features, answer in predictor.answers(items(reader, schema)):
        yield features.item.id, answer


def rows_with_items(reader: RowReader, schema: Schema, empty: IssueCounter) -> Iterator[tuple[Row, Item | None]]:
    """Each row with its item, without a label; None for a row without text, which is counted in `empty`."""
    schema = fitted(schema, reader)
    for row in reader:
        try:
            yield row, read_item(row, schema)
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
        refuse_taken(row, fields.empty_columns)
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
