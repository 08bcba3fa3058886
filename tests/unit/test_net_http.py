"""The HTTP server: what it makes of requests, and of clients that are slow, many or wrong."""

import asyncio
import logging

import orjson
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from support.wire import connect, exchange, opened, request, until

from config import Duration, Endpoint
from sidecar.errors import NotServed, Permanent, RateLimited, Retryable, TooLarge, Unauthenticated
from sidecar.net import HttpServerSettings, Listeners
from sidecar.net.body import read_body

ANY = Endpoint("127.0.0.1:0")


def lease(settings=None, **handlers):
    """A lease with one POST route per handler, named as it is."""
    made = Listeners().http(ANY, "receivers.a", settings)
    for name, handler in handlers.items():
        made.route("POST", f"/{name}", handler)
    return made


async def echo(received):
    """Answer the body."""
    return web.Response(body=await read_body(received, 10_000))


def raising(error):
    """A handler that fails."""

    async def handler(_request):
        raise error

    return handler


async def test_an_unknown_path_is_404_and_a_path_is_exact():
    """No slash is added or taken away, and the query does not count."""
    async with opened(lease(a=echo)) as served:
        for path, status in (("/b", 404), ("/a/", 404), ("//a", 404), ("/A", 404), ("/a?x=1", 200), ("/a", 200)):
            assert (await exchange(served.port, "POST", path)).status == status, path


async def test_a_path_with_a_star_serves_what_lies_below_it():
    """The nearest one, and a path of its own before any; not the path above, and no other method."""

    def saying(word):
        async def handler(_request):
            return web.Response(text=word)

        return handler

    made = lease()
    for path in ("/a/*", "/a/b/*", "/a/b/c"):
        made.route("POST", path, saying(path))
    async with opened(made) as served:
        for path, body in (("/a/x", b"/a/*"), ("/a/b/x/y", b"/a/b/*"), ("/a/b/c", b"/a/b/c"), ("/a/bc", b"/a/*")):
            assert (await exchange(served.port, "POST", path)).body == body, path
        assert (await exchange(served.port, "POST", "/a")).status == 404
        assert (await exchange(served.port, "GET", "/a/x")).status == 404


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"])
async def test_another_method_is_405_with_what_is_allowed(method):
    """As HTTP requires."""
    async with opened(lease(a=echo)) as served:
        answer = await exchange(served.port, method, "/a")
    assert (answer.status, answer.headers["allow"]) == (405, "POST")


async def test_get_serves_head_without_a_body():
    """Who serves GET gets HEAD for nothing."""
    made = Listeners().http(ANY, "exporters.a")
    made.route("GET", "/metrics", echo)
    async with opened(made) as served:
        assert (await exchange(served.port, "HEAD", "/metrics")).status == 200
        assert (await exchange(served.port, "POST", "/metrics")).headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize(
    ("error", "status", "retry_after"),
    [
        (Permanent("bad"), 400, None),
        (Unauthenticated("who?"), 401, None),
        (NotServed("no"), 404, None),
        (TooLarge("big"), 413, None),
        (RateLimited("slow down", after=0.2), 429, "1"),
        (Retryable("later"), 503, None),
        (Retryable("later", after=12.1), 503, "13"),
        (Retryable("later", after=0), 503, "1"),
    ],
)
async def test_an_error_becomes_its_answer(error, status, retry_after):
    """With whole seconds, rounded up, where it says when to come again."""
    async with opened(lease(a=raising(error))) as served:
        answer = await exchange(served.port, "POST", "/a")
    assert (answer.status, answer.headers.get("retry-after")) == (status, retry_after)


@pytest.mark.parametrize("error", [ValueError("secret"), ConnectionError("secret"), TimeoutError(), KeyError("x")])
async def test_an_unexpected_error_may_pass_later(error, caplog):
    """503 and never 500, for which clients drop their data; the traceback is in the log, and not in the answer."""
    async with opened(lease(a=raising(error))) as served:
        answer = await exchange(served.port, "POST", "/a")
    assert answer.status == 503
    assert b"secret" not in answer.body
    (record,) = caplog.records
    assert record.exc_info[1] is error
    assert record.getMessage() == "receivers.a: the handler of POST /a failed"


async def test_the_answer_does_not_tell_what_it_is_made_of():
    """No versions of libraries in the Server header."""
    async with opened(lease(a=echo, b=raising(Permanent("bad")))) as served:
        for method, path in (("POST", "/a"), ("POST", "/b"), ("POST", "/c"), ("GET", "/a"), ("G@T", "/a")):
            assert (await exchange(served.port, method, path)).headers["server"] == "otlp-sidecar"


async def test_requests_follow_each_other_on_one_connection():
    """Pipelined ones are answered in order."""
    async with opened(lease(a=echo)) as served, connect(served.port) as wire:
        await wire.send(b"".join(request("POST", "/a", b"%d" % number) for number in range(3)))
        assert [(await wire.answer()).body for _ in range(3)] == [b"0", b"1", b"2"]


async def test_http_1_0_is_answered_and_closed_unless_kept_alive():
    """As ApacheBench asks for it."""
    async with opened(lease(a=echo)) as served:
        async with connect(served.port) as wire:
            await wire.send(request("POST", "/a", b"x", version="1.0"))
            assert (await wire.answer()).body == b"x"
            assert await wire.rest() == b""
        async with connect(served.port) as wire:
            for _ in range(2):
                await wire.send(request("POST", "/a", b"x", version="1.0", Connection="Keep-Alive"))
                assert (await wire.answer()).body == b"x"


async def test_an_offer_of_http_2_is_ignored():
    """A client that offers h2c is answered on 1.1."""
    async with opened(lease(a=echo)) as served, connect(served.port) as wire:
        headers = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2_Settings": "AAMAAABkAAQAAP__"}
        await wire.send(request("POST", "/a", b"x", **headers))
        answer = await wire.answer()
        assert (answer.status, answer.body) == (200, b"x")


@pytest.mark.parametrize(
    "junk",
    [
        b"hello\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /a HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /a HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /a HTTP/1.1\r\nX: " + b"x" * 40_000 + b"\r\n\r\n",
        b"POST /" + b"a" * 40_000 + b" HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
async def test_what_is_not_http_is_400_and_closed(junk, caplog):
    """Without a line in the log for every stray byte on the port."""
    async with opened(lease(a=echo)) as served, connect(served.port) as wire:
        await wire.send(junk)
        answer = await wire.answer()
        assert (answer.status, await wire.rest()) == (400, b"")
        assert orjson.loads(answer.body)["message"].startswith("not an HTTP request: ")
    assert not caplog.records


@given(junk=st.binary(min_size=1, max_size=300))
def test_no_bytes_make_the_server_fail(junk):
    """Whatever is sent, the next client is served, and nothing is logged as an error."""

    async def run():
        async with opened(lease(a=echo)) as served:
            async with connect(served.port) as wire:
                await wire.send(b"POST /a HTTP/1.1\r\n", junk)
            assert (await exchange(served.port, "POST", "/a", b"x")).body == b"x"

    asyncio.run(run())


async def test_a_head_that_comes_too_slowly_is_given_up():
    """A byte now and then does not hold a connection."""
    settings = HttpServerSettings(read_header_timeout=Duration("100ms"))
    async with opened(lease(settings, a=echo)) as served, connect(served.port) as wire:
        trickle = asyncio.create_task(wire.rest())
        for byte in b"POST /a HT":
            await wire.send(bytes([byte]))
        assert await trickle == b""


async def test_a_head_that_begins_while_another_request_is_served_is_given_up_too():
    """But not before that request has its answer."""
    let_go = asyncio.Event()

    async def held(_request):
        await let_go.wait()
        return web.Response(text="done")

    settings = HttpServerSettings(read_header_timeout=Duration("100ms"))
    async with opened(lease(settings, a=held)) as served, connect(served.port) as wire:
        await wire.send(request("POST", "/a"))
        await until(lambda: served.active)
        await wire.send(b"POST /a HTTP")
        await asyncio.sleep(0.2)
        let_go.set()
        assert (await wire.answer()).body == b"done"
        assert await wire.rest() == b""


@pytest.mark.parametrize("turns", range(6))
async def test_a_body_is_not_taken_for_a_head(turns):
    """Whenever it comes, also when the request of which it is has not quite begun to be served."""
    settings = HttpServerSettings(read_header_timeout=Duration("50ms"))
    async with opened(lease(settings, a=echo)) as served, connect(served.port) as wire:
        for _ in range(2):
            await wire.send(request("POST", "/a", Content_Length=1))
            for _ in range(turns):
                await asyncio.sleep(0)
            await wire.send(b"x")
            assert (await wire.answer()).body == b"x"
            await asyncio.sleep(0.1)


async def test_the_time_for_a_head_begins_anew_with_each_request():
    """A connection may live much longer than a head may take."""
    settings = HttpServerSettings(read_header_timeout=Duration("200ms"))
    async with opened(lease(settings, a=echo)) as served, connect(served.port) as wire:
        whole = request("POST", "/a", b"x")
        for _ in range(6):
            await wire.send(whole[:20])
            await asyncio.sleep(0.06)
            await wire.send(whole[20:])
            assert (await wire.answer()).body == b"x"


@pytest.mark.parametrize("asked", [0, 1])
async def test_an_idle_connection_is_closed(asked):
    """Before its first request and between requests."""
    settings = HttpServerSettings(idle_timeout=Duration("50ms"))
    async with opened(lease(settings, a=echo)) as served, connect(served.port) as wire:
        for _ in range(asked):
            await wire.send(request("POST", "/a"))
            await wire.answer()
        assert await wire.rest() == b""


async def test_without_an_idle_timeout_connections_stay():
    """Zero means for ever, also where the library takes it for at once."""
    settings = HttpServerSettings(idle_timeout=Duration(0), read_header_timeout=Duration(0))
    async with opened(lease(settings, a=echo)) as served, connect(served.port) as wire:
        for _ in range(3):
            await wire.send(request("POST", "/a", b"x"))
            assert (await wire.answer()).body == b"x"
            await asyncio.sleep(0.02)


async def test_keep_alive_can_be_switched_off():
    """Then each response closes its connection."""
    async with (
        opened(lease(HttpServerSettings(keep_alives_enabled=False), a=echo)) as served,
        connect(served.port) as wire,
    ):
        await wire.send(request("POST", "/a"))
        assert (await wire.answer()).headers["connection"] == "close"
        assert await wire.rest() == b""


async def test_an_idle_connection_makes_room_for_a_new_one():
    """Who only holds connections keeps nobody out."""
    async with (
        opened(lease(HttpServerSettings(max_connections=2), a=echo)) as served,
        connect(served.port) as first,
        connect(served.port) as second,
    ):
        for wire in (first, second):
            await wire.send(request("POST", "/a"))
            assert (await wire.answer()).status == 200
        assert (await exchange(served.port, "POST", "/a")).status == 200
        assert await first.rest() == b""
        await second.send(request("POST", "/a"))
        assert (await second.answer()).status == 200


async def test_connections_above_the_limit_are_told_to_come_again():
    """503 with Retry-After while all are at work, and service when one has ended."""
    go_on = asyncio.Event()

    async def slow(_request):
        await go_on.wait()
        return web.Response()

    async with opened(lease(HttpServerSettings(max_connections=2), a=slow)) as served:
        working = [asyncio.create_task(exchange(served.port, "POST", "/a")) for _ in range(2)]
        await until(lambda: served.active == 2)
        async with connect(served.port) as refused:
            answer = await refused.answer()
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert orjson.loads(answer.body) == {"code": 14, "message": "too many connections"}
        go_on.set()
        assert [(await one).status for one in working] == [200, 200]
        assert (await exchange(served.port, "POST", "/a")).status == 200


async def test_many_connections_at_once_are_served():
    """Sixty-four clients, several requests each."""

    async def client(port):
        async with connect(port) as wire:
            for _ in range(3):
                await wire.send(request("POST", "/a", b"x"))
                assert (await wire.answer()).body == b"x"

    async with opened(lease(a=echo)) as served:
        await asyncio.gather(*(client(served.port) for _ in range(64)))


async def test_a_client_that_does_not_wait_for_its_answer_costs_nothing(caplog):
    """Its handler ends in its own time, and nothing is logged."""
    caplog.set_level(logging.INFO)
    started, go_on = asyncio.Event(), asyncio.Event()

    async def slow(_request):
        started.set()
        await go_on.wait()
        return web.Response()

    async with opened(lease(a=slow)) as served:
        async with connect(served.port) as wire:
            await wire.send(request("POST", "/a"))
            await started.wait()
        go_on.set()
        await until(lambda: not served.active)
    assert not caplog.records
