"""When to send and when to wait: pure decisions about retries and about how much may be under way at once."""

from __future__ import annotations

import random
from collections.abc import Callable

from sidecar.delivery import RetrySettings


def backoff(settings: RetrySettings, attempts: int, after: float | None, uniform: Callable[[], float]) -> float:
    """Seconds to wait after failed attempts: exponential with jitter, and never less than the server asked for.

    Args:
        settings: intervals, multiplier and jitter.
        attempts: how often it has failed, at least 1.
        after: the server's own delay, where it gave one.
        uniform: a random number from 0 to 1.
    """
    # The exponent is bounded: past the maximal interval it changes nothing, and a float would overflow.
    interval = min(settings.max_interval, settings.initial_interval * settings.multiplier ** min(attempts - 1, 100))
    jitter = 1 + settings.randomization_factor * (2 * uniform() - 1)
    return max(interval * jitter, after or 0.0)


class Throttle:
    """How many batches may be under way to one exporter at once.

    Grows by one with each success up to the ceiling, and halves with each failure. When failures follow one another
    although only one batch is under way, it opens: nothing is sent for a pause, then one batch probes. A single bad
    batch among good ones never opens it. The largest delay that a server asked for holds for all batches.
    """

    def __init__(
        self, ceiling: int, retry: RetrySettings, now: Callable[[], float], uniform: Callable[[], float] = random.random
    ) -> None:
        self._ceiling = ceiling
        self._retry = retry
        self._now = now
        self._uniform = uniform
        self._limit = ceiling
        self._failures = 0
        self._closed_until = 0.0

    @property
    def limit(self) -> int:
        """How many batches may be under way now, apart from a pause."""
        return self._limit

    @property
    def is_failing(self) -> bool:
        """Whether the last attempt failed."""
        return self._failures > 0

    @property
    def is_probing(self) -> bool:
        """Whether failures follow one another, so that the next batch is a probe."""
        return self._failures > 1 and self._limit == 1

    def pause(self) -> float:
        """Seconds until something may be sent; 0 when something may be sent now."""
        return max(0.0, self._closed_until - self._now())

    def has_room(self, under_way: int) -> bool:
        """Whether one more batch may be sent now."""
        return under_way < self._limit and self._now() >= self._closed_until

    def succeeded(self) -> None:
        """A batch was delivered, or refused for good: the other side is there."""
        self._failures = 0
        self._closed_until = 0.0
        self._limit = min(self._ceiling, self._limit + 1)

    def failed(self, after: float | None) -> None:
        """A batch failed in a way that may pass. `after`: the server's own delay, where it gave one."""
        self._failures += 1
        if self.is_probing:
            pause = backoff(self._retry, self._failures - 1, after, self._uniform)
            self._closed_until = max(self._closed_until, self._now() + pause)
        elif after:
            self._closed_until = max(self._closed_until, self._now() + after)
        self._limit = max(1, self._limit // 2)

    def reset(self) -> None:
        """Try at once, with everything: the process is about to end."""
        self._closed_until = 0.0
        self._limit = self._ceiling
