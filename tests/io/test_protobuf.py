"""Messages of protobuf without their schema, compared with bytes of the specification."""

import pytest

from bertworks.io.protobuf import last_value, read_protobuf, read_varint

# field 1: 150 (the example of the specification), field 2: "testing", field 3: 1.0 in 4 bytes
MESSAGE = b"\x08\x96\x01" + b"\x12\x07testing" + b"\x1d\x00\x00\x80\x3f"


def test_the_fields_of_a_message() -> None:
    fields = read_protobuf(MESSAGE + b"\x08\x01")
    assert fields == {1: [150, 1], 2: [b"testing"], 3: [0x3F800000]}
    assert last_value(fields, 1, 0) == 1
    assert last_value(fields, 9, b"default") == b"default"
    with pytest.raises(ValueError, match="another type"):
        last_value(fields, 2, 0)


def test_a_number_and_where_it_ends() -> None:
    assert read_varint(MESSAGE, 1) == (150, 3)


@pytest.mark.parametrize("data", [b"\x12\x07test", b"\x08", b"\x08" + b"\xff" * 11, b"\x0b"])
def test_damaged_messages(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"not a protobuf message|does not end"):
        read_protobuf(data)
