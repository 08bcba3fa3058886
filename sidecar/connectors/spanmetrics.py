"""Makes metrics of spans: how many calls, how many of them failed, and how long they took."""

from __future__ import annotations

import asyncio
import functools
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self, TypeAlias

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, Exemplar, Metric
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from sidecar.batch import Batch, BatchContext
from sidecar.component import Connector, Context
from sidecar.connectors.aggregation import Aggregate, ExplicitHistogram, ExponentialHistogram, Total
from sidecar.connectors.spanmetrics_settings import (
    OWN,
    Dimension,
    ExplicitSettings,
    HistogramSettings,
    SpanMetricsSettings,
)
from sidecar.errors import Permanent, Retryable
from sidecar.signals import Signal

_Key: TypeAlias = tuple[object, ...]
_Lookup: TypeAlias = tuple[Any, ...]
"""Attributes in the order in which they are looked through: of the event, of the span, of the resource."""

_SCOPE: Final = InstrumentationScope(name="spanmetrics")
_KINDS: Final[dict[int, str]] = {number: name for name, number in Span.SpanKind.items()}
_CODES: Final[dict[int, str]] = {number: name for name, number in Status.StatusCode.items()}
_SERVICE: Final = "service.name"
_OWN: Final[dict[str, Callable[[Any], str]]] = {
    "span.name": lambda span: str(span.name),
    "span.kind": lambda span: _KINDS.get(span.kind, _KINDS[0]),
    "status.code": lambda span: _CODES.get(span.status.code, _CODES[0]),
}
_OVERFLOW: Final = KeyValue(key="otel.metric.overflow", value=AnyValue(bool_value=True))
_OVERFLOW_KEY: Final[_Key] = ("overflow",)
# Batches of deltas that nobody has taken; the oldest is dropped for the next.
_MAX_WAITING: Final = 10


class SpanMetrics(Connector[SpanMetricsSettings]):
    """Counts spans and their durations, and emits the sums once an interval, by resource.

    A refused batch of deltas waits for the next interval; cumulative sums come again by themselves.
    """

    signals: ClassVar[frozenset[Signal]] = frozenset({Signal.TRACES})
    emits: ClassVar[frozenset[Signal]] = frozenset({Signal.METRICS})

    def __init__(self, settings: SpanMetricsSettings, context: Context) -> None:
        super().__init__(settings, context)
        self._delta = settings.aggregation_temporality == "AGGREGATION_TEMPORALITY_DELTA"
        self._plans = _plans(settings)
        self._resources: OrderedDict[bytes, _Source] = OrderedDict()
        self._sizes: Counter[str] = Counter()
        self._waiting: deque[Batch] = deque()
        self._flushed_at = context.clock.time_ns()

    async def start(self) -> None:
        """Emit from time to time."""
        self.context.spawn(self._flush_regularly(), "flush")

    async def stop(self) -> None:
        """Emit what there is."""
        await self._flush()

    def carry(self, old: Self) -> None:
        """Go on with the sums of the connector that this one succeeds, unless they are made differently."""
        if _shape(self.settings) == _shape(old.settings):
            self._resources, old._resources = old._resources, OrderedDict()
            self._sizes, old._sizes = old._sizes, Counter()
            self._waiting, old._waiting = old._waiting, deque()
            self._flushed_at = old._flushed_at

    async def export(self, batch: Batch) -> None:
        """Add the spans of a batch."""
        now = self.context.clock.monotonic()
        for group in batch.resources():
            source = self._source(group)
            for scope in group.scope_spans:
                for span in scope.spans:
                    self._add(source, span, now)

    def _source(self, group: Any) -> _Source:
        told_apart = self.settings.resource_metrics_key_attributes
        message = group.resource
        if told_apart:
            message = Resource(attributes=[one for one in message.attributes if one.key in told_apart])
        key = message.SerializeToString(deterministic=True)
        source = self._resources.get(key)
        if source is not None:
            self._resources.move_to_end(key)
            return source
        if len(self._resources) >= self.settings.resource_metrics_cache_size:
            _, gone = self._resources.popitem(last=False)
            self._sizes.subtract({name: len(one) for name, one in gone.aggregates.items()})
        source = self._resources[key] = _Source(group.resource, group.schema_url, {one.name: {} for one in self._plans})
        return source

    def _add(self, source: _Source, span: Any, now: float) -> None:
        seconds = max(span.end_time_unix_nano - span.start_time_unix_nano, 0) / 1e9
        for plan in self._plans:
            known = source.aggregates[plan.name]
            for lookup in plan.subjects(source, span):
                key = plan.key(span, lookup)
                aggregate = known.get(key) or self._enter(source, plan, key, span, lookup)
                aggregate.add(seconds * plan.scale)
                aggregate.seen = now
                if self.settings.exemplars.enabled and span.trace_id:
                    aggregate.exemplars.append(_exemplar(span, seconds * plan.scale))

    def _enter(self, source: _Source, plan: _Plan, key: _Key, span: Any, lookup: _Lookup) -> Aggregate:
        known = source.aggregates[plan.name]
        attributes = plan.attributes(source, span, lookup)
        if self._sizes[plan.name] >= self.settings.aggregation_cardinality_limit:
            key, attributes = _OVERFLOW_KEY, [_OVERFLOW]
            if key in known:
                return known[key]
        self._sizes[plan.name] += 1
        start = self._flushed_at if self._delta else self.context.clock.time_ns()
        aggregate = known[key] = plan.make(attributes, start, self.settings.exemplars.max_per_data_point)
        return aggregate

    async def _flush_regularly(self) -> None:
        while True:
            await asyncio.sleep(self.settings.metrics_flush_interval)
            await self._flush()

    async def _flush(self) -> None:
        now = max(self.context.clock.time_ns(), self._flushed_at + 1)
        request = self._collect(now)
        self._flushed_at = now
        if request.resource_metrics:
            self._wait(Batch(Signal.METRICS, message=request, context=BatchContext(received_at=now)))
        while self._waiting:
            batch = self._waiting.popleft()
            try:
                await self.emit(batch.copy())
            except Retryable as error:
                self.context.logger.info("connectors.%s: metrics wait: %s", self.context.id, error)
                if self._delta:
                    self._waiting.appendleft(batch)
                return
            except Permanent as error:
                self.context.dropped(Signal.METRICS, error.reason, len(batch))

    def _wait(self, batch: Batch) -> None:
        if len(self._waiting) >= _MAX_WAITING:
            self.context.dropped(Signal.METRICS, "queue_full", len(self._waiting.popleft()))
        self._waiting.append(batch)

    def _collect(self, now: int) -> ExportMetricsServiceRequest:
        """The points of all resources. Forgets what has expired; deltas begin anew."""
        request = ExportMetricsServiceRequest()
        if self.settings.metrics_expiration:
            self._expire(self.context.clock.monotonic() - self.settings.metrics_expiration)
        for source in self._resources.values():
            metrics = [
                plan.metric(source.aggregates[plan.name].values(), now, self.settings.aggregation_temporality)
                for plan in self._plans
                if source.aggregates[plan.name]
            ]
            if metrics:
                made = request.resource_metrics.add(resource=source.resource, schema_url=source.schema_url)
                made.scope_metrics.add(scope=_SCOPE, metrics=metrics)
        if self._delta:
            self._resources.clear()
            self._sizes.clear()
        return request

    def _expire(self, limit: float) -> None:
        for key, source in list(self._resources.items()):
            for name, known in source.aggregates.items():
                for one in [one for one, aggregate in known.items() if aggregate.seen < limit]:
                    del known[one]
                    self._sizes[name] -= 1
            if not any(source.aggregates.values()):
                del self._resources[key]


@dataclass(frozen=True, slots=True)
class _Source:
    """A resource, and what its spans have come to: by metric, then by attribute set."""

    resource: Any
    schema_url: str
    aggregates: dict[str, dict[_Key, Aggregate]]


@dataclass(frozen=True, slots=True)
class _Plan:
    """One metric that is made of spans, or of their events. `scale`: from seconds to its unit."""

    name: str
    description: str
    own: tuple[str, ...]
    dimensions: tuple[Dimension, ...]
    make: Callable[[Sequence[KeyValue], int, int], Aggregate]
    unit: str = ""
    scale: float = 1.0
    events: bool = False

    def subjects(self, source: _Source, span: Any) -> Iterable[_Lookup]:
        """Where the dimensions of each thing that counts are looked for."""
        resource = source.resource.attributes
        if self.events:
            return [(event.attributes, span.attributes, resource) for event in span.events]
        return [(span.attributes, resource)]

    def key(self, span: Any, lookup: _Lookup) -> _Key:
        """What tells the attribute sets of one resource apart."""
        pairs = [_found(one, lookup) for one in self.dimensions]
        own = [_OWN[name](span) for name in self.own if name != _SERVICE]
        return (*own, *[pair and pair.SerializeToString(deterministic=True) for pair in pairs])

    def attributes(self, source: _Source, span: Any, lookup: _Lookup) -> list[KeyValue]:
        """The attributes of a new attribute set."""
        found = [_found(Dimension(name=_SERVICE), (source.resource.attributes,))] if _SERVICE in self.own else []
        found += [_text(name, _OWN[name](span)) for name in self.own if name != _SERVICE]
        found += [_found(one, lookup) for one in self.dimensions]
        return [pair for pair in found if pair is not None]

    def metric(self, aggregates: Iterable[Aggregate], now: int, temporality: str) -> Metric:
        """The metric with the points of all attribute sets."""
        metric = Metric(name=self.name, description=self.description, unit=self.unit)
        for aggregate in aggregates:
            data: Any = getattr(metric, aggregate.field)
            data.aggregation_temporality = AggregationTemporality.Value(temporality)
            data.data_points.append(aggregate.point(now))
        if metric.HasField("sum"):
            metric.sum.is_monotonic = True
        return metric


def _plans(settings: SpanMetricsSettings) -> list[_Plan]:
    own = tuple(name for name in OWN if name not in settings.exclude_dimensions)
    namespace = f"{settings.namespace}." if settings.namespace else ""
    calls = (*settings.dimensions, *settings.calls_dimensions)
    plans = [_Plan(f"{namespace}calls", "Spans that ended.", own, calls, Total)]
    shown = settings.histogram
    if not shown.disable:
        scale = 1000.0 if shown.unit == "ms" else 1.0
        plans.append(
            _Plan(
                f"{namespace}duration",
                "How long spans took.",
                own,
                (*settings.dimensions, *shown.dimensions),
                _histogram(shown, scale),
                shown.unit,
                scale,
            )
        )
    if settings.events.enabled:
        by = (*settings.dimensions, *settings.events.dimensions)
        plans.append(_Plan(f"{namespace}events", "Events of spans.", own, by, Total, events=True))
    return plans


def _histogram(shown: HistogramSettings, scale: float) -> Callable[[Sequence[KeyValue], int, int], Aggregate]:
    if shown.exponential is not None:
        return functools.partial(ExponentialHistogram, max_size=shown.exponential.max_size)
    buckets = (shown.explicit or ExplicitSettings()).buckets
    return functools.partial(ExplicitHistogram, bounds=[bound * scale for bound in buckets])


def _found(dimension: Dimension, lookup: _Lookup) -> KeyValue | None:
    for attributes in lookup:
        for pair in attributes:
            if pair.key == dimension.name:
                found: KeyValue = pair
                return found
    return None if dimension.default_value is None else _text(dimension.name, dimension.default_value)


def _text(key: str, value: str) -> KeyValue:
    return KeyValue(key=key, value=AnyValue(string_value=value))


def _exemplar(span: Any, value: float) -> Exemplar:
    return Exemplar(
        as_double=value, time_unix_nano=span.end_time_unix_nano, trace_id=span.trace_id, span_id=span.span_id
    )


def _shape(settings: SpanMetricsSettings) -> tuple[object, ...]:
    """What decides how sums are made."""
    return (
        settings.namespace,
        settings.histogram,
        settings.dimensions,
        settings.calls_dimensions,
        settings.exclude_dimensions,
        settings.events,
        settings.aggregation_temporality,
        settings.resource_metrics_key_attributes,
    )
