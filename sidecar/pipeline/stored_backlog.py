"""What waits on disk: every request is committed before its sender is answered, and read again when its turn comes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from sidecar.batch import Batch
from sidecar.delivery import BatchSettings
from sidecar.pipeline.backlog import Backlog, Entry, Shipment

if TYPE_CHECKING:
    from sidecar.storage import StoredQueue

# While exporting keeps up, requests are sent from memory and the disk is only written.
_CACHED_BYTES: Final = 16 * 2**20
# Beyond this many requests, those in the middle are known to the disk alone.
_KNOWN_REQUESTS: Final = 20_000


class StoredBacklog(Backlog):
    """A backlog whose requests a storage holds. Memory holds the place of each, and the bytes of the first few."""

    def __init__(
        self, settings: BatchSettings, now: Callable[[], float], queue: StoredQueue, on_refilled: Callable[[], None]
    ) -> None:
        """`on_refilled` is called when more requests have become known."""
        super().__init__(settings, now)
        self.queue = queue
        self.on_refilled = on_refilled
        self._cached = 0
        self._known = 0
        self._last_row = 0
        self._more_on_disk = False
        self._was_passed_over = False
        self._refilling: asyncio.Task[None] | None = None
        # Rows that a refill has read before their sender's task could put them.
        self._put_early: set[int] = set()

    async def store(self, entries: Sequence[Entry]) -> None:
        """Commit requests. Raises StorageError."""
        rows = await self.queue.append([(entry.batch, entry.severity) for entry in entries if entry.batch is not None])
        for entry, row in zip(entries, rows, strict=True):
            entry.row = row

    async def recover(self) -> tuple[int, int, int]:
        """Take up what an earlier process has left. Returns how many requests, items and bytes."""
        totals = await self.queue.call(self.queue.file.totals)
        self._more_on_disk = totals[0] > 0
        self.queue.bytes = totals[2]
        await self._refill()
        return totals

    def put(self, entry: Entry) -> None:
        """Add a request that has been stored."""
        self.queue.unclaimed.discard(entry.row)
        if entry.row in self._put_early:
            self._put_early.discard(entry.row)
            return
        if self._more_on_disk or self._known >= _KNOWN_REQUESTS:
            # It is read when its turn comes: later requests must not overtake those that only the disk knows.
            self._more_on_disk = self._was_passed_over = True
            return
        if entry.batch is not None:
            if self._cached + entry.size <= _CACHED_BYTES:
                self._cached += entry.size
            else:
                entry.batch = None
        self._known += 1
        self._last_row = max(self._last_row, entry.row)
        super().put(entry)

    async def load(self, shipment: Shipment) -> list[Entry]:
        """Fill in the shipment's batch from memory, or from disk."""
        missing = [entry.row for entry in shipment.entries if entry.batch is None]
        read = iter(await self.queue.read(missing) if missing else [])
        found = [entry.batch or next(read) for entry in shipment.entries]
        batches = [batch for batch in found if batch is not None]
        shipment.batch = Batch.join(batches) if batches else None
        return [entry for entry, batch in zip(shipment.entries, found, strict=True) if batch is None]

    async def written(self) -> None:
        """As the base says."""
        await self.queue.written()

    def put_back(self, shipment: Shipment) -> None:
        """Note the attempt, and let go of the bytes, which the disk has."""
        self.queue.count_attempt([entry.row for entry in shipment.entries])
        for entry in shipment.entries:
            entry.batch = None
        if not shipment.is_partial:
            shipment.batch = None

    def done(self, entries: Sequence[Entry]) -> None:
        """Delete requests from the disk, unless they have been set aside."""
        stored = [entry for entry in entries if entry.row]
        self.queue.delete([entry.row for entry in stored])
        self.queue.bytes -= sum(entry.size for entry in stored)

    def bury(self, entries: Sequence[Entry], reason: str, message: str) -> None:
        """Set requests aside as dead letters."""
        self.queue.bury([entry.row for entry in entries], reason, message)
        self.queue.bytes -= sum(entry.size for entry in entries)
        for entry in entries:
            entry.row = 0

    def take(self, *, flush: bool = False) -> Shipment | None:
        """As the base; sees to it that the next requests become known in time."""
        shipment = super().take(flush=flush)
        if self._more_on_disk and self._known < _KNOWN_REQUESTS // 2 and self._refilling is None:
            self._refilling = asyncio.get_running_loop().create_task(self._refill_and_tell())
        return shipment

    def _removed(self, entry: Entry) -> Entry:
        self._known -= 1
        if entry.batch is not None:
            self._cached -= entry.size
        return super()._removed(entry)

    async def _refill_and_tell(self) -> None:
        try:
            await self._refill()
        finally:
            self._refilling = None
        self.on_refilled()

    async def _refill(self) -> None:
        while self._more_on_disk and (wanted := _KNOWN_REQUESTS - self._known) > 0:
            self._was_passed_over = False
            rows = await self.queue.rows(self._last_row, wanted)
            offset = self._now() - time.time()
            for row in rows:
                self._last_row = row.id
                if row.id in self.queue.unclaimed:
                    self._put_early.add(row.id)
                self._known += 1
                entry = Entry(row.signal, None, row.items, row.size, row.stored_at / 1e9 + offset, row.severity, row.id)
                super().put(entry)
            if len(rows) < wanted and not self._was_passed_over:
                self._more_on_disk = False
