"""The top level of a document: components by id, and the service made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal, Self

import msgspec

from config.decode import Decoder, Located
from config.ids import ComponentId
from config.nodes import Node
from config.problems import Problem
from config.settings import Ignored, SettingError, Settings
from config.source import read
from config.units import Duration, Ratio, Secret

KINDS: Final = {
    "receivers": "receiver",
    "processors": "processor",
    "exporters": "exporter",
    "connectors": "connector",
    "extensions": "extension",
}
SIGNALS: Final = ("traces", "metrics", "logs")


def _exactly_one(settings: Settings, *names: str) -> None:
    if sum(getattr(settings, name) is not None for name in names) != 1:
        raise SettingError(f"exactly one of {' and '.join(names)} must be written")


class PipelineSettings(Settings):
    """The way of one signal: in by any of the receivers, through all processors in order, out by every exporter."""

    receivers: tuple[ComponentId, ...] = ()
    processors: tuple[ComponentId, ...] = ()
    exporters: tuple[ComponentId, ...] = ()


class Milliseconds(Duration):
    """A duration of which a bare number means milliseconds, as in OpenTelemetry's declarative configuration."""

    __slots__ = ()
    takes_numbers = True

    def __new__(cls, value: str | float) -> Self:
        """Read text, or take milliseconds."""
        return super().__new__(cls, value if isinstance(value, str) else value / 1000)


class HeaderSettings(Settings):
    """One header of a list."""

    name: str
    value: Secret = Secret()


class OtlpReaderSettings(Settings):
    """Own metrics, sent as OTLP."""

    protocol: Literal["http/protobuf", "grpc"] = "http/protobuf"
    endpoint: str = "http://localhost:4318"
    headers: dict[str, Secret] | tuple[HeaderSettings, ...] = msgspec.field(default_factory=dict)
    compression: Literal["gzip", "none"] | None = None
    insecure: bool | None = None
    timeout: Milliseconds = Milliseconds("10s")
    temporality_preference: Ignored = None
    default_histogram_aggregation: Ignored = None


class ConsoleReaderSettings(Settings):
    """Own metrics, printed."""


class PeriodicExporterSettings(Settings):
    """Where own metrics are sent. One of these is to be written."""

    otlp: OtlpReaderSettings | None = None
    console: ConsoleReaderSettings | None = None

    def __post_init__(self) -> None:
        _exactly_one(self, "otlp", "console")


class PeriodicReaderSettings(Settings):
    """Own metrics, sent once per interval."""

    exporter: PeriodicExporterSettings
    interval: Milliseconds = Milliseconds("60s")
    timeout: Milliseconds = Milliseconds("30s")


class PrometheusReaderSettings(Settings):
    """Own metrics at http://host:port/metrics."""

    host: str = "localhost"
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 8888
    without_type_suffix: bool = False
    without_units: bool = False
    without_scope_info: bool = False
    without_target_info: Ignored = None
    with_resource_constant_labels: Ignored = None


class PullExporterSettings(Settings):
    """How own metrics are offered."""

    prometheus: PrometheusReaderSettings


class PullReaderSettings(Settings):
    """Own metrics, fetched by somebody."""

    exporter: PullExporterSettings


class ReaderSettings(Settings):
    """One way in which own metrics leave: `pull` (somebody fetches them) or `periodic` (they are sent)."""

    pull: PullReaderSettings | None = None
    periodic: PeriodicReaderSettings | None = None

    def __post_init__(self) -> None:
        _exactly_one(self, "pull", "periodic")


# As in the Collector: without a reader in the document, names carry no suffixes.
_DEFAULT_READER: Final = ReaderSettings(
    pull=PullReaderSettings(
        exporter=PullExporterSettings(
            prometheus=PrometheusReaderSettings(without_type_suffix=True, without_units=True, without_scope_info=True)
        )
    )
)


class OwnMetricsSettings(Settings):
    """The sidecar's own metrics."""

    level: Literal["none", "basic", "normal", "detailed"] = "normal"
    readers: tuple[ReaderSettings, ...] = (_DEFAULT_READER,)
    views: Ignored = None


class OwnLogsSettings(Settings):
    """The sidecar's own log, on standard error."""

    level: Literal["debug", "info", "warn", "error"] = "info"
    encoding: Literal["console", "json"] = "console"
    development: Ignored = None
    disable_caller: Ignored = None
    disable_stacktrace: Ignored = None
    error_output_paths: Ignored = None
    initial_fields: Ignored = None
    output_paths: Ignored = None
    processors: Ignored = None
    sampling: Ignored = None


class AttributeSettings(Settings):
    """One attribute of a list."""

    name: str
    value: str


class ResourceSettings(Settings):
    """What the sidecar says of itself, in the newer spelling."""

    attributes: tuple[AttributeSettings, ...]
    schema_url: Ignored = None


class SpanExporterSettings(Settings):
    """Where own spans are sent. One of these is to be written."""

    otlp: OtlpReaderSettings | None = None
    console: ConsoleReaderSettings | None = None

    def __post_init__(self) -> None:
        _exactly_one(self, "otlp", "console")


class SpanExportSettings(Settings):
    """An exporter of own spans."""

    exporter: SpanExporterSettings
    schedule_delay: Ignored = None
    export_timeout: Ignored = None
    max_queue_size: Ignored = None
    max_export_batch_size: Ignored = None


class DdtraceSettings(Settings):
    """Own spans through ddtrace, which DD_TRACE_AGENT_URL and its other variables configure."""


class SpanProcessorSettings(Settings):
    """One way in which own spans leave: in batches, almost at once, or through ddtrace, which is then the only one."""

    batch: SpanExportSettings | None = None
    simple: SpanExportSettings | None = None
    ddtrace: DdtraceSettings | None = None

    def __post_init__(self) -> None:
        _exactly_one(self, "batch", "simple", "ddtrace")


class OwnTracesSettings(Settings):
    """Spans of the sidecar's own work: around each request of a receiver, and each attempt of an exporter.

    `sampling_ratio`: the share of requests that get a span.
    """

    level: Literal["none", "basic", "normal", "detailed"] = "normal"
    processors: tuple[SpanProcessorSettings, ...] = ()
    sampling_ratio: Ratio = Ratio(1)
    propagators: Ignored = None
    sampler: Ignored = None

    def __post_init__(self) -> None:
        if len(self.processors) > 1 and any(one.ddtrace is not None for one in self.processors):
            raise SettingError("ddtrace can't be combined with other processors; write it alone", "processors")


class TelemetrySettings(Settings):
    """What the sidecar says of itself."""

    logs: OwnLogsSettings = OwnLogsSettings()
    metrics: OwnMetricsSettings = OwnMetricsSettings()
    traces: OwnTracesSettings = OwnTracesSettings()
    resource: dict[str, str | None] | ResourceSettings = msgspec.field(default_factory=dict)

    def resource_attributes(self) -> Mapping[str, str | None]:
        """Attributes to set on the sidecar's own resource; None takes a default one away."""
        if isinstance(self.resource, ResourceSettings):
            return {attribute.name: attribute.value for attribute in self.resource.attributes}
        return self.resource


class ServiceSettings(Settings):
    """Which of the components run, and how they are joined.

    `workers` is there to say why there is no more than one.
    """

    extensions: tuple[ComponentId, ...] = ()
    pipelines: dict[ComponentId, PipelineSettings] = msgspec.field(default_factory=dict)
    telemetry: TelemetrySettings = TelemetrySettings()
    shutdown_timeout: Duration = Duration("30s")
    workers: int = 1

    def __post_init__(self) -> None:
        if self.workers != 1:
            raise SettingError(
                "can only be 1: Prometheus would scrape one of several processes at random, each would let pass the "
                "whole of a rate limit, and no two can hold a queue on disk; one process uses more than a core, and "
                "operations.md ('More than one process') says how to run several documents",
                "workers",
            )


class Sections(Settings):
    """A whole document."""

    receivers: dict[ComponentId, Located] = msgspec.field(default_factory=dict)
    processors: dict[ComponentId, Located] = msgspec.field(default_factory=dict)
    exporters: dict[ComponentId, Located] = msgspec.field(default_factory=dict)
    connectors: dict[ComponentId, Located] = msgspec.field(default_factory=dict)
    extensions: dict[ComponentId, Located] = msgspec.field(default_factory=dict)
    service: ServiceSettings = ServiceSettings()

    def components(self) -> dict[tuple[str, ComponentId], Located]:
        """Every component that is written, by kind and id."""
        return {(kind, name): body for kind in KINDS for name, body in getattr(self, kind).items()}


@dataclass(frozen=True)
class Document:
    """A document whose top level has been read. What is wrong with it so far is in `problems`."""

    sections: Sections
    root: Node
    problems: tuple[Problem, ...]


def load(sources: Sequence[str], environ: Mapping[str, str] | None = None) -> Document:
    """Read a document from its sources (see `source.read`).

    Raises:
        ConfigError: a source can't be read. Everything else is in the document's `problems`.
    """
    root, problems = read(sources, environ)
    sections = Decoder(problems, tolerant=True).value(Sections, root, ())
    return Document(sections, root, tuple(problems))
