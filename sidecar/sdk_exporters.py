"""The OpenTelemetry SDK's own exporters, made from a document's settings: for what the sidecar says of itself."""

from __future__ import annotations

import importlib
from typing import Any, Literal, TypeAlias

from config.document import OtlpReaderSettings

What: TypeAlias = Literal["metrics", "traces"]

_MODULES = {"metrics": ("metric_exporter", "OTLPMetricExporter"), "traces": ("trace_exporter", "OTLPSpanExporter")}
_CONSOLE = {
    "metrics": ("opentelemetry.sdk.metrics.export", "ConsoleMetricExporter"),
    "traces": ("opentelemetry.sdk.trace.export", "ConsoleSpanExporter"),
}


def make_exporter(settings: OtlpReaderSettings | None, what: What) -> Any:
    """An exporter of the SDK: by OTLP, or without settings onto standard output."""
    if settings is None:
        module, name = _CONSOLE[what]
        return getattr(importlib.import_module(module), name)()
    package = f"opentelemetry.exporter.otlp.proto.{'grpc' if settings.protocol == 'grpc' else 'http'}"
    module, name = _MODULES[what]
    exporter = getattr(importlib.import_module(f"{package}.{module}"), name)
    arguments: dict[str, Any] = {
        "endpoint": settings.endpoint,
        "headers": _headers(settings),
        "timeout": settings.timeout,
    }
    if settings.protocol == "grpc":
        from grpc import Compression as GrpcCompression

        compressions: Any = GrpcCompression
        arguments["insecure"] = settings.insecure
    else:
        compressions = importlib.import_module(package).Compression
        path = f"/v1/{what}"
        arguments["endpoint"] = settings.endpoint.rstrip("/").removesuffix(path) + path
    arguments["compression"] = compressions.Gzip if settings.compression == "gzip" else compressions.NoCompression
    return exporter(**arguments)


def _headers(settings: OtlpReaderSettings) -> dict[str, str]:
    if isinstance(settings.headers, tuple):
        return {header.name: header.value.reveal() for header in settings.headers}
    return {name: value.reveal() for name, value in settings.headers.items()}
