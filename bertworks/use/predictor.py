"""A fine-tuned model and its answers to texts in memory. Not here: whole files (`predict`)."""

import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, cast

from bertworks.data.labelled import Unit
from bertworks.data.questions import Encoded, Reading
from bertworks.errors import UsageError, listed
from bertworks.files.opened import Opened, opened
from bertworks.files.task import TaskDescription, read_task
from bertworks.learn.answers import Answer, Logits
from bertworks.learn.exported import Exported
from bertworks.learn.finetuning import LEAST_LENGTH
from bertworks.learn.inference import logits_of, prepared
from bertworks.learn.machine import Choice, InferencePrecision, best_precision, choose_device, keep_memory
from bertworks.learn.tasks import TaskModel
from bertworks.nn.encoder import Encoder
from bertworks.rows.schema import Item, Task
from bertworks.runs.finetuning import decoding_of, reading_of, task_of
from bertworks.use.shown import Shown

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
        model: str | Path | Opened,
        *,
        device: str = "auto",
        precision: Choice = "auto",
        threshold: float | None = None,
        max_length: int | None = None,
    ):
        source = opened(model, device)
        self.folder, self.tokenizer = source.within, source.tokenizer
        found = read_task(self.folder)
        changes: dict[str, Any] = {} if threshold is None else {"threshold": threshold}
        changes |= {} if max_length is None else {"max_length": max_length}
        _check_threshold(found.task, threshold)
        self.description = replace(found, **changes)
        self._source = source
        self._answering, self.precision = _answering(source, self.description, precision)
        length, longest = self.description.max_length, source.config.max_position_embeddings
        if not LEAST_LENGTH <= length <= longest:
            raise UsageError(f"max_length is {length}: the model reads from {LEAST_LENGTH} to {longest} tokens")
        keep_memory()

    @property
    def reading(self) -> Reading:
        """How the model reads."""
        return reading_of(self.description, self.tokenizer)

    @cached_property
    def network(self) -> TaskModel | None:
        """Over the same weights, one that may be looked into, in single precision; None of an exported model."""
        return None if self._source.exported else _network(self._source, self.description)

    def logits(self, units: Sequence[Unit]) -> list[Logits]:
        """As `learn.inference.logits_of`."""
        return logits_of(self._answering, units, self.precision)

    def answers(self, asked: Iterable[Item]) -> Iterator[tuple[Encoded, Answer]]:
        """To each item, in their order; some thousand are in memory at a time."""
        decoding, encoded = decoding_of(self.description), self.reading(asked)
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
        shown = {raw: Shown.of_task(d, top_k, probabilities, raw) for raw in (False, d.task == "tagging")}
        asked = [item_of(one, number, d) for number, one in enumerate(listed(texts, "predict([text])[0]"), 1)]
        return [shown[encoded.item.raw].of(answer) for encoded, answer in self.answers(asked)]

    def save(self, folder: str | Path) -> None:
        """Copies the model folder, which transformers opens as well.

        Raises:
            UsageError: there is something in the way.
        """
        target = Path(folder)
        if target.exists() and any(target.iterdir()):
            raise UsageError("the folder is not empty", where=str(target), fix="name another one")
        target.mkdir(parents=True, exist_ok=True)
        for path in sorted(self.folder.iterdir()):
            if path.is_file() and not path.name.startswith("."):
                shutil.copyfile(path, target / path.name)


def _network(source: Opened, d: TaskDescription) -> TaskModel:
    head = "span" if d.task == "qa" else "classifier"
    return source.network(
        lambda config: TaskModel(config, task_of(d), recurrent_units=d.recurrent_units), "encoder", head
    )


def _answering(source: Opened, d: TaskDescription, wanted: Choice) -> tuple[TaskModel | Exported, InferencePrecision]:
    """What answers soonest, and what "auto" has become."""
    if source.exported:
        return source.session("fp32" if wanted == "auto" else wanted, task=task_of(d)), "fp32"
    network = _network(source, d)
    if network.features is not None:  # they read the encoder themselves, in single precision
        if wanted == "int8":
            raise UsageError("a model of the recipe `features` has no int8", fix="leave --precision out")
        return network, best_precision(choose_device(source.device)) if wanted == "auto" else wanted
    encoder, precision = prepared(network.encoder, wanted)
    network.encoder = cast(Encoder, encoder)
    return network, precision


_EXPECTED = {  # what a text is, by task
    "tagging": "a string, or a list of words", "qa": "(question, context)", "choice": "(prompt, choice, choice, ...)",
    "spans": "a string",
}  # fmt: skip


def item_of(one: Any, number: int, d: TaskDescription) -> Item:
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


def _check_threshold(task: Task, threshold: float | None) -> None:
    if threshold is None:
        return
    if task not in ("multilabel", "qa"):
        raise UsageError(f"a model for {task} has no threshold", fix="leave it out")
    if task == "multilabel" and not 0 <= threshold <= 1:
        raise UsageError(f"the threshold is {threshold}: expected a probability, from 0 to 1")
