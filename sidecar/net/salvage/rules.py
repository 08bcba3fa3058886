"""What OTLP asks of each item beyond its schema, checked on the decoded message; what can't be mended is taken out.

Every item passes here, so a sound one costs a single condition, and everything else happens behind it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, Final

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet
from opentelemetry.proto.metrics.v1.metrics_pb2 import DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK

from sidecar.batch import take_out
from sidecar.net.salvage.repair import WRONG_TYPE
from sidecar.signals import SCHEMAS, ExportRequest, Signal

_TRACE_ID_SIZE: Final = 16
_SPAN_ID_SIZE: Final = 8
_NO_TRACE_ID: Final = bytes(_TRACE_ID_SIZE)
_NO_SPAN_ID: Final = bytes(_SPAN_ID_SIZE)


class Check:
    """The check of one request, in place.

    Attributes:
        rejected: items taken out, by reason.
        repaired: what was mended in items that were kept, or taken out of them, by reason.
    """

    def __init__(self) -> None:
        # One check per request: a Counter takes four times as long to make.
        self.rejected: dict[str, int] = defaultdict(int)
        self.repaired: dict[str, int] = defaultdict(int)

    def run(self, signal: Signal, message: ExportRequest) -> bool:
        """Check all items. Returns whether anything was changed."""
        schema = SCHEMAS[signal]
        check = {Signal.TRACES: self._spans, Signal.LOGS: self._log_records, Signal.METRICS: self._metrics}[signal]
        for resource in getattr(message, schema.resources):
            for scope in getattr(resource, schema.scopes):
                records = getattr(scope, schema.records)
                # Records of another signal may decode, and then say nothing: field numbers overlap. A request that went
                # astray did so as a whole, so that one look tells.
                if records and _is_foreign(records[0]):
                    self._reject(records, records, lambda record: WRONG_TYPE if _is_foreign(record) else "")
                check(records)
        return bool(self.rejected or self.repaired)

    def _reject(self, items: Any, suspects: Iterable[Any], problem: Callable[[Any], str]) -> None:
        """Take out the suspects that have a problem."""
        doomed = []
        for suspect in suspects:
            reason = problem(suspect)
            if reason:
                self.rejected[reason] += 1
                doomed.append(suspect)
        take_out(items, doomed)

    # --- traces -------------------------------------------------------------------------------------------------------

    def _spans(self, spans: Any) -> None:
        suspects = []
        for span in spans:
            trace_id, span_id, parent = span.trace_id, span.span_id, span.parent_span_id
            if (
                len(trace_id) != _TRACE_ID_SIZE
                or len(span_id) != _SPAN_ID_SIZE
                or trace_id == _NO_TRACE_ID
                or span_id == _NO_SPAN_ID
                or (parent and (len(parent) != _SPAN_ID_SIZE or parent == _NO_SPAN_ID))
                or span.links
            ):
                suspects.append(span)
        self._reject(spans, suspects, self._span_problem)

    def _span_problem(self, span: Any) -> str:
        if not _is_trace_id(span.trace_id) or not _is_span_id(span.span_id):
            return "span_id" if _is_trace_id(span.trace_id) else "trace_id"
        if span.parent_span_id and not _is_span_id(span.parent_span_id):
            if span.parent_span_id != _NO_SPAN_ID:
                return "parent_span_id"
            span.ClearField("parent_span_id")  # some SDKs write the parent of a root as zeros
            self.repaired["parent_span_id"] += 1
        doomed = [link for link in span.links if not _is_trace_id(link.trace_id) or not _is_span_id(link.span_id)]
        self._drop("link", span.links, doomed)
        return ""

    # --- logs ---------------------------------------------------------------------------------------------------------

    def _log_records(self, records: Any) -> None:
        for record in records:
            trace_id, span_id = record.trace_id, record.span_id
            if (trace_id and (len(trace_id) != _TRACE_ID_SIZE or trace_id == _NO_TRACE_ID)) or (
                span_id and (len(span_id) != _SPAN_ID_SIZE or span_id == _NO_SPAN_ID)
            ):
                self._clear_bad_ids(record)

    def _clear_bad_ids(self, message: Any) -> None:
        """A log record or exemplar with bad ids belongs to no trace (OTLP: "should be treated as not associated")."""
        for name, is_sound in (("trace_id", _is_trace_id), ("span_id", _is_span_id)):
            value = getattr(message, name)
            if value and not is_sound(value):
                message.ClearField(name)
                self.repaired[name] += 1

    # --- metrics ------------------------------------------------------------------------------------------------------

    def _metrics(self, metrics: Any) -> None:
        checks = {
            "gauge": self._numbers,
            "sum": self._numbers,
            "histogram": self._histograms,
            "exponential_histogram": self._exponential_histograms,
            "summary": self._summaries,
        }
        empty = []
        for metric in metrics:
            kind = metric.WhichOneof("data")
            if kind is None:
                empty.append(metric)
            else:
                checks[kind](getattr(metric, kind).data_points)
        self._drop("metric", metrics, empty)  # which hold no items that could be rejected

    def _numbers(self, points: Any) -> None:
        suspects = [
            point
            for point in points
            if not point.time_unix_nano or point.WhichOneof("value") is None or point.exemplars
        ]
        self._reject(points, suspects, lambda point: self._point_problem(point, _number_problem))

    def _histograms(self, points: Any) -> None:
        suspects = []
        increasing: list[float] = []
        for point in points:
            bounds = point.explicit_bounds[:]
            if not point.time_unix_nano or len(point.bucket_counts) != len(bounds) + 1 or point.exemplars:
                suspects.append(point)
            elif bounds != increasing:  # as a rule all points have the same
                if _increase(bounds):
                    increasing = bounds
                else:
                    suspects.append(point)
        self._reject(points, suspects, lambda point: self._point_problem(point, _bucket_problem))

    def _exponential_histograms(self, points: Any) -> None:
        suspects = [point for point in points if not point.time_unix_nano or point.exemplars]
        self._reject(points, suspects, lambda point: self._point_problem(point, lambda _: ""))

    def _summaries(self, points: Any) -> None:
        self._reject(points, points, lambda point: _quantile_problem(point) if point.time_unix_nano else "time")

    def _point_problem(self, point: Any, problem_of_kind: Callable[[Any], str]) -> str:
        """The problem of a suspect; where there is none, its exemplars are mended."""
        problem = problem_of_kind(point) if point.time_unix_nano else "time"
        if not problem:
            self._mend_exemplars(point.exemplars)
        return problem

    def _mend_exemplars(self, exemplars: Any) -> None:
        self._drop("exemplar", exemplars, [each for each in exemplars if each.WhichOneof("value") is None])
        for exemplar in exemplars:
            self._clear_bad_ids(exemplar)

    def _drop(self, what: str, parts: Any, doomed: list[Any]) -> None:
        """Take out what is not an item."""
        if doomed:
            self.repaired[what] += len(doomed)
            take_out(parts, doomed)


def _number_problem(point: Any) -> str:
    absent_on_purpose = point.flags & DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK
    return "" if absent_on_purpose or point.WhichOneof("value") is not None else "value"


def _bucket_problem(point: Any) -> str:
    bounds, counts = point.explicit_bounds[:], point.bucket_counts
    sound = len(counts) == len(bounds) + 1 and _increase(bounds)
    return "" if sound or not (bounds or counts) else "buckets"


def _quantile_problem(point: Any) -> str:
    sound = all(0 <= each.quantile <= 1 and not each.value < 0 for each in point.quantile_values)
    return "" if sound else "quantiles"


def _increase(bounds: list[float]) -> bool:
    return all(low < high for low, high in pairwise(bounds)) and not any(map(math.isnan, bounds))


def _is_trace_id(value: bytes) -> bool:
    return len(value) == _TRACE_ID_SIZE and value != _NO_TRACE_ID


def _is_span_id(value: bytes) -> bool:
    return len(value) == _SPAN_ID_SIZE and value != _NO_SPAN_ID


def _is_foreign(message: Message) -> bool:
    """Whether a field that the schema knows came in another wire type, which protobuf keeps as if it were unknown."""
    known = message.DESCRIPTOR.fields_by_number
    unknown = UnknownFieldSet(message)
    return any(unknown[index].field_number in known for index in range(len(unknown)))
