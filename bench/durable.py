"""What durability costs: CPU per record of the same path with a queue in memory and with one on disk, in one run.

OTLP logs in and out over gRPC, 1,000 records of 8 attributes per request, `fsync: interval`, four senders. On disk,
senders are answered after the commit. The aim is a ratio of at most 1.5.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import tempfile
from pathlib import Path

import grpc.aio
from support.delivery import EXPORT
from support.otlp import logs_request
from support.peers import GrpcServer
from support.processes import SidecarProcess, find_free_port

ROUNDS = 5
REQUESTS = 300
RECORDS = 1000
SENDERS = 4

DOCUMENT = """
receivers:
  otlp: {{protocols: {{grpc: {{endpoint: "127.0.0.1:{port}"}}}}}}
extensions:
  file_storage: {{directory: {folder}/store, create_directory: true, fsync: interval}}
exporters:
  otlp: {{endpoint: "http://{sink}", compression: none, sending_queue: {{queue_size: 1000000{storage}}}}}
service:
  extensions: [file_storage]
  telemetry: {{metrics: {{level: none}}}}
  pipelines:
    logs: {{receivers: [otlp], exporters: [otlp]}}
"""


class ByteCounter(GrpcServer):
    """Takes everything, and counts bytes: decoding here would cost as much as what is measured."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0
        self.changed = asyncio.Condition()

    async def record(self, request):
        """Count a request."""
        async with self.changed:
            self.bytes += len(request.body)
            self.changed.notify_all()
        return b""


async def rows():
    memory, disk, ratios = [], [], []
    for _ in range(ROUNDS):
        memory.append(await microseconds_per_record(""))
        disk.append(await microseconds_per_record(", storage: file_storage"))
        ratios.append(disk[-1] / memory[-1])
    yield {
        "queue": "memory against disk",
        "memory µs": statistics.median(memory),
        "disk µs": statistics.median(disk),
        "ratio": statistics.median(ratios),
        "aim": "1.5",
    }


async def microseconds_per_record(storage: str) -> float:
    """The sidecar's CPU time, from the first request to the last delivery."""
    body = request()
    with tempfile.TemporaryDirectory() as folder:
        port = find_free_port()
        async with ByteCounter() as sink:
            document = DOCUMENT.format(port=port, folder=folder, sink=sink.address, storage=storage)
            async with SidecarProcess(document, Path(folder)) as process:
                await send(port, body, 20, sink)  # whatever is only slow the first time
                before = process.cpu_seconds()
                await send(port, body, REQUESTS, sink)
                return (process.cpu_seconds() - before) / (REQUESTS * RECORDS) * 1e6


async def send(port: int, body: bytes, count: int, sink: ByteCounter) -> None:
    """Send so many requests, and wait until all have arrived."""
    wanted = sink.bytes + count * len(body)
    numbers = itertools.count()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        export = channel.unary_unary(EXPORT)

        async def sender() -> None:
            while next(numbers) < count:
                await export(body, timeout=30, wait_for_ready=True)

        await asyncio.gather(*(sender() for _ in range(SENDERS)))
    async with sink.changed:
        await sink.changed.wait_for(lambda: sink.bytes >= wanted)


def request() -> bytes:
    """1,000 log records as an ordinary service writes them."""
    return logs_request(
        RECORDS,
        body="order accepted",
        http__request__method="GET",
        url__path="/orders/1234",
        url__scheme="https",
        server__address="shop.example.com",
        user_agent__original="Mozilla/5.0 (X11; Linux x86_64)",
        http__response__status_code=200,
        app__order__total=12.5,
        app__order__first=True,
    ).SerializeToString()
