"""A document becomes checked settings of what is to be started, or one list of everything that is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.config_samples import (
    INSTALLED,
    BatchSettings,
    DebugSettings,
    OtlpExporterSettings,
    deprecated,
    resolve,
    settings_of,
)

from config import ComponentId, ConfigError, Duration, Secret
from config.document import AttributeSettings, PrometheusReaderSettings, ResourceSettings, load
from config.resolve import ResolvedPipeline
from config.resolve import resolve as resolve_document

GOLDEN = Path(__file__).parents[1] / "golden" / "config"
ENVIRON = {"SECRET": "hunter2", "SECRET_MAP": "{hunter2: 1}", "SECRET_LIST": "[hunter2]"}

MINIMAL = """
receivers: {otlp: {protocols: {grpc: }}}
exporters: {debug: }
service: {pipelines: {logs: {receivers: [otlp], exporters: [debug]}}}
"""


def resolved(text, **environ):
    """A document from a text, resolved."""
    return resolve(load([f"yaml:{text}"], environ))


def said(text, **environ):
    """Everything that is wrong with a document, without the name of the file."""
    with pytest.raises(ConfigError) as raised:
        resolved(text, **environ)
    return [str(problem).removeprefix("<command line>:") for problem in raised.value.problems]


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.yaml")), ids=lambda path: path.stem)
def test_what_is_said_of_a_document(path, monkeypatch):
    """Errors and warnings of whole documents are exactly those of the golden files, and show no substituted value."""
    monkeypatch.chdir(GOLDEN)
    try:
        lines = [str(warning) for warning in resolve(load([path.name], ENVIRON)).warnings]
    except ConfigError as error:
        lines = str(error).splitlines()
    assert lines == path.with_suffix(".txt").read_text().splitlines()
    assert not any("hunter2" in line for line in lines)


def test_a_collectors_document_loads():
    """A document made for the Collector has the settings that it asks for."""
    made = resolve(load([str(GOLDEN / "collector.yaml")], {}))
    assert made.components["exporters", ComponentId("otlp")].settings == OtlpExporterSettings(endpoint="collector:4317")
    assert made.components["exporters", ComponentId("logging")].settings == DebugSettings(verbosity="detailed")
    assert made.pipelines[0] == ResolvedPipeline(
        ComponentId("traces"),
        (ComponentId("otlp"),),
        (ComponentId("memory_limiter"), ComponentId("batch")),
        (ComponentId("otlp"), ComponentId("logging")),
    )
    telemetry = made.service.telemetry
    assert (telemetry.logs.level, telemetry.metrics.level) == ("debug", "detailed")
    assert telemetry.resource_attributes() == {"service.name": "edge", "service.instance.id": None}
    pull, periodic = telemetry.metrics.readers
    assert pull.pull.exporter.prometheus == PrometheusReaderSettings(host="0.0.0.0")
    assert (periodic.periodic.interval, periodic.periodic.exporter.otlp.protocol) == (Duration("10s"), "grpc")


def test_own_telemetry_has_the_collectors_defaults():
    """Without a reader, own metrics are at localhost:8888 and their names carry no suffixes."""
    metrics = resolved(MINIMAL).service.telemetry.metrics
    assert metrics.level == "normal"
    reader = metrics.readers[0].pull.exporter.prometheus
    assert (reader.host, reader.port, reader.without_type_suffix, reader.without_units) == (
        "localhost",
        8888,
        True,
        True,
    )


@pytest.mark.parametrize(
    ("text", "right"),
    [
        (
            "resource: {attributes: [{name: a, value: b}]}",
            ResourceSettings(attributes=(AttributeSettings(name="a", value="b"),)),
        ),
        ("resource: {a: b}", {"a": "b"}),
    ],
)
def test_both_spellings_of_the_resource(text, right):
    """The resource is a map, or the declarative configuration's list of attributes."""
    telemetry = resolved(MINIMAL.replace("service: {", f"service: {{telemetry: {{{text}}}, ")).service.telemetry
    assert telemetry.resource == right
    assert telemetry.resource_attributes() == {"a": "b"}


@pytest.mark.parametrize(
    ("reader", "problem"),
    [
        ("{}", "readers[0]: exactly one of pull and periodic must be written"),
        ("{pull: }", "readers[0].pull.exporter: required; write a map of keys"),
        ("{periodic: {exporter: {}}}", "readers[0].periodic.exporter: exactly one of otlp and console must be written"),
        ("{periodic: {exporter: {otlp: , console: }}}", "exactly one of otlp and console must be written"),
    ],
)
def test_unusable_readers(reader, problem):
    """A reader says where its metrics go."""
    text = MINIMAL.replace("service: {", f"service: {{telemetry: {{metrics: {{readers: [{reader}]}}}}, ")
    (found,) = said(text)
    assert found.endswith(problem)


def test_readers_may_be_none():
    """An empty list of readers is a choice, not a mistake; headers come in two shapes."""
    text = MINIMAL.replace("service: {", "service: {telemetry: {metrics: {readers: []}}, ")
    assert resolved(text).service.telemetry.metrics.readers == ()
    reader = "{periodic: {exporter: {otlp: {headers: [{name: a, value: b}]}}}}"
    text = MINIMAL.replace("service: {", f"service: {{telemetry: {{metrics: {{readers: [{reader}]}}}}, ")
    (header,) = resolved(text).service.telemetry.metrics.readers[0].periodic.exporter.otlp.headers
    assert (header.name, header.value) == ("a", Secret("b"))


def test_equal_documents_are_equal():
    """What is compared is what a document asks for, not where or how it was written."""
    assert resolved(MINIMAL) == resolved(
        MINIMAL.replace("\n", "\n\n").replace("debug: }", "debug: {verbosity: basic}}")
    )
    assert resolved(MINIMAL) != resolved(MINIMAL.replace("debug: }", "debug: {verbosity: normal}}"))
    assert resolved(MINIMAL) != resolved(MINIMAL.replace("exporters: {", "processors: {batch: }\nexporters: {"))


def test_unused_components_are_checked_and_not_used():
    """A component that no pipeline names is checked, marked and warned of."""
    made = resolved(MINIMAL + "processors: {batch: {timeout: 1s}}\nextensions: {health_check: }")
    component = made.components["processors", ComponentId("batch")]
    assert (component.settings, component.is_used) == (BatchSettings(timeout=Duration(1)), False)
    assert made.components["exporters", ComponentId("debug")].is_used
    assert [str(warning).partition(": ")[2] for warning in made.warnings] == [
        "warning: processors.batch: no pipeline uses it: it is checked but not started",
        "warning: extensions.health_check: service.extensions does not list it: it is checked but not started",
    ]
    assert said(MINIMAL + "processors: {batch: {timeout: 1}}")


def test_components_of_one_type_are_kept_apart():
    """`otlp` and `otlp/two` are two components; blanks around the parts of an id do not matter."""
    made = resolved(MINIMAL.replace("{debug: }", "{debug: , 'debug / two': {verbosity: normal}}"))
    assert made.components["exporters", ComponentId("debug", "two")].settings == DebugSettings(verbosity="normal")
    (problem,) = said(MINIMAL.replace("{debug: }", "{debug: , 'debug ': {verbosity: normal}}"))
    assert problem.endswith("means the same as another key: debug")


def test_places_in_lists_count_what_is_no_id():
    """A wrong id in a list does not move the places of the others."""
    text = MINIMAL.replace("exporters: [debug]", 'exporters: [debug/, "${env:X}", nope]')
    assert [problem.partition(" ")[0] for problem in said(text, X="true")] == ["4:61:", "4:70:", "4:81:"]


def test_pipelines_may_be_written_with_blanks():
    """Blanks around the parts of a pipeline's name do not matter, also for the places of its problems."""
    text = MINIMAL.replace("{logs:", "{'logs / a':")
    assert resolved(text).pipelines[0].id == ComponentId("logs", "a")
    (problem,) = said(text.replace("[debug]", "[]"))
    assert problem.startswith("4:23: service.pipelines")


def test_a_receiver_named_twice_is_taken_once():
    """What does no harm in the Collector is warned of."""
    made = resolved(MINIMAL.replace("[debug]", "[debug, debug]"))
    assert made.pipelines[0].exporters == (ComponentId("debug"),)
    (warning,) = made.warnings
    assert str(warning).endswith("exporters[1]: 'debug' is written twice in this list; write it once")


def test_connectors_join_pipelines():
    """A connector that ends one pipeline and starts another is used."""
    text = """
receivers: {otlp: {protocols: {grpc: }}}
exporters: {debug: }
connectors: {count: }
service:
  pipelines:
    logs: {receivers: [otlp], exporters: [count]}
    metrics: {receivers: [count], exporters: [debug]}
"""
    assert resolved(text).components["connectors", ComponentId("count")].is_used


def test_circles_depend_on_what_a_connector_connects():
    """Two pipelines form a circle only where the connectors make the one's signal from the other's."""
    text = """
receivers: {otlp: {protocols: {grpc: }}}
exporters: {debug: }
connectors: {count: , count/two: }
service:
  pipelines:
    logs: {receivers: [otlp, count/two], exporters: [count]}
    metrics: {receivers: [count], exporters: [count/two, debug]}
"""
    circle = "service.pipelines.metrics: feeds itself: metrics → count/two → logs → count → metrics; break the circle"
    assert [problem.partition(": ")[2] for problem in said(text)] == [circle]
    document = load([f"yaml:{text}"])
    one_way = resolve_document(document, settings_of, deprecated, lambda _type, source, _target: source == "logs")
    assert len(one_way.pipelines) == 2


def test_problems_found_later_have_their_place():
    """What a component or the graph refuses later is reported where it was written, or at the nearest part above."""
    made = resolved(MINIMAL.replace("debug: }", "debug: {verbosity: basic}}"))
    debug = ComponentId("debug")
    for path, place in ((("verbosity",), "3:32"), (("nowhere", 1), "3:13"), ((), "3:13")):
        problem = made.problem_at("exporters", debug, *path, message="is wrong; write another")
        assert str(problem.place) == f"<command line>:{place}"
        assert problem.path == ("exporters", "debug", *path)
    problem = made.problem_in_service("pipelines", "logs", "exporters", 0, message="can't take logs")
    assert str(problem) == "<command line>:4:61: service.pipelines.logs.exporters[0]: can't take logs"


def test_problems_found_later_do_not_show_substituted_values():
    """A constructor's message loses the texts that came from the environment."""
    made = resolved(MINIMAL.replace("{debug: }", '{debug: , otlp: {endpoint: "${env:X}"}}'), X="hunter2:1")
    problem = made.problem_at("exporters", ComponentId("otlp"), "endpoint", message="can't use 'hunter2:1'; write it")
    assert problem.message == "can't use '${env:X}'; write it"


def test_settings_are_looked_up_for_what_is_written_alone():
    """Only the components that a document names are looked up, so that nothing else need be imported."""
    asked = []

    def recording(kind, name):
        asked.append((kind, name))
        return settings_of(kind, name)

    resolve_document(load([f"yaml:{MINIMAL}"]), recording)
    assert sorted(asked) == [("exporters", "debug"), ("receivers", "otlp")]
    assert set(INSTALLED) == {"receivers", "processors", "exporters", "connectors", "extensions"}


NAMES = st.sampled_from(
    ["otlp", "otlp/a", "debug", "batch", "count", "health_check", "logs", "metrics/b", "nope", "${env:X}"]
)
WORDS = st.sampled_from([*INSTALLED, "service", "pipelines", "telemetry", "logs", "metrics", "readers"])
TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | NAMES | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS | NAMES, inner, max_size=4),
    max_leaves=8,
)
PIPELINES = st.dictionaries(
    NAMES, TREES | st.fixed_dictionaries({"receivers": st.lists(NAMES), "exporters": st.lists(NAMES)})
)
DOCUMENTS = st.fixed_dictionaries(
    {},
    optional={
        **{kind: TREES | st.dictionaries(NAMES, TREES) for kind in INSTALLED},
        "service": TREES | st.fixed_dictionaries({"pipelines": TREES | PIPELINES}, optional={"extensions": TREES}),
    },
)


@given(DOCUMENTS)
def test_any_document_is_resolved_or_refused_in_good_order(document):
    """Whatever is written, there are settings to start from, or problems that each have a place."""
    problems = []
    try:
        resolved(json.dumps(document, ensure_ascii=False), X="debug")
    except ConfigError as error:
        problems = error.problems
    assert all(problem.place.line >= 1 and problem.message for problem in problems)
