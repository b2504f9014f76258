"""The whole way once, in a few minutes, on text that every Python brings along; what was learned is shown at the end.

It trains by `pretrain` and answers by `fill`, as anybody would; its own are only the corpus and the questions.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path

from bertworks.use.demo_corpus import write_demo_corpus
from bertworks.use.events import Event
from bertworks.use.fill import Filling, fill
from bertworks.use.pretrain import pretrain

_QUESTIONS = (
    "The function returns the [MASK] of the list.",
    "If the file does not [MASK], an exception is raised.",
    "This method returns a new [MASK].",
    "The default [MASK] is used if no argument is given.",
)
_ANSWERS = 3  # per blank
_HELD_OUT_QUESTIONS = 4
_WORD = re.compile(r"\b[a-z]{5,9}\b")


def demo(folder: str | Path, *, minutes: float = 4.0) -> Iterator[Event]:
    """Write the corpus, train for so many minutes, and show figures and filled blanks. `folder` gets `model/` as well.

    The same call again goes on where it stopped; a finished demo only shows its results.
    """
    folder = Path(folder)
    training, held_out = folder / "training.jsonl", folder / "held-out.jsonl"
    if not (training.exists() and held_out.exists()):
        yield Event("stage", "collecting the English that comes with Python and the installed packages")
        corpus = write_demo_corpus(folder)
        text = (
            f"{corpus.training_words:,} words in {corpus.training_documents:,} documents; set aside: "
            f"{corpus.held_out_words:,} words in {corpus.held_out_documents:,} documents"
        )
        yield Event("note", text, {"training_words": corpus.training_words, "held_out_words": corpus.held_out_words})
    model = folder / "model"
    done: Event | None = None
    for event in pretrain([training], model, budget=f"{round(minutes * 60)}s"):
        if event.kind == "done":
            done = event  # the last of them is the run's
        else:
            yield event
    if done is not None:
        yield Event("done", f"{_results(done, model)}\n\n{_blanks(model, held_out)}\n\n{_ways_on(folder)}", done.fields)


def _results(done: Event, model: Path) -> str:
    """Figures before and after beside what needs no learning, on text and masks that are the same for all three."""
    with (model / "metrics.jsonl").open(encoding="utf-8") as file:
        before = json.loads(file.readline())["evaluation"]
    after, baseline = done.fields["evaluation"], done.fields["baseline"]
    rows = [
        ("held-out text", "masked words", "next sentence"),
        (f"always {baseline['token']!r}", f"{baseline['masked_lm_accuracy']:.1%}", "50.0%"),
        ("before training", *_accuracies(before)),
        (f"after {done.fields['step']:,} steps", *_accuracies(after)),
    ]
    width = max(len(row[0]) for row in rows)
    return "\n".join(f"{name:<{width}}  {words:>12}  {sentences:>13}" for name, words, sentences in rows)


def _accuracies(figures: dict[str, float]) -> tuple[str, str]:
    return f"{figures['masked_lm_accuracy']:.1%}", f"{figures['next_sentence_accuracy']:.1%}"


def _blanks(model: Path, held_out: Path) -> str:
    """Filled blanks: of sentences made up for the purpose, then of text set aside, with the word that stood there."""
    asked = [(question, "") for question in _QUESTIONS] + _held_out_questions(held_out)
    lines = ["filled blanks:"]
    for (text, truth), answers in zip(asked, fill(model, [text for text, _ in asked], k=_ANSWERS), strict=True):
        was = f"  (it was: {truth})" if truth else ""
        lines += [f"  {text}", f"      {_listed(answers[0])}{was}"]
    return "\n".join(lines)


def _listed(answers: list[Filling]) -> str:
    return ", ".join(f"{answer['token_str']} {answer['score']:.0%}" for answer in answers)


def _held_out_questions(held_out: Path) -> list[tuple[str, str]]:
    """The first sentence of fitting length of documents that lie far apart, without its middle long word."""
    with held_out.open(encoding="utf-8") as file:
        texts = [json.loads(line)["text"] for line in file]
    questions = []
    for text in texts[:: max(1, len(texts) // _HELD_OUT_QUESTIONS)]:
        sentences = [s for s in re.split(r"(?<=[.])\s", text) if 40 < len(s) < 90 and len(_WORD.findall(s)) >= 3]
        if sentences:
            words = list(_WORD.finditer(sentences[0]))
            word = words[len(words) // 2]
            questions.append((f"{sentences[0][: word.start()]}[MASK]{sentences[0][word.end() :]}", word[0]))
    return questions[:_HELD_OUT_QUESTIONS]


def _ways_on(folder: Path) -> str:
    lines = [
        f"report: {folder / 'model' / 'report.html'}",
        f'try:    bertworks fill {folder / "model"} "The result is a [MASK]."',
        f"        bertworks evaluate mlm {folder / 'model'} {folder / 'held-out.jsonl'}",
        "        bertworks pretrain YOUR-TEXT -o YOUR-MODEL --budget 1h",
    ]
    return "\n".join(lines)
