"""Raw text to shards, and the machine room of long stages: work in a thread, news of it as events."""

import queue
import shlex
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Literal, TypeVar

from bertworks.errors import UsageError
from bertworks.events import Event
from bertworks.io.atomic_write import refuse_file, refuse_nested, replacing_folder
from bertworks.text.corpus import CorpusReader
from bertworks.text.corpus_report import PreflightReport, corpus_report
from bertworks.text.shards import Shards, holds_shards, write_shards
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.vocabulary import VocabularyConfig, VocabularyReport, train_vocabulary

Documents = Literal["auto", "blank_line", "file"]
Result = TypeVar("Result")
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")  # of a model folder
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")
PATIENCE = 2.0  # seconds that work may take to end when nobody listens any more


class _UnheardError(Exception):
    """Nobody listens: the work is to end."""


def read_text(
    inputs: Sequence[str | Path], text_column: str | None = None, documents: Documents = "auto"
) -> CorpusReader:
    """The reader of raw text.

    Raises:
        UsageError: an input is a folder of shards or of a model, or holds one, or one of a tokenizer.
        BertworksError: an input names nothing that can be read.
    """
    for one in [inputs] if isinstance(inputs, str | Path) else inputs:
        folder = Path(one).expanduser()
        if holds_shards(folder):
            trains = f"`bertworks pretrain {shlex.quote(str(one))} -o MODEL`"
            hint = f"{trains} trains on it; `bertworks prepare TEXT TEXT ...` joins corpora"
            raise UsageError("this folder holds shards, not text", where=str(one), hint=hint)
        if (folder / "config.json").is_file() and any((folder / name).is_file() for name in _WEIGHTS):
            hint = f"name the text; `bertworks pretrain TEXT --init {shlex.quote(str(one))}` goes on from this model"
            raise UsageError("this folder holds a model, not text", where=str(one), hint=hint)
    reader = CorpusReader(inputs, text_column=text_column, documents=documents)
    for path in reader.files:
        if path.name == "tokenizer.json":  # shards and models have one too
            what = "among the text lies a folder that holds none, but a tokenizer, a model or shards"
            hint = f"move it elsewhere: `mv {shlex.quote(str(path.parent))} FOLDER`"
            raise UsageError(what, where=str(path.parent), hint=hint)
    return reader


def _refuse_in_corpus(output: Path, reader: CorpusReader) -> None:
    """Raises UsageError: what is written must not be read as text, the next time."""
    folders = [str(folder) for folder in reader.folders]
    refuse_nested(output, [*folders, *map(str, reader.files)], folders)


def make_vocabulary(
    reader: CorpusReader,
    output: Path,
    config: VocabularyConfig,
    *,
    max_memory: int = 1 << 30,
    workers: int | None = None,
) -> Iterator[Event]:
    """A vocabulary from raw text, written as a tokenizer folder. The "done" event has the report's figures.

    Raises:
        UsageError: there is something else than a tokenizer in the folder, or it lies within the corpus.
    """
    _refuse_in_corpus(output, reader)
    refuse_file(output)  # now: counting the words may take an hour
    strange = sorted(p.name for p in output.iterdir() if p.name not in TOKENIZER_FILES) if output.is_dir() else []
    if strange:
        raise UsageError(
            f"the folder holds more than a tokenizer: {', '.join(strange[:5])}",
            where=str(output),
            hint="-o ANOTHER-FOLDER: what is there would be lost",
        )

    def work(tell: Callable[[str, int], None]) -> tuple[Tokenizer, VocabularyReport]:
        texts = (document.text for document in reader)
        return train_vocabulary(texts, config, max_memory=max_memory, workers=workers, progress=tell)

    tokenizer, report = yield from in_background("vocabulary", work)
    with replacing_folder(output) as temporary:
        tokenizer.save(temporary)
    yield Event("note", str(reader.report))
    yield Event("done", f"{report}\nwritten to {output}", {"folder": str(output), **asdict(report)})


def make_shards(
    reader: CorpusReader,
    output: Path,
    tokenizer: Tokenizer,
    *,
    workers: int | None = None,
    overwrite: bool = False,
) -> Iterator[Event]:
    """Shards from raw text, with what the preflight found. The "done" event has the counts.

    Raises:
        UsageError: the folder lies within the corpus.
    """
    _refuse_in_corpus(output, reader)

    def work(tell: Callable[[str, int], None]) -> tuple[Shards, PreflightReport | None]:
        def progress(characters: int) -> None:
            tell("characters", characters)

        shards = write_shards(reader, tokenizer, output, workers=workers, overwrite=overwrite, progress=progress)
        if not shards.written_now and (output / "preflight.json").exists():
            return shards, None
        found = corpus_report(shards, tokenizer)
        found.save(shards.folder)
        return shards, found

    shards, found = yield from in_background("shards", work)
    m = shards.manifest
    counts = {"documents": m.documents, "sentences": m.sentences, "tokens": m.tokens}
    text = f"{output}: {m.documents:,} documents, {m.sentences:,} sentences, {m.tokens:,} tokens"
    if shards.written_now:
        yield Event("note", str(reader.report))
    else:
        text += ", as an earlier run of the same command left them"
    if found:
        yield Event("note", str(found), found.as_dict())
    yield Event("done", text, {"folder": str(output), **counts})


def in_background(name: str, work: Callable[[Callable[[str, int], None]], Result]) -> Generator[Event, None, Result]:
    """Runs `work(tell)` in a thread, yields what it tells as "stage" events, and returns its result. If the caller
    stops listening (Ctrl-C, an abandoned generator) the work ends where it next tells something: it unwinds."""
    news: queue.SimpleQueue[tuple[str, int] | None] = queue.SimpleQueue()
    outcome: list[Result] = []
    failure: list[BaseException] = []
    unheard = threading.Event()

    def tell(what: str, amount: int) -> None:
        if unheard.is_set():
            raise _UnheardError
        news.put((what, amount))

    def run() -> None:
        try:
            outcome.append(work(tell))
        except BaseException as error:
            failure.append(error)
        finally:
            news.put(None)

    thread = threading.Thread(target=run, daemon=True, name=name)
    thread.start()
    try:
        while (told := news.get()) is not None:
            what, amount = told
            yield Event("stage", f"{name}: {what} {amount:,}", {"stage": name, "what": what, "amount": amount})
    finally:
        unheard.set()
        thread.join(PATIENCE)
    if failure:
        raise failure[0]
    return outcome[0]
