"""The lists of keys that a document names instead of writing them out."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Final, Literal, TypeAlias

from sidecar.events.datadog_keys import (
    CHECK_NAME,
    CHECK_STATUS,
    EVENT_AGGREGATION_KEY,
    EVENT_ALERT_TYPE,
    EVENT_PRIORITY,
    EVENT_SOURCE_TYPE,
    EVENT_TITLE,
)
from sidecar.events.keys import ATTRIBUTE_KEYS, FIELD_KEYS, RESOURCE_KEYS

Preset: TypeAlias = Literal["telemetry_event", "otel_semconv", "datadog"]

SEMCONV_FILE: Final = Path(__file__).with_name("semconv.txt")

TRACE_CONTEXT: Final = frozenset(
    {"trace_id", "span_id", "trace_flags", "traceparent", "dd.trace_id", "dd.span_id", "otel.trace_id", "otel.span_id"}
)
"""Keys under which logging libraries write the ids of the trace (OpenTelemetry, "Trace Context in non-OTLP Log
Formats", and Datadog's own). They are ids alone, and the correlation processor needs them."""

DATADOG_ATTRIBUTES: Final = frozenset(
    {
        # What a span is, and what its tracer has decided.
        "operation.name", "span.type", "span.kind", "component", "_sampling_priority_v1", "_dd.agent_psr",
        "_dd.base_service", "_dd.hostname", "_dd.limit_psr", "_dd.measured", "_dd.origin", "_dd.p.dm",
        "_dd.peer.service.source", "_dd.rule_psr", "_dd.top_level",
        # Where it ran, and whom it called.
        "env", "version", "language", "lang", "lang_interpreter", "lang_version", "tracer_version", "runtime-id",
        "process_id", "out.host", "network.destination.name", "network.destination.port",
        # As `exception.message` and `exception.stacktrace`: a fault can't be found without them.
        "error.message", "error.stack",
        # Events and service checks.
        EVENT_TITLE, EVENT_ALERT_TYPE, EVENT_PRIORITY, EVENT_AGGREGATION_KEY, EVENT_SOURCE_TYPE, CHECK_NAME,
        CHECK_STATUS,
    }
)  # fmt: skip
"""Keys that Datadog's tracers and DogStatsD clients write themselves, beside those of `otel_semconv`. Not among them: a
span's resource, which may be a statement with its values, and tags that programs choose."""
DATADOG_RESOURCE: Final = frozenset({"runtime-id"})


def attribute_keys(presets: Iterable[Preset]) -> frozenset[str]:
    """What the presets let pass on log records, spans, data points and what belongs to them."""
    return _union(presets, FIELD_KEYS | ATTRIBUTE_KEYS, DATADOG_ATTRIBUTES)


def resource_keys(presets: Iterable[Preset]) -> frozenset[str]:
    """What the presets let pass on resources."""
    return _union(presets, RESOURCE_KEYS, DATADOG_RESOURCE)


def _union(presets: Iterable[Preset], of_events: frozenset[str], of_datadog: frozenset[str]) -> frozenset[str]:
    lists = {"telemetry_event": of_events, "otel_semconv": _semconv_keys(), "datadog": of_datadog}
    return frozenset[str]().union(*(lists[preset] for preset in presets))


@cache
def _semconv_keys() -> frozenset[str]:
    return TRACE_CONTEXT.union(SEMCONV_FILE.read_text(encoding="utf-8").split())
