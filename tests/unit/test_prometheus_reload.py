"""The page while the document is reloaded: whoever scrapes never misses what was there."""

import asyncio
from importlib.metadata import EntryPoint

import pytest
from support.components import REGISTRY, ProbeProcessor, node, resolved
from support.otlp_metrics import batch, point, sum_
from support.wire import exchange

from sidecar.component import Kind
from sidecar.registry import Registry
from sidecar.service import Service

DOCUMENT = """
receivers: {{probe: }}
processors: {{probe: {{label: "{number}"}}}}
exporters: {{prometheus: {{endpoint: "127.0.0.1:0", {settings}}}}}
service: {{pipelines: {{metrics: {{receivers: [probe], processors: [probe], exporters: [prometheus]}}}}}}
"""
SETTINGS = ["max_series: {number}", "metric_expiration: {number}m, max_concurrent_scrapes: 100"]


def document(number):
    """A document in which the exporter and the processor differ from those of the number before."""
    settings = SETTINGS[number % 2].format(number=number + 10)
    return resolved(DOCUMENT.format(number=number, settings=settings))


@pytest.fixture
async def service(monkeypatch):
    """A running service that shows a counter."""
    entry = EntryPoint("prometheus", "exporters.prometheus:PrometheusExporter", "sidecar.exporters")
    monkeypatch.setitem(REGISTRY._points[Kind.EXPORTER], "prometheus", entry)
    registry = Registry([point for points in REGISTRY._points.values() for point in points.values()])
    running = Service(document(0), registry)
    await running.start()
    try:
        await node(running, Kind.RECEIVER, "probe").emit(batch(sum_("requests", point(5))))
        yield running
    finally:
        await running.stop()


def port(service):
    """Where the exporter listens."""
    return node(service, Kind.EXPORTER, "prometheus").port


async def shown(port):
    """What a scrape shows of the counter."""
    answer = await exchange(port, "GET", "/metrics")
    return answer.status, [line.rpartition(" ")[2] for line in answer.body.decode().splitlines() if line[0] != "#"]


async def test_a_changed_exporter_shows_the_series_from_its_start_on(service, monkeypatch):
    """A scrape while others still start, before the new exporter has the series."""
    seen = []
    before = await shown(port(service))

    async def start(_):
        seen.append(await shown(port(service)))

    monkeypatch.setattr(ProbeProcessor, "start", start)
    await service.reload(document(1))
    assert seen == [before]
    assert await shown(port(service)) == before
    assert "5" in before[1]


async def test_no_scrape_misses_series_while_exporters_change(service, monkeypatch):
    """Hundreds of scrapes, over as many reloads as there is time for."""
    seen = []
    before, address = await shown(port(service)), port(service)

    async def start(_):
        await asyncio.sleep(0.001)  # so that scrapes come in between

    async def scrape():
        while len(seen) < 400:
            seen.append(await shown(address))

    monkeypatch.setattr(ProbeProcessor, "start", start)
    number = 0
    async with asyncio.timeout(10), asyncio.TaskGroup() as scrapers:
        scraping = [scrapers.create_task(scrape()) for _ in range(3)]
        while not all(task.done() for task in scraping):
            number += 1
            await service.reload(document(number))
    assert [one for one in seen if one != before] == []
    assert number > 10
