"""How much a batch matters when something has to go: errors stay longer than the rest."""

from __future__ import annotations

from typing import Final

from opentelemetry.proto.trace.v1.trace_pb2 import Status

from sidecar.batch import Batch
from sidecar.signals import Signal

# Severity numbers of log records (OTLP, SeverityNumber); spans and metrics are placed among them.
INFO: Final = 9
WARN: Final = 13
ERROR: Final = 17


def severity(batch: Batch) -> int:
    """The highest severity number in a batch. A span with an error counts as ERROR, everything else as INFO."""
    if batch.signal is Signal.METRICS:
        return INFO
    if batch.signal is Signal.LOGS:
        return max((record.severity_number for scope in batch.scopes() for record in scope.log_records), default=0)
    failed = any(span.status.code == Status.STATUS_CODE_ERROR for scope in batch.scopes() for span in scope.spans)
    return ERROR if failed else INFO
