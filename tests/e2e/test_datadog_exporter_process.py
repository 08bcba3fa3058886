"""The whole process between OTLP senders and an intake that has Datadog's limits, and bad days."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import aiohttp
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from support import otlp
from support.datadog_intake import LOGS, SERIES, TRACES, DatadogIntake
from support.processes import SidecarProcess, find_free_port

from sidecar.control import ask_to_reload

DOCUMENT = """
receivers:
  otlp: {{protocols: {{http: {{endpoint: "127.0.0.1:{port}"}}}}}}
exporters:
  datadog:
    api: {{key: "{key}"}}
    timeout: 2s
    logs: {{endpoint: "{url}"}}
    traces: {{endpoint: "{url}"}}
    metrics: {{endpoint: "{url}"}}
    events: {{endpoint: "{url}"}}
    sending_queue: {{batch: {{flush_timeout: 50ms, min_size: 1}}}}
    retry_on_failure: {{initial_interval: 100ms, max_interval: 300ms}}
  prometheus: {{endpoint: "127.0.0.1:{page}"}}
extensions:
  health_check: {{endpoint: "127.0.0.1:{health}"}}
service:
  extensions: [health_check]
  shutdown_timeout: 2s
  telemetry: {{metrics: {{readers: [{{pull: {{exporter: {{prometheus: {{host: 127.0.0.1, port: {own}}}}}}}}}]}}}}
  pipelines:
    logs: {{receivers: [otlp], exporters: [{to}]}}
    traces: {{receivers: [otlp], exporters: [{to}]}}
    metrics: {{receivers: [otlp], exporters: [{to}]}}
"""
KEY = "0123456789abcdef0123456789abcdef"


class Running(SidecarProcess):
    """A sidecar that sends to an intake, or shows a page to Prometheus."""

    def __init__(self, intake, folder, key=KEY, to="datadog"):
        self.ports = {name: find_free_port() for name in ("port", "health", "own", "page")}
        document = DOCUMENT.format(**self.ports, url=intake.url, key=key, to=to)
        clean = dict.fromkeys(("DD_API_KEY", "DD_SITE", "DD_ENV", "DD_SERVICE", "DD_VERSION", "DD_DOGSTATSD_URL"), "")
        super().__init__(document, folder, env=clean)

    async def send(self, signal, request):
        """Send an OTLP request, which must be accepted."""
        assert await self.post(signal, request) == 200

    async def post(self, signal, request):
        """Send an OTLP request, and give the status of the answer."""
        url = f"http://127.0.0.1:{self.ports['port']}/v1/{signal}"
        headers = {"Content-Type": "application/x-protobuf"}
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, data=request.SerializeToString(), headers=headers) as response,
        ):
            return response.status

    async def get(self, name, path):
        """What an HTTP server of it says."""
        url = f"http://127.0.0.1:{self.ports[name]}{path}"
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            return await response.text()


@pytest.fixture
async def intake():
    """An intake that knows one key."""
    async with DatadogIntake(keys=(KEY,)) as running:
        yield running


def current(request):
    """A request with the times of now: the intakes take no old ones."""
    now = time.time_ns()
    for group in getattr(request, "resource_metrics", []):
        for point in group.scope_metrics[0].metrics[0].sum.data_points:
            point.start_time_unix_nano, point.time_unix_nano = now - 10**9, now
    return request


def deltas(first: int, count: int) -> ExportMetricsServiceRequest:
    """Delta sums with values that tell them apart."""
    request = current(otlp.metrics_request(count))
    data = request.resource_metrics[0].scope_metrics[0].metrics[0].sum
    data.aggregation_temporality = 1
    for index, point in enumerate(data.data_points, first):
        point.as_int = index
        point.attributes[0].value.string_value = str(index)
    return request


async def test_bad_days_of_every_kind_lose_nothing(intake, tmp_path):
    """408, 413, 429 with a wait, 500, silence, and a broken connection, for every signal: everything arrives once."""
    async with Running(intake, tmp_path) as sidecar:
        for path in (LOGS, TRACES, SERIES):
            intake.script(status=408, path=path)
            intake.script(status=413, path=path)
            intake.script(status=500, path=path)
            intake.script(after_bytes=1, path=path)
            intake.script(status=429, path=path, headers={"X-Ratelimit-Reset": "0.2"})
            intake.script(delay=3, path=path)
        for first in range(0, 30, 10):
            await sidecar.send("logs", otlp.logs_request(10, body=f"batch {first}"))
            await sidecar.send("traces", otlp.traces_request(10, service=f"batch-{first}"))
            await sidecar.send("metrics", deltas(first, 10))
        await intake.wait_for(lambda: min(map(len, (intake.logs, intake.spans, intake.series))) >= 30, within=60)
        ended = await sidecar.stop()

    assert Counter(log["message"] for log in intake.logs) == {
        f"batch {first} {index}": 1 for first in range(0, 30, 10) for index in range(10)
    }
    spans = Counter((span.service, span.spanID) for _, _, span in intake.spans)
    assert set(spans.values()) == {1}
    assert len(spans) == 30
    assert sorted(series["points"][0]["value"] for series in intake.series) == list(range(30))
    assert "received 90 = delivered 90 + stored 0 + dropped 0" in ended.output
    assert ended.code == 0, ended.output
    hits = sum(
        entry["Hits"]
        for payload in intake.stats
        for client in payload["Stats"]
        for entry in client["Stats"][0]["Stats"]
    )
    assert hits == 30
    assert KEY not in ended.output


def requests_of(signal, first):
    """A request of ten items that tell which one it is, beginning with a number."""
    if signal == "logs":
        return otlp.logs_request(10, body=f"batch {first}")
    return otlp.traces_request(10, service=f"batch-{first}") if signal == "traces" else deltas(first, 10)


def arrived(intake, signal):
    """How often each item has arrived, by its batch and itself."""
    if signal == "logs":
        return Counter((int(log["message"].split()[1]), log["message"].split()[2]) for log in intake.logs)
    if signal == "traces":
        return Counter((int(span.service.split("-")[1]), span.spanID) for _, _, span in intake.spans)
    values = (int(series["points"][0]["value"]) for series in intake.series)
    return Counter((value - value % 10, value) for value in values)


@pytest.mark.parametrize(("signal", "path"), [("logs", LOGS), ("traces", TRACES), ("metrics", SERIES)])
async def test_an_answer_that_is_lost_doubles_one_batch_at_most(intake, tmp_path, signal, path):
    """What the intake took without being able to say so is sent once more, and no other batch is."""
    async with Running(intake, tmp_path) as sidecar:
        intake.script(status=0, accept=True, path=path)
        for first in (0, 10, 20):
            await sidecar.send(signal, requests_of(signal, first))
            await intake.wait_for(lambda first=first: len(arrived(intake, signal)) >= first + 10)
        await intake.wait_for(lambda: arrived(intake, signal).total() >= 40)
        ended = await sidecar.stop()
    counts = arrived(intake, signal)
    assert {batch: count for (batch, _), count in counts.items()} == {0: 2, 10: 1, 20: 1}
    assert set(counts.values()) == {1, 2}
    assert len(counts) == 30
    assert "received 30 = delivered 30 + stored 0 + dropped 0" in ended.output


@pytest.mark.parametrize(("signal", "path"), [("logs", LOGS), ("traces", TRACES), ("metrics", SERIES)])
async def test_a_wrong_key_is_seen_everywhere_and_counts_nothing_as_sent(intake, tmp_path, signal, path):
    """Health and log say that the key is refused, without showing it; no record counts as sent (contrib#47386)."""
    async with Running(intake, tmp_path, key="f" * 32) as sidecar:
        await sidecar.send(signal, requests_of(signal, 0))
        await intake.wait_for(lambda: bool(intake.to(path)))
        await sidecar.wait_for_line("the API key is not valid")
        own = await sidecar.get("own", "/metrics")
        health = await sidecar.get("health", "/status") + await sidecar.get("health", "/")
        ended = await sidecar.stop()
    sent = [line.split()[-1] for line in own.splitlines() if line.startswith("otelcol_exporter_sent")]
    assert set(map(float, sent)) <= {0}
    assert "the API key is not valid" in health
    assert "received 10 = delivered 0 + stored 0 + dropped 10" in ended.output
    assert "f" * 32 not in own + health + ended.output
    assert len(intake.to(path)) <= 3


async def test_no_intake_holds_up_another(intake, tmp_path):
    """The logs wait as long as their intake wants, spans and metrics go on meanwhile, and all arrive once."""
    intake.script(status=429, path=LOGS, headers={"X-Ratelimit-Reset": "6"})
    sidecar = Running(intake, tmp_path)
    async with sidecar:
        await sidecar.send("logs", requests_of("logs", 0))
        await intake.wait_for(lambda: bool(intake.to(LOGS)))
        for first in range(10, 60, 10):
            for signal in ("logs", "traces", "metrics"):
                await sidecar.send(signal, requests_of(signal, first))
        await intake.wait_for(lambda: len(intake.spans) == len(intake.series) == 50, within=5)
        assert len(intake.to(LOGS)) == 1
        await intake.wait_for(lambda: len(intake.logs) == 60)
        ended = await sidecar.stop()
    assert set(arrived(intake, "logs").values()) == {1}
    assert "exporters/datadog: received 160 = delivered 160 + stored 0 + dropped 0" in ended.output


async def test_who_finds_no_room_is_told_so_and_nothing_accepted_is_lost(intake, tmp_path):
    """While the intake is down the queue fills, and then requests are refused: none is accepted and dropped.

    See contrib#44299.
    """
    intake.script(status=503, times=10**6, path=LOGS)
    sidecar = Running(intake, tmp_path)
    limited = sidecar.document.read_text().replace("sending_queue: {", "sending_queue: {queue_size: 30, ")
    sidecar.document.write_text(limited)
    async with sidecar:
        answers = [await sidecar.post("logs", requests_of("logs", first)) for first in range(0, 100, 10)]
        accepted = [first for first, status in zip(range(0, 100, 10), answers, strict=True) if status == 200]
        assert set(answers) == {200, 503}
        intake.heal()
        await intake.wait_for(lambda: len(intake.logs) >= 10 * len(accepted))
        ended = await sidecar.stop()
    assert arrived(intake, "logs") == {(first, str(one)): 1 for first in accepted for one in range(10)}
    assert f"received {10 * len(accepted)} = delivered {10 * len(accepted)} + stored 0 + dropped 0" in ended.output


async def test_one_word_swaps_datadog_and_prometheus_for_every_signal(intake, tmp_path):
    """The same document but for the name of the exporter, the same senders, and back."""
    for to in ("datadog", "prometheus", "datadog"):
        intake.logs.clear()
        intake.traces.clear()
        intake.series.clear()
        async with Running(intake, tmp_path, to=to) as sidecar:
            await sidecar.send("logs", otlp.logs_request(2))
            await sidecar.send("traces", otlp.traces_request(2))
            await sidecar.send("metrics", deltas(1, 2))
            if to == "prometheus":
                page = await sidecar.get("page", "/metrics")
                assert 'log_records_total{service="api",severity="info"} 2' in page
                assert "traces_span_metrics_calls_total" in page
                assert "requests_total" in page
            else:
                await intake.wait_for(lambda: (len(intake.logs), len(intake.spans), len(intake.series)) == (2, 2, 2))
            ended = await sidecar.stop()
        assert ended.code == 0, ended.output
    assert not [request for request in intake.requests if request.status >= 400]


async def test_a_reload_swaps_datadog_and_prometheus_while_data_flow(intake, tmp_path):
    """By `sidecar reload`, in one process: each signal goes to whichever is named, all of it, and back again."""
    async with Running(intake, tmp_path) as sidecar:
        document = sidecar.document.read_text()

        async def turn_to(exporter):
            sidecar.document.write_text(document.replace("exporters: [datadog]", f"exporters: [{exporter}]"))
            succeeded, report = await asyncio.to_thread(ask_to_reload, sidecar.control)
            assert succeeded, report

        async def send(number):
            await sidecar.send("logs", otlp.logs_request(10, body=f"round {number}"))
            await sidecar.send("traces", otlp.traces_request(10, service=f"round-{number}"))
            await sidecar.send("metrics", deltas(10 * number, 10))

        await send(1)
        await turn_to("prometheus")
        await send(2)
        page = await sidecar.get("page", "/metrics")
        await turn_to("datadog")
        await send(3)
        await intake.wait_for(lambda: (len(intake.logs), len(intake.spans), len(intake.series)) == (20, 20, 20))
        ended = await sidecar.stop()
    assert 'log_records_total{service="api",severity="info"} 10' in page
    assert 'service_name="round-2"' in page
    assert 'requests_total{instance="",job="api",n="29"} 29' in page
    assert {log["message"].rpartition(" ")[0] for log in intake.logs} == {"round 1", "round 3"}
    assert {span.service for _, _, span in intake.spans} == {"round-1", "round-3"}
    values = sorted(series["points"][0]["value"] for series in intake.series)
    assert values == [*range(10, 20), *range(30, 40)]
    assert ended.output.count("exporters/datadog: received 30 = delivered 30 + stored 0 + dropped 0") == 2
