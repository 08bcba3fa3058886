"""From one batch to several requests and back: what each request holds, and what of a batch remains unsent."""

from __future__ import annotations

import gzip
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Self, TypeAlias

import zstandard

from sidecar import SCHEMAS, Batch, Retryable, Signal
from sidecar.batch import take_out
from sidecar.net.compress import CODINGS

Compression: TypeAlias = Literal["gzip", "zstd", "none"]

_MAX_UNSENT: Final = 8
# Whoever gives up its retries lets a fresh batch find out after so many seconds.
_FORGET_FAILURE: Final = 60.0

# A log, a span or a series in a body: the position of its item in the batch, counted over all resources and scopes, or
# the positions of those that went into it: none, where it stands beside the unit that settles the item.
Unit: TypeAlias = int | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Route:
    """Where requests of one kind go, and how their bodies are made.

    Attributes:
        url: the whole address.
        content_type: of the body.
        divide: takes an uncompressed body and a number of units; gives the bodies of the first units and of the rest.
            None where a body can't be divided.
        compression: of the body.
        headers: further ones.
        headers_for: further ones that depend on the uncompressed body.
        socket: the path of the Unix socket to send to, instead of the URL's host.
        with_key: whether the API key is sent: to Datadog's intakes, never to an Agent.
    """

    url: str
    content_type: str
    divide: Callable[[bytes, int], tuple[bytes, bytes]] | None = None
    compression: Compression = "gzip"
    headers: Mapping[str, str] = field(default_factory=dict)
    headers_for: Callable[[bytes], Mapping[str, str]] | None = None
    socket: str = ""
    with_key: bool = True


@dataclass(frozen=True, slots=True)
class Body:
    """What one request is to carry, not compressed yet, and its units in their order; the rest is as of `Request`."""

    data: bytes
    units: Sequence[Unit]
    headers: Mapping[str, str] = field(default_factory=dict)
    once: bytes = b""


@dataclass(frozen=True, slots=True)
class Request:
    """The body of one HTTP request, compressed, ready to be sent and to be sent again.

    Attributes:
        units: what the body holds, in its order.
        headers: those of this request alone.
        once: what a request has in common with others of which only one is to be sent; empty for none.
    """

    route: Route
    body: bytes
    units: Sequence[Unit]
    headers: Mapping[str, str] = field(default_factory=dict)
    once: bytes = b""

    @classmethod
    def make(cls, route: Route, body: Body) -> Self:
        """Compress a body."""
        coding = CODINGS.get(route.compression)
        headers = {**body.headers, **(route.headers_for(body.data) if route.headers_for else {})}
        return cls(route, coding(body.data) if coding else body.data, body.units, headers, body.once)

    @property
    def positions(self) -> list[int]:
        """The positions of the items that are settled with this request."""
        found: list[int] = []
        for unit in self.units:
            found += (unit,) if isinstance(unit, int) else unit
        return found

    def halves(self) -> list[Request]:
        """Two requests that together are this one; empty when there is nothing to divide."""
        middle = len(self.units) // 2
        divide = self.route.divide
        if divide is None or not middle:
            return []
        bodies = divide(_decompress(self.body, self.route.compression), middle)
        units = (self.units[:middle], self.units[middle:])
        return [
            Request.make(self.route, Body(data, part, self.headers)) for data, part in zip(bodies, units, strict=True)
        ]


class Unsent(Batch):
    """The part of a batch that is still to be sent, as the requests that were made of it.

    Making them again could count a difference or a statistic twice, and would cost the work again. Whoever needs OTLP
    bytes, such as a queue on disk, gets those of exactly the items that are left.
    """

    __slots__ = ("__weakref__", "origin", "requests")

    def __init__(self, origin: Batch, requests: Iterable[Request]) -> None:
        self.requests = list(requests)
        self.origin = origin.forget_message()
        left = {position for request in self.requests for position in request.positions}
        super().__init__(
            origin.signal,
            context=origin.context,
            build=lambda: _only(self.origin, left),
            items=len(left),
        )

    def forget_message(self) -> Self:
        """Nothing to forget: the message is made when it is asked for."""
        return self


def _only(batch: Batch, wanted: set[int]) -> Any:
    """The batch's message with the wanted items alone, by their positions."""
    message = batch.copy().message
    schema = SCHEMAS[batch.signal]
    position = 0
    for resource in getattr(message, schema.resources):
        for scope in getattr(resource, schema.scopes):
            records = getattr(scope, schema.records)
            for items in map(_points, records) if batch.signal is Signal.METRICS else [records]:
                count = len(items)
                take_out(items, [item for place, item in enumerate(items, position) if place not in wanted])
                position += count
    return message


def _points(metric: Any) -> Any:
    kind = metric.WhichOneof("data")
    return getattr(metric, kind).data_points if kind else []


def _decompress(data: bytes, compression: Compression) -> bytes:
    """What `Request.make` has compressed: of known size, so that no limit is needed."""
    if compression == "zstd":
        return zstandard.ZstdDecompressor().decompress(data)
    return gzip.decompress(data) if compression == "gzip" else data


class Attempts:
    """What of one signal is being tried, and when it last failed.

    While nothing gets through, requests wait as `Unsent`, which takes memory that no queue counts. When there are a few
    of them, only those are tried, and none are made of further batches.
    """

    def __init__(self) -> None:
        self._unsent: weakref.WeakSet[Unsent] = weakref.WeakSet()
        self._failure = ""
        self._failed_at = -_FORGET_FAILURE

    def check(self, now: float) -> None:
        """Raise Retryable where a fresh batch has to wait for those that are being tried."""
        if len(self._unsent) >= _MAX_UNSENT and now - self._failed_at < _FORGET_FAILURE:
            raise Retryable(self._failure)

    def succeeded(self) -> None:
        """A request has got through."""
        self._failed_at = -_FORGET_FAILURE

    def failed(self, error: Retryable, unsent: Unsent, now: float) -> None:
        """A request has not got through, and all of these are left."""
        self._failure, self._failed_at = str(error), now
        self._unsent.add(unsent)
        error.remaining = unsent
