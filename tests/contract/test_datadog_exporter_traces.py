"""Spans on their way to Datadog's intake, over real sockets."""

from __future__ import annotations

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from support import otlp
from support.datadog_intake import STATS, TRACES, DatadogIntake

from exporters.datadog import DatadogExporter
from sidecar import Batch, BatchContext, Retryable, Signal
from sidecar.testing import Bench

KEY = "0123456789abcdef0123456789abcdef"


@pytest.fixture
async def intake():
    """An intake that knows one key."""
    async with DatadogIntake(keys=(KEY,)) as running:
        yield running


@pytest.fixture
async def bench():
    """What surrounds the exporter, ended after the test."""
    one = Bench()
    yield one
    await one.close()


@pytest.fixture
async def exporter(intake, bench, monkeypatch):
    """A started exporter that sends to the intake."""
    for name in ("DD_API_KEY", "DD_SITE", "DD_ENV", "DD_SERVICE", "DD_VERSION"):
        monkeypatch.delenv(name, raising=False)
    made = bench.make(DatadogExporter, f"api: {{key: {KEY}}}\nenv: prod\ntraces: {{endpoint: '{intake.url}'}}\n")
    await made.start()
    yield made
    await made.stop()


def batch_of(*requests: ExportTraceServiceRequest) -> Batch:
    """A batch of several resources."""
    whole = ExportTraceServiceRequest()
    for request in requests:
        whole.MergeFrom(request)
    return Batch(Signal.TRACES, message=whole, context=BatchContext())


async def test_spans_arrive_as_an_agent_payload_in_gzip(exporter, intake):
    """The request is what the intake for traces takes: path, key, type, encoding."""
    await exporter.export(otlp.traces(3))
    (request,) = intake.to(TRACES)
    assert request.headers["content-type"] == "application/x-protobuf"
    assert request.headers["content-encoding"] == "gzip"
    assert request.headers["dd-api-key"] == KEY
    assert [span.spanID for _, _, span in intake.spans] == [1, 2, 3]
    assert {(payload.env, chunk.priority) for payload, chunk, _ in intake.spans} == {("prod", 1)}


async def test_one_trace_of_many_services_has_one_id(exporter, intake):
    """All 128 bits of it are on each span, with the parents intact."""
    await exporter.export(batch_of(otlp.traces_request(2, service="a"), otlp.traces_request(2, service="b")))
    ids = {(span.traceID, span.meta["_dd.p.tid"], span.meta["otel.trace_id"]) for _, _, span in intake.spans}
    assert ids == {(0x1122334455667788, "0123456789abcdef", otlp.TRACE_ID.hex())}


async def test_a_large_batch_is_cut_before_it_is_sent(exporter, intake):
    """A trace of 9 MB goes out in requests under 3.2 MB, every span once (contrib#1925)."""
    await exporter.export(otlp.traces(900, filler="x" * 10_000))
    assert len(intake.to(TRACES)) == 4
    assert {request.status for request in intake.to(TRACES)} == {202}
    assert sorted(span.spanID for _, _, span in intake.spans) == list(range(1, 901))


async def test_413_divides_a_trace(exporter, intake, bench):
    """No trace is tried again and again; one span that fails alone is dropped and counted (contrib#1925)."""
    intake.script(status=413, times=3)
    await exporter.export(otlp.traces(4))
    assert [span.spanID for _, _, span in intake.spans] == [2, 3, 4]
    assert bench.dropped == {(Signal.TRACES, "too_large"): 1}


async def test_statistics_follow_the_spans(exporter, intake):
    """Each span is counted once, however often its batch is sent, and what samplers decided against is counted too."""
    request = otlp.traces_request(3)
    for span in request.resource_spans[0].scope_spans[0].spans:
        span.kind = 2
    request.resource_spans[0].scope_spans[0].spans[0].attributes.extend(otlp.attributes(_sampling_priority_v1=0))
    kept = otlp.traces_request(1)
    kept.resource_spans[0].scope_spans[0].spans[0].trace_id = b"another trace id"
    intake.script(status=503, path=TRACES)
    with pytest.raises(Retryable) as failure:
        await exporter.export(batch_of(request, kept))
    await exporter.export(failure.value.remaining)
    await exporter.stop()
    assert len(intake.spans) == 1
    (payload,) = intake.stats
    (stats,) = payload["Stats"]
    entries = stats["Stats"][0]["Stats"]
    assert {entry["SpanKind"]: entry["Hits"] for entry in entries} == {"server": 3, "unspecified": 1}
    assert stats["Env"] == "prod"
    assert intake.to(STATS)[0].headers["content-type"] == "application/msgpack"
    assert intake.to(STATS)[0].headers["content-encoding"] == "gzip"


async def test_what_is_left_out_is_counted(exporter, intake, bench):
    """Spans without ids, and traces that a sampler decided against."""
    request = otlp.traces_request(3)
    spans = request.resource_spans[0].scope_spans[0].spans
    spans[0].trace_id = b""
    spans[1].trace_id = b"unsampled trace."
    spans[1].attributes.extend(otlp.attributes(_sampling_priority_v1=-1))
    await exporter.export(batch_of(request))
    assert len(intake.spans) == 1
    assert bench.dropped == {(Signal.TRACES, "invalid_id"): 1, (Signal.TRACES, "sampled_out"): 1}


@pytest.mark.parametrize("status", [408, 429, 500, 503])
async def test_a_retry_sends_only_what_was_not_taken(exporter, intake, status):
    """When the second request fails, the retry begins with it."""
    intake.script(status=202, accept=True)
    intake.script(status=status)
    with pytest.raises(Retryable) as failure:
        await exporter.export(otlp.traces(900, filler="x" * 10_000))
    remaining = failure.value.remaining
    assert len(remaining) == 900 - len(intake.spans)
    stored = Batch(Signal.TRACES, remaining.encode(), context=remaining.context)
    assert len(stored) == len(remaining)
    await exporter.export(remaining)
    assert sorted(span.spanID for _, _, span in intake.spans) == list(range(1, 901))
