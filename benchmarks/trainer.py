"""transformers' Trainer on the tasks of results.py: the same sequences and labels, its models, its loop, its optimiser.

Sequences are cut and labelled by bertworks (whose tokens are equal to transformers': tests), and what the network says
of dev is read and judged by bertworks as well; so a difference is one of network, head, optimiser or loop.
"""

import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def train_with_transformers(name: str, seed: int, data: Path) -> dict[str, Any]:
    import torch
    from results import EQUAL, ROWS
    from transformers import AutoConfig, Trainer, TrainingArguments, set_seed

    from bertworks.data.questions import training_units
    from bertworks.files.names import locate
    from bertworks.learn.answers import Decoding
    from bertworks.learn.benchmarks import find
    from bertworks.text.schema import items
    from bertworks.use.datasets import LabelledData
    from bertworks.use.finetune import make_finetune_request, prepare
    from bertworks.use.judging import judge, metric_of
    from bertworks.use.predict import reading_of

    row = next(row for row in ROWS if row.name == name)
    words = row.command.split()
    if row.group == "GLUE":
        (found,) = find(data / "glue" / name)
        (train, schema), (dev, dev_schema) = found.read("train"), found.read(found.measured_on[0])
        read = LabelledData(schema, list(items(train, schema)), list(items(dev, dev_schema)))
        request = make_finetune_request(found.files["train"], metric=row.metrics[0], seed=seed, overrides=EQUAL)
    else:
        files = {"data": words[1], "dev": words[words.index("--dev") + 1]}
        request = make_finetune_request(
            data / files["data"], dev=data / files["dev"], seed=seed, overrides=(*EQUAL, "precision=fp32")
        )
        read = None
    p = prepare(request, torch.device("cpu"), data=read)
    task, recipe = p.description.task, p.recipe
    metric = metric_of(task, request.metric, p.description.labels)
    folder = locate(request.model)
    mean, deviation = 0.0, 1.0
    if task == "regression":
        values = torch.tensor([item.label for item in p.data.train])
        mean, deviation = values.mean().item(), values.std().item()

    class Rows(torch.utils.data.Dataset[dict[str, Any]]):
        def __init__(self, units: Sequence[Any]):
            self.examples = [example for unit in units for example in unit]

        def __len__(self) -> int:
            return len(self.examples)

        def __getitem__(self, number: int) -> dict[str, Any]:
            return {"example": self.examples[number]}

    def collator(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Rectangles, as long as the longest."""
        examples = [row["example"] for row in rows]
        shape = len(examples), max(len(e.input_ids) for e in examples)
        names = ("input_ids", "token_type_ids", "attention_mask")
        batch = {name: torch.zeros(shape, dtype=torch.long) for name in names}
        labels = torch.full(shape, -100)
        for n, e in enumerate(examples):
            length = len(e.input_ids)
            batch["input_ids"][n, :length] = torch.from_numpy(e.input_ids)
            batch["token_type_ids"][n, :length] = torch.from_numpy(e.token_type_ids)
            batch["attention_mask"][n, :length] = 1
            if task == "tagging":
                labels[n, torch.from_numpy(e.masked_positions)] = torch.from_numpy(e.labels).long()
        match task:
            case "tagging":
                return batch | {"labels": labels}
            case "qa":
                starts, ends = (torch.tensor([int(e.labels[k]) for e in examples]) for k in (0, 1))
                return batch | {"start_positions": starts, "end_positions": ends}
            case "regression":
                return batch | {"labels": torch.tensor([(float(e.labels[0]) - mean) / deviation for e in examples])}
            case _:
                return batch | {"labels": torch.tensor([int(e.labels[0]) for e in examples])}

    def answers(model: Any) -> list[Any]:
        """Of the whole of dev, sorted by length."""
        decoding = Decoding(task, p.description.labels, max_answer=recipe.max_answer)
        dev_units = list(reading_of(p.description, p.beginning.model.tokenizer)(p.data.dev))
        places = [(n, k) for n, one in enumerate(dev_units) for k in range(len(one.unit))]
        places.sort(key=lambda place: len(dev_units[place[0]].unit[place[1]].input_ids))
        known: dict[tuple[int, int], Any] = {}
        model.eval()
        for start in range(0, len(places), 32):
            part = places[start : start + 32]
            batch = collator([{"example": dev_units[n].unit[k]} for n, k in part])
            inputs = {name: batch[name] for name in ("input_ids", "token_type_ids", "attention_mask")}
            with torch.no_grad():
                out = model(**inputs)
            for row_number, (n, k) in enumerate(part):
                asked = torch.from_numpy(dev_units[n].unit[k].masked_positions)
                if task == "qa":
                    logits = torch.stack([out.start_logits[row_number], out.end_logits[row_number]], -1)[asked]
                else:
                    logits = out.logits[row_number][asked] if task == "tagging" else out.logits[row_number][None]
                known[n, k] = logits.numpy()
        model.train()
        import numpy as np

        return [
            decoding(one, np.concatenate([known[n, k] for k in range(len(one.unit))]))
            for n, one in enumerate(dev_units)
        ]

    set_seed(seed)
    outputs = 1 if task == "regression" else len(p.description.labels) or 2
    config = AutoConfig.from_pretrained(folder, num_labels=outputs)
    if task == "regression":
        config.problem_type = "regression"
    model = model_class(task).from_pretrained(folder, config=config)
    best: dict[str, float] = {}
    spent = 0.0

    class Judging(Trainer):  # type: ignore[misc]
        def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
            nonlocal best, spent
            begin = time.perf_counter()
            figures = judge(p.description, p.data.dev, answers(self.model))
            if not best or figures[metric] > best[metric]:
                best = figures
            spent += time.perf_counter() - begin
            return {f"eval_{metric}": figures[metric]}

    o = recipe.optimizer
    units = [unit for one in p.train for unit in training_units(one, task)]
    with tempfile.TemporaryDirectory() as scratch:
        settings = TrainingArguments(
            scratch, seed=seed, use_cpu=True, save_strategy="no", report_to="none", disable_tqdm=True,
            eval_strategy="epoch", num_train_epochs=recipe.epochs, per_device_train_batch_size=recipe.batch_size,
            learning_rate=o.learning_rate, warmup_steps=o.warmup, weight_decay=o.weight_decay, adam_epsilon=o.eps,
            max_grad_norm=o.max_grad_norm, remove_unused_columns=False, logging_strategy="no",
        )  # fmt: skip
        begin = time.perf_counter()
        Judging(model, settings, data_collator=collator, train_dataset=Rows(units), eval_dataset=Rows([])).train()
        seconds = time.perf_counter() - begin
    return {"figures": best, "seconds": seconds - spent}


def model_class(task: str) -> Any:
    import transformers

    match task:
        case "tagging":
            return transformers.AutoModelForTokenClassification
        case "qa":
            return transformers.AutoModelForQuestionAnswering
        case _:
            return transformers.AutoModelForSequenceClassification
