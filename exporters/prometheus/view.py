"""A view of OTLP metrics in which whatever identifies a series stays bytes, to look series up by what was received.

It is the official schema with other names and one difference: resources, scopes and attributes are `bytes` where they
were messages, which is the same on the wire. Measured on gauges with six attributes, per data point: 1.5 µs to decode
and to find the series, where walking the attributes of the official messages takes 4.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.message import DecodeError
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope, KeyValue
from opentelemetry.proto.metrics.v1 import metrics_pb2
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

_PACKAGE: Final = "sidecar.prometheus.view"
_OPAQUE: Final = {f".{message.DESCRIPTOR.full_name}" for message in (Resource, InstrumentationScope, KeyValue)}


def _build() -> type[Any]:
    file = FileDescriptorProto()
    metrics_pb2.DESCRIPTOR.CopyToProto(file)
    official = f".{file.package}."
    file.name, file.package = "sidecar/prometheus/view.proto", _PACKAGE
    del file.dependency[:]
    for message in file.message_type:
        _blur(message, official)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.MetricsData"))


def _blur(message: DescriptorProto, official: str) -> None:
    for field in message.field:
        if field.type_name in _OPAQUE:
            field.type = FieldDescriptorProto.TYPE_BYTES
            field.ClearField("type_name")
        elif field.type_name:
            field.type_name = field.type_name.replace(official, f".{_PACKAGE}.")
    for nested in message.nested_type:
        _blur(nested, official)


_METRICS_DATA: Final = _build()


def view_of(data: bytes) -> Any:
    """The view of a serialized ExportMetricsServiceRequest.

    Raises:
        DecodeError: the bytes are no such message.
    """
    return _METRICS_DATA.FromString(data)


def attributes_of(raw: Sequence[bytes]) -> list[KeyValue]:
    """The attributes of a point, of an exemplar or of a metric.

    Raises:
        DecodeError: a key or a value is not as the schema says, which the view has not looked at.
    """
    return [KeyValue.FromString(one) for one in raw]


def resource_of(raw: bytes) -> Resource:
    """The resource. Raises DecodeError."""
    return Resource.FromString(raw)


def scope_of(raw: bytes) -> InstrumentationScope:
    """The scope. Raises DecodeError."""
    return InstrumentationScope.FromString(raw)


__all__ = ["DecodeError", "attributes_of", "resource_of", "scope_of", "view_of"]
