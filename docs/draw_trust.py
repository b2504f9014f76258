"""Draw docs/images/trust.svg: scores with their intervals, and probabilities before and after the
temperature.

    python docs/draw_trust.py

It cross-validates a linear head on the frozen vectors of MiniLM, as `finetune --method frozen`
does, on 40, 80 and 160 messages of examples/messages.csv. The diagrams of the probabilities are of
all 160, in groups of equal size.
"""

import csv
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertworks.io.atomic_write import write_text
from bertworks.metrics.intervals import Estimate, confidences
from bertworks.runs.finetune import estimate_scores, make_finetune_request
from bertworks.runs.finetune_job import FinetuneJob, Validated, prepare_finetuning
from bertworks.tasks.registry import task_of
from bertworks.tasks.scores import fit_outputs, format_score
from bertworks.tasks.task import Logits

HERE = Path(__file__).resolve().parent
MESSAGES = HERE.parent / "examples" / "messages.csv"
SIZES = (40, 80, 160)  # rows
GROUPS = 8  # of rows with similar probabilities
EDGE = 220  # of a diagram, in pixels
HEIGHT = 335
LEFT = (20, 330, 620)  # edges of the diagrams
TOP = 60
BLUE = "#0072b2"
ORANGE = "#d55e00"
GREY = "#777777"


def main() -> None:
    with MESSAGES.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    estimates = []
    with tempfile.TemporaryDirectory() as folder:
        for size in SIZES:
            path = Path(folder, f"{size}.csv")
            with path.open("w", encoding="utf-8", newline="") as file:
                writer = csv.DictWriter(file, list(rows[0]))
                writer.writeheader()
                writer.writerows(rows[:size])
            job, logits = cross_validated(path)
            d, answers, reliability = fit_outputs(job.description, job.train, logits)
            validated = Validated(range(len(logits)), logits, logits, [], True)
            estimates.append(estimate_scores(job, validated, answers).scores["accuracy"])
    x, gold, _ = task_of(d).gold_logits(job.train, logits)
    parts = [*intervals(estimates)]
    sides = {
        "before": ("Probabilities as trained", 1.0),
        "after": (f"Logits divided by {d.temperature:.3g}", d.temperature),
    }
    for left, (name, (title, divisor)) in zip(LEFT[1:], sides.items(), strict=True):
        parts.append(text(left, 20, title, weight="bold"))
        parts.append(text(left, 37, f"calibration error {reliability[name]['error']:.3f}"))
        parts += diagram(left, *confidences(x, gold, divisor))
    width = LEFT[-1] + EDGE + 30
    write_picture("trust.svg", parts, width, HEIGHT)


def cross_validated(path: Path) -> tuple[FinetuneJob, list[Logits]]:
    """Return the job of a linear head, and the logits of each row by heads of other rows."""
    request = make_finetune_request(str(path), method="frozen", validation="folds")
    job = FinetuneJob(prepare_finetuning(request, torch.device("cpu")))
    return job, job.logits_of_tenths


def intervals(estimates: Sequence[Estimate]) -> Iterator[str]:
    """Yield a dot and a line for each score and its interval."""
    left = LEFT[0]
    yield text(left, 20, "Accuracy and its 95 % interval", weight="bold")
    yield from axis(left, "accuracy of new rows")
    for number, (size, (value, interval)) in enumerate(zip(SIZES, estimates, strict=True)):
        assert interval is not None
        y = TOP + 50 + 65 * number
        low, high = (left + EDGE * bound for bound in interval)
        score = format_score("accuracy", value, interval)
        yield text(left, y - 14, f"{size} rows: {score}")
        yield line(low, y, high, y, BLUE, 3)
        yield dot(left + EDGE * value, y)


def diagram(left: float, confidence: Any, right: Any) -> Iterator[str]:
    """Yield a reliability diagram: the fraction that is right against the probability."""
    yield from axis(left, "probability of the prediction")
    bottom = TOP + EDGE
    yield line(left, bottom, left, TOP, GREY, 1)
    yield line(left, bottom, left + EDGE, TOP, GREY, 1)
    middle = f"translate({left - 10:.1f} {TOP + EDGE / 2:.1f}) rotate(-90)"
    yield f'<g transform="{middle}">'
    yield text(0, 0, "fraction that is right", anchor="middle", colour=GREY)
    yield "</g>"
    for numbers in np.array_split(np.argsort(confidence, kind="stable"), GROUPS):
        probability = float(confidence[numbers].mean())
        x = left + EDGE * probability
        y = bottom - EDGE * float(right[numbers].mean())
        yield line(x, bottom - EDGE * probability, x, y, ORANGE, 3)
        yield dot(x, y)


def axis(left: float, title: str) -> Iterator[str]:
    """Yield a line from 0 to 100 % with marks."""
    bottom = TOP + EDGE
    yield line(left, bottom, left + EDGE, bottom, GREY, 1)
    for percent in (0, 25, 50, 75, 100):
        x = left + EDGE * percent / 100
        yield line(x, bottom, x, bottom + 4, GREY, 1)
        yield text(x, bottom + 18, f"{percent}%", anchor="middle", colour=GREY)
    yield text(left + EDGE / 2, bottom + 40, title, anchor="middle", colour=GREY)


def write_picture(name: str, parts: Iterable[str], width: float, height: float) -> None:
    """Write an SVG file into docs/images.

    Args:
        parts: elements of SVG.
        width, height: in pixels.
    """
    write_text(
        HERE / "images" / name,
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12">\n'
        f'<rect width="{width}" height="{height}" fill="white"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n",
    )


def line(x1: float, y1: float, x2: float, y2: float, colour: str, width: float) -> str:
    places = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {places} stroke="{colour}" stroke-width="{width}"/>'


def dot(x: float, y: float) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{BLUE}"/>'


def text(
    x: float,
    y: float,
    words: str,
    anchor: str = "start",
    colour: str = "black",
    weight: str = "normal",
) -> str:
    style = f'text-anchor="{anchor}" fill="{colour}" font-weight="{weight}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{words}</text>'


if __name__ == "__main__":
    main()
