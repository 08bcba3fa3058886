"""From a protobuf message to OTLP/JSON, by tables made from the descriptors."""

from __future__ import annotations

import binascii
import math
import threading
from collections.abc import Callable
from typing import Any, Final, TypeAlias, cast

import orjson
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from sidecar.net.otlp_json.scalars import ID_FIELDS

Reader: TypeAlias = Callable[[Any], Any]
"""From the value of a field to what orjson writes for it."""


def encode(message: Message) -> bytes:
    """Write a message (request or response) as OTLP/JSON on one line, without a line end.

    Unset fields are left out, ids are hex, enums are numbers, 64-bit integers are strings.
    """
    with _readers_lock:
        read = _reader_of(cast("Descriptor", message.DESCRIPTOR))
    return orjson.dumps(read(message))


_readers: Final[dict[str, Reader]] = {}
_readers_lock: Final = threading.Lock()
"""Held while readers are made, so that no thread meets one that doesn't know all its fields."""


def _reader_of(descriptor: Descriptor) -> Reader:
    """What reads messages of one type; made on first use."""
    known = _readers.get(descriptor.full_name)
    if known is not None:
        return known
    by_field: dict[FieldDescriptor, tuple[str, Reader | None]] = {}
    by_name: dict[str, tuple[str, Reader | None]] = {}
    # A message that is one oneof and nothing else (AnyValue) is half of all there is to read.
    only = len(descriptor.oneofs) == 1 and len(descriptor.oneofs[0].fields) == len(descriptor.fields)
    read = _oneof_reader(descriptor.oneofs[0].name, by_name) if only else _message_reader(by_field)
    # Known before its fields are, since messages hold themselves: AnyValue, ArrayValue, AnyValue.
    _readers[descriptor.full_name] = read
    for field in descriptor.fields:
        read_one = _value_reader(field)
        entry = field.json_name, _list_reader(read_one) if field.is_repeated else read_one
        by_field[field] = by_name[field.name] = entry
    return read


def _message_reader(fields: dict[FieldDescriptor, tuple[str, Reader | None]]) -> Reader:
    def read(message: Any) -> dict[str, Any]:
        out = {}
        for field, value in message.ListFields():
            name, read_field = fields[field]
            out[name] = value if read_field is None else read_field(value)
        return out

    return read


def _oneof_reader(oneof: str, fields: dict[str, tuple[str, Reader | None]]) -> Reader:
    def read(message: Any) -> dict[str, Any]:
        member = message.WhichOneof(oneof)
        if member is None:
            return {}
        name, read_field = fields[member]
        value = getattr(message, member)
        return {name: value if read_field is None else read_field(value)}

    return read


def _list_reader(read_one: Reader | None) -> Reader:
    if read_one is None:
        return list

    def read(values: Any) -> list[Any]:
        return [read_one(value) for value in values]

    return read


def _value_reader(field: FieldDescriptor) -> Reader | None:
    if field.message_type is not None:
        return _reader_of(field.message_type)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return bytes.hex if field.name in ID_FIELDS else _base64
    if field.cpp_type in (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64):
        return str
    if field.cpp_type in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return _double
    return None


def _base64(value: bytes) -> str:
    return binascii.b2a_base64(value, newline=False).decode()


def _double(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
