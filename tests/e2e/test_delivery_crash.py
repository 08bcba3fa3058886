"""The sidecar is killed again and again: whatever was acknowledged arrives, in order, and hardly anything twice.

`CRASHES=200` makes many more rounds.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import resource
import signal
from pathlib import Path
from typing import Self

import pytest
from support.delivery import GrpcSender, GrpcSink, HttpSender, Ports, seeds
from support.processes import ManagedProcess, SidecarProcess

DOCUMENT = """
receivers:
  otlp: {{protocols: {{grpc: {{endpoint: "127.0.0.1:{ports.grpc}"}}, http: {{endpoint: "127.0.0.1:{ports.http}"}}}}}}
extensions:
  file_storage: {{directory: {directory}, create_directory: true{storage}}}
exporters:
  otlp:
    endpoint: "http://{sink}"
    compression: none
    sending_queue:
      storage: file_storage
      num_consumers: 1
      batch: {{min_size: 20, flush_timeout: 20ms}}
    retry_on_failure: {{initial_interval: 20ms, max_interval: 100ms}}
service:
  extensions: [file_storage]
  shutdown_timeout: 30s
  telemetry: {{metrics: {{level: none}}}}
  pipelines:
    logs: {{receivers: [otlp], exporters: [otlp]}}
"""


class Harness:
    """Four senders, a sidecar that is killed, and a sink."""

    def __init__(self, folder: Path, sink: GrpcSink, seed: int, storage: str = "", padding: int = 0) -> None:
        self.random = random.Random(seed)
        self.sink = sink
        self.store = folder / "store"
        self.said: list[str] = []
        self.crashes = 0
        self._folder = folder
        ports = Ports()
        self._document = DOCUMENT.format(ports=ports, directory=self.store, sink=sink.address, storage=storage)
        kinds = [GrpcSender, HttpSender] * 2
        self.senders = [kind(f"s{index}", ports, padding=padding) for index, kind in enumerate(kinds)]

    async def __aenter__(self) -> Self:
        for sender in self.senders:
            sender.start()
        return self

    async def __aexit__(self, *_) -> None:
        for sender in self.senders:
            await sender.stop()

    @contextlib.asynccontextmanager
    async def running(self):
        """The sidecar, ready."""
        async with SidecarProcess(self._document, self._folder) as process:
            try:
                yield process
            finally:
                self.said += process.lines

    async def crash(self, *, may_be_early: bool = True) -> None:
        """Start the sidecar, and kill it at a random moment: during its start, or while data flow."""
        process = SidecarProcess(self._document, self._folder)
        if may_be_early and self.random.random() < 0.2:
            process.wait_until_ready = lambda: ManagedProcess.wait_until_ready(process)
        async with process:
            await asyncio.sleep(self.random.uniform(0.05, 0.7))
            process.send_signal(signal.SIGKILL)
            await process.wait()
        self.said += process.lines
        self.crashes += 1

    async def recover(self) -> None:
        """Run without a crash until everything acknowledged has arrived, and stop in order."""
        async with self.running() as process:
            await self.until_acknowledged(50)
            for sender in self.senders:
                await sender.stop()
            await self.sink.wait_for(self.acknowledged)
            ended = await process.stop()
        assert ended.code == 0, ended.output
        assert "+ dropped 0" in ended.output

    async def until_acknowledged(self, more: int) -> None:
        """Wait until each sender has got so many more records through."""
        wanted = [len(sender.acknowledged) + more for sender in self.senders]
        async with asyncio.timeout(30):
            for sender, count in zip(self.senders, wanted, strict=True):
                while len(sender.acknowledged) < count:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)

    @property
    def acknowledged(self) -> list[str]:
        """What the sidecar has taken."""
        return [text for sender in self.senders for text in sender.acknowledged]

    @property
    def repeated(self) -> set[str]:
        """What senders had to send again: it may arrive twice, whatever the sidecar does."""
        return {text for sender in self.senders for text in sender.repeated}

    @property
    def refusals(self) -> int:
        """How often senders have been told to come again."""
        return sum(len(sender.refusals) for sender in self.senders)

    def check_order(self) -> None:
        """What a sender has sent arrives in that order."""
        for sender in self.senders:
            arrived = self.sink.first_arrivals(sender.name)
            assert arrived == sorted(arrived, key=lambda text: (text.split()[0], int(text.split()[1])))


@pytest.mark.parametrize("seed", seeds("CRASHES", each=10, small=10, ci=50))
async def test_what_was_acknowledged_survives_every_crash(tmp_path, seed):
    """All of it arrives, at most one batch per crash twice, in each sender's order."""
    async with GrpcSink() as sink, Harness(tmp_path, sink, seed=seed) as harness:
        for _ in range(10):
            await harness.crash()
        await harness.recover()
    assert len(harness.acknowledged) > 500
    assert sink.repeats(harness.repeated) <= harness.crashes
    harness.check_order()


@pytest.mark.parametrize("seed", seeds("CRASHES", each=8, small=8, ci=16))
async def test_it_survives_while_the_sink_is_down_for_most_of_the_time(tmp_path, seed):
    """The sink is there in one round of four; nothing is lost, and the order stays."""
    async with GrpcSink() as sink, Harness(tmp_path, sink, seed=100 + seed) as harness:
        for number in range(8):
            sink.is_down = number % 4 != 3
            await harness.crash()
        sink.is_down = False
        await harness.recover()
    assert sink.repeats(harness.repeated) <= harness.crashes
    harness.check_order()


@pytest.mark.parametrize("seed", seeds("CRASHES", each=3, small=3, ci=6))
async def test_a_full_disk_refuses_and_loses_nothing(tmp_path, seed):
    """While no file can grow, senders are told to come again; what was acknowledged before and after arrives."""
    async with GrpcSink() as sink, Harness(tmp_path, sink, seed=200 + seed) as harness:
        sink.is_down = True
        for number in range(3):
            async with harness.running() as process:
                await harness.until_acknowledged(20)
                size = max(path.stat().st_size for path in harness.store.iterdir())
                resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
                wanted = harness.refusals + 8
                async with asyncio.timeout(20):
                    while harness.refusals < wanted:  # noqa: ASYNC110
                        await asyncio.sleep(0.02)
                if number % 2:
                    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
                    await harness.until_acknowledged(20)
                process.send_signal(signal.SIGKILL)
                await process.wait()
            harness.crashes += 1
        sink.is_down = False
        await harness.recover()
    assert sink.repeats(harness.repeated) <= harness.crashes
    harness.check_order()


async def test_the_quota_of_the_storage_refuses_and_loses_nothing(tmp_path):
    """At `max_size` senders are told to come again; when the sink is back everything flows on."""
    storage = ", max_size: 200KiB"
    async with GrpcSink() as sink, Harness(tmp_path, sink, seed=300, storage=storage, padding=500) as harness:
        sink.is_down = True
        async with harness.running():
            async with asyncio.timeout(30):
                while not all(sender.refusals for sender in harness.senders):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            assert sum(path.stat().st_size for path in harness.store.glob("*.queue")) < 400 * 1024
        sink.is_down = False
        await harness.recover()
    harness.check_order()


@pytest.mark.parametrize("seed", seeds("CRASHES", each=4, small=8, ci=20))
async def test_flipped_bytes_cost_only_the_requests_on_their_page(tmp_path, seed):
    """Between the runs bytes of the store are flipped: what is missing lies among the dead letters or aside."""
    flips = 0
    async with GrpcSink() as sink, Harness(tmp_path, sink, seed=400 + seed, padding=200) as harness:
        sink.is_down = True
        for _ in range(4):
            async with harness.running() as process:
                await harness.until_acknowledged(100)
                process.send_signal(signal.SIGKILL)
                await process.wait()
            flips += flip_a_byte(harness.store, harness.random)
        async with harness.running() as process:
            await harness.until_acknowledged(5)
            for sender in harness.senders:
                await sender.stop()
            sink.is_down = False
            await harness.sink.wait_for(sender.acknowledged[-1] for sender in harness.senders)
            ended = await process.stop()
    assert ended.code == 0, ended.output
    missing = set(harness.acknowledged) - sink.arrived
    requests = {text.split()[0] for text in missing}
    said = [line for line in harness.said if "sending failed" not in line and "listening" not in line]
    assert len(requests) <= 8 * flips, "\n".join(said)
    aside = b"".join(path.read_bytes() for path in harness.store.iterdir())
    assert not [request for request in requests if request.encode() not in aside]
    assert not requests or any("damaged" in line for line in harness.said)


def flip_a_byte(store: Path, chance: random.Random) -> int:
    """Flip one bit of what is on disk, as a bad disk does. Returns how many were flipped."""
    files = [path for path in store.iterdir() if path.name.endswith((".queue", ".queue-wal")) and path.stat().st_size]
    path = chance.choice(sorted(files))
    raw = bytearray(path.read_bytes())
    raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
    path.write_bytes(raw)
    return 1
