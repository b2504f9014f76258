"""Options that several verbs share: one name, one meaning, one line of help. Not here: what the verbs do with them."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter, Token
from cyclopts.validators import Number

from bertworks.errors import UsageError
from bertworks.text.streams import STDIN


def _values(_: object, tokens: Sequence[Token]) -> list[str]:
    return ["-" if token.value == STDIN else token.value for token in tokens]


Inputs = Annotated[
    list[str],
    Parameter(
        converter=_values,
        help="Files, folders or globs, or - for standard input: .txt, .jsonl, .csv, .tsv, .parquet or WikiExtractor"
        " output, also as .gz, .zst, .xz or .bz2.",
    ),
]
Texts = Annotated[
    list[str], Parameter(converter=_values, help="Texts with [MASK] in them, or - for the lines of standard input.")
]
Sentences = Annotated[list[str], Parameter(converter=_values, help="Sentences, or - for the lines of standard input.")]
Explained = Annotated[
    list[str],
    Parameter(
        converter=_values,
        help="A text, for a pre-trained model with a [MASK]; two for a pair, or a question and its context; or - for"
        " the lines of standard input.",
    ),
]
Output = Annotated[Path, Parameter(name=["--output", "-o"], help="The folder to write.")]
Workers = Annotated[
    int | None, Parameter(validator=Number(gte=1), help="Processes. Unset: one per core that may be used.")
]
TextColumn = Annotated[
    str | None, Parameter(help="Column or JSON field that holds the text. Unset: it is guessed, and shown.")
]
Documents = Annotated[
    Literal["auto", "blank_line", "file"],
    Parameter(help="Where a document of a .txt file ends: at a blank line, or with the file."),
]
Overwrite = Annotated[bool, Parameter(negative="", show_default=False, help="Replace what the output folder holds.")]
Rounding = Annotated[
    Literal["auto", "fp32", "bf16", "int8"],
    Parameter(
        help="auto: bf16 where this hardware gains by it; else fp32. int8: matrices in 8 bits, sooner on CPUs with"
        " instructions for it (VNNI), a little less exact; what it costs is said."
    ),
]
Json = Annotated[
    bool,
    Parameter(name="--json", negative="", show_default=False, help="Write results as JSON to standard output."),
]

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def parse_size(text: str, option: str) -> int:
    """`"512m"`, `"1g"`, `"1.5 GiB"` as a number of bytes.

    Raises:
        UsageError: it is not a positive number with one of the units k, m, g, t.
    """
    match = re.fullmatch(r"([0-9]*\.?[0-9]+)\s*([kmgt]?)(?:i?b)?", text.strip().lower())
    size = int(float(match[1]) * _UNITS[match[2]]) if match else 0
    if size <= 0:
        raise UsageError(f"{option} {text!r} is not a size", fix=f"{option} 512m, or {option} 1g")
    return size
