"""A model folder: config.json, model.safetensors, tokenizer files and README.md, as Hugging Face's tools expect them.

It builds no network. Folders may come from strangers: nothing in them is executed, and pickles are never opened.
"""

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from bertworks.checkpoints import hf_mapping
from bertworks.checkpoints.sentence_transformers import weights_folder
from bertworks.checkpoints.storage import read_json, read_tensors, refuse_non_finite, write_tensors
from bertworks.errors import BertworksError
from bertworks.io.atomic_write import replacing, sha256, write_text
from bertworks.models.config import PRETRAINING_HEADS, EncoderConfig
from bertworks.text.tokenizer import Tokenizer

WEIGHTS = "model.safetensors"
EXPORTED = "model.onnx"  # in the place of the weights, in a folder that `doors.export` wrote
_INDEX = "model.safetensors.index.json"


class Model(NamedTuple):
    """What a model folder holds."""

    config: EncoderConfig
    state: dict[str, Tensor]  # float32, under our names; `foreign.parts_of(state)` says which parts there are
    tokenizer: Tokenizer


def save_model(
    folder: str | Path,
    state: Mapping[str, Tensor],
    config: EncoderConfig,
    tokenizer: Tokenizer,
    *,
    card: str,
    head: Mapping[str, Any] | None = None,
) -> None:
    """Write the folder, making it if need be. Each file is replaced atomically; other files in it stay.

    The weights come after all that is needed to read them, so that a folder with weights is a whole one.

    Args:
        state: parameters under our names: an encoder, and the heads that there are.
        card: the text of README.md (`model_card`).
        head: what config.json says of the head of a fine-tuned model (`task.settings_of`): its class and its labels.

    Raises:
        BertworksError: weights that are not finite, do not fit the configuration or the tokenizer; a full disk.
    """
    folder = Path(folder)
    architecture = str(head["architectures"][0]) if head else None
    theirs = hf_mapping.to_huggingface(state, config, architecture)
    refuse_non_finite(state, str(folder))
    _check_vocabulary(tokenizer, config, folder)
    save_settings(folder, state, config, tokenizer, head=head)
    with replacing(folder / WEIGHTS) as temporary:
        write_tensors(temporary, {name: value.float() for name, value in theirs.items()}, {"format": "pt"})
    write_text(folder / "README.md", card)


def save_settings(
    folder: Path,
    names: Iterable[str],
    config: EncoderConfig,
    tokenizer: Tokenizer,
    *,
    head: Mapping[str, Any] | None = None,
) -> None:
    """All of a model folder but weights and card: config.json and the tokenizer files. names: of the parameters."""
    architectures = [hf_mapping.architecture_of(names, config.family)] if head is None else head["architectures"]
    settings = hf_mapping.config_to_huggingface(config, architectures=architectures, pad_token_id=tokenizer.pad_id)
    settings |= head or {}
    write_text(folder / "config.json", json.dumps(settings, indent=2) + "\n")
    tokenizer.save(folder, has_types=config.type_vocab_size > 1)


def load_settings(folder: Path) -> tuple[EncoderConfig, Tokenizer]:
    """What `save_settings` wrote.

    Raises:
        BertworksError: files missing, damaged or hostile; not a BERT.
    """
    path = folder / "config.json"
    config = hf_mapping.config_from_huggingface(read_json(path), where=str(path))
    tokenizer = Tokenizer.load(folder)
    _check_vocabulary(tokenizer, config, folder)
    return config, tokenizer


def load_model(folder: str | Path, *, needs: Collection[str] = ()) -> Model:
    """Read a folder written by `save_model`, by Hugging Face's BERT, of the body alone or with any head, or by
    sentence-transformers.

    Args:
        needs: parts that the caller cannot do without, such as `masked_lm`.

    Raises:
        BertworksError: files missing, damaged or hostile; not a BERT; a part in `needs` is absent.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise BertworksError("no such model folder", where=str(folder), hint="make one with `bertworks pretrain`")
    folder = weights_folder(folder)
    path = folder / "config.json"
    config = hf_mapping.config_from_huggingface(read_json(path), where=str(path))
    state = load_state(folder, config)
    check_components(hf_mapping.component_names(state), needs, folder)
    tokenizer = Tokenizer.load(folder)
    _check_vocabulary(tokenizer, config, folder)
    return Model(config, state, tokenizer)


def load_state(folder: Path, config: EncoderConfig) -> dict[str, Tensor]:
    """The weights of a model folder as `Model.state` has them.

    Raises:
        BertworksError: files missing, damaged or hostile; not a BERT of this configuration.
    """
    weights, where = read_weights(folder), str(folder / WEIGHTS)
    state = {name: value.float() for name, value in hf_mapping.from_huggingface(weights, config, where=where).items()}
    refuse_non_finite(state, where)
    return state


def check_components(parts: Collection[str], needs: Collection[str], folder: Path) -> None:
    """Raises BertworksError where a model has not the parts that are needed."""
    if absent := sorted(set(needs) - set(parts)):
        raise BertworksError(
            f"this model has no {' and no '.join(absent)} (it has {', '.join(sorted(parts))})",
            where=str(folder),
            hint="use a folder that `bertworks pretrain` made, or one saved as BertForPreTraining",
        )


def weights_sha256(folder: str | Path) -> str:
    """Of the weights of a model folder, or of what was exported: two folders that agree in it hold the same network."""
    folder = Path(folder)
    found = [sha256(path) for path in sorted(folder.glob("model*.safetensors")) or [folder / EXPORTED]]
    return found[0] if len(found) == 1 else hashlib.sha256("".join(found).encode()).hexdigest()


def model_card(
    config: EncoderConfig,
    *,
    name: str,
    recipe: str,
    steps: int,
    tokens: int,
    corpus: Mapping[str, object],
    held_out: Mapping[str, float],
    versions: Mapping[str, str],
    example: str = "The capital of France is [MASK].",
) -> str:
    """The text of README.md: what the model is, what it learned from, how good it is, how to use it.

    Args:
        name: of the model: a line of text, by custom the name of its folder.
        recipe: the resolved recipe, as TOML.
        steps, tokens: updates made and tokens seen.
        corpus: names and counts, such as {"documents": 8000, "sha256": "..."}.
        held_out: figures on text that was not learned from; empty if there are none.
        versions: of the software.
        example: a sentence in the language of the model, with its mask token.
    """
    size = f"{config.num_hidden_layers} layers, hidden size {config.hidden_size}, {config.num_attention_heads} heads"
    parameters = config.num_parameters(*PRETRAINING_HEADS)
    figures = _table("Held-out figure", held_out) if held_out else "No held-out text was evaluated.\n"
    return f"""---
library_name: transformers
pipeline_tag: fill-mask
tags: [bert, bertworks, pretraining]
---

# {" ".join(name.split())}

A BERT encoder pre-trained from raw text with bertworks: {size},
vocabulary of {config.vocab_size:,}, {parameters / 1e6:.1f} million parameters, sequences of at most
{config.max_position_embeddings} tokens. {steps:,} updates on {tokens:,} tokens.

{_usage(json.dumps(example, ensure_ascii=False))}

## Quality

{figures}
It repeats what its text says, with the errors and prejudices of that text.

## Text

{_table("Corpus", corpus)}
## Recipe

```toml
{recipe.strip().replace("```", "'''")}
```

## Software

{_table("Package", versions)}"""


def _usage(example: str) -> str:
    return f"""## Use

```
bertworks fill . {example}
```

```python
from transformers import pipeline

fill = pipeline("fill-mask", model=".")  # the path of this folder
fill({example})
```"""


def _table(title: str, rows: Mapping[str, object]) -> str:
    lines = [f"| {title} | |", "|---|---|"]
    for name, value in rows.items():
        shown = f"{value:,}" if type(value) is int else f"{value:.4f}" if isinstance(value, float) else str(value)
        lines.append(f"| {_cell(name)} | {_cell(shown)} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _check_vocabulary(tokenizer: Tokenizer, config: EncoderConfig, folder: Path) -> None:
    if tokenizer.vocab_size > config.vocab_size:
        raise BertworksError(
            f"the tokenizer has {tokenizer.vocab_size:,} tokens, the model only {config.vocab_size:,}: "
            "they do not belong together",
            where=str(folder),
            hint="put the tokenizer files beside the model that it was trained with",
        )


def is_exported(folder: Path) -> bool:
    """Whether the model of a folder is an ONNX file, and nothing else."""
    return (folder / EXPORTED).is_file() and not any((folder / name).exists() for name in (WEIGHTS, _INDEX))


def read_weights(folder: Path) -> dict[str, Tensor]:
    """All tensors under the names in the file, or in the several files that an index names.

    Raises:
        BertworksError: no such file, or one that is damaged or hostile; only a pickle.
    """
    if (folder / WEIGHTS).exists():
        return read_tensors(folder / WEIGHTS)
    if (index := folder / _INDEX).exists():
        return _read_sharded(folder, index)
    pickles = [name for name in ("pytorch_model.bin", "pytorch_model.bin.index.json") if (folder / name).exists()]
    if pickles:
        raise BertworksError(
            f"only {pickles[0]}: a pickle, which can run any program when it is opened, and is not read",
            where=str(folder),
            hint='if you trust where it comes from, convert it with transformers: python -c "from transformers import '
            f"AutoTokenizer as T, {_class_of(folder)} as M; f, to = '{folder}', '{folder}-safe'; "
            'M.from_pretrained(f).save_pretrained(to); T.from_pretrained(f).save_pretrained(to)"',
        )
    if is_exported(folder):
        raise BertworksError(
            f"only {EXPORTED}: an exported model, which gives what was exported and can do nothing else",
            where=str(folder),
            hint="name the folder that it was exported from",
        )
    raise BertworksError(f"there is no {WEIGHTS}", where=str(folder), hint="choose a folder that holds a model")


def _class_of(folder: Path) -> str:
    """What transformers calls the network of a folder. With another class it would leave the head out."""
    named = read_json(folder / "config.json").get("architectures") if (folder / "config.json").exists() else None
    name = named[0] if isinstance(named, list) and len(named) == 1 else None
    return name if isinstance(name, str) and re.fullmatch(r"[A-Z]\w+For\w+|[A-Z]\w+Model", name) else "AutoModel"


def _read_sharded(folder: Path, index: Path) -> dict[str, Tensor]:
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(file, str) for file in places.values()):
        raise BertworksError("weight_map is missing or not a table of file names", where=str(index))
    tensors: dict[str, Tensor] = {}
    for file in sorted(set(places.values())):
        if Path(file).name != file or not file.endswith(".safetensors"):
            raise BertworksError(f"{file[:100]!r} is not the name of a safetensors file beside it", where=str(index))
        tensors |= read_tensors(folder / file)
    if strays := set(places) ^ set(tensors):
        raise BertworksError(f"the index and its files disagree about {sorted(strays)[0]}", where=str(index))
    return tensors
