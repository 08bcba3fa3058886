"""OTLP's messages declared in another way, so that the keys of a record are one set operation in C.

On the wire, `repeated KeyValue` and `map<string, AnyValue>` are the same bytes (Protocol Buffers encoding guide,
"Maps"). Decoded as maps, the keys of all records are tested in one call, without a Python object per attribute: a
third of the cost of walking KeyValues. Two things follow. Of several equal keys the last one wins, which is what
OTLP's "keys MUST be unique" leaves to a receiver. And attributes have no order, so they are encoded sorted.

There are two views. The plain one knows texts, booleans and numbers only: arrays, maps and bytes are unknown fields to
it. Where nothing of a request is unknown, no value needs a look. The nested one knows them too, and neither knows what
a later OTLP may add to AnyValue: it is discarded.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from sidecar import SCHEMAS, Signal

KEY_VALUE: Final = "opentelemetry.proto.common.v1.KeyValue"
ANY_VALUE: Final = "opentelemetry.proto.common.v1.AnyValue"
ARRAY: Final = "opentelemetry.proto.common.v1.ArrayValue"
MAP: Final = "opentelemetry.proto.common.v1.KeyValueList"

_MESSAGE: Final = FieldDescriptorProto.TYPE_MESSAGE
_PLAIN: Final = frozenset({"string_value", "bool_value", "int_value", "double_value"})
_NESTED: Final = _PLAIN | {"bytes_value", "array_value", "kvlist_value"}


@cache
def view(signal: Signal, *, nested: bool) -> type[Any]:
    """The class of a signal's export request in one of the views."""
    name = SCHEMAS[signal].request.DESCRIPTOR.full_name
    return GetMessageClass(_pool(nested=nested).FindMessageTypeByName(name))


@cache
def _pool(*, nested: bool) -> DescriptorPool:
    pool = DescriptorPool()
    added: set[str] = set()
    for schema in SCHEMAS.values():
        _add(schema.request.DESCRIPTOR.file, pool, added, nested=nested)
    return pool


def _add(file: FileDescriptor, pool: DescriptorPool, added: set[str], *, nested: bool) -> None:
    if file.name in added:
        return
    added.add(file.name)
    for dependency in file.dependencies:
        _add(dependency, pool, added, nested=nested)
    proto = FileDescriptorProto()
    file.CopyToProto(proto)
    proto.ClearField("service")
    for message in proto.message_type:
        _declare(message, f"{proto.package}.{message.name}", nested=nested)
    pool.AddSerializedFile(proto.SerializeToString())


def _declare(message: DescriptorProto, full_name: str, *, nested: bool) -> None:
    """Turn the lists of KeyValues into maps, and take the kinds that the view does not know out of AnyValue."""
    for inner in message.nested_type:
        _declare(inner, f"{full_name}.{inner.name}", nested=nested)
    if full_name == ANY_VALUE:
        known = [field for field in message.field if field.name in (_NESTED if nested else _PLAIN)]
        del message.field[:]
        message.field.extend(known)
    for field in message.field:
        if field.type_name == f".{KEY_VALUE}" and field.label == FieldDescriptorProto.LABEL_REPEATED:
            # protoc's name for the entry of a map, which the pool insists on.
            entry = message.nested_type.add(name="".join(map(str.capitalize, field.name.split("_"))) + "Entry")
            entry.options.map_entry = True
            entry.field.add(name="key", number=1, type=FieldDescriptorProto.TYPE_STRING, label=1)
            entry.field.add(name="value", number=2, type=_MESSAGE, type_name=f".{ANY_VALUE}", label=1)
            field.type_name = f".{full_name}.{entry.name}"
