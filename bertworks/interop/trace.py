"""Networks as ONNX graphs, by tracing.

- `write_onnx`: the file of an encoder, or of a network with a head
- `write_translator`: the files of a network with an encoder and a decoder
"""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bertworks.batching.batch import Batch, BatchTarget
from bertworks.errors import BertworksError, optional_import
from bertworks.inference.engine import INPUTS
from bertworks.inference.onnx_translation import DECODER_INPUTS, ENCODER_INPUTS, key_value_names
from bertworks.models.attention import Source
from bertworks.models.kernels import attend
from bertworks.models.transformer import Encoder
from bertworks.tasks.heads import TaskModel
from bertworks.tasks.outputs import MultipleChoice, SpanExtraction
from bertworks.training.objectives import PretrainingModel

# Their outputs are hidden states of all tokens; logits of the vocabulary for each token; and logits
# of the head of a task.
ExportedNetwork = Encoder | PretrainingModel | TaskModel
# The sizes of a tensor, and the names of those that are not fixed.
Axes = tuple[str | int, ...]
# What these are in the pass that is traced: all different.
_TRACED_SIZES = {"batch": 2, "past": 3, "length": 4, "source": 5, "choices": 6}
OPSET = 20
_MAX_BYTES = (1 << 31) - (1 << 24)  # bytes of parameters: one file holds less than 2 GB


def outputs_of(network: ExportedNetwork, batch: Batch) -> Tensor:
    """Return the outputs of a network: [M, outputs].

    They are the logits of a task at the positions of its target; of a network with a decoder the
    logits of the vocabulary at those of the translation; else the logits of the vocabulary, or the
    last hidden states, for all tokens.
    """
    if isinstance(network, TaskModel):
        return network.logits(batch)
    encoder = network if isinstance(network, Encoder) else network.encoder
    states: Tensor
    if isinstance(network, PretrainingModel) and network.decoder is not None:
        states = network.translation_states(batch)
    else:
        states = encoder(*batch.inputs)[-1]
    head = None if isinstance(network, Encoder) else network.lm_head
    return states if head is None else head(states, encoder.embeddings.token.weight)


def write_onnx(path: Path, network: ExportedNetwork) -> None:
    """Trace a network and write it as one file.

    `input_ids`, `attention_mask` (1: a token, 0: padding) and `token_type_ids` (where the model has
    any), int64 [batch, length], for choices [batch, choices, length], become float32
    `last_hidden_state` [batch, length, hidden]; or `logits`, [batch, length, outputs], [batch,
    outputs] or [batch, choices]; or `start_logits` and `end_logits`, [batch, length].

    The exporter by tracing is used, and attention as two products and a softmax: what onnxruntime
    computes fastest.

    Args:
        path: a temporary path: an interruption leaves a part of the file.
        network: in evaluation mode or not.

    Raises:
        BertworksError: it is more than one file can hold, or another direction than both; onnx is
            not installed.
    """
    encoder = network if isinstance(network, Encoder) else network.encoder
    direction = encoder.config.direction
    is_task = isinstance(network, TaskModel)
    if direction == "right_to_left" or (direction == "left_to_right" and not is_task):
        raise BertworksError(
            f"only fine-tuned models are exported of those that read {direction.replace('_', ' ')}",
            hint="fine-tune it first, or export a model that reads in both directions",
        )
    task = network.task if isinstance(network, TaskModel) else None
    axes: Axes = ("batch", "length")
    if isinstance(task, MultipleChoice):
        axes = ("batch", "choices", "length")
    output_axes = axes[:-1] if task is not None and task.pooled else axes
    has_types = encoder.embeddings.token_type is not None or encoder.config.relative_segments
    names = [name for name in INPUTS if name != "token_type_ids" or has_types]
    outputs = ["last_hidden_state"] if network is encoder else ["logits"]
    if isinstance(task, SpanExtraction):
        outputs = ["start_logits", "end_logits"]
    elif not isinstance(task, MultipleChoice):
        width = encoder.config.hidden_size if network is encoder else encoder.config.vocab_size
        output_axes = (*output_axes, width if task is None else task.outputs)
    inputs = dict.fromkeys(names, axes)
    _write_graph(path, _Traced(network), inputs, dict.fromkeys(outputs, output_axes))


def write_translator(paths: Sequence[Path], network: PretrainingModel) -> None:
    """Trace the encoder and the decoder of a network, and write three files.

    Names and shapes are those of the programs that read such files (Optimum); N is the number of a
    layer, and d the width of a head:

    - the encoder: `input_ids` and `attention_mask`, int64 [batch, source], become float32
      `last_hidden_state` [batch, source, hidden].
    - the decoder: `input_ids`, the translations so far, int64 [batch, length],
      `encoder_attention_mask` and `encoder_hidden_states` become float32 `logits` [batch, length,
      vocabulary] and the keys and values of these tokens and of the source, `present.N.decoder.key`
      and `present.N.decoder.value` [batch, heads, length, d], `present.N.encoder.key` and
      `present.N.encoder.value` [batch, heads, source, d].
    - the decoder for one more token of each translation, int64 [batch, 1]: instead of the states it
      reads these keys and values as `past_key_values.N.decoder.key` and so on, and the new
      `present.N.decoder` are longer by one.

    Args:
        paths: temporary paths of these files, in this order.
        network: with a Transformer as decoder, in evaluation mode.

    Raises:
        BertworksError: a part is more than one file can hold; onnx is not installed.
    """
    config = network.encoder.config
    names = key_value_names(config)
    heads = config.num_attention_heads
    head_size = config.hidden_size // heads
    states: Axes = ("batch", "source", config.hidden_size)
    source = dict.fromkeys(DECODER_INPUTS[1:], states[:2])

    def keys_and_values(length: str) -> dict[str, Axes]:
        """Return the axes of all keys and values; the length is that of the translations."""
        lengths = {name: length if ".decoder." in name else "source" for name in names}
        return {name: ("batch", heads, size, head_size) for name, size in lengths.items()}

    _write_graph(
        paths[0],
        _Traced(network.encoder),
        dict.fromkeys(ENCODER_INPUTS, states[:2]),
        {"last_hidden_state": states},
    )
    decoder = _TracedDecoder(network)
    present = {f"present.{name}": axes for name, axes in keys_and_values("length").items()}
    _write_graph(
        paths[1],
        decoder,
        {"input_ids": ("batch", "length"), **source, "encoder_hidden_states": states},
        {"logits": ("batch", "length", config.vocab_size), **present},
    )
    past = {f"past_key_values.{name}": axes for name, axes in keys_and_values("past").items()}
    _write_graph(
        paths[2],
        decoder,
        {"input_ids": ("batch", 1), **source, **past},
        {
            "logits": ("batch", 1, config.vocab_size),
            **{name: axes for name, axes in present.items() if ".decoder." in name},
        },
    )


def _write_graph(
    path: Path,
    module: torch.nn.Module,
    inputs: Mapping[str, Axes],
    outputs: Mapping[str, Axes],
) -> None:
    """Trace a module and write it as one file.

    Args:
        inputs, outputs: of the module, in order. Inputs are float32, but for tokens, their masks
            and their types.
    """
    with optional_import("an exported model", '"bertworks[export]"'):
        import onnx
    if sum(p.numel() * p.element_size() for p in module.parameters()) > _MAX_BYTES:
        raise BertworksError("the model has more than 2 GB, the most that one ONNX file holds")
    example = []
    for name, axes in inputs.items():
        size = [axis if isinstance(axis, int) else _TRACED_SIZES[axis] for axis in axes]
        is_whole = name in (*INPUTS, *DECODER_INPUTS)
        example.append(torch.ones(size, dtype=torch.long if is_whole else torch.float))
    dynamic_axes = {
        name: {place: axis for place, axis in enumerate(axes) if isinstance(axis, str)}
        for name, axes in [*inputs.items(), *outputs.items()]
    }
    # The warnings: sizes that are constant, and that there is a newer exporter.
    with torch.no_grad(), warnings.catch_warnings(action="ignore"):
        torch.onnx.export(
            module.eval(),
            tuple(example),
            str(path),
            dynamo=False,
            opset_version=OPSET,
            input_names=list(inputs),
            output_names=list(outputs),
            dynamic_axes=dynamic_axes,
        )
    _simplify(path)
    model = onnx.load(str(path))
    _split_gemm(model.graph)
    model.producer_name = "bertworks"
    for value in model.graph.output:
        for size, axis in zip(value.type.tensor_type.shape.dim, outputs[value.name], strict=False):
            if isinstance(axis, int):
                size.dim_value = axis
    # Without this mark onnxruntime's quantization advises to simplify the graph first, which
    # changes nothing here.
    onnx.helper.set_model_props(model, {"onnx.quant.pre_process": "onnxruntime.quant"})
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString())


def _simplify(path: Path) -> None:
    """Compute constants and remove superfluous nodes in a file, which is replaced.

    No operators are used that only onnxruntime knows.
    """
    with optional_import("an exported model", '"bertworks[export]"'):
        import onnxruntime
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(path)
    options.log_severity_level = 4
    onnxruntime.InferenceSession(
        path.read_bytes(),
        options,
        providers=["CPUExecutionProvider"],
        # This optimizer would make Gemm of matrices that are not transposed.
        disabled_optimizers=["MatMulAddFusion"],
    )


def _split_gemm(graph: Any) -> None:
    """Replace each Gemm (a linear layer) by MatMul and Add.

    onnxruntime can quantize these, and computes them as fast as Gemm. Their matrices are transposed
    here; before the product with the embedding matrix, which the embeddings read as well, a
    Transpose does it, and no copy is in the file.
    """
    import onnx

    make = onnx.helper.make_node
    arrays = onnx.numpy_helper
    matrices = {tensor.name: tensor for tensor in graph.initializer}
    embeddings = {node.input[0] for node in graph.node if node.op_type == "Gather"}
    for node in [node for node in graph.node if node.op_type == "Gemm"]:
        x, matrix, *bias = node.input
        right = f"{node.name}/table" if matrix in embeddings else matrix
        product = f"{node.name}/product"
        place = list(graph.node).index(node)
        graph.node.remove(node)
        graph.node.insert(place, make("Add", [product, *bias], node.output))
        graph.node.insert(place, make("MatMul", [x, right], [product]))
        if matrix in embeddings:
            graph.node.insert(place, make("Transpose", [matrix], [right]))
        elif matrix in matrices:  # once, if several layers share it
            tensor = matrices.pop(matrix)
            tensor.CopyFrom(arrays.from_array(arrays.to_array(tensor).T.copy(), matrix))


class _Traced(torch.nn.Module):
    """A network over a padded rectangle."""

    def __init__(self, network: ExportedNetwork):
        super().__init__()
        self.network: Any = network

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> Any:
        """Return the outputs for sequences: see `write_onnx`."""
        sizes = input_ids.shape
        encoder = getattr(self.network, "encoder", self.network)
        layout: Any = _PaddedLayout(
            attention_mask.view(-1, sizes[-1]), encoder.config.max_position_embeddings
        )
        ids = input_ids.flatten()
        types = None if token_type_ids is None else token_type_ids.flatten()
        task = getattr(self.network, "task", None)
        pooler = getattr(self.network, "pooler", None)
        positions = (
            torch.arange(len(layout.position_ids)) if pooler is None else pooler.tokens(layout)
        )
        targets = {"task": BatchTarget(positions, positions)}
        outputs = outputs_of(self.network, Batch(ids, layout, types, targets))
        if isinstance(task, SpanExtraction):
            return tuple(part.view(sizes) for part in outputs.unbind(-1))
        if isinstance(task, MultipleChoice):
            return outputs.view(sizes[:-1])
        return outputs if task is not None and task.pooled else outputs.view(*sizes, -1)


class _PaddedLayout:
    """The interface of `Layout` for a rectangle of which a mask says where the tokens are.

    All sizes are traced.

    mask: int64 [sequences, length], 1 for a token.
    before: tokens of each sequence that stand before those of the rectangle.
    """

    is_uniform = False
    is_causal = False
    rank = None
    memory = None

    def __init__(self, mask: Tensor, num_positions: int, before: int = 0):
        self.present = mask.bool()
        self.num_sequences, self.max_seqlen = mask.shape
        # All positions: the position embeddings are then a constant.
        self.num_positions = num_positions
        places = torch.arange(self.max_seqlen) + before
        self.position_ids = places.expand(self.num_sequences, -1).flatten()
        self.first = torch.arange(self.num_sequences) * self.max_seqlen
        # programs may pad in front, as classes of transformers want it of XLNet
        self.last = self.first + (mask * torch.arange(self.max_seqlen)).amax(1)
        self.visible = self.present[:, None, None]
        self.groups = [self]

    def directed(self, direction: str) -> "_PaddedLayout":
        """Return the layout in which tokens see those of a direction."""
        if direction == "left_to_right":
            place = torch.arange(self.max_seqlen)
            self.visible = self.visible & (place <= place[:, None])
        return self

    def mean(self, x: Tensor) -> Tensor:
        """Return the mean over the tokens of each sequence."""
        weights = self.present.to(x.dtype)
        return (self.pad(x) * weights[..., None]).sum(1) / weights.sum(1, keepdim=True)

    def pad(self, x: Tensor) -> Tensor:
        """Return rows of tokens as a rectangle [sequences, length, ...]."""
        return x.view(self.num_sequences, self.max_seqlen, *x.shape[1:])

    def unpad(self, x: Tensor) -> Tensor:
        """Return a rectangle as rows of tokens."""
        return x.flatten(0, 1)


class _TracedDecoder(torch.nn.Module):
    """One pass of the decoder of a network over rectangles: see `write_translator`."""

    def __init__(self, network: PretrainingModel):
        super().__init__()
        self.embeddings = network.encoder.embeddings
        self.decoder: Any = network.decoder
        self.lm_head: Any = network.lm_head

    def forward(
        self, input_ids: Tensor, encoder_attention_mask: Tensor, *read: Tensor
    ) -> tuple[Tensor, ...]:
        """Return the logits, and the keys and values that are new.

        read: the states of the encoder in the first pass; in a further one keys and values of each
            layer, of the tokens before and of the source.
        """
        before = 0 if len(read) == 1 else read[0].shape[2]
        positions = self.embeddings.max_positions
        source: Any = _PaddedLayout(encoder_attention_mask, positions)
        layout: Any = _PaddedLayout(torch.ones_like(input_ids), positions, before)
        past = [read[4 * number : 4 * number + 4] for number in range(self.decoder.num_layers)]
        if len(read) == 1:
            past = [()] * self.decoder.num_layers
        cache = _TracedCache([_TracedLayerCache(layout, source, layer) for layer in past])
        embeddings = self.embeddings(input_ids.flatten(), layout)
        states = self.decoder(embeddings, layout, Source(read[0].flatten(0, 1), source), cache)[-1]
        logits = self.lm_head(states, self.embeddings.token.weight)
        outputs = [tensor for layer in cache.layers for tensor in layer.outputs]
        return logits.view(*input_ids.shape, -1), *outputs


class _TracedCache:
    """The interface of `KeyValueCache` for keys and values that a graph reads and returns."""

    def __init__(self, layers: Sequence["_TracedLayerCache"]):
        self.layers = layers

    def extend(self, layout: object) -> None:
        """Nothing is counted: all sizes are traced."""


class _TracedLayerCache:
    """The interface of `LayerCache`.

    Args:
        layout, source_layout: of the rectangles of the new tokens, and of the source.
        past: keys and values of the tokens before, and of the source; (): in the first pass.
    """

    def __init__(self, layout: _PaddedLayout, source_layout: _PaddedLayout, past: Sequence[Tensor]):
        self.layout = layout
        self.source_layout = source_layout
        self.continues = bool(past)
        self.tokens = past[:2]
        self.source = past[2:] or None

    @property
    def outputs(self) -> Sequence[Tensor]:
        """The keys and values that are new in this pass."""
        assert self.source is not None
        return self.tokens if self.continues else [*self.tokens, *self.source]

    def start(self, kv: Tensor) -> None:
        """Keep the keys and values [T, 2, heads, d] of the tokens of the first pass."""
        self.tokens = _by_head(kv, self.layout)

    def start_source(self, kv: Tensor, layout: _PaddedLayout) -> None:
        """Keep the keys and values [S, 2, heads, d] of the source's tokens."""
        self.source = _by_head(kv, layout)

    def attend(self, qkv: Tensor) -> Tensor:
        """Return the attention of one new token of each sequence.

        [B, 3, heads, d] -> [B, heads, d].
        """
        query, *new = qkv[:, :, :, None].unbind(1)
        self.tokens = [torch.cat(pair, 2) for pair in zip(self.tokens, new, strict=True)]
        keys, values = self.tokens
        return attend(query, keys, values)[:, :, 0]

    def attend_source(self, query: Tensor) -> Tensor:
        """Return the attention of tokens to their source: [T, heads, d] -> [T, heads, d]."""
        assert self.source is not None
        keys, values = self.source
        queries = self.layout.pad(query).transpose(1, 2)
        context = attend(queries, keys, values, self.source_layout.visible)
        return self.layout.unpad(context.transpose(1, 2))


def _by_head(kv: Tensor, layout: _PaddedLayout) -> tuple[Tensor, ...]:
    """Return keys and values [T, 2, heads, d] as two tensors [sequences, heads, length, d]."""
    return layout.pad(kv).permute(2, 0, 3, 1, 4).unbind(0)
