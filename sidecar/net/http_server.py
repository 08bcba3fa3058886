"""An HTTP server that several components share."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from aiohttp import web

from config import Duration, Endpoint, Settings, Size
from sidecar.errors import DeliveryError, Retryable
from sidecar.net.body import BODIES, Bodies
from sidecar.net.cors import Cors
from sidecar.net.http_connection import ConnectionLimits, Connections
from sidecar.net.shared import RETRY_AFTER, Claim, Lease, SharedServer
from sidecar.net.sockets import BACKLOG, bind, close_all
from sidecar.net.status import SERVER, UnknownPath, WrongMethod, http_answer
from sidecar.net.tls import Certificates, Renewal, TlsServerSettings

HttpHandler: TypeAlias = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

_LOGGER: Final = logging.getLogger("sidecar.net.http")


class HttpServerSettings(Settings):
    """How an HTTP server behaves, for all that it serves. Named as the Collector's; 0 means no limit.

    `idle_timeout` is long because many senders export once a minute: closing at the same moment loses the race.
    `max_in_flight_body_size`: what the bodies of all requests under way may take together; those above it are told to
    come again.
    """

    tls: TlsServerSettings | None = None
    read_header_timeout: Duration = Duration("30s")
    idle_timeout: Duration = Duration("5m")
    keep_alives_enabled: bool = True
    max_connections: Annotated[int, msgspec.Meta(ge=0)] = 1024
    max_in_flight_body_size: Size = Size("256MiB")


@dataclass(frozen=True, slots=True)
class Route:
    """What serves one method of one path."""

    handler: HttpHandler
    cors: Cors | None = None


class HttpLease(Lease[HttpServerSettings, Route]):
    """One component's part of an HTTP server.

    A handler gets the request and returns the response. A DeliveryError that it raises becomes the answer; any other
    exception is logged and answered 503, since a conforming sender drops its data on 500.
    """

    def route(self, method: str, path: str, handler: HttpHandler, cors: Cors | None = None) -> None:
        """Serve a path. Call it before `open`. `GET` serves `HEAD` too.

        Args:
            method: in upper case.
            path: exactly as it is requested, without the query; one that ends in `/*` serves all that lie below it and
                are not served by themselves.
            handler: called for each request.
            cors: lets web pages of other origins send: answers `OPTIONS`, and marks every response.

        Raises:
            SettingError: the method and path are another component's, which the message names.
        """
        self.claim(f"{method} {path}", Route(handler, cors))
        if method == "GET":
            self.claim(f"HEAD {path}", Route(handler, cors))
        if cors is not None:
            self.claim(f"OPTIONS {path}", Route(cors.preflight))


class HttpServer(SharedServer[HttpServerSettings, Route]):
    """One listening HTTP server."""

    kind = "HTTP"

    def __init__(self, endpoint: Endpoint, advice: Callable[[Any], str] = lambda _: "") -> None:
        super().__init__(endpoint, advice)
        self._sockets: list[socket.socket] = []
        self._acceptors: list[asyncio.AbstractServer] = []
        self._connections: Connections
        self._renewal: Renewal | None = None
        self._bodies = Bodies()
        self._keep_alive = True

    def default_settings(self) -> HttpServerSettings:
        """As the base says."""
        return HttpServerSettings()

    async def listen(self, settings: HttpServerSettings, owner: str) -> int:
        """As the base says."""
        certificates = Certificates.load(settings.tls, owner) if settings.tls is not None else None
        self._sockets = await bind(self.endpoint, owner)
        self._connections = Connections(self._handle)
        try:
            await self._behave(settings, certificates, owner)
        except BaseException:
            await self.shut()
            raise
        return 0 if self.endpoint.path else int(self._sockets[0].getsockname()[1])

    async def change(self, settings: HttpServerSettings, owner: str) -> int:
        """As the base says."""
        certificates = Certificates.load(settings.tls, owner) if settings.tls is not None else None
        await self._stop_renewal()
        await self._behave(settings, certificates, owner)
        return self.port

    async def shut(self) -> None:
        """As the base says."""
        await self._stop_renewal()
        for acceptor in self._acceptors:
            acceptor.close()
        self._acceptors = []
        close_all(self._sockets)
        self._sockets = []
        await self._connections.close()

    async def _behave(self, settings: HttpServerSettings, certificates: Certificates | None, owner: str) -> None:
        self._keep_alive = settings.keep_alives_enabled
        self._bodies.limit = settings.max_in_flight_body_size
        self._connections.limits = ConnectionLimits(
            head=settings.read_header_timeout, idle=settings.idle_timeout, count=settings.max_connections
        )
        await self._accept(certificates)
        if settings.tls is not None and certificates is not None:
            self._renewal = Renewal(settings.tls, certificates, owner, self._accept)

    async def _accept(self, certificates: Certificates | None) -> None:
        """Accept connections on the bound sockets, in this way from now on.

        The acceptors work on duplicates of the sockets, so that replacing them never refuses a connection.
        """
        context = certificates.context if certificates is not None else None
        acceptors = [await _acceptor(self._connections, one.dup(), context) for one in self._sockets]
        old, self._acceptors = self._acceptors, acceptors
        for acceptor in old:
            acceptor.close()

    async def _stop_renewal(self) -> None:
        if self._renewal is not None:
            await self._renewal.stop()
            self._renewal = None

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        wanted = f"{request.method} {request.rel_url.raw_path}"
        claim = self.table.get(wanted) or self._above(wanted)
        if claim is None:
            return self._unclaimed(request)
        route = claim.handler
        response = await self._serve(claim.lease, route, request)
        if route.cors is not None:
            route.cors.decorate(request, response)
        if not self._keep_alive or not request.content.is_eof():
            # What is left of a body that nobody wants is not worth the wait.
            response.force_close()
        response.headers["Server"] = SERVER
        return response

    def _above(self, wanted: str) -> Claim[HttpServerSettings, Route] | None:
        """The nearest route with a `/*` under which a method and path lie."""
        above = [route for route in self.table if route.endswith("/*") and wanted.startswith(route[:-1])]
        return self.table[max(above, key=len)] if above else None

    async def _serve(
        self, lease: Lease[HttpServerSettings, Route], route: Route, request: web.BaseRequest
    ) -> web.StreamResponse:
        if not lease.is_open:
            return http_answer(Retryable("closing; come again", after=RETRY_AFTER, reason="closing"), request)
        lease.active += 1
        try:
            request[BODIES] = self._bodies
            return await route.handler(request)
        except DeliveryError as error:
            return http_answer(error, request)
        except Exception:
            if request.transport is not None:
                _LOGGER.exception("%s: the handler of %s %s failed", lease.owner, request.method, request.path)
            return http_answer(Retryable("internal error; the sidecar's log says more", reason="internal"), request)
        finally:
            self._bodies.release(request)
            lease.done()

    def _unclaimed(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.rel_url.raw_path
        allowed = sorted(route.partition(" ")[0] for route in self.table if route.endswith(f" {path}"))
        if not allowed:
            return http_answer(UnknownPath(f"nothing is served at {path}"), request)
        response = http_answer(WrongMethod(f"{path} takes {', '.join(allowed)}, not {request.method}"), request)
        response.headers["Allow"] = ", ".join(allowed)
        return response


async def _acceptor(
    connections: Connections, one: socket.socket, context: ssl.SSLContext | None
) -> asyncio.AbstractServer:
    loop = asyncio.get_running_loop()
    if one.family != socket.AF_UNIX:
        return await loop.create_server(connections, sock=one, ssl=context, backlog=BACKLOG)
    # From 3.13 on asyncio removes the socket's file with the acceptor, which here is not the last one.
    keep: dict[str, Any] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
    return await loop.create_unix_server(connections, sock=one, ssl=context, backlog=BACKLOG, **keep)
