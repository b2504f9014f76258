"""The figures of a masked LM have the same bits, however their batches are divided."""

from pathlib import Path

import pytest

import bertworks as bw
from bertworks.runs.run_folder import BITS
from tests.support.tiny import write_corpus


def test_figures_do_not_depend_on_portions(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = tmp_path / "a.jsonl"
    write_corpus(text, 40)
    results = []
    for size in (16, 1):
        monkeypatch.setattr("bertworks.evaluation.mlm_portions._BATCHES", size)
        results.append(bw.evaluate_mlm(model, [text], device="cpu", on_note=lambda _: None))
    assert results[0] is not None
    assert results[0] == results[1]
    assert results[0]["sequences"] > 1
    assert results[0]["masked_tokens"] > 10
    assert results[0][BITS] > 0
