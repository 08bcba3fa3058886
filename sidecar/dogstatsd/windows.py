"""Adds samples up until the end of their window, and makes OTLP metrics of them.

Counts become delta sums, gauges stay, sets become gauges of how many different members there were. Histograms, timers
and distributions become delta exponential histograms, which keep count, sum, smallest and largest value exactly.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, Metric

from sidecar.dogstatsd.distribution import Distribution
from sidecar.dogstatsd.lines import Sample
from sidecar.dogstatsd.tags import Pairs, TagReader, key_values
from sidecar.events.datadog_keys import DOGSTATSD

MAX_MEMBERS: Final = 10_000
"""How many different members of one set are told apart in one window: the others are not counted."""

_DELTA: Final = AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
_MAX_TIMES: Final = 1 << 32

_Raw: TypeAlias = tuple[bytes, bytes, bytes, bytes, int]
_Key: TypeAlias = tuple[str, type["_Series"], Pairs, Pairs, int]


class _Series:
    """What was added up for one metric and its attributes. `second`: when, where the samples say so; else 0."""

    __slots__ = ("attributes", "second")

    def __init__(self, attributes: Pairs, second: int) -> None:
        self.attributes = attributes
        self.second = second

    def add(self, sample: Sample) -> None:
        """Add a sample."""
        raise NotImplementedError

    def points(self, metric: Metric) -> Any:
        """The points of a metric of this kind."""
        raise NotImplementedError

    def write(self, point: Any) -> None:
        """Write the value into one of those points."""
        raise NotImplementedError

    def variant(self) -> object:
        """Series that differ in this need metrics of their own."""
        return None


class _Count(_Series):
    __slots__ = ("value",)

    def __init__(self, attributes: Pairs, second: int) -> None:
        super().__init__(attributes, second)
        self.value = 0.0

    def add(self, sample: Sample) -> None:
        self.value += sum(sample.numbers) / sample.rate

    def variant(self) -> object:
        # A sum that has gone down is no growth: who shows only counters must be able to tell it.
        return self.value >= 0

    def points(self, metric: Metric) -> Any:
        metric.sum.aggregation_temporality = _DELTA
        metric.sum.is_monotonic = self.value >= 0
        return metric.sum.data_points

    def write(self, point: Any) -> None:
        point.as_double = self.value


class _Gauge(_Series):
    __slots__ = ("value",)

    def add(self, sample: Sample) -> None:
        self.value = sample.numbers[-1]

    def points(self, metric: Metric) -> Any:
        return metric.gauge.data_points

    def write(self, point: Any) -> None:
        point.as_double = self.value


class _Set(_Series):
    __slots__ = ("members",)

    def __init__(self, attributes: Pairs, second: int) -> None:
        super().__init__(attributes, second)
        self.members: set[bytes] = set()

    def add(self, sample: Sample) -> None:
        if len(self.members) < MAX_MEMBERS:
            self.members.add(sample.member)

    def points(self, metric: Metric) -> Any:
        return metric.gauge.data_points

    def write(self, point: Any) -> None:
        point.as_int = len(self.members)


class _Values(_Series):
    __slots__ = ("distribution",)

    def __init__(self, attributes: Pairs, second: int) -> None:
        super().__init__(attributes, second)
        self.distribution = Distribution()

    def add(self, sample: Sample) -> None:
        times = round(min(1 / sample.rate, _MAX_TIMES)) if sample.rate < 1 else 1
        for number in sample.numbers:
            self.distribution.add(number, times)

    def points(self, metric: Metric) -> Any:
        metric.exponential_histogram.aggregation_temporality = _DELTA
        return metric.exponential_histogram.data_points

    def write(self, point: Any) -> None:
        self.distribution.write(point)


class _Timer(_Values):
    __slots__ = ()


_SERIES: Final[dict[bytes, type[_Series]]] = {
    b"c": _Count,
    b"g": _Gauge,
    b"s": _Set,
    b"h": _Values,
    b"d": _Values,
    b"ms": _Timer,
}


class Windows:
    """Adds samples up, one window after the other.

    Args:
        max_series: different series in one window: samples of further ones are refused.
        tags: reads tags.
    """

    def __init__(self, max_series: int, tags: TagReader) -> None:
        self._max_series = max_series
        self._tags = tags
        self._series: dict[_Key, _Series] = {}
        # By what was sent: the same tags in another order are the same series.
        self._by_raw: dict[_Raw, _Series] = {}

    def __len__(self) -> int:
        return len(self._series)

    def add(self, sample: Sample) -> bool:
        """Add a sample. Returns False where it would be of one series too many."""
        name, kind, _, _, _, tags, container, second = sample
        raw = (name, kind, tags, container, second)
        series = self._by_raw.get(raw)
        if series is None:
            series = self._meet(raw)
            if series is None:
                return False
        series.add(sample)
        return True

    def _meet(self, raw: _Raw) -> _Series | None:
        name, kind, tags, container, second = raw
        read = self._tags.read(tags, container)
        made = _SERIES[kind]
        key = (name.decode(errors="replace"), made, read.resource, read.own, second)
        series = self._series.get(key)
        if series is None:
            if len(self._series) >= self._max_series:
                return None
            series = self._series[key] = made(read.own, second)
        if len(self._by_raw) < 2 * self._max_series:
            self._by_raw[raw] = series
        return series

    def close(self, start_ns: int, end_ns: int) -> tuple[ExportMetricsServiceRequest, int]:
        """End the window. Returns what was added up in it, and the number of points. Unix times in nanoseconds."""
        request = ExportMetricsServiceRequest()
        scopes: dict[Pairs, Any] = {}
        metrics: dict[tuple[object, ...], Metric] = {}
        for (name, kind, resource, _, _), series in self._series.items():
            key = (name, kind, resource, series.variant())
            metric = metrics.get(key)
            if metric is None:
                scope = scopes.get(resource)
                if scope is None:
                    scope = scopes[resource] = _scope(request, resource)
                metric = metrics[key] = scope.metrics.add(name=name, unit="ms" if kind is _Timer else "")
            point = series.points(metric).add()
            point.time_unix_nano = series.second * 10**9 or end_ns
            if not series.second and not isinstance(series, _Gauge):
                point.start_time_unix_nano = start_ns
            point.attributes.extend(key_values(series.attributes))
            series.write(point)
        count = len(self._series)
        self._series, self._by_raw = {}, {}
        return request, count


def _scope(request: ExportMetricsServiceRequest, resource: Pairs) -> Any:
    made = request.resource_metrics.add()
    made.resource.attributes.extend(key_values(resource))
    scope = made.scope_metrics.add()
    scope.scope.name = DOGSTATSD
    return scope
