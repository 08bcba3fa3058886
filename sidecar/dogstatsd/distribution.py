"""Values counted in exponential buckets, as OTLP has them."""

from __future__ import annotations

import math
from typing import Any, Final

# Bounds grow by 1.1 %, finer than Datadog's own sketches (1.6 %).
_SCALE: Final = 6
# Where values lie further apart, neighbours are counted together. At the finest scale it is enough for 1 to 65,536.
_MAX_BUCKETS: Final = 1024


class Distribution:
    """How often there was a value of each size. `minimum` and `maximum` mean nothing while `count` is 0."""

    __slots__ = ("_negative", "_positive", "_zeros", "count", "maximum", "minimum", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.minimum = math.inf
        self.maximum = -math.inf
        self._zeros = 0
        self._positive: dict[int, int] = {}
        self._negative: dict[int, int] = {}

    def add(self, value: float, times: int = 1) -> None:
        """Count a finite value."""
        self.count += times
        self.total += value * times
        self.minimum = min(self.minimum, value)
        self.maximum = max(self.maximum, value)
        if not value:
            self._zeros += times
            return
        buckets = self._positive if value > 0 else self._negative
        # Bucket i holds what is over 2**(i / 2**scale), and up to the next bound (OTLP data model, "Bucket Index").
        index = math.ceil(math.log2(abs(value)) * (1 << _SCALE)) - 1
        buckets[index] = buckets.get(index, 0) + times

    def write(self, point: Any) -> None:
        """Write everything into an empty ExponentialHistogramDataPoint."""
        shift = max(_shift(self._positive), _shift(self._negative))
        point.count, point.sum = self.count, self.total
        point.scale, point.zero_count = _SCALE - shift, self._zeros
        if self.count:
            point.min, point.max = self.minimum, self.maximum
        for buckets, written in ((self._positive, point.positive), (self._negative, point.negative)):
            if buckets:
                first, last = min(buckets) >> shift, max(buckets) >> shift
                counts = [0] * (last - first + 1)
                for index, count in buckets.items():
                    counts[(index >> shift) - first] += count
                written.offset = first
                written.bucket_counts.extend(counts)


def _shift(buckets: dict[int, int]) -> int:
    """How often the number of buckets must be halved."""
    if not buckets:
        return 0
    first, last, shift = min(buckets), max(buckets), 0
    while (last >> shift) - (first >> shift) >= _MAX_BUCKETS:
        shift += 1
    return shift
