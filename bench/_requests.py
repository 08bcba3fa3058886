"""The requests that every contender gets: log records, spans and points of eight attributes, and TelemetryEvents."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator

import orjson

from sidecar import SCHEMAS, Signal

# Once in each item, where no contender takes it out and no allowlist forbids it: the sink counts it in the bytes.
MARK = "~item~"


@functools.cache
def prebuilt(signal: Signal, items: int, attributes: int = 8) -> bytes:
    """One OTLP request, encoded."""
    schema = SCHEMAS[signal]
    request = schema.request()
    envelope = getattr(request, schema.resources).add()
    envelope.resource.attributes.add(key="service.name").value.string_value = "checkout"
    MAKERS[signal](getattr(envelope, schema.scopes).add(), items, attributes)
    return request.SerializeToString()


@functools.cache
def prebuilt_events(items: int) -> bytes:
    """One request of TelemetryEvents, as JSON."""
    return orjson.dumps(
        {
            "events": [
                {
                    "source": "provider",
                    "severity": "error",
                    "kind": "backend_crash",
                    "version": "0.3.10",
                    "request_id": f"req_{number}",
                    "message": f"backend exited {MARK}",
                    "fields": {"backend": "vllm-mlx", "exit_code": 134, "duration_ms": 1250, "prompt": "never leaves"},
                }
                for number in range(items)
            ]
        }
    )


def logs(scope, items: int, attributes: int) -> None:
    for number, now in enumerate(times(items)):
        record = scope.log_records.add(
            time_unix_nano=now,
            severity_number=9,
            severity_text="INFO",
            trace_id=(number // 10 + 1).to_bytes(16, "big"),
            span_id=(number + 1).to_bytes(8, "big"),
        )
        record.body.string_value = f"GET /api/v1/things/{number * 7919 % 100_003} took {number * 31 % 977} ms {MARK}"
        describe(record, number, attributes)


def spans(scope, items: int, attributes: int) -> None:
    """Ten to a trace."""
    for number, now in enumerate(times(items)):
        span = scope.spans.add(
            trace_id=(number // 10 + 1).to_bytes(16, "big"),
            span_id=(number + 1).to_bytes(8, "big"),
            parent_span_id=(number // 10 * 10 + 1).to_bytes(8, "big") if number % 10 else b"",
            name="GET",
            kind=2 + number % 2,
            start_time_unix_nano=now - 5_000_000,
            end_time_unix_nano=now,
        )
        describe(span, number, attributes, route=f"/api/v1/things/{MARK}")


def points(scope, items: int, attributes: int) -> None:
    """Gauges, up to 100 points in each, and each point a series of its own."""
    for number, now in enumerate(times(items)):
        if number % 100 == 0:
            gauge = scope.metrics.add(name=f"app.metric.{number // 100}").gauge
        point = gauge.data_points.add(time_unix_nano=now, as_double=number * 0.37 + 1)
        describe(point, number, attributes, route=f"/api/v1/things/{number}/{MARK}")


MAKERS = {Signal.LOGS: logs, Signal.TRACES: spans, Signal.METRICS: points}


def times(items: int) -> Iterator[int]:
    """Times just past: old ones would be marked as late on the way to Datadog."""
    start = time.time_ns() - items * 1_000_003
    return (start + number * 1_000_003 for number in range(items))


def describe(item, number: int, count: int, route: str = "/api/v1/things/{id}") -> None:
    values = {
        "http.request.method": "GET",
        "http.route": route,
        "http.response.status_code": 200,
        "url.scheme": "https",
        "server.address": "things.internal",
        "network.peer.address": f"10.0.{number % 256}.{number * 7 % 256}",
        "thread.name": f"worker-{number % 16}",
        "app.cart": f"c{number * 104_729 % 1_000_003}",
        **{f"app.more.{index}": f"v{number * index % 1009}" for index in range(8, count)},
    }
    for key, value in list(values.items())[:count]:
        attribute = item.attributes.add(key=key).value
        if isinstance(value, int):
            attribute.int_value = value
        else:
            attribute.string_value = value
