"""By which names columns are known, which one holds the text, and whether a row is a header. It reads no file."""

import difflib
from collections.abc import Iterable, Mapping, Sequence

from bertworks.errors import BertworksError, UsageError

_TEXT_NAMES = (
    *("text", "content", "contents", "body", "article", "document", "doc", "passage", "paragraph", "paragraphs"),
    *("sentence", "sentences", "raw_text", "raw_content", "plain_text", "maintext", "story", "abstract", "review"),
    *("comment", "本文", "テキスト", "본문", "텍스트"),
)
LABEL_NAMES = (
    *("label", "labels", "gold_label", "class", "classes", "category", "categories", "target", "targets", "gold", "y"),
    *("sentiment", "score", "stars", "star", "rating", "ratings", "quality", "polarity", "emotion", "emotions"),
    *("intent", "topic", "topics", "tag", "tags", "is_duplicate", "similarity", "answer", "answer_key", "answerkey"),
    *("ラベル", "正解", "分類", "カテゴリ", "カテゴリー", "感情", "評価"),
    *("라벨", "레이블", "분류", "감정", "감성", "평점", "점수"),
)
PAIRS = (
    *(("sentence1", "sentence2"), ("premise", "hypothesis"), ("text_a", "text_b"), ("text1", "text2")),
    *(("question1", "question2"), ("#1 string", "#2 string"), ("sentence_a", "sentence_b"), ("text", "text_pair")),
    *(("sent1", "sent2"), ("s1", "s2"), ("question", "sentence"), ("question", "passage"), ("question", "context")),
    *(("query", "passage"), ("query", "document"), ("query", "text"), ("claim", "evidence")),
)
SINGLE_TEXTS = (*_TEXT_NAMES, "tweet", "utterance", "message", "post", "question", "query", "title", "headline")
PROMPTS = (
    "startphrase",
    "ctx",
    "prompt",
    "question",
    "premise",
    "context",
    "goal",
    "stem",
    "sentence",
    "sent1",
    "text",
)
ID_NAMES = ("id", "guid", "uid", "uuid", "idx", "index", "qid", "q_id", "example_id", "question_id")
KNOWN_NAMES = frozenset((*ID_NAMES, *LABEL_NAMES, *SINGLE_TEXTS, *PROMPTS, *(name for pair in PAIRS for name in pair)))
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


def choose_column(
    columns: Mapping[str, Sequence[object]], name: str, wanted: str | None, option: str = "--text-column"
) -> str:
    """Choose the column that holds the text: the one asked for, else by name, else the one with the longest texts.
    option: with which it is named, for messages."""
    if wanted is not None:
        return find_column(list(columns), name, wanted, option)
    listed = ", ".join(columns) or "none"
    lengths = {key: _mean_length(values) for key, values in columns.items()}
    by_name = {key.strip().lower(): key for key in reversed(list(columns)) if lengths[key]}
    if chosen := next((by_name[candidate] for candidate in _TEXT_NAMES if candidate in by_name), None):
        return chosen
    longest = max(lengths, key=lambda key: lengths[key], default=None)
    if longest is None or lengths[longest] < _SHORTEST_TEXT:
        raise BertworksError(
            f"no column looks like text; the columns are: {listed}",
            where=name,
            fix=f"name the one that holds the text with {option}",
        )
    return longest


def find_column(columns: Sequence[str], name: str, wanted: str, option: str) -> str:
    """The column that was asked for.

    Args:
        name: of the file, for messages.
        option: with which columns are named, for messages.

    Raises:
        UsageError: there is none of that name; it says which there are, and which one was perhaps meant.
    """
    if wanted in columns:
        return wanted
    close = difflib.get_close_matches(wanted.lower(), [key.lower() for key in columns], 1)
    meant = next((key for key in columns if [key.lower()] == close), None)
    raise UsageError(
        f"there is no column {wanted!r}; the columns are: {', '.join(columns) or 'none'}",
        where=name,
        fix=f"did you mean {option} {meant}?" if meant else f"name one of them with {option}",
    )


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
