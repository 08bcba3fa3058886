"""OTLP requests for tests, made with the official protobuf classes."""

from __future__ import annotations

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from sidecar import SCHEMAS, Batch, BatchContext, Signal
from sidecar.reading import read

NOW = 1_700_000_000_000_000_000
TRACE_ID = bytes.fromhex("0123456789abcdef1122334455667788")
SPAN_ID = bytes.fromhex("0000000000000099")


def attributes(**values: str | float | bool) -> list[KeyValue]:
    """Attributes from keyword arguments; `__` in a name stands for a dot."""
    return [KeyValue(key=key.replace("__", "."), value=any_value(value)) for key, value in values.items()]


def readable(request):
    """A request as exporters read it."""
    signal = next(signal for signal, schema in SCHEMAS.items() if isinstance(request, schema.request))
    return read(Batch(signal, message=request, context=BatchContext()))


def any_value(value: str | float | bool) -> AnyValue:
    """An AnyValue of the matching kind."""
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    return AnyValue(double_value=value) if isinstance(value, float) else AnyValue(string_value=value)


def logs_request(
    count: int = 1, service: str = "api", body: str = "hello", **record_attributes
) -> ExportLogsServiceRequest:
    """Log records with the bodies `body 0`, `body 1` and so on."""
    request = ExportLogsServiceRequest()
    resource = request.resource_logs.add()
    resource.resource.attributes.extend(attributes(service__name=service))
    scope = resource.scope_logs.add()
    for index in range(count):
        record = scope.log_records.add(time_unix_nano=NOW + index, severity_number=9, severity_text="INFO")
        record.body.string_value = f"{body} {index}"
        record.attributes.extend(attributes(**record_attributes))
    return request


def traces_request(
    count: int = 1, service: str = "api", name: str = "GET /", **span_attributes
) -> ExportTraceServiceRequest:
    """Spans of 5 ms in one trace."""
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    resource.resource.attributes.extend(attributes(service__name=service))
    scope = resource.scope_spans.add()
    for index in range(count):
        span = scope.spans.add(
            trace_id=TRACE_ID,
            span_id=(index + 1).to_bytes(8, "big"),
            name=name,
            start_time_unix_nano=NOW,
            end_time_unix_nano=NOW + 5_000_000,
        )
        span.attributes.extend(attributes(**span_attributes))
    return request


def metrics_request(count: int = 1, service: str = "api", name: str = "requests") -> ExportMetricsServiceRequest:
    """One monotonic cumulative sum with `count` points that differ in the attribute `n`."""
    request = ExportMetricsServiceRequest()
    resource = request.resource_metrics.add()
    resource.resource.attributes.extend(attributes(service__name=service))
    metric = resource.scope_metrics.add().metrics.add(name=name)
    metric.sum.is_monotonic = True
    metric.sum.aggregation_temporality = 2
    for index in range(count):
        point = metric.sum.data_points.add(start_time_unix_nano=NOW, time_unix_nano=NOW + 1, as_int=index + 1)
        point.attributes.extend(attributes(n=str(index)))
    return request


def logs(count: int = 1, context: BatchContext | None = None, **settings) -> Batch:
    """A batch of log records, as bytes, as a receiver makes it."""
    return _batch(Signal.LOGS, logs_request(count, **settings), context)


def traces(count: int = 1, context: BatchContext | None = None, **settings) -> Batch:
    """A batch of spans, as bytes."""
    return _batch(Signal.TRACES, traces_request(count, **settings), context)


def metrics(count: int = 1, context: BatchContext | None = None, **settings) -> Batch:
    """A batch of data points, as bytes."""
    return _batch(Signal.METRICS, metrics_request(count, **settings), context)


def _batch(signal: Signal, request, context: BatchContext | None) -> Batch:
    return Batch(signal, request.SerializeToString(), context=context or BatchContext())


def bodies(batch: Batch) -> list[str]:
    """The text bodies of the log records of a batch, in order."""
    return [record.body.string_value for scope in batch.scopes() for record in scope.log_records]
