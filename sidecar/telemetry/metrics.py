"""The sidecar's own metrics: plain numbers that components count in, read only when somebody asks.

Counting is one integer addition, since it happens on the path of every request. Exposition and export read the
numbers from the outside.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

Labels: TypeAlias = tuple[tuple[str, str], ...]

DEFAULT_BUCKETS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Counter:
    """A number that only grows."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def add(self, amount: int) -> None:
        """Count `amount` more."""
        self.value += amount


class Gauge:
    """A number that is read when somebody asks."""

    __slots__ = ("read",)

    def __init__(self, read: Callable[[], float]) -> None:
        self.read = read


class Histogram:
    """How often a value fell into each bucket. `buckets`: inclusive upper bounds, ascending."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float] = DEFAULT_BUCKETS) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.sum += value


Instrument: TypeAlias = Counter | Gauge | Histogram
Kind: TypeAlias = Literal["counter", "gauge", "histogram"]


@dataclass(slots=True)
class Family:
    """All series of one metric name."""

    name: str
    description: str
    kind: Kind
    series: dict[Labels, Instrument] = field(default_factory=dict)


class Metrics:
    """Every metric of this process, by name."""

    def __init__(self) -> None:
        self._families: dict[str, Family] = {}

    def families(self) -> Iterator[Family]:
        """The families that have a series, in the order of their names."""
        for name in sorted(self._families):
            if self._families[name].series:
                yield self._families[name]

    def value(self, name: str, **labels: str) -> float:
        """The sum of the counters and gauges of that name that carry all of `labels`; 0 when there are none."""
        family = self._families.get(name)
        wanted = set(labels.items())
        numbers = [_number(one) for key, one in family.series.items() if wanted <= set(key)] if family else []
        return sum(numbers)

    def series(self, name: str, description: str, kind: Kind) -> dict[Labels, Instrument]:
        """The series of one name, to add to."""
        family = self._families.get(name)
        if family is None:
            family = self._families[name] = Family(name, description, kind)
        if family.kind != kind:
            raise ValueError(f"metric {name} is a {family.kind}, and can't be a {kind} too")
        return family.series

    def snapshot(self) -> dict[str, dict[Labels, Instrument]]:
        """Which instruments there are, to `restore` when an attempt to make new components has failed."""
        return {name: dict(family.series) for name, family in self._families.items()}

    def restore(self, snapshot: dict[str, dict[Labels, Instrument]]) -> None:
        """Forget the instruments that have been made since."""
        for name, family in self._families.items():
            family.series = snapshot.get(name, {})

    def forget(self, **labels: str) -> None:
        """Drop every series that carries all of `labels`: those of a component that is gone."""
        wanted = set(labels.items())
        for family in self._families.values():
            for key in [key for key in family.series if wanted <= set(key)]:
                del family.series[key]


def _number(instrument: Instrument) -> float:
    if isinstance(instrument, Counter):
        return instrument.value
    return instrument.read() if isinstance(instrument, Gauge) else sum(instrument.counts)


class Meter:
    """Makes the instruments of one component: each carries the component's own labels beside those that are asked for.

    Asking again for the same name and labels gives the same instrument. Keep it: asking costs more than counting.
    """

    def __init__(self, metrics: Metrics, **labels: str) -> None:
        self._metrics = metrics
        self._labels = labels

    def counter(self, name: str, description: str, **labels: str) -> Counter:
        """A counter. Name it without `_total`, which the exposition adds where it belongs."""
        series = self._metrics.series(name, description, "counter")
        key = self._key(labels)
        found = series.get(key)
        if not isinstance(found, Counter):
            found = series[key] = Counter()
        return found

    def gauge(self, name: str, description: str, read: Callable[[], float], **labels: str) -> None:
        """A gauge whose value `read` gives. `read` is called from the event loop and must not block."""
        self._metrics.series(name, description, "gauge")[self._key(labels)] = Gauge(read)

    def histogram(
        self, name: str, description: str, bounds: Sequence[float] = DEFAULT_BUCKETS, **labels: str
    ) -> Histogram:
        """A histogram with these inclusive upper bounds."""
        series = self._metrics.series(name, description, "histogram")
        key = self._key(labels)
        found = series.get(key)
        if not isinstance(found, Histogram):
            found = series[key] = Histogram(bounds)
        return found

    def forget(self) -> None:
        """Drop all series of the component: it is gone."""
        self._metrics.forget(**self._labels)

    def _key(self, labels: dict[str, str]) -> Labels:
        return tuple(sorted({**self._labels, **labels}.items()))
