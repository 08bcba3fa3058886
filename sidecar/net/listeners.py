"""One server per endpoint, shared by every component that names it."""

from __future__ import annotations

from config import Endpoint
from sidecar.net.grpc_server import GrpcLease, GrpcServerSettings
from sidecar.net.http_server import HttpLease, HttpServerSettings


class Listeners:
    """The servers of this process, by endpoint.

    A component takes a lease in `__init__` (no I/O), adds what it serves, opens the lease in `start` and closes it in
    `stop`. The socket is bound by the first `open` and let go by the last `close`.
    """

    def http(self, endpoint: Endpoint, owner: str, settings: HttpServerSettings | None = None) -> HttpLease:
        """A lease of the HTTP server at an endpoint.

        Args:
            endpoint: where it listens.
            owner: the component and the setting, for messages: `receivers.otlp: protocols.http.endpoint`.
            settings: how the server behaves; None takes whatever the others say.

        Raises:
            SettingError: the endpoint is a gRPC server's, or two components want it to behave differently.
        """
        raise NotImplementedError

    def grpc(self, endpoint: Endpoint, owner: str, settings: GrpcServerSettings | None = None) -> GrpcLease:
        """A lease of the gRPC server at an endpoint. As `http`."""
        raise NotImplementedError
