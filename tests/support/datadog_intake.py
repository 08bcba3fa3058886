"""Datadog's intakes for tests: a real HTTP server on a free port, with the intakes' limits and with scripted faults.

Tests of the exporter name public reports of what others lost or doubled, as `contrib#1925`: an issue of that number in
open-telemetry/opentelemetry-collector-contrib (`mapping-go`: DataDog/opentelemetry-mapping-go; `router`:
apollographql/router; the others by their repositories).
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

import msgspec
import orjson
import zstandard
from aiohttp import web
from google.protobuf.message import DecodeError
from support.datadog_wire import AgentPayload, SketchPayload

LOGS = "/api/v2/logs"
EVENTS = "/api/v1/events"
TRACES = "/api/v0.2/traces"
STATS = "/api/v0.2/stats"
SERIES = "/api/v2/series"
SKETCHES = "/api/beta/sketches"
CHECKS = "/api/v1/check_run"

MAX_LOGS_BODY = 5_000_000
MAX_LOGS = 1000
MAX_LOG = 1_000_000
MAX_TRACES_BODY = 3_200_000
MAX_SERIES_RAW = 512_000
MAX_SERIES_BODY = 5_242_880


@dataclass
class Received:
    """One request that was read whole, whatever its answer.

    Attributes:
        headers: names in lower case.
        raw: the body as it came; `body`: decompressed.
        status: the answer; 0 when the connection was reset instead.
    """

    path: str
    query: str
    headers: dict[str, str]
    raw: bytes
    body: bytes
    status: int = 0


@dataclass
class Fault:
    """What to answer instead, `times` times, on `path` (None: on each).

    Attributes:
        status: the answer; 0 resets the connection without one.
        accept: take the data all the same: an answer that is lost on its way back.
        delay: seconds to wait first.
        after_bytes: reset when so many bytes of the body have come.
    """

    status: int = 503
    times: int = 1
    path: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    delay: float = 0.0
    accept: bool = False
    after_bytes: int | None = None


class DatadogIntake:
    """Takes what an exporter sends and keeps it.

    Attributes:
        keys: the API keys that are valid; empty: any that is not empty.
        logs, events: what was accepted with a 202, in order.
        traces: AgentPayload messages; `spans`: (TracerPayload, TraceChunk, Span) of all of them.
        stats: StatsPayloads as dicts.
        series: series as dicts; `sketches`: Sketch messages; `checks`: service checks as dicts.
        requests: all requests, refused ones too.
    """

    def __init__(self, *, keys: tuple[str, ...] = ()) -> None:
        self.keys = set(keys)
        self.logs: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self.traces: list[Any] = []
        self.stats: list[dict[str, Any]] = []
        self.series: list[dict[str, Any]] = []
        self.sketches: list[Any] = []
        self.checks: list[dict[str, Any]] = []
        self.requests: list[Received] = []
        self._faults: list[Fault] = []
        self._changed = asyncio.Condition()
        self._closing = asyncio.Event()
        self._takers: dict[str, Callable[[Received], int]] = {
            LOGS: self._take_logs,
            EVENTS: self._take_event,
            TRACES: self._take_traces,
            STATS: self._take_stats,
            SERIES: self._take_series,
            SKETCHES: self._take_sketches,
            CHECKS: self._take_checks,
        }
        self.url = ""

    async def __aenter__(self) -> Self:
        server = web.Server(self._handle, auto_decompress=False)
        self._runner = web.ServerRunner(server, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_exception: object) -> None:
        self._closing.set()
        await self._runner.cleanup()

    def script(self, status: int = 503, times: int = 1, **fault: Any) -> Fault:
        """Answer differently. Faults are used up in the order in which they were scripted."""
        scripted = Fault(status, times, **fault)
        self._faults.append(scripted)
        return scripted

    def heal(self) -> None:
        """Forget all faults."""
        self._faults.clear()

    async def wait_for(self, condition: Callable[[], bool], within: float = 10) -> None:
        """Return when the condition holds; looked at after each request.

        Raises:
            TimeoutError: it does not hold in time.
        """
        async with asyncio.timeout(within), self._changed:
            await self._changed.wait_for(condition)

    @property
    def spans(self) -> list[tuple[Any, Any, Any]]:
        """Every span with the payload and the chunk that it came in."""
        return [
            (payload, chunk, span)
            for agent in self.traces
            for payload in agent.tracerPayloads
            for chunk in payload.chunks
            for span in chunk.spans
        ]

    def to(self, path: str) -> list[Received]:
        """The requests to one path."""
        return [request for request in self.requests if request.path == path]

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        fault = self._next_fault(request.path)
        if fault is not None and fault.after_bytes is not None:
            await self._reset_after(request, fault.after_bytes)
        raw = await request.read()
        headers = {name.lower(): value for name, value in request.headers.items()}
        received = Received(request.path, request.query_string, headers, raw, _decompress(raw, headers))
        self.requests.append(received)
        try:
            return await self._answer(request, received, fault)
        finally:
            async with self._changed:
                self._changed.notify_all()

    async def _answer(self, request: web.BaseRequest, received: Received, fault: Fault | None) -> web.StreamResponse:
        if fault is None:
            received.status = self._take(received)
            return web.json_response({}, status=received.status)
        if fault.delay:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), fault.delay)
        if fault.accept:
            self._take(received)
        if not fault.status:
            return await self._reset(request)
        received.status = fault.status
        return web.Response(status=fault.status, headers=fault.headers, body=fault.body)

    def _next_fault(self, path: str) -> Fault | None:
        for fault in self._faults:
            if fault.path in {None, path}:
                fault.times -= 1
                if fault.times <= 0:
                    self._faults.remove(fault)
                return fault
        return None

    async def _reset_after(self, request: web.BaseRequest, size: int) -> None:
        seen = 0
        async for chunk in request.content.iter_any():
            seen += len(chunk)
            if seen >= size:
                break
        await self._reset(request)

    @staticmethod
    async def _reset(request: web.BaseRequest) -> web.StreamResponse:
        if request.transport is not None:
            request.transport.abort()
        raise asyncio.CancelledError

    def _take(self, received: Received) -> int:
        """Keep what a request brings, or refuse it as Datadog does."""
        key = received.headers.get("dd-api-key", "")
        if not key:
            return 401
        if self.keys and key not in self.keys:
            return 403
        taker = self._takers.get(received.path)
        return taker(received) if taker else 404

    def _take_logs(self, received: Received) -> int:
        if len(received.body) > MAX_LOGS_BODY:
            return 413
        logs = _json(received.body)
        if not isinstance(logs, list) or not all(isinstance(log, dict) for log in logs):
            return 400
        if len(logs) > MAX_LOGS:
            return 413
        self.logs += logs
        return 202

    def _take_event(self, received: Received) -> int:
        event = _json(received.body)
        if not isinstance(event, dict) or not event.get("title") or not isinstance(event.get("text"), str):
            return 400
        if len(event["text"]) > 4000 or len(event.get("aggregation_key", "")) > 100:
            return 400
        self.events.append(event)
        return 202

    def _take_traces(self, received: Received) -> int:
        if len(received.body) > MAX_TRACES_BODY:
            return 413
        if received.headers.get("content-type") != "application/x-protobuf":
            return 415
        try:
            self.traces.append(AgentPayload.FromString(received.body))
        except DecodeError:
            return 400
        return 202

    def _take_stats(self, received: Received) -> int:
        if received.headers.get("content-type") != "application/msgpack":
            return 415
        try:
            self.stats.append(msgspec.msgpack.decode(received.body))
        except msgspec.DecodeError:
            return 400
        return 202

    def _take_series(self, received: Received) -> int:
        if len(received.raw) > MAX_SERIES_RAW or len(received.body) > MAX_SERIES_BODY:
            return 413
        payload = _json(received.body)
        if not isinstance(payload, dict) or not all(map(_is_series, payload.get("series", [None]))):
            return 400
        self.series += payload["series"]
        return 202

    def _take_sketches(self, received: Received) -> int:
        if "dd-agent-payload" not in received.headers:
            return 400
        try:
            self.sketches += SketchPayload.FromString(received.body).sketches
        except DecodeError:
            return 400
        return 202

    def _take_checks(self, received: Received) -> int:
        checks = _json(received.body)
        required = {"check", "host_name", "status", "tags"}
        if not isinstance(checks, list) or not all(required <= check.keys() for check in checks):
            return 400
        self.checks += checks
        return 202


def _is_series(series: Any) -> bool:
    points = series["points"] if isinstance(series, dict) else []
    return (
        bool(points)
        and isinstance(series.get("metric"), str)
        and series.get("type") in {0, 1, 2, 3}
        and all(isinstance(one["timestamp"], int) and isinstance(one["value"], int | float) for one in points)
    )


def _json(body: bytes) -> Any:
    with contextlib.suppress(orjson.JSONDecodeError):
        return orjson.loads(body)
    return None


def _decompress(raw: bytes, headers: dict[str, str]) -> bytes:
    match headers.get("content-encoding"):
        case "gzip":
            return gzip.decompress(raw)
        case "deflate":
            return zlib.decompress(raw)
        case "zstd":
            return zstandard.ZstdDecompressor().decompress(raw)
        case _:
            return raw
