"""The OTLP/JSON codec against protobuf's own, and what the check of a received request costs: CPU time in one run."""

from __future__ import annotations

import time
from collections.abc import Callable

import orjson
from google.protobuf import json_format
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from sidecar import SCHEMAS, Signal
from sidecar.net import otlp_json
from sidecar.net.salvage import receive

SPANS = 512
NOW = 1_700_000_000_000_000_000


def main() -> None:
    request = traces()
    data, body = request.SerializeToString(), otlp_json.encode(request)
    print(f"{SPANS} spans with 8 attributes: {len(data):,} bytes of protobuf, {len(body):,} of JSON; CPU time")
    json_parse, orjson_loads, decode = cpu(
        lambda: json_format.Parse(body, ExportTraceServiceRequest()),
        lambda: orjson.loads(body),
        lambda: otlp_json.decode(Signal.TRACES, body),
    )
    print(f"JSON to protobuf {ms(decode)}, of which JSON to Python objects {ms(orjson_loads)}")
    print(f"  json_format.Parse {ms(json_parse)}: {json_parse / decode:.1f} times ours")
    json_print, encode = cpu(lambda: json_format.MessageToJson(request), lambda: otlp_json.encode(request))
    print(f"protobuf to JSON {ms(encode)}")
    print(f"  json_format.MessageToJson {ms(json_print)}: {json_print / encode:.1f} times ours")
    print("receive: decode and check what came over a network; microseconds per item")
    for signal, each in ((Signal.TRACES, request), (Signal.LOGS, logs()), (Signal.METRICS, gauges())):
        check(signal, each.SerializeToString())


def check(signal: Signal, data: bytes) -> None:
    decode, whole = cpu(lambda: SCHEMAS[signal].request.FromString(data), lambda: receive(signal, data))
    print(f"  {SCHEMAS[signal].items:<14}{whole / SPANS * 1e6:.2f}, of which decoding {decode / SPANS * 1e6:.2f}")


def ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"


def cpu(*ways: Callable[[], object]) -> list[float]:
    """The least CPU time of each, in seconds. They take turns, so that all meet the same machine."""
    least = [float("inf")] * len(ways)
    for _ in range(15):
        for index, way in enumerate(ways):
            start = time.process_time()
            way()
            least[index] = min(least[index], time.process_time() - start)
    return least


def attributes(number: int) -> list[KeyValue]:
    values: dict[str, AnyValue] = {
        "http.request.method": AnyValue(string_value="GET"),
        "url.path": AnyValue(string_value=f"/orders/{number}"),
        "url.scheme": AnyValue(string_value="https"),
        "server.address": AnyValue(string_value="shop.example.com"),
        "user_agent.original": AnyValue(string_value="Mozilla/5.0 (X11; Linux x86_64)"),
        "http.response.status_code": AnyValue(int_value=200),
        "app.order.total": AnyValue(double_value=number / 7),
        "app.order.first": AnyValue(bool_value=number % 2 == 0),
    }
    return [KeyValue(key=key, value=value) for key, value in values.items()]


def traces() -> ExportTraceServiceRequest:
    request = ExportTraceServiceRequest()
    scope = request.resource_spans.add().scope_spans.add()
    for number in range(1, SPANS + 1):
        span = scope.spans.add(
            trace_id=number.to_bytes(16, "little"),
            span_id=number.to_bytes(8, "little"),
            parent_span_id=(number + 1).to_bytes(8, "little"),
            name="GET /orders/{id}",
            kind=2,
            start_time_unix_nano=NOW + number,
            end_time_unix_nano=NOW + number + 5_000_000,
            flags=256,
            attributes=attributes(number),
        )
        span.status.code = 1
    return request


def logs() -> ExportLogsServiceRequest:
    request = ExportLogsServiceRequest()
    scope = request.resource_logs.add().scope_logs.add()
    for number in range(1, SPANS + 1):
        scope.log_records.add(
            time_unix_nano=NOW + number,
            severity_number=9,
            body=AnyValue(string_value=f"order {number} accepted"),
            trace_id=number.to_bytes(16, "little"),
            span_id=number.to_bytes(8, "little"),
            attributes=attributes(number),
        )
    return request


def gauges() -> ExportMetricsServiceRequest:
    request = ExportMetricsServiceRequest()
    metric = request.resource_metrics.add().scope_metrics.add().metrics.add(name="orders.open")
    for number in range(1, SPANS + 1):
        metric.gauge.data_points.add(time_unix_nano=NOW, as_int=number, attributes=attributes(number)[:2])
    return request


if __name__ == "__main__":
    main()
