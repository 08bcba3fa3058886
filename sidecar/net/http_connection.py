"""The connections of an HTTP server: how many, and how long one may take to say what it wants."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import StreamReader, web

from sidecar.errors import DeliveryError, Permanent, Retryable
from sidecar.net.shared import LAST_WORDS
from sidecar.net.status import http_answer

_LOGGER: Final = logging.getLogger("sidecar.net.http")
# aiohttp has no word for "never"; ten years are enough.
_NEVER: Final = 10 * 365 * 86400.0
_FULL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Type: application/json\r\n"
    b'Content-Length: 45\r\nConnection: close\r\n\r\n{"code":14,"message":"too many connections"}\n'
)


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Seconds that a request's head and the wait for it may take, and the number of connections. 0: no limit."""

    head: float = 30.0
    idle: float = 300.0
    count: int = 1024


class Connection(web.RequestHandler):
    """One connection. Knows since when it waits for the rest of a request's head."""

    __slots__ = ("_newest_body", "head_since")

    def __init__(self, connections: Connections, **options: Any) -> None:
        super().__init__(connections, **options)
        self.head_since = 0.0
        self._newest_body: StreamReader | None = None

    def data_received(self, data: bytes) -> None:
        """Take bytes in. Where they begin a request's head and don't complete it, the clock runs.

        It runs also where the request before is not quite done: the client may know its answer sooner than we do.
        """
        heads, body = self._request_count, self._newest_body
        is_body = body is not None and not body.is_eof()
        super().data_received(data)
        is_head = self._request_count > heads
        if is_head:
            self._newest_body = self._messages[-1][1]
        if is_head or is_body:
            self.head_since = 0.0
        elif not self.head_since and data:
            self.head_since = self._loop.time()

    @property
    def is_idle(self) -> bool:
        """Whether it waits for a request of which nothing has come yet."""
        return self.awaits_request and not self.head_since

    @property
    def awaits_request(self) -> bool:
        """Whether it is serving none."""
        # Without a waiter a request is being served, or the connection is so new that its task has not begun.
        waiter = self._waiter
        return not self._request_count if waiter is None else not waiter.done()

    def connection_lost(self, exc: BaseException | None) -> None:
        """End. The library goes on reading what a refused client sends, also when nothing can come any more."""
        task = self._task_handler
        super().connection_lost(exc)
        if task is not None and not self._request_in_progress:
            task.cancel()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what is not HTTP: 400, without a traceback in the log for every stray byte on the port."""
        if status >= 500:
            # A mistake of ours outside the handlers, whose exceptions never get here. It may pass later.
            _LOGGER.error("a request from %s failed", request.remote, exc_info=exc)
            error: DeliveryError = Retryable("internal error; the sidecar's log says more", reason="internal")
        else:
            _LOGGER.debug("not an HTTP request from %s: %s", request.remote, message)
            error = Permanent(f"not an HTTP request: {message}")
        response = http_answer(error, request)
        response.force_close()
        return response


class Connections(web.Server):
    """Makes and holds the connections."""

    def __init__(self, handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]) -> None:
        super().__init__(handler)
        self.limits = ConnectionLimits()
        self._sweep: asyncio.TimerHandle | None = None

    def __call__(self) -> Connection:
        """A protocol for a new connection, under today's limits."""
        return Connection(
            self,
            loop=self._loop,
            access_log=None,
            logger=_LOGGER,
            auto_decompress=False,  # bounded decompression is ours
            keepalive_timeout=self.limits.idle or _NEVER,
            # How long to read what a refused client still sends, so that it gets to see its answer.
            lingering_time=2.0,
            max_field_size=16 * 1024,
        )

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        """Admit a connection. Where there are too many, the oldest idle one makes room, or the new one is refused."""
        if self.limits.count and len(self._connections) >= self.limits.count:
            idle = next((one for one in self._connections if isinstance(one, Connection) and one.is_idle), None)
            if idle is not None:
                idle.force_close()
                self._connections.pop(idle, None)
            else:
                transport.write(_FULL)
                transport.close()
        super().connection_made(handler, transport)
        if self._sweep is None and self.limits.head:
            self._sweep = self._loop.call_later(self.limits.head / 4, self._close_slow)

    def _close_slow(self) -> None:
        """Close the connections whose request's head takes too long. Runs while there are connections."""
        self._sweep = None
        limit = self.limits.head
        if not limit or not self._connections:
            return
        now = self._loop.time()
        for connection in list(self._connections):
            if not isinstance(connection, Connection) or not connection.head_since:
                continue
            if connection.awaits_request and now - connection.head_since > limit:
                connection.force_close()
        self._sweep = self._loop.call_later(limit / 4, self._close_slow)

    async def close(self) -> None:
        """Close the idle connections at once, the others when their request is answered or their time is up."""
        await asyncio.sleep(0)  # connections that were accepted a moment ago get to see their request
        self.pre_shutdown()
        await self.shutdown(LAST_WORDS)
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
