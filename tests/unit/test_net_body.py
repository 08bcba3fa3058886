"""Bodies are read within their bounds, whatever is in them."""

import asyncio
import contextlib
import gzip
import random
import tracemalloc
import zlib

import pytest
import zstandard
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from support.wire import chunked, connect, exchange, opened, request, until

from config import Endpoint, Size
from sidecar.errors import Permanent, TooLarge
from sidecar.net import HttpServerSettings, Listeners
from sidecar.net.body import CODINGS, read_body

MIB = 2**20
LIMIT = 64 * MIB


def raw_deflate(data):
    """A deflate stream without zlib's header."""
    stream = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return stream.compress(data) + stream.flush()


def zstd(data):
    """A frame that does not say how much it holds, as streaming senders make it."""
    stream = zstandard.ZstdCompressor().compressobj()
    return stream.compress(data) + stream.flush()


def noise(size):
    """Bytes that don't compress, the same each time."""
    return random.Random(size).randbytes(size)


MAKERS = {
    "gzip": [gzip.compress],
    "x-gzip": [gzip.compress],
    "deflate": [zlib.compress, raw_deflate],
    "zlib": [zlib.compress],
    "zstd": [zstandard.compress, zstd],
}
EACH = pytest.mark.parametrize(("name", "make"), [(name, make) for name, makes in MAKERS.items() for make in makes])
JOINABLE = pytest.mark.parametrize(("name", "make"), [("gzip", gzip.compress), ("zstd", zstandard.compress)])


def test_each_coding_is_tried_here():
    """A coding that is added is tested."""
    assert MAKERS.keys() == CODINGS.keys()


@EACH
@given(parts=st.lists(st.binary(max_size=200), min_size=1, max_size=4), times=st.integers(1, 3000))
def test_what_was_compressed_comes_back(name, make, parts, times):
    """For data of any size and kind."""
    data = b"".join(parts) * times
    assert CODINGS[name].decompress(make(data), LIMIT) == data


@JOINABLE
def test_all_members_count(name, make):
    """Members that follow each other are one body, empty ones among them."""
    joined = make(b"a") + make(b"") + make(noise(100_000)) + make(b"z")
    assert CODINGS[name].decompress(joined, LIMIT) == b"a" + noise(100_000) + b"z"


@EACH
@given(cut=st.integers(1, 400))
def test_a_body_that_ends_early_is_refused(name, make, cut):
    """Wherever it is cut off: what has arrived is not what was sent."""
    whole = make(noise(300))
    with pytest.raises(Permanent):
        CODINGS[name].decompress(whole[: -min(cut, len(whole))], LIMIT)


@pytest.mark.parametrize("name", MAKERS)
@given(junk=st.binary(max_size=300))
def test_junk_never_raises_anything_else(name, junk):
    """Bytes of any kind are data or a refusal."""
    with contextlib.suppress(Permanent):
        CODINGS[name].decompress(junk, LIMIT)


@EACH
def test_the_limit_is_exact(name, make):
    """A body of just the limit passes, and one byte more does not."""
    assert len(CODINGS[name].decompress(make(b"x" * 1000), 1000)) == 1000
    with pytest.raises(TooLarge):
        CODINGS[name].decompress(make(b"x" * 1001), 1000)


@EACH
def test_a_bomb_is_refused_in_bounded_memory(name, make):
    """100 MiB of zeros in a few bytes need no more memory than the limit and one slice of input may make."""
    bomb = make(bytes(100 * MIB))
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge):
            CODINGS[name].decompress(bomb, 8 * MIB)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 60 * MIB


@JOINABLE
def test_a_body_of_endless_members_is_refused(name, make):
    """Each member costs a decompressor, so their number has a bound."""
    with pytest.raises(Permanent, match="more than 10000"):
        CODINGS[name].decompress(make(b"") * 20_000, LIMIT)


def test_zeros_after_the_last_gzip_member_are_padding():
    """As GNU gzip has it; anything else there is not."""
    assert CODINGS["gzip"].decompress(gzip.compress(b"a") + bytes(512), LIMIT) == b"a"
    for junk in (b"junk", bytes(5) + b"junk"):
        with pytest.raises(Permanent):
            CODINGS["gzip"].decompress(gzip.compress(b"a") + junk, LIMIT)


def test_a_zstd_frame_that_wants_a_huge_window_is_refused():
    """The frame says how much memory it needs, before there is any data."""
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=27)
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    with pytest.raises(Permanent, match="too much memory"):
        CODINGS["zstd"].decompress(stream.compress(b"x") + stream.flush(), LIMIT)


def reader(max_size=1000, settings=None, **options):
    """A server whose one route answers with the length of the body."""
    lease = Listeners().http(Endpoint("127.0.0.1:0"), "receivers.a", settings)

    async def answer(request):
        return web.Response(text=str(len(await read_body(request, max_size, **options))))

    lease.route("POST", "/", answer)
    return lease


@pytest.mark.parametrize("coding", ["gzip", "GZIP", " gzip ", "deflate", "zstd", "identity", "none", ""])
async def test_codings_are_known_by_their_names(coding):
    """In any case, and identity as what it is."""
    make = {"gzip": gzip.compress, "deflate": zlib.compress, "zstd": zstandard.compress}
    body = make.get(coding.strip().lower(), bytes)(b"hello")
    async with opened(reader()) as served:
        answer = await exchange(served.port, "POST", "/", body, Content_Encoding=coding)
    assert (answer.status, answer.body) == (200, b"5")


@pytest.mark.parametrize(("coding", "codings"), [("br", None), ("gzip, gzip", None), ("zstd", {"gzip"})])
async def test_a_coding_that_is_not_accepted_is_415(coding, codings):
    """Unknown ones, and those that the settings leave out."""
    async with opened(reader(codings=codings)) as served:
        answer = await exchange(served.port, "POST", "/", b"hello", Content_Encoding=coding)
    assert answer.status == 415
    assert b"accepted: identity" in answer.body


async def test_an_announced_length_over_the_limit_is_refused_unread():
    """413 comes before the body, and the connection closes so that nobody waits for it."""
    async with opened(reader()) as served, connect(served.port) as wire:
        await wire.send(request("POST", "/", Content_Length=1001))
        answer = await wire.answer()
        assert (answer.status, answer.headers["connection"]) == (413, "close")


async def test_a_chunked_body_is_counted_while_it_comes():
    """413 at the limit, without waiting for an end that may never come."""
    async with opened(reader()) as served, connect(served.port) as wire:
        await wire.send(request("POST", "/", Transfer_Encoding="chunked"), b"800\r\n", b"x" * 2048)
        assert (await wire.answer()).status == 413


async def test_a_chunked_body_is_read_whole():
    """In whatever pieces it comes."""
    body = request("POST", "/", Transfer_Encoding="chunked") + chunked(b"abc", b"de" * 100)
    async with opened(reader()) as served:
        for size in (1, 7, len(body)):
            async with connect(served.port) as wire:
                await wire.send(*(body[start : start + size] for start in range(0, len(body), size)))
                assert (await wire.answer()).body == b"203"


async def test_a_broken_chunk_is_the_senders_fault():
    """400, and the connection ends, since nobody knows where the next request would begin."""
    async with opened(reader()) as served, connect(served.port) as wire:
        await wire.send(request("POST", "/", Transfer_Encoding="chunked"), b"3\r\nabc\r\n", b"zz\r\n")
        assert (await wire.answer()).status == 400
        assert await wire.rest() == b""


async def test_a_slow_body_is_given_up():
    """503, since the same may come faster next time, and the connection ends."""
    async with opened(reader(within=0.05)) as served, connect(served.port) as wire:
        await wire.send(request("POST", "/", Content_Length=10), b"x")
        answer = await wire.answer()
        assert (answer.status, answer.headers["connection"]) == (503, "close")


async def test_a_client_that_hangs_up_within_its_body_leaves_nothing():
    """The handler ends; others are served."""
    async with opened(reader()) as served:
        async with connect(served.port) as wire:
            await wire.send(request("POST", "/", Content_Length=10), b"x")
            await until(lambda: served.active)
        await until(lambda: not served.active)
        assert (await exchange(served.port, "POST", "/", b"abc")).body == b"3"


async def test_a_client_that_expects_to_be_told_is_told_to_go_on():
    """100 Continue comes before the body is sent, and the one response after it."""
    async with opened(reader()) as served, connect(served.port) as wire:
        await wire.send(request("POST", "/", Content_Length=3, Expect="100-continue"))
        assert (await wire.answer()).status == 100
        await wire.send(b"abc")
        assert (await wire.answer()).body == b"3"


async def test_a_client_that_expects_is_not_told_to_send_too_much():
    """413 comes instead, and saves the upload."""
    async with opened(reader()) as served, connect(served.port) as wire:
        await wire.send(request("POST", "/", Content_Length=10**9, Expect="100-continue"))
        assert (await wire.answer()).status == 413


async def test_large_compressed_bodies_are_read_beside_the_loop():
    """A body that takes long to decompress is the same data."""
    async with opened(reader(LIMIT)) as served:
        answer = await exchange(served.port, "POST", "/", gzip.compress(noise(3 * MIB)), Content_Encoding="gzip")
    assert answer.body == str(3 * MIB).encode()


async def test_large_bodies_share_a_bound():
    """While one request holds the room, others of its size are told to come again, and small ones pass."""
    settings = HttpServerSettings(max_in_flight_body_size=Size(MIB))
    holding, go_on = asyncio.Event(), asyncio.Event()
    lease = reader(LIMIT, settings)

    async def hold(request):
        await read_body(request, LIMIT)
        holding.set()
        await go_on.wait()
        return web.Response()

    lease.route("POST", "/hold", hold)
    async with opened(lease) as served:
        held = asyncio.create_task(exchange(served.port, "POST", "/hold", noise(900_000)))
        await holding.wait()
        refused = await exchange(served.port, "POST", "/", noise(900_000))
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        compressed = gzip.compress(bytes(900_000))
        assert (await exchange(served.port, "POST", "/", compressed, Content_Encoding="gzip")).status == 503
        assert (await exchange(served.port, "POST", "/", noise(1000))).status == 200
        go_on.set()
        await held
        assert (await exchange(served.port, "POST", "/", noise(900_000))).status == 200
