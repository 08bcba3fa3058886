"""One host's path: OTLP logs in over gRPC, OTLP out over gRPC, processor time per record, beside Rotel's for the same.

1,000 records of 8 attributes per request; a server behind accepts everything. Rotel decodes, encodes, filters nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import statistics
import tempfile

import grpc.aio
from support.peers import GrpcServer, Rotel
from support.processes import SidecarProcess, find_free_port

from sidecar import SCHEMAS, Signal

ROUNDS = 3
REQUESTS = 250
RECORDS = 1000
SENDERS = 4
EXPORT = f"/{SCHEMAS[Signal.LOGS].grpc_service}/Export"

DOCUMENT = """
receivers:
  otlp: {{protocols: {{grpc: {{endpoint: "127.0.0.1:{port}"}}}}}}
processors:
  allowlist:
exporters:
  otlp: {{endpoint: "http://{sink}", compression: {compression}}}
service:
  telemetry: {{metrics: {{level: none}}}}
  pipelines:
    logs: {{receivers: [otlp], processors: [{processors}], exporters: [otlp]}}
"""


async def rows():
    for compression, processors in itertools.product(("none", "gzip"), ("", "allowlist")):
        ours, theirs, ratios = [], [], []
        for _ in range(ROUNDS):
            ours.append(await microseconds_per_record(sidecar(compression, processors)))
            theirs.append(await microseconds_per_record(rotel(compression)))
            ratios.append(ours[-1] / theirs[-1])
        yield {
            "case": f"{processors or 'pass-through'}, {compression} out",
            "sidecar µs": statistics.median(ours),
            "rotel µs": statistics.median(theirs),
            "ratio": statistics.median(ratios),
            "aim": "0.5",
        }


def sidecar(compression: str, processors: str):
    @contextlib.asynccontextmanager
    async def start(folder: str, sink: GrpcServer):
        port = find_free_port()
        document = DOCUMENT.format(port=port, sink=sink.address, compression=compression, processors=processors)
        async with SidecarProcess(document, folder) as process:
            yield process, port

    return start


def rotel(compression: str):
    @contextlib.asynccontextmanager
    async def start(folder: str, sink: GrpcServer):
        async with Rotel.to(f"http://{sink.address}", folder, "grpc", compression) as process:
            yield process, process.grpc_port

    return start


class CountingServer(GrpcServer):
    """Takes everything, and keeps only the number of records."""

    def __init__(self):
        super().__init__()
        self.count = 0
        self._changed = asyncio.Event()

    async def record(self, request):
        """Count a request."""
        self.count += len(request.batch)
        self._changed.set()
        return b""

    async def wait_for(self, count: int) -> None:
        """Return when that many records have arrived."""
        async with asyncio.timeout(60):
            while self.count < count:
                self._changed.clear()
                await self._changed.wait()


async def microseconds_per_record(start) -> float:
    """The processor time of the program under test, from the first request until everything has come out."""
    body = prebuilt_logs()
    with tempfile.TemporaryDirectory() as folder:
        async with CountingServer() as sink, start(folder, sink) as (process, port):
            await feed(port, body, 10)
            await sink.wait_for(10 * RECORDS)
            before = process.cpu_seconds()
            await feed(port, body, REQUESTS)
            await sink.wait_for((10 + REQUESTS) * RECORDS)
            return (process.cpu_seconds() - before) / (REQUESTS * RECORDS) * 1e6


async def feed(port: int, body: bytes, requests: int) -> None:
    waiting = itertools.repeat(None, requests)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        export = channel.unary_unary(EXPORT)

        async def send() -> None:
            for _ in waiting:
                await export(body, timeout=60, wait_for_ready=True)

        await asyncio.gather(*(send() for _ in range(SENDERS)))


def prebuilt_logs() -> bytes:
    request = SCHEMAS[Signal.LOGS].request()
    resource = request.resource_logs.add()
    resource.resource.attributes.add(key="service.name").value.string_value = "checkout"
    scope = resource.scope_logs.add()
    for number in range(RECORDS):
        record = scope.log_records.add(
            time_unix_nano=1_700_000_000_000_000_000 + number * 1_000_003,
            severity_number=9,
            severity_text="INFO",
            trace_id=(number // 10 + 1).to_bytes(16, "big"),
            span_id=(number + 1).to_bytes(8, "big"),
        )
        record.body.string_value = f"GET /api/v1/things/{number * 7919 % 100_003} took {number * 31 % 977} ms"
        for key, value in {
            "http.request.method": "GET",
            "http.route": "/api/v1/things/{id}",
            "url.scheme": "https",
            "server.address": "things.internal",
            "network.peer.address": f"10.0.{number % 256}.{number * 7 % 256}",
            "thread.name": f"worker-{number % 16}",
            "app.cart": f"c{number * 104_729 % 1_000_003}",
        }.items():
            record.attributes.add(key=key).value.string_value = value
        record.attributes.add(key="http.response.status_code").value.int_value = 200
    return request.SerializeToString()
