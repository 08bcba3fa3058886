"""The document changes again and again under load: nobody is refused, and every record arrives where it was meant to.

`RELOADS=200` makes many more of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.datadog_intake import DatadogIntake
from support.delivery import GrpcSender, GrpcSink, HttpSender, HttpSink, Ports, Sender, seeds
from support.main_job import get
from support.processes import SidecarProcess, find_free_port

from sidecar.control import ask_to_reload

RELOADS = 20
RECORDS = 25
PAUSE = 0.05  # four senders then send 2,000 records a second
EXPORTERS = ("otlp", "otlp_http", "datadog", "prometheus")
PROCESSORS = ("memory_limiter", "batch", "correlation", "rate_limit")
BROKEN = ("exporters: [", "receivers: {nope: {}}", "exporters: {otlp: {endpoint: 7, wrong: 1}}", "service: {}")

DOCUMENT = """
receivers:
  otlp: {{protocols: {{grpc: {{endpoint: "127.0.0.1:{ports.grpc}"}}, http: {{endpoint: "127.0.0.1:{ports.http}"}}}}}}
processors:
  memory_limiter: {{limit_mib: {number}}}
  batch: {{send_batch_size: 200, timeout: 50ms}}
  correlation:
  rate_limit: {{rate: 1000000/s, burst: 1000000, anonymous: {{rate: 1000000/s, burst: 1000000}}}}
exporters:
  otlp: {{endpoint: "http://{grpc}", compression: none, timeout: {number}s, sending_queue: {queue}}}
  otlp_http: {{endpoint: "{http}", compression: none, timeout: {number}s, sending_queue: {queue}}}
  datadog: {{api: {{key: made-up}}, logs: {{endpoint: "{datadog}"}}, sending_queue: {queue}}}
  prometheus: {{endpoint: "127.0.0.1:{scrape}"}}
service:
  shutdown_timeout: 20s
  telemetry: {{metrics: {{level: none}}}}
  pipelines:
    logs: {{receivers: [otlp], processors: [{processors}], exporters: [{exporters}]}}
"""


@dataclass
class Documents:
    """Makes documents, and knows which ones may have been in force when."""

    sinks: dict[str, object]
    chance: random.Random
    ports: Ports = field(default_factory=Ports)
    scrape: int = field(default_factory=find_free_port)
    generations: list[frozenset[str]] = field(default_factory=list)
    begun: int = 0
    ended: int = 0

    def make(self, exporters: list[str]) -> str:
        """A document with these exporters, and whatever else may change."""
        chance = self.chance
        self.generations.append(frozenset(exporters))
        consumers = chance.choice([1, 4])
        return DOCUMENT.format(
            ports=self.ports,
            grpc=self.sinks["otlp"].address,
            http=self.sinks["otlp_http"].url,
            datadog=self.sinks["datadog"].url,
            scrape=self.scrape,
            number=chance.randint(500, 505),
            queue=f"{{num_consumers: {consumers}, batch: {{flush_timeout: {chance.choice([20, 80])}ms}}}}",
            processors=", ".join(name for name in PROCESSORS if chance.random() < 0.5),
            exporters=", ".join(exporters),
        )

    def some(self) -> list[str]:
        """One to three exporters."""
        return self.chance.sample(EXPORTERS, self.chance.randint(1, 3))


def noting(kind: type[Sender], documents: Documents) -> type[Sender]:
    """A sender that notes between which generations of the document each record was accepted."""

    class Noting(kind):
        def __init__(self, *arguments, **settings) -> None:
            super().__init__(*arguments, **settings)
            self.accepted: dict[str, tuple[int, int]] = {}

        async def _deliver(self, body, texts):
            first = documents.ended
            await super()._deliver(body, texts)
            self.accepted |= dict.fromkeys(texts, (first, documents.begun))

    return Noting


@contextlib.asynccontextmanager
async def world(folder: Path, seed: int):
    """The sinks, the documents, and four senders that keep their connections."""
    async with GrpcSink() as grpc, HttpSink() as http, DatadogIntake() as datadog:
        sinks = {"otlp": grpc, "otlp_http": http, "datadog": datadog}
        documents = Documents(sinks, random.Random(seed))
        senders = [
            noting(kind, documents)(f"s{index}", documents.ports, size=RECORDS, pause=PAUSE)
            for index, kind in enumerate([GrpcSender, HttpSender] * 2)
        ]
        async with SidecarProcess(documents.make(["otlp"]), folder) as process:
            yield process, documents, senders
            for sender in senders:
                await sender.stop()


async def reload(process: SidecarProcess, document: str) -> tuple[bool, str]:
    """Write a document, and have the sidecar read it."""
    process.document.write_text(document)
    return await asyncio.to_thread(ask_to_reload, process.control)


@pytest.mark.parametrize("seed", seeds("RELOADS", each=RELOADS, small=RELOADS, ci=2 * RELOADS))
async def test_every_record_arrives_once_where_it_was_meant_to(tmp_path, seed):
    """Exporters and processors come, change and go, and documents break: nobody notices, nothing is lost or twice."""
    async with world(tmp_path, seed) as (process, documents, senders):
        for sender in senders:
            sender.start()
        for _ in range(RELOADS):
            await asyncio.sleep(documents.chance.uniform(0.05, 0.5))
            if documents.chance.random() < 0.25:
                succeeded, report = await reload(process, documents.chance.choice(BROKEN))
                assert not succeeded, report
                continue
            document = documents.make(documents.some())
            documents.begun = len(documents.generations) - 1
            succeeded, report = await reload(process, document)
            assert succeeded, report
            documents.ended = documents.begun
        await asyncio.sleep(0.3)
        for sender in senders:
            await sender.finish()
        ended = await process.stop()

    assert ended.code == 0, ended.output
    assert [] == [failure for sender in senders for failure in sender.failures]
    assert [] == [refusal for sender in senders for refusal in sender.refusals]
    accepted = sum(len(sender.accepted) for sender in senders)
    assert f"accepted {accepted} + refused 0" in ended.output
    assert accepted > RELOADS * 0.2 * 1000
    check_arrivals(documents, senders)


def check_arrivals(documents: Documents, senders: list[Sender]) -> None:
    """Each record arrived once at each exporter of one document that was in force then, and nowhere else."""
    sinks = documents.sinks
    times = {
        "otlp": sinks["otlp"].times,
        "otlp_http": sinks["otlp_http"].times,
        "datadog": Counter(log["message"] for log in sinks["datadog"].logs),
    }
    assert {name: [] for name in times} == {
        name: [text for text, number in found.items() if number > 1][:5] for name, found in times.items()
    }
    for sender in senders:
        for text, (first, last) in sender.accepted.items():
            arrived = {name for name, found in times.items() if found[text]}
            possible = [generation - {"prometheus"} for generation in documents.generations[first : last + 1]]
            assert arrived in possible, (text, arrived, possible)


async def test_prometheus_counts_everything_from_the_moment_on_it_is_named(tmp_path):
    """Swapped in under load, it shows at least what was accepted after the reload, and nothing twice."""
    async with world(tmp_path, seed=1000) as (process, documents, senders):
        for sender in senders:
            sender.start()
        await asyncio.sleep(0.5)
        before = sum(len(sender.accepted) for sender in senders)
        document = documents.make(["prometheus"])
        documents.begun = 1
        assert (await reload(process, document))[0]
        documents.ended = 1
        await asyncio.sleep(0.5)
        for sender in senders:
            await sender.finish()
        page = await get(f"http://127.0.0.1:{documents.scrape}/metrics", "text/plain")
    (shown,) = map(int, re.findall(r'^log_records_total\{service="api".*\} (\d+)', page, re.MULTILINE))
    spans = [span for sender in senders for span in sender.accepted.values()]
    assert spans.count((1, 1)) <= shown <= len(spans) - spans.count((0, 0))
    assert before > 0


async def test_a_real_sdk_notices_nothing(tmp_path):
    """The Python SDK's exporters over gRPC and HTTP export without a retry while exporters are swapped."""
    from support.python_sdk import EXPORTERS as SDK
    from support.python_sdk import logging_to

    from sidecar import Signal

    async with world(tmp_path, seed=2000) as (process, documents, _):
        ports = documents.ports
        exporters = [
            SDK["grpc"][Signal.LOGS](endpoint=f"127.0.0.1:{ports.grpc}", insecure=True),
            SDK["http/protobuf"][Signal.LOGS](endpoint=f"http://127.0.0.1:{ports.http}/v1/logs"),
        ]
        done = asyncio.Event()
        sending = [asyncio.create_task(asyncio.to_thread(send_by_sdk, one, logging_to, done)) for one in exporters]
        for _ in range(5):
            await asyncio.sleep(0.2)
            assert (await reload(process, documents.make(["otlp", *documents.some()])))[0]
        done.set()
        sent = sum(await asyncio.gather(*sending))
        ended = await process.stop()
    assert f"accepted {sent} + refused 0" in ended.output
    assert sum(documents.sinks["otlp"].times.values()) == sent


def send_by_sdk(exporter, logging_to, done: asyncio.Event) -> int:
    """Log until told otherwise. Returns how many records that were."""
    import time

    number = 0
    with logging_to(exporter) as logger:
        while not done.is_set():
            for _ in range(100):
                logger.emit(body=f"record {number}")
                number += 1
            logger_flush = getattr(logger, "force_flush", None)
            if logger_flush is not None:
                logger_flush()
            time.sleep(0.05)
    return number
