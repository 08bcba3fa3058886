"""A real Prometheus server scrapes: what it stores is what was sent, and no sender makes a scrape fail."""

import math
import time

import pytest
from support.exposition import check
from support.otlp_metrics import (
    T0,
    batch,
    buckets,
    exemplar,
    exponential,
    exponential_point,
    gauge,
    histogram,
    point,
    quantiles,
    sum_,
    summary,
)
from support.peers import running
from support.processes import find_free_port
from support.prometheus import OPENMETRICS
from support.prometheus_server import PrometheusServer

from exporters.prometheus import PrometheusExporter
from exporters.prometheus.negotiate import negotiate
from sidecar.testing import Bench

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
FORMATS = {"openmetrics": ("exemplar-storage",), "protobuf": ("exemplar-storage", "native-histograms")}
# Seconds from T0 to now: exemplars far from the scrape's time are not stored.
NOW = time.time() - T0


@pytest.fixture
async def bench():
    """What surrounds the exporters."""
    made = Bench()
    yield made
    await made.close()


@pytest.mark.parametrize("format_", FORMATS)
async def test_stores_what_was_sent(bench, tmp_path, format_):
    """Every kind of metric has its values, labels and exemplars; a series that ends is stale at the next scrape."""
    exporter = bench.make(PrometheusExporter, "endpoint: 127.0.0.1:0", "prometheus")
    await exporter.export(
        batch(
            gauge("temperature", point(21.5, room="a"), point(20, room="b"), unit="Cel"),
            sum_("requests", point(7, exemplars=[exemplar(1, NOW, (TRACE, SPAN))])),
            histogram(
                "latency", buckets([0.1, 1], [1, 2, 3], 9.5, exemplars=[exemplar(0.5, NOW, (TRACE, SPAN))]), unit="s"
            ),
            exponential("size", exponential_point(0, (3, [10, 0, 0, 20, 5, 2]), total=1234.5, zero=1), unit="By"),
            summary("wait", quantiles({0.5: 0.25, 1: 2}, 3, 2.85), unit="s"),
        )
    )
    async with running(exporter), PrometheusServer([exporter.port], tmp_path, FORMATS[format_]) as prometheus:
        own = '{job="shop/checkout",instance="i-1",otel_scope_name="lib"}'
        ((labels, value),) = await prometheus.wait_for(f"requests_total{own}")
        assert value == "7"
        assert labels["otel_scope_version"] == "1.0"
        values = {labels["room"]: value for labels, value in await prometheus.query(f"temperature_celsius{own}")}
        assert values == {"a": "21.5", "b": "20"}
        found = {labels["le"]: float(value) for labels, value in await prometheus.query("latency_seconds_bucket")}
        assert found == {"0.1": 1, "1.0": 3, "+Inf": 6}
        assert await prometheus.query("latency_seconds_sum") == [
            ({**own_labels(), "__name__": "latency_seconds_sum"}, "9.5")
        ]
        found = {labels["quantile"]: value for labels, value in await prometheus.query("wait_seconds")}
        assert found == {"0.5": "0.25", "1.0": "2"}
        for expression in ("requests_total", "latency_seconds_bucket"):
            (stored,) = await prometheus.exemplars(expression)
            assert stored["labels"] == {"trace_id": TRACE, "span_id": SPAN}
        if format_ == "protobuf":
            ((_, native),) = await prometheus.query("size_bytes")
            assert (native["count"], native["sum"]) == ("38", "1234.5")
            assert [3, "-1e-128", "1e-128", "1"] in native["buckets"]
            assert [0, "8", "16", "10"] in native["buckets"]
        else:
            (_, value) = (await prometheus.query('size_bytes_bucket{le="16.0"}'))[0]
            assert value == "11"
        await exporter.export(batch(gauge("temperature", point(None, room="a", flagged=True), unit="Cel")))
        await prometheus.next_scrape()
        assert [labels["room"] for labels, _ in await prometheus.query("temperature_celsius")] == ["b"]
        ((_, always_up),) = await prometheus.query("min_over_time(up[1m])")
        assert always_up == "1"


def own_labels():
    """What every series of the test's resource carries."""
    return {"job": "shop/checkout", "instance": "i-1", "otel_scope_name": "lib", "otel_scope_version": "1.0"}


HOSTILE = [
    "", "a", "ä", "日本", "a.b", "a_b", "a-b", "__a__", "__name__", "le", "quantile", "job", "instance", "9", "a b",
    'a"b', "a\\b", "a\nb", "a\rb", "a\0b", "{", "}", 'a{b="c"}', "#", "# TYPE a gauge", "# EOF", "NaN", "🎉", "\x07",
    "\x85\u2028", "a" * 10_000, "total", "_total", "a_total", "a_bucket", "a_count", "a_sum", "a_created", "a_info",
    "target_info", "up", "scrape_duration_seconds",
]  # fmt: skip


MAKERS = {
    "gauge": lambda name, labels, unit: gauge(name, point(1, labels), unit=unit, help_=name),
    "counter": lambda name, labels, unit: sum_(
        name, point(1, labels, exemplars=[exemplar(1, NOW, None, labels)]), unit=unit, help_=name
    ),
    "histogram": lambda name, labels, unit: histogram(name, buckets([-1, 0.5], [1, 2, 3], 2, attrs=labels), unit=unit),
    "summary": lambda name, labels, unit: summary(name, quantiles({0.5: math.nan}, 2, -1, attrs=labels), unit=unit),
    "exponential": lambda name, labels, unit: exponential(
        name, exponential_point(9, (-5, [1]), (3, [2]), total=-4, attrs=labels), unit=unit
    ),
}


def hostile(kind):
    """Metrics of one kind with every hostile text as name, unit, key and value, and what to send them with."""
    for index, text in enumerate(HOSTILE):
        other, third = HOSTILE[-index], HOSTILE[index - 5]
        labels = {key: value for key, value in {text: other, third: text, "plain": "x"}.items() if key}
        name = text if kind == "gauge" else f"{kind}.{text}"
        yield (
            MAKERS[kind](name, labels, HOSTILE[index - 3]),
            {"resource": {"service.name": text, **labels}, "scope": (text, other), "scope_attrs": labels},
        )


@pytest.mark.parametrize("format_", FORMATS)
async def test_no_name_and_no_label_fails_a_scrape(bench, tmp_path, format_):
    """Whatever names, units, keys and values are sent, escaped or not: the server takes every page, and all of it."""
    exporters = [
        bench.make(PrometheusExporter, f"{{endpoint: '127.0.0.1:{port}', translation_strategy: {strategy}}}", name)
        for name, strategy, port in (
            ("prometheus/classic", "UnderscoreEscapingWithSuffixes", find_free_port()),
            ("prometheus/utf8", "NoTranslation", find_free_port()),
        )
    ]
    async with running(*exporters):
        ports = [exporter.port for exporter in exporters]
        async with PrometheusServer(ports, tmp_path, FORMATS[format_]) as prometheus:
            for kind in MAKERS:
                for metric, sent_with in hostile(kind):
                    for exporter in exporters:
                        await exporter.export(batch(metric, **sent_with))
                await prometheus.next_scrape()
            for target in (await prometheus.ask("targets", state="active"))["activeTargets"]:
                assert (target["lastError"], target["health"]) == ("", "up")
            always_up = await prometheus.query("min_over_time(up{job='sidecar'}[1m])")
            assert [value for _, value in always_up] == ["1", "1"]
            stored = {
                labels["instance"]: int(value) for labels, value in await prometheus.query("scrape_samples_scraped")
            }
    if format_ == "openmetrics":
        pages = [check(b"".join(exporter.page(negotiate(OPENMETRICS)))) for exporter in exporters]
        shown = {f"127.0.0.1:{port}": len(page.samples) for port, page in zip(ports, pages, strict=True)}
        assert stored == shown
