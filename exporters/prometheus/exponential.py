"""Exponential histograms: kept as sent for the protobuf format, shown on a fixed grid of powers of two in text.

The grid does not depend on the data, since bounds that come and go break `rate()` of the buckets.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

from exporters.prometheus.exemplars import Exemplar, exemplars_of, newest_by
from exporters.prometheus.series import (
    CONTINUE,
    LATE,
    MALFORMED,
    MAX_COUNT,
    OUT_OF_ORDER,
    Distribution,
    Feed,
)

NO_SUM: Final = "no_sum"
UNSUPPORTED_SCALE: Final = "unsupported_scale"

# What a native histogram's schema may be (Prometheus, "Native Histograms").
MAX_SCALE: Final = 8
MIN_SCALE: Final = -4
# A sum of deltas stays within twice the buckets that SDKs use: it loses resolution rather than grow.
MAX_BUCKETS: Final = 320
# The exponents of the smallest and of the largest double: an index outside holds no number.
_LOWEST: Final = -1075
_HIGHEST: Final = 1024


class Buckets(NamedTuple):
    """Counts of the buckets from index `offset` on. Bucket i holds (base^i, base^(i+1)], base = 2^(2^-scale)."""

    offset: int = 0
    counts: Sequence[int] = ()

    @classmethod
    def of(cls, message: Any) -> Buckets:
        """From a data point, without empty buckets at either end."""
        counts = array("Q", message.bucket_counts)
        filled = [index for index, count in enumerate(counts) if count]
        return cls(message.offset + filled[0], counts[filled[0] : filled[-1] + 1]) if filled else cls()

    @property
    def end(self) -> int:
        """The index after the last."""
        return self.offset + len(self.counts)

    def downscaled(self, by: int) -> Buckets:
        """The same with 2^by neighbours joined, which is exact."""
        if not by or not self.counts:
            return self
        low = self.offset >> by
        joined = [0] * (((self.end - 1) >> by) - low + 1)
        for index, count in enumerate(self.counts, self.offset):
            joined[(index >> by) - low] += count
        return Buckets(low, array("Q", joined))

    def plus(self, other: Buckets) -> Buckets:
        """The sum of two at one scale."""
        if not self.counts or not other.counts:
            return self if self.counts else other
        low = min(self.offset, other.offset)
        joined = [0] * (max(self.end, other.end) - low)
        for one in (self, other):
            for index, count in enumerate(one.counts, one.offset - low):
                joined[index] += count
        return Buckets(low, array("Q", joined))

    def above(self, index: int) -> Buckets:
        """Only the buckets from an index on."""
        cut = max(index - self.offset, 0)
        return (
            self if not cut else Buckets(self.offset + cut, self.counts[cut:]) if cut < len(self.counts) else Buckets()
        )


class State(NamedTuple):
    """The distribution at one scale."""

    scale: int
    zero_threshold: float
    zero_count: int
    positive: Buckets
    negative: Buckets

    @classmethod
    def of(cls, point: Any) -> State:
        """From a data point."""
        return cls(
            point.scale, point.zero_threshold, point.zero_count, Buckets.of(point.positive), Buckets.of(point.negative)
        )

    @property
    def total(self) -> int:
        """How many values there are."""
        return self.zero_count + sum(self.positive.counts) + sum(self.negative.counts)

    @property
    def is_possible(self) -> bool:
        """Whether every bucket can hold a number, and the zero bucket has a width."""
        # Beyond scale 21 no index that fits 32 bits is out of range.
        indexes_per_octave = 2.0 ** min(self.scale, 21)
        return 0 <= self.zero_threshold < math.inf and all(
            side.offset >= _LOWEST * indexes_per_octave and side.end <= _HIGHEST * indexes_per_octave + 1
            for side in (self.positive, self.negative)
            if side.counts
        )

    def at(self, scale: int) -> State:
        """The same at a scale that is not above this one's."""
        by = self.scale - scale
        return self._replace(scale=scale, positive=self.positive.downscaled(by), negative=self.negative.downscaled(by))

    def plus(self, other: State) -> State:
        """The sum, at the finest scale at which both fit and its buckets stay within bounds."""
        scale = min(self.scale, other.scale)
        while True:
            one, two = self.at(scale), other.at(scale)
            if one.zero_threshold != two.zero_threshold:
                one, two = _with_one_zero_bucket(one, two)
            positive, negative = one.positive.plus(two.positive), one.negative.plus(two.negative)
            if scale == MIN_SCALE or max(len(positive.counts), len(negative.counts)) <= MAX_BUCKETS:
                return State(scale, one.zero_threshold, one.zero_count + two.zero_count, positive, negative)
            scale -= 1


def _with_one_zero_bucket(one: State, two: State) -> tuple[State, State]:
    """Two states of one scale with the wider zero bucket, up to the next bound, and what lies in it moved there."""
    per_octave = 2.0**one.scale
    index = math.ceil(math.log2(max(one.zero_threshold, two.zero_threshold)) * per_octave)
    threshold = 2.0 ** (index / per_octave)

    def widened(state: State) -> State:
        positive, negative = state.positive.above(index), state.negative.above(index)
        inside = state.total - state.zero_count - sum(positive.counts) - sum(negative.counts)
        return State(state.scale, threshold, state.zero_count + inside, positive, negative)

    return widened(one), widened(two)


@dataclass(frozen=True)
class Grid:
    """The bounds 2^lowest … 2^highest."""

    lowest: int = -10
    highest: int = 20

    @cached_property
    def bounds(self) -> tuple[float, ...]:
        """The inclusive upper bounds."""
        return tuple(2.0**exponent for exponent in range(self.lowest, self.highest + 1))

    def counts(self, state: State) -> list[int]:
        """Counts by bucket, not cumulative, the last above all bounds. Exact from scale 0 on.

        What is not above zero is below every bound. A bucket that spans several bounds counts at the highest.
        """
        counts = [0] * (len(self.bounds) + 1)
        counts[0] = state.zero_count + sum(state.negative.counts)
        positive = state.positive.downscaled(max(state.scale, 0))
        octaves = 1 << max(-state.scale, 0)
        for index, count in enumerate(positive.counts, positive.offset):
            exponent = min(max((index + 1) * octaves, self.lowest), self.highest + 1)
            counts[exponent - self.lowest] += count
        return counts

    def bucket(self, value: float) -> int:
        """The bucket that counts a value."""
        return bisect_left(self.bounds, value)


DEFAULT_GRID: Final = Grid()
_EMPTY: Final = State(0, 0.0, 0, Buckets(), Buckets())


class Exponential(Distribution):
    """A histogram whose bounds grow by a constant factor. `bounds` and `counts` show it on the grid."""

    __slots__ = ("exemplars", "grid", "state")

    def __init__(self, labels: str, origin: bytes = b"", grid: Grid = DEFAULT_GRID) -> None:
        super().__init__(labels, origin)
        self.grid = grid
        self.state = _EMPTY
        self.exemplars: dict[int, Exemplar] | None = None

    @property
    def bounds(self) -> tuple[float, ...]:
        """As a histogram with explicit bounds has them."""
        return self.grid.bounds

    @property
    def counts(self) -> Sequence[int]:
        """As a histogram with explicit bounds has them."""
        return self.grid.counts(self.state)

    def update(self, point: Any, feed: Feed, delta: bool) -> str:  # noqa: FBT001
        """Take a cumulative point, or add a delta. Without a sum there is no native histogram, and none is shown."""
        if point.scale < MIN_SCALE:
            return UNSUPPORTED_SCALE
        if not point.HasField("sum"):
            return NO_SUM
        state = State.of(point)
        if not state.is_possible or state.total != point.count:
            return MALFORMED
        state = state.at(min(state.scale, MAX_SCALE))
        time, start, count, total = point.time_unix_nano, point.start_time_unix_nano, point.count, point.sum
        if delta:
            order = self.delta_order(time, start, feed)
            if order is LATE:
                return OUT_OF_ORDER
            if order is CONTINUE and count + self.count <= MAX_COUNT:
                state = self.state.plus(state)
                count += self.count
                total += self.sum or 0.0
                start = self.start
        elif time < self.time:
            return OUT_OF_ORDER
        self.keep_alive(time, feed, changed=count != self.count)
        if start != self.start or count < self.count:
            self.exemplars = None
        self.state, self.count, self.sum = state, count, total
        self.start, self.accumulated = start, delta
        self.time = time or self.time
        if point.exemplars:
            self.exemplars = newest_by(self.grid.bucket, self.exemplars, exemplars_of(point))
        return ""
