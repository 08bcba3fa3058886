"""The allowlist: which keys pass, what becomes of the rest, and what is cut."""

import hashlib
import hmac
from importlib import import_module

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from support.otlp_canary import delimited, pair
from support.otlp_content import CONTENT, any_value, content_of
from support.otlp_strategies import requests

from config.problems import ConfigError
from processors.allowlist import Allowlist
from processors.allowlist.presets import SEMCONV_FILE, TRACE_CONTEXT
from sidecar import SCHEMAS, Batch, BatchContext, Permanent, Signal
from sidecar.events.keys import ATTRIBUTE_KEYS, FIELD_KEYS, RESOURCE_KEYS
from sidecar.testing import Bench

pytestmark = pytest.mark.usefixtures("either_path")

semconv = import_module("processors.allowlist.semconv")


def logs(*records, resource=(), scope=()):
    """A logs batch; each record is its body and its (key, value) pairs."""
    request = SCHEMAS[Signal.LOGS].request()
    logs_of_resource = request.resource_logs.add()
    logs_of_scope = logs_of_resource.scope_logs.add()
    for target, pairs in ((logs_of_resource.resource, resource), (logs_of_scope.scope, scope)):
        for key, content in pairs:
            target.attributes.add(key=key, value=any_value(content))
    for body, pairs in records:
        record = logs_of_scope.log_records.add(severity_number=9)
        if body is not None:
            record.body.CopyFrom(any_value(body))
        for key, content in pairs:
            record.attributes.add(key=key, value=any_value(content))
    return Batch(Signal.LOGS, request.SerializeToString(), context=BatchContext(peer="10.0.0.1"))


def attributes_of(batch):
    """The attributes of each record, in the order in which they leave."""
    return [{pair.key: content_of(pair.value) for pair in record.attributes} for record in records_of(batch)]


def records_of(batch):
    """All log records of a batch."""
    return [record for scope in batch.scopes() for record in scope.log_records]


def run(settings, batch):
    """The batch that leaves an allowlist with these settings."""
    return Bench().make(Allowlist, settings).process(batch)


def kept(settings, *pairs):
    """The attributes that a record with these keeps."""
    return attributes_of(run(settings, logs(("hi", pairs))))[0]


def test_by_default_events_and_conventions_pass():
    """The two presets let the keys of TelemetryEvents and of OpenTelemetry pass, and nothing else."""
    passing = {"backend": "vllm", "http.request.method": "GET", "telemetry.kind": "log", "dd.trace_id": "1"}

    assert kept("", *passing.items(), ("prompt", "secret"), ("my.key", 1)) == passing


@pytest.mark.parametrize("key", sorted(FIELD_KEYS | ATTRIBUTE_KEYS))
def test_the_event_preset_holds_the_whole_wire_contract(key):
    """Each of the 30 fields, and what the conversion adds, passes with `telemetry_event` alone."""
    assert kept("presets: [telemetry_event]", (key, "x")) == {key: "x"}


def test_resources_have_keys_of_their_own():
    """A resource keeps what belongs on resources, by the presets or by its own list; scopes keep what is listed."""
    pairs = [("service.name", "a"), ("backend", "b"), ("my.key", "c")]

    def outcome(settings):
        (resource,) = run(settings, logs(("hi", ()), resource=pairs, scope=pairs)).resources()
        return (
            [pair.key for pair in resource.resource.attributes],
            [pair.key for pair in resource.scope_logs[0].scope.attributes],
        )

    assert outcome("presets: [telemetry_event]") == (["service.name"], [])
    assert outcome("presets: []") == ([], [])
    assert outcome("{resource_attributes: ['my.*'], scope_attributes: [backend]}") == (["my.key"], ["backend"])
    assert {"service.name", "host.id", "deployment.environment.name"} <= RESOURCE_KEYS


@pytest.mark.parametrize(
    ("pattern", "passing", "denied"),
    [
        ("app.*", ["app.", "app.a", "app.a.b", "app.\n"], ["app", "apps.a", "my.app.a"]),
        ("*.id", [".id", "user.id", "a.b.id"], ["id", "user.ids"]),
        ("a*b*c", ["abc", "a.b.c", "abbcc"], ["ab", "acb"]),
        ("a.b[0]?", ["a.b[0]?"], ["axb[0]?", "a.b0"]),
        ("*", ["", "anything"], []),
    ],
)
def test_a_star_matches_any_run_of_characters(pattern, passing, denied):
    """Nothing else in a pattern is special."""
    outcome = kept(f"{{presets: [], attributes: ['{pattern}']}}", *((key, "x") for key in passing + denied))

    assert sorted(outcome) == sorted(passing)


def test_senders_cannot_fill_the_memory_with_keys():
    """Only so many decisions are remembered, and those on later keys are right nevertheless."""
    allowlist = Bench().make(Allowlist, "{presets: [], attributes: ['app.*']}")

    for start in range(0, 24_000, 8_000):
        pairs = [(f"{prefix}{number}", "x") for prefix in ("app.", "no.") for number in range(start, start + 4_000)]
        assert len(attributes_of(allowlist.process(logs(("hi", pairs))))[0]) == 4_000
    assert len(allowlist._scrubber._policy.rules["record"].passing) < 11_000


PAIRS = st.lists(st.tuples(st.sampled_from(["component", "prompt", "app.x", "app.y", "x", ""]), CONTENT), max_size=6)
RECORDS = st.lists(st.tuples(CONTENT, PAIRS), min_size=1, max_size=4)


def wanted(content, path):
    """What is left of a value, said as plainly as possible."""
    if isinstance(content, list):
        return [wanted(element, path) for element in content]
    if isinstance(content, dict):
        below = {key: f"{path}.{key}" if path else key for key in content}
        return {key: wanted(inner, below[key]) for key, inner in content.items() if allowed(key) or allowed(below[key])}
    return content


def allowed(key):
    """Whether a key or a path passes, as said in the settings below."""
    return key == "component" or key.startswith("app.")


@given(RECORDS, st.sampled_from(["any", "scalar"]), st.sampled_from([None, 1000]))
def test_what_is_left_is_what_the_rule_says(records, values, max_value_length):
    """On arbitrary data the outcome is that of a plain rendering of the rule, whichever way it was reached."""
    settings = (
        "{presets: [], attributes: [component, 'app.*'], "
        f"values: {values}, max_value_length: {max_value_length or 'null'}}}"
    )

    outcome = run(settings, logs(*records))

    scalar = values == "scalar"
    assert attributes_of(outcome) == [
        {
            key: wanted(content, key)
            for key, content in dict(pairs).items()
            if allowed(key) and not (scalar and isinstance(content, list | dict))
        }
        for _, pairs in records
    ]
    if not scalar:
        bodies = [content_of(record.body) for record in records_of(outcome)]
        assert bodies == [wanted(body, "") for body, _ in records]


@given(RECORDS)
def test_order_and_repetition_do_not_matter(records):
    """An allowlist leaves alone what an equal one has let pass, and says so with the same bytes."""
    allowlist = Bench().make(Allowlist, "{presets: [], attributes: [component, 'app.*']}")

    once = allowlist.process(logs(*records)).encode()

    assert allowlist.process(Batch(Signal.LOGS, once, context=BatchContext())).encode() == once


def test_of_equal_keys_the_last_one_stays():
    """Attributes leave with one value per key, sorted."""
    outcome = run("", logs(("hi", [("route", "a"), ("component", "b"), ("route", "c")])))

    assert list(attributes_of(outcome)[0].items()) == [("component", "b"), ("route", "c")]


def test_nested_values_survive_beside_ordinary_ones():
    """Values that hold arrays, maps and bytes pass whole under allowed keys, request after request."""
    allowlist = Bench().make(Allowlist, "{presets: [], attributes: [component, 'app.*']}")
    nested = {"app.a": [1, "b", [True]], "app.b": {"c": {"component": 1.5}}, "app.d": b"\xff", "component": None}
    plain = {"app.a": 1}

    for content in (plain, nested, nested, plain, plain, nested):
        assert attributes_of(allowlist.process(logs(("hi", content.items())))) == [content]


def test_scalar_denies_what_holds_more_than_one_value():
    """`values: scalar` keeps no map and no array, under whichever key; bytes are one value."""
    outcome = kept("values: scalar", ("component", {"component": 1}), ("route", ["a"]), ("error", b"x"), ("model", 1))

    assert outcome == {"error": b"x", "model": 1}


def test_mask_keeps_the_key():
    """`mask` replaces values of every kind by one text, and leaves the allowed ones."""
    outcome = kept("on_denied: mask", ("prompt", "x"), ("n", 5), ("m", {"component": 1}), ("route", "/a"))

    assert outcome == {"prompt": "[REDACTED]", "n": "[REDACTED]", "m": "[REDACTED]", "route": "/a"}


def test_hash_can_be_repeated_by_who_has_the_key():
    """`hash` writes HMAC-SHA-256 of a text in UTF-8: equal values stay equal, and another key gives another hash."""
    settings = "{{on_denied: hash, hash_key: {}}}"

    outcome = kept(settings.format("k1"), ("user", "zoë"), ("owner", "zoë"), ("n", 5))

    assert outcome["user"] == outcome["owner"] == hmac.new(b"k1", "zoë".encode(), hashlib.sha256).hexdigest()
    assert outcome["n"] not in {"5", outcome["user"]}
    assert kept(settings.format("k2"), ("user", "zoë"))["user"] != outcome["user"]


def test_a_hash_without_a_key_is_a_problem():
    """Values that a hash without a key hides can be guessed: the settings are refused, at the key's place."""
    with pytest.raises(ConfigError, match=r"hash_key.*long random text"):
        Bench().make(Allowlist, "on_denied: hash")


@pytest.mark.parametrize(
    ("policy", "bodies"),
    [
        ("keep", ["text", {"component": "a"}, [{"component": "b"}, 1], 5, None]),
        ("string", ["text", None, None, None, None]),
        ("drop", [None, None, None, None, None]),
    ],
)
def test_bodies(policy, bodies):
    """A body passes whole, but for denied keys of maps in it; only as a text; or not at all."""
    sent = ["text", {"component": "a", "prompt": "x"}, [{"component": "b", "prompt": "x"}, 1], 5, None]

    outcome = records_of(run(f"body: {policy}", logs(*((body, ()) for body in sent))))

    assert [content_of(record.body) if record.HasField("body") else None for record in outcome] == bodies


@pytest.mark.parametrize("nested", [[], [("model", ["a"])]], ids=["plain", "nested"])
@pytest.mark.parametrize(
    ("sent", "leaves"),
    [
        ("x" * 10, "x" * 10),
        ("x" * 11, "x" * 10 + "…"),
        ("x" * 9 + "ë", "x" * 9 + "…"),
        ("ë" * 5, "ë" * 5),
        ("ë" * 6, "ë" * 5 + "…"),
        ("x" * 10 + "…", "x" * 10 + "…"),
        ("x" * 10 + "\n… truncated", "x" * 10 + "\n… truncated"),
        ("x" * 11 + "…", "x" * 10 + "…"),
        ("x" * 99 + "\n… truncated", "x" * 10 + "…"),
    ],
)
def test_long_texts_are_cut_on_a_character_boundary(sent, leaves, nested):
    """Bodies, stacks and, where asked for, values have at most so many bytes; what was cut before is not cut again."""
    settings = "{max_body_length: 10, max_stack_length: 10}"
    pairs = [("exception.stacktrace", sent), ("route", sent), *nested]

    (record,) = records_of(run(settings, logs((sent, pairs))))

    attributes = {pair.key: content_of(pair.value) for pair in record.attributes}
    assert (record.body.string_value, attributes["exception.stacktrace"]) == (leaves, leaves)
    assert attributes["route"] == sent
    assert kept("max_value_length: 10", ("route", sent), ("model", [sent])) == {"route": leaves, "model": [leaves]}


def test_stacks_are_cut_wherever_they_stand():
    """On resources and scopes too, request after request, whether a name or a pattern lets them pass."""
    allowlist = Bench().make(Allowlist, "{resource_attributes: ['*'], scope_attributes: ['ex*'], max_stack_length: 3}")
    pairs = [("exception.stacktrace", "abcdef")]

    for _ in range(2):
        (resource,) = allowlist.process(logs(("hi", pairs), resource=pairs, scope=pairs)).resources()
        holders = (resource.resource, resource.scope_logs[0].scope, resource.scope_logs[0].log_records[0])
        assert [content_of(holder.attributes[0].value) for holder in holders] == ["abc…"] * 3


def test_limits_hold_for_bytes_and_within_bodies():
    """Bytes are cut too, and so are the texts of a structured body."""
    outcome = run("{max_body_length: 4, max_value_length: 2}", logs(({"route": "abcdef"}, [("model", b"abc")])))

    assert content_of(records_of(outcome)[0].body) == {"route": "abcd…"}
    assert attributes_of(outcome) == [{"model": b"ab"}]


def test_the_default_body_limit_is_that_of_events():
    """4,096 bytes and then the mark, as the conversion of TelemetryEvents cuts: its messages stay as they are."""
    sent = "x" * 4096 + "…"

    assert [r.body.string_value for r in records_of(run("", logs((sent, ()), ("x" * 5000, ()))))] == [sent, sent]


def test_null_is_no_limit():
    """Limits can be lifted."""
    (record,) = records_of(run("max_body_length: null", logs(("x" * 100_000, ()))))

    assert len(record.body.string_value) == 100_000


def test_denied_keys_are_counted_by_name():
    """Each denied attribute counts, wherever it stood; a name that looks like content is not made a label."""
    bench = Bench()
    allowlist = bench.make(Allowlist)
    pairs = [("prompt", "x"), ("my.key", "x"), ("component", {"prompt": "x"}), ("what is\nthis?", "x"), ("k" * 65, "x")]

    allowlist.process(logs(("hi", pairs), ({"my.key": 1}, [("prompt", "y")])))

    def count(key):
        return bench.metrics.value("sidecar_allowlist_denied_attributes", key=key)

    assert (count("prompt"), count("my.key"), count("other")) == (3, 2, 2)
    assert bench.metrics.value("sidecar_allowlist_denied_attributes") == 7


def test_many_names_share_one_count():
    """The number of counted names is bounded; the rest is counted together."""
    bench = Bench()

    bench.make(Allowlist).process(logs(("hi", [(f"my.{number}", 1) for number in range(150)])))

    assert bench.metrics.value("sidecar_allowlist_denied_attributes", key="other") == 50
    assert bench.metrics.value("sidecar_allowlist_denied_attributes") == 150


def test_cut_values_are_counted():
    """What was too long is not lost in silence."""
    bench = Bench()

    bench.make(Allowlist, "max_body_length: 1").process(logs(("hi", ()), ("h", ()), ("hello", ())))

    assert bench.metrics.value("sidecar_allowlist_cut_values") == 2


def test_items_and_origin_stay():
    """Nothing is dropped but attributes: the items and where they came from are the same."""
    batch = logs(("a", [("prompt", "x")]), (None, ()))
    before = batch.encode()

    outcome = run("", batch)

    assert (len(outcome), outcome.context, outcome.signal) == (2, batch.context, Signal.LOGS)
    assert [record.severity_number for record in records_of(outcome)] == [9, 9]
    assert batch.encode() == before


def test_entities_that_name_denied_attributes_go():
    """A reference to an entity keeps no name of a denied attribute, and goes when it can't be identified any more."""
    batch = logs(("hi", ()), resource=[("service.name", "a")])
    resource = batch.edit().resource_logs[0].resource
    resource.entity_refs.add(type="service", id_keys=["service.name"], description_keys=["service.version", "my.key"])
    resource.entity_refs.add(type="my", id_keys=["my.key"], description_keys=["service.version"])

    (entity,) = run("", batch).resources()[0].resource.entity_refs

    assert (entity.type, entity.id_keys, entity.description_keys) == ("service", ["service.name"], ["service.version"])


def entries(*attributes):
    """A logs batch whose one record has these attributes, each the encoded fields of a KeyValue."""
    record = b"".join(delimited(6, attribute) for attribute in attributes)
    return Batch(Signal.LOGS, delimited(1, delimited(2, delimited(2, record))), context=BatchContext())


@pytest.mark.parametrize("beside", ["text", ["a"]], ids=["plain", "nested"])
@pytest.mark.parametrize("field", [b"\x18\x07", b"\x82\x7d\x06c4n4ry"], ids=["key_strindex", "unknown"])
def test_attributes_with_a_third_field_stay(field, beside):
    """The field goes, and key and value stay; a denied one is counted."""
    bench = Bench()
    pairs = [pair(key, any_value(content).SerializeToString()) for key, content in (("model", beside), ("no", 1))]

    outcome = bench.make(Allowlist).process(entries(*(one + field for one in pairs)))

    assert attributes_of(outcome) == [{"model": beside}]
    assert bench.metrics.value("sidecar_allowlist_denied_attributes", key="no") == 1
    assert outcome.encode() == entries(pairs[0]).encode()


def test_an_empty_array_beside_an_attribute_without_a_value_stays():
    """What one of them is shorter when decoded, the other is longer."""
    empty = any_value([]).SerializeToString()
    outcome = run("", entries(pair("model", empty), b"\x0a\x07backend"))

    assert attributes_of(outcome) == [{"model": [], "backend": None}]


@pytest.mark.parametrize("levels", [1, 16, 17, 30, 37])
def test_what_is_unknown_leaves_no_value_however_deep(levels):
    """As deep as a request may be nested, beside what stays."""
    value = any_value("deep").SerializeToString() + delimited(4000, b"c4n4ry")
    expected = "deep"
    for level in range(levels):
        value = delimited(5, delimited(1, value)) if level % 2 else delimited(6, delimited(1, pair("app.x", value)))
        expected = [expected] if level % 2 else {"app.x": expected}
    outcome = run("attributes: ['app.*']", entries(pair("model", value)))

    assert attributes_of(outcome) == [{"model": expected}]
    assert b"c4n4ry" not in outcome.encode()


@pytest.mark.parametrize("signal", Signal)
@given(st.data())
def test_what_is_allowed_comes_out(signal, data):
    """Of any request, where every key is allowed: all of it, but for what only refers to a table that OTLP has not."""
    request = data.draw(requests(signal))
    allow = (
        "presets: [], attributes: ['*'], resource_attributes: ['*'], scope_attributes: ['*'], max_stack_length: null"
    )

    outcome = run(
        f"{{{allow}, max_body_length: null}}", Batch(signal, request.SerializeToString(), context=BatchContext())
    )

    left = SCHEMAS[signal].request.FromString(outcome.encode())
    assert in_order(left) == in_order(request)


def in_order(message):
    """A message, encoded: of equal keys the last one, sorted, each with a value, and no index of a table."""
    for field, content in message.ListFields():
        if field.name.endswith("_strindex"):
            message.ClearField(field.name)
        elif field.message_type is not None and field.is_repeated:
            for one in content:
                in_order(one)
            if field.message_type is KeyValue.DESCRIPTOR:
                kept = {one.key: one for one in content}
                kept = [KeyValue(key=key, value=one.value) for key, one in sorted(kept.items())]
                del content[:]
                content.extend(kept)
        elif field.message_type is not None:
            in_order(content)
    return message.SerializeToString(deterministic=True)


def test_undecodable_bytes_are_refused():
    """Bytes that are no request are a permanent error."""
    with pytest.raises(Permanent, match="not an OTLP logs request"):
        run("", Batch(Signal.LOGS, b"\xff", context=BatchContext(), items=1))


def test_the_list_of_conventions_is_that_of_the_installed_package():
    """`make semconv` has been run after the package or the exclusions changed."""
    assert SEMCONV_FILE.read_text(encoding="utf-8") == semconv.generate()


@pytest.mark.parametrize(
    "key",
    [
        "gen_ai.prompt", "gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.system_instructions",
        "gen_ai.tool.call.arguments", "db.query.text", "db.statement", "db.query.parameter.name", "url.full",
        "url.query", "http.url", "http.target", "http.request.header.authorization", "http.response.header.set-cookie",
        "rpc.grpc.request.metadata.token", "user.id", "user.email", "enduser.id", "client.address",
        "process.command_args", "process.environment_variable.PATH", "db.connection_string", "log.record.original",
        "graphql.document", "k8s.pod.annotation.config",
    ],
)  # fmt: skip
def test_conventions_that_carry_user_content_do_not_pass(key):
    """Registered keys whose values are user content or say who the user is are not in the preset."""
    assert kept("presets: [otel_semconv]", (key, "x")) == {}


def test_every_exclusion_excludes_something():
    """No exclusion is a misspelling, and the keys that correlation needs pass."""
    registered = set(semconv._registered())
    dead = [
        pattern
        for patterns in semconv.EXCLUDED.values()
        for pattern in patterns
        if not any(semconv.fnmatchcase(key, pattern) for key in registered)
    ]

    assert dead == []
    assert kept("presets: [otel_semconv]", *((key, "1") for key in TRACE_CONTEXT)) == dict.fromkeys(TRACE_CONTEXT, "1")
