"""How long a sender waits for its answer at a steady rate: from when a request was due, so that queueing shows.

100 requests per second, of 10 and of 100 log records, over gRPC; rate limit, allowlist and correlation in the sidecar.
"""

from __future__ import annotations

import time

from bench._contenders import ALL, Case, Floor, contenders
from bench._measure import cpu_seconds, running
from bench._sink import Sink

REQUESTS_PER_SECOND = 100
SECONDS = 3.0
AIM = 12  # percent of a core at 10,000 records per second


async def rows(options):  # noqa: ARG001
    async with Sink() as sink:
        for items in (10, 100):
            async with running(Case(processors=ALL, items=items), [*contenders(), Floor()], sink) as runners:
                for runner in runners:
                    started, before = time.perf_counter(), cpu_seconds(runner.process.pid)
                    took = await runner.paced(REQUESTS_PER_SECOND, SECONDS)
                    used = (cpu_seconds(runner.process.pid) - before) / (time.perf_counter() - started)
                    aimed = runner.result.name == "sidecar" and items == 100
                    yield {
                        "records/s": f"{items * REQUESTS_PER_SECOND:,}",
                        "contender": runner.result.name,
                        "p50 ms": took[len(took) // 2] * 1e3,
                        "p99 ms": took[int(len(took) * 0.99)] * 1e3,
                        "of a core": f"{used:.1%}",
                        "aim": f"{AIM} %: {'met' if used * 100 <= AIM else '**not met**'}" if aimed else "",
                    }
