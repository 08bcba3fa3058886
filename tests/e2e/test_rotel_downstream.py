"""The sidecar sends to Rotel, a collector that we did not write, and everything comes out behind it."""

import pytest
from support.otlp import logs, metrics, traces
from support.peers import GrpcServer, Rotel, records, send
from support.processes import SidecarProcess, find_free_port

from sidecar import Signal

DOCUMENT = """
receivers:
  otlp: {{protocols: {{grpc: {{endpoint: "127.0.0.1:{port}"}}}}}}
exporters:
  {exporter}
service:
  telemetry: {{metrics: {{level: none}}}}
  pipelines:
    logs: {{receivers: [otlp], exporters: [{name}]}}
    traces: {{receivers: [otlp], exporters: [{name}]}}
    metrics: {{receivers: [otlp], exporters: [{name}]}}
"""


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("otlp", "{{endpoint: 'http://127.0.0.1:{grpc}'}}"),
        ("otlp_grpc", "{{endpoint: '127.0.0.1:{grpc}', tls: {{insecure: true}}, compression: none}}"),
        ("otlp_http", "{{endpoint: 'http://127.0.0.1:{http}'}}"),
        ("otlphttp", "{{endpoint: 'http://127.0.0.1:{http}', compression: none, encoding: json}}"),
    ],
)
async def test_everything_passes_through_rotel(tmp_path, name, settings):
    """Log records, spans and data points, over each exporter, encoding and compression."""
    sent = [logs(300, n=1, ok=True), traces(200, x=0.5)]
    if "json" not in settings:  # of which this Rotel loses the integers of data points: OTLP has them as strings
        sent.append(metrics(100))
    async with GrpcServer() as sink, Rotel.to(f"http://{sink.address}", tmp_path) as rotel:
        port = find_free_port()
        exporter = f"{name}: {settings.format(grpc=rotel.grpc_port, http=rotel.http_port)}"
        document = DOCUMENT.format(port=port, exporter=exporter, name=name)
        async with SidecarProcess(document, tmp_path) as sidecar:
            await send(f"127.0.0.1:{port}", *sent)
            ended = await sidecar.stop()

        for batch in sent:
            arrived = await sink.wait_for_items(len(batch), batch.signal)
            assert records(*arrived) == records(batch)
        assert ended.code == 0, ended.output


async def test_rotel_starts_late(tmp_path):
    """What is sent while Rotel is not there yet waits in the queue, and arrives once when it is."""
    async with GrpcServer() as sink:
        rotel = Rotel.to(f"http://{sink.address}", tmp_path)
        port = find_free_port()
        exporter = (
            f"otlp: {{endpoint: 'http://127.0.0.1:{rotel.grpc_port}', "
            "retry_on_failure: {initial_interval: 100ms, max_interval: 200ms}}"
        )
        document = DOCUMENT.format(port=port, exporter=exporter, name="otlp")
        async with SidecarProcess(document, tmp_path) as sidecar:
            await send(f"127.0.0.1:{port}", logs(50))
            await sidecar.wait_for_line("UNAVAILABLE")
            async with rotel:
                await sink.wait_for_items(50)

        assert sink.items[Signal.LOGS] == 50
