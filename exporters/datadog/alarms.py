"""Raise Datadog Events beside the logs: their fate never holds up a log, nor sends one twice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from exporters.datadog import events
from exporters.datadog.courier import Courier
from exporters.datadog.delivery import Body, Request, Route
from exporters.datadog.resource import Origin
from exporters.datadog.settings import EventsSettings
from sidecar.component import Clock


class Alarms:
    """Decides which logs raise an event, and hands those to a courier, one request each as the intake wants it."""

    def __init__(self, settings: EventsSettings, route: Route, courier: Courier, clock: Clock) -> None:
        self._route = route
        self._courier = courier
        self._clock = clock
        self._deduplicator = events.Deduplicator(settings.aggregation)
        self._bucket = events.Bucket(settings.rate)

    def raise_for(self, origin: Origin, members: Mapping[str, Any]) -> None:
        """Send the event of a log, unless one like it was sent lately or there are too many.

        Args:
            origin: whose log it is.
            members: the log as it goes to the logs intake.
        """
        date = events.date_of(members, self._clock.time_ns())
        if date is None:
            self._courier.count("too_old")
            return
        event = events.event_of(origin, members)
        now = self._clock.monotonic()
        left_out = self._deduplicator.admit(event["aggregation_key"], now)
        if left_out is None:
            self._courier.count("alike")
        elif not self._bucket.take(now):
            self._courier.count("over_rate")
        else:
            body = events.encode({**event, "date_happened": date}, left_out)
            self._courier.offer(Request.make(self._route, Body(body, ())))
