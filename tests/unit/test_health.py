"""How the sidecar says how it is: over HTTP, over gRPC, and to systemd."""

from __future__ import annotations

import asyncio
import socket

import aiohttp
import grpc
import pytest
from google.protobuf.wrappers_pb2 import Int32Value, StringValue
from support.components import REGISTRY, node, resolved
from support.otlp import logs

from sidecar import notify
from sidecar.component import Kind
from sidecar.extensions.health_check import HealthCheck
from sidecar.net.grpc_health import GrpcHealth
from sidecar.service import Service
from sidecar.testing import Bench

QUEUED = """
receivers: {probe: }
exporters: {queued: {sending_queue: {queue_size: 10, on_full: drop_newest, batch: {min_size: 0}}}}
service: {pipelines: {logs: {receivers: [probe], exporters: [queued]}}}
"""
SERVING, NOT_SERVING, UNKNOWN = 1, 2, 3


@pytest.fixture
async def service():
    """A running service whose only exporter has a queue for ten items."""
    service = Service(resolved(QUEUED), REGISTRY)
    await service.start()
    yield service
    node(service, Kind.EXPORTER, "queued").hold.set()
    await service.stop()


@pytest.fixture
async def ask(service):
    """Asks the health extension of that service. Returns status and body."""
    bench = Bench(board=service.host.board)
    extension = bench.make(HealthCheck, "endpoint: 127.0.0.1:0", "health_check")
    del service.host.board.components["health_check"]
    await extension.start()

    async def ask(path: str):
        url = f"http://127.0.0.1:{extension._lease.port}{path}"
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            return response.status, await response.json()

    yield ask
    await extension.stop()


async def test_health_is_simple_at_the_root_and_says_more_at_status(ask):
    """The root tells the whole; `/status` each pipeline and exporter; `?verbose` each component."""
    status, body = await ask("/")
    assert (status, body["status"]) == (200, "ok")
    assert body.keys() == {"status", "uptime_seconds"}
    _, body = await ask("/status?verbose")
    assert body["pipelines"] == {"logs": {"status": "ok", "exporters": {"queued": "ok"}}}
    assert body["exporters"]["queued"]["circuit"] == "closed"
    assert body["exporters"]["queued"]["queue"] == {"items": 0, "bytes": 0, "fill": 0.0}
    assert body["components"]["receivers/probe"]["status"] == "ok"


async def test_a_queue_that_fills_and_items_that_are_dropped_show(service, ask):
    """Both make the exporter and its pipeline degraded, with words; the sidecar goes on, so that it is 200."""
    node(service, Kind.EXPORTER, "queued").hold.clear()
    emit = node(service, Kind.RECEIVER, "probe").emit
    await emit(logs(9))
    _, body = await ask("/")
    assert (body["status"], body["problems"]) == ("degraded", {"exporters/queued": "the queue is 90% full"})
    await emit(logs(9))
    status, body = await ask("/status")
    assert (status, body["pipelines"]["logs"]["status"]) == (200, "degraded")
    assert "dropped 9 (queue_full 9)" in body["exporters"]["queued"]["concerns"][1]


async def test_a_refused_document_shows(service, ask):
    """Everything goes on with the old one, and health says why."""
    service.host.board.last_reload_error = "sidecar.yaml:1:1: wrong"
    status, body = await ask("/")
    assert (status, body["status"], body["last_reload"]) == (200, "degraded", "sidecar.yaml:1:1: wrong")


async def test_a_failed_component_makes_it_unavailable(service, ask):
    """503 is what orchestrators act upon."""
    service.host.board.components["receivers/probe"].failed("the socket is gone")
    status, body = await ask("/")
    assert (status, body["status"]) == (503, "unavailable")
    assert body["problems"] == {"receivers/probe": "the socket is gone"}


@pytest.fixture
async def health_channel():
    """A gRPC channel to the health service of a lease, and the switch that says whether data are taken."""
    from config import Endpoint

    switch = {"serving": True}
    lease = Bench().context().listeners.grpc(Endpoint("127.0.0.1:0"), "receivers.test: endpoint", None)
    GrpcHealth(lease, ["example.Service"], lambda: switch["serving"])
    await lease.open()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{lease.port}") as channel:
        yield channel, switch, lease
    await lease.close()


async def check(channel, name: str = "") -> int:
    """The status of a service."""
    call = channel.unary_unary("/grpc.health.v1.Health/Check")
    return Int32Value.FromString(await call(StringValue(value=name).SerializeToString(), timeout=5)).value


async def test_the_grpc_health_service_answers(health_channel):
    """For the whole and for a service by name; what is not there is NOT_FOUND."""
    channel, switch, _ = health_channel
    assert [await check(channel), await check(channel, "example.Service")] == [SERVING, SERVING]
    switch["serving"] = False
    assert await check(channel) == NOT_SERVING
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await check(channel, "nobody")
    assert error.value.code() is grpc.StatusCode.NOT_FOUND


async def test_who_watches_hears_of_changes_and_of_the_end(health_channel):
    """One message per change; the last one when the listener closes, which does not wait for its watchers."""
    channel, switch, lease = health_channel
    call = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"")
    assert Int32Value.FromString(await call.read()).value == SERVING
    switch["serving"] = False
    assert Int32Value.FromString(await call.read()).value == NOT_SERVING
    async with asyncio.timeout(5):
        await lease.close()
        assert Int32Value.FromString(await call.read()).value == NOT_SERVING
        assert await call.read() is grpc.aio.EOF


async def test_systemd_is_told(tmp_path, monkeypatch):
    """Ready, reloading with the time, stopping, and signs of life at half the watchdog's time."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "20000")
        notify.ready()
        notify.reloading()
        notify.stopping()
        assert systemd.recv(100) == b"READY=1"
        assert systemd.recv(100).startswith(b"RELOADING=1\nMONOTONIC_USEC=")
        assert systemd.recv(100) == b"STOPPING=1"
        alive = asyncio.create_task(notify.keep_alive())
        for _ in range(3):
            assert await asyncio.to_thread(systemd.recv, 100) == b"WATCHDOG=1"
        alive.cancel()


async def test_without_systemd_nothing_happens(monkeypatch):
    """No socket is asked for, and no watchdog runs."""
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    monkeypatch.delenv("WATCHDOG_USEC", raising=False)
    notify.ready()
    await notify.keep_alive()
