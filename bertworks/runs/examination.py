"""What the best state of a training makes of dev, told in full: figures, tables, mistakes. Not here: the figures
themselves (`judging`), single mistakes (`mistakes`), how it is told (`task_report`, `task_card`)."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertworks.data.questions import Encoded
from bertworks.files.model import WEIGHTS, load_model
from bertworks.files.storage import read_json
from bertworks.files.task import TaskDescription
from bertworks.learn import scores, squad_scores
from bertworks.learn.answers import Answer, Logits
from bertworks.learn.finetuning import FinetuneRecipe
from bertworks.learn.inference import logits_of
from bertworks.learn.machine import Precision
from bertworks.learn.recipe import parse_as
from bertworks.learn.tasks import TaskModel
from bertworks.rows.schema import Item
from bertworks.rows.writer import write_rows
from bertworks.runs.finetuning import decoding_of, task_of
from bertworks.runs.judging import describe_scores, judge
from bertworks.runs.mistakes import Mistake, confusion, counted, frequent, given_spans, gold_spans, mistakes
from bertworks.runs.survey import Survey
from bertworks.runs.task_card import task_card
from bertworks.runs.task_report import write_task_report
from bertworks.text.atomic import sha256, write_text

RESULT = "result.json"
MOST_LABELS = 50  # of a confusion matrix; more are no picture
MOST_POINTS = 1000  # of gold and predicted numbers
WORST = 25  # mistakes on the page; errors.csv has all


class Examination:
    """Of the model that a folder holds, on dev.

    Args:
        dev: what it reads of dev, with labels.
    """

    def __init__(self, folder: Path, description: TaskDescription, dev: Sequence[Encoded], survey: Survey):
        self.folder, self.description, self.dev, self.survey = folder, description, dev, survey

    def report(self, folder: Path) -> None:
        """Draws report.html of what there is so far."""
        there = (folder / RESULT).exists()
        result = self._kept(sha256(folder / WEIGHTS)) if there else None
        write_task_report(folder, str(self.survey), result)

    def examine(
        self, device: torch.device, precision: Precision, logits: list[Logits] | None = None
    ) -> tuple[dict[str, float], str]:
        """The figures, and what a person should know at the end. Writes errors.csv, README.md, report.html and last
        result.json, which says of which weights it is: of these nothing is computed twice.

        logits: what the model says to all of dev, where that is known; None: it is asked.

        Raises:
            BertworksError: the model cannot be read, or the disk is full.
        """
        weights = sha256(self.folder / WEIGHTS)
        result = self._kept(weights)
        if result is None:
            if logits is None:
                logits = logits_of(self._network(device), [one.unit for one in self.dev], precision)
            found, wrong = self._judged(logits)
            result = {"weights_sha256": weights, **found}
            self._write(result, wrong)
        return result["figures"], self._told(result)

    def _kept(self, weights: str) -> dict[str, Any] | None:
        """What was found before of the very same weights."""
        path = self.folder / RESULT
        result = read_json(path) if path.exists() else {}
        return result if result.get("weights_sha256") == weights else None

    def _judged(self, logits: Sequence[Logits]) -> tuple[dict[str, Any], list[Mistake]]:
        """result.json but for the weights, and all that is wrong."""
        items = [one.item for one in self.dev]

        def judged(d: TaskDescription) -> tuple[list[Answer], dict[str, float]]:
            decoding = decoding_of(d)
            answers = [decoding(one, rows) for one, rows in zip(self.dev, logits, strict=True)]
            return answers, judge(d, items, answers)

        d = self.description
        answers, figures = judged(d)
        if "threshold" in figures:
            d = replace(d, threshold=best_threshold(answers, figures))
            answers, figures = judged(d)
            figures["threshold"] = d.threshold or 0.0
            d.save(self.folder)
        wrong = mistakes(d, items, answers)
        names, counts = confusion(d, items, answers)
        result = {
            "task": d.task,
            "rows": len(items),
            "figures": figures,
            "table": table(d, self.dev, answers),
            "confusion": {"labels": names, "counts": counts.tolist()} if 0 < len(names) <= MOST_LABELS else {},
            "points": points(items, answers) if d.task == "regression" else [],
            "mistakes": len(wrong),
            "frequent": frequent(wrong),
            "worst": [asdict(one) for one in wrong[:WORST]],
        }
        return result, wrong

    def _network(self, device: torch.device) -> TaskModel:
        """The one in the folder, with the weights of the best state."""
        d = self.description
        model = load_model(self.folder, needs={"encoder", "span" if d.task == "qa" else "classifier"})
        network = TaskModel(model.config, task_of(d), recurrent_units=d.recurrent_units)
        network.load_state_dict({name: model.state[name] for name in network.state_dict()})
        return network.to(device).eval()

    def _write(self, result: Mapping[str, Any], wrong: Sequence[Mistake]) -> None:
        write_errors(self.folder / "errors.csv", self.description, wrong)
        recipe = parse_as(FinetuneRecipe, (self.folder / "recipe.toml").read_text(encoding="utf-8"), "recipe.toml")
        request = read_json(self.folder / "run.json")["request"]
        facts = {"evaluation": result["figures"]}
        card = task_card(self.folder, self.description, recipe, request["model"], self.survey, facts)
        write_text(self.folder / "README.md", card)
        write_task_report(self.folder, str(self.survey), result)
        write_text(self.folder / RESULT, json.dumps(result, indent=1, ensure_ascii=False) + "\n")

    def _told(self, result: Mapping[str, Any]) -> str:
        d = self.description
        lines = [f"{self.folder}: {describe_scores(result['figures'])} on dev"]
        if d.task == "regression":
            off = [abs(gold - given) for gold, given in result["points"]]
            lines.append(f"half of the numbers are off by less than {np.median(off):.3g}")
        elif result["mistakes"]:
            most = f": {result['frequent']}" if result["frequent"] else ""
            lines.append(counted(result["mistakes"], result["rows"]) + most)
        lines.append(f"see {self.folder / 'report.html'} and {self.folder / 'errors.csv'}")
        lines.append(f"next: bertworks predict {shlex.quote(str(self.folder))} new.csv -o scored.csv")
        return "\n".join(lines)


def best_threshold(answers: Sequence[Answer], figures: Mapping[str, float]) -> float:
    """The margin that gives the best F1, and a little more, up to half of the way to the next one: the answer at the
    edge must not hang on the last digit. Where the best is to answer nothing at all, one that no answer has."""
    threshold = figures["threshold"]
    margins: list[float] = [answer["no_answer_margin"] for answer in answers]
    if threshold not in margins:
        return min(0.0, *margins) - 1
    return threshold + min([1.0, *(margin - threshold for margin in margins if margin > threshold)]) / 2


def table(d: TaskDescription, dev: Sequence[Encoded], answers: Sequence[Answer]) -> dict[str, dict[str, float]]:
    """Figures of parts: of each label, of each type of entity, of each kind of question."""
    items = [one.item for one in dev]
    match d.task:
        case "classification":
            return scores.per_class([x.label for x in items], [answer["label"] for answer in answers], d.labels)
        case "multilabel":  # a label of a row is counted like an entity of a text
            gold = [[(0, 1, name) for name in item.label] for item in items]
            return scores.spans_per_type(gold, [[(0, 1, name) for name in answer["labels"]] for answer in answers])
        case "tagging" | "spans":
            return scores.spans_per_type([gold_spans(d, x) for x in items], [given_spans(d, a) for a in answers])
        case "qa":
            return _questions(dev, answers)
        case "regression" | "choice":
            return {}


def _questions(dev: Sequence[Encoded], answers: Sequence[Answer]) -> dict[str, dict[str, float]]:
    """Questions with and without answer; contexts that are read in one piece and in several."""
    items = [one.item for one in dev]
    unit = squad_scores.unit_of([item.texts[1] for item in items])
    without = not all(item.label for item in items)
    version: squad_scores.Version = "2.0" if without else "1.1"
    parts: dict[str, list[squad_scores.Score]] = {}
    for one, answer in zip(dev, answers, strict=True):
        golds = [text for _, text in one.item.label]
        found = squad_scores.score(golds, answer["answer"], version=version, unit=unit)
        kinds = ["with an answer" if golds else "without an answer"] if without else []
        for kind in [*kinds, "context in one piece" if len(one.unit) == 1 else "context in several pieces"]:
            parts.setdefault(kind, []).append(found)
    return {
        kind: {
            "exact": sum(x.exact for x in found) / len(found),
            "f1": sum(x.f1 for x in found) / len(found),
            "support": float(len(found)),
        }
        for kind, found in sorted(parts.items())
    }


def points(items: Sequence[Item], answers: Sequence[Answer]) -> list[tuple[float, float]]:
    """Some numbers that are right, and what was answered, spread over all rows."""
    step = -(-len(items) // MOST_POINTS)
    return [(float(item.label), a["value"]) for item, a in list(zip(items, answers, strict=True))[::step]]


def write_errors(path: Path, d: TaskDescription, wrong: Sequence[Mistake]) -> None:
    """errors.csv: where each mistake stands, its texts under the names they have in the data, what is right, what was
    answered, and how surely."""
    texts = {"tagging": d.text[:1], "qa": d.text[:1], "choice": d.text[:1]}.get(d.task, d.text)
    others = list(wrong[0].figures) if wrong else []
    score = "difference" if d.task == "regression" else "score"
    columns = ["where", *texts, "gold", "predicted", score, *others]
    for number in range(1, 1 + len(texts)):
        if columns.count(columns[number]) > 1:
            columns[number] += " (text)"
    rows = ([m.where, *m.texts, m.gold, m.predicted, *map(_rounded, (m.score, *m.figures.values()))] for m in wrong)
    write_rows(path, columns, (dict(zip(columns, row, strict=True)) for row in rows))


def _rounded(figure: float | None) -> float | None:
    return None if figure is None else round(figure, 4)
