"""From a checked document to components, made and wired together but not started."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from typing import Any, TypeAlias

from config import ComponentId, SettingError
from config.problems import ConfigError, Problem
from config.resolve import Resolved, ResolvedPipeline
from sidecar.component import Clock, Connector, Context, Extension, Kind, Processor
from sidecar.delivery import DeliverySettings
from sidecar.net import Listeners
from sidecar.pipeline.direct import CountingSink, DirectSink
from sidecar.pipeline.gate import Gate, Route, Sink
from sidecar.pipeline.observe import Drops, ExporterCounts, ObservedConsumer, Step
from sidecar.pipeline.outbox import Outbox
from sidecar.registry import Registry
from sidecar.signals import Signal
from sidecar.telemetry.health import HealthBoard
from sidecar.telemetry.metrics import Meter, Metrics

Key: TypeAlias = tuple[Kind, ComponentId]


@dataclass
class Host:
    """What all components of the process share."""

    metrics: Metrics = field(default_factory=Metrics)
    board: HealthBoard = field(default_factory=HealthBoard)
    listeners: Listeners = field(default_factory=Listeners)
    clock: Clock = time


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


@dataclass
class Node:
    """One component with what the runtime keeps beside it."""

    kind: Kind
    component: Any  # a component of that kind, which the registry has checked
    meter: Meter
    drops: Drops
    tasks: Tasks

    @property
    def id(self) -> str:
        """The id with its kind, for messages: `exporters/otlp`."""
        return f"{self.kind.value}/{self.component.context.id}"


@dataclass
class Graph:
    """Everything that one document asks for.

    Attributes:
        extensions: in the order in which they start.
        receivers, exporters, connectors: by id.
        processors: by pipeline, in the order of the flow. Each pipeline has its own.
        order: the pipelines in the order of the flow: those that feed a connector before those that start with it.
        outboxes: by exporter; those that send over a network have one.
        intakes: what each receiver and connector emits into.
    """

    extensions: dict[ComponentId, Node] = field(default_factory=dict)
    receivers: dict[ComponentId, Node] = field(default_factory=dict)
    exporters: dict[ComponentId, Node] = field(default_factory=dict)
    connectors: dict[ComponentId, Node] = field(default_factory=dict)
    processors: dict[ComponentId, list[Node]] = field(default_factory=dict)
    order: list[ResolvedPipeline] = field(default_factory=list)
    outboxes: dict[ComponentId, Outbox] = field(default_factory=dict)
    intakes: dict[Key, ObservedConsumer] = field(default_factory=dict)

    def against_the_flow(self) -> Iterator[Node]:
        """All components in the order of a start: what serves others, then the ends of pipelines, receivers last."""
        yield from self.extensions.values()
        yield from self.exporters.values()
        for pipeline in reversed(self.order):
            yield from self.connectors_after(pipeline)
            yield from reversed(self.processors[pipeline.id])
        yield from self.receivers.values()

    def connectors_after(self, pipeline: ResolvedPipeline) -> list[Node]:
        """The connectors to which this pipeline is the last that brings something."""
        later = self.order[self.order.index(pipeline) + 1 :]
        return [
            self.connectors[name]
            for name in pipeline.exporters
            if name in self.connectors and not any(name in one.exporters for one in later)
        ]

    async def drain(self, deadline: float) -> None:
        """Let all outboxes send what they hold until `deadline` (monotonic seconds)."""
        await asyncio.gather(*(outbox.drain(deadline) for outbox in self.outboxes.values()))


class GraphBuilder:
    """Makes a graph. Nothing is opened or started: `sidecar validate` does this too."""

    def __init__(self, resolved: Resolved, registry: Registry, host: Host) -> None:
        self._resolved = resolved
        self._registry = registry
        self._host = host
        self._graph = Graph(order=_in_order(resolved))
        self._problems: list[Problem] = []
        self._extensions: dict[ComponentId, Extension[Any]] = {}
        self._sinks: dict[ComponentId, Sink] = {}

    def build(self) -> Graph:
        """Make and wire everything.

        Raises:
            ConfigError: what components refuse, all of it, each at its place in the document.
        """
        self._make_components()
        if self._problems:
            raise ConfigError(self._problems)
        for name, node in self._graph.exporters.items():
            self._sinks[name] = self._exporter_sink(name, node)
        for name, node in self._graph.connectors.items():
            self._sinks[name] = DirectSink(node.component.export)
        routes = {pipeline.id: self._route(pipeline) for pipeline in reversed(self._graph.order)}
        for name, node in self._graph.receivers.items():
            self._point(node, [pipeline for pipeline in self._graph.order if name in pipeline.receivers], routes)
        for name, node in self._graph.connectors.items():
            self._point(node, [pipeline for pipeline in self._graph.order if name in pipeline.receivers], routes)
        return self._graph

    # Making.

    def _make_components(self) -> None:
        graph = self._graph
        for name in self._resolved.service.extensions:
            if (node := self._make(Kind.EXTENSION, name)) is not None:
                graph.extensions[name] = node
                self._extensions[name] = node.component
        sections = {"receivers": graph.receivers, "exporters": graph.exporters, "connectors": graph.connectors}
        for (kind, name), component in self._resolved.components.items():
            if kind in sections and component.is_used and (node := self._make(Kind(kind), name)) is not None:
                sections[kind][name] = node
        for pipeline in graph.order:
            made = [self._make(Kind.PROCESSOR, name, pipeline) for name in pipeline.processors]
            graph.processors[pipeline.id] = [node for node in made if node is not None]
            self._check_signals(pipeline)

    def _make(self, kind: Kind, name: ComponentId, pipeline: ResolvedPipeline | None = None) -> Node | None:
        """Make one component; None, and a problem, where it refuses its settings."""
        labels = {kind.name.lower(): str(name)}
        key = f"{kind.value}/{name}"
        if pipeline is not None:
            labels["pipeline"] = str(pipeline.id)
            key += f" in {pipeline.id}"
        meter = Meter(self._host.metrics, **labels)
        logger = logging.getLogger(f"sidecar.{kind.value}/{name}")
        health = self._host.board.of(key)
        drops = Drops(meter)
        tasks = Tasks(logger, health.failed)
        context = Context(
            id=name,
            logger=logger,
            meter=meter,
            clock=self._host.clock,
            listeners=self._host.listeners,
            health=health,
            board=self._host.board,
            spawner=tasks.spawn,
            extensions=self._extensions,
            on_dropped=drops,
        )
        settings = self._resolved.components[kind.value, name].settings
        try:
            component = self._registry.load(kind, name.type)(settings, context)
        except ValueError as error:
            path = error.path if isinstance(error, SettingError) else ()
            self._problems.append(self._resolved.problem_at(kind.value, name, *path, message=str(error)))
            return None
        return Node(kind, component, meter, drops, tasks)

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

    def _exporter_sink(self, name: ComponentId, node: Node) -> Sink:
        exporter = node.component
        counts = ExporterCounts(node.meter)
        settings = exporter.settings
        if not isinstance(settings, DeliverySettings):
            return CountingSink(exporter.export, counts)
        if not settings.sending_queue.enabled:
            return CountingSink(exporter.export, counts, settings.timeout)
        outbox = Outbox(
            exporter,
            clock=self._host.clock,
            counts=counts,
            drops=node.drops,
            health=exporter.context.health,
            logger=exporter.context.logger,
        )
        self._graph.outboxes[name] = outbox
        queue = settings.sending_queue
        node.meter.gauge("otelcol_exporter_queue_size", "What the queue holds.", lambda: outbox.held.of(queue.sizer))
        node.meter.gauge("otelcol_exporter_queue_capacity", "What the queue can hold.", lambda: queue.queue_size)
        node.meter.gauge("sidecar_exporter_queue_bytes", "Bytes that the queue holds.", lambda: outbox.held.bytes)
        return outbox

    def _route(self, pipeline: ResolvedPipeline) -> Route:
        """The way through a pipeline. A long-form processor ends one route and starts another behind it."""
        sinks: Sequence[Sink] = [self._sinks[name] for name in pipeline.exporters]
        steps: list[Step] = []
        mutates = any(node.component.mutates for node in self._graph.processors[pipeline.id])
        for node in reversed(self._graph.processors[pipeline.id]):
            processor = node.component
            if type(processor).consume is Processor.consume:
                steps.insert(0, Step(processor, Signal(pipeline.signal), node.meter, node.drops))
            else:
                behind = Route(str(pipeline.id), steps, sinks, mutates=mutates)
                processor.emit = Gate({Signal(pipeline.signal): [behind]})
                sinks, steps = [DirectSink(processor.consume)], []
        return Route(str(pipeline.id), steps, sinks, mutates=mutates)

    def _point(self, node: Node, pipelines: Sequence[ResolvedPipeline], routes: dict[ComponentId, Route]) -> None:
        """Point what a receiver or a connector emits to its pipelines."""
        by_signal: dict[Signal, list[Route]] = {}
        for pipeline in pipelines:
            by_signal.setdefault(Signal(pipeline.signal), []).append(routes[pipeline.id])
        intake = ObservedConsumer(Gate(by_signal), node.meter)
        node.component.emit = self._graph.intakes[node.kind, node.component.context.id] = intake


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
