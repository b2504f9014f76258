"""The demo: what it shows of a run, and that it does not collect its corpus twice."""

import json
from pathlib import Path

import pytest

from bertworks.use import demo as room
from bertworks.use.demo import demo
from bertworks.use.demo_corpus import DemoCorpus
from bertworks.use.events import Event

SENTENCE = "The value of this option decides on colours, and on nothing else."
BEFORE = {"masked_lm_accuracy": 0.001, "next_sentence_accuracy": 0.5}
AFTER = {"masked_lm_accuracy": 0.321, "next_sentence_accuracy": 0.75}


@pytest.fixture
def collected(monkeypatch) -> list[Path]:
    """Every other room replaced by one that answers at once; the folders for which a corpus was collected."""
    calls: list[Path] = []

    def write_demo_corpus(folder: Path) -> DemoCorpus:
        calls.append(folder)
        folder.mkdir(parents=True)
        lines = [json.dumps({"id": f"{n}", "text": f"Too short.\n{SENTENCE}"}) + "\n" for n in range(9)]
        (folder / "training.jsonl").write_text("".join(lines))
        (folder / "held-out.jsonl").write_text("".join(lines))
        return DemoCorpus(folder / "training.jsonl", folder / "held-out.jsonl", 9, 1234, 9, 56)

    def pretrain(inputs, output, *, budget):
        assert [path.name for path in inputs] == ["training.jsonl"]
        assert budget == "90s"
        output.mkdir(exist_ok=True)
        (output / "metrics.jsonl").write_text(json.dumps({"step": 0, "evaluation": BEFORE}) + '\n{"step": 1}\n')
        yield Event("done", "the shards are done", {})
        yield Event("note", "training")
        baseline = {"token": "the", "masked_lm_accuracy": 0.06}
        yield Event("done", "trained", {"step": 1500, "evaluation": AFTER, "baseline": baseline})

    def fill(model, texts, k):
        answer = {"score": 0.5, "token": 1, "token_str": "name", "sequence": ""}
        return ([[answer] * k] for text in texts if "[MASK]" in text)

    monkeypatch.setattr(room, "write_demo_corpus", write_demo_corpus)
    monkeypatch.setattr(room, "pretrain", pretrain)
    monkeypatch.setattr(room, "fill", fill)
    return calls


def test_it_ends_with_figures_blanks_and_the_report(collected, tmp_path):
    events = list(demo(tmp_path / "demo", minutes=1.5))
    assert [event.kind for event in events] == ["stage", "note", "note", "done"]
    assert "1,234 words" in events[1].text
    lines = events[-1].text.splitlines()
    assert lines[:4] == [
        "held-out text      masked words  next sentence",
        "always 'the'               6.0%          50.0%",
        "before training            0.1%          50.0%",
        "after 1,500 steps         32.1%          75.0%",
    ]
    blanks = [line for line in lines if "[MASK]" in line and not line.startswith("try")]
    assert len(blanks) == 4 + 4
    assert blanks[-1] == "  The value of this option [MASK] on colours, and on nothing else."
    assert lines.count("      name 50%, name 50%, name 50%  (it was: decides)") == 4
    assert f"report: {tmp_path / 'demo' / 'model' / 'report.html'}" in lines


def test_the_corpus_is_collected_once(collected, tmp_path):
    for _ in range(2):
        assert list(demo(tmp_path / "demo", minutes=1.5))[-1].kind == "done"
    assert collected == [tmp_path / "demo"]
