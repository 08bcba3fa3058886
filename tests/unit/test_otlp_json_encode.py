"""Protobuf to OTLP/JSON: the forms that the specification asks of a sender."""

import json
import math

import pytest
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import ExponentialHistogramDataPoint, HistogramDataPoint
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from sidecar import Signal
from sidecar.net import otlp_json


def test_a_span():
    """Hex ids, integer enums, 64-bit integers as strings, 32-bit ones as numbers, lowerCamelCase; defaults left out."""
    span = Span(
        trace_id=bytes.fromhex("5b8efff798038103d269b633813fc60c"),
        span_id=bytes.fromhex("eee19b7ec3c1b174"),
        name="GET /orders",
        kind=Span.SPAN_KIND_SERVER,
        flags=257,
        start_time_unix_nano=1_700_000_000_000_000_001,
    )
    span.status.SetInParent()
    span.attributes.add(key="http.response.status_code").value.int_value = 200
    assert otlp_json.encode(span) == (
        b'{"traceId":"5b8efff798038103d269b633813fc60c","spanId":"eee19b7ec3c1b174","name":"GET /orders","kind":2,'
        b'"startTimeUnixNano":"1700000000000000001",'
        b'"attributes":[{"key":"http.response.status_code","value":{"intValue":"200"}}],"status":{},"flags":257}'
    )


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (AnyValue(), {}),
        (AnyValue(string_value=""), {"stringValue": ""}),
        (AnyValue(bool_value=False), {"boolValue": False}),
        (AnyValue(int_value=-(1 << 63)), {"intValue": "-9223372036854775808"}),
        (AnyValue(double_value=0), {"doubleValue": 0.0}),
        (AnyValue(double_value=math.nan), {"doubleValue": "NaN"}),
        (AnyValue(double_value=math.inf), {"doubleValue": "Infinity"}),
        (AnyValue(double_value=-math.inf), {"doubleValue": "-Infinity"}),
        (AnyValue(bytes_value=b"\xfb\xff"), {"bytesValue": "+/8="}),
        (AnyValue(string_value="\x00\u65e5\n"), {"stringValue": "\x00\u65e5\n"}),
    ],
)
def test_values(value, written):
    """Each kind of AnyValue; what is set to its default is not what is not set."""
    assert json.loads(otlp_json.encode(value)) == written


def test_numbers_in_data_points():
    """Doubles stay numbers, an optional zero stays, counts are strings, signed 32-bit integers are numbers."""
    point = HistogramDataPoint(count=3, sum=0, bucket_counts=[1, 2], explicit_bounds=[0.5], min=-0.0)
    assert json.loads(otlp_json.encode(point)) == {
        "count": "3",
        "sum": 0.0,
        "bucketCounts": ["1", "2"],
        "explicitBounds": [0.5],
        "min": -0.0,
    }
    assert json.loads(otlp_json.encode(ExponentialHistogramDataPoint(scale=-2))) == {"scale": -2}


def test_unknown_enum_values_stay():
    """Enums are open."""
    assert json.loads(otlp_json.encode(Span(kind=99))) == {"kind": 99}


def test_responses():
    """For the receiver's answers."""
    response = ExportMetricsServiceResponse()
    assert otlp_json.encode(response) == b"{}"
    response.partial_success.rejected_data_points = 3
    response.partial_success.error_message = "x"
    assert otlp_json.encode(response) == b'{"partialSuccess":{"rejectedDataPoints":"3","errorMessage":"x"}}'


def test_a_request_is_one_line():
    """So that files of requests can be read line by line."""
    request = ExportTraceServiceRequest()
    request.resource_spans.add().scope_spans.add().spans.add(name="a\nb")
    assert b"\n" not in otlp_json.encode(request)


@pytest.mark.parametrize("kind", ["array_value", "kvlist_value"])
def test_the_deepest_nesting_that_protobuf_decodes(kind):
    """Passes both ways."""
    request, value = ExportLogsServiceRequest(), None
    record = request.resource_logs.add().scope_logs.add().log_records.add()
    inner = record.body
    deepest = None
    while True:
        value = getattr(inner, kind).values.add()
        inner = value if kind == "array_value" else value.value
        inner.bool_value = True
        try:
            deepest = ExportLogsServiceRequest.FromString(request.SerializeToString())
        except DecodeError:
            break
    data = otlp_json.decode(Signal.LOGS, otlp_json.encode(deepest)).data
    assert ExportLogsServiceRequest.FromString(data) == deepest
