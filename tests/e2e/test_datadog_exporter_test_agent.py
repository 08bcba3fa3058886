"""Spans to Datadog's own test agent, with all of its checks on."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import aiohttp
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from support import datadog_tracer, otlp
from support.processes import ManagedProcess, find_free_port

from exporters.datadog import DatadogExporter
from sidecar import Batch, BatchContext, Signal
from sidecar.receivers.datadog.spans import HighIds, Tracer, convert
from sidecar.receivers.datadog.wire import decode
from sidecar.testing import Bench

CHECKS = (
    "trace_count_header",
    "meta_tracer_version_header",
    "trace_content_length",
    "trace_stall",
    "trace_peer_service",
    "trace_dd_service",
    "meta_events_is_valid_json",
)


class Agent(ManagedProcess):
    """`ddapm-test-agent` on free ports, which forwards nothing."""

    def __init__(self, folder, socket=None):
        self.port = find_free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        super().__init__(
            _program(),
            f"--port={self.port}",
            f"--otlp-http-port={find_free_port()}",
            f"--otlp-grpc-port={find_free_port()}",
            "--pool-trace-check-failures=true",
            "--disable-llmobs-data-forwarding",
            *([f"--trace-uds-socket={socket}"] if socket else []),
            env={"ENABLED_CHECKS": ",".join(CHECKS), "DD_API_KEY": "", "DD_TRACE_AGENT_URL": "", "DD_AGENT_URL": ""},
            cwd=folder,
        )

    async def wait_until_ready(self):
        """Return when it listens."""
        await self.wait_for_port(self.port)

    async def get(self, path):
        """The status and the content of a path of its own API."""
        async with aiohttp.ClientSession() as session, session.get(self.url + path) as response:
            text = await response.text()
            return response.status, json.loads(text) if text[:1] in {"[", "{"} else text


def _program():
    """Where `tests/setup.sh` puts the program: an environment of its own, since it pins older libraries."""
    beside = Path(sys.executable).parents[1] / "test-agent/bin/ddapm-test-agent"
    found = str(beside) if beside.exists() else shutil.which("ddapm-test-agent")
    if found is None:
        message = "ddapm-test-agent is not installed; run tests/setup.sh"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    return found


def _spans() -> Batch:
    """Traces of several kinds: an error with an exception, a database, two services, a link, and a tracer's own."""
    request = otlp.traces_request(3, service="front", http__request__method="GET", http__route="/a")
    spans = request.resource_spans[0].scope_spans[0].spans
    for span in spans[1:]:
        span.parent_span_id = spans[0].span_id
    spans[0].kind = 2
    spans[0].status.code = 2
    event = spans[0].events.add(name="exception", time_unix_nano=otlp.NOW)
    event.attributes.extend(otlp.attributes(exception__type="ValueError", exception__message='"no"'))
    spans[1].links.add(trace_id=otlp.TRACE_ID, span_id=otlp.SPAN_ID, trace_state='a="b"')
    other = otlp.traces_request(
        1, service="store", db__system="postgresql", peer__service="pg", db__statement="SELECT 1"
    )
    other.resource_spans[0].scope_spans[0].spans[0].kind = 3
    other.resource_spans[0].scope_spans[0].spans[0].trace_id = b"another trace id"
    request.MergeFrom(other)
    counted = otlp.traces_request(1, service="counted")
    counted.resource_spans[0].resource.attributes.extend(otlp.attributes(_dd__stats_computed="true"))
    request.MergeFrom(counted)
    chunk = [datadog_tracer.span(), datadog_tracer.span(span_id=2, parent_id=1, service="db")]
    by_tracer = convert(decode("v0.4", datadog_tracer.v04(chunk)), Tracer("python"), HighIds())
    request.MergeFrom(ExportTraceServiceRequest.FromString(by_tracer.data))
    return Batch(Signal.TRACES, message=request, context=BatchContext())


async def _export(agent_url: str, monkeypatch) -> None:
    monkeypatch.setenv("DD_API_KEY", "a key that an Agent must not see")
    bench = Bench()
    exporter = bench.make(DatadogExporter, f"traces: {{agent_url: '{agent_url}'}}\n")
    await exporter.start()
    try:
        await exporter.export(_spans())
    finally:
        await exporter.stop()
        await bench.close()


async def test_the_test_agent_accepts_what_is_sent(tmp_path, monkeypatch):
    """Every check passes, every span arrives as it should, and the key stays here."""
    async with Agent(tmp_path) as agent:
        await _export(agent.url, monkeypatch)
        assert await agent.get("/test/trace_check/failures") == (200, "200: OK")
        _, summary = await agent.get("/test/trace_check/summary")
        assert summary.keys() == set(CHECKS)
        assert summary["trace_count_header"]["Passed_Checks"] == 2
        assert not any(check["Failed_Checks"] for check in summary.values())
        _, traces = await agent.get("/test/session/traces")
        spans = {(span["service"], span["name"], span["resource"]) for trace in traces for span in trace}
        assert spans == {
            ("front", "http.server.request", "GET /a"),
            ("front", "Internal", "GET"),
            ("store", "postgresql.query", "SELECT 1"),
            ("counted", "Internal", "GET /"),
            ("web", "flask.request", "GET /users"),
            ("db", "flask.request", "GET /users"),
        }
        errors = [span for trace in traces for span in trace if span.get("error")]
        assert [span["meta"]["error.msg"] for span in errors] == ['"no"']
        _, requests = await agent.get("/test/session/requests")
        headers = [{name.lower(): value for name, value in request["headers"].items()} for request in requests]
        assert {request.get("datadog-client-computed-stats", "no") for request in headers} == {"yes", "no"}
        assert not any("dd-api-key" in request for request in headers)


async def test_an_agent_at_a_unix_socket(tmp_path, monkeypatch):
    """The usual place of an Agent's receiver."""
    socket = tmp_path / "apm.socket"
    async with Agent(tmp_path, socket) as agent:
        await agent.wait_for_port(agent.port)
        await _export(f"unix://{socket}", monkeypatch)
        _, traces = await agent.get("/test/session/traces")
        assert sum(map(len, traces)) == 7
