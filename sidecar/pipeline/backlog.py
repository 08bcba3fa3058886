"""What waits in front of an exporter: accepted requests in their order, joined when they are taken."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from sidecar.batch import Batch
from sidecar.delivery import BatchSettings
from sidecar.signals import Signal


@dataclass(slots=True, eq=False)
class Entry:
    """One accepted request.

    Attributes:
        batch: holds only bytes.
        items, size: how many items and bytes it holds.
        accepted_at: monotonic seconds.
        result: set when the request has been delivered or given up, where the sender waits for that.
    """

    batch: Batch
    items: int
    size: int
    accepted_at: float
    result: asyncio.Future[None] | None = None


@dataclass(slots=True, eq=False)
class Shipment:
    """One or more requests of one signal on their way out as one batch.

    Attributes:
        entries: the requests inside.
        batch: their union, less what has already been delivered.
        items, size: of the entries, as they count in the queue.
        attempts: how often it has been tried.
        reported: items of `batch` that the exporter has counted as lost.
        first_tried_at: monotonic seconds.
    """

    entries: list[Entry]
    batch: Batch
    items: int
    size: int
    attempts: int = 0
    reported: int = 0
    first_tried_at: float = field(default=0.0)


class MemoryBacklog:
    """Requests that wait in memory, by signal.

    A shipment is due when `min_size` is reached or its oldest request has waited for `flush_timeout`. It holds whole
    requests until `min_size` is reached, and never goes over `max_size` by joining.
    """

    def __init__(self, settings: BatchSettings, now: Callable[[], float]) -> None:
        self._settings = settings
        self._now = now
        self._waiting: dict[Signal, deque[Entry]] = {signal: deque() for signal in Signal}
        self._weight: dict[Signal, int] = dict.fromkeys(Signal, 0)

    def put(self, entry: Entry) -> None:
        """Add a request at the end."""
        self._waiting[entry.batch.signal].append(entry)
        self._weight[entry.batch.signal] += self._weigh(entry)

    def take(self, *, flush: bool = False) -> Shipment | None:
        """Take the next shipment that is due, or with `flush` the next that there is."""
        due = [signal for signal in Signal if self._is_due(signal, flush=flush)]
        if not due:
            return None
        signal = min(due, key=lambda one: self._waiting[one][0].accepted_at)
        return self._join(self._next_entries(signal))

    def due_in(self) -> float | None:
        """Seconds until a shipment becomes due by time; None when nothing waits."""
        oldest = [queue[0].accepted_at for queue in self._waiting.values() if queue]
        if not oldest:
            return None
        return max(0.0, min(oldest) + self._settings.flush_timeout - self._now())

    def evict_oldest(self) -> Entry | None:
        """Remove the oldest request, to make room."""
        queues = [queue for queue in self._waiting.values() if queue]
        if not queues:
            return None
        entry = min(queues, key=lambda queue: queue[0].accepted_at).popleft()
        self._weight[entry.batch.signal] -= self._weigh(entry)
        return entry

    def _is_due(self, signal: Signal, *, flush: bool) -> bool:
        queue = self._waiting[signal]
        if not queue:
            return False
        if flush or self._weight[signal] >= self._settings.min_size:
            return True
        return self._now() - queue[0].accepted_at >= self._settings.flush_timeout

    def _next_entries(self, signal: Signal) -> list[Entry]:
        queue = self._waiting[signal]
        settings = self._settings
        taken: list[Entry] = []
        weight = 0
        while queue:
            more = self._weigh(queue[0])
            if taken and settings.max_size and weight + more > settings.max_size:
                break
            taken.append(queue.popleft())
            weight += more
            if weight >= settings.min_size:
                break
        self._weight[signal] -= weight
        return taken

    def _weigh(self, entry: Entry) -> int:
        return entry.items if self._settings.sizer == "items" else entry.size

    @staticmethod
    def _join(entries: list[Entry]) -> Shipment:
        return Shipment(
            entries=entries,
            batch=Batch.join([entry.batch for entry in entries]),
            items=sum(entry.items for entry in entries),
            size=sum(entry.size for entry in entries),
        )
