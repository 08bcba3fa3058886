"""Cross-origin requests: which web pages may send to a route (Fetch standard, "CORS protocol")."""

from __future__ import annotations

import re
from typing import Annotated, Final

import msgspec
from aiohttp import web

from config import Settings

# What every OTLP exporter for browsers sends beside the safelisted headers.
_ALWAYS_ALLOWED: Final = frozenset({"accept", "content-type", "content-encoding", "x-requested-with"})


class CorsSettings(Settings):
    """Named as the Collector's.

    `allowed_origins`: `https://app.example.com`, `https://*.example.com`, or `*` for every page. `allowed_headers`:
    beside the ordinary ones; `*` for all. `max_age`: seconds for which a browser need not ask again.
    """

    allowed_origins: tuple[str, ...] = ()
    allowed_headers: tuple[str, ...] = ()
    # Without it a page can't read how long to wait.
    exposed_headers: tuple[str, ...] = ("Retry-After",)
    max_age: Annotated[int, msgspec.Meta(ge=0)] = 0


class Cors:
    """The rules of one route, ready to apply."""

    def __init__(self, settings: CorsSettings) -> None:
        patterns = (re.escape(origin.lower()).replace(r"\*", ".*") for origin in settings.allowed_origins)
        self._origins = re.compile("|".join(patterns)) if settings.allowed_origins else None
        self._headers = _ALWAYS_ALLOWED | {name.lower() for name in settings.allowed_headers}
        self._exposed = ", ".join(settings.exposed_headers)
        self._max_age = str(settings.max_age) if settings.max_age else ""

    async def preflight(self, request: web.BaseRequest) -> web.Response:
        """The answer to OPTIONS: 204, and permission where the origin and the headers are allowed."""
        response = web.Response(status=204)
        response.headers["Vary"] = "Origin, Access-Control-Request-Method, Access-Control-Request-Headers"
        wanted = request.headers.get("Access-Control-Request-Headers", "")
        names = {name.strip().lower() for name in wanted.split(",") if name.strip()}
        if self._permits(request, response) and ("*" in self._headers or names <= self._headers):
            response.headers["Access-Control-Allow-Methods"] = "POST"
            if names:
                response.headers["Access-Control-Allow-Headers"] = ", ".join(sorted(names))
            if self._max_age:
                response.headers["Access-Control-Max-Age"] = self._max_age
        return response

    def decorate(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        """Let the page read the response, whatever its status: without these headers it sees a network error."""
        response.headers["Vary"] = "Origin"
        if self._permits(request, response) and self._exposed:
            response.headers["Access-Control-Expose-Headers"] = self._exposed

    def _permits(self, request: web.BaseRequest, response: web.StreamResponse) -> bool:
        origin = request.headers.get("Origin")
        if origin is None or self._origins is None or not self._origins.fullmatch(origin.lower()):
            return False
        # The origin itself and never `*`: sendBeacon sends credentials, for which browsers don't take `*`.
        response.headers["Access-Control-Allow-Origin"] = origin
        response.headers["Access-Control-Allow-Credentials"] = "true"
        return True
