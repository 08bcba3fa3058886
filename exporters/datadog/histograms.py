"""Histograms of OTLP, explicit and exponential: their differences, and the sketches that they become."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from exporters.datadog.sketches import Sketch

# Beyond this the bounds of a bucket are no different numbers any more, or not finite.
_FINEST, _COARSEST = 20, -10


@dataclass(frozen=True, slots=True)
class Explicit:
    """What an explicit histogram counts. `minimum` and `maximum` are infinite where the sender does not say."""

    count: int
    total: float
    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    minimum: float = -math.inf
    maximum: float = math.inf

    @classmethod
    def of(cls, point: Any) -> Explicit | None:
        """What a HistogramDataPoint counts; None where its bounds and counts don't belong together."""
        bounds, counts = tuple(point.explicit_bounds), tuple(point.bucket_counts)
        if not counts and not bounds:
            counts = (point.count,)
        rising = all(lower < upper for lower, upper in itertools.pairwise(bounds))
        total = point.sum or 0.0
        if len(counts) != len(bounds) + 1 or not rising or not all(map(math.isfinite, (*bounds, total))):
            return None
        return cls(sum(counts), total, bounds, counts, *_range(point))

    def buckets(self) -> Iterator[tuple[float, float, int]]:
        """Lower bound, upper bound and count of each bucket that holds something."""
        edges = (-math.inf, *self.bounds, math.inf)
        for index, count in enumerate(self.counts):
            if count:
                yield edges[index], edges[index + 1], count

    def sketch(self) -> Sketch:
        """The distribution. A bucket without an end is taken to be at its finite bound."""
        sketch = Sketch()
        for lower, upper, count in self.buckets():
            low, high = max(lower, self.minimum), min(upper, self.maximum)
            if math.isinf(low):
                low = high if math.isfinite(high) else self.total / self.count
            if math.isinf(high):
                high = low
            sketch.spread(low, high, count)
        sketch.count, sketch.total = self.count, self.total
        return sketch


@dataclass(frozen=True, slots=True)
class Exponential:
    """What an exponential histogram counts: bucket `i` at `scale` holds values over 2**(i * 2**-scale)."""

    count: int
    total: float
    scale: int
    zeros: int
    positive: Mapping[int, int]
    negative: Mapping[int, int]
    minimum: float = -math.inf
    maximum: float = math.inf

    @classmethod
    def of(cls, point: Any) -> Exponential | None:
        """What an ExponentialHistogramDataPoint counts; None where its sum is no number."""
        total = point.sum or 0.0
        if not math.isfinite(total):
            return None
        positive, negative = _indexed(point.positive), _indexed(point.negative)
        count = point.zero_count + sum(positive.values()) + sum(negative.values())
        # At the coarsest scale one bucket holds all numbers over 1, so that a coarser one says the same.
        scale = max(point.scale, _COARSEST)
        value = cls(count, total, scale, point.zero_count, positive, negative, *_range(point))
        return value.at_scale(_FINEST) if scale > _FINEST else value

    def at_scale(self, scale: int) -> Exponential:
        """The same at a coarser scale: neighbouring buckets are counted together (OTLP data model, "Scale")."""
        shift = self.scale - scale
        positive, negative = (_shifted(buckets, shift) for buckets in (self.positive, self.negative))
        return Exponential(self.count, self.total, scale, self.zeros, positive, negative, self.minimum, self.maximum)

    def sketch(self) -> Sketch:
        """The distribution."""
        sketch = Sketch(self.count, self.total)
        if self.zeros:
            sketch.spread(0.0, 0.0, self.zeros)
        for buckets, sign in ((self.positive, 1.0), (self.negative, -1.0)):
            for index, count in buckets.items():
                ends = sorted(sign * _power(one, self.scale) for one in (index, index + 1))
                low, high = max(ends[0], self.minimum), min(ends[1], self.maximum)
                sketch.spread(low, high, count)
        return sketch


def subtract_explicit(newer: Explicit, older: Explicit) -> Explicit | None:
    """What was counted between two points; None after a reset or where the bounds have changed."""
    if newer.bounds != older.bounds:
        return None
    counts = tuple(after - before for after, before in zip(newer.counts, older.counts, strict=True))
    if min(counts) < 0:
        return None
    return Explicit(sum(counts), newer.total - older.total, newer.bounds, counts)


def subtract_exponential(newer: Exponential, older: Exponential) -> Exponential | None:
    """What was counted between two points, at the coarser of their scales; None after a reset."""
    scale = min(newer.scale, older.scale)
    after, before = newer.at_scale(scale), older.at_scale(scale)
    positive = _difference(after.positive, before.positive)
    negative = _difference(after.negative, before.negative)
    zeros = after.zeros - before.zeros
    if positive is None or negative is None or zeros < 0:
        return None
    count = zeros + sum(positive.values()) + sum(negative.values())
    return Exponential(count, newer.total - older.total, scale, zeros, positive, negative)


def _range(point: Any) -> tuple[float, float]:
    """The smallest and the largest value, where the sender says so."""
    low = point.min if point.min is not None and math.isfinite(point.min) else -math.inf
    high = point.max if point.max is not None and math.isfinite(point.max) else math.inf
    return (low, high) if low <= high else (-math.inf, math.inf)


def _indexed(buckets: Any) -> dict[int, int]:
    return {index: count for index, count in enumerate(buckets.bucket_counts, buckets.offset) if count}


def _shifted(buckets: Mapping[int, int], shift: int) -> dict[int, int]:
    coarser: dict[int, int] = {}
    for index, count in buckets.items():
        coarser[index >> shift] = coarser.get(index >> shift, 0) + count
    return coarser


def _difference(newer: Mapping[int, int], older: Mapping[int, int]) -> dict[int, int] | None:
    added = {index: count - older.get(index, 0) for index, count in newer.items()}
    if any(count < 0 for count in added.values()) or any(index not in newer for index in older):
        return None
    return {index: count for index, count in added.items() if count}


def _power(index: int, scale: int) -> float:
    """The lower bound of a bucket, as a finite number."""
    exponent = math.ldexp(index, -scale)
    if exponent >= 1024:
        return math.nextafter(math.inf, 0)
    return 2.0**exponent if exponent > -1075 else 0.0
