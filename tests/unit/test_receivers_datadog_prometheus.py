"""What comes in Datadog's protocols is as good for Prometheus."""

import struct

import msgspec
from support.datadog_tracer import span, v05
from support.prometheus import Subject

from sidecar import Batch, BatchContext, Signal
from sidecar.receivers.datadog.client_stats import convert as convert_stats
from sidecar.receivers.datadog.spans import HighIds, Tracer, convert
from sidecar.receivers.datadog.wire import decode
from sidecar.receivers.dogstatsd import DogStatsDReceiver
from sidecar.testing import Bench

# A sketch of three durations of 0, as protobuf.
ZEROS = b"\x21" + struct.pack("<d", 3)


async def exported(*batches):
    """The page after these batches, and how many points it would not take."""
    subject = Subject()
    for batch in batches:
        await subject.exporter.export(batch)
    return subject.page().decode(), subject


async def test_dogstatsd_metrics_are_shown():
    """Counts as counters that go on, gauges and sets as gauges, values as histograms."""
    bench = Bench()
    receiver = bench.make(DogStatsDReceiver, "", "dogstatsd")
    for _ in range(2):
        receiver.intake.take(
            b"app.hits:2|c|#service:web,route:a\napp.depth:7|g|#service:web\napp.users:x|s|#service:web"
        )
        receiver.intake.take(b"app.latency:0.5:2|d|#service:web")
        bench.clock.advance(10)
        await receiver.intake.flush()
    page, subject = await exported(*bench.sink.batches)
    assert 'app_hits_total{instance="",job="web",otel_scope_name="dogstatsd",route="a"} 4.0' in page
    assert 'app_depth{instance="",job="web",otel_scope_name="dogstatsd"} 7.0' in page
    assert 'app_users{instance="",job="web",otel_scope_name="dogstatsd"} 1' in page
    assert 'app_latency_count{instance="",job="web",otel_scope_name="dogstatsd"} 4' in page
    assert 'app_latency_sum{instance="",job="web",otel_scope_name="dogstatsd"} 5.0' in page
    assert not subject.bench.dropped


async def test_a_count_that_goes_down_is_refused_and_counted():
    """Shown as a counter it would be a lie."""
    bench = Bench()
    receiver = bench.make(DogStatsDReceiver, "", "dogstatsd")
    receiver.intake.take(b"n:-1|c")
    await receiver.intake.flush()
    page, subject = await exported(*bench.sink.batches)
    assert "n_total" not in page
    assert subject.bench.dropped == {(Signal.METRICS, "unsupported_temporality"): 1}


async def test_spans_of_tracers_are_counted():
    """By operation, service, kind and status."""
    payload = decode("v0.5", v05([span(error=1), span(span_id=2, parent_id=1, service="db", name="db.query", type="")]))
    data = convert(payload, Tracer(), HighIds()).data
    page, _ = await exported(Batch(Signal.TRACES, data, context=BatchContext()))
    lines = [line for line in page.splitlines() if "_count" in line or "_total" in line]
    assert any('"flask.request"' in line and '"web"' in line and "ERROR" in line for line in lines)
    assert any('"db.query"' in line and '"db"' in line for line in lines)


async def test_statistics_of_tracers_are_shown():
    """As a histogram; the message for Datadog is no label."""
    entry = {"Service": "web", "Name": "flask.request", "Duration": 0, "OkSummary": ZEROS}
    message = {"Service": "web", "Stats": [{"Start": 1, "Duration": 10, "Stats": [entry]}]}
    request = convert_stats(msgspec.msgpack.encode(message), Tracer())
    page, _ = await exported(Batch(Signal.METRICS, message=request, context=BatchContext()))
    (count,) = [line for line in page.splitlines() if line.startswith("traces_span_sdk_metrics_duration_seconds_count")]
    assert count.endswith(" 3")
    assert 'span_name="flask.request"' in count
    assert "OkSummary" not in page
