"""What the kernel saves: requests of 1,000 items with it and by protobuf alone, in the same run.

First the two steps by themselves, of which the allowlist denies three of eight attributes; then whole sidecars, beside
the peers that filter nothing. Microseconds of processor time per item.
"""

from __future__ import annotations

import functools
import itertools
import statistics
import time

from bench._contenders import ALLOWLIST, Case, Sidecar, contenders
from bench._measure import compare
from bench._requests import prebuilt
from bench._sink import Sink
from processors.allowlist import Allowlist
from sidecar import Batch, BatchContext, Signal, kernel
from sidecar.net.salvage import mend, receive
from sidecar.testing import Bench

ITEMS = 1000
ROUNDS = 25
CONTEXT = BatchContext()
CASES = [
    Case(),
    *(Case(signal=signal, processors=ALLOWLIST) for signal in (Signal.LOGS, Signal.TRACES, Signal.METRICS)),
]


class ByProtobuf(Sidecar):
    """Without its kernel."""

    name = "by protobuf"

    def start(self, case: Case, sink: Sink, folder: str):
        """With the switch for it."""
        return super().start(case, sink, folder, env={"SIDECAR_KERNEL": "off"})


async def rows():
    if kernel.module is None:
        raise SystemExit(f"there is no kernel: {kernel.WHY_NOT}")
    for signal in Signal:
        data = prebuilt(signal, ITEMS)
        yield step(
            f"{signal.value}, receive", functools.partial(receive, signal), functools.partial(mend, signal), data
        )
        yield step(f"{signal.value}, allowlist", allowlist(signal), allowlist(signal, by_kernel=False), data)
    async with Sink() as sink:
        for case in CASES:
            results = await compare(case, [*contenders(), ByProtobuf()], sink, rounds=5, seconds=0.3)
            ours, *others = (result for result in results if not result.fault)
            yield {
                "case": str(case),
                "kernel µs": ours.median,
                **{f"{other.name} µs": other.median for other in others},
                **{f"to {other.name}": ours.ratio(other) for other in others},
            }


def step(case: str, by_kernel, by_protobuf, data: bytes):
    pairs = [(cpu(by_kernel, data), cpu(by_protobuf, data)) for _ in range(ROUNDS)]
    return {
        "case": case,
        "kernel µs": statistics.median(ours for ours, _ in pairs),
        "Rotel µs": "",
        "by protobuf µs": statistics.median(theirs for _, theirs in pairs),
        "to Rotel": "",
        "to by protobuf": statistics.median(ours / theirs for ours, theirs in pairs),
    }


def cpu(run, data: bytes) -> float:
    """Microseconds per item of a few runs."""
    started = time.process_time()
    for _ in itertools.repeat(None, 4):
        run(data)
    return (time.process_time() - started) / (4 * ITEMS) * 1e6


def allowlist(signal: Signal, *, by_kernel: bool = True):
    """From request to request, through an allowlist with its defaults."""
    made = Bench().make(Allowlist)
    if not by_kernel:
        made._wire.filter = lambda _signal, _data: None  # noqa: SLF001
    return lambda data: made.process(Batch(signal, data, context=CONTEXT, items=ITEMS)).encode()
