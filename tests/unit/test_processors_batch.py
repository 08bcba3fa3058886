"""The batch processor: when it sends, what it keeps apart, and what becomes of what is refused."""

import asyncio

import pytest

from config.problems import ConfigError
from processors.batch import BatchProcessor
from sidecar import SCHEMAS, Batch, BatchContext, Identity, Permanent, Retryable, Signal
from sidecar.testing import Bench

SOON = 2.0  # a bound for what should happen at once


@pytest.fixture
async def bench():
    """A bench whose tasks end with the test."""
    bench = Bench()
    yield bench
    await bench.close()


class Outlet:
    """A consumer that can be waited for, and made slow or unwilling."""

    def __init__(self):
        self.batches = []
        self.attempts = 0
        self.refuse_with = None
        self.open = asyncio.Event()
        self.open.set()
        self._arrived = asyncio.Condition()

    async def __call__(self, *batches):
        async with self._arrived:
            self.attempts += 1
            self._arrived.notify_all()
        await self.open.wait()
        if self.refuse_with is not None:
            for batch in batches:
                batch.edit().Clear()  # a consumer may do as it likes with what it was given
            raise self.refuse_with
        async with self._arrived:
            self.batches += batches
            self._arrived.notify_all()

    def accepts(self, signal):
        return True

    async def wait(self, condition):
        """Until the condition holds."""
        async with asyncio.timeout(SOON), self._arrived:
            await self._arrived.wait_for(condition)

    @property
    def names(self):
        """The numbers of the records that have arrived, by batch."""
        return [
            [record.observed_time_unix_nano for scope in batch.scopes() for record in scope.log_records]
            for batch in self.batches
        ]


def make(bench, settings):
    """A batch processor with an outlet."""
    processor = bench.make(BatchProcessor, settings)
    processor.emit = Outlet()
    return processor, processor.emit


def logs(*numbers, **context):
    """A logs batch with these records."""
    request = SCHEMAS[Signal.LOGS].request()
    records = request.resource_logs.add().scope_logs.add().log_records
    for number in numbers:
        records.add(observed_time_unix_nano=number)
    return Batch(Signal.LOGS, request.SerializeToString(), context=BatchContext(**context))


async def test_it_sends_when_the_size_is_reached(bench):
    """Without waiting for the timeout, and with all that is held, in order."""
    processor, outlet = make(bench, "{send_batch_size: 3, timeout: 1h}")

    for batch in (logs(1), logs(2), logs(3, 4)):
        await processor.consume(batch)
    await outlet.wait(lambda: outlet.batches)

    assert outlet.names == [[1, 2, 3, 4]]
    assert bench.metrics.value("otelcol_processor_batch_batch_size_trigger_send") == 1


async def test_it_sends_when_the_oldest_has_waited_long_enough(bench):
    """The timeout sends what is there."""
    processor, outlet = make(bench, "{send_batch_size: 1000, timeout: 10ms}")

    await processor.consume(logs(1))
    await processor.consume(logs(2))
    await outlet.wait(lambda: outlet.batches)

    assert outlet.names == [[1, 2]]
    assert bench.metrics.value("otelcol_processor_batch_timeout_trigger_send") == 1


@pytest.mark.parametrize("settings", ["{send_batch_size: 0, timeout: 1h}", "{timeout: 0s}"])
async def test_zero_sends_at_once(bench, settings):
    """Without a size or a timeout nothing is waited for."""
    processor, outlet = make(bench, settings)

    await processor.consume(logs(1))
    await outlet.wait(lambda: outlet.batches)

    assert outlet.names == [[1]]


async def test_what_is_too_large_is_divided(bench):
    """No batch that leaves is above the maximum, however large the one that came."""
    processor, outlet = make(bench, "{send_batch_size: 2, send_batch_max_size: 3, timeout: 1h}")

    await processor.consume(logs(*range(8)))
    await outlet.wait(lambda: len(outlet.batches) == 3)

    assert outlet.names == [[0, 1, 2], [3, 4, 5], [6, 7]]


async def test_a_stop_sends_what_is_held(bench):
    """Nothing waits for a timeout then; a stop works twice, and without a start."""
    processor, outlet = make(bench, "{timeout: 1h}")
    await processor.consume(logs(1))
    await processor.consume(logs(2))

    await processor.stop()
    await processor.stop()

    assert outlet.names == [[1, 2]]


async def test_headers_keep_batches_apart(bench):
    """Batches are joined with their like; of the headers only those that keep them apart leave."""
    processor, outlet = make(bench, "{timeout: 1h, metadata_keys: [X-Tenant]}")

    for number, tenant in enumerate(("a", "b", "a")):
        await processor.consume(logs(number, metadata={"x-tenant": tenant, "cookie": str(number)}))
    await processor.consume(logs(9))
    await processor.stop()

    assert sorted(zip(outlet.names, (dict(one.context.metadata) for one in outlet.batches), strict=True)) == [
        ([0, 2], {"x-tenant": "a"}),
        ([1], {"x-tenant": "b", "cookie": "1"}),
        ([9], {}),
    ]


async def test_signals_are_kept_apart(bench):
    """Logs and traces are never joined."""
    processor, outlet = make(bench, "{timeout: 1h}")
    spans = SCHEMAS[Signal.TRACES].request()
    spans.resource_spans.add().scope_spans.add().spans.add()

    await processor.consume(logs(1))
    await processor.consume(Batch(Signal.TRACES, message=spans, context=BatchContext()))
    await processor.stop()

    assert sorted(batch.signal.value for batch in outlet.batches) == ["logs", "traces"]


async def test_joined_batches_come_from_what_they_have_in_common(bench):
    """Nobody is made the sender of what another has sent."""
    processor, outlet = make(bench, "{timeout: 1h}")
    one, two = Identity("api_key", "one"), Identity("api_key", "two")

    await processor.consume(logs(1, identity=one, peer="10.0.0.1", transport="http", received_at=20))
    await processor.consume(logs(2, identity=two, peer="10.0.0.1", transport="http", received_at=10))
    await processor.stop()

    (batch,) = outlet.batches
    assert batch.context == BatchContext(peer="10.0.0.1", transport="http", received_at=10)


async def test_only_so_many_combinations_are_held(bench):
    """Headers are senders' to choose: above the limit new combinations are refused, until others have left."""
    processor, outlet = make(
        bench, "{timeout: 1h, send_batch_size: 2, metadata_keys: [t], metadata_cardinality_limit: 2}"
    )
    for tenant in ("a", "b", "a"):
        await processor.consume(logs(1, metadata={"t": tenant}))

    await outlet.wait(lambda: outlet.batches)
    await processor.consume(logs(2, metadata={"t": "c"}))
    with pytest.raises(Retryable, match="metadata_cardinality_limit") as refusal:
        await processor.consume(logs(3, metadata={"t": "d"}))
    assert refusal.value.reason == "metadata_cardinality"


async def test_a_refusal_keeps_what_is_held_and_reaches_the_senders(bench):
    """What was accepted is offered again until it passes, whole; meanwhile only as much again is taken."""
    processor, outlet = make(bench, "{send_batch_size: 2, timeout: 1h}")
    outlet.refuse_with = Retryable("the queue is full", after=0.02, reason="queue_full")

    await processor.consume(logs(1, 2))
    await outlet.wait(lambda: outlet.attempts >= 2)
    await processor.consume(logs(3))
    await processor.consume(logs(4))
    with pytest.raises(Retryable, match="the queue is full") as refusal:
        await processor.consume(logs(5))
    outlet.refuse_with = None
    await outlet.wait(lambda: len(outlet.batches) == 2)

    assert (refusal.value.reason, refusal.value.after) == ("queue_full", 0.02)
    assert outlet.names == [[1, 2], [3, 4]]
    await processor.consume(logs(6))
    await processor.stop()
    assert outlet.names[-1] == [6]
    assert bench.dropped == {}


async def test_only_what_remains_is_offered_again(bench):
    """Where a part has been delivered, that part isn't sent twice."""
    processor, outlet = make(bench, "{send_batch_size: 2, timeout: 1h}")
    outlet.refuse_with = Retryable("half of it", after=0.01, remaining=logs(2))

    await processor.consume(logs(1, 2))
    await outlet.wait(lambda: outlet.attempts)
    outlet.refuse_with = None
    await outlet.wait(lambda: outlet.batches)

    assert outlet.names == [[2]]


async def test_a_slow_consumer_slows_its_senders(bench):
    """Senders wait while as much as a batch is held behind one that is on its way; none of it is lost."""
    processor, outlet = make(bench, "{send_batch_size: 2, timeout: 1h}")
    outlet.open.clear()
    await processor.consume(logs(1, 2))
    await outlet.wait(lambda: outlet.attempts)
    await processor.consume(logs(3, 4))

    waiting = asyncio.create_task(processor.consume(logs(5, 6)))
    await asyncio.sleep(0)
    assert not waiting.done()
    outlet.open.set()
    async with asyncio.timeout(SOON):
        await waiting
    await outlet.wait(lambda: len(outlet.batches) == 3)

    assert outlet.names == [[1, 2], [3, 4], [5, 6]]


async def test_what_will_never_pass_is_dropped_and_counted(bench):
    """A permanent refusal costs that batch, and none after it."""
    processor, outlet = make(bench, "{send_batch_size: 2, timeout: 1h}")
    outlet.refuse_with = Permanent("too new", reason="malformed")

    await processor.consume(logs(1, 2))
    await outlet.wait(lambda: outlet.attempts)
    outlet.refuse_with = None
    await processor.consume(logs(3, 4))
    await outlet.wait(lambda: outlet.batches)

    assert outlet.names == [[3, 4]]
    assert bench.dropped == {(Signal.LOGS, "malformed"): 2}


@pytest.mark.parametrize("waits", [True, False], ids=["between two offers", "not offered before"])
async def test_a_stop_does_not_wait_for_ever(bench, waits):
    """What is refused at a stop too is offered a last time, dropped and counted."""
    processor, outlet = make(bench, "{send_batch_size: 2, timeout: 1h}")
    outlet.refuse_with = Retryable("full", after=3600, reason="queue_full")
    await processor.consume(logs(1, 2) if waits else logs(1))
    if waits:
        await outlet.wait(lambda: outlet.attempts == 1)

    async with asyncio.timeout(SOON):
        await processor.stop()

    assert outlet.attempts == (2 if waits else 1)
    assert bench.dropped == {(Signal.LOGS, "queue_full"): 2 if waits else 1}


async def test_undecodable_bytes_are_refused_alone(bench):
    """They don't get among what is held."""
    processor, outlet = make(bench, "{timeout: 1h}")
    await processor.consume(logs(1))

    with pytest.raises(Permanent):
        await processor.consume(Batch(Signal.LOGS, b"\xff", context=BatchContext()))
    await processor.stop()

    assert outlet.names == [[1]]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ("{send_batch_size: 10, send_batch_max_size: 9}", r"send_batch_max_size.*below send_batch_size 10"),
        ("{send_batch_size: -1}", r"send_batch_size.*negative"),
        ("{metadata_keys: [A, a]}", r"metadata_keys.*twice"),
    ],
)
def test_wrong_settings_are_problems(settings, problem):
    """Each says what is wrong, at its place."""
    with pytest.raises(ConfigError, match=problem):
        Bench().make(BatchProcessor, settings)
