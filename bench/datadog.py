"""The Datadog exporter: processor time per item, encoding alone and in the whole process beside OTLP pass-through.

Encoding: from OTLP bytes to compressed requests, 1,000 items of 8 attributes. The whole: the same log records over gRPC
in, Datadog's JSON in gzip over HTTP out; OTLP over gRPC out is measured in the same run.
"""

from __future__ import annotations

import tempfile
import time

from support.datadog_intake import DatadogIntake
from support.processes import SidecarProcess, find_free_port

from bench.pipeline import RECORDS, feed, microseconds_per_record, prebuilt_logs
from bench.pipeline import sidecar as pass_through
from exporters.datadog import DatadogExporter
from exporters.datadog.settings import DatadogSettings
from sidecar import SCHEMAS, Batch, BatchContext, Signal
from sidecar.testing import Bench, settings_from_yaml

ROUNDS = 15
REQUESTS = 200
ACCOUNT = "api: {key: none}\n"

DOCUMENT = """
receivers:
  otlp: {{protocols: {{grpc: {{endpoint: "127.0.0.1:{port}"}}}}}}
exporters:
  datadog: {{api: {{key: none}}, logs: {{endpoint: "{url}"}}}}
service:
  telemetry: {{metrics: {{level: none}}}}
  pipelines:
    logs: {{receivers: [otlp], exporters: [datadog]}}
"""


async def rows():
    logs = current_logs()
    base = best(recode, logs)
    yield row("OTLP logs, decoded and encoded again", base, base)
    agent = "traces: {agent_url: 'http://localhost:8126'}"
    for case, signal, data, settings in (
        ("logs to JSON, gzip", Signal.LOGS, logs, ""),
        ("logs to JSON, zstd", Signal.LOGS, logs, "logs: {compression: zstd}"),
        ("spans to MessagePack for an Agent", Signal.TRACES, spans(), agent),
        ("spans to protobuf, gzip, with statistics", Signal.TRACES, spans(), ""),
        ("gauges to series, gzip", Signal.METRICS, gauges(), ""),
        ("histograms to sketches, gzip", Signal.METRICS, histograms(), ""),
    ):
        yield row(case, best(encoder(signal, settings), data), base)
    through = await microseconds_per_record("otlp", pass_through("otlp", "none", ""))
    yield row("whole process: OTLP logs in, OTLP out", through, through)
    yield row("whole process: OTLP logs in, Datadog JSON out, gzip", await whole_process(), through)


def row(case: str, microseconds: float, base: float) -> dict:
    return {"case": case, "µs per item": microseconds, "ratio": microseconds / base}


def best(run, data: bytes) -> float:
    """The least processor time of several rounds, in microseconds per item."""
    times = []
    for _ in range(ROUNDS):
        started = time.process_time()
        run(data)
        times.append(time.process_time() - started)
    return min(times) / RECORDS * 1e6


def recode(data: bytes) -> bytes:
    return SCHEMAS[Signal.LOGS].request.FromString(data).SerializeToString()


def encoder(signal: Signal, settings: str):
    """What makes compressed requests of OTLP bytes."""
    checked = settings_from_yaml(ACCOUNT + settings, DatadogSettings)
    exporter = DatadogExporter(checked, Bench(clock=WallClock()).context())
    requests = exporter.requests_of(signal)

    def run(data: bytes) -> None:
        made = list(requests(Batch(signal, data, context=BatchContext())))
        assert made  # noqa: S101 (an encoder that drops everything would be fast)

    return run


class WallClock:
    """The time."""

    time_ns = staticmethod(time.time_ns)
    monotonic = staticmethod(time.monotonic)


async def whole_process() -> float:
    data = current_logs()
    with tempfile.TemporaryDirectory() as folder:
        async with Intake() as intake:
            port = find_free_port()
            async with SidecarProcess(DOCUMENT.format(port=port, url=intake.url), folder) as process:
                await feed(port, data, 10)
                await intake.wait_for_logs(10 * RECORDS)
                before = process.cpu_seconds()
                await feed(port, data, REQUESTS)
                await intake.wait_for_logs((10 + REQUESTS) * RECORDS)
                return (process.cpu_seconds() - before) / (REQUESTS * RECORDS) * 1e6


class Intake(DatadogIntake):
    """Counts logs and keeps none."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    async def wait_for_logs(self, count: int) -> None:
        """Return when that many logs have arrived."""

        def arrived() -> bool:
            self.count += len(self.logs)
            self.logs.clear()
            self.requests.clear()
            return self.count >= count

        await self.wait_for(arrived, within=120)


def current_logs() -> bytes:
    """The log records of the other measurements, from now: old ones would be marked as late."""
    request = SCHEMAS[Signal.LOGS].request.FromString(prebuilt_logs())
    now = time.time_ns()
    for number, record in enumerate(request.resource_logs[0].scope_logs[0].log_records):
        record.time_unix_nano = now + number * 1_000_003
    return request.SerializeToString()


def spans() -> bytes:
    """Spans with the attributes of those log records, ten to a trace."""
    logs = SCHEMAS[Signal.LOGS].request.FromString(current_logs()).resource_logs[0]
    request = SCHEMAS[Signal.TRACES].request()
    resource = request.resource_spans.add(resource=logs.resource)
    scope = resource.scope_spans.add()
    for number, record in enumerate(logs.scope_logs[0].log_records):
        scope.spans.add(
            trace_id=record.trace_id,
            span_id=record.span_id,
            parent_span_id=record.span_id if number % 10 else b"",
            name="GET",
            kind=2 + number % 2,
            start_time_unix_nano=record.time_unix_nano - 5_000_000,
            end_time_unix_nano=record.time_unix_nano,
            attributes=record.attributes,
        )
    return request.SerializeToString()


def gauges() -> bytes:
    return metrics(lambda metric: metric.gauge)


def histograms() -> bytes:
    return metrics(lambda metric: metric.histogram)


def metrics(kind) -> bytes:
    """Points with the attributes of those log records, in 10 metrics."""
    logs = SCHEMAS[Signal.LOGS].request.FromString(current_logs()).resource_logs[0]
    request = SCHEMAS[Signal.METRICS].request()
    scope = request.resource_metrics.add(resource=logs.resource).scope_metrics.add()
    for number, record in enumerate(logs.scope_logs[0].log_records):
        if number % 100 == 0:
            data = kind(scope.metrics.add(name=f"app.metric.{number // 100}"))
        point = data.data_points.add(time_unix_nano=record.time_unix_nano, attributes=record.attributes)
        if hasattr(point, "as_double"):
            point.as_double = number * 0.37 + 1
        else:
            data.aggregation_temporality = 1
            point.explicit_bounds.extend([0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10])
            point.bucket_counts.extend([number % 7, 3, 5, 8, 13, 8, 5, 3, 2, 1, 0, 0])
            point.count, point.sum = sum(point.bucket_counts), 5.0
    return request.SerializeToString()
