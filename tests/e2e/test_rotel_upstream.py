"""Rotel, a collector that we did not write, sends to the sidecar, and everything comes out behind it."""

import pytest
from support.otlp import logs, metrics, traces
from support.peers import GrpcServer, Rotel, records, send
from support.processes import SidecarProcess, find_free_port

DOCUMENT = """
receivers:
  otlp: {{protocols: {{grpc: {{endpoint: "127.0.0.1:{grpc}"}}, http: {{endpoint: "127.0.0.1:{http}"}}}}}}
exporters:
  otlp: {{endpoint: "http://{sink}"}}
service:
  telemetry: {{metrics: {{level: none}}}}
  pipelines:
    logs: {{receivers: [otlp], exporters: [otlp]}}
    traces: {{receivers: [otlp], exporters: [otlp]}}
    metrics: {{receivers: [otlp], exporters: [otlp]}}
"""


@pytest.mark.parametrize("protocol", ["grpc", "http"])
async def test_everything_comes_from_rotel(tmp_path, protocol):
    """Log records, spans and data points, over both protocols, compressed as Rotel always does."""
    sent = logs(300, n=1, ok=True), traces(200, x=0.5), metrics(100)
    ports = {"grpc": find_free_port(), "http": find_free_port()}
    async with GrpcServer() as sink:
        document = DOCUMENT.format(**ports, sink=sink.address)
        endpoint = f"http://127.0.0.1:{ports[protocol]}"
        async with (
            SidecarProcess(document, tmp_path),
            Rotel.to(endpoint, tmp_path, protocol) as rotel,
        ):
            await send(f"127.0.0.1:{rotel.grpc_port}", *sent)
            for batch in sent:
                arrived = await sink.wait_for_items(len(batch), batch.signal)
                assert records(*arrived) == records(batch)
