"""The Prometheus exporter: scrapes against prometheus_client's in one run, the cost of updates, memory per series."""

from __future__ import annotations

import asyncio
import time
import tracemalloc
from collections.abc import Callable, Iterator

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client import CollectorRegistry, exposition
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.openmetrics import exposition as openmetrics_exposition
from prometheus_client.registry import Collector

from exporters.prometheus import PrometheusExporter
from exporters.prometheus.negotiate import negotiate
from sidecar import Batch, BatchContext, Signal
from sidecar.testing import Bench

FORMATS = {
    "text": "text/plain",
    "openmetrics": "application/openmetrics-text; version=1.0.0",
    "protobuf": "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited",
}
LABELS = ("method", "route", "status", "region", "pod", "series")
BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
POINTS_PER_REQUEST = 1000


def main() -> None:
    """Print the figures."""
    for kind, count in (("gauge", 1_000), ("gauge", 10_000), ("gauge", 100_000), ("histogram", 1_000)):
        compare(kind, count)
    compare("histogram", 10_000)
    # 100,000 histograms are 320 MB of text, for which prometheus_client needs half a minute: only ours.
    compare("histogram", 100_000, client=False)
    for kind in ("gauge", "histogram"):
        memory(kind, 10_000)
    derived(Signal.LOGS, log_requests())
    derived(Signal.TRACES, span_requests())


def compare(kind: str, count: int, *, client: bool = True) -> None:
    """One line: update and scrape CPU times of the sidecar, and how many times longer prometheus_client takes."""
    exporter = Bench().make(PrometheusExporter, "max_series: 200000")
    requests = [one.SerializeToString() for one in made_requests(kind, count)]
    first = cpu(lambda: feed(exporter, requests))
    again = cpu(lambda: feed(exporter, requests))
    edited = [ExportMetricsServiceRequest.FromString(one) for one in requests[:10]]
    after_edit = cpu(lambda: feed(exporter, [one.SerializeToString() for one in edited])) / (
        len(edited) * POINTS_PER_REQUEST
    )
    print(
        f"\n{count:>7} {kind}s: update {again / count * 1e6:.2f} µs per point "
        f"({after_edit * 1e6:.2f} where a processor has edited), first seen {first / count * 1e6:.1f} µs"
    )
    theirs = client_times(kind, count) if client else {}
    for name, accept in FORMATS.items():
        seconds, size, longest = scrape(exporter, accept)
        ratio = (
            f"  prometheus_client {theirs[name] * 1e3:8.1f} ms: {theirs[name] / seconds:.1f} times"
            if name in theirs
            else ""
        )
        print(f"  {name:<12}{seconds * 1e3:8.1f} ms {size / 1e6:7.1f} MB, longest step {longest * 1e3:.1f} ms{ratio}")


def made_requests(kind: str, count: int) -> Iterator[ExportMetricsServiceRequest]:
    """Export requests with one point for each of `count` series."""
    for start in range(0, count, POINTS_PER_REQUEST):
        request = ExportMetricsServiceRequest()
        resource = request.resource_metrics.add()
        metric = resource.scope_metrics.add().metrics.add(name="http.server.thing", unit="By", description="A thing")
        if kind == "histogram":
            metric.histogram.aggregation_temporality = 2
        for number in range(start, start + POINTS_PER_REQUEST):
            if kind == "gauge":
                point = metric.gauge.data_points.add(time_unix_nano=1, as_double=spread(number) * 1000)
            else:
                counts = histogram_counts(number)
                point = metric.histogram.data_points.add(
                    time_unix_nano=1,
                    explicit_bounds=BOUNDS,
                    bucket_counts=counts,
                    count=sum(counts),
                    sum=spread(number),
                )
            for key, value in zip(LABELS, label_values(number), strict=True):
                point.attributes.add(key=key).value.string_value = value
        yield request


def spread(number: int) -> float:
    """A number between 0 and 1 with as many digits as measured ones have."""
    return number * 0.6180339887498949 % 1


def label_values(number: int) -> list[str]:
    """Values of the six labels."""
    return ["GET", f"/api/v1/resource/{number % 100}", "200", f"region-{number % 7}", f"pod-{number % 50}", str(number)]


def histogram_counts(number: int) -> list[int]:
    """Counts of the twelve buckets."""
    return [(number * bucket) % 1000 for bucket in range(len(BOUNDS) + 1)]


def feed(exporter: PrometheusExporter, requests: list[bytes], signal: Signal = Signal.METRICS) -> None:
    """Export the requests."""

    async def export() -> None:
        for one in requests:
            await exporter.export(Batch(signal, one, context=BatchContext()))

    asyncio.run(export())


def scrape(exporter: PrometheusExporter, accept: str) -> tuple[float, int, float]:
    """CPU seconds of a whole page (the best of three), its size, and the longest step between two chunks."""
    best, size, longest = float("inf"), 0, 0.0
    for _ in range(3):
        started = before = time.process_time()
        size, longest = 0, 0.0
        for chunk in exporter.page(negotiate(accept)):
            now = time.process_time()
            longest = max(longest, now - before)
            size += len(chunk)
            before = time.process_time()
        best = min(best, time.process_time() - started)
    return best, size, longest


class Client(Collector):
    """The same series as prometheus_client sees them."""

    def __init__(self, kind: str, count: int) -> None:
        self.kind = kind
        self.rows = [(label_values(number), float(number) / 7, histogram_counts(number)) for number in range(count)]

    def collect(self) -> Iterator[GaugeMetricFamily | HistogramMetricFamily]:
        """One family."""
        if self.kind == "gauge":
            family = GaugeMetricFamily("http_server_thing_bytes", "A thing", labels=LABELS)
            for labels, value, _ in self.rows:
                family.add_metric(labels, value)
        else:
            family = HistogramMetricFamily("http_server_thing_bytes", "A thing", labels=LABELS)
            for labels, value, counts in self.rows:
                total, buckets = 0, []
                for bound, number in zip((*map(str, BOUNDS), "+Inf"), counts, strict=True):
                    total += number
                    buckets.append((bound, total))
                family.add_metric(labels, buckets, value)
        yield family


def client_times(kind: str, count: int) -> dict[str, float]:
    """CPU seconds of prometheus_client's pages."""
    registry = CollectorRegistry()
    registry.register(Client(kind, count))
    return {
        "text": cpu(lambda: exposition.generate_latest(registry)),
        "openmetrics": cpu(lambda: openmetrics_exposition.generate_latest(registry)),
    }


def cpu(work: Callable[[], object]) -> float:
    """CPU seconds of one call."""
    started = time.process_time()
    work()
    return time.process_time() - started


def memory(kind: str, count: int) -> None:
    """Bytes that each series keeps."""
    requests = [one.SerializeToString() for one in made_requests(kind, count)]
    exporter = Bench().make(PrometheusExporter, "")
    tracemalloc.start()
    feed(exporter, requests)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    print(f"\nmemory per {kind} series with {len(LABELS)} labels: {kept / count:.0f} bytes")


def derived(signal: Signal, requests: list[bytes]) -> None:
    """CPU time per log record or span that becomes a metric."""
    exporter = Bench().make(PrometheusExporter, "")

    def take() -> None:
        feed(exporter, requests, signal)

    take()
    seconds = cpu(take) / (len(requests) * POINTS_PER_REQUEST)
    print(f"\nderived from {signal.value}: {seconds * 1e6:.2f} µs per item, decoding included")


def log_requests() -> list[bytes]:
    """Ten requests of log records with six attributes and a trace."""
    request = ExportLogsServiceRequest()
    resource = request.resource_logs.add()
    resource.resource.attributes.add(key="service.name").value.string_value = "api"
    scope = resource.scope_logs.add()
    for number in range(POINTS_PER_REQUEST):
        record = scope.log_records.add(
            severity_number=9 + number % 9, time_unix_nano=number, trace_id=b"1" * 16, span_id=b"2" * 8
        )
        for key, value in zip(LABELS, label_values(number), strict=True):
            record.attributes.add(key=key).value.string_value = value
    return [request.SerializeToString()] * 10


def span_requests() -> list[bytes]:
    """Ten requests of spans with six attributes."""
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    resource.resource.attributes.add(key="service.name").value.string_value = "api"
    scope = resource.scope_spans.add()
    for number in range(POINTS_PER_REQUEST):
        span = scope.spans.add(
            name=f"GET /{number % 50}", kind=2, trace_id=b"1" * 16, span_id=b"2" * 8, end_time_unix_nano=number * 10**6
        )
        for key, value in zip(LABELS, label_values(number), strict=True):
            span.attributes.add(key=key).value.string_value = value
    return [request.SerializeToString()] * 10


if __name__ == "__main__":
    main()
