"""Computes the network of an ONNX file with onnxruntime on the CPU, with the interface of our networks."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from bertworks.batching.batch import Batch
from bertworks.errors import BertworksError, optional_import
from bertworks.io.protobuf import read_protobuf
from bertworks.models.layout import Layout
from bertworks.training.device import THREADS
from bertworks.training.task_heads import MultipleChoice, TaskHead

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
OUTPUTS = (["last_hidden_state"], ["logits"], ["start_logits", "end_logits"])


class OnnxModel(nn.Module):
    """The network of an ONNX file. `logits` is that of `TaskModel`; a call is that of an `Encoder` that returns only
    its last hidden states. It uses as many threads as torch: one per core, or OMP_NUM_THREADS.

    Args:
        task: of the head; None: no head of a task.
        gives: without a task: the name of the output for every token, and its width; None: any.

    Raises:
        BertworksError: no such file, a damaged file, another kind of network, other outputs; onnxruntime is not
            installed.
    """

    def __init__(self, path: Path, task: TaskHead | None = None, *, gives: tuple[str, int] | None = None):
        super().__init__()
        with optional_import("an exported model", '"bertworks[export]"'):
            import onnxruntime
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = THREADS.adapt(), 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # see `cli.main`
        options.enable_mem_pattern = False  # it would store a plan for every shape
        options.log_severity_level = 4
        _refuse_subgraphs(path)
        try:
            self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime has a class for each kind of damage, and no common base
            what = f"onnxruntime cannot open it: {_one_line(error)}"
            raise BertworksError(what, where=str(path), hint="export the model again") from error
        inputs, outputs = self.session.get_inputs(), self.session.get_outputs()
        self.where = str(path)
        self.inputs, self.outputs = [value.name for value in inputs], [value.name for value in outputs]
        self.has_choices = bool(inputs) and len(inputs[0].shape) == 3
        if not {"input_ids"} <= set(self.inputs) <= set(INPUTS) or self.outputs not in OUTPUTS:
            what = f"not a BERT: from {', '.join(self.inputs)} it computes {', '.join(self.outputs)}"
            raise BertworksError(what, where=str(path))
        shape = outputs[0].shape
        self.per_token, self.width = len(outputs) == 2 or len(shape) == 3, None
        if task is not None:
            self.task, self.width = task, task.outputs
            self._check_head(shape, task)
        if gives is not None:
            self.width = gives[1]
            if (self.outputs, shape[2:]) != ([gives[0]], [gives[1]]):
                raise self._other_outputs(shape, f"{gives[0]} of {gives[1]:,} for each token")

    def logits(self, batch: Batch) -> Tensor:
        """float32 [M, outputs]: the logits of all targets of the batch."""
        x = self._run(batch.input_ids, batch.layout, batch.token_type_ids)
        if self.has_choices:
            return x.view(-1, 1)
        return batch.layout.unpad(x)[batch.target.positions] if self.per_token else x

    def forward(
        self, input_ids: Tensor, layout: Layout, token_type_ids: Tensor | None = None, rows: Tensor | None = None
    ) -> list[Tensor]:
        """The last hidden states: of all tokens, [T, hidden], or only of `rows`."""
        x = layout.unpad(self._run(input_ids, layout, token_type_ids))
        return [x if rows is None else x.index_select(0, rows)]

    def _run(self, input_ids: Tensor, layout: Layout, token_type_ids: Tensor | None) -> Tensor:
        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        inputs = dict(zip(INPUTS, (layout.pad(input_ids), layout.present.long(), layout.pad(types))))
        feed = {name: (inputs[name][None] if self.has_choices else inputs[name]).numpy() for name in self.inputs}
        try:
            results = [torch.from_numpy(output) for output in self.session.run(self.outputs, feed)]
        except Exception as error:
            hint = "its tokenizer or config.json belongs to another model"
            raise BertworksError(f"onnxruntime fails: {_one_line(error)}", where=self.where, hint=hint) from error
        x = torch.stack(results, -1) if len(results) == 2 and results[0].shape == results[1].shape else results[0]
        size = (layout.num_sequences, layout.max_seqlen)[: 1 + self.per_token]
        if x.shape != (1, *size) if self.has_choices else x.shape[:-1] != size or self.width not in (None, x.shape[-1]):
            what = f"the output for {list(size)} has the shape {list(x.shape)}, which the file does not declare"
            raise BertworksError(what, where=self.where, hint="export the model again")
        return x

    def _check_head(self, shape: list[int], task: TaskHead) -> None:
        is_choice = isinstance(task, MultipleChoice)
        if task.head == "span":
            fits = len(self.outputs) == 2
        else:
            expected = [3 - task.pooled, task.outputs]
            fits = self.outputs == ["logits"] and (is_choice or [len(shape), shape[-1]] == expected)
        if not fits or self.has_choices != is_choice:
            raise self._other_outputs(shape, "what the task needs")

    def _other_outputs(self, shape: list[int], expected: str) -> BertworksError:
        return BertworksError(
            f"this exported model gives {' and '.join(self.outputs)} {shape}, which is not {expected}",
            where=self.where,
            hint="export the model with that output; for vectors: bertworks export MODEL --encoder -o FOLDER",
        )


def _refuse_subgraphs(path: Path) -> None:
    """Raises BertworksError for a graph within the graph: it may be the body of a loop that never ends."""
    try:
        model = read_protobuf(np.memmap(path, np.uint8, "r").data)
        nodes = [read_protobuf(node) for graph in model.get(7, []) for node in read_protobuf(graph).get(1, [])]
        attributes = (read_protobuf(attribute).keys() for node in nodes for attribute in node.get(5, []))
        has_subgraphs = 25 in model or any({6, 11} & names for names in attributes)
    except (OSError, TypeError, ValueError, IndexError):
        return  # no file, or another format: onnxruntime reports it
    if has_subgraphs:
        raise BertworksError("a graph with loops, branches or functions is not a BERT", where=str(path))


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
