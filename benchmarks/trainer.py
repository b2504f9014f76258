"""transformers' Trainer on the rows of docs/concepts/results.md: the same sequences, labels and
settings; its own loop.

Sequences are cut and labelled by bertworks (whose tokens are equal to transformers': tests), and
what the network says of dev is read and evaluated by bertworks as well; so a difference is one of
network, head, optimiser or loop.
"""

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from rows import EQUAL, EQUAL_ROWS
from transformers import AutoConfig, Trainer, TrainingArguments, set_seed

from bertworks.checkpoints.resolve import resolve_model
from bertworks.datasets.schema import items
from bertworks.evaluation.glue import find_glue_tasks
from bertworks.metrics.intervals import resampled
from bertworks.runs.data_splits import LabelledData
from bertworks.runs.finetune import make_finetune_request
from bertworks.runs.finetune_job import FinetuneJob, prepare_finetuning
from bertworks.tasks.registry import TASKS, task_of
from bertworks.tasks.scores import compute_metrics, groups_of, row_sums
from bertworks.tasks.task import Featurizer

READ = ("input_ids", "token_type_ids", "attention_mask")


def train_with_transformers(name: str, seed: int, data: Path) -> dict[str, Any]:
    """Return the figures of the best epoch on dev, the score of 1,000 resamples of the dev rows
    (the same resamples as in the result.json of bertworks), and the seconds of the training without
    the evaluation."""
    request, p = prepared(name, seed, data)
    task, o = p.description.task, p.recipe.optimizer
    metric = task_of(p.description).metric(request.metric)
    set_seed(seed)
    model = network(resolve_model(request.model), task, len(p.description.labels))
    best: dict[str, float] = {}
    resamples: list[float] = []
    spent = 0.0

    class Evaluating(Trainer):  # type: ignore[misc]
        def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
            nonlocal best, resamples, spent
            begin = time.perf_counter()
            predictions = answers(self.model, p)
            figures = compute_metrics(p.description, p.data.dev, predictions)
            if not best or figures[metric] > best[metric]:
                best = figures
                sums = row_sums(p.description, p.data.dev, predictions)[metric]
                resamples = resampled(sums, groups_of(p.description, p.data.dev)).round(6).tolist()
            spent += time.perf_counter() - begin
            return {f"eval_{metric}": figures[metric]}

    rows = [
        {"example": example}
        for one in p.train
        for unit in task_of(p.description).training_groups(one)
        for example in unit
    ]
    with tempfile.TemporaryDirectory() as scratch:
        settings = TrainingArguments(
            scratch,
            seed=seed,
            use_cpu=True,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            eval_strategy="epoch",
            num_train_epochs=p.recipe.epochs,
            per_device_train_batch_size=p.recipe.batch_size,
            learning_rate=o.learning_rate,
            warmup_steps=o.warmup,
            weight_decay=o.weight_decay,
            adam_epsilon=o.eps,
            max_grad_norm=o.max_grad_norm,
            remove_unused_columns=False,
            logging_strategy="no",
        )
        collator = Collator(task, [item.label for item in p.data.train])
        begin = time.perf_counter()
        Evaluating(
            model, settings, data_collator=collator, train_dataset=rows, eval_dataset=[]
        ).train()
        seconds = time.perf_counter() - begin
    return {"figures": best, "resamples": resamples, "seconds": seconds - spent}


def prepared(name: str, seed: int, data: Path) -> tuple[Any, Any]:
    """The request of a row of the table to bertworks, and its fine-tuning just before the first
    step."""
    row = next(row for row in EQUAL_ROWS if row.name == name)
    read, settings = None, (*EQUAL, *row.settings)
    words = row.command.split()
    if row.group == "GLUE":
        (found,) = find_glue_tasks(data / "glue" / words[words.index("--task") + 1])
        (train, schema), (dev, dev_schema) = found.read("train"), found.read(found.measured_on[0])
        read = LabelledData(
            schema, list(items(train, schema, TASKS)), list(items(dev, dev_schema, TASKS))
        )
        request = make_finetune_request(
            found.files["train"], metric=row.metrics[0], seed=seed, overrides=settings
        )
    else:
        train_file, dev_file = words[1], words[words.index("--dev") + 1]
        settings = (*settings, "precision=fp32")
        request = make_finetune_request(
            data / train_file, dev=data / dev_file, seed=seed, overrides=settings
        )
    return request, FinetuneJob(prepare_finetuning(request, torch.device("cpu"), data=read))


def network(folder: Path, task: str, labels: int) -> Any:
    outputs = 1 if task == "regression" else labels or 2
    config = AutoConfig.from_pretrained(folder, num_labels=outputs)
    match task:
        case "tagging":
            head = transformers.AutoModelForTokenClassification
        case "qa":
            head = transformers.AutoModelForQuestionAnswering
        case _:
            head = transformers.AutoModelForSequenceClassification
    if task == "regression":
        config.problem_type = "regression"
    return head.from_pretrained(folder, config=config)


class Collator:
    """Examples -> rectangles with labels. Numbers to be learned are brought to mean 0 and deviation
    1, which changes neither correlation."""

    def __init__(self, task: str, labels: Sequence[Any]):
        self.task, self.mean, self.deviation = task, 0.0, 1.0
        if task == "regression":
            values = torch.tensor(labels)
            self.mean, self.deviation = values.mean().item(), values.std().item()

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        examples = [row["example"] for row in rows]
        batch = rectangle(examples)
        match self.task:
            case "tagging":
                labels = torch.full_like(batch["input_ids"], -100)
                for n, e in enumerate(examples):
                    labels[n, torch.from_numpy(e.target.positions)] = torch.from_numpy(
                        e.target.labels
                    ).long()
                return batch | {"labels": labels}
            case "qa":
                starts, ends = (
                    torch.tensor([int(e.target.labels[k]) for e in examples]) for k in (0, 1)
                )
                return batch | {"start_positions": starts, "end_positions": ends}
            case "regression":
                values = torch.tensor([float(e.target.labels[0]) for e in examples])
                return batch | {"labels": (values - self.mean) / self.deviation}
            case _:
                return batch | {"labels": torch.tensor([int(e.target.labels[0]) for e in examples])}


def rectangle(examples: Sequence[Any]) -> dict[str, torch.Tensor]:
    """As long as the longest."""
    shape = len(examples), max(len(e.input_ids) for e in examples)
    batch = {name: torch.zeros(shape, dtype=torch.long) for name in READ}
    for n, e in enumerate(examples):
        length = len(e.input_ids)
        batch["input_ids"][n, :length] = torch.from_numpy(e.input_ids)
        batch["token_type_ids"][n, :length] = torch.from_numpy(e.token_type_ids)
        batch["attention_mask"][n, :length] = 1
    return batch


@torch.no_grad()
def answers(model: Any, p: Any) -> list[Any]:
    """For the whole of dev, computed sorted by length."""
    task = p.description.task
    decoding = task_of(replace(p.description, threshold=None)).decode
    dev = list(Featurizer(p.model.tokenizer, task_of(p.description))(p.data.dev))
    places = [(n, k) for n, one in enumerate(dev) for k in range(len(one.unit))]
    places.sort(key=lambda place: len(dev[place[0]].unit[place[1]].input_ids))
    known: dict[tuple[int, int], Any] = {}
    model.eval()
    for start in range(0, len(places), 32):
        part = places[start : start + 32]
        examples = [dev[n].unit[k] for n, k in part]
        out = model(**rectangle(examples))
        logits = torch.stack([out.start_logits, out.end_logits], -1) if task == "qa" else out.logits
        for place, example, rows in zip(part, examples, logits, strict=True):
            positions = torch.from_numpy(example.target.positions)
            known[place] = (rows[positions] if task in ("tagging", "qa") else rows[None]).numpy()
    model.train()
    return [
        decoding(one, np.concatenate([known[n, k] for k in range(len(one.unit))]))
        for n, one in enumerate(dev)
    ]
