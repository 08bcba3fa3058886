"""The sink is dead for as long as it takes to fill the storage: memory stays small, and afterwards everything arrives.

`OUTAGE_MB=500` is what production has in mind; by default it is less. `--log-cli-level=info` shows the figures.
"""

from __future__ import annotations

import asyncio
import logging
import time

from support.delivery import GrpcSender, GrpcSink, HttpSender, Ports, amount
from support.processes import SidecarProcess

MEGABYTE = 1_000_000
MEMORY = 150 * 2**20
PADDING = 1000

DOCUMENT = """
receivers:
  otlp: {{protocols: {{grpc: {{endpoint: "127.0.0.1:{ports.grpc}"}}, http: {{endpoint: "127.0.0.1:{ports.http}"}}}}}}
extensions:
  file_storage: {{directory: {directory}, create_directory: true, max_size: {size}}}
exporters:
  otlp:
    endpoint: "http://{sink}"
    compression: none
    timeout: 10s
    sending_queue: {{storage: file_storage, num_consumers: 1, queue_size: 10000000, batch: {{min_size: 1000}}}}
    retry_on_failure: {{initial_interval: 100ms, max_interval: 500ms}}
service:
  extensions: [file_storage]
  shutdown_timeout: 30s
  telemetry: {{metrics: {{level: none}}}}
  pipelines:
    logs: {{receivers: [otlp], exporters: [otlp]}}
"""


async def test_a_long_outage_fills_the_disk_and_not_the_memory(tmp_path):
    """The quota refuses, memory stays under 150 MiB, and recovery sends in order while new data flow."""
    size = amount("OUTAGE_MB", small=50, ci=100) * MEGABYTE
    ports, store = Ports(), tmp_path / "store"
    async with GrpcSink() as sink:
        sink.is_down = True
        senders = [
            kind(f"s{index}", ports, size=500, padding=PADDING) for index, kind in enumerate((GrpcSender, HttpSender))
        ]
        document = DOCUMENT.format(ports=ports, directory=store, size=size, sink=sink.address)
        async with SidecarProcess(document, tmp_path) as process:
            for sender in senders:
                sender.start()
            memory = await until(lambda: all(sender.refusals for sender in senders), process)
            stored = sum(len(sender.acknowledged) for sender in senders)
            on_disk = sum(path.stat().st_size for path in store.glob("*.queue"))
            # The quota counts requests as they were sent, and the storage compresses them.
            assert 0.9 * size < stored * PADDING * 1.2
            assert on_disk < size + 8 * MEGABYTE

            sink.is_down = False
            started = time.monotonic()
            memory = max(memory, await until(lambda: len(sink.arrived) >= stored, process))
            throughput = stored / (time.monotonic() - started)
            fresh = sum(len(sender.acknowledged) for sender in senders) - stored
            for sender in senders:
                await sender.finish()
            await sink.wait_for(text for sender in senders for text in sender.acknowledged)
            ended = await process.stop()

    assert ended.code == 0, ended.output
    assert "+ dropped 0" in ended.output
    assert memory < MEMORY
    assert fresh > 0
    assert max(sink.times.values()) == 1
    for sender in senders:
        assert sink.first_arrivals(sender.name) == sender.acknowledged
    logging.getLogger(__name__).info(
        "%d records, %d MB on disk, %d MiB of memory at most; recovery at %d records/s, with %d new ones meanwhile",
        stored, on_disk / MEGABYTE, memory / 2**20, throughput, fresh,
    )  # fmt: skip


async def until(condition, process, within: float = 55.0) -> int:
    """Wait for something. Returns the most memory that the process had in use meanwhile."""
    memory = 0
    async with asyncio.timeout(within):
        while not condition():
            memory = max(memory, process.memory())
            await asyncio.sleep(0.05)
    return memory
