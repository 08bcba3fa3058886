"""How the cost of one unit grows with the size of everything: flat means that the whole grows linearly.

The exponent k is fitted to cost ∝ sizeᵏ by least squares over all points, of processor time. A cost that falls is one
that was fixed. With --full, the queue on disk grows to ten million records instead of one.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import tempfile
import time
from collections.abc import Callable, Iterator

import grpc.aio
from support.processes import SidecarProcess, find_free_port

from bench import _plot
from bench._measure import cpu_seconds
from bench._requests import prebuilt
from bench._sink import Sink
from bench.prometheus import feed, made_requests
from exporters.prometheus import PrometheusExporter
from exporters.prometheus.negotiate import negotiate
from processors.allowlist import Allowlist
from processors.rate_limit import RateLimit
from sidecar import SCHEMAS, Batch, BatchContext, Signal
from sidecar.testing import Bench

# Above this exponent the cost of a unit is said to grow. Caches and memory alone make about 0.1 over several decades.
FLAT = 0.15

Points = list[tuple[float, float]]


async def rows(options):
    deepest = 10_000_000 if options.full else 1_000_000
    for what, axis, measure in (
        ("allowlist, µs per record", "records per request", request_size),
        ("allowlist, µs per attribute", "attributes per record", attributes),
        ("Prometheus update, µs per point", "series", lambda: series(update)),
        ("Prometheus page, µs per series", "series", lambda: series(scrape)),
        ("rate limit, µs per request", "keys", limiter_keys),
        ("allowlist and OTLP, µs per record and pipeline", "pipelines", lambda: asyncio.run(pipelines())),
        ("queue on disk, µs per record", "records in it", lambda: asyncio.run(queue_depth(deepest))),
    ):
        points = await asyncio.to_thread(measure)
        k = exponent(points)
        yield {
            "cost": what,
            "by": axis,
            "size: cost": "; ".join(f"{x:,.0f}: {y:.3g}" for x, y in points),
            "k": f"{k:+.2f}",
            "verdict": "linear or better" if k <= FLAT else "**grows**",
        }


def exponent(points: Points) -> float:
    """The slope of log y over log x."""
    xs, ys = ([math.log(value) for value in values] for values in zip(*points, strict=True))
    x_mean, y_mean = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys, strict=True)) / sum((x - x_mean) ** 2 for x in xs)


def plots(table: list[dict]) -> dict[str, str]:
    """One chart for each cost."""
    charts = []
    for row in table:
        cells = [cell.replace(",", "").split(": ") for cell in row["size: cost"].split("; ")]
        line = [(float(x), float(y)) for x, y in cells]
        charts.append((f"{row['cost']} (k {row['k']})", row["by"], line))
    title = "Cost of one unit by size, both logarithmic: flat where the whole grows linearly"
    return {"growth.svg": _plot.lines(title, charts)}


def best(work: Callable[[], object], times: int = 3) -> float:
    """The least processor time, in microseconds. The garbage of others is collected before."""
    gc.collect()
    least = math.inf
    for _ in range(times):
        started = time.process_time()
        work()
        least = min(least, time.process_time() - started)
    return least * 1e6


def filtered(body: bytes) -> Callable[[], object]:
    allowlist = Bench().make(Allowlist)
    return lambda: allowlist.process(Batch(Signal.LOGS, body, context=BatchContext())).encode()


def request_size() -> Points:
    return [(size, best(filtered(prebuilt(Signal.LOGS, size)), 5) / size) for size in (10, 100, 1000, 10_000, 50_000)]


def attributes() -> Points:
    """Fewer records with more each, so that all requests have the same size and fit into the same caches."""
    total = 65_536
    bodies = ((count, prebuilt(Signal.LOGS, total // count, count)) for count in (4, 16, 64, 256, 1024))
    return [(count, best(filtered(body)) / total) for count, body in bodies]


def series(work: Callable[[PrometheusExporter, list[bytes]], Callable[[], object]]) -> Points:
    points = []
    for count in (1_000, 3_000, 10_000, 30_000, 100_000):
        exporter = Bench().make(PrometheusExporter, "max_series: 200000")
        requests = [request.SerializeToString() for request in made_requests("gauge", count)]
        feed(exporter, requests)
        points.append((count, best(work(exporter, requests)) / count))
    return points


def update(exporter: PrometheusExporter, requests: list[bytes]) -> Callable[[], object]:
    return lambda: feed(exporter, requests)


def scrape(exporter: PrometheusExporter, _: list[bytes]) -> Callable[[], object]:
    return lambda: sum(map(len, exporter.page(negotiate("text/plain"))))


def limiter_keys() -> Points:
    """Requests of keys spread over those that have a bucket already."""
    points, sample, sizes = [], 50_000, (1000, 10_000, 100_000, 300_000, 1_000_000)
    settings = f"key: [client_address]\nrate: 1000000000/s\nburst: 1000000000\nmax_keys: {sizes[-1]}\nunit: requests"
    limiter, known = Bench().make(RateLimit, settings), 0
    body = prebuilt(Signal.LOGS, 1)

    def ask(numbers: Iterator[int] | range) -> None:
        for number in numbers:
            batch = Batch(Signal.LOGS, body, context=BatchContext(peer=f"10.{number}"))
            limiter.process(batch)

    for keys in sizes:
        ask(range(known, keys))
        known = keys
        stride = max(1, keys // sample) | 1
        points.append((keys, best(lambda: ask(number * stride % keys for number in range(sample)), 2) / sample))  # noqa: B023
    return points


DOCUMENT = """
receivers:
  otlp: {{protocols: {{grpc: {{endpoint: "127.0.0.1:{port}"}}}}}}
processors:
  allowlist:
extensions:
  file_storage: {{directory: ".", max_size: 64GiB, max_age: 72h}}
exporters:
{exporters}
service:
  extensions: [{extensions}]
  telemetry: {{metrics: {{level: none}}}}
  pipelines:
{pipelines}
"""


async def pipelines() -> Points:
    """Each with the receiver, an allowlist and an OTLP exporter of its own; 100 records per request."""
    points = []
    async with Sink() as sink:
        for count in (1, 2, 4, 8, 16, 32):
            exporters = [
                f'  otlp/{n}: {{endpoint: "http://127.0.0.1:{sink.grpc_port}", compression: none}}'
                for n in range(count)
            ]
            chains = [
                f"    logs/{n}: {{receivers: [otlp], processors: [allowlist], exporters: [otlp/{n}]}}"
                for n in range(count)
            ]
            requests = max(20, 400 // count)
            async with loaded(exporters, chains) as (process, send):
                already = sink.count
                await send(prebuilt(Signal.LOGS, 100), 5)
                await sink.wait_for(already + 5 * 100 * count)
                before = cpu_seconds(process.pid)
                await send(prebuilt(Signal.LOGS, 100), requests)
                await sink.wait_for(already + (5 + requests) * 100 * count)
                points.append((count, (cpu_seconds(process.pid) - before) / requests / 100 / count * 1e6))
    return points


async def queue_depth(deepest: int) -> Points:
    """Short records, a thousand per request, into a queue whose exporter reaches nobody."""
    nowhere = f"http://127.0.0.1:{find_free_port()}"
    queue = f"{{queue_size: {2 * deepest}, storage: file_storage}}"
    exporters = [f"  otlp: {{endpoint: {nowhere}, retry_on_failure: {{max_elapsed_time: 0}}, sending_queue: {queue}}}"]
    chains = ["    logs: {receivers: [otlp], exporters: [otlp]}"]
    body, stored, points = prebuilt(Signal.LOGS, 1000, 0), 0, []
    async with loaded(exporters, chains, "file_storage") as (process, send):
        for depth in (deepest // 100, deepest // 30, deepest // 10, deepest // 3, deepest):
            requests, before = depth // 1000 - stored, cpu_seconds(process.pid)
            await send(body, requests)
            stored += requests
            points.append((depth, (cpu_seconds(process.pid) - before) / requests / 1000 * 1e6))
    return points


@contextlib.asynccontextmanager
async def loaded(exporters: list[str], chains: list[str], extensions: str = ""):
    """A sidecar, and what sends it a body so many times."""
    port = find_free_port()
    document = DOCUMENT.format(
        port=port, exporters="\n".join(exporters), pipelines="\n".join(chains), extensions=extensions
    )
    with tempfile.TemporaryDirectory() as folder:
        async with (
            SidecarProcess(document, folder) as process,
            grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
        ):
            export = channel.unary_unary(f"/{SCHEMAS[Signal.LOGS].grpc_service}/Export")

            async def send(body: bytes, requests: int) -> None:
                """Four at a time."""
                waiting = iter(range(requests))

                async def sender() -> None:
                    for _ in waiting:
                        await export(body, timeout=60, wait_for_ready=True)

                await asyncio.gather(*(sender() for _ in range(4)))

            yield process, send
