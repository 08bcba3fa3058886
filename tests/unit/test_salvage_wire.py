"""Salvage of requests that protobuf refuses to decode: what is mended, what is left out alone, what is refused."""

import time

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from support.otlp import logs_request, metrics_request, traces_request
from support.otlp_strategies import requests

from sidecar import SCHEMAS, Permanent, Signal
from sidecar.net.salvage import mend, repair
from sidecar.net.wire import BrokenFrame, delimited, frames

REQUESTS = {Signal.TRACES: traces_request, Signal.LOGS: logs_request, Signal.METRICS: metrics_request}
SIGNALS = pytest.mark.parametrize("signal", list(Signal))

# In place of these bytes a test puts others of the same length, so that no length around them is wrong.
MARK = "MARKMARK"
BAD_TEXTS = [b"\xff" * 8, b"MARK\xc3\x28RK", b"MARK\xed\xa0\x80K", b"\xc0\x80MARKMA", b"MARKMAR\xe2"]


def wrapped(*records, field=2):
    """Serialized records within a scope, a resource and a request."""
    return delimited(
        b"\x0a", delimited(b"\x12", b"".join(delimited(bytes([field << 3 | 2]), each) for each in records))
    )


def spans(count=3, **settings):
    """Serialized spans."""
    scope = traces_request(count, **settings).resource_spans[0].scope_spans[0]
    return [span.SerializeToString() for span in scope.spans]


def left(result):
    """The records that are left, serialized."""
    return [
        record.SerializeToString()
        for resource in getattr(result.message, SCHEMAS[result_signal(result)].resources)
        for scope in getattr(resource, SCHEMAS[result_signal(result)].scopes)
        for record in getattr(scope, SCHEMAS[result_signal(result)].records)
    ]


def result_signal(result):
    """The signal of a request."""
    return next(signal for signal, schema in SCHEMAS.items() if isinstance(result.message, schema.request))


@pytest.mark.parametrize("bad", BAD_TEXTS)
@SIGNALS
def test_text_that_is_not_utf8_is_mended(signal, bad):
    """In the resource, in the scope and in items, wherever there is text; nothing else changes."""
    request = REQUESTS[signal](3)
    resource = getattr(request, SCHEMAS[signal].resources)[0]
    scope = getattr(resource, SCHEMAS[signal].scopes)[0]
    record = getattr(scope, SCHEMAS[signal].records)[-1]
    item = record.sum.data_points[1] if signal is Signal.METRICS else record
    resource.schema_url = scope.schema_url = scope.scope.version = MARK
    for holder in (resource.resource, scope.scope, item):
        nested = holder.attributes.add(key=MARK).value.array_value.values.add().kvlist_value.values.add(key=MARK)
        nested.value.SetInParent()
    data = request.SerializeToString()

    result = mend(signal, data.replace(MARK.encode(), bad))
    assert (result.rejected, dict(result.repaired)) == (0, {"utf8": data.count(MARK.encode())})
    assert result.message == type(request).FromString(result.data)
    mended = bad.decode(errors="replace")
    assert str(result.message).replace(str_of(mended), MARK) == str(request)


def str_of(text):
    """A text as protobuf's text format writes it."""
    return str(LogRecord(severity_text=text)).removeprefix('severity_text: "').removesuffix('"\n')


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"\x0a\x10", "malformed"),  # cut off
        (b"\x02\x00", "malformed"),  # field number 0
        (b"\x0b\x08\x01", "malformed"),  # a group without its end
        (b"\x0f\x00", "malformed"),  # no such wire type
        (b"\x80" * 11, "malformed"),  # a tag without end
        (b"\x4a\x02\x0a\x09", "malformed"),  # cut off within an attribute
        (b"\x2a\x01\xff\x38\x01", "wrong_type"),  # bad text, and a time that is a varint
    ],
)
def test_an_item_that_cannot_be_mended_is_left_out_alone(bad, reason):
    """Its neighbours stay as they are."""
    good = spans()
    result = mend(Signal.TRACES, wrapped(good[0], bad, *good[1:]))
    assert left(result) == good
    assert (result.rejected, dict(result.reasons)) == (1, {reason: 1})
    assert result.explanation.startswith("1 span rejected: ")


@pytest.mark.parametrize("where", range(9))
def test_bad_items_anywhere(where):
    """First, last, next to each other."""
    good = spans(8)
    result = mend(Signal.TRACES, wrapped(*good[:where], b"\x0a\x10", b"\x0a\x11", *good[where:]))
    assert (left(result), result.rejected) == (good, 2)


def test_a_bad_data_point_is_left_out_alone():
    """The metric and its other points stay."""
    request = metrics_request(3)
    points = [
        point.SerializeToString() for point in request.resource_metrics[0].scope_metrics[0].metrics[0].sum.data_points
    ]
    kept = b"".join(delimited(b"\x0a", point) for point in points)
    metric = delimited(b"\x0a", b"requests") + delimited(
        b"\x3a", kept + delimited(b"\x0a", b"\x3a\x09") + b"\x10\x02\x18\x01"
    )
    result = mend(Signal.METRICS, wrapped(metric))
    assert result.message.resource_metrics[0].scope_metrics == request.resource_metrics[0].scope_metrics
    assert dict(result.reasons) == {"malformed": 1}


def test_what_cannot_be_mended_around_items_costs_those_items():
    """As many as can be counted, and not those of the next resource."""
    good = spans(3)
    bad_resource = delimited(b"\x0a", delimited(b"\x0a", b"\x0a\x55") + wrapped(*spans(2))[2:])
    bad_scope = delimited(b"\x0a", delimited(b"\x12", delimited(b"\x12", good[0]) + b"\x12\x7f"))
    result = mend(Signal.TRACES, bad_resource + wrapped(*good) + bad_scope)
    assert left(result) == good
    assert dict(result.reasons) == {"malformed": 3}


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a",
        b"\x0a\x05abc",
        b"\x02\x00",
        b"\x0b\x08\x01",
        b"\x0b\x14",
        b"\x0c",
        b"\x80" * 20,
        b'{"resourceSpans":[]}',
        wrapped(b"\x0a\x10"),
        wrapped(*spans())[:-1],
        wrapped(*spans()) + b"\x0a\x05abc",
    ],
)
@SIGNALS
def test_what_is_no_request_is_refused(signal, data):
    """Cut off, broken at the top, or without anything that could be kept."""
    with pytest.raises(Permanent, match=f"not an OTLP {signal.value} request: "):
        mend(signal, data)


def nested(levels):
    """A serialized log record whose body is so many nested arrays."""
    body = b""
    for _ in range(levels):
        body = delimited(b"\x2a", delimited(b"\x0a", body))
    return delimited(b"\x2a", body)


@pytest.mark.parametrize("levels", [49, 50, 100, 5000])
def test_what_is_nested_too_deeply_is_left_out_alone(levels):
    """As deep as protobuf goes is fine; the first level beyond is not."""
    sound = nested(48)
    result = mend(Signal.LOGS, wrapped(sound, nested(levels), sound))
    assert left(result) == [sound, sound]
    assert dict(result.reasons) == {"too_deep": 1}


def old_request(*, also_new):
    """A request as clients made it until OTLP 0.19, one of its texts not UTF-8."""
    entry = traces_request(2, name=MARK).resource_spans[0]
    scopes = b"".join(scope.SerializeToString() for scope in entry.scope_spans)
    old = delimited(b"\x0a", entry.resource.SerializeToString()) + delimited(b"\xc2\x3e", scopes)
    return delimited(b"\x0a", old + (delimited(b"\x12", scopes) if also_new else b""))


def test_scopes_of_old_clients_are_moved():
    """From field 1000, which protobuf keeps as unknown: the request would look empty."""
    result = mend(Signal.TRACES, old_request(also_new=False))
    assert result.message == traces_request(2, name=MARK)
    assert result.message == ExportTraceServiceRequest.FromString(result.data)
    assert (result.rejected, dict(result.repaired)) == (0, {"instrumentation_library": 1})


def test_scopes_of_old_clients_are_mended_too():
    """What was in an unknown field is looked at once it is a known one."""
    data = old_request(also_new=False).replace(MARK.encode(), b"\xff" * len(MARK))
    result = mend(Signal.TRACES, data + wrapped(spans(1)[0]))
    assert result.message.resource_spans[0] == traces_request(2, name="\ufffd" * len(MARK)).resource_spans[0]
    assert dict(result.repaired) == {"instrumentation_library": 1, "utf8": 2}


def test_scopes_of_a_time_of_change_are_not_doubled():
    """Who fills both fields, for old and new receivers, means the same by them."""
    data = old_request(also_new=True)
    result = mend(Signal.TRACES, data)
    assert (result.data, len(left(result))) == (data, 2)


@st.composite
def mutations(draw, data):
    """Bytes with some of them changed, left out or doubled."""
    mutated = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(mutated)))
        mutated[place : place + draw(st.integers(0, 2))] = draw(st.binary(max_size=2))
    return bytes(mutated)


@SIGNALS
@given(data=st.data())
def test_neighbours_of_anything_survive(signal, data):
    """Whatever stands where a record should, those around it stay as they are."""
    good = left(mend(signal, REQUESTS[signal](1).SerializeToString()))
    bad = data.draw(st.binary(max_size=40) | mutations(good[0]))
    kept = left(mend(signal, wrapped(*good, bad, *good)))
    assert (kept[0], kept[-1]) == (good[0], good[0])
    assert len(kept) in {2, 3}


@SIGNALS
@given(data=st.data())
def test_any_request_is_answered(signal, data):
    """Mutated anywhere: refused, or taken in so that what is left is sound, as message and as bytes."""
    request = data.draw(requests(signal)).SerializeToString()
    if request:
        request = data.draw(mutations(request))
    try:
        result = mend(signal, request)
    except Permanent:
        return
    as_bytes = result.message.SerializeToString(deterministic=True)
    if result.data is not None:
        assert SCHEMAS[signal].request.FromString(result.data).SerializeToString(deterministic=True) == as_bytes
    again = mend(signal, as_bytes)
    assert (again.data, again.rejected, again.repaired) == (as_bytes, 0, {})


@SIGNALS
@given(data=st.data())
def test_the_walk_takes_what_protobuf_takes(signal, data):
    """Otherwise a sound record could be left out together with a bad one."""
    request = data.draw(st.binary(max_size=20) | requests(signal).map(bytes_of).filter(bool).flatmap(mutations))
    try:
        SCHEMAS[signal].request.FromString(request)
    except DecodeError:
        return
    assert b"".join(request[frame.start : frame.end] for frame in frames(request)) == request


def bytes_of(message):
    """The serialized message."""
    return message.SerializeToString()


@pytest.mark.parametrize(
    "data",
    [
        b"\x08\x05",
        b"\x09" + bytes(8),
        b"\x0d" + bytes(4),
        b"\x0b\x08\x01\x11" + bytes(8) + b"\x1a\x01x\x25" + bytes(4) + b"\x2b\x2c\x0c",
        b"\xf8\xff\xff\xff\x0f\x01",
        b"\x8a\x00\x81\x00x",
    ],
)
def test_frames_of_every_kind(data):
    """Each wire type, nested groups, the largest field number, varints longer than they need to be."""
    assert [(frame.start, frame.end) for frame in frames(data)] == [(0, len(data))]


@pytest.mark.parametrize(
    "data",
    [
        b"\x08",
        b"\x09\x00",
        b"\x0d",
        b"\x0a",
        b"\x0a\x01",
        b"\x0b",
        b"\x0b\x14",
        b"\x0b\x0f",
        b"\x0b\x0a\x05\x0c",
        b"\x0e",
        b"\x0c",
    ],
)
def test_broken_frames(data):
    """Cut off, or with a tag that is none."""
    with pytest.raises(BrokenFrame):
        list(frames(data))


def test_a_batch_in_which_every_text_is_bad():
    """As of a program that writes Latin-1: all is mended, in a fraction of a second."""
    request = traces_request(8192, name=MARK, **{f"k{number}": MARK for number in range(8)})
    data = request.SerializeToString().replace(MARK.encode(), b"\xe4" * len(MARK))
    start = time.process_time()
    result = mend(Signal.TRACES, data)
    assert time.process_time() - start < 5
    assert (len(left(result)), result.rejected, dict(result.repaired)) == (8192, 0, {"utf8": 9 * 8192})


def test_one_bad_record_among_many(monkeypatch):
    """Is found by halves: the others are not walked through one by one."""
    walked = []
    monkeypatch.setattr(repair, "frames", lambda data: walked.append(data) or frames(data))
    good = spans(1000)
    bad = good[0].replace(b"GET /", b"GET \xff")
    assert mend(Signal.TRACES, wrapped(*good, bad, *good)).repaired == {"utf8": 1}
    assert len(walked) < 20


def test_what_is_broken_nearly_everywhere_is_refused(monkeypatch):
    """Looking at each field of a large request that is all wrong would take longer than it is worth."""
    monkeypatch.setattr(repair, "_MAX_FIELDS", 200)
    good, bad = spans(20), [b"\x2a\x01\xff" + b"\x38\x01" * 50] * 10
    result = mend(Signal.TRACES, wrapped(*good, *bad))
    assert (left(result), result.rejected) == (good, 10)
    with pytest.raises(Permanent):
        mend(Signal.TRACES, wrapped(*good * 10, *bad))
