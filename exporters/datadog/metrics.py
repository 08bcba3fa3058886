"""OTLP metrics in Datadog's terms: counts of what was added, gauges, and distributions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final, Literal, TypeAlias

from exporters.datadog.deltas import Deltas, OutOfOrderError, subtract_numbers
from exporters.datadog.histograms import Explicit, Exponential, subtract_explicit, subtract_exponential
from exporters.datadog.points import ClientStats, Key, Points, SecondTotals
from exporters.datadog.resource import Origins, tag
from exporters.datadog.settings import MetricsSettings
from exporters.datadog.sketches import Sketch
from exporters.datadog.values import text_of
from sidecar.events.datadog_keys import CLIENT_STATS, DOGSTATSD
from sidecar.reading import Value, read_scope

# The intake drops what is older or further ahead, and answers 202.
MAX_AGE: Final = 3600
MAX_AHEAD: Final = 600

Reason: TypeAlias = Literal["not_a_number", "no_value", "too_old", "in_future", "out_of_order", "malformed"]

_NO_RECORDED_VALUE: Final = 1  # DataPointFlags
_DELTA, _CUMULATIVE = 1, 2  # AggregationTemporality
# The units of OpenTelemetry (UCUM) that Datadog has a word for.
_UNITS: Final = {
    "By": "byte", "KiBy": "kibibyte", "MiBy": "mebibyte", "GiBy": "gibibyte", "bit": "bit",
    "ns": "nanosecond", "us": "microsecond", "ms": "millisecond", "s": "second", "min": "minute", "h": "hour",
    "d": "day", "%": "percent", "Hz": "hertz", "Cel": "degree celsius",
}  # fmt: skip
# Metrics of hosts and processes have these names at Datadog already, with other meanings.
_TAKEN: Final = ("system.", "process.")
_NO_DATA: Final = SimpleNamespace(data_points=())


@dataclass(slots=True)
class _Target:
    """Where one data point goes: the series that it belongs to, its moment, and the position of its item."""

    points: Points
    metric: str
    unit: str
    host: str
    tags: tuple[str, ...]
    start: int
    at: int
    items: list[int]

    def count(self, number: float, suffix: str = "", *tags: str) -> None:
        """Count what was added."""
        self.points.count(self._key(suffix, tags), number, self.unit, self._claim())

    def gauge(self, number: float, suffix: str = "", *tags: str) -> None:
        """Set a gauge."""
        self.points.gauge(self._key(suffix, tags), number, self.unit, self._claim())

    def distribute(self, sketch: Sketch) -> None:
        """Add to a distribution."""
        self.points.distribute(self._key("", ()), sketch, self._claim())

    def series(self, part: str = "") -> tuple[str, str, tuple[str, ...], str]:
        """The series, whatever the moment."""
        return self.metric, self.host, self.tags, part

    def _key(self, suffix: str, tags: tuple[str, ...]) -> Key:
        return Key(self.metric + suffix, self.host, (*self.tags, *tags), self.at // 10**9)

    def _claim(self) -> list[int]:
        """The item goes with the first part of what its point becomes, so that it is settled once."""
        items, self.items = self.items, []
        return items


class MetricMapper:
    """Maps requests. One per exporter: it remembers cumulative series, so that each request must be mapped once only.

    Args:
        origins: what is known of resources.
        settings: what becomes of each kind.
        started_ns: since when the exporter is there, in Unix nanoseconds.
        on_left_out: told why, and how many points.
    """

    def __init__(
        self,
        origins: Origins,
        settings: MetricsSettings,
        started_ns: int,
        on_left_out: Callable[[Reason, int], None] = lambda _reason, _points: None,
    ) -> None:
        self._origins = origins
        self._settings = settings
        self._on_left_out = on_left_out
        remember = (settings.delta_ttl, settings.sums.initial_cumulative_monotonic_value, started_ns)
        self._numbers = Deltas[float](subtract_numbers, *remember)
        self._explicit = Deltas[Explicit](subtract_explicit, *remember)
        self._exponential = Deltas[Exponential](subtract_exponential, *remember)
        self._totals = SecondTotals()
        self._now = 0.0
        self._now_ns = 0

    def map(self, request: Any, *, local: bool, now_ns: int, now: float) -> Points:
        """What an ExportMetricsServiceRequest becomes.

        Args:
            request: as `read` gives it.
            local: whether it was sent from this host.
            now_ns: Unix time in nanoseconds.
            now: monotonic seconds.
        """
        self._now_ns, self._now = now_ns, now
        points = Points()
        left_out: Counter[Reason] = Counter()
        position = 0
        for resource_metrics in request.resource_metrics:
            origin = self._origins.of(resource_metrics.resource, local=local)
            for scope_metrics in resource_metrics.scope_metrics:
                scope = read_scope(scope_metrics.scope)
                if stats := _client_stats(scope):
                    count = sum(len(_data_of(metric)[1].data_points) for metric in scope_metrics.metrics)
                    points.client_stats.append(ClientStats(stats, origin, list(range(position, position + count))))
                    position += count
                    continue
                tags = (*origin.tags, *self._scope_tags(scope))
                tags_of = _dogstatsd_tags if scope.name == DOGSTATSD else _tags
                for metric in scope_metrics.metrics:
                    kind, data = _data_of(metric)
                    name = _name(metric.name, scope.name)
                    unit = _UNITS.get(metric.unit, "")
                    for point in data.data_points:
                        all_tags = tuple(sorted({*tags, *tags_of(point.attributes)}))
                        at = point.time_unix_nano or now_ns
                        start = point.start_time_unix_nano
                        target = _Target(points, name, unit, origin.hostname, all_tags, start, at, [position])
                        reason = self._map_point(target, kind, data, point)
                        if reason is not None:
                            left_out[reason] += 1
                        position += 1
        self._totals.add(points.counts, now)
        for reason, number in left_out.items():
            self._on_left_out(reason, number)
        return points

    def _scope_tags(self, scope: Any) -> tuple[str, ...]:
        if not self._settings.instrumentation_scope_metadata_as_tags:
            return ()
        names = {"instrumentation_scope": scope.name, "instrumentation_scope_version": scope.version}
        return tuple(tag(name, value) for name, value in names.items() if value)

    def _map_point(self, target: _Target, kind: str, data: Any, point: Any) -> Reason | None:
        """Put a point where it belongs, or say why not."""
        if point.flags & _NO_RECORDED_VALUE:
            return "no_value"
        age = (self._now_ns - target.at) / 1e9
        if not -MAX_AHEAD <= age <= MAX_AGE:
            return "too_old" if age > 0 else "in_future"
        try:
            return _KINDS[kind](self, target, data, point)
        except OutOfOrderError:
            return "out_of_order"

    def _gauge(self, target: _Target, _data: Any, point: Any) -> Reason | None:
        number = _number(point)
        if not math.isfinite(number):
            return "not_a_number"
        target.gauge(number)
        return None

    def _sum(self, target: _Target, data: Any, point: Any) -> Reason | None:
        number = _number(point)
        if not math.isfinite(number):
            return "not_a_number"
        if data.aggregation_temporality == _DELTA:
            target.count(number)
        elif data.aggregation_temporality != _CUMULATIVE:
            return "malformed"
        elif not data.is_monotonic or self._settings.sums.cumulative_monotonic_mode == "raw_value":
            target.gauge(number)
        else:
            self._count_growth(target, number)
        return None

    def _count_growth(self, target: _Target, number: float, suffix: str = "") -> None:
        added = self._numbers.take(target.series(suffix), target.start, target.at, number, self._now)
        if added is not None:
            target.count(added, suffix)

    def _histogram(self, target: _Target, data: Any, point: Any) -> Reason | None:
        value = Explicit.of(point)
        if value is None or data.aggregation_temporality not in {_DELTA, _CUMULATIVE}:
            return "malformed"
        if data.aggregation_temporality == _CUMULATIVE:
            added = self._explicit.take(target.series(), target.start, target.at, value, self._now)
            if added is None:
                return None
            value = added
        if not value.count:
            return None
        mode = self._settings.histograms.mode
        if mode == "distributions":
            target.distribute(value.sketch())
        elif mode == "counters":
            for lower, upper, count in value.buckets():
                target.count(count, ".bucket", f"lower_bound:{_bound(lower)}", f"upper_bound:{_bound(upper)}")
        self._aggregate(target, value)
        return None

    def _exponential_histogram(self, target: _Target, data: Any, point: Any) -> Reason | None:
        value = Exponential.of(point)
        if value is None or data.aggregation_temporality not in {_DELTA, _CUMULATIVE}:
            return "malformed"
        if data.aggregation_temporality == _CUMULATIVE:
            added = self._exponential.take(target.series(), target.start, target.at, value, self._now)
            if added is None:
                return None
            value = added
        if not value.count:
            return None
        if self._settings.histograms.mode != "nobuckets":
            target.distribute(value.sketch())
        self._aggregate(target, value)
        return None

    def _aggregate(self, target: _Target, value: Explicit | Exponential) -> None:
        if not self._settings.histograms.send_aggregation_metrics:
            return
        target.count(value.count, ".count")
        target.count(value.total, ".sum")
        if math.isfinite(value.minimum):
            target.gauge(value.minimum, ".min")
        if math.isfinite(value.maximum):
            target.gauge(value.maximum, ".max")

    def _summary(self, target: _Target, _data: Any, point: Any) -> Reason | None:
        if not math.isfinite(point.sum):
            return "not_a_number"
        self._count_growth(target, point.count, ".count")
        self._count_growth(target, point.sum, ".sum")
        if self._settings.summaries.mode == "gauges":
            for quantile in point.quantile_values:
                if math.isfinite(quantile.value):
                    target.gauge(quantile.value, ".quantile", f"quantile:{_bound(quantile.quantile)}")
        return None


_KINDS: Final[dict[str, Callable[[MetricMapper, _Target, Any, Any], Reason | None]]] = {
    "gauge": MetricMapper._gauge,  # noqa: SLF001 (a table instead of branches)
    "sum": MetricMapper._sum,  # noqa: SLF001
    "histogram": MetricMapper._histogram,  # noqa: SLF001
    "exponential_histogram": MetricMapper._exponential_histogram,  # noqa: SLF001
    "summary": MetricMapper._summary,  # noqa: SLF001
}


def _client_stats(scope: Any) -> bytes:
    """The message of a tracer that a scope's metrics are made from; empty where there is none."""
    if scope.name != CLIENT_STATS:
        return b""
    stats = scope.attributes.get(CLIENT_STATS)
    return stats if isinstance(stats, bytes) else b""


def _data_of(metric: Any) -> tuple[str, Any]:
    """Of which kind a metric is, and what it has of that kind."""
    return next(((kind, data) for kind in _KINDS if (data := getattr(metric, kind)) is not None), ("", _NO_DATA))


def _name(name: str, scope: str) -> str:
    if scope != DOGSTATSD and name.startswith(_TAKEN):
        return f"otel.{name}"
    return name


def _tags(attributes: Mapping[str, Value]) -> Iterator[str]:
    for key, value in attributes.items():
        yield tag(key, text_of(value) or "n/a")


def _dogstatsd_tags(attributes: Mapping[str, Value]) -> Iterator[str]:
    """As they were: an empty text was a tag without a value, an array several tags of one name."""
    for key, value in attributes.items():
        for one in value if isinstance(value, list) else [value]:
            yield tag(key, text_of(one)).removesuffix(":" if one in ("", None) else "")


def _number(point: Any) -> float:
    """The value, whichever of the two fields holds it."""
    return float(point.as_int or 0) if point.as_double is None else point.as_double


def _bound(value: float) -> str:
    """A number in a tag: `0`, `5.0`, `0.25`, `inf`."""
    return repr(value) if value else "0"
