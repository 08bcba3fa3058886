"""The way from a sender to the ends of its pipelines: processors at once, then all sinks or none.

A `Gate` is what a receiver, a connector or a long-form processor emits into. It runs the short-form processors of
every pipeline behind it in the sender's task, then reserves room at every end, and only when all have room commits to
all. One full exporter therefore never makes a sender repeat what healthy exporters already have.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol

from sidecar.batch import Batch
from sidecar.errors import NotServed
from sidecar.pipeline.observe import Step
from sidecar.signals import Signal


class Reservation(Protocol):
    """Room for one batch at one end of a pipeline."""

    fallible: bool
    """Whether `commit` may still fail: such reservations are committed first, while the others can be cancelled."""

    async def commit(self) -> None:
        """Hand the batch over. When it fails it has given the room back; when it is cancelled it goes on by itself."""

    def cancel(self) -> None:
        """Give the room back, instead of `commit`."""


class Sink(Protocol):
    """One end of a pipeline: an exporter's outbox, an exporter without one, a connector, a long-form processor."""

    async def reserve(self, batch: Batch) -> Reservation:
        """Hold room for the batch.

        Raises:
            Retryable: no room now.
            Permanent: the batch will never fit.
        """


class Route:
    """One pipeline from its start, or from a long-form processor, to its ends or to the next long-form processor.

    `mutates`: whether anything on the whole way may change the batch, so that it needs one of its own.
    """

    __slots__ = ("mutates", "name", "sinks", "steps")

    def __init__(self, name: str, steps: Sequence[Step], sinks: Sequence[Sink], *, mutates: bool) -> None:
        self.name = name
        self.steps = tuple(steps)
        self.sinks = tuple(sinks)
        self.mutates = mutates

    def process(self, batch: Batch) -> Batch | None:
        """Run the processors. The batch is the route's own when `mutates`."""
        for step in self.steps:
            processed = step.run(batch)
            if processed is None:
                return None
            batch = processed
        return batch


class Passage:
    """One set of routes, and how many calls are on their way through it."""

    __slots__ = ("_calls", "_over", "routes")

    def __init__(self, routes: Mapping[Signal, Sequence[Route]]) -> None:
        self.routes = routes
        self._calls = 0
        self._over: asyncio.Event | None = None

    def __enter__(self) -> None:
        self._calls += 1

    def __exit__(self, *_: object) -> None:
        self._calls -= 1
        if self._over is not None and not self._calls:
            self._over.set()

    async def over(self) -> None:
        """Return when nobody is on the way through any more."""
        if self._calls:
            self._over = self._over or asyncio.Event()
            await self._over.wait()


class Gate:
    """A consumer in front of any number of routes per signal, which may be replaced at any time, in one step."""

    def __init__(self, routes: Mapping[Signal, Sequence[Route]]) -> None:
        self._passage = Passage(routes)

    def point(self, routes: Mapping[Signal, Sequence[Route]]) -> Passage:
        """Send what comes from now on through other routes. Returns the old ones, with those still on their way."""
        old, self._passage = self._passage, Passage(routes)
        return old

    def accepts(self, signal: Signal) -> bool:
        """Whether a route takes this signal."""
        return bool(self._passage.routes.get(signal))

    async def __call__(self, *batches: Batch) -> None:
        """As `Consumer.__call__`: all batches reach all their ends, or none does."""
        passage = self._passage
        reservations: list[Reservation] = []
        with passage:
            try:
                for sink, batch in self._process(batches, passage.routes):
                    reservations.append(await sink.reserve(batch))
                if len(reservations) > 1:
                    reservations.sort(key=lambda one: not one.fallible)
                while reservations:
                    await reservations.pop(0).commit()
            except BaseException:
                for reservation in reservations:
                    reservation.cancel()
                raise

    def _process(self, batches: Sequence[Batch], routes: Mapping[Signal, Sequence[Route]]) -> list[tuple[Sink, Batch]]:
        deliveries: list[tuple[Sink, Batch]] = []
        for batch in batches:
            behind = routes.get(batch.signal)
            if not behind:
                raise NotServed(f"no pipeline takes {batch.signal.value}; add one to service.pipelines")
            for route in behind:
                own = batch.copy() if route.mutates and len(behind) > 1 else batch
                processed = route.process(own)
                if processed is not None:
                    deliveries += [(sink, processed) for sink in route.sinks]
        return deliveries
