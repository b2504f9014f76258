"""Run long jobs in numbered portions, each a file, and write rows to files.

Portions are made by this process or by any number of processes and machines.

- `FileJob`: the portions of a job, until the output is written from them; an interrupted job
  resumes
- `compute_file`: the rows of a file -> portions -> the output
- `portions_of`: rows in portions; `unpacked_values`: what a portion holds
- `RowFormat`: rows as csv, tsv, JSON lines or Parquet, compressed or not, in blocks of bytes which
  any process can make and which are joined to a file; `row_portion`, `join_portions`: portions that
  hold such blocks
- `write_rows`: a whole file, which appears when it is complete

A portion is `NUMBER-FINGERPRINT-COUNT`, sealed with its name. The fingerprint is that of
`job.json`: everything that the results depend on. A process that makes a portion writes it to a
temporary file, flushes it and renames it; portions of one name have the same bytes in all
processes. So each portion is there once and complete, whatever is killed, and an engine only
schedules.
"""

import csv
import json
import os
import re
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain, groupby, islice
from pathlib import Path
from pkgutil import resolve_name
from tempfile import TemporaryDirectory
from typing import IO, Any, Literal, TypeVar

from bertworks import __version__
from bertworks.errors import (
    BertworksError,
    UsageError,
    expect,
    explain_os_errors,
    quoted,
    require,
    some_names,
)
from bertworks.events import Event, JsonObject
from bertworks.io.atomic_write import (
    SEAL,
    folder_lock,
    hidden_sibling,
    is_sealed,
    json_sha256,
    local_path,
    refuse_existing,
    remove,
    remove_leftovers,
    replacing,
    sealing,
    temporary_sibling,
    write_json,
)
from bertworks.io.inputs import COMPRESSIONS, FORMATS, IssueCounter, chunk_by_size, format_suffix
from bertworks.io.options import Bulk
from bertworks.io.processes import available_cpus, in_processes
from bertworks.io.tables import as_json

_T = TypeVar("_T")
# What a portion holds: a number for its name (a count of the command) or several, and values.
Portion = tuple[int | Sequence[int], Iterable[bytes]]
ROWS_AT_ONCE = 2048  # that are read, sorted by length and computed together, or fewer
CHARACTERS_AT_ONCE = 1 << 22  # if these have more characters
_TRIES = 3  # to make a portion
_JOB = "job.json"
_OUTPUT = "output.json"  # the state of the output before it is written from the portions
_ENDED = "the worker died in each of " + f"{_TRIES} attempts at chunk " + "{value[0]} ({how})"
_AGAIN = "run the same command again: finished chunks are kept; fewer --workers need less memory"
_NAME = re.compile(r"(\d{6,})-([0-9a-f]{16})-\d+(\.\d+)*")
FileKind = Literal["csv", "tsv", "jsonl", "json", "parquet", "conll"]
_BATCH_ROWS = 500  # held in memory
# A cell that spreadsheet programs compute: it begins with one of = + - @ tab CR, also of full
# width, and is no number.
_FORMULA = re.compile(r"[=@＝＠＋－\t\r]|[+-](?!\d*[.,]?\d*(?:[eE][+-]?\d+)?%?$)")


class FileJob:
    """A job whose results are computed in portions, from which its output is written.

    Args:
        output: The portions are next to it, in `OUTPUT.parts`, or hidden if only this process makes
            them.
        bulk: who makes them; not shared: this process, in which those of another job do not count.
        identity: all that the results depend on: model, data, settings, machine. Values that JSON
            can hold.
        maker: "module:name" of a function. Each process calls it with the settings; it returns what
            is its own of the identity, and the function from an input to what the portion holds.
        settings: values that JSON can hold.
        machine: what results of a model depend on besides the model and the data, as
            `training.device.fixed_machine` tells. It is a part of the identity; the maker gets its
            number of threads after the settings.
        gpus: that workers share.
    """

    def __init__(
        self,
        output: Path,
        bulk: Bulk,
        identity: Mapping[str, Any],
        maker: str,
        settings: Sequence[Any],
        *,
        machine: Mapping[str, Any] | None = None,
        gpus: int = 0,
    ):
        expect(
            not bulk.is_shared or str(output) != "-",
            "chunks are stored next to the output, which needs a name",
            hint="-o FILE",
        )
        output = local_path(output)
        target = output.absolute()
        self.folder = (
            target.with_name(f"{target.name}.parts")
            if bulk.is_shared
            else hidden_sibling(target, ".portions")
        )
        self.output = str(output)
        self.bulk = bulk
        machine = machine or {}
        self._job = json.loads(json.dumps({"version": __version__, **identity, **machine}))
        self._fingerprint = json_sha256(self._job)[:16]
        self._maker = maker
        self._threads = machine.get("threads", 1)
        self._settings = [*settings, self._threads] if machine else list(settings)
        self._gpus = gpus
        self.files: list[Path] = []

    @property
    def counts(self) -> list[int]:
        """The sums of the counts in the names of the portions; [0]: there is no portion."""
        names = (file.name.rpartition("-")[2].split(".") for file in self.files)
        return [sum(map(int, column)) for column in zip(*names, strict=True)] or [0]

    @property
    def truncated(self) -> int:
        """The first of the `counts`: texts that were truncated."""
        return self.counts[0]

    @contextmanager
    def open(self) -> Iterator[None]:
        """Hold the folder of portions while they are made and joined, then delete it.

        The portions of a part stay, and all of them after an error.

        Raises:
            BertworksError: the folder holds portions of another job, or another process joins or
                schedules this one.
        """
        with ExitStack() as stack:
            if self.output == "-":
                self.folder = Path(stack.enter_context(TemporaryDirectory()))
            if not self.bulk.part:
                stack.enter_context(
                    folder_lock(
                        self.folder,
                        "another process is writing the same output",
                        "wait for it, or use another output",
                    )
                )
            self.folder.mkdir(parents=True, exist_ok=True)
            if not (self.bulk.is_shared and (self.folder / _JOB).exists()):
                write_json(self.folder / _JOB, self._job)
            _refuse_other(_read_job(self.folder), self._job, self.folder)
            remove_leftovers(self.folder)
            remove_leftovers(self.folder.parent, name=self.folder.name)
            try:
                yield
            except BaseException:
                # no portion is complete
                if not self.bulk.part and not any(self.folder.glob("*-*")):
                    remove(self.folder)
                raise
            if not self.bulk.part:
                _remove_whole(self.folder)

    def discard(self) -> None:
        """Delete the portions of an output that the caller knows to be complete.

        The process that wrote it may have been killed before it deleted them. Portions of another
        job stay.
        """
        if (
            not self.bulk.part
            and (self.folder / _JOB).is_file()
            and _read_job(self.folder) == self._job
        ):
            _remove_whole(self.folder)

    def make(
        self, stage: str, inputs: Iterable[Any], compute: Callable[[Any], Portion] | None = None
    ) -> Iterator[Event]:
        """Make the portions that do not exist yet.

        Then `files` has the files of all in order; for a part, none.

        Args:
            inputs: of the portions, in order; values that can be pickled. They are the same in each
                part.
            compute: the function of the maker, if this process has it already.

        Raises:
            BertworksError: --join, and portions are missing; a portion ended its process three
                times.
        """
        number = -1
        part, num_parts = self.bulk.numbers or (0, 1)
        complete = dict[int, Path]()
        num_damaged = 0
        for path in self.folder.glob(f"*-{self._fingerprint}-*"):
            match = _NAME.fullmatch(path.name)
            if match and int(match[1]) % num_parts == part:
                if is_sealed(path, path.name):
                    complete[int(match[1])] = path
                else:
                    path.unlink(missing_ok=True)
                    num_damaged += 1
        if complete:
            yield Event(
                "note",
                f"resuming: {len(complete):,} chunks in {self.folder} are complete",
                {"resumed_portions": len(complete)},
            )
        if num_damaged:
            yield Event(
                "note",
                f"damaged chunks in {self.folder}, computed again: {num_damaged:,}",
                {"damaged": num_damaged},
            )

        def missing() -> Iterator[tuple[int, Any]]:
            nonlocal number
            for number, value in enumerate(inputs):
                if number % num_parts == part and number not in complete:
                    yield number, value

        names: Iterable[str] = ()
        if self.bulk.join:
            absent = [n for n, _ in missing()]
            require(
                not absent,
                f"{len(absent):,} of {number + 1:,} chunks are missing: "
                f"{some_names(map(str, absent))}",
                self.folder,
                "run the unfinished parts again; or compute the chunks here: --on local instead of "
                "--join",
            )
        elif self.bulk.part or not self.bulk.is_shared:
            work = compute or resolve_name(self._maker)(*self._settings)[1]
            names = (
                create(self.folder, self._fingerprint, n, *work(value)) for n, value in missing()
            )
        else:
            folders = [str(self.folder), str(Path.cwd())]
            names = self._engine()(
                "bertworks.io.file_job:portion_maker",
                [*folders, self._fingerprint, self._maker, self._settings],
                missing(),
                ended=_ENDED,
                hint=_AGAIN,
                tries=_TRIES,
            )
        for count, name in enumerate(names, 1):
            complete[int(name.partition("-")[0])] = self.folder / name
            fields = {"stage": stage, "what": "portions", "amount": count}
            yield Event("stage", f"{stage}: {count:,} chunks", fields)
        if self.bulk.part:
            yield Event(
                "done",
                f"{self.folder}: part {self.bulk.part} is complete; when all parts are, run the "
                "same command with --join",
                {"folder": str(self.folder), "part": self.bulk.part, "portions": number + 1},
            )
        else:
            self.files = [complete[n] for n in range(number + 1)]
            if self.output != "-":
                write_json(self.folder / _OUTPUT, _state(Path(self.output)))

    def _engine(self) -> Callable[..., Iterator[str]]:
        workers = self.bulk.workers
        if self.bulk.on == "local":
            count = workers or self._gpus or max(1, available_cpus() // self._threads)
            return partial(in_processes, workers=count, gpus=self._gpus, any_order=True)
        from bertworks.io.ray_engine import in_ray

        return partial(
            in_ray,
            workers=workers,
            address=self.bulk.on or "",
            threads=self._threads,
            gpus=self._gpus,
        )


def portions_of(
    rows: Iterable[_T],
    size: Callable[[_T], int],
    document: Callable[[_T], str] = lambda _: "",
) -> Iterator[list[_T]]:
    """Lists of ROWS_AT_ONCE rows, or fewer if these have more than CHARACTERS_AT_ONCE.

    Args:
        size: the characters of a row.
        document: of a row, or ""; documents are not divided.
    """
    least = -(-CHARACTERS_AT_ONCE // ROWS_AT_ONCE)
    documents = (list(group) for _, group in groupby(rows, lambda row: document(row) or object()))
    for portion in chunk_by_size(
        documents, CHARACTERS_AT_ONCE, lambda group: sum(max(least, size(row)) for row in group)
    ):
        yield list(chain.from_iterable(portion))


def compute_file(
    stage: Literal["predict", "embed", "translate"],
    job: FileJob,
    rows: Iterable[_T],
    compute: Callable[[list[_T]], Portion],
    join: Callable[[Sequence[Path]], str | None],
    *,
    notes: Callable[[], Iterable[Event]] = lambda: (),
    size: Callable[[_T], int] = lambda row: 0,
    document: Callable[[_T], str] = lambda _: "",
    examples: Callable[[list[_T]], Iterable[Event]] = lambda _: (),
    results: str = "rows",
    describe: Callable[[Sequence[int]], str] = lambda counts: f"{counts[0]:,} texts were truncated",
    count: str = "truncated",
    **fields: Any,
) -> Iterator[Event]:
    """Compute the results of all rows of a file in portions, and write the output.

    An interrupted job resumes; an incomplete portion is computed again as a whole, with equal
    results.

    Args:
        job: all that the results depend on, and who makes the portions; of a part, the output is
            not written.
        compute: rows -> counts, the first of which is mostly the number of truncated texts, and
            what the portion holds.
        describe: the sums of these counts, at least one of them above 0 -> words.
        count: the name of the first sum in the last event.
        join: the files of the portions, in order -> the output; returns a note about it.
        notes: on all rows, when they are read.
        size, document: see `portions_of`.
        examples: the first rows -> notes on some of them.
        results: what the output holds: a noun in the plural, with more words after it or none; and
            more fields of the last event.

    Raises:
        BertworksError: another process writes the same output.
    """
    done = 0

    def inputs() -> Iterator[list[_T]]:
        nonlocal done
        for portion in portions_of(rows, size, document):
            done += len(portion)
            yield portion

    with job.open():
        portions = inputs()
        first = list(islice(portions, 1))
        yield from chain.from_iterable(map(examples, first))
        for event in job.make(stage, chain(first, portions), compute):
            if event.kind == "stage" and not job.bulk.is_shared:
                progress = {"stage": stage, "what": "rows", "amount": done}
                event = Event("stage", f"{stage}: {done:,} rows", progress)
            yield event
        if job.bulk.part:
            return
        yield from notes()
        note = join(job.files)
        if note:
            yield Event("note", note)
    noun = re.sub(r"s\b", "", results, count=1) if done == 1 else results
    text = f"{done:,} {noun}"
    if job.output != "-":
        text += f" written to {job.output}"
    if any(job.counts):
        text += f"; {describe(job.counts)}"
    counts = {"output": job.output, "rows": done, count: job.truncated}
    yield Event("done", text, counts | fields, is_warning=job.truncated > 0)


def refuse_finished(output: Path, overwrite: bool, file: str = "") -> None:
    """Check that an output does not exist, or may be replaced.

    Portions from which it was written are deleted: the process that wrote it may have been killed
    before it deleted them.

    Args:
        output: a file or a folder that is written at once, as a whole.
        file: a file in the folder, which says that there is an output.

    Raises:
        UsageError: it exists.
    """
    target = local_path(output).absolute()
    for folder in (target.with_name(f"{target.name}.parts"), hidden_sibling(target, ".portions")):
        with suppress(OSError, ValueError):  # no such file: nothing was written from these portions
            before = json.loads((folder / _OUTPUT).read_bytes())
            if _state(target) not in (None, before):
                _remove_whole(folder)
    refuse_existing(output / file if file else output, overwrite)


def _state(path: Path) -> list[int] | None:
    """Return a value that changes when another file or folder takes this path; None: it is free."""
    if not path.exists():
        return None
    state = path.stat()
    return [state.st_ino, state.st_mtime_ns]


def _remove_whole(folder: Path) -> None:
    """Delete the folder of a job, also if the process is killed meanwhile.

    By then it has the name of a leftover.
    """
    aside = temporary_sibling(folder)
    with suppress(OSError):  # another process was faster
        folder.rename(aside)
    remove(aside)


def portion_maker(
    folder: str, working: str, fingerprint: str, maker: str, settings: Sequence[Any]
) -> Callable[[tuple[int, Any]], str]:
    """Return the work of a process, on any machine.

    It is the function from the number of a portion and its input to its name.

    Raises:
        BertworksError: the folder is not visible here, or this machine or its model would give
            other results.
    """
    job = _read_job(Path(folder))
    with explain_os_errors(
        f"not visible on {socket.gethostname()}", working, "start the job in a shared folder"
    ):
        os.chdir(working)  # paths are as they were typed
    require(
        json_sha256(job)[:16] == fingerprint,
        "the job has changed",
        folder,
        "run the same command again",
    )
    identity, compute = resolve_name(maker)(*settings)
    _refuse_other(job, {"version": __version__, **json.loads(json.dumps(identity))}, Path(folder))
    return lambda task: create(Path(folder), fingerprint, task[0], *compute(task[1]))


def create(
    folder: Path,
    fingerprint: str,
    number: int,
    counts: int | Sequence[int],
    values: Iterable[bytes],
) -> str:
    """Write a portion unless it exists, and return its name.

    values: each is written after its length.
    """
    _read_job(folder)  # it is gone after a join
    words = [str(count) for count in ([counts] if isinstance(counts, int) else counts)]
    path = folder / f"{number:06}-{fingerprint}-{'.'.join(words)}"
    if not path.exists():
        with sealing(path, path.name) as temporary, temporary.open("wb") as stream:
            for value in values:
                stream.write(len(value).to_bytes(8, "little"))
                stream.write(value)
    return path.name


def unpacked_values(portion: Path) -> Iterator[bytes]:
    """Yield the values of a portion, one in memory at a time.

    Raises:
        BertworksError: the file has changed since it was written.
    """
    require(
        is_sealed(portion, portion.name),
        "damaged: the checksum does not match",
        portion,
        "run the same command again: this chunk is computed again",
    )
    with portion.open("rb") as file:
        end = portion.stat().st_size - SEAL
        while file.tell() < end:
            yield file.read(int.from_bytes(file.read(8), "little"))


def _read_job(folder: Path) -> JsonObject:
    host = socket.gethostname()
    require(
        (folder / _JOB).is_file(),
        f"this folder is not visible on {host}, or its job.json is gone",
        folder,
        "write to a folder that all machines share: -o SHARED/FILE",
    )
    with explain_os_errors("cannot be read", folder / _JOB), suppress(ValueError):
        return dict(json.loads((folder / _JOB).read_bytes()))
    return {}  # it is damaged


def _refuse_other(job: Mapping[str, Any], identity: Mapping[str, Any], folder: Path) -> None:
    """Raises BertworksError if a job has other values than those here."""
    names = [name for name in identity if job.get(name) != identity[name]]
    differences = "; ".join(
        f"{name}: {job.get(name)!s:.60}, here {identity[name]!s:.60}" for name in names
    )
    require(
        not names,
        f"these chunks belong to another job ({differences}); {socket.gethostname()} would compute "
        "different results",
        folder,
        "use the same version, settings and kind of machine everywhere; or start over: rm -r "
        f"{quoted(folder)}",
    )


# --- rows as a file
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class RowFormat:
    """How rows become a file.

    They are written in blocks that are joined by concatenation, or, as Parquet, by copying them
    with one type for each column.

    Missing values are empty cells in tables and null in Parquet. JSON lines leave them out, and may
    have fields besides the columns. Lists and mappings in tables are written as JSON.

    Args:
        name: the name of the file in messages.
        columns: in the order of tables and Parquet.
        guard_formulas: write ' before texts in csv and tsv that spreadsheet programs would compute.
    """

    name: str
    kind: FileKind
    columns: Sequence[str]
    guard_formulas: bool = False

    @property
    def identity(self) -> JsonObject:
        """What the bytes of rows depend on."""
        return {name: value for name, value in asdict(self).items() if name != "name"}

    def block(
        self,
        rows: Iterable[Mapping[str, Any]],
        first: int = 1,
        formulas: IssueCounter | None = None,
    ) -> bytes:
        """Return the bytes of rows.

        Args:
            first: the number of the first row in the file.
            formulas: counts the texts that spreadsheet programs would compute.

        Raises:
            BertworksError: a row has a field that is not a column; the values of a column have no
                common type in Parquet.
        """
        if self.kind == "parquet":
            return self._arrow_block(list(self._checked(rows, first)), first)
        if self.kind in ("csv", "tsv"):
            numbered = enumerate(self._checked(rows, first), first)
            values = ((f"row {n}", list(map(row.get, self.columns))) for n, row in numbered)
            return self._lines(values, formulas)
        end = "\n" if self.kind == "jsonl" else ",\n"
        return _bytes_of(f"{as_json(dict(row))}{end}" for row in rows)

    def join(
        self,
        path: str | Path,
        blocks: Callable[[], Iterable[bytes]],
        formulas: IssueCounter | None = None,
    ) -> None:
        """Write the file of blocks, compressed as its suffix says; "-" is standard output.

        Args:
            blocks: returns all blocks; is called twice for Parquet.
            formulas: counts names of columns that spreadsheet programs would compute.

        Raises:
            BertworksError: the file cannot be written. Then no file is left behind.
        """
        if self.kind == "parquet":
            with replacing(Path(path)) as temporary:
                self._join_arrow(temporary, blocks)
            return
        with _open_output(path) as stream:
            if self.kind == "json":
                _join_array(stream, blocks())
            else:
                if self.kind in ("csv", "tsv"):
                    stream.write(self._lines([("header", self.columns)], formulas))
                stream.writelines(blocks())
            stream.flush()

    def formula_note(self, formulas: IssueCounter) -> str | None:
        """Return a note on texts that would be formulas, if there are any."""
        if not formulas.count:
            return None
        effect = (
            "prefixed with '" if self.guard_formulas else "--guard-formulas prefixes them with '"
        )
        return f"cells that Excel would run as formulas: {formulas}; {effect}"

    def _lines(
        self, rows: Iterable[tuple[str, Sequence[Any]]], formulas: IssueCounter | None
    ) -> bytes:
        """Return rows as lines of a table. rows: their places, for `formulas`, and their values."""
        formulas = IssueCounter() if formulas is None else formulas
        # csv quotes the characters of its line end: cells with "\r" or "\n" are quoted in all
        # versions of Python.
        delimiter = "," if self.kind == "csv" else "\t"
        writer = csv.writer(_Line(), delimiter=delimiter, lineterminator="\r\n")
        lines = []
        for place, values in rows:
            cells = []
            for column, value in zip(self.columns, values):
                cell = value
                if isinstance(value, str):
                    if _FORMULA.match(value):
                        formulas.add(f"{place}, column {column!r:.60}")
                        cell = f"'{value}" if self.guard_formulas else value
                elif isinstance(value, list | tuple | dict | bool):
                    cell = as_json(value)
                else:
                    cell = "" if value is None else str(value)
                cells.append(cell)
            lines.append(f"{writer.writerow(cells)}\n")
        return _bytes_of(lines)

    def _checked(
        self, rows: Iterable[Mapping[str, Any]], first: int
    ) -> Iterator[Mapping[str, Any]]:
        """Yield the rows; BertworksError for a row with a field that is not a column."""
        columns = set(self.columns)
        for number, row in enumerate(rows, first):
            extra = [key for key in row if key not in columns]
            if extra:
                raise BertworksError(
                    f"row {number} has the field {extra[0]!r}, which no earlier row has",
                    where=self.name,
                    hint="write .jsonl: there each row has its own fields",
                )
            yield row

    def _arrow_block(self, rows: list[Mapping[str, Any]], first: int) -> bytes:
        """Return rows as an Arrow stream, with the types of their values."""
        import pyarrow

        with _explained(self.name, first, len(rows)):
            cells = {column: [row.get(column) for row in rows] for column in self.columns}
            table = pyarrow.table(cells)
        sink = pyarrow.BufferOutputStream()
        with pyarrow.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return bytes(sink.getvalue())

    def _join_arrow(self, path: Path, blocks: Callable[[], Iterable[bytes]]) -> None:
        """Write a Parquet file of Arrow streams, with types that hold the values of all."""
        import pyarrow
        from pyarrow import parquet

        schema = pyarrow.schema([(column, pyarrow.null()) for column in self.columns])
        first = 1
        for block in blocks():
            with pyarrow.ipc.open_stream(block) as stream:
                count = sum(batch.num_rows for batch in stream)
                with _explained(self.name, first, count):
                    schema = pyarrow.unify_schemas(
                        [schema, stream.schema], promote_options="permissive"
                    )
            first += count
        first = 1
        with parquet.ParquetWriter(path, schema) as writer:
            for block in blocks():
                with pyarrow.ipc.open_stream(block) as stream:
                    for batch in stream:
                        with _explained(self.name, first, batch.num_rows):
                            writer.write_table(pyarrow.Table.from_batches([batch]).cast(schema))
                        first += batch.num_rows


def format_of(
    path: str | Path,
    columns: Sequence[str],
    *,
    kind: FileKind | None = None,
    guard_formulas: bool = False,
) -> RowFormat:
    """Return the format of a file of rows.

    Args:
        path: the file. Its suffix gives the kind and the compression. "-" is standard output, csv
            by default.
        columns: in the order of tables and Parquet.
        kind: overrides the suffix.

    Raises:
        UsageError: the suffix gives no kind, or the kind has no rows, or is for files only.
    """
    kind = kind or kind_of(path)
    is_stdout = str(path) == "-"
    name = "<stdout>" if is_stdout else str(path)
    expect(
        kind != "conll",
        "CoNLL files hold words and tags, not rows",
        where=name,
        hint="use another kind",
    )
    expect(
        kind != "parquet" or not is_stdout,
        "Parquet cannot be written to a stream",
        where=name,
        hint="name a file, or use csv",
    )
    return RowFormat(name=name, kind=kind, columns=columns, guard_formulas=guard_formulas)


def write_rows(
    path: str | Path,
    columns: Sequence[str],
    rows: Iterable[Mapping[str, Any]],
    *,
    kind: FileKind | None = None,
    formulas: IssueCounter | None = None,
    guard_formulas: bool = False,
) -> int:
    """Write rows and return their number.

    See `format_of` and `RowFormat`.

    Args:
        formulas: counts the texts in csv and tsv that spreadsheet programs would compute.

    Raises:
        UsageError: see `format_of`.
        BertworksError: see `RowFormat`. Then no file is left behind.
    """
    row_format = format_of(path, columns, kind=kind, guard_formulas=guard_formulas)
    count = 0

    def blocks() -> Iterator[bytes]:
        nonlocal count
        iterator = iter(rows)
        while batch := list(islice(iterator, _BATCH_ROWS)):
            yield row_format.block(batch, count + 1, formulas)
            count += len(batch)

    if row_format.kind != "parquet":
        row_format.join(path, blocks, formulas)
        return count
    with TemporaryDirectory() as folder:
        files = []
        for number, block in enumerate(blocks()):
            files.append(Path(folder, str(number)))
            files[-1].write_bytes(block)
        row_format.join(path, lambda: map(Path.read_bytes, files))
    return count


def row_portion(
    row_format: RowFormat, rows: Iterable[Mapping[str, Any]], first: int
) -> list[bytes]:
    """Return the content of a portion of a file job (`io.file_job`) that holds finished rows.

    It is the texts that spreadsheet programs would compute, and the bytes of the rows. first: see
    `RowFormat.block`.
    """
    formulas = IssueCounter()
    block = row_format.block(rows, first, formulas)
    return [json.dumps(asdict(formulas)).encode(), block]


def line_portion(lines: Iterable[str]) -> list[bytes]:
    """`row_portion` of lines, such as those of a CoNLL file."""
    return [json.dumps(asdict(IssueCounter())).encode(), _bytes_of(f"{x}\n" for x in lines)]


def join_portions(row_format: RowFormat, path: str | Path, files: Sequence[Path]) -> str | None:
    """Write a file of portions of rows, in order.

    Return a note if some texts would be formulas.

    Raises:
        BertworksError: a portion is damaged; the file cannot be written.
    """
    formulas = IssueCounter()

    def block_of(file: Path) -> bytes:
        counts, block = unpacked_values(file)
        formulas.add_all(IssueCounter(**json.loads(counts)))
        return block

    row_format.join(path, lambda: map(block_of, files), formulas)
    return row_format.formula_note(formulas)


def kind_of(path: str | Path, *, vectors: bool = False) -> FileKind:
    """Return the kind of file that a name stands for; csv for "-".

    Args:
        vectors: whether the hint lists the kinds for vectors.

    Raises:
        UsageError: the name stands for no kind that can be written.
    """
    if str(path) == "-":
        return "csv"
    name = str(path).lower()
    kind = FORMATS.get(format_suffix(name))
    if kind is None or kind == "text" or (kind == "parquet" and name.endswith(tuple(COMPRESSIONS))):
        left_out = ("text", "conll") if vectors else ("text",)
        suffixes = ", ".join(suffix for suffix, other in FORMATS.items() if other not in left_out)
        also = f"all but Parquet may end in {', '.join(COMPRESSIONS)}"
        raise UsageError(
            "Parquet is compressed already" if kind == "parquet" else "unknown file format",
            where=path,
            hint=f"use the suffix {'.npy, or ' if vectors else ''}{suffixes}; {also}",
        )
    return kind


def _bytes_of(lines: Iterable[str]) -> bytes:
    return "".join(lines).encode("utf-8", "backslashreplace")


def _join_array(stream: IO[bytes], blocks: Iterable[bytes]) -> None:
    """Write one JSON array with one row on each line, without a comma after the last one."""
    stream.write(b"[\n")
    last = b""
    for block in filter(None, blocks):
        stream.write(last)
        last = block
    stream.write(last.removesuffix(b",\n") + b"\n" if last else b"")
    stream.write(b"]\n")


class _Line:
    """`csv.writer(_Line()).writerow(cells)` returns the line."""

    def write(self, text: str) -> str:
        return text.removesuffix("\r\n")


@contextmanager
def _open_output(path: str | Path) -> Iterator[Any]:
    """A stream of bytes.

    The file appears when the block ends without an error.
    """
    if str(path) == "-":
        if sys.stdout is None:
            raise BertworksError(
                "it was closed when the process started", where="standard output", hint="-o FILE"
            )
        yield sys.stdout.buffer
        return
    target = Path(path)
    *_, compressed = COMPRESSIONS.get(target.suffix.lower(), (nullcontext,))
    with replacing(target) as temporary, temporary.open("wb") as file, compressed(file) as stream:
        yield stream


@contextmanager
def _explained(name: str, first: int, count: int) -> Iterator[None]:
    """Raise BertworksError for rows that pyarrow refuses."""
    import pyarrow

    try:
        yield
    except pyarrow.ArrowException as error:
        raise BertworksError(
            f"rows {first} to {first + count - 1} cannot be written as Parquet: {error}",
            where=name,
            hint="write .jsonl: there a column holds anything",
        ) from error
