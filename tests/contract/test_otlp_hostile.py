"""Many clients at once, most of them wrong: what is good arrives exactly once, and nothing is left behind."""

import asyncio
import random
from collections import Counter

import grpc.aio
from hypothesis import given
from hypothesis import strategies as st
from support.hostile_clients import (
    EXPECTED,
    bomb,
    good,
    good_call,
    good_json,
    malformed,
    malformed_call,
    oversized,
    slow_body,
)
from support.otlp_receiver import JSON, PROTOBUF, data_of, running
from support.wire import connect, until

from sidecar import SCHEMAS, Signal
from sidecar.net import otlp_json

CLIENTS = 40
ROUNDS = 15
SETTINGS = "{max_request_body_size: 100KiB, read_header_timeout: 100ms, read_timeout: 100ms}"


async def test_what_is_good_arrives_once_among_all_that_is_not():
    """Forty clients at once, each with fifteen requests of all kinds, in an order that differs for each."""
    seen = Counter()

    async def client(number, server):
        order = random.Random(number)
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
