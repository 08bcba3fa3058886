"""The connector `spanmetrics`: spans become calls and durations, emitted once an interval, within a cap."""

import asyncio
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.otlp import TRACE_ID, traces_request
from support.prometheus import OPENMETRICS, Subject

from config.problems import ConfigError
from sidecar import Batch, BatchContext, Permanent, Retryable, Signal
from sidecar.connectors.aggregation import ExponentialHistogram
from sidecar.connectors.spanmetrics import SpanMetrics
from sidecar.testing import Bench


class Spans:
    """A connector that is fed, and whose metrics a Prometheus page shows."""

    def __init__(self, settings=""):
        self.bench = Bench()
        self.connector = self.bench.make(SpanMetrics, settings, "spanmetrics")

    async def feed(self, count=1, **settings):
        """Spans of 5 ms."""
        message = traces_request(count, **settings)
        await self.connector.export(Batch(Signal.TRACES, message=message, context=BatchContext()))

    async def flush(self):
        """Emit what there is, and return the metrics by name."""
        self.bench.clock.advance(1)
        before = len(self.bench.sink.batches)
        await self.connector._flush()
        return {
            metric.name: metric
            for one in self.bench.sink.batches[before:]
            for scope in one.scopes()
            for metric in scope.metrics
        }


def attributes(point):
    """The attributes of a data point."""
    return {pair.key: pair.value.string_value or pair.value.bool_value for pair in point.attributes}


async def test_counts_calls_and_durations():
    """Names, attributes, unit and buckets are those of the Collector's connector."""
    spans = Spans()
    await spans.feed(3)
    metrics = await spans.flush()
    assert set(metrics) == {"traces.span.metrics.calls", "traces.span.metrics.duration"}
    (calls,) = metrics["traces.span.metrics.calls"].sum.data_points
    assert calls.as_int == 3
    assert attributes(calls) == {
        "service.name": "api",
        "span.name": "GET /",
        "span.kind": "SPAN_KIND_UNSPECIFIED",
        "status.code": "STATUS_CODE_UNSET",
    }
    duration = metrics["traces.span.metrics.duration"]
    (point,) = duration.histogram.data_points
    assert (duration.unit, point.count, point.sum) == ("ms", 3, 15.0)
    assert list(point.explicit_bounds)[:6] == [2, 4, 6, 8, 10, 50]
    assert list(point.bucket_counts)[:4] == [0, 0, 3, 0]


async def test_prometheus_shows_it():
    """Cumulative points and deltas alike add up on the page."""
    for temporality in ("CUMULATIVE", "DELTA"):
        spans = Spans(
            f"{{aggregation_temporality: AGGREGATION_TEMPORALITY_{temporality}, exemplars: {{enabled: true}}}}"
        )
        subject = Subject()
        for _ in range(2):
            await spans.feed(2)
            await spans.flush()
            await subject.exporter.export(spans.bench.sink.batches[-1])
        page = subject.read(OPENMETRICS)
        assert page.value("traces_span_metrics_calls_total", job="api", span_name="GET /") == 4
        assert page.value("traces_span_metrics_duration_milliseconds_sum") == 20
        assert {one.labels["trace_id"] for one in page.exemplars.values()} == {TRACE_ID.hex()}
        assert subject.exporter.feed.gap_count == 0


async def test_dimensions():
    """Of the span, else of its resource, else the default; own ones can be left out; each metric may have more."""
    spans = Spans(
        """
        dimensions: [{name: http.route}, {name: zone, default: none}]
        calls_dimensions: [{name: user}]
        histogram: {unit: s, explicit: {buckets: [1ms, 1s]}, dimensions: [{name: size}]}
        exclude_dimensions: [status.code, span.kind]
        """
    )
    await spans.feed(http__route="/a", user="ann", size="big")
    await spans.feed(user="bob")
    metrics = await spans.flush()
    found = [attributes(point) for point in metrics["traces.span.metrics.calls"].sum.data_points]
    common = {"service.name": "api", "span.name": "GET /", "zone": "none"}
    assert found == [{**common, "http.route": "/a", "user": "ann"}, {**common, "user": "bob"}]
    points = metrics["traces.span.metrics.duration"].histogram.data_points
    assert [attributes(point) for point in points] == [{**common, "http.route": "/a", "size": "big"}, common]
    assert (list(points[0].explicit_bounds), list(points[0].bucket_counts)) == ([0.001, 1.0], [0, 1, 0])


async def test_events_and_disabled_histogram():
    """Events count by their own attributes, too."""
    spans = Spans("{histogram: {disable: true}, events: {enabled: true, dimensions: [{name: exception.type}]}}")
    message = traces_request()
    event = message.resource_spans[0].scope_spans[0].spans[0].events.add(name="exception")
    event.attributes.add(key="exception.type").value.string_value = "KeyError"
    await spans.connector.export(Batch(Signal.TRACES, message=message, context=BatchContext()))
    metrics = await spans.flush()
    assert set(metrics) == {"traces.span.metrics.calls", "traces.span.metrics.events"}
    (point,) = metrics["traces.span.metrics.events"].sum.data_points
    assert attributes(point)["exception.type"] == "KeyError"


async def test_caps_attribute_sets():
    """Over all resources; what comes on top is counted together."""
    spans = Spans("aggregation_cardinality_limit: 2")
    for number in range(4):
        await spans.feed(2, name=f"GET /{number}")
    points = (await spans.flush())["traces.span.metrics.calls"].sum.data_points
    assert [point.as_int for point in points] == [2, 2, 4]
    assert attributes(points[2]) == {"otel.metric.overflow": True}


async def test_caps_resources():
    """The one that was not met for longest makes room."""
    spans = Spans("{resource_metrics_cache_size: 2, aggregation_cardinality_limit: 2}")
    for service in ("a", "b", "a", "c"):
        await spans.feed(service=service)
    await spans.flush()
    shown = [one.resource.attributes[0].value.string_value for one in spans.bench.sink.batches[0].resources()]
    assert shown == ["a", "c"]


async def test_resources_by_chosen_attributes():
    """Those that differ in others only are one."""
    spans = Spans("resource_metrics_key_attributes: [service.name]")
    for pod in ("x", "y"):
        message = traces_request()
        message.resource_spans[0].resource.attributes.add(key="pod").value.string_value = pod
        await spans.connector.export(Batch(Signal.TRACES, message=message, context=BatchContext()))
    (point,) = (await spans.flush())["traces.span.metrics.calls"].sum.data_points
    assert point.as_int == 2


async def test_forgets_what_has_expired():
    """After the set time without spans, and the room is free again."""
    spans = Spans("{metrics_expiration: 60s, aggregation_cardinality_limit: 1}")
    await spans.feed(name="old")
    await spans.flush()
    spans.bench.clock.advance(100)
    assert await spans.flush() == {}
    await spans.feed(name="new")
    (point,) = (await spans.flush())["traces.span.metrics.calls"].sum.data_points
    assert attributes(point)["span.name"] == "new"


async def test_refused_deltas_wait():
    """They come with the next interval, each once; cumulative ones come again by themselves."""
    spans = Spans("{aggregation_temporality: AGGREGATION_TEMPORALITY_DELTA, histogram: {disable: true}}")
    spans.bench.sink.refuse_with = Retryable("full")
    await spans.feed(2)
    await spans.flush()
    spans.bench.sink.refuse_with = None
    await spans.feed(3)
    await spans.flush()
    emitted = [scope.metrics[0].sum.data_points[0].as_int for one in spans.bench.sink.batches for scope in one.scopes()]
    assert emitted == [2, 3]
    assert await spans.flush() == {}


async def test_deltas_that_wait_too_long_are_dropped_and_counted():
    """Memory is bounded; what can never pass is counted too."""
    spans = Spans("{aggregation_temporality: AGGREGATION_TEMPORALITY_DELTA, histogram: {disable: true}}")
    spans.bench.sink.refuse_with = Retryable("full")
    for _ in range(12):
        await spans.feed()
        await spans.flush()
    assert spans.bench.dropped == {(Signal.METRICS, "queue_full"): 2}
    spans.bench.sink.refuse_with = Permanent("no")
    await spans.flush()
    assert spans.bench.dropped[Signal.METRICS, "malformed"] == 10


async def test_emits_once_an_interval_and_at_the_end():
    """The timer runs beside, and a stop loses nothing."""
    spans = Spans("metrics_flush_interval: 20ms")
    await spans.connector.start()
    await spans.feed()
    async with asyncio.timeout(5):
        while not spans.bench.sink.batches:  # noqa: ASYNC110 (the connector's own timer is what is tested)
            await asyncio.sleep(0.005)
    await spans.bench.close()
    await spans.feed()
    await spans.connector.stop()
    last = [scope.metrics[0].sum.data_points[0].as_int for scope in spans.bench.sink.batches[-1].scopes()]
    assert last == [2]


async def test_a_successor_goes_on():
    """After a reload sums go on, unless they are made differently now."""
    for settings, expected in (("metrics_flush_interval: 15s", 5), ("namespace: other", 2)):
        old, new = Spans(), Spans(settings)
        await old.feed(3)
        new.connector.carry(old.connector)
        await new.feed(2)
        (point,) = next(iter((await new.flush()).values())).sum.data_points
        assert point.as_int == expected


async def test_exemplars():
    """The newest ones, as many as wanted, each shown once."""
    spans = Spans("exemplars: {enabled: true, max_per_data_point: 2}")
    await spans.feed(4)
    (point,) = (await spans.flush())["traces.span.metrics.calls"].sum.data_points
    assert [one.span_id for one in point.exemplars] == [bytes(7) + b"\x03", bytes(7) + b"\x04"]
    assert point.exemplars[0].trace_id == TRACE_ID
    assert not (await spans.flush())["traces.span.metrics.calls"].sum.data_points[0].exemplars


@given(st.lists(st.floats(min_value=1e-9, max_value=1e9) | st.just(0.0), min_size=1, max_size=50), st.integers(2, 20))
def test_exponential_histogram_counts_every_value_in_its_bucket(values, max_size):
    """No count is lost, no more buckets than wanted, and the outermost values lie within the outermost buckets."""
    histogram = ExponentialHistogram([], 0, 1, max_size)
    for value in values:
        histogram.add(value)
    point = histogram.point(1)
    positive = [value for value in values if value > 0]
    assert point.zero_count + sum(point.positive.bucket_counts) == point.count == len(values)
    assert len(point.positive.bucket_counts) <= max_size
    if positive:
        base = 2.0 ** (2.0**-point.scale)
        end = point.positive.offset + len(point.positive.bucket_counts)
        assert math.log(min(positive), base) >= point.positive.offset - 1e-3
        assert math.log(max(positive), base) <= end + 1e-3


async def test_exponential_durations():
    """As the settings ask for them."""
    spans = Spans("histogram: {exponential: {max_size: 10}}")
    await spans.feed(3)
    (point,) = (await spans.flush())["traces.span.metrics.duration"].exponential_histogram.data_points
    assert (point.count, sum(point.positive.bucket_counts)) == (3, 3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("histogram: {explicit: {}, exponential: {}}", "only one"),
        ("histogram: {explicit: {buckets: [2ms, 1ms]}}", "ascend"),
        ("dimensions: [{name: span.name}]", "already"),
        ("{dimensions: [{name: a}], calls_dimensions: [{name: a}]}", "already"),
        ("metrics_flush_interval: 0", "above 0"),
    ],
)
def test_settings_that_can_not_work(settings, message):
    """The message says what would."""
    with pytest.raises(ConfigError, match=message):
        Spans(settings)
