"""APM statistics of spans."""

from __future__ import annotations

import msgspec
import pytest
from support.datadog_wire import DDSketch
from support.otlp import NOW, attributes, readable, traces_request

from exporters.datadog.resource import Defaults, Origins
from exporters.datadog.spans import SpanMapper
from exporters.datadog.stats import BUCKET_NS, Concentrator, Sender, encode
from exporters.datadog.traces import TraceMapper

SENDER = Sender("here", "dev", "0.1")
START = NOW - NOW % BUCKET_NS


def groups_of(request):
    """The groups of a request."""
    return TraceMapper(Origins(Defaults(env="prod")), SpanMapper()).map(readable(request), local=True)


def spans(count=1, *, at=START, kind=2, error=False, resource=None, **values):
    """Spans that end at a time, each with its own duration in milliseconds."""
    request = traces_request(count, **values)
    request.resource_spans[0].resource.attributes.extend(attributes(**(resource or {})))
    for index, span in enumerate(request.resource_spans[0].scope_spans[0].spans):
        span.kind = kind
        span.start_time_unix_nano = at - (index + 1) * 1_000_000
        span.end_time_unix_nano = at
        span.status.code = 2 if error else 0
    return groups_of(request)


def entries_of(payloads):
    """The entries of all payloads."""
    return [entry for payload in payloads for bucket in payload["Stats"] for entry in bucket["Stats"]]


def test_alike_spans_are_counted_together():
    """Hits, top-level hits, errors, durations, and a sketch each of those that worked and those that failed."""
    counted = Concentrator()
    counted.add(spans(3, name="GET /"), NOW)
    counted.add(spans(2, name="GET /", error=True), NOW)
    (payload,) = counted.flush(None)
    assert (payload["Env"], payload["Hostname"]) == ("prod", "")
    (bucket,) = payload["Stats"]
    assert (bucket["Start"], bucket["Duration"]) == (START, BUCKET_NS)
    (entry,) = bucket["Stats"]
    assert (entry["Service"], entry["Name"], entry["Resource"], entry["Type"]) == (
        "api",
        "server.request",
        "GET /",
        "web",
    )
    assert (entry["Hits"], entry["TopLevelHits"], entry["Errors"]) == (5, 5, 2)
    assert entry["Duration"] == (1 + 2 + 3 + 1 + 2) * 1_000_000
    assert (entry["SpanKind"], entry["IsTraceRoot"]) == ("server", 1)
    worked, failed = DDSketch.FromString(entry["OkSummary"]), DDSketch.FromString(entry["ErrorSummary"])
    assert sum(worked.positiveValues.contiguousBinCounts) == 3
    assert sum(failed.positiveValues.contiguousBinCounts) == 2
    assert worked.mapping.gamma == pytest.approx(1.015625, abs=1e-4)


def test_the_sketch_holds_the_durations():
    """A bin is a power of gamma: what it stands for is within the accuracy of the duration."""
    counted = Concentrator()
    counted.add(spans(1), NOW)
    (entry,) = entries_of(counted.flush(None))
    sketch = DDSketch.FromString(entry["OkSummary"])
    (position,) = (at for at, count in enumerate(sketch.positiveValues.contiguousBinCounts) if count)
    index = sketch.positiveValues.contiguousBinIndexOffset + position
    assert sketch.mapping.gamma**index == pytest.approx(1_000_000, rel=0.016)


def test_what_differs_is_counted_apart():
    """By kind, status, method, route and peer."""
    counted = Concentrator()
    counted.add(spans(http__request__method="GET", http__route="/a", http__response__status_code=200), NOW)
    counted.add(spans(http__request__method="GET", http__route="/a", http__response__status_code=500), NOW)
    counted.add(spans(kind=3, peer__service="db", db__system="redis"), NOW)
    counted.add(spans(kind=3, peer__service="other", db__system="redis"), NOW)
    counted.add(spans(kind=3, rpc__system="grpc", rpc__grpc__status_code=14), NOW)
    entries = entries_of(counted.flush(None))
    assert [entry["HTTPStatusCode"] for entry in entries] == [200, 500, 0, 0, 0]
    assert [entry["PeerTags"] for entry in entries] == [
        [],
        [],
        ["db.system:redis", "peer.service:db"],
        ["db.system:redis", "peer.service:other"],
        ["rpc.system:grpc"],
    ]
    assert entries[0]["HTTPMethod"] == "GET"
    assert entries[0]["HTTPEndpoint"] == "/a"
    assert entries[4]["GRPCStatusCode"] == "14"


def test_internal_spans_below_the_top_are_not_counted():
    """They are no work of a service by themselves."""
    counted = Concentrator()
    request = traces_request(1)
    request.resource_spans[0].scope_spans[0].spans[0].parent_span_id = b"12345678"
    counted.add(groups_of(request), NOW)
    assert not list(counted.flush(None))


def test_what_the_sender_has_counted_is_not_counted_again():
    """`_dd.stats_computed` is how ddtrace says so over OTLP."""
    counted = Concentrator()
    counted.add(spans(resource={"_dd.stats_computed": "true"}), NOW)
    assert not list(counted.flush(None))
    counted.add(spans(resource={"_dd.stats_computed": "false"}), NOW)
    assert len(list(counted.flush(None))) == 1


def test_a_bucket_is_closed_ten_seconds_after_its_end():
    """Late spans go to the oldest open bucket, early ones to the next (contrib#15720)."""
    counted = Concentrator()
    now = START + 5 * 10**9
    for at in (START - 3600 * 10**9, START - 1, START, START + 3600 * 10**9):
        counted.add(spans(at=at), now)
    assert not list(counted.flush(now))
    buckets = [(p["Stats"][0]["Start"] - START, entries_of([p])[0]["Hits"]) for p in counted.flush(START + 10 * 10**9)]
    assert buckets == [(-BUCKET_NS, 2)]
    buckets = [(p["Stats"][0]["Start"] - START, entries_of([p])[0]["Hits"]) for p in counted.flush(None)]
    assert buckets == [(0, 1), (BUCKET_NS, 1)]
    assert not list(counted.flush(None))


def test_the_number_of_entries_is_bounded():
    """Beyond the limit resources are counted together, and far beyond services: hits stay right (contrib#30828)."""
    folded = []
    counted = Concentrator(max_entries=10, on_folded=lambda: folded.append(1))
    for index in range(100):
        counted.add(spans(name=f"GET /{index}", service=f"service-{index % 50}"), NOW)
    entries = entries_of(counted.flush(None))
    assert len(entries) <= 31
    assert sum(entry["Hits"] for entry in entries) == 100
    assert len(folded) == 90
    assert {entry["Resource"] for entry in entries if entry["Service"] == "service-15"} == {"*"}


def test_payloads_are_divided_at_the_limit_of_the_intake():
    """4,000 entries each, none lost; a payload says whether there are others."""
    counted = Concentrator(max_entries=9000)
    request = traces_request(9000)
    for index, span in enumerate(request.resource_spans[0].scope_spans[0].spans):
        span.name = f"GET /{index}"
    counted.add(groups_of(request), NOW)
    bodies = [msgspec.msgpack.decode(body) for body in encode(list(counted.flush(None)), SENDER)]
    assert [len(entries_of(body["Stats"])) for body in bodies] == [4000, 4000, 1000]
    assert {body["SplitPayload"] for body in bodies} == {True}
    assert {(body["AgentHostname"], body["AgentEnv"], body["ClientComputed"]) for body in bodies} == {
        ("here", "dev", False)
    }
    assert list(encode([], SENDER)) == []
