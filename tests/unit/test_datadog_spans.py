"""OTLP spans as Datadog spans."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span as OtlpSpan
from support.otlp import NOW, SPAN_ID, TRACE_ID, attributes, readable

from exporters.datadog.resource import Defaults, Origins
from exporters.datadog.span_rules import normal_operation, normal_service
from exporters.datadog.spans import Span, SpanMapper, shared_meta
from sidecar.reading import read_scope

KINDS = {"internal": 1, "server": 2, "client": 3, "producer": 4, "consumer": 5}


def span_of(name: str = "GET /orders", kind: str = "internal", **values) -> OtlpSpan:
    """A span of 5 ms with a parent."""
    return OtlpSpan(
        trace_id=TRACE_ID,
        span_id=SPAN_ID,
        parent_span_id=b"\0" * 7 + b"\1",
        name=name,
        kind=KINDS[kind],
        start_time_unix_nano=NOW,
        end_time_unix_nano=NOW + 5_000_000,
        attributes=attributes(**values),
    )


def readable_span(span: OtlpSpan):
    """The span as exporters read it."""
    request = ExportTraceServiceRequest()
    request.resource_spans.add().scope_spans.add().spans.append(span)
    return readable(request).resource_spans[0].scope_spans[0].spans[0]


def map_span(span: OtlpSpan, *, by_tracer: bool = False, named_by_span: bool = False, **resource) -> Span:
    """The Datadog span, of a resource with these attributes."""
    origin = Origins(Defaults()).of(Resource(attributes=attributes(**resource)).SerializeToString(), local=True)
    scope = read_scope(InstrumentationScope(name="lib", version="2").SerializeToString())
    mapper = SpanMapper(span_name_as_operation=named_by_span)
    return mapper.map(readable_span(span), origin, shared_meta(origin, scope), by_tracer=by_tracer)


def test_what_a_span_becomes():
    """Ids, times, names, and attributes under Datadog's names: numbers as metrics, all else as text (contrib#5969)."""
    span = span_of(
        kind="server",
        http__request__method="GET",
        http__route="/orders/{id}",
        http__response__status_code=200,
        url__full="http://shop/orders/7",
        paid=True,
        price=1.5,
        zero=0,
    )
    span.trace_state = "dd=s:1"
    mapped = map_span(span, service__name="Shop Front", service__version="1.2", deployment__environment="prod")
    assert (mapped.trace_id, mapped.span_id, mapped.parent_id) == (0x1122334455667788, 153, 1)
    assert (mapped.start, mapped.duration, mapped.error) == (NOW, 5_000_000, 0)
    assert (mapped.service, mapped.name, mapped.resource) == ("shop_front", "http.server.request", "GET /orders/{id}")
    assert mapped.type == "web"
    assert mapped.meta == {
        "http.method": "GET",
        "http.route": "/orders/{id}",
        "http.status_code": "200",
        "http.url": "http://shop/orders/7",
        "paid": "true",
        "env": "prod",
        "version": "1.2",
        "service.version": "1.2",
        "deployment.environment": "prod",
        "otel.scope.name": "lib",
        "otel.scope.version": "2",
        "otel.trace_id": "0123456789abcdef1122334455667788",
        "_dd.p.tid": "0123456789abcdef",
        "otel.status_code": "Unset",
        "span.kind": "server",
        "w3c.tracestate": "dd=s:1",
    }
    assert mapped.metrics == {"http.status_code": 200.0, "price": 1.5, "zero": 0.0, "_dd.top_level": 1.0}


def test_a_trace_id_of_64_bits_has_no_upper_half():
    """`_dd.p.tid` is written only where there is something to join by."""
    span = span_of()
    span.trace_id = bytes(8) + TRACE_ID[8:]
    mapped = map_span(span)
    assert mapped.trace_id == 0x1122334455667788
    assert "_dd.p.tid" not in mapped.meta


@pytest.mark.parametrize(
    ("kind", "values", "operation", "resource", "span_type"),
    [
        ("internal", {}, "Internal", "name", "custom"),
        ("producer", {}, "Producer", "name", "custom"),
        ("consumer", {}, "Consumer", "name", "custom"),
        ("server", {}, "server.request", "name", "web"),
        ("client", {}, "client.request", "name", "http"),
        ("client", {"network__protocol__name": "amqp"}, "amqp.client.request", "name", "http"),
        ("server", {"http__method": "GET"}, "http.server.request", "GET", "web"),
        ("client", {"http__request__method": "_OTHER"}, "http.client.request", "HTTP", "http"),
        ("client", {"http__method": "GET", "url__template": "/a/{b}"}, "http.client.request", "GET /a/{b}", "http"),
        ("client", {"http__method": "GET", "http__route": "/a"}, "http.client.request", "GET", "http"),
        ("client", {"db__system": "postgresql", "db__statement": "SELECT 1"}, "postgresql.query", "SELECT 1", "sql"),
        ("client", {"db__system__name": "mysql", "db__query__text": "SELECT 2"}, "mysql.query", "SELECT 2", "sql"),
        ("client", {"db__system": "redis"}, "redis.query", "name", "redis"),
        ("client", {"db__system": "dynamodb"}, "dynamodb.query", "name", "db"),
        (
            "producer",
            {"messaging__system": "kafka", "messaging__operation": "send", "messaging__destination__name": "t"},
            "kafka.send",
            "send t",
            "custom",
        ),
        (
            "server",
            {"rpc__system": "grpc", "rpc__method": "Get", "rpc__service": "S"},
            "grpc.server.request",
            "Get S",
            "web",
        ),
        ("client", {"rpc__system": "aws-api", "rpc__service": "S3"}, "aws.S3.request", "name", "http"),
        ("client", {"rpc__system": "aws-api"}, "aws.client.request", "name", "http"),
        ("client", {"faas__invoked_provider": "aws", "faas__invoked_name": "f"}, "aws.f.invoke", "name", "http"),
        ("server", {"faas__trigger": "timer"}, "timer.invoke", "name", "web"),
        (
            "server",
            {"graphql__operation__type": "query", "graphql__operation__name": "Q"},
            "graphql.server.request",
            "query Q",
            "web",
        ),
        ("internal", {"gen_ai__system": "openai"}, "Internal", "name", "llm"),
        ("internal", {"operation__name": "op", "resource__name": "res", "span__type": "cache"}, "op", "res", "cache"),
    ],
)
def test_operation_resource_and_type(kind, values, operation, resource, span_type):
    """By the conventions that the attributes follow; what is said outright counts most, and leaves the attributes."""
    mapped = map_span(span_of("name", kind, **values))
    assert (mapped.name, mapped.resource, mapped.type) == (operation, resource, span_type)
    assert not {"operation.name", "resource.name", "span.type", "service.name"} & mapped.meta.keys()


def test_the_span_name_can_be_the_operation_name():
    """For those who have named their spans that way."""
    assert map_span(span_of("charge card"), named_by_span=True).name == "charge_card"


def test_operation_names_can_be_remapped():
    """For those who have monitors on the old ones."""
    mapper = SpanMapper(remappings={"http.server.request": "web request"})
    origin = Origins(Defaults()).of(b"", local=True)
    mapped = mapper.map(readable_span(span_of(kind="server", http__method="GET")), origin, {}, by_tracer=False)
    assert mapped.name == "web_request"


@pytest.mark.parametrize(("value", "expected"), [("x" * 6000, 5000), ("€" * 2000, 4998)])
def test_a_long_resource_is_cut_at_a_character(value, expected):
    """5,000 bytes is what Datadog keeps."""
    assert len(map_span(span_of(value)).resource.encode()) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("http.server.request", "http.server.request"),
        ("7 days", "days"),
        ("", "unnamed_operation"),
        ("a b!", "a_b"),
        ("x" * 200, "x" * 100),
        ("émile", "mile"),
    ],
)
def test_operation_names_are_normal(name, expected):
    """Letters, digits, dots and underscores, beginning with a letter, at most 100."""
    assert normal_operation(name) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Shop Front", "shop_front"),
        ("", "unnamed-service"),
        ("a/b:c.d-e", "a/b:c.d-e"),
        ("Ünï", "ünï"),
        ("x" * 200, "x" * 100),
    ],
)
def test_service_names_are_normal(name, expected):
    """Lower case, no blanks, at most 100 characters."""
    assert normal_service(name) == expected


def test_a_span_without_a_service_has_the_usual_name():
    """The one that Datadog's own mapping gives."""
    assert map_span(span_of()).service == "otlpresourcenoservicename"
    assert map_span(span_of(service__name="inner"), service__name="outer").service == "inner"


def test_only_an_error_status_makes_an_error():
    """An exception that was handled is noted, and no more (datadog-agent#33567, contrib#1684)."""
    span = span_of()
    event = span.events.add(name="exception", time_unix_nano=NOW)
    event.attributes.extend(
        attributes(exception__type="ValueError", exception__message="no", exception__stacktrace="a:1")
    )
    mapped = map_span(span)
    assert mapped.error == 0
    assert mapped.meta["_dd.span_events.has_exception"] == "true"
    assert not any(name.startswith("error.") for name in mapped.meta)
    span.status.code = 2
    mapped = map_span(span)
    assert mapped.error == 1
    assert (mapped.meta["error.type"], mapped.meta["error.stack"]) == ("ValueError", "a:1")
    assert (mapped.meta["error.msg"], mapped.meta["error.message"]) == ("no", "no")
    assert orjson.loads(mapped.meta["events"]) == [
        {
            "time_unix_nano": NOW,
            "name": "exception",
            "attributes": {
                "exception.type": "ValueError",
                "exception.message": "no",
                "exception.stacktrace": "a:1",
            },
        }
    ]


@pytest.mark.parametrize(
    ("message", "values", "expected"),
    [
        ("timeout", {}, "timeout"),
        ("", {"http__response__status_code": 404}, "404 Not Found"),
        ("", {"http__response__status_code": 999}, None),
        ("", {}, None),
        ("timeout", {"error__msg": "own words"}, "own words"),
    ],
)
def test_why_a_span_failed(message, values, expected):
    """The span's own words, else its status, else the words of HTTP."""
    span = span_of(**values)
    span.status.code, span.status.message = 2, message
    mapped = map_span(span)
    assert (mapped.meta.get("error.msg"), mapped.meta.get("error.message")) == (expected, expected)
    assert mapped.meta["otel.status_code"] == "Error"


def test_links_are_valid_json():
    """Whatever the trace state and the attributes contain."""
    span = span_of()
    link = span.links.add(trace_id=TRACE_ID, span_id=SPAN_ID, trace_state='a="b"')
    link.attributes.extend(attributes(why='"quoted"'))
    (found,) = orjson.loads(map_span(span).meta["_dd.span_links"])
    assert found == {
        "trace_id": TRACE_ID.hex(),
        "span_id": SPAN_ID.hex(),
        "tracestate": 'a="b"',
        "attributes": {"why": '"quoted"'},
    }


def test_an_end_before_the_start_is_no_duration():
    """Clocks go back; durations don't."""
    span = span_of()
    span.end_time_unix_nano = NOW - 1
    assert map_span(span).duration == 0


@pytest.mark.parametrize(
    ("kind", "root", "marks"),
    [
        ("internal", True, {"_dd.top_level"}),
        ("internal", False, set()),
        ("server", False, {"_dd.top_level"}),
        ("consumer", False, {"_dd.top_level"}),
        ("client", False, {"_dd.measured"}),
        ("producer", True, {"_dd.top_level", "_dd.measured"}),
    ],
)
def test_what_is_top_level_and_what_is_measured(kind, root, marks):
    """By kind and by parent; a tracer of Datadog has marked its own."""
    span = span_of(kind=kind)
    if root:
        span.parent_span_id = b""
    assert map_span(span).metrics.keys() == marks
    assert map_span(span, by_tracer=True).metrics == {}


def test_a_tracer_that_exports_otlp_is_mapped_as_any_other():
    """Nothing says then what its own span was."""
    mapped = map_span(span_of(kind="server", http__request__method="GET"), by_tracer=True)
    assert (mapped.name, mapped.resource, mapped.meta["http.method"]) == ("http.server.request", "GET", "GET")


def test_sampling_decisions_of_users_are_kept():
    """`sampling.priority` is Datadog's word for them, and so is `analytics.event`."""
    mapped = map_span(span_of(sampling__priority=2, analytics__event=True))
    assert mapped.metrics == {"_sampling_priority_v1": 2.0, "_dd1.sr.eausr": 1.0}
    assert mapped.meta["_dd.p.dm"] == "-4"
    assert map_span(span_of(analytics__event=False)).metrics == {"_dd1.sr.eausr": 0.0}


def test_numbers_that_a_metric_can_not_hold_are_text():
    """Integers beyond 2**53, NaN and infinity."""
    mapped = map_span(span_of(big=2**60, nan=float("nan"), inf=float("-inf")))
    assert mapped.metrics == {}
    assert [mapped.meta[name] for name in ("big", "nan", "inf")] == [str(2**60), "nan", "-inf"]


def test_structured_metadata_of_tracers_is_passed_on():
    """In its own field, as it came; bytes under another name are text."""
    span = span_of()
    span.attributes.add(key="datadog.meta_struct.appsec").value.bytes_value = b"\x81\xa1a\x01"
    span.attributes.add(key="raw").value.bytes_value = b"\x81"
    mapped = map_span(span)
    assert mapped.meta_struct == {"appsec": b"\x81\xa1a\x01"}
    assert mapped.meta["raw"] == "gQ=="


def test_request_headers_get_datadogs_prefix():
    """And the referrer its own name."""
    mapped = map_span(span_of(http__request__header__x="1", http__request__header__referrer="r"))
    assert (mapped.meta["http.request.headers.x"], mapped.meta["http.referrer"]) == ("1", "r")


@given(
    st.binary(max_size=20),
    st.binary(max_size=10),
    st.text(max_size=20),
    st.integers(-3, 10),
    st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)),
    st.dictionaries(st.text(max_size=8) | st.sampled_from(["http.status_code", "error.msg", "span.kind"]), st.text()),
)
def test_whatever_comes_is_within_the_types(trace_id, span_id, name, status, times, values):
    """Ids of any length, any times, any text: a span that every receiver can read."""
    span = OtlpSpan(trace_id=trace_id, span_id=span_id[:8], name=name, kind=status, attributes=attributes(**values))
    span.start_time_unix_nano, span.end_time_unix_nano = times
    span.status.code = status
    mapped = map_span(span)
    assert 0 <= mapped.trace_id < 2**64
    assert 0 <= mapped.start < 2**63
    assert 0 <= mapped.duration < 2**63
    assert all(isinstance(value, str) for value in mapped.meta.values())
    assert mapped.name
    assert mapped.service
