"""What a tracer sends, through the receiver and the exporter: what an Agent would have passed on."""

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from support.datadog_tracer import HIGH, LOW, span, v04, v05

from exporters.datadog.resource import Defaults, Origins
from exporters.datadog.spans import SpanMapper
from exporters.datadog.traces import TraceMapper
from sidecar.receivers.datadog.spans import HighIds, Tracer, convert
from sidecar.receivers.datadog.wire import decode

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
            "env": "prod",
            "version": "1.2",
            "language": "python",
            "runtime-id": "r",
            "error.message": "no",
            "error.type": "builtins.ValueError",
            "error.stack": "Traceback …",
            "span.kind": "consumer",
            "http.status_code": "503",
            "empty": "",
        },
        metrics={"_sampling_priority_v1": 2.0, "_dd.top_level": 1.0, "process_id": 12.0, "zero": 0.0, "share": 0.25},
    ),
    span(span_id=2, parent_id=1, type="sql", resource="select  1", meta={"span.kind": "client", "env": "prod"}),
    span(span_id=3, parent_id=1, type="redis", meta={"env": "staging", "a.b": "c"}, metrics={"_dd.measured": 1.0}),
]


@pytest.mark.parametrize("version", ["v0.4", "v0.5"])
def test_spans_come_out_as_they_came_in(version):
    """Fields and numbers are the same; texts may be joined by others, and none is lost."""
    payload = decode(version, v05(SENT) if version == "v0.5" else v04(SENT))
    data = convert(payload, Tracer("python", computed_top_level=True), HighIds()).data
    groups = TraceMapper(Origins(Defaults()), SpanMapper()).map(ExportTraceServiceRequest.FromString(data), local=True)
    spans = groups[0].chunks[LOW].spans
    assert len(groups) == 1
    for sent, got in zip(SENT, spans, strict=True):
        fields = [name for name in sent if name != "meta"]
        assert {name: getattr(got, name) for name in fields} == {name: sent[name] for name in fields}
        assert sent["meta"].items() <= got.meta.items()
        assert (got.meta["_dd.p.tid"], got.meta["otel.trace_id"]) == (HIGH, f"{HIGH}{LOW:016x}")
