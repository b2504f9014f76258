"""Google's checkpoints of BERT -> a Model: bert_model.ckpt, with bert_config.json and vocab.txt beside it.

How such a checkpoint is stored, `bundle` knows; what its variables are called, `foreign`. This room finds the files,
takes each variable for a parameter, and says what it left out and what it had to decide.
"""

import re
from collections.abc import Collection
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal, NamedTuple

import torch

from bertworks.errors import BertworksError
from bertworks.files import foreign
from bertworks.files.bundle import Variable, read_index
from bertworks.files.model import Model
from bertworks.files.storage import read_json, refuse_non_finite
from bertworks.text.tokenizer import Tokenizer

Gelu = Literal["tanh", "exact"]


class Imported(NamedTuple):
    """A checkpoint as a model, and what a person should know of it."""

    model: Model
    notes: tuple[str, ...]


def find_checkpoint(path: Path) -> Path | None:
    """The name of a checkpoint without `.index`: given so, or by one of its files, or as the folder of just one.

    None: there is none. Raises BertworksError where a folder holds several.
    """
    if path.is_dir():
        found = sorted(path.glob("*.index"))
        if len(found) > 1:
            names = ", ".join(str(index.with_suffix("")) for index in found[:4])
            raise BertworksError("several checkpoints in this folder", where=str(path), fix=f"give one of {names}")
        return found[0].with_suffix("") if found else None
    prefix = path.with_name(re.sub(r"\.(index|meta|data-\d{5}-of-\d{5})$", "", path.name))
    there = [f"{prefix}{end}" for end in (".index", ".data-00000-of-00001") if Path(f"{prefix}{end}").exists()]
    return prefix if prefix.name and there else None


def load_checkpoint(
    prefix: Path,
    *,
    config: Path | None = None,
    vocabulary: Path | None = None,
    lowercase: bool | None = None,
    gelu: Gelu = "tanh",
    leave_out: Collection[str] = (),
) -> Imported:
    """Read a checkpoint of google-research/bert: pre-trained, or fine-tuned by run_classifier.py or run_squad.py.

    The state of its optimiser is left out, and counted. Everything is checked by names and shapes before a number is
    read, and each variable against its checksum.

    Args:
        prefix: of the checkpoint, as `find_checkpoint` gives it.
        config, vocabulary: None: bert_config.json and vocab.txt beside it.
        lowercase: None: as the names of checkpoint and folder say (cased, uncased), else as the vocabulary looks.
        gelu: what "gelu" in the configuration means: the approximation by tanh, which Google's code computes, or the
            exact function, which Hugging Face's conversions of the same checkpoints compute.
        leave_out: names or patterns (`*`) of variables that are not wanted.

    Raises:
        BertworksError: files missing or damaged, a variable that is none of a BERT of this configuration (named), or
            one that is missing.
    """
    index = f"{prefix}.index"
    variables = read_index(prefix)
    settings_path = config or _beside(prefix, "bert_config.json", "--config")
    settings = {"model_type": "bert"} | read_json(settings_path)
    approximate = settings.get("hidden_act", "gelu") == "gelu" and gelu == "tanh"
    settings |= {"hidden_act": "gelu_new"} if approximate else {}
    encoder = foreign.config_from_huggingface(settings, where=str(settings_path))
    names = foreign.names_of_google(encoder)
    slots = [name for name in variables if foreign.is_of_optimizer(name)]
    unwanted = [name for name in variables if any(fnmatchcase(name, pattern) for pattern in leave_out)]
    wanted = {name: found for name, found in variables.items() if name not in {*slots, *unwanted}}
    _refuse_unknown(wanted, names, index)
    shapes = {names[name]: torch.empty(_shape(name, v), dtype=v.dtype, device="meta") for name, v in wanted.items()}
    foreign.from_huggingface(shapes, encoder, where=index)
    said, why = _casing(prefix) if lowercase is None else (lowercase, "as it was asked for")
    path = vocabulary or _beside(prefix, "vocab.txt", "--vocab")
    tokenizer = Tokenizer.from_vocabulary(path, lowercase=said, model_max_length=encoder.max_position_embeddings)
    if tokenizer.vocab_size > encoder.vocab_size:
        sizes = f"{tokenizer.vocab_size:,} tokens, but the model has {encoder.vocab_size:,}"
        raise BertworksError(sizes, where=str(path), fix="give the vocab.txt of this checkpoint: --vocab FILE")
    theirs = {names[name]: v.read().float() for name, v in wanted.items()}
    theirs |= {names[name]: theirs[names[name]].T for name in wanted if _is_transposed(name)}
    state = foreign.from_huggingface(theirs, encoder, where=index)
    refuse_non_finite(state, index)
    notes = [f"left out: {len(slots)} variables of the optimiser"] * bool(slots)
    notes += [f"left out, as it was asked for: {', '.join(unwanted)}"] * bool(unwanted)
    notes += [f"text is {'lower-cased' if said else 'left as it is (cased)'}, {why}"] * (said is not None)
    if approximate:
        notes.append(
            "gelu is the approximation by tanh, as Google's code computes it (hidden_act gelu_new); Hugging Face's "
            "conversions say gelu, the exact function, which differs in the third decimal: --gelu exact"
        )
    return Imported(Model(encoder, state, tokenizer), (*notes, *tokenizer.notes))


def _is_transposed(name: str) -> bool:
    return name.endswith("/kernel")


def _shape(name: str, variable: Variable) -> tuple[int, ...]:
    """As the parameter has it."""
    return variable.shape[::-1] if _is_transposed(name) else variable.shape


def _refuse_unknown(wanted: dict[str, Variable], names: dict[str, str], where: str) -> None:
    if any("/.ATTRIBUTES/" in name for name in wanted):
        raise BertworksError(
            "a checkpoint of TensorFlow 2's objects, whose variables have no names of their own: only checkpoints as "
            "google-research/bert writes them (TensorFlow 1) are read",
            where=where,
        )
    if unknown := sorted(name for name in wanted if name not in names or wanted[name].dtype is None):
        listed = ", ".join(name[:120] for name in unknown[:8])
        more = f" and {len(unknown) - 8} more" if len(unknown) > 8 else ""
        raise BertworksError(
            f"variables with no place in a BERT of this configuration: {listed}{more}",
            where=where,
            fix=f"give the bert_config.json of this checkpoint, or go on without: --leave-out '{unknown[0][:120]}'",
        )


def _beside(prefix: Path, name: str, option: str) -> Path:
    if not (path := prefix.with_name(name)).exists():
        raise BertworksError(f"there is no {name} beside the checkpoint", where=str(prefix), fix=f"{option} FILE")
    return path


def _casing(prefix: Path) -> tuple[bool | None, str]:
    """What the names of the checkpoint and of its folder say, and which did: such as uncased_L-12_H-768_A-12."""
    for name in (prefix.name, prefix.resolve().parent.name):
        if match := re.search(r"(un)?cased", name.lower()):
            return match[1] is not None, f"as the name {name} says (--cased or --uncased decides)"
    return None, ""
