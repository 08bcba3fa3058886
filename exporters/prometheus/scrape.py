"""Answers scrapes: negotiates, compresses and streams a page without keeping the event loop from other work."""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any, Final

from aiohttp import hdrs, web

from exporters.prometheus.negotiate import Answer, accepts_gzip, negotiate
from sidecar import Retryable, Unauthenticated
from sidecar.callers import Callers
from sidecar.telemetry.metrics import Meter

try:
    from isal import isal_zlib
except ImportError:  # processors that isal has no build for
    deflate: Any = zlib
else:
    deflate = isal_zlib

# Level 1: a fifth of the size for 2 ms per MB; higher levels cost more than they save on a loopback or a LAN.
_LEVEL: Final = 1
_GZIP_WINDOW: Final = 31
# A scraper that reads nothing holds a place among the concurrent scrapes for so long. Prometheus gives up after 10 s.
_TIMEOUT: Final = 60.0
_RETRY_AFTER: Final = 1.0
# RFC 9110 §11.6.1: a 401 names what would be accepted.
_CHALLENGE: Final = {hdrs.WWW_AUTHENTICATE: 'Basic realm="metrics", Bearer realm="metrics"'}
_TIME_BUCKETS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)


class Scrapes:
    """The handler of the page.

    Args:
        render: makes the page in chunks; an empty chunk only lets other work run.
        prepare: is awaited before each page, to take out what has expired.
        callers: tells who scrapes; None lets everybody.
        openmetrics: whether OpenMetrics is offered.
        limit: how many scrapes may run at once; more are told to come again.
        meter: of the exporter.
    """

    def __init__(
        self,
        render: Callable[[Answer], Iterator[bytes]],
        prepare: Callable[[], Awaitable[None]],
        callers: Callers | None,
        *,
        openmetrics: bool,
        limit: int,
        meter: Meter,
    ) -> None:
        self._render = render
        self._prepare = prepare
        self._callers = callers
        self._openmetrics = openmetrics
        self._limit = limit
        self._meter = meter
        self._running = 0
        self._bytes = meter.counter("sidecar_prometheus_scrape_bytes", "Bytes of pages before compression.")
        self._seconds = meter.histogram(
            "sidecar_prometheus_scrape_duration_seconds", "How long scrapes took, sending included.", _TIME_BUCKETS
        )

    async def serve(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer GET and HEAD.

        Raises:
            Retryable: too many scrapes are under way.
        """
        if self._callers is not None:
            try:
                self._callers.of_http(request)
            except Unauthenticated as error:
                return web.Response(status=error.http_status, text=f"{error}\n", headers=_CHALLENGE)
        answer = negotiate(request.headers.get(hdrs.ACCEPT, ""), openmetrics=self._openmetrics)
        self._meter.counter("sidecar_prometheus_scrapes", "Scrapes by format.", format=answer.format.value).add(1)
        compressed = accepts_gzip(request.headers.get(hdrs.ACCEPT_ENCODING, ""))
        headers: dict[str, str] = {hdrs.CONTENT_TYPE: answer.content_type, hdrs.VARY: "Accept, Accept-Encoding"}
        if compressed:
            headers[hdrs.CONTENT_ENCODING] = "gzip"
        if request.method == hdrs.METH_HEAD:
            return web.Response(headers=headers)
        if self._running >= self._limit:
            raise Retryable(f"{self._running} scrapes are under way", after=_RETRY_AFTER, reason="busy")
        self._running += 1
        started = time.perf_counter()
        try:
            await self._prepare()
            async with asyncio.timeout(_TIMEOUT):
                return await self._send(request, headers, self._chunks(answer, compressed=compressed))
        finally:
            self._running -= 1
            self._seconds.observe(time.perf_counter() - started)

    async def _chunks(self, answer: Answer, *, compressed: bool) -> AsyncIterator[bytes]:
        compressor = deflate.compressobj(_LEVEL, zlib.DEFLATED, _GZIP_WINDOW) if compressed else None
        for chunk in self._render(answer):
            if chunk:
                self._bytes.add(len(chunk))
                data: bytes = chunk if compressor is None else compressor.compress(chunk)
                if data:
                    yield data
            await asyncio.sleep(0)
        if compressor is not None:
            yield compressor.flush()

    async def _send(
        self, request: web.BaseRequest, headers: Mapping[str, str], chunks: AsyncIterator[bytes]
    ) -> web.StreamResponse:
        # The first chunk before the status line: what fails in it is an answer, and not a page that breaks off.
        first = await anext(chunks, b"")
        second = await anext(chunks, None)
        if second is None:
            return web.Response(body=first, headers=headers)
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        await response.write(first)
        await response.write(second)
        async for chunk in chunks:
            await response.write(chunk)
        await response.write_eof()
        return response
