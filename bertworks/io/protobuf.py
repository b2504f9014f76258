"""Fields of a protobuf message, read without a library and without its schema."""

from typing import Any, TypeVar

_T = TypeVar("_T")
Protobuf = dict[int, list[Any]]  # number of a field -> its values: int, or bytes
_MOST_FIELDS = 1000


def read_protobuf(data: bytes | memoryview) -> Protobuf:
    """The fields of a protobuf message. Those of a memoryview are views.

    Raises:
        ValueError, IndexError: the data is damaged.
    """
    fields: Protobuf = {}
    at = 0
    while at < len(data):
        tag, at = read_varint(data, at)
        kind = tag & 7
        if kind == 0:
            value: Any
            value, at = read_varint(data, at)
        else:
            size = {1: 8, 5: 4}.get(kind, 0)
            if kind == 2:
                size, at = read_varint(data, at)
            if (kind != 2 and not size) or at + size > len(data):
                raise ValueError("not a protobuf message")
            piece = data[at : at + size]
            value, at = piece if kind == 2 else int.from_bytes(piece, "little"), at + size
        fields.setdefault(tag >> 3, []).append(value)
        if len(fields) > _MOST_FIELDS:
            raise ValueError("more fields than a protobuf message has")
    return fields


def read_varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """A number in groups of 7 bits, the lowest first, and the position after it.

    Raises:
        ValueError, IndexError: the data is damaged.
    """
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("a number that does not end")


def last_value(message: Protobuf, number: int, default: _T) -> _T:
    """The last value of a field, which is the one that counts; `default` where there is none.

    Raises:
        ValueError: the value is not of the type of `default`.
    """
    value = message.get(number, [default])[-1]
    if not isinstance(value, type(default)):
        raise ValueError(f"field {number} is of another type")
    return value
