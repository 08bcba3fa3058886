"""Who may come in while memory is short."""

from __future__ import annotations

import contextlib

import pytest
from support.otlp import logs, traces

import processors.memory_limiter as module
from processors.memory_limiter import MemoryLimiter
from sidecar import BatchContext, Identity, Retryable
from sidecar.admission import Admission
from sidecar.testing import Bench, FakeClock

LOUD = BatchContext(peer="10.0.0.99")
NINE = [BatchContext(peer=f"10.0.0.{number}") for number in range(9)]


@pytest.fixture
def clock():
    """Moves when told to."""
    return FakeClock()


@pytest.fixture
def admission(clock):
    """One caller at 20 times the share of nine others."""
    admission = Admission(clock.monotonic)
    for context in NINE:
        admission.note(context, 100)
    admission.note(LOUD, 2000)
    return admission


def let_in(admission: Admission, context: BatchContext) -> bool:
    """Whether a caller may come in."""
    try:
        admission.check(context)
    except Retryable:
        return False
    return True


@pytest.mark.parametrize(
    ("pressure", "loud", "nine"),
    [(-1, True, True), (0, False, True), (0.5, False, True), (0.9, False, False), (1, False, False)],
)
def test_the_largest_share_is_refused_first(admission, pressure, loud, nine):
    """From the soft mark on the loud one waits; the nine only shortly before the hard one."""
    admission.watch(lambda: pressure)
    assert admission.is_short is (pressure >= 0)
    assert let_in(admission, LOUD) is loud
    assert {let_in(admission, context) for context in NINE} == {nine}


def test_among_equals_nobody_is_refused_before_half_way(clock):
    """Ten callers with the same share pass until memory is half-way to the hard mark."""
    admission = Admission(clock.monotonic)
    for context in NINE:
        admission.note(context, 100)
    pressure = 0.4
    admission.watch(lambda: pressure)
    assert all(let_in(admission, context) for context in NINE)
    pressure = 0.6
    assert not any(let_in(admission, context) for context in NINE)


def test_who_is_silent_is_forgiven(admission, clock):
    """What was sent counts less with time, while the others go on."""
    admission.watch(lambda: 0.2)
    assert not let_in(admission, LOUD)
    for _ in range(6):
        clock.advance(10)
        for context in NINE:
            admission.note(context, 100)
    assert let_in(admission, LOUD)


def test_callers_are_known_by_identity_before_address(clock):
    """Two programs on one host are two callers where they show who they are."""
    admission = Admission(clock.monotonic)
    loud, quiet = (BatchContext(peer="127.0.0.1", identity=Identity("bearer", name)) for name in ("loud", "quiet"))
    admission.note(loud, 2000)
    admission.note(quiet, 10)
    admission.watch(lambda: 0.1)
    assert (let_in(admission, loud), let_in(admission, quiet)) == (False, True)


def test_any_number_of_addresses_takes_little_memory(clock):
    """Strangers can't fill the account."""
    admission = Admission(clock.monotonic)
    for number in range(5000):
        admission.note(BatchContext(peer=f"stranger {number}"), 1)
    assert len(admission._shares) <= 1025


def test_nobody_asks_any_more_after_the_limiter_has_stopped(admission):
    """What ends the watch may be called twice."""
    unwatch = admission.watch(lambda: 1.0)
    unwatch()
    unwatch()
    assert not admission.is_short
    assert let_in(admission, LOUD)


@pytest.mark.parametrize(
    ("used", "passing"),
    [
        (320, "debug info warn error span"),
        (321, "info warn error span"),
        (361, "warn error"),
        (381, "error"),
        (400, ""),
    ],
)
async def test_what_matters_most_passes_longest(monkeypatch, used, passing):
    """Debug goes first, errors and spans with errors stay until the hard limit."""
    monkeypatch.setattr(module, "resident", lambda: used << 20)
    monkeypatch.setattr(module, "control_group", lambda: None)
    limiter = Bench().make(MemoryLimiter, "limit_mib: 400")
    await limiter.start()
    assert passing.split() == [name for name in ("debug", "info", "warn", "error", "span") if passes(limiter, name)]
    await limiter.stop()


def passes(limiter: MemoryLimiter, name: str) -> bool:
    """Whether a log record of that severity, or a span, passes."""
    batch = traces(1) if name == "span" else logs(1)
    if name != "span":
        numbers = {"debug": 5, "info": 9, "warn": 13, "error": 17}
        batch.edit().resource_logs[0].scope_logs[0].log_records[0].severity_number = numbers[name]
    with contextlib.suppress(Retryable):
        return limiter.process(batch) is batch
    return False
