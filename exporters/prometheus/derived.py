"""Metrics derived from log records and spans: how many, how long, and the newest trace of each as exemplar.

They count here, over all senders, and so carry no `job` or `instance`: the scraper puts those of this process there.
Each metric has a cap on label sets; what comes on top is counted in one series, `{otel_metric_overflow="true"}`.
"""

from __future__ import annotations

import math
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from exporters.prometheus.exemplars import Exemplar, valid_id
from exporters.prometheus.intake import Refusals
from exporters.prometheus.labels import LabelRules, value_text, written
from exporters.prometheus.series import DEAD, Counter, Histogram
from exporters.prometheus.store import FamilyType, Refused, Store
from sidecar.events import keys
from sidecar.events.sanitise import KINDS, SOURCES

S = TypeVar("S", Counter, Histogram)

SEVERITY: Final = "severity"
_OVERFLOW: Final = {"otel_metric_overflow": "true"}
_WORDS: Final = ("trace", "debug", "info", "warn", "error", "fatal")
# By severity number: four each, from 1 on (data model, "SeverityNumber").
_SEVERITIES: Final = ("unspecified", *(word for word in _WORDS for _ in range(4)))
_SEVERITY_WORDS: Final = {**{word: word for word in _WORDS}, "warning": "warn", "critical": "fatal"}
# Short names for what nearly every query of these metrics groups by (wire contract, §7).
_LOG_LABELS: Final = {keys.SERVICE_NAME: "service", keys.SOURCE: "source", keys.KIND: "kind", SEVERITY: SEVERITY}
_CLOSED: Final = {keys.SOURCE: SOURCES, keys.KIND: KINDS}
_OPERATION: Final = "operation"
_DURATION: Final = "duration_ms"
_SPAN_KINDS: Final[dict[int, str]] = {number: name for name, number in Span.SpanKind.items()}
_STATUS_CODES: Final[dict[int, str]] = {number: name for name, number in Status.StatusCode.items()}
_SPAN_LABELS: Final[dict[str, Callable[[Any], str]]] = {
    "span.name": lambda span: str(span.name),
    "span.kind": lambda span: _SPAN_KINDS.get(span.kind, _SPAN_KINDS[0]),
    "status.code": lambda span: _STATUS_CODES.get(span.status.code, _STATUS_CODES[0]),
}


@dataclass(frozen=True, slots=True)
class DerivedMetric:
    """What a derived metric is called, and the labels that its series have."""

    name: str
    unit: str
    help: str
    labels: tuple[str, ...]


class Derived(Generic[S]):
    """The series of one derived metric, by the values of its labels."""

    def __init__(
        self, store: Store, rules: LabelRules, metric: DerivedMetric, make: Callable[[str], S], limit: int
    ) -> None:
        like = make("")
        self._type: FamilyType = "counter" if isinstance(like, Counter) else "histogram"
        self._class: type[S] = type(like)
        self._store = store
        self._rules = rules
        self._metric = metric
        self._make: Callable[[str], S] = make
        self._limit = limit
        final = rules.translator.metric(metric.name, metric.unit, self._type)
        if final is None:
            raise ValueError(f"{metric.name!r} is no metric name")
        self.name = final.name
        self._unit = final.unit
        self._known: dict[tuple[str, ...], S] = {}

    def of(self, values: tuple[str, ...], now: int) -> S:
        """The series with these values of the labels, or the overflow's. `now`: Unix nanoseconds.

        Raises:
            Refused: the store has no room, or another metric has the name.
        """
        series = self._known.get(values)
        if series is None or series.received == DEAD:
            series = self._enter(values, now)
        return series

    def _enter(self, values: tuple[str, ...], now: int) -> S:
        store = self._store
        family = store.family(self.name, self._type, self._unit, self._metric.help)
        pairs = [pair for pair in zip(self._metric.labels, values, strict=True) if pair[1]]
        labels = written(self._rules.merged(pairs, {}))
        overflows = len(family.series) >= self._limit and labels not in family.series
        if overflows:
            labels = written(_OVERFLOW)
        found = family.series.get(labels)
        if isinstance(found, self._class):
            return found
        series = store.recall(family, labels, self._class)
        if series is None:
            series = self._make(labels)
            series.start = now
        store.admit(family, series, always=overflows)
        if not overflows:
            if len(self._known) > 2 * self._limit:
                self._known = {key: one for key, one in self._known.items() if one.received != DEAD}
            self._known[values] = series
        return series


class LogMetrics:
    """`telemetry_events_total` and `telemetry_event_duration_seconds`, and `log_records_total` for all other records.

    Of the chosen labels an event's counter has all but `service.name`, since its source says who, and that of other
    records has all but `telemetry.…`.
    """

    def __init__(
        self, store: Store, rules: LabelRules, labels: Sequence[str], buckets: Sequence[float], limit: int
    ) -> None:
        self._store = store
        event = [key for key in labels if key != keys.SERVICE_NAME]
        timed = [*(key for key in event if key in _CLOSED), _OPERATION]
        other = [key for key in labels if key not in _CLOSED]
        columns = self._columns = _Columns([*labels, SEVERITY, keys.SOURCE, keys.KIND, _OPERATION, _DURATION])
        self._severity, self._source, self._kind, self._duration = (
            columns.index[key] for key in (SEVERITY, keys.SOURCE, keys.KIND, _DURATION)
        )
        self._event, self._timed, self._other = (columns.of_keys(chosen) for chosen in (event, timed, other))

        def named(name: str, unit: str, help_: str, chosen: Sequence[str]) -> DerivedMetric:
            names = tuple(_LOG_LABELS.get(key) or rules.translator.label(key) for key in chosen)
            return DerivedMetric(name, unit, help_, names)

        self._events = Derived(
            store, rules, named("telemetry_events_total", "", "Telemetry events received", event), Counter, limit
        )
        self._records = Derived(
            store, rules, named("log_records_total", "", "Log records received", other), Counter, limit
        )
        self._durations = Derived(
            store,
            rules,
            named("telemetry_event_duration_seconds", "s", "How long what telemetry events report took", timed),
            histogram(buckets),
            limit,
        )

    def take(self, message: Any, now: int) -> Refusals:
        """Count the records of an ExportLogsServiceRequest. `now`: Unix nanoseconds."""
        refusals: Refusals = Tally()
        columns = self._columns
        for resource in message.resource_logs:
            common = columns.row(resource.resource.attributes)
            for scope in resource.scope_logs:
                for record in scope.log_records:
                    row = common.copy()
                    columns.fill(row, record.attributes)
                    row[self._severity] = severity_of(record)
                    try:
                        self._count(record, row, now)
                    except Refused as refused:
                        refusals[refused.reason, "logs"] += 1
        return refusals

    def _count(self, record: Any, row: list[str], now: int) -> None:
        feed = self._store.feed
        time = record.time_unix_nano or record.observed_time_unix_nano or now
        exemplar = _exemplar(1.0, time, record)
        if not (row[self._source] or row[self._kind]):
            self._records.of(self._other(row), now).count(time, exemplar, feed)
            return
        for position, closed in ((self._source, SOURCES), (self._kind, KINDS)):
            if row[position] not in closed:
                row[position] = "custom"
        self._events.of(self._event(row), now).count(time, exemplar, feed)
        seconds = _seconds(row[self._duration])
        if seconds is not None:
            exemplar = exemplar and exemplar._replace(value=seconds)
            self._durations.of(self._timed(row), now).observe(seconds, time, exemplar, feed)


class SpanMetrics:
    """Calls and durations by the chosen labels, under the names that the Collector's spanmetrics connector gives."""

    def __init__(
        self, store: Store, rules: LabelRules, labels: Sequence[str], buckets: Sequence[float], limit: int
    ) -> None:
        self._store = store
        self._columns = _Columns(labels)
        self._labels = self._columns.of_keys(labels)
        self._own = [
            (position, _SPAN_LABELS[key]) for key, position in self._columns.index.items() if key in _SPAN_LABELS
        ]
        self._looks = any(key not in _SPAN_LABELS and key != keys.SERVICE_NAME for key in labels)
        names = tuple(map(rules.translator.label, labels))
        calls = DerivedMetric("traces.span.metrics.calls", "", "Spans that ended", names)
        durations = DerivedMetric("traces.span.metrics.duration", "s", "How long spans took", names)
        self._calls = Derived(store, rules, calls, Counter, limit)
        self._durations = Derived(store, rules, durations, histogram(buckets), limit)

    def take(self, message: Any, now: int) -> Refusals:
        """Count the spans of an ExportTraceServiceRequest. `now`: Unix nanoseconds."""
        refusals: Refusals = Tally()
        for resource in message.resource_spans:
            common = self._columns.row(resource.resource.attributes)
            for scope in resource.scope_spans:
                for span in scope.spans:
                    row = common.copy()
                    if self._looks:
                        self._columns.fill(row, span.attributes)
                    for position, read in self._own:
                        row[position] = read(span)
                    try:
                        self._count(span, self._labels(row), now)
                    except Refused as refused:
                        refusals[refused.reason, "traces"] += 1
        return refusals

    def _count(self, span: Any, values: tuple[str, ...], now: int) -> None:
        end = span.end_time_unix_nano
        seconds = max(end - span.start_time_unix_nano, 0) / 1e9
        exemplar = _exemplar(seconds, end, span)
        self._calls.of(values, now).count(end, exemplar, self._store.feed)
        self._durations.of(values, now).observe(seconds, end, exemplar, self._store.feed)


class _Columns:
    """Where the values of wanted attributes go: one column per key."""

    def __init__(self, wanted: Iterable[str]) -> None:
        self.index = {key: position for position, key in enumerate(dict.fromkeys(wanted))}

    def of_keys(self, chosen: Iterable[str]) -> Callable[[list[str]], tuple[str, ...]]:
        """Takes the values of those keys out of a row."""
        positions = tuple(self.index[key] for key in chosen)
        return lambda row: tuple([row[position] for position in positions])

    def row(self, attributes: Iterable[Any]) -> list[str]:
        """A row with the values of a resource's attributes."""
        row = [""] * len(self.index)
        self.fill(row, attributes)
        return row

    def fill(self, row: list[str], attributes: Iterable[Any]) -> None:
        """Put the values of wanted attributes into their columns."""
        column = self.index.get
        for one in attributes:
            position = column(one.key)
            if position is not None:
                value = one.value
                row[position] = value.string_value or value_text(value)


def histogram(bounds: Sequence[float]) -> Callable[[str], Histogram]:
    """Makes empty histograms with these bounds."""
    shared = tuple(map(float, bounds))

    def make(labels: str) -> Histogram:
        made = Histogram(labels)
        made.bounds, made.counts = shared, [0] * (len(shared) + 1)
        return made

    return make


def severity_of(record: Any) -> str:
    """The severity of a log record as one of seven words: by its number, else by its text."""
    number: int = record.severity_number
    if 0 < number < len(_SEVERITIES):
        return _SEVERITIES[number]
    return _SEVERITY_WORDS.get(str(record.severity_text).lower(), _SEVERITIES[0])


def _exemplar(value: float, time: int, item: Any) -> Exemplar | None:
    trace_id = valid_id(item.trace_id, 16)
    return Exemplar(value, time, trace_id, valid_id(item.span_id, 8)) if trace_id else None


def _seconds(milliseconds: str) -> float | None:
    try:
        seconds = float(milliseconds) / 1000
    except ValueError:
        return None
    return seconds if 0 <= seconds < math.inf else None
