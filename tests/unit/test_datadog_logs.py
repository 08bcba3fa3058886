"""OTLP log records as Datadog's JSON logs."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from support.otlp import NOW, SPAN_ID, TRACE_ID, attributes, readable

from exporters.datadog.logs import MAX_LOG, LogEncoder, divide
from exporters.datadog.resource import Defaults, Origins

HOUR = 3600 * 10**9


def request_of(*records: LogRecord, **resource) -> ExportLogsServiceRequest:
    """One resource, one scope, these records."""
    request = ExportLogsServiceRequest()
    group = request.resource_logs.add()
    group.resource.attributes.extend(attributes(**resource))
    group.scope_logs.add().log_records.extend(records)
    return request


def record_of(body: str = "hello", **values) -> LogRecord:
    """A record with these attributes."""
    return LogRecord(body=AnyValue(string_value=body), attributes=attributes(**values), time_unix_nano=NOW)


def encode(request: ExportLogsServiceRequest, defaults: Defaults | None = None, **options) -> list[dict]:
    """The logs of a request, whatever the bodies they are in."""
    encoder = LogEncoder(Origins(defaults or Defaults()), **options)
    bodies = list(encoder.encode(readable(request), [], local=True, now_ns=NOW + HOUR))
    return [log for body in bodies for log in orjson.loads(body.data)]


def log_of(record: LogRecord, **resource) -> dict:
    """The log that one record becomes."""
    (log,) = encode(request_of(record, **resource))
    return log


def test_what_a_record_becomes():
    """Message, status, time, ids and attributes, with host, service, tags and attributes of the resource.

    See router#4763.
    """
    record = record_of("order accepted", order__id=7, paid=True, price=1.5)
    record.severity_number, record.severity_text = 9, "INFO"
    record.trace_id, record.span_id = TRACE_ID, SPAN_ID
    record.time_unix_nano = 1_700_000_000_123_456_789
    resource = {"service__name": "shop", "service__version": "1.2", "host__name": "web-1", "process__pid": 42}
    assert log_of(record, **resource) == {
        "message": "order accepted",
        "status": "info",
        "hostname": "web-1",
        "service": "shop",
        "ddsource": "otlp",
        "ddtags": "service:shop,version:1.2",
        "@timestamp": "2023-11-14T22:13:20.123Z",
        "dd.trace_id": "0123456789abcdef1122334455667788",
        "dd.span_id": "153",
        "otel.trace_id": "0123456789abcdef1122334455667788",
        "otel.span_id": "0000000000000099",
        "otel.timestamp": "1700000000123456789",
        "otel.severity_number": "9",
        "otel.severity_text": "INFO",
        "order.id": 7,
        "paid": True,
        "price": 1.5,
        "service.name": "shop",
        "service.version": "1.2",
        "host.name": "web-1",
        "process.pid": "42",
    }


def test_a_trace_id_of_64_bits_is_decimal():
    """Datadog's tracers write one whose upper half is zero in decimal, so both forms must meet."""
    record = record_of()
    record.trace_id = bytes(8) + bytes.fromhex("1122334455667788")
    log = log_of(record)
    assert log["dd.trace_id"] == "1234605616436508552"
    assert log["otel.trace_id"] == "00000000000000001122334455667788"


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("trace_id", TRACE_ID.hex(), TRACE_ID.hex()),
        ("traceID", TRACE_ID.hex(), TRACE_ID.hex()),
        ("dd.trace_id", "1234605616436508552", "1234605616436508552"),
        ("dd.trace_id", "0", None),
        ("trace_id", "not an id", None),
        ("trace_id", "²" * 20, None),
        ("oteltraceid", "0" * 32, None),
    ],
)
def test_a_trace_id_among_the_attributes(name, text, expected):
    """Every form that senders inject is understood; what is none leaves no id."""
    assert log_of(record_of(**{name.replace(".", "__"): text})).get("dd.trace_id") == expected


def test_native_ids_win_over_attributes():
    """The record's own fields are the specification's place for them."""
    record = record_of(trace_id="f" * 32, span_id="f" * 16)
    record.trace_id, record.span_id = TRACE_ID, SPAN_ID
    log = log_of(record)
    assert (log["dd.trace_id"], log["dd.span_id"]) == (TRACE_ID.hex(), "153")
    assert "trace_id" not in log


@pytest.mark.parametrize(
    ("number", "text", "status"),
    [
        (9, "", "info"),
        (1, "", "trace"),
        (8, "", "debug"),
        (13, "", "warn"),
        (17, "", "error"),
        (24, "", "fatal"),
        (9, "ERROR", "error"),
        (9, "Warning", "warn"),
        (17, "shipped", "error"),
        (0, "ERROR2", "error"),
        (0, "", "info"),
        (99, "", "info"),
    ],
)
def test_status_follows_the_word_then_the_number(number, text, status):
    """A severity word counts most; another word counts nothing; no severity at all is info."""
    record = record_of()
    record.severity_number, record.severity_text = number, text
    assert log_of(record)["status"] == status


@pytest.mark.parametrize("name", ["level", "severity", "status", "Level"])
def test_a_severity_word_among_the_attributes_is_the_status(name):
    """Loggers that know no SeverityNumber put the level there (contrib#14571)."""
    record = record_of(**{name: "error"})
    record.severity_number = 9
    assert log_of(record)["status"] == "error"


@pytest.mark.parametrize("value", [404, 0, "404", "shipped"])
def test_a_status_that_is_no_severity_does_not_pass_for_one(value):
    """An HTTP status in an attribute called `status` keeps its value under another name (browser-sdk#4468)."""
    record = record_of(status=value, level=30)
    record.severity_number = 17
    log = log_of(record)
    assert (log["status"], log["attributes.status"], log["level"]) == ("error", value, 30)


def test_an_attribute_can_be_the_message():
    """It then counts more than the body, which is kept."""
    log = log_of(record_of("{...}", msg="order accepted"))
    assert (log["message"], log["otel.body"]) == ("order accepted", "{...}")
    assert log_of(record_of("", message="order accepted"))["message"] == "order accepted"


def test_an_attribute_of_that_name_that_is_no_text_is_an_attribute():
    """A map called `log` must not take the place of the body."""
    record = record_of("hello", message=7)
    record.attributes.add(key="log").value.kvlist_value.values.extend(attributes(level="x"))
    log = log_of(record)
    assert (log["message"], log["attributes.message"], log["log.level"]) == ("hello", 7, "x")


def test_a_structured_body_is_json_text():
    """Maps and arrays become text that Datadog's pipelines can parse."""
    record = record_of("")
    record.body.kvlist_value.values.extend(attributes(order=7, ok=True))
    assert orjson.loads(log_of(record)["message"]) == {"order": 7, "ok": True}


def test_an_event_without_a_body_is_named_by_its_event():
    """An empty message would show as nothing."""
    record = record_of("")
    record.event_name = "backend_crash"
    log = log_of(record)
    assert (log["message"], log["otel.event_name"]) == ("backend_crash", "backend_crash")


def test_nested_attributes_are_flattened():
    """Maps become dotted names, arrays stay arrays, bytes become Base64, NaN a word."""
    record = record_of()
    nested = record.attributes.add(key="http").value.kvlist_value
    nested.values.extend(attributes(method="GET"))
    nested.values.add(key="request").value.kvlist_value.values.extend(attributes(size=3))
    record.attributes.add(key="ids").value.array_value.values.extend(
        [AnyValue(int_value=1), AnyValue(string_value="b")]
    )
    record.attributes.add(key="raw").value.bytes_value = b"\x00\xff"
    record.attributes.add(key="ratio").value.double_value = float("nan")
    record.attributes.add(key="none")
    log = log_of(record)
    assert (log["http.method"], log["http.request.size"]) == ("GET", 3)
    assert (log["ids"], log["raw"], log["ratio"], log["none"]) == ([1, "b"], "AP8=", "nan", "")


def test_what_is_nested_too_deeply_is_text():
    """Datadog flattens ten levels: the rest stays readable."""
    record = record_of()
    value = record.attributes.add(key="a").value
    for _ in range(15):
        value = value.kvlist_value.values.add(key="a").value
    value.string_value = "deep"
    (name,) = (name for name in log_of(record) if name.startswith("a."))
    assert name == ".".join("a" * 10)
    assert "deep" in log_of(record)[name]


def test_exceptions_get_datadogs_names():
    """The error panel reads error.kind, error.message and error.stack."""
    log = log_of(record_of(exception__type="ValueError", exception__message="no", exception__stacktrace="a.py:1"))
    assert (log["error.kind"], log["error.message"], log["error.stack"]) == ("ValueError", "no", "a.py:1")
    assert "exception.stacktrace" not in log


def test_what_a_record_says_counts_more_than_its_resource():
    """And for that record alone."""
    first, second = encode(request_of(record_of(region="b"), record_of(), region="a"))
    assert (first["region"], second["region"]) == ("b", "a")


def test_attributes_named_like_datadogs_own_members_do_not_replace_them():
    """Host, service and date come from where OpenTelemetry keeps them (vector#13291)."""
    names = {"host": "x", "hostname": "x", "service": "x", "@timestamp": "x", "timestamp": 1}
    log = log_of(record_of(**names), service__name="shop", host__name="web-1")
    assert (log["hostname"], log["service"], log["@timestamp"][:4]) == ("web-1", "shop", "2023")
    assert {f"attributes.{name}": log[f"attributes.{name}"] for name in names} == {
        f"attributes.{name}": value for name, value in names.items()
    }
    log = log_of(record_of(), service="x", hostname="y")
    assert (log["otel.service"], log["otel.hostname"]) == ("x", "y")
    assert "service" not in log


def test_tags_host_and_service_belong_to_each_record():
    """Nothing of one resource, or of one record, is left on the next (contrib#17398)."""
    request = request_of(
        record_of(ddtags="team:a", service__name="inner", host__name="inner-host"), record_of(), os__type="linux"
    )
    request.MergeFrom(request_of(record_of(ddtags="x:y"), record_of(), service__name="outer", host__name="h"))
    logs = encode(request, Defaults(this_host="this"))
    assert [log.get("service") for log in logs] == ["inner", None, "outer", "outer"]
    assert [log["hostname"] for log in logs] == ["inner-host", "this", "h", "h"]
    assert [set(log["ddtags"].split(",")) for log in logs] == [
        {"team:a", "service:inner", "os.type:linux"},
        {"os.type:linux"},
        {"service:outer", "x:y"},
        {"service:outer"},
    ]


def test_a_record_does_not_override_the_service_of_its_resource():
    """The attribute stays, as an attribute (documentation#20406)."""
    log = log_of(record_of(service__name="inner"), service__name="outer")
    assert (log["service"], log["service.name"]) == ("outer", "inner")


def test_a_log_too_old_for_the_intake_is_marked_and_counted():
    """It would be dropped there without a word: it is dated by now and keeps its time beside."""
    late = []
    record = record_of()
    record.time_unix_nano = NOW - 20 * HOUR
    (log,) = encode(request_of(record), on_late=lambda: late.append(1))
    assert log["@timestamp"] == "2023-11-14T23:13:20.000Z"
    assert log["otel.timestamp"] == str(NOW - 20 * HOUR)
    assert log["sidecar.late"] is True
    assert late == [1]


def test_the_observed_time_stands_in():
    """With no time at all the intake dates the log."""
    record = record_of()
    record.time_unix_nano, record.observed_time_unix_nano = 0, NOW
    assert log_of(record)["@timestamp"] == "2023-11-14T22:13:20.000Z"
    record.observed_time_unix_nano = 0
    assert "@timestamp" not in log_of(record)


@pytest.mark.parametrize("character", ["x", "ß", "€", "𝄞", "\n", "\x00", '"', "x\x00"])
def test_a_log_over_a_megabyte_is_cut_at_a_character(character):
    """Whatever JSON makes of the character, the log fits, is valid, and says that it was cut."""
    body = orjson.dumps(log_of(record_of(character * 1_200_000, other="kept")))
    log = orjson.loads(body)
    assert len(body) <= MAX_LOG
    assert log["sidecar.truncated"] is True
    assert log["other"] == "kept"
    assert set(log["message"]) <= {*character, "…"}
    assert len(body) > MAX_LOG * 0.99


def test_a_log_with_too_many_attributes_keeps_its_own_members():
    """What can't be shortened is left out."""
    log = log_of(record_of("hello", **{f"key_{index}": "x" * 10 for index in range(60_000)}))
    assert (log["message"], log["sidecar.truncated"], log["status"]) == ("hello", True, "info")
    assert len(orjson.dumps(log)) <= MAX_LOG


def test_divided_bodies_are_the_whole():
    """Halves of a body hold its logs in order."""
    (body,) = LogEncoder(Origins(Defaults())).encode(
        readable(request_of(*(record_of(str(index)) for index in range(5)))), [], local=True, now_ns=NOW
    )
    first, rest = divide(body.data, 2)
    assert [log["message"] for log in orjson.loads(first)] == ["0", "1"]
    assert orjson.loads(first) + orjson.loads(rest) == orjson.loads(body.data)


def test_diverted_records_are_no_logs():
    """They keep their position among the items; the others theirs."""
    event = record_of("b")
    event.event_name = "special"
    diverted = []
    encoder = LogEncoder(Origins(Defaults()), diverted_kinds=frozenset({"special"}))
    (body,) = encoder.encode(
        readable(request_of(record_of("a"), event, record_of("c"))), diverted, local=True, now_ns=NOW
    )
    assert body.units == [0, 2]
    assert [(one.position, one.members["message"]) for one in diverted] == [(1, "b")]


def _array(items):
    value = AnyValue()
    value.array_value.values.extend(items)
    return value


def _map(items):
    value = AnyValue()
    for name, item in items.items():
        value.kvlist_value.values.add(key=name).value.CopyFrom(item)
    return value


VALUES = st.recursive(
    st.builds(AnyValue)
    | st.builds(lambda text: AnyValue(string_value=text), st.text(max_size=20))
    | st.builds(lambda number: AnyValue(int_value=number), st.integers(-(2**63), 2**63 - 1))
    | st.builds(lambda number: AnyValue(double_value=number), st.floats())
    | st.builds(lambda flag: AnyValue(bool_value=flag), st.booleans())
    | st.builds(lambda data: AnyValue(bytes_value=data), st.binary(max_size=8)),
    lambda inner: (
        st.builds(_array, st.lists(inner, max_size=3))
        | st.builds(_map, st.dictionaries(st.text(max_size=5), inner, max_size=3))
    ),
    max_leaves=6,
)
NAMES = st.text(max_size=10) | st.sampled_from(
    [
        "status",
        "message",
        "trace_id",
        "dd.span_id",
        "ddtags",
        "service.name",
        "host.name",
        "hostname",
        "level",
        "@timestamp",
    ]
)


@given(
    st.lists(
        st.tuples(VALUES, st.dictionaries(NAMES, VALUES, max_size=5), st.integers(0, 30), st.integers(0, 2**64 - 1)),
        min_size=1,
        max_size=5,
    ),
    st.dictionaries(NAMES, VALUES, max_size=4),
)
def test_whatever_comes_each_record_becomes_one_log(records, resource):
    """Any values under any names, on records and resources: no error, one log each, of the right types."""
    request = request_of()
    group = request.resource_logs[0]
    for name, value in resource.items():
        group.resource.attributes.add(key=name).value.CopyFrom(value)
    for body, named, severity, time in records:
        record = group.scope_logs[0].log_records.add(severity_number=severity, time_unix_nano=time, body=body)
        for name, value in named.items():
            record.attributes.add(key=name).value.CopyFrom(value)
    logs = encode(request)
    assert len(logs) == len(records)
    for log in logs:
        assert {type(log[name]) for name in ("message", "status", "ddsource") if name in log} == {str}
        assert isinstance(log.get("ddtags", ""), str)
        assert isinstance(log.get("hostname", ""), str)
