"""OTLP metrics in Datadog's terms."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from support import otlp_metrics as otlp
from support.otlp import readable

from exporters.datadog.metrics import MetricMapper
from exporters.datadog.points import Key, Points, SecondTotals
from exporters.datadog.resource import Defaults, Origins
from exporters.datadog.settings import MetricsSettings
from exporters.datadog.sketches import key_of
from sidecar.testing import settings_from_yaml

NOW = otlp.T0 + 60
STARTED = otlp.nanoseconds(-1)


class Mapping:
    """A mapper with what it leaves out."""

    def __init__(self, settings: str = "", started: int = STARTED) -> None:
        self.left_out: Counter[str] = Counter()
        self._mapper = MetricMapper(
            Origins(Defaults()), settings_from_yaml(settings, MetricsSettings), started, self._count
        )

    def _count(self, reason, points):
        self.left_out[reason] += points

    def __call__(self, *metrics, now=NOW, **options) -> Points:
        """What a request with these metrics becomes."""
        request = otlp.request(*metrics, **{"resource": {}, **options})
        return self._mapper.map(readable(request), local=False, now_ns=int(now * 1e9), now=now)


def numbers(values) -> dict:
    """Numbers by name and tags."""
    return {(key.metric, *key.tags): value.number for key, value in values.items()}


def test_gauges_and_deltas():
    """A gauge is a gauge, what was added is a count; host, tags, unit and second are there."""
    points = Mapping()(
        otlp.gauge("g", otlp.point(1.5, {"b": 2, "a": ""}), unit="By"),
        otlp.sum_("c", otlp.point(3), temporality=otlp.DELTA),
        otlp.sum_("u", otlp.point(-3), temporality=otlp.DELTA, monotonic=False),
        resource={"host.name": "web-1", "service.name": "shop"},
    )
    ((key, value),) = points.gauges.items()
    assert key == Key("g", "web-1", ("a:n/a", "b:2", "service:shop"), otlp.T0 + 10)
    assert (value.number, value.unit, value.items) == (1.5, "byte", [0])
    assert numbers(points.counts) == {("c", "service:shop"): 3, ("u", "service:shop"): -3}
    assert [value.items for value in points.counts.values()] == [[1], [2]]


def test_cumulative_sums_become_what_was_added():
    """And those that go up and down are gauges."""
    mapping = Mapping(started=otlp.nanoseconds(5))
    first = mapping(otlp.sum_("c", otlp.point(5)), otlp.sum_("u", otlp.point(5), monotonic=False))
    assert not first.counts
    assert numbers(first.gauges) == {("u",): 5}
    assert numbers(mapping(otlp.sum_("c", otlp.point(7, time=20))).counts) == {("c",): 2}
    raw = Mapping("sums: {cumulative_monotonic_mode: raw_value}")(otlp.sum_("c", otlp.point(5)))
    assert numbers(raw.gauges) == {("c",): 5}


def test_every_series_of_a_request_has_its_first_value():
    """Two series that begin in one request after the exporter are both whole (mapping-go#277)."""
    points = Mapping()(otlp.sum_("c", otlp.point(46950, zone="a"), otlp.point(61920, zone="b")))
    assert numbers(points.counts) == {("c", "zone:a"): 46950, ("c", "zone:b"): 61920}


def test_series_differ_by_host_and_resource():
    """The same name from two hosts is two series."""
    mapping = Mapping(started=otlp.nanoseconds(5))
    for host in ("a", "b"):
        mapping(otlp.sum_("c", otlp.point(100 if host == "a" else 1)), resource={"host.name": host})
    points = mapping(otlp.sum_("c", otlp.point(3, time=20)), resource={"host.name": "b"})
    assert numbers(points.counts) == {("c",): 2}


def test_explicit_histograms_are_distributions():
    """Of what was added, with the item on the one sketch."""
    mapping = Mapping(started=otlp.nanoseconds(5))
    assert not mapping(otlp.histogram("h", otlp.buckets([1, 2], [5, 5, 5], 20.0))).distributions
    points = mapping(otlp.histogram("h", otlp.buckets([1, 2], [5, 7, 5], 23.0, time=20)))
    ((key, one),) = points.distributions.items()
    assert (key.metric, one.items) == ("h", [0])
    assert (one.sketch.count, one.sketch.total) == (2, 3.0)
    assert all(key_of(1) <= k <= key_of(2) for k in one.sketch.bins)
    assert not mapping(otlp.histogram("h", otlp.buckets([1, 2], [5, 7, 5], 23.0, time=30))).distributions


def test_histograms_as_counts_of_their_buckets():
    """Bounds are tags; the item is on the first bucket alone, since it is settled once."""
    points = Mapping("histograms: {mode: counters}")(
        otlp.histogram("h", otlp.buckets([0, 2.5], [1, 2, 3], 9.0), temporality=otlp.DELTA)
    )
    assert numbers(points.counts) == {
        ("h.bucket", "lower_bound:-inf", "upper_bound:0"): 1,
        ("h.bucket", "lower_bound:0", "upper_bound:2.5"): 2,
        ("h.bucket", "lower_bound:2.5", "upper_bound:inf"): 3,
    }
    assert [value.items for value in points.counts.values()] == [[0], [], []]


@pytest.mark.parametrize("mode", ["distributions", "counters", "nobuckets"])
def test_aggregations_of_histograms(mode):
    """In every mode; the smallest and the largest value where they are known."""
    point = otlp.buckets([1], [1, 2], 9.0)
    point.min, point.max = 0.5, 7.5
    mapping = Mapping(f"histograms: {{mode: {mode}, send_aggregation_metrics: true}}")
    points = mapping(
        otlp.histogram("h", point, temporality=otlp.DELTA),
        otlp.exponential("e", otlp.exponential_point(0, (0, [3]), total=4.0), temporality=otlp.DELTA),
    )
    counts = numbers(points.counts)
    assert {counts[name,] for name in ("h.count", "e.count")} == {3}
    assert (counts["h.sum",], counts["e.sum",]) == (9.0, 4.0)
    assert numbers(points.gauges) == {("h.min",): 0.5, ("h.max",): 7.5}
    items = [*points.counts.values(), *points.gauges.values(), *points.distributions.values()]
    assert sorted(position for one in items for position in one.items) == [0, 1]


def test_exponential_histograms_of_both_temporalities():
    """A cumulative one is compared with its last point, as every cumulative series."""
    mapping = Mapping(started=otlp.nanoseconds(5))
    delta = mapping(otlp.exponential("e", otlp.exponential_point(0, (0, [3])), temporality=otlp.DELTA))
    assert [one.sketch.count for one in delta.distributions.values()] == [3]
    assert not mapping(otlp.exponential("e", otlp.exponential_point(2, (0, [3]), total=4.0))).distributions
    points = mapping(otlp.exponential("e", otlp.exponential_point(1, (0, [4, 2]), total=9.0, time=20)))
    ((_, one),) = points.distributions.items()
    assert (one.sketch.count, one.sketch.total) == (3, 5.0)


def test_summaries():
    """Count and sum of what was added, quantiles as they are."""
    mapping = Mapping(started=otlp.nanoseconds(5))
    first = mapping(otlp.summary("s", otlp.quantiles({0.5: 1.0, 0.99: 7.0}, 10, 20.0)))
    assert numbers(first.gauges) == {("s.quantile", "quantile:0.5"): 1.0, ("s.quantile", "quantile:0.99"): 7.0}
    assert not first.counts
    second = mapping(otlp.summary("s", otlp.quantiles({1.0: 9.0}, 12, 25.0, time=20)))
    assert numbers(second.counts) == {("s.count",): 2, ("s.sum",): 5.0}
    assert numbers(second.gauges) == {("s.quantile", "quantile:1.0"): 9.0}
    quiet = Mapping("summaries: {mode: noquantiles}")(otlp.summary("s", otlp.quantiles({0.5: 1.0}, 10, 20.0)))
    assert not quiet.gauges


@pytest.mark.parametrize(
    ("metric", "reason"),
    [
        (otlp.gauge("g", otlp.point(math.nan)), "not_a_number"),
        (otlp.gauge("g", otlp.point(math.inf)), "not_a_number"),
        (otlp.sum_("c", otlp.point(-math.inf), temporality=otlp.DELTA), "not_a_number"),
        (otlp.summary("s", otlp.quantiles({}, 1, math.nan)), "not_a_number"),
        (otlp.gauge("g", otlp.point(1, flagged=True)), "no_value"),
        (otlp.gauge("g", otlp.point(1, time=-3700)), "too_old"),
        (otlp.gauge("g", otlp.point(1, time=700)), "in_future"),
        (otlp.sum_("c", otlp.point(1), temporality=0), "malformed"),
        (otlp.histogram("h", otlp.buckets([2, 1], [1, 2, 3], 9.0), temporality=otlp.DELTA), "malformed"),
        (otlp.histogram("h", otlp.buckets([1], [1, 2], 9.0), temporality=0), "malformed"),
        (otlp.exponential("e", otlp.exponential_point(0, (0, [1])), temporality=0), "malformed"),
    ],
)
def test_points_that_datadog_can_not_take_are_counted_out(metric, reason):
    """Each alone, with its reason; the point beside it arrives."""
    mapping = Mapping()
    points = mapping(metric, otlp.gauge("good", otlp.point(2)))
    assert mapping.left_out == {reason: 1}
    assert numbers(points.gauges) == {("good",): 2}
    assert [value.items for value in points.gauges.values()] == [[1]]


def test_points_that_are_not_newer_are_counted_out():
    """A cumulative point that has been seen would count twice."""
    mapping = Mapping()
    mapping(otlp.sum_("c", otlp.point(5)))
    assert not mapping(otlp.sum_("c", otlp.point(5))).counts
    assert mapping.left_out == {"out_of_order": 1}


def test_alike_points_of_a_second_are_put_together():
    """Of one series and second Datadog keeps what comes last: counts are added up, gauges replace each other."""
    mapping = Mapping()
    points = mapping(
        otlp.sum_("c", otlp.point(3), otlp.point(4, time=10.5), temporality=otlp.DELTA),
        otlp.gauge("g", otlp.point(3), otlp.point(4, time=10.5)),
        otlp.histogram("h", *(otlp.buckets([1], [1, 1], 2.0) for _ in range(2)), temporality=otlp.DELTA),
    )
    assert numbers(points.counts) == {("c",): 7}
    assert numbers(points.gauges) == {("g",): 4}
    assert [one.sketch.count for one in points.distributions.values()] == [4]
    items = [
        value.items for values in (points.counts, points.gauges, points.distributions) for value in values.values()
    ]
    assert items == [[0, 1], [2, 3], [4, 5]]


def test_a_later_request_for_the_same_second_brings_the_total():
    """Workers that share their tags meet in a second: the last request must not replace the first one's count."""
    mapping = Mapping()
    mapping(otlp.sum_("c", otlp.point(3), temporality=otlp.DELTA))
    assert numbers(mapping(otlp.sum_("c", otlp.point(4), temporality=otlp.DELTA)).counts) == {("c",): 7}


def test_the_memory_of_seconds_is_bounded():
    """In time and in number."""
    totals = SecondTotals(memory=30, max_keys=2)
    for second, now, expected in (
        (1, 0, 1),
        (1, 1, 2),
        (2, 2, 1),
        (3, 3, 1),
        (1, 4, 1),
        (3, 40, 2),
        (4, 41, 1),
        (1, 42, 1),
    ):
        points = Points()
        points.count(Key("c", "", (), second), 1, "", [0])
        totals.add(points.counts, now)
        assert [value.number for value in points.counts.values()] == [expected]


def test_names_of_host_metrics_are_kept_apart():
    """Datadog's Agent has metrics of that name with other meanings; DogStatsD's names are what the sender wants."""
    metrics = [otlp.gauge(name, otlp.point(1)) for name in ("system.cpu.time", "process.cpu.time", "systems")]
    names = {key.metric for key in Mapping()(*metrics).gauges}
    assert names == {"otel.system.cpu.time", "otel.process.cpu.time", "systems"}
    names = {key.metric for key in Mapping()(*metrics, scope=("dogstatsd", "")).gauges}
    assert names == {"system.cpu.time", "process.cpu.time", "systems"}


def test_tags_of_dogstatsd_are_what_they_were():
    """A tag without a value, and several of one name; an attribute of OpenTelemetry is one tag with a value."""
    point = otlp.point(1, {"alone": "", "many": ["a", "", "b"], "one": "x"})
    ((key, _),) = Mapping()(otlp.gauge("g", point), scope=("dogstatsd", "")).gauges.items()
    assert key.tags == ("alone", "many", "many:a", "many:b", "one:x")
    ((key, _),) = Mapping()(otlp.gauge("g", point)).gauges.items()
    assert key.tags == ("alone:n/a", 'many:["a"_""_"b"]', "one:x")


def test_the_scope_as_tags():
    """When asked for."""
    settings = "instrumentation_scope_metadata_as_tags: true"
    ((key, _),) = Mapping(settings)(otlp.gauge("g", otlp.point(1))).gauges.items()
    assert key.tags == ("instrumentation_scope:lib", "instrumentation_scope_version:1.0")


def test_a_point_without_a_time_is_now():
    """Rather than in 1970."""
    point = otlp.point(1)
    point.time_unix_nano = 0
    ((key, _),) = Mapping()(otlp.gauge("g", point)).gauges.items()
    assert key.second == NOW
