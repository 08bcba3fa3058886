"""Send each signal to Datadog: what is settled is never sent again, and nothing counts as sent before a 2xx."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from exporters.datadog.channel_logs import LogsChannel
from exporters.datadog.channel_metrics import MetricsChannel
from exporters.datadog.channel_traces import TracesChannel
from exporters.datadog.courier import Courier
from exporters.datadog.delivery import Attempts, Request, Unsent
from exporters.datadog.dogstatsd import DATAGRAM, DogStatsD
from exporters.datadog.intake import Intake
from exporters.datadog.once import Once
from exporters.datadog.resource import Origins
from exporters.datadog.settings import Account, DatadogSettings, defaults_of, dogstatsd_url_of
from sidecar import Batch, Context, Exporter, Permanent, Retryable, Signal, TooLarge

# The attempt must end by itself: one that is cut off can't say what it has delivered.
_OWN_SHARE: Final = 0.9


class DatadogExporter(Exporter[DatadogSettings]):
    """Logs, traces and metrics to their intakes; fatal logs raise Events, and spans are counted for APM."""

    signals_apart = True

    def __init__(self, settings: DatadogSettings, context: Context) -> None:
        super().__init__(settings, context)
        account = Account.of(settings)
        defaults = defaults_of(settings)
        origins = Origins(defaults)
        self._intake = Intake(account.key, context.clock)
        self._events = Courier("events", self._intake, context)
        self._stats = Courier("stats", self._intake, context)
        logs = LogsChannel(settings, account, origins, self._events, context)
        self._traces = TracesChannel(settings, account, origins, defaults, self._stats, context)
        url = dogstatsd_url_of(settings)
        self._dogstatsd = DogStatsD(url) if url else None
        metrics = MetricsChannel(settings, account, origins, context, self._traces.stats_requests, self._dogstatsd)
        self._requests: dict[Signal, Callable[[Batch], Iterable[Request]]] = {
            Signal.LOGS: logs.requests,
            Signal.TRACES: self._traces.requests,
            Signal.METRICS: metrics.requests,
        }
        self._once = Once(context.clock)
        self._attempts = {signal: Attempts() for signal in Signal}

    async def start(self) -> None:
        """Be ready to send."""
        await self._intake.open()
        if self._dogstatsd:
            await self._dogstatsd.open()
        self._events.start()
        self._stats.start()
        self._traces.start()

    async def stop(self) -> None:
        """Send the events and statistics that wait, and close all connections."""
        self._traces.stop()
        await asyncio.gather(self._events.stop(), self._stats.stop())
        await self._intake.close()
        if self._dogstatsd:
            self._dogstatsd.close()

    async def export(self, batch: Batch) -> None:
        """Deliver a batch, or what remains of it.

        Raises:
            Retryable: with what is still to be sent.
            Permanent: Datadog takes nothing of it.
        """
        if isinstance(batch, Unsent):
            await self._deliver(batch.origin, batch.requests)
        else:
            self._attempts[batch.signal].check(self.context.clock.monotonic())
            await self._deliver(batch, self.requests_of(batch.signal)(batch))

    def requests_of(self, signal: Signal) -> Callable[[Batch], Iterable[Request]]:
        """What makes the requests of a signal's batches. To be asked for once per batch."""
        return self._requests[signal]

    async def _deliver(self, batch: Batch, requests: Iterable[Request]) -> None:
        loop = asyncio.get_running_loop()
        attempts = self._attempts[batch.signal]
        deadline = loop.time() + _OWN_SHARE * self.settings.timeout
        waiting = iter(requests)
        delivered = False
        refused: list[tuple[Request, Permanent]] = []
        while (request := next(waiting, None)) is not None:
            try:
                await self._send(request, deadline - loop.time())
                delivered = True
                attempts.succeeded()
            except Retryable as error:
                self._count(batch, refused)
                attempts.failed(error, Unsent(batch, [request, *waiting]), self.context.clock.monotonic())
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

    async def _send(self, request: Request, timeout: float) -> None:  # noqa: ASYNC109 (as of every sender)
        if self._dogstatsd is not None and request.route is DATAGRAM:
            await self._dogstatsd.send(request, timeout)
        elif request.once:
            await self._once.send(request.once, partial(self._intake.send, request), timeout)
        else:
            await self._intake.send(request, timeout)

    def _count(self, batch: Batch, refused: list[tuple[Request, Permanent]]) -> None:
        for request, error in refused:
            items = len(request.positions)
            self.context.logger.error("%d items dropped: %s", items, error)
            self.context.dropped(batch.signal, error.reason, items)
