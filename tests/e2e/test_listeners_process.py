"""Unix sockets and TLS of a whole process, as curl, the Python SDK and a client with a certificate use them."""

import asyncio
import shutil
import tempfile
from pathlib import Path

import grpc
import orjson
import pytest
from support.certificates import Authority
from support.main_job import EVENT
from support.otlp import logs_request, traces
from support.peers import GrpcServer
from support.processes import ManagedProcess, SidecarProcess, find_free_port
from support.python_sdk import EXPORTERS, tracing
from support.wire import connect

from sidecar import SCHEMAS, Signal
from sidecar.net import otlp_json

DOCUMENT = """
receivers:
  otlp:
    protocols:
      grpc: {{endpoint: "{grpc}"{tls}}}
      http: {{endpoint: "{http}"{tls}}}
  telemetry_event: {{endpoint: "{http}", grpc_endpoint: "{grpc}"}}
exporters:
  otlp: {{endpoint: {target}, tls: {{insecure: true}}, sending_queue: {{batch: {{min_size: 0}}}}}}
service:
  telemetry: {{metrics: {{level: none}}}}
  pipelines:
    traces: {{receivers: [otlp, telemetry_event], exporters: [otlp]}}
    logs: {{receivers: [otlp, telemetry_event], exporters: [otlp]}}
"""
EVENTS = orjson.dumps({"events": [EVENT]})
LOGS = otlp_json.encode(logs_request(2))


@pytest.fixture
def folder():
    """A folder whose name is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="s-") as path:
        yield Path(path)


async def curl(*arguments, data):
    """Post JSON by curl; the status and the body."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed here")
    command = ("curl", "-sS", "-w", "\\n%{http_code}", "-H", "Content-Type: application/json", "-d", data.decode())
    # An authority of the machine's would win over the test's.
    async with ManagedProcess(*command, *arguments, env={"CURL_CA_BUNDLE": "", "SSL_CERT_FILE": ""}) as process:
        ended = await process.wait()
    assert ended.code == 0, ended.output
    body, _, status = ended.output.rpartition("\n")
    return int(status), orjson.loads(body)


async def send_over_http(base, *options):
    """Logs and an event by curl, to one listener."""
    assert await curl(*options, f"{base}/v1/logs", data=LOGS) == (200, {})
    assert await curl(*options, f"{base}/v1/telemetry/events", data=EVENTS) == (202, {"accepted": 1, "rejected": 0})


def say_span(exporter):
    """A span by the SDK."""
    with tracing(exporter) as tracer:
        tracer.start_span("over a socket").end()


async def test_unix_sockets_carry_everything(folder):
    """OTLP and TelemetryEvents over HTTP, spans over gRPC; the line to try works, and a stop removes the sockets."""
    grpc_socket, http_socket = folder / "grpc.sock", folder / "http.sock"
    async with GrpcServer() as target:
        document = DOCUMENT.format(
            grpc=f"unix://{grpc_socket}", http=f"unix://{http_socket}", tls="", target=target.address
        )
        async with SidecarProcess(document, folder) as sidecar:
            await send_over_http("http://localhost", "--unix-socket", http_socket)
            exporter = EXPORTERS["grpc"][Signal.TRACES](endpoint=f"unix://{grpc_socket}", insecure=True)
            await asyncio.to_thread(say_span, exporter)
            await target.wait_for_items(3)
            await target.wait_for_items(2, Signal.TRACES)
            to_try = next(line for line in sidecar.lines if "curl" in line)
            async with ManagedProcess("sh", "-c", to_try) as process:
                assert '"accepted":1' in (await process.wait()).output
            ended = await sidecar.stop()
    assert ended.code == 0
    assert not http_socket.exists()
    assert not grpc_socket.exists()


async def test_one_tls_listener_carries_everything(folder):
    """With the certificate that clients must show; strangers are turned away without a word on the sidecar's stderr."""
    authority = Authority(folder)
    server = f"cert_file: {authority.server_cert_file}, key_file: {authority.server_key_file}"
    tls = f", tls: {{{server}, client_ca_file: {authority.ca_file}}}"
    ports = {name: find_free_port() for name in ("grpc", "http")}
    mine = ("--cert", authority.client_cert_file, "--key", authority.client_key_file)
    async with GrpcServer() as target:
        endpoints = {name: f"localhost:{port}" for name, port in ports.items()}
        async with SidecarProcess(DOCUMENT.format(**endpoints, tls=tls, target=target.address), folder) as sidecar:
            await send_over_http(f"https://{endpoints['http']}", "--cacert", authority.ca_file, *mine)
            files = (authority.ca_file, authority.client_key_file, authority.client_cert_file)
            credentials = grpc.ssl_channel_credentials(*(file.read_bytes() for file in files))
            async with grpc.aio.secure_channel(endpoints["grpc"], credentials) as channel:
                export = channel.unary_unary(f"/{SCHEMAS[Signal.TRACES].grpc_service}/Export")
                await export(traces(1).encode())
            for port in ports.values():
                async with connect(port) as stranger:
                    await stranger.send(b"GET / HTTP/1.1\r\n\r\n" * 10)
                    await stranger.rest()
            await target.wait_for_items(3)
            await target.wait_for_items(2, Signal.TRACES)
            ended = await sidecar.stop()
    assert ended.code == 0
    assert "ssl_transport_security" not in ended.output
