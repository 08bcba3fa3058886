"""Carries out `service.telemetry.metrics`: serves the sidecar's own metrics, and sends them."""

from __future__ import annotations

import asyncio
import logging
from functools import cache
from typing import TYPE_CHECKING

from aiohttp import web

from config import Endpoint
from config.document import PeriodicReaderSettings, PrometheusReaderSettings, TelemetrySettings
from sidecar.net import HttpLease, Listeners
from sidecar.sdk_exporters import make_exporter
from sidecar.telemetry.metrics import Meter, Metrics
from sidecar.telemetry.process import observe_process

if TYPE_CHECKING:
    from sidecar.telemetry.exposition import Exposition

logger = logging.getLogger("sidecar.own_metrics")


class OwnMetrics:
    """The readers of one document. `start` and `stop` as a component's."""

    def __init__(self, settings: TelemetrySettings, metrics: Metrics, listeners: Listeners) -> None:
        self._metrics = metrics
        self._labels = {name: value for name, value in settings.resource_attributes().items() if value is not None}
        self._listeners = listeners
        self.leases: list[HttpLease] = []
        self._periodic: list[PeriodicReaderSettings] = []
        self._tasks: list[asyncio.Task[None]] = []
        if settings.metrics.level == "none":
            return
        observe_process(Meter(metrics))
        for reader in settings.metrics.readers:
            if reader.pull is not None:
                self.leases.append(self._serve(reader.pull.exporter.prometheus))
            if reader.periodic is not None:
                self._periodic.append(reader.periodic)

    async def start(self) -> None:
        """Listen, and begin to send."""
        for lease in self.leases:
            await lease.open()
        self._tasks = [asyncio.create_task(self._send(reader), name="own metrics") for reader in self._periodic]

    async def stop(self) -> None:
        """Send what there is a last time, and stop listening."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for lease in self.leases:
            await lease.close()

    def _serve(self, reader: PrometheusReaderSettings) -> HttpLease:
        endpoint = Endpoint(f"{reader.host}:{reader.port}")
        lease = self._listeners.http(endpoint, "service.telemetry.metrics.readers: prometheus.port")

        @cache
        def exposition() -> Exposition:
            from sidecar.telemetry.exposition import Exposition  # brings in prometheus_client: not before a scrape

            return Exposition(self._metrics, suffixes=not reader.without_type_suffix, labels=self._labels)

        async def answer(request: web.BaseRequest) -> web.Response:
            page, content_type = exposition().page(request.headers.get("Accept", ""))
            return web.Response(body=page, headers={"Content-Type": content_type})

        lease.route("GET", "/metrics", answer)
        return lease

    async def _send(self, reader: PeriodicReaderSettings) -> None:
        from sidecar.telemetry.export import PeriodicExport  # brings in the SDK, which few documents need

        export = PeriodicExport(self._metrics, make_exporter(reader.exporter.otlp, "metrics"), self._labels)
        try:
            while True:
                await asyncio.sleep(reader.interval)
                await asyncio.to_thread(export.send, export.snapshot())
        finally:
            await asyncio.to_thread(export.send, export.snapshot())
            await asyncio.to_thread(export.close)
