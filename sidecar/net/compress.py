"""Compresses what is sent. Decompressing what comes in needs limits, and is the listeners' business."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import zstandard

try:
    from isal import igzip, isal_zlib

    # Level 2 is as small as zlib's 6 at a twentieth of its time: 0.3 against 5.1 µs for a log record of 340 bytes.
    def gzip(data: bytes) -> bytes:
        """The data as one gzip member."""
        compressed: bytes = igzip.compress(data, 2)
        return compressed

    def deflate(data: bytes) -> bytes:
        """The data as a zlib stream, which is what HTTP calls deflate (RFC 9110 §8.4.1.2)."""
        compressed: bytes = isal_zlib.compress(data, 2)
        return compressed

except ImportError:  # processors that isal has no build for
    import gzip as standard_gzip
    import zlib

    def gzip(data: bytes) -> bytes:
        """The data as one gzip member."""
        return standard_gzip.compress(data, 1)

    def deflate(data: bytes) -> bytes:
        """The data as a zlib stream, which is what HTTP calls deflate (RFC 9110 §8.4.1.2)."""
        return zlib.compress(data, 1)


def zstd(data: bytes) -> bytes:
    """The data as one zstd frame, which says how long its content is."""
    return _ZSTD.compress(data)


# Level 1 gives what gzip gives, at 0.4 µs for a log record of 340 bytes.
_ZSTD: Final = zstandard.ZstdCompressor(level=1)

CODINGS: Final[dict[str, Callable[[bytes], bytes]]] = {"gzip": gzip, "zstd": zstd, "deflate": deflate}
"""By the names that HTTP gives them."""
