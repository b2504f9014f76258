"""By which names the columns of labelled data are known, and whether a table's first row is its header. Not here: what
the columns mean (`guessing`)."""

import itertools

from bertworks.errors import BertworksError
from bertworks.text.tables import TEXT_NAMES, is_header, split_rows

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
SINGLE_TEXTS = (*TEXT_NAMES, "tweet", "utterance", "message", "post", "question", "query", "title", "headline")
PROMPTS = tuple("startphrase ctx prompt question premise context goal stem sentence sent1 text".split())
ID_NAMES = ("id", "guid", "uid", "uuid", "idx", "index", "qid", "q_id", "example_id", "question_id")
KNOWN_NAMES = frozenset((*ID_NAMES, *LABEL_NAMES, *SINGLE_TEXTS, *PROMPTS, *(name for pair in PAIRS for name in pair)))
JUDGED_ROWS = 100  # by which header and columns are told


def names_columns(first: list[str], others: list[list[str]]) -> bool:
    """Whether the first row of a table is a header: known names; or like one, with no cell that is a value below it."""
    known = sum(cell.strip().lower() in KNOWN_NAMES for cell in first)
    if known >= 2 or known == len(first):
        return True
    index_first = [first[0] if first[0].strip() else "index", *first[1:]]  # pandas leaves the name of its index empty
    recurs = any(cell == row[index] for row in others for index, cell in enumerate(first) if index < len(row))
    return not recurs and is_header(list(dict.fromkeys(index_first)))


def has_header(sample: list[str], delimiter: str) -> bool:
    """Whether a file that may as well be plain text is a table: even rows below a header of bare names."""
    try:
        rows = split_rows(enumerate(sample, 1), delimiter, quoted=True, name="", strict=True)
        first, *others = [row for _, row in itertools.islice(rows, JUDGED_ROWS) if row]
    except BertworksError:
        return False
    bare = all(cell == cell.strip() for cell in first) and (len(first) > 1 or first[0] in TEXT_NAMES)
    return bare and len(others) > 0 and {len(first)} == set(map(len, others)) and names_columns(first, others)
