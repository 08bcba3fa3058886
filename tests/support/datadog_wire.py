"""Datadog's protobuf messages, written down here once more by field number: what the exporter sends must agree."""

from __future__ import annotations

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

# Fields as `number name type`; `*` is repeated, `<…>` a map from text.
SCHEMA = {
    "AgentPayload": "1 hostName string, 2 env string, 5 tracerPayloads TracerPayload*, 6 tags <string>, "
    "7 agentVersion string, 8 targetTPS double, 9 errorTPS double",
    "TracerPayload": "1 containerID string, 2 languageName string, 3 languageVersion string, 4 tracerVersion string, "
    "5 runtimeID string, 6 chunks TraceChunk*, 7 tags <string>, 8 env string, 9 hostname string, 10 appVersion string",
    "TraceChunk": "1 priority int32, 2 origin string, 3 spans Span*, 4 tags <string>, 5 droppedTrace bool",
    "Span": "1 service string, 2 name string, 3 resource string, 4 traceID uint64, 5 spanID uint64, 6 parentID uint64, "
    "7 start int64, 8 duration int64, 9 error int32, 10 meta <string>, 11 metrics <double>, 12 type string, "
    "13 meta_struct <bytes>",
    "SketchPayload": "1 sketches Sketch*",
    "Sketch": "1 metric string, 2 host string, 4 tags string*, 7 dogsketches Dogsketch*",
    "Dogsketch": "1 ts int64, 2 cnt int64, 3 min double, 4 max double, 5 avg double, 6 sum double, 7 k sint32*, "
    "8 n uint32*",
    "DDSketch": "1 mapping IndexMapping, 2 positiveValues Store, 3 negativeValues Store, 4 zeroCount double",
    "IndexMapping": "1 gamma double, 2 indexOffset double",
    "Store": "2 contiguousBinCounts double*, 3 contiguousBinIndexOffset sint32",
}
_PACKAGE = "tests.datadog"


def _build():
    file = descriptor_pb2.FileDescriptorProto(name="tests/datadog.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in SCHEMA.items():
        message = file.message_type.add(name=name)
        for field in fields.split(", "):
            number, field_name, type_name = field.split()
            _add_field(message, f".{_PACKAGE}.{name}", field_name, int(number), type_name)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in SCHEMA}


def _add_field(message, path, name, number, type_name):
    field = message.field.add(name=name, number=number)
    field.label = field.LABEL_REPEATED if type_name[-1] in "*>" else field.LABEL_OPTIONAL
    bare = type_name.strip("*")
    if bare.startswith("<"):
        entry = message.nested_type.add(name=f"{name[0].upper()}{name[1:]}Entry")
        entry.options.map_entry = True
        _add_field(entry, path, "key", 1, "string")
        _add_field(entry, path, "value", 2, bare.strip("<>"))
        field.type, field.type_name = field.TYPE_MESSAGE, f"{path}.{entry.name}"
    elif bare in SCHEMA:
        field.type, field.type_name = field.TYPE_MESSAGE, f".{_PACKAGE}.{bare}"
    else:
        field.type = getattr(field, f"TYPE_{bare.upper()}")


MESSAGES = _build()
AgentPayload = MESSAGES["AgentPayload"]
SketchPayload = MESSAGES["SketchPayload"]
DDSketch = MESSAGES["DDSketch"]
