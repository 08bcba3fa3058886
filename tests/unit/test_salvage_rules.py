"""Salvage of requests that decode but break OTLP's rules: what is mended, what is left out, what the client is told."""

import math

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from support.otlp import logs_request, metrics_request, traces_request

from sidecar import SCHEMAS, Permanent, Signal
from sidecar.net import otlp_json, salvage
from sidecar.net.salvage import mend

TRACE_ID = bytes(range(1, 17))
SPAN_ID = bytes(range(1, 9))
IDS = {"trace_id": TRACE_ID, "span_id": SPAN_ID}


def received(request):
    """What is left of a request."""
    signal = next(signal for signal, schema in SCHEMAS.items() if isinstance(request, schema.request))
    return mend(signal, request.SerializeToString())


def spans(*settings):
    """A request with these spans, named by their place, between two sound ones."""
    request = ExportTraceServiceRequest()
    scope = request.resource_spans.add().scope_spans.add()
    for number, each in enumerate([{}, *settings, {}]):
        scope.spans.add(**{**IDS, "start_time_unix_nano": 1, "name": str(number), **each})
    return request


def names(result):
    """The names of the spans that are left."""
    return [span.name for span in result.message.resource_spans[0].scope_spans[0].spans]


def record(**settings):
    """A request with one log record, and what becomes of the record."""
    request = ExportLogsServiceRequest()
    request.resource_logs.add().scope_logs.add().log_records.add(**settings)
    result = received(request)
    return result, result.message.resource_logs[0].scope_logs[0].log_records[0]


def points(kind, *settings):
    """What becomes of data points of one kind; a point without a time gets one."""
    request = ExportMetricsServiceRequest()
    metric = request.resource_metrics.add().scope_metrics.add().metrics.add(name="m")
    for each in settings:
        getattr(metric, kind).data_points.add(**{"time_unix_nano": 1, **each})
    result = received(request)
    return result, getattr(result.message.resource_metrics[0].scope_metrics[0].metrics[0], kind).data_points


@pytest.mark.parametrize("request_of", [traces_request, logs_request, metrics_request])
def test_a_sound_request_passes_untouched(request_of):
    """The very bytes that came, and the message they say."""
    data = request_of(3).SerializeToString()
    signal = {traces_request: Signal.TRACES, logs_request: Signal.LOGS, metrics_request: Signal.METRICS}[request_of]
    result = mend(signal, data)
    assert result.data is data
    assert result.message == request_of(3)
    assert (result.rejected, dict(result.reasons), dict(result.repaired), result.explanation) == (0, {}, {}, "")


@pytest.mark.parametrize("signal", list(Signal))
def test_an_empty_request_is_a_request(signal):
    """Of no bytes, and of envelopes without items."""
    assert mend(signal, b"").data == b""
    assert mend(signal, b"\x0a\x00").data == b"\x0a\x00"


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({"trace_id": b""}, "trace_id"),
        ({"trace_id": bytes(16)}, "trace_id"),
        ({"trace_id": TRACE_ID[:15]}, "trace_id"),
        ({"trace_id": TRACE_ID + b"\x01"}, "trace_id"),
        ({"span_id": b""}, "span_id"),
        ({"span_id": bytes(8)}, "span_id"),
        ({"span_id": TRACE_ID}, "span_id"),
        ({"parent_span_id": SPAN_ID[:7]}, "parent_span_id"),
        ({"parent_span_id": TRACE_ID}, "parent_span_id"),
    ],
)
def test_a_span_with_bad_ids_is_rejected_alone(bad, reason):
    """Its neighbours stay."""
    result = received(spans(bad))
    assert names(result) == ["0", "2"]
    assert (result.rejected, dict(result.reasons), result.data) == (1, {reason: 1}, None)


def test_the_client_is_told_why():
    """In a sentence for each reason, with its count."""
    result = received(spans({"trace_id": b"x"}, {"trace_id": b""}, {"span_id": b""}))
    assert result.explanation == (
        "2 spans rejected: trace_id must be 16 bytes (in JSON 32 hex digits) and not all zeros; "
        "1 span rejected: span_id must be 8 bytes (in JSON 16 hex digits) and not all zeros"
    )


def test_a_parent_of_zeros_is_no_parent():
    """Some SDKs write it for roots."""
    result = received(spans({"parent_span_id": bytes(8)}, {"parent_span_id": SPAN_ID}))
    kept = result.message.resource_spans[0].scope_spans[0].spans
    assert [span.parent_span_id for span in kept] == [b"", b"", SPAN_ID, b""]
    assert (result.rejected, dict(result.repaired), result.data) == (0, {"parent_span_id": 1}, None)


def test_a_bad_link_is_left_out_alone():
    """The span and its other links stay, in order."""
    good = [{"trace_id": TRACE_ID, "span_id": bytes([n]) * 8} for n in (1, 2, 3)]
    bad = [{"trace_id": b"x", "span_id": SPAN_ID}, {"trace_id": TRACE_ID, "span_id": bytes(8)}, {}]
    result = received(spans({"links": [good[0], bad[0], good[1], bad[1], bad[2], good[2]]}, {"links": good}))
    left = [[link.span_id[0] for link in span.links] for span in result.message.resource_spans[0].scope_spans[0].spans]
    assert left == [[], [1, 2, 3], [1, 2, 3], []]
    assert (result.rejected, dict(result.repaired)) == (0, {"link": 3})


def test_many_bad_spans_among_many_good_ones():
    """Are taken out in linear time, and the others keep their order."""
    request = spans(*({"trace_id": b"x"} if number % 2 else {} for number in range(20_000)))
    result = received(request)
    assert (len(names(result)), result.rejected) == (10_002, 10_000)
    assert names(result) == sorted(names(result), key=int)


def test_ids_in_json_that_are_not_hex():
    """Cost their span, not the request."""
    body = otlp_json.encode(spans({}, {})).replace(b'"0102030405060708","name":"1"', b'"Aw==","name":"1"')
    result = mend(Signal.TRACES, otlp_json.decode(Signal.TRACES, body).data)
    assert names(result) == ["0", "2", "3"]
    assert dict(result.reasons) == {"span_id": 1}


@pytest.mark.parametrize(
    ("bad", "left"),
    [
        ({"trace_id": bytes(16), "span_id": bytes(8)}, (b"", b"")),
        ({"trace_id": b"abc", "span_id": SPAN_ID}, (b"", SPAN_ID)),
        ({"trace_id": TRACE_ID, "span_id": b"abc"}, (TRACE_ID, b"")),
        ({"trace_id": TRACE_ID, "span_id": bytes(8)}, (TRACE_ID, b"")),
    ],
)
def test_a_log_record_with_bad_ids_is_kept_without_them(bad, left):
    """It belongs to no trace (OTLP, LogRecord)."""
    result, kept = record(severity_text="kept", **bad)
    assert (kept.trace_id, kept.span_id, kept.severity_text) == (*left, "kept")
    assert (result.rejected, result.data, sum(result.repaired.values())) == (0, None, left.count(b""))


@pytest.mark.parametrize("ids", [{}, {"span_id": SPAN_ID}, {"trace_id": TRACE_ID}, IDS])
def test_a_log_record_may_have_ids_or_not(ids):
    """Each by itself."""
    result, _ = record(**ids)
    assert result.data is not None


@pytest.mark.parametrize("kind", ["gauge", "sum"])
def test_numbers(kind):
    """A point needs a time and a value, or to say that there is none on purpose."""
    result, kept = points(
        kind,
        {"as_int": 1},
        {"as_int": 0},
        {"as_double": 0},
        {"as_double": math.nan},
        {"flags": 1},
        {},
        {"flags": 2},
        {"as_int": 2, "time_unix_nano": 0},
    )
    assert [point.WhichOneof("value") for point in kept] == ["as_int", "as_int", "as_double", "as_double", None]
    assert (result.rejected, dict(result.reasons)) == (3, {"value": 2, "time": 1})
    assert result.explanation.startswith("2 data points rejected: a value must be set")


@pytest.mark.parametrize(
    ("counts", "bounds", "sound"),
    [
        ([], [], True),
        ([5], [], True),
        ([1, 2], [0.5], True),
        ([1, 2, 3], [-math.inf, math.inf], True),
        ([1], [0.5], False),
        ([], [0.5], False),
        ([1, 2, 3], [0.5], False),
        ([1, 2, 3], [1, 1], False),
        ([1, 2, 3], [2, 1], False),
        ([1, 2], [math.nan], False),
        ([1, 2, 3], [1, math.nan], False),
    ],
)
def test_buckets(counts, bounds, sound):
    """One count more than bounds, or neither; bounds increase."""
    good = {"bucket_counts": [1, 2], "explicit_bounds": [7.0]}
    result, kept = points("histogram", good, {"bucket_counts": counts, "explicit_bounds": bounds}, good)
    assert (len(kept), dict(result.reasons)) == ((3, {}) if sound else (2, {"buckets": 1}))


@pytest.mark.parametrize("kind", ["histogram", "exponential_histogram", "summary"])
def test_every_kind_of_point_needs_a_time(kind):
    """Zero is none."""
    result, kept = points(kind, {"count": 1}, {"count": 2, "time_unix_nano": 0}, {"count": 3})
    assert [point.count for point in kept] == [1, 3]
    assert dict(result.reasons) == {"time": 1}


@pytest.mark.parametrize(
    ("quantile", "value", "sound"),
    [
        (0, 0, True),
        (1, 5, True),
        (0.5, math.nan, True),
        (1.01, 1, False),
        (-0.1, 1, False),
        (math.nan, 1, False),
        (0.5, -1, False),
    ],
)
def test_quantiles(quantile, value, sound):
    """From 0 to 1, of values that are not negative."""
    result, kept = points("summary", {"quantile_values": [{"quantile": quantile, "value": value}]})
    assert (len(kept), dict(result.reasons)) == ((1, {}) if sound else (0, {"quantiles": 1}))


@pytest.mark.parametrize("kind", ["gauge", "sum", "histogram", "exponential_histogram"])
def test_exemplars(kind):
    """One without a value is left out, one with bad ids stays without them, and the point stays."""
    value = {"as_int": 1} if kind in {"gauge", "sum"} else {}
    exemplars = [
        {"as_int": 1, **IDS},
        IDS,
        {"as_double": 2, "trace_id": bytes(16), "span_id": b"x"},
        {"as_int": 3},
    ]
    result, kept = points(kind, {**value, "exemplars": exemplars})
    assert [(each.as_int or each.as_double, each.trace_id, each.span_id) for each in kept[0].exemplars] == [
        (1, TRACE_ID, SPAN_ID),
        (2, b"", b""),
        (3, b"", b""),
    ]
    assert (result.rejected, dict(result.repaired)) == (0, {"exemplar": 1, "trace_id": 1, "span_id": 1})


def test_a_metric_without_data_is_left_out():
    """It holds no points to count."""
    request = metrics_request(2)
    request.resource_metrics[0].scope_metrics[0].metrics.add(name="nothing")
    result = received(request)
    assert result.message == metrics_request(2)
    assert (result.rejected, dict(result.repaired)) == (0, {"metric": 1})


def test_what_stays_as_it_is():
    """Doubled and empty keys, unset values, unknown enums and fields, odd times: forwarded, for others to judge."""
    request = spans({"kind": 99, "start_time_unix_nano": 5, "end_time_unix_nano": 1, "name": "", "flags": 1 << 31})
    span = request.resource_spans[0].scope_spans[0].spans[1]
    for key in ("k", "k", ""):
        span.attributes.add(key=key).value.SetInParent()
    data = request.SerializeToString() + b"\xf8\x07\x01"  # field 127, a varint
    assert mend(Signal.TRACES, data).data is data


def kvlist_logs():
    """Log records whose bodies decode as metrics' data."""
    request = logs_request(3)
    for each in request.resource_logs[0].scope_logs[0].log_records:
        each.body.kvlist_value.values.add(key="k")
    return request


@pytest.mark.parametrize("request_of", [lambda: spans({"name": "GET /"}), lambda: logs_request(3), kvlist_logs])
@pytest.mark.parametrize("meant_as", list(Signal))
def test_a_request_of_another_signal_is_noticed(request_of, meant_as):
    """Field numbers overlap, so that it may well decode; nothing of it is accepted in silence."""
    request = request_of()
    if isinstance(request, SCHEMAS[meant_as].request):
        return
    try:
        result = mend(meant_as, request.SerializeToString())
    except Permanent:
        return
    schema = SCHEMAS[meant_as]
    assert not getattr(getattr(getattr(result.message, schema.resources)[0], schema.scopes)[0], schema.records)
    assert result.rejected == result.reasons["wrong_type"] == 3
    assert "/v1/" in result.explanation


@pytest.mark.parametrize("meant_as", [Signal.TRACES, Signal.LOGS])
def test_metrics_sent_elsewhere_are_noticed(meant_as):
    """Each metric counts once, since its points are out of sight."""
    request = metrics_request(4)
    request.resource_metrics[0].scope_metrics[0].metrics.add(name="n", unit="1").histogram.data_points.add(
        time_unix_nano=1
    )
    result = mend(meant_as, request.SerializeToString())
    assert (result.rejected, "wrong_type" in result.reasons) == (2, True)


@pytest.mark.parametrize("signal", list(Signal))
def test_all_explanations_together_are_short(signal):
    """Clients are sure to read 1 KiB."""
    assert len(salvage._explain(signal, dict.fromkeys(salvage._EXPLANATIONS, 1_000_000))) <= 1024
