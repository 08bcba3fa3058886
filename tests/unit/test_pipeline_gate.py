"""Fan-out: every end of every pipeline, or none."""

from __future__ import annotations

import pytest
from support.otlp import bodies, logs, traces

from sidecar import Batch, NotServed, Processor, RateLimited, Retryable, Settings, Signal
from sidecar.pipeline.direct import DirectSink
from sidecar.pipeline.gate import Gate, Route
from sidecar.pipeline.observe import Drops, Step
from sidecar.telemetry.metrics import Meter
from sidecar.testing import Bench


class End:
    """A sink with room for `room` batches."""

    def __init__(self, room: int = 100):
        self.room = room
        self.reserved = 0
        self.batches: list[Batch] = []

    async def reserve(self, batch: Batch) -> EndReservation:
        if self.reserved + len(self.batches) >= self.room:
            raise Retryable("full", reason="queue_full")
        self.reserved += 1
        return EndReservation(self, batch)


class EndReservation:
    fallible = False

    def __init__(self, end: End, batch: Batch):
        self.end, self.batch = end, batch

    async def commit(self) -> None:
        self.end.reserved -= 1
        self.end.batches.append(self.batch)

    def cancel(self) -> None:
        self.end.reserved -= 1


class Rename(Processor[Settings]):
    """Writes a text into every body."""

    text = "changed"

    def process(self, batch: Batch) -> Batch | None:
        batch.edit()
        for scope in batch.scopes():
            for record in scope.log_records:
                record.body.string_value = self.text
        return batch


class KeepFirst(Processor[Settings]):
    """Keeps the record whose body ends with 0."""

    drop_reason = "not_first"

    def process(self, batch: Batch) -> Batch | None:
        return batch.keep(lambda record: record.body.string_value.endswith("0"))


class Refuse(Processor[Settings]):
    """Refuses everything."""

    mutates = False

    def process(self, batch: Batch) -> Batch | None:
        raise RateLimited("too many", after=3)


def step(kind: type[Processor], bench: Bench | None = None) -> Step:
    """A processor as the gate runs it."""
    bench = bench or Bench()
    meter = Meter(bench.metrics, processor="p")
    return Step(bench.make(kind), Signal.LOGS, meter, Drops(meter))


def route(name: str, steps: list[Step], sinks: list) -> Route:
    """A pipeline."""
    return Route(name, steps, sinks, mutates=any(step.processor.mutates for step in steps))


def gate(*routes: Route) -> Gate:
    """A gate with those routes for log records."""
    return Gate({Signal.LOGS: routes})


async def test_every_end_gets_the_batch():
    """All exporters of all pipelines of a signal receive it."""
    first, second, third = End(), End(), End()
    await gate(route("a", [], [first, second]), route("b", [], [third]))(logs(2))
    assert [2, 2, 2] == [sum(map(len, end.batches)) for end in (first, second, third)]


async def test_one_full_end_leaves_the_others_untouched():
    """When one exporter has no room, none gets the batch, so the sender's retry makes no duplicates."""
    healthy, full = End(), End(room=0)
    with pytest.raises(Retryable, match="full"):
        await gate(route("a", [], [healthy]), route("b", [], [full]))(logs(1))
    assert (healthy.batches, healthy.reserved) == ([], 0)


async def test_batches_of_two_signals_pass_together_or_not_at_all():
    """Log records and the spans that belong to them are accepted as one."""
    log_end, span_end = End(), End(room=0)
    both = Gate({Signal.LOGS: [route("l", [], [log_end])], Signal.TRACES: [route("t", [], [span_end])]})
    with pytest.raises(Retryable):
        await both(logs(1), traces(1))
    assert log_end.batches == []
    span_end.room = 1
    await both(logs(1), traces(1))
    assert (len(log_end.batches), len(span_end.batches)) == (1, 1)


async def test_an_end_that_may_fail_goes_first():
    """When an exporter without a queue fails, the queued ones have not got the batch yet."""

    async def fail(batch: Batch) -> None:
        raise Retryable("down")

    queued = End()
    with pytest.raises(Retryable, match="down"):
        await gate(route("a", [], [queued, DirectSink(fail)]))(logs(1))
    assert (queued.batches, queued.reserved) == ([], 0)


async def test_what_one_pipeline_changes_the_others_do_not_see():
    """A pipeline that edits works on a copy of its own."""
    plain, changed = End(), End()
    await gate(route("a", [step(Rename)], [changed]), route("b", [], [plain]))(logs(1))
    assert [["changed"], ["hello 0"]] == [bodies(changed.batches[0]), bodies(plain.batches[0])]


async def test_a_refusal_by_a_processor_reaches_the_sender():
    """A processor's error is the sender's answer, and no end gets anything."""
    end = End()
    with pytest.raises(RateLimited) as refused:
        await gate(route("a", [], [end]), route("b", [step(Refuse)], [End()]))(logs(1))
    assert refused.value.after == 3
    assert end.batches == []


async def test_items_that_a_processor_leaves_out_are_counted_with_its_reason():
    """The difference between what went in and what came out is counted once."""
    bench, end = Bench(), End()
    await gate(route("a", [step(KeepFirst, bench)], [end]))(logs(3))
    assert [["hello 0"]] == [bodies(batch) for batch in end.batches]
    assert bench.metrics.value("otelcol_processor_incoming_items", processor="p") == 3
    assert bench.metrics.value("otelcol_processor_outgoing_items", processor="p") == 1
    assert bench.metrics.value("sidecar_dropped_items", reason="not_first") == 2


async def test_a_signal_without_a_pipeline_is_refused_for_good():
    """There is nowhere to go, so a retry would be for nothing."""
    with pytest.raises(NotServed, match="no pipeline takes traces"):
        await gate(route("a", [], [End()]))(traces(1))


async def test_an_untouched_batch_keeps_its_bytes():
    """What only passes through is the received bytes, to the last one."""
    end, batch = End(), logs(2)
    received = batch.encode()
    await gate(route("a", [], [end]))(batch)
    assert end.batches[0].encode() is received
