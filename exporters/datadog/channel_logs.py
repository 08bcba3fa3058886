"""Logs, and the events that they raise, from batches to requests."""

from __future__ import annotations

from collections.abc import Iterator

from exporters.datadog.alarms import Alarms
from exporters.datadog.courier import Courier
from exporters.datadog.delivery import Request, Route
from exporters.datadog.intake import ORIGIN
from exporters.datadog.logs import LogEncoder, divide
from exporters.datadog.resource import Origins, is_local
from exporters.datadog.settings import Account, DatadogSettings
from exporters.datadog.severity import RANKS
from sidecar import Batch, Context

LOGS_PATH = "/api/v2/logs"
EVENTS_PATH = "/api/v1/events"


class LogsChannel:
    """Makes requests of batches of log records, and hands the events of the worst ones to a courier."""

    def __init__(
        self, settings: DatadogSettings, account: Account, origins: Origins, courier: Courier, context: Context
    ) -> None:
        self._settings = settings.logs
        self._context = context
        events = settings.events
        events_route = Route(account.url("api", EVENTS_PATH, events.endpoint), "application/json")
        alarms = Alarms(events, events_route, courier, context.clock)
        late = context.meter.counter(
            "sidecar_datadog_late_records", "Log records that were older than the intake takes, sent with a mark."
        )
        self._encoder = LogEncoder(
            origins,
            alert_statuses=frozenset(RANKS[events.min_severity]) if events.enabled else frozenset(),
            on_alert=alarms.raise_for,
            on_late=lambda: late.add(1),
        )
        self._route = Route(
            account.url("http-intake.logs", LOGS_PATH, settings.logs.endpoint),
            "application/json",
            divide,
            settings.logs.compression,
            ORIGIN,
        )

    def requests(self, batch: Batch) -> Iterator[Request]:
        """The requests that carry a batch, made one by one as they are asked for."""
        local = is_local(batch.context.peer)
        for body in self._encoder.encode(batch.message, local=local, now_ns=self._context.clock.time_ns()):
            if self._settings.dump_payloads:
                self._context.logger.debug("logs: %s", body.data.decode())
            yield Request.make(self._route, body)
