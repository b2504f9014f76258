"""The schemes in which entities are tagged, and figures of each type of them: what tests of tags need."""

from collections.abc import Sequence
from typing import Literal

from bertworks.metrics.classification import Scores, Span, spans_per_type, tag_spans

Scheme = Literal["IOB1", "IOB2", "BIOES"]


def convert_tags(tags: Sequence[str], scheme: Scheme) -> list[str]:
    """The tags of one sentence with the same entities, in another scheme. Raises as `tag_spans`.

    IOB1: I, but B where the entity before ends just there and has the same type. IOB2: every entity begins with B.
    BIOES: the last word has E, an entity of one word S.
    """
    converted = ["O"] * len(tags)
    before: Span = (0, 0, "")
    for entity in tag_spans(tags):
        start, end, kind = entity
        ending = "" if tags[start] in "BIES" else f"-{kind}"  # tags without types stay without
        letters = ["I"] * (end - start)
        if scheme != "IOB1" or before[1:] == (start, kind):
            letters[0] = "B"
        if scheme == "BIOES":
            letters[-1] = "E" if len(letters) > 1 else "S"
        converted[start:end] = [letter + ending for letter in letters]
        before = entity
    return converted


def tagging_per_type(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict[str, Scores]:
    """For each type of entity, sorted: `precision`, `recall`, `f1`, `support`."""
    return spans_per_type(list(map(tag_spans, gold)), list(map(tag_spans, predicted)))
