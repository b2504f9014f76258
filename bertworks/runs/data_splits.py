"""Labelled files -> training and dev data.

- `read_data`: files -> items, divided into train and dev; groups of rows stay together
- `describe_task`: the task, the labels and how texts are read, as a `TaskConfig`
"""

import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from numpy.random import Generator

from bertworks.batching.sampling import keyed_rng
from bertworks.checkpoints.model_folder import TaskConfig
from bertworks.datasets.infer_schema import infer_schema
from bertworks.datasets.reader import Quoting, RowReader
from bertworks.datasets.schema import Item, Schema, TaskType, items, misplaced, overlapping
from bertworks.datasets.values import first_names
from bertworks.errors import BertworksError, UsageError
from bertworks.io.text_files import IssueCounter
from bertworks.training.recipe import FinetuneRecipe

DEV_FRACTION, MAX_DEV_ROWS = 0.1, 2000  # of the rows, if there is no dev file
MAX_RARE_ROWS = 20  # rows of rare labels that are held out in addition
SPLITS = {
    "train": ("train", "training"),
    "dev": ("dev", "valid", "validation", "val", "devel", "development"),
}
LISTED, LISTED_ERRORS = 5, 20  # rows named in a note, and in an error
_SETTING_TASKS: dict[str, tuple[TaskType, ...]] = {  # settings that apply to some tasks only
    "lstm_units": ("tagging", "spans"), "document_context": ("tagging",),
    "class_weights": ("classification", "tagging", "spans"), "label_smoothing": ("classification", "tagging", "spans"),
}  # fmt: skip


@dataclass(frozen=True)
class LabelledData:
    """Training and dev items. notes: what was inferred and which rows were left out, in words."""

    schema: Schema
    train: list[Item]
    dev: list[Item]
    notes: list[str] = field(default_factory=list)


def read_data(
    data: str | Path,
    *,
    dev: str | Path | None = None,
    task: TaskType | None = None,
    text: Sequence[str] = (),
    label: str | None = None,
    group: str | None = None,
    quoting: Quoting = "auto",
    fold: tuple[int, int] | None = None,
    whole_documents: bool = False,
) -> LabelledData:
    """Reads a file, or a folder with a train and a dev file.

    Args:
        dev: the dev file; None: that of the folder, or else a random tenth of the rows (at most MAX_DEV_ROWS), with the
            same fraction of every label. The split does not depend on the seed of the run.
        group: a column; rows with the same value stay on one side of the split. Questions about the same context
            always do.
        fold: number and count: this one of `count` parts is the dev data.
        whole_documents: documents of a CoNLL file stay on one side, because their sentences are read together.

    Raises:
        UsageError: no such file or column.
        BertworksError: rows that cannot be used for training: all of them, with their lines; too few rows.
    """
    path, dev = find_files(Path(data), None if dev is None else Path(dev))
    if fold is not None and dev is not None:
        raise UsageError(
            f"folds divide the training data, but there is a dev file: {dev}", where=str(data),
            hint=f"name the other file alone: bertworks finetune {shlex.quote(str(path))} --folds {fold[1]} ...",
        )  # fmt: skip
    reader = RowReader(path, quoting=quoting)
    schema, notes = infer_schema(reader, task=task, text=text, label=label, group=group)
    empty = IssueCounter()
    all_items = _read_items(reader, schema, empty)
    notes += reader.notes
    if dev is not None:
        dev_reader = RowReader(dev, quoting=quoting)
        train, held_out = all_items, _read_items(dev_reader, schema, empty)
        notes += [f"evaluated on {dev}: {len(held_out):,} rows", *dev_reader.notes]
    else:
        groups = _groups(all_items, schema, by_document=group is not None or whole_documents)
        train, held_out, note = _split(all_items, schema, groups, fold, path)
        notes += [note, *_document_notes(train, held_out, schema)]
    if empty.count:
        notes.append(f"rows without text are left out: {empty}")
    if schema.task == "spans":
        notes += _count_note(list(filter(overlapping, train)), "texts have overlapping spans: the later one wins")
    if schema.task == "qa":
        wrong = list(filter(misplaced, train))
        train = [item for item in train if not misplaced(item)]
        notes += _count_note(wrong, "answers are not at their position in the context, and are left out of train")
    if not train or not held_out:
        what = f"{len(all_items)} rows are too few to train and to evaluate"
        raise BertworksError(what, where=str(path), hint="--dev FILE")
    return LabelledData(schema, train, held_out, notes)


def _read_items(reader: RowReader, schema: Schema, empty: IssueCounter) -> list[Item]:
    """The rows as items. Rows with errors are listed in one error."""
    errors: list[BertworksError] = []
    rows = list(items(reader, schema, left_out=empty, errors=errors))
    if len(errors) == 1:
        raise errors[0]
    if errors:
        lines = [f"{len(errors):,} rows cannot be used for training"]
        lines += [f"  {error.where}: {error.what}" for error in errors[:LISTED_ERRORS]]
        lines += [f"  and {len(errors) - LISTED_ERRORS:,} others"] if len(errors) > LISTED_ERRORS else []
        hints = list(dict.fromkeys(error.hint for error in errors if error.hint))
        raise BertworksError("\n".join(lines), where=reader.name, hint="; ".join(hints[:3]))
    return rows


def find_files(data: Path, dev: Path | None) -> tuple[Path, Path | None]:
    """The train file and, if there is one, the dev file."""
    if not data.is_dir():
        return data, dev
    files: dict[str, list[Path]] = {split: [] for split in SPLITS}
    for path in sorted(p for p in data.iterdir() if p.is_file() and not p.name.startswith(".")):
        words = path.name.lower().replace("_", "-").replace("-", ".").split(".")
        for name, stems in SPLITS.items():
            if any(re.fullmatch(rf"({'|'.join(stems)})(set|data)?\d*", word) for word in words):
                files[name].append(path)
                break
    for name, paths in files.items():
        if len(paths) > 1 or (name == "train" and not paths):
            content = ", ".join(p.name for p in sorted(data.iterdir())[:20]) or "nothing"
            raise UsageError(
                f"the folder has {len(paths) or 'no'} {name} file{'s' * (len(paths) > 1)}: it holds {content}",
                where=str(data), hint="name the files: bertworks finetune TRAIN-FILE --dev DEV-FILE ...",
            )  # fmt: skip
    return files["train"][0], dev or next(iter(files["dev"]), None)


def describe_task(data: LabelledData, recipe: FinetuneRecipe) -> TaskConfig:
    """The task of the data, with the settings of the recipe that the model needs.

    Raises:
        UsageError: a setting of the recipe does not apply to the task.
        BertworksError: rows with different numbers of choices.
    """
    schema, labels = data.schema, data.schema.labels
    for name, tasks in _SETTING_TASKS.items():
        if getattr(recipe, name) != getattr(FinetuneRecipe, name) and schema.task not in tasks:
            hint = "use another recipe: stable, paper" if name == "lstm_units" else "leave it out"
            raise UsageError(f"{name} is for {', '.join(tasks)}, and the data is for {schema.task}", hint=hint)
    if recipe.document_context and schema.document is None:
        raise UsageError(
            "document_context: the data does not say which sentences are of one document",
            hint="separate documents by -DOCSTART- lines, or name their column: --group COLUMN; or leave it out",
        )
    if schema.task == "spans":
        labels = ("O", *(f"{part}-{kind}" for kind in labels for part in "BI"))
    without_answer = schema.task == "qa" and not all(item.label for item in (*data.train, *data.dev))
    copied = ("max_length", "stride", "max_question", "max_answer", "document_context", "lstm_units")
    return TaskConfig(
        task=schema.task,
        labels=labels,
        text=schema.text,
        label=schema.label,
        separator=schema.separator,
        num_choices=_num_choices(data) if schema.task == "choice" else 0,
        first_choice=schema.first_choice if schema.task == "choice" else None,
        document=schema.document if recipe.document_context else None,
        threshold=0.0 if without_answer else None,
        **{name: getattr(recipe, name) for name in copied},
    )


def _num_choices(data: LabelledData) -> int:
    all_items = [*data.train, *data.dev]
    number = Counter(len(item.texts) - 1 for item in all_items).most_common(1)[0][0]
    for item in all_items:
        if len(item.texts) - 1 != number:
            raise BertworksError(
                f"{len(item.texts) - 1} choices, where most rows have {number}", where=item.where,
                hint="give every row the same number of choices",
            )  # fmt: skip
    return number


def _split(
    all_items: Sequence[Item], schema: Schema, groups: Sequence[Hashable], fold: tuple[int, int] | None, path: Path
) -> tuple[list[Item], list[Item], str]:
    """Train, dev, and in words how they were divided."""
    if fold is None:
        train, dev = split_items(all_items, schema, groups)
        return train, dev, f"evaluated on {len(dev):,} of the {len(all_items):,} rows, a random split"
    number, count = fold
    if (num_groups := len(set(groups))) < count:
        raise UsageError(
            f"{count} folds need at least {count} rows, or groups of rows: there are {num_groups:,}",
            where=str(path), hint=f"--folds {max(2, num_groups)}, or fewer",
        )  # fmt: skip
    train, dev = _divide(all_items, set(folds(all_items, schema, groups, count)[number]))
    return train, dev, f"evaluated on fold {number + 1} of {count}: {len(dev):,} of the {len(all_items):,} rows"


def _divide(all_items: Sequence[Item], held_out: set[int]) -> tuple[list[Item], list[Item]]:
    train = [item for number, item in enumerate(all_items) if number not in held_out]
    return train, [all_items[number] for number in sorted(held_out)]


def _document_notes(train: Sequence[Item], dev: Sequence[Item], schema: Schema) -> list[str]:
    """A note if documents are on both sides of the split."""
    both = {item.document for item in train} & {item.document for item in dev} - {""}
    if not both or schema.document is None:
        return []
    return [
        f"sentences of {len(both):,} documents are in train and in dev, and names come again in a document: scores on "
        f"new documents are lower; --group {schema.document} keeps each document on one side"
    ]


def _count_note(rows: Sequence[Item], what: str) -> list[str]:
    return [f"{len(rows):,} {what}: {first_names([item.where for item in rows], LISTED)}"] if rows else []


def _groups(all_items: Sequence[Item], schema: Schema, *, by_document: bool) -> list[Hashable]:
    """For each item, the group that stays together."""
    groups: list[Hashable] = list(range(len(all_items)))
    if by_document and schema.document is not None:
        groups = [item.document or number for number, item in enumerate(all_items)]
    if schema.task == "qa":
        groups = _connected(groups, [item.texts[1] for item in all_items])
    return groups


def _connected(groups: Sequence[Hashable], others: Sequence[Hashable]) -> list[Hashable]:
    """The smallest groups that keep together the members of each group of both kinds (union-find)."""
    parent: dict[Hashable, Hashable] = {}

    def root(key: Hashable) -> Hashable:
        while (above := parent.setdefault(key, key)) != key:
            parent[key] = parent[above]
            key = above
        return key

    for group, other in zip(groups, others, strict=True):
        parent[root(("group", group))] = root(("other", other))
    return [root(("group", group)) for group in groups]


def split_items(
    all_items: Sequence[Item],
    schema: Schema,
    groups: Sequence[Hashable],
    seed: int = 0,
    fraction: float = DEV_FRACTION,
) -> tuple[list[Item], list[Item]]:
    """Train and dev, in the order of the file: whole groups, the same fraction of every label. A label too rare for its
    fraction gives one group, the most frequent label first, up to MAX_RARE_ROWS rows or as many as the others give."""
    num_dev = min(fraction * len(all_items), MAX_DEV_ROWS)
    held_out: set[int] = set()
    rare: list[tuple[int, list[int]]] = []  # rows of the label, and its smallest group
    for label_groups in _strata(all_items, schema, groups, keyed_rng("dev", seed)):
        count, taken = sum(map(len, label_groups)), 0
        candidates = label_groups[:-1]  # at least one group stays in train
        for rows in candidates:
            if taken + len(rows) / 2 <= num_dev * count / len(all_items):
                held_out.update(rows)
                taken += len(rows)
        if candidates and not taken:
            rare.append((count, min(candidates, key=len)))
    num_rare = 0
    for _, rows in sorted(rare, key=lambda pair: pair[0], reverse=True):
        if not held_out or num_rare + len(rows) <= max(num_dev, MAX_RARE_ROWS):
            held_out.update(rows)
            num_rare += len(rows)
    return _divide(all_items, held_out)


def folds(
    all_items: Sequence[Item], schema: Schema, groups: Sequence[Hashable], count: int, seed: int = 0
) -> list[list[int]]:
    """Numbers of the items of each of `count` folds, ascending: whole groups, every label spread evenly."""
    parts: list[list[int]] = [[] for _ in range(count)]
    for label_groups in _strata(all_items, schema, groups, keyed_rng("folds", seed)):
        for rows in label_groups:
            min(parts, key=len).extend(rows)
    return [sorted(part) for part in parts]


def _strata(
    all_items: Sequence[Item], schema: Schema, groups: Sequence[Hashable], generator: Generator
) -> list[list[list[int]]]:
    """Groups, as numbers of items, shuffled. Items without groups are separated by label."""
    members: dict[Hashable, list[int]] = defaultdict(list)
    for number, key in enumerate(groups):
        members[key].append(number)
    strata: dict[str, list[list[int]]] = defaultdict(list)
    by_label = schema.task in ("classification", "choice") and len(members) == len(all_items)
    for numbers in members.values():
        strata[str(all_items[numbers[0]].label) if by_label else ""].append(numbers)
    return [[rows[n] for n in generator.permutation(len(rows)).tolist()] for _, rows in sorted(strata.items())]
