"""The vectors of the translation: what is sent, and the page that Prometheus gets, line for line."""

import re
from pathlib import Path

import pytest
from support.exposition import check, check_protobuf, metric_families
from support.otlp_metrics import (
    DELTA,
    RESOURCE,
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
from support.prometheus import OPENMETRICS, PROTOBUF, TEXT, Subject

GOLDEN = Path(__file__).parents[1] / "golden" / "prometheus"
COMMON = 'instance="i-1",job="shop/checkout",otel_scope_name="lib",otel_scope_version="1.0"'
IDS = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")
GRID = "exponential_histograms: {min_exponent: 0, max_exponent: 10}"


def golden(name):
    """A vector's page."""
    return (GOLDEN / name).read_text().replace("$C", COMMON)


def canonical(page):
    """Lines with numbers as floats: `5` and `5.0` are the same value."""
    text = page.decode() if isinstance(page, bytes) else page
    return [
        line
        if line.startswith("#")
        else re.sub(r"(?<= )[-+]?\d[\d.e+-]*(?= |$)", lambda found: repr(float(found[0])), line)
        for line in text.splitlines()
    ]


VECTORS = {
    "v01": [gauge("process.memory.usage", point(123, dir="in"), unit="By", help_='RSS \\ "x"\ny')],
    "v02": [
        sum_("requests", point(5), unit="1", help_="r"),
        sum_("cpu.seconds_total", point(2.5), unit="s", help_="c"),
    ],
    "v03": [
        gauge("net.rate", point(10), unit="By/s"),
        gauge("cpu.util", point(42.5), unit="%"),
        gauge("jvm.cpu.recent_utilization", point(0.25), unit="1"),
        gauge("q.rate", point(3), unit="{packets}/s"),
        sum_("queue.length", point(7), unit="{packets}", monotonic=False),
        sum_("updown", point(8), unit="1", monotonic=False),
    ],
    "v05": [
        gauge(
            "g",
            point(
                1,
                {
                    "err": 'say "hi"\\p\né日', "f.arr": ["a", 1, True], "f.bool": True, "f.bytes": b"hello world",
                    "f.flt": 1.5, "f.int": 42, "f.null": None, "9z": "d",
                },
            ),
        )
    ],
    "v06": [gauge("g6", point(1, {"a.b": "1", "a_b": "2", "a-b": "3"}))],
    "v10": [
        histogram(
            "h",
            buckets(
                [0.5, 1, 10],
                [1, 0, 2, 1],
                14.2,
                exemplars=[
                    exemplar(0.3, 1.5, IDS),
                    exemplar(3.0, 0),
                    exemplar(2.0, 3),
                    exemplar(20.0, 2, attrs={"user.id": 42}),
                ],
            ),
            unit="s",
        )
    ],
    "v11": [histogram("hn", buckets([-1, 1], [1, 1, 0])), histogram("hb", buckets([], [], 6, count=3))],
    "v13": [summary("s", quantiles({1: 2.25, 0: 0.1, 0.5: 0.5}, 3, 2.85))],
    "v14": [
        sum_("x", point(1, exemplars=[exemplar(1.0, 1, IDS, {"note": "n" * 100, "ok": 1, "trace.id": "zzz"})])),
    ],
    "v22": [gauge("x.seconds.y", point(1), unit="s")],
}  # fmt: skip


@pytest.mark.parametrize("vector", VECTORS)
async def test_shows_what_the_vector_says(vector):
    """One batch gives the vector's pages, and the protobuf page tells the same."""
    subject = Subject()
    await subject.feed(*VECTORS[vector])
    for suffix, accept in (("txt", TEXT), ("om", OPENMETRICS)):
        page = subject.page(accept)
        check(page)
        if (GOLDEN / f"{vector}.{suffix}").exists():
            assert canonical(page) == canonical(golden(f"{vector}.{suffix}"))
    check_protobuf(subject.page(PROTOBUF))


async def test_v4_names_without_a_legal_character_are_dropped():
    """A leading digit gets an underscore, and what has no legal character at all is counted."""
    subject = Subject()
    await subject.feed(
        sum_("1xx.count", point(4), unit="{request}"),
        *(gauge(name, point(1)) for name in ("", "@#$%", "___!")),
        gauge("日本", point(1), unit="s"),
    )
    assert canonical(subject.page()) == canonical(golden("v04.txt"))
    assert subject.dropped("invalid_name") == 4


async def test_v7_special_values():
    """Gauges may be anything; a counter that is not a number is dropped."""
    subject = Subject()
    values = {"a": float("nan"), "b": float("inf"), "c": float("-inf"), "d": 1e300}
    await subject.feed(
        gauge("g7", *(point(value, dir=name) for name, value in values.items())), sum_("bad", point(float("nan")))
    )
    assert subject.page().decode() == golden("v07.txt")
    assert subject.dropped("invalid_value") == 1


@pytest.mark.parametrize(("gaps", "value", "created"), [("add", 10, 1_700_000_000), ("reset", 2, 1_700_000_060)])
async def test_v8_delta_sum(gaps, value, created):
    """Deltas that join add up; one after a gap adds up too, or starts over where asked; old ones don't count."""
    subject = Subject(f"{{created_lines: true, delta_gaps: {gaps}}}")
    for number, start, time in ((5, 0, 10), (3, 10, 20)):
        await subject.feed(sum_("d", point(number, start=start, time=time), temporality=DELTA))
    assert canonical(subject.page(OPENMETRICS)) == canonical(golden("v08.om"))
    for number, start, time in ((2, 60, 70), (9, 10, 20)):
        await subject.feed(sum_("d", point(number, start=start, time=time), temporality=DELTA))
    page = check(subject.page(OPENMETRICS))
    assert page.value("d_total") == value
    assert page.value("d_created") == created
    if gaps == "reset":
        assert canonical(subject.page(OPENMETRICS)) == canonical(golden("v08b.om"))
    assert subject.dropped("out_of_order") == 1


async def test_v9_cumulative_reset():
    """A counter that starts over is shown as it is, and a late point of its former life is not."""
    subject = Subject()
    for number, start, time in ((100, 0, 10), (4, 50, 60), (150, 0, 20)):
        await subject.feed(sum_("c", point(number, start=start, time=time)))
    assert canonical(subject.page()) == canonical(golden("v09.txt"))
    assert subject.dropped("out_of_order") == 1


@pytest.mark.parametrize(
    "sent",
    [
        exponential_point(0, (3, [10, 0, 0, 20, 5, 2]), total=1234.5, zero=1),
        exponential_point(2, (12, [1, 2, 3, 4, *[0] * 8, 20, 0, 0, 0, 5, 0, 0, 0, 0, 2]), total=1234.5, zero=1),
    ],
    ids=["scale 0", "scale 2"],
)
async def test_v12_exponential_histogram(sent):
    """Text shows the fixed grid whatever the scale; protobuf has the native histogram."""
    subject = Subject(GRID)
    await subject.feed(exponential("e", sent))
    assert canonical(subject.page()) == canonical(golden("v12.txt"))
    check(subject.page(OPENMETRICS))
    assert check_protobuf(subject.page(PROTOBUF)).samples == check(subject.page()).samples
    (family,) = metric_families(subject.page(PROTOBUF))
    native = family.metric[0].histogram
    assert (native.sample_count, native.sample_sum, native.schema, native.zero_count) == (38, 1234.5, sent.scale, 1)
    assert native.zero_threshold == 1e-128
    if sent.scale == 0:
        assert [(span.offset, span.length) for span in native.positive_span] == [(4, 1), (2, 3)]
        assert list(native.positive_delta) == [10, 10, -15, -3]


async def test_v15_one_series_from_two_resources(caplog):
    """The newest point is shown, described by the resource that came last; where they take turns, a person is told."""
    subject = Subject()
    await subject.feed(gauge("up15", point(1, time=10)), resource={**RESOURCE, "host.name": "h1"})
    await subject.feed(gauge("up15", point(2, time=5)), resource={**RESOURCE, "host.name": "h2"})
    assert canonical(subject.page()) == canonical(golden("v15.txt"))
    await subject.feed(gauge("up15", point(3, time=20)), resource={**RESOURCE, "host.name": "h2"})
    assert subject.read().value("up15") == 3
    assert "collision" not in caplog.text
    await subject.feed(gauge("up15", point(4, time=30)), resource={**RESOURCE, "host.name": "h1"})
    assert "collision: resources that differ in host.name send" in caplog.text


async def test_v16_names_that_meet_after_translation(caplog):
    """One family with the first help; other types of that name are dropped and named."""
    subject = Subject()
    await subject.feed(
        gauge("foo.bar", point(1, dir="x"), help_="A"),
        gauge("foo_bar", point(2, dir="y"), help_="B"),
        histogram("foo-bar", buckets([1], [1, 1], 2)),
    )
    assert canonical(subject.page()) == canonical(golden("v16.txt"))
    assert subject.dropped("type_conflict") == 1
    assert "'foo-bar': type_conflict: foo_bar is a gauge already" in caplog.text
    assert "'B' is not shown" in caplog.text


async def test_v16_counter_without_suffix_meets_gauge():
    """Without suffixes a counter may meet a gauge, and is dropped."""
    subject = Subject("translation_strategy: UnderscoreEscapingWithoutSuffixes")
    await subject.feed(gauge("foo.bar", point(1)), sum_("foo/bar", point(1)))
    assert check(subject.page()).types == {"foo_bar": "gauge"}
    assert subject.dropped("type_conflict") == 1


async def test_v17_suffix_clash():
    """A family whose name is that of another's sample is dropped."""
    subject = Subject()
    await subject.feed(histogram("x17", buckets([], [], 1, count=1)), gauge("x17.count", point(5)))
    assert canonical(subject.page()) == canonical(golden("v17.txt"))
    assert subject.dropped("name_conflict") == 1


async def test_v18_no_recorded_value():
    """Every flagged series vanishes at once, and the rest of the batch is taken."""
    subject = Subject()
    await subject.feed(gauge("n18", *(point(1, dir=name) for name in "abc")))
    await subject.feed(
        gauge("n18", point(None, dir="a", flagged=True), point(None, dir="b", flagged=True), point(2, dir="c"))
    )
    assert canonical(subject.page()) == canonical(golden("v18.txt"))
    assert not subject.bench.dropped


async def test_v19_target_info():
    """The target family comes first in OpenMetrics; without an instance id the label is there and empty."""
    subject = Subject()
    await subject.feed(gauge("g19", point(1)), resource={"service.name": "svc", "host.name": "h1"}, scope=("", ""))
    assert canonical(subject.page(OPENMETRICS)) == canonical(golden("v19.om"))
    check(subject.page())


async def test_v20_utf8():
    """Names in quotes for who asks for them, underscores for everybody else."""
    subject = Subject("translation_strategy: NoUTF8EscapingWithSuffixes")
    await subject.feed(sum_("http.requests", point(3, {"http.method": "GET"})))
    allowed = subject.page(f"{OPENMETRICS};escaping=allow-utf-8")
    check(allowed)
    assert canonical(allowed) == canonical(golden("v20.om"))
    assert canonical(subject.page(OPENMETRICS)) == canonical(golden("v20b.om"))


async def test_v21_timestamps():
    """Milliseconds in text, seconds in OpenMetrics."""
    subject = Subject("send_timestamps: true")
    await subject.feed(gauge("ts21", point(1, time=0.123)))
    assert canonical(subject.page()) == canonical(golden("v21.txt"))
    assert canonical(subject.page(OPENMETRICS)) == canonical(golden("v21.om"))


async def test_v23_what_is_dropped():
    """What can't be shown gives no line, and is counted by its reason."""
    subject = Subject()
    await subject.feed(
        sum_("a", point(1), monotonic=False, temporality=DELTA),
        sum_("b", point(1), temporality=0),
        exponential("c", exponential_point(-5, (0, [1]), total=1)),
        histogram("d", buckets([1, 2], [1, 1], 3)),
        gauge("e", point(None)),
    )
    assert subject.page() == b""
    assert {reason: count for (_, reason), count in subject.bench.dropped.items()} == {
        "unsupported_temporality": 2,
        "unsupported_scale": 1,
        "malformed": 1,
        "no_value": 1,
    }


async def test_v24_nothing_to_show():
    """A page without data is empty, but for the end that OpenMetrics wants."""
    subject = Subject()
    assert (subject.page(), subject.page(OPENMETRICS), subject.page(PROTOBUF)) == (b"", b"# EOF\n", b"")
