"""Everything that listens: HTTP and gRPC servers that components share, and what crosses them."""

import os

# gRPC's C core writes to stderr what any stranger does to a port, and looks here once, when it is imported. All that
# matters comes as an exception too.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

# Its older way to poll sockets hands what arrives from thread to thread less often, which saves a tenth of the
# processor time of a request. A name that the library no longer knows does nothing.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_listener,-event_engine_client")

from sidecar.net.grpc_server import Door, GrpcLease, GrpcServerSettings
from sidecar.net.http_server import HttpLease, HttpServerSettings
from sidecar.net.listeners import Listeners

__all__ = ["Door", "GrpcLease", "GrpcServerSettings", "HttpLease", "HttpServerSettings", "Listeners"]
