"""Reading TelemetryEvents off the wire: one bad event never costs the others."""

from __future__ import annotations

import contextlib
import json

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from sidecar.errors import Permanent
from sidecar.events.model import TooManyEvents, WireEvent, from_json, from_protobuf
from sidecar.events.telemetry_event_pb2 import TelemetryBatch, TelemetryBatchParts, TelemetryEvent

FLOATS = st.floats(allow_nan=False, allow_infinity=False)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | FLOATS | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from([*WireEvent.__struct_fields__, "unknown"])


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"", "not JSON"),
        (b"nope", "not JSON"),
        (b'{"events": [', "not JSON"),
        (b'{"events": []} trailing', "not JSON"),
        (b'{"events": [{"message": NaN}]}', "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b'{"events": [' + b"[" * 60_000, "not JSON"),
        (b"[]", "not a batch of events"),
        (b"[" * 60_000, "not a batch of events"),
        (b"null", "not a batch of events"),
        (b'"events"', "not a batch of events"),
        (b"{}", "not a batch of events"),
        (b'{"events": null}', "not a batch of events"),
        (b'{"events": {"message": "hi"}}', "not a batch of events"),
        (b'{"event": []}', "not a batch of events"),
    ],
)
def test_what_is_no_batch_is_refused_as_a_whole(body, complaint):
    """Both refusals say which of the two is wrong, and what to send."""
    with pytest.raises(Permanent, match=complaint) as refused:
        from_json(body, 100)
    assert refused.value.http_status == 400


def test_an_empty_batch_is_a_batch():
    """It has no events, and nothing is wrong with it."""
    assert from_json(b'{"events": []}', 100) == []


def test_too_many_events_are_refused_before_any_is_read():
    """One over the limit is too many; the limit itself is not."""
    body = json.dumps({"events": [{"message": "hi"}] * 101}).encode()

    assert len(from_json(body, 101)) == 101
    with pytest.raises(TooManyEvents, match="101 events in one batch; send at most 100") as refused:
        from_json(body, 100)
    assert refused.value.http_status == 413


@pytest.mark.parametrize(
    "bad", ["1", '"text"', "null", "[]", "true", '{"message": "hi", "fields": {"attempt": 1e400}}']
)
def test_an_event_that_is_none_leaves_its_neighbours(bad):
    """It is None in its place; those before and after are read."""
    before, wrong, after = from_json(f'{{"events": [{{"message": "a"}}, {bad}, {{"message": "b"}}]}}'.encode(), 100)

    assert wrong is None
    assert before is not None
    assert after is not None
    assert (before.message, after.message) == ("a", "b")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"caf\xc3", "caf\ufffd"),
        (b"\xff\xfehi", "\ufffd\ufffdhi"),
        (rb"half \ud83d", "half \ufffd"),
        (rb"half \ude00", "half \ufffd"),
        (rb"whole \ud83d\ude00", "whole \N{GRINNING FACE}"),
    ],
)
def test_text_cut_within_a_character_is_mended(text, expected):
    """Bytes that are no UTF-8 and JavaScript's halves of surrogate pairs become U+FFFD, in that event only."""
    cut, whole = from_json(b'{"events": [{"message": "' + text + '"}, {"message": "é"}]}'.encode(), 100)

    assert cut is not None
    assert whole is not None
    assert (cut.message, whole.message) == (expected, "é")


def test_unknown_fields_are_ignored_and_wrong_types_kept_for_later():
    """Reading judges nothing: that is the next step's."""
    (event,) = from_json(b'{"events": [{"message": 7, "prompt": "secret", "fields": {"a": [1]}}]}', 100)

    assert event == WireEvent(message=7, fields={"a": [1]})


@given(JSON_VALUES | st.just(float("nan")))
def test_any_json_is_read_or_refused(value):
    """Nothing but a refusal is ever raised."""
    for body in (json.dumps(value), json.dumps({"events": value}), json.dumps({"events": [value]})):
        with contextlib.suppress(Permanent):
            assert isinstance(from_json(body.encode(), 100), list)


@given(st.binary())
def test_any_bytes_are_read_or_refused(body):
    """Nothing but a refusal is ever raised, on either wire."""
    for read in (from_json, from_protobuf):
        with contextlib.suppress(Permanent):
            assert isinstance(read(body, 100), list)


@given(st.lists(st.dictionaries(FIELDS, JSON_VALUES), max_size=4))
def test_every_object_is_an_event(events):
    """Whatever its fields hold."""
    body = json.dumps({"events": events}).encode()

    read = from_json(body, 100)

    assert len(read) == len(events)
    assert None not in read


def test_protobuf_and_json_give_the_same_event():
    """One batch, two encodings: whole numbers stay integers although a Struct knows doubles only."""
    sent = TelemetryEvent(
        id="00000000-0000-0000-0000-000000000001",
        source="provider",
        severity="error",
        kind="backend_crash",
        version="0.3.10",
        machine_id="m",
        account_id="a",
        request_id="r",
        session_id="s",
        message="hi",
        stack="at x",
    )
    sent.timestamp.FromJsonString("2026-04-16T00:00:00.123456789Z")
    sent.fields.update(
        {"exit_code": 134, "duration_ms": 1.5, "payment_failed": True, "error": None, "target": {"model": ["q", 2.0]}}
    )
    as_json = {
        "id": "00000000-0000-0000-0000-000000000001",
        "timestamp": "2026-04-16T00:00:00.123456789Z",
        "source": "provider",
        "severity": "error",
        "kind": "backend_crash",
        "version": "0.3.10",
        "machine_id": "m",
        "account_id": "a",
        "request_id": "r",
        "session_id": "s",
        "message": "hi",
        "stack": "at x",
        "fields": {
            "exit_code": 134,
            "duration_ms": 1.5,
            "payment_failed": True,
            "error": None,
            "target": {"model": ["q", 2]},
        },
    }

    (from_wire,) = from_protobuf(TelemetryBatch(events=[sent]).SerializeToString(), 100)
    (from_text,) = from_json(json.dumps({"events": [as_json]}).encode(), 100)

    assert from_wire == from_text
    assert from_wire is not None
    assert type(from_wire.fields["exit_code"]) is int


def test_protobuf_without_a_timestamp_or_with_an_impossible_one_has_none():
    """The receive time takes its place later."""
    impossible = TelemetryEvent(message="b", timestamp=Timestamp(seconds=2**60))

    absent, wrong = from_protobuf(
        TelemetryBatch(events=[TelemetryEvent(message="a"), impossible]).SerializeToString(), 9
    )

    assert absent is not None
    assert wrong is not None
    assert (absent.timestamp, wrong.timestamp) == (None, None)


def test_a_broken_event_leaves_its_neighbours_in_protobuf_too():
    """Text that is no UTF-8, or an event that ends too early; the envelope is whole."""
    good = TelemetryEvent(message="a").SerializeToString()
    not_utf8 = good.replace(b"a", b"\xff")
    batch = TelemetryBatchParts(events=[good, not_utf8, good[:-1], good]).SerializeToString()

    first, *broken, last = from_protobuf(batch, 100)

    assert broken == [None, None]
    assert first is not None
    assert first.message == "a"
    assert first == last
    with pytest.raises(TooManyEvents):
        from_protobuf(batch, 3)


def test_protobuf_limits_and_damage_are_refused():
    """As in JSON, with the same errors."""
    batch = TelemetryBatch(events=[TelemetryEvent(message="hi")] * 3).SerializeToString()

    with pytest.raises(TooManyEvents):
        from_protobuf(batch, 2)
    with pytest.raises(Permanent, match="not a telemetry"):
        from_protobuf(batch[:-1], 100)
