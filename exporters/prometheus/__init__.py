"""Shows metrics, logs and traces to whoever scrapes."""

from exporters.prometheus.exporter import PrometheusExporter
from exporters.prometheus.settings import PrometheusSettings

__all__ = ["PrometheusExporter", "PrometheusSettings"]
