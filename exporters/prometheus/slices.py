"""Cuts the series of a family into slices that are rendered in one go, so that other work gets its turn in between."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from exporters.prometheus.store import Family

# About a millisecond of rendering, whatever the format.
_LINES: Final = 1500
_CHARACTERS: Final = 256 * 1024


def slices(family: Family, lines: int = _LINES) -> Iterator[list[Any]]:
    """The series of a family, `lines` lines at a time. Judges each slice by its first series: a histogram is many."""
    series: Iterator[Any] = family.snapshot()
    for first in series:
        lines_of_each = 1
        if family.type == "histogram":
            lines_of_each = len(first.bounds) + 3
        elif family.type == "summary":
            lines_of_each = len(first.quantiles) + 2
        count = min(lines // lines_of_each, _CHARACTERS // (lines_of_each * (len(first.labels) + 1)))
        yield [first, *islice(series, count)]
