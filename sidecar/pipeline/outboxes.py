"""An outbox for each signal, in front of an exporter that sends them to different places: none waits for another's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from sidecar.batch import Batch
from sidecar.component import Exporter
from sidecar.pipeline.ledger import Balance, Held
from sidecar.pipeline.observe import Drops
from sidecar.pipeline.outbox import Outbox
from sidecar.pipeline.reservation import QueueReservation
from sidecar.signals import Signal
from sidecar.telemetry.health import Health, Status

_CIRCUITS = ("open", "half_open", "closed")


class Outboxes:
    """Looks like one outbox. Each signal has the whole of the queue's limits, and its own pace and retries.

    Args:
        make: makes an outbox that reports to that health.
        exporter: what they stand in front of. Its health is degraded while one of theirs is.
        drops: the exporter's.
    """

    def __init__(self, make: Callable[[Health], Outbox], exporter: Exporter[Any], drops: Drops) -> None:
        name = exporter.context.id
        self._healths = {signal: _PartHealth(f"{name}:{signal.value}", self._report) for signal in Signal}
        self.parts: Mapping[Signal, Outbox] = {signal: make(health) for signal, health in self._healths.items()}
        self.exporter = exporter
        drops.on_reported = lambda signal, reason, items: self.parts[signal].note_reported(signal, reason, items)

    def __repr__(self) -> str:
        return f"<Outboxes {list(self.parts.values())}>"

    async def reserve(self, batch: Batch) -> QueueReservation:
        """As `Outbox.reserve`, for the batch's signal."""
        return await self.parts[batch.signal].reserve(batch)

    async def start(self) -> None:
        """As `Outbox.start`."""
        for part in self.parts.values():
            await part.start()

    def can_adopt(self, old: object) -> bool:
        """As `Outbox.can_adopt`."""
        return isinstance(old, Outboxes) and all(
            part.can_adopt(old.parts[signal]) for signal, part in self.parts.items()
        )

    def adopt(self, old: Outboxes) -> None:
        """As `Outbox.adopt`."""
        for signal, part in self.parts.items():
            part.adopt(old.parts[signal])

    async def drain(self, deadline: float) -> None:
        """As `Outbox.drain`."""
        await asyncio.gather(*(part.drain(deadline) for part in self.parts.values()))

    async def flush(self, deadline: float) -> None:
        """As `Outbox.flush`."""
        await asyncio.gather(*(part.flush(deadline) for part in self.parts.values()))

    @property
    def is_succeeded(self) -> bool:
        """As `Outbox.is_succeeded`."""
        return all(part.is_succeeded for part in self.parts.values())

    @property
    def held(self) -> Held:
        """What all of them hold."""
        total = Held()
        for part in self.parts.values():
            total.add(part.held.items, part.held.bytes, part.held.requests)
        return total

    @property
    def balance(self) -> Balance:
        """What became of everything."""
        total = Balance()
        for part in self.parts.values():
            total.add(part.balance)
        return total

    @property
    def capacity(self) -> int:
        """What all of them can hold, in the queue's unit."""
        return sum(part.capacity for part in self.parts.values())

    @property
    def fill(self) -> float:
        """How full the fullest is, 0 to 1."""
        return max(part.fill for part in self.parts.values())

    @property
    def circuit(self) -> str:
        """The worst of them, as `Outbox.circuit`."""
        return min((part.circuit for part in self.parts.values()), key=_CIRCUITS.index)

    def concerns(self) -> list[str]:
        """What should worry a person, and of which signal."""
        return [f"{signal.value}: {one}" for signal, part in self.parts.items() for one in part.concerns()]

    def _report(self) -> None:
        health = self.exporter.context.health
        troubles = [
            f"{signal.value}: {part.message}" for signal, part in self._healths.items() if part.status == "degraded"
        ]
        if troubles:
            health.degraded("; ".join(troubles))
        else:
            health.ok()


class _PartHealth(Health):
    """What one outbox says of itself."""

    def __init__(self, component: str, on_report: Callable[[], None]) -> None:
        super().__init__(component)
        self._on_report = on_report

    def report(self, status: Status, message: str = "") -> None:
        """As the base, and tell."""
        super().report(status, message)
        self._on_report()
