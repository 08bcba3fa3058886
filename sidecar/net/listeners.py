"""One server per endpoint, shared by every component that names it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TypeVar

from config import Endpoint, SettingError
from sidecar.net.grpc_server import GrpcLease, GrpcServer, GrpcServerSettings
from sidecar.net.http_server import HttpLease, HttpServer, HttpServerSettings

_Server = TypeVar("_Server", HttpServer, GrpcServer)


class Listeners:
    """The servers of this process, by endpoint.

    A component takes a lease in `__init__` (no I/O), adds what it serves, opens the lease in `start` and closes it in
    `stop`. The socket is bound by the first `open` and let go by the last `close`.
    """

    def __init__(self) -> None:
        self._servers: dict[Endpoint | tuple[str, Endpoint], HttpServer | GrpcServer] = {}
        self._replaced: Collection[str] = ()

    @contextmanager
    def replacing(self, components: Collection[str]) -> Iterator[None]:
        """Leases taken inside may claim what those components have now: for making a new document's components.

        A route changes hands in `hand_over`, or when the old lease closes; until then the old one serves.

        Args:
            components: the part of their `owner` before the colon: `receivers.otlp`.
        """
        self._replaced = frozenset(components)
        try:
            yield
        finally:
            self._replaced = ()

    def http(self, endpoint: Endpoint, owner: str, settings: HttpServerSettings | None = None) -> HttpLease:
        """A lease of the HTTP server at an endpoint.

        Args:
            endpoint: where it listens. With port 0, all HTTP leases of the same host share one free port.
            owner: the component and the setting, for messages: `receivers.otlp: protocols.http.endpoint`.
            settings: how the server behaves; None takes whatever the others say.

        Raises:
            SettingError: the endpoint is a gRPC server's, or two components want it to behave differently.
        """
        server = self._server(HttpServer, endpoint, owner)
        lease = HttpLease(server, owner, settings, self._replaced)
        server.add(lease)
        return lease

    def grpc(self, endpoint: Endpoint, owner: str, settings: GrpcServerSettings | None = None) -> GrpcLease:
        """A lease of the gRPC server at an endpoint. As `http`."""
        server = self._server(GrpcServer, endpoint, owner)
        lease = GrpcLease(server, owner, settings, self._replaced)
        server.add(lease)
        return lease

    def hand_over(self) -> None:
        """Let new leases that are open serve the routes that they share with old ones: all in one step."""
        for server in self._servers.values():
            server.hand_over()

    def forget_unopened(self) -> None:
        """Let go of what was leased and not opened: when the components of a new document will not run after all.

        The garbage collector would do so, but later, and until then others would be refused what those had claimed.
        """
        for server in self._servers.values():
            server.forget_unopened()

    def forget_closed_routes(self) -> None:
        """Answer that there is no such thing where a closed lease has asked to come again: nothing will follow it."""
        for server in self._servers.values():
            server.forget_closed_routes()

    def serving(self) -> list[tuple[str, list[str]]]:
        """What listens now: `http://localhost:4318` or `grpc://localhost:4317`, and the paths that are served there."""
        return sorted(
            (
                server.address,
                sorted({route.rpartition(" ")[2] for route, claim in server.table.items() if claim.lease.is_open}),
            )
            for server in self._servers.values()
            if server.is_listening
        )

    def _server(self, kind: type[_Server], endpoint: Endpoint, owner: str) -> _Server:
        # A free port is nobody's in particular: what speaks HTTP and what speaks gRPC get one each.
        key = (kind.kind, endpoint) if endpoint.path is None and not endpoint.port else endpoint
        server = self._servers.get(key)
        if isinstance(server, kind):
            return server
        if server is not None and server.leases:
            other = server.holder
            raise SettingError(
                f"{owner} speaks {kind.kind} and {other} speaks {server.kind}, both on {endpoint}; write another port "
                "for one of them"
            )
        made = self._servers[key] = kind(endpoint, self._neighbour)
        return made

    def _neighbour(self, server: HttpServer | GrpcServer) -> str:
        """Who of this process listens on the same port under another name, in words."""
        for other in self._servers.values():
            if other is not server and other.is_listening and other.port == server.endpoint.port != 0:
                return (
                    f"; in this process {other.holder} listens on {other.endpoint}: write the same endpoint to share it"
                )
        return ""
