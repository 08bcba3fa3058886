"""Queue, batching, retry and timeout around one exporter.

    Gate -> reserve -> commit -> backlog -> shipment -> attempt -> delivered
                                    ^                     |  fails in a way that may pass
                                    |                     v
                                  room             waits for its retry, holds no worker

There are no worker tasks: whatever changes (a commit, an end of an attempt, a timer) calls `_dispatch`, which starts as
many attempts as the throttle allows. Everything runs on one event loop, so no state is ever seen half changed.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal

from sidecar.batch import Batch
from sidecar.component import Clock, Exporter
from sidecar.delivery import DeliverySettings
from sidecar.errors import DeliveryError, Permanent, Retryable, TooLarge
from sidecar.pipeline.backlog import Entry, MemoryBacklog, Shipment
from sidecar.pipeline.observe import Drops, ExporterCounts
from sidecar.pipeline.throttle import Throttle, backoff
from sidecar.telemetry.health import Health

# The shipment that the running attempt carries: `Context.dropped` does not say which one it speaks of.
_current: ContextVar[Shipment | None] = ContextVar("shipment", default=None)


@dataclass(slots=True)
class Held:
    """How much an outbox holds: waiting, under way and reserved."""

    requests: int = 0
    items: int = 0
    bytes: int = 0

    def add(self, items: int, size: int) -> None:
        """One request more."""
        self.requests += 1
        self.items += items
        self.bytes += size

    def remove(self, items: int, size: int) -> None:
        """One request less."""
        self.requests -= 1
        self.items -= items
        self.bytes -= size

    def of(self, sizer: Literal["requests", "items", "bytes"]) -> int:
        """As much as it is in a queue's unit."""
        return {"requests": self.requests, "items": self.items, "bytes": self.bytes}[sizer]


@dataclass(slots=True)
class Balance:
    """What became of the items that an outbox took: taken = delivered + stored + dropped when nothing is held."""

    taken: int = 0
    delivered: int = 0
    stored: int = 0
    dropped: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        dropped = sum(self.dropped.values())
        reasons = ", ".join(f"{reason} {items}" for reason, items in sorted(self.dropped.items()))
        return (
            f"received {self.taken} = delivered {self.delivered} + stored {self.stored} + dropped {dropped}"
            f"{f' ({reasons})' if reasons else ''}"
        )


class Outbox:
    """Everything between an exporter and what is sent to it.

    Bounded in `queue_size` and in `max_bytes`: what is waiting, being retried and under way counts. No attempt takes
    longer than `timeout`. Items are counted exactly once: delivered, dropped with a reason, or still held.
    """

    def __init__(
        self,
        exporter: Exporter[DeliverySettings],
        *,
        clock: Clock,
        counts: ExporterCounts,
        drops: Drops,
        health: Health,
        logger: logging.Logger,
        uniform: Callable[[], float] = random.random,
    ) -> None:
        self.exporter = exporter
        self._id = exporter.context.id
        self.balance = Balance()
        self.held = Held()
        self._settings = exporter.settings
        self._queue = exporter.settings.sending_queue
        self._now = clock.monotonic
        self._counts = counts
        self._drops = drops
        drops.on_reported = self._note_reported
        self._health = health
        self._logger = logger
        self._uniform = uniform
        self._backlog = MemoryBacklog(self._queue.batch, clock.monotonic)
        self._throttle = Throttle(self._queue.num_consumers, self._settings.retry_on_failure, clock.monotonic, uniform)
        self._retries: deque[Shipment] = deque()
        self._delayed: dict[Shipment, asyncio.TimerHandle] = {}
        self._under_way: dict[asyncio.Task[None], Shipment] = {}
        self._prefer_retry = True
        self._draining = False
        self._timer: asyncio.TimerHandle | None = None
        self._successor: Outbox | None = None
        self._room = asyncio.Condition()
        self._idle = asyncio.Event()
        self._idle.set()

    def __repr__(self) -> str:
        waits = f", {len(self._delayed)} waiting for a retry" if self._delayed else ""
        return (
            f"<Outbox {self._id} [{self.held.items} items, {self.held.bytes} bytes] "
            f"{len(self._under_way)} under way{waits}>"
        )

    def adopt(self, old: Outbox) -> None:
        """Take over what another outbox holds, and its balance: this one succeeds it after a reload.

        What is under way there ends there; what has to be tried again after that comes here.
        """
        old._successor = self
        self.balance = old.balance
        for shipment, handle in old._delayed.items():
            handle.cancel()
            old._retries.append(shipment)
        old._delayed.clear()
        for shipment in old._retries:
            self.take(shipment, old)
        old._retries.clear()
        while (entry := old._backlog.evict_oldest()) is not None:
            old.release([entry])
            self.held.add(entry.items, entry.size)
            self._backlog.put(entry)
        if self.held.requests:
            self._idle.clear()
            self._dispatch()

    def take(self, shipment: Shipment, old: Outbox) -> None:
        """Take over a shipment that waits for its retry."""
        old.release(shipment.entries)
        for entry in shipment.entries:
            self.held.add(entry.items, entry.size)
        self._idle.clear()
        self._retries.append(shipment)
        self._dispatch()

    # The way in.

    async def reserve(self, batch: Batch) -> _Reservation:
        """Hold room for a batch.

        Raises:
            Retryable: the queue is full (unless `on_full` drops, or `block_on_overflow` waits).
            TooLarge: it would not fit into an empty queue.
        """
        if self._successor is not None:
            return await self._successor.reserve(batch)
        entries = [self._entry(part) for part in self._parts(batch)]
        items = sum(entry.items for entry in entries)
        size = sum(entry.size for entry in entries)
        if not self._fits(Held(), len(entries), items, size):
            self._counts.not_queued(batch.signal, items)
            raise TooLarge(
                f"{self._id}: a request of {items} items and {size} bytes is larger than the whole queue; "
                "send smaller requests, or raise sending_queue.queue_size and max_bytes"
            )
        admitted = await self._make_room(len(entries), items, size)
        if admitted:
            for entry in entries:
                self.held.add(entry.items, entry.size)
        elif self._queue.on_full == "refuse":
            self._counts.not_queued(batch.signal, items)
            raise Retryable(f"{self._id}: sending queue is full", reason="queue_full", after=self._wait())
        return _Reservation(self, entries, admitted=admitted)

    def _parts(self, batch: Batch) -> list[Batch]:
        """The batch, or its pieces where it is over the largest size that may be sent at once."""
        settings = self._queue.batch
        if not settings.max_size:
            return [batch]
        weight = len(batch) if settings.sizer == "items" else len(batch.encode())
        if weight <= settings.max_size:
            return [batch]
        pieces = -(-weight // settings.max_size)
        return list(batch.split(max(1, len(batch) // pieces)))

    def _entry(self, batch: Batch) -> Entry:
        # A copy holds the bytes alone: a decoded message takes several times their memory, and others may read it yet.
        data = batch.encode()
        return Entry(batch.copy(), len(batch), len(data), self._now())

    def _fits(self, held: Held, requests: int, items: int, size: int) -> bool:
        used = Held(held.requests + requests, held.items + items, held.bytes + size)
        return used.of(self._queue.sizer) <= self._queue.queue_size and used.bytes <= self._queue.max_bytes

    async def _make_room(self, requests: int, items: int, size: int) -> bool:
        if self._fits(self.held, requests, items, size):
            return True
        if self._queue.on_full == "drop_oldest":
            while not self._fits(self.held, requests, items, size):
                oldest = self._backlog.evict_oldest()
                if oldest is None:
                    return False
                self._give_up([oldest], "queue_full")
            return True
        if not self._queue.block_on_overflow:
            return False
        async with self._room:
            await self._room.wait_for(lambda: self._draining or self._fits(self.held, requests, items, size))
        return not self._draining

    def _wait(self) -> float:
        """Seconds after which a refused sender may try again: few, since it holds its data in memory meanwhile."""
        return min(5.0, max(1.0, self._throttle.pause()))

    def accept(self, entries: list[Entry]) -> None:
        """Queue what a reservation held room for."""
        if self._successor is not None:  # since the reservation was made
            self.release(entries)
            for entry in entries:
                self._successor.held.add(entry.items, entry.size)
            self._successor.accept(entries)
            return
        for entry in entries:
            self.balance.taken += entry.items
            self._backlog.put(entry)
        self._idle.clear()
        self._dispatch()

    def discard(self, entries: list[Entry]) -> None:
        """Count what `on_full: drop_newest` does not let in."""
        for entry in entries:
            self.balance.taken += entry.items
            self._count_dropped(entry.batch, "queue_full", entry.items)

    def release(self, entries: list[Entry]) -> None:
        """Give back the room of requests that are gone, whatever became of them."""
        for entry in entries:
            self.held.remove(entry.items, entry.size)
        if not self.held.requests:
            self._idle.set()
        if self._queue.block_on_overflow:
            asyncio.get_running_loop().create_task(self._wake_senders())

    # The way out.

    def _dispatch(self) -> None:
        """Start every attempt that may start now, and set the timer for the next moment at which one may."""
        while self._throttle.has_room(len(self._under_way)):
            shipment = self._next()
            if shipment is None:
                break
            task = asyncio.get_running_loop().create_task(self._attempt(shipment), name=f"{self._id} sends")
            self._under_way[task] = shipment
            task.add_done_callback(self._attempted)
        self._set_timer()

    def _next(self) -> Shipment | None:
        # While probing, retries and fresh shipments take turns, so that a bad batch can't keep the good ones waiting.
        retry_first = self._prefer_retry or not self._throttle.is_probing
        self._prefer_retry = not self._prefer_retry
        if retry_first and self._retries:
            return self._retries.popleft()
        fresh = self._backlog.take(flush=self._draining)
        if fresh is None and self._retries:
            return self._retries.popleft()
        return fresh

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = 0.0 if self._retries else self._backlog.due_in()
        if due is None or len(self._under_way) >= self._throttle.limit:
            return  # whatever ends or comes in calls again
        wait = max(due, self._throttle.pause())
        self._timer = asyncio.get_running_loop().call_later(wait, self._dispatch)

    async def _attempt(self, shipment: Shipment) -> None:
        started = time.perf_counter()
        _current.set(shipment)
        if not shipment.attempts:
            shipment.first_tried_at = self._now()
        shipment.attempts += 1
        try:
            try:
                async with asyncio.timeout(self._settings.timeout):
                    await self.exporter.export(shipment.batch)
            except TimeoutError:
                raise Retryable(f"no answer within {self._settings.timeout}", reason="timeout") from None
            except DeliveryError:
                raise
            except Exception as error:  # a fault in the exporter must not lose what a repaired one could deliver
                self._logger.exception("the exporter failed; the batch will be tried again")
                raise Retryable(f"{type(error).__name__} in the exporter", reason="exporter_fault") from error
        except Retryable as error:
            self._counts.timed(started)
            self._retry(shipment, error)
        except Permanent as error:
            self._counts.timed(started)
            self._throttle.succeeded()
            self._logger.error("%d items dropped: %s", shipment.items, error)
            self._finish_failed(shipment, error.reason, error)
        else:
            self._counts.timed(started)
            self._throttle.succeeded()
            self._health.ok()
            self._finish(shipment)

    def _attempted(self, task: asyncio.Task[None]) -> None:
        del self._under_way[task]
        if not task.cancelled():
            self._dispatch()

    def _retry(self, shipment: Shipment, error: Retryable) -> None:
        retry = self._settings.retry_on_failure
        self._throttle.failed(error.after)
        self._keep_remaining(shipment, error)
        delay = backoff(retry, shipment.attempts, error.after, self._uniform)
        elapsed = self._now() - shipment.first_tried_at
        self._health.degraded(f"{error}; {self.held.items} items wait")
        if not retry.enabled or (retry.max_elapsed_time and elapsed + delay > retry.max_elapsed_time):
            reason = "retries_exhausted" if retry.enabled else error.reason
            self._logger.error("%d items dropped after %d attempts: %s", shipment.items, shipment.attempts, error)
            self._finish_failed(shipment, reason, error)
            return
        self._logger.warning("sending failed, again in %.1f s: %s", delay, error)
        if self._successor is not None:
            self._successor.take(shipment, self)
            return
        loop = asyncio.get_running_loop()
        self._delayed[shipment] = loop.call_later(delay, self._retry_now, shipment)

    def _retry_now(self, shipment: Shipment) -> None:
        del self._delayed[shipment]
        self._retries.append(shipment)
        self._dispatch()

    def _keep_remaining(self, shipment: Shipment, error: Retryable) -> None:
        """Where the exporter has delivered a part, keep only the rest for the retry."""
        if error.remaining is not None:
            delivered = len(shipment.batch) - len(error.remaining) - shipment.reported
            shipment.reported = 0
            self._counts.sent(shipment.batch.signal, delivered)
            self.balance.delivered += delivered
            shipment.batch = error.remaining

    def _note_reported(self, reason: str, items: int) -> None:
        """Note what the exporter itself counts as lost, so that it does not count as delivered too."""
        self.balance.dropped[reason] = self.balance.dropped.get(reason, 0) + items
        shipment = _current.get()
        if shipment is not None:
            shipment.reported += items

    def _finish(self, shipment: Shipment) -> None:
        left = len(shipment.batch) - shipment.reported
        self._counts.sent(shipment.batch.signal, left)
        self.balance.delivered += left
        self._settle(shipment, None)

    def _finish_failed(self, shipment: Shipment, reason: str, error: DeliveryError) -> None:
        left = len(shipment.batch) - shipment.reported
        self._counts.failed(shipment.batch.signal, left)
        self._count_dropped(shipment.batch, reason, left)
        self._settle(shipment, error)

    def _give_up(self, entries: list[Entry], reason: str) -> None:
        for entry in entries:
            self._count_dropped(entry.batch, reason, entry.items)
            _resolve(entry, Permanent(f"{self._id}: dropped, {reason}", reason=reason))
        self.release(entries)

    def _count_dropped(self, batch: Batch, reason: str, items: int) -> None:
        self._drops.count(batch.signal, reason, items)
        self.balance.dropped[reason] = self.balance.dropped.get(reason, 0) + items

    def _settle(self, shipment: Shipment, error: DeliveryError | None) -> None:
        for entry in shipment.entries:
            _resolve(entry, error)
        self.release(shipment.entries)

    async def _wake_senders(self) -> None:
        async with self._room:
            self._room.notify_all()

    # The end.

    async def drain(self, deadline: float) -> None:
        """Send what is held until `deadline` (monotonic seconds); drop and count the rest. Works twice."""
        self._draining = True
        self._throttle.reset()
        for shipment, handle in list(self._delayed.items()):
            handle.cancel()
            self._retry_now(shipment)
        await self._wake_senders()
        self._dispatch()
        try:
            async with asyncio.timeout(max(0.0, deadline - self._now())):
                await self._idle.wait()
        except TimeoutError:
            await self._abandon()

    async def _abandon(self) -> None:
        for task in list(self._under_way):
            task.cancel()
        shipments = [*self._under_way.values(), *self._retries, *self._delayed]
        await asyncio.gather(*self._under_way, return_exceptions=True)
        for handle in self._delayed.values():
            handle.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self._retries.clear()
        self._delayed.clear()
        stopped = Retryable(f"{self._id}: the sidecar has stopped", reason="shutdown")
        for shipment in shipments:
            self._finish_failed(shipment, "shutdown", stopped)
        while (entry := self._backlog.evict_oldest()) is not None:
            self._give_up([entry], "shutdown")


class _Reservation:
    """Room for one batch in an outbox."""

    __slots__ = ("_admitted", "_entries", "_outbox", "fallible")

    def __init__(self, outbox: Outbox, entries: list[Entry], *, admitted: bool) -> None:
        self._outbox = outbox
        self._entries = entries
        self._admitted = admitted
        self.fallible = outbox.exporter.settings.sending_queue.wait_for_result

    async def commit(self) -> None:
        """Queue the batch; with `wait_for_result`, return when it has been delivered, or raise what it failed with."""
        entries, outbox = self._entries, self._outbox
        if not self._admitted:
            outbox.discard(entries)
            return
        if not self.fallible:
            outbox.accept(entries)
            return
        loop = asyncio.get_running_loop()
        results = [loop.create_future() for _ in entries]
        for entry, result in zip(entries, results, strict=True):
            entry.result = result
        outbox.accept(entries)
        # Shielded: when the sender goes away, the batch still goes out.
        await asyncio.shield(asyncio.gather(*results))

    def cancel(self) -> None:
        """Give the room back."""
        if self._admitted:
            self._outbox.release(self._entries)


def _resolve(entry: Entry, error: DeliveryError | None) -> None:
    if entry.result is None or entry.result.done():
        return
    if error is None:
        entry.result.set_result(None)
    else:
        entry.result.set_exception(error)
        entry.result.exception()  # marks it as seen: the sender may have gone away
