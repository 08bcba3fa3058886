"""Many clients at once, most of them wrong: what is good arrives exactly once, and nothing is left behind."""

import asyncio
import gzip
import random
from collections import Counter

import grpc.aio
from hypothesis import given
from hypothesis import strategies as st
from support.otlp import logs_request
from support.otlp_receiver import JSON, PROTOBUF, data_of, running
from support.wire import chunked, connect, request, until

from sidecar import SCHEMAS, Signal
from sidecar.net import otlp_json

CLIENTS = 40
ROUNDS = 15
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
SETTINGS = "{max_request_body_size: 100KiB, read_header_timeout: 100ms, read_timeout: 100ms}"


async def test_what_is_good_arrives_once_among_all_that_is_not():
    """Forty clients at once, each with fifteen requests of all kinds, in an order that differs for each."""
    seen = Counter()

    async def client(number, server):
        order = random.Random(number)  # noqa: S311 (not for secrets)
        for act in order.choices(list(EXPECTED), k=ROUNDS):
            async with connect(server.http) as wire:
                assert await act(wire, server) == EXPECTED[act], act.__name__
            seen[act] += 1

    async with running(SETTINGS) as server:
        await asyncio.gather(*(client(number, server) for number in range(CLIENTS)))
        await until(lambda: not server.receiver.http.active + server.receiver.grpc.active)
        assert len(server.sink) == seen[good] + seen[good_json] + seen[good_call]
        refused = server.bench.metrics.value
        name = "sidecar_receiver_refused_requests"
        assert refused(name, reason="malformed") == seen[malformed] + seen[malformed_call]
        assert refused(name, reason="too_large") == seen[oversized] + seen[bomb]
        assert refused(name, reason="slow") == seen[slow_body]
    assert set(seen) == set(EXPECTED)


@given(signal=st.sampled_from(list(Signal)), data=st.data())
def test_damaged_requests_are_answered_and_never_with_500(signal, data):
    """Real requests with bytes changed, cut out or put in, in both encodings and over both protocols."""
    message = SCHEMAS[signal].request.FromString(data_of(signal, 3))
    content_type = data.draw(st.sampled_from([PROTOBUF, JSON]))
    body = bytearray(message.SerializeToString() if content_type == PROTOBUF else otlp_json.encode(message))
    for _ in range(data.draw(st.integers(1, 8))):
        start = data.draw(st.integers(0, len(body)))
        body[start : start + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))

    async def run():
        async with running() as server:
            answer = await server.post(bytes(body), content_type, signal)
            assert answer.status in {200, 400}
            refused = await server.refused(bytes(body), signal)
            assert refused is None or refused.code() is grpc.StatusCode.INVALID_ARGUMENT

    asyncio.run(run())
