"""The fields of a protobuf message, without a library and without its schema."""

from typing import Any, TypeVar

from bertworks.errors import check

_T = TypeVar("_T")
Protobuf = dict[int, list[Any]]  # number of a field -> its values: int, or bytes
_MOST_FIELDS = 1000
_FIXED_SIZES = {1: 8, 5: 4}  # bytes of a value, by its kind


def read_protobuf(data: bytes | memoryview) -> Protobuf:
    """Return the fields of a protobuf message.

    Those of a memoryview are views.

    Raises:
        ValueError: the data is damaged.
    """
    fields: Protobuf = {}
    at = 0
    while at < len(data):
        tag, at = read_varint(data, at)
        kind = tag & 7
        value: Any
        value, at = (
            read_varint(data, at) if kind in (0, 2) else (_FIXED_SIZES.get(kind, len(data)), at)
        )
        if kind != 0:
            piece = data[at : at + value]
            at = at + value
            check(at <= len(data), "not a protobuf message")
            value = piece if kind == 2 else int.from_bytes(piece, "little")
        fields.setdefault(tag >> 3, []).append(value)
        check(len(fields) <= _MOST_FIELDS, "more fields than a protobuf message has")
    return fields


def read_varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """Return a number in groups of 7 bits, the lowest first, and the position after it.

    Raises:
        ValueError: the data is damaged.
    """
    value = 0
    for place, byte in enumerate(data[at : at + 10]):
        value |= (byte & 127) << 7 * place
        if byte < 128:
            return value, at + place + 1
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
