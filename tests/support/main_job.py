"""The sidecar as a new user runs it, on free ports: a preset, and overrides that change nothing but addresses."""

from __future__ import annotations

from dataclasses import dataclass, field

import aiohttp
from support.processes import SidecarProcess, find_free_port

EVENT = {
    "id": "00000000-0000-0000-0000-000000000001",
    "source": "provider",
    "severity": "error",
    "kind": "backend_crash",
    "version": "0.3.10",
    "session_id": "abc",
    "machine_id": "m-1",
    "request_id": "req_abc",
    "message": "backend exited",
    "fields": {"backend": "vllm-mlx", "exit_code": 134, "duration_ms": 1250, "prompt": "CANARY-PROMPT"},
}


@dataclass
class Ports:
    """Free ports for everything that a preset listens on."""

    grpc: int = field(default_factory=find_free_port)
    http: int = field(default_factory=find_free_port)
    metrics: int = field(default_factory=find_free_port)
    own: int = field(default_factory=find_free_port)
    health: int = field(default_factory=find_free_port)

    def overrides(self, *, scraped: bool) -> str:
        """A document that moves a preset to these ports. `scraped`: whether it has the Prometheus exporter."""
        page = f'exporters: {{prometheus: {{endpoint: "127.0.0.1:{self.metrics}"}}}}' if scraped else ""
        return f"""
{page}
receivers:
  otlp: {{protocols: {{grpc: {{endpoint: "127.0.0.1:{self.grpc}"}}, http: {{endpoint: "127.0.0.1:{self.http}"}}}}}}
  telemetry_event: {{endpoint: "127.0.0.1:{self.http}", grpc_endpoint: "127.0.0.1:{self.grpc}"}}
extensions:
  health_check: {{endpoint: "127.0.0.1:{self.health}"}}
service:
  telemetry: {{metrics: {{readers: [{{pull: {{exporter: {{prometheus: {{host: 127.0.0.1, port: {self.own}}}}}}}}}]}}}}
"""


class PresetProcess(SidecarProcess):
    """`sidecar run` with a preset on free ports. `more` is a further document."""

    def __init__(self, preset, folder, more="", env=None):
        self.ports = Ports()
        overrides, extra = folder / "overrides.yaml", folder / "more.yaml"
        overrides.write_text(self.ports.overrides(scraped=preset != "datadog"))
        extra.write_text(more)
        sources = [f"preset:{preset}", overrides, *([extra] if more else [])]
        arguments = [word for source in sources for word in ("--config", source)]
        super().__init__(None, folder, *arguments, "--control", folder / "control.sock", env=env)

    async def post_events(self, *events):
        """Post TelemetryEvents; the status and the answer."""
        url = f"http://127.0.0.1:{self.ports.http}/v1/telemetry/events"
        async with aiohttp.ClientSession() as session, session.post(url, json={"events": events}) as response:
            return response.status, await response.json()

    async def page(self, accept="text/plain"):
        """What a scrape of the Prometheus exporter gives."""
        return await get(f"http://127.0.0.1:{self.ports.metrics}/metrics", accept)

    async def own_metrics(self):
        """The sidecar's own metrics."""
        return await get(f"http://127.0.0.1:{self.ports.own}/metrics")


def datadog_environment(intake, key="k"):
    """What points the datadog preset at a stand-in."""
    endpoints = {f"DD_{part}_ENDPOINT": intake.url for part in ("LOGS", "EVENTS", "TRACES", "METRICS")}
    return {"DD_API_KEY": key, **endpoints}


async def get(url, accept="*/*"):
    """The text of a page."""
    async with aiohttp.ClientSession() as session, session.get(url, headers={"Accept": accept}) as response:
        assert response.status == 200, await response.text()
        return await response.text()
