"""The OTLP receiver's settings, as a user of the Collector writes them."""

import pytest

from config import Duration, Endpoint
from config.problems import ConfigError
from sidecar import SettingError
from sidecar.net import HttpServerSettings
from sidecar.receivers.otlp import OtlpReceiver, OtlpSettings
from sidecar.testing import Bench


def settings(text):
    """The settings that a document leads to."""
    return Bench().make(OtlpReceiver, text, "otlp").settings.protocols


def problem(text):
    """The one problem of a document: its place and its text."""
    with pytest.raises(ConfigError) as error:
        Bench().make(OtlpReceiver, text, "otlp")
    (one,) = error.value.problems
    return ".".join(map(str, one.path)), one.message


def test_nothing_written_means_both_at_their_usual_ports():
    """On localhost alone."""
    for text in ("", "{}"):
        protocols = settings(text)
        assert (protocols.grpc.endpoint, protocols.http.endpoint) == ("localhost:4317", "localhost:4318")


def test_a_protocol_with_nothing_below_it_has_its_defaults():
    """And the one that is not written is not served."""
    protocols = settings("protocols: {grpc: }")
    assert protocols.http is None
    assert protocols.grpc == OtlpSettings().protocols.grpc


@pytest.mark.parametrize("text", ["protocols: {}", "protocols: {http: {enabled: false}}"])
def test_no_protocol_at_all_is_a_problem(text):
    """With what would be right."""
    assert problem(text) == ("protocols", "must name at least one protocol; write `grpc:`, `http:` or both")


def test_a_collectors_file_is_understood():
    """Every key that its receiver has."""
    protocols = settings("""
protocols:
  grpc:
    endpoint: 0.0.0.0:4317
    transport: tcp
    max_recv_msg_size_mib: 32
    max_concurrent_streams: 16
    read_buffer_size: 1024
    write_buffer_size: 1024
    keepalive:
      server_parameters: {max_connection_idle: 11s, max_connection_age: 12s, time: 30s, timeout: 5s}
      enforcement_policy: {min_time: 10s, permit_without_stream: true}
    include_metadata: true
  http:
    endpoint: /run/otlp.sock
    transport: unix
    cors: {allowed_origins: ["https://*.example.com"], allowed_headers: [X-Key], exposed_headers: [X], max_age: 7200}
    max_request_body_size: 1048576
    include_metadata: true
    read_timeout: 10s
    read_header_timeout: 20s
    write_timeout: 30s
    idle_timeout: 40s
    keep_alives_enabled: false
    compression_algorithms: ["", gzip, zstd, zlib, snappy, deflate, lz4]
    response_headers: {X-A: b}
    traces_url_path: /t
""")
    assert protocols.grpc.endpoint == Endpoint("0.0.0.0:4317")
    assert protocols.grpc.keepalive.enforcement_policy.min_time == Duration("10s")
    assert protocols.http.endpoint.path == "/run/otlp.sock"
    assert protocols.http.max_request_body_size == 2**20
    assert protocols.http.cors.max_age == 7200


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("protocols: {grcp: , http: }", "protocols.grcp", "unknown key 'grcp'; did you mean 'grpc'?"),
        ("protocols: {http: {endpoint: localhost}}", "protocols.http.endpoint", "has no port"),
        ("protocols: {http: {transport: unix}}", "protocols.http.transport", "does not fit the endpoint"),
        ("protocols: {grpc: {max_recv_msg_size_mib: 0}}", "protocols.grpc.max_recv_msg_size_mib", "at least 1"),
        ("protocols: {grpc: {tls: {cert_file: a}}}", "protocols.grpc.tls", "both a certificate and its key"),
        ("protocols: {http: {auth: {}}}", "protocols.http.auth.authenticator", "required"),
        ("protocols: {http: {trusted_proxies: [a]}}", "protocols.http.trusted_proxies.0", "for example 10.0.0.0/8"),
    ],
)
def test_what_can_not_work_is_a_problem_at_its_place(text, place, message):
    """Found before anything starts, with what would be right."""
    where, what = problem(text)
    assert where == place
    assert message in what


def test_an_authenticator_that_is_not_there_is_a_problem():
    """Named by the receiver's maker, at the place of the setting."""
    with pytest.raises(SettingError, match=r"no extension 'keys' is listed in service\.extensions") as error:
        settings("protocols: {grpc: {auth: {authenticator: keys}}}")
    assert error.value.path == ("protocols", "grpc", "auth", "authenticator")


def test_two_signals_on_one_path_are_a_problem():
    """Nobody could tell them apart."""
    with pytest.raises(SettingError, match=r"POST /v1/logs on .* is served by receivers.otlp"):
        settings("protocols: {http: {traces_url_path: /v1/logs}}")


def test_other_components_at_the_http_endpoint_share_its_server():
    """They take the receiver's settings, or the same, or are told."""
    bench = Bench()
    receiver = bench.make(OtlpReceiver, "protocols: {http: {max_connections: 5}}", "otlp")
    endpoint = Endpoint("localhost:4318")
    shared = bench.listeners.http(endpoint, "receivers.telemetry_event: endpoint")
    same = bench.listeners.http(endpoint, "exporters.prometheus: endpoint", HttpServerSettings(max_connections=5))
    with pytest.raises(SettingError, match=r"exporters.other: endpoint and receivers.otlp: .*max_connections"):
        bench.listeners.http(endpoint, "exporters.other: endpoint", HttpServerSettings(max_connections=6))
    assert (shared.port, same.port, receiver.http.port) == (4318, 4318, 4318)


async def test_a_start_that_fails_leaves_nothing_open():
    """The second port is in use: the receiver's stop lets go of the first."""
    bench = Bench()
    first = bench.make(OtlpReceiver, "protocols: {http: {endpoint: '127.0.0.1:0'}}", "otlp/first")
    await first.start()
    text = f"protocols: {{grpc: {{endpoint: '127.0.0.1:0'}}, http: {{endpoint: '127.0.0.1:{first.http.port}'}}}}"
    second = Bench().make(OtlpReceiver, text, "otlp/second")
    try:
        with pytest.raises(Exception, match="in use"):
            await second.start()
    finally:
        await second.stop()
        await first.stop()
