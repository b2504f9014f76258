"""The modules of a sentence-transformers folder that come after the pooling.

- `VectorModule`: one of them, with its weights
- `vector_network`: all of them as one network
"""

import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bertworks.checkpoints.pickled_weights import find_pickle
from bertworks.checkpoints.resolve import WEIGHTS
from bertworks.checkpoints.storage import file_sha256, read_tensors, refuse_non_finite
from bertworks.errors import BertworksError, quoted, require
from bertworks.models.layers import LIMITS

# Modules that are computed, and whether they have weights.
MODULE_KINDS = {"Dense": True, "LayerNorm": True, "Dropout": False, "Normalize": False}
_ACTIVATIONS = "Identity|Tanh|ReLU|ReLU6|LeakyReLU|ELU|SELU|GELU|SiLU|Sigmoid|Softplus|Softsign"
_ACTIVATION = re.compile(rf"torch\.nn\.(modules\.(activation|linear)\.)?({_ACTIVATIONS})")
_DEFAULT_ACTIVATION = "torch.nn.modules.activation.Tanh"
PICKLED_MODULE = "the weights of a module are a pickle, which is not read"
_OTHER_MODEL = "use another model"


@dataclass(frozen=True)
class VectorModule:
    """A module of sentence-transformers between the pooling and the finished vector.

    kind: "Dense", "LayerNorm", "Dropout" or "Normalize".
    settings: the content of its config.json.
    folder: of its config.json and its weights.
    weights: its parameters under the names of sentence-transformers; None: those in the folder.
    """

    kind: str
    settings: Mapping[str, Any]
    folder: Path = field(compare=False)
    weights: Mapping[str, Tensor] | None = field(default=None, compare=False, repr=False)

    def output_size(self, input_size: int) -> int:
        """Return the size of the vectors that leave the module.

        Raises:
            BertworksError: it is made for vectors of another size than `input_size`, or a size is
                no number.
        """
        names = {"Dense": ("in_features", "out_features"), "LayerNorm": ("dimension",)}
        for name in names.get(self.kind, ()):
            size = self.settings.get(name)
            is_size = type(size) is int and 1 <= size <= LIMITS["hidden_size"]
            what = f"{name} is {size!r:.40}: expected a whole number from 1"
            require(is_size, what, self.folder / "config.json", _OTHER_MODEL)
        expected = self.settings.get("in_features", self.settings.get("dimension", input_size))
        what = f"the module {self.kind} reads vectors of {expected} numbers, but gets {input_size}"
        require(expected == input_size, what, self.folder, _OTHER_MODEL)
        return int(self.settings.get("out_features", input_size))

    def network(self, input_size: int) -> nn.Module:
        """Return the module as a network over vectors [N, input_size].

        Raises:
            BertworksError: see `output_size`; weights that are missing, damaged, or of other
                sizes; an activation function that is not computed.
        """
        output_size = self.output_size(input_size)
        layers: OrderedDict[str, nn.Module] = OrderedDict()  # with the names in their files
        if self.kind == "Dense":
            has_bias = self.settings.get("bias", True)
            path = self.folder / "config.json"
            what = f"bias is {has_bias!r:.40}: expected true or false"
            require(type(has_bias) is bool, what, path, _OTHER_MODEL)
            layers["linear"] = nn.Linear(input_size, output_size, bias=has_bias)
            layers["activation"] = self._activation()
        elif self.kind == "LayerNorm":
            layers["norm"] = nn.LayerNorm(input_size)
        elif self.kind == "Normalize":
            layers["normalize"] = _Normalize()
        network = nn.Sequential(layers)
        if MODULE_KINDS[self.kind]:
            self._put_weights(network)
        return network

    def _activation(self) -> nn.Module:
        name = self.settings.get("activation_function", _DEFAULT_ACTIVATION)
        match = _ACTIVATION.fullmatch(str(name))
        what = f"activation_function is {name!r:.80}: only functions of torch.nn are supported, "
        what += f"such as {_DEFAULT_ACTIVATION}"
        if match is None:
            raise BertworksError(what, where=str(self.folder / "config.json"), hint=_OTHER_MODEL)
        return getattr(nn, match[3])()  # type: ignore[no-any-return]

    def read_weights(self) -> Mapping[str, Tensor]:
        """Return the parameters, in any floating-point type.

        Raises:
            BertworksError: no such file, or a damaged or hostile one; only a pickle.
        """
        if self.weights is not None:
            return self.weights
        pickle = find_pickle(self.folder)
        if pickle is not None and not (self.folder / WEIGHTS).exists():
            model = quoted(self.folder.parent)
            hint = f"if you trust it: bertworks convert {model} -o ANOTHER-FOLDER --trust-pickle"
            raise BertworksError(PICKLED_MODULE, where=str(self.folder), hint=hint)
        return read_tensors(self.folder / WEIGHTS)

    def _put_weights(self, network: nn.Module) -> None:
        weights = self.read_weights()
        shapes = {name: list(tensor.shape) for name, tensor in weights.items()}
        expected = {name: list(tensor.shape) for name, tensor in network.state_dict().items()}
        is_float = all(tensor.is_floating_point() for tensor in weights.values())
        what = f"the weights of the module {self.kind} are {shapes!s:.200}, expected {expected}"
        require(shapes == expected and is_float, what, self.folder / WEIGHTS, _OTHER_MODEL)
        parameters = {name: tensor.float() for name, tensor in weights.items()}
        refuse_non_finite(parameters, str(self.folder / WEIGHTS))
        network.load_state_dict(parameters)

    @property
    def fingerprint(self) -> dict[str, Any]:
        """Everything that the results depend on."""
        settings: dict[str, Any] = {"kind": self.kind, "settings": dict(self.settings)}
        if MODULE_KINDS[self.kind]:
            settings["weights_sha256"] = file_sha256(self.folder / WEIGHTS)
        return settings


class _Normalize(nn.Module):
    def forward(self, vectors: Tensor) -> Tensor:
        return nn.functional.normalize(vectors, dim=-1)


class VectorNetwork(NamedTuple):
    """Modules as one network.

    size: of the vectors that leave it.
    """

    network: nn.Module
    size: int

    def __call__(self, vectors: Tensor) -> Tensor:
        """Return the vectors [N, size] of pooled vectors [N, input size], computed in float32."""
        with torch.inference_mode():
            return self.network(vectors)  # type: ignore[no-any-return]


def vector_network(modules: Sequence[VectorModule], input_size: int) -> VectorNetwork:
    """Return the network of modules that follow each other.

    Args:
        input_size: of pooled vectors.

    Raises:
        BertworksError: see `VectorModule.network`.
    """
    networks: list[nn.Module] = []
    size = input_size
    for module in modules:
        networks.append(module.network(size))
        size = module.output_size(size)
    return VectorNetwork(nn.Sequential(*networks).eval(), size)
