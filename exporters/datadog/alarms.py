"""Raise Datadog Events beside the logs: their fate never holds up a log, nor sends one twice."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any, Final

from exporters.datadog import events
from exporters.datadog.delivery import Request, Route
from exporters.datadog.intake import Intake
from exporters.datadog.resource import Origin
from exporters.datadog.settings import Account, EventsSettings
from sidecar import Context, Permanent, Retryable

# An alarm that nobody has taken for five minutes is seen in the logs sooner.
_WAITS: Final = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 60.0, 60.0, 60.0)
_MAX_WAITING: Final = 100
_TIMEOUT: Final = 10.0
_LAST_CHANCE: Final = 3.0


class Alarms:
    """A short queue of events and the task that sends them, one request each, as the intake wants it."""

    def __init__(self, settings: EventsSettings, account: Account, intake: Intake, context: Context) -> None:
        self._intake = intake
        self._context = context
        self._route = Route(account.url("api", "/api/v1/events", settings.endpoint), "application/json")
        self._deduplicator = events.Deduplicator(settings.aggregation)
        self._bucket = events.Bucket(settings.rate)
        self._queue: asyncio.Queue[Request] = asyncio.Queue(_MAX_WAITING)
        self._stopping = asyncio.Event()

    def start(self) -> None:
        """Begin to send."""
        self._context.spawn(self._run(), "events")

    async def stop(self) -> None:
        """Try once more to send what waits."""
        self._stopping.set()
        try:
            async with asyncio.timeout(_LAST_CHANCE):
                await self._queue.join()
        except TimeoutError:
            while not self._queue.empty():
                self._queue.get_nowait()
                self._queue.task_done()
                self._count("unsent_at_stop")

    def raise_for(self, origin: Origin, members: Mapping[str, Any]) -> None:
        """Queue the event of a log, unless one like it was sent lately or there are too many.

        Args:
            origin: whose log it is.
            members: the log as it goes to the logs intake.
        """
        now_ns = self._context.clock.time_ns()
        date = events.date_of(members, now_ns)
        if date is None:
            self._count("too_old")
            return
        event = events.event_of(origin, members)
        now = self._context.clock.monotonic()
        left_out = self._deduplicator.admit(event["aggregation_key"], now)
        if left_out is None:
            self._count("alike")
        elif not self._bucket.take(now):
            self._count("over_rate")
        elif self._queue.full():
            self._count("queue_full")
        else:
            body = events.encode({**event, "date_happened": date}, left_out)
            self._queue.put_nowait(Request.make(self._route, body, ()))

    async def _run(self) -> None:
        while True:
            request = await self._queue.get()
            try:
                self._count(await self._send(request))
            finally:
                self._queue.task_done()

    async def _send(self, request: Request) -> str:
        for wait in _WAITS:
            try:
                await self._intake.send(request, _TIMEOUT)
            except Retryable as error:
                if self._stopping.is_set():
                    return "unsent_at_stop"
                self._context.logger.warning("an event is not sent yet: %s", error)
                await self._pause(max(wait, error.after or 0.0))
            except Permanent as error:
                self._context.logger.error("an event is lost: %s", error)
                return "rejected"
            else:
                return "sent"
        return "given_up"

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    def _count(self, outcome: str) -> None:
        self._context.meter.counter(
            "sidecar_datadog_events", "Events that logs gave rise to, by what became of them.", outcome=outcome
        ).add(1)
