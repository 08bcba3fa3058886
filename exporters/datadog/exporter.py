"""Send each signal to Datadog: what is settled is never sent again, and nothing counts as sent before a 2xx."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Iterator
from typing import ClassVar, Final

from exporters.datadog.alarms import Alarms
from exporters.datadog.delivery import Request, Route, Unsent
from exporters.datadog.intake import ORIGIN, Intake
from exporters.datadog.logs import LogEncoder, divide
from exporters.datadog.resource import Origins, is_local
from exporters.datadog.settings import Account, DatadogSettings, defaults_of
from exporters.datadog.severity import RANKS
from sidecar import Batch, Context, Exporter, Permanent, Retryable, Signal, TooLarge

# The attempt must end by itself: one that is cut off can't say what it has delivered.
_OWN_SHARE: Final = 0.9


class DatadogExporter(Exporter[DatadogSettings]):
    """Logs to the logs intake, fatal ones to Events too."""

    signals: ClassVar[frozenset[Signal]] = frozenset({Signal.LOGS})

    def __init__(self, settings: DatadogSettings, context: Context) -> None:
        super().__init__(settings, context)
        account = Account.of(settings)
        self._intake = Intake(account.key, context.clock)
        origins = Origins(defaults_of(settings))
        self._alarms = Alarms(settings.events, account, self._intake, context)
        self._late = context.meter.counter(
            "sidecar_datadog_late_records", "Items that were older than the intake takes: sent with a mark."
        )
        self._logs = LogEncoder(
            origins,
            alert_statuses=frozenset(RANKS[settings.events.min_severity]) if settings.events.enabled else frozenset(),
            on_alert=self._alarms.raise_for,
            on_late=lambda: self._late.add(1),
        )
        self._logs_route = Route(
            account.url("http-intake.logs", "/api/v2/logs", settings.logs.endpoint),
            "application/json",
            divide,
            settings.logs.compression,
            ORIGIN,
        )

    async def start(self) -> None:
        """Open the connection pool."""
        await self._intake.open()
        self._alarms.start()
        self.context.health.ok()

    async def stop(self) -> None:
        """Send the alarms that wait, and close all connections."""
        await self._alarms.stop()
        await self._intake.close()

    async def export(self, batch: Batch) -> None:
        """Deliver a batch, or what remains of it.

        Raises:
            Retryable: with what is still to be sent.
            Permanent: Datadog takes nothing of it.
        """
        if isinstance(batch, Unsent):
            await self._deliver(batch.origin, batch.requests)
        else:
            await self._deliver(batch, self._requests(batch))

    def _requests(self, batch: Batch) -> Iterator[Request]:
        local = is_local(batch.context.peer)
        for body in self._logs.encode(batch.message, local=local, now_ns=self.context.clock.time_ns()):
            if self.settings.logs.dump_payloads:
                self.context.logger.debug("logs: %s", body.data.decode())
            yield Request.make(self._logs_route, body.data, body.units)

    async def _deliver(self, batch: Batch, requests: Iterable[Request]) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _OWN_SHARE * self.settings.timeout
        waiting = iter(requests)
        delivered = False
        refused: list[tuple[Request, Permanent]] = []
        while (request := next(waiting, None)) is not None:
            try:
                await self._intake.send(request, deadline - loop.time())
                delivered = True
            except Retryable as error:
                self._count(batch, refused)
                error.remaining = Unsent(batch, [request, *waiting])
                raise
            except TooLarge as error:
                halves = request.halves()
                waiting = itertools.chain(halves, waiting)
                if not halves:
                    refused.append((request, error))
            except Permanent as error:
                refused.append((request, error))
        if refused and not delivered:
            raise refused[0][1]
        self._count(batch, refused)

    def _count(self, batch: Batch, refused: list[tuple[Request, Permanent]]) -> None:
        for request, error in refused:
            self.context.logger.error("%d items dropped: %s", request.items, error)
            self.context.dropped(batch.signal, error.reason, request.items)
