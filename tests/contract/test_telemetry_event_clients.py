"""Batches as the deployed clients send them (wire contract, §9), and what each client sees."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime, timedelta

import pytest
from support.events import Served, served, texts

from processors.rate_limit import RateLimit
from sidecar.batch import Batch
from sidecar.errors import Retryable
from sidecar.signals import Signal

PROVIDER = "eigen-provider-token"
MACHINE = f"tok:{hashlib.sha256(PROVIDER.encode()).hexdigest()[:16]}"
TOKENS = f"""
tokens:
  - {{kind: provider, token: {PROVIDER}, name: mac, account: acct_mac}}
  - {{kind: api_key, token: sk-console, name: console, account: acct_web}}
"""
AUTH = "auth: {authenticator: token_auth}\n"
ORIGIN = "https://console.example.com"


def at(server: Served, seconds: float = 0) -> datetime:
    """A moment before the server's now."""
    return datetime.fromtimestamp(server.bench.clock.now_ns // 10**9, UTC) - timedelta(seconds=seconds)


def rust_batch(now: datetime, events: int = 50) -> bytes:
    """A provider's flush: nanoseconds, compact, empty fields left out, floats with a point."""
    return json.dumps(
        {
            "events": [
                {
                    "id": f"7d444840-9dc0-4111-8001-{number:012x}",
                    "timestamp": f"{now:%Y-%m-%dT%H:%M:%S}.{number:09d}Z",
                    "source": "provider",
                    "severity": "error",
                    "kind": "backend_crash",
                    "version": "0.3.10",
                    "request_id": f"req_{number % 7}",
                    "session_id": "5f0c2f6e-6b0e-4a58-a3a6-0a3b8c7e9d10",
                    "message": "backend exited unexpectedly",
                    "fields": {
                        "backend": "vllm-mlx",
                        "exit_code": -9,
                        "signal": "SIGKILL",
                        "hardware_chip": "Apple M3 Max",
                        "memory_gb": 128,
                        "duration_ms": 1250.0,
                    },
                }
                for number in range(events)
            ]
        },
        separators=(",", ":"),
    ).encode()


def swift_batch(now: datetime, events: int = 100) -> bytes:
    """An app's request: UUIDs in upper case, whole seconds, escaped slashes, keys in no order."""
    return (
        json.dumps(
            {
                "events": [
                    {
                        "message": "websocket closed",
                        "kind": "connectivity",
                        "fields": {"ws_state": "closed", "reconnect_count": 3, "macos_version": "15.4"},
                        "severity": "warn",
                        "id": f"E621E1F8-C36C-495A-93FC-{number:012X}",
                        "timestamp": f"{now:%Y-%m-%dT%H:%M:%SZ}",
                        "source": "app",
                        "version": "1.2/7",
                    }
                    for number in range(events)
                ]
            }
        )
        .replace("1.2/7", r"1.2\/7")
        .encode()
    )


def browser_batch(now: datetime, events: int = 100) -> bytes:
    """A page's batch: milliseconds, raw UTF-8, a message cut within a surrogate pair."""
    batch = json.dumps(
        {
            "events": [
                {
                    "id": f"9b2d7a10-1111-4222-8333-{number:012x}",
                    "timestamp": f"{now:%Y-%m-%dT%H:%M:%S}.{number:03d}Z",
                    "source": "console",
                    "severity": "error",
                    "kind": "http_error",
                    "message": "Anfrage fehlgeschlagen: 502 für CUT",
                    "fields": {"url": "/chat", "route": "/chat", "status_code": 502, "user_agent": "Mozilla/5.0"},
                }
                for number in range(events)
            ]
        },
        ensure_ascii=False,
        separators=(",", ":"),
    )
    return batch.replace("CUT", r"\ud83d", 1).replace("CUT", "").encode()


async def test_a_provider_flushes_fifty_events():
    """202 for all; every event is a span of its request's trace and lies on the token's machine."""
    async with served(AUTH, TOKENS) as server:
        answer = await server.post(rust_batch(at(server, 5)), Authorization=f"Bearer {PROVIDER}")

        assert (answer.status, answer.json) == (202, {"accepted": 50, "rejected": 0})
        assert (len(server.records), len(server.spans)) == (50, 50)
        assert len({span.trace_id for span in server.spans}) == 7
        assert [record.time_unix_nano % 10**9 for record in server.records] == list(range(50))
        assert server.resources == [
            {
                "service.name": "provider",
                "service.version": "0.3.10",
                "host.id": MACHINE,
                "service.instance.id": "5f0c2f6e-6b0e-4a58-a3a6-0a3b8c7e9d10",
            }
        ]
        assert all(span.end_time_unix_nano - span.start_time_unix_nano == 1_250_000_000 for span in server.spans)


async def test_a_provider_spills_and_tries_later():
    """Any answer but 2xx makes it keep the batch; the same bytes later make the same spans."""
    async with served(AUTH, TOKENS) as server:
        batch = rust_batch(at(server, 5))
        server.bench.sink.refuse_with = Retryable("the queue is full", reason="queue_full")
        refused = await server.post(batch, Authorization=f"Bearer {PROVIDER}")
        server.bench.sink.refuse_with = None

        first = await server.post(batch, Authorization=f"Bearer {PROVIDER}")
        again = await server.post(batch, Authorization=f"Bearer {PROVIDER}")

        assert (refused.status, first.status, again.status) == (503, 202, 202)
        ids = [span.span_id for span in server.spans]
        assert ids[:50] == ids[50:]
        assert len(set(ids)) == 50


async def test_a_spilled_file_of_last_week_is_taken_as_of_now():
    """What waited for more than 7 days gets the receive time, and is counted."""
    async with served() as server:
        answer = await server.post(rust_batch(at(server, 8 * 86400)))

        assert answer.json == {"accepted": 50, "rejected": 0}
        assert {record.time_unix_nano for record in server.records} == {server.bench.clock.now_ns}
        assert server.bench.metrics.value("sidecar_receiver_repairs", reason="timestamp_replaced") == 50


async def test_an_app_sends_a_hundred_events():
    """As many as there may be; ids stay as they were written, and there are no spans without a request."""
    async with served() as server:
        answer = await server.post(swift_batch(at(server, 3)))

        assert (answer.status, answer.json) == (202, {"accepted": 100, "rejected": 0})
        assert texts(server.records[10])["telemetry.event.id"] == "E621E1F8-C36C-495A-93FC-00000000000A"
        assert server.resources == [{"service.name": "app", "service.version": "1.2/7"}]
        assert server.spans == []


async def test_a_page_sends_a_beacon():
    """The preflight, the batch with its origin, and the message that was cut within a character, mended."""
    async with served(f"cors: {{allowed_origins: ['{ORIGIN}']}}\n") as server:
        asked = await server.post(
            b"",
            "OPTIONS",
            Origin=ORIGIN,
            Access_Control_Request_Method="POST",
            Access_Control_Request_Headers="content-type",
        )
        answer = await server.post(browser_batch(at(server, 2)), Origin=ORIGIN)

        assert (asked.status, answer.status) == (204, 202)
        assert answer.json == {"accepted": 100, "rejected": 0}
        assert answer.headers["Access-Control-Allow-Credentials"] == "true"
        assert server.messages[0] == "Anfrage fehlgeschlagen: 502 für \N{REPLACEMENT CHARACTER}"
        assert server.messages[1] == "Anfrage fehlgeschlagen: 502 für "


async def test_the_console_comes_through_its_proxy():
    """Same origin, so no CORS; the proxy forwards the key, and tells the browser's address."""
    async with served(f"{AUTH}trusted_proxies: [127.0.0.1]\n", TOKENS) as server:
        answer = await server.post(
            browser_batch(at(server)), Authorization="Bearer sk-console", X_Forwarded_For="203.0.113.7", Origin=ORIGIN
        )

        assert answer.json == {"accepted": 100, "rejected": 0}
        assert "Access-Control-Allow-Origin" not in answer.headers
        context = server.bench.sink.batches[0].context
        assert (context.identity.account_id, context.peer) == ("acct_web", "203.0.113.7")


async def test_a_coordinator_without_a_time():
    """Go writes its zero time, and escapes what HTML might read; the receive time takes its place."""
    event = (
        rb'{"events":[{"id":"","timestamp":"0001-01-01T00:00:00Z","source":"coordinator","severity":"warn",'
        rb'"kind":"attestation_failure","message":"nonce \u003c 8 \u0026 stale","fields":null}]}'
    )
    async with served() as server:
        answer = await server.post(event)

        assert answer.json == {"accepted": 1, "rejected": 0}
        assert server.messages == ["nonce < 8 & stale"]
        assert server.records[0].time_unix_nano == server.bench.clock.now_ns


@pytest.mark.parametrize("attempt", [3, 10, 30, 60])
async def test_reconnect_storms(attempt):
    """Reported at the third, the tenth and every thirtieth attempt, with the count as a number."""
    event = {
        "source": "provider",
        "severity": "warn",
        "kind": "connectivity",
        "message": "reconnecting",
        "fields": {"reconnect_count": attempt, "last_error": "connection refused"},
    }
    async with served() as server:
        await server.post({"events": [event]})

        counts = [one.value.int_value for one in server.records[0].attributes if one.key == "reconnect_count"]
        assert counts == [attempt]


def limited(server: Served) -> None:
    """Put the rate limit of the wire contract (§3), which is the processor's default, before the sink."""
    limits = {signal: server.bench.make(RateLimit, "", f"rate_limit/{signal.value}") for signal in Signal}
    sink = server.bench.sink

    async def consume(*batches: Batch) -> None:
        for batch in batches:
            limits[batch.signal].process(batch)
            assert "not built" in repr(batch)
        await sink(*batches)

    consume.accepts = sink.accepts  # type: ignore[attr-defined]
    server.receiver.emit = consume  # type: ignore[assignment]


async def test_the_rate_of_strangers():
    """30 at once and 10 a minute; the batch that does not fit is refused whole and told when it will."""
    async with served() as server:
        limited(server)
        statuses = [(await server.post(swift_batch(at(server), 10))).status for _ in range(3)]
        refused = await server.post(swift_batch(at(server), 10))
        server.bench.clock.advance(float(refused.headers["Retry-After"]))
        later = await server.post(swift_batch(at(server), 10))

        assert statuses == [202, 202, 202]
        assert (refused.status, refused.json["error"]["type"]) == (429, "rate_limited")
        assert refused.headers["Retry-After"] == "60"
        assert later.status == 202
        assert len(server.records) == 40


async def test_the_rate_of_providers():
    """200 at once and 100 a minute, by machine; a stranger's flood is none of its business."""
    async with served(AUTH, TOKENS) as server:
        limited(server)
        while (await server.post(swift_batch(at(server), 30))).status == 202:
            pass
        batch = rust_batch(at(server))
        statuses = [(await server.post(batch, Authorization=f"Bearer {PROVIDER}")).status for _ in range(4)]
        refused = await server.post(batch, Authorization=f"Bearer {PROVIDER}")

        assert statuses == [202] * 4
        assert (refused.status, refused.headers["Retry-After"]) == (429, "30")
