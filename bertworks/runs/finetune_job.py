"""What a fine-tuning trains, and how it is evaluated.

- `FinetuneJob`: a task trained on labelled items and evaluated on others
- `FinalEvaluation`: the best state on dev: figures, tables, mistakes
"""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from bertworks.batching.batch import Batch, ExampleGroup, LabelledBatches
from bertworks.batching.features import Features
from bertworks.checkpoints.model_folder import WEIGHTS, Model, load_model, save_model
from bertworks.checkpoints.storage import read_json
from bertworks.checkpoints.task_config import TaskConfig, task_settings
from bertworks.config import parse_as
from bertworks.datasets.schema import Item
from bertworks.datasets.writer import write_rows
from bertworks.errors import BertworksError
from bertworks.inference.decoding import Answer, Decoder, Logits, make_task_head
from bertworks.inference.engine import compute_logits, compute_logits_and_loss
from bertworks.io.atomic_write import sha256, write_text
from bertworks.metrics import classification, squad
from bertworks.models.encoder import initialize
from bertworks.models.heads import num_lstm_parameters
from bertworks.runs.dataset_report import DatasetReport
from bertworks.runs.report import write_task_report
from bertworks.runs.task_card import task_card
from bertworks.runs.task_metrics import (
    Mistake,
    compute_metrics,
    confusion,
    counted,
    format_metrics,
    frequent,
    given_spans,
    gold_spans,
    metric_of,
    mistakes,
)
from bertworks.training.device import Precision
from bertworks.training.finetune_recipe import FinetuneRecipe
from bertworks.training.task_heads import (
    TaskModel,
    frozen_features_size,
)
from bertworks.training.vocab_subset import VocabSubset

TOKEN_EMBEDDING_KEY = "encoder.embeddings.token.weight"  # the table of words in a state


@dataclass(frozen=True)
class InitialModel:
    """The model that a fine-tuning starts from."""

    name: str  # as it was typed
    model: Model
    head: TaskConfig | None  # what its own head does; None: it has none, or it is to be forgotten


class FinetuneJob:
    """See `run.Work`."""

    keeps: ClassVar[Literal["last", "best"]] = "best"

    def __init__(
        self,
        recipe: FinetuneRecipe,
        description: TaskConfig,
        beginning: InitialModel,
        units: Sequence[ExampleGroup],
        dev: Sequence[Features],
        precision: Precision,
        *,
        metric: str | None = None,
        card: Callable[[Mapping[str, Any]], str],
        report: Callable[[Path], None],
    ):
        self.recipe, self.description, self.beginning = recipe, description, beginning
        self.precision, self.metric = precision, metric or metric_of(description.task, None, description.labels)
        c = beginning.model.config
        # The network has a row for each token that it will meet; the folder has all of them.
        self.shortlist = VocabSubset([*units, *(encoded.unit for encoded in dev)], c.vocab_size)
        self.units = self.shortlist.over(units)
        self.dev = [encoded._replace(unit=self.shortlist.renumbered(encoded.unit)) for encoded in dev]
        first = [len(one.input_ids) for unit in units[:1000] for one in unit]
        self._mean_length = sum(first) // len(first)
        self._card, self._report = card, report
        self.seed, self.optimizer = recipe.seed, recipe.optimizer
        self.train_batches = LabelledBatches(self.units, recipe.batch_size, recipe.micro_batch_tokens, recipe.seed)
        self.num_steps = recipe.epochs * self.train_batches.steps_per_epoch
        self.evaluate_every = max(1, self.train_batches.steps_per_epoch // recipe.evaluations)
        self.save_every = recipe.save_every
        rate, c = recipe.dropout, replace(c, vocab_size=len(self.shortlist))
        self.config = c if rate < 0 else replace(c, hidden_dropout=rate, attention_dropout=rate)
        # What the network says to all dev items: at the last evaluation; in the state that the folder holds, if known.
        self._last: list[Logits] = []
        self.saved: list[Logits] | None = None

    def network(self) -> TaskModel:
        """One of this kind, with everything at random."""
        task = make_task_head(self.description, self.units, self.recipe)
        return TaskModel(self.config, task, lstm_units=self.recipe.lstm_units)

    def blank(self) -> TaskModel:
        network = self.network()
        if network.features is not None:
            asked = [encoded.unit for encoded in self.dev]
            self.remembers = network.features.remember([*self.units, *asked]) or network.features.remember(self.units)
        return network

    def begin(self) -> tuple[nn.Module, list[str]]:
        torch.manual_seed(self.recipe.seed)
        network, notes = self.blank(), []
        state = dict(self.beginning.model.state)
        state[TOKEN_EMBEDDING_KEY] = self.shortlist.rows(state[TOKEN_EMBEDDING_KEY])
        if self.beginning.head:
            state |= self._head_by_name(self.beginning.head)
        else:
            state = {name: value for name, value in state.items() if name.split(".")[0] in ("encoder", "pooler")}
        ours = network.state_dict()
        missing, _ = network.load_state_dict({name: state[name] for name in ours if name in state}, strict=False)
        if any(name.startswith("pooler") for name in missing):
            notes.append(f"{self.beginning.name} has no pooler: begun at random")
        if network.features is not None and not self.remembers:
            notes.append("what the frozen encoder says does not fit in memory: it is computed again in every epoch")
        if again := self.recipe.reinitialized_layers:
            self._reinitialize(network, again)
        return network, notes

    def _head_by_name(self, head: TaskConfig) -> dict[str, Tensor]:
        """The model's own head, with its outputs in the order of our labels."""
        state = self.beginning.model.state
        if not self.description.labels:
            return {}
        order = torch.tensor([head.labels.index(label) for label in self.description.labels])
        return {name: value[order] for name, value in state.items() if name.startswith("classifier.")}

    def _reinitialize(self, network: TaskModel, layers: int) -> None:
        blocks = list(network.encoder.blocks)
        if layers > len(blocks):
            raise BertworksError(
                f"reinitialized_layers is {layers}, but the model has {len(blocks)}", where=self.beginning.name
            )
        for part in [*blocks[len(blocks) - layers :], *([network.pooler] if network.pooler else [])]:
            initialize(part, self.config)
            for norm in part.modules():
                if isinstance(norm, nn.LayerNorm):
                    norm.reset_parameters()

    def batches(self, plans: Path, rank: int, world_size: int) -> Callable[[int], list[Batch]]:
        return replace(self.train_batches, rank=rank, world_size=world_size)

    def evaluate(self, network: nn.Module) -> dict[str, float]:
        assert isinstance(network, TaskModel)
        self._last, mean = compute_logits_and_loss(network, [encoded.unit for encoded in self.dev], self.precision)
        decoding = Decoder(self.description)
        answers = [decoding(e, rows) for e, rows in zip(self.dev, self._last, strict=True)]
        return {"loss": mean.loss, **compute_metrics(self.description, [e.item for e in self.dev], answers)}

    def is_better(self, figures: Mapping[str, float], best: Mapping[str, float]) -> bool:
        return (figures[self.metric], -figures["loss"]) > (best[self.metric], -best["loss"])

    def enough(self, evaluated: int, best: int) -> bool:
        """No better score in so many evaluations."""
        return 0 < self.recipe.patience * self.evaluate_every <= evaluated - best

    def baseline(self) -> None:
        return None

    def flops_per_token(self, step: int) -> float:
        c, units, length = self.config, self.recipe.lstm_units, self._mean_length
        if units:  # of the LSTM alone: what the encoder says is computed once
            return 6.0 * num_lstm_parameters(frozen_features_size(c), units)
        everything = self.description.task == "qa"
        return replace(c, vocab_size=0).flops_per_token(length, 0.0, finished=1.0 if everything else 1 / max(1, length))

    def cost(self, steps: int) -> float:
        return float(steps)

    def progress(self, step: int) -> dict[str, Any]:
        return {"epoch": step / self.train_batches.steps_per_epoch, "epochs": self.recipe.epochs}

    def describe(self, figures: Mapping[str, float]) -> str:
        return format_metrics(figures)

    def save(self, folder: Path, network: nn.Module, facts: Mapping[str, Any]) -> None:
        state = {name: p.detach() for name, p in network.named_parameters()}
        b = self.beginning.model
        state[TOKEN_EMBEDDING_KEY] = self.shortlist.merge(b.state[TOKEN_EMBEDDING_KEY], state[TOKEN_EMBEDDING_KEY])
        # The dropout of the training is not one of the model.
        save_model(
            folder,
            state,
            b.config,
            b.tokenizer,
            card=self._card(facts),
            head=task_settings(self.description, b.config.family),
        )
        self.description.save(folder)
        self.saved = self._last if facts["evaluated"] == facts["step"] else None

    def report(self, folder: Path) -> None:
        self._report(folder)


RESULT_FILE = "result.json"
MAX_CONFUSION_LABELS = 50  # of a confusion matrix; more are no picture
MOST_POINTS = 1000  # of gold and predicted numbers
WORST = 25  # mistakes on the page; errors.csv has all


class FinalEvaluation:
    """Of the model that a folder holds, on dev.

    Args:
        dev: what it reads of dev, with labels.
    """

    def __init__(self, folder: Path, description: TaskConfig, dev: Sequence[Features], survey: DatasetReport):
        self.folder, self.description, self.dev, self.survey = folder, description, dev, survey

    def report(self, folder: Path) -> None:
        """Draws report.html of what there is so far."""
        there = (folder / RESULT_FILE).exists()
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
                logits = compute_logits(self._network(device), [one.unit for one in self.dev], precision)
            found, wrong = self._judged(logits)
            result = {"weights_sha256": weights, **found}
            self._write(result, wrong)
        return result["figures"], self._told(result)

    def _kept(self, weights: str) -> dict[str, Any] | None:
        """What was found before of the very same weights."""
        path = self.folder / RESULT_FILE
        result = read_json(path) if path.exists() else {}
        return result if result.get("weights_sha256") == weights else None

    def _judged(self, logits: Sequence[Logits]) -> tuple[dict[str, Any], list[Mistake]]:
        """result.json but for the weights, and all that is wrong."""
        items = [one.item for one in self.dev]

        def judged(d: TaskConfig) -> tuple[list[Answer], dict[str, float]]:
            decoding = Decoder(d)
            answers = [decoding(one, rows) for one, rows in zip(self.dev, logits, strict=True)]
            return answers, compute_metrics(d, items, answers)

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
            "confusion": {"labels": names, "counts": counts.tolist()} if 0 < len(names) <= MAX_CONFUSION_LABELS else {},
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
        network = TaskModel(model.config, make_task_head(d), lstm_units=d.lstm_units)
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
        write_text(self.folder / RESULT_FILE, json.dumps(result, indent=1, ensure_ascii=False) + "\n")

    def _told(self, result: Mapping[str, Any]) -> str:
        d = self.description
        lines = [f"{self.folder}: {format_metrics(result['figures'])} on dev"]
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


def table(d: TaskConfig, dev: Sequence[Features], answers: Sequence[Answer]) -> dict[str, dict[str, float]]:
    """Figures of parts: of each label, of each type of entity, of each kind of question."""
    items = [one.item for one in dev]
    match d.task:
        case "classification":
            return classification.per_class([x.label for x in items], [answer["label"] for answer in answers], d.labels)
        case "multilabel":  # a label of a row is counted like an entity of a text
            gold = [[(0, 1, name) for name in item.label] for item in items]
            return classification.spans_per_type(
                gold, [[(0, 1, name) for name in answer["labels"]] for answer in answers]
            )
        case "tagging" | "spans":
            return classification.spans_per_type(
                [gold_spans(d, x) for x in items], [given_spans(d, a) for a in answers]
            )
        case "qa":
            return _questions(dev, answers)
        case "regression" | "choice":
            return {}


def _questions(dev: Sequence[Features], answers: Sequence[Answer]) -> dict[str, dict[str, float]]:
    """Questions with and without answer; contexts that are read in one piece and in several."""
    items = [one.item for one in dev]
    unit = squad.f1_unit_of([item.texts[1] for item in items])
    without = not all(item.label for item in items)
    version: squad.SquadVersion = "2.0" if without else "1.1"
    parts: dict[str, list[squad.SquadScore]] = {}
    for one, answer in zip(dev, answers, strict=True):
        golds = [text for _, text in one.item.label]
        found = squad.score_answer(golds, answer["answer"], version=version, unit=unit)
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


def write_errors(path: Path, d: TaskConfig, wrong: Sequence[Mistake]) -> None:
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
