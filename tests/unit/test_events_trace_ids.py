"""Ids as senders write them, and those derived from requests and events (wire contract §6)."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.events.trace_ids import (
    correlate,
    parse_span_id,
    parse_trace_id,
    parse_traceparent,
    span_id_of_event,
    trace_id_of_event,
    trace_id_of_request,
)

TRACE_HEX = "0af7651916cd43dd8448eb211c80319c"
SPAN_HEX = "b7ad6b7169203331"
TRACE = bytes.fromhex(TRACE_HEX)
SPAN = bytes.fromhex(SPAN_HEX)
REQUEST_TRACE = hashlib.sha256(b"request:req_abc").digest()[:16]


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (TRACE_HEX, TRACE),
        (TRACE_HEX.upper(), TRACE),
        ("7277407061855694839", (7277407061855694839).to_bytes(16, "big")),
        (7277407061855694839, (7277407061855694839).to_bytes(16, "big")),
        (str(2**64 - 1), (2**64 - 1).to_bytes(16, "big")),
        (str(2**64), b""),
        ("0" * 32, b""),
        ("0", b""),
        (0, b""),
        (-1, b""),
        (True, b""),
        (1.5, b""),
        (None, b""),
        ("", b""),
        (TRACE_HEX[:-1], b""),
        (f"{TRACE_HEX[:-2]}zz", b""),
        (f"{TRACE_HEX[:-1]}\n", b""),
        ("0af7651916cd43dd 448eb211c80319c", b""),
        ("١٢٣", b""),
        ([TRACE_HEX], b""),
    ],
)
def test_a_trace_id_is_32_hex_digits_or_datadogs_decimal(sent, expected):
    """Both documented forms are read; anything else, and zeros, count as absent."""
    assert parse_trace_id(sent) == expected


@pytest.mark.parametrize(
    ("sent", "decimal", "expected"),
    [
        (SPAN_HEX, False, SPAN),
        (SPAN_HEX.upper(), True, SPAN),
        ("13235353014750950193", False, (13235353014750950193).to_bytes(8, "big")),
        (13235353014750950193, False, (13235353014750950193).to_bytes(8, "big")),
        ("1234567890123456", False, bytes.fromhex("1234567890123456")),
        ("1234567890123456", True, (1234567890123456).to_bytes(8, "big")),
        ("0" * 16, False, b""),
        ("0" * 16, True, b""),
        (str(2**64), False, b""),
        ("nope", False, b""),
        (None, False, b""),
    ],
)
def test_a_span_id_is_16_hex_digits_or_datadogs_decimal(sent, decimal, expected):
    """Sixteen digits without a letter are read as the trace id beside them was."""
    assert parse_span_id(sent, decimal=decimal) == expected


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (f"00-{TRACE_HEX}-{SPAN_HEX}-01", (TRACE, SPAN)),
        (f"01-{TRACE_HEX}-{SPAN_HEX}-01-more", (TRACE, SPAN)),
        (f"00-{TRACE_HEX}-{SPAN_HEX}-01-more", (b"", b"")),
        (f"ff-{TRACE_HEX}-{SPAN_HEX}-01", (b"", b"")),
        (f"00-{'0' * 32}-{SPAN_HEX}-01", (b"", b"")),
        (f"00-{TRACE_HEX}-{'0' * 16}-01", (b"", b"")),
        (f"00-{TRACE_HEX.upper()}-{SPAN_HEX}-01", (b"", b"")),
        ("", (b"", b"")),
        (7, (b"", b"")),
    ],
)
def test_traceparent_is_read_as_the_trace_context_specification_says(sent, expected):
    """A header that the specification declares invalid is ignored as a whole."""
    assert parse_traceparent(sent) == expected


@pytest.mark.parametrize(
    ("fields", "request_id", "expected"),
    [
        ({"trace_id": TRACE_HEX, "span_id": SPAN_HEX}, "req_abc", (TRACE, SPAN)),
        ({"trace_id": TRACE_HEX}, "", (TRACE, b"")),
        (
            {"trace_id": "42", "span_id": "1234567890123456"},
            "",
            ((42).to_bytes(16, "big"), (1234567890123456).to_bytes(8, "big")),
        ),
        ({"traceparent": f"00-{TRACE_HEX}-{SPAN_HEX}-01"}, "req_abc", (TRACE, SPAN)),
        ({"trace_id": "42", "traceparent": f"00-{TRACE_HEX}-{SPAN_HEX}-01"}, "", ((42).to_bytes(16, "big"), b"")),
        ({"trace_id": "0" * 32, "traceparent": f"00-{TRACE_HEX}-{SPAN_HEX}-01"}, "", (TRACE, SPAN)),
        ({"trace_id": "nonsense"}, "req_abc", (REQUEST_TRACE, b"")),
        ({"span_id": SPAN_HEX}, "req_abc", (REQUEST_TRACE, SPAN)),
        ({"span_id": SPAN_HEX}, "", (b"", b"")),
        ({}, "req_abc", (REQUEST_TRACE, b"")),
        ({}, "", (b"", b"")),
    ],
)
def test_correlation_looks_at_ids_then_traceparent_then_the_request(fields, request_id, expected):
    """The order of the wire contract, §6."""
    assert correlate(fields, request_id) == expected


def test_derived_ids_are_the_documented_digests():
    """Anybody can derive the same ids from the same request and event."""
    digest = hashlib.sha256(b"event:00000000-0000-0000-0000-000000000001").digest()

    assert trace_id_of_request("req_abc") == REQUEST_TRACE
    assert span_id_of_event("00000000-0000-0000-0000-000000000001") == digest[:8]
    assert trace_id_of_event("00000000-0000-0000-0000-000000000001") == digest[16:]


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()


@given(st.dictionaries(st.sampled_from(["trace_id", "span_id", "traceparent"]), SCALARS), st.text())
def test_correlation_takes_anything_and_gives_whole_ids(fields, request_id):
    """Whatever is sent, an id has its full size or is absent, and there is no span without a trace."""
    trace_id, span_id = correlate(fields, request_id.encode(errors="replace").decode())

    assert len(trace_id) in {0, 16}
    assert len(span_id) in ({0, 8} if trace_id else {0})
