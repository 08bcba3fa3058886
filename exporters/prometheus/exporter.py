"""Shows OTLP to Prometheus: metrics under their Prometheus names, logs and traces as metrics derived from them."""

from __future__ import annotations

import asyncio
from collections import Counter as Tally
from collections.abc import Iterable, Iterator
from typing import Final, Self

from exporters.prometheus.derived import LogMetrics, SpanMetrics
from exporters.prometheus.escaping import escaped_families
from exporters.prometheus.exponential import Grid
from exporters.prometheus.intake import Intake, IntakeRules, Refusals
from exporters.prometheus.labels import LabelRules
from exporters.prometheus.names import Translator, legal_namespace
from exporters.prometheus.negotiate import Answer, Format
from exporters.prometheus.protobuf import ProtobufFormat
from exporters.prometheus.scrape import Scrapes
from exporters.prometheus.series import Feed
from exporters.prometheus.settings import PrometheusSettings
from exporters.prometheus.store import Family, Limits, Store
from exporters.prometheus.text import OpenMetricsFormat, TextFormat, TextOptions
from exporters.prometheus.view import DecodeError, view_of
from sidecar import Batch, Context, Exporter, Permanent, Signal
from sidecar.callers import Callers
from sidecar.net import HttpLease

# How often what has expired is taken out: a part of the expiration, within these bounds, in seconds.
_SWEEP_SHARE: Final = 0.1
_SWEEP_BOUNDS: Final = (0.1, 15.0)
# Metric names under which refused points are counted one by one, and things that are logged once.
_MAX_NAMED: Final = 100
_MAX_NOTED: Final = 1000

_HINTS: Final = {
    "invalid_name": "its name has no letter or digit that Prometheus could show",
    "unsupported_temporality": "only deltas that never fall, and cumulative values, can be shown",
    "unsupported_scale": "an exponential histogram's scale must be at least -4",
    "no_sum": "an exponential histogram needs a sum",
    "out_of_order": "points older than what is shown are ignored; do two senders share one series?",
    "malformed": "counts, bounds or quantiles contradict each other, or a text is not UTF-8",
    "invalid_value": "a counter can't be negative or NaN",
    "no_value": "points carry no value",
    "series_limit": "max_series is reached",
    "family_limit": "max_families is reached",
    "type_conflict": "a metric of another type has the name",
    "name_conflict": "another metric needs the name",
    "labels_too_long": "the labels of one series are longer than 64 KiB",
}


class PrometheusExporter(Exporter[PrometheusSettings]):
    """Keeps the newest state of every series in memory and shows it to whoever scrapes.

    `export` is immediate and refuses a batch only when it can't be decoded. What can't be shown (a conflict, a cap, bad
    data) is counted by its reason and never costs anything else of the batch or of the page.
    """

    def __init__(self, settings: PrometheusSettings, context: Context) -> None:
        super().__init__(settings, context)
        for warning in settings.deprecated():
            context.logger.warning("exporters.%s: %s", context.id, warning)
        translator = Translator(settings.strategy(), legal_namespace(settings.namespace))
        rules = LabelRules(
            translator,
            distinct=settings.distinct_label_values,
            max_value_length=settings.max_label_value_length,
            constant=tuple(settings.const_labels.items()),
        )
        self._keeps_utf8 = translator.keeps_utf8
        self.feed = Feed(gaps=settings.delta_gaps, expire_by=settings.expire_by)
        self.store = Store(_limits(settings), self.feed)
        # What pages show: the successor's store once it has taken over the series, while a scrape is under way here.
        self._shown = self.store
        self._intake = Intake(self.store, _intake_rules(settings, rules), self._note)
        logs, traces = settings.logs, settings.traces
        self._logs = LogMetrics(self.store, rules, logs.labels, logs.buckets, logs.aggregation_cardinality_limit)
        self._spans = SpanMetrics(
            self.store, rules, traces.labels, traces.buckets, traces.aggregation_cardinality_limit
        )
        options = TextOptions(settings.send_timestamps, settings.created_lines)
        self._formats: dict[Format, TextFormat | ProtobufFormat] = {
            Format.TEXT: TextFormat(options),
            Format.OPENMETRICS: OpenMetricsFormat(options),
            Format.PROTOBUF: ProtobufFormat(timestamps=settings.send_timestamps),
        }
        self._noted: set[tuple[str, str]] = set()
        self._named: set[str] = set()
        self._swept = 0.0
        self._sweeping = asyncio.Lock()
        self._measure()
        self._lease = self._listen()

    def _listen(self) -> HttpLease:
        settings, context = self.settings, self.context
        callers = Callers(context, settings.auth) if settings.auth is not None else None
        scrapes = Scrapes(
            self.page,
            self.sweep,
            callers,
            openmetrics=settings.enable_open_metrics,
            limit=settings.max_concurrent_scrapes,
            meter=context.meter,
        )
        lease = context.listeners.http(settings.endpoint, f"exporters.{context.id}: endpoint", settings.server())
        lease.route("GET", settings.path, scrapes.serve)
        return lease

    @property
    def port(self) -> int:
        """The bound port, once started."""
        return self._lease.port

    async def start(self) -> None:
        """Listen, and take out from time to time what has expired."""
        await self._lease.open()
        self.context.spawn(self._sweep_regularly(), "sweep")
        self.context.health.ok()

    async def stop(self) -> None:
        """Finish the scrapes under way, and let go of the listener."""
        await self._lease.close()

    def carry(self, old: Self) -> None:
        """Go on with the series of the exporter that this one succeeds, unless names or labels are made differently."""
        ours, theirs = self.settings, old.settings
        if (self._intake.rules, ours.logs, ours.traces) == (old._intake.rules, theirs.logs, theirs.traces):
            self._intake.adopt(old._intake)
            old._shown = self.store

    async def export(self, batch: Batch) -> None:
        """Update the series.

        Raises:
            Permanent: the batch can't be decoded.
        """
        self.feed.now = self.context.clock.monotonic()
        if batch.signal is Signal.METRICS:
            try:
                data = view_of(batch.encode())
            except DecodeError as error:
                raise Permanent(f"not an OTLP metrics request: {error}") from None
            refusals = self._intake.take(data)
        elif batch.signal is Signal.LOGS:
            refusals = self._logs.take(batch.message, self.context.clock.time_ns())
        else:
            refusals = self._spans.take(batch.message, self.context.clock.time_ns())
        if refusals:
            self._refuse(batch.signal, refusals)

    def page(self, answer: Answer) -> Iterator[bytes]:
        """The page in chunks of some milliseconds at most."""
        families: Iterable[Family] = sorted(self._shown.families.values(), key=lambda family: family.type != "info")
        if answer.scheme == "dots" or (self._keeps_utf8 and answer.scheme != "allow-utf-8"):
            families = escaped_families(families, answer.scheme, self._note)
        return self._formats[answer.format].render(families)

    async def sweep(self) -> None:
        """Take out what has expired, with room for other work in between."""
        now = self.context.clock.monotonic()
        if self._sweeping.locked() or now < self._swept + _SWEEP_BOUNDS[0]:
            return
        async with self._sweeping:
            self._swept = self.feed.now = now
            expired = 0
            for count in self.store.expire():
                expired += count
                await asyncio.sleep(0)
            if expired:
                for _ in self._intake.prune():
                    await asyncio.sleep(0)

    async def _sweep_regularly(self) -> None:
        limits = self.store.limits
        expirations = [one for one in (limits.gauge_expiration, limits.counter_expiration) if one]
        low, high = _SWEEP_BOUNDS
        while expirations:
            await asyncio.sleep(min(max(min(expirations) * _SWEEP_SHARE, low), high))
            await self.sweep()

    def _refuse(self, signal: Signal, refusals: Refusals) -> None:
        by_reason: Tally[str] = Tally()
        for (reason, name), count in refusals.items():
            by_reason[reason] += count
            shown = name if name in self._named or len(self._named) < _MAX_NAMED else "other"
            self._named.add(shown)
            self.context.meter.counter(
                "sidecar_prometheus_refused_points",
                "Points, log records and spans that are not shown, by metric name and reason.",
                metric=shown[:200],
                reason=reason,
            ).add(count)
            self._note(reason, name, _HINTS.get(reason, ""))
        for reason, count in by_reason.items():
            self.context.dropped(signal, reason, count)

    def _note(self, reason: str, metric: str, detail: str) -> None:
        """Tell a person once per reason and metric."""
        if (reason, metric) not in self._noted and len(self._noted) < _MAX_NOTED:
            self._noted.add((reason, metric))
            self.context.logger.warning("exporters.%s: %.200r: %s: %.1000s", self.context.id, metric, reason, detail)

    def _measure(self) -> None:
        meter, store = self.context.meter, self.store
        for name, description, read in (
            ("series", "Series that a scrape shows.", lambda: store.size),
            ("series_limit", "Series that a scrape may show (max_series).", lambda: store.limits.max_series),
            ("families", "Metric names that a scrape shows.", lambda: len(store.families)),
            ("delta_gaps", "Deltas that did not start where the last one ended.", lambda: store.feed.gap_count),
        ):
            meter.gauge(f"sidecar_prometheus_{name}", description, read)


def _limits(settings: PrometheusSettings) -> Limits:
    gauges, counters = (
        settings.metric_expiration if one is None else one
        for one in (settings.gauge_expiration, settings.counter_expiration)
    )
    return Limits(settings.max_series, settings.max_families, gauges, counters)


def _intake_rules(settings: PrometheusSettings, rules: LabelRules) -> IntakeRules:
    return IntakeRules(
        rules,
        promote=settings.promoted(),
        describe=settings.target_info_attributes.selection() if settings.target_info_enabled else None,
        job_label=settings.identity_labels.job,
        instance_label=settings.identity_labels.instance,
        scope_labels=settings.scope_info_enabled and not settings.without_scope_info,
        grid=Grid(settings.exponential_histograms.min_exponent, settings.exponential_histograms.max_exponent),
    )
