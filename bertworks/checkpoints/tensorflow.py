"""Google's TensorFlow checkpoints of BERT -> a model: bert_model.ckpt with bert_config.json and vocab.txt. No
TensorFlow.

- `read_index`: `NAME.index`, a sorted table of LevelDB (blocks of names with shared beginnings and checksums) whose
  values are protobuf messages -> the variables in `NAME.data-00000-of-00001`.
- `find_checkpoint`, `load_checkpoint`: a checkpoint with its config and vocabulary -> a model.

Files may come from strangers: whatever is wrong is a BertworksError before much memory is used.
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import prod
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bertworks.checkpoints import hf_mapping
from bertworks.checkpoints.model_folder import Model
from bertworks.checkpoints.storage import read_json, refuse_non_finite
from bertworks.errors import BertworksError
from bertworks.io.protobuf import Protobuf, read_protobuf, read_varint
from bertworks.text.tokenizer import Tokenizer

_MAGIC = (0xDB4775248B80FB57).to_bytes(8, "little")
_FOOTER = 48  # bytes: two places of blocks, filled up to 40, and the magic number
_TRAILER = 5  # bytes after each block: how it is compressed, and a checksum
_LARGEST_INDEX = 1 << 23  # bytes; BERT-Large with the state of its optimizer has 70 kB
_MOST_VARIABLES = 20_000
_LONGEST_NAME = 1024
_MOST_FILES = 1024
_DTYPES = {  # of tensorflow/core/framework/types.proto; others hold no parameters
    1: torch.float32, 2: torch.float64, 3: torch.int32, 9: torch.int64, 14: torch.bfloat16, 19: torch.float16,
}  # fmt: skip
_DAMAGED = "the file is damaged or was cut: get it again"


@dataclass(frozen=True)
class Variable:
    """Where a variable stands. dtype None: of a kind that holds no numbers of a network, such as strings."""

    dtype: torch.dtype | None
    shape: tuple[int, ...]
    path: Path
    offset: int  # bytes
    size: int  # bytes
    checksum: int

    def read(self) -> Tensor:
        """Its numbers.

        Raises:
            BertworksError: the file is gone, was cut, or its bytes are not those that were written.
        """
        assert self.dtype is not None
        try:
            data = np.fromfile(self.path, np.uint8, self.size, offset=self.offset)
        except OSError as error:
            raise BertworksError(f"cannot be read: {error.strerror}", where=str(self.path)) from None
        if len(data) < self.size or _checksum(data.tobytes()) != self.checksum:
            where = f"{self.path}, bytes {self.offset:,} to {self.offset + self.size:,}"
            raise BertworksError("the checksum is wrong: not what was written", where=where, hint=_DAMAGED)
        return torch.from_numpy(data).view(self.dtype).reshape(self.shape)


def read_index(prefix: Path) -> dict[str, Variable]:
    """The variables of a checkpoint by name. Every place is checked to be in its file; no number is read.

    Args:
        prefix: the name without `.index`, such as bert_model.ckpt.

    Raises:
        BertworksError: no such files; not an index; a checksum, size or place that is wrong; compressed, big-endian or
            partitioned variables.
    """
    path = prefix.with_name(f"{prefix.name}.index")
    try:
        size = path.stat().st_size
        data = path.read_bytes() if size <= _LARGEST_INDEX else b""
    except OSError as error:
        raise BertworksError(f"cannot be read: {error.strerror}", where=str(path)) from None
    if len(data) < _FOOTER or not data.endswith(_MAGIC):
        raise BertworksError("not the index of a TensorFlow checkpoint", where=str(path), hint=_DAMAGED)
    variables: dict[str, Variable] = {}
    try:
        pairs = _pairs(data)
        name, value = next(pairs, ("?", b""))
        header = read_protobuf(value)
        files = _number(header, 1)
        if name or not 0 < files <= _MOST_FILES or _number(header, 2):
            raise ValueError("no header, or one of a big-endian machine")
        sizes: dict[int, tuple[Path, int]] = {}
        for name, value in pairs:
            entry = read_protobuf(value)
            number = _number(entry, 3)
            if number not in sizes:
                sizes[number] = _data_file(prefix, number, files)
            variables[name] = _variable(name, entry, *sizes[number])
    except (ValueError, IndexError) as error:
        raise BertworksError(f"a damaged index: {error}", where=str(path), hint=_DAMAGED) from None
    return variables


def _data_file(prefix: Path, number: int, files: int) -> tuple[Path, int]:
    """One of the files with numbers, and its size in bytes."""
    if number >= files:
        raise ValueError(f"a variable in file {number} of {files}")
    path = prefix.with_name(f"{prefix.name}.data-{number:05d}-of-{files:05d}")
    try:
        return path, path.stat().st_size
    except OSError as error:
        hint = "the .index and .data files of a checkpoint belong together: get both"
        raise BertworksError(f"cannot be read: {error.strerror}", where=str(path), hint=hint) from None


def _variable(name: str, entry: Protobuf, path: Path, available: int) -> Variable:
    if 7 in entry:
        raise ValueError(f"{name} is stored in several pieces, which is not read")
    shape = tuple(
        _number(read_protobuf(size), 1) for dims in _bytes(entry, 2) for size in _bytes(read_protobuf(dims), 2)
    )
    dtype = _DTYPES.get(_number(entry, 1))
    offset, size = _number(entry, 4), _number(entry, 5)
    if dtype is not None and (len(shape) > 8 or prod(shape) * dtype.itemsize != size):
        raise ValueError(f"{name} has, by the index, the shape {list(shape)[:8]} and {size} bytes")
    if offset + size > available:
        what = f"{name} should end at byte {offset + size:,}, but the file has {available:,}"
        raise BertworksError(what, where=str(path), hint=_DAMAGED)
    return Variable(dtype, shape, path, offset, size, _number(entry, 6))


# --- the sorted table


def _pairs(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Names and values in their order, through the block that says where the blocks are."""
    _, _, at = _block_handle(data, len(data) - _FOOTER)
    start, size, _ = _block_handle(data, at)
    last, found = "", 0
    for _, place in _entries(_block(data, start, size)):
        start, size, _ = _block_handle(place, 0)
        for key, value in _entries(_block(data, start, size)):
            name, found = key.decode("utf-8"), found + 1
            if found > 1 and name <= last:
                raise ValueError("names are not sorted")
            if found > _MOST_VARIABLES:
                raise ValueError(f"more than {_MOST_VARIABLES:,} variables")
            last = name
            yield name, value


def _block(data: bytes, start: int, size: int) -> bytes:
    content = data[start : start + size + _TRAILER]
    if size < 4 or len(content) < size + _TRAILER:
        raise ValueError("a block beyond the end")
    if content[size]:
        raise ValueError("a compressed block, which is not read")
    stored = int.from_bytes(content[size + 1 :], "little")
    if _checksum(content[: size + 1]) != stored:
        raise ValueError("the checksum of a block is wrong")
    return content[:size]


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys, of which each begins as the one before it, and values. At the end stand places to begin, not needed."""
    end = len(block) - 4 - 4 * int.from_bytes(block[-4:], "little")
    if end < 0:
        raise ValueError("a block that is all ends")
    at, key = 0, b""
    while at < end:
        shared, at = read_varint(block, at)
        fresh, at = read_varint(block, at)
        size, at = read_varint(block, at)
        if shared > len(key) or shared + fresh > _LONGEST_NAME or at + fresh + size > end:
            raise ValueError("an entry that does not fit into its block")
        key = key[:shared] + block[at : at + fresh]
        yield key, block[at + fresh : at + fresh + size]
        at += fresh + size


def _block_handle(data: bytes, at: int) -> tuple[int, int, int]:
    start, at = read_varint(data, at)
    size, at = read_varint(data, at)
    return start, size, at


# --- fields of messages


def _number(message: Protobuf, field: int) -> int:
    value = message.get(field, [0])[-1]
    if not isinstance(value, int):
        raise ValueError("a message where a number is expected")
    return value


def _bytes(message: Protobuf, field: int) -> list[bytes]:
    values = message.get(field, [])
    if not all(isinstance(value, bytes) for value in values):
        raise ValueError("a number where a message is expected")
    return [value for value in values if isinstance(value, bytes)]


def _checksum(data: bytes) -> int:
    """The CRC-32C of RFC 3720 as TensorFlow stores it: rotated, because the bytes may hold checksums themselves."""
    import google_crc32c  # not needed to import the package

    checksum = int(google_crc32c.value(data))
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF


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
            raise BertworksError("several checkpoints in this folder", where=str(path), hint=f"give one of {names}")
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

    The state of its optimizer is left out, and counted. Everything is checked by names and shapes before a number is
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
    encoder = hf_mapping.config_from_huggingface(settings, where=str(settings_path))
    names = hf_mapping.names_of_google(encoder)
    slots = [name for name in variables if hf_mapping.is_of_optimizer(name)]
    unwanted = [name for name in variables if any(fnmatchcase(name, pattern) for pattern in leave_out)]
    wanted = {name: found for name, found in variables.items() if name not in {*slots, *unwanted}}
    _refuse_unknown(wanted, names, index)
    shapes = {names[name]: torch.empty(_shape(name, v), dtype=v.dtype, device="meta") for name, v in wanted.items()}
    hf_mapping.from_huggingface(shapes, encoder, where=index)
    said, why = _casing(prefix) if lowercase is None else (lowercase, "as the options say")
    path = vocabulary or _beside(prefix, "vocab.txt", "--vocab")
    tokenizer = Tokenizer.from_vocabulary(path, lowercase=said, model_max_length=encoder.max_position_embeddings)
    if tokenizer.vocab_size > encoder.vocab_size:
        sizes = f"{tokenizer.vocab_size:,} tokens, but the model has {encoder.vocab_size:,}"
        raise BertworksError(sizes, where=str(path), hint="give the vocab.txt of this checkpoint: --vocab FILE")
    theirs = {names[name]: v.read().float() for name, v in wanted.items()}
    theirs |= {names[name]: theirs[names[name]].T for name in wanted if _is_transposed(name)}
    state = hf_mapping.from_huggingface(theirs, encoder, where=index)
    refuse_non_finite(state, index)
    notes = [f"left out: {len(slots)} variables of the optimizer"] * bool(slots)
    notes += [f"left out, as the options say: {', '.join(unwanted)}"] * bool(unwanted)
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
            hint=f"give the bert_config.json of this checkpoint, or go on without: --leave-out '{unknown[0][:120]}'",
        )


def _beside(prefix: Path, name: str, option: str) -> Path:
    if not (path := prefix.with_name(name)).exists():
        raise BertworksError(f"there is no {name} beside the checkpoint", where=str(prefix), hint=f"{option} FILE")
    return path


def _casing(prefix: Path) -> tuple[bool | None, str]:
    """What the names of the checkpoint and of its folder say, and which did: such as uncased_L-12_H-768_A-12."""
    for name in (prefix.name, prefix.resolve().parent.name):
        if match := re.search(r"(un)?cased", name.lower()):
            return match[1] is not None, f"as the name {name} says (--cased or --uncased decides)"
    return None, ""
