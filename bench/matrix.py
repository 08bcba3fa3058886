"""Processor time per item of each contender, user's and system's, from the operating system.

Every case sends the same prebuilt requests to all contenders that offer it, in turns. Peers filter nothing: beside a
filtering sidecar they do less. Rotel compresses whatever it is told; the rows with gzip compare like with like.
"""

from __future__ import annotations

import itertools
import statistics

from bench import _plot
from bench._contenders import ALL, ALLOWLIST, PASS, Case, Contender, Floor, Sidecar, contenders
from bench._measure import Result, compare, spread
from bench._sink import Sink
from sidecar import Signal

ROUNDS = 5
SECONDS = 0.3
DEFAULT = (
    Case(),
    Case(gzip_out=True),
    Case(into="http", gzip_in=True, out="otlp_http", gzip_out=True),
    Case(processors=ALLOWLIST),
    Case(processors=ALL),
    Case(signal=Signal.TRACES, processors=ALL),
    Case(signal=Signal.METRICS, processors=ALLOWLIST),
    Case(items=1),
    Case(items=100),
    Case(items=10_000),
    Case(out="datadog"),
    Case(signal=Signal.TRACES, out="datadog"),
    Case(out="prometheus"),
    Case(signal=Signal.METRICS, out="prometheus"),
    Case(into="json"),
    Case(into="events", items=100, processors=ALL),
    Case(durable=True),
)
# At most so many times the processor time of a peer or of the floor, or so many microseconds.
AIMS: dict[Case, tuple[float, str]] = {
    Case(): (0.2, "Rotel"),
    Case(processors=ALLOWLIST): (0.7, "Rotel"),
    Case(processors=ALL): (0.9, "Rotel"),
    Case(items=1): (2.0, Floor.name),
    Case(out="datadog"): (8.0, "µs"),
}


def every() -> list[Case]:
    """The whole matrix: more than an hour."""
    product = itertools.product(
        Signal,
        (PASS, ALLOWLIST, ALL),
        (("otlp", False), ("otlp", True), ("otlp_http", True), ("datadog", False), ("prometheus", False)),
        (1, 100, 1000, 10_000),
        (("grpc", False), ("grpc", True), ("http", False), ("http", True)),
    )
    cases = [
        Case(signal, processors, items, into, gzip_in, out, gzip_out)
        for signal, processors, (out, gzip_out), items, (into, gzip_in) in product
    ]
    cases += [Case(signal, items=items, into="json") for signal in Signal for items in (1, 100, 1000, 10_000)]
    cases += [
        Case(processors=ALL, items=items, into="events", out=out) for items in (1, 100) for out in ("otlp", "datadog")
    ]
    cases += [Case(signal, items=items, durable=True) for signal in Signal for items in (1, 100, 1000, 10_000)]
    return cases


async def rows(options):
    async with Sink() as sink:
        for case in every() if options.full else DEFAULT:
            results = await compare(case, taking_part(case), sink, ROUNDS, SECONDS)
            for row in table(case, results):
                yield row


def taking_part(case: Case) -> list[Contender]:
    """The floor is of interest where the sidecar does little more than it."""
    return [*contenders(), Floor()] if case.processors == PASS and case.out == "otlp" else contenders()


def table(case: Case, results: list[Result]):
    sound = {result.name: result for result in results if not result.fault}
    peers = [result for name, result in sound.items() if name not in {Sidecar.name, Floor.name}]
    best = min(peers, key=lambda peer: peer.median, default=None)
    floor = sound.get(Floor.name)
    for result in results:
        if result.fault:
            yield f"{case}: no figures of {result.name}: {result.fault}"
            continue
        ours = result.name == Sidecar.name
        yield {
            "case": str(case),
            "contender": result.name,
            "µs per item": result.median,
            "spread": spread(result.cpu),
            "items/s": f"{statistics.median(result.rate):,.0f}",
            "peak MiB": round(result.peak),
            "to best peer": f"{result.ratio(best):.2f} ({best.name})" if ours and best else "",
            "to floor": result.ratio(floor) if ours and floor else "",
            "aim": judged(result, sound, *AIMS[case]) if ours and case in AIMS else "",
        }


def judged(ours: Result, sound: dict[str, Result], limit: float, unit: str) -> str:
    if unit == "µs":
        value = ours.median
    elif unit in sound:
        value = ours.ratio(sound[unit])
    else:
        return f"{limit:g} of {unit}: not measured"
    of = "µs" if unit == "µs" else f"of {unit}"
    return f"{limit:g} {of}: {value:.2f}, {'met' if value <= limit else '**not met**'}"


def plots(table_: list[dict]) -> dict[str, str]:
    """Bars of processor time."""
    groups = [
        (case, [(row["contender"], row["µs per item"]) for row in group])
        for case, group in itertools.groupby(table_, key=lambda row: row["case"])
        if " 1 per request" not in case
    ]
    return {"cpu.svg": _plot.bars("Processor time per item, µs: less is better", groups)}
