"""Statistics that tracers compute of their spans, as OTLP metrics: every exporter can use them.

The metrics stand in a scope of their own, which carries the tracer's own message for an exporter to Datadog.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final

import msgspec
from ddsketch.pb.ddsketch_pb2 import DDSketch
from ddsketch.pb.proto import KeyMappingProto
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality

from sidecar.dogstatsd import Distribution
from sidecar.errors import Permanent
from sidecar.events.datadog_keys import CLIENT_STATS
from sidecar.receivers.datadog.attributes import key_values
from sidecar.receivers.datadog.spans import Tracer

DURATION: Final = "traces.span.sdk.metrics.duration"
"""The name that Datadog's tracers themselves give to this metric when they export OTLP."""
_MAX_VALUES: Final = 1 << 53
# No duration is longer than 584 years; a sketch that says so is broken.
_MAX_NS: Final = float(1 << 64)


_Nanoseconds = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class _Entry(msgspec.Struct, rename="pascal"):
    """What was counted of spans that are alike. Durations in nanoseconds, sketches as protobuf."""

    service: str | None = ""
    name: str | None = ""
    resource: str | None = ""
    type: str | None = ""
    span_kind: str | None = ""
    http_status: int | None = msgspec.field(default=0, name="HTTPStatusCode")
    errors: int | None = 0
    duration: int | None = 0
    ok_summary: bytes | None = b""
    error_summary: bytes | None = b""


class _Bucket(msgspec.Struct, rename="pascal"):
    """The entries of a time. Nanoseconds."""

    start: _Nanoseconds = 0
    duration: _Nanoseconds = 0
    stats: list[_Entry] | None = None


class _Payload(msgspec.Struct, rename="pascal"):
    """What a tracer sends: the parts that are used here."""

    hostname: str | None = ""
    env: str | None = ""
    version: str | None = ""
    service: str | None = ""
    lang: str | None = ""
    tracer_version: str | None = ""
    runtime_id: str | None = msgspec.field(default="", name="RuntimeID")
    container_id: str | None = msgspec.field(default="", name="ContainerID")
    stats: list[_Bucket] | None = None


_PAYLOAD: Final = msgspec.msgpack.Decoder(_Payload)


def convert(data: bytes, tracer: Tracer) -> ExportMetricsServiceRequest:
    """The metrics of a ClientStatsPayload.

    Raises:
        Permanent: it is none.
    """
    try:
        data = _completed(data, tracer)
        payload = _PAYLOAD.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Permanent(f"not a payload of client statistics: {error}") from None
    request = ExportMetricsServiceRequest()
    resource = request.resource_metrics.add()
    resource.resource.attributes.extend(key_values(_resource(payload)))
    scope = resource.scope_metrics.add()
    scope.scope.name = CLIENT_STATS
    scope.scope.attributes.add(key=CLIENT_STATS).value.bytes_value = data
    metric = scope.metrics.add(name=DURATION, unit="s", description="How long spans took, as their tracer has counted.")
    histogram = metric.exponential_histogram
    histogram.aggregation_temporality = AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
    for bucket in payload.stats or ():
        for entry in bucket.stats or ():
            for status, distribution in _distributions(entry):
                point = histogram.data_points.add(
                    start_time_unix_nano=bucket.start, time_unix_nano=bucket.start + bucket.duration
                )
                distribution.write(point)
                # A sketch doesn't keep them.
                point.ClearField("min")
                point.ClearField("max")
                point.attributes.extend(key_values(_attributes(entry, status)))
    return request


def _completed(data: bytes, tracer: Tracer) -> bytes:
    """The message with what only the request's headers say: an Agent puts it there, too."""
    message = msgspec.msgpack.decode(data, type=dict[str, Any])
    said = {"Lang": tracer.language, "TracerVersion": tracer.version, "ContainerID": tracer.container_id}
    message.update({name: value for name, value in said.items() if not message.get(name)})
    return msgspec.msgpack.encode(message)


def _resource(payload: _Payload) -> dict[str, Any]:
    attributes = {
        "service.name": payload.service,
        "service.version": payload.version,
        "deployment.environment.name": payload.env,
        "host.name": payload.hostname,
        "runtime-id": payload.runtime_id,
        "container.id": payload.container_id,
        "telemetry.sdk.name": "datadog",
        "telemetry.sdk.language": payload.lang,
        "telemetry.sdk.version": payload.tracer_version,
    }
    return {key: value for key, value in attributes.items() if value}


def _attributes(entry: _Entry, status: str) -> dict[str, Any]:
    attributes = {
        "service.name": entry.service,
        "span.name": entry.name,
        "resource.name": entry.resource,
        "span.type": entry.type,
        "span.kind": entry.span_kind,
        "http.status_code": entry.http_status,
        "status.code": status,
    }
    return {key: value for key, value in attributes.items() if value}


def _distributions(entry: _Entry) -> Iterator[tuple[str, Distribution]]:
    """The durations of the spans that went well, and of those that failed, in seconds; none where there were none."""
    ok, failed = (_distribution(data or b"") for data in (entry.ok_summary, entry.error_summary))
    if entry.duration:
        # Only the sum of both is known exactly.
        together = ok.total + failed.total
        for one in (ok, failed):
            one.total = entry.duration / 1e9 * (one.total / together) if together else 0.0
    if ok.count:
        yield "STATUS_CODE_UNSET", ok
    if failed.count:
        yield "STATUS_CODE_ERROR", failed


def _distribution(data: bytes) -> Distribution:
    """A sketch as a distribution. It keeps every duration to within 1 %.

    Raises:
        Permanent: it is no sketch.
    """
    distribution = Distribution()
    try:
        sketch: Any = DDSketch.FromString(data)  # type: ignore[attr-defined]
        if 0 < sketch.zeroCount < _MAX_VALUES:
            distribution.add(0.0, round(sketch.zeroCount))
        store = sketch.positiveValues
        bins = [*store.binCounts.items(), *enumerate(store.contiguousBinCounts, store.contiguousBinIndexOffset)]
        value_of = KeyMappingProto.from_proto(sketch.mapping).value if bins else None  # type: ignore[no-untyped-call]
        for index, count in bins:
            if value_of is not None and 0 < count < _MAX_VALUES:
                distribution.add(min(value_of(index), _MAX_NS) / 1e9, max(1, round(count)))
        if distribution.count >= _MAX_VALUES:
            raise ValueError("it counts too much")
    except (DecodeError, ValueError, ArithmeticError) as error:
        raise Permanent(f"not a sketch of durations: {error}") from None
    return distribution
