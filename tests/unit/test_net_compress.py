"""What compresses can be read by everybody, with the fast library and without it."""

import gzip
import importlib
import sys
import zlib

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from sidecar.net import compress

DECOMPRESS = {
    "gzip": gzip.decompress,
    "zstd": lambda data: zstandard.ZstdDecompressor().decompress(data),
    "deflate": zlib.decompress,
}


@pytest.mark.parametrize("coding", compress.CODINGS)
@given(data=st.binary())
def test_what_is_compressed_can_be_read(coding, data):
    """Each coding of HTTP, by the standard's own reader."""
    assert DECOMPRESS[coding](compress.CODINGS[coding](data)) == data


def test_where_the_fast_library_has_no_build(monkeypatch):
    """The standard library takes over, with the same result for whoever reads."""
    monkeypatch.setitem(sys.modules, "isal", None)
    try:
        slow = importlib.reload(compress)
        for coding, make in slow.CODINGS.items():
            assert DECOMPRESS[coding](make(b"x" * 1000)) == b"x" * 1000
    finally:
        monkeypatch.undo()
        importlib.reload(compress)
