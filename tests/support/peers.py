"""The other side: OTLP servers that record what arrives and answer as told, and Rotel, another collector."""

import asyncio
import contextlib
from collections import Counter, deque
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import grpc
import grpc.aio
import pytest
from aiohttp import web
from support.processes import ManagedProcess, find_free_port

from sidecar import SCHEMAS, Batch, BatchContext, Signal

PATIENCE = 20.0
_BY_METHOD = {f"/{schema.grpc_service}/Export": signal for signal, schema in SCHEMAS.items()}
_BY_PATH = {schema.http_path: signal for signal, schema in SCHEMAS.items()}


@dataclass
class Request:
    """One export request as it arrived. `body`: after gRPC's decompression, before HTTP's."""

    signal: Signal | None
    body: bytes
    headers: dict[str, str]
    path: str
    connection: str

    @property
    def batch(self):
        """The request, where it is protobuf without compression."""
        return Batch(self.signal, self.body, context=BatchContext())


@dataclass
class GrpcStatus:
    """An answer: this status, with these trailers."""

    code: grpc.StatusCode
    message: str = ""
    trailers: tuple = ()


@dataclass
class HttpAnswer:
    """An answer: this status, body and headers."""

    status: int
    body: bytes = b""
    headers: dict = field(default_factory=dict)


class Reset:
    """Not an answer: the connection is broken."""


class Silence:
    """No answer until the client goes away."""


class RecordingServer:
    """Records requests. Answers each with the next of `answers`, or accepts it when there is none.

    Used as `async with GrpcServer() as server`.
    """

    def __init__(self, port=0):
        self.port = port
        self.requests = []
        self.answers = deque()
        self._arrived = asyncio.Condition()

    async def __aenter__(self):
        """Listen on 127.0.0.1."""
        await self.start()
        return self

    async def __aexit__(self, *_):
        """Let go of the port."""
        await self.stop()

    @property
    def address(self):
        """`127.0.0.1:port`."""
        return f"127.0.0.1:{self.port}"

    @property
    def items(self):
        """The number of items that have arrived, by signal."""
        counts = Counter()
        for request in self.requests:
            counts[request.signal] += len(request.batch)
        return counts

    async def wait_for_requests(self, count, within=PATIENCE):
        """The requests, as soon as there are that many."""
        await self._wait(lambda: len(self.requests) >= count, f"{count} requests", within)
        return self.requests

    async def wait_for_items(self, count, signal=Signal.LOGS, within=PATIENCE):
        """The batches of a signal, as soon as they hold that many items."""
        await self._wait(lambda: self.items[signal] >= count, f"{count} {SCHEMAS[signal].items}", within)
        return [request.batch for request in self.requests if request.signal is signal]

    async def record(self, request):
        """Keep a request, and give the answer for it."""
        async with self._arrived:
            self.requests.append(request)
            self._arrived.notify_all()
        return self.answers.popleft() if self.answers else b""

    async def _wait(self, condition, what, within):
        try:
            async with asyncio.timeout(within), self._arrived:
                await self._arrived.wait_for(condition)
        except TimeoutError:
            raise AssertionError(f"{what} have not arrived within {within} s; {self.requests}") from None


class GrpcServer(RecordingServer, grpc.GenericRpcHandler):
    """An OTLP/gRPC server. Answers: bytes, GrpcStatus, Silence."""

    def __init__(self, port=0, credentials=None, max_message=-1):
        super().__init__(port)
        self._credentials = credentials
        self._max_message = max_message
        self._server = None

    async def start(self):
        """Listen."""
        options = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", self._max_message)]
        self._server = grpc.aio.server(options=options)
        self._server.add_generic_rpc_handlers((self,))
        if self._credentials:
            self.port = self._server.add_secure_port(self.address, self._credentials)
        else:
            self.port = self._server.add_insecure_port(self.address)
        await self._server.start()

    async def stop(self):
        """Stop at once, calls under way included."""
        await self._server.stop(None)

    def service(self, details):
        """The handler of a method."""
        if details.method not in _BY_METHOD:
            return None

        async def export(body, context):
            headers = dict(context.invocation_metadata())
            path = details.method
            return await self._answer(Request(_BY_METHOD[path], body, headers, path, context.peer()), context)

        return grpc.unary_unary_rpc_method_handler(export)

    async def _answer(self, request, context):
        answer = await self.record(request)
        if isinstance(answer, Silence):
            await asyncio.Event().wait()
        if isinstance(answer, GrpcStatus):
            await context.abort(answer.code, answer.message, answer.trailers)
        return answer


class HttpServer(RecordingServer):
    """An OTLP/HTTP server. Answers: bytes, HttpAnswer, Reset, Silence."""

    def __init__(self, port=0, ssl_context=None):
        super().__init__(port)
        self._ssl_context = ssl_context
        self._runner = None

    @property
    def url(self):
        """The base URL."""
        return f"{'https' if self._ssl_context else 'http'}://{self.address}"

    async def start(self):
        """Listen."""
        server = web.Server(self._handle, auto_decompress=False, handler_cancellation=True)
        self._runner = web.ServerRunner(server, shutdown_timeout=0.01)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=self._ssl_context)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self):
        """Stop at once, requests under way included."""
        await self._runner.cleanup()

    async def _handle(self, request):
        headers = {name.lower(): value for name, value in request.headers.items()}
        connection = str(request.transport.get_extra_info("peername"))
        body = await request.read()
        answer = await self.record(Request(_BY_PATH.get(request.path), body, headers, request.path, connection))
        if isinstance(answer, Silence):
            await asyncio.Event().wait()
        if isinstance(answer, Reset):
            request.transport.abort()
            return web.Response()
        if isinstance(answer, HttpAnswer):
            return web.Response(status=answer.status, body=answer.body, headers=answer.headers)
        return web.Response(body=answer, content_type="application/x-protobuf")


class Relay:
    """A stretch of network between a client and a server: counts what passes, and can break.

    Used as `async with Relay(port) as relay`.
    """

    def __init__(self, port):
        self.bytes_sent = 0
        self.connections = 0
        self._target = port
        self._server = None
        self._writers = set()

    async def __aenter__(self):
        """Listen on 127.0.0.1."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_):
        """Let go of the port and of all connections."""
        self._server.close()
        self.break_connections()
        await self._server.wait_closed()

    @property
    def address(self):
        """`127.0.0.1:port`."""
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def break_connections(self):
        """Reset every connection."""
        for writer in self._writers:
            writer.transport.abort()

    async def _connected(self, reader, writer):
        self.connections += 1
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers |= {writer, there_writer}
        await asyncio.gather(self._pump(reader, there_writer, counts=True), self._pump(there_reader, writer))

    async def _pump(self, reader, writer, *, counts=False):
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                self.bytes_sent += len(data) if counts else 0
                writer.write(data)
                await writer.drain()
        writer.transport.abort()


def rotel_agent():
    """The path of Rotel's program; skips the test where it is not installed."""
    spec = find_spec("rotel")
    path = Path(spec.origin).with_name("rotel-agent") if spec and spec.origin else None
    if path is None or not path.exists():
        pytest.skip("rotel is not installed here (it is built for Linux on x86-64)")
    return path


class Rotel(ManagedProcess):
    """Rotel, receiving OTLP on both ports and sending it on.

    Args:
        folder: for its log and pid files.
        exporter: the flags of its exporter; by default it drops everything.
    """

    def __init__(self, folder, *exporter):
        self.grpc_port = find_free_port()
        self.http_port = find_free_port()
        super().__init__(
            rotel_agent(),
            "start",
            *("--pid-file", Path(folder) / "rotel.pid"),
            *("--log-file", Path(folder) / "rotel.log"),
            *("--otlp-grpc-endpoint", f"127.0.0.1:{self.grpc_port}"),
            *("--otlp-http-endpoint", f"127.0.0.1:{self.http_port}"),
            *("--otlp-grpc-max-recv-msg-size-mib", "64"),
            *("--batch-timeout", "50ms"),
            *(exporter or ("--exporter", "blackhole")),
        )

    @classmethod
    def to(cls, endpoint, folder, protocol="grpc", compression="gzip"):
        """One that sends everything on to another OTLP server. Its 0.0.1 compresses whatever it is told."""
        return cls(
            folder,
            *("--exporter", "otlp"),
            *("--otlp-exporter-endpoint", endpoint),
            *("--otlp-exporter-protocol", protocol),
            *("--otlp-exporter-compression", compression),
        )

    async def wait_until_ready(self):
        """Return when both ports answer."""
        await self.wait_for_port(self.grpc_port)
        await self.wait_for_port(self.http_port)


async def send(address, *batches):
    """Export batches to an OTLP/gRPC server, one after another."""
    async with grpc.aio.insecure_channel(address) as channel:
        for batch in batches:
            export = channel.unary_unary(f"/{SCHEMAS[batch.signal].grpc_service}/Export")
            await export(batch.encode(), timeout=PATIENCE)


def records(*batches):
    """The log records, spans or metrics of batches, as bytes, sorted: whatever order and envelopes they came in."""
    return sorted(
        record.SerializeToString(deterministic=True)
        for batch in batches
        for scope in batch.scopes()
        for record in getattr(scope, SCHEMAS[batch.signal].records)
    )


@contextlib.asynccontextmanager
async def running(*components):
    """Start components that tests have made by hand, and stop them in reverse."""
    async with contextlib.AsyncExitStack() as stack:
        for component in components:
            stack.push_async_callback(component.stop)
            await component.start()
        yield components[0] if len(components) == 1 else components
