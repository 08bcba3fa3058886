"""What comes more than once is sent once."""

import asyncio

import pytest

from exporters.datadog.once import Once, key_of
from sidecar import Retryable
from sidecar.testing import FakeClock


class Sender:
    """Counts what is sent; fails as often as it is told, and waits for its gate."""

    def __init__(self, failures=0):
        self.sent = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self._failures = failures

    async def __call__(self, seconds):
        assert seconds > 0
        await self.gate.wait()
        if self._failures:
            self._failures -= 1
            raise OSError
        self.sent += 1


async def test_what_was_sent_is_not_sent_again_for_a_minute():
    """Equal messages have one key, and others another."""
    clock, sender = FakeClock(), Sender()
    once = Once(clock)
    for message in (b"a", b"a", b"b"):
        await once.send(key_of(message), sender, 5)
    assert sender.sent == 2
    clock.advance(61)
    await once.send(key_of(b"a"), sender, 5)
    assert sender.sent == 3


async def test_what_has_failed_is_sent_by_whoever_comes_next():
    """Who comes meanwhile waits for the outcome; one that is cancelled has sent nothing."""
    sender = Sender(failures=1)
    once = Once(FakeClock())
    sender.gate.clear()
    cancelled, failed, third, fourth = (asyncio.create_task(once.send(b"key", sender, 5)) for _ in range(4))
    await asyncio.sleep(0)
    cancelled.cancel()
    sender.gate.set()
    with pytest.raises(OSError):
        await failed
    await asyncio.gather(third, fourth)
    assert cancelled.cancelled()
    assert sender.sent == 1


async def test_nobody_waits_longer_than_an_attempt_may_take():
    """Who has waited in vain tries again later."""
    sender = Sender()
    once = Once(FakeClock())
    sender.gate.clear()
    first = asyncio.create_task(once.send(b"key", sender, 5))
    await asyncio.sleep(0)
    with pytest.raises(Retryable):
        await once.send(b"key", sender, 0.01)
    sender.gate.set()
    await first
    assert sender.sent == 1


async def test_what_is_remembered_is_bounded():
    """The oldest is forgotten first."""
    sender = Sender()
    once = Once(FakeClock(), max_remembered=2)
    for key in (b"1", b"2", b"3", b"4"):
        await once.send(key, sender, 5)
    await once.send(b"4", sender, 5)
    assert sender.sent == 4
    await once.send(b"1", sender, 5)
    assert sender.sent == 5
