"""OTLP spans in Datadog's order: by resource, then by trace."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from exporters.datadog.resource import Origin, Origins
from exporters.datadog.spans import PRIORITY, Span, SpanMapper, shared_meta
from sidecar.reading import read_scope

_KEEP: Final = 1
_STATS_COMPUTED: Final = "_dd.stats_computed"
_OF_SERVICE: Final = frozenset({"service.name", "service.version"})

Reason: TypeAlias = Literal["invalid_id", "ignored_resource", "sampled_out"]


@dataclass(slots=True)
class Chunk:
    """Spans of one trace and one group, and the positions of their items."""

    spans: list[Span] = field(default_factory=list)
    units: list[int] = field(default_factory=list)

    @property
    def root(self) -> Span:
        """The span that the others descend from, as far as they are here."""
        ids = {span.span_id for span in self.spans}
        return next((span for span in self.spans if span.parent_id not in ids), self.spans[0])

    @property
    def decision(self) -> float | None:
        """The sampling priority that its root, or any of its spans, carries."""
        root = self.root.metrics.get(PRIORITY)
        if root is None:
            return next((span.metrics[PRIORITY] for span in self.spans if PRIORITY in span.metrics), None)
        return root

    @property
    def priority(self) -> int:
        """The sampling priority: above 0 is to be kept, as is what says nothing."""
        decision = self.decision
        return _KEEP if decision is None else int(decision)


@dataclass(slots=True)
class Group:
    """The chunks of one resource, or of all services that one tracer has sent.

    Attributes:
        origin: of the first one.
    """

    origin: Origin
    by_tracer: bool
    has_stats: bool
    chunks: dict[int, Chunk] = field(default_factory=dict)


class TraceMapper:
    """Maps requests to groups of chunks.

    Args:
        origins: what is known of resources.
        spans: maps each span.
        ignore_resources: regular expressions for resource names of root spans; their chunks are left out.
        on_left_out: told why, and how many spans.
    """

    def __init__(
        self,
        origins: Origins,
        spans: SpanMapper,
        ignore_resources: tuple[re.Pattern[str], ...] = (),
        on_left_out: Callable[[Reason, int], None] = lambda _reason, _spans: None,
    ) -> None:
        self._origins = origins
        self._spans = spans
        self._ignore = ignore_resources
        self._on_left_out = on_left_out

    def map(self, request: Any, *, local: bool) -> list[Group]:
        """The groups of an ExportTraceServiceRequest, as `read` gives it, in its order."""
        groups: dict[object, Group] = {}
        position = 0
        for index, resource_spans in enumerate(request.resource_spans):
            origin = self._origins.of(resource_spans.resource, local=local)
            by_tracer = origin.attributes.get("telemetry.sdk.name") == "datadog"
            group = groups.setdefault(
                _tracer(origin) if by_tracer else index,
                Group(origin, by_tracer, has_stats=origin.attributes.get(_STATS_COMPUTED, "false") != "false"),
            )
            for scope_spans in resource_spans.scope_spans:
                self._add(group, origin, scope_spans, position)
                position += len(scope_spans.spans)
        for group in groups.values():
            self._leave_out_ignored(group)
        return [group for group in groups.values() if group.chunks]

    def _add(self, group: Group, origin: Origin, scope_spans: Any, position: int) -> None:
        shared = shared_meta(origin, read_scope(scope_spans.scope))
        invalid = 0
        for position, span in enumerate(scope_spans.spans, position):  # noqa: B020, PLR1704 (it continues)
            mapped = self._spans.map(span, origin, shared, by_tracer=group.by_tracer)
            if not mapped.trace_id or not mapped.span_id:
                invalid += 1
                continue
            chunk = group.chunks.setdefault(mapped.trace_id, Chunk())
            chunk.spans.append(mapped)
            chunk.units.append(position)
        if invalid:
            self._on_left_out("invalid_id", invalid)

    def _leave_out_ignored(self, group: Group) -> None:
        if not self._ignore:
            return
        for trace_id, chunk in list(group.chunks.items()):
            if any(pattern.search(chunk.root.resource) for pattern in self._ignore):
                del group.chunks[trace_id]
                self._on_left_out("ignored_resource", len(chunk.spans))


def _tracer(origin: Origin) -> object:
    """What the services of one tracer have in common: it decides on a trace as a whole, and sends it as a whole."""
    return frozenset(pair for pair in origin.attributes.items() if pair[0] not in _OF_SERVICE)


def sampled(groups: Iterable[Group], on_left_out: Callable[[Reason, int], None]) -> Iterator[Group]:
    """The groups without the chunks that a sampler has decided against: what an Agent would not pass on either."""
    for group in groups:
        for trace_id, chunk in list(group.chunks.items()):
            if chunk.priority <= 0:
                del group.chunks[trace_id]
                on_left_out("sampled_out", len(chunk.spans))
        if group.chunks:
            yield group
