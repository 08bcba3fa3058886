"""Spans grouped as Datadog wants them, and their two wire forms."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from support.datadog_wire import AgentPayload
from support.otlp import NOW, attributes, readable, traces_request

from exporters.datadog import trace_bodies
from exporters.datadog.resource import Defaults, Origins
from exporters.datadog.spans import SpanMapper
from exporters.datadog.trace_bodies import agent_bodies, agent_headers, array_of, intake_bodies
from exporters.datadog.traces import TraceMapper, sampled
from exporters.datadog.wire.datadog_pb2 import AgentPayload as Sender


def request_of(*spans: tuple[int, int], **resource) -> ExportTraceServiceRequest:
    """One resource with spans of these (trace id, span id); the first span of a trace is its root."""
    request = ExportTraceServiceRequest()
    group = request.resource_spans.add()
    group.resource.attributes.extend(attributes(**resource))
    scope = group.scope_spans.add()
    roots: dict[int, int] = {}
    for trace_id, span_id in spans:
        parent = roots.setdefault(trace_id, span_id)
        scope.spans.add(
            trace_id=trace_id.to_bytes(16, "big"),
            span_id=span_id.to_bytes(8, "big"),
            parent_span_id=parent.to_bytes(8, "big") if parent != span_id else b"",
            name=f"span {span_id}",
            start_time_unix_nano=NOW,
            end_time_unix_nano=NOW + 1000,
        )
    return request


def groups_of(request, ignore=(), on_left_out=lambda _reason, _spans: None, **defaults):
    """The groups of a request."""
    patterns = tuple(map(re.compile, ignore))
    return TraceMapper(Origins(Defaults(**defaults)), SpanMapper(), patterns, on_left_out).map(
        readable(request), local=True
    )


def decoded(body):
    """An agentless body by the independent schema."""
    return AgentPayload.FromString(body.data)


def spans_in(body):
    """The span ids of an agentless body, in order."""
    return [span.spanID for tracer in decoded(body).tracerPayloads for chunk in tracer.chunks for span in chunk.spans]


def test_one_chunk_per_trace_and_resource():
    """Spans of a trace are together, whatever lies between them; each knows its position in the batch."""
    request = request_of((1, 1), (2, 2), (1, 3), service__name="a")
    request.MergeFrom(request_of((1, 4), service__name="b"))
    first, second = groups_of(request)
    assert [(chunk.units, [span.span_id for span in chunk.spans]) for chunk in first.chunks.values()] == [
        ([0, 2], [1, 3]),
        ([1], [2]),
    ]
    assert [chunk.units for chunk in second.chunks.values()] == [[3]]


def test_spans_without_ids_are_left_out_and_counted():
    """Datadog can't place them."""
    left_out = []
    (group,) = groups_of(request_of((0, 1), (1, 0), (1, 2)), on_left_out=lambda *what: left_out.append(what))
    assert left_out == [("invalid_id", 2)]
    assert [chunk.units for chunk in group.chunks.values()] == [[2]]


def test_traces_of_ignored_resources_are_left_out_and_counted():
    """By the resource of the root span, also when the root is elsewhere."""
    left_out = []
    request = request_of((1, 1), (1, 2), (2, 3))
    groups = groups_of(request, ignore=["^span 1$"], on_left_out=lambda *what: left_out.append(what))
    assert left_out == [("ignored_resource", 2)]
    assert [list(group.chunks) for group in groups] == [[2]]


@pytest.mark.parametrize(("priority", "kept"), [(-1, False), (0, False), (1, True), (2, True), (None, True)])
def test_decisions_of_samplers_are_followed(priority, kept):
    """Without a decision a trace is kept."""
    left_out = []
    request = request_of((1, 1), (1, 2))
    if priority is not None:
        request.resource_spans[0].scope_spans[0].spans[0].attributes.extend(attributes(_sampling_priority_v1=priority))
    groups = list(sampled(groups_of(request), lambda *what: left_out.append(what)))
    assert bool(groups) is kept
    assert left_out == ([] if kept else [("sampled_out", 2)])


def test_the_payload_for_the_intake():
    """Sender, resource, chunk and span are where the intake reads them."""
    request = request_of(
        (5, 1),
        service__name="shop",
        service__version="1.2",
        deployment__environment__name="prod",
        host__name="web-1",
        container__id="c0ffee",
        telemetry__sdk__language="python",
        telemetry__sdk__version="1.30",
        k8s__pod__name="pod-1",
    )
    (body,) = intake_bodies(groups_of(request), Sender(host_name="here", env="dev", agent_version="0.1"))
    assert body.headers == {"X-Datadog-Reported-Languages": "python"}
    payload = decoded(body)
    assert (payload.hostName, payload.env, payload.agentVersion) == ("here", "dev", "0.1")
    (tracer,) = payload.tracerPayloads
    assert (tracer.containerID, tracer.languageName, tracer.tracerVersion) == ("c0ffee", "python", "otlp-1.30")
    assert (tracer.env, tracer.hostname, tracer.appVersion) == ("prod", "web-1", "1.2")
    assert dict(tracer.tags) == {"_dd.tags.container": "container_id:c0ffee,pod_name:pod-1"}
    (chunk,) = tracer.chunks
    assert (chunk.priority, dict(chunk.tags)) == (1, {"_dd.otlp_sr": "1.00", "_dd.p.dm": "-9"})
    (span,) = chunk.spans
    assert (span.service, span.resource, span.traceID, span.spanID, span.parentID) == ("shop", "span 1", 5, 1, 0)
    assert (span.start, span.duration, span.error, span.type) == (NOW, 1000, 0, "custom")
    assert span.meta["env"] == "prod"
    assert span.metrics["_dd.top_level"] == 1.0


def test_the_payload_for_an_agent():
    """Arrays of maps; the first span of each trace carries the decision, and all a host that is not the Agent's."""
    (body,) = agent_bodies(groups_of(request_of((1, 1), (1, 2), (2, 3), host__name="web-1"), this_host="here"))
    traces = msgspec.msgpack.decode(body.data)
    assert [[span["span_id"] for span in trace] for trace in traces] == [[1, 2], [3]]
    assert [["_sampling_priority_v1" in span["metrics"] for span in trace] for trace in traces] == [
        [True, False],
        [True],
    ]
    assert traces[0][0]["meta"]["_dd.p.dm"] == "-9"
    assert {span["meta"]["_dd.hostname"] for trace in traces for span in trace} == {"web-1"}
    assert "parent_id" not in traces[0][0]
    assert agent_headers(body.data) == {"X-Datadog-Trace-Count": "2"}
    (body,) = agent_bodies(groups_of(request_of((1, 1)), this_host="here"))
    assert "_dd.hostname" not in msgspec.msgpack.decode(body.data)[0][0]["meta"]


@pytest.mark.parametrize("count", [0, 15, 16, 65_535, 65_536])
def test_arrays_of_any_length(count):
    """MessagePack has three forms of them; the trace count is read from each."""
    data = array_of([b"\x01"] * count)
    assert msgspec.msgpack.decode(data) == [1] * count
    assert agent_headers(data) == {"X-Datadog-Trace-Count": str(count)}


SPANS = st.lists(
    st.tuples(st.integers(1, 4), st.integers(1, 2**63)), min_size=1, max_size=20, unique_by=lambda span: span[1]
)


@given(SPANS, st.integers(600, 3000))
def test_bodies_stay_within_the_limit_and_lose_nothing(spans, limit):
    """Even when a limit is smaller than one trace; only a single span may be larger than a limit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace_bodies, "MAX_INTAKE_BODY", limit)
        patch.setattr(trace_bodies, "MAX_AGENT_BODY", limit)
        bodies = list(intake_bodies(groups_of(request_of(*spans)), Sender(host_name="here")))
        for_agent = list(agent_bodies(groups_of(request_of(*spans))))
    assert sorted(span_id for body in bodies for span_id in spans_in(body)) == sorted(span_id for _, span_id in spans)
    for body in bodies:
        assert [spans[position][1] for position in body.units] == spans_in(body)
        assert len(body.data) <= limit or len(body.units) == 1
    assert sorted(position for body in for_agent for position in body.units) == list(range(len(spans)))
    for body in for_agent:
        found = [span["span_id"] for trace in msgspec.msgpack.decode(body.data) for span in trace]
        assert [spans[position][1] for position in body.units] == found
        assert len(body.data) <= limit or len(body.units) == 1


@given(SPANS, st.data())
def test_divided_bodies_are_the_whole(spans, data):
    """After a 413 a body is sent in two: no span is lost, none is in both, and nothing empty is sent."""
    request = request_of(*spans, service__name="a")
    request.MergeFrom(request_of((9, 2**63 + 1), service__name="b"))
    (body,) = intake_bodies(groups_of(request), Sender(host_name="here"))
    count = data.draw(st.integers(1, len(spans)))
    halves = [AgentPayload.FromString(half) for half in trace_bodies.divide_intake_body(body.data, count)]
    ids = [[s.spanID for t in half.tracerPayloads for c in t.chunks for s in c.spans] for half in halves]
    assert len(ids[0]) == count
    assert ids[0] + ids[1] == spans_in(body)
    assert all(chunk.spans for half in halves for tracer in half.tracerPayloads for chunk in tracer.chunks)
    assert all(tracer.chunks for half in halves for tracer in half.tracerPayloads)
    (body,) = agent_bodies(groups_of(request))
    first, rest = map(msgspec.msgpack.decode, trace_bodies.divide_agent_body(body.data, count))
    whole = [span["span_id"] for trace in msgspec.msgpack.decode(body.data) for span in trace]
    assert [span["span_id"] for trace in first + rest for span in trace] == whole
    assert sum(map(len, first)) == count


def test_structured_metadata_is_in_both_forms():
    """Bytes in MessagePack, bytes in protobuf."""
    request = request_of((1, 1))
    span = request.resource_spans[0].scope_spans[0].spans[0]
    span.attributes.add(key="datadog.meta_struct.appsec").value.bytes_value = b"\x80"
    (body,) = agent_bodies(groups_of(request))
    assert msgspec.msgpack.decode(body.data)[0][0]["meta_struct"] == {"appsec": b"\x80"}
    (body,) = intake_bodies(groups_of(request), Sender(host_name="here"))
    assert dict(decoded(body).tracerPayloads[0].chunks[0].spans[0].meta_struct) == {"appsec": b"\x80"}


def test_spans_of_datadogs_tracers_keep_their_marks():
    """What is top level was decided by the tracer."""
    request = traces_request()
    request.resource_spans[0].resource.attributes.extend(attributes(telemetry__sdk__name="datadog"))
    ((chunk,),) = (group.chunks.values() for group in groups_of(request))
    assert chunk.spans[0].metrics == {}
