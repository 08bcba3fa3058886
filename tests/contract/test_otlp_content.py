"""OTLP conformance, items 16 to 29: content type, method, path and the encoding of errors."""

import pytest
from support.otlp import logs_request, traces_request
from support.otlp_receiver import JSON, PROTOBUF, SIGNALS, data_of, running, status_of
from support.wire import exchange

from sidecar import SCHEMAS, Signal
from sidecar.testing import Sink

EACH_SIGNAL = pytest.mark.parametrize("signal", SIGNALS)
NO_LOGS = frozenset({Signal.TRACES, Signal.METRICS})


@pytest.mark.parametrize("parameter", ["; charset=utf-8", ";charset=UTF-8", " ; a=b"])
async def test_016_a_parameter_of_the_content_type_is_accepted(parameter):
    """And the response's content type has none."""
    async with running() as server:
        answer = await server.post(b"{}", JSON + parameter)
        assert (answer.status, answer.headers["content-type"]) == (200, JSON)


@pytest.mark.parametrize(
    ("content_type", "body"), [("APPLICATION/JSON", b"{}"), ("Application/X-Protobuf", data_of(Signal.TRACES))]
)
async def test_017_content_types_are_case_insensitive(content_type, body):
    """Media types are (RFC 9110, section 8.3.1)."""
    async with running() as server:
        assert (await server.post(body, content_type)).status == 200


async def test_018_a_missing_content_type_is_415():
    """With a Status, as every error has one; JSON, since there is no encoding to mirror."""
    async with running() as server:
        answer = await server.post(data_of(Signal.TRACES), None)
        assert (answer.status, answer.headers["content-type"]) == (415, JSON)
        assert "application/x-protobuf, application/json" in status_of(answer)[1]


@pytest.mark.parametrize("content_type", ["text/plain", "invalid", "application/octet-stream", "application/jsonx", ""])
async def test_019_another_content_type_is_415(content_type):
    """What is not known is not guessed."""
    async with running() as server:
        answer = await server.post(b"{}", content_type)
        assert (answer.status, status_of(answer)[0]) == (415, 3)
        assert not server.sink.batches


async def test_020_the_registered_name_of_protobuf_is_accepted_too():
    """And answered with the specification's."""
    async with running() as server:
        answer = await server.post(data_of(Signal.TRACES), "application/protobuf")
        assert (answer.status, answer.headers["content-type"]) == (200, PROTOBUF)
        assert len(server.sink) == 1
        refused = await server.post(b"\xff", "application/protobuf")
        assert (refused.status, refused.headers["content-type"]) == (400, PROTOBUF)


async def test_021_grpc_on_the_http_port_is_415():
    """The two protocols have a port each."""
    async with running() as server:
        assert (await server.post(b"\0\0\0\0\0", "application/grpc")).status == 415


@EACH_SIGNAL
@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE", "HEAD"])
async def test_022_another_method_is_405_with_what_is_allowed(signal, method):
    """Whatever its content type."""
    async with running() as server:
        answer = await server.post(b"", "text/plain", signal, method=method)
        assert (answer.status, answer.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize("content_type", [PROTOBUF, JSON])
async def test_023_an_unknown_path_is_404_with_a_status(content_type):
    """In the request's encoding."""
    async with running() as server:
        answer = await server.post(b"", content_type, path="/v1/profiles")
        assert (answer.status, answer.headers["content-type"]) == (404, content_type)
        assert status_of(answer) == (5, "nothing is served at /v1/profiles")


async def test_024_a_trailing_slash_is_another_path():
    """404: paths are exact."""
    async with running() as server:
        assert (await server.post(data_of(Signal.TRACES), path="/v1/traces/")).status == 404


async def test_025_a_query_is_ignored():
    """It takes no part in the path."""
    async with running() as server:
        assert (await server.post(data_of(Signal.TRACES), path="/v1/traces?x=1")).status == 200


async def test_026_paths_can_be_configured():
    """With the Collector's keys; a missing slash is added; the usual path is then not served."""
    paths = "{traces_url_path: /t, metrics_url_path: m, logs_url_path: /otlp/logs}"
    async with running(paths) as server:
        for path, signal in (("/t", Signal.TRACES), ("/m", Signal.METRICS), ("/otlp/logs", Signal.LOGS)):
            assert (await server.post(data_of(signal), path=path)).status == 200
        assert (await server.post(data_of(Signal.TRACES), path="/v1/traces")).status == 404
        assert [batch.signal for batch in server.sink.batches] == [Signal.TRACES, Signal.METRICS, Signal.LOGS]


async def test_027_a_signal_without_a_pipeline_is_not_served():
    """404 and UNIMPLEMENTED, which are not retried; the others are served."""
    async with running(sink=Sink(signals=NO_LOGS)) as server:
        answer = await server.post(data_of(Signal.LOGS), signal=Signal.LOGS)
        assert (answer.status, status_of(answer)) == (404, (12, "no pipeline of this sidecar takes logs"))
        refused = await server.refused(data_of(Signal.LOGS), Signal.LOGS)
        assert refused.code().name == "UNIMPLEMENTED"
        assert (await server.post(data_of(Signal.TRACES))).status == 200
        server.sink.signals = frozenset(Signal)  # as a reload may bring it
        assert (await server.post(data_of(Signal.LOGS), signal=Signal.LOGS)).status == 200


async def test_028_the_usual_paths_are_the_specifications():
    """As written in the signal table, for both protocols."""
    async with running() as server:
        for signal in Signal:
            assert (await exchange(server.http, "POST", f"/v1/{signal.value}", Content_Type=PROTOBUF)).status == 200
    assert {schema.grpc_service for schema in SCHEMAS.values()} == {
        "opentelemetry.proto.collector.trace.v1.TraceService",
        "opentelemetry.proto.collector.metrics.v1.MetricsService",
        "opentelemetry.proto.collector.logs.v1.LogsService",
    }


@pytest.mark.parametrize("content_type", [PROTOBUF, JSON])
async def test_029_errors_use_the_requests_encoding(content_type):
    """Whatever the reason: a bad body, a body that is too large, a full queue."""
    async with running("{max_request_body_size: 100}") as server:
        malformed = await server.post(b"\xff\xff", content_type)
        large = await server.post(traces_request(50).SerializeToString(), content_type)
        for answer, status, code in ((malformed, 400, 3), (large, 413, 8)):
            assert (answer.status, answer.headers["content-type"]) == (status, content_type)
            assert status_of(answer)[0] == code
            assert status_of(answer)[1]


async def test_029_an_item_of_another_signal_is_not_taken_for_it():
    """A log posted where spans go has the wrong shape: nothing of it arrives as a span."""
    async with running() as server:
        answer = await server.post(logs_request(3).SerializeToString(), signal=Signal.TRACES)
        assert answer.body
        assert len(server.sink) == 0
