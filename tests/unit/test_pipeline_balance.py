"""Whatever senders, servers, reloads and stops do, every item that was taken is accounted for exactly once."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.otlp import bodies, logs

from sidecar import Batch, ComponentId, DeliveryError, DeliverySettings, Exporter, Permanent, Retryable, Signal
from sidecar.extensions.file_storage import FileStorage, queue_files
from sidecar.pipeline.gate import Gate, Route
from sidecar.pipeline.observe import Drops, ExporterCounts
from sidecar.pipeline.outbox import Outbox
from sidecar.storage import QueueFile
from sidecar.telemetry.metrics import Meter
from sidecar.testing import Bench

RETRY = "retry_on_failure: {initial_interval: 1ms, max_interval: 2ms, max_elapsed_time: 50ms}"
ANSWERS = ("ok", "retry", "half", "refuse", "reject one", "fault", "slow", "hang")

answers = st.lists(st.sampled_from(ANSWERS), max_size=12)
queues = st.fixed_dictionaries(
    {
        "num_consumers": st.sampled_from([1, 1, 3]),
        "queue_size": st.sampled_from([5, 1000]),
        "on_full": st.sampled_from(["refuse", "drop_oldest", "drop_newest", "drop_lowest_severity"]),
        "block_on_overflow": st.booleans(),
        "batch": st.sampled_from(["{min_size: 0}", "{min_size: 4, max_size: 6, flush_timeout: 2ms}"]),
    }
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(1, 4)),
        st.tuples(st.just("send together"), st.integers(2, 5)),
        st.tuples(st.just("send and go away"), st.integers(1, 3)),
        st.tuples(st.just("reserve and cancel"), st.integers(1, 3)),
        st.tuples(st.just("reload"), st.just(0)),
        st.tuples(st.just("pause"), st.integers(0, 4)),
    ),
    min_size=1,
    max_size=12,
)


class Scripted(Exporter[DeliverySettings]):
    """Answers as the script says, then well. Notes every item that it has delivered."""

    script: list[str]
    delivered: Counter[str]

    async def export(self, batch: Batch) -> None:
        answer = self.script.pop(0) if self.script else "ok"
        texts = bodies(batch)
        match answer:
            case "retry":
                raise Retryable("not now")
            case "half" if len(batch) > 1:
                parts = batch.split(-(-len(batch) // 2))
                self.delivered.update(bodies(parts[0]))
                raise Retryable("the rest not now", remaining=Batch.join(parts[1:]))
            case "refuse":
                raise Permanent("never", reason="rejected")
            case "reject one":
                self.context.dropped(batch.signal, "rejected_by_peer", 1)
                texts = texts[1:]
            case "fault":
                raise ZeroDivisionError
            case "slow":
                await asyncio.sleep(0.003)
            case "hang":
                await asyncio.Event().wait()
        self.delivered.update(texts)


class World:
    """An outbox over memory or a file, and its successors."""

    def __init__(self, queue: dict, script: list[str], directory: str | None) -> None:
        self.bench = Bench()
        self.delivered: Counter[str] = Counter()
        self.acknowledged: set[str] = set()
        self.script = script
        self.directory = directory
        self.number = 0
        self.retiring: list[asyncio.Task[None]] = []
        self.storage: FileStorage | None = None
        words = [f"{name}: {str(value).lower() if isinstance(value, bool) else value}" for name, value in queue.items()]
        if directory:
            self.storage = self.bench.make(FileStorage, f"directory: {directory}", "file_storage")
            self.bench.extensions = {ComponentId("file_storage"): self.storage}
            words += ["storage: file_storage", "dead_letter: true"]
        self.yaml = f"timeout: 20ms\nsending_queue: {{{', '.join(words)}}}\n{RETRY}"

    def make(self) -> Outbox:
        exporter = self.bench.make(Scripted, self.yaml, "scripted")
        exporter.script, exporter.delivered = self.script, self.delivered
        meter = Meter(self.bench.metrics, exporter="scripted")
        drops = Drops(meter)
        object.__setattr__(exporter.context, "on_dropped", drops)
        return Outbox(
            exporter,
            storage=self.storage,
            clock=time,
            counts=ExporterCounts(meter),
            drops=drops,
        )

    def batch(self, items: int) -> Batch:
        self.number += 1
        return logs(items, body=f"b{self.number}")

    async def send(self, items: int) -> None:
        batch = self.batch(items)
        texts = bodies(batch)
        with contextlib.suppress(DeliveryError):
            await Gate({Signal.LOGS: [Route("logs", [], [self.outbox], mutates=False)]})(batch)
            self.acknowledged.update(texts)

    async def run(self, script: list[tuple[str, int]]) -> Outbox:
        if self.storage is not None:
            await self.storage.start()
        self.outbox = self.make()
        await self.outbox.start()
        senders = []
        for what, much in script:
            match what:
                case "send":
                    senders.append(asyncio.create_task(self.send(much)))
                    await asyncio.sleep(0.001)
                case "send together":
                    senders += [asyncio.create_task(self.send(2)) for _ in range(much)]
                case "send and go away":
                    gone = asyncio.create_task(self.send(much))
                    await asyncio.sleep(0)
                    gone.cancel()
                    senders.append(gone)
                case "reserve and cancel":
                    with contextlib.suppress(DeliveryError, TimeoutError):
                        async with asyncio.timeout(0.005):
                            (await self.outbox.reserve(self.batch(much))).cancel()
                case "reload":
                    old, self.outbox = self.outbox, self.make()
                    self.outbox.adopt(old)
                    self.retiring.append(asyncio.create_task(old.drain(time.monotonic() + 0.01)))
                case "pause":
                    await asyncio.sleep(much / 1000)
        await asyncio.wait([*senders, asyncio.create_task(asyncio.sleep(0.02))], timeout=0.03)
        await self.outbox.drain(time.monotonic() + 0.02)
        await asyncio.gather(*senders, *self.retiring, return_exceptions=True)
        if self.storage is not None:
            await self.storage.stop()
        await self.bench.close()
        return self.outbox

    def stored(self) -> tuple[int, int]:
        """Items that wait on disk, and dead letters."""
        waiting = dead = 0
        for path in queue_files(Path(self.directory)).values():
            with contextlib.closing(QueueFile(path)) as file:
                waiting += file.totals()[1]
                dead += sum(letter.items for letter in file.dead_letters())
        return waiting, dead


@pytest.mark.parametrize("durable", [False, True])
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(queue=queues, script=answers, what=steps)
def test_the_balance_always_adds_up(durable, queue, script, what):
    """Taken = delivered + stored + dropped, nothing is held, nobody is delivered twice, and the disk agrees."""
    with tempfile.TemporaryDirectory() as directory:
        world = World(queue, list(script), directory if durable else None)
        outbox = asyncio.run(world.run(what))
        balance = outbox.balance
        note = f"{balance}; {outbox.held}; delivered {sum(world.delivered.values())}"
        assert balance.taken == balance.delivered + balance.stored + sum(balance.dropped.values()), note
        assert (outbox.held.requests, outbox.held.items, outbox.held.bytes) == (0, 0, 0), note
        assert balance.delivered == sum(world.delivered.values()), note
        assert [] == [text for text, times in world.delivered.items() if times > 1]
        assert balance.taken >= len(world.acknowledged)
        if durable:
            waiting, _ = world.stored()
            assert waiting >= balance.stored, note
            assert bool(waiting) == bool(balance.stored), note
