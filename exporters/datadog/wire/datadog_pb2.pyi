from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AgentPayload(_message.Message):
    __slots__ = ("host_name", "env", "tracer_payloads", "agent_version")
    HOST_NAME_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    TRACER_PAYLOADS_FIELD_NUMBER: _ClassVar[int]
    AGENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    host_name: str
    env: str
    tracer_payloads: _containers.RepeatedCompositeFieldContainer[TracerPayload]
    agent_version: str
    def __init__(self, host_name: _Optional[str] = ..., env: _Optional[str] = ..., tracer_payloads: _Optional[_Iterable[_Union[TracerPayload, _Mapping]]] = ..., agent_version: _Optional[str] = ...) -> None: ...

class TracerPayload(_message.Message):
    __slots__ = ("container_id", "language_name", "language_version", "tracer_version", "runtime_id", "chunks", "tags", "env", "hostname", "app_version")
    class TagsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_NAME_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_VERSION_FIELD_NUMBER: _ClassVar[int]
    TRACER_VERSION_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_ID_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    HOSTNAME_FIELD_NUMBER: _ClassVar[int]
    APP_VERSION_FIELD_NUMBER: _ClassVar[int]
    container_id: str
    language_name: str
    language_version: str
    tracer_version: str
    runtime_id: str
    chunks: _containers.RepeatedCompositeFieldContainer[TraceChunk]
    tags: _containers.ScalarMap[str, str]
    env: str
    hostname: str
    app_version: str
    def __init__(self, container_id: _Optional[str] = ..., language_name: _Optional[str] = ..., language_version: _Optional[str] = ..., tracer_version: _Optional[str] = ..., runtime_id: _Optional[str] = ..., chunks: _Optional[_Iterable[_Union[TraceChunk, _Mapping]]] = ..., tags: _Optional[_Mapping[str, str]] = ..., env: _Optional[str] = ..., hostname: _Optional[str] = ..., app_version: _Optional[str] = ...) -> None: ...

class TraceChunk(_message.Message):
    __slots__ = ("priority", "origin", "spans", "tags")
    class TagsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    priority: int
    origin: str
    spans: _containers.RepeatedCompositeFieldContainer[Span]
    tags: _containers.ScalarMap[str, str]
    def __init__(self, priority: _Optional[int] = ..., origin: _Optional[str] = ..., spans: _Optional[_Iterable[_Union[Span, _Mapping]]] = ..., tags: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Span(_message.Message):
    __slots__ = ("service", "name", "resource", "trace_id", "span_id", "parent_id", "start", "duration", "error", "meta", "metrics", "type", "meta_struct")
    class MetaEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class MetaStructEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    TRACE_ID_FIELD_NUMBER: _ClassVar[int]
    SPAN_ID_FIELD_NUMBER: _ClassVar[int]
    PARENT_ID_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    DURATION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    META_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    META_STRUCT_FIELD_NUMBER: _ClassVar[int]
    service: str
    name: str
    resource: str
    trace_id: int
    span_id: int
    parent_id: int
    start: int
    duration: int
    error: int
    meta: _containers.ScalarMap[str, str]
    metrics: _containers.ScalarMap[str, float]
    type: str
    meta_struct: _containers.ScalarMap[str, bytes]
    def __init__(self, service: _Optional[str] = ..., name: _Optional[str] = ..., resource: _Optional[str] = ..., trace_id: _Optional[int] = ..., span_id: _Optional[int] = ..., parent_id: _Optional[int] = ..., start: _Optional[int] = ..., duration: _Optional[int] = ..., error: _Optional[int] = ..., meta: _Optional[_Mapping[str, str]] = ..., metrics: _Optional[_Mapping[str, float]] = ..., type: _Optional[str] = ..., meta_struct: _Optional[_Mapping[str, bytes]] = ...) -> None: ...

class SketchPayload(_message.Message):
    __slots__ = ("sketches",)
    SKETCHES_FIELD_NUMBER: _ClassVar[int]
    sketches: _containers.RepeatedCompositeFieldContainer[Sketch]
    def __init__(self, sketches: _Optional[_Iterable[_Union[Sketch, _Mapping]]] = ...) -> None: ...

class Sketch(_message.Message):
    __slots__ = ("metric", "host", "tags", "dogsketches")
    METRIC_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    DOGSKETCHES_FIELD_NUMBER: _ClassVar[int]
    metric: str
    host: str
    tags: _containers.RepeatedScalarFieldContainer[str]
    dogsketches: _containers.RepeatedCompositeFieldContainer[Dogsketch]
    def __init__(self, metric: _Optional[str] = ..., host: _Optional[str] = ..., tags: _Optional[_Iterable[str]] = ..., dogsketches: _Optional[_Iterable[_Union[Dogsketch, _Mapping]]] = ...) -> None: ...

class Dogsketch(_message.Message):
    __slots__ = ("ts", "cnt", "min", "max", "avg", "sum", "k", "n")
    TS_FIELD_NUMBER: _ClassVar[int]
    CNT_FIELD_NUMBER: _ClassVar[int]
    MIN_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    AVG_FIELD_NUMBER: _ClassVar[int]
    SUM_FIELD_NUMBER: _ClassVar[int]
    K_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    ts: int
    cnt: int
    min: float
    max: float
    avg: float
    sum: float
    k: _containers.RepeatedScalarFieldContainer[int]
    n: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ts: _Optional[int] = ..., cnt: _Optional[int] = ..., min: _Optional[float] = ..., max: _Optional[float] = ..., avg: _Optional[float] = ..., sum: _Optional[float] = ..., k: _Optional[_Iterable[int]] = ..., n: _Optional[_Iterable[int]] = ...) -> None: ...
