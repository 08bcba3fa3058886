"""Names and labels by the translation's rules, each rule by an example."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.utils import floatToGoString
from support.otlp_metrics import any_value, attributes

from exporters.prometheus.exemplars import Exemplar, shown_labels
from exporters.prometheus.labels import LabelRules, Selection, read, scope_pairs, value_text, written
from exporters.prometheus.names import LEGAL_LABEL, LEGAL_METRIC, Translator, escape, legal_namespace
from exporters.prometheus.text import bound_text, number_text, number_texts, seconds_text

CLASSIC = Translator()
UTF8 = Translator("NoUTF8EscapingWithSuffixes")


@pytest.mark.parametrize(
    ("name", "unit", "kind", "expected"),
    [
        ("system.io", "By", "counter", "system_io_bytes_total"),
        ("system.io.total", "By", "counter", "system_io_bytes_total"),
        ("foo.total.bytes", "By", "counter", "foo_bytes_total"),
        ("x_total", "", "counter", "x_total"),
        ("total", "", "counter", "total"),
        ("_foo__bar_", "", "gauge", "foo_bar"),
        ("a:b", "", "gauge", "a:b"),
        ("9lives", "", "gauge", "_9lives"),
        ("x.seconds.y", "s", "gauge", "x_seconds_y"),
        ("rate.per_second", "1/s", "gauge", "rate_per_second_per_second"),
        ("disk", "KBy", "gauge", "disk_kilobytes"),
        ("disk", "kBy", "gauge", "disk_kilobytes"),
        ("disk", "TiBy", "gauge", "disk_tibibytes"),
        ("speed", "m/s", "gauge", "speed_meters_per_second"),
        ("speed", "km/h", "gauge", "speed_km_per_hour"),
        ("calls", "{calls}/m", "gauge", "calls_per_minute"),
        ("x", "{x}By", "gauge", "x"),
        ("x", "By/{packet}", "gauge", "x_bytes"),
        ("x", " By / s ", "gauge", "x_bytes_per_second"),
        ("x", "/", "gauge", "x"),
        ("x", "m^2", "gauge", "x_m_2"),
        ("x", "1/°", "gauge", "x"),
        ("hit", "1", "gauge", "hit_ratio"),
        ("hit.ratio", "1", "gauge", "hit_ratio"),
        ("hit", "1", "updown", "hit"),
        ("hit", "1", "counter", "hit_total"),
        ("hit", "1", "histogram", "hit"),
        ("t", "ms", "histogram", "t_milliseconds"),
        ("t", "h", "gauge", "t_hours"),
        ("日本", "s", "gauge", None),
        ("___", "", "gauge", None),
        ("", "s", "gauge", None),
    ],
)
def test_metric_name_with_suffixes(name, unit, kind, expected):
    """Tokens of the name, then unit, rate and type, none of them twice."""
    found = CLASSIC.metric(name, unit, kind)
    assert (found and found.name) == expected


@pytest.mark.parametrize(
    ("strategy", "name", "unit", "kind", "expected"),
    [
        ("UnderscoreEscapingWithoutSuffixes", "foo.bar__baz", "By", "counter", "foo_bar__baz"),
        ("UnderscoreEscapingWithoutSuffixes", "_foo", "", "gauge", "_foo"),
        ("UnderscoreEscapingWithoutSuffixes", "___", "", "gauge", "___"),
        ("UnderscoreEscapingWithoutSuffixes", "___!", "", "gauge", None),
        ("UnderscoreEscapingWithoutSuffixes", "1xx", "", "gauge", "_1xx"),
        ("NoUTF8EscapingWithSuffixes", "foo.bar", "By", "counter", "foo.bar_bytes_total"),
        ("NoUTF8EscapingWithSuffixes", "foo.bar.bytes.total", "By", "counter", "foo.bar_bytes_total"),
        ("NoUTF8EscapingWithSuffixes", "requêsts", "1/s", "counter", "requêsts_per_second_total"),
        ("NoUTF8EscapingWithSuffixes", "hit.ratio", "1", "gauge", "hit_ratio"),
        ("NoUTF8EscapingWithSuffixes", "", "", "gauge", None),
        ("NoTranslation", "foo.bar", "By", "counter", "foo.bar"),
        ("NoTranslation", "1 ü", "", "gauge", "1 ü"),
    ],
)
def test_metric_name_by_strategy(strategy, name, unit, kind, expected):
    """Each strategy keeps or replaces characters and suffixes as it says."""
    found = Translator(strategy).metric(name, unit, kind)
    assert (found and found.name) == expected


@pytest.mark.parametrize(
    ("name", "unit", "kind", "expected"),
    [
        ("x", "By", "counter", "bytes"),
        ("x", "By/s", "gauge", "bytes_per_second"),
        ("x", "1", "gauge", "ratio"),
        ("x", "1", "counter", ""),
        ("x.seconds.y", "s", "gauge", ""),
        ("x", "{y}", "gauge", ""),
    ],
)
def test_unit_is_told_only_where_the_name_ends_with_it(name, unit, kind, expected):
    """OpenMetrics takes a UNIT only as the end of the name."""
    assert CLASSIC.metric(name, unit, kind).unit == expected


@pytest.mark.parametrize(
    ("namespace", "name", "expected"),
    [("my.app", "1x", "my_app_1x"), ("9", "x", "_9_x"), ("", "x", "x"), ("!", "x", "x")],
)
def test_namespace_stands_before_the_name(namespace, name, expected):
    """A namespace is made legal, and a digit after it needs no underscore."""
    assert Translator(namespace=legal_namespace(namespace)).metric(name, "", "gauge").name == expected


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("http.method", "http_method"),
        ("a..b--c", "a_b_c"),
        ("a:b", "a_b"),
        ("9z", "key_9z"),
        ("_foo", "_foo"),
        ("__foo", "_foo"),
        ("__name__", "name"),
        ("__a.b__", "a_b"),
        ("____", "_"),
        ("ようこそ", "_"),
    ],
)
def test_label_name(key, expected):
    """Runs of other characters are one underscore; what is Prometheus's own is taken off."""
    assert CLASSIC.label(key) == expected


@pytest.mark.parametrize(
    ("key", "expected"), [("http.method", "http.method"), ("__x__", "x"), ("__x", "_x"), ("9", "9")]
)
def test_label_name_with_utf8(key, expected):
    """Everything stays but two underscores at the start."""
    assert UTF8.label(key) == expected


@given(st.text())
def test_classic_names_are_always_legal(name):
    """Whatever comes in, a name is legal, or there is none."""
    found = CLASSIC.metric(name, name, "counter")
    assert found is None or LEGAL_METRIC.fullmatch(found.name)
    label = CLASSIC.label(name)
    assert label == "" if not name else LEGAL_LABEL.fullmatch(label)
    assert not label.startswith("__")


@pytest.mark.parametrize(
    ("scheme", "name", "expected"),
    [
        ("allow-utf-8", "a.b", "a.b"),
        ("underscores", "a.b-c", "a_b_c"),
        ("underscores", "1a", "_a"),
        ("underscores", "日本", "__"),
        ("dots", "a.b_c", "a_dot_b__c"),
        ("dots", "a_b", "a__b"),
        ("dots", "a b", "a__b"),
        ("values", "a_b", "a_b"),
        ("values", "a.b_c", "U__a_2e_b__c"),
        ("values", "1a", "U___31_a"),
        ("values", "\ud800", "U___FFFD_"),
        ("values", "🎉", "U___1f389_"),
    ],
)
def test_escaping_schemes(scheme, name, expected):
    """Each scheme writes what a classic name can't hold in its own way."""
    assert escape(name, scheme, metric=True) == expected


@pytest.mark.parametrize(("name", "expected"), [("日本", "_"), ("a:b", "a_b"), ("_a.b", "_a_b")])
def test_escaped_label_names(name, expected):
    """A label name may hold no colon, and never starts with two underscores."""
    assert escape(name, "underscores", metric=False) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("text", "text"), (True, "true"), (False, "false"), (42, "42"), (-(2**63), str(-(2**63))), (1.5, "1.5"),
        (1.0, "1"), (math.nan, "NaN"), (math.inf, "Infinity"), (-math.inf, "-Infinity"),
        (b"hello world", "aGVsbG8gd29ybGQ="),
        (None, ""), (["a", 1, True, None], '["a",1,true,null]'), ({"a": {"b": [1.5]}}, '{"a":{"b":[1.5]}}'),
        ([math.nan, math.inf, b"x"], '["NaN","Infinity","eA=="]'), ([], "[]"), ({}, "{}"),
    ],
)  # fmt: skip
def test_values_as_text(value, expected):
    """Texts as they are, everything else as JSON."""
    assert value_text(any_value(value)) == expected


def merged(pairs, generated=None, reserved="", **rules):
    """The labels that attributes become."""
    return LabelRules(CLASSIC, **rules).merged(list(pairs.items()), generated or {}, reserved)


def test_keys_that_meet_are_joined_in_the_order_of_their_bytes():
    """Values of keys that become one label are joined; equal ones are repeated, or written once where asked."""
    pairs = {"a_b": "2", "a.b": "1", "a-b": "3"}
    assert merged(pairs) == {"a_b": "3;1;2"}
    assert merged({"k8s.pod": "p", "k8s_pod": "p"}) == {"k8s_pod": "p;p"}
    assert merged({"k8s.pod": "p", "k8s_pod": "p"}, distinct=True) == {"k8s_pod": "p"}


def test_generated_labels_win():
    """An attribute named like a generated or reserved label moves aside, and is joined there if need be."""
    found = merged({"job": "mine", "le": "x", "exported.job": "y"}, {"job": "shop"}, reserved="le")
    assert found == {"job": "shop", "exported_job": "y;mine", "exported_le": "x"}


def test_constant_labels_only_fill_gaps():
    """A constant label never hides or joins what a series says itself."""
    found = merged({"env": "prod"}, {"job": "shop"}, constant=(("env", "x"), ("job", "y"), ("site", "z")))
    assert found == {"env": "prod", "job": "shop", "site": "z"}


def test_long_values_are_cut():
    """By characters."""
    assert merged({"a": "é" * 10}, max_value_length=4) == {"a": "éééé"}


def test_scope_attributes_named_like_the_scopes_own_are_left_out():
    """`name`, `version` and `schema_url` of a scope are its own; other attributes get the prefix."""
    found = scope_pairs("lib", "1", "", attributes({"name": "x", "schema.url": "y", "color": "red"}))
    assert found == [("otel_scope_name", "lib"), ("otel_scope_version", "1"), ("otel_scope_color", "red")]


@given(st.dictionaries(st.text(min_size=1).filter(lambda name: "\0" not in name), st.text()))
def test_written_labels_can_be_read(labels):
    """What is written is read again, whatever quotes, backslashes and newlines it holds."""
    expected = {name: value.replace("\0", "\ufffd") for name, value in labels.items()}
    assert dict(read(written(labels))) == expected


@pytest.mark.parametrize(
    ("included", "excluded", "chosen"),
    [
        ((), (), set()),
        (("*",), (), {"host.name", "host.id", "os"}),
        (("host.*",), (), {"host.name", "host.id"}),
        ((), ("host.*",), {"os"}),
        (("host.*",), ("host.id",), {"host.name"}),
        (("o?",), (), {"os"}),
    ],
)
def test_selection_by_globs(included, excluded, chosen):
    """Only exclusions mean all the rest."""
    selection = Selection.of(included, excluded)
    assert {key for key in ("host.name", "host.id", "os") if selection(key)} == chosen


@pytest.mark.parametrize(
    "value", [0.0, 0.005, 1.0, 10.0, 99999.0, 1e5, 1e6, 1234567.5, 123456789.0, 1e16, 1e-7, 2.0**60]
)
def test_bounds_as_prometheus_writes_them(value):
    """The canonical text of OpenMetrics, as the reference implementation has it."""
    assert bound_text(value) == floatToGoString(value)


@given(st.floats() | st.integers(min_value=-(2**70), max_value=2**70))
def test_numbers_are_read_as_they_were(value):
    """No digit is lost, whatever the batch that a number is written in."""
    for text in (number_text(value), number_texts([1.5, value, 2])[1]):
        assert float(text) == value or (math.isnan(value) and text == "NaN")


@pytest.mark.parametrize(
    ("nanoseconds", "expected"), [(0, "0"), (1_500_000_000, "1.5"), (10**18 + 1, "1000000000.000000001")]
)
def test_times_as_seconds(nanoseconds, expected):
    """Exact, and without an exponent."""
    assert seconds_text(nanoseconds) == expected


def test_exemplar_ids_come_before_attributes():
    """Ids always fit; attributes follow in order as long as 128 characters hold them, and never replace an id."""
    raw = tuple(
        one.SerializeToString() for one in attributes({"a" * 70: "x", "b": "y", "trace.id": "z", "c": "w" * 62})
    )
    found = shown_labels(Exemplar(1.0, 1, bytes(15) + b"\x01", bytes(7) + b"\x02", raw))
    assert found == {"trace_id": "0" * 31 + "1", "span_id": "0" * 15 + "2", "b": "y", "c": "w" * 62}


def test_exemplar_that_can_not_be_read_keeps_its_ids():
    """Attributes that are not UTF-8 are left out."""
    assert shown_labels(Exemplar(1.0, 1, b"\x01" * 16, b"", (b"\x0a\x01\xff",))) == {"trace_id": "01" * 16}
