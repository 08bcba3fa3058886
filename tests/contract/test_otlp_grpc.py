"""OTLP conformance, items 84 to 96: the gRPC transport. Where the library decides, what it does is written down."""

import asyncio

import grpc
import pytest
from support.http2 import connect_http2, framed
from support.otlp_receiver import SIGNALS, data_of, running
from support.wire import connect, request, until

from sidecar import SCHEMAS, Retryable, Signal, StartError
from sidecar.callers import Callers
from sidecar.receivers.otlp import GrpcExport, Intake, OtlpReceiver
from sidecar.testing import Bench

DATA = data_of(Signal.TRACES)
EXPORT = f"/{SCHEMAS[Signal.TRACES].grpc_service}/Export"
Code = grpc.StatusCode


@pytest.mark.parametrize(
    "path",
    [
        "/opentelemetry.proto.collector.trace.v1.TraceService/Nothing",
        "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export",
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    ],
)
async def test_084_an_unknown_method_is_unimplemented(path):
    """In trailers only."""
    async with running() as server, connect_http2(server.grpc) as connection:
        got = await connection.call(path, framed(DATA))
        assert got.grpc_status == Code.UNIMPLEMENTED.value[0]
        assert len(got.headers) == 1


@pytest.mark.parametrize("content_type", ["application/grpc", "application/grpc+proto"])
async def test_085_content_types_of_grpc_are_accepted(content_type):
    """With and without the name of the encoding."""
    async with running() as server, connect_http2(server.grpc) as connection:
        got = await connection.call(EXPORT, framed(DATA), content_type=content_type)
        assert got.grpc_status == 0


@pytest.mark.parametrize("broken", [{"remove": ("te",)}, {"method": "GET"}])
async def test_086_what_is_not_grpc_is_reset(broken):
    """Without `te: trailers`, or with another method; the next call on the connection is served."""
    async with running() as server, connect_http2(server.grpc) as connection:
        got = await connection.call(EXPORT, framed(DATA), **broken)
        assert got.reset is not None or got.grpc_status != 0
        assert (await connection.call(EXPORT, framed(DATA))).grpc_status == 0
        assert len(server.sink) == 1


@pytest.mark.parametrize("body", [b"", b"\0\0\0", framed(DATA)[:-1]], ids=["none", "half a frame", "cut off"])
async def test_087_a_call_without_a_whole_message_fails(body):
    """The library lets it wait for its deadline; nothing of it arrives, and others are served."""
    async with running() as server, connect_http2(server.grpc) as connection:
        got = await connection.call(EXPORT, body, grpc_timeout="50m")
        assert got.reset is not None or got.grpc_status != 0
        assert not server.sink.batches
        assert (await connection.call(EXPORT, framed(DATA))).grpc_status == 0


async def test_088_a_second_message_on_a_unary_call_is_not_taken_for_a_request():
    """The library hands over the first."""
    async with running() as server, connect_http2(server.grpc) as connection:
        got = await connection.call(EXPORT, framed(DATA) + framed(DATA))
        assert len(server.sink) == (1 if got.grpc_status == 0 else 0)


async def test_089_a_deadline_is_kept():
    """The caller is told, and hears nothing of what came too late."""

    class Slow:
        ended = False

        async def __call__(self, *_batches):
            try:
                await asyncio.sleep(60)
            finally:
                self.ended = True

        def accepts(self, _signal):
            return True

    async with running(sink=Slow()) as server:
        assert (await server.refused(DATA, timeout=0.1)).code() is Code.DEADLINE_EXCEEDED
        await until(lambda: server.sink.ended)


async def test_089_a_request_whose_caller_has_given_up_is_not_accepted():
    """He sends it again, and accepting it now would make two of it."""

    class Expired:
        """A call whose time is up."""

        def peer(self):
            return "ipv4:127.0.0.1:1"

        def time_remaining(self):
            return 0.0

    async with running() as server:
        export = GrpcExport(Intake(server.receiver, Signal.TRACES, "grpc"), Callers(server.receiver.context, None))
        with pytest.raises(Retryable, match="deadline has passed"):
            await export(DATA, Expired())
        assert not server.sink.batches


async def test_090_a_malformed_deadline_fails_the_call_alone():
    """The connection and the server go on."""
    async with running() as server:
        async with connect_http2(server.grpc) as connection:
            got = await connection.call(EXPORT, framed(DATA), grpc_timeout="soon")
            assert got.reset is not None or got.grpc_status != 0
        assert await server.export(DATA) == b""


async def test_091_a_client_that_pings_too_often_is_cut_off():
    """GOAWAY with ENHANCE_YOUR_CALM, where the policy is the default one."""
    async with running() as server, connect_http2(server.grpc) as connection:
        got = await connection.ping(10, 0.01)
        assert got.goaway == (11, b"too_many_pings")


async def test_091_the_policy_can_be_lenient():
    """With the Collector's keys: the same pings, and the call is served."""
    policy = "{keepalive: {enforcement_policy: {min_time: 1ms, permit_without_stream: true}}}"
    async with running(grpc_=policy) as server, connect_http2(server.grpc) as connection:
        got = await connection.ping(10, 0.01)
        assert got.goaway is None
        assert (await connection.call(EXPORT, framed(DATA))).grpc_status == 0


async def test_092_large_metadata_is_taken_or_refused_alone():
    """Eight KiB pass; what is beyond the library's limit fails its own call only."""
    async with running() as server, connect_http2(server.grpc) as connection:
        assert (await connection.call(EXPORT, framed(DATA), baggage="x" * 7000)).grpc_status == 0
        await connection.call(EXPORT, framed(DATA), baggage="x" * 60_000)
        assert await server.export(DATA) == b""


async def test_093_http_1_on_the_grpc_port_is_closed():
    """The server's settings frame, and the end; gRPC goes on."""
    async with running() as server:
        async with connect(server.grpc) as wire:
            await wire.send(request("POST", "/v1/traces", DATA))
            assert not (await wire.rest()).startswith(b"HTTP")
        assert await server.export(DATA) == b""


@pytest.mark.parametrize("protocol", ["grpc", "http"])
async def test_094_a_port_in_use_is_an_error_at_the_start(protocol):
    """Never shared silently with a process that has it."""
    async with running() as first:
        port = first.grpc if protocol == "grpc" else first.http
        second = Bench().make(
            OtlpReceiver, f"protocols: {{{protocol}: {{endpoint: '127.0.0.1:{port}'}}}}", "otlp/second"
        )
        with pytest.raises(StartError, match=rf"receivers.otlp/second: protocols.{protocol}.endpoint: .* in use"):
            await second.start()
        await second.stop()


async def test_095_the_callers_address_is_plain():
    """However the library spells it."""
    async with running() as server:
        await server.export(DATA)
        await server.post(DATA)
        assert [batch.context.peer for batch in server.sink.batches] == ["127.0.0.1", "127.0.0.1"]


@pytest.mark.parametrize("body", [b"\xff", DATA])
async def test_096_errors_are_trailers_only(body):
    """One HEADERS frame, since some clients decide by its content whether to retry."""
    async with running() as server, connect_http2(server.grpc) as connection:
        server.sink.refuse_with = Retryable("full", after=1)
        got = await connection.call(EXPORT, framed(body))
        assert len(got.headers) == 1
        assert got.headers[0]["grpc-status"] == ("3" if body == b"\xff" else "14")


@pytest.mark.parametrize("signal", SIGNALS)
async def test_a_batch_says_how_it_came(signal):
    """The transport, for the counts of accepted items."""
    async with running() as server:
        await server.export(data_of(signal), signal)
        await server.post(data_of(signal), signal=signal)
        assert [batch.context.transport for batch in server.sink.batches] == ["grpc", "http"]
