"""A full queue costs real applications nothing: their exporters come again by themselves, until everything arrives."""

import asyncio
import contextlib
from dataclasses import dataclass

import pytest
from support.node import node
from support.otlp import logs
from support.peers import GrpcServer, records, send
from support.processes import find_free_port
from support.python_sdk import exporter_to, logging_to, metering, tracing
from support.wire import until

from config.document import load
from config.resolve import resolve
from sidecar import SCHEMAS, Signal
from sidecar.registry import Registry
from sidecar.service import Service

# What the destination holds, and what waits for it. One more is too many.
BEING_SENT = logs(1, body="being sent")
WAITING = logs(1, body="waiting")

DOCUMENT = """
receivers:
  otlp: {{protocols: {{grpc: {{endpoint: '127.0.0.1:{grpc}'}}, http: {{endpoint: '127.0.0.1:{http}'}}}}}}
exporters:
  otlp:
    endpoint: {target}
    tls: {{insecure: true}}
    timeout: 60s
    sending_queue: {{queue_size: 2, sizer: requests, num_consumers: 1, batch: {{min_size: 0}}}}
service:
  telemetry: {{metrics: {{level: none}}}}
  pipelines:
    traces: {{receivers: [otlp], exporters: [otlp]}}
    metrics: {{receivers: [otlp], exporters: [otlp]}}
    logs: {{receivers: [otlp], exporters: [otlp]}}
"""


class Destination(GrpcServer):
    """An OTLP server that answers nobody until it is let go."""

    def __init__(self):
        super().__init__()
        self.let_go = asyncio.Event()

    async def record(self, request):
        """Keep the request; answer when told."""
        answer = await super().record(request)
        await self.let_go.wait()
        return answer


@dataclass
class Full:
    """A sidecar whose queue is full, and where it sends."""

    service: Service
    destination: Destination
    grpc: int
    http: int

    def counts(self, what):
        """A count of the receiver's, by signal."""
        value = self.service.host.metrics.value
        return {signal: value(f"otelcol_receiver_{what}_{SCHEMAS[signal].items}") for signal in Signal}


@contextlib.asynccontextmanager
async def full_queue():
    """The whole pipeline with one request on its way and one that waits, which is as many as fit."""
    ports = {"grpc": find_free_port(), "http": find_free_port()}
    async with Destination() as destination:
        registry = Registry()
        text = DOCUMENT.format(target=destination.address, **ports)
        service = Service(resolve(load([f"yaml:{text}"]), registry.settings_of), registry)
        await service.start()
        try:
            await send(f"127.0.0.1:{ports['grpc']}", BEING_SENT)
            await destination.wait_for_requests(1)
            await send(f"127.0.0.1:{ports['grpc']}", WAITING)
            yield Full(service, destination, **ports)
        finally:
            destination.let_go.set()
            await service.stop()


async def all_is_delivered(full, *applications):
    """Let the destination go once something of every signal has been refused, and wait for all that is to arrive."""
    running = asyncio.gather(*applications)
    await until(lambda: all(full.counts("refused").values()))
    assert len(full.destination.requests) == 1
    full.destination.let_go.set()
    await running
    await until(lambda: full.destination.items == full.counts("accepted"))
    logs_that_arrived = [request.batch for request in full.destination.requests if request.signal is Signal.LOGS]
    assert set(records(BEING_SENT, WAITING)) <= set(records(*logs_that_arrived))


def say_spans(exporter):
    """Three of them."""
    with tracing(exporter) as tracer:
        for number in range(3):
            tracer.start_span(f"span {number}").end()


def say_logs(exporter):
    """Three records."""
    with logging_to(exporter) as logger:
        for number in range(3):
            logger.emit(body=f"record {number}")


def say_metrics(exporter):
    """Three metrics."""
    with metering(exporter) as meter:
        for number in range(3):
            meter.create_counter(f"metric_{number}").add(1)


@pytest.mark.parametrize("protocol", ["http/protobuf", "http/json", "grpc"])
async def test_python_applications_lose_nothing_to_a_full_queue(protocol):
    """They wait as long as they were told, or longer each time, and send the same again."""
    applications = {Signal.TRACES: say_spans, Signal.METRICS: say_metrics, Signal.LOGS: say_logs}
    async with full_queue() as full:
        exporters = {signal: exporter_to(full, protocol, signal) for signal in applications}
        await all_is_delivered(
            full, *(asyncio.to_thread(say, exporters[signal]) for signal, say in applications.items())
        )
        assert full.destination.items == {Signal.TRACES: 3, Signal.METRICS: 3, Signal.LOGS: 5}


@pytest.mark.parametrize("protocol", ["http", "proto"])
async def test_node_applications_lose_nothing_to_a_full_queue(protocol):
    """The same; over gRPC they would not come again, whatever they were told."""
    async with full_queue() as full, node("client.mjs", protocol, f"http://127.0.0.1:{full.http}") as program:
        await all_is_delivered(full, program.wait())
        assert program.output == ""
        assert full.destination.items == {Signal.TRACES: 2, Signal.METRICS: 2, Signal.LOGS: 3}
