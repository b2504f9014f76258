"""How files are read and large jobs are divided, as values.

Their fields are options of the command line.

The command line imports this module to print the help of a command, so it imports no module that
reads files.
"""

import re
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Literal

from bertworks.errors import UsageError, expect

STDIN = "<stdin>"  # standard input in messages and in the parser of the command line
# where a document of raw text ends
Documents = Literal["auto", "blank_line", "title", "file"]


@dataclass(frozen=True, kw_only=True)
class RawText:
    """How raw text is read.

    Args:
        text_column: Column or JSON field of the text. Default: detected automatically; a title is
            put before its text.
        documents: Where a document of a .txt file ends: at a blank line; at a blank line, but not
            after a title; or at the end of the file.
        encoding: Encoding of the text, e.g. cp1252 or cp932. Default: UTF-8 (UTF-16 if a BOM is
            present).
    """

    text_column: str | None = None
    documents: Documents = "auto"
    encoding: str | None = None


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How a file of rows is read.

    The fields are options of every command that reads rows.

    Args:
        quoting: Whether quotation marks enclose cells (quoted) or are part of the text (raw).
        header: Whether the first row of a table names the columns. Default: detected automatically.
        encoding: File encoding, e.g. cp1252, cp932, euc-kr or gb18030. Default: UTF-8 (UTF-16 if a
            BOM is present).
        columns: Columns of a CoNLL file, counted from 1, e.g. word=2,tag=4. Default: detected
            automatically.
        sentence_column: Column that identifies the sentence, in a table with one word per row. Rows
            with the same value, or an empty cell, belong to the same sentence.
            Default: each row is an example.
        split: Part of a JSON file with several parts, e.g. train, validation or test. Default:
            the file has no parts.
        sheet: Sheet of an Excel file (.xlsx; needs openpyxl). Default: the first one, which is
            named.
        max_row_bytes: Maximum size of a row, e.g. 64m. Reading a row may need four times this
            memory.
        decimal: Decimal separator of numbers in texts: --decimal , reads 3,5.
        label_separator: Delimiter between labels in a cell, e.g. ";". Default: detected
            automatically.
        label_names: Names of the labels for lists of 0 and 1, separated by commas, in their order:
            toxic,insult. Default: cells hold names.
        skip_unlabelled: Skip rows without a label, and count them. Default: such rows are errors.
        missing: A value that means that the label is missing: such rows are skipped and counted,
            like all rows without a label. Repeatable. Default: N/A, NA, n/a, #N/A, null and NaN are
            errors.
        missing_none: Read N/A, NA, n/a, #N/A and null as names of classes.
        join_labels: Treat labels that differ only in case, width or spaces as the same label;
            underscores count as spaces. Default: a warning counts them.
    """

    quoting: Literal["auto", "raw", "quoted"] = "auto"
    header: bool | None = None
    encoding: str | None = None
    columns: str | None = None
    sentence_column: str | None = None
    split: str | None = None
    sheet: str | None = None
    max_row_bytes: str = "16m"

    @property
    def numbers_of_columns(self) -> dict[str, int]:
        """`columns` as {"word": 2, "tag": 4}.

        Raises:
            UsageError: it is not like that.
        """
        pairs = [
            re.fullmatch(r"(word|tag)=([1-9]\d?)", pair.strip())
            for pair in (self.columns or "").split(",")
        ]
        numbers = {pair[1]: int(pair[2]) for pair in pairs if pair}
        if self.columns is not None and len(numbers) < len(pairs):
            raise UsageError(
                f"--columns {self.columns!r} names no columns",
                hint="--columns word=2,tag=4, from 1",
            )
        return numbers

    decimal: Literal[".", ","] = "."
    label_separator: str | None = None
    label_names: str | None = None
    skip_unlabelled: bool = False
    missing: tuple[str, ...] = ()
    missing_none: bool = False
    join_labels: bool = False

    @property
    def skips_unlabelled(self) -> bool:
        """Whether rows without a label are left out, and are no errors."""
        return self.skip_unlabelled or bool(self.missing)

    @property
    def words(self) -> list[str]:
        """The options of the command line that differ from their defaults."""
        words: list[str] = []
        for option in fields(self):
            name = option.name.replace("_", "-")
            value = getattr(self, option.name)
            if isinstance(value, tuple):
                words += [word for item in value for word in (f"--{name}", item)]
            elif value != option.default:
                words += (
                    [f"--{'' if value else 'no-'}{name}"]
                    if isinstance(value, bool)
                    else [f"--{name}", str(value)]
                )
        return words


@dataclass(frozen=True, kw_only=True)
class Bulk:
    """Large jobs, in portions that any number of processes and machines make.

    Args:
        on: Process the job in worker processes: local, ray (the cluster of RAY_ADDRESS, else this
            machine), or ray://HEAD:10001. Default: this process.
        part: Process only one part, e.g. 3/40 (0/40 to 39/40), for example in a Slurm array; its
            results are stored in OUTPUT.parts. When all parts are done, merge them with --join.
            Default: the whole job.
        join: Merge the results of all parts into the output.
        workers: Number of processes. Default: one per available core.

    Raises:
        UsageError: an unknown engine, no such part, or more than one of on, part and join.
    """

    on: str | None = None
    part: str | None = None
    join: bool = False
    workers: int | None = None

    def __post_init__(self) -> None:
        if not self.is_shared:
            return
        expect(
            (self.on is not None) + (self.part is not None) + self.join == 1,
            "--on, --part and --join exclude each other",
            hint="first each --part, then --join alone",
        )
        expect(
            self.on is None or re.fullmatch(r"local|ray|ray://[^/:]+:\d{1,5}", self.on),
            f"there is no engine {self.on!r}",
            hint="--on local, --on ray or --on ray://HEAD:10001",
        )
        expect(
            self.part is None or self.numbers,
            f"--part {self.part}: there is no such part",
            hint="of 40 parts, --part 0/40 is the first and --part 39/40 the last",
        )

    @cached_property
    def is_shared(self) -> bool:
        """Whether portions are made in other processes, or are those of a part."""
        return self.on is not None or self.part is not None or self.join

    @property
    def numbers(self) -> tuple[int, int] | None:
        """The number of the part, and how many there are."""
        match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", self.part or "")
        return (int(match[1]), int(match[2])) if match and int(match[1]) < int(match[2]) else None
