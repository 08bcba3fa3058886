"""Room for one batch in an outbox, between the moment it is reserved and the moment it is used or given back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from sidecar.delivery import QueueSettings
from sidecar.pipeline.backlog import Entry


class Queue(Protocol):
    """What a reservation needs of its outbox."""

    async def store(self, entries: Sequence[Entry]) -> None:
        """Commit to the storage, where there is one. Raises Retryable."""

    def accept(self, entries: Sequence[Entry]) -> None:
        """Queue what room was held for. Raises Retryable when nothing is sent any more."""

    def discard(self, entries: Sequence[Entry]) -> None:
        """Count what `on_full` does not let in."""

    def release(self, entries: Sequence[Entry]) -> None:
        """Give the room back."""


class QueueReservation:
    """Room for the requests of one batch. `admitted` is false where `on_full` drops them instead."""

    __slots__ = ("_admitted", "_entries", "_queue", "_waits_for_result", "fallible")

    def __init__(self, queue: Queue, settings: QueueSettings, entries: Sequence[Entry], *, admitted: bool) -> None:
        self._queue = queue
        self._entries = entries
        self._admitted = admitted
        self._waits_for_result = settings.wait_for_result
        self.fallible = admitted and (settings.wait_for_result or settings.storage is not None)

    async def commit(self) -> None:
        """Queue the batch. Returns when a storage has it, or with `wait_for_result` when it has been delivered."""
        if not self._admitted:
            self._queue.discard(self._entries)
        elif not self.fallible:
            self._queue.accept(self._entries)
        else:
            # Shielded: when the sender goes away meanwhile, the batch still goes its way.
            await asyncio.shield(asyncio.ensure_future(self._commit()))

    async def _commit(self) -> None:
        try:
            await self._queue.store(self._entries)
        except BaseException:
            self._queue.release(self._entries)
            raise
        results = []
        if self._waits_for_result:
            results = [asyncio.get_running_loop().create_future() for _ in self._entries]
            for entry, result in zip(self._entries, results, strict=True):
                entry.result = result
        self._queue.accept(self._entries)
        await asyncio.gather(*results)

    def cancel(self) -> None:
        """Give the room back."""
        if self._admitted:
            self._queue.release(self._entries)
