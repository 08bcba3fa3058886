"""Takes in TelemetryEvents over HTTP and gRPC, and hands them on as log records and spans."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Final

import msgspec
from aiohttp import web

from config import Duration, Endpoint, SettingError, Settings, Size
from sidecar.batch import Batch, BatchContext
from sidecar.callers import AuthSettings, Callers, networks
from sidecar.component import Context, Receiver
from sidecar.errors import (
    DeliveryError,
    NotServed,
    Permanent,
    RateLimited,
    Retryable,
    TooLarge,
    Unauthenticated,
)
from sidecar.events.convert import Conversion, Rules, SpanChoice
from sidecar.events.model import TooManyEvents, WireEvent, from_json, from_protobuf
from sidecar.events.sanitise import Limits, Sanitised, sanitise
from sidecar.events.telemetry_event_pb2 import TelemetryBatchResponse
from sidecar.net import GrpcLease, GrpcServerSettings, HttpLease, HttpServerSettings
from sidecar.net.body import read_body
from sidecar.net.cors import Cors, CorsSettings
from sidecar.net.shared import RETRY_AFTER
from sidecar.net.status import JSON, GrpcContext, media_type
from sidecar.net.tls import TlsServerSettings
from sidecar.signals import Signal
from sidecar.telemetry.receiver_counts import ReceiverCounts

_SERVICE: Final = "telemetry.v1.TelemetryEventService"
# What a sender is told to wait where nobody knows better: what the sidecar's own exporters wait at first.
_DELAY: Final = 5.0
# The wire contract's words (§1), the first that fits; the last two rows are for what its table does not foresee.
_ERROR_TYPES: Final[tuple[tuple[type[DeliveryError], str], ...]] = (
    (TooManyEvents, "batch_too_large"),
    (TooLarge, "payload_too_large"),
    (RateLimited, "rate_limited"),
    (Retryable, "unavailable"),
    (Unauthenticated, "authentication_error"),
    (NotServed, "not_found_error"),
)

_Positive = Annotated[int, msgspec.Meta(ge=1)]


class EventAuthSettings(AuthSettings):
    """Which extension knows the callers.

    Attributes:
        required: refuse strangers; by default they are let in as anonymous ones.
    """

    required: bool = False


class LimitSettings(Settings):
    """How large the parts of one event may be, in UTF-8 bytes.

    Attributes:
        message: what is longer is cut, and marked.
        stack: as `message`.
        fields: as JSON; what is larger is left out as a whole.
    """

    message: Size = Size(4096)
    stack: Size = Size("32KiB")
    fields: Size = Size("8KiB")


class TelemetryEventSettings(Settings):
    """Where TelemetryEvents are received, what they may be, and what becomes of them.

    Attributes:
        endpoint: the HTTP listener, by default that of the `otlp` receiver.
        path: where events are posted.
        grpc_endpoint: the listener of telemetry.v1.TelemetryEventService; null for none.
        tls: for listeners of this receiver's own; shared ones behave as the `otlp` receiver says.
        cors: which web pages may send.
        auth: who knows the callers; null asks nobody.
        include_metadata: whether request headers go along: all but credentials, or the named ones.
        trusted_proxies: addresses or networks whose `X-Forwarded-For` is believed.
        read_timeout: how long a body may take to arrive.
        max_body_size: of a batch, before and after decompression.
        max_events: in one batch.
        limits: of one event.
        max_age: older timestamps become the receive time.
        max_ahead: timestamps further in the future become the receive time.
        service_names: from the source to `service.name`; by default the source itself.
        resource: attributes added to every resource, where the event says nothing; empty ones are left out.
        spans: which events become spans, too: those with a trace, those with a duration, all, or none.
    """

    endpoint: Endpoint = Endpoint("localhost:4318")
    path: str = "/v1/telemetry/events"
    grpc_endpoint: Endpoint | None = Endpoint("localhost:4317")
    tls: TlsServerSettings | None = None
    cors: CorsSettings | None = None
    auth: EventAuthSettings | None = None
    include_metadata: bool | tuple[str, ...] = False
    trusted_proxies: tuple[str, ...] = ()
    read_timeout: Duration = Duration("30s")
    max_body_size: Size = Size("64KiB")
    max_events: _Positive = 100
    limits: LimitSettings = LimitSettings()
    max_age: Duration = Duration("168h")
    max_ahead: Duration = Duration("5m")
    service_names: dict[str, str] = msgspec.field(default_factory=dict)
    resource: dict[str, str] = msgspec.field(default_factory=dict)
    spans: SpanChoice = "correlated"

    def __post_init__(self) -> None:
        if not self.path.startswith("/"):
            raise SettingError(f"{self.path!r} is not a path; write for example /v1/telemetry/events", "path")
        networks(self.trusted_proxies)


class TelemetryEventReceiver(Receiver[TelemetryEventSettings]):
    """A server for TelemetryEvents: `POST` of a JSON batch, and `telemetry.v1.TelemetryEventService`.

    A batch is accepted as a whole, into logs and traces pipelines alike, before its sender is told so; only events
    without a message are rejected alone. Nothing is converted before the pipelines have let the batch pass.
    """

    signals = frozenset({Signal.LOGS, Signal.TRACES})

    def __init__(self, settings: TelemetryEventSettings, context: Context) -> None:
        super().__init__(settings, context)
        self._callers = Callers(
            context,
            settings.auth,
            include_metadata=settings.include_metadata,
            trusted_proxies=settings.trusted_proxies,
        )
        self._counts = ReceiverCounts(context.meter)
        self._limits = Limits(
            message=settings.limits.message,
            stack=settings.limits.stack,
            fields=settings.limits.fields,
            max_age=round(settings.max_age * 1e9),
            max_ahead=round(settings.max_ahead * 1e9),
        )
        self._rules = Rules(settings.service_names, settings.resource, settings.spans)
        self._stopping = asyncio.Event()
        self.http = self._lease_http()
        self.grpc = self._lease_grpc(settings.grpc_endpoint) if settings.grpc_endpoint is not None else None

    def _lease_http(self) -> HttpLease:
        settings = self.settings
        server = HttpServerSettings(tls=settings.tls) if settings.tls is not None else None
        lease = self.context.listeners.http(settings.endpoint, f"receivers.{self.context.id}: endpoint", server)
        cors = Cors(settings.cors) if settings.cors is not None and settings.cors.allowed_origins else None
        lease.route("POST", settings.path, self._post, cors)
        return lease

    def _lease_grpc(self, endpoint: Endpoint) -> GrpcLease:
        tls = self.settings.tls
        server = GrpcServerSettings(tls=tls) if tls is not None else None
        lease = self.context.listeners.grpc(endpoint, f"receivers.{self.context.id}: grpc_endpoint", server)
        lease.unary(_SERVICE, "Export", self._export)
        lease.client_stream(_SERVICE, "ExportStream", self._export_stream)
        return lease

    async def start(self) -> None:
        """Listen."""
        self._stopping.clear()
        await self.http.open()
        if self.grpc is not None:
            await self.grpc.open()
        self.context.health.ok()

    async def stop(self) -> None:
        """Finish the requests under way, end the streams, and let go of the listeners."""
        self._stopping.set()
        await asyncio.gather(*(lease.close() for lease in (self.http, self.grpc) if lease is not None))

    async def _post(self, request: web.BaseRequest) -> web.Response:
        try:
            _check_media_type(request)
            context = self._callers.of_http(request)
            self._callers.admit(context)
            body = await read_body(request, self.settings.max_body_size, within=self.settings.read_timeout)
            sent = from_json(body, self.settings.max_events)
            taken = await self._take(sent, context)
        except DeliveryError as error:
            self._counts.refused(error, "http")
            return _refusal(error)
        answer = {"accepted": len(taken.events), "rejected": taken.rejected}
        return web.Response(status=202 if sent else 200, body=msgspec.json.encode(answer), content_type=JSON)

    async def _export(self, data: bytes, call: GrpcContext) -> bytes:
        response = TelemetryBatchResponse()
        await self._take_message(data, call, response)
        return response.SerializeToString()

    async def _export_stream(self, messages: AsyncIterator[bytes], call: GrpcContext) -> bytes:
        """Take the batches of a stream as they come. The first refusal ends it; what was accepted stays accepted."""
        response = TelemetryBatchResponse()
        async for data in _until(self._stopping, messages):
            await self._take_message(data, call, response)
        return response.SerializeToString()

    async def _take_message(self, data: bytes, call: GrpcContext, response: TelemetryBatchResponse) -> None:
        try:
            context = self._callers.of_grpc(call)
            self._callers.admit(context)
            if len(data) > self.settings.max_body_size:
                raise TooLarge(f"the batch has {len(data)} bytes, and the limit is {self.settings.max_body_size}")
            taken = await self._take(from_protobuf(data, self.settings.max_events), context)
        except DeliveryError as error:
            self._counts.refused(error, "grpc")
            raise _with_delay(error) from None
        response.accepted += len(taken.events)
        response.rejected += taken.rejected

    async def _take(self, sent: Sequence[WireEvent | None], context: BatchContext) -> Sanitised:
        """Hand a batch of events on.

        Raises:
            DeliveryError: nothing of it was accepted.
        """
        taken = sanitise(sent, context.identity, context.received_at, self._limits)
        if taken.events:
            await self._emit(Conversion(taken.events, context.received_at, self._rules), context)
        self.context.dropped(Signal.LOGS, "malformed", taken.rejected)
        self._counts.repaired(taken.repairs, context.transport)
        return taken

    async def _emit(self, conversion: Conversion, context: BatchContext) -> None:
        logs, traces = self.emit.accepts(Signal.LOGS), self.emit.accepts(Signal.TRACES)
        if not (logs or traces):
            raise NotServed(f"receivers.{self.context.id} is in no logs pipeline and in no traces pipeline")
        batches = []
        if logs:
            items = len(conversion.events)
            batches.append(Batch(Signal.LOGS, context=context, build=conversion.logs, items=items))
        if traces and conversion.traced:
            items = len(conversion.traced)
            batches.append(Batch(Signal.TRACES, context=context, build=conversion.traces, items=items))
        if batches:
            await self.emit(*batches)
        if not logs:
            # They are no spans, and nobody takes logs.
            self.context.dropped(Signal.LOGS, "not_served", len(conversion.events) - len(conversion.traced))


def _check_media_type(request: web.BaseRequest) -> None:
    """Refuse a web page that sends anything but JSON.

    A browser lets every page send other types without asking (Fetch standard, "CORS-safelisted request-header"), so
    that only the type makes it ask whether that page may. Programs may leave it out.
    """
    media = media_type(request)
    if media != JSON and "Origin" in request.headers:
        raise Permanent(f"Content-Type {media!r} is not accepted from web pages; send {JSON}", reason="media_type")


def _refusal(error: DeliveryError) -> web.Response:
    kind = next((word for classes, word in _ERROR_TYPES if isinstance(error, classes)), "invalid_request_error")
    body = msgspec.json.encode({"error": {"type": kind, "message": str(error)}})
    response = web.Response(status=error.http_status, body=body, content_type=JSON)
    if isinstance(error, Retryable):
        after = _DELAY if error.after is None else error.after
        # Whole seconds, and never "at once" (§1).
        response.headers["Retry-After"] = str(max(1, math.ceil(after)))
    elif isinstance(error, Unauthenticated):
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def _with_delay(error: DeliveryError) -> DeliveryError:
    """The same refusal; one that may pass later says when, so that the client gets RetryInfo (§4)."""
    if isinstance(error, Retryable) and error.after is None:
        return Retryable(str(error), after=_DELAY, reason=error.reason)
    return error


async def _until(stopping: asyncio.Event, messages: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The messages of a stream, until it ends or the receiver stops, which must not wait for a client that stays.

    Raises:
        Retryable: the receiver stops.
    """
    stop = asyncio.ensure_future(stopping.wait())
    try:
        while True:
            following = asyncio.ensure_future(anext(messages, None))
            await asyncio.wait({stop, following}, return_when=asyncio.FIRST_COMPLETED)
            if not following.done():
                following.cancel()
                raise Retryable("closing; come again", after=RETRY_AFTER, reason="closing")
            message = following.result()
            if message is None:
                return
            yield message
    finally:
        stop.cancel()
