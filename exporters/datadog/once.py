"""Send what comes more than once only once: a batch that was divided brings a tracer's message with each part."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final

from sidecar import Retryable
from sidecar.component import Clock

_MEMORY: Final = 60.0
_MAX_REMEMBERED: Final = 10_000


def key_of(message: bytes) -> bytes:
    """What equal messages have in common."""
    return hashlib.blake2b(message, digest_size=16).digest()


class Once:
    """Remembers for a minute what was sent, and at most so many of them."""

    def __init__(self, clock: Clock, max_remembered: int = _MAX_REMEMBERED) -> None:
        self._clock = clock
        self._max_remembered = max_remembered
        self._sent: OrderedDict[bytes, float] = OrderedDict()
        self._under_way: dict[bytes, asyncio.Event] = {}

    async def send(self, key: bytes, send: Callable[[float], Awaitable[None]], timeout: float) -> None:  # noqa: ASYNC109 (as of every sender)
        """Send, unless something with that key was sent. Waits for what is being sent: it may fail.

        Args:
            key: what equal messages have in common.
            send: sends within so many seconds.
            timeout: seconds for both.

        Raises:
            Retryable: what is being sent takes too long.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while (under_way := self._under_way.get(key)) is not None:
            try:
                await asyncio.wait_for(under_way.wait(), deadline - loop.time())
            except TimeoutError:
                raise Retryable("an equal message is being sent", after=0, reason="timeout") from None
        self._forget()
        if key in self._sent:
            return
        done = self._under_way[key] = asyncio.Event()
        try:
            await send(deadline - loop.time())
            self._sent[key] = self._clock.monotonic()
        finally:
            del self._under_way[key]
            done.set()

    def _forget(self) -> None:
        oldest = self._clock.monotonic() - _MEMORY
        while self._sent:
            key, sent_at = next(iter(self._sent.items()))
            if len(self._sent) <= self._max_remembered and sent_at >= oldest:
                return
            del self._sent[key]
