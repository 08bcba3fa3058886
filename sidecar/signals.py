"""The three signals and, for each, everything that differs between them in OTLP: one table, no branches elsewhere."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final, TypeAlias

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

ExportRequest: TypeAlias = ExportTraceServiceRequest | ExportMetricsServiceRequest | ExportLogsServiceRequest
ExportResponse: TypeAlias = ExportTraceServiceResponse | ExportMetricsServiceResponse | ExportLogsServiceResponse


class Signal(enum.Enum):
    """What a pipeline carries. The value is the word in the document."""

    TRACES = "traces"
    METRICS = "metrics"
    LOGS = "logs"

    # Enum's own hash is written in Python; signals are dictionary keys on the path of every request.
    __hash__ = object.__hash__


@dataclass(frozen=True, slots=True)
class Schema:
    """The names and classes of one signal in OTLP.

    Attributes:
        items: what is counted, as the Collector's metrics call it: `spans`, `metric_points`, `log_records`.
        resources, scopes, records: the repeated fields from the request down to its items
            (a metric holds its points one level further down).
        rejected: the field of a partial success.
        http_path, grpc_service: where an OTLP client sends it (OTLP specification, "OTLP/HTTP Request").
    """

    signal: Signal
    request: type[ExportRequest]
    response: type[ExportResponse]
    items: str
    resources: str
    scopes: str
    records: str
    rejected: str
    http_path: str
    grpc_service: str


SCHEMAS: Final[dict[Signal, Schema]] = {
    Signal.TRACES: Schema(
        signal=Signal.TRACES,
        request=ExportTraceServiceRequest,
        response=ExportTraceServiceResponse,
        items="spans",
        resources="resource_spans",
        scopes="scope_spans",
        records="spans",
        rejected="rejected_spans",
        http_path="/v1/traces",
        grpc_service="opentelemetry.proto.collector.trace.v1.TraceService",
    ),
    Signal.METRICS: Schema(
        signal=Signal.METRICS,
        request=ExportMetricsServiceRequest,
        response=ExportMetricsServiceResponse,
        items="metric_points",
        resources="resource_metrics",
        scopes="scope_metrics",
        records="metrics",
        rejected="rejected_data_points",
        http_path="/v1/metrics",
        grpc_service="opentelemetry.proto.collector.metrics.v1.MetricsService",
    ),
    Signal.LOGS: Schema(
        signal=Signal.LOGS,
        request=ExportLogsServiceRequest,
        response=ExportLogsServiceResponse,
        items="log_records",
        resources="resource_logs",
        scopes="scope_logs",
        records="log_records",
        rejected="rejected_log_records",
        http_path="/v1/logs",
        grpc_service="opentelemetry.proto.collector.logs.v1.LogsService",
    ),
}
