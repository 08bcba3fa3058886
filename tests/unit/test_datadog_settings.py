"""What a user writes below `datadog`, and what the environment says."""

from __future__ import annotations

import pytest

from config.problems import ConfigError
from exporters.datadog.settings import SITES, Account, DatadogSettings, defaults_of
from sidecar import SettingError
from sidecar.testing import settings_from_yaml

KEY = "0123456789abcdef0123456789abcdef"


def settings(text: str = "") -> DatadogSettings:
    """Checked settings."""
    return settings_from_yaml(text, DatadogSettings)


@pytest.mark.parametrize("site", [*SITES, "xx9.datadoghq.com"])
def test_sites(site):
    """Those that are known, and regions to come."""
    account = Account.of(settings(f"api: {{key: {KEY}, site: {site}}}"), {})
    assert account.url("http-intake.logs", "/api/v2/logs") == f"https://http-intake.logs.{site}/api/v2/logs"


@pytest.mark.parametrize(
    "site", ["app.datadoghq.com", "https://datadoghq.eu", "datadoghq.example", "datadoghq.com.example.org", "us5"]
)
def test_what_is_no_site_is_refused(site):
    """Data and key would go to somebody else; the message names those that are right."""
    with pytest.raises(ConfigError, match=r"not a Datadog site; known: datadoghq\.com"):
        settings(f"api: {{site: '{site}'}}")
    with pytest.raises(SettingError) as failure:
        Account.of(settings(), {"DD_API_KEY": KEY, "DD_SITE": site})
    assert failure.value.path == ("api", "site")


def test_the_environment_stands_in():
    """For what the document leaves open, and for nothing else."""
    environment = {"DD_API_KEY": KEY, "DD_SITE": "datadoghq.eu", "DD_ENV": "e", "DD_SERVICE": "s", "DD_VERSION": "v"}
    account = Account.of(settings(), environment)
    assert (account.key.reveal(), account.site) == (KEY, "datadoghq.eu")
    defaults = defaults_of(settings(), environment)
    assert (defaults.env, defaults.service, defaults.version) == ("e", "s", "v")
    written = settings("api: {key: other, site: us5.datadoghq.com}\nenv: x\nhostname: h")
    account = Account.of(written, environment)
    assert (account.key.reveal(), account.site) == ("other", "us5.datadoghq.com")
    assert (defaults_of(written, environment).env, defaults_of(written, environment).hostname) == ("x", "h")
    assert Account.of(settings(), {"DD_API_KEY": KEY}).site == "datadoghq.com"


def test_the_key_is_in_no_repr():
    """Nor in that of anything that holds it."""
    written = settings(f"api: {{key: {KEY}}}")
    assert KEY not in repr(written) + repr(Account.of(written, {}))


@pytest.mark.parametrize(
    ("endpoint", "logs", "stats"),
    [
        ("http://proxy:8080", "http://proxy:8080/api/v2/logs", "http://proxy:8080/api/v0.2/stats"),
        ("http://proxy/datadog/", "http://proxy/datadog/api/v2/logs", "http://proxy/datadog/api/v0.2/stats"),
        ("http://proxy/api/v2/logs", "http://proxy/api/v2/logs", None),
        ("http://proxy/api/v0.2/traces", None, "http://proxy/api/v0.2/stats"),
    ],
)
def test_endpoints_get_the_path_of_the_intake(endpoint, logs, stats):
    """Unless it is there; intakes that share an endpoint each get their own."""
    account = Account.of(settings(f"api: {{key: {KEY}}}"), {})
    url = settings(f"logs: {{endpoint: '{endpoint}'}}").logs.endpoint
    if logs:
        assert account.url("http-intake.logs", "/api/v2/logs", url) == logs
    if stats:
        assert account.url("trace.agent", "/api/v0.2/stats", url, "/api/v0.2/traces") == stats


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("traces: {ignore_resources: ['(']}", "not a regular expression"),
        ("traces: {agent_url: 'localhost:8126'}", "is not a URL"),
        ("metrics: {dogstatsd_url: 'localhost:8125'}", "write for example udp"),
        ("metrics: {histograms: {mode: nobuckets}}", "add send_aggregation_metrics"),
        ("logs: {compression: brotli}", "brotli"),
    ],
)
def test_settings_that_can_not_work(text, message):
    """Refused when the document is checked, with what would be right."""
    with pytest.raises(ConfigError, match=message):
        settings(text)


def test_a_document_of_the_collector_is_accepted():
    """Its names, and those of its settings that mean nothing here."""
    accepted = settings("""
api: {key: k, site: datadoghq.eu, fail_on_invalid_key: true}
hostname: h
host_metadata: {enabled: true, hostname_source: config_or_system}
metrics:
  delta_ttl: 3600
  resource_attributes_as_tags: true
  histograms: {mode: counters, send_aggregation_metrics: true}
  sums: {cumulative_monotonic_mode: raw_value, initial_cumulative_monotonic_value: keep}
  summaries: {mode: noquantiles}
traces:
  span_name_remappings: {a: b}
  ignore_resources: ["^GET /health"]
  compute_stats_by_span_kind: true
  peer_tags_aggregation: true
  trace_buffer: 100
logs: {use_compression: true, compression_level: 6, batch_wait: 5}
timeout: 10s
sending_queue: {queue_size: 1000}
retry_on_failure: {max_elapsed_time: 60s}
""")
    assert defaults_of(accepted, {}).tag_patterns == ("*",)
