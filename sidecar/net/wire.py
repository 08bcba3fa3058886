"""The protobuf wire format, as far as JSON and salvage need to write and read it without a message."""

from __future__ import annotations

from typing import Final

from google.protobuf.descriptor import FieldDescriptor

# Wire types (Protocol Buffers, "Encoding").
VARINT: Final = 0
FIXED64: Final = 1
LENGTH_DELIMITED: Final = 2
START_GROUP: Final = 3
END_GROUP: Final = 4
FIXED32: Final = 5

_WIRE_TYPES: Final[dict[int, int]] = {
    FieldDescriptor.TYPE_DOUBLE: FIXED64,
    FieldDescriptor.TYPE_FIXED64: FIXED64,
    FieldDescriptor.TYPE_SFIXED64: FIXED64,
    FieldDescriptor.TYPE_FLOAT: FIXED32,
    FieldDescriptor.TYPE_FIXED32: FIXED32,
    FieldDescriptor.TYPE_SFIXED32: FIXED32,
    FieldDescriptor.TYPE_STRING: LENGTH_DELIMITED,
    FieldDescriptor.TYPE_BYTES: LENGTH_DELIMITED,
    FieldDescriptor.TYPE_MESSAGE: LENGTH_DELIMITED,
}


_ONE_BYTE: Final = tuple(bytes((number,)) for number in range(1 << 7))


def wire_type(field: FieldDescriptor) -> int:
    """How one value of the field is written, unpacked."""
    return _WIRE_TYPES.get(field.type, VARINT)


def varint(number: int) -> bytes:
    """A number from 0 to 2^64-1 as a varint."""
    if number < 1 << 7:
        return _ONE_BYTE[number]
    if number < 1 << 14:
        return bytes((number & 0x7F | 0x80, number >> 7))
    out = bytearray()
    while number >= 1 << 7:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def tag(number: int, kind: int) -> bytes:
    """What stands before a field's value."""
    return varint(number << 3 | kind)


SHORT: Final = 128
"""Lengths below it take one byte, and are nearly all that there are."""


def prefixes(head: bytes) -> tuple[bytes, ...]:
    """A tag together with each short length: looking one up costs a fraction of making it."""
    return tuple(head + varint(size) for size in range(SHORT))


def delimited(head: bytes, data: bytes) -> bytes:
    """A length-delimited field: its tag, the length and the value."""
    return head + varint(len(data)) + data
