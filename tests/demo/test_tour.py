"""The demo: what it shows of its two runs, and that it does not collect its data twice."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from bertworks.demo import tour
from bertworks.demo.tour import demo
from bertworks.events import Event

SENTENCE = "The value of this option decides on colours, and on nothing else."
BEFORE = {"masked_lm_accuracy": 0.001, "next_sentence_accuracy": 0.5}
AFTER = {"masked_lm_accuracy": 0.321, "next_sentence_accuracy": 0.75}


@pytest.fixture
def collected(monkeypatch) -> list[Path]:
    """All other modules replaced by fast ones; the folders for which a corpus was collected."""
    calls: list[Path] = []

    def write_demo_corpus(folder: Path) -> list[tuple[int, int]]:
        calls.append(folder)
        folder.mkdir(parents=True)
        lines = [
            json.dumps({"id": f"{n}", "text": f"Too short.\n{SENTENCE}"}) + "\n" for n in range(9)
        ]
        (folder / "training.jsonl").write_text("".join(lines))
        (folder / "held-out.jsonl").write_text("".join(lines))
        return [(9, 1234), (9, 56)]

    def pretrain(inputs, output, *, budget):
        assert [path.name for path in inputs] == ["training.jsonl"]
        assert budget == "90s"
        output.mkdir(exist_ok=True)
        (output / "metrics.jsonl").write_text(
            json.dumps({"step": 0, "evaluation": BEFORE}) + '\n{"step": 1}\n'
        )
        yield Event("done", "the shards are done", {})
        yield Event("note", "training")
        baseline = {"token": "the", "masked_lm_accuracy": 0.06}
        yield Event("done", "trained", {"step": 1500, "evaluation": AFTER, "baseline": baseline})

    def fill(model, texts, k):
        answer = {"score": 0.5, "token": 1, "token_str": "name", "sequence": ""}
        return ([[answer] * k] for text in texts if "[MASK]" in text)

    def write_demo_origins(corpus, folder):
        calls.append(folder)
        folder.mkdir()
        for part, count in (("train", 40), ("dev", 10)):
            with (folder / f"{part}.csv").open("w", newline="") as file:
                rows = csv.writer(file)
                rows.writerow(["text", "library"])
                rows.writerows(
                    [("numbers and arrays", "numpy"), ("graphs and paths", "networkx")] * count
                )
                rows.writerows([("arrays of graphs", "numpy")] * (count // 2))

    def finetune_events(output, request):
        assert request.data == str(output.parent / "origins")
        yield Event("note", f"fine-tuning {request.model} with {request.overrides[0]}")
        scores = {"fine-tuned": 0.876, "most frequent label": 0.6, "bag of words": 1.0}
        methods = [{"method": name, "score": score} for name, score in scores.items()]
        yield Event("done", "fine-tuned", {"score": 0.876, "baselines": {"methods": methods}})

    monkeypatch.setattr(tour, "write_demo_corpus", write_demo_corpus)
    monkeypatch.setattr(tour, "write_demo_origins", write_demo_origins)
    monkeypatch.setattr(tour, "finetune_events", finetune_events)
    monkeypatch.setattr(tour, "packaged_minilm", lambda: Path("there"))
    monkeypatch.setattr(tour, "pretrain", pretrain)
    monkeypatch.setattr(tour, "fill", fill)
    return calls


def test_it_ends_with_figures_blanks_and_the_reports(collected, tmp_path):
    folder = tmp_path / "demo"
    events = list(demo(folder, minutes=1.5))
    assert [event.kind for event in events] == ["stage", "note", "note", "stage", "note", "done"]
    assert events[1].text == "1,234 words in 9 documents; held out: 56 words in 9 documents"
    assert events[-2].text == f"fine-tuning minilm with {tour.MINILM[0]}"
    lines = events[-1].text.splitlines()
    assert lines[:4] == [
        "held-out text      masked tokens  next sentence",
        "always 'the'                6.0%          50.0%",
        "before training             0.1%          50.0%",
        "after 1,500 steps          32.1%          75.0%",
    ]
    blanks = [line for line in lines if "[MASK]" in line and not line.startswith("try")]
    assert len(blanks) == 6
    assert blanks[-1] == "  The value of this option [MASK] on colours, and on nothing else."
    assert lines.count("      name 50%, name 50%, name 50%  (it was: decides)") == 6
    at = lines.index("from which library is a paragraph? right on held-out modules:")
    assert lines[at + 1 : at + 4] == [
        "most frequent label   60.0%",
        "bag of words         100.0%",
        "minilm, fine-tuned    87.6%",
    ]
    assert f"reports: {folder / 'model' / 'report.html'}" in lines
    assert f"         {folder / 'classifier' / 'report.html'}" in lines


def test_without_minilm_its_own_model_is_fine_tuned(collected, tmp_path, monkeypatch):
    monkeypatch.setattr(tour, "packaged_minilm", lambda: None)
    events = list(demo(tmp_path / "demo", minutes=1.5))
    own = str(tmp_path / "demo" / "model")
    assert events[-2].text == f"fine-tuning {own} with {tour.MODEL_SETTINGS[0]}"
    assert f"{own}, fine-tuned" in events[-1].text


def test_data_is_collected_once(collected, tmp_path):
    ends: list[Any] = [list(demo(tmp_path / "demo", minutes=1.5))[-1] for _ in range(2)]
    assert ends[0] == ends[1]
    assert collected == [tmp_path / "demo", tmp_path / "demo" / "origins"]
