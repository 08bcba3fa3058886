"""The sidecar's own metrics, log and health."""

from __future__ import annotations

import io
import json
import logging

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from sidecar.telemetry import logs
from sidecar.telemetry.exposition import Exposition
from sidecar.telemetry.health import Health, HealthBoard
from sidecar.telemetry.metrics import Meter, Metrics


@pytest.fixture
def log():
    """The log as lines; what was set up before is restored."""
    names = ("sidecar", "aiohttp", "grpc", "asyncio")
    before = {name: (logging.getLogger(name).handlers, logging.getLogger(name).propagate) for name in names}
    levels = {name: logging.getLogger(name).level for name in names}
    yield io.StringIO()
    for name, (handlers, propagate) in before.items():
        logging.getLogger(name).handlers = handlers
        logging.getLogger(name).propagate = propagate
        logging.getLogger(name).setLevel(levels[name])


def some_metrics() -> Metrics:
    """One counter with two series, a gauge and a histogram."""
    metrics = Metrics()
    meter = Meter(metrics, receiver="otlp")
    meter.counter("otelcol_receiver_accepted_spans", "Spans.", transport="grpc").add(3)
    meter.counter("otelcol_receiver_accepted_spans", "Spans.", transport="http").add(4)
    meter.gauge("otelcol_exporter_queue_size", "Queue.", lambda: 5)
    meter.histogram("sidecar_seconds", "Time.", bounds=(0.1, 1.0)).observe(0.5)
    return metrics


def test_the_same_name_and_labels_give_the_same_counter():
    """Asking again does not start anew."""
    meter = Meter(Metrics(), receiver="otlp")
    meter.counter("a", "A.", x="1").add(2)
    meter.counter("a", "A.", x="1").add(3)
    assert meter.counter("a", "A.", x="1").value == 5


def test_a_value_sums_what_carries_the_labels():
    """Without labels it is the whole name, with labels the part."""
    metrics = some_metrics()
    assert metrics.value("otelcol_receiver_accepted_spans") == 7
    assert metrics.value("otelcol_receiver_accepted_spans", transport="http") == 4
    assert metrics.value("unknown") == 0


def test_series_of_a_component_that_is_gone_are_forgotten():
    """Nothing keeps being exposed for what no longer exists."""
    metrics = some_metrics()
    metrics.forget(receiver="otlp")
    assert [] == list(metrics.families())


def test_one_name_is_of_one_kind():
    """A counter can't become a gauge."""
    metrics = some_metrics()
    with pytest.raises(ValueError, match="is a counter, and can't be a gauge"):
        Meter(metrics).gauge("otelcol_receiver_accepted_spans", "Spans.", lambda: 1)


def test_the_default_page_has_the_collectors_names():
    """Counters are called as the Collector calls them: without _total."""
    page, content_type = Exposition(some_metrics(), suffixes=False, labels={}).page("")
    samples = [sample for family in parse_text(page.decode()) for sample in family.samples]
    values = {(sample.name, sample.labels.get("transport", "")): sample.value for sample in samples}
    assert values["otelcol_receiver_accepted_spans", "grpc"] == 3
    assert values["otelcol_exporter_queue_size", ""] == 5
    assert content_type.startswith("text/plain")


def test_a_page_with_suffixes_is_strict_openmetrics():
    """With suffixes, counters are counters, and the strict parser agrees."""
    exposition = Exposition(some_metrics(), suffixes=True, labels={"host": "h1"})
    page, content_type = exposition.page("application/openmetrics-text; version=1.0.0")
    families = {family.name: family for family in parse_openmetrics(page.decode())}
    assert content_type.startswith("application/openmetrics-text")
    assert families["otelcol_receiver_accepted_spans"].type == "counter"
    assert {sample.labels["host"] for family in families.values() for sample in family.samples} == {"h1"}


def test_the_console_log_is_one_readable_line(log):
    """Time, level, component, message."""
    logs.set_up("info", "console", log)
    logging.getLogger("sidecar.exporters.otlp").warning("no answer from %s", "gateway")
    logging.getLogger("sidecar.exporters.otlp").debug("not shown")
    assert log.getvalue().endswith("Z  WARN   exporters.otlp  no answer from gateway\n")
    assert log.getvalue().count("\n") == 1


def test_the_json_log_is_one_object_per_line(log):
    """Every line parses, the traceback included."""
    logs.set_up("info", "json", log)
    try:
        raise ValueError("oops")
    except ValueError:
        logging.getLogger("sidecar.x").exception("failed")
    line = json.loads(log.getvalue())
    assert (line["level"], line["component"], line["msg"]) == ("error", "x", "failed")
    assert "ValueError: oops" in line["stacktrace"]


def test_repeated_messages_are_sampled_and_the_rest_counted(log):
    """The first ten of a kind pass in a period, then every hundredth, which says how many were left out."""
    logs.set_up("info", "console", log)
    for number in range(250):
        logging.getLogger("sidecar.x").error("failed %d", number)
    lines = log.getvalue().splitlines()
    assert len(lines) == 12
    assert lines[-1].endswith("(99 similar messages left out)")


def test_the_board_knows_who_is_not_well():
    """Degraded and failed components are named, with what is wrong."""
    board, otlp, receiver = HealthBoard(), Health("exporters/otlp"), Health("receivers/otlp")
    board.add(otlp)
    board.add(receiver)
    otlp.degraded("connection refused")
    receiver.ok()
    assert board.failing == [otlp]
    otlp.ok()
    assert board.failing == []


def test_a_successor_keeps_its_entry_when_the_old_component_goes():
    """Removing what is gone does not remove who has taken its place."""
    board, old, new = HealthBoard(), Health("exporters/otlp"), Health("exporters/otlp")
    board.add(old)
    board.add(new)
    board.remove(old)
    assert board.components == {"exporters/otlp": new}
    board.remove(new)
    assert board.components == {}
