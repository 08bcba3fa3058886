"""What lines add up to, and when it is handed on."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.metrics.v1.metrics_pb2 import ExponentialHistogramDataPoint
from support.otlp_receiver import items, plain

from config.problems import ConfigError
from exporters.datadog.events import sent_check_of, sent_event_of
from sidecar import Permanent, Retryable, Signal
from sidecar.dogstatsd import Distribution
from sidecar.dogstatsd.tags import TagReader
from sidecar.dogstatsd.windows import MAX_MEMBERS
from sidecar.receivers.dogstatsd import DogStatsDReceiver
from sidecar.testing import Bench


def made(settings=""):
    """A receiver and its bench. It does not listen."""
    bench = Bench()
    return bench.make(DogStatsDReceiver, settings, "dogstatsd"), bench


async def flushed(*lines, settings=""):
    """The metrics that the lines of one window become, and the bench."""
    receiver, bench = made(settings)
    receiver.intake.take(b"\n".join(lines) + b"\n")
    bench.clock.advance(10)
    await receiver.intake.flush()
    return items(bench, Signal.METRICS), bench


def points(metric):
    """The points of a metric."""
    return getattr(metric, metric.WhichOneof("data")).data_points


async def test_counts_add_up_by_their_weight():
    """To a delta that only grows, over the time of the window."""
    (metric,), bench = await flushed(b"hits:1|c", b"hits:2:3|c", b"hits:1|c|@0.1")
    assert (metric.name, metric.sum.aggregation_temporality, metric.sum.is_monotonic) == ("hits", 1, True)
    (point,) = metric.sum.data_points
    assert point.as_double == 16
    assert point.time_unix_nano == bench.clock.now_ns
    assert point.start_time_unix_nano == bench.clock.now_ns - 10 * 10**9


async def test_a_count_that_goes_down_is_no_counter():
    """So that who shows counters can refuse it; its other series stay what they are."""
    metrics, _ = await flushed(b"n:-3|c|#a:x", b"n:2|c|#a:y")
    assert sorted((one.sum.is_monotonic, points(one)[0].as_double) for one in metrics) == [(False, -3), (True, 2)]


async def test_the_last_value_of_a_gauge_counts():
    """Also of packed ones."""
    (metric,), _ = await flushed(b"g:1|g", b"g:5:4|g")
    assert [point.as_double for point in metric.gauge.data_points] == [4]


async def test_sets_count_different_members():
    """As a gauge, up to a limit."""
    (metric,), _ = await flushed(b"u:a|s", b"u:b|s", b"u:a|s")
    assert metric.gauge.data_points[0].as_int == 2
    (metric,), _ = await flushed(*(b"u:%d|s" % number for number in range(MAX_MEMBERS + 5)))
    assert metric.gauge.data_points[0].as_int == MAX_MEMBERS


@pytest.mark.parametrize(("kind", "unit"), [(b"h", ""), (b"d", ""), (b"ms", "ms")])
async def test_values_become_exponential_histograms(kind, unit):
    """With exact count, sum, smallest and largest value; a sample rate is a weight."""
    (metric,), _ = await flushed(b"t:1:4|" + kind, b"t:10|" + kind + b"|@0.5")
    assert (metric.unit, metric.exponential_histogram.aggregation_temporality) == (unit, 1)
    (point,) = metric.exponential_histogram.data_points
    assert (point.count, point.sum, point.min, point.max) == (4, 25, 1, 10)


async def test_a_sample_with_a_time_is_not_mixed_with_others():
    """It keeps its time; those of the same second add up."""
    (metric,), bench = await flushed(b"n:1|c|T1656581400", b"n:2|c|T1656581400", b"n:4|c")
    values = {point.time_unix_nano: point.as_double for point in metric.sum.data_points}
    assert values == {1656581400 * 10**9: 3, bench.clock.now_ns: 4}


async def test_tags_are_attributes_and_say_whose_it_is():
    """In any order; the unified service tags, the host and the container belong to the resource."""
    lines = [b"n:1|c|#b:2,a:1,env:prod,service:web,version:3,host:box|c:ci-c0ffee"]
    lines += [b"n:2|c|#service:web,a:1,host:box,env:prod,b:2,version:3|c:c0ffee"]
    (metric,), bench = await flushed(*lines)
    (point,) = points(metric)
    assert (point.as_double, plain(point.attributes)) == (3, {"a": "1", "b": "2"})
    (batch,) = bench.sink.batches
    (resource,) = batch.message.resource_metrics
    assert plain(resource.resource.attributes) == {
        "container.id": "c0ffee",
        "deployment.environment.name": "prod",
        "host.name": "box",
        "service.name": "web",
        "service.version": "3",
    }


async def test_a_tag_may_have_no_value_or_several():
    """An attribute comes once."""
    (metric,), _ = await flushed(b"n:1|c|#bare,a:1,a:2,a:1,url:http://x:80/,,:x,env:p,env:q|c:in-4")
    assert plain(points(metric)[0].attributes) == {"bare": "", "a": ["1", "2"], "url": "http://x:80/", "env": "q"}


async def test_a_malformed_line_costs_only_itself():
    """It is counted; empty lines are no lines."""
    metrics, bench = await flushed(b"n:1|c", b"garbage", b"", b"\xff\xfe:1|g", b"n:x|c")
    assert {one.name for one in metrics} == {"n", "\ufffd\ufffd"}
    assert bench.dropped == {(Signal.METRICS, "malformed"): 2}
    assert bench.metrics.value("sidecar_dogstatsd_lines") == 4


async def test_series_beyond_the_limit_are_counted_as_dropped():
    """Those that are there go on; the next window is a new one."""
    receiver, bench = made("max_series: 2")
    receiver.intake.take(b"a:1|c\nb:1|c\nc:1|c\na:1|c\nc:1|g")
    assert bench.dropped == {(Signal.METRICS, "too_many_series"): 2}
    await receiver.intake.flush()
    receiver.intake.take(b"c:1|c")
    await receiver.intake.flush()
    assert [one.name for one in items(bench, Signal.METRICS)] == ["a", "b", "c"]


async def test_events_are_records_from_which_an_exporter_makes_events():
    """Everything that was said is there."""
    receiver, bench = made()
    receiver.intake.take(b"_e{5,4}:title|text|d:1700000001|h:box|k:key|p:low|s:src|t:error|#env:prod,a:b,bare")
    await receiver.intake.flush()
    (record,) = items(bench, Signal.LOGS)
    assert (record.event_name, record.severity_number, record.body.string_value) == ("datadog.event", 17, "text")
    assert record.time_unix_nano == 1700000001 * 10**9
    members = {"message": record.body.string_value, **plain(record.attributes)}
    event = sent_event_of(members | {"hostname": members["host.name"]})
    assert event | {"tags": None} == {
        "title": "title",
        "text": "text",
        "alert_type": "error",
        "priority": "low",
        "aggregation_key": "key",
        "source_type_name": "src",
        "host": "box",
        "tags": None,
    }
    assert members["ddtags"] == "a:b,bare"


async def test_service_checks_are_records_from_which_an_exporter_makes_checks():
    """As events."""
    receiver, bench = made()
    receiver.intake.take(b"_sc|db.up|2|h:box|#a:b|m:gone")
    await receiver.intake.flush()
    (record,) = items(bench, Signal.LOGS)
    assert (record.event_name, record.severity_number) == ("datadog.service_check", 17)
    members = {"message": record.body.string_value, **plain(record.attributes)}
    check = sent_check_of(members | {"hostname": members["host.name"]})
    assert (check["check"], check["status"], check["host_name"], check["message"]) == ("db.up", 2, "box", "gone")


async def test_a_pipeline_without_room_is_asked_again():
    """Nothing is lost meanwhile, and the order stays."""
    receiver, bench = made()
    bench.sink.refuse_with = Retryable("full", reason="queue_full")
    for number in range(3):
        receiver.intake.take(b"n%d:1|c" % number)
        await receiver.intake.flush()
    assert not bench.sink.batches
    bench.sink.refuse_with = None
    await receiver.intake.flush()
    assert [one.name for one in items(bench, Signal.METRICS)] == ["n0", "n1", "n2"]
    assert not bench.dropped


async def test_what_waits_too_long_or_at_the_end_is_counted():
    """Memory is bounded, and a stop does not wait."""
    receiver, bench = made()
    bench.sink.refuse_with = Retryable("full", reason="queue_full")
    for _ in range(35):
        receiver.intake.take(b"n:1|c")
        await receiver.intake.flush()
    assert bench.dropped == {(Signal.METRICS, "queue_full"): 5}
    await receiver.stop()
    assert bench.dropped[Signal.METRICS, "shutdown"] == 30


async def test_what_will_never_pass_is_dropped_with_its_reason():
    """Once."""
    receiver, bench = made()
    bench.sink.refuse_with = Permanent("no", reason="filtered")
    receiver.intake.take(b"n:1|c\nm:1|c")
    await receiver.intake.flush()
    await receiver.stop()
    assert bench.dropped == {(Signal.METRICS, "filtered"): 2}


_EXTREME = st.sampled_from([b"0", b"-0.0", b"5e-324", b"-5e-324", b"1.7e308", b"-1.7e308", b"1e-200", b"1"])


@given(
    st.lists(
        st.tuples(
            st.sampled_from([b"c", b"g", b"h", b"ms", b"d", b"s"]),
            st.lists(_EXTREME, min_size=1, max_size=4),
            _EXTREME,
            st.binary(max_size=10).filter(lambda tags: b"|" not in tags and b"\n" not in tags),
        ),
        max_size=20,
    )
)
async def test_no_numbers_do_any_harm(samples):
    """However large or small, and whatever their rates: all are handed on or counted."""
    receiver, bench = made()
    for kind, values, rate, tags in samples:
        receiver.intake.take(b"n:%s|%s|@%s|#%s" % (b":".join(values), kind, rate, tags))
    await receiver.intake.flush()
    assert len(bench.sink) <= len(samples) >= sum(bench.dropped.values())
    assert len(samples) == bench.metrics.value("sidecar_dogstatsd_lines")
    for metric in items(bench, Signal.METRICS):
        assert points(metric)


@given(
    st.lists(st.floats(-1e12, 1e12).filter(lambda x: x == 0 or abs(x) > 1e-12), min_size=1, max_size=30),
    st.integers(1, 3),
)
def test_a_distribution_holds_every_value_where_it_belongs(values, times):
    """In a bucket whose bounds are around it, and no more buckets than a reader can be asked to take."""
    distribution = Distribution()
    for value in values:
        distribution.add(value, times)
    point = ExponentialHistogramDataPoint()
    distribution.write(point)
    assert point.count == len(values) * times
    assert point.sum == pytest.approx(math.fsum(values) * times, abs=1e-3)
    assert (point.min, point.max) == (min(values), max(values))
    base = 2 ** (2**-point.scale)
    placed = point.zero_count
    for buckets, sign in ((point.positive, 1), (point.negative, -1)):
        assert len(buckets.bucket_counts) <= 1024
        for index, count in enumerate(buckets.bucket_counts, buckets.offset):
            low, high, much = base**index, base ** (index + 1), 1 + 1e-9  # bounds are rounded, too
            surely = sum(low * much < value * sign <= high / much for value in values)
            perhaps = sum(low / much < value * sign <= high * much for value in values)
            assert surely <= count / times <= perhaps
            placed += count
    assert placed == point.count


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("aggregation_interval: 0s", "aggregation_interval"),
        ("max_series: 0", "max_series"),
        ("socket: localhost:1", "socket"),
        ("endpoint: null", ""),
    ],
)
def test_settings_that_can_not_be_are_refused(text, path):
    """With the place."""
    with pytest.raises(ConfigError) as error:
        made(text)
    assert ".".join(map(str, error.value.problems[0].path)) == path


def test_tags_are_remembered_within_bounds():
    """Senders repeat themselves; one that doesn't must not fill the memory."""
    reader = TagReader()
    known = reader.read(b"a:1")
    assert reader.read(b"a:1") is known
    for number in range(1000):
        reader.read(b"%d:" % number + b"x" * 8000)
    assert sum(len(tags) for tags, _ in reader._read) <= 1 << 20
    assert reader.read(b"a:1") == known
