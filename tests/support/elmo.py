"""Files of AllenNLP's ELMo with random weights, and their states in numpy as TensorFlow computes
them: one text at a time, one word at a time."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
OPTIONS: dict[str, Any] = {
    "bidirectional": True,
    "char_cnn": {
        "activation": "relu",
        "embedding": {"dim": 4},
        "filters": [[1, 4], [2, 8], [3, 16], [7, 6]],
        "max_characters_per_token": 50,
        "n_characters": 262,
        "n_highway": 2,
    },
    "dropout": 0.1,
    "lstm": {
        "cell_clip": 3,
        "dim": 24,
        "n_layers": 2,
        "proj_clip": 3,
        "projection_dim": 10,
        "use_skip_connections": True,
    },
    "n_tokens_vocab": 793471,
}
BEGIN, END = ([258, mark, 259] + [260] * 47 for mark in (256, 257))


def arrays_of(options: dict[str, Any] = OPTIONS, scale: float = 0.8) -> dict[str, Any]:
    """Random arrays by their names in a file. scale: of the LSTMs."""
    rng = np.random.default_rng(0)
    characters, lstm = options["char_cnn"], options["lstm"]
    width = characters["embedding"]["dim"]
    total = sum(count for _, count in characters["filters"])
    cells, projection = lstm["dim"], lstm["projection_dim"]
    arrays: dict[str, Any] = {}

    def put(name: str, *shape: int, deviation: float = 0.3) -> None:
        arrays[name] = (rng.normal(size=shape) * deviation).astype("float32")

    put("char_embed", 261, width, deviation=1.0)
    for number, (places, count) in enumerate(characters["filters"]):
        put(f"CNN/W_cnn_{number}", 1, places, width, count)
        put(f"CNN/b_cnn_{number}", count)
    for number in range(characters["n_highway"]):
        for gate in ("carry", "transform"):
            put(f"CNN_high_{number}/W_{gate}", total, total)
            put(f"CNN_high_{number}/b_{gate}", total, deviation=0.5)
    put("CNN_proj/W_proj", total, projection)
    put("CNN_proj/b_proj", projection)
    for direction in (0, 1):
        for layer in range(lstm["n_layers"]):
            cell = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            put(f"{cell}/W_0", 2 * projection, 4 * cells, deviation=scale)
            put(f"{cell}/B", 4 * cells, deviation=0.5)
            put(f"{cell}/W_P_0", cells, projection, deviation=scale)
    return arrays


def write_elmo(
    folder: Path, options: dict[str, Any] = OPTIONS, arrays: dict[str, Any] | None = None
) -> tuple[Path, Path]:
    """Write weights.hdf5 and options.json."""
    import h5py

    folder.mkdir(parents=True, exist_ok=True)
    weights, text = folder / "weights.hdf5", folder / "options.json"
    with h5py.File(weights, "w") as file:
        for name, array in (arrays_of(options) if arrays is None else arrays).items():
            file.create_dataset(name, data=array)
    text.write_text(json.dumps(options))
    return weights, text


def spelled(word: str) -> list[int]:
    row = [258, *word.encode("utf-8", "ignore")[:48], 259]
    return row + [260] * (50 - len(row))


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def words_of(rows: Sequence[Sequence[int]], arrays: dict[str, Any], options: dict[str, Any]) -> Any:
    """The vectors of spelled words."""
    w = {name: np.asarray(array, np.float64) for name, array in arrays.items()}
    characters = options["char_cnn"]
    activation = np.tanh if characters["activation"] == "tanh" else lambda x: np.maximum(x, 0)
    vectors = []
    for row in rows:
        x = w["char_embed"][list(row)]
        parts = []
        for number, (places, _) in enumerate(characters["filters"]):
            kernel = w[f"CNN/W_cnn_{number}"][0]
            windows = [
                np.einsum("we,wen->n", x[n : n + places], kernel) for n in range(51 - places)
            ]
            parts.append(activation(np.max(windows, axis=0) + w[f"CNN/b_cnn_{number}"]))
        y = np.concatenate(parts)
        for number in range(characters["n_highway"]):
            prefix = f"CNN_high_{number}"
            gate = sigmoid(y @ w[f"{prefix}/W_carry"] + w[f"{prefix}/b_carry"])
            added = np.maximum(y @ w[f"{prefix}/W_transform"] + w[f"{prefix}/b_transform"], 0)
            y = gate * added + (1 - gate) * y
        vectors.append(y @ w["CNN_proj/W_proj"] + w["CNN_proj/b_proj"])
    return np.array(vectors)


def states_of(
    words: Sequence[str], arrays: dict[str, Any], options: dict[str, Any] = OPTIONS
) -> tuple[Array, int, int]:
    """The states of a text, [layers + 1, words, width], and how many cells and outputs are at the
    clips."""
    states, at_cell_clip, at_clip = marked_states_of(words, arrays, options)
    return states[:, 1:-1], at_cell_clip, at_clip


def marked_states_of(
    words: Sequence[str], arrays: dict[str, Any], options: dict[str, Any] = OPTIONS
) -> tuple[Array, int, int]:
    """The same with the states of both marks: [layers + 1, words + 2, width]."""
    w = {name: np.asarray(array, np.float64) for name, array in arrays.items()}
    lstm = options["lstm"]
    token = words_of([BEGIN, *map(spelled, words), END], arrays, options)
    layers = [np.concatenate([token, token], 1)]
    halves: dict[int, list[Array]] = {0: [], 1: []}
    at_cell_clip = at_clip = 0
    cell_clip, clip = (lstm[name] or np.inf for name in ("cell_clip", "proj_clip"))
    for direction in (0, 1):
        x = token[::-1] if direction else token
        for layer in range(lstm["n_layers"]):
            cell = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            h, c = np.zeros(lstm["projection_dim"]), np.zeros(lstm["dim"])
            outputs = []
            for vector in x:
                z = np.concatenate([vector, h]) @ w[f"{cell}/W_0"] + w[f"{cell}/B"]
                i, j, f, o = np.split(z, 4)
                c = sigmoid(f + 1) * c + sigmoid(i) * np.tanh(j)
                c = np.clip(c, -cell_clip, cell_clip)
                h = np.clip((sigmoid(o) * np.tanh(c)) @ w[f"{cell}/W_P_0"], -clip, clip)
                at_cell_clip += int((np.abs(c) == cell_clip).sum())
                at_clip += int((np.abs(h) == clip).sum())
                outputs.append(h)
            x = np.array(outputs) + x if layer else np.array(outputs)
            halves[direction].append(x[::-1] if direction else x)
    layers += [np.concatenate(pair, 1) for pair in zip(halves[0], halves[1], strict=True)]
    return np.stack(layers), at_cell_clip, at_clip
