"""Trace and span ids as senders write them, and those derived from request and event ids (wire contract §6).

Deriving is deterministic: the events of one request meet in one trace although they come from different hosts.
An absent id is b"" throughout, as in OTLP, and an id of nothing but zeros counts as absent.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final

TRACE_ID: Final = "trace_id"
SPAN_ID: Final = "span_id"
TRACEPARENT: Final = "traceparent"

_TRACE_ID_SIZE: Final = 16
_SPAN_ID_SIZE: Final = 8
_UINT64: Final = 1 << 64
_HEX_TRACE_ID: Final = re.compile(r"[0-9a-fA-F]{32}")
_HEX_SPAN_ID: Final = re.compile(r"[0-9a-fA-F]{16}")
_DECIMAL: Final = re.compile(r"[0-9]{1,20}")
_TRACEPARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?")


def parse_trace_id(value: object) -> bytes:
    """16 bytes from 32 hex digits or from Datadog's decimal form; b"" from anything else."""
    if isinstance(value, str) and _HEX_TRACE_ID.fullmatch(value):
        return _unless_zero(bytes.fromhex(value))
    return _from_decimal(value, _TRACE_ID_SIZE)


def parse_span_id(value: object, *, decimal: bool = False) -> bytes:
    """8 bytes from 16 hex digits or from Datadog's decimal form; b"" from anything else.

    Args:
        value: as it was sent.
        decimal: what 16 digits without a letter are: the trace id beside them tells.
    """
    if isinstance(value, str) and _HEX_SPAN_ID.fullmatch(value) and not (decimal and _DECIMAL.fullmatch(value)):
        return _unless_zero(bytes.fromhex(value))
    return _from_decimal(value, _SPAN_ID_SIZE)


def parse_traceparent(value: object) -> tuple[bytes, bytes]:
    """Trace and parent id of a `traceparent` header; both are b"" when it must be ignored (Trace Context §3.2)."""
    match = _TRACEPARENT.fullmatch(value) if isinstance(value, str) else None
    if match is None or match[1] == "ff" or (match[1] == "00" and match[4]):
        return b"", b""
    trace_id, span_id = _unless_zero(bytes.fromhex(match[2])), _unless_zero(bytes.fromhex(match[3]))
    return (trace_id, span_id) if trace_id and span_id else (b"", b"")


def correlate(fields: Mapping[str, Any], request_id: str) -> tuple[bytes, bytes]:
    """The trace and the span that an event belongs to: as its fields say, else derived from its request."""
    span_id = b""
    if TRACE_ID in fields or SPAN_ID in fields:
        sent = fields.get(TRACE_ID)
        trace_id = parse_trace_id(sent)
        span_id = parse_span_id(fields.get(SPAN_ID), decimal=bool(trace_id) and not _is_hex_trace_id(sent))
        if trace_id:
            return trace_id, span_id
    if TRACEPARENT in fields:
        trace_id, parent_id = parse_traceparent(fields[TRACEPARENT])
        if trace_id:
            return trace_id, parent_id
    return (trace_id_of_request(request_id), span_id) if request_id else (b"", b"")


def trace_id_of_request(request_id: str) -> bytes:
    """The trace in which the events of one request meet."""
    return hashlib.sha256(b"request:" + request_id.encode()).digest()[:_TRACE_ID_SIZE]


def span_id_of_event(event_id: str) -> bytes:
    """The id of the span that is made from an event."""
    return hashlib.sha256(b"event:" + event_id.encode()).digest()[:_SPAN_ID_SIZE]


def trace_id_of_event(event_id: str) -> bytes:
    """The trace of a span that is made from an event without a trace: it holds that span alone."""
    return hashlib.sha256(b"event:" + event_id.encode()).digest()[-_TRACE_ID_SIZE:]


def _is_hex_trace_id(value: object) -> bool:
    return isinstance(value, str) and _HEX_TRACE_ID.fullmatch(value) is not None


def _from_decimal(value: object, size: int) -> bytes:
    if isinstance(value, str) and _DECIMAL.fullmatch(value):
        number = int(value)
    elif isinstance(value, int) and not isinstance(value, bool):
        number = value
    else:
        return b""
    return number.to_bytes(size, "big") if 0 < number < _UINT64 else b""


def _unless_zero(identifier: bytes) -> bytes:
    return identifier if any(identifier) else b""
