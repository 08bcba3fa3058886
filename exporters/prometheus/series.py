"""What one series holds, and how a data point changes it: newest time wins, deltas add up, resets start over.

A data point is read by its field names only, so that any message with OTLP's fields will do. `update` returns "" when
the point was taken, else one word that says why it was not; the word becomes a label.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from operator import add
from typing import Any, Final, Literal

from exporters.prometheus.exemplars import Exemplar, exemplars_of, newest, newest_by

OUT_OF_ORDER: Final = "out_of_order"
INVALID: Final = "invalid_value"
MALFORMED: Final = "malformed"
NO_VALUE: Final = "no_value"

DEAD: Final = -1.0
"""`received` of a series that is not in a store."""

MAX_COUNT: Final = 2**64 - 1
"""What an unsigned 64-bit count holds; a sum of deltas that would pass it starts over, as any counter that wraps."""

LATE: Final = "late"
RESTART: Final = "restart"
CONTINUE: Final = "continue"


@dataclass(slots=True)
class Feed:
    """How points are applied; shared by all series of a store.

    Attributes:
        now: seconds on a clock that never goes back; the owner sets it before each batch.
        gaps: what a delta does that does not start where the last one ended: `add` (a lost batch is no restart), or
            `reset`, the data model's letter.
        expire_by: what keeps a series alive: that it was received, that its time moved, or that its value did.
        gap_count: such deltas so far.
    """

    now: float = 0.0
    gaps: Literal["add", "reset"] = "add"
    expire_by: Literal["receipt", "point_time", "value"] = "receipt"
    gap_count: int = 0


class Series:
    """One series. `labels` is its identity within its family, written as between the braces.

    Attributes:
        time: of the newest point in Unix nanoseconds; 0 when the sender gave none.
        start: from when on the value counts; 0 when unknown.
        received: when the series was last kept alive, on the feed's clock; `DEAD` when it is not in a store.
        accumulated: whether the value is a sum of deltas, which nobody else knows.
        origin: the serialized resource that was met last with it.
        wire: the labels as protobuf, once somebody has asked for that format.
    """

    __slots__ = ("accumulated", "labels", "origin", "received", "start", "time", "wire")

    def __init__(self, labels: str, origin: bytes = b"") -> None:
        self.labels = labels
        self.origin = origin
        self.time = 0
        self.start = 0
        self.received = DEAD
        self.accumulated = False
        self.wire: bytes | None = None

    @property
    def is_dead(self) -> bool:
        """Whether the series is in no store."""
        return self.received == DEAD

    def update(self, point: Any, feed: Feed, delta: bool) -> str:  # noqa: FBT001 (the hottest call of the exporter)
        """Apply a data point."""
        raise NotImplementedError

    def delta_order(self, time: int, start: int, feed: Feed) -> str:
        """How a delta joins the value.

        As the Collector's deltatocumulative processor: what lies before the first start or not after the newest time is
        late, everything else adds up. Points without times just add up.
        """
        if not self.accumulated:
            return RESTART
        if time and (time <= self.time or (start and start < self.start)):
            return LATE
        if start and self.time and start != self.time:
            feed.gap_count += 1
            if feed.gaps == "reset":
                return RESTART
        return CONTINUE

    def keep_alive(self, time: int, feed: Feed, *, changed: bool) -> None:
        """Put off the series' expiry. Call it before `time` is set."""
        if (
            feed.expire_by == "receipt"
            or (changed if feed.expire_by == "value" else time != self.time)
            or self.received == DEAD
        ):
            self.received = feed.now


class Gauge(Series):
    """The last value. Also for non-monotonic sums and for metrics of unknown type."""

    __slots__ = ("value",)

    def __init__(self, labels: str, origin: bytes = b"") -> None:
        super().__init__(labels, origin)
        self.value: float = 0.0

    def update(self, point: Any, feed: Feed, delta: bool) -> str:  # noqa: ARG002, FBT001
        """Take the value unless a newer one is known."""
        which = point.WhichOneof("value")
        if which is None:
            return NO_VALUE
        time = point.time_unix_nano
        if time < self.time:
            return OUT_OF_ORDER
        value = point.as_double if which == "as_double" else point.as_int
        self.keep_alive(time, feed, changed=value != self.value)
        self.time = time
        self.value = value
        return ""


class Counter(Series):
    """A monotonic sum."""

    __slots__ = ("exemplar", "value")

    def __init__(self, labels: str, origin: bytes = b"") -> None:
        super().__init__(labels, origin)
        self.value: float = 0
        self.exemplar: Exemplar | None = None

    def update(self, point: Any, feed: Feed, delta: bool) -> str:  # noqa: FBT001
        """Take a cumulative value, or add a delta. Negative ones and NaN are invalid (OpenMetrics, "Counter")."""
        which = point.WhichOneof("value")
        if which is None:
            return NO_VALUE
        value = point.as_double if which == "as_double" else point.as_int
        if not value >= 0:
            return INVALID
        time, start = point.time_unix_nano, point.start_time_unix_nano
        if delta:
            order = self.delta_order(time, start, feed)
            if order is LATE:
                return OUT_OF_ORDER
            if order is CONTINUE:
                value += self.value
                start = self.start
        elif time < self.time:
            return OUT_OF_ORDER
        self.keep_alive(time, feed, changed=value != self.value)
        if start != self.start or value < self.value:
            self.exemplar = None
        self.value, self.start, self.accumulated = value, start, delta
        self.time = time or self.time
        if point.exemplars:
            self.exemplar = newest([self.exemplar, *exemplars_of(point)])
        return ""

    def count(self, time: int, exemplar: Exemplar | None, feed: Feed) -> None:
        """Count one thing that happened."""
        self.value += 1
        self.accumulated = True
        self.time = max(time, self.time)
        self.received = feed.now
        if exemplar is not None and (self.exemplar is None or exemplar.time >= self.exemplar.time):
            self.exemplar = exemplar


class Distribution(Series):
    """What histograms of both kinds and summaries have in common. `sum` is None where the sender gave none."""

    __slots__ = ("count", "sum")

    def __init__(self, labels: str, origin: bytes = b"") -> None:
        super().__init__(labels, origin)
        self.count = 0
        self.sum: float | None = None


class Histogram(Distribution):
    """A histogram with explicit bounds.

    Attributes:
        bounds: inclusive upper bounds, ascending, without the infinite one.
        counts: one per bucket, not cumulative, the last above all bounds.
        exemplars: the newest by bucket.
    """

    __slots__ = ("bounds", "counts", "exemplars")

    def __init__(self, labels: str, origin: bytes = b"") -> None:
        super().__init__(labels, origin)
        self.bounds: tuple[float, ...] = ()
        self.counts: Sequence[int] = ()
        self.exemplars: dict[int, Exemplar] | None = None

    def update(self, point: Any, feed: Feed, delta: bool) -> str:  # noqa: FBT001
        """Take a cumulative point, or add a delta; one with other bounds replaces what there is."""
        counts = array("Q", point.bucket_counts) or array("Q", [point.count])
        bounds = tuple(point.explicit_bounds)
        count = sum(counts)
        if len(counts) != len(bounds) + 1 or count != point.count:
            return MALFORMED
        if bounds == self.bounds:
            bounds = self.bounds
        elif not _ascending(bounds):
            return MALFORMED
        time, start = point.time_unix_nano, point.start_time_unix_nano
        total = point.sum if point.HasField("sum") else None
        if delta:
            order = self.delta_order(time, start, feed)
            if order is LATE:
                return OUT_OF_ORDER
            if order is CONTINUE and bounds is self.bounds and count + self.count <= MAX_COUNT:
                counts = array("Q", map(add, counts, self.counts))
                count += self.count
                total = None if total is None or self.sum is None else total + self.sum
                start = self.start
        elif time < self.time:
            return OUT_OF_ORDER
        self.keep_alive(time, feed, changed=count != self.count)
        if start != self.start or count < self.count or bounds is not self.bounds:
            self.exemplars = None
        self.bounds, self.counts, self.count, self.sum = bounds, counts, count, total
        self.start, self.accumulated = start, delta
        self.time = time or self.time
        if point.exemplars:
            self.exemplars = newest_by(lambda value: bisect_left(bounds, value), self.exemplars, exemplars_of(point))
        return ""

    def observe(self, value: float, time: int, exemplar: Exemplar | None, feed: Feed) -> None:
        """Count one value. `bounds` and `counts` (a list) must have been set."""
        bucket = bisect_left(self.bounds, value)
        self.counts[bucket] += 1  # type: ignore[index]
        self.count += 1
        self.sum = (self.sum or 0.0) + value
        self.accumulated = True
        self.time = max(time, self.time)
        self.received = feed.now
        if exemplar is not None:
            if self.exemplars is None:
                self.exemplars = {}
            self.exemplars[bucket] = exemplar


def _ascending(bounds: Sequence[float]) -> bool:
    return all(map(float.__lt__, bounds, bounds[1:])) and all(map(math.isfinite, bounds))


class Summary(Distribution):
    """Quantiles as (quantile, value), ascending, that somebody else has computed."""

    __slots__ = ("quantiles",)

    def __init__(self, labels: str, origin: bytes = b"") -> None:
        super().__init__(labels, origin)
        self.quantiles: tuple[tuple[float, float], ...] = ()

    def update(self, point: Any, feed: Feed, delta: bool) -> str:  # noqa: ARG002, FBT001
        """Take the point unless a newer one is known."""
        time = point.time_unix_nano
        if time < self.time:
            return OUT_OF_ORDER
        quantiles = tuple(sorted((one.quantile, one.value) for one in point.quantile_values))
        ranks = [rank for rank, _ in quantiles]
        if len(set(ranks)) != len(ranks) or not all(0 <= rank <= 1 for rank in ranks):
            return MALFORMED
        self.keep_alive(time, feed, changed=point.count != self.count)
        self.quantiles, self.count, self.sum = quantiles, point.count, point.sum
        self.time, self.start = time, point.start_time_unix_nano
        return ""
