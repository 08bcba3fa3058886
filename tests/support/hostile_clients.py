"""What clients do to an OTLP receiver, most of it wrong. Each act returns what became of it, `EXPECTED` what should.

A receiver for them has `max_request_body_size: 100KiB`, and little patience with slow ones.
"""

import gzip

import grpc.aio
from support.otlp import logs_request
from support.otlp_receiver import JSON, PROTOBUF, data_of
from support.wire import chunked, request

from sidecar import Signal
from sidecar.net import otlp_json

DATA = data_of(Signal.LOGS)
PATH = "/v1/logs"


async def good(wire, _server):
    """An ordinary request."""
    await wire.send(request("POST", PATH, DATA, Content_Type=PROTOBUF))
    return (await wire.answer()).status


async def good_json(wire, _server):
    """As JSON, compressed, in chunks."""
    body = gzip.compress(otlp_json.encode(logs_request(1)))
    headers = {"Content_Type": JSON, "Content_Encoding": "gzip", "Transfer_Encoding": "chunked"}
    await wire.send(request("POST", PATH, **headers), chunked(body[:20], body[20:]))
    return (await wire.answer()).status


async def malformed(wire, _server):
    """Not protobuf."""
    await wire.send(request("POST", PATH, b"\xff" * 50, Content_Type=PROTOBUF))
    return (await wire.answer()).status


async def oversized(wire, _server):
    """Announced too large."""
    await wire.send(request("POST", PATH, Content_Type=PROTOBUF, Content_Length=10**9), b"x" * 1000)
    return (await wire.answer()).status


async def bomb(wire, _server):
    """Too large only when it is decompressed."""
    body = gzip.compress(bytes(300_000))
    await wire.send(request("POST", PATH, body, Content_Type=PROTOBUF, Content_Encoding="gzip"))
    return (await wire.answer()).status


async def junk(wire, _server):
    """Not HTTP."""
    await wire.send(b"\x00\xff" * 40 + b"\r\n\r\n")
    return (await wire.answer()).status


async def cut_off_head(wire, _server):
    """Gone before it has said what it wants."""
    await wire.send(b"POST /v1/lo")


async def cut_off_body(wire, _server):
    """Gone in the middle."""
    await wire.send(request("POST", PATH, Content_Type=PROTOBUF, Content_Length=100), DATA[:10])


async def slow_head(wire, _server):
    """Never says what it wants."""
    await wire.send(b"POST /v1/logs HTTP/1.1\r\n")
    return await wire.rest()


async def slow_body(wire, _server):
    """Never sends what it has announced."""
    await wire.send(request("POST", PATH, Content_Type=PROTOBUF, Content_Length=100), DATA[:10])
    return (await wire.answer()).status


async def good_call(_wire, server):
    """An ordinary call."""
    await server.export(DATA, Signal.LOGS)
    return 200


async def malformed_call(_wire, server):
    """Not protobuf."""
    return (await server.refused(b"\xff" * 50, Signal.LOGS)).code()


async def cancelled_call(_wire, server):
    """Gone before it is answered; it may have arrived all the same."""
    server.export(b"", Signal.LOGS).cancel()


EXPECTED = {
    good: 200,
    good_json: 200,
    malformed: 400,
    oversized: 413,
    bomb: 413,
    junk: 400,
    cut_off_head: None,
    cut_off_body: None,
    slow_head: b"",
    slow_body: 503,
    good_call: 200,
    malformed_call: grpc.StatusCode.INVALID_ARGUMENT,
    cancelled_call: None,
}

# After these the connection can be used again; the others end it, or are the client's own hanging up.
KEEPS_CONNECTION = frozenset({good, good_json, malformed, bomb, good_call, malformed_call, cancelled_call})
