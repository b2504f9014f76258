"""The predictions of a fine-tuned model for files of any size, in the order of their rows.

- `compute_file`: results in portions on disk, so that an interrupted job resumes
- `predict_file`, `answer_questions`
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any, Literal, TypeVar

from bertworks.datasets.infer_schema import infer_schema
from bertworks.datasets.reader import Row, RowReader
from bertworks.datasets.schema import Item, Schema, fitted, items, read_item
from bertworks.datasets.values import EmptyTextError
from bertworks.datasets.writer import FileKind, kind_of, refuse_same, write_lines, write_rows
from bertworks.errors import BertworksError, UsageError, expect, names_of, require
from bertworks.events import Event, no_notes
from bertworks.inference.predictor import AT_ONCE, CHARACTERS, OutputFields, Predictor
from bertworks.io.atomic_write import sha256
from bertworks.io.binary_files import SEAL, is_sealed
from bertworks.io.options import Bulk, ReadOptions
from bertworks.io.portions import Portions
from bertworks.io.processes import chunk_by_size
from bertworks.io.tables import Data, rows_of_texts
from bertworks.io.text_files import IssueCounter
from bertworks.tasks.decoding import Answer
from bertworks.tasks.features import Truncation
from bertworks.tasks.scores import predicted_label
from bertworks.tasks.settings import TaskConfig
from bertworks.training.device import PrecisionOption, fixed_machine, gpus_for

PREDICTION_MAKER = "bertworks.inference.predict:prediction_maker"
COMPARED = 64  # rows that are also predicted in fp32
_DIGITS = 6  # after the point, in a file
_rounded = partial(json.loads, parse_float=lambda digits: round(float(digits), _DIGITS))
# rows without text
_OF_EMPTY = {"predict": "have no prediction", "embed": "get the vector of an empty text"}
_T = TypeVar("_T")


def portions(
    rows: Iterable[_T], size: Callable[[_T], int], document: Callable[[_T], str] = lambda _: ""
) -> Iterator[list[_T]]:
    """Lists of AT_ONCE rows, or fewer if these have more than CHARACTERS.

    Args:
        size: the characters of a row.
        document: of a row, or ""; documents are not divided.
    """
    least = -(-CHARACTERS // AT_ONCE)
    documents = (list(group) for _, group in groupby(rows, lambda row: document(row) or object()))
    for portion in chunk_by_size(
        documents, CHARACTERS, lambda group: sum(max(least, size(row)) for row in group)
    ):
        yield list(chain.from_iterable(portion))


def fingerprint(reader: RowReader, *settings: object) -> str:
    """A hash of the state of a file, how it is read, and of settings."""
    state = reader.path.stat()
    data = [str(reader.path.resolve()), state.st_size, state.st_mtime_ns, asdict(reader.options)]
    return hashlib.sha256(json.dumps([data, *settings], sort_keys=True).encode()).hexdigest()


def notes_on(reader: RowReader, empty: IssueCounter, effect: str) -> Iterator[Event]:
    """What a person should know about rows that were read. empty: those without text. effect: what
    happens to them."""
    yield from (Event("note", note) for note in reader.notes)
    if empty.count:
        yield Event("note", f"rows without text {effect}: {empty}", {"empty": empty.count})


def compute_file(
    stage: Literal["predict", "embed"],
    reader: RowReader,
    job: Portions,
    rows: Iterable[_T],
    compute: Callable[[list[_T]], tuple[int, bytes]],
    write: Callable[[Sequence[Path]], str | None],
    *,
    empty: IssueCounter,
    size: Callable[[_T], int] = lambda row: 0,
    document: Callable[[_T], str] = lambda _: "",
    examples: Callable[[list[_T]], Iterable[Event]] = lambda _: (),
    results: str = "rows",
    **fields: Any,
) -> Iterator[Event]:
    """Compute the results of all rows of a file in portions, and write the output. An interrupted
    job resumes; an incomplete portion is computed again as a whole, with equal results.

    Args:
        job: all that the results depend on, and who makes the portions; of a part, the output is
            not written.
        compute: rows -> the number of truncated texts, and the results.
        write: the files with the results, in order -> the output; returns a note about it.
        empty: the rows without text, counted while `rows` are read. size, document: see `portions`.
        examples: the first rows -> notes on some of them.
        results: what the output holds; and more fields of the last event.

    Raises:
        UsageError: the output is the input.
        BertworksError: another process writes the same output.
    """
    refuse_same(reader, job.output)
    done = 0

    def inputs() -> Iterator[list[_T]]:
        nonlocal done
        for portion in portions(rows, size, document):
            done += len(portion)
            yield portion

    with job.open():
        parts = inputs()
        yield from chain.from_iterable(map(examples, first := list(islice(parts, 1))))
        for event in job.make(stage, chain(first, parts), compute):
            if event.kind == "stage" and not job.bulk:
                event = Event(
                    "stage",
                    f"{stage}: {done:,} rows",
                    {"stage": stage, "what": "rows", "amount": done},
                )
            yield event
        if job.bulk.part:
            return
        yield from notes_on(reader, empty, _OF_EMPTY[stage])
        yield from (Event("note", note) for note in filter(None, [write(job.files)]))
    truncated = sum(int(file.name.rpartition("-")[2]) for file in job.files)
    note = f"; {truncated:,} texts were truncated" if truncated else ""
    fields = {"output": job.output, "rows": done, "truncated": truncated, **fields}
    yield Event("done", f"{job.output}: {done:,} {results}{note}", fields)


def bulk_portions(
    bulk: Bulk,
    output: str | Path,
    command: str,
    reader: RowReader | None,
    settings: Mapping[str, Any],
    device: str,
    maker: str,
    *arguments: Any,
) -> Portions:
    """A job of a model, of which `bulk` says where its portions are made.

    Args:
        settings: all that the results depend on, besides the machine, and the rows of a reader. A
            job of this process alone may resume with other threads, and knows a file by its time of
            change.
        maker: see `Portions`. It gets the arguments and the number of threads.
    """
    if not bulk:
        return Portions(
            output, bulk, {"data": reader and fingerprint(reader), **settings}, maker, ()
        )
    rows = reader and [reader.path.stat().st_size, sha256(reader.path), asdict(reader.options)]
    machine = fixed_machine(device)
    identity, threads = (
        {"command": command, "data": rows, **settings, **machine},
        machine["threads"],
    )
    return Portions(
        output, bulk, identity, maker, [*arguments, threads], threads=threads, gpus=gpus_for(device)
    )


def results_in(portion: Path) -> bytes:
    """The results in the file of a portion.

    Raises:
        BertworksError: the file has changed since it was written.
    """
    hint = "run the same command again: this portion is computed again"
    require(is_sealed(portion, portion.name), "damaged: it is not as it was written", portion, hint)
    return portion.read_bytes()[:-SEAL]


def refuse_taken(row: Row, names: Iterable[str]) -> None:
    """Raises UsageError if a row has a field with the name of a new column."""
    if clash := [name for name in names if name in (row.written or row.values)]:
        raise UsageError(
            f"the row has a column {clash[0]!r} already",
            where=row.where,
            hint="rename it, or drop it",
        )


def write_columns(
    output: str | Path,
    kind: FileKind,
    reader: RowReader,
    names: Sequence[str],
    columns: Iterable[dict[str, Any]],
    guard_formulas: bool,
) -> str | None:
    """Write the rows of a file with new columns next to theirs; of a file with one word in each
    row, a row per word. Returns a note if some texts would be formulas."""
    formulas = IssueCounter()
    rows = (
        {**(row.written or row.values), **new} for row, new in zip(reader, columns, strict=True)
    )
    if reader.options.sentence_column is not None and "predicted_tags" in names:
        rows = (word for sentence in rows for word in _word_rows(sentence, reader.written_columns))
    names = [*reader.written_columns, *names]
    write_rows(output, names, rows, kind=kind, formulas=formulas, guard_formulas=guard_formulas)
    effect = "have a ' before them" if guard_formulas else "--guard-formulas writes ' before them"
    return (
        f"texts that spreadsheet programs compute as formulas: {formulas}; {effect}"
        if formulas.count
        else None
    )


def _word_rows(sentence: dict[str, Any], columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """A row for each word. What is true of the sentence stands in the row of its first word."""
    words = len(sentence[columns[0]])
    for index in range(words):
        by_word = {
            name: sentence[name][index]
            for name in (*columns, "predicted_tags")
            if sentence[name] is not None
        }
        yield (sentence if index == 0 else dict.fromkeys(sentence)) | by_word


def predict_file(
    model: str | Path,
    data: Data,
    output: str | Path,
    *,
    text: str | Sequence[str] = (),
    top_k: int = 1,
    probabilities: bool = False,
    threshold: float | None = None,
    device: str = "auto",
    precision: PrecisionOption = "auto",
    read: ReadOptions = ReadOptions(),
    kind: FileKind | None = None,
    guard_formulas: bool = False,
    bulk: Bulk = Bulk(),
) -> Iterator[Event]:
    """Write the prediction for every row of a file next to the columns of the row, in order. Call
    it again to resume. The output appears when it is complete.

    Args:
        data, output: files; "-" is standard input and output. Data may also be rows in memory, see
            `finetune`, or texts (two for each row of pairs or questions). The suffix of the output
            gives its format. CoNLL, for tags: lines of the data with a further column, if that is
            CoNLL, else words and tags.
        text: the columns of the text; (): those of the training, else inferred.
        top_k, probabilities, threshold: see `Predictor`. bulk: worker processes, a cluster, or a
            part of the rows.
        guard_formulas: in csv and tsv, write ' before texts that spreadsheet programs would compute
            as formulas.

    Raises:
        BertworksError, UsageError: no such model or column; a row that cannot be predicted, with
            its line.
    """
    predictor = Predictor(model, device=device, precision=precision, threshold=threshold)
    d, kind = predictor.description, kind or kind_of(output)
    what = f"CoNLL columns are for tags, and this model is for {d.task}"
    expect(kind != "conll" or d.task == "tagging", what, hint="use another format")
    data = rows_of_texts(data, ("question", "context") if d.task == "qa" else d.text or ("text",))
    reader = RowReader(data, read, known=(*d.text, *d.label))
    schema, notes = schema_for(reader, d, text)
    yield from (Event("note", note) for note in notes)
    fields = OutputFields.of_task(d, top_k, probabilities, schema.raw)
    if predictor.precision == "int8":
        yield _compare(predictor, _items(reader, schema, d, fields, IssueCounter()))

    def write(files: Sequence[Path]) -> str | None:
        columns = chain.from_iterable(_rounded(results_in(file)) for file in files)
        if kind == "conll":
            write_lines(output, _tagged_lines(reader, schema, columns))
            return None
        return write_columns(
            output, kind, reader, list(fields.empty_columns), columns, guard_formulas
        )

    empty = IssueCounter()
    settings = {"model": predictor.fingerprint, "schema": asdict(schema), "fields": asdict(fields)}
    rows = _items(reader, schema, d, fields, empty)
    options = str(model), device, precision, threshold, asdict(fields)
    job = bulk_portions(
        bulk, output, "predict", reader, settings, device, PREDICTION_MAKER, *options
    )
    yield from compute_file(
        "predict",
        reader,
        job,
        rows,
        partial(_predictions, predictor, fields),
        write,
        empty=empty,
        examples=lambda rows: predictor.reading.preview(list(filter(None, rows))),
        size=lambda item: item.characters if item else 0,
        document=lambda item: item.document if item and d.document_context else "",
    )


def _predictions(
    predictor: Predictor, fields: OutputFields, rows: Sequence[Item | None]
) -> tuple[int, bytes]:
    """The number of truncated texts, and the new columns of each row as JSON."""
    answers = predictor.answers(item for item in rows if item is not None)
    columns = [
        fields.empty_columns if item is None else fields.columns(*next(answers)) for item in rows
    ]
    truncated = sum(row["truncated_tokens"] > 0 for row in columns)
    return truncated, json.dumps(columns, ensure_ascii=False).encode()


def prediction_maker(
    model: str,
    device: str,
    precision: PrecisionOption,
    threshold: float | None,
    fields: dict[str, Any],
    threads: int,
) -> tuple[dict[str, Any], Callable[[Sequence[Item | None]], tuple[int, bytes]]]:
    """The `maker` of predictions, see `Portions`."""
    machine = fixed_machine(device, threads)
    predictor = Predictor(model, device=device, precision=precision, threshold=threshold)
    return {"model": predictor.fingerprint, **machine}, partial(
        _predictions, predictor, OutputFields(**fields)
    )


def _compare(ours: Predictor, first: Iterator[Item | None]) -> Event:
    """How many predictions differ from those in fp32."""
    task, rows = ours.description.task, list(filter(None, islice(first, COMPARED)))
    both = (predictor.answers(rows) for predictor in (ours, ours.in_fp32()))
    a, b = ([predicted_label(task, answer) for _, answer in answers] for answers in both)
    if task == "regression":
        largest = max((abs(x - y) for x, y in zip(a, b, strict=True)), default=0.0)
        text, fields = (
            f"the first {len(rows)} values differ by up to {largest:.3f}",
            {"largest": largest},
        )
    else:
        others = sum(x != y for x, y in zip(a, b, strict=True))
        text, fields = f"{others} of the first {len(rows)} predictions differ", {"others": others}
    return Event("note", f"{ours.precision}: {text} from fp32", fields | {"compared": len(rows)})


def _tagged_lines(
    reader: RowReader, schema: Schema, results: Iterator[dict[str, Any]]
) -> Iterator[str]:
    """The lines of a CoNLL file with predicted tags."""
    if reader.kind == "conll":
        yield from reader.with_tags(tag for result in results for tag in result["predicted_tags"])
        return
    for (row, item), result in zip(
        rows_with_items(reader, schema, IssueCounter()), results, strict=True
    ):
        words = result["predicted_words"] if schema.raw else item.texts if item else ()
        for word, tag in zip(words or (), result["predicted_tags"] or (), strict=True):
            fits = "\t" not in word and "\n" not in word
            require(fits, f"the word {word!r} does not fit in a line", row.where, "write .jsonl")
            yield f"{word}\t{tag}"
        yield ""


def answer_questions(
    data: str | Path,
    model: str | Path,
    *,
    device: str = "auto",
    precision: PrecisionOption = "auto",
    counts: Truncation | None = None,
    on_note: Callable[[str], object] = no_notes,
) -> Iterator[tuple[str, Answer]]:
    """The id of each question in a SQuAD file and its answer (`Decoder`), in order.

    Args:
        counts: counts the questions that are longer than the model reads, and how much of them was
            left out.
        on_note: is called with notes before the work: two examples as the network reads them.

    Raises:
        BertworksError: the data is not SQuAD, or the model was not fine-tuned on questions.
    """
    predictor = Predictor(model, device=device, precision=precision)
    what = (
        f"this model was fine-tuned for {predictor.description.task}, not for answering questions"
    )
    hint = "fine-tune one: bertworks finetune TRAIN.json --dev DEV.json -o FOLDER"
    require(predictor.description.task == "qa", what, model, hint)
    reader = RowReader(data)
    schema, _ = schema_for(reader, predictor.description, ("question", "context"))
    for note in predictor.reading.preview(list(islice(items(reader, schema), 2))):
        on_note(note.text)
    for features, answer in predictor.answers(items(reader, schema)):
        if counts is not None:
            counts.add_features(features, predictor.tokenizer)
        yield features.item.id, answer


def rows_with_items(
    reader: RowReader, schema: Schema, empty: IssueCounter
) -> Iterator[tuple[Row, Item | None]]:
    """Each row with its item, without a label; None for a row without text, which is counted in
    `empty`."""
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
            raise BertworksError(
                what, where=row.where, hint=f"give every row {d.num_choices} choices"
            )
        yield item


def schema_for(
    reader: RowReader, d: TaskConfig, text: str | Sequence[str]
) -> tuple[Schema, list[str]]:
    """What to read of a file: the columns `text`, else those of the training, else inferred ones;
    and notes on what was inferred."""
    names = names_of(text) or (d.text if all(name in reader.columns for name in d.text) else ())
    schema, notes = infer_schema(reader, task=d.task, text=names, labelled=False)
    if (
        d.text
        and d.task in ("classification", "multilabel", "regression")
        and len(schema.text) != len(d.text)
    ):
        count = "one text" if len(d.text) == 1 else "two texts"
        trained, here = (", ".join(map(repr, columns)) for columns in (d.text, schema.text))
        raise UsageError(
            f"the model reads {count} ({trained}), and the columns of the text here are: {here}",
            where=reader.name,
            hint="name the columns: "
            + " ".join(f"--text {word}" for word in ("FIRST", "SECOND")[: len(d.text)]),
        )
    document = d.document if d.document in reader.columns else schema.document
    raw = d.task == "tagging" and _holds_texts(reader, schema.text[0], d)
    return replace(schema, label=(), labels=d.labels, document=document, raw=raw), notes


def _holds_texts(reader: RowReader, column: str, d: TaskConfig) -> bool:
    """Whether a column holds texts instead of words: strings, not lists, in the only column of a
    file, or in a column that is not one of the training."""
    first = next((row.values[column] for row in reader if row.values.get(column)), None)
    return (
        isinstance(first, str)
        and not first.startswith("[")
        and (len(reader.columns) == 1 or column not in d.text)
    )
