"""Datadog Events made from fatal logs."""

from __future__ import annotations

import orjson
import pytest

from exporters.datadog.events import (
    Bucket,
    Deduplicator,
    date_of,
    encode,
    event_of,
    sent_check_of,
    sent_event_of,
)
from exporters.datadog.resource import Origin
from sidecar.events import datadog_keys as keys

NOW = 1_700_000_000_000_000_000
ORIGIN = Origin(
    "web-1",
    host_is_assumed=False,
    service="api",
    env="prod",
    version="",
    tags=("env:prod", "service:api"),
    attributes={},
)


def log(**members) -> dict:
    """A log as it goes to the logs intake."""
    return {"message": "boom", "status": "fatal", "hostname": "web-1"} | {
        name.replace("__", "."): value for name, value in members.items()
    }


def test_an_event_says_who_what_and_where():
    """Title, text, alert type, host and tags."""
    event = event_of(ORIGIN, log(telemetry__source="provider", telemetry__kind="panic", otel__trace_id="ab"))
    assert event["title"] == "provider panic: boom"
    assert event["text"] == "%%% \nboom\n\ntrace_id: ab\n %%%"
    assert event["alert_type"] == "error"
    assert event["host"] == "web-1"
    assert event["tags"] == ["source:provider", "kind:panic", "env:prod", "service:api"]


def test_without_source_and_kind_the_service_and_the_exception_stand_in():
    """Any fatal log record makes an event, not only a TelemetryEvent."""
    event = event_of(ORIGIN, log(error__kind="ValueError"))
    assert event["title"] == "api ValueError: boom"


@pytest.mark.parametrize("stack", ["main.go:7", "x" * 50_000, "a\n```\nb", "€" * 9000])
def test_a_stack_is_in_a_code_block_and_fits(stack):
    """The text has at most 4,000 characters, with room for the note about others; the block is always closed."""
    event = event_of(ORIGIN, log(error__stack=stack, message="m" * 9000))
    text = orjson.loads(encode(event, left_out=10**9))["text"]
    assert len(text) <= 4000
    assert text.count("```") == 2
    assert text.endswith("%%%")
    assert len(event["title"]) <= 500


@pytest.mark.parametrize(
    ("status", "alert"), [("fatal", "error"), ("error", "error"), ("warn", "warning"), ("info", "info")]
)
def test_the_alert_type_follows_the_status(status, alert):
    """Only the four words that the intake knows for it."""
    assert event_of(ORIGIN, log(status=status))["alert_type"] == alert


def test_events_that_differ_in_numbers_alone_are_alike():
    """An address or a duration makes no new problem; another kind, source or environment does."""

    def key(origin=ORIGIN, **members):
        return event_of(origin, log(**members))["aggregation_key"]

    assert key(message="at 0x7ffe12 after 17 ms") == key(message="at 0x8000ff after 9 ms")
    assert len({key(), key(message="other"), key(telemetry__kind="panic"), key(telemetry__source="app")}) == 4
    assert len(key()) <= 100


def test_an_event_of_a_dogstatsd_client_is_what_it_was():
    """Its own words, within the intake's limits; nothing is made of what it does not say."""
    members = log(
        datadog__event__title="deploy",
        datadog__event__alert_type="success",
        datadog__event__priority="low",
        datadog__event__aggregation_key="k" * 200,
        datadog__event__source_type_name="ci",
        ddtags="env:prod,team:a",
        message="x" * 9000,
    )
    event = sent_event_of(members)
    assert (event["title"], event["alert_type"], event["priority"]) == ("deploy", "success", "low")
    assert (event["source_type_name"], event["host"], event["tags"]) == ("ci", "web-1", ["env:prod", "team:a"])
    assert (len(event["text"]), len(event["aggregation_key"])) == (4000, 100)
    odd = {keys.EVENT_ALERT_TYPE: "odd", keys.EVENT_PRIORITY: 7}
    bare = sent_event_of({"message": "first\nsecond", "status": "info", **odd})
    assert bare == {"title": "first", "text": "first\nsecond", "alert_type": "info", "priority": "normal", "tags": []}


@pytest.mark.parametrize(("status", "expected"), [(0, 0), (2, 2), (7, 3), ("2", 3), (None, 3)])
def test_a_service_check_of_a_dogstatsd_client_is_what_it_was(status, expected):
    """A status that is none is unknown."""
    members = log(datadog__service_check__name="db.up", datadog__service_check__status=status, ddtags="env:prod")
    assert sent_check_of(members) == {
        "check": "db.up",
        "host_name": "web-1",
        "status": expected,
        "tags": ["env:prod"],
        "message": "boom",
    }


def test_the_date_is_that_of_the_log_unless_it_is_too_old():
    """The intake takes events of the last 18 hours."""
    assert date_of(log(otel__timestamp=str(NOW - 10**9)), NOW) == NOW // 10**9 - 1
    assert date_of(log(), NOW) == NOW // 10**9
    assert date_of(log(otel__timestamp=str(NOW - 19 * 3600 * 10**9)), NOW) is None


def test_of_events_that_are_alike_one_passes_per_window():
    """The next one that passes says how many did not."""
    once = Deduplicator(300)
    assert [once.admit("a", now) for now in (0, 1, 299, 301, 302)] == [0, None, None, 2, None]
    assert once.admit("b", 1) == 0


def test_the_memory_of_the_deduplicator_is_bounded():
    """The oldest keys are forgotten."""
    once = Deduplicator(300)
    for key in range(10_001):
        once.admit(str(key), 0)
    assert once.admit("10000", 1) is None
    assert once.admit("0", 1) == 0


def test_the_rate_of_events_is_limited():
    """A minute's worth at once, then as many as come in."""
    bucket = Bucket(10 / 60)
    assert [bucket.take(0) for _ in range(11)] == [True] * 10 + [False]
    assert [bucket.take(6), bucket.take(6)] == [True, False]
    assert Bucket(1 / 3600).take(0) is True
