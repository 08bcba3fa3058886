"""Where keys stand in a request, read from the descriptors: a place that a later OTLP adds is found without a change.

Each kind of message is a `Level`: what its messages hold themselves, also within single messages below them
(`resource.attributes`), and the levels of the lists below. A request is walked level by level, all messages of a level
at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain
from operator import attrgetter
from typing import Any, Final, Literal, TypeAlias

from google.protobuf.descriptor import Descriptor

from processors.allowlist.views import ANY_VALUE, view
from sidecar import Signal

Owner: TypeAlias = Literal["resource", "scope", "record"]

OWNERS: Final[dict[str, Owner]] = {
    "opentelemetry.proto.resource.v1.Resource": "resource",
    "opentelemetry.proto.common.v1.InstrumentationScope": "scope",
}
ENTITY: Final = "opentelemetry.proto.common.v1.EntityRef"

Getter: TypeAlias = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Level:
    """The places in messages of one type.

    Attributes:
        maps: attributes, and whose they are.
        values: values that belong to no key (the bodies of log records): what gives the message that holds them, and
            the field's name.
        entities: lists of references to entities, which name attributes.
        below: lists of messages, and the places in them.
    """

    maps: tuple[tuple[Getter, Owner], ...]
    values: tuple[tuple[Getter, str], ...]
    entities: tuple[Getter, ...]
    below: tuple[tuple[Getter, Level], ...]

    def walk(self, messages: Iterable[Any]) -> Iterator[tuple[Level, list[Any]]]:
        """Each level from here on with all messages of it."""
        found = list(messages)
        if found:
            yield self, found
            for get, level in self.below:
                yield from level.walk(chain.from_iterable(map(get, found)))


@cache
def places(signal: Signal, *, nested: bool) -> Level:
    """The places in a signal's export request, in one of the views."""
    level = _level(view(signal, nested=nested).DESCRIPTOR)
    if level is None:
        raise TypeError(f"no key stands anywhere in {signal.value} requests")
    return level


def _level(descriptor: Descriptor) -> Level | None:
    """The places in messages of a type; None when there are none."""
    maps: list[tuple[Getter, Owner]] = []
    values: list[tuple[Getter, str]] = []
    entities: list[Getter] = []
    below: list[tuple[Getter, Level]] = []
    for path, kind, owner in _fields(descriptor):
        if kind.GetOptions().map_entry:
            maps.append((attrgetter(path), owner))
        elif kind.full_name == ANY_VALUE:
            parent, _, name = path.rpartition(".")
            values.append((attrgetter(parent) if parent else _itself, name))
        elif kind.full_name == ENTITY:
            entities.append(attrgetter(path))
        elif (level := _level(kind)) is not None:
            below.append((attrgetter(path), level))
    if not (maps or values or entities or below):
        return None
    return Level(tuple(maps), tuple(values), tuple(entities), tuple(below))


def _itself(message: Any) -> Any:
    return message


def _fields(descriptor: Descriptor, prefix: str = "") -> Iterator[tuple[str, Descriptor, Owner]]:
    """The lists, maps and values of a message and of the single messages below it: path, type, whose they are."""
    owner = OWNERS.get(descriptor.full_name, "record")
    for field in descriptor.fields:
        kind = field.message_type
        if kind is None:
            continue
        if field.is_repeated or kind.full_name == ANY_VALUE:
            yield prefix + field.name, kind, owner
        else:
            yield from _fields(kind, f"{prefix}{field.name}.")
