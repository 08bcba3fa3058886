"""A `Batch`: one OTLP export request of one signal, as bytes, as a decoded message, or both.

The received bytes are kept until somebody edits, so that what only passes through is never encoded, and what nobody
reads is never decoded. Decoding and encoding happen in C, at most once each.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, Self

from google.protobuf.message import DecodeError

from sidecar.errors import Permanent
from sidecar.signals import SCHEMAS, ExportRequest, Schema, Signal

_NO_METADATA: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Identity:
    """Who sent a batch, as an authenticator established it.

    Attributes:
        kind: how it is known: `provider`, `api_key`, `bearer`, `basic`, `jwt`, `mtls`.
        name: the caller's name, unique within its kind and safe to log: never the credential itself.
        machine_id: the machine that the credential is linked to, or "".
        account_id: the account that the credential belongs to, or "".
    """

    kind: str
    name: str
    machine_id: str = ""
    account_id: str = ""

    @property
    def key(self) -> str:
        """The caller as rate limits and accounting name it: the machine, else the account, else the name."""
        if self.machine_id:
            return f"machine:{self.machine_id}"
        if self.account_id:
            return f"account:{self.account_id}"
        return f"{self.kind}:{self.name}"


@dataclass(frozen=True, slots=True)
class BatchContext:
    """Where a batch comes from. Immutable: it is shared by every copy of the batch.

    Attributes:
        identity: the authenticated caller; None for anonymous ones and for what the sidecar makes itself.
        peer: the caller's address without its port; "" when there is none.
        metadata: chosen request headers, names in lower case.
        transport: how it came in: `grpc`, `http`; "" for what the sidecar makes itself.
        received_at: Unix time in nanoseconds.
        is_own: carries the sidecar's own spans, of which no further spans are made.
    """

    identity: Identity | None = None
    peer: str = ""
    transport: str = ""
    metadata: Mapping[str, str] = field(default_factory=lambda: _NO_METADATA)
    received_at: int = field(default_factory=time.time_ns)
    is_own: bool = False


class Batch:
    """One OTLP export request of one signal, and where it came from.

    A batch has one owner at a time: whoever hands it on must not touch it after. A component that edits gets a batch of
    its own (`copy`, which the fan-out calls where needed).
    """

    __slots__ = ("_build", "_data", "_items", "_message", "context", "signal")

    def __init__(
        self,
        signal: Signal,
        data: bytes | None = None,
        message: ExportRequest | None = None,
        *,
        context: BatchContext,
        build: Callable[[], ExportRequest] | None = None,
        items: int | None = None,
    ) -> None:
        """Wrap bytes, a message, or a function that makes the message when it is first needed.

        Args:
            signal: what the request carries.
            data: the serialized request. Not checked here: `message` raises when it can't be decoded.
            message: the decoded request. The batch owns it from now on.
            context: where it comes from.
            build: makes the message on first use, so that a refused batch costs no conversion. Needs `items`. Called
                once per copy of the batch: each time it gives a message of its own.
            items: the number of items, where it is known without looking.
        """
        if data is None and message is None and (build is None or items is None):
            raise TypeError("a batch needs bytes, a message, or a function that makes it and its number of items")
        self.signal = signal
        self.context = context
        self._data = data
        self._message = message
        self._build = build
        self._items = items

    @classmethod
    def join(cls, batches: Sequence[Batch], context: BatchContext | None = None) -> Batch:
        """The union of batches of one signal, without decoding any.

        A serialized request followed by another is the serialized union, since protobuf merges repeated fields
        (Protocol Buffers encoding guide, "Last One Wins"). The given batches stay as they are.

        Args:
            batches: at least one.
            context: the union's context; by default that of the first batch.
        """
        first = batches[0]
        if len(batches) == 1 and context is None:
            return first
        return cls(
            first.signal,
            b"".join([batch.encode() for batch in batches]),
            context=context or first.context,
            items=sum(map(len, batches)),
        )

    def split(self, max_items: int) -> list[Batch]:
        """Batches of at most `max_items` items each, in order, every item with its resource and its scope.

        A metric with more data points than fit is divided too. Resources, scopes and metrics without items are left
        out. This batch stays as it is; it is itself the only result when it is small enough.

        Args:
            max_items: at least 1.

        Raises:
            Permanent: the bytes are not such a request.
        """
        if len(self) <= max_items:
            return [self]
        schema = SCHEMAS[self.signal]
        # A message of our own, since it is taken apart.
        runs = _runs(_request(schema, self.encode()), schema)
        return [Batch(self.signal, message=part, context=self.context) for part in _parts(runs, schema, max_items)]

    @property
    def message(self) -> ExportRequest:
        """The request, to read. Decoded on first use.

        Raises:
            Permanent: the bytes are not such a request.
        """
        message = self._message
        if message is None:
            message = self._message = self._decode()
        return message

    def _decode(self) -> ExportRequest:
        if self._build is not None:
            build, self._build = self._build, None
            return build()
        return _request(SCHEMAS[self.signal], self._data or b"")

    def edit(self) -> ExportRequest:
        """The request, to change. Forgets the received bytes and the count: call it before each round of changes."""
        message = self.message
        self._data = None
        self._items = None
        return message

    def encode(self) -> bytes:
        """The request as bytes: the received ones when nobody has edited."""
        data = self._data
        if data is None:
            data = self._data = self.message.SerializeToString()
        return data

    def forget_message(self) -> Self:
        """Keep only the bytes, which take a fraction of the message's memory: for a batch that is going to wait."""
        self.encode()
        len(self)
        self._message = None
        return self

    def copy(self) -> Batch:
        """An equal batch whose edits don't show here. Shares the bytes, which nobody can change.

        A batch that has not been built stays so: its copy builds a message of its own, when it is needed.
        """
        if self._build is not None:
            return Batch(self.signal, context=self.context, build=self._build, items=self._items)
        return Batch(self.signal, self.encode(), context=self.context, items=self._items)

    def mark_own(self) -> None:
        """Note that this batch carries the sidecar's own spans."""
        self.context = replace(self.context, is_own=True)

    def keep(self, wanted: Callable[[Any], bool]) -> Batch | None:
        """Keep the log records, spans or metrics for which `wanted` is true.

        Returns:
            This batch, its bytes untouched when everything stays; None when nothing does.
        """
        is_changed = False
        for scope in self.scopes():
            records = getattr(scope, SCHEMAS[self.signal].records)
            if doomed := [record for record in records if not wanted(record)]:
                take_out(records, doomed)
                is_changed = True
        if not is_changed:
            return self
        self.edit()
        return self if len(self) else None

    def resources(self) -> Sequence[Any]:
        """The ResourceLogs, ResourceSpans or ResourceMetrics, to read."""
        resources: Sequence[Any] = getattr(self.message, SCHEMAS[self.signal].resources)
        return resources

    def scopes(self) -> Iterator[Any]:
        """The ScopeLogs, ScopeSpans or ScopeMetrics of all resources, to read."""
        name = SCHEMAS[self.signal].scopes
        for resource in self.resources():
            yield from getattr(resource, name)

    def __len__(self) -> int:
        """The number of items: log records, spans, data points."""
        if self._items is None:
            name = SCHEMAS[self.signal].records
            if self.signal is Signal.METRICS:
                self._items = sum(points_of(metric) for scope in self.scopes() for metric in scope.metrics)
            else:
                self._items = sum(len(getattr(scope, name)) for scope in self.scopes())
        return self._items

    def __bool__(self) -> bool:
        """Always true, also without items: `if batch` asks whether there is a batch."""
        return True

    def __repr__(self) -> str:
        held = "bytes" if self._message is None else "message" if self._data is None else "bytes, message"
        items = "?" if self._items is None else self._items
        return f"<Batch {self.signal.value} [{items} items] {held if self._build is None else 'not built'}>"


def _request(schema: Schema, data: bytes) -> ExportRequest:
    try:
        return schema.request.FromString(data)
    except DecodeError as error:
        raise Permanent(f"not an OTLP {schema.signal.value} request: {error}") from None


def _runs(request: Any, schema: Schema) -> Iterator[tuple[tuple[Any, ...], list[Any]]]:
    """Take a request apart: its items, in runs that share their envelopes (resource, scope, metric), now empty."""
    for resource in _detach(getattr(request, schema.resources)):
        for scope in _detach(getattr(resource, schema.scopes)):
            records = _detach(getattr(scope, schema.records))
            if schema.signal is not Signal.METRICS:
                yield (resource, scope), records
                continue
            for metric in records:
                kind = metric.WhichOneof("data")
                if kind:
                    yield (resource, scope, metric), _detach(getattr(metric, kind).data_points)


def _detach(repeated: Any) -> list[Any]:
    """Empty a repeated field. Its messages stay valid: each keeps the memory that it lies in."""
    messages = list(repeated)
    del repeated[:]
    return messages


def _parts(
    runs: Iterable[tuple[tuple[Any, ...], list[Any]]], schema: Schema, max_items: int
) -> Iterator[ExportRequest]:
    """Assemble requests of `max_items` items each; the last may hold fewer."""
    part = schema.request()
    room = max_items
    opened: list[tuple[Any, Any]] = []  # the envelopes that the newest items went into: (original, copy)
    for envelopes, items in runs:
        start = 0
        while start < len(items):
            if not room:
                yield part
                part, room, opened = schema.request(), max_items, []
            taken = items[start : start + room]
            _items_below(part, envelopes, opened, schema).extend(taken)
            start += len(taken)
            room -= len(taken)
    yield part


def _items_below(part: Any, envelopes: tuple[Any, ...], opened: list[tuple[Any, Any]], schema: Schema) -> Any:
    """The repeated field for items in these envelopes, which are added where they are not the opened ones."""
    names = (schema.resources, schema.scopes, schema.records)
    target = part
    for depth, envelope in enumerate(envelopes):
        if depth == len(opened) or opened[depth][0] is not envelope:
            copy = getattr(target, names[depth]).add()
            copy.CopyFrom(envelope)
            opened[depth:] = [(envelope, copy)]
        target = opened[depth][1]
    if schema.signal is Signal.METRICS:
        return getattr(target, target.WhichOneof("data")).data_points
    return getattr(target, schema.records)


def take_out(items: Any, doomed: Sequence[Any]) -> None:
    """Remove some messages from a repeated field in linear time; deleting one moves all that are behind it."""
    if doomed:
        marked = {id(item) for item in doomed}
        items.sort(key=lambda item: id(item) in marked)  # stable: the others stay in order
        del items[-len(doomed) :]


def points_of(metric: Any) -> int:
    """The number of data points of one Metric; 0 where it has no data."""
    kind = metric.WhichOneof("data")
    return len(getattr(metric, kind).data_points) if kind else 0


def total(batches: Iterable[Batch]) -> int:
    """The number of items in all batches."""
    return sum(map(len, batches))
