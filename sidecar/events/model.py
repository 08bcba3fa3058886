"""Read TelemetryEvents off the wire, from JSON or protobuf, so that one bad event never costs the others.

Nothing is checked here but the shape of the batch: an event is taken as it was sent, and one that can't be read at all
is None. Limits and meaning are `sanitise`'s.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, NoReturn

import msgspec
from google.protobuf.message import DecodeError
from google.protobuf.struct_pb2 import Value
from google.protobuf.timestamp_pb2 import Timestamp

from sidecar.errors import Permanent, TooLarge
from sidecar.events.telemetry_event_pb2 import TelemetryBatch, TelemetryBatchParts, TelemetryEvent

_LONE_SURROGATE: Final = re.compile("[\ud800-\udfff]")
# Beyond it a double no longer holds every integer.
_EXACT_INTEGERS: Final = 2**53


class WireEvent(msgspec.Struct, gc=False):
    """An event as it was sent. Any field may be of any type; unknown ones are skipped while decoding."""

    id: Any = None
    timestamp: Any = None
    source: Any = None
    severity: Any = None
    kind: Any = None
    version: Any = None
    machine_id: Any = None
    account_id: Any = None
    request_id: Any = None
    session_id: Any = None
    message: Any = None
    fields: Any = None
    stack: Any = None


class TooManyEvents(TooLarge):
    """More events than one batch may hold."""

    default_reason = "too_many_events"


class _Envelope(msgspec.Struct):
    # Each event stays text: the envelope's syntax is checked as a whole, but each event decodes, or fails, alone.
    events: list[msgspec.Raw]


_envelope: Final = msgspec.json.Decoder(_Envelope)
_event: Final = msgspec.json.Decoder(WireEvent)


def from_json(body: bytes, max_events: int) -> list[WireEvent | None]:
    """The events of a JSON batch.

    Raises:
        Permanent: not JSON, or not `{"events": [...]}`.
        TooManyEvents: more than `max_events`.
    """
    try:
        try:
            events = _envelope.decode(body).events
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            events = _envelope.decode(_mend(body)).events
    except msgspec.ValidationError as error:
        raise Permanent(f'not a batch of events: {error}; send {{"events": [...]}}') from None
    except (ValueError, RecursionError) as error:
        raise Permanent(f"not JSON: {error}") from None
    _check_count(len(events), max_events)
    return [_event_from_json(event) for event in events]


def _event_from_json(text: msgspec.Raw) -> WireEvent | None:
    try:
        try:
            return _event.decode(text)
        except msgspec.ValidationError:
            return None
        except msgspec.DecodeError:
            return _event.decode(_mend(bytes(text)))
    except (ValueError, RecursionError):
        return None


def _mend(text: bytes) -> bytes:
    """Replace what is no Unicode by U+FFFD.

    Text cut within a character is the usual cause: bytes that are no UTF-8, or half a surrogate pair, which JavaScript
    escapes as it is.

    Raises:
        ValueError: it is not JSON either.
    """
    value = json.loads(text.decode(errors="replace"), parse_constant=_refuse_constant)
    return _LONE_SURROGATE.sub("\N{REPLACEMENT CHARACTER}", json.dumps(value, ensure_ascii=False)).encode()


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def from_protobuf(data: bytes, max_events: int) -> list[WireEvent | None]:
    """The events of a `telemetry.v1.TelemetryBatch`.

    Raises:
        Permanent: not such a message.
        TooManyEvents: more than `max_events`.
    """
    try:
        events = TelemetryBatch.FromString(data).events
    except DecodeError:
        return _parts_from_protobuf(data, max_events)
    _check_count(len(events), max_events)
    return [_event_from_protobuf(event) for event in events]


def _parts_from_protobuf(data: bytes, max_events: int) -> list[WireEvent | None]:
    """As `from_protobuf`, where some event is broken: text that is not UTF-8 is enough."""
    try:
        parts = TelemetryBatchParts.FromString(data).events
    except DecodeError as error:
        raise Permanent(f"not a telemetry.v1.TelemetryBatch: {error}") from None
    _check_count(len(parts), max_events)
    return [_event_from_part(part) for part in parts]


def _event_from_part(part: bytes) -> WireEvent | None:
    try:
        return _event_from_protobuf(TelemetryEvent.FromString(part))
    except DecodeError:
        return None


def _event_from_protobuf(event: TelemetryEvent) -> WireEvent:
    return WireEvent(
        id=event.id,
        timestamp=_text_of(event.timestamp) if event.HasField("timestamp") else None,
        source=event.source,
        severity=event.severity,
        kind=event.kind,
        version=event.version,
        machine_id=event.machine_id,
        account_id=event.account_id,
        request_id=event.request_id,
        session_id=event.session_id,
        message=event.message,
        fields={key: _plain(value) for key, value in event.fields.fields.items()},
        stack=event.stack,
    )


def _text_of(timestamp: Timestamp) -> str | None:
    try:
        return timestamp.ToJsonString()
    except ValueError:  # outside the years 1 to 9999
        return None


def _plain(value: Value) -> Any:
    """What the same field would be in JSON. A Struct knows doubles only, so whole numbers become integers again."""
    kind = value.WhichOneof("kind")
    if kind == "number_value":
        number = value.number_value
        return int(number) if number.is_integer() and abs(number) <= _EXACT_INTEGERS else number
    if kind == "struct_value":
        return {key: _plain(inner) for key, inner in value.struct_value.fields.items()}
    if kind == "list_value":
        return [_plain(inner) for inner in value.list_value.values]
    return None if kind is None or kind == "null_value" else getattr(value, kind)


def _check_count(events: int, max_events: int) -> None:
    if events > max_events:
        raise TooManyEvents(f"{events} events in one batch; send at most {max_events}")
