"""What stands behind the contenders: a process that takes everything over gRPC and HTTP, and counts items cheaply.

It looks for a mark in the bytes instead of decoding them, so that it costs little and serves every protocol. Without
counting it is the floor: the least that a gRPC server in Python does with a request.
"""

from __future__ import annotations

import asyncio
import gzip
import multiprocessing
import time
from typing import Self

import uvloop
import zstandard
from support.peers import GrpcServer, HttpAnswer, HttpServer

from bench._requests import MARK

QUIET = 0.3  # seconds without an item after which no more is expected


class Sink:
    """The process, seen from outside. Used as `async with Sink() as sink`."""

    def __init__(self, *, counting: bool = True) -> None:
        context = multiprocessing.get_context("spawn")
        self._ports, theirs = context.Pipe()
        self._count = context.Value("Q", 0, lock=False)
        count = self._count if counting else None
        self._process = context.Process(target=serve, args=(theirs, count), daemon=True)

    async def __aenter__(self) -> Self:
        self._process.start()
        self.grpc_port, self.http_port = await asyncio.to_thread(self._ports.recv)
        return self

    async def __aexit__(self, *_) -> None:
        self._process.kill()
        await asyncio.to_thread(self._process.join)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def count(self) -> int:
        """The items that have arrived so far."""
        return self._count.value

    async def wait_for(self, count: int, within: float = 10) -> None:
        """Return when so many items have arrived.

        Raises:
            TimeoutError: they have not in time.
        """
        async with asyncio.timeout(within):
            while self.count < count:  # noqa: ASYNC110 (another process counts)
                await asyncio.sleep(0.005)

    async def settle(self) -> int:
        """Wait until nothing arrives any more; the count then."""
        before, since = self.count, time.monotonic()
        while time.monotonic() - since < QUIET:
            await asyncio.sleep(0.02)
            if self.count != before:
                before, since = self.count, time.monotonic()
        return before


class Counting:
    """Takes everything, and keeps only the number of items."""

    def __init__(self, count) -> None:
        super().__init__()
        self._total = count

    async def record(self, request):
        """Count a request."""
        if self._total is not None:
            self._total.value += decompressed(request).count(MARK.encode())
        return HttpAnswer(202, b"{}") if request.path.startswith("/api/") else b""


class CountingGrpcServer(Counting, GrpcServer):
    """Over gRPC."""


class CountingHttpServer(Counting, HttpServer):
    """Over HTTP: OTLP, and what stands in for Datadog's intakes."""


def decompressed(request) -> bytes:
    encoding = request.headers.get("content-encoding")
    if encoding == "gzip":
        return gzip.decompress(request.body)
    if encoding == "zstd":
        return zstandard.decompress(request.body)
    return request.body


def serve(ports, count) -> None:
    async def main() -> None:
        async with CountingGrpcServer(count) as over_grpc, CountingHttpServer(count) as over_http:
            ports.send((over_grpc.port, over_http.port))
            await asyncio.Event().wait()

    uvloop.run(main())
