"""Sends telemetry to another OTLP server over gRPC: a gateway, a backend, another sidecar."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import urlsplit

import grpc
import grpc.aio
import msgspec
from google.protobuf.message import DecodeError

from config.settings import Ignored
from sidecar import (
    SCHEMAS,
    Batch,
    Context,
    DeliveryError,
    DeliverySettings,
    Duration,
    Exporter,
    Permanent,
    Retryable,
    Secret,
    SettingError,
    Settings,
    Signal,
    TooLarge,
)
from sidecar.net.client_tls import ClientTlsSettings, system_authorities
from sidecar.net.otlp_client import Answers, retry_info, send_in_parts, user_agent, words

_Export: TypeAlias = Callable[..., Awaitable[bytes]]

# OTLP specification, "OTLP/gRPC Response". RESOURCE_EXHAUSTED belongs here only with RetryInfo.
_RETRYABLE: Final = frozenset(
    {
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
    }
)
# How gRPC for C, Go and Rust say that a request is over the server's limit, which no status code says.
_TOO_LARGE: Final = ("larger than max", "length too large")
_HEADER: Final = re.compile(r"[0-9a-z_.-]+")
_VALUE: Final = re.compile(r"[\x20-\x7e]*")


class KeepaliveSettings(Settings):
    """How a dead connection is noticed: no answer to a ping, or none to sent data, within `timeout`.

    Servers close connections that ping too often, by default more often than every 5 minutes.
    """

    time: Duration = Duration("6m")
    timeout: Duration = Duration("20s")
    permit_without_stream: bool = False


class OtlpSettings(DeliverySettings):
    """Settings of `otlp`, named as the Collector's are.

    `endpoint`: `host:port`, with TLS unless `tls.insecure`; `https://host:port`; `http://host:port` and `unix:///path`,
    without TLS.
    """

    endpoint: str
    tls: ClientTlsSettings = ClientTlsSettings()
    compression: Literal["gzip", "none"] = "gzip"
    headers: dict[str, Secret] = msgspec.field(default_factory=dict)
    authority: str = ""
    balancer_name: Literal["round_robin", "pick_first"] = "round_robin"
    keepalive: KeepaliveSettings = KeepaliveSettings()
    wait_for_ready: bool = False
    read_buffer_size: Ignored = None
    write_buffer_size: Ignored = None

    def __post_init__(self) -> None:
        _target(self)
        if self.tls.insecure_skip_verify:
            raise SettingError(
                "gRPC always checks the server's certificate; name it, or its authority's, in ca_file, "
                "and write the name that stands in it as server_name_override",
                "tls",
                "insecure_skip_verify",
            )
        for name, value in self.headers.items():
            _check_header(name, value)


class OtlpExporter(Exporter[OtlpSettings]):
    """Sends each batch as one Export call, with the bytes as they are: nothing is decoded.

    The connection is made on first use and again whenever it breaks; a server that is down is a `Retryable`.
    """

    def __init__(self, settings: OtlpSettings, context: Context) -> None:
        super().__init__(settings, context)
        self._target, self._is_secure = _target(settings)
        self._answers = Answers(context.logger, context.dropped, context.clock.monotonic)
        self._metadata = tuple((name.lower(), value.reveal()) for name, value in settings.headers.items())
        self._channel: grpc.aio.Channel | None = None
        self._calls: dict[Signal, _Export] = {}

    async def start(self) -> None:
        """Read the certificates. Connecting is left to the first batch."""
        compression = grpc.Compression.Gzip if self.settings.compression == "gzip" else grpc.Compression.NoCompression
        options = _options(self.settings)
        if self._is_secure:
            credentials = self._credentials()
            channel = grpc.aio.secure_channel(self._target, credentials, options=options, compression=compression)
        else:
            channel = grpc.aio.insecure_channel(self._target, options=options, compression=compression)
        self._channel = channel
        for signal, schema in SCHEMAS.items():
            self._calls[signal] = channel.unary_unary(f"/{schema.grpc_service}/Export")

    async def stop(self) -> None:
        """Close the connection."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    async def export(self, batch: Batch) -> None:
        """Send a batch; a larger one than the server takes goes in parts."""
        await send_in_parts(batch, self._send, self._answers)

    async def _send(self, batch: Batch) -> None:
        try:
            answer = await self._calls[batch.signal](
                batch.encode(),
                timeout=self.settings.timeout or None,
                metadata=self._metadata,
                wait_for_ready=self.settings.wait_for_ready,
            )
        except grpc.aio.AioRpcError as error:
            raise self._failure(error) from None
        if answer:
            self._read(batch, answer)

    def _read(self, batch: Batch, answer: bytes) -> None:
        try:
            response = SCHEMAS[batch.signal].response.FromString(answer)
        except DecodeError:
            # The status was OK, so that sending it again would double it.
            self.context.logger.warning("%s: the answer is not an OTLP response", self.settings.endpoint)
        else:
            self._answers.read(batch, response)

    def _failure(self, error: grpc.aio.AioRpcError) -> DeliveryError:
        code = error.code()
        details = error.details() or ""
        message = f"{self.settings.endpoint}: {code.name}: {words(details)}{_hint(details, is_secure=self._is_secure)}"
        delay = retry_info(error.trailing_metadata())
        if any(phrase in details for phrase in _TOO_LARGE):
            return TooLarge(message)
        if code in _RETRYABLE or (code is grpc.StatusCode.RESOURCE_EXHAUSTED and delay is not None):
            return Retryable(message, after=delay)
        return Permanent(message, reason=code.name.lower())

    def _credentials(self) -> grpc.ChannelCredentials:
        owner = f"exporters.{self.context.id}: tls"
        self.settings.tls.context(owner)  # only to say what is wrong with a PEM text: gRPC would retry for ever
        material = self.settings.tls.read(owner)
        return grpc.ssl_channel_credentials(
            material.ca or system_authorities(), material.key or None, material.certificate or None
        )


def _options(settings: OtlpSettings) -> list[tuple[str, Any]]:
    options: list[tuple[str, Any]] = [
        ("grpc.primary_user_agent", user_agent()),
        ("grpc.lb_policy_name", settings.balancer_name),
        ("grpc.keepalive_time_ms", round(settings.keepalive.time * 1000)),
        ("grpc.keepalive_timeout_ms", round(settings.keepalive.timeout * 1000)),
        ("grpc.keepalive_permit_without_calls", int(settings.keepalive.permit_without_stream)),
        # While gRPC waits before it connects again, calls fail without an attempt: not longer than a retry waits.
        ("grpc.initial_reconnect_backoff_ms", 500),
        ("grpc.max_reconnect_backoff_ms", 5000),
    ]
    if settings.tls.server_name_override:
        options.append(("grpc.ssl_target_name_override", settings.tls.server_name_override))
    if settings.authority:
        options.append(("grpc.default_authority", settings.authority))
    return options


def _target(settings: OtlpSettings) -> tuple[str, bool]:
    """What gRPC is to connect to, and whether with TLS.

    Raises:
        SettingError: the endpoint can't be used, or contradicts `tls`.
    """
    text = settings.endpoint.strip()
    if text.startswith("unix:"):
        return text, False
    scheme, found, rest = text.partition("://")
    if not found:
        scheme, rest = "", text
    right = "write for example gateway:4317, https://gateway:4317 or unix:///run/gateway.sock"
    if scheme not in {"", "http", "https", "dns"}:
        raise SettingError(f"{scheme}:// is not understood; {right}", "endpoint")
    host_and_port = rest.removeprefix("/").rstrip("/")
    try:
        parts = urlsplit(f"//{host_and_port}")
        usable = bool(parts.hostname and parts.port) and not parts.path and parts.username is None
    except ValueError:
        usable = False
    if not usable:
        raise SettingError(f"not a host and a port; {right}", "endpoint")
    if scheme == "http" and settings.tls.asks_for_tls:
        raise SettingError("http:// is without TLS, and the tls settings ask for it; write https://", "endpoint")
    return f"dns:{host_and_port}", scheme == "https" or (scheme != "http" and not settings.tls.insecure)


def _check_header(name: str, value: Secret) -> None:
    if not _HEADER.fullmatch(name.lower()) or name.lower().startswith("grpc-") or name.lower().endswith("-bin"):
        raise SettingError(
            "not usable as gRPC metadata; write letters, digits, - _ and . only, without grpc- or -bin", "headers", name
        )
    if not _VALUE.fullmatch(value.reveal()):
        raise SettingError("the value holds a line break or a character that is not ASCII", "headers", name)


def _hint(details: str, *, is_secure: bool) -> str:
    """What is probably wrong with the settings, where gRPC's words only show what went wrong with the bytes."""
    if is_secure and "WRONG_VERSION_NUMBER" in details:
        return "; the server seems to speak without TLS: if that is intended, set tls: {insecure: true}"
    if not is_secure and "backends failing" in details and "Socket closed" in details:
        return "; the server closes new connections: if it speaks TLS, write https://"
    if "CERTIFICATE_VERIFY_FAILED" in details:
        return "; the server's certificate is not trusted: set tls.ca_file to its authority's"
    if "http1.x server" in details:
        return "; the server speaks HTTP/1.1: use its gRPC port, or the otlp_http exporter"
    return ""
