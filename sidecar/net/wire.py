"""The protobuf wire format, as far as JSON and salvage need to write and read it without a message."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

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


class BrokenFrame(Exception):
    """Bytes that are not a protobuf message: cut off, a bad tag, a group that doesn't end."""


class Frame(NamedTuple):
    """Where one field of a message stands: its number and wire type, and the positions of tag, value and end."""

    number: int
    kind: int
    start: int
    value: int
    end: int


def frames(data: bytes) -> Iterator[Frame]:
    """The fields of a message one after the other, without looking into them.

    Raises:
        BrokenFrame: on reaching the place where it is broken.
    """
    end, size = 0, len(data)
    while end < size:
        start = end
        key, value = _read_varint(data, start)
        number, kind = key >> 3, key & 7
        if kind == LENGTH_DELIMITED:
            length, value = _read_varint(data, value)
            end = value + length
        elif kind == VARINT:
            _, end = _read_varint(data, value)
        elif kind == START_GROUP:
            end = _end_of_group(data, value, number)
        else:
            end = value + _FIXED_SIZES.get(kind, size)
        if end > size or not 0 < number <= _LAST_NUMBER:
            raise BrokenFrame
        yield Frame(number, kind, start, value, end)


_FIXED_SIZES: Final = {FIXED64: 8, FIXED32: 4}
_LAST_NUMBER: Final = (1 << 29) - 1


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    """A varint and the position behind it."""
    number = shift = 0
    for byte in data[position : position + 10]:
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
        shift += 7
    raise BrokenFrame


def _end_of_group(data: bytes, position: int, number: int) -> int:
    """The position behind a group, a form of nesting that OTLP doesn't use: unknown fields may."""
    open_groups = [number]
    while open_groups:
        key, position = _read_varint(data, position)
        number, kind = key >> 3, key & 7
        if kind == START_GROUP:
            open_groups.append(number)
        elif kind == END_GROUP:
            if open_groups.pop() != number:
                raise BrokenFrame
        elif kind == VARINT:
            _, position = _read_varint(data, position)
        elif kind == LENGTH_DELIMITED:
            length, position = _read_varint(data, position)
            position += length
        else:
            position += _FIXED_SIZES.get(kind, len(data))
    return position
