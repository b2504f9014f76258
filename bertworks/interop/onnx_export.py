"""A network with a head -> one ONNX file, by tracing it over sequences padded to a rectangle."""

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bertworks.batching.batch import Batch, BatchTarget
from bertworks.errors import BertworksError, optional_import
from bertworks.inference.engine import INPUTS
from bertworks.models.encoder import Encoder
from bertworks.training.objectives import PretrainingModel
from bertworks.training.task_heads import MultipleChoice, SpanExtraction, TaskModel

# The outputs: hidden states of all tokens; logits of the vocabulary for each token; those of the head of a task.
ExportedNetwork = Encoder | PretrainingModel | TaskModel
OPSET = 20
_MAX_BYTES = (1 << 31) - (1 << 24)  # of parameters: one file holds less than 2 GB


def outputs_of(network: ExportedNetwork, batch: Batch) -> Tensor:
    """[M, outputs]: the logits of a task at the positions of its target; else the logits of the vocabulary, or the last
    hidden states, for all tokens."""
    if isinstance(network, TaskModel):
        return network.logits(batch)
    encoder = network if isinstance(network, Encoder) else network.encoder
    states: Tensor = encoder(batch.input_ids, batch.layout, batch.token_type_ids)[-1]
    head = None if isinstance(network, Encoder) else network.lm_head
    return states if head is None else head(states, encoder.embeddings.token.weight)


def write_onnx(path: Path, network: ExportedNetwork) -> None:
    """Traces the network and writes one file. `input_ids`, `attention_mask` (1: a token, 0: padding) and
    `token_type_ids` (where the model has any), int64 [batch, length], for choices [batch, choices, length], become
    float32 `last_hidden_state` [batch, length, hidden]; or `logits`, [batch, length, outputs], [batch, outputs] or
    [batch, choices]; or `start_logits` and `end_logits`, [batch, length].

    The exporter by tracing is used, and attention as two products and a softmax: what onnxruntime computes fastest.

    Args:
        path: written in place: pass a temporary one.

    Raises:
        BertworksError: it is more than one file can hold, or another direction than both; onnx is not installed.
    """
    with optional_import("an exported model", '"bertworks[export]"'):
        import onnx
    encoder = network if isinstance(network, Encoder) else network.encoder
    if encoder.config.direction != "bidirectional":
        raise BertworksError(f"models that read {encoder.config.direction.replace('_', ' ')} are not exported yet")
    if sum(p.numel() * p.element_size() for p in network.parameters()) > _MAX_BYTES:
        raise BertworksError("the model has more than 2 GB, the most that one ONNX file holds")
    task = network.task if isinstance(network, TaskModel) else None
    axes = ["batch", "choices", "length"] if isinstance(task, MultipleChoice) else ["batch", "length"]
    kept = axes[:-1] if task is not None and task.pooled else axes
    names = [name for name in INPUTS if name != "token_type_ids" or encoder.embeddings.token_type is not None]
    outputs = ["last_hidden_state"] if network is encoder else ["logits"]
    outputs = ["start_logits", "end_logits"] if isinstance(task, SpanExtraction) else outputs
    dynamic = {name: dict(enumerate(axes)) for name in names} | {name: dict(enumerate(kept)) for name in outputs}
    example = tuple(torch.ones((2, 3, 4)[-len(axes) :], dtype=torch.long) for _ in names)
    traced = _Traced(network).eval()
    # The warnings: sizes that are constant, and that there is a newer exporter.
    with torch.no_grad(), warnings.catch_warnings(action="ignore"):
        torch.onnx.export(
            traced, example, str(path), dynamo=False, opset_version=OPSET,
            input_names=names, output_names=outputs, dynamic_axes=dynamic,
        )  # fmt: skip
    _simplify(path)
    model = onnx.load(str(path))
    _split_gemm(model.graph)
    _shorten_names(model.graph)
    model.producer_name = "bertworks"
    if not isinstance(task, MultipleChoice | SpanExtraction):
        width = encoder.config.hidden_size if network is encoder else encoder.config.vocab_size
        model.graph.output[0].type.tensor_type.shape.dim[-1].dim_value = width if task is None else task.outputs
    # Without this mark onnxruntime's quantization advises to simplify the graph first, which changes nothing here.
    onnx.helper.set_model_props(model, {"onnx.quant.pre_process": "onnxruntime.quant"})
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString())


def _simplify(path: Path) -> None:
    """Constants are computed and superfluous nodes removed, in the place of the file, without operators that only
    onnxruntime knows."""
    with optional_import("an exported model", '"bertworks[export]"'):
        import onnxruntime
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath, options.log_severity_level = str(path), 4
    providers, kept = ["CPUExecutionProvider"], ["MatMulAddFusion"]  # it makes Gemm of matrices that are not transposed
    onnxruntime.InferenceSession(path.read_bytes(), options, providers=providers, disabled_optimizers=kept)


def _split_gemm(graph: Any) -> None:
    """Linear layers as MatMul and Add, which onnxruntime can quantize and computes as fast as Gemm. Their matrices are
    transposed here; before the product with the embedding matrix, which the embeddings read as well, a Transpose does
    it, and no copy is in the file."""
    import onnx

    make, arrays = onnx.helper.make_node, onnx.numpy_helper
    matrices = {tensor.name: tensor for tensor in graph.initializer}
    embeddings = {node.input[0] for node in graph.node if node.op_type == "Gather"}
    for node in [node for node in graph.node if node.op_type == "Gemm"]:
        x, matrix, *bias = node.input
        right = f"{node.name}/table" if matrix in embeddings else matrix
        product, place = f"{node.name}/product", list(graph.node).index(node)
        graph.node.remove(node)
        graph.node.insert(place, make("Add", [product, *bias], node.output))
        graph.node.insert(place, make("MatMul", [x, right], [product]))
        if matrix in embeddings:
            graph.node.insert(place, make("Transpose", [matrix], [right]))
        elif tensor := matrices.pop(matrix, None):  # once, if several layers share it
            tensor.CopyFrom(arrays.from_array(arrays.to_array(tensor).T.copy(), matrix))


def _shorten_names(graph: Any) -> None:
    """Numbers instead of the exporter's paths, which take more room than a small network."""
    kept = {value.name for value in (*graph.input, *graph.output)}
    names = {name: name for name in ("", *kept)}
    for tensor in graph.initializer:
        tensor.name = names.setdefault(tensor.name, f"w{len(names)}")
    del graph.value_info[:]
    for number, node in enumerate(graph.node):
        node.name = f"n{number}"
        for field in (node.input, node.output):
            field[:] = [names.setdefault(name, f"t{len(names)}") for name in field]


class _Traced(torch.nn.Module):
    """A network over a padded rectangle."""

    def __init__(self, network: ExportedNetwork):
        super().__init__()
        self.network: Any = network

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Any:
        sizes, encoder = input_ids.shape, getattr(self.network, "encoder", self.network)
        layout: Any = _PaddedLayout(attention_mask.view(-1, sizes[-1]), encoder.config.max_position_embeddings)
        ids, types = input_ids.flatten(), None if token_type_ids is None else token_type_ids.flatten()
        task, pooler = getattr(self.network, "task", None), getattr(self.network, "pooler", None)
        positions = torch.arange(len(layout.position_ids)) if pooler is None else pooler.tokens(layout)
        found = outputs_of(self.network, Batch(ids, layout, types, {"task": BatchTarget(positions, positions)}))
        if isinstance(task, SpanExtraction):
            return tuple(part.view(sizes) for part in found.unbind(-1))
        if isinstance(task, MultipleChoice):
            return found.view(sizes[:-1])
        return found if task is not None and task.pooled else found.view(*sizes, -1)


class _PaddedLayout:
    """The interface of `Layout` for a rectangle of which a mask says where the tokens are. All sizes are traced."""

    is_uniform, is_causal, rank, memory = False, False, None, None

    def __init__(self, mask: Tensor, num_positions: int):
        self.present = mask.bool()
        self.num_sequences, self.max_seqlen = mask.shape
        self.num_positions = num_positions  # all: what is computed of the tables is then a constant
        self.position_ids = torch.arange(self.max_seqlen).expand(self.num_sequences, -1).flatten()
        self.first = torch.arange(self.num_sequences) * self.max_seqlen
        self.last = self.first + mask.sum(1) - 1
        self.visible, self.groups = self.present[:, None, None], [self]

    def directed(self, direction: str) -> "_PaddedLayout":
        return self

    def mean(self, x: Tensor) -> Tensor:
        weights = self.present.to(x.dtype)
        return (self.pad(x) * weights[..., None]).sum(1) / weights.sum(1, keepdim=True)

    def pad(self, x: Tensor) -> Tensor:
        return x.view(self.num_sequences, self.max_seqlen, *x.shape[1:])

    def unpad(self, x: Tensor) -> Tensor:
        return x.flatten(0, 1)
