"""An outbox whose requests a storage holds."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from contextlib import asynccontextmanager, closing

import pytest
from support.otlp import bodies, logs

from sidecar import Batch, ComponentId, DeliverySettings, Exporter, Permanent, Retryable, StartError
from sidecar.extensions.file_storage import FileStorage, queue_files
from sidecar.pipeline import stored_backlog
from sidecar.pipeline.observe import Drops, ExporterCounts
from sidecar.pipeline.outbox import Outbox
from sidecar.telemetry.metrics import Meter
from sidecar.testing import Bench

EACH = "batch: {min_size: 0}"
QUICK = "retry_on_failure: {initial_interval: 5ms, max_interval: 10ms}"


class Flaky(Exporter[DeliverySettings]):
    """Fails while it is down, and keeps what it gets otherwise."""

    def __init__(self, settings, context):
        super().__init__(settings, context)
        self.batches: list[Batch] = []
        self.error: Exception | None = None
        self.calls = 0

    async def export(self, batch: Batch) -> None:
        self.calls += 1
        if self.error is not None:
            raise self.error
        self.batches.append(batch)

    @property
    def texts(self) -> list[str]:
        return [text for batch in self.batches for text in bodies(batch)]


@asynccontextmanager
async def stored(directory, queue: str = EACH, more: str = QUICK, storage: str = "", error: Exception | None = None):
    """An outbox over a file storage, started; it ends as a stop does, with no time to send."""
    bench = Bench()
    extension = bench.make(FileStorage, f"{{directory: {directory}, create_directory: true{storage}}}", "file_storage")
    await extension.start()
    bench.extensions = {ComponentId("file_storage"): extension}
    exporter = bench.make(Flaky, f"sending_queue: {{storage: file_storage, {queue}}}\n{more}", "flaky")
    exporter.error = error
    meter = Meter(bench.metrics, exporter="flaky")
    outbox = Outbox(
        exporter,
        storage=extension,
        clock=time,
        counts=ExporterCounts(meter),
        drops=Drops(meter),
    )
    await outbox.start()
    try:
        yield outbox, exporter
    finally:
        await outbox.drain(time.monotonic())
        await extension.stop()
        await bench.close()


async def send(outbox: Outbox, *batches: Batch) -> None:
    """Reserve and commit, as the gate does."""
    for batch in batches:
        await (await outbox.reserve(batch)).commit()


async def settled(outbox: Outbox) -> None:
    """Wait until nothing is held."""
    async with asyncio.timeout(10):
        await outbox._idle.wait()


async def test_the_sender_is_answered_after_the_commit(tmp_path):
    """Another process sees the request on disk as soon as commit returns."""
    async with stored(tmp_path, error=Retryable("down")) as (outbox, _):
        await send(outbox, logs(2))
        (path,) = queue_files(tmp_path).values()
        with closing(sqlite3.connect(path)) as other:
            assert other.execute("SELECT items FROM batches").fetchall() == [(2,)]


async def test_what_arrived_is_deleted(tmp_path):
    """After a delivery nothing is left for the next start."""
    async with stored(tmp_path) as (outbox, exporter):
        await send(outbox, logs(1, body="a"), logs(1, body="b"))
        await settled(outbox)
        assert sorted(exporter.texts) == ["a 0", "b 0"]
    async with stored(tmp_path) as (outbox, exporter):
        assert outbox.held.items == 0


async def test_what_could_not_be_sent_goes_on_after_a_restart_in_order(tmp_path):
    """A stop with a dead server keeps everything; the balance says stored."""
    async with stored(tmp_path, f"num_consumers: 1, {EACH}", error=Retryable("down")) as (outbox, _):
        await send(outbox, *[logs(1, body=f"n{number}") for number in range(20)])
    assert str(outbox.balance) == "received 20 = delivered 0 + stored 20 + dropped 0"
    async with stored(tmp_path, f"num_consumers: 1, {EACH}") as (outbox, exporter):
        await settled(outbox)
        assert [f"n{number} 0" for number in range(20)] == exporter.texts
        assert str(outbox.balance) == "received 20 = delivered 20 + stored 0 + dropped 0"


async def test_memory_knows_only_a_part_of_a_long_queue(tmp_path, monkeypatch):
    """Beyond what memory may know, requests are read from disk in their turn, and none is skipped."""
    monkeypatch.setattr(stored_backlog, "_KNOWN_REQUESTS", 10)
    monkeypatch.setattr(stored_backlog, "_CACHED_BYTES", 500)
    async with stored(tmp_path, f"num_consumers: 1, {EACH}", error=Retryable("down")) as (outbox, exporter):
        await send(outbox, *[logs(1, body=f"n{number}") for number in range(100)])
        exporter.error = None
        await send(outbox, logs(1, body="last"))
        await settled(outbox)
        assert [*(f"n{number} 0" for number in range(100)), "last 0"] == exporter.texts


async def test_a_damaged_request_costs_only_itself(tmp_path):
    """It is set aside, counted with its reason, and its neighbours arrive."""
    async with stored(tmp_path, error=Retryable("down")) as (outbox, _):
        await send(outbox, *[logs(1, body=f"n{number}") for number in range(3)])
    (path,) = queue_files(tmp_path).values()
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("UPDATE batches SET data = zeroblob(length(data)) WHERE id = 2")
        raw.commit()
    async with stored(tmp_path) as (outbox, exporter):
        await settled(outbox)
        assert sorted(exporter.texts) == ["n0 0", "n2 0"]
        assert outbox.balance.dropped == {"corrupt": 1}


async def test_permanently_refused_requests_become_dead_letters(tmp_path):
    """With dead_letter they can be looked at; they are counted as dropped once."""
    async with stored(tmp_path, f"dead_letter: true, {EACH}", error=Permanent("no", reason="rejected")) as (outbox, _):
        await send(outbox, logs(2))
        await settled(outbox)
        queue = outbox._backlog.queue
        letters = await queue.call(queue.file.dead_letters)
        assert [("rejected", 2)] == [(letter.reason, letter.items) for letter in letters]
        assert outbox.balance.dropped == {"rejected": 2}
        assert queue.bytes == 0


async def test_a_full_storage_refuses_with_something_to_retry(tmp_path):
    """The quota of the directory holds, and the sender keeps its data."""
    async with stored(tmp_path, storage=", max_size: 2KiB", error=Retryable("down")) as (outbox, _):
        with pytest.raises(Retryable, match="full"):
            await send(outbox, *[logs(1, body="x" * 500) for _ in range(10)])
        assert outbox._storage.room() >= 0


async def test_old_requests_expire(tmp_path):
    """After max_age a request is given up and counted."""
    async with stored(tmp_path, error=Retryable("down")) as (outbox, _):
        await send(outbox, logs(3))
    (path,) = queue_files(tmp_path).values()
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("UPDATE batches SET stored_at = stored_at - 7200 * 1000000000")
        raw.commit()
    async with stored(tmp_path, storage=", max_age: 1h") as (outbox, exporter):
        await settled(outbox)
        assert (exporter.texts, outbox.balance.dropped) == ([], {"expired": 3})


async def test_the_least_severe_go_first_where_the_setting_says_so(tmp_path):
    """Error records outlive informational ones in a full queue."""
    queue = f"queue_size: 2, on_full: drop_lowest_severity, {EACH}"
    async with stored(tmp_path, queue, "retry_on_failure: {initial_interval: 100s}", error=Retryable("down")) as (
        outbox,
        exporter,
    ):
        outbox._throttle.failed(1000)  # nothing leaves meanwhile
        error = logs(1, body="error")
        error.edit().resource_logs[0].scope_logs[0].log_records[0].severity_number = 17
        await send(outbox, logs(1, body="info"), error)
        another = logs(1, body="another error")
        another.edit().resource_logs[0].scope_logs[0].log_records[0].severity_number = 17
        await send(outbox, another)
        assert outbox.balance.dropped == {"queue_full": 1}
        exporter.error = None
        await outbox.drain(time.monotonic() + 5)
        assert sorted(exporter.texts) == ["another error 0", "error 0"]


async def test_retries_do_not_end_while_nothing_gets_through(tmp_path):
    """During an outage max_elapsed_time gives up nothing that is stored."""
    more = "retry_on_failure: {initial_interval: 2ms, max_interval: 4ms, max_elapsed_time: 10ms}"
    async with stored(tmp_path, EACH, more, error=Retryable("down")) as (outbox, exporter):
        await send(outbox, *[logs(1, body=f"n{number}") for number in range(6)])
        async with asyncio.timeout(5):
            while exporter.calls < 15:  # noqa: ASYNC110
                await asyncio.sleep(0.002)
        exporter.error = None
        await settled(outbox)
        lost = sum(outbox.balance.dropped.values())
        assert len(exporter.texts) + lost == 6
        assert lost <= 3  # those that failed before the outage was known to be one


async def test_a_directory_has_one_user_at_a_time(tmp_path):
    """A second sidecar on the same directory does not start, and says why."""
    async with stored(tmp_path):
        second = Bench().make(FileStorage, f"directory: {tmp_path}")
        with pytest.raises(StartError, match="is in use"):
            await second.start()
        await second.stop()


async def test_a_missing_directory_says_what_to_do(tmp_path):
    """The message names the directory and the setting."""
    extension = Bench().make(FileStorage, f"directory: {tmp_path / 'missing'}")
    with pytest.raises(StartError, match=r"missing does not exist; create it, or write create_directory: true"):
        await extension.start()
