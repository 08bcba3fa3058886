"""Sums and histograms that grow by one span at a time, and become OTLP data points."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from typing import Any, ClassVar, Final

from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    Exemplar,
    ExponentialHistogramDataPoint,
    HistogramDataPoint,
    NumberDataPoint,
)

# The finest scale at which the index of every double fits 32 bits (data model, "Exponential Histogram").
_MAX_SCALE: Final = 20


class Aggregate:
    """What one attribute set has come to.

    Attributes:
        attributes: shown with each point.
        start: Unix nanoseconds from when on it counts.
        seen: when it last grew, on the owner's clock.
        exemplars: the newest, as many as the owner wants.
    """

    # The field of a Metric that holds such points.
    field: ClassVar[str]

    __slots__ = ("attributes", "count", "exemplars", "seen", "start")

    def __init__(self, attributes: Sequence[KeyValue], start: int, exemplars: int) -> None:
        self.attributes = attributes
        self.start = start
        self.seen = 0.0
        self.count = 0
        self.exemplars: deque[Exemplar] = deque(maxlen=exemplars)

    def add(self, value: float) -> None:
        """Take one more value."""
        raise NotImplementedError

    def point(self, now: int) -> Any:
        """The data point at a time in Unix nanoseconds. Its exemplars are shown once."""
        raise NotImplementedError

    def _common(self, now: int) -> dict[str, Any]:
        exemplars = list(self.exemplars)
        self.exemplars.clear()
        return {
            "attributes": self.attributes,
            "start_time_unix_nano": self.start,
            "time_unix_nano": now,
            "exemplars": exemplars,
        }


class Total(Aggregate):
    """How many there were."""

    field = "sum"

    __slots__ = ()

    def add(self, value: float) -> None:  # noqa: ARG002 (each counts one)
        """Count one."""
        self.count += 1

    def point(self, now: int) -> NumberDataPoint:
        """As the base says."""
        return NumberDataPoint(as_int=self.count, **self._common(now))


class ExplicitHistogram(Aggregate):
    """How often values fell between given bounds."""

    field = "histogram"

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, attributes: Sequence[KeyValue], start: int, exemplars: int, bounds: Sequence[float]) -> None:
        super().__init__(attributes, start, exemplars)
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        """Count a value; bounds are inclusive from above."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.count += 1
        self.sum += value

    def point(self, now: int) -> HistogramDataPoint:
        """As the base says."""
        return HistogramDataPoint(
            count=self.count,
            sum=self.sum,
            explicit_bounds=self.bounds,
            bucket_counts=self.counts,
            **self._common(now),
        )


class ExponentialHistogram(Aggregate):
    """How often values from 0 on fell into buckets that grow by a factor, at most `max_size` (from 2 on)."""

    field = "exponential_histogram"

    __slots__ = ("buckets", "max_size", "scale", "sum", "zeros")

    def __init__(self, attributes: Sequence[KeyValue], start: int, exemplars: int, max_size: int) -> None:
        super().__init__(attributes, start, exemplars)
        self.max_size = max_size
        self.scale = _MAX_SCALE
        self.zeros = 0
        self.sum = 0.0
        self.buckets: dict[int, int] = {}

    def add(self, value: float) -> None:
        """Count a value; resolution is halved until all values fit."""
        self.count += 1
        self.sum += value
        if value <= 0:
            self.zeros += 1
            return
        index = self._index(value)
        while self.buckets and max(index, *self.buckets) - min(index, *self.buckets) >= self.max_size:
            halved: dict[int, int] = {}
            for old, count in self.buckets.items():
                halved[old >> 1] = halved.get(old >> 1, 0) + count
            self.buckets = halved
            self.scale -= 1
            index >>= 1
        self.buckets[index] = self.buckets.get(index, 0) + 1

    def _index(self, value: float) -> int:
        # Bucket i holds (base^i, base^(i+1)], base = 2^(2^-scale).
        if self.scale <= 0:
            mantissa, exponent = math.frexp(value)
            return (exponent - (2 if mantissa == 0.5 else 1)) >> -self.scale
        return math.ceil(math.log2(value) * 2.0**self.scale) - 1

    def point(self, now: int) -> ExponentialHistogramDataPoint:
        """As the base says."""
        made = ExponentialHistogramDataPoint(
            count=self.count, sum=self.sum, scale=self.scale, zero_count=self.zeros, **self._common(now)
        )
        if self.buckets:
            low, high = min(self.buckets), max(self.buckets)
            made.positive.offset = low
            made.positive.bucket_counts.extend(self.buckets.get(index, 0) for index in range(low, high + 1))
        return made
