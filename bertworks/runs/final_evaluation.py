"""The final evaluation of a fine-tuned model: metrics, tables and mistakes on dev, the report and the model card."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bertworks.batching.features import Features
from bertworks.checkpoints.model_card import render_card, render_cell, render_code, render_table
from bertworks.checkpoints.model_folder import WEIGHTS, TaskConfig
from bertworks.checkpoints.resolve import is_model_name
from bertworks.config import dump_recipe
from bertworks.datasets.schema import Item, TaskType
from bertworks.datasets.writer import write_rows
from bertworks.inference.decoding import Answer, Decoder, Logits
from bertworks.io.atomic_write import sha256
from bertworks.metrics import classification, squad
from bertworks.runs.dataset_report import DatasetReport
from bertworks.runs.run_folder import versions
from bertworks.runs.task_metrics import (
    NAMES,
    SHARES,
    Mistake,
    compute_metrics,
    confusion,
    frequent,
    mistakes,
    predicted_label,
    span_pairs,
    titled_metrics,
)
from bertworks.training.recipe import FinetuneRecipe

MAX_CONFUSION_LABELS = 50  # of a confusion matrix; larger ones cannot be read
MAX_POINTS = 1000  # of gold and predicted numbers
WORST = 25  # mistakes on the page; errors.csv has all


def evaluate_answers(
    folder: Path, d: TaskConfig, dev: Sequence[Features], logits: Sequence[Logits]
) -> tuple[dict[str, Any], list[Mistake]]:
    """The contents of result.json for the model in a folder, and all mistakes on dev. The best threshold is stored in
    the model.

    logits: of all dev items.
    """
    items = [features.item for features in dev]
    answers = list(map(Decoder(d), dev, logits))
    figures = compute_metrics(d, items, answers)
    if "threshold" in figures:
        d = replace(d, threshold=best_threshold(answers, figures))
        d.save(folder)
        answers = list(map(Decoder(d), dev, logits))
        figures = compute_metrics(d, items, answers) | {"threshold": d.threshold or 0.0}
    wrong = mistakes(d, items, answers)
    names, counts = confusion(d, items, answers)
    result = {
        "weights_sha256": sha256(folder / WEIGHTS),
        "task": d.task,
        "rows": len(items),
        "figures": figures,
        "table": table(d, dev, answers),
        "confusion": {"labels": names, "counts": counts.tolist()} if 0 < len(names) <= MAX_CONFUSION_LABELS else {},
        "points": points(items, answers) if d.task == "regression" else [],
        "mistakes": len(wrong),
        "frequent": frequent(wrong),
        "worst": [asdict(mistake) for mistake in wrong[:WORST]],
    }
    return result, wrong


def best_threshold(answers: Sequence[Answer], figures: Mapping[str, float]) -> float:
    """The margin with the best F1, plus half of the distance to the next margin (at most .5), so that no answer depends
    on the last digit. If it is best to give no answer at all, a margin below all."""
    threshold = figures["threshold"]
    margins: list[float] = [answer["no_answer_margin"] for answer in answers]
    if threshold not in margins:
        return min(0.0, *margins) - 1
    return threshold + min([1.0, *(margin - threshold for margin in margins if margin > threshold)]) / 2


def table(d: TaskConfig, dev: Sequence[Features], answers: Sequence[Answer]) -> dict[str, dict[str, float]]:
    """Metrics of parts: of each label, of each type of entity, of each kind of question."""
    items = [features.item for features in dev]
    match d.task:
        case "classification":
            return classification.per_class([x.label for x in items], list(map(predicted_label, answers)), d.labels)
        case "multilabel" | "tagging" | "spans":  # labels are counted like entities
            gold, given = zip(*span_pairs(d, items, answers), strict=True)
            return classification.spans_per_type(gold, given)
        case "qa":
            return _questions(dev, answers)
        case "regression" | "choice":
            return {}


def _questions(dev: Sequence[Features], answers: Sequence[Answer]) -> dict[str, dict[str, float]]:
    """Questions with and without answer; contexts that are read in one window and in several."""
    items = [features.item for features in dev]
    unit = squad.f1_unit_of([item.texts[1] for item in items])
    without = not all(item.label for item in items)
    version: squad.SquadVersion = "2.0" if without else "1.1"
    parts: dict[str, list[squad.SquadScore]] = defaultdict(list)
    for features, answer in zip(dev, answers, strict=True):
        golds = [text for _, text in features.item.label]
        score = squad.score_answer(golds, answer["answer"], version=version, unit=unit)
        parts["context in one piece" if len(features.unit) == 1 else "context in several pieces"].append(score)
        if without:
            parts["with an answer" if golds else "without an answer"].append(score)
    table = {}
    for kind, scores in sorted(parts.items()):
        exact, f1 = (sum(figures) / len(scores) for figures in zip(*scores, strict=True))
        table[kind] = {"exact": exact, "f1": f1, "support": float(len(scores))}
    return table


def points(items: Sequence[Item], answers: Sequence[Answer]) -> list[tuple[float, float]]:
    """Gold and predicted numbers, at most MAX_POINTS, spread over all rows."""
    step = -(-len(items) // MAX_POINTS)
    return [(float(item.label), a["value"]) for item, a in list(zip(items, answers, strict=True))[::step]]


def write_errors(path: Path, d: TaskConfig, wrong: Sequence[Mistake]) -> None:
    """Writes errors.csv: for each mistake its row, the texts in their columns, the gold label, the prediction and its
    probability."""
    texts = d.text[:1] if d.task in ("tagging", "qa", "choice") else d.text
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


MAX_LABELS = 50  # of a table
_PIPELINES: Mapping[TaskType, str] = {
    "classification": "text-classification", "multilabel": "text-classification", "regression": "text-classification",
    "tagging": "token-classification", "spans": "token-classification", "qa": "question-answering",
    "choice": "multiple-choice",
}  # fmt: skip
_METRICS = {  # of the hub, if it has another name
    "macro_f1": "f1", "micro_f1": "f1", "pearson": "pearsonr", "spearman": "spearmanr", "exact": "exact_match",
}  # fmt: skip
_OPTIONS: Mapping[TaskType, str] = {  # of a pipeline in transformers
    "multilabel": ", top_k=None",
    "regression": ', function_to_apply="none"',
    "tagging": ', aggregation_strategy="first"',
    "spans": ', aggregation_strategy="simple"',
}
_LIMITS = """
The model repeats the errors and prejudices of its training data. It answers any text with one of its labels or with a
part of that text, even if the text has nothing to do with the task. Its probabilities are not calibrated."""
_CLASSES = {"qa": "AutoModelForQuestionAnswering", "choice": "AutoModelForMultipleChoice"}


def task_card(
    folder: Path,
    d: TaskConfig,
    recipe: FinetuneRecipe,
    model_name: str,
    data_report: DatasetReport,
    figures: Mapping[str, float],
) -> str:
    """The card of a fine-tuned model.

    Args:
        model_name: the model that was fine-tuned, as in the command.
        figures: metrics on dev.
    """
    task = next((note[6:] for note in data_report.notes if note.startswith("task: ")), d.task)
    base = model_name if is_model_name(model_name) else Path(model_name).name
    columns = " and ".join(f"`{render_cell(column)}`" for column in d.text) or "its text"
    longer = "read in windows" if d.task in ("tagging", "spans", "qa") else "truncated"
    text = f"""
A BERT for {task}, fine-tuned with bertworks from `{render_cell(base)}`.
It reads {columns} and at most {d.max_length} tokens at once; longer texts are {longer}."""
    sections = {
        "Quality": _quality(data_report, figures),
        "Data": _data(data_report),
        "Use": _usage(d),
        "Limits": _LIMITS,
        "Recipe": render_code("toml", dump_recipe(recipe)),
        "Software": render_table(("Package", ""), versions()),
    }
    return render_card(folder.resolve().name, text, sections, hub=_hub_fields(d, model_name, figures))


def _hub_fields(d: TaskConfig, model_name: str, figures: Mapping[str, float]) -> dict[str, str]:
    base = {"minilm": "sentence-transformers/all-MiniLM-L6-v2"}.get(model_name, model_name)
    metrics = dict.fromkeys(_METRICS.get(name, name) for name in figures if name in {*NAMES, *SHARES})
    fields = {"library_name": "bertworks" if d.lstm_units else "transformers", "pipeline_tag": _PIPELINES[d.task]}
    fields |= {"base_model": base} if is_model_name(model_name) and "/" in base else {}
    fields |= {"metrics": f"[{', '.join(metrics)}]"} if metrics else {}
    return fields | {"tags": f"[bert, bertworks, {d.task}]"}


def _quality(data_report: DatasetReport, figures: Mapping[str, float]) -> str:
    note = next((note for note in data_report.notes if note.startswith("evaluated on")), "evaluated on held-out rows")
    note = re.sub("evaluated on .*/", "evaluated on ", note)  # without the folders
    return f"""{render_table(("On dev", ""), titled_metrics(figures))}
Dev: {note}.
These rows also selected the checkpoint: expect slightly lower figures on other texts.
"""


def _data(data_report: DatasetReport) -> str:
    labels = dict(list(data_report.labels.items())[:MAX_LABELS])
    table = render_table(("Label", "in train", "in dev"), labels) if labels else ""
    warnings = "".join(f"\n- {warning}" for warning in data_report.warnings)
    return f"{data_report.train:,} rows in train, {data_report.dev:,} in dev.\n\n{table}{warnings}"


def _usage(d: TaskConfig) -> str:
    command = f"{render_code('', 'bertworks predict . new.csv -o scored.csv')}\nThe dot is the path of this folder.\n"
    if d.lstm_units:
        return f"{command}\ntransformers has no such network, and refuses this folder."
    if d.task in _CLASSES:
        name = _CLASSES[d.task]
        code = (
            f"from transformers import {name}, AutoTokenizer\n\n"
            f'model = {name}.from_pretrained(".")\ntokenizer = AutoTokenizer.from_pretrained(".")'
        )
    else:
        kind, example = _PIPELINES[d.task], '"Some words."'
        if kind == "text-classification":
            example = '{"text": "A text", "text_pair": "and another"}' if len(d.text) == 2 else '"A text"'
        ask = f'ask = pipeline("{kind}", model="."{_OPTIONS.get(d.task, "")})\nask({example})'
        code = f"from transformers import pipeline\n\n{ask}"
    return f"{command}\n{render_code('python', code)}"
