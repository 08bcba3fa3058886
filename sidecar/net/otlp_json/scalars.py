"""One JSON value to the bytes of a scalar field: what ProtoJSON and OTLP allow, and what clients really send."""

from __future__ import annotations

import math
import re
import struct
from binascii import a2b_base64, unhexlify
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final, TypeAlias

from google.protobuf.descriptor import FieldDescriptor

from sidecar.net.wire import FIXED64, SHORT, delimited, prefixes, tag, varint

ID_FIELDS: Final = frozenset({"trace_id", "span_id", "parent_span_id"})
"""The bytes fields that are hex in OTLP/JSON (OTLP specification, "JSON Protobuf Encoding"); all others are base64."""

UNREADABLE_ID: Final = b"\x00"
"""Stands for an id that is not hex. Its length is wrong, so salvage treats the record as one with a bad id."""


class State:
    """What one call of the codec carries along.

    Attributes:
        repairs: how often something was mended, by reason.
        depth: how many messages are open around the value that is being written.
    """

    __slots__ = ("depth", "repairs")

    def __init__(self) -> None:
        self.repairs: dict[str, int] = {}
        self.depth = 0

    def repaired(self, reason: str, times: int = 1) -> None:
        """Count a repair."""
        self.repairs[reason] = self.repairs.get(reason, 0) + times


Writer: TypeAlias = Callable[[Any, State], bytes]
"""From a JSON value to protobuf bytes. Raises InvalidValue."""


class InvalidValue(Exception):
    """A JSON value that its field can't hold. The path to it grows on the way up."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.path = ""

    def below(self, step: str | int) -> InvalidValue:
        """The same error, found below this key or index."""
        head = f"[{step}]" if isinstance(step, int) else step
        joint = "." if self.path and self.path[0] != "[" else ""
        self.path = f"{head}{joint}{self.path}"
        return self

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}" if self.path else self.problem


def expected(what: str, value: object) -> InvalidValue:
    """The error for a value of a wrong kind. Names the kind, not the value, which may be private or huge."""
    kinds = {bool: "a boolean", str: "a string", list: "an array", dict: "an object", type(None): "null"}
    return InvalidValue(f"expected {what}, got {kinds.get(type(value), 'a number')}")


# As JSON writes a number. Six digits of exponent are beyond every field and keep Decimal quick.
_NUMBER: Final = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,6})?")
_LONGEST_INTEGER: Final = 20
_TOO_LARGE: Final = 1 << 64
_SPECIAL_DOUBLES: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _integer(value: object) -> int:
    """An integer written in a less usual way: `-1`, `1.0`, `1e3`, as a number or a string (ProtoJSON, "int64")."""
    if type(value) is float and value.is_integer():
        return int(value)
    if type(value) is str and _NUMBER.fullmatch(value):
        number = Decimal(value)
        if number.adjusted() > _LONGEST_INTEGER:
            return _TOO_LARGE
        if number == number.to_integral_value():
            return int(number)
    raise expected("an integer", value)


def _double(value: object) -> float:
    """A double written in a less usual way: an integer, or a string, also NaN and infinities (ProtoJSON, "double")."""
    if type(value) is int:
        return float(value)
    if type(value) is str:
        special = _SPECIAL_DOUBLES.get(value)
        if special is not None:
            return special
        if _NUMBER.fullmatch(value):
            number = float(value)
            if math.isinf(number):
                raise OverflowError
            return number
    raise expected('a number, "NaN", "Infinity" or "-Infinity"', value)


def _signed(number: int) -> bytes:
    # A negative number is written as its 64-bit two's complement.
    return varint(number if number >= 0 else number & 0xFFFF_FFFF_FFFF_FFFF)


def _zigzag(number: int) -> bytes:
    return varint(number << 1 if number >= 0 else (-number << 1) - 1)


_INT32: Final = (-(1 << 31), (1 << 31) - 1)
_INT64: Final = (-(1 << 63), (1 << 63) - 1)
_UINT32: Final = (0, (1 << 32) - 1)
_UINT64: Final = (0, (1 << 64) - 1)

_INTEGERS: Final[dict[int, tuple[tuple[int, int], Callable[[int], bytes]]]] = {
    FieldDescriptor.TYPE_INT32: (_INT32, _signed),
    FieldDescriptor.TYPE_INT64: (_INT64, _signed),
    FieldDescriptor.TYPE_UINT32: (_UINT32, varint),
    FieldDescriptor.TYPE_UINT64: (_UINT64, varint),
    FieldDescriptor.TYPE_SINT32: (_INT32, _zigzag),
    FieldDescriptor.TYPE_SINT64: (_INT64, _zigzag),
    FieldDescriptor.TYPE_FIXED32: (_UINT32, struct.Struct("<I").pack),
    FieldDescriptor.TYPE_FIXED64: (_UINT64, struct.Struct("<Q").pack),
    FieldDescriptor.TYPE_SFIXED32: (_INT32, struct.Struct("<i").pack),
    FieldDescriptor.TYPE_SFIXED64: (_INT64, struct.Struct("<q").pack),
}
_DOUBLES: Final = {
    FieldDescriptor.TYPE_DOUBLE: struct.Struct("<d").pack,
    FieldDescriptor.TYPE_FLOAT: struct.Struct("<f").pack,
}


def scalar(field: FieldDescriptor, head: bytes) -> Writer:
    """The writer of one value of a scalar field.

    Args:
        field: the field, which may be repeated.
        head: its tag, or nothing for an element of a packed field.
    """
    if field.type in _INTEGERS:
        limits, pack = _INTEGERS[field.type]
        return _integer_writer(head, limits, pack, _double_instead(field))
    if field.type in _DOUBLES:
        return _double_writer(head, _DOUBLES[field.type])
    if field.enum_type is not None:
        return _integer_writer(
            head, *_INTEGERS[FieldDescriptor.TYPE_INT32], names={v.name: v.number for v in field.enum_type.values}
        )
    if field.type == FieldDescriptor.TYPE_BYTES:
        return _id_writer(head) if field.name in ID_FIELDS else _base64_writer(head)
    return {FieldDescriptor.TYPE_STRING: _string_writer, FieldDescriptor.TYPE_BOOL: _bool_writer}[field.type](head)


def _double_instead(field: FieldDescriptor) -> Writer | None:
    """The double that the integer's oneof can hold instead, as JavaScript's SDK sends it over protobuf."""
    oneof = field.containing_oneof
    for sibling in oneof.fields if oneof else ():
        if sibling.type == FieldDescriptor.TYPE_DOUBLE:
            return scalar(sibling, tag(sibling.number, FIXED64))
    return None


def _string_writer(head: bytes) -> Writer:
    short = prefixes(head)

    def write(value: Any, _: State) -> bytes:
        if type(value) is not str:
            raise expected("a string", value)
        data = value.encode()
        size = len(data)
        return (short[size] if size < SHORT else head + varint(size)) + data

    return write


def _bool_writer(head: bytes) -> Writer:
    true, false = head + b"\x01", head + b"\x00"

    def write(value: Any, _: State) -> bytes:
        if value is True:
            return true
        if value is False:
            return false
        raise expected("true or false", value)

    return write


def _integer_writer(
    head: bytes,
    limits: tuple[int, int],
    pack: Callable[[int], bytes],
    write_double: Writer | None = None,
    names: Mapping[str, int] | None = None,
) -> Writer:
    low, high = limits

    def write(value: Any, state: State) -> bytes:
        if type(value) is int:
            number = value
        elif type(value) is str and value.encode().isdigit() and len(value) <= _LONGEST_INTEGER:  # bytes are ASCII only
            number = int(value)
        elif names and type(value) is str and value in names:
            number = names[value]
        else:
            number = _integer(value)
        if low <= number <= high:
            return head + pack(number)
        if write_double is None:
            raise InvalidValue(f"the number must be from {low} to {high}")
        state.repaired("integer_out_of_range")
        return write_double(value, state)

    return write


def _double_writer(head: bytes, pack: Callable[[float], bytes]) -> Writer:
    def write(value: Any, _: State) -> bytes:
        try:
            return head + pack(value if type(value) is float else _double(value))
        except OverflowError:
            raise InvalidValue("the number is too large") from None

    return write


def _id_writer(head: bytes) -> Writer:
    short = prefixes(head)

    def write(value: Any, _: State) -> bytes:
        if type(value) is not str:
            raise expected("a string of hex digits", value)
        try:
            data = unhexlify(value)
        except ValueError:
            data = UNREADABLE_ID
        size = len(data)
        return (short[size] if size < SHORT else head + varint(size)) + data

    return write


def _base64_writer(head: bytes) -> Writer:
    # The standard and the URL-safe alphabet, with or without padding (ProtoJSON, "bytes").
    alphabet = str.maketrans("-_", "+/")

    def write(value: Any, _: State) -> bytes:
        if type(value) is not str:
            raise expected("a string of base64", value)
        text = value.translate(alphabet).rstrip("=")
        try:
            data = a2b_base64(text + "=" * (-len(text) % 4), strict_mode=True)
        except ValueError:
            raise InvalidValue("not base64") from None
        return delimited(head, data)

    return write
