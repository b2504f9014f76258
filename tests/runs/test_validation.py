"""Validation of methods: models of parts of the rows predict the others; the best method."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertworks.runs.data_splits import EVALUATED
from bertworks.runs.finetune import make_finetune_request
from bertworks.runs.finetune_job import FinetuneJob
from bertworks.runs.preparation import prepare_finetuning
from bertworks.runs.validation import choose_method
from tests.runs.test_finetune_job import FAST
from tests.support.fine import (
    write_reviews,
)


def test_a_reported_score_did_not_choose_its_method(model: Path, tmp_path: Path) -> None:
    """The rows of a part have the predictions of the method that is best on the other parts."""
    data = write_reviews(tmp_path / "reviews.csv")
    job = FinetuneJob(
        prepare_finetuning(
            make_finetune_request(data, model=model, overrides=FAST), torch.device("cpu")
        )
    )
    gold = [
        job.description.labels.index(job.train[n].item.label)
        for part in job.data.parts[:EVALUATED]
        for n in part
    ]
    first = len(job.data.parts[0])

    def logits(right: Callable[[int], bool]) -> list[list[np.ndarray]]:
        rows = [
            np.eye(2, dtype=np.float32)[[label if right(n) else 1 - label]]
            for n, label in enumerate(gold)
        ]
        return [rows[:first], rows[first:]]

    # each is right on one part
    made = {"full": logits(lambda n: n < first), "frozen": logits(lambda n: n >= first)}
    with pytest.MonkeyPatch.context() as patch:

        def validate(one: FinetuneJob, folder: Path) -> Any:
            yield from ()
            return made[one.method]

        patch.setattr("bertworks.runs.validation._validate", validate)
        stream = choose_method(job, tmp_path)
        try:
            while True:
                next(stream)
        except StopIteration as end:
            chosen = end.value
    assert [int(one.argmax()) for one in chosen.validated[1]] == [1 - label for label in gold]


@pytest.mark.parametrize(("gain", "method"), [(0.1, "full"), (0.6, "frozen")])
def test_another_method_must_be_clearly_better(
    gain: float, method: str, model: Path, tmp_path: Path
) -> None:
    """Few rows must not choose by chance; the note gives the scores and the reason."""
    job = FinetuneJob(
        prepare_finetuning(
            make_finetune_request(write_reviews(tmp_path / "reviews.csv"), model=model),
            torch.device("cpu"),
        )
    )
    gold = [
        job.description.labels.index(one.item.label)
        for part in job.data.parts[:EVALUATED]
        for one in (job.train[n] for n in part)
    ]
    right = {"full": 0.4, "frozen": 0.4 + gain}

    def validate(one: FinetuneJob, folder: Path) -> Any:
        yield from ()
        chance = np.random.default_rng(len(one.method)).random(len(gold))
        rows = [
            np.eye(2, dtype=np.float32)[[label if x < right[one.method] else 1 - label]]
            for label, x in zip(gold, chance)
        ]
        first = len(job.data.parts[0])
        return [rows[:first], rows[first:]]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bertworks.runs.validation._validate", validate)
        (note,) = [
            event for event in choose_method(job, tmp_path) if event.text.startswith("method: ")
        ]
    assert note.fields["method"] == method
    assert note.fields["methods"]["frozen"] > note.fields["methods"]["full"]
    assert ("must be clearly better than full" in note.text) == (method == "full")
