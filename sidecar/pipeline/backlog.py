"""What waits in front of an exporter: accepted requests in their order, joined when they are taken."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sidecar.batch import Batch
from sidecar.delivery import BatchSettings
from sidecar.errors import DeliveryError
from sidecar.signals import Signal


@dataclass(slots=True, eq=False)
class Entry:
    """One accepted request.

    Attributes:
        batch: holds only bytes; None where a storage holds the request.
        items, size: how many items and bytes it holds.
        severity: the highest of its items, where the queue asks for it.
        accepted_at: monotonic seconds.
        row: where a storage holds it.
        result: set when the request has been delivered or given up, where the sender waits for that.
    """

    signal: Signal
    batch: Batch | None
    items: int
    size: int
    accepted_at: float
    severity: int = 0
    row: int = 0
    result: asyncio.Future[None] | None = None

    def settle(self, error: DeliveryError | None) -> None:
        """Tell the sender who waits what became of the request."""
        if self.result is None or self.result.done():
            return
        if error is None:
            self.result.set_result(None)
        else:
            self.result.set_exception(error)
            self.result.exception()  # marks it as seen: the sender may have gone away


@dataclass(slots=True, eq=False)
class Shipment:
    """One or more requests of one signal on their way out as one batch.

    Attributes:
        entries: the requests inside.
        batch: their union, less what has already been settled. None until it is loaded.
        is_partial: whether a part has been settled, so that `batch` can't be made from the entries again.
        attempts: how often it has been tried.
        reported: items of `batch` that the exporter has counted as lost.
        first_tried_at: monotonic seconds.
        attempt: the task that tries it now.
    """

    signal: Signal
    entries: list[Entry]
    batch: Batch | None = None
    is_partial: bool = False
    attempts: int = 0
    reported: int = 0
    first_tried_at: float = 0.0
    attempt: asyncio.Task[None] | None = None

    @property
    def items(self) -> int:
        """How many items are still to be settled."""
        return sum(entry.items for entry in self.entries) if self.batch is None else len(self.batch)


class Backlog:
    """Requests that wait in memory, by signal.

    A shipment is due when `min_size` is reached or its oldest request has waited for `flush_timeout`. It holds whole
    requests until `min_size` is reached, and never goes over `max_size` by joining.
    """

    def __init__(self, settings: BatchSettings, now: Callable[[], float]) -> None:
        self.settings = settings
        self._now = now
        self._waiting: dict[Signal, deque[Entry]] = {signal: deque() for signal in Signal}
        self._weight: dict[Signal, int] = dict.fromkeys(Signal, 0)

    def adapt(self, settings: BatchSettings) -> None:
        """Join by other settings from now on."""
        self.settings = settings
        self._weight = {signal: sum(map(self._weigh, queue)) for signal, queue in self._waiting.items()}

    def put(self, entry: Entry) -> None:
        """Add a request at the end."""
        self._waiting[entry.signal].append(entry)
        self._weight[entry.signal] += self._weigh(entry)

    def take(self, *, flush: bool = False) -> Shipment | None:
        """Take the next shipment that is due, or with `flush` the next that there is."""
        due = [signal for signal in Signal if self._is_due(signal, flush=flush)]
        if not due:
            return None
        signal = min(due, key=lambda one: self._waiting[one][0].accepted_at)
        return Shipment(signal, self._next_entries(signal))

    def due_in(self) -> float | None:
        """Seconds until a shipment becomes due by time; None when nothing waits."""
        oldest = [queue[0].accepted_at for queue in self._waiting.values() if queue]
        if not oldest:
            return None
        return max(0.0, min(oldest) + self.settings.flush_timeout - self._now())

    def evict_oldest(self) -> Entry | None:
        """Remove the oldest request."""
        queues = [queue for queue in self._waiting.values() if queue]
        if not queues:
            return None
        return self._removed(min(queues, key=lambda queue: queue[0].accepted_at).popleft())

    def evict_older(self, accepted_before: float) -> Entry | None:
        """Remove the oldest request if it was accepted before that (monotonic seconds)."""
        oldest = [queue[0].accepted_at for queue in self._waiting.values() if queue]
        return self.evict_oldest() if oldest and min(oldest) < accepted_before else None

    def evict_least_severe(self, below: int) -> Entry | None:
        """Remove the request of the lowest severity, the oldest of those; None when none is below `below`."""
        waiting = [entry for queue in self._waiting.values() for entry in queue if entry.severity < below]
        if not waiting:
            return None
        least = min(waiting, key=lambda entry: (entry.severity, entry.accepted_at))
        self._waiting[least.signal].remove(least)
        return self._removed(least)

    # What a storage does differently.

    async def store(self, entries: Sequence[Entry]) -> None:
        """Commit requests to the storage. Raises StorageError."""

    async def written(self) -> None:
        """Return when what has been noted so far is on disk, or the disk has refused it."""

    async def load(self, shipment: Shipment) -> list[Entry]:
        """Fill in the shipment's batch. Returns requests that can't be read any more, and are not in it."""
        shipment.batch = Batch.join([entry.batch for entry in shipment.entries if entry.batch is not None])
        return []

    def put_back(self, shipment: Shipment) -> None:
        """Note a failed attempt of a shipment that is going to wait."""

    def done(self, entries: Sequence[Entry]) -> None:
        """Forget requests that have arrived or were given up."""

    def bury(self, entries: Sequence[Entry], reason: str, message: str) -> None:
        """Set requests aside that were given up."""

    def _removed(self, entry: Entry) -> Entry:
        self._weight[entry.signal] -= self._weigh(entry)
        return entry

    def _is_due(self, signal: Signal, *, flush: bool) -> bool:
        queue = self._waiting[signal]
        if not queue:
            return False
        if flush or self._weight[signal] >= self.settings.min_size:
            return True
        return self._now() - queue[0].accepted_at >= self.settings.flush_timeout

    def _next_entries(self, signal: Signal) -> list[Entry]:
        queue = self._waiting[signal]
        settings = self.settings
        taken: list[Entry] = []
        weight = 0
        while queue:
            more = self._weigh(queue[0])
            if taken and settings.max_size and weight + more > settings.max_size:
                break
            taken.append(self._removed(queue.popleft()))
            weight += more
            if weight >= settings.min_size:
                break
        return taken

    def _weigh(self, entry: Entry) -> int:
        return entry.items if self.settings.sizer == "items" else entry.size
