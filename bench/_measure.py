"""Runs contenders side by side: in each round one after the other, so that all meet the same machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import grpc.aio
import isal.igzip

from bench._contenders import Case, Contender
from bench._requests import prebuilt, prebuilt_events
from bench._sink import Sink
from sidecar import SCHEMAS
from sidecar.net import otlp_json

SENDERS = 4
WARM_UP = 0.5  # seconds
CORES = sorted(os.sched_getaffinity(0))


class Refused(Exception):
    """The contender does not take a request, or does not let it out."""


class GrpcClient:
    """Sends one request again and again, over gRPC."""

    def __init__(self, case: Case, port: int) -> None:
        self._body = prebuilt(case.signal, case.items)
        self._compression = grpc.Compression.Gzip if case.gzip_in else None
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
        self._export = self._channel.unary_unary(f"/{SCHEMAS[case.signal].grpc_service}/Export")

    async def send(self) -> None:
        """Return when it is accepted."""
        try:
            await self._export(self._body, timeout=60, wait_for_ready=True, compression=self._compression)
        except grpc.aio.AioRpcError as error:
            raise Refused(error.details()) from None

    async def close(self) -> None:
        """Let go of the connection."""
        await self._channel.close()


class HttpClient:
    """Sends one request again and again, over HTTP."""

    def __init__(self, case: Case, port: int) -> None:
        path = SCHEMAS[case.signal].http_path
        self._headers = {"Content-Type": "application/x-protobuf" if case.into == "http" else "application/json"}
        if case.into == "events":
            path, self._body = "/v1/telemetry/events", prebuilt_events(case.items)
        elif case.into == "json":
            message = SCHEMAS[case.signal].request.FromString(prebuilt(case.signal, case.items))
            self._body = otlp_json.encode(message)
        else:
            self._body = prebuilt(case.signal, case.items)
        if case.gzip_in:
            self._headers["Content-Encoding"] = "gzip"
            self._body = isal.igzip.compress(self._body)
        self._url = f"http://127.0.0.1:{port}{path}"
        self._session = aiohttp.ClientSession()

    async def send(self) -> None:
        """Return when it is accepted."""
        async with self._session.post(self._url, data=self._body, headers=self._headers) as response:
            if response.status // 100 != 2:
                raise Refused(f"{response.status} {(await response.text())[:200]}")

    async def close(self) -> None:
        """Let go of the connections."""
        await self._session.close()


def cpu_seconds(pid: int) -> float:
    """The processor time, user's and system's, of all threads of a process, to the nanosecond.

    A process has a clock of its own, whose id Linux makes of the process id (clock_getcpuclockid(3)).
    """
    return time.clock_gettime((~pid << 3) | 2)


def memory(pid: int, field_: str = "VmHWM") -> float:
    """MiB that are resident (VmRSS), or have been at most (VmHWM)."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition(f"{field_}:")[2].split()[0]) / 1024


@contextlib.contextmanager
def on_cores(cores: Iterable[int]):
    """What is started within runs on those cores; afterwards, as before."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@dataclass
class Result:
    """What became of one contender in one case, a figure for each round.

    Attributes:
        cpu: microseconds per item.
        rate: items per second, from the first request until the last item has come out.
        peak: MiB.
        fault: why there are no figures.
    """

    name: str
    cpu: list[float] = field(default_factory=list)
    rate: list[float] = field(default_factory=list)
    peak: float = 0.0
    fault: str = ""

    @property
    def median(self) -> float:
        """Microseconds per item."""
        return statistics.median(self.cpu)

    def ratio(self, other: Result) -> float:
        """How many times the other's processor time, round by round."""
        return statistics.median(mine / theirs for mine, theirs in zip(self.cpu, other.cpu, strict=True))


def spread(values: list[float]) -> str:
    """From the least to the greatest, as a share of the median."""
    return f"±{(max(values) - min(values)) / 2 / statistics.median(values):.0%}"


class Runner:
    """A contender that runs in a case."""

    def __init__(self, contender: Contender, case: Case, process, sink: Sink, stack) -> None:
        self.result = Result(contender.name)
        self.process = process
        self._case = case
        self._sink = sink
        self._client = (GrpcClient if case.into == "grpc" else HttpClient)(
            case, process.grpc_port if case.into == "grpc" else process.http_port
        )
        stack.push_async_callback(self._client.close)
        self._marks = 0

    async def warm_up(self) -> None:
        """See that a request is taken, how it is counted where it comes out, and that none is lost.

        Raises:
            Refused: it is not.
        """
        before = self._sink.count
        await self._client.send()
        if self._case.out != "prometheus" and not isinstance(self.process, Sink):
            try:
                await self._sink.wait_for(before + 1)
            except TimeoutError:
                raise Refused("nothing comes out") from None
            self._marks = await self._sink.settle() - before
        await self.feed(WARM_UP)

    async def round(self, seconds: float) -> None:
        """Load it for so long, and wait until everything is out."""
        started, before = time.perf_counter(), cpu_seconds(self.process.pid)
        try:
            sent = await self.feed(seconds)
        except Refused as refusal:
            self.result.fault = str(refusal)
            return
        items = sent * self._case.items
        self.result.rate.append(items / (time.perf_counter() - started))
        self.result.cpu.append((cpu_seconds(self.process.pid) - before) / items * 1e6)
        self.result.peak = memory(self.process.pid)

    async def feed(self, seconds: float) -> int:
        """Send for so long, wait until everything is out, and return the number of requests."""
        already, sent, end = self._sink.count, 0, time.perf_counter() + seconds

        async def send() -> None:
            nonlocal sent
            while time.perf_counter() < end:
                try:
                    await self._client.send()
                    sent += 1
                except Refused:
                    await asyncio.sleep(0.02)

        await asyncio.gather(*(send() for _ in range(SENDERS)))
        try:
            await self._sink.wait_for(already + sent * self._marks)
        except TimeoutError:
            raise Refused("loses data") from None
        return sent

    async def paced(self, requests_per_second: float, seconds: float) -> list[float]:
        """Send at a steady rate, whatever the answers: the seconds from when each was due to its answer."""
        start, took, tasks = time.perf_counter(), [], []

        async def send(due: float) -> None:
            await self._client.send()
            took.append(time.perf_counter() - due)

        for number in range(round(requests_per_second * seconds)):
            due = start + number / requests_per_second
            await asyncio.sleep(due - time.perf_counter())
            tasks.append(asyncio.create_task(send(due)))
        await asyncio.gather(*tasks)
        return took


async def started(stack: contextlib.AsyncExitStack, contender: Contender, case: Case, sink: Sink, folder: str):
    """A contender that runs until the stack is closed."""
    for _ in range(2):
        # Another program may be quicker to take a port that was free.
        with contextlib.suppress(AssertionError):
            return await stack.enter_async_context(contender.start(case, sink, folder))
    return await stack.enter_async_context(contender.start(case, sink, folder))


@contextlib.asynccontextmanager
async def running(case: Case, contenders: Iterable[Contender], sink: Sink, cores: Iterable[int] | None = None):
    """Those of the contenders that offer the case, started and warmed up, or with the fault that they have shown."""
    chosen = [contender for contender in contenders if contender.offers(case)]
    async with contextlib.AsyncExitStack() as stack:
        folders = [stack.enter_context(tempfile.TemporaryDirectory()) for _ in chosen]
        with on_cores(cores or CORES):
            async with asyncio.TaskGroup() as group:
                starts = [
                    group.create_task(started(stack, contender, case, sink, folder))
                    for contender, folder in zip(chosen, folders, strict=True)
                ]
        processes = [start.result() for start in starts]
        runners = []
        for contender, process in zip(chosen, processes, strict=True):
            runner = Runner(contender, case, process, sink, stack)
            try:
                await runner.warm_up()
            except Refused as refusal:
                runner.result.fault = str(refusal)
            runners.append(runner)
        yield runners


async def compare(
    case: Case, contenders: Iterable[Contender], sink: Sink, rounds: int, seconds: float, cores=None
) -> list[Result]:
    """Figures of all contenders that offer the case, in their order."""
    async with running(case, contenders, sink, cores) as runners:
        for number in range(rounds):
            # There and back, so that none is always the first.
            for runner in runners if number % 2 == 0 else reversed(runners):
                if not runner.result.fault:
                    await runner.round(seconds)
        return [runner.result for runner in runners]
