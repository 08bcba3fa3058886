"""The connector `count`: what passes is counted, split by attributes, within a cap."""

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality
from support.otlp import logs_request, metrics_request, traces_request
from support.prometheus import Subject

from config.problems import ConfigError
from sidecar import Batch, BatchContext, Retryable, Signal
from sidecar.connectors.count import Count
from sidecar.testing import Bench


def batch(signal, message):
    """A batch of a message."""
    return Batch(signal, message=message, context=BatchContext())


def counts(emitted):
    """The counts of emitted batches, by metric name and attributes."""
    return {
        (
            metric.name,
            *(f"{pair.key}={pair.value.string_value or pair.value.bool_value}" for pair in point.attributes),
        ): point.as_int
        for one in emitted
        for scope in one.scopes()
        for metric in scope.metrics
        for point in metric.sum.data_points
    }


async def test_counts_everything_by_default():
    """Each signal has its metrics, with the names that the Collector gives."""
    bench = Bench()
    connector = bench.make(Count)
    spans = traces_request(3)
    spans.resource_spans[0].scope_spans[0].spans[0].events.add(name="a")
    await connector.export(batch(Signal.LOGS, logs_request(2)))
    await connector.export(batch(Signal.TRACES, spans))
    await connector.export(batch(Signal.METRICS, metrics_request(4)))
    assert counts(bench.sink.batches) == {
        ("log.record.count",): 2,
        ("trace.span.count",): 3,
        ("trace.span.event.count",): 1,
        ("metric.count",): 1,
        ("metric.datapoint.count",): 4,
    }
    first = bench.sink.batches[0].message.resource_metrics[0]
    assert first.resource.attributes[0].value.string_value == "api"
    metric = first.scope_metrics[0].metrics[0]
    assert metric.description == "The number of log records observed."
    assert metric.sum.aggregation_temporality == AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
    assert metric.sum.is_monotonic


async def test_splits_by_attributes():
    """Of the record, else of its resource, else the default; a record without any is not counted."""
    bench = Bench()
    connector = bench.make(
        Count,
        "logs: {by.user: {description: x, attributes: [{key: user}]}, "
        "by.all: {attributes: [{key: user, default_value: none}, {key: service.name}]}}",
    )
    await connector.export(batch(Signal.LOGS, logs_request(2, user="ann")))
    await connector.export(batch(Signal.LOGS, logs_request(3)))
    assert counts(bench.sink.batches) == {
        ("by.user", "user=ann"): 2,
        ("by.all", "user=ann", "service.name=api"): 2,
        ("by.all", "user=none", "service.name=api"): 3,
    }


async def test_nothing_to_count_emits_nothing():
    """No empty batch goes on."""
    bench = Bench()
    await bench.make(Count, "logs: {x: {attributes: [{key: nowhere}]}}").export(batch(Signal.LOGS, logs_request()))
    assert not bench.sink.batches


async def test_equal_resources_of_one_batch_are_one():
    """A joined request names one resource many times; its deltas must not stand beside each other."""
    bench = Bench()
    request = logs_request(2)
    request.MergeFrom(logs_request(3))
    request.MergeFrom(logs_request(1, service="web"))
    await bench.make(Count).export(batch(Signal.LOGS, request))
    points = [point.as_int for scope in bench.sink.batches[0].scopes() for point in scope.metrics[0].sum.data_points]
    assert points == [5, 1]


async def test_deltas_join_each_other():
    """Each begins where the last one ended, also within one tick of the clock: the Prometheus exporter adds them up."""
    bench = Bench()
    connector = bench.make(Count)
    subject = Subject()
    for _ in range(3):
        await connector.export(batch(Signal.LOGS, logs_request(2)))
        await subject.exporter.export(bench.sink.batches[-1])
    assert subject.read().value("log_record_count_total", job="api") == 6
    assert subject.exporter.feed.gap_count == 0


async def test_caps_attribute_sets():
    """What comes on top is counted together; sets that were long not met make room."""
    bench = Bench()
    connector = bench.make(Count, "{logs: {x: {attributes: [{key: user}]}}, aggregation_cardinality_limit: 2}")
    for user in ("a", "b", "c", "d", "a"):
        await connector.export(batch(Signal.LOGS, logs_request(user=user)))
    assert [set(counts([one])) for one in bench.sink.batches] == [
        {("x", "user=a")},
        {("x", "user=b")},
        {("x", "otel.metric.overflow=True")},
        {("x", "otel.metric.overflow=True")},
        {("x", "user=a")},
    ]
    bench.clock.advance(4000)
    await connector.export(batch(Signal.LOGS, logs_request(user="c")))
    assert set(counts(bench.sink.batches[-1:])) == {("x", "user=c")}


async def test_a_refused_count_is_the_senders_to_repeat():
    """The batch is refused as a whole, and counts once when it comes again."""
    bench = Bench()
    connector = bench.make(Count)
    bench.sink.refuse_with = Retryable("full")
    with pytest.raises(Retryable):
        await connector.export(batch(Signal.LOGS, logs_request(2)))
    bench.sink.refuse_with = None
    await connector.export(batch(Signal.LOGS, logs_request(2)))
    assert counts(bench.sink.batches) == {("log.record.count",): 2}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("logs: {x: {conditions: ['true']}}", "OTTL"),
        ("metrics: {x: {attributes: [{key: a}]}}", "data points"),
        ("logs: {x: {attributes: [{key: ''}]}}", "empty"),
    ],
)
def test_settings_that_can_not_work(settings, message):
    """The message says what would."""
    with pytest.raises(ConfigError, match=message):
        Bench().make(Count, settings)
