"""A fine-tuned model's answers: to texts in memory, and to files of any size, in their order and with nothing lost."""

import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, cast

from bertworks.data.labelled import Unit
from bertworks.data.questions import Encoded, Reading
from bertworks.errors import BertworksError, UsageError
from bertworks.files.model import EXPORTED, WEIGHTS, is_exported
from bertworks.files.opened import Opened, opened
from bertworks.files.storage import read_json
from bertworks.files.task import TaskDescription, read_task
from bertworks.learn.answers import Answer, Logits
from bertworks.learn.exported import Exported
from bertworks.learn.finetuning import LEAST_LENGTH
from bertworks.learn.inference import logits_of, prepared
from bertworks.learn.machine import Choice, InferencePrecision, best_precision, choose_device, keep_memory
from bertworks.learn.tasks import TaskModel
from bertworks.nn.encoder import Encoder
from bertworks.rows.guessing import guess_schema
from bertworks.rows.reader import Quoting, RowReader
from bertworks.rows.schema import EmptyTextError, Item, Schema, Task, fitted, items, read_item
from bertworks.rows.writer import FileKind, kind_of, refuse_same, write_lines, write_rows
from bertworks.runs.events import Event
from bertworks.runs.finetuning import decoding_of, reading_of, task_of
from bertworks.text.atomic import sha256
from bertworks.text.streams import Tally
from bertworks.use.shown import Columns, Shown, said_in
from bertworks.use.spool import Spool, beside

_COMPARED = 64  # rows, whose answers in single precision are found as well
AT_ONCE = 2048  # items that are read, sorted by length and answered together


class Predictor:
    """A fine-tuned model, loaded.

    Args:
        model: a folder of ours, also an exported one, or of transformers' own, or a hub id; it must have a head. Or
            one that is open, which stays where it is.
        threshold: multilabel: the probability from which a label is given, 0.5 unless the model says otherwise. qa: see
            `learn.answers.Decoding`.
        precision: "auto": bf16 where this hardware gains by it, whose probabilities differ in the third digit;
            elsewhere fp32. "int8": see `nn.frozen.in_int8`; probabilities differ in the second digit.

    Attributes:
        precision: what "auto" has become.

    Raises:
        BertworksError: no such model, or it was not fine-tuned.
        UsageError: int8 on hardware without it, or of a model that reads several layers (the recipe `features`).
    """

    def __init__(
        self,
        model: str | Path | Opened,
        *,
        device: str = "auto",
        precision: Choice = "auto",
        threshold: float | None = None,
        max_length: int | None = None,
    ):
        source = opened(model, device)
        self.folder, self.tokenizer = source.within, source.tokenizer
        found = read_task(self.folder)
        changes: dict[str, Any] = {} if threshold is None else {"threshold": threshold}
        changes |= {} if max_length is None else {"max_length": max_length}
        _check_threshold(found.task, threshold)
        self.description = replace(found, **changes)
        self._source = source
        self._answering, self.precision = _answering(source, self.description, precision)
        length, longest = self.description.max_length, source.config.max_position_embeddings
        if not LEAST_LENGTH <= length <= longest:
            raise UsageError(f"max_length is {length}: the model reads from {LEAST_LENGTH} to {longest} tokens")
        keep_memory()

    @property
    def reading(self) -> Reading:
        """How the model reads."""
        return reading_of(self.description, self.tokenizer)

    @cached_property
    def network(self) -> TaskModel | None:
        """Over the same weights, one that may be looked into, in single precision; None of an exported model."""
        return None if self._source.exported else _network(self._source, self.description)

    def logits(self, units: Sequence[Unit]) -> list[Logits]:
        """As `learn.inference.logits_of`."""
        return logits_of(self._answering, units, self.precision)

    def answers(self, asked: Iterable[Item]) -> Iterator[tuple[Encoded, Answer]]:
        """To each item, in their order; some thousand are in memory at a time."""
        decoding, encoded = decoding_of(self.description), self.reading(asked)
        while group := list(islice(encoded, AT_ONCE)):
            logits = self.logits([one.unit for one in group])
            for one, rows in zip(group, logits, strict=True):
                yield one, decoding(one, rows)

    def predict(self, texts: Sequence[Any], *, top_k: int = 1, probabilities: bool = False) -> list[Answer]:
        """What the model says of each text.

        One label: `label` and `score`, its probability. Several: `labels`. A number: `value`. Tagging: `tags`, one for
        each word; of a string also its `words`, and `entities` where tags mark these. Spans: `entities`, each with
        `start`, `end`, `type`, `text` and `score`. A question: `answer`, its `start` and `end` in the context, and
        `score`; "" and -1 for no answer. Choices: `choice`, from 0, and `score`.

        Args:
            texts: strings; pairs, questions with their contexts, or a prompt with its choices as tuples; for tagging
                lists of words, or strings, which are parted into words as the tokenizer does it.
            top_k: with more than one, `scores` has so many labels and their probabilities; of a question, `n_best` has
                so many answers.
            probabilities: those of all labels, or of all answers that were weighed.

        Raises:
            UsageError: texts of another kind, or more than one answer of a model that gives only one.
        """
        if isinstance(texts, str):
            raise UsageError("expected a list of texts, not one text", fix="predict([text])[0]")
        d = self.description
        shown = {raw: Shown.of_task(d, top_k, probabilities, raw) for raw in (False, d.task == "tagging")}
        asked = [item_of(one, number, d) for number, one in enumerate(texts, 1)]
        return [shown[encoded.item.raw].of(answer) for encoded, answer in self.answers(asked)]

    def save(self, folder: str | Path) -> None:
        """Copies the model folder, which transformers opens as well.

        Raises:
            UsageError: there is something in the way.
        """
        target = Path(folder)
        if target.exists() and any(target.iterdir()):
            raise UsageError("the folder is not empty", where=str(target), fix="name another one")
        target.mkdir(parents=True, exist_ok=True)
        for path in sorted(self.folder.iterdir()):
            if path.is_file() and not path.name.startswith("."):
                shutil.copyfile(path, target / path.name)


def _network(source: Opened, d: TaskDescription) -> TaskModel:
    head = "span" if d.task == "qa" else "classifier"
    return source.network(
        lambda config: TaskModel(config, task_of(d), recurrent_units=d.recurrent_units), "encoder", head
    )


def _answering(source: Opened, d: TaskDescription, wanted: Choice) -> tuple[TaskModel | Exported, InferencePrecision]:
    """What answers soonest, and what "auto" has become."""
    if source.exported:
        return source.session("fp32" if wanted == "auto" else wanted, task=task_of(d)), "fp32"
    network = _network(source, d)
    if network.features is not None:  # they read the encoder themselves, in single precision
        if wanted == "int8":
            raise UsageError("a model of the recipe `features` has no int8", fix="leave --precision out")
        return network, best_precision(choose_device(source.device)) if wanted == "auto" else wanted
    encoder, precision = prepared(network.encoder, wanted)
    network.encoder = cast(Encoder, encoder)
    return network, precision


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
    precision: Choice = "auto",
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
    source = opened(model, device)
    predictor = Predictor(source, precision=precision, threshold=threshold)
    d = predictor.description
    if kind == "conll" and d.task != "tagging":
        raise UsageError(f"CoNLL columns are for tags, and this model is for {d.task}", fix="write another kind")
    reader = RowReader(data, quoting=quoting)
    refuse_same(reader, output)
    schema, notes = schema_for(reader, d, text)
    yield from (Event("note", note) for note in notes)
    shown = Shown.of_task(d, top_k, probabilities, schema.raw)
    columns = Columns(shown, reader.written_columns if kind != "conll" else [], d.first_choice or 0)
    with Spool(beside(output), _fingerprint(predictor, reader, columns, schema)) as spool:
        if spool.count:
            yield Event("note", f"going on after {spool.count:,} rows", {"resumed_row": spool.count})
        if predictor.precision == "int8":
            exact = Predictor(source, precision="fp32", threshold=threshold)
            first = islice(_asked(reader, schema, d, columns), _COMPARED)
            yield _cost(predictor, exact, [item for item in first if item])
        empty = Tally()
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
                raise BertworksError(f"the word {word!r} does not fit in a line", where=row.where, fix="write .jsonl")
            yield f"{word}\t{tag}"
        yield ""


def answer_questions(
    data: str | Path, model: str | Path, *, device: str = "auto", precision: Choice = "auto"
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
            fix="fine-tune one: bertworks finetune TRAIN.json --dev DEV.json -o FOLDER",
        )
    reader = RowReader(data)
    schema, _ = schema_for(reader, predictor.description, ("question", "context"))
    for encoded, answer in predictor.answers(items(reader, schema, labelled=False)):
        yield encoded.item.id, answer


def _asked(
    reader: RowReader, schema: Schema, d: TaskDescription, columns: Columns, empty: Tally | None = None
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
                fix="give every row as many choices as the data had that it learned from",
            )  # fmt: skip
        yield item


def schema_for(reader: RowReader, d: TaskDescription, text: Sequence[str]) -> tuple[Schema, list[str]]:
    """What to read of a file: the columns asked for, those that the model learned from, or a guess."""
    wanted = tuple(text) or (d.text if all(name in reader.columns for name in d.text) else ())
    schema, notes = guess_schema(reader, task=d.task, text=wanted, labelled=False)
    if d.text and d.task in ("classification", "multilabel", "regression") and len(schema.text) != len(d.text):
        one_or_two = "one text" if len(d.text) == 1 else "two texts"
        learned, found = (", ".join(map(repr, names)) for names in (d.text, schema.text))
        raise UsageError(
            f"the model reads {one_or_two} ({learned}), and here would be read: {found}", where=reader.name,
            fix="name the columns: " + " ".join(f"--text {word}" for word in ("FIRST", "SECOND")[: len(d.text)]),
        )  # fmt: skip
    document = d.document if d.document in reader.columns else schema.document
    raw = d.task == "tagging" and _holds_texts(reader, schema.text[0], d)
    return replace(schema, label=None, labels=d.labels, document=document, raw=raw), [] if wanted else notes


def _holds_texts(reader: RowReader, column: str, d: TaskDescription) -> bool:
    """Whether a column holds texts, and not words: it is the only one of a file without lists, or the model did not
    learn from a column of that name."""
    first = next((row.values[column] for row in reader if row.values.get(column)), None)
    return isinstance(first, str) and not first.startswith("[") and (len(reader.columns) == 1 or column not in d.text)


_EXPECTED = {  # what a text is, by task
    "tagging": "a string, or a list of words", "qa": "(question, context)", "choice": "(prompt, choice, choice, ...)",
    "spans": "a string",
}  # fmt: skip


def item_of(one: Any, number: int, d: TaskDescription) -> Item:
    """One of the texts that `Predictor.predict` takes, checked."""
    texts = (one,) if isinstance(one, str) else tuple(one) if isinstance(one, list | tuple) else ()
    good = len(texts) > 0 and all(isinstance(text, str) for text in texts)
    match d.task:
        case "tagging":
            fits = True
        case "choice":
            fits = len(texts) == d.num_choices + 1 if d.num_choices else len(texts) > 2  # 0: nobody said how many
        case "qa" | "spans":
            fits = len(texts) == (2 if d.task == "qa" else 1)
        case _:
            fits = len(texts) <= 2 and (not d.text or len(texts) == len(d.text))
    if not good or not fits:
        expected = _EXPECTED.get(d.task, ("a string, or a pair of them", "a string", "a pair of strings")[len(d.text)])
        raise UsageError(f"text {number} is {str(one)[:60]!r}: expected {expected}")
    return Item(texts, None, f"text {number}", str(number), raw=d.task == "tagging" and isinstance(one, str))


def _check_threshold(task: Task, threshold: float | None) -> None:
    if threshold is None:
        return
    if task not in ("multilabel", "qa"):
        raise UsageError(f"a model for {task} has no threshold", fix="leave it out")
    if task == "multilabel" and not 0 <= threshold <= 1:
        raise UsageError(f"the threshold is {threshold}: expected a probability, from 0 to 1")


def _fingerprint(predictor: Predictor, reader: RowReader, columns: Columns, schema: Schema) -> str:
    """What the answers depend on."""
    state = reader.path.stat()
    weights = predictor.folder / (EXPORTED if is_exported(predictor.folder) else WEIGHTS)
    content = {
        "model": sha256(weights) if weights.exists() else read_json(predictor.folder / "config.json"),
        "data": [str(reader.path.resolve()), state.st_size, state.st_mtime_ns, reader.quoting],
        "task": asdict(predictor.description),
        "schema": asdict(schema),
        "shown": asdict(columns.shown),
        "precision": predictor.precision,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
