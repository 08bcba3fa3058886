"""Requests as plain objects: the same from the kernel as from protobuf."""

import gc
import itertools
import math
import operator
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from support.otlp import attributes, logs_request, metrics_request, traces_request
from support.otlp_canary import plants
from support.otlp_strategies import mutations, requests

from sidecar import SCHEMAS, Batch, BatchContext, Permanent, Signal, kernel, reading
from sidecar.reading import read, read_resource, read_scope

SIGNALS = pytest.mark.parametrize("signal", list(Signal))
RAW = {"resource": read_resource, "scope": read_scope}
REQUESTS = {Signal.TRACES: traces_request, Signal.LOGS: logs_request, Signal.METRICS: metrics_request}


@pytest.fixture(params=["kernel", "protobuf"])
def way(request, monkeypatch):
    """Both ways to read a request."""
    if request.param == "protobuf":
        monkeypatch.setattr(reading, "_reader", lambda _: None)
    elif kernel.module is None:
        pytest.skip(f"no kernel: {kernel.WHY_NOT}")


@pytest.fixture
def compiled():
    """Skip what there is no kernel for."""
    if kernel.module is None:
        pytest.skip(f"no kernel: {kernel.WHY_NOT}")


def check(signal, data):
    """What the kernel reads is what protobuf reads. Returns whether it reads it."""
    read_by_kernel = reading._reader(signal).read(data)
    if read_by_kernel is None:
        return False
    message = SCHEMAS[signal].request.FromString(data)
    flat, flat_by_protobuf = [], []
    expected = reading._layout(message.DESCRIPTOR).make(message)
    assert repr(plain(read_by_kernel, flat)) == repr(plain(expected, flat_by_protobuf))
    # Where a key comes twice, the kernel has looked at both values.
    assert all(itertools.starmap(operator.le, zip(flat, flat_by_protobuf, strict=True)))
    return True


def plain(value, flat, name=""):
    """Named tuples as tuples, whatever their type is called; what is left as bytes, decoded. `flat` gets the flags."""
    if name in RAW:
        return plain(RAW[name](value), flat)
    if name == "is_flat":
        flat.append(value)
        return None
    if isinstance(value, tuple):
        names = getattr(type(value), "__match_args__", [""] * len(value))
        return tuple(plain(one, flat, name) for one, name in zip(value, names, strict=True))
    return [plain(one, flat, name) for one in value] if isinstance(value, list) else value


def read_request(request):
    """A request as `read` gives it."""
    signal = next(signal for signal, schema in SCHEMAS.items() if isinstance(request, schema.request))
    return read(Batch(signal, request.SerializeToString(), context=BatchContext()))


def record_of(**fields):
    """A log record as `read` gives it."""
    request = SCHEMAS[Signal.LOGS].request()
    request.resource_logs.add().scope_logs.add().log_records.add(**fields)
    return read_request(request).resource_logs[0].scope_logs[0].log_records[0]


def array(*values):
    """An array of values."""
    value = AnyValue()
    value.array_value.values.extend(values)
    return value


def table(*pairs):
    """A map."""
    value = AnyValue()
    value.kvlist_value.values.extend(pairs)
    return value


@SIGNALS
def test_an_ordinary_request_is_read_by_the_kernel(signal, compiled):
    """And not decoded."""
    assert check(signal, REQUESTS[signal](3).SerializeToString())


@SIGNALS
@given(data=st.data())
def test_any_message_is_read_as_protobuf_reads_it(signal, compiled, data):
    """Whatever fields are set, and to what."""
    check(signal, data.draw(requests(signal)).SerializeToString())


@SIGNALS
@given(data=st.data())
def test_mutated_bytes_are_read_as_protobuf_reads_them(signal, compiled, data):
    """Or left to it."""
    request = data.draw(st.just(REQUESTS[signal](2)) | requests(signal))
    check(signal, data.draw(mutations(request.SerializeToString())))


@SIGNALS
@given(data=st.binary())
def test_any_bytes_are_read_as_protobuf_reads_them(signal, compiled, data):
    """Most are no request."""
    check(signal, data)


@SIGNALS
def test_every_single_byte_counts(signal, compiled):
    """An ordinary request with any one byte changed, or cut off anywhere."""
    data = REQUESTS[signal](1).SerializeToString()
    read_ones = [
        check(signal, changed)
        for at in range(len(data))
        for changed in (data[:at], *(data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :] for bit in (1, 2, 4, 128)))
    ]
    assert {True, False} == set(read_ones)


@SIGNALS
def test_what_is_given_up_is_let_go(signal, compiled):
    """Objects that were made before the doubt, wherever in a request that is."""
    data = REQUESTS[signal](2).SerializeToString()
    broken = [data[:at] + b"\xff" + data[at + 1 :] for at in range(len(data))] + [data[:at] for at in range(len(data))]
    reader = reading._reader(signal)

    def blocks():
        for _ in range(20):
            for one in broken:
                reader.read(one)
        gc.collect()
        return sys.getallocatedblocks()

    blocks()
    assert abs(blocks() - blocks()) < len(broken)


@SIGNALS
def test_hidden_fields_are_read_as_protobuf_reads_them(signal, compiled):
    """Unknown fields, nested values and repeated ones anywhere."""
    for plant in plants(signal):
        check(signal, plant.data)


def test_what_a_record_becomes(way):
    """Fields under their names, attributes as a dictionary, and what is absent as its default."""
    record = record_of(
        time_unix_nano=2**64 - 1,
        severity_number=9,
        severity_text="INFO",
        body=AnyValue(string_value="hello ☃"),
        attributes=attributes(text="a", whole=-7, real=1.5, flag=True, empty=""),
        trace_id=bytes(range(16)),
    )
    assert (record.time_unix_nano, record.severity_number, record.severity_text) == (2**64 - 1, 9, "INFO")
    assert record.body == "hello ☃"
    assert record.attributes == {"text": "a", "whole": -7, "real": 1.5, "flag": True, "empty": ""}
    assert record.attributes["flag"] is True
    assert record.is_flat is True
    assert (record.trace_id, record.span_id, record.event_name, record.flags) == (bytes(range(16)), b"", "", 0)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (AnyValue(), None),
        (AnyValue(bytes_value=b"\xff"), b"\xff"),
        (AnyValue(double_value=math.inf), math.inf),
        (array(), []),
        (array(AnyValue(int_value=1), AnyValue(), array()), [1, None, []]),
        (table(), {}),
        (table(KeyValue(key="a", value=AnyValue(int_value=1)), KeyValue(key="b")), {"a": 1, "b": None}),
        (table(KeyValue(key="a", value=AnyValue(int_value=1)), KeyValue(key="a")), {"a": None}),
    ],
    ids=repr,
)
def test_what_is_more_than_a_text_or_a_number_is_not_flat(way, value, expected):
    """It is there all the same, in an attribute as in a body."""
    record = record_of(body=value, attributes=[KeyValue(key="k", value=value), *attributes(plain=1)])
    assert record.body == expected
    assert record.attributes == {"k": expected, "plain": 1}
    assert record.is_flat is False


def test_records_share_no_dictionary(way):
    """They belong to whoever has asked for them, also those without attributes."""
    request = SCHEMAS[Signal.LOGS].request()
    scope = request.resource_logs.add().scope_logs.add()
    scope.log_records.add()
    scope.log_records.add()
    first, second = read_request(request).resource_logs[0].scope_logs[0].log_records
    first.attributes["a"] = 1
    assert second.attributes == {}


def test_presence_can_be_seen(way):
    """A value of zero is not an absent one, a metric is of one kind, and an absent message is an empty one."""
    request = SCHEMAS[Signal.METRICS].request()
    scope = request.resource_metrics.add().scope_metrics.add()
    scope.metrics.add().gauge.data_points.add(as_double=0)
    scope.metrics.add().exponential_histogram.data_points.add(scale=-3)
    gauge, histogram = read_request(request).resource_metrics[0].scope_metrics[0].metrics
    assert (gauge.gauge.data_points[0].as_double, gauge.gauge.data_points[0].as_int, gauge.sum) == (0.0, None, None)
    point = histogram.exponential_histogram.data_points[0]
    assert (point.scale, point.sum, point.positive.offset, point.positive.bucket_counts) == (-3, None, 0, ())


def test_resources_and_scopes_are_bytes(way):
    """Of their messages, which are read apart."""
    request = logs_request(1)
    request.resource_logs[0].scope_logs[0].scope.name = "lib"
    (group,) = read_request(request).resource_logs
    assert read_resource(group.resource).attributes["service.name"] == "api"
    assert read_scope(group.scope_logs[0].scope).name == "lib"
    assert read_scope(b"").attributes == {}


def test_many_names_stay_apart(way):
    """More than are remembered, some of them long, and twice each."""
    names = [f"{'n' * (number % 90)}{number}" for number in range(5000)]
    found = record_of(attributes=attributes(**dict.fromkeys(names, 1))).attributes
    assert list(found) == names
    assert list(record_of(attributes=attributes(**dict.fromkeys(names, 1))).attributes) == names


def test_bytes_that_are_no_request_are_refused(way):
    """As everywhere."""
    with pytest.raises(Permanent, match="not an OTLP logs request"):
        read(Batch(Signal.LOGS, b"\xff", context=BatchContext()))
