"""What a new user does first: run, send an event and OTLP, look at /metrics, swap the exporter by a word."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

from support.datadog_intake import DatadogIntake
from support.exposition import check
from support.main_job import EVENT, PresetProcess, datadog_environment
from support.processes import ManagedProcess
from support.prometheus_server import PrometheusServer, promtool

README = Path(__file__).parents[2] / "README.md"
OPENMETRICS = "application/openmetrics-text; version=1.0.0"
TRACE_OF_REQUEST = "de480f3d45a2131c29b811d250215de5"


def readme_program() -> str:
    """The OpenTelemetry program of the README, as a user copies it."""
    return re.search(r"```python\n(.*?TracerProvider.*?)```", README.read_text(), re.DOTALL)[1]


async def run_readme_program(port: int, folder) -> None:
    """Run it against a port other than the default one."""
    program = folder / "hello.py"
    program.write_text(readme_program())
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}", "OTEL_EXPORTER_OTLP_INSECURE": "true"}
    async with ManagedProcess(sys.executable, program, env=env) as process:
        ended = await process.wait(within=30)
    assert ended.code == 0, ended.output


async def test_an_event_and_a_stock_sdk_are_visible_at_metrics(tmp_path):
    """Log record, span, counter and event are on the page at once, with the trace as exemplar; promtool accepts it."""
    async with PresetProcess("default", tmp_path) as sidecar:
        assert await sidecar.post_events(EVENT) == (202, {"accepted": 1, "rejected": 0})
        await run_readme_program(sidecar.ports.grpc, tmp_path)
        text, openmetrics = await sidecar.page(), await sidecar.page(OPENMETRICS)
        own = await sidecar.own_metrics()
        ended = await sidecar.stop()

    check(text)
    check(openmetrics)
    assert 'telemetry_events_total{kind="backend_crash",severity="error",source="provider"} 1' in text
    assert re.search(r"^greetings_total\{.*\} 1$", text, re.MULTILINE)
    assert re.search(
        r'^log_records_total\{service="hello",severity="warn"\} 1 # \{.*trace_id="[0-9a-f]{32}".*\}',
        openmetrics,
        re.MULTILINE,
    )
    assert re.search(
        r'^traces_span_metrics_calls_total\{.*span_name="say hello".*\} 1 # \{.*trace_id=', openmetrics, re.MULTILINE
    )
    assert "otelcol_receiver_accepted_log_records" in own
    assert "CANARY-PROMPT" not in text + openmetrics + own + ended.output
    assert ended.code == 0, ended.output
    code, findings = promtool("check", "metrics", stdin=text.encode())
    assert code != 1, findings


async def test_a_real_prometheus_scrapes_it_without_error(tmp_path):
    """The target is up, and the series carry the exemplars that were sent."""
    async with (
        PresetProcess("default", tmp_path) as sidecar,
        PrometheusServer([sidecar.ports.metrics], tmp_path) as prometheus,
    ):
        await sidecar.post_events(EVENT)
        await prometheus.next_scrape()
        assert [value for _, value in await prometheus.query("up")] == ["1"]
        found = await prometheus.wait_for("telemetry_events_total")
        assert [(labels["kind"], value) for labels, value in found] == [("backend_crash", "1")]
        exemplars = await prometheus.exemplars("telemetry_events_total")
        assert exemplars[0]["labels"]["trace_id"] == TRACE_OF_REQUEST


async def test_one_word_sends_the_same_data_to_datadog(tmp_path):
    """The log arrives once with all by which Datadog joins it; the fatal one is an Event; the prompt is nowhere."""
    async with DatadogIntake(keys=("test-key",)) as intake:
        env = {**datadog_environment(intake, "test-key"), "DD_ENV": "staging"}
        async with PresetProcess("datadog", tmp_path, env=env) as sidecar:
            fatal = {**EVENT, "id": "00000000-0000-0000-0000-000000000002", "severity": "fatal", "stack": "at main()"}
            await sidecar.post_events(EVENT, fatal)
            await run_readme_program(sidecar.ports.grpc, tmp_path)
            await intake.wait_for(lambda: len(intake.logs) >= 3 and intake.events and len(intake.spans) >= 3)
            own = await sidecar.own_metrics()
            ended = await sidecar.stop()

    logs = {log["message"]: log for log in intake.logs if log.get("telemetry.event.id", EVENT["id"]) == EVENT["id"]}
    assert len(intake.logs) == 3
    log = logs["backend exited"]
    assert (log["status"], log["service"], log["hostname"]) == ("error", "provider", "m-1")
    assert "env:staging" in log["ddtags"]
    assert log["dd.trace_id"] == log["otel.trace_id"] == TRACE_OF_REQUEST
    assert log["dd.span_id"] == str(int(log["otel.span_id"], 16))
    hello = logs["hello from the SDK"]
    assert (hello["status"], hello["service"], len(hello["dd.trace_id"])) == ("warn", "hello", 32)
    spans = {span.name or span.resource: span for _, _, span in intake.spans}
    assert len(intake.spans) == 3, spans
    (event,) = intake.events
    assert event["alert_type"] == "error"
    assert "at main()" in event["text"]
    assert {"source:provider", "kind:backend_crash"} <= set(event["tags"])
    everything = b"".join(request.raw + request.body for request in intake.requests)
    assert b"CANARY-PROMPT" not in everything
    assert "CANARY-PROMPT" not in own + ended.output
    assert "test-key" not in own + ended.output
    assert ended.code == 0, ended.output


async def test_nothing_is_lost_while_datadog_is_down(tmp_path):
    """1,000 events, sent while the intakes answer 503 for ten seconds, arrive once each as log and as span."""
    lifted = (
        "processors: {rate_limit: {anonymous: {rate: 1000/s, burst: 2000}}}\n"
        "exporters: {datadog: {retry_on_failure: {initial_interval: 500ms, max_interval: 1s}}}\n"
    )
    async with DatadogIntake() as intake:
        env = datadog_environment(intake)
        async with PresetProcess("datadog", tmp_path, lifted, env=env) as sidecar:
            intake.script(status=503, times=10_000)
            ids = [f"00000000-0000-0000-0000-{number:012d}" for number in range(1000)]
            for start in range(0, 1000, 100):
                status, _ = await sidecar.post_events(*[{**EVENT, "id": one} for one in ids[start : start + 100]])
                assert status == 202
            await asyncio.sleep(10)  # the outage itself
            assert intake.logs == []
            health = await sidecar.own_metrics()
            intake.heal()
            await intake.wait_for(lambda: len(intake.logs) >= 1000 and len(intake.spans) >= 1000, within=30)
            ended = await sidecar.stop()
    assert sorted(log["telemetry.event.id"] for log in intake.logs) == ids
    assert len({span.spanID for _, _, span in intake.spans}) == len(intake.spans) == 1000
    assert 'otelcol_exporter_queue_size{exporter="datadog"} 2000' in health
    assert "balance: exporters/datadog: received 2000 = delivered 2000 + stored 0 + dropped 0" in ended.output
    assert ended.code == 0, ended.output


async def test_a_port_in_use_names_component_address_and_setting(tmp_path):
    """The second sidecar on a port does not start: exit code 1, and a message to act on."""
    async with PresetProcess("default", tmp_path) as first, ManagedProcess(*first.command) as second:
        ended = await second.wait()
    assert ended.code == 1, ended.output
    assert re.search(r"(endpoint|port): can't listen on 127\.0\.0\.1:\d+: the address is in use", ended.output)
    assert "Traceback" not in ended.output


async def test_a_wrong_document_starts_nothing(tmp_path):
    """All problems with their places, and exit code 2."""
    wrong = "receivers: {otlp: {protocols: {grpc: {endpont: x}}}}\nexporters: {promtheus: }\n"
    command = PresetProcess("default", tmp_path, wrong).command
    async with ManagedProcess(*command) as sidecar:
        ended = await sidecar.wait()
    assert ended.code == 2, ended.output
    key, component = "receivers.otlp.protocols.grpc.endpont", "exporters.promtheus"
    assert f"more.yaml:1:39: {key}: unknown key 'endpont'; did you mean 'endpoint'?" in ended.output
    assert (
        f"more.yaml:2:13: {component}: no exporter 'promtheus' is installed; did you mean 'prometheus'?" in ended.output
    )


async def test_a_second_signal_ends_at_once(tmp_path):
    """When draining takes too long for the person who waits, another SIGTERM is enough."""
    import signal

    async with DatadogIntake() as intake:
        intake.script(status=503, times=10_000)
        env = datadog_environment(intake)
        async with PresetProcess("datadog", tmp_path, env=env) as sidecar:
            await sidecar.post_events(EVENT)
            sidecar.send_signal(signal.SIGTERM)
            await sidecar.wait_for_line("sending until the deadline")
            ended = await sidecar.stop(within=5)
    assert ended.code == -signal.SIGTERM
