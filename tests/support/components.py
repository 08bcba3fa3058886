"""Small components, found by entry point as a plugin's are, for tests of the runtime."""

from __future__ import annotations

import asyncio
from importlib.metadata import EntryPoint

from config import ComponentId
from config.document import load
from config.resolve import Resolved, resolve
from sidecar import Batch, Connector, DeliverySettings, Exporter, Extension, Processor, Receiver, Settings, StartError
from sidecar.component import Kind
from sidecar.plan import Key
from sidecar.registry import Registry
from sidecar.service import Service

JOURNAL: list[str] = []


class ProbeSettings(Settings):
    """What a probe does."""

    label: str = ""
    fail: bool = False
    extension: str = ""


class SlowSettings(DeliverySettings):
    """An exporter with an outbox."""

    label: str = ""
    fail: bool = False


class _Probe:
    async def start(self) -> None:
        if self.settings.fail:
            raise StartError(f"{self.context.id}: told to fail")
        JOURNAL.append(f"start {self.context.id}")

    async def stop(self) -> None:
        JOURNAL.append(f"stop {self.context.id}")


class ProbeReceiver(_Probe, Receiver[ProbeSettings]):
    """Emits what a test gives to `emit`."""


class ProbeProcessor(_Probe, Processor[ProbeSettings]):
    """Passes everything on."""

    mutates = False


class HoldingProcessor(_Probe, Processor[ProbeSettings]):
    """Holds batches until it is stopped, and then emits them."""

    def __init__(self, settings, context):
        super().__init__(settings, context)
        self.held: list[Batch] = []

    async def consume(self, batch: Batch) -> None:
        self.held.append(batch)

    async def stop(self) -> None:
        for batch in self.held:
            await self.emit(batch)
        self.held = []
        await super().stop()


class ProbeExporter(_Probe, Exporter[ProbeSettings]):
    """Keeps what it gets; no outbox."""

    def __init__(self, settings, context):
        super().__init__(settings, context)
        self.batches: list[Batch] = []
        self.carried: ProbeExporter | None = None
        if settings.extension:
            context.extension(settings.extension, Extension)

    async def export(self, batch: Batch) -> None:
        self.batches.append(batch)

    def carry(self, old: ProbeExporter) -> None:
        self.carried = old


class QueuedExporter(_Probe, Exporter[SlowSettings]):
    """Keeps what it gets behind an outbox; waits while `hold` is unset."""

    def __init__(self, settings, context):
        super().__init__(settings, context)
        self.batches: list[Batch] = []
        self.hold = asyncio.Event()
        self.hold.set()

    async def export(self, batch: Batch) -> None:
        await self.hold.wait()
        self.batches.append(batch)


class ProbeConnector(_Probe, Connector[ProbeSettings]):
    """Emits what it gets."""

    async def export(self, batch: Batch) -> None:
        await self.emit(batch)


class ProbeExtension(_Probe, Extension[ProbeSettings]):
    """Does nothing."""


REGISTRY = Registry(
    EntryPoint(name, f"support.components:{cls.__name__}", f"sidecar.{kind}")
    for name, cls, kind in [
        ("probe", ProbeReceiver, "receivers"),
        ("probe", ProbeProcessor, "processors"),
        ("holding", HoldingProcessor, "processors"),
        ("probe", ProbeExporter, "exporters"),
        ("queued", QueuedExporter, "exporters"),
        ("pass", ProbeConnector, "connectors"),
        ("helper", ProbeExtension, "extensions"),
    ]
)


def resolved(yaml: str) -> Resolved:
    """A document of these components, checked."""
    quiet = "yaml:service::telemetry::metrics::level: none"
    return resolve(load([f"yaml:{yaml}", quiet]), REGISTRY.settings_of)


def node(service: Service, kind: Kind, name: str, pipeline: str | None = None):
    """A running component, by its id."""
    key = Key(kind, ComponentId.parse(name), ComponentId.parse(pipeline) if pipeline else None)
    return service.graph.nodes[key].component
