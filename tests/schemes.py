"""The schemes in which entities are tagged, and figures of each type of them: what tests of tags need."""

from collections.abc import Sequence
from typing import Literal

from bertworks.metrics.classification import Scores, Span, spans_per_type, tag_spans

Scheme = Literal["IOB1", "IOB2", "BIOES", "BILOU", "BMES", "BMEWO"]
LETTERS = {"BIOES": "BIES", "BILOU": "BILU", "BMES": "BMES", "BMEWO": "BMEW"}  # first, inside, last, the only word


def convert_tags(tags: Sequence[str], scheme: Scheme) -> list[str]:
    """The tags of one sentence with the same entities, in another scheme. Raises as `tag_spans`.

    IOB1: I, but B where the entity before ends just there and has the same type. IOB2: every entity begins with B.
    BIOES: the last word has E, an entity of one word S. BILOU, BMES and BMEWO are the same with other letters.
    """
    converted = ["O"] * len(tags)
    before: Span = (0, 0, "")
    for entity in tag_spans(tags):
        start, end, kind = entity
        ending = "" if len(tags[start]) == 1 else f"-{kind}"  # tags without types stay without
        letters = ["I"] * (end - start)
        if scheme != "IOB1" or before[1:] == (start, kind):
            letters[0] = "B"
        if scheme in LETTERS:
            letters[-1] = "E" if len(letters) > 1 else "S"
            letters = [letter.translate(str.maketrans("BIES", LETTERS[scheme])) for letter in letters]
        converted[start:end] = [letter + ending for letter in letters]
        before = entity
    return converted


def tagging_per_type(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict[str, Scores]:
    """For each type of entity, sorted: `precision`, `recall`, `f1`, `support`."""
    return spans_per_type(list(map(tag_spans, gold)), list(map(tag_spans, predicted)))
