"""Traces on the wire: MessagePack for an Agent, protobuf for the intake, each body within its receiver's limit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import msgspec

from exporters.datadog.delivery import Body
from exporters.datadog.spans import DECISION, PRIORITY
from exporters.datadog.traces import Chunk, Group
from exporters.datadog.wire.datadog_pb2 import AgentPayload, TraceChunk, TracerPayload
from sidecar.net.wire import LENGTH_DELIMITED, delimited, tag

# The intake takes 3.2 MB; Vector stops at 3,000,000 too.
MAX_INTAKE_BODY: Final = 3_000_000
# An Agent takes 25 MiB; ddtrace stops at 8 MiB too.
MAX_AGENT_BODY: Final = 8 << 20

_TRACER_PAYLOAD: Final = tag(AgentPayload.TRACER_PAYLOADS_FIELD_NUMBER, LENGTH_DELIMITED)
_CHUNK: Final = tag(TracerPayload.CHUNKS_FIELD_NUMBER, LENGTH_DELIMITED)
_ENVELOPE: Final = 6  # at most: a field's number and length, or the length of an array
_BY_OTLP_SAMPLER: Final = "-9"
_HOSTNAME: Final = "_dd.hostname"
_SAMPLE_RATE: Final = {"_dd.otlp_sr": "1.00"}
_UNIFIED: Final = ("env:", "service:", "version:")


def agent_bodies(groups: Iterable[Group]) -> Iterator[Body]:
    """Bodies for an Agent's `/v0.4/traces`: an array of traces, each an array of spans."""
    encoder = msgspec.msgpack.Encoder()
    traces: list[bytes] = []
    units: list[int] = []
    size = _ENVELOPE
    for group in groups:
        for chunk in group.chunks.values():
            mark = _marker(group, chunk)

            def encode(part: Chunk, mark: Callable[[Chunk], None] = mark) -> bytes:
                mark(part)
                return encoder.encode(part.spans)

            for data, positions in _fitting(chunk, encode, MAX_AGENT_BODY - _ENVELOPE):
                if traces and size + len(data) > MAX_AGENT_BODY:
                    yield Body(array_of(traces), units)
                    traces, units, size = [], [], _ENVELOPE
                traces.append(data)
                units += positions
                size += len(data)
    if traces:
        yield Body(array_of(traces), units)


def _marker(group: Group, chunk: Chunk) -> Callable[[Chunk], None]:
    """What puts on the spans of each part of a chunk what an Agent looks for there, and what it can't know."""
    origin = group.origin
    hostname = "" if origin.host_is_assumed else origin.hostname
    if not group.by_tracer:
        return partial(_mark, float(chunk.priority), hostname)
    said = {_HOSTNAME: hostname, "env": origin.env}
    # What the tracer has said on any span holds for the trace; v0.7 says it on the payload.
    left = {name: value for name, value in said.items() if value and not any(name in one.meta for one in chunk.spans)}
    return partial(_mark_tracers, chunk.decision, left)


def _mark(priority: float, hostname: str, part: Chunk) -> None:
    first = part.spans[0]
    first.metrics.setdefault(PRIORITY, priority)
    first.meta.setdefault(DECISION, _BY_OTLP_SAMPLER)
    if hostname:
        for span in part.spans:
            span.meta.setdefault(_HOSTNAME, hostname)


def _mark_tracers(decision: float | None, said: Mapping[str, str], part: Chunk) -> None:
    """An Agent decides where the tracer has not."""
    first = part.spans[0]
    if decision is not None and not any(PRIORITY in span.metrics for span in part.spans):
        first.metrics[PRIORITY] = decision
    first.meta.update(said)


def intake_bodies(groups: Iterable[Group], sender: AgentPayload) -> Iterator[Body]:
    """Bodies for the intake's `/api/v0.2/traces`: one AgentPayload each.

    Args:
        groups: what to send.
        sender: what the payloads say of the sender; without traces.
    """
    start = sender.SerializeToString()
    parts: list[bytes] = []
    units: list[int] = []
    languages: set[str] = set()
    size = len(start)
    for group in groups:
        tracer_start = _tracer_payload(group).SerializeToString()
        chunks: list[bytes] = []
        around = len(tracer_start) + 2 * _ENVELOPE
        for chunk in group.chunks.values():
            encode = partial(_encode_chunk, _chunk_fields(group, chunk))
            for data, positions in _fitting(chunk, encode, MAX_INTAKE_BODY - len(start) - around):
                if units and size + around + len(data) > MAX_INTAKE_BODY:
                    _close(parts, tracer_start, chunks)
                    yield _intake_body(start, parts, units, languages)
                    parts, chunks, units, languages, size = [], [], [], set(), len(start)
                chunks.append(data)
                units += positions
                size += len(data) + _ENVELOPE
                languages.add(group.origin.attributes.get("telemetry.sdk.language", ""))
        size += len(tracer_start) + _ENVELOPE
        _close(parts, tracer_start, chunks)
    if units:
        yield _intake_body(start, parts, units, languages)


def _close(parts: list[bytes], tracer_start: bytes, chunks: list[bytes]) -> None:
    if chunks:
        payload = tracer_start + b"".join(delimited(_CHUNK, data) for data in chunks)
        parts.append(delimited(_TRACER_PAYLOAD, payload))


def _intake_body(start: bytes, parts: list[bytes], units: list[int], languages: set[str]) -> Body:
    named = "|".join(sorted(filter(None, languages)))
    return Body(start + b"".join(parts), units, {"X-Datadog-Reported-Languages": named} if named else {})


def _tracer_payload(group: Group) -> TracerPayload:
    origin = group.origin
    attributes = origin.attributes
    container_tags = ",".join(one for one in origin.tags if not one.startswith(_UNIFIED))
    version = attributes.get("telemetry.sdk.version", "")
    return TracerPayload(
        container_id=attributes.get("container.id", ""),
        language_name=attributes.get("telemetry.sdk.language", ""),
        language_version=attributes.get("process.runtime.version", ""),
        tracer_version=version if group.by_tracer else f"otlp-{version}",
        runtime_id=attributes.get("runtime-id", ""),
        tags={"_dd.tags.container": container_tags} if container_tags else {},
        env=origin.env,
        hostname=origin.hostname,
        app_version=origin.version,
    )


def _chunk_fields(group: Group, chunk: Chunk) -> dict[str, Any]:
    """What a chunk's parts say of the whole."""
    meta = chunk.root.meta
    if group.by_tracer:
        tags = {DECISION: meta[DECISION]} if DECISION in meta else {}
    else:
        tags = {**_SAMPLE_RATE, DECISION: meta.get(DECISION, _BY_OTLP_SAMPLER)}
    return {"priority": chunk.priority, "origin": meta.get("_dd.origin", ""), "tags": tags}


def _encode_chunk(fields: Mapping[str, Any], part: Chunk) -> bytes:
    message = TraceChunk(**fields)
    for span in part.spans:
        message.spans.add(**msgspec.structs.asdict(span))
    return message.SerializeToString()


def _fitting(chunk: Chunk, encode: Callable[[Chunk], bytes], limit: int) -> Iterator[tuple[bytes, list[int]]]:
    """A chunk, in pieces where it is over the limit: a trace that no request could hold is sent by several."""
    data = encode(chunk)
    middle = len(chunk.spans) // 2
    if len(data) <= limit or not middle:
        yield data, chunk.units
        return
    yield from _fitting(Chunk(chunk.spans[:middle], chunk.units[:middle]), encode, limit)
    yield from _fitting(Chunk(chunk.spans[middle:], chunk.units[middle:]), encode, limit)


def array_of(items: list[bytes]) -> bytes:
    """A MessagePack array of encoded items."""
    count = len(items)
    if count < 16:
        head = bytes((0x90 | count,))
    else:
        head = b"\xdc" + count.to_bytes(2, "big") if count < 1 << 16 else b"\xdd" + count.to_bytes(4, "big")
    return head + b"".join(items)


def agent_headers(body: bytes) -> dict[str, str]:
    """What an Agent wants to know of a body before it reads it."""
    first = body[0]
    count = first & 0x0F if first < 0xDC else int.from_bytes(body[1 : 3 if first == 0xDC else 5], "big")
    return {"X-Datadog-Trace-Count": str(count)}


def divide_agent_body(body: bytes, count: int) -> tuple[bytes, bytes]:
    """The body with the first `count` spans, and the body with the rest."""
    first: list[list[Any]] = []
    rest: list[list[Any]] = []
    for trace in msgspec.msgpack.decode(body):
        taken = min(count, len(trace))
        count -= taken
        first += [trace[:taken]] if taken else []
        rest += [trace[taken:]] if taken < len(trace) else []
    return msgspec.msgpack.encode(first), msgspec.msgpack.encode(rest)


def divide_intake_body(body: bytes, count: int) -> tuple[bytes, bytes]:
    """The body with the first `count` spans, and the body with the rest."""
    first, rest = AgentPayload.FromString(body), AgentPayload.FromString(body)
    for payload, other in zip(first.tracer_payloads, rest.tracer_payloads, strict=True):
        for chunk, twin in zip(payload.chunks, other.chunks, strict=True):
            taken = min(count, len(chunk.spans))
            count -= taken
            del chunk.spans[taken:]
            del twin.spans[:taken]
    return _pruned(first).SerializeToString(), _pruned(rest).SerializeToString()


def _pruned(payload: AgentPayload) -> AgentPayload:
    """Without chunks and tracer payloads that have become empty."""
    for tracer in payload.tracer_payloads:
        for index in reversed(range(len(tracer.chunks))):
            if not tracer.chunks[index].spans:
                del tracer.chunks[index]
    for index in reversed(range(len(payload.tracer_payloads))):
        if not payload.tracer_payloads[index].chunks:
            del payload.tracer_payloads[index]
    return payload
