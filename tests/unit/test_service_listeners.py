"""What a reload that failed wanted to listen on is free again, at once."""

import gc
from importlib.metadata import EntryPoint

import pytest
from support.components import REGISTRY, resolved
from support.otlp_receiver import PROTOBUF, data_of
from support.wire import exchange

from config.problems import ConfigError
from sidecar.component import Kind
from sidecar.errors import StartError
from sidecar.registry import Registry
from sidecar.service import Service
from sidecar.signals import Signal

ENTRY = EntryPoint("otlp", "sidecar.receivers.otlp:OtlpReceiver", "sidecar.receivers")


@pytest.fixture
def registry(monkeypatch):
    """The small components, and the real receiver."""
    monkeypatch.setitem(REGISTRY._points[Kind.RECEIVER], "otlp", ENTRY)
    return Registry([*(point for points in REGISTRY._points.values() for point in points.values())])


@pytest.fixture
def no_collector():
    """Nothing is let go of by accident."""
    gc.disable()
    yield
    gc.enable()


def document(receiver, path="/v1/logs", exporter="", size="1MiB"):
    """One OTLP receiver and one exporter."""
    http = f"{{endpoint: '127.0.0.1:0', logs_url_path: {path}, max_in_flight_body_size: {size}}}"
    return f"""
receivers:
  {receiver}: {{protocols: {{http: {http}}}}}
exporters: {{probe: {{{exporter}}}}}
service: {{pipelines: {{logs: {{receivers: [{receiver}], exporters: [probe]}}}}}}
"""


def owners(service):
    """Who has a part of a listener."""
    return [lease.owner for server in service.host.listeners._servers.values() for lease in server.leases]


async def status_of(service, path):
    """What a request to this path gets."""
    (receiver,) = service.graph.of(Kind.RECEIVER)
    answer = await exchange(receiver.component.http.port, "POST", path, data_of(Signal.LOGS), Content_Type=PROTOBUF)
    return answer.status


@pytest.mark.parametrize(("fault", "error"), [("extension: nobody", ConfigError), ("fail: true", StartError)])
async def test_a_failed_reload_claims_nothing(registry, no_collector, fault, error):
    """Whether components refused to be made, or one of them could not start and others had not begun to."""
    service = Service(resolved(document("otlp")), registry)
    await service.start()
    try:
        with pytest.raises(error):
            await service.reload(resolved(document("otlp/new", "/new", fault, size="2MiB")))
        assert (await status_of(service, "/v1/logs"), await status_of(service, "/new")) == (200, 404)
        assert owners(service) == ["receivers.otlp: protocols.http.endpoint"]
        await service.reload(resolved(document("otlp/other", "/new", size="3MiB")))
        assert (await status_of(service, "/v1/logs"), await status_of(service, "/new")) == (404, 200)
    finally:
        await service.stop()


async def test_what_a_failed_reload_had_taken_over_goes_back(registry):
    """The new receiver had started, when a later one could not: the old one goes on."""
    service = Service(resolved(document("otlp")), registry)
    await service.start()
    try:
        changed = document("otlp", size="2MiB").replace("receivers: [otlp]", "receivers: [otlp, probe]")
        changed = changed.replace("exporters: {probe", "  probe: {fail: true}\nexporters: {probe", 1)
        with pytest.raises(StartError, match="told to fail"):
            await service.reload(resolved(changed))
        assert await status_of(service, "/v1/logs") == 200
    finally:
        await service.stop()
