"""One server per endpoint, shared by components that come and go."""

import asyncio
import errno
import gc
import socket
import tempfile
from pathlib import Path

import grpc.aio
import pytest
from aiohttp import web
from support.wire import connect, exchange, opened, request, until

from config import Endpoint, SettingError
from sidecar.errors import StartError
from sidecar.net import GrpcServerSettings, HttpServerSettings, Listeners
from sidecar.net.sockets import explain

ANY = Endpoint("127.0.0.1:0")


def saying(text):
    """A handler that answers a text."""

    async def handler(_request):
        return web.Response(text=text)

    return handler


async def echo(data, _call):
    """Answer what came."""
    return data


def http(listeners, owner, *paths, endpoint=ANY, settings=None):
    """A lease that says its owner on each of the paths."""
    lease = listeners.http(endpoint, owner, settings)
    for path in paths:
        lease.route("POST", path, saying(owner))
    return lease


async def text(lease, path="/a"):
    """What is served there."""
    answer = await exchange(lease.port, "POST", path)
    return answer.body.decode() if answer.status == 200 else answer.status


async def test_components_that_name_one_endpoint_share_its_server():
    """Two components at one address serve on one port, each its own paths."""
    listeners = Listeners()
    async with opened(http(listeners, "receivers.a", "/a"), http(listeners, "exporters.b", "/b")) as (a, b):
        assert a.port == b.port
        assert (await text(a, "/a"), await text(b, "/b")) == ("receivers.a", "exporters.b")


def test_a_path_that_is_claimed_twice_is_a_configuration_problem():
    """The second claim fails, names the first, and says what to do."""
    listeners = Listeners()
    first = http(listeners, "receivers.a: endpoint", "/a")
    with pytest.raises(SettingError, match=r"POST /a on 127.0.0.1:0 is served by receivers.a: endpoint already"):
        http(listeners, "receivers.b: endpoint", "/a")
    with pytest.raises(SettingError, match="another path or another endpoint"):
        first.route("POST", "/a", saying("again"))


def test_a_method_that_is_claimed_twice_is_a_configuration_problem():
    """The same holds for gRPC."""
    listeners = Listeners()
    first = listeners.grpc(ANY, "receivers.a: endpoint")
    first.unary("s.S", "Export", echo)
    with pytest.raises(SettingError, match=r"/s.S/Export on .* is served by receivers.a"):
        listeners.grpc(ANY, "receivers.b: endpoint").client_stream("s.S", "Export", echo)


def test_http_and_grpc_at_one_address_are_a_configuration_problem():
    """A server speaks one of the two, and the message names both components."""
    listeners = Listeners()
    lease = listeners.grpc(Endpoint("localhost:4317"), "receivers.a: endpoint")
    with pytest.raises(SettingError, match=r"receivers.b: endpoint speaks HTTP and receivers.a: endpoint speaks gRPC"):
        listeners.http(Endpoint("localhost:4317"), "receivers.b: endpoint")
    del lease


def test_two_ways_to_behave_at_one_address_are_a_configuration_problem():
    """Explicit settings have to agree, the message says where they don't, and None agrees with everything."""
    listeners = Listeners()
    settings = HttpServerSettings(max_connections=5)
    leases = [
        listeners.http(ANY, "receivers.a: endpoint", settings),
        listeners.http(ANY, "receivers.b: endpoint", HttpServerSettings(max_connections=5)),
        listeners.http(ANY, "receivers.c: endpoint"),
    ]
    with pytest.raises(
        SettingError, match=r"receivers.d: endpoint and receivers.a: endpoint share.*\(max_connections\)"
    ):
        listeners.http(ANY, "receivers.d: endpoint", HttpServerSettings())
    del leases


def test_a_lease_that_nobody_keeps_claims_nothing():
    """A document that was only looked at leaves no claims behind."""
    listeners = Listeners()
    http(listeners, "receivers.a", "/a")
    gc.collect()
    lease = http(listeners, "receivers.b", "/a")
    assert "1 routes" in repr(lease)


async def test_a_closed_route_asks_to_come_again_while_others_serve():
    """What has closed answers 503 with Retry-After, since its sender must keep its data."""
    listeners = Listeners()
    a, b = http(listeners, "receivers.a", "/a"), http(listeners, "receivers.b", "/b")
    async with opened(a, b):
        await a.close()
        answer = await exchange(b.port, "POST", "/a")
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert await text(b, "/b") == "receivers.b"


async def test_a_closed_method_asks_to_come_again_while_others_serve():
    """For gRPC that is UNAVAILABLE with RetryInfo in both trailers."""
    listeners = Listeners()
    a, b = listeners.grpc(ANY, "receivers.a"), listeners.grpc(ANY, "receivers.b")
    a.unary("s.S", "A", echo)
    b.unary("s.S", "B", echo)
    async with opened(a, b), grpc.aio.insecure_channel(f"127.0.0.1:{b.port}") as channel:
        await a.close()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await channel.unary_unary("/s.S/A")(b"x")
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert {"google.rpc.retryinfo-bin", "grpc-status-details-bin"} <= set(dict(refused.value.trailing_metadata()))
        assert await channel.unary_unary("/s.S/B")(b"x") == b"x"


async def test_the_last_lease_lets_go_of_the_socket_and_the_first_takes_it_again():
    """After the last close nobody listens; an open of a new lease serves on the same endpoint."""
    listeners = Listeners()
    lease = http(listeners, "receivers.a", "/a")
    await lease.open()
    port = lease.port
    await lease.close()
    with pytest.raises(ConnectionRefusedError):
        await exchange(port, "POST", "/a")
    async with opened(http(listeners, "receivers.a", "/a")) as again:
        assert await text(again) == "receivers.a"


async def test_close_works_twice_and_without_open():
    """As every component's stop must."""
    listeners = Listeners()
    for lease in (http(listeners, "receivers.a", "/a"), listeners.grpc(ANY, "receivers.b")):
        await lease.close()
        await lease.close()


async def test_close_waits_for_the_requests_under_way():
    """A request that has begun is answered, also when it is the last lease that closes."""
    started, go_on = asyncio.Event(), asyncio.Event()

    async def slow(_request):
        started.set()
        await go_on.wait()
        return web.Response(text="done")

    lease = Listeners().http(ANY, "receivers.a")
    lease.route("POST", "/a", slow)
    await lease.open()
    asked = asyncio.create_task(exchange(lease.port, "POST", "/a"))
    await started.wait()
    closing = asyncio.create_task(lease.close())
    await asyncio.sleep(0)
    assert not closing.done()
    go_on.set()
    assert (await asked).body == b"done"
    await closing


async def test_close_waits_for_the_calls_under_way():
    """The same for gRPC."""
    started, go_on = asyncio.Event(), asyncio.Event()

    async def slow(data, _call):
        started.set()
        await go_on.wait()
        return data

    lease = Listeners().grpc(ANY, "receivers.a")
    lease.unary("s.S", "A", slow)
    await lease.open()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{lease.port}") as channel:
        call = channel.unary_unary("/s.S/A")(b"x")
        await started.wait()
        closing = asyncio.create_task(lease.close())
        await asyncio.sleep(0)
        go_on.set()
        assert await call == b"x"
        await closing


async def test_a_replacement_takes_over_without_a_refused_request():
    """While requests keep coming, a route changes hands: each is answered by the old or the new owner."""
    listeners = Listeners()
    old = http(listeners, "receivers.a: old", "/a")
    await old.open()
    answers = []
    done = asyncio.Event()

    async def ask():
        while not done.is_set():
            answers.append(await text(old))

    asking = asyncio.create_task(ask())
    await until(lambda: len(answers) > 5)
    with listeners.replacing({"receivers.a"}):
        new = http(listeners, "receivers.a: new", "/a", settings=HttpServerSettings(max_connections=7))
    await new.open()
    await old.close()
    await until(lambda: answers[-1] == "receivers.a: new")
    done.set()
    await asking
    await new.close()
    assert set(answers) == {"receivers.a: old", "receivers.a: new"}


async def test_a_replacement_that_never_opens_changes_nothing():
    """A document that turned out wrong after its components were made leaves the old ones serving."""
    listeners = Listeners()
    async with opened(http(listeners, "receivers.a: old", "/a")) as old:
        with listeners.replacing({"receivers.a"}):
            new = http(listeners, "receivers.a: new", "/a")
        assert await text(old) == "receivers.a: old"
        await new.close()
        assert await text(old) == "receivers.a: old"


async def test_a_replacement_may_change_hands_between_components():
    """A path that another component has in the new document is no conflict with the old one."""
    listeners = Listeners()
    async with opened(http(listeners, "receivers.a", "/a"), http(listeners, "receivers.c", "/c")) as (old, _):
        with listeners.replacing({"receivers.a"}):
            new = http(listeners, "receivers.b", "/a")
            with pytest.raises(SettingError, match=r"receivers\.c"):
                http(listeners, "receivers.b", "/c")
        async with opened(new):
            await old.close()
            assert await text(new) == "receivers.b"


async def test_grpc_settings_change_while_serving():
    """New limits hold for calls after the change; the same port stays."""
    listeners = Listeners()

    def lease(size):
        made = listeners.grpc(ANY, "receivers.a", GrpcServerSettings(max_recv_msg_size_mib=size))
        made.unary("s.S", "A", echo)
        return made

    old = lease(1)
    await old.open()
    port = old.port
    with listeners.replacing({"receivers.a"}):
        new = lease(3)
    await new.open()
    await old.close()
    async with opened(new), grpc.aio.insecure_channel(f"127.0.0.1:{new.port}") as channel:
        assert new.port == port
        call = channel.unary_unary("/s.S/A")
        assert len(await call(b"x" * 2**21, wait_for_ready=True)) == 2**21


async def test_localhost_is_both_loopback_addresses_on_one_port():
    """Clients resolve localhost to either address, and port 0 gives the same port on both."""
    listeners = Listeners()
    lease = http(listeners, "receivers.a", "/a", endpoint=Endpoint("localhost:0"))
    served = listeners.grpc(Endpoint("localhost:0"), "receivers.a")
    served.unary("s.S", "A", echo)
    async with opened(lease, served):
        for host in ("127.0.0.1", *(["::1"] if has_ipv6() else [])):
            async with connect(lease.port, host=host) as wire:
                await wire.send(request("POST", "/a"))
                assert (await wire.answer()).status == 200
            bracketed = f"[{host}]" if ":" in host else host
            async with grpc.aio.insecure_channel(f"{bracketed}:{served.port}") as channel:
                assert await channel.unary_unary("/s.S/A")(b"x") == b"x"


def has_ipv6():
    """Whether this host has ::1."""
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            return False
        return True


@pytest.mark.parametrize("kind", ["http", "grpc"])
async def test_a_port_in_use_is_an_error_that_says_what_to_do(kind):
    """A second start fails loudly, naming the component, the setting and the address."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        lease = getattr(Listeners(), kind)(Endpoint(f"localhost:{port}"), "receivers.otlp: protocols.http.endpoint")
        with pytest.raises(StartError) as failure:
            await lease.open()
    message = str(failure.value)
    assert message.startswith(f"receivers.otlp: protocols.http.endpoint: can't listen on 127.0.0.1:{port}: ")
    assert "in use" in message
    assert "change the setting" in message


async def test_a_port_that_this_process_holds_under_another_name_is_pointed_out():
    """The names localhost and 0.0.0.0 are two endpoints, and the message says how to share one."""
    listeners = Listeners()
    async with opened(http(listeners, "receivers.a", "/a")) as first:
        second = http(listeners, "receivers.b", "/b", endpoint=Endpoint(f"0.0.0.0:{first.port}"))
        with pytest.raises(StartError, match=r"in this process receivers.a listens on 127.0.0.1:0: write the same"):
            await second.open()


async def test_what_listens_can_be_asked():
    """With the port that was found, and with the paths that are open."""
    listeners = Listeners()
    served = listeners.grpc(ANY, "receivers.a")
    served.unary("s.S", "A", echo)
    closing = http(listeners, "receivers.b", "/gone")
    async with opened(http(listeners, "receivers.a", "/b", "/a"), served) as (web_lease, _):
        await closing.open()
        await closing.close()
        assert listeners.serving() == [
            (f"grpc://127.0.0.1:{served.port}", ["/s.S/A"]),
            (f"http://127.0.0.1:{web_lease.port}", ["/a", "/b"]),
        ]
    assert listeners.serving() == []


async def test_a_failed_open_leaves_nothing_behind():
    """After the address is free the same lease opens."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        lease = http(Listeners(), "receivers.a", "/a", endpoint=Endpoint(f"127.0.0.1:{holder.getsockname()[1]}"))
        with pytest.raises(StartError):
            await lease.open()
    async with opened(lease):
        assert await text(lease) == "receivers.a"


@pytest.mark.parametrize("kind", ["http", "grpc"])
@pytest.mark.parametrize(
    ("endpoint", "reason"),
    [
        ("no-such-host.invalid:4318", "the host 'no-such-host.invalid' is unknown"),
        ("192.0.2.1:4318", "not an address of this host"),
    ],
)
async def test_an_address_that_is_not_ours_is_explained(kind, endpoint, reason):
    """The reason is in words, with what would be right."""
    lease = getattr(Listeners(), kind)(Endpoint(endpoint), "receivers.a: endpoint")
    with pytest.raises(StartError, match=rf"receivers.a: endpoint: can't listen on {endpoint}: {reason}"):
        await lease.open()


def test_other_reasons_for_which_binding_fails_are_explained():
    """A privileged port says so; what is rare keeps the system's words."""
    assert "ports below 1024" in explain(OSError(errno.EACCES, ""), "0.0.0.0:80", "receivers.a: endpoint")
    assert "Too many open files" in explain(OSError(errno.EMFILE, ""), "0.0.0.0:80", "receivers.a: endpoint")


@pytest.fixture
def folder():
    """A folder whose path is short enough for a socket."""
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


async def test_unix_sockets_serve_http_and_go_with_the_last_lease(folder):
    """The file appears with the server and is gone after it."""
    path = folder / "otlp.sock"
    lease = http(Listeners(), "receivers.a", "/a", endpoint=Endpoint(f"unix://{path}"))
    async with opened(lease), connect(path=path) as wire:
        await wire.send(request("POST", "/a"))
        assert (await wire.answer()).body == b"receivers.a"
    assert not path.exists()


async def test_unix_sockets_serve_grpc(folder):
    """The same for gRPC."""
    path = folder / "otlp.sock"
    lease = Listeners().grpc(Endpoint(f"unix://{path}"), "receivers.a")
    lease.unary("s.S", "A", echo)
    async with opened(lease), grpc.aio.insecure_channel(f"unix:{path}") as channel:
        assert await channel.unary_unary("/s.S/A")(b"x") == b"x"
    assert not path.exists()


@pytest.mark.parametrize("kind", ["http", "grpc"])
async def test_a_unix_socket_that_a_dead_process_left_is_taken(folder, kind):
    """Nobody listens behind the file, so it is in the way of nobody."""
    path = folder / "otlp.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    async with opened(getattr(Listeners(), kind)(Endpoint(f"unix://{path}"), "receivers.a")):
        assert path.is_socket()


@pytest.mark.parametrize("kind", ["http", "grpc"])
async def test_a_unix_socket_that_somebody_listens_on_is_left_to_him(folder, kind):
    """A second start fails loudly there, too."""
    path = folder / "otlp.sock"
    with socket.socket(socket.AF_UNIX) as living:
        living.bind(str(path))
        living.listen()
        lease = getattr(Listeners(), kind)(Endpoint(f"unix://{path}"), "receivers.a: endpoint")
        with pytest.raises(StartError, match=r"receivers.a: endpoint: .*another process listens there"):
            await lease.open()
    assert path.exists()


@pytest.mark.parametrize("kind", ["http", "grpc"])
async def test_a_unix_path_that_can_not_be_used_is_explained(folder, kind):
    """A missing folder, a path that is too long, an ordinary file: each in words."""
    ordinary = folder / "file"
    ordinary.write_text("keep me")
    for path, reason in (
        (folder / "missing" / "x.sock", "does not exist"),
        (folder / ("x" * 120), "too long"),
        (ordinary, "not a socket"),
    ):
        lease = getattr(Listeners(), kind)(Endpoint(f"unix://{path}"), "receivers.a: endpoint")
        with pytest.raises(StartError, match=reason):
            await lease.open()
    assert ordinary.read_text() == "keep me"
