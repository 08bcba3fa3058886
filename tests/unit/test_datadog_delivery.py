"""Requests of a batch, their halves, and what of a batch is left."""

from __future__ import annotations

import gc
import gzip

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import otlp, otlp_metrics

from exporters.datadog.delivery import Attempts, Body, Request, Route, Unsent
from exporters.datadog.logs import divide
from sidecar import Batch, BatchContext, Retryable, Signal


def route(**options) -> Route:
    """A route whose bodies are JSON arrays."""
    return Route("http://127.0.0.1:1/", "application/json", **{"divide": divide, **options})


def request_of(units, **options) -> Request:
    """A request with one number per unit."""
    return Request.make(route(**options), Body(orjson.dumps(list(range(len(units)))), units))


@pytest.mark.parametrize("compression", ["gzip", "zstd", "none"])
def test_halves_are_the_whole(compression):
    """Bodies and units are divided at the same place, however they are compressed."""
    first, second = request_of([5, (6, 7), ()], compression=compression).halves()
    assert (first.positions, second.positions) == ([5], [6, 7])
    assert [len(one.units) for one in (first, second)] == [1, 2]
    assert first.halves() == []


def test_what_can_not_be_divided_has_no_halves():
    """An event, for example."""
    assert request_of([1, 2], divide=None).halves() == []


def test_a_body_is_compressed_once():
    """As its route says."""
    request = request_of([1, 2])
    assert orjson.loads(gzip.decompress(request.body)) == [0, 1]


def batch_of(signal: Signal, count: int) -> Batch:
    """A batch with so many items in two resources."""
    if signal is Signal.METRICS:
        points = [otlp_metrics.point(index, n=str(index)) for index in range(count)]
        metrics = [otlp_metrics.gauge("a", *points[: count // 2]), otlp_metrics.sum_("b", *points[count // 2 :])]
        request = otlp_metrics.request(metrics[0])
        request.MergeFrom(otlp_metrics.request(metrics[1], resource={}))
    else:
        make = otlp.logs_request if signal is Signal.LOGS else otlp.traces_request
        request = make(count // 2)
        request.MergeFrom(make(count - count // 2, service="other"))
    return Batch(signal, request.SerializeToString(), context=BatchContext())


def items_of(batch: Batch) -> list[bytes]:
    """The items of a batch, serialized."""
    if batch.signal is Signal.METRICS:
        metrics = [metric for scope in batch.scopes() for metric in scope.metrics]
        return [
            point.SerializeToString()
            for metric in metrics
            for point in [*metric.gauge.data_points, *metric.sum.data_points]
        ]
    name = "log_records" if batch.signal is Signal.LOGS else "spans"
    return [item.SerializeToString() for scope in batch.scopes() for item in getattr(scope, name)]


@given(st.sampled_from(list(Signal)), st.integers(1, 12), st.data())
def test_what_is_left_is_exactly_what_was_not_sent(signal, count, data):
    """For every signal: the items of the requests that are left, with their resources, and no others."""
    batch = batch_of(signal, count)
    left = data.draw(st.lists(st.integers(0, count - 1), unique=True))
    unsent = Unsent(batch, [request_of(left), request_of([()])])
    assert len(unsent) == len(left)
    stored = Batch(signal, unsent.encode(), context=unsent.context)
    assert items_of(stored) == [item for place, item in enumerate(items_of(batch)) if place in left]
    assert len(batch) == count


def test_waiting_costs_no_otlp_bytes():
    """The requests are kept, and the message is made when somebody asks for it."""
    unsent = Unsent(batch_of(Signal.LOGS, 4), [request_of([1, 2])])
    assert unsent.forget_message() is unsent
    assert "not built" in repr(unsent)
    assert [request.positions for request in unsent.requests] == [[1, 2]]


def test_fresh_batches_wait_when_enough_are_being_tried():
    """Until one gets through, or nobody tries them any more, or nobody has for a minute."""
    attempts = Attempts()
    errors = [Retryable("503") for _ in range(8)]
    for error in errors:
        attempts.check(0)
        attempts.failed(error, Unsent(batch_of(Signal.LOGS, 4), [request_of([1, 2])]), 0)
    assert [len(error.remaining) for error in errors] == [2] * 8
    with pytest.raises(Retryable, match="503"):
        attempts.check(59)
    attempts.check(60)
    attempts.succeeded()
    attempts.check(1)
    attempts.failed(errors[0], errors[0].remaining, 2)
    with pytest.raises(Retryable):
        attempts.check(3)
    errors.pop().remaining = None
    gc.collect()
    attempts.check(3)
