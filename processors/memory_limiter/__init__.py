"""Refuses data while memory is short, so that the process is not killed with everything that it holds."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from processors.memory_limiter.measure import ControlGroup, control_group, physical, resident
from sidecar import (
    Batch,
    Context,
    Duration,
    Permanent,
    Processor,
    Retryable,
    SettingError,
    Settings,
    StartError,
)
from sidecar.severity import ERROR, INFO, WARN, severity

_MIB: Final = 1 << 20
# By default a fifth of the limit is kept for what comes in between two measurements.
_SPIKE_SHARE: Final = 5
_MIN_AFTER: Final = 1.0


class MemoryLimiterSettings(Settings):
    """How much memory may be in use.

    Attributes:
        check_interval: how often the memory is measured, while data come in.
        limit_mib: the hard limit. It comes before `limit_percentage`.
        limit_percentage: the hard limit, as a share of what there is: of the control group's limit, else the machine's.
        spike_limit_mib, spike_limit_percentage: how far below the hard limit data are refused; by default a fifth of
            the hard limit.
        min_gc_interval_when_soft_limited, min_gc_interval_when_hard_limited: how often at most memory is given back to
            the system while it is short.
    """

    check_interval: Duration = Duration("1s")
    limit_mib: int = 0
    limit_percentage: int = 0
    spike_limit_mib: int = 0
    spike_limit_percentage: int = 0
    min_gc_interval_when_soft_limited: Duration = Duration("10s")
    min_gc_interval_when_hard_limited: Duration = Duration("0s")

    def __post_init__(self) -> None:
        if self.check_interval <= 0:
            raise SettingError("memory would never be measured; write for example 1s", "check_interval")
        for name in ("limit_mib", "spike_limit_mib"):
            if getattr(self, name) < 0:
                raise SettingError(f"{getattr(self, name)} is negative; write a number of MiB", name)
        for name in ("limit_percentage", "spike_limit_percentage"):
            if not 0 <= getattr(self, name) <= 100:
                raise SettingError(f"{getattr(self, name)} is no percentage; write 1 to 100", name)
        if not self.limit_mib and not self.limit_percentage:
            raise SettingError("no limit is set; write limit_mib or limit_percentage, for example 400", "limit_mib")
        for limit, spike in (("limit_mib", "spike_limit_mib"), ("limit_percentage", "spike_limit_percentage")):
            if 0 < getattr(self, limit) <= getattr(self, spike):
                raise SettingError(f"is not below {limit}, so that everything would be refused", spike)


class MemoryLimiter(Processor[MemoryLimiterSettings]):
    """Refuses data with a retryable error while memory is above the soft limit: all of them from the hard limit on.

    Between the two, those go first that matter least: what is below INFO at the soft limit, INFO half-way, warnings
    after three quarters, errors at the hard limit. Receivers ask before they read a request, and those callers are
    refused there who have sent the most.

    Two things are measured: the resident memory of this process, against the limits of the settings; and where a
    control group has a limit, all that is in use in it, since at its end this process ends too. Memory is measured when
    data come in, at most once per `check_interval`.
    """

    mutates = False

    def __init__(self, settings: MemoryLimiterSettings, context: Context) -> None:
        super().__init__(settings, context)
        self._limits: tuple[Limit, ...] = ()
        self._excess = ""
        self._pressure = -1.0
        self._next_check = float("-inf")
        self._last_release = float("-inf")
        self._unwatch: Callable[[], None] = lambda: None

    async def start(self) -> None:
        """Find out how much there is.

        Raises:
            StartError: this system does not tell.
        """
        try:
            self._limits = tuple(_limits(self.settings, control_group()))
            for limit in self._limits:
                limit.measure()
        except (OSError, ValueError, AttributeError) as error:
            raise StartError(
                f"processors.{self.context.id}: memory can't be measured on this system ({error}); remove it"
            ) from error
        for limit in self._limits:
            self.context.logger.debug("refusing data above %s", limit)
        self._unwatch()
        self._unwatch = self.context.admission.watch(self.pressure)

    async def stop(self) -> None:
        """Let everybody in."""
        self._unwatch()

    def process(self, batch: Batch) -> Batch:
        """The batch itself.

        Raises:
            Retryable: memory is short.
        """
        pressure = self.pressure()
        if pressure >= 0 and pressure >= _patience(batch):
            after = max(float(self.settings.check_interval), _MIN_AFTER)
            raise Retryable(f"memory is short: {self._excess}", after=after, reason="memory")
        return batch

    def pressure(self) -> float:
        """Where memory is between the soft limit (0) and the hard one (1); below 0 where there is enough."""
        now = self.context.clock.monotonic()
        if now >= self._next_check:
            self._next_check = now + self.settings.check_interval
            self._check(now)
        return self._pressure

    def _check(self, now: float) -> None:
        over = self._over()
        if over is not None:
            limit, used = over
            hard = used > limit.hard
            settings = self.settings
            interval = (
                settings.min_gc_interval_when_hard_limited if hard else settings.min_gc_interval_when_soft_limited
            )
            if now - self._last_release >= interval:
                self._last_release = now
                _give_back()
                over = self._over()
        self._pressure = over[0].pressure(over[1]) if over is not None else -1.0
        before, self._excess = self._excess, over[0].exceeded_by(over[1]) if over is not None else ""
        if self._excess:
            self.context.health.degraded(f"data are refused: {self._excess}; give it more memory, or send less")
            if not before:
                self.context.logger.warning("data are refused: %s", self._excess)
        else:
            self.context.health.ok()
            if before:
                self.context.logger.warning("data are accepted again")

    def _over(self) -> tuple[Limit, int] | None:
        """The limit that is exceeded, and by what; the hard one first."""
        over = []
        for limit in self._limits:
            # A control group may go while the process is moved to another; the other limits hold.
            with contextlib.suppress(OSError, ValueError):
                used = limit.measure()
                if used > limit.soft:
                    over.append((limit, used))
        return max(over, key=lambda one: one[1] > one[0].hard, default=None)


@dataclass(frozen=True, slots=True)
class Limit:
    """One kind of memory: data are refused above `soft`, and memory is given back at once above `hard`."""

    what: str
    measure: Callable[[], int]
    hard: int
    soft: int

    def __str__(self) -> str:
        return (
            f"{self.soft // _MIB} MiB of {self.what}, the limit of {self.hard // _MIB} MiB less what may come at once"
        )

    def pressure(self, used: int) -> float:
        """Where that is between the two limits: 0 just above the soft one, 1 at the hard one."""
        return (used - self.soft) / max(1, self.hard - self.soft)

    def exceeded_by(self, used: int) -> str:
        """What is wrong, in words."""
        return f"{used // _MIB} MiB of {self.what} are in use, above {self.soft // _MIB} MiB"


def _patience(batch: Batch) -> float:
    """Up to which pressure a batch passes: errors longest, what is below INFO not at all."""
    try:
        urgency = severity(batch)
    except Permanent:
        return 0.0
    if urgency < INFO:
        return 0.0
    return 1.0 if urgency >= ERROR else 0.75 if urgency >= WARN else 0.5


def _limits(settings: MemoryLimiterSettings, group: ControlGroup | None) -> Iterator[Limit]:
    total = min(group.allowed(), physical()) if group else physical()
    if settings.limit_mib:
        hard, spike = settings.limit_mib * _MIB, settings.spike_limit_mib * _MIB
    else:
        hard, spike = total * settings.limit_percentage // 100, total * settings.spike_limit_percentage // 100
    spike = spike or hard // _SPIKE_SHARE
    yield Limit("resident memory", resident, hard, hard - spike)
    if group:
        # A limit in MiB is this process's own; what the others in the group may take is all the rest.
        end = total if settings.limit_mib else hard
        yield Limit("memory of the control group", group.used, end, end - min(spike, end // _SPIKE_SHARE))


def _give_back() -> None:
    """Let go of garbage, and give free memory to the system: glibc keeps what was freed, and it stays resident."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
