"""What the runtime counts around each component, so that components count nothing of the ordinary kind themselves.

Names are the Collector's. Everything is counted per batch, never per record.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from sidecar.admission import Admission
from sidecar.batch import Batch
from sidecar.component import Consumer, Processor
from sidecar.errors import DeliveryError
from sidecar.signals import SCHEMAS, Signal
from sidecar.telemetry.metrics import Counter, Meter
from sidecar.telemetry.tracing import Tracing

DROPPED = "sidecar_dropped_items"


class Drops:
    """Counts what a component loses, once, with its reason.

    Calling it is `Context.dropped`: the component's own word. `count` is the runtime's. `on_reported` hears the former,
    so that an outbox does not take for delivered what its exporter has reported as lost.
    """

    def __init__(self, meter: Meter) -> None:
        self.on_reported: Callable[[Signal, str, int], None] = lambda _signal, _reason, _items: None
        self._meter = meter
        self._counters: dict[tuple[Signal, str], Counter] = {}

    def __call__(self, signal: Signal, reason: str, items: int) -> None:
        """Count what the component reports."""
        self.on_reported(signal, reason, items)
        self.count(signal, reason, items)

    def count(self, signal: Signal, reason: str, items: int) -> None:
        """Count `items` lost for `reason`."""
        counter = self._counters.get((signal, reason))
        if counter is None:
            counter = self._counters[signal, reason] = self._meter.counter(
                DROPPED,
                "Items that were accepted and do not arrive, by reason.",
                otel_signal=signal.value,
                reason=reason,
            )
        counter.add(items)

    def total(self) -> dict[str, int]:
        """Items lost so far, by reason."""
        totals: dict[str, int] = {}
        for (_, reason), counter in self._counters.items():
            totals[reason] = totals.get(reason, 0) + counter.value
        return totals


class Step:
    """A short-form processor with its counts."""

    __slots__ = ("_drops", "_incoming", "_outgoing", "processor")

    def __init__(self, processor: Processor[Any], signal: Signal, meter: Meter, drops: Drops) -> None:
        self.processor = processor
        self._drops = drops
        labels = {"otel_signal": signal.value}
        self._incoming = meter.counter("otelcol_processor_incoming_items", "Items given to the processor.", **labels)
        self._outgoing = meter.counter(
            "otelcol_processor_outgoing_items", "Items that the processor let pass.", **labels
        )

    def run(self, batch: Batch) -> Batch | None:
        """Process a batch, and count what went in and what came out."""
        items = len(batch)
        self._incoming.add(items)
        processed = self.processor.process(batch)
        left = len(processed) if processed is not None else 0
        self._outgoing.add(left)
        if left < items:
            self._drops.count(batch.signal, self.processor.drop_reason, items - left)
        return processed


class ObservedConsumer:
    """A consumer with a receiver's or a connector's counts and spans around it, and an account of who sends what."""

    def __init__(
        self,
        consumer: Consumer,
        meter: Meter,
        admission: Admission,
        name: str,
        tracing: Callable[[], Tracing] = Tracing,
    ) -> None:
        self.consumer = consumer
        self._name = name
        self._tracing = tracing
        self._meter = meter
        self._admission = admission
        self._counters: dict[tuple[str, Signal, str], Counter] = {}

    def accepts(self, signal: Signal) -> bool:
        """As the consumer inside."""
        return self.consumer.accepts(signal)

    async def __call__(self, *batches: Batch) -> None:
        """Hand on, and count as accepted, refused (by what follows) or failed (inside the sidecar)."""
        # Counted before: the batches belong to the consumer from the call on.
        counts = [(batch.signal, batch.context.transport, len(batch)) for batch in batches]
        for batch in batches:
            self._admission.note(batch.context, len(batch))
        outcome = "failed"
        try:
            with self._tracing().span(self._name, "server", batches[0]):
                await self.consumer(*batches)
            outcome = "accepted"
        except DeliveryError:
            outcome = "refused"
            raise
        finally:
            for signal, transport, items in counts:
                self._counter(outcome, signal, transport).add(items)

    def _counter(self, outcome: str, signal: Signal, transport: str) -> Counter:
        key = (outcome, signal, transport)
        counter = self._counters.get(key)
        if counter is None:
            items = SCHEMAS[signal].items
            counter = self._counters[key] = self._meter.counter(
                f"otelcol_receiver_{outcome}_{items}",
                f"{items.replace('_', ' ').capitalize()} that were {outcome}.",
                transport=transport,
            )
        return counter

    def total(self, outcome: str) -> dict[Signal, int]:
        """Items so far with that outcome, by signal."""
        totals: dict[Signal, int] = {}
        for (kind, signal, _), counter in self._counters.items():
            if kind == outcome:
                totals[signal] = totals.get(signal, 0) + counter.value
        return totals


class ExporterCounts:
    """What an exporter sent, failed to send, and could not queue."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._counters: dict[tuple[str, Signal], Counter] = {}
        self.duration = meter.histogram("sidecar_exporter_duration_seconds", "Time of one attempt to send.")

    def sent(self, signal: Signal, items: int) -> None:
        """Delivered."""
        self._count("sent", "Items that were delivered.", signal, items)

    def failed(self, signal: Signal, items: int) -> None:
        """Given up after the last attempt."""
        self._count("send_failed", "Items that could not be delivered and were given up.", signal, items)

    def not_queued(self, signal: Signal, items: int) -> None:
        """Refused because the queue is full; the sender keeps them."""
        self._count("enqueue_failed", "Items that found no room in the queue.", signal, items)

    def timed(self, started: float) -> None:
        """Observe the time since `started` (of `time.perf_counter`)."""
        self.duration.observe(time.perf_counter() - started)

    def _count(self, what: str, description: str, signal: Signal, items: int) -> None:
        key = (what, signal)
        counter = self._counters.get(key)
        if counter is None:
            name = f"otelcol_exporter_{what}_{SCHEMAS[signal].items}"
            counter = self._counters[key] = self._meter.counter(name, description)
        counter.add(items)
