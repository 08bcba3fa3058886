"""The `otlp` exporter's settings: what is accepted, what is refused, and with which words."""

import pytest

from config import ComponentId, Secret
from config.problems import ConfigError
from exporters.otlp import OtlpExporter
from sidecar.testing import Bench


@pytest.fixture
def make():
    """Makes an exporter from YAML."""
    return lambda yaml: Bench().make(OtlpExporter, yaml, "otlp/edge")


@pytest.mark.parametrize(
    ("endpoint", "target", "is_secure"),
    [
        ("gateway:4317", "dns:gateway:4317", True),
        ("https://gateway:4317", "dns:gateway:4317", True),
        ("https://gateway:4317/", "dns:gateway:4317", True),
        ("http://gateway:4317", "dns:gateway:4317", False),
        ("dns:///gateway:4317", "dns:gateway:4317", True),
        ("'[::1]:4317'", "dns:[::1]:4317", True),
        ("unix:///run/otlp.sock", "unix:///run/otlp.sock", False),
        ("unix:/run/otlp.sock", "unix:/run/otlp.sock", False),
    ],
)
def test_endpoints(make, endpoint, target, is_secure):
    """Host and port mean TLS, as in the Collector; http:// and a Unix socket do not."""
    exporter = make(f"endpoint: {endpoint}")

    assert (exporter._target, exporter._is_secure) == (target, is_secure)


@pytest.mark.parametrize(
    ("endpoint", "is_secure"), [("gateway:4317", False), ("https://gateway:4317", True), ("http://gateway:4317", False)]
)
def test_insecure(make, endpoint, is_secure):
    """`tls.insecure` is for endpoints without a scheme: https:// asks for TLS whatever else is written."""
    assert make(f"{{endpoint: '{endpoint}', tls: {{insecure: true}}}}")._is_secure is is_secure


@pytest.mark.parametrize(
    ("yaml", "problem"),
    [
        ("{}", "endpoint: .*required"),
        ("endpoint: gateway", r"1:11: endpoint: not a host and a port; write for example gateway:4317"),
        ("endpoint: gateway:4317/v1/logs", "endpoint: not a host and a port"),
        ("endpoint: https://user:pw@gateway:4317", "endpoint: not a host and a port"),
        ("endpoint: 'gateway:99999'", "endpoint: not a host and a port"),
        ("endpoint: ftp://gateway:4317", "endpoint: ftp:// is not understood"),
        ("{endpoint: 'http://a:1', tls: {ca_file: /ca.pem}}", "endpoint: http:// is without TLS"),
        ("{endpoint: 'a:1', tls: {insecure_skip_verify: true}}", r"tls\.insecure_skip_verify: .* in ca_file"),
        ("{endpoint: 'a:1', tls: {cert_file: /c.pem}}", r"tls\.key_file: a certificate and its key belong together"),
        ("{endpoint: 'a:1', tls: {key_pem: xyz}}", r"tls\.cert_file: a certificate and its key belong together"),
        ("{endpoint: 'a:1', tls: {ca_file: /c.pem, ca_pem: x}}", r"tls\.ca_pem: ca_file and ca_pem say the same"),
        ("{endpoint: 'a:1', headers: {'a b': x}}", r"headers\[.a b.\]: not usable as gRPC metadata"),
        ("{endpoint: 'a:1', headers: {grpc-timeout: 1S}}", r"headers\.grpc-timeout: not usable"),
        ("{endpoint: 'a:1', headers: {token-bin: x}}", r"headers\.token-bin: not usable"),
        ("{endpoint: 'a:1', headers: {a: \"one\\ntwo\"}}", r"headers\.a: the value holds a line break"),
        ("{endpoint: 'a:1', compression: snappy}", "compression: 'snappy' is not a choice"),
        ("{endpoint: 'a:1', retries: 3}", "unknown key 'retries'"),
    ],
)
def test_what_is_refused(make, yaml, problem):
    """Each wrong setting is refused at its place, with what would be right."""
    with pytest.raises(ConfigError, match=problem):
        make(yaml)


def test_secrets_stay_hidden(make):
    """Neither settings nor exporter show a header or a key."""
    exporter = make("{endpoint: 'a:1', headers: {key: s3cret-header}, tls: {cert_pem: c, key_pem: s3cret-key}}")

    assert "s3cret" not in f"{exporter!r} {exporter.settings!r} {exporter.settings}"


def test_equal_documents_are_equal_settings(make):
    """Which is how a reload keeps the exporter and its queue."""
    yaml = "{endpoint: 'a:1', headers: {key: x}, tls: {insecure: true}, keepalive: {time: 10s}}"

    assert make(yaml).settings == make(yaml).settings
    assert make(yaml).settings != make(yaml.replace("x", "y")).settings
    assert make(yaml).settings.headers == {"key": Secret("x")}


def test_a_collector_document_is_understood(make):
    """Every key of the Collector's exporter that has a meaning here, and two that have none."""
    settings = make("""
        endpoint: gateway:4317
        compression: gzip
        tls:
          insecure: false
          ca_file: /etc/ca.pem
          cert_file: /etc/client.pem
          key_file: /etc/client.key
          server_name_override: gateway.example
        headers:
          x-tenant: a
        keepalive:
          time: 10s
          timeout: 5s
          permit_without_stream: true
        read_buffer_size: 1024
        write_buffer_size: 524288
        wait_for_ready: true
        balancer_name: round_robin
        authority: gateway.example
        timeout: 10s
        sending_queue:
          enabled: true
          num_consumers: 2
          queue_size: 5000
        retry_on_failure:
          enabled: true
          initial_interval: 1s
          max_interval: 10s
          max_elapsed_time: 60s
    """).settings

    assert (settings.keepalive.time, settings.keepalive.permit_without_stream) == (10, True)
    assert settings.sending_queue.queue_size == 5000


def test_the_name_is_known():
    """Its component id is what the document says."""
    assert Bench().make(OtlpExporter, "endpoint: 'a:1'", "otlp/edge").context.id == ComponentId("otlp", "edge")
