"""The demo: pre-training, fine-tuning and their figures next to baselines, in a few minutes.

It uses `pretrain`, `fill` and `finetune` as any user would.
"""

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from bertworks.checkpoints.resolve import packaged_minilm
from bertworks.datasets.reader import RowReader
from bertworks.demo.corpus import write_demo_corpus, write_demo_origins
from bertworks.errors import quoted
from bertworks.events import Event, forward_events
from bertworks.inference.masked_lm import fill
from bertworks.runs.finetune import finetune_events, make_finetune_request
from bertworks.runs.pretrain import pretrain
from bertworks.training.objectives import BERT, OBJECTIVES

# Settings of the fine-tuning, for about 90 seconds on two cores: for minilm, and for the small
# network just pre-trained.
MINILM = ("epochs=3", "optimizer.learning_rate=1e-4")
MODEL_SETTINGS = ("epochs=6", "optimizer.learning_rate=1e-3")
_PREDICTIONS = 3  # per blank
_BLANKS = 6
_SENTENCE = re.compile(
    r"(?:^|(?<=[.] ))([A-Z][^.]{15,40} )([a-z]{5,9})( [^.]{15,40}[.])(?=\s|$)", re.MULTILINE
)


def demo(folder: str | Path, *, minutes: float = 3.5) -> Iterator[Event]:
    """Write the corpus, pre-train for `minutes`, fine-tune, and show the figures.

    The fine-tuning takes about one and a half minutes.

    `folder` gets the pre-trained `model/`, the labelled data `origins/` and the fine-tuned
    `classifier/`. The same call resumes an interrupted demo; after a finished one it only shows the
    results.
    """
    folder = Path(folder)
    training = folder / "training.jsonl"
    held_out = folder / "held-out.jsonl"
    if not (training.exists() and held_out.exists()):
        yield Event("stage", "collecting the English text of Python and of the installed packages")
        (count, words), (held_count, held_words) = write_demo_corpus(folder)
        yield Event(
            "note",
            f"{words:,} words in {count:,} documents; held out: {held_words:,} words in "
            f"{held_count:,} documents",
            {"training_words": words, "held_out_words": held_words},
        )
    model = folder / "model"
    origins = folder / "origins"
    classifier = folder / "classifier"
    pretrained = yield from forward_events(
        pretrain([training], model, budget=f"{round(minutes * 60)}s")
    )
    if not (origins / "dev.csv").exists():
        write_demo_origins((training, held_out), origins)
    start, settings = ("minilm", MINILM) if packaged_minilm() else (str(model), MODEL_SETTINGS)
    yield Event("stage", f"fine-tuning {start}: from which library is a paragraph?")
    request = make_finetune_request(origins, model=start, overrides=settings, method="full")
    finetuned = yield from forward_events(finetune_events(classifier, request))
    model_row, *baseline_rows = finetuned.fields["baselines"]["methods"]
    figures = {row["method"]: row["score"] for row in baseline_rows}
    figures |= {f"{start}, fine-tuned": model_row["score"]}
    width = max(map(len, figures))
    accuracies = [f"{name:<{width}}  {accuracy:6.1%}" for name, accuracy in figures.items()]
    text = "\n".join(
        [
            _results(pretrained, model),
            "",
            *_filled_blanks(model, held_out),
            "",
            "from which library is a paragraph? right on held-out modules:",
            *accuracies,
            "",
            *_next_steps(folder),
        ]
    )
    yield Event(
        "done",
        text,
        {"pretrained": pretrained.fields, "finetuned": finetuned.fields, "accuracy": figures},
    )


def _results(done: Event, model: Path) -> str:
    """Return figures before and after the training next to those of a constant prediction.

    All are of the same text and masks.
    """
    with (model / "metrics.jsonl").open(encoding="utf-8") as file:
        before = json.loads(file.readline())["evaluation"]
    after = done.fields["evaluation"]
    baseline = done.fields["baseline"]
    always = {"masked_lm_accuracy": baseline["masked_lm_accuracy"], "next_sentence_accuracy": 0.5}
    last = f"after {done.fields['step']:,} steps"
    rows = {f"always {baseline['token']!r}": always, "before training": before, last: after}
    columns = [("held-out text", *(OBJECTIVES[kind].title for kind in BERT))]
    columns += [
        (name, *(f"{figures[f'{kind}_accuracy']:.1%}" for kind in BERT))
        for name, figures in rows.items()
    ]
    width = max(map(len, rows))
    return "\n".join(
        f"{name:<{width}}  {words:>13}  {sentences:>13}" for name, words, sentences in columns
    )


def _filled_blanks(model: Path, held_out: Path) -> list[str]:
    """Return lines with predictions for a long word of held-out sentences, and the word.

    The sentences come from documents in all parts of the file.
    """
    texts = [row.values["text"] for row in RowReader(held_out)]
    matches = filter(None, map(_SENTENCE.search, texts[:: max(1, len(texts) // _BLANKS)]))
    sentences = [(f"{match[1]}[MASK]{match[3]}", match[2]) for match in islice(matches, _BLANKS)]
    lines = ["filled blanks:"]
    results = fill(model, [text for text, _ in sentences], k=_PREDICTIONS)
    for (text, original), (predictions, *_) in zip(sentences, results, strict=True):
        tokens = ", ".join(
            f"{prediction['token_str']} {prediction['score']:.0%}" for prediction in predictions
        )
        lines += [f"  {text}", f"      {tokens}  (it was: {original})"]
    return lines


def _next_steps(folder: Path) -> list[str]:
    """Return lines that name the reports, and commands to try."""
    activate = Path(sys.executable).with_name("activate")
    is_command = shutil.which("bertworks") or not activate.exists()
    first = (
        f"first:   . {quoted(os.path.relpath(activate))}    (makes bertworks a command in "
        "this shell)"
    )
    return [
        f"reports: {folder / 'model' / 'report.html'}",
        f"         {folder / 'classifier' / 'report.html'}",
        *([] if is_command else [first]),
        f'try:     bertworks fill {quoted(folder / "model")} "The result is a [MASK]."',
        f"         bertworks predict {quoted(folder / 'classifier')} "
        f"{quoted(folder / 'origins/dev.csv')} --top-k 3",
        "         bertworks pretrain YOUR-TEXT -o YOUR-MODEL --budget 1h",
        "         bertworks finetune YOUR-TABLE.csv -o YOUR-CLASSIFIER",
    ]
