"""Writes checkpoints as TensorFlow does, by the letter of its format: LevelDB's table of protobuf
messages. Only what the tests need. It shares nothing with the reader but the standard; TensorFlow
2.21 reads the same numbers from both."""

import struct
from pathlib import Path

import numpy as np

DTYPES = {"float32": 1, "float64": 2, "int32": 3, "object": 7, "int64": 9, "float16": 19}


def crc32c(data: bytes) -> int:
    """Bit by bit, as RFC 3720 has it."""
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


def masked(data: bytes) -> int:
    value = crc32c(data)
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF


def varint(value: int) -> bytes:
    content = b""
    while value > 127:
        content, value = content + bytes([value & 127 | 128]), value >> 7
    return content + bytes([value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def message(field: int, content: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(content)) + content


def entry(array: np.ndarray, offset: int, file: int = 0, lies: dict | None = None) -> bytes:
    """A BundleEntryProto."""
    data, lies = array.tobytes(), lies or {}
    shape = b"".join(message(2, number(1, size)) for size in array.shape)
    content = number(1, lies.get("dtype", DTYPES[array.dtype.name])) + message(
        2, lies.get("shape", shape)
    )
    content += number(3, lies.get("file", file)) + number(4, lies.get("offset", offset))
    content += (
        number(5, lies.get("size", len(data)))
        + varint(6 << 3 | 5)
        + struct.pack("<I", masked(data))
    )
    return content + (message(7, b"") if "slices" in lies else b"")


def block(pairs: list[tuple[bytes, bytes]], kind: int = 0) -> bytes:
    """With its trailer. Each key is stored as what is new after the key before it."""
    content, last = b"", b""
    for key, value in pairs:
        shared = next(
            (i for i, (a, b) in enumerate(zip(key, last)) if a != b), min(len(key), len(last))
        )
        content += (
            varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        )
        last = key
    content += struct.pack("<II", 0, 1)
    return content + bytes([kind]) + struct.pack("<I", masked(content + bytes([kind])))


def table(pairs: list[tuple[bytes, bytes]], *, kind: int = 0, at_once: int = 7) -> bytes:
    """An index file."""
    data, places = b"", []
    for start in range(0, len(pairs), at_once):
        content = block(pairs[start : start + at_once], kind)
        places.append(
            (
                pairs[min(start + at_once, len(pairs)) - 1][0],
                varint(len(data)) + varint(len(content) - 5),
            )
        )
        data += content
    footer = b""
    for rows in ([], places):
        content = block(rows)
        footer += varint(len(data)) + varint(len(content) - 5)
        data += content
    return data + footer.ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)


def header(files: int = 1, endianness: int = 0) -> bytes:
    return number(1, files) + number(2, endianness) + message(3, number(1, 1))


def write(
    prefix: Path, variables: dict[str, np.ndarray], *, files: int = 1, lies: dict | None = None
) -> Path:
    """A checkpoint in one or several files of data; `lies` per name, about its entry."""
    content, pairs = [b""] * files, [(b"", header(files))]
    for place, name in enumerate(sorted(variables)):
        array, file = variables[name], place % files
        pairs.append(
            (name.encode(), entry(array, len(content[file]), file, (lies or {}).get(name)))
        )
        content[file] += array.tobytes()
    for file, data in enumerate(content):
        prefix.with_name(f"{prefix.name}.data-{file:05d}-of-{files:05d}").write_bytes(data)
    prefix.with_name(f"{prefix.name}.index").write_bytes(table(pairs))
    return prefix
