"""Components for tests of the document: settings classes as authors write them, without anything that runs."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from config import Duration, Endpoint, Ignored, Rate, Secret, SettingError, Settings, Size, Url
from config.problems import did_you_mean
from config.resolve import resolve as resolve_document


class GrpcSettings(Settings):
    """One of two servers."""

    endpoint: Endpoint = Endpoint("localhost:4317")
    max_recv_msg_size_mib: Annotated[int, msgspec.Meta(ge=1, description="The largest message, in MiB.")] = 4
    read_buffer_size: Ignored = None


class HttpSettings(Settings):
    """The other server."""

    endpoint: Endpoint = Endpoint("localhost:4318")
    max_request_body_size: Size = Size("20MiB")


class ProtocolsSettings(Settings):
    """Which servers there are."""

    grpc: GrpcSettings | None = None
    http: HttpSettings | None = None

    def __post_init__(self):
        if self.grpc is None and self.http is None:
            raise SettingError("must name at least one protocol; write `grpc:`, `http:` or both")


class OtlpReceiverSettings(Settings):
    """Receives OTLP."""

    protocols: ProtocolsSettings


class MemoryLimiterSettings(Settings):
    """Refuses when memory is short."""

    check_interval: Duration
    limit_mib: int = 0
    spike_limit_mib: int = 0


class BatchSettings(Settings):
    """Joins.

    Attributes:
        timeout: after which a batch is sent, whatever
            its size.
        send_batch_size, send_batch_max_size: in items.
    """

    timeout: Duration = Duration("200ms")
    send_batch_size: int = 8192
    send_batch_max_size: int = 0


class RateLimitSettings(Settings):
    """Limits. `rate`: how much of it. `burst`: how much at once."""

    rate: Rate = Rate("100/m")
    burst: Annotated[int, msgspec.Meta(multiple_of=5)] = 200
    unit: Annotated[str, msgspec.Meta(pattern="^[a-z]+$")] = "items"
    key: tuple[str, ...] = ("identity",)


class QueueSettings(Settings):
    """A queue."""

    enabled: bool = True
    queue_size: int = 1000
    batch: BatchSettings | None = BatchSettings()


class OtlpExporterSettings(Settings):
    """Sends OTLP."""

    endpoint: str
    headers: dict[str, Secret] = msgspec.field(default_factory=dict)
    compression: Literal["gzip", "none"] = "gzip"
    sending_queue: QueueSettings = QueueSettings()


class DatadogSettings(Settings):
    """Sends to an account."""

    key: Secret = Secret()
    endpoint: Url | None = None


class DebugSettings(Settings):
    """Prints."""

    verbosity: Literal["basic", "normal", "detailed"] = "basic"


class HealthSettings(Settings):
    """Answers."""

    endpoint: Endpoint = Endpoint("localhost:13133")


class CountSettings(Settings):
    """Counts."""


INSTALLED = {
    "receivers": {"otlp": OtlpReceiverSettings},
    "processors": {"batch": BatchSettings, "memory_limiter": MemoryLimiterSettings, "rate_limit": RateLimitSettings},
    "exporters": {
        "datadog": DatadogSettings,
        "debug": DebugSettings,
        "logging": DebugSettings,
        "otlp": OtlpExporterSettings,
    },
    "connectors": {"count": CountSettings},
    "extensions": {"health_check": HealthSettings},
}


def settings_of(kind, type_name):
    """The settings class of an installed component."""
    installed = INSTALLED[kind]
    if type_name not in installed:
        raise LookupError(f"no {kind[:-1]} {type_name!r} is installed{did_you_mean(type_name, installed, 'installed')}")
    return installed[type_name]


def deprecated(kind, type_name):
    """The new name of a component."""
    return "debug" if (kind, type_name) == ("exporters", "logging") else None


def resolve(document):
    """A document, checked against these components."""
    return resolve_document(document, settings_of, deprecated)
