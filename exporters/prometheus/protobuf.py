"""The protobuf format: `io.prometheus.client.MetricFamily` messages, each with its length before it.

Written by hand, as the text is: one message object per series would cost ten times as much. Exponential histograms
appear as native ones, and on the text's grid beside it for servers that don't take those in.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, Final

from exporters.prometheus.exemplars import Exemplar, shown_labels
from exporters.prometheus.exponential import Buckets, Exponential
from exporters.prometheus.labels import read
from exporters.prometheus.series import Counter, Histogram, Series, Summary
from exporters.prometheus.slices import slices
from exporters.prometheus.store import Family

# The field numbers of io/prometheus/client/metrics.proto as tags: number << 3 | wire type.
_VARINT: Final = 0
_DOUBLE: Final = 1
_BYTES: Final = 2

_TYPES: Final = {"counter": 0, "gauge": 1, "summary": 2, "unknown": 3, "histogram": 4, "info": 1}
_VALUE_FIELDS: Final = {"gauge": 2, "counter": 3, "unknown": 5, "info": 2}
_CREATED_FIELDS: Final = {"counter": 3, "summary": 4, "histogram": 15}
_SUMMARY: Final = 4
_TIMESTAMP: Final = 6
_HISTOGRAM: Final = 7
# A zero bucket without a width would be none (specification, "Exponential Histograms").
_ZERO_THRESHOLD: Final = 1e-128
# A line costs more here than in text.
_LINES: Final = 750

_pack_double: Final = struct.Struct("<d").pack


def varint(number: int) -> bytes:
    """A number from 0 on in base 128, least significant part first."""
    if number < 128:
        return _SMALL[number]
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


_SMALL: Final = [bytes((number,)) for number in range(128)]


def _tag(field: int, wire_type: int) -> bytes:
    return varint(field << 3 | wire_type)


_BUCKET: Final = _tag(3, _BYTES)


def _number(field: int, number: int) -> bytes:
    return _tag(field, _VARINT) + varint(number) if number else b""


def _signed(number: int) -> bytes:
    return varint(number << 1 if number >= 0 else (-number << 1) - 1)


def _double(field: int, value: float) -> bytes:
    return _tag(field, _DOUBLE) + _pack_double(value)


def _nested(field: int, content: bytes) -> bytes:
    return _tag(field, _BYTES) + varint(len(content)) + content


def _text(field: int, text: str) -> bytes:
    return _nested(field, text.encode("utf-8", "replace")) if text else b""


def _time(field: int, nanoseconds: int) -> bytes:
    if not nanoseconds:
        return b""
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    return _nested(field, _number(1, seconds) + _number(2, rest))


def _labels(pairs: Iterable[tuple[str, str]]) -> bytes:
    return b"".join([_nested(1, _text(1, name) + _text(2, value)) for name, value in pairs])


class ProtobufFormat:
    """MetricFamily messages. Creation times are always written: they cost nothing here.

    `timestamps`: whether the points' own times are.
    """

    def __init__(self, *, timestamps: bool = False) -> None:
        self.timestamps = timestamps

    def render(self, families: Iterable[Family]) -> Iterator[bytes]:
        """The page in chunks; empty ones only let other work run, since a family's length comes before its content."""
        for family in families:
            write = self._writer(family)
            parts = [self._head(family)]
            for some in slices(family, _LINES):
                parts.append(
                    b"".join([_nested(4, self._wire_labels(one) + write(one) + self._stamp(one)) for one in some])
                )
                yield b""
            if len(parts) > 1:
                parts.insert(0, varint(sum(map(len, parts))))
                yield from parts

    def _head(self, family: Family) -> bytes:
        return (
            _text(1, family.name)
            + _text(2, family.help)
            + _tag(3, _VARINT)
            + varint(_TYPES[family.type])
            + _text(5, family.unit)
        )

    def _stamp(self, one: Series) -> bytes:
        return _number(_TIMESTAMP, one.time // 1_000_000) if self.timestamps else b""

    def _wire_labels(self, one: Series) -> bytes:
        if one.wire is None:
            one.wire = _labels(read(one.labels))
        return one.wire

    def _writer(self, family: Family) -> Callable[[Any], bytes]:
        if family.type == "histogram":
            return _histogram
        if family.type == "summary":
            return _summary
        if family.type == "counter":
            return _counter
        # A message with one double, whole: 9 bytes.
        start = _tag(_VALUE_FIELDS[family.type], _BYTES) + varint(9) + _tag(1, _DOUBLE)
        return lambda one: start + _pack_double(one.value)


def _counter(one: Counter) -> bytes:
    exemplar = _nested(2, _exemplar(one.exemplar)) if one.exemplar is not None else b""
    return _nested(
        _VALUE_FIELDS["counter"], _double(1, one.value) + exemplar + _time(_CREATED_FIELDS["counter"], one.start)
    )


def _summary(one: Summary) -> bytes:
    quantiles = [_nested(3, _double(1, rank) + _double(2, value)) for rank, value in one.quantiles]
    return _nested(
        _SUMMARY,
        _number(1, one.count)
        + _double(2, one.sum or 0.0)
        + b"".join(quantiles)
        + _time(_CREATED_FIELDS["summary"], one.start),
    )


def _histogram(one: Histogram | Exponential) -> bytes:
    exemplars = {bucket: _exemplar(exemplar) for bucket, exemplar in (one.exemplars or {}).items()}
    parts = [_number(1, one.count)]
    # The format can't leave a sum out, and 0 would be a lie.
    parts.append(_double(2, math.nan if one.sum is None else one.sum))
    for bucket, (bound, count) in enumerate(zip(_bounds(one.bounds), accumulate(one.counts), strict=True)):
        content = _number(1, count) + bound
        if bucket in exemplars:
            content += _nested(3, exemplars[bucket])
        parts += (_BUCKET, varint(len(content)), content)
    if isinstance(one, Exponential):
        parts += _native(one, list(exemplars.values()))
    parts.append(_time(_CREATED_FIELDS["histogram"], one.start))
    return _nested(_HISTOGRAM, b"".join(parts))


@lru_cache(maxsize=256)
def _bounds(bounds: tuple[float, ...]) -> list[bytes]:
    return [_double(2, bound) for bound in (*bounds, math.inf)]


def _native(one: Exponential, exemplars: Sequence[bytes]) -> list[bytes]:
    state = one.state
    return [
        _tag(5, _VARINT) + _signed(state.scale),
        _double(6, state.zero_threshold or _ZERO_THRESHOLD),
        _number(7, state.zero_count),
        *_spans(9, 10, state.negative),
        *_spans(12, 13, state.positive),
        *[_nested(16, exemplar) for exemplar in exemplars],
    ]


def _spans(span_field: int, delta_field: int, buckets: Buckets) -> list[bytes]:
    """Runs of filled buckets, and each count's difference to the one before (native index: OTLP's plus one)."""
    spans: list[list[int]] = []
    deltas = []
    expected, before = 0, 0
    for index, count in enumerate(buckets.counts, buckets.offset + 1):
        if not count:
            continue
        if not spans or index != expected:
            spans.append([index - expected, 0])
        spans[-1][1] += 1
        deltas.append(_signed(count - before))
        expected, before = index + 1, count
    if not spans:
        return []
    encoded = [_nested(span_field, _tag(1, _VARINT) + _signed(gap) + _number(2, length)) for gap, length in spans]
    return [*encoded, _nested(delta_field, b"".join(deltas))]


def _exemplar(exemplar: Exemplar) -> bytes:
    return _labels(sorted(shown_labels(exemplar).items())) + _double(2, exemplar.value) + _time(3, exemplar.time)
