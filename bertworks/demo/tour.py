"""The demo: pre-training, fine-tuning and their figures next to baselines, in a few minutes.

It uses `pretrain`, `fill` and `finetune` as any user would.
"""

import json
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from bertworks.checkpoints.resolve import packaged_minilm
from bertworks.demo.corpus import read_demo_origins, write_demo_corpus, write_demo_origins
from bertworks.events import Event, forward_events
from bertworks.inference.masked_lm import Filling, fill
from bertworks.runs.finetune import finetune_events, make_finetune_request
from bertworks.runs.pretrain import pretrain
from bertworks.training.objectives import OBJECTIVES

# Of the fine-tuning, for some 90 seconds on two cores: a large network, and the small one that was just pre-trained.
MINILM = ("epochs=3", "optimizer.learning_rate=1e-4")
OWN = ("epochs=6", "optimizer.learning_rate=1e-3")
_QUESTIONS = (
    "The function returns the [MASK] of the list.",
    "If the file does not [MASK], an exception is raised.",
    "This method returns a new [MASK].",
    "The default [MASK] is used if no argument is given.",
)
_ANSWERS = 3  # per blank
_HELD_OUT_QUESTIONS = 4
_WORD = re.compile(r"\b[a-z]{5,9}\b")


def demo(folder: str | Path, *, minutes: float = 3.5) -> Iterator[Event]:
    """Write the corpus, pre-train for so many minutes, fine-tune for some one and a half, and show what came of it.

    `folder` gets the pre-trained `model/`, the labelled data `origins/` and the fine-tuned `classifier/`. The same call
    again goes on where it stopped; a finished demo only shows its results.
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
    model, origins, classifier = folder / "model", folder / "origins", folder / "classifier"
    learned = yield from forward_events(pretrain([training], model, budget=f"{round(minutes * 60)}s"))
    if not (origins / "dev.csv").exists():
        write_demo_origins((training, held_out), origins)
    begin, settings = ("minilm", MINILM) if packaged_minilm() else (str(model), OWN)
    yield Event("stage", f"fine-tuning {begin}: from which library is a paragraph?")
    request = make_finetune_request(origins, model=begin, overrides=settings)
    taught = yield from forward_events(finetune_events(classifier, request))
    figures = baselines(origins) | {f"{begin}, fine-tuned": taught.fields["score"]}
    text = f"{_results(learned, model)}\n\n{_blanks(model, held_out)}\n\n{_scores(figures)}\n\n{_ways_on(folder)}"
    yield Event("done", text, {"pretrained": learned.fields, "finetuned": taught.fields, "accuracy": figures})


def _results(done: Event, model: Path) -> str:
    """Figures before and after beside what needs no learning, on text and masks that are the same for all three."""
    with (model / "metrics.jsonl").open(encoding="utf-8") as file:
        before = json.loads(file.readline())["evaluation"]
    after, baseline = done.fields["evaluation"], done.fields["baseline"]
    rows = [
        ("held-out text", *(objective.title for objective in OBJECTIVES.values())),
        (f"always {baseline['token']!r}", f"{baseline['masked_lm_accuracy']:.1%}", "50.0%"),
        ("before training", *_accuracies(before)),
        (f"after {done.fields['step']:,} steps", *_accuracies(after)),
    ]
    width = max(len(row[0]) for row in rows)
    return "\n".join(f"{name:<{width}}  {words:>13}  {sentences:>13}" for name, words, sentences in rows)


def _accuracies(figures: dict[str, float]) -> list[str]:
    return [f"{figures[f'{kind}_accuracy']:.1%}" for kind in OBJECTIVES]


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


def baselines(origins: Path) -> dict[str, float]:
    """Share of dev that needs no network to be right: the most frequent library, and a bag of words."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    (texts, libraries), (asked, right) = read_demo_origins(origins)
    most = Counter(libraries).most_common(1)[0][0]
    bag, line = TfidfVectorizer(), LogisticRegression(max_iter=1000)
    line.fit(bag.fit_transform(texts), libraries)
    given = line.predict(bag.transform(asked))
    return {
        f"always {most!r}": right.count(most) / len(right),
        "bag of words (scikit-learn)": sum(a == b for a, b in zip(given, right, strict=True)) / len(right),
    }


def _scores(figures: dict[str, float]) -> str:
    """The fine-tuned model's figure below those of the baselines."""
    width = max(map(len, figures))
    lines = [f"{name:<{width}}  {share:6.1%}" for name, share in figures.items()]
    return "\n".join(["from which library is a paragraph? right on modules that were set aside:", *lines])


def _ways_on(folder: Path) -> str:
    activate = Path(sys.executable).with_name("activate")
    is_command = shutil.which("bertworks") or not activate.exists()
    lines = [
        f"reports: {folder / 'model' / 'report.html'}",
        f"         {folder / 'classifier' / 'report.html'}",
        *(
            []
            if is_command
            else [f"first:   . {os.path.relpath(activate)}    (makes bertworks a command in this shell)"]
        ),
        f'try:     bertworks fill {folder / "model"} "The result is a [MASK]."',
        f"         bertworks predict {folder / 'classifier'} {folder / 'origins' / 'dev.csv'} --top-k 3",
        "         bertworks pretrain YOUR-TEXT -o YOUR-MODEL --budget 1h",
        "         bertworks finetune YOUR-TABLE.csv -o YOUR-CLASSIFIER",
    ]
    return "\n".join(lines)
