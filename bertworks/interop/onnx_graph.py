"""A BERT as an ONNX file: what `nn` computes, written node by node from our parameters, over sequences padded to a
rectangle, with the inputs and outputs that other programs expect. Not here: who computes it (`learn.exported`), whether
it says the same (`doors.export`).
"""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from bertworks.errors import BertworksError
from bertworks.inference.onnx_runtime import INPUTS, needs_extra
from bertworks.models.config import EncoderConfig

# What is answered: the states of all tokens; the scores of all words for each token, of labels for each token, of being
# the first and the last token of an answer; those of labels for each sequence, of each of several sequences.
Head = Literal["encoder", "masked_lm", "tokens", "span", "sequence", "choice"]
OPSET, _IR_VERSION = 20, 9  # of 2023; the first with Gelu
_LARGEST = (1 << 31) - (1 << 24)  # bytes of parameters: one file holds less than 2 GB
_NEVER = -3.4e38  # a score that no token survives, and still a number where a row has no token at all


def write_onnx(path: Path, state: Mapping[str, Tensor], config: EncoderConfig, head: Head) -> None:
    """Write one file with all in it. `input_ids`, `attention_mask` (1: a token, 0: padding) and `token_type_ids`, int64
    [batch, length], of `choice` [batch, choices, length], become float32 `last_hidden_state` [batch, length, hidden];
    or `logits`, [batch, length, outputs], [batch, outputs] or [batch, choices]; or `start_logits` and `end_logits`,
    [batch, length].

    Args:
        path: written in place: pass a temporary one.
        state: under our names; what the head does not ask for is left out.

    Raises:
        BertworksError: it is more than one file can hold; onnx is not installed.
    """
    with needs_extra():
        import onnx
    graph = _Graph(state, config)
    outputs = graph.write(head)
    if sum(tensor.nbytes for tensor in graph.tensors.values()) > _LARGEST:
        raise BertworksError("the model has more than 2 GB, the most that one ONNX file holds")
    axes = ["batch", "choices", "length"] if head == "choice" else ["batch", "length"]
    values, of_type = onnx.helper.make_tensor_value_info, onnx.TensorProto
    content = onnx.helper.make_graph(
        [onnx.helper.make_node(kind, inputs, [output], **settings) for kind, inputs, output, settings in graph.nodes],
        "bert",
        [values(name, of_type.INT64, axes) for name in INPUTS],
        [values(name, of_type.FLOAT, sizes) for name, sizes in outputs.items()],
        [onnx.numpy_helper.from_array(tensor, name) for name, tensor in graph.tensors.items()],
    )
    opsets = [onnx.helper.make_opsetid("", OPSET)]
    model = onnx.helper.make_model(content, opset_imports=opsets, ir_version=_IR_VERSION, producer_name="bertworks")
    # Without this mark, onnxruntime's quantisation advises everybody to simplify the graph first: there is nothing to.
    onnx.helper.set_model_props(model, {"onnx.quant.pre_process": "onnxruntime.quant"})
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString())


class _Graph:
    """Nodes and constants in the making. Names of tensors are passed around; T is batch * length, padding counted."""

    def __init__(self, state: Mapping[str, Tensor], config: EncoderConfig):
        self.state, self.config = state, config
        self.nodes: list[tuple[str, list[str], str, dict[str, Any]]] = []
        self.tensors: dict[str, NDArray[Any]] = {}
        self.numbers = itertools.count()

    def __call__(self, kind: str, *inputs: str, output: str = "", **settings: Any) -> str:
        name = output or f"{kind}_{next(self.numbers)}"
        self.nodes.append((kind, list(inputs), name, settings))
        return name

    def constant(self, name: str, value: NDArray[Any]) -> str:
        self.tensors[name] = np.asarray(value, order="C")
        return name

    def sizes(self, *values: int) -> str:
        return self.constant("sizes_" + "_".join(map(str, values)), np.array(values, np.int64))

    def number(self, value: float, dtype: type = np.float32) -> str:
        return self.constant(f"number_{value}", np.array(value, dtype))

    def parameter(self, name: str) -> str:
        return self.constant(name, self.state[name].numpy())

    def linear(self, x: str, name: str) -> str:
        """[T, in] -> [T, out]."""
        return self.dense(x, name, self.state[f"{name}.weight"], self.state[f"{name}.bias"])

    def dense(self, x: str, name: str, weight: Tensor, bias: Tensor) -> str:
        """The same with a matrix [out, in] of the caller's."""
        product = self("MatMul", x, self.constant(f"{name}.weight", weight.numpy().T))
        return self("Add", product, self.constant(f"{name}.bias", bias.numpy()))

    def norm(self, x: str, name: str) -> str:
        weight, bias = self.parameter(f"{name}.weight"), self.parameter(f"{name}.bias")
        return self("LayerNormalization", x, weight, bias, axis=-1, epsilon=self.config.layer_norm_eps)

    def activation(self, x: str) -> str:
        match self.config.hidden_act:
            case "relu":
                return self("Relu", x)
            case "gelu":
                return self("Gelu", x)
            case "gelu_tanh":
                return self("Gelu", x, approximate="tanh")

    def write(self, head: Head) -> dict[str, list[str | int]]:
        """The whole graph; its outputs and their sizes."""
        ids, mask, types = INPUTS
        if head == "choice":
            rectangle = self("Concat", self.sizes(-1), self("Shape", ids, start=2), axis=0)
            ids, mask, types = (self("Reshape", name, rectangle) for name in INPUTS)
        shape = self("Shape", ids)  # batch, length
        x = self("Reshape", self.embeddings(ids, types), self.sizes(-1, self.config.hidden_size))
        padding = self("Sub", self.number(1.0), self("Cast", self("Unsqueeze", mask, self.sizes(1, 2)), to=1))
        absent = self("Mul", padding, self.number(_NEVER))  # [batch, 1, 1, length]: what is added to the scores
        last, pooled = self.config.num_hidden_layers - 1, head in ("sequence", "choice")
        for layer in range(last + 1):
            x = self.block(x, f"encoder.blocks.{layer}", shape, absent, first_only=pooled and layer == last)
        return self.answer(x, head, shape)

    def embeddings(self, ids: str, types: str) -> str:
        """-> [batch, length, hidden]."""
        words, positions, kinds = (
            self.parameter(f"encoder.embeddings.{table}.weight") for table in ("token", "position", "token_type")
        )
        place = self("Slice", positions, self.sizes(0), self("Shape", ids, start=1), self.sizes(0))
        if self.config.type_vocab_size == 1:  # as `nn.embeddings` has it: the second text is of the first's kind
            types = self("Mul", types, self.number(0, np.int64))
        x = self("Add", self("Add", self("Gather", words, ids), place), self("Gather", kinds, types))
        return self.norm(x, "encoder.embeddings.norm")

    def block(self, x: str, name: str, shape: str, absent: str, *, first_only: bool) -> str:
        """[T, hidden] -> [T, hidden], or [batch, hidden] for the first token of every sequence, which reads all."""
        asked, rows = x, shape
        if first_only:
            asked = self.first(x, shape)
            rows = self("Concat", self("Shape", asked, end=1), self.sizes(1), axis=0)
        attended = self("Add", self.attention(asked, x, f"{name}.attention", rows, shape, absent), asked)
        y = self.norm(attended, f"{name}.attention_norm")
        inner = self.activation(self.linear(y, f"{name}.feed_forward.up"))
        return self.norm(self("Add", self.linear(inner, f"{name}.feed_forward.down"), y), f"{name}.feed_forward_norm")

    def attention(self, asked: str, x: str, name: str, rows: str, shape: str, absent: str) -> str:
        """Of the tokens `asked`, which make a rectangle of the sizes `rows`, over all tokens `x`."""
        hidden, heads = self.config.hidden_size, self.config.num_attention_heads
        size, parts = hidden // heads, []
        for part, (label, source, sizes, order) in enumerate(
            [("query", asked, rows, (0, 2, 1, 3)), ("key", x, shape, (0, 2, 3, 1)), ("value", x, shape, (0, 2, 1, 3))]
        ):
            scale = size**-0.5 if label == "query" else 1.0
            weight, bias = (self.state[f"{name}.qkv.{end}"].chunk(3)[part] * scale for end in ("weight", "bias"))
            by_head = self("Concat", sizes, self.sizes(heads, size), axis=0)
            row = self("Reshape", self.dense(source, f"{name}.{label}", weight, bias), by_head)
            parts.append(self("Transpose", row, perm=order))
        query, key, value = parts
        scores = self("Softmax", self("Add", self("MatMul", query, key), absent), axis=-1)
        context = self("Transpose", self("MatMul", scores, value), perm=(0, 2, 1, 3))
        return self.linear(self("Reshape", context, self.sizes(-1, hidden)), f"{name}.output")

    def first(self, x: str, shape: str) -> str:
        """[T, hidden] -> [batch, hidden]: of every sequence its [CLS]."""
        rectangle = self("Concat", shape, self.sizes(self.config.hidden_size), axis=0)
        return self("Gather", self("Reshape", x, rectangle), self.number(0, np.int64), axis=1)

    def answer(self, x: str, head: Head, shape: str) -> dict[str, list[str | int]]:
        """The last layers; the outputs and their sizes."""
        if head == "span":
            scores = self.linear(x, "span")
            for column, name in enumerate(("start_logits", "end_logits")):
                one = self("Gather", scores, self.number(column, np.int64), axis=1)
                self("Reshape", one, shape, output=name)
            return {"start_logits": ["batch", "length"], "end_logits": ["batch", "length"]}
        if head in ("sequence", "choice"):
            x = self("Tanh", self.linear(x, "pooler.dense"))
        if head == "masked_lm":
            x = self.norm(self.activation(self.linear(x, "lm_head.dense")), "lm_head.norm")
            words = self("Transpose", self.parameter("encoder.embeddings.token.weight"), perm=(1, 0))
            x = self("Add", self("MatMul", x, words), self.parameter("lm_head.bias"))
            width = self.config.vocab_size
        elif head == "encoder":
            width = self.config.hidden_size
        else:
            x, width = self.linear(x, "classifier"), len(self.state["classifier.bias"])
        name = "last_hidden_state" if head == "encoder" else "logits"
        match head:
            case "sequence":
                self("Identity", x, output=name)
                return {name: ["batch", width]}
            case "choice":
                self("Reshape", x, self("Shape", INPUTS[0], end=2), output=name)
                return {name: ["batch", "choices"]}
        self("Reshape", x, self("Concat", shape, self.sizes(width), axis=0), output=name)
        return {name: ["batch", "length", width]}
