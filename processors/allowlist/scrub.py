"""Takes from a request what is not allowed."""

from __future__ import annotations

import hmac
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Any, Final, Literal

from processors.allowlist.places import Getter, Level, Owner
from processors.allowlist.rules import KeyRule
from sidecar import Secret

STACKTRACE: Final = "exception.stacktrace"
MASK: Final = "[REDACTED]"

_MARK: Final = "…".encode()
# How texts end that were cut before, by this processor or by the receiver of TelemetryEvents.
_MARKS: Final = (_MARK, "\n… truncated".encode())
_MAX_UTF8: Final = 4
# Up to here it is cheaper to ask each record for each denied key than to read all keys of the record.
_FEW: Final = 16
# DiscardUnknownFields goes down 64 messages and decoding 100, so deep values need it again on the way down. A level of
# nesting is three messages at most, and values begin in the ninth.
_DISCARDED: Final = 16
# What the plain view does not know.
_NOT_PLAIN: Final = frozenset({"array_value", "kvlist_value", "bytes_value"})


@dataclass(frozen=True, slots=True)
class Policy:
    """What an allowlist does. Lengths are UTF-8 bytes; None is no limit."""

    rules: Mapping[Owner, KeyRule]
    on_denied: Literal["drop", "mask", "hash"]
    hash_key: Secret
    scalars_only: bool
    body: Literal["keep", "drop", "string"]
    max_body: int | None
    max_stack: int | None
    max_value: int | None


class Scrubber:
    """Scrubs requests, in one of the views, by one policy.

    Attributes:
        nested: whether a value was met that the plain view does not know, until somebody sets it to False.
    """

    def __init__(self, policy: Policy) -> None:
        self.nested = False
        self._denied: Counter[str] = Counter()
        self._cut = 0
        self._policy = policy

    def take_counts(self) -> tuple[Counter[str], int]:
        """How often each denied key was met, and how many values were too long, since this was asked last."""
        taken = self._denied, self._cut
        self._denied, self._cut = Counter(), 0
        return taken

    def tasks(self, request: Any, level: Level) -> list[Callable[[], None]]:
        """What there is to do in a request of the plain view, in which no value needs a look but bodies and stacks."""
        tasks: list[Callable[[], None]] = []
        for here, messages in level.walk([request]):
            for get, owner in here.maps:
                rule = self._policy.rules[owner]
                maps = list(map(get, messages))
                suspects = _keys(maps) - rule.passing
                if suspects:
                    tasks.append(partial(self._suspects, maps, suspects, rule))
            for get, name in here.values:
                tasks += [partial(self._body, message, name) for message in self._wrong_bodies(get, messages, name)]
            for get in here.entities:
                tasks += [partial(self._entities, entities) for entities in map(get, messages) if entities]
        return tasks

    def scrub(self, request: Any, level: Level) -> None:
        """Take from a request of the nested view, in place, what is not allowed."""
        for here, messages in level.walk([request]):
            for get, owner in here.maps:
                rule = self._policy.rules[owner]
                maps = list(map(get, messages))
                self._suspects(maps, _keys(maps) - rule.passing, rule)
                for entries in maps:
                    self._values(entries, "", rule, self._policy.max_value)
            for get, name in here.values:
                for message in map(get, messages):
                    self._body(message, name)
            for get in here.entities:
                for entities in map(get, messages):
                    self._entities(entities)

    def _wrong_bodies(self, get: Getter, messages: list[Any], name: str) -> list[Any]:
        """The messages whose body, a scalar, may not stay as it is."""
        limit = self._policy.max_body
        if self._policy.body != "keep":
            return list(map(get, messages))
        if limit is None:
            return []
        text = attrgetter(f"{name}.string_value")
        if max(map(len, map(text, map(get, messages)))) * _MAX_UTF8 <= limit:
            return []
        return [message for message in map(get, messages) if not _fits(text(message), limit)]

    def _suspects(self, maps: list[Any], suspects: set[str], rule: KeyRule) -> None:
        """Look after the keys that may be denied, and after stacks."""
        denied = {key for key in suspects if not rule.allows(key)}
        holders: dict[str, list[Any]]
        if len(denied) <= _FEW:
            holders = {key: [entries for entries in maps if key in entries] for key in denied}
        else:
            holders = {key: [] for key in denied}
            for entries in maps:
                for key in denied.intersection(entries):
                    holders[key].append(entries)
        for key, found in holders.items():
            self._deny(key, found)
        if STACKTRACE in suspects - denied:
            for entries in maps:
                if STACKTRACE in entries:
                    self._limit(entries[STACKTRACE], self._policy.max_stack)

    def _values(self, entries: Any, path: str, rule: KeyRule, limit: int | None, depth: int = 0) -> None:
        """Scrub what lies in the values of a map whose own keys pass.

        Args:
            entries: the map.
            path: where it lies; "" for attributes themselves.
            rule: whose keys pass.
            limit: of each value.
            depth: how many values it lies within.
        """
        for key in list(entries):
            value = entries[key]
            # A text is told by its text: asking for the kind costs as much again.
            if value.string_value:
                if limit is not None and key != STACKTRACE:
                    self._limit(value, limit)
            elif value.WhichOneof("value") not in _NOT_PLAIN:
                continue
            elif self._policy.scalars_only and not value.HasField("bytes_value"):
                self.nested = True
                self._deny(key, [entries])
            else:
                self._value(value, f"{path}.{key}" if path else key, rule, limit, depth)

    def _value(self, value: Any, path: str, rule: KeyRule, limit: int | None, depth: int = 0) -> None:
        kind = value.WhichOneof("value")
        if depth and depth % _DISCARDED == 0:
            value.DiscardUnknownFields()
        self.nested |= kind in _NOT_PLAIN
        if kind == "kvlist_value":
            entries = value.kvlist_value.values
            for key in list(entries):
                # By its own name, or by its path, as in `app.*`.
                if not rule.allows(key) and not (path and rule.allows(f"{path}.{key}")):
                    self._deny(key, [entries])
            self._values(entries, path, rule, limit, depth + 1)
        elif kind == "array_value":
            for element in value.array_value.values:
                self._value(element, path, rule, limit, depth + 1)
        elif kind == "bytes_value" and limit is not None and len(value.bytes_value) > limit:
            value.bytes_value = value.bytes_value[:limit]
            self._cut += 1
        elif kind == "string_value":
            self._limit(value, limit)

    def _body(self, message: Any, name: str) -> None:
        if not message.HasField(name):
            return
        policy = self._policy
        value = getattr(message, name)
        if policy.body == "drop" or (policy.body == "string" and value.WhichOneof("value") != "string_value"):
            message.ClearField(name)
        else:
            self._value(value, "", policy.rules["record"], policy.max_body)

    def _entities(self, entities: Any) -> None:
        """Scrub references to entities, which name attributes. One that can't be identified any more goes."""
        if self._policy.on_denied != "drop":
            return
        allows = self._policy.rules["resource"].allows
        for index in range(len(entities) - 1, -1, -1):
            entity = entities[index]
            if all(map(allows, entity.id_keys)):
                entity.description_keys[:] = [key for key in entity.description_keys if allows(key)]
            else:
                del entities[index]

    def _deny(self, key: str, holders: list[Any]) -> None:
        """Deny a key that each of these maps holds."""
        self._denied[key] += len(holders)
        if self._policy.on_denied == "drop":
            for entries in holders:
                del entries[key]
            return
        for entries in holders:
            value = entries[key]
            text = MASK if self._policy.on_denied == "mask" else _digest(self._policy.hash_key, value)
            value.Clear()
            value.string_value = text

    def _limit(self, value: Any, limit: int | None) -> None:
        """Cut a text that is too long."""
        if limit is not None and not _fits(value.string_value, limit):
            value.string_value = value.string_value.encode()[:limit].decode(errors="ignore") + _MARK.decode()
            self._cut += 1


def _fits(text: str, limit: int) -> bool:
    """Whether a text has at most `limit` bytes, or was cut to that length before."""
    if len(text) * _MAX_UTF8 <= limit:
        return True
    data = text.encode()
    return len(data) <= limit or any(len(data) <= limit + len(mark) and data.endswith(mark) for mark in _MARKS)


def _keys(maps: Iterable[Any]) -> set[str]:
    """All keys of a level in one call, on which the speed of everything depends."""
    return set(chain.from_iterable(maps))


def _digest(key: Secret, value: Any) -> str:
    """HMAC-SHA-256 of a value: of a text's UTF-8, of anything else's encoding."""
    if value.WhichOneof("value") == "string_value":
        data = value.string_value.encode()
    else:
        data = value.SerializeToString(deterministic=True)
    return hmac.digest(key.reveal().encode(), data, "sha256").hex()
