"""The official SQuAD figures of a file of answers. Not here: finding answers with a model (`predict`), and how they are
scored (`learn.squad_scores`)."""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from bertworks.errors import BertworksError
from bertworks.learn.squad_scores import Question, Unit, Version, evaluate, missing, unit_of
from bertworks.rows.reader import RowReader
from bertworks.text.streams import Repairs, nothing_there, open_lines

_JUDGED_CHARACTERS = 1 << 20  # of contexts, by which the unit is told


def evaluate_squad(
    data: str | Path,
    predictions: str | Path | Mapping[str, str],
    *,
    na_probs: str | Path | Mapping[str, float] | None = None,
    unit: Literal["auto", "word", "character"] = "auto",
) -> dict[str, Any]:
    """The figures of the official script (`learn.squad_scores.evaluate`), in per cent, and how they were counted:
    `version` (2.0 where a question has no answer, or `na_probs` are given), `unit`, `missing_ids` (questions that
    nobody answered: they count as wrong), `unknown_ids` (answers to no question: they count for nothing).

    Args:
        data: a file in the format of SQuAD, with gold answers.
        predictions: question id -> answer, "" for none; or a JSON file of that.
        na_probs: question id -> how surely it has no answer, on any scale; or a JSON file of that.
        unit: of F1; "auto": characters where most letters of the contexts are Japanese or Chinese, else words.

    Raises:
        BertworksError: the data is not SQuAD or has no gold answers; a file is not such JSON; not a single answer
            belongs to a question.
    """
    reader = RowReader(data)
    if reader.kind != "squad":
        raise BertworksError(
            "this is not in the format of SQuAD",
            where=reader.name,
            fix="name a file like dev-v1.1.json or dev-v2.0.json",
        )
    questions, contexts = _questions(reader)
    answers = _answers(predictions)
    identities = {question.id for question in questions}
    if not identities & answers.keys():
        raise BertworksError(
            f"none of the {len(answers):,} answers belongs to any of the {len(questions):,} questions of {reader.name}",
            where=_place(predictions),
            fix="name the predictions for this very file: an object of question ids and answers",
        )
    probabilities = None if na_probs is None else _probabilities(na_probs)
    answerable = all(question.answers for question in questions)
    version: Version = "1.1" if answerable and probabilities is None else "2.0"
    counted_in: Unit = unit_of(contexts) if unit == "auto" else unit
    figures = evaluate(questions, answers, version=version, no_answer_probabilities=probabilities, unit=counted_in)
    return figures | {
        "version": version,
        "unit": counted_in,
        "missing_ids": missing(questions, answers),
        "unknown_ids": [identity for identity in answers if identity not in identities],
    }


def _questions(reader: RowReader) -> tuple[list[Question], Iterable[str]]:
    """The questions, and enough of the contexts to see how they are written."""
    questions, contexts, size = [], dict[str, None](), 0
    for values, where, _ in reader:
        if values["answers"] is None:
            raise BertworksError(
                f"the question {values['id']!r} has no gold answers, not even an empty list of them",
                where=where,
                fix="name a dev file: test files come without answers",
            )
        questions.append(Question(values["id"], tuple(answer["text"] for answer in values["answers"])))
        if size < _JUDGED_CHARACTERS and values["context"] not in contexts:
            contexts[values["context"]] = None
            size += len(values["context"])
    return questions, contexts


def _answers(given: str | Path | Mapping[str, str]) -> Mapping[str, str]:
    answers = given if isinstance(given, Mapping) else _read_object(given)
    for identity, answer in answers.items():
        if not isinstance(answer, str):
            raise BertworksError(
                f"the answer to {identity!r} is {answer!r:.60}, not a string",
                where=_place(given),
                fix='write one object, {"question id": "answer", ...}, with "" for no answer',
            )
    return answers


def _probabilities(given: str | Path | Mapping[str, float]) -> Mapping[str, float]:
    numbers = given if isinstance(given, Mapping) else _read_object(given)
    for identity, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
            raise BertworksError(
                f"the no-answer probability of {identity!r} is {number!r:.60}, not a number",
                where=_place(given),
                fix='write one object, {"question id": 0.25, ...}',
            )
    return numbers


def _read_object(path: str | Path) -> dict[str, Any]:
    if not Path(path).exists():
        raise nothing_there(Path(path))
    repairs = Repairs()
    with open_lines(Path(path), str(path), repairs) as reader:
        text = "\n".join(line for _, line in reader.lines())
    if repairs.bad_bytes.count:
        raise BertworksError(
            "bytes that are not UTF-8", where=repairs.bad_bytes.places[0], fix="save the file as UTF-8"
        )
    try:
        value = json.loads(text, object_pairs_hook=_without_repetition)
    except json.JSONDecodeError as error:
        raise BertworksError(
            f"this is not JSON: {error.msg}", where=f"{path}:{error.lineno}", fix="repair the file"
        ) from error
    except (ValueError, RecursionError) as error:
        raise BertworksError(str(error), where=str(path), fix="repair the file") from error
    if not isinstance(value, dict):
        raise BertworksError(
            f"expected one JSON object, found {value!r:.60}",
            where=str(path),
            fix='write {"question id": "answer", ...}',
        )
    return value


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for name, content in pairs:
        if name in value:
            raise ValueError(f"{name!r} stands there twice")
        value[name] = content
    return value


def _place(given: object) -> str | None:
    return str(given) if isinstance(given, str | Path) else None
