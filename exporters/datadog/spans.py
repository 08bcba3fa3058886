"""OTLP spans as Datadog spans: pure, and the same for an Agent and for the intake.

A span that one of Datadog's tracers has made, and that a receiver of its protocol has brought, becomes again what it
was: nothing is derived, renamed or added.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Any, Final, TypeGuard

import msgspec
import orjson

from exporters.datadog import span_rules as rules
from exporters.datadog.resource import Origin
from exporters.datadog.values import json_of, text_of, texts
from sidecar.events.datadog_keys import META_STRUCT
from sidecar.reading import Value

NO_SERVICE: Final = "otlpresourcenoservicename"
PRIORITY: Final = "_sampling_priority_v1"
TOP_LEVEL: Final = "_dd.top_level"
MEASURED: Final = "_dd.measured"
HIGH_TRACE_ID: Final = "_dd.p.tid"
DECISION: Final = "_dd.p.dm"

_MAX_NAMES: Final = 10_000
_MAX_INT64: Final = (1 << 63) - 1
_EXACT: Final = 1 << 53  # integers up to here are exact as a float, which is what a metric of a span is
_STATUS: Final = ("Unset", "Ok", "Error")
_ERROR: Final = 2
_TRACE_FLAGS: Final = 0xFF  # of SpanFlags
_BY_USER: Final = "-4"
# What has become a field of the span.
_OPERATION: Final = "operation.name"
_CONSUMED: Final = ("service.name", _OPERATION, "resource.name", "span.type")


class Span(msgspec.Struct, omit_defaults=True):
    """A span with the names and types of the Agent's v0.4 messages. Times in nanoseconds."""

    service: str
    name: str
    resource: str
    trace_id: int
    span_id: int
    start: int
    duration: int
    meta: dict[str, str]
    metrics: dict[str, float]
    parent_id: int = 0
    error: int = 0
    type: str = ""
    meta_struct: dict[str, bytes] = {}


class SpanMapper:
    """Maps spans. One per exporter: it remembers names.

    Args:
        span_name_as_operation: the operation name is the span's own name.
        remappings: other words for operation names.
    """

    def __init__(self, *, span_name_as_operation: bool = False, remappings: Mapping[str, str] | None = None) -> None:
        self._span_name_as_operation = span_name_as_operation
        self._remappings = remappings or {}
        self._names: dict[str, str] = {}
        self._gen_ai: set[str] = set()

    def map(self, span: Any, origin: Origin, shared: Mapping[str, str], *, by_tracer: bool) -> Span:
        """The Datadog span for an OTLP span with valid ids.

        Args:
            span: as `read` gives it.
            origin: its resource.
            shared: what `shared_meta` says of resource and scope.
            by_tracer: one of Datadog's tracers made it, and has marked what is top level.
        """
        own: dict[str, str] = {}
        metrics: dict[str, float] = {}
        meta_struct: dict[str, bytes] = {}
        if by_tracer:
            self._put_attributes(span.attributes, own, metrics, meta_struct, rename=False)
            if _OPERATION in own:
                return _as_it_was(span, origin, own, metrics, meta_struct)
            # It has come as OTLP, by the tracer's own exporter.
            own, metrics, meta_struct = {}, {}, {}
        self._put_attributes(span.attributes, own, metrics, meta_struct, rename=True)
        meta = {**shared, **own}
        kind = _kind(span)
        service = meta.get("service.name") or origin.service or NO_SERVICE
        name = span.name if self._span_name_as_operation else rules.operation_name(meta, kind)
        trace_id, span_id, parent_id, start, duration = _place(span)
        mapped = Span(
            service=rules.normal_service(service),
            name=rules.normal_operation(self._remappings.get(name, name)),
            resource=rules.resource_name(meta, kind, span.name),
            trace_id=trace_id,
            span_id=span_id,
            parent_id=parent_id,
            start=start,
            duration=duration,
            meta=meta,
            metrics=metrics,
            meta_struct=meta_struct,
            type="llm" if not self._gen_ai.isdisjoint(own) else rules.span_type(meta, kind),
        )
        for key in _CONSUMED:
            meta.pop(key, None)
        self._finish(mapped, span, kind, by_tracer=by_tracer)
        return mapped

    def _put_attributes(
        self,
        attributes: Mapping[str, Value],
        meta: dict[str, str],
        metrics: dict[str, float],
        meta_struct: dict[str, bytes],
        *,
        rename: bool,
    ) -> None:
        names = self._names
        for key, value in attributes.items():
            name = (names.get(key) or self._name(key)) if rename else key
            if isinstance(value, str):
                meta.setdefault(name, value)
            elif _is_metric(value):
                metrics.setdefault(name, float(value))
            elif isinstance(value, bytes) and value and name.startswith(META_STRUCT):
                meta_struct[name.removeprefix(META_STRUCT)] = value
            else:
                meta.setdefault(name, text_of(value))

    def _name(self, key: str) -> str:
        if len(self._names) >= _MAX_NAMES:
            self._names.clear()
            self._gen_ai.clear()
        if key.startswith("gen_ai."):
            self._gen_ai.add(key)
        name = self._names[key] = rules.attribute_name(key)
        return name

    def _finish(self, mapped: Span, span: Any, kind: str, *, by_tracer: bool) -> None:
        meta, metrics = mapped.meta, mapped.metrics
        trace_id = span.trace_id.hex()
        meta["otel.trace_id"] = trace_id
        if any(span.trace_id[:8]):
            meta[HIGH_TRACE_ID] = trace_id[:16]
        if kind != "unspecified" or "span.kind" not in meta:
            meta["span.kind"] = kind
        if "http.status_code" in metrics:
            meta["http.status_code"] = str(int(metrics["http.status_code"]))
        if "db.namespace" in meta:
            meta.setdefault("db.name", meta["db.namespace"])
        if span.trace_state:
            meta["w3c.tracestate"] = span.trace_state
        _put_sampling(meta, metrics)
        if span.events:
            meta["events"] = _events(span.events)
        if span.links:
            meta["_dd.span_links"] = _links(span.links)
        _put_status(mapped, span)
        if not by_tracer:
            if not mapped.parent_id or kind in {"server", "consumer"}:
                metrics[TOP_LEVEL] = 1.0
            if kind in {"client", "producer"}:
                metrics[MEASURED] = 1.0


def shared_meta(origin: Origin, scope: Any) -> dict[str, str]:
    """What all spans of a scope say of their resource and scope."""
    meta = {rules.attribute_name(key): value for key, value in origin.attributes.items()}
    if origin.env:
        meta["env"] = origin.env
    if origin.version:
        meta["version"] = origin.version
    if scope.name:
        meta["otel.scope.name"] = scope.name
    if scope.version:
        meta["otel.scope.version"] = scope.version
    meta.update(texts(scope.attributes))
    return meta


def _as_it_was(
    span: Any, origin: Origin, meta: dict[str, str], metrics: dict[str, float], meta_struct: dict[str, bytes]
) -> Span:
    """The span that a tracer has sent, from what its receiver has made of it."""
    operation = meta.pop(_OPERATION)
    resource = meta.pop("resource.name", None)
    if resource is None:  # an allowlist has taken it
        resource = rules.resource_name(meta, _kind(span), operation)
    trace_id, span_id, parent_id, start, duration = _place(span)
    mapped = Span(
        service=rules.normal_service(origin.attributes.get("service.name", "")),
        name=rules.normal_operation(operation),
        resource=rules.cut_resource(resource or operation),
        trace_id=trace_id,
        span_id=span_id,
        parent_id=parent_id,
        start=start,
        duration=duration,
        error=int(span.status.code == _ERROR),
        meta=meta,
        metrics=metrics,
        meta_struct=meta_struct,
        type=meta.pop("span.type", ""),
    )
    if any(span.trace_id[:8]):
        meta[HIGH_TRACE_ID] = span.trace_id[:8].hex()
    if span.events:
        meta["events"] = _events(span.events)
    if span.links:
        meta["_dd.span_links"] = _links(span.links)
    return mapped


def _kind(span: Any) -> str:
    return rules.KINDS[span.kind] if 0 <= span.kind < len(rules.KINDS) else "unspecified"


def _place(span: Any) -> tuple[int, int, int, int, int]:
    """Where a span stands in its trace and in time: trace, span, parent, start, duration."""
    start = span.start_time_unix_nano
    return (
        int.from_bytes(span.trace_id[-8:], "big"),
        int.from_bytes(span.span_id, "big"),
        int.from_bytes(span.parent_span_id, "big"),
        min(start, _MAX_INT64),
        min(max(0, span.end_time_unix_nano - start), _MAX_INT64),
    )


def _is_metric(value: Value) -> TypeGuard[int | float]:
    """Whether a metric can hold it: a number, but not NaN, infinity or a large integer."""
    if isinstance(value, float):
        return isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool) and -_EXACT <= value <= _EXACT


def _put_sampling(meta: dict[str, str], metrics: dict[str, float]) -> None:
    priority = metrics.pop("sampling.priority", None)
    if priority is not None:
        metrics[PRIORITY] = priority
        meta[DECISION] = _BY_USER
    analytics = meta.pop("analytics.event", "")
    if analytics in {"true", "false"}:
        metrics["_dd1.sr.eausr"] = float(analytics == "true")


def _put_status(mapped: Span, span: Any) -> None:
    meta = mapped.meta
    status = span.status
    if 0 <= status.code < len(_STATUS):
        meta["otel.status_code"] = _STATUS[status.code]
    if status.message:
        meta["otel.status_description"] = status.message
    exception = _last_exception(span.events)
    if exception is not None:
        meta["_dd.span_events.has_exception"] = "true"
    if status.code != _ERROR:
        return  # an exception that was handled is no error of the span
    mapped.error = 1
    if exception is not None:
        for name, key in (("error.msg", "message"), ("error.type", "type"), ("error.stack", "stacktrace")):
            if value := exception.get(f"exception.{key}"):
                meta.setdefault(name, value)
    message = rules.error_message(meta, status.message, mapped.metrics.get("http.status_code"))
    if message:
        meta.setdefault("error.msg", message)
    if "error.msg" in meta:
        meta.setdefault("error.message", meta["error.msg"])


def _last_exception(events: Sequence[Any]) -> dict[str, str] | None:
    for event in reversed(events):
        if event.name.lower() == "exception":
            return texts(event.attributes)
    return None


def _events(events: Sequence[Any]) -> str:
    return _records(
        {
            "time_unix_nano": event.time_unix_nano,
            "name": event.name,
            "attributes": json_of(event.attributes),
            "dropped_attributes_count": event.dropped_attributes_count,
        }
        for event in events
    )


def _links(links: Sequence[Any]) -> str:
    return _records(
        {
            "trace_id": link.trace_id.hex(),
            "span_id": link.span_id.hex(),
            "tracestate": link.trace_state,
            "flags": link.flags & _TRACE_FLAGS,
            "attributes": texts(link.attributes),
            "dropped_attributes_count": link.dropped_attributes_count,
        }
        for link in links
    )


def _records(records: Iterable[dict[str, Any]]) -> str:
    """JSON of what the records say, as Datadog's tracers write it: nothing of what is empty or zero."""
    return orjson.dumps([{name: value for name, value in one.items() if value} for one in records]).decode()
