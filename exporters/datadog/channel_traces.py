"""Traces and their statistics, from batches to requests."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from exporters.datadog import stats
from exporters.datadog.courier import Courier
from exporters.datadog.delivery import Body, Request, Route
from exporters.datadog.intake import VERSION
from exporters.datadog.obfuscation import obfuscate, obfuscate_statistics
from exporters.datadog.once import key_of
from exporters.datadog.points import ClientStats
from exporters.datadog.resource import Defaults, Origins, is_local
from exporters.datadog.settings import Account, DatadogSettings
from exporters.datadog.spans import SpanMapper
from exporters.datadog.trace_bodies import (
    agent_bodies,
    agent_headers,
    divide_agent_body,
    divide_intake_body,
    intake_bodies,
)
from exporters.datadog.traces import Group, TraceMapper, sampled
from exporters.datadog.wire.datadog_pb2 import AgentPayload
from sidecar import Batch, Context, Signal
from sidecar.reading import read

TRACES_PATH: Final = "/api/v0.2/traces"
STATS_PATH: Final = "/api/v0.2/stats"
AGENT_PATH: Final = "/v0.4/traces"
AGENT_STATS_PATH: Final = "/v0.6/stats"
_FLUSH_INTERVAL: Final = 10.0
_AGENT_HEADERS: Final = {
    "Datadog-Meta-Tracer-Version": VERSION,
    "Datadog-Client-Computed-Top-Level": "yes",
    # Without it an Agent that has no room answers 200 and drops.
    "Datadog-Send-Real-Http-Status": "1",
}
_WITH_STATS: Final = {**_AGENT_HEADERS, "Datadog-Client-Computed-Stats": "yes"}


class TracesChannel:
    """Makes requests of batches of spans: for an Agent where one is configured, else for Datadog's intake.

    Without an Agent it also does what an Agent would: it takes values out of queries, counts every span, before the
    sampling decisions in the spans are followed, and hands the statistics to a courier every ten seconds.
    """

    def __init__(
        self,
        settings: DatadogSettings,
        account: Account,
        origins: Origins,
        defaults: Defaults,
        courier: Courier,
        context: Context,
    ) -> None:
        self._context = context
        self._courier = courier
        traces = settings.traces
        self._mapper = TraceMapper(
            origins,
            SpanMapper(
                span_name_as_operation=traces.span_name_as_resource_name, remappings=traces.span_name_remappings
            ),
            tuple(re.compile(pattern) for pattern in traces.ignore_resources),
            self._left_out,
        )
        self._agent = _AgentRoutes(traces.agent_url) if traces.agent_url else None
        self._obfuscates = traces.obfuscation.enabled
        self._route = Route(
            account.url("trace.agent", TRACES_PATH, traces.endpoint), "application/x-protobuf", divide_intake_body
        )
        self._stats_route = Route(
            account.url("trace.agent", STATS_PATH, traces.endpoint, TRACES_PATH), "application/msgpack"
        )
        self._sender = AgentPayload(host_name=defaults.this_host, env=defaults.env, agent_version=VERSION)
        self._stats_sender = stats.Sender(defaults.this_host, defaults.env, VERSION)
        folded = context.meter.counter(
            "sidecar_datadog_folded_spans", "Spans counted without their resource, since there are too many of those."
        )
        self._concentrator = stats.Concentrator(on_folded=lambda: folded.add(1))

    def start(self) -> None:
        """Begin to send statistics."""
        if not self._agent:
            self._context.spawn(self._flush_for_ever(), "statistics")

    def stop(self) -> None:
        """Hand all statistics to the courier, those of the current ten seconds too."""
        self._flush(None)

    def requests(self, batch: Batch) -> Iterator[Request]:
        """The requests that carry a batch. Its spans are counted when the first one is asked for."""
        groups = self._mapper.map(read(batch), local=is_local(batch.context.peer))
        if self._agent:
            yield from self._agent.requests(groups)
            return
        if self._obfuscates:
            obfuscate(groups)
        self._concentrator.add(groups, self._context.clock.time_ns())
        for body in intake_bodies(sampled(groups, self._left_out), self._sender):
            yield Request.make(self._route, body)

    def stats_requests(self, computed: Iterable[ClientStats]) -> Iterator[Request]:
        """The requests that carry statistics which tracers have computed: of equal messages only one is sent."""
        for one in computed:
            units, once = [tuple(one.items)], key_of(one.message)
            if self._agent:
                yield Request.make(self._agent.stats, Body(one.message, units, once=once))
            elif payload := stats.forwarded(one):
                if self._obfuscates:
                    obfuscate_statistics(payload)
                data = self._stats_sender.payload([payload], computed_by_client=True, is_part=False)
                yield Request.make(self._stats_route, Body(data, units, once=once))
            else:
                self._context.dropped(Signal.METRICS, "malformed", len(one.items))

    def _left_out(self, reason: str, spans: int) -> None:
        self._context.dropped(Signal.TRACES, reason, spans)

    async def _flush_for_ever(self) -> None:
        while True:
            await asyncio.sleep(_FLUSH_INTERVAL)
            self._flush(self._context.clock.time_ns())

    def _flush(self, now_ns: int | None) -> None:
        payloads = list(self._concentrator.flush(now_ns))
        for data in stats.encode(payloads, self._stats_sender):
            self._courier.offer(Request.make(self._stats_route, Body(data, ())))


class _AgentRoutes:
    """The receiver of an Agent, which gets no API key."""

    def __init__(self, url: str) -> None:
        socket = url.removeprefix("unix:").removeprefix("//") if url.startswith("unix:") else ""
        base = "http://localhost" if socket else url.rstrip("/")

        def route(path: str, headers: Mapping[str, str], **options: Any) -> Route:
            shape = {"compression": "none", "headers": headers, "socket": socket, "with_key": False}
            return Route(base + path, "application/msgpack", **{**shape, **options})

        bodies = {"divide": divide_agent_body, "headers_for": agent_headers}
        self._traces = route(AGENT_PATH, _AGENT_HEADERS, **bodies)
        self._counted_traces = route(AGENT_PATH, _WITH_STATS, **bodies)
        self.stats = route(AGENT_STATS_PATH, _AGENT_HEADERS)

    def requests(self, groups: list[Group]) -> Iterator[Request]:
        """The requests that carry groups: apart from each other those whose sender has counted them, and the others."""
        for has_stats, route in ((False, self._traces), (True, self._counted_traces)):
            for body in agent_bodies(group for group in groups if group.has_stats is has_stats):
                yield Request.make(route, body)
