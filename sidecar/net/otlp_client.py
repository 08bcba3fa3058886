"""What a client of an OTLP server needs: how answers are read, and what becomes of a request that is too large."""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final, TypeAlias

from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from sidecar.batch import Batch
from sidecar.errors import Permanent, Retryable, TooLarge
from sidecar.signals import SCHEMAS, ExportResponse, Signal

# A server's words go into logs and health: enough for a reason, too little for a page.
MAX_WORDS: Final = 500
REJECTED: Final = "rejected_by_peer"
# The longest wait that is believed. A server that is away for longer is asked once an hour.
MAX_WAIT: Final = 3600.0
_WARNING_INTERVAL: Final = 60.0

Dropped: TypeAlias = Callable[[Signal, str, int], None]


def user_agent() -> str:
    """What the sidecar calls itself: product and version (OTLP specification, "User Agent")."""
    return f"otlp-sidecar/{importlib.metadata.version('otlp-sidecar')}"


def words(text: str) -> str:
    """A server's message as one line of bounded length, safe to log."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text[: 2 * MAX_WORDS]).split())
    return line if len(line) <= MAX_WORDS else line[:MAX_WORDS] + "…"


def retry_info(trailers: Iterable[tuple[str, str | bytes]]) -> float | None:
    """The delay of a gRPC status's RetryInfo, in seconds; 0 where it names none; None without RetryInfo.

    Read from both trailers that servers use: the details of the status (OTLP specification, "OTLP/gRPC Throttling"),
    and RetryInfo by itself, as the OpenTelemetry SDKs for Python look for it.
    """
    for key, value in trailers:
        try:
            if key == "google.rpc.retryinfo-bin":
                return _seconds(RetryInfo.FromString(_bytes(value)))
            if key == "grpc-status-details-bin":
                for detail in Status.FromString(_bytes(value)).details:
                    info = RetryInfo()
                    if detail.Unpack(info):
                        return _seconds(info)
        except DecodeError:
            continue
    return None


def retry_after(header: str | None, now: float) -> float | None:
    """The seconds that an HTTP `Retry-After` asks for (RFC 9110 §10.2.3). None where it is neither number nor date.

    Args:
        header: its value, if there is one.
        now: Unix time in seconds.
    """
    if header is None:
        return None
    text = header.strip()
    if text.isascii() and text.isdigit():
        return _believable(float(text))
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    return _believable((date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - now)


class Answers:
    """Reads what a server says about requests that it took: what it rejected is counted, and its words are logged.

    A server which rejects a part of each request would fill the log, so that only one answer a minute is logged.
    """

    def __init__(self, logger: logging.Logger, dropped: Dropped, monotonic: Callable[[], float]) -> None:
        self._logger = logger
        self._dropped = dropped
        self._monotonic = monotonic
        self._quiet_until = float("-inf")
        self._unsaid = 0

    def read(self, batch: Batch, response: ExportResponse) -> None:
        """Take note of a partial success (OTLP specification, "Partial Success"). It must not be sent again."""
        partial = response.partial_success
        rejected = min(len(batch), max(0, getattr(partial, SCHEMAS[batch.signal].rejected)))
        self._dropped(batch.signal, REJECTED, rejected)
        if not rejected and not partial.error_message:
            return
        now = self._monotonic()
        if now < self._quiet_until:
            self._unsaid += 1
            return
        unsaid = f" ({self._unsaid} more such answers since the last one shown)" if self._unsaid else ""
        message = words(partial.error_message) or "no reason given"
        if rejected:
            items = SCHEMAS[batch.signal].items
            self._logger.warning("the server rejected %d of %d %s: %s%s", rejected, len(batch), items, message, unsaid)
        else:
            self._logger.warning("the server took the request with a warning: %s%s", message, unsaid)
        self._quiet_until = now + _WARNING_INTERVAL
        self._unsaid = 0

    def refused(self, part: Batch, error: Permanent) -> None:
        """Take note of a part of a batch that the server refused for good, while other parts may pass."""
        self._logger.error("%d items dropped: %s", len(part), error)
        self._dropped(part.signal, error.reason, len(part))


async def send_in_parts(batch: Batch, send: Callable[[Batch], Awaitable[None]], answers: Answers) -> None:
    """Send a batch; where that is too large for the server, send halves of it, and so on.

    Batches join requests, so that one may be over a server's limit although each request alone was under it. An item
    that is too large by itself is counted as dropped, and so is a part that is refused for good.

    Raises:
        TooLarge: it is a single item.
        Retryable: with what remains, where a part has been settled.
        Permanent: all of it is refused for another reason.
    """
    try:
        await send(batch)
    except TooLarge:
        if len(batch) <= 1:
            raise
    else:
        return
    waiting = batch.split(-(-len(batch) // 2))
    while waiting:
        part = waiting[0]
        try:
            await send(part)
        except Retryable as error:
            error.remaining = Batch.join(waiting)
            raise
        except TooLarge as error:
            if len(part) > 1:
                waiting[:1] = part.split(-(-len(part) // 2))
                continue
            answers.refused(part, error)
        except Permanent as error:
            answers.refused(part, error)
        del waiting[0]


def _seconds(info: RetryInfo) -> float:
    return _believable(info.retry_delay.seconds + info.retry_delay.nanos / 1e9)


def _believable(seconds: float) -> float:
    return min(max(0.0, seconds), MAX_WAIT)


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode()
