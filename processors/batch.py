"""Joins what comes in small pieces. Prefer `sending_queue.batch` of the exporter, which answers for what it holds."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Final, TypeAlias

from sidecar import (
    Batch,
    BatchContext,
    Context,
    DeliveryError,
    Duration,
    Processor,
    Retryable,
    SettingError,
    Settings,
    Signal,
)

# How long to wait after a refusal that does not say.
_RETRY_AFTER: Final = 1.0


class BatchProcessorSettings(Settings):
    """When what was collected is sent on.

    Attributes:
        send_batch_size: as soon as there are so many items; 0: at once.
        timeout: when the oldest item has waited so long; 0: at once.
        send_batch_max_size: what is larger is divided; 0: nothing is.
        metadata_keys: request headers that keep batches apart; the names are not case-sensitive. Of the headers, the
            batches that leave carry only these.
        metadata_cardinality_limit: how many combinations of their values may be held at a time.
    """

    send_batch_size: int = 8192
    timeout: Duration = Duration("200ms")
    send_batch_max_size: int = 0
    metadata_keys: tuple[str, ...] = ()
    metadata_cardinality_limit: int = 1000

    def __post_init__(self) -> None:
        for name in ("send_batch_size", "send_batch_max_size", "metadata_cardinality_limit"):
            if getattr(self, name) < 0:
                raise SettingError(f"{getattr(self, name)} is negative", name)
        if 0 < self.send_batch_max_size < self.send_batch_size:
            raise SettingError(f"is below send_batch_size {self.send_batch_size}", "send_batch_max_size")
        if len({key.lower() for key in self.metadata_keys}) < len(self.metadata_keys):
            raise SettingError("names a header twice", "metadata_keys")


class BatchProcessor(Processor[BatchProcessorSettings]):
    """Answers its senders at once, holds what they sent, and emits it joined.

    What follows may refuse: then what is held is offered again, and as soon as as much again has come, senders are
    refused too. At a stop it is offered a last time, and counted as dropped when it is refused.
    """

    mutates = False

    def __init__(self, settings: BatchProcessorSettings, context: Context) -> None:
        super().__init__(settings, context)
        self._headers = tuple(key.lower() for key in settings.metadata_keys)
        self._at_once = not settings.send_batch_size or not settings.timeout
        self._shards: dict[ShardKey, Shard] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()
        counter = context.meter.counter
        self._by_size = counter("otelcol_processor_batch_batch_size_trigger_send", "Times that the size was reached.")
        self._by_time = counter("otelcol_processor_batch_timeout_trigger_send", "Times that the timeout was reached.")

    async def stop(self) -> None:
        """Emit what is held."""
        self._stopping.set()
        for shard in self._shards.values():
            shard.is_due.set()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def consume(self, batch: Batch) -> None:
        """Hold the batch. Waits while what follows is slow.

        Raises:
            Retryable: what follows refuses, or too many combinations of headers are held.
        """
        items = len(batch)
        shard = self._shard(batch)
        while shard.sending and shard.items >= max(self.settings.send_batch_size, 1):
            if shard.refusal is not None:
                raise Retryable(str(shard.refusal), after=shard.refusal.after, reason=shard.refusal.reason)
            await shard.next_change()
            shard = self._shard(batch)
        shard.batches.append(batch.forget_message())
        shard.items += items
        if self._at_once or shard.items >= self.settings.send_batch_size:
            shard.is_due.set()

    def _shard(self, batch: Batch) -> Shard:
        """Where the batch is held. A shard lives as long as it holds something."""
        key = (batch.signal, *(batch.context.metadata.get(name) for name in self._headers))
        shard = self._shards.get(key)
        if shard is None:
            limit = self.settings.metadata_cardinality_limit
            if limit and len(self._shards) >= limit:
                raise Retryable(
                    f"{limit} combinations of metadata_keys are held already; raise metadata_cardinality_limit",
                    after=_RETRY_AFTER,
                    reason="metadata_cardinality",
                )
            shard = self._shards[key] = Shard()
            task = self.context.spawn(self._run(key, shard), "batch")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return shard

    async def _run(self, key: ShardKey, shard: Shard) -> None:
        try:
            while shard.batches:
                await self._until_due(shard)
                batches, shard.batches, shard.items = shard.batches, [], 0
                shard.sending = True
                for part in self._joined(batches):
                    await self._offer(part, shard)
                shard.sending = False
                shard.change()
        finally:
            del self._shards[key]
            shard.change()

    async def _until_due(self, shard: Shard) -> None:
        if not self._at_once:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.settings.timeout):
                    await shard.is_due.wait()
            (self._by_size if shard.is_due.is_set() else self._by_time).add(1)
        shard.is_due.clear()

    def _joined(self, batches: Sequence[Batch]) -> Sequence[Batch]:
        joined = Batch.join(batches, _common([batch.context for batch in batches], self._headers))
        most = self.settings.send_batch_max_size
        try:
            return joined.split(most) if most else [joined]
        except DeliveryError as error:
            self._drop(joined, error)
            return []

    async def _offer(self, batch: Batch, shard: Shard) -> None:
        """Emit a batch, again and again while it is refused for now."""
        while True:
            try:
                await self.emit(batch.copy())
            except Retryable as error:
                if self._stopping.is_set():
                    self._drop(batch, error)
                    return
                batch = error.remaining or batch
                shard.refusal = error
                shard.change()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(error.after or _RETRY_AFTER):
                        await self._stopping.wait()
            except DeliveryError as error:
                self._drop(batch, error)
                return
            else:
                shard.refusal = None
                return

    def _drop(self, batch: Batch, error: DeliveryError) -> None:
        self.context.logger.warning("%d items are dropped: %s", len(batch), error)
        self.context.dropped(batch.signal, error.reason, len(batch))


# The signal and the values of the headers.
ShardKey: TypeAlias = tuple[Signal | str | None, ...]


class Shard:
    """What is held together.

    Attributes:
        batches, items: what has come since the last time.
        is_due: to be sent on now.
        sending: whether what came before is on its way.
        refusal: why it is not accepted yet, or None.
    """

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.items = 0
        self.is_due = asyncio.Event()
        self.sending = False
        self.refusal: Retryable | None = None
        self._changed = asyncio.Event()

    async def next_change(self) -> None:
        """Wait until `sending` or `refusal` has changed."""
        await self._changed.wait()

    def change(self) -> None:
        """Say that one of them has changed."""
        self._changed.set()
        self._changed = asyncio.Event()


def _common(contexts: Sequence[BatchContext], headers: Sequence[str]) -> BatchContext:
    """Where joined batches come from: what all of them have in common."""
    first = contexts[0]
    if all(context is first for context in contexts):
        return first
    same = {
        name: getattr(first, name)
        for name in ("identity", "peer", "transport")
        if all(getattr(context, name) == getattr(first, name) for context in contexts)
    }
    return BatchContext(
        **same,
        metadata={name: first.metadata[name] for name in headers if name in first.metadata},
        received_at=min(context.received_at for context in contexts),
    )
