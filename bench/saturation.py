"""Throughput when more comes than can be handled, on one core and on two.

Contenders are bound to the cores, the load and the sink to the others. On a machine with two cores they share with them
in the second case, so that its figures are lower limits. 1,000 log records per request, OTLP over gRPC in and out.
"""

from __future__ import annotations

import statistics

from bench._contenders import ALL, Case, contenders
from bench._measure import CORES, compare, on_cores, spread
from bench._sink import Sink

ROUNDS = 5
SECONDS = 0.5


async def rows():
    for count in (1, 2)[: len(CORES)]:
        cores, others = CORES[:count], CORES[count:] or CORES
        with on_cores(others):
            async with Sink() as sink:
                for case in (Case(), Case(processors=ALL)):
                    for result in await compare(case, contenders(), sink, ROUNDS, SECONDS, cores):
                        yield {
                            "cores": count,
                            "case": str(case),
                            "contender": result.name,
                            "items/s": f"{statistics.median(result.rate):,.0f}",
                            "spread": spread(result.rate),
                            "µs per item": result.median,
                            "peak MiB": round(result.peak),
                        }
