"""The limits and coercions of the wire contract, §1 and §2."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.batch import Identity
from sidecar.events.keys import FIELD_KEYS
from sidecar.events.model import WireEvent
from sidecar.events.sanitise import KINDS, SEVERITIES, SOURCES, Event, Limits, Sanitised, cut, parse_timestamp, sanitise

NOW = 1_776_297_600_000_000_000  # 2026-04-16T00:00:00Z
SECOND = 1_000_000_000
DAY = 86400 * SECOND
LIMITS = Limits()
ID = "00000000-0000-0000-0000-000000000001"
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def all_of(*sent: WireEvent | None, caller: Identity | None = None, limits: Limits = LIMITS) -> Sanitised:
    """A batch, sanitised."""
    return sanitise(sent, caller, NOW, limits)


def one(caller: Identity | None = None, limits: Limits = LIMITS, **fields: object) -> Event:
    """The event that becomes of one with a message and these fields."""
    (event,) = all_of(WireEvent(**{"message": "hi", **fields}), caller=caller, limits=limits).events
    return event


def test_a_whole_event_passes_unchanged():
    """Nothing within its limits is touched, and nothing is counted."""
    sent = WireEvent(
        id=ID,
        timestamp="2026-04-16T00:00:00Z",
        source="provider",
        severity="error",
        kind="backend_crash",
        version="0.3.10",
        machine_id="m",
        account_id="a",
        request_id="r",
        session_id="abc",
        message="hi",
        fields={"backend": "vllm-mlx", "exit_code": 134},
        stack="at x",
    )

    result = all_of(sent)

    (event,) = result.events
    for name in WireEvent.__struct_fields__:
        if name != "timestamp":
            assert getattr(event, name) == getattr(sent, name)
    assert (event.timestamp, event.duration) == (NOW, None)
    assert (result.rejected, dict(result.repairs)) == (0, {})


@pytest.mark.parametrize("message", [None, "", 7, ["hi"], {"text": "hi"}, True])
def test_an_event_without_a_message_is_rejected_alone(message):
    """So is one that could not be read; the others pass, in order."""
    result = all_of(WireEvent(message="a"), WireEvent(message=message), None, WireEvent(message="b"))

    assert [event.message for event in result.events] == ["a", "b"]
    assert result.rejected == 2


@pytest.mark.parametrize("sent", [None, "", "x", 7, f"{ID}0", f"{{{ID}}}", f"{ID}\n", ID.replace("-", "")])
def test_an_id_that_is_no_uuid_is_minted(sent):
    """A new random UUID each time."""
    first, second = one(id=sent).id, one(id=sent).id

    assert UUID.fullmatch(first)
    assert first != second


@pytest.mark.parametrize("sent", [ID, "A1B2C3D4-0000-4000-8000-00000000ABCD"])
def test_a_uuid_stays_as_it_was_sent(sent):
    """Swift writes them in upper case; the span id is derived from the very text."""
    assert one(id=sent).id == sent


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ("2026-04-15T23:59:59Z", NOW - SECOND),
        ("2026-04-15T23:59:59.5Z", NOW - SECOND // 2),
        ("2026-04-15T23:59:59.123Z", NOW - SECOND + 123_000_000),
        ("2026-04-15T23:59:59.123456Z", NOW - SECOND + 123_456_000),
        ("2026-04-15T23:59:59.123456789Z", NOW - SECOND + 123_456_789),
        ("2026-04-15T23:59:59.1234567899999Z", NOW - SECOND + 123_456_789),
        ("2026-04-16T05:29:59.25+05:30", NOW - SECOND + 250_000_000),
        ("2026-04-15T16:59:59-07:00", NOW - SECOND),
        ("2026-04-15t23:59:59z", NOW - SECOND),
        ("2026-04-15 23:59:59Z", NOW - SECOND),
        ("2026-04-15T23:59:60Z", NOW),
    ],
)
def test_timestamps_are_rfc_3339_of_any_precision(sent, expected):
    """JavaScript's milliseconds, Go's and Rust's nanoseconds, `Z` or an offset."""
    assert one(timestamp=sent).timestamp == expected


@pytest.mark.parametrize(
    "sent",
    [
        None, "", "now", 1_776_297_599, "2026-04-16", "2026-04-15T23:59:59", "2026-02-30T00:00:00Z",
        "2026-04-15T24:00:00Z", "2026-04-15T23:59:61Z", "2026-04-15T23:59:59+99:00", "2026-04-15T23:59:59.Z",
        "0000-00-00T00:00:00Z", "٢٠٢٦-04-15T23:59:59Z",
    ],
)  # fmt: skip
def test_what_is_no_timestamp_becomes_the_receive_time(sent):
    """Absent, of another type, or not a moment of the calendar; counted where something was sent."""
    result = all_of(WireEvent(message="hi", timestamp=sent))

    assert result.events[0].timestamp == NOW
    assert result.repairs["timestamp_replaced"] == (1 if sent else 0)


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("2026-04-09T00:00:00Z", True),
        ("2026-04-08T23:59:59.999999999Z", False),
        ("2026-04-16T00:05:00Z", True),
        ("2026-04-16T00:05:00.000000001Z", False),
        ("0001-01-01T00:00:00Z", False),
        ("9999-12-31T23:59:59Z", False),
    ],
)
def test_timestamps_out_of_range_become_the_receive_time(sent, kept):
    """More than 7 days old or more than 5 minutes ahead, to the nanosecond; each is counted."""
    result = all_of(WireEvent(message="hi", timestamp=sent))

    assert (result.events[0].timestamp == parse_timestamp(sent)) is kept
    assert kept or result.events[0].timestamp == NOW
    assert result.repairs["timestamp_replaced"] == (0 if kept else 1)


def test_limits_on_time_may_be_wider_than_time_itself():
    """A time that would not fit its field becomes the receive time, however wide the settings."""
    wide = Limits(max_age=2**80, max_ahead=2**80)

    assert one(timestamp="1970-01-01T00:00:00Z", limits=wide).timestamp == 0
    assert one(timestamp="1969-12-31T23:59:59Z", limits=wide).timestamp == NOW
    assert one(timestamp="9999-12-31T23:59:59Z", limits=wide).timestamp == NOW


@pytest.mark.parametrize(
    ("name", "known", "default"),
    [("source", SOURCES, "custom"), ("severity", SEVERITIES, "info"), ("kind", KINDS, "custom")],
)
def test_closed_sets_have_a_default(name, known, default):
    """Every known word passes; anything else, also in another case, becomes the default."""
    for word in known:
        assert getattr(one(**{name: word}), name) == word
    for other in (None, "", "nope", "ERROR", "Panic", 7, ["log"], {}):
        assert getattr(one(**{name: other}), name) == default


@pytest.mark.parametrize(
    ("name", "limit"),
    [("version", 64), ("machine_id", 128), ("account_id", 128), ("request_id", 128), ("session_id", 64)],
)
def test_short_texts_are_cut_at_their_limit(name, limit):
    """In UTF-8 bytes, on a character boundary, without a mark; other types count as absent."""
    assert getattr(one(**{name: "x" * limit}), name) == "x" * limit
    assert getattr(one(**{name: "x" * (limit + 1)}), name) == "x" * limit
    assert getattr(one(**{name: "x" + "é" * limit}), name) == "x" + "é" * ((limit - 1) // 2)
    for other in (None, "", 7, ["x"], {}):
        assert getattr(one(**{name: other}), name) == ""


@pytest.mark.parametrize(("name", "limit", "mark"), [("message", 4096, "…"), ("stack", 32768, "\n… truncated")])
def test_long_texts_are_cut_at_their_limit_and_marked(name, limit, mark):
    """The mark follows the kept bytes, and each cut is counted."""
    for sent, kept in [
        ("x" * limit, "x" * limit),
        ("x" * (limit + 1), "x" * limit + mark),
        ("\N{GRINNING FACE}" * (limit // 4), "\N{GRINNING FACE}" * (limit // 4)),
        ("xy" + "\N{GRINNING FACE}" * (limit // 4), "xy" + "\N{GRINNING FACE}" * (limit // 4 - 1) + mark),
    ]:
        result = all_of(WireEvent(**{"message": "hi", name: sent}))

        assert getattr(result.events[0], name) == kept
        assert result.repairs[f"{name}_cut"] == (0 if kept == sent else 1)


@given(st.text(), st.integers(0, 40))
def test_a_cut_text_is_the_longest_beginning_that_fits(text, limit):
    """At most `limit` bytes, and one character more would be too many."""
    kept = cut(text, limit)

    assert text.startswith(kept)
    assert len(kept.encode()) <= limit
    assert kept == text or len(text[: len(kept) + 1].encode()) > limit


def test_only_the_thirty_keys_pass():
    """Everything else is left out and counted; the ids for correlation are neither."""
    allowed = dict.fromkeys(FIELD_KEYS, "x")

    result = all_of(
        WireEvent(message="hi", fields={**allowed, "prompt": "secret", "Backend": "x", "trace_id": "7", "span_id": "8"})
    )

    assert len(FIELD_KEYS) == 30
    assert result.events[0].fields == allowed
    assert result.repairs == {"field_not_allowed": 2}


def test_types_of_fields_stay_and_nulls_are_left_out():
    """Numbers stay numbers; a null says nothing."""
    fields = {"backend": "vllm", "exit_code": 134, "duration_ms": 1.5, "payment_failed": False, "error": None}

    kept = one(fields=fields).fields

    assert kept == {"backend": "vllm", "exit_code": 134, "duration_ms": 1.5, "payment_failed": False}
    assert [type(value) for value in kept.values()] == [str, int, float, bool]


def test_keys_that_are_not_allowed_hide_nowhere():
    """Also not below an allowed key, at any depth; what is nested too deep is left out."""
    deep: object = "canary"
    for _ in range(20):
        deep = [deep]

    kept = one(
        fields={
            "error": {"prompt": "canary", "model": "m", "target": [{"completion": "canary", "reason": "r"}]},
            "reason": deep,
        }
    ).fields

    assert kept["error"] == {"model": "m", "target": [{"reason": "r"}]}
    assert "canary" not in json.dumps(kept)


@pytest.mark.parametrize("fields", [None, [], "x", 7, {}])
def test_fields_of_another_type_are_none(fields):
    """An event does not fail for them."""
    assert one(fields=fields).fields == {}


def test_fields_over_their_limit_are_dropped_whole():
    """The kept ones count, as compact JSON in UTF-8; ids for correlation are read all the same."""
    at_the_limit = {"error": "x" * (8192 - len('{"error":""}'))}
    over = {"error": at_the_limit["error"] + "x"}

    assert one(fields=at_the_limit | {"prompt": "y" * 9000}).fields == at_the_limit
    result = all_of(WireEvent(message="hi", fields=over | {"trace_id": "7", "duration_ms": 5}))
    assert (result.events[0].fields, result.events[0].duration) == ({}, None)
    assert result.events[0].trace_id == (7).to_bytes(16, "big")
    assert result.repairs == {"fields_too_large": 1}


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (12.5, 12_500_000), (0, 0), (3, 3_000_000), (0.1, 100_000), (-1, None), ("12", None), (True, None),
        (None, None), (1e300, None), (10**400, None), (float("nan"), None),
    ],
)  # fmt: skip
def test_a_duration_is_a_number_of_milliseconds(sent, expected):
    """Anything else is none; the field itself stays as it was sent."""
    assert one(fields={"duration_ms": sent}).duration == expected


def test_a_provider_is_the_source_and_the_known_machine_and_account_win():
    """What is known of a caller overrides what it says of itself (§2)."""
    caller = Identity(kind="provider", name="mac", machine_id="tok:0123456789abcdef", account_id="acct")

    event = one(caller=caller, source="coordinator", machine_id="liar", account_id="liar")

    assert (event.source, event.machine_id, event.account_id) == ("provider", "tok:0123456789abcdef", "acct")


def test_an_account_is_stamped_and_the_rest_stays_the_senders():
    """An API key tells the account and nothing else."""
    caller = Identity(kind="api_key", name="ci", account_id="acct")

    event = one(caller=caller, source="console", machine_id="mine", account_id="liar")

    assert (event.source, event.machine_id, event.account_id) == ("console", "mine", "acct")


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["error", "trace_id", "prompt", "duration_ms"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(WireEvent.__struct_fields__), ANYTHING))
def test_anything_is_sanitised_or_rejected(fields):
    """Nothing is ever raised, and what passes is within every limit."""
    result = all_of(WireEvent(**fields))

    assert len(result.events) + result.rejected == 1
    for event in result.events:
        assert 0 <= event.timestamp < 2**63
        assert (event.source, event.severity, event.kind) in {
            (s, v, k) for s in SOURCES | {"custom"} for v in SEVERITIES for k in KINDS
        }
        assert "prompt" not in json.dumps(event.fields)
