"""OTLP requests with a canary in one place where a key can hide: every place that the protobuf descriptors have."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from sidecar import SCHEMAS, Signal

CANARY = "c4n4ry"
DENIED_KEY = "prompt"
ALLOWED_KEY = "component"

_UNKNOWN_FIELD = 4000


@dataclass(frozen=True)
class Place:
    """Where something can be put into a request: the names and numbers of the fields that lead there.

    `kind` says what: `attributes` (a KeyValue), `value` (an AnyValue), `keys` (the name of a key), `message`
    (a field of no known number).
    """

    kind: str
    names: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()

    def __str__(self) -> str:
        return ".".join(self.names)

    def request(self, data: bytes) -> bytes:
        """A request, serialized, that holds nothing but these bytes in this place."""
        for number in reversed(self.numbers):
            data = delimited(number, data)
        return data


@dataclass(frozen=True)
class Plant:
    """The canary in one place: how it hides there, and the request."""

    place: Place
    how: str
    data: bytes


def places(signal: Signal) -> Iterator[Place]:
    """All places of a signal's requests."""
    return _places(SCHEMAS[signal].request.DESCRIPTOR, Place("message"))


def plants(signal: Signal) -> Iterator[Plant]:
    """All ways to hide the canary in a signal's requests."""
    for place in places(signal):
        for how, data in _ways(place.kind):
            yield Plant(place, how, place.request(data))


def delimited(number: int, data: bytes) -> bytes:
    """A length-delimited field, serialized."""
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def pair(key: str, value: bytes) -> bytes:
    """A KeyValue, serialized."""
    return KeyValue(key=key).SerializeToString() + delimited(2, value)


def _varint(number: int) -> bytes:
    head = bytearray()
    while number > 127:
        head.append(number & 127 | 128)
        number >>= 7
    return bytes([*head, number])


def _places(descriptor: Any, here: Place) -> Iterator[Place]:
    yield here
    kinds = {KeyValue.DESCRIPTOR.full_name: "attributes", AnyValue.DESCRIPTOR.full_name: "value"}
    for field in descriptor.fields:
        names, numbers = (*here.names, field.name), (*here.numbers, field.number)
        if field.message_type is None:
            if field.name.endswith("_keys"):
                yield Place("keys", names, numbers)
        elif field.message_type.full_name in kinds:
            yield Place(kinds[field.message_type.full_name], names, numbers)
        else:
            yield from _places(field.message_type, Place("message", names, numbers))


def _ways(kind: str) -> Iterator[tuple[str, bytes]]:
    if kind == "message":
        yield "unknown field", _unknown()
    elif kind == "keys":
        yield "name of a key", CANARY.encode()
    elif kind == "value":
        yield from _hidden_below().items()
    else:
        for how, value in (_plain() | _hidden_below()).items():
            yield f"denied key, {how}", pair(DENIED_KEY, value)
        for how, value in _hidden_below().items():
            yield f"allowed key, {how}", pair(ALLOWED_KEY, value)
        harmless = AnyValue(int_value=1).SerializeToString()
        yield "canary as key", pair(CANARY, harmless)
        yield "unknown field of KeyValue", pair(ALLOWED_KEY, harmless) + _unknown()
        # Of several, decoders take the last; the first stays in the bytes.
        yield "two keys", KeyValue(key=CANARY).SerializeToString() + pair(ALLOWED_KEY, harmless)
        yield "value of two kinds", pair(ALLOWED_KEY, _plain()["text"] + harmless)


def _plain() -> dict[str, bytes]:
    """Values that hold the canary themselves, which an allowed key would let pass."""
    array = AnyValue()
    array.array_value.values.add().string_value = CANARY
    values = {"text": AnyValue(string_value=CANARY), "bytes": AnyValue(bytes_value=CANARY.encode()), "array": array}
    return {name: value.SerializeToString() for name, value in values.items()}


def _hidden_below() -> dict[str, bytes]:
    """Values that hold the canary where it must not pass whatever their own key."""
    denied = AnyValue()
    denied.kvlist_value.values.add(key=DENIED_KEY).value.string_value = CANARY
    as_key = AnyValue()
    as_key.kvlist_value.values.add(key=CANARY).value.bool_value = True
    in_array = AnyValue()
    in_array.array_value.values.append(denied)
    in_allowed = AnyValue()
    in_allowed.kvlist_value.values.add(key=ALLOWED_KEY, value=in_array)
    deep = AnyValue()
    deep.array_value.values.add().array_value.values.append(in_allowed)
    values = {
        "map": denied,
        "map with the canary as key": as_key,
        "map in array": in_array,
        "map in array in map": in_allowed,
        "map far down": deep,
    }
    return {name: value.SerializeToString() for name, value in values.items()} | {
        "unknown field of value": AnyValue(int_value=1).SerializeToString() + _unknown(),
        "unknown field of array": delimited(AnyValue.ARRAY_VALUE_FIELD_NUMBER, _unknown()),
        "unknown field of map": delimited(AnyValue.KVLIST_VALUE_FIELD_NUMBER, _unknown()),
    }


def _unknown() -> bytes:
    return delimited(_UNKNOWN_FIELD, CANARY.encode())
