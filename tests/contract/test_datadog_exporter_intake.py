"""The exporter against an intake with Datadog's limits, over real sockets."""

from __future__ import annotations

import asyncio

import pytest
from support import otlp
from support.datadog_intake import CHECKS, EVENTS, LOGS, DatadogIntake

from exporters.datadog import DatadogExporter
from sidecar import Batch, Permanent, RateLimited, Retryable, SettingError, Signal
from sidecar.events import datadog_keys as keys
from sidecar.testing import Bench

KEY = "0123456789abcdef0123456789abcdef"


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch):
    for name in ("DD_API_KEY", "DD_SITE", "DD_ENV", "DD_SERVICE", "DD_VERSION"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
async def intake():
    """An intake that knows one key."""
    async with DatadogIntake(keys=(KEY,)) as running:
        yield running


@pytest.fixture
async def bench():
    """What surrounds the exporter, ended after the test."""
    one = Bench()
    yield one
    await one.close()


@pytest.fixture
async def exporter(intake, bench):
    """A started exporter that sends to the intake."""
    endpoints = "".join(f"{name}: {{endpoint: '{intake.url}'}}\n" for name in ("logs", "events", "traces"))
    made = bench.make(DatadogExporter, f"api: {{key: {KEY}}}\nhostname: web-1\n{endpoints}")
    await made.start()
    yield made
    await made.stop()


async def test_logs_arrive_as_a_json_array_in_gzip(exporter, intake):
    """The request is what the logs intake documents: path, key, type, encoding, origin, no query."""
    await exporter.export(otlp.logs(3))
    (request,) = intake.to(LOGS)
    assert [log["message"] for log in intake.logs] == ["hello 0", "hello 1", "hello 2"]
    assert request.headers["content-type"] == "application/json"
    assert request.headers["content-encoding"] == "gzip"
    assert request.headers["dd-api-key"] == KEY
    assert request.headers["dd-evp-origin"] == "otlp-sidecar"
    assert request.query == ""


async def test_a_large_batch_is_cut_before_it_is_sent(exporter, intake):
    """No request holds more than 1,000 logs or 5 MB; nothing is lost and nothing is doubled.

    See contrib#16834, litellm#32860.
    """
    await exporter.export(otlp.logs(2500, filler="x" * 4000))
    assert [log["message"] for log in intake.logs] == [f"hello {index}" for index in range(2500)]
    assert {request.status for request in intake.to(LOGS)} == {202}
    assert all(len(request.body) <= 5_000_000 for request in intake.requests)


async def test_a_retry_sends_only_what_was_not_taken(exporter, intake):
    """When the second of three requests fails, the retry begins with the second."""
    intake.script(status=202, accept=True)
    intake.script(status=503)
    batch = otlp.logs(2500)
    with pytest.raises(Retryable) as failure:
        await exporter.export(batch)
    remaining = failure.value.remaining
    assert len(remaining) == 1500
    await exporter.export(remaining)
    assert [log["message"] for log in intake.logs] == [f"hello {index}" for index in range(2500)]


async def test_what_remains_can_be_stored_as_otlp(exporter, intake):
    """The bytes of what remains are exactly the records that are left."""
    intake.script(status=202, accept=True)
    intake.script(status=503)
    with pytest.raises(Retryable) as failure:
        await exporter.export(otlp.logs(1200))
    stored = Batch(Signal.LOGS, failure.value.remaining.encode(), context=failure.value.remaining.context)
    assert otlp.bodies(stored) == [f"hello {index}" for index in range(1000, 1200)]


async def test_413_is_bisected_until_the_one_log_that_fails(exporter, intake, bench):
    """A body that an intake finds too large is sent in halves; only what fails alone is dropped, and counted.

    See contrib#16834.
    """
    intake.script(status=413, times=3)
    await exporter.export(otlp.logs(4))
    # 4 -> 2 -> 1 are refused; the other log of that pair and the other pair arrive.
    assert [log["message"] for log in intake.logs] == ["hello 1", "hello 2", "hello 3"]
    assert bench.dropped == {(Signal.LOGS, "too_large"): 1}


async def test_a_body_that_datadog_refuses_is_permanent(exporter, intake, bench):
    """400 is never retried; with nothing delivered, the runtime counts the batch."""
    intake.script(status=400)
    with pytest.raises(Permanent) as failure:
        await exporter.export(otlp.logs(2))
    assert failure.value.reason == "rejected"
    assert not bench.dropped


@pytest.mark.parametrize("status", [408, 500, 502, 503, 504])
async def test_what_may_pass_later_is_retryable(exporter, intake, status):
    """Timeouts and faults of the server keep the data (contrib#24550)."""
    intake.script(status=status)
    with pytest.raises(Retryable):
        await exporter.export(otlp.logs(1))
    assert intake.logs == []


async def test_429_waits_as_long_as_asked(exporter, intake, bench):
    """`X-Ratelimit-Reset` is honoured: meanwhile nothing is sent, afterwards all is."""
    intake.script(status=429, headers={"X-Ratelimit-Reset": "7"})
    with pytest.raises(RateLimited) as failure:
        await exporter.export(otlp.logs(1))
    assert failure.value.after == 7
    with pytest.raises(RateLimited):
        await exporter.export(otlp.logs(1))
    assert len(intake.to(LOGS)) == 1
    bench.clock.advance(7)
    await exporter.export(failure.value.remaining)
    assert len(intake.logs) == 1


async def test_while_nothing_gets_through_few_batches_are_encoded(exporter, intake):
    """What has been tried is tried again first: waiting must not take memory that no queue counts."""
    intake.script(status=503, times=8)
    errors = []
    for index in range(10):
        with pytest.raises(Retryable) as failure:
            await exporter.export(otlp.logs(1, body=f"batch {index}"))
        errors.append(failure.value)
    assert [error.remaining is None for error in errors] == [False] * 8 + [True] * 2
    assert len(intake.requests) == 8
    for error in errors[:8]:
        await exporter.export(error.remaining)
    await exporter.export(otlp.logs(1, body="batch 8"))
    assert [log["message"] for log in intake.logs] == [f"batch {index} 0" for index in range(9)]


async def test_a_password_in_an_address_is_not_shown(intake, bench):
    """A proxy may want one."""
    url = intake.url.replace("//", "//user:secret@")
    exporter = bench.make(DatadogExporter, f"api: {{key: {KEY}}}\nlogs: {{endpoint: '{url}'}}\n")
    await exporter.start()
    intake.script(status=500)
    with pytest.raises(Retryable) as failure:
        await exporter.export(otlp.logs(1))
    await exporter.stop()
    assert "secret" not in str(failure.value)
    assert intake.to(LOGS)[0].headers["authorization"].startswith("Basic ")


async def test_429_of_one_intake_does_not_hold_up_the_others(exporter, intake):
    """Each has its own limits."""
    intake.script(status=429, path=LOGS, headers={"X-Ratelimit-Reset": "60"})
    with pytest.raises(RateLimited):
        await exporter.export(otlp.logs(1))
    await exporter.export(otlp.traces(1))
    assert len(intake.spans) == 1


@pytest.mark.parametrize("value", ["nan", "inf", "soon"])
async def test_a_wait_that_is_no_number_is_not_believed(exporter, intake, value):
    """Nor is one for ever."""
    intake.script(status=429, headers={"X-Ratelimit-Reset": value})
    with pytest.raises(Retryable) as failure:
        await exporter.export(otlp.logs(1))
    assert failure.value.after is None


@pytest.mark.parametrize(("value", "seconds"), [("3", 3), ("Tue, 14 Nov 2023 22:13:25 GMT", 5), ("soon", None)])
async def test_other_ways_to_ask_for_patience(exporter, intake, value, seconds):
    """`Retry-After` as a number and as a date; what is neither leaves the wait to the sender."""
    intake.script(status=429, headers={"Retry-After": value})
    with pytest.raises(Retryable) as failure:
        await exporter.export(otlp.logs(1))
    assert failure.value.after == seconds


@pytest.mark.parametrize("status", [302, 404, 405])
async def test_an_address_that_is_no_intake_keeps_the_data(exporter, intake, status):
    """The key follows no redirect, and a person mends the address meanwhile."""
    intake.script(status=status, headers={"Location": f"{intake.url}/elsewhere"})
    with pytest.raises(Retryable) as failure:
        await exporter.export(otlp.logs(1))
    assert failure.value.after >= 60
    assert [request.path for request in intake.requests] == [LOGS]


async def test_nothing_of_one_request_is_left_on_the_next(exporter, intake):
    """Tags are inside each log: they grow neither the address nor the logs that follow (contrib#16380)."""
    for index in range(3):
        await exporter.export(otlp.logs(1, service=f"s{index}", ddtags=f"n:{index}"))
    assert [log["ddtags"] for log in intake.logs] == [f"service:s{index},n:{index}" for index in range(3)]
    assert {request.query for request in intake.requests} == {""}


async def test_a_refused_key_is_tried_again_slowly_and_not_shown(exporter, intake, bench):
    """403 keeps the data for the day on which the key is right; the key is in no message."""
    intake.keys = {"another"}
    with pytest.raises(Retryable) as failure:
        await exporter.export(otlp.logs(1))
    assert failure.value.after >= 60
    assert "API key" in str(failure.value)
    assert KEY not in str(failure.value)
    intake.keys = {KEY}
    bench.clock.advance(60)
    await exporter.export(failure.value.remaining)
    assert len(intake.logs) == 1


async def test_an_answer_that_repeats_the_key_does_not_reveal_it(exporter, intake):
    """A proxy's error page may echo the request's headers."""
    intake.script(status=500, body=f"DD-API-KEY: {KEY}".encode())
    with pytest.raises(Retryable) as failure:
        await exporter.export(otlp.logs(1))
    assert KEY not in str(failure.value)
    assert "[REDACTED]" in str(failure.value)


async def test_a_connection_that_breaks_is_retryable(exporter, intake):
    """A reset in the middle of the body, and one before the answer (contrib#24550)."""
    intake.script(after_bytes=1)
    intake.script(status=0)
    batch = otlp.logs(1)
    for _ in range(2):
        with pytest.raises(Retryable):
            await exporter.export(batch)
    await exporter.export(batch)
    assert len(intake.logs) == 1


async def test_an_unreachable_intake_is_retryable(bench):
    """A refused connection keeps the data (contrib#24550)."""
    exporter = bench.make(DatadogExporter, f"api: {{key: {KEY}}}\nlogs: {{endpoint: 'http://127.0.0.1:1'}}\n")
    await exporter.start()
    with pytest.raises(Retryable):
        await exporter.export(otlp.logs(1))
    await exporter.stop()


async def test_a_slow_intake_ends_the_attempt_in_time(intake, bench):
    """The attempt ends before the runtime's own timeout, so that it can say what it has delivered."""
    exporter = bench.make(DatadogExporter, f"api: {{key: {KEY}}}\ntimeout: 2s\nlogs: {{endpoint: '{intake.url}'}}\n")
    await exporter.start()
    intake.script(status=202, accept=True)
    intake.script(delay=30)
    try:
        async with asyncio.timeout(2):
            with pytest.raises(Retryable) as failure:
                await exporter.export(otlp.logs(1200))
    finally:
        await exporter.stop()
    assert failure.value.reason == "timeout"
    assert len(failure.value.remaining) == 200


async def test_a_fatal_log_raises_an_event_beside_it(exporter, intake):
    """The event has a title, the stack in a code block, the alert type, and tags; the log arrives too."""
    request = otlp.logs_request(
        body="boom", exception__stacktrace="main.go:7", telemetry__source="provider", telemetry__kind="panic"
    )
    record = request.resource_logs[0].scope_logs[0].log_records[0]
    record.severity_number = 21
    record.severity_text = "fatal"
    await exporter.export(otlp._batch(Signal.LOGS, request, None))
    await intake.wait_for(lambda: bool(intake.events))
    (event,) = intake.events
    assert event["title"] == "provider panic: boom 0"
    assert "```\nmain.go:7\n```" in event["text"]
    assert event["alert_type"] == "error"
    assert {"source:provider", "kind:panic", "service:api"} <= set(event["tags"])
    assert event["host"] == "web-1"
    assert event["date_happened"] == otlp.NOW // 10**9
    assert [log["status"] for log in intake.logs] == ["fatal"]


async def test_events_that_fail_neither_hold_up_nor_double_logs(exporter, intake):
    """An events intake that refuses leaves the logs alone."""
    intake.script(status=503, times=100, path=EVENTS)
    request = otlp.logs_request()
    request.resource_logs[0].scope_logs[0].log_records[0].severity_text = "FATAL"
    await exporter.export(otlp._batch(Signal.LOGS, request, None))
    await exporter.export(otlp.logs(1))
    await intake.wait_for(lambda: bool(intake.to(EVENTS)))
    assert len(intake.logs) == 2


def dogstatsd_batch(*, age: float = 0) -> Batch:
    """A log, an event and two service checks, as a receiver of DogStatsD hands them on."""
    request = otlp.logs_request(4)
    records = request.resource_logs[0].scope_logs[0].log_records
    records[1].event_name = keys.EVENT
    records[1].attributes.extend(otlp.attributes(datadog__event__title="deploy", ddtags="team:a"))
    for record in records[2:]:
        record.event_name = keys.SERVICE_CHECK
        record.attributes.extend(otlp.attributes(datadog__service_check__name="up", datadog__service_check__status=1))
    for record in records:
        record.time_unix_nano = otlp.NOW - round(age * 1e9)
    return otlp._batch(Signal.LOGS, request, None)


async def test_events_and_service_checks_of_dogstatsd_go_to_their_intakes(exporter, intake):
    """They are no logs; each arrives once, also when the last of their intakes fails at first."""
    intake.script(status=503, path=CHECKS)
    with pytest.raises(Retryable) as failure:
        await exporter.export(dogstatsd_batch())
    assert len(failure.value.remaining) == 2
    await exporter.export(failure.value.remaining)
    assert [log["message"] for log in intake.logs] == ["hello 0"]
    assert [(event["title"], event["text"], event["tags"]) for event in intake.events] == [
        ("deploy", "hello 1", ["service:api", "team:a"])
    ]
    assert [(check["check"], check["status"], check["host_name"]) for check in intake.checks] == [
        ("up", 1, "web-1")
    ] * 2


async def test_events_and_service_checks_that_are_too_old_are_counted_out(exporter, intake, bench):
    """18 hours and ten minutes is what the intakes take."""
    await exporter.export(dogstatsd_batch(age=700))
    assert (len(intake.events), len(intake.checks)) == (1, 0)
    await exporter.export(dogstatsd_batch(age=19 * 3600))
    assert len(intake.events) == 1
    assert bench.dropped == {(Signal.LOGS, "too_old"): 5}


def test_a_missing_key_is_a_setting_error(monkeypatch):
    """It names the setting and the environment variable; with DD_API_KEY set nothing is missing."""
    with pytest.raises(SettingError, match="set DD_API_KEY") as failure:
        Bench().make(DatadogExporter)
    assert failure.value.path == ("api", "key")
    monkeypatch.setenv("DD_API_KEY", KEY)
    assert KEY not in repr(Bench().make(DatadogExporter).settings)
