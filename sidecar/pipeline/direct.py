"""Ends of a pipeline that take a batch in the sender's own task: no queue, no retry; the sender hears of a failure."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from sidecar.batch import Batch
from sidecar.errors import Permanent, Retryable
from sidecar.pipeline.observe import ExporterCounts


class DirectSink:
    """Calls `deliver` at commit. For long-form processors and connectors, which are counted elsewhere."""

    def __init__(self, deliver: Callable[[Batch], Awaitable[None]]) -> None:
        self._deliver = deliver

    async def reserve(self, batch: Batch) -> _DirectReservation:
        """There is always room; `commit` may fail."""
        return _DirectReservation(self._deliver, batch)


class CountingSink(DirectSink):
    """Calls an exporter at commit, and counts what becomes of the batch. For exporters without a queue.

    `timeout`: seconds after which an attempt has failed; None for exporters that only compute.
    """

    def __init__(
        self, export: Callable[[Batch], Awaitable[None]], counts: ExporterCounts, timeout: float | None = None
    ) -> None:
        super().__init__(self._export)
        self._exporter = export
        self._counts = counts
        self._timeout = timeout
        self.delivered = 0
        self.failed = 0

    async def _export(self, batch: Batch) -> None:
        items = len(batch)
        started = time.perf_counter()
        try:
            async with asyncio.timeout(self._timeout):
                await self._exporter(batch)
        except TimeoutError:
            raise Retryable(f"no answer within {self._timeout:g} s", reason="timeout") from None
        except Permanent:
            self.failed += items
            self._counts.failed(batch.signal, items)
            raise
        finally:
            self._counts.timed(started)
        self.delivered += items
        self._counts.sent(batch.signal, items)


class _DirectReservation:
    __slots__ = ("_batch", "_deliver")

    fallible = True

    def __init__(self, deliver: Callable[[Batch], Awaitable[None]], batch: Batch) -> None:
        self._deliver = deliver
        self._batch = batch

    async def commit(self) -> None:
        await self._deliver(self._batch)

    def cancel(self) -> None:
        pass
