"""APM statistics: how many spans of each kind there were, how many failed and how long they took.

Datadog's service pages read them instead of the spans, which may be sampled: they count every span, before any decision
about its trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec
from ddsketch import LogCollapsingLowestDenseDDSketch
from ddsketch.pb.proto import DDSketchProto

from exporters.datadog.points import ClientStats
from exporters.datadog.resource import Origin
from exporters.datadog.spans import MEASURED, TOP_LEVEL, Span
from exporters.datadog.traces import Group

BUCKET_NS: Final = 10 * 10**9
# The intake takes about 3 MB: the Agent divides at as many entries.
MAX_ENTRIES: Final = 4000
# Kinds that are counted although they are not top level (`compute_stats_by_span_kind` of Datadog's own exporter).
_COUNTED_KINDS: Final = frozenset({"server", "client", "producer", "consumer"})
_PEERS: Final = frozenset({"client", "producer", "consumer"})
# What tells one peer from another, by Datadog's names after renaming.
_PEER_TAGS: Final = (
    "_dd.base_service",
    "db.instance",
    "db.name",
    "db.system",
    "http.server_name",
    "messaging.destination",
    "messaging.destination.name",
    "messaging.system",
    "net.peer.name",
    "network.destination.name",
    "out.host",
    "peer.service",
    "rpc.service",
    "rpc.system",
)
# As ddtrace's own sketches: gamma 1.015625, and so many bins that none is merged between 1 ns and 15 h.
_ACCURACY: Final = 0.00775
_MAX_BINS: Final = 2048
_OTHER: Final = "*"
_TRUE, _FALSE = 1, 2


class Source(NamedTuple):
    """Whose statistics they are: one ClientStatsPayload each."""

    hostname: str
    env: str
    version: str
    language: str
    container_id: str


class Key(NamedTuple):
    """What one entry counts: spans that are alike."""

    service: str
    name: str
    resource: str
    type: str
    http_status: int
    kind: str
    is_root: int
    grpc_status: str
    http_method: str
    http_endpoint: str
    synthetics: bool
    peer_tags: tuple[str, ...]


def _new_sketch() -> Any:
    return LogCollapsingLowestDenseDDSketch(_ACCURACY, _MAX_BINS)


@dataclass(slots=True)
class Entry:
    """The numbers of one key in one bucket. Durations in nanoseconds."""

    hits: int = 0
    top_level_hits: int = 0
    errors: int = 0
    duration: int = 0
    ok: Any = field(default_factory=_new_sketch)
    failed: Any = None  # most never need it


class Concentrator:
    """Counts spans in buckets of ten seconds, by the time at which they ended.

    A bucket is closed ten seconds after its end. A span that comes later is counted in the oldest one that is open.
    Each bucket holds at most `max_entries` keys: beyond, resources and peers are counted together, so that hits and
    errors of a service stay right; and far beyond, services are. `on_folded` is called for each span of those.
    """

    def __init__(self, *, max_entries: int = MAX_ENTRIES, on_folded: Callable[[], None] = lambda: None) -> None:
        self._max_entries = max_entries
        self._on_folded = on_folded
        self._buckets: dict[int, dict[tuple[Source, Key], Entry]] = {}

    def add(self, groups: Iterable[Group], now_ns: int) -> None:
        """Count the spans of groups whose sender has not counted them itself."""
        oldest = now_ns - now_ns % BUCKET_NS - BUCKET_NS
        for group in groups:
            if group.has_stats:
                continue
            source = _source(group.origin)
            for chunk in group.chunks.values():
                for span in chunk.spans:
                    if _counts(span):
                        end = span.start + span.duration
                        bucket = self._buckets.setdefault(
                            max(oldest, min(end - end % BUCKET_NS, oldest + 2 * BUCKET_NS)), {}
                        )
                        self._count(bucket, source, span)

    def _count(self, bucket: dict[tuple[Source, Key], Entry], source: Source, span: Span) -> None:
        key = _key(span)
        entry = bucket.get((source, key))
        if entry is None:
            entry = self._new_entry(bucket, source, key)
        entry.hits += 1
        entry.top_level_hits += TOP_LEVEL in span.metrics
        entry.duration += span.duration
        if span.error:
            entry.errors += 1
            if entry.failed is None:
                entry.failed = _new_sketch()
            entry.failed.add(span.duration)
        else:
            entry.ok.add(span.duration)

    def _new_entry(self, bucket: dict[tuple[Source, Key], Entry], source: Source, key: Key) -> Entry:
        if len(bucket) >= self._max_entries:
            self._on_folded()
            key = key._replace(resource=_OTHER, http_endpoint="", peer_tags=())
            if len(bucket) >= 2 * self._max_entries:
                key = key._replace(service=_OTHER, name=_OTHER, type="", http_method="", grpc_status="")
                source = Source("", source.env if len(bucket) < 3 * self._max_entries else "", "", "", "")
        return bucket.setdefault((source, key), Entry())

    def flush(self, now_ns: int | None) -> Iterator[dict[str, Any]]:
        """Close buckets and give them as ClientStatsPayloads, at most `MAX_ENTRIES` entries each.

        Args:
            now_ns: Unix time in nanoseconds; None closes all.
        """
        closed = [start for start in self._buckets if now_ns is None or start <= now_ns - 2 * BUCKET_NS]
        for start in sorted(closed):
            by_source: dict[Source, list[dict[str, Any]]] = {}
            for (source, key), entry in self._buckets.pop(start).items():
                by_source.setdefault(source, []).append(_encoded(key, entry))
            for source, entries in by_source.items():
                for index in range(0, len(entries), MAX_ENTRIES):
                    yield _client_payload(source, start, entries[index : index + MAX_ENTRIES])


@dataclass(frozen=True, slots=True)
class Sender:
    """Who sends statistics on: what an Agent says of itself."""

    hostname: str
    env: str
    version: str

    def payload(self, payloads: list[dict[str, Any]], *, computed_by_client: bool, is_part: bool) -> bytes:
        """A body for the intake's `/api/v0.2/stats`."""
        return msgspec.msgpack.encode(
            {
                "AgentHostname": self.hostname,
                "AgentEnv": self.env,
                "AgentVersion": self.version,
                "Stats": payloads,
                "ClientComputed": computed_by_client,
                "SplitPayload": is_part,
            }
        )


def encode(payloads: list[dict[str, Any]], sender: Sender) -> Iterator[bytes]:
    """Bodies for the intake's `/api/v0.2/stats`, of what `Concentrator.flush` gave, each of at most `MAX_ENTRIES`."""
    parts: list[list[dict[str, Any]]] = [[]]
    room = MAX_ENTRIES
    for payload in payloads:
        entries = len(payload["Stats"][0]["Stats"])
        if entries > room and parts[-1]:
            parts.append([])
            room = MAX_ENTRIES
        parts[-1].append(payload)
        room -= entries
    for part in filter(None, parts):
        yield sender.payload(part, computed_by_client=False, is_part=len(parts) > 1)


def forwarded(stats: ClientStats) -> dict[str, Any] | None:
    """A tracer's own ClientStatsPayload, with host and environment where it has none; None where it is unreadable."""
    try:
        payload = msgspec.msgpack.decode(stats.message, type=dict[str, Any])
    except msgspec.DecodeError:
        return None
    payload["Hostname"] = payload.get("Hostname") or stats.origin.hostname
    payload["Env"] = payload.get("Env") or stats.origin.env
    return payload


def _counts(span: Span) -> bool:
    return TOP_LEVEL in span.metrics or MEASURED in span.metrics or span.meta.get("span.kind") in _COUNTED_KINDS


def _source(origin: Origin) -> Source:
    attributes = origin.attributes
    return Source(
        origin.hostname,
        origin.env,
        origin.version,
        attributes.get("telemetry.sdk.language", ""),
        attributes.get("container.id", ""),
    )


def _key(span: Span) -> Key:
    meta = span.meta
    kind = meta.get("span.kind", "")
    status = meta.get("http.status_code", "")
    return Key(
        service=span.service,
        name=span.name,
        resource=span.resource,
        type=span.type,
        http_status=int(status) if len(status) == 3 and status.isascii() and status.isdigit() else 0,
        kind=kind,
        is_root=_FALSE if span.parent_id else _TRUE,
        grpc_status=meta.get("rpc.grpc.status_code") or _whole(span.metrics.get("rpc.grpc.status_code")),
        http_method=meta.get("http.method", ""),
        http_endpoint=meta.get("http.route", ""),
        synthetics=meta.get("_dd.origin", "").startswith("synthetics"),
        peer_tags=tuple(f"{name}:{meta[name]}" for name in _PEER_TAGS if meta.get(name)) if kind in _PEERS else (),
    )


def _whole(number: float | None) -> str:
    return "" if number is None else str(int(number))


def _encoded(key: Key, entry: Entry) -> dict[str, Any]:
    return {
        "Service": key.service,
        "Name": key.name,
        "Resource": key.resource,
        "Type": key.type,
        "DBType": "",
        "HTTPStatusCode": key.http_status,
        "Hits": entry.hits,
        "Errors": entry.errors,
        "Duration": entry.duration,
        "OkSummary": _sketch(entry.ok),
        "ErrorSummary": _sketch(entry.failed) if entry.failed else _EMPTY_SKETCH,
        "Synthetics": key.synthetics,
        "TopLevelHits": entry.top_level_hits,
        "SpanKind": key.kind,
        "PeerTags": list(key.peer_tags),
        "IsTraceRoot": key.is_root,
        "GRPCStatusCode": key.grpc_status,
        "HTTPMethod": key.http_method,
        "HTTPEndpoint": key.http_endpoint,
    }


def _sketch(sketch: Any) -> bytes:
    data: bytes = DDSketchProto.to_proto(sketch).SerializeToString()  # type: ignore[no-untyped-call]
    return data


_EMPTY_SKETCH: Final = _sketch(_new_sketch())


def _client_payload(source: Source, start: int, entries: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "Hostname": source.hostname,
        "Env": source.env,
        "Version": source.version,
        "Lang": source.language,
        "ContainerID": source.container_id,
        "Stats": [{"Start": start, "Duration": BUCKET_NS, "Stats": entries}],
    }
