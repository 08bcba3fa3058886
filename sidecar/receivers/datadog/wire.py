"""What Datadog's tracers send, decoded: every version of their protocol becomes the same chunks of spans.

MessagePack or, up to v0.4, JSON. A tracer may write nil for whatever it has nothing to say on, and leaves out what is
zero. What is wrong with one span costs only that span.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec

from sidecar.errors import Permanent

Version: TypeAlias = Literal["v0.3", "v0.4", "v0.5", "v0.7"]


class EventArray(msgspec.Struct, gc=False):
    """An array in a span event. Its values hold no arrays."""

    values: list[EventValue]


class EventValue(msgspec.Struct, gc=False):
    """A typed value in a span event: `type` says which field holds it."""

    type: int = 0
    string_value: str | None = None
    bool_value: bool | None = None
    int_value: int | None = None
    double_value: float | None = None
    array_value: EventArray | None = None

    def plain(self) -> Any:
        """The value itself."""
        if self.type == 4:
            return [one.plain() for one in self.array_value.values] if self.array_value is not None else []
        fields = (self.string_value, self.bool_value, self.int_value, self.double_value)
        return fields[self.type] if 0 <= self.type < len(fields) else None


class SpanEvent(msgspec.Struct, gc=False):
    """Something that happened during a span."""

    time_unix_nano: int = 0
    name: str | None = ""
    attributes: dict[str, EventValue] | None = None


class SpanLink(msgspec.Struct, gc=False):
    """A span's relation to another one. `flags`: bit 31 says that the others are known."""

    trace_id: int = 0
    trace_id_high: int | None = 0
    span_id: int = 0
    attributes: dict[str, str] | None = None
    tracestate: str | None = ""
    flags: int | None = 0


class Span(msgspec.Struct, gc=False):
    """A span, as v0.4 names its parts. Times in nanoseconds; `trace_id` is the lower half of the whole."""

    service: str | None = ""
    name: str | None = ""
    resource: str | None = ""
    trace_id: int | None = 0
    span_id: int | None = 0
    parent_id: int | None = 0
    start: int | None = 0
    duration: int | None = 0
    error: int | None = 0
    meta: dict[str, str | None] | None = None
    metrics: dict[str, float | None] | None = None
    type: str | None = ""
    meta_struct: dict[str, bytes] | None = None
    span_links: list[SpanLink] | None = None
    span_events: list[SpanEvent] | None = None


class _TracerFields(msgspec.Struct, kw_only=True):
    """What v0.7 says of the tracer and of the program that it is in."""

    container_id: str | None = ""
    language_name: str | None = ""
    language_version: str | None = ""
    tracer_version: str | None = ""
    runtime_id: str | None = ""
    env: str | None = ""
    hostname: str | None = ""
    app_version: str | None = ""
    tags: dict[str, str] | None = None


class Payload(_TracerFields):
    """What one request carries: spans by chunk, each of one trace. `malformed`: how many spans were left out."""

    chunks: list[list[Span]] = []
    malformed: int = 0


class _Chunk(msgspec.Struct):
    """A chunk of v0.7."""

    priority: int | None = None
    origin: str | None = ""
    spans: list[msgspec.Raw] | None = None
    tags: dict[str, str] | None = None


class _TracerPayload(_TracerFields, kw_only=True):
    """A payload of v0.7."""

    chunks: list[_Chunk] | None = None


_Ref: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
# service, name, resource, trace, span, parent, start, duration, error, meta, metrics, type (the Agent's v0.5 format)
_Row: TypeAlias = tuple[
    _Ref, _Ref, _Ref, int, int, int, int, int, int, dict[_Ref, _Ref] | None, dict[_Ref, float | None] | None, _Ref
]

_Spans: TypeAlias = list[list[Span]]
_SPANS: Final = msgspec.msgpack.Decoder(_Spans)
_JSON_SPANS: Final = msgspec.json.Decoder(_Spans)
_SPAN: Final = msgspec.msgpack.Decoder(Span)
_JSON_SPAN: Final = msgspec.json.Decoder(Span)
_ROWS: Final = msgspec.msgpack.Decoder(tuple[list[str], list[list[_Row]]])
_ROW: Final = msgspec.msgpack.Decoder(_Row)
_TRACER: Final = msgspec.msgpack.Decoder(_TracerPayload)
_RAW_SPANS: Final = msgspec.msgpack.Decoder(list[list[msgspec.Raw]])
_JSON_RAW_SPANS: Final = msgspec.json.Decoder(list[list[msgspec.Raw]])
_RAW_ROWS: Final = msgspec.msgpack.Decoder(tuple[list[msgspec.Raw], list[list[msgspec.Raw]]])


def decode(version: Version, data: bytes, *, json: bool = False) -> Payload:
    """The spans of a request's body.

    Args:
        version: of the protocol.
        data: the body.
        json: whether it is JSON, which v0.3 and v0.4 may be.

    Raises:
        Permanent: it is no such body.
    """
    try:
        if version == "v0.5":
            return _decode_rows(data)
        return _decode_tracer(data) if version == "v0.7" else _decode_spans(data, json=json)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Permanent(f"not a {version} payload of traces: {error}") from None


def _decode_spans(data: bytes, *, json: bool) -> Payload:
    try:
        return Payload((_JSON_SPANS if json else _SPANS).decode(data))
    except msgspec.MsgspecError:
        payload = Payload()
        for raws in (_JSON_RAW_SPANS if json else _RAW_SPANS).decode(data):
            payload.malformed += _salvage(payload, raws, (_JSON_SPAN if json else _SPAN).decode)
        return payload


def _decode_rows(data: bytes) -> Payload:
    try:
        strings, rows = _ROWS.decode(data)
        return Payload([[_span_of(row, strings) for row in chunk] for chunk in rows])
    except (msgspec.MsgspecError, IndexError):
        raw_strings, raw_rows = _RAW_ROWS.decode(data)
        strings = [_text(bytes(raw)) for raw in raw_strings]
        payload = Payload()
        for raws in raw_rows:
            payload.malformed += _salvage(payload, raws, lambda raw: _span_of(_ROW.decode(raw), strings))
        return payload


def _decode_tracer(data: bytes) -> Payload:
    tracer = _TRACER.decode(data)
    payload = Payload(**{name: getattr(tracer, name) for name in _TracerFields.__struct_fields__})
    for chunk in tracer.chunks or ():
        before = len(payload.chunks)
        payload.malformed += _salvage(payload, chunk.spans or (), _SPAN.decode)
        if len(payload.chunks) > before:
            _put_on_first(chunk, payload.chunks[-1][0])
    return payload


def _put_on_first(chunk: _Chunk, span: Span) -> None:
    """Say on a chunk's first span what the older versions say there."""
    span.meta = {**(chunk.tags or {}), **(span.meta or {})}
    if chunk.origin:
        span.meta.setdefault("_dd.origin", chunk.origin)
    if chunk.priority is not None:
        span.metrics = {"_sampling_priority_v1": float(chunk.priority), **(span.metrics or {})}


def _salvage(payload: Payload, raws: Iterable[msgspec.Raw], read: Callable[[msgspec.Raw], Span]) -> int:
    """Add a chunk of the spans that can be read. Returns how many can't."""
    spans, malformed = [], 0
    for raw in raws:
        try:
            spans.append(read(raw))
        except (msgspec.MsgspecError, IndexError):
            malformed += 1
    if spans:
        payload.chunks.append(spans)
    return malformed


def _span_of(row: _Row, strings: list[str]) -> Span:
    """Raises IndexError where a reference leads nowhere."""
    service, name, resource, trace_id, span_id, parent_id, start, duration, error, meta, metrics, kind = row
    return Span(
        strings[service],
        strings[name],
        strings[resource],
        trace_id,
        span_id,
        parent_id,
        start,
        duration,
        error,
        {strings[key]: strings[value] for key, value in meta.items()} if meta else None,
        {strings[key]: value for key, value in metrics.items()} if metrics else None,
        strings[kind],
    )


def _text(raw: bytes) -> str:
    """A MessagePack string whose bytes may be no UTF-8, as the Agent mends it; "" for anything else."""
    head = raw[0]
    size = 1 if 0xA0 <= head <= 0xBF else _STRING_HEADS.get(head)
    return raw[size:].decode(errors="replace") if size else ""


_STRING_HEADS: Final = {0xD9: 2, 0xDA: 3, 0xDB: 5, 0xC4: 2, 0xC5: 3, 0xC6: 5}
