"""Read and write parameters under the names of Hugging Face.

It is the engine that reads the name tables of families (`hf_config.Family`) in both directions.

- `from_huggingface`, `to_huggingface`: parameters under their names <-> under ours
- `components_in_file`, `redundant_tensors`, `unread_tensors`: what the names in a file are
- `check_output_layer`: whether a file has the output layer that it needs
- `google_names`: the names in Google's code; `layer_of_means`: that of a linear layer on means

It imports no library of theirs and opens no file. Everything that is read is checked against the
configuration first: a name, a shape or a size that does not fit is an error.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor, nn

from bertworks.checkpoints.hf_config import (
    BODY,
    CORRECT,
    FAMILIES,
    VECTOR_CLASS,
    Family,
    Rows,
    classes_of,
    component_names,
)
from bertworks.config import packaged_table
from bertworks.errors import BertworksError, require, some_names
from bertworks.models.config import EncoderConfig
from bertworks.models.embeddings import sinusoids
from bertworks.models.heads import add_heads
from bertworks.models.layers import meta_device_init
from bertworks.models.settings import Head
from bertworks.models.transformer import Encoder, make_decoder

_NAMES = packaged_table(__file__, "other_names.toml")
# rows in front of a position table, kept as they were
UNUSED_POSITIONS = "encoder.embeddings.unused_positions.weight"
_OTHER_CONFIG = "use the config.json that was saved with these weights"
_ANY = -1  # a size that the configuration does not determine
_LAYER_OF_MEANS = "classifier.weight"  # see `VECTOR_CLASS`
_POSITIONS_TOLERANCE = 1e-5  # sines in float32, computed by another program


class _Parameter(NamedTuple):
    """A row of a table, for one layer, of the weight or the bias.

    name: of the parameter in bertworks.
    file_names: of the tensors in a file that are the parameter together.
    shape: of each of these tensors, after transposing; _ANY: any size.
    unused_rows: in front of the position embeddings.
    num_heads: into which the second axis of these tensors is divided; 0: it is not.
    """

    name: str
    file_names: tuple[str, ...]
    shape: tuple[int, ...]
    is_transposed: bool
    unused_rows: int
    num_heads: int = 0

    @property
    def component(self) -> str:
        return self.name.split(".", 1)[0]


def components_in_file(
    names: Iterable[str], config: EncoderConfig, settings: Mapping[str, Any] | None = None
) -> frozenset[str]:
    """The components, as in `component_names`, that a file with these names has something of.

    settings: the content of config.json, which names the class; None: only the names say it.
    """
    family = FAMILIES[config.family]
    bare = {name.removeprefix(family.prefix) for name in names}
    table = _parameters(config, bare, classes=classes_of(settings))
    return frozenset(p.component for p in table if not bare.isdisjoint(p.file_names))


def google_names(config: EncoderConfig) -> dict[str, str]:
    """Return the variables of a BERT in Google's code: their name, and the one in files here."""
    family = FAMILIES["bert"]
    names = {}
    for parameter in _parameters(config, []):
        if parameter.component in ("recurrent", "mix"):
            continue
        for file_name in parameter.file_names:
            name = family.prefix + file_name if file_name.startswith(family.body) else file_name
            for pattern, replacement in family.google:
                name = re.sub(pattern, replacement, name)
            names[name] = file_name
    return names


def layer_of_means(config: EncoderConfig) -> str:
    """The name of the linear layer in a file of VECTOR_CLASS, which has its weight and its bias."""
    table = _parameters(config, [], VECTOR_CLASS)
    (name,) = next(parameter.file_names for parameter in table if parameter.name == _LAYER_OF_MEANS)
    return name.removesuffix(".weight")


def to_huggingface(
    state: Mapping[str, Tensor], config: EncoderConfig, architecture: str | None = None
) -> dict[str, Tensor]:
    """Return our parameters under the names and in the shapes of transformers.

    They are those that its own class for these components saves.

    Tied copies are left out and the body has a prefix only next to a head, as in their files.
    Tensors are views.

    Args:
        architecture: their class, or VECTOR_CLASS; None: that of a pre-trained state.

    Raises:
        BertworksError: a name has no place there, a shape does not fit, or a component is
            incomplete.
    """
    family = FAMILIES[config.family]
    has_head = config.lm_head == "plain" or bool(component_names(state) - BODY)
    table = _parameters(config, state, architecture)
    tensors: dict[str, Tensor] = {}
    for parameter in _present(table, state.keys() - {UNUSED_POSITIONS}, lambda p: [p.name], None):
        value = state[parameter.name]
        parts = len(parameter.file_names)
        _check_shape(
            parameter.name, value, (parameter.shape[0] * parts, *parameter.shape[1:]), None
        )
        if parameter.unused_rows:
            unused = state.get(
                UNUSED_POSITIONS, value.new_zeros(parameter.unused_rows, value.shape[1])
            )
            value = torch.cat([unused, value])
        pieces = [piece.t() if parameter.is_transposed else piece for piece in value.chunk(parts)]
        if parameter.num_heads:
            pieces = [piece.unflatten(1, (parameter.num_heads, -1)) for piece in pieces]
        if architecture == VECTOR_CLASS and parameter.name == _LAYER_OF_MEANS:
            pieces = [pieces[0][None]]
        for _ in range(family.leading_axes.get(parameter.name, 0)):
            pieces = [pieces[0][None]]
        for name, piece in zip(parameter.file_names, pieces):
            tensors[family.prefix + name if has_head and name.startswith(family.body) else name] = (
                piece
            )
    return tensors


def from_huggingface(
    state: Mapping[str, Tensor],
    config: EncoderConfig,
    *,
    where: object = None,
    settings: Mapping[str, Any] | None = None,
) -> dict[str, Tensor]:
    """Their parameters under our names, from a file of the body alone or with any head.

    What it has: `component_names`.

    The body must be complete and every head whole or absent. Tied copies must be equal to their
    original.

    Args:
        where: the file, for messages.
        settings: the content of config.json, which names the class, where two classes have the
            same names; None: only the names say it.

    Raises:
        BertworksError: unknown names (listed), a wrong shape, a component incomplete (what is
            missing is listed).
    """
    family = FAMILIES[config.family]
    tensors = _renamed(state, family, where)
    _check_position_tables(tensors, family, where)
    parameters: dict[str, Tensor] = {}
    table = _parameters(config, tensors, classes=classes_of(settings))
    present = _present(table, tensors.keys(), lambda p: p.file_names, where)
    has_pooler = "pooler" in {parameter.component for parameter in present}
    for parameter in present:
        pieces = [tensors[name] for name in parameter.file_names]
        if parameter.num_heads:
            pieces = [
                piece.flatten(1)
                if piece.dim() == 3 and piece.shape[1] == parameter.num_heads
                else piece
                for piece in pieces
            ]
        if parameter.is_transposed:
            pieces = [piece.t() if piece.dim() == 2 else piece for piece in pieces]
        if parameter.unused_rows and pieces[0].dim() == 2:
            parameters[UNUSED_POSITIONS], pieces[0] = pieces[0].tensor_split(
                [parameter.unused_rows]
            )
        if (
            parameter.name == _LAYER_OF_MEANS
            and not has_pooler
            and pieces[0].dim() == 3
            and len(pieces[0]) == 1
        ):
            pieces[0] = pieces[0][0]  # see `VECTOR_CLASS`
        for _ in range(family.leading_axes.get(parameter.name, 0)):
            if pieces[0].dim() > 1 and len(pieces[0]) == 1:
                pieces[0] = pieces[0][0]
        for name, piece in zip(parameter.file_names, pieces):
            _check_shape(name, piece, parameter.shape, where)
        parameters[parameter.name] = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
    return parameters


def check_output_layer(
    settings: Mapping[str, Any],
    names: Collection[str],
    config: EncoderConfig,
    where: object = None,
    *,
    predicts_tokens: bool = False,
) -> None:
    """Raise BertworksError if the output layer over the vocabulary is missing in a file.

    config.json then says that it is not the embedding matrix: transformers would draw one at
    random.

    Args:
        settings: the content of config.json.
        names: the names of the tensors in the file.
        predicts_tokens: whether the caller needs the layer, even if the class of the file does not
            have it.
    """
    is_tied = settings.get("tie_word_embeddings", True)
    require(
        type(is_tied) is bool,
        f"tie_word_embeddings is {is_tied!r:.60}: expected true or false",
        where,
        CORRECT,
    )
    family = FAMILIES[config.family]
    names_in_network = {name.removeprefix(family.prefix) for name in names}
    layers = [copy for copy, original in family.tied.items() if original.endswith(".weight")]
    if is_tied or not layers or not names_in_network.isdisjoint(layers):
        return
    # without parameters of its own: the class says whether it is there
    if config.lm_head == "plain":
        classes = settings.get("architectures") or list(family.pretraining.values())
        has_head = any(name in family.pretraining.values() for name in classes)
    else:
        has_head = "lm_head" in components_in_file(names, config, settings)
    require(
        not (has_head or predicts_tokens),
        f"tie_word_embeddings is false, but there is no {layers[0]}: the output layer is missing",
        where,
        "get the whole model; or set it to true in config.json, if the output layer is the "
        "embedding matrix",
    )


def redundant_tensors(names: Collection[str], family: str = "bert") -> list[str]:
    """Return the names in a file that `from_huggingface` does not need.

    They are buffers, and copies of other tensors.
    """
    f = FAMILIES[family]
    bare = {name.removeprefix(f.prefix): name for name in names}
    return sorted(
        name for short, name in bare.items() if _is_buffer(short, f) or f.tied.get(short) in bare
    )


def unread_tensors(names: Collection[str], family: str) -> list[str]:
    """Return the names in a file of heads of pre-training that are left out."""
    f = FAMILIES[family]
    return sorted(name for name in names if name.removeprefix(f.prefix) in f.unread)


def _is_buffer(name: str, family: Family) -> bool:
    return re.sub(r"\.\d+\.", ".#.", f".{name}").removeprefix(".") in family.buffers


def _parameters(
    config: EncoderConfig,
    names: Collection[str],
    architecture: str | None = None,
    classes: Collection[str] = (),
) -> tuple[_Parameter, ...]:
    """Return the table of a family for a file: one entry for each parameter of ours.

    Args:
        names: those of the file.
        architecture: their class; None: the one, among those with rows of their own, that has these
            names; of several the one in `classes`, or else the first.
    """
    if architecture is None:
        by_class = FAMILIES[config.family].by_class
        fitting = [
            kind
            for kind, rows in by_class.items()
            if all(name in names for name in _names_of_class(rows, config))
        ]
        fitting.sort(key=lambda kind: kind not in classes)
        architecture = next(iter(fitting), None)
    components = component_names(names) & {"pooler", "recurrent"}
    return _table(config, architecture, components)


def _names_of_class(rows: Rows, config: EncoderConfig) -> Iterable[str]:
    """Yield the names in a file that has all of the rows of a class."""
    for pattern, row in rows.items():
        for end in ("weight", "bias") if "*" in pattern else ("",):
            if not _is_absent(pattern.replace("*", end), config):
                yield from (name.replace("*", end) for name in row[1:])


def _is_absent(name: str, config: EncoderConfig) -> bool:
    """Return whether a network lacks a parameter of its family.

    name: of the parameter in bertworks.
    """
    if name.startswith("encoder.blocks.0.attention_norm."):
        return not (config.first_norm and (config.norm_bias or name.endswith(".weight")))
    layer, _, end = name.rpartition(".")
    if end != "bias":
        return False
    part = layer.rpartition(".")[2]
    if part == "norm" or part.endswith("_norm"):
        return not config.norm_bias
    if layer == "lm_head":
        return not config.lm_head_bias
    if layer in ("lm_head.dense", "transform.dense"):
        return not config.transform_bias
    if part in ("up", "down"):
        return not config.feed_forward_bias
    return layer.endswith((".attention.qkv", ".attention.output")) and not config.attention_bias


@cache
def _table(
    config: EncoderConfig, architecture: str | None, components: frozenset[str]
) -> tuple[_Parameter, ...]:
    """Return the rows of a family with their signs replaced by the sizes of a network.

    Args:
        architecture: their class, or None if no class has rows of its own.
        components: which of pooler and recurrent the file has.
    """
    family = FAMILIES[config.family]
    if family.has_own_names:
        return _own_table(config)
    hidden = config.hidden_size
    sizes = {
        "V": config.vocab_size,
        "P": config.max_position_embeddings,
        "T": config.type_vocab_size,
        "E": config.embedding_width,
        "H": hidden,
        "I": config.ffn_size,
        "U": config.ffn_size * (1 + config.gated_feed_forward),
        "Q": 3 * hidden,
        "D": hidden // config.num_attention_heads,
        "R": 2 * config.position_buckets,
        "1": 1,
        "2": 2,
        "L": _ANY,
        "A": _ANY,
        "C": hidden if components == {"pooler"} else _ANY,
    }
    heads = {head for names in family.pretraining_of(config) for head in names.split()}
    of_heads = {
        name: row for name, row in family.pretraining_rows.items() if name.split(".")[0] in heads
    }
    rows = {
        **family.rows,
        **of_heads,
        **family.by_class.get(architecture or "", {}),
        **_NAMES["recurrent"],
    }
    absent = ["projection"] * (config.embedding_width == hidden) + ["token_type"] * (
        not config.type_vocab_size
    )
    absent_rows = tuple(f"encoder.embeddings.{table}." for table in absent)
    entries = []
    for pattern, row in rows.items():
        if not row or pattern.startswith(absent_rows):
            continue
        axes, *file_patterns = row
        shape = tuple(sizes[axis] if axis in sizes else vars(config)[axis] for axis in axes.split())
        if pattern == "span.*" and "recurrent" in components:
            shape = (shape[0], _ANY)
        unused_rows = family.unused_positions if pattern.endswith("position.weight") else 0
        blocks = config.num_groups
        if config.decoder is not None and pattern.startswith("decoder."):
            blocks = config.decoder.num_hidden_layers
        for number in map(str, range(blocks)) if "#" in pattern else [""]:
            for end in ("weight", "bias") if "*" in pattern else [""]:
                name, *file_names = [
                    name.replace("#", number).replace("*", end)
                    for name in (pattern, *file_patterns)
                ]
                if _is_absent(name, config):
                    continue
                of_end = shape[:1] if end == "bias" else shape
                is_transposed = name.endswith(family.transposed)
                num_heads = config.num_attention_heads if name.endswith(family.folded) else 0
                entries.append(
                    _Parameter(
                        name, tuple(file_names), of_end, is_transposed, unused_rows, num_heads
                    )
                )
    return tuple(entries)


def _own_table(config: EncoderConfig) -> tuple[_Parameter, ...]:
    """Return the table of a file with the names of bertworks: the parameters of the network.

    Of a network without a decoder also those of the heads of fine-tuning.
    """
    of_family = FAMILIES[config.family].pretraining
    heads = {head for names in of_family for head in get_args(Head) if head in names.split()}
    network = nn.Module()
    with meta_device_init():
        network.encoder = Encoder(config)
        network.register_module("decoder", make_decoder(config))
        add_heads(network, config, heads if config.decoder else heads | {"pooler"})
    shapes = {name: tuple(value.shape) for name, value in network.named_parameters()}
    if config.decoder is None:
        for pattern, (axes, _) in {**_NAMES["recurrent"], **_NAMES["own_heads"]}.items():
            shape = (_ANY,) * len(axes.split())
            ends = ("weight", "bias") if "*" in pattern else ("",)
            for end in ends:
                shapes[pattern.replace("*", end)] = shape[:1] if end == "bias" else shape
    return tuple(_Parameter(name, (name,), shape, False, 0) for name, shape in shapes.items())


def _renamed(state: Mapping[str, Tensor], family: Family, where: object) -> dict[str, Tensor]:
    """With today's names, without the prefix, buffers and copies of tied parameters.

    An original that is missing is taken from its copy.
    """
    tensors: dict[str, Tensor] = {}
    for name, value in state.items():
        new = name.removeprefix(family.prefix)
        for old, today in _NAMES["old"].items():
            new = new.replace(old, today)
        require(new not in tensors, f"two tensors are both {new}: {name} is one of them", where)
        if not _is_buffer(new, family) and new not in family.unread:
            tensors[new] = value
    for name in [name for name in family.tied if name in tensors]:
        copy = tensors.pop(name)
        original = tensors.setdefault(family.tied[name], copy)
        what = (
            f"{name} differs from {family.tied[name]}: only models with an output layer tied "
            "to the embeddings"
        )
        is_equal = copy.dtype == original.dtype and torch.equal(copy, original)
        require(is_equal, f"{what} are supported", where)
    return tensors


def _check_position_tables(tensors: dict[str, Tensor], family: Family, where: object) -> None:
    """Remove the tables of sines and cosines, after they were compared with the formula."""
    for name in family.position_tables:
        if name not in tensors:
            continue
        table = tensors.pop(name)
        is_equal = table.dim() == 2 and torch.allclose(
            table.double(),
            sinusoids(torch.arange(len(table)), table.shape[1]),
            atol=_POSITIONS_TOLERANCE,
        )
        require(
            is_equal,
            f"{name} differs from the sines and cosines of its positions: only these are supported",
            where,
        )


def _present(
    table: Iterable[_Parameter],
    names: Collection[str],
    names_of: Callable[[_Parameter], Sequence[str]],
    where: object,
) -> list[_Parameter]:
    """Return the parameters of the encoder and of the heads that have one of the names.

    names_of: a parameter's own.

    Raises:
        BertworksError: a name of no parameter, or a head or an encoder that is incomplete.
    """
    there = set(names)
    if unknown := there.difference(*map(names_of, table)):
        raise BertworksError(
            f"{some_names(unknown)}: no place for this in a BERT of this configuration",
            where=where,
            hint=f"{_OTHER_CONFIG}; other networks than BERT cannot be read",
        )
    begun = {p.component for p in table if not there.isdisjoint(names_of(p))}
    begun |= {"encoder", "decoder"}
    present = [p for p in table if p.component in begun]
    if missing := {name for p in present for name in names_of(p)} - there:
        raise BertworksError(
            f"incomplete: {some_names(missing)} missing",
            where=where,
            hint="the file is truncated or not a whole model: download it again",
        )
    return present


def _check_shape(name: str, value: Tensor, shape: Sequence[int], where: object) -> None:
    fits = value.dim() == len(shape) and all(
        size in (_ANY, length) for size, length in zip(shape, value.shape)
    )
    axes = ", ".join("any" if size == _ANY else str(size) for size in shape)
    require(
        fits and value.is_floating_point(),
        f"{name} is {value.dtype} {list(value.shape)}, but the configuration expects "
        f"floating-point numbers of the shape [{axes}]",
        where,
        _OTHER_CONFIG,
    )
