"""Hands a request out as plain objects: for those that turn it into another format, in a third of the time of protobuf.

The kernel reads them from the bytes. Where there is none, or in doubt, they are made of the message.
"""

from __future__ import annotations

import enum
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from math import isfinite
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from sidecar import kernel
from sidecar.batch import Batch
from sidecar.kernel import Meaning
from sidecar.signals import SCHEMAS, Signal

if TYPE_CHECKING:
    from sidecar.kernel._kernel import Reader

Value: TypeAlias = str | int | float | bool | bytes | list["Value"] | dict[str, "Value"] | None
"""What an AnyValue holds; None where it holds nothing."""

_FLAT: Final = "is_flat"
_FLAT_TYPES: Final = {str, int, float, bool}


def read(batch: Batch) -> Any:
    """The request of a batch, as named tuples with the fields of its messages, which belong to the caller.

    It differs from the message in what makes it convenient:

    - `attributes` are a dictionary, of which the last of equal keys counts; values and bodies are a `Value`.
    - `is_flat` stands beside `attributes`, and says that each of their values is a text, a boolean, an integer or a
      finite number. Where a key comes twice, it speaks of both.
    - A resource and a scope are the bytes of their message, since few of them come again and again.
    - A field with presence that is absent is None, except for a message outside of a oneof, which is an empty one.

    Raises:
        Permanent: the bytes are not such a request.
    """
    reader = _reader(batch.signal)
    made = None if reader is None else reader.read(batch.encode())
    return _layout(SCHEMAS[batch.signal].request.DESCRIPTOR).make(batch.message) if made is None else made


def read_resource(data: bytes) -> Any:
    """A resource that `read` has left as bytes, as a named tuple."""
    return _layout(Resource.DESCRIPTOR).make(Resource.FromString(data))


def read_scope(data: bytes) -> Any:
    """An instrumentation scope that `read` has left as bytes, as a named tuple."""
    return _layout(InstrumentationScope.DESCRIPTOR).make(InstrumentationScope.FromString(data))


# The numbers are those in kernel/read.h.
class _Reading(enum.IntEnum):
    """What the value of a field becomes."""

    UNSIGNED = 1
    SIGNED32 = 2
    SIGNED64 = 3
    ZIGZAG = 4
    NUMBER = 5
    TRUTH = 6
    CHARACTERS = 7
    OCTETS = 8
    TUPLE = 9
    RAW = 10
    VALUE = 11
    PAIRS = 12
    INSIDE = 13


_COMMON: Final = "opentelemetry.proto.common.v1."
_MESSAGES: Final = {
    f"{_COMMON}AnyValue": _Reading.VALUE,
    f"{_COMMON}KeyValue": _Reading.PAIRS,
    f"{_COMMON}ArrayValue": _Reading.INSIDE,
    f"{_COMMON}KeyValueList": _Reading.INSIDE,
    f"{_COMMON}InstrumentationScope": _Reading.RAW,
    "opentelemetry.proto.resource.v1.Resource": _Reading.RAW,
}
_SCALARS: Final = {
    FieldDescriptor.TYPE_BOOL: _Reading.TRUTH,
    FieldDescriptor.TYPE_ENUM: _Reading.SIGNED32,
    FieldDescriptor.TYPE_INT32: _Reading.SIGNED32,
    FieldDescriptor.TYPE_SINT32: _Reading.ZIGZAG,
    FieldDescriptor.TYPE_UINT32: _Reading.UNSIGNED,
    FieldDescriptor.TYPE_INT64: _Reading.SIGNED64,
    FieldDescriptor.TYPE_SINT64: _Reading.ZIGZAG,
    FieldDescriptor.TYPE_UINT64: _Reading.UNSIGNED,
    FieldDescriptor.TYPE_FIXED32: _Reading.UNSIGNED,
    FieldDescriptor.TYPE_SFIXED32: _Reading.SIGNED32,
    FieldDescriptor.TYPE_FIXED64: _Reading.UNSIGNED,
    FieldDescriptor.TYPE_SFIXED64: _Reading.SIGNED64,
    FieldDescriptor.TYPE_DOUBLE: _Reading.NUMBER,
    FieldDescriptor.TYPE_STRING: _Reading.CHARACTERS,
    FieldDescriptor.TYPE_BYTES: _Reading.OCTETS,
}


@dataclass(frozen=True, slots=True)
class _Field:
    """One field of a message. `default`: of an absent one; Ellipsis stands for an empty object of its own."""

    name: str
    number: int
    reading: _Reading
    is_list: bool
    default: Any
    message: Descriptor | None

    @classmethod
    def of(cls, field: FieldDescriptor) -> _Field:
        message = field.message_type
        reading = _SCALARS[field.type] if message is None else _MESSAGES.get(message.full_name, _Reading.TUPLE)
        is_list = field.is_repeated and reading is not _Reading.PAIRS
        default: Any = ... if reading in {_Reading.PAIRS, _Reading.TUPLE} else None
        if is_list:
            default = ... if reading is _Reading.VALUE else ()
        elif reading is _Reading.RAW:
            default = b""
        elif field.has_presence and (message is None or field.containing_oneof is not None):
            default = None
        elif message is None:
            default = field.default_value
        return cls(field.name, field.number, reading, is_list, default, message)

    @property
    def conversion(self) -> Callable[[Any], Any] | None:
        """From what protobuf has to what is handed out; None where it is the same."""
        one = self._conversion
        if not self.is_list:
            return one
        default = self.default
        return lambda values: list(map(one, values) if one else values) or default

    @property
    def _conversion(self) -> Callable[[Any], Any] | None:
        match self.reading:
            case _Reading.PAIRS:
                return _pairs
            case _Reading.VALUE:
                return _value
            case _Reading.RAW:
                return lambda message: message.SerializeToString()
            case _Reading.TUPLE if self.message is not None:
                return _layout(self.message).make
            case _:
                return None


class _Layout:
    """What a message becomes."""

    def __init__(self, message: Descriptor) -> None:
        self._name = message.name
        self._fields = [_Field.of(field) for field in message.fields if field.message_type or field.type in _SCALARS]
        self._pairs = [slot for slot, field in enumerate(self._fields) if field.reading is _Reading.PAIRS]
        self._names = (*(field.name for field in self._fields), *[_FLAT] * bool(self._pairs))
        self._type: Any = namedtuple(message.name, self._names)  # type: ignore[misc] # noqa: PYI024 - only known now

    @cached_property
    def _values(self) -> Callable[[Any], Any]:
        """Asks a message for all of its fields at once."""
        names = [field.name for field in self._fields]
        return attrgetter(*names) if len(names) > 1 else lambda message: (getattr(message, names[0]),)

    @cached_property
    def _conversions(self) -> list[tuple[int, str, Callable[[Any], Any] | None]]:
        """Of the fields that are not handed out as they are: the slot, the name to ask for presence, and how."""
        return [
            (slot, field.name if field.default is None and field.reading is not _Reading.VALUE else "", convert)
            for slot, field in enumerate(self._fields)
            if (convert := field.conversion) is not None or field.default is None
        ]

    def make(self, message: Any) -> Any:
        """The message as a named tuple."""
        values = list(self._values(message))
        for slot, name, convert in self._conversions:
            if name and not message.HasField(name):
                values[slot] = None
            elif convert is not None:
                values[slot] = convert(values[slot])
        if self._pairs:
            values.append(all(_is_flat(values[slot]) for slot in self._pairs))
        return self._type._make(values)

    @property
    def row(self) -> tuple[Any, ...]:
        """The same for the kernel."""
        is_flat = bool(self._pairs)
        return (
            f"sidecar.reading.{self._name}",
            self._names,
            tuple(field.default for field in self._fields) + (None,) * is_flat,
            len(self._fields) if is_flat else -1,
            tuple((field.number, slot, field.reading, field.is_list) for slot, field in enumerate(self._fields)),
        )


_layout: Final = cache(_Layout)


@cache
def _reader(signal: Signal) -> Reader | None:
    request = SCHEMAS[signal].request.DESCRIPTOR
    schema = kernel.make_schema(request, lambda _: Meaning())
    if kernel.module is None or schema is None:
        return None
    made: Reader = kernel.module.Reader(schema, tuple(_layout(message).row for message in kernel.messages_of(request)))
    return made


def _pairs(pairs: Any) -> dict[str, Value]:
    # A field that is not set reads as empty: most values are found without asking which one is set.
    return {pair.key: pair.value.string_value or _value(pair.value) for pair in pairs}


def _value(value: Any) -> Value:
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    held = getattr(value, kind)
    if kind == "array_value":
        return [_value(one) for one in held.values]
    if kind == "kvlist_value":
        return _pairs(held.values)
    plain: str | int | float | bool | bytes = held
    return plain


def _is_flat(pairs: dict[str, Value]) -> bool:
    types = {*map(type, pairs.values())}
    if float in types and not all(isfinite(value) for value in pairs.values() if isinstance(value, float)):
        return False
    return types <= _FLAT_TYPES
