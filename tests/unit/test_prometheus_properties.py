"""Whatever is sent, in whatever order: pages stay right, formats agree, counters don't fall, no count is lost."""

import asyncio
import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.exposition import same
from support.otlp_metrics import (
    DELTA,
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
from support.prometheus import OPENMETRICS, PROTOBUF, TEXT, Subject

from exporters.prometheus.exponential import MAX_BUCKETS, Buckets, Grid, State
from exporters.prometheus.negotiate import accepts_gzip, negotiate
from sidecar import Batch, BatchContext, Permanent, Signal

# Few, and alike: names that meet, clash with suffixes, or can't be shown.
names = st.sampled_from(["a", "a.b", "a_b", "a b", "a_total", "a.count", "a.bucket", "ä", "日", "", "le", "a.created"])
keys = st.sampled_from(["k", "k.k", "k_k", "le", "quantile", "job", "__name__", "ü", "9", "otel.scope.name"])
values = st.text(max_size=5) | st.integers(-5, 5) | st.none() | st.booleans() | st.floats()
labels = st.dictionaries(keys, values, max_size=3)
numbers = st.floats() | st.integers(-(2**63), 2**63 - 1)
times = st.integers(0, 5)
units = st.sampled_from(["", "s", "1", "By/s", "{x}", "ü"])
exemplars = st.lists(
    st.builds(
        exemplar,
        numbers.map(float),
        times,
        st.sampled_from([None, ("ab" * 16, "cd" * 8), ("00" * 16, "cd" * 8)]),
        st.dictionaries(keys, st.text(max_size=80), max_size=2),
    ),
    max_size=2,
)
timed = {"time": times, "start": times, "exemplars": exemplars}
number_points = st.lists(st.builds(point, numbers | st.none(), labels, flagged=st.booleans(), **timed), max_size=3)
counts = st.lists(st.integers(0, 2**40), max_size=4)
metrics = st.one_of(
    st.builds(lambda name, points, unit: gauge(name, *points, unit=unit), names, number_points, units),
    st.builds(
        lambda name, points, unit, monotonic, temporality: sum_(
            name, *points, unit=unit, monotonic=monotonic, temporality=temporality
        ),
        names,
        number_points,
        units,
        st.booleans(),
        st.integers(0, 2),
    ),
    st.builds(
        lambda name, points, temporality: histogram(name, *points, temporality=temporality),
        names,
        st.lists(
            st.builds(
                buckets,
                st.lists(st.floats(), max_size=3).map(sorted) | st.just([-1.0, 0.5, 2.0]),
                counts,
                st.none() | st.floats(),
                attrs=labels,
                flagged=st.booleans(),
                **timed,
            ),
            max_size=2,
        ),
        st.integers(1, 2),
    ),
    st.builds(
        lambda name, points, temporality: exponential(name, *points, temporality=temporality),
        names,
        st.lists(
            st.builds(
                exponential_point,
                st.integers(-6, 22),
                st.tuples(st.integers(-1100, 1100), counts),
                st.tuples(st.integers(-10, 10), counts),
                st.none() | st.floats(),
                zero=st.integers(0, 3),
                threshold=st.sampled_from([0.0, 0.5, 3.0, -1.0, math.nan]),
                attrs=labels,
                **timed,
            ),
            max_size=2,
        ),
        st.integers(1, 2),
    ),
    st.builds(
        lambda name, points: summary(name, *points),
        names,
        st.lists(
            st.builds(
                quantiles,
                st.dictionaries(st.floats() | st.floats(0, 1), st.floats(), max_size=3),
                st.integers(0, 5),
                st.floats(),
                time=times,
                start=times,
                attrs=labels,
            ),
            max_size=2,
        ),
    ),
)
settings = st.sampled_from(
    [
        "",
        "translation_strategy: NoTranslation",
        "{translation_strategy: UnderscoreEscapingWithoutSuffixes, max_series: 3, max_families: 2}",
        "{created_lines: true, send_timestamps: true, delta_gaps: reset, expire_by: value}",
        "{resource_constant_labels: {included: ['*']}, const_labels: {k: v}, max_label_value_length: 3}",
    ]
)


@given(settings, st.lists(metrics, max_size=8))
def test_every_page_is_right_and_every_format_agrees(chosen, sent):
    """Whatever is sent, every point is shown, replaced or counted, and each format has the same samples."""
    subject = Subject(chosen)
    total = sum(len(one) for one in map(batch, sent))

    async def feed():
        for one in sent:
            await subject.feed(one, resource={"service.name": "s", "k.k": "r"})

    asyncio.run(feed())
    escapings = ["allow-utf-8", "underscores", "values"] if "NoTranslation" in chosen else ["underscores"]
    for escaping in escapings:
        openmetrics = subject.read(f"{OPENMETRICS}; escaping={escaping}").samples
        text = subject.read(f"text/plain; version=1.0.0; escaping={escaping}").samples
        protobuf = subject.read(f"{PROTOBUF}; escaping={escaping}").samples
        assert subject.page(f"{OPENMETRICS}; escaping={escaping}") == subject.page(
            f"{OPENMETRICS}; escaping={escaping}"
        )
        assert same(in_both(text), in_both(openmetrics))
        # Protobuf can't leave a sum out.
        assert {name[-4:] for name, _ in protobuf.keys() - text.keys()} <= {"_sum"}
        assert same(text, {key: protobuf[key] for key in text})
    assert sum(subject.bench.dropped.values()) <= total
    assert subject.exporter.store.size == sum(len(one.series) for one in subject.exporter.store.families.values())


def in_both(samples):
    """Without what OpenMetrics forbids in some cases, and without the creation times that text has not."""
    return {
        key: value
        for key, value in samples.items()
        if not key[0].endswith(("_sum", "_count", "_created")) and not ("quantile" in dict(key[1]) and value < 0)
    }


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(1, 4), st.integers(0, 100)), max_size=12))
def test_delta_counters_never_fall_within_one_start(sent):
    """Whatever the order, gaps and overlaps of deltas: the value only grows, and late ones are all that is missing."""
    subject = Subject("created_lines: true")

    async def feed():
        expected, last, first = 0, 0, None
        for start, length, value in sent:
            time = start + length
            if first is None or (time > last and start >= first):
                expected, last = expected + value, time
                first = start if first is None else first
            await subject.feed(sum_("d", point(value, start=start, time=time), temporality=DELTA))
            page = subject.read(OPENMETRICS)
            assert page.value("d_total") == expected
            assert page.value("d_created") == 1_700_000_000 + first

    asyncio.run(feed())


@st.composite
def states(draw):
    """Exponential histograms at some scale."""
    scale = draw(st.integers(-4, 8))
    side = st.builds(Buckets, st.integers(-40, 40), st.lists(st.integers(0, 9), min_size=1, max_size=30))
    return State(scale, draw(st.sampled_from([0.0, 0.1, 2.0])), draw(st.integers(0, 5)), draw(side), draw(side))


@given(states(), states())
def test_merged_exponential_histograms_keep_every_count(one, two):
    """The total stays, the scale is the coarser one or below, and no side has more buckets than allowed."""
    merged = one.plus(two)
    assert merged.total == one.total + two.total
    assert merged.scale <= min(one.scale, two.scale)
    assert merged.zero_threshold >= max(one.zero_threshold, two.zero_threshold)
    assert max(len(merged.positive.counts), len(merged.negative.counts)) <= MAX_BUCKETS or merged.scale == -4


@given(states(), st.integers(0, 4))
def test_downscaling_changes_no_count_on_the_grid(state, by):
    """The grid shows the same at every scale from 0 on."""
    grid = Grid(-5, 5)
    coarser = state.at(max(state.scale - by, 0) if state.scale > 0 else state.scale)
    assert grid.counts(coarser) == grid.counts(state)
    assert sum(grid.counts(state)) == state.total


@pytest.mark.parametrize("scale", range(-4, 9))
def test_grid_counts_values_where_they_belong(scale):
    """A value in a bucket whose upper bound is a power of two is counted at that bound."""
    grid = Grid(-2, 6)
    per_octave = 2.0**scale
    index = math.ceil(4 * per_octave) - 1  # its upper bound is 2^4, or the next that there is
    counts = grid.counts(State(scale, 0.0, 0, Buckets(index, [7]), Buckets()))
    exponent = max((index + 1) / per_octave, 4)
    assert counts[min(int(exponent), 7) + 2] == 7


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=60))
def test_no_accept_header_fails(header):
    """Anything gets an answer, and none of it comes back."""
    answer = negotiate(header)
    assert answer.content_type.startswith(
        ("text/plain; version=", "application/openmetrics-text; version=", "application/vnd")
    )
    accepts_gzip(header)


@given(st.binary(max_size=200))
def test_no_bytes_break_the_exporter(data):
    """Bytes that are no request are refused; those that happen to be one are taken or counted."""
    subject = Subject()

    async def feed():
        whole = batch(gauge("g", point(1, a="b")), histogram("h", buckets([1], [1, 1], 1))).encode()
        for cut in (data, whole + data, whole[: len(data)] + data):
            with contextlib.suppress(Permanent):
                await subject.exporter.export(Batch(Signal.METRICS, cut, context=BatchContext()))

    asyncio.run(feed())
    for accept in (TEXT, OPENMETRICS, PROTOBUF):
        subject.read(accept)


@pytest.mark.parametrize("accept", [TEXT, OPENMETRICS, PROTOBUF])
async def test_a_large_page_is_made_in_small_steps(accept):
    """However many series there are and however long their labels: a step is about a millisecond of work."""
    subject = Subject()
    await subject.feed(
        gauge("short", *(point(number, n=str(number)) for number in range(10_000))),
        gauge("long", *(point(number, n=f"{number:04000}") for number in range(400))),
        histogram("h", *(buckets(range(12), [1] * 13, 1.0, attrs={"n": number}) for number in range(1000))),
    )
    chunks = list(subject.exporter.page(negotiate(accept)))
    assert max(map(len, chunks)) < 600_000
    assert len(chunks) > 10
