"""What comes in and the allowlist, by the kernel and by protobuf; microseconds of processor time per item.

1,000 items of 8 attributes per request, of which the allowlist denies one or two.
"""

from __future__ import annotations

import itertools
import statistics
import time

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from bench.pipeline import RECORDS, prebuilt_logs
from processors.allowlist import Allowlist
from sidecar import SCHEMAS, Batch, BatchContext, Signal, kernel
from sidecar.net.salvage import mend, receive
from sidecar.testing import Bench

ROUNDS = 40


async def rows():
    if kernel.module is None:
        raise SystemExit(f"there is no kernel: {kernel.WHY_NOT}")
    for signal, data in {Signal.LOGS: prebuilt_logs(), Signal.TRACES: spans(), Signal.METRICS: points()}.items():
        yield row(signal, "receive", lambda s=signal, d=data: receive(s, d), lambda s=signal, d=data: mend(s, d))
        fast, slow = allowlist(), allowlist()
        slow._wire.filter = lambda _signal, _data: None  # noqa: SLF001 - measures the way without it
        yield row(
            signal,
            "allowlist",
            lambda s=signal, d=data, a=fast: a.process(Batch(s, d, context=CONTEXT, items=RECORDS)),
            lambda s=signal, d=data, a=slow: a.process(Batch(s, d, context=CONTEXT, items=RECORDS)),
        )


CONTEXT = BatchContext()


def row(signal: Signal, what: str, by_kernel, by_protobuf):
    ours, theirs = [], []
    for _ in range(ROUNDS):
        ours.append(cpu(by_kernel))
        theirs.append(cpu(by_protobuf))
    kernel_us, protobuf_us = statistics.median(ours), statistics.median(theirs)
    return {
        "case": f"{signal.value}, {what}",
        "kernel µs": kernel_us,
        "protobuf µs": protobuf_us,
        "ratio": kernel_us / protobuf_us,
    }


def cpu(run) -> float:
    """Microseconds per item of a few runs."""
    started = time.process_time()
    for _ in itertools.repeat(None, 5):
        run()
    return (time.process_time() - started) / (5 * RECORDS) * 1e6


def allowlist() -> Allowlist:
    return Bench().make(Allowlist)


def attributes() -> list[list]:
    """Those of the log records."""
    request = SCHEMAS[Signal.LOGS].request.FromString(prebuilt_logs())
    records: list[LogRecord] = list(request.resource_logs[0].scope_logs[0].log_records)
    return [list(record.attributes) for record in records]


def spans() -> bytes:
    request = ExportTraceServiceRequest()
    scope = request.resource_spans.add().scope_spans.add()
    for number, pairs in enumerate(attributes()):
        scope.spans.add(
            trace_id=(number // 10 + 1).to_bytes(16, "big"),
            span_id=(number + 1).to_bytes(8, "big"),
            parent_span_id=(number + 2).to_bytes(8, "big"),
            name="GET /api/v1/things/{id}",
            kind=2,
            start_time_unix_nano=1_700_000_000_000_000_000 + number,
            end_time_unix_nano=1_700_000_000_005_000_000 + number,
            attributes=pairs,
        )
    return request.SerializeToString()


def points() -> bytes:
    request = ExportMetricsServiceRequest()
    metric = request.resource_metrics.add().scope_metrics.add().metrics.add(name="http.server.requests")
    for number, pairs in enumerate(attributes()):
        metric.sum.data_points.add(
            time_unix_nano=1_700_000_000_000_000_000 + number,
            start_time_unix_nano=1_700_000_000_000_000_000,
            as_int=number,
            attributes=pairs,
        )
    return request.SerializeToString()
