"""`POST /v1/telemetry/events` over real sockets: each row of the wire contract's §1 and §2."""

from __future__ import annotations

import gzip
import hashlib
import json
import time

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from support.events import PATH, served, texts

from config.problems import ConfigError
from sidecar.batch import Identity
from sidecar.errors import Permanent, RateLimited, Retryable
from sidecar.receivers.telemetry_event import TelemetryEventReceiver
from sidecar.signals import Signal
from sidecar.testing import Bench

EVENT = {
    "id": "00000000-0000-0000-0000-000000000001",
    "source": "provider",
    "severity": "error",
    "kind": "backend_crash",
    "version": "0.3.10",
    "session_id": "abc",
    "message": "hi",
}
PROVIDER = "eigen-provider-token"
MACHINE = f"tok:{hashlib.sha256(PROVIDER.encode()).hexdigest()[:16]}"
TOKENS = f"""
tokens:
  - {{kind: provider, token: {PROVIDER}, name: mac, account: acct_mac}}
  - {{kind: api_key, token: sk-console, name: console, account: acct_web}}
"""
AUTH = "auth: {authenticator: token_auth}\n"


def error_of(answer) -> tuple[int, str]:
    """Status and type of a refusal, whose body has exactly the documented shape."""
    assert answer.headers["Content-Type"].startswith("application/json")
    assert answer.json.keys() == {"error"}
    assert answer.json["error"].keys() == {"type", "message"}
    assert answer.json["error"]["message"]
    return answer.status, answer.json["error"]["type"]


def batch_of_size(size: int) -> bytes:
    """A batch with one event, of exactly so many bytes."""
    frame = json.dumps({"events": [EVENT | {"unknown": ""}]}).encode()
    return frame.replace(b'"unknown": ""', b'"unknown": "' + b"x" * (size - len(frame)) + b'"')


# §1, the table of answers.


async def test_accepted_wholly():
    """202, and the event arrives as one log record."""
    async with served() as server:
        answer = await server.post({"events": [EVENT]})

        assert (answer.status, answer.json) == (202, {"accepted": 1, "rejected": 0})
        assert server.messages == ["hi"]
        assert server.resources == [
            {"service.name": "provider", "service.version": "0.3.10", "service.instance.id": "abc"}
        ]


async def test_accepted_in_part():
    """202 with both counts: what is no event costs only itself, and is counted."""
    async with served() as server:
        answer = await server.post({"events": [EVENT, {"severity": "error"}, 7, EVENT | {"message": "there"}]})

        assert (answer.status, answer.json) == (202, {"accepted": 2, "rejected": 2})
        assert server.messages == ["hi", "there"]
        assert server.bench.dropped == {(Signal.LOGS, "malformed"): 2}


async def test_nothing_but_rejected_events():
    """Still 202, and nothing goes further."""
    async with served() as server:
        answer = await server.post({"events": [{}, {"message": ""}]})

        assert (answer.status, answer.json) == (202, {"accepted": 0, "rejected": 2})
        assert server.bench.sink.batches == []


async def test_an_empty_batch():
    """200, not 202."""
    async with served() as server:
        answer = await server.post({"events": []})

        assert (answer.status, answer.json) == (200, {"accepted": 0, "rejected": 0})
        assert server.bench.sink.batches == []


@pytest.mark.parametrize(
    "body", [b"", b"nope", b'{"events": [', b"[]", b"null", b"{}", b'{"events": null}', b'{"events": {}}', b"\xff"]
)
async def test_what_is_no_batch(body):
    """400, invalid_request_error."""
    async with served() as server:
        assert error_of(await server.post(body)) == (400, "invalid_request_error")


async def test_a_body_over_the_limit():
    """413, payload_too_large; the limit itself is not too large, and the server goes on."""
    async with served() as server:
        assert (await server.post(batch_of_size(65536))).status == 202
        assert error_of(await server.post(batch_of_size(65537))) == (413, "payload_too_large")
        assert (await server.post(batch_of_size(65536))).status == 202


async def test_a_chunked_body_over_the_limit():
    """Counted while it comes: nobody announced its length."""

    async def chunks():
        for _ in range(5):
            yield b"x" * 20_000

    async with served() as server, server.session.post(server.url, data=chunks()) as response:
        assert response.status == 413
        assert (await response.json())["error"]["type"] == "payload_too_large"


@pytest.mark.parametrize(("coding", "compress"), [("gzip", gzip.compress), ("zstd", zstandard.compress)])
async def test_compressed_bodies(coding, compress):
    """Accepted, and limited by what they become: a bomb is small on the wire."""
    async with served() as server:
        assert (await server.post(compress(batch_of_size(65536)), Content_Encoding=coding)).status == 202
        for size in (65537, 5_000_000):
            answer = await server.post(compress(batch_of_size(size)), Content_Encoding=coding)
            assert error_of(answer) == (413, "payload_too_large")


async def test_a_body_that_is_not_gzip():
    """400: it is not what it says it is."""
    async with served() as server:
        answer = await server.post({"events": [EVENT]}, Content_Encoding="gzip")

        assert error_of(answer) == (400, "invalid_request_error")


async def test_an_unknown_coding():
    """415, with the same body as every refusal."""
    async with served() as server:
        answer = await server.post({"events": [EVENT]}, Content_Encoding="br")

        assert error_of(answer) == (415, "invalid_request_error")


async def test_too_many_events():
    """413, batch_too_large; 100 are not too many."""
    async with served() as server:
        assert (await server.post({"events": [{"message": "x"}] * 100})).json == {"accepted": 100, "rejected": 0}
        assert error_of(await server.post({"events": [{"message": "x"}] * 101})) == (413, "batch_too_large")
        assert len(server.records) == 100


async def test_over_the_rate():
    """429, rate_limited, whole seconds rounded up; nothing has been converted for it."""
    async with served() as server:
        server.bench.sink.refuse_with = RateLimited("over the rate", after=2.2)

        answer = await server.post({"events": [EVENT]})

        assert error_of(answer) == (429, "rate_limited")
        assert answer.headers["Retry-After"] == "3"


@pytest.mark.parametrize(("after", "expected"), [(None, "5"), (0, "1"), (12.5, "13")])
async def test_queue_full(after, expected):
    """503 with Retry-After, also where the pipeline names no delay; never "at once"."""
    async with served() as server:
        server.bench.sink.refuse_with = Retryable("the queue is full", after=after, reason="queue_full")

        answer = await server.post({"events": [EVENT]})

        assert error_of(answer) == (503, "unavailable")
        assert answer.headers["Retry-After"] == expected


async def test_refused_for_good_by_the_pipeline():
    """400: sending it again is for nothing."""
    async with served() as server:
        server.bench.sink.refuse_with = Permanent("never")

        answer = await server.post({"events": [EVENT]})

        assert error_of(answer) == (400, "invalid_request_error")
        assert "Retry-After" not in answer.headers


async def test_a_refusal_happens_before_any_conversion():
    """What the pipeline refuses has never become a message."""
    seen = []

    async def refuse(*batches):
        seen.extend(map(repr, batches))
        raise RateLimited("over the rate", after=1)

    async with served() as server:
        refuse.accepts = lambda _signal: True
        server.receiver.emit = refuse

        await server.post({"events": [EVENT | {"request_id": "r"}, EVENT]})

    assert seen == ["<Batch logs [2 items] not built>", "<Batch traces [1 items] not built>"]


async def test_refusals_are_counted_by_reason():
    """So that an operator sees why."""
    async with served() as server:
        await server.post(b"nope")
        await server.post(batch_of_size(70_000))
        server.bench.sink.refuse_with = RateLimited("over the rate", after=1)
        await server.post({"events": [EVENT]})

        for reason in ("malformed", "too_large", "rate_limited"):
            assert server.bench.metrics.value("sidecar_receiver_refused_requests", reason=reason, transport="http") == 1


async def test_repairs_are_counted_by_reason():
    """Whatever is cut, replaced or left out of an event that is kept."""
    event = EVENT | {
        "timestamp": "2001-01-01T00:00:00Z",
        "message": "x" * 5000,
        "stack": "x" * 33_000,
        "fields": {"prompt": "p", "error": "x" * 9000},
    }
    async with served() as server:
        assert (await server.post({"events": [event]})).status == 202

        for reason in ("timestamp_replaced", "message_cut", "stack_cut", "field_not_allowed", "fields_too_large"):
            assert server.bench.metrics.value("sidecar_receiver_repairs", reason=reason) == 1


async def test_limits_are_settings():
    """Each default can be changed."""
    own = """
max_body_size: 1KiB
max_events: 2
max_age: 1h
limits: {message: 4, stack: 4, fields: 20}
"""
    # The bench's clock stands in November 2023.
    event = EVENT | {
        "message": "12345",
        "stack": "12345",
        "timestamp": "2023-11-14T20:13:20Z",
        "fields": {"error": "x" * 20},
    }
    async with served(own) as server:
        assert error_of(await server.post({"events": [EVENT] * 3})) == (413, "batch_too_large")
        assert error_of(await server.post(batch_of_size(1025))) == (413, "payload_too_large")
        await server.post({"events": [event]})

        (record,) = server.records
        assert record.body.string_value == "1234…"
        assert texts(record)["exception.stacktrace"].startswith("1234\n")
        assert "error" not in texts(record)
        assert record.time_unix_nano == record.observed_time_unix_nano


# Which pipelines take what.


async def test_logs_and_spans_are_accepted_together():
    """One event with a request is a record and a span; both or neither."""
    async with served() as server:
        await server.post({"events": [EVENT | {"request_id": "r"}, EVENT]})

        assert [(batch.signal, len(batch)) for batch in server.bench.sink.batches] == [
            (Signal.LOGS, 2),
            (Signal.TRACES, 1),
        ]
        assert server.spans[0].trace_id == server.records[0].trace_id
        assert all(batch.context.transport == "http" for batch in server.bench.sink.batches)


@pytest.mark.parametrize(
    ("signals", "arrived", "dropped"),
    [
        ({Signal.LOGS}, [(Signal.LOGS, 2)], {}),
        ({Signal.TRACES}, [(Signal.TRACES, 1)], {(Signal.LOGS, "not_served"): 1}),
    ],
)
async def test_only_what_a_pipeline_takes_is_emitted(signals, arrived, dropped):
    """An event that is neither a wanted log nor a span is counted as lost."""
    async with served() as server:
        server.bench.sink.signals = frozenset(signals)

        answer = await server.post({"events": [EVENT | {"request_id": "r"}, EVENT]})

        assert answer.json == {"accepted": 2, "rejected": 0}
        assert [(batch.signal, len(batch)) for batch in server.bench.sink.batches] == arrived
        assert server.bench.dropped == dropped


async def test_without_a_pipeline_nothing_is_accepted():
    """404, and the message says what is missing."""
    async with served() as server:
        server.bench.sink.signals = frozenset({Signal.METRICS})

        answer = await server.post({"events": [EVENT]})

        assert error_of(answer) == (404, "not_found_error")
        assert "receivers.telemetry_event is in no logs pipeline" in answer.json["error"]["message"]


async def test_the_settings_reach_the_conversion():
    """Names, resource attributes, and which events become spans."""
    own = """
service_names: {provider: inference-provider}
resource: {deployment.environment.name: prod, service.namespace: ""}
spans: all
"""
    async with served(own) as server:
        await server.post({"events": [EVENT]})

        assert server.resources[0] | {"service.name": "inference-provider"} == server.resources[0]
        assert server.resources[0]["deployment.environment.name"] == "prod"
        assert "service.namespace" not in server.resources[0]
        assert [span.name for span in server.spans] == ["backend_crash"]


# Privacy.


async def test_prompts_never_pass():
    """Wherever a sender puts user content, no byte of it leaves the receiver."""
    event = EVENT | {
        "request_id": "r",
        "prompt": "canary",
        "fields": {"prompt": "canary", "completion": "canary", "canary": 1, "error": {"messages": ["canary"]}},
        "severity": "canary",
        "kind": "canary",
        "source": "canary",
        "id": "canary",
        "timestamp": "canary",
    }
    async with served() as server:
        answer = await server.post({"events": [event, {"prompt": "canary"}]})

        assert answer.json == {"accepted": 1, "rejected": 1}
        outputs = [batch.encode() for batch in server.bench.sink.batches]
        assert len(outputs) == 2
        assert not any(b"canary" in output for output in outputs)


# §2, who is calling.


@pytest.mark.parametrize("settings", ["", AUTH])
@pytest.mark.parametrize("authorization", [None, "Bearer unknown", "Bearer ", "Basic !!!", "nonsense"])
async def test_strangers_are_anonymous(settings, authorization):
    """A missing or unknown token is never a 401 unless it must be."""
    headers = {} if authorization is None else {"Authorization": authorization}
    async with served(settings, TOKENS) as server:
        answer = await server.post({"events": [EVENT | {"machine_id": "mine", "source": "console"}]}, **headers)

        assert answer.status == 202
        (batch,) = server.bench.sink.batches
        assert (batch.context.identity, batch.context.peer) == (None, "127.0.0.1")
        assert server.resources[0]["host.id"] == "mine"
        assert server.resources[0]["service.name"] == "console"


@pytest.mark.parametrize("authorization", [None, "Bearer unknown"])
async def test_strangers_are_refused_where_somebody_must_be_known(authorization):
    """401, with the scheme that is expected."""
    headers = {} if authorization is None else {"Authorization": authorization}
    async with served("auth: {authenticator: token_auth, required: true}\n", TOKENS) as server:
        answer = await server.post({"events": [EVENT]}, **headers)

        assert error_of(answer) == (401, "authentication_error")
        assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert (await server.post({"events": [EVENT]}, Authorization="Bearer sk-console")).status == 202


async def test_a_provider_token():
    """The source is forced, the machine comes from the token, the account is the token's."""
    async with served(AUTH, TOKENS) as server:
        await server.post(
            {"events": [EVENT | {"source": "coordinator", "machine_id": "liar", "account_id": "liar"}]},
            Authorization=f"Bearer {PROVIDER}",
        )

        (batch,) = server.bench.sink.batches
        assert batch.context.identity == Identity("provider", "mac", MACHINE, "acct_mac")
        assert batch.context.identity.key == f"machine:{MACHINE}"
        assert server.resources[0]["host.id"] == MACHINE
        assert server.resources[0]["service.name"] == "provider"
        assert texts(server.records[0])["telemetry.source"] == "provider"
        assert texts(server.records[0])["account.id"] == "acct_mac"
        assert PROVIDER.encode() not in batch.encode()


async def test_an_api_key():
    """The account is known; source and machine are the sender's."""
    async with served(AUTH, TOKENS) as server:
        await server.post(
            {"events": [EVENT | {"source": "console", "machine_id": "mine", "account_id": "liar"}]},
            Authorization="Bearer sk-console",
        )

        assert server.bench.sink.batches[0].context.identity == Identity("api_key", "console", "", "acct_web")
        assert server.resources[0]["host.id"] == "mine"
        assert texts(server.records[0])["telemetry.source"] == "console"
        assert texts(server.records[0])["account.id"] == "acct_web"


@pytest.mark.parametrize(
    ("forwarded", "trusted", "expected"),
    [
        ("203.0.113.7", "[]", "127.0.0.1"),
        ("203.0.113.7", "[127.0.0.1]", "203.0.113.7"),
        ("1.1.1.1, 203.0.113.7", "[127.0.0.0/8]", "203.0.113.7"),
        ("203.0.113.7, 10.1.2.3", "[127.0.0.1, 10.0.0.0/8]", "203.0.113.7"),
        ("10.1.2.3", "[127.0.0.1, 10.0.0.0/8]", "10.1.2.3"),
        ("2001:db8::7", "[127.0.0.1]", "2001:db8::7"),
        ("::ffff:203.0.113.7", "[127.0.0.1]", "203.0.113.7"),
        ("nonsense", "[127.0.0.1]", "127.0.0.1"),
        ("203.0.113.7, nonsense", "[127.0.0.1]", "127.0.0.1"),
        ("203.0.113.7", "[192.0.2.0/24]", "127.0.0.1"),
        (None, "[127.0.0.1]", "127.0.0.1"),
    ],
)
async def test_a_trusted_proxy_tells_the_address(forwarded, trusted, expected):
    """The nearest address that is no proxy of ours; strangers can't choose theirs."""
    headers = {} if forwarded is None else {"X_Forwarded_For": forwarded}
    async with served(f"trusted_proxies: {trusted}\n") as server:
        await server.post({"events": [EVENT]}, **headers)

        assert server.bench.sink.batches[0].context.peer == expected


async def test_chosen_headers_go_along():
    """They can be keys of a rate limit."""
    async with served("include_metadata: [X-Tenant]\n") as server:
        await server.post({"events": [EVENT]}, X_Tenant="blue", Cookie="secret")

        assert server.bench.sink.batches[0].context.metadata == {"x-tenant": "blue"}


# Browsers.


async def test_a_page_asks_before_it_sends_a_json_blob():
    """`sendBeacon` with a JSON Blob makes a preflight; the answer to the batch is readable, too, whatever it is."""
    origin = "https://console.example.com"
    async with served("cors: {allowed_origins: ['https://*.example.com']}\n") as server:
        asked = await server.post(
            b"",
            "OPTIONS",
            Origin=origin,
            Access_Control_Request_Method="POST",
            Access_Control_Request_Headers="content-type",
        )
        sent = await server.post({"events": [EVENT]}, Origin=origin)
        refused = await server.post(b"nope", Origin=origin)

        assert asked.status == 204
        assert asked.headers["Access-Control-Allow-Headers"] == "content-type"
        assert (sent.status, refused.status) == (202, 400)
        for answer in (asked, sent, refused):
            assert answer.headers["Access-Control-Allow-Origin"] == origin
            assert answer.headers["Access-Control-Allow-Credentials"] == "true"


async def test_without_cors_no_page_may_send():
    """The preflight is no 2xx, so the browser sends nothing."""
    async with served() as server:
        asked = await server.post(b"", "OPTIONS", Origin="https://evil.example", Access_Control_Request_Method="POST")

        assert asked.status == 405
        assert "Access-Control-Allow-Origin" not in asked.headers


@pytest.mark.parametrize(
    ("content_type", "origin", "status"),
    [
        ("application/json", None, 202),
        ("application/json; charset=utf-8", "https://console.example.com", 202),
        ("Application/JSON", None, 202),
        ("text/plain;charset=UTF-8", "https://console.example.com", 400),
        ("application/x-www-form-urlencoded", "https://console.example.com", 400),
        ("text/plain", None, 202),
        ("application/octet-stream", None, 202),
    ],
)
async def test_pages_must_say_json(content_type, origin, status):
    """Other types are sent without a preflight, by any page; programs may say what they like."""
    headers = {"Content_Type": content_type} | ({} if origin is None else {"Origin": origin})
    async with served() as server:
        assert (await server.post({"events": [EVENT]}, **headers)).status == status


# The rest of HTTP.


async def test_other_methods_and_paths():
    """405 says what is allowed."""
    async with served() as server:
        answer = await server.post(b"", "GET")

        assert (answer.status, answer.headers["Allow"]) == (405, "POST")


async def test_another_path():
    """The path is a setting."""
    async with served("path: /ingest\n") as server:
        assert server.url.endswith("/ingest")
        assert (await server.post({"events": [EVENT]})).status == 202


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ("path: events", "write for example /v1/telemetry/events"),
        ("trusted_proxies: [nonsense]", "write for example 10.0.0.0/8"),
        ("max_events: 0", "max_events"),
        ("spans: some", "one of: correlated, timed, all, none"),
        ("auth: {authenticator: token_auth}", "no extension 'token_auth'"),
    ],
)
def test_wrong_settings(settings, problem):
    """Found before anything listens, with what would be right."""
    with pytest.raises((ConfigError, ValueError), match=problem):
        Bench().make(TelemetryEventReceiver, settings)


async def test_grpc_can_be_off():
    """Then there is only HTTP."""
    bench = Bench()
    receiver = bench.make(TelemetryEventReceiver, "{endpoint: '127.0.0.1:0', grpc_endpoint: null}", "telemetry_event")

    assert receiver.grpc is None
    await receiver.start()
    assert bench.board.components["telemetry_event"].status == "ok"
    await receiver.stop()
    await receiver.stop()


async def test_stopping_without_starting():
    """Works, as for every component."""
    await Bench().make(TelemetryEventReceiver, "{endpoint: '127.0.0.1:0', grpc_endpoint: '127.0.0.1:0'}").stop()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from([*EVENT, "timestamp", "fields", "stack", "machine_id", "account_id", "request_id"])


@settings(max_examples=40)
@given(st.lists(st.dictionaries(NAMES, JSON, max_size=4), max_size=3) | JSON, st.binary(max_size=40))
async def test_whatever_is_sent_gets_one_of_the_documented_answers(events, noise):
    """Never a 500, and never an exception; the server goes on."""
    async with served() as server:
        for body in (json.dumps({"events": events}).encode(), json.dumps(events).encode(), noise):
            answer = await server.post(body)
            assert answer.status in {200, 202, 400}
            if answer.status == 400:
                error_of(answer)
        sent = await server.post({"events": [EVENT]})
        assert sent.json == {"accepted": 1, "rejected": 0}


async def test_the_receive_time_is_now():
    """An event without a timestamp happened when it came."""
    async with served() as server:
        server.bench.clock.now_ns = time.time_ns()

        await server.post({"events": [{"message": "hi"}]})

        (record,) = server.records
        assert record.time_unix_nano == record.observed_time_unix_nano == server.bench.clock.now_ns
        assert PATH in server.url
