"""README.md of a fine-tuned model, the model card."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
_CLASSES = {"qa": "AutoModelForQuestionAnswering", "choice": "AutoModelForMultipleChoice"}


def task_card(
    folder: Path,
    d: TaskConfig,
    recipe: FinetuneRecipe,
    model_name: str,
    survey: DatasetReport,
    facts: Mapping[str, Any],
) -> str:
    """The text of README.md: what the model does, what it learned from, how good it is, how to use it.

    Args:
        model_name: what it began as, as it was typed.
        facts: `evaluation`, its figures on dev.
    """
    task = next((note[6:] for note in survey.notes if note.startswith("task: ")), d.task)
    began = model_name if is_model_name(model_name) else Path(model_name).name
    columns = " and ".join(f"`{_cell(column)}`" for column in d.text) or "its text"
    return f"""---
library_name: {"bertworks" if d.lstm_units else "transformers"}
pipeline_tag: {_PIPELINES[d.task]}
{_front(model_name, facts["evaluation"])}tags: [bert, bertworks, {d.task}]
---

# {" ".join(folder.resolve().name.split())}

A BERT for {task}, fine-tuned with bertworks from `{_cell(began)}`.
It reads {columns} and at most {d.max_length} tokens at once{_beyond(d)}.

## Quality

{_quality(survey, facts["evaluation"])}
## Data

{_data(survey)}
## Use

{_usage(d)}
## Limits

It has learned from these rows, with their errors and prejudices, and answers any text whatever with one of its labels
or with a piece of that text: also texts of which it knows nothing. How sure it says it is has not been calibrated.

## Recipe

```toml
{dump_recipe(recipe).strip().replace("```", "'''")}
```

{_rows(("Package", ""), versions())}"""


def _front(model_name: str, figures: Mapping[str, float]) -> str:
    """Lines that the hub reads: what it began as, where that is a name the hub knows, and which figures there are."""
    base = {"minilm": "sentence-transformers/all-MiniLM-L6-v2"}.get(model_name, model_name)
    lines = f"base_model: {base}\n" if is_model_name(model_name) and "/" in base else ""
    metrics = list(dict.fromkeys(_METRICS[name] for name in figures if name in _METRICS))
    return lines + (f"metrics: [{', '.join(metrics)}]\n" if metrics else "")


def _quality(survey: DatasetReport, figures: Mapping[str, float]) -> str:
    rows = {
        title: f"{figures[name]:.1%}" if name in SHARES else f"{figures[name]:.3f}"
        for name, title in NAMES.items()
        if name in figures
    }
    told = next((note for note in survey.notes if note.startswith("evaluated on")), "evaluated on held-out rows")
    told = re.sub("evaluated on .*/", "evaluated on ", told)  # without the folders
    return f"""{_rows(("On dev", ""), rows)}
Dev: {told}.
Its rows also decided which state of the training was kept: on texts from elsewhere expect somewhat less.
"""


def _data(survey: DatasetReport) -> str:
    labels = {name: f"{train:,} | {dev:,}" for name, (train, dev) in list(survey.labels.items())[:MOST_LABELS]}
    parts = [f"{survey.train:,} rows in train, {survey.dev:,} in dev.\n"]
    if labels:
        parts.append(_rows(("Label", "in train | in dev"), labels))
    return "\n".join(parts) + "".join(f"\n- {warning}" for warning in survey.warnings) + "\n"


def _beyond(d: TaskConfig) -> str:
    return "; longer texts are read in pieces" if d.task in ("tagging", "spans", "qa") else "; longer texts are cut"


def _usage(d: TaskConfig) -> str:
    example = '{"text": "A text", "text_pair": "and another"}' if len(d.text) == 2 else '"A text"'
    command = "```\nbertworks predict . new.csv -o scored.csv\n```\n\nThe dot stands for the path of this folder.\n"
    if d.lstm_units:
        return f"{command}transformers has no such network, and refuses this folder.\n"
    if d.task in _ASKS:
        code = f"from transformers import pipeline\n\n{_ASKS[d.task].replace('{example}', example)}"
    else:
        one = _CLASSES[d.task]
        code = (
            f"from transformers import {one}, AutoTokenizer\n\n"
            f'model = {one}.from_pretrained(".")\ntokenizer = AutoTokenizer.from_pretrained(".")'
        )
    return f"{command}\n```python\n{code}\n```\n"


def _rows(head: tuple[str, str], rows: Mapping[str, str]) -> str:
    """A table; the second column may be several, parted by bars."""
    bars = head[1].count("|")
    lines = [f"| {head[0]} | {head[1]} |", "|---|---|" + "---|" * bars]
    return "\n".join([*lines, *(f"| {_cell(name)} | {value} |" for name, value in rows.items())]) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
