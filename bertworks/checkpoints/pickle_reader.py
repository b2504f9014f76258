"""Read files of torch.save in a child process, and write their tensors as safetensors.

`pickled_weights` starts it, by the path of this file. It imports the standard library and, after
the first checks, torch: nothing else, because other libraries add classes to those that torch's
restricted loader accepts. A pickle is a program, so a file is refused unless

1. it is a zip archive without compressed parts, or the older format of torch, and its pickles name
   nothing but the functions and types that dense tensors are made of (this is read off, nothing is
   executed);
2. torch's restricted loader (`weights_only=True`) accepts it, while the process has limits of
   memory, of time and of the size of its output, and may start no process, open no connection and
   change no other file;
3. it holds one table of dense tensors of real numbers with plain names, which together are not
   larger than the file explains. Storages of zip archives are mapped, not read: nothing is copied
   before this check.
"""

import io
import json
import os
import pickletools
import re
import struct
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from torch import Tensor

REFUSED = 3  # the exit code: the reason is on standard output
_STORAGES = ("Double", "Float", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool")
_GLOBALS = {  # as pickletools names them: the module and the name with a space between them
    "collections OrderedDict",
    "torch._utils _rebuild_tensor",
    "torch._utils _rebuild_tensor_v2",
    "torch._utils _rebuild_parameter",
    *(f"torch {kind}Storage" for kind in _STORAGES),
}
# Operations that name classes in other ways.
_OTHER_IMPORTS = {"STACK_GLOBAL", "INST", "EXT1", "EXT2", "EXT4"}
# The first pickle of the older format: a number.
_LEGACY_START = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
# Its pickles: this number, the version, the machine, the tensors, the order of their storages.
_LEGACY_PICKLES = 5
_MOST_OPERATIONS = 2_000_000  # of a pickle; the weights of BERT-Large have 20,000
_LARGEST_PICKLE = 1 << 25  # bytes within a zip archive; the pickle of BERT-Large has 40 kB
_MOST_PARTS = 60_000  # of a zip archive
_MOST_TENSORS = 20_000
_LONGEST_NAME = 300
_MOST_AXES = 8
_MOST_COPIES = 3  # tied weights are stored once and have a name for each use
_SPARE_MEMORY = 1 << 29  # bytes, besides those for the file
_DTYPES = {
    "torch.float64": "F64",
    "torch.float32": "F32",
    "torch.float16": "F16",
    "torch.bfloat16": "BF16",
    "torch.int64": "I64",
    "torch.int32": "I32",
    "torch.int16": "I16",
    "torch.int8": "I8",
    "torch.uint8": "U8",
    "torch.bool": "BOOL",
}
_TABLES = (dict, OrderedDict)
_SIDE_EFFECTS = re.compile(  # audit events of Python that reading weights does not cause
    r"os\.(system|exec|fork|forkpty|posix_spawn|spawn|kill|killpg|chmod|chown|chdir|link|symlink|putenv|unsetenv"
    r"|rename|remove|rmdir|truncate)|subprocess\..*|pty\..*|socket\..*|urllib\..*|ctypes\.dlopen|shutil\..*"
)


class RefusedFileError(Exception):
    """The file is not read; the text says why."""


def check_format(source: Path) -> bool:
    """Return whether the file is a zip archive.

    Raises:
        RefusedFileError: its pickles do not only describe tensors.
    """
    size = source.stat().st_size
    with source.open("rb") as file:
        start = file.read(len(_LEGACY_START))
        if start == _LEGACY_START:
            file.seek(0)
            for _ in range(_LEGACY_PICKLES):
                _check_operations(file)
            return False
    if not start.startswith(b"PK\x03\x04"):
        raise RefusedFileError(
            "this is not a file of torch.save: neither a zip archive nor the format before torch "
            "1.6"
        )
    try:
        with zipfile.ZipFile(source) as archive:
            pickle = _check_parts(archive.infolist(), size)
            _check_operations(io.BytesIO(archive.read(pickle)))
    except (zipfile.BadZipFile, NotImplementedError, EOFError) as error:
        raise RefusedFileError(f"the zip archive is damaged: {error}") from error
    return True


def _check_parts(parts: list[zipfile.ZipInfo], size: int) -> zipfile.ZipInfo:
    """Return the part of a zip archive that is the pickle, after a check of all of them."""
    if len(parts) > _MOST_PARTS:
        raise RefusedFileError(f"the zip archive has {len(parts):,} parts: more than any model")
    for part in parts:
        if (
            part.compress_type != zipfile.ZIP_STORED
            or part.compress_size != part.file_size
            or part.flag_bits & 1
        ):
            raise RefusedFileError(
                f"{part.filename[:100]!r} in the zip archive is compressed: torch.save compresses "
                "nothing"
            )
    if sum(part.file_size for part in parts) > size:
        raise RefusedFileError(
            "the parts of the zip archive are larger than the file: they overlap"
        )
    names = [part.filename.lower() for part in parts]
    pickles = [part for part in parts if part.filename.lower().rpartition("/")[2] == "data.pkl"]
    if len(pickles) != 1 or len(set(names)) < len(names):
        raise RefusedFileError(
            "the zip archive does not have one data.pkl and a name for each part, as torch.save "
            "writes it"
        )
    if pickles[0].file_size > _LARGEST_PICKLE:
        raise RefusedFileError(
            f"its pickle has {pickles[0].file_size / 1e6:,.0f} MB: more than any table of weights"
        )
    return pickles[0]


def _check_operations(file: IO[bytes]) -> None:
    """Read one pickle without executing it.

    Raises:
        RefusedFileError: it names something that tensors are not made of.
    """
    try:
        for number, (operation, argument, _) in enumerate(pickletools.genops(file)):
            if number >= _MOST_OPERATIONS:
                raise RefusedFileError("the pickle has more operations than any table of weights")
            if operation.name in _OTHER_IMPORTS:
                raise RefusedFileError("the pickle names classes in a way that torch.save does not")
            if operation.name == "GLOBAL" and argument not in _GLOBALS:
                name = str(argument).replace(" ", ".")
                raise RefusedFileError(
                    f"the pickle names {name[:100]!r}, which dense tensors are not made of"
                )
    except ValueError as error:
        raise RefusedFileError(f"the pickle is damaged: {error}") from error


def convert_pickle(source: Path, target: Path, *, is_zip: bool) -> list[str]:
    """Write the tensors of a file of torch.save as safetensors, and return what was left out.

    Args:
        is_zip: what `check_format` returned for this file.

    Raises:
        RefusedFileError: the file is damaged or hostile, or holds something else than weights.
    """
    import torch

    tensors, left_out = _tensors_of(_load(source, is_mapped=is_zip))
    _check_sizes(tensors, source.stat().st_size)
    start, ordered = safetensors_layout(tensors, {})
    with target.open("xb") as file:
        file.write(start)
        for value in ordered:
            if value.numel():
                file.write(value.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return left_out


def _load(source: Path, *, is_mapped: bool) -> object:
    """Return the content of a file, by torch's restricted loader.

    Args:
        is_mapped: whether storages are mapped, not read.
    """
    import torch

    torch.serialization.clear_safe_globals()
    try:
        return torch.load(source, map_location="cpu", weights_only=True, mmap=is_mapped)
    except Exception as error:
        text = (
            str(error)
            .rpartition("WeightsUnpickler error:")[2]
            .partition("Check the documentation of torch.load")[0]
        )
        raise RefusedFileError(
            f"torch's restricted loader does not accept it: {type(error).__name__}: "
            f"{' '.join(text.split())[:200]}"
        ) from error


def _tensors_of(content: object) -> tuple[dict[str, "Tensor"], list[str]]:
    """Return the tensors in the content of a file, by name, and the names of what was left out.

    A training often saves a table with the weights under "state_dict" and other things next to
    them.

    Raises:
        RefusedFileError: it is no table of dense tensors of real numbers.
    """
    table = _table(content)
    left_out: list[str] = []
    if type(table.get("state_dict")) in _TABLES:
        left_out = [name for name in table if name != "state_dict"]
        table = _table(table["state_dict"])
    if len(table) > _MOST_TENSORS:
        raise RefusedFileError(f"{len(table):,} tensors: more than any model has")
    for name, value in table.items():
        _check_tensor(name, value)
    return {name: value.detach() for name, value in table.items()}, left_out


def _table(content: object) -> Mapping[str, Any]:
    """Return the content of a file if it is a table with plain names.

    Raises:
        RefusedFileError: it is something else.
    """
    if not isinstance(content, _TABLES):
        raise RefusedFileError(f"a table of tensors is expected, not a {type(content).__name__}")
    for name in content:
        if type(name) is not str:
            raise RefusedFileError(f"a table of tensors has names, not a {type(name).__name__}")
        is_plain = re.fullmatch(r"[\w-]+(\.[\w-]+)*", name, re.ASCII) and name != "__metadata__"
        if not is_plain or len(name) > _LONGEST_NAME:
            raise RefusedFileError(
                f"{name[:100]!r} is not a valid name of a tensor: letters, digits, _ and - between "
                "dots are expected"
            )
    return content


def _check_tensor(name: str, value: Any) -> None:
    """Check that this is a dense tensor of real numbers, each of which has its own place in memory.

    Raises:
        RefusedFileError: it is something else.
    """
    import torch

    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        raise RefusedFileError(f"{name} is a {type(value).__name__}, not a tensor")
    is_dense = value.layout == torch.strided and not value.is_quantized and not value.is_nested
    if not is_dense or str(value.dtype) not in _DTYPES or value.device.type != "cpu":
        raise RefusedFileError(
            f"{name} is a tensor of {value.dtype} ({value.layout}): dense tensors of real numbers "
            "are read"
        )
    if value.dim() > _MOST_AXES:
        raise RefusedFileError(f"{name} has {value.dim()} axes")
    reach = 1  # how many places the axes so far occupy, from the one with the nearest elements on
    for stride, length in sorted(zip(value.stride(), value.shape, strict=True)):
        if length > 1 and value.numel():
            if stride < reach:
                raise RefusedFileError(
                    f"{name} uses elements of its storage several times: its size is only claimed"
                )
            reach += stride * (length - 1)


def _check_sizes(tensors: Mapping[str, "Tensor"], size: int) -> None:
    """Check that tensors and their storages claim no more bytes than the file can hold.

    Nothing is read for it.

    Raises:
        RefusedFileError: they claim more.
    """
    storages = {
        value.untyped_storage().data_ptr(): value.untyped_storage().nbytes()
        for value in tensors.values()
    }
    if sum(storages.values()) > size:
        raise RefusedFileError(
            f"the storages claim {sum(storages.values()):,} bytes: the file has {size:,}"
        )
    total = sum(value.numel() * value.element_size() for value in tensors.values())
    if total > _MOST_COPIES * size:
        raise RefusedFileError(f"the tensors claim {total:,} bytes: the file has {size:,}")


def safetensors_layout(
    tensors: Mapping[str, "Tensor"], metadata: Mapping[str, str]
) -> tuple[bytes, list["Tensor"]]:
    """Return the header of a safetensors file, and the tensors in the order of the file.

    Tensors with the most bytes per number come first, so that each is aligned. `storage` writes
    with this layout, too; it is here because this program imports no other module.
    """
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name, value in ordered:
        start = end
        end += value.numel() * value.element_size()
        header[name] = {
            "dtype": _DTYPES[str(value.dtype)],
            "shape": list(value.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text, [value for _, value in ordered]


def _limit_work(size: int, seconds: int) -> None:
    """Limit the memory, the time and the output of this process.

    Args:
        size: of the file in bytes.
        seconds: of processor time.
    """
    import resource  # of POSIX: `pickled_weights` starts this program only where it exists

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    present = pages * resource.getpagesize()
    spare = _MOST_COPIES * size + _SPARE_MEMORY
    limits = {
        resource.RLIMIT_AS: present + spare,
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_FSIZE: spare,
        resource.RLIMIT_CORE: 0,
    }
    for kind, value in limits.items():
        _, highest = resource.getrlimit(kind)
        if highest != resource.RLIM_INFINITY:
            value = min(value, highest)
        resource.setrlimit(kind, (value, value))


def _forbid_side_effects(target: Path) -> None:
    """End this process as soon as it has an effect on the machine.

    Effects are starting a program, opening a connection, and changing a file other than the target.

    Nothing that the loader accepts does so: this is for faults of the loader, which had some.
    """

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        """End the process at an audit event that reading weights does not cause."""
        if event == "open":
            path, _, flags = arguments
            is_written = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            if is_written and str(path) != str(target):
                _refuse(f"reading it tried to write {str(path)[:100]!r}")
        elif _SIDE_EFFECTS.fullmatch(event):
            _refuse(f"reading it tried to run something ({event})")

    sys.addaudithook(hook)


def _refuse(reason: str) -> NoReturn:
    """Print why the file is not read, and end this process at once.

    An exception could be caught.
    """
    print(reason, flush=True)
    os._exit(REFUSED)


def main(source: Path, target: Path, seconds: int, paths: Sequence[str]) -> None:
    """Convert a file, and print the names of what was left out; or why the file is refused.

    Args:
        source, target: a file of torch.save; the safetensors file to write.
        seconds: of processor time that may be used.
        paths: where Python finds torch, besides its own folders.
    """
    try:
        is_zip = check_format(source)
        sys.path += [path for path in paths if path not in sys.path]
        import torch

        torch.set_num_threads(1)
        _limit_work(source.stat().st_size, seconds)
        _forbid_side_effects(target)
        left_out = convert_pickle(source, target, is_zip=is_zip)
    except RefusedFileError as error:
        _refuse(str(error))
    print(*left_out, sep="\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
