"""The lists of keys that a document names instead of writing them out."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Final, Literal, TypeAlias

from sidecar.events.keys import ATTRIBUTE_KEYS, FIELD_KEYS, RESOURCE_KEYS

Preset: TypeAlias = Literal["telemetry_event", "otel_semconv"]

SEMCONV_FILE: Final = Path(__file__).with_name("semconv.txt")

TRACE_CONTEXT: Final = frozenset(
    {"trace_id", "span_id", "trace_flags", "traceparent", "dd.trace_id", "dd.span_id", "otel.trace_id", "otel.span_id"}
)
"""Keys under which logging libraries write the ids of the trace (OpenTelemetry, "Trace Context in non-OTLP Log
Formats", and Datadog's own). They are ids alone, and the correlation processor needs them."""


def attribute_keys(presets: Iterable[Preset]) -> frozenset[str]:
    """What the presets let pass on log records, spans, data points and what belongs to them."""
    return _union(presets, FIELD_KEYS | ATTRIBUTE_KEYS)


def resource_keys(presets: Iterable[Preset]) -> frozenset[str]:
    """What the presets let pass on resources."""
    return _union(presets, RESOURCE_KEYS)


def _union(presets: Iterable[Preset], of_events: frozenset[str]) -> frozenset[str]:
    lists = {"telemetry_event": of_events, "otel_semconv": _semconv_keys()}
    return frozenset[str]().union(*(lists[preset] for preset in presets))


@cache
def _semconv_keys() -> frozenset[str]:
    return TRACE_CONTEXT.union(SEMCONV_FILE.read_text(encoding="utf-8").split())
