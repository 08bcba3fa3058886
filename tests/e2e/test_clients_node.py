"""Node applications: the OpenTelemetry SDK over HTTP, as JSON and as protobuf, and over gRPC."""

import math

import pytest
from support.node import node
from support.otlp_receiver import Fickle, items, plain, running, value_of

from sidecar import RateLimited, Retryable, Signal

PROTOCOLS = pytest.mark.parametrize("protocol", ["http", "proto", "grpc"])


async def send(server, protocol, *options):
    """Run the program; what it has to say about failed exports."""
    endpoint = f"http://127.0.0.1:{server.grpc if protocol == 'grpc' else server.http}"
    async with node("client.mjs", protocol, endpoint, *options) as program:
        ended = await program.wait()
    assert ended.code == 0, ended.output
    return ended.output


def arrived(server, signal):
    """The items of one signal, with the resource and the scope checked on the way."""
    for batch in server.sink.of(signal):
        for resource in batch.resources():
            assert (
                plain(resource.resource.attributes).items() >= {"service.name": "shop", "host.name": "büro-1"}.items()
            )
        assert {(scope.scope.name, scope.scope.version) for scope in batch.scopes()} == {("scope", "1.2")}
    return items(server, signal)


def check_odd_values(attributes, protocol):
    """What JavaScript says and JSON can't costs nothing else; NaN and infinity are lost by the exporter itself."""
    values = plain(attributes)
    if protocol == "http":
        assert (values["nan"], values["infinite"]) == (None, None)
    else:
        assert math.isnan(values["nan"])
        assert values["infinite"] == math.inf
    assert (values["huge"], values["above64"], values["safe"], values["whole"]) == (1e21, 2.0**63, 2**53, 1)
    assert values["hole"] == ["a", None, "b"]
    assert values["surrogate"] == "a\ufffdb"
    assert values["emoji"] == "\U0001f44b"


@PROTOCOLS
@pytest.mark.parametrize("compression", ["none", "gzip"])
async def test_all_three_signals_arrive_as_they_were_said(protocol, compression):
    """Its HTTP requests are chunked; its numbers and nulls are JavaScript's."""
    async with running() as server:
        assert await send(server, protocol, compression) == ""
        spans = {span.name: span for span in arrived(server, Signal.TRACES)}
        (record,) = arrived(server, Signal.LOGS)
        metrics = {metric.name: metric for metric in arrived(server, Signal.METRICS)}
        assert not server.bench.dropped
    child = spans["child"]
    assert spans["parent"].kind == 2
    assert (child.links[0].trace_id, child.links[0].span_id) == (spans["parent"].trace_id, spans["parent"].span_id)
    assert (child.events[0].name, plain(child.events[0].attributes)) == ("event", {"n": 1})
    assert (child.status.code, child.status.message) == (2, "broken")
    check_odd_values(child.attributes, protocol)
    check_odd_values(record.attributes, protocol)
    assert (record.severity_number, record.severity_text) == (13, "WARNING")
    assert value_of(record.body) == {"text": "hello wörld", "bytes": b"\x01\x02", "nested": {"list": [1, "two", None]}}
    assert plain(metrics["requests"].sum.data_points[0].attributes) == {"route": "/"}
    assert metrics["duration"].histogram.data_points[0].sum == 0.25


@pytest.mark.parametrize("protocol", ["http", "proto"])
@pytest.mark.parametrize("error", [Retryable("full", after=0.5), RateLimited("slow down", after=0.5)])
async def test_what_was_refused_for_a_while_arrives(protocol, error):
    """By the exporters' own retries, at the time that they were told. Over gRPC they never try again."""
    async with running(sink=Fickle(error, times=2)) as server:
        assert await send(server, protocol) == ""
        assert {batch.signal for batch in server.sink.batches} == set(Signal)
        assert set(server.sink.left.values()) == {0}


async def test_a_partial_success_is_told_to_the_application():
    """It logs what was left out, and does not send again."""
    async with running() as server:
        async with node("bad_span.mjs", f"http://127.0.0.1:{server.http}") as program:
            ended = await program.wait()
        assert "Partial Success" in ended.output
        assert sum(server.bench.dropped.values()) == 1
