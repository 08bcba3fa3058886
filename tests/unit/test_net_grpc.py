"""The gRPC server: its settings, its limits, and what becomes of errors."""

import asyncio
import contextlib

import grpc.aio
import pytest
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from support.wire import connect, opened, until

from config import Endpoint
from config.decode import settings_from_yaml
from sidecar.errors import NotServed, Permanent, RateLimited, Retryable, TooLarge, Unauthenticated
from sidecar.net import GrpcServerSettings, Listeners

ANY = Endpoint("127.0.0.1:0")
Code = grpc.StatusCode


async def echo(data, _call):
    """Answer what came."""
    return data


async def count(messages, _call):
    """Answer how many messages came."""
    return str(len([message async for message in messages])).encode()


def raising(error):
    """A handler that fails."""

    async def handler(_data, _call):
        raise error

    return handler


def lease(text="{}", **handlers):
    """A lease of `/s.S/<name>` for each handler."""
    made = Listeners().grpc(ANY, "receivers.a", settings_from_yaml(text, GrpcServerSettings))
    for name, handler in handlers.items():
        made.unary("s.S", name, handler)
    return made


@contextlib.asynccontextmanager
async def calling(served, **options):
    """Opens a lease, and gives what calls its methods."""
    settings = [(name.replace("__", "."), value) for name, value in options.items()]
    async with (
        opened(served) as lease,
        grpc.aio.insecure_channel(f"127.0.0.1:{lease.port}", settings) as channel,
    ):
        yield lambda name, data=b"", **more: channel.unary_unary(f"/s.S/{name}")(data, **more)


async def refusal(call):
    """The error that a call ends with."""
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    return error.value


@pytest.mark.parametrize(
    ("error", "code", "seconds"),
    [
        (Permanent("why"), Code.INVALID_ARGUMENT, None),
        (Unauthenticated("why"), Code.UNAUTHENTICATED, None),
        (NotServed("why"), Code.UNIMPLEMENTED, None),
        (TooLarge("why"), Code.RESOURCE_EXHAUSTED, None),
        (RateLimited("why", after=2.5), Code.RESOURCE_EXHAUSTED, 2.5),
        (Retryable("why"), Code.UNAVAILABLE, None),
        (Retryable("why", after=3), Code.UNAVAILABLE, 3.0),
    ],
)
async def test_an_error_becomes_its_status(error, code, seconds):
    """With RetryInfo in both trailers exactly where it says when to come again."""
    async with calling(lease(A=raising(error))) as call:
        refused = await refusal(call("A"))
    trailers = dict(refused.trailing_metadata())
    status = Status.FromString(trailers["grpc-status-details-bin"])
    assert (refused.code(), refused.details()) == (code, "why")
    assert (status.code, status.message) == (code.value[0], "why")
    infos = [RetryInfo.FromString(detail.value) for detail in status.details if detail.Is(RetryInfo.DESCRIPTOR)]
    alone = (
        [RetryInfo.FromString(trailers["google.rpc.retryinfo-bin"])] if "google.rpc.retryinfo-bin" in trailers else []
    )
    assert infos == alone
    assert [info.retry_delay.ToTimedelta().total_seconds() for info in infos] == ([] if seconds is None else [seconds])


async def test_an_unexpected_error_may_pass_later(caplog):
    """UNAVAILABLE without the text, which is in the log."""
    error = ValueError("secret")
    async with calling(lease(A=raising(error))) as call:
        refused = await refusal(call("A"))
    assert refused.code() is Code.UNAVAILABLE
    assert "secret" not in refused.details()
    (record,) = caplog.records
    assert record.exc_info[1] is error
    assert record.getMessage() == "receivers.a: the handler of /s.S/A failed"


async def test_an_endless_message_is_cut():
    """An error's text does not grow beyond what clients read."""
    async with calling(lease(A=raising(Permanent("x" * 100_000)))) as call:
        assert len((await refusal(call("A"))).details()) == 1024


async def test_services_come_and_go_while_the_server_runs():
    """A method that is added later is served, on the same port."""
    listeners = Listeners()
    first = listeners.grpc(ANY, "receivers.a")
    first.unary("s.S", "A", echo)
    async with calling(first) as call:
        assert (await refusal(call("B"))).code() is Code.UNIMPLEMENTED
        second = listeners.grpc(ANY, "receivers.b")
        second.unary("s.S", "B", echo)
        async with opened(second):
            assert await call("B", b"x") == b"x"
        assert (await refusal(call("B"))).code() is Code.UNAVAILABLE
        assert await call("A", b"x") == b"x"


async def test_client_streams_are_served():
    """One answer to many messages; errors become statuses there too."""
    made = lease()
    made.client_stream("s.S", "Count", count)
    made.client_stream("s.S", "Fail", raising(Permanent("why")))
    async with opened(made), grpc.aio.insecure_channel(f"127.0.0.1:{made.port}") as channel:
        assert await channel.stream_unary("/s.S/Count")(iter([b"a", b"b", b"c"])) == b"3"
        refused = await refusal(channel.stream_unary("/s.S/Fail")(iter([b"a"])))
    assert refused.code() is Code.INVALID_ARGUMENT


async def test_a_call_that_is_cancelled_ends_its_handler():
    """The caller is gone, and so is the work."""
    started, ended = asyncio.Event(), asyncio.Event()

    async def slow(_data, _call):
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    served = lease(A=slow)
    async with calling(served) as call:
        pending = call("A")
        await started.wait()
        pending.cancel()
        await asyncio.wait_for(ended.wait(), 5)
        await until(lambda: not served.active)


async def test_the_message_size_has_a_limit_also_when_it_is_inflated():
    """RESOURCE_EXHAUSTED without RetryInfo, which conforming clients don't retry."""
    async with calling(lease("{max_recv_msg_size_mib: 1}", A=echo)) as call:
        assert len(await call("A", bytes(2**20 - 64))) == 2**20 - 64
        for compression in (grpc.Compression.NoCompression, grpc.Compression.Gzip):
            refused = await refusal(call("A", bytes(2**20 + 1), compression=compression))
            assert refused.code() is Code.RESOURCE_EXHAUSTED
            assert not {"google.rpc.retryinfo-bin", "grpc-status-details-bin"} & set(dict(refused.trailing_metadata()))


async def test_compressed_messages_are_understood():
    """Gzip and deflate."""
    async with calling(lease(A=echo)) as call:
        for compression in (grpc.Compression.Gzip, grpc.Compression.Deflate):
            assert await call("A", b"x" * 1000, compression=compression) == b"x" * 1000


async def test_no_more_streams_than_the_limit_are_at_work():
    """The calls above it wait or are told to come again."""
    most = under_way = 0

    async def counting(data, _call):
        nonlocal most, under_way
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.01)
        under_way -= 1
        return data

    async with calling(lease("{max_concurrent_streams: 2}", A=counting)) as call:
        await call("A")  # the client learns the limit with its first call
        answers = await asyncio.gather(*(call("A", b"x") for _ in range(8)), return_exceptions=True)
    assert most == 2
    assert b"x" in answers
    assert {one.code() for one in answers if one != b"x"} <= {Code.UNAVAILABLE}


async def test_connections_above_the_limit_are_closed():
    """Those that are there go on."""
    served = lease("{max_connections: 1}", A=echo)
    async with calling(served) as call:
        assert await call("A", b"x") == b"x"
        async with connect(served.port) as second:
            await second.rest()
        assert await call("A", b"x") == b"x"


async def test_an_old_connection_is_ended_and_made_anew():
    """A client with calls to make does not notice."""
    text = "{keepalive: {server_parameters: {max_connection_age: 50ms, max_connection_age_grace: 1s}}}"
    peers = set()

    async def peer(data, call):
        peers.add(call.peer())
        return data

    async with calling(lease(text, A=peer)) as call:
        async with asyncio.timeout(5):
            while len(peers) < 2:
                assert await call("A", b"x", wait_for_ready=True) == b"x"
                await asyncio.sleep(0.01)


async def test_http_1_on_the_grpc_port_is_turned_away():
    """The connection ends, and the server goes on."""
    served = lease(A=echo)
    async with calling(served) as call:
        async with connect(served.port) as wire:
            await wire.send(b"POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
            await wire.rest()
        assert await call("A", b"x") == b"x"


def test_keepalive_is_given_to_the_library_in_its_words():
    """Each setting of the Collector's has its channel argument; what is not written is left to the library."""
    from sidecar.net.grpc_server import _options

    text = """
keepalive:
  server_parameters:
    {max_connection_idle: 1s, max_connection_age: 2s, max_connection_age_grace: 3s, time: 4s, timeout: 5s}
  enforcement_policy: {min_time: 6s, permit_without_stream: true}
"""
    written = dict(_options(settings_from_yaml(text, GrpcServerSettings)))
    plain = dict(_options(GrpcServerSettings()))
    assert {name: value for name, value in written.items() if name not in plain} == {
        "grpc.max_connection_idle_ms": 1000,
        "grpc.max_connection_age_ms": 2000,
        "grpc.max_connection_age_grace_ms": 3000,
        "grpc.keepalive_time_ms": 4000,
        "grpc.keepalive_timeout_ms": 5000,
        "grpc.http2.min_ping_interval_without_data_ms": 6000,
        "grpc.keepalive_permit_without_calls": 1,
    }
    assert plain["grpc.max_receive_message_length"] == 64 * 2**20
