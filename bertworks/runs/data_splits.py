"""Labelled files -> training and dev data: splits, folds, groups that stay together."""

import re
import shlex
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from numpy.random import Generator

from bertworks.batching.sampling import keyed_rng
from bertworks.datasets.infer_schema import infer_schema
from bertworks.datasets.reader import Quoting, RowReader
from bertworks.datasets.schema import Item, Schema, TaskType, items, misplaced, overlapping
from bertworks.errors import BertworksError, UsageError
from bertworks.io.text_files import IssueCounter

DEV_SHARE, MOST_DEV = 0.1, 2000  # of the rows, where there is no dev file; and at most so many
FEW_RARE = 20  # so many rows of rare labels are set aside besides, where a share is less
SPLITS = {
    "train": ("train", "training"),
    "dev": ("dev", "valid", "validation", "val", "devel", "development"),
}
LISTED = 5  # places that are named where there may be thousands


@dataclass(frozen=True)
class LabelledData:
    """What a model is fine-tuned on."""

    schema: Schema
    train: list[Item]
    dev: list[Item]
    notes: list[str] = field(default_factory=list)  # what was guessed and what was left out, in words


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
        dev: what is judged on; None: the dev file of the folder, or else a tenth of the rows (at most MOST_DEV), the
            same share of every label. Which rows is the same in every run, whatever its seed.
        group: a column; rows that share its value are not divided between train and dev. Questions are divided by their
            contexts in any case.
        fold: number and count: that one of so many parts is judged on.
        whole_documents: documents of a CoNLL file are not divided: their sentences are read with one another.

    Raises:
        UsageError: no such file or column.
        BertworksError: a row that cannot be learned from, with its line; too few rows.
    """
    path, dev = files_of(Path(data), None if dev is None else Path(dev))
    if fold is not None and dev is not None:
        raise UsageError(
            f"folds divide what is learned from, and there is a dev file: {dev}", where=str(data),
            hint=f"name the other file alone: bertworks finetune {shlex.quote(str(path))} --folds {fold[1]} ...",
        )  # fmt: skip
    reader = RowReader(path, quoting=quoting)
    schema, notes = infer_schema(reader, task=task, text=text, label=label, group=group)
    empty = IssueCounter()
    found = list(items(reader, schema, left_out=empty))
    if empty.count:
        schema = _with_labels_of(found, schema, reader.name)
    notes += reader.notes
    groups = _groups(found, schema, by_document=group is not None or whole_documents)
    if dev is not None:
        other = RowReader(dev, quoting=quoting)
        train, judged = found, list(items(other, schema, left_out=empty))
        notes += [f"judged on {dev}: {len(judged):,} rows", *other.notes]
    else:
        train, judged, note = _divided(found, schema, groups, fold, path)
        notes += [note, *_torn(train, judged, schema)]
    if empty.count:
        notes.append(f"rows without text are left out: {empty}")
    train, more = _learnable(train, schema)
    notes += more
    if not train or not judged:
        raise BertworksError(
            f"{len(found)} rows are too few to learn from and to judge", where=str(path), hint="--dev FILE"
        )
    return LabelledData(schema, train, judged, notes)


def _divided(
    found: Sequence[Item], schema: Schema, groups: Sequence[Hashable], fold: tuple[int, int] | None, path: Path
) -> tuple[list[Item], list[Item], str]:
    """Train, dev, and in words how they were divided."""
    if fold is None:
        train, judged = split_items(found, schema, groups)
        return train, judged, f"judged on {len(judged):,} of the {len(found):,} rows, set aside by lot"
    number, count = fold
    if (there := len(set(groups))) < count:
        raise UsageError(
            f"{count} parts are asked for, and there are {there:,} rows, or groups of rows, to divide",
            where=str(path), hint=f"--folds {max(2, there)}, or fewer",
        )  # fmt: skip
    aside = set(folds(found, schema, groups, count)[number])
    train, judged = [x for n, x in enumerate(found) if n not in aside], [found[n] for n in sorted(aside)]
    return train, judged, f"judged on part {number + 1} of {count}: {len(judged):,} of the {len(found):,} rows"


def _torn(train: Sequence[Item], judged: Sequence[Item], schema: Schema) -> list[str]:
    """What is to be said of documents that are learned from and judged on."""
    both = {item.document for item in train} & {item.document for item in judged} - {""}
    if not both or schema.document is None:
        return []
    return [
        f"sentences of {len(both):,} documents are on both sides, and names come again in a document: new ones get "
        f"lower scores; --group {schema.document} keeps each on one side"
    ]


def _learnable(train: list[Item], schema: Schema) -> tuple[list[Item], list[str]]:
    """Those that can be learned from, and what is to be said of the others."""
    if schema.task == "spans":
        return train, _counted(
            list(filter(overlapping, train)), "texts have spans that overlap, of which the later win"
        )
    lost = [item for item in train if schema.task == "qa" and misplaced(item)]
    what = "answers do not stand where they are said to, and are not learned from"
    return [item for item in train if not misplaced(item)] if lost else train, _counted(lost, what)


def _counted(found: Sequence[Item], what: str) -> list[str]:
    where = ", ".join(item.where for item in found[:LISTED]) + (", ..." if len(found) > LISTED else "")
    return [f"{len(found):,} {what}: {where}"] if found else []


def _with_labels_of(found: Sequence[Item], schema: Schema, name: str) -> Schema:
    """The schema with those labels alone that rows with a text have.

    Raises:
        BertworksError: there is one class left, or none.
    """
    if schema.task not in ("classification", "multilabel"):
        return schema
    there = {label for item in found for label in ((item.label,) if schema.task == "classification" else item.label)}
    labels = tuple(label for label in schema.labels if label in there)
    if len(labels) < (2 if schema.task == "classification" else 1):
        told = (
            f"all rows with a text have the same label, {labels[0]!r}" if labels else "no row with a text has a label"
        )
        raise BertworksError(f"{told} (in {schema.label!r})", where=name, hint="add rows with another label")
    return replace(schema, labels=labels)


def files_of(data: Path, dev: Path | None) -> tuple[Path, Path | None]:
    """The train file and, where there is one, the dev file."""
    if not data.is_dir():
        return data, dev
    found: dict[str, list[Path]] = {split: [] for split in SPLITS}
    for path in sorted(p for p in data.iterdir() if p.is_file() and not p.name.startswith(".")):
        words = path.name.lower().replace("_", "-").replace("-", ".").split(".")
        for name, stems in SPLITS.items():
            if any(re.fullmatch(rf"({'|'.join(stems)})(set|data)?\d*", word) for word in words):
                found[name].append(path)
                break
    for name, paths in found.items():
        if len(paths) > 1 or (name == "train" and not paths):
            there = ", ".join(p.name for p in sorted(data.iterdir())[:20]) or "nothing"
            raise UsageError(
                f"which file is the {name} file? There is: {there}", where=str(data),
                hint="name the files: bertworks finetune TRAIN-FILE --dev DEV-FILE ...",
            )  # fmt: skip
    return found["train"][0], dev or next(iter(found["dev"]), None)


def _groups(found: Sequence[Item], schema: Schema, *, by_document: bool) -> list[Hashable]:
    """What must stay together, for each item."""
    groups: list[Hashable] = list(range(len(found)))
    if by_document and schema.document is not None:
        groups = [item.document or number for number, item in enumerate(found)]
    if schema.task == "qa":
        groups = _joined(groups, [item.texts[1] for item in found])
    return groups


def _joined(groups: Sequence[Hashable], others: Sequence[Hashable]) -> list[Hashable]:
    """Groups that are as large as they must be for members of one group of either kind to be together."""
    parent: dict[Hashable, Hashable] = {}

    def root(key: Hashable) -> Hashable:
        while (above := parent.setdefault(key, key)) != key:
            parent[key] = parent[above]
            key = above
        return key

    for one, other in zip(groups, others, strict=True):
        parent[root(("group", one))] = root(("other", other))
    return [root(("group", one)) for one in groups]


def split_items(
    found: Sequence[Item], schema: Schema, groups: Sequence[Hashable], seed: int = 0, share: float = DEV_SHARE
) -> tuple[list[Item], list[Item]]:
    """Train and dev, in the order of the file: whole groups, of every label the same share. A label too rare for its
    share gives one row, the most frequent first, as long as these are not more than all the others or FEW_RARE."""
    wanted = min(share * len(found), MOST_DEV)
    aside: set[int] = set()
    rare: list[tuple[int, list[int]]] = []  # how often the label is, and what it would give
    for parts in _strata(found, schema, groups, keyed_rng("dev", seed)):
        count, taken = sum(map(len, parts)), 0
        rest = parts[:-1]  # one stays to learn from
        for part in rest:
            if taken + len(part) / 2 <= wanted * count / len(found):
                aside.update(part)
                taken += len(part)
        if rest and not taken:
            rare.append((count, min(rest, key=len)))
    beyond = 0
    for _, part in sorted(rare, key=lambda one: one[0], reverse=True):
        if not aside or beyond + len(part) <= max(wanted, FEW_RARE):
            aside.update(part)
            beyond += len(part)
    return [x for n, x in enumerate(found) if n not in aside], [found[n] for n in sorted(aside)]


def folds(
    found: Sequence[Item], schema: Schema, groups: Sequence[Hashable], count: int, seed: int = 0
) -> list[list[int]]:
    """Numbers of the items of each of `count` parts, ascending: whole groups, every label spread evenly."""
    parts: list[list[int]] = [[] for _ in range(count)]
    for stratum in _strata(found, schema, groups, keyed_rng("folds", seed)):
        for part in stratum:
            min(parts, key=len).extend(part)
    return [sorted(part) for part in parts]


def _strata(
    found: Sequence[Item], schema: Schema, groups: Sequence[Hashable], generator: Generator
) -> list[list[list[int]]]:
    """Groups, as numbers of items, shuffled; single items by their label."""
    members: dict[Hashable, list[int]] = defaultdict(list)
    for number, key in enumerate(groups):
        members[key].append(number)
    strata: dict[str, list[list[int]]] = defaultdict(list)
    for numbers in members.values():
        by_label = schema.task in ("classification", "choice") and len(members) == len(found)
        strata[str(found[numbers[0]].label) if by_label else ""].append(numbers)
    shuffled = []
    for _, parts in sorted(strata.items()):
        shuffled.append([parts[n] for n in generator.permutation(len(parts)).tolist()])
    return shuffled
