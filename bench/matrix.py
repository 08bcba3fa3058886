"""Processor time per item of each contender, user's and system's, from the operating system.

Every case sends the same prebuilt requests to all contenders that offer it, in turns. Each figure is the median of five
rounds and their spread; ratios are medians of the rounds' ratios. Peers filter nothing: beside a filtering sidecar they
do less. Rotel compresses whatever it is told; the rows with gzip compare like with like. Peaks are in the same order.
"""

from __future__ import annotations

import itertools

from bench import _plot
from bench._contenders import ALL, ALLOWLIST, PASS, Case, Contender, Floor, Sidecar, contenders
from bench._measure import Result, compare, spread
from bench._report import shown
from bench._sink import Sink
from sidecar import Signal

CHAINS = (PASS, ALLOWLIST, ALL)
ROUNDS = 5
FEWER_ROUNDS = 3  # where there are hundreds of cases
MOST_BARS = 100  # a plot of more shows nothing
SECONDS = 0.3
# Every signal with all processors, and of all else one at a time.
DEFAULT = (
    *(Case(signal, processors) for signal in (Signal.LOGS, Signal.TRACES, Signal.METRICS) for processors in CHAINS),
    Case(items=1),
    Case(items=100),
    Case(items=10_000),
    Case(gzip_out=True),
    Case(into="http", gzip_in=True, out="otlp_http", gzip_out=True),
    Case(into="json"),
    Case(into="events", items=100, processors=ALL),
    Case(durable=True),
    *(Case(signal, out="datadog") for signal in (Signal.LOGS, Signal.TRACES, Signal.METRICS)),
    Case(processors=ALL, out="datadog"),
    Case(out="prometheus"),
    Case(signal=Signal.METRICS, out="prometheus"),
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
    """The whole matrix, where sizes and ways in are not combined with each other: 45 minutes."""
    outs = (("otlp", False), ("otlp", True), ("otlp_http", True), ("datadog", False), ("prometheus", False))
    sizes = [(items, "grpc", False) for items in (1, 100, 1000, 10_000)]
    ways_in = [(1000, "grpc", True), (1000, "http", False), (1000, "http", True)]
    cases = [
        Case(signal, processors, items, into, gzip_in, out, gzip_out)
        for signal, processors, (out, gzip_out), (items, into, gzip_in) in itertools.product(
            Signal, CHAINS, outs, sizes + ways_in
        )
    ]
    cases += [Case(signal, items=items, into="json") for signal in Signal for items in (1, 100, 1000, 10_000)]
    cases += [
        Case(processors=ALL, items=items, into="events", out=out) for items in (1, 100) for out in ("otlp", "datadog")
    ]
    cases += [Case(signal, items=items, durable=True) for signal in Signal for items in (1, 100, 1000, 10_000)]
    return cases


async def rows(options):
    async with Sink() as sink:
        cases, rounds = (every(), FEWER_ROUNDS) if options.full else (DEFAULT, ROUNDS)
        for case in cases:
            yield row(case, await compare(case, taking_part(case), sink, rounds, SECONDS))


def taking_part(case: Case) -> list[Contender]:
    """The floor is of interest where the sidecar does little more than it."""
    return [*contenders(), Floor()] if case.processors == PASS and case.out == "otlp" else contenders()


def row(case: Case, results: list[Result]) -> dict:
    found = {result.name: result for result in results}
    sound = {name: result for name, result in found.items() if not result.fault}
    peers = [result for name, result in sound.items() if name not in {Sidecar.name, Floor.name}]
    best = min(peers, key=lambda peer: peer.median, default=None)
    ours, floor = sound.get(Sidecar.name), sound.get(Floor.name)
    return {
        "case": str(case),
        **{f"{each.name}, µs": figure(found.get(each.name)) for each in contenders()},
        "to best peer": ours.ratio(best) if ours and best else "",
        "to floor": ours.ratio(floor) if ours and floor else "",
        "peak MiB": " / ".join(f"{result.peak:.0f}" for name, result in sound.items() if name != Floor.name),
        "aim": judged(ours, sound, *AIMS[case]) if ours and case in AIMS else "",
    }


def figure(result: Result | None) -> str:
    if result is None or result.fault:
        return result.fault if result else ""
    return f"{shown(result.median)} {spread(result.cpu)}"


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
    if len(table_) > MOST_BARS:
        return {}
    groups = []
    for row_ in table_:
        cells = {name.removesuffix(", µs"): value for name, value in row_.items() if name.endswith(", µs")}
        bars = [(name, float(value.split()[0])) for name, value in cells.items() if "±" in value]
        if " 1 per request" not in row_["case"]:  # ten times as long as the others
            groups.append((row_["case"], bars))
    return {"cpu.svg": _plot.bars("Processor time per item, µs: less is better", groups)}
