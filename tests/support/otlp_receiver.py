"""The OTLP receiver on real sockets, and the ways to send to it."""

import contextlib
from dataclasses import dataclass

import grpc.aio
import orjson
from google.rpc.status_pb2 import Status
from support.otlp import logs_request, metrics_request, traces_request
from support.wire import exchange

from sidecar import SCHEMAS, Signal
from sidecar.receivers.otlp import OtlpReceiver
from sidecar.testing import Bench, Sink

PROTOBUF = "application/x-protobuf"
JSON = "application/json"
REQUESTS = {Signal.TRACES: traces_request, Signal.METRICS: metrics_request, Signal.LOGS: logs_request}
SIGNALS = list(Signal)


class Sending:
    """Ways to send to a receiver, of which `http` is the HTTP port and `channel` leads to the gRPC port."""

    def post(self, body=b"", content_type=PROTOBUF, signal=Signal.TRACES, path=None, method="POST", **headers):
        """One HTTP request."""
        if content_type is not None:
            headers["Content_Type"] = content_type
        return exchange(self.http, method, path or SCHEMAS[signal].http_path, body, **headers)

    def export(self, body=b"", signal=Signal.TRACES, **options):
        """One gRPC call."""
        return self.channel.unary_unary(f"/{SCHEMAS[signal].grpc_service}/Export")(body, **options)

    async def refused(self, body=b"", signal=Signal.TRACES, **options):
        """The error that a gRPC call ends with; None where it has none."""
        try:
            await self.export(body, signal, **options)
        except grpc.aio.AioRpcError as error:
            return error
        return None


@dataclass
class Remote(Sending):
    """A receiver of another process."""

    http: int
    channel: grpc.aio.Channel


@dataclass
class Server(Sending):
    """A running receiver and what it has handed on."""

    bench: Bench
    receiver: OtlpReceiver
    channel: grpc.aio.Channel | None = None

    @property
    def http(self):
        """The HTTP port."""
        return self.receiver.http.port

    @property
    def grpc(self):
        """The gRPC port."""
        return self.receiver.grpc.port

    @property
    def sink(self):
        """What has arrived."""
        return self.bench.sink


@contextlib.asynccontextmanager
async def running(http="{}", grpc_="{}", **bench):
    """A receiver with these settings besides its endpoints. None leaves a protocol out."""
    made = Bench(**bench)
    protocols = [
        f"{name}: {{endpoint: '127.0.0.1:0', {text.strip()[1:-1]}}}"
        for name, text in (("http", http), ("grpc", grpc_))
        if text is not None
    ]
    receiver = made.make(OtlpReceiver, f"protocols: {{{', '.join(protocols)}}}", "otlp")
    await receiver.start()
    try:
        server = Server(made, receiver)
        if receiver.grpc is None:
            yield server
        else:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{server.grpc}") as server.channel:
                yield server
    finally:
        await receiver.stop()
        await made.close()


def status_of(answer):
    """The google.rpc.Status in an error's body: (code, message), whatever its encoding."""
    if answer.headers["content-type"] == PROTOBUF:
        status = Status.FromString(answer.body)
        return status.code, status.message
    assert answer.headers["content-type"] == JSON
    status = orjson.loads(answer.body)
    return status["code"], status["message"]


def data_of(signal, count=1, **settings):
    """A request's bytes."""
    return REQUESTS[signal](count, **settings).SerializeToString()


def items(server, signal):
    """The spans, metrics or log records that have arrived at a server, or on a bench."""
    name = SCHEMAS[signal].records
    return [item for batch in server.sink.of(signal) for scope in batch.scopes() for item in getattr(scope, name)]


def plain(attributes):
    """Attributes as Python values."""
    return {one.key: value_of(one.value) for one in attributes}


def value_of(value):
    """An AnyValue as a Python value."""
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [value_of(one) for one in value.array_value.values]
    if kind == "kvlist_value":
        return plain(value.kvlist_value.values)
    return getattr(value, kind) if kind else None


class Fickle(Sink):
    """A pipeline that refuses some requests of each signal before it accepts."""

    def __init__(self, error, times):
        super().__init__()
        self.error = error
        self.left = dict.fromkeys(Signal, times)

    async def __call__(self, *batches):
        """Refuse, or accept."""
        signal = batches[0].signal
        if self.left[signal]:
            self.left[signal] -= 1
            raise self.error
        await super().__call__(*batches)
