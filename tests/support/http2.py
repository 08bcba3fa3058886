"""HTTP/2 by hand, for gRPC that no client library would send."""

import asyncio
import contextlib
from dataclasses import dataclass, field

import h2.config
import h2.connection
import h2.events

PATIENCE = 5.0


@dataclass
class Exchange:
    """What came back on one stream.

    Attributes:
        headers: one dictionary for each HEADERS frame: a response that is trailers only has one.
        data: the bodies of the DATA frames, joined.
        reset: the error code with which the server broke the stream.
        goaway: the error code with which it ended the connection, and what it said.
    """

    headers: list[dict[str, str]] = field(default_factory=list)
    data: bytes = b""
    reset: int | None = None
    goaway: tuple[int, bytes] | None = None

    @property
    def grpc_status(self):
        """The status as a number."""
        return int(self.headers[-1]["grpc-status"])


class Http2:
    """A connection to a gRPC server."""

    def __init__(self, reader, writer):
        config = h2.config.H2Configuration(
            client_side=True,
            header_encoding="utf-8",
            validate_outbound_headers=False,
            normalize_outbound_headers=False,
        )
        self.connection = h2.connection.H2Connection(config)
        self._reader = reader
        self._writer = writer

    async def start(self):
        """Send the preface."""
        self.connection.initiate_connection()
        await self._flush()

    async def call(self, path, body=b"", *, method="POST", remove=(), end=True, **headers):
        """One gRPC call with these bytes as its body, framed or not, and what comes of it."""
        fields = {
            ":method": method,
            ":scheme": "http",
            ":path": path,
            ":authority": "localhost",
            "content-type": "application/grpc",
            "te": "trailers",
        }
        fields |= {name.replace("_", "-"): value for name, value in headers.items()}
        stream = self.connection.get_next_available_stream_id()
        self.connection.send_headers(stream, [pair for pair in fields.items() if pair[0] not in remove])
        for start in range(0, len(body), 16384):
            self.connection.send_data(stream, body[start : start + 16384])
        if end:
            self.connection.end_stream(stream)
        await self._flush()
        return await self.read()

    async def ping(self, times, pause):
        """Ping without a call, and note what the server says to that."""
        got = Exchange()
        for _ in range(times):
            self.connection.ping(bytes(8))
            await self._flush()
            with contextlib.suppress(TimeoutError, ConnectionError):
                async with asyncio.timeout(pause):
                    await self._read_until_end(got)
            if got.goaway:
                break
        return got

    async def read(self):
        """Everything until a stream or the connection ends."""
        got = Exchange()
        async with asyncio.timeout(PATIENCE):
            await self._read_until_end(got)
        return got

    async def _read_until_end(self, got):
        while data := await self._reader.read(65536):
            ends = [self._take(event, got) for event in self.connection.receive_data(data)]
            await self._flush()
            if any(ends):
                return

    def _take(self, event, got):
        """Note an event; true where it ends the exchange."""
        if isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
            got.headers.append(dict(event.headers))
        elif isinstance(event, h2.events.DataReceived):
            got.data += event.data
        elif isinstance(event, h2.events.StreamReset):
            got.reset = int(event.error_code)
        elif isinstance(event, h2.events.ConnectionTerminated):
            got.goaway = (int(event.error_code), event.additional_data or b"")
        return isinstance(event, h2.events.StreamEnded | h2.events.StreamReset | h2.events.ConnectionTerminated)

    async def _flush(self):
        # What the server has said before it hung up is still to be read.
        with contextlib.suppress(ConnectionError, RuntimeError):
            self._writer.write(self.connection.data_to_send())
            await self._writer.drain()


@contextlib.asynccontextmanager
async def connect_http2(port):
    """A connection that is closed at the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    connection = Http2(reader, writer)
    try:
        await connection.start()
        yield connection
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def framed(message, *, compressed=False):
    """A gRPC message in its frame of five bytes."""
    return bytes([compressed]) + len(message).to_bytes(4, "big") + message
