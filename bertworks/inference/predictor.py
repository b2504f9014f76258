"""A fine-tuned model and its predictions for texts in memory.

- `OutputFields`: which parts of a prediction are shown, and their columns in a file
- `Predictor`
"""

import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, cast

from bertworks.batching.batch import ExampleGroup
from bertworks.batching.features import Features, Featurizer
from bertworks.checkpoints.task_config import TaskConfig, read_task_config
from bertworks.datasets.schema import Item, TaskType
from bertworks.errors import UsageError, listed
from bertworks.inference.decoding import Answer, Logits, is_entity_tagset, make_decoder, make_featurizer, make_task_head
from bertworks.inference.engine import LazyModel, compute_logits, open_model, prepare_for_inference
from bertworks.inference.onnx_runtime import OnnxModel
from bertworks.models.encoder import Encoder
from bertworks.training.device import (
    InferencePrecision,
    PrecisionOption,
    best_precision,
    choose_device,
    disable_heap_trim,
)
from bertworks.training.finetune_recipe import MIN_LENGTH
from bertworks.training.task_heads import TaskModel

DIGITS = 6  # after the point, in a file
_PARTS: Mapping[TaskType, tuple[str, ...]] = {  # of an answer, that are given unasked
    "classification": ("label", "score"),
    "multilabel": ("labels",),
    "regression": ("value",),
    "tagging": ("tags",),
    "spans": ("entities",),
    "qa": ("answer", "start", "end", "score"),
    "choice": ("choice", "score"),
}


@dataclass(frozen=True)
class OutputFields:
    """Which parts of an answer are given, and how many labels or answers."""

    parts: tuple[str, ...]
    top_k: int
    probabilities: bool  # of all, whatever top_k says

    @classmethod
    def of_task(cls, d: TaskConfig, top_k: int, probabilities: bool, raw: bool = False) -> "OutputFields":
        """What a model for this task shows; raw: of texts whose words it does not know before."""
        parts = _PARTS[d.task]
        if raw:
            parts = (*(("entities",) if is_entity_tagset(d.labels) else ()), "words", *parts)
        if top_k > 1 or probabilities:
            if d.task not in ("classification", "multilabel", "choice", "qa"):
                raise UsageError(f"a model for {d.task} gives one answer, without others beside it")
            parts = (*parts, "n_best" if d.task == "qa" else "scores")
        return cls(parts, top_k, probabilities)

    def of(self, answer: Answer) -> Answer:
        given = {part: answer[part] for part in self.parts}
        if not self.probabilities and "n_best" in given:
            given["n_best"] = given["n_best"][: self.top_k]
        elif not self.probabilities and isinstance(given.get("scores"), dict):
            best = sorted(given["scores"].items(), key=lambda pair: -pair[1])
            given["scores"] = dict(best[: self.top_k])
        return given


def said_in(answer: Answer) -> Any:
    """What an answer says, without how sure it is."""
    told = next(answer[parts[0]] for parts in _PARTS.values() if parts[0] in answer)
    if isinstance(told, list) and told and isinstance(told[0], dict):
        return [{name: value for name, value in part.items() if name != "score"} for part in told]
    return told


class Columns:
    """What is written beside a row: names that the row does not have.

    first_choice: how the data that was learned from counts choices; a prediction counts as its labels do.
    """

    def __init__(self, shown: OutputFields, taken: Sequence[str], first_choice: int = 0):
        self.shown, self.first_choice = shown, first_choice
        self.names = [f"predicted_{part}" for part in shown.parts] + ["truncated_tokens"]
        self.refuse_taken(taken)

    def refuse_taken(self, taken: Collection[str], where: str | None = None) -> None:
        """Raises UsageError where what is written would replace what is there."""
        if clash := [name for name in self.names if name in taken]:
            what = f"the {'row' if where else 'file'} has a column {clash[0]!r} already"
            raise UsageError(what, where=where, hint="rename it, or drop it")

    @property
    def nothing(self) -> dict[str, Any]:
        """The columns of a row without text."""
        return dict.fromkeys(self.names[:-1]) | {"truncated_tokens": 0}

    def of(self, encoded: Features, answer: Answer) -> dict[str, Any]:
        """The columns of one row."""
        given = self.shown.of(answer)
        if "choice" in given:
            given["choice"] += self.first_choice
        columns = {f"predicted_{part}": _rounded(value) for part, value in given.items()}
        return columns | {"truncated_tokens": encoded.num_truncated}


def _rounded(value: Any) -> Any:
    """Numbers with as many digits as mean something, for people who open the file."""
    match value:
        case float():
            return round(value, DIGITS)
        case dict():
            return {name: _rounded(part) for name, part in value.items()}
        case list():
            return [_rounded(part) for part in value]
        case _:
            return value


AT_ONCE = 2048  # items that are read, sorted by length and answered together


class Predictor:
    """A fine-tuned model, loaded.

    Args:
        model: a folder of ours, also an exported one, or of transformers' own, or a hub id; it must have a head. Or
            one that is open, which stays where it is.
        threshold: multilabel: the probability from which a label is given, 0.5 unless the model says otherwise. qa: see
            `learn.answers.Decoding`.
        precision: "auto": bf16 where this hardware gains by it, whose probabilities differ in the third digit;
            elsewhere fp32. "int8": see `nn.frozen.in_int8`; probabilities differ in the second digit.

    Attributes:
        precision: what "auto" has become.

    Raises:
        BertworksError: no such model, or it was not fine-tuned.
        UsageError: int8 on hardware without it, or of a model that reads several layers (the recipe `features`).
    """

    def __init__(
        self,
        model: str | Path | LazyModel,
        *,
        device: str = "auto",
        precision: PrecisionOption = "auto",
        threshold: float | None = None,
        max_length: int | None = None,
    ):
        source = open_model(model, device)
        self.folder, self.tokenizer = source.within, source.tokenizer
        found = read_task_config(self.folder)
        changes: dict[str, Any] = {} if threshold is None else {"threshold": threshold}
        changes |= {} if max_length is None else {"max_length": max_length}
        _check_threshold(found.task, threshold)
        self.description = replace(found, **changes)
        self._source = source
        self._answering, self.precision = _answering(source, self.description, precision)
        length, longest = self.description.max_length, source.config.max_position_embeddings
        if not MIN_LENGTH <= length <= longest:
            raise UsageError(f"max_length is {length}: the model reads from {MIN_LENGTH} to {longest} tokens")
        disable_heap_trim()

    @property
    def reading(self) -> Featurizer:
        """How the model reads."""
        return make_featurizer(self.description, self.tokenizer)

    @cached_property
    def network(self) -> TaskModel | None:
        """Over the same weights, one that may be looked into, in single precision; None of an exported model."""
        return None if self._source.exported else _network(self._source, self.description)

    def logits(self, units: Sequence[ExampleGroup]) -> list[Logits]:
        """As `learn.inference.logits_of`."""
        return compute_logits(self._answering, units, self.precision)

    def answers(self, asked: Iterable[Item]) -> Iterator[tuple[Features, Answer]]:
        """To each item, in their order; some thousand are in memory at a time."""
        decoding, encoded = make_decoder(self.description), self.reading(asked)
        while group := list(islice(encoded, AT_ONCE)):
            logits = self.logits([one.unit for one in group])
            for one, rows in zip(group, logits, strict=True):
                yield one, decoding(one, rows)

    def predict(self, texts: Iterable[Any], *, top_k: int = 1, probabilities: bool = False) -> list[Answer]:
        """What the model says of each text.

        One label: `label` and `score`, its probability. Several: `labels`. A number: `value`. Tagging: `tags`, one for
        each word; of a string also its `words`, and `entities` where tags mark these. Spans: `entities`, each with
        `start`, `end`, `type`, `text` and `score`. A question: `answer`, its `start` and `end` in the context, and
        `score`; "" and -1 for no answer. Choices: `choice`, from 0, and `score`.

        Args:
            texts: strings; pairs, questions with their contexts, or a prompt with its choices as tuples; for tagging
                lists of words, or strings, which are parted into words as the tokenizer does it.
            top_k: with more than one, `scores` has so many labels and their probabilities; of a question, `n_best` has
                so many answers.
            probabilities: those of all labels, or of all answers that were weighed.

        Raises:
            UsageError: texts of another kind, or more than one answer of a model that gives only one.
        """
        d = self.description
        shown = {raw: OutputFields.of_task(d, top_k, probabilities, raw) for raw in (False, d.task == "tagging")}
        asked = [item_of(one, number, d) for number, one in enumerate(listed(texts, "predict([text])[0]"), 1)]
        return [shown[encoded.item.raw].of(answer) for encoded, answer in self.answers(asked)]

    def save(self, folder: str | Path) -> None:
        """Copies the model folder, which transformers opens as well.

        Raises:
            UsageError: there is something in the way.
        """
        target = Path(folder)
        if target.exists() and any(target.iterdir()):
            raise UsageError("the folder is not empty", where=str(target), hint="name another one")
        target.mkdir(parents=True, exist_ok=True)
        for path in sorted(self.folder.iterdir()):
            if path.is_file() and not path.name.startswith("."):
                shutil.copyfile(path, target / path.name)


def _network(source: LazyModel, d: TaskConfig) -> TaskModel:
    head = "span" if d.task == "qa" else "classifier"
    return source.network(lambda config: TaskModel(config, make_task_head(d), lstm_units=d.lstm_units), "encoder", head)


def _answering(
    source: LazyModel, d: TaskConfig, wanted: PrecisionOption
) -> tuple[TaskModel | OnnxModel, InferencePrecision]:
    """What answers soonest, and what "auto" has become."""
    if source.exported:
        return source.session(wanted, task=make_task_head(d)), "fp32"
    network = _network(source, d)
    if network.features is not None:  # they read the encoder themselves, in single precision
        if wanted == "int8":
            raise UsageError("a model of the recipe `features` has no int8", hint="leave --precision out")
        return network, best_precision(choose_device(source.device)) if wanted == "auto" else wanted
    encoder, precision = prepare_for_inference(network.encoder, wanted)
    network.encoder = cast(Encoder, encoder)
    return network, precision


_EXPECTED = {  # what a text is, by task
    "tagging": "a string, or a list of words", "qa": "(question, context)", "choice": "(prompt, choice, choice, ...)",
    "spans": "a string",
}  # fmt: skip


def item_of(one: Any, number: int, d: TaskConfig) -> Item:
    """One of the texts that `Predictor.predict` takes, checked."""
    texts = (one,) if isinstance(one, str) else tuple(one) if isinstance(one, list | tuple) else ()
    good = len(texts) > 0 and all(isinstance(text, str) for text in texts)
    match d.task:
        case "tagging":
            fits = True
        case "choice":
            fits = len(texts) == d.num_choices + 1 if d.num_choices else len(texts) > 2  # 0: nobody said how many
        case "qa" | "spans":
            fits = len(texts) == (2 if d.task == "qa" else 1)
        case _:
            fits = len(texts) <= 2 and (not d.text or len(texts) == len(d.text))
    if not good or not fits:
        expected = _EXPECTED.get(d.task, ("a string, or a pair of them", "a string", "a pair of strings")[len(d.text)])
        raise UsageError(f"text {number} is {str(one)[:60]!r}: expected {expected}")
    return Item(texts, None, f"text {number}", str(number), raw=d.task == "tagging" and isinstance(one, str))


def _check_threshold(task: TaskType, threshold: float | None) -> None:
    if threshold is None:
        return
    if task not in ("multilabel", "qa"):
        raise UsageError(f"a model for {task} has no threshold", hint="leave it out")
    if task == "multilabel" and not 0 <= threshold <= 1:
        raise UsageError(f"the threshold is {threshold}: expected a probability, from 0 to 1")
