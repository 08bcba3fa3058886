"""Tells from their bytes alone which requests need no salvage, as nearly all: for half the cost of decoding them.

What is asked here is what `rules` asks, and more: each doubt leaves the request to it.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

from google.protobuf.descriptor import FieldDescriptor

from sidecar import kernel
from sidecar.kernel import Meaning, Role
from sidecar.net.salvage.repair import ITEMS
from sidecar.signals import SCHEMAS, Signal

if TYPE_CHECKING:
    from sidecar.kernel._kernel import Schema

_NEEDED: Final = Meaning(is_required=True)
_TIME: Final = Meaning(Role.NOT_ZERO, is_required=True)
_TRACE_ID: Final = Meaning(Role.TRACE_ID)
_SPAN_ID: Final = Meaning(Role.SPAN_ID)
_ITS_TRACE_ID: Final = Meaning(Role.TRACE_ID, is_required=True)
_ITS_SPAN_ID: Final = Meaning(Role.SPAN_ID, is_required=True)

_MEANINGS: Final = {
    # Old clients have their scopes in another field.
    "trace.v1.ResourceSpans.scope_spans": _NEEDED,
    "logs.v1.ResourceLogs.scope_logs": _NEEDED,
    "metrics.v1.ResourceMetrics.scope_metrics": _NEEDED,
    "trace.v1.Span.trace_id": _ITS_TRACE_ID,
    "trace.v1.Span.span_id": _ITS_SPAN_ID,
    "trace.v1.Span.parent_span_id": _SPAN_ID,
    "trace.v1.Span.Link.trace_id": _ITS_TRACE_ID,
    "trace.v1.Span.Link.span_id": _ITS_SPAN_ID,
    "logs.v1.LogRecord.trace_id": _TRACE_ID,
    "logs.v1.LogRecord.span_id": _SPAN_ID,
    "metrics.v1.Metric.gauge": _NEEDED,  # or another of the oneof
    "metrics.v1.NumberDataPoint.time_unix_nano": _TIME,
    "metrics.v1.NumberDataPoint.as_double": _NEEDED,  # or as_int
    "metrics.v1.HistogramDataPoint.time_unix_nano": _TIME,
    "metrics.v1.HistogramDataPoint.explicit_bounds": Meaning(Role.BOUNDS),
    "metrics.v1.HistogramDataPoint.bucket_counts": Meaning(Role.COUNTS),
    "metrics.v1.ExponentialHistogramDataPoint.time_unix_nano": _TIME,
    "metrics.v1.SummaryDataPoint.time_unix_nano": _TIME,
    "metrics.v1.SummaryDataPoint.ValueAtQuantile.quantile": Meaning(Role.RATIO),
    "metrics.v1.SummaryDataPoint.ValueAtQuantile.value": Meaning(Role.NOT_NEGATIVE),
    "metrics.v1.Exemplar.as_double": _NEEDED,  # or as_int
    "metrics.v1.Exemplar.trace_id": _TRACE_ID,
    "metrics.v1.Exemplar.span_id": _SPAN_ID,
}
_PLAIN: Final = Meaning()


def count_sound(signal: Signal, data: bytes) -> int | None:
    """The number of items of a request that protobuf decodes and in which nothing is to mend; None where in doubt."""
    schema = _schema(signal)
    return None if schema is None else schema.scan(data)


@cache
def _schema(signal: Signal) -> Schema | None:
    return kernel.make_schema(SCHEMAS[signal].request.DESCRIPTOR, _meaning, ITEMS)


def _meaning(field: FieldDescriptor) -> Meaning:
    return _MEANINGS.get(field.full_name.removeprefix("opentelemetry.proto."), _PLAIN)
