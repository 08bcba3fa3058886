"""What senders do to an exporter, and what the page shows then: collisions, conflicts, caps, expiry, deltas."""

import asyncio
import gc
import tracemalloc

import pytest
from support.exposition import same
from support.otlp_metrics import (
    DELTA,
    RESOURCE,
    batch,
    buckets,
    exemplar,
    exponential,
    exponential_point,
    gauge,
    histogram,
    point,
    quantiles,
    request,
    sum_,
    summary,
)
from support.prometheus import OPENMETRICS, PROTOBUF, TEXT, Subject

from config.problems import ConfigError
from sidecar import Batch, BatchContext, Permanent, Signal


async def test_two_metrics_that_become_one_series():
    """A sum and a gauge whose names translate alike are one series; the newest point is shown, once."""
    subject = Subject()
    await subject.feed(gauge("foo.bar", point(1, time=10)), sum_("foo_bar", point(2.5, time=20), monotonic=False))
    assert subject.read().values("foo_bar") == [2.5]
    await subject.feed(gauge("foo.bar", point(3, time=30)))
    assert subject.read().values("foo_bar") == [3]


@pytest.mark.parametrize(
    ("settings", "label"),
    [
        ("resource_constant_labels: {included: ['service.*']}", "checkout;mine"),
        ("{resource_constant_labels: {included: ['service.*']}, const_labels: {service_name: x}}", "checkout;mine"),
        ("const_labels: {service_name: x}", "mine"),
        ("resource_to_telemetry_conversion: {enabled: true}", "checkout;mine"),
        ("resource_to_telemetry_conversion: {enabled: true, exclude_service_attributes: true}", "mine"),
    ],
)
async def test_labels_that_meet_cost_no_point(settings, label):
    """A promoted attribute, a constant label and a point's own attribute of one name give one label."""
    subject = Subject(settings)
    await subject.feed(gauge("g", point(1, service_name="mine")))
    assert subject.read().value("g", service_name=label) == 1


async def test_deprecated_settings_say_what_to_write(caplog):
    """They work, and the log names the new ones."""
    subject = Subject("{add_metric_suffixes: false, resource_to_telemetry_conversion: {enabled: false}}")
    await subject.feed(sum_("requests", point(1), unit="By"))
    assert subject.read().names() == {"requests"}
    assert "translation_strategy: UnderscoreEscapingWithoutSuffixes" in caplog.text
    assert "resource_constant_labels" in caplog.text


async def test_translation_strategy_wins_over_the_deprecated_setting():
    """As in the Collector."""
    subject = Subject(
        "{add_metric_suffixes: false, translation_strategy: UnderscoreEscapingWithSuffixes, namespace: my.app}"
    )
    await subject.feed(sum_("requests", point(1), unit="By"))
    assert subject.read().names() == {"my_app_requests_bytes_total"}


@pytest.mark.parametrize(
    ("settings", "at"),
    [
        ("path: metrics", "path"),
        ("const_labels: {a.b: x}", "const_labels"),
        ("traces: {buckets: [1s, 1s]}", "traces.buckets"),
        ("exponential_histograms: {min_exponent: 3, max_exponent: 2}", "exponential_histograms.min_exponent"),
        ("identity_labels: {job: my-job}", "identity_labels.job"),
        ("translation_strategy: none", "translation_strategy"),
    ],
)
def test_wrong_settings_are_named(settings, at):
    """Each at its place."""
    with pytest.raises(ConfigError) as raised:
        Subject(settings)
    assert at in str(raised.value)


async def test_labels_of_the_scope_and_of_the_resource():
    """Scope labels by default, without them where asked; identity labels under other names, or not at all."""
    subject = Subject()
    await subject.feed(gauge("g", point(1)), scope_attrs={"color": "red"}, schema_url="http://s")
    ((_, labels),) = subject.read().samples
    assert dict(labels) == {
        "job": "shop/checkout", "instance": "i-1", "otel_scope_name": "lib", "otel_scope_version": "1.0",
        "otel_scope_schema_url": "http://s", "otel_scope_color": "red",
    }  # fmt: skip
    for settings in ("without_scope_info: true", "scope_info_enabled: false"):
        subject = Subject(f"{{{settings}, identity_labels: {{job: service, instance: ''}}}}")
        await subject.feed(gauge("g", point(1)), scope_attrs={"color": "red"})
        ((_, labels),) = subject.read().samples
        assert dict(labels) == {"service": "shop/checkout"}


async def test_target_info_is_one_per_job_and_instance():
    """It shows the newest resource's other attributes, or the chosen ones, or is not there."""
    for settings, expected in (
        ("", [{"host_name": "h2", "pid": "1"}]),
        ("target_info_attributes: {excluded: [pid]}", [{"host_name": "h2"}]),
        ("target_info_enabled: false", []),
    ):
        subject = Subject(settings)
        for host in ("h1", "h2", "h1", "h2"):
            await subject.feed(gauge("g", point(1)), resource={**RESOURCE, "host.name": host, "pid": 1})
        found = [dict(labels) for name, labels in subject.read(OPENMETRICS).samples if name == "target_info"]
        assert found == [{"job": "shop/checkout", "instance": "i-1", **one} for one in expected]


async def test_target_info_needs_a_series():
    """Resources of which nothing is shown are not described, however many come."""
    subject = Subject("max_series: 1")
    for number in range(5):
        await subject.feed(gauge("g", point(1)), resource={"service.name": f"s{number}", "host.name": "h"})
    assert sorted(name for name, _ in subject.read().samples) == ["g", "target_info"]


async def test_target_info_ends_with_its_last_series():
    """It expires when nothing of its resource has been received for as long as series live."""
    subject = Subject("{gauge_expiration: 1m, counter_expiration: 10m}")
    await subject.feed(gauge("g", point(1)), sum_("c", point(1)), resource={**RESOURCE, "host.name": "h1"})
    await later(subject, 100)
    assert subject.read().names() == {"target_info", "c_total"}
    await later(subject, 600)
    assert subject.page() == b""


async def later(subject, seconds):
    """Let time pass, and take out what has expired."""
    subject.bench.clock.advance(seconds)
    await subject.exporter.sweep()


async def test_flagged_points_end_their_series_and_nothing_else():
    """A batch may end five series and begin five."""
    subject = Subject()
    await subject.feed(sum_("n", *(point(1, dir=str(number)) for number in range(5))))
    await subject.feed(
        sum_("n", *(point(None, dir=str(number), flagged=True) for number in range(5))),
        sum_("n", *(point(2, dir=str(number)) for number in range(5, 10))),
    )
    assert {dict(labels)["dir"] for _, labels in subject.read().samples} == set("56789")
    await subject.feed(sum_("n", point(1, dir="0", time=5)))
    assert subject.read().value("n_total", dir="0") == 1


@pytest.mark.parametrize(
    ("expire_by", "sent", "lives"),
    [
        ("receipt", (1, 10), True),
        ("point_time", (1, 10), False),
        ("point_time", (1, 20), True),
        ("value", (1, 20), False),
        ("value", (2, 10), True),
    ],
)
async def test_what_keeps_a_series_alive(expire_by, sent, lives):
    """That it is received, that its time moves, or that its value changes, as the settings say."""
    for make in (gauge, sum_):
        subject = Subject(f"{{expire_by: {expire_by}, metric_expiration: 1m}}")
        await subject.feed(make("m", point(1, time=10)))
        await later(subject, 40)
        await subject.feed(make("m", point(sent[0], time=sent[1])))
        await later(subject, 40)
        assert bool(subject.page()) == lives


async def test_gauges_and_counters_expire_on_their_own_terms():
    """0 means never; histograms and summaries live as counters do."""
    subject = Subject("{gauge_expiration: 1m, counter_expiration: 0}")
    await subject.feed(
        gauge("g", point(1)),
        sum_("c", point(1)),
        histogram("h", buckets([1], [1, 1], 2)),
        summary("s", quantiles({0.5: 1}, 1, 1)),
        exponential("e", exponential_point(0, (0, [1]))),
    )
    await later(subject, 10_000)
    assert set(subject.read().types) == {"c_total", "h", "s", "e"}


async def test_a_delta_counter_goes_on_after_it_has_expired():
    """Its sum is kept aside while there is room, and so does not seem to be reset when its sender comes back."""
    subject = Subject("metric_expiration: 1m")
    await subject.feed(sum_("d", point(5, start=0, time=10), temporality=DELTA))
    await later(subject, 100)
    assert subject.page() == b""
    await subject.feed(sum_("d", point(2, start=100, time=110), temporality=DELTA))
    assert subject.read().value("d_total") == 7


async def test_expiry_runs_without_scrapes():
    """A started exporter takes out what has expired though nobody asks for the page."""
    subject = Subject("{endpoint: 'localhost:0', metric_expiration: 1s}")
    await subject.exporter.start()
    await subject.feed(gauge("g", point(1)))
    subject.bench.clock.advance(10)
    async with asyncio.timeout(5):
        while subject.exporter.store.size:  # noqa: ASYNC110 (the exporter's own timer is what is tested)
            await asyncio.sleep(0.02)
    await subject.exporter.stop()
    await subject.bench.close()


async def test_memory_is_bounded_by_the_cap_under_endless_churn(monkeypatch):
    """Names, labels, resources and scopes that never come back, and no scrape: what is kept stays the same."""
    monkeypatch.setattr("exporters.prometheus.exporter._MAX_NOTED", 20)
    subject = Subject("{max_series: 100, max_families: 50, metric_expiration: 1m}")
    kept = []
    tracemalloc.start()
    for number in range(40):
        points = [point(1, key=f"{number}-{index}") for index in range(20)]
        deltas = [point(1, key=f"{number}-{index}", start=number, time=number + 1) for index in range(20)]
        for resource in ({"service.name": f"s{number}", "host.name": f"h{number}"}, RESOURCE):
            await subject.feed(
                gauge(f"g{number}", *points),
                sum_("d", *deltas, temporality=DELTA),
                *(gauge(f"g{number}.{index}", point(1)) for index in range(10)),
                resource=resource,
                scope=(f"lib{number}", "1"),
            )
        await later(subject, 20)
        if number in {19, 39}:
            gc.collect()
            kept.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    # One target_info stands beside the series of each resource.
    assert subject.exporter.store.size <= 200
    # Twenty rounds bring a megabyte of series.
    assert kept[1] < kept[0] + 100_000
    assert subject.dropped("series_limit") > 0


@pytest.mark.parametrize(
    ("settings", "value"),
    [("max_series: 7", 8), ("metric_expiration: 1h", 8), ("namespace: x", None), ("logs: {labels: []}", 3)],
)
async def test_a_successor_goes_on(settings, value):
    """After a reload sums go on and nothing is missing, unless series have other names or labels now."""
    old, new = Subject(), Subject(settings)
    await old.feed(sum_("d", point(5, start=0, time=10), temporality=DELTA), resource={**RESOURCE, "host.name": "h"})
    new.exporter.carry(old.exporter)
    if value == 8:
        assert new.read().names() == {"d_total", "target_info"}
        # For scrapes that are under way.
        assert old.page() == new.page()
    await new.feed(sum_("d", point(3, start=10, time=20), temporality=DELTA), resource={**RESOURCE, "host.name": "h"})
    assert new.read().values("d_total") == ([value] if value else [])
    await later(new, 10_000)
    assert new.page() == b""


async def test_series_cap_refuses_new_series_only(caplog):
    """Those that are known go on; what is refused is counted, also by metric name, and logged once."""
    subject = Subject("max_series: 2")
    for value in (1, 2):
        await subject.feed(gauge("g", *(point(value, n=str(number)) for number in range(4))))
    assert sorted(subject.read().samples.values()) == [2, 2]
    assert subject.dropped("series_limit") == 4
    metrics = subject.bench.metrics
    assert metrics.value("sidecar_prometheus_refused_points", metric="g", reason="series_limit") == 4
    assert caplog.text.count("max_series") == 1


async def test_family_cap():
    """New names over the cap are refused."""
    subject = Subject("max_families: 2")
    await subject.feed(*(gauge(f"g{number}", point(1)) for number in range(4)))
    assert set(subject.read().types) == {"g0", "g1"}
    assert subject.dropped("family_limit") == 2


async def test_type_conflict_is_decided_once():
    """The first type stays until it has no series left, whatever the order of later batches."""
    subject = Subject("metric_expiration: 1m")
    await subject.feed(histogram("x", buckets([1], [1, 1], 2)))
    for _ in range(2):
        await subject.feed(summary("x", quantiles({0.5: 1}, 1, 1)), histogram("x", buckets([1], [1, 1], 2, time=11)))
        assert subject.read().types == {"x": "histogram"}
    assert subject.dropped("type_conflict") == 2
    await later(subject, 100)
    await subject.feed(summary("x", quantiles({0.5: 1}, 1, 1)))
    assert subject.read().types == {"x": "summary"}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (sum_("foo", point(1)), gauge("foo", point(1))),
        (sum_("foo", point(1)), gauge("foo.created", point(1))),
        (summary("s", quantiles({}, 1, 1)), gauge("s.sum", point(1))),
        (gauge("h.bucket", point(1)), histogram("h", buckets([], [], 1, count=1))),
        (gauge("target", point(1)), gauge("target.info", point(1), hint="info")),
    ],
)
async def test_families_that_need_one_name(first, second):
    """The later one is dropped, in every format alike."""
    subject = Subject()
    await subject.feed(first, second)
    pages = [subject.read(accept) for accept in (TEXT, OPENMETRICS, PROTOBUF)]
    assert [len(page.types) for page in pages] == [1, 1, 1]
    assert subject.dropped("name_conflict") == 1


async def test_hints_of_former_prometheus_metrics():
    """`unknown` and `info` keep their types; what OpenMetrics can't take stays a gauge."""
    subject = Subject()
    await subject.feed(
        gauge("u", point(1), hint="unknown"),
        gauge("build_info", point(1, version="3"), hint="info"),
        gauge("info_without_suffix", point(1), hint="info"),
        gauge("state", point(1), hint="stateset"),
    )
    assert subject.read().types == {
        "u": "untyped", "build_info": "gauge", "info_without_suffix": "gauge", "state": "gauge",
    }  # fmt: skip
    assert subject.read(OPENMETRICS).types == {
        "u": "unknown", "build": "info", "info_without_suffix": "gauge", "state": "gauge",
    }  # fmt: skip
    assert same(subject.read().samples, subject.read(OPENMETRICS).samples)


async def test_counter_without_suffix_is_unknown_to_openmetrics():
    """OpenMetrics has no counters without `_total`; the name stays the same in every format."""
    subject = Subject("translation_strategy: UnderscoreEscapingWithoutSuffixes")
    await subject.feed(sum_("requests", point(1, exemplars=[exemplar(1, 1)])))
    assert subject.read().types == {"requests": "counter"}
    assert subject.read(OPENMETRICS).types == {"requests": "unknown"}
    assert subject.read().names() == subject.read(OPENMETRICS).names() == subject.read(PROTOBUF).names() == {"requests"}


async def test_delta_histograms_add_up():
    """Explicit and exponential ones; other bounds begin anew."""
    subject = Subject("exponential_histograms: {min_exponent: 0, max_exponent: 3}")
    for start, time in ((0, 10), (10, 20)):
        await subject.feed(
            histogram("h", buckets([1, 2], [1, 2, 3], 4.5, start=start, time=time), temporality=DELTA),
            exponential("e", exponential_point(1, (2, [1, 1]), total=5.0, start=start, time=time), temporality=DELTA),
        )
    page = subject.read()
    assert [page.value("h_bucket", le=bound) for bound in ("1.0", "2.0", "+Inf")] == [2, 6, 12]
    assert (page.value("h_sum"), page.value("e_sum"), page.value("e_count")) == (9, 10, 4)
    await subject.feed(histogram("h", buckets([5], [1, 1], 6, start=20, time=30), temporality=DELTA))
    assert subject.read().value("h_count") == 2


async def test_points_without_times_just_add_up():
    """As statsd-like senders send them."""
    subject = Subject()
    for _ in range(3):
        made = sum_("d", point(2), temporality=DELTA)
        made.sum.data_points[0].time_unix_nano = made.sum.data_points[0].start_time_unix_nano = 0
        await subject.feed(made)
    assert subject.read().value("d_total") == 6


async def test_gaps_are_counted():
    """A delta that does not join the last one adds up, and shows among the sidecar's own metrics."""
    subject = Subject()
    for start, time in ((0, 10), (10, 20), (60, 70)):
        await subject.feed(sum_("d", point(1, start=start, time=time), temporality=DELTA))
    assert subject.read().value("d_total") == 3
    assert subject.bench.metrics.value("sidecar_prometheus_delta_gaps") == 1


async def test_a_change_of_temporality_begins_anew():
    """Deltas after cumulative points start at their own value, and the other way round."""
    subject = Subject()
    await subject.feed(sum_("c", point(100, time=10)))
    await subject.feed(sum_("c", point(2, start=10, time=20), temporality=DELTA))
    assert subject.read().value("c_total") == 2
    await subject.feed(sum_("c", point(50, time=30)))
    assert subject.read().value("c_total") == 50


async def test_a_histogram_becomes_exponential():
    """A series of the other kind of histogram takes the place of the old one."""
    subject = Subject("exponential_histograms: {min_exponent: 0, max_exponent: 1}")
    await subject.feed(histogram("h", buckets([1], [1, 1], 2)))
    await subject.feed(exponential("h", exponential_point(0, (0, [5]), time=20)))
    assert subject.read().value("h_count") == 5
    await subject.feed(histogram("h", buckets([1], [1, 1], 2, time=30)))
    assert subject.read().value("h_count") == 2
    assert subject.exporter.store.size == 1


@pytest.mark.parametrize(
    "bad",
    [
        histogram("h", buckets([1, 2], [1, 1], 1)),
        histogram("h", buckets([2, 1], [1, 1, 1], 1)),
        histogram("h", buckets([1, 1], [1, 1, 1], 1)),
        histogram("h", buckets([float("nan")], [1, 1], 1)),
        histogram("h", buckets([1], [1, 1], 1, count=3)),
        histogram("h", buckets([1], [], 1, count=3)),
        exponential("h", exponential_point(0, (0, [1]), count=2)),
        exponential("h", exponential_point(0, (2000, [1]))),
        exponential("h", exponential_point(0, (0, [1]), threshold=float("nan"))),
        summary("h", quantiles({1.5: 1}, 1, 1)),
        summary("h", quantiles({float("nan"): 1}, 1, 1)),
    ],
)
async def test_what_contradicts_itself_is_malformed(bad):
    """It is dropped alone."""
    subject = Subject()
    await subject.feed(gauge("g", point(1)), bad)
    assert subject.read().names() == {"g"}
    assert subject.dropped("malformed") == 1


async def test_negative_and_missing_sums_are_left_out_where_openmetrics_forbids_them():
    """Text has what there is; OpenMetrics then has neither sum nor count, and no negative quantile."""
    subject = Subject()
    await subject.feed(
        histogram("n", buckets([0, 1], [3, 1, 0], -4.0)),
        histogram("m", buckets([0, 1], [3, 1, 0])),
        summary("s", quantiles({0.1: -1, 0.9: 1}, 3, -2)),
    )
    text, openmetrics = subject.read(), subject.read(OPENMETRICS)
    assert (text.value("n_sum"), text.value("n_count"), text.value("m_count")) == (-4, 4, 4)
    assert not text.values("m_sum")
    assert {"n_sum", "n_count", "m_sum", "m_count", "s_sum"}.isdisjoint(openmetrics.names())
    assert (text.values("s"), openmetrics.values("s")) == ([-1, 1], [1])


async def test_exemplars_follow_their_series():
    """The newest by bucket stays, a reset forgets all, and text has none."""
    subject = Subject()

    async def feed(value, counts, time, start=0, exemplars=()):
        await subject.feed(
            sum_("c", point(value, time=time, start=start, exemplars=exemplars)),
            histogram("h", buckets([1], counts, 9.0, time=time, start=start, exemplars=exemplars)),
        )
        return {key[0]: shown.value for key, shown in subject.read(OPENMETRICS).exemplars.items()}

    assert await feed(5, [3, 2], 10, exemplars=[exemplar(0.5, 9), exemplar(0.7, 8)]) == {
        "c_total": 0.5,
        "h_bucket": 0.5,
    }
    assert await feed(6, [3, 3], 20) == {"c_total": 0.5, "h_bucket": 0.5}
    assert await feed(7, [4, 3], 30, exemplars=[exemplar(0.9, 29)]) == {"c_total": 0.9, "h_bucket": 0.9}
    assert await feed(8, [5, 3], 50, start=40) == {}
    assert not subject.read().exemplars


async def test_the_batch_is_left_as_it_is():
    """Other exporters share it."""
    sent = request(sum_("d", point(1), temporality=DELTA), histogram("h", buckets([1], [1, 1], 1), temporality=DELTA))
    shared = Batch(Signal.METRICS, message=sent, context=BatchContext())
    before = sent.SerializeToString()
    subject = Subject()
    await subject.exporter.export(shared)
    await subject.exporter.export(shared)
    assert shared.message.SerializeToString() == before


async def test_bytes_that_are_no_request_are_refused():
    """Permanently, so that the sender is told."""
    with pytest.raises(Permanent):
        await Subject().exporter.export(Batch(Signal.METRICS, b"\x0a\xff", context=BatchContext()))


async def test_a_text_that_is_not_utf8_costs_only_its_point():
    """Also in a resource, of which then all points are dropped."""
    good = batch(gauge("g", point(1, key="good"), point(1, key="evil"))).encode()
    subject = Subject()
    await subject.exporter.export(Batch(Signal.METRICS, good.replace(b"evil", b"ev\xffl"), context=BatchContext()))
    assert subject.read().values("g", key="good") == [1]
    assert subject.dropped("malformed") == 1
    await subject.exporter.export(Batch(Signal.METRICS, good.replace(b"shop", b"sh\xffp"), context=BatchContext()))
    assert subject.dropped("malformed") == 3


@pytest.mark.parametrize("accept", [TEXT, OPENMETRICS, PROTOBUF])
async def test_a_lone_surrogate_does_not_break_the_page(accept):
    """Protobuf can't carry one, but a page that fails for it would fail for everybody."""
    subject = Subject()
    await subject.feed(gauge("g", point(1, a="b")))
    (family,) = subject.exporter.store.families.values()
    (series,) = family.series.values()
    family.help, series.labels = "\ud800", 'a="\ud800"'
    assert subject.read(accept).value("g", a="?") == 1


async def test_labels_of_unreasonable_length_are_dropped():
    """A series whose labels exceed 64 KiB is refused; a single long value is cut."""
    subject = Subject()
    await subject.feed(
        gauge("g", point(1, {f"key{number}": "x" * 4000 for number in range(20)}), point(2, a="y" * 10_000))
    )
    ((_, labels),) = subject.read().samples
    assert len(dict(labels)["a"]) == 4096
    assert subject.dropped("labels_too_long") == 1


@pytest.mark.parametrize("strategy", ["NoUTF8EscapingWithSuffixes", "NoTranslation"])
@pytest.mark.parametrize("scheme", ["underscores", "dots", "values", "allow-utf-8"])
async def test_names_that_meet_when_they_are_escaped(strategy, scheme, caplog):
    """Families and labels that are one after escaping are merged; another type is left out and named."""
    subject = Subject(f"translation_strategy: {strategy}")
    await subject.feed(
        gauge("a.b", point(1, {"x.y": "1", "x_y": "2"})),
        gauge("a_b", point(2, {"x_y": "1;2"}), point(3, {"z": "3"})),
        summary("a-b", quantiles({0.5: 1}, 1, 1)),
    )
    pages = [subject.read(f"{accept}; escaping={scheme}") for accept in (OPENMETRICS, PROTOBUF)]
    assert pages[0].samples.keys() == pages[1].samples.keys()
    if scheme == "underscores":
        assert pages[0].types == {"a_b": "gauge"}
        assert sorted(pages[0].values("a_b")) == [1, 3]
        assert "'a-b': name_conflict: not shown with escaping=underscores" in caplog.text
    else:
        assert len(pages[0].types) == (2 if scheme == "dots" else 3)


async def test_send_timestamps():
    """Every line carries its point's time, in each format's unit."""
    subject = Subject("{send_timestamps: true, created_lines: true}")
    await subject.feed(
        histogram("h", buckets([1], [1, 1], 1, time=1.25, exemplars=[exemplar(2, 1)])),
        summary("s", quantiles({0.5: 1}, 1, 1, time=1.25)),
        sum_("c", point(1, time=1.25)),
    )
    for accept in (TEXT, OPENMETRICS):
        page = subject.read(accept)
        assert page.times.keys() == page.samples.keys()
        assert {round(time - 1_700_000_000, 3) for time in page.times.values()} == {1.25}
    assert subject.read(OPENMETRICS).value("h_created") == 1_700_000_000
