"""The whole process between an SDK and a Prometheus server, while other senders come and go."""

import asyncio
import time

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from support.otlp_metrics import T0, batch, gauge, point, sum_
from support.peers import send
from support.processes import SidecarProcess, find_free_port
from support.prometheus_server import PrometheusServer

DOCUMENT = """
receivers: {{otlp: {{protocols: {{grpc: {{endpoint: "127.0.0.1:{grpc}"}}}}}}}}
exporters: {{prometheus: {{endpoint: "127.0.0.1:{metrics}", max_series: 500}}}}
service:
  pipelines: {{metrics: {{receivers: [otlp], exporters: [prometheus]}}}}
  telemetry: {{metrics: {{level: none}}}}
"""


class Sender:
    """A program with the OpenTelemetry SDK: a counter and a histogram, recorded inside a span."""

    def __init__(self, port):
        resource = Resource({"service.name": "shop", "service.instance.id": "sdk-1"})
        exporter = OTLPMetricExporter(endpoint=f"http://127.0.0.1:{port}", insecure=True)
        reader = PeriodicExportingMetricReader(exporter, export_interval_millis=600_000)
        self._metrics = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
        self._tracer = TracerProvider(shutdown_on_exit=False).get_tracer("test")
        meter = self._metrics.get_meter("test")
        self._orders = meter.create_counter("orders", unit="{order}")
        self._latency = meter.create_histogram("latency", unit="s", explicit_bucket_boundaries_advisory=[0.1, 1])

    def work(self, orders):
        """Record, send, and return the id of the trace in which it happened."""
        with self._tracer.start_as_current_span("work"):
            self._orders.add(orders, {"kind": "book"})
            self._latency.record(0.5)
            trace_id = trace.get_current_span().get_span_context().trace_id
        assert self._metrics.force_flush()
        return f"{trace_id:032x}"

    def close(self):
        """Stop the SDK's thread."""
        self._metrics.shutdown()


async def churn(address, rounds):
    """Senders that nobody will hear of again, more of them than the exporter has room for."""
    now = time.time() - T0
    for number in range(rounds):
        gone = [point(number, worker=f"{number}-{index}", time=now) for index in range(100)]
        await send(
            address,
            batch(
                gauge("work", *gone), sum_(f"only.{number}", point(1)), resource={"service.name": f"worker-{number}"}
            ),
        )


async def test_an_sdk_can_be_queried_while_others_come_and_go(tmp_path):
    """Values and trace ids are those that were sent, and the target is up at every scrape."""
    grpc, metrics = find_free_port(), find_free_port()
    document = DOCUMENT.format(grpc=grpc, metrics=metrics)
    async with SidecarProcess(document, tmp_path), PrometheusServer([metrics], tmp_path) as prometheus:
        sender = Sender(grpc)
        try:
            await asyncio.to_thread(sender.work, 5)
            await prometheus.wait_for('orders_total{job="shop",instance="sdk-1",kind="book"} == 5')
            churning = asyncio.create_task(churn(f"127.0.0.1:{grpc}", 10))
            trace_id = await asyncio.to_thread(sender.work, 2)
            await churning
            await prometheus.wait_for("orders_total == 7")
        finally:
            sender.close()
        await prometheus.wait_for('latency_seconds_bucket{le="1.0"} == 2')
        assert len(await prometheus.query('latency_seconds_bucket{job="shop"}')) == 3
        for expression in ("orders_total", "latency_seconds_bucket"):
            assert trace_id in [one["labels"]["trace_id"] for one in await prometheus.exemplars(expression)]
        ((_, known),) = await prometheus.query("count(work)")
        assert 400 <= int(known) <= 500
        ((_, always_up),) = await prometheus.query("min_over_time(up[1m])")
        assert always_up == "1"
