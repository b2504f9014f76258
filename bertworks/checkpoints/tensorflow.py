"""Read Google's TensorFlow checkpoints of BERT, without TensorFlow.

A checkpoint is bert_model.ckpt with bert_config.json and vocab.txt.

- `read_index`: `NAME.index`, a sorted table of LevelDB (blocks of names with shared beginnings and
  checksums) whose values are protobuf messages -> the variables in `NAME.data-00000-of-00001`.
- `find_checkpoint`, `load_checkpoint`: a checkpoint with its config and vocabulary -> a model.

Files may come from strangers: whatever is wrong is a BertworksError before much memory is used.
"""

import re
from collections.abc import Callable, Collection, Iterator
from fnmatch import fnmatchcase
from itertools import islice
from math import prod
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bertworks.checkpoints import hf_config, hf_mapping
from bertworks.checkpoints.model_files import check_vocabulary
from bertworks.checkpoints.model_folder import Model
from bertworks.checkpoints.storage import DAMAGED, read_json, refuse_non_finite
from bertworks.errors import BertworksError, check, explain_os_errors, quoted, require, some_names
from bertworks.io.atomic_write import read_small
from bertworks.io.protobuf import Protobuf, last_value, read_protobuf, read_varint
from bertworks.text.tokenizer import Tokenizer

_MAGIC = (0xDB4775248B80FB57).to_bytes(8, "little")
_FOOTER = 48  # bytes: two places of blocks, filled up to 40, and the magic number
_TRAILER = 5  # bytes after each block: how it is compressed, and a checksum
_LARGEST_INDEX = 1 << 23  # bytes; BERT-Large with the state of its optimizer has 70 kB
_MOST_VARIABLES = 20_000
_LONGEST_NAME = 1024
_DTYPES = {  # of tensorflow/core/framework/types.proto; others hold no parameters
    1: torch.float32,
    2: torch.float64,
    3: torch.int32,
    9: torch.int64,
    14: torch.bfloat16,
    19: torch.float16,
}
# its variables
_OPTIMIZER = re.compile(r"(.+/)?(adam_m|adam_v|Adam|Adam_1|beta[12]_power|global_step)")


class Variable(NamedTuple):
    """The place of a variable in the files.

    dtype is None for a kind that holds no numbers of a network, such as strings.
    """

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
        with explain_os_errors("cannot be read", self.path):
            data = np.fromfile(self.path, np.uint8, self.size, offset=self.offset)
        if len(data) < self.size or _checksum(data.tobytes()) != self.checksum:
            raise BertworksError(
                "the checksum is wrong: not what was written",
                where=f"{self.path}, bytes {self.offset:,} to {self.offset + self.size:,}",
                hint=DAMAGED,
            )
        return torch.from_numpy(data).view(self.dtype).reshape(self.shape)


def read_index(prefix: Path) -> dict[str, Variable]:
    """Return the variables of a checkpoint by name.

    Every place is checked to be in its file; no number is read.

    Args:
        prefix: the name without `.index`, such as bert_model.ckpt.

    Raises:
        BertworksError: no such files; not an index; a checksum, size or place that is wrong;
            compressed, big-endian or partitioned variables.
    """
    path = prefix.with_name(f"{prefix.name}.index")
    content = read_small(path, _LARGEST_INDEX)
    require(content.endswith(_MAGIC), "not the index of a TensorFlow checkpoint", path, DAMAGED)
    try:
        entries = islice(_rows(content), _MOST_VARIABLES + 2)
        rows = [(key.decode("utf-8"), read_protobuf(value)) for key, value in entries]
        names = [name for name, _ in rows]
        check(len(names) <= _MOST_VARIABLES + 1, f"more than {_MOST_VARIABLES:,} variables")
        check(
            names[:1] == [""] and names == sorted(set(names)),
            "no header, or names that are not sorted",
        )
        files, is_big_endian = _numbers(rows[0][1], 1, 2)
        check(not is_big_endian, "it was written by a big-endian machine, which is not read")
        return {name: _variable(name, entry, prefix, files) for name, entry in rows[1:]}
    except OSError as error:
        raise BertworksError(
            f"{error.filename} cannot be read: {error.strerror}",
            where=path,
            hint="the .index and .data files of a checkpoint belong together: get both",
        ) from None
    # of other types: cut, or another kind of field
    except (ValueError, IndexError, TypeError) as error:
        reason = f": {error}" if isinstance(error, ValueError) else ""
        raise BertworksError(f"a damaged index{reason}", where=path, hint=DAMAGED) from None


def _variable(name: str, entry: Protobuf, prefix: Path, files: int) -> Variable:
    """Return a variable from a BundleEntryProto (tensorflow/core/protobuf/tensor_bundle.proto).

    files: of data.
    """
    check(7 not in entry, f"{name} is stored in several pieces, which is not read")
    kind, file, offset, size, checksum = _numbers(entry, 1, 3, 4, 5, 6)
    sizes = [size for shape in entry.get(2, []) for size in read_protobuf(shape).get(2, [])]
    shape = tuple(number for size in sizes for number in _numbers(read_protobuf(size), 1))
    dtype = _DTYPES.get(kind)
    path = prefix.with_name(f"{prefix.name}.data-{file:05d}-of-{files:05d}")
    fits = dtype is None or (len(shape) <= 8 and prod(shape) * dtype.itemsize == size)
    check(fits, f"{name} has, by the index, the shape {list(shape)[:8]} and {size} bytes")
    available = path.stat().st_size
    require(
        offset + size <= available,
        f"{name} should end at byte {offset + size:,}, but the file has {available:,}",
        path,
        DAMAGED,
    )
    return Variable(dtype, shape, path, offset, size, checksum)


def _numbers(message: Protobuf, *fields: int) -> list[int]:
    """Return the values of fields of a message; 0 for one that is not there."""
    return [last_value(message, field, 0) for field in fields]


def _rows(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values of a LevelDB table, through the block that says where the blocks are."""
    footer = data[-_FOOTER:]
    rest = len(data)
    _, _, at = _place(footer, 0)
    start, size, _ = _place(footer, at)
    for _, place in _block(data, start, size):
        start, size, _ = _place(place, 0)
        rest -= size
        check(rest >= 0, "blocks that overlap")
        yield from _block(data, start, size)


def _place(data: bytes, at: int) -> tuple[int, int, int]:
    """Start and size of a block, and where the next place is."""
    start, at = read_varint(data, at)
    size, at = read_varint(data, at)
    return start, size, at


def _block(data: bytes, start: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """Keys, of which each begins as the one before it, and values.

    At the end stand places to begin, not needed.
    """
    block = data[start : start + size]
    trailer = data[start + size : start + size + _TRAILER]
    check(size >= 4 and len(trailer) == _TRAILER, "a block beyond the end")
    check(not trailer[0], "a compressed block, which is not read")
    checksum = int.from_bytes(trailer[1:], "little")
    check(_checksum(block + trailer[:1]) == checksum, "the checksum of a block is wrong")
    end = size - 4 - 4 * int.from_bytes(block[-4:], "little")
    at = 0
    key = b""
    while at < end:
        shared, at = read_varint(block, at)
        fresh, at = read_varint(block, at)
        length, at = read_varint(block, at)
        fits = shared <= len(key) and shared + fresh <= _LONGEST_NAME and at + fresh + length <= end
        check(fits, "an entry that does not fit into its block")
        key = key[:shared] + block[at : at + fresh]
        at += fresh + length
        yield key, block[at - length : at]


def _checksum(data: bytes) -> int:
    """Return the CRC-32C of RFC 3720 as TensorFlow stores it.

    It is rotated, because the bytes may hold checksums themselves.
    """
    import google_crc32c  # not needed to import the package

    checksum = int(google_crc32c.value(data))
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF


Gelu = Literal["tanh", "exact"]


def find_checkpoint(path: Path) -> Path | None:
    """Return the name of a checkpoint without `.index`, or None.

    It is given so, or by one of its files, or as the folder of just one.

    None: files is none. Raises BertworksError where a folder holds several.
    """
    if path.is_dir():
        indexes = sorted(path.glob("*.index"))
        names = ", ".join(str(index.with_suffix("")) for index in indexes[:4])
        require(
            len(indexes) < 2, "several checkpoints in this folder", path, f"give one of {names}"
        )
        return indexes[0].with_suffix("") if indexes else None
    prefix = path.with_name(re.sub(r"\.(index|meta|data-\d{5}-of-\d{5})$", "", path.name))
    files = [
        f"{prefix}{end}"
        for end in (".index", ".data-00000-of-00001")
        if Path(f"{prefix}{end}").exists()
    ]
    return prefix if prefix.name and files else None


def load_checkpoint(
    prefix: Path,
    *,
    config: Path | None = None,
    vocabulary: Path | None = None,
    lowercase: bool | None = None,
    gelu: Gelu = "tanh",
    leave_out: Collection[str] = (),
) -> tuple[Model, list[str]]:
    """Read a checkpoint of google-research/bert as a model, with notes for users.

    It is pre-trained, or fine-tuned by run_classifier.py or run_squad.py.

    The state of its optimizer is left out, and counted. Everything is checked by names and shapes
    before a number is read, and each variable against its checksum.

    Args:
        prefix: of the checkpoint, as `find_checkpoint` gives it.
        config, vocabulary: None: bert_config.json and vocab.txt beside it.
        lowercase: None: as the names of checkpoint and folder say (cased, uncased), else as the
            vocabulary looks.
        gelu: what "gelu" in the configuration means: the approximation by tanh, which Google's code
            computes, or the exact function, which Hugging Face's conversions of the same
            checkpoints compute.
        leave_out: names or patterns (`*`) of variables that are not tensors_of_model.

    Raises:
        BertworksError: files missing or damaged, a variable that is none of a BERT of this
            configuration (named), or one that is missing.
    """
    variables = read_index(prefix)
    index = f"{prefix}.index"
    config = config or _beside(prefix, "bert_config.json", "--config")
    settings = {"model_type": "bert", "hidden_act": "gelu"} | read_json(config)
    approximate = settings["hidden_act"] == "gelu" and gelu == "tanh"
    if approximate:
        settings["hidden_act"] = "gelu_new"
    encoder = hf_config.config_from_huggingface(settings, where=config)
    slots = [name for name in variables if _OPTIMIZER.fullmatch(name)]
    unwanted = [
        name for name in variables if any(fnmatchcase(name, pattern) for pattern in leave_out)
    ]
    tensors_of_model = {
        name: variable for name, variable in variables.items() if name not in {*slots, *unwanted}
    }
    names = hf_mapping.google_names(encoder)
    unknown = [
        name
        for name, variable in tensors_of_model.items()
        if name not in names or variable.dtype is None
    ]
    require(
        not any("/.ATTRIBUTES/" in name for name in unknown),
        "a checkpoint of TensorFlow 2 objects: its variables have no names",
        index,
        "use a checkpoint as google-research/bert writes it (TensorFlow 1): only those are read",
    )
    options = " ".join(f"--leave-out {quoted(name[:120])}" for name in sorted(unknown)[:9])
    require(
        not unknown,
        f"variables with no place in a BERT of this configuration: {some_names(unknown)}",
        index,
        f"give the bert_config.json of this checkpoint, or continue without: {options}",
    )

    def converted(tensor_of: Callable[[Variable], Tensor]) -> dict[str, Tensor]:
        """Under our names.

        A variable that is called `kernel` is the transposed matrix.
        """
        tensors = {name: tensor_of(variable) for name, variable in tensors_of_model.items()}
        renamed = {
            names[name]: x.transpose(0, -1) if name.endswith("/kernel") else x
            for name, x in tensors.items()
        }
        return hf_mapping.from_huggingface(renamed, encoder, where=index)

    converted(lambda variable: torch.empty(variable.shape, dtype=variable.dtype, device="meta"))
    lowercases, reason = _casing(prefix) if lowercase is None else (lowercase, "as the options say")
    path = vocabulary or _beside(prefix, "vocab.txt", "--vocab")
    tokenizer = Tokenizer.from_vocabulary(
        path, lowercase=lowercases, model_max_length=encoder.max_position_embeddings
    )
    check_vocabulary(tokenizer, encoder, path)
    state = converted(lambda variable: variable.read().float())
    refuse_non_finite(state, index)
    notes = {
        f"left out: {len(slots)} variables of the optimizer": slots,
        f"left out, as the options say: {', '.join(unwanted)}": unwanted,
        f"text is {'lower-cased' if lowercases else 'left as it is (cased)'}, {reason}": lowercases
        is not None,
        "gelu is the approximation by tanh, as Google's code computes it (hidden_act gelu_new); "
        "Hugging Face's conversions say gelu, the exact function, which differs in the third "
        "decimal: --gelu exact": approximate,
    }
    model = Model(encoder, state, tokenizer)
    return model, [*(note for note, holds in notes.items() if holds), *tokenizer.notes]


def _beside(prefix: Path, name: str, option: str) -> Path:
    path = prefix.with_name(name)
    require(path.exists(), f"there is no {name} next to the checkpoint", prefix, f"{option} FILE")
    return path


def _casing(prefix: Path) -> tuple[bool | None, str]:
    """Return the casing that the names of the checkpoint and of its folder state, and the name.

    Such a name is uncased_L-12_H-768_A-12.
    """
    for name in (prefix.name, prefix.resolve().parent.name):
        if match := re.search(r"(un)?cased", name.lower()):
            return match[1] is not None, f"as the name {name} says (--cased or --uncased decides)"
    return None, ""
