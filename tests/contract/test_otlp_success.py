"""OTLP conformance, items 1 to 15 and 28: success, empty requests and partial success."""

import asyncio

import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpanExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.trace import SpanContext
from support.http2 import connect_http2, framed
from support.otlp import traces_request
from support.otlp_receiver import JSON, PROTOBUF, REQUESTS, SIGNALS, data_of, running
from support.wire import connect, request

from sidecar import SCHEMAS, Retryable, Signal
from sidecar.net import otlp_json

EACH_SIGNAL = pytest.mark.parametrize("signal", SIGNALS)


def json_of(signal, count=1):
    """A request as JSON."""
    return otlp_json.encode(REQUESTS[signal](count))


def with_bad_spans(good, bad):
    """Spans of which some have an id of the wrong length."""
    message = traces_request(good + bad)
    for span in message.resource_spans[0].scope_spans[0].spans[:bad]:
        span.span_id = b"short"
    return message.SerializeToString()


@EACH_SIGNAL
async def test_001_protobuf_is_accepted(signal):
    """200 with the same content type and an empty message: no partial success."""
    async with running() as server:
        answer = await server.post(data_of(signal, 2), PROTOBUF, signal)
        assert (answer.status, answer.headers["content-type"], answer.body) == (200, PROTOBUF, b"")
        (batch,) = server.sink.batches
        assert (batch.signal, len(batch)) == (signal, 2)
        assert batch.encode() == data_of(signal, 2)


@EACH_SIGNAL
async def test_002_json_is_accepted(signal):
    """200 with the same content type and an empty object."""
    async with running() as server:
        answer = await server.post(json_of(signal, 2), JSON, signal)
        assert (answer.status, answer.headers["content-type"], answer.body) == (200, JSON, b"{}")
        (batch,) = server.sink.batches
        assert batch.message == REQUESTS[signal](2)


@EACH_SIGNAL
async def test_003_grpc_is_accepted(signal):
    """Status 0 in the trailers, after one empty message in its frame."""
    async with running() as server, connect_http2(server.grpc) as connection:
        got = await connection.call(f"/{SCHEMAS[signal].grpc_service}/Export", framed(data_of(signal)))
        assert got.headers[0][":status"] == "200"
        assert got.headers[0]["content-type"].startswith("application/grpc")
        assert got.data == framed(b"")
        assert got.grpc_status == 0
        assert server.sink.batches[0].encode() == data_of(signal)


@EACH_SIGNAL
async def test_004_an_empty_protobuf_body_is_an_empty_request(signal):
    """Zero bytes are valid protobuf."""
    async with running() as server:
        assert (await server.post(b"", PROTOBUF, signal)).status == 200
        assert not server.sink.batches


@EACH_SIGNAL
async def test_005_an_empty_json_object_is_an_empty_request(signal):
    """Nothing is asked of it."""
    async with running() as server:
        answer = await server.post(b"{}", JSON, signal)
        assert (answer.status, answer.body) == (200, b"{}")
        assert not server.sink.batches


async def test_006_an_empty_json_body_is_not_json():
    """Zero bytes are no JSON."""
    async with running() as server:
        assert (await server.post(b"", JSON)).status == 400


@EACH_SIGNAL
@pytest.mark.parametrize("value", ["[]", "null"])
async def test_007_no_resources_in_json_are_an_empty_request(signal, value):
    """An empty list, and null, which ProtoJSON reads as not there."""
    name = {Signal.TRACES: "resourceSpans", Signal.METRICS: "resourceMetrics", Signal.LOGS: "resourceLogs"}[signal]
    async with running() as server:
        assert (await server.post(f'{{"{name}":{value}}}'.encode(), JSON, signal)).status == 200


@EACH_SIGNAL
async def test_008_an_empty_grpc_message_never_reaches_the_pipeline(signal):
    """OK at once, also where the pipeline would refuse."""
    async with running() as server:
        server.sink.refuse_with = Retryable("full")
        assert await server.export(b"", signal) == b""


@EACH_SIGNAL
async def test_009_envelopes_without_items_are_a_success(signal):
    """Resources and scopes that hold nothing."""
    message = REQUESTS[signal](0)
    async with running() as server:
        assert (await server.post(message.SerializeToString(), PROTOBUF, signal)).status == 200
        assert await server.export(message.SerializeToString(), signal) == b""


async def test_010_bad_items_are_a_partial_success():
    """200 and OK, with the number of spans that were left out and why; the good ones arrive."""
    async with running() as server:
        answer = await server.post(with_bad_spans(good=2, bad=3))
        partial = SCHEMAS[Signal.TRACES].response.FromString(answer.body).partial_success
        assert (answer.status, partial.rejected_spans) == (200, 3)
        assert "id" in partial.error_message
        assert len(server.sink) == 2
        response = SCHEMAS[Signal.TRACES].response.FromString(await server.export(with_bad_spans(good=1, bad=1)))
        assert response.partial_success.rejected_spans == 1
        assert sum(server.bench.dropped.values()) == 4


async def test_010_a_partial_success_in_json_counts_in_a_string():
    """As ProtoJSON writes 64-bit integers."""
    body = b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"traceId":"00","spanId":"01","name":"x"}]}]}]}'
    async with running() as server:
        answer = await server.post(body, JSON)
    assert answer.status == 200
    assert b'"rejectedSpans":"1"' in answer.body
    assert b'"errorMessage":"' in answer.body


@EACH_SIGNAL
async def test_011_012_a_full_success_says_nothing_more(signal):
    """No partial success with zero rejected: collectors would log a warning for each."""
    async with running() as server:
        assert await server.export(data_of(signal, 5), signal) == b""


async def test_013_a_request_of_bad_items_only_is_partial_too():
    """Decodable, so not 400; the client must not send it again either way."""
    async with running() as server:
        answer = await server.post(with_bad_spans(good=0, bad=2))
        partial = SCHEMAS[Signal.TRACES].response.FromString(answer.body).partial_success
        assert (answer.status, partial.rejected_spans) == (200, 2)
        assert not server.sink.batches


@pytest.mark.parametrize("protocol", ["http", "grpc"])
async def test_014_a_real_client_does_not_send_a_partial_success_again(protocol):
    """The Python SDK takes it for the end of the matter."""
    context = SpanContext(trace_id=1, span_id=0, is_remote=False)
    async with running() as server:
        if protocol == "http":
            exporter = HttpSpanExporter(endpoint=f"http://127.0.0.1:{server.http}/v1/traces")
        else:
            exporter = GrpcSpanExporter(endpoint=f"127.0.0.1:{server.grpc}", insecure=True)
        try:
            result = await asyncio.to_thread(exporter.export, [ReadableSpan("x", context)])
        finally:
            exporter.shutdown()
        assert result is SpanExportResult.SUCCESS
        assert sum(server.bench.dropped.values()) == 1


async def test_015_the_explanation_of_a_partial_success_is_short():
    """However many items were bad: collectors read only so much of an answer."""
    async with running() as server:
        answer = await server.post(with_bad_spans(good=0, bad=5000))
    partial = SCHEMAS[Signal.TRACES].response.FromString(answer.body).partial_success
    assert partial.rejected_spans == 5000
    assert 0 < len(partial.error_message.encode()) <= 1024


async def test_028_one_port_takes_both_encodings():
    """On one connection, in any order."""
    async with running() as server, connect(server.http) as wire:
        for content_type, body in ((JSON, b"{}"), (PROTOBUF, b""), (JSON, b"{}")):
            await wire.send(request("POST", "/v1/traces", body, Content_Type=content_type))
            answer = await wire.answer()
            assert (answer.status, answer.headers["content-type"]) == (200, content_type)
