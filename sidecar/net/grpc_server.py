"""A gRPC server that several components share."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeAlias

import grpc.aio
import msgspec

from config import Duration, Endpoint, SettingError, Settings
from config.settings import Ignored
from sidecar.errors import DeliveryError, Retryable, StartError
from sidecar.net.shared import GRACE, LAST_WORDS, RETRY_AFTER, Lease, SharedServer
from sidecar.net.sockets import addresses, bind, close_all
from sidecar.net.status import GrpcContext, grpc_abort
from sidecar.net.tls import Certificates, Renewal, TlsServerSettings

UnaryHandler: TypeAlias = Callable[[bytes, GrpcContext], Awaitable[bytes]]
AnswersHandler: TypeAlias = Callable[[bytes, GrpcContext], AsyncIterator[bytes]]
StreamHandler: TypeAlias = Callable[[AsyncIterator[bytes], GrpcContext], Awaitable[bytes]]

# grpc's type of it takes parameters only in its stubs.
MethodHandler: TypeAlias = Any

# For the TLS and HTTP/2 handshakes: what a slow sender may take until it is known to speak gRPC.
_HANDSHAKE_TIMEOUT: Final = 30

_LOGGER: Final = logging.getLogger("sidecar.net.grpc")


class KeepaliveServerParameters(Settings):
    """When the server ends a connection or asks whether it still lives; what is not written is gRPC's default."""

    max_connection_idle: Duration | None = None
    max_connection_age: Duration | None = None
    max_connection_age_grace: Duration | None = None
    time: Duration | None = None
    timeout: Duration | None = None


class KeepaliveEnforcementPolicy(Settings):
    """How often clients may ask whether the connection lives; those that ask more often are cut off."""

    min_time: Duration = Duration("5m")
    permit_without_stream: bool = False


class KeepaliveSettings(Settings):
    """Keepalive, named as the Collector's."""

    server_parameters: KeepaliveServerParameters | None = None
    enforcement_policy: KeepaliveEnforcementPolicy | None = None


class GrpcServerSettings(Settings):
    """How a gRPC server behaves, for all that it serves. Named as the Collector's.

    `max_concurrent_streams` is per connection. It is a guard, not a throttle: the library refuses some of the calls
    above it, and not every client tries again.
    """

    tls: TlsServerSettings | None = None
    max_recv_msg_size_mib: Annotated[int, msgspec.Meta(ge=1, le=2047)] = 64
    max_concurrent_streams: Annotated[int, msgspec.Meta(ge=1)] = 1000
    max_connections: Annotated[int, msgspec.Meta(ge=1)] = 1024
    keepalive: KeepaliveSettings | None = None
    read_buffer_size: Ignored = None
    write_buffer_size: Ignored = None

    def __post_init__(self) -> None:
        if self.tls is not None and self.tls.min_version != "1.2":
            raise SettingError(
                "gRPC serves TLS 1.2 and 1.3 to whoever asks, and knows no higher minimum; leave it out",
                "tls",
                "min_version",
            )


@dataclass(frozen=True, slots=True)
class Door:
    """What stands before a method.

    Attributes:
        is_watched: whether callers are looked at now. Looking costs a little.
        admit: raises a DeliveryError for a caller that has to stay outside.
    """

    is_watched: Callable[[], bool]
    admit: Callable[[GrpcContext], None]


class GrpcLease(Lease[GrpcServerSettings, MethodHandler]):
    """One component's part of a gRPC server. Handlers take and return bytes: decoding errors are ours to answer.

    A DeliveryError that a handler raises becomes the call's status, with RetryInfo; any other exception is logged and
    answered UNAVAILABLE.
    """

    def unary(self, service: str, method: str, handler: UnaryHandler, door: Door | None = None) -> None:
        """Serve a unary method. Call it before `open`.

        Args:
            service: its name.
            method: its name.
            handler: called for each request.
            door: turns callers away before their message is read.

        Raises:
            SettingError: the method is another component's, which the message names.
        """
        path = f"/{service}/{method}"
        ordinary: MethodHandler = grpc.unary_unary_rpc_method_handler(self._guard(path, handler))
        if door is None:
            self.claim(path, ordinary)
            return
        admit = door.admit

        async def guarded(messages: AsyncIterator[bytes], context: GrpcContext) -> bytes:
            admit(context)
            return await handler(await anext(messages), context)

        # To the library a stream of one message is the same on the wire; but it reads none before it is asked to.
        careful: MethodHandler = grpc.stream_unary_rpc_method_handler(self._guard(path, guarded))
        is_watched = door.is_watched
        self.claim(path, lambda: careful if is_watched() else ordinary)

    def client_stream(self, service: str, method: str, handler: StreamHandler) -> None:
        """Serve a client-streaming method. As `unary`."""
        path = f"/{service}/{method}"
        self.claim(path, grpc.stream_unary_rpc_method_handler(self._guard(path, handler)))

    def server_stream(self, service: str, method: str, handler: AnswersHandler) -> None:
        """Serve a server-streaming method. It must end by itself when the lease is no longer open. As `unary`."""
        path = f"/{service}/{method}"

        async def call(request: bytes, context: GrpcContext) -> AsyncIterator[bytes]:
            if not self.is_open:
                await grpc_abort(Retryable("closing; come again", after=RETRY_AFTER, reason="closing"), context)
            self.active += 1
            try:
                async for answer in handler(request, context):
                    yield answer
            except DeliveryError as error:
                await grpc_abort(error, context)
            finally:
                self.done()

        self.claim(path, grpc.unary_stream_rpc_method_handler(call))

    def _guard(self, path: str, handler: Callable[[Any, GrpcContext], Awaitable[bytes]]) -> Any:
        async def call(request: Any, context: GrpcContext) -> bytes:
            if not self.is_open:
                await grpc_abort(Retryable("closing; come again", after=RETRY_AFTER, reason="closing"), context)
            self.active += 1
            try:
                return await handler(request, context)
            except DeliveryError as error:
                refusal = error
            except grpc.aio.AbortError:
                raise
            except Exception:
                _LOGGER.exception("%s: the handler of %s failed", self.owner, path)
                refusal = Retryable("internal error; the sidecar's log says more", reason="internal")
            finally:
                self.done()
            return await grpc_abort(refusal, context)

        return call


class _Dispatch(grpc.GenericRpcHandler):
    """Finds the handler of a call in the server's table, so that services come and go while it runs."""

    def __init__(self, table: dict[Any, Any]) -> None:
        self._table = table

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> MethodHandler:
        claim = self._table.get(handler_call_details.method)
        if claim is None:
            return None
        return claim.handler() if callable(claim.handler) else claim.handler


class GrpcServer(SharedServer[GrpcServerSettings, MethodHandler]):
    """One listening gRPC server."""

    kind = "gRPC"

    def __init__(self, endpoint: Endpoint, advice: Callable[[Any], str] = lambda _: "") -> None:
        super().__init__(endpoint, advice)
        self._server: grpc.aio.Server | None = None
        self._renewal: Renewal | None = None

    def default_settings(self) -> GrpcServerSettings:
        """As the base says."""
        return GrpcServerSettings()

    async def listen(self, settings: GrpcServerSettings, owner: str) -> int:
        """As the base says."""
        return await self._listen(
            settings,
            Certificates.load(settings.tls, owner) if settings.tls is not None else None,
            self.endpoint.port,
            owner,
        )

    async def change(self, settings: GrpcServerSettings, owner: str) -> int:
        """As the base says. The library can't hand a socket over, so clients have to reconnect."""
        certificates = Certificates.load(settings.tls, owner) if settings.tls is not None else None
        await self._stop(GRACE)
        return await self._listen(settings, certificates, self.port, owner)

    async def shut(self) -> None:
        """As the base says."""
        await self._stop(LAST_WORDS)

    async def _stop(self, grace: float) -> None:
        if self._renewal is not None:
            await self._renewal.stop()
            self._renewal = None
        if self._server is not None:
            server, self._server = self._server, None
            await server.stop(grace)

    async def _listen(
        self, settings: GrpcServerSettings, certificates: Certificates | None, port: int, owner: str
    ) -> int:
        if self.endpoint.port or self.endpoint.path:
            # The library says only that it failed, and takes a living server's Unix socket away without a word. A bind
            # of our own says why.
            close_all(await bind(self.endpoint, owner))
        server = grpc.aio.server(handlers=[_Dispatch(self.table)], options=_options(settings))
        renewed: list[Certificates] = []
        credentials = _credentials(certificates, renewed) if certificates is not None else None
        try:
            port = await self._add_ports(server, credentials, port, owner)
        except RuntimeError as error:
            raise StartError(f"{owner}: can't listen on {self.endpoint}: {error}") from None
        await server.start()
        self._server = server
        if settings.tls is not None and certificates is not None:

            async def renew(fresh: Certificates) -> None:
                renewed[:] = [fresh]

            self._renewal = Renewal(settings.tls, certificates, owner, renew)
        return port

    async def _add_ports(
        self, server: grpc.aio.Server, credentials: grpc.ServerCredentials | None, port: int, owner: str
    ) -> int:
        def add(address: str) -> int:
            if credentials is None:
                return server.add_insecure_port(address)
            return server.add_secure_port(address, credentials)

        if self.endpoint.path is not None:
            add(f"unix:{self.endpoint.path}")
            return 0
        for address in await addresses(self.endpoint, owner):
            try:
                port = add(address.text(port))
            except RuntimeError:
                if not address.optional:
                    raise
        return port


def _credentials(certificates: Certificates, renewed: list[Certificates]) -> grpc.ServerCredentials:
    def fetch() -> grpc.ServerCertificateConfiguration | None:
        # Called by threads of the library before each handshake.
        try:
            return _configuration(renewed.pop())
        except IndexError:
            return None

    return grpc.dynamic_ssl_server_credentials(
        _configuration(certificates),
        fetch,  # type: ignore[arg-type] # None means no change, says its documentation
        require_client_authentication=bool(certificates.client_ca),
    )


def _configuration(certificates: Certificates) -> grpc.ServerCertificateConfiguration:
    pair = (certificates.key, certificates.certificate)
    return grpc.ssl_server_certificate_configuration([pair], certificates.client_ca or None)


def _options(settings: GrpcServerSettings) -> list[tuple[str, int]]:
    keepalive = settings.keepalive or KeepaliveSettings()
    parameters = keepalive.server_parameters or KeepaliveServerParameters()
    options: dict[str, float | None] = {
        # Without it a second server binds the same port silently, and the kernel splits the clients between the two.
        "grpc.so_reuseport": 0,
        "grpc.max_receive_message_length": settings.max_recv_msg_size_mib * 2**20,
        "grpc.max_concurrent_streams": settings.max_concurrent_streams,
        "grpc.max_allowed_incoming_connections": settings.max_connections,
        "grpc.server_handshake_timeout_ms": _HANDSHAKE_TIMEOUT * 1000,
        "grpc.max_connection_idle_ms": _milliseconds(parameters.max_connection_idle),
        "grpc.max_connection_age_ms": _milliseconds(parameters.max_connection_age),
        "grpc.max_connection_age_grace_ms": _milliseconds(parameters.max_connection_age_grace),
        "grpc.keepalive_time_ms": _milliseconds(parameters.time),
        "grpc.keepalive_timeout_ms": _milliseconds(parameters.timeout),
    }
    policy = keepalive.enforcement_policy
    if policy is not None:
        options["grpc.http2.min_ping_interval_without_data_ms"] = _milliseconds(policy.min_time)
        options["grpc.keepalive_permit_without_calls"] = int(policy.permit_without_stream)
    return [(name, int(value)) for name, value in options.items() if value is not None]


def _milliseconds(duration: Duration | None) -> float | None:
    return None if duration is None else duration * 1000
