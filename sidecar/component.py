"""The contracts: what a component is, what it is given, and what may be asked of it.

Everything here holds for built-in components and for plugins alike: both are found by entry point, made from checked
settings and a `Context`, started, fed, and stopped.
"""

from __future__ import annotations

import asyncio
import logging
import types
import typing
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, Self, TypeVar

from config import ComponentId, Settings
from sidecar.admission import Admission
from sidecar.batch import Batch, Identity
from sidecar.net import Listeners
from sidecar.signals import Signal
from sidecar.telemetry.health import Health, HealthBoard
from sidecar.telemetry.metrics import Meter

if TYPE_CHECKING:
    from sidecar.storage import StoredQueue

S = TypeVar("S", bound=Settings)
E = TypeVar("E", bound="Extension[Any]")

ALL_SIGNALS: frozenset[Signal] = frozenset(Signal)


class Kind(Enum):
    """The five kinds of component. The value is the section of the document and the end of the entry-point group."""

    RECEIVER = "receivers"
    PROCESSOR = "processors"
    EXPORTER = "exporters"
    CONNECTOR = "connectors"
    EXTENSION = "extensions"


class Consumer(Protocol):
    """Where a receiver, a processor or a connector sends its batches."""

    async def __call__(self, *batches: Batch) -> None:
        """Hand batches on. All of them are accepted, or none is.

        Returning means accepted: into memory, or onto disk where the exporter's queue has a storage. The batches belong
        to the consumer from the call on, also when it raises.

        Raises:
            Retryable: may pass later (queue full, memory short, over the rate): the sender keeps them and waits.
            Permanent: will never pass.
        """

    def accepts(self, signal: Signal) -> bool:
        """Whether a pipeline takes this signal. May change while running, when the document is reloaded."""


class Clock(Protocol):
    """Time. A parameter, so that tests need not wait."""

    def time_ns(self) -> int:
        """Unix time in nanoseconds."""

    def monotonic(self) -> float:
        """Seconds that never go back."""


@dataclass(frozen=True)
class Context:
    """What the runtime gives to a component. Nothing else of the runtime is to be used.

    Attributes:
        id: the component's id in the document (`type` or `type/name`).
        logger: writes with the component's name.
        meter: makes instruments that carry the component's name. The ordinary counts (in, out, dropped, failed, time)
            are the runtime's: components need not keep them.
        clock: the time.
        listeners: HTTP and gRPC servers, shared by everything that names the same endpoint.
        health: the component's word on itself.
        board: the health of the whole, for extensions that show it.
        admission: who may come in while memory is short. Receivers ask before they read a request.
    """

    id: ComponentId
    logger: logging.Logger
    meter: Meter
    clock: Clock
    listeners: Listeners
    health: Health
    board: HealthBoard
    spawner: Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]
    extensions: Mapping[ComponentId, Extension[Any]]
    on_dropped: Callable[[Signal, str, int], None]
    admission: Admission = field(default_factory=Admission)

    def spawn(self, coroutine: Coroutine[Any, Any, None], name: str = "task") -> asyncio.Task[None]:
        """Run a coroutine beside the component, from `start` on; it is cancelled after the component has stopped.

        It is supervised: an exception is logged and shown in health.
        """
        return self.spawner(coroutine, name)

    def dropped(self, signal: Signal, reason: str, items: int) -> None:
        """Count items that the component had accepted and that will not arrive.

        Args:
            signal: of the items.
            reason: one word from a small closed set; it becomes a label.
            items: how many.
        """
        if items:
            self.on_dropped(signal, reason, items)

    def extension(self, name: str, kind: type[E]) -> E:
        """The extension with that id.

        Raises:
            ValueError: no such extension is listed in `service.extensions`, or it is of another kind.
        """
        found = self.extensions.get(ComponentId.parse(name))
        if found is None:
            known = ", ".join(sorted(map(str, self.extensions))) or "none"
            raise ValueError(f"no extension {name!r} is listed in service.extensions; listed: {known}")
        if not isinstance(found, kind):
            wanted = kind.__name__.lower()
            raise ValueError(f"extension {name!r} is not an {wanted}")
        return found


class Component(Generic[S]):
    """The base of all five kinds. `S` is the settings class, declared beside the component.

    The document's settings arrive checked. `__init__` does no I/O: it may run in `sidecar validate`. `start` returns
    when the component is ready. `stop` sends what is held and lets go of everything; it works without `start`, and
    twice.
    """

    signals: ClassVar[frozenset[Signal]] = ALL_SIGNALS
    # Type names under which the component is still found, with a warning that names the right one.
    deprecated_types: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, settings: S, context: Context) -> None:
        self.settings = settings
        self.context = context

    async def start(self) -> None:
        """Become ready: open files, sockets, listeners."""

    async def stop(self) -> None:
        """Send what is held and let go of everything."""

    def carry(self, old: Self) -> None:
        """Take over the state of the component that this one succeeds when the document is reloaded.

        Both have been started. Requests on routes that both serve have reached `old` until now, and reach this one from
        now on. `old` finishes what is under way, and is stopped afterwards. Must not wait.
        """

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.context.id}>"

    @classmethod
    def settings_type(cls) -> type[Settings]:
        """The settings class: the argument of `Receiver[…]`, `Processor[…]` and so on in the class statement."""
        for base in cls.__mro__:
            for generic in types.get_original_bases(base) if hasattr(types, "get_original_bases") else _bases(base):
                for argument in typing.get_args(generic):
                    if isinstance(argument, type) and issubclass(argument, Settings):
                        return argument
        raise TypeError(f"{cls.__name__} names no settings class; write for example Processor[MySettings]")


def _bases(cls: type) -> tuple[Any, ...]:
    bases: tuple[Any, ...] = cls.__dict__.get("__orig_bases__", ())
    return bases


class Receiver(Component[S]):
    """Brings batches in. The runtime sets `emit` before `start`, and may point it elsewhere while running."""

    emit: Consumer


class Processor(Component[S]):
    """Looks at batches, changes them, drops them or refuses them. It has one of two forms.

    - `process`, the short form: pure and immediate. The runtime calls it once per batch.
    - `consume`, the long form: emits any number of batches, now or later. What it has accepted, it owns.

    A processor that overrides `consume` is run in the long form.
    """

    mutates: ClassVar[bool] = True
    # The reason under which items that `process` leaves out are counted.
    drop_reason: ClassVar[str] = "filtered"
    emit: Consumer

    def process(self, batch: Batch) -> Batch | None:
        """Return the batch to hand on; None drops it, which is not an error.

        Raises:
            Retryable, Permanent: the batch is refused, and its sender told.
        """
        return batch

    async def consume(self, batch: Batch) -> None:
        """Accept a batch, and emit whatever follows from it, now or later.

        Raises:
            Retryable, Permanent: the batch is refused, and its sender told.
        """
        processed = self.process(batch)
        if processed is not None:
            await self.emit(processed)


class Exporter(Component[S]):
    """Sends batches out. It must not change them.

    Queueing, joining and retrying are the runtime's, around every exporter whose settings derive from
    `DeliverySettings`: such an exporter is called by up to `num_consumers` tasks at a time, and with batches that join
    several requests of one signal. One without those settings is called by each sender directly, and should be quick.

    `signals_apart`: whether each signal goes to a place of its own, which may be away while the others are not. Each
    then has a queue with the limits of the settings, and is called by up to `num_consumers` tasks.
    """

    signals_apart: ClassVar[bool] = False

    async def export(self, batch: Batch) -> None:
        """Deliver a batch. Returning means delivered; count with `context.dropped` what the other side rejected.

        Raises:
            Retryable: send it again, after `after` seconds where known.
            Permanent: drop it.
        """
        raise NotImplementedError


class Connector(Component[S]):
    """The end of one pipeline and the start of another. `signals` is what it takes, `emits` what it makes."""

    emits: ClassVar[frozenset[Signal]] = ALL_SIGNALS
    emit: Consumer

    async def export(self, batch: Batch) -> None:
        """Take a batch, and emit what follows from it, now or later. As `Exporter.export`."""
        raise NotImplementedError


class Extension(Component[S]):
    """Serves other components or the operator: health, authentication, storage. Starts first and stops last."""


class Storage(Extension[S]):
    """An extension that keeps queues on disk. Exporters name it in `sending_queue.storage`."""

    @property
    def max_bytes(self) -> int:
        """What all queues together may take."""
        raise NotImplementedError

    @property
    def max_age(self) -> float:
        """Seconds after which a request that still waits is given up."""
        raise NotImplementedError

    def room(self) -> int:
        """How many bytes more all queues together may take."""
        raise NotImplementedError

    async def open(self, owner: str) -> StoredQueue:
        """The queue of an owner (`exporters/otlp`), with all that was left in it.

        Raises:
            StartError: it can't be opened.
        """
        raise NotImplementedError

    async def close(self, queue: StoredQueue) -> None:
        """Let go of a queue. What is in it stays."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a caller shows of itself.

    Attributes:
        headers: the request's headers or metadata, names in lower case.
        peer: the caller's address.
        certificate_name: the verified name of the client's TLS certificate, or "".
    """

    headers: Mapping[str, str]
    peer: str = ""
    certificate_name: str = ""


class Authenticator(Extension[S]):
    """An extension that knows callers. Receivers name it in `auth.authenticator`."""

    def authenticate(self, credentials: Credentials) -> Identity | None:
        """The caller; None when the credentials are missing or unknown. Compares in constant time and logs nothing."""
        raise NotImplementedError
