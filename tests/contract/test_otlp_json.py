"""OTLP conformance, items 42 to 61 and 112: what JSON from real and odd clients becomes on its way in."""

import math

import orjson
import pytest
from support.otlp import traces_request
from support.otlp_receiver import JSON, REQUESTS, SIGNALS, running

from sidecar import SCHEMAS, Signal
from sidecar.net import otlp_json

TRACE_ID = "0123456789abcdef0123456789abcdef"
SPAN_ID = "0123456789abcdef"
SPAN = {"traceId": TRACE_ID, "spanId": SPAN_ID, "name": "x"}


def spans(*spans, **more):
    """A request of these spans, as JSON text."""
    return orjson.dumps({"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}], **more})


def log_with(value):
    """A log record whose body is this AnyValue, written as JSON text so that anything can be said."""
    return b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"body":%b}]}]}]}' % value


def points(point, kind="sum"):
    """A metric with this data point."""
    return orjson.dumps(
        {"resourceMetrics": [{"scopeMetrics": [{"metrics": [{"name": "m", kind: {"dataPoints": [point]}}]}]}]}
    )


async def arrived(body, signal=Signal.TRACES):
    """The items that have arrived; the status where none was accepted."""
    async with running() as server:
        answer = await server.post(body, JSON, signal)
        if answer.status != 200:
            assert not server.sink.batches
            return answer.status
        found = []
        for batch in server.sink.batches:
            for scope in batch.scopes():
                found += getattr(scope, SCHEMAS[signal].records)
        return found


async def span_of(**fields):
    """The one span that arrives."""
    found = await arrived(spans(SPAN | fields))
    assert len(found) == 1, found
    return found[0]


async def body_of(value):
    """The AnyValue that arrives; the status where it was refused."""
    found = await arrived(log_with(value), Signal.LOGS)
    return found[0].body if isinstance(found, list) else found


async def test_042_both_spellings_of_a_key_are_read():
    """Strictly only the first exists, but ignoring the second would lose the data silently."""
    snake = {"trace_id": TRACE_ID, "span_id": SPAN_ID, "start_time_unix_nano": "7"}
    (span,) = await arrived(orjson.dumps({"resource_spans": [{"scope_spans": [{"spans": [snake]}]}]}))
    assert (span.trace_id.hex(), span.start_time_unix_nano) == (TRACE_ID, 7)


@pytest.mark.parametrize("case", [str.lower, str.upper])
async def test_043_ids_are_hex_in_any_case(case):
    """Everywhere: spans, parents, links, log records, exemplars."""
    span = await span_of(
        traceId=case(TRACE_ID),
        spanId=case(SPAN_ID),
        parentSpanId=case("ff" * 8),
        links=[{"traceId": case("ab" * 16), "spanId": case("cd" * 8)}],
    )
    assert (span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()) == (TRACE_ID, SPAN_ID, "ff" * 8)
    assert (span.links[0].trace_id.hex(), span.links[0].span_id.hex()) == ("ab" * 16, "cd" * 8)
    record = orjson.dumps({"traceId": case(TRACE_ID), "spanId": case(SPAN_ID)})
    (record,) = await arrived(b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[%b]}]}]}' % record, Signal.LOGS)
    assert (record.trace_id.hex(), record.span_id.hex()) == (TRACE_ID, SPAN_ID)
    exemplar = {"asInt": "1", "traceId": case(TRACE_ID), "spanId": case(SPAN_ID)}
    (metric,) = await arrived(points({"asInt": 1, "timeUnixNano": "1", "exemplars": [exemplar]}), Signal.METRICS)
    assert metric.sum.data_points[0].exemplars[0].trace_id.hex() == TRACE_ID


async def test_044_an_empty_parent_is_none():
    """And a log record may have empty ids."""
    assert (await span_of(parentSpanId="")).parent_span_id == b""
    body = b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"traceId":"","spanId":""}]}]}]}'
    assert len(await arrived(body, Signal.LOGS)) == 1


@pytest.mark.parametrize("bad", ["abc", "xyz" * 8, "abcd", "AAECAwQFBgcICQoLDA0ODw==", "", "0" * 32])
async def test_045_a_bad_id_costs_its_own_span(bad):
    """The others arrive; the sender gets the number."""
    async with running() as server:
        answer = await server.post(spans(SPAN | {"traceId": bad}, SPAN), JSON)
        assert orjson.loads(answer.body)["partialSuccess"]["rejectedSpans"] == "1"
        assert len(server.sink) == 1


@pytest.mark.parametrize("bad", [5, ["a"], {}, True])
async def test_045_an_id_of_another_type_is_400(bad):
    """It is no id at all."""
    assert await arrived(spans(SPAN | {"traceId": bad}, SPAN)) == 400


@pytest.mark.parametrize("kind", [2, "2", "SPAN_KIND_SERVER"])
async def test_047_enums_are_read_as_numbers_and_as_names(kind):
    """Only numbers are right, and clients send both."""
    assert (await span_of(kind=kind)).kind == 2


@pytest.mark.parametrize("time", [1_700_000_000_000_000_001, "1700000000000000001"])
async def test_048_64_bit_integers_are_strings_or_numbers(time):
    """Without losing a digit."""
    assert (await span_of(startTimeUnixNano=time)).start_time_unix_nano == 1_700_000_000_000_000_001


@pytest.mark.parametrize("flags", [257, "257"])
async def test_049_32_bit_integers_are_numbers_or_strings(flags):
    """Flags and dropped counts."""
    span = await span_of(flags=flags, droppedAttributesCount=flags)
    assert (span.flags, span.dropped_attributes_count) == (257, 257)


@pytest.mark.parametrize("token", [b"1.0", b"1e3", b'"1e3"', b"-0"])
async def test_050_integers_may_be_written_as_floats(token):
    """As long as they are whole."""
    value = await body_of(b'{"intValue":%b}' % token)
    assert value.int_value == int(float(token.strip(b'"')))


@pytest.mark.parametrize("token", [b"1.5", b"true", b'""', b'" 5 "', b'"x"', b"[]", b"{}"])
async def test_050_what_is_no_integer_is_400(token):
    """The type is wrong, so the request is."""
    assert await body_of(b'{"intValue":%b}' % token) == 400


@pytest.mark.parametrize(
    ("token", "expected"),
    [(b'"NaN"', math.nan), (b'"Infinity"', math.inf), (b'"-Infinity"', -math.inf), (b'"1.5"', 1.5), (b"2", 2.0)],
)
async def test_051_doubles_are_numbers_or_strings(token, expected):
    """The three that JSON can't write are quoted, and finite ones may be."""
    value = await body_of(b'{"doubleValue":%b}' % token)
    assert value.WhichOneof("value") == "double_value"
    assert value.double_value == expected or math.isnan(expected) is math.isnan(value.double_value) is True


@pytest.mark.parametrize("token", [b"NaN", b"Infinity", b"-Infinity"])
async def test_051_bare_nan_is_not_json(token):
    """It is refused, and not guessed."""
    assert await body_of(b'{"doubleValue":%b}' % token) == 400


@pytest.mark.parametrize("value", [b'{"doubleValue":null}', b'{"intValue":null}', b'{"stringValue":null}'])
async def test_052_null_is_a_field_that_is_not_there(value):
    """JavaScript sends it for NaN and infinity."""
    assert (await body_of(value)).WhichOneof("value") is None


@pytest.mark.parametrize("text", ["AQL/+g==", "AQL/+g", "AQL_-g", "AQL_-g=="])
async def test_053_bytes_are_base64_of_any_dialect(text):
    """Standard or URL-safe, padded or not."""
    assert (await body_of(b'{"bytesValue":"%b"}' % text.encode())).bytes_value == b"\x01\x02\xff\xfa"


@pytest.mark.parametrize("value", [b"{}", b'{"fooValue":1}', b"null"])
async def test_054_an_empty_value_is_valid(value):
    """JavaScript sends it for null; what is unknown in it is ignored."""
    assert (await body_of(value)).WhichOneof("value") is None


async def test_055_056_of_what_is_said_twice_the_last_wins():
    """Two members of a oneof, or one key twice: neither costs the request."""
    assert (await body_of(b'{"stringValue":"a","intValue":"5"}')).int_value == 5
    assert (await body_of(b'{"stringValue":"a","stringValue":"b"}')).string_value == "b"


@pytest.mark.parametrize("value", [b'{"stringValue":5}', b'{"boolValue":"true"}', b'{"arrayValue":[]}', b'"text"'])
async def test_057_a_wrong_type_is_400(value):
    """With the place in the message."""
    assert await body_of(value) == 400


async def test_058_a_byte_order_mark_and_bad_utf_8_are_mended():
    """Neither costs anything."""
    assert len(await arrived(b"\xef\xbb\xbf" + spans(SPAN))) == 1
    found = await arrived(spans(SPAN, SPAN | {"name": "QQ"}).replace(b"QQ", b"\xff\xfe"))
    assert [span.name for span in found] == ["x", "\ufffd\ufffd"]


async def test_059_lone_surrogates_become_the_replacement_character():
    """The JavaScript and Python exporters send them."""
    value = await body_of(b'{"stringValue":"a\\ud800b"}')
    assert value.string_value == "a\ufffdb"
    assert (await body_of(b'{"stringValue":"\\ud83d\\ude00"}')).string_value == "\U0001f600"


@pytest.mark.parametrize("levels", [60, 1000, 100_000])
async def test_060_endless_nesting_is_refused(levels):
    """400 or the item alone, in bounded time, and the server goes on."""
    nested = b'{"arrayValue":{"values":[' * levels + b"{}" + b"]}}" * levels
    async with running() as server:
        answer = await server.post(log_with(nested), JSON, Signal.LOGS)
        assert answer.status == 400 or b"rejectedLogRecords" in answer.body
        assert len(server.sink) == 0
        assert (await server.post(b"[" * levels, JSON)).status == 400
        assert (await server.post(b"{}", JSON)).status == 200


async def test_060_nesting_that_protobuf_allows_is_accepted():
    """Forty-five arrays in each other."""
    nested = b'{"arrayValue":{"values":[' * 45 + b"{}" + b"]}}" * 45
    assert (await body_of(nested)).WhichOneof("value") == "array_value"


@pytest.mark.parametrize("signal", SIGNALS)
async def test_061_what_we_write_we_read(signal):
    """Hex ids and integer enums out, the same message in."""
    message = REQUESTS[signal](3)
    text = otlp_json.encode(message)
    async with running() as server:
        assert (await server.post(text, JSON, signal)).status == 200
        assert server.sink.batches[0].message == message
    if signal is Signal.TRACES:
        message = traces_request(1)
        message.resource_spans[0].scope_spans[0].spans[0].kind = 2
        written = orjson.loads(otlp_json.encode(message))["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
        assert (written["traceId"], written["kind"]) == ("0123456789abcdef1122334455667788", 2)


async def test_112_indices_into_a_profiles_dictionary_are_no_errors_elsewhere():
    """There is no dictionary here, so they count as absent."""
    attribute = {"keyStrindex": 3, "value": {"stringValueStrindex": 8}}
    assert len(await arrived(spans(SPAN | {"attributes": [attribute]}))) == 1


async def test_what_real_clients_send_is_mended_and_counted():
    """Integers beyond 64 bits become doubles, as the protobuf exporters of JavaScript send them."""
    async with running() as server:
        for token in (b"1e+21", b"9223372036854776000", b'"1000000000000000000000000000000"'):
            assert (await server.post(log_with(b'{"intValue":%b}' % token), JSON, Signal.LOGS)).status == 200
        values = [batch.message.resource_logs[0].scope_logs[0].log_records[0].body for batch in server.sink.batches]
        assert [value.double_value for value in values] == [1e21, 9223372036854776000.0, 1e30]
        assert server.bench.metrics.value("sidecar_receiver_repairs", reason="integer_out_of_range") == 3
