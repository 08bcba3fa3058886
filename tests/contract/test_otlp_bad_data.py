"""OTLP conformance, items 30 to 41: what is wrong costs only itself, and its sender is told."""

import grpc
import orjson
import pytest
from google.rpc.error_details_pb2 import BadRequest
from google.rpc.status_pb2 import Status
from support.otlp import logs_request, metrics_request, traces_request
from support.otlp_receiver import JSON, PROTOBUF, SIGNALS, data_of, running, status_of

from sidecar import SCHEMAS, Signal

EACH_SIGNAL = pytest.mark.parametrize("signal", SIGNALS)
Code = grpc.StatusCode


@EACH_SIGNAL
async def test_030_malformed_protobuf_is_400_with_a_bad_request(signal):
    """A Status in protobuf, whose details say what is wrong; it is not retried."""
    async with running() as server:
        answer = await server.post(b"\xff\xff\xff", PROTOBUF, signal)
        assert (answer.status, answer.headers["content-type"]) == (400, PROTOBUF)
        status = Status.FromString(answer.body)
        detail = BadRequest()
        assert status.details[0].Unpack(detail)
        assert status.code == 3
        assert detail.field_violations[0].description == status.message
        assert "retry-after" not in answer.headers


@EACH_SIGNAL
async def test_031_malformed_json_is_400_with_a_bad_request(signal):
    """The same in JSON."""
    async with running() as server:
        answer = await server.post(b'{"resourceSpans": [', JSON, signal)
        assert (answer.status, answer.headers["content-type"]) == (400, JSON)
        status = orjson.loads(answer.body)
        assert status["code"] == 3
        assert status["details"] == [
            {
                "@type": "type.googleapis.com/google.rpc.BadRequest",
                "fieldViolations": [{"description": status["message"]}],
            }
        ]


@pytest.mark.parametrize("body", [b"[]", b"1234", b'"x"', b"null", b"true"])
async def test_032_json_that_is_no_object_is_400(body):
    """An export request is an object."""
    async with running() as server:
        assert (await server.post(body, JSON)).status == 400


async def test_033_one_encoding_under_the_others_name_is_400():
    """JSON sent as protobuf and the reverse."""
    async with running() as server:
        assert (await server.post(b'{"resourceSpans":[]}', PROTOBUF)).status == 400
        assert (await server.post(data_of(Signal.TRACES), JSON)).status == 400


@pytest.mark.parametrize(
    "body",
    [
        data_of(Signal.TRACES)[:-1],
        data_of(Signal.TRACES)[:3],
        b"\x00\x00",  # field number 0
        b"\x0b",  # a group that does not end
        b"\x0a\xff\xff\xff\xff\x0f",  # a length beyond the end
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",  # a varint that is too long
    ],
)
async def test_034_broken_protobuf_is_400(body):
    """Cut off, or against the wire format."""
    async with running() as server:
        assert (await server.post(body)).status == 400
        assert (await server.refused(body)).code() is Code.INVALID_ARGUMENT
        assert not server.sink.batches


@EACH_SIGNAL
async def test_035_a_malformed_grpc_message_is_an_invalid_argument(signal):
    """Not INTERNAL, with the reason in the status and in its details."""
    async with running() as server:
        refused = await server.refused(b"\xff\xff\xff", signal)
        trailers = dict(refused.trailing_metadata())
        status = Status.FromString(trailers["grpc-status-details-bin"])
        assert refused.code() is Code.INVALID_ARGUMENT
        assert status.message == refused.details()
        assert status.details[0].Is(BadRequest.DESCRIPTOR)
        assert "google.rpc.retryinfo-bin" not in trailers


@EACH_SIGNAL
async def test_036_text_that_is_not_utf_8_costs_no_other_item(signal):
    """It is repaired with U+FFFD, and all items arrive."""
    good = {Signal.TRACES: traces_request, Signal.METRICS: metrics_request, Signal.LOGS: logs_request}[signal](3)
    data = good.SerializeToString().replace(b"service.name", b"service\xff\xfeame")
    async with running() as server:
        answer = await server.post(data, signal=signal)
        assert (answer.status, answer.body) == (200, b"")
        assert await server.export(data, signal) == b""
        assert [len(batch) for batch in server.sink.batches] == [3, 3]
        resource = server.sink.batches[0].resources()[0].resource
        assert resource.attributes[0].key.startswith("service\ufffd")
        assert server.bench.metrics.value("sidecar_receiver_repairs", transport="grpc") > 0


@pytest.mark.parametrize(
    ("sent", "taken_as"),
    [(Signal.LOGS, Signal.TRACES), (Signal.METRICS, Signal.TRACES), (Signal.TRACES, Signal.LOGS)],
)
async def test_037_items_of_another_signal_are_noticed(sent, taken_as):
    """Their fields overlap, so that they decode: never a silent success."""
    async with running() as server:
        answer = await server.post(data_of(sent, 2), signal=taken_as)
        assert answer.status == 400 or (answer.status == 200 and answer.body)
        assert len(server.sink) == 0


async def test_038_unknown_fields_are_kept():
    """A newer client's field reaches the next hop, whose schema may know it."""
    unknown = b"\xfa\x3f\x03new"  # field 1023
    data = data_of(Signal.TRACES) + unknown
    async with running() as server:
        assert (await server.post(data)).status == 200
        (batch,) = server.sink.batches
        assert batch.encode() == data
        batch.edit()
        assert unknown in batch.encode()


async def test_039_unknown_json_keys_are_ignored():
    """At every level."""
    body = b"""{"new": {"a": [1]}, "resourceSpans": [{"new": 1, "resource": {"new": []}, "scopeSpans": [{"new": "x",
        "spans": [{"traceId": "00000000000000000000000000000001", "spanId": "0000000000000001", "name": "a",
                   "new": null, "status": {"new": true}}]}]}]}"""
    async with running() as server:
        assert (await server.post(body, JSON)).status == 200
        assert len(server.sink) == 1


async def test_040_unknown_enum_values_are_kept():
    """Enums are open: the number goes on."""
    message = traces_request(1)
    span = message.resource_spans[0].scope_spans[0].spans[0]
    span.kind = 99
    span.status.code = -1
    body = b"""{"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "00000000000000000000000000000001",
        "spanId": "0000000000000001", "kind": 99}]}]}]}"""
    async with running() as server:
        assert (await server.post(message.SerializeToString())).status == 200
        assert (await server.post(body, JSON)).status == 200
        first, second = (batch.message.resource_spans[0].scope_spans[0].spans[0] for batch in server.sink.batches)
        assert (first.kind, first.status.code, second.kind) == (99, -1, 99)


async def test_041_an_error_of_ours_may_pass_later_and_says_nothing(caplog):
    """503 and UNAVAILABLE instead of 500 and UNKNOWN, for which clients drop; the log has the traceback."""

    class Broken:
        async def __call__(self, *_batches):
            raise RuntimeError("secret")

        def accepts(self, _signal):
            return True

    async with running() as server:
        server.receiver.emit = Broken()
        answer = await server.post(data_of(Signal.TRACES))
        refused = await server.refused(data_of(Signal.TRACES))
    assert (answer.status, status_of(answer)[0]) == (503, 14)
    assert refused.code() is Code.UNAVAILABLE
    assert "secret" not in status_of(answer)[1] + refused.details()
    assert [record.exc_info[0] for record in caplog.records] == [RuntimeError, RuntimeError]


async def test_refused_requests_are_counted_by_reason():
    """Nobody knows how many items they held, so the requests are counted."""
    async with running() as server:
        await server.post(b"\xff")
        await server.refused(b"\xff")
        await server.post(b"", "text/plain")
        value = server.bench.metrics.value
        name = "sidecar_receiver_refused_requests"
        assert value(name, reason="malformed", transport="http") == 1
        assert value(name, reason="malformed", transport="grpc") == 1
        assert value(name, reason="unsupported_media") == 1


def test_every_signal_has_its_own_place():
    """The table that the receiver serves from is complete."""
    assert set(SCHEMAS) == set(Signal)
