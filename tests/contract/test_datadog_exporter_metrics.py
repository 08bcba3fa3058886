"""Metrics on their way to Datadog's intake or to an Agent's DogStatsD, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import socket

import msgspec
import pytest
from support import otlp_metrics as otlp
from support.datadog_intake import SERIES, SKETCHES, STATS, DatadogIntake

from exporters.datadog import DatadogExporter
from sidecar import Batch, BatchContext, Retryable, SettingError, Signal
from sidecar.events import datadog_keys as keys
from sidecar.testing import Bench

KEY = "0123456789abcdef0123456789abcdef"


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch):
    for name in ("DD_API_KEY", "DD_SITE", "DD_ENV", "DD_SERVICE", "DD_VERSION", "DD_DOGSTATSD_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
async def intake():
    """An intake that knows one key."""
    async with DatadogIntake(keys=(KEY,)) as running:
        yield running


@pytest.fixture
async def bench():
    """What surrounds the exporter, ended after the test."""
    one = Bench()
    yield one
    await one.close()


@contextlib.asynccontextmanager
async def running(bench, settings):
    """A started exporter with these settings of its metrics."""
    exporter = bench.make(DatadogExporter, f"api: {{key: {KEY}}}\nhostname: web-1\nmetrics: {settings}\n")
    await exporter.start()
    try:
        yield exporter
    finally:
        await exporter.stop()


async def test_series_and_distributions_arrive(bench, intake):
    """Each at its intake, in gzip, with what the intakes ask for."""
    async with running(bench, f"{{endpoint: '{intake.url}'}}") as exporter:
        await exporter.export(
            otlp.batch(
                otlp.gauge("g", otlp.point(1.5, time=0)),
                otlp.histogram("h", otlp.buckets([1, 2], [1, 1, 1], 4.0, time=0), temporality=otlp.DELTA),
            )
        )
    (series,) = intake.series
    assert (series["metric"], series["resources"]) == ("g", [{"type": "host", "name": "web-1"}])
    assert {"service:checkout"} < set(series["tags"])
    (sketch,) = intake.sketches
    assert (sketch.metric, sketch.host, sketch.dogsketches[0].cnt) == ("h", "web-1", 3)
    assert {request.headers["content-encoding"] for request in intake.requests} == {"gzip"}
    assert [request.path for request in intake.requests] == [SERIES, SKETCHES]


async def test_a_retry_counts_no_difference_twice(bench, intake):
    """A cumulative sum is compared once: what fails is sent again as it was."""
    async with running(
        bench, f"{{endpoint: '{intake.url}', sums: {{initial_cumulative_monotonic_value: keep}}}}"
    ) as exporter:
        intake.script(status=202, accept=True)
        intake.script(status=503, times=2)
        metrics = (
            otlp.sum_("c", otlp.point(5, time=0, start=-1)),
            otlp.histogram("h", otlp.buckets([1], [1, 1], 2.0, time=0, start=-1)),
        )
        with pytest.raises(Retryable) as failure:
            await exporter.export(otlp.batch(*metrics))
        remaining = failure.value.remaining
        assert len(remaining) == 1
        with pytest.raises(Retryable) as failure:
            await exporter.export(remaining)
        await exporter.export(failure.value.remaining)
    assert [series["points"][0]["value"] for series in intake.series] == [5]
    assert [sketch.dogsketches[0].cnt for sketch in intake.sketches] == [2]


async def test_bodies_over_the_compressed_limit_are_divided(bench, intake):
    """512,000 bytes after compression, however badly they compress (contrib#17566)."""
    noise = (hashlib.sha512(str(index).encode()).hexdigest() for index in range(9000))
    points = [otlp.point(index, {"noise": one}, time=0) for index, one in enumerate(noise)]
    async with running(bench, f"{{endpoint: '{intake.url}'}}") as exporter:
        await exporter.export(otlp.batch(otlp.gauge("g", *points)))
    assert {request.status for request in intake.requests} == {202}
    assert sorted(series["points"][0]["value"] for series in intake.series) == list(range(9000))
    assert len(intake.requests) > 2


async def test_what_is_left_out_is_counted(bench, intake):
    """And costs nothing else."""
    async with running(bench, f"{{endpoint: '{intake.url}'}}") as exporter:
        points = (otlp.point(float("nan"), time=0), otlp.point(1, time=-4000), otlp.point(2, time=0))
        await exporter.export(otlp.batch(otlp.gauge("g", *points)))
    assert [series["points"][0]["value"] for series in intake.series] == [2]
    assert bench.dropped == {(Signal.METRICS, "not_a_number"): 1, (Signal.METRICS, "too_old"): 1}


async def test_statistics_of_tracers_are_sent_on(bench, intake):
    """As the tracer computed them, with environment and host where it says none; their metrics are not sent again."""
    sent = {
        "Hostname": "",
        "Env": "",
        "Service": "shop",
        "Stats": [{"Start": 1, "Duration": 2, "Stats": [{"Hits": 3}]}],
    }
    hits = otlp.sum_("trace.hits", otlp.point(3, time=0), otlp.point(4, time=0), temporality=otlp.DELTA)
    async with running(
        bench, f"{{endpoint: '{intake.url}'}}\ntraces: {{endpoint: '{intake.url}'}}\nenv: prod"
    ) as exporter:
        for message in (msgspec.msgpack.encode(sent), b"\xc1"):
            request = otlp.request(hits, scope=(keys.CLIENT_STATS, ""), scope_attrs={keys.CLIENT_STATS: message})
            await exporter.export(Batch(Signal.METRICS, message=request, context=BatchContext()))
    (payload,) = intake.stats
    assert payload["Stats"] == [{**sent, "Hostname": "web-1", "Env": "prod"}]
    assert payload["ClientComputed"] is True
    assert not intake.series
    assert bench.dropped == {(Signal.METRICS, "malformed"): 2}


async def test_statistics_of_a_divided_batch_are_sent_once(bench, intake):
    """Each part carries the tracer's message: whichever is tried first, whether at once or again."""
    sent = msgspec.msgpack.encode({"Stats": [{"Start": 1, "Duration": 2, "Stats": [{"Hits": 3}]}]})
    points = [otlp.point(number, {"n": str(number)}, time=0) for number in range(3)]
    request = otlp.request(
        otlp.sum_("trace.hits", *points, temporality=otlp.DELTA),
        scope=(keys.CLIENT_STATS, ""),
        scope_attrs={keys.CLIENT_STATS: sent},
    )
    parts = Batch(Signal.METRICS, message=request, context=BatchContext()).split(1)
    intake.script(status=503, path=STATS)
    async with running(bench, f"{{endpoint: '{intake.url}'}}\ntraces: {{endpoint: '{intake.url}'}}") as exporter:
        failed, *passed = await asyncio.gather(*map(exporter.export, parts), return_exceptions=True)
        assert isinstance(failed, Retryable)
        assert passed == [None, None]
        assert len(intake.stats) == 1
        await exporter.export(failed.remaining)
        assert len(intake.to(STATS)) == 2
        bench.clock.advance(61)
        await exporter.export(parts[0])
    assert len(intake.stats) == 2
    assert not bench.dropped


async def test_dogstatsd_over_udp(bench, monkeypatch):
    """The environment variable of Datadog's clients chooses it too."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as agent:
        agent.bind(("127.0.0.1", 0))
        agent.setblocking(False)
        monkeypatch.setenv("DD_DOGSTATSD_URL", f"udp://127.0.0.1:{agent.getsockname()[1]}")
        async with running(bench, "{}") as exporter:
            await exporter.export(otlp.batch(otlp.gauge("g", otlp.point(1.5, time=0)), resource={}))
            data = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(agent, 65536), 5)
    assert data == b"g:1.5|g|#host:web-1|T1700000000"


async def test_dogstatsd_over_a_unix_socket(bench, tmp_path):
    """An Agent that is not there yet, or goes away, costs nothing but a retry."""
    path = tmp_path / "dsd.socket"
    async with running(bench, f"{{dogstatsd_url: 'unix://{path}'}}") as exporter:
        batch = otlp.batch(otlp.sum_("c", otlp.point(5, time=0), temporality=otlp.DELTA), resource={})
        with pytest.raises(Retryable) as failure:
            await exporter.export(batch)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as agent:
            agent.bind(str(path))
            agent.setblocking(False)
            await exporter.export(failure.value.remaining)
            data = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(agent, 65536), 5)
        assert data == b"c:5.0|c|#host:web-1|T1700000000"
        with pytest.raises(Retryable):
            await exporter.export(otlp.batch(otlp.gauge("g", otlp.point(1, time=0))))


def test_an_environment_that_can_not_work(monkeypatch):
    """DD_DOGSTATSD_URL is checked as the setting is."""
    monkeypatch.setenv("DD_DOGSTATSD_URL", "localhost")
    with pytest.raises(SettingError) as failure:
        Bench().make(DatadogExporter, f"api: {{key: {KEY}}}\n")
    assert failure.value.path == ("metrics", "dogstatsd_url")
