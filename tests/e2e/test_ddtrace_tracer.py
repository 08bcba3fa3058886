"""Programs with ddtrace, unchanged, on a host where the sidecar is in the Agent's place."""

import asyncio
import signal
import sys

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.propagate import extract, inject
from support.datadog_intake import DatadogIntake
from support.datadog_tracer import running
from support.ddtrace_host import Host, ddtrace_run, recording
from support.otlp_receiver import Fickle, plain
from support.processes import ManagedProcess
from support.python_sdk import tracing

from sidecar import Retryable, Signal

FLUSHES = """
import logging
logging.basicConfig(level=logging.INFO)
from ddtrace.trace import tracer
for number in range({flushes}):
    with tracer.trace("web.request", resource="GET /", span_type="web") as span:
        span.set_tag("number", str(number))
        with tracer.trace("db.query", service="db", resource="select 1", span_type="sql") as query:
            query.set_metric("rows", number)
    tracer.flush()
tracer.shutdown()
"""


@pytest.mark.parametrize(
    "env",
    [
        pytest.param({}, id="v0.5"),
        pytest.param({"DD_TRACE_API_VERSION": "v0.4"}, id="v0.4"),
        pytest.param({"DD_TRACE_AGENT_URL": "unix://{folder}/apm.sock"}, id="unix"),
        pytest.param({"DD_TRACE_STATS_COMPUTATION_ENABLED": "true"}, id="statistics"),
    ],
)
async def test_nothing_is_lost_over_a_hundred_flushes(tmp_path, env):
    """And the tracer complains of nothing."""
    async with recording(tmp_path) as host:
        env = {name: value.format(folder=tmp_path) for name, value in env.items()}
        output = await host.run(FLUSHES.format(flushes=100), **env)
        assert "ERROR" not in output
        assert "WARNING" not in output
        await host.sink.wait_for_items(200, Signal.TRACES)
        await host.end()
    spans = host.spans()
    assert len(spans) == 200
    roots = {span.trace_id: span for span, _ in spans if not span.parent_span_id}
    assert sorted(int(plain(span.attributes)["number"]) for span in roots.values()) == list(range(100))
    for span, resource in spans:
        root = roots[span.trace_id]
        assert any(span.trace_id[:8])
        assert span is root or span.parent_span_id == root.span_id
        assert resource["deployment.environment.name"] == "test"
        assert resource["telemetry.sdk.language"] == "python"
        assert (resource["service.name"], span.name) in {("shop", "web.request"), ("db", "db.query")}
    # The first spans may leave before the tracer has read what the Agent can.
    _, last = spans[-1]
    assert last.get("_dd.stats_computed") == ("true" if "DD_TRACE_STATS_COMPUTATION_ENABLED" in env else None)


@pytest.mark.parametrize("native", ["true", "false"])
async def test_events_and_links_arrive_in_either_form(tmp_path, native):
    """As the protocol's own, which v0.4 has, and as the texts that v0.5 has instead; made with OpenTelemetry's API."""
    program = """
import ddtrace.auto
from opentelemetry import trace
tracer = trace.get_tracer("scope")
with tracer.start_as_current_span("first") as first:
    pass
with tracer.start_as_current_span("second", links=[trace.Link(first.get_span_context(), {"why": "test"})]) as span:
    span.add_event("event", {"n": 1, "flag": True, "list": ["a", "b"]})
from ddtrace.trace import tracer as own
own.shutdown()
"""
    async with recording(tmp_path) as host:
        env = {"DD_TRACE_OTEL_ENABLED": "true", "DD_TRACE_NATIVE_SPAN_EVENTS": native}
        assert "ERROR" not in await host.run(program, **env)
        await host.sink.wait_for_items(2, Signal.TRACES)
        await host.end()
    spans = {plain(span.attributes)["resource.name"]: span for span, _ in host.spans()}
    (link,) = spans["second"].links
    assert (link.trace_id, link.span_id) == (spans["first"].trace_id, spans["first"].span_id)
    assert plain(link.attributes) == {"why": "test"}
    (event,) = spans["second"].events
    assert (event.name, plain(event.attributes)) == ("event", {"n": 1, "flag": True, "list": ["a", "b"]})


async def test_a_tracer_sends_again_what_there_was_no_room_for():
    """It understands 429, and complains of nothing; each span arrives once."""
    async with running(sink=Fickle(Retryable("full", reason="queue_full"), 3)) as agent:
        env = {"DD_TRACE_AGENT_URL": f"http://127.0.0.1:{agent.receiver.port}"}
        async with ManagedProcess(sys.executable, "-c", FLUSHES.format(flushes=2), env=env) as process:
            ended = await process.wait()
        assert ended.code == 0
        assert "ERROR" not in ended.output
        assert len({one.span_id for one in agent.spans}) == len(agent.spans) == 4
        assert not agent.bench.dropped


async def test_a_reload_loses_nothing(tmp_path):
    """Both receivers' settings change while programs send."""
    program = """
import time
from datadog.dogstatsd import DogStatsd
client = DogStatsd(host="127.0.0.1", port={port}, disable_telemetry=True, disable_buffering=True)
for _ in range(1000):
    client.increment("hits")
    time.sleep(0.002)
"""
    pytest.importorskip("datadog")
    async with recording(tmp_path) as host:
        document = host.sidecar.document.read_text()
        sending = [
            asyncio.create_task(host.run(FLUSHES.format(flushes=300))),
            asyncio.create_task(host.run(program.format(port=host.dogstatsd))),
        ]
        for number in (400, 300, 200):
            await host.sink.wait_for_items(host.sink.items[Signal.METRICS] + 1, Signal.METRICS)
            changed = document.replace("aggregation_interval: 500ms", f"aggregation_interval: {number}ms")
            host.sidecar.document.write_text(changed.replace('apm.sock"', f'apm.sock", sampling_rate: 0.{number}'))
            host.sidecar.send_signal(signal.SIGHUP)
        outputs = await asyncio.gather(*sending)
        assert not any("ERROR" in output for output in outputs)
        await host.sink.wait_for_items(600, Signal.TRACES)
        output = await host.end()
    assert output.count("reloaded: ") == 3
    assert len(host.spans()) == 600
    points = [point for metric in host.metrics() if metric.name == "hits" for point in metric.sum.data_points]
    assert sum(point.as_double for point in points) == 1000


async def test_a_program_under_ddtrace_run_sends_everything(tmp_path):
    """Telemetry, remote configuration and runtime metrics are on, and it complains of nothing."""
    program = """
import logging, time
logging.basicConfig(level=logging.INFO)
from ddtrace.trace import tracer
with tracer.trace("work"):
    time.sleep(2.5)
tracer.shutdown()
"""
    async with recording(tmp_path) as host:
        output = await host.run(
            program, ddtrace_run(), DD_RUNTIME_METRICS_ENABLED="true", DD_RUNTIME_METRICS_INTERVAL="1"
        )
        assert "ERROR" not in output
        await host.sink.wait_for_items(1, Signal.TRACES)
        await host.sink.wait_for_items(1, Signal.METRICS)
        await host.end()
    (span, resource), *_ = host.spans()
    assert (span.name, resource["service.name"], resource["service.version"]) == ("work", "shop", "1.2")
    names = {metric.name for metric in host.metrics()}
    assert {"runtime.python.cpu.percent", "runtime.python.mem.rss"} <= names


async def test_one_trace_through_ddtrace_and_opentelemetry_keeps_its_id_and_its_parents(tmp_path):
    """It begins in one, goes on in the other and returns: all of it comes out with one id of 128 bits."""
    program = """
import os
from ddtrace.propagation.http import HTTPPropagator
from ddtrace.trace import tracer
headers = {}
if "TRACEPARENT" in os.environ:
    tracer.context_provider.activate(HTTPPropagator.extract({"traceparent": os.environ["TRACEPARENT"]}))
with tracer.trace(os.environ["NAME"]) as span:
    with tracer.trace("inner") as inner:
        HTTPPropagator.inject(inner.context, headers)
tracer.shutdown()
print("traceparent", headers["traceparent"])
"""
    async with recording(tmp_path) as host:
        first = (await host.run(program, NAME="first")).split()[-1]
        headers = {}
        with (
            tracing(OTLPSpanExporter(f"http://127.0.0.1:{host.otlp}/v1/traces")) as tracer,
            tracer.start_as_current_span("second", context=extract({"traceparent": first})),
        ):
            inject(headers)
        await host.run(program, NAME="third", TRACEPARENT=headers["traceparent"])
        await host.sink.wait_for_items(5, Signal.TRACES)
        await host.end()
    named = {span.name: span for span, _ in host.spans() if span.name != "inner"}
    inner = [span for span, _ in host.spans() if span.name == "inner"]
    assert len(host.spans()) == 5
    assert {span.trace_id.hex() for span, _ in host.spans()} == {first.split("-")[1]}
    assert first.split("-")[1][:16].strip("0")
    by_parent = {span.parent_span_id: span for span in inner}
    assert set(by_parent) == {named["first"].span_id, named["third"].span_id}
    assert named["first"].parent_span_id == b""
    assert named["second"].parent_span_id == by_parent[named["first"].span_id].span_id
    assert named["third"].parent_span_id == named["second"].span_id


async def test_everything_reaches_datadog(tmp_path):
    """Spans, queries without their values, and statistics: each span is counted once, by its tracer or the exporter."""
    async with DatadogIntake() as intake:
        url = intake.url
        parts = ", ".join(f"{part}: {{endpoint: '{url}'}}" for part in ("logs", "traces", "metrics", "events"))
        host = Host(tmp_path, f"datadog: {{api: {{key: {'a' * 32}}}, {parts}}}")
        async with host.sidecar:
            output = await host.run(FLUSHES.format(flushes=20), DD_TRACE_STATS_COMPUTATION_ENABLED="true")
            assert "ERROR" not in output
            await intake.wait_for(lambda: len(intake.spans) >= 40 and intake.stats)
            await host.end()
    for _, _, span in intake.spans:
        fields = (span.service, span.name, span.resource, span.type)
        assert fields in {("shop", "web.request", "GET /", "web"), ("db", "db.query", "select ?", "sql")}
        assert span.meta["env"] == "test"
    by_tracer = [client for payload in intake.stats if payload["ClientComputed"] for client in payload["Stats"]]
    assert {(client["Lang"], client["Env"], client["Service"]) for client in by_tracer} == {("python", "test", "shop")}
    clients = [client for payload in intake.stats for client in payload["Stats"]]
    assert sum(entry["Hits"] for client in clients for bucket in client["Stats"] for entry in bucket["Stats"]) == 40
