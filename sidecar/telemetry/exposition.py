"""The sidecar's own metrics as a page for Prometheus, rendered by prometheus_client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client import exposition
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, UnknownMetricFamily
from prometheus_client.registry import Collector, CollectorRegistry

from sidecar.telemetry.metrics import Counter, Family, Gauge, Histogram, Metrics


class Exposition(Collector):
    """Renders the page.

    `suffixes`: whether counters are called `…_total`. The Collector leaves it out in its default set-up, and adds it
    where a reader is written by hand without `without_type_suffix`. A name without it can only be exposed as untyped.
    """

    def __init__(self, metrics: Metrics, *, suffixes: bool, labels: dict[str, str]) -> None:
        self._metrics = metrics
        self._suffixes = suffixes
        self._labels = labels
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def page(self, accept: str) -> tuple[bytes, str]:
        """The page and its content type, in the best format that `accept` (the request's header) allows."""
        render, content_type = exposition.choose_encoder(accept)
        return render(self._registry), content_type

    def describe(self) -> Iterator[Any]:
        """Nothing: names come and go with components."""
        yield from ()

    def collect(self) -> Iterator[Any]:
        """One family per name."""
        for family in self._metrics.families():
            yield self._family(family)

    def _family(self, family: Family) -> Any:
        names = sorted({name for key in family.series for name, _ in key})
        kinds = {"gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily, "counter": UnknownMetricFamily}
        if self._suffixes:
            kinds["counter"] = CounterMetricFamily
        made = kinds[family.kind](family.name, family.description, labels=[*names, *self._labels])
        for key, instrument in list(family.series.items()):
            held = dict(key)
            labels = [held.get(name, "") for name in names] + list(self._labels.values())
            match instrument:
                case Counter():
                    made.add_metric(labels, instrument.value)
                case Gauge():
                    made.add_metric(labels, instrument.read())
                case Histogram():
                    made.add_metric(labels, buckets=_buckets(instrument), sum_value=instrument.sum)
        return made


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    total = 0
    buckets: list[tuple[str, float]] = []
    for bound, count in zip([*map(str, histogram.bounds), "+Inf"], histogram.counts, strict=True):
        total += count
        buckets.append((bound, total))
    return buckets
