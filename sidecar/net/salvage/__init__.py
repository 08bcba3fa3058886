"""Take what is good of a request and leave the rest: one bad record never costs its neighbours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from google.protobuf.message import DecodeError

from sidecar.batch import Batch, BatchContext
from sidecar.errors import Permanent
from sidecar.net.salvage.repair import MALFORMED, TOO_DEEP, WRONG_TYPE, Repair, Unmendable
from sidecar.net.salvage.rules import Check
from sidecar.net.salvage.sound import count_sound
from sidecar.signals import SCHEMAS, ExportRequest, Signal

__all__ = ["Received", "mend", "receive"]


@dataclass(frozen=True, slots=True)
class Received:
    """What is left of a request.

    Attributes:
        message: the decoded request. The caller owns it: hand it to the `Batch`, together with `data` and `items`.
            None when nobody had to decode it.
        data: the same as bytes: the very ones that came when nothing was changed. None when they would have to be
            made from the message.
        items: how many items it holds, where they have been counted.
        rejected: how many items were left out (spans, log records, data points): what `partial_success` says.
        reasons: the same by reason, from a small closed set, for `context.dropped`.
        repaired: what was mended in items that were kept, or left out of them, by reason, for a metric.
        explanation: what `partial_success.error_message` says, at most 1 KiB; "" when nothing was left out.
    """

    message: ExportRequest | None
    data: bytes | None
    items: int | None = None
    rejected: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)
    repaired: Mapping[str, int] = field(default_factory=dict)
    explanation: str = ""


def receive(signal: Signal, data: bytes) -> Received:
    """Check a request that came over a network, and mend or leave out what is wrong in it.

    The one door for every receiver of OTLP, also for JSON once it is protobuf (`otlp_json.decode`).

    Raises:
        Permanent: not such a request: cut off, broken around its items, or without one that could be decoded.
    """
    items = count_sound(signal, data)
    return mend(signal, data) if items is None else Received(None, data, items)


def mend(signal: Signal, data: bytes) -> Received:
    """As `receive`, by decoding the request."""
    request = SCHEMAS[signal].request
    repair = None
    try:
        message = request.FromString(data)
        if _has_resource_without_scopes(signal, message):  # free to ask, where looking for old fields is not
            repair = Repair(signal)
            data = repair.move_old_scopes(data)
            message = request.FromString(data)
    except (DecodeError, Unmendable) as error:
        repair = repair or Repair(signal)
        data, message = _mend(signal, data, repair, str(error))
    check = Check()
    changed = check.run(signal, message)
    if repair is None and not changed:  # as nearly always
        return Received(message, data)
    repair = repair or Repair(signal)
    repair.rejected.update(check.rejected)
    repair.repaired.update(check.repaired)
    return Received(
        message=message,
        data=None if changed else data,
        rejected=repair.rejected.total(),
        reasons=repair.rejected,
        repaired=repair.repaired,
        explanation=_explain(signal, repair.rejected),
    )


def _has_resource_without_scopes(signal: Signal, message: ExportRequest) -> bool:
    schema = SCHEMAS[signal]
    return not all(getattr(resource, schema.scopes) for resource in getattr(message, schema.resources))


def _mend(signal: Signal, data: bytes, repair: Repair, problem: str) -> tuple[bytes, ExportRequest]:
    refusal = Permanent(f"not an OTLP {signal.value} request: {problem}")
    try:
        data = repair.mend(repair.move_old_scopes(data))
    except Unmendable:
        raise refusal from None
    message = SCHEMAS[signal].request.FromString(data)
    if repair.rejected and not len(Batch(signal, message=message, context=BatchContext())):
        raise refusal
    return data, message


_ITEM_NAMES: Final = {Signal.TRACES: "span", Signal.LOGS: "log record", Signal.METRICS: "data point"}

_EXPLANATIONS: Final = {
    MALFORMED: "not decodable as protobuf",
    TOO_DEEP: "nested deeper than 100 messages",
    WRONG_TYPE: "fields have the wire types of another signal or schema: logs go to /v1/logs, metrics to /v1/metrics, "
    "spans to /v1/traces",
    "trace_id": "trace_id must be 16 bytes (in JSON 32 hex digits) and not all zeros",
    "span_id": "span_id must be 8 bytes (in JSON 16 hex digits) and not all zeros",
    "parent_span_id": "parent_span_id must be empty or 8 bytes (in JSON 16 hex digits)",
    "time": "time_unix_nano must be set",
    "value": "a value must be set, or the flag NO_RECORDED_VALUE",
    "buckets": "bucket_counts must be one longer than explicit_bounds, which must increase",
    "quantiles": "quantiles must be from 0 to 1, and their values not negative",
}
"""What each reason means. All together they stay below the 1 KiB that clients are sure to read of an answer."""


def _explain(signal: Signal, reasons: Mapping[str, int]) -> str:
    name = _ITEM_NAMES[signal]
    return "; ".join(
        f"{count} {name}{'s' if count != 1 else ''} rejected: {_EXPLANATIONS[reason]}"
        for reason, count in reasons.items()
    )
