"""Carries graphs out: starts against the flow, stops with it, reloads between, and says what became of every item."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from config import ComponentId
from config.resolve import Resolved
from sidecar.component import Kind
from sidecar.errors import StartError
from sidecar.graph import Graph, GraphBuilder, Host, Node
from sidecar.own_metrics import OwnMetrics
from sidecar.own_traces import tracing_for
from sidecar.pipeline.gate import Passage
from sidecar.plan import Key, plan
from sidecar.registry import Registry
from sidecar.signals import SCHEMAS
from sidecar.telemetry.health import Health

logger = logging.getLogger("sidecar.service")


class Service:
    """The running sidecar. Made from a checked document; `start` once, `stop` any number of times."""

    def __init__(self, resolved: Resolved, registry: Registry, host: Host | None = None) -> None:
        """Make all components.

        Raises:
            ConfigError: components refuse their settings. Nothing has been opened.
        """
        self.host = host or Host()
        self._registry = registry
        self.graph: Graph = GraphBuilder(resolved, registry, self.host).build()
        self.own_metrics = self._make_own_metrics(resolved)
        self._retiring: set[asyncio.Task[None]] = set()
        # Exporters that a reload has removed, and that still send. One that comes back in time succeeds them.
        self._senders: dict[Key, Node] = {}
        self._changing = asyncio.Lock()
        self._is_stopped = False

    @property
    def resolved(self) -> Resolved:
        """The document that runs."""
        return self.graph.resolved

    async def start(self) -> None:
        """Start extensions, exporters, connectors, processors, and receivers last.

        Raises:
            StartError: one of them can't start. What had been started has been stopped again.
        """
        self.graph.take_over({})
        self.host.tracing = tracing_for(self.resolved.service.telemetry)
        try:
            await self.own_metrics.start()
            await self._start(self.graph.against_the_flow(), {})
        except BaseException:
            await self.own_metrics.stop()
            raise
        self.host.board.ready = True
        self.host.board.inspect = self._inspect

    async def reload(self, resolved: Resolved) -> Graph:
        """Run another document. Components whose settings are equal are kept, with all that they hold.

        New components are made and started before anything changes; then the data flows through them from one moment to
        the next, and what is no longer wanted is stopped once it has sent what it holds.

        Returns:
            The graph that runs now; its `plan` says what has changed.

        Raises:
            ConfigError: components refuse their settings.
            StartError: one of them can't start. In both cases everything goes on as before.
        """
        async with self._changing:
            if self._is_stopped:
                raise StartError("the sidecar is stopping")
            before = self.host.metrics.snapshot()
            old, own_metrics = self.graph, None
            predecessors = {**self._senders, **old.nodes}
            try:
                if resolved.service.telemetry != old.resolved.service.telemetry:
                    with self.host.listeners.replacing({"service.telemetry.metrics.readers"}):
                        own_metrics = self._make_own_metrics(resolved)
                with self.host.listeners.replacing({f"{key.kind.value}.{key.id}" for key in self._leaving(resolved)}):
                    graph = GraphBuilder(resolved, self._registry, self.host, old).build()
                if own_metrics is not None:
                    await own_metrics.start()
                made = [node for node in graph.against_the_flow() if node.key in graph.plan.make]
                await self._start(made, predecessors)
            except BaseException:
                self.host.listeners.forget_unopened()
                if own_metrics is not None:
                    await own_metrics.stop()
                self.host.listeners.forget_closed_routes()
                self.host.metrics.restore(before)
                raise
            self.graph = graph
            passages = graph.take_over(predecessors)
            self.host.listeners.hand_over()
            if own_metrics is not None:
                replaced, self.own_metrics = self.own_metrics, own_metrics
                await replaced.stop()
                spans, self.host.tracing = self.host.tracing, tracing_for(resolved.service.telemetry)
                await spans.stop()
            await self._retire(old, graph, passages)
            return graph

    async def stop(self) -> None:
        """Stop with the flow: receivers, processors, connectors, exporters once they have sent all, extensions.

        Exporters have until `service.shutdown_timeout` to send; what is left then is dropped and counted.
        """
        async with self._changing:
            if self._is_stopped:
                return
            self._is_stopped = True
        self.host.board.ready = False
        nodes = list(self.graph.with_the_flow())
        await self._stop((node for node in nodes if node.key.kind is not Kind.EXTENSION), self._deadline())
        if self._retiring:
            await asyncio.wait(self._retiring)
        await self._stop((node for node in nodes if node.key.kind is Kind.EXTENSION), self._deadline())
        self._say_balance()
        await self.host.tracing.stop()
        await self.own_metrics.stop()

    # Steps.

    async def _start(self, nodes: Iterable[Node], old: Mapping[Key, Node]) -> None:
        """Start in that order; when one can't, stop those that had started."""
        started: list[Node] = []
        replaced: list[Health] = []
        try:
            for node in nodes:
                started.append(node)
                replaced += filter(None, [self.host.board.components.get(node.health.component)])
                self.host.board.add(node.health)
                await self._start_one(node, old.get(node.key))
        except BaseException:
            self.host.listeners.forget_unopened()
            await self._stop(reversed(started), self.host.clock.monotonic())
            for health in replaced:
                self.host.board.add(health)
            raise

    async def _start_one(self, node: Node, predecessor: Node | None) -> None:
        before = predecessor.outbox if predecessor else None
        try:
            if node.outbox is not None and not (before and node.outbox.can_adopt(before)):
                await node.outbox.start()
            await node.component.start()
        except StartError:
            raise
        except Exception as error:
            logger.exception("%s can't start", node)
            raise StartError(f"{node}: can't start: {type(error).__name__}: {error}") from error
        node.health.ok()

    async def _stop(self, nodes: Iterable[Node], deadline: float) -> None:
        """Stop in that order. Exporters stop together, since each may need the time until the deadline to send."""
        exporters: list[Node] = []
        for node in nodes:
            if node.key.kind is Kind.EXPORTER:
                exporters.append(node)
                continue
            if exporters:
                await asyncio.gather(*(self._stop_one(one, deadline) for one in exporters))
                exporters = []
            await self._stop_one(node, deadline)
        await asyncio.gather(*(self._stop_one(one, deadline) for one in exporters))

    async def _stop_one(self, node: Node, deadline: float) -> None:
        node.health.report("stopping")
        if node.outbox is not None:
            if node.outbox.held.items:
                logger.info("%s: %d items wait; sending until the deadline", node, node.outbox.held.items)
            await node.outbox.drain(deadline)
        try:
            await node.component.stop()
        except Exception:
            logger.exception("%s did not stop cleanly", node)
        await node.tasks.cancel()
        node.health.report("stopped")

    async def _retire(self, old: Graph, new: Graph, passages: list[Passage]) -> None:
        """Stop what the new graph does not keep: at once what is quick, beside the flow what still has to send.

        Nothing behind a receiver stops before those who are on their way through the old graph have arrived.
        """
        leaving = [node for node in old.with_the_flow() if node.key in new.plan.retire]
        receivers = [node for node in leaving if node.key.kind is Kind.RECEIVER]
        senders = [node for node in leaving if node.key.kind in {Kind.EXPORTER, Kind.EXTENSION}]
        deadline = self._deadline()
        await self._stop(receivers, deadline)
        self.host.listeners.forget_closed_routes()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, deadline - self.host.clock.monotonic())):
                for passage in passages:
                    await passage.over()
        await self._stop((node for node in leaving if node not in receivers + senders), deadline)
        for node in leaving:
            if node not in senders:
                self._forget(node)
        self._senders |= {node.key: node for node in senders if node.outbox is not None}
        task = asyncio.create_task(self._retire_senders(senders, deadline), name="retire")
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    async def _retire_senders(self, nodes: list[Node], deadline: float) -> None:
        await asyncio.gather(*(node.outbox.flush(deadline) for node in nodes if node.outbox is not None))
        async with self._changing:  # a reload under way may be about to bring one of them back
            await self._stop(nodes, self.host.clock.monotonic())
            for node in nodes:
                if self._senders.get(node.key) is node:
                    del self._senders[node.key]
                if node.outbox is not None and node.outbox.balance.taken and not node.outbox.is_succeeded:
                    logger.info("balance: %s: %s", node, node.outbox.balance)
                self._forget(node)

    # Details.

    def _forget(self, node: Node) -> None:
        """Show nothing more of a component that is gone, unless a successor has taken its place."""
        self.host.board.remove(node.health)
        if node.key not in self.graph.nodes:
            node.meter.forget()

    def _leaving(self, resolved: Resolved) -> tuple[Key, ...]:
        return plan(self.graph.resolved, resolved, self.graph.uses, self.graph.holds).retire

    def _deadline(self) -> float:
        return self.host.clock.monotonic() + self.resolved.service.shutdown_timeout

    def _make_own_metrics(self, resolved: Resolved) -> OwnMetrics:
        return OwnMetrics(resolved.service.telemetry, self.host.metrics, self.host.listeners)

    def _inspect(self) -> dict[str, Any]:
        """What there is to say of pipelines and exporters, for health."""
        graph = self.graph
        exporters = {str(node.key.id): _exporter_status(node) for node in graph.of(Kind.EXPORTER)}
        pipelines = {}
        for pipeline in graph.order:
            ends = {str(name): exporters[str(name)]["status"] for name in pipeline.exporters if str(name) in exporters}
            others = [node.health.status for node in graph.processors(pipeline)]
            others += [
                graph.nodes[key].health.status for key in map(_receiver, pipeline.receivers) if key in graph.nodes
            ]
            pipelines[str(pipeline.id)] = {"status": _worst([*ends.values(), *others]), "exporters": ends}
        return {"pipelines": pipelines, "exporters": exporters}

    def _say_balance(self) -> None:
        """Say what became of everything: a line per receiver, processor and exporter that saw anything."""
        for node in self.graph.with_the_flow():
            if node.intake is not None:
                accepted, refused = node.intake.total("accepted"), node.intake.total("refused")
                for signal in accepted.keys() | refused.keys():
                    items = SCHEMAS[signal].items
                    counts = accepted.get(signal, 0), refused.get(signal, 0)
                    logger.info("balance: %s: accepted %d + refused %d %s", node, *counts, items)
            if node.outbox is not None:
                if node.outbox.balance.taken:
                    logger.info("balance: %s: %s", node, node.outbox.balance)
            elif dropped := node.drops.total():
                reasons = ", ".join(f"{reason} {items}" for reason, items in sorted(dropped.items()))
                logger.info("balance: %s: dropped %s", node, reasons)


def _receiver(name: ComponentId) -> Key:
    return Key(Kind.RECEIVER, name)


def _worst(statuses: Iterable[str]) -> str:
    found = set(statuses)
    return next((one for one in ("failed", "degraded", "stopping", "starting") if one in found), "ok")


def _exporter_status(node: Node) -> dict[str, Any]:
    outbox, status = node.outbox, node.health.status
    if outbox is None:
        return {"status": status, "message": node.health.message, "concerns": []}
    concerns = outbox.concerns()
    return {
        "status": "degraded" if concerns and status == "ok" else status,
        "message": node.health.message,
        "concerns": concerns,
        "circuit": outbox.circuit,
        "queue": {"items": outbox.held.items, "bytes": outbox.held.bytes, "fill": round(outbox.fill, 3)},
        "delivered": outbox.balance.delivered,
        "dropped": outbox.balance.dropped,
    }
