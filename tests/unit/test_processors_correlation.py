"""Correlation: the ids of a log record from its attributes and from the spans of its request."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.problems import ConfigError
from processors.correlation import Correlation
from sidecar import SCHEMAS, Batch, BatchContext, Permanent, Signal, kernel
from sidecar.testing import Bench

TRACE = bytes.fromhex("0123456789abcdef1122334455667788")
LOW = bytes(8) + TRACE[8:]
SPAN = bytes.fromhex("0000000000000099")
DECIMAL = str(int.from_bytes(TRACE[8:], "big"))


def logs(*attributes, **fields):
    """A logs batch; each record has these attributes, a dict, and these fields."""
    request = SCHEMAS[Signal.LOGS].request()
    scope = request.resource_logs.add().scope_logs.add()
    for of_record in attributes:
        record = scope.log_records.add(**fields)
        for key, content in of_record.items():
            value = record.attributes.add(key=key).value
            if isinstance(content, int):
                value.int_value = content
            else:
                value.string_value = content
    return Batch(Signal.LOGS, request.SerializeToString(), context=BatchContext())


def spans(*of_request, trace_id=TRACE, key="request.id"):
    """A traces batch; each span is its request, its span id and its start."""
    request = SCHEMAS[Signal.TRACES].request()
    scope = request.resource_spans.add().scope_spans.add()
    for name, span_id, start in of_request:
        span = scope.spans.add(trace_id=trace_id, span_id=bytes([span_id] * 8), start_time_unix_nano=start)
        span.attributes.add(key="http.route").value.string_value = "/"
        span.attributes.add(key=key).value.string_value = name
    return Batch(Signal.TRACES, request.SerializeToString(), context=BatchContext())


def records_of(batch):
    """All log records, from what leaves on the wire."""
    message = SCHEMAS[Signal.LOGS].request.FromString(batch.encode())
    return [
        record for resource in message.resource_logs for scope in resource.scope_logs for record in scope.log_records
    ]


def outcome(settings, attributes, **fields):
    """Trace id, span id and attributes of the record that leaves."""
    (record,) = records_of(Bench().make(Correlation, settings).process(logs(attributes, **fields)))
    left = {pair.key: pair.value.string_value or pair.value.int_value for pair in record.attributes}
    return record.trace_id, record.span_id, left


@pytest.mark.parametrize(
    ("attributes", "trace_id", "span_id"),
    [
        ({"trace_id": TRACE.hex(), "span_id": SPAN.hex()}, TRACE, SPAN),
        ({"trace_id": TRACE.hex().upper()}, TRACE, b""),
        ({"otel.trace_id": TRACE.hex(), "otel.span_id": SPAN.hex()}, TRACE, SPAN),
        ({"dd.trace_id": TRACE.hex(), "dd.span_id": "153"}, TRACE, SPAN),
        ({"dd.trace_id": DECIMAL, "dd.span_id": "153"}, LOW, SPAN),
        ({"dd.trace_id": int(DECIMAL), "dd.span_id": 153}, LOW, SPAN),
        ({"traceparent": f"00-{TRACE.hex()}-{SPAN.hex()}-01"}, TRACE, SPAN),
        # Sixteen digits are what the trace id beside them is.
        ({"trace_id": TRACE.hex(), "span_id": "1000000000000001"}, TRACE, bytes.fromhex("1000000000000001")),
        ({"dd.trace_id": TRACE.hex(), "dd.span_id": "1000000000000001"}, TRACE, (10**15 + 1).to_bytes(8, "big")),
        # The first in the given order counts, and the whole of a trace id before its half.
        ({"otel.trace_id": "f" * 32, "trace_id": TRACE.hex()}, TRACE, b""),
        ({"dd.trace_id": DECIMAL, "dd.span_id": "153", "otel.trace_id": TRACE.hex()}, TRACE, SPAN),
        ({"trace_id": TRACE.hex(), "dd.trace_id": DECIMAL, "dd.span_id": "153"}, TRACE, SPAN),
        ({"trace_id": "nonsense", "dd.trace_id": "0", "otel.trace_id": TRACE.hex()}, TRACE, b""),
    ],
)
def test_ids_are_read_from_attributes(attributes, trace_id, span_id):
    """Each form that loggers write becomes the record's own ids, and leaves the attributes."""
    assert outcome("", attributes) == (trace_id, span_id, {})


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"trace_id": ""},
        {"trace_id": "0" * 32},
        {"dd.trace_id": "0", "dd.span_id": "0"},
        {"dd.trace_id": str(2**64)},
        {"traceparent": f"ff-{TRACE.hex()}-{SPAN.hex()}-01"},
        {"traceparent": "00-xyz"},
        {"span_id": SPAN.hex()},
        {"trace_id": -5},
        {"other.trace_id": TRACE.hex()},
    ],
)
def test_what_is_no_id_stays(attributes):
    """Anything else is no correlation, and the record leaves as it came, byte for byte."""
    batch = logs(attributes)
    before = batch.encode()

    assert Bench().make(Correlation).process(batch).encode() is before


def test_a_record_with_a_trace_is_left_alone():
    """Its own ids hold; attributes beside them are not even removed."""
    attributes = {"trace_id": "f" * 32}

    assert outcome("", attributes, trace_id=TRACE, span_id=SPAN) == (TRACE, SPAN, attributes)


def test_ids_of_zeros_are_no_ids():
    """All-zero ids count as absent, in the record's own fields too."""
    assert outcome("", {"traceparent": f"00-{TRACE.hex()}-{SPAN.hex()}-00"}, trace_id=bytes(16), span_id=bytes(8)) == (
        TRACE,
        SPAN,
        {},
    )


def test_the_sampled_flag_comes_along():
    """A traceparent's flags become the record's."""
    batch = logs({"traceparent": f"00-{TRACE.hex()}-{SPAN.hex()}-01"})

    assert [record.flags for record in records_of(Bench().make(Correlation).process(batch))] == [1]


def test_sources_leave_together_and_the_rest_stays():
    """All attributes listed in `from` and the span ids beside them go; `keep_source` keeps them."""
    attributes = {"dd.trace_id": DECIMAL, "otel.trace_id": TRACE.hex(), "otel.span_id": SPAN.hex(), "component": "a"}

    assert outcome("", attributes)[2] == {"component": "a"}
    assert outcome("keep_source: true", attributes)[2] == attributes


def test_other_attributes_may_be_named():
    """`from` names what is looked at, whichever way it is spelled."""
    settings = "from: [traceId, ctx.trace]"

    assert outcome(settings, {"traceId": TRACE.hex(), "spanId": SPAN.hex(), "trace_id": "f" * 32}) == (
        TRACE,
        SPAN,
        {"trace_id": "f" * 32},
    )
    assert outcome(settings, {"ctx.trace": TRACE.hex(), "ctx.span": SPAN.hex()})[1] == SPAN


def test_ids_are_written_in_the_asked_forms():
    """For destinations that read attributes: OpenTelemetry's and Datadog's, in place of what stood there."""
    settings = "write: [otel, datadog]"

    assert outcome(settings, {"dd.trace_id": "wrong"}, trace_id=TRACE, span_id=SPAN)[2] == {
        "otel.trace_id": TRACE.hex(),
        "otel.span_id": SPAN.hex(),
        "dd.trace_id": TRACE.hex(),
        "dd.span_id": "153",
    }
    assert outcome("write: [datadog]", {"trace_id": LOW.hex()})[2] == {"dd.trace_id": DECIMAL}
    assert outcome(settings, {"component": "a"})[2] == {"component": "a"}


@given(st.binary(min_size=16, max_size=16).filter(any), st.binary(min_size=8, max_size=8).filter(any))
def test_what_is_written_can_be_read(trace_id, span_id):
    """Each form leads back to the ids that it was written from."""
    for form in ("otel", "datadog"):
        written = outcome(f"write: [{form}]", {}, trace_id=trace_id, span_id=span_id)[2]
        assert outcome("", written) == (trace_id, span_id, {})


def test_a_record_joins_the_newest_span_of_its_request():
    """Spans seen in the traces pipeline give their ids to later records with the same request, and keep the key."""
    bench = Bench()
    traces, records = bench.make(Correlation), bench.make(Correlation)
    batch = spans(("req-1", 1, 10), ("req-1", 2, 30), ("req-1", 3, 20), ("req-2", 4, 5))
    before = batch.encode()

    assert traces.process(batch).encode() is before
    joined = records_of(records.process(logs({"request.id": "req-1"}, {"request.id": "req-2"}, {"request.id": "?"})))

    assert [(r.trace_id, r.span_id) for r in joined] == [(TRACE, b"\2" * 8), (TRACE, b"\4" * 8), (b"", b"")]
    assert [pair.key for pair in joined[0].attributes] == ["request.id"]


def test_what_a_record_says_itself_comes_first():
    """Ids in attributes hold before those of the request."""
    bench = Bench()
    bench.make(Correlation).process(spans(("req-1", 1, 10)))

    batch = bench.make(Correlation).process(logs({"request.id": "req-1", "trace_id": "f" * 32}))

    assert [record.trace_id for record in records_of(batch)] == [b"\xff" * 16]


def test_spans_are_remembered_for_the_window():
    """Later records are not joined, and what is past is forgotten."""
    bench = Bench()
    correlation = bench.make(Correlation, "request_window: 10s")
    correlation.process(spans(("req-1", 1, 10)))

    def trace_id():
        return records_of(correlation.process(logs({"request.id": "req-1"})))[0].trace_id

    bench.clock.advance(10)
    assert trace_id() == TRACE
    bench.clock.advance(1)
    assert trace_id() == b""
    correlation.process(spans(("req-2", 1, 10)))
    assert len(correlation._requests) == 1


def test_an_old_span_does_not_hide_a_later_request():
    """What is past the window counts for nothing, even if it started later."""
    bench = Bench()
    correlation = bench.make(Correlation, "request_window: 10s")
    correlation.process(spans(("req-1", 1, 99)))
    bench.clock.advance(11)
    correlation.process(spans(("req-1", 2, 10)))

    assert records_of(correlation.process(logs({"request.id": "req-1"})))[0].span_id == b"\2" * 8


def test_only_so_many_requests_are_remembered(monkeypatch):
    """Memory is bounded: the least recently seen go first, and what is no request id is not kept."""
    monkeypatch.setattr("processors.correlation._MAX_REQUESTS", 3)
    correlation = Bench().make(Correlation)

    correlation.process(spans(*((f"req-{number}", 1, 1) for number in range(5)), ("x" * 200, 1, 1), ("", 1, 1)))

    assert list(correlation._requests._spans) == ["req-2", "req-3", "req-4"]


def test_components_share_only_with_themselves():
    """Another id, and another process, remember their own spans; another key joins by that."""
    bench = Bench()
    bench.make(Correlation, name="correlation/a").process(spans(("req-1", 1, 10)))
    by_job = bench.make(Correlation, "request_key: job", name="correlation/b")
    by_job.process(spans(("7", 1, 10), key="job"))

    def trace_id(correlation, key, value):
        return records_of(correlation.process(logs({key: value})))[0].trace_id

    assert trace_id(bench.make(Correlation, name="correlation/a"), "request.id", "req-1") == TRACE
    assert trace_id(Bench().make(Correlation, name="correlation/a"), "request.id", "req-1") == b""
    assert trace_id(by_job, "request.id", "req-1") == b""
    assert trace_id(by_job, "job", "7") == TRACE


def test_joining_can_be_switched_off():
    """Without a request key, spans aren't even decoded."""
    correlation = Bench().make(Correlation, "request_key: null")
    undecodable = Batch(Signal.TRACES, b"\xff", context=BatchContext())

    assert correlation.process(undecodable) is undecodable


def test_undecodable_bytes_are_refused():
    """Bytes that are no request, and in which there is something to do, are a permanent error."""
    with pytest.raises(Permanent):
        Bench().make(Correlation).process(Batch(Signal.LOGS, b"\xfftrace_id", context=BatchContext()))


@pytest.mark.parametrize(
    "batch",
    [
        logs({"trace_id": "1" * 32}, {"a": "b"}, trace_id=TRACE),
        logs({"a": "b", "span_id": "1" * 16}, {}),
        spans(("r1", 1, 1), key="other"),
    ],
    ids=["all have a trace", "none can be told its trace", "no span of a request"],
)
def test_what_needs_nothing_is_not_decoded(batch):
    """It leaves as the bytes that it came as."""
    if kernel.module is None:
        pytest.skip(f"no kernel: {kernel.WHY_NOT}")
    passed = Bench().make(Correlation).process(batch)
    assert passed is batch
    assert "message" not in repr(batch)


@pytest.mark.parametrize("has_kernel", [True, False])
def test_one_record_without_a_trace_is_found_among_others(monkeypatch, has_kernel):
    """Wherever it stands, with a kernel and without."""
    if not has_kernel:
        monkeypatch.setattr("processors.correlation._traced", lambda: None)
    request = logs(*[{"dd.trace_id": DECIMAL}] * 5).message
    records = request.resource_logs[0].scope_logs[0].log_records
    for index in (0, 1, 3, 4):
        records[index].trace_id = TRACE
    batch = Batch(Signal.LOGS, request.SerializeToString(), context=BatchContext())
    found = [record.trace_id for record in records_of(Bench().make(Correlation).process(batch))]
    assert found == [TRACE, TRACE, LOW, TRACE, TRACE]


@pytest.mark.parametrize(
    ("settings", "problem"), [("request_key: ''", "request_key.*null"), ("write: [zipkin]", "write.*otel")]
)
def test_wrong_settings_are_problems(settings, problem):
    """Each says what would be right."""
    with pytest.raises(ConfigError, match=problem):
        Bench().make(Correlation, settings)
