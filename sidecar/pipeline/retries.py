"""Shipments that have failed and will be tried again: those that wait, those whose turn it is, and in which order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from sidecar.pipeline.backlog import Shipment


class Retries:
    """Holds no worker: a shipment waits on a timer, and `on_due` is called when its time has come.

    `in_order`: nothing overtakes the oldest, except that one which has failed for `patience` seconds lets the one
    behind it pass now and then: it may be the batch that is bad, and not the other side.
    """

    def __init__(
        self, *, in_order: bool, patience: float, now: Callable[[], float], on_due: Callable[[], None]
    ) -> None:
        self.in_order = in_order
        self._patience = patience
        self._now = now
        self._on_due = on_due
        self._due: deque[Shipment] = deque()
        self._waiting: dict[Shipment, asyncio.TimerHandle] = {}
        self._is_our_turn = True
        self._last_detour = 0.0

    @property
    def has_due(self) -> bool:
        """Whether one could be tried now."""
        return bool(self._due)

    @property
    def waiting(self) -> int:
        """How many wait for their time."""
        return len(self._waiting)

    def is_stuck(self, shipment: Shipment) -> bool:
        """Whether it has failed for so long that it may be the shipment's own fault."""
        return self._now() - shipment.first_tried_at >= self._patience

    def put(self, shipment: Shipment, delay: float = 0.0) -> None:
        """Have a shipment tried again: after a delay, or as soon as may be. In order, it goes back to its place."""
        if delay:
            loop = asyncio.get_running_loop()
            self._waiting[shipment] = loop.call_later(delay, self._becomes_due, shipment)
        else:
            self._add(shipment)

    def hurry(self) -> None:
        """End all delays."""
        for shipment, timer in list(self._waiting.items()):
            timer.cancel()
            del self._waiting[shipment]
            self._add(shipment)

    def take_all(self) -> list[Shipment]:
        """Give up everything that is here."""
        self.hurry()
        taken = list(self._due)
        self._due.clear()
        return taken

    def next(self, fresh: Callable[[], Shipment | None], *, probing: bool) -> Shipment | None:
        """The shipment whose turn it is: one of these, or a fresh one.

        While the other side is only probed, both take turns, so that a bad batch can't keep the good ones waiting.
        """
        if self.in_order:
            return self._next_in_order(fresh)
        first = self._is_our_turn or not probing
        self._is_our_turn = not self._is_our_turn
        if first and self._due:
            return self._due.popleft()
        found = fresh()
        if found is None and self._due:
            return self._due.popleft()
        return found

    def _next_in_order(self, fresh: Callable[[], Shipment | None]) -> Shipment | None:
        oldest = self._due.popleft() if self._due else None
        if oldest is None:
            return fresh()
        if not self.is_stuck(oldest) or self._now() - self._last_detour < self._patience:
            return oldest
        self._last_detour = self._now()
        behind = self._due.popleft() if self._due else fresh()
        if behind is None:
            return oldest
        self._due.appendleft(oldest)
        return behind

    def _becomes_due(self, shipment: Shipment) -> None:
        del self._waiting[shipment]
        self._add(shipment)
        self._on_due()

    def _add(self, shipment: Shipment) -> None:
        self._due.append(shipment)
        if self.in_order:
            self._due = deque(sorted(self._due, key=lambda one: one.first_tried_at))
