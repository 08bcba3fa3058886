"""Datadog spans as OTLP: every version alike, ids whole, nothing lost that the sender said."""

import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from support.datadog_tracer import HIGH, LOW, START, TRACE_ID, span, v04, v05, v07
from support.otlp_receiver import plain

from sidecar.errors import Permanent
from sidecar.receivers.datadog.spans import HighIds, Tracer, convert
from sidecar.receivers.datadog.wire import decode

MARKED = Tracer(computed_top_level=True)


def converted(version, body, tracer=MARKED, high_ids=None, *, json=False):
    """The decoded request, the spans in it, and how many were left out."""
    payload = decode(version, body, json=json)
    result = convert(payload, tracer, high_ids or HighIds())
    request = ExportTraceServiceRequest.FromString(result.data)
    spans = [one for resource in request.resource_spans for scope in resource.scope_spans for one in scope.spans]
    assert result.spans == len(spans)
    return request, spans, payload.malformed + result.invalid


def only(version, body, **options):
    """The only span."""
    _, (one,), left_out = converted(version, body, **options)
    assert left_out == 0
    return one


@pytest.mark.parametrize("version", ["v0.3", "v0.4", "v0.5"])
def test_a_span_keeps_everything(version):
    """In the places where OTLP has them, and else as attributes by their own names."""
    sent = span(
        parent_id=7,
        error=1,
        meta={"_dd.p.tid": HIGH, "span.kind": "server", "error.message": "no", "k": "v", "empty": ""},
        metrics={"_sampling_priority_v1": 2.0, "rows": 3.0},
    )
    request, (one,), _ = converted(version, v05([sent]) if version == "v0.5" else v04([sent]))
    assert (one.trace_id, one.span_id, one.parent_span_id) == (TRACE_ID, (1).to_bytes(8, "big"), (7).to_bytes(8, "big"))
    assert (one.name, one.kind, one.flags) == ("flask.request", 2, 1)
    assert (one.start_time_unix_nano, one.end_time_unix_nano) == (START, START + 5_000_000)
    assert (one.status.code, one.status.message) == (2, "no")
    assert plain(one.attributes) == {
        "operation.name": "flask.request",
        "resource.name": "GET /users",
        "span.type": "web",
        "span.kind": "server",
        "error.message": "no",
        "k": "v",
        "empty": "",
        "_sampling_priority_v1": 2.0,
        "rows": 3.0,
    }
    (resource,) = request.resource_spans
    assert plain(resource.resource.attributes) == {"service.name": "web", "telemetry.sdk.name": "datadog"}


def test_json_is_read_as_messagepack_is():
    """As v0.3 and v0.4 allow."""
    body = msgspec.json.encode([[span(meta={"a": "b"}, metrics={"n": 1})]])
    assert only("v0.4", body, json=True) == only("v0.4", v04([span(meta={"a": "b"}, metrics={"n": 1})]))


def test_the_upper_half_of_an_id_holds_for_the_whole_chunk_and_for_later_parts_of_the_trace():
    """Only a chunk's first span carries it; the lower half keeps its leading zeros (contrib#36926)."""
    high_ids = HighIds()
    first = [span(meta={"_dd.p.tid": HIGH}), span(span_id=2, parent_id=1)]
    _, spans, _ = converted("v0.4", v04(first), high_ids=high_ids)
    _, later, _ = converted("v0.5", v05([span(span_id=3, parent_id=1)]), high_ids=high_ids)
    assert {one.trace_id for one in (*spans, *later)} == {TRACE_ID}


def test_what_is_no_upper_half_stays_an_attribute():
    """And the id is what the rest of it says."""
    one = only("v0.4", v04([span(meta={"_dd.p.tid": "not hexadecimal"})]))
    assert one.trace_id == LOW.to_bytes(16, "big")
    assert plain(one.attributes)["_dd.p.tid"] == "not hexadecimal"


def test_upper_halves_are_forgotten_when_there_are_too_many():
    """The oldest first."""
    high_ids = HighIds(limit=2)
    for low in (1, 2, 3):
        high_ids.learn(low, 9)
    assert [high_ids.of(low) for low in (1, 2, 3)] == [0, 9, 9]


@pytest.mark.parametrize("version", ["v0.4", "v0.5"])
def test_links_come_as_text_or_as_they_are(version):
    """Both with whole ids; the flag that only says that there are flags goes."""
    text = msgspec.json.encode(
        [{"trace_id": "a" * 32, "span_id": "b" * 16, "attributes": {"x": "y"}, "tracestate": "dd=s:1", "flags": 1}]
    ).decode()
    native = {
        "trace_id": 0xAAAAAAAAAAAAAAAA,
        "trace_id_high": 0xAAAAAAAAAAAAAAAA,
        "span_id": 0xBBBBBBBBBBBBBBBB,
        "attributes": {"x": "y"},
        "tracestate": "dd=s:1",
        "flags": 1 << 31 | 1,
    }
    body = v05([span(meta={"_dd.span_links": text})]) if version == "v0.5" else v04([span(span_links=[native])])
    one = only(version, body)
    (link,) = one.links
    assert (link.trace_id.hex(), link.span_id.hex()) == ("a" * 32, "b" * 16)
    assert (link.trace_state, link.flags, plain(link.attributes)) == ("dd=s:1", 1, {"x": "y"})
    assert "_dd.span_links" not in plain(one.attributes)


@pytest.mark.parametrize("version", ["v0.4", "v0.5"])
def test_events_come_as_text_or_as_they_are(version):
    """With typed values."""
    values = {"s": "x", "b": True, "i": 3, "d": 1.5, "a": ["p", "q"]}
    native = {
        "time_unix_nano": START,
        "name": "exception",
        "attributes": {
            "s": {"type": 0, "string_value": "x"},
            "b": {"type": 1, "bool_value": True},
            "i": {"type": 2, "int_value": 3},
            "d": {"type": 3, "double_value": 1.5},
            "a": {"type": 4, "array_value": {"values": [{"type": 0, "string_value": one} for one in "pq"]}},
        },
    }
    text = msgspec.json.encode([{"name": "exception", "time_unix_nano": START, "attributes": values}]).decode()
    body = v05([span(meta={"events": text})]) if version == "v0.5" else v04([span(span_events=[native])])
    one = only(version, body)
    (event,) = one.events
    assert (event.name, event.time_unix_nano, plain(event.attributes)) == ("exception", START, values)
    assert "events" not in plain(one.attributes)


@pytest.mark.parametrize("text", ["not JSON", "{}", '[{"trace_id": 1}]', '[{"trace_id": "zz", "span_id": "1"}]'])
def test_texts_that_are_no_links_or_events_stay_as_they_are(text):
    """A program may use the name for something else."""
    one = only("v0.5", v05([span(meta={"_dd.span_links": text, "events": text})]))
    assert not one.links
    assert plain(one.attributes)["_dd.span_links"] == text


def test_deep_and_large_values_of_events_become_text():
    """A reader of protobuf would refuse the whole request for them."""
    deep = "[" * 500 + "]" * 500
    text = f'[{{"name": "e", "attributes": {{"deep": {deep}, "large": {10**30}}}}}]'
    _, (one,), _ = converted("v0.5", v05([span(meta={"events": text})]))
    assert len(one.events) == 1 or plain(one.attributes)["events"] == text


def test_structured_metadata_is_kept_as_bytes():
    """Under a name that says what it was."""
    one = only("v0.4", v04([span(meta_struct={"appsec": b"\x81\x01\x02"})]))
    assert plain(one.attributes)["datadog.meta_struct.appsec"] == b"\x81\x01\x02"


def test_nil_is_as_good_as_nothing():
    """Tracers write it for whatever they have nothing to say on."""
    nothing = dict.fromkeys(span()) | {"trace_id": LOW, "span_id": 1, "span_links": None, "span_events": None}
    one = only("v0.4", v04([nothing | {"meta": {"a": None, "b": "c"}, "metrics": {"n": None}}]))
    assert plain(one.attributes) == {"operation.name": "", "resource.name": "", "span.type": "", "b": "c"}
    assert only("v0.4", v04([{"trace_id": LOW, "span_id": 1}])).span_id == (1).to_bytes(8, "big")


@pytest.mark.parametrize("broken", [{"start": "now"}, {"meta": {"a": 1}}, {"metrics": {"n": "x"}}])
@pytest.mark.parametrize("json", [False, True])
def test_a_malformed_span_costs_only_itself(broken, json):
    """Its neighbours arrive, and it is counted."""
    encode = msgspec.json.encode if json else msgspec.msgpack.encode
    _, spans, left_out = converted("v0.4", encode([[span(), span() | broken], [span()]]), json=json)
    assert (len(spans), left_out) == (2, 1)


def test_a_reference_that_leads_nowhere_costs_only_its_span():
    """In v0.5."""
    strings, rows = msgspec.msgpack.decode(v05([span(), span(span_id=2)]))
    rows[0][1][0] = 99
    _, spans, left_out = converted("v0.5", msgspec.msgpack.encode([strings, rows]))
    assert (len(spans), left_out) == (1, 1)


def test_a_text_that_is_no_utf8_is_mended():
    """As the Agent does; in v0.5 it would cost every span that uses it."""
    body = v05([span(resource="GET /\u00e9")]).replace("\u00e9".encode(), b"\xff\xfe")
    assert plain(only("v0.5", body).attributes)["resource.name"] == "GET /\ufffd\ufffd"


@pytest.mark.parametrize("version", ["v0.3", "v0.4", "v0.5", "v0.7"])
@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x93", b"hello", v04([span()])[:-9]])
def test_what_is_no_payload_is_refused(version, body):
    """With the version in the message."""
    with pytest.raises(Permanent, match=version):
        decode(version, body)


@given(st.sampled_from(["v0.3", "v0.4", "v0.5", "v0.7"]), st.binary(max_size=200), st.integers(0, 400))
def test_no_bytes_do_any_harm(version, noise, at):
    """They are spans, or they are refused."""
    good = {"v0.5": v05([span(meta={"a": "b"})]), "v0.7": v07({"spans": [span()]})}.get(version, v04([span()]))
    for body in (noise, good[:at] + noise + good[at + len(noise) :]):
        try:
            converted(version, body)
        except Permanent:
            continue


def test_spans_without_an_id_are_left_out():
    """OTLP knows none."""
    _, spans, left_out = converted("v0.4", v04([span(trace_id=0), span(span_id=0), span()]))
    assert (len(spans), left_out) == (1, 2)


def test_times_that_no_clock_shows_are_cut():
    """A negative duration is none, and a start before 1970 is then."""
    one = only("v0.4", v04([span(start=-5, duration=-7)]))
    assert (one.start_time_unix_nano, one.end_time_unix_nano) == (0, 0)
    one = only("v0.4", v04([span(start=2**63 - 1, duration=2**63 - 1)]))
    assert one.end_time_unix_nano == 2**64 - 2


def test_signed_ids_are_the_same_ids():
    """Some tracers write them so."""
    assert only("v0.4", v04([span(span_id=-1)])).span_id == b"\xff" * 8


@pytest.mark.parametrize(
    ("meta", "kind_of_span", "kind"),
    [
        ({"span.kind": "consumer"}, "", 5),
        ({"span.kind": "internal"}, "web", 1),
        ({}, "web", 2),
        ({}, "http", 3),
        ({}, "sql", 0),
        ({"span.kind": "odd"}, "", 0),
    ],
)
def test_the_kind_follows_from_the_span_or_from_its_type(meta, kind_of_span, kind):
    """Where the type leaves no doubt."""
    assert only("v0.4", v04([span(meta=meta, type=kind_of_span)])).kind == kind


def test_what_a_sampler_has_decided_against_is_not_marked_as_sampled():
    """The priority of any span holds for the chunk."""
    _, spans, _ = converted("v0.4", v04([span(metrics={"_sampling_priority_v1": 0}), span(span_id=2)]))
    assert [one.flags for one in spans] == [0, 0]


def test_resources_are_services_with_what_their_chunk_says():
    """The version is that of its own service alone; headers say the rest."""
    tracer = Tracer("python", "3.11", "CPython", "4.16", "c0ffee", computed_stats=True, computed_top_level=True)
    chunk = [
        span(meta={"env": "prod", "version": "1.2", "_dd.hostname": "h", "runtime-id": "r"}),
        span(span_id=2, parent_id=1),
        span(span_id=3, parent_id=1, service="db"),
    ]
    request, _, _ = converted("v0.4", v04(chunk), tracer)
    common = {
        "deployment.environment.name": "prod",
        "host.name": "h",
        "runtime-id": "r",
        "container.id": "c0ffee",
        "telemetry.sdk.name": "datadog",
        "telemetry.sdk.language": "python",
        "telemetry.sdk.version": "4.16",
        "process.runtime.name": "CPython",
        "process.runtime.version": "3.11",
        "_dd.stats_computed": "true",
    }
    assert [plain(one.resource.attributes) for one in request.resource_spans] == [
        {"service.name": "web", "service.version": "1.2", **common},
        {"service.name": "db", **common},
    ]


def test_v07_says_on_the_payload_what_others_say_on_spans():
    """And on the chunk."""
    body = v07(
        {
            "priority": -1,
            "origin": "rum",
            "tags": {"_dd.p.tid": HIGH, "_dd.p.dm": "-4"},
            "spans": [span(), span(span_id=2)],
        },
        env="prod",
        hostname="h",
        app_version="1",
        container_id="c",
        language_name="go",
        tracer_version="2",
        runtime_id="r",
        tags={"_dd.tags.container": "a:b"},
    )
    request, spans, _ = converted("v0.7", body)
    assert {one.trace_id for one in spans} == {TRACE_ID}
    assert [one.flags for one in spans] == [0, 0]
    first = plain(spans[0].attributes)
    assert (first["_dd.origin"], first["_dd.p.dm"], first["_sampling_priority_v1"]) == ("rum", "-4", -1.0)
    (resource,) = request.resource_spans
    assert plain(resource.resource.attributes) == {
        "_dd.tags.container": "a:b",
        "service.name": "web",
        "service.version": "1",
        "deployment.environment.name": "prod",
        "host.name": "h",
        "runtime-id": "r",
        "container.id": "c",
        "telemetry.sdk.name": "datadog",
        "telemetry.sdk.language": "go",
        "telemetry.sdk.version": "2",
    }


def test_top_level_spans_are_marked_where_the_tracer_has_not():
    """Those whose parent is of another service, or is not here."""
    chunk = [span(), span(span_id=2, parent_id=1), span(span_id=3, parent_id=2, service="db")]
    _, spans, _ = converted("v0.4", v04(chunk), Tracer())
    marked = {struct.unpack(">Q", one.span_id)[0]: "_dd.top_level" in plain(one.attributes) for one in spans}
    assert marked == {1: True, 2: False, 3: True}


def test_no_attribute_comes_twice():
    """OTLP forbids it: a field of the span beats a text of the same name, and a text beats a number."""
    one = only("v0.4", v04([span(meta={"resource.name": "x", "n": "text"}, metrics={"n": 1.0})]))
    names = [attribute.key for attribute in one.attributes]
    assert len(names) == len(set(names))
    assert (plain(one.attributes)["resource.name"], plain(one.attributes)["n"]) == ("GET /users", "text")
