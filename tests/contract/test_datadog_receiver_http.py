"""The Agent's interface over real sockets: what tracers ask, and every answer that they act upon."""

import hashlib

import msgspec
import orjson
import pytest
from support.datadog_tracer import LOW, MSGPACK, running, span, v04, v05, v07
from support.otlp_receiver import plain
from support.wire import connect, request

from sidecar import Permanent, Retryable, Signal
from sidecar.testing import Sink

BODIES = {"v0.3": v04([span()]), "v0.4": v04([span()]), "v0.5": v05([span()]), "v0.7": v07({"spans": [span()]})}


@pytest.mark.parametrize("version", BODIES)
@pytest.mark.parametrize("method", ["POST", "PUT"])
async def test_traces_are_accepted_on_every_path_and_by_both_methods(version, method):
    """v0.3 is answered in words, the others with rates: never with an empty body, which ddtrace takes for a failure."""
    async with running() as agent:
        answer = await agent.send(BODIES[version], f"/{version}/traces", method)
        assert answer.status == 200
        assert answer.body == (b"OK\n" if version == "v0.3" else b'{"rate_by_service":{"service:,env:":1.0}}')
        assert [one.span_id for one in agent.spans] == [(1).to_bytes(8, "big")]


async def test_rates_are_sent_once_to_tracers_that_remember():
    """Who has them already gets an empty object, and the version again."""
    async with running("sampling_rate: 25%") as agent:
        first = await agent.send(BODIES["v0.4"], Datadog_Rates_Payload_Version="none")
        assert orjson.loads(first.body) == {"rate_by_service": {"service:,env:": 0.25}}
        version = first.headers["datadog-rates-payload-version"]
        again = await agent.send(BODIES["v0.4"], Datadog_Rates_Payload_Version=version)
        assert (again.body, again.headers["datadog-rates-payload-version"]) == (b"{}", version)


@pytest.mark.parametrize("content_type", ["application/json", "text/json; charset=utf-8", None])
async def test_json_is_accepted_where_the_protocol_has_it(content_type):
    """And is what a body is of which nothing is said."""
    async with running() as agent:
        body = msgspec.json.encode([[span()]])
        assert (await agent.send(body, content_type=content_type)).status == 200
        assert len(agent.spans) == 1
        assert (await agent.send(body, "/v0.5/traces", content_type=content_type)).status == 415


async def test_refusals_have_the_agents_status():
    """Each of them says why, and is counted."""
    async with running("max_request_body_size: 1KiB") as agent:
        for status, reason, options in (
            (400, "malformed", {"body": b"\xc1"}),
            (413, "too_large", {"body": bytes(2000)}),
            (415, "unsupported_media", {"body": v04(), "content_type": "text/plain"}),
            (403, "cross_site", {"body": v04(), "Sec_Fetch_Site": "cross-site"}),
        ):
            answer = await agent.send(**options)
            assert answer.status == status
            assert orjson.loads(answer.body)["message"]
            assert agent.bench.metrics.value("sidecar_receiver_refused_requests", reason=reason) == 1
        assert (await agent.send(v04(), "/v1.0/traces")).status == 404
        assert not agent.bench.sink.batches


async def test_an_empty_request_is_a_success():
    """Tracers probe with it."""
    async with running() as agent:
        for version, body in (("v0.4", v04()), ("v0.4", v04([])), ("v0.5", v05()), ("v0.7", v07())):
            assert (await agent.send(body, f"/{version}/traces")).status == 200
        assert not agent.bench.sink.batches


async def test_what_is_left_out_of_a_request_is_counted():
    """And the rest arrives."""
    async with running() as agent:
        body = v04([span(), span(start="now")], [span(span_id=0)])
        assert (await agent.send(body, Datadog_Client_Dropped_P0_Spans="7")).status == 200
        assert len(agent.spans) == 1
        assert agent.bench.dropped == {(Signal.TRACES, "malformed"): 1, (Signal.TRACES, "invalid_id"): 1}
        assert agent.bench.metrics.value("sidecar_datadog_tracer_dropped_spans") == 7


async def test_no_room_is_429_to_tracers_that_understand_it():
    """They send it again, so that it is not dropped here."""
    sink = Sink(refuse_with=Retryable("full", after=3, reason="queue_full"))
    async with running(sink=sink) as agent:
        answer = await agent.send(BODIES["v0.4"], Datadog_Send_Real_Http_Status="1")
        assert (answer.status, answer.headers["retry-after"]) == (429, "3")
        assert not agent.bench.dropped


async def test_no_room_is_200_to_others_and_counted():
    """Any other answer would hold them up for seconds, for nothing."""
    sink = Sink(refuse_with=Retryable("full", reason="queue_full"))
    async with running(sink=sink) as agent:
        assert (await agent.send(BODIES["v0.4"])).status == 200
        assert agent.bench.dropped == {(Signal.TRACES, "queue_full"): 1}


async def test_what_will_never_pass_is_refused():
    """400, with the reason of the pipeline."""
    async with running(sink=Sink(refuse_with=Permanent("no", reason="filtered"))) as agent:
        assert (await agent.send(BODIES["v0.4"])).status == 400


async def test_info_names_what_a_pipeline_takes():
    """Tracers choose by it what they send: no statistics where nobody takes metrics, and no remote configuration."""
    async with running(sink=Sink(signals=frozenset({Signal.TRACES}))) as agent:
        info = orjson.loads((await agent.send(path="/info", method="GET")).body)
        assert {"/v0.4/traces", "/v0.5/traces"} <= set(info["endpoints"])
        assert not {"/v0.6/stats", "/v0.7/config"} & set(info["endpoints"])
        assert (await agent.send(b"", "/v0.6/stats")).status == 404
    async with running() as agent:
        answer = await agent.send(path="/info", method="GET")
        info = orjson.loads(answer.body)
        assert "/v0.6/stats" in info["endpoints"]
        assert info["client_drop_p0s"] is True
        assert answer.headers["datadog-agent-state"] == hashlib.sha256(answer.body).hexdigest()


@pytest.mark.parametrize("path", ["/v0.4/traces", "/v0.6/stats", "/info", "/telemetry/proxy/x"])
async def test_every_answer_says_which_agent_it_is(path):
    """Refusals, too: tracers ask for /info again when the state changes."""
    async with running() as agent:
        answer = await agent.send(b"\xc1", path, method="GET" if path == "/info" else "POST")
        info = orjson.loads((await agent.send(path="/info", method="GET")).body)
        assert answer.headers["datadog-agent-version"] == info["version"]
        assert len(answer.headers["datadog-agent-state"]) == 64


async def test_what_tracers_say_of_themselves_goes_no_further():
    """Their telemetry holds the environment and the list of packages; it is answered so that they are content."""
    async with running() as agent:
        for path in ("/telemetry/proxy/api/v2/apmtelemetry", "/v0.7/config", "/v0.4/services"):
            answer = await agent.send(b'{"request_type": "app-started"}', path, content_type="application/json")
            assert (answer.status, answer.body) == (200, b"{}")
        assert not agent.bench.sink.batches


async def test_lines_of_dogstatsd_may_come_by_http():
    """They are added up as those that come by UDP."""
    async with running() as agent:
        assert (await agent.send(b"hits:1|c\nhits:2|c|#\n", "/dogstatsd/v2/proxy", content_type=None)).status == 200
        await agent.receiver.stop()
        (batch,) = agent.bench.sink.of(Signal.METRICS)
        (metric,) = batch.message.resource_metrics[0].scope_metrics[0].metrics
        assert (metric.name, metric.sum.data_points[0].as_double) == ("hits", 3)


async def test_a_unix_socket_is_served_as_well(tmp_path):
    """For every program of this host, as the port is."""
    path = tmp_path / "apm.sock"
    async with running(f"socket: '{path}'") as agent, connect(path=path) as wire:
        assert path.stat().st_mode & 0o777 == 0o722
        await wire.send(request("POST", "/v0.4/traces", BODIES["v0.4"], Content_Type=MSGPACK))
        assert (await wire.answer()).status == 200
        assert len(agent.spans) == 1


async def test_headers_describe_the_tracer():
    """On the resource; and whether statistics are computed already."""
    async with running() as agent:
        await agent.send(
            BODIES["v0.5"],
            "/v0.5/traces",
            Datadog_Meta_Lang="python",
            Datadog_Meta_Tracer_Version="4.16.0",
            Datadog_Entity_ID="ci-c0ffee",
            Datadog_Client_Computed_Stats="true",
            Datadog_Client_Computed_Top_Level="true",
        )
        (resource,) = agent.resources
        assert resource["telemetry.sdk.language"] == "python"
        assert resource["container.id"] == "c0ffee"
        assert resource["_dd.stats_computed"] == "true"
        assert "_dd.top_level" not in plain(agent.spans[0].attributes)


async def test_a_large_request_is_converted_beside_the_loop():
    """With the same outcome."""
    async with running() as agent:
        chunk = [span(span_id=number, meta={"text": "x" * 100}) for number in range(1, 5001)]
        assert (await agent.send(v04(chunk))).status == 200
        assert len(agent.spans) == 5000
        assert {one.trace_id for one in agent.spans} == {LOW.to_bytes(16, "big")}


async def test_nothing_is_read_while_memory_is_short():
    """The tracer is told to come again."""
    async with running() as agent:
        end = agent.receiver.context.admission.watch(lambda: 1.0)
        assert (await agent.send(BODIES["v0.4"])).status == 503
        end()
        assert (await agent.send(BODIES["v0.4"])).status == 200
        assert len(agent.spans) == 1


async def test_many_lines_by_http_are_taken_in_parts():
    """None of them is lost between two parts."""
    async with running() as agent:
        body = b"\n".join(b"n:1|c|#number:%d" % (number % 7) for number in range(2500))
        assert (await agent.send(body, "/dogstatsd/v2/proxy", content_type=None)).status == 200
        assert agent.bench.metrics.value("sidecar_dogstatsd_lines") == 2500
