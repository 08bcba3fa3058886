"""The Agent's HTTP interface, as far as tracers need it."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import os
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, get_args

import msgspec
from aiohttp import web

from config import Duration, Endpoint, Ratio, SettingError, Size
from sidecar.batch import Batch
from sidecar.callers import Callers
from sidecar.component import Context, Receiver
from sidecar.dogstatsd import AggregationSettings, DogStatsDIntake
from sidecar.errors import DeliveryError, NotServed, RateLimited, Retryable
from sidecar.net import HttpLease
from sidecar.net.body import read_body
from sidecar.net.status import JSON, UnsupportedMedia, http_answer, media_type
from sidecar.receivers.datadog import client_stats
from sidecar.receivers.datadog.spans import Converted, HighIds, Tracer, convert
from sidecar.receivers.datadog.wire import Payload, Version, decode
from sidecar.signals import Signal

# The Agent whose behaviour this is; tracers choose by it what they may send.
_AGENT_VERSION: Final = "7.70.0"
_MSGPACK: Final = "application/msgpack"
# Up to v0.4 a body may be JSON, and is where nothing is said.
_JSON_TYPES: Final = frozenset({JSON, "text/json", ""})
_WITH_JSON: Final = frozenset({"v0.3", "v0.4"})
# A larger request is converted in a thread, so that the loop goes on meanwhile.
_THREAD_ABOVE: Final = 1 << 18
# How many lines are taken before others have their turn: they take the loop 3 ms.
_LINES_AT_A_TIME: Final = 1000
# Any program of this host may send, as it may to a port.
_SOCKET_MODE: Final = 0o722
_RATES_VERSION: Final = "Datadog-Rates-Payload-Version"
_REAL_STATUS: Final = "Datadog-Send-Real-Http-Status"
_NO: Final = frozenset({"", "0", "f", "false", "no"})

_Handler = Callable[[web.BaseRequest], Awaitable[web.Response]]


class Forbidden(DeliveryError):
    """A web page of another site is sending. 403, as of the Agent."""

    http_status = 403
    default_reason = "cross_site"


class DatadogReceiverSettings(AggregationSettings):
    """Where tracers are answered, and how.

    Attributes:
        endpoint: of HTTP.
        socket: the path of a Unix socket that is served as well; null for none.
        max_request_body_size: of a request.
        read_timeout: how long a body may take to arrive.
        sampling_rate: the share of traces that tracers are told to keep, where their own settings don't say.
    """

    endpoint: Endpoint = Endpoint("localhost:8126")
    socket: Endpoint | None = None
    max_request_body_size: Size = Size("25MiB")
    read_timeout: Duration = Duration("30s")
    sampling_rate: Ratio = Ratio(1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.socket is not None and self.socket.path is None:
            raise SettingError(f"{self.socket} is not a path; write for example unix:///run/apm.sock", "socket")


class DatadogReceiver(Receiver[DatadogReceiverSettings]):
    """Takes spans, client statistics and DogStatsD lines as an Agent does.

    A tracer waits for the answer, and gives up what it is not answered 2xx for after three seconds: what is accepted is
    the sidecar's to keep. What no pipeline has room for is answered 429 to tracers that understand it, which try again;
    to others it is answered 200, and counted as dropped, as an Agent does.
    """

    def __init__(self, settings: DatadogReceiverSettings, context: Context) -> None:
        super().__init__(settings, context)
        self._callers = Callers(context, None)
        self._high_ids = HighIds()
        self._lines = DogStatsDIntake(self, settings, "http")
        self._rates = msgspec.json.encode({"rate_by_service": {"service:,env:": float(settings.sampling_rate)}})
        self._rates_version = hashlib.sha256(self._rates).hexdigest()[:16]
        self.leases = [self._lease(settings.endpoint, "endpoint")]
        if settings.socket is not None:
            self.leases.append(self._lease(settings.socket, "socket"))

    def _lease(self, endpoint: Endpoint, setting: str) -> HttpLease:
        lease = self.context.listeners.http(endpoint, f"receivers.{self.context.id}: {setting}")
        lease.route("GET", "/info", self._answering(self._info))
        served: dict[str, _Handler] = {
            "/v0.3/services": self._swallow,
            "/v0.4/services": self._swallow,
            "/v0.6/stats": self._stats,
            "/v0.7/config": self._swallow,
            "/telemetry/proxy/*": self._swallow,
            "/dogstatsd/v2/proxy": self._dogstatsd,
        }
        for version in get_args(Version):
            served[f"/{version}/traces"] = functools.partial(self._traces, version)
        for path, handler in served.items():
            for method in ("POST", "PUT"):
                lease.route(method, path, self._answering(handler))
        return lease

    @property
    def port(self) -> int:
        """The bound TCP port, from `start` on."""
        return self.leases[0].port

    async def start(self) -> None:
        """Listen."""
        for lease in self.leases:
            await lease.open()
        if self.settings.socket is not None and self.settings.socket.path is not None:
            os.chmod(self.settings.socket.path, _SOCKET_MODE)  # noqa: PTH101 (immediate; pathlib says it is not)
        self.context.spawn(self._lines.run(), "windows")
        self.context.health.ok()

    async def stop(self) -> None:
        """Finish the requests under way, let go of the listeners, and hand on what was added up."""
        await asyncio.gather(*(lease.close() for lease in self.leases))
        await self._lines.stop()

    def carry(self, old: DatadogReceiver) -> None:
        """Go on with the traces that come in parts."""
        self._high_ids = old._high_ids

    def _answering(self, handler: _Handler) -> _Handler:
        """A handler whose every answer says which Agent this is, and which refuses other sites' pages."""

        async def answer(request: web.BaseRequest) -> web.Response:
            try:
                if request.headers.get("Sec-Fetch-Site") == "cross-site":
                    raise Forbidden("pages of other sites may not send")
                response = await handler(request)
            except DeliveryError as error:
                self._count_refused(error)
                response = http_answer(error, request)
            response.headers["Datadog-Agent-Version"] = _AGENT_VERSION
            response.headers["Datadog-Agent-State"] = self._description().state
            return response

        return answer

    def _description(self) -> Description:
        """What is served, as far as a pipeline takes it, which a reload may change."""
        return _describe(
            self.emit.accepts(Signal.TRACES),
            self.emit.accepts(Signal.METRICS),
            int(self.settings.max_request_body_size),
        )

    async def _info(self, _request: web.BaseRequest) -> web.Response:
        return _json(self._description().body)

    async def _swallow(self, request: web.BaseRequest) -> web.Response:
        """Answer what goes no further: a tracer's telemetry of itself, and questions for remote configuration."""
        await self._read(request)
        return _json(b"{}")

    async def _stats(self, request: web.BaseRequest) -> web.Response:
        self._check_served(Signal.METRICS)
        data = await self._read(request)
        if media_type(request) not in {_MSGPACK, ""}:
            raise UnsupportedMedia(f"Content-Type {media_type(request)!r} is not accepted; accepted: {_MSGPACK}")
        message = client_stats.convert(data, _tracer(request))
        await self._hand_on(request, Batch(Signal.METRICS, message=message, context=self._callers.of_http(request)))
        return _json(b"{}")

    async def _dogstatsd(self, request: web.BaseRequest) -> web.Response:
        self._check_served(Signal.METRICS)
        lines = (await self._read(request)).split(b"\n")
        for first in range(0, len(lines), _LINES_AT_A_TIME):
            self._lines.take(b"\n".join(lines[first : first + _LINES_AT_A_TIME]))
            await asyncio.sleep(0)
        return _json(b"{}")

    async def _traces(self, version: Version, request: web.BaseRequest) -> web.Response:
        self._check_served(Signal.TRACES)
        media = media_type(request)
        json = version in _WITH_JSON and media in _JSON_TYPES
        if not json and media != _MSGPACK:
            raise UnsupportedMedia(f"Content-Type {media!r} is not accepted; accepted: {_MSGPACK}")
        data = await self._read(request)
        tracer = _tracer(request)
        if len(data) > _THREAD_ABOVE:
            payload, converted = await asyncio.to_thread(self._convert, version, data, tracer, json=json)
        else:
            payload, converted = self._convert(version, data, tracer, json=json)
        if converted.spans:
            context = self._callers.of_http(request)
            batch = Batch(Signal.TRACES, converted.data, context=context, items=converted.spans)
            await self._hand_on(request, batch)
        self.context.dropped(Signal.TRACES, "malformed", payload.malformed)
        self.context.dropped(Signal.TRACES, "invalid_id", converted.invalid)
        self._count_left_out(request)
        return self._answer_traces(request, version)

    def _convert(self, version: Version, data: bytes, tracer: Tracer, *, json: bool) -> tuple[Payload, Converted]:
        payload = decode(version, data, json=json)
        return payload, convert(payload, tracer, self._high_ids)

    def _answer_traces(self, request: web.BaseRequest, version: Version) -> web.Response:
        if version == "v0.3":
            return web.Response(text="OK\n")
        known = request.headers.get(_RATES_VERSION)
        if known is None:
            return _json(self._rates)
        # A tracer that has the rates already need not read them again.
        return _json(b"{}" if known == self._rates_version else self._rates, **{_RATES_VERSION: self._rates_version})

    async def _hand_on(self, request: web.BaseRequest, batch: Batch) -> None:
        """Give a batch to the pipelines.

        Raises:
            RateLimited: they have no room, and the tracer understands that.
            DeliveryError: they refuse it for good.
        """
        items = len(batch)
        if not items:
            return
        try:
            await self.emit(batch)
        except Retryable as error:
            if request.headers.get(_REAL_STATUS, "").lower() in _NO:
                self.context.dropped(batch.signal, error.reason, items)
                return
            after = 1.0 if error.after is None else error.after
            raise RateLimited(str(error), after=after, reason=error.reason) from None

    async def _read(self, request: web.BaseRequest) -> bytes:
        """A request's body. Raises DeliveryError."""
        self._callers.admit(self._callers.of_http(request))
        return await read_body(request, self.settings.max_request_body_size, within=self.settings.read_timeout)

    def _check_served(self, signal: Signal) -> None:
        """Refuse what no pipeline takes. Raises NotServed."""
        if not self.emit.accepts(signal):
            raise NotServed(f"receivers.{self.context.id} is in no {signal.value} pipeline")

    def _count_refused(self, error: DeliveryError) -> None:
        self.context.meter.counter(
            "sidecar_receiver_refused_requests",
            "Requests that were refused, by reason.",
            transport="http",
            reason=error.reason,
        ).add(1)

    def _count_left_out(self, request: web.BaseRequest) -> None:
        """Count what the tracer itself has left out, since its sampler has decided so."""
        spans = request.headers.get("Datadog-Client-Dropped-P0-Spans", "")
        if spans.isascii() and spans.isdigit():
            self.context.meter.counter(
                "sidecar_datadog_tracer_dropped_spans", "Spans that tracers have left out by themselves."
            ).add(int(spans[:18]))


class Description(NamedTuple):
    """The body of `/info`, and the hash by which tracers see that it has changed."""

    body: bytes
    state: str


@functools.lru_cache(8)
def _describe(traces: bool, metrics: bool, max_request_bytes: int) -> Description:  # noqa: FBT001 (keys of the cache)
    endpoints = [f"/{version}/traces" for version in get_args(Version)] if traces else []
    if metrics:
        endpoints += ["/v0.6/stats", "/dogstatsd/v2/proxy"]
    body = msgspec.json.encode(
        {
            "version": _AGENT_VERSION,
            "endpoints": [*endpoints, "/telemetry/proxy/"],
            # Tracers compute statistics only for an Agent that lets them leave out what no sampler has kept.
            "client_drop_p0s": True,
            "span_meta_structs": True,
            "long_running_spans": False,
            "span_events": True,
            "config": {"max_request_bytes": max_request_bytes},
        }
    )
    return Description(body, hashlib.sha256(body).hexdigest())


def _tracer(request: web.BaseRequest) -> Tracer:
    headers = request.headers
    return Tracer(
        language=headers.get("Datadog-Meta-Lang", ""),
        language_version=headers.get("Datadog-Meta-Lang-Version", ""),
        interpreter=headers.get("Datadog-Meta-Lang-Interpreter", ""),
        version=headers.get("Datadog-Meta-Tracer-Version", ""),
        container_id=_container_id(headers),
        computed_stats=headers.get("Datadog-Client-Computed-Stats", "").lower() not in _NO,
        computed_top_level=headers.get("Datadog-Client-Computed-Top-Level", "").lower() not in _NO,
    )


def _container_id(headers: Any) -> str:
    container: str = headers.get("Datadog-Container-ID", "")
    kind, _, entity = headers.get("Datadog-Entity-ID", "").partition("-")
    return container or (entity if kind in {"ci", "cid"} else "")


def _json(body: bytes, **headers: str) -> web.Response:
    return web.Response(body=body, content_type=JSON, headers=headers)
