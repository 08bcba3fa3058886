"""OTLP's messages declared in another way, so that the keys of a record are one set operation in C.

On the wire, `repeated KeyValue` and `map<string, AnyValue>` are the same bytes (Protocol Buffers encoding guide,
"Maps"). Decoded as maps, the keys of all records are tested in one call, without a Python object per attribute: a
third of the cost of walking KeyValues. Two things follow. Of several equal keys the last one wins, which is what
OTLP's "keys MUST be unique" leaves to a receiver. And attributes have no order, so they are encoded sorted.

There are two such views. The plain one knows texts, booleans and numbers only: arrays, maps and bytes are unknown
fields to it. Where nothing of a request is unknown, no value needs a look. The nested one knows them too, and neither
knows what a later OTLP may add to AnyValue: it is discarded.

An entry with a third field is unknown as a whole to a decoder of maps. For requests with such entries there is a view
in which lists stay lists: it knows no third field, and the pair stays when that is discarded.
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
_PAIR: Final = frozenset({"key", "value"})
_PLAIN: Final = frozenset({"string_value", "bool_value", "int_value", "double_value"})
_NESTED: Final = _PLAIN | {"bytes_value", "array_value", "kvlist_value"}


@cache
def view(signal: Signal, *, nested: bool, maps: bool = True) -> type[Any]:
    """The class of a signal's export request in one of the views.

    Args:
        signal: of the request.
        nested: whether arrays, maps and bytes are known.
        maps: whether lists of attributes are maps.
    """
    name = SCHEMAS[signal].request.DESCRIPTOR.full_name
    return GetMessageClass(_pool(nested=nested, maps=maps).FindMessageTypeByName(name))


@cache
def _pool(*, nested: bool, maps: bool) -> DescriptorPool:
    pool = DescriptorPool()
    added: set[str] = set()
    for schema in SCHEMAS.values():
        _add(schema.request.DESCRIPTOR.file, pool, added, nested=nested, maps=maps)
    return pool


def _add(file: FileDescriptor, pool: DescriptorPool, added: set[str], *, nested: bool, maps: bool) -> None:
    if file.name in added:
        return
    added.add(file.name)
    for dependency in file.dependencies:
        _add(dependency, pool, added, nested=nested, maps=maps)
    proto = FileDescriptorProto()
    file.CopyToProto(proto)
    proto.ClearField("service")
    for message in proto.message_type:
        _declare(message, f"{proto.package}.{message.name}", nested=nested, maps=maps)
    pool.AddSerializedFile(proto.SerializeToString())


def _declare(message: DescriptorProto, full_name: str, *, nested: bool, maps: bool) -> None:
    """Turn the lists of KeyValues into maps, and take out of KeyValue and AnyValue what the view does not know."""
    for inner in message.nested_type:
        _declare(inner, f"{full_name}.{inner.name}", nested=nested, maps=maps)
    known = {KEY_VALUE: _PAIR, ANY_VALUE: _NESTED if nested else _PLAIN}.get(full_name)
    if known is not None:
        kept = [field for field in message.field if field.name in known]
        del message.field[:]
        message.field.extend(kept)
    for field in message.field:
        if maps and field.type_name == f".{KEY_VALUE}" and field.label == FieldDescriptorProto.LABEL_REPEATED:
            # protoc's name for the entry of a map, which the pool insists on.
            entry = message.nested_type.add(name="".join(map(str.capitalize, field.name.split("_"))) + "Entry")
            entry.options.map_entry = True
            entry.field.add(name="key", number=1, type=FieldDescriptorProto.TYPE_STRING, label=1)
            entry.field.add(name="value", number=2, type=_MESSAGE, type_name=f".{ANY_VALUE}", label=1)
            field.type_name = f".{full_name}.{entry.name}"
