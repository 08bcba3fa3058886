"""OTLP metrics for tests, in few words: `batch(gauge("g", point(1, dir="in"), unit="By"))`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    Exemplar,
    ExponentialHistogramDataPoint,
    HistogramDataPoint,
    Metric,
    NumberDataPoint,
    SummaryDataPoint,
)

from sidecar import Batch, BatchContext, Signal

T0 = 1_700_000_000
CUMULATIVE = 2
DELTA = 1
RESOURCE = {"service.namespace": "shop", "service.name": "checkout", "service.instance.id": "i-1"}
SCOPE = ("lib", "1.0")


def nanoseconds(seconds: float) -> int:
    """Seconds after T0 as Unix nanoseconds."""
    return T0 * 10**9 + round(seconds * 1e9)


def any_value(value: Any) -> AnyValue:
    """An AnyValue of the matching kind; None has none."""
    fields = {bool: "bool_value", int: "int_value", float: "double_value", bytes: "bytes_value", str: "string_value"}
    if isinstance(value, list):
        return AnyValue(array_value=ArrayValue(values=map(any_value, value)))
    if isinstance(value, dict):
        return AnyValue(kvlist_value=KeyValueList(values=attributes(value)))
    return AnyValue() if value is None else AnyValue(**{fields[type(value)]: value})


def attributes(values: Mapping[str, Any]) -> list[KeyValue]:
    """Attributes from a mapping."""
    return [KeyValue(key=key, value=any_value(value)) for key, value in values.items()]


def point(
    value: float | None,
    attrs: Mapping[str, Any] | None = None,
    *,
    time: float = 10,
    start: float | None = 0,
    flagged: bool = False,
    exemplars: Sequence[Exemplar] = (),
    **labels: Any,
) -> NumberDataPoint:
    """A number at `time` seconds after T0. None has no value."""
    made = NumberDataPoint(
        attributes=attributes({**(attrs or {}), **labels}), **_times(time, start, flagged=flagged), exemplars=exemplars
    )
    if isinstance(value, int):
        made.as_int = value
    elif value is not None:
        made.as_double = value
    return made


def exemplar(
    value: float, time: float, ids: tuple[str, str] | None = None, attrs: Mapping[str, Any] | None = None
) -> Exemplar:
    """An exemplar with hexadecimal ids."""
    trace_id, span_id = map(bytes.fromhex, ids or ("", ""))
    return Exemplar(
        as_double=value,
        time_unix_nano=nanoseconds(time),
        trace_id=trace_id,
        span_id=span_id,
        filtered_attributes=attributes(attrs or {}),
    )


def gauge(name: str, *points: NumberDataPoint, unit: str = "", help_: str = "h", hint: str = "") -> Metric:
    """A gauge. `hint`: the type that it had in Prometheus."""
    made = _metric(name, unit, help_)
    made.gauge.data_points.extend(points)
    if hint:
        made.metadata.extend(attributes({"prometheus.type": hint}))
    return made


def sum_(
    name: str,
    *points: NumberDataPoint,
    unit: str = "",
    help_: str = "h",
    monotonic: bool = True,
    temporality: int = CUMULATIVE,
) -> Metric:
    """A sum."""
    made = _metric(name, unit, help_)
    made.sum.is_monotonic = monotonic
    made.sum.aggregation_temporality = temporality
    made.sum.data_points.extend(points)
    return made


def histogram(
    name: str, *points: HistogramDataPoint, unit: str = "", help_: str = "h", temporality: int = CUMULATIVE
) -> Metric:
    """A histogram with explicit bounds."""
    made = _metric(name, unit, help_)
    made.histogram.aggregation_temporality = temporality
    made.histogram.data_points.extend(points)
    return made


def buckets(
    bounds: Sequence[float],
    counts: Sequence[int],
    total: float | None = None,
    *,
    count: int | None = None,
    time: float = 10,
    start: float | None = 0,
    flagged: bool = False,
    exemplars: Sequence[Exemplar] = (),
    attrs: Mapping[str, Any] | None = None,
    **labels: Any,
) -> HistogramDataPoint:
    """A histogram's data point; its count is that of its buckets unless said."""
    return HistogramDataPoint(
        explicit_bounds=bounds,
        bucket_counts=counts,
        count=sum(counts) if count is None else count,
        sum=total,
        attributes=attributes({**(attrs or {}), **labels}),
        exemplars=exemplars,
        **_times(time, start, flagged=flagged),
    )


def exponential(
    name: str, *points: ExponentialHistogramDataPoint, unit: str = "", help_: str = "h", temporality: int = CUMULATIVE
) -> Metric:
    """An exponential histogram."""
    made = _metric(name, unit, help_)
    made.exponential_histogram.aggregation_temporality = temporality
    made.exponential_histogram.data_points.extend(points)
    return made


def exponential_point(
    scale: int,
    positive: tuple[int, Sequence[int]] = (0, ()),
    negative: tuple[int, Sequence[int]] = (0, ()),
    total: float | None = 0.0,
    *,
    zero: int = 0,
    threshold: float = 0.0,
    count: int | None = None,
    time: float = 10,
    start: float | None = 0,
    exemplars: Sequence[Exemplar] = (),
    attrs: Mapping[str, Any] | None = None,
    **labels: Any,
) -> ExponentialHistogramDataPoint:
    """An exponential histogram's data point. `positive`, `negative`: offset and counts."""
    made = ExponentialHistogramDataPoint(
        scale=scale,
        zero_count=zero,
        zero_threshold=threshold,
        sum=total,
        count=zero + sum(positive[1]) + sum(negative[1]) if count is None else count,
        attributes=attributes({**(attrs or {}), **labels}),
        exemplars=exemplars,
        **_times(time, start, flagged=False),
    )
    for side, (offset, counts) in ((made.positive, positive), (made.negative, negative)):
        side.offset = offset
        side.bucket_counts.extend(counts)
    return made


def summary(name: str, *points: SummaryDataPoint, unit: str = "", help_: str = "h") -> Metric:
    """A summary."""
    made = _metric(name, unit, help_)
    made.summary.data_points.extend(points)
    return made


def quantiles(
    values: Mapping[float, float],
    count: int,
    total: float,
    *,
    time: float = 10,
    start: float | None = 0,
    attrs: Mapping[str, Any] | None = None,
    **labels: Any,
) -> SummaryDataPoint:
    """A summary's data point."""
    return SummaryDataPoint(
        count=count,
        sum=total,
        quantile_values=[
            SummaryDataPoint.ValueAtQuantile(quantile=rank, value=value) for rank, value in values.items()
        ],
        attributes=attributes({**(attrs or {}), **labels}),
        **_times(time, start, flagged=False),
    )


def request(
    *metrics: Metric,
    resource: Mapping[str, Any] | None = None,
    scope: tuple[str, str] = SCOPE,
    scope_attrs: Mapping[str, Any] | None = None,
    schema_url: str = "",
) -> ExportMetricsServiceRequest:
    """An export request of one scope of one resource."""
    made = ExportMetricsServiceRequest()
    one = made.resource_metrics.add()
    one.resource.attributes.extend(attributes(RESOURCE if resource is None else resource))
    inner = one.scope_metrics.add(schema_url=schema_url)
    inner.scope.name, inner.scope.version = scope
    inner.scope.attributes.extend(attributes(scope_attrs or {}))
    inner.metrics.extend(metrics)
    return made


def batch(*metrics: Metric, **settings: Any) -> Batch:
    """A batch as a receiver makes it: bytes. Settings as of `request`."""
    return Batch(Signal.METRICS, request(*metrics, **settings).SerializeToString(), context=BatchContext())


def _metric(name: str, unit: str, help_: str) -> Metric:
    return Metric(name=name, unit=unit, description=help_)


def _times(time: float, start: float | None, *, flagged: bool) -> dict[str, int]:
    return {
        "time_unix_nano": nanoseconds(time),
        "start_time_unix_nano": 0 if start is None else nanoseconds(start),
        "flags": int(flagged),
    }
