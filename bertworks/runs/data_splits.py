"""Labelled files -> training and dev data.

- `read_data`: a `DataRequest` -> items, divided into train and dev; groups of rows stay together
- `describe_task`: the task, the labels and how texts are read, as a `TaskConfig`
- `read_rows`: items -> what the network reads of them, in windows if many are long
"""

import hashlib
import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from itertools import chain
from os import PathLike
from pathlib import Path
from statistics import median
from typing import Any

from numpy.random import Generator

from bertworks.batching.examples import keyed_rng
from bertworks.datasets.reader import RowReader, SplitsError
from bertworks.datasets.schema import (
    Item,
    Schema,
    infer_schema,
    items,
    label_names,
    refuse_rows,
)
from bertworks.errors import BertworksError, UsageError, expect, first_names, quoted, require
from bertworks.io.atomic_write import sha256
from bertworks.io.inputs import IssueCounter, as_path
from bertworks.io.options import ReadOptions
from bertworks.io.tables import Data, stored
from bertworks.runs.options import LabelledOptions, Method, Validation
from bertworks.tasks.registry import TASKS, task_of
from bertworks.tasks.sequences import Features, windows_for
from bertworks.tasks.settings import SentenceVectors, TaskConfig
from bertworks.tasks.task import Featurizer, Task
from bertworks.text.near_copies import near_copies_of_rows
from bertworks.text.tokenizer import Tokenizer
from bertworks.training.recipe import LONG_TEXT, FinetuneRecipe

File = str | PathLike[str]
Fold = tuple[int, int]  # its number from 0, and of how many
Parts = tuple[list[int], ...]  # the numbers of the rows in each part
# fewer are too few to set some aside: scores come from cross-validation, the model from all rows
FEW_ROWS = 2000
# of the rows in a cross-validation, and those that are predicted by a model of the others
PARTS = 3
EVALUATED = 2
# parts of a second cross-validation, of linear heads, which are fitted in seconds
FOLDS = 10
# of rows times labels: ten fits with more take about ten seconds, and there are only PARTS then
MAX_FOLDS_WORK = 100_000
# rows of a label on average: with fewer, parts with the same fraction of every label make scores
# better than they are, and no interval that was tried holds (docs/concepts/intervals.md)
FEWEST_PER_LABEL = 9
CLAIM_PER_LABEL = 3  # with fewer, there is no claim about a score
# rows of a class: up to this number, vectors are compared with each other in training
MANY_OF_CLASS = 16
# with more rows of one class, the classes are too unequal for what is known about few rows
LARGE_CLASS = 32
# of the class of two that a user looks for
POSITIVE_NAMES = ("1", "yes", "true", "pos", "positive")
DEV_FRACTION = 0.1  # of the rows, if there is no dev file
MAX_DEV_ROWS = 2000
FEWEST_GROUPS = 10  # documents, or different texts, that are divided as a whole
MAX_RARE_ROWS = 20  # rows of rare labels that are held out in addition
_SHORTENED = 60  # characters of a text in a warning
_SPLIT = re.compile(
    r"((?P<train>train|training)|dev|valid|validation|val|devel|development)(set|data)?\d*"
)
_PARTS = re.compile(r"(?s:.{1,65536})(?!\S)|\S+")  # of a text, without a cut in a word
LISTED = 5  # rows named in a note
READING = (  # settings of texts, and of what reads them
    "max_length",
    "windows",
    "stride",
    "max_question",
    "max_answer",
    "document_context",
    "lstm_units",
    "lstm_encoder",
    "feature_layers",
)
# settings that apply to some tasks only
_TASK_SETTINGS = ("lstm_units", "document_context", "class_weights", "label_smoothing")
_WINDOWED = [task.name for task in TASKS.values() if "windows" in task.recipe_fields]
MANY_LONG = 0.05  # of the rows


@dataclass(frozen=True)
class LabelledData:
    """Training and dev items.

    notes: what was inferred and which rows were left out, in words.
    parts: the numbers of the training rows in each of PARTS parts of a cross-validation; (): there
        is none.
    tenths: the same in FOLDS parts, for linear heads. If there are fewer than FEWEST_GROUPS groups,
        or more than MAX_FOLDS_WORK rows times labels, they are `parts`.
    groups: the group of each training row of a cross-validation, which is in one part as a whole.
    doubt: why a score of the cross-validation has no interval; "": it has one.
    has_claim: whether anything is known about the score: else its interval is all that is possible.
    is_validated: whether `dev` has the rows of the first EVALUATED parts, as there are no others.
    label_rows: rows of a linear head besides `train`, which are never held out, see
        `runs.label_rows`. label_notes: about them.
    positive: the class whose F1 is reported, see `choose_positive`. None stands for the second
        class, or there are not two classes.
    """

    schema: Schema
    train: list[Item]
    dev: list[Item]
    notes: list[str] = field(default_factory=list)
    parts: Parts = ()
    is_validated: bool = False
    positive: str | None = None
    tenths: Parts = ()
    groups: Sequence[Hashable] = ()
    doubt: str = ""
    has_claim: bool = True
    label_rows: list[Item] = field(default_factory=list)
    label_notes: list[str] = field(default_factory=list)

    def fold(self, number: int) -> "LabelledData":
        """The data of a fold: one part is dev, the others are train."""
        train, dev = _of_fold(self.train, self.parts[number])
        return replace(
            self, train=train, dev=dev, parts=(), tenths=(), groups=(), is_validated=False
        )

    def wholly_evaluated(self) -> "LabelledData":
        """The data of a cross-validation that evaluates all rows, as of linear heads."""
        notes = [
            _evaluation_note(self.train, self.tenths, len(self.tenths))
            if note.startswith(_EVALUATED_NOTE)
            else note
            for note in self.notes
        ]
        return replace(self, dev=self.train, notes=notes) if self.is_validated else self


@dataclass(frozen=True)
class DataRequest(LabelledOptions):
    """Labelled data and how they are divided: a file, rows in memory, or a folder.

    A folder has a train and a dev file.

    Args:
        data: see `io.tables.Data`.
        dev: the dev file; None: that of the folder, or else see `validation`.
        group: see `LabelledOptions`. Questions about the same context and rows with the same texts
            always stay on one side; sentences of a document, pairs that share a text, and choices
            for the same text, if there are FEWEST_GROUPS groups of them.
        read: how files are read.
        fold, folds: the part number `fold`, from 0, of `folds` parts is the dev data; None: see
            `validation`.
        validation: without a dev file: "split": a random tenth of the rows is dev (at most
            MAX_DEV_ROWS), with the same fraction of every label. "folds": all rows are train, and
            dev has those that are predicted by models of the others. "auto": folds for less than
            FEW_ROWS rows. Neither depends on the seed of the run.
        label_descriptions: a file of texts that describe labels, see `runs.label_rows`; None: there
            is none.
    """

    data: Data
    _: KW_ONLY
    dev: Data | None = None
    read: ReadOptions = ReadOptions()
    fold: int | None = None
    folds: int = 0
    validation: Validation = "split"
    label_descriptions: str | None = None

    def checksums(self) -> dict[str, str]:
        """Return "data_sha256", "dev_sha256" and "label_descriptions_sha256": hashes of the files.

        A key is missing where there is no file.

        Raises:
            UsageError: see `find_files`.
        """
        checksums = {}
        for name in ("data", "dev", "label_descriptions"):
            data = getattr(self, name)
            if data is None:
                continue
            path = as_path(stored(data))
            files = find_files(path) if path.is_dir() else [path]
            hashes = [sha256(file) for file in files if file.is_file()]
            if hashes:
                joined = "".join(hashes).encode()
                checksums[f"{name}_sha256"] = hashlib.sha256(joined).hexdigest()
        return checksums

    def wants_parts(self, rows: Sequence[Item]) -> bool:
        """Return whether these rows are divided into the parts of a cross-validation."""
        is_few = self.validation == "auto" and len(rows) < FEW_ROWS
        return self.fold is None and (self.validation == "folds" or is_few)


def read_data(request: DataRequest, *, whole_documents: bool = False) -> LabelledData:
    """Read labelled data in one pass, and divide them.

    Copies and near-copies that are all rows of a label, or more rows than a fold or the held-out
    tenth has, are divided, and a note warns: first where their texts differ, then by rows.
    Questions on one context never are, nor are the rows of a group or document.

    Args:
        whole_documents: documents of a CoNLL file stay on one side, because their sentences are
            read together.

    Raises:
        UsageError: no such file or column; no such class.
        BertworksError: rows that cannot be used for training: all of them, with their lines; too
            few rows.
    """
    fold = None if request.fold is None else (request.fold, request.folds)
    by_document = request.group is not None or whole_documents
    path = stored(request.data)
    dev = None if request.dev is None else stored(request.dev, "dev rows")
    folder = as_path(path)
    if folder.is_dir():
        path, *dev_files = find_files(folder)
        dev = dev or next(iter(dev_files), None)
    reader, dev_reader = _open(path, dev, request.read, fold)
    empty = IssueCounter()
    reader.load()
    schema, notes = infer_schema(
        reader,
        TASKS,
        task=request.task,
        text=request.text,
        label=request.label,
        group=request.group,
    )
    all_items = _read_items(reader, schema, empty)
    notes += reader.notes
    schema, scheme_notes = TASKS[schema.task].with_scheme(schema, all_items)
    notes += scheme_notes
    positive = choose_positive(all_items, schema, request.positive, notes)
    by_parts = False
    if dev_reader is not None:
        train = all_items
        held_out = _read_items(dev_reader, schema, empty)
        part = f", {dev_reader.options.split}" if dev_reader.options.split else ""
        notes += [
            f"evaluated on {dev_reader.name}{part}: {len(held_out):,} rows",
            *dev_reader.notes,
        ]
    elif request.wants_parts(all_items):
        by_parts = True
        train = all_items
        held_out = []
    else:
        groups = _groups(all_items, schema, by_document, notes, fold[1] if fold else None)
        train, held_out = divide(all_items, schema, groups, fold, str(path))
        of_all = f"{len(held_out):,} of the {len(all_items):,} rows"
        how = f"fold {fold[0] + 1}/{fold[1]}: {of_all}" if fold else f"{of_all}, a random split"
        notes += [f"evaluated on {how}", *_document_notes(train, held_out, schema)]
    notes += [f"rows without text are left out: {empty}"] if empty.count else []
    train = _usable(train, schema, notes)
    parts: Parts = ()
    tenths: Parts = ()
    doubt = ""
    has_claim = True
    if request.wants_parts(train):
        groups = _groups(train, schema, by_document, notes if by_parts else [], PARTS)
        per_label = _rows_per_label(_different_rows(train, groups, schema), schema)
        by_label = TASKS[schema.task].is_stratified and per_label >= FEWEST_PER_LABEL
        parts = parts_of_rows(train, groups, PARTS, by_label)
        tenths = parts
        num_groups = len(set(groups))
        if per_label < FEWEST_PER_LABEL:
            doubt = (
                f"{per_label:.3g} rows per label are too few for a confidence interval (at least "
                f"{FEWEST_PER_LABEL} are needed)"
            )
            has_claim = per_label >= CLAIM_PER_LABEL
        if num_groups < FEWEST_GROUPS:
            doubt = doubt or (
                f"{num_groups} groups of rows are too few for a confidence interval (at least "
                f"{FEWEST_GROUPS} are needed)"
            )
        elif len(train) * max(1, len(schema.labels)) <= MAX_FOLDS_WORK:
            tenths = parts_of_rows(train, groups, FOLDS, by_label)
    else:
        groups = []
    if by_parts and parts:
        held_out = [train[n] for part in parts[:EVALUATED] for n in part]
        notes.append(_evaluation_note(train, parts, EVALUATED))
        notes += _document_notes(*_of_fold(train, parts[0]), schema)
    require(
        train and held_out,
        f"{len(all_items)} rows are too few to train and to evaluate",
        path,
        "--dev FILE",
    )
    return LabelledData(
        schema,
        train,
        held_out,
        notes,
        parts,
        by_parts,
        positive,
        tenths,
        groups if parts else (),
        doubt,
        has_claim,
    )


_EVALUATED_NOTE = "scored by "  # the beginning of `_evaluation_note`


def _evaluation_note(rows: Sequence[Item], parts: Parts, count: int) -> str:
    """Return a note about the rows of the first `count` parts of a cross-validation."""
    num_rows = sum(map(len, parts[:count]))
    method = f"{_EVALUATED_NOTE}{len(parts)}-fold cross-validation"
    if num_rows == len(rows):
        return f"{method} on all {len(rows):,} rows"
    return f"{method}; {count} folds ({num_rows:,} of {len(rows):,} rows) are run to save time"


def _different_rows(
    rows: Sequence[Item], groups: Sequence[Hashable], schema: Schema
) -> Sequence[Item]:
    """Return the rows, but only one of the near-copies of a text that have the same label.

    Near-copies are no further evidence. Other rows of a group are: those of a document, and pairs
    with a text in common.

    Args:
        groups: see `LabelledData`.
    """
    if not groups or schema.document is not None or len(schema.text) > 1:
        return rows
    keys = zip(groups, [str(row.label) for row in rows], strict=True)
    return [*dict(zip(keys, rows)).values()]


def _rows_per_label(rows: Sequence[Item], schema: Schema) -> float:
    """Return the mean number of rows of a label; infinity for a task without labels of texts."""
    if not TASKS[schema.task].has_text_labels:
        return math.inf
    counts = Counter(chain.from_iterable(map(label_names, rows)))
    return counts.total() / max(1, len(counts))


def parts_of_rows(
    rows: Sequence[Item], groups: Sequence[Hashable], count: int, by_label: bool
) -> Parts:
    """Return the numbers of the rows in each part of a cross-validation.

    They are whole groups. With `by_label` they have the same fraction of every label. (): there are
    fewer groups than parts.
    """
    generator = keyed_rng("folds", 0)
    strata = _strata(rows, groups, generator, by_label)
    parts = tuple(sorted(_fold(strata, number, count)) for number in range(count))
    return parts if all(parts) else ()


def choose_positive(
    rows: Sequence[Item], schema: Schema, positive: str | None, notes: list[str]
) -> str | None:
    """Return the class whose F1 is reported, or None if there are not two classes.

    It is the class that the user names; else the one whose name says that it is the positive one
    (POSITIVE_NAMES); else the rarer one in these rows; and if both are equally frequent, the second
    one. A note says which it is, and why.

    Args:
        rows: all labelled rows of the training data, also those that are held out, so that all
            folds agree.
        positive: the class that the user names; None if it is to be inferred.

    Raises:
        UsageError: the user names a class, and there are not two, or it is not one of them.
    """
    labels = schema.labels
    has_classes = TASKS[schema.task].has_classes
    if not has_classes or len(labels) != 2:
        classes = f"{len(labels):,} labels" if has_classes else f"the task is {schema.task}"
        expect(
            positive is None,
            f"F1 of one class, {positive!r}, is for data with two labels, and here: {classes}",
            hint="leave out --positive",
        )
        return None
    if positive is not None:
        expect(
            positive in labels,
            f"{positive!r} is not one of the two labels",
            hint=" or ".join(f"--positive {quoted(label)}" for label in labels),
        )
        notes.append(f"F1 of: {positive!r}")
        return positive
    with_positive_name = [label for label in labels if label.strip().casefold() in POSITIVE_NAMES]
    if len(with_positive_name) == 1:
        positive_label = with_positive_name[0]
        reason = "by its name"
    else:
        counts = Counter(item.label for item in rows)
        first_count = counts[labels[0]]
        second_count = counts[labels[1]]
        positive_label = labels[0] if first_count < second_count else labels[1]
        reason = "the rarer of the two labels"
        if first_count == second_count:
            reason = "the second of two equally frequent labels"
    other_label = labels[1] if positive_label == labels[0] else labels[0]
    notes.append(
        f"F1 of: {positive_label!r}, {reason}; --positive {quoted(other_label)} reports that of "
        "the other label"
    )
    return positive_label


def _usable(train: list[Item], schema: Schema, notes: list[str]) -> list[Item]:
    """The rows that can be learned. Notes name the others."""
    task = TASKS[schema.task]
    places = [item.where for item in train if task.is_doubtful(item)]
    if places:
        notes.append(f"{len(places):,} {task.doubtful_note}: {first_names(places, LISTED)}")
    if not task.leaves_out_doubtful:
        return train
    return [item for item in train if not task.is_doubtful(item)]


def _of_fold(rows: Sequence[Item], part: Sequence[int]) -> tuple[list[Item], list[Item]]:
    """The rows outside and inside a part."""
    held_out = set(part)
    return [item for n, item in enumerate(rows) if n not in held_out], [rows[n] for n in part]


def _open(
    path: File, dev: File | None, read: ReadOptions, fold: Fold | None
) -> tuple[RowReader, RowReader | None]:
    """Return the readers of the training data and of the dev data, if there is any.

    Each reads a file, or a part of the same file.
    """
    if fold is not None and dev is not None:
        raise UsageError(
            f"folds divide the training data, but there is a dev file: {dev}",
            where=path,
            hint=f"name the other file alone: bertworks finetune {quoted(path)} --folds "
            f"{fold[1]} ...",
        )
    try:
        return RowReader(path, read), None if dev is None else RowReader(dev, read)
    except SplitsError as error:
        words = [(name, _SPLIT.fullmatch(name)) for name in error.splits]
        train, held = (
            [name for name, word in words if word and bool(word["train"]) == side]
            for side in (True, False)
        )
        if dev is not None or read.split or len(train) != 1 or len(held) > 1:
            raise
        readers = [RowReader(path, replace(read, split=name)) for name in (*train, *held)]
        return readers[0], readers[1] if held and fold is None else None


def _read_items(reader: RowReader, schema: Schema, empty: IssueCounter) -> list[Item]:
    """The rows as items. Rows with errors are listed in one error."""
    errors: list[BertworksError] = []
    rows = list(items(reader, schema, TASKS, left_out=empty, errors=errors))
    refuse_rows(errors, reader.name)
    return rows


def find_files(folder: Path) -> list[Path]:
    """Return the train file in a folder and, if there is one, the dev file.

    Raises:
        UsageError: there is no train file, or there are several files of a kind.
    """
    files: dict[str, list[Path]] = {"train": [], "dev": []}
    for path in sorted(p for p in folder.iterdir() if p.is_file() and not p.name.startswith(".")):
        if words := list(filter(None, map(_SPLIT.fullmatch, re.split("[-_.]", path.name.lower())))):
            files["train" if any(word["train"] for word in words) else "dev"].append(path)
    content = ", ".join(p.name for p in sorted(folder.iterdir())[:20]) or "nothing"
    for name, paths in files.items():
        expect(
            len(paths) == 1 or (name == "dev" and not paths),
            f"the folder has {len(paths) or 'no'} {name} file{'s' if len(paths) > 1 else ''}: it "
            f"holds {content}",
            where=folder,
            hint="name the files: bertworks finetune TRAIN-FILE --dev DEV-FILE ...",
        )
    return [*files["train"], *files["dev"]]


def rows_per_class(data: LabelledData) -> float:
    """Return the median number of training rows of the classes of texts or pairs.

    Near-copies count as one row; they are known in a cross-validation alone. The number is infinite
    for data without such classes, and if a class has more than LARGE_CLASS rows: what is known
    about few rows was measured with classes of equal size.
    """
    task = TASKS[data.schema.task]
    if not (task.has_classes and task.predicts_texts):
        return math.inf
    rows = _different_rows(data.train, data.groups, data.schema)
    counts = Counter(item.label for item in rows).values()
    return math.inf if max(counts, default=0) > LARGE_CLASS else median(counts)


def has_classes_of_texts(schema: Schema) -> bool:
    """Return whether each row has one text and one class."""
    task = TASKS[schema.task]
    return task.has_classes and task.predicts_texts and len(schema.text) == 1


def methods_of(schema: Schema) -> tuple[Method, ...]:
    """Return the methods of a network that are possible for a task.

    The first one is used unless another is clearly better.
    """
    task = TASKS[schema.task]
    if not task.has_linear_head:
        return ("full",)
    if len(schema.text) == 2 and task.has_one_score(schema.labels):
        return ("cosine", "full", "frozen", "untrained")
    if has_classes_of_texts(schema):
        return ("full", "frozen", "contrastive")
    return ("full", "frozen")


def _vectors(schema: Schema, recipe: FinetuneRecipe, method: Method) -> SentenceVectors:
    """What of a sequence is classified.

    Raises:
        UsageError: the method does not apply to the task, or to the recipe.
    """
    known = methods_of(schema)
    if TASKS[schema.task].has_linear_head and not TASKS[schema.task].labels_tokens:
        known = (*known, "static")
    what = f"the method {method!r} is not for {schema.task}"
    if len(schema.text) == 1:
        what += " of single texts"
    expect(method in ("auto", *known), what, hint=f"use --method {' or '.join(known)}")
    if method not in ("auto", "full") and recipe.lstm_units:
        raise UsageError(
            f"the method {method!r} has no LSTM, and the recipe has lstm_units",
            hint="leave --recipe out",
        )
    if method in ("auto", "full") or TASKS[schema.task].labels_tokens:
        return "pooler"
    if method in ("cosine", "untrained"):
        return "cosine"
    return "pair" if len(schema.text) == 2 else "mean"


def describe_task(
    data: LabelledData, recipe: FinetuneRecipe, method: Method = "full"
) -> TaskConfig:
    """The task of the data, with the settings of the recipe that the model needs.

    Raises:
        UsageError: a setting of the recipe, or the method, does not apply to the task.
        BertworksError: rows with different numbers of choices.
    """
    schema = data.schema
    task = TASKS[schema.task]
    copied: dict[str, Any] = {"vectors": _vectors(schema, recipe, method)}
    for name in _TASK_SETTINGS:
        applies = name in task.recipe_fields or (
            name == "lstm_units" and recipe.lstm_encoder == "trained"
        )
        if getattr(recipe, name) != getattr(FinetuneRecipe, name) and not applies:
            tasks = [other.name for other in TASKS.values() if name in other.recipe_fields]
            is_recipe = name == "lstm_units"
            raise UsageError(
                f"{name} is for {', '.join(tasks)}, and the data is for {schema.task}",
                hint="use another recipe: stable, paper, bilstm" if is_recipe else "leave it out",
            )
    if recipe.document_context and schema.document is None:
        raise UsageError(
            "document_context: the data does not say which sentences belong to the same document",
            hint="separate documents by -DOCSTART- lines, or name their column: --group COLUMN; or "
            "leave it out",
        )
    copied |= {
        name: getattr(schema, name) for name in ("task", "text", "label", "separator", "bare_types")
    }
    expect(
        recipe.windows <= 1 or "windows" in task.recipe_fields,
        f"the number of windows is for {', '.join(_WINDOWED)}, and the data is for {schema.task}",
        hint="leave --windows out"
        + ("; long texts are read in windows to their end" if task.reads_windows else ""),
    )
    copied |= {name: getattr(recipe, name) for name in READING}
    copied["windows"] = max(0, recipe.windows)
    if task.counts_choices:
        copied |= {"num_choices": _num_choices(data), "first_choice": schema.first_choice}
    return TaskConfig(
        labels=task.network_labels(schema.labels),
        document=schema.document if recipe.document_context else None,
        threshold=task.initial_threshold([*data.train, *data.dev]),
        positive=data.positive,
        **copied,
    )


def read_rows(
    data: LabelledData, d: TaskConfig, recipe: FinetuneRecipe, tokenizer: Tokenizer
) -> tuple[Featurizer, list[Features], list[Features]]:
    """Return how rows are read, and the training and the dev rows as the network reads them.

    The task of the first has the number of windows of the recipe. If that is open, it is the number
    that LONG_TEXT tokens need, or 0 if not more than MANY_LONG of the rows are longer than one
    window.

    Args:
        d: the task, see `describe_task`.
    """

    def read(featurize: Featurizer) -> tuple[Featurizer, list[Features], list[Features]]:
        return featurize, list(featurize(data.train)), list(featurize(data.dev))

    task = task_of(d)
    featurize, train, dev = read(Featurizer(tokenizer, task))
    if recipe.windows >= 0 or "windows" not in task.recipe_fields:
        return featurize, train, dev
    rows = train if data.is_validated else [*train, *dev]
    num_longer = sum(row.num_truncated > 0 for row in rows)
    windows = windows_for(LONG_TEXT, d.max_length, tokenizer.template.num_special())
    if num_longer <= MANY_LONG * len(rows) or windows <= 1:
        return featurize, train, dev
    return read(Featurizer(tokenizer, task_of(replace(d, windows=windows))))


def _num_choices(data: LabelledData) -> int:
    places = {item.where: len(item.texts) - 1 for item in (*data.train, *data.dev)}
    most = Counter(places.values()).most_common(1)[0][0]
    for where, number in places.items():
        require(
            number == most,
            f"{number} choices, where most rows have {most}",
            where,
            "give every row the same number of choices",
        )
    return most


def _document_notes(train: Sequence[Item], dev: Sequence[Item], schema: Schema) -> list[str]:
    """A note if documents are on both sides of the split."""
    both = {item.document for item in train} & {item.document for item in dev} - {""}
    if not both or schema.document is None:
        return []
    what = (
        f"sentences of {len(both):,} documents are in both train and dev, and names recur "
        "in a document"
    )
    advice = f"--group {quoted(schema.document)} keeps each document on one side"
    return [f"{what}: scores on new documents are lower; {advice}"]


def text_key(texts: Sequence[str], lowercase: bool = True) -> bytes:
    """Return a key of a text that is equal for copies.

    White space and forms of Unicode make no difference, nor does case with `lowercase`.
    """
    key = hashlib.blake2b(digest_size=16)
    for text in texts:
        for part in _PARTS.finditer(text):  # the words of a long text would take ten times its size
            words = " ".join(unicodedata.normalize("NFKC", part[0]).split())
            key.update(
                f"{words.casefold() if lowercase else words} ".encode("utf-8", "replace")
                if words
                else b""
            )
        key.update(b"\0")
    return key.digest()


def _groups(
    all_items: Sequence[Item],
    schema: Schema,
    by_document: bool,
    notes: list[str],
    num_parts: int | None,
) -> list[Hashable]:
    """Return the group of each item that stays together, and notes.

    Groups are questions on a context, near-copies, rows of a document, and pairs that share a text.
    Notes say what is kept together that the user did not name.

    Fewer than FEWEST_GROUPS documents cannot be divided well, nor can fewer different texts (fewer
    than `num_parts` in folds): they are divided by rows. Nor can groups with more than a tenth of
    the rows: pairs are then kept together by one of their texts, or not.

    Args:
        by_document: whether documents stay together, however few there are.
        num_parts: how many parts of equal size there are; None if a tenth of the rows is held out.
    """
    task = TASKS[schema.task]
    rows: list[Hashable] = list(range(len(all_items)))
    documents = [item.document or row for item, row in zip(all_items, rows, strict=True)]
    if (
        not by_document
        and len(set(documents)) < len(rows)
        and len({x.document for x in all_items}) >= FEWEST_GROUPS
    ):
        by_document = True
        notes.append(f"kept together: sentences of a document, {len(set(documents)):,} documents")
    groups = documents if by_document else rows
    copies = _Copies(all_items, task)
    if not task.divides_copies:
        joined_groups = _joined(groups, copies.keys(num_parts, notes))
        notes += copies.division_notes(joined_groups)
        return joined_groups
    # Short sentences that are in many documents would make one group of these.
    largest = max(len(rows) // FEWEST_GROUPS, *Counter(groups).values())
    joined_groups = groups
    warnings: list[str] = []
    for kind in ("near-duplicates", "duplicates"):
        copy_notes: list[str] = []
        if kind == "near-duplicates":
            keys = copies.keys(num_parts, copy_notes)
        else:
            keys = copies.undivided(copies.exact)
            copy_notes = copies.exact_notes()
        joined_groups = _joined(groups, keys)
        has_few_groups = len(set(joined_groups)) < (num_parts or FEWEST_GROUPS)
        if not has_few_groups and not (
            by_document and max(Counter(joined_groups).values()) > largest
        ):
            notes += [*copy_notes, *warnings, *copies.division_notes(joined_groups)]
            break
        if len(set(keys)) < len(rows):
            effect = (
                "too few groups" if has_few_groups else "a group of more than a tenth of the rows"
            )
            warnings = [
                f"WARNING: {kind} of train rows may be in dev: kept together, they would make "
                f"{effect}"
            ]
    else:
        notes += warnings
        return groups
    options = task.shared_texts(len(schema.text))
    for sides in options:
        for side_keys in copies.keys_of_sides():
            keys = [side_keys[n][side] for side in sides for n in range(len(rows))]
            groups_by_text = _joined(joined_groups * len(sides), keys)[: len(rows)]
            count = len(set(groups_by_text))
            if count >= len(set(joined_groups)):  # no text is in two groups
                return groups_by_text
            if count >= FEWEST_GROUPS and max(Counter(groups_by_text).values()) <= largest:
                notes.append(f"kept together: rows with a text in common, {count:,} groups")
                return groups_by_text
    if options:
        notes.append("some rows in train and in dev share a text: scores on new texts may be lower")
    return joined_groups


class _Copies:
    """The copies and near-copies among labelled rows. Questions are compared by their contexts.

    exact: for each row a key that is the same for rows with the same texts (`text_key`).
    near: for each row a key of each of its texts, the same for near-copies (`text.near_copies`).
    """

    def __init__(self, rows: Sequence[Item], task: Task):
        self._rows = rows
        self._task = task
        self._divided_copies: set[Hashable] = set()  # keys of `near`
        self._divided_rows: set[int] = set()  # that stay together with no other row
        rows = [item._replace(texts=task.divided_texts(item)) for item in rows]
        self._texts = [item.texts for item in rows]
        self.exact: list[Hashable] = [text_key(texts) for texts in self._texts]
        self.near = near_copies_of_rows(task.compared_texts(rows))

    def keys(self, num_parts: int | None, notes: list[str]) -> list[Hashable]:
        """Return a key for each row, the same for rows that stay together.

        Notes about them are added.

        Near-copies are divided where their texts differ if they are more rows than one of
        `num_parts` parts (None: than the held-out tenth), or all rows of a label, which no model
        could learn and be evaluated on. Copies for which that still holds are divided by rows,
        except the questions on one context.
        """
        near: list[Hashable] = list(self.near)
        if num_parts is None:
            largest = max(1, int(min(DEV_FRACTION * len(near), MAX_DEV_ROWS)))
        else:
            largest = max(1, len(near) // num_parts)
        self._divided_copies = self._groups_to_divide(near, largest)
        keys = [
            exact if key in self._divided_copies else key
            for key, exact in zip(near, self.exact, strict=True)
        ]
        if self._task.divides_copies:
            divided = self._groups_to_divide(keys, largest)
            self._divided_rows = {row for row, key in enumerate(keys) if key in divided}
            keys = self.undivided(keys)
        notes += self.exact_notes()
        notes += self._near_notes(keys)
        return keys

    def undivided(self, keys: Sequence[Hashable]) -> list[Hashable]:
        """Return the keys of rows, but another one for each row that is divided from its copies."""
        return [row if row in self._divided_rows else key for row, key in enumerate(keys)]

    def _groups_to_divide(self, keys: Sequence[Hashable], largest: int) -> set[Hashable]:
        """Return the keys of groups that no split can leave whole.

        They have more than `largest` rows, or all rows of a label.
        """
        too_large = {key for key, count in Counter(keys).items() if count > largest}
        if not self._task.has_text_labels:
            return too_large
        totals = Counter(chain.from_iterable(map(label_names, self._rows)))
        in_groups = Counter(
            (key, label)
            for key, item in zip(keys, self._rows, strict=True)
            for label in label_names(item)
        )
        return too_large | {
            key for (key, label), count in in_groups.items() if count == totals[label] > 1
        }

    def keys_of_sides(self) -> Iterator[Sequence[Sequence[Hashable]]]:
        """Yield for each row a key for each of its texts.

        The keys of near-copies come first, then those of copies. Rows that are divided from their
        copies share no text.
        """
        exact: list[list[Hashable]] = [
            [text_key([text]) for text in texts] for texts in self._texts
        ]
        near: list[list[Hashable]] = [list(key) for key in self.near]
        for keys in (near, exact):
            for row in self._divided_rows:
                keys[row] = [("divided", row) for _ in keys[row]]
            yield keys

    def exact_notes(self) -> list[str]:
        """Return a note about rows with the same text, if there are any that stay together."""
        counts = Counter(key for row, key in enumerate(self.exact) if row not in self._divided_rows)
        copies = sum(count for count in counts.values() if count > 1)
        return [f"duplicates, kept together: {copies:,} rows"] if copies else []

    def _near_notes(self, keys: Sequence[Hashable]) -> list[str]:
        """Return a note about near-copies that stay together, with two examples."""
        first_rows: dict[Hashable, int] = {}
        copies = IssueCounter()
        for row, key in enumerate(keys):
            first = first_rows.setdefault(key, row)
            if self.exact[first] != self.exact[row]:
                copies.add(f"{self._place(row)} = {self._place(first)}")
        if not copies.count:
            return []
        examples = " and ".join(copies.places[:2])
        return [f"near-duplicates, kept together: {copies.count:,}, e.g. {examples}"]

    def division_notes(self, groups: Sequence[Hashable]) -> list[str]:
        """Return a warning about the copies that are in several of these groups.

        It names the first one. They are too many to stay together. Groups of the user may have
        kept them together.
        """
        groups_of_copies: dict[Hashable, set[Hashable]] = defaultdict(set)
        for key, group in zip(self.near, groups, strict=True):
            if key in self._divided_copies:
                groups_of_copies[key].add(group)
        divided = [
            row for row, key in enumerate(self.near) if len(groups_of_copies.get(key, ())) > 1
        ]
        if not divided:
            return []
        text = " ".join(self._texts[divided[0]])
        if len(text) > _SHORTENED:
            text = f"{text[:_SHORTENED]}..."
        examples = " and ".join(map(self._place, divided[:2]))
        return [
            f"WARNING: {len(divided):,} rows are duplicates or near-duplicates of each other, e.g. "
            f"{examples} ({text!r}), and are on both sides of the split, because they are all rows "
            "of a label, or more than a fold or the held-out part has: their score is too high. "
            "Remove the duplicates for a realistic score"
        ]

    def _place(self, row: int) -> str:
        return self._rows[row].where.rpartition("/")[2]


def _joined(groups: Sequence[Hashable], keys: Sequence[Hashable]) -> list[Hashable]:
    """Return the smallest groups that divide none of `groups`, and no items with the same key.

    They are found by union-find.
    """
    parent: dict[Hashable, Hashable] = {}

    def root(key: Hashable) -> Hashable:
        above = parent.setdefault(key, key)
        while above != key:
            parent[key] = parent[above]
            key = above
            above = parent.setdefault(key, key)
        return key

    for group, key in zip(groups, keys, strict=True):
        parent[root(group)] = root(("key", key))
    return list(map(root, groups))


def divide(
    all_items: Sequence[Item],
    schema: Schema,
    groups: Sequence[Hashable],
    fold: Fold | None = None,
    name: str = "",
) -> tuple[list[Item], list[Item]]:
    """Train and dev, in the order of the file: whole groups, the same fraction of every label.

    Args:
        groups: for each item, the group that stays together.
        fold: see `DataRequest`. name: of the file.

    Raises:
        UsageError: fewer groups than folds. BertworksError: a single group.
    """
    num_groups = len(set(groups))
    if num_groups == 1 < len(all_items):
        raise BertworksError(
            f"all {len(all_items):,} rows belong to one context or group: they cannot be split",
            where=name,
            hint="--dev FILE",
        )
    if fold and num_groups < fold[1]:
        raise UsageError(
            f"{fold[1]} folds need at least {fold[1]} rows, or groups of rows: there are "
            f"{num_groups:,}",
            where=name,
            hint=f"--folds {num_groups}, or fewer",
        )
    by_label = TASKS[schema.task].is_stratified
    strata = _strata(all_items, groups, keyed_rng("folds" if fold else "dev", 0), by_label)
    held_out = _fold(strata, *fold) if fold else _tenth(strata, len(all_items))
    return _of_fold(all_items, sorted(held_out))


def _tenth(strata: list[list[list[int]]], num_rows: int) -> set[int]:
    """Return the rows of dev.

    A label too rare for its fraction gives one group, the most frequent label first, up to
    MAX_RARE_ROWS rows or as many as the others give.
    """
    num_dev = min(DEV_FRACTION * num_rows, MAX_DEV_ROWS)
    num_rare = 0
    held_out: set[int] = set()
    for count, label_groups in sorted(
        ((sum(map(len, rows)), rows) for rows in strata), key=lambda pair: -pair[0]
    ):
        candidates = label_groups[:-1]  # at least one group stays in train
        num_of_label = 0
        for rows in candidates:
            if num_of_label + len(rows) / 2 <= num_dev * count / num_rows:
                held_out.update(rows)
                num_of_label += len(rows)
        rare = [] if num_of_label else min(candidates, key=len, default=[])
        if not held_out or num_rare + len(rare) <= max(num_dev, MAX_RARE_ROWS):
            held_out.update(rare)
            num_rare += len(rare)
    return held_out


def _fold(strata: list[list[list[int]]], number: int, count: int) -> set[int]:
    """The rows of one of `count` parts of equal size."""
    parts: list[list[int]] = [[] for _ in range(count)]
    for rows in chain.from_iterable(strata):
        min(parts, key=len).extend(rows)
    return set(parts[number])


def _strata(
    all_items: Sequence[Item], groups: Sequence[Hashable], generator: Generator, by_label: bool
) -> list[list[list[int]]]:
    """Return the groups, as numbers of items, in random order.

    With `by_label` they are separated by their most frequent label if they are no larger than dev.
    """
    members: dict[Hashable, list[int]] = defaultdict(list)
    for number, key in enumerate(groups):
        members[key].append(number)
    strata: dict[str, list[list[int]]] = defaultdict(list)
    largest = max(1, round(DEV_FRACTION * len(all_items)))
    for numbers in members.values():
        label = (
            Counter(all_items[n].label for n in numbers).most_common(1)[0][0] if by_label else ""
        )
        strata[str(label) if len(numbers) <= largest else ""].append(numbers)
    return [
        [rows[n] for n in generator.permutation(len(rows)).tolist()]
        for _, rows in sorted(strata.items())
    ]
