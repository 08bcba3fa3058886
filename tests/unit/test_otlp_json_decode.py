"""OTLP/JSON to protobuf: what the specification allows, what real clients send, and what is refused, with its place."""

import json
import math
from concurrent.futures import ThreadPoolExecutor

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message_factory import GetMessageClass
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    ExponentialHistogramDataPoint,
    HistogramDataPoint,
    NumberDataPoint,
)
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

from sidecar import SCHEMAS, Permanent, Signal
from sidecar.net import otlp_json
from sidecar.net.otlp_json import read

TRACE_ID = "5b8efff798038103d269b633813fc60c"
TRACES = SCHEMAS[Signal.TRACES].request


def parse(message_type, document):
    """The message that a document, or a JSON text, says."""
    return parse_counting(message_type, document)[0]


def parse_counting(message_type, document):
    """The message, and the repairs."""
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    transcoded = otlp_json.transcode(message_type, body)
    return message_type.FromString(transcoded.data), transcoded.repairs


def refusal(message_type, document):
    """What is said when a document is refused."""
    with pytest.raises(Permanent) as caught:
        parse(message_type, document)
    return str(caught.value).removeprefix("not OTLP/JSON: ")


def all_message_types():
    """Every message type that a request of any signal may hold."""
    found = {}
    waiting = [schema.request.DESCRIPTOR for schema in SCHEMAS.values()]
    while waiting:
        descriptor = waiting.pop()
        if descriptor.full_name not in found:
            found[descriptor.full_name] = descriptor
            waiting += [field.message_type for field in descriptor.fields if field.message_type]
    return list(found.values())


ALL_FIELDS = [field for message in all_message_types() for field in message.fields]


def sample(field):
    """A message with one field set."""
    message = GetMessageClass(field.containing_type)()
    if field.message_type is not None:
        value = GetMessageClass(field.message_type)()
    else:
        value = {FieldDescriptor.TYPE_STRING: "text", FieldDescriptor.TYPE_BYTES: b"\x0f" * 16}.get(field.type, 1)
    if field.is_repeated:
        getattr(message, field.name).append(value)
    elif field.message_type is not None:
        getattr(message, field.name).SetInParent()
    else:
        setattr(message, field.name, value)
    return message


def test_every_field_is_read():
    """By its name in JSON and by its name in the schema, as many clients of the first years wrote it."""
    for field in ALL_FIELDS:
        message = sample(field)
        document = json.loads(otlp_json.encode(message))
        assert list(document) == [field.json_name]
        assert parse(type(message), document) == message, field.full_name
        assert parse(type(message), {field.name: document[field.json_name]}) == message, field.full_name


def test_every_field_answers_every_value():
    """By protobuf that decodes, or by Permanent that names the field: no other exception, whatever stands there."""
    values = [True, 1.5, -1, 1 << 65, "", "\N{SNOWMAN}", "1_0", " 5 ", [], [[]], {}, {"a": []}, [5], ["x"], [None]]
    for field in ALL_FIELDS:
        message_type = GetMessageClass(field.containing_type)
        for value in values:
            try:
                parse(message_type, {field.json_name: value})
            except Permanent as error:
                assert field.json_name in str(error)  # noqa: PT017 (both outcomes are right)


def test_null_is_the_same_as_nothing():
    """In every field (ProtoJSON); counted, since strict readers refuse what JavaScript makes of NaN."""
    for field in ALL_FIELDS:
        message_type = GetMessageClass(field.containing_type)
        assert parse_counting(message_type, {field.json_name: None}) == (message_type(), {"null": 1}), field.full_name


def test_many_nulls_cost_nothing_behind_them():
    """A null message leaves no trace in the count of open messages."""
    spans = [{"name": str(number), "status": None} for number in range(300)]
    message, repairs = parse_counting(ScopeSpans, {"spans": spans})
    assert [span.name for span in message.spans] == [span["name"] for span in spans]
    assert repairs == {"null": 300}


@pytest.mark.parametrize("hex_id", [TRACE_ID, TRACE_ID.upper()])
def test_ids_are_hex_in_any_case(hex_id):
    """Not base64 as in ProtoJSON."""
    span = parse(Span, {"traceId": hex_id, "spanId": hex_id[:16], "parentSpanId": ""})
    assert (span.trace_id, span.span_id, span.parent_span_id) == (
        bytes.fromhex(TRACE_ID),
        bytes.fromhex(TRACE_ID)[:8],
        b"",
    )


@pytest.mark.parametrize("bad_id", ["abc", "xyz!", "W47/95gDgQPSabYzgT/GDA==", "ab cd", "\u0661\u0662"])
def test_an_id_that_is_not_hex_has_a_wrong_length(bad_id):
    """So that salvage rejects its record, and only that."""
    span = parse(Span, {"traceId": bad_id, "name": "kept so far"})
    assert (len(span.trace_id), span.name) == (1, "kept so far")


def test_an_id_of_a_wrong_length_stays_as_it_is():
    """For the same reason."""
    assert parse(Span, {"traceId": "abcd"}).trace_id == b"\xab\xcd"


@pytest.mark.parametrize("written", [1, "1", 1.0, "1.0", "1e0", "10e-1", "001"])
def test_integers_as_numbers_and_strings(written):
    """Of 64 and of 32 bits, also in the forms of floating point (ProtoJSON)."""
    assert parse(Span, {"startTimeUnixNano": written, "flags": written, "kind": written}) == Span(
        start_time_unix_nano=1, flags=1, kind=Span.SPAN_KIND_INTERNAL
    )
    assert parse(HistogramDataPoint, {"bucketCounts": [written]}).bucket_counts == [1]


@pytest.mark.parametrize("written", ["1e3", 1e3, "1000", 1000])
def test_exponents(written):
    """1e3 is an integer."""
    assert parse(AnyValue, {"intValue": written}).int_value == 1000


@pytest.mark.parametrize("number", [-1, -(1 << 63), (1 << 63) - 1, 0])
@pytest.mark.parametrize("form", [int, str])
def test_all_of_int64(number, form):
    """To both ends."""
    assert parse(AnyValue, {"intValue": form(number)}).int_value == number
    assert parse(NumberDataPoint, {"asInt": form(number)}).as_int == number


@pytest.mark.parametrize("form", [int, str])
def test_all_of_fixed64(form):
    """Timestamps are unsigned."""
    assert parse(LogRecord, {"timeUnixNano": form((1 << 64) - 1)}).time_unix_nano == (1 << 64) - 1


@pytest.mark.parametrize("number", [-5, 0, 7, -(1 << 31), (1 << 31) - 1])
def test_signed_32_bits(number):
    """Zigzag, in the scale of exponential histograms."""
    assert parse(ExponentialHistogramDataPoint, {"scale": number}).scale == number
    assert parse(ExponentialHistogramDataPoint, {"scale": str(number)}).scale == number


@pytest.mark.parametrize("written", ["1.5", 1.5, True, "", " 5 ", "0x10", "1_000", "1e", "--1", "\u0663", [], {}])
def test_what_is_not_an_integer(written):
    """Is refused, with its place."""
    assert refusal(Span, {"startTimeUnixNano": written}).startswith("startTimeUnixNano: expected an integer, got ")


@pytest.mark.parametrize("written", [-1, "-1", 1 << 64, str(1 << 64), 1e30, "1e999999", "9" * 5000])
def test_integers_out_of_range(written):
    """Where no double can stand instead they are refused."""
    assert refusal(Span, {"endTimeUnixNano": written}).startswith("endTimeUnixNano: ")


@pytest.mark.parametrize(
    ("written", "number"),
    [
        (b"1e+21", 1e21),
        (b"9223372036854776000", 9223372036854776000.0),
        (b'"1000000000000000000000000000000"', 1e30),
        (b"-9223372036854780000", -9223372036854780000.0),
    ],
)
def test_integers_too_large_become_doubles(written, number):
    """As JavaScript's SDK sends them over protobuf; its JSON, and Python's, have these instead."""
    assert parse_counting(AnyValue, b'{"intValue":%b}' % written) == (
        AnyValue(double_value=number),
        {"integer_out_of_range": 1},
    )
    assert parse(NumberDataPoint, b'{"asInt":%b}' % written).as_double == number
    attribute = parse(KeyValue, b'{"key":"k","value":{"intValue":%b}}' % written)
    assert attribute.value.double_value == number


def test_an_integer_beyond_doubles():
    """Can be neither."""
    assert refusal(AnyValue, {"intValue": "9" * 400}) == "intValue: the number is too large"


@pytest.mark.parametrize("written", [1.5, "1.5", "15e-1"])
def test_doubles_as_numbers_and_strings(written):
    """Quoted finite numbers too, which some readers refuse."""
    assert parse(AnyValue, {"doubleValue": written}).double_value == 1.5


def test_doubles_that_json_has_no_number_for():
    """NaN and the infinities are strings."""
    values = parse(HistogramDataPoint, {"explicitBounds": ["-Infinity", 1, "Infinity", "NaN"]}).explicit_bounds
    assert values[:3] == [-math.inf, 1, math.inf]
    assert math.isnan(values[3])


@pytest.mark.parametrize("written", ["", "nan", "inf", "1,5", "0x1", "1_0", True, [], "1e400"])
def test_what_is_not_a_double(written):
    """Is refused, with its place."""
    assert refusal(AnyValue, {"doubleValue": written}).startswith("doubleValue: ")


@pytest.mark.parametrize("token", [b"NaN", b"Infinity", b"-Infinity", b"1e400"])
def test_bare_nan_is_not_json(token):
    """Whatever Python's own reader makes of it."""
    assert refusal(AnyValue, b'{"doubleValue":%b}' % token)


@pytest.mark.parametrize(("written", "number"), [(2, 2), ("2", 2), ("SPAN_KIND_SERVER", 2), (99, 99), (-1, -1)])
def test_enums(written, number):
    """As numbers, known or not; names are taken too, as the Collector does."""
    assert parse(Span, {"kind": written}).kind == number


@pytest.mark.parametrize("written", ["SERVER", "", 1 << 31, True, ["SPAN_KIND_SERVER"]])
def test_what_is_not_an_enum(written):
    """Is refused, with its place."""
    assert refusal(Span, {"kind": written}).startswith("kind: ")


@pytest.mark.parametrize("written", ["+/8=", "+/8", "-_8=", "-_8"])
def test_bytes_are_base64(written):
    """In both alphabets, with or without padding."""
    assert parse(AnyValue, {"bytesValue": written}).bytes_value == b"\xfb\xff"


@pytest.mark.parametrize("written", ["!!!", "A", "AB=C", "\u00e4\u00e4\u00e4\u00e4", 5])
def test_what_is_not_base64(written):
    """Is refused instead of read as nothing."""
    assert refusal(AnyValue, {"bytesValue": written}).startswith("bytesValue: ")


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"stringValue": 5}, "stringValue: expected a string, got a number"),
        ({"stringValue": ["x"]}, "stringValue: expected a string, got an array"),
        ({"boolValue": "true"}, "boolValue: expected true or false, got a string"),
        ({"boolValue": 1}, "boolValue: expected true or false, got a number"),
        ({"arrayValue": []}, "arrayValue: expected an object, got an array"),
        ({"arrayValue": {"values": {}}}, "arrayValue.values: expected an array, got an object"),
        ({"kvlistValue": {"values": [5]}}, "kvlistValue.values[0]: expected an object, got a number"),
        ("text", "expected an object, got a string"),
    ],
)
def test_values_of_a_wrong_kind(value, problem):
    """Are refused with their place, as an AnyValue and as an attribute's."""
    assert refusal(AnyValue, value) == problem
    joint = "." if isinstance(value, dict) else ": "
    attributes = [{"key": "sound", "value": {"stringValue": "x"}}, {"key": "k", "value": value}]
    assert refusal(Span, {"attributes": attributes}) == f"attributes[1].value{joint}{problem}"


def test_the_place_of_a_wrong_value_is_said():
    """From the top of the request."""
    spans = [{"name": "sound"}] * 3 + [{"startTimeUnixNano": "tomorrow"}]
    with pytest.raises(Permanent) as caught:
        otlp_json.decode(Signal.TRACES, json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}).encode())
    assert str(caught.value) == (
        "not OTLP/JSON: resourceSpans[0].scopeSpans[0].spans[3].startTimeUnixNano: expected an integer, got a string"
    )


@pytest.mark.parametrize("value", [{}, {"fooValue": 1}, {"doubleValue": None}])
def test_empty_values(value):
    """An AnyValue without a member is a value: JavaScript's null."""
    assert parse(KeyValue, {"key": "k", "value": value}) == KeyValue(key="k", value=AnyValue())


def test_null_in_an_array_keeps_its_place():
    """As the empty value, which is what clients mean."""
    value, repairs = parse_counting(AnyValue, b'{"arrayValue":{"values":[{"intValue":1},null,{}]}}')
    assert list(value.array_value.values) == [AnyValue(int_value=1), AnyValue(), AnyValue()]
    assert repairs == {"null": 1}


def test_of_two_members_of_a_oneof_the_last_one_wins():
    """As in protobuf and in the Collector."""
    assert parse(AnyValue, {"stringValue": "a", "intValue": 1}) == AnyValue(int_value=1)


def test_of_doubled_keys_the_last_one_wins():
    """A doubled key never costs a request."""
    assert parse(Span, b'{"name":"a","name":"b"}').name == "b"


def test_unknown_keys_are_ignored():
    """At every level (OTLP specification)."""
    document = {"x": {"y": [1]}, "resourceSpans": [{"z": None, "scopeSpans": [{"spans": [{"name": "a", "w": "v"}]}]}]}
    assert parse(TRACES, document) == parse(TRACES, {"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "a"}]}]}]})


@pytest.mark.parametrize("body", [b"{}", b'{"resourceSpans":[]}', b'{"resourceSpans":null}', b" {} \n"])
def test_empty_requests(body):
    """Are requests."""
    assert otlp_json.decode(Signal.TRACES, body).data == b""


@pytest.mark.parametrize(
    "body", [b"", b" ", b"[]", b"1234", b'"x"', b"null", b"true", b"{", b"{}{}", b"\x00", b"\n\x00"]
)
def test_what_is_not_an_object(body):
    """Is refused, whatever else it is."""
    with pytest.raises(Permanent):
        otlp_json.decode(Signal.TRACES, body)


@pytest.mark.parametrize(
    ("text", "read_as", "repairs"),
    [
        (rb"\ud800", "\ufffd", {"surrogate": 1}),
        (rb"a\uDFFFb\udbffc", "a\ufffdb\ufffdc", {"surrogate": 2}),
        (rb"\ud83d\ude00", "\U0001f600", {}),
        (rb"\ud83d\ud83d\ude00\ude00", "\ufffd\U0001f600\ufffd", {"surrogate": 2}),
        (rb"\\ud800 \ud800", "\\ud800 \ufffd", {"surrogate": 1}),
        (rb"\\\ud800", "\\\ufffd", {"surrogate": 1}),
        (b"\xff\xfe", "\ufffd\ufffd", {"utf8": 1}),
        (b"\xed\xa0\x80", "\ufffd\ufffd\ufffd", {"utf8": 1}),
        (rb"\u0000", "\x00", {}),
    ],
)
def test_text_that_is_not_unicode(text, read_as, repairs):
    """Is mended and counted, and what only looks like it stays."""
    assert parse_counting(AnyValue, b'{"stringValue":"%b"}' % text) == (AnyValue(string_value=read_as), repairs)


def test_a_byte_order_mark():
    """Is taken away."""
    assert parse_counting(AnyValue, b'\xef\xbb\xbf{"intValue":1}') == (AnyValue(int_value=1), {"bom": 1})


def test_control_characters_are_not_json():
    """Also where mending looks for something else."""
    assert refusal(AnyValue, b'{"stringValue":"\x00\x00 \\ud800"}')


def arrays(levels):
    """An AnyValue of so many nested arrays."""
    return b'{"arrayValue":{"values":[' * levels + b"]}}" * levels


def maps(levels):
    """An AnyValue of so many nested maps."""
    return b'{"kvlistValue":{"values":[{"key":"k","value":' * levels + b"{}" + b"}]}}" * levels


@pytest.mark.parametrize(("nested", "sound", "too_deep"), [(arrays, 48, 49), (maps, 32, 33)])
def test_nesting(nested, sound, too_deep):
    """As deep as protobuf goes; what is deeper stays deeper, so that salvage rejects its record."""
    request = b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"body":%b}]}]}]}'
    logs = SCHEMAS[Signal.LOGS].request
    assert parse(logs, request % nested(sound))
    for levels in (too_deep, 100, 200):
        data = otlp_json.decode(Signal.LOGS, request % nested(levels)).data
        with pytest.raises(Exception, match="MaxDepth"):
            logs.FromString(data)


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"a":' * 100_000, arrays(10_000), b'{"x":' + b"[" * 2000])
def test_nesting_without_end(body):
    """Is refused without an overflow."""
    with pytest.raises(Permanent):
        otlp_json.decode(Signal.LOGS, body)


def test_a_wrong_value_under_much_nesting():
    """Is found in one walk: going a second way at each level would take years."""
    value = maps(30).replace(b'{"key":"k","value":{}}', b'{"key":"k","value":{"boolValue":5}}')
    assert refusal(KeyValue, b'{"key":"k","value":%b}' % value).endswith(
        "boolValue: expected true or false, got a number"
    )


def test_long_texts_and_keys():
    """Whose lengths take more than a byte, on both sides of each border."""
    for key, text in [(1, 126), (1, 127), (1, 128), (127, 1), (128, 1), (127, 125), (20_000, 20_000)]:
        pair = KeyValue(key="k" * key, value=AnyValue(string_value="t" * text))
        assert parse(Span, {"attributes": [json.loads(otlp_json.encode(pair))]}).attributes == [pair]


def test_text_beyond_ascii():
    """Lengths are those of the bytes."""
    pair = KeyValue(key="\u00e4" * 70, value=AnyValue(string_value="\u65e5" * 50))
    assert parse(Span, {"attributes": [json.loads(otlp_json.encode(pair))]}).attributes == [pair]


def test_scopes_of_old_clients():
    """What was called `instrumentationLibrary…` is read into the field that old protobuf clients use."""
    spans = [{"name": "a"}]
    old = parse(
        ResourceSpans, {"instrumentationLibrarySpans": [{"instrumentationLibrary": {"name": "l"}, "spans": spans}]}
    )
    new = parse(ResourceSpans, {"scopeSpans": [{"scope": {"name": "l"}, "spans": spans}]})
    # Tag 18 is field 2; tags 194 and 62 are field 1000.
    assert old.SerializeToString() == b"\xc2\x3e" + new.SerializeToString().removeprefix(b"\x12")


def test_responses_are_read_too():
    """For our own client: a number of rejected items comes as a string."""
    response = parse(ExportTraceServiceResponse, {"partialSuccess": {"rejectedSpans": "3", "errorMessage": "x"}})
    assert (response.partial_success.rejected_spans, response.partial_success.error_message) == (3, "x")


def test_threads_meet_whole_tables(monkeypatch):
    """The tables are made on first use, also when that happens in several threads at once."""
    monkeypatch.setattr(read, "_tables", {})
    body = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "a", "status": {"code": 1}}]}]}]}).encode()
    with ThreadPoolExecutor(8) as threads:
        results = set(threads.map(lambda _: otlp_json.decode(Signal.TRACES, body).data, range(64)))
    assert results == {parse(TRACES, body).SerializeToString()}
