"""The `otlp_http` exporter's settings: what is accepted, what is refused, and with which words."""

import pytest

from config.problems import ConfigError
from exporters.otlp_http import OtlpHttpExporter
from sidecar import Signal
from sidecar.testing import Bench


@pytest.fixture
def make():
    """Makes an exporter from YAML."""
    return lambda yaml: Bench().make(OtlpHttpExporter, yaml)


def test_urls(make):
    """The base URL gets the signal's path; the endpoint of a signal is taken as it is."""
    urls = make("{endpoint: 'http://a:4318/', metrics_endpoint: 'https://b/in?x=1'}").settings.urls

    assert urls == {
        Signal.TRACES: "http://a:4318/v1/traces",
        Signal.METRICS: "https://b/in?x=1",
        Signal.LOGS: "http://a:4318/v1/logs",
    }


@pytest.mark.parametrize(
    ("yaml", "problem"),
    [
        ("{}", "endpoint: no endpoint; write for example endpoint: http://gateway:4318"),
        ("endpoint: gateway:4318", "endpoint: .* is not a URL"),
        ("endpoint: unix:///run/x.sock", "endpoint: .* is not a URL"),
        ("{endpoint: 'http://a', encoding: protobuf}", "encoding: 'protobuf' is not a choice"),
        ("{endpoint: 'http://a', compression: lz4}", "compression: 'lz4' is not a choice"),
        ("{endpoint: 'http://a', headers: {'a b': x}}", r"headers\[.a b.\]: not a header"),
        ("{endpoint: 'http://a', headers: {Content-Type: x}}", r"headers\.Content-Type: not a header that can be set"),
        ("{endpoint: 'http://a', headers: {a: \"one\\ntwo\"}}", r"headers\.a: the value holds a line break"),
    ],
)
def test_what_is_refused(make, yaml, problem):
    """Each wrong setting is refused at its place, with what would be right."""
    with pytest.raises(ConfigError, match=problem):
        make(yaml)


def test_secrets_stay_hidden(make):
    """Neither settings nor exporter show a header."""
    exporter = make("{endpoint: 'http://a', headers: {key: s3cret-header}}")

    assert "s3cret" not in f"{exporter!r} {exporter.settings!r} {exporter.settings}"


def test_a_collector_document_is_understood(make):
    """Every key of the Collector's exporter that has a meaning here, and some that have none."""
    settings = make("""
        endpoint: https://gateway:4318
        traces_endpoint: https://traces.example/v1/traces
        encoding: json
        compression: zstd
        tls: {insecure: false, insecure_skip_verify: true}
        headers: {Authorization: "Bearer x"}
        timeout: 10s
        read_buffer_size: 123
        write_buffer_size: 345
        max_idle_conns: 100
        max_idle_conns_per_host: 100
        idle_conn_timeout: 90s
        sending_queue: {enabled: false}
    """).settings

    assert settings.timeout == 10
    assert not settings.sending_queue.enabled


def test_its_old_name_is_deprecated():
    """`otlphttp` works, with a warning that names the new one."""
    assert OtlpHttpExporter.deprecated_types == {"otlphttp"}


def test_a_request_may_take_longer_than_over_grpc(make):
    """30 s unless told otherwise, as in the Collector."""
    assert make("endpoint: http://a").settings.timeout == 30
