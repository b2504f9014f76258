"""Write a model as an ONNX file for other programs.

The model is traced; the file is compared with the model and timed before it appears.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from timeit import Timer
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

import bertworks
from bertworks.batching.batch import (
    Batch,
    BatchTarget,
    Example,
    Target,
    collate,
    token_budget_batches,
)
from bertworks.checkpoints.hf_mapping import architecture_of, component_names
from bertworks.checkpoints.model_card import fill_template, with_tokenizer_note
from bertworks.checkpoints.model_folder import (
    EXPORTED,
    EXPORTED_BELOW,
    save_settings,
    weights_sha256,
)
from bertworks.checkpoints.sentence_transformers import module_files
from bertworks.checkpoints.storage import read_json
from bertworks.checkpoints.task_config import (
    exported_settings,
    output_layer,
    put_temperature_into_weights,
    save_task,
)
from bertworks.datasets.reader import RowReader
from bertworks.datasets.schema import items
from bertworks.errors import BertworksError, UsageError, expect, optional_import, require
from bertworks.evaluation.evaluate import evaluate_task
from bertworks.events import Event, JsonObject
from bertworks.inference.engine import BATCH_TOKENS, INPUTS, LazyModel, OnnxModel, open_model
from bertworks.inference.predictor import Predictor, copy_files, schema_for
from bertworks.io.atomic_write import (
    local_path,
    refuse_not_empty,
    remove_leftovers,
    replacing_folder,
    write_json,
    write_text,
)
from bertworks.io.inputs import IssueCounter
from bertworks.models.transformer import Encoder
from bertworks.tasks.heads import MultipleChoice, SpanExtraction, TaskModel
from bertworks.tasks.registry import TASKS
from bertworks.tasks.scores import format_metrics
from bertworks.tasks.settings import TaskConfig
from bertworks.training.objectives import PretrainingModel

# Their outputs are hidden states of all tokens; logits of the vocabulary for each token; and logits
# of the head of a task.
ExportedNetwork = Encoder | PretrainingModel | TaskModel
OPSET = 20
_MAX_BYTES = (1 << 31) - (1 << 24)  # bytes of parameters: one file holds less than 2 GB


def outputs_of(network: ExportedNetwork, batch: Batch) -> Tensor:
    """Return the outputs of a network: [M, outputs].

    They are the logits of a task at the positions of its target; else the logits of the vocabulary,
    or the last hidden states, for all tokens.
    """
    if isinstance(network, TaskModel):
        return network.logits(batch)
    encoder = network if isinstance(network, Encoder) else network.encoder
    states: Tensor = encoder(*batch.inputs)[-1]
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
    with optional_import("an exported model", '"bertworks[export]"'):
        import onnx
    encoder = network if isinstance(network, Encoder) else network.encoder
    direction = encoder.config.direction
    is_task = isinstance(network, TaskModel)
    if direction == "right_to_left" or (direction == "left_to_right" and not is_task):
        raise BertworksError(
            f"only fine-tuned models are exported of those that read {direction.replace('_', ' ')}",
            hint="fine-tune it first, or export a model that reads in both directions",
        )
    if sum(p.numel() * p.element_size() for p in network.parameters()) > _MAX_BYTES:
        raise BertworksError("the model has more than 2 GB, the most that one ONNX file holds")
    task = network.task if isinstance(network, TaskModel) else None
    axes = (
        ["batch", "choices", "length"] if isinstance(task, MultipleChoice) else ["batch", "length"]
    )
    output_axes = axes[:-1] if task is not None and task.pooled else axes
    names = [
        name
        for name in INPUTS
        if name != "token_type_ids" or encoder.embeddings.token_type is not None
    ]
    outputs = ["last_hidden_state"] if network is encoder else ["logits"]
    if isinstance(task, SpanExtraction):
        outputs = ["start_logits", "end_logits"]
    dynamic_axes = {name: dict(enumerate(axes)) for name in names}
    dynamic_axes |= {name: dict(enumerate(output_axes)) for name in outputs}
    example = tuple(torch.ones((2, 3, 4)[-len(axes) :], dtype=torch.long) for _ in names)
    traced = _Traced(network).eval()
    # The warnings: sizes that are constant, and that there is a newer exporter.
    with torch.no_grad(), warnings.catch_warnings(action="ignore"):
        torch.onnx.export(
            traced,
            example,
            str(path),
            dynamo=False,
            opset_version=OPSET,
            input_names=names,
            output_names=outputs,
            dynamic_axes=dynamic_axes,
        )
    _simplify(path)
    model = onnx.load(str(path))
    _split_gemm(model.graph)
    model.producer_name = "bertworks"
    if not isinstance(task, MultipleChoice | SpanExtraction):
        width = encoder.config.hidden_size if network is encoder else encoder.config.vocab_size
        last_axis = model.graph.output[0].type.tensor_type.shape.dim[-1]
        last_axis.dim_value = width if task is None else task.outputs
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
    """

    is_uniform = False
    is_causal = False
    rank = None
    memory = None

    def __init__(self, mask: Tensor, num_positions: int):
        self.present = mask.bool()
        self.num_sequences, self.max_seqlen = mask.shape
        # All positions: the position embeddings are then a constant.
        self.num_positions = num_positions
        self.position_ids = torch.arange(self.max_seqlen).expand(self.num_sequences, -1).flatten()
        self.first = torch.arange(self.num_sequences) * self.max_seqlen
        self.last = self.first + mask.sum(1) - 1
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


# The largest difference of logits; of numbers beyond 100, as a regression may give, a millionth.
LARGEST_DIFFERENCE = 1e-4
# Batches that are compared: sequences, tokens of the longest.
_SHAPES = ((1, 1), (1, 2), (1, 16), (2, 7), (3, 33), (8, 64), (5, 128), (2, 512))
# Batches that are timed without data.
_TIMED_SHAPES = ((1, 20), (16, 48), (4, 200))
_ROWS = 256  # rows of the data that are timed
_ROUNDS = 3  # rounds of the timing
_RECORD = "export.json"  # what was exported, and the hash of the file


class _Source(NamedTuple):
    """The model to export.

    predictor, task: of a fine-tuned model, whose temperature is in the weights of `network`.
    """

    name: str
    model: LazyModel
    network: ExportedNetwork
    predictor: Predictor | None = None
    task: TaskConfig | None = None

    def logits(self, batch: Batch) -> Tensor:
        """Return the outputs of the network for a batch."""
        return outputs_of(self.network, batch)


def export(
    model: str | Path,
    output: str | Path,
    *,
    format: Literal["onnx"] = "onnx",
    encoder: bool = False,
    int8: bool = False,
    data: str | Path | None = None,
    subfolder: bool = False,
) -> Iterator[Event]:
    """Export a model to a folder with one ONNX file, config and tokenizer.

    `Predictor` and `predict_file` read it. The file is compared with the model before the folder
    appears. A folder that holds this export already, as after an interruption at the very end,
    stays as it is.

    Args:
        model: fine-tuned, pre-trained (its masked LM is exported) or an encoder alone.
        encoder: export only the hidden states, without the head.
        int8: 8-bit weights and matrix products: smaller and faster; the differences are reported.
        data: labelled rows to evaluate and time both models on.
        subfolder: write onnx/model.onnx next to the tokenizer, where transformers.js, optimum and
            sentence-transformers look for it; else model.onnx.

    Raises:
        UsageError: the output exists and is not this export; data for a model without the head of a
            task.
        BertworksError: no such model, or an unsupported one; the file differs from the model; onnx
            or onnxruntime is not installed.
    """
    target = local_path(output)
    source = _open(model, encoder_only=encoder)
    if data is not None and source.predictor is None:
        raise UsageError(
            "this model has no head of a task to evaluate on data",
            where=data,
            hint="leave it out",
        )
    results: JsonObject = {"output": str(target), "format": format, "int8": int8}
    settings = {"config": str(source.model.config), "task": str(source.task), "data": str(data)}
    request = {**source.model.fingerprint, **settings, "encoder": encoder, "int8": int8}
    place = EXPORTED
    if subfolder:
        place = EXPORTED_BELOW
        request["place"] = place  # other exports have no such entry, also those of earlier versions
    record = read_json(target / _RECORD) if (target / _RECORD).is_file() else {}
    if record.get("request") == request and record.get("sha256") == weights_sha256(target):
        yield Event("note", f"{target} holds this export already, complete: nothing is written")
        remove_leftovers(target.parent, name=target.name)
    else:
        refuse_not_empty(target)
        with replacing_folder(target) as folder:
            path = folder / place
            path.parent.mkdir(exist_ok=True)
            is_encoder = isinstance(source.network, Encoder)
            config = source.model.config
            names = ["encoder."] if is_encoder else ["encoder.", "lm_head."]
            head: JsonObject = {"architectures": [architecture_of(names, config)]}
            if source.task:
                head = exported_settings(source.task, config)
                save_task(source.task, folder)
            max_length = source.task.max_length if source.task else None
            save_settings(folder, config, source.model.tokenizer, head, max_length=max_length)
            if is_encoder:  # the files that say how vectors are made
                copy_files(source.model.folder, folder, module_files(source.model.folder))
            write_onnx(path, source.network)
            exported = OnnxModel(path)
            results["largest_difference"] = _compare(source, exported, results["output"])
            longest = min(512, config.max_position_embeddings)
            yield Event(
                "note",
                f"onnxruntime agrees on {len(_SHAPES)} shapes, from 1 x 1 to 2 x {longest}: "
                f"differences up to {results['largest_difference']:.1e}",
            )
            batches = _batches(source, data)
            quantized = ""
            if int8:
                _quantize(path, source.network)
                exported = OnnxModel(path)
                expected = _outputs(source.logits, batches)
                differences = (expected - _outputs(exported.logits, batches)).abs()
                cost = {
                    "largest": float(differences.max()),
                    "mean": float(differences.mean()),
                    "deviation": float(expected.std()),
                }
                results["cost"] = cost
                quantized = f" With 8-bit weights they differ by up to {cost['largest']:.3f}."
                yield Event(
                    "note",
                    f"int8: outputs differ by up to {cost['largest']:.3f}, by {cost['mean']:.4f} "
                    f"on average, and have a standard deviation of {cost['deviation']:.3f}",
                    cost,
                )
            timers = [
                Timer(partial(_outputs, compute, batches))
                for compute in (source.logits, exported.logits)
            ]
            rounds = [[timer.timeit(1) for timer in timers] for _ in range(_ROUNDS)]
            torch_seconds, onnx_seconds = map(min, zip(*rounds))
            results |= {"seconds": onnx_seconds, "seconds_ours": torch_seconds}
            count = sum(batch.layout.num_sequences for batch in batches)
            yield Event(
                "note",
                f"speed: {count} sequences take {onnx_seconds:.3f} s, by torch "
                f"{torch_seconds:.3f} s: {torch_seconds / onnx_seconds:.2f} times as fast",
            )
            if data is not None:
                texts = []
                for name, evaluated in (("figures_ours", source.model.folder), ("figures", folder)):
                    evaluation = evaluate_task(evaluated, data, device="cpu", precision="fp32")
                    figures = results[name] = evaluation["figures"]
                    texts.append(format_metrics(figures, positive=evaluation["positive"]))
                before_export, after = texts
                yield Event("note", f"{data}: {after}; before the export {before_export}")
            card = fill_template(
                Path(__file__).with_name("exported.md"),
                name=source.name,
                file=place,
                kind=f"a BERT fine-tuned for {source.task.task}" if source.task else "a BERT",
                opset=OPSET,
                version=bertworks.__version__,
                shape=exported.session.get_inputs()[0].shape,
                outputs=" and ".join(
                    f"`{value.name}` {value.shape}" for value in exported.session.get_outputs()
                ),
                difference=results["largest_difference"],
                quantized=quantized,
            )
            write_text(folder / "README.md", with_tokenizer_note(card, source.model.tokenizer))
            write_json(folder / _RECORD, {"request": request, "sha256": weights_sha256(folder)})
    results["bytes"] = (target / place).stat().st_size
    yield Event("done", f"{target / place}: {results['bytes'] / 1e6:,.1f} MB", results)


def _open(model: str | Path, *, encoder_only: bool) -> _Source:
    """Return the network to export.

    Raises:
        UsageError: an exported model, or weights in a subfolder.
        BertworksError: a network that ONNX programs cannot run.
    """
    source = open_model(model, "cpu")
    expect(
        not source.exported,
        "this model is an exported one",
        where=source,
        hint="use the model that it was made from",
    )
    source.refuse_nested()
    components = component_names(source.state)
    require(
        "recurrent" not in components or encoder_only,
        "the head of this model is an LSTM: programs for exported models do not support it",
        source,
        "export a model that was fine-tuned with another recipe; or only the hidden states: "
        "--encoder",
    )
    name = Path(model).resolve().name
    if not encoder_only and components & {"classifier", "span"}:
        predictor = Predictor(source, precision="fp32")
        compares = predictor.description.vectors in ("pair", "cosine")
        require(
            not compares,
            "this model compares the vectors of two texts: programs for exported models read "
            "one at a time",
            source,
            "export only the hidden states: --encoder",
        )
        network = predictor.network
        task = predictor.description
        layer, task = put_temperature_into_weights(output_layer(network.state_dict()), task)
        network.load_state_dict(layer, strict=False, assign=True)
        return _Source(name, source, network, predictor, task)
    if not encoder_only and "lm_head" in components:
        pretrained = partial(PretrainingModel, objectives={"masked_lm": 1.0})
        return _Source(name, source, source.network(pretrained))
    return _Source(name, source, source.network(Encoder, "encoder."))


def _random_batch(
    source: _Source, generator: np.random.Generator, sequences: int, length: int
) -> Batch:
    """Return random sequences: one of the length, the others shorter.

    The targets are those of the head.
    """
    longest = min(length, source.model.config.max_position_embeddings)
    is_pooled = isinstance(source.network, TaskModel) and source.network.task.pooled
    examples = []
    for n in [longest, *generator.integers(max(1, longest // 4), longest + 1, sequences - 1)]:
        positions = np.zeros(1, np.int64) if is_pooled else np.arange(n)
        target = Target(positions, np.zeros(len(positions), np.int64))
        ids = generator.integers(0, source.model.config.vocab_size, n)
        types = np.sort(generator.integers(0, 2, n))
        examples.append(Example(ids, types, {"task": target}))
    return collate(examples)


def _batches(source: _Source, data: str | Path | None) -> list[Batch]:
    """Return the batches to time: rows of the data, or random sequences of usual lengths."""
    if data is None or source.predictor is None:
        generator = np.random.default_rng(0)
        return [_random_batch(source, generator, *shape) for shape in _TIMED_SHAPES]
    reader = RowReader(data)
    schema, _ = schema_for(reader, source.predictor.task, ())
    rows = islice(items(reader, schema, TASKS, left_out=IssueCounter()), _ROWS)
    units = [features.unit for features in source.predictor.reading(rows)]
    return list(token_budget_batches(units, BATCH_TOKENS))


def _compare(source: _Source, exported: OnnxModel, where: str) -> float:
    """Return the largest difference between the model and the exported one on eight shapes.

    Raises:
        BertworksError: it is too large.
    """
    generator = np.random.default_rng(0)
    largest = 0.0
    for shape in _SHAPES:
        batch = _random_batch(source, generator, *shape)
        expected = source.logits(batch)
        difference = float((expected - exported.logits(batch)).abs().max())
        what = (
            f"what was exported differs from the model by {difference:.1e} on {shape[0]} x "
            f"{shape[1]} tokens"
        )
        agrees = difference <= LARGEST_DIFFERENCE * max(1.0, float(expected.abs().max()) / 100)
        require(
            agrees,
            f"{what}; it is not kept",
            where,
            "report this, with the versions that `bertworks doctor` shows",
        )
        largest = max(largest, difference)
    return largest


def _quantize(path: Path, network: ExportedNetwork) -> None:
    """Replace the weights of the file by 8-bit weights, with one scale per column."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    # The LM head reads the embedding matrix too: a quantized Gather would be converted back at each
    # call.
    kinds = ["MatMul"] if isinstance(network, PretrainingModel) else ["MatMul", "Gather"]
    small = path.with_suffix(".int8")
    # One bit less: products of two of them overflow on processors without instructions for 8 bits
    # (AVX2).
    quantize_dynamic(
        path, small, kinds, per_channel=True, reduce_range=True, weight_type=QuantType.QInt8
    )
    small.replace(path)


def _outputs(compute: Callable[[Batch], Tensor], batches: Sequence[Batch]) -> Tensor:
    """Return the outputs of all batches in a row."""
    return torch.cat([compute(batch).flatten() for batch in batches])
