"""The sidecar's own metrics, sent at an interval by the OpenTelemetry SDK's own exporters.

The SDK's data classes are filled from our numbers: instruments of the SDK would count everything a second time.
Imported only when a document has a periodic reader.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExporter,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from sidecar.telemetry import metrics as own


class PeriodicExport:
    """Sends a snapshot of all metrics through an exporter of the SDK. Blocks: call it in a thread."""

    def __init__(self, metrics: own.Metrics, exporter: MetricExporter, resource: Mapping[str, str]) -> None:
        self._metrics = metrics
        self._exporter = exporter
        self._resource = Resource.create({"service.name": "otlp-sidecar", **resource})
        self._scope = InstrumentationScope("sidecar")
        self._started_at = time.time_ns()

    def snapshot(self) -> MetricsData:
        """Everything as it is now. Call it on the event loop, where the numbers are changed."""
        now = time.time_ns()
        metrics = [self._metric(family, now) for family in self._metrics.families()]
        scope = ScopeMetrics(scope=self._scope, metrics=metrics, schema_url="")
        return MetricsData([ResourceMetrics(resource=self._resource, scope_metrics=[scope], schema_url="")])

    def send(self, snapshot: MetricsData) -> None:
        """Send a snapshot. A failure is the SDK's to log; the next snapshot holds everything again."""
        self._exporter.export(snapshot)

    def close(self) -> None:
        """Let go of the connection."""
        self._exporter.shutdown()

    def _metric(self, family: own.Family, now: int) -> Metric:
        points = [self._point(dict(key), one, now) for key, one in family.series.items()]
        cumulative = AggregationTemporality.CUMULATIVE
        match family.kind:
            case "counter":
                data: Any = Sum(points, cumulative, is_monotonic=True)
            case "gauge":
                data = Gauge(points)
            case "histogram":
                data = Histogram(points, cumulative)
        return Metric(name=family.name, description=family.description, unit="", data=data)

    def _point(self, labels: dict[str, str], instrument: own.Instrument, now: int) -> Any:
        times: dict[str, Any] = {"start_time_unix_nano": self._started_at, "time_unix_nano": now}
        if isinstance(instrument, own.Histogram):
            return HistogramDataPoint(
                attributes=labels,
                count=sum(instrument.counts),
                sum=instrument.sum,
                bucket_counts=list(instrument.counts),
                explicit_bounds=list(instrument.bounds),
                min=float("nan"),
                max=float("nan"),
                **times,
            )
        value = instrument.value if isinstance(instrument, own.Counter) else instrument.read()
        return NumberDataPoint(attributes=labels, value=value, **times)
