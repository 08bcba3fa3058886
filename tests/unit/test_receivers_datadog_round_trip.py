"""What a tracer sends, through the receiver and the exporter: what an Agent would have passed on."""

import msgspec
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from support.datadog_tracer import HIGH, span, v04, v05, v07
from support.datadog_wire import AgentPayload
from support.otlp import readable

from exporters.datadog.resource import Defaults, Origins
from exporters.datadog.spans import SpanMapper
from exporters.datadog.trace_bodies import agent_bodies, intake_bodies
from exporters.datadog.traces import TraceMapper
from exporters.datadog.wire.datadog_pb2 import AgentPayload as Sender
from processors.allowlist import Allowlist
from sidecar import Batch, BatchContext, Signal
from sidecar.receivers.datadog.spans import HighIds, Tracer, convert
from sidecar.receivers.datadog.wire import decode
from sidecar.testing import Bench

EVENTS = '[{"time_unix_nano":1700000000000000000,"name":"event","attributes":{"n":1,"list":["a"]}}]'
LINKS = (
    '[{"trace_id":"0123456789abcdef0022334455667788","span_id":"0000000000000009","tracestate":"dd=s:1","flags":1,'
    '"attributes":{"why":"test"}}]'
)
SENT = [
    span(
        name="celery.run",
        resource="tasks.add",
        type="worker",
        error=1,
        meta={
            "_dd.p.tid": HIGH,
            "_dd.p.dm": "-4",
            "_dd.origin": "synthetics",
            "_dd.base_service": "base",
            "_dd.hostname": "web-1",
            "env": "prod",
            "version": "1.2",
            "language": "python",
            "runtime-id": "r",
            "error.message": "no",
            "error.type": "builtins.ValueError",
            "error.stack": "Traceback …",
            "span.kind": "consumer",
            "http.status_code": "503",
            "http.response.status_code": "not renamed",
            "analytics.event": "true",
            "events": EVENTS,
            "_dd.span_links": LINKS,
            "empty": "",
        },
        metrics={
            "_sampling_priority_v1": 2.0,
            "_dd.top_level": 1.0,
            "process_id": 12.0,
            "zero": 0.0,
            "share": 0.25,
            "sampling.priority": 1.0,
        },
    ),
    span(
        span_id=2, parent_id=1, type="", service="db", resource="select  1", meta={"gen_ai.system": "x", "env": "prod"}
    ),
    span(span_id=3, parent_id=1, type="web", meta={"env": "staging", "a.b": "c"}, metrics={"_dd.measured": 1.0}),
    span(span_id=4, parent_id=2, type="redis", service="db", error=1, meta={"db.namespace": "0"}),
]
# The upper half of the trace id is on each span, since each must join the trace by itself.
COME_OUT = [{**one, "meta": {**one["meta"], "_dd.p.tid": HIGH}} for one in SENT]
BODIES = {"v0.4": v04(SENT), "v0.5": v05(SENT), "v0.7": v07({"spans": SENT, "priority": 2})}


def groups_of(version, body):
    """What the exporter makes of what the receiver makes of a body."""
    tracer = Tracer("python", version="4.0", computed_top_level=True)
    data = convert(decode(version, body), tracer, HighIds()).data
    return TraceMapper(Origins(Defaults()), SpanMapper()).map(
        readable(ExportTraceServiceRequest.FromString(data)), local=True
    )


def by_id(spans):
    """Spans of one trace in the order in which they were sent: they come out service by service."""
    return sorted(spans, key=lambda one: one["span_id"])


@pytest.mark.parametrize("version", BODIES)
def test_an_agent_gets_what_the_tracer_has_sent(version):
    """One trace of all of its services, each field of each span equal, and nothing added."""
    (body,) = agent_bodies(groups_of(version, BODIES[version]))
    (trace,) = msgspec.msgpack.decode(body.data)
    blank = {"parent_id": 0, "error": 0, "type": ""}
    assert by_id([blank | one for one in trace]) == COME_OUT


@pytest.mark.parametrize("version", BODIES)
def test_the_intake_gets_what_the_tracer_has_sent(version):
    """In the intake's message: one chunk with the tracer's decision, and each field of each span equal."""
    (body,) = intake_bodies(groups_of(version, BODIES[version]), Sender(host_name="here"))
    (payload,) = AgentPayload.FromString(body.data).tracerPayloads
    assert (payload.languageName, payload.tracerVersion, payload.env) == ("python", "4.0", "prod")
    assert (payload.hostname, payload.appVersion, payload.runtimeID) == ("web-1", "1.2", "r")
    (chunk,) = payload.chunks
    assert (chunk.priority, chunk.origin, dict(chunk.tags)) == (2, "synthetics", {"_dd.p.dm": "-4"})
    got = [
        {
            "service": one.service,
            "name": one.name,
            "resource": one.resource,
            "trace_id": one.traceID,
            "span_id": one.spanID,
            "parent_id": one.parentID,
            "start": one.start,
            "duration": one.duration,
            "error": one.error,
            "meta": dict(one.meta),
            "metrics": dict(one.metrics),
            "type": one.type,
        }
        for one in chunk.spans
    ]
    assert by_id(got) == COME_OUT


def test_a_decision_holds_for_every_service_of_the_trace():
    """A tracer says it on the first span alone: what it has decided against is not kept in part."""
    sent = [span(metrics={"_sampling_priority_v1": -1.0}), span(span_id=2, parent_id=1, service="db")]
    ((chunk,),) = (group.chunks.values() for group in groups_of("v0.4", v04(sent)))
    assert (chunk.priority, len(chunk.spans)) == (-1, 2)


def test_no_decision_is_made_for_a_tracer():
    """An Agent makes it, as for the tracer's own request."""
    (body,) = agent_bodies(groups_of("v0.4", v04([span()])))
    assert msgspec.msgpack.decode(body.data)[0][0].get("metrics", {}) == {}


def test_what_v07_says_of_the_payload_is_on_the_first_span():
    """Since v0.4, which an Agent is sent, has no other place for it."""
    body = v07({"spans": [span(), span(span_id=2, parent_id=1)]}, env="prod", hostname="web-1")
    (body,) = agent_bodies(groups_of("v0.7", body))
    first, second = msgspec.msgpack.decode(body.data)[0]
    assert (first["meta"], second["meta"]) == ({"env": "prod", "_dd.hostname": "web-1"}, {})


def test_an_empty_resource_is_the_operation():
    """As an Agent has it; a service without a name is told from one that OpenTelemetry knows by nothing."""
    ((chunk,),) = (group.chunks.values() for group in groups_of("v0.4", v04([span(resource="", service="")])))
    assert (chunk.spans[0].resource, chunk.spans[0].service) == ("flask.request", "unnamed-service")


def test_the_allowlists_preset_keeps_what_makes_spans_useful():
    """Operation, type, kind and decision pass; a statement does not, and a route stands in for the resource."""
    web = {"http.method": "GET", "http.route": "/users/<id>", "http.url": "http://shop/users/7?q=secret"}
    sent = [
        span(resource="GET /users/7", meta={**web, "span.kind": "server"}, metrics={"_sampling_priority_v1": 2.0}),
        span(span_id=2, parent_id=1, name="postgres.query", service="db", type="sql", resource="select 'secret'"),
    ]
    data = convert(decode("v0.4", v04(sent)), Tracer("python"), HighIds()).data
    allowlist = Bench().make(Allowlist, "presets: [otel_semconv, datadog]")
    batch = allowlist.process(Batch(Signal.TRACES, data, context=BatchContext()))
    ((chunk,),) = (
        group.chunks.values()
        for group in TraceMapper(Origins(Defaults()), SpanMapper()).map(readable(batch.message), local=True)
    )
    assert [(one.name, one.resource, one.type) for one in chunk.spans] == [
        ("flask.request", "GET /users/<id>", "web"),
        ("postgres.query", "postgres.query", "sql"),
    ]
    assert chunk.priority == 2
    assert b"secret" not in batch.encode()
