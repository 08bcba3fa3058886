"""Takes in OTLP over gRPC and HTTP: logs, metrics and traces, as protobuf or JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final, Literal

import grpc.aio
from aiohttp import web

from config import Duration, Endpoint, SettingError, Settings, Size
from config.settings import Ignored
from sidecar.batch import Batch, BatchContext
from sidecar.callers import AuthSettings, Callers, networks
from sidecar.component import Context, Receiver
from sidecar.errors import DeliveryError, NotServed, Retryable
from sidecar.net import Door, GrpcLease, GrpcServerSettings, HttpLease, HttpServerSettings
from sidecar.net.body import CODINGS, read_body
from sidecar.net.cors import Cors, CorsSettings
from sidecar.net.grpc_health import GrpcHealth
from sidecar.net.salvage import Received, receive
from sidecar.net.status import JSON, PROTOBUF, PROTOBUF_TYPES, UnsupportedMedia, media_type
from sidecar.signals import SCHEMAS, Signal
from sidecar.telemetry.receiver_counts import ReceiverCounts

# A larger request is converted in a thread, so that the loop goes on meanwhile; a smaller one costs less than that.
_THREAD_ABOVE: Final = 2**20
_Transport = Literal["tcp", "tcp4", "tcp6", "unix"]


class OtlpGrpcSettings(GrpcServerSettings):
    """The gRPC side, named as the Collector's."""

    endpoint: Endpoint = Endpoint("localhost:4317")
    transport: _Transport | None = None
    auth: AuthSettings | None = None
    include_metadata: bool | tuple[str, ...] = False
    middlewares: Ignored = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_transport(self.endpoint, self.transport)


class OtlpHttpSettings(HttpServerSettings):
    """The HTTP side, named as the Collector's.

    `read_timeout`: how long a body may take to arrive. `trusted_proxies`: addresses or networks whose
    `X-Forwarded-For` is believed.
    """

    endpoint: Endpoint = Endpoint("localhost:4318")
    transport: _Transport | None = None
    traces_url_path: str = "/v1/traces"
    metrics_url_path: str = "/v1/metrics"
    logs_url_path: str = "/v1/logs"
    max_request_body_size: Size = Size("64MiB")
    read_timeout: Duration = Duration("1m")
    compression_algorithms: tuple[str, ...] | None = None
    cors: CorsSettings | None = None
    auth: AuthSettings | None = None
    include_metadata: bool | tuple[str, ...] = False
    trusted_proxies: tuple[str, ...] = ()
    write_timeout: Ignored = None
    response_headers: Ignored = None
    middlewares: Ignored = None

    def __post_init__(self) -> None:
        _check_transport(self.endpoint, self.transport)
        networks(self.trusted_proxies)

    def path(self, signal: Signal) -> str:
        """Where a signal is posted. The Collector adds a missing slash, too."""
        path: str = getattr(self, f"{signal.value}_url_path")
        return path if path.startswith("/") else f"/{path}"


def _check_transport(endpoint: Endpoint, transport: str | None) -> None:
    if transport is not None and (transport == "unix") != (endpoint.path is not None):
        raise SettingError(f"transport {transport} does not fit the endpoint {endpoint}; leave it out", "transport")


class OtlpProtocols(Settings):
    """Which of the two are served. One that is written without anything below it has its defaults."""

    grpc: OtlpGrpcSettings | None = None
    http: OtlpHttpSettings | None = None

    def __post_init__(self) -> None:
        if self.grpc is None and self.http is None:
            raise SettingError("must name at least one protocol; write `grpc:`, `http:` or both")


class OtlpSettings(Settings):
    """Where and how OTLP is received. Without `protocols`, both are served at their usual ports."""

    protocols: OtlpProtocols = OtlpProtocols(grpc=OtlpGrpcSettings(), http=OtlpHttpSettings())


class OtlpReceiver(Receiver[OtlpSettings]):
    """An OTLP server.

    A request is accepted as a whole before its sender is told so. What is wrong with single records costs only them,
    and the sender learns of it as a partial success.
    """

    def __init__(self, settings: OtlpSettings, context: Context) -> None:
        super().__init__(settings, context)
        self.grpc: GrpcLease | None = None
        self.http: HttpLease | None = None
        protocols = settings.protocols
        if protocols.grpc is not None:
            self.grpc = self._lease_grpc(protocols.grpc)
        if protocols.http is not None:
            self.http = self._lease_http(protocols.http)

    def _lease_grpc(self, settings: OtlpGrpcSettings) -> GrpcLease:
        owner = f"receivers.{self.context.id}: protocols.grpc.endpoint"
        lease = self.context.listeners.grpc(settings.endpoint, owner, _part(settings, GrpcServerSettings))
        callers = Callers(
            self.context, settings.auth, include_metadata=settings.include_metadata, path=("protocols", "grpc")
        )
        for signal, schema in SCHEMAS.items():
            export = GrpcExport(Intake(self, signal, "grpc"), callers)
            lease.unary(
                schema.grpc_service, "Export", export, Door(lambda: self.context.admission.is_short, export.admit)
            )
        board = self.context.board
        GrpcHealth(lease, [schema.grpc_service for schema in SCHEMAS.values()], lambda: board.is_serving)
        return lease

    def _lease_http(self, settings: OtlpHttpSettings) -> HttpLease:
        owner = f"receivers.{self.context.id}: protocols.http.endpoint"
        lease = self.context.listeners.http(settings.endpoint, owner, _part(settings, HttpServerSettings))
        callers = Callers(
            self.context,
            settings.auth,
            include_metadata=settings.include_metadata,
            trusted_proxies=settings.trusted_proxies,
            path=("protocols", "http"),
        )
        cors = Cors(settings.cors) if settings.cors is not None and settings.cors.allowed_origins else None
        for signal in SCHEMAS:
            export = HttpExport(Intake(self, signal, "http"), callers, settings)
            lease.route("POST", settings.path(signal), export, cors)
        return lease

    async def start(self) -> None:
        """Listen."""
        for lease in self._leases():
            await lease.open()
        self.context.health.ok()

    async def stop(self) -> None:
        """Finish the requests under way, and let go of the listeners."""
        await asyncio.gather(*(lease.close() for lease in self._leases()))

    def _leases(self) -> list[GrpcLease | HttpLease]:
        return [lease for lease in (self.grpc, self.http) if lease is not None]


def _part(settings: Any, kind: type[Any]) -> Any:
    """The part of the settings that is the server's."""
    return kind(**{name: getattr(settings, name) for name in kind.__struct_fields__})


class Intake:
    """From the bytes of one signal's request to the pipeline, and back to the bytes of the answer."""

    def __init__(self, receiver: OtlpReceiver, signal: Signal, transport: str) -> None:
        self.signal = signal
        self.schema = SCHEMAS[signal]
        self._receiver = receiver
        self._context = receiver.context
        self._counts = ReceiverCounts(receiver.context.meter)
        self._transport = transport

    def check_served(self) -> None:
        """Refuse early what no pipeline takes.

        Raises:
            NotServed: not retryable, since it would be for nothing.
        """
        if not self._receiver.emit.accepts(self.signal):
            raise NotServed(f"no pipeline of this sidecar takes {self.signal.value}")

    async def read(self, data: bytes, *, json: bool) -> Received:
        """The request, checked.

        Raises:
            Permanent: it is not one.
        """
        read = self._read_json if json else self._read_protobuf
        received, repairs = await asyncio.to_thread(read, data) if len(data) > _THREAD_ABOVE else read(data)
        if repairs:
            self._counts.repaired(repairs, self._transport)
        return received

    def _read_protobuf(self, data: bytes) -> tuple[Received, Mapping[str, int]]:
        received = receive(self.signal, data)
        return received, received.repaired

    def _read_json(self, data: bytes) -> tuple[Received, Mapping[str, int]]:
        from sidecar.net import otlp_json  # most senders never need it

        transcoded = otlp_json.decode(self.signal, data)
        received = receive(self.signal, transcoded.data)
        return received, {**transcoded.repairs, **received.repaired}

    async def accept(self, received: Received, context: BatchContext) -> Any:
        """Hand the request on.

        Returns:
            The response message; None stands for the empty one.

        Raises:
            DeliveryError: nothing of it was accepted.
        """
        batch = Batch(self.signal, received.data, received.message, context=context, items=received.items)
        # Nothing to hand on is a success (OTLP specification, "OTLP/gRPC Response").
        if len(batch):
            await self._receiver.emit(batch)
        if not received.rejected:
            return None
        for reason, items in received.reasons.items():
            self._context.dropped(self.signal, reason, items)
        response = self.schema.response()
        setattr(response.partial_success, self.schema.rejected, received.rejected)
        response.partial_success.error_message = received.explanation
        return response

    def count_refused(self, error: DeliveryError) -> None:
        """Count a request that was refused."""
        self._counts.refused(error, self._transport)


class GrpcExport:
    """One signal's `Export` method."""

    def __init__(self, intake: Intake, callers: Callers) -> None:
        self._intake = intake
        self._callers = callers

    def admit(self, call: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        """Refuse a caller before its message is read, while memory is short. Raises DeliveryError."""
        try:
            self._callers.admit(self._callers.of_grpc(call))
        except DeliveryError as error:
            self._intake.count_refused(error)
            raise

    async def __call__(self, data: bytes, call: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        """Take in one request."""
        intake = self._intake
        try:
            intake.check_served()
            context = self._callers.of_grpc(call)
            received = await intake.read(data, json=False)
            left = call.time_remaining()
            if left is not None and left <= 0:
                # The caller has given up and will send it again: accepting it now would make two of it.
                raise Retryable("the caller's deadline has passed", reason="deadline")
            response = await intake.accept(received, context)
        except DeliveryError as error:
            intake.count_refused(error)
            raise
        return b"" if response is None else response.SerializeToString()


class HttpExport:
    """One signal's path."""

    def __init__(self, intake: Intake, callers: Callers, settings: OtlpHttpSettings) -> None:
        self._intake = intake
        self._callers = callers
        self._max_size = settings.max_request_body_size
        self._within = settings.read_timeout
        chosen = settings.compression_algorithms
        self._codings = None if chosen is None else frozenset(chosen) & CODINGS.keys()

    async def __call__(self, request: web.BaseRequest) -> web.Response:
        """Take in one request."""
        intake = self._intake
        try:
            intake.check_served()
            media = media_type(request)
            json = media == JSON
            if not json and media not in PROTOBUF_TYPES:
                raise UnsupportedMedia(f"Content-Type {media!r} is not accepted; accepted: {PROTOBUF}, {JSON}")
            context = self._callers.of_http(request)
            self._callers.admit(context)
            data = await read_body(request, self._max_size, within=self._within, codings=self._codings)
            received = await intake.read(data, json=json)
            if request.transport is None:
                # The client has given up and will send it again: accepting it now would make two of it.
                raise Retryable("the client is gone", reason="deadline")
            response = await intake.accept(received, context)
        except DeliveryError as error:
            intake.count_refused(error)
            raise
        if json:
            from sidecar.net import otlp_json

            return web.Response(body=b"{}" if response is None else otlp_json.encode(response), headers=_JSON_HEADERS)
        body = b"" if response is None else response.SerializeToString()
        return web.Response(body=body, headers=_PROTOBUF_HEADERS)


_JSON_HEADERS: Final = {"Content-Type": JSON}
_PROTOBUF_HEADERS: Final = {"Content-Type": PROTOBUF}
