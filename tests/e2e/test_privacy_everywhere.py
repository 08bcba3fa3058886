"""The privacy promise at the exits: what stands under a denied key is in no byte that any exporter writes."""

from __future__ import annotations

import aiohttp
import pytest
from support.datadog_intake import DatadogIntake
from support.otlp import NOW, SPAN_ID, TRACE_ID
from support.otlp_canary import CANARY, plants
from support.peers import GrpcServer, HttpServer

from exporters.datadog import DatadogExporter
from exporters.debug import DebugExporter
from exporters.file import FileExporter
from exporters.otlp import OtlpExporter
from exporters.otlp_http import OtlpHttpExporter
from exporters.prometheus import PrometheusExporter
from processors.allowlist import Allowlist
from sidecar import SCHEMAS, Batch, BatchContext, Exporter, Signal
from sidecar.testing import Bench

PASSES = "passes"
FORMATS = (
    "text/plain",
    "application/openmetrics-text; version=1.0.0",
    "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited",
)


def full_of_canaries(signal: Signal) -> Batch:
    """Every way to hide the canary, in records that are sound otherwise, after the default preset's allowlist."""
    message = SCHEMAS[signal].request.FromString(b"".join(plant.data for plant in plants(signal)))
    batch = Batch(signal, message=message, context=BatchContext())
    for scope in batch.scopes():
        for number, record in enumerate(getattr(scope, SCHEMAS[signal].records)):
            _make_sound(signal, record, number)
    assert CANARY.encode() in batch.encode()
    passed = Bench().make(Allowlist, "presets: [telemetry_event, otel_semconv]").process(batch)
    assert passed is not None
    return passed


def _make_sound(signal: Signal, record, number: int) -> None:
    if signal is Signal.LOGS:
        record.time_unix_nano, record.severity_number = NOW, 21
        record.trace_id, record.span_id = TRACE_ID, SPAN_ID
        if not record.body.HasField("kvlist_value"):
            record.body.string_value = PASSES
    elif signal is Signal.TRACES:
        record.trace_id, record.span_id, record.name = TRACE_ID, (number + 1).to_bytes(8, "big"), PASSES
        record.start_time_unix_nano, record.end_time_unix_nano = NOW, NOW + 1
    else:
        record.name = f"{PASSES}_{number}"
        kind = record.WhichOneof("data")
        for point in getattr(record, kind).data_points if kind else ():
            point.time_unix_nano = NOW
            if kind in {"sum", "gauge"}:
                point.as_int = 1
        if kind in {"sum", "histogram", "exponential_histogram"}:
            getattr(record, kind).aggregation_temporality = 2


async def written(component: type[Exporter], settings: str, batch: Batch) -> None:
    """Let an exporter send a batch, from its start to its stop."""
    bench = Bench()
    exporter = bench.make(component, settings)
    await exporter.start()
    try:
        await exporter.export(batch)
    finally:
        await exporter.stop()
        await bench.close()


def judge(output: bytes) -> None:
    """Something came out, and no canary in it."""
    assert PASSES.encode() in output
    assert CANARY.encode() not in output


@pytest.mark.parametrize("signal", Signal)
async def test_prometheus(signal):
    """All three formats of the page."""
    bench = Bench()
    exporter = bench.make(PrometheusExporter, "endpoint: 127.0.0.1:0")
    await exporter.start()
    try:
        await exporter.export(full_of_canaries(signal))
        output = b""
        async with aiohttp.ClientSession() as session:
            for accept in FORMATS:
                url = f"http://127.0.0.1:{exporter._lease.port}/metrics"
                async with session.get(url, headers={"Accept": accept}) as response:
                    assert response.status == 200
                    output += await response.read()
    finally:
        await exporter.stop()
        await bench.close()
    if signal is Signal.LOGS:  # whose page shows numbers of records, and no text of theirs
        assert b"log_records" in output
        assert CANARY.encode() not in output
    else:
        judge(output)


@pytest.mark.parametrize("signal", [Signal.LOGS, Signal.TRACES, Signal.METRICS])
async def test_datadog(signal):
    """Logs and the events of fatal ones, spans, metrics: compressed and not."""
    async with DatadogIntake() as intake:
        parts = "".join(f", {part}: {{endpoint: '{intake.url}'}}" for part in ("logs", "events", "traces", "metrics"))
        settings = f"{{api: {{key: k}}, hostname: h{parts}}}"
        await written(DatadogExporter, settings, full_of_canaries(signal))
        judge(b"".join(request.raw + request.body for request in intake.requests))


@pytest.mark.parametrize("signal", Signal)
async def test_otlp(signal):
    """The bytes of each request."""
    async with GrpcServer() as server:
        settings = f"{{endpoint: 'http://{server.address}', compression: none}}"
        await written(OtlpExporter, settings, full_of_canaries(signal))
        judge(b"".join(request.batch.encode() for request in server.requests))


@pytest.mark.parametrize("encoding", ["proto", "json"])
@pytest.mark.parametrize("signal", Signal)
async def test_otlp_http(signal, encoding):
    """In both encodings."""
    async with HttpServer() as server:
        settings = f"{{endpoint: '{server.url}', encoding: {encoding}, compression: none}}"
        await written(OtlpHttpExporter, settings, full_of_canaries(signal))
        judge(b"".join(request.batch.encode() for request in server.requests))


@pytest.mark.parametrize("verbosity", ["basic", "normal", "detailed"])
@pytest.mark.parametrize("signal", Signal)
async def test_debug(signal, verbosity, capfd):
    """Whatever is printed."""
    await written(DebugExporter, f"verbosity: {verbosity}", full_of_canaries(signal))
    captured = capfd.readouterr()
    output = captured.out + captured.err
    assert output
    assert CANARY not in output


@pytest.mark.parametrize("signal", Signal)
async def test_file(signal, tmp_path):
    """What is in the file."""
    await written(FileExporter, f"path: {tmp_path / 'out.jsonl'}", full_of_canaries(signal))
    judge((tmp_path / "out.jsonl").read_bytes())
