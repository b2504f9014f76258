"""A fine-tuned model, and its predictions for texts in memory and for files.

- `OutputFields`: the shown parts of a prediction, and their columns in a file
- `Predictor`: the model; `predict` goes from texts to answers
- `predict_in_words`: the predictions for texts, as short lines for people
- `predict_file`: the predictions for a file of any size, in the order of its rows
- `answer_questions`: the answers to the questions of a SQuAD file
"""

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from html import escape
from importlib import import_module
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

import numpy as np
from numpy.typing import NDArray

from bertworks.batching.examples import ExampleGroup
from bertworks.checkpoints.model_files import onnx_files
from bertworks.checkpoints.model_folder import put_temperature_into_folder
from bertworks.datasets.annotations import ConllLayout, Sentence, with_tags
from bertworks.datasets.reader import Row, RowReader, refuse_columns
from bertworks.datasets.schema import (
    Item,
    LabelCell,
    Schema,
    fitted,
    infer_schema,
    items,
    label_of,
    read_item,
)
from bertworks.datasets.values import EmptyTextError
from bertworks.errors import (
    UsageError,
    expect,
    listed,
    names_of,
    optional_import,
    require,
    some_names,
)
from bertworks.events import Event, JsonObject, no_notes
from bertworks.inference.engine import (
    LazyModel,
    ModelUser,
    OnnxModel,
    compute_logits,
    open_model,
    precision_for,
    prepared_encoder,
)
from bertworks.io.atomic_write import local_path, refuse_not_empty
from bertworks.io.class_names import named_column
from bertworks.io.file_job import (
    FileJob,
    FileKind,
    Portion,
    RowFormat,
    compute_file,
    format_of,
    join_portions,
    kind_of,
    line_portion,
    portions_of,
    row_portion,
)
from bertworks.io.inputs import IssueCounter
from bertworks.io.options import Bulk, ReadOptions
from bertworks.io.tables import (
    Data,
    are_rows,
    computed,
    is_missing,
    missing_hint,
    plain_value,
    rows_of_texts,
)
from bertworks.models.transformer import Encoder
from bertworks.tasks.heads import TaskModel
from bertworks.tasks.registry import TASKS, task_of
from bertworks.tasks.scores import compute_metrics
from bertworks.tasks.sequences import Features, Truncation, format_counts
from bertworks.tasks.settings import TaskConfig
from bertworks.tasks.task import Answer, Featurizer, Logits, Task, unknown_token_warning
from bertworks.training.device import (
    InferencePrecision,
    PrecisionOption,
    disable_heap_trim,
    fixed_machine,
    shared_machine,
)
from bertworks.training.recipe import MIN_LENGTH

COMPARED = 64  # texts of a file that are also computed in fp32


@dataclass(frozen=True)
class OutputFields:
    """The shown parts of a prediction, and their columns in a file.

    task: its name.
    top_k: how many labels or answers.
    probabilities: of all labels or answers, whatever `top_k` is.
    first_choice: the number of the first choice in the training data.
    """

    task: str
    parts: tuple[str, ...]
    top_k: int
    probabilities: bool
    first_choice: int = 0

    @classmethod
    def of_task(
        cls, task: Task, top_k: int, probabilities: bool, raw: bool = False
    ) -> "OutputFields":
        """The fields of a task. raw: tagging of texts, which the tokenizer splits into words.

        Raises:
            UsageError: several labels or answers, and the task has one.
        """
        parts = task.fields
        if raw:
            parts = (*(("entities",) if task.d.tag_scheme else ()), "words", *parts)
        if top_k > 1 or probabilities:
            expect(
                task.alternatives,
                f"a model for {task.name} has a single prediction, without alternatives",
            )
            parts = (*parts, task.alternatives)
        return cls(task.name, parts, top_k, probabilities, task.d.first_choice or 0)

    def select(self, answer: Answer) -> Answer:
        """Return the shown parts."""
        parts = {part: answer[part] for part in self.parts}
        if not self.probabilities and "n_best" in parts:
            parts["n_best"] = parts["n_best"][: self.top_k]
        elif not self.probabilities and isinstance(parts.get("scores"), dict):
            parts["scores"] = dict(
                sorted(parts["scores"].items(), key=lambda pair: -pair[1])[: self.top_k]
            )
        return parts

    @property
    def empty_columns(self) -> JsonObject:
        """The columns of a row without text."""
        return {**{f"predicted_{part}": None for part in self.parts}, "truncated_tokens": 0}

    def columns(self, features: Features, answer: Answer) -> JsonObject:
        """Return the columns of a row.

        Choices are counted as in the training data.
        """
        parts = TASKS[self.task].numbered(self.select(answer), self.first_choice)
        return {
            **{f"predicted_{part}": parts[part] for part in parts},
            "truncated_tokens": features.num_truncated,
        }


class Predictor(ModelUser):
    """A loaded fine-tuned model.

    A pickle of it holds the path of the model folder, these settings and a hash of the files;
    another process opens the folder again when it uses the object.

    Args:
        model: a folder of ours, also an exported one, or of transformers, or a hub id; or an open
            model, which stays on its device.
        threshold: multilabel: the probability from which a label is predicted; None: as in the
            model, else 0.5. qa: see `Task.decode`.
        precision: "auto": bf16 where the hardware is faster with it, which changes the third digit
            of probabilities; else fp32. "int8" changes the second digit.

    Attributes:
        description: the task of the model as plain data, with these settings; `task` is its object.
        precision: the precision that "auto" selected.

    Raises:
        BertworksError: no such model, or it was not fine-tuned.
        UsageError: int8 on hardware without it, or with the recipe `feature_based`.
    """

    def __init__(
        self,
        model: str | Path | LazyModel,
        *,
        device: str = "auto",
        precision: PrecisionOption = "auto",
        threshold: float | None = None,
        max_length: int | None = None,
    ):
        source = open_model(model, device)
        self.folder = source.within
        self.tokenizer = source.tokenizer
        d = source.task_config
        task_of(d).check_threshold(threshold)
        if threshold is not None:
            d = replace(d, threshold=threshold)
        if max_length is not None:
            d = replace(d, max_length=max_length)
        self.description = d
        self.task = task_of(d)
        self._set_opening(
            Predictor, source, precision=precision, threshold=threshold, max_length=max_length
        )
        self._network, self.precision = _prepare(source, d, precision)
        length = d.max_length
        longest = source.config.max_position_embeddings
        expect(
            MIN_LENGTH <= length <= longest,
            f"max_length is {length}: the model reads from {MIN_LENGTH} to {longest} tokens",
        )
        disable_heap_trim()
        self._is_open()

    @property
    def reading(self) -> Featurizer:
        """Items -> features."""
        return Featurizer(self.tokenizer, self.task)

    def in_fp32(self) -> "Predictor":
        """Return the same model in exact precision."""
        d = self.description
        return Predictor(
            self._source, precision="fp32", threshold=d.threshold, max_length=d.max_length
        )

    @cached_property
    def network(self) -> TaskModel:
        """The network in fp32 over the same weights, with modules to inspect.

        Raises:
            BertworksError: an exported model, which has none.
        """
        return task_network(self._source, self.description)

    def logits(self, units: Sequence[ExampleGroup]) -> list[Logits]:
        """See `compute_logits`."""
        return compute_logits(self._network, units, self.precision)

    def answers(self, items: Iterable[Item]) -> Iterator[tuple[Features, Answer]]:
        """Yield the features and the prediction of each item, in order.

        A portion of the items is in memory, see `portions_of`.
        """
        for group in portions_of(self.reading(items), lambda x: x.item.characters):
            for item, logits in zip(group, self.logits([item.unit for item in group]), strict=True):
                yield item, self.task.decode(item, logits)

    @property
    def classes_(self) -> NDArray[np.str_]:
        """The labels, in the order of `predict_proba`."""
        return np.array(self.description.labels, np.str_)

    def predict_proba(self, texts: Data) -> NDArray[np.float64]:
        """float64 [texts, labels]: the probability of each label, in the order of `classes_`.

        Of several labels each has its own.

        Args:
            texts: see `predict`.

        Raises:
            UsageError: as `predict`; the task has no labels of a whole text.
        """
        names = self.description.labels
        expect(
            self.task.has_text_labels,
            f"a model for {self.task.name} has no labels of a whole text",
            hint="use predict",
        )
        rows = [answer["scores"] for _, answer in self.answers(self._items(texts))]
        return np.array([[row[name] for name in names] for row in rows]).reshape(
            len(rows), len(names)
        )

    def score(self, texts: Data, labels: Iterable[Any]) -> float:
        """Return the metric of the predictions that comes first for the task.

        It is accuracy of one label, of choices and of tags that mark no entities; micro F1 of
        several labels; Spearman's correlation of numbers; F1 of entities and of answers.

        Args:
            texts: see `predict`.
            labels: the right label of each text, as in training data; of a question also its
                answer, or several.

        Raises:
            UsageError: more or fewer labels than texts.
            BertworksError: a label that is missing or unknown.
        """
        d = self.description
        rows = self._items(texts)
        values = listed(named_column(labels, "label"), "score([text], [label])", "label")
        task = self.task
        values = [task.label_value(value) for value in values]
        expect(
            len(rows) == len(values),
            f"{len(rows):,} texts and {len(values):,} labels",
            hint="give one label for each text",
        )
        schema = Schema(
            task=d.task,
            text=d.text,
            labels=task.row_labels(d.labels),
            separator=d.separator,
            first_choice=d.first_choice or 0,
        )
        gold = [
            item._replace(
                label=label_of(
                    LabelCell(value, "labels", item.texts, schema, f"label {number}"), task
                )
            )
            for number, (item, value) in enumerate(zip(rows, values, strict=True), 1)
        ]
        figures = compute_metrics(d, gold, [answer for _, answer in self.answers(rows)])
        return figures[task.metric()]

    def _items(self, texts: Any) -> list[Item]:
        """Return the argument of `predict` as items, checked."""
        d = self.description
        if are_rows(texts):
            reader = RowReader(texts)
            return list(
                items(reader, Schema(task=d.task, text=d.text or tuple(reader.columns)), TASKS)
            )
        return [
            item_of(text, number, self.task)
            for number, text in enumerate(listed(texts, "predict([text])[0]"), 1)
        ]

    def predict_frame(self, texts: Data, **options: Any) -> Any:
        """Return `predict` as a pandas DataFrame.

        It has the columns `predicted_label`, `predicted_score`, ... and `truncated_tokens`: how
        many tokens of the text were left out, because the model does not read as many. It has the
        index of `texts`, if that is a DataFrame or a Series:
        `frame.join(model.predict_frame(frame))`. For a DataFrame, a LazyFrame or a Series of polars
        it is a DataFrame of polars.

        Raises:
            UsageError: as `predict`.
            BertworksError: pandas is not installed.
        """
        texts = computed(texts)
        is_polars = type(texts).__module__.partition(".")[0] == "polars"
        library = "polars" if is_polars else "pandas"
        with optional_import("a DataFrame", library):
            frames = import_module(library)
        rows = []
        for answer in self.predict(texts, **options):
            truncated = answer.pop("truncated_tokens", 0)
            rows.append(
                {
                    **{f"predicted_{part}": value for part, value in answer.items()},
                    "truncated_tokens": truncated,
                }
            )
        if is_polars:
            return frames.DataFrame(rows, infer_schema_length=None)
        index = getattr(texts, "index", None)
        return frames.DataFrame(rows, index=None if callable(index) else index)

    def __repr__(self) -> str:
        d = self.description
        labels = f", {len(d.labels)} labels: {some_names(d.labels)}" if d.labels else ""
        return f"<{d.task} model {self.folder}: reads {' and '.join(d.text) or 'texts'}{labels}>"

    def _repr_html_(self) -> str:
        return f"<pre>{escape(repr(self))}</pre>"

    def predict(self, texts: Data, *, top_k: int = 1, probabilities: bool = False) -> list[Answer]:
        """Return the prediction for each text.

        One label: `label` and `score`, its probability. Several: `labels`. A number: `value`.
        Tagging: `tags`, one for each word; for a string also its `words`, and `entities` if the
        tags mark entities. Spans: `entities`, each with `start`, `end`, `type`, `text` and `score`.
        A question: `answer`, its `start` and `end` in the context, and `score`; "" and -1 for no
        answer. Choices: `choice`, from 0, and `score`. Only where a text is longer than the model
        reads: `truncated_tokens`, the number of its tokens that were left out.

        Args:
            texts: strings; for pairs, questions with contexts, or a prompt with its choices:
                tuples; for tagging: lists of words, or strings, which the tokenizer splits into
                words. Or rows with the columns of the training data: a list of dicts, a dict of
                columns, a DataFrame.
            top_k: if more than one: `scores` has the probabilities of the best labels; for a
                question, `n_best` has the best answers.
            probabilities: `scores` or `n_best` has all labels or answers.

        Raises:
            UsageError: texts of another kind, or several predictions of a model that has only one.
            BertworksError: a row without text, or with another value in its place.
        """
        fields = {
            raw: OutputFields.of_task(self.task, top_k, probabilities, raw)
            for raw in (False, self.task.reads_words)
        }
        predictions = []
        for features, answer in self.answers(self._items(texts)):
            prediction = fields[features.item.raw].select(answer)
            if features.num_truncated:
                prediction["truncated_tokens"] = features.num_truncated
            predictions.append(prediction)
        return predictions

    @property
    def fingerprint(self) -> JsonObject:
        """Everything that the predictions depend on, except the text."""
        return {**self._source.fingerprint, "precision": self.precision, **asdict(self.description)}

    def save(self, folder: str | Path) -> None:
        """Copy the model folder, which transformers can open too.

        The temperature of a folder of an earlier version is put into the weights of the copy.

        Raises:
            UsageError: the folder is not empty.
        """
        target = local_path(folder)
        refuse_not_empty(target)
        copy_files(self.folder, target)
        put_temperature_into_folder(target)

    def keep_alive(self, owner: object) -> None:
        """Keep an object, such as a temporary folder, as long as this model or a copy of it.

        No pickle holds it.
        """
        vars(self._source)["owner"] = owner


def copy_files(source: Path, target: Path, names: Iterable[str] | None = None) -> None:
    """Copy files of a model folder.

    names: within it; None: all that are not in a subfolder, and that the target lacks; and the ONNX
    files, wherever they are.
    """
    if names is None:
        present = (
            path.name
            for path in sorted(source.iterdir())
            if path.is_file() and not path.name.startswith(".")
        )
        names = [name for name in present if not (target / name).exists()]
        names += [
            path.relative_to(source).as_posix()
            for path in onnx_files(source)
            if path.parent != source
        ]
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, target / name)


def task_network(source: LazyModel, d: TaskConfig) -> TaskModel:
    """Return the network of a task with the weights of a model."""
    return source.network(lambda config: TaskModel(config, task_of(d).head(), d))


def _prepare(
    source: LazyModel, d: TaskConfig, option: PrecisionOption
) -> tuple[TaskModel | OnnxModel, InferencePrecision]:
    """Return the network in its fastest form, and the precision that "auto" selects."""
    if source.exported:
        return source.session(option, task=task_of(d).head()), "fp32"
    network = task_network(source, d)
    if network.features is not None:  # they compute the encoder themselves, in fp32
        expect(
            option != "int8",
            "a model of the recipe `feature_based` has no int8",
            hint="leave --precision out",
        )
        return network, precision_for(network, option, source)
    encoder, precision = prepared_encoder(network.encoder, option, source)
    network.encoder = cast(Encoder, encoder)
    return network, precision


def item_of(text: Any, number: int, task: Task) -> Item:
    """One of the texts for `Predictor.predict`, checked. number: for messages."""
    text = plain_value(text)
    texts: tuple[Any, ...] = ()
    if isinstance(text, str):
        texts = (text,)
    elif isinstance(text, list | tuple):
        texts = tuple(plain_value(part) for part in text)
    fits, expected = task.expected_texts(len(texts))
    is_text = fits and all(isinstance(part, str) for part in texts)
    expect(
        is_text,
        f"text {number} is {text!r:.60}: expected {expected}",
        hint=missing_hint("text") if is_missing(text) else None,
    )
    return Item(
        texts,
        None,
        f"text {number}",
        str(number),
        raw=task.reads_words and isinstance(text, str),
    )


PREDICTION_MAKER = "bertworks.inference.predictor:prediction_maker"
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
        """Return the format from its fields, as a job file stores them in JSON."""
        layout = settings["layout"]
        return cls(
            rows=RowFormat(**settings["rows"]),
            word_columns=settings["word_columns"],
            layout=layout and ConllLayout(*layout),
        )

    def portion(self, units: Sequence[Unit], columns: Iterable[JsonObject]) -> list[bytes]:
        """Return the content of a portion: finished rows.

        columns: the new columns of each unit.
        """
        rows: Iterable[Mapping[str, Any]]
        if self.rows.kind == "conll":
            lines = self._tagged_lines(units, columns)
            return line_portion(lines)
        rows = ({**unit.row, **new} for unit, new in zip(units, columns, strict=True))
        if self.word_columns:
            rows = (word for sentence in rows for word in _word_rows(sentence, self.word_columns))
        return row_portion(self.rows, rows, units[0].number)

    def _tagged_lines(self, units: Sequence[Unit], columns: Iterable[JsonObject]) -> Iterator[str]:
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
                require(
                    fits, f"the word {word!r} does not fit in a line", unit.where, "write .jsonl"
                )
                yield f"{word}\t{tag}"
            yield ""


def _word_rows(sentence: Mapping[str, Any], columns: Sequence[str]) -> Iterator[JsonObject]:
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


def predict_in_words(
    model: str | Path,
    texts: Sequence[str],
    *,
    text: str | Sequence[str] = (),
    threshold: float | None = None,
    device: str = "auto",
    precision: PrecisionOption = "auto",
    on_warning: Callable[[str], object] = no_notes,
) -> Iterator[str]:
    """Yield the prediction for each row of texts as a short line, such as `person  96.7%`.

    Args:
        texts: one after the other; two for each row of pairs or questions.
        text: see `predict_file`; threshold, device, precision: see `Predictor`.
        on_warning: is called if the vocabulary of the model lacks much of the texts, and at the end
            if a text was longer than the model reads.

    Raises:
        BertworksError, UsageError: no such model; a row that cannot be predicted.
    """
    predictor = Predictor(model, device=device, precision=precision, threshold=threshold)
    task = predictor.task
    d = predictor.description
    rows = rows_of_texts(list(texts), task.text_columns())
    reader = RowReader(rows, known=(*d.text, *d.label))
    schema, _ = schema_for(reader, task, text)
    rows_to_read = list(items(reader, schema, TASKS))
    for item in rows_to_read:
        task.check_item(item)
    all_texts = (" ".join(item.texts) for item in rows_to_read)
    if warning := unknown_token_warning(predictor.tokenizer, all_texts):
        on_warning(warning)
    truncation = Truncation()
    for features, answer in predictor.answers(rows_to_read):
        truncation.add(features.num_read, features.num_truncated, in_windows=False)
        yield task.in_words(features.item, answer)
    if any(truncation.as_counts()):
        on_warning(format_counts(truncation.as_counts()))


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
    options: JsonObject = {
        "device": device,
        "precision": precision,
        "threshold": threshold,
    }
    predictor = Predictor(model, **options)
    options["precision"] = predictor.precision  # "auto" is measured: processes may choose others
    description = predictor.description
    kind = kind or kind_of(output)
    task = predictor.task
    expect(
        kind != "conll" or task.reads_words,
        f"CoNLL columns are for tags, and this model is for {task.name}",
        hint="use another format",
    )
    names = task.text_columns()
    reader = RowReader(
        rows_of_texts(data, names), read, known=(*description.text, *description.label)
    )
    schema, notes = schema_for(reader, task, text)
    for note in notes:
        yield Event("note", note)
    fields = OutputFields.of_task(task, top_k, probabilities, schema.raw)
    if kind == "conll":
        output_format = PredictionFormat(
            rows=RowFormat(name=str(output), kind=kind, columns=()), layout=reader.conll_layout
        )
    else:
        has_words = reader.options.sentence_column is not None and "tags" in fields.parts
        columns = [*reader.written_columns, *fields.empty_columns]
        output_format = PredictionFormat(
            rows=format_of(output, columns, kind=kind, guard_formulas=guard_formulas),
            word_columns=reader.written_columns if has_words else (),
        )
    if predictor.precision == "int8":
        units = _units(reader, schema, task, fields, output_format, IssueCounter())
        yield _compare(predictor, (unit.item for unit in units))
    reader.refuse_output(output)
    identity = {
        "command": "predict",
        "data": reader.content_identity() if bulk.is_shared else reader.fingerprint(),
        "model": predictor.fingerprint,
        "schema": asdict(schema),
        "fields": asdict(fields),
        "format": output_format.rows.identity,
    }
    job = FileJob(
        output,
        bulk,
        identity,
        PREDICTION_MAKER,
        [str(model), options, asdict(fields), asdict(output_format)],
        **shared_machine(device, bulk.is_shared),
    )
    empty = IssueCounter()
    yield from compute_file(
        "predict",
        job,
        _units(reader, schema, task, fields, output_format, empty),
        partial(_predictions, predictor, fields, output_format),
        partial(join_portions, output_format.rows, output),
        notes=lambda: reader.events(empty, "have no prediction"),
        examples=lambda units: predictor.reading.preview(
            [unit.item for unit in units if unit.item]
        ),
        describe=format_counts,
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
) -> Portion:
    """Return the counts of truncated texts, and a portion of finished rows."""
    answers = predictor.answers(unit.item for unit in units if unit.item is not None)
    truncation = Truncation()
    columns = []
    for unit in units:
        if unit.item is None:
            columns.append(fields.empty_columns)
            continue
        features, answer = next(answers)
        truncation.add(features.num_read, features.num_truncated, in_windows=features.has_mean)
        columns.append(fields.columns(features, answer))
    return truncation.as_counts(), output_format.portion(units, map(_rounded, columns))


def prediction_maker(
    model: str,
    options: JsonObject,
    fields: JsonObject,
    output_format: JsonObject,
    threads: int,
) -> tuple[JsonObject, Callable[[Sequence[Unit]], Portion]]:
    """Return the `maker` of predictions, see `FileJob`. options: of the `Predictor`."""
    machine = fixed_machine(options["device"], threads)
    predictor = Predictor(model, **options)
    compute = partial(
        _predictions,
        predictor,
        OutputFields(**fields),
        PredictionFormat.of_settings(output_format),
    )
    return {"model": predictor.fingerprint, **machine}, compute


def _compare(predictor: Predictor, items_of_file: Iterator[Item | None]) -> Event:
    """How many predictions differ from those in fp32."""
    task = predictor.task
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
    require(
        predictor.task.file_kind == "squad",
        f"this model was fine-tuned for {predictor.task.name}, not for answering questions",
        model,
        "fine-tune one: bertworks finetune TRAIN.json --dev DEV.json -o FOLDER",
    )
    reader = RowReader(data)
    schema, _ = schema_for(reader, predictor.task, ("question", "context"))
    for note in predictor.reading.preview(list(islice(items(reader, schema, TASKS), 2))):
        on_note(note.text)
    for features, answer in predictor.answers(items(reader, schema, TASKS)):
        if counts is not None:
            counts.add(features.num_read, features.num_truncated)
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
    task: Task,
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
            task.check_item(item)
        lines = row.values.all_lines if isinstance(row.values, Sentence) and is_conll else ()
        written = {} if is_conll else row.written or row.values
        yield Unit(number, written, item, row.where, lines)
        columns = output_format.word_columns
        number += len(written[columns[0]]) if columns else 1


def schema_for(
    reader: RowReader, task: Task, text: str | Sequence[str]
) -> tuple[Schema, list[str]]:
    """Return what to read of a file, and notes on what was inferred.

    The texts are the columns `text`, else those of the training, else inferred ones.
    """
    description = task.d
    names = names_of(text) or (
        description.text if all(name in reader.columns for name in description.text) else ()
    )
    schema, notes = infer_schema(reader, TASKS, task=description.task, text=names, labelled=False)
    if description.text and task.reads_pairs and len(schema.text) != len(description.text):
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
    raw = task.reads_words
    if raw:
        # Texts are strings, not lists, in the only column of a file, or in a column that is not one
        # of the training.
        column = schema.text[0]
        rows = chain(reader.sample(1), reader)  # in most files the first row has a value
        first = next((row.values[column] for row in rows if row.values.get(column)), None)
        is_new = len(reader.columns) == 1 or column not in description.text
        raw = isinstance(first, str) and not first.startswith("[") and is_new
    return replace(schema, label=(), labels=description.labels, document=document, raw=raw), notes
