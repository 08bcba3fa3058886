"""An HTTP server that several components share."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

from aiohttp import web

from config import Duration, Endpoint, Settings
from sidecar.errors import DeliveryError, Retryable
from sidecar.net.http_connection import ConnectionLimits, Connections
from sidecar.net.shared import RETRY_AFTER, Lease, SharedServer
from sidecar.net.sockets import BACKLOG, bind, close_all
from sidecar.net.status import UnknownPath, WrongMethod, http_answer
from sidecar.net.tls import Material, TlsServerSettings, server_context

HttpHandler: TypeAlias = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

_LOGGER: Final = logging.getLogger("sidecar.net.http")


class HttpServerSettings(Settings):
    """How an HTTP server behaves, for all that it serves. Named as the Collector's; 0 means no limit.

    `idle_timeout` is long because many senders export once a minute: closing at the same moment loses the race.
    """

    tls: TlsServerSettings | None = None
    read_header_timeout: Duration = Duration("30s")
    idle_timeout: Duration = Duration("5m")
    keep_alives_enabled: bool = True
    max_connections: int = 1024


class HttpLease(Lease[HttpServerSettings, HttpHandler]):
    """One component's part of an HTTP server.

    A handler gets the request and returns the response. A DeliveryError that it raises becomes the answer; any other
    exception is logged and answered 503, since a conforming sender drops its data on 500.
    """

    def route(self, method: str, path: str, handler: HttpHandler) -> None:
        """Serve a path. Call it before `open`. `GET` serves `HEAD` too.

        Raises:
            SettingError: the method and path are another component's, which the message names.
        """
        self.claim(f"{method} {path}", handler)
        if method == "GET":
            self.claim(f"HEAD {path}", handler)


class HttpServer(SharedServer[HttpServerSettings, HttpHandler]):
    """One listening HTTP server."""

    kind = "HTTP"

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self._sockets: list[socket.socket] = []
        self._acceptors: list[asyncio.AbstractServer] = []
        self._connections: Connections | None = None
        self._keep_alive = True

    def default_settings(self) -> HttpServerSettings:
        """As the base says."""
        return HttpServerSettings()

    async def listen(self, settings: HttpServerSettings, owner: str) -> int:
        """As the base says."""
        context = _context(settings, owner)
        self._sockets = await bind(self.endpoint, owner)
        await self._serve(settings, context)
        return 0 if self.endpoint.path else int(self._sockets[0].getsockname()[1])

    async def change(self, settings: HttpServerSettings, owner: str) -> int:
        """As the base says."""
        await self._serve(settings, _context(settings, owner))
        return self.port

    async def shut(self) -> None:
        """As the base says."""
        for acceptor in self._acceptors:
            acceptor.close()
        self._acceptors = []
        close_all(self._sockets)
        self._sockets = []
        if self._connections is not None:
            connections, self._connections = self._connections, None
            await connections.close()

    async def _serve(self, settings: HttpServerSettings, context: ssl.SSLContext | None) -> None:
        """Accept connections on the bound sockets, in this way from now on.

        The acceptors work on duplicates of the sockets, so that changing them never refuses a connection.
        """
        self._keep_alive = settings.keep_alives_enabled
        connections = self._connections = self._connections or Connections(self._handle)
        connections.limits = ConnectionLimits(
            head=settings.read_header_timeout, idle=settings.idle_timeout, count=settings.max_connections
        )
        old, self._acceptors = self._acceptors, []
        for one in self._sockets:
            self._acceptors.append(await _accept(connections, one.dup(), context))
        for acceptor in old:
            acceptor.close()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        claim = self.table.get(f"{request.method} {request.rel_url.raw_path}")
        if claim is None:
            return self._unclaimed(request)
        lease = claim.lease
        if not lease.is_open:
            return http_answer(Retryable("closing; come again", after=RETRY_AFTER, reason="closing"), request)
        lease.active += 1
        try:
            response = await claim.handler(request)
        except DeliveryError as error:
            response = http_answer(error, request)
        except (ConnectionError, web.HTTPException):
            raise
        except Exception:
            _LOGGER.exception("%s: the handler of %s %s failed", lease.owner, request.method, request.path)
            response = http_answer(Retryable("internal error; the sidecar's log says more", reason="internal"), request)
        finally:
            lease.done()
        if not self._keep_alive:
            response.force_close()
        return response

    def _unclaimed(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.rel_url.raw_path
        allowed = sorted(route.partition(" ")[0] for route in self.table if route.endswith(f" {path}"))
        if not allowed:
            return http_answer(UnknownPath(f"nothing is served at {path}"), request)
        response = http_answer(WrongMethod(f"{path} takes {', '.join(allowed)}, not {request.method}"), request)
        response.headers["Allow"] = ", ".join(allowed)
        return response


def _context(settings: HttpServerSettings, owner: str) -> ssl.SSLContext | None:
    if settings.tls is None:
        return None
    return server_context(Material.read(settings.tls, owner), settings.tls, owner)


async def _accept(
    connections: Connections, one: socket.socket, context: ssl.SSLContext | None
) -> asyncio.AbstractServer:
    loop = asyncio.get_running_loop()
    if one.family != socket.AF_UNIX:
        return await loop.create_server(connections, sock=one, ssl=context, backlog=BACKLOG)
    # From 3.13 on asyncio removes the socket's file with the acceptor, which here is not the last one.
    keep: dict[str, Any] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
    return await loop.create_unix_server(connections, sock=one, ssl=context, backlog=BACKLOG, **keep)
