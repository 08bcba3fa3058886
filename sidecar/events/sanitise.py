"""Bring an event as it was sent within the limits of the wire contract (§1): what passes is safe to convert.

Nothing here raises: what is missing, of another type, or unknown becomes its default, and only an event without a
message is rejected. What had to be changed is counted by reason.
"""

from __future__ import annotations

import re
import uuid
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

import msgspec

from sidecar.batch import Identity
from sidecar.events.keys import FIELD_KEYS
from sidecar.events.model import WireEvent
from sidecar.events.trace_ids import SPAN_ID, TRACE_ID, TRACEPARENT, correlate

SOURCES: Final = frozenset({"coordinator", "provider", "app", "console", "bridge"})
SEVERITIES: Final = frozenset({"debug", "info", "warn", "error", "fatal"})
KINDS: Final = frozenset(
    {
        "panic", "http_error", "protocol_error", "backend_crash", "attestation_failure", "inference_error",
        "runtime_mismatch", "connectivity", "log", "custom",
    }
)  # fmt: skip

_MAX_VERSION: Final = 64
_MAX_MACHINE_ID: Final = 128
_MAX_ACCOUNT_ID: Final = 128
_MAX_REQUEST_ID: Final = 128
_MAX_SESSION_ID: Final = 64
# The 30 keys hold scalars; a later client may nest, but not for ever.
_MAX_DEPTH: Final = 8
# 31 years, far above any duration and far below where its nanoseconds leave 64 bits.
_MAX_DURATION_MS: Final = 1e12

_CORRELATORS: Final = frozenset({TRACE_ID, SPAN_ID, TRACEPARENT})
_SCALARS: Final = frozenset({str, int, float, bool})
_MESSAGE_MARK: Final = "…"
_STACK_MARK: Final = "\n… truncated"
_MAX_UTF8: Final = 4
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_TIMESTAMP: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d):(\d\d)(?:\.(\d+))?(?:[Zz]|([+-]\d\d:\d\d))", re.ASCII
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND: Final = 1_000_000_000
_LATEST: Final = 2**63 - 1

_encode_json: Final = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Limits:
    """What an event may be. Sizes in UTF-8 bytes, times in nanoseconds; the defaults are the wire contract's."""

    message: int = 4096
    stack: int = 32 * 1024
    fields: int = 8 * 1024
    max_age: int = 7 * 24 * 3600 * _SECOND
    max_ahead: int = 5 * 60 * _SECOND


class Event(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A TelemetryEvent within its limits. Absent texts are "", absent ids b"".

    Attributes:
        timestamp: Unix time in nanoseconds.
        duration: nanoseconds, or None.
        fields: only keys of `FIELD_KEYS`, also within nested values.
        trace_id, span_id: what it belongs to (§6); `span_id` is the parent of a span that is made from it.
    """

    id: str
    timestamp: int
    source: str
    severity: str
    kind: str
    version: str
    machine_id: str
    account_id: str
    request_id: str
    session_id: str
    message: str
    fields: dict[str, Any]
    stack: str
    duration: int | None
    trace_id: bytes
    span_id: bytes


@dataclass(slots=True)
class Sanitised:
    """A batch within its limits.

    Attributes:
        events: those that pass, in the order in which they were sent.
        rejected: how many do not.
        repairs: what had to be changed or left out, by reason.
    """

    events: list[Event] = field(default_factory=list)
    rejected: int = 0
    repairs: Counter[str] = field(default_factory=Counter)


def sanitise(sent: Iterable[WireEvent | None], caller: Identity | None, received_at: int, limits: Limits) -> Sanitised:
    """Bring a batch within its limits.

    Args:
        sent: the events as they were sent; None for those that could not be read.
        caller: who sent them, or None: a provider is always the source, and what is known of a caller overrides what
            it says of itself (§2).
        received_at: Unix time in nanoseconds.
        limits: of each event.
    """
    result = Sanitised()
    sanitiser = _Sanitiser(caller, received_at, limits, result.repairs)
    for wire in sent:
        if wire is None or not isinstance(wire.message, str) or not wire.message:
            result.rejected += 1
        else:
            result.events.append(sanitiser.event(wire))
    return result


class _Sanitiser:
    """What is the same for all events of a batch."""

    def __init__(self, caller: Identity | None, received_at: int, limits: Limits, repairs: Counter[str]) -> None:
        self._limits = limits
        self._repairs = repairs
        self._received_at = received_at
        # However wide the limits, a time must fit its field (fixed64, read as signed by many).
        self._oldest = max(0, received_at - limits.max_age)
        self._newest = min(_LATEST, received_at + limits.max_ahead)
        self._forced_source = "provider" if caller is not None and caller.kind == "provider" else ""
        self._machine_id = caller.machine_id if caller is not None else ""
        self._account_id = caller.account_id if caller is not None else ""

    def event(self, wire: WireEvent) -> Event:
        sent_fields = wire.fields if isinstance(wire.fields, dict) else {}
        fields = self._fields(sent_fields)
        request_id = _text(wire.request_id, _MAX_REQUEST_ID)
        trace_id, span_id = correlate(sent_fields, request_id)
        return Event(
            id=wire.id if isinstance(wire.id, str) and _UUID.fullmatch(wire.id) else str(uuid.uuid4()),
            timestamp=self._timestamp(wire.timestamp),
            source=self._forced_source or _one_of(SOURCES, wire.source, "custom"),
            severity=_one_of(SEVERITIES, wire.severity, "info"),
            kind=_one_of(KINDS, wire.kind, "custom"),
            version=_text(wire.version, _MAX_VERSION),
            machine_id=_text(self._machine_id or wire.machine_id, _MAX_MACHINE_ID),
            account_id=_text(self._account_id or wire.account_id, _MAX_ACCOUNT_ID),
            request_id=request_id,
            session_id=_text(wire.session_id, _MAX_SESSION_ID),
            message=self._marked("message", wire.message, self._limits.message, _MESSAGE_MARK),
            fields=fields,
            stack=self._marked("stack", wire.stack, self._limits.stack, _STACK_MARK) if wire.stack else "",
            duration=_duration(fields.get("duration_ms")),
            trace_id=trace_id,
            span_id=span_id,
        )

    def _timestamp(self, sent: object) -> int:
        if not sent:
            return self._received_at
        nanoseconds = parse_timestamp(sent) if isinstance(sent, str) else None
        if nanoseconds is None or not self._oldest <= nanoseconds <= self._newest:
            self._repairs["timestamp_replaced"] += 1
            return self._received_at
        return nanoseconds

    def _marked(self, name: str, sent: object, limit: int, mark: str) -> str:
        if not isinstance(sent, str):
            return ""
        text = cut(sent, limit)
        if text is not sent:
            self._repairs[f"{name}_cut"] += 1
            text += mark
        return text

    def _fields(self, sent: dict[str, Any]) -> dict[str, Any]:
        kept = {}
        for key, value in sent.items():
            if key in FIELD_KEYS:
                if type(value) in _SCALARS:
                    kept[key] = value
                elif value is not None:
                    kept[key] = _pruned(value, _MAX_DEPTH)
            elif key not in _CORRELATORS:
                self._repairs["field_not_allowed"] += 1
        if kept and len(_encode_json(kept)) > self._limits.fields:
            self._repairs["fields_too_large"] += 1
            return {}
        return kept


def _one_of(known: frozenset[str], sent: object, default: str) -> str:
    return sent if isinstance(sent, str) and sent in known else default


def _text(sent: object, limit: int) -> str:
    return cut(sent, limit) if isinstance(sent, str) else ""


def cut(text: str, limit: int) -> str:
    """The text itself when it has at most `limit` UTF-8 bytes, else as many whole characters of it as fit."""
    if len(text) * _MAX_UTF8 <= limit:
        return text
    data = text.encode()
    return text if len(data) <= limit else data[:limit].decode(errors="ignore")


def _pruned(value: Any, depth: int) -> Any:
    """A nested value without the keys that are not allowed, which may hide at any depth."""
    if isinstance(value, dict):
        return {key: _pruned(inner, depth - 1) for key, inner in value.items() if key in FIELD_KEYS} if depth else None
    if isinstance(value, list):
        return [_pruned(inner, depth - 1) for inner in value] if depth else None
    return value


def _duration(milliseconds: Any) -> int | None:
    if type(milliseconds) not in (int, float) or not 0 <= milliseconds <= _MAX_DURATION_MS:
        return None
    nanoseconds: int = round(milliseconds * 1_000_000)
    return nanoseconds


def parse_timestamp(text: str) -> int | None:
    """Unix time in nanoseconds of an RFC 3339 timestamp of any precision; None when it is none.

    Digits beyond the ninth are cut off. A leap second is the first second of the next minute.
    """
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        return None
    date, minute, second, fraction, offset = match.groups()
    start = _start_of_minute(date, minute, offset or "+00:00")
    if start is None or int(second) > 60:
        return None
    return (start + int(second)) * _SECOND + (int(fraction[:9].ljust(9, "0")) if fraction else 0)


# The events of a batch share their minutes, and this is the larger part of reading a timestamp.
@lru_cache(maxsize=256)
def _start_of_minute(date: str, minute: str, offset: str) -> int | None:
    try:
        since = datetime.fromisoformat(f"{date}T{minute}:00{offset}") - _EPOCH
    except ValueError:
        return None
    return since.days * 86400 + since.seconds
