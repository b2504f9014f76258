"""Labelled files become what is trained on and what is judged on. Not here: what rows mean (`rows.schema`)."""

import zlib
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from numpy.random import Generator

from bertworks.data.sampling import rng
from bertworks.errors import BertworksError, UsageError
from bertworks.rows.guessing import guess_schema
from bertworks.rows.reader import Quoting, RowReader
from bertworks.rows.schema import Item, Schema, Task, items, misplaced
from bertworks.text.streams import Tally
from bertworks.text.tables import find_column

DEV_SHARE, MOST_DEV = 0.1, 2000  # of the rows, where there is no dev file; and at most so many
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
    task: Task | None = None,
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
    path, dev = _files(Path(data), None if dev is None else Path(dev))
    reader = RowReader(path, quoting=quoting)
    schema, notes = guess_schema(reader, task=task, text=text, label=label)
    if group is not None:
        schema = replace(schema, document=find_column(reader.columns, reader.name, group, "--group"))
    empty = Tally()
    found = list(items(reader, schema, left_out=empty))
    notes += reader.notes
    groups = _groups(found, schema, by_document=group is not None or whole_documents)
    if dev is not None:
        other = RowReader(dev, quoting=quoting)
        train, judged = found, list(items(other, schema, left_out=empty))
        notes += [f"judged on {dev}: {len(judged):,} rows", *other.notes]
    elif fold is not None:
        aside = set(folds(found, schema, groups, fold[1])[fold[0]])
        train, judged = [x for n, x in enumerate(found) if n not in aside], [found[n] for n in sorted(aside)]
        notes.append(f"judged on part {fold[0] + 1} of {fold[1]}: {len(judged):,} of the {len(found):,} rows")
    else:
        train, judged = split(found, schema, groups)
        notes.append(f"judged on {len(judged):,} of the {len(found):,} rows, set aside by lot")
    if empty.count:
        notes.append(f"rows without text are left out: {empty}")
    lost = [item for item in train if schema.task == "qa" and misplaced(item)]
    if lost:
        train = [item for item in train if not misplaced(item)]
        where = ", ".join(item.where for item in lost[:LISTED]) + (", ..." if len(lost) > LISTED else "")
        notes.append(f"{len(lost):,} answers do not stand where they are said to, and are not learned from: {where}")
    if not train or not judged:
        raise BertworksError(
            f"{len(found)} rows are too few to learn from and to judge", where=str(path), fix="--dev FILE"
        )
    return LabelledData(schema, train, judged, notes)


def _files(data: Path, dev: Path | None) -> tuple[Path, Path | None]:
    """The train file and, where there is one, the dev file."""
    if not data.is_dir():
        return data, dev
    found: dict[str, list[Path]] = {split: [] for split in SPLITS}
    for path in sorted(p for p in data.iterdir() if p.is_file() and not p.name.startswith(".")):
        words = path.name.lower().replace("_", "-").replace("-", ".").split(".")
        for name, stems in SPLITS.items():
            if any(word.startswith(stem) if stem != "val" else word == stem for word in words for stem in stems):
                found[name].append(path)
                break
    for name, paths in found.items():
        if len(paths) > 1 or (name == "train" and not paths):
            there = ", ".join(p.name for p in sorted(data.iterdir())[:20]) or "nothing"
            raise UsageError(
                f"which file is the {name} file? There is: {there}", where=str(data),
                fix="name the files: bertworks finetune TRAIN-FILE --dev DEV-FILE ...",
            )  # fmt: skip
    return found["train"][0], dev or next(iter(found["dev"]), None)


def _groups(found: Sequence[Item], schema: Schema, *, by_document: bool) -> list[Hashable]:
    """What must stay together, for each item."""
    if by_document and schema.document is not None:
        return [item.document for item in found]
    if schema.task == "qa":
        return [zlib.crc32(item.texts[1].encode("utf-8", "replace")) for item in found]
    return list(range(len(found)))


def split(
    found: Sequence[Item], schema: Schema, groups: Sequence[Hashable], seed: int = 0, share: float = DEV_SHARE
) -> tuple[list[Item], list[Item]]:
    """Train and dev, in the order of the file: whole groups, of every label the same share."""
    wanted = min(share * len(found), MOST_DEV)
    aside: set[int] = set()
    for parts in _strata(found, schema, groups, rng("dev", seed)):
        goal, taken = wanted * sum(map(len, parts)) / len(found), 0
        for part in parts[:-1]:  # one stays to learn from
            if taken and taken + len(part) / 2 > goal:
                break
            aside.update(part)
            taken += len(part)
    return [x for n, x in enumerate(found) if n not in aside], [found[n] for n in sorted(aside)]


def folds(
    found: Sequence[Item], schema: Schema, groups: Sequence[Hashable], count: int, seed: int = 0
) -> list[list[int]]:
    """Numbers of the items of each of `count` parts, ascending: whole groups, every label spread evenly."""
    parts: list[list[int]] = [[] for _ in range(count)]
    for stratum in _strata(found, schema, groups, rng("folds", seed)):
        for part in stratum:
            min(parts, key=len).extend(part)
    return [sorted(part) for part in parts]


def _strata(
    found: Sequence[Item], schema: Schema, groups: Sequence[Hashable], generator: Generator
) -> list[list[list[int]]]:
    """Groups, as numbers of items, shuffled, by the label of their first item."""
    members: dict[Hashable, list[int]] = defaultdict(list)
    for number, key in enumerate(groups):
        members[key].append(number)
    strata: dict[str, list[list[int]]] = defaultdict(list)
    for numbers in members.values():
        by_label = schema.task in ("classification", "choice")
        strata[str(found[numbers[0]].label) if by_label else ""].append(numbers)
    shuffled = []
    for _, parts in sorted(strata.items()):
        shuffled.append([parts[n] for n in generator.permutation(len(parts)).tolist()])
    return shuffled
