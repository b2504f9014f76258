"""A model folder whose weights are read when they are first needed, and are in memory once for all networks made of
them."""

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from bertworks.checkpoints.hf_mapping import component_names
from bertworks.checkpoints.model_folder import EXPORTED, check_components, is_exported, load_settings, load_state
from bertworks.checkpoints.resolve import resolve_model
from bertworks.checkpoints.sentence_transformers import weights_folder
from bertworks.errors import BertworksError
from bertworks.inference.onnx_runtime import OnnxModel, refuse_elsewhere
from bertworks.models.config import EncoderConfig
from bertworks.models.initialization import meta_device_init
from bertworks.training.device import InferencePrecision, choose_device

Network = TypeVar("Network", bound=nn.Module)


class LazyModel:
    """A model of which networks can be made.

    Args:
        model: a folder of ours, of transformers, of sentence-transformers, or an exported one; `minilm`; or a hub id.

    Attributes:
        name: what a person calls it.
        folder: where it lies.
        within: where its weights and its tokenizer lie; of sentence-transformers this may be a folder within.
        exported: whether it is an ONNX file.

    Raises:
        BertworksError: no such model, or files that are damaged or not of a BERT.
    """

    def __init__(self, model: str | Path, device: str = "auto"):
        self.name, self.device = Path(model).name or str(model), device
        self.folder = resolve_model(model)
        self.within = weights_folder(self.folder)
        self.config, self.tokenizer = load_settings(self.within)
        self.exported = is_exported(self.within)
        self._sessions: dict[Any, OnnxModel] = {}

    def __str__(self) -> str:
        return str(self.folder)

    @cached_property
    def state(self) -> dict[str, Tensor]:
        """The parameters under our names, float32, where they are computed with. They are copies, not the map of the
        file, which somebody may write over. Matrices lie in memory column by column: a CPU then needs two thirds of the
        time for products of few rows."""
        device, read = choose_device(self.device), load_state(self.within, self.config)

        def copied(name: str, tensor: Tensor) -> Tensor:
            if tensor.ndim != 2 or ".embeddings." in name:
                return tensor.to(device, copy=True)
            return tensor.t().clone(memory_format=torch.contiguous_format).to(device).t()

        return {name: copied(name, read.pop(name)) for name in list(read)}

    def network(self, make: Callable[[EncoderConfig], Network], *needs: str, prefix: str = "") -> Network:
        """A network over the weights, in evaluation mode and without gradients. Its modules are its own, so that hooks
        in them do not touch other networks; its parameters are the numbers in `state`.

        Args:
            needs: the parts that it is made of, such as `masked_lm`.
            prefix: of its parameters' names.

        Raises:
            BertworksError: a part is absent, or is of another shape.
        """
        check_components(component_names(self.state), needs, self.within)
        with meta_device_init():
            network = make(self.config)
        ours = {prefix + name: tensor.shape for name, tensor in network.state_dict().items()}
        for name, shape in ours.items():
            if name not in self.state:
                raise BertworksError(f"this model has no {name.split('.')[0]}", where=str(self.within),
                                     hint="fine-tune it again; its files are not of one model")  # fmt: skip
            if self.state[name].shape != shape:
                raise BertworksError(
                    f"{name} is {list(self.state[name].shape)}, but the task asks for {list(shape)}",
                    where=str(self.within), hint="its task.json or config.json is of another model",
                )  # fmt: skip
        network.load_state_dict({name.removeprefix(prefix): self.state[name] for name in ours}, assign=True)
        return network.requires_grad_(False).eval()

    def session(self, precision: InferencePrecision, **wanted: Any) -> OnnxModel:
        """The network of an exported model. wanted: see `Exported`.

        Raises:
            UsageError: it is wanted elsewhere than on the CPU, or in another precision.
            BertworksError: it gives something else.
        """
        refuse_elsewhere(self.device, precision, self.within)
        key = tuple(sorted(wanted.items()))
        if key not in self._sessions:
            self._sessions[key] = OnnxModel(self.within / EXPORTED, **wanted)
        return self._sessions[key]


def open_model(model: "str | Path | LazyModel", device: str) -> LazyModel:
    """A model that is open stays where it is."""
    return model if isinstance(model, LazyModel) else LazyModel(model, device)
