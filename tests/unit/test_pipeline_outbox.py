"""The queue, batching, retries and counts around an exporter."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from contextlib import asynccontextmanager

import pytest
from support.otlp import bodies, logs, traces

from sidecar import Batch, DeliverySettings, Exporter, Permanent, Retryable, Signal, TooLarge
from sidecar.pipeline.observe import Drops, ExporterCounts
from sidecar.pipeline.outbox import Outbox
from sidecar.telemetry.metrics import Meter
from sidecar.testing import Bench

QUICK = "retry_on_failure: {initial_interval: 10ms, max_interval: 20ms, randomization_factor: 0}\n"


class Recorder(Exporter[DeliverySettings]):
    """Keeps what it is given; answers with the next of `answers` first."""

    def __init__(self, settings, context):
        super().__init__(settings, context)
        self.batches: list[Batch] = []
        self.answers: list[BaseException] = []
        self.calls = 0
        self.arrived = asyncio.Condition()
        self.hold: asyncio.Event | None = None

    async def export(self, batch: Batch) -> None:
        self.calls += 1
        if self.answers:
            raise self.answers.pop(0)
        if self.hold is not None:
            await self.hold.wait()
        async with self.arrived:
            self.batches.append(batch)
            self.arrived.notify_all()

    async def wait_for_items(self, items: int) -> None:
        async with self.arrived, asyncio.timeout(5):
            await self.arrived.wait_for(lambda: sum(map(len, self.batches)) >= items)


@asynccontextmanager
async def outbox_with(yaml: str = ""):
    """An outbox around a recorder, with settings as a user writes them."""
    bench = Bench()
    exporter = bench.make(Recorder, yaml)
    meter = Meter(bench.metrics, exporter="recorder")
    outbox = Outbox(
        exporter,
        clock=time,
        counts=ExporterCounts(meter),
        drops=Drops(meter),
    )
    outbox.bench = bench
    try:
        yield outbox, exporter
    finally:
        await outbox.drain(time.monotonic())


async def send(outbox: Outbox, *batches: Batch) -> None:
    """Reserve and commit, as the gate does."""
    for batch in batches:
        await (await outbox.reserve(batch)).commit()


async def test_requests_are_joined_until_the_least_size_is_reached():
    """Small requests leave as one batch as soon as min_size items wait."""
    async with outbox_with("sending_queue: {batch: {min_size: 3, flush_timeout: 10s}}") as (outbox, exporter):
        await send(outbox, logs(1, body="a"), logs(1, body="b"), logs(1, body="c"))
        await exporter.wait_for_items(3)
        assert [["a 0", "b 0", "c 0"]] == [bodies(batch) for batch in exporter.batches]


async def test_what_waits_leaves_after_the_flush_timeout():
    """A lone small request is sent when flush_timeout is over."""
    async with outbox_with("sending_queue: {batch: {flush_timeout: 20ms}}") as (outbox, exporter):
        await send(outbox, logs(1))
        assert exporter.calls == 0
        await exporter.wait_for_items(1)


async def test_signals_are_never_joined_with_each_other():
    """Log records and spans leave in batches of their own."""
    async with outbox_with("sending_queue: {batch: {flush_timeout: 10ms}}") as (outbox, exporter):
        await send(outbox, logs(1), traces(1))
        await exporter.wait_for_items(2)
        assert {Signal.LOGS, Signal.TRACES} == {batch.signal for batch in exporter.batches}


async def test_a_request_over_the_largest_size_is_divided():
    """No batch exceeds max_size, whatever one sender put into one request."""
    async with outbox_with("sending_queue: {batch: {min_size: 2, max_size: 4, flush_timeout: 10ms}}") as (
        outbox,
        exporter,
    ):
        await send(outbox, logs(10))
        await exporter.wait_for_items(10)
        assert max(map(len, exporter.batches)) <= 4
        arrived = [text for batch in exporter.batches for text in bodies(batch)]
        assert [f"hello {n}" for n in range(10)] == sorted(arrived)


async def test_a_failure_that_may_pass_is_retried_and_counted_once():
    """After two failures the batch arrives, and counts as sent once."""
    async with outbox_with(QUICK + "sending_queue: {batch: {min_size: 0}}") as (outbox, exporter):
        exporter.answers = [Retryable("down"), Retryable("down")]
        await send(outbox, logs(2))
        await exporter.wait_for_items(2)
        await outbox.drain(time.monotonic() + 5)
        assert outbox.bench.metrics.value("otelcol_exporter_sent_log_records") == 2
        assert str(outbox.balance) == "received 2 = delivered 2 + stored 0 + dropped 0"


async def test_the_servers_delay_is_honoured():
    """The next attempt comes no sooner than the server asked."""
    async with outbox_with(QUICK + "sending_queue: {batch: {min_size: 0}}") as (outbox, exporter):
        exporter.answers = [Retryable("slow down", after=0.2)]
        started = time.monotonic()
        await send(outbox, logs(1))
        await exporter.wait_for_items(1)
        assert time.monotonic() - started >= 0.2


async def test_only_what_remains_is_sent_again():
    """When an exporter has delivered a part, the retry holds the rest, and each item counts once."""
    async with outbox_with(QUICK + "sending_queue: {batch: {min_size: 0}}") as (outbox, exporter):
        exporter.answers = [Retryable("half", remaining=logs(1, body="rest"))]
        await send(outbox, logs(3))
        await exporter.wait_for_items(1)
        await outbox.drain(time.monotonic() + 5)
        assert [["rest 0"]] == [bodies(batch) for batch in exporter.batches]
        assert outbox.balance.delivered == 3


async def test_a_permanent_refusal_is_dropped_and_counted_with_its_reason():
    """What will never pass is dropped after one attempt."""
    async with outbox_with("sending_queue: {batch: {min_size: 0}}") as (outbox, exporter):
        exporter.answers = [Permanent("too old", reason="rejected")]
        await send(outbox, logs(2))
        await outbox.drain(time.monotonic() + 5)
        assert exporter.calls == 1
        assert outbox.bench.metrics.value("sidecar_dropped_items", reason="rejected") == 2
        assert outbox.bench.metrics.value("otelcol_exporter_send_failed_log_records") == 2


async def test_retries_end_after_the_longest_time():
    """A batch is given up when max_elapsed_time would be over at its next attempt."""
    yaml = "retry_on_failure: {initial_interval: 5ms, max_elapsed_time: 30ms}\nsending_queue: {batch: {min_size: 0}}"
    async with outbox_with(yaml) as (outbox, exporter):
        exporter.answers = [Retryable("down")] * 100
        await send(outbox, logs(1))
        async with asyncio.timeout(5):
            await outbox._idle.wait()
        assert outbox.balance.dropped == {"retries_exhausted": 1}


async def test_no_answer_in_time_counts_as_a_failure_that_may_pass():
    """An exporter that hangs is cut off after `timeout`, and the batch is tried again."""
    async with outbox_with("timeout: 20ms\n" + QUICK + "sending_queue: {batch: {min_size: 0}}") as (outbox, exporter):
        exporter.hold = asyncio.Event()
        await send(outbox, logs(1))
        async with asyncio.timeout(5):
            while exporter.calls < 2:  # noqa: ASYNC110 (the second call is the event)
                await asyncio.sleep(0.005)
        exporter.hold.set()
        await exporter.wait_for_items(1)


async def test_a_fault_in_the_exporter_loses_nothing(caplog):
    """An unexpected exception is logged with its traceback, and the batch is tried again."""
    async with outbox_with(QUICK + "sending_queue: {batch: {min_size: 0}}") as (outbox, exporter):
        exporter.answers = [ZeroDivisionError("oops")]
        await send(outbox, logs(1))
        await exporter.wait_for_items(1)
        assert "ZeroDivisionError" in caplog.text


async def test_a_bad_batch_does_not_hold_up_the_good_ones():
    """Batches behind one that keeps failing are delivered while it waits for its retry."""
    yaml = "retry_on_failure: {initial_interval: 10s}\nsending_queue: {num_consumers: 2, batch: {min_size: 0}}"
    async with outbox_with(yaml) as (outbox, exporter):
        exporter.answers = [Retryable("poisoned")]
        await send(outbox, logs(1, body="bad"), *[logs(1, body="good") for _ in range(8)])
        await exporter.wait_for_items(8)
        assert {"good 0"} == {text for batch in exporter.batches for text in bodies(batch)}


async def test_a_single_consumer_keeps_the_order():
    """With num_consumers: 1, what comes later waits until what failed before has arrived."""
    async with outbox_with(QUICK + "sending_queue: {num_consumers: 1, batch: {min_size: 0}}") as (outbox, exporter):
        exporter.answers = [Retryable("down"), Retryable("down"), Retryable("down")]
        await send(outbox, *[logs(1, body=f"n{number}") for number in range(5)])
        await exporter.wait_for_items(5)
        assert [f"n{number} 0" for number in range(5)] == [bodies(batch)[0] for batch in exporter.batches]


async def test_a_dead_server_is_probed_and_not_hammered():
    """While everything fails, one batch at a time is tried, with pauses."""
    yaml = "retry_on_failure: {initial_interval: 100ms}\nsending_queue: {num_consumers: 4, batch: {min_size: 0}}"
    async with outbox_with(yaml) as (outbox, exporter):
        exporter.answers = [Retryable("down")] * 1000
        await send(outbox, *[logs(1) for _ in range(50)])
        await asyncio.sleep(0.08)
        assert exporter.calls <= 5


async def test_a_full_queue_refuses_with_something_to_retry():
    """Beyond queue_size the sender is told to come again, and nothing is counted as taken."""
    yaml = "sending_queue: {queue_size: 3, batch: {flush_timeout: 10s}}"
    async with outbox_with(yaml) as (outbox, _):
        await send(outbox, logs(3))
        with pytest.raises(Retryable, match="queue is full") as refused:
            await outbox.reserve(logs(1))
        assert refused.value.after >= 1
        assert outbox.bench.metrics.value("otelcol_exporter_enqueue_failed_log_records") == 1
        assert outbox.balance.taken == 3


async def test_the_bytes_of_the_queue_are_bounded_too():
    """max_bytes holds although the number of items is small."""
    async with outbox_with("sending_queue: {max_bytes: 1KiB, batch: {flush_timeout: 10s}}") as (outbox, _):
        await send(outbox, logs(1, body="x" * 700))
        with pytest.raises(Retryable, match="queue is full"):
            await outbox.reserve(logs(1, body="x" * 700))


async def test_a_request_larger_than_the_whole_queue_is_refused_for_good():
    """What can never fit is not worth a retry."""
    async with outbox_with("sending_queue: {queue_size: 3}") as (outbox, _):
        with pytest.raises(TooLarge, match=r"4 items .* larger than the whole queue"):
            await outbox.reserve(logs(4))


async def test_a_cancelled_reservation_gives_its_room_back():
    """Room that another full exporter made useless is free again."""
    async with outbox_with("sending_queue: {queue_size: 3}") as (outbox, _):
        (await outbox.reserve(logs(3))).cancel()
        await send(outbox, logs(3))


async def test_the_oldest_make_room_where_the_setting_says_so():
    """on_full: drop_oldest keeps the newest, and counts what it drops."""
    yaml = "sending_queue: {queue_size: 2, on_full: drop_oldest, batch: {flush_timeout: 10s}}"
    async with outbox_with(yaml) as (outbox, exporter):
        await send(outbox, logs(1, body="old"), logs(1, body="mid"), logs(1, body="new"))
        await outbox.drain(time.monotonic() + 5)
        assert [["mid 0", "new 0"]] == [bodies(batch) for batch in exporter.batches]
        assert outbox.balance.dropped == {"queue_full": 1}


async def test_the_newest_are_dropped_where_the_setting_says_so():
    """on_full: drop_newest accepts, drops and counts what does not fit."""
    yaml = "sending_queue: {queue_size: 1, on_full: drop_newest, batch: {flush_timeout: 10s}}"
    async with outbox_with(yaml) as (outbox, exporter):
        await send(outbox, logs(1, body="old"), logs(1, body="new"))
        await outbox.drain(time.monotonic() + 5)
        assert [["old 0"]] == [bodies(batch) for batch in exporter.batches]
        assert str(outbox.balance) == "received 2 = delivered 1 + stored 0 + dropped 1 (queue_full 1)"


async def test_a_sender_can_be_made_to_wait_for_room():
    """block_on_overflow holds the sender until a batch has left."""
    yaml = "sending_queue: {queue_size: 1, block_on_overflow: true, batch: {min_size: 0}}"
    async with outbox_with(yaml) as (outbox, exporter):
        exporter.hold = asyncio.Event()
        await send(outbox, logs(1))
        waiting = asyncio.create_task(send(outbox, logs(1)))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        exporter.hold.set()
        async with asyncio.timeout(5):
            await waiting


async def test_a_sender_can_wait_for_the_result():
    """wait_for_result returns after delivery, and raises what the delivery failed with."""
    yaml = "sending_queue: {wait_for_result: true, batch: {min_size: 0}}"
    async with outbox_with(yaml) as (outbox, exporter):
        await send(outbox, logs(1))
        assert len(exporter.batches) == 1
        exporter.answers = [Permanent("never")]
        with pytest.raises(Permanent, match="never"):
            await send(outbox, logs(1))


async def test_draining_sends_what_waits_at_once():
    """A stop does not wait for flush_timeout, nor for the next retry."""
    yaml = "retry_on_failure: {initial_interval: 100s}\nsending_queue: {batch: {flush_timeout: 100s}}"
    async with outbox_with(yaml) as (outbox, exporter):
        exporter.answers = [Retryable("down")]
        await send(outbox, logs(9000, body="first"), logs(1, body="second"))
        while exporter.calls < 1:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await outbox.drain(time.monotonic() + 5)
        assert outbox.balance.delivered == 9001


async def test_what_can_not_be_sent_until_the_deadline_is_counted():
    """At the deadline the rest is dropped with the reason shutdown, and the balance adds up."""
    async with outbox_with("sending_queue: {batch: {min_size: 0}}") as (outbox, exporter):
        exporter.hold = asyncio.Event()
        await send(outbox, logs(2), logs(3))
        await outbox.drain(time.monotonic() + 0.05)
        assert str(outbox.balance) == "received 5 = delivered 0 + stored 0 + dropped 5 (shutdown 5)"
        assert outbox.held.items == 0


async def test_health_tells_of_failures_and_of_recovery():
    """While retrying the exporter is degraded, with the cause; after a delivery it is well."""
    async with outbox_with(QUICK + "sending_queue: {batch: {min_size: 0}}") as (outbox, exporter):
        health = exporter.context.health
        exporter.answers = [Retryable("connection refused")]
        await send(outbox, logs(1))
        while health.status != "degraded":  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert "connection refused" in health.message
        await exporter.wait_for_items(1)
        await outbox.drain(time.monotonic() + 5)
        assert health.status == "ok"


async def test_whoever_holds_the_first_of_many_successors_holds_none_between():
    """It knows the last one, to which it still hands on."""
    async with outbox_with() as (first, _), outbox_with() as (last, exporter):
        between = []
        outbox = first
        for _ in range(3):
            async with outbox_with() as (successor, _):
                successor.adopt(outbox)
                outbox = successor
            between.append(weakref.ref(successor))
        last.adopt(outbox)
        del outbox, successor
        await send(first, logs(1))
        await last.flush(time.monotonic() + 5)
        assert list(map(len, exporter.batches)) == [1]
        gc.collect()
        assert [one() for one in between] == [None] * 3
