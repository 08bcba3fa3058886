"""The standard health service (grpc.health.v1) on a gRPC lease: what load balancers and orchestrators ask."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from typing import Final

import grpc
from google.protobuf.message import DecodeError
from google.protobuf.wrappers_pb2 import Int32Value, StringValue

from sidecar.errors import Permanent
from sidecar.net.grpc_server import GrpcLease
from sidecar.net.status import GrpcContext

_SERVICE: Final = "grpc.health.v1.Health"
_SERVING: Final = 1
_NOT_SERVING: Final = 2
_SERVICE_UNKNOWN: Final = 3
# How soon those who watch hear of a change.
_INTERVAL: Final = 0.5


class GrpcHealth:
    """Answers for the services of one lease, and for "", which is the whole.

    HealthCheckRequest and HealthCheckResponse have one field each, number 1, a string and an enumeration: on the wire
    they are the well-known wrappers of those types.
    """

    def __init__(self, lease: GrpcLease, services: Collection[str], is_serving: Callable[[], bool]) -> None:
        """Serve `Check` and `Watch`. Call it before `open`."""
        self._lease = lease
        self._services = frozenset(services) | {""}
        self._is_serving = is_serving
        lease.unary(_SERVICE, "Check", self._check)
        lease.server_stream(_SERVICE, "Watch", self._watch)

    async def _check(self, request: bytes, context: GrpcContext) -> bytes:
        status = self._status(_name(request))
        if status == _SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service here")
        return _answer(status)

    async def _watch(self, request: bytes, _context: GrpcContext) -> AsyncIterator[bytes]:
        name, last = _name(request), None
        while self._lease.is_open:
            status = self._status(name)
            if status != last:
                yield _answer(status)
                last = status
            await asyncio.sleep(_INTERVAL)
        yield _answer(_NOT_SERVING)

    def _status(self, name: str) -> int:
        if name not in self._services:
            return _SERVICE_UNKNOWN
        return _SERVING if self._is_serving() else _NOT_SERVING


def _name(request: bytes) -> str:
    try:
        return StringValue.FromString(request).value
    except DecodeError:
        raise Permanent("not a HealthCheckRequest") from None


def _answer(status: int) -> bytes:
    return Int32Value(value=status).SerializeToString()
