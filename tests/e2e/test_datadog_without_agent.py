"""A host without a Datadog Agent, as `preset:datadog-agent` makes it: real senders, and what reaches Datadog."""

import sys

import pytest
from support.datadog_intake import DatadogIntake
from support.ddtrace_host import ddtrace_run
from support.processes import ManagedProcess, SidecarProcess, find_free_port

OVERLAY = """
receivers:
  otlp: {{protocols: {{grpc: {{endpoint: "127.0.0.1:{grpc}"}}, http: {{endpoint: "127.0.0.1:{http}"}}}}}}
  telemetry_event: {{endpoint: "127.0.0.1:{http}", grpc_endpoint: "127.0.0.1:{grpc}"}}
  datadog: {{endpoint: "127.0.0.1:{apm}"}}
  dogstatsd: {{endpoint: "127.0.0.1:{dogstatsd}", aggregation_interval: 500ms}}
extensions:
  health_check: {{endpoint: "127.0.0.1:{health}"}}
service:
  telemetry: {{metrics: {{level: none}}}}
"""
# What a program logs by `logging` goes out by OTLP, as OpenTelemetry's handler sends it.
LOGGING = """
import logging, os
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.sdk._logs import LoggerProvider, LoggingHandler
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.resources import Resource
resource = Resource.create({"service.name": os.environ["SERVICE"]})
logs = LoggerProvider(resource=resource)
logs.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter()))
log = logging.getLogger("test")
log.setLevel(logging.INFO)
log.addHandler(LoggingHandler(logger_provider=logs))
"""
DDTRACE = f"""
import os
from ddtrace.propagation.http import HTTPPropagator
from ddtrace.trace import tracer
{LOGGING}
headers = {{}}
with tracer.trace("web.request", resource="GET /", span_type="web"):
    log.info("by ddtrace, outside")
    with tracer.trace("call") as span:
        log.info("by ddtrace, inside")
        HTTPPropagator.inject(span.context, headers)
tracer.shutdown()
logs.shutdown()
print("traceparent", headers["traceparent"])
"""
OPENTELEMETRY = f"""
import os
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.propagate import extract
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
{LOGGING}
provider = TracerProvider(resource=resource)
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
tracer = provider.get_tracer("scope")
with tracer.start_as_current_span("handle", context=extract({{"traceparent": os.environ["TRACEPARENT"]}})):
    log.info("by OpenTelemetry, outside")
    with tracer.start_as_current_span("query"):
        log.info("by OpenTelemetry, inside")
provider.shutdown()
logs.shutdown()
"""
DOGSTATSD = """
import os
from datadog.dogstatsd import DogStatsd
client = DogStatsd(host="127.0.0.1", port=int(os.environ["PORT"]), disable_telemetry=True)
client.increment("orders", 3, tags=["env:test", "secret:1"])
client.event("deployed", "version 2", alert_type="success")
client.service_check("database.up", 0)
client.close_socket()
"""


class Host(SidecarProcess):
    """The sidecar in an Agent's place, and the programs beside it."""

    def __init__(self, folder, intake):
        self.ports = {name: find_free_port() for name in ("grpc", "http", "apm", "dogstatsd", "health")}
        overlay = folder / "overlay.yaml"
        overlay.write_text(OVERLAY.format(**self.ports))
        endpoints = {f"DD_{part}_ENDPOINT": intake.url for part in ("LOGS", "EVENTS", "TRACES", "METRICS")}
        unset = dict.fromkeys(("DD_SITE", "DD_ENV", "DD_SERVICE", "DD_VERSION", "DD_DOGSTATSD_URL"), "")
        documents = ("--config", "preset:datadog-agent", "--config", overlay)
        super().__init__(None, folder, *documents, env={"DD_API_KEY": "a" * 32, **endpoints, **unset})

    async def run(self, program, *launcher, **env):
        """Run a Python program to its end, and give what it has written."""
        settings = {
            "DD_TRACE_AGENT_URL": f"http://127.0.0.1:{self.ports['apm']}",
            "DD_INSTRUMENTATION_TELEMETRY_ENABLED": "false",
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self.ports['http']}",
        }
        async with ManagedProcess(*launcher, sys.executable, "-c", program, env=settings | env) as process:
            ended = await process.wait(60)
        assert ended.code == 0, ended.output
        return ended.output


@pytest.mark.parametrize("version", ["v0.5", "v0.4"])
async def test_one_trace_of_ddtrace_and_opentelemetry_has_one_id_on_every_span_and_log(tmp_path, version):
    """It begins in a ddtrace service and goes on in an OpenTelemetry service; both log, and parents are intact."""
    async with DatadogIntake() as intake, Host(tmp_path, intake) as host:
        env = {"DD_TRACE_API_VERSION": version, "DD_LOGS_INJECTION": "true", "SERVICE": "shop", "DD_SERVICE": "shop"}
        output = await host.run(DDTRACE, ddtrace_run(), **env)
        traceparent = output.split()[-1]
        await host.run(OPENTELEMETRY, SERVICE="stock", TRACEPARENT=traceparent)
        await intake.wait_for(lambda: len(intake.spans) >= 4 and len(intake.logs) >= 4, within=20)
        ended = await host.stop()
    assert "dropped 0" in ended.output, ended.output
    trace_id = traceparent.split("-")[1]
    assert trace_id[:16].strip("0")

    spans = {span.resource: span for _, _, span in intake.spans}
    assert len(intake.spans) == 4
    assert {f"{span.meta['_dd.p.tid']}{span.traceID:016x}" for span in spans.values()} == {trace_id}
    chain = [spans[name] for name in ("web.request", "call", "handle", "query")]
    assert [span.parentID for span in chain] == [0, *(span.spanID for span in chain[:-1])]
    assert [span.service for span in chain] == ["shop", "shop", "stock", "stock"]
    assert (chain[0].type, chain[0].meta["language"]) == ("web", "python")

    by_message = {log["message"]: log for log in intake.logs}
    assert len(intake.logs) == 4
    for place, message in enumerate(
        f"by {who}, {where}" for who in ("ddtrace", "OpenTelemetry") for where in ("outside", "inside")
    ):
        log = by_message[message]
        assert (log["dd.trace_id"], log["dd.span_id"]) == (trace_id, str(chain[place].spanID))
        assert log["otel.trace_id"] == trace_id
        assert log["service"] == chain[place].service


async def test_dogstatsd_reaches_datadog(tmp_path):
    """A count, an event and a service check: tags that nobody has named stay here."""
    pytest.importorskip("datadog")
    async with DatadogIntake() as intake, Host(tmp_path, intake) as host:
        await host.run(DOGSTATSD, PORT=str(host.ports["dogstatsd"]))
        await intake.wait_for(lambda: bool(intake.series and intake.events and intake.checks))
        await host.stop()
    (series,) = intake.series
    assert (series["metric"], series["tags"], series["points"][0]["value"]) == ("orders", ["env:test"], 3)
    (event,) = intake.events
    assert (event["title"], event["text"], event["alert_type"]) == ("deployed", "version 2", "success")
    (check,) = intake.checks
    assert (check["check"], check["status"]) == ("database.up", 0)
