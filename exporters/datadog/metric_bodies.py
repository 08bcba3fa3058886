"""Metrics on the wire: series as JSON, distributions as protobuf, each body within its intake's limits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import orjson

from exporters.datadog.delivery import Body, Unit
from exporters.datadog.points import COUNT, GAUGE, Distribution, Key, Points, Value
from exporters.datadog.wire.datadog_pb2 import Sketch, SketchPayload
from sidecar.net.wire import LENGTH_DELIMITED, delimited, tag

# The intake takes 512,000 bytes, and 5 MiB after decompression. Series compress tenfold at least.
MAX_SERIES_BODY: Final = 2_500_000
# 3.2 MB compressed.
MAX_SKETCHES_BODY: Final = 3_000_000

_SKETCH: Final = tag(SketchPayload.SKETCHES_FIELD_NUMBER, LENGTH_DELIMITED)
_SOURCE: Final = "otlp-sidecar"
_MAX_INT64: Final = (1 << 63) - 1


def series_bodies(points: Points) -> Iterator[Body]:
    """Bodies for `/api/v2/series`."""
    entries = ((_series(key, value, kind), unit_of(value.items)) for kind, key, value in _values(points))
    for data, units in within(entries, MAX_SERIES_BODY):
        yield Body(b'{"series":[%b]}' % b",".join(data), units)


def sketch_bodies(points: Points) -> Iterator[Body]:
    """Bodies for `/api/beta/sketches`."""
    entries = ((_sketch(key, one), unit_of(one.items)) for key, one in points.distributions.items())
    for data, units in within(entries, MAX_SKETCHES_BODY):
        yield Body(b"".join(data), units)


def divide_series(body: bytes, count: int) -> tuple[bytes, bytes]:
    """The body with the first `count` series, and the body with the rest."""
    series = orjson.loads(body)["series"]
    return orjson.dumps({"series": series[:count]}), orjson.dumps({"series": series[count:]})


def divide_sketches(body: bytes, count: int) -> tuple[bytes, bytes]:
    """The body with the first `count` sketches, and the body with the rest."""
    sketches = SketchPayload.FromString(body).sketches
    first, rest = SketchPayload(sketches=sketches[:count]), SketchPayload(sketches=sketches[count:])
    return first.SerializeToString(), rest.SerializeToString()


def within(entries: Iterable[tuple[bytes, Unit]], limit: int) -> Iterator[tuple[list[bytes], list[Unit]]]:
    """Entries in groups that are at most `limit` bytes, a separator after each included, or hold one entry."""
    parts: list[bytes] = []
    units: list[Unit] = []
    size = 0
    for data, unit in entries:
        if parts and size + len(data) + 1 > limit:
            yield parts, units
            parts, units, size = [], [], 0
        parts.append(data)
        units.append(unit)
        size += len(data) + 1
    if parts:
        yield parts, units


def _values(points: Points) -> Iterator[tuple[int, Key, Value]]:
    for key, value in points.counts.items():
        yield COUNT, key, value
    for key, value in points.gauges.items():
        yield GAUGE, key, value


def unit_of(items: list[int]) -> Unit:
    """The unit that settles these items."""
    return items[0] if len(items) == 1 else tuple(items)


def _series(key: Key, value: Value, kind: int) -> bytes:
    series: dict[str, Any] = {
        "metric": key.metric,
        "type": kind,
        "points": [{"timestamp": key.second, "value": value.number}],
        "tags": key.tags,
        "source_type_name": _SOURCE,
    }
    if key.host:
        series["resources"] = [{"type": "host", "name": key.host}]
    if value.unit:
        series["unit"] = value.unit
    return orjson.dumps(series)


def _sketch(key: Key, distribution: Distribution) -> bytes:
    sketch = distribution.sketch
    bins, counts = sketch.encoded_bins()
    message = Sketch(metric=key.metric, host=key.host, tags=key.tags)
    message.dogsketches.add(
        ts=key.second,
        cnt=min(sketch.count, _MAX_INT64),
        min=sketch.minimum,
        max=sketch.maximum,
        avg=sketch.total / sketch.count,
        sum=sketch.total,
        k=bins,
        n=counts,
    )
    return delimited(_SKETCH, message.SerializeToString())
