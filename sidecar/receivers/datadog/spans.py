"""Datadog spans as OTLP, in such a way that an exporter to Datadog finds in them everything that they were.

A span is named by its operation, which is short and comes from code. Its resource, which may be a whole statement, is
the attribute `resource.name`, so that an allowlist decides on it. What tracers call meta and metrics are attributes.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Status
from opentelemetry.proto.trace.v1.trace_pb2 import Span as OtlpSpan

from sidecar.events.datadog_keys import META_STRUCT
from sidecar.net.wire import FIXED32, FIXED64, LENGTH_DELIMITED, VARINT, delimited, tag
from sidecar.receivers.datadog.attributes import Attributes, key_values
from sidecar.receivers.datadog.wire import Payload, Span

HIGH_ID: Final = "_dd.p.tid"
_PRIORITY: Final = "_sampling_priority_v1"
_TOP_LEVEL: Final = "_dd.top_level"
_EVENTS: Final = "events"
_LINKS: Final = "_dd.span_links"
_HOST: Final = "_dd.hostname"

# What a span says of itself under these names would be taken for its fields.
_FIELDS: Final = frozenset({"service.name", "operation.name", "resource.name", "span.type"})
_KINDS: Final = {"internal": 1, "server": 2, "client": 3, "producer": 4, "consumer": 5}
# What a span without a kind is by its type: only those that leave no doubt.
_KINDS_BY_TYPE: Final = {"web": 2, "http": 3}

_ID: Final = (1 << 64) - 1
_LINK_FLAGS: Final = 0xFF  # the others are Datadog's own: bit 31 says that there are flags at all
_IDS: Final = struct.Struct(">QQ").pack
_PARENT: Final = struct.Struct(">Q").pack
_TIMES: Final = struct.Struct("<Q").pack


def _head(field: int, kind: int = LENGTH_DELIMITED) -> bytes:
    return tag(field, kind)


_TRACE_ID: Final = _head(OtlpSpan.TRACE_ID_FIELD_NUMBER) + b"\x10"
_SPAN_ID: Final = _head(OtlpSpan.SPAN_ID_FIELD_NUMBER) + b"\x08"
_PARENT_ID: Final = _head(OtlpSpan.PARENT_SPAN_ID_FIELD_NUMBER) + b"\x08"
_NAME: Final = _head(OtlpSpan.NAME_FIELD_NUMBER)
_KIND: Final = _head(OtlpSpan.KIND_FIELD_NUMBER, VARINT)
_START: Final = _head(OtlpSpan.START_TIME_UNIX_NANO_FIELD_NUMBER, FIXED64)
_END: Final = _head(OtlpSpan.END_TIME_UNIX_NANO_FIELD_NUMBER, FIXED64)
_STATUS: Final = _head(OtlpSpan.STATUS_FIELD_NUMBER)
_EVENT: Final = _head(OtlpSpan.EVENTS_FIELD_NUMBER)
_LINK: Final = _head(OtlpSpan.LINKS_FIELD_NUMBER)
_SAMPLED: Final = _head(OtlpSpan.FLAGS_FIELD_NUMBER, FIXED32) + struct.pack("<I", 1)
_SPAN: Final = _head(ScopeSpans.SPANS_FIELD_NUMBER)
_RESOURCE: Final = _head(ResourceSpans.RESOURCE_FIELD_NUMBER)
_SCOPE_SPANS: Final = _head(ResourceSpans.SCOPE_SPANS_FIELD_NUMBER)
_RESOURCE_SPANS: Final = _head(ExportTraceServiceRequest.RESOURCE_SPANS_FIELD_NUMBER)


class _JsonLink(msgspec.Struct):
    """A link as v0.5 carries it: JSON in a text."""

    trace_id: str
    span_id: str
    attributes: dict[str, Any] = {}
    tracestate: str = ""
    flags: int = 0
    dropped_attributes_count: int = 0


class _JsonEvent(msgspec.Struct):
    """An event as v0.5 carries it: JSON in a text."""

    name: str = ""
    time_unix_nano: int = 0
    attributes: dict[str, Any] = {}
    dropped_attributes_count: int = 0


_JSON_LINKS: Final = msgspec.json.Decoder(list[_JsonLink])
_JSON_EVENTS: Final = msgspec.json.Decoder(list[_JsonEvent])


class HighIds:
    """The upper halves of trace ids by their lower halves, for spans that come without: a trace may come in parts.

    At most `limit` of them, the newest. May be used from several threads.
    """

    def __init__(self, limit: int = 50_000) -> None:
        self._limit = limit
        self._known: dict[int, int] = {}
        self._lock = threading.Lock()

    def learn(self, low: int, high: int) -> None:
        """Keep an upper half."""
        with self._lock:
            self._known.pop(low, None)
            if len(self._known) >= self._limit:
                del self._known[next(iter(self._known))]
            self._known[low] = high

    def of(self, low: int) -> int:
        """The upper half; 0 where it is not known, as in a trace whose id has 64 bits."""
        return self._known.get(low, 0)


@dataclass(frozen=True, slots=True)
class Tracer:
    """What a request says of its tracer. `computed_top_level`: it has marked where a service is entered."""

    language: str = ""
    language_version: str = ""
    interpreter: str = ""
    version: str = ""
    container_id: str = ""
    computed_stats: bool = False
    computed_top_level: bool = False


class _Origin(NamedTuple):
    """What tells one resource of a request from another."""

    service: str
    version: str
    env: str
    host: str
    runtime_id: str


@dataclass(frozen=True, slots=True)
class Converted:
    """A request for traces. `invalid`: how many spans had no id and are not in it."""

    data: bytes
    spans: int
    invalid: int


def convert(payload: Payload, tracer: Tracer, high_ids: HighIds) -> Converted:
    """The serialized ExportTraceServiceRequest of a payload, spans by resource."""
    converter = _Converter(payload, tracer, high_ids)
    for chunk in payload.chunks:
        converter.add(chunk)
    return converter.finish()


class _Converter:
    """Converts one payload."""

    def __init__(self, payload: Payload, tracer: Tracer, high_ids: HighIds) -> None:
        self._payload = payload
        self._tracer = tracer
        self._high_ids = high_ids
        self._attributes = Attributes(OtlpSpan.ATTRIBUTES_FIELD_NUMBER)
        self._groups: dict[_Origin, list[bytes]] = {}
        self._invalid = 0

    def finish(self) -> Converted:
        """The request."""
        parts = []
        for origin, spans in self._groups.items():
            resource = delimited(_RESOURCE, self._resource(origin))
            parts.append(delimited(_RESOURCE_SPANS, resource + delimited(_SCOPE_SPANS, b"".join(spans))))
        return Converted(b"".join(parts), sum(map(len, self._groups.values())), self._invalid)

    def add(self, chunk: list[Span]) -> None:
        """Convert the spans of one chunk. What its first span alone may say holds for all."""
        env, host, runtime_id = self._payload.env or "", self._payload.hostname or "", self._payload.runtime_id or ""
        versions: dict[str, str] = {}
        sampled = True
        for span in chunk:
            meta = span.meta
            if meta:
                self._learn(span, meta)
                env = env or meta.get("env") or ""
                host = host or meta.get(_HOST) or ""
                runtime_id = runtime_id or meta.get("runtime-id") or ""
                if version := meta.get("version"):
                    versions.setdefault(span.service or "", version)
            if span.metrics and (priority := span.metrics.get(_PRIORITY)) is not None:
                sampled = priority > 0
        if not self._tracer.computed_top_level:
            _mark_top_level(chunk)
        flags = _SAMPLED if sampled else b""
        for span in chunk:
            if not span.trace_id or not span.span_id:
                self._invalid += 1
                continue
            service = span.service or ""
            version = versions.get(service) or self._payload.app_version or ""
            group = self._groups.setdefault(_Origin(service, version, env, host, runtime_id), [])
            group.append(delimited(_SPAN, self._encode(span) + flags))

    def _learn(self, span: Span, meta: dict[str, str | None]) -> None:
        text = meta.get(HIGH_ID)
        if text and len(text) == 16:
            try:
                high = int(text, 16)
            except ValueError:
                return  # it stays what it is: an attribute
            self._high_ids.learn((span.trace_id or 0) & _ID, high)
            del meta[HIGH_ID]

    def _encode(self, span: Span) -> bytes:
        meta, metrics = span.meta or {}, span.metrics or {}
        low = (span.trace_id or 0) & _ID
        start = min(max(span.start or 0, 0), _ID)
        attribute = self._attributes
        parts = [
            _TRACE_ID + _IDS(self._high_ids.of(low), low) + _SPAN_ID + _PARENT((span.span_id or 0) & _ID),
            _PARENT_ID + _PARENT(span.parent_id & _ID) if span.parent_id else b"",
            delimited(_NAME, (span.name or "").encode()),
            _START + _TIMES(start) + _END + _TIMES(min(start + max(span.duration or 0, 0), _ID)),
            attribute["operation.name", span.name or ""],
            attribute["resource.name", span.resource or ""],
            attribute["span.type", span.type or ""],
        ]
        kind = _KINDS.get(meta.get("span.kind") or "") or _KINDS_BY_TYPE.get(span.type or "")
        if kind:
            parts.append(_KIND + bytes((kind,)))
        if span.error:
            message = meta.get("error.message") or meta.get("error.msg") or ""
            status = Status(code=Status.STATUS_CODE_ERROR, message=message)
            parts.append(delimited(_STATUS, status.SerializeToString()))
        if _EVENTS in meta or span.span_events:
            parts += _events(span, meta)
        if _LINKS in meta or span.span_links:
            parts += _links(span, meta)
        if not _FIELDS.isdisjoint(meta):
            meta = {key: value for key, value in meta.items() if key not in _FIELDS}
        if not meta.keys().isdisjoint(metrics):
            metrics = {key: value for key, value in metrics.items() if key not in meta}
        parts += [attribute[pair] for pair in meta.items() if pair[1] is not None]
        parts += [attribute[pair] for pair in metrics.items() if pair[1] is not None]
        if span.meta_struct:
            parts += [attribute[META_STRUCT + key, value] for key, value in span.meta_struct.items()]
        return b"".join(parts)

    def _resource(self, origin: _Origin) -> bytes:
        tracer, payload = self._tracer, self._payload
        attributes = {
            **(payload.tags or {}),
            "service.name": origin.service,
            "service.version": origin.version,
            "deployment.environment.name": origin.env,
            "host.name": origin.host,
            "runtime-id": origin.runtime_id,
            "container.id": payload.container_id or tracer.container_id,
            "telemetry.sdk.name": "datadog",
            "telemetry.sdk.language": payload.language_name or tracer.language,
            "telemetry.sdk.version": payload.tracer_version or tracer.version,
            "process.runtime.name": tracer.interpreter,
            "process.runtime.version": payload.language_version or tracer.language_version,
            "_dd.stats_computed": "true" if tracer.computed_stats else "",
        }
        said = {key: value for key, value in attributes.items() if value}
        return Resource(attributes=key_values(said)).SerializeToString()


def _mark_top_level(chunk: list[Span]) -> None:
    """Mark the spans at which a service is entered, as an Agent does for tracers that don't."""
    services = {span.span_id: span.service for span in chunk}
    for span in chunk:
        if services.get(span.parent_id) != span.service:
            span.metrics = {**(span.metrics or {}), _TOP_LEVEL: 1.0}


def _events(span: Span, meta: dict[str, str | None]) -> Iterable[bytes]:
    """A span's events; those in a text are taken out of it, unless it can't be read."""
    events = [
        _event(event.name or "", event.time_unix_nano, {k: v.plain() for k, v in (event.attributes or {}).items()})
        for event in span.span_events or ()
    ]
    try:
        read = _JSON_EVENTS.decode(meta.get(_EVENTS) or "[]")
        events += [_event(one.name, one.time_unix_nano, one.attributes, one.dropped_attributes_count) for one in read]
    except (msgspec.MsgspecError, ValueError):
        pass
    else:
        meta.pop(_EVENTS, None)
    return [delimited(_EVENT, event.SerializeToString()) for event in events]


def _event(name: str, at: int, attributes: Mapping[str, Any], dropped: int = 0) -> OtlpSpan.Event:
    return OtlpSpan.Event(
        name=name, time_unix_nano=at & _ID, attributes=key_values(attributes), dropped_attributes_count=dropped
    )


def _links(span: Span, meta: dict[str, str | None]) -> Iterable[bytes]:
    """A span's links; those in a text are taken out of it, unless it can't be read."""
    links = [
        _link(
            _IDS((link.trace_id_high or 0) & _ID, link.trace_id & _ID),
            _PARENT(link.span_id & _ID),
            link.tracestate or "",
            link.attributes or {},
            link.flags or 0,
        )
        for link in span.span_links or ()
    ]
    try:
        for one in _JSON_LINKS.decode(meta.get(_LINKS) or "[]"):
            ids = bytes.fromhex(one.trace_id.zfill(32)), bytes.fromhex(one.span_id.zfill(16))
            links.append(_link(*ids, one.tracestate, one.attributes, one.flags, one.dropped_attributes_count))
    except (msgspec.MsgspecError, ValueError):
        pass
    else:
        meta.pop(_LINKS, None)
    return [delimited(_LINK, link.SerializeToString()) for link in links]


def _link(
    trace_id: bytes, span_id: bytes, state: str, attributes: Mapping[str, Any], flags: int, dropped: int = 0
) -> OtlpSpan.Link:
    if len(trace_id) != 16 or len(span_id) != 8:
        raise ValueError("not the ids of a span")
    return OtlpSpan.Link(
        trace_id=trace_id,
        span_id=span_id,
        trace_state=state,
        attributes=key_values(attributes),
        flags=flags & _LINK_FLAGS,
        dropped_attributes_count=dropped,
    )
