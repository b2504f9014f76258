"""Read the published weights of ELMo (Peters et al. 2018), the files of AllenNLP.

They are a file of weights in HDF5 and an options.json, as `dump_weights` of allenai/bilm-tf writes
them. There is no vocabulary, as words are read by their bytes, and no output layer.

- `is_hdf5`: whether a file is in this format
- `load_elmo`: both files -> a model, with notes

Files may come from strangers: only arrays of numbers are read from HDF5, each by the name and with
the shape that options.json implies. Links, filters, references and further arrays are refused.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertworks.checkpoints.hf_config import FAMILIES
from bertworks.checkpoints.model_folder import Model
from bertworks.checkpoints.storage import DAMAGED, read_json, refuse_non_finite
from bertworks.errors import (
    BertworksError,
    explain_os_errors,
    optional_import,
    require,
    some_names,
)
from bertworks.events import JsonObject
from bertworks.models.config import EncoderConfig
from bertworks.models.embeddings import NUM_CHARACTERS
from bertworks.models.settings import SPELLING_LENGTH, CharactersConfig
from bertworks.text.tokenizer import spelling_tokenizer

EXTRA = '"bertworks[elmo]"'
_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_MOST_ENTRIES = 1000  # of a group; those of published files have up to 14
_LARGEST_OVERHEAD = 1 << 22  # bytes of a file besides its numbers
# Of LSTMs in TensorFlow the columns are input gate, candidate, forget gate, output gate; in
# `DirectedLSTM` the candidate comes third.
_GATES = [0, 2, 1, 3]
_DIRECTIONS = "left_to_right", "right_to_left"
_OTHER_NETWORK = "only the ELMo of Peters et al. 2018 with characters and projected LSTMs is read"
_GET_AGAIN = "get weights and options again: both belong together"

Shapes = Mapping[str, tuple[int, ...]]


def is_hdf5(path: Path) -> bool:
    """Return whether a file begins as files of HDF5 do, or has the ending of one."""
    if path.suffix in (".hdf5", ".h5"):
        return True
    if not path.is_file():
        return False
    with explain_os_errors("cannot be read", path), path.open("rb") as file:
        return file.read(len(_SIGNATURE)) == _SIGNATURE


def load_elmo(weights: Path, options: Path) -> tuple[Model, list[str]]:
    """Read the weights and the options of an ELMo as a model, with notes for users.

    The state is float32, with the values of the file: matrices are transposed, and the gates have
    the order of torch. The 1 that TensorFlow adds to the forget gate is no part of either.

    Raises:
        BertworksError: h5py is not installed; a file is missing, damaged or hostile, or has another
            network; the two files do not belong together.
    """
    content = read_json(options)
    config = _config(content, options)
    arrays = _read_arrays(weights, _shapes(config))
    state = _state(arrays, config)
    refuse_non_finite(state, weights)
    notes = [
        "each text begins from zero states: the published tables were made with the states of the "
        "batch before",
        f"texts of more than {config.max_position_embeddings:,} words are cut, and counted",
    ]
    unused = {key: value for key, value in content.items() if key not in ("lstm", "char_cnn")}
    if unused:
        facts = ", ".join(f"{key} {value!r:.40}" for key, value in sorted(unused.items()))
        notes.append(f"of options.json without use, as it is about the training: {facts}")
    return Model(config, state, spelling_tokenizer(config.max_position_embeddings)), notes


def _config(content: JsonObject, path: Path) -> EncoderConfig:
    """Return the network that an options.json describes.

    Raises:
        BertworksError: a network of another kind, or a value that makes no sense.
    """
    require(
        "transformer" not in content,
        f"an ELMo of Transformers (Peters et al. 2018b): {_OTHER_NETWORK}",
        path,
    )
    require(
        "char_cnn" in content,
        f"there is no char_cnn, so the network reads numbers of words: {_OTHER_NETWORK}",
        path,
    )
    lstm = _table(content, "lstm", path)
    characters = _table(content, "char_cnn", path)
    width: Any = _table(characters, "embedding", path).get("dim")
    highways: Any = characters.get("n_highway")
    require(
        lstm.get("use_skip_connections") is True,
        f"lstm.use_skip_connections is {lstm.get('use_skip_connections')!r:.40}: only true is "
        "supported",
        path,
    )
    for name, values in {
        "n_characters": (NUM_CHARACTERS, NUM_CHARACTERS + 1),  # of a training, of its use
        "max_characters_per_token": (SPELLING_LENGTH,),
        "activation": ("relu", "tanh"),
    }.items():
        value = characters.get(name)
        require(
            type(value) is type(values[0]) and value in values,
            f"char_cnn.{name} is {value!r:.40}: only {' or '.join(map(str, values))} is supported",
            path,
        )
    pairs: Any = characters.get("filters")
    require(
        isinstance(pairs, list)
        and all(
            isinstance(pair, list) and len(pair) == 2 and all(type(n) is int for n in pair)
            for pair in pairs
        ),
        f"char_cnn.filters is {pairs!r:.60}: expected a list of pairs, the width and the number of "
        "filters of each kind",
        path,
    )
    sizes: JsonObject = {}
    for name in ("dim", "projection_dim", "n_layers"):
        sizes[name] = lstm.get(name)
        require(
            type(sizes[name]) is int and sizes[name] >= 1,
            f"lstm.{name} is {sizes[name]!r:.40}: expected a whole number from 1",
            path,
        )
    require(
        sizes["dim"] != sizes["projection_dim"],
        f"lstm.dim and lstm.projection_dim are both {sizes['dim']}: a projection to the same "
        "width is not supported",
        path,
    )
    clips = {}
    for name in ("cell_clip", "proj_clip"):
        value = lstm.get(name)
        require(
            value is None or (type(value) in (int, float) and value > 0),
            f"lstm.{name} is {value!r:.40}: expected a number above 0, or null",
            path,
        )
        clips[name] = float(value or 0)
    try:
        return replace(
            FAMILIES["elmo"].default,
            hidden_size=2 * sizes["projection_dim"],
            intermediate_size=sizes["dim"],
            num_hidden_layers=sizes["n_layers"],
            cell_clip=clips["cell_clip"],
            projection_clip=clips["proj_clip"],
            characters=CharactersConfig(
                size=width,
                widths=tuple(places for places, _ in pairs),
                filters=tuple(count for _, count in pairs),
                highways=highways,
                activation=characters["activation"],
            ),
        )
    except ValueError as error:
        raise BertworksError(str(error), where=path, hint=_GET_AGAIN) from error


def _table(content: JsonObject, name: str, path: Path) -> JsonObject:
    table: Any = content.get(name)
    require(isinstance(table, dict), f"{name} is {table!r:.40}: expected a table", path, _GET_AGAIN)
    return dict(table)


def _lstm(direction: int, layer: int) -> str:
    return f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"


def _shapes(config: EncoderConfig) -> dict[str, tuple[int, ...]]:
    """Return the arrays of a file, with their shapes."""
    characters = config.characters
    assert characters is not None
    width = config.hidden_size // 2
    cells = config.ffn_size
    total = sum(characters.filters)
    shapes: dict[str, tuple[int, ...]] = {"char_embed": (NUM_CHARACTERS, characters.size)}
    kinds = zip(characters.widths, characters.filters, strict=True)
    for number, (places, count) in enumerate(kinds):
        shapes[f"CNN/W_cnn_{number}"] = (1, places, characters.size, count)
        shapes[f"CNN/b_cnn_{number}"] = (count,)
    for number in range(characters.highways):
        for gate in ("carry", "transform"):
            shapes[f"CNN_high_{number}/W_{gate}"] = (total, total)
            shapes[f"CNN_high_{number}/b_{gate}"] = (total,)
    shapes["CNN_proj/W_proj"] = (total, width)
    shapes["CNN_proj/b_proj"] = (width,)
    for direction in range(2):
        for layer in range(config.num_hidden_layers):
            cell = _lstm(direction, layer)
            shapes[f"{cell}/W_0"] = (2 * width, 4 * cells)
            shapes[f"{cell}/B"] = (4 * cells,)
            shapes[f"{cell}/W_P_0"] = (cells, width)
    return shapes


def _read_arrays(path: Path, shapes: Shapes) -> dict[str, NDArray[np.float32]]:
    """Return the arrays of a file by name: exactly those that are expected."""
    with optional_import("reading the weights of an ELMo", EXTRA):
        import h5py
    needed = 4 * sum(map(prod, shapes.values()))
    with explain_os_errors("cannot be read", path):
        require(path.exists(), "there is no such file", path, _GET_AGAIN)
        require(path.is_file(), "a folder, a pipe or a device", path)
        size = path.stat().st_size
        with path.open("rb") as raw:
            start = raw.read(len(_SIGNATURE))
    require(start == _SIGNATURE, "not a file of HDF5", path, _GET_AGAIN)
    require(
        size <= needed + _LARGEST_OVERHEAD,
        f"the file has {size:,} bytes, but the numbers of this network need only {needed:,}",
        path,
        _GET_AGAIN,
    )
    # h5py and the C library below it have many kinds of errors for damaged files
    try:
        with h5py.File(path, "r") as file:
            sets = dict(_data_sets(file, "", shapes, path, h5py))
            _check_names(sets.keys(), shapes, path)
            for name, shape in shapes.items():
                _check_data_set(name, sets[name], shape, path)
            return {name: np.asarray(sets[name][...], np.float32) for name in shapes}
    except BertworksError:
        raise
    except Exception as error:
        text = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise BertworksError(f"a damaged file of HDF5: {text}", where=path, hint=DAMAGED) from error


def _data_sets(
    group: Any, prefix: str, shapes: Shapes, path: Path, h5py: Any
) -> Iterator[tuple[str, Any]]:
    """Yield the data sets below a group by their whole names; of unknown groups only the names."""
    names = list(islice(group, _MOST_ENTRIES + 1))
    require(len(names) <= _MOST_ENTRIES, f"more than {_MOST_ENTRIES:,} entries in a group", path)
    for part in names:
        name = f"{prefix}{part}"
        require(
            isinstance(group.get(part, getlink=True), h5py.HardLink),
            f"{name!r:.60} is a link to another place or file, which is not followed",
            path,
        )
        kind = group.get(part, getclass=True)
        is_group_of_network = any(known.startswith(f"{name}/") for known in shapes)
        if kind is h5py.Group and is_group_of_network:
            yield from _data_sets(group[part], f"{name}/", shapes, path, h5py)
        else:
            require(
                name not in shapes or kind is h5py.Dataset,
                f"{name} is not an array of numbers",
                path,
                _GET_AGAIN,
            )
            yield name, group[part] if name in shapes else None


def _check_names(names: Any, shapes: Shapes, path: Path) -> None:
    """Refuse a file with other arrays, in words where it is a known kind of other network."""
    names = set(names)
    require(
        "embedding" not in names,
        f"it has a vector for each word of a vocabulary (embedding): {_OTHER_NETWORK}",
        path,
    )
    missing = shapes.keys() - names
    require(
        "CNN_proj/W_proj" not in missing,
        f"there is no projection of the characters (CNN_proj): {_OTHER_NETWORK}",
        path,
    )
    single = sorted(name for name in names if re.match(r"RNN_\d/RNN/(?!MultiRNNCell/)", name))
    require(
        not single,
        f"LSTMs of one layer ({some_names(single, 1)}), which have other names: {_OTHER_NETWORK}",
        path,
    )
    projections = sorted(
        name
        for name in missing
        if name.endswith("/W_P_0") and name.replace("/W_P_0", "/W_0") in names
    )
    require(
        not projections,
        f"there is no projection of the LSTMs ({some_names(projections, 2)}): {_OTHER_NETWORK}",
        path,
    )
    require(
        not missing,
        f"the file lacks {some_names(missing, 4)}, which this options.json implies",
        path,
        _GET_AGAIN,
    )
    further = names - shapes.keys()
    require(
        not further,
        f"the file has {some_names(further, 4)}, for which this options.json has no place",
        path,
        _GET_AGAIN,
    )


def _check_data_set(name: str, data: Any, shape: tuple[int, ...], path: Path) -> None:
    """Refuse an array that is not stored as plain numbers in this file."""
    require(
        data.dtype.kind == "f" and data.dtype.itemsize == 4,
        f"{name} has the type {data.dtype!s:.40}: expected float32",
        path,
        _GET_AGAIN,
    )
    require(
        data.shape == shape,
        f"{name} has the shape {list(data.shape or ())}, but options.json implies {list(shape)}",
        path,
        _GET_AGAIN,
    )
    is_plain = not data.is_virtual and not data.external
    filters = data.id.get_create_plist().get_nfilters()
    require(
        is_plain and not filters,
        f"{name} is compressed, or lies in another file, which is not read",
        path,
        "save the file with h5py without compression",
    )
    # A part that was never written would be read as zeros, however large it is.
    stored = data.id.get_storage_size()
    require(
        stored >= 4 * prod(shape),
        f"{name} has {stored:,} bytes in the file, and needs {4 * prod(shape):,}",
        path,
        DAMAGED,
    )


def _state(arrays: Mapping[str, NDArray[np.float32]], config: EncoderConfig) -> dict[str, Tensor]:
    """Return the arrays of a file as the parameters of the encoder."""
    characters = config.characters
    assert characters is not None
    tensors = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
    width = config.hidden_size // 2
    state = {"embeddings.character.weight": tensors["char_embed"]}
    for number in range(len(characters.filters)):
        name = f"embeddings.filters.{number}"
        state[f"{name}.weight"] = tensors[f"CNN/W_cnn_{number}"][0].permute(2, 1, 0)
        state[f"{name}.bias"] = tensors[f"CNN/b_cnn_{number}"]
    for number in range(characters.highways):
        # the gate of what is added is called carry in these files
        parts = [f"CNN_high_{number}/{{}}_{gate}" for gate in ("transform", "carry")]
        name = f"embeddings.highways.{number}"
        matrices = [tensors[part.format("W")].t() for part in parts]
        state[f"{name}.weight"] = torch.cat(matrices)
        state[f"{name}.bias"] = torch.cat([tensors[part.format("b")] for part in parts])
    state["embeddings.projection.weight"] = tensors["CNN_proj/W_proj"].t()
    state["embeddings.projection.bias"] = tensors["CNN_proj/b_proj"]
    for number, direction in enumerate(_DIRECTIONS):
        for layer in range(config.num_hidden_layers):
            cell = _lstm(number, layer)
            name = f"blocks.{layer}.{direction}"
            matrix = _by_gates(tensors[f"{cell}/W_0"].t())
            state[f"{name}.weight_ih"] = matrix[:, :width]
            state[f"{name}.weight_hh"] = matrix[:, width:]
            state[f"{name}.bias"] = _by_gates(tensors[f"{cell}/B"])
            state[f"{name}.weight_hr"] = tensors[f"{cell}/W_P_0"].t()
    return {f"encoder.{name}": value.contiguous() for name, value in state.items()}


def _by_gates(rows: Tensor) -> Tensor:
    """Return the rows of the four gates in the order of torch."""
    parts = rows.chunk(4)
    return torch.cat([parts[number] for number in _GATES])
