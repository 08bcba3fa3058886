"""An exporter whose signals go to different places: one outbox for each."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager

import pytest
from support.otlp import logs, traces

from sidecar import Batch, ComponentId, DeliverySettings, Exporter, Retryable, Signal
from sidecar.extensions.file_storage import FileStorage, queue_files
from sidecar.pipeline.observe import Drops, ExporterCounts
from sidecar.pipeline.outbox import Outbox
from sidecar.pipeline.outboxes import Outboxes
from sidecar.telemetry.metrics import Meter
from sidecar.testing import Bench

EACH = "batch: {min_size: 0}"
FOR_EVER = "retry_on_failure: {initial_interval: 5ms, max_interval: 10ms, max_elapsed_time: 0}"


class Apart(Exporter[DeliverySettings]):
    """Delivers each signal, except for those that are away."""

    signals_apart = True

    def __init__(self, settings, context):
        super().__init__(settings, context)
        self.away: dict[Signal, Exception] = {}
        self.delivered: list[Batch] = []
        self.arrived = asyncio.Condition()
        self.refused = asyncio.Event()

    async def export(self, batch: Batch) -> None:
        if error := self.away.get(batch.signal):
            self.refused.set()
            raise error
        async with self.arrived:
            self.delivered.append(batch)
            self.arrived.notify_all()

    async def wait_for(self, count: int) -> None:
        async with self.arrived, asyncio.timeout(5):
            await self.arrived.wait_for(lambda: len(self.delivered) >= count)


def outboxes_for(exporter: Apart, bench: Bench, storage: FileStorage | None = None) -> Outboxes:
    """What the runtime puts in front of it."""
    meter = Meter(bench.metrics, exporter="apart")
    exporter.drops = drops = Drops(meter)
    counts = ExporterCounts(meter)
    return Outboxes(
        lambda health: Outbox(exporter, health=health, storage=storage, clock=time, counts=counts, drops=drops),
        exporter,
        drops,
    )


@asynccontextmanager
async def running(queue: str = EACH):
    """Outboxes in front of an exporter."""
    bench = Bench()
    exporter = bench.make(Apart, f"sending_queue: {{{queue}}}\n{FOR_EVER}", "apart")
    outboxes = outboxes_for(exporter, bench)
    try:
        yield outboxes, exporter
    finally:
        await outboxes.drain(time.monotonic())


async def send(outboxes: Outboxes, *batches: Batch) -> None:
    """Reserve and commit, as the gate does."""
    for batch in batches:
        await (await outboxes.reserve(batch)).commit()


async def test_one_signal_waits_as_long_as_it_is_told_and_the_others_go_on():
    """A delay of an hour for log records is none for spans."""
    async with running() as (outboxes, exporter):
        exporter.away[Signal.LOGS] = Retryable("too many", after=3600)
        await send(outboxes, logs(1))
        await exporter.refused.wait()
        await send(outboxes, *[traces(1) for _ in range(20)])
        await exporter.wait_for(20)
        assert {batch.signal for batch in exporter.delivered} == {Signal.TRACES}
        assert (outboxes.held.items, outboxes.held.requests) == (1, 1)


async def test_each_signal_has_the_whole_queue():
    """A queue full of log records refuses more of them, and takes spans."""
    async with running(f"queue_size: 2, {EACH}") as (outboxes, exporter):
        exporter.away = dict.fromkeys(Signal, Retryable("down", after=3600))
        await send(outboxes, logs(2), traces(2))
        with pytest.raises(Retryable, match="apart:logs: sending queue is full"):
            await outboxes.reserve(logs(1))
        assert (outboxes.held.items, outboxes.capacity, outboxes.fill) == (4, 6, 1.0)
        assert outboxes.concerns() == ["traces: the queue is 100% full", "logs: the queue is 100% full"]


async def test_health_says_which_signal_is_in_trouble_until_none_is():
    """A delivery of another signal does not hide it."""
    async with running() as (outboxes, exporter):
        exporter.away[Signal.LOGS] = Retryable("no disk there")
        await send(outboxes, logs(1))
        await exporter.refused.wait()
        await send(outboxes, traces(1))
        await exporter.wait_for(1)
        health = exporter.context.health
        assert (health.status, health.message) == ("degraded", "logs: no disk there; 1 items wait")
        assert outboxes.circuit != "closed"
        exporter.away.clear()
        await exporter.wait_for(2)
        await outboxes.flush(time.monotonic() + 5)
        assert (health.status, outboxes.circuit) == ("ok", "closed")


async def test_the_balance_is_that_of_all(monkeypatch):
    """What the exporter reports as lost is not counted as delivered too."""
    async with running() as (outboxes, exporter):

        async def export(batch):
            exporter.drops(batch.signal, "too_old", 1)

        monkeypatch.setattr(exporter, "export", export)
        await send(outboxes, logs(3), traces(2))
        await outboxes.flush(time.monotonic() + 5)
        assert str(outboxes.balance) == "received 5 = delivered 3 + stored 0 + dropped 2 (too_old 2)"


async def test_a_successor_takes_over_what_waits():
    """Of every signal, and what comes to the old one goes there."""
    async with running() as (old, before):
        before.away = dict.fromkeys(Signal, Retryable("down", after=3600))
        await send(old, logs(1), traces(2))
        await before.refused.wait()
        async with running() as (new, after):
            assert new.can_adopt(old)
            new.adopt(old)
            assert old.is_succeeded
            await send(old, logs(3))
            await new.flush(time.monotonic() + 5)
            assert sorted(map(len, after.delivered)) == [1, 2, 3]
            assert not new.can_adopt(old)
            assert not new.can_adopt(new.parts[Signal.LOGS])


async def test_each_signal_has_a_file_that_survives(tmp_path):
    """What could not be sent of two signals is sent by the next process."""
    for away in ({signal: Retryable("down") for signal in Signal}, {}):
        bench = Bench()
        storage = bench.make(FileStorage, f"{{directory: {tmp_path}}}", "file_storage")
        await storage.start()
        bench.extensions = {ComponentId("file_storage"): storage}
        exporter = bench.make(Apart, f"sending_queue: {{storage: file_storage, {EACH}}}", "apart")
        exporter.away = away
        outboxes = outboxes_for(exporter, bench, storage)
        await outboxes.start()
        if away:
            await send(outboxes, logs(1), traces(2))
            await exporter.refused.wait()
        await outboxes.drain(time.monotonic() + (0 if away else 5))
        await storage.stop()
        await bench.close()
        assert {"exporters/apart:logs", "exporters/apart:traces"} < queue_files(tmp_path).keys()
    assert sorted(map(len, exporter.delivered)) == [1, 2]
    assert str(outboxes.balance) == "received 3 = delivered 3 + stored 0 + dropped 0"
