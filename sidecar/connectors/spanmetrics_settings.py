"""What a user writes below `spanmetrics`: the Collector's names."""

from __future__ import annotations

import operator
from typing import Annotated, Final, Literal

import msgspec

from config import Duration, SettingError, Settings
from config.settings import Ignored

_Positive = Annotated[int, msgspec.Meta(ge=1)]

OWN: Final = ("service.name", "span.name", "span.kind", "status.code")
"""What every metric is split by."""
_DEFAULT_BUCKETS: Final = tuple(
    map(Duration, (0.002, 0.004, 0.006, 0.008, 0.01, 0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.4, 2.0, 5.0, 10.0, 15.0))
)


class Dimension(Settings):
    """An attribute of the span or of its resource that becomes one of the metric's. `default`: where it is missing."""

    name: str
    default_value: str | None = msgspec.field(name="default", default=None)


class ExplicitSettings(Settings):
    """Bounds of durations."""

    buckets: tuple[Duration, ...] = _DEFAULT_BUCKETS

    def __post_init__(self) -> None:
        if any(map(operator.ge, self.buckets, self.buckets[1:])):
            raise SettingError("must ascend; write for example [5ms, 50ms, 500ms, 5s]", "buckets")


class ExponentialSettings(Settings):
    """Buckets that fit themselves to the durations, at most so many."""

    # Two at least: values on either side of 1 never share a bucket.
    max_size: Annotated[int, msgspec.Meta(ge=2)] = 160


class HistogramSettings(Settings):
    """How durations are shown. `dimensions`: of the durations alone."""

    disable: bool = False
    unit: Literal["ms", "s"] = "ms"
    explicit: ExplicitSettings | None = None
    exponential: ExponentialSettings | None = None
    dimensions: tuple[Dimension, ...] = ()

    def __post_init__(self) -> None:
        if self.explicit is not None and self.exponential is not None:
            raise SettingError("there can be only one of `explicit` and `exponential`", "exponential")


class ExemplarSettings(Settings):
    """Whether metrics carry the traces they come from."""

    enabled: bool = False
    max_per_data_point: _Positive = 5


class EventSettings(Settings):
    """Whether span events are counted too, by these attributes of theirs."""

    enabled: bool = False
    dimensions: tuple[Dimension, ...] = ()


class SpanMetricsSettings(Settings):
    """Which metrics are made of spans, and by which attributes they are split.

    Attributes:
        namespace: what metric names begin with.
        dimensions: beside `service.name`, `span.name`, `span.kind` and `status.code`, of which `exclude_dimensions`
            leaves some out. `calls_dimensions` and `histogram.dimensions` are of one metric alone.
        metrics_flush_interval: how often metrics are emitted.
        metrics_expiration: after how long without spans an attribute set is forgotten; 0 means never.
        aggregation_cardinality_limit: attribute sets of each metric, over all resources; what comes on top is counted
            in one that has only `otel.metric.overflow: true`.
        resource_metrics_cache_size: resources; the one that was not met for longest makes room.
        resource_metrics_key_attributes: the attributes by which resources are told apart; none means all.
    """

    namespace: str = "traces.span.metrics"
    histogram: HistogramSettings = HistogramSettings()
    dimensions: tuple[Dimension, ...] = ()
    calls_dimensions: tuple[Dimension, ...] = ()
    exclude_dimensions: tuple[str, ...] = ()
    aggregation_temporality: Literal["AGGREGATION_TEMPORALITY_CUMULATIVE", "AGGREGATION_TEMPORALITY_DELTA"] = (
        "AGGREGATION_TEMPORALITY_CUMULATIVE"
    )
    metrics_flush_interval: Duration = Duration("60s")
    metrics_expiration: Duration = Duration("0")
    exemplars: ExemplarSettings = ExemplarSettings()
    events: EventSettings = EventSettings()
    aggregation_cardinality_limit: _Positive = 2000
    resource_metrics_cache_size: _Positive = 1000
    resource_metrics_key_attributes: tuple[str, ...] = ()
    dimensions_cache_size: Ignored = None
    metric_timestamp_cache_size: Ignored = None
    include_instrumentation_scope: Ignored = None

    def __post_init__(self) -> None:
        if not self.metrics_flush_interval:
            raise SettingError("must be above 0; write for example 15s", "metrics_flush_interval")
        for path, more in (
            ("dimensions", ()),
            ("calls_dimensions", self.calls_dimensions),
            ("histogram", self.histogram.dimensions),
        ):
            names = [*OWN, *(one.name for one in (*self.dimensions, *more))]
            twice = next((name for name in names if names.count(name) > 1), None)
            if twice:
                raise SettingError(f"{twice!r} is a dimension already; leave it out", path)
