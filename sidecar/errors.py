"""The ways in which a batch is refused, each with the answer that its sender gets.

A conforming OTLP client drops data on 500, so nothing here maps to it: what may pass later is `Retryable`, and what
never will is `Permanent` (OTLP specification, "Failures").
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

if TYPE_CHECKING:
    from sidecar.batch import Batch

# google.rpc.Code, which gRPC's status codes and the `code` of an error body share.
INVALID_ARGUMENT: Final = 3
RESOURCE_EXHAUSTED: Final = 8
UNIMPLEMENTED: Final = 12
UNAVAILABLE: Final = 14
UNAUTHENTICATED: Final = 16


class DeliveryError(Exception):
    """A batch was not accepted.

    Attributes:
        reason: one word for counters (`queue_full`, `memory`), from a small closed set: it becomes a label.
        http_status: the status that an HTTP client gets.
        grpc_code: the google.rpc.Code that a gRPC client gets.
    """

    http_status: ClassVar[int] = 503
    grpc_code: ClassVar[int] = UNAVAILABLE
    default_reason: ClassVar[str] = "refused"

    def __init__(self, message: str, *, reason: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason or self.default_reason


class Retryable(DeliveryError):
    """The same batch may pass later.

    Attributes:
        after: seconds to wait, when known; the sender is told.
        remaining: what is still to be sent, where an exporter has settled a part of the batch (delivered it, or counted
            it as dropped): whoever retries gives this very object to `export`, and forgets the batch. None: all of it.
    """

    default_reason = "unavailable"

    def __init__(
        self,
        message: str,
        *,
        after: float | None = None,
        reason: str | None = None,
        remaining: Batch | None = None,
    ) -> None:
        super().__init__(message, reason=reason)
        self.after = after
        self.remaining = remaining


class RateLimited(Retryable):
    """The sender is over its rate. 429, or RESOURCE_EXHAUSTED with RetryInfo (without it clients drop the batch)."""

    http_status = 429
    grpc_code = RESOURCE_EXHAUSTED
    default_reason = "rate_limited"

    def __init__(
        self, message: str, *, after: float, reason: str | None = None, remaining: Batch | None = None
    ) -> None:
        super().__init__(message, after=after, reason=reason, remaining=remaining)


class Permanent(DeliveryError):
    """The same batch will never pass: it is dropped and counted, and the sender is told not to send it again."""

    http_status = 400
    grpc_code = INVALID_ARGUMENT
    default_reason = "malformed"


class TooLarge(Permanent):
    """Over a size limit. 413, or RESOURCE_EXHAUSTED without RetryInfo, which clients must not retry."""

    http_status = 413
    grpc_code = RESOURCE_EXHAUSTED
    default_reason = "too_large"


class Unauthenticated(Permanent):
    """Who is calling is not known, and must be."""

    http_status = 401
    grpc_code = UNAUTHENTICATED
    default_reason = "unauthenticated"


class NotServed(Permanent):
    """No pipeline takes this signal. 404 or UNIMPLEMENTED: retrying would be for nothing."""

    http_status = 404
    grpc_code = UNIMPLEMENTED
    default_reason = "not_served"


class StorageError(Exception):
    """A queue's file can't take what it was given: the disk is full, or its directory is gone."""


class StartError(Exception):
    """A component could not start: names the component, the address or file, the setting, and what to do."""
