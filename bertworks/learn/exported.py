"""The network of an ONNX file, asked with our batches and answering as ours do, computed by onnxruntime on the CPU. Not
here: how the file is written (`files.onnx_graph`)."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from bertworks.data.batch import Batch
from bertworks.errors import BertworksError
from bertworks.learn.tasks import MultipleChoice, Task

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
OUTPUTS = (["last_hidden_state"], ["logits"], ["start_logits", "end_logits"])


class Exported(nn.Module):
    """The network of an ONNX file; `logits` is that of `TaskModel`. As many threads compute as torch has: by default
    one for each core, or what OMP_NUM_THREADS says.

    Args:
        task: what it was fine-tuned for; None: it has no head of a task.

    Raises:
        BertworksError: no such file, a damaged one, or none of a BERT; onnxruntime is not installed.
    """

    def __init__(self, path: Path, task: Task | None = None):
        super().__init__()
        with needs_extra():
            import onnxruntime
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = torch.get_num_threads(), 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # as ours: see `cli.main`
        options.enable_mem_pattern = False  # it would remember every shape that was ever asked
        options.log_severity_level = 4
        try:
            self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime has a class for each kind of damage, and no common one
            raise BertworksError(
                f"onnxruntime cannot open it: {_line(error)}", where=str(path),
                fix="export the model again",
            ) from error  # fmt: skip
        self.where = str(path)
        self.inputs = [value.name for value in self.session.get_inputs()]
        self.outputs = [value.name for value in self.session.get_outputs()]
        self.many = len(self.session.get_inputs()[0].shape) == 3 if self.inputs else False
        if not {"input_ids"} <= set(self.inputs) <= set(INPUTS) or self.outputs not in OUTPUTS:
            raise BertworksError(
                f"this is no BERT: it turns {', '.join(self.inputs)} into {', '.join(self.outputs)}", where=str(path)
            )
        if task is not None:  # else nobody asks for it
            self.task = task
            _check_head(self, task)

    def logits(self, batch: Batch) -> Tensor:
        """float32 [M, outputs]: the scores, or the states, of everything that is asked."""
        layout = batch.layout
        types = torch.zeros_like(batch.input_ids) if batch.token_type_ids is None else batch.token_type_ids
        known = dict(zip(INPUTS, (layout.pad(batch.input_ids), layout.present.long(), layout.pad(types))))
        feed = {name: (known[name][None] if self.many else known[name]).numpy() for name in self.inputs}
        try:
            found = [torch.from_numpy(output) for output in self.session.run(self.outputs, feed)]
        except Exception as error:
            raise BertworksError(
                f"onnxruntime gives up: {_line(error)}", where=self.where,
                fix="its tokenizer or config.json is of another model",
            ) from error  # fmt: skip
        x = torch.stack(found, -1) if len(found) == 2 else found[0]
        if self.many:
            return x.view(-1, 1)
        return x if x.ndim == 2 else layout.unpad(x)[batch.masked_positions]


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _check_head(network: Exported, task: Task) -> None:
    shape, many = network.session.get_outputs()[0].shape, isinstance(task, MultipleChoice)
    if task.head == "span":
        fits = len(network.outputs) == 2
    else:
        fits = network.outputs == ["logits"] and (many or [len(shape), shape[-1]] == [3 - task.pooled, task.outputs])
    if not fits or network.many != many:
        raise BertworksError(
            f"it gives {' and '.join(network.outputs)} {shape}, which is not what the task asks for",
            where=network.where,
            fix="its task.json or config.json is of another model",
        )  # fmt: skip


@contextmanager
def needs_extra() -> Iterator[None]:
    """Around imports of what only exported models need."""
    try:
        yield
    except ImportError as error:
        raise BertworksError(
            f"exported models need what is not installed: {error}", fix='pip install "bertworks[export]"'
        ) from error
