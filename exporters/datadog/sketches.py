"""Distributions as Datadog's intake takes them: counts of values in logarithmic bins.

Bin `k` stands for values around gamma ** (k - BIAS); zero has bin 0, and a negative value the bin of its mirror image
with a minus sign.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from typing import Final

GAMMA: Final = 1.015625
BIAS: Final = 1338
MAX_BINS: Final = 4096

_LOG_GAMMA: Final = math.log(GAMMA)
_MIN_VALUE: Final = 1e-9
_MAX_KEY: Final = 32767
_MAX_COUNT: Final = 65535  # of a bin: 16 bits
_MAX_PLACES: Final = 32
_ENOUGH: Final = 1 << 26


def key_of(value: float) -> int:
    """The bin of a value."""
    if value < 0:
        return -key_of(-value)
    if value < _MIN_VALUE:
        return 0
    return min(max(round(math.log(value) / _LOG_GAMMA) + BIAS, 1), _MAX_KEY)


def value_of_key(key: int) -> float:
    """The value that a bin stands for."""
    return math.copysign(GAMMA ** (abs(key) - BIAS), key) if key else 0.0


@dataclass(slots=True)
class Sketch:
    """One distribution. `minimum` and `maximum` mean nothing while `count` is 0."""

    count: int = 0
    total: float = 0.0
    minimum: float = math.inf
    maximum: float = -math.inf
    bins: dict[int, int] = field(default_factory=dict)

    def spread(self, lower: float, upper: float, count: int) -> None:
        """Put values into bins of which no more is known than that they lie between two finite bounds: evenly.

        The sketch's own count and total stay: they are known exactly.
        """
        self.minimum, self.maximum = min(self.minimum, lower, upper), max(self.maximum, lower, upper)
        bins = self.bins
        keys = _keys_between(lower, upper, min(count, _MAX_PLACES))
        each, rest = divmod(count, len(keys))
        for place, key in enumerate(keys):
            bins[key] = bins.get(key, 0) + each + (place < rest)

    def merge(self, other: Sketch) -> None:
        """Count all of another one's values here too."""
        self.count += other.count
        self.total += other.total
        self.minimum = min(self.minimum, other.minimum)
        self.maximum = max(self.maximum, other.maximum)
        for key, count in other.bins.items():
            self.bins[key] = self.bins.get(key, 0) + count

    def encoded_bins(self) -> tuple[list[int], list[int]]:
        """Bins in order and their counts. A bin with more than 16 bits can count comes several times.

        Where there are more bins than the intake keeps, the lowest are counted together; where there are more values
        than make a difference, each bin stands for its share of them.
        """
        bins = sorted(self.bins.items())
        surplus = len(bins) - MAX_BINS
        if surplus > 0:
            merged = sum(count for _, count in bins[: surplus + 1])
            bins[: surplus + 1] = [(bins[surplus][0], merged)]
        share = max(1, sum(self.bins.values()) // _ENOUGH)
        if share == 1 and max(count for _, count in bins) <= _MAX_COUNT:
            return [key for key, _ in bins], [count for _, count in bins]
        keys: list[int] = []
        counts: list[int] = []
        for key, count in bins:
            whole, rest = divmod(max(1, count // share), _MAX_COUNT)
            keys += [key] * (whole + (rest > 0))
            counts += [_MAX_COUNT] * whole + ([rest] if rest else [])
        return keys, counts


@functools.lru_cache(maxsize=4096)
def _keys_between(lower: float, upper: float, places: int) -> tuple[int, ...]:
    """The bins of so many values, evenly between two bounds. Remembered, since histograms keep their bounds."""
    parts = ((place + 0.5) / places for place in range(places))
    return tuple(key_of(lower * (1 - part) + upper * part) for part in parts)
