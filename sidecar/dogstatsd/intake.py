"""From lines to a receiver's pipelines: metrics when their window ends, events and service checks within a second."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from config import Duration, SettingError, Settings
from sidecar.batch import Batch, BatchContext
from sidecar.component import Receiver
from sidecar.dogstatsd.lines import Event, MalformedLine, Sample, ServiceCheck, parse
from sidecar.dogstatsd.records import records
from sidecar.dogstatsd.tags import TagReader
from sidecar.dogstatsd.windows import Windows
from sidecar.errors import DeliveryError, Retryable
from sidecar.signals import Signal

_TICK: Final = 1.0
# Who sends lines can't be asked to send them again: so many requests wait for a pipeline that has no room.
MAX_WAITING: Final = 30
_MAX_RECORDS: Final = 1000


class AggregationSettings(Settings):
    """How lines are added up.

    Attributes:
        aggregation_interval: how long samples are added up before they are handed on.
        max_series: different series in one window; samples of further ones are counted as dropped.
    """

    aggregation_interval: Duration = Duration("10s")
    max_series: Annotated[int, msgspec.Meta(ge=1)] = 50_000

    def __post_init__(self) -> None:
        if not self.aggregation_interval:
            raise SettingError("must be above 0; write for example 10s", "aggregation_interval")


class _Waiting(NamedTuple):
    signal: Signal
    data: bytes
    items: int


class DogStatsDIntake:
    """Takes lines for one receiver, from any number of transports.

    Each line stands for itself: a malformed one is counted, and costs no other. A pipeline without room is asked again
    with the next window; only when too much waits, the oldest is dropped and counted.

    Args:
        receiver: whose pipelines they are.
        settings: how they are added up.
        transport: what its batches say of the way.
    """

    def __init__(self, receiver: Receiver[Any], settings: AggregationSettings, transport: str) -> None:
        self._receiver = receiver
        self._context = receiver.context
        self._interval = settings.aggregation_interval
        self._transport = transport
        self._tags = TagReader()
        self._windows = Windows(settings.max_series, self._tags)
        self._records: list[tuple[Event | ServiceCheck, int]] = []
        self._waiting: deque[_Waiting] = deque()
        self._window_start = self._context.clock.time_ns()
        self._lock = asyncio.Lock()
        meter = self._context.meter
        self._lines = meter.counter("sidecar_dogstatsd_lines", "Lines that were received.")
        meter.gauge("sidecar_dogstatsd_series", "Series in the current window.", lambda: len(self._windows))

    def take(self, data: bytes) -> None:
        """Take lines. Nothing that they hold raises."""
        lines = malformed = refused = full = 0
        add = self._windows.add
        for line in data.split(b"\n"):
            if not line:
                continue
            lines += 1
            try:
                read = parse(line)
            except MalformedLine:
                malformed += 1
                continue
            if type(read) is Sample:
                refused += not add(read)
            elif len(self._records) < _MAX_RECORDS:
                self._records.append((read, self._context.clock.time_ns()))  # type: ignore[arg-type]
            else:
                full += 1
        self._lines.add(lines)
        self._context.dropped(Signal.METRICS, "malformed", malformed)
        self._context.dropped(Signal.METRICS, "too_many_series", refused)
        self._context.dropped(Signal.LOGS, "queue_full", full)

    async def run(self) -> None:
        """Hand on what is due, for ever. `context.spawn` it."""
        clock = self._context.clock
        due = clock.monotonic() + self._interval
        while True:
            await asyncio.sleep(min(_TICK, self._interval, max(0.0, due - clock.monotonic())))
            if clock.monotonic() >= due:
                due += self._interval
                await self.flush()
            elif self._records or self._waiting:
                await self._send()

    async def flush(self) -> None:
        """End the window, and hand everything on that can be."""
        now = self._context.clock.time_ns()
        request, points = self._windows.close(self._window_start, now)
        self._window_start = now
        if points:
            self._wait(_Waiting(Signal.METRICS, request.SerializeToString(), points))
        await self._send()

    async def stop(self) -> None:
        """Hand everything on; what a pipeline has no room for now is dropped and counted. Works twice."""
        await self.flush()
        while self._waiting:
            self._drop(self._waiting.popleft(), "shutdown")

    async def _send(self) -> None:
        async with self._lock:
            if self._records:
                request, items = records(self._records, self._tags)
                self._records = []
                self._wait(_Waiting(Signal.LOGS, request.SerializeToString(), items))
            for _ in range(len(self._waiting)):
                one = self._waiting.popleft()
                context = BatchContext(transport=self._transport, received_at=self._context.clock.time_ns())
                try:
                    await self._receiver.emit(Batch(one.signal, one.data, context=context, items=one.items))
                except Retryable as error:
                    self._context.logger.warning("%d items wait: %s", one.items, error)
                    self._wait(one)
                except DeliveryError as error:
                    self._drop(one, error.reason)

    def _wait(self, one: _Waiting) -> None:
        if len(self._waiting) >= MAX_WAITING:
            self._drop(self._waiting.popleft(), "queue_full")
        self._waiting.append(one)

    def _drop(self, one: _Waiting, reason: str) -> None:
        self._context.dropped(one.signal, reason, one.items)
