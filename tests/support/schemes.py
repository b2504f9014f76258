"""The schemes in which entities are tagged, and figures of each type of them: what tests of tags
need."""

from collections.abc import Sequence
from itertools import chain
from typing import Literal

from bertworks.datasets.schema import Item
from bertworks.metrics.classification import Span, count_spans, figures_by_type
from bertworks.tasks.registry import task_of
from bertworks.tasks.scores import compute_metrics
from bertworks.tasks.settings import TaskConfig

Scheme = Literal["IOB1", "IOB2", "BIOES", "BILOU", "BMES", "BMEWO"]
# first, inside, last, the only word
LETTERS = {"BIOES": "BIES", "BILOU": "BILU", "BMES": "BMES", "BMEWO": "BMEW"}


def tag_spans(tags: Sequence[str], labels: Sequence[str] = ()) -> list[Span]:
    """The entities of one sentence. labels: all tags of the scheme; (): those of the sentence."""
    d = TaskConfig(task="tagging", labels=tuple(labels or sorted({*tags})))
    return task_of(d).named_spans(tags)


def tagging(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], labels: Sequence[str] = ()
) -> dict[str, float]:
    """The figures of tags. labels: those of the model; (): the tags that occur."""
    d = TaskConfig(
        task="tagging", labels=tuple(labels) or tuple(sorted({*chain(*gold, *predicted)}))
    )
    items = [
        Item(("word",) * len(tags), tuple(tags), f"sentence {n}") for n, tags in enumerate(gold, 1)
    ]
    return compute_metrics(d, items, [{"tags": list(tags)} for tags in predicted])


def convert_tags(tags: Sequence[str], scheme: Scheme) -> list[str]:
    """The tags of one sentence with the same entities, in another scheme.

    IOB1: I, but B where the entity before ends just there and has the same type. IOB2: every entity
    begins with B. BIOES: the last word has E, an entity of one word S. BILOU, BMES and BMEWO are
    the same with other letters.
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
            letters = [
                letter.translate(str.maketrans("BIES", LETTERS[scheme])) for letter in letters
            ]
        converted[start:end] = [letter + ending for letter in letters]
        before = entity
    return converted


def tagging_per_type(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]
) -> dict[str, dict[str, float]]:
    """For each type of entity, sorted: `precision`, `recall`, `f1`, `support`."""
    labels = sorted({*chain(*gold, *predicted)})
    rows = [
        (tag_spans(labels_of_row, labels), tag_spans(answer, labels))
        for labels_of_row, answer in zip(gold, predicted, strict=True)
    ]
    return figures_by_type(*count_spans(rows))
