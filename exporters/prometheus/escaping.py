"""Families for a scraper that can't read all of their names: each name escaped, and what then meets, merged."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache

from exporters.prometheus.labels import read, written
from exporters.prometheus.names import Scheme, escape
from exporters.prometheus.series import Series
from exporters.prometheus.store import NAME_CONFLICT, Family

_escape = lru_cache(maxsize=4096)(escape)


class EscapedFamily(Family):
    """Families of one type whose names are the same once they are escaped. Its series are made as they are read."""

    __slots__ = ("parts", "scheme")

    def __init__(self, family: Family, name: str, scheme: Scheme) -> None:
        super().__init__(name, family.type, family.unit, family.help)
        self.series = family.series
        self.parts = [family]
        self.scheme = scheme

    def snapshot(self) -> Iterator[Series]:
        """The series under escaped names; of two that are the same, the first."""
        seen: set[str] = set()
        for part in self.parts:
            for series in part.snapshot():
                labels = escaped_labels(series.labels, self.scheme)
                if labels not in seen:
                    seen.add(labels)
                    shown = copy.copy(series)
                    shown.labels, shown.wire = labels, None
                    yield shown


def escaped_families(
    families: Iterable[Family], scheme: Scheme, note: Callable[[str, str, str], None]
) -> Iterable[Family]:
    """Families under escaped names. One that can't stand beside an earlier one is left out, and `note` told."""
    shown: dict[str, EscapedFamily] = {}
    taken: dict[str, str] = {}
    for family in families:
        name = _escape(family.name, scheme, metric=True)
        same = shown.get(name)
        if same is not None and same.type == family.type:
            same.parts.append(family)
            continue
        made = EscapedFamily(family, name, scheme)
        other = next((taken[one] for one in made.reserved() if one in taken), None)
        if other is not None:
            note(NAME_CONFLICT, family.name, f"not shown with escaping={scheme}, where it meets {other}")
            continue
        shown[name] = made
        taken.update(dict.fromkeys(made.reserved(), family.name))
    return shown.values()


def escaped_labels(labels: str, scheme: Scheme) -> str:
    """A written label set under escaped names. Values that meet are joined as those of attributes are."""
    found: dict[str, list[str]] = {}
    for name, value in read(labels):
        found.setdefault(_escape(name, scheme, metric=False), []).append(value)
    return written({name: ";".join(values) for name, values in found.items()})
