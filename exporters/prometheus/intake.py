"""OTLP metrics into the store: a point finds its series by the bytes received, and is translated only once."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final, TypeAlias

from exporters.prometheus.exponential import DEFAULT_GRID, Exponential, Grid
from exporters.prometheus.labels import (
    LabelRules,
    Pairs,
    ResourceLabels,
    Selection,
    attribute_pairs,
    resource_labels,
    scope_pairs,
    written,
)
from exporters.prometheus.names import MetricName
from exporters.prometheus.series import DEAD, MALFORMED, OUT_OF_ORDER, Counter, Gauge, Histogram, Series, Summary
from exporters.prometheus.store import Family, FamilyType, Refused, Store
from exporters.prometheus.view import DecodeError, attributes_of, resource_of, scope_of

INVALID_NAME: Final = "invalid_name"
TEMPORALITY: Final = "unsupported_temporality"
LABELS_TOO_LONG: Final = "labels_too_long"
HELP_CONFLICT: Final = "help_conflict"
COLLISION: Final = "collision"

_CUMULATIVE: Final = 2
_DELTA: Final = 1
_NO_RECORDED_VALUE: Final = 1
# Stands between attributes: no field of a message begins so, which keeps two different lists apart.
_SEPARATOR: Final = b"\x07"
# Bounds the memory of one series, whatever its sender makes up.
_MAX_LABELS: Final = 65_536
_SLICE: Final = 10_000
_MAX_RIVALS: Final = 1000

Refusals: TypeAlias = "Tally[tuple[str, str]]"
"""How many points were not taken, by reason and metric name."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What one OTLP metric becomes.

    Attributes:
        family: the type of its family.
        series: the class of its series.
        naming: which suffixes its name gets (`Translator.metric`).
        delta: whether its points add up.
        reserved: the label that its samples add.
    """

    family: FamilyType
    series: type[Series]
    naming: str
    delta: bool = False
    reserved: str = ""


def kind_of(which: str, data: Any, hint: str) -> Kind | None:
    """The kind of a metric; None where its temporality can't be shown (specification, "Metric types").

    Args:
        which: the field of the metric that holds its points.
        data: that field.
        hint: the type that the metric had in Prometheus, or "".
    """
    if which == "gauge":
        types: dict[str, FamilyType] = {"unknown": "unknown", "info": "info"}
        return Kind(types.get(hint, "gauge"), Gauge, "gauge")
    if which == "summary":
        return Kind("summary", Summary, "summary", reserved="quantile")
    if data.aggregation_temporality not in {_CUMULATIVE, _DELTA}:
        return None
    delta = data.aggregation_temporality == _DELTA
    if which == "sum":
        if data.is_monotonic:
            return Kind("counter", Counter, "counter", delta)
        return None if delta else Kind("gauge", Gauge, "updown")
    series = Exponential if which == "exponential_histogram" else Histogram
    return Kind("histogram", series, "histogram", delta, reserved="le")


@dataclass(slots=True)
class Metric:
    """One metric of one scope of one resource, as its sender repeats it. `series`: by their attributes' bytes."""

    name: str
    final: MetricName
    kind: Kind
    series: dict[bytes, Series] = field(default_factory=dict)


@dataclass(slots=True)
class Source:
    """One scope of one resource: what all its points have in common. A metric that can't be shown has its reason."""

    raw: bytes
    resource: ResourceLabels
    scope: Pairs
    target: str
    metrics: dict[tuple[object, ...], Metric | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class IntakeRules:
    """How metrics become series.

    Attributes:
        labels: make labels.
        promote: chooses the resource attributes that every series carries.
        describe: chooses the resource attributes that `target_info` carries; None: there is no such series.
        job_label, instance_label: the labels that say whose a series is; "" for none.
        scope_labels: whether series carry `otel_scope_…`.
        grid: the bounds on which the text formats show exponential histograms.
    """

    labels: LabelRules
    promote: Selection
    describe: Selection | None
    job_label: str = "job"
    instance_label: str = "instance"
    scope_labels: bool = True
    grid: Grid = DEFAULT_GRID


class Intake:
    """Applies metrics to a store. `note(reason, metric, detail)` is told what a person should know."""

    def __init__(self, store: Store, rules: IntakeRules, note: Callable[[str, str, str], None]) -> None:
        self.store = store
        self.rules = rules
        self.note = note
        namespace = rules.labels.translator.namespace
        self._target_name = f"{namespace}_target_info" if namespace else "target_info"
        self._sources: dict[tuple[bytes, bytes, str], Source] = {}
        self._targets: dict[tuple[tuple[str, str], ...], Series] = {}
        # By the resource that had a series before another took it over: the other one, and the series.
        self._rivals: dict[bytes, tuple[bytes, str]] = {}
        self._remembered = 0

    def take(self, data: Any) -> Refusals:
        """Apply a view of an export request, which is left as it is."""
        refusals: Refusals = Tally()
        for resource in data.resource_metrics:
            source, shown = None, 0
            self._look_for_rival(resource.resource)
            for scope in resource.scope_metrics:
                try:
                    source = self._source(resource.resource, scope.scope, scope.schema_url)
                except DecodeError:
                    for metric in scope.metrics:
                        refusals[MALFORMED, metric.name] += len(_points(metric))
                else:
                    shown += sum(self._take_metric(source, metric, refusals) for metric in scope.metrics)
            if source is not None and shown:
                self._describe(source)
        return +refusals

    def _take_metric(self, source: Source, metric: Any, refusals: Refusals) -> int:
        """Apply the points of a metric. Returns how many have a series in the store."""
        points = _points(metric)
        if not points:
            return 0
        known = self._metric(source, metric)
        if isinstance(known, str):
            refusals[known, metric.name] += len(points)
            return 0
        shown = len(points)
        series_of, delta, feed = known.series.get, known.kind.delta, self.store.feed
        for point in points:
            key = _SEPARATOR.join(point.attributes)
            series = series_of(key)
            if point.flags & _NO_RECORDED_VALUE:
                reason = self._forget(source, known, key, point)
            elif series is None or series.received == DEAD:
                reason = self._meet(source, known, metric.description, key, point)
            else:
                reason = series.update(point, feed, delta)
            if reason:
                refusals[reason, metric.name] += 1
                shown -= reason != OUT_OF_ORDER
        return shown

    def _source(self, resource: bytes, scope: bytes, schema_url: str) -> Source:
        key = (resource, scope, schema_url)
        source = self._sources.get(key)
        if source is None:
            pairs: Pairs = []
            if self.rules.scope_labels:
                decoded = scope_of(scope)
                pairs = scope_pairs(decoded.name, decoded.version, schema_url, decoded.attributes)
            labels = resource_labels(
                resource_of(resource).attributes, self.rules.promote, self.rules.job_label, self.rules.instance_label
            )
            source = Source(resource, labels, pairs, self._target(labels))
            self._remember()
            self._sources[key] = source
        return source

    def _target(self, resource: ResourceLabels) -> str:
        """The labels of `target_info`; "" where a resource has nothing to say beyond its identity."""
        chosen = self.rules.describe
        described = [pair for pair in resource.described if chosen(pair[0])] if chosen is not None else []
        plain = replace(self.rules.labels, constant=())
        return written(plain.merged(described, resource.identity)) if described else ""

    def _metric(self, source: Source, metric: Any) -> Metric | str:
        which = metric.WhichOneof("data")
        data = getattr(metric, which)
        monotonic = which == "sum" and data.is_monotonic
        temporality = 0 if which in {"gauge", "summary"} else data.aggregation_temporality
        key = (metric.name, metric.unit, which, monotonic, temporality, *metric.metadata)
        known = source.metrics.get(key)
        if known is None:
            known = self._new_metric(metric, which, data)
            self._remember()
            source.metrics[key] = known
        return known

    def _new_metric(self, metric: Any, which: str, data: Any) -> Metric | str:
        try:
            hint = dict(attribute_pairs(attributes_of(metric.metadata))).get("prometheus.type", "")
        except DecodeError:
            hint = ""
        kind = kind_of(which, data, hint)
        if kind is None:
            return TEMPORALITY
        final = self.rules.labels.translator.metric(metric.name, metric.unit, kind.naming)
        if final is None:
            return INVALID_NAME
        if kind.family == "info" and not final.name.endswith("_info"):
            kind = Kind("gauge", Gauge, "gauge")
        return Metric(metric.name, final, kind)

    def _labels(self, source: Source, kind: Kind, attributes: Sequence[bytes]) -> str:
        pairs = attribute_pairs(attributes_of(attributes))
        pairs += source.resource.promoted
        pairs += source.scope
        return written(self.rules.labels.merged(pairs, source.resource.identity, kind.reserved))

    def _meet(self, source: Source, metric: Metric, description: str, key: bytes, point: Any) -> str:
        """Find or make the series of a point that was not met before under these bytes, and apply the point."""
        kind, final, store = metric.kind, metric.final, self.store
        try:
            labels = self._labels(source, kind, point.attributes)
            if len(labels) > _MAX_LABELS:
                return LABELS_TOO_LONG
            family = store.family(final.name, kind.family, final.unit, description)
            series = family.series.get(labels)
            enters = type(series) is not kind.series
            if series is None or enters:
                series = store.recall(family, labels, kind.series) or self._make(kind, labels, source)
            reason = series.update(point, store.feed, kind.delta)
            if reason:
                return reason
            if enters:
                store.admit(family, series)
        except DecodeError:
            return MALFORMED
        except Refused as refused:
            self.note(refused.reason, metric.name, str(refused))
            return refused.reason
        self._look_for_conflicts(family, series, source, description)
        self._remember()
        metric.series[key] = series
        return ""

    def _make(self, kind: Kind, labels: str, source: Source) -> Series:
        if kind.series is Exponential:
            return Exponential(labels, source.raw, self.rules.grid)
        return kind.series(labels, source.raw)

    def _look_for_conflicts(self, family: Family, series: Series, source: Source, description: str) -> None:
        if description and family.help != description:
            self.note(HELP_CONFLICT, family.name, f"the description {description!r} is not shown: another came first")
        if series.origin != source.raw:
            if len(self._rivals) < _MAX_RIVALS:
                self._rivals[series.origin] = (source.raw, f"{family.name}{{{series.labels}}}")
            series.origin = source.raw

    def _look_for_rival(self, resource: bytes) -> None:
        """Tell of two resources that send one series in turns. One that only succeeds another is no rival."""
        rival = self._rivals.pop(resource, None)
        if rival is None:
            return
        ours, theirs = (
            {(one.key, str(one.value)) for one in resource_of(raw).attributes} for raw in (resource, rival[0])
        )
        keys = ", ".join(sorted({key for key, _ in ours ^ theirs}))
        self.note(
            COLLISION,
            rival[1],
            f"resources that differ in {keys} send this series, and perhaps others: the newest point is shown; give "
            "each its own service.instance.id",
        )

    def _forget(self, source: Source, metric: Metric, key: bytes, point: Any) -> str:
        """Take out the series of a point that says there is no value any more."""
        if metric.series.pop(key, None) is not None:
            self._remembered -= 1
        family = self.store.families.get(metric.final.name)
        if family is not None:
            try:
                series = family.series.get(self._labels(source, metric.kind, point.attributes))
            except DecodeError:
                return MALFORMED
            if series is not None:
                self.store.remove(family, series)
        return ""

    def _describe(self, source: Source) -> None:
        """Keep the `target_info` of a resource alive: one per job and instance, the newest resource's."""
        if not source.target:
            return
        job_and_instance = tuple(source.resource.identity.items())
        series = self._targets.get(job_and_instance)
        if series is not None and series.labels == source.target and not series.is_dead:
            series.received = self.store.feed.now
            return
        try:
            family = self.store.family(self._target_name, "info", help_="Target metadata")
        except Refused as refused:
            self.note(refused.reason, self._target_name, str(refused))
            return
        if series is not None:
            self.store.remove(family, series)
        series = self._targets[job_and_instance] = Gauge(source.target, source.raw)
        series.value = 1
        self.store.admit(family, series, always=True)

    def _remember(self) -> None:
        """Bound the memory of what was met: it is only a shortcut, and starts anew when there is too much of it."""
        self._remembered += 1
        if self._remembered > 2 * self.store.limits.max_series + 1000:
            self._sources.clear()
            self._remembered = 0

    def adopt(self, other: Intake) -> None:
        """Take over what another one with the same rules has met, together with its store."""
        self.store.adopt(other.store)
        self._sources, other._sources = other._sources, {}
        self._targets, other._targets = other._targets, {}
        self._remembered, other._remembered = other._remembered, 0

    def prune(self) -> Iterator[None]:
        """Forget series that are no longer in the store, a slice at a time. Run it when some have expired."""
        for key, source in list(self._sources.items()):
            for name, metric in list(source.metrics.items()):
                if isinstance(metric, str):
                    continue
                everything = iter(list(metric.series.items()))
                while some := list(islice(everything, _SLICE)):
                    for raw, series in some:
                        if series.is_dead:
                            metric.series.pop(raw, None)
                            self._remembered -= 1
                    yield
                if not metric.series:
                    self._remembered -= source.metrics.pop(name, None) is not None
            if not source.metrics:
                self._remembered -= self._sources.pop(key, None) is not None
        for identity in [identity for identity, series in self._targets.items() if series.is_dead]:
            del self._targets[identity]


def _points(metric: Any) -> Sequence[Any]:
    which = metric.WhichOneof("data")
    return getattr(metric, which).data_points if which else ()
