"""The modules of sentence-transformers behind the pooling, as a network.

- `vector_network`: all modules of a model as one `VectorNetwork`
"""

import re
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from bertworks.checkpoints.resolve import WEIGHTS
from bertworks.checkpoints.sentence_transformers import MODULE_KINDS, OTHER_MODEL, VectorModule
from bertworks.checkpoints.storage import refuse_non_finite
from bertworks.errors import BertworksError, require

_ACTIVATIONS = "Identity|Tanh|ReLU|ReLU6|LeakyReLU|ELU|SELU|GELU|SiLU|Sigmoid|Softplus|Softsign"
_ACTIVATION = re.compile(rf"torch\.nn\.(modules\.(activation|linear)\.)?({_ACTIVATIONS})")
_DEFAULT_ACTIVATION = "torch.nn.modules.activation.Tanh"


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
        BertworksError: see `VectorModule.output_size`; weights that are missing, damaged, or of
            other sizes; an activation function that is not computed.
    """
    networks: list[nn.Module] = []
    size = input_size
    for module in modules:
        networks.append(_network(module, size))
        size = module.output_size(size)
    return VectorNetwork(nn.Sequential(*networks).eval(), size)


def _network(module: VectorModule, input_size: int) -> nn.Module:
    """Return the module as a network over vectors [N, input_size].

    Raises:
        BertworksError: see `vector_network`.
    """
    output_size = module.output_size(input_size)
    layers: OrderedDict[str, nn.Module] = OrderedDict()  # with the names in their files
    if module.kind == "Dense":
        has_bias = module.settings.get("bias", True)
        path = module.folder / "config.json"
        require(
            type(has_bias) is bool,
            f"bias is {has_bias!r:.40}: expected true or false",
            path,
            OTHER_MODEL,
        )
        layers["linear"] = nn.Linear(input_size, output_size, bias=has_bias)
        name = module.settings.get("activation_function", _DEFAULT_ACTIVATION)
        match = _ACTIVATION.fullmatch(str(name))
        if match is None:
            what = f"activation_function is {name!r:.80}: only functions of torch.nn are "
            what += f"supported, such as {_DEFAULT_ACTIVATION}"
            raise BertworksError(what, where=path, hint=OTHER_MODEL)
        layers["activation"] = getattr(nn, match[3])()
    elif module.kind == "LayerNorm":
        layers["norm"] = nn.LayerNorm(input_size)
    elif module.kind == "Normalize":
        layers["normalize"] = _Normalize()
    network = nn.Sequential(layers)
    if not MODULE_KINDS[module.kind]:
        return network
    weights = module.read_weights()
    shapes = {name: list(tensor.shape) for name, tensor in weights.items()}
    expected = {name: list(tensor.shape) for name, tensor in network.state_dict().items()}
    is_float = all(tensor.is_floating_point() for tensor in weights.values())
    require(
        shapes == expected and is_float,
        f"the weights of the module {module.kind} are {shapes!s:.200}, expected {expected}",
        module.folder / WEIGHTS,
        OTHER_MODEL,
    )
    parameters = {name: tensor.float() for name, tensor in weights.items()}
    refuse_non_finite(parameters, module.folder / WEIGHTS)
    network.load_state_dict(parameters)
    return network


class _Normalize(nn.Module):
    def forward(self, vectors: Tensor) -> Tensor:
        return nn.functional.normalize(vectors, dim=-1)
