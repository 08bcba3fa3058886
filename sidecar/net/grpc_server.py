"""A gRPC server that several components share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeAlias

import grpc.aio

from config import Settings

UnaryHandler: TypeAlias = Callable[[bytes, "grpc.aio.ServicerContext[bytes, bytes]"], Awaitable[bytes]]
StreamHandler: TypeAlias = Callable[[AsyncIterator[bytes], "grpc.aio.ServicerContext[bytes, bytes]"], Awaitable[bytes]]


class GrpcServerSettings(Settings):
    """How a gRPC server behaves, for all that it serves."""


class GrpcServer:
    """One listening gRPC server."""


class GrpcLease:
    """One component's part of a gRPC server. Handlers take and return bytes: decoding errors are ours to answer."""

    def unary(self, service: str, method: str, handler: UnaryHandler) -> None:
        """Serve a unary method. A DeliveryError that the handler raises becomes the call's status, with RetryInfo."""
        raise NotImplementedError

    def client_stream(self, service: str, method: str, handler: StreamHandler) -> None:
        """Serve a client-streaming method. As `unary`."""
        raise NotImplementedError

    async def open(self) -> None:
        """As `HttpLease.open`."""
        raise NotImplementedError

    async def close(self) -> None:
        """As `HttpLease.close`; afterwards the methods answer UNAVAILABLE with RetryInfo."""
        raise NotImplementedError
