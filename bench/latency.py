"""How long a sender waits for its answer at a steady rate: from when a request was due, so that queueing shows.

100 requests per second, of 10 and of 100 log records, over gRPC; rate limit, allowlist and correlation in the sidecar.
"""

from __future__ import annotations

from bench._contenders import ALL, Case, Floor, Sidecar, contenders
from bench._measure import cpu_seconds, running
from bench._sink import Sink

REQUESTS_PER_SECOND = 100
SLICES = 3  # of a second for each contender, in turns
AIM = 12  # percent of a core at 10,000 records per second


async def rows():
    async with Sink() as sink:
        for items in (10, 100):
            async with running(Case(processors=ALL, items=items), [*contenders(), Floor()], sink) as runners:
                sound = [runner for runner in runners if not runner.result.fault]
                took, used = {runner: [] for runner in sound}, dict.fromkeys(sound, 0.0)
                for runner in sound * SLICES:
                    before = cpu_seconds(runner.process.pid)
                    took[runner] += await runner.paced(REQUESTS_PER_SECOND, 1.0)
                    used[runner] += (cpu_seconds(runner.process.pid) - before) / SLICES
            for runner in sound:
                yield row(runner.result.name, items, sorted(took[runner]), used[runner])


def row(name: str, items: int, took: list[float], used: float) -> dict:
    aimed = name == Sidecar.name and items == 100
    return {
        "records/s": f"{items * REQUESTS_PER_SECOND:,}",
        "contender": name,
        "p50 ms": took[len(took) // 2] * 1e3,
        "p99 ms": took[int(len(took) * 0.99)] * 1e3,
        "of a core": f"{used:.1%}",
        "aim": f"{AIM} %: {'met' if used * 100 <= AIM else '**not met**'}" if aimed else "",
    }
