"""Metrics derived from log records and spans: names, labels, exemplars, and what too many label sets get."""

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from support.exposition import same
from support.otlp_metrics import attributes, gauge, nanoseconds, point
from support.prometheus import OPENMETRICS, PROTOBUF, TEXT, Subject

from sidecar import Batch, BatchContext, Signal

TRACE, SPAN = "ab" * 16, "cd" * 8
EVENT = {"telemetry.source": "provider", "telemetry.kind": "http_error"}


async def log(subject, attrs=None, *, number=9, text="", time=1, trace="", service="api", resource=None, count=1):
    """Export log records."""
    request = ExportLogsServiceRequest()
    one = request.resource_logs.add()
    one.resource.attributes.extend(attributes({"service.name": service, **(resource or {})}))
    for _ in range(count):
        one.scope_logs.add().log_records.add(
            severity_number=number,
            severity_text=text,
            attributes=attributes(attrs or {}),
            time_unix_nano=nanoseconds(time),
            trace_id=bytes.fromhex(trace),
            span_id=bytes.fromhex(SPAN if trace else ""),
        )
    await subject.exporter.export(Batch(Signal.LOGS, message=request, context=BatchContext()))


async def trace(
    subject, name="GET /", *, kind=Span.SPAN_KIND_SERVER, error=False, seconds=0.02, start=0, attrs=None, service="api"
):
    """Export a span."""
    request = ExportTraceServiceRequest()
    one = request.resource_spans.add()
    one.resource.attributes.extend(attributes({"service.name": service}))
    one.scope_spans.add().spans.add(
        name=name,
        kind=kind,
        trace_id=bytes.fromhex(TRACE),
        span_id=bytes.fromhex(SPAN),
        start_time_unix_nano=nanoseconds(start),
        end_time_unix_nano=nanoseconds(start + seconds),
        status=Status(code=Status.STATUS_CODE_ERROR if error else Status.STATUS_CODE_UNSET),
        attributes=attributes(attrs or {}),
    )
    await subject.exporter.export(Batch(Signal.TRACES, message=request, context=BatchContext()))


def labels_of(page, name):
    """The label sets of a name's samples."""
    return [dict(labels) for one, labels in page.samples if one == name]


async def test_telemetry_events_are_counted_by_source_severity_and_kind():
    """With the newest trace as exemplar, and their durations in seconds by operation."""
    subject = Subject()
    await log(subject, {**EVENT, "duration_ms": 30, "operation": "load"}, number=17, trace=TRACE, count=2)
    await log(subject, {**EVENT, "duration_ms": 1500.0}, number=17, time=2, trace="ef" * 16)
    page = subject.read(OPENMETRICS)
    key = {"source": "provider", "severity": "error", "kind": "http_error"}
    assert labels_of(page, "telemetry_events_total") == [key]
    assert page.value("telemetry_events_total") == 3
    (shown,) = [one for (name, _), one in page.exemplars.items() if name == "telemetry_events_total"]
    assert shown.labels == {"trace_id": "ef" * 16, "span_id": SPAN}
    timed = {"source": "provider", "kind": "http_error"}
    assert page.value("telemetry_event_duration_seconds_bucket", operation="load", le="0.05", **timed) == 2
    assert page.value("telemetry_event_duration_seconds_sum", operation="load") == pytest.approx(0.06)
    (other,) = [one for one in labels_of(page, "telemetry_event_duration_seconds_count") if "operation" not in one]
    assert other == timed
    assert "log_records_total" not in page.names()


async def test_log_records_are_counted_by_service_and_severity():
    """Everything that is no event."""
    subject = Subject()
    await log(subject, number=9, count=3)
    await log(subject, number=20, service="web")
    page = subject.read()
    assert page.value("log_records_total", service="api", severity="info") == 3
    assert page.value("log_records_total", service="web", severity="error") == 1
    assert page.names() == {"log_records_total"}


@pytest.mark.parametrize(
    ("number", "text", "word"),
    [
        (1, "", "trace"), (4, "", "trace"), (5, "", "debug"), (12, "", "info"), (13, "", "warn"), (20, "x", "error"),
        (24, "", "fatal"), (0, "WARNING", "warn"), (0, "Error", "error"), (0, "critical", "fatal"),
        (0, "user@example.com", "unspecified"), (25, "", "unspecified"), (0, "", "unspecified"),
    ],
)  # fmt: skip
async def test_severity_is_one_of_a_closed_set(number, text, word):
    """By number, else by a known text."""
    subject = Subject()
    await log(subject, number=number, text=text)
    assert labels_of(subject.read(), "log_records_total") == [{"service": "api", "severity": word}]


async def test_source_and_kind_are_closed_sets():
    """Anything that the wire contract does not list is `custom`, whoever sent it."""
    subject = Subject()
    await log(subject, {"telemetry.source": "mallory", "telemetry.kind": "x" * 100})
    await log(subject, {"telemetry.source": "app"})
    page = subject.read()
    assert page.value("telemetry_events_total", source="custom", kind="custom") == 1
    assert page.value("telemetry_events_total", source="app", kind="custom") == 1


@pytest.mark.parametrize("duration", ["x", float("nan"), float("inf"), -1, None, [1], "1e999"])
async def test_durations_that_are_none(duration):
    """The event counts, and no duration is made up."""
    subject = Subject()
    await log(subject, {**EVENT, "duration_ms": duration})
    assert subject.read().names() == {"telemetry_events_total"}


async def test_chosen_labels_of_logs():
    """Any attribute of the record, else of its resource, under its label name."""
    subject = Subject("logs: {labels: [severity, component, deployment.environment.name, telemetry.kind]}")
    resource = {"deployment.environment.name": "prod", "component": "outer"}
    await log(subject, {"component": "inner"}, resource=resource)
    await log(subject, EVENT, resource=resource)
    page = subject.read()
    assert labels_of(page, "log_records_total") == [
        {"severity": "info", "component": "inner", "deployment_environment_name": "prod"}
    ]
    assert labels_of(page, "telemetry_events_total") == [
        {"severity": "info", "component": "outer", "deployment_environment_name": "prod", "kind": "http_error"}
    ]


async def test_spans_give_calls_and_durations():
    """Under the names and values that the Collector's spanmetrics connector gives, in seconds."""
    subject = Subject()
    await trace(subject)
    await trace(subject, error=True, seconds=0.3)
    page = subject.read(OPENMETRICS)
    common = {"service_name": "api", "span_name": "GET /", "span_kind": "SPAN_KIND_SERVER"}
    for code in ("STATUS_CODE_UNSET", "STATUS_CODE_ERROR"):
        assert page.value("traces_span_metrics_calls_total", status_code=code, **common) == 1
    assert page.value("traces_span_metrics_duration_seconds_sum", status_code="STATUS_CODE_ERROR") == 0.3
    shown = {dict(key[1])["le"]: one.labels for key, one in page.exemplars.items() if key[0].endswith("_bucket")}
    assert shown == {le: {"trace_id": TRACE, "span_id": SPAN} for le in ("0.025", "0.5")}


async def test_chosen_labels_and_buckets_of_spans():
    """Attributes of the span, else of its resource; unknown kinds and codes are unspecified."""
    subject = Subject("traces: {labels: [span.kind, http.route, status.code], buckets: [10ms, 1s]}")
    await trace(subject, kind=77, attrs={"http.route": "/a"})
    page = subject.read()
    assert labels_of(page, "traces_span_metrics_calls_total") == [
        {"span_kind": "SPAN_KIND_UNSPECIFIED", "http_route": "/a", "status_code": "STATUS_CODE_UNSET"}
    ]
    assert [one["le"] for one in labels_of(page, "traces_span_metrics_duration_seconds_bucket")] == [
        "0.01",
        "1.0",
        "+Inf",
    ]


async def test_a_span_that_ends_before_it_starts_takes_no_time():
    """Clocks may go back."""
    subject = Subject()
    await trace(subject, seconds=-5)
    assert subject.read().value("traces_span_metrics_duration_seconds_sum") == 0


async def test_too_many_label_sets_overflow():
    """What comes on top of the cap is counted in one series; known label sets go on; room comes back with expiry."""
    subject = Subject("{traces: {aggregation_cardinality_limit: 2}, metric_expiration: 1m}")
    for _ in range(2):
        for number in range(5):
            await trace(subject, f"GET /user/{number}")
    page = subject.read()
    assert page.value("traces_span_metrics_calls_total", span_name="GET /user/0") == 2
    assert page.value("traces_span_metrics_calls_total", otel_metric_overflow="true") == 6
    assert page.value("traces_span_metrics_duration_seconds_count", otel_metric_overflow="true") == 6
    assert len(page.values("traces_span_metrics_calls_total")) == 3
    assert not subject.bench.dropped
    subject.bench.clock.advance(100)
    await subject.exporter.sweep()
    await trace(subject, "GET /user/9")
    assert labels_of(subject.read(), "traces_span_metrics_calls_total")[0]["span_name"] == "GET /user/9"


async def test_a_counter_goes_on_after_it_has_expired():
    """It does not seem to have been reset."""
    subject = Subject("metric_expiration: 1m")
    await log(subject, count=3)
    subject.bench.clock.advance(100)
    await subject.exporter.sweep()
    assert subject.page() == b""
    await log(subject)
    assert subject.read().value("log_records_total") == 4


async def test_a_full_store_refuses_and_counts():
    """Records that no series has room for are dropped with the reason, each once."""
    subject = Subject("max_series: 1")
    await subject.feed(gauge("g", point(1)))
    await log(subject, count=3)
    await trace(subject)
    assert subject.dropped("series_limit", Signal.LOGS) == 3
    assert subject.dropped("series_limit", Signal.TRACES) == 1
    assert subject.read().names() == {"g"}


async def test_a_metric_that_has_the_name_already():
    """A sender's own metric of another type keeps the name; the records are counted as dropped."""
    subject = Subject()
    await subject.feed(gauge("log.records.total", point(1)))
    await log(subject)
    assert subject.dropped("type_conflict", Signal.LOGS) == 1


async def test_strategy_namespace_and_constant_labels_hold_for_derived_metrics():
    """They are metrics like all others."""
    subject = Subject("{translation_strategy: NoTranslation, namespace: edge, const_labels: {site: a}}")
    await trace(subject)
    page = subject.read(f"{OPENMETRICS}; escaping=allow-utf-8")
    assert page.value("edge_traces.span.metrics.calls", site="a", **{"service.name": "api"}) == 1


async def test_formats_agree_on_derived_metrics():
    """Text, OpenMetrics and protobuf carry the same."""
    subject = Subject()
    await log(subject, {**EVENT, "duration_ms": 3}, trace=TRACE)
    await log(subject)
    await trace(subject)
    pages = [subject.read(accept).samples for accept in (TEXT, OPENMETRICS, PROTOBUF)]
    assert same(pages[0], pages[1])
    assert same(pages[0], pages[2])


async def test_ids_of_zeros_or_of_a_wrong_length_are_no_exemplar():
    """A record without a trace has none."""
    subject = Subject()
    await log(subject, trace="00" * 16)
    await log(subject, trace="ab")
    assert not subject.read(OPENMETRICS).exemplars
