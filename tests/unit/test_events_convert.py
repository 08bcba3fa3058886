"""Conversion to log records and spans: the wire contract's §5 and the vectors of its §8."""

from __future__ import annotations

import hashlib
import json

import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import given
from hypothesis import strategies as st

from sidecar.events.convert import Conversion, Rules
from sidecar.events.keys import ATTRIBUTE_KEYS, FIELD_KEYS, RESOURCE_KEYS
from sidecar.events.model import from_json
from sidecar.events.sanitise import Limits, sanitise

NOW = 1_776_297_600_000_000_000  # 2026-04-16T00:00:00Z
ID = "00000000-0000-0000-0000-000000000001"
EVENT_DIGEST = hashlib.sha256(f"event:{ID}".encode()).digest()
REQUEST_TRACE = hashlib.sha256(b"request:req_abc").digest()[:16]
TRACE_HEX = "0af7651916cd43dd8448eb211c80319c"
SPAN_HEX = "b7ad6b7169203331"

MINIMAL = {
    "id": ID,
    "timestamp": "2026-04-16T00:00:00Z",
    "source": "provider",
    "severity": "error",
    "kind": "backend_crash",
    "version": "0.3.10",
    "session_id": "abc",
    "message": "hi",
}


def convert(*events: dict, rules: Rules = Rules()) -> Conversion:  # noqa: B008 (frozen)
    """What becomes of a JSON batch."""
    sent = from_json(json.dumps({"events": events}).encode(), 100)
    return Conversion(sanitise(sent, None, NOW, Limits()).events, NOW, rules)


def plain(attributes) -> dict:
    """Attributes as a dictionary of Python values; a key that occurs twice fails."""
    values = {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}
    assert len(values) == len(attributes)
    return values


def record_of(event: dict, **rules):
    """The one log record, and its resource's attributes."""
    (resource,) = convert(event, rules=Rules(**rules)).logs().resource_logs
    ((record,),) = [scope.log_records for scope in resource.scope_logs]
    return record, plain(resource.resource.attributes)


def spans_of(*events: dict, **rules) -> list:
    """All spans."""
    request = convert(*events, rules=Rules(**rules)).traces()
    return [span for resource in request.resource_spans for scope in resource.scope_spans for span in scope.spans]


def test_vector_of_the_minimal_event():
    """§8, first vector: every field of the record and of its resource, and no trace."""
    record, resource = record_of(MINIMAL)

    assert MessageToDict(record) == {
        "timeUnixNano": str(NOW),
        "observedTimeUnixNano": str(NOW),
        "severityNumber": "SEVERITY_NUMBER_ERROR",
        "severityText": "error",
        "body": {"stringValue": "hi"},
        "eventName": "backend_crash",
        "attributes": [
            {"key": "telemetry.event.id", "value": {"stringValue": ID}},
            {"key": "telemetry.source", "value": {"stringValue": "provider"}},
            {"key": "telemetry.kind", "value": {"stringValue": "backend_crash"}},
            {"key": "session.id", "value": {"stringValue": "abc"}},
        ],
    }
    assert record.severity_number == 17
    assert resource == {"service.name": "provider", "service.version": "0.3.10", "service.instance.id": "abc"}
    assert spans_of(MINIMAL) == []


def test_vector_of_the_event_with_a_request():
    """§8, second vector: the derived trace, and one span with status ERROR."""
    event = MINIMAL | {"request_id": "req_abc"}

    record, _ = record_of(event)
    (span,) = spans_of(event)

    assert (record.trace_id, record.span_id) == (REQUEST_TRACE, span.span_id)
    assert plain(record.attributes)["request.id"] == "req_abc"
    assert (span.name, span.trace_id, span.span_id, span.parent_span_id) == (
        "backend_crash",
        REQUEST_TRACE,
        EVENT_DIGEST[:8],
        b"",
    )
    assert (span.kind, span.start_time_unix_nano, span.end_time_unix_nano) == (span.SPAN_KIND_INTERNAL, NOW, NOW)
    assert (span.status.code, span.status.message) == (span.status.STATUS_CODE_ERROR, "hi")
    assert plain(span.attributes) == plain(record.attributes)
    assert list(span.events) == []


def test_vector_of_the_event_with_a_prompt():
    """§8, third vector: text stays text, a number a number, and the prompt is nowhere."""
    event = MINIMAL | {
        "request_id": "req_abc",
        "fields": {"prompt": "secret", "backend": "vllm-mlx", "exit_code": 134, "error": {"prompt": "secret"}},
        "prompt": "secret",
    }

    conversion = convert(event)
    record, _ = record_of(event)

    attributes = plain(record.attributes)
    assert (attributes["backend"], attributes["exit_code"]) == ("vllm-mlx", 134)
    for output in (conversion.logs(), conversion.traces()):
        assert b"secret" not in output.SerializeToString()
        assert b"prompt" not in output.SerializeToString()


@pytest.mark.parametrize(
    ("word", "number"), [("debug", 5), ("info", 9), ("warn", 13), ("error", 17), ("fatal", 21), ("nonsense", 9)]
)
def test_severities(word, number):
    """The table of §5; only error and fatal make a failed span."""
    event = MINIMAL | {"severity": word, "request_id": "r"}

    record, _ = record_of(event)
    (span,) = spans_of(event)

    assert record.severity_number == number
    assert record.severity_text == ("info" if word == "nonsense" else word)
    assert span.status.code == (span.status.STATUS_CODE_ERROR if number >= 17 else span.status.STATUS_CODE_UNSET)
    assert span.status.message == ("hi" if number >= 17 else "")


def test_times():
    """The event's own time, and when it was received."""
    record, _ = record_of(MINIMAL | {"timestamp": "2026-04-15T23:59:59.123456789Z"})

    assert record.time_unix_nano == NOW - 876_543_211
    assert record.observed_time_unix_nano == NOW


def test_a_panic_is_an_exception():
    """Its stack, type and message, on the log and in the span's exception event."""
    event = MINIMAL | {"kind": "panic", "stack": "at main", "request_id": "r"}
    exception = {"exception.stacktrace": "at main", "exception.type": "panic", "exception.message": "hi"}

    record, _ = record_of(event)
    (span,) = spans_of(event)

    assert exception.items() <= plain(record.attributes).items()
    assert exception.items() <= plain(span.attributes).items()
    assert [(one.name, one.time_unix_nano, plain(one.attributes)) for one in span.events] == [
        ("exception", NOW, exception)
    ]


def test_a_stack_alone_is_no_panic():
    """Only the stack is known."""
    event = MINIMAL | {"stack": "at main", "request_id": "r"}

    (span,) = spans_of(event)

    assert plain(span.events[0].attributes) == {"exception.stacktrace": "at main"}


def test_empty_fields_are_omitted():
    """As senders omit them: no attribute is there for nothing."""
    record, resource = record_of({"message": "hi"})

    assert set(plain(record.attributes)) == {"telemetry.event.id", "telemetry.source", "telemetry.kind"}
    assert resource == {"service.name": "custom"}


def test_resources_come_from_the_event_and_the_configuration():
    """The source through the map; configured attributes where the event says nothing, and no empty ones."""
    record, resource = record_of(
        MINIMAL | {"machine_id": "m", "account_id": "a"},
        service_names={"provider": "inference-provider"},
        resource={
            "deployment.environment.name": "prod",
            "service.namespace": "",
            "service.version": "overridden",
            "host.id": "",
        },
    )

    assert resource == {
        "deployment.environment.name": "prod",
        "service.name": "inference-provider",
        "service.version": "0.3.10",
        "host.id": "m",
        "service.instance.id": "abc",
    }
    assert plain(record.attributes)["account.id"] == "a"


def test_events_are_grouped_by_resource():
    """One resource each, in order, also for spans; one without a span makes no resource there."""
    a = {"message": "1", "source": "app", "request_id": "r"}
    b = {"message": "2", "source": "app", "version": "2"}

    conversion = convert(a, b, a | {"message": "3"})

    logs = [[r.body.string_value for s in g.scope_logs for r in s.log_records] for g in conversion.logs().resource_logs]
    spans = [[s.spans for s in g.scope_spans] for g in conversion.traces().resource_spans]
    assert logs == [["1", "3"], ["2"]]
    assert [[len(scope) for scope in group] for group in spans] == [[2]]
    assert len(conversion.traced) == 2


def test_a_record_belongs_to_the_span_that_is_made_of_its_event():
    """Where one is made, and the event names no other."""
    event = MINIMAL | {"request_id": "req_abc"}

    assert record_of(event)[0].span_id == EVENT_DIGEST[:8]
    assert record_of(event, spans="timed")[0].span_id == b""
    assert record_of(event, spans="none")[0].span_id == b""


def test_a_given_span_is_the_logs_span_and_the_spans_parent():
    """§6: the span made from an event has an id of its own."""
    event = MINIMAL | {"fields": {"trace_id": TRACE_HEX, "span_id": SPAN_HEX}}

    record, _ = record_of(event)
    (span,) = spans_of(event)

    assert (record.trace_id.hex(), record.span_id.hex()) == (TRACE_HEX, SPAN_HEX)
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE_HEX, SPAN_HEX)
    assert span.span_id == EVENT_DIGEST[:8]
    assert not {"trace_id", "span_id"} & plain(record.attributes).keys()


def test_an_operation_with_a_duration_becomes_a_span_of_that_name_and_length():
    """The end is the timestamp, and the start lies the duration before it."""
    (span,) = spans_of(MINIMAL | {"request_id": "r", "fields": {"operation": "load_model", "duration_ms": 12.5}})
    (unnamed,) = spans_of(MINIMAL | {"request_id": "r", "fields": {"operation": ""}})

    assert (span.name, unnamed.name) == ("load_model", "backend_crash")
    assert span.end_time_unix_nano == NOW
    assert span.end_time_unix_nano - span.start_time_unix_nano == 12_500_000


def test_a_span_starts_in_1970_at_the_earliest():
    """A duration longer than all time before the event is as long as that."""
    sent = from_json(
        b'{"events": [{"message": "hi", "timestamp": "1970-01-01T00:00:01Z", "fields": {"duration_ms": 5000}}]}', 100
    )
    events = sanitise(sent, None, NOW, Limits(max_age=NOW)).events

    span = Conversion(events, NOW, Rules(spans="timed")).traces().resource_spans[0].scope_spans[0].spans[0]

    assert (span.start_time_unix_nano, span.end_time_unix_nano) == (0, 1_000_000_000)


@pytest.mark.parametrize(
    ("kind", "fields", "expected"),
    [
        ("http_error", {"handler": "chat"}, "SPAN_KIND_SERVER"),
        ("http_error", {"route": "/v1/chat"}, "SPAN_KIND_SERVER"),
        ("http_error", {"route": "/v1/chat", "endpoint": "http://x"}, "SPAN_KIND_SERVER"),
        ("http_error", {"endpoint": "http://x"}, "SPAN_KIND_CLIENT"),
        ("http_error", {}, "SPAN_KIND_INTERNAL"),
        ("log", {"handler": "chat", "endpoint": "http://x"}, "SPAN_KIND_INTERNAL"),
    ],
)
def test_span_kinds(kind, fields, expected):
    """An HTTP error is a server's with a handler or route, a client's with an endpoint; the rest is internal."""
    (span,) = spans_of(MINIMAL | {"kind": kind, "request_id": "r", "fields": fields})

    assert span.kind == getattr(span, expected)


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("correlated", ["traced", "both"]),
        ("timed", ["timed", "both"]),
        ("all", ["neither", "traced", "timed", "both"]),
        ("none", []),
    ],
)
def test_the_setting_chooses_which_events_become_spans(choice, names):
    """Those with a trace, those with a duration, every one, or none; counted before anything is converted."""
    events = [
        {"message": "x", "fields": {"operation": "neither"}},
        {"message": "x", "request_id": "r", "fields": {"operation": "traced"}},
        {"message": "x", "fields": {"operation": "timed", "duration_ms": 1}},
        {"message": "x", "request_id": "r", "fields": {"operation": "both", "duration_ms": 1}},
    ]

    assert [span.name for span in spans_of(*events, spans=choice)] == names
    assert len(convert(*events, rules=Rules(spans=choice)).traced) == len(names)


def test_a_span_without_a_trace_has_one_of_its_own():
    """Derived from the event, so that a batch that is sent again makes the same span; the log has none (§6)."""
    event = MINIMAL | {"fields": {"duration_ms": 1, "span_id": SPAN_HEX}}

    (span,) = spans_of(event, spans="timed")
    record, _ = record_of(event)

    assert (span.trace_id, span.span_id, span.parent_span_id) == (EVENT_DIGEST[16:], EVENT_DIGEST[:8], b"")
    assert (record.trace_id, record.span_id) == (b"", b"")


def test_values_of_every_json_type():
    """Nested values too; integers beyond 64 bits become doubles, and beyond those text."""
    record, _ = record_of(
        {
            "message": "hi",
            "fields": {
                "error": {"model": ["a", None, {"attempt": 1}], "reason": {}},
                "exit_code": -(2**63),
                "memory_gb": 2**63,
                "queue_depth": 10**400,
                "payment_failed": True,
                "duration_ms": 1.0,
                "target": [],
            },
        }
    )

    values = {one["key"]: one["value"] for one in MessageToDict(record)["attributes"]}
    assert values["error"] == {
        "kvlistValue": {
            "values": [
                {
                    "key": "model",
                    "value": {
                        "arrayValue": {
                            "values": [
                                {"stringValue": "a"},
                                {},
                                {"kvlistValue": {"values": [{"key": "attempt", "value": {"intValue": "1"}}]}},
                            ]
                        }
                    },
                },
                {"key": "reason", "value": {"kvlistValue": {}}},
            ]
        }
    }
    assert values["exit_code"] == {"intValue": str(-(2**63))}
    assert values["memory_gb"] == {"doubleValue": float(2**63)}
    assert values["queue_depth"] == {"stringValue": str(10**400)}
    assert values["payment_failed"] == {"boolValue": True}
    assert values["duration_ms"] == {"doubleValue": 1.0}
    assert values["target"] == {"arrayValue": {}}


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
KEYS = st.sampled_from([*sorted(FIELD_KEYS), "prompt", "trace_id", "span_id", "traceparent"])
EVENTS = st.fixed_dictionaries(
    {"message": st.text(min_size=1)},
    optional={
        "id": st.text(),
        "timestamp": st.text(),
        "source": SCALARS,
        "kind": st.sampled_from(["panic", "http_error", "x"]),
        "stack": st.text(),
        "request_id": SCALARS,
        "fields": st.dictionaries(KEYS, SCALARS | st.lists(SCALARS) | st.dictionaries(KEYS, SCALARS)),
    },
)


@given(st.lists(EVENTS, max_size=4), st.sampled_from(["correlated", "timed", "all", "none"]))
def test_any_events_convert_to_as_many_records_and_spans_as_announced(events, choice):
    """Nothing raises, all survives serialization, and every key is one of those that are promised."""
    conversion = convert(*events, rules=Rules(spans=choice))

    logs = type(conversion.logs()).FromString(conversion.logs().SerializeToString())
    traces = type(conversion.traces()).FromString(conversion.traces().SerializeToString())

    records = [record for r in logs.resource_logs for s in r.scope_logs for record in s.log_records]
    spans = [span for r in traces.resource_spans for s in r.scope_spans for span in s.spans]
    assert (len(records), len(spans)) == (len(conversion.events), len(conversion.traced))
    for one in [*records, *spans]:
        assert plain(one.attributes).keys() <= FIELD_KEYS | ATTRIBUTE_KEYS
    for one in [*logs.resource_logs, *traces.resource_spans]:
        assert plain(one.resource.attributes).keys() <= RESOURCE_KEYS
    for span in spans:
        assert any(span.trace_id)
        assert any(span.span_id)
