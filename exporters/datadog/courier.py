"""Send what no batch waits for, such as events and statistics: beside the data, and never at its cost."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from exporters.datadog.delivery import Request
from exporters.datadog.intake import Intake
from sidecar import Context, Permanent, Retryable

# Six minutes in all: what nobody has taken by then is of no use to anybody.
_WAITS: Final = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 60.0, 60.0, 60.0, 60.0)
_MAX_WAITING: Final = 100
_TIMEOUT: Final = 10.0
_LAST_CHANCE: Final = 3.0


class Courier:
    """A short queue of requests, and the task that sends them one after the other.

    Args:
        what: what they are, for the log and for the name of the metric that counts what becomes of them.
    """

    def __init__(self, what: str, intake: Intake, context: Context) -> None:
        self._what = what
        self._intake = intake
        self._context = context
        self._queue: asyncio.Queue[Request] = asyncio.Queue(_MAX_WAITING)
        self._stopping = asyncio.Event()

    def start(self) -> None:
        """Begin to send."""
        self._stopping.clear()
        self._context.spawn(self._run(), self._what)

    async def stop(self) -> None:
        """Try once more to send what waits, and count the rest. Works twice."""
        self._stopping.set()
        try:
            async with asyncio.timeout(_LAST_CHANCE):
                await self._queue.join()
        except TimeoutError:
            while not self._queue.empty():
                self._queue.get_nowait()
                self._queue.task_done()
                self.count("unsent_at_stop")

    def offer(self, request: Request) -> None:
        """Queue a request; count it as lost where the queue is full."""
        if self._queue.full():
            self.count("queue_full")
        else:
            self._queue.put_nowait(request)

    def count(self, outcome: str) -> None:
        """Count one more with that outcome, a word from a small closed set."""
        self._context.meter.counter(
            f"sidecar_datadog_{self._what}", f"Datadog {self._what}, by what became of them.", outcome=outcome
        ).add(1)

    async def _run(self) -> None:
        while True:
            request = await self._queue.get()
            try:
                self.count(await self._send(request))
            finally:
                self._queue.task_done()

    async def _send(self, request: Request) -> str:
        for wait in _WAITS:
            try:
                await self._intake.send(request, _TIMEOUT)
            except Retryable as error:
                if self._stopping.is_set():
                    return "unsent_at_stop"
                self._context.logger.warning("%s wait: %s", self._what, error)
                await self._pause(max(wait, error.after or 0.0))
            except Permanent as error:
                self._context.logger.error("%s are lost: %s", self._what, error)
                return "rejected"
            else:
                return "sent"
        return "given_up"

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)
