"""Divide the files of a corpus into groups.

One process reads a group by itself, wherever it is, for a vocabulary or for shards.

A group is a portion of bulk work (`io.file_job`). Its last value is the report of the reader.
"""

import io
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from bertworks.errors import UsageError, require
from bertworks.io.file_job import Portion, unpacked_values
from bertworks.io.inputs import IssueCounter, chunk_by_size
from bertworks.io.tables import StoredRows
from bertworks.text.corpus import CorpusReader, CorpusReport
from bertworks.text.shard_writer import PartWriter
from bertworks.text.vocabulary import VocabularyConfig, splitter_of
from bertworks.text.word_counts import BATCH, AccentCounts, Sample

Group = tuple[int, int]  # the numbers of its first file, and after its last one
Maker = tuple[dict[str, Any], Callable[[Group], Portion]]
_GROUP = 1 << 24  # bytes of files


def groups(reader: CorpusReader) -> Iterator[Group]:
    """Consecutive files of at least 16 MB together; the last group may be smaller."""
    first = 0
    for files in chunk_by_size(reader.files, _GROUP, lambda path: path.stat().st_size):
        yield first, first + len(files)
        first += len(files)


def texts_of(reader: CorpusReader, group: Group, report: CorpusReport) -> Iterator[str]:
    """Return the documents of a group."""
    return (
        document.text
        for path in reader.files[slice(*group)]
        for document in reader.read(path, report)
    )


def parts_of(reader: CorpusReader, part_characters: int) -> Iterator[list[str]]:
    """All documents in parts of at least `part_characters`; the last of a group may be smaller."""
    report = reader.new_report()
    for group in groups(reader):
        yield from chunk_by_size(texts_of(reader, group, report), part_characters, len)
    reader.finish(report)


def source_of(reader: CorpusReader) -> dict[str, Any]:
    """Return the arguments of which another process makes the same reader.

    Raises:
        UsageError: it reads standard input, a pipe or rows in memory.
    """
    for path in reader.inputs:
        if isinstance(path, StoredRows) or str(path) == "-" or Path(path).is_fifo():
            what = "this can be read by one process only"
            raise UsageError(what, where=str(path), hint="save the text in a file, and name that")
    return {"inputs": list(map(str, reader.inputs)), **reader.options}


def shard_maker(folder: str, source: dict[str, Any], tokenizer: str, part_characters: int) -> Maker:
    """Return the `maker` of shards, see `FileJob`: the parts of a group.

    folder: of the portions, with the tokenizer.
    """
    reader = CorpusReader(**source)
    writer = PartWriter(Path(folder, "tokenizer"), "")
    require(
        writer.tokenizer.sha256 == tokenizer,
        "this is another tokenizer",
        folder,
        "run the same command again",
    )

    def blocks(group: Group) -> Iterator[bytes]:
        report = CorpusReport()
        for documents in chunk_by_size(texts_of(reader, group, report), part_characters, len):
            np.savez(file := io.BytesIO(), **writer.encode(documents))
            yield file.getvalue()
        yield json.dumps(asdict(report)).encode()

    return {"corpus": reader.identity()}, lambda group: (0, blocks(group))


def count_maker(_: str, source: dict[str, Any], config: dict[str, Any]) -> Maker:
    """Return the `maker` of word counts, see `FileJob`.

    It makes `AccentCounts` of some millions of characters each, and the sample.
    """
    reader = CorpusReader(**source)
    splitter = splitter_of(VocabularyConfig(**config))

    def blocks(group: Group) -> Iterator[bytes]:
        report = CorpusReport()
        sample = Sample(texts_of(reader, group, report))
        for texts in chunk_by_size(sample, BATCH, len):
            yield json.dumps(splitter.count(texts)._asdict()).encode()
        yield json.dumps(sample.beginnings).encode()
        yield json.dumps(asdict(report)).encode()

    return {"corpus": reader.identity()}, lambda group: (0, blocks(group))


def blocks_of(files: Iterable[Path], reader: CorpusReader) -> Iterator[bytes]:
    """The values of all portions, without the reports, which are added to that of the reader."""
    total = reader.new_report()
    for file in files:
        last = b""
        for number, block in enumerate(unpacked_values(file)):
            if number:
                yield last
            last = block
        _add(total, json.loads(last))
    reader.finish(total)


def counts_of(
    files: Iterable[Path], reader: CorpusReader, sample: Sample
) -> Iterator[AccentCounts]:
    """Yield the word counts of all portions. sample: gets what they hold out."""
    for block in map(json.loads, blocks_of(files, reader)):
        if isinstance(block, dict):
            yield AccentCounts(**block)
        else:
            sample.add(block)


def _add(total: CorpusReport, report: dict[str, Any]) -> None:
    """Add a report of files that come later."""
    for issue, counter in report.pop("counts").items():
        total.counts[issue].add_all(IssueCounter(**counter))
    for name, value in report.items():
        sum_so_far = getattr(total, name)
        if isinstance(value, dict):
            for key, number in value.items():
                sum_so_far[key] = sum_so_far.get(key, 0) + number
        else:
            setattr(total, name, sum_so_far + value)
