"""Who may come in while memory is short: asked before a request is read, so that a refusal costs next to nothing."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from sidecar.batch import BatchContext
from sidecar.errors import Retryable

# What a caller has sent counts for half after so many seconds, and is forgotten after ten times as many.
_HALF_LIFE: Final = 10.0
_MEMORY: Final = 10 * _HALF_LIFE
# Strangers may have any number of addresses.
_MAX_CALLERS: Final = 1024
_RETRY_AFTER: Final = 2.0

Pressure = Callable[[], float]
"""How short memory is: below 0 it is not, 0 is the soft mark, and from 1 on nobody may come in."""


class Admission:
    """Refuses callers while memory is short: those first who have sent the most of late.

    At the soft mark a caller may have twice the average share, half-way to the hard mark the average, and at the hard
    mark nothing. Whoever holds on to its fair share is therefore the last to be refused.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._pressures: list[Pressure] = []
        # Items of late and when that was so, by caller; the one that has been silent for longest first.
        self._shares: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def watch(self, pressure: Pressure) -> Callable[[], None]:
        """Ask this before each request. Returns what ends it."""
        self._pressures.append(pressure)
        return lambda: self._pressures.remove(pressure) if pressure in self._pressures else None

    @property
    def is_short(self) -> bool:
        """Whether memory is short. Cheap."""
        return any(pressure() >= 0 for pressure in self._pressures)

    def check(self, context: BatchContext) -> None:
        """Let a caller in.

        Raises:
            Retryable: not now.
        """
        if not self._pressures:
            return
        pressure = max(one() for one in self._pressures)
        if pressure < 0:
            return
        if pressure < 1:
            now = self._now()
            share = self._share(caller_of(context), now)
            everything = sum(self._share(caller, now) for caller in self._shares)
            if share <= everything / max(1, len(self._shares)) * 2 * (1 - pressure):
                return
        raise Retryable("memory is short, and you have sent the most", after=_RETRY_AFTER, reason="memory")

    def note(self, context: BatchContext, items: int) -> None:
        """Count what a caller has sent."""
        now = self._now()
        caller = caller_of(context)
        self._shares[caller] = (self._share(caller, now) + items, now)
        self._shares.move_to_end(caller)
        oldest = next(iter(self._shares))
        if len(self._shares) > _MAX_CALLERS or now - self._shares[oldest][1] > _MEMORY:
            del self._shares[oldest]

    def _share(self, caller: str, now: float) -> float:
        items, then = self._shares.get(caller, (0.0, now))
        return float(items * 0.5 ** ((now - then) / _HALF_LIFE))


def caller_of(context: BatchContext) -> str:
    """Who shares are accounted to: the identity, where there is one, else the address."""
    return context.identity.key if context.identity is not None else context.peer
