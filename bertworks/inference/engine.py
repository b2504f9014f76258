"""Opens model folders for inference, and computes batches of examples.

- `LazyModel`: the networks of a model folder, over one copy of its weights
- `Reopened`: the base class of objects that are pickled as a call that opens them again;
  `ModelUser`: of those over a `LazyModel`, which pickles hold by path, settings and hash
- `OnnxModel`: the network of an ONNX file, computed by onnxruntime, with the interface of our
  networks; `open_session`: any graph of such a file
- `prepared_encoder`: an encoder in a precision
- `compute_logits`, `compute_vectors`: results in the order of the examples
"""

import copy
import hashlib
import json
import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertworks.batching.batch import Batch, collate, token_budget_indices
from bertworks.batching.examples import ExampleGroup, Lazy, longest_sequence
from bertworks.checkpoints import model_files, model_folder
from bertworks.checkpoints.hf_config import FAMILIES, component_names
from bertworks.checkpoints.resolve import (
    MODEL_DOCUMENTS,
    MODEL_FILES,
    is_model_name,
    resolve_model,
    split_files,
)
from bertworks.checkpoints.storage import RECORD_FILE, file_sha256
from bertworks.errors import (
    BertworksError,
    UsageError,
    expect,
    explain_os_errors,
    one_line,
    optional_import,
    quoted,
    require,
)
from bertworks.events import JsonObject
from bertworks.io.atomic_write import LFS_POINTER, refuse_lfs_pointer, url_of, utf8_path
from bertworks.io.inputs import as_path
from bertworks.io.protobuf import read_protobuf
from bertworks.models import transformer
from bertworks.models.config import EncoderConfig
from bertworks.models.heads import pool
from bertworks.models.layers import meta_device_init
from bertworks.models.layout import Layout
from bertworks.models.settings import Pooling
from bertworks.models.transformer import InferenceEncoder, Stack
from bertworks.tasks.heads import TaskModel, count_predictions, tally
from bertworks.tasks.outputs import MultipleChoice, TaskHead
from bertworks.tasks.task import Logits
from bertworks.training.device import (
    THREADS,
    InferencePrecision,
    PrecisionOption,
    best_precision,
    choose_device,
    total_memory,
)
from bertworks.training.loop import LossStats

# objects, and models, that a process keeps open: each task that it gets brings a pickle of the same
NUM_KEPT_OPEN = 2
_OPENING = RLock()


class Opening(NamedTuple):
    """A call that opens an object: a function of a module, and its few short arguments."""

    function: Callable[..., "Reopened"]
    arguments: tuple[Hashable, ...]


class Reopened:
    """An object that is pickled, in a few hundred bytes, as the call that opens it again.

    The object in another process is opened when it is first used. An error, such as a folder that
    has changed, is then raised where the object is used: `multiprocessing.Pool` would wait for ever
    for a process that cannot read its task. Copies by the module `copy` do not open anything.

    A subclass has a method `_opening_call`, and calls `_is_open` at the end of its constructor.
    Attributes that are assigned later, such as those of a subclass of it, are part of the pickle.
    """

    def _opening_call(self) -> Opening:
        """Return the call that opens an equal object."""
        raise NotImplementedError

    def _is_open(self) -> None:
        self._opened_attributes = frozenset(vars(self))

    def __getstate__(self) -> dict[str, Any]:
        attributes = vars(self)
        if "_closed" in attributes:
            return dict(attributes)
        restored = {*self._opened_attributes, "_opened_attributes"}
        state: dict[str, Any] = {"_closed": self._opening_call()}
        for name, value in attributes.items():
            is_cached_property = hasattr(type(self), name)
            if name not in restored and not is_cached_property:
                state[name] = value
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    if not TYPE_CHECKING:  # mypy would accept any name

        def __getattr__(self, name: str) -> Any:
            """Open the object if it is not open yet.

            Python looks here for attributes that it lacks.
            """
            attributes = vars(self)
            with _OPENING:
                is_closed = "_closed" in attributes
                # special methods are methods of the class
                if is_closed and not name.startswith("__"):
                    opened = _opened_object(attributes["_closed"])
                    attributes.update(vars(opened) | attributes)
                    del attributes["_closed"]
                    return getattr(self, name)
            if name in attributes:  # another thread has opened the object
                return attributes[name]
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self
            )

    def __copy__(self) -> Self:
        other = object.__new__(type(self))
        vars(other).update(vars(self))
        return other

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        other = object.__new__(type(self))
        memo[id(self)] = other
        vars(other).update(copy.deepcopy(vars(self), memo))
        return other


@lru_cache(maxsize=NUM_KEPT_OPEN)
def _opened_object(opening: Opening) -> Reopened:
    return opening.function(*opening.arguments)


INPUTS = ("input_ids", "attention_mask", "token_type_ids")
OUTPUTS = (["last_hidden_state"], ["logits"], ["start_logits", "end_logits"])


class OnnxModel(nn.Module):
    """The network of an ONNX file.

    `logits` is that of `TaskModel`; a call is that of an `Encoder` that returns only its last
    hidden states. It uses as many threads as torch: one per core, or OMP_NUM_THREADS.

    Args:
        task: of the head; None: no head of a task.
        gives: without a task: the name of the output for every token, and its width.

    Raises:
        BertworksError: no such file, a damaged file, another kind of network, other outputs;
            onnxruntime is not installed.
    """

    def __init__(
        self, path: Path, task: TaskHead | None = None, *, gives: tuple[str, int] | None = None
    ):
        super().__init__()
        self.session = open_session(path)
        inputs = self.session.get_inputs()
        outputs = self.session.get_outputs()
        self.inputs = [value.name for value in inputs]
        self.outputs = [value.name for value in outputs]
        if not {"input_ids"} <= set(self.inputs) <= set(INPUTS) or self.outputs not in OUTPUTS:
            raise BertworksError(
                f"not a BERT: from {', '.join(self.inputs)} it computes {', '.join(self.outputs)}",
                where=path,
            )
        fixed = [size for value in inputs for size in value.shape if isinstance(size, int)]
        require(
            not fixed,
            "the ONNX file takes texts of one fixed size only: "
            f"{' x '.join(map(str, inputs[0].shape))} tokens",
            path,
            "export it again with dynamic axes for the batch and the length",
        )
        self.where = str(path)
        self.shape = outputs[0].shape
        has_choices = len(inputs[0].shape) == 3
        is_span = len(outputs) == 2
        self.each = (
            "choice" if has_choices else "token" if is_span or len(self.shape) == 3 else "text"
        )
        self.stacked = has_choices or is_span  # the file declares no axis for the number of outputs
        self.width = len(outputs) if self.stacked else [0, *self.shape][-1]
        if task is not None:
            self.task = task
            names = ["start_logits", "end_logits"] if task.head == "span" else ["logits"]
            each = (
                "choice" if isinstance(task, MultipleChoice) else "text" if task.pooled else "token"
            )
            self._check(names, each, task.outputs)
        elif gives is not None:
            self._check([gives[0]], "token", gives[1])

    def logits(self, batch: Batch) -> Tensor:
        """float32 [M, outputs]: the logits of all targets of the batch.

        The mean of the logits of windows is that of the mean of their vectors, because the output
        layer is linear.
        """
        x = self._run(*batch.inputs)
        return (
            batch.layout.unpad(x)[batch.target.positions]
            if self.each == "token"
            else batch.mean_of_windows(x.view(-1, self.width))
        )

    scores = logits  # the name in a `PretrainingModel`

    def forward(
        self,
        input_ids: Tensor,
        layout: Layout,
        token_type_ids: Tensor | None = None,
        rows: Tensor | None = None,
    ) -> list[Tensor]:
        """Return the last hidden states: of all tokens, [T, hidden], or only of `rows`."""
        x = layout.unpad(self._run(input_ids, layout, token_type_ids))
        return [x if rows is None else x.index_select(0, rows)]

    def _run(self, input_ids: Tensor, layout: Layout, token_type_ids: Tensor | None) -> Tensor:
        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        inputs = dict(
            zip(INPUTS, (layout.pad(input_ids), layout.present.long(), layout.pad(types)))
        )
        n = layout.num_sequences
        length = layout.max_seqlen
        size = {"text": (n,), "token": (n, length), "choice": (1, n)}[self.each]
        feed = {
            name: (inputs[name][None] if self.each == "choice" else inputs[name]).numpy()
            for name in self.inputs
        }
        results = list(run_session(self.session, feed, self.where).values())
        x = torch.stack(results, -1) if self.stacked else results[0]
        require(
            x.shape == (*size, self.width),
            f"the output for {list(size)} has the shape {list(x.shape)}, which the file does "
            "not declare",
            self.where,
            "export the model again",
        )
        return x

    def _check(self, names: list[str], each: str, width: int) -> None:
        """Refuse a file that declares other outputs."""
        if (self.outputs, self.each, self.width) != (names, each, width):
            expected = f"{names[0]} of {width:,}" if len(names) == 1 else " and ".join(names)
            raise BertworksError(
                f"this exported model gives {' and '.join(self.outputs)} {self.shape}, which is "
                f"not {expected} for each {each}",
                where=self.where,
                hint="export the model with that output; for vectors: bertworks export MODEL "
                "--encoder -o FOLDER",
            )


def open_session(path: Path) -> Any:
    """Return the InferenceSession of onnxruntime for a file, on the CPU.

    Raises:
        BertworksError: no such file, a damaged file, a graph with subgraphs; onnxruntime is not
            installed.
    """
    with optional_import("an exported model", '"bertworks[export]"'):
        import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS.adapt()
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # see `cli.main`
    options.enable_mem_pattern = False  # it would store a plan for every shape
    options.log_severity_level = 4
    with explain_os_errors("cannot be read", path), path.open("rb") as file:
        refuse_lfs_pointer(file.read(len(LFS_POINTER)), path)
    _refuse_subgraphs(path)
    try:
        with utf8_path(path) as name:
            return onnxruntime.InferenceSession(
                str(name), options, providers=["CPUExecutionProvider"]
            )
    # onnxruntime has a class for each kind of damage, and no common base
    except Exception as error:
        raise BertworksError(
            f"onnxruntime cannot open it: {one_line(error)}",
            where=path,
            hint="export the model again",
        ) from error


def run_session(
    session: Any, inputs: Mapping[str, NDArray[Any]], where: str | Path
) -> dict[str, Tensor]:
    """Return all outputs of a graph by their names.

    Args:
        inputs: by their names.
        where: the file, for an error.

    Raises:
        BertworksError: onnxruntime cannot compute these inputs.
    """
    names = [value.name for value in session.get_outputs()]
    try:
        outputs = session.run(names, inputs)
    except Exception as error:
        raise BertworksError(
            f"onnxruntime fails: {one_line(error)}",
            where=where,
            hint="its tokenizer or config.json belongs to another model",
        ) from error
    return dict(zip(names, map(torch.from_numpy, outputs), strict=True))


def _refuse_subgraphs(path: Path) -> None:
    """Raise BertworksError for a graph within the graph.

    It may be the body of a loop that never ends.
    """
    try:
        model = read_protobuf(np.memmap(path, np.uint8, "r").data)
        nodes = [
            read_protobuf(node)
            for graph in model.get(7, [])
            for node in read_protobuf(graph).get(1, [])
        ]
        attributes = (
            read_protobuf(attribute).keys() for node in nodes for attribute in node.get(5, [])
        )
        has_subgraphs = 25 in model or any({6, 11} & names for names in attributes)
    except (OSError, TypeError, ValueError, IndexError):
        return  # no file, or another format: onnxruntime reports it
    require(not has_subgraphs, "a graph with loops, branches or functions is not a BERT", path)


BATCH_TOKENS = 4096
GPU_BATCH_TOKENS = 1 << 16  # of a batch, with padding
TOKEN_MEMORY = 1 << 20  # bytes of a GPU for each token of a batch
MAX_SCORES = 1 << 24  # logits over the vocabulary that are computed together
Network = TypeVar("Network", bound=nn.Module)
Exported = TypeVar("Exported")


class LazyModel(model_folder.ModelFolder):
    """A model folder with one copy of the weights for all its networks.

    They are read when they are first needed.

    Args:
        model: a folder of ours, of transformers, of sentence-transformers, or an exported one;
            `minilm`; or a hub id.
        language: of the texts, for a model with several; "": that in its config.json.

    Attributes:
        name: for messages.

    Raises:
        BertworksError: no such model, or files that are damaged or of another kind of model.
        UsageError: the model has several languages, and none is chosen; or not this one.
    """

    def __init__(self, model: str | Path, device: str = "auto", language: str = ""):
        name = as_path(model, "model").name or str(model)  # which may be no UTF-8
        self.name = name.encode("utf-8", "backslashreplace").decode()
        self.device = device
        self._requested_name = str(model) if is_model_name(model) or url_of(model) else ""
        super().__init__(resolve_model(model), language)
        self._versions_at_opening = self._file_versions()
        self.require_language()
        # refuses damaged settings, and networks that are not supported, here
        _ = self.config, self.tokenizer

    def __str__(self) -> str:
        return str(self.folder)

    @property
    def fingerprint(self) -> JsonObject:
        """Hashes of the weights and of the tokenizer."""
        return {
            "weights_sha256": model_files.weights_sha256(self.within),
            "tokenizer_sha256": self.tokenizer.sha256,
        }

    @cached_property
    def auto_precision(self) -> InferencePrecision:
        """The precision that "auto" selects.

        It is measured, and part of a pickle: processes may measure others.
        """
        return best_precision(choose_device(self.device))

    def _file_versions(self) -> dict[str, tuple[int, ...]]:
        """Return the files that answers depend on, and what changes with them.

        They are under their names within the folder.
        """
        folder = self.folder.absolute()
        names = set(split_files(folder, MODEL_FILES)[0]) - {RECORD_FILE, *MODEL_DOCUMENTS}
        # those of a joint fine-tuning lie outside
        for path in model_files.weight_files(self.within):
            names.add(os.path.relpath(path, folder))
        versions: dict[str, tuple[int, ...]] = {}
        for name in sorted(names):
            with suppress(FileNotFoundError):
                status = os.stat(folder / name)  # noqa: PTH116 - of the file that a link leads to
                versions[name] = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
        return versions

    def files_sha256(self) -> str:
        """Return a hash of the files that answers depend on.

        Raises:
            BertworksError: files were written since this object has been opened: another process
                would read others.
        """
        folder = self.folder.absolute()
        hashes: dict[str, str] = {}
        if folder.is_dir():
            hashes = {
                name: file_sha256(folder / name)
                for name in self._versions_at_opening
                if (folder / name).exists()
            }
        if not hashes or self._file_versions() != self._versions_at_opening:
            raise BertworksError(
                "the files of the model have changed since it was opened: a pickle holds their "
                "path and their hash",
                where=folder,
                hint="open the model again, and pickle that object",
            )
        return hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()

    @property
    def reference(self) -> "ModelReference":
        """The values that open the same model in another process.

        Raises as `files_sha256`.
        """
        return ModelReference(
            folder=str(self.folder.absolute()),
            name=self._requested_name,
            device=self.device,
            language=self.config.language,
            auto_precision=self.auto_precision,
            files_sha256=self.files_sha256(),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return reopened_model, (self.reference,)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # nothing changes it: copies of what uses it share the weights

    @cached_property
    def state(self) -> dict[str, Tensor]:
        """The parameters under our names, float32, on the device.

        They are copies: the file may change. Matrices are stored by columns: a CPU then multiplies
        few rows in two thirds of the time.
        """
        device = choose_device(self.device)
        state = self.load_state()

        def copied(name: str, tensor: Tensor) -> Tensor:
            if tensor.ndim != 2 or ".embeddings." in name:
                return tensor.to(device, copy=True)
            return tensor.t().clone(memory_format=torch.contiguous_format).to(device).t()

        return {name: copied(name, state.pop(name)) for name in list(state)}

    def network(self, make: Callable[[EncoderConfig], Network], prefix: str = "") -> Network:
        """Return a network over the weights, in evaluation mode and without gradients.

        Its modules are its own, so that hooks in them do not affect other networks; its parameters
        are the tensors of `state`.

        Args:
            prefix: of the names of its parameters.

        Raises:
            BertworksError: a component is missing, or has another shape.
        """
        with meta_device_init():
            network = make(self.config)
        shapes = {prefix + name: tensor.shape for name, tensor in network.state_dict().items()}
        model_folder.check_components(
            component_names(self.state), component_names(shapes), self.within
        )
        for name, shape in shapes.items():
            size = list(self.state[name].shape) if name in self.state else "missing"
            require(
                size == list(shape),
                f"{name} is {size}, but the task needs {list(shape)}",
                self.within,
                "its task.json or config.json belongs to another model",
            )
        network.load_state_dict(
            {name.removeprefix(prefix): self.state[name] for name in shapes}, assign=True
        )
        return network.requires_grad_(False).eval()

    def session(self, precision: PrecisionOption, **options: Any) -> OnnxModel:
        """Return the network of an exported model. options: see `OnnxModel`.

        Raises:
            UsageError: another device than the CPU, or another precision than fp32.
            BertworksError: the file has other outputs.
        """
        return self.exported_network(precision, lambda files: OnnxModel(files[0], **options))

    def exported_network(
        self, precision: PrecisionOption, make: Callable[[list[Path]], Exported]
    ) -> Exported:
        """Return the network that is made of the files of an exported model.

        Raises:
            UsageError: another device than the CPU, or another precision than fp32.
            BertworksError: the files are not those that bertworks wrote.
        """
        fits = not self.device.startswith("cuda") and precision in ("auto", "fp32")
        expect(
            fits,
            "an exported model is computed on the CPU, in the precision of its file",
            where=self.within,
        )
        network = make(model_files.weight_files(self.within))
        self.check_unchanged()
        return network


def open_model(
    model: str | Path | LazyModel,
    device: str,
    language: str = "",
    *,
    translates: bool = False,
    embeds: bool = False,
    predicts_tokens: bool = False,
) -> LazyModel:
    """Return an open model.

    One that is open already stays on its device.

    Args:
        translates: whether the caller reads a network with a decoder.
        embeds: whether the caller needs no more than vectors of texts, which static vectors give.
        predicts_tokens: whether the caller needs an output layer over a vocabulary.

    Raises:
        BertworksError: see `LazyModel`; a network with a decoder, or static vectors without the
            head of a task, and the caller reads none; an ELMo, and the caller predicts tokens.
    """
    source = model if isinstance(model, LazyModel) else LazyModel(model, device, language)
    require(
        translates or source.config.decoder is None,
        "this model translates texts: it also has a decoder, which is not used here",
        source.folder,
        f'bertworks translate {quoted(source.folder)} "A text"',
    )
    require(
        embeds or source.config.kind != "static" or source.has_task,
        "these are static vectors: a token has the same vector in all texts, and there is no "
        "network that this could use",
        source.folder,
        f"bertworks embed {quoted(source.folder)} texts.csv -o vectors.npy; index, search, serve "
        "and evaluate retrieval read them too",
    )
    require(
        not predicts_tokens or source.config.kind != "elmo",
        "this is an ELMo: its folder has no output layer, so that it predicts no words",
        source.folder,
        f"bertworks embed {quoted(source.folder)} texts.csv -o vectors.npy; evaluate probe and "
        "finetune read it too",
    )
    no_tokens = FAMILIES[source.config.family].no_tokens
    require(
        not predicts_tokens or not no_tokens,
        no_tokens,
        source.folder,
        f"bertworks finetune DATA --model {quoted(source.folder)} -o ANOTHER-FOLDER; embed, index, "
        "search and evaluate probe read it too",
    )
    return source


class ModelReference(NamedTuple):
    """A model in a pickle.

    folder: its absolute path.
    name: the name or the URL that was resolved to the folder, for a machine without this folder;
        "": none.
    device, language, auto_precision: see `LazyModel`.
    files_sha256: a hash of the files that answers depend on.
    """

    folder: str
    name: str
    device: str
    language: str
    auto_precision: InferencePrecision
    files_sha256: str


@lru_cache(maxsize=NUM_KEPT_OPEN)
def reopened_model(reference: ModelReference) -> LazyModel:
    """Return the model of a pickle.

    The last ones stay open in this process.

    Raises:
        BertworksError: its folder is missing, or has changed since the object was pickled.
    """
    folder = Path(reference.folder)
    if not folder.is_dir() and not reference.name:
        raise BertworksError(
            "the model folder of an object in a pickle is missing: the pickle holds its path, "
            "and no weights",
            where=reference.folder,
            hint="keep the folder as long as the pickle; a fine-tuned model is kept with "
            "output=FOLDER",
        )
    model = LazyModel(
        folder if folder.is_dir() else reference.name, reference.device, reference.language
    )
    if model.files_sha256() != reference.files_sha256:
        raise BertworksError(
            "the model folder of an object in a pickle has changed since the object was pickled",
            where=model.folder,
            hint="open the model again, and pickle that object",
        )
    model.auto_precision = reference.auto_precision
    return model


class ModelUser(Reopened):
    """An object over an open model.

    Its pickle holds the path of the model, the settings of the object, and a hash.

    A subclass calls `_set_opening` in its constructor.
    """

    _source: LazyModel

    def _set_opening(
        self, kind: Callable[..., Reopened], source: LazyModel, **settings: Any
    ) -> None:
        """Set what opens an equal object.

        Args:
            kind: the class whose constructor takes an open model and these settings.
        """
        self._source = source
        self._opening = kind, tuple(settings.items())

    def _opening_call(self) -> Opening:
        kind, settings = self._opening
        return Opening(_open_user, (kind, self._source.reference, settings))


def _open_user(
    kind: Callable[..., Reopened], reference: ModelReference, settings: tuple[tuple[str, Any], ...]
) -> Reopened:
    return kind(reopened_model(reference), **dict(settings))


def prepared_encoder(
    encoder: Stack, option: PrecisionOption, source: LazyModel | None = None
) -> tuple[Stack | InferenceEncoder, InferencePrecision]:
    """Return an encoder or a decoder in its fastest form for a precision, and the precision.

    "auto" selects bf16 where the hardware is faster with it, else fp32.

    Raises:
        UsageError: no such precision, or int8 on hardware without instructions for it.
    """
    conversions: dict[str, Callable[[Stack], Stack | InferenceEncoder]] = {
        "fp32": transformer.to_fp32_inference,
        "bf16": transformer.to_bf16_inference,
        # For a few tokens int8 would take twice as long as weights in half precision, and be less
        # exact.
        "int8": lambda encoder: transformer.with_fp16_weights(
            encoder, transformer.to_int8_inference(encoder)
        ),
    }
    precision = precision_for(encoder, option, source)
    if encoder.config.kind == "elmo":  # its LSTMs are no linear layers that could be packed
        return encoder, "fp32"
    return conversions[precision](encoder), precision


def precision_for(
    network: nn.Module, option: PrecisionOption, source: LazyModel | None = None
) -> InferencePrecision:
    """Return the precision that an option selects for a network.

    Raises as `prepared_encoder`.

    Args:
        source: the model of the network, with its selection; None: of a network in training.
    """
    if option not in get_args(PrecisionOption):
        raise UsageError(
            f"the precision {option!r} is not known",
            hint=f"use {', '.join(get_args(PrecisionOption))}",
        )
    device = next(network.parameters()).device
    precision: InferencePrecision
    if source is not None and source.config.kind == "elmo":
        expect(
            option in ("auto", "fp32"),
            f"precision {option}: networks of kind 'elmo' are computed in fp32",
            where=source.folder,
            hint="leave --precision out",
        )
        return "fp32"
    if option != "auto":
        precision = option
    elif source is not None:
        precision = source.auto_precision
    else:
        precision = best_precision(device)
    if precision == "int8":
        expect(
            device.type == "cpu", "int8 is for CPUs", hint="leave --precision out: GPUs use bf16"
        )
        expect(
            transformer.cpu_supports_int8(),
            "this processor has no instructions for int8 (VNNI)",
            hint="leave --precision out",
        )
    return precision


def compute_logits(
    model: TaskModel | OnnxModel,
    units: Sequence[ExampleGroup],
    precision: InferencePrecision = "fp32",
) -> list[Logits]:
    """Return for each unit the logits of all its predictions: float32 [M, outputs].

    They are over all its sequences in order. The network computes without dropout; its mode is
    restored afterwards.
    """
    return compute_each(model, model.logits, units, (model.task.outputs,), precision)


def compute_logits_and_loss(
    model: TaskModel, units: Sequence[ExampleGroup], precision: InferencePrecision = "fp32"
) -> tuple[list[Logits], LossStats]:
    """`compute_logits`, and the mean loss and accuracy over all labels of the units."""
    sums = np.zeros(3)

    def compute(batch: Batch) -> Tensor:
        logits = model.logits(batch).float()
        losses = tally(model.task, logits, batch)
        num_predictions = count_predictions(model.task, batch)
        sums[:] += losses.loss.item(), losses.correct.item(), num_predictions
        return logits

    results = compute_each(model, compute, units, (model.task.outputs,), precision)
    loss, correct, count = sums.tolist()
    return results, LossStats(loss / max(1, count), correct / max(1, count), int(count))


def compute_vectors(
    encoder: Stack | InferenceEncoder | OnnxModel,
    units: Sequence[ExampleGroup],
    pooling: Pooling,
    width: int,
    precision: InferencePrecision = "fp32",
) -> NDArray[np.float32]:
    """Return the vector of each unit: float32 [units, width].

    A unit is one sequence, or the windows of one text, which have the mean of their vectors.

    width: the hidden size.
    """

    def compute(batch: Batch) -> Tensor:
        # the last layer is computed for these tokens only
        rows = batch.layout.first if pooling == "cls" else None
        states = encoder(*batch.inputs, rows)
        vectors = states[-1] if pooling == "cls" else pool(states, batch.layout, pooling)
        return batch.mean_of_windows(vectors)

    vectors = np.zeros((len(units), width), np.float32)
    # Without special tokens around it, an empty text has no token: its vector stays 0.
    places = [number for number, unit in enumerate(units) if longest_sequence(unit)]
    if places:
        read = [units[number] for number in places]
        vectors[places] = np.concatenate(compute_each(encoder, compute, read, (width,), precision))
    return vectors


def batch_tokens(device: torch.device) -> int:
    """Return the largest number of tokens of a batch, with padding.

    Many keep a GPU busy; a CPU has a small cache.
    """
    if device.type != "cuda":
        return BATCH_TOKENS
    return max(BATCH_TOKENS, min(GPU_BATCH_TOKENS, total_memory(device) // TOKEN_MEMORY))


def compute_each(
    model: nn.Module,
    compute: Callable[[Batch], Tensor],
    units: Sequence[ExampleGroup],
    shape: tuple[int, ...],
    precision: InferencePrecision = "fp32",
    most: int = 1 << 30,
    *,
    splits_units: bool = False,
) -> list[NDArray[np.float32]]:
    """Return for each unit the rows of the result of its batch.

    There is one for each prediction, or for each text that has no targets.

    Args:
        shape: of a row.
        most: units of a batch.
        splits_units: whether each sequence of a unit is batched on its own; else all sequences of a
            unit are in one batch, but for long lazy units of which each sequence has predictions of
            its own.
    """
    training = model.training
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    if training:  # setting the mode of all modules would take a tenth of the time of one short text
        model.eval()
    tokens = batch_tokens(device)
    results = list[NDArray[np.float32]]()
    parts = list[tuple[ExampleGroup, NDArray[np.float32]]]()
    for unit in units:
        counts = [len(e.target.positions) if e.targets else int(not e.window) for e in unit]
        results.append(np.empty((sum(counts), *shape), np.float32))
        # many windows
        is_long = (
            isinstance(unit, Lazy)
            and not unit[-1].window
            and longest_sequence(unit) * len(unit) > tokens
        )
        groups = [unit[n : n + 1] for n in range(len(unit))] if splits_units or is_long else [unit]
        rows_of_groups = [results[-1]]
        if len(groups) > 1:
            rows_of_groups = np.split(results[-1], np.cumsum(counts)[: len(groups) - 1])
        parts += zip(groups, rows_of_groups, strict=True)
    # A unit without predictions, such as a text without words to tag, is left out.
    parts = [(group, rows) for group, rows in parts if len(rows)]
    lengths = [longest_sequence(group) for group, _ in parts]
    sizes = [len(group) for group, _ in parts]
    batches = token_budget_indices(lengths, sizes, tokens)
    # on a GPU one batch is computed while the host makes the next
    computed: list[tuple[list[int], Tensor]] = []

    def read() -> None:
        numbers, result = computed.pop(0)
        counts = [len(parts[number][1]) for number in numbers]
        for number, rows in zip(
            numbers, np.split(result.cpu().numpy(), np.cumsum(counts)[:-1]), strict=True
        ):
            parts[number][1][:] = rows

    for numbers in (batch[n : n + most] for batch in batches for n in range(0, len(batch), most)):
        batch = collate([example for number in numbers for example in parts[number][0]]).to(device)
        THREADS.adapt()
        with (
            torch.no_grad(),
            torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"),
        ):
            computed.append((numbers, compute(batch).float()))
        if len(computed) > (device.type == "cuda"):
            read()
    while computed:
        read()
    if training:
        model.train()
    return results
