"""Python applications: the OpenTelemetry SDK in all its ways of sending, and ddtrace; what arrives is what was said."""

import asyncio
import sys
from importlib.util import find_spec
from pathlib import Path

import grpc
import pytest
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.trace import Link, SpanKind, Status, StatusCode
from support.certificates import Authority
from support.node import missing
from support.otlp import logs, metrics, traces
from support.otlp_receiver import Fickle, items, plain, running
from support.peers import Rotel, records, send
from support.processes import ManagedProcess
from support.python_sdk import exporter_to, logging_to, metering, tracing
from support.wire import until

from sidecar import RateLimited, Retryable, Signal

PROTOCOLS = pytest.mark.parametrize("protocol", ["grpc", "http/protobuf", "http/json"])
ATTRIBUTES = {"text": "grüß\N{WAVING HAND SIGN}", "int": -(2**53), "float": 0.5, "bool": True, "list": ["a", "b"]}


def arrived(server, signal):
    """The items of one signal, with the resource and the scope checked on the way."""
    for batch in server.sink.of(signal):
        for resource in batch.resources():
            assert (
                plain(resource.resource.attributes).items() >= {"service.name": "shop", "host.name": "büro-1"}.items()
            )
        assert {(scope.scope.name, scope.scope.version) for scope in batch.scopes()} == {("scope", "1.2")}
    return items(server, signal)


def say_spans(exporter):
    """A parent and a child with everything that a span may have."""
    with tracing(exporter) as tracer, tracer.start_as_current_span("parent", kind=SpanKind.SERVER) as parent:
        link = Link(parent.get_span_context(), {"why": "test"})
        with tracer.start_as_current_span("child", attributes=ATTRIBUTES, links=[link]) as child:
            child.add_event("event", {"n": 1})
            child.set_status(Status(StatusCode.ERROR, "broken"))
    return parent.get_span_context(), child.get_span_context()


def say_logs(exporter):
    """One log record."""
    with logging_to(exporter) as logger:
        logger.emit(
            LogRecord(
                timestamp=1_700_000_000_000_000_001,
                severity_number=SeverityNumber.WARN,
                severity_text="WARNING",
                body="hello wörld",
                attributes=ATTRIBUTES,
            )
        )


def say_metrics(exporter):
    """A counter, a histogram and a gauge."""
    with metering(exporter) as meter:
        meter.create_counter("requests", "1", "Requests.").add(3, {"route": "/"})
        meter.create_histogram("duration", "s").record(0.25)
        meter.create_gauge("level").set(1.5)


@PROTOCOLS
async def test_spans_arrive_as_they_were_said(protocol):
    """Ids, kinds, times, attributes of all types, events, links, status."""
    async with running() as server:
        parent, child = await asyncio.to_thread(say_spans, exporter_to(server, protocol, Signal.TRACES))
        spans = {span.name: span for span in arrived(server, Signal.TRACES)}
    assert spans["parent"].span_id == parent.span_id.to_bytes(8, "big")
    assert spans["parent"].kind == 2
    got = spans["child"]
    assert got.trace_id == child.trace_id.to_bytes(16, "big")
    assert got.parent_span_id == spans["parent"].span_id
    assert plain(got.attributes) == ATTRIBUTES
    assert (got.events[0].name, plain(got.events[0].attributes)) == ("event", {"n": 1})
    assert (got.links[0].span_id, plain(got.links[0].attributes)) == (spans["parent"].span_id, {"why": "test"})
    assert (got.status.code, got.status.message) == (2, "broken")
    assert 0 < got.start_time_unix_nano <= got.end_time_unix_nano


@PROTOCOLS
async def test_log_records_arrive_as_they_were_said(protocol):
    """Time to the nanosecond, severity, body, attributes."""
    async with running() as server:
        await asyncio.to_thread(say_logs, exporter_to(server, protocol, Signal.LOGS))
        (record,) = arrived(server, Signal.LOGS)
    assert record.time_unix_nano == 1_700_000_000_000_000_001
    assert (record.severity_number, record.severity_text) == (13, "WARNING")
    assert record.body.string_value == "hello wörld"
    assert plain(record.attributes) == ATTRIBUTES


@PROTOCOLS
async def test_metrics_arrive_as_they_were_said(protocol):
    """A counter, a histogram and a gauge."""
    async with running() as server:
        await asyncio.to_thread(say_metrics, exporter_to(server, protocol, Signal.METRICS))
        metrics = {metric.name: metric for metric in arrived(server, Signal.METRICS)}
    (count,) = metrics["requests"].sum.data_points
    assert (count.as_int, plain(count.attributes), metrics["requests"].unit) == (3, {"route": "/"}, "1")
    assert metrics["requests"].sum.is_monotonic
    (histogram,) = metrics["duration"].histogram.data_points
    assert (histogram.count, histogram.sum, histogram.min) == (1, 0.25, 0.25)
    assert metrics["level"].gauge.data_points[0].as_double == 1.5


@pytest.mark.parametrize(
    ("protocol", "compression"),
    [
        ("grpc", grpc.Compression.Gzip),
        ("grpc", grpc.Compression.Deflate),
        ("http/protobuf", Compression.Gzip),
        ("http/protobuf", Compression.Deflate),
    ],
)
async def test_compressed_requests_arrive(protocol, compression):
    """In each way that the exporters offer."""
    async with running() as server:
        exporter = exporter_to(server, protocol, Signal.TRACES, compression=compression)
        await asyncio.to_thread(say_spans, exporter)
        assert len(arrived(server, Signal.TRACES)) == 2


@PROTOCOLS
@pytest.mark.parametrize("error", [Retryable("full", after=0.2), RateLimited("slow down", after=0.2)])
async def test_what_was_refused_for_a_while_arrives(protocol, error):
    """By the exporters' own retries, at the time that they were told."""
    async with running(sink=Fickle(error, times=2)) as server:
        await asyncio.to_thread(say_logs, exporter_to(server, protocol, Signal.LOGS))
        assert len(arrived(server, Signal.LOGS)) == 1
        assert server.sink.left[Signal.LOGS] == 0


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
async def test_mutual_tls_with_the_exporters_own_settings(protocol, tmp_path, monkeypatch):
    """By the environment variables that the specification names for them."""
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"):  # they win over the exporter's
        monkeypatch.delenv(name, raising=False)
    authority = Authority(tmp_path)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(authority.ca_file))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", str(authority.client_cert_file))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CLIENT_KEY", str(authority.client_key_file))
    files = f"cert_file: '{authority.server_cert_file}', key_file: '{authority.server_key_file}'"
    tls = f"{{tls: {{{files}, client_ca_file: '{authority.ca_file}'}}}}"
    async with running(*((None, tls) if protocol == "grpc" else (tls, None))) as server:
        options = (
            {"endpoint": f"localhost:{server.grpc}", "insecure": False}
            if protocol == "grpc"
            else {"endpoint": f"https://localhost:{server.http}/v1/traces"}
        )
        await asyncio.to_thread(say_spans, exporter_to(server, protocol, Signal.TRACES, **options))
        assert len(arrived(server, Signal.TRACES)) == 2


def spans_by_name(server):
    """All spans that have arrived."""
    return {span.name: span for span in items(server, Signal.TRACES)}


DDTRACE = """
from ddtrace import tracer
with tracer.trace("web.request", service="shop", resource="GET /") as span:
    span.set_tag("text", "grüß")
    with tracer.trace("db.query"):
        pass
tracer.shutdown()
"""


@pytest.mark.parametrize("protocol", ["http/protobuf", "http/json"])
async def test_ddtrace_sends_its_spans_as_otlp(protocol):
    """With the variables that switch it over; parent and child arrive in one trace."""
    async with running() as server:
        settings = {
            "DD_INSTRUMENTATION_TELEMETRY_ENABLED": "false",
            "DD_REMOTE_CONFIGURATION_ENABLED": "false",
            "DD_TRACE_AGENT_URL": "http://127.0.0.1:9",
            "OTEL_TRACES_EXPORTER": "otlp",
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"http://127.0.0.1:{server.http}/v1/traces",
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": protocol,
        }
        await run(DDTRACE, settings)
        spans = spans_by_name(server)
    parent, child = spans["GET /"], spans["db.query"]
    assert child.parent_span_id == parent.span_id
    assert child.trace_id == parent.trace_id
    assert plain(parent.attributes).items() >= {"service.name": "shop", "text": "grüß"}.items()


DDTRACE_ALL = """
import logging
from ddtrace import tracer
from opentelemetry import metrics
with tracer.trace("web.request", service="shop", resource="GET /"):
    logging.getLogger("app").warning("hello")
metrics.get_meter("app").create_counter("jobs").add(2)
tracer.shutdown()
"""


async def test_ddtrace_sends_metrics_and_logs_as_otlp_too():
    """Its statistics of spans come as JSON without a scope whatever the protocol, its logs belong to their spans."""
    async with running() as server:
        settings = {
            "DD_INSTRUMENTATION_TELEMETRY_ENABLED": "false",
            "DD_REMOTE_CONFIGURATION_ENABLED": "false",
            "DD_TRACE_AGENT_URL": "http://127.0.0.1:9",
            "DD_METRICS_OTEL_ENABLED": "true",
            "DD_LOGS_OTEL_ENABLED": "true",
            "OTEL_TRACES_EXPORTER": "otlp",
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{server.http}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        }
        await run(DDTRACE_ALL, settings, Path(sys.executable).parent / "ddtrace-run")
        span = spans_by_name(server)["GET /"]
        metrics = {metric.name: metric for metric in items(server, Signal.METRICS)}
        (record,) = items(server, Signal.LOGS)
        assert not server.bench.dropped
    assert (record.body.string_value, record.trace_id) == ("hello", span.trace_id)
    assert metrics["jobs"].sum.data_points[0].as_int == 2
    (statistics,) = [metric for name, metric in metrics.items() if name != "jobs"]
    assert statistics.histogram.data_points[0].count == 1


async def run(program, settings, *launcher):
    """Run a Python program to its end."""
    async with ManagedProcess(*launcher, sys.executable, "-c", program, env=settings) as process:
        ended = await process.wait()
    assert ended.code == 0, ended.output


INSTRUMENTED = """
import logging
from opentelemetry import metrics, trace
with trace.get_tracer("app").start_as_current_span("work"):
    logging.getLogger("app").warning("hello")
metrics.get_meter("app").create_counter("jobs").add(2)
"""


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
async def test_an_instrumented_program_sends_all_three_signals(protocol):
    """By environment variables alone, as an operator sets them."""
    pytest.importorskip("opentelemetry.distro")
    async with running() as server:
        port = server.grpc if protocol == "grpc" else server.http
        settings = {
            "OTEL_SERVICE_NAME": "worker",
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
            "OTEL_TRACES_EXPORTER": "otlp",
            "OTEL_METRICS_EXPORTER": "otlp",
            "OTEL_LOGS_EXPORTER": "otlp",
            "OTEL_PYTHON_LOGGING_AUTO_INSTRUMENTATION_ENABLED": "true",
            "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "ddtrace",
        }
        await run(INSTRUMENTED, settings, Path(sys.executable).parent / "opentelemetry-instrument")
        span = spans_by_name(server)["work"]
        (logs,) = server.sink.of(Signal.LOGS)
        (record,) = next(logs.scopes()).log_records
        names = {
            metric.name
            for batch in server.sink.of(Signal.METRICS)
            for scope in batch.scopes()
            for metric in scope.metrics
        }
    assert (record.body.string_value, record.trace_id) == ("hello", span.trace_id)
    assert plain(logs.resources()[0].resource.attributes)["service.name"] == "worker"
    assert "jobs" in names


LOGFIRE = """
import logfire
logfire.configure(send_to_logfire=False, console=False, inspect_arguments=False, service_name="worker")
with logfire.span("work"):
    logfire.warning("hello {name}", name="wörld")
logfire.metric_counter("jobs").add(2)
logfire.shutdown()
"""


async def test_logfire_sends_spans_and_metrics():
    """It says its log records as spans of no length."""
    if find_spec("logfire") is None:
        missing("logfire", "run `make test`")
    async with running() as server:
        await run(LOGFIRE, {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{server.http}"})
        spans = spans_by_name(server)
        names = {metric.name for metric in items(server, Signal.METRICS)}
    assert spans["hello {name}"].parent_span_id == spans["work"].span_id
    assert plain(spans["hello {name}"].attributes).items() >= {"logfire.msg": "hello wörld", "name": "wörld"}.items()
    assert "jobs" in names


@pytest.mark.parametrize("protocol", ["grpc", "http"])
@pytest.mark.parametrize("compression", ["gzip", "none"])
async def test_rotel_sends_on_what_it_gets(protocol, compression, tmp_path):
    """Another collector in front of this one, in both of its ways: all three signals arrive whole."""
    sent = [logs(30), traces(30), metrics(30)]
    async with running() as server:
        target = f"http://127.0.0.1:{server.grpc if protocol == 'grpc' else server.http}"
        async with Rotel.to(target, tmp_path, protocol, compression) as rotel:
            await send(f"127.0.0.1:{rotel.grpc_port}", *sent)
            await until(lambda: len(server.sink) == 90)
        for batch in sent:
            assert records(*server.sink.of(batch.signal)) == records(batch)
