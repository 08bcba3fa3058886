"""A guard of under a minute: processor time per item as ratios to floors of the same run, beside recorded ratios.

The floor of what passes through is a bare `grpc.aio` server that gets the same requests; the floor of what is looked
into is decoding and encoding them once. Fails when a ratio is more than 25 % above `baseline.json`, which `--record`
writes.
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path

from bench._contenders import ALL, ALLOWLIST, Case, Floor, Sidecar
from bench._measure import running
from bench._requests import prebuilt
from bench._sink import Sink
from sidecar import SCHEMAS, Signal

ROUNDS = 5
SECONDS = 0.2
ALLOWED = 1.25
BASELINE = Path(__file__).with_name("baseline.json")
BY_REQUEST = (Case(), Case(items=1))
BY_ITEM = (
    Case(processors=ALLOWLIST),
    Case(processors=ALL),
    Case(signal=Signal.TRACES, processors=ALLOWLIST),
    Case(signal=Signal.METRICS, processors=ALLOWLIST),
    Case(out="datadog"),
    Case(out="prometheus"),
)


async def rows(options):
    baseline = json.loads(BASELINE.read_text()) if BASELINE.exists() else {}
    measured, slower = {}, []
    async with Sink() as sink:
        for case in BY_REQUEST + BY_ITEM:
            name = str(case)
            measured[name] = ratio = round(await ratio_to_floor(case, sink), 2)
            before = baseline.get(name)
            if before and ratio > before * ALLOWED:
                slower.append(name)
            yield {
                "case": name,
                "floor": "bare server" if case in BY_REQUEST else "decode, encode",
                "to floor": ratio,
                "recorded": before or "",
                "change": f"{ratio / before - 1:+.0%}" if before else "",
            }
    if options.record:
        BASELINE.write_text(json.dumps(measured, indent=2, ensure_ascii=False) + "\n")
    elif slower:
        raise SystemExit(f"more than {ALLOWED - 1:.0%} slower than recorded: {'; '.join(slower)}")


async def ratio_to_floor(case: Case, sink: Sink) -> float:
    """The median over rounds, in each of which the floor is measured beside the sidecar."""
    contenders = [Sidecar(), Floor()] if case in BY_REQUEST else [Sidecar()]
    floors = []
    async with running(case, contenders, sink) as runners:
        for _ in range(ROUNDS):
            for runner in runners:
                await runner.round(SECONDS)
            floors.append(recode(case))
    ours = runners[0].result.cpu
    if case in BY_REQUEST:
        floors = runners[1].result.cpu
    return statistics.median(mine / floor for mine, floor in zip(ours, floors, strict=True))


def recode(case: Case) -> float:
    """Microseconds per item to decode and encode a request, at the best of some times."""
    body, request = prebuilt(case.signal, case.items), SCHEMAS[case.signal].request
    best = float("inf")
    for _ in range(20):
        started = time.process_time()
        request.FromString(body).SerializeToString()
        best = min(best, time.process_time() - started)
    return best / case.items * 1e6
