"""The kernel's judgement of requests, held to the decoder and the rules that it goes before."""

import itertools
import math
import os
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.otlp import logs_request, metrics_request, traces_request
from support.otlp_canary import delimited, plants
from support.otlp_strategies import mutations, requests

from sidecar import SCHEMAS, Batch, BatchContext, Permanent, Signal, kernel
from sidecar.net.salvage import mend, receive
from sidecar.net.salvage.sound import count_sound

SIGNALS = pytest.mark.parametrize("signal", list(Signal))
REQUESTS = {Signal.TRACES: traces_request, Signal.LOGS: logs_request, Signal.METRICS: metrics_request}

TRACE_ID = bytes(range(1, 17))
SPAN_ID = bytes(range(1, 9))


@pytest.fixture(autouse=True)
def compiled(request):
    """Skip what there is no kernel for."""
    if kernel.module is None and request.function is not test_the_kernel_is_there_where_it_can_be:
        pytest.skip(f"no kernel: {kernel.WHY_NOT}")


def check(signal, data):
    """What is sound for the kernel is sound for the oracle, with as many items. Returns whether it is."""
    items = count_sound(signal, data)
    if items is None:
        return False
    result = mend(signal, data)
    assert (result.data, result.rejected, dict(result.repaired)) == (data, 0, {})
    assert len(Batch(signal, message=result.message, context=BatchContext())) == items
    return True


def sound(request):
    """Whether the kernel takes a request for sound; what it says is checked."""
    signal = next(signal for signal, schema in SCHEMAS.items() if isinstance(request, schema.request))
    return check(signal, request.SerializeToString())


def test_the_kernel_is_there_where_it_can_be():
    """An installation with a compiler has it, so that the other tests here say something."""
    assert kernel.module is not None or shutil.which("cc") is None or os.environ.get("SIDECAR_KERNEL") == "off"


@SIGNALS
def test_an_ordinary_request_is_sound_and_not_decoded(signal):
    """Its bytes and its count are all that is known of it."""
    data = REQUESTS[signal](3).SerializeToString()

    received = receive(signal, data)

    assert (received.message, received.data, received.rejected) == (None, data, 0)
    assert received.items == len(Batch(signal, data, context=BatchContext())) > 2


@SIGNALS
@given(data=st.data())
def test_any_message_is_judged_as_the_oracle_does(signal, data):
    """Whatever fields are set, and to what."""
    sound(data.draw(requests(signal)))


@SIGNALS
@given(data=st.data())
def test_mutated_bytes_are_judged_as_the_oracle_does(signal, data):
    """What the kernel takes for sound never differs from what the decoder reads."""
    request = data.draw(st.just(REQUESTS[signal](2)) | requests(signal))
    check(signal, data.draw(mutations(request.SerializeToString())))


@SIGNALS
@given(data=st.binary())
def test_any_bytes_are_judged_as_the_oracle_does(signal, data):
    """Most are not a request; some are an empty one with fields of its future."""
    check(signal, data)


def test_text_is_utf8_as_the_oracle_has_it():
    """Each first byte, with others about the borders of what may follow it, by itself and within a text."""
    others = (b"", b"\x7f", b"\x80", b"\x8f", b"\x90", b"\x9f", b"\xa0", b"\xbf", b"\xc0")
    for lead, second, third, fourth in itertools.product(range(128, 256), others, others[:4], others[:4]):
        character = bytes([lead]) + second + third + fourth
        try:
            character.decode()
            is_text = True
        except UnicodeDecodeError:
            is_text = False
        for text in (character, b"12345678" + character + b"1"):
            for fields in (delimited(3, text), attribute(text, b"v"), attribute(b"k", text), attribute(text, text)):
                assert (count_sound(Signal.LOGS, log_record(fields)) == 1) is is_text, text


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 16, 123, 124, 125, 126, 127, 128, 129, 300])
def test_texts_of_any_size_are_judged_as_the_oracle_does(size):
    """About the sizes up to which attributes are seen at a glance, with any byte of them changed."""
    for fields in (attribute(b"k" * size, b"v"), attribute(b"k", b"v" * size), attribute(b"k" * size, b"v" * size)):
        data = log_record(fields)
        assert check(Signal.LOGS, data)
        for at in range(len(data)):
            for bit in (1, 2, 128):
                check(Signal.LOGS, data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :])


@SIGNALS
def test_every_single_byte_counts(signal):
    """An ordinary request with any one byte changed, or cut off anywhere."""
    data = REQUESTS[signal](1).SerializeToString()
    judged = [
        check(signal, changed)
        for at in range(len(data))
        for changed in (data[:at], *(data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :] for bit in (1, 2, 4, 128)))
    ]

    assert {True, False} == set(judged)


@SIGNALS
def test_hidden_fields_pass_as_before(signal):
    """Unknown fields, nested values and repeated ones anywhere."""
    for plant in plants(signal):
        check(signal, plant.data)


def spans(**settings):
    """A request with one span."""
    request = SCHEMAS[Signal.TRACES].request()
    request.resource_spans.add().scope_spans.add().spans.add(**{"trace_id": TRACE_ID, "span_id": SPAN_ID, **settings})
    return request


def points(kind, **settings):
    """A request with one data point."""
    request = SCHEMAS[Signal.METRICS].request()
    metric = request.resource_metrics.add().scope_metrics.add().metrics.add(name="m")
    getattr(metric, kind).data_points.add(**{"time_unix_nano": 1, **settings})
    return request


def record(**settings):
    """A request with one log record."""
    request = SCHEMAS[Signal.LOGS].request()
    request.resource_logs.add().scope_logs.add().log_records.add(**settings)
    return request


def log_record(fields):
    """A request with one log record of these bytes."""
    return delimited(1, delimited(2, delimited(2, fields)))


def attribute(key, text):
    """The field of a record that holds an attribute of these bytes."""
    return delimited(6, delimited(1, key) + delimited(2, delimited(1, text)))


LINK = {"trace_id": TRACE_ID, "span_id": SPAN_ID}
POINT = {"as_int": 1}


@pytest.mark.parametrize(
    ("request_", "is_sound"),
    [
        (spans(), True),
        (spans(trace_id=b""), False),
        (spans(trace_id=bytes(16)), False),
        (spans(trace_id=TRACE_ID[1:]), False),
        (spans(span_id=b""), False),
        (spans(span_id=bytes(8)), False),
        (spans(span_id=TRACE_ID), False),
        (spans(parent_span_id=SPAN_ID), True),
        (spans(parent_span_id=bytes(8)), False),
        (spans(parent_span_id=b"x"), False),
        (spans(links=[LINK, LINK]), True),
        (spans(links=[LINK, {**LINK, "span_id": b""}]), False),
        (spans(links=[{**LINK, "trace_id": bytes(16)}]), False),
        (record(), True),
        (record(trace_id=TRACE_ID, span_id=SPAN_ID), True),
        (record(trace_id=bytes(16)), False),
        (record(span_id=b"x"), False),
        (points("gauge", **POINT), True),
        (points("sum", as_double=0), True),
        (points("gauge", **POINT, time_unix_nano=0), False),
        (points("gauge"), False),
        (points("gauge", **POINT, exemplars=[{"as_int": 1, **LINK}]), True),
        (points("gauge", **POINT, exemplars=[{**LINK}]), False),
        (points("gauge", **POINT, exemplars=[{"as_int": 1, "span_id": bytes(8)}]), False),
        (points("histogram"), True),
        (points("histogram", bucket_counts=[1]), True),
        (points("histogram", explicit_bounds=[1]), False),
        (points("histogram", bucket_counts=[1, 1, 1], explicit_bounds=[-math.inf, math.inf]), True),
        (points("histogram", bucket_counts=[1, 1, 1], explicit_bounds=[1, 1]), False),
        (points("histogram", bucket_counts=[1, 1], explicit_bounds=[math.nan]), False),
        (points("histogram", bucket_counts=[1, 1], explicit_bounds=[1], time_unix_nano=0), False),
        (points("exponential_histogram", positive={"bucket_counts": [0, 1, 2**64 - 1], "offset": -5}), True),
        (points("exponential_histogram", time_unix_nano=0), False),
        (points("summary", quantile_values=[{"quantile": 1, "value": math.nan}, {}]), True),
        (points("summary", quantile_values=[{"quantile": 1.1}]), False),
        (points("summary", quantile_values=[{"quantile": math.nan}]), False),
        (points("summary", quantile_values=[{"value": -1}]), False),
        (points("summary", time_unix_nano=0), False),
    ],
    ids=lambda value: str(value).replace("\n", " ") if not isinstance(value, bool) else None,
)
def test_rules_are_those_of_the_oracle(request_, is_sound):
    """Each of them is asked, and what is sound is seen to be."""
    assert sound(request_) is is_sound


def test_what_comes_twice_or_empty_is_a_doubt():
    """Of a field that is no list decoders take the last, or merge them; another kind of a metric replaces the first."""
    span = delimited(1, TRACE_ID) + delimited(2, SPAN_ID)
    gauge = delimited(5, delimited(1, b"\x19" + SPAN_ID + b"\x31" + SPAN_ID))
    for signal, once, doubtful in (
        (Signal.TRACES, span, span + delimited(1, b"")),
        (Signal.TRACES, span, span + delimited(2, SPAN_ID)),
        (Signal.METRICS, gauge, gauge + gauge),
        (Signal.TRACES, span, delimited(1, b"") + delimited(2, SPAN_ID)),
        (Signal.METRICS, gauge, gauge + delimited(7, b"")),
    ):
        assert check(signal, delimited(1, delimited(2, delimited(2, once))))
        assert not check(signal, delimited(1, delimited(2, delimited(2, doubtful))))


@pytest.mark.parametrize("depth", [10, 64, 65, 99, 100, 101, 10_001])
def test_depth_is_bounded(depth):
    """A value within values is sound or not; its depth costs neither the stack nor a wrong answer."""
    value = b""
    for number in range(depth - 5):  # within the request, its resource, scope and record, and the body
        value = delimited((5, 1)[(depth - number) % 2], value)

    assert check(Signal.LOGS, log_record(delimited(5, value))) is (depth <= 64)


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a",
        b"\x0a\x05abc",
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"\x00\x00",
        b"\x0b\x0c",
        b"\x0f",
        b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x00",
        b"\x0a\x82\x00\x12\x00",
        b"\x09abcdefg",
        b"\x15abc",
    ],
)
@SIGNALS
def test_broken_frames_are_a_doubt(signal, data):
    """Lengths beyond the end, numbers without an end, groups, and longer forms of numbers than they need."""
    assert count_sound(signal, data) is None


def test_what_is_no_request_is_refused_as_before():
    """The oracle says why."""
    with pytest.raises(Permanent, match="not an OTLP logs request"):
        receive(Signal.LOGS, b"\x0a\x05abc")
