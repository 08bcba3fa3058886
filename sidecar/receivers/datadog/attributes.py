"""OTLP attributes as wire bytes: most of what a tracer says comes again and again, and is encoded once per request."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from sidecar.net.wire import FIXED64, LENGTH_DELIMITED, delimited, tag

_KEY: Final = tag(KeyValue.KEY_FIELD_NUMBER, LENGTH_DELIMITED)
_VALUE: Final = tag(KeyValue.VALUE_FIELD_NUMBER, LENGTH_DELIMITED)
_STRING: Final = tag(AnyValue.STRING_VALUE_FIELD_NUMBER, LENGTH_DELIMITED)
_BYTES: Final = tag(AnyValue.BYTES_VALUE_FIELD_NUMBER, LENGTH_DELIMITED)
_DOUBLE: Final = tag(AnyValue.DOUBLE_VALUE_FIELD_NUMBER, FIXED64)
_LONGEST_INTEGER: Final = 1 << 63
_MAX_DEPTH: Final = 10


class Attributes(dict[tuple[str, Any], bytes]):
    """The field of a message that holds an attribute, by the attribute's name and value (text, float or bytes).

    Args:
        field: the number of the field.
    """

    def __init__(self, field: int) -> None:
        super().__init__()
        self._head = tag(field, LENGTH_DELIMITED)

    def __missing__(self, pair: tuple[str, Any]) -> bytes:
        key, value = pair
        if isinstance(value, str):
            content = delimited(_STRING, value.encode())
        elif isinstance(value, bytes):
            content = delimited(_BYTES, value)
        else:
            content = _DOUBLE + struct.pack("<d", value)
        field = delimited(self._head, delimited(_KEY, key.encode()) + delimited(_VALUE, content))
        self[pair] = field
        return field


def any_value(value: Any, depth: int = 1) -> AnyValue:
    """A JSON value as OTLP has it. What is nested too deeply for a reader of protobuf, or too large, is text."""
    made = AnyValue()
    if isinstance(value, str):
        made.string_value = value
    elif isinstance(value, bool):
        made.bool_value = value
    elif isinstance(value, int) and -_LONGEST_INTEGER <= value < _LONGEST_INTEGER:
        made.int_value = value
    elif isinstance(value, float):
        made.double_value = value
    elif isinstance(value, list) and depth < _MAX_DEPTH:
        made.array_value.values.extend(any_value(one, depth + 1) for one in value)
    elif isinstance(value, dict) and depth < _MAX_DEPTH:
        made.kvlist_value.values.extend(key_values(value, depth + 1))
    elif value is not None:
        made.string_value = msgspec.json.encode(value).decode()
    return made


def key_values(members: Mapping[str, Any], depth: int = 0) -> list[KeyValue]:
    """A JSON object as attributes."""
    return [KeyValue(key=key, value=any_value(value, depth)) for key, value in members.items()]
