"""Differences of cumulative values, per series: never per request, nor per place in one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final, Generic, Literal, TypeAlias, TypeVar

MAX_SERIES: Final = 200_000

V = TypeVar("V")

InitialValue: TypeAlias = Literal["auto", "keep", "drop"]


@dataclass(slots=True)
class _Seen(Generic[V]):
    start: int
    at: int
    value: V
    touched: float


class OutOfOrderError(ValueError):
    """A point that is not newer than the one before."""


class Deltas(Generic[V]):
    """Remembers the newest value of each series, and gives what was added since.

    A series that is not seen for `ttl` seconds is forgotten, and the one unseen for longest where there are too many.

    Args:
        subtract: what was added between two values, the newer one first; None where something has become less.
        ttl: in seconds.
        initial: what of a series that is new or has begun again: `keep` counts its first value whole, `drop` does not,
            `auto` does when it has begun since `started_ns`, so that nothing of it can have been counted before.
        started_ns: since when there is somebody here to count, in Unix nanoseconds.
        max_series: how many are remembered.
    """

    def __init__(
        self,
        subtract: Callable[[V, V], V | None],
        ttl: float,
        initial: InitialValue,
        started_ns: int,
        max_series: int = MAX_SERIES,
    ) -> None:
        self._subtract = subtract
        self._ttl = ttl
        self._initial = initial
        self._started_ns = started_ns
        self._max_series = max_series
        self._seen: OrderedDict[Hashable, _Seen[V]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._seen)

    def take(self, key: Hashable, start: int, at: int, value: V, now: float) -> V | None:
        """What was added to a series since its last point; None where that can't be told.

        Args:
            key: of the series.
            start: when the value was 0, in Unix nanoseconds; 0 where the sender does not say.
            at: when it had this value, in Unix nanoseconds.
            value: the value.
            now: monotonic seconds.

        Raises:
            OutOfOrderError: the point is not newer than the last one.
        """
        self._forget(now)
        seen = self._seen.pop(key, None)
        if seen is not None and at <= seen.at:
            self._seen[key] = seen
            raise OutOfOrderError
        self._seen[key] = _Seen(start, at, value, now)
        if len(self._seen) > self._max_series:
            self._seen.popitem(last=False)
        if seen is None or start > seen.start > 0:
            return value if self._counts_whole(start, at) else None
        return self._subtract(value, seen.value)

    def _counts_whole(self, start: int, at: int) -> bool:
        if self._initial == "auto":
            return start > self._started_ns and start != at
        return self._initial == "keep"

    def _forget(self, now: float) -> None:
        while self._seen:
            key, oldest = next(iter(self._seen.items()))
            if now - oldest.touched <= self._ttl:
                return
            del self._seen[key]


def subtract_numbers(newer: float, older: float) -> float | None:
    """The difference; None after a reset."""
    return newer - older if newer >= older else None
