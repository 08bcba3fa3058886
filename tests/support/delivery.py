"""Senders that behave as SDKs do, number what they send and remember what was acknowledged; and a sink that counts."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import random
from collections import Counter
from dataclasses import dataclass, field

import aiohttp
import grpc.aio
from support.otlp import bodies, logs_request
from support.peers import GrpcServer, GrpcStatus, HttpServer, Reset
from support.processes import find_free_port

from sidecar import SCHEMAS, Signal

EXPORT = f"/{SCHEMAS[Signal.LOGS].grpc_service}/Export"
RETRYABLE = {429, 502, 503, 504}


def amount(name: str, small: int, ci: int) -> int:
    """How much of something: little by default, more in CI, or as an environment variable says."""
    return int(os.environ.get(name, ci if os.environ.get("CI") else small))


def seeds(name: str, each: int, small: int, ci: int) -> range:
    """As many seeds as it takes to do something so often (see `amount`), `each` times with every seed."""
    return range(-(-amount(name, small, ci) // each))


@dataclass
class Ports:
    """Where a sidecar under test listens."""

    grpc: int = field(default_factory=find_free_port)
    http: int = field(default_factory=find_free_port)


class Refused(Exception):
    """A request that will never pass."""


class Sender:
    """Sends numbered log records, one request after another, each until it is acknowledged.

    Attributes:
        headers: sent with each request.
        acknowledged: the texts that the sidecar has taken, in order.
        repeated: the texts of requests that were sent more than once, since no answer came.
        refusals: what the sidecar said when it told to come again.
        failures: what went wrong when there was no answer.
    """

    def __init__(self, name: str, ports: Ports, *, size: int = 5, padding: int = 0, pause: float = 0.0) -> None:
        self.name = name
        self.headers: dict[str, str] = {}
        self.acknowledged: list[str] = []
        self.repeated: set[str] = set()
        self.refusals: list[str] = []
        self.failures: list[str] = []
        self._ports = ports
        self._size = size
        # Random, since the storage compresses.
        self._pad = base64.b64encode(random.Random(name).randbytes(padding)).decode()[:padding]
        self._pause = pause
        self._number = 0
        self._is_over = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Send until `stop`."""
        self._task = asyncio.create_task(self._run(), name=f"sender {self.name}")

    async def stop(self) -> None:
        """Give up the request that is under way: it may have arrived or not."""
        if self._task is not None:
            if self._task.done():
                self._task.result()
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def finish(self) -> None:
        """Stop once the request under way has been acknowledged."""
        self._is_over = True
        if self._task is not None:
            await self._task
            self._task = None

    async def connect(self, stack: contextlib.AsyncExitStack) -> None:
        """Open what is kept open over all requests."""

    async def post(self, body: bytes) -> None:
        """Send once. Raises Refused, OSError and its like, or TimeoutError; `Again` where the sidecar says so."""
        raise NotImplementedError

    async def _run(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            await self.connect(stack)
            while not self._is_over:
                request = logs_request(self._size, body=f"{self.name}-{self._number:06}", pad=self._pad)
                texts = [record.body.string_value for record in request.resource_logs[0].scope_logs[0].log_records]
                await self._deliver(request.SerializeToString(), texts)
                self._number += 1
                await asyncio.sleep(self._pause)

    async def _deliver(self, body: bytes, texts: list[str]) -> None:
        while True:
            try:
                await self.post(body)
            except Again as answer:
                self.refusals.append(str(answer))
                await asyncio.sleep(0.1)
            except (OSError, aiohttp.ClientError, TimeoutError) as error:
                self.failures.append(f"{type(error).__name__}: {error}")
                self.repeated.update(texts)
                await asyncio.sleep(0.02)
            else:
                self.acknowledged += texts
                return


class Again(Exception):
    """The sidecar has answered that the request may pass later."""


class HttpSender(Sender):
    """Over HTTP, on one connection for as long as it lasts."""

    async def connect(self, stack: contextlib.AsyncExitStack) -> None:
        timeout = aiohttp.ClientTimeout(total=10)
        self._session = await stack.enter_async_context(aiohttp.ClientSession(timeout=timeout))

    async def post(self, body: bytes) -> None:
        url = f"http://127.0.0.1:{self._ports.http}/v1/logs"
        headers = {"Content-Type": "application/x-protobuf", **self.headers}
        async with self._session.post(url, data=body, headers=headers) as response:
            text = await response.read()
            if response.status in RETRYABLE:
                assert "Retry-After" in response.headers
                raise Again(f"{response.status} {text!r}")
            if response.status != 200:
                raise Refused(f"{response.status} {text!r}")


class GrpcSender(Sender):
    """Over gRPC, on one channel."""

    async def connect(self, stack: contextlib.AsyncExitStack) -> None:
        options = [("grpc.initial_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 100)]
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{self._ports.grpc}", options=options)
        self._call = (await stack.enter_async_context(channel)).unary_unary(EXPORT)

    async def post(self, body: bytes) -> None:
        try:
            metadata = [(name.lower(), value) for name, value in self.headers.items()]
            await self._call(body, timeout=10, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            if any(key.startswith("google.rpc.retryinfo") for key, _ in error.trailing_metadata()):
                raise Again(error.details()) from None
            if error.code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}:
                raise ConnectionError(error.details()) from None
            raise Refused(repr(error)) from None


class CountingSink:
    """Counts every record that arrives, and notes in which order. Mixed in before a RecordingServer.

    Attributes:
        batches: the texts of each request that was accepted.
        is_down: whether everything is refused.
    """

    def __init__(self, *arguments, **settings) -> None:
        super().__init__(*arguments, **settings)
        self.batches: list[list[str]] = []
        self.is_down = False
        self.arrived: set[str] = set()

    async def record(self, request):
        """Count a request, unless the sink is down."""
        if self.is_down:
            return self.refusal
        texts = bodies(request.batch)
        async with self._arrived:
            self.batches.append(texts)
            self.arrived.update(texts)
            self._arrived.notify_all()
        return b""

    async def wait_for(self, texts, within=60.0):
        """Return when all of these have arrived."""
        wanted = set(texts)
        try:
            async with asyncio.timeout(within), self._arrived:
                await self._arrived.wait_for(lambda: wanted <= self.arrived)
        except TimeoutError:
            missing = sorted(wanted - self.arrived)
            raise AssertionError(f"{len(missing)} of {len(wanted)} have not arrived: {missing[:5]} …") from None

    def repeats(self, excused=frozenset()):
        """How many requests brought a record that had arrived before, those aside whose sender repeated them."""
        seen: set[str] = set()
        count = 0
        for batch in self.batches:
            count += any(text in seen and text not in excused for text in batch)
            seen.update(batch)
        return count

    def first_arrivals(self, sender):
        """The records of a sender in the order in which each arrived first."""
        texts = (text for batch in self.batches for text in batch if text.startswith(f"{sender}-"))
        return list(dict.fromkeys(texts))

    @property
    def times(self):
        """How often each record has arrived."""
        return Counter(text for batch in self.batches for text in batch)


class GrpcSink(CountingSink, GrpcServer):
    """Over gRPC."""

    refusal = GrpcStatus(grpc.StatusCode.UNAVAILABLE, "down")


class HttpSink(CountingSink, HttpServer):
    """Over HTTP."""

    refusal = Reset()
