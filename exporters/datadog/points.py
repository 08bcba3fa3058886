"""What a request holds in Datadog's terms: values and distributions of one second each, alike ones put together."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from exporters.datadog.resource import Origin
from exporters.datadog.sketches import Sketch

# The intake's numbers for kinds of series.
COUNT: Final = 1
GAUGE: Final = 3


class Key(NamedTuple):
    """A series and a second: of what has the same key, Datadog keeps what comes last."""

    metric: str
    host: str
    tags: tuple[str, ...]
    second: int


@dataclass(slots=True)
class Value:
    """The value of one key, and the positions of the items that went into it."""

    number: float
    unit: str
    items: list[int]


@dataclass(slots=True)
class Distribution:
    """The sketch of one key, and the positions of the items that went into it."""

    sketch: Sketch
    items: list[int]


@dataclass(slots=True)
class ClientStats:
    """Statistics that a tracer has computed, as it sent them, and the positions of the items that stand for them."""

    message: bytes
    origin: Origin
    items: list[int]


@dataclass(slots=True)
class Points:
    """Everything that one request becomes."""

    counts: dict[Key, Value] = field(default_factory=dict)
    gauges: dict[Key, Value] = field(default_factory=dict)
    distributions: dict[Key, Distribution] = field(default_factory=dict)
    client_stats: list[ClientStats] = field(default_factory=list)

    def count(self, key: Key, number: float, unit: str, items: list[int]) -> None:
        """Add to a count."""
        known = self.counts.get(key)
        if known is None:
            self.counts[key] = Value(number, unit, items)
        else:
            known.number += number
            known.items += items

    def gauge(self, key: Key, number: float, unit: str, items: list[int]) -> None:
        """Set a gauge: the last value of a second counts."""
        known = self.gauges.get(key)
        self.gauges[key] = Value(number, unit, [*known.items, *items] if known else items)

    def distribute(self, key: Key, sketch: Sketch, items: list[int]) -> None:
        """Add to a distribution."""
        known = self.distributions.get(key)
        if known is None:
            self.distributions[key] = Distribution(sketch, items)
        else:
            known.sketch.merge(sketch)
            known.items += items


class SecondTotals:
    """What was counted for each key in requests before: another one must bring the total, since the last one counts.

    Senders that share a name, a host and tags, such as the workers of one server, do meet in a second.
    """

    def __init__(self, memory: float = 30.0, max_keys: int = 100_000) -> None:
        self._memory = memory
        self._max_keys = max_keys
        self._totals: OrderedDict[Key, tuple[float, float]] = OrderedDict()

    def add(self, counts: dict[Key, Value], now: float) -> None:
        """Make each value of a request the total of its key so far. `now`: monotonic seconds."""
        for key, value in counts.items():
            total, _ = self._totals.pop(key, (0.0, now))
            value.number += total
            self._totals[key] = (value.number, now)
        while self._totals:
            key = next(iter(self._totals))
            if len(self._totals) <= self._max_keys and now - self._totals[key][1] <= self._memory:
                return
            del self._totals[key]
