"""For the tests of components, a plugin's too: make one as the runtime does, feed it, look at what it emits."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from config import ComponentId, Settings
from config.decode import settings_from_yaml
from sidecar.batch import Batch, total
from sidecar.component import Component, Connector, Context, Extension, Processor, Receiver
from sidecar.errors import DeliveryError
from sidecar.net import Listeners
from sidecar.signals import Signal
from sidecar.telemetry.health import Health, HealthBoard
from sidecar.telemetry.metrics import Meter, Metrics

C = TypeVar("C", bound=Component[Any])


@dataclass
class FakeClock:
    """A clock that moves when told to."""

    now_ns: int = 1_700_000_000_000_000_000

    def time_ns(self) -> int:
        """Unix time in nanoseconds."""
        return self.now_ns

    def monotonic(self) -> float:
        """Seconds; moves with `advance`."""
        return self.now_ns / 1e9

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now_ns += round(seconds * 1e9)


@dataclass
class Sink:
    """A consumer that keeps what it gets. `refuse_with`: what to raise instead, until it is None again."""

    batches: list[Batch] = field(default_factory=list)
    refuse_with: DeliveryError | None = None
    signals: frozenset[Signal] = frozenset(Signal)

    async def __call__(self, *batches: Batch) -> None:
        """Keep the batches, or refuse them all."""
        if self.refuse_with is not None:
            raise self.refuse_with
        self.batches += batches

    def accepts(self, signal: Signal) -> bool:
        """Whether the signal is one of `signals`."""
        return signal in self.signals

    def __len__(self) -> int:
        """The number of items that have arrived."""
        return total(self.batches)

    def of(self, signal: Signal) -> list[Batch]:
        """The batches of one signal."""
        return [batch for batch in self.batches if batch.signal is signal]


@dataclass
class Bench:
    """What surrounds a component under test, to look at afterwards.

    Attributes:
        dropped: items by (signal, reason), as counted with `context.dropped`.
        sink: what the component has emitted.
    """

    clock: FakeClock = field(default_factory=FakeClock)
    metrics: Metrics = field(default_factory=Metrics)
    listeners: Listeners = field(default_factory=Listeners)
    board: HealthBoard = field(default_factory=HealthBoard)
    extensions: Mapping[ComponentId, Extension[Any]] = field(default_factory=dict)
    dropped: Counter[tuple[Signal, str]] = field(default_factory=Counter)
    sink: Sink = field(default_factory=Sink)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def context(self, name: str = "test") -> Context:
        """A context for a component with that id."""
        return Context(
            id=ComponentId.parse(name),
            logger=logging.getLogger(f"sidecar.{name}"),
            meter=Meter(self.metrics, component=name),
            clock=self.clock,
            listeners=self.listeners,
            health=self._health(name),
            board=self.board,
            spawner=self._spawn,
            extensions=self.extensions,
            on_dropped=self._count,
        )

    def make(self, component: type[C], settings: str | Settings = "", name: str = "test") -> C:
        """A component made from YAML, as a user writes it below the component's id, or from settings."""
        if isinstance(settings, str):
            settings = settings_from_yaml(settings, component.settings_type())
        made = component(settings, self.context(name))
        if isinstance(made, Receiver | Processor | Connector):
            made.emit = self.sink
        return made

    def _health(self, name: str) -> Health:
        health = self.board.components.get(name) or Health(name)
        self.board.add(health)
        return health

    async def close(self) -> None:
        """Cancel what the components have spawned."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def _spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self.tasks.append(task)
        return task

    def _count(self, signal: Signal, reason: str, items: int) -> None:
        self.dropped[signal, reason] += items
