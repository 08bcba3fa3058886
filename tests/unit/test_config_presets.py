"""The documents that come with the sidecar are right, with the components that are really installed."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest

from config import ComponentId, Endpoint, Rate, presets
from config.document import load
from config.nodes import parse
from config.resolve import resolve
from config.schema import json_schema
from sidecar.component import Kind
from sidecar.graph import GraphBuilder, Host
from sidecar.registry import Registry

ENVIRON = {"DD_API_KEY": "made-up", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:14317"}


def resolved(name):
    """A preset, checked against what is installed."""
    registry = Registry()
    return resolve(load([f"preset:{name}"], ENVIRON), registry.settings_of, registry.deprecated)


@pytest.mark.parametrize("name", presets.names())
def test_presets_are_right(name):
    """A preset has neither problems nor warnings, and its components take their settings and signals."""
    made = resolved(name)
    assert made.warnings == ()
    graph = GraphBuilder(made, Registry(), Host()).build()
    assert len(graph.order) == len(made.pipelines)


@pytest.mark.parametrize("name", presets.names())
def test_presets_suit_the_schema(name):
    """An editor that knows the schema of what is installed finds nothing wrong with a preset."""
    registry = Registry()
    installed = {
        kind.value: {one: registry.settings_of(kind.value, one) for one in registry.types(kind)} for kind in Kind
    }
    jsonschema.validate(parse(presets.text(name), name, []).plain(), json_schema(installed))


def test_a_collectors_document_is_right():
    """A document made for the Collector, with its deprecated spellings, runs with what is installed."""
    registry = Registry()
    document = load([str(Path(__file__).parents[1] / "golden" / "config" / "collector.yaml")], {})
    made = resolve(document, registry.settings_of, registry.deprecated)
    graph = GraphBuilder(made, registry, Host()).build()
    assert [str(pipeline.id) for pipeline in graph.order] == ["traces", "metrics", "logs"]


def test_there_are_five():
    """The names are those that the documentation lists."""
    assert presets.names() == ("datadog", "datadog-agent", "default", "gateway", "prometheus")


def test_datadog_is_the_default_with_another_exporter():
    """From Prometheus to Datadog it is one word of the pipelines, and the exporter's own settings."""
    default, datadog = resolved("default"), resolved("datadog")
    word = ComponentId("datadog")
    assert datadog.pipelines == tuple(pipeline._replace(exporters=(word,)) for pipeline in default.pipelines)
    others = {key: made for key, made in datadog.components.items() if key != ("exporters", word)}
    assert others == {key: made for key, made in default.components.items() if key[0] != "exporters"}


def test_in_an_agents_place_there_is_more_to_receive():
    """Everything else is as in the document for Datadog, but for the keys that its clients write."""
    datadog, agent = resolved("datadog"), resolved("datadog-agent")
    added = {("receivers", ComponentId("datadog")), ("receivers", ComponentId("dogstatsd"))}
    assert set(agent.components) == set(datadog.components) | added
    allowlist = ("processors", ComponentId("allowlist"))
    assert {key for key, made in datadog.components.items() if agent.components[key] != made} == {allowlist}
    assert agent.components[allowlist].settings.presets == ("telemetry_event", "otel_semconv", "datadog")
    taken = {pipeline.id: set(pipeline.receivers) for pipeline in datadog.pipelines}
    more = {str(pipeline.id): set(pipeline.receivers) - taken[pipeline.id] for pipeline in agent.pipelines}
    assert {id_: set(map(str, ids)) for id_, ids in more.items() if ids} == {
        "logs": {"dogstatsd"},
        "traces": {"datadog"},
        "metrics": {"datadog", "dogstatsd"},
    }


def test_telemetry_events_have_the_rates_of_their_contract():
    """100 a minute and 200 at once for each caller, 10 and 30 for each unknown address."""
    limit = resolved("default").components["processors", ComponentId("rate_limit")].settings
    assert (limit.rate, limit.burst, limit.key) == (Rate("100/m"), 200, ("identity",))
    anonymous = limit.anonymous
    assert (anonymous.rate, anonymous.burst, anonymous.key) == (Rate("10/m"), 30, ("client_address",))


@pytest.mark.parametrize("name", ["default", "datadog", "datadog-agent"])
def test_presets_for_one_host_listen_on_localhost(name):
    """Nothing is open to the network unless told so."""

    def endpoints(value):
        if isinstance(value, Endpoint):
            yield value
        for field in getattr(value, "__struct_fields__", ()):
            yield from endpoints(getattr(value, field))

    found = [endpoint for made in resolved(name).components.values() for endpoint in endpoints(made.settings)]
    assert {endpoint.host for endpoint in found} == {"localhost"}
    assert len(found) >= 5
