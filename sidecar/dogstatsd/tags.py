"""Tags as attributes: what they say of the sender belongs to its resource, the rest to the point or record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from opentelemetry.proto.common.v1.common_pb2 import KeyValue

Pairs: TypeAlias = tuple[tuple[str, str | tuple[str, ...]], ...]

_RESOURCE: Final = {
    "service": "service.name",
    "env": "deployment.environment.name",
    "version": "service.version",
    "host": "host.name",
}
# What was read is kept up to this many bytes of text: some 20,000 ordinary lists of tags.
_MAX_REMEMBERED: Final = 1 << 20
# Of each list, so that empty ones count, too.
_OVERHEAD: Final = 16


@dataclass(frozen=True, slots=True)
class Tags:
    """Attributes in the order of their names, so that the same ones are equal however they were written.

    A tag without a value is an attribute with an empty text; one that comes with several values is an array.
    """

    resource: Pairs
    own: Pairs

    def written(self) -> Iterator[str]:
        """Those that are not on the resource, as Datadog writes them."""
        for name, value in self.own:
            for one in (value,) if isinstance(value, str) else value:
                yield f"{name}:{one}" if one else name


class TagReader:
    """Reads tags. Remembers what it has read: senders repeat themselves."""

    def __init__(self) -> None:
        self._read: dict[tuple[bytes, bytes], Tags] = {}
        self._size = 0

    def read(self, tags: bytes, container: bytes = b"") -> Tags:
        """The attributes of `tags` (`a:b,c`), and of the container as the protocol's field `c:` has it."""
        key = (tags, container)
        found = self._read.get(key)
        if found is None:
            size = len(tags) + len(container) + _OVERHEAD
            if self._size + size > _MAX_REMEMBERED:
                self._read.clear()
                self._size = 0
            self._size += size
            found = self._read[key] = _tags(tags, container)
        return found


def key_values(pairs: Pairs) -> list[KeyValue]:
    """As OTLP has them."""
    made = []
    for key, value in pairs:
        one = KeyValue(key=key)
        if isinstance(value, str):
            one.value.string_value = value
        else:
            for item in value:
                one.value.array_value.values.add(string_value=item)
        made.append(one)
    return made


def _tags(text: bytes, container: bytes) -> Tags:
    own: dict[str, list[str]] = {}
    resource: dict[str, str] = {}
    for tag in text.decode(errors="replace").split(","):
        name, _, value = tag.partition(":")
        if not name:
            continue
        attribute = _RESOURCE.get(name)
        if attribute and value and resource.setdefault(attribute, value) == value:
            continue  # a second, different one stays a tag: a resource has one of each
        values = own.setdefault(name, [])
        if value not in values:
            values.append(value)
    if found := _container_id(container.decode(errors="replace")):
        resource["container.id"] = found
    attributes = {name: some[0] if len(some) == 1 else tuple(some) for name, some in own.items()}
    return Tags(tuple(sorted(resource.items())), tuple(sorted(attributes.items(), key=lambda pair: pair[0])))


def _container_id(text: str) -> str:
    """The container's id: as it is (version 1.2), or with `ci-`; the inode of a cgroup (`in-`) is nobody's name."""
    for part in text.split(","):
        if not part.startswith("in-"):
            return part.removeprefix("ci-")
    return ""
