"""A Prometheus exporter that is fed and read, without a socket."""

from __future__ import annotations

from typing import Any

from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from support.exposition import Page, check, check_protobuf
from support.otlp_metrics import batch

from exporters.prometheus import PrometheusExporter
from exporters.prometheus.negotiate import negotiate
from sidecar import Signal
from sidecar.testing import Bench

TEXT = "text/plain"
OPENMETRICS = "application/openmetrics-text; version=1.0.0"
PROTOBUF = "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"


class Subject:
    """An exporter made from YAML."""

    def __init__(self, settings: str = "") -> None:
        self.bench = Bench()
        self.exporter = self.bench.make(PrometheusExporter, settings, "prometheus")

    async def feed(self, *metrics: Metric, **settings: Any) -> None:
        """Export metrics; settings as of `otlp_metrics.request`."""
        await self.exporter.export(batch(*metrics, **settings))

    def page(self, accept: str = TEXT) -> bytes:
        """The page that such a scraper gets."""
        return b"".join(self.exporter.page(negotiate(accept)))

    def read(self, accept: str = TEXT) -> Page:
        """The page, judged and read."""
        page = self.page(accept)
        return check_protobuf(page) if accept.startswith(PROTOBUF) else check(page)

    def dropped(self, reason: str, signal: Signal = Signal.METRICS) -> int:
        """How many items were dropped for that reason."""
        return self.bench.dropped[signal, reason]
