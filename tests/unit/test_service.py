"""Start, stop and reload of a whole graph of small components."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest
from support.components import JOURNAL, REGISTRY, node, resolved
from support.otlp import bodies, logs, traces

from config.problems import ConfigError
from sidecar.component import Kind
from sidecar.errors import StartError
from sidecar.service import Service

BASIC = """
receivers: {probe: }
processors: {probe: }
exporters: {probe: , queued: {sending_queue: {batch: {min_size: 0}}}}
extensions: {helper: }
service:
  extensions: [helper]
  shutdown_timeout: 5s
  pipelines: {logs: {receivers: [probe], processors: [probe], exporters: [probe, queued]}}
"""


@pytest.fixture(autouse=True)
def journal():
    """What has started and stopped, in order."""
    JOURNAL.clear()
    return JOURNAL


@pytest.fixture
async def running():
    """Starts services, and stops them at the end."""
    services: list[Service] = []

    async def start(yaml: str = BASIC) -> Service:
        service = Service(resolved(yaml), REGISTRY)
        services.append(service)
        await service.start()
        return service

    yield start
    for service in services:
        await service.stop()


async def test_starts_against_the_flow_and_stops_with_it(running, journal):
    """Whoever may be called is there before who calls, and after."""
    service = await running()
    assert journal == ["start helper", "start probe", "start queued", "start probe", "start probe"]
    assert service.host.board.ready
    journal.clear()
    await service.stop()
    assert journal == ["stop probe", "stop probe", "stop queued", "stop probe", "stop helper"]
    assert not service.host.board.ready


async def test_stopping_twice_is_stopping_once(running, journal):
    """The second call does nothing."""
    service = await running()
    await service.stop()
    journal.clear()
    await service.stop()
    assert journal == []


async def test_a_component_that_can_not_start_stops_those_that_had_started(running, journal):
    """After a failed start nothing runs."""
    yaml = BASIC.replace("receivers: {probe: }", "receivers: {probe: {fail: true}}")
    with pytest.raises(StartError, match="told to fail"):
        await running(yaml)
    started = [line.removeprefix("start ") for line in journal if line.startswith("start")]
    stopped = [line.removeprefix("stop ") for line in journal if line.startswith("stop")]
    assert set(started) <= set(stopped)


async def test_a_batch_reaches_every_exporter(running):
    """With an outbox and without one."""
    service = await running()
    await node(service, Kind.RECEIVER, "probe").emit(logs(2))
    await service.stop()
    for name in ("probe", "queued"):
        exporter = node(service, Kind.EXPORTER, name)
        assert [["hello 0", "hello 1"]] == [bodies(batch) for batch in exporter.batches]


async def test_a_receiver_accepts_the_signals_of_its_pipelines(running):
    """What no pipeline takes is not accepted."""
    from sidecar import Signal

    service = await running()
    receiver = node(service, Kind.RECEIVER, "probe")
    assert [receiver.emit.accepts(signal) for signal in (Signal.LOGS, Signal.TRACES)] == [True, False]


async def test_a_long_form_processor_flushes_before_the_exporters_stop(running):
    """What a processor still holds at the stop arrives."""
    yaml = BASIC.replace("processors: {probe: }", "processors: {probe: , holding: }").replace(
        "processors: [probe]", "processors: [holding, probe]"
    )
    service = await running(yaml)
    await node(service, Kind.RECEIVER, "probe").emit(logs(1))
    assert node(service, Kind.EXPORTER, "queued").batches == []
    await service.stop()
    assert len(node(service, Kind.EXPORTER, "queued").batches) == 1


async def test_an_exporter_that_comes_back_succeeds_itself(running):
    """Removed while it still sends and named again, it takes over what it had, and no storage is opened twice."""
    service = await running()
    first = node(service, Kind.EXPORTER, "queued")
    first.hold.clear()
    await node(service, Kind.RECEIVER, "probe").emit(logs(1))
    without = BASIC.replace("exporters: [probe, queued]", "exporters: [probe]")
    await service.reload(resolved(without))
    await service.reload(resolved(BASIC))
    assert node(service, Kind.EXPORTER, "queued") is not first
    await node(service, Kind.RECEIVER, "probe").emit(logs(1, body="again"))
    first.hold.set()
    await service.stop()
    arrived = [text for one in (first, node(service, Kind.EXPORTER, "queued")) for text in map(bodies, one.batches)]
    assert [["hello 0"], ["again 0"]] == arrived


async def test_nobody_stops_what_a_request_is_on_its_way_to(running, journal):
    """An exporter without a queue that a reload removes stops after the requests that were accepted before."""
    yaml = BASIC.replace("exporters: [probe, queued]", "exporters: [queued]")
    yaml = yaml.replace("{sending_queue: {batch: {min_size: 0}}}", "{sending_queue: {enabled: false}}")
    service = await running(yaml)
    old = node(service, Kind.EXPORTER, "queued")
    old.hold.clear()
    sending = asyncio.create_task(node(service, Kind.RECEIVER, "probe").emit(logs(1)))
    await asyncio.sleep(0)
    reload = asyncio.create_task(service.reload(resolved(BASIC.replace("[probe, queued]", "[probe]"))))
    await asyncio.sleep(0.01)
    assert "stop queued" not in journal
    old.hold.set()
    await asyncio.gather(sending, reload)
    assert [["hello 0"]] == [bodies(batch) for batch in old.batches]


async def test_a_connector_joins_two_pipelines(running, journal):
    """It is the end of one and the start of the other, and stops between them."""
    yaml = """
    receivers: {probe: }
    connectors: {pass: }
    processors: {holding: }
    exporters: {queued: }
    service:
      pipelines:
        logs/second: {receivers: [pass], exporters: [queued]}
        logs/first: {receivers: [probe], processors: [holding], exporters: [pass]}
    """
    service = await running(yaml)
    await node(service, Kind.RECEIVER, "probe").emit(logs(1))
    await service.stop()
    assert len(node(service, Kind.EXPORTER, "queued").batches) == 1
    assert [line for line in journal if line.startswith("stop")] == [
        "stop probe", "stop holding", "stop pass", "stop queued",
    ]  # fmt: skip


async def test_the_balance_says_what_became_of_everything(running, caplog):
    """The last lines of a run add up."""
    service = await running()
    await node(service, Kind.RECEIVER, "probe").emit(logs(3))
    with caplog.at_level("INFO", logger="sidecar.service"):
        await service.stop()
    assert "balance: receivers/probe: accepted 3 + refused 0 log_records" in caplog.messages
    assert "balance: exporters/queued: received 3 = delivered 3 + stored 0 + dropped 0" in caplog.messages


async def test_a_signal_that_a_component_does_not_take_is_a_problem_of_the_document():
    """The message names the component, the signal and its place."""
    from support.components import ProbeExporter

    from sidecar import Exporter, Signal

    assert issubclass(ProbeExporter, Exporter)
    ProbeExporter.signals = frozenset({Signal.METRICS})
    try:
        with pytest.raises(ConfigError, match=r"pipelines.logs.exporters\[0\]: probe has no logs; it has metrics"):
            Service(resolved(BASIC), REGISTRY)
    finally:
        del ProbeExporter.signals


# Reload.


async def test_an_equal_document_changes_nothing(running, journal):
    """Every component is the same object afterwards."""
    service = await running()
    before = dict(service.graph.nodes)
    journal.clear()
    graph = await service.reload(resolved(BASIC))
    assert {key: one.component for key, one in before.items()} == {
        key: one.component for key, one in graph.nodes.items()
    }
    assert (journal, str(graph.plan)) == ([], "nothing changed")


async def test_a_changed_exporter_takes_over_what_waits_for_the_old_one(running):
    """Nothing that was accepted before the reload is lost, and equal components stay."""
    service = await running()
    old, receiver = node(service, Kind.EXPORTER, "queued"), node(service, Kind.RECEIVER, "probe")
    old.hold.clear()
    for number in range(10):
        await receiver.emit(logs(1, body=f"n{number}"))
    yaml = BASIC.replace("queued: {", "queued: {label: new, ")
    await service.reload(resolved(yaml))
    new = node(service, Kind.EXPORTER, "queued")
    assert new is not old
    assert node(service, Kind.RECEIVER, "probe") is receiver
    old.hold.set()
    await receiver.emit(logs(1, body="after"))
    await service.stop()
    arrived = [text for batch in old.batches + new.batches for text in bodies(batch)]
    assert sorted([*(f"n{number} 0" for number in range(10)), "after 0"]) == sorted(arrived)
    assert len(new.batches) >= 7  # four at most were under way


async def test_a_removed_exporter_sends_what_it_holds(running):
    """Its queue drains while the new document runs already."""
    service = await running()
    old, receiver = node(service, Kind.EXPORTER, "queued"), node(service, Kind.RECEIVER, "probe")
    old.hold.clear()
    await receiver.emit(logs(1))
    await service.reload(resolved(BASIC.replace("[probe, queued]", "[probe]")))
    await receiver.emit(logs(1))
    old.hold.set()
    await service.stop()
    assert len(old.batches) == 1
    assert len(node(service, Kind.EXPORTER, "probe").batches) == 2


async def test_nothing_is_shown_of_a_component_that_is_gone(running):
    """Neither in health nor in the metrics; what is kept stays in both."""
    service = await running()
    await node(service, Kind.RECEIVER, "probe").emit(logs(1))
    yaml = BASIC.replace("[probe, queued]", "[probe]").replace("processors: [probe]", "processors: []")
    await service.reload(resolved(yaml))
    await service.stop()
    shown = {name for name in service.host.board.components if "queued" in name or "processors" in name}
    metrics = service.host.metrics
    labels = {label for family in metrics.families() for key in family.series for label in key}
    assert shown == set()
    assert not labels & {("exporter", "queued"), ("processor", "probe")}
    assert {("exporter", "probe"), ("receiver", "probe")} <= labels


async def test_nothing_is_held_of_documents_that_were_replaced(running):
    """However often: the components that are kept hold no graph, and successors not those before them."""
    service = await running()
    replaced = []
    for number in range(5):
        replaced += [weakref.ref(service.graph), weakref.ref(node(service, Kind.EXPORTER, "queued"))]
        await service.reload(resolved(BASIC.replace("queued: {", f"queued: {{label: n{number}, ")))
        await node(service, Kind.RECEIVER, "probe").emit(logs(1))
    await service.stop()
    gc.collect()
    assert [one() for one in replaced] == [None] * 10


async def test_a_successor_takes_over_the_state_of_its_predecessor(running):
    """A changed component of the same id and class is given the old one."""
    service = await running()
    old = node(service, Kind.EXPORTER, "probe")
    await service.reload(resolved(BASIC.replace("exporters: {probe: ,", "exporters: {probe: {label: new},")))
    assert node(service, Kind.EXPORTER, "probe").carried is old


async def test_a_new_pipeline_gets_data_from_a_kept_receiver(running):
    """Only the way behind the receiver changes."""
    service = await running()
    receiver = node(service, Kind.RECEIVER, "probe")
    added = "pipelines: {traces: {receivers: [probe], exporters: [probe]}, "
    await service.reload(resolved(BASIC.replace("pipelines: {", added)))
    await receiver.emit(traces(1))
    assert len(node(service, Kind.EXPORTER, "probe").batches) == 1


async def test_a_component_that_can_not_start_leaves_everything_as_it_was(running, journal):
    """The old components run on, untouched, and are the ones that health shows."""
    service = await running()
    before = dict(service.graph.nodes)
    with pytest.raises(StartError):
        await service.reload(resolved(BASIC.replace("queued: {", "queued: {fail: true, ")))
    assert service.graph.nodes == before
    await node(service, Kind.RECEIVER, "probe").emit(logs(1))
    assert {one.status for one in service.host.board.components.values()} == {"ok"}


async def test_what_depends_on_a_changed_extension_is_made_anew(running):
    """A component can't outlive the extension that it has asked for."""
    yaml = BASIC.replace("exporters: {probe: ,", "exporters: {probe: {extension: helper},")
    service = await running(yaml)
    old, queued = node(service, Kind.EXPORTER, "probe"), node(service, Kind.EXPORTER, "queued")
    await service.reload(resolved(yaml.replace("{helper: }", "{helper: {label: new}}")))
    assert node(service, Kind.EXPORTER, "probe") is not old
    assert node(service, Kind.EXPORTER, "queued") is queued


async def test_processors_hand_on_what_they_hold_to_the_pipeline_that_they_belonged_to(running):
    """A removed processor flushes into an exporter that stays."""
    yaml = BASIC.replace("processors: {probe: }", "processors: {probe: , holding: }").replace(
        "processors: [probe]", "processors: [holding]"
    )
    service = await running(yaml)
    receiver = node(service, Kind.RECEIVER, "probe")
    await receiver.emit(logs(1, body="held"))
    await service.reload(resolved(BASIC))
    await service.stop()
    assert [["held 0"]] == [bodies(batch) for batch in node(service, Kind.EXPORTER, "queued").batches]
