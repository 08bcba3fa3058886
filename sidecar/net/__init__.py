"""Everything that listens: HTTP and gRPC servers that components share, and what crosses them."""

from sidecar.net.grpc_server import GrpcLease, GrpcServerSettings
from sidecar.net.http_server import HttpLease, HttpServerSettings
from sidecar.net.listeners import Listeners

__all__ = ["GrpcLease", "GrpcServerSettings", "HttpLease", "HttpServerSettings", "Listeners"]
