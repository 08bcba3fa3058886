"""Carries out `service.telemetry.traces`: spans of the sidecar's own work, through the SDK or through ddtrace.

One span around each request that a receiver hands on, and one around each attempt of an exporter. They may be sent to
the sidecar itself: what carries them is not traced again.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, Literal

from config.document import TelemetrySettings
from sidecar.batch import Batch
from sidecar.sdk_exporters import make_exporter
from sidecar.signals import Signal
from sidecar.telemetry.tracing import SERVICE_NAME, Tracing

_SIMPLE_DELAY_MILLIS: Final = 100


class OwnTraces(Tracing):
    """Makes spans by the settings of one document. `stop` sends what is left."""

    def __init__(self, settings: TelemetrySettings) -> None:
        from opentelemetry import trace  # brings in the SDK, which few documents need

        self._kinds = {"server": trace.SpanKind.SERVER, "client": trace.SpanKind.CLIENT}
        self._provider: Any = _provider(settings)
        self._tracer = self._provider.get_tracer("sidecar")

    async def stop(self) -> None:
        """Send what is left."""
        if shut_down := getattr(self._provider, "shutdown", None):
            await asyncio.to_thread(shut_down)

    def span(self, name: str, kind: Literal["server", "client"], batch: Batch) -> AbstractContextManager[Any]:
        """As the base says. None around batches that carry the sidecar's own spans."""
        if batch.context.is_own or (kind == "server" and _carries_own_spans(batch)):
            return nullcontext()
        attributes = {"otel_signal": batch.signal.value, "items": len(batch), "transport": batch.context.transport}
        span: AbstractContextManager[Any] = self._tracer.start_as_current_span(
            name, kind=self._kinds[kind], attributes=attributes
        )
        return span


def tracing_for(settings: TelemetrySettings) -> Tracing:
    """What makes the spans that a document asks for."""
    wanted = settings.traces.level != "none" and settings.traces.processors
    return OwnTraces(settings) if wanted else Tracing()


def _carries_own_spans(batch: Batch) -> bool:
    """Whether the spans of a batch come from a sidecar; the batch is marked then, for those who see it later."""
    if batch.signal is not Signal.TRACES or not batch.resources():
        return False
    attributes = batch.resources()[0].resource.attributes
    names = (pair.value.string_value for pair in attributes if pair.key == "service.name")
    if is_own := SERVICE_NAME in names:
        batch.mark_own()
    return is_own


def _provider(settings: TelemetrySettings) -> Any:
    """The provider: ddtrace's where the document names it, else the SDK's with an exporter for each processor."""
    if any(processor.ddtrace is not None for processor in settings.traces.processors):
        return _ddtrace_provider()
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

    labels = {name: value for name, value in settings.resource_attributes().items() if value is not None}
    provider = TracerProvider(
        resource=Resource.create({**labels, "service.name": SERVICE_NAME}),
        sampler=ParentBasedTraceIdRatio(settings.traces.sampling_ratio),
        shutdown_on_exit=False,
    )
    for processor in settings.traces.processors:
        # The SDK's simple processor would send on the event loop, and wait there; a short delay is as good.
        delay = None if processor.batch is not None else _SIMPLE_DELAY_MILLIS
        chosen = processor.batch or processor.simple
        if chosen is not None:
            exporter = make_exporter(chosen.exporter.otlp, "traces")
            provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=delay))
    return provider


def _ddtrace_provider() -> Any:
    """Ddtrace's OpenTelemetry provider, which DD_TRACE_AGENT_URL and its other variables configure."""
    import ddtrace
    from ddtrace.opentelemetry import TracerProvider

    ddtrace.config.service = SERVICE_NAME
    return TracerProvider()
