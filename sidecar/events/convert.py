"""Turn TelemetryEvents into OTLP log records and spans (wire contract §5), writing each message directly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal, TypeAlias

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, SeverityNumber
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from sidecar.events import keys
from sidecar.events.sanitise import Event
from sidecar.events.trace_ids import span_id_of_event, trace_id_of_event

SpanChoice: TypeAlias = Literal["correlated", "timed", "all", "none"]

_SEVERITY_NUMBERS: Final = {
    "debug": SeverityNumber.SEVERITY_NUMBER_DEBUG,
    "info": SeverityNumber.SEVERITY_NUMBER_INFO,
    "warn": SeverityNumber.SEVERITY_NUMBER_WARN,
    "error": SeverityNumber.SEVERITY_NUMBER_ERROR,
    "fatal": SeverityNumber.SEVERITY_NUMBER_FATAL,
}
_FAILURES: Final = frozenset({"error", "fatal"})
_INT64: Final = range(-(1 << 63), 1 << 63)


@dataclass(frozen=True, slots=True)
class Rules:
    """How events are converted.

    Attributes:
        service_names: source to `service.name`; a source that is not named keeps its own name.
        resource: attributes added to every resource, where the event says nothing itself.
        spans: which events become spans: those with a trace, those with a duration, every one, or none.
    """

    service_names: Mapping[str, str] = field(default_factory=dict)
    resource: Mapping[str, str] = field(default_factory=dict)
    spans: SpanChoice = "correlated"

    def makes_span(self, event: Event) -> bool:
        """Whether the event becomes a span."""
        match self.spans:
            case "correlated":
                return event.trace_id != b""
            case "timed":
                return event.duration is not None
            case "all":
                return True
            case "none":
                return False


class Conversion:
    """The log records and spans of one batch of events. Nothing is converted before it is asked for.

    Attributes:
        events: what is converted; one log record each.
        traced: those of them that become spans.
    """

    def __init__(self, events: Sequence[Event], received_at: int, rules: Rules) -> None:
        self.events = events
        self.traced = [event for event in events if rules.makes_span(event)]
        self._received_at = received_at
        self._rules = rules

    def logs(self) -> ExportLogsServiceRequest:
        """One log record per event."""
        request = ExportLogsServiceRequest()
        for resource, events in self._by_resource:
            group = request.resource_logs.add(resource=resource)
            records = group.scope_logs.add().log_records
            for event in events:
                _write_record(records.add(), event, self._received_at, self._span_of(event))
        return request

    def traces(self) -> ExportTraceServiceRequest:
        """One span per event in `traced`."""
        request = ExportTraceServiceRequest()
        for resource, events in self._by_resource:
            spans = None
            for event in filter(self._rules.makes_span, events):
                if spans is None:
                    spans = request.resource_spans.add(resource=resource).scope_spans.add().spans
                _write_span(spans.add(), event)
        return request

    def _span_of(self, event: Event) -> bytes:
        """The span to which the record of an event belongs: the one that it names, else the one that is made of it."""
        # A span id without its trace means nothing (OTLP, LogRecord.span_id).
        if not event.trace_id:
            return b""
        return event.span_id or (span_id_of_event(event.id) if self._rules.makes_span(event) else b"")

    @cached_property
    def _by_resource(self) -> list[tuple[Resource, list[Event]]]:
        groups: dict[tuple[str, str, str, str], list[Event]] = {}
        for event in self.events:
            groups.setdefault((event.source, event.version, event.machine_id, event.session_id), []).append(event)
        return [(_resource_of(events[0], self._rules), events) for events in groups.values()]


def _resource_of(event: Event, rules: Rules) -> Resource:
    own = {
        keys.SERVICE_NAME: rules.service_names.get(event.source, event.source),
        keys.SERVICE_VERSION: event.version,
        keys.HOST_ID: event.machine_id,
        keys.SERVICE_INSTANCE_ID: event.session_id,
    }
    attributes = {**rules.resource, **{key: value for key, value in own.items() if value}}
    resource = Resource()
    for key, value in attributes.items():
        if value:
            _add_text(resource.attributes, key, value)
    return resource


def _write_record(record: LogRecord, event: Event, received_at: int, span_id: bytes) -> None:
    record.time_unix_nano = event.timestamp
    record.observed_time_unix_nano = received_at
    record.severity_number = _SEVERITY_NUMBERS[event.severity]
    record.severity_text = event.severity
    record.body.string_value = event.message
    record.event_name = event.kind
    record.trace_id = event.trace_id
    record.span_id = span_id
    _write_attributes(record.attributes, event)


def _write_span(span: Span, event: Event) -> None:
    span.trace_id = event.trace_id or trace_id_of_event(event.id)
    span.span_id = span_id_of_event(event.id)
    if event.trace_id:
        span.parent_span_id = event.span_id
    operation = event.fields.get("operation")
    span.name = operation if isinstance(operation, str) and operation else event.kind
    span.kind = _kind_of(event)
    span.start_time_unix_nano = max(0, event.timestamp - (event.duration or 0))
    span.end_time_unix_nano = event.timestamp
    if event.severity in _FAILURES:
        span.status.code = Status.STATUS_CODE_ERROR
        span.status.message = event.message
    _write_attributes(span.attributes, event)
    if event.stack:
        exception = span.events.add(name="exception", time_unix_nano=event.timestamp)
        _write_exception(exception.attributes, event)


def _kind_of(event: Event) -> Span.SpanKind.ValueType:
    if event.kind == "http_error":
        if "handler" in event.fields or "route" in event.fields:
            return Span.SPAN_KIND_SERVER
        if "endpoint" in event.fields:
            return Span.SPAN_KIND_CLIENT
    return Span.SPAN_KIND_INTERNAL


def _write_attributes(attributes: Any, event: Event) -> None:
    _add_text(attributes, keys.EVENT_ID, event.id)
    _add_text(attributes, keys.SOURCE, event.source)
    _add_text(attributes, keys.KIND, event.kind)
    if event.request_id:
        _add_text(attributes, keys.REQUEST_ID, event.request_id)
    if event.session_id:
        _add_text(attributes, keys.SESSION_ID, event.session_id)
    if event.account_id:
        _add_text(attributes, keys.ACCOUNT_ID, event.account_id)
    _write_exception(attributes, event)
    for key, value in event.fields.items():
        attribute = attributes.add()
        attribute.key = key
        _write_value(attribute.value, value)


def _write_exception(attributes: Any, event: Event) -> None:
    if event.stack:
        _add_text(attributes, keys.EXCEPTION_STACKTRACE, event.stack)
    if event.kind == "panic":
        _add_text(attributes, keys.EXCEPTION_TYPE, "panic")
        _add_text(attributes, keys.EXCEPTION_MESSAGE, event.message)


def _add_text(attributes: Any, key: str, value: str) -> None:
    # Assigning costs half of what keyword arguments cost here.
    attribute = attributes.add()
    attribute.key = key
    attribute.value.string_value = value


def _write_value(target: AnyValue, value: Any) -> None:
    """Write a JSON value. None stays unset, as OTLP has it."""
    match value:
        case str():
            target.string_value = value
        case bool():
            target.bool_value = value
        case int():
            _write_integer(target, value)
        case float():
            target.double_value = value
        case list():
            target.array_value.SetInParent()
            for inner in value:
                _write_value(target.array_value.values.add(), inner)
        case dict():
            target.kvlist_value.SetInParent()
            for key, inner in value.items():
                attribute = target.kvlist_value.values.add(key=key)
                _write_value(attribute.value, inner)


def _write_integer(target: AnyValue, value: int) -> None:
    """Integers beyond 64 bits become doubles, as in OpenTelemetry's JavaScript SDK; beyond those, text."""
    if value in _INT64:
        target.int_value = value
        return
    try:
        target.double_value = float(value)
    except OverflowError:
        target.string_value = str(value)
