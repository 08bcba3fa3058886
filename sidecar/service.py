"""Carries a graph out: starts it against the flow, stops it with the flow, and says what became of every item."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from config import Duration
from config.resolve import Resolved
from sidecar.component import Kind
from sidecar.errors import StartError
from sidecar.graph import Graph, GraphBuilder, Host, Node
from sidecar.own_metrics import OwnMetrics
from sidecar.registry import Registry
from sidecar.signals import SCHEMAS

logger = logging.getLogger("sidecar.service")


class Service:
    """The running sidecar. Made from a checked document; `start` once, `stop` any number of times."""

    def __init__(self, resolved: Resolved, registry: Registry, host: Host | None = None) -> None:
        """Make all components.

        Raises:
            ConfigError: components refuse their settings. Nothing has been opened.
        """
        self.host = host or Host()
        self.resolved = resolved
        self.graph: Graph = GraphBuilder(resolved, registry, self.host).build()
        self.own_metrics = OwnMetrics(resolved.service.telemetry, self.host.metrics, self.host.listeners)
        self._started: list[Node] = []
        self._is_stopped = False

    async def start(self) -> None:
        """Start extensions, exporters, connectors, processors, and receivers last.

        Raises:
            StartError: one of them can't start. What had been started has been stopped again.
        """
        try:
            await self.own_metrics.start()
            for node in self.graph.against_the_flow():
                self._started.append(node)
                await self._start(node)
        except BaseException:
            await self.stop(Duration(0))
            raise
        self.host.board.ready = True

    async def _start(self, node: Node) -> None:
        try:
            await node.component.start()
        except StartError:
            raise
        except Exception as error:
            logger.exception("%s can't start", node.id)
            raise StartError(f"{node.id}: can't start: {type(error).__name__}: {error}") from error
        node.component.context.health.ok()

    async def stop(self, within: Duration | None = None) -> None:
        """Stop with the flow: receivers, processors, connectors, exporters once they have sent all, extensions.

        Args:
            within: how long exporters may take to send; `service.shutdown_timeout` by default. What is left then is
                dropped and counted.
        """
        if self._is_stopped:
            return
        self._is_stopped = True
        started, self._started = self._started, []
        self.host.board.ready = False
        graph, clock = self.graph, self.host.clock
        deadline = clock.monotonic() + (self.resolved.service.shutdown_timeout if within is None else within)
        await self._stop_all(graph.receivers.values(), started)
        for pipeline in graph.order:
            await self._stop_all(graph.processors[pipeline.id], started)
            await self._stop_all(graph.connectors_after(pipeline), started)
        for name, outbox in graph.outboxes.items():
            if outbox.held.items:
                logger.info("exporters/%s: %d items wait; sending until the deadline", name, outbox.held.items)
        await graph.drain(deadline)
        await self._stop_all(graph.exporters.values(), started)
        self._say_balance()
        await self._stop_all(reversed(graph.extensions.values()), started)
        await self.own_metrics.stop()

    async def _stop_all(self, nodes: Iterable[Node], started: list[Node]) -> None:
        for node in nodes:
            if node not in started:
                continue
            started.remove(node)
            node.component.context.health.report("stopping")
            try:
                await node.component.stop()
            except Exception:
                logger.exception("%s did not stop cleanly", node.id)
            await node.tasks.cancel()
            node.component.context.health.report("stopped")

    def _say_balance(self) -> None:
        """Say what became of everything, once per receiver, processor and exporter that saw anything."""
        for (kind, name), intake in self.graph.intakes.items():
            accepted, refused = intake.total("accepted"), intake.total("refused")
            for signal in accepted.keys() | refused.keys():
                logger.info(
                    "balance: %s/%s: accepted %d + refused %d %s",
                    kind.value, name, accepted.get(signal, 0), refused.get(signal, 0), SCHEMAS[signal].items,
                )  # fmt: skip
        for name, outbox in self.graph.outboxes.items():
            if outbox.balance.taken:
                logger.info("balance: exporters/%s: %s", name, outbox.balance)
        for node in self.graph.against_the_flow():
            is_outbox = node.kind is Kind.EXPORTER and node.component.context.id in self.graph.outboxes
            if not is_outbox and (dropped := node.drops.total()):
                reasons = ", ".join(f"{reason} {items}" for reason, items in sorted(dropped.items()))
                logger.info("balance: %s: dropped %s", node.id, reasons)
