"""Statistics that tracers compute: metrics for everybody, and the message itself for an exporter to Datadog."""

import msgspec
import pytest
from ddsketch import LogCollapsingLowestDenseDDSketch
from ddsketch.pb.proto import DDSketchProto
from support.datadog_tracer import MSGPACK, running
from support.otlp import readable
from support.otlp_receiver import items, plain

from exporters.datadog.metrics import MetricMapper
from exporters.datadog.resource import Defaults, Origins
from exporters.datadog.settings import MetricsSettings
from exporters.datadog.stats import forwarded
from sidecar import Permanent, Signal
from sidecar.receivers.datadog.client_stats import DURATION, convert
from sidecar.receivers.datadog.spans import Tracer

START = 1_700_000_000_000_000_000
TRACER = Tracer("python", version="4.16.0")


def sketch(*nanoseconds):
    """A sketch of durations, as a tracer sends it."""
    made = LogCollapsingLowestDenseDDSketch(0.00775, 2048)
    for one in nanoseconds:
        made.add(one)
    return DDSketchProto.to_proto(made).SerializeToString()


def entry(ok=(), failed=(), **fields):
    """What was counted of spans that are alike."""
    return {
        "Service": "web",
        "Name": "flask.request",
        "Resource": "GET /users",
        "HTTPStatusCode": 200,
        "Type": "web",
        "DBType": "",
        "Hits": len(ok) + len(failed),
        "Errors": len(failed),
        "Duration": sum((*ok, *failed)),
        "OkSummary": sketch(*ok),
        "ErrorSummary": sketch(*failed),
        "SpanKind": "server",
        "TopLevelHits": len(ok),
        "PeerTags": None,
    } | fields


def payload(*entries, **fields):
    """A message of one bucket."""
    bucket = {"Start": START, "Duration": 10**10, "Stats": list(entries), "AgentTimeShift": 0}
    return {"Hostname": "", "Env": "prod", "Version": "1", "Service": "web", "Stats": [bucket]} | fields


def metrics(message):
    """The request that it becomes."""
    return convert(msgspec.msgpack.encode(message), TRACER)


def test_durations_are_histograms_with_exact_counts_and_sums():
    """In seconds, what failed apart from what went well, and over the time of their bucket."""
    request = metrics(payload(entry(ok=[10**6, 2 * 10**6], failed=[5 * 10**8])))
    (scope,) = request.resource_metrics[0].scope_metrics
    (metric,) = scope.metrics
    assert (metric.name, metric.unit, metric.exponential_histogram.aggregation_temporality) == (DURATION, "s", 1)
    ok, failed = metric.exponential_histogram.data_points
    assert (ok.count, failed.count) == (2, 1)
    assert ok.sum + failed.sum == pytest.approx(0.503)
    assert ok.sum == pytest.approx(0.003, rel=0.02)
    assert (ok.start_time_unix_nano, ok.time_unix_nano) == (START, START + 10**10)
    assert plain(failed.attributes) == {
        "service.name": "web",
        "span.name": "flask.request",
        "resource.name": "GET /users",
        "span.type": "web",
        "span.kind": "server",
        "http.status_code": 200,
        "status.code": "STATUS_CODE_ERROR",
    }


def test_the_resource_is_the_tracers():
    """With what the request's headers say where the message does not."""
    resource = plain(metrics(payload(entry(ok=[1]), RuntimeID="r")).resource_metrics[0].resource.attributes)
    assert resource == {
        "service.name": "web",
        "service.version": "1",
        "deployment.environment.name": "prod",
        "runtime-id": "r",
        "telemetry.sdk.name": "datadog",
        "telemetry.sdk.language": "python",
        "telemetry.sdk.version": "4.16.0",
    }


def test_an_exporter_to_datadog_finds_the_message():
    """Whole, fields that are not known here too, and no metric of its own beside it."""
    message = payload(entry(ok=[10**6], srv_src="m"), Sequence=4, Something="new")
    points = MetricMapper(Origins(Defaults(this_host="here")), MetricsSettings(), START).map(
        readable(metrics(message)), local=True, now_ns=START + 10**10, now=0.0
    )
    (computed,) = points.client_stats
    assert not points.distributions
    assert forwarded(computed) == message | {
        "Hostname": "here",
        "Lang": "python",
        "TracerVersion": "4.16.0",
        "ContainerID": "",
    }


@pytest.mark.parametrize(
    "message",
    [
        b"\xc1",
        msgspec.msgpack.encode([1]),
        msgspec.msgpack.encode(payload(entry(OkSummary=b"\xff\xff"))),
        msgspec.msgpack.encode(payload() | {"Stats": [{"Start": -1}]}),
    ],
)
def test_what_is_no_message_is_refused(message):
    """As a whole: who has written it would count wrongly."""
    with pytest.raises(Permanent, match="not a"):
        convert(message, TRACER)


async def test_statistics_are_taken_in():
    """Over HTTP; a message that counts nothing is fine, too."""
    async with running() as agent:
        body = msgspec.msgpack.encode(payload(entry(ok=[10**6])))
        assert (await agent.send(body, "/v0.6/stats", Datadog_Meta_Lang="python")).status == 200
        assert (await agent.send(msgspec.msgpack.encode(payload()), "/v0.6/stats")).status == 200
        assert [one.name for one in items(agent.bench, Signal.METRICS)] == [DURATION]
        assert (await agent.send(body, "/v0.6/stats", content_type="application/json")).status == 415
        assert (await agent.send(b"\xc1", "/v0.6/stats", content_type=MSGPACK)).status == 400
