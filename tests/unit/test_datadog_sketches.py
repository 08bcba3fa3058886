"""Distributions: bins, histograms, and differences of histograms."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import ExponentialHistogramDataPoint, HistogramDataPoint
from support.otlp import readable

from exporters.datadog.histograms import Explicit, Exponential, subtract_explicit, subtract_exponential
from exporters.datadog.sketches import GAMMA, MAX_BINS, Sketch, key_of, value_of_key

ANY = {"allow_nan": False, "allow_infinity": False}


@pytest.mark.parametrize(
    ("value", "key"),
    [(1, 1338), (0.001, 892), (5, 1442), (100, 1635), (1e6, 2229), (-5, -1442), (0, 0), (1e-10, 0), (1e308, 32767)],
)
def test_the_bin_of_a_value(value, key):
    """Datadog's own numbers."""
    assert key_of(value) == key


@given(st.floats(1e-8, 1e200))
def test_a_bin_stands_for_its_values(value):
    """Within half a bin, on both sides of zero."""
    assert value_of_key(key_of(value)) == pytest.approx(value, rel=GAMMA - 1)
    assert value_of_key(key_of(-value)) == -value_of_key(key_of(value))


@given(st.floats(**ANY), st.floats(**ANY), st.integers(1, 2**64 - 1))
def test_values_between_two_bounds_are_spread_evenly(one, other, count):
    """Every one is counted, in a bin between the bounds, at a bounded cost."""
    lower, upper = min(one, other), max(one, other)
    sketch = Sketch(count, 0.0)
    sketch.spread(lower, upper, count)
    assert sum(sketch.bins.values()) == count
    assert all(key_of(lower) <= key <= key_of(upper) for key in sketch.bins)
    assert len(sketch.bins) <= 32
    keys, counts = sketch.encoded_bins()
    assert len(keys) == len(counts) <= 2000
    assert keys == sorted(keys)
    assert all(0 < number <= 65535 for number in counts)


def test_spreading_is_even():
    """A hundred values between 0 and 100 are about as many below 50 as above."""
    sketch = Sketch()
    sketch.spread(0, 100, 100)
    below = sum(count for key, count in sketch.bins.items() if value_of_key(key) < 50)
    assert below == pytest.approx(50, abs=4)
    assert (sketch.minimum, sketch.maximum) == (0, 100)


def test_there_are_no_more_bins_than_the_intake_keeps():
    """The lowest are counted together: high quantiles matter more."""
    sketch = Sketch(bins=dict.fromkeys(range(5000), 1))
    keys, counts = sketch.encoded_bins()
    assert len(keys) == MAX_BINS
    assert (keys[0], counts[0], keys[-1]) == (5000 - MAX_BINS, 5000 - MAX_BINS + 1, 4999)


def test_a_bin_over_16_bits_comes_several_times():
    """The intake's counts have no more."""
    assert Sketch(bins={7: 150_000}).encoded_bins() == ([7, 7, 7], [65535, 65535, 18930])


def readable_point(kind, point):
    """The point as exporters read it."""
    request = ExportMetricsServiceRequest()
    getattr(request.resource_metrics.add().scope_metrics.add().metrics.add(), kind).data_points.append(point)
    return getattr(readable(request).resource_metrics[0].scope_metrics[0].metrics[0], kind).data_points[0]


def explicit(counts, bounds=(1.0, 2.0), total=None, **values):
    """A point of an explicit histogram."""
    point = HistogramDataPoint(bucket_counts=counts, explicit_bounds=bounds, count=sum(counts), **values)
    point.sum = total if total is not None else 1.5 * sum(counts)
    return readable_point("histogram", point)


def test_an_explicit_histogram():
    """Count and sum are exact, values lie within their buckets, and ends without a bound are at their finite one."""
    sketch = Explicit.of(explicit([1, 2, 3])).sketch()
    assert (sketch.count, sketch.total) == (6, 9.0)
    assert (sketch.minimum, sketch.maximum) == (1, 2)
    assert sketch.bins[key_of(1)] == 1
    assert sketch.bins[key_of(2)] == 3


def test_the_smallest_and_the_largest_value_narrow_the_ends():
    """Where the sender says them."""
    sketch = Explicit.of(explicit([1, 0, 3], min=0.25, max=7.5)).sketch()
    assert (sketch.minimum, sketch.maximum) == (0.25, 7.5)
    assert max(sketch.bins) == key_of(2 + 5.5 * 5 / 6)


def test_a_histogram_without_buckets_is_at_its_mean():
    """Nothing more is known."""
    assert Explicit.of(explicit([4], (), 10.0)).sketch().bins == {key_of(2.5): 4}
    point = HistogramDataPoint(count=4)
    point.sum = 10.0
    assert Explicit.of(readable_point("histogram", point)).sketch().bins == {key_of(2.5): 4}


@pytest.mark.parametrize(
    ("counts", "bounds", "total"),
    [
        ([1, 2], (1.0, 2.0), 1.0),
        ([1, 2, 3], (2.0, 1.0), 1.0),
        ([1, 2, 3], (1.0, 1.0), 1.0),
        ([1, 2, 3], (1.0, math.nan), 1.0),
        ([1, 2, 3], (1.0, math.inf), 1.0),
        ([1, 2, 3], (1.0, 2.0), math.nan),
    ],
)
def test_histograms_that_mean_nothing(counts, bounds, total):
    """Bounds that don't rise, numbers that are none, counts that don't belong to them."""
    assert Explicit.of(explicit(counts, bounds, total)) is None


def test_the_difference_of_explicit_histograms():
    """Per bucket; a bucket that has become less, or other bounds, are a reset."""
    older, newer = Explicit.of(explicit([1, 2, 3])), Explicit.of(explicit([1, 5, 4], min=0.5))
    added = subtract_explicit(newer, older)
    assert (added.counts, added.count, added.total) == ((0, 3, 1), 4, 6.0)
    assert math.isinf(added.minimum)
    assert subtract_explicit(older, newer) is None
    assert subtract_explicit(Explicit.of(explicit([9, 9, 9], (1.0, 3.0))), older) is None


def exponential(positive=(), offset=0, scale=0, zeros=0, negative=(), **values):
    """A point of an exponential histogram."""
    point = ExponentialHistogramDataPoint(scale=scale, zero_count=zeros, **values)
    point.positive.offset, point.negative.offset = offset, offset
    point.positive.bucket_counts.extend(positive)
    point.negative.bucket_counts.extend(negative)
    point.count = min(zeros + sum(positive) + sum(negative), 2**64 - 1)
    point.sum = 10.0
    return readable_point("exponential_histogram", point)


def test_an_exponential_histogram():
    """Buckets are powers of two at scale 0; zeros and negative values have their bins."""
    sketch = Exponential.of(exponential([4], 3, zeros=2, negative=[1])).sketch()
    assert (sketch.count, sketch.total) == (7, 10.0)
    assert (sketch.minimum, sketch.maximum) == (-16, 16)
    assert sketch.bins[0] == 2
    assert sum(count for key, count in sketch.bins.items() if key_of(8) <= key <= key_of(16)) == 4
    assert sum(count for key, count in sketch.bins.items() if key_of(-16) <= key <= key_of(-8)) == 1


def test_the_difference_of_exponential_histograms():
    """At the coarser of two scales, since a sender widens its buckets while it runs."""
    older = Exponential.of(exponential([1, 1, 1, 1], 4, scale=1))
    newer = Exponential.of(exponential([2, 5], 2, scale=0, zeros=1))
    added = subtract_exponential(newer, older)
    assert (added.scale, added.positive, added.zeros, added.count) == (0, {3: 3}, 1, 4)
    assert subtract_exponential(older, newer) is None
    assert subtract_exponential(Exponential.of(exponential([9], 9)), older) is None


@given(
    st.integers(-(2**31), 2**31 - 1),
    st.integers(-(2**31), 2**31 - 200),
    st.lists(st.integers(0, 2**64 - 1), max_size=5),
    st.floats(),
    st.floats(),
)
def test_whatever_an_exponential_histogram_says_is_a_sketch(scale, offset, counts, low, high):
    """Any scale and any offset: finite bounds, every value counted."""
    value = Exponential.of(exponential(counts, offset, scale, 1, counts, min=low, max=high))
    sketch = value.sketch()
    assert sum(sketch.bins.values()) == 1 + 2 * sum(counts)
    assert math.isfinite(sketch.minimum)
    assert math.isfinite(sketch.maximum)
    assert subtract_exponential(value, value).count == 0
