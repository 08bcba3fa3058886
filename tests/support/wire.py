"""HTTP/1.1 by hand, for what no client library would send."""

import asyncio
import contextlib
from dataclasses import dataclass, field

PATIENCE = 5.0


@dataclass
class Answer:
    """A response. Header names are in lower case."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


class Wire:
    """A connection to an HTTP server."""

    def __init__(self, reader, writer):
        self._reader = reader
        self._writer = writer

    async def send(self, *parts):
        """Write each part by itself."""
        for part in parts:
            self._writer.write(part.encode() if isinstance(part, str) else part)
            await self._writer.drain()

    def finish(self):
        """Say that nothing more will come."""
        with contextlib.suppress(OSError):
            self._writer.write_eof()

    async def answer(self, *, body=True):
        """The next response."""
        async with asyncio.timeout(PATIENCE):
            status = int((await self._reader.readline()).split()[1])
            headers = {}
            while line := (await self._reader.readline()).strip():
                name, _, value = line.decode().partition(":")
                headers[name.lower()] = value.strip()
            length = int(headers.get("content-length", 0)) if body else 0
            return Answer(status, headers, await self._reader.readexactly(length))

    async def rest(self):
        """What comes until the server closes the connection."""
        chunks = []
        async with asyncio.timeout(PATIENCE):
            with contextlib.suppress(ConnectionError):
                while chunk := await self._reader.read(65536):
                    chunks.append(chunk)
        return b"".join(chunks)

    async def close(self):
        """Hang up."""
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()


@contextlib.asynccontextmanager
async def connect(port=None, *, host="127.0.0.1", path=None, tls=None):
    """A connection that is closed at the end."""
    if path is not None:
        wire = Wire(*await asyncio.open_unix_connection(str(path)))
    else:
        wire = Wire(*await asyncio.open_connection(host, port, ssl=tls, server_hostname="localhost" if tls else None))
    try:
        yield wire
    finally:
        await wire.close()


def request(method, path, body=b"", version="1.1", **headers):
    """A request with its length; `_` in a header's name stands for a dash."""
    lines = [f"{method} {path} HTTP/{version}", "Host: localhost"]
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    if "Content-Length" not in headers and "Transfer-Encoding" not in headers:
        headers["Content-Length"] = len(body)
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def exchange(port, method, path, body=b"", **headers):
    """One request on a connection of its own."""
    async with connect(port) as wire:
        await wire.send(request(method, path, body, **headers))
        return await wire.answer(body=method != "HEAD")


def chunked(*parts):
    """A chunked body."""
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


@contextlib.asynccontextmanager
async def opened(*leases):
    """Leases that are open inside."""
    try:
        for lease in leases:
            await lease.open()
        yield leases[0] if len(leases) == 1 else leases
    finally:
        for lease in leases:
            await lease.close()


async def until(condition):
    """Return when the condition holds, which other tasks bring about."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 (the condition is another program's or a library's)
            await asyncio.sleep(0.005)
