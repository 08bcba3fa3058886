"""Exemplars: which are kept, and how they are shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from exporters.prometheus.labels import attribute_pairs
from exporters.prometheus.names import legacy_label
from exporters.prometheus.view import DecodeError, attributes_of

# OpenMetrics 1.0, "Exemplars": names and values together, in characters.
_LIMIT: Final = 128


class Exemplar(NamedTuple):
    """One exemplar. `attributes`: serialized KeyValues, read only when it is shown."""

    value: float
    time: int
    trace_id: bytes
    span_id: bytes
    attributes: tuple[bytes, ...] = ()


def exemplars_of(point: Any) -> list[Exemplar]:
    """The exemplars of a data point that have a number as value. Ids of a wrong length or all zeros are absent."""
    found = []
    for one in point.exemplars:
        which = one.WhichOneof("value")
        if which is None:
            continue
        value = one.as_double if which == "as_double" else one.as_int
        if value == value:  # noqa: PLR0124 (not NaN)
            trace_id, span_id = valid_id(one.trace_id, 16), valid_id(one.span_id, 8)
            found.append(Exemplar(value, one.time_unix_nano, trace_id, span_id, tuple(one.filtered_attributes)))
    return found


def valid_id(value: bytes, size: int) -> bytes:
    """A trace or span id, or b"" where there is none (W3C Trace Context: all zeros is none)."""
    return value if len(value) == size and any(value) else b""


def newest(exemplars: Sequence[Exemplar | None]) -> Exemplar | None:
    """The newest; of equally old ones the last."""
    found = None
    for one in exemplars:
        if one is not None and (found is None or one.time >= found.time):
            found = one
    return found


def newest_by(
    bucket_of: Callable[[float], int], known: dict[int, Exemplar] | None, exemplars: Sequence[Exemplar]
) -> dict[int, Exemplar]:
    """The newest exemplar of each bucket."""
    known = {} if known is None else known
    for one in exemplars:
        bucket = bucket_of(one.value)
        before = known.get(bucket)
        if before is None or one.time >= before.time:
            known[bucket] = one
    return known


def shown_labels(exemplar: Exemplar) -> dict[str, str]:
    """The labels of an exemplar: the ids first, then each attribute that still fits.

    Names are always classic ones: a single dotted one makes older servers refuse the whole scrape.
    """
    labels: dict[str, str] = {}
    if exemplar.trace_id:
        labels["trace_id"] = exemplar.trace_id.hex()
    if exemplar.span_id:
        labels["span_id"] = exemplar.span_id.hex()
    if not exemplar.attributes:
        return labels
    try:
        pairs = attribute_pairs(attributes_of(exemplar.attributes))
    except DecodeError:
        return labels
    left = _LIMIT - sum(len(name) + len(value) for name, value in labels.items())
    for key, value in sorted(pairs):
        name = legacy_label(key)
        size = len(name) + len(value)
        if name not in labels and size <= left:
            labels[name] = value
            left -= size
    return labels
