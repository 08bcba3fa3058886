"""OTLP/JSON to OTLP protobuf and back, by OTLP's own mapping: hex ids, integer enums, 64-bit integers as strings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from sidecar.errors import Permanent
from sidecar.signals import SCHEMAS, Signal


@dataclass(frozen=True, slots=True)
class Transcoded:
    """What a JSON body says, as protobuf.

    Attributes:
        data: the serialized message. Always decodes, unless values are nested deeper than protobuf allows; ids that
            can't be read are in it with a wrong length, so that `salvage.receive` rejects exactly their records.
        repairs: how often something was mended that a strict parser would have refused, by reason: `null`,
            `integer_out_of_range`, `surrogate`, `utf8`, `bom`.
    """

    data: bytes
    repairs: Mapping[str, int]


def decode(signal: Signal, body: bytes) -> Transcoded:
    """Read an OTLP/JSON export request. Give the result's `data` to `salvage.receive`.

    Raises:
        Permanent: not JSON, not an object, or a value of a wrong type: the message names its JSON path.
    """
    return transcode(SCHEMAS[signal].request, body)


def transcode(message_type: type[Message], body: bytes) -> Transcoded:
    """Read OTLP/JSON of any message, for example of the response to an export request. As `decode`."""
    try:
        message = json_format.Parse(body, message_type(), ignore_unknown_fields=True)
    except (json_format.ParseError, ValueError, RecursionError, TypeError) as error:
        raise Permanent(f"not OTLP/JSON: {error}") from None
    return Transcoded(message.SerializeToString(), {})


def encode(message: Message) -> bytes:
    """Write a message (request or response) as OTLP/JSON on one line: defaults omitted, no base64 ids, no enum names."""
    return orjson.dumps(_to_dict(message))


def _to_dict(message: Message) -> dict[str, Any]:
    return {
        field.json_name: [_value(field, item) for item in value] if field.is_repeated else _value(field, value)
        for field, value in message.ListFields()
    }


def _value(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is not None:
        return _to_dict(value)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return value.hex()
    if field.cpp_type in (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64):
        return str(value)
    return value
