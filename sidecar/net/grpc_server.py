"""A gRPC server that several components share."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final, TypeAlias

import grpc.aio

from config import Endpoint, Settings
from sidecar.errors import DeliveryError, Retryable, StartError
from sidecar.net.shared import GRACE, RETRY_AFTER, Lease, SharedServer
from sidecar.net.sockets import addresses, bind, close_all, remove_stale
from sidecar.net.status import GrpcContext, grpc_abort
from sidecar.net.tls import TlsServerSettings

UnaryHandler: TypeAlias = Callable[[bytes, GrpcContext], Awaitable[bytes]]
StreamHandler: TypeAlias = Callable[[AsyncIterator[bytes], GrpcContext], Awaitable[bytes]]

# grpc's type of it takes parameters only in its stubs.
MethodHandler: TypeAlias = Any

_LOGGER: Final = logging.getLogger("sidecar.net.grpc")


class GrpcServerSettings(Settings):
    """How a gRPC server behaves, for all that it serves. Named as the Collector's."""

    tls: TlsServerSettings | None = None
    max_recv_msg_size_mib: int = 64


class GrpcLease(Lease[GrpcServerSettings, MethodHandler]):
    """One component's part of a gRPC server. Handlers take and return bytes: decoding errors are ours to answer.

    A DeliveryError that a handler raises becomes the call's status, with RetryInfo; any other exception is logged and
    answered UNAVAILABLE.
    """

    def unary(self, service: str, method: str, handler: UnaryHandler) -> None:
        """Serve a unary method. Call it before `open`.

        Raises:
            SettingError: the method is another component's, which the message names.
        """
        path = f"/{service}/{method}"
        self.claim(path, grpc.unary_unary_rpc_method_handler(self._guard(path, handler)))

    def client_stream(self, service: str, method: str, handler: StreamHandler) -> None:
        """Serve a client-streaming method. As `unary`."""
        path = f"/{service}/{method}"
        self.claim(path, grpc.stream_unary_rpc_method_handler(self._guard(path, handler)))

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
        return claim.handler if claim is not None else None


class GrpcServer(SharedServer[GrpcServerSettings, MethodHandler]):
    """One listening gRPC server."""

    kind = "gRPC"

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self._server: grpc.aio.Server | None = None

    def default_settings(self) -> GrpcServerSettings:
        """As the base says."""
        return GrpcServerSettings()

    async def listen(self, settings: GrpcServerSettings, owner: str) -> int:
        """As the base says."""
        server = grpc.aio.server(handlers=[_Dispatch(self.table)], options=_options(settings))
        try:
            port = await self._bind(server, owner)
        except RuntimeError as error:
            raise StartError(f"{owner}: can't listen on {self.endpoint}: {error}") from None
        await server.start()
        self._server = server
        return port

    async def _bind(self, server: grpc.aio.Server, owner: str) -> int:
        if self.endpoint.path is not None:
            # The library takes a living server's socket away without a word.
            remove_stale(Path(self.endpoint.path), owner)
            server.add_insecure_port(f"unix:{self.endpoint.path}")
            return 0
        # The library says only that it failed; a bind of our own says why.
        if self.endpoint.port:
            close_all(await bind(self.endpoint, owner))
        port = self.endpoint.port
        for address in await addresses(self.endpoint, owner):
            try:
                port = server.add_insecure_port(address.text(port))
            except RuntimeError:
                if not address.optional:
                    raise
        return port

    async def change(self, settings: GrpcServerSettings, owner: str) -> int:
        """As the base says."""
        await self.shut()
        return await self.listen(settings, owner)

    async def shut(self) -> None:
        """As the base says."""
        if self._server is not None:
            server, self._server = self._server, None
            await server.stop(GRACE)


def _options(settings: GrpcServerSettings) -> list[tuple[str, Any]]:
    return [
        # Without it a second server binds the same port silently, and the kernel splits the clients between the two.
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", settings.max_recv_msg_size_mib * 2**20),
    ]
