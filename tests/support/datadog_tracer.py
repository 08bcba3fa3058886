"""What Datadog's tracers send, made by hand from the protocol's own terms, and the receiver that takes it."""

import contextlib
from dataclasses import dataclass

import msgspec
from support.otlp_receiver import items, plain
from support.wire import exchange

from sidecar import Signal
from sidecar.receivers.datadog import DatadogReceiver
from sidecar.testing import Bench

MSGPACK = "application/msgpack"
HIGH = "0123456789abcdef"
LOW = 0x0022334455667788  # begins with zeros: the whole id must keep them
TRACE_ID = bytes.fromhex("0123456789abcdef0022334455667788")
START = 1_700_000_000_000_000_000


def span(**fields):
    """A span in the terms of v0.4."""
    return {
        "service": "web",
        "name": "flask.request",
        "resource": "GET /users",
        "trace_id": LOW,
        "span_id": 1,
        "parent_id": 0,
        "start": START,
        "duration": 5_000_000,
        "error": 0,
        "meta": {},
        "metrics": {},
        "type": "web",
    } | fields


def v04(*chunks):
    """A body of v0.4, or of v0.3."""
    return msgspec.msgpack.encode(chunks)


def v05(*chunks):
    """A body of v0.5."""
    table = {"": 0}

    def ref(text):
        return table.setdefault(text, len(table))

    rows = [
        [
            [
                *(ref(one[name]) for name in ("service", "name", "resource")),
                *(one[name] for name in ("trace_id", "span_id", "parent_id", "start", "duration", "error")),
                {ref(key): ref(value) for key, value in one["meta"].items()},
                {ref(key): value for key, value in one["metrics"].items()},
                ref(one["type"]),
            ]
            for one in chunk
        ]
        for chunk in chunks
    ]
    return msgspec.msgpack.encode([list(table), rows])


def v07(*chunks, **payload):
    """A body of v0.7, from chunks as they are in it."""
    return msgspec.msgpack.encode({"chunks": chunks, **payload})


@dataclass
class Agent:
    """A running receiver."""

    bench: Bench
    receiver: DatadogReceiver

    async def send(self, body=b"", path="/v0.4/traces", method="POST", content_type=MSGPACK, **headers):
        """One request; `_` in a header's name stands for a hyphen."""
        if content_type is not None:
            headers["Content_Type"] = content_type
        return await exchange(self.receiver.port, method, path, body, **headers)

    @property
    def spans(self):
        """The spans that have been handed on."""
        return items(self.bench, Signal.TRACES)

    @property
    def resources(self):
        """The attributes of their resources."""
        return [
            plain(one.resource.attributes)
            for batch in self.bench.sink.of(Signal.TRACES)
            for one in batch.message.resource_spans
        ]


@contextlib.asynccontextmanager
async def running(settings="", **bench):
    """A receiver with these settings besides its endpoint."""
    made = Bench(**bench)
    receiver = made.make(DatadogReceiver, f"{{endpoint: '127.0.0.1:0', {settings}}}", "datadog")
    await receiver.start()
    try:
        yield Agent(made, receiver)
    finally:
        await receiver.stop()
        await made.close()
