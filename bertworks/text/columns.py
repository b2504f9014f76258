"""Which column of a table, or which field of JSON objects, holds the text. It reads no file."""

import difflib
from collections.abc import Iterable, Mapping, Sequence

from bertworks.errors import BertworksError, UsageError

_TEXT_NAMES = (
    *("text", "content", "contents", "body", "article", "document", "doc", "passage", "paragraph", "paragraphs"),
    *("sentence", "sentences", "raw_text", "raw_content", "plain_text", "maintext", "story", "abstract", "review"),
    *("comment", "本文", "テキスト", "본문", "텍스트"),
)
_SHORTEST_TEXT = 20  # characters on average below which a column is not taken for text by itself


def as_text(value: object) -> str | None:
    """A cell as text: missing is empty, a list of texts is lines; None for anything else."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return "\n".join(value)
    return None


def choose_column(columns: Mapping[str, Sequence[object]], name: str, wanted: str | None) -> str:
    """Choose the column that holds the text: the one asked for, else by name, else the one with the longest texts."""
    listed = ", ".join(columns) or "none"
    if wanted is not None:
        if wanted in columns:
            return wanted
        close = difflib.get_close_matches(wanted.lower(), [key.lower() for key in columns], 1)
        meant = next((key for key in columns if [key.lower()] == close), None)
        raise UsageError(
            f"there is no column {wanted!r}; the columns are: {listed}",
            where=name,
            fix=f"did you mean --text-column {meant}?" if meant else "name one of them with --text-column",
        )
    lengths = {key: _mean_length(values) for key, values in columns.items()}
    by_name = {key.strip().lower(): key for key in reversed(list(columns)) if lengths[key]}
    if chosen := next((by_name[candidate] for candidate in _TEXT_NAMES if candidate in by_name), None):
        return chosen
    longest = max(lengths, key=lambda key: lengths[key], default=None)
    if longest is None or lengths[longest] < _SHORTEST_TEXT:
        raise BertworksError(
            f"no column looks like text; the columns are: {listed}",
            where=name,
            fix="name the one that holds the text with --text-column",
        )
    return longest


def _mean_length(values: Iterable[object]) -> float:
    texts = [as_text(value) or "" for value in values]
    return sum(map(len, texts)) / len(texts) if texts else 0.0


def is_header(row: list[str]) -> bool:
    """Whether a table's first row names the columns: short, distinct, no sentences, no numbers."""
    return len(set(row)) == len(row) and all(
        cell.strip() and len(cell) <= 64 and not cell.strip().endswith((".", "?", "!", "。")) and not _is_number(cell)
        for cell in row
    )


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
