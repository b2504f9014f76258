"""The predictions of a fine-tuned model for files of any size, in the order of their rows."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, Self

from bertworks.datasets.annotations import ConllLayout, Sentence, with_tags
from bertworks.datasets.reader import Row, RowReader, refuse_columns
from bertworks.datasets.schema import Item, Schema, fitted, infer_schema, items, read_item
from bertworks.datasets.values import EmptyTextError
from bertworks.datasets.writer import (
    FileKind,
    RowFormat,
    format_of,
    join_portions,
    kind_of,
    line_portion,
    row_portion,
)
from bertworks.errors import UsageError, expect, names_of, require
from bertworks.events import Event, no_notes
from bertworks.inference.predictor import COMPARED, OutputFields, Predictor
from bertworks.io.atomic_write import local_path
from bertworks.io.file_job import FileJob, compute_file
from bertworks.io.inputs import IssueCounter
from bertworks.io.options import Bulk, ReadOptions
from bertworks.io.tables import Data, rows_of_texts
from bertworks.tasks.questions import QuestionsTask
from bertworks.tasks.registry import TASKS, task_of
from bertworks.tasks.sequences import Truncation
from bertworks.tasks.settings import TaskConfig
from bertworks.tasks.task import Answer
from bertworks.training.device import PrecisionOption, fixed_machine, gpus_for

PREDICTION_MAKER = "bertworks.inference.predict:prediction_maker"
_DIGITS = 6  # after the point, in a file


class Unit(NamedTuple):
    """A row of the input.

    number: that of its first row in the output, from 1.
    row: its fields, which are written next to the prediction.
    item: None: the row has no text.
    lines: of a CoNLL file, to which tags are added.
    """

    number: int
    row: Mapping[str, Any]
    item: Item | None
    where: str
    lines: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class PredictionFormat:
    """How predictions become an output file.

    rows: the format of the file; also that of CoNLL, which has no columns.
    word_columns: of a file with one word in each row: the columns of the input. Each word is
        written as a row.
    layout: of a CoNLL file that is written again with one more cell.
    """

    rows: RowFormat
    word_columns: Sequence[str] = ()
    layout: ConllLayout | None = None

    @classmethod
    def of_settings(cls, settings: Mapping[str, Any]) -> Self:
        """Return the format whose `asdict` went through JSON."""
        layout = settings["layout"]
        return cls(
            rows=RowFormat(**settings["rows"]),
            word_columns=settings["word_columns"],
            layout=layout and ConllLayout(*layout),
        )

    def portion(self, units: Sequence[Unit], columns: Iterable[dict[str, Any]]) -> Iterator[bytes]:
        """The content of a portion: finished rows. columns: of each unit, those that are new."""
        rows: Iterable[Mapping[str, Any]]
        if self.rows.kind == "conll":
            lines = self._tagged_lines(units, columns)
            return line_portion(lines)
        rows = ({**unit.row, **new} for unit, new in zip(units, columns, strict=True))
        if self.word_columns:
            rows = (word for sentence in rows for word in _word_rows(sentence, self.word_columns))
        return row_portion(self.rows, rows, units[0].number)

    def _tagged_lines(
        self, units: Sequence[Unit], columns: Iterable[dict[str, Any]]
    ) -> Iterator[str]:
        """Yield the lines of a CoNLL file with predicted tags."""
        for unit, new in zip(units, columns, strict=True):
            tags = new["predicted_tags"] or ()
            if self.layout is not None:
                yield from with_tags(unit.lines, tags, self.layout)
                continue
            words = unit.item.texts if unit.item else ()
            if "predicted_words" in new:
                words = new["predicted_words"] or ()
            for word, tag in zip(words, tags, strict=True):
                fits = "\t" not in word and "\n" not in word
                what = f"the word {word!r} does not fit in a line"
                require(fits, what, unit.where, "write .jsonl")
                yield f"{word}\t{tag}"
            yield ""


def _format(
    reader: RowReader,
    output: Path,
    kind: FileKind,
    fields: OutputFields,
    guard_formulas: bool,
) -> PredictionFormat:
    """Return the format of the predictions of a file."""
    if kind == "conll":
        rows = RowFormat(name=str(output), kind=kind, columns=())
        return PredictionFormat(rows=rows, layout=reader.conll_layout)
    has_words = reader.options.sentence_column is not None and "tags" in fields.parts
    columns = [*reader.written_columns, *fields.empty_columns]
    return PredictionFormat(
        rows=format_of(output, columns, kind=kind, guard_formulas=guard_formulas),
        word_columns=reader.written_columns if has_words else (),
    )


def _word_rows(sentence: Mapping[str, Any], columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """A row for each word. What is true of the sentence stands in the row of its first word."""
    words = len(sentence[columns[0]])
    for index in range(words):
        by_word = {
            name: sentence[name][index]
            for name in (*columns, "predicted_tags")
            if sentence[name] is not None
        }
        yield {**(sentence if index == 0 else dict.fromkeys(sentence)), **by_word}


def _rounded(value: Any) -> Any:
    """A value of a prediction as JSON has it, with numbers as they stand in a file."""
    if isinstance(value, float):
        return round(float(value), _DIGITS)
    if isinstance(value, list | tuple):
        return [_rounded(part) for part in value]
    if isinstance(value, dict):
        return {str(name): _rounded(part) for name, part in value.items()}
    return value


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
    """Write the prediction for every row of a file next to the columns of the row, in order.

    Call it again to resume. The output appears when it is complete.

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
    output = local_path(output)
    predictor = Predictor(model, device=device, precision=precision, threshold=threshold)
    description = predictor.description
    kind = kind or kind_of(output)
    what = f"CoNLL columns are for tags, and this model is for {description.task}"
    task = task_of(description)
    expect(kind != "conll" or task.reads_words, what, hint="use another format")
    names = task.text_columns()
    reader = RowReader(
        rows_of_texts(data, names), read, known=(*description.text, *description.label)
    )
    schema, notes = schema_for(reader, description, text)
    for note in notes:
        yield Event("note", note)
    fields = OutputFields.of_task(description, top_k, probabilities, schema.raw)
    output_format = _format(reader, output, kind, fields, guard_formulas)
    if predictor.precision == "int8":
        units = _units(reader, schema, description, fields, output_format, IssueCounter())
        yield _compare(predictor, (unit.item for unit in units))
    reader.refuse_output(output)
    machine = fixed_machine(device) if bulk.is_shared else {}
    identity = {
        "command": "predict",
        "data": reader.content_identity() if bulk.is_shared else reader.fingerprint(),
        "model": predictor.fingerprint,
        "schema": asdict(schema),
        "fields": asdict(fields),
        "format": output_format.rows.identity,
    }
    options = str(model), device, precision, threshold, asdict(fields), asdict(output_format)
    gpus = gpus_for(device) if bulk.is_shared else 0
    job = FileJob(output, bulk, identity, PREDICTION_MAKER, options, machine=machine, gpus=gpus)
    empty = IssueCounter()
    yield from compute_file(
        "predict",
        job,
        _units(reader, schema, description, fields, output_format, empty),
        partial(_predictions, predictor, fields, output_format),
        partial(join_portions, output_format.rows, output),
        notes=lambda: reader.events(empty, "have no prediction"),
        examples=lambda units: predictor.reading.preview(
            [unit.item for unit in units if unit.item]
        ),
        size=lambda unit: unit.item.characters if unit.item else 0,
        document=lambda unit: (
            unit.item.document if unit.item and description.document_context else ""
        ),
    )


def _predictions(
    predictor: Predictor,
    fields: OutputFields,
    output_format: PredictionFormat,
    units: Sequence[Unit],
) -> tuple[int, Iterable[bytes]]:
    """Return the number of truncated texts, and a portion of finished rows."""
    answers = predictor.answers(unit.item for unit in units if unit.item is not None)
    columns = [
        fields.empty_columns if unit.item is None else fields.columns(*next(answers))
        for unit in units
    ]
    truncated = sum(new["truncated_tokens"] > 0 for new in columns)
    return truncated, output_format.portion(units, map(_rounded, columns))


def prediction_maker(
    model: str,
    device: str,
    precision: PrecisionOption,
    threshold: float | None,
    fields: dict[str, Any],
    output_format: dict[str, Any],
    threads: int,
) -> tuple[dict[str, Any], Callable[[Sequence[Unit]], tuple[int, Iterable[bytes]]]]:
    """Return the identity of this process and its work: the `maker` of a `FileJob`."""
    machine = fixed_machine(device, threads)
    predictor = Predictor(model, device=device, precision=precision, threshold=threshold)
    compute = partial(
        _predictions,
        predictor,
        OutputFields(**fields),
        PredictionFormat.of_settings(output_format),
    )
    return {"model": predictor.fingerprint, **machine}, compute


def _compare(predictor: Predictor, items_of_file: Iterator[Item | None]) -> Event:
    """How many predictions differ from those in fp32."""
    task = TASKS[predictor.description.task]
    rows = list(filter(None, islice(items_of_file, COMPARED)))
    labels, exact_labels = (
        [task.predicted_label(answer) for _, answer in each.answers(rows)]
        for each in (predictor, predictor.in_fp32())
    )
    text, fields = task.difference(labels, exact_labels)
    fields["compared"] = len(rows)
    return Event("note", f"{predictor.precision}: {text} from fp32", fields)


def answer_questions(
    data: str | Path,
    model: str | Path,
    *,
    device: str = "auto",
    precision: PrecisionOption = "auto",
    counts: Truncation | None = None,
    on_note: Callable[[str], object] = no_notes,
) -> Iterator[tuple[str, Answer]]:
    """Yield the id of each question in a SQuAD file and its answer (`Task.decode`), in order.

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
    is_for_questions = isinstance(TASKS[predictor.description.task], QuestionsTask)
    require(is_for_questions, what, model, hint)
    reader = RowReader(data)
    schema, _ = schema_for(reader, predictor.description, ("question", "context"))
    for note in predictor.reading.preview(list(islice(items(reader, schema, TASKS), 2))):
        on_note(note.text)
    for features, answer in predictor.answers(items(reader, schema, TASKS)):
        if counts is not None:
            counts.add_features(features, predictor.tokenizer)
        yield features.item.id, answer


def rows_with_items(
    reader: RowReader, schema: Schema, empty: IssueCounter
) -> Iterator[tuple[Row, Item | None]]:
    """Yield each row with its item, without a label.

    The item of a row without text is None, and the row is counted in `empty`.
    """
    schema = fitted(schema, reader)
    for row in reader:
        try:
            yield row, read_item(row, schema, TASKS[schema.task])
        except EmptyTextError:
            empty.add(row.where)
            yield row, None


def _units(
    reader: RowReader,
    schema: Schema,
    description: TaskConfig,
    fields: OutputFields,
    output_format: PredictionFormat,
    empty: IssueCounter,
) -> Iterator[Unit]:
    """All rows, checked.

    Raises:
        BertworksError: another number of choices, or a field with the name of a new column.
    """
    number = 1
    is_conll = output_format.rows.kind == "conll"
    for row, item in rows_with_items(reader, schema, empty):
        refuse_columns(row, fields.empty_columns)
        if item:
            task_of(description).check_item(item)
        lines = row.values.all_lines if isinstance(row.values, Sentence) and is_conll else ()
        written = {} if is_conll else row.written or row.values
        yield Unit(number, written, item, row.where, lines)
        columns = output_format.word_columns
        number += len(written[columns[0]]) if columns else 1


def schema_for(
    reader: RowReader, description: TaskConfig, text: str | Sequence[str]
) -> tuple[Schema, list[str]]:
    """Return what to read of a file, and notes on what was inferred.

    The texts are the columns `text`, else those of the training, else inferred ones.
    """
    names = names_of(text) or (
        description.text if all(name in reader.columns for name in description.text) else ()
    )
    schema, notes = infer_schema(reader, TASKS, task=description.task, text=names, labelled=False)
    if (
        description.text
        and TASKS[description.task].reads_pairs
        and len(schema.text) != len(description.text)
    ):
        count = "one text" if len(description.text) == 1 else "two texts"
        trained, here = (
            ", ".join(map(repr, columns)) for columns in (description.text, schema.text)
        )
        raise UsageError(
            f"the model reads {count} ({trained}), and the columns of the text here are: {here}",
            where=reader.name,
            hint="name the columns: "
            + " ".join(f"--text {word}" for word in ("FIRST", "SECOND")[: len(description.text)]),
        )
    document = description.document if description.document in reader.columns else schema.document
    raw = TASKS[description.task].reads_words and _holds_texts(reader, schema.text[0], description)
    return replace(schema, label=(), labels=description.labels, document=document, raw=raw), notes


def _holds_texts(reader: RowReader, column: str, description: TaskConfig) -> bool:
    """Return whether a column holds texts instead of words.

    These are strings, not lists, in the only column of a file, or in a column that is not one of
    the training.
    """
    rows = chain(reader.sample(1), reader)  # in most files the first row has a value
    first = next((row.values[column] for row in rows if row.values.get(column)), None)
    return (
        isinstance(first, str)
        and not first.startswith("[")
        and (len(reader.columns) == 1 or column not in description.text)
    )
