"""Who is calling is told by one set of rules, over HTTP and over gRPC."""

import grpc.aio
import pytest
from aiohttp import web
from support.wire import connect, opened, request

from config import ComponentId, Endpoint, SettingError, Settings
from sidecar.batch import Identity
from sidecar.callers import AuthSettings, Callers, grpc_peer, plain_address
from sidecar.component import Authenticator, Extension
from sidecar.testing import Bench

ANY = Endpoint("127.0.0.1:0")


class KeyRing(Authenticator[Settings]):
    """Knows the bearer of `key`."""

    def authenticate(self, credentials):
        known = credentials.headers.get("authorization") == "Bearer key"
        return Identity("bearer", f"alice@{credentials.peer}") if known else None


class Other(Extension[Settings]):
    """Knows nobody."""


@pytest.fixture
def bench():
    """What surrounds a receiver, with one authenticator and one other extension."""
    bench = Bench()
    bench.extensions = {
        ComponentId("keys"): KeyRing(Settings(), bench.context("keys")),
        ComponentId("other"): Other(Settings(), bench.context("other")),
    }
    return bench


async def seen_over_http(bench, callers, **headers):
    """The context of a request with these headers; the status where it was refused."""
    contexts = []

    async def handler(request):
        contexts.append(callers.of_http(request))
        return web.Response()

    lease = bench.listeners.http(ANY, "receivers.a")
    lease.route("POST", "/", handler)
    async with opened(lease), connect(lease.port) as wire:
        await wire.send(request("POST", "/", **headers))
        status = (await wire.answer()).status
    return contexts[0] if contexts else status


async def seen_over_grpc(bench, callers, **headers):
    """The same for a call."""
    contexts = []

    async def handler(data, call):
        contexts.append(callers.of_grpc(call))
        return data

    lease = bench.listeners.grpc(ANY, "receivers.a")
    lease.unary("s.S", "A", handler)
    metadata = tuple((name.replace("_", "-").lower(), value) for name, value in headers.items())
    async with opened(lease), grpc.aio.insecure_channel(f"127.0.0.1:{lease.port}") as channel:
        try:
            await channel.unary_unary("/s.S/A")(b"", metadata=metadata)
        except grpc.aio.AioRpcError as error:
            return error.code()
    return contexts[0]


BOTH = pytest.mark.parametrize("seen", [seen_over_http, seen_over_grpc])


@BOTH
async def test_without_authentication_the_address_is_all_that_is_known(bench, seen):
    """And the time, and how it came."""
    context = await seen(bench, Callers(bench.context(), None), Authorization="Bearer key")
    assert (context.identity, context.peer, dict(context.metadata)) == (None, "127.0.0.1", {})
    assert context.transport == ("http" if seen is seen_over_http else "grpc")
    assert context.received_at == bench.clock.time_ns()


@BOTH
async def test_a_known_caller_is_named(bench, seen):
    """The authenticator sees the headers and the address."""
    callers = Callers(bench.context(), AuthSettings(authenticator="keys"))
    context = await seen(bench, callers, Authorization="Bearer key")
    assert context.identity == Identity("bearer", "alice@127.0.0.1")


@BOTH
async def test_a_stranger_is_refused_where_somebody_is_required(bench, seen):
    """401, or UNAUTHENTICATED; it makes no difference whether the credentials are wrong or missing."""
    callers = Callers(bench.context(), AuthSettings(authenticator="keys"))
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        assert await seen(bench, callers, **headers) in {401, grpc.StatusCode.UNAUTHENTICATED}


@BOTH
async def test_a_stranger_is_anonymous_where_nobody_is_required(bench, seen):
    """And still accepted."""
    callers = Callers(bench.context(), AuthSettings(authenticator="keys", required=False))
    context = await seen(bench, callers, Authorization="Bearer wrong")
    assert context.identity is None


@BOTH
async def test_a_replaced_authenticator_is_asked_at_once(bench, seen):
    """The extension of the document as it is now, not as it was."""

    class Welcoming(KeyRing):
        def authenticate(self, _credentials):
            return Identity("basic", "anybody")

    callers = Callers(bench.context(), AuthSettings(authenticator="keys"))
    bench.extensions[ComponentId("keys")] = Welcoming(Settings(), bench.context("keys"))
    assert (await seen(bench, callers)).identity == Identity("basic", "anybody")


@pytest.mark.parametrize(
    ("name", "message"),
    [("nobody", "no extension 'nobody' is listed"), ("other", "extension 'other' is not an authenticator")],
)
def test_an_authenticator_that_is_not_there_is_a_configuration_problem(bench, name, message):
    """At the place where it is named."""
    with pytest.raises(SettingError, match=message) as problem:
        Callers(bench.context(), AuthSettings(authenticator=name), path=("protocols", "grpc"))
    assert problem.value.path == ("protocols", "grpc", "auth", "authenticator")


@BOTH
@pytest.mark.parametrize(
    ("include", "expected"),
    [
        (False, {}),
        ((), {}),
        (("X-Tenant", "authorization"), {"x-tenant": "blue", "authorization": "Bearer key"}),
    ],
)
async def test_chosen_headers_go_along(bench, seen, include, expected):
    """With their names in lower case."""
    callers = Callers(bench.context(), None, include_metadata=include)
    context = await seen(bench, callers, X_Tenant="blue", X_Other="red", Authorization="Bearer key")
    assert context.metadata == expected


@BOTH
async def test_all_headers_are_all_but_credentials(bench, seen):
    """Who wants those has to name them."""
    callers = Callers(bench.context(), None, include_metadata=True)
    secrets = {"Authorization": "Bearer key", "Cookie": "a=b", "X_API_Key": "key", "Proxy_Authorization": "x"}
    context = await seen(bench, callers, X_Tenant="blue", **secrets)
    assert context.metadata["x-tenant"] == "blue"
    assert not {"authorization", "cookie", "x-api-key", "proxy-authorization"} & context.metadata.keys()


async def test_a_repeated_header_is_joined(bench):
    """As HTTP defines it."""
    callers = Callers(bench.context(), None, include_metadata=("x-tenant",))
    context = await seen_over_http(bench, callers, **{"X-Tenant": "blue\r\nX-Tenant: red"})
    assert context.metadata == {"x-tenant": "blue, red"}


async def test_binary_metadata_stays_behind(bench):
    """It is no text."""
    callers = Callers(bench.context(), None, include_metadata=True)
    context = await seen_over_grpc(bench, callers, trace_bin=b"\x00\xff")
    assert "trace-bin" not in context.metadata


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:127.0.0.1:53412", "127.0.0.1"),
        ("ipv6:%5B::1%5D:53412", "::1"),
        ("ipv6:[2001:db8::7]:53412", "2001:db8::7"),
        ("ipv6:%5B::ffff:10.0.0.7%5D:1", "10.0.0.7"),
        ("unix:", ""),
        ("unix:/run/a.sock", ""),
        ("", ""),
    ],
)
def test_the_address_in_a_grpc_peer(peer, address):
    """Without its port, and IPv4 as IPv4."""
    assert grpc_peer(peer) == address


def test_an_address_that_only_looks_mapped_stays():
    """Nothing is guessed."""
    assert plain_address("::ffff:nonsense") == "::ffff:nonsense"
    assert plain_address("::FFFF:10.0.0.7") == "10.0.0.7"
