"""A long run at 5,000 records per second of all three signals, with reloads and with a destination that comes and goes.

Everything is on: rate limit, allowlist, correlation, Prometheus and OTLP out, the queue on disk. Memory must not grow,
nor tasks, sockets and file handles, and what was accepted must arrive. `--minutes 30` is the real one.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

from support.peers import GrpcServer
from support.processes import SidecarProcess, find_free_port

from bench._contenders import Case
from bench._measure import GrpcClient, Refused, cpu_seconds, memory
from bench._requests import MARK
from sidecar import Signal

RECORDS_PER_SECOND = 5_000
ITEMS = 100
RELOAD_EVERY = 10.0
UP, DOWN = 12.0, 4.0
SETTLE = 0.25  # the share of the run after which nothing may grow any more
# What may grow from there to the end, by the slope of a fitted line.
ALLOWED = {"resident, MiB": 4.0, "tasks": 5.0, "sockets": 4.0, "file handles": 6.0}

DOCUMENT = """
receivers:
  otlp: {{protocols: {{grpc: {{endpoint: "127.0.0.1:{port}"}}}}}}
processors:
  rate_limit: {{key: [client_address], rate: 1000000/s, burst: 1000000}}
  allowlist:
  correlation: {{request_window: {odd}s}}
exporters:
  otlp:
    endpoint: http://127.0.0.1:{sink}
    compression: none
    timeout: {odd}s
    sending_queue: {{queue_size: 1000000, storage: file_storage}}
    retry_on_failure: {{initial_interval: 500ms, max_interval: 2s}}
  prometheus: {{endpoint: "127.0.0.1:{scrape}"}}
extensions:
  file_storage: {{directory: .}}
service:
  extensions: [file_storage]
  telemetry: {{metrics: {{readers: [{{pull: {{exporter: {{prometheus: {{host: localhost, port: {own}}}}}}}}}]}}}}
  pipelines:
    logs: {{receivers: [otlp], processors: [rate_limit, allowlist, correlation], exporters: [otlp, prometheus]}}
    traces: {{receivers: [otlp], processors: [rate_limit, allowlist, correlation], exporters: [otlp, prometheus]}}
    metrics: {{receivers: [otlp], processors: [rate_limit, allowlist], exporters: [otlp, prometheus]}}
"""


async def rows(options):
    seconds = options.minutes * 60
    with tempfile.TemporaryDirectory() as folder:
        async with FlappingSink() as sink:
            port, scrape, own = (find_free_port() for _ in range(3))
            documents = [DOCUMENT.format(port=port, sink=sink.port, scrape=scrape, own=own, odd=odd) for odd in (5, 6)]
            process = SidecarProcess(documents[0], folder, env={"PYTHONPATH": str(Path(__file__).parent.parent)})
            process.command = [sys.executable, "-m", "bench._watched", *process.command[1:]]
            async with process, contextlib.aclosing(Load(port)) as load:
                before = cpu_seconds(process.pid)
                samples = await soak(process, sink, load, documents, seconds)
                used = (cpu_seconds(process.pid) - before) / seconds
                output = (await process.stop(within=60)).output
    settled = [sample for sample in samples if sample["at"] > seconds * SETTLE]
    for what, allowed in ALLOWED.items():
        first, growth = fitted([(sample["at"], sample[what]) for sample in settled])
        yield {
            "what": what,
            "at first": round(first, 1),
            "most": round(max(sample[what] for sample in settled), 1),
            "growth": f"{growth:+.1f}",
            "allowed": allowed,
            "verdict": "flat" if growth <= allowed else "**grows**",
        }
    dropped = sum(map(int, re.findall(r"balance: .* dropped (\d+)", output)))
    lost = max(load.accepted - sink.count, dropped)  # what was sent twice has arrived twice
    reloads, refused = (len(re.findall(what, output)) for what in ("reloaded: ", "reload refused"))
    yield (
        f"{options.minutes:g} minutes with {reloads} reloads ({refused} refused) and {sink.outages} outages of the "
        f"destination: {load.accepted:,} records accepted, {load.refused:,} refused; {sink.count:,} arrived, "
        f"{dropped:,} were dropped: {f'**{lost:,} lost**' if lost else 'none lost'}. {used:.0%} of a core."
    )


class FlappingSink(GrpcServer):
    """Counts items while it is up. What is sent again after an outage counts twice."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.outages = 0

    async def record(self, request):
        """Count, and keep nothing."""
        self.count += request.body.count(MARK.encode())
        return b""

    async def flap(self, seconds: float) -> None:
        """Come and go for so long, and stay in the end."""
        for _ in range(int(seconds / (UP + DOWN))):
            await asyncio.sleep(UP)
            await self.stop()
            self.outages += 1
            await asyncio.sleep(DOWN)
            await self.start()


class Load:
    """The three signals in turns, at the rate, whatever the answers."""

    def __init__(self, port: int) -> None:
        self._clients = itertools.cycle([GrpcClient(Case(signal=each, items=ITEMS), port) for each in Signal])
        self.accepted = self.refused = 0
        self.cpu = 0.0

    async def run(self, seconds: float) -> None:
        """Send for so long."""
        start, pause = time.monotonic(), ITEMS / RECORDS_PER_SECOND
        async with asyncio.TaskGroup() as group:
            for number in range(round(seconds / pause)):
                await asyncio.sleep(start + number * pause - time.monotonic())
                group.create_task(self._send(next(self._clients)))

    async def aclose(self) -> None:
        """Let go of the connections."""
        for client in itertools.islice(self._clients, len(Signal)):
            await client.close()

    async def _send(self, client: GrpcClient) -> None:
        try:
            await client.send()
            self.accepted += ITEMS
        except Refused:
            self.refused += ITEMS


async def soak(process: SidecarProcess, sink: FlappingSink, load: Load, documents: list[str], seconds: float):
    """A sample for each second."""
    samples, started = [], time.monotonic()

    async def watch() -> None:
        while True:
            await asyncio.sleep(1)
            samples.append({"at": time.monotonic() - started, **held(process)})

    async def reload() -> None:
        for document in itertools.cycle(reversed(documents)):
            await asyncio.sleep(RELOAD_EVERY)
            process.document.write_text(document)
            process.send_signal(signal.SIGHUP)

    others = [asyncio.create_task(work) for work in (watch(), reload())]
    await asyncio.gather(load.run(seconds), sink.flap(seconds))
    for other in others:
        other.cancel()
    return samples


def held(process: SidecarProcess) -> dict[str, float]:
    """What the process holds now."""
    handles = []
    for each in Path(f"/proc/{process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            handles.append(str(each.readlink()))
    sockets = sum(handle.startswith("socket:") for handle in handles)
    tasks = (process.document.parent / "tasks").read_text() or "0"
    figures = (memory(process.pid, "VmRSS"), int(tasks), sockets, len(handles) - sockets)
    return dict(zip(ALLOWED, map(float, figures), strict=True))


def fitted(line: list[tuple[float, float]]) -> tuple[float, float]:
    """The first value of the line that fits best, and how much it grows until the last."""
    slope, intercept = statistics.linear_regression(*zip(*line, strict=True))
    first, last = line[0][0], line[-1][0]
    return intercept + slope * first, slope * (last - first)
