"""From a checked document to components, made and wired together but not started."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from typing import Any

from config import ComponentId, SettingError
from config.problems import ConfigError, Problem
from config.resolve import Resolved, ResolvedPipeline
from sidecar.admission import Admission
from sidecar.component import Clock, Connector, Context, Exporter, Extension, Kind, Processor, Storage
from sidecar.delivery import DeliverySettings
from sidecar.net import Listeners
from sidecar.pipeline.direct import CountingSink, DirectSink
from sidecar.pipeline.gate import Gate, Passage, Route, Sink
from sidecar.pipeline.observe import Drops, ExporterCounts, ObservedConsumer, Step
from sidecar.pipeline.outbox import Outbox
from sidecar.pipeline.outboxes import Outboxes
from sidecar.plan import Key, Plan, plan
from sidecar.registry import Registry
from sidecar.signals import Signal
from sidecar.telemetry.health import Health, HealthBoard
from sidecar.telemetry.metrics import Meter, Metrics
from sidecar.telemetry.tracing import Tracing


@dataclass
class Host:
    """What all components of the process share."""

    metrics: Metrics = field(default_factory=Metrics)
    board: HealthBoard = field(default_factory=HealthBoard)
    listeners: Listeners = field(default_factory=Listeners)
    clock: Clock = time
    admission: Admission = field(default_factory=Admission)
    tracing: Tracing = field(default_factory=Tracing)


class Tasks:
    """The tasks that components have spawned, supervised until they are cancelled."""

    def __init__(self, logger: logging.Logger, on_fault: Callable[[str], None]) -> None:
        self._logger = logger
        self._on_fault = on_fault
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Start a task. An exception in it is logged and shown in health."""
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._logger.error("%s has ended unexpectedly", task.get_name(), exc_info=error)
            self._on_fault(f"{task.get_name()} has ended: {type(error).__name__}: {error}; restart the sidecar")

    async def cancel(self) -> None:
        """End what still runs."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Extensions(dict[ComponentId, Extension[Any]]):
    """The running extensions, as one component sees them. `asked` are those that it has asked for, and depends on."""

    def __init__(self, extensions: Mapping[ComponentId, Extension[Any]]) -> None:
        super().__init__(extensions)
        self.asked: set[ComponentId] = set()

    def get(self, key: ComponentId, default: Any = None) -> Any:
        """The extension, noting that it was asked for."""
        self.asked.add(key)
        return super().get(key, default)


@dataclass(eq=False)
class Node:
    """One component with what the runtime keeps beside it.

    Attributes:
        component: of the kind that the key says, which the registry has checked.
        sink: the end of a pipeline that an exporter or a connector is.
        intake: what a receiver or a connector emits into, with its counts.
        gate: behind what the component emits into. Pointing it elsewhere is how a reload takes effect.
    """

    key: Key
    component: Any
    meter: Meter
    drops: Drops
    tasks: Tasks
    health: Health
    extensions: Extensions
    sink: Sink | None = None
    intake: ObservedConsumer | None = None
    gate: Gate | None = None

    @property
    def outbox(self) -> Outbox | Outboxes | None:
        """The exporter's outbox, where it has one."""
        return self.sink if isinstance(self.sink, Outbox | Outboxes) else None

    def __str__(self) -> str:
        return str(self.key)


@dataclass
class Graph:
    """Everything that one document asks for, made and wired.

    Attributes:
        resolved: the document.
        plan: what was kept of the graph before, and what was made.
        nodes: all components.
        order: the pipelines in the order of the flow: those that feed a connector before those that start with it.
    """

    resolved: Resolved
    plan: Plan
    order: list[ResolvedPipeline]
    nodes: dict[Key, Node] = field(default_factory=dict)
    _routes: list[tuple[Gate, Mapping[Signal, Sequence[Route]]]] = field(default_factory=list)

    def against_the_flow(self) -> Iterator[Node]:
        """All components in the order of a start: what serves others, then the ends of pipelines, receivers last."""
        yield from self.of(Kind.EXTENSION)
        yield from self.of(Kind.EXPORTER)
        for pipeline in reversed(self.order):
            yield from self.connectors_after(pipeline)
            yield from reversed(self.processors(pipeline))
        yield from self.of(Kind.RECEIVER)

    def with_the_flow(self) -> Iterator[Node]:
        """All components in the order of a stop."""
        yield from reversed(list(self.against_the_flow()))

    def of(self, kind: Kind) -> list[Node]:
        """The components of a kind, in the order of the document."""
        return [node for node in self.nodes.values() if node.key.kind is kind]

    def processors(self, pipeline: ResolvedPipeline) -> list[Node]:
        """The processors of a pipeline, in the order of the flow."""
        return [self.nodes[Key(Kind.PROCESSOR, name, pipeline.id)] for name in pipeline.processors]

    def connectors_after(self, pipeline: ResolvedPipeline) -> list[Node]:
        """The connectors to which this pipeline is the last that brings something."""
        later = self.order[self.order.index(pipeline) + 1 :]
        return [
            node
            for name in pipeline.exporters
            if (node := self.nodes.get(Key(Kind.CONNECTOR, name))) is not None
            and not any(name in one.exporters for one in later)
        ]

    def uses(self, key: Key) -> frozenset[ComponentId]:
        """The extensions that a component has asked for."""
        return frozenset(self.nodes[key].extensions.asked)

    def holds(self, key: Key) -> bool:
        """Whether a processor may hold data: it has the long form."""
        return is_long_form(self.nodes[key].component)

    def take_over(self, old: Mapping[Key, Node]) -> list[Passage]:
        """Let the data flow through this graph from now on. One step: no batch sees a half of it.

        Components that succeed another of the same key, among `old`, take over its state and what it holds.

        Returns:
            The ways that data took until now. Some may still be on them.
        """
        for key in self.plan.make:
            node, before = self.nodes[key], old.get(key)
            if before is not None and type(before.component) is type(node.component):
                node.component.carry(before.component)
            if node.outbox is not None:
                if before is not None and before.outbox is not None and node.outbox.can_adopt(before.outbox):
                    node.outbox.adopt(before.outbox)  # type: ignore[arg-type] # it has said that it can
                _observe_queue(node.meter, node.outbox)
        return [gate.point(routes) for gate, routes in self._routes]

    def point(self, node: Node, routes: Mapping[Signal, Sequence[Route]]) -> Gate:
        """Point what a component emits to routes: at once where it is new, else when this graph takes over."""
        if node.gate is None:
            node.gate = Gate(routes)
        else:
            self._routes.append((node.gate, routes))
        return node.gate


def is_long_form(processor: Processor[Any]) -> bool:
    """Whether it emits by itself, now or later."""
    return type(processor).consume is not Processor.consume


def _observe_queue(meter: Meter, outbox: Outbox | Outboxes) -> None:
    queue = outbox.exporter.settings.sending_queue
    meter.gauge("otelcol_exporter_queue_size", "What the queue holds.", lambda: outbox.held.of(queue.sizer))
    meter.gauge("otelcol_exporter_queue_capacity", "What the queue can hold.", lambda: outbox.capacity)
    meter.gauge("sidecar_exporter_queue_bytes", "Bytes that the queue holds.", lambda: outbox.held.bytes)


class GraphBuilder:
    """Makes a graph. Nothing is opened or started: `sidecar validate` does this too."""

    def __init__(self, resolved: Resolved, registry: Registry, host: Host, old: Graph | None = None) -> None:
        """Plan what is kept of `old`, the graph that runs."""
        self._resolved = resolved
        self._registry = registry
        self._host = host
        # No method: what components are given outlives this, and must not hold it with the graph before.
        self._tracing: Callable[[], Tracing] = lambda: host.tracing
        self._old = old.nodes if old else {}
        changes = plan(old.resolved, resolved, old.uses, old.holds) if old else plan(None, resolved)
        self._graph = Graph(resolved, changes, _in_order(resolved))
        self._problems: list[Problem] = []
        self._extensions: dict[ComponentId, Extension[Any]] = {}

    def build(self) -> Graph:
        """Make and wire everything.

        Raises:
            ConfigError: what components refuse, all of it, each at its place in the document. What runs is untouched.
        """
        graph, changes = self._graph, self._graph.plan
        kept = frozenset(changes.keep)
        for key in sorted((*changes.keep, *changes.make), key=lambda key: key.kind is not Kind.EXTENSION):
            node = self._old[key] if key in kept else self._make(key)
            if node is not None:
                graph.nodes[key] = node
                if key.kind is Kind.EXTENSION:
                    self._extensions[key.id] = node.component
        for pipeline in graph.order:
            self._check_signals(pipeline)
        if self._problems:
            raise ConfigError(self._problems)
        self._wire()
        return graph

    # Making.

    def _make(self, key: Key) -> Node | None:
        """Make one component; None, and a problem, where it refuses its settings."""
        labels = {key.kind.name.lower(): str(key.id)}
        if key.pipeline is not None:
            labels["pipeline"] = str(key.pipeline)
        meter = Meter(self._host.metrics, **labels)
        logger = logging.getLogger(f"sidecar.{key.kind.value}/{key.id}")
        health = Health(str(key))
        drops = Drops(meter)
        tasks = Tasks(logger, health.failed)
        extensions = Extensions(self._extensions)
        context = Context(
            id=key.id,
            logger=logger,
            meter=meter,
            clock=self._host.clock,
            listeners=self._host.listeners,
            health=health,
            board=self._host.board,
            spawner=tasks.spawn,
            extensions=extensions,
            on_dropped=drops,
            admission=self._host.admission,
        )
        settings = self._resolved.components[key.kind.value, key.id].settings
        try:
            component: Any = self._registry.load(key.kind, key.id.type)(settings, context)
            node = Node(key, component, meter, drops, tasks, health, extensions)
            if key.kind is Kind.EXPORTER:
                node.sink = self._sink(node)
            elif key.kind is Kind.CONNECTOR:
                node.sink = DirectSink(component.export)
        except ValueError as error:
            path = error.path if isinstance(error, SettingError) else ()
            self._problems.append(self._resolved.problem_at(key.kind.value, key.id, *path, message=str(error)))
            return None
        return node

    def _check_signals(self, pipeline: ResolvedPipeline) -> None:
        """Find components that can't take the signal of a pipeline that names them."""
        parts = {"receivers": pipeline.receivers, "processors": pipeline.processors, "exporters": pipeline.exporters}
        for part, names in parts.items():
            for index, name in enumerate(names):
                taken = self._signals(part, name)
                if Signal(pipeline.signal) not in taken:
                    able = ", ".join(sorted(signal.value for signal in taken))
                    message = f"{name} has no {pipeline.signal}; it has {able}"
                    path = ("pipelines", str(pipeline.id), part, index)
                    self._problems.append(self._resolved.problem_in_service(*path, message=message))

    def _signals(self, part: str, name: ComponentId) -> frozenset[Signal]:
        if ("connectors", name) in self._resolved.components:
            cls = self._registry.load(Kind.CONNECTOR, name.type)
            return cls.emits if part == "receivers" and issubclass(cls, Connector) else cls.signals
        return self._registry.load(Kind(part), name.type).signals

    # Wiring.

    def _wire(self) -> None:
        graph = self._graph
        routes = {pipeline.id: self._route(pipeline) for pipeline in reversed(graph.order)}
        for node in (*graph.of(Kind.RECEIVER), *graph.of(Kind.CONNECTOR)):
            by_signal: dict[Signal, list[Route]] = {}
            for pipeline in graph.order:
                if node.key.id in pipeline.receivers:
                    by_signal.setdefault(Signal(pipeline.signal), []).append(routes[pipeline.id])
            gate = graph.point(node, by_signal)
            if node.intake is None:
                node.intake = node.component.emit = ObservedConsumer(
                    gate, node.meter, self._host.admission, str(node.key), self._tracing
                )

    def _sink(self, node: Node) -> Sink:
        exporter: Exporter[Any] = node.component
        counts = ExporterCounts(node.meter)
        settings = exporter.settings
        if not isinstance(settings, DeliverySettings):
            return CountingSink(exporter.export, counts)
        if not settings.sending_queue.enabled:
            return CountingSink(exporter.export, counts, settings.timeout)
        storage = None
        if settings.sending_queue.storage is not None:
            try:
                storage = exporter.context.extension(settings.sending_queue.storage, Storage)
            except ValueError as error:
                raise SettingError(str(error), "sending_queue", "storage") from None

        def make(health: Health | None = None) -> Outbox:
            return Outbox(
                exporter,
                health=health,
                storage=storage,
                clock=self._host.clock,
                counts=counts,
                drops=node.drops,
                tracing=self._tracing,
            )

        return Outboxes(make, exporter, node.drops) if exporter.signals_apart else make()

    def _route(self, pipeline: ResolvedPipeline) -> Route:
        """The way through a pipeline. A long-form processor ends one route and starts another behind it."""
        graph, signal = self._graph, Signal(pipeline.signal)
        sinks = [self._end(name) for name in pipeline.exporters]
        steps: list[Step] = []
        processors = graph.processors(pipeline)
        mutates = any(node.component.mutates for node in processors)
        for node in reversed(processors):
            if not is_long_form(node.component):
                steps.insert(0, Step(node.component, signal, node.meter, node.drops))
            else:
                behind = Route(str(pipeline.id), steps, sinks, mutates=mutates)
                node.component.emit = graph.point(node, {signal: [behind]})
                sinks, steps = [DirectSink(node.component.consume)], []
        return Route(str(pipeline.id), steps, sinks, mutates=mutates)

    def _end(self, name: ComponentId) -> Sink:
        node = self._graph.nodes.get(Key(Kind.EXPORTER, name)) or self._graph.nodes[Key(Kind.CONNECTOR, name)]
        assert node.sink is not None  # noqa: S101 (set for every exporter and connector when made)
        return node.sink


def _in_order(resolved: Resolved) -> list[ResolvedPipeline]:
    """The pipelines in the order of the flow, otherwise in that of the document."""
    connectors = {name for kind, name in resolved.components if kind == "connectors"}
    feeds = {
        pipeline: [
            source
            for source in resolved.pipelines
            if source is not pipeline and connectors.intersection(source.exporters, pipeline.receivers)
        ]
        for pipeline in resolved.pipelines
    }
    return list(TopologicalSorter(feeds).static_order())
