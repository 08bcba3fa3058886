"""An HTTP server that several components share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from aiohttp import web

from config import Settings

HttpHandler: TypeAlias = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class HttpServerSettings(Settings):
    """How an HTTP server behaves, for all that it serves."""


class HttpServer:
    """One listening HTTP server."""


class HttpLease:
    """One component's part of an HTTP server."""

    def route(self, method: str, path: str, handler: HttpHandler) -> None:
        """Serve a path. Call it before `open`.

        Raises:
            SettingError: the method and path are another component's, which the message names.
        """
        raise NotImplementedError

    async def open(self) -> None:
        """Serve this lease's routes from now on; bind the socket if it is the server's first.

        Raises:
            StartError: the address can't be bound: names the owner, the address and the setting.
        """
        raise NotImplementedError

    async def close(self) -> None:
        """Answer 503 with `Retry-After` on this lease's routes, and wait for the requests under way.

        The last one to close lets go of the socket. Works twice, and without `open`.
        """
        raise NotImplementedError
