"""A host without an Agent: the sidecar at the Agent's addresses, programs with ddtrace, and what comes out."""

import contextlib
import sys
from pathlib import Path

from support.otlp_receiver import plain
from support.peers import GrpcServer
from support.processes import ManagedProcess, SidecarProcess, find_free_port

from sidecar import Signal

DOCUMENT = """
receivers:
  datadog: {{endpoint: "127.0.0.1:{apm}", socket: "{folder}/apm.sock"}}
  dogstatsd:
    endpoint: "127.0.0.1:{dogstatsd}"
    socket: "{folder}/dsd.sock"
    stream_socket: "{folder}/dsd-stream.sock"
    aggregation_interval: 500ms
  otlp: {{protocols: {{http: {{endpoint: "127.0.0.1:{otlp}"}}}}}}
exporters:
  {exporter}
service:
  telemetry: {{metrics: {{level: none}}}}
  pipelines:
    traces: {{receivers: [datadog, otlp], exporters: [{name}]}}
    metrics: {{receivers: [datadog, dogstatsd], exporters: [{name}]}}
    logs: {{receivers: [dogstatsd], exporters: [{name}]}}
"""


class Host:
    """The sidecar, its addresses, and the server that it sends to."""

    def __init__(self, folder, exporter, sink=None):
        self.folder = folder
        self.sink = sink
        self.apm, self.dogstatsd, self.otlp = (find_free_port() for _ in range(3))
        document = DOCUMENT.format(
            apm=self.apm,
            dogstatsd=self.dogstatsd,
            otlp=self.otlp,
            folder=folder,
            exporter=exporter,
            name=exporter.partition(":")[0],
        )
        self.sidecar = SidecarProcess(document, folder)

    async def run(self, program, *launcher, within=60, **env):
        """Run a Python program with ddtrace to its end, and give what it has written."""
        settings = {
            "DD_TRACE_AGENT_URL": f"http://127.0.0.1:{self.apm}",
            "DD_DOGSTATSD_URL": f"udp://127.0.0.1:{self.dogstatsd}",
            "DD_SERVICE": "shop",
            "DD_ENV": "test",
            "DD_VERSION": "1.2",
        }
        command = (*launcher, sys.executable, "-c", program)
        async with ManagedProcess(*command, env=settings | env, cwd=self.folder) as process:
            ended = await process.wait(within)
        assert ended.code == 0, ended.output
        return ended.output

    async def end(self):
        """Stop the sidecar, which must have lost nothing."""
        ended = await self.sidecar.stop()
        assert ended.code == 0, ended.output
        assert "dropped 0" in ended.output
        return ended.output

    def spans(self):
        """The spans that have come out, each with its resource."""
        return [
            (span, plain(resource.resource.attributes))
            for request in self.sink.requests
            if request.signal is Signal.TRACES
            for resource in request.batch.message.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def metrics(self):
        """The metrics that have come out."""
        return [
            metric
            for request in self.sink.requests
            if request.signal is Signal.METRICS
            for resource in request.batch.message.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        ]


@contextlib.asynccontextmanager
async def recording(folder):
    """A host whose sidecar sends OTLP to a server that records."""
    async with GrpcServer() as sink:
        host = Host(folder, f"otlp: {{endpoint: 'http://{sink.address}', compression: none}}", sink)
        async with host.sidecar:
            yield host


def ddtrace_run():
    """The path of ddtrace's launcher."""
    return Path(sys.executable).with_name("ddtrace-run")
