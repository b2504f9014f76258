"""The network of an ONNX file behind the interface of ours, computed by onnxruntime on the CPU."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from bertworks.batching.batch import Batch
from bertworks.errors import BertworksError, UsageError
from bertworks.models.layout import Layout
from bertworks.training.device import THREADS, InferencePrecision
from bertworks.training.task_heads import MultipleChoice, TaskHead

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
OUTPUTS = (["last_hidden_state"], ["logits"], ["start_logits", "end_logits"])


class OnnxModel(nn.Module):
    """The network of an ONNX file; `logits` is that of `TaskModel`, and called it is an `Encoder` that keeps its last
    states alone. As many threads compute as torch has: by default one for each core, or what OMP_NUM_THREADS says.

    Args:
        task: what it was fine-tuned for; None: it has no head of a task.
        gives: without a task, the output that is wanted of every token, and how wide it is; None: any.

    Raises:
        BertworksError: no such file, a damaged one, none of a BERT, or one that gives something else; onnxruntime is
            not installed.
    """

    def __init__(self, path: Path, task: TaskHead | None = None, *, gives: tuple[str, int] | None = None):
        super().__init__()
        with needs_extra():
            import onnxruntime
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = THREADS.adapt(), 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # as ours: see `cli.main`
        options.enable_mem_pattern = False  # it would remember every shape that was ever asked
        options.log_severity_level = 4
        _refuse_programs(path)
        try:
            self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime has a class for each kind of damage, and no common one
            raise BertworksError(
                f"onnxruntime cannot open it: {_line(error)}", where=str(path),
                hint="export the model again",
            ) from error  # fmt: skip
        self.where = str(path)
        self.inputs = [value.name for value in self.session.get_inputs()]
        self.outputs = [value.name for value in self.session.get_outputs()]
        self.many = len(self.session.get_inputs()[0].shape) == 3 if self.inputs else False
        if not {"input_ids"} <= set(self.inputs) <= set(INPUTS) or self.outputs not in OUTPUTS:
            raise BertworksError(
                f"this is no BERT: it turns {', '.join(self.inputs)} into {', '.join(self.outputs)}", where=str(path)
            )
        shape = self.session.get_outputs()[0].shape
        self.of_tokens, self.width = len(self.outputs) == 2 or len(shape) == 3, None
        if task is not None:  # else nobody asks for it
            self.task, self.width = task, task.outputs
            _check_head(self, task)
        if gives is not None:
            self.width = gives[1]
            if (self.outputs, shape[2:]) != ([gives[0]], [gives[1]]):
                raise _other(self, f"{gives[0]} of {gives[1]:,} for each token")

    def logits(self, batch: Batch) -> Tensor:
        """float32 [M, outputs]: the scores, or the states, of everything that is asked."""
        x = self._run(batch.input_ids, batch.layout, batch.token_type_ids)
        if self.many:
            return x.view(-1, 1)
        return batch.layout.unpad(x)[batch.target.positions] if self.of_tokens else x

    def forward(
        self, input_ids: Tensor, layout: Layout, token_type_ids: Tensor | None = None, rows: Tensor | None = None
    ) -> list[Tensor]:
        """The last states: of all tokens, [T, hidden], or of `rows` only."""
        x = layout.unpad(self._run(input_ids, layout, token_type_ids))
        return [x if rows is None else x.index_select(0, rows)]

    def _run(self, input_ids: Tensor, layout: Layout, token_type_ids: Tensor | None) -> Tensor:
        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        known = dict(zip(INPUTS, (layout.pad(input_ids), layout.present.long(), layout.pad(types))))
        feed = {name: (known[name][None] if self.many else known[name]).numpy() for name in self.inputs}
        try:
            found = [torch.from_numpy(output) for output in self.session.run(self.outputs, feed)]
        except Exception as error:
            raise BertworksError(
                f"onnxruntime gives up: {_line(error)}", where=self.where,
                hint="its tokenizer or config.json is of another model",
            ) from error  # fmt: skip
        x = torch.stack(found, -1) if len(found) == 2 and found[0].shape == found[1].shape else found[0]
        size = (layout.num_sequences, layout.max_seqlen)[: 1 + self.of_tokens]
        if x.shape != (1, *size) if self.many else x.shape[:-1] != size or self.width not in (None, x.shape[-1]):
            raise BertworksError(
                f"it gave {list(x.shape)} for {list(size)}, and had said something else", where=self.where,
                hint="export the model again",
            )  # fmt: skip
        return x


def _refuse_programs(path: Path) -> None:
    """Raises BertworksError for a graph within the graph: the body of a loop, which may never end."""
    try:
        mapped = np.memmap(path, np.uint8, "r").data  # whose slices are no copies
        nodes = (node for graph in _parts(mapped, 7) for node in _parts(graph, 1))
        bodies = (body for node in nodes for attribute in _parts(node, 5) for body in _parts(attribute, 6, 11))
        found = any(True for _ in itertools.chain(_parts(mapped, 25), bodies))
    except (OSError, ValueError, IndexError):
        return  # no such file, or none of this kind: onnxruntime will say so
    if found:
        raise BertworksError("a graph with loops, branches or functions is no BERT", where=str(path))


def _parts(message: memoryview, *wanted: int) -> Iterator[memoryview]:
    """The parts of a message of protobuf that have one of these numbers. IndexError, ValueError: it is none."""
    place = 0

    def number() -> int:
        nonlocal place
        value = shift = 0
        while (byte := message[place]) >= 128:
            value, shift, place = value | (byte & 127) << shift, shift + 7, place + 1
        place += 1
        return value | byte << shift

    while place < len(message):
        key = number()
        match key & 7:
            case 0:
                number()
            case 2:
                length = number()
                if key >> 3 in wanted:
                    yield message[place : place + length]
                place += length
            case 1 | 5 as kind:
                place += 8 if kind == 1 else 4
            case _:
                raise ValueError("no message of protobuf")


def _other(network: OnnxModel, wanted: str) -> BertworksError:
    shape = network.session.get_outputs()[0].shape
    return BertworksError(
        f"this exported model gives {' and '.join(network.outputs)} {shape}, which is not {wanted}",
        where=network.where,
        hint="export the model that gives it; of an encoder with a head: bertworks export MODEL --encoder -o FOLDER",
    )


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _check_head(network: OnnxModel, task: TaskHead) -> None:
    shape, many = network.session.get_outputs()[0].shape, isinstance(task, MultipleChoice)
    if task.head == "span":
        fits = len(network.outputs) == 2
    else:
        fits = network.outputs == ["logits"] and (many or [len(shape), shape[-1]] == [3 - task.pooled, task.outputs])
    if not fits or network.many != many:
        raise _other(network, "what the task asks for")


def refuse_elsewhere(device: str, precision: InferencePrecision, where: Path) -> None:
    """Raises UsageError where an exported model is asked for what it cannot do."""
    if device == "cuda" or precision != "fp32":
        raise UsageError("an exported model is computed on the CPU, in the precision of its file", where=str(where))


@contextmanager
def needs_extra() -> Iterator[None]:
    """Around imports of what only exported models need."""
    try:
        yield
    except ImportError as error:
        raise BertworksError(
            f"exported models need what is not installed: {error}", hint='pip install "bertworks[export]"'
        ) from error
