"""The encoding of the Datadog exporter: processor time per item, from OTLP bytes to compressed requests.

1,000 items of 8 attributes. The whole process is in `matrix`.
"""

from __future__ import annotations

import time

from bench._requests import prebuilt
from exporters.datadog import DatadogExporter
from exporters.datadog.settings import DatadogSettings
from sidecar import SCHEMAS, Batch, BatchContext, Signal
from sidecar.testing import Bench, settings_from_yaml

ROUNDS = 15
RECORDS = 1000
ACCOUNT = "api: {key: none}\n"


async def rows():
    logs = prebuilt(Signal.LOGS, RECORDS)
    base = best(recode, logs)
    yield row("OTLP logs, decoded and encoded again", base, base)
    agent = "traces: {agent_url: 'http://localhost:8126'}"
    for case, signal, data, settings in (
        ("logs to JSON, gzip", Signal.LOGS, logs, ""),
        ("logs to JSON, zstd", Signal.LOGS, logs, "logs: {compression: zstd}"),
        ("spans to MessagePack for an Agent", Signal.TRACES, prebuilt(Signal.TRACES, RECORDS), agent),
        ("spans to protobuf, gzip, with statistics", Signal.TRACES, prebuilt(Signal.TRACES, RECORDS), ""),
        ("gauges to series, gzip", Signal.METRICS, prebuilt(Signal.METRICS, RECORDS), ""),
        ("histograms to sketches, gzip", Signal.METRICS, histograms(), ""),
    ):
        yield row(case, best(encoder(signal, settings), data), base)


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


def histograms() -> bytes:
    """Points with the attributes of the log records, in 10 metrics."""
    logs = SCHEMAS[Signal.LOGS].request.FromString(prebuilt(Signal.LOGS, RECORDS)).resource_logs[0]
    request = SCHEMAS[Signal.METRICS].request()
    scope = request.resource_metrics.add(resource=logs.resource).scope_metrics.add()
    for number, record in enumerate(logs.scope_logs[0].log_records):
        if number % 100 == 0:
            histogram = scope.metrics.add(name=f"app.metric.{number // 100}").histogram
            histogram.aggregation_temporality = 1
        point = histogram.data_points.add(time_unix_nano=record.time_unix_nano, attributes=record.attributes)
        point.explicit_bounds.extend([0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10])
        point.bucket_counts.extend([number % 7, 3, 5, 8, 13, 8, 5, 3, 2, 1, 0, 0])
        point.count, point.sum = sum(point.bucket_counts), 5.0
    return request.SerializeToString()
