"""Predictions for files of any size, in their order.

- `Spool`: predictions on disk until all are there, so that an interrupted prediction resumes
- `predict_file`, `answer_questions`
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from bertworks.checkpoints.model_folder import weights_sha256
from bertworks.checkpoints.task_config import TaskConfig
from bertworks.datasets.infer_schema import infer_schema
from bertworks.datasets.reader import Quoting, RowReader
from bertworks.datasets.schema import Item, Schema, fitted, items, read_item
from bertworks.datasets.values import EmptyTextError
from bertworks.datasets.writer import FileKind, kind_of, refuse_same, write_lines, write_rows
from bertworks.errors import BertworksError, UsageError
from bertworks.events import Event
from bertworks.inference.decoding import Answer
from bertworks.inference.engine import open_model
from bertworks.inference.predictor import AT_ONCE, Columns, OutputFields, Predictor, said_in
from bertworks.io.atomic_write import acquire_lock
from bertworks.io.text_files import IssueCounter
from bertworks.training.device import PrecisionOption

_END = b"end of portion\n"


class Spool:
    """Answers, one JSON line each, in portions. What a killed process wrote of a portion is forgotten: the portion is
    answered again as a whole, and so just as it would have been. While it is open no other process can open it.

    Args:
        output: the file beside which it is kept; None: nothing is to be kept.
        fingerprint: of all that the answers depend on; the first line says it, and another one begins anew.

    Attributes:
        count: of the answers that are there.
        truncated: how many of them are to texts that were cut.
    """

    def __init__(self, output: Path | None, fingerprint: str):
        if output is None:
            self._scratch = TemporaryDirectory()
            self.path = Path(self._scratch.name) / "answers.partial"
        else:
            self.path = output.with_name(f".{output.name}.partial")
            output.parent.mkdir(parents=True, exist_ok=True)
        self.fingerprint, self.count, self.truncated = fingerprint, 0, 0
        self._lock = acquire_lock(
            self.path, "another process is writing the same output", "wait for it, or name another output"
        )
        self._file = self.path.open("a+b")
        if not self._usable():
            self._file.truncate(0)
            self._file.write(fingerprint.encode() + b"\n")
            self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._lock.release()

    def _usable(self) -> bool:
        """Whether answers of the same kind are there; half a portion is cut off."""
        file = self._file
        file.seek(0)
        if file.readline().decode("utf-8", "replace").rstrip("\n") != self.fingerprint:
            return False
        good, count, truncated = file.tell(), 0, 0
        for line in iter(file.readline, b""):
            if line == _END:
                good, self.count, self.truncated = file.tell(), count, truncated
            elif line.endswith(b"\n"):
                count += 1
                truncated += json.loads(line)["truncated_tokens"] > 0
        file.truncate(good)
        return True

    def add(self, portion: Sequence[Mapping[str, Any]]) -> None:
        """Keeps a portion of answers."""
        for result in portion:
            self._file.write((json.dumps(result, ensure_ascii=False) + "\n").encode())
        self._file.write(_END)
        self._file.flush()
        self.count += len(portion)
        self.truncated += sum(result["truncated_tokens"] > 0 for result in portion)

    def read(self) -> Iterator[dict[str, Any]]:
        """All answers, in their order."""
        with self.path.open("rb") as file:
            next(file)
            for line in file:
                if line != _END:
                    yield json.loads(line)

    def remove(self) -> None:
        """Deletes it: the answers are where they belong."""
        self.path.unlink(missing_ok=True)


def beside(output: str | Path) -> Path | None:
    """The output, as a spool wants it."""
    return None if str(output) == "-" else Path(output).expanduser()


_COMPARED = 64  # rows, whose answers in single precision are found as well


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
    """Answers to every row of a file, beside its own columns, in its order. Stopped and called again it goes on where
    it was; the output appears when it is whole.

    Args:
        data, output: files; "-" is standard input and output. The output's suffix tells its format. CoNLL, for tags:
            the lines of the file that was read, where it is one, with a further cell; else words and their tags.
        text: the columns to read; (): those that the model learned from, or else a guess.
        top_k, probabilities: see `Predictor.predict`.

    Raises:
        BertworksError, UsageError: no such model or column; a row that cannot be answered, with its line.
    """
    kind = kind or kind_of(output)
    source = open_model(model, device)
    predictor = Predictor(source, precision=precision, threshold=threshold)
    d = predictor.description
    if kind == "conll" and d.task != "tagging":
        raise UsageError(f"CoNLL columns are for tags, and this model is for {d.task}", hint="write another kind")
    reader = RowReader(data, quoting=quoting)
    refuse_same(reader, output)
    schema, notes = schema_for(reader, d, text)
    yield from (Event("note", note) for note in notes)
    shown = OutputFields.of_task(d, top_k, probabilities, schema.raw)
    columns = Columns(shown, reader.written_columns if kind != "conll" else [], d.first_choice or 0)
    with Spool(beside(output), _fingerprint(predictor, reader, columns, schema)) as spool:
        if spool.count:
            yield Event("note", f"going on after {spool.count:,} rows", {"resumed_row": spool.count})
        if predictor.precision == "int8":
            exact = Predictor(source, precision="fp32", threshold=threshold)
            first = islice(_asked(reader, schema, d, columns), _COMPARED)
            yield _cost(predictor, exact, [item for item in first if item])
        empty = IssueCounter()
        yield from _fill(spool, predictor, columns, _asked(reader, schema, d, columns, empty))
        yield from (Event("note", note) for note in reader.notes)
        if empty.count:
            yield Event("note", f"rows without text, and therefore without answer: {empty}", {"empty": empty.count})
        if kind == "conll":
            write_lines(output, _tagged(reader, schema, spool))
        else:
            write_rows(output, [*reader.written_columns, *columns.names], _told(reader, spool), kind=kind)
        spool.remove()
        cut = f"; {spool.truncated:,} were too long and were cut" if spool.truncated else ""
        fields = {"output": str(output), "rows": spool.count, "truncated": spool.truncated}
        yield Event("done", f"{output}: {spool.count:,} rows{cut}", fields)


def _cost(ours: Predictor, exact: Predictor, asked: Sequence[Item]) -> Event:
    """How many answers are other ones than in single precision."""
    said = [[answer for _, answer in predictor.answers(asked)] for predictor in (ours, exact)]
    if ours.description.task == "regression":
        largest = max((abs(a["value"] - b["value"]) for a, b in zip(*said, strict=True)), default=0.0)
        told, fields = f"the first {len(asked)} values differ by up to {largest:.3f} from", {"largest": largest}
    else:
        others = sum(said_in(a) != said_in(b) for a, b in zip(*said, strict=True))
        told, fields = f"{others} of the first {len(asked)} answers are other ones than", {"others": others}
    return Event("note", f"{ours.precision}: {told} in fp32", fields | {"compared": len(asked)})


def _fill(spool: Spool, predictor: Predictor, columns: Columns, asked: Iterator[Item | None]) -> Iterator[Event]:
    """Answers what is not in the spool."""
    for portion in _portions(islice(asked, spool.count, None), predictor.description.document_context):
        answers = predictor.answers(item for item in portion if item is not None)
        spool.add([columns.nothing if item is None else columns.of(*next(answers)) for item in portion])
        amount = {"stage": "predict", "what": "rows", "amount": spool.count}
        yield Event("stage", f"predict: {spool.count:,} rows", amount)


def _portions(asked: Iterator[Item | None], whole_documents: bool) -> Iterator[list[Item | None]]:
    """AT_ONCE rows each; with `whole_documents` more, up to the end of a document, which is read as a whole."""
    portion: list[Item | None] = []
    for item in asked:
        before = portion[-1] if portion else None
        together = whole_documents and item and before and item.document and item.document == before.document
        if len(portion) >= AT_ONCE and not together:
            yield portion
            portion = []
        portion.append(item)
    if portion:
        yield portion


def _told(reader: RowReader, spool: Spool) -> Iterator[dict[str, Any]]:
    """The rows that were read, with their answers."""
    return ({**(row.written or row.values), **told} for row, told in zip(reader, spool.read(), strict=True))


def _tagged(reader: RowReader, schema: Schema, spool: Spool) -> Iterator[str]:
    """The lines of a CoNLL file of answers: those of the file that was read, where it is one, with a further cell."""
    if reader.kind == "conll":
        yield from reader.with_tags(tag for result in spool.read() for tag in result["predicted_tags"])
        return
    fitting = fitted(schema, reader, labelled=False)
    for row, result in zip(reader, spool.read(), strict=True):
        tags = result["predicted_tags"] or []
        words = result["predicted_words"] if schema.raw else tags and read_item(row, fitting, labelled=False).texts
        for word, tag in zip(words or [], tags, strict=True):
            if "\t" in word or "\n" in word:
                raise BertworksError(f"the word {word!r} does not fit in a line", where=row.where, hint="write .jsonl")
            yield f"{word}\t{tag}"
        yield ""


def answer_questions(
    data: str | Path, model: str | Path, *, device: str = "auto", precision: PrecisionOption = "auto"
) -> Iterator[tuple[str, Answer]]:
    """Question id and answer, in the order of the file; see `learn.answers.Decoding` for what an answer holds.

    Raises:
        BertworksError: the data is not SQuAD, or the model was not fine-tuned for it.
    """
    predictor = Predictor(model, device=device, precision=precision)
    if predictor.description.task != "qa":
        raise BertworksError(
            f"this model was fine-tuned for {predictor.description.task}, not for answering questions",
            where=str(model),
            hint="fine-tune one: bertworks finetune TRAIN.json --dev DEV.json -o FOLDER",
        )
    reader = RowReader(data)
    schema, _ = schema_for(reader, predictor.description, ("question", "context"))
    for encoded, answer in predictor.answers(items(reader, schema, labelled=False)):
        yield encoded.item.id, answer


def _asked(
    reader: RowReader, schema: Schema, d: TaskConfig, columns: Columns, empty: IssueCounter | None = None
) -> Iterator[Item | None]:
    """A row of the file as an item; None for one without text, which is counted in `empty`.

    Raises:
        BertworksError: a row has another number of choices, or a field that is to be written.
    """
    schema = fitted(schema, reader, labelled=False)
    for row in reader:
        columns.refuse_taken(row.written or row.values, row.where)
        try:
            item = read_item(row, schema, labelled=False)
        except EmptyTextError:
            if empty is not None:
                empty.add(row.where)
            yield None
            continue
        if d.task == "choice" and d.num_choices and len(item.texts) != d.num_choices + 1:
            raise BertworksError(
                f"{len(item.texts) - 1} choices, and the model knows {d.num_choices}", where=row.where,
                hint="give every row as many choices as the data had that it learned from",
            )  # fmt: skip
        yield item


def schema_for(reader: RowReader, d: TaskConfig, text: Sequence[str]) -> tuple[Schema, list[str]]:
    """What to read of a file: the columns asked for, those that the model learned from, or a guess."""
    wanted = tuple(text) or (d.text if all(name in reader.columns for name in d.text) else ())
    schema, notes = infer_schema(reader, task=d.task, text=wanted, labelled=False)
    if d.text and d.task in ("classification", "multilabel", "regression") and len(schema.text) != len(d.text):
        one_or_two = "one text" if len(d.text) == 1 else "two texts"
        learned, found = (", ".join(map(repr, names)) for names in (d.text, schema.text))
        raise UsageError(
            f"the model reads {one_or_two} ({learned}), and here would be read: {found}", where=reader.name,
            hint="name the columns: " + " ".join(f"--text {word}" for word in ("FIRST", "SECOND")[: len(d.text)]),
        )  # fmt: skip
    document = d.document if d.document in reader.columns else schema.document
    raw = d.task == "tagging" and _holds_texts(reader, schema.text[0], d)
    return replace(schema, label=None, labels=d.labels, document=document, raw=raw), [] if wanted else notes


def _holds_texts(reader: RowReader, column: str, d: TaskConfig) -> bool:
    """Whether a column holds texts, and not words: it is the only one of a file without lists, or the model did not
    learn from a column of that name."""
    first = next((row.values[column] for row in reader if row.values.get(column)), None)
    return isinstance(first, str) and not first.startswith("[") and (len(reader.columns) == 1 or column not in d.text)


def _fingerprint(predictor: Predictor, reader: RowReader, columns: Columns, schema: Schema) -> str:
    """What the answers depend on."""
    state = reader.path.stat()
    content = {
        "model": [weights_sha256(predictor.folder), predictor.tokenizer.sha256],
        "data": [str(reader.path.resolve()), state.st_size, state.st_mtime_ns, reader.quoting],
        "task": asdict(predictor.description),
        "schema": asdict(schema),
        "shown": asdict(columns.shown),
        "precision": predictor.precision,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
