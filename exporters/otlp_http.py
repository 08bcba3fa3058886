"""Sends telemetry to another OTLP server over HTTP: a gateway, a backend, another sidecar."""

from __future__ import annotations

import re
import ssl
from http import HTTPStatus
from typing import Final, Literal, TypeVar

import aiohttp
import msgspec
from google.protobuf.message import DecodeError, Message
from google.rpc.status_pb2 import Status
from multidict import CIMultiDict

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
    Signal,
    TooLarge,
    Url,
)
from sidecar.net import compress, otlp_json
from sidecar.net.client_tls import ClientTlsSettings
from sidecar.net.otlp_client import Answers, retry_after, send_in_parts, user_agent, words

M = TypeVar("M", bound=Message)

# OTLP specification, "OTLP/HTTP Response", "Retryable Response Codes"; Retry-After counts on the first and the third.
_RETRYABLE: Final = frozenset({429, 502, 503, 504})
_THROTTLED: Final = frozenset({429, 503})
_MAX_ANSWER: Final = 64 * 1024
_PROTOBUF: Final = "application/x-protobuf"
_JSON: Final = "application/json"

_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(r"[\x20-\x7e]*")
_OURS: Final = frozenset({"content-type", "content-encoding", "content-length", "transfer-encoding"})


class OtlpHttpSettings(DeliverySettings):
    """Settings of `otlp_http`, named as the Collector's are.

    `endpoint` is a base URL, to which `/v1/logs` and so on are added; the endpoint of a signal is taken as it is. The
    URL's scheme decides whether there is TLS, so that `tls.insecure` says nothing here.
    """

    endpoint: Url | None = None
    traces_endpoint: Url | None = None
    metrics_endpoint: Url | None = None
    logs_endpoint: Url | None = None
    timeout: Duration = Duration("30s")
    tls: ClientTlsSettings = ClientTlsSettings()
    encoding: Literal["proto", "json"] = "proto"
    compression: Literal["gzip", "zstd", "deflate", "none"] = "gzip"
    headers: dict[str, Secret] = msgspec.field(default_factory=dict)
    read_buffer_size: Ignored = None
    write_buffer_size: Ignored = None
    max_idle_conns: Ignored = None
    max_idle_conns_per_host: Ignored = None
    idle_conn_timeout: Ignored = None

    def __post_init__(self) -> None:
        if not any(self.urls.values()):
            raise SettingError("no endpoint; write for example endpoint: http://gateway:4318", "endpoint")
        for name, value in self.headers.items():
            if not _HEADER.fullmatch(name) or name.lower() in _OURS:
                raise SettingError("not a header that can be set here", "headers", name)
            if not _VALUE.fullmatch(value.reveal()):
                raise SettingError("the value holds a line break or a character that is not ASCII", "headers", name)

    @property
    def urls(self) -> dict[Signal, str | None]:
        """Where each signal goes."""
        own = {
            Signal.TRACES: self.traces_endpoint,
            Signal.METRICS: self.metrics_endpoint,
            Signal.LOGS: self.logs_endpoint,
        }
        base = self.endpoint
        return {signal: own[signal] or (f"{base}{SCHEMAS[signal].http_path}" if base else None) for signal in Signal}


class OtlpHttpExporter(Exporter[OtlpHttpSettings]):
    """Sends each batch as one POST, over connections that are kept. Protobuf goes out as it is, without decoding."""

    deprecated_types = frozenset({"otlphttp"})

    def __init__(self, settings: OtlpHttpSettings, context: Context) -> None:
        super().__init__(settings, context)
        self._urls = settings.urls
        self._answers = Answers(context.logger, context.dropped, context.clock.monotonic)
        self._compress = compress.CODINGS.get(settings.compression)
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Read the certificates. Connecting is left to the first batch."""
        settings = self.settings
        headers = CIMultiDict({"User-Agent": user_agent()})
        for name, value in settings.headers.items():
            headers[name] = value.reveal()
        headers["Content-Type"] = _JSON if settings.encoding == "json" else _PROTOBUF
        if self._compress is not None:
            headers["Content-Encoding"] = settings.compression
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._tls(), limit=0),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=settings.timeout or None),
        )

    def _tls(self) -> ssl.SSLContext | bool:
        if any(url and url.startswith("https:") for url in self._urls.values()):
            return self.settings.tls.context(f"exporters.{self.context.id}: tls")
        return True  # aiohttp's default, which nobody uses

    async def stop(self) -> None:
        """Close the connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def export(self, batch: Batch) -> None:
        """Send a batch; a larger one than the server takes goes in parts."""
        await send_in_parts(batch, self._send, self._answers)

    async def _send(self, batch: Batch) -> None:
        url = self._urls[batch.signal]
        if url is None:
            name = f"{batch.signal.value}_endpoint"
            raise Permanent(f"no endpoint for {batch.signal.value}; set endpoint or {name}", reason="no_endpoint")
        assert self._session is not None  # noqa: S101 (the runtime starts before it exports)
        body = otlp_json.encode(batch.message) if self.settings.encoding == "json" else batch.encode()
        if self._compress is not None:
            body = self._compress(body)
        server_name = self.settings.tls.server_name_override or None
        try:
            async with self._session.post(
                url, data=body, allow_redirects=False, server_hostname=server_name
            ) as response:
                answer = await _read(response)
        except TimeoutError:
            raise Retryable(f"{_shown(url)}: no answer within {self.settings.timeout}", reason="timeout") from None
        except (aiohttp.ClientError, OSError) as error:
            raise Retryable(f"{_shown(url)}: {_what_failed(error)}") from None
        if response.status < HTTPStatus.MULTIPLE_CHOICES:
            self._accepted(batch, response, answer)
        else:
            raise self._failure(response, answer)

    def _accepted(self, batch: Batch, response: aiohttp.ClientResponse, answer: bytes) -> None:
        if not answer:
            return
        parsed = _parse(SCHEMAS[batch.signal].response, response.content_type, answer)
        if parsed is None:
            # The status was a success, so that sending it again would double it.
            shown = _shown(str(response.url))
            self.context.logger.warning("%s: the answer is not an OTLP response; is this an OTLP server?", shown)
        else:
            self._answers.read(batch, parsed)

    def _failure(self, response: aiohttp.ClientResponse, answer: bytes) -> DeliveryError:
        status = response.status
        message = f"{_shown(str(response.url))}: {status} {_reason(response, answer)}"
        if status in _RETRYABLE:
            header = response.headers.get("Retry-After") if status in _THROTTLED else None
            return Retryable(message, after=retry_after(header, self.context.clock.time_ns() / 1e9))
        if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            return TooLarge(message)
        return Permanent(message, reason=f"http_{status // 100}xx")


def _parse(message_type: type[M], content_type: str, body: bytes) -> M | None:
    """A message in the answer's encoding; None where it is none."""
    try:
        if content_type == _JSON:
            body = otlp_json.transcode(message_type, body).data
        elif content_type != _PROTOBUF:
            return None
        return message_type.FromString(body)
    except (DecodeError, Permanent):
        return None


def _reason(response: aiohttp.ClientResponse, answer: bytes) -> str:
    """What the server says: the message of its Status, its text, or where it wants to send us."""
    if location := response.headers.get("Location"):
        return f"redirects to {words(_shown(location))}; set the endpoint to where the server is"
    status = _parse(Status, response.content_type, answer)
    text = status.message if status is not None else answer.decode(errors="replace")
    return words(text) or response.reason or ""


def _shown(url: str) -> str:
    """A URL without what may be a secret: who logs in, and the query."""
    scheme, found, rest = url.partition("?")[0].rpartition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{found}{host.rpartition('@')[2]}{slash}{path}"


def _what_failed(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"{words(str(error.certificate_error))}; set tls.ca_file to the certificate's authority"
    if isinstance(error, aiohttp.ClientConnectorSSLError):
        return f"{words(str(error.os_error))}; does the server speak TLS?"
    if isinstance(error, aiohttp.ClientConnectorError):
        return words(error.strerror or str(error.os_error))
    return words(f"{type(error).__name__}: {error}")


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """The answer, cut where no OTLP answer reaches. The connection is given up when there is more."""
    answer = bytearray()
    async for chunk in response.content.iter_any():
        answer += chunk
        if len(answer) > _MAX_ANSWER:
            response.close()
            break
    return bytes(answer[:_MAX_ANSWER])
