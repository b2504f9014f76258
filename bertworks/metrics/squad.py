"""Compute the metrics of SQuAD 1.1 and 2.0 (Rajpurkar et al. 2016 and 2018).

They equal those of the official scripts to the last digit.

Figures are percentages. Answers are compared in lower case, without punctuation, articles and extra
spaces; the gold answer with the best score counts.
"""

import re
import string
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Literal, NamedTuple

from bertworks.errors import BertworksError, require

_UNANSWERED = 1.0  # `--na-prob-thresh` of evaluate-v2.0.py, its default
F1Unit = Literal["word", "character"]
SquadVersion = Literal["1.1", "2.0"]

_EAST_ASIAN = re.compile("[\u3040-\u30ff\u3400-\u9fff]")  # kana and Chinese characters
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = dict.fromkeys(map(ord, string.punctuation))


class SquadQuestion(NamedTuple):
    """A question and its gold answers; () if its text has no answer."""

    id: str
    answers: tuple[str, ...]


class SquadScore(NamedTuple):
    """The score of a prediction for one question."""

    exact: float  # 0 or 1
    f1: float  # 0 to 1


def evaluate_answers(
    questions: Sequence[SquadQuestion],
    predictions: Mapping[str, str],
    *,
    version: SquadVersion,
    no_answer_probabilities: Mapping[str, float] | None = None,
    unit: F1Unit = "word",
) -> tuple[dict[str, float], list[SquadScore]]:
    """Return the figures, and the score of each question.

    The figures: `exact` (the script of 1.1 calls it exact_match), `f1`, `total` and `missing`; for
    2.0 the same but `missing` for questions with and without an answer (`HasAns_...`, `NoAns_...`);
    with no-answer probabilities also `best_exact` and `best_f1`, the figures under the best
    threshold above which a question gets no answer, and that threshold (`best_exact_thresh`,
    `best_f1_thresh`). It is chosen on the same questions: the figures are upper bounds.

    Args:
        predictions: question id -> answer; "" is no answer.
        version: an answer that is empty after normalization has an F1 of 0 in 1.1, and is no answer
            in 2.0.
        no_answer_probabilities: question id -> confidence that it has no answer, on any scale; as
            in the official script a question above 1 gets no answer, except in the `best_` figures.
        unit: of F1. "character" for scripts without spaces: characters that are not white space
            instead of words.

    A question without a prediction is wrong and counted in `missing`, also for 2.0, where the
    official script leaves it out of the total and then fails.

    Raises:
        BertworksError: no questions, two of one id, or a prediction without a no-answer
            probability.
    """
    require(questions, "no questions: there is nothing to score", hint="name a file with questions")
    repeated = [name for name, times in Counter(q.id for q in questions).items() if times > 1]
    if repeated:
        raise BertworksError(
            f"two questions have the id {repeated[0]!r}: which one a prediction is for is unknown"
        )
    scores = {
        q.id: score_answer(q.answers, predictions.get(q.id), version=version, unit=unit)
        for q in questions
    }
    probabilities = no_answer_probabilities or {}
    final_scores = dict(scores)
    for question in questions:
        if probabilities.get(question.id, 0.0) > _UNANSWERED:
            is_right = float(not question.answers)
            final_scores[question.id] = SquadScore(is_right, is_right)
    figures = _means(final_scores.values())
    if version == "2.0":
        for part, has_answer in (("HasAns", True), ("NoAns", False)):
            part_scores = [final_scores[q.id] for q in questions if bool(q.answers) is has_answer]
            if part_scores:
                means = _means(part_scores)
                figures |= {f"{part}_{name}": value for name, value in means.items()}
    if no_answer_probabilities is not None:
        figures |= _best(questions, predictions, scores, no_answer_probabilities)
    figures["missing"] = sum(q.id not in predictions for q in questions)
    return figures, [final_scores[q.id] for q in questions]


def f1_unit_of(contexts: Iterable[str]) -> F1Unit:
    """Return the unit of F1: characters if most letters are Japanese or Chinese, else words."""
    letters = east_asian = 0
    for context in contexts:
        letters += sum(map(str.isalpha, context))
        east_asian += len(_EAST_ASIAN.findall(context))
    return "character" if 2 * east_asian > letters else "word"


def score_answer(
    answers: Sequence[str], prediction: str | None, *, version: SquadVersion, unit: F1Unit = "word"
) -> SquadScore:
    """Return the score of one answer: the best agreement with any of the gold answers."""
    if prediction is None:
        return SquadScore(0.0, 0.0)
    golds = [normalize(answer) for answer in answers]
    if version == "2.0":
        golds = [gold for gold in golds if gold] or [""]
    answer = normalize(prediction)

    def parts(text: str) -> Counter[str]:
        return Counter(text.split() if unit == "word" else text.replace(" ", ""))

    agreements = [
        _f1(parts(gold), parts(answer), both_empty=float(version == "2.0")) for gold in golds
    ]
    return SquadScore(float(answer in golds), max(agreements, default=0.0))


def normalize(answer: str) -> str:
    """Return an answer in lower case, without ASCII punctuation and English articles.

    There is one space between words.
    """
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_NO_PUNCTUATION)).split())


def _f1(gold: Counter[str], answer: Counter[str], *, both_empty: float) -> float:
    """Return the F1 of the parts of two answers.

    Args:
        both_empty: the value if neither has parts.
    """
    if not gold and not answer:
        return both_empty
    common = (gold & answer).total()
    if not common:
        return 0.0
    precision = common / answer.total()
    recall = common / gold.total()
    return (2 * precision * recall) / (precision + recall)


def _means(scores: Collection[SquadScore]) -> dict[str, float]:
    """Return the mean scores in percent, and their number."""
    exact = 0.0
    f1 = 0.0
    for score in scores:  # not sum(), which rounds differently since Python 3.12
        exact += score.exact
        f1 += score.f1
    return {
        "exact": 100.0 * exact / len(scores),
        "f1": 100.0 * f1 / len(scores),
        "total": len(scores),
    }


def _best(
    questions: Sequence[SquadQuestion],
    predictions: Mapping[str, str],
    scores: Mapping[str, SquadScore],
    probabilities: Mapping[str, float],
) -> dict[str, float]:
    """Return the best figures under any threshold for answering a question.

    Questions get their answers in the order of confidence.
    """
    unknown = [q.id for q in questions if q.id in predictions and q.id not in probabilities]
    if unknown:
        raise BertworksError(
            f"the question {unknown[0]!r} is answered but has no no-answer probability"
        )
    answerable = {q.id: bool(q.answers) for q in questions}
    order = [
        name for name in sorted(probabilities, key=probabilities.__getitem__) if name in answerable
    ]
    # The score without any answer: questions that have none are right.
    num_unanswerable = float(sum(not has_answer for has_answer in answerable.values()))
    thresholds = [0.0, *map(probabilities.__getitem__, order)]
    figures: dict[str, float] = {}
    for kind, name in enumerate(SquadScore._fields):
        gains = (
            scores[question_id][kind]
            if answerable[question_id]
            else -bool(predictions.get(question_id))
            for question_id in order
        )
        totals = list(accumulate(gains, initial=num_unanswerable))
        best = max(totals)
        figures[f"best_{name}"] = 100.0 * best / len(questions)
        figures[f"best_{name}_thresh"] = thresholds[totals.index(best)]
    return figures
