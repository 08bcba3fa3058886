"""One host's path: OTLP logs in over gRPC, OTLP out, processor time per record, beside Rotel's for the same.

1,000 records of 8 attributes per request; a server behind accepts everything. Rotel decodes, encodes, filters nothing.
It compresses whatever it is told, so that there is nothing to compare with where the sidecar does not.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import itertools
import statistics
import tempfile

import grpc.aio
from support.peers import GrpcServer, HttpServer, Rotel
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
  otlp_http: {{endpoint: "http://{sink}", compression: {compression}}}
service:
  telemetry: {{metrics: {{level: none}}}}
  pipelines:
    logs: {{receivers: [otlp], processors: [{processors}], exporters: [{exporter}]}}
"""


async def rows():
    outs = (("otlp", "gzip"), ("otlp_http", "gzip"), ("otlp", "none"))
    for processors, (exporter, compression) in itertools.product(("", "allowlist"), outs):
        ours, theirs = [], []
        for _ in range(ROUNDS):
            ours.append(await microseconds_per_record(exporter, sidecar(exporter, compression, processors)))
            if compression == "gzip":
                theirs.append(await microseconds_per_record(exporter, rotel(exporter)))
        ratios = [mine / other for mine, other in zip(ours, theirs, strict=False)]
        yield {
            "case": f"{processors or 'pass-through'}, {exporter} {compression}",
            "sidecar µs": statistics.median(ours),
            "rotel µs": statistics.median(theirs) if theirs else "",
            "ratio": statistics.median(ratios) if ratios else "",
            "aim": "0.5" if ratios else "",
        }


def sidecar(exporter: str, compression: str, processors: str):
    @contextlib.asynccontextmanager
    async def start(folder: str, sink: str):
        port = find_free_port()
        document = DOCUMENT.format(
            port=port, sink=sink, exporter=exporter, compression=compression, processors=processors
        )
        async with SidecarProcess(document, folder) as process:
            yield process, port

    return start


def rotel(exporter: str):
    @contextlib.asynccontextmanager
    async def start(folder: str, sink: str):
        protocol = "http" if exporter == "otlp_http" else "grpc"
        async with Rotel.to(f"http://{sink}", folder, protocol) as process:
            yield process, process.grpc_port

    return start


class Counting:
    """Takes everything, and keeps only the number of records."""

    def __init__(self):
        super().__init__()
        self.count = 0
        self._changed = asyncio.Event()

    async def record(self, request):
        """Count a request."""
        if request.headers.get("content-encoding") == "gzip":
            request.body = gzip.decompress(request.body)
        self.count += len(request.batch)
        self._changed.set()
        return b""

    async def wait_for(self, count: int) -> None:
        """Return when that many records have arrived."""
        async with asyncio.timeout(60):
            while self.count < count:
                self._changed.clear()
                await self._changed.wait()


class CountingGrpcServer(Counting, GrpcServer):
    """Over gRPC."""


class CountingHttpServer(Counting, HttpServer):
    """Over HTTP."""


SINKS = {"otlp": CountingGrpcServer, "otlp_http": CountingHttpServer}


async def microseconds_per_record(exporter: str, start) -> float:
    """The processor time of the program under test, from the first request until everything has come out."""
    body = prebuilt_logs()
    with tempfile.TemporaryDirectory() as folder:
        async with SINKS[exporter]() as sink, start(folder, sink.address) as (process, port):
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
