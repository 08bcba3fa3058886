"""Gives log records the trace and the span that they belong to, so that a log leads to its trace."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal
from weakref import WeakKeyDictionary

import msgspec

from sidecar import (
    SCHEMAS,
    Batch,
    ComponentId,
    Context,
    Duration,
    Processor,
    SettingError,
    Settings,
    Signal,
    kernel,
)
from sidecar.events.trace_ids import parse_span_id, parse_trace_id, parse_traceparent
from sidecar.kernel import Meaning, Role
from sidecar.telemetry.health import HealthBoard

if TYPE_CHECKING:
    from sidecar.kernel._kernel import Schema

# 1,600 requests per second for a minute; they take 35 MB. A request id is no longer than a TelemetryEvent's may be.
_MAX_REQUESTS: Final = 100_000
_MAX_REQUEST_LENGTH: Final = 128
_HALF: Final = 8
_NO_TRACE: Final = bytes(16)
_NO_SPAN: Final = bytes(8)


class CorrelationSettings(Settings):
    """Where the ids of a log record's trace are looked for, and where they are written.

    Attributes:
        from: attributes that may hold a trace id, hexadecimal or in Datadog's decimal form, or a `traceparent`. They
            are looked at in this order when the record has no trace. The span id stands beside each: in `dd.span_id`
            for `dd.trace_id`.
        request_key: joins a record to the newest span that has the same value under this attribute; null: none.
        request_window: how long a span is remembered for that.
        write: forms in which the ids are written as attributes too: `otel` (`otel.trace_id`, `otel.span_id`) and
            `datadog` (`dd.trace_id`, `dd.span_id`). Exporters that need a form write it themselves.
        keep_source: whether the attributes stay that a record's ids were read from.
    """

    from_: tuple[str, ...] = msgspec.field(
        default=("trace_id", "dd.trace_id", "traceparent", "otel.trace_id"), name="from"
    )
    request_key: str | None = "request.id"
    request_window: Duration = Duration("60s")
    write: tuple[Literal["otel", "datadog"], ...] = ()
    keep_source: bool = False

    def __post_init__(self) -> None:
        if self.request_key == "":
            raise SettingError("is empty; name an attribute such as request.id, or write null", "request_key")


class Correlation(Processor[CorrelationSettings]):
    """Sets the ids of log records that have none, and remembers the spans of requests.

    It stands in logs pipelines and, for `request_key`, in traces pipelines too, where it changes nothing. Records that
    come before the span of their request are not joined: nothing is held back.
    """

    signals: ClassVar[frozenset[Signal]] = frozenset({Signal.LOGS, Signal.TRACES})

    def __init__(self, settings: CorrelationSettings, context: Context) -> None:
        super().__init__(settings, context)
        self._span_keys = {key: _span_key(key) for key in settings.from_}
        self._id_keys = frozenset(self._span_keys) | frozenset(self._span_keys.values())
        self._read = self._id_keys | ({settings.request_key} if settings.request_key else set())
        # A record is told its trace by one of these alone. Of names that contain each other, the shortest is enough.
        tells = {*settings.from_, *filter(None, [settings.request_key])}
        self._marks = [name.encode() for name in tells if not any(one in name for one in tells - {name})]
        self._requests = _requests_of(context)

    def process(self, batch: Batch) -> Batch:
        """The batch with the ids set."""
        if batch.signal is Signal.TRACES:
            self._remember(batch)
            return batch
        if not self.settings.write and _need_nothing(batch.encode(), self._marks):
            return batch
        found = list(self._find(batch))
        if found:
            batch.edit()
            for record, ids in found:
                self._write(record, ids)
        return batch

    def _remember(self, batch: Batch) -> None:
        key = self.settings.request_key
        if key is None or key.encode() not in batch.encode():
            return
        now = self.context.clock.monotonic()
        self._requests.forget(now - self.settings.request_window)
        for scope in batch.scopes():
            for span in scope.spans:
                for pair in span.attributes:
                    if pair.key == key:
                        self._requests.add(pair.value.string_value, span, now)

    def _find(self, batch: Batch) -> Iterator[tuple[Any, Ids]]:
        """The records to write to, and what."""
        for scope in batch.scopes():
            for record in scope.log_records:
                trace_id = record.trace_id
                if trace_id and trace_id != _NO_TRACE:
                    if self.settings.write:
                        yield record, Ids(trace_id, record.span_id)
                    continue
                found = {pair.key: pair.value for pair in record.attributes if pair.key in self._read}
                ids = (self._read_ids(found) or self._joined(found)) if found else None
                if ids is not None:
                    yield record, ids

    def _read_ids(self, found: Mapping[str, Any]) -> Ids | None:
        """The ids that a record's attributes hold."""
        first: Ids | None = None
        for key, span_key in self._span_keys.items():
            ids = _parse(key, found[key], found.get(span_key)) if key in found else None
            if ids is None:
                continue
            if first is None:
                first = ids
            elif first.trace_id[_HALF:] == ids.trace_id[_HALF:]:
                # Datadog's decimal form is the low half of the trace id; another form may hold the whole.
                return Ids(max(first.trace_id, ids.trace_id), first.span_id or ids.span_id, first.flags, read=True)
        return first

    def _joined(self, found: Mapping[str, Any]) -> Ids | None:
        """The ids of the record's request."""
        request = found.get(self.settings.request_key or "")
        if request is None:
            return None
        return self._requests.find(request.string_value, self.context.clock.monotonic() - self.settings.request_window)

    def _write(self, record: Any, ids: Ids) -> None:
        record.trace_id = ids.trace_id
        if ids.span_id and record.span_id in {b"", _NO_SPAN}:
            record.span_id = ids.span_id
        if ids.flags:
            record.flags |= ids.flags
        written = [pair for form in self.settings.write for pair in _attributes(form, ids.trace_id, record.span_id)]
        doomed = {key for key, _ in written}
        if ids.read and not self.settings.keep_source:
            doomed |= self._id_keys
        attributes = record.attributes
        if doomed:
            for index in range(len(attributes) - 1, -1, -1):
                if attributes[index].key in doomed:
                    del attributes[index]
        for key, text in written:
            attributes.add(key=key).value.string_value = text


@dataclass(frozen=True, slots=True)
class Ids:
    """What ties a record to a trace. `read`: whether the record's attributes held it."""

    trace_id: bytes
    span_id: bytes
    flags: int = 0
    read: bool = False


class Requests:
    """The newest span of each request, for a while."""

    def __init__(self) -> None:
        self._spans: OrderedDict[str, tuple[int, float, Ids]] = OrderedDict()

    def add(self, request: str, span: Any, now: float) -> None:
        """Remember a span, unless the request has a newer one."""
        if not request or len(request) > _MAX_REQUEST_LENGTH or span.trace_id in {b"", _NO_TRACE}:
            return
        started = span.start_time_unix_nano
        known = self._spans.get(request)
        if known is not None and known[0] > started:
            return
        self._spans[request] = (started, now, Ids(span.trace_id, span.span_id))
        self._spans.move_to_end(request)
        if len(self._spans) > _MAX_REQUESTS:
            self._spans.popitem(last=False)

    def find(self, request: str, since: float) -> Ids | None:
        """The ids of the request's newest span, if it was seen since then."""
        known = self._spans.get(request)
        return known[2] if known is not None and known[1] >= since else None

    def forget(self, before: float) -> None:
        """Forget the spans that were seen before."""
        while self._spans and next(iter(self._spans.values()))[1] < before:
            self._spans.popitem(last=False)

    def __len__(self) -> int:
        return len(self._spans)


def _need_nothing(data: bytes, marks: list[bytes]) -> bool:
    """Whether all records of a request have a trace, or none an attribute that could tell it.

    It is told by the bytes, for a fifth of what it costs to decode them, which most requests are spared by it.
    """
    schema = _traced()
    if schema is not None and schema.scan(data) is not None:
        return True
    return not any(mark in data for mark in marks)


@cache
def _traced() -> Schema | None:
    """What the kernel finds sound where every record has a trace."""
    needed = Meaning(Role.TRACE_ID, is_required=True)
    return kernel.make_schema(
        SCHEMAS[Signal.LOGS].request.DESCRIPTOR,
        lambda field: needed if field.full_name.endswith(".LogRecord.trace_id") else Meaning(),
    )


# A component is made once per pipeline, and spans pass through another pipeline than the logs of their request. The
# board is what all components of one process are given, and no other process's.
_shared: WeakKeyDictionary[HealthBoard, dict[ComponentId, Requests]] = WeakKeyDictionary()


def _requests_of(context: Context) -> Requests:
    """What the component of this id remembers, in all pipelines."""
    return _shared.setdefault(context.board, {}).setdefault(context.id, Requests())


def _span_key(key: str) -> str:
    """Where the span id stands beside a trace id: `dd.span_id` for `dd.trace_id`."""
    before, found, after = key.rpartition("trace")
    return f"{before}span{after}" if found else ""


def _parse(key: str, trace: Any, span: Any) -> Ids | None:
    """The ids in an attribute and in the one beside it; None when there is no trace id."""
    text = trace.string_value or trace.int_value
    trace_id, span_id = parse_traceparent(text)
    if trace_id:
        return Ids(trace_id, span_id, int(str(text)[53:55], 16), read=True)
    trace_id = parse_trace_id(text)
    if not trace_id:
        return None
    if span is not None:
        # Sixteen digits are a decimal number beside a decimal trace id, and in Datadog's own attribute.
        decimal = key.startswith("dd.") or trace_id.startswith(_NO_SPAN)
        span_id = parse_span_id(span.string_value or span.int_value, decimal=decimal)
    return Ids(trace_id, span_id, read=True)


def _attributes(form: str, trace_id: bytes, span_id: bytes) -> Iterator[tuple[str, str]]:
    """The ids in a destination's form."""
    if form == "otel":
        yield "otel.trace_id", trace_id.hex()
        if span_id:
            yield "otel.span_id", span_id.hex()
    else:
        # 32 digits, unless the high half is zero: then the decimal number that is in Datadog's spans.
        yield "dd.trace_id", trace_id.hex() if any(trace_id[:_HALF]) else str(int.from_bytes(trace_id, "big"))
        if span_id:
            yield "dd.span_id", str(int.from_bytes(span_id, "big"))
