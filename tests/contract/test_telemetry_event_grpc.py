"""`telemetry.v1.TelemetryEventService` over real sockets with a real client: the wire contract's §4."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import grpc
import pytest
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from support.events import Served, served, texts

from sidecar.batch import Identity
from sidecar.errors import Permanent, RateLimited, Retryable
from sidecar.events.telemetry_event_pb2 import TelemetryBatch, TelemetryBatchResponse, TelemetryEvent
from sidecar.signals import Signal

SERVICE = "/telemetry.v1.TelemetryEventService"
TOKENS = "tokens: [{kind: provider, token: eigen-provider-token, name: mac, account: acct_mac}]"


def event(message: str = "hi", **fields) -> TelemetryEvent:
    """An event with a message."""
    return TelemetryEvent(message=message, source="provider", severity="error", kind="backend_crash", **fields)


def batch(*messages: str) -> TelemetryBatch:
    """A batch of events with these messages."""
    return TelemetryBatch(events=map(event, messages))


class Client:
    """What a generated stub does."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        serializers = {
            "request_serializer": TelemetryBatch.SerializeToString,
            "response_deserializer": TelemetryBatchResponse.FromString,
        }
        self.export = channel.unary_unary(f"{SERVICE}/Export", **serializers)
        self.stream = channel.stream_unary(f"{SERVICE}/ExportStream", **serializers)
        self.raw = channel.unary_unary(f"{SERVICE}/Export")


@asynccontextmanager
async def client_of(server: Served):
    """A client of the receiver's gRPC service."""
    async with grpc.aio.insecure_channel(server.grpc_address) as channel:
        yield Client(channel)


@asynccontextmanager
async def pair(settings: str = "", tokens: str = ""):
    """A receiver and its client."""
    async with served(settings, tokens) as server, client_of(server) as client:
        yield server, client


def retry_delays(error: grpc.aio.AioRpcError) -> list[float]:
    """The delay in each of the two trailers that clients read."""
    trailers = dict(error.trailing_metadata() or ())
    delays = []
    if "google.rpc.retryinfo-bin" in trailers:
        delays.append(RetryInfo.FromString(trailers["google.rpc.retryinfo-bin"]))
    for detail in Status.FromString(trailers.get("grpc-status-details-bin", b"")).details:
        if detail.Is(RetryInfo.DESCRIPTOR):
            info = RetryInfo()
            detail.Unpack(info)
            delays.append(info)
    return [info.retry_delay.seconds + info.retry_delay.nanos / 1e9 for info in delays]


async def refusal(call) -> grpc.aio.AioRpcError:
    """The error that a call ends with."""
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call
    return refused.value


async def test_export():
    """Both counts in the answer, and the same record and span as from JSON."""
    async with pair() as (server, client):
        sent = event(request_id="req_abc", version="0.3.10", session_id="abc")
        sent.timestamp.FromNanoseconds(server.bench.clock.now_ns - 1)
        sent.fields.update({"backend": "vllm-mlx", "exit_code": 134, "prompt": "secret"})

        answer = await client.export(TelemetryBatch(events=[sent, TelemetryEvent(severity="error")]))

        assert (answer.accepted, answer.rejected) == (1, 1)
        (record,), (span,) = server.records, server.spans
        assert (record.severity_number, record.event_name, record.body.string_value) == (17, "backend_crash", "hi")
        assert record.time_unix_nano == server.bench.clock.now_ns - 1
        assert texts(record)["backend"] == "vllm-mlx"
        assert {one.key: one.value.int_value for one in record.attributes}["exit_code"] == 134
        assert record.trace_id == span.trace_id
        assert server.resources == [
            {"service.name": "provider", "service.version": "0.3.10", "service.instance.id": "abc"}
        ]
        assert {one.context.transport for one in server.bench.sink.batches} == {"grpc"}
        assert not any(b"secret" in one.encode() for one in server.bench.sink.batches)
        assert server.bench.dropped == {(Signal.LOGS, "malformed"): 1}


async def test_an_empty_batch():
    """Accepted, and nothing goes further."""
    async with pair() as (server, client):
        answer = await client.export(TelemetryBatch())

        assert (answer.accepted, answer.rejected) == (0, 0)
        assert server.bench.sink.batches == []


@pytest.mark.parametrize("data", [b"nope", batch("hi").SerializeToString()[:-1]])
async def test_what_is_no_batch(data):
    """INVALID_ARGUMENT, with the reason."""
    async with pair() as (_server, client):
        error = await refusal(client.raw(data))

        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "telemetry.v1.TelemetryBatch" in error.details()


async def test_limits():
    """RESOURCE_EXHAUSTED without RetryInfo, which clients must not retry; the limits themselves pass."""
    async with pair() as (_server, client):
        assert (await client.export(batch(*["x"] * 100))).accepted == 100
        for too_much, reason in [(batch(*["x"] * 101), "at most 100"), (batch("x" * 65536), "the limit is 64KiB")]:
            error = await refusal(client.export(too_much))

            assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert reason in error.details()
            assert retry_delays(error) == []


@pytest.mark.parametrize(
    ("raised", "code", "delays"),
    [
        (RateLimited("over the rate", after=2.5), grpc.StatusCode.RESOURCE_EXHAUSTED, [2.5, 2.5]),
        (Retryable("queue full", after=7, reason="queue_full"), grpc.StatusCode.UNAVAILABLE, [7, 7]),
        (Retryable("memory short", reason="memory"), grpc.StatusCode.UNAVAILABLE, [5, 5]),
        (Permanent("never"), grpc.StatusCode.INVALID_ARGUMENT, []),
    ],
)
async def test_refusals_of_the_pipeline(raised, code, delays):
    """Whatever may pass later says when, in both trailers."""
    async with pair() as (server, client):
        server.bench.sink.refuse_with = raised

        error = await refusal(client.export(batch("hi")))

        assert (error.code(), error.details(), retry_delays(error)) == (code, str(raised), delays)
        refused = server.bench.metrics.value(
            "sidecar_receiver_refused_requests", reason=raised.reason, transport="grpc"
        )
        assert refused == 1


async def test_without_a_pipeline():
    """UNIMPLEMENTED: retrying would be for nothing."""
    async with pair() as (server, client):
        server.bench.sink.signals = frozenset()

        error = await refusal(client.export(batch("hi")))

        assert error.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_who_is_calling():
    """By the same tokens as over HTTP; strangers are anonymous."""
    async with pair("auth: {authenticator: token_auth}\n", TOKENS) as (server, client):
        metadata = (("authorization", "Bearer eigen-provider-token"),)
        await client.export(TelemetryBatch(events=[event(machine_id="liar")]), metadata=metadata)
        await client.export(batch("hi"))

        known, stranger = server.bench.sink.of(Signal.LOGS)
        assert known.context.identity == Identity("provider", "mac", server.resources[0]["host.id"], "acct_mac")
        assert server.resources[0]["host.id"].startswith("tok:")
        assert (stranger.context.identity, stranger.context.peer) == (None, "127.0.0.1")


async def test_strangers_are_refused_where_somebody_must_be_known():
    """UNAUTHENTICATED, for a stream too."""
    async with pair("auth: {authenticator: token_auth, required: true}\n", TOKENS) as (_server, client):
        assert (await refusal(client.export(batch("hi")))).code() is grpc.StatusCode.UNAUTHENTICATED
        assert (await refusal(client.stream([batch("hi")]))).code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_stream_counts_all_its_batches():
    """Each is accepted as it comes, and the answer is for all."""
    async with pair() as (server, client):
        call = client.stream()
        await call.write(batch("a", ""))
        while not server.bench.sink.batches:  # noqa: ASYNC110 (accepted before the stream ends)
            await asyncio.sleep(0.005)
        await call.write(TelemetryBatch())
        await call.write(batch("b", "c"))
        await call.done_writing()

        answer = await call

        assert (answer.accepted, answer.rejected) == (3, 1)
        assert server.messages == ["a", "b", "c"]


async def test_an_empty_stream():
    """Nothing was sent, and nothing is wrong."""
    async with pair() as (_server, client):
        answer = await client.stream([])

        assert (answer.accepted, answer.rejected) == (0, 0)


async def test_the_first_refusal_ends_a_stream():
    """What was accepted before stays accepted."""
    async with pair() as (server, client):
        error = await refusal(client.stream([batch("a"), batch(*["x"] * 101), batch("b")]))

        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert server.messages == ["a"]


async def test_a_stop_ends_streams_that_stay():
    """UNAVAILABLE with a delay, at once: a stop does not wait for a client that has nothing to say."""
    async with served() as server, client_of(server) as client:
        call = client.stream()
        await call.write(batch("a"))
        while not server.bench.sink.batches:  # noqa: ASYNC110 (nothing else tells that it has arrived)
            await asyncio.sleep(0.005)

        async with asyncio.timeout(5):
            await server.receiver.stop()
            error = await refusal(call)

        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert retry_delays(error) == [1, 1]


async def test_a_client_that_goes_away_within_a_stream():
    """What it sent is accepted, and the server goes on."""
    async with pair() as (server, client):
        call = client.stream()
        await call.write(batch("a"))
        while not server.bench.sink.batches:  # noqa: ASYNC110 (nothing else tells that it has arrived)
            await asyncio.sleep(0.005)
        call.cancel()

        assert (await client.export(batch("b"))).accepted == 1
        assert server.messages == ["a", "b"]
