"""Series, distributions and DogStatsD lines on the wire."""

from __future__ import annotations

import math

import orjson
import pytest
from support.datadog_wire import SketchPayload

from exporters.datadog import metric_bodies
from exporters.datadog.dogstatsd import datagrams
from exporters.datadog.metric_bodies import divide_series, divide_sketches, series_bodies, sketch_bodies
from exporters.datadog.points import Key, Points
from exporters.datadog.sketches import Sketch, key_of


def points_of(count=1, **options) -> Points:
    """Counts, gauges and distributions; each settles an item."""
    points = Points()
    for index in range(count):
        key = Key(options.get("metric", "m"), "web-1", ("env:prod", f"n:{index}"), 1_700_000_000)
        points.count(key, 2.0, "byte", [index])
        points.gauge(key, 1.5, "", [])
        points.distribute(key, Sketch(3, 6.0, 1.0, 3.0, {key_of(2): 3}), [count + index])
    return points


def test_series():
    """Host as a resource, seconds, the intake's numbers for count and gauge."""
    (body,) = series_bodies(points_of())
    assert orjson.loads(body.data) == {
        "series": [
            {
                "metric": "m",
                "type": kind,
                "points": [{"timestamp": 1_700_000_000, "value": value}],
                "tags": ["env:prod", "n:0"],
                "source_type_name": "otlp-sidecar",
                "resources": [{"type": "host", "name": "web-1"}],
                **unit,
            }
            for kind, value, unit in ((1, 2.0, {"unit": "byte"}), (3, 1.5, {}))
        ]
    }
    assert body.units == [0, ()]


def test_distributions():
    """Every field by the intake's number."""
    (body,) = sketch_bodies(points_of())
    (sketch,) = SketchPayload.FromString(body.data).sketches
    assert (sketch.metric, sketch.host, list(sketch.tags)) == ("m", "web-1", ["env:prod", "n:0"])
    (one,) = sketch.dogsketches
    assert (one.ts, one.cnt, one.min, one.max, one.avg, one.sum) == (1_700_000_000, 3, 1.0, 3.0, 2.0, 6.0)
    assert (list(one.k), list(one.n)) == ([key_of(2)], [3])
    assert body.units == [1]


def test_bodies_stay_within_their_limits(monkeypatch):
    """Nothing is lost at the edges."""
    monkeypatch.setattr(metric_bodies, "MAX_SERIES_BODY", 1000)
    monkeypatch.setattr(metric_bodies, "MAX_SKETCHES_BODY", 300)
    bodies = list(series_bodies(points_of(20)))
    assert len(bodies) > 1
    assert all(len(body.data) <= 1013 for body in bodies)
    assert sum(len(orjson.loads(body.data)["series"]) for body in bodies) == 40
    bodies = list(sketch_bodies(points_of(20)))
    assert all(len(body.data) <= 300 for body in bodies)
    assert [unit for body in bodies for unit in body.units] == list(range(20, 40))


def test_divided_bodies_are_the_whole():
    """After a 413 a body is sent in two."""
    (body,) = series_bodies(points_of(3))
    first, rest = map(orjson.loads, divide_series(body.data, 2))
    assert first["series"] + rest["series"] == orjson.loads(body.data)["series"]
    assert len(first["series"]) == 2
    (body,) = sketch_bodies(points_of(3))
    first, rest = map(SketchPayload.FromString, divide_sketches(body.data, 2))
    assert [len(first.sketches), len(rest.sketches)] == [2, 1]
    assert [*first.sketches, *rest.sketches] == list(SketchPayload.FromString(body.data).sketches)


def test_dogstatsd_lines():
    """Counts and gauges with their second; a distribution as the values of its bins, each with its weight."""
    (body,) = datagrams(points_of(), 1432)
    count, gauge, distribution = body.data.decode().split("\n")
    assert count == "m:2.0|c|#env:prod,n:0,host:web-1|T1700000000"
    assert gauge == "m:1.5|g|#env:prod,n:0,host:web-1|T1700000000"
    value, kind, rate, tags = distribution.removeprefix("m:").split("|")
    assert float(value) == pytest.approx(2, rel=0.016)
    assert (kind, round(1 / float(rate[1:])), tags) == ("d", 3, "#env:prod,n:0,host:web-1")
    assert body.units == [0, (), 1]


def test_dogstatsd_datagrams_are_packed():
    """At most so many bytes each, whole lines."""
    bodies = list(datagrams(points_of(20), 200))
    assert all(len(body.data) <= 200 for body in bodies)
    assert sum(len(body.data.split(b"\n")) for body in bodies) == 60


def test_dogstatsd_names_and_tags_can_not_break_a_line():
    """What would end a name or a tag is replaced."""
    points = Points()
    points.gauge(Key("a:b|c@d\ne", "", ("k:v|x\ny,z",), 7), math.pi, "", [0])
    (body,) = datagrams(points, 1432)
    assert body.data.decode() == f"a_b_c_d_e:{math.pi!r}|g|#k:v_x_y_z|T7"
