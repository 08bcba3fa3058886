"""Logs, and the events that they raise, from batches to requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import orjson

from exporters.datadog import events
from exporters.datadog.alarms import Alarms
from exporters.datadog.courier import Courier
from exporters.datadog.delivery import Body, Request, Route
from exporters.datadog.intake import ORIGIN
from exporters.datadog.logs import Diverted, LogEncoder, divide
from exporters.datadog.resource import Origins, is_local
from exporters.datadog.settings import Account, DatadogSettings
from exporters.datadog.severity import RANKS
from sidecar import Batch, Context, Signal
from sidecar.events.datadog_keys import EVENT, SERVICE_CHECK
from sidecar.reading import read

LOGS_PATH: Final = "/api/v2/logs"
EVENTS_PATH: Final = "/api/v1/events"
CHECKS_PATH: Final = "/api/v1/check_run"


class LogsChannel:
    """Makes requests of batches of log records, and hands the events of the worst ones to a courier."""

    def __init__(
        self, settings: DatadogSettings, account: Account, origins: Origins, courier: Courier, context: Context
    ) -> None:
        self._settings = settings.logs
        self._context = context
        alarm = settings.events
        self._events = Route(account.url("api", EVENTS_PATH, alarm.endpoint), "application/json")
        self._checks = Route(account.url("api", CHECKS_PATH, alarm.endpoint, EVENTS_PATH), "application/json", divide)
        alarms = Alarms(alarm, self._events, courier, context.clock)
        late = context.meter.counter(
            "sidecar_datadog_late_records", "Log records that were older than the intake takes, sent with a mark."
        )
        self._encoder = LogEncoder(
            origins,
            alert_statuses=frozenset(RANKS[alarm.min_severity]) if alarm.enabled else frozenset(),
            on_alert=alarms.raise_for,
            diverted_kinds=frozenset({EVENT, SERVICE_CHECK}),
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
        now_ns = self._context.clock.time_ns()
        diverted: list[Diverted] = []
        for body in self._encoder.encode(read(batch), diverted, local=is_local(batch.context.peer), now_ns=now_ns):
            if self._settings.dump_payloads:
                self._context.logger.debug("logs: %s", body.data.decode())
            yield Request.make(self._route, body)
        if diverted:
            yield from self._for_diverted(diverted, now_ns)

    def _for_diverted(self, diverted: list[Diverted], now_ns: int) -> Iterator[Request]:
        """One request for each event, and one for all service checks."""
        checks: list[dict[str, Any]] = []
        units: list[int] = []
        for one in diverted:
            is_event = one.kind == EVENT
            date = events.date_of(one.members, now_ns, events.MAX_EVENT_AGE_NS if is_event else events.MAX_CHECK_AGE_NS)
            if date is None:
                self._context.dropped(Signal.LOGS, "too_old", 1)
            elif is_event:
                event = {**events.sent_event_of(one.members), "date_happened": date}
                yield Request.make(self._events, Body(events.encode(event), [one.position]))
            else:
                checks.append({**events.sent_check_of(one.members), "timestamp": date})
                units.append(one.position)
        if checks:
            yield Request.make(self._checks, Body(orjson.dumps(checks), units))
