"""The HTTP client of Datadog's intakes: sends one request, and says what its answer means for the data."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Mapping
from math import isfinite
from typing import Final

import aiohttp

from exporters.datadog.delivery import Request, Route
from sidecar import Permanent, RateLimited, Retryable, Secret, TooLarge
from sidecar.component import Clock
from sidecar.net.otlp_client import MAX_WAIT, retry_after, user_agent, words

# A key is replaced, or a site corrected, by a person: asking more often would only add to the noise.
KEY_RETRY: Final = 60.0
VERSION: Final = importlib.metadata.version("otlp-sidecar")
# Who sends it, as the logs intake wants to know.
ORIGIN: Final[Mapping[str, str]] = {"DD-EVP-ORIGIN": "otlp-sidecar", "DD-EVP-ORIGIN-VERSION": VERSION}
_MAX_ANSWER: Final = 2048
# What a person has to mend.
_SETUP: Final = {
    401: "the API key is missing",
    403: "the API key is not valid, or belongs to another site",
    404: "there is no such intake at this address",
    405: "this address is not an intake",
}


class Intake:
    """Sends requests with the API key. One connection pool for all of Datadog's hosts.

    A route that has asked for patience (429), or that refuses the key, is not asked again before its time: requests
    for it fail at once meanwhile, and no other route is affected.
    """

    def __init__(self, key: Secret, clock: Clock) -> None:
        self._key = key
        self._clock = clock
        self._sessions: dict[str, aiohttp.ClientSession] | None = None  # by the path of their Unix socket; "" for TCP
        self._held: dict[str, tuple[float, Retryable]] = {}

    async def open(self) -> None:
        """Be ready to send. Connections are made when they are needed."""
        self._sessions = {}

    async def close(self) -> None:
        """Let go of all connections. Works twice."""
        sessions, self._sessions = self._sessions, None
        for session in (sessions or {}).values():
            await session.close()

    async def send(self, request: Request, timeout: float) -> None:  # noqa: ASYNC109 (aiohttp's own is finer)
        """Send one request. Returning means that Datadog has answered 2xx.

        Args:
            request: what to send.
            timeout: seconds until the answer must be there.

        Raises:
            Retryable: it may pass later.
            TooLarge: a smaller one may pass.
            Permanent: it will never pass.
        """
        self._check_patience(request.route)
        if timeout <= 0:
            raise Retryable("no time left in this attempt", after=0, reason="timeout")
        route = request.route
        try:
            async with self._session(route.socket).post(
                route.url,
                data=request.body,
                headers=self._headers(request),
                allow_redirects=False,  # the key is for this host alone
                timeout=aiohttp.ClientTimeout(total=timeout),
            ) as response:
                if response.status < 300:
                    return
                answer = await response.content.read(_MAX_ANSWER)
        except TimeoutError:
            raise Retryable(f"{_shown(route.url)}: no answer within {timeout:.1f} s", reason="timeout") from None
        except (aiohttp.ClientError, OSError) as error:
            raise Retryable(f"{_shown(route.url)}: {self._safe(str(error) or type(error).__name__)}") from None
        raise self._refusal(route, response, self._safe(answer.decode(errors="replace")))

    def _session(self, socket: str) -> aiohttp.ClientSession:
        if self._sessions is None:
            raise Retryable("not started")
        session = self._sessions.get(socket)
        if session is None:
            session = self._sessions[socket] = aiohttp.ClientSession(
                headers={"User-Agent": user_agent(), "Accept-Encoding": "identity"},
                connector=aiohttp.UnixConnector(socket) if socket else None,
            )
        return session

    def _headers(self, request: Request) -> dict[str, str]:
        route = request.route
        headers = {"Content-Type": route.content_type, **route.headers, **request.headers}
        if route.with_key:
            headers["DD-API-KEY"] = self._key.reveal()
        if route.compression != "none":
            headers["Content-Encoding"] = route.compression
        return headers

    def _check_patience(self, route: Route) -> None:
        until, error = self._held.get(route.url, (0.0, None))
        left = until - self._clock.monotonic()
        if error is not None and left > 0:
            raise type(error)(str(error), after=left, reason=error.reason)

    def _refusal(self, route: Route, response: aiohttp.ClientResponse, answer: str) -> Exception:
        status = response.status
        said = f"{_shown(route.url)}: {status}{f' {answer}' if answer else ''}"
        now = self._clock.time_ns() / 1e9
        after = _seconds(response.headers.get("X-Ratelimit-Reset"))
        if after is None:
            after = retry_after(response.headers.get("Retry-After"), now)
        if status == 413:
            return TooLarge(said)
        if status in _SETUP or status < 400:
            why = _SETUP.get(status, "this address sends elsewhere, which is not followed")
            return self._hold(route, Retryable(f"{said}: {why}", after=KEY_RETRY, reason=f"http_{status}"))
        if status == 429:
            if after is None:
                return Retryable(said, reason="rate_limited")
            return self._hold(route, RateLimited(said, after=after))
        if status == 408 or status >= 500:
            return Retryable(said, after=after, reason=f"http_{status}")
        return Permanent(said, reason="rejected")

    def _hold(self, route: Route, error: Retryable) -> Retryable:
        self._held[route.url] = (self._clock.monotonic() + (error.after or 0.0), error)
        return error

    def _safe(self, text: str) -> str:
        """A foreign text without the key, which a proxy's error page might repeat."""
        return words(text.replace(self._key.reveal(), "[REDACTED]"))


def _seconds(header: str | None) -> float | None:
    try:
        seconds = float(header or "nan")
    except ValueError:
        return None
    return min(max(0.0, seconds), MAX_WAIT) if isfinite(seconds) else None


def _shown(url: str) -> str:
    """An address without the password that a proxy may want in it."""
    return re.sub(r"//[^/@]*@", "//", url)
