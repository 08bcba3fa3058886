"""The documentation of the Prometheus exporter: its examples, dashboard and alert rules fit what the sidecar shows."""

import json
import re
from pathlib import Path

import msgspec
import pytest
import yaml
from support.otlp_metrics import buckets, gauge, histogram, point, sum_
from support.prometheus import Subject
from support.prometheus_server import program, promtool

from config.decode import settings_from_yaml
from exporters.prometheus import PrometheusSettings
from sidecar.net import HttpServerSettings
from sidecar.pipeline.observe import DROPPED

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "prometheus.md").read_text()
FOLDER = DOCS / "prometheus"


def dashboard_expressions():
    """The expressions of all panels, with Grafana's variables filled in."""
    dashboard = json.loads((FOLDER / "dashboard.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"].replace("$__rate_interval", "5m").replace("$service", ".*")


def alert_expressions():
    """The expressions of all alert rules."""
    for group in yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]:
        for rule in group["rules"]:
            yield rule["expr"]


def test_alert_rules_fire_when_they_should():
    """Promtool takes the rules, and its tests of them pass."""
    program("promtool")
    for command in (("check", "rules", FOLDER / "alerts.yml"), ("test", "rules", FOLDER / "alerts.test.yml")):
        code, output = promtool(*command)
        assert code == 0, output


def test_dashboard_expressions_are_promql(tmp_path):
    """Promtool takes every expression of the dashboard."""
    program("promtool")
    rules = [{"record": f"panel_{number}", "expr": one} for number, one in enumerate(dashboard_expressions())]
    assert len(rules) > 10
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    code, output = promtool("check", "rules", path)
    assert code == 0, output


@pytest.mark.parametrize("expressions", [dashboard_expressions, alert_expressions])
async def test_expressions_name_metrics_that_there_are(expressions):
    """Every derived metric and every metric of the exporter's own that is queried exists under that name."""
    subject = Subject()
    await subject.feed(gauge("", point(1)))
    own = {family.name for family in subject.bench.metrics.families()} | {DROPPED}
    derived = set(re.findall(r"^\| `(\w+)` \| ", PAGE, re.MULTILINE))
    for expression in expressions():
        for name in re.findall(r"(?<!\w)(?:sidecar|telemetry|log|traces)_\w+(?=[\[{( ]|$)", expression):
            base = re.sub(r"_(bucket|sum|count)$", "", name)
            assert base in own | derived, f"{name} in {expression}"


def test_settings_of_the_page_are_accepted():
    """Every YAML example below `exporters`, and every setting of the tables."""
    examples = [yaml.safe_load(one) for one in re.findall(r"```yaml\n(exporters:.*?)```", PAGE, re.DOTALL)]
    assert examples
    for example in examples:
        settings_from_yaml(yaml.safe_dump(example["exporters"]["prometheus"]), PrometheusSettings)
    (inner,) = re.findall(r"```yaml\n(    logs:.*?)```", PAGE, re.DOTALL)
    settings_from_yaml(inner, PrometheusSettings)
    fields = {field.name for field in msgspec.structs.fields(PrometheusSettings)}
    named = set(
        re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`[^|]*) \|", PAGE.partition("## Limits")[2], re.MULTILINE)))
    )
    assert named <= fields, named - fields
    told = set(re.findall(r"\w+", PAGE))
    listener = {field.name for field in msgspec.structs.fields(HttpServerSettings)}
    ignored = {"compression_algorithms", "response_headers"}
    assert fields - listener - ignored <= told, fields - listener - ignored - told


@pytest.mark.parametrize(
    ("metric", "name"),
    [
        (sum_("http.server.requests", point(1)), "http_server_requests_total"),
        (gauge("process.memory.usage", point(1), unit="By"), "process_memory_usage_bytes"),
        (
            histogram("http.server.request.duration", buckets([], [1]), unit="s"),
            "http_server_request_duration_seconds_bucket",
        ),
        (gauge("hit.rate", point(1), unit="1"), "hit_rate_ratio"),
        (gauge("io", point(1), unit="By/s"), "io_bytes_per_second"),
    ],
)
async def test_names_of_the_page(metric, name):
    """The table of names says what is so."""
    assert f"`{metric.name}`" in PAGE
    assert f"`{name}`" in PAGE
    subject = Subject()
    await subject.feed(metric)
    assert name in subject.read().names()


async def test_promtool_takes_the_page_that_a_sidecar_shows():
    """Without an error; its advice on style is the senders' business."""
    program("promtool")
    subject = Subject()
    await subject.feed(
        sum_("requests", point(1, a='"\\\n')), histogram("h", buckets([1], [1, 1], 2)), gauge("g", point(1))
    )
    code, output = promtool("check", "metrics", stdin=subject.page())
    assert code != 1, output
