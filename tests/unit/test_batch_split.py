"""Dividing a batch: nothing is lost, nothing is doubled, and every item keeps what it lies in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar import SCHEMAS, Batch, BatchContext, Permanent, Signal
from sidecar.batch import points_of

KINDS = ("gauge", "sum", "histogram", "exponential_histogram", "summary")

# Resources, their scopes, and how many items each scope holds (for metrics: how many points each metric holds).
shapes = st.lists(st.lists(st.integers(0, 5), max_size=4), max_size=4)
metric_shapes = st.lists(st.lists(st.lists(st.integers(0, 5), max_size=3), max_size=3), max_size=3)


def logs(shape):
    """A logs batch of that shape, its records numbered."""
    request = SCHEMAS[Signal.LOGS].request()
    number = 0
    for r, scopes in enumerate(shape):
        resource = request.resource_logs.add(schema_url=f"resource {r}")
        resource.resource.attributes.add(key="r").value.int_value = r
        for s, count in enumerate(scopes):
            scope = resource.scope_logs.add(schema_url=f"scope {r}.{s}")
            scope.scope.name = f"{r}.{s}"
            for _ in range(count):
                scope.log_records.add(observed_time_unix_nano=number).body.string_value = f"{r}.{s}"
                number += 1
    return Batch(Signal.LOGS, request.SerializeToString(), context=BatchContext())


def metrics(shape):
    """A metrics batch of that shape, its points numbered, its metrics of all kinds in turn."""
    request = SCHEMAS[Signal.METRICS].request()
    number = metric_number = 0
    for scopes in shape:
        resource = request.resource_metrics.add()
        for counts in scopes:
            scope = resource.scope_metrics.add()
            for count in counts:
                kind = KINDS[metric_number % len(KINDS)]
                metric = scope.metrics.add(name=f"{kind} {metric_number}", unit="s")
                getattr(metric, kind).SetInParent()
                metric_number += 1
                for _ in range(count):
                    getattr(metric, kind).data_points.add(time_unix_nano=number)
                    number += 1
    return Batch(Signal.METRICS, request.SerializeToString(), context=BatchContext())


def records(batch):
    """Every record with what it lies in."""
    return [
        (resource.resource.attributes[0].value.int_value, resource.schema_url, scope.schema_url, scope.scope.name,
         record.observed_time_unix_nano)
        for resource in batch.message.resource_logs
        for scope in resource.scope_logs
        for record in scope.log_records
    ]  # fmt: skip


def points(batch):
    """Every point with its metric's name, unit and kind."""
    return [
        (metric.name, metric.unit, metric.WhichOneof("data"), point.time_unix_nano)
        for scope in batch.scopes()
        for metric in scope.metrics
        for point in getattr(metric, metric.WhichOneof("data")).data_points
    ]


@given(shapes, st.integers(1, 12))
def test_records_stay_in_order_with_their_resource_and_scope(shape, size):
    """The parts hold every record once, in order, in envelopes equal to the ones it came in."""
    batch = logs(shape)
    before = batch.encode()

    parts = batch.split(size)

    assert [one for part in parts for one in records(part)] == records(batch)
    assert batch.encode() == before
    assert [len(part) for part in parts[:-1]] == [size] * (len(parts) - 1)
    assert len(parts[-1]) <= size


@given(metric_shapes, st.integers(1, 12))
def test_points_stay_in_order_with_their_metric(shape, size):
    """A metric whose points don't fit is divided, and each part carries its name, unit and kind."""
    batch = metrics(shape)

    parts = batch.split(size)

    assert [one for part in parts for one in points(part)] == points(batch)
    assert all(len(part) <= size for part in parts)
    assert sum(map(len, parts)) == len(batch)


def test_a_resource_is_not_repeated_within_a_part():
    """Records of one resource and scope share their envelopes in each part."""
    first, second = logs([[3, 3]]).split(4)

    assert [len(scope.log_records) for scope in first.scopes()] == [3, 1]
    assert [len(scope.log_records) for scope in second.scopes()] == [2]
    assert len(first.resources()) == len(second.resources()) == 1


def test_a_small_batch_is_its_own_only_part():
    """Nothing is decoded again for a batch that fits."""
    batch = logs([[2]])

    assert batch.split(2) == [batch]


def test_what_this_version_does_not_know_stays():
    """Unknown fields of envelopes and records are carried over."""
    batch = logs([[3]])
    request = batch.edit()
    for message in (
        request.resource_logs[0],
        request.resource_logs[0].resource,
        request.resource_logs[0].scope_logs[0],
        request.resource_logs[0].scope_logs[0].log_records[2],
    ):
        message.MergeFromString(b"\xc2\x3e\x05later")

    parts = batch.split(2)

    assert [part.encode().count(b"later") for part in parts] == [3, 4]


def test_parts_keep_where_the_batch_came_from():
    """The context goes along."""
    batch = logs([[3]])

    assert {id(part.context) for part in batch.split(1)} == {id(batch.context)}


def test_points_of_a_metric_without_data_are_none():
    """A metric without data has no points and is left out of the parts."""
    batch = metrics([[[3]]])
    empty = batch.edit().resource_metrics[0].scope_metrics[0].metrics.add(name="empty")

    assert points_of(empty) == 0
    assert [len(scope.metrics) for part in batch.split(2) for scope in part.scopes()] == [1, 1]


def test_undecodable_bytes_are_refused():
    """Bytes that only claim to be a request are a permanent error, not a crash."""
    batch = Batch(Signal.LOGS, b"\xff", context=BatchContext(), items=5)

    with pytest.raises(Permanent, match="not an OTLP logs request"):
        batch.split(2)
