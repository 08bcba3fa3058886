"""A guard of under a minute: processor time per item as ratios to floors of the same run, beside recorded ratios.

The floor of what passes through is a bare `grpc.aio` server that gets the same requests; the floor of what is looked
into is decoding and encoding them once. Fails when a ratio is, twice, more than 25 % above `baseline.json`, which
`--record` writes.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from pathlib import Path

from bench._contenders import ALL, ALLOWLIST, Case, Floor, Sidecar
from bench._measure import running
from bench._requests import prebuilt
from bench._sink import Sink
from sidecar import SCHEMAS, Signal

ROUNDS = 6
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
            name, ratio = str(case), await ratio_to_floor(case, sink)
            limit = baseline.get(name, math.inf) * ALLOWED
            if ratio > limit:  # once more: what disturbs a machine seldom does so twice in the same place
                ratio = min(ratio, await ratio_to_floor(case, sink))
            if ratio > limit:
                slower.append(name)
            measured[name] = round(ratio, 2)
            yield {
                "case": name,
                "floor": "bare server" if case in BY_REQUEST else "decode, encode",
                "to floor": ratio,
                "recorded": baseline.get(name, ""),
                "change": f"{ratio / baseline[name] - 1:+.0%}" if name in baseline else "",
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
    if case in BY_REQUEST:
        floors = runners[1].result.cpu
    return statistics.median(ours / floor for ours, floor in zip(runners[0].result.cpu, floors, strict=True))


def recode(case: Case) -> float:
    """Microseconds per item to decode and encode a request, again and again for half of a round."""
    body, request = prebuilt(case.signal, case.items), SCHEMAS[case.signal].request
    started, times = time.process_time(), 0
    while time.process_time() - started < SECONDS / 2:
        request.FromString(body).SerializeToString()
        times += 1
    return (time.process_time() - started) / times / case.items * 1e6
