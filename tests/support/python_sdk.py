"""The Python SDK as applications use it: its exporters by name, and telemetry of each kind."""

import contextlib

from opentelemetry.exporter.otlp.json.http._log_exporter import OTLPLogExporter as JsonLogs
from opentelemetry.exporter.otlp.json.http.metric_exporter import OTLPMetricExporter as JsonMetrics
from opentelemetry.exporter.otlp.json.http.trace_exporter import OTLPSpanExporter as JsonSpans
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter as GrpcLogs
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcMetrics
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpans
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter as HttpLogs
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpMetrics
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpSpans
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from sidecar import SCHEMAS, Signal

EXPORTERS = {
    "grpc": {Signal.TRACES: GrpcSpans, Signal.METRICS: GrpcMetrics, Signal.LOGS: GrpcLogs},
    "http/protobuf": {Signal.TRACES: HttpSpans, Signal.METRICS: HttpMetrics, Signal.LOGS: HttpLogs},
    "http/json": {Signal.TRACES: JsonSpans, Signal.METRICS: JsonMetrics, Signal.LOGS: JsonLogs},
}
RESOURCE = Resource.create({"service.name": "shop", "host.name": "büro-1"})


def exporter_to(server, protocol, signal, **options):
    """An exporter to a receiver of `support.otlp_receiver`."""
    if protocol == "grpc":
        options = {"endpoint": f"127.0.0.1:{server.grpc}", "insecure": True} | options
    else:
        options = {"endpoint": f"http://127.0.0.1:{server.http}{SCHEMAS[signal].http_path}"} | options
    return EXPORTERS[protocol][signal](**options)


@contextlib.contextmanager
def tracing(exporter):
    """A tracer whose spans have been sent when the block ends."""
    provider = TracerProvider(resource=RESOURCE)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    try:
        yield provider.get_tracer("scope", "1.2")
    finally:
        provider.shutdown()


@contextlib.contextmanager
def logging_to(exporter):
    """A logger whose records have been sent when the block ends."""
    provider = LoggerProvider(resource=RESOURCE)
    provider.add_log_record_processor(BatchLogRecordProcessor(exporter))
    try:
        yield provider.get_logger("scope", "1.2")
    finally:
        provider.shutdown()


@contextlib.contextmanager
def metering(exporter):
    """A meter whose measurements have been sent when the block ends."""
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=3_600_000)
    provider = MeterProvider([reader], resource=RESOURCE)
    try:
        yield provider.get_meter("scope", "1.2")
    finally:
        provider.shutdown()
