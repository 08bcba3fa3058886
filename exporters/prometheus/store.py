"""Every series that a scrape shows, under its final name: who may enter, who is in the way, and who has expired.

Nothing here knows OTLP's names, HTTP or text. The owner sets `feed.now` before each batch, and runs `expire` on a timer
whether anybody scrapes or not, so that memory is bounded by the caps and not by luck.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final, Literal, TypeVar

from exporters.prometheus.series import DEAD, Feed, Series

S = TypeVar("S", bound=Series)
FamilyType = Literal["counter", "gauge", "histogram", "summary", "unknown", "info"]

SERIES_LIMIT: Final = "series_limit"
FAMILY_LIMIT: Final = "family_limit"
TYPE_CONFLICT: Final = "type_conflict"
NAME_CONFLICT: Final = "name_conflict"

# Names of samples that a family of a type may write beside its own (OpenMetrics, "Metric types").
_SUFFIXES: Final[dict[FamilyType, tuple[str, ...]]] = {
    "counter": ("_total", "_created"),
    "gauge": (),
    "histogram": ("_bucket", "_count", "_sum", "_created"),
    "summary": ("_count", "_sum", "_created"),
    "unknown": (),
    "info": ("_info",),
}
# How many series are looked at before other work gets its turn: about a millisecond.
_SLICE: Final = 10_000


class Family:
    """All series of one name. `name` is the name of its samples in text: a counter's ends with `_total`."""

    __slots__ = ("help", "name", "series", "type", "unit")

    def __init__(self, name: str, type_: FamilyType, unit: str = "", help_: str = "") -> None:
        self.name = name
        self.type: FamilyType = type_
        self.unit = unit
        self.help = help_
        self.series: dict[str, Series] = {}

    @property
    def base(self) -> str:
        """The name without the suffix that its type adds: OpenMetrics' name of the family."""
        if self.type == "counter":
            return self.name.removesuffix("_total")
        return self.name.removesuffix("_info") if self.type == "info" else self.name

    def snapshot(self) -> Iterator[Series]:
        """The series as they are now, to go through while they come and go."""
        return iter(list(self.series.values()))

    def reserved(self) -> set[str]:
        """The names that no other family may have."""
        return {self.name, self.base, *(self.base + suffix for suffix in _SUFFIXES[self.type])}

    def __repr__(self) -> str:
        return f"<Family {self.name} {self.type} [{len(self.series)} series]>"


@dataclass(frozen=True, slots=True)
class Limits:
    """What a store may hold, and for how long. Seconds; 0 means for ever."""

    max_series: int = 100_000
    max_families: int = 10_000
    gauge_expiration: float = 300.0
    counter_expiration: float = 300.0

    def expiration_of(self, type_: FamilyType) -> float:
        """How long a series of a type lives after it was last kept alive."""
        gauges, counters = self.gauge_expiration, self.counter_expiration
        if type_ == "info":
            # Describes a sender, and so lives as long as anything of it may.
            return max(gauges, counters) if gauges and counters else 0.0
        return gauges if type_ in {"gauge", "unknown"} else counters


class Refused(Exception):
    """A series or family may not enter. `reason` is one word; the message is for a person."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Store:
    """Families by name, and within each its series by label set.

    Sums of deltas that have expired stay aside, out of sight, as long as there is room: when such a sender comes back,
    its counter goes on and does not seem to have been reset.
    """

    def __init__(self, limits: Limits, feed: Feed) -> None:
        self.limits = limits
        self.feed = feed
        self.families: dict[str, Family] = {}
        self.size = 0
        self._reserved: dict[str, Family] = {}
        self._aside: OrderedDict[tuple[str, FamilyType, str], Series] = OrderedDict()

    def family(self, name: str, type_: FamilyType, unit: str = "", help_: str = "") -> Family:
        """The family of that name; a new one enters the store with its first series.

        First come, first served, and that holds until the family has no series left, so that nothing flaps.

        Raises:
            Refused: the name, or one that belongs to it, is another type's.
        """
        family = self.families.get(name)
        if family is None:
            family = Family(name, type_, unit, help_)
            for taken in family.reserved():
                other = self._reserved.get(taken)
                if other is not None:
                    raise Refused(NAME_CONFLICT, f"{name} ({type_}) and {other.name} ({other.type}) both need {taken}")
            return family
        if family.type != type_:
            raise Refused(TYPE_CONFLICT, f"{name} is a {family.type} already and can't be a {type_} too")
        family.help = family.help or help_
        return family

    def admit(self, family: Family, series: Series, *, always: bool = False) -> None:
        """Let a series enter its family, in the place of another with its labels. `always`: though the store is full.

        Raises:
            Refused: the store is full.
        """
        other = family.series.get(series.labels)
        if not always and other is None:
            series.received = DEAD
            if self.size >= self.limits.max_series:
                raise Refused(SERIES_LIMIT, f"there are {self.size} series already (max_series)")
            if not family.series and len(self.families) >= self.limits.max_families:
                raise Refused(FAMILY_LIMIT, f"there are {len(self.families)} metric names already (max_families)")
        if other is not None:
            other.received = DEAD
            self.size -= 1
        if not family.series:
            self.families[family.name] = family
            self._reserved.update(dict.fromkeys(family.reserved(), family))
        family.series[series.labels] = series
        self.size += 1
        series.received = self.feed.now
        self._aside.pop((family.name, family.type, series.labels), None)
        while self._aside and self.size + len(self._aside) > self.limits.max_series:
            self._aside.popitem(last=False)

    def recall(self, family: Family, labels: str, kind: type[S]) -> S | None:
        """The sum of deltas that had expired under these labels; it comes back when it is admitted."""
        series = self._aside.get((family.name, family.type, labels)) if self._aside else None
        return series if isinstance(series, kind) else None

    def remove(self, family: Family, series: Series) -> None:
        """Take a series out at once."""
        if family.series.get(series.labels) is not series:
            return
        del family.series[series.labels]
        series.received = DEAD
        self.size -= 1
        if not family.series:
            del self.families[family.name]
            for name in family.reserved():
                self._reserved.pop(name, None)

    def expire(self) -> Iterator[int]:
        """Take out what has not been kept alive, a slice at a time: yields how many of each slice went."""
        for family in list(self.families.values()):
            expiration = self.limits.expiration_of(family.type)
            if not expiration:
                continue
            everything = family.snapshot()
            # Between slices another store may have adopted all families.
            while family.name in self.families and (some := list(islice(everything, _SLICE))):
                limit = self.feed.now - expiration
                expired = [one for one in some if DEAD < one.received < limit]
                for one in expired:
                    self.remove(family, one)
                    if one.accumulated:
                        self._aside[family.name, family.type, one.labels] = one
                yield len(expired)

    def adopt(self, other: Store) -> None:
        """Take everything out of another store into this one, which is empty."""
        self.families, other.families = other.families, {}
        self._reserved, other._reserved = other._reserved, {}
        self._aside, other._aside = other._aside, OrderedDict()
        self.size, other.size = other.size, 0

    def __repr__(self) -> str:
        return f"<Store [{self.size} of {self.limits.max_series} series, {len(self.families)} families]>"
