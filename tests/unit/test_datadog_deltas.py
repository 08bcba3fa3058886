"""Differences of cumulative series."""

from __future__ import annotations

import pytest

from exporters.datadog.deltas import Deltas, OutOfOrderError, subtract_numbers

STARTED = 1000


def deltas(initial="auto", **options) -> Deltas[float]:
    """Of numbers, by somebody who is there since `STARTED`."""
    return Deltas(subtract_numbers, 3600, initial, STARTED, **options)


def test_what_was_added_between_points():
    """A series that was there before is counted from its second point on."""
    numbers = deltas()
    assert [numbers.take("a", 10, at, value, 0) for at, value in ((2000, 5), (2010, 7), (2020, 7))] == [None, 2, 0]


def test_each_series_has_a_first_value_of_its_own():
    """Also when a sender begins several in one request, long after the exporter has started (mapping-go#277)."""
    numbers = deltas()
    assert [numbers.take(key, 1500, 2000, value, 0) for key, value in (("a", 46950), ("b", 61920))] == [46950, 61920]


@pytest.mark.parametrize(
    ("initial", "start", "at", "expected"),
    [
        ("auto", 1500, 2000, 5),
        ("auto", 500, 2000, None),
        ("auto", 0, 2000, None),
        ("auto", 2000, 2000, None),
        ("keep", 500, 2000, 5),
        ("drop", 1500, 2000, None),
    ],
)
def test_whether_a_first_value_counts(initial, start, at, expected):
    """`auto`: when the series began under our eyes, so that nothing of it can have been counted before.

    See mapping-go#100, contrib#18053.
    """
    assert deltas(initial).take("a", start, at, 5, 0) == expected


def test_a_series_that_begins_again():
    """A new start counts whole; a value that has become less without one can't be told."""
    numbers = deltas()
    numbers.take("a", 1500, 2000, 5, 0)
    assert numbers.take("a", 2005, 2010, 3, 0) == 3
    assert numbers.take("a", 2005, 2020, 2, 0) is None
    assert numbers.take("a", 2005, 2030, 6, 0) == 4


def test_points_that_are_not_newer_are_refused():
    """They change nothing."""
    numbers = deltas()
    numbers.take("a", 1500, 2000, 5, 0)
    for at in (2000, 1999):
        with pytest.raises(OutOfOrderError):
            numbers.take("a", 1500, at, 9, 0)
    assert numbers.take("a", 1500, 2010, 6, 0) == 1


def test_series_are_forgotten():
    """After their time, and the oldest where there are too many (contrib#29755)."""
    numbers = deltas(max_series=2)
    for key, now in (("a", 0), ("b", 1), ("a", 2), ("c", 3)):
        numbers.take(key, 10, 2000 + now, 5, now)
    assert len(numbers) == 2
    assert numbers.take("b", 10, 2010, 9, 4) is None
    assert numbers.take("c", 10, 2020, 9, 3603) == 4
    assert numbers.take("c", 10, 2030, 9, 8000) is None
    assert len(numbers) == 1
