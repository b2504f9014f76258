"""README.md of a fine-tuned model, the model card."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertworks.checkpoints.model_card import render_card, render_cell, render_code, render_table
from bertworks.checkpoints.resolve import is_model_name
from bertworks.checkpoints.task_config import TaskConfig
from bertworks.config import dump_recipe
from bertworks.datasets.schema import TaskType
from bertworks.runs.dataset_report import DatasetReport
from bertworks.runs.task_metrics import NAMES, SHARES
from bertworks.runs.training_run import versions
from bertworks.training.finetune_recipe import FinetuneRecipe

MOST_LABELS = 50  # of a table
_PIPELINES: Mapping[TaskType, str] = {
    "classification": "text-classification", "multilabel": "text-classification", "regression": "text-classification",
    "tagging": "token-classification", "spans": "token-classification", "qa": "question-answering",
    "choice": "multiple-choice",
}  # fmt: skip
_METRICS = {  # ours -> those of the hub
    "accuracy": "accuracy", "f1": "f1", "macro_f1": "f1", "micro_f1": "f1", "precision": "precision",
    "recall": "recall", "matthews_correlation": "matthews_correlation", "pearson": "pearsonr",
    "spearman": "spearmanr", "exact": "exact_match",
}  # fmt: skip
_ASKS: Mapping[TaskType, str] = {  # lines of Python, in transformers
    "classification": 'ask = pipeline("text-classification", model=".")\nask({example})',
    "multilabel": 'ask = pipeline("text-classification", model=".", top_k=None)\nask({example})',
    "regression": 'ask = pipeline("text-classification", model=".", function_to_apply="none")\nask({example})',
    "tagging": 'ask = pipeline("token-classification", model=".", aggregation_strategy="first")\nask("Some words.")',
    "spans": 'ask = pipeline("token-classification", model=".", aggregation_strategy="simple")\nask("Some words.")',
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
    survey: DatasetReport,
    facts: Mapping[str, Any],
) -> str:
    """The card of a fine-tuned model.

    Args:
        model_name: the model that was fine-tuned, as in the command.
        facts: `evaluation`: metrics on dev.
    """
    task = next((note[6:] for note in survey.notes if note.startswith("task: ")), d.task)
    base = model_name if is_model_name(model_name) else Path(model_name).name
    columns = " and ".join(f"`{render_cell(column)}`" for column in d.text) or "its text"
    longer = "read in windows" if d.task in ("tagging", "spans", "qa") else "truncated"
    text = f"""
A BERT for {task}, fine-tuned with bertworks from `{render_cell(base)}`.
It reads {columns} and at most {d.max_length} tokens at once; longer texts are {longer}."""
    sections = {
        "Quality": _quality(survey, facts["evaluation"]),
        "Data": _data(survey),
        "Use": _usage(d),
        "Limits": _LIMITS,
        "Recipe": render_code("toml", dump_recipe(recipe)),
        "Software": render_table(("Package", ""), versions()),
    }
    return render_card(folder.resolve().name, text, sections, hub=_hub_fields(d, model_name, facts["evaluation"]))


def _hub_fields(d: TaskConfig, model_name: str, figures: Mapping[str, float]) -> dict[str, str]:
    base = {"minilm": "sentence-transformers/all-MiniLM-L6-v2"}.get(model_name, model_name)
    metrics = list(dict.fromkeys(_METRICS[name] for name in figures if name in _METRICS))
    fields = {"library_name": "bertworks" if d.lstm_units else "transformers", "pipeline_tag": _PIPELINES[d.task]}
    fields |= {"base_model": base} if is_model_name(model_name) and "/" in base else {}
    fields |= {"metrics": f"[{', '.join(metrics)}]"} if metrics else {}
    return fields | {"tags": f"[bert, bertworks, {d.task}]"}


def _quality(survey: DatasetReport, figures: Mapping[str, float]) -> str:
    rows = {
        title: f"{figures[name]:.1%}" if name in SHARES else f"{figures[name]:.3f}"
        for name, title in NAMES.items()
        if name in figures
    }
    note = next((note for note in survey.notes if note.startswith("evaluated on")), "evaluated on held-out rows")
    note = re.sub("evaluated on .*/", "evaluated on ", note)  # without the folders
    return f"""{render_table(("On dev", ""), rows)}
Dev: {note}.
These rows also selected the checkpoint: expect slightly lower figures on other texts.
"""


def _data(survey: DatasetReport) -> str:
    labels = dict(list(survey.labels.items())[:MOST_LABELS])
    table = render_table(("Label", "in train", "in dev"), labels) if labels else ""
    warnings = "".join(f"\n- {warning}" for warning in survey.warnings)
    return f"{survey.train:,} rows in train, {survey.dev:,} in dev.\n\n{table}{warnings}"


def _usage(d: TaskConfig) -> str:
    example = '{"text": "A text", "text_pair": "and another"}' if len(d.text) == 2 else '"A text"'
    command = f"{render_code('', 'bertworks predict . new.csv -o scored.csv')}\nThe dot is the path of this folder.\n"
    if d.lstm_units:
        return f"{command}\ntransformers has no such network, and refuses this folder."
    if d.task in _ASKS:
        code = f"from transformers import pipeline\n\n{_ASKS[d.task].replace('{example}', example)}"
    else:
        name = _CLASSES[d.task]
        code = (
            f"from transformers import {name}, AutoTokenizer\n\n"
            f'model = {name}.from_pretrained(".")\ntokenizer = AutoTokenizer.from_pretrained(".")'
        )
    return f"{command}\n{render_code('python', code)}"
