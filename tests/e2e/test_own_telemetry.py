"""The sidecar's own metrics and spans, sent by the SDK's own exporters to a server that keeps them."""

from __future__ import annotations

import asyncio

import pytest
from support.otlp import logs
from support.peers import GrpcServer, HttpServer, send
from support.processes import SidecarProcess, find_free_port

from sidecar import Signal

DOCUMENT = """
receivers:
  otlp: {{protocols: {{grpc: {{endpoint: "127.0.0.1:{port}"}}}}}}
exporters:
  otlp: {{endpoint: "http://{sink}", compression: none, sending_queue: {{batch: {{min_size: 0}}}}}}
service:
  telemetry: {telemetry}
  pipelines:
    logs: {{receivers: [otlp], exporters: [otlp]}}
    traces: {{receivers: [otlp], exporters: [otlp]}}
"""
NO_METRICS = "metrics: {level: none}"


def spans_of(sink, service="otlp-sidecar"):
    """The sidecar's own spans, by name."""
    return [
        (span.name, span.kind, {pair.key: pair.value for pair in span.attributes})
        for request in sink.requests
        if request.signal is Signal.TRACES
        for resource in request.batch.resources()
        if any(pair.value.string_value == service for pair in resource.resource.attributes)
        for scope in resource.scope_spans
        for span in scope.spans
    ]


@pytest.mark.parametrize(("server", "protocol"), [(GrpcServer, "grpc"), (HttpServer, "http/protobuf")])
async def test_own_metrics_are_sent_at_an_interval(tmp_path, server, protocol):
    """Counters arrive as cumulative sums under the names that the page has."""
    async with server() as own, GrpcServer() as sink:
        reader = (
            f"{{periodic: {{interval: 200, exporter: {{otlp: {{protocol: {protocol}, "
            f"endpoint: 'http://{own.address}', insecure: true}}}}}}}}"
        )
        port = find_free_port()
        telemetry = f"{{metrics: {{readers: [{reader}]}}}}"
        document = DOCUMENT.format(port=port, sink=sink.address, telemetry=telemetry)
        async with SidecarProcess(document, tmp_path) as sidecar:
            await send(f"127.0.0.1:{port}", logs(7))
            await sink.wait_for_items(7)
            ended = await sidecar.stop()
        sums = {
            metric.name: point.as_int
            for request in own.requests
            for scope in request.batch.scopes()
            for metric in scope.metrics
            for point in metric.sum.data_points
        }
    assert sums["otelcol_receiver_accepted_log_records"] == 7
    assert sums["otelcol_exporter_sent_log_records"] == 7
    assert ended.code == 0, ended.output


async def test_own_spans_show_requests_and_attempts(tmp_path):
    """One span for what a receiver handed on, one for each attempt of an exporter, a failed one with its error."""
    async with GrpcServer() as own, GrpcServer() as sink:
        otlp = f"{{protocol: grpc, endpoint: 'http://{own.address}', insecure: true}}"
        telemetry = f"{{{NO_METRICS}, traces: {{processors: [{{batch: {{exporter: {{otlp: {otlp}}}}}}}]}}}}"
        port = find_free_port()
        async with SidecarProcess(
            DOCUMENT.format(port=port, sink=sink.address, telemetry=telemetry), tmp_path
        ) as sidecar:
            await send(f"127.0.0.1:{port}", logs(7))
            await sink.wait_for_items(7)
            ended = await sidecar.stop()
        spans = {name: (kind, attributes) for name, kind, attributes in spans_of(own)}
    assert ended.code == 0, ended.output
    assert spans.keys() == {"receivers/otlp", "exporters/otlp"}
    kind, attributes = spans["receivers/otlp"]
    assert (kind, attributes["items"].int_value, attributes["transport"].string_value) == (2, 7, "grpc")
    assert spans["exporters/otlp"][0] == 3


async def test_own_spans_do_not_feed_themselves(tmp_path):
    """Sent to the sidecar itself they pass through its pipelines, and nobody makes spans of them."""
    async with GrpcServer() as sink:
        port = find_free_port()
        otlp = f"{{protocol: grpc, endpoint: 'http://127.0.0.1:{port}', insecure: true}}"
        telemetry = f"{{{NO_METRICS}, traces: {{processors: [{{simple: {{exporter: {{otlp: {otlp}}}}}}}]}}}}"
        async with SidecarProcess(
            DOCUMENT.format(port=port, sink=sink.address, telemetry=telemetry), tmp_path
        ) as sidecar:
            await send(f"127.0.0.1:{port}", logs(1))
            await sink.wait_for_items(2, Signal.TRACES)
            await asyncio.sleep(0.5)  # in which spans of spans would come
            await sidecar.stop()
        names = [name for name, _, _ in spans_of(sink)]
    assert sorted(names) == ["exporters/otlp", "receivers/otlp"]


async def test_own_spans_go_through_ddtrace(tmp_path):
    """Ddtrace's provider makes them where the document says so, and reports to its agent."""
    received = asyncio.Event()
    bodies = []

    async def agent(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        if b"/traces" in head.split(b"\r\n", 1)[0]:
            length = next(int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
            bodies.append(await reader.readexactly(length))
            received.set()
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}"
        )
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(agent, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    env = {
        "DD_TRACE_AGENT_URL": address,
        "DD_INSTRUMENTATION_TELEMETRY_ENABLED": "false",
        "DD_REMOTE_CONFIGURATION_ENABLED": "false",
    }
    port = find_free_port()
    async with server, GrpcServer() as sink:
        telemetry = f"{{{NO_METRICS}, traces: {{processors: [ddtrace: ]}}}}"
        document = DOCUMENT.format(port=port, sink=sink.address, telemetry=telemetry)
        async with SidecarProcess(document, tmp_path, env=env) as sidecar:
            await send(f"127.0.0.1:{port}", logs(1))
            await asyncio.wait_for(received.wait(), 15)
            ended = await sidecar.stop()
    assert ended.code == 0, ended.output
    assert any(b"receivers/otlp" in body and b"otlp-sidecar" in body for body in bodies)
