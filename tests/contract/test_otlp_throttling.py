"""OTLP conformance, items 76 to 83: overload, refusals, and the end."""

import asyncio

import grpc
import grpc.aio
import pytest
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from support.otlp_receiver import JSON, PROTOBUF, data_of, running, status_of
from support.wire import connect, request, until

from config import ComponentId, Settings
from sidecar import Authenticator, Identity, RateLimited, Retryable, Signal, TooLarge
from sidecar.receivers.otlp import OtlpReceiver
from sidecar.testing import Bench

DATA = data_of(Signal.TRACES)
Code = grpc.StatusCode


def retry_info(refused):
    """The delay in each of the two trailers."""
    trailers = dict(refused.trailing_metadata())
    status = Status.FromString(trailers["grpc-status-details-bin"])
    found = []
    for detail in status.details:
        info = RetryInfo()
        if detail.Unpack(info):
            found.append(info)
    if "google.rpc.retryinfo-bin" in trailers:
        found.append(RetryInfo.FromString(trailers["google.rpc.retryinfo-bin"]))
    return [info.retry_delay.ToTimedelta().total_seconds() for info in found]


@pytest.mark.parametrize("content_type", [PROTOBUF, JSON])
@pytest.mark.parametrize(
    ("error", "status", "code"), [(Retryable("full", after=3), 503, 14), (RateLimited("slow", after=3), 429, 8)]
)
async def test_076_overload_over_http(content_type, error, status, code):
    """503 or 429 with Retry-After and a Status in the request's encoding."""
    body = DATA if content_type == PROTOBUF else b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[{}]}]}]}'
    async with running() as server:
        server.sink.refuse_with = error
        signal = Signal.TRACES if content_type == PROTOBUF else Signal.LOGS
        answer = await server.post(body, content_type, signal)
        assert (answer.status, answer.headers["retry-after"]) == (status, "3")
        assert answer.headers["content-type"] == content_type
        assert status_of(answer) == (code, str(error))


@pytest.mark.parametrize(("after", "header"), [(0.0, "1"), (0.2, "1"), (1.0, "1"), (1.2, "2"), (13.0, "13")])
async def test_077_retry_after_is_whole_seconds(after, header):
    """Rounded up, and at least one: fractions are ignored and 0 means at once."""
    async with running() as server:
        server.sink.refuse_with = Retryable("full", after=after)
        assert (await server.post(DATA)).headers["retry-after"] == header


async def test_078_overload_over_grpc():
    """UNAVAILABLE, or RESOURCE_EXHAUSTED with RetryInfo, without which clients would drop the data."""
    async with running() as server:
        server.sink.refuse_with = Retryable("full", after=3)
        refused = await server.refused(DATA)
        assert (refused.code(), refused.details()) == (Code.UNAVAILABLE, "full")
        server.sink.refuse_with = RateLimited("slow", after=0.25)
        assert (await server.refused(DATA)).code() is Code.RESOURCE_EXHAUSTED
        server.sink.refuse_with = TooLarge("never")
        never = await server.refused(DATA)
        assert (never.code(), retry_info(never)) == (Code.RESOURCE_EXHAUSTED, [])


async def test_079_many_calls_at_once_are_not_refused():
    """No limit on concurrent calls answers without RetryInfo."""
    async with running() as server:
        answers = await asyncio.gather(*(server.export(DATA) for _ in range(300)))
        assert set(answers) == {b""}
        assert len(server.sink) == 300


async def test_080_retry_info_is_in_both_trailers():
    """In the details for most clients, and alone for the Python SDK."""
    async with running() as server:
        for error in (Retryable("full", after=3), RateLimited("slow", after=0.25)):
            server.sink.refuse_with = error
            assert retry_info(await server.refused(DATA)) == [error.after, error.after]
        server.sink.refuse_with = Retryable("no idea for how long")
        assert retry_info(await server.refused(DATA)) == []


class OneKey(Authenticator[Settings]):
    """Knows one bearer."""

    def authenticate(self, credentials):
        return Identity("bearer", "alice") if credentials.headers.get("authorization") == "Bearer good" else None


def with_authenticator():
    """A bench on which `keys` is an authenticator."""
    bench = Bench()
    return {ComponentId("keys"): OneKey(Settings(), bench.context("keys"))}


async def test_081_a_stranger_is_unauthenticated():
    """401 with a Status and a challenge, and UNAUTHENTICATED: none is retried; the known are named."""
    auth = "{auth: {authenticator: keys}}"
    async with running(auth, auth, extensions=with_authenticator()) as server:
        answer = await server.post(DATA, Authorization="Bearer bad")
        assert (answer.status, status_of(answer)[0]) == (401, 16)
        assert answer.headers["www-authenticate"] == "Bearer"
        assert (await server.refused(DATA)).code() is Code.UNAUTHENTICATED
        assert (await server.post(DATA, Authorization="Bearer good")).status == 200
        await server.export(DATA, metadata=(("authorization", "Bearer good"),))
        assert [batch.context.identity.name for batch in server.sink.batches] == ["alice", "alice"]


async def test_081_strangers_are_turned_away_before_their_body_is_read():
    """A large upload costs nothing."""
    auth = "{auth: {authenticator: keys}}"
    async with running(auth, extensions=with_authenticator()) as server, connect(server.http) as wire:
        await wire.send(request("POST", "/v1/traces", Content_Type=PROTOBUF, Content_Length=10_000_000))
        answer = await wire.answer()
        assert (answer.status, answer.headers["connection"]) == (401, "close")


async def test_081_strangers_may_be_let_in():
    """As anonymous ones, where nobody is required."""
    auth = "{auth: {authenticator: keys, required: false}}"
    async with running(auth, auth, extensions=with_authenticator()) as server:
        assert (await server.post(DATA)).status == 200
        await server.export(DATA)
        assert [batch.context.identity for batch in server.sink.batches] == [None, None]


async def test_082_the_server_answers_before_it_closes():
    """A request is never left without an answer while the connection lasts, whatever became of it."""
    async with running() as server, connect(server.http) as wire:
        for error in (Retryable("full"), TooLarge("never"), RuntimeError("broken"), None):
            server.sink.refuse_with = error
            await wire.send(request("POST", "/v1/traces", DATA, Content_Type=PROTOBUF))
            assert (await wire.answer()).status in {200, 413, 503}


class Gate:
    """A pipeline that holds what it gets until told."""

    def __init__(self):
        self.arrived = 0
        self.open = asyncio.Event()

    async def __call__(self, *batches):
        self.arrived += len(batches)
        await self.open.wait()

    def accepts(self, _signal):
        return True


async def test_083_a_stop_finishes_what_is_under_way():
    """Requests that have begun are answered; after the stop nothing more enters the pipeline."""
    bench = Bench(sink=Gate())
    receiver = bench.make(OtlpReceiver, "protocols: {grpc: {endpoint: '127.0.0.1:0'}, http: {endpoint: '127.0.0.1:0'}}")
    await receiver.start()
    async with (
        grpc.aio.insecure_channel(f"127.0.0.1:{receiver.grpc.port}") as channel,
        connect(receiver.http.port) as wire,
    ):
        export = channel.unary_unary("/opentelemetry.proto.collector.trace.v1.TraceService/Export")
        call = export(DATA)
        await wire.send(request("POST", "/v1/traces", DATA, Content_Type=PROTOBUF))
        await until(lambda: bench.sink.arrived == 2)
        stopping = asyncio.create_task(receiver.stop())
        await asyncio.sleep(0)
        async with connect(receiver.http.port) as late:
            await late.send(request("POST", "/v1/traces", DATA, Content_Type=PROTOBUF))
            answer = await late.answer()
            assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert not stopping.done()
        bench.sink.open.set()
        assert (await call, (await wire.answer()).status) == (b"", 200)
        await stopping
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await export(DATA, timeout=1)
        assert refused.value.code() is Code.UNAVAILABLE
        with pytest.raises(ConnectionRefusedError):
            async with connect(receiver.http.port):
                pass
    assert bench.sink.arrived == 2
