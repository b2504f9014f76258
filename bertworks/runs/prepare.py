"""Raw text -> vocabulary and shards, in a background thread with progress as events.

- `make_vocabulary`, `make_shards`: by this process and its workers, or in portions
- `count_maker`, `shard_maker`: portions for groups of files, made by any process; `blocks_of`: what
  the portions of shards hold
"""

import json
import queue
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from bertworks.errors import expect, printable, quoted, require
from bertworks.events import Event, JsonObject
from bertworks.io.atomic_write import local_path, refuse_file, refuse_nested, replacing_folder
from bertworks.io.file_job import FileJob, Portion, unpacked_values
from bertworks.io.inputs import as_path, chunk_by_size
from bertworks.io.options import Bulk, Documents
from bertworks.io.tables import Data, sources_of
from bertworks.text.corpus import CorpusReader, CorpusReport, Group
from bertworks.text.corpus_report import CorpusStatistics, corpus_report
from bertworks.text.shards import (
    PART_CHARACTERS,
    PartWriter,
    Shards,
    holds_shards,
    refuse_other_files,
    write_shards,
)
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.tokenizer_folder import TOKENIZER_FILES
from bertworks.text.vocabulary import (
    NewWord,
    VocabularyConfig,
    VocabularyReport,
    extend_vocabulary,
    splitter_of,
    train_vocabulary,
)
from bertworks.text.word_counts import BATCH, AccentCounts, Sample

Result = TypeVar("Result")
# The `maker` of a `FileJob` returns what the portions depend on, and the work for one group of
# files. The last value of a portion is the report of the reader.
Maker = tuple[JsonObject, Callable[[Group], Portion]]
# of a model folder
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")
PATIENCE = 2.0  # seconds for the work to end after the caller has stopped


def read_text(
    inputs: Sequence[str | Path] | Data,
    text_column: str | None = None,
    documents: Documents = "auto",
    encoding: str | None = None,
) -> CorpusReader:
    """Return the reader of raw text.

    Raises:
        UsageError: an input is a folder of shards or of a model, or holds one, or one of a
            tokenizer.
        BertworksError: an input names nothing that can be read.
    """
    for path in (sources := sources_of(inputs)):
        folder = as_path(path)
        expect(
            not holds_shards(folder),
            "this folder holds shards, not text",
            where=path,
            hint=f"`bertworks pretrain {quoted(path)} -o MODEL` trains on it; `bertworks prepare "
            "TEXT TEXT ...` joins corpora",
        )
        is_model = (folder / "config.json").is_file() and any(
            (folder / name).is_file() for name in _WEIGHTS
        )
        expect(
            not is_model,
            "this folder holds a model, not text",
            where=path,
            hint=f"name the text; `bertworks pretrain TEXT --init {quoted(path)}` continues from "
            "this model",
        )
    reader = CorpusReader(sources, text_column=text_column, documents=documents, encoding=encoding)
    inner = next((path.parent for path in reader.files if path.name == "tokenizer.json"), None)
    # each has that file
    expect(
        inner is None,
        "a folder within the input holds a tokenizer, a model or shards, not text",
        where=inner,
        hint=f"move it: `mv {quoted(inner)} FOLDER`",
    )
    return reader


def announced(reader: CorpusReader, events: Iterable[Event]) -> Iterator[Event]:
    """Yield first how the text is divided into documents, and then the events.

    Raises:
        UsageError: a file is large, and may be one document or many.
    """
    for line in reader.separations():
        yield Event("note", line)
    yield from events


def refuse_in_corpus(output: Path, reader: CorpusReader) -> None:
    """Raises UsageError if the output would be read as text the next time."""
    folders = [str(folder) for folder in reader.folders]
    refuse_nested(output, [*folders, *map(str, reader.files)], folders)


def make_vocabulary(
    reader: CorpusReader,
    output: Path,
    config: VocabularyConfig,
    *,
    bulk: Bulk = Bulk(),
    is_part: bool = False,
    **options: Any,
) -> Iterator[Event]:
    """A vocabulary from raw text, written as a tokenizer folder.

    The "done" event has the report's figures.

    bulk: where words are counted. is_part: shards follow, of which the report has the tokens for
    each word. options: max_memory, workers: see `train_vocabulary`.

    Raises:
        UsageError: the folder holds other files than a tokenizer, or is within the corpus.
    """
    refuse_in_corpus(output, reader)
    refuse_file(output)  # before the words are counted, which may take an hour
    strange = sorted(path.name for path in output.glob("*") if path.name not in TOKENIZER_FILES)
    expect(
        not strange,
        f"the folder holds more than a tokenizer: {', '.join(strange[:5])}",
        where=output,
        hint="-o ANOTHER-FOLDER: its content would be lost",
    )

    with ExitStack() as stack:
        if bulk.is_shared:
            job = _job(
                reader,
                output,
                bulk,
                "vocab",
                "bertworks.runs.prepare:count_maker",
                asdict(config),
            )
            stack.enter_context(job.open())
            yield from job.make("vocab", reader.groups())
            if bulk.part:
                return
            options["counted"] = lambda sample: _counts_of(job.files, reader, sample)

        def work(report_progress: Callable[[str, int], None]) -> tuple[Tokenizer, VocabularyReport]:
            texts = (document.text for document in reader)
            return train_vocabulary(texts, config, progress=report_progress, **options)

        tokenizer, report = yield from in_background("vocabulary", work)
        with replacing_folder(output) as temporary:
            tokenizer.save(temporary)
    yield Event("note", str(reader.report))
    text = f"{report.described(with_rates=not is_part)}\nwritten to {output}"
    yield Event("done", text, {"folder": str(output), **asdict(report)})


def _job(
    reader: CorpusReader, output: Path, bulk: Bulk, command: str, maker: str, *settings: Any
) -> FileJob:
    """Return the portions of a corpus: groups of its files."""
    source = reader.source()
    identity = {
        "command": command,
        "corpus": reader.identity(),
        "read": source,
        "settings": settings,
    }
    return FileJob(
        output,
        bulk,
        identity,
        maker,
        [f"{local_path(output).absolute()}.parts", source, *settings],
    )


def count_maker(_: str, source: JsonObject, config: JsonObject) -> Maker:
    """Return the `maker` of word counts, see `FileJob`.

    It makes `AccentCounts` of some millions of characters each, and the sample.
    """
    splitter = splitter_of(VocabularyConfig(**config))

    def blocks(documents: Iterator[str]) -> Iterator[bytes]:
        sample = Sample(documents)
        for texts in chunk_by_size(sample, BATCH, len):
            yield json.dumps(splitter.count(texts)._asdict()).encode()
        yield json.dumps(sample.beginnings).encode()

    return _maker(source, blocks)


def shard_maker(folder: str, source: JsonObject, tokenizer: str, part_characters: int) -> Maker:
    """Return the `maker` of shards, see `FileJob`: the parts of a group.

    folder: of the portions, with the tokenizer.
    """
    writer = PartWriter(Path(folder, "tokenizer"), "")
    require(
        writer.tokenizer.sha256 == tokenizer,
        "this is another tokenizer",
        folder,
        "run the same command again",
    )

    def blocks(documents: Iterator[str]) -> Iterator[bytes]:
        for texts in chunk_by_size(documents, part_characters, len):
            np.savez(file := BytesIO(), **writer.encode(texts))
            yield file.getvalue()

    return _maker(source, blocks)


def _maker(source: JsonObject, values: Callable[[Iterator[str]], Iterator[bytes]]) -> Maker:
    """Return the `maker` of portions that hold the values of the texts of a group."""
    reader = CorpusReader(**source)

    def content(group: Group) -> Iterator[bytes]:
        report = CorpusReport()
        yield from values(reader.texts(group, report))
        yield json.dumps(asdict(report)).encode()

    return {"corpus": reader.identity()}, lambda group: (0, content(group))


def blocks_of(files: Iterable[Path], reader: CorpusReader) -> Iterator[bytes]:
    """Yield the values of all portions but the reports, which are added to that of the reader."""
    total = reader.new_report()
    for file in files:
        last = b""
        for number, block in enumerate(unpacked_values(file)):
            if number:
                yield last
            last = block
        total.add(json.loads(last))
    reader.finish(total)


def _counts_of(
    files: Iterable[Path], reader: CorpusReader, sample: Sample
) -> Iterator[AccentCounts]:
    """Yield the word counts of all portions. sample: gets what they hold out."""
    for block in map(json.loads, blocks_of(files, reader)):
        if isinstance(block, dict):
            yield AccentCounts(**block)
        else:
            sample.add(block)


def extend_tokenizer(
    reader: CorpusReader, output: Path, tokenizer: Tokenizer, number: int, workers: int | None
) -> Iterator[Event]:
    """Write a tokenizer with new words from raw text (`extend_vocabulary`) as a folder."""

    def work(report_progress: Callable[[str, int], None]) -> tuple[Tokenizer, list[NewWord]]:
        texts = (document.text for document in reader)
        progress = partial(report_progress, "counting")
        return extend_vocabulary(texts, tokenizer, number, workers=workers, progress=progress)

    extended, words = yield from in_background("vocabulary", work)
    extended.save(output)
    yield Event(
        "note", f"the vocabulary has {len(words):,} new words: {extended.vocab_size:,} tokens"
    )
    for word, count, ids in words[:2]:
        pieces = " ".join(map(tokenizer.piece, ids))
        yield Event(
            "note", printable(f"example  new word {word!r}, {count:,} times: until now {pieces}")
        )


def make_shards(
    reader: CorpusReader,
    output: Path,
    tokenizer: Tokenizer,
    *,
    overwrite: bool = False,
    bulk: Bulk = Bulk(),
    is_parallel: bool = False,
    has_new_vocabulary: bool = True,
    **options: Any,
) -> Iterator[Event]:
    """Shards from raw text, and the corpus report.

    The "done" event has the counts.

    is_parallel: whether documents are the sides of translations. has_new_vocabulary: whether the
    vocabulary could be another one, as that of an initial model cannot. bulk: where the text is
    split and encoded. overwrite; options: workers: see `write_shards`.

    Raises:
        UsageError: the folder is within the corpus; a tokenizer without a vocabulary.
    """
    refuse_in_corpus(output, reader)
    tokenizer.require_vocabulary()

    def work(report_progress: Callable[[str, int], None]) -> tuple[Shards, CorpusStatistics | None]:
        progress = partial(report_progress, "characters")
        shards = write_shards(
            reader, tokenizer, output, progress=progress, overwrite=overwrite, **options
        )
        if not shards.written_now and (output / "preflight.json").exists():
            return shards, None
        report = corpus_report(
            shards, tokenizer, is_parallel=is_parallel, has_new_vocabulary=has_new_vocabulary
        )
        report.save(shards.folder)
        return shards, report

    with ExitStack() as stack:
        job = None
        if bulk.is_shared:
            maker = "bertworks.runs.prepare:shard_maker"
            job = _job(reader, output, bulk, "prepare", maker, tokenizer.sha256, PART_CHARACTERS)
        is_finished = (output / "manifest.json").exists()
        if job and (overwrite or not is_finished):
            if output.exists():
                refuse_other_files(output, overwrite)
            stack.enter_context(job.open())
            tokenizer.save(job.folder / "tokenizer")
            yield from job.make("prepare", reader.groups())
            if bulk.part:
                return
            options["parts"] = map(BytesIO, blocks_of(job.files, reader))
        shards, report = yield from in_background("shards", work)
        if job and is_finished and not overwrite:
            job.discard()
    m = shards.manifest
    counts = {"documents": m.documents, "sentences": m.sentences, "tokens": m.tokens}
    text = f"{output}: {m.documents:,} documents, {m.sentences:,} sentences, {m.tokens:,} tokens"
    if shards.written_now:
        yield Event("note", str(reader.report))
    else:
        text += ", from an earlier run of the same command"
    if report:
        yield Event("note", str(report), report.as_dict())
    yield Event("done", text, {"folder": str(output), **counts})


def in_background(
    name: str, work: Callable[[Callable[[str, int], None]], Result]
) -> Generator[Event, None, Result]:
    """Run `work(report_progress)` in a thread, and return its result.

    Its progress is yielded as "stage" events. If the caller stops iterating (Ctrl-C, a closed
    generator), the next call of `report_progress` raises and ends the work.
    """
    progress: queue.SimpleQueue[tuple[str, int] | None] = queue.SimpleQueue()
    result: Future[Result] = Future()
    stopped = threading.Event()

    def report_progress(what: str, amount: int) -> None:
        if stopped.is_set():
            raise CancelledError
        progress.put((what, amount))

    def run() -> None:
        try:
            result.set_result(work(report_progress))
        except BaseException as error:
            result.set_exception(error)
        progress.put(None)

    thread = threading.Thread(target=run, daemon=True, name=name)
    thread.start()
    try:
        for what, amount in iter(progress.get, None):
            yield Event(
                "stage",
                f"{name}: {what} {amount:,}",
                {"stage": name, "what": what, "amount": amount},
            )
    finally:
        stopped.set()
        thread.join(PATIENCE)
    return result.result()
