"""Queue, batching, retry and timeout around one exporter.

    Gate -> reserve -> commit -> backlog -> shipment -> attempt -> delivered
                                    ^                     |  fails in a way that may pass
                                    |                     v
                                  room             waits for its retry, holds no worker

There are no worker tasks: whatever changes (a commit, an end of an attempt, a timer) calls `_dispatch`, which starts as
many attempts as the throttle allows. Everything runs on one event loop, so no state is ever seen half changed.
"""
# ruff: noqa: SLF001 (an outbox and its successor are of one class)

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, Final

from config import Size
from sidecar.batch import Batch
from sidecar.component import Clock, Exporter, Storage
from sidecar.delivery import DeliverySettings
from sidecar.errors import DeliveryError, Permanent, Retryable, StorageError, TooLarge
from sidecar.pipeline.backlog import Backlog, Entry, Shipment
from sidecar.pipeline.ledger import Balance, Held
from sidecar.pipeline.observe import Drops, ExporterCounts
from sidecar.pipeline.reservation import QueueReservation
from sidecar.pipeline.retries import Retries
from sidecar.pipeline.stored_backlog import StoredBacklog
from sidecar.pipeline.throttle import Throttle, backoff
from sidecar.severity import severity
from sidecar.signals import Signal
from sidecar.telemetry.health import Health
from sidecar.telemetry.tracing import Tracing

# The shipment that the running attempt carries: `Context.dropped` does not say which one it speaks of.
_current: ContextVar[Shipment | None] = ContextVar("shipment", default=None)

# What a queue in memory may take, unless `max_bytes` is written.
DEFAULT_MAX_BYTES: Final = Size("128MiB")
# With a single consumer the order is kept. After so many seconds (or `max_elapsed_time`) of failures another batch is
# tried once, which tells a dead server from a bad batch.
_ORDER_PATIENCE: Final = 300.0
# What health calls nearly full, and recent.
_NEARLY_FULL: Final = 0.8
_RECENT: Final = 60.0
# What senders are told to wait when the disk refuses, or the sidecar stops.
_RETRY_AFTER: Final = 5.0


class Lineage:
    """An outbox and those that have succeeded it, each at a reload.

    They all know the heir and nobody between: a chain of them would be held for ever by whatever holds the first.
    """

    def __init__(self, heir: Outbox) -> None:
        self.heir = heir


class Outbox:
    """Everything between an exporter and what is sent to it.

    Bounded in `queue_size` and in `max_bytes`: what is waiting, being retried and under way counts. No attempt takes
    longer than `timeout`. Items are counted exactly once: delivered, stored, dropped with a reason, or still held.

    With a storage, senders are answered after their request is committed to it, and what can't be sent stays there.

    `health`: what it says of itself, and its name. The exporter's, unless it is one of several outboxes.
    """

    def __init__(
        self,
        exporter: Exporter[DeliverySettings],
        *,
        health: Health | None = None,
        storage: Storage[Any] | None = None,
        clock: Clock,
        counts: ExporterCounts,
        drops: Drops,
        tracing: Callable[[], Tracing] = Tracing,
        uniform: Callable[[], float] = random.random,
    ) -> None:
        self.exporter = exporter
        self.balance = Balance()
        self.held = Held()
        self._id = health.component if health else str(exporter.context.id)
        self._settings = exporter.settings
        self._queue = exporter.settings.sending_queue
        self._storage = storage
        self._max_bytes = self._queue.max_bytes or (storage.max_bytes if storage else DEFAULT_MAX_BYTES)
        self._now = clock.monotonic
        self._counts = counts
        self._drops = drops
        drops.on_reported = self.note_reported
        self._health = health or exporter.context.health
        self._logger = exporter.context.logger
        self._tracing = tracing
        self._uniform = uniform
        self._backlog = Backlog(self._queue.batch, clock.monotonic)
        self._throttle = Throttle(self._queue.num_consumers, self._settings.retry_on_failure, clock.monotonic, uniform)
        self._retries = Retries(
            in_order=self._queue.num_consumers == 1,
            patience=self._settings.retry_on_failure.max_elapsed_time or _ORDER_PATIENCE,
            now=clock.monotonic,
            on_due=self._dispatch,
        )
        self._under_way: dict[asyncio.Task[None], Shipment] = {}
        self._draining = False
        self._is_closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._lineage = Lineage(self)
        self._predecessor: Outbox | None = None
        self._last_drop = float("-inf")
        self._room = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def __repr__(self) -> str:
        waits = f", {self._retries.waiting} waiting for a retry" if self._retries.waiting else ""
        return (
            f"<Outbox {self._id} [{self.held.items} items, {self.held.bytes} bytes] "
            f"{len(self._under_way)} under way{waits}>"
        )

    # Beginning and succession.

    async def start(self) -> None:
        """Open the storage, where there is one, and take up what an earlier process has left in it.

        Raises:
            StartError: the storage can't be opened.
        """
        if self._storage is None:
            return
        queue = await self._storage.open(f"exporters/{self._id}")
        backlog = self._backlog = StoredBacklog(self._queue.batch, self._now, queue, self._dispatch)
        requests, items, size = await backlog.recover()
        if requests:
            self.held.add(items, size, requests)
            self.balance.taken += items
            self._logger.info("%d items from an earlier run wait in %s", items, queue.file.path)
            self._idle.clear()
            self._dispatch()

    def can_adopt(self, old: object) -> bool:
        """Whether `adopt` is possible: both keep their requests in the same place, which the old one still has."""
        if not isinstance(old, Outbox) or old._id != self._id:
            return False
        return self._storage is old._storage and not old._is_closed and not old.is_succeeded

    def adopt(self, old: Outbox) -> None:
        """Succeed another outbox after a reload, instead of `start`: take over what it holds, and its balance.

        What is under way there ends there; what has to be tried again after that comes here.
        """
        self._lineage, self._predecessor = old._lineage, old
        self._lineage.heir = self
        self.balance, self.held = old.balance, old.held
        self._backlog, old._backlog = old._backlog, Backlog(self._queue.batch, self._now)
        self._backlog.adapt(self._queue.batch)
        if isinstance(self._backlog, StoredBacklog):
            self._backlog.on_refilled = self._dispatch
        for shipment in old._retries.take_all():
            self._retries.put(shipment)
        old._cancel_timer()
        old._wake_senders()
        if not old._under_way:
            old._idle.set()
        if self.held.requests:
            self._idle.clear()
            self._dispatch()

    @property
    def is_succeeded(self) -> bool:
        """Whether another outbox holds what this one has taken."""
        return self._lineage.heir is not self

    def take(self, shipment: Shipment) -> None:
        """Take over a shipment that failed at the predecessor."""
        self._retries.put(shipment)
        self._dispatch()

    @property
    def _heir(self) -> Outbox:
        """Who holds what this outbox has taken: itself, until it has a successor."""
        return self._lineage.heir

    @property
    def _busy(self) -> int:
        """How many attempts are under way, those of predecessors included."""
        before = self._predecessor
        if before is None:
            return len(self._under_way)
        others = before._busy
        if not others:
            self._predecessor = None
        return len(self._under_way) + others

    def concerns(self) -> list[str]:
        """What should worry a person, although nothing has failed for good."""
        fill = self.fill
        found = [f"the queue is {fill:.0%} full"] if fill >= _NEARLY_FULL else []
        ago = self._now() - self._last_drop
        if ago < _RECENT:
            found.append(f"items were dropped {ago:.0f} s ago ({self.balance})")
        return found

    @property
    def capacity(self) -> int:
        """What the queue can hold, in its unit."""
        return self._queue.queue_size

    @property
    def fill(self) -> float:
        """How full the queue is, in items or bytes, whichever is more: 0 to 1."""
        return max(self.held.of(self._queue.sizer) / self._queue.queue_size, self.held.bytes / self._max_bytes)

    @property
    def circuit(self) -> str:
        """`closed` while batches get through, `half_open` after a failure, `open` while it is only probed."""
        return "open" if self._throttle.is_probing else "half_open" if self._throttle.is_failing else "closed"

    # The way in.

    async def reserve(self, batch: Batch) -> QueueReservation:
        """Hold room for a batch.

        Raises:
            Retryable: the queue is full (unless `on_full` drops, or `block_on_overflow` waits).
            TooLarge: it would not fit into an empty queue.
        """
        if self.is_succeeded:
            return await self._heir.reserve(batch)
        if self._is_closed:
            raise self._stopped()
        entries = [self._entry(part) for part in self._parts(batch)]
        needed = Held(len(entries), sum(entry.items for entry in entries), sum(entry.size for entry in entries))
        if not self._fits(Held(), needed):
            self._counts.not_queued(batch.signal, needed.items)
            raise TooLarge(
                f"{self._id}: a request of {needed.items} items and {needed.bytes} bytes is larger than the whole "
                "queue; send smaller requests, or raise sending_queue.queue_size and max_bytes"
            )
        admitted = await self._make_room(needed, entries)
        heir = self._heir
        if heir is not self:  # since it waited for room
            return await heir.reserve(batch)
        if admitted:
            self.held.add(needed.items, needed.bytes, needed.requests)
            self._idle.clear()
        elif not self._queue.on_full.startswith("drop"):
            self._counts.not_queued(batch.signal, needed.items)
            raise Retryable(f"{self._id}: sending queue is full", reason="queue_full", after=self._wait())
        return QueueReservation(self, self._queue, entries, admitted=admitted)

    def _parts(self, batch: Batch) -> Sequence[Batch]:
        """The batch, or its pieces where it is over the largest size that may be sent at once."""
        settings = self._queue.batch
        if not settings.max_size:
            return [batch]
        weight = len(batch) if settings.sizer == "items" else len(batch.encode())
        if weight <= settings.max_size:
            return [batch]
        pieces = -(-weight // settings.max_size)
        return batch.split(max(1, len(batch) // pieces))

    def _entry(self, batch: Batch) -> Entry:
        # A copy holds the bytes alone: a decoded message takes several times their memory, and others may read it yet.
        data = batch.encode()
        weight = severity(batch) if self._queue.on_full == "drop_lowest_severity" else 0
        return Entry(batch.signal, batch.copy(), len(batch), len(data), self._now(), weight)

    def _fits(self, held: Held, needed: Held) -> bool:
        sizer = self._queue.sizer
        if held.of(sizer) + needed.of(sizer) > self._queue.queue_size or held.bytes + needed.bytes > self._max_bytes:
            return False
        return self._storage is None or held is not self.held or needed.bytes <= self._storage.room()

    async def _make_room(self, needed: Held, entries: Sequence[Entry]) -> bool:
        """Whether there is room now: because there is, because others had to go, or after a wait."""
        policy = self._queue.on_full
        while not self._fits(self.held, needed):
            if policy == "drop_oldest":
                leaving = self._backlog.evict_oldest()
            elif policy == "drop_lowest_severity":
                leaving = self._backlog.evict_least_severe(below=max(entry.severity for entry in entries))
            else:
                break
            if leaving is None:
                return False
            self._give_up([leaving], "queue_full")
        else:
            return True
        if not self._queue.block_on_overflow:
            return False
        while not (self._draining or self.is_succeeded or self._fits(self.held, needed)):
            self._room.clear()
            await self._room.wait()
        return not self._draining

    def _wait(self) -> float:
        """Seconds after which a refused sender may try again: few, since it holds its data in memory meanwhile."""
        return min(5.0, max(1.0, self._throttle.pause()))

    async def store(self, entries: Sequence[Entry]) -> None:
        """Commit to the storage, where there is one. Raises Retryable."""
        if self._heir._is_closed:
            raise self._stopped()
        try:
            await self._heir._backlog.store(entries)
        except StorageError as error:
            self._health.degraded(f"storage: {error}")
            raise Retryable(f"{self._id}: storage: {error}", reason="storage", after=_RETRY_AFTER) from None

    def accept(self, entries: Sequence[Entry]) -> None:
        """Queue what a reservation held room for. Raises Retryable when nothing is sent any more."""
        heir = self._heir
        if heir._is_closed:
            self.release(entries)
            raise self._stopped()
        for entry in entries:
            heir.balance.taken += entry.items
            heir._backlog.put(entry)
        heir._dispatch()

    def discard(self, entries: Sequence[Entry]) -> None:
        """Count what `on_full` does not let in."""
        for entry in entries:
            self.balance.taken += entry.items
            self._count_dropped(entry.signal, "queue_full", entry.items)

    def release(self, entries: Sequence[Entry]) -> None:
        """Give back the room of requests that are gone, whatever became of them."""
        heir = self._heir
        for entry in entries:
            heir.held.remove(entry.items, entry.size)
        if not heir.held.requests:
            heir._idle.set()
        heir._wake_senders()

    def _wake_senders(self) -> None:
        self._room.set()

    # The way out.

    def _dispatch(self) -> None:
        """Start every attempt that may start now, and set the timer for the next moment at which one may."""
        if self.is_succeeded:
            self._heir._dispatch()
            return
        if self._is_closed:
            return
        while self._throttle.has_room(self._busy):
            shipment = self._next()
            if shipment is None:
                break
            task = asyncio.get_running_loop().create_task(self._attempt(shipment), name=f"{self._id} sends")
            self._under_way[task] = shipment
            shipment.attempt = task
            task.add_done_callback(self._attempted)
        self._set_timer()

    def _next(self) -> Shipment | None:
        if self._storage is not None:
            while (old := self._backlog.evict_older(self._now() - self._storage.max_age)) is not None:
                self._give_up([old], "expired")
        return self._retries.next(lambda: self._backlog.take(flush=self._draining), probing=self._throttle.is_probing)

    def _set_timer(self) -> None:
        self._cancel_timer()
        due = 0.0 if self._retries.has_due else self._backlog.due_in()
        if due is None or self._busy >= self._throttle.limit:
            return  # whatever ends or comes in calls again
        self._timer = asyncio.get_running_loop().call_later(max(due, self._throttle.pause()), self._dispatch)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _attempt(self, shipment: Shipment) -> None:
        started = time.perf_counter()
        _current.set(shipment)
        if not shipment.attempts:
            shipment.first_tried_at = self._now()
        shipment.attempts += 1
        try:
            await self._export(shipment)
        except Retryable as error:
            self._retry(shipment, error)
        except Permanent as error:
            self._throttle.succeeded()
            self._finish_failed(shipment, error.reason, error)
        else:
            self._throttle.succeeded()
            self._health.ok()
            self._finish(shipment)
        finally:
            self._counts.timed(started)
        if shipment.attempt is asyncio.current_task():
            shipment.attempt = None
        # The worker stays taken until the deletion is on disk: what a crash makes arrive twice is at most one batch per
        # consumer.
        await self._heir._backlog.written()

    async def _export(self, shipment: Shipment) -> None:
        try:
            if shipment.batch is None:
                await self._load(shipment)
            if shipment.batch is not None:
                span = self._tracing().span(f"exporters/{self._id}", "client", shipment.batch)
                with span:
                    async with asyncio.timeout(self._settings.timeout or None):
                        await self.exporter.export(shipment.batch)
        except TimeoutError:
            raise Retryable(f"no answer within {self._settings.timeout}", reason="timeout") from None
        except DeliveryError:
            raise
        except Exception as error:  # a fault in the exporter must not lose what a repaired one could deliver
            self._logger.exception("the exporter failed; the batch will be tried again")
            raise Retryable(f"{type(error).__name__} in the exporter", reason="exporter_fault") from error

    async def _load(self, shipment: Shipment) -> None:
        """Make the shipment's batch. Requests that can't be read any more are counted, and leave it."""
        try:
            lost = await self._heir._backlog.load(shipment)
        except StorageError as error:
            raise Retryable(f"storage: {error}", reason="storage") from None
        if lost:
            shipment.entries = [entry for entry in shipment.entries if entry not in lost]
            self._logger.error("%d stored requests are damaged; they have been set aside", len(lost))
            for entry in lost:
                self._count_dropped(entry.signal, "corrupt", entry.items)
                entry.settle(Permanent(f"{self._id}: the stored request is damaged", reason="corrupt"))
            self.release(lost)

    def _attempted(self, task: asyncio.Task[None]) -> None:
        self._under_way.pop(task, None)
        if self.is_succeeded and not self._under_way:
            self._idle.set()
        if not task.cancelled():
            self._dispatch()

    def _retry(self, shipment: Shipment, error: Retryable) -> None:
        retry = self._settings.retry_on_failure
        self._keep_remaining(shipment, error)
        delay = backoff(retry, shipment.attempts, error.after, self._uniform)
        self._throttle.failed(delay if self._retries.in_order else error.after)
        self._health.degraded(f"{error}; {self.held.items} items wait")
        elapsed = self._now() - shipment.first_tried_at
        is_over = retry.max_elapsed_time and elapsed + delay > retry.max_elapsed_time
        heir = self._heir
        # While nothing gets through, the fault is not this batch's, and a storage can keep it.
        if is_over and heir._storage is not None and self._throttle.is_probing:
            is_over = False
        if not retry.enabled or is_over:
            self._finish_failed(shipment, "retries_exhausted" if retry.enabled else error.reason, error)
            return
        self._logger.warning("sending failed, again in %.1f s: %s", delay, error)
        heir._backlog.put_back(shipment)
        if heir is not self:
            heir.take(shipment)
        elif self._retries.in_order and (self._throttle.is_probing or not self._retries.is_stuck(shipment)):
            self._retries.put(shipment)
        else:
            self._retries.put(shipment, delay)

    def _keep_remaining(self, shipment: Shipment, error: Retryable) -> None:
        """Where the exporter has settled a part, keep only the rest for the retry."""
        if error.remaining is not None:
            delivered = shipment.items - len(error.remaining) - shipment.reported
            shipment.reported = 0
            self._counts.sent(shipment.signal, delivered)
            self.balance.delivered += delivered
            shipment.batch = error.remaining
            shipment.is_partial = True

    def note_reported(self, _signal: Signal, reason: str, items: int) -> None:
        """Note what the exporter itself counts as lost, so that it does not count as delivered too."""
        self.balance.drop(reason, items)
        shipment = _current.get()
        if shipment is not None:
            shipment.reported += items

    # What became of it.

    def _finish(self, shipment: Shipment) -> None:
        left = shipment.items - shipment.reported
        self._counts.sent(shipment.signal, left)
        self.balance.delivered += left
        self._settle(shipment, None)

    def _finish_failed(self, shipment: Shipment, reason: str, error: DeliveryError) -> None:
        left = shipment.items - shipment.reported
        self._logger.error("%d items dropped after %d attempts: %s", left, shipment.attempts, error)
        self._counts.failed(shipment.signal, left)
        self._count_dropped(shipment.signal, reason, left)
        if self._queue.dead_letter:
            self._heir._backlog.bury(shipment.entries, reason, str(error))
        self._settle(shipment, error)

    def _settle(self, shipment: Shipment, error: DeliveryError | None) -> None:
        for entry in shipment.entries:
            entry.settle(error)
        self._let_go(shipment.entries)

    def _give_up(self, entries: Sequence[Entry], reason: str) -> None:
        for entry in entries:
            self._count_dropped(entry.signal, reason, entry.items)
            entry.settle(Permanent(f"{self._id}: dropped, {reason}", reason=reason))
        self._let_go(entries)

    def _let_go(self, entries: Sequence[Entry]) -> None:
        self._heir._backlog.done(entries)
        self.release(entries)

    def _count_dropped(self, signal: Signal, reason: str, items: int) -> None:
        self._last_drop = self._now()
        self._drops.count(signal, reason, items)
        self.balance.drop(reason, items)

    # The end.

    async def drain(self, deadline: float) -> None:
        """Send what is held until `deadline` (monotonic seconds). The rest stays stored, or is dropped and counted."""
        await self.flush(deadline)
        if not self._idle.is_set():
            await self._abandon()
        self._is_closed = not self.is_succeeded
        if isinstance(self._backlog, StoredBacklog) and self._storage is not None:
            await self._storage.close(self._backlog.queue)
            self._backlog = Backlog(self._queue.batch, self._now)

    async def flush(self, deadline: float) -> None:
        """Send what is held, without delay. Returns when all is sent, at the deadline, or when a successor has it."""
        self._draining = True
        self._throttle.reset()
        self._retries.hurry()
        self._wake_senders()
        self._dispatch()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, deadline - self._now())):
                await self._idle.wait()

    async def _abandon(self) -> None:
        """End what is under way. A successor gets it; otherwise it stays in the storage, or is dropped and counted."""
        self._is_closed = not self.is_succeeded
        if self._predecessor is not None:
            await self._predecessor._abandon()
        # Taken out at once: a successor that ends too may ask for the same.
        under_way, self._under_way = self._under_way, {}
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        # The others have ended by themselves meanwhile, and have found their place.
        shipments = [one for task, one in under_way.items() if one.attempt is task]
        if self.is_succeeded:
            for shipment in shipments:
                self._heir.take(shipment)
            return
        shipments += self._retries.take_all()
        self._cancel_timer()
        if isinstance(self._backlog, StoredBacklog):
            settled = sum(entry.items for one in shipments for entry in one.entries) - sum(
                one.items for one in shipments
            )
            self.balance.stored, self.held = self.held.items - settled, Held()
            return
        for shipment in shipments:
            self._finish_failed(shipment, "shutdown", self._stopped())
        while (entry := self._backlog.evict_oldest()) is not None:
            self._give_up([entry], "shutdown")

    def _stopped(self) -> Retryable:
        return Retryable(f"{self._id}: has stopped", reason="shutdown", after=_RETRY_AFTER)
