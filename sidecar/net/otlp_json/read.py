"""From OTLP/JSON to the bytes of a protobuf message, by tables made from the descriptors.

The bytes are written directly: building messages and serializing them takes a quarter more time, and who only passes a
request on needs no message.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

import orjson
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from sidecar.errors import Permanent
from sidecar.net.otlp_json.scalars import InvalidValue, State, Writer, expected, scalar
from sidecar.net.wire import LENGTH_DELIMITED, SHORT, delimited, prefixes, tag, varint, wire_type
from sidecar.signals import SCHEMAS, Signal


@dataclass(frozen=True, slots=True)
class Transcoded:
    """What a JSON body says, as protobuf.

    Attributes:
        data: the serialized message. What protobuf can't hold is in it in a form that `salvage.receive` rejects
            together with its record, and with nothing else: an id that is not hex has a wrong length, and values
            nested too deeply stay so.
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
    state = State()
    with _tables_lock:
        write = _table(cast("Descriptor", message_type.DESCRIPTOR))[1]
    try:
        data = write(_load(body, state), state)
    except InvalidValue as error:
        raise Permanent(f"not OTLP/JSON: {error}") from None
    return Transcoded(data, state.repairs)


def _load(body: bytes, state: State) -> Any:
    """Parse JSON; mend the text only when it doesn't parse as it is."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        mended = _mend(body, state)
        if mended == body:
            raise InvalidValue(str(error)) from None
    try:
        return orjson.loads(mended)
    except orjson.JSONDecodeError as error:
        raise InvalidValue(str(error)) from None


_BOM: Final = b"\xef\xbb\xbf"
# A high surrogate without a low one after it, or a low one without a high one before it.
_LONE_SURROGATE: Final = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)
_ESCAPED_BACKSLASH: Final = b"\\\\"
_STAND_IN: Final = b"\x00\x00"


def _mend(body: bytes, state: State) -> bytes:
    """Take away what real clients send and JSON forbids: a byte order mark, bad UTF-8, lone surrogates."""
    if body.startswith(_BOM):
        state.repaired("bom")
        body = body[len(_BOM) :]
    try:
        body.decode()
    except UnicodeDecodeError:
        state.repaired("utf8")
        body = body.decode(errors="replace").encode()
    if _STAND_IN[:1] in body:  # never in JSON, so that it can stand for an escaped backslash below
        return body
    mended, times = _LONE_SURROGATE.subn(rb"\\ufffd", body.replace(_ESCAPED_BACKSLASH, _STAND_IN))
    if not times:
        return body
    state.repaired("surrogate", times)
    return mended.replace(_STAND_IN, _ESCAPED_BACKSLASH)


# --- messages ---------------------------------------------------------------------------------------------------------

Fields: TypeAlias = dict[str, Writer]
"""What writes each field of a message, tag included, by its name in JSON and by its name in the schema."""

_MAX_DEPTH: Final = 100
"""Protobuf decodes 100 messages within each other. What is deeper is not written: its record is rejected anyway."""

_OLD_SCOPES: Final = 1000
"""The field of the scopes until OTLP 0.19. It goes out as it came, and salvage moves it, as it does for protobuf."""

# What stands before the key, the value and the text of a short attribute, by their lengths.
_KEYS: Final = prefixes(tag(KeyValue.KEY_FIELD_NUMBER, LENGTH_DELIMITED))
_VALUES: Final = prefixes(tag(KeyValue.VALUE_FIELD_NUMBER, LENGTH_DELIMITED))
_TEXT_VALUES: Final = tuple(
    before_value + before_text
    for before_value, before_text in zip(
        _VALUES[2:], prefixes(tag(AnyValue.STRING_VALUE_FIELD_NUMBER, LENGTH_DELIMITED)), strict=False
    )
)
_SCALARS: Final = {
    name: scalar(field, tag(field.number, wire_type(field)))
    for field in AnyValue.DESCRIPTOR.fields
    if field.message_type is None
    for name in (field.json_name, field.name)
}

_tables: Final[dict[str, tuple[Fields, Writer]]] = {}
_tables_lock: Final = threading.Lock()
"""Held while tables are made: large bodies are read in threads, and half a table would lose the other half's fields."""


def _table(descriptor: Descriptor) -> tuple[Fields, Writer]:
    """The fields of a message and the writer of its contents, without tag and length; made on first use."""
    known = _tables.get(descriptor.full_name)
    if known is not None:
        return known
    fields: Fields = {}
    write = _object_writer(fields)
    # Known before its fields are, since messages hold themselves: AnyValue, ArrayValue, AnyValue.
    _tables[descriptor.full_name] = fields, write
    for field in descriptor.fields:
        fields[field.json_name] = fields[field.name] = _field_writer(field, field.number)
        if field.name.startswith("scope"):
            number = field.number if field.name == "scope" else _OLD_SCOPES
            for name, old in ((field.json_name, "instrumentationLibrary"), (field.name, "instrumentation_library")):
                fields[name.replace("scope", old, 1)] = _field_writer(field, number)
    return fields, write


def _field_writer(field: FieldDescriptor, number: int) -> Writer:
    head = tag(number, wire_type(field))
    if field.message_type is not None:
        write = _table(field.message_type)[1]
        if not field.is_repeated:
            return _message_writer(head, write)
        if field.message_type.full_name == KeyValue.DESCRIPTOR.full_name:
            return _attributes_writer(head, write)
        return _messages_writer(head, write)
    if not field.is_repeated:
        return scalar(field, head)
    if field.is_packed:
        return _list_writer(tag(number, LENGTH_DELIMITED), scalar(field, b""))
    return _list_writer(b"", scalar(field, head))


def _object_writer(fields: Fields) -> Writer:
    def write(value: Any, state: State) -> bytes:
        if type(value) is not dict:
            raise expected("an object", value)
        parts = []
        for key, item in value.items():
            try:
                parts.append(fields[key](item, state))
            except KeyError:
                continue  # unknown keys must be ignored (OTLP specification, "JSON Protobuf Encoding")
            except InvalidValue as error:
                if item is not None:
                    raise error.below(key) from None
                state.repaired("null")  # as good as not there (ProtoJSON)
        return b"".join(parts)

    return write


def _message_writer(head: bytes, write_contents: Writer) -> Writer:
    def write(value: Any, state: State) -> bytes:
        if state.depth > _MAX_DEPTH:
            return b""
        state.depth += 1
        try:
            return delimited(head, write_contents(value, state))
        finally:
            state.depth -= 1

    return write


def _attributes_writer(head: bytes, write_any_shape: Writer) -> Writer:
    """Attributes are most of a request, so their usual shape, a short key and a short scalar, has a way of its own.

    It takes half the time. Whatever doesn't fit, by its shape or in one of the tables of short lengths, raises and goes
    the way of all messages; nested values do, so that none is looked at twice.
    """
    heads = tuple(head + varint(size) for size in range(2 * SHORT + 4))

    def write(value: Any, state: State) -> bytes:
        parts: list[bytes] = []
        for pair in _array(value):
            try:
                any_value = pair["value"]
                if len(pair) != 2 or len(any_value) != 1:
                    raise LookupError
                key = pair["key"].encode()
                key_size = len(key)
                if "stringValue" in any_value:
                    data = any_value["stringValue"].encode()
                    size = len(data)
                    parts += heads[key_size + size + 6], _KEYS[key_size], key, _TEXT_VALUES[size], data
                else:
                    ((kind, item),) = any_value.items()
                    data = _SCALARS[kind](item, state)
                    size = len(data)
                    parts += heads[key_size + size + 4], _KEYS[key_size], key, _VALUES[size], data
            except (LookupError, TypeError, AttributeError, ValueError, InvalidValue):
                try:
                    parts.append(delimited(head, write_any_shape(pair, state)))
                except InvalidValue as error:
                    raise error.below(next(i for i, item in enumerate(value) if item is pair)) from None
        return b"".join(parts)

    return write


def _messages_writer(head: bytes, write_contents: Writer) -> Writer:
    def write(value: Any, state: State) -> bytes:
        items, parts = _array(value), []
        try:
            for item in items:
                if item is None:
                    # How some clients write an empty AnyValue; leaving it out would move its neighbours.
                    state.repaired("null")
                    parts.append(delimited(head, b""))
                else:
                    parts.append(delimited(head, write_contents(item, state)))
        except InvalidValue as error:
            raise error.below(len(parts)) from None
        return b"".join(parts)

    return write


def _list_writer(head: bytes, write_item: Writer) -> Writer:
    """The writer of a repeated scalar: packed behind `head`, or each item with its own tag when `head` is empty."""

    def write(value: Any, state: State) -> bytes:
        items, parts = _array(value), []
        try:
            for item in items:
                parts.append(write_item(item, state))  # noqa: PERF401 (the error below needs the items so far)
        except InvalidValue as error:
            raise error.below(len(parts)) from None
        data = b"".join(parts)
        return delimited(head, data) if head else data

    return write


def _array(value: Any) -> list[Any]:
    if type(value) is not list:
        raise expected("an array", value)
    return value
