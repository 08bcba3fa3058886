"""Read a request's body, bounded before and after decompression, without stalling the loop or trusting the sender."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final

import zstandard
from aiohttp import web

from sidecar.errors import Permanent, Retryable, TooLarge
from sidecar.net.status import UnsupportedMedia

try:
    from isal import isal_zlib
except ImportError:  # processors that isal has no build for
    inflate: Any = zlib
else:
    inflate = isal_zlib

_ERRORS: Final = (inflate.error, zstandard.ZstdError)
# A compressed body above this is decompressed in a thread. At deflate's densest (1:1032) that many bytes take the loop
# 25 ms; an ordinary batch of 512 spans has 8 KiB and takes 0.1 ms, less than handing it to a thread costs.
_THREAD_ABOVE: Final = 32 * 1024
# Members in one body. Each costs a decompressor: without a bound, 64 MiB of empty members take minutes.
_MAX_MEMBERS: Final = 10_000
# What RFC 8878 asks every decoder to support; a frame that asks for more memory is refused.
_ZSTD_WINDOW: Final = 8 * 2**20


# Bodies up to this size are not counted: as many as there are connections fit into memory.
_SMALL: Final = 64 * 1024


class Bodies:
    """What the larger bodies of all requests under way take together. `limit`: bytes; 0 for none."""

    def __init__(self) -> None:
        self.limit = 0
        self.size = 0

    def hold(self, request: web.BaseRequest, size: int) -> None:
        """Count `size` bytes more for a request.

        Raises:
            Retryable: there is no room.
        """
        if self.limit and self.size + size > self.limit:
            raise Retryable("too many large requests at once", after=1, reason="memory")
        self.size += size
        request[_HELD] = request.get(_HELD, 0) + size

    def release(self, request: web.BaseRequest) -> None:
        """The request is done."""
        if _HELD in request:
            self.size -= request[_HELD]


# The server's count, and the request's part of it.
BODIES: Final = web.RequestKey("bodies", Bodies)
_HELD: Final = web.RequestKey("held", int)


async def read_body(
    request: web.BaseRequest, max_size: int, *, within: float = 0, codings: Collection[str] | None = None
) -> bytes:
    """The whole body, decompressed.

    Args:
        request: whose `Content-Encoding` says how the body is compressed. A client that waits for `100 Continue` gets
            it when nothing speaks against reading.
        max_size: bytes, for the body as it comes and as it is when decompressed; 0 for no limit.
        within: seconds that its arrival may take; 0 for no limit.
        codings: those that are accepted, of `CODINGS`; None for all.

    Raises:
        TooLarge: over the limit; known from the length alone where the client says it.
        UnsupportedMedia: a coding that is not accepted.
        Permanent: the body is not what its coding says, or ends too early.
        Retryable: it came too slowly, or there are too many large ones at once.
    """
    name = request.headers.get("Content-Encoding")
    coding = _coding(name, codings) if name else None
    limit = max_size or 2**62
    announced = request.content_length
    if announced is not None and announced > limit:
        raise TooLarge(f"the body has {announced} bytes, and the limit is {max_size}")
    if "Expect" in request.headers:
        await _expect(request)
    content = request.content
    if content.is_eof() and content.exception() is None:
        data = content.read_nowait(-1)
        if len(data) > limit:
            raise _too_large(limit)
    else:
        data = await _receive(request, limit, within)
    if coding is None:
        return data
    if len(data) > _THREAD_ABOVE:
        data = await asyncio.to_thread(coding.decompress, data, limit)
    else:
        data = coding.decompress(data, limit)
    _hold(request, len(data))
    return data


def _hold(request: web.BaseRequest, size: int) -> None:
    bodies = request.get(BODIES)
    if size > _SMALL and bodies is not None:
        bodies.hold(request, size)


async def _receive(request: web.BaseRequest, limit: int, within: float) -> bytes:
    content = request.content
    chunks: list[bytes] = []
    size = counted = 0
    try:
        async with asyncio.timeout(within or None):
            while not content.at_eof():
                chunk = await content.readany()
                chunks.append(chunk)
                size += len(chunk)
                if size > limit:
                    raise _too_large(limit)
                if size - counted > _SMALL:
                    _hold(request, size - counted)
                    counted = size
    except TimeoutError:
        raise Retryable(f"the body took longer than {within:g} s", reason="slow") from None
    except web.RequestPayloadError as error:
        raise Permanent(f"the body is broken: {error}") from None
    return b"".join(chunks)


async def _expect(request: web.BaseRequest) -> None:
    """Tell a client that waits for it to go on (RFC 9110 §10.1.1)."""
    if request.headers["Expect"].lower() == "100-continue" and request.version >= (1, 1):
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        # Not a part of the response.
        request.writer.output_size = 0


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"the body has more than {limit} bytes, which is the limit")


def _coding(name: str, accepted: Collection[str] | None) -> Coding | None:
    """The coding of that name; None for a body as it is. Names are case-insensitive (RFC 9110 §8.4.1)."""
    name = name.strip().lower()
    if name in {"", "identity", "none"}:
        return None
    found = CODINGS.get(name)
    if found is None or (accepted is not None and name not in accepted):
        known = ", ".join(accepted if accepted is not None else CODINGS)
        raise UnsupportedMedia(f"Content-Encoding {name!r} is not accepted; accepted: identity, {known}")
    return found


@dataclass(frozen=True, slots=True)
class Coding:
    """One way of compressing. A body may be several members in a row (gzip's word; zstd says frame).

    Attributes:
        name: for messages.
        start: makes a decompressor for a member that begins with these bytes.
        feed: gives it a slice and says how many bytes of output there is room for; it may give more.
        slice: bytes per call: a bound for what one call may make where `feed` knows none.
    """

    name: str
    start: Callable[[bytes], Any]
    feed: Callable[[Any, memoryview, int], bytes]
    slice: int

    def decompress(self, data: bytes, limit: int) -> bytes:
        """All members of the body, joined.

        Raises:
            TooLarge, Permanent: as `read_body`.
        """
        view = memoryview(data)
        chunks: list[bytes] = []
        size = position = members = 0
        try:
            while not members or (position < len(data) and not self._is_padding(data, position)):
                members += 1
                if members > _MAX_MEMBERS:
                    raise Permanent(f"the body has more than {_MAX_MEMBERS} {self.name} members")
                stream = self.start(data[position : position + 2])
                while not stream.eof:
                    piece = view[position : position + self.slice]
                    if not piece:
                        raise Permanent(f"the body ends within its {self.name} stream")
                    chunk = self.feed(stream, piece, limit - size + 1)
                    position += len(piece)
                    size += len(chunk)
                    if size > limit:
                        raise _too_large(limit)
                    chunks.append(chunk)
                position -= len(stream.unused_data)
        except _ERRORS as error:
            raise Permanent(f"the body is not {self.name}: {error}") from None
        return b"".join(chunks)

    def _is_padding(self, data: bytes, position: int) -> bool:
        """Zeros up to the end may follow the last member of a gzip file (GNU gzip's manual, "Tapes")."""
        return self.name == "gzip" and data[position] == 0 and not data[position:].strip(b"\0")


def _start_deflate(head: bytes) -> Any:
    # HTTP's deflate is a zlib stream (RFC 9110 §8.4.1.2); some clients send a raw one. Only zlib's header passes the
    # check of RFC 1950 §2.2: a raw stream that passed it would begin with a stored block and a set padding bit.
    is_zlib = len(head) == 2 and head[0] & 15 == 8 and int.from_bytes(head, "big") % 31 == 0
    return inflate.decompressobj(zlib.MAX_WBITS if is_zlib else -zlib.MAX_WBITS)


def _feed_inflate(stream: Any, piece: memoryview, room: int) -> bytes:
    chunk: bytes = stream.decompress(piece, room)
    return chunk


_GZIP: Final = Coding("gzip", lambda _: inflate.decompressobj(zlib.MAX_WBITS | 16), _feed_inflate, 64 * 1024)
_DEFLATE: Final = Coding("deflate", _start_deflate, _feed_inflate, 64 * 1024)
# zstd's library knows no bound for its output, and a block of 4 bytes may become 128 KiB: a slice, 32 MiB.
_ZSTD: Final = Coding(
    "zstd",
    lambda _: zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW).decompressobj(),
    lambda stream, piece, _: stream.decompress(piece),
    1024,
)

CODINGS: Final = {"gzip": _GZIP, "deflate": _DEFLATE, "zstd": _ZSTD, "x-gzip": _GZIP, "zlib": _DEFLATE}
"""By the names of `Content-Encoding`; the last two are other names of the first two (RFC 9110 §8.4.1.3; Collector)."""
