"""Counts what passes: log records, spans, span events, metrics and data points become metrics."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, TypeAlias

import msgspec
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, Metric

from config import SettingError, Settings
from config.settings import Ignored
from sidecar.batch import Batch
from sidecar.component import Connector, Context
from sidecar.signals import Signal

# A label set that was not met for so many seconds makes room for another.
_IDLE: Final = 3600.0

_SCOPE: Final = InstrumentationScope(name="count")
_OVERFLOW: Final = (KeyValue(key="otel.metric.overflow", value=AnyValue(bool_value=True)).SerializeToString(),)

Lookup: TypeAlias = tuple[Any, ...]
"""The attributes of one item, of its scope and of its resource."""
Walk: TypeAlias = Callable[[Any], Iterator[Lookup]]
"""The items of one resource of a request."""


class CountedAttribute(Settings):
    """An attribute by which a count is split. An item without it is counted only where there is a default."""

    key: str
    default_value: str = ""

    def __post_init__(self) -> None:
        if not self.key:
            raise SettingError("is empty; write the key of an attribute", "key")


class CountedMetric(Settings):
    """One metric that counts."""

    description: str = ""
    attributes: tuple[CountedAttribute, ...] = ()
    conditions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.conditions:
            raise SettingError(
                "conditions are written in OTTL, which the sidecar does not have; split the count by `attributes`, and "
                "select in the query",
                "conditions",
            )


def _default(name: str, description: str) -> Any:
    return msgspec.field(default_factory=lambda: {name: CountedMetric(description=description)})


class CountSettings(Settings):
    """Which metrics count what, by their names. A section that is written replaces its default.

    `aggregation_cardinality_limit`: attribute sets of each metric; what comes on top is counted together in one that
    has only `otel.metric.overflow: true`.
    """

    spans: dict[str, CountedMetric] = _default("trace.span.count", "The number of spans observed.")
    spanevents: dict[str, CountedMetric] = _default("trace.span.event.count", "The number of span events observed.")
    metrics: dict[str, CountedMetric] = _default("metric.count", "The number of metrics observed.")
    datapoints: dict[str, CountedMetric] = _default("metric.datapoint.count", "The number of data points observed.")
    logs: dict[str, CountedMetric] = _default("log.record.count", "The number of log records observed.")
    profiles: Ignored = None
    aggregation_cardinality_limit: Annotated[int, msgspec.Meta(ge=1)] = 2000

    def __post_init__(self) -> None:
        for name, metric in self.metrics.items():
            if metric.attributes:
                raise SettingError("a metric has no attributes; count its data points", "metrics", name, "attributes")


class Count(Connector[CountSettings]):
    """Counts what each batch holds, and emits the counts at once, as delta sums of the resources that the batch has."""

    emits: ClassVar[frozenset[Signal]] = frozenset({Signal.METRICS})

    def __init__(self, settings: CountSettings, context: Context) -> None:
        super().__init__(settings, context)
        self._counted: dict[Signal, list[tuple[dict[str, CountedMetric], Walk]]] = {
            Signal.TRACES: [(settings.spans, _spans), (settings.spanevents, _span_events)],
            Signal.METRICS: [(settings.metrics, _metrics), (settings.datapoints, _data_points)],
            Signal.LOGS: [(settings.logs, _log_records)],
        }
        limit = settings.aggregation_cardinality_limit
        self._known = {
            name: Known(limit) for counted in self._counted.values() for metrics, _ in counted for name in metrics
        }
        self._last = context.clock.time_ns()

    async def export(self, batch: Batch) -> None:
        """Count a batch, and emit what follows from it.

        Raises:
            Retryable, Permanent: the counts were refused; the batch is to count again when it comes again.
        """
        # Each delta begins where the last one ended, so that whoever adds them up sees no gap and no overlap.
        start, now = self._last, max(self.context.clock.time_ns(), self._last + 1)
        request = ExportMetricsServiceRequest()
        for groups in _by_resource(batch.resources()):
            metrics = [
                metric
                for counted, walk in self._counted[batch.signal]
                for metric in self._count(counted, [item for group in groups for item in walk(group)], start, now)
            ]
            if metrics:
                made = request.resource_metrics.add(resource=groups[0].resource, schema_url=groups[0].schema_url)
                made.scope_metrics.add(scope=_SCOPE, metrics=metrics)
        if request.resource_metrics:
            self._last = now
            await self.emit(Batch(Signal.METRICS, message=request, context=batch.context))

    def _count(
        self, counted: Mapping[str, CountedMetric], items: Sequence[Lookup], start: int, now: int
    ) -> Iterator[Metric]:
        for name, info in counted.items():
            tally: dict[tuple[bytes, ...], int] = Counter()
            for lookup in items:
                found = _attributes(info.attributes, lookup)
                if found is not None:
                    tally[found] += 1
            if tally:
                metric = Metric(name=name, description=info.description)
                metric.sum.is_monotonic = True
                metric.sum.aggregation_temporality = AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
                for key, count in self._known[name].capped(tally, self.context.clock.monotonic()).items():
                    metric.sum.data_points.add(
                        attributes=map(KeyValue.FromString, key),
                        start_time_unix_nano=start,
                        time_unix_nano=now,
                        as_int=count,
                    )
                yield metric


class Known:
    """The attribute sets of one metric, at most `limit`; those that have not been met for long make room."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._met: OrderedDict[tuple[bytes, ...], float] = OrderedDict()

    def capped(self, tally: Mapping[tuple[bytes, ...], int], now: float) -> dict[tuple[bytes, ...], int]:
        """The counts, with those of attribute sets that have no room added up under the overflow's."""
        counts: dict[tuple[bytes, ...], int] = Counter()
        for key, count in tally.items():
            counts[key if self._admits(key, now) else _OVERFLOW] += count
        return counts

    def _admits(self, key: tuple[bytes, ...], now: float) -> bool:
        if key not in self._met and len(self._met) >= self._limit:
            oldest = next(iter(self._met))
            if self._met[oldest] > now - _IDLE:
                return False
            del self._met[oldest]
        self._met[key] = now
        self._met.move_to_end(key)
        return True


def _by_resource(groups: Iterable[Any]) -> Iterable[list[Any]]:
    """The groups of each resource: a joined request has many of the same, and two deltas at one time would be one."""
    found: dict[tuple[bytes, str], list[Any]] = {}
    for group in groups:
        key = (group.resource.SerializeToString(deterministic=True), group.schema_url)
        found.setdefault(key, []).append(group)
    return found.values()


def _attributes(wanted: Iterable[CountedAttribute], lookup: Lookup) -> tuple[bytes, ...] | None:
    """The wanted attributes, serialized: of the item, its scope or its resource; None if one is nowhere."""
    found = []
    for one in wanted:
        pair = next((pair for attributes in lookup for pair in attributes if pair.key == one.key), None)
        if pair is None:
            if not one.default_value:
                return None
            pair = KeyValue(key=one.key, value=AnyValue(string_value=one.default_value))
        found.append(pair.SerializeToString(deterministic=True))
    return tuple(found)


def _spans(group: Any) -> Iterator[Lookup]:
    for scope in group.scope_spans:
        for span in scope.spans:
            yield span.attributes, scope.scope.attributes, group.resource.attributes


def _span_events(group: Any) -> Iterator[Lookup]:
    for scope in group.scope_spans:
        for span in scope.spans:
            for event in span.events:
                yield event.attributes, scope.scope.attributes, group.resource.attributes


def _metrics(group: Any) -> Iterator[Lookup]:
    for scope in group.scope_metrics:
        for _ in scope.metrics:
            yield ()


def _data_points(group: Any) -> Iterator[Lookup]:
    for scope in group.scope_metrics:
        for metric in scope.metrics:
            which = metric.WhichOneof("data")
            for point in getattr(metric, which).data_points if which else ():
                yield point.attributes, scope.scope.attributes, group.resource.attributes


def _log_records(group: Any) -> Iterator[Lookup]:
    for scope in group.scope_logs:
        for record in scope.log_records:
            yield record.attributes, scope.scope.attributes, group.resource.attributes
