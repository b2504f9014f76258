"""Static vectors as the text format of word2vec.

The first line says "WORDS WIDTH", each other line has a word and its numbers.

- `export_word2vec`: a model folder -> a file that `KeyedVectors` of gensim reads, too
- `is_word2vec`, `read_word2vec`: such a file -> a model

The numbers have nine digits, so that each is read as the same float32.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from bertworks.checkpoints.hf_config import FAMILIES
from bertworks.checkpoints.model_folder import Model
from bertworks.errors import BertworksError, expect, quoted, require, some_names
from bertworks.events import Event
from bertworks.inference.engine import open_model
from bertworks.io.atomic_write import local_path, replacing
from bertworks.io.inputs import Repairs, open_lines
from bertworks.models.settings import LIMITS
from bertworks.text.whole_words import UNKNOWN, tokenizer_of_words

_HEADER = re.compile(r"(\d{1,12})[ \t]+(\d{1,12})[ \t]*")
_MOST_WORDS = 500_000  # as for vocabularies that are trained: those of larger files are not read
_WHAT = 'the first line of a word2vec text says "WORDS WIDTH", such as "71291 100"'

Table = NDArray[np.float32]


class WordVectors(NamedTuple):
    """The content of a word2vec text. table: float32 [words, width]."""

    words: list[str]
    table: Table


def export_word2vec(
    model: str | Path, output: str | Path, *, overwrite: bool = False
) -> Iterator[Event]:
    """Write the static vectors of a model as a word2vec text.

    Tokens with the vector 0, such as special ones, and tokens with white space in them have no
    place there. They are counted.

    Args:
        output: a file that does not exist.
        overwrite: replace a file that exists.

    Raises:
        UsageError: the file exists; the model has no static vectors, or something behind them.
        BertworksError: no such model; it has no word with a vector.
    """
    path = local_path(output, "output file")
    expect(
        not path.exists() or (overwrite and path.is_file()),
        "this path already exists",
        where=path,
        hint="choose another file with -o" + ("; or --overwrite" if path.is_file() else ""),
    )
    source = open_model(model, "cpu", embeds=True)
    expect(
        source.config.kind == "static",
        "this model has no static vectors: its vectors of words depend on their context",
        where=source,
        hint=f"make static vectors of it: bertworks convert {quoted(source.folder)} -o STATIC "
        "--static 256",
    )
    settings = source.sentence_transformer.settings
    kinds = [module.kind for module in settings.modules]
    expect(
        not kinds,
        f"the static vectors pass through {some_names(kinds)}, which a word2vec text cannot hold",
        where=source,
        hint="export other static vectors",
    )
    table = source.state["encoder.embeddings.token.weight"].float().cpu().numpy()
    tokens = source.tokenizer.tokens
    is_zero = ~table[: len(tokens)].any(1)
    has_space = np.array([any(map(str.isspace, token)) or not token for token in tokens])
    numbers = np.flatnonzero(~is_zero & ~has_space)
    require(len(numbers) > 0, "no token has a vector other than 0", source.folder)
    counts = {
        "tokens with the vector 0": int(is_zero.sum()),
        "tokens with white space in them": int((has_space & ~is_zero).sum()),
    }
    for what, count in counts.items():
        if count:
            yield Event("note", f"{what}, left out: {count:,}")
    if settings.normalize:
        yield Event("note", "the model normalizes its vectors; the numbers are those before that")
    width = table.shape[1]
    line = " ".join(["%s"] + ["%.9g"] * width) + "\n"
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        file.write(f"{len(numbers)} {width}\n")
        for number in numbers.tolist():
            file.write(line % (tokens[number], *table[number].tolist()))
    fields = {"output": str(path), "format": "word2vec", "words": len(numbers), "width": width}
    yield Event("done", f"{path}: {len(numbers):,} words, {width} numbers each", fields)


def is_word2vec(path: Path) -> bool:
    """Return whether the first line of a file is that of a word2vec text."""
    if not path.is_file():
        return False
    with open_lines(path, str(path)) as reader:
        return reader.not_text is None and bool(_HEADER.fullmatch(reader.sample()[0]))


def read_word2vec(path: Path) -> tuple[Model, list[str]]:
    """Read a word2vec text as a model of static vectors, with notes for users.

    How a text becomes words is inferred from the words, see `tokenizer_of_words`. Without a known
    word it has the vector 0, unless the file has a vector of [UNK].

    Raises:
        BertworksError: a line that is no word with its numbers, a number that is not finite, a
            repeated word, a wrong number of words; `where` is the line.
    """
    repairs = Repairs()
    content = _read(path, repairs)
    words = content.words
    table = torch.from_numpy(content.table)
    if UNKNOWN not in words:
        words = [UNKNOWN, *words]
        table = torch.cat([torch.zeros(1, table.shape[1]), table])
    default = FAMILIES["static"].default
    config = replace(default, vocab_size=len(words), hidden_size=table.shape[1])
    tokenizer, notes = tokenizer_of_words(words, config.max_position_embeddings)
    notes += [f"{what}: {issues}" for what, issues in repairs.counts.items()]
    return Model(config, {"encoder.embeddings.token.weight": table}, tokenizer), notes


def _read(path: Path, repairs: Repairs) -> WordVectors:
    """Return the words and their vectors; raises as `read_word2vec`.

    repairs: of bytes that are not text, is updated.
    """
    with open_lines(path, str(path), repairs) as reader:
        lines = reader.lines()
        _, first = next(lines, (1, ""))
        header = _HEADER.fullmatch(first)
        require(header is not None, f"{first!r:.60} is no such line: {_WHAT}", f"{path}:1")
        assert header is not None
        count, width = map(int, header.groups())
        for name, value, most in (
            ("words", count, _MOST_WORDS),
            ("numbers of a vector", width, LIMITS["hidden_size"]),
        ):
            require(
                1 <= value <= most,
                f"{value:,} {name}: expected from 1 to {most:,}",
                f"{path}:1",
                f"keep the first {_MOST_WORDS:,} words, the most frequent ones, and write their "
                "number into the first line",
            )
        rows: list[Table] = []
        line_of: dict[str, int] = {}
        for number, line in lines:
            where = f"{path}:{number}"
            if not line.strip():
                continue
            require(
                len(rows) < count,
                f"the first line says {count:,} words, but there are more",
                where,
                "correct the number in the first line",
            )
            word, values = _word_and_numbers(line, width, where)
            require(
                word not in line_of,
                f"{word!r:.60} occurs twice, first in line {line_of.get(word)}",
                where,
                "remove one of the lines, and correct the number in the first line",
            )
            line_of[word] = number
            rows.append(values)
    require(
        len(rows) == count,
        f"the first line says {count:,} words, but there are {len(rows):,}",
        f"{path}:1",
        "fetch the file again; or correct the number in the first line",
    )
    return WordVectors(list(line_of), np.stack(rows))


def _word_and_numbers(line: str, width: int, where: str) -> tuple[str, Table]:
    """Return the word of a line and its numbers; raises as `read_word2vec`."""
    word, *cells = line.rstrip(" \t").replace("\t", " ").split(" ")
    require(
        len(cells) == width and word != "",
        f"a word and {len(cells):,} numbers: expected a word and {width:,} numbers, with one space "
        "between them",
        where,
        "correct the line, or the width in the first line",
    )
    try:
        with np.errstate(over="ignore"):  # a number beyond float32 becomes infinite
            values = np.array(cells, np.float32)
    except ValueError:
        wrong = next((cell for cell in cells if not _is_number(cell)), cells[0])
        raise BertworksError(f"{wrong!r:.60} is not a number", where=where) from None
    require(
        bool(np.isfinite(values).all()),
        f"the vector of {word!r:.60} has NaN or infinite numbers",
        where,
        "remove the line, and correct the number in the first line",
    )
    return word, values


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
